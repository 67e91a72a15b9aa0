"""Conditions of entities that the scheduler cannot try yet: gated or incomplete ones.

The scheduler calls `update` once a second. The condition of a group is written once it has waited
for a moment, in which most gangs become complete, and whenever its message changes ("2 of 3
members"). The conditions of its pods are written once, after a longer delay, and again only if the
cause changes: otherwise a gang whose pods arrive one by one would rewrite all of its pods with each
new one. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from phalanx import logs
from phalanx.api.core import Pod
from phalanx.api.meta import COMPOSITE_POD_GROUP_KIND, Key, ObjectMeta, Ref
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.client.cache import ObjectCache, OnCacheError, raise_error
from phalanx.controllers.scheduling.status_writer import ConditionUpdate
from phalanx.scheduler.decision import IncompleteGroupTree, UnreadyReason
from phalanx.scheduler.explain import describe_unready
from phalanx.scheduler.queue.queue_listing import QueuedEntityInfo

LOG = logs.component("scheduler")

#: The condition reasons of a pod that cannot be tried yet, and of one whose group tree is invalid.
NOT_READY, INVALID = "NotReadyForScheduling", "Invalid"
#: Seconds that a group and a pod wait before their conditions are written.
GROUP_REPORT_DELAY, POD_REPORT_DELAY = 0.5, 5.0


@dataclass(slots=True)
class _PendingEntry:
    """One waiting entity: since when it waits, and what was reported about it.

    `attempt` identifies the wait: after an attempt everything is reported again.
    """

    since: float
    attempt: tuple[int, float]
    reported: tuple[str, str] = ("", "")
    cause: type | None = None
    #: Uids, because a later pod of the same name has no condition yet.
    reported_uids: frozenset[str] = frozenset()
    #: Whether a report raised an unexpected exception: no other follows until the next attempt.
    is_failed: bool = False


class StatusSink(Protocol):
    """Writes conditions of pods and groups."""

    def report_pod(self, meta: ObjectMeta, update: ConditionUpdate) -> None:
        """Write a condition of a pod."""
        ...

    def report_group(self, meta: ObjectMeta, update: ConditionUpdate) -> None:
        """Write a condition of a PodGroup."""
        ...


class CompositeStatusSink(Protocol):
    """Writes conditions of CompositePodGroups."""

    def report_composite(self, meta: ObjectMeta, update: ConditionUpdate) -> None:
        """Write a condition of a CompositePodGroup."""
        ...


class PendingStatusReporter:
    """Reports waiting entities to the status writers, and an event per pod to `record`.

    `on_error` is called with an unexpected exception and the key of the entity: others go on.
    """

    def __init__(
        self,
        pods: ObjectCache[Pod],
        groups: ObjectCache[PodGroup],
        composites: ObjectCache[CompositePodGroup],
        *,
        status_writer: StatusSink,
        composite_writer: CompositeStatusSink,
        record: Callable[[Pod, str, str], None],
        on_error: OnCacheError = raise_error,
    ) -> None:
        self._pods, self._groups = pods, groups
        self._composites, self._composite_writer = composites, composite_writer
        self._status_writer, self._record, self._on_error = status_writer, record, on_error
        self._pending: dict[Ref, _PendingEntry] = {}

    def update(self, entries: Iterable[QueuedEntityInfo], now: float) -> None:
        """Report the entities that wait now; forgets all others."""
        previous, self._pending = self._pending, {}
        for entry in entries:
            attempt = entry.attempts, entry.timestamp
            pending = previous.get(entry.ref)
            if pending is None or pending.attempt != attempt:
                pending = _PendingEntry(now, attempt)
            self._pending[entry.ref] = pending
            if pending.is_failed:
                continue
            try:
                self._report(entry, pending, now)
            except Exception as error:
                pending.is_failed = True
                self._on_error(error, entry.key)

    def update_trees(self, trees: Iterable[tuple[Key, IncompleteGroupTree]]) -> None:
        """Report CompositePodGroups whose group tree is incomplete or invalid."""
        for key, problem in trees:
            try:
                self._report_composite(key, _pending_update(problem))
            except Exception as error:
                self._on_error(error, key)

    def _report(self, entry: QueuedEntityInfo, pending: _PendingEntry, now: float) -> None:
        if entry.ref.kind == COMPOSITE_POD_GROUP_KIND:
            self._report_composite(entry.key, _pending_update(entry.unready))
        elif entry.is_group and now - pending.since >= GROUP_REPORT_DELAY:
            self._report_group(entry, pending)
        if now - pending.since >= POD_REPORT_DELAY:
            self._report_pods(entry, pending)

    def _report_composite(self, key: Key, update: ConditionUpdate) -> None:
        if composite := self._composites.get(key):
            self._composite_writer.report_composite(composite.metadata, update)

    def _report_group(self, entry: QueuedEntityInfo, pending: _PendingEntry) -> None:
        group, update = self._groups.get(entry.key), _pending_update(entry.unready)
        report = (group.metadata.uid, update.message) if group else ("", "")
        if group and report != pending.reported:
            LOG.debug("PodGroup not ready", kind="PodGroup", key=entry.key, reason=update.message)
            self._status_writer.report_group(group.metadata, update)
        pending.reported = report

    def _report_pods(self, entry: QueuedEntityInfo, pending: _PendingEntry) -> None:
        cause, update = type(entry.unready), _pending_update(entry.unready)
        reported = pending.reported_uids if cause is pending.cause else frozenset()
        pods = [pod for key in entry.pods if (pod := self._pods.get(key))]
        # The server has written the condition of gated pods.
        ungated = [pod for pod in pods if not pod.spec.scheduling_gates]
        for pod in ungated:
            if pod.metadata.uid not in reported:
                self._status_writer.report_pod(pod.metadata, update)
                self._record(pod, update.reason, update.message)
        pending.cause = cause
        pending.reported_uids = frozenset(pod.metadata.uid for pod in ungated)


def _pending_update(unready: UnreadyReason | None) -> ConditionUpdate:
    message = describe_unready(unready) if unready else ""
    is_invalid = isinstance(unready, IncompleteGroupTree) and unready.is_invalid
    return ConditionUpdate("False", INVALID if is_invalid else NOT_READY, message, is_pending=True)
