"""What must hold of every single change of an object: what was, what is, and what that breaks.

Rows of functions over two versions of one object, asked by `invariants.Auditor` at each change. An
answer is a sentence, "" if all is well. What concerns several objects at once is not here.
"""

from __future__ import annotations

from collections.abc import Callable

from phalanx.api.core import Pod
from phalanx.api.meta import condition
from phalanx.api.scheduling import (
    DISRUPTION_TARGET,
    INITIALLY_SCHEDULED,
    SCHEDULED,
    PodGroup,
)

_POD_SCHEDULED = "PodScheduled"
_STICKY = (INITIALLY_SCHEDULED, SCHEDULED)
#: Why a pod goes that makes way for another.
_PREEMPTED = "PreemptionByScheduler"


def moves(old: Pod, new: Pod) -> str:
    """A pod is bound once and stays where it is."""
    first, now = old.spec.node_name, new.spec.node_name
    if not first or first == now:
        return ""
    return f"was bound to {first} and is now on {f'node {now}' if now else 'no node'}"


def bound_too_late(old: Pod, new: Pod) -> str:
    """Who is leaving, held back or at its end gets no node any more."""
    if not is_bound_now(old, new):
        return ""
    if old.metadata.deletion_timestamp:
        return "got a node while it was being deleted"
    if old.spec.scheduling_gates:
        return "got a node behind a scheduling gate"
    return f"got a node after it had {old.status.phase.lower()}" if old.ended else ""


def denies_its_node(old: Pod, new: Pod) -> str:
    """A pod says that it has a node from the moment that it has one."""
    if not new.spec.node_name:
        return ""
    said = condition(new.status.conditions, _POD_SCHEDULED)
    if said is not None and said.status != "True":
        return f"has node {new.spec.node_name}, but says: {said.reason}"
    return "got a node and does not say so" if said is None and is_bound_now(old, new) else ""


def comes_back(old: Pod, new: Pod) -> str:
    """An end is an end, and who is leaving leaves."""
    if old.ended and new.status.phase != old.status.phase:
        return f"had {old.status.phase.lower()} and is now {new.status.phase}"
    if old.metadata.deletion_timestamp and not new.metadata.deletion_timestamp:
        return "was being deleted and is not any more"
    return ""


def changes_sides(old: Pod, new: Pod) -> str:
    """A pod belongs to one group for ever."""
    return "" if old.group == new.group else f"left group {old.group} for {new.group}"


def forgets_its_placement(old: PodGroup, new: PodGroup) -> str:
    """A group that was placed once says so for ever."""
    for kind in _STICKY:
        was, said = (condition(one.status.conditions, kind) for one in (old, new))
        if was is not None and was.status == "True" and (said is None or said.status != "True"):
            return f"said {kind} once and does not say so any more"
    return ""


def restamps(old: PodGroup, new: PodGroup) -> str:
    """The time of a condition is that of its last change."""
    for kind in _STICKY:
        was, said = (condition(one.status.conditions, kind) for one in (old, new))
        if was is None or said is None or was.status != said.status:
            continue
        if was.last_transition_time != said.last_transition_time:
            return f"moved the time of {kind}, which is {said.status} as before"
    return ""


def changes_policy(old: PodGroup, new: PodGroup) -> str:
    """A gang stays a gang."""
    return "" if old.is_gang == new.is_gang else "is of another policy than before"


POD_LAWS: tuple[Callable[[Pod, Pod], str], ...] = (
    moves,
    bound_too_late,
    denies_its_node,
    comes_back,
    changes_sides,
)
GROUP_LAWS: tuple[Callable[[PodGroup, PodGroup], str], ...] = (
    forgets_its_placement,
    restamps,
    changes_policy,
)


def is_bound_now(old: Pod | None, new: Pod) -> bool:
    """Whether a pod gets its node by this very change."""
    return bool(new.spec.node_name) and not (old and old.spec.node_name)


def makes_way_now(old: Pod | None, new: Pod) -> bool:
    """Whether a pod begins to leave by this very change, for the sake of somebody else."""
    if old is None or old.metadata.deletion_timestamp or not new.metadata.deletion_timestamp:
        return False
    told = condition(new.status.conditions, DISRUPTION_TARGET)
    return told is not None and told.reason == _PREEMPTED
