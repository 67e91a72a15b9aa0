"""Writes what was decided where users look: conditions of pods and PodGroups.

The shell says what is the case; a work queue brings the objects there, one patch each, only where
they say something else. Every patch carries the version that it was made from, so that news which
arrives late never overwrites newer ones.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from phalanx.api.core import Pod
from phalanx.api.kinds import POD, POD_GROUP, Kind
from phalanx.api.meta import Condition, Key, condition, timestamp
from phalanx.api.scheduling import INITIALLY_SCHEDULED, SCHEDULED, PodGroup
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.cache import Cache
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.actions import Patch, Plan
from phalanx.controllers.loop import Loop

POD_SCHEDULED = "PodScheduled"
SCHEDULING_GATED = "SchedulingGated"
_WORKERS = 8


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be said of an object. `waiting` is said of groups that were not even tried."""

    status: str
    reason: str
    message: str
    #: For a group that is placed: how many members it needed.
    needed: int = 0
    waiting: bool = False


class Reporter:
    """Brings conditions in line with the latest verdicts."""

    def __init__(
        self, client: Client, pods: Cache[Pod], groups: Cache[PodGroup], clock: Clock
    ) -> None:
        self._pods, self._groups, self._clock = pods, groups, clock
        self._of_pods: dict[Key, tuple[str, Verdict]] = {}
        self._of_groups: dict[Key, Verdict] = {}
        self._pod_loop: Loop[Key] = Loop(client, self.reconcile_pod, _WORKERS)
        self._group_loop: Loop[Key] = Loop(client, self.reconcile_group, _WORKERS)
        pods.subscribe(self._pod_changed)
        groups.subscribe(self._group_changed)

    async def run(self) -> None:
        """Report until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pod_loop.run())
            group.create_task(self._group_loop.run())

    def pod(self, key: Key, uid: str, verdict: Verdict) -> None:
        """Say something of a pod that has no node."""
        self._of_pods[key] = uid, verdict
        self._pod_loop.queue.add(key)

    def group(self, key: Key, verdict: Verdict) -> None:
        """Say something of a group."""
        self._of_groups[key] = verdict
        self._group_loop.queue.add(key)

    def reconcile_pod(self, key: Key) -> Plan:
        """The patch that makes a pod say what it should, if it is still there and unbound."""
        uid, verdict = self._of_pods.get(key, ("", None))
        pod = self._pods.get(key)
        if verdict is None or pod is None or pod.metadata.uid != uid or pod.spec.node_name:
            self._of_pods.pop(key, None)
            return Plan()
        old = condition(pod.status.conditions, POD_SCHEDULED)
        if old is not None and (_says(old, verdict) or _is_gated(old, pod)):
            return Plan()
        new = {**self._condition(POD_SCHEDULED, verdict, old), "lastProbeTime": None}
        return Plan([self._patch(POD, pod, [new])])

    def reconcile_group(self, key: Key) -> Plan:
        """The patch that makes a group say what it should; once placed it says so for ever."""
        verdict, group = self._of_groups.get(key), self._groups.get(key)
        if verdict is None or group is None:
            self._of_groups.pop(key, None)
            return Plan()
        wanted = self._of_group(group, verdict)
        changed = [
            self._condition(kind, said, old) | {"observedGeneration": group.metadata.generation}
            for kind, said in wanted
            if not _is_final(old := condition(group.status.conditions, kind), said)
        ]
        return Plan([self._patch(POD_GROUP, group, changed)]) if changed else Plan()

    def _of_group(self, group: PodGroup, verdict: Verdict) -> list[tuple[str, Verdict]]:
        """The same verdict under the two names that a group's condition goes by."""
        if verdict.waiting:
            return [(SCHEDULED, verdict)]
        if verdict.status != "True":
            return [(INITIALLY_SCHEDULED, verdict), (SCHEDULED, verdict)]
        needed = verdict.needed
        text = f"All required pods ({needed}/{needed}) have been assigned to nodes"
        return [(INITIALLY_SCHEDULED, verdict), (SCHEDULED, Verdict("True", _SATISFIED, text))]

    def _condition(self, kind: str, verdict: Verdict, old: Condition | None) -> Object:
        since = old.last_transition_time if old and old.status == verdict.status else None
        return {
            "type": kind, "status": verdict.status, "reason": verdict.reason,
            "message": verdict.message,
            "lastTransitionTime": since or timestamp(self._clock.now()),
        }  # fmt: skip

    def _patch(self, kind: Kind, obj: Pod | PodGroup, conditions: list[Object]) -> Patch:
        meta = obj.metadata
        change = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": {"conditions": conditions},
        }
        return Patch(kind, meta.key, change, "status", STRATEGIC_PATCH)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None and old is not None:
            self._of_pods.pop(old.metadata.key, None)

    def _group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        if new is None and old is not None:
            self._of_groups.pop(old.metadata.key, None)


_SATISFIED = "MinCountSatisfied"


def _says(old: Condition, verdict: Verdict) -> bool:
    return (old.status, old.reason, old.message) == (
        verdict.status, verdict.reason, verdict.message,
    )  # fmt: skip


def _is_final(old: Condition | None, verdict: Verdict) -> bool:
    return old is not None and (old.status == "True" or _says(old, verdict))


def _is_gated(old: Condition, pod: Pod) -> bool:
    """Whether somebody else's word stands: gates were there before we were asked."""
    return old.reason == SCHEDULING_GATED and bool(pod.spec.scheduling_gates)
