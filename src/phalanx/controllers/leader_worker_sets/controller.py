"""Runs LeaderWorkerSets: informers, the work queue, and which LeaderWorkerSet a change concerns.

    LeaderWorkerSets, StatefulSets, Pods, groups, … ─▶ queue ─▶ sync ─▶ StatefulSets, groups, status

Everything that belongs to a set has its name as a label. Names follow from the set and its pods,
and deletions are conditional on the uid: repeating a plan on stale caches does no harm. The
controller is disabled on a foreign API server, whose pods are completed by the webhook of the
LeaderWorkerSet project.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from phalanx.api.apps import ControllerRevision, StatefulSet
from phalanx.api.core import Node, Pod, Service
from phalanx.api.errors import ApiError
from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    CONTROLLER_REVISION,
    LEADER_WORKER_SET,
    POD_GROUP,
    SERVICE,
    STATEFUL_SET,
    WORKLOAD,
    Kind,
)
from phalanx.api.leader_worker_sets import (
    GROUP_INDEX_LABEL,
    LEADER_INDEX,
    NAME_LABEL,
    WORKER_INDEX_LABEL,
    LeaderWorkerSet,
)
from phalanx.api.meta import Key, ObjectMeta
from phalanx.api.other_kinds import PriorityClass
from phalanx.api.scheduling import (
    MANAGED_BY_ANNOTATION,
    CompositePodGroup,
    PodGroup,
    Workload,
)
from phalanx.builder.ownership import SCHEDULING_PARENTS
from phalanx.client.cache import CacheIndex
from phalanx.client.client import Client
from phalanx.client.informer import Informer
from phalanx.client.protocol import HasMetadata
from phalanx.clock import Clock
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.leader_worker_sets.sync import (
    LeaderWorkerSetState,
    plan_sync,
)
from phalanx.controllers.leader_worker_sets.workload_objects import (
    MANAGER_NAME,
    SchedulingObjectState,
)
from phalanx.controllers.pod_groups import groups_of
from phalanx.controllers.reconcile_loop import (
    Action,
    Create,
    Informers,
    ReconcileLoop,
    ReconcilePlan,
    treat_conflict_as_stale,
)
from phalanx.controllers.workload_operations import linked_parent_keys, target_keys

_WORKERS = 8
DEFAULT_PREEMPTION_POLICY = "PreemptLowerPriority"


class LeaderWorkerSetController:
    """Runs the groups of LeaderWorkerSets until cancelled.

    Without `has_groups` the server has no Workloads or PodGroups: pods are scheduled one by one.
    `parents` are the kinds whose controllers manage the scheduling of their children.
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        *,
        record: Callable[[ObjectEvent], None] = lambda event: None,
        has_groups: bool = True,
        parents: Collection[tuple[str, str]] = SCHEDULING_PARENTS,
    ) -> None:
        self._clock, self._record = clock, record
        sets, stateful_sets = informers.of(LeaderWorkerSet), informers.of(StatefulSet)
        pods, services = informers.of(Pod), informers.of(Service)
        revisions, nodes = informers.of(ControllerRevision), informers.of(Node)
        self._informers: list[Informer[Any]] = [
            sets, stateful_sets, pods, services, revisions, nodes,
        ]  # fmt: skip
        self._sets, self._services, self._nodes = sets.cache, services.cache, nodes.cache
        self._sets_by_parent = self._sets.index(linked_parent_keys)
        self._stateful_sets = stateful_sets.cache.index(_set_keys)
        self._pods, self._members = pods.cache.index(_set_keys), pods.cache.index(groups_of)
        self._revisions = revisions.cache.index(_set_keys)
        self._scheduling = _SchedulingCaches(informers, parents) if has_groups else None
        self._loop: ReconcileLoop[Key] = ReconcileLoop(
            client, self.reconcile, _WORKERS, record=record, on_error=self._record_failure
        )
        self._sets.subscribe(self._on_set_change)
        for cache in (stateful_sets.cache, pods.cache, services.cache, revisions.cache):
            cache.subscribe(self._on_part_change)
        if self._scheduling is not None:
            self._informers += self._scheduling.informers
            self._scheduling.groups.subscribe(self._on_part_change)
            self._scheduling.composites.subscribe(self._on_part_change)
            self._scheduling.workloads.subscribe(self._on_workload_change)

    async def run(self) -> None:
        """Run LeaderWorkerSets until cancelled."""
        # An object that the cache does not show yet would be created again.
        for informer in self._informers:
            await informer.synced.wait()
        await self._loop.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Plan one sync of a set."""
        lws = self._sets.get(key)
        return plan_sync(self._read_state(lws)) if lws is not None else ReconcilePlan()

    def _read_state(self, lws: LeaderWorkerSet) -> LeaderWorkerSetState:
        key = lws.metadata.key
        stateful_sets = {one.metadata.name: one for one in self._stateful_sets[key]}
        leader_set = stateful_sets.pop(lws.metadata.name, None)
        leaders: dict[int, Pod] = {}
        workers: list[Pod] = []
        for pod in self._pods[key]:
            labels = pod.metadata.labels
            if labels.get(WORKER_INDEX_LABEL) != LEADER_INDEX:
                workers.append(pod)
            elif leader_set and pod.metadata.is_controlled_by(leader_set.metadata.uid):
                index = labels.get(GROUP_INDEX_LABEL, "")
                if index.isdecimal():
                    leaders[int(index)] = pod
        names = [lws.metadata.name, *(leader.metadata.name for leader in leaders.values())]
        present = [name for name in names if Key(key.namespace, name) in self._services]
        return LeaderWorkerSetState(
            lws,
            leader_set,
            stateful_sets,
            leaders=leaders,
            workers=workers,
            history=[
                one
                for one in self._revisions[key]
                if one.metadata.is_controlled_by(lws.metadata.uid)
            ],
            services=frozenset(present),
            nodes={
                name: node
                for name in {leader.spec.node_name for leader in leaders.values()}
                if (node := self._nodes.get(Key("", name)))
            },
            scheduling=self._scheduling.read(lws, self._members) if self._scheduling else None,
            now=self._clock.now(),
            orphans=self._find_orphans(lws, leader_set),
        )

    def _find_orphans(
        self, lws: LeaderWorkerSet, leader_set: StatefulSet | None
    ) -> list[tuple[Kind, ObjectMeta]]:
        """Objects of a set of this name that was deleted without them."""
        key = lws.metadata.key
        service = self._services.get(key)
        found: list[tuple[Kind, HasMetadata | None]] = [
            # Revisions of the StatefulSets have the same labels.
            *(
                (CONTROLLER_REVISION, one)
                for one in self._revisions[key]
                if "leaderWorkerTemplate" in (one.data.get("spec") or {})
            ),
            (SERVICE, service if service and key in _set_keys(service) else None),
            *(self._scheduling.managed_objects(key) if self._scheduling else ()),
            (STATEFUL_SET, leader_set),
        ]
        return [
            (kind, one.metadata)
            for kind, one in found
            if one is not None
            and not one.metadata.deletion_timestamp
            and one.metadata.controller is None
        ]

    def _record_failure(self, key: Key, action: Action, error: ApiError) -> None:
        """Record the event of an object that the server refused."""
        treat_conflict_as_stale(key, action, error)
        lws = self._sets.get(key)
        if lws is None or not isinstance(action, Create):
            return
        name = action.obj["metadata"]["name"]
        message = f"Failed to create {action.kind.name} {name}: {error}"
        self._record(
            ObjectEvent(
                LEADER_WORKER_SET, lws.metadata, "FailedCreate", message=message, type="Warning"
            )
        )

    def _on_set_change(self, old: LeaderWorkerSet | None, new: LeaderWorkerSet | None) -> None:
        if new is not None:
            self._loop.queue.add(new.metadata.key)

    def _on_part_change(self, old: HasMetadata | None, new: HasMetadata | None) -> None:
        """Enqueue the set whose name is a label of an object."""
        for part in (old, new) if self._sets else ():
            for key in _set_keys(part) if part is not None else ():
                if key in self._sets:
                    self._loop.queue.add(key)

    def _on_workload_change(self, old: Workload | None, new: Workload | None) -> None:
        for workload in (old, new):
            for target in target_keys(workload) if workload else ():
                namespace, group, kind, name = target
                if (group, kind) == (LEADER_WORKER_SET.group, LEADER_WORKER_SET.name):
                    self._loop.queue.add(Key(namespace, name))
                for lws in self._sets_by_parent[target]:
                    self._loop.queue.add(lws.metadata.key)


class _SchedulingCaches:
    """The caches of scheduling objects."""

    def __init__(self, informers: Informers, parents: Collection[tuple[str, str]]) -> None:
        self._parents = parents
        workloads, groups = informers.of(Workload), informers.of(PodGroup)
        composites = informers.of(CompositePodGroup, optional=True)
        classes = informers.of(PriorityClass)
        self.informers: list[Informer[Any]] = [workloads, groups, composites, classes]
        self.workloads, self.groups = workloads.cache, groups.cache
        self.composites, self._classes = composites.cache, classes.cache
        self._workloads_by_target = self.workloads.index(target_keys)
        self._groups_by_set = self.groups.index(_set_keys)
        self._composites_by_set = self.composites.index(_set_keys)

    def read(self, lws: LeaderWorkerSet, members: CacheIndex[Pod]) -> SchedulingObjectState:
        """Return the scheduling objects of a set; `members` are pods by PodGroup."""
        key = lws.metadata.key
        target = (key.namespace, LEADER_WORKER_SET.group, LEADER_WORKER_SET.name, key.name)
        groups = [
            one
            for one in self._groups_by_set[key]
            if one.metadata.is_controlled_by(lws.metadata.uid)
        ]
        return SchedulingObjectState(
            self._workloads_by_target[target],
            [one for key in linked_parent_keys(lws) for one in self._workloads_by_target[key]],
            groups,
            [
                one
                for one in self._composites_by_set[key]
                if one.metadata.is_controlled_by(lws.metadata.uid)
            ],
            used={one.metadata.key for one in groups if members[one.metadata.key]},
            preemption_policy=self._preemption_policy,
            scheduling_parents=self._parents,
        )

    def managed_objects(self, key: Key) -> list[tuple[Kind, HasMetadata]]:
        """Return the scheduling objects that this controller made for sets of a name."""
        target = (key.namespace, LEADER_WORKER_SET.group, LEADER_WORKER_SET.name, key.name)
        found: list[tuple[Kind, HasMetadata]] = [
            *((WORKLOAD, one) for one in self._workloads_by_target[target]),
            *((POD_GROUP, one) for one in self._groups_by_set[key]),
            *((COMPOSITE_POD_GROUP, one) for one in self._composites_by_set[key]),
        ]
        return [
            (kind, one)
            for kind, one in found
            if one.metadata.annotations.get(MANAGED_BY_ANNOTATION) == MANAGER_NAME
        ]

    def _preemption_policy(self, name: str) -> str:
        """The policy of a class, or of the global default; "" if it is the usual one."""
        if name:
            found = self._classes.get(Key("", name))
        else:
            defaults = [one for one in self._classes.values() if one.global_default]
            found = min(defaults, key=lambda one: one.value, default=None)
        policy = found.preemption_policy if found else ""
        return "" if policy == DEFAULT_PREEMPTION_POLICY else policy


def _set_keys(part: HasMetadata) -> tuple[Key, ...]:
    """The set whose name is a label of an object."""
    name = part.metadata.labels.get(NAME_LABEL)
    return (Key(part.metadata.namespace, name),) if name else ()
