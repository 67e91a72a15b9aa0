"""Writes what was decided where users look: conditions of pods and PodGroups, counts of members.

The shell says what is the case; a work queue brings the objects there, one patch each, only where
they say something else. Every patch carries the version that it was made from, so that news which
arrives late never overwrites newer ones. Counts that merely changed wait for a quiet moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from phalanx.api.core import Pod
from phalanx.api.kinds import POD, POD_GROUP, Kind
from phalanx.api.meta import Condition, Key, condition, timestamp
from phalanx.api.scheduling import DEGRADED, INITIALLY_SCHEDULED, SCHEDULED, PodGroup
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.cache import Cache
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.actions import Patch, Plan
from phalanx.controllers.loop import Loop

POD_SCHEDULED = "PodScheduled"
SCHEDULING_GATED = "SchedulingGated"
_WORKERS = 8
#: Seconds that a change of members waits for others to come.
COUNT_PATIENCE = 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be said of an object. `waiting` is said of groups that were not even tried."""

    status: str
    reason: str
    message: str
    #: For a group that is placed: how many members it needed.
    needed: int = 0
    waiting: bool = False


@dataclass(frozen=True, slots=True)
class Census:
    """What the scheduler knows of groups before the API shows it, and whether it has time."""

    #: How many live members of a group have a node, bound or about to be.
    placed: Callable[[Key], int]
    is_busy: Callable[[], bool]
    #: Whether the API server keeps counts in the status of groups.
    counts: bool = True


class Reporter:
    """Brings conditions in line with the latest verdicts."""

    def __init__(
        self, client: Client, pods: Cache[Pod], groups: Cache[PodGroup], clock: Clock,
        census: Census,
    ) -> None:  # fmt: skip
        self._pods, self._groups, self._clock, self._census = pods, groups, clock, census
        self._members = pods.index(lambda pod: [pod.group] if pod.group else [])
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
        return Plan([self._patch(POD, pod, [new], {})])

    def reconcile_group(self, key: Key) -> Plan:
        """The patch that makes a group say what it should; once placed it says so for ever."""
        group = self._groups.get(key)
        if group is None:
            self._of_groups.pop(key, None)
            return Plan()
        conditions, counts = self._conditions(group), self._counts(group)
        if not conditions and counts and self._census.is_busy():
            return Plan(again=COUNT_PATIENCE)
        if not conditions and not counts:
            return Plan()
        return Plan([self._patch(POD_GROUP, group, conditions, counts)])

    def _conditions(self, group: PodGroup) -> list[Object]:
        """The conditions of a group that are to be said anew."""
        verdict, said = self._of_groups.get(group.metadata.key), group.status.conditions
        wanted = self._of_group(group, verdict) if verdict else []
        wanted = [(kind, one) for kind, one in wanted if not _is_final(condition(said, kind), one)]
        if degraded := self._degraded(group):
            wanted.append((DEGRADED, degraded))
        return [
            self._condition(kind, one, condition(said, kind))
            | {"observedGeneration": group.metadata.generation}
            for kind, one in wanted
        ]

    def _degraded(self, group: PodGroup) -> Verdict | None:
        """What has changed about a placed gang having all the members that it needs."""
        placed = condition(group.status.conditions, INITIALLY_SCHEDULED)
        if not group.is_gang or placed is None or placed.status != "True":
            return None
        old = condition(group.status.conditions, DEGRADED)
        there = self._census.placed(group.metadata.key) + self._ended(group, "Succeeded")
        text = f"{there} of {group.quorum} required members have a node or have succeeded"
        if there < group.quorum:
            lost = Verdict("True", "MembersLost", text)
            return None if old is not None and _says(old, lost) else lost
        return Verdict("False", "MembersBack", text) if old and old.status == "True" else None

    def _counts(self, group: PodGroup) -> Object:
        """The counts of members that are to be said anew."""
        if not self._census.counts:
            return {}
        key, status = group.metadata.key, group.status
        alive = [p for p in self._members[key] if not p.ended and not p.metadata.deletion_timestamp]
        placed = self._census.placed(key)
        found = {
            "pendingPods": (status.pending_pods, max(len(alive) - placed, 0)),
            "scheduledPods": (status.scheduled_pods, placed),
            "succeededPods": (status.succeeded_pods, self._ended(group, "Succeeded")),
            "failedPods": (status.failed_pods, self._ended(group, "Failed")),
        }
        return {name: new for name, (old, new) in found.items() if new != old}

    def _ended(self, group: PodGroup, phase: str) -> int:
        return sum(pod.status.phase == phase for pod in self._members[group.metadata.key])

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

    def _patch(
        self, kind: Kind, obj: Pod | PodGroup, conditions: list[Object], counts: Object
    ) -> Patch:
        meta = obj.metadata
        said = {"conditions": conditions} if conditions else {}
        change = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": said | counts,
        }
        return Patch(kind, meta.key, change, "status", STRATEGIC_PATCH)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None and old is not None:
            self._of_pods.pop(old.metadata.key, None)
        for pod in (old, new):
            if pod is not None and pod.group:
                self._group_loop.queue.add_after(pod.group, COUNT_PATIENCE)

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
