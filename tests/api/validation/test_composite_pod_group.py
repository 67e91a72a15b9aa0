"""Rules of CompositePodGroups."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import COMPOSITE_POD_GROUP
from phalanx.api.validation.registry import validate
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries, summarize

REFERENCE = {"workloadName": "w", "templateName": "t"}
FULL = {
    "parentCompositePodGroupName": "root",
    "workloadRef": REFERENCE,
    "schedulingPolicy": {"gang": {"minGroupCount": 2}},
    "schedulingConstraints": {"topology": [{"key": "zone"}]},
    "disruptionMode": {"all": {}},
    "priority": 0,
    "preemptionPolicy": "PreemptLowerPriority",
}


def composite(spec: Object, **fields: Any) -> Object:
    return {"metadata": {"name": "c", "namespace": "n"}, "spec": spec, **fields}


def without(spec: Object, *fields: str) -> Object:
    return {key: value for key, value in spec.items() if key not in fields}


def validation_causes(new: Object, old: Object | None = None, part: str = "") -> CauseSummaries:
    return summarize(validate(COMPOSITE_POD_GROUP, new, old, subresource=part))


@pytest.mark.parametrize(
    ("spec", "causes"),
    [
        ({}, []),
        (
            {"workloadRef": {}},
            ["workloadRef.workloadName: Required", "workloadRef.templateName: Required"],
        ),
        ({"parentCompositePodGroupName": "UP"}, ["parentCompositePodGroupName: Invalid"]),
        ({"schedulingPolicy": {}}, ["schedulingPolicy: Invalid"]),
        (
            {"schedulingPolicy": {"gang": {"minGroupCount": 0}}},
            ["schedulingPolicy.gang.minGroupCount: Required"],
        ),
        (
            {"schedulingPolicy": {"gang": {"minGroupCount": -1}}},
            ["schedulingPolicy.gang.minGroupCount: Invalid"],
        ),
        (
            {"schedulingConstraints": {"topology": [{"key": "a"}, {"key": "b"}]}},
            ["schedulingConstraints.topology: TooMany"],
        ),
        ({"disruptionMode": {"single": {}, "all": {}}}, ["disruptionMode: Invalid"]),
        ({"priority": 1_000_000_001}, ["priority: Invalid"]),
        ({"preemptionPolicy": "Maybe"}, ["preemptionPolicy: NotSupported"]),
    ],
)
def test_composite_pod_group_is_validated(spec: Object, causes: CauseSummaries) -> None:
    assert validation_causes(composite({**FULL, **spec})) == prefix_summaries("spec", causes)


def test_a_composite_belongs_to_a_workload() -> None:
    bare = without(FULL, "workloadRef")
    assert validation_causes(composite(bare)) == ["spec.workloadRef: Required"]
    assert validation_causes(composite(bare), composite(FULL)) == [
        "spec.workloadRef: Required",
        "spec.workloadRef: Invalid",
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("parentCompositePodGroupName", "other"),
        ("workloadRef", {**REFERENCE, "templateName": "other"}),
        ("schedulingPolicy", {"gang": {"minGroupCount": 3}}),
        ("schedulingPolicy", {"basic": {}}),
        ("schedulingConstraints", {"topology": [{"key": "rack"}]}),
        ("disruptionMode", {"single": {}}),
        ("priority", 8),
        ("priorityClassName", "added"),
        ("preemptionPolicy", "Never"),
    ],
)
def test_nothing_changes(field: str, value: Any) -> None:
    (cause,) = validate(COMPOSITE_POD_GROUP, composite({**FULL, field: value}), composite(FULL))
    assert summarize([cause]) == [f"spec.{field}: Invalid"]
    assert cause.message == "Invalid value: null: field is immutable"


def test_what_goes_away_has_changed_too() -> None:
    old = composite(FULL)
    for field in ("parentCompositePodGroupName", "schedulingConstraints", "disruptionMode"):
        assert validation_causes(composite(without(FULL, field)), old) == [f"spec.{field}: Invalid"]


def test_its_status_holds_conditions_one_per_type() -> None:
    condition = {
        "type": "CompositePodGroupInitiallyScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "lastTransitionTime": "2026-03-01T10:00:00Z",
    }
    for conditions, causes in (
        ([condition], []),
        ([without(condition, "reason")], ["[0].reason: Required"]),
        ([condition, condition], ["[1]: Duplicate"]),
    ):
        new = composite(FULL, status={"conditions": conditions})
        assert validation_causes(new, composite(FULL), "status") == prefix_summaries(
            "status.conditions", causes
        )


def test_its_counts_are_no_less_than_nothing() -> None:
    def counted(**status: int) -> CauseSummaries:
        return validation_causes(composite(FULL, status=status), composite(FULL), "status")

    assert counted(pendingGroups=0, scheduledGroups=2, scheduledPods=4) == []
    assert counted(pendingGroups=-1, failedPods=-2) == [
        "status.failedPods: Invalid",
        "status.pendingGroups: Invalid",
    ]
