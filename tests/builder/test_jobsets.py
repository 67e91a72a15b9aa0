"""JobSets as workloads, with both ways to configure replicated Jobs."""

from __future__ import annotations

import pytest

from phalanx.api.errors import Invalid
from phalanx.api.wire import Object
from phalanx.builder import Gang, Link, ManageBoth, ManageGroups, ManageNothing, jobsets
from tests.api.cause_summaries import summarize
from tests.builder.item_trees import build_workload, composite, errors_from_server, leaf
from tests.builder.workload_owners import jobset, replicated_job

RACK = "topology.kubernetes.io/rack"


def template(of: Object) -> Object:
    (found,) = jobsets.build_workload(of)["spec"]["compositePodGroupTemplates"]
    assert isinstance(found, dict)
    return found


def policies(of: Object) -> list[Object]:
    """Return the policy of the root and of each of its children."""
    root = template(of)
    return [one["schedulingPolicy"] for one in (root, *root["podGroupTemplates"])]


NEAR = {"topology": [{"level": RACK}]}
BASIC: Object = {"policy": {"basic": {}}}
NESTED = jobset(
    replicated_job("driver"),
    replicated_job("workers", 16, scheduling={"constraints": NEAR}),
    scheduling=BASIC,
)
TARGETED = jobset(
    replicated_job("driver"),
    replicated_job("workers", 16),
    scheduling={
        **BASIC,
        "replicatedJobPolicies": [{"targetReplicatedJob": "workers", "constraints": NEAR}],
    },
)


@pytest.mark.parametrize("manifest", [NESTED, TARGETED], ids=["nested", "targeted"])
def test_both_models_of_the_proposal_give_the_same_workload_spec(manifest: Object) -> None:
    workload = jobsets.build_workload(manifest)
    assert workload["spec"] == {
        "controllerRef": {"apiGroup": "jobset.x-k8s.io", "kind": "JobSet", "name": "train"},
        "compositePodGroupTemplates": [
            {
                "name": "root",
                "schedulingPolicy": {"basic": {}},
                "podGroupTemplates": [
                    {"name": "driver", "schedulingPolicy": {"basic": {}}},
                    {
                        "name": "workers",
                        "schedulingPolicy": {"basic": {}},
                        "schedulingConstraints": {"topology": [{"key": RACK}]},
                    },
                ],
            }
        ],
    }
    assert errors_from_server(workload) == []


def test_jobset_is_a_gang_of_gangs_by_default() -> None:
    manifest = jobset(
        replicated_job("driver"), replicated_job("workers", 3, parallelism=2, completions=2)
    )
    assert policies(manifest) == [
        {"gang": {"minGroupCount": 2}},
        {"gang": {"minCount": 1}},
        {"gang": {"minCount": 6}},
    ]


def test_replicated_job_without_pods_is_not_required() -> None:
    manifest = jobset(replicated_job("driver"), replicated_job("spare", 0))
    assert policies(manifest)[0] == {"gang": {"minGroupCount": 1}}


def test_size_of_a_replicated_job_is_limited_by_completions() -> None:
    assert policies(jobset(replicated_job("workers", 2, parallelism=4, completions=3)))[1] == (
        {"gang": {"minCount": 6}}
    )


@pytest.mark.parametrize(
    "manifest",
    [
        jobset(
            replicated_job("driver"),
            replicated_job("workers"),
            startupPolicy={"startupPolicyOrder": "InOrder"},
        ),
        jobset(
            replicated_job("driver"),
            {**replicated_job("workers"), "dependsOn": [{"name": "driver", "status": "Ready"}]},
        ),
    ],
    ids=["in order", "depends on"],
)
def test_sequential_startup_makes_each_replicated_job_its_own_gang(manifest: Object) -> None:
    assert [list(policy) for policy in policies(manifest)] == [["basic"], ["gang"], ["gang"]]


def test_user_may_ask_for_gangs_with_sequential_startup() -> None:
    gang: Object = {"schedulingPolicy": {"gang": {}}}
    manifest = jobset(
        replicated_job("driver"),
        replicated_job("workers", 2, scheduling=gang),
        startupPolicy={"startupPolicyOrder": "InOrder"},
    )
    expected = [{"basic": {}}, {"gang": {"minCount": 1}}, {"gang": {"minCount": 2}}]
    assert policies(manifest) == expected


def test_gang_policy_of_a_replicated_job_counts() -> None:
    manifest = jobset(
        replicated_job("driver", gangPolicy={"policy": "NoGang"}),
        replicated_job("workers", 2, parallelism=3, gangPolicy={"policy": "JobAsGang"}),
        scheduling=BASIC,
    )
    assert policies(manifest) == [{"basic": {}}, {"gang": {"minCount": 6}}]
    assert [one["name"] for one in template(manifest)["podGroupTemplates"]] == ["workers"]


def test_startup_policy_any_order_is_not_sequential() -> None:
    manifest = jobset(
        replicated_job("driver"),
        replicated_job("workers"),
        startupPolicy={"startupPolicyOrder": "AnyOrder"},
    )
    assert policies(manifest)[0] == {"gang": {"minGroupCount": 2}}


def test_size_in_a_template_is_per_job() -> None:
    gang = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    manifest = jobset(
        replicated_job("workers", 4, parallelism=5, scheduling=gang), scheduling=BASIC
    )
    assert policies(manifest) == [{"basic": {}}, {"gang": {"minCount": 12}}]


def test_size_in_the_list_of_the_jobset_is_for_all_jobs() -> None:
    targeted = {"targetReplicatedJob": "workers", "schedulingPolicy": {"gang": {"minCount": 3}}}
    manifest = jobset(
        replicated_job("workers", 4), scheduling={**BASIC, "replicatedJobPolicies": [targeted]}
    )
    assert policies(manifest) == [{"basic": {}}, {"gang": {"minCount": 3}}]


def test_replicated_job_may_opt_out_of_the_gang() -> None:
    basic: Object = {"schedulingPolicy": {"basic": {}}}
    manifest = jobset(replicated_job("driver", scheduling=basic), replicated_job("workers", 2))
    assert policies(manifest) == [
        {"gang": {"minGroupCount": 2}},
        {"basic": {}},
        {"gang": {"minCount": 2}},
    ]


def test_disruption_mode_all_is_inherited_by_every_replicated_job() -> None:
    manifest = jobset(
        replicated_job("driver"),
        replicated_job("workers"),
        scheduling={"disruptionMode": {"all": {}}},
    )
    root = template(manifest)
    assert [one["disruptionMode"] for one in (root, *root["podGroupTemplates"])] == (
        [{"all": {}}] * 3
    )


def test_replicated_job_may_have_the_name_root() -> None:
    built = template(jobset(replicated_job("root"), replicated_job("root-0")))
    assert built["name"] == "root-1"


def test_jobset_inherits_the_priority_of_its_pods() -> None:
    high = {"priorityClassName": "high", "preemptionPolicy": "Never"}
    built = template(
        jobset(replicated_job("driver", pod=high), replicated_job("workers", pod=high))
    )
    for one in (built, *built["podGroupTemplates"]):
        assert (one["priorityClassName"], one["preemptionPolicy"]) == ("high", "Never")


PATH = "spec.replicatedJobs[1]"


@pytest.mark.parametrize(
    ("manifest", "causes"),
    [
        (NESTED, []),
        (TARGETED, []),
        (jobset(), ["spec.replicatedJobs: Required"]),
        (
            jobset(replicated_job("a"), scheduling={"policy": {"gang": {"minGroupCount": 2}}}),
            ["spec.scheduling.policy.gang.minGroupCount: Invalid"],
        ),
        (
            jobset(replicated_job("a"), replicated_job("b", pod={"priorityClassName": "high"})),
            [f"{PATH}.template.spec.template.spec.priorityClassName: Invalid"],
        ),
        (jobset(replicated_job("a"), replicated_job("a")), [f"{PATH}.name: Duplicate"]),
        (jobset(replicated_job("a"), replicated_job("b.c")), [f"{PATH}.name: Invalid"]),
        (jobset(*(replicated_job(f"r-{n}") for n in range(9))), ["spec.replicatedJobs: TooMany"]),
        (
            jobset(
                replicated_job("a"),
                replicated_job("b", scheduling={"policy": {"gang": {"minCount": 0}}}),
            ),
            [f"{PATH}.template.spec.scheduling.policy.gang.minCount: Invalid"],
        ),
        (
            jobset(
                replicated_job("a"),
                scheduling={
                    "replicatedJobPolicies": [
                        {"targetReplicatedJob": "a", "policy": {"gang": {"minCount": -1}}}
                    ]
                },
            ),
            ["spec.scheduling.replicatedJobPolicies[0].policy.gang.minCount: Invalid"],
        ),
        (
            jobset(replicated_job("a"), scheduling={"policy": {"gang": {"minGroupCount": 0}}}),
            ["spec.scheduling.policy.gang.minGroupCount: Invalid"],
        ),
    ],
)
def test_errors_are_reported_at_the_fields_of_the_jobset(
    manifest: Object, causes: list[str]
) -> None:
    assert summarize(jobsets.validate(manifest)) == causes
    assert jobsets.validate(manifest, manifest) == []


def test_empty_jobset_is_rejected() -> None:
    with pytest.raises(Invalid, match=r"spec\.replicatedJobs"):
        jobsets.build_workload(jobset())


def test_jobset_has_a_composite_group_and_a_group_for_each_replicated_job() -> None:
    workload = jobsets.build_workload(NESTED)
    workload["metadata"]["uid"] = "uid-w"
    root, driver, workers = jobsets.build_groups(NESTED, workload)
    assert [one["kind"] for one in (root, driver, workers)] == [
        "CompositePodGroup",
        "PodGroup",
        "PodGroup",
    ]
    for child in (driver, workers):
        assert child["spec"]["parentCompositePodGroupName"] == root["metadata"]["name"]
    assert workers["spec"]["schedulingConstraints"] == {"topology": [{"key": RACK}]}
    for one in (root, driver, workers):
        owners = [owner["kind"] for owner in one["metadata"]["ownerReferences"]]
        assert owners == ["JobSet", "Workload"]
        assert errors_from_server(one) == []


def test_linked_jobset_has_groups_of_its_parents_workload() -> None:
    parent = composite("trainer", composite("nodes", leaf("driver"), leaf("workers")), leaf("init"))
    root, *roles = jobsets.build_groups(NESTED, build_workload(parent), Link("nodes", "trainer-1"))
    assert root["spec"]["parentCompositePodGroupName"] == "trainer-1"
    assert [one["spec"]["workloadRef"]["templateName"] for one in (root, *roles)] == [
        "nodes",
        "driver",
        "workers",
    ]
    for one in (root, *roles):
        assert [owner["kind"] for owner in one["metadata"]["ownerReferences"]] == ["JobSet"]
        assert errors_from_server(one) == []


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        (NESTED, ManageBoth()),
        (
            jobset(
                replicated_job("a"),
                replicated_job("b", pod={"schedulingGroup": {"podGroupName": "mine"}}),
            ),
            ManageNothing("its pods already name the PodGroup mine"),
        ),
        (
            jobset(replicated_job("a"), meta={"annotations": Link("trainer").annotations()}),
            ManageGroups(Link("trainer")),
        ),
        (
            jobset(replicated_job("a", gangPolicy={"policy": "NoGang"})),
            ManageNothing("none of its replicated Jobs is in a PodGroup"),
        ),
    ],
)
def test_first_reason_decides_the_management_of_a_jobset(
    manifest: Object, expected: object
) -> None:
    assert jobsets.decide_job_set_management(manifest) == expected


def test_jobset_item_is_a_tree() -> None:
    item = jobsets.build_item(jobset(replicated_job("driver"), replicated_job("workers", 2)))
    assert item.resolve().policy == Gang(2)
    assert [child.resolve().policy for child in item.children] == [Gang(1), Gang(2)]
