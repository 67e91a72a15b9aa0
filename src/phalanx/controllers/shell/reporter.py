"""Writes what was decided where users look: conditions of pods and PodGroups, counts of members.

The shell says what is the case; a work queue brings the objects there, one patch each, only where
they say something else. Every patch carries the version that it was made from, so that news which
arrives late never overwrites newer ones. Counts that merely changed wait for a quiet moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass

from phalanx.api.core import Pod
from phalanx.api.kinds import POD, POD_GROUP, Kind
from phalanx.api.meta import Condition, Key, Meta, condition, timestamp
from phalanx.api.scheduling import (
    DEGRADED,
    DISRUPTION_TARGET,
    INITIALLY_SCHEDULED,
    SCHEDULED,
    PodGroup,
)
from phalanx.api.standing import placed_conditions
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.cache import Cache
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.actions import Patch, Plan
from phalanx.controllers.groups.podgroups import groups_of
from phalanx.controllers.reports import Reports

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
    #: For a pod: the node that is kept for it while others leave.
    promised: str = ""


@dataclass(frozen=True, slots=True)
class Census:
    """What the scheduler knows of groups before the API shows it, and whether it has time."""

    #: How many live members of a group have a node, bound or about to be.
    placed: Callable[[Key], int]
    is_busy: Callable[[], bool]
    #: Whether the API server keeps counts in the status of groups.
    counts: bool = True
    #: The names of the schedulers in whose name conditions are written; none: of any.
    schedulers: Collection[str] = ()


class Reporter:
    """Brings conditions in line with the latest verdicts."""

    def __init__(
        self, client: Client, pods: Cache[Pod], groups: Cache[PodGroup], clock: Clock,
        census: Census,
    ) -> None:  # fmt: skip
        self._pods, self._groups, self._clock, self._census = pods, groups, clock, census
        self._members = pods.index(groups_of)
        self._nominees = pods.index(_nominated_to)
        #: The latest verdict about each, and the object as it was judged.
        self._of_pods: dict[Key, tuple[Meta, Verdict]] = {}
        self._of_groups: dict[Key, tuple[Meta, Verdict]] = {}
        #: Pods whose nomination is void, by uid.
        self._outbid: dict[Key, str] = {}
        self._pod_loop = Reports(client, self.reconcile_pod, pods, _WORKERS)
        self._group_loop = Reports(client, self.reconcile_group, groups, _WORKERS)
        pods.subscribe(self._pod_changed)
        groups.subscribe(self._group_changed)

    async def run(self) -> None:
        """Report until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pod_loop.run())
            group.create_task(self._group_loop.run())

    def pod(self, about: Meta, verdict: Verdict) -> None:
        """Say something of a pod that has no node."""
        self._of_pods[about.key] = about, verdict
        self._pod_loop.queue.add(about.key)

    def group(self, about: Meta, verdict: Verdict) -> None:
        """Say something of a group, unless that it is placed is already on its way."""
        known, last = self._of_groups.get(about.key, (None, None))
        if known is None or known.uid != about.uid or last is None or last.status != "True":
            self._of_groups[about.key] = about, verdict
        self._group_loop.queue.add(about.key)

    def standing(self, group: PodGroup) -> Object:
        """What a group says once its members that are placed are bound, as a GroupBinding has it;
        nothing if they are not enough.
        """
        pending, placed = self._tally(group.metadata.key)
        if placed < group.quorum:
            return {}
        return {
            "generation": group.metadata.generation, "neededPods": group.quorum,
            "pendingPods": pending, "scheduledPods": placed,
        }  # fmt: skip

    def outbid(self, node: str, priority: int) -> None:
        """A node was taken: what less important pods were promised of it is void."""
        for pod in self._nominees[node]:
            if pod.spec.priority < priority:
                self._outbid[pod.metadata.key] = pod.metadata.uid
                self._pod_loop.queue.add(pod.metadata.key)

    def reconcile_pod(self, key: Key) -> Plan:
        """The patch that makes a pod say what it should, if it is still there and unbound."""
        pod = self._pods.get(key)
        if pod is None or pod.spec.node_name:
            self._of_pods.pop(key, None)
            return Plan()
        about, verdict = self._of_pods.get(key, (None, None))
        if about is None or about.uid != pod.metadata.uid:
            verdict = None
        said = self._told(pod, verdict) if verdict else []
        lost = self._promise(pod, verdict)
        return Plan([self._patch(POD, pod, said, lost)]) if said or lost else Plan()

    def _told(self, pod: Pod, verdict: Verdict) -> list[Object]:
        """The condition of a pod that is to be said anew, if it is."""
        old = condition(pod.status.conditions, POD_SCHEDULED)
        if old is not None and (_says(old, verdict) or _is_gated(old, pod)):
            return []
        return [{**self._condition(POD_SCHEDULED, verdict, old), "lastProbeTime": None}]

    def _promise(self, pod: Pod, verdict: Verdict | None) -> Object:
        """What a pod is promised while others leave: nothing if it was refused for good, or if
        somebody else was preferred to it.
        """
        said, wanted = pod.status.nominated_node_name, pod.status.nominated_node_name
        if verdict is not None and not verdict.waiting:
            wanted = verdict.promised
        if self._outbid.get(pod.metadata.key) == pod.metadata.uid:
            wanted = ""
        return {"nominatedNodeName": wanted or None} if wanted != said else {}

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
        """The conditions of a group that are to be said anew: only of one with pods of ours."""
        if self._is_strange(group):
            return []
        about, verdict = self._latest(group)
        wanted = [(kind, about, one) for kind, one in _of_group(verdict)] if verdict else []
        if degraded := self._degraded(group):
            wanted.append((DEGRADED, group.metadata, degraded))
        said = group.status.conditions
        spared = [{"type": DISRUPTION_TARGET, "$patch": "delete"}] if self._is_back(group) else []
        return spared + [
            self._condition(kind, one, condition(said, kind))
            | {"observedGeneration": judged.generation}
            for kind, judged, one in wanted
            if kind == DEGRADED or not _is_final(condition(said, kind), one, judged)
        ]

    def _is_back(self, group: PodGroup) -> bool:
        """Whether a group that was told to make way has all that it needs again."""
        told = condition(group.status.conditions, DISRUPTION_TARGET)
        return told is not None and self._census.placed(group.metadata.key) >= group.quorum

    def _is_strange(self, group: PodGroup) -> bool:
        """Whether all its members are some other scheduler's business."""
        names = {pod.spec.scheduler_name for pod in self._members[group.metadata.key]}
        return bool(names and self._census.schedulers) and names.isdisjoint(self._census.schedulers)

    def _latest(self, group: PodGroup) -> tuple[Meta, Verdict | None]:
        """What is to be said of this very group. What is bound speaks for itself, so that it is
        said even if whoever bound it is no more.
        """
        key, quorum = group.metadata.key, group.quorum
        if sum(bool(pod.spec.node_name) for pod in self._members[key]) >= quorum:
            return group.metadata, Verdict("True", "Scheduled", "", quorum)
        about, verdict = self._of_groups.get(key, (group.metadata, None))
        return about, verdict if about.uid == group.metadata.uid else None

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
        status = group.status
        pending, placed = self._tally(group.metadata.key)
        found = {
            "pendingPods": (status.pending_pods, pending),
            "scheduledPods": (status.scheduled_pods, placed),
            "succeededPods": (status.succeeded_pods, self._ended(group, "Succeeded")),
            "failedPods": (status.failed_pods, self._ended(group, "Failed")),
        }
        return {name: new for name, (old, new) in found.items() if new != old}

    def _tally(self, group: Key) -> tuple[int, int]:
        """How many live members of a group wait for a node, and how many have one."""
        members, placed = self._members[group], self._census.placed(group)
        alive = sum(not pod.ended and not pod.metadata.deletion_timestamp for pod in members)
        return max(alive - placed, 0), placed

    def _ended(self, group: PodGroup, phase: str) -> int:
        return sum(pod.status.phase == phase for pod in self._members[group.metadata.key])

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
        if old is not None and (new is None or not new.status.nominated_node_name):
            self._outbid.pop(old.metadata.key, None)
        groups = [pod.group for pod in (old, new) if pod is not None]
        for group in dict.fromkeys(groups):
            if group is not None:
                self._group_loop.queue.add_after(group, COUNT_PATIENCE)

    def _group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        if new is None and old is not None:
            self._of_groups.pop(old.metadata.key, None)
        elif new is not None and (old is None or old.spec != new.spec):
            # Its members may have been seen before it, or by another who did not live to tell.
            self._group_loop.queue.add(new.metadata.key)
        elif new is not None:
            # Another who believes to lead may have said otherwise, on a view that was late.
            self._group_loop.queue.add_after(new.metadata.key, COUNT_PATIENCE)


def _of_group(verdict: Verdict) -> list[tuple[str, Verdict]]:
    """The same verdict under the two names that a group's condition goes by."""
    if verdict.waiting:
        return [(SCHEDULED, verdict)]
    if verdict.status != "True":
        return [(INITIALLY_SCHEDULED, verdict), (SCHEDULED, verdict)]
    return [
        (said.type, Verdict(said.status, said.reason, said.message))
        for said in placed_conditions(verdict.needed)
    ]


def _says(old: Condition, verdict: Verdict) -> bool:
    return (old.status, old.reason, old.message) == (
        verdict.status, verdict.reason, verdict.message,
    )  # fmt: skip


def _is_final(old: Condition | None, verdict: Verdict, judged: Meta) -> bool:
    """Whether a group says so already, of what it is now, or was placed and says so for ever."""
    if old is None or old.status == "True":
        return old is not None
    return _says(old, verdict) and old.observed_generation == judged.generation


def _is_gated(old: Condition, pod: Pod) -> bool:
    """Whether somebody else's word stands: gates were there before we were asked."""
    return old.reason == SCHEDULING_GATED and bool(pod.spec.scheduling_gates)


def _nominated_to(pod: Pod) -> list[str]:
    """The node that was promised to a pod which has none yet."""
    node = pod.status.nominated_node_name
    return [node] if node and not pod.spec.node_name else []
