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
from phalanx.api.scheduling import BINDING_INTENT, PodGroup
from phalanx.api.wire import JSON_PATCH, Object
from phalanx.chance import Chance
from phalanx.client.answers import revision
from phalanx.client.cache import Cache
from phalanx.client.client import Client
from phalanx.controllers.actions import Delete, Patch, Plan
from phalanx.controllers.groups.podgroups import groups_of
from phalanx.controllers.loop import Loop
from phalanx.controllers.recorder import Note, Recorder
from phalanx.controllers.shell.reporter import Reporter, Verdict
from phalanx.scheduler.entity import Entity

#: Seconds that the rest of a gang is given to find nodes before what was bound of it is undone.
PATIENCE = 15.0
#: How often an intent is written anew when somebody else changes the group at the same time.
_TRIES = 5
UNDONE, STUCK = "BindingUndone", "BindingIncomplete"


class _Opened(NamedTuple):
    """An open intent: its number, and the newest version of its group that was seen to have it."""

    number: str
    version: int


class Intents:
    """All intents that are open on a server, whoever opened them."""

    def __init__(
        self, client: Client, chance: Chance, pods: Cache[Pod], groups: Cache[PodGroup],
        reporter: Reporter, recorder: Recorder,
    ) -> None:  # fmt: skip
        self._client, self._chance, self._groups = client, chance, groups
        self._reporter, self._recorder = reporter, recorder
        self._members = pods.index(groups_of)
        self._loop: Loop[Key] = Loop(client, self.reconcile)
        self._open: dict[Key, _Opened] = {}
        #: Gangs that are being bound at this moment, and how often.
        self._held: Counter[Key] = Counter()
        #: Intents by number: since when they are left to themselves, and which are fulfilled.
        self._since: dict[str, float] = {}
        self._fulfilled: set[str] = set()
        #: Pods that are being deleted and may still look alive.
        self._undone: set[str] = set()
        pods.subscribe(self._pod_changed)
        groups.subscribe(self._group_changed)

    async def run(self) -> None:
        """Complete or undo until cancelled."""
        await self._loop.run()

    def is_needed(self, entity: Entity) -> bool:
        """Whether an end between two binds could leave the entity with too few members."""
        return entity.quorum - bound_before(entity) > 1 or entity.key in self._open

    def is_undone(self, entity: Entity) -> bool:
        """Whether an entity was placed in view of members that have been given up since."""
        return any(pod.metadata.uid in self._undone for pod in entity.others)

    async def open(self, group: PodGroup) -> str:
        """Write down that a gang is about to be bound; under which number. `close` must follow."""
        key = group.metadata.key
        self._held[key] += 1
        try:
            return await self._write(self._groups.get(key, group))
        except BaseException:
            self.close(key, "", enough=False)
            raise

    def close(self, key: Key, number: str, *, enough: bool) -> None:
        """Nothing of this attempt is under way any more."""
        self._held[key] -= 1
        self._held += Counter()
        if enough:
            self._fulfilled.add(number)
        self._loop.queue.add(key)

    def reconcile(self, key: Key) -> Plan:
        """What is to be done about the intent of a group, if there is one."""
        group, opened = self._groups.get(key), self._open.get(key)
        if group is None or opened is None or key in self._held:
            return Plan()
        bound = [pod for pod in self._members[key] if _counts(pod)]
        if opened.number in self._fulfilled or len(bound) >= group.quorum:
            self._reporter.group(group.metadata, Verdict("True", "Scheduled", "", group.quorum))
            return Plan([_closing(key, opened.number)])
        now = asyncio.get_running_loop().time()
        left = self._since.setdefault(opened.number, now) + PATIENCE - now
        return Plan(again=left) if left > 0 else self._undoing(group, opened.number, bound)

    def _undoing(self, group: PodGroup, number: str, bound: list[Pod]) -> Plan:
        """Give up what was bound, if all of it will be made again."""
        ours = [pod for pod in bound if _mark(pod) == number and not pod.ended]
        so_many = f"only {len(bound)} of {group.quorum} required members could be bound in time"
        if lasting := [pod for pod in ours if not _is_replaceable(pod)]:
            names = ", ".join(sorted(pod.metadata.name for pod in lasting))
            self._say(group, STUCK, f"{so_many}; {names} would not be made again if deleted")
            return Plan(again=PATIENCE)
        if news := [pod for pod in ours if pod.metadata.uid not in self._undone]:
            text = f"{so_many}; what was bound is deleted so that all start together"
            self._say(group, UNDONE, text, news)
            self._undone |= {pod.metadata.uid for pod in news}
        deletes = [Delete(POD, pod.metadata.key, pod.metadata.uid) for pod in ours]
        return Plan([*deletes, _closing(group.metadata.key, number)])

    def _say(self, group: PodGroup, reason: str, text: str, pods: Sequence[Pod] = ()) -> None:
        """Tell everybody who looks at the group or at one of these members."""
        self._reporter.group(group.metadata, Verdict("False", reason, text))
        self._recorder.record(Note(POD_GROUP, group.metadata, reason, text, "Warning"))
        for pod in pods:
            self._recorder.record(Note(POD, pod.metadata, reason, text, "Warning"))

    async def _write(self, group: PodGroup) -> str:
        """The number of the open intent; a new one is written only where there is none."""
        key, number = group.metadata.key, self._chance.uid()
        for _ in range(_TRIES):
            if key in self._open:
                return self._open[key].number
            try:
                answer = await self._client.patch(POD_GROUP, key, _opening(group, number))
            except Conflict:
                group = await self._client.get(POD_GROUP, key, PodGroup)
                self._learn(group)
            else:
                self._learn(msgspec.convert(answer, PodGroup))
                return number
        raise Conflict(f"group {key} changes all the time")

    def _learn(self, group: PodGroup) -> None:
        """Take in a version of a group, wherever it came from, unless a newer one is known."""
        key, version = group.metadata.key, revision(group.metadata.resource_version)
        known = self._open.get(key)
        if known is not None and version < known.version:
            return
        if known is not None and known.number != group.intent:
            self._forget(key)
        if group.intent:
            self._open[key] = _Opened(group.intent, version)

    def _forget(self, key: Key) -> None:
        if opened := self._open.pop(key, None):
            self._since.pop(opened.number, None)
            self._fulfilled.discard(opened.number)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None and old is not None:
            self._undone.discard(old.metadata.uid)
        pod = new or old
        if pod is not None and pod.group in self._open:
            self._loop.queue.add(pod.group)

    def _group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        if new is not None:
            self._learn(new)
        elif old is not None:
            self._forget(old.metadata.key)
        if new is not None and new.metadata.key in self._open:
            self._loop.queue.add(new.metadata.key)


def bound_before(entity: Entity) -> int:
    """How many members of an entity had a node when it was placed."""
    return sum(_counts(pod) for pod in entity.others)


def _counts(pod: Pod) -> bool:
    """Whether a member has its node, or had it to its end."""
    return bool(pod.spec.node_name) and not pod.metadata.deletion_timestamp


def _mark(pod: Pod) -> str:
    return pod.metadata.annotations.get(BINDING_INTENT, "")


def _is_replaceable(pod: Pod) -> bool:
    """Whether somebody makes another one when it is gone."""
    return any(owner.controller for owner in pod.metadata.owner_references)


def _opening(group: PodGroup, number: str) -> Object:
    meta = group.metadata
    return {"metadata": {
        "uid": meta.uid, "resourceVersion": meta.resource_version,
        "annotations": {BINDING_INTENT: number},
    }}  # fmt: skip


def _closing(key: Key, number: str) -> Patch:
    """Take this very intent away, whatever else of the group changes meanwhile."""
    path = "/metadata/annotations/" + BINDING_INTENT.replace("/", "~1")
    change = [{"op": "test", "path": path, "value": number}, {"op": "remove", "path": path}]
    return Patch(POD_GROUP, key, change, content=JSON_PATCH)
