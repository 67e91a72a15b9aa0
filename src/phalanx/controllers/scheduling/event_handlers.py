"""Sight: what a scheduler sees of the cluster, told to its desk as it comes.

Between the informers and `scheduler.desk.Desk`. Where groups do not count, pods are told as if they
were alone; where their preemption policies do not, groups as if they had none. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from phalanx import __version__
from phalanx.api.core import Node, Pod, Service
from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    NAMESPACE,
    NODE,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_GROUP,
    SERVICE,
    Kind,
)
from phalanx.api.meta import ObjectMeta
from phalanx.api.policy import PodDisruptionBudget
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.client.cache import ObjectCache
from phalanx.clock import Clock
from phalanx.controllers.reconcile_loop import Informers, PartialObjectMetadata
from phalanx.controllers.scheduling.metrics import SchedulingMetrics
from phalanx.scheduler.decision import Victim
from phalanx.scheduler.queue.cluster_objects import (
    ClusterObjects,
    observations,
    visible_group,
    visible_pod,
)
from phalanx.scheduler.queue.decision_log import (
    FORMAT,
    CompositePodGroupObserved,
    DecisionLogRecord,
    DisruptionBudgetObserved,
    LogStarted,
    NamespaceObserved,
    NodeObserved,
    Observation,
    PodGroupObserved,
    PodObserved,
    ServiceObserved,
)
from phalanx.scheduler.queue.scheduler_state import SchedulerState

T = TypeVar("T")


class EventHandlers:
    """The informers of a scheduler, and the desk that they tell."""

    def __init__(
        self, informers: Informers, state: SchedulerState, clock: Clock, metrics: SchedulingMetrics
    ) -> None:
        self._state, self._clock, self._metrics = state, clock, metrics
        self._pods = informers.of(POD, Pod)
        # Where groups do not count, they need not even be served.
        self._groups = informers.of(POD_GROUP, PodGroup) if state.profiles.groups else None
        self._composites = (
            informers.of(COMPOSITE_POD_GROUP, CompositePodGroup, optional=True)
            if state.profiles.groups
            else None
        )
        self._budgets = informers.of(POD_DISRUPTION_BUDGET, PodDisruptionBudget, optional=True)
        self._nodes = informers.of(NODE, Node)
        self._namespaces = informers.of(NAMESPACE, PartialObjectMetadata, optional=True)
        self._services = informers.of(SERVICE, Service, optional=True)
        self.pods = self._pods.cache
        self.groups = self._groups.cache if self._groups else ObjectCache[PodGroup]()
        composites = self._composites
        self.composites = composites.cache if composites else ObjectCache[CompositePodGroup]()

    @property
    def is_stale(self) -> bool:
        """Whether pods or nodes may have changed without being seen: they cannot be followed."""
        return any(informer.failure is not None for informer in (self._pods, self._nodes))

    def register(self, on_change: Callable[[], None]) -> None:
        """Tell the desk everything from now on; `news` is called when that may matter."""
        self._namespaces.cache.subscribe(self._on_namespace)
        self._namespaces.on_batch.append(on_change)
        self._services.cache.subscribe(self._on_service)
        self._services.on_batch.append(on_change)
        self._nodes.cache.subscribe(self._on_node)
        self._nodes.on_batch.append(on_change)
        # Nobody waits for these: they say who is evicted, never that nobody is.
        self._budgets.cache.subscribe(self._on_budget)
        if self._composites is not None:
            self._composites.cache.subscribe(self._on_composite)
            self._composites.on_batch.append(on_change)
        if self._groups is not None:
            self._groups.cache.subscribe(self._on_group)
            self._groups.on_batch.append(on_change)
        self._pods.cache.subscribe(self._on_pod)
        self._pods.on_batch.append(on_change)

    def initial_records(self, at: float) -> Iterator[DecisionLogRecord]:
        """What another desk must be told to go on like this one."""
        profiles, sequence = self._state.profiles, self._state.queue.sequence
        yield LogStarted(
            at, FORMAT, __version__, tuple(profiles.policies), profiles.configuration, sequence,
            profiles.groups_preempt,
        )  # fmt: skip
        yield from observations(self._cluster_objects(), profiles, at)
        yield from self._state.checkpoint(at)

    def _cluster_objects(self) -> ClusterObjects:
        spaces = self._namespaces.cache.values()
        return ClusterObjects(
            nodes=self._nodes.cache.values(),
            groups=[*self.composites.values(), *self.groups.values()],
            pods=self.pods.values(),
            services=self._services.cache.values(),
            namespaces={space.metadata.name: space.metadata.labels for space in spaces},
            budgets=self._budgets.cache.values(),
        )

    def _on_namespace(
        self, old: PartialObjectMetadata | None, new: PartialObjectMetadata | None
    ) -> None:
        labels = new.metadata.labels if new else None
        if old is None or new is None or old.metadata.labels != labels:
            name = _new_or_old(old, new).metadata.name
            self._observe("Namespace", old, new, NamespaceObserved(self._clock.now(), name, labels))

    def _on_service(self, old: Service | None, new: Service | None) -> None:
        selector = new.spec.selector if new else None
        if old is None or new is None or old.spec.selector != selector:
            key = _new_or_old(old, new).metadata.key
            self._observe("Service", old, new, ServiceObserved(self._clock.now(), key, selector))

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        name = _new_or_old(old, new).metadata.name
        self._observe("Node", old, new, NodeObserved(self._clock.now(), name, new))

    def _on_group(self, old: PodGroup | None, new: PodGroup | None) -> None:
        key, seen = _new_or_old(old, new).metadata.key, visible_group(new, self._state.profiles) if new else None
        self._observe("PodGroup", old, new, PodGroupObserved(self._clock.now(), key, seen))

    def _on_composite(self, old: CompositePodGroup | None, new: CompositePodGroup | None) -> None:
        key, seen = (
            _new_or_old(old, new).metadata.key,
            visible_group(new, self._state.profiles) if new else None,
        )
        self._observe(
            "CompositePodGroup", old, new, CompositePodGroupObserved(self._clock.now(), key, seen)
        )

    def _on_budget(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        key = _new_or_old(old, new).metadata.key
        self._observe(
            "PodDisruptionBudget", old, new, DisruptionBudgetObserved(self._clock.now(), key, new)
        )

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        key, seen = _new_or_old(old, new).metadata.key, visible_pod(new, self._state.profiles) if new else None
        self._observe("Pod", old, new, PodObserved(self._clock.now(), key, seen))

    def disrupted_groups(self, victims: Iterable[Victim]) -> tuple[tuple[Kind, ObjectMeta], ...]:
        """The groups that lose all of their pods with these."""
        found: dict[str, tuple[Kind, ObjectMeta]] = {}
        for victim in victims:
            if victim.group is None:
                continue
            pod = self.pods.get(victim.pod)
            groups = [self.groups.get(pod.group)] if pod and pod.group else []
            wholes = [self.composites.get(victim.group)] if victim.is_composite else []
            found |= {one.metadata.uid: (POD_GROUP, one.metadata) for one in groups if one}
            found |= {
                one.metadata.uid: (COMPOSITE_POD_GROUP, one.metadata) for one in wholes if one
            }
        return tuple(found.values())

    def _observe(
        self, kind: str, old: object | None, new: object | None, record: Observation
    ) -> None:
        self._state.observe(record)
        what = "Add" if old is None else "Delete" if new is None else "Update"
        self._metrics.observe_event(kind, what, self._clock.now() - record.at)


def _new_or_old(old: T | None, new: T | None) -> T:
    """Of a change one side is always there."""
    found = new if new is not None else old
    assert found is not None
    return found
