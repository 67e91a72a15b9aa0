"""CompositePodGroups: what their children come to is said of them, and they go after those.

    pods ─▶ status of PodGroups (`shell/reporter.py`) ─▶ status of their parents ─▶ … ─▶ of the root

Each level is made of the one below as the API shows it, so that news climb by themselves. Whether a
composite group was placed is the scheduler's to say; this loop counts. One that is protected by our
finalizer stays while it has a child. Never puts a finalizer on, never touches a child.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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

#: Seconds that a change of a child waits for others to come.
CHILD_CHANGE_DELAY = 1.0
_WORKERS = 4

ChildGroup = PodGroup | CompositePodGroup


class ChildTotals(NamedTuple):
    """What the children of a composite group come to, in the order of `_FIELDS`."""

    pending_groups: int
    scheduled_groups: int
    pending_pods: int
    scheduled_pods: int
    succeeded_pods: int
    failed_pods: int


_FIELDS = (
    "pendingGroups", "scheduledGroups", "pendingPods", "scheduledPods", "succeededPods",
    "failedPods",
)  # fmt: skip


class CompositeGroups:
    """Keeps counts and `Degraded` of composite groups true, and lets go of those that are done."""

    def __init__(self, client: Client, informers: Informers, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._composites = informers.of(COMPOSITE_POD_GROUP, CompositePodGroup).cache
        groups = informers.of(POD_GROUP, PodGroup).cache
        self._child_indexes = self._composites.index(parents_of), groups.index(parents_of)
        self._loop: ReconcileLoop[Key] = ReconcileLoop(
            client, self.reconcile, _WORKERS, confirm=self._confirm_childless
        )
        self._composites.subscribe(self._on_composite_changed)
        groups.subscribe(self._on_child_changed)

    async def run(self) -> None:
        """Count until cancelled."""
        await self._loop.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """The patch that makes a composite group say how it is, or lets it go."""
        composite = self._composites.get(key)
        if composite is None:
            return ReconcilePlan()
        children = self._children(key)
        if _is_terminating(composite):
            return ReconcilePlan() if children else ReconcilePlan([_remove_finalizer(composite)])
        found = sum_children(children)
        said = _changed_counts(composite, found) | self._degraded_patch(composite, found)
        return ReconcilePlan([_status_patch(composite, said)] if said else ())

    def _children(self, key: Key) -> list[ChildGroup]:
        composites, groups = self._child_indexes
        return [*composites[key], *groups[key]]

    async def _confirm_childless(self, key: Key) -> bool:
        """That somebody has no child is only believed if the API says so."""
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

    def _degraded_patch(self, composite: CompositePodGroup, found: ChildTotals) -> Object:
        """What has changed about a placed composite group having all children that it needs."""
        conditions, meta = composite.status.conditions, composite.metadata
        placed = find_condition(conditions, COMPOSITE_INITIALLY_SCHEDULED)
        old = find_condition(conditions, DEGRADED)
        if placed is None or placed.status != "True":
            return {}
        whole, quorum = found.scheduled_groups, composite.quorum
        text = f"{whole} of {quorum} required groups have all the members that they need"
        status, reason = ("True", "GroupsLost") if whole < quorum else ("False", "GroupsBack")
        was = old.status if old else "False"
        if status == was and (status == "False" or (old is not None and old.message == text)):
            return {}
        since = old.last_transition_time if old and status == was else None
        return {
            "conditions": [{
                "type": DEGRADED, "status": status, "reason": reason, "message": text,
                "lastTransitionTime": since or timestamp(self._clock.now()),
                "observedGeneration": meta.generation,
            }],
        }  # fmt: skip

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
    """The composite group that a group belongs to, if any: by this loops share one index."""
    name = child.spec.parent_composite_pod_group_name
    return (Key(child.metadata.namespace, name),) if name else ()


def sum_children(children: Sequence[ChildGroup]) -> ChildTotals:
    """What children come to: a group is scheduled while it has all the members that it needs."""
    whole = sum(has_quorum(child) for child in children)
    pods = [
        (s.pending_pods, s.scheduled_pods, s.succeeded_pods, s.failed_pods)
        for s in (child.status for child in children)
    ]
    totals = (sum(column) for column in zip((0, 0, 0, 0), *pods, strict=True))
    return ChildTotals(len(children) - whole, whole, *totals)


def has_quorum(child: ChildGroup) -> bool:
    """Whether a child has what it needs: children of its own, or members since it was placed."""
    if isinstance(child, CompositePodGroup):
        return child.status.scheduled_groups >= child.quorum
    said = child.status.conditions
    placed, degraded = (
        find_condition(said, POD_GROUP_INITIALLY_SCHEDULED),
        find_condition(said, DEGRADED),
    )
    is_placed = placed is not None and placed.status == "True"
    return is_placed and (degraded is None or degraded.status != "True")


def _changed_counts(composite: CompositePodGroup, found: ChildTotals) -> Object:
    """The counts that are to be said anew."""
    status = composite.status
    said = ChildTotals(
        status.pending_groups, status.scheduled_groups, status.pending_pods,
        status.scheduled_pods, status.succeeded_pods, status.failed_pods,
    )  # fmt: skip
    rows = zip(_FIELDS, said, found, strict=True)
    return {name: new for name, old, new in rows if new != old}


def _is_terminating(composite: CompositePodGroup) -> bool:
    meta = composite.metadata
    return bool(meta.deletion_timestamp) and POD_GROUP_PROTECTION_FINALIZER in meta.finalizers


def _remove_finalizer(composite: CompositePodGroup) -> Patch:
    meta = composite.metadata
    kept = [name for name in meta.finalizers if name != POD_GROUP_PROTECTION_FINALIZER]
    # With its version: a finalizer that somebody adds meanwhile must not be lost.
    change = {"uid": meta.uid, "finalizers": kept, "resourceVersion": meta.resource_version}
    return Patch(COMPOSITE_POD_GROUP, meta.key, {"metadata": change})


def _status_patch(composite: CompositePodGroup, said: Object) -> Patch:
    meta = composite.metadata
    known = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    return Patch(
        COMPOSITE_POD_GROUP, meta.key, {"metadata": known, "status": said}, "status",
        STRATEGIC_PATCH,
    )  # fmt: skip
