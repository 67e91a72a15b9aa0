"""JobSets as workloads, in both ways that users can speak of their replicated Jobs."""

from __future__ import annotations

import pytest

from phalanx.api.errors import Invalid
from phalanx.api.wire import Object
from phalanx.builder import Gang, Link, ManageBoth, ManageGroups, ManageNothing, jobsets
from tests.api.cause_summaries import summarize
from tests.builder.item_trees import build_workload, composite, errors_from_server, leaf
from tests.builder.workload_owners import jobset, role

RACK = "topology.kubernetes.io/rack"


def template(of: Object) -> Object:
    (found,) = jobsets.workload(of)["spec"]["compositePodGroupTemplates"]
    assert isinstance(found, dict)
    return found


def policies(of: Object) -> list[Object]:
    """The policy of the root and of each group below it."""
    root = template(of)
    return [one["schedulingPolicy"] for one in (root, *root["podGroupTemplates"])]


NEAR = {"topology": [{"level": RACK}]}
BASIC: Object = {"policy": {"basic": {}}}
NESTED = jobset(
    role("driver"), role("workers", 16, scheduling={"constraints": NEAR}), scheduling=BASIC
)
TARGETED = jobset(
    role("driver"),
    role("workers", 16),
    scheduling={
        **BASIC,
        "replicatedJobPolicies": [{"targetReplicatedJob": "workers", "constraints": NEAR}],
    },
)


@pytest.mark.parametrize("printed", [NESTED, TARGETED], ids=["nested", "targeted"])
def test_both_models_of_the_proposal_give_the_same_workload(printed: Object) -> None:
    workload = jobsets.workload(printed)
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


def test_by_default_a_jobset_is_a_gang_of_gangs() -> None:
    made = jobset(role("driver"), role("workers", 3, parallelism=2, completions=2))
    assert policies(made) == [
        {"gang": {"minGroupCount": 2}},
        {"gang": {"minCount": 1}},
        {"gang": {"minCount": 6}},
    ]


def test_a_role_without_pods_keeps_nobody_waiting() -> None:
    made = jobset(role("driver"), role("spare", 0))
    assert policies(made)[0] == {"gang": {"minGroupCount": 1}}


def test_a_role_runs_no_more_pods_than_it_completes() -> None:
    assert policies(jobset(role("workers", 2, parallelism=4, completions=3)))[1] == (
        {"gang": {"minCount": 6}}
    )


@pytest.mark.parametrize(
    "made",
    [
        jobset(role("driver"), role("workers"), startupPolicy={"startupPolicyOrder": "InOrder"}),
        jobset(
            role("driver"),
            {**role("workers"), "dependsOn": [{"name": "driver", "status": "Ready"}]},
        ),
    ],
    ids=["in order", "depends on"],
)
def test_jobs_that_start_one_after_the_other_are_no_gang(made: Object) -> None:
    assert policies(made) == [{"basic": {}}] * 3


def test_a_user_may_want_some_gangs_of_jobs_that_start_one_after_the_other() -> None:
    gang: Object = {"schedulingPolicy": {"gang": {}}}
    made = jobset(
        role("driver"),
        role("workers", 2, scheduling=gang),
        startupPolicy={"startupPolicyOrder": "InOrder"},
    )
    assert policies(made) == [{"basic": {}}, {"basic": {}}, {"gang": {"minCount": 2}}]


def test_a_role_says_in_one_word_whether_it_is_a_gang() -> None:
    made = jobset(
        role("driver", gangPolicy={"policy": "NoGang"}),
        role("workers", 2, parallelism=3, gangPolicy={"policy": "JobAsGang"}),
        scheduling=BASIC,
    )
    assert policies(made) == [{"basic": {}}, {"gang": {"minCount": 6}}]
    assert [one["name"] for one in template(made)["podGroupTemplates"]] == ["workers"]


def test_any_order_is_no_order() -> None:
    made = jobset(role("driver"), role("workers"), startupPolicy={"startupPolicyOrder": "AnyOrder"})
    assert policies(made)[0] == {"gang": {"minGroupCount": 2}}


def test_a_size_in_a_template_is_that_of_each_job() -> None:
    gang = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    made = jobset(role("workers", 4, parallelism=5, scheduling=gang), scheduling=BASIC)
    assert policies(made) == [{"basic": {}}, {"gang": {"minCount": 12}}]


def test_a_size_in_the_list_of_the_root_is_that_of_all_jobs() -> None:
    targeted = {"targetReplicatedJob": "workers", "schedulingPolicy": {"gang": {"minCount": 3}}}
    made = jobset(role("workers", 4), scheduling={**BASIC, "replicatedJobPolicies": [targeted]})
    assert policies(made) == [{"basic": {}}, {"gang": {"minCount": 3}}]


def test_a_role_may_leave_the_gang_of_gangs() -> None:
    basic: Object = {"schedulingPolicy": {"basic": {}}}
    made = jobset(role("driver", scheduling=basic), role("workers", 2))
    assert policies(made) == [
        {"gang": {"minGroupCount": 2}}, {"basic": {}}, {"gang": {"minCount": 2}},
    ]  # fmt: skip


def test_what_is_disrupted_as_a_whole_is_so_in_every_role() -> None:
    made = jobset(role("driver"), role("workers"), scheduling={"disruptionMode": {"all": {}}})
    root = template(made)
    assert [one["disruptionMode"] for one in (root, *root["podGroupTemplates"])] == (
        [{"all": {}}] * 3
    )


def test_a_role_may_be_called_root() -> None:
    made = template(jobset(role("root"), role("root-0")))
    assert made["name"] == "root-1"


def test_the_priority_of_the_pods_is_that_of_the_whole() -> None:
    high = {"priorityClassName": "high", "preemptionPolicy": "Never"}
    made = template(jobset(role("driver", pod=high), role("workers", pod=high)))
    for one in (made, *made["podGroupTemplates"]):
        assert (one["priorityClassName"], one["preemptionPolicy"]) == ("high", "Never")


PLACE = "spec.replicatedJobs[1]"


@pytest.mark.parametrize(
    ("made", "causes"),
    [
        (NESTED, []),
        (TARGETED, []),
        (jobset(), ["spec.replicatedJobs: Required"]),
        (
            jobset(role("a"), scheduling={"policy": {"gang": {"minGroupCount": 2}}}),
            ["spec.scheduling.policy.gang.minGroupCount: Invalid"],
        ),
        (
            jobset(role("a"), role("b", pod={"priorityClassName": "high"})),
            [f"{PLACE}.template.spec.template.spec.priorityClassName: Invalid"],
        ),
        (jobset(role("a"), role("a")), [f"{PLACE}.name: Duplicate"]),
        (jobset(role("a"), role("b.c")), [f"{PLACE}.name: Invalid"]),
        (jobset(*(role(f"r-{n}") for n in range(9))), ["spec.replicatedJobs: TooMany"]),
        (
            jobset(role("a"), role("b", scheduling={"policy": {"gang": {"minCount": 0}}})),
            [f"{PLACE}.template.spec.scheduling.policy.gang.minCount: Invalid"],
        ),
        (
            jobset(
                role("a"),
                scheduling={
                    "replicatedJobPolicies": [
                        {"targetReplicatedJob": "a", "policy": {"gang": {"minCount": -1}}}
                    ]
                },
            ),
            ["spec.scheduling.replicatedJobPolicies[0].policy.gang.minCount: Invalid"],
        ),
        (
            jobset(role("a"), scheduling={"policy": {"gang": {"minGroupCount": 0}}}),
            ["spec.scheduling.policy.gang.minGroupCount: Invalid"],
        ),
    ],
)
def test_a_user_is_told_at_the_fields_of_the_jobset(made: Object, causes: list[str]) -> None:
    assert summarize(jobsets.validate(made)) == causes
    assert jobsets.validate(made, made) == []


def test_an_empty_jobset_has_no_workload() -> None:
    with pytest.raises(Invalid, match=r"spec\.replicatedJobs"):
        jobsets.workload(jobset())


def test_a_jobset_has_a_composite_and_a_group_for_each_role() -> None:
    workload = jobsets.workload(NESTED)
    workload["metadata"]["uid"] = "uid-w"
    root, driver, workers = jobsets.groups(NESTED, workload)
    assert [one["kind"] for one in (root, driver, workers)] == [
        "CompositePodGroup", "PodGroup", "PodGroup",
    ]  # fmt: skip
    for child in (driver, workers):
        assert child["spec"]["parentCompositePodGroupName"] == root["metadata"]["name"]
    assert workers["spec"]["schedulingConstraints"] == {"topology": [{"key": RACK}]}
    for one in (root, driver, workers):
        owners = [owner["kind"] for owner in one["metadata"]["ownerReferences"]]
        assert owners == ["JobSet", "Workload"]
        assert errors_from_server(one) == []


def test_a_linked_jobset_has_its_part_of_its_parents_workload() -> None:
    parent = composite("trainer", composite("nodes", leaf("driver"), leaf("workers")), leaf("init"))
    root, *roles = jobsets.groups(NESTED, build_workload(parent), Link("nodes", "trainer-1"))
    assert root["spec"]["parentCompositePodGroupName"] == "trainer-1"
    assert [one["spec"]["workloadRef"]["templateName"] for one in (root, *roles)] == [
        "nodes", "driver", "workers",
    ]  # fmt: skip
    for one in (root, *roles):
        assert [owner["kind"] for owner in one["metadata"]["ownerReferences"]] == ["JobSet"]
        assert errors_from_server(one) == []


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (NESTED, ManageBoth()),
        (
            jobset(role("a"), role("b", pod={"schedulingGroup": {"podGroupName": "mine"}})),
            ManageNothing("its pods are in the group mine already"),
        ),
        (
            jobset(role("a"), meta={"annotations": Link("trainer").annotations()}),
            ManageGroups(Link("trainer")),
        ),
        (
            jobset(role("a", gangPolicy={"policy": "NoGang"})),
            ManageNothing("none of its Jobs is to be in a group"),
        ),
    ],
)
def test_the_first_reason_decides_what_is_made_for_a_jobset(made: Object, expected: object) -> None:
    assert jobsets.management(made) == expected


def test_a_jobset_item_is_a_tree() -> None:
    item = jobsets.item(jobset(role("driver"), role("workers", 2)))
    assert item.resolve().policy == Gang(2)
    assert [child.resolve().policy for child in item.children] == [Gang(1), Gang(2)]
