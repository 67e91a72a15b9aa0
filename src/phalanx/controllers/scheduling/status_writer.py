"""Writes scheduling results to the status of pods and PodGroups.

The scheduler reports the latest result of each object; a work queue writes one patch per object,
and only if its status differs. Every patch carries the resourceVersion from which it was computed,
so that a late patch never overwrites newer data. Changes of counts alone wait until the scheduler
is idle, and changes of messages alone are limited (`report_limits.py`).

"Initially scheduled" is a lasting fact: once such a condition is True it stays. It also follows
from bound members, so that it is written even if the scheduler that bound them has crashed. The
DisruptionTarget condition is removed once the group has its quorum again. `group_reports` decides
about Degraded, Preempted and the shortfall of a group, `composite_status_writer` writes the status
of CompositePodGroups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import orjson

from phalanx.api.core import Pod
from phalanx.api.kinds import POD, POD_GROUP, Kind
from phalanx.api.meta import Condition, Key, ObjectMeta, find_condition, timestamp
from phalanx.api.scheduling import (
    DEGRADED,
    DISRUPTION_TARGET,
    POD_GROUP_INITIALLY_SCHEDULED,
    POD_GROUP_SCHEDULED,
    PREEMPTED,
    RESERVED,
    SHORTFALL_ANNOTATION,
    PodGroup,
    scheduled_conditions,
)
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.pod_groups import groups_of
from phalanx.controllers.reconcile_loop import Patch, ReconcilePlan, StatusPatchLoop
from phalanx.controllers.scheduling.group_reports import (
    BINDING_INCOMPLETE,
    GroupReports,
    PresentMembers,
    build_shortfall_patch,
    read_annotated_shortfall,
)
from phalanx.controllers.scheduling.report_limits import MessageLimit
from phalanx.scheduler.shortfall import GroupShortfall

POD_SCHEDULED = "PodScheduled"
SCHEDULING_GATED = "SchedulingGated"
_WORKERS = 8
#: Seconds that a change of members waits for further changes.
COUNT_DELAY = 1.0


@dataclass(frozen=True, slots=True)
class ConditionUpdate:
    """A condition to write; `is_pending` if the entity was not tried yet.

    Without a status, only the nominated node of a pod is written.
    """

    status: str
    reason: str
    message: str
    #: For a placed group: the number of members that it needs.
    quorum: int = 0
    is_pending: bool = False
    #: For a pod: the nominated node, while victims are leaving it or volumes are provisioned.
    nominated_node: str = ""

    def matches(self, old: Condition) -> bool:
        """Whether a condition says the same already."""
        return (old.status, old.reason, old.message) == (self.status, self.reason, self.message)


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """What the scheduler knows before the API shows it, and whether it is busy."""

    #: Returns how many live members of a group have a node, bound or assumed.
    placed_members: Callable[[Key], int]
    is_busy: Callable[[], bool]
    #: Whether the status of a group has member counts.
    has_counts: Callable[[Key], bool] = lambda key: True
    #: The scheduler names for whose pods conditions are written; empty: all.
    schedulers: Collection[str] = ()


class SchedulingStatusWriter:
    """Writes the status of pods and PodGroups."""

    def __init__(
        self,
        client: Client,
        pods: ObjectCache[Pod],
        groups: ObjectCache[PodGroup],
        *,
        clock: Clock,
        scheduler_view: SchedulerView,
    ) -> None:
        self._pods, self._groups = pods, groups
        self._clock, self._scheduler_view = clock, scheduler_view
        self._message_limit = MessageLimit(clock)
        self._members = pods.index(groups_of)
        self._nominated_pods = pods.index(_nominated_nodes)
        #: The latest result by key, with the metadata of the object that was tried.
        self._pod_updates: dict[Key, tuple[ObjectMeta, ConditionUpdate]] = {}
        self._group_updates: dict[Key, tuple[ObjectMeta, ConditionUpdate]] = {}
        self._reports = GroupReports()
        #: The reservations of waiting groups.
        self._reservations: dict[Key, ConditionUpdate] = {}
        #: Uids of pods whose nomination is void, by key.
        self._voided_nominations: dict[Key, str] = {}
        self._pod_loop = StatusPatchLoop(client, self.reconcile_pod, pods, workers=_WORKERS)
        self._group_loop = StatusPatchLoop(client, self.reconcile_group, groups, workers=_WORKERS)
        pods.subscribe(self._on_pod_changed)
        groups.subscribe(self._on_group_changed)

    async def run(self) -> None:
        """Write status until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pod_loop.run())
            group.create_task(self._group_loop.run())

    def report_pod(self, meta: ObjectMeta, update: ConditionUpdate) -> None:
        """Report the result of a pod without a node."""
        self._pod_updates[meta.key] = meta, update
        self._pod_loop.queue.add(meta.key)

    def report_group(self, meta: ObjectMeta, update: ConditionUpdate) -> None:
        """Report the result of a group, unless "scheduled" was reported before."""
        known, last = self._group_updates.get(meta.key, (None, None))
        if known is None or known.uid != meta.uid or last is None or last.status != "True":
            self._group_updates[meta.key] = meta, update
            if update.reason == BINDING_INCOMPLETE:
                self._reports.set_incomplete(meta, update.message)
        self._group_loop.queue.add(meta.key)

    def await_group_version(self, meta: ObjectMeta) -> None:
        """Write a group only once the cache shows this version of it, or a newer one."""
        self._group_loop.await_version(meta.key, meta.resource_version)

    def report_shortfall(self, shortfall: GroupShortfall) -> None:
        """Report what a group lacks after an attempt."""
        group = self._groups.get(shortfall.group.key)
        if group is not None and self._reports.set_shortfall(group, shortfall):
            self._group_loop.queue.add(group.metadata.key)

    def report_preemption(self, group: Key, preemptor: str) -> None:
        """Report that an entity has preempted members of a group."""
        if found := self._groups.get(group):
            self._reports.set_preemptor(found, preemptor)
            self._group_loop.queue.add(group)

    def report_reservations(self, updates: Mapping[Key, ConditionUpdate]) -> None:
        """Report for which groups nodes are reserved; no others have a reservation."""
        before, self._reservations = self._reservations, dict(updates)
        for key in dict.fromkeys((*before, *updates)):
            if before.get(key) != updates.get(key):
                self._group_loop.queue.add(key)

    def group_binding_status(self, group: PodGroup) -> Object:
        """Return the status of a group after its bind, for the GroupBinding.

        Returns {} if the placed members are fewer than the quorum.
        """
        pending, placed = self._count_members(group.metadata.key)
        if placed < group.quorum:
            return {}
        return {
            "desiredPods": _count_desired(group, pending + placed),
            "generation": group.metadata.generation,
            "neededPods": group.quorum,
            "pendingPods": pending,
            "scheduledPods": placed,
        }

    def void_nominations(self, node: str, priority: int) -> None:
        """Void the nominations of a node for pods of lower priority than a pod bound to it."""
        for pod in self._nominated_pods[node]:
            if pod.spec.priority < priority:
                self._voided_nominations[pod.metadata.key] = pod.metadata.uid
                self._pod_loop.queue.add(pod.metadata.key)

    def void_nomination(self, key: Key) -> None:
        """Void the nomination, if there is one, of a pod that cannot be tried any more."""
        pod = self._pods.get(key)
        if pod is not None and pod.status.nominated_node_name:
            self._voided_nominations[key] = pod.metadata.uid
            self._pod_loop.queue.add(key)

    def reconcile_pod(self, key: Key) -> ReconcilePlan:
        """Patch the condition and nomination of a pod that has no node."""
        pod = self._pods.get(key)
        if pod is None or pod.spec.node_name:
            self._pod_updates.pop(key, None)
            return ReconcilePlan()
        tried, update = self._pod_updates.get(key, (None, None))
        if tried is None or tried.uid != pod.metadata.uid:
            update = None
        conditions = self._pod_condition(pod, update) if update and update.status else []
        nomination = self._nomination_patch(pod, update)
        if not conditions and not nomination:
            return ReconcilePlan()
        if not nomination and (wait := self._message_delay(pod, conditions)):
            return ReconcilePlan(requeue_after=wait)
        return ReconcilePlan([self._patch(POD, pod, conditions, fields=nomination)])

    def _message_delay(self, obj: Pod | PodGroup, conditions: list[Object]) -> float:
        return self._message_limit.delay(obj.metadata.uid, obj.status.conditions, conditions)

    def _pod_condition(self, pod: Pod, update: ConditionUpdate) -> list[Object]:
        """Return the PodScheduled condition of a pod if it has changed."""
        old = find_condition(pod.status.conditions, POD_SCHEDULED)
        # The server's condition about scheduling gates stays while the pod has gates.
        is_gated = old and old.reason == SCHEDULING_GATED and pod.spec.scheduling_gates
        if old is not None and (update.matches(old) or is_gated):
            return []
        return [{**self._condition(POD_SCHEDULED, update, old), "lastProbeTime": None}]

    def _nomination_patch(self, pod: Pod, update: ConditionUpdate | None) -> Object:
        """Return the change of nominatedNodeName, if any.

        The nomination ends if the last attempt nominated no node, or if a pod of higher priority
        was bound to the node.
        """
        current = desired = pod.status.nominated_node_name
        if update is not None and not update.is_pending:
            desired = update.nominated_node
        if self._voided_nominations.get(pod.metadata.key) == pod.metadata.uid:
            desired = ""
        return {"nominatedNodeName": desired or None} if desired != current else {}

    def reconcile_group(self, key: Key) -> ReconcilePlan:
        """Patch the conditions and counts of a group."""
        group = self._groups.get(key)
        if group is None:
            self._forget_group(key)
            return ReconcilePlan()
        conditions, counts = self._conditions(group), self._changed_counts(group)
        wait = self._message_delay(group, conditions) if conditions else 0.0
        if wait:
            conditions = []
        counts |= self._count_preemption(group, conditions)
        if not conditions and counts and self._scheduler_view.is_busy():
            return ReconcilePlan(requeue_after=COUNT_DELAY)
        if not conditions:
            self._reports.see_members(key, self._present_members(group))
        plan = self._plan_shortfall(group, conditions, counts)
        if plan is not None:
            return plan
        if not conditions and not counts:
            return ReconcilePlan(requeue_after=wait or None)
        patch = self._patch(POD_GROUP, group, conditions, fields=counts)
        return ReconcilePlan([patch], requeue_after=wait or None)

    def _plan_shortfall(
        self, group: PodGroup, conditions: list[Object], counts: Object
    ) -> ReconcilePlan | None:
        """Plan the patch of a changed shortfall, with the other changes; None without a change.

        A server that keeps no counts keeps it in an annotation, which has a patch of its own.
        """
        key = group.metadata.key
        is_annotated = not self._scheduler_view.has_counts(key)
        written = read_annotated_shortfall(group) if is_annotated else group.status.shortfall or {}
        desired = self._reports.find_shortfall(group, written, has_quorum=self._has_quorum(group))
        if desired == written or self._is_foreign(group) or (is_annotated and conditions):
            return None
        now = self._clock.now()
        are_numbers = bool(written and desired) and not (conditions or counts)
        if are_numbers and (delay := self._reports.delay_shortfall(key, now)):
            return ReconcilePlan(requeue_after=delay)
        self._reports.record_shortfall_write(key, now)
        if is_annotated:
            text = orjson.dumps(desired).decode() if desired else None
            meta = {"uid": group.metadata.uid, "annotations": {SHORTFALL_ANNOTATION: text}}
            return ReconcilePlan([Patch(POD_GROUP, key, {"metadata": meta})])
        fields = {**counts, "shortfall": build_shortfall_patch(written, desired)}
        return ReconcilePlan([self._patch(POD_GROUP, group, conditions, fields=fields)])

    def _conditions(self, group: PodGroup) -> list[Object]:
        """Return the changed conditions of a group; none if all its pods have other schedulers."""
        if self._is_foreign(group):
            return []
        tried, update = self._latest_update(group)
        updates = (
            [(kind, tried, change) for kind, change in _group_updates(update)] if update else []
        )
        if degraded := self._reports.change_degraded(group, self._present_members(group)):
            updates.append((DEGRADED, group.metadata, ConditionUpdate(*degraded)))
        if reserved := self._reserved_update(group):
            updates.append((RESERVED, group.metadata, reserved))
        current, changes = group.status.conditions, list[Object]()
        if self._has_quorum(group):
            self._reports.end_preemption(group.metadata.key)
            changes += [
                {"type": kind, "$patch": "delete"}
                for kind in (DISRUPTION_TARGET, PREEMPTED)
                if find_condition(current, kind)
            ]
        elif preempted := self._reports.change_preempted(group):
            updates.append((PREEMPTED, group.metadata, ConditionUpdate(*preempted)))
        for kind, meta, change in updates:
            old = find_condition(current, kind)
            if kind in (DEGRADED, PREEMPTED, RESERVED) or not _is_up_to_date(old, change, meta):
                condition = self._condition(kind, change, old)
                changes.append(condition | {"observedGeneration": meta.generation})
        return changes

    def _has_quorum(self, group: PodGroup) -> bool:
        return self._scheduler_view.placed_members(group.metadata.key) >= group.quorum

    def _is_foreign(self, group: PodGroup) -> bool:
        """Whether all members of a group name other schedulers."""
        names = {pod.spec.scheduler_name for pod in self._members[group.metadata.key]}
        return bool(names and self._scheduler_view.schedulers) and names.isdisjoint(
            self._scheduler_view.schedulers
        )

    def _latest_update(self, group: PodGroup) -> tuple[ObjectMeta, ConditionUpdate | None]:
        """Return the latest result of a group.

        A group with enough bound members is scheduled, even if no result was reported here.
        """
        key, quorum = group.metadata.key, group.quorum
        if sum(bool(pod.spec.node_name) for pod in self._members[key]) >= quorum:
            return group.metadata, ConditionUpdate("True", "Scheduled", "", quorum=quorum)
        tried, update = self._group_updates.get(key, (group.metadata, None))
        return tried, update if tried.uid == group.metadata.uid else None

    def _present_members(self, group: PodGroup) -> PresentMembers:
        placed = self._scheduler_view.placed_members(group.metadata.key)
        return PresentMembers(placed, self._count_in_phase(group, "Succeeded"))

    def _reserved_update(self, group: PodGroup) -> ConditionUpdate | None:
        """Return the changed Reserved condition; a group that never had one gets no False."""
        old = find_condition(group.status.conditions, RESERVED)
        update = self._reservations.get(group.metadata.key)
        if update is None:
            if old is None or old.status != "True":
                return None
            is_started = self._has_quorum(group)
            reason = "Started" if is_started else "Dropped"
            return ConditionUpdate("False", reason, "no nodes are reserved any more")
        return None if old is not None and update.matches(old) else update

    def _changed_counts(self, group: PodGroup) -> Object:
        """Return the changed member counts of a group."""
        if not self._scheduler_view.has_counts(group.metadata.key):
            return {}
        status = group.status
        pending, placed = self._count_members(group.metadata.key)
        counts = {
            "pendingPods": (status.pending_pods, pending),
            "scheduledPods": (status.scheduled_pods, placed),
            "succeededPods": (status.succeeded_pods, self._count_in_phase(group, "Succeeded")),
            "failedPods": (status.failed_pods, self._count_in_phase(group, "Failed")),
            "desiredPods": (status.desired_pods, _count_desired(group, pending + placed)),
            "readyPods": (status.ready_pods, self._count_ready(group)),
        }
        return {name: new for name, (old, new) in counts.items() if new != old}

    def _count_preemption(self, group: PodGroup, conditions: list[Object]) -> Object:
        """Return the count of preemptions, if the conditions to be written begin another one."""
        if not self._scheduler_view.has_counts(group.metadata.key):
            return {}
        old = find_condition(group.status.conditions, PREEMPTED)
        was_preempted = old is not None and old.status == "True"
        is_preempted = any(one.get("status") for one in conditions if one["type"] == PREEMPTED)
        is_new = is_preempted and not was_preempted
        return {"preemptions": group.status.preemptions + 1} if is_new else {}

    def _count_members(self, group: Key) -> tuple[int, int]:
        """Return how many live members of a group wait for a node, and how many have one."""
        members, placed = self._members[group], self._scheduler_view.placed_members(group)
        alive = sum(not pod.is_terminal and not pod.metadata.deletion_timestamp for pod in members)
        return max(alive - placed, 0), placed

    def _count_ready(self, group: PodGroup) -> int:
        return sum(
            pod.is_ready and not pod.is_terminal and not pod.metadata.deletion_timestamp
            for pod in self._members[group.metadata.key]
        )

    def _count_in_phase(self, group: PodGroup, phase: str) -> int:
        return sum(pod.status.phase == phase for pod in self._members[group.metadata.key])

    def _condition(self, kind: str, update: ConditionUpdate, old: Condition | None) -> Object:
        since = old.last_transition_time if old and old.status == update.status else None
        return {
            "type": kind,
            "status": update.status,
            "reason": update.reason,
            "message": update.message,
            "lastTransitionTime": since or timestamp(self._clock.now()),
        }

    def _patch(
        self, kind: Kind, obj: Pod | PodGroup, conditions: list[Object], *, fields: Object
    ) -> Patch:
        meta = obj.metadata
        status = {"conditions": conditions} if conditions else {}
        change = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": status | fields,
        }
        return Patch(kind, meta.key, change, subresource="status", content=STRATEGIC_PATCH)

    def _on_pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None and old is not None:
            self._pod_updates.pop(old.metadata.key, None)
        if old is not None and (new is None or not new.status.nominated_node_name):
            self._voided_nominations.pop(old.metadata.key, None)
        before = old.group if old is not None else None
        after = new.group if new is not None else None
        for group in (after,) if before == after else (before, after):
            if group is not None:
                self._group_loop.queue.add_after(group, COUNT_DELAY)

    def _on_group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        if new is None and old is not None:
            self._forget_group(old.metadata.key)
        elif new is not None and (old is None or old.spec != new.spec):
            # Members may have arrived before the group, or been bound by a scheduler that crashed.
            self._group_loop.queue.add(new.metadata.key)
        elif new is not None:
            # Another scheduler may have written a result from a stale cache.
            self._group_loop.queue.add_after(new.metadata.key, COUNT_DELAY)

    def _forget_group(self, key: Key) -> None:
        self._group_updates.pop(key, None)
        self._reports.forget(key)


def _count_desired(group: PodGroup, alive: int) -> int:
    """Return how many members a group should have: its live ones, and at least its quorum.

    0 until it has members: a new group needs no write for that.
    """
    if group.is_finished or not (alive or group.status.desired_pods):
        return 0
    return max(alive, group.quorum if group.is_gang else 0)


def _group_updates(update: ConditionUpdate) -> list[tuple[str, ConditionUpdate]]:
    """Return the conditions that express a result, by type."""
    if update.is_pending:
        return [(POD_GROUP_SCHEDULED, update)]
    if update.status != "True":
        return [(POD_GROUP_INITIALLY_SCHEDULED, update), (POD_GROUP_SCHEDULED, update)]
    return [
        (condition.type, ConditionUpdate(condition.status, condition.reason, condition.message))
        for condition in scheduled_conditions(update.quorum)
    ]


def _is_up_to_date(old: Condition | None, update: ConditionUpdate, tried: ObjectMeta) -> bool:
    """Whether a condition matches for this generation, or is True and therefore stays."""
    if old is None or old.status == "True":
        return old is not None
    return update.matches(old) and old.observed_generation == tried.generation


def _nominated_nodes(pod: Pod) -> list[str]:
    """Return the nominated node of a pod that has no node yet."""
    node = pod.status.nominated_node_name
    return [node] if node and not pod.spec.node_name else []
