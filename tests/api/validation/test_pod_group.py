"""Rules of PodGroups."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import POD_GROUP
from phalanx.api.validation.registry import validate
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries, summarize

GANG = {"schedulingPolicy": {"gang": {"minCount": 2}}}
FULL = {
    **GANG,
    "workloadRef": {"workloadName": "w", "templateName": "t"},
    "parentCompositePodGroupName": "root",
    "schedulingConstraints": {"topology": [{"key": "zone"}]},
    "disruptionMode": {"all": {}},
    "resourceClaims": [{"name": "c", "resourceClaimName": "x"}],
    "priority": 0,
    "preemptionPolicy": "PreemptLowerPriority",
}


def group(spec: Object, **fields: Any) -> Object:
    return {"metadata": {"name": "g", "namespace": "n"}, "spec": spec, **fields}


def validation_causes(new: Object, old: Object | None = None, part: str = "") -> CauseSummaries:
    return summarize(validate(POD_GROUP, new, old, subresource=part))


def claims(*names: str) -> list[Object]:
    return [{"name": name, "resourceClaimName": "x"} for name in names]


@pytest.mark.parametrize(
    ("spec", "causes"),
    [
        ({}, []),
        ({"schedulingPolicy": {}}, ["schedulingPolicy: Invalid"]),
        (
            {"schedulingPolicy": {"basic": {}, "gang": {"minCount": 1}}},
            ["schedulingPolicy: Invalid"],
        ),
        (
            {"schedulingPolicy": {"gang": {"minCount": 0}}},
            ["schedulingPolicy.gang.minCount: Required"],
        ),
        ({"schedulingPolicy": {"gang": {}}}, ["schedulingPolicy.gang.minCount: Required"]),
        (
            {"schedulingPolicy": {"gang": {"minCount": -1}}},
            ["schedulingPolicy.gang.minCount: Invalid"],
        ),
        ({"workloadRef": None}, ["workloadRef: Required"]),
        ({"parentCompositePodGroupName": "no_good"}, ["parentCompositePodGroupName: Invalid"]),
        ({"parentCompositePodGroupName": ""}, ["parentCompositePodGroupName: Invalid"]),
        (
            {"workloadRef": {}},
            ["workloadRef.workloadName: Required", "workloadRef.templateName: Required"],
        ),
        (
            {"workloadRef": {"workloadName": "W!", "templateName": "a.b"}},
            ["workloadRef.workloadName: Invalid", "workloadRef.templateName: Invalid"],
        ),
        (
            {"schedulingConstraints": {"topology": [{"key": "a"}, {"key": "b"}]}},
            ["schedulingConstraints.topology: TooMany"],
        ),
        (
            {"schedulingConstraints": {"topology": [{}]}},
            ["schedulingConstraints.topology[0].key: Required"],
        ),
        (
            {"schedulingConstraints": {"topology": [{"key": "a b"}]}},
            ["schedulingConstraints.topology[0].key: Invalid"],
        ),
        ({"schedulingConstraints": {}}, []),
        ({"disruptionMode": {"single": {}, "all": {}}}, ["disruptionMode: Invalid"]),
        ({"disruptionMode": {}}, ["disruptionMode: Invalid"]),
        ({"resourceClaims": claims("a", "b", "c", "d", "e")}, ["resourceClaims: TooMany"]),
        ({"resourceClaims": claims("a", "a")}, ["resourceClaims[1]: Duplicate"]),
        ({"resourceClaims": [{"name": "a"}]}, ["resourceClaims[0]: Invalid"]),
        ({"resourceClaims": claims("C_1")}, ["resourceClaims[0].name: Invalid"]),
        ({"resourceClaims": claims("")}, ["resourceClaims[0].name: Required"]),
        ({"priorityClassName": "Not_A_Name"}, ["priorityClassName: Invalid"]),
        ({"priority": 2_000_000_000}, ["priority: Invalid"]),
        ({"preemptionPolicy": "Maybe"}, ["preemptionPolicy: NotSupported"]),
        ({"preemptionPolicy": ""}, ["preemptionPolicy: NotSupported"]),
    ],
)
def test_pod_group_is_validated(spec: Object, causes: CauseSummaries) -> None:
    said = {key: value for key, value in {**FULL, **spec}.items() if value is not None}
    assert validation_causes(group(said)) == prefix_summaries("spec", causes)


def test_the_count_of_a_gang_may_change() -> None:
    more = {**FULL, "schedulingPolicy": {"gang": {"minCount": 6}}}
    assert validation_causes(group(more), group(FULL)) == []
    none = {**FULL, "schedulingPolicy": {"gang": {"minCount": 0}}}
    assert validation_causes(group(none), group(FULL)) == [
        "spec.schedulingPolicy.gang.minCount: Required"
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workloadRef", {"workloadName": "w", "templateName": "other"}),
        ("workloadRef", None),
        ("parentCompositePodGroupName", "other"),
        ("schedulingConstraints", {"topology": [{"key": "rack"}]}),
        ("disruptionMode", {"single": {}}),
        ("resourceClaims", claims("d")),
        ("priority", 5),
        ("priorityClassName", "added"),
        ("preemptionPolicy", "Never"),
    ],
)
def test_everything_else_stays(field: str, value: Any) -> None:
    changed = {**FULL, field: value}
    new = {key: said for key, said in changed.items() if said is not None}
    (cause,) = validate(POD_GROUP, group(new), group(FULL))
    assert summarize([cause]) == [f"spec.{field}: Invalid"]
    assert cause.message == "Invalid value: null: field is immutable"


def test_a_gang_stays_a_gang() -> None:
    basic = group({"schedulingPolicy": {"basic": {}}})
    gang = group(GANG)
    assert validation_causes(basic, gang) == [
        "spec.schedulingPolicy.basic: Invalid",
        "spec.schedulingPolicy.gang: Invalid",
    ]
    assert validation_causes(gang, basic) == [
        "spec.schedulingPolicy.basic: Invalid",
        "spec.schedulingPolicy.gang: Invalid",
    ]
    assert validation_causes(group({"schedulingPolicy": {}}), gang) == [
        "spec.schedulingPolicy: Invalid",
        "spec.schedulingPolicy.gang: Invalid",
    ]


def condition(**fields: Any) -> Object:
    said = {
        "type": "PodGroupInitiallyScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "no room",
        "lastTransitionTime": "2026-03-01T10:00:00Z",
    }
    return {**said, **fields}


@pytest.mark.parametrize(
    ("conditions", "causes"),
    [
        ([condition()], []),
        ([condition(reason="")], ["[0].reason: Required"]),
        ([condition(reason="no room")], ["[0].reason: Invalid"]),
        ([condition(reason="R" * 1025)], ["[0].reason: TooLong"]),
        ([condition(message="m" * 32_769)], ["[0].message: TooLong"]),
        ([condition(status="Maybe")], ["[0].status: NotSupported"]),
        ([condition(type="")], ["[0].type: Required"]),
        ([condition(observedGeneration=-1)], ["[0].observedGeneration: Invalid"]),
        ([condition(lastTransitionTime=None)], ["[0].lastTransitionTime: Required"]),
        ([condition(), condition(status="True")], ["[1]: Duplicate"]),
    ],
)
def test_conditions_are_complete_and_one_per_type(
    conditions: list[Object], causes: CauseSummaries
) -> None:
    new = group(FULL, status={"conditions": conditions})
    assert validation_causes(new, group(FULL), "status") == prefix_summaries(
        "status.conditions", causes
    )


def test_members_are_counted_from_zero_on() -> None:
    def counted(**status: int) -> CauseSummaries:
        return validation_causes(group(FULL, status=status), group(FULL), "status")

    assert counted(pendingPods=0, scheduledPods=3, succeededPods=1, failedPods=0) == []
    assert counted(pendingPods=-1, scheduledPods=-2) == [
        "status.pendingPods: Invalid",
        "status.scheduledPods: Invalid",
    ]


def test_a_claim_status_names_a_claim_of_the_spec() -> None:
    def status(*names: str) -> Object:
        return {"resourceClaimStatuses": [{"name": name} for name in names]}

    field = "status.resourceClaimStatuses"
    assert validation_causes(group(FULL, status=status("c")), group(FULL), "status") == []
    assert validation_causes(group(FULL, status=status("d")), group(FULL), "status") == [
        f"{field}[0].name: Invalid"
    ]
    assert validation_causes(group(FULL, status=status("c", "c")), group(FULL), "status") == [
        f"{field}[1]: Duplicate"
    ]
