"""Feature gates: names, requirements between gates, former names."""

from __future__ import annotations

import pytest

from phalanx.api.feature_gates import (
    DEFAULT_GATES,
    FEATURE_GATES,
    RENAMED_GATES,
    BadFeatureGates,
    deprecation_warnings,
    parse_gates,
    resolve_gates,
)
from phalanx.api.kinds import COMPOSITE_POD_GROUP, JOB, KINDS, POD, POD_GROUP, WORKLOAD

NAMES = [gate.name for gate in FEATURE_GATES]


def test_all_gates_but_the_experimental_ones_are_on_by_default() -> None:
    off = [name for name in NAMES if not DEFAULT_GATES.is_enabled(name)]
    assert off == ["JobGangInference", "JobReleaseScheduling"]


def test_every_gate_follows_the_gates_that_it_requires() -> None:
    for at, gate in enumerate(FEATURE_GATES):
        assert set(gate.requires) <= set(NAMES[:at])


def test_no_current_name_is_also_a_former_name() -> None:
    assert not set(NAMES) & set(RENAMED_GATES)
    assert set(RENAMED_GATES.values()) <= set(NAMES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        (" , ", {}),
        ("A=true", {"A": True}),
        ("A=true, B=false", {"A": True, "B": False}),
        ("A=1,B=0,C=T,D=f", {"A": True, "B": False, "C": True, "D": False}),
        ("A=true,A=false", {"A": False}),
    ],
)
def test_gates_are_parsed_with_their_values(text: str, expected: dict[str, bool]) -> None:
    assert parse_gates(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A", "missing bool value for feature gate A"),
        ("A=", "invalid value of feature gate A="),
        ("A=maybe", "invalid value of feature gate A=maybe"),
    ],
)
def test_value_that_is_not_a_boolean_is_refused(text: str, words: str) -> None:
    with pytest.raises(BadFeatureGates, match=words):
        parse_gates(text)


def test_unknown_gate_is_refused() -> None:
    with pytest.raises(BadFeatureGates, match="unrecognized feature gate: GenericWorkloads"):
        resolve_gates({"GenericWorkloads": True})


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (
            {"GenericWorkload": False, "WorkloadWithJob": True},
            "WorkloadWithJob is enabled, but depends on features that are disabled: "
            "[GenericWorkload]",
        ),
        (
            {"TopologyAwareWorkloadScheduling": False, "CompositePodGroup": True},
            "CompositePodGroup is enabled, but depends on features that are disabled: "
            "[TopologyAwareWorkloadScheduling]",
        ),
        (
            {"GenericWorkloadPodGroup": False, "JobGangPolicy": True},
            "JobGangPolicy is enabled, but depends on features that are disabled: "
            "[GenericWorkload GangScheduling]",
        ),
    ],
)
def test_gate_cannot_be_enabled_without_the_gates_that_it_requires(
    wanted: dict[str, bool], sentence: str
) -> None:
    with pytest.raises(BadFeatureGates) as caught:
        resolve_gates(wanted)
    assert str(caught.value) == sentence


def test_gate_that_is_not_set_follows_the_gates_that_it_requires() -> None:
    independent = {"GroupBinding", "StorageCapacityScoring"}
    assert resolve_gates({"GenericWorkload": False}).enabled == independent
    without = resolve_gates({"TopologyAwareWorkloadScheduling": False})
    assert DEFAULT_GATES.enabled - without.enabled == {
        "TopologyAwareWorkloadScheduling",
        "CompositePodGroup",
    }


def test_former_names_still_work_with_a_warning() -> None:
    wanted = {"GenericWorkloadPodGroup": False}
    assert resolve_gates(wanted).enabled == resolve_gates({"GenericWorkload": False}).enabled
    assert deprecation_warnings(wanted) == [
        "feature gate GenericWorkloadPodGroup is now called GenericWorkload"
    ]
    assert not resolve_gates({"DelayedPreemption": False}).is_enabled("WorkloadAwarePreemption")
    assert len(deprecation_warnings(["DelayedPreemption"])) == 2
    assert len(deprecation_warnings(["GangScheduling"])) == 1
    assert deprecation_warnings(["WorkloadWithJob"]) == []


def test_kinds_are_served_only_with_their_gates() -> None:
    assert DEFAULT_GATES.filter_served(KINDS) == list(KINDS)
    some = (POD, POD_GROUP, WORKLOAD, COMPOSITE_POD_GROUP, JOB)
    assert resolve_gates({"CompositePodGroup": False}).filter_served(some) == [
        POD,
        POD_GROUP,
        WORKLOAD,
        JOB,
    ]
    assert resolve_gates({"GenericWorkload": False}).filter_served(some) == [POD, JOB]


def test_states_lists_every_gate() -> None:
    states = resolve_gates({"GangScheduling": False}).states()
    assert ("GenericWorkload", "BETA", True) in states
    assert ("GangScheduling", "DEPRECATED", False) in states
    assert len(states) == len(FEATURE_GATES)
