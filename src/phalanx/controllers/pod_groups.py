"""Controllers of PodGroups and CompositePodGroups: protection, composite status, replica groups.

`PodGroupProtection`: a deleted PodGroup stays while a live pod refers to it. Admission adds a
finalizer to every new group; the controller removes it once the group is deleted and has no live
member. A group that is first seen without the finalizer was created before, or by a server without
that admission, and gets it here. A finalizer that a user removes later is not added again.

`CompositeGroups`: counts and Degraded condition from the status of children.

    pods ─▶ status of PodGroups (`scheduling/status_writer.py`) ─▶ status of parents ─▶ … ─▶ root

Each level is computed from the one below as the API shows it, so that changes propagate upwards by
events. The scheduler writes whether a composite group was scheduled; this controller only counts. A
deleted composite group with our finalizer stays while it has a child. The controller never adds a
finalizer and never writes a child.

`ReplicaGroups`: creates PodGroups for pods that name a Workload template. Pods of the old API form
name a Workload, a template in it and a replica, but no group. They are stored with the name of
their future group and two annotations (`api/conversion/workload_references.py`), from which the
controller creates the group. The Workload owns the group. A missing Workload or template is waited
for.

`inherit_preemption_policy` completes a new PodGroup for all controllers that create groups: the
server computes its priority, but accepts a priority class that never preempts only from a group
with the same preemption policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from phalanx import logs
from phalanx.api.conversion.workload_references import (
    TEMPLATE_ANNOTATION,
    WORKLOAD_ANNOTATION,
    is_replica_group,
)
from phalanx.api.core import TERMINAL_PHASES, Pod
from phalanx.api.errors import NotFound
from phalanx.api.kinds import COMPOSITE_POD_GROUP, POD, POD_GROUP, PRIORITY_CLASS, WORKLOAD
from phalanx.api.meta import Key, Ref, find_condition, pod_group_ref, timestamp
from phalanx.api.scheduling import (
    COMPOSITE_INITIALLY_SCHEDULED,
    DEGRADED,
    POD_GROUP_INITIALLY_SCHEDULED,
    POD_GROUP_PROTECTION_FINALIZER,
    PRIORITY_FROM_MEMBERS_ANNOTATION,
    SYSTEM_PRIORITY_CLASSES,
    CompositePodGroup,
    PodGroup,
)
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.builder.groups import new_pod_group
from phalanx.builder.ownership import owner_reference
from phalanx.client.client import Client
from phalanx.client.protocol import HasMetadata
from phalanx.client.work_queue import WorkQueue
from phalanx.clock import Clock
from phalanx.controllers.reconcile_loop import (
    CountDelay,
    Create,
    Informers,
    Patch,
    ReconcileLoop,
    ReconcilePlan,
    new_work_queue,
    perform,
    run_workers,
    treat_conflict_as_stale,
)

_COMPOSITE_LOG = logs.component("composite-group-controller")
_REPLICA_LOG = logs.component("replica-group-controller")

#: Seconds that a change of a child waits for further changes.
CHILD_CHANGE_DELAY = 1.0
_COMPOSITE_WORKERS = 4

ChildGroup = PodGroup | CompositePodGroup
_POLICY = "preemptionPolicy"


def groups_of(pod: Pod) -> Sequence[Key]:
    """Return the group of a pod: the index function that controllers share."""
    group = pod.group
    return (group,) if group else ()


# ---- protection ----------------------------------------------------------------------------------


class PodGroupProtection:
    """Adds and removes the protection finalizer of PodGroups."""

    def __init__(self, client: Client, informers: Informers) -> None:
        self._groups = informers.of(PodGroup).cache
        pods = informers.of(Pod).cache
        self._members = pods.index(groups_of)
        self._client, self._informers = client, informers
        self._queue: WorkQueue[Key] = new_work_queue(client, "podgroup_protection")
        self._groups.subscribe(self._on_group_changed)
        pods.subscribe(self._on_pod_changed)

    async def run(self) -> None:
        """Reconcile groups until cancelled."""
        await run_workers(self._queue, self._reconcile_confirmed)

    async def _reconcile_confirmed(self, key: Key) -> None:
        """Reconcile a group; the API itself must confirm that a deleted group has no members."""
        plan, group = self.reconcile(key), self._groups.get(key)
        is_terminating = group is not None and _is_terminating(group)
        if plan.actions and is_terminating and await self._informers.has_live_members(key):
            return
        for action in plan.actions:
            await perform(self._client, action)

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Remove the finalizer of a deleted group without live members; add a missing one."""
        group = self._groups.get(key)
        if group is None:
            return ReconcilePlan()
        finalizers = group.metadata.finalizers
        if _lacks_finalizer(group):
            return _set_finalizers(group, [*finalizers, POD_GROUP_PROTECTION_FINALIZER])
        if not _is_terminating(group) or any(not pod.is_terminal for pod in self._members[key]):
            return ReconcilePlan()
        return _set_finalizers(
            group, [name for name in finalizers if name != POD_GROUP_PROTECTION_FINALIZER]
        )

    def _on_group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        if new is not None and (_is_terminating(new) or (old is None and _lacks_finalizer(new))):
            self._queue.add(new.metadata.key)

    def _on_pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        before = old.group if old is not None else None
        after = new.group if new is not None else None
        for key in (after,) if before == after else (before, after):
            group = self._groups.get(key) if key is not None else None
            if key is not None and group is not None and _is_terminating(group):
                self._queue.add(key)


def _set_finalizers(group: PodGroup, finalizers: Sequence[str]) -> ReconcilePlan:
    meta = group.metadata
    # With the resourceVersion: the patch must not drop a finalizer that another client adds.
    change = {"finalizers": list(finalizers), "resourceVersion": meta.resource_version}
    return ReconcilePlan([Patch(POD_GROUP, meta.key, {"metadata": change})])


def _lacks_finalizer(group: PodGroup) -> bool:
    meta = group.metadata
    return not meta.deletion_timestamp and POD_GROUP_PROTECTION_FINALIZER not in meta.finalizers


def _is_terminating(group: PodGroup | CompositePodGroup) -> bool:
    meta = group.metadata
    return bool(meta.deletion_timestamp) and POD_GROUP_PROTECTION_FINALIZER in meta.finalizers


# ---- composite groups ----------------------------------------------------------------------------


class ChildTotals(NamedTuple):
    """The summed status of the children of a composite group, in the order of `_TOTAL_FIELDS`."""

    pending_groups: int
    scheduled_groups: int
    pending_pods: int
    scheduled_pods: int
    succeeded_pods: int
    failed_pods: int


_TOTAL_FIELDS = (
    "pendingGroups",
    "scheduledGroups",
    "pendingPods",
    "scheduledPods",
    "succeededPods",
    "failedPods",
)


class CompositeGroups:
    """Writes counts and the Degraded condition, and removes the finalizer of deleted groups."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        *,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._informers, self._clock = informers, clock
        self._count_delay = CountDelay(clock, is_busy)
        self._composites = informers.of(CompositePodGroup).cache
        groups = informers.of(PodGroup).cache
        self._child_indexes = self._composites.index(parents_of), groups.index(parents_of)
        self._loop: ReconcileLoop[Key] = ReconcileLoop(
            client,
            self.reconcile,
            _COMPOSITE_WORKERS,
            confirm=self._confirm_childless,
            on_error=treat_conflict_as_stale,
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
            self._count_delay.forget(key)
            return ReconcilePlan()
        composites, groups = self._child_indexes
        children: list[ChildGroup] = [*composites[key], *groups[key]]
        if _is_terminating(composite):
            return ReconcilePlan() if children else ReconcilePlan([_remove_finalizer(composite)])
        totals = sum_children(children)
        counts, degraded = (
            _changed_counts(composite, totals),
            self._degraded_patch(composite, totals),
        )
        if counts and not degraded and (wait := self._count_delay.seconds_to_wait(key)):
            return ReconcilePlan(requeue_after=wait)
        self._count_delay.forget(key)
        status = counts | degraded
        return ReconcilePlan([_composite_status_patch(composite, status)] if status else ())

    async def _confirm_childless(self, key: Key) -> bool:
        """Whether a deleted group has no child according to the API; the cache may be stale."""
        composite = self._composites.get(key)
        if composite is None or not _is_terminating(composite):
            return True
        groups = await self._informers.list_from_api(PodGroup, key.namespace)
        if any(key in parents_of(group) for group in groups):
            return False
        composites = await self._informers.list_from_api(CompositePodGroup, key.namespace)
        return not any(key in parents_of(one) for one in composites)

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
            _COMPOSITE_LOG.info(
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
    rows = zip(_TOTAL_FIELDS, current, totals, strict=True)
    return {name: new for name, old, new in rows if new != old}


def _remove_finalizer(composite: CompositePodGroup) -> Patch:
    meta = composite.metadata
    kept = [name for name in meta.finalizers if name != POD_GROUP_PROTECTION_FINALIZER]
    # With the resourceVersion: the patch must not drop a finalizer that another client adds.
    change = {"uid": meta.uid, "finalizers": kept, "resourceVersion": meta.resource_version}
    return Patch(COMPOSITE_POD_GROUP, meta.key, {"metadata": change})


def _composite_status_patch(composite: CompositePodGroup, status: Object) -> Patch:
    meta = composite.metadata
    change = {
        "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
        "status": status,
    }
    return Patch(
        COMPOSITE_POD_GROUP, meta.key, change, subresource="status", content=STRATEGIC_PATCH
    )


# ---- replica groups ------------------------------------------------------------------------------


async def inherit_preemption_policy(client: Client, *specs: Object) -> None:
    """Set the preemptionPolicy of group specs to that of their priority class, if they have none.

    Each class is read once.
    """
    classes: dict[str, Object] = {}
    for spec in specs:
        if _POLICY in spec:
            continue
        name = spec.get("priorityClassName", "")
        if name not in classes:
            classes[name] = await _priority_class(client, spec)
        if policy := classes[name].get(_POLICY):
            spec[_POLICY] = policy


async def _priority_class(client: Client, spec: Object) -> Object:
    """Return the priority class of a group spec: by name, or the global default.

    Returns {} if there is none; the server rejects an unknown name.
    """
    if name := spec.get("priorityClassName"):
        with suppress(NotFound):
            return await client.get(PRIORITY_CLASS, Key("", name))
        return {}
    classes = (await client.list(PRIORITY_CLASS)).items
    defaults = [priority_class for priority_class in classes if priority_class.get("globalDefault")]
    return min(defaults, key=lambda priority_class: int(priority_class["value"]), default={})


class ReplicaGroups:
    """Creates the PodGroups that annotated pods wait for. Never changes or deletes one."""

    def __init__(self, client: Client, informers: Informers) -> None:
        self._client = client
        self._groups = informers.of(PodGroup).cache
        pods = informers.of(Pod).cache
        #: By their PodGroup and by their Workload.
        self._replica_pods = pods.index(_replica_group_refs)
        self._queue: WorkQueue[Key] = new_work_queue(client, "replica_groups")
        self._groups.subscribe(self._on_group_changed)
        pods.subscribe(self._on_pod_changed)
        informers.metadata_informer(WORKLOAD).cache.subscribe(self._on_workload_changed)

    async def run(self) -> None:
        """Create groups until cancelled."""
        await run_workers(self._queue, self._reconcile)

    async def _reconcile(self, key: Key) -> None:
        """Create a group that a live pod waits for, if its template exists."""
        active = [pod for pod in self._replica_pods[pod_group_ref(key)] if not pod.is_terminal]
        pod = min(active, key=lambda one: (one.spec.priority, one.metadata.name), default=None)
        if pod is None or self._groups.get(key) is not None:
            return
        try:
            live = await self._client.get(POD, pod.metadata.key)
            if not _is_same_active_pod(live, pod):
                return
            workload = await self._client.get(WORKLOAD, _workload_key(pod))
            owners = [owner_reference(workload)]
            group = new_pod_group(
                workload, _template_reference(pod)[1], name=key.name, owners=owners
            )
        except NotFound:
            return
        if not workload["metadata"].get("deletionTimestamp"):
            _copy_priority_class(group, live)
            await inherit_preemption_policy(self._client, group["spec"])
            _REPLICA_LOG.debug(
                "creating PodGroup", kind="PodGroup", key=key, workload=_workload_key(pod)
            )
            await perform(self._client, Create(POD_GROUP, group))

    def _on_pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        for group in groups_of(new) if new is not None and _template_reference(new) else ():
            self._queue.add(group)

    def _on_group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        if new is None and old is not None:
            self._queue.add(old.metadata.key)

    def _on_workload_changed(self, old: HasMetadata | None, new: HasMetadata | None) -> None:
        if new is not None:
            for pod in self._replica_pods[Ref(WORKLOAD.name, *new.metadata.key)]:
                for group in groups_of(pod):
                    self._queue.add(group)


def _is_same_active_pod(live: Object, pod: Pod) -> bool:
    """Whether a pod is still active according to the API; the cache may be stale."""
    is_same = live["metadata"]["uid"] == pod.metadata.uid
    return is_same and live.get("status", {}).get("phase") not in TERMINAL_PHASES


def _copy_priority_class(group: Object, pod: Object) -> None:
    """Give a group the priority class of its least important pod if its template has none.

    The members may differ then. No group can have a system priority class.
    """
    name = pod["spec"].get("priorityClassName")
    if group["spec"].get("priorityClassName") or not name or name in SYSTEM_PRIORITY_CLASSES:
        return
    group["spec"]["priorityClassName"] = name
    annotations = group["metadata"].setdefault("annotations", {})
    annotations[PRIORITY_FROM_MEMBERS_ANNOTATION] = "lowest"


def _template_reference(pod: Pod) -> tuple[str, ...]:
    """Return the Workload and template of a pod's replica group; () if it has none."""
    annotations = pod.metadata.annotations
    group = pod.group if annotations else None
    if group is None or not is_replica_group(group.name, annotations):
        return ()
    return annotations[WORKLOAD_ANNOTATION], annotations[TEMPLATE_ANNOTATION]


def _replica_group_refs(pod: Pod) -> tuple[Ref, ...]:
    """Return the PodGroup and the Workload of a pod of a replica group; for indexes."""
    if not _template_reference(pod):
        return ()
    refs = (pod_group_ref(group) for group in groups_of(pod))
    return (*refs, Ref(WORKLOAD.name, *_workload_key(pod)))


def _workload_key(pod: Pod) -> Key:
    return Key(pod.metadata.namespace, _template_reference(pod)[0])
