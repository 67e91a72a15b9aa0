"""What the scheduler reported about PodGroups: losses, preemptors, and the room that they lack.

`SchedulingStatusWriter` asks for the changed parts of a status and writes them; nothing is written
here. A report concerns one of:

    Degraded    members of a scheduled gang were lost: fewer are placed than the status shows. A
                grown `minCount` is no loss. The reason changes once the scheduler could not
                replace them; the message then says what would help. A gang that a failed scheduler
                bound in part, of pods that no controller would create again, is degraded too.
    Preempted   by which entity; the condition goes when the gang has its quorum again.
    shortfall   the room that a refused gang lacks (`scheduler/shortfall`). Numbers alone are
                written at most once in `SHORTFALL_INTERVAL` seconds.
"""

from __future__ import annotations

from typing import NamedTuple

import orjson

from phalanx.api.meta import Condition, Key, ObjectMeta, find_condition
from phalanx.api.scheduling import (
    DEGRADED,
    POD_GROUP_INITIALLY_SCHEDULED,
    PREEMPTED,
    REPLACEMENT_UNSCHEDULABLE,
    SHORTFALL_ANNOTATION,
    PodGroup,
    required_when_scheduled,
)
from phalanx.api.wire import Object
from phalanx.scheduler.shortfall import GroupShortfall

#: Reasons of a gang whose bind was begun by a scheduler that failed (`bind_intents`).
BINDING_UNDONE, BINDING_INCOMPLETE = "BindingUndone", "BindingIncomplete"
#: Seconds between two writes of a shortfall of which only the numbers change.
SHORTFALL_INTERVAL = 10.0


class GroupCondition(NamedTuple):
    """A changed condition of a group."""

    status: str
    reason: str
    message: str


class PresentMembers(NamedTuple):
    """How many members have a node, and how many have succeeded."""

    placed: int
    succeeded: int

    @property
    def total(self) -> int:
        """The members that count towards the quorum of a gang that was scheduled."""
        return self.placed + self.succeeded


class GroupReports:
    """The latest reports about groups, by key. A later group of the same name has another uid."""

    def __init__(self) -> None:
        self._shortfalls: dict[Key, tuple[str, GroupShortfall]] = {}
        self._shortfall_times: dict[Key, float] = {}
        self._preemptors: dict[Key, tuple[str, str]] = {}
        self._last_seen: dict[Key, PresentMembers] = {}
        self._incomplete: dict[Key, tuple[str, str]] = {}

    def set_incomplete(self, meta: ObjectMeta, message: str) -> None:
        """Set why a gang is bound in part and cannot be undone."""
        self._incomplete[meta.key] = meta.uid, message

    def set_shortfall(self, group: PodGroup, shortfall: GroupShortfall) -> bool:
        """Set what a group lacks after an attempt; return whether that has changed."""
        key, uid = group.metadata.key, group.metadata.uid
        known = self._shortfalls.get(key)
        is_written = group.status.shortfall or SHORTFALL_ANNOTATION in group.metadata.annotations
        if known is None and not shortfall.data and not is_written:
            return False  # The usual case: a gang that is placed at once.
        self._shortfalls[key] = uid, shortfall
        return known is None or known[0] != uid or known[1].data != shortfall.data

    def set_preemptor(self, group: PodGroup, preemptor: str) -> None:
        """Set the entity that has preempted members of a group."""
        self._preemptors[group.metadata.key] = group.metadata.uid, preemptor

    def see_members(self, group: Key, members: PresentMembers) -> None:
        """Remember the members of a group, for servers that keep no counts."""
        self._last_seen[group] = members

    def forget(self, group: Key) -> None:
        """Drop the reports about a deleted group."""
        self._shortfalls.pop(group, None)
        self._shortfall_times.pop(group, None)
        self._preemptors.pop(group, None)
        self._last_seen.pop(group, None)
        self._incomplete.pop(group, None)

    def change_degraded(self, group: PodGroup, members: PresentMembers) -> GroupCondition | None:
        """Return the condition Degraded of a gang that was bound before, if it changes."""
        conditions = group.status.conditions
        scheduled = find_condition(conditions, POD_GROUP_INITIALLY_SCHEDULED)
        old = find_condition(conditions, DEGRADED)
        if not group.is_gang:
            return None
        if scheduled is None or scheduled.status != "True":
            return self._change_incomplete(group, members, old)
        is_degraded = old is not None and old.status == "True"
        if group.is_finished:
            ended = GroupCondition("False", "Finished", "the Job of the group has ended")
            return ended if is_degraded else None
        required = f"{members.total} of {group.min_count} required members"
        message = f"{required} have a node or have succeeded"
        # The quorum no longer counts members that have succeeded.
        if members.total >= group.min_count or members.placed >= group.quorum:
            return GroupCondition("False", "MembersBack", message) if is_degraded else None
        if not is_degraded and not self._has_lost_members(group, members):
            return None
        degraded = GroupCondition("True", "MembersLost", message)
        shortfall = self._shortfall_of(group)
        if members.placed and shortfall is not None and shortfall.message:
            text = f"{message}; {shortfall.message}"
            degraded = GroupCondition("True", REPLACEMENT_UNSCHEDULABLE, text)
        return None if _is_equal(old, degraded) else degraded

    def _change_incomplete(
        self, group: PodGroup, members: PresentMembers, old: Condition | None
    ) -> GroupCondition | None:
        """Return the condition Degraded of a gang that was never whole, if it changes."""
        is_partial = 0 < members.placed < group.quorum
        uid, message = self._incomplete.get(group.metadata.key, ("", ""))
        if is_partial and uid == group.metadata.uid:
            update = GroupCondition("True", BINDING_INCOMPLETE, message)
            return None if _is_equal(old, update) else update
        if is_partial or old is None or old.status != "True":
            return None
        reason = "MembersBack" if members.placed else BINDING_UNDONE
        text = f"{members.placed} of {group.quorum} required members have a node"
        return GroupCondition("False", reason, text)

    def _has_lost_members(self, group: PodGroup, members: PresentMembers) -> bool:
        """Whether members lost their node and have not succeeded.

        As many as were required when the group was scheduled have had a node. Otherwise the counts
        of the status, which are written together with Degraded, and those seen last decide. Without
        any of these, the group must have been scheduled with this spec.
        """
        if members.total < required_when_scheduled(group):
            return True
        status, earlier = group.status, self._last_seen.get(group.metadata.key)
        if earlier is None and not status.desired_pods:
            scheduled = find_condition(status.conditions, POD_GROUP_INITIALLY_SCHEDULED)
            return bool(scheduled and scheduled.observed_generation == group.metadata.generation)
        written = PresentMembers(status.scheduled_pods, status.succeeded_pods)
        return any(
            members.placed < counts.placed and members.total < counts.total
            for counts in (written, earlier or written)
        )

    def change_preempted(self, group: PodGroup) -> GroupCondition | None:
        """Return the condition that names the preemptor of a group, if it changes."""
        uid, preemptor = self._preemptors.get(group.metadata.key, ("", ""))
        if uid != group.metadata.uid:
            return None
        update = GroupCondition("True", "PreemptionByScheduler", f"Preempted by {preemptor}")
        old = find_condition(group.status.conditions, PREEMPTED)
        return None if _is_equal(old, update) else update

    def end_preemption(self, group: Key) -> None:
        """A group has its quorum again."""
        self._preemptors.pop(group, None)

    def _shortfall_of(self, group: PodGroup) -> GroupShortfall | None:
        uid, shortfall = self._shortfalls.get(group.metadata.key, ("", None))
        return shortfall if uid == group.metadata.uid else None

    def find_shortfall(self, group: PodGroup, written: Object, *, has_quorum: bool) -> Object:
        """Return what a group lacks; {} for nothing.

        Until the group is attempted again, as after a restart of the scheduler, that is what was
        written. The same while a part of the group is bound and the rest is to follow.
        """
        if has_quorum or group.is_finished:
            return {}
        found = self._shortfall_of(group)
        return written if found is None or group.binding_intent else found.data

    def delay_shortfall(self, group: Key, now: float) -> float:
        """Return after how many seconds changed numbers may be written; 0 if now."""
        return max(self._shortfall_times.get(group, 0.0) + SHORTFALL_INTERVAL - now, 0.0)

    def record_shortfall_write(self, group: Key, now: float) -> None:
        """Remember when a shortfall was written."""
        self._shortfall_times[group] = now


def read_annotated_shortfall(group: PodGroup) -> Object:
    """Return the shortfall in the annotation of a group; {} if there is none or it is malformed."""
    try:
        found = orjson.loads(group.metadata.annotations.get(SHORTFALL_ANNOTATION, "{}"))
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def build_shortfall_patch(written: Object, desired: Object) -> Object | None:
    """Return the merge patch from one shortfall to another; None removes it."""
    removed = dict.fromkeys(name for name in written if name not in desired)
    return {**removed, **desired} if desired else None


def _is_equal(old: Condition | None, new: GroupCondition) -> bool:
    return old is not None and (old.status, old.reason, old.message) == new
