"""What users write wrongly in the building blocks is a cause at their own field."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.errors import Invalid
from phalanx.api.wire import Object
from phalanx.builder import (
    Gang,
    NoTopology,
    ObservedObjects,
    SchedulingConfig,
    WorkloadBuilder,
    WorkloadItem,
    jobs,
    jobsets,
    parse_parents,
    read_intent,
)
from tests.builder.item_trees import EVERYTHING, OWNER, leaf
from tests.builder.workload_owners import job, jobset, replicated_job


@pytest.mark.parametrize(
    ("blocks", "composite", "field"),
    [
        ("gang", False, "s"),
        ({"polcy": {}}, False, "s.polcy"),
        ({"policy": "gang"}, False, "s.policy"),
        ({"policy": {"gang": []}}, False, "s.policy.gang"),
        ({"policy": {"gang": {"minCount": "4"}}}, False, "s.policy.gang.minCount"),
        ({"policy": {"gang": {"minCount": True}}}, False, "s.policy.gang.minCount"),
        ({"policy": {"gang": {"mincount": 4}}}, False, "s.policy.gang.mincount"),
        ({"policy": {"gang": {"minCount": 4}}}, True, "s.policy.gang.minCount"),
        ({"policy": {"gang": {"minGroupCount": 4}}}, False, "s.policy.gang.minGroupCount"),
        ({"policy": {"gang": {}}, "schedulingPolicy": {"gang": {}}}, False, "s.policy"),
        ({"constraints": []}, False, "s.constraints"),
        ({"constraints": {"topolgy": []}}, False, "s.constraints.topolgy"),
        ({"constraints": {"topology": "rack"}}, False, "s.constraints.topology"),
        ({"constraints": {"topology": ["rack"]}}, False, "s.constraints.topology[0]"),
        ({"constraints": {"topology": [{"key": 1}]}}, False, "s.constraints.topology[0].key"),
        (
            {"constraints": {"topology": [{"key": "a", "level": "b"}]}},
            False,
            "s.constraints.topology[0].level",
        ),
        ({"disruptionMode": "all"}, False, "s.disruptionMode"),
        ({"disruptionMode": {"all": 1}}, False, "s.disruptionMode.all"),
        ({"resourceClaims": "gpu"}, False, "s.resourceClaims"),
        ({"resourceClaims": ["gpu"]}, False, "s.resourceClaims[0]"),
        ({"resourceClaims": [{"name": 1}]}, False, "s.resourceClaims[0].name"),
        ({"resourceClaims": [{"nam": "x"}]}, False, "s.resourceClaims[0].nam"),
        ({"resourceClaims": []}, True, "s.resourceClaims"),
    ],
)
def test_fault_is_a_cause_at_the_users_field(blocks: Any, composite: bool, field: str) -> None:
    intent = read_intent(blocks, "s", composite=composite)
    assert [cause.field for cause in intent.causes] == [field]
    item = leaf("workers", intent.config, causes=intent.causes, path="s", fields=intent.fields)
    assert field in [cause.field for cause in WorkloadBuilder(item, EVERYTHING).validate()]
    with pytest.raises(Invalid):
        WorkloadBuilder(item, EVERYTHING).build(OWNER)


def test_faults_that_existed_before_are_not_reported_again() -> None:
    intent = read_intent({"polcy": {}}, "s")
    item = leaf("workers", causes=intent.causes)
    assert WorkloadBuilder(item, EVERYTHING).validate(item) == []


def test_controllers_of_jobs_and_job_sets_report_the_faults() -> None:
    wrong: Object = {"policy": {"gang": {"minCuont": 2}}}
    found = jobs.validate(job(scheduling=wrong))
    assert [cause.field for cause in found] == ["spec.scheduling.policy.gang.minCuont"]
    nested = jobset(replicated_job("workers", scheduling=wrong))
    assert [cause.field for cause in jobsets.validate(nested)] == [
        "spec.replicatedJobs[0].template.spec.scheduling.policy.gang.minCuont"
    ]
    size = jobset(replicated_job("workers"), scheduling={"policy": {"gang": {"minCount": 1}}})
    assert [cause.field for cause in jobsets.validate(size)] == [
        "spec.scheduling.policy.gang.minCount"
    ]


def test_empty_topology_undoes_a_default() -> None:
    intent = read_intent({"schedulingConstraints": {"topology": []}}, "s")
    assert intent.config.topology == NoTopology()
    near = SchedulingConfig(policy=Gang(2), topology=("rack",))
    item = WorkloadItem("workers", default=near, user=intent.config)
    (template,) = WorkloadBuilder(item, EVERYTHING).build(OWNER)["spec"]["podGroupTemplates"]
    assert "schedulingConstraints" not in template


def test_owner_without_a_namespace_needs_the_namespace_of_its_pods() -> None:
    meta = {name: value for name, value in OWNER["metadata"].items() if name != "namespace"}
    owner = {**OWNER, "metadata": meta}
    builder = WorkloadBuilder(leaf(), EVERYTHING)
    with pytest.raises(Invalid, match=r"metadata\.namespace: Required value") as refused:
        builder.build(owner)
    assert len(refused.value.causes) == 1
    assert builder.build(owner, namespace="pods")["metadata"]["namespace"] == "pods"
    plan = builder.ensure(owner, ObservedObjects(), namespace="pods")
    (create,) = plan.operations
    assert getattr(create, "obj")["metadata"]["namespace"] == "pods"  # noqa: B009
    assert "namespace" not in owner["metadata"]


def test_parent_kinds_are_registered_and_removed_by_name() -> None:
    parents = parse_parents("Training.example.com, -JobSet.jobset.x-k8s.io")
    assert ("example.com", "Training") in parents
    assert ("jobset.x-k8s.io", "JobSet") not in parents
    assert parse_parents("") >= {("jobset.x-k8s.io", "JobSet")}
    for text in ("Training", ".example.com", "-"):
        with pytest.raises(ValueError, match="is not Kind"):
            parse_parents(text)
