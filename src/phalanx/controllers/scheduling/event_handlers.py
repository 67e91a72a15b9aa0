"""Event handlers of the scheduler: cluster objects from informers into the `SchedulerState`.

Where the profiles switch groups off, pods are passed on without their group; where they switch
preemption policies of groups off, groups are passed on without theirs. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from phalanx.api.batch import Job, job_run_time
from phalanx.api.core import Namespace, Node, Pod, Service
from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD_GROUP,
    RESOURCE_CLAIM,
    Kind,
)
from phalanx.api.meta import COMPOSITE_POD_GROUP_KIND, Key, ObjectMeta
from phalanx.api.other_kinds import DeviceClaim, PodDisruptionBudget
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.api.scheme import DEVICE_KINDS, VOLUME_KINDS, kind_of, struct_of
from phalanx.client.cache import ObjectCache
from phalanx.client.informer import Informer
from phalanx.clock import Clock
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.scheduling.metrics import SchedulingMetrics
from phalanx.controllers.scheduling.volume_prebinder import VolumeCaches
from phalanx.scheduler.cluster.device_cache import DeviceObject
from phalanx.scheduler.decision import Preempting, Victim
from phalanx.scheduler.queue.decision_log import (
    FORMAT,
    CompositePodGroupObserved,
    DecisionLogRecord,
    DisruptionBudgetObserved,
    JobObserved,
    LogStarted,
    NamespaceObserved,
    NodeObserved,
    Observation,
    PodGroupObserved,
    PodObserved,
    ServiceObserved,
)
from phalanx.scheduler.queue.scheduler_state import (
    ClusterObjects,
    SchedulerState,
    observations,
    observe_device_object,
    observe_volume_object,
    visible_group,
    visible_pod,
)
from phalanx.scheduler.volumes.state import VolumeObject
from phalanx.version import __version__

T = TypeVar("T")


class EventHandlers:
    """The informers of a scheduler, connected to its state."""

    def __init__(
        self,
        informers: Informers,
        state: SchedulerState,
        clock: Clock,
        *,
        metrics: SchedulingMetrics,
    ) -> None:
        self._state, self._clock, self._metrics = state, clock, metrics
        self._pods = informers.of(Pod)
        # With groups switched off, the server need not even serve them.
        self._groups = informers.of(PodGroup) if state.profiles.groups else None
        self._composites = (
            informers.of(CompositePodGroup, optional=True) if state.profiles.groups else None
        )
        self._budgets = informers.of(PodDisruptionBudget, optional=True)
        self._nodes = informers.of(Node)
        self._namespaces = informers.of(Namespace, optional=True)
        self._services = informers.of(Service, optional=True)
        self._device_informers: tuple[Informer[Any], ...] = tuple(
            informers.of(struct_of(kind), optional=True) for kind in DEVICE_KINDS
        )
        self._volume_informers: tuple[Informer[Any], ...] = tuple(
            informers.of(struct_of(kind), optional=True) for kind in VOLUME_KINDS
        )
        # Deadlines and expected run times; without the right to read Jobs, those of pods count.
        self._jobs = informers.of(Job, optional=True)
        self.pods = self._pods.cache
        self.groups = self._groups.cache if self._groups else ObjectCache[PodGroup]()
        composites = self._composites
        self.composites = composites.cache if composites else ObjectCache[CompositePodGroup]()

    @property
    def device_claims(self) -> ObjectCache[DeviceClaim]:
        """The claims for devices as the informer knows them."""
        return self._device_informers[DEVICE_KINDS.index(RESOURCE_CLAIM)].cache

    @property
    def volume_caches(self) -> VolumeCaches:
        """The claims, volumes and nodes as the informers know them."""
        found = dict(zip(VOLUME_KINDS, self._volume_informers, strict=True))
        return VolumeCaches(
            found[PERSISTENT_VOLUME_CLAIM].cache, found[PERSISTENT_VOLUME].cache, self._nodes.cache
        )

    @property
    def is_stale(self) -> bool:
        """Whether the caches of pods or nodes may be out of date because their informer fails."""
        return any(informer.failure is not None for informer in (self._pods, self._nodes))

    def register(self, on_change: Callable[[], None]) -> None:
        """Connect the informers to the state; `on_change` is called after each batch of events."""
        self._namespaces.cache.subscribe(self._on_namespace)
        self._namespaces.on_batch.append(on_change)
        self._services.cache.subscribe(self._on_service)
        self._services.on_batch.append(on_change)
        self._nodes.cache.subscribe(self._on_node)
        self._nodes.on_batch.append(on_change)
        for informer in self._device_informers:
            informer.cache.subscribe(self._on_device_object)
            informer.on_batch.append(on_change)
        for informer in self._volume_informers:
            informer.cache.subscribe(self._on_volume_object)
            informer.on_batch.append(on_change)
        # No `on_change`: a Job changes when room becomes free, never whether there is room.
        self._jobs.cache.subscribe(self._on_job)
        # No `on_change`: a budget changes which pods are evicted, never whether a pod fits.
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
        """Yield the records of a checkpoint: the state of the cluster and of the queue."""
        profiles, sequence = self._state.profiles, self._state.queue.sequence
        yield LogStarted(
            at,
            FORMAT,
            __version__,
            schedulers=tuple(profiles.policies),
            configuration=profiles.configuration,
            sequence=sequence,
            groups_preempt=profiles.groups_preempt,
        )
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
            devices=[one for found in self._device_informers for one in found.cache.values()],
            volumes=[one for found in self._volume_informers for one in found.cache.values()],
            jobs=self._jobs.cache.values(),
        )

    def _on_namespace(self, old: Namespace | None, new: Namespace | None) -> None:
        labels = new.metadata.labels if new else None
        if old is None or new is None or old.metadata.labels != labels:
            name = _new_or_old(old, new).metadata.name
            self._observe(
                "Namespace", old, new, record=NamespaceObserved(self._clock.now(), name, labels)
            )

    def _on_service(self, old: Service | None, new: Service | None) -> None:
        selector = new.spec.selector if new else None
        if old is None or new is None or old.spec.selector != selector:
            key = _new_or_old(old, new).metadata.key
            self._observe(
                "Service", old, new, record=ServiceObserved(self._clock.now(), key, selector)
            )

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        name = _new_or_old(old, new).metadata.name
        self._observe("Node", old, new, record=NodeObserved(self._clock.now(), name, new))

    def _on_group(self, old: PodGroup | None, new: PodGroup | None) -> None:
        key, seen = (
            _new_or_old(old, new).metadata.key,
            visible_group(new, self._state.profiles) if new else None,
        )
        self._observe("PodGroup", old, new, record=PodGroupObserved(self._clock.now(), key, seen))

    def _on_composite(self, old: CompositePodGroup | None, new: CompositePodGroup | None) -> None:
        key, seen = (
            _new_or_old(old, new).metadata.key,
            visible_group(new, self._state.profiles) if new else None,
        )
        self._observe(
            "CompositePodGroup",
            old,
            new,
            record=CompositePodGroupObserved(self._clock.now(), key, seen),
        )

    def _on_budget(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        key = _new_or_old(old, new).metadata.key
        self._observe(
            "PodDisruptionBudget",
            old,
            new,
            record=DisruptionBudgetObserved(self._clock.now(), key, new),
        )

    def _on_device_object(
        self, old: DeviceObject | DeviceClaim | None, new: DeviceObject | DeviceClaim | None
    ) -> None:
        """Observe a ResourceSlice, DeviceClass, DeviceTaintRule or ResourceClaim."""
        changed: Any = _new_or_old(old, new)
        record = observe_device_object(changed, self._clock.now(), is_deleted=new is None)
        self._observe(kind_of(type(changed)).name, old, new, record=record)

    def _on_volume_object(self, old: VolumeObject | None, new: VolumeObject | None) -> None:
        """Observe a volume, a claim, or an object of storage.k8s.io."""
        changed: Any = _new_or_old(old, new)
        record = observe_volume_object(changed, new, self._clock.now())
        self._observe(kind_of(type(changed)).name, old, new, record=record)

    def _on_job(self, old: Job | None, new: Job | None) -> None:
        known = job_run_time(old) if old else None
        seen = job_run_time(new) if new else None
        if known != seen:
            key = _new_or_old(old, new).metadata.key
            self._observe("Job", old, new, record=JobObserved(self._clock.now(), key, seen))

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Observe a pod. One that has ended counts as deleted, as in Kubernetes."""
        is_over = new is None or new.is_terminal
        if is_over and old is not None and old.is_terminal:
            return
        key, seen = (
            _new_or_old(old, new).metadata.key,
            visible_pod(new, self._state.profiles) if new else None,
        )
        record = PodObserved(self._clock.now(), key, seen)
        self._observe("Pod", old, None if is_over else new, record=record)

    def node_label(self, name: str, label: str) -> str:
        """Return the value of a label of a node; "" if the node or the label does not exist."""
        node = self._nodes.cache.get(Key("", name))
        return node.metadata.labels.get(label, "") if node else ""

    def victim_pods(self, victims: Iterable[Victim]) -> dict[Victim, Pod]:
        """Return the pods of victims that exist."""
        found = {victim: self.pods.get(victim.pod) for victim in victims}
        return {one: pod for one, pod in found.items() if pod and pod.metadata.uid == one.uid}

    def disrupted_groups(self, decision: Preempting) -> tuple[tuple[Kind, ObjectMeta], ...]:
        """Return the groups that lose all of their pods, or the quorum, with the victims."""
        broken = [self.groups.get(key) for key in decision.broken_groups]
        found: dict[str, tuple[Kind, ObjectMeta]] = {
            group.metadata.uid: (POD_GROUP, group.metadata) for group in broken if group
        }
        for victim in decision.victims:
            if victim.group is None:
                continue
            pod = self.pods.get(victim.pod)
            groups = [self.groups.get(pod.group)] if pod and pod.group else []
            is_tree = victim.group.kind == COMPOSITE_POD_GROUP_KIND
            composites = [self.composites.get(victim.group.key)] if is_tree else []
            found |= {item.metadata.uid: (POD_GROUP, item.metadata) for item in groups if item}
            found |= {
                item.metadata.uid: (COMPOSITE_POD_GROUP, item.metadata)
                for item in composites
                if item
            }
        return tuple(found.values())

    def _observe(
        self, kind: str, old: object | None, new: object | None, *, record: Observation
    ) -> None:
        self._state.observe(record)
        action = "Add" if old is None else "Delete" if new is None else "Update"
        self._metrics.observe_event(kind, action, self._clock.now() - record.at)


def _new_or_old(old: T | None, new: T | None) -> T:
    """Return the new object, or the old one of a deletion."""
    found = new if new is not None else old
    assert found is not None
    return found
