"""Writes what was decided where users look: conditions of pods and PodGroups, counts of members.

The shell says what is the case; a work queue brings the objects there, one patch each, only where
they say something else. Every patch carries the version that it was made from, so that news which
arrives late never overwrites newer ones. Counts that merely changed wait for a quiet moment.

Writes what was decided about trees of groups where users look: on every group of groups.

The sibling of `reporter.py`, for CompositePodGroups. That one was placed is said once and for all,
and groups below that say so speak for it, so that it is said even if whoever bound them is no more;
that it was told to make way is taken back once it is placed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from phalanx.api.core import Pod
from phalanx.api.kinds import COMPOSITE_POD_GROUP, POD, POD_GROUP, Kind
from phalanx.api.meta import Condition, Key, ObjectMeta, find_condition, timestamp
from phalanx.api.scheduling import (
    COMPOSITE_INITIALLY_SCHEDULED,
    DEGRADED,
    DISRUPTION_TARGET,
    POD_GROUP_INITIALLY_SCHEDULED,
    POD_GROUP_SCHEDULED,
    CompositePodGroup,
    PodGroup,
    scheduled_conditions,
)
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.pod_groups.composite_groups import ChildGroup, parents_of
from phalanx.controllers.pod_groups.protection import groups_of
from phalanx.controllers.reconcile_loop import Patch, ReconcilePlan, StatusPatchLoop
from phalanx.scheduler.cluster.group_tree import MAX_DEPTH

POD_SCHEDULED = "PodScheduled"
SCHEDULING_GATED = "SchedulingGated"
_WORKERS = 8
#: Seconds that a change of members waits for others to come.
COUNT_DELAY = 1.0


@dataclass(frozen=True, slots=True)
class ConditionUpdate:
    """What is to be said of an object. `waiting` is said of groups that were not even tried."""

    status: str
    reason: str
    message: str
    #: For a group that is placed: how many members it needed.
    quorum: int = 0
    is_pending: bool = False
    #: For a pod: the node that is kept for it while others leave.
    nominated_node: str = ""


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """What the scheduler knows of groups before the API shows it, and whether it has time."""

    #: How many live members of a group have a node, bound or about to be.
    placed_members: Callable[[Key], int]
    is_busy: Callable[[], bool]
    #: Whether the API server keeps counts in the status of groups.
    writes_counts: bool = True
    #: The names of the schedulers in whose name conditions are written; none: of any.
    schedulers: Collection[str] = ()


class SchedulingStatusWriter:
    """Brings conditions in line with the latest verdicts."""

    def __init__(
        self, client: Client, pods: ObjectCache[Pod], groups: ObjectCache[PodGroup], clock: Clock,
        scheduler_view: SchedulerView,
    ) -> None:  # fmt: skip
        self._pods, self._groups, self._clock, self._scheduler_view = (
            pods,
            groups,
            clock,
            scheduler_view,
        )
        self._members = pods.index(groups_of)
        self._nominated_pods = pods.index(_nominated_nodes)
        #: The latest verdict about each, and the object as it was judged.
        self._pod_updates: dict[Key, tuple[ObjectMeta, ConditionUpdate]] = {}
        self._group_updates: dict[Key, tuple[ObjectMeta, ConditionUpdate]] = {}
        #: Pods whose nomination is void, by uid.
        self._voided_nominations: dict[Key, str] = {}
        self._pod_loop = StatusPatchLoop(client, self.reconcile_pod, pods, _WORKERS)
        self._group_loop = StatusPatchLoop(client, self.reconcile_group, groups, _WORKERS)
        pods.subscribe(self._on_pod_changed)
        groups.subscribe(self._on_group_changed)

    async def run(self) -> None:
        """Report until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pod_loop.run())
            group.create_task(self._group_loop.run())

    def report_pod(self, about: ObjectMeta, update: ConditionUpdate) -> None:
        """Say something of a pod that has no node."""
        self._pod_updates[about.key] = about, update
        self._pod_loop.queue.add(about.key)

    def report_group(self, about: ObjectMeta, update: ConditionUpdate) -> None:
        """Say something of a group, unless that it is placed is already on its way."""
        known, last = self._group_updates.get(about.key, (None, None))
        if known is None or known.uid != about.uid or last is None or last.status != "True":
            self._group_updates[about.key] = about, update
        self._group_loop.queue.add(about.key)

    def group_binding_status(self, group: PodGroup) -> Object:
        """What a group says once its members that are placed are bound, as a GroupBinding has it;
        nothing if they are not enough.
        """
        pending, placed = self._count_members(group.metadata.key)
        if placed < group.quorum:
            return {}
        return {
            "generation": group.metadata.generation, "neededPods": group.quorum,
            "pendingPods": pending, "scheduledPods": placed,
        }  # fmt: skip

    def void_nominations(self, node: str, priority: int) -> None:
        """A node was taken: what less important pods were promised of it is void."""
        for pod in self._nominated_pods[node]:
            if pod.spec.priority < priority:
                self._voided_nominations[pod.metadata.key] = pod.metadata.uid
                self._pod_loop.queue.add(pod.metadata.key)

    def reconcile_pod(self, key: Key) -> ReconcilePlan:
        """The patch that makes a pod say what it should, if it is still there and unbound."""
        pod = self._pods.get(key)
        if pod is None or pod.spec.node_name:
            self._pod_updates.pop(key, None)
            return ReconcilePlan()
        about, verdict = self._pod_updates.get(key, (None, None))
        if about is None or about.uid != pod.metadata.uid:
            verdict = None
        said = self._pod_condition(pod, verdict) if verdict else []
        lost = self._nomination_patch(pod, verdict)
        return (
            ReconcilePlan([self._patch(POD, pod, said, lost)]) if said or lost else ReconcilePlan()
        )

    def _pod_condition(self, pod: Pod, update: ConditionUpdate) -> list[Object]:
        """The condition of a pod that is to be said anew, if it is."""
        old = find_condition(pod.status.conditions, POD_SCHEDULED)
        if old is not None and (_matches(old, update) or _is_gated(old, pod)):
            return []
        return [{**self._condition(POD_SCHEDULED, update, old), "lastProbeTime": None}]

    def _nomination_patch(self, pod: Pod, update: ConditionUpdate | None) -> Object:
        """What a pod is promised while others leave: nothing if it was refused for good, or if
        somebody else was preferred to it.
        """
        said, wanted = pod.status.nominated_node_name, pod.status.nominated_node_name
        if update is not None and not update.is_pending:
            wanted = update.nominated_node
        if self._voided_nominations.get(pod.metadata.key) == pod.metadata.uid:
            wanted = ""
        return {"nominatedNodeName": wanted or None} if wanted != said else {}

    def reconcile_group(self, key: Key) -> ReconcilePlan:
        """The patch that makes a group say what it should; once placed it says so for ever."""
        group = self._groups.get(key)
        if group is None:
            self._group_updates.pop(key, None)
            return ReconcilePlan()
        conditions, counts = self._conditions(group), self._changed_counts(group)
        if not conditions and counts and self._scheduler_view.is_busy():
            return ReconcilePlan(requeue_after=COUNT_DELAY)
        if not conditions and not counts:
            return ReconcilePlan()
        return ReconcilePlan([self._patch(POD_GROUP, group, conditions, counts)])

    def _conditions(self, group: PodGroup) -> list[Object]:
        """The conditions of a group that are to be said anew: only of one with pods of ours."""
        if self._is_foreign(group):
            return []
        about, verdict = self._latest_update(group)
        wanted = [(kind, about, one) for kind, one in _group_updates(verdict)] if verdict else []
        if degraded := self._degraded_update(group):
            wanted.append((DEGRADED, group.metadata, degraded))
        said = group.status.conditions
        spared = (
            [{"type": DISRUPTION_TARGET, "$patch": "delete"}] if self._is_restored(group) else []
        )
        return spared + [
            self._condition(kind, one, find_condition(said, kind))
            | {"observedGeneration": judged.generation}
            for kind, judged, one in wanted
            if kind == DEGRADED or not _is_up_to_date(find_condition(said, kind), one, judged)
        ]

    def _is_restored(self, group: PodGroup) -> bool:
        """Whether a group that was told to make way has all that it needs again."""
        told = find_condition(group.status.conditions, DISRUPTION_TARGET)
        return (
            told is not None
            and self._scheduler_view.placed_members(group.metadata.key) >= group.quorum
        )

    def _is_foreign(self, group: PodGroup) -> bool:
        """Whether all its members are some other scheduler's business."""
        names = {pod.spec.scheduler_name for pod in self._members[group.metadata.key]}
        return bool(names and self._scheduler_view.schedulers) and names.isdisjoint(
            self._scheduler_view.schedulers
        )

    def _latest_update(self, group: PodGroup) -> tuple[ObjectMeta, ConditionUpdate | None]:
        """What is to be said of this very group. What is bound speaks for itself, so that it is
        said even if whoever bound it is no more.
        """
        key, quorum = group.metadata.key, group.quorum
        if sum(bool(pod.spec.node_name) for pod in self._members[key]) >= quorum:
            return group.metadata, ConditionUpdate("True", "Scheduled", "", quorum)
        about, verdict = self._group_updates.get(key, (group.metadata, None))
        return about, verdict if about.uid == group.metadata.uid else None

    def _degraded_update(self, group: PodGroup) -> ConditionUpdate | None:
        """What has changed about a placed gang having all the members that it needs."""
        placed = find_condition(group.status.conditions, POD_GROUP_INITIALLY_SCHEDULED)
        if not group.is_gang or placed is None or placed.status != "True":
            return None
        old = find_condition(group.status.conditions, DEGRADED)
        there = self._scheduler_view.placed_members(group.metadata.key) + self._count_in_phase(
            group, "Succeeded"
        )
        text = f"{there} of {group.quorum} required members have a node or have succeeded"
        if there < group.quorum:
            lost = ConditionUpdate("True", "MembersLost", text)
            return None if old is not None and _matches(old, lost) else lost
        return (
            ConditionUpdate("False", "MembersBack", text) if old and old.status == "True" else None
        )

    def _changed_counts(self, group: PodGroup) -> Object:
        """The counts of members that are to be said anew."""
        if not self._scheduler_view.writes_counts:
            return {}
        status = group.status
        pending, placed = self._count_members(group.metadata.key)
        found = {
            "pendingPods": (status.pending_pods, pending),
            "scheduledPods": (status.scheduled_pods, placed),
            "succeededPods": (status.succeeded_pods, self._count_in_phase(group, "Succeeded")),
            "failedPods": (status.failed_pods, self._count_in_phase(group, "Failed")),
        }
        return {name: new for name, (old, new) in found.items() if new != old}

    def _count_members(self, group: Key) -> tuple[int, int]:
        """How many live members of a group wait for a node, and how many have one."""
        members, placed = self._members[group], self._scheduler_view.placed_members(group)
        alive = sum(not pod.is_terminal and not pod.metadata.deletion_timestamp for pod in members)
        return max(alive - placed, 0), placed

    def _count_in_phase(self, group: PodGroup, phase: str) -> int:
        return sum(pod.status.phase == phase for pod in self._members[group.metadata.key])

    def _condition(self, kind: str, update: ConditionUpdate, old: Condition | None) -> Object:
        since = old.last_transition_time if old and old.status == update.status else None
        return {
            "type": kind, "status": update.status, "reason": update.reason,
            "message": update.message,
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

    def _on_pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None and old is not None:
            self._pod_updates.pop(old.metadata.key, None)
        if old is not None and (new is None or not new.status.nominated_node_name):
            self._voided_nominations.pop(old.metadata.key, None)
        groups = [pod.group for pod in (old, new) if pod is not None]
        for group in dict.fromkeys(groups):
            if group is not None:
                self._group_loop.queue.add_after(group, COUNT_DELAY)

    def _on_group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        if new is None and old is not None:
            self._group_updates.pop(old.metadata.key, None)
        elif new is not None and (old is None or old.spec != new.spec):
            # Its members may have been seen before it, or by another who did not live to tell.
            self._group_loop.queue.add(new.metadata.key)
        elif new is not None:
            # Another who believes to lead may have said otherwise, on a view that was late.
            self._group_loop.queue.add_after(new.metadata.key, COUNT_DELAY)


def _group_updates(update: ConditionUpdate) -> list[tuple[str, ConditionUpdate]]:
    """The same verdict under the two names that a group's condition goes by."""
    if update.is_pending:
        return [(POD_GROUP_SCHEDULED, update)]
    if update.status != "True":
        return [(POD_GROUP_INITIALLY_SCHEDULED, update), (POD_GROUP_SCHEDULED, update)]
    return [
        (said.type, ConditionUpdate(said.status, said.reason, said.message))
        for said in scheduled_conditions(update.quorum)
    ]


def _matches(old: Condition, update: ConditionUpdate) -> bool:
    return (old.status, old.reason, old.message) == (
        update.status, update.reason, update.message,
    )  # fmt: skip


def _is_up_to_date(old: Condition | None, update: ConditionUpdate, judged: ObjectMeta) -> bool:
    """Whether a group says so already, of what it is now, or was placed and says so for ever."""
    if old is None or old.status == "True":
        return old is not None
    return _matches(old, update) and old.observed_generation == judged.generation


def _is_gated(old: Condition, pod: Pod) -> bool:
    """Whether somebody else's word stands: gates were there before we were asked."""
    return old.reason == SCHEDULING_GATED and bool(pod.spec.scheduling_gates)


def _nominated_nodes(pod: Pod) -> list[str]:
    """The node that was promised to a pod which has none yet."""
    node = pod.status.nominated_node_name
    return [node] if node and not pod.spec.node_name else []


class CompositeStatusWriter:
    """Brings the conditions of groups of groups in line with the latest verdicts.

    `placed` tells how many live members of a PodGroup have a node.
    """

    def __init__(
        self,
        client: Client,
        groups: ObjectCache[PodGroup],
        composites: ObjectCache[CompositePodGroup],
        clock: Clock,
        placed_members: Callable[[Key], int],
    ) -> None:
        self._composites, self._clock, self._placed_members = composites, clock, placed_members
        self._child_indexes = composites.index(parents_of), groups.index(parents_of)
        #: The latest verdict about each, and the object as it was judged.
        self._updates: dict[Key, tuple[ObjectMeta, ConditionUpdate]] = {}
        self._loop = StatusPatchLoop(client, self.reconcile, composites)
        composites.subscribe(self._on_composite_changed)
        composites.subscribe(self._on_child_changed)
        groups.subscribe(self._on_child_changed)

    async def run(self) -> None:
        """Report until cancelled."""
        await self._loop.run()

    def report_composite(self, about: ObjectMeta, update: ConditionUpdate) -> None:
        """Say something of a group of groups."""
        if self._updates.get(about.key) != (about, update):
            self._updates[about.key] = about, update
            self._loop.queue.add(about.key)

    def forget_updates(self, groups: Iterable[ObjectMeta]) -> None:
        """These are told to make way: what was said of them holds no more."""
        for meta in groups:
            self._updates.pop(meta.key, None)

    def reconcile(self, key: Key) -> ReconcilePlan:
        """The patch that makes it say what it should, if it does not yet."""
        composite = self._composites.get(key)
        if composite is None:
            self._updates.pop(key, None)
            return ReconcilePlan()
        conditions = [*self._scheduled_condition(composite), *self._disruption_removal(composite)]
        if not conditions:
            return ReconcilePlan()
        meta = composite.metadata
        change: Object = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": {"conditions": conditions},
        }
        return ReconcilePlan([Patch(COMPOSITE_POD_GROUP, key, change, "status", STRATEGIC_PATCH)])

    def _scheduled_condition(self, composite: CompositePodGroup) -> list[Object]:
        """Whether it was placed, if it does not say that yet."""
        about, verdict = self._latest_update(composite)
        old = find_condition(composite.status.conditions, COMPOSITE_INITIALLY_SCHEDULED)
        known = old and (old.status, old.reason, old.message)
        if verdict is None or (old is not None and old.status == "True"):
            return []
        if known == (verdict.status, verdict.reason, verdict.message):
            return []
        since = old.last_transition_time if old and old.status == verdict.status else None
        return [{
            "type": COMPOSITE_INITIALLY_SCHEDULED, "status": verdict.status,
            "reason": verdict.reason, "message": verdict.message,
            "lastTransitionTime": since or timestamp(self._clock.now()),
            "observedGeneration": about.generation,
        }]  # fmt: skip

    def _latest_update(
        self, composite: CompositePodGroup
    ) -> tuple[ObjectMeta, ConditionUpdate | None]:
        """What is to be said of this very one."""
        meta = composite.metadata
        if sum(map(_is_scheduled, self._children(meta.key))) >= composite.quorum:
            return meta, ConditionUpdate("True", "Scheduled", "")
        about, verdict = self._updates.get(meta.key, (meta, None))
        return about, verdict if about.uid == meta.uid else None

    def _disruption_removal(self, composite: CompositePodGroup) -> list[Object]:
        """That it need not make way any more, if it has all that it needs again."""
        told = find_condition(composite.status.conditions, DISRUPTION_TARGET)
        if told is None or not self._has_quorum(composite):
            return []
        return [{"type": DISRUPTION_TARGET, "$patch": "delete"}]

    def _has_quorum(self, group: ChildGroup) -> bool:
        if isinstance(group, PodGroup):
            return self._placed_members(group.metadata.key) >= group.quorum
        return sum(map(self._has_quorum, self._children(group.metadata.key))) >= group.quorum

    def _children(self, key: Key) -> list[ChildGroup]:
        composites, groups = self._child_indexes
        return [*composites[key], *groups[key]]

    def _on_composite_changed(
        self, old: CompositePodGroup | None, new: CompositePodGroup | None
    ) -> None:
        if new is None and old is not None:
            self._updates.pop(old.metadata.key, None)
        elif new is not None and new.metadata.key in self._updates:
            self._loop.queue.add(new.metadata.key)

    def _on_child_changed(self, old: ChildGroup | None, new: ChildGroup | None) -> None:
        """What is above may have something else to say."""
        child = new or old
        for _ in range(MAX_DEPTH):
            above = parents_of(child) if child else ()
            for key in above:
                self._loop.queue.add(key)
            child = self._composites.get(above[0]) if above else None


def _is_scheduled(child: ChildGroup) -> bool:
    kind = (
        POD_GROUP_INITIALLY_SCHEDULED
        if isinstance(child, PodGroup)
        else COMPOSITE_INITIALLY_SCHEDULED
    )
    said = find_condition(child.status.conditions, kind)
    return said is not None and said.status == "True"
