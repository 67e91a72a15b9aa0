"""Desk: cache and queue together. What is seen goes in, what is to be tried next comes out.

    seen ─▶ feed ─▶ cache, queue ─▶ take ─▶ cycle ─▶ settle ─▶ (bound elsewhere) ─▶ undo
                                           └─▶ (asked elsewhere) ─▶ answered

Nothing else reaches cache or queue, and each step is a value that can be written down: a desk that
is told the same steps at the same times does the same. The shell in `controllers/` drives one as
things happen, `replay.py` another from a record. `now` is always an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from phalanx.api.meta import Key
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.group_tree import GroupRef
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
    """What one scheduler knows and has to do. `note` is told every step, if there is one."""

    def __init__(
        self, profiles: Profiles, recorder: Callable[[DecisionLogRecord], None] | None = None
    ) -> None:
        self.profiles, self._recorder = profiles, recorder
        self.cache = SchedulerCache()
        self.queue = SchedulingQueue(*profiles.policies, back_off=profiles.back_off)

    def observe(self, observation: Observation) -> None:
        """Something was seen, or is gone."""
        if self._recorder:
            self._recorder(observation)
        _OBSERVERS[type(observation)](self, observation)

    def pop(self, now: float) -> Entity | None:
        """The next entity to try; `settle` must follow before another is taken."""
        entity = self.queue.pop(now)
        if entity and self._recorder:
            self._recorder(EntityPopped(now, entity_version(entity)))
        return entity

    def cycle(self, entity: Entity) -> Steps[Decision]:
        """The steps that decide about it, over the cluster as it is known at the first of them."""
        return run_cycle(entity, self.cache.snapshot(), self.profiles.policy(entity))

    def decide(self, entity: Entity) -> Decision:
        """The same at one go."""
        return decide(entity, self.cache.snapshot(), self.profiles.policy(entity))

    def record_answer(self, answer: SolverAnswer, now: float) -> None:
        """What the cycle that is under way was told when it asked."""
        if self._recorder:
            self._recorder(SolverAnswered(now, answer))

    def finish_search(self, now: float) -> None:
        """A search came to an end that a cycle did not wait for: who asked may ask again."""
        if self._recorder:
            self._recorder(SearchFinished(now))
        self.queue.wake(ClusterEvent.SEARCH_ENDED, now)

    def commit(self, entity: Entity, decision: Decision, now: float) -> bool:
        """What was decided counts from now on. False: it is not wanted any more and tried anew."""
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
        """Keep for the members what they were promised, and nothing else."""
        nodes = {pod: node for pod, _, node in nominations_of(decision)}
        metas = [member.pod.metadata for member in entity.members]
        self._wake(
            self.cache.nominate(
                Binding(meta.key, meta.uid, nodes.get(meta.key, "")) for meta in metas
            ),
            now,
        )

    def cancel_evictions(self, victims: Iterable[tuple[Key, str]], now: float) -> None:
        """These were to be evicted and were not: they stay."""
        spared = tuple(victims)
        if self._recorder:
            self._recorder(EvictionsCancelled(now, spared))
        self.cache.mark_evicting(spared, evicting=False)

    def rollback(self, bindings: Iterable[Binding], now: float) -> None:
        """These placements did not come about: the pods wait again."""
        undone = tuple(bindings)
        if self._recorder:
            self._recorder(BindingsRolledBack(now, undone))
        freed = self.cache.forget(undone)
        self.queue.return_unbound(undone, now)
        self._wake(freed, now)

    def checkpoint(self, now: float) -> Iterator[DecisionLogRecord]:
        """What another desk must be told to stand like this one, after all objects."""
        if assumptions := self.cache.assumed_bindings():
            yield PodsAssumed(now, tuple(assumptions))
        promises, doomed = self.cache.unreported_nominations(), self.cache.evicting_pods()
        if promises or doomed:
            yield PodsNominated(now, tuple(promises), tuple(doomed))
        for memory in self.queue.checkpoint():
            yield EntityRestored(now, memory)

    def restore(self, record: PodsAssumed | PodsNominated | EntityRestored) -> None:
        """Stand as another did: what its `standing` says, in that order."""
        if isinstance(record, PodsAssumed):
            self.cache.assume(record.bindings)
            self.queue.assume(record.bindings, record.at)
        elif isinstance(record, PodsNominated):
            self.cache.nominate(record.promises)
            self.cache.mark_evicting(record.doomed)
        else:
            self.queue.restore(record.memory)

    def _wake(self, events: Iterable[ClusterEvent | None], now: float) -> None:
        for event in events:
            if event is not None:
                self.queue.wake(event, now)

    def _observe_namespace(self, observed: NamespaceObserved) -> None:
        self._wake([self.cache.update_namespace(observed.name, observed.labels)], observed.at)

    def _observe_service(self, observed: ServiceObserved) -> None:
        self.cache.update_service(observed.key, observed.selector)
        # Whoever says nothing of where it is to be is spread with others than before.
        self.queue.wake(ClusterEvent.POD_PLACED, observed.at)

    def _observe_node(self, observed: NodeObserved) -> None:
        self._wake([self.cache.update_node(observed.name, observed.node)], observed.at)

    def _observe_group(self, observed: PodGroupObserved | CompositePodGroupObserved) -> None:
        is_composite = isinstance(observed, CompositePodGroupObserved)
        self.cache.update_group(GroupRef(is_composite, observed.key), observed.group)
        if observed.group is None:
            self.queue.remove_group(observed.key, observed.at, is_composite=is_composite)
        else:
            self.queue.observe_group(observed.group, observed.at)

    def _observe_budget(self, observed: DisruptionBudgetObserved) -> None:
        self.cache.update_budget(observed.key, observed.budget)

    def _observe_pod(self, observed: PodObserved) -> None:
        freed = self.cache.update_pod(observed.key, observed.pod)
        if observed.pod is None:
            self.queue.remove_pod(observed.key, observed.at)
        else:
            self.queue.observe_pod(observed.pod, observed.at)
        self._wake(freed, observed.at)


_OBSERVERS: Mapping[type[Observation], Callable[[SchedulerState, Any], None]] = {
    NamespaceObserved: SchedulerState._observe_namespace,
    ServiceObserved: SchedulerState._observe_service,
    NodeObserved: SchedulerState._observe_node,
    PodGroupObserved: SchedulerState._observe_group,
    CompositePodGroupObserved: SchedulerState._observe_group,
    DisruptionBudgetObserved: SchedulerState._observe_budget,
    PodObserved: SchedulerState._observe_pod,
}
