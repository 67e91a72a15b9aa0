"""Fields that are dropped from writes while their gate is off."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from phalanx.api.feature_gates import (
    DEFAULT_GATES,
    GATED_FIELDS,
    GatedField,
    drop_disabled,
    resolve_gates,
)
from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    CRON_JOB,
    JOB,
    JOB_SET,
    LEADER_WORKER_SET,
    POD,
    POD_GROUP,
    POD_TEMPLATE,
    WORKLOAD,
    Kind,
)
from phalanx.api.schema import schema
from phalanx.api.wire import Object

GROUPED: Object = {"spec": {"schedulingGroup": {"podGroupName": "g"}}}
UNGROUPED: Object = {"spec": {}}
JOB_SPEC: Object = {"scheduling": {}, "gangPolicy": {"policy": "NoGang"}, "template": GROUPED}
LEAF: Object = {
    "name": "leaf",
    "schedulingConstraints": {"topology": [{"key": "zone"}]},
    "resourceClaims": [{"name": "c"}],
    "preemptionPolicy": "Never",
}
INNER: Object = {"name": "inner", "podGroupTemplates": [LEAF]}
OUTER: Object = {
    "name": "outer",
    "compositePodGroupTemplates": [INNER],
    "preemptionPolicy": "Never",
}


def without(value: Object, *fields: str) -> Object:
    return {key: inner for key, inner in value.items() if key not in fields}


def drop_disabled_fields(gate: str, kind: Kind, new: Object, old: Object | None = None) -> Object:
    """Return an object after a write while a gate is off."""
    result = copy.deepcopy(new)
    drop_disabled(resolve_gates({gate: False}), kind.schema, result, old=old)
    return result


CASES: list[tuple[str, Kind, Object, Object]] = [
    ("GenericWorkload", POD, GROUPED, UNGROUPED),
    ("GenericWorkload", POD_TEMPLATE, {"template": GROUPED}, {"template": UNGROUPED}),
    ("GenericWorkload", JOB, {"spec": {"template": GROUPED}}, {"spec": {"template": UNGROUPED}}),
    ("WorkloadWithJob", JOB, {"spec": JOB_SPEC}, {"spec": without(JOB_SPEC, "scheduling")}),
    (
        "WorkloadWithJob",
        CRON_JOB,
        {"spec": {"jobTemplate": {"spec": JOB_SPEC}}},
        {"spec": {"jobTemplate": {"spec": without(JOB_SPEC, "scheduling")}}},
    ),
    ("JobGangPolicy", JOB, {"spec": JOB_SPEC}, {"spec": without(JOB_SPEC, "gangPolicy")}),
    (
        "TopologyAwareWorkloadScheduling",
        POD_GROUP,
        {"spec": LEAF},
        {"spec": without(LEAF, "schedulingConstraints")},
    ),
    (
        "TopologyAwareWorkloadScheduling",
        WORKLOAD,
        {"spec": {"podGroupTemplates": [LEAF]}},
        {"spec": {"podGroupTemplates": [without(LEAF, "schedulingConstraints")]}},
    ),
    (
        "DRAWorkloadResourceClaims",
        POD_GROUP,
        {"spec": LEAF, "status": {"conditions": [], "resourceClaimStatuses": [{"name": "c"}]}},
        {"spec": without(LEAF, "resourceClaims"), "status": {"conditions": []}},
    ),
    (
        "PodGroupPreemptionPolicy",
        POD_GROUP,
        {"spec": LEAF},
        {"spec": without(LEAF, "preemptionPolicy")},
    ),
    (
        "PodGroupPreemptionPolicy",
        COMPOSITE_POD_GROUP,
        {"spec": {"preemptionPolicy": "Never"}},
        {"spec": {}},
    ),
    (
        "PodGroupPreemptionPolicy",
        WORKLOAD,
        {"spec": {"compositePodGroupTemplates": [{**INNER, "preemptionPolicy": "Never"}]}},
        {
            "spec": {
                "compositePodGroupTemplates": [
                    {**INNER, "podGroupTemplates": [without(LEAF, "preemptionPolicy")]}
                ]
            }
        },
    ),
    (
        "CompositePodGroup",
        WORKLOAD,
        {"spec": {"compositePodGroupTemplates": [OUTER]}},
        {"spec": {}},
    ),
    ("CompositePodGroup", POD_GROUP, {"spec": {"parentCompositePodGroupName": "p"}}, {"spec": {}}),
]


@pytest.mark.parametrize(("gate", "kind", "new", "left"), CASES)
def test_fields_of_disabled_gates_are_dropped_from_new_objects(
    gate: str, kind: Kind, new: Object, left: Object
) -> None:
    assert drop_disabled_fields(gate, kind, new) == left


@pytest.mark.parametrize(("gate", "kind", "new", "left"), CASES)
def test_fields_that_the_stored_object_has_are_kept(
    gate: str, kind: Kind, new: Object, left: Object
) -> None:
    assert drop_disabled_fields(gate, kind, new, copy.deepcopy(new)) == new


@pytest.mark.parametrize(("gate", "kind", "new", "left"), CASES)
def test_fields_that_the_stored_object_lacks_are_not_added(
    gate: str, kind: Kind, new: Object, left: Object
) -> None:
    assert drop_disabled_fields(gate, kind, new, copy.deepcopy(left)) == left


@pytest.mark.parametrize(("gate", "kind", "new", "left"), CASES)
def test_nothing_is_dropped_while_all_gates_are_on(
    gate: str, kind: Kind, new: Object, left: Object
) -> None:
    result = copy.deepcopy(new)
    drop_disabled(DEFAULT_GATES, kind.schema, result, old=None)
    assert result == new


def test_templates_are_matched_by_name() -> None:
    plain: Object = {"name": "plain"}
    old: Object = {"spec": {"podGroupTemplates": [plain, LEAF]}}
    new: Object = {"spec": {"podGroupTemplates": [{**LEAF, "name": "plain"}, LEAF]}}
    kept = drop_disabled_fields("TopologyAwareWorkloadScheduling", WORKLOAD, new, old)["spec"]
    first, second = kept["podGroupTemplates"]
    assert "schedulingConstraints" not in first
    assert second == LEAF


def test_nested_composite_templates_are_dropped_unless_stored() -> None:
    flat: Object = {"name": "outer", "podGroupTemplates": [LEAF]}
    old: Object = {"spec": {"compositePodGroupTemplates": [flat]}}
    new: Object = {"spec": {"compositePodGroupTemplates": [{**flat, **OUTER}]}}
    left = drop_disabled_fields("CompositePodGroup", WORKLOAD, new, old)["spec"][
        "compositePodGroupTemplates"
    ]
    assert left == [{**flat, "preemptionPolicy": "Never"}]


def test_claim_statuses_are_kept_while_the_group_has_claims() -> None:
    status: Object = {"resourceClaimStatuses": [{"name": "c"}]}
    old: Object = {"spec": LEAF, "status": {}}
    new: Object = {"spec": LEAF, "status": status}
    assert drop_disabled_fields("DRAWorkloadResourceClaims", POD_GROUP, new, old) == new


# ------------------------------------------------------------------------------------ warnings


def drop_warnings(gate: str, kind: Kind, new: Object, old: Object | None = None) -> list[str]:
    """Return the warnings of a write while a gate is off."""
    return drop_disabled(resolve_gates({gate: False}), kind.schema, copy.deepcopy(new), old=old)


ONE_BY_ONE = "pods are scheduled one by one"


def replicated_job(name: str) -> Object:
    return {"name": name, "template": {"spec": dict(JOB_SPEC)}}


@pytest.mark.parametrize(
    ("gate", "kind", "new", "expected"),
    [
        ("GenericWorkload", POD, GROUPED, [("spec.schedulingGroup", ONE_BY_ONE)]),
        ("WorkloadWithJob", JOB, {"spec": JOB_SPEC}, [("spec.scheduling", ONE_BY_ONE)]),
        ("JobGangPolicy", JOB, {"spec": JOB_SPEC}, [("spec.gangPolicy", "no gang is formed")]),
        (
            "WorkloadWithJob",
            CRON_JOB,
            {"spec": {"jobTemplate": {"spec": JOB_SPEC}}},
            [("spec.jobTemplate.spec.scheduling", ONE_BY_ONE)],
        ),
        (
            "WorkloadWithJob",
            JOB_SET,
            {"spec": {"replicatedJobs": [replicated_job("a"), replicated_job("b")]}},
            [(f"spec.replicatedJobs[{n}].template.spec.scheduling", ONE_BY_ONE) for n in range(2)],
        ),
        (
            "GenericWorkload",
            LEADER_WORKER_SET,
            {"spec": {"scheduling": {}}},
            [("spec.scheduling", ONE_BY_ONE)],
        ),
    ],
)
def test_dropping_a_scheduling_field_warns_that_pods_are_scheduled_one_by_one(
    gate: str, kind: Kind, new: Object, expected: list[tuple[str, str]]
) -> None:
    assert drop_warnings(gate, kind, new) == [
        f"{field} is dropped: without the feature gate {gate} {loss}" for field, loss in expected
    ]
    assert drop_warnings(gate, kind, new, copy.deepcopy(new)) == []


def test_no_warning_for_fields_that_the_request_does_not_have() -> None:
    assert drop_warnings("WorkloadWithJob", JOB, {"spec": {"scheduling": None}}) == []
    assert drop_warnings("PodGroupPreemptionPolicy", POD_GROUP, {"spec": LEAF}) == []
    assert drop_disabled(DEFAULT_GATES, JOB.schema, {"spec": JOB_SPEC}, old=None) == []


# ------------------------------------------------------------------------------------- the table


@pytest.mark.parametrize(
    "row", GATED_FIELDS, ids=[f"{row.struct}.{row.field}" for row in GATED_FIELDS]
)
def test_every_gated_field_exists_in_its_struct(row: GatedField) -> None:
    found: Any = schema(row.struct)
    for step in row.field.split("."):
        found = found.field(step)
        assert found is not None, step
