"""The state of one scheduler: cache and queue, and every step that changes them.

    observe ─▶ cache, queue ─▶ plan_reservations ─▶ pop ─▶ cycle ─▶ commit ─▶ (bind) ─▶ rollback
                                                             └─▶ (exact solver) ─▶ record_answer

Nothing else changes the cache or the queue. Each step is recorded as a value of the decision log; a
state to which the same records are applied makes the same decisions. The controller in
`controllers/scheduling/` drives a state from informers, `replay.py` from a decision log. `now` is
always an argument.

`load_state` builds a state from a list of objects, for `phalanx.library`, the diagnosis and the
fault tests; each object is observed at its creation time:

    state = load_state(ClusterObjects(nodes, groups, pods))
    entity = state.pop(now)
    decision = state.decide(entity)

The informers of `controllers/scheduling/event_handlers.py` use `observations` for the first records
of a decision log, and `visible_pod` and `visible_group` for each event.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from phalanx.api.batch import Job, job_run_time
from phalanx.api.core import Node, Pod, Service
from phalanx.api.dynamic_resources import DeviceClass, DeviceTaintRule, ResourceSlice
from phalanx.api.meta import (
    Key,
    ObjectMeta,
    composite_pod_group_ref,
    parse_timestamp,
    pod_group_ref,
)
from phalanx.api.other_kinds import DeviceClaim, PodDisruptionBudget
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.api.storage import volume_keys_of
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.cluster_delta import ClusterDelta
from phalanx.scheduler.cluster.device_cache import DeviceObject
from phalanx.scheduler.cluster.group_tree import Group
from phalanx.scheduler.cluster.peer_constraints import Labels
from phalanx.scheduler.cycle import run_cycle, run_steps
from phalanx.scheduler.decision import (
    Binding,
    ClusterEvent,
    Decision,
    Placed,
    Preempting,
    Waiting,
    nominations_of,
)
from phalanx.scheduler.devices.state import claims_of_pod
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.policy import DEFAULT_POLICY, DEFAULT_PROFILES, Profiles
from phalanx.scheduler.queue.decision_log import (
    VOLUME_RECORDS,
    BindingsRolledBack,
    CompositePodGroupObserved,
    DecisionLogRecord,
    DecisionMade,
    DeviceClassObserved,
    DeviceTaintRuleObserved,
    DisruptionBudgetObserved,
    EntityPopped,
    EntityRestored,
    EvictionsCancelled,
    JobObserved,
    NamespaceObserved,
    NodeObserved,
    Observation,
    PersistentVolumeClaimObserved,
    PodGroupObserved,
    PodObserved,
    PodsAssumed,
    PodsNominated,
    ReservationsPlanned,
    ResourceClaimObserved,
    ResourceSliceObserved,
    SearchFinished,
    ServiceObserved,
    SolverAnswered,
    VolumeObjectObserved,
    encode_decision,
    entity_version,
)
from phalanx.scheduler.queue.refusal_memo import RefusalMemo, RepeatedRefusals
from phalanx.scheduler.queue.scheduling_queue import SchedulingQueue
from phalanx.scheduler.queue.waiting_entities import ClaimIndex
from phalanx.scheduler.queue.wake_condition import condition_of, count_lacking
from phalanx.scheduler.reservation.tracker import FreedRoom, ReservationTracker
from phalanx.scheduler.search.solver import SolverAnswer, Steps
from phalanx.scheduler.volumes.state import VolumeObject

VOLUME_STRUCTS = {record: struct for struct, record in VOLUME_RECORDS.items()}
GroupType = TypeVar("GroupType", PodGroup, CompositePodGroup)


class SchedulerState:
    """What one scheduler knows and has to schedule. `recorder` gets a record of every step."""

    def __init__(
        self, profiles: Profiles, recorder: Callable[[DecisionLogRecord], None] | None = None
    ) -> None:
        self.profiles, self._recorder = profiles, recorder
        self.cache, self.reservations = SchedulerCache(), ReservationTracker(profiles)
        self._run_times = self.reservations.run_times
        #: When the entity in flight was popped.
        self._popped_at = 0.0
        self.queue = SchedulingQueue(*profiles.policies, back_off=profiles.back_off)
        self.queue.keeps_arrival_order = profiles.keeps_arrival_order
        self.queue.claim_problem = self.cache.devices.claim_problem
        #: Which ResourceClaims and PersistentVolumeClaims pending pods name.
        self._device_claims, self._volume_claims = ClaimIndex(), ClaimIndex()
        #: The pods of entities that could be attempted before and cannot any more.
        self._voided_nominations: dict[Key, None] = {}
        self._memo, self._repeats_refusals = RefusalMemo(), False

    @property
    def version(self) -> Hashable:
        """Equal as long as nothing that a cycle reads beside its entity has changed."""
        cache, reservations = self.cache, self.reservations.version
        return cache.version, cache.devices.version, cache.volumes.version, reservations

    def observe(self, observation: Observation) -> None:
        """Apply an observation: an object was created, changed or deleted."""
        if self._recorder:
            self._recorder(observation)
        _OBSERVERS[type(observation)](self, observation)

    def pop(self, now: float) -> Entity | None:
        """Return the next entity to attempt; `commit` must follow before the next `pop`."""
        entity, self._popped_at = self.queue.pop(now), now
        if entity and self._recorder:
            self._recorder(EntityPopped(now, entity_version(entity)))
        return entity

    def cycle(self, entity: Entity) -> Steps[Decision]:
        """Return the steps of the scheduling cycle, on a snapshot taken now."""
        snapshot, policy = self.cache.snapshot(), self.profiles.policy(entity)
        holds = self.reservations.holds_for(entity, snapshot, self._popped_at)
        version, holders = self.version, holds.holders if holds is not None else ()
        is_usual = holds is None or not self.reservations.is_before_equal(entity)
        if is_usual:
            answer = self._memo.find(entity, snapshot, policy, version=version, holders=holders)
            if answer is not None:
                return answer
        decision = yield from run_cycle(entity, snapshot, policy, holds=holds)
        # Evictions take time: a refusal for reservations that hold then is of this entity alone.
        is_equal = not isinstance(decision, Waiting) or set(decision.holders) <= set(holders)
        if is_usual and is_equal and version == self.version:
            self._memo.store(entity, decision, snapshot, policy=policy, holders=holders)
        return decision

    def repeat_refusals(self) -> None:
        """Leave out attempts whose refusal is certain; for simulations (`RepeatedRefusals`)."""
        self._repeats_refusals = True
        self.queue.refusals_at = RepeatedRefusals(
            self.cache, self.reservations, self._memo, version=lambda: self.version
        ).at

    def decide(self, entity: Entity) -> Decision:
        """Run the scheduling cycle at once, without an exact solver."""
        return run_steps(self.cycle(entity))

    def plan_reservations(self, now: float) -> Steps[None]:
        """Plan the reservations again if that is due; no entity may be in flight.

        The snapshot must not change between two steps, as in a cycle. Before that, a snapshot that
        lacks thousands of changes is brought up to date in steps.
        """
        yield from self.cache.catch_up()
        if not self.reservations.is_due(now):
            return
        tracker, snapshot = self.reservations, self.cache.snapshot()
        before = tracker.current, tracker.turns
        freed = yield from tracker.plan(snapshot, self.queue.waiting_entity, now)
        is_changed = (tracker.current, tracker.turns) != before
        if self._recorder and (is_changed or tracker.entities_to_nominate(snapshot, now)):
            self._recorder(ReservationsPlanned(now, tracker.current, tracker.turns))
        self._wake_after_planning(now, freed)

    def _wake_after_planning(self, now: float, freed: FreedRoom) -> None:
        """Attempt entities that may use more room, or that are about to start on their nodes."""
        if freed.is_any:
            self._wake_held(now, concerns_each=freed.concerns_each)
        for name in () if freed.is_any else freed.nodes:
            room = self.cache.room(name)
            if room is not None:
                self.queue.wake(ClusterDelta(ClusterEvent.RESERVATION_CHANGED, room, room), now)
        for ref in self.reservations.entities_to_nominate(self.cache.snapshot(), now):
            self.queue.activate(ref, now)

    def pop_after_planning(self, now: float) -> Entity | None:
        """Plan the reservations at once if that is due, then pop."""
        for _ in self.plan_reservations(now):
            pass
        return self.pop(now)

    def restore_reservations(self, record: ReservationsPlanned) -> None:
        """Set the reservations as they were planned."""
        freed = self.reservations.restore(record.reservations, record.turns)
        self._wake_after_planning(record.at, freed)

    def record_answer(self, answer: SolverAnswer, now: float) -> None:
        """Record the answer of the exact solver that the current cycle got."""
        if self._recorder:
            self._recorder(SolverAnswered(now, answer))

    def finish_search(self, now: float) -> None:
        """An exact search ended that no cycle waits for: wake the entities that asked for it."""
        if self._recorder:
            self._recorder(SearchFinished(now))
        self.queue.wake(ClusterDelta(ClusterEvent.SEARCH_ENDED), now)

    def commit(self, entity: Entity, decision: Decision, now: float) -> bool:
        """Apply a decision. Returns False if it is outdated; the entity is then queued again."""
        if self._recorder:
            self._recorder(DecisionMade(now, entity.key, encode_decision(decision)))
        if isinstance(decision, Placed):
            bindings = decision.bindings
            if not (self.cache.has_nodes(bindings) and self.queue.is_current(entity, bindings)):
                self.queue.requeue(entity, now)
                return False
            self._wake(self.cache.assume(bindings), now)
            if decision.claims:
                self.cache.devices.assume(decision.claims)
            if decision.volumes:
                self.cache.volumes.assume(decision.volumes)
        elif isinstance(decision, Preempting):
            nodes_exist = self.cache.has_nodes(decision.waiting.nominated)
            if not (nodes_exist and self.queue.may_preempt(entity, decision)):
                # The cluster is not as the decision assumes: evictions may be needless.
                self.queue.requeue(entity, now)
                self._update_nominations(now)
                return False
            self.cache.mark_evicting((victim.pod, victim.uid) for victim in decision.victims)
        self._nominate(entity, decision, now)
        is_freed = self.reservations.note_decision(entity, decision, now)
        if isinstance(decision, Placed):
            self.queue.done(entity, decision, now)
        else:
            has_limit = self.reservations.has_limit(entity, now)
            condition = condition_of(
                entity,
                decision,
                self.cache.snapshot(),
                policy=self.profiles.policy(entity),
                reservations=self.reservations.current,
                is_alone=self.reservations.is_before_equal(entity),
                has_limit=has_limit,
            )
            lacking = count_lacking(condition, decision)
            signature = None
            if self._repeats_refusals:
                signature = self._memo.note_condition(
                    entity, condition, lacking, has_limit=has_limit
                )
            self.queue.done(
                entity, decision, now, condition=condition, lacking=lacking, signature=signature
            )
        self._update_nominations(now)
        if is_freed:
            self._wake_held(now, concerns_each=False)
        return True

    def _update_nominations(self, now: float) -> None:
        """Count the nominations of entities that can be attempted, and no others.

        An entity that could be attempted before has lost its nominations. Of one that is not
        complete yet they count as soon as it is: members are observed one after the other.
        """
        if not (pods := self.queue.take_held_back_changes()):
            return
        held_back = [one for one in pods if self.queue.is_held_back(one.key)]
        lost = [one for one in held_back if one.was_ready]
        self._voided_nominations |= {one.key: None for one in lost}
        void = (Binding(one.key, one.uid, "") for one in lost)
        unready = [one.key for one in held_back if not one.was_ready]
        self._wake([*self.cache.nominate(void), *self._withhold(unready)], now)
        keys = {one.key for one in held_back}
        ready = (one.key for one in pods if one.key not in keys)
        self.cache.withhold_nominations(ready, withheld=False)

    def _withhold(self, pods: Sequence[Key]) -> list[ClusterDelta]:
        """Leave the nominations of pods that cannot be attempted out of account."""
        self.queue.has_withheld |= bool(pods)
        return self.cache.withhold_nominations(pods)

    def take_voided_nominations(self) -> list[Key]:
        """Return the pods whose nominated nodes must be removed from the API."""
        found, self._voided_nominations = list(self._voided_nominations), {}
        return found

    def _nominate(self, entity: Entity, decision: Decision, now: float) -> None:
        """Replace the nominations of all members by those of the decision."""
        nodes = {pod: node for pod, _, node in nominations_of(decision)}
        metas = [member.pod.metadata for member in entity.members]
        self._wake(
            self.cache.nominate(
                Binding(meta.key, meta.uid, nodes.get(meta.key, "")) for meta in metas
            ),
            now,
        )

    def cancel_evictions(self, victims: Iterable[tuple[Key, str]], now: float) -> None:
        """Evictions failed: count these pods as staying."""
        pods = tuple(victims)
        if self._recorder:
            self._recorder(EvictionsCancelled(now, pods))
        self.cache.mark_evicting(pods, evicting=False)

    def rollback(self, bindings: Iterable[Binding], now: float) -> None:
        """Bindings failed: forget them and queue the pods again."""
        failed = tuple(bindings)
        if self._recorder:
            self._recorder(BindingsRolledBack(now, failed))
        changes = [
            *self.cache.forget(failed),
            *self.cache.devices.forget(failed),
            *self.cache.volumes.forget(failed),
        ]
        self.reservations.return_pods((binding.pod for binding in failed), now)
        self.queue.return_unbound(failed, now)
        self._wake(changes, now)

    def checkpoint(self, now: float) -> Iterator[DecisionLogRecord]:
        """Yield the records that bring another state, with the same objects, to this one."""
        bindings, claims = self.cache.assumed_bindings(), self.cache.devices.assumed_claims()
        volumes = self.cache.volumes.assumed_volumes()
        if bindings or claims or volumes:
            yield PodsAssumed(now, tuple(bindings), tuple(claims), tuple(volumes))
        nominations, evicting = self.cache.unreported_nominations(), self.cache.evicting_pods()
        if nominations or evicting:
            yield PodsNominated(now, tuple(nominations), tuple(evicting))
        for checkpoint in self.queue.checkpoint(now):
            yield EntityRestored(now, checkpoint)
        tracker = self.reservations
        if tracker.current or tracker.turns:
            yield ReservationsPlanned(now, tracker.current, tracker.turns)

    def restore(self, record: PodsAssumed | PodsNominated | EntityRestored) -> None:
        """Apply a record of `checkpoint`; the records must come in their order."""
        if isinstance(record, PodsAssumed):
            self.cache.assume(record.bindings)
            self.cache.devices.assume(record.claims)
            self.cache.volumes.assume(record.volumes)
            self.queue.assume(record.bindings, record.at)
        elif isinstance(record, PodsNominated):
            self.cache.nominate(record.nominations)
            self.cache.mark_evicting(record.evicting)
        else:
            self.queue.restore(record.checkpoint, record.at)

    def _wake(self, changes: Iterable[ClusterDelta | None], now: float) -> None:
        for change in changes:
            if change is not None:
                self.queue.wake(change, now)

    def _observe_namespace(self, observed: NamespaceObserved) -> None:
        self._wake([self.cache.update_namespace(observed.name, observed.labels)], observed.at)

    def _observe_service(self, observed: ServiceObserved) -> None:
        self.cache.update_service(observed.key, observed.selector)
        # The default spread constraints of pods select the pods of their Services.
        self.queue.wake(ClusterDelta(ClusterEvent.POD_PLACED), observed.at)

    def _observe_node(self, observed: NodeObserved) -> None:
        change = self.cache.update_node(observed.name, observed.node)
        if change is not None:
            self.reservations.observe_node()
        self._wake([change], observed.at)

    def _observe_group(self, observed: PodGroupObserved | CompositePodGroupObserved) -> None:
        is_composite = isinstance(observed, CompositePodGroupObserved)
        ref = (composite_pod_group_ref if is_composite else pod_group_ref)(observed.key)
        change = self.cache.update_group(ref, observed.group)
        meta = observed.group.metadata if observed.group else None
        has_limit = not is_composite and self.reservations.observe_group(observed.key, meta)
        if observed.group is None:
            is_changed = self.queue.remove_group(ref, observed.at)
        else:
            is_changed = self.queue.observe_group(observed.group, observed.at)
        if is_changed:
            self.reservations.observe_entity(ref)
        if has_limit and meta is not None:
            self.queue.activate(ref, observed.at)
        if self.queue.held_back_changes:
            self._update_nominations(observed.at)
        self._wake([change], observed.at)

    def _observe_budget(self, observed: DisruptionBudgetObserved) -> None:
        self.cache.update_budget(observed.key, observed.budget)

    def _observe_job(self, observed: JobObserved) -> None:
        reservations, job = self.reservations, observed.job
        if not reservations.observe_job(observed.key, job) or job is None:
            return
        for ref in self.queue.entities_of_owner(job.uid) if reservations.has_waiting else ():
            reservations.observe_entity(ref)
            if reservations.current:
                # They may hold its pods, which may be known to end in time now.
                self.queue.activate(ref, observed.at)

    def _wake_held(self, now: float, *, concerns_each: bool) -> None:
        event = ClusterEvent.RESERVATION_CHANGED
        self.queue.wake(ClusterDelta(event, concerns_each=concerns_each), now)

    def _observe_slice(self, observed: ResourceSliceObserved) -> None:
        devices = self.cache.devices
        change = devices.update_object(ResourceSlice, observed.name, observed.slice)
        self._wake([change], observed.at)

    def _observe_device_class(self, observed: DeviceClassObserved) -> None:
        devices = self.cache.devices
        change = devices.update_object(DeviceClass, observed.name, observed.device_class)
        self._wake([change], observed.at)

    def _observe_taint_rule(self, observed: DeviceTaintRuleObserved) -> None:
        devices = self.cache.devices
        change = devices.update_object(DeviceTaintRule, observed.name, observed.rule)
        self._wake([change], observed.at)

    def _observe_claim(self, observed: ResourceClaimObserved) -> None:
        change = self.cache.devices.update_claim(observed.key, observed.claim)
        for pod in self._device_claims.pods_of(observed.key):
            self.queue.observe_claims(pod, observed.at)
        if self.queue.held_back_changes:
            self._update_nominations(observed.at)
        self._wake([change], observed.at)

    def _observe_volume_object(self, observed: VolumeObjectObserved) -> None:
        if isinstance(observed, PersistentVolumeClaimObserved):
            if self.cache.volumes.update_claim(observed.key, observed.new):
                # No MEMBER_CHANGED: a failed attempt that removes the selected node must back off.
                for pod in self._volume_claims.pods_of(observed.key):
                    self.queue.observe_claims(pod, observed.at, ClusterEvent.VOLUMES_CHANGED)
            return
        kind = VOLUME_STRUCTS[type(observed)]
        change = self.cache.volumes.update_object(kind, observed.key, observed.new)
        self._wake([change], observed.at)

    def _observe_pod(self, observed: PodObserved) -> None:
        now, key, pod = observed.at, observed.key, observed.pod
        changes = self.cache.update_pod(key, pod)
        pending = pod if pod and not (pod.spec.node_name or pod.is_terminal) else None
        if key in self._device_claims or (pending and pending.spec.resource_claims):
            claims = claims_of_pod(pending) if pending else ()
            self._device_claims.update(key, [claim for _, claim in claims if claim is not None])
        if key in self._volume_claims or (pending and pending.spec.volumes):
            self._volume_claims.update(key, volume_keys_of(pending) if pending else ())
        self._run_times.observe_pod(key, pod, now)
        if pod is None:
            self.queue.remove_pod(key, now)
        else:
            is_changed = self.queue.observe_pod(pod, now)
            if is_changed and pending is not None:
                self.reservations.observe_pending_pod(pending)
            if pod.status.nominated_node_name and self.queue.is_held_back(key):
                changes = (*changes, *self._withhold([key]))
        if self.queue.held_back_changes:
            self._update_nominations(now)
        if changes:
            self._wake(changes, now)


_OBSERVERS: Mapping[type[Observation], Callable[[SchedulerState, Any], None]] = {
    NamespaceObserved: SchedulerState._observe_namespace,
    ServiceObserved: SchedulerState._observe_service,
    NodeObserved: SchedulerState._observe_node,
    PodGroupObserved: SchedulerState._observe_group,
    CompositePodGroupObserved: SchedulerState._observe_group,
    DisruptionBudgetObserved: SchedulerState._observe_budget,
    ResourceSliceObserved: SchedulerState._observe_slice,
    DeviceClassObserved: SchedulerState._observe_device_class,
    DeviceTaintRuleObserved: SchedulerState._observe_taint_rule,
    ResourceClaimObserved: SchedulerState._observe_claim,
    **dict.fromkeys(VOLUME_RECORDS.values(), SchedulerState._observe_volume_object),
    JobObserved: SchedulerState._observe_job,
    PodObserved: SchedulerState._observe_pod,
}


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    """The API objects that a scheduler reads, decoded."""

    nodes: Iterable[Node]
    groups: Iterable[Group]
    pods: Iterable[Pod]
    services: Iterable[Service] = ()
    #: The labels of each namespace.
    namespaces: Mapping[str, Labels] = field(default_factory=dict)
    budgets: Iterable[PodDisruptionBudget] = ()
    #: ResourceSlices, DeviceClasses, DeviceTaintRules and ResourceClaims.
    devices: Iterable[DeviceObject | DeviceClaim] = ()
    #: PersistentVolumes, PersistentVolumeClaims and the objects of storage.k8s.io.
    volumes: Iterable[VolumeObject] = ()
    jobs: Iterable[Job] = ()
    #: The uids of pods whose eviction has been decided and is not visible in the API yet.
    evicting: Collection[str] = ()
    #: Whether it was changed to ask a question: starts that the scheduler has written do not hold.
    is_hypothetical: bool = False


def load_state(objects: ClusterObjects, profiles: Profiles = DEFAULT_PROFILES) -> SchedulerState:
    """Build the state of a scheduler that has observed every object at its creation time.

    The scheduler answers to every `schedulerName` that a pod has. A name without a profile gets the
    default policy.
    """
    names = dict.fromkeys(pod.spec.scheduler_name for pod in objects.pods)
    policies = {name: profiles.policies.get(name, DEFAULT_POLICY) for name in names}
    state = SchedulerState(replace(profiles, policies=policies))
    for observation in observations(objects, profiles):
        state.observe(observation)
    if objects.evicting:
        metas = [pod.metadata for pod in objects.pods if pod.metadata.uid in objects.evicting]
        state.cache.mark_evicting((meta.key, meta.uid) for meta in metas)
    return state


def observations(
    objects: ClusterObjects, profiles: Profiles, at: float | None = None
) -> Iterator[Observation]:
    """Yield one observation per object, in an order in which no object refers to a later one.

    Without `at`, groups and pods are observed at their creation time, pods in that order.
    """
    start = 0.0 if at is None else at
    for name, labels in objects.namespaces.items():
        yield NamespaceObserved(start, name, dict(labels))
    for service in objects.services:
        yield ServiceObserved(start, service.metadata.key, service.spec.selector)
    for node in objects.nodes:
        yield NodeObserved(start, node.metadata.name, node)
    for budget in objects.budgets:
        yield DisruptionBudgetObserved(start, budget.metadata.key, budget)
    for one in objects.devices:
        yield observe_device_object(one, start)
    for volume_object in objects.volumes:
        yield observe_volume_object(volume_object, volume_object, start)
    for group in objects.groups if profiles.groups else ():
        key, observed_at = group.metadata.key, creation_time(group.metadata) if at is None else at
        if isinstance(group, CompositePodGroup):
            yield CompositePodGroupObserved(observed_at, key, visible_group(group, profiles))
        else:
            yield PodGroupObserved(observed_at, key, visible_group(group, profiles))
    for job in objects.jobs:
        yield JobObserved(start, job.metadata.key, job_run_time(job))
    pods = objects.pods
    if at is None:
        pods = sorted(pods, key=lambda pod: pod.metadata.creation_timestamp)
    for pod in pods:
        observed_at = creation_time(pod.metadata) if at is None else at
        yield PodObserved(observed_at, pod.metadata.key, visible_pod(pod, profiles))


def observe_volume_object(
    one: VolumeObject, new: VolumeObject | None, at: float
) -> VolumeObjectObserved:
    """Return the observation of a volume object, or (None) that it was deleted."""
    record: Any = VOLUME_RECORDS[type(one)]
    observed: VolumeObjectObserved = record(at, one.metadata.key, new)
    return observed


def observe_device_object(
    one: DeviceObject | DeviceClaim, at: float, *, is_deleted: bool = False
) -> Observation:
    """Return the observation of a claim, slice, class or taint rule, or that it was deleted."""
    match one:
        case ResourceSlice():
            return ResourceSliceObserved(at, one.metadata.name, None if is_deleted else one)
        case DeviceClass():
            return DeviceClassObserved(at, one.metadata.name, None if is_deleted else one)
        case DeviceTaintRule():
            return DeviceTaintRuleObserved(at, one.metadata.name, None if is_deleted else one)
        case DeviceClaim():
            return ResourceClaimObserved(at, one.metadata.key, None if is_deleted else one)


def visible_pod(pod: Pod, profiles: Profiles) -> Pod:
    """Return the pod as the scheduler reads it: without its group if gang scheduling is off."""
    if profiles.spares_others and pod.spec.scheduler_name not in profiles.policies:
        pod = pod.with_highest_priority
    return pod if profiles.groups else pod.without_group


def visible_group(group: GroupType, profiles: Profiles) -> GroupType:
    """Return the group as the scheduler reads it: without a preemption policy if that is off."""
    return group if profiles.preemption_policies else group.with_pod_preemption_policy


def creation_time(meta: ObjectMeta) -> float:
    """Return when an object was created, in seconds since the epoch; 0 if it does not say."""
    return parse_timestamp(meta.creation_timestamp) if meta.creation_timestamp else 0.0
