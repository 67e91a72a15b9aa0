"""The state of one scheduler: cache and queue, and every step that changes them.

    observe ─▶ cache, queue ─▶ pop ─▶ cycle ─▶ commit ─▶ (bind) ─▶ rollback if binding fails
                                        └─▶ (exact solver) ─▶ record_answer

Nothing else changes the cache or the queue. Each step is recorded as a value of the decision log; a
state to which the same records are applied makes the same decisions. The controller in
`controllers/scheduling/` drives a state from informers, `replay.py` from a decision log, and
`cluster_objects.py` loads one from a list of objects. `now` is always an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from phalanx.api.meta import Key, composite_pod_group_ref, pod_group_ref
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.configuration.profiles import Profiles
from phalanx.scheduler.cycle import decide, run_cycle
from phalanx.scheduler.decision import (
    Binding,
    ClusterEvent,
    Decision,
    Placed,
    Preempting,
    nominations_of,
)
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.queue.decision_log import (
    BindingsRolledBack,
    CompositePodGroupObserved,
    DecisionLogRecord,
    DecisionMade,
    DisruptionBudgetObserved,
    EntityPopped,
    EntityRestored,
    EvictionsCancelled,
    NamespaceObserved,
    NodeObserved,
    Observation,
    PodGroupObserved,
    PodObserved,
    PodsAssumed,
    PodsNominated,
    SearchFinished,
    ServiceObserved,
    SolverAnswered,
    encode_decision,
    entity_version,
)
from phalanx.scheduler.queue.scheduling_queue import SchedulingQueue
from phalanx.scheduler.search.solver import SolverAnswer, Steps


class SchedulerState:
    """What one scheduler knows and has to schedule. `recorder` gets a record of every step."""

    def __init__(
        self, profiles: Profiles, recorder: Callable[[DecisionLogRecord], None] | None = None
    ) -> None:
        self.profiles, self._recorder = profiles, recorder
        self.cache = SchedulerCache()
        self.queue = SchedulingQueue(*profiles.policies, back_off=profiles.back_off)

    def observe(self, observation: Observation) -> None:
        """Apply an observation: an object was created, changed or deleted."""
        if self._recorder:
            self._recorder(observation)
        _OBSERVERS[type(observation)](self, observation)

    def pop(self, now: float) -> Entity | None:
        """Return the next entity to attempt; `commit` must follow before the next `pop`."""
        entity = self.queue.pop(now)
        if entity and self._recorder:
            self._recorder(EntityPopped(now, entity_version(entity)))
        return entity

    def cycle(self, entity: Entity) -> Steps[Decision]:
        """Return the steps of the scheduling cycle, on a snapshot taken now."""
        return run_cycle(entity, self.cache.snapshot(), self.profiles.policy(entity))

    def decide(self, entity: Entity) -> Decision:
        """Run the scheduling cycle at once, without an exact solver."""
        return decide(entity, self.cache.snapshot(), self.profiles.policy(entity))

    def record_answer(self, answer: SolverAnswer, now: float) -> None:
        """Record the answer of the exact solver that the current cycle got."""
        if self._recorder:
            self._recorder(SolverAnswered(now, answer))

    def finish_search(self, now: float) -> None:
        """An exact search ended that no cycle waits for: wake the entities that asked for it."""
        if self._recorder:
            self._recorder(SearchFinished(now))
        self.queue.wake(ClusterEvent.SEARCH_ENDED, now)

    def commit(self, entity: Entity, decision: Decision, now: float) -> bool:
        """Apply a decision. Returns False if it is outdated; the entity is then queued again."""
        if self._recorder:
            self._recorder(DecisionMade(now, entity.key, encode_decision(decision)))
        if isinstance(decision, Placed):
            if not self.queue.is_current(entity, decision.bindings):
                self.queue.requeue(entity, now)
                return False
            self._wake(self.cache.assume(decision.bindings), now)
        elif isinstance(decision, Preempting):
            if not self.queue.is_current(entity, decision.waiting.nominated):
                self.queue.requeue(entity, now)
                return False
            self.cache.mark_evicting((victim.pod, victim.uid) for victim in decision.victims)
        self._nominate(entity, decision, now)
        self.queue.done(entity, decision, now)
        return True

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
        events = self.cache.forget(failed)
        self.queue.return_unbound(failed, now)
        self._wake(events, now)

    def checkpoint(self, now: float) -> Iterator[DecisionLogRecord]:
        """Yield the records that bring another state, with the same objects, to this one."""
        if assumptions := self.cache.assumed_bindings():
            yield PodsAssumed(now, tuple(assumptions))
        nominations, evicting = self.cache.unreported_nominations(), self.cache.evicting_pods()
        if nominations or evicting:
            yield PodsNominated(now, tuple(nominations), tuple(evicting))
        for checkpoint in self.queue.checkpoint():
            yield EntityRestored(now, checkpoint)

    def restore(self, record: PodsAssumed | PodsNominated | EntityRestored) -> None:
        """Apply a record of `checkpoint`; the records must come in their order."""
        if isinstance(record, PodsAssumed):
            self.cache.assume(record.bindings)
            self.queue.assume(record.bindings, record.at)
        elif isinstance(record, PodsNominated):
            self.cache.nominate(record.nominations)
            self.cache.mark_evicting(record.evicting)
        else:
            self.queue.restore(record.checkpoint)

    def _wake(self, events: Iterable[ClusterEvent | None], now: float) -> None:
        for event in events:
            if event is not None:
                self.queue.wake(event, now)

    def _observe_namespace(self, observed: NamespaceObserved) -> None:
        self._wake([self.cache.update_namespace(observed.name, observed.labels)], observed.at)

    def _observe_service(self, observed: ServiceObserved) -> None:
        self.cache.update_service(observed.key, observed.selector)
        # The default spread constraints of pods select the pods of their Services.
        self.queue.wake(ClusterEvent.POD_PLACED, observed.at)

    def _observe_node(self, observed: NodeObserved) -> None:
        self._wake([self.cache.update_node(observed.name, observed.node)], observed.at)

    def _observe_group(self, observed: PodGroupObserved | CompositePodGroupObserved) -> None:
        is_composite = isinstance(observed, CompositePodGroupObserved)
        ref = (composite_pod_group_ref if is_composite else pod_group_ref)(observed.key)
        self.cache.update_group(ref, observed.group)
        if observed.group is None:
            self.queue.remove_group(ref, observed.at)
        else:
            self.queue.observe_group(observed.group, observed.at)

    def _observe_budget(self, observed: DisruptionBudgetObserved) -> None:
        self.cache.update_budget(observed.key, observed.budget)

    def _observe_pod(self, observed: PodObserved) -> None:
        events = self.cache.update_pod(observed.key, observed.pod)
        if observed.pod is None:
            self.queue.remove_pod(observed.key, observed.at)
        else:
            self.queue.observe_pod(observed.pod, observed.at)
        self._wake(events, observed.at)


_OBSERVERS: Mapping[type[Observation], Callable[[SchedulerState, Any], None]] = {
    NamespaceObserved: SchedulerState._observe_namespace,
    ServiceObserved: SchedulerState._observe_service,
    NodeObserved: SchedulerState._observe_node,
    PodGroupObserved: SchedulerState._observe_group,
    CompositePodGroupObserved: SchedulerState._observe_group,
    DisruptionBudgetObserved: SchedulerState._observe_budget,
    PodObserved: SchedulerState._observe_pod,
}
