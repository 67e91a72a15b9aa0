"""Invariants of a single change: changes that keep them, changes that break them, and messages."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from phalanx.api.core import Pod, PodSchedulingGate, PodSpec, PodStatus, SchedulingGroup
from phalanx.api.meta import Condition, ObjectMeta
from phalanx.api.scheduling import (
    POD_GROUP_INITIALLY_SCHEDULED,
    POD_GROUP_SCHEDULED,
    GangPolicy,
    PodGroup,
    PodGroupSpec,
    PodGroupStatus,
    SchedulingPolicy,
)
from phalanx.sim.invariants import GROUP_INVARIANTS, POD_INVARIANTS

TRUE, FALSE = Condition("PodScheduled", "True"), Condition("PodScheduled", "False", "Unschedulable")


def pod(
    on: str = "",
    phase: str = "Pending",
    *,
    condition: Condition | None = None,
    deleting: bool = False,
    gated: bool = False,
    group: str = "",
) -> Pod:
    return Pod(
        ObjectMeta(
            name="p", namespace="default", uid="u", deletion_timestamp="now" if deleting else ""
        ),
        PodSpec(
            node_name=on,
            scheduling_gates=(PodSchedulingGate("later"),) if gated else (),
            scheduling_group=SchedulingGroup(group) if group else None,
        ),
        PodStatus(phase=phase, conditions=(condition,) if condition else ()),
    )


def group(*condition: Condition, gang: bool = True) -> PodGroup:
    policy = SchedulingPolicy(gang=GangPolicy(2)) if gang else SchedulingPolicy(basic={})
    return PodGroup(
        ObjectMeta(name="g"),
        PodGroupSpec(scheduling_policy=policy),
        PodGroupStatus(conditions=condition),
    )


def violations(old: Pod, new: Pod) -> list[str]:
    return [message for invariant in POD_INVARIANTS if (message := invariant(old, new))]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pod(), pod("n", condition=TRUE)),
        (pod(condition=FALSE), pod("n", condition=TRUE)),
        (pod("n", condition=TRUE), pod("n", "Succeeded", condition=TRUE)),
        (pod("n", condition=TRUE), pod("n", condition=TRUE, deleting=True)),
        (pod(gated=True), pod()),
        (pod(group="g"), pod("n", condition=TRUE, group="g")),
        (pod("n"), pod("n", "Running")),
    ],
)
def test_normal_pod_transitions_are_no_violation(old: Pod, new: Pod) -> None:
    assert violations(old, new) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (pod("n"), pod("m"), "was bound to n and is now on node m"),
        (pod("n"), pod(), "was bound to n and is now on no node"),
        (pod(deleting=True), pod("n", condition=TRUE, deleting=True),
         "got a node while it was being deleted"),
        (pod(gated=True), pod("n", condition=TRUE), "got a node behind a scheduling gate"),
        (pod(phase="Failed"), pod("n", "Failed", condition=TRUE), "got a node after it had failed"),
        (pod(), pod("n"), "got a node without the condition PodScheduled"),
        (pod("n", condition=TRUE), pod("n", condition=FALSE),
         "has node n, but PodScheduled is not True: Unschedulable"),
        (pod("n", "Succeeded"), pod("n", "Running"), "had succeeded and is now Running"),
        (pod(deleting=True), pod(), "was being deleted and is not any more"),
        (pod(group="g"), pod(group="h"), "left group default/g for default/h"),
    ],
)  # fmt: skip
def test_invalid_pod_transition_is_found(old: Pod, new: Pod, message: str) -> None:
    assert violations(old, new) == [message]


def condition_at(time: str, status: str, kind: str = POD_GROUP_SCHEDULED) -> Condition:
    return Condition(kind, status, last_transition_time=time)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (group(), group(condition_at("1", "False")), ""),
        (group(condition_at("1", "False")), group(condition_at("2", "True")), ""),
        (group(condition_at("1", "True")), group(condition_at("2", "False")),
         "had the condition PodGroupScheduled and lost it"),
        (group(condition_at("1", "True", POD_GROUP_INITIALLY_SCHEDULED)), group(),
         "had the condition PodGroupInitiallyScheduled and lost it"),
        (group(condition_at("1", "False")), group(condition_at("2", "False")),
         "changed lastTransitionTime of PodGroupScheduled, which is still False"),
        (group(), group(gang=False), "changed its scheduling policy"),
    ],
)  # fmt: skip
def test_group_keeps_its_conditions_transition_times_and_policy(
    old: PodGroup, new: PodGroup, message: str
) -> None:
    assert [found for invariant in GROUP_INVARIANTS if (found := invariant(old, new))] == [
        message
    ] * bool(message)


def test_change_of_other_fields_is_no_violation() -> None:
    old = pod("n", condition=TRUE)
    assert violations(old, replace(old, metadata=replace(old.metadata, labels={"a": "b"}))) == []
