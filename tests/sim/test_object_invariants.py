"""Each law of a single change: what keeps it, what breaks it, and the sentence that says so."""

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
    on: str = "", phase: str = "Pending", *, said: Condition | None = None, leaving: bool = False,
    gated: bool = False, group: str = "",
) -> Pod:  # fmt: skip
    return Pod(
        ObjectMeta(
            name="p", namespace="default", uid="u", deletion_timestamp="now" if leaving else ""
        ),
        PodSpec(
            node_name=on,
            scheduling_gates=(PodSchedulingGate("later"),) if gated else (),
            scheduling_group=SchedulingGroup(group) if group else None,
        ),
        PodStatus(phase=phase, conditions=(said,) if said else ()),
    )


def group(*said: Condition, gang: bool = True) -> PodGroup:
    policy = SchedulingPolicy(gang=GangPolicy(2)) if gang else SchedulingPolicy(basic={})
    return PodGroup(
        ObjectMeta(name="g"),
        PodGroupSpec(scheduling_policy=policy),
        PodGroupStatus(conditions=said),
    )


def broken(old: Pod, new: Pod) -> list[str]:
    return [sentence for law in POD_INVARIANTS if (sentence := law(old, new))]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pod(), pod("n", said=TRUE)),
        (pod(said=FALSE), pod("n", said=TRUE)),
        (pod("n", said=TRUE), pod("n", "Succeeded", said=TRUE)),
        (pod("n", said=TRUE), pod("n", said=TRUE, leaving=True)),
        (pod(gated=True), pod()),
        (pod(group="g"), pod("n", said=TRUE, group="g")),
        (pod("n"), pod("n", "Running")),
    ],
)
def test_a_pod_may_wait_get_a_node_run_and_end(old: Pod, new: Pod) -> None:
    assert broken(old, new) == []


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (pod("n"), pod("m"), "was bound to n and is now on node m"),
        (pod("n"), pod(), "was bound to n and is now on no node"),
        (pod(leaving=True), pod("n", said=TRUE, leaving=True),
         "got a node while it was being deleted"),
        (pod(gated=True), pod("n", said=TRUE), "got a node behind a scheduling gate"),
        (pod(phase="Failed"), pod("n", "Failed", said=TRUE), "got a node after it had failed"),
        (pod(), pod("n"), "got a node and does not say so"),
        (pod("n", said=TRUE), pod("n", said=FALSE), "has node n, but says: Unschedulable"),
        (pod("n", "Succeeded"), pod("n", "Running"), "had succeeded and is now Running"),
        (pod(leaving=True), pod(), "was being deleted and is not any more"),
        (pod(group="g"), pod(group="h"), "left group default/g for default/h"),
    ],
)  # fmt: skip
def test_a_pod_that_does_what_no_pod_may_is_found(old: Pod, new: Pod, sentence: str) -> None:
    assert broken(old, new) == [sentence]


def at(time: str, status: str, kind: str = POD_GROUP_SCHEDULED) -> Condition:
    return Condition(kind, status, last_transition_time=time)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (group(), group(at("1", "False")), ""),
        (group(at("1", "False")), group(at("2", "True")), ""),
        (group(at("1", "True")), group(at("2", "False")),
         "said PodGroupScheduled once and does not say so any more"),
        (group(at("1", "True", POD_GROUP_INITIALLY_SCHEDULED)), group(),
         "said PodGroupInitiallyScheduled once and does not say so any more"),
        (group(at("1", "False")), group(at("2", "False")),
         "moved the time of PodGroupScheduled, which is False as before"),
        (group(), group(gang=False), "is of another policy than before"),
    ],
)  # fmt: skip
def test_a_group_keeps_its_word_its_time_and_its_policy(
    old: PodGroup, new: PodGroup, sentence: str
) -> None:
    assert [found for law in GROUP_INVARIANTS if (found := law(old, new))] == [sentence] * bool(
        sentence
    )


def test_laws_compare_versions_of_one_object_whatever_else_changes() -> None:
    old = pod("n", said=TRUE)
    assert broken(old, replace(old, metadata=replace(old.metadata, labels={"a": "b"}))) == []
