"""Jobs as workloads."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from phalanx.api.errors import Invalid, NotFound
from phalanx.api.kinds import JOB
from phalanx.api.wire import Object
from phalanx.builder import (
    Basic,
    Gang,
    Link,
    ManageBoth,
    ManageGroups,
    ManageNothing,
    WorkloadBuilder,
    jobs,
    new_composite_pod_group,
)
from phalanx.builder.ownership import Management
from tests.api.cause_summaries import summarize
from tests.api.stored_objects import creation_causes
from tests.builder.item_trees import EVERYTHING, OWNER, composite, config, errors_from_server, leaf
from tests.builder.workload_owners import job


def template(of: Object) -> Object:
    (found,) = jobs.workload(of)["spec"]["podGroupTemplates"]
    assert isinstance(found, dict)
    return found


def owned(api_version: str, kind: str, *, controller: bool = True) -> Object:
    owner = {"apiVersion": api_version, "kind": kind, "name": "boss", "uid": "u"}
    return {"ownerReferences": [{**owner, "controller": controller}]}


# ------------------------------------------------------------------------------------- workloads


@pytest.mark.parametrize(
    ("spec", "policy"),
    [
        ({"parallelism": 10}, {"basic": {}}),
        ({"scheduling": {}}, {"basic": {}}),
        ({"scheduling": {"schedulingPolicy": {"basic": {}}}}, {"basic": {}}),
        (
            {"parallelism": 4, "scheduling": {"schedulingPolicy": {"gang": {"minCount": 3}}}},
            {"gang": {"minCount": 3}},
        ),
        (
            {"parallelism": 4, "scheduling": {"schedulingPolicy": {"gang": {}}}},
            {"gang": {"minCount": 4}},
        ),
        ({"scheduling": {"schedulingPolicy": {"gang": {}}}}, {"gang": {"minCount": 1}}),
        (
            {"parallelism": 0, "scheduling": {"schedulingPolicy": {"gang": {}}}},
            {"gang": {"minCount": 1}},
        ),
        ({"parallelism": 4, "gangPolicy": {"policy": "JobAsGang"}}, {"gang": {"minCount": 4}}),
        (
            {
                "parallelism": 4,
                "gangPolicy": {"policy": "JobAsGang"},
                "scheduling": {"schedulingPolicy": {"gang": {"minCount": 2}}},
            },
            {"gang": {"minCount": 2}},
        ),
        (
            {"gangPolicy": {"policy": "JobAsGang"}, "scheduling": {"policy": {"basic": {}}}},
            {"basic": {}},
        ),
    ],
)
def test_a_job_is_basic_unless_its_user_wants_a_gang(spec: Object, policy: Object) -> None:
    assert template(job(**spec)) == {"name": "train-pgt-0", "schedulingPolicy": policy}


def test_a_job_passes_on_all_that_its_user_says() -> None:
    scheduling = {
        "schedulingPolicy": {"gang": {}},
        "schedulingConstraints": {"topology": [{"key": "topology.kubernetes.io/zone"}]},
        "disruptionMode": {"all": {}},
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "each"}],
    }
    made = template(job(parallelism=4, scheduling=scheduling))
    assert made == {
        "name": "train-pgt-0",
        **scheduling,
        "schedulingPolicy": {"gang": {"minCount": 4}},
    }


def test_the_job_that_the_proposal_prints_is_a_gang_in_a_zone_that_goes_as_a_whole() -> None:
    scheduling = {
        "policy": {"gang": {}},
        "constraints": {"topology": [{"level": "topology.kubernetes.io/zone"}]},
        "disruption": {"all": {}},
    }
    assert template(job(parallelism=4, completions=4, scheduling=scheduling)) == {
        "name": "train-pgt-0",
        "schedulingPolicy": {"gang": {"minCount": 4}},
        "schedulingConstraints": {"topology": [{"key": "topology.kubernetes.io/zone"}]},
        "disruptionMode": {"all": {}},
    }


def test_a_job_as_gang_keeps_what_else_its_user_says() -> None:
    made = template(
        job(
            parallelism=2,
            gangPolicy={"policy": "JobAsGang"},
            scheduling={"disruptionMode": {"all": {}}},
        )
    )
    assert made["disruptionMode"] == {"all": {}}
    assert made["schedulingPolicy"] == {"gang": {"minCount": 2}}


def test_a_group_has_the_priority_of_its_pods() -> None:
    made = template(job(pod={"priorityClassName": "high", "preemptionPolicy": "Never"}))
    assert (made["priorityClassName"], made["preemptionPolicy"]) == ("high", "Never")


def test_a_workload_belongs_to_its_job() -> None:
    workload = jobs.workload(job())
    assert workload["metadata"]["name"] == "train-795ddf89fd"
    assert workload["metadata"]["namespace"] == "team"
    assert workload["metadata"]["ownerReferences"][0]["uid"] == "uid-123"
    assert workload["spec"]["controllerRef"] == {
        "apiGroup": "batch", "kind": "Job", "name": "train",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["train", "train.v2", "j" * 63, "0"])
def test_every_job_has_a_workload_and_a_group_that_the_server_accepts(name: str) -> None:
    made = job(name)
    assert creation_causes(JOB, {**made, "metadata": {"name": name}}) == []
    workload = {**jobs.workload(made)}
    assert errors_from_server(workload) == []
    assert errors_from_server(jobs.pod_group(made, workload)) == []


def test_building_again_follows_the_parallelism() -> None:
    scheduling: Object = {"schedulingPolicy": {"gang": {}}}
    sizes = [
        template(job(parallelism=size, scheduling=scheduling))["schedulingPolicy"]["gang"]
        for size in (4, 6)
    ]
    assert sizes == [{"minCount": 4}, {"minCount": 6}]


# ------------------------------------------------------------------------------------ validation


@pytest.mark.parametrize(
    ("spec", "causes"),
    [
        ({}, []),
        (
            {"scheduling": {"disruptionMode": {"all": {}}}},
            ["spec.scheduling.disruptionMode: Invalid"],
        ),
        (
            {"scheduling": {"policy": {"gang": {"minCount": 0}}}},
            ["spec.scheduling.policy.gang.minCount: Invalid"],
        ),
        (
            {"scheduling": {"constraints": {"topology": [{"level": "no good"}]}}},
            ["spec.scheduling.constraints.topology[0].level: Invalid"],
        ),
        ({"pod": {"priorityClassName": "No"}}, ["spec.template.spec.priorityClassName: Invalid"]),
    ],
)
def test_a_user_is_told_at_the_fields_of_the_job(spec: Any, causes: list[str]) -> None:
    assert summarize(jobs.validate(job(**spec))) == causes
    assert jobs.validate(job(**spec), job(**spec)) == []


def test_a_job_that_cannot_have_a_workload_is_refused() -> None:
    with pytest.raises(Invalid) as refusal:
        jobs.workload(job(scheduling={"disruptionMode": {"all": {}}}))
    assert [cause.field for cause in refusal.value.causes] == ["spec.scheduling.disruptionMode"]


# ------------------------------------------------------------------------------------ management

LINKED = {"annotations": Link("workers", "root-1").annotations()}


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (job(parallelism=4), ManageBoth()),
        (job(), ManageBoth()),
        (job(meta=owned("batch/v1", "CronJob")), ManageBoth()),
        (job(meta=owned("example.com/v1", "Unheard")), ManageBoth()),
        (job(meta=owned("example.com/v1", "JobSet")), ManageBoth()),
        (job(meta=owned("jobset.x-k8s.io/v1alpha2", "JobSet", controller=False)), ManageBoth()),
        (
            job(meta=owned("jobset.x-k8s.io/v1alpha2", "JobSet")),
            ManageNothing("JobSet boss looks after its scheduling"),
        ),
        (
            job(pod={"schedulingGroup": {"podGroupName": "mine"}}),
            ManageNothing("its pods are in the group mine already"),
        ),
        (
            job(pod={"schedulingGroup": {"podGroupName": "mine"}}, meta=LINKED),
            ManageNothing("its pods are in the group mine already"),
        ),
        (job(meta=LINKED), ManageGroups(Link("workers", "root-1"))),
        (
            job(meta={**LINKED, **owned("jobset.x-k8s.io/v1alpha2", "JobSet")}),
            ManageGroups(Link("workers", "root-1")),
        ),
        (job(gangPolicy={"policy": "NoGang"}), ManageNothing("its gang policy is NoGang")),
        (
            job(gangPolicy={"policy": "NoGang"}, meta=LINKED),
            ManageGroups(Link("workers", "root-1")),
        ),
        (job(gangPolicy={"policy": "JobAsGang"}), ManageBoth()),
    ],
)
def test_the_first_reason_decides_what_is_made_for_a_job(
    made: Object, expected: Management
) -> None:
    assert jobs.management(made) == expected
    off = jobs.management(made, enabled=False)
    assert off == ManageNothing("the feature gate WorkloadWithJob is off")


def test_parents_can_be_registered() -> None:
    made = job(meta=owned("example.com/v1", "Pipeline"))
    managed = jobs.management(made, parents=[("example.com", "Pipeline")])
    assert managed == ManageNothing("Pipeline boss looks after its scheduling")


def test_where_basic_jobs_get_nothing_gangs_still_do() -> None:
    gang = job(scheduling={"schedulingPolicy": {"gang": {}}})
    assert jobs.management(gang, basic=False) == ManageBoth()
    assert jobs.management(job(), basic=False) == ManageNothing(
        "it is no gang, and only gangs get workloads here"
    )


# ---------------------------------------------------------------------------------------- groups


def test_a_root_job_and_its_workload_own_its_group() -> None:
    made = job(parallelism=3, scheduling={"schedulingPolicy": {"gang": {}}})
    workload = jobs.workload(made)
    workload["metadata"]["uid"] = "uid-w"
    group = jobs.pod_group(made, workload)
    assert [one["kind"] for one in group["metadata"]["ownerReferences"]] == ["Job", "Workload"]
    assert [one.get("controller") for one in group["metadata"]["ownerReferences"]] == [True, None]
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
    assert errors_from_server(group) == []


def test_a_workload_that_does_not_exist_yet_owns_nothing() -> None:
    group = jobs.pod_group(job(), jobs.workload(job()))
    assert [one["kind"] for one in group["metadata"]["ownerReferences"]] == ["Job"]


PARENT = WorkloadBuilder(
    composite("root", leaf("driver"), leaf("workers", config(Gang(4)))), EVERYTHING
).build(OWNER)


def test_a_linked_job_has_a_group_of_its_parents_workload() -> None:
    group = jobs.pod_group(job("train-workers-0"), PARENT, Link("workers", "root-1"))
    assert group["spec"]["workloadRef"]["templateName"] == "workers"
    assert group["spec"]["parentCompositePodGroupName"] == "root-1"
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 4}}
    assert [one["kind"] for one in group["metadata"]["ownerReferences"]] == ["Job"]
    assert errors_from_server(group) == []


def test_a_link_without_a_parent_leads_to_the_group_of_the_template_above() -> None:
    group = jobs.pod_group(job("train-workers-0"), PARENT, Link("workers"))
    root = new_composite_pod_group(PARENT, "root")["metadata"]["name"]
    assert group["spec"]["parentCompositePodGroupName"] == root


def test_a_link_without_a_template_means_the_first_one() -> None:
    group = jobs.pod_group(job("train-driver-0"), PARENT, Link(""))
    assert group["spec"]["workloadRef"]["templateName"] == "driver"


def test_siblings_on_one_template_have_groups_of_their_own() -> None:
    names = [
        jobs.pod_group(job(f"train-workers-{n}"), PARENT, Link("workers"))["metadata"]["name"]
        for n in range(2)
    ]
    assert names[0] != names[1]


def test_a_link_to_nowhere_is_told() -> None:
    with pytest.raises(NotFound, match=r'"nobody" not found .* \(have \[driver workers\]\)'):
        jobs.pod_group(job(), PARENT, Link("nobody"))


def test_a_job_is_left_as_it_is() -> None:
    made = job(parallelism=3, scheduling={"schedulingPolicy": {"gang": {}}}, meta=LINKED)
    before = copy.deepcopy(made)
    jobs.management(made)
    jobs.validate(made)
    jobs.pod_group(made, jobs.workload(made))
    assert made == before


def test_a_job_item_is_basic_by_default() -> None:
    assert jobs.item(job()).default.policy == Basic()
