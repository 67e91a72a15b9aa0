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
    (found,) = jobs.build_workload(of)["spec"]["podGroupTemplates"]
    assert isinstance(found, dict)
    return found


def owned(api_version: str, kind: str, *, controller: bool = True) -> Object:
    owner = {"apiVersion": api_version, "kind": kind, "name": "parent", "uid": "u"}
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
def test_job_is_basic_unless_its_user_asks_for_a_gang(spec: Object, policy: Object) -> None:
    assert template(job(**spec)) == {"name": "train-pgt-0", "schedulingPolicy": policy}


def test_job_template_has_every_field_of_the_user() -> None:
    scheduling = {
        "schedulingPolicy": {"gang": {}},
        "schedulingConstraints": {"topology": [{"key": "topology.kubernetes.io/zone"}]},
        "disruptionMode": {"all": {}},
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "each"}],
    }
    built = template(job(parallelism=4, scheduling=scheduling))
    assert built == {
        "name": "train-pgt-0",
        **scheduling,
        "schedulingPolicy": {"gang": {"minCount": 4}},
    }


def test_job_of_the_proposal_is_a_gang_in_a_zone_with_disruption_mode_all() -> None:
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


def test_gang_policy_keeps_the_other_scheduling_fields() -> None:
    built = template(
        job(
            parallelism=2,
            gangPolicy={"policy": "JobAsGang"},
            scheduling={"disruptionMode": {"all": {}}},
        )
    )
    assert built["disruptionMode"] == {"all": {}}
    assert built["schedulingPolicy"] == {"gang": {"minCount": 2}}


def test_group_has_the_priority_of_its_pods() -> None:
    built = template(job(pod={"priorityClassName": "high", "preemptionPolicy": "Never"}))
    assert (built["priorityClassName"], built["preemptionPolicy"]) == ("high", "Never")


def test_workload_is_controlled_by_its_job() -> None:
    workload = jobs.build_workload(job())
    assert workload["metadata"]["name"] == "train-795ddf89fd"
    assert workload["metadata"]["namespace"] == "team"
    assert workload["metadata"]["ownerReferences"][0]["uid"] == "uid-123"
    assert workload["spec"]["controllerRef"] == {
        "apiGroup": "batch",
        "kind": "Job",
        "name": "train",
    }


@pytest.mark.parametrize("name", ["train", "train.v2", "j" * 63, "0"])
def test_workload_and_group_of_every_job_name_pass_server_validation(name: str) -> None:
    manifest = job(name)
    assert creation_causes(JOB, {**manifest, "metadata": {"name": name}}) == []
    workload = {**jobs.build_workload(manifest)}
    assert errors_from_server(workload) == []
    assert errors_from_server(jobs.build_pod_group(manifest, workload)) == []


def test_size_follows_parallelism_when_built_again() -> None:
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
def test_errors_are_reported_at_the_fields_of_the_job(spec: Any, causes: list[str]) -> None:
    assert summarize(jobs.validate(job(**spec))) == causes
    assert jobs.validate(job(**spec), job(**spec)) == []


def test_job_with_invalid_scheduling_is_rejected() -> None:
    with pytest.raises(Invalid) as error:
        jobs.build_workload(job(scheduling={"disruptionMode": {"all": {}}}))
    assert [cause.field for cause in error.value.causes] == ["spec.scheduling.disruptionMode"]


# ------------------------------------------------------------------------------------ management

LINKED = {"annotations": Link("workers", "root-1").annotations()}


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        (job(parallelism=4), ManageBoth()),
        (job(), ManageBoth()),
        (job(meta=owned("batch/v1", "CronJob")), ManageBoth()),
        (job(meta=owned("example.com/v1", "Unknown")), ManageBoth()),
        (job(meta=owned("example.com/v1", "JobSet")), ManageBoth()),
        (job(meta=owned("jobset.x-k8s.io/v1alpha2", "JobSet", controller=False)), ManageBoth()),
        (
            job(meta=owned("jobset.x-k8s.io/v1alpha2", "JobSet")),
            ManageNothing("JobSet parent manages its scheduling"),
        ),
        (
            job(pod={"schedulingGroup": {"podGroupName": "mine"}}),
            ManageNothing("its pods already name the PodGroup mine"),
        ),
        (
            job(pod={"schedulingGroup": {"podGroupName": "mine"}}, meta=LINKED),
            ManageNothing("its pods already name the PodGroup mine"),
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
def test_first_reason_decides_the_management_of_a_job(
    manifest: Object, expected: Management
) -> None:
    assert jobs.decide_job_management(manifest) == expected
    off = jobs.decide_job_management(manifest, enabled=False)
    assert off == ManageNothing("the feature gate WorkloadWithJob is disabled")


def test_scheduling_parents_can_be_registered() -> None:
    manifest = job(meta=owned("example.com/v1", "Pipeline"))
    managed = jobs.decide_job_management(manifest, parents=[("example.com", "Pipeline")])
    assert managed == ManageNothing("Pipeline parent manages its scheduling")


def test_gangs_get_objects_without_basic_workloads() -> None:
    gang = job(scheduling={"schedulingPolicy": {"gang": {}}})
    assert jobs.decide_job_management(gang, basic=False) == ManageBoth()
    assert jobs.decide_job_management(job(), basic=False) == ManageNothing(
        "it is not a gang, and only gangs get Workloads"
    )


# ---------------------------------------------------------------------------------------- groups


def test_root_job_and_its_workload_own_its_group() -> None:
    manifest = job(parallelism=3, scheduling={"schedulingPolicy": {"gang": {}}})
    workload = jobs.build_workload(manifest)
    workload["metadata"]["uid"] = "uid-w"
    group = jobs.build_pod_group(manifest, workload)
    assert [one["kind"] for one in group["metadata"]["ownerReferences"]] == ["Job", "Workload"]
    assert [one.get("controller") for one in group["metadata"]["ownerReferences"]] == [True, None]
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
    assert errors_from_server(group) == []


def test_workload_without_uid_is_no_owner() -> None:
    group = jobs.build_pod_group(job(), jobs.build_workload(job()))
    assert [one["kind"] for one in group["metadata"]["ownerReferences"]] == ["Job"]


PARENT = WorkloadBuilder(
    composite("root", leaf("driver"), leaf("workers", config(Gang(4)))), EVERYTHING
).build(OWNER)


def test_linked_job_has_a_group_of_its_parents_workload() -> None:
    group = jobs.build_pod_group(job("train-workers-0"), PARENT, Link("workers", "root-1"))
    assert group["spec"]["workloadRef"]["templateName"] == "workers"
    assert group["spec"]["parentCompositePodGroupName"] == "root-1"
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 4}}
    assert [one["kind"] for one in group["metadata"]["ownerReferences"]] == ["Job"]
    assert errors_from_server(group) == []


def test_link_without_a_parent_joins_the_group_of_the_parent_template() -> None:
    group = jobs.build_pod_group(job("train-workers-0"), PARENT, Link("workers"))
    root = new_composite_pod_group(PARENT, "root")["metadata"]["name"]
    assert group["spec"]["parentCompositePodGroupName"] == root


def test_link_without_a_template_uses_the_first_one() -> None:
    group = jobs.build_pod_group(job("train-driver-0"), PARENT, Link(""))
    assert group["spec"]["workloadRef"]["templateName"] == "driver"


def test_siblings_of_one_template_have_different_groups() -> None:
    names = [
        jobs.build_pod_group(job(f"train-workers-{n}"), PARENT, Link("workers"))["metadata"]["name"]
        for n in range(2)
    ]
    assert names[0] != names[1]


def test_link_to_an_unknown_template_is_not_found() -> None:
    with pytest.raises(NotFound, match=r'"unknown" not found .* \(have \[driver workers\]\)'):
        jobs.build_pod_group(job(), PARENT, Link("unknown"))


def test_job_is_not_changed() -> None:
    manifest = job(parallelism=3, scheduling={"schedulingPolicy": {"gang": {}}}, meta=LINKED)
    before = copy.deepcopy(manifest)
    jobs.decide_job_management(manifest)
    jobs.validate(manifest)
    jobs.build_pod_group(manifest, jobs.build_workload(manifest))
    assert manifest == before


def test_job_item_is_basic_by_default() -> None:
    assert jobs.build_item(job()).default.policy == Basic()
