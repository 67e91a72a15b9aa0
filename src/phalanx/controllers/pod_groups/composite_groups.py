"""The CompositePodGroup controller: counts and Degraded condition from the status of children.

    pods ─▶ status of PodGroups (`scheduling/status_writer.py`) ─▶ status of parents ─▶ … ─▶ root

Each level is computed from the one below as the API shows it, so that changes propagate upwards by
events. The scheduler writes whether a composite group was scheduled; this controller only counts. A
deleted composite group with our finalizer stays while it has a child. The controller never adds a
finalizer and never writes a child.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from phalanx import logs
from phalanx.api.kinds import COMPOSITE_POD_GROUP, POD_GROUP
from phalanx.api.meta import Key, find_condition, timestamp
from phalanx.api.scheduling import (
    COMPOSITE_INITIALLY_SCHEDULED,
    DEGRADED,
    POD_GROUP_INITIALLY_SCHEDULED,
    POD_GROUP_PROTECTION_FINALIZER,
    CompositePodGroup,
    PodGroup,
)
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.reconcile_loop import Informers, Patch, ReconcileLoop, ReconcilePlan

LOG = logs.component("composite-group-controller")

#: Seconds that a change of a child waits for further changes.
CHILD_CHANGE_DELAY = 1.0
_WORKERS = 4

ChildGroup = PodGroup | CompositePodGroup


class ChildTotals(NamedTuple):
    """The summed status of the children of a composite group, in the order of `_FIELDS`."""

    pending_groups: int
    scheduled_groups: int
    pending_pods: int
    scheduled_pods: int
    succeeded_pods: int
    failed_pods: int


_FIELDS = (
    "pendingGroups",
    "scheduledGroups",
    "pendingPods",
    "scheduledPods",
    "succeededPods",
    "failedPods",
)


class CompositeGroups:
    """Writes counts and the Degraded condition, and removes the finalizer of deleted groups."""

    def __init__(self, client: Client, informers: Informers, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._composites = informers.of(CompositePodGroup).cache
        groups = informers.of(PodGroup).cache
        self._child_indexes = self._composites.index(parents_of), groups.index(parents_of)
        self._loop: ReconcileLoop[Key] = ReconcileLoop(
            client, self.reconcile, _WORKERS, confirm=self._confirm_childless
        )
        self._composites.subscribe(self._on_composite_changed)
        groups.subscribe(self._on_child_changed)

    async def run(self) -> None:
        """Reconcile composite groups until cancelled."""
        await self._loop.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Patch the status of a composite group, or remove its finalizer."""
        composite = self._composites.get(key)
        if composite is None:
            return ReconcilePlan()
        composites, groups = self._child_indexes
        children: list[ChildGroup] = [*composites[key], *groups[key]]
        if _is_terminating(composite):
            return ReconcilePlan() if children else ReconcilePlan([_remove_finalizer(composite)])
        totals = sum_children(children)
        status = _changed_counts(composite, totals) | self._degraded_patch(composite, totals)
        return ReconcilePlan([_status_patch(composite, status)] if status else ())

    async def _confirm_childless(self, key: Key) -> bool:
        """Whether a deleted group has no child according to the API; the cache may be stale."""
        composite = self._composites.get(key)
        if composite is None or not _is_terminating(composite):
            return True
        groups = await self._client.list(POD_GROUP, PodGroup, namespace=key.namespace)
        if any(key in parents_of(group) for group in groups.items):
            return False
        composites = await self._client.list(
            COMPOSITE_POD_GROUP, CompositePodGroup, namespace=key.namespace
        )
        return not any(key in parents_of(one) for one in composites.items)

    def _degraded_patch(self, composite: CompositePodGroup, totals: ChildTotals) -> Object:
        """Return the changed Degraded condition of a group that was scheduled before."""
        conditions, meta = composite.status.conditions, composite.metadata
        placed = find_condition(conditions, COMPOSITE_INITIALLY_SCHEDULED)
        old = find_condition(conditions, DEGRADED)
        if placed is None or placed.status != "True":
            return {}
        scheduled, quorum = totals.scheduled_groups, composite.quorum
        message = f"{scheduled} of {quorum} required groups have all the members that they need"
        status, reason = ("True", "GroupsLost") if scheduled < quorum else ("False", "GroupsBack")
        was = old.status if old else "False"
        if status == was and (status == "False" or (old is not None and old.message == message)):
            return {}
        if status != was:
            LOG.info(
                "CompositePodGroup degraded" if status == "True" else "CompositePodGroup restored",
                kind="CompositePodGroup",
                key=meta.key,
                reason=message,
            )
        since = old.last_transition_time if old and status == was else None
        condition = {
            "type": DEGRADED,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": since or timestamp(self._clock.now()),
            "observedGeneration": meta.generation,
        }
        return {"conditions": [condition]}

    def _on_composite_changed(
        self, old: CompositePodGroup | None, new: CompositePodGroup | None
    ) -> None:
        if new is not None:
            self._loop.queue.add(new.metadata.key)
        self._on_child_changed(old, new)

    def _on_child_changed(self, old: ChildGroup | None, new: ChildGroup | None) -> None:
        for child in (old, new):
            for parent in parents_of(child) if child is not None else ():
                self._loop.queue.add_after(parent, CHILD_CHANGE_DELAY)


def parents_of(child: ChildGroup) -> Sequence[Key]:
    """Return the parent of a group: the index function that controllers share."""
    name = child.spec.parent_composite_pod_group_name
    return (Key(child.metadata.namespace, name),) if name else ()


def sum_children(children: Sequence[ChildGroup]) -> ChildTotals:
    """Sum the status of children; a child is scheduled while it has all members that it needs."""
    scheduled = sum(has_quorum(child) for child in children)
    pods = [
        (status.pending_pods, status.scheduled_pods, status.succeeded_pods, status.failed_pods)
        for status in (child.status for child in children)
    ]
    totals = (sum(column) for column in zip((0, 0, 0, 0), *pods, strict=True))
    return ChildTotals(len(children) - scheduled, scheduled, *totals)


def has_quorum(child: ChildGroup) -> bool:
    """Whether a child has all scheduled children or members that it needs."""
    if isinstance(child, CompositePodGroup):
        return child.status.scheduled_groups >= child.quorum
    conditions = child.status.conditions
    scheduled = find_condition(conditions, POD_GROUP_INITIALLY_SCHEDULED)
    degraded = find_condition(conditions, DEGRADED)
    is_scheduled = scheduled is not None and scheduled.status == "True"
    return is_scheduled and (degraded is None or degraded.status != "True")


def _changed_counts(composite: CompositePodGroup, totals: ChildTotals) -> Object:
    status = composite.status
    current = (
        status.pending_groups,
        status.scheduled_groups,
        status.pending_pods,
        status.scheduled_pods,
        status.succeeded_pods,
        status.failed_pods,
    )
    rows = zip(_FIELDS, current, totals, strict=True)
    return {name: new for name, old, new in rows if new != old}


def _is_terminating(composite: CompositePodGroup) -> bool:
    meta = composite.metadata
    return bool(meta.deletion_timestamp) and POD_GROUP_PROTECTION_FINALIZER in meta.finalizers


def _remove_finalizer(composite: CompositePodGroup) -> Patch:
    meta = composite.metadata
    kept = [name for name in meta.finalizers if name != POD_GROUP_PROTECTION_FINALIZER]
    # With the resourceVersion: the patch must not drop a finalizer that another client adds.
    change = {"uid": meta.uid, "finalizers": kept, "resourceVersion": meta.resource_version}
    return Patch(COMPOSITE_POD_GROUP, meta.key, {"metadata": change})


def _status_patch(composite: CompositePodGroup, status: Object) -> Patch:
    meta = composite.metadata
    change = {
        "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
        "status": status,
    }
    return Patch(
        COMPOSITE_POD_GROUP, meta.key, change, subresource="status", content=STRATEGIC_PATCH
    )
