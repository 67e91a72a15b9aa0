"""Waits: who is not even tried, and who has been told what it waits for.

The scheduling shell looks once a second. A group says at once what it lacks, and says it anew when
the numbers change. Its pods say so once, after a while, and anew only if they wait for something
else: a gang that gathers would else write all of its pods with each that comes. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from phalanx.api.core import Pod
from phalanx.api.meta import Key, ObjectMeta
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.client.cache import ObjectCache
from phalanx.controllers.scheduling.status_writer import ConditionUpdate
from phalanx.scheduler.decision import IncompleteGroupTree, UnreadyReason
from phalanx.scheduler.explain import describe_unready
from phalanx.scheduler.queue.queued_entity import EntityId, QueuedEntityInfo

#: The reason of a pod that cannot be tried yet, and of one whose groups form no tree.
NOT_READY, INVALID = "NotReadyForScheduling", "Invalid"
#: Seconds that a pod waits before it is told so.
POD_REPORT_DELAY = 5.0


@dataclass(slots=True)
class _PendingEntry:
    """One entity that waits: since when, what its group says, what which of its pods were told.

    What it says holds until it is tried: `turn` tells one wait from the next.
    """

    since: float
    attempt: tuple[int, float]
    reported: tuple[str, str] = ("", "")
    cause: type | None = None
    #: Uids: a namesake that came since has been told nothing.
    reported_uids: frozenset[str] = frozenset()


class StatusSink(Protocol):
    """Who brings to the objects what is said of them."""

    def report_pod(self, about: ObjectMeta, update: ConditionUpdate) -> None:
        """Say something of a pod."""
        ...

    def report_group(self, about: ObjectMeta, update: ConditionUpdate) -> None:
        """Say something of a group."""
        ...


class CompositeStatusSink(Protocol):
    """Who brings to groups of groups what is said of them."""

    def report_composite(self, about: ObjectMeta, update: ConditionUpdate) -> None:
        """Say something of a group of groups."""
        ...


class PendingStatusReporter:
    """Tells the reporter, and `record` an event of each pod that is told."""

    def __init__(
        self,
        pods: ObjectCache[Pod],
        groups: ObjectCache[PodGroup],
        composites: ObjectCache[CompositePodGroup],
        status_writer: StatusSink,
        composite_writer: CompositeStatusSink,
        record: Callable[[Pod, str, str], None],
    ) -> None:
        self._pods, self._groups = pods, groups
        self._composites, self._composite_writer = composites, composite_writer
        self._status_writer, self._record = status_writer, record
        self._pending: dict[EntityId, _PendingEntry] = {}

    def update(self, entries: Iterable[QueuedEntityInfo], now: float) -> None:
        """These wait now, and no others."""
        found = {place.ref: place for place in entries}
        self._pending = {id_: self._pending_entry(id_, place, now) for id_, place in found.items()}
        for id_, place in found.items():
            wait = self._pending[id_]
            if place.is_composite:
                self._report_composite(place.key, _pending_update(place.unready))
            elif place.is_group:
                self._report_group(place, wait)
            if now - wait.since >= POD_REPORT_DELAY:
                self._report_pods(place, wait)

    def update_trees(self, misplaced: Iterable[tuple[Key, IncompleteGroupTree]]) -> None:
        """These groups of groups are in no whole tree."""
        for key, what in misplaced:
            self._report_composite(key, _pending_update(what))

    def _report_composite(self, key: Key, update: ConditionUpdate) -> None:
        if composite := self._composites.get(key):
            self._composite_writer.report_composite(composite.metadata, update)

    def _pending_entry(self, id_: EntityId, entry: QueuedEntityInfo, now: float) -> _PendingEntry:
        turn, known = (entry.attempts, entry.timestamp), self._pending.get(id_)
        return known if known and known.attempt == turn else _PendingEntry(now, turn)

    def _report_group(self, entry: QueuedEntityInfo, pending: _PendingEntry) -> None:
        group, verdict = self._groups.get(entry.key), _pending_update(entry.unready)
        said = (group.metadata.uid, verdict.message) if group else ("", "")
        if group and said != pending.reported:
            self._status_writer.report_group(group.metadata, verdict)
        pending.reported = said

    def _report_pods(self, entry: QueuedEntityInfo, pending: _PendingEntry) -> None:
        cause, verdict = type(entry.unready), _pending_update(entry.unready)
        told = pending.reported_uids if cause is pending.cause else frozenset()
        found = [pod for key in entry.pods if (pod := self._pods.get(key))]
        concerned = [pod for pod in found if not pod.spec.scheduling_gates]
        for pod in concerned:
            if pod.metadata.uid not in told:
                self._status_writer.report_pod(pod.metadata, verdict)
                self._record(pod, verdict.reason, verdict.message)
        pending.cause, pending.reported_uids = (
            cause,
            frozenset(pod.metadata.uid for pod in concerned),
        )


def _pending_update(unready: UnreadyReason | None) -> ConditionUpdate:
    message = describe_unready(unready) if unready else ""
    is_invalid = isinstance(unready, IncompleteGroupTree) and unready.is_invalid
    return ConditionUpdate("False", INVALID if is_invalid else NOT_READY, message, is_pending=True)
