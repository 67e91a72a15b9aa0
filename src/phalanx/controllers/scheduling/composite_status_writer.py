"""Writes scheduling results to the status of CompositePodGroups.

"Initially scheduled" stays True once it is. It also follows from scheduled child groups, so that it
is written even if the scheduler that bound their members has crashed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from phalanx.api.kinds import COMPOSITE_POD_GROUP
from phalanx.api.meta import Key, ObjectMeta, find_condition, timestamp
from phalanx.api.scheduling import (
    COMPOSITE_INITIALLY_SCHEDULED,
    DISRUPTION_TARGET,
    POD_GROUP_INITIALLY_SCHEDULED,
    CompositePodGroup,
    PodGroup,
)
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.pod_groups import ChildGroup, parents_of
from phalanx.controllers.reconcile_loop import Patch, ReconcilePlan, StatusPatchLoop
from phalanx.controllers.scheduling.report_limits import MessageLimit
from phalanx.controllers.scheduling.status_writer import ConditionUpdate
from phalanx.scheduler.cluster.group_tree import MAX_DEPTH


class CompositeStatusWriter:
    """Writes the conditions of CompositePodGroups.

    `placed_members` returns how many live members of a PodGroup have a node.
    """

    def __init__(
        self,
        client: Client,
        groups: ObjectCache[PodGroup],
        composites: ObjectCache[CompositePodGroup],
        *,
        clock: Clock,
        placed_members: Callable[[Key], int],
    ) -> None:
        self._composites, self._clock, self._placed_members = composites, clock, placed_members
        self._message_limit = MessageLimit(clock)
        self._child_indexes = composites.index(parents_of), groups.index(parents_of)
        #: The latest result by key, with the metadata of the object that was tried.
        self._updates: dict[Key, tuple[ObjectMeta, ConditionUpdate]] = {}
        self._loop = StatusPatchLoop(client, self.reconcile, composites)
        composites.subscribe(self._on_composite_changed)
        composites.subscribe(self._on_child_changed)
        groups.subscribe(self._on_child_changed)

    async def run(self) -> None:
        """Write status until cancelled."""
        await self._loop.run()

    def report_composite(self, meta: ObjectMeta, update: ConditionUpdate) -> None:
        """Report the result of a CompositePodGroup."""
        if self._updates.get(meta.key) != (meta, update):
            self._updates[meta.key] = meta, update
            self._loop.queue.add(meta.key)

    def forget_updates(self, groups: Iterable[ObjectMeta]) -> None:
        """Forget the results of groups that are being preempted."""
        for meta in groups:
            self._updates.pop(meta.key, None)

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Patch the conditions of a CompositePodGroup."""
        composite = self._composites.get(key)
        if composite is None:
            self._updates.pop(key, None)
            return ReconcilePlan()
        conditions = self._scheduled_condition(composite)
        is_disrupted = find_condition(composite.status.conditions, DISRUPTION_TARGET) is not None
        if is_disrupted and self._has_quorum(composite):
            conditions.append({"type": DISRUPTION_TARGET, "$patch": "delete"})
        if not conditions:
            return ReconcilePlan()
        meta = composite.metadata
        wait = self._message_limit.delay(meta.uid, composite.status.conditions, conditions)
        if wait:
            return ReconcilePlan(requeue_after=wait)
        change: Object = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": {"conditions": conditions},
        }
        patch = Patch(
            COMPOSITE_POD_GROUP, key, change, subresource="status", content=STRATEGIC_PATCH
        )
        return ReconcilePlan([patch])

    def _scheduled_condition(self, composite: CompositePodGroup) -> list[Object]:
        """Return the InitiallyScheduled condition if it has changed; once True it stays."""
        tried, update = self._latest_update(composite)
        old = find_condition(composite.status.conditions, COMPOSITE_INITIALLY_SCHEDULED)
        if update is None or (old and (old.status == "True" or update.matches(old))):
            return []
        since = old.last_transition_time if old and old.status == update.status else None
        condition = {
            "type": COMPOSITE_INITIALLY_SCHEDULED,
            "status": update.status,
            "reason": update.reason,
            "message": update.message,
            "lastTransitionTime": since or timestamp(self._clock.now()),
            "observedGeneration": tried.generation,
        }
        return [condition]

    def _latest_update(
        self, composite: CompositePodGroup
    ) -> tuple[ObjectMeta, ConditionUpdate | None]:
        """Return the latest result; with enough scheduled children it is "scheduled"."""
        meta = composite.metadata
        if sum(map(_is_scheduled, self._children(meta.key))) >= composite.quorum:
            return meta, ConditionUpdate("True", "Scheduled", "")
        tried, update = self._updates.get(meta.key, (meta, None))
        return tried, update if tried.uid == meta.uid else None

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
        """Queue all ancestors of a changed group."""
        child = new or old
        for _ in range(MAX_DEPTH):
            parents = parents_of(child) if child else ()
            for key in parents:
                self._loop.queue.add(key)
            child = self._composites.get(parents[0]) if parents else None


def _is_scheduled(child: ChildGroup) -> bool:
    is_group = isinstance(child, PodGroup)
    kind = POD_GROUP_INITIALLY_SCHEDULED if is_group else COMPOSITE_INITIALLY_SCHEDULED
    condition = find_condition(child.status.conditions, kind)
    return condition is not None and condition.status == "True"
