"""Intents to bind a gang, where its members can only be bound one after the other.

Between `podbinder`, which binds, and the API. Before the first member of a gang is bound the intent
is written on its PodGroup, as a number; every member carries that number from the moment that it is
bound, for the bind itself puts it there; once the gang has what it needs the intent is taken away.
So whoever starts after a crash knows which gangs were begun and what was done in their name:

    bound members         what is done
    enough                the intent is closed: the gang is placed
    too few               the rest is placed by the next cycles, before any other gang
    too few for too long  those that the intent bound are deleted, for their controller to make
                          again; and the intent is closed
    … without controller  nothing can be undone: the rest goes on waiting, and that is said

Deletes nothing that this intent did not bind, and never a pod that nobody would make again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from phalanx.api.core import Pod
from phalanx.api.errors import Conflict
from phalanx.api.kinds import POD, POD_GROUP
from phalanx.api.meta import Key
from phalanx.api.scheduling import BINDING_INTENT_ANNOTATION, PodGroup
from phalanx.api.wire import JSON_PATCH, Object
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.client.protocol import parse_revision
from phalanx.controllers.event_recorder import EventRecorder, ObjectEvent
from phalanx.controllers.pod_groups.protection import groups_of
from phalanx.controllers.reconcile_loop import Delete, Patch, ReconcileLoop, ReconcilePlan
from phalanx.controllers.scheduling.status_writer import ConditionUpdate, SchedulingStatusWriter
from phalanx.randomness import Random
from phalanx.scheduler.entity import Entity

#: Seconds that the rest of a gang is given to find nodes before what was bound of it is undone.
COMPLETION_TIMEOUT = 15.0
#: How often an intent is written anew when somebody else changes the group at the same time.
_MAX_WRITE_ATTEMPTS = 5
BINDING_UNDONE, BINDING_INCOMPLETE = "BindingUndone", "BindingIncomplete"


class _OpenIntent(NamedTuple):
    """An open intent: its number, and the newest version of its group that was seen to have it."""

    intent_id: str
    version: int


class BindIntents:
    """All intents that are open on a server, whoever opened them."""

    def __init__(
        self, client: Client, random: Random, pods: ObjectCache[Pod], groups: ObjectCache[PodGroup],
        status_writer: SchedulingStatusWriter, recorder: EventRecorder,
    ) -> None:  # fmt: skip
        self._client, self._random, self._groups = client, random, groups
        self._status_writer, self._recorder = status_writer, recorder
        self._members = pods.index(groups_of)
        self._loop: ReconcileLoop[Key] = ReconcileLoop(client, self.reconcile)
        self._open: dict[Key, _OpenIntent] = {}
        #: Gangs that are being bound at this moment, and how often.
        self._in_progress: Counter[Key] = Counter()
        #: Intents by number: since when they are left to themselves, and which are fulfilled.
        self._idle_since: dict[str, float] = {}
        self._fulfilled: set[str] = set()
        #: Pods that are being deleted and may still look alive.
        self._deleted_uids: set[str] = set()
        pods.subscribe(self._on_pod_changed)
        groups.subscribe(self._on_group_changed)

    async def run(self) -> None:
        """Complete or undo until cancelled."""
        await self._loop.run()

    def is_needed(self, entity: Entity) -> bool:
        """Whether an end between two binds could leave the entity with too few members."""
        return entity.quorum - count_bound_members(entity) > 1 or entity.key in self._open

    def has_lost_members(self, entity: Entity) -> bool:
        """Whether an entity was placed in view of members that have been given up since."""
        return any(pod.metadata.uid in self._deleted_uids for pod in entity.other_members)

    async def open(self, group: PodGroup) -> str:
        """Write down that a gang is about to be bound; under which number. `close` must follow."""
        key = group.metadata.key
        self._in_progress[key] += 1
        try:
            return await self._write_intent(self._groups.get(key, group))
        except BaseException:
            self.close(key, "", has_quorum=False)
            raise

    def close(self, key: Key, intent_id: str, *, has_quorum: bool) -> None:
        """Nothing of this attempt is under way any more."""
        self._in_progress[key] -= 1
        self._in_progress += Counter()
        if has_quorum:
            self._fulfilled.add(intent_id)
        self._loop.queue.add(key)

    def reconcile(self, key: Key) -> ReconcilePlan:
        """What is to be done about the intent of a group, if there is one."""
        group, opened = self._groups.get(key), self._open.get(key)
        if group is None or opened is None or key in self._in_progress:
            return ReconcilePlan()
        bound = [pod for pod in self._members[key] if _has_node(pod)]
        if opened.intent_id in self._fulfilled or len(bound) >= group.quorum:
            self._status_writer.report_group(
                group.metadata, ConditionUpdate("True", "Scheduled", "", group.quorum)
            )
            return ReconcilePlan([_close_patch(key, opened.intent_id)])
        now = asyncio.get_running_loop().time()
        left = self._idle_since.setdefault(opened.intent_id, now) + COMPLETION_TIMEOUT - now
        return (
            ReconcilePlan(requeue_after=left)
            if left > 0
            else self._undo(group, opened.intent_id, bound)
        )

    def _undo(self, group: PodGroup, intent_id: str, bound: list[Pod]) -> ReconcilePlan:
        """Give up what was bound, if all of it will be made again."""
        ours = [pod for pod in bound if _intent_of(pod) == intent_id and not pod.is_terminal]
        so_many = f"only {len(bound)} of {group.quorum} required members could be bound in time"
        if lasting := [pod for pod in ours if not _is_replaceable(pod)]:
            names = ", ".join(sorted(pod.metadata.name for pod in lasting))
            self._report(
                group, BINDING_INCOMPLETE, f"{so_many}; {names} would not be made again if deleted"
            )
            return ReconcilePlan(requeue_after=COMPLETION_TIMEOUT)
        if news := [pod for pod in ours if pod.metadata.uid not in self._deleted_uids]:
            text = f"{so_many}; what was bound is deleted so that all start together"
            self._report(group, BINDING_UNDONE, text, news)
            self._deleted_uids |= {pod.metadata.uid for pod in news}
        deletes = [Delete(POD, pod.metadata.key, pod.metadata.uid) for pod in ours]
        return ReconcilePlan([*deletes, _close_patch(group.metadata.key, intent_id)])

    def _report(self, group: PodGroup, reason: str, text: str, pods: Sequence[Pod] = ()) -> None:
        """Tell everybody who looks at the group or at one of these members."""
        self._status_writer.report_group(group.metadata, ConditionUpdate("False", reason, text))
        self._recorder.record(ObjectEvent(POD_GROUP, group.metadata, reason, text, "Warning"))
        for pod in pods:
            self._recorder.record(ObjectEvent(POD, pod.metadata, reason, text, "Warning"))

    async def _write_intent(self, group: PodGroup) -> str:
        """The number of the open intent; a new one is written only where there is none."""
        key, number = group.metadata.key, self._random.uid()
        for _ in range(_MAX_WRITE_ATTEMPTS):
            if key in self._open:
                return self._open[key].intent_id
            try:
                answer = await self._client.patch(POD_GROUP, key, _open_patch(group, number))
            except Conflict:
                group = await self._client.get(POD_GROUP, key, PodGroup)
                self._observe_group(group)
            else:
                self._observe_group(msgspec.convert(answer, PodGroup))
                return number
        raise Conflict(f"group {key} changes all the time")

    def _observe_group(self, group: PodGroup) -> None:
        """Take in a version of a group, wherever it came from, unless a newer one is known."""
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
            self._fulfilled.discard(opened.intent_id)

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
    """How many members of an entity had a node when it was placed."""
    return sum(_has_node(pod) for pod in entity.other_members)


def _has_node(pod: Pod) -> bool:
    """Whether a member has its node, or had it to its end."""
    return bool(pod.spec.node_name) and not pod.metadata.deletion_timestamp


def _intent_of(pod: Pod) -> str:
    return pod.metadata.annotations.get(BINDING_INTENT_ANNOTATION, "")


def _is_replaceable(pod: Pod) -> bool:
    """Whether somebody makes another one when it is gone."""
    return any(owner.controller for owner in pod.metadata.owner_references)


def _open_patch(group: PodGroup, intent_id: str) -> Object:
    meta = group.metadata
    return {"metadata": {
        "uid": meta.uid, "resourceVersion": meta.resource_version,
        "annotations": {BINDING_INTENT_ANNOTATION: intent_id},
    }}  # fmt: skip


def _close_patch(key: Key, intent_id: str) -> Patch:
    """Take this very intent away, whatever else of the group changes meanwhile."""
    path = "/metadata/annotations/" + BINDING_INTENT_ANNOTATION.replace("/", "~1")
    change = [{"op": "test", "path": path, "value": intent_id}, {"op": "remove", "path": path}]
    return Patch(POD_GROUP, key, change, content=JSON_PATCH)
