"""Bind intents: make the bind of a gang recoverable where its members are bound one by one.

Used by `binder.PodBinder` on foreign API servers. Before the first member of a gang is bound, an
intent id is written to an annotation of its PodGroup. The bind of a member writes the same id to
the pod. Once the gang has its quorum, its condition is written and then the annotation is removed.
A scheduler that starts after a crash therefore knows which gangs were bound in part:

    bound members            action
    quorum                   close the intent: the gang is placed
    too few                  the next cycles place the rest, before any other gang
    too few for too long     delete the members that the intent bound, so that their controller
                             creates them again; close the intent
    … without a controller   nothing can be undone: the rest keeps waiting, the gang is Degraded

Deletes only pods that this intent bound, and only pods that a controller creates again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from phalanx import logs
from phalanx.api.core import Pod
from phalanx.api.errors import ApiError, Conflict, Invalid
from phalanx.api.kinds import POD, POD_GROUP
from phalanx.api.meta import Key, find_condition
from phalanx.api.scheduling import BINDING_INTENT_ANNOTATION, POD_GROUP_SCHEDULED, PodGroup
from phalanx.api.wire import JSON_PATCH, Object
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.client.protocol import parse_revision
from phalanx.controllers.event_recorder import EventRecorder, ObjectEvent
from phalanx.controllers.pod_groups import groups_of
from phalanx.controllers.reconcile_loop import (
    Action,
    Delete,
    Patch,
    ReconcileLoop,
    ReconcilePlan,
    StaleCacheError,
)
from phalanx.controllers.scheduling.group_reports import BINDING_INCOMPLETE, BINDING_UNDONE
from phalanx.controllers.scheduling.status_writer import ConditionUpdate, SchedulingStatusWriter
from phalanx.randomness import Random
from phalanx.scheduler.entity import Entity

LOG = logs.component("scheduler")

#: Seconds that the rest of a gang has to find nodes before the bound members are deleted.
COMPLETION_TIMEOUT = 15.0
#: Seconds that the condition of a gang has to be written before its intent is closed without it.
REPORT_TIMEOUT = 1.0
#: Attempts to write an intent while other clients change the group at the same time.
_MAX_WRITE_ATTEMPTS = 5
#: Seconds before the second of these attempts; doubled for each further one.
_CONFLICT_PAUSE = 0.01


class _OpenIntent(NamedTuple):
    """An open intent: its id, and the newest version of its group that was seen with it."""

    intent_id: str
    version: int


class BindIntents:
    """Opens, completes and undoes the bind intents of all gangs on a server."""

    def __init__(
        self,
        client: Client,
        random: Random,
        pods: ObjectCache[Pod],
        *,
        groups: ObjectCache[PodGroup],
        status_writer: SchedulingStatusWriter,
        recorder: EventRecorder,
    ) -> None:
        self._client, self._random, self._groups = client, random, groups
        self._status_writer, self._recorder = status_writer, recorder
        self._members = pods.index(groups_of)
        self._loop: ReconcileLoop[Key] = ReconcileLoop(
            client, self.reconcile, on_error=_treat_closed_as_stale
        )
        self._open: dict[Key, _OpenIntent] = {}
        #: Gangs that are being bound, and in how many attempts.
        self._in_progress: Counter[Key] = Counter()
        #: By intent id: when its first attempt had ended, and since when it is fulfilled.
        self._idle_since: dict[str, float] = {}
        self._fulfilled: dict[str, float] = {}
        #: Uids of deleted pods that the cache may still show.
        self._deleted_uids: set[str] = set()
        pods.subscribe(self._on_pod_changed)
        groups.subscribe(self._on_group_changed)

    async def run(self) -> None:
        """Complete or undo intents until cancelled."""
        await self._loop.run()

    def is_needed(self, entity: Entity) -> bool:
        """Whether a crash between two binds could leave the entity below its quorum."""
        return entity.quorum - count_bound_members(entity) > 1 or entity.key in self._open

    def has_lost_members(self, entity: Entity) -> bool:
        """Whether members that counted for the placement have been deleted since."""
        return any(pod.metadata.uid in self._deleted_uids for pod in entity.other_members)

    async def open(self, group: PodGroup) -> str:
        """Write the intent to bind a gang and return its id; `close` must follow."""
        key = group.metadata.key
        self._in_progress[key] += 1
        try:
            return await self._write_intent(self._groups.get(key, group))
        except BaseException:
            self.close(key, "", has_quorum=False)
            raise

    def close(self, key: Key, intent_id: str, *, has_quorum: bool) -> None:
        """End an attempt: no request of it is in progress any more."""
        self._in_progress[key] -= 1
        self._in_progress += Counter()
        if has_quorum:
            self._fulfilled[intent_id] = asyncio.get_running_loop().time()
        self._loop.queue.add(key)

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Complete or undo the intent of a group, if there is one."""
        group, opened = self._groups.get(key), self._open.get(key)
        if group is None or opened is None or key in self._in_progress:
            return ReconcilePlan()
        now = asyncio.get_running_loop().time()
        idle_since = self._idle_since.setdefault(opened.intent_id, now)
        bound = [pod for pod in self._members[key] if _has_node(pod)]
        if opened.intent_id in self._fulfilled or len(bound) >= group.quorum:
            since = self._fulfilled.setdefault(opened.intent_id, now)
            return self._complete(group, opened.intent_id, since + REPORT_TIMEOUT - now)
        if (left := idle_since + COMPLETION_TIMEOUT - now) > 0:
            return ReconcilePlan(requeue_after=left)
        return self._undo(group, opened.intent_id, bound)

    def _complete(self, group: PodGroup, intent_id: str, left: float) -> ReconcilePlan:
        """Report a gang as scheduled, then close its intent: one write after the other.

        Both at once would make the second one conflict, because each changes the version.
        """
        condition = find_condition(group.status.conditions, POD_GROUP_SCHEDULED)
        if condition is None or condition.status != "True":
            self._status_writer.report_group(
                group.metadata, ConditionUpdate("True", "Scheduled", "", quorum=group.quorum)
            )
            if left > 0:
                return ReconcilePlan(requeue_after=left)
        key = group.metadata.key
        LOG.debug("bind intent fulfilled", kind="PodGroup", key=key, intent=intent_id)
        return ReconcilePlan([_close_patch(key, intent_id)])

    def _undo(self, group: PodGroup, intent_id: str, bound: list[Pod]) -> ReconcilePlan:
        """Delete the members that the intent bound, if a controller creates all of them again."""
        members = [
            pod
            for pod in bound
            if pod.metadata.annotations.get(BINDING_INTENT_ANNOTATION) == intent_id
            and not pod.is_terminal
        ]
        progress = f"only {len(bound)} of {group.quorum} required members were bound in time"
        if irreplaceable := [pod for pod in members if pod.metadata.controller is None]:
            names = ", ".join(sorted(pod.metadata.name for pod in irreplaceable))
            message = f"{progress}; no controller would create {names} again"
            self._report(group, BINDING_INCOMPLETE, message)
            return ReconcilePlan(requeue_after=COMPLETION_TIMEOUT)
        if new := [pod for pod in members if pod.metadata.uid not in self._deleted_uids]:
            message = f"{progress}; the bound members are deleted so that all start together"
            self._report(group, BINDING_UNDONE, message, pods=new)
            self._deleted_uids |= {pod.metadata.uid for pod in new}
        deletes = [Delete(POD, pod.metadata.key, pod.metadata.uid) for pod in members]
        return ReconcilePlan([*deletes, _close_patch(group.metadata.key, intent_id)])

    def _report(
        self, group: PodGroup, reason: str, message: str, *, pods: Sequence[Pod] = ()
    ) -> None:
        """Write a condition of the group, and events of the group and of these members."""
        LOG.warning(message, kind="PodGroup", key=group.metadata.key, reason=reason)
        self._status_writer.report_group(group.metadata, ConditionUpdate("False", reason, message))
        for kind, meta in ((POD_GROUP, group.metadata), *((POD, pod.metadata) for pod in pods)):
            self._recorder.record(ObjectEvent(kind, meta, reason, message=message, type="Warning"))

    async def _write_intent(self, group: PodGroup) -> str:
        """Return the id of the open intent; writes a new one only if there is none."""
        key, intent_id = group.metadata.key, self._random.uid()
        for attempt in range(_MAX_WRITE_ATTEMPTS):
            if key in self._open:
                return self._open[key].intent_id
            try:
                answer = await self._client.patch(POD_GROUP, key, _open_patch(group, intent_id))
            except Conflict:
                # The other write may not be readable yet.
                await asyncio.sleep(_CONFLICT_PAUSE * 2**attempt)
                group = await self._client.get(POD_GROUP, key, PodGroup)
                self._observe_group(group)
            else:
                written = msgspec.convert(answer, PodGroup)
                self._observe_group(written)
                self._status_writer.await_group_version(written.metadata)
                LOG.debug("bind intent opened", kind="PodGroup", key=key, intent=intent_id)
                return intent_id
        raise Conflict(f"PodGroup {key} changed during each of {_MAX_WRITE_ATTEMPTS} attempts")

    def _observe_group(self, group: PodGroup) -> None:
        """Observe a version of a group from the API or the cache, unless a newer one is known."""
        key, version = group.metadata.key, parse_revision(group.metadata.resource_version)
        known = self._open.get(key)
        if known is not None and version < known.version:
            return
        if known is not None and known.intent_id != group.binding_intent:
            self._forget(key)
        if group.binding_intent:
            self._open[key] = _OpenIntent(group.binding_intent, version)

    def _forget(self, key: Key) -> None:
        if opened := self._open.pop(key, None):
            self._idle_since.pop(opened.intent_id, None)
            self._fulfilled.pop(opened.intent_id, None)

    def _on_pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None and old is not None:
            self._deleted_uids.discard(old.metadata.uid)
        pod = new or old
        if pod is not None and pod.group in self._open:
            self._loop.queue.add(pod.group)

    def _on_group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        if new is not None:
            self._observe_group(new)
        elif old is not None:
            self._forget(old.metadata.key)
        if new is not None and new.metadata.key in self._open:
            self._loop.queue.add(new.metadata.key)


def count_bound_members(entity: Entity) -> int:
    """Return how many members of an entity had a node when it was placed."""
    return sum(_has_node(pod) for pod in entity.other_members)


def _has_node(pod: Pod) -> bool:
    """Whether a member has a node, or had one until it finished."""
    return bool(pod.spec.node_name) and not pod.metadata.deletion_timestamp


def _open_patch(group: PodGroup, intent_id: str) -> Object:
    meta = group.metadata
    return {
        "metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "annotations": {BINDING_INTENT_ANNOTATION: intent_id},
        }
    }


def _treat_closed_as_stale(key: Key, action: Action, error: ApiError) -> None:
    """Handle the error of closing an intent that is closed already: the cache does not show it."""
    if isinstance(error, Invalid) and isinstance(action, Patch) and action.content == JSON_PATCH:
        raise StaleCacheError(f"the bind intent of PodGroup {key} has changed") from error


def _close_patch(key: Key, intent_id: str) -> Patch:
    """Return the patch that removes this intent, whatever else changes in the group."""
    path = "/metadata/annotations/" + BINDING_INTENT_ANNOTATION.replace("/", "~1")
    change = [{"op": "test", "path": path, "value": intent_id}, {"op": "remove", "path": path}]
    return Patch(POD_GROUP, key, change, content=JSON_PATCH)
