"""Every placement that any scheduler ever decided, held against every bind that took place.

A pod gets the node that somebody decided on, and gets it together with all that was decided with
it; or it was bound by hand. Whoever makes way was chosen to, and all who were chosen with him are
gone by then or make way too, namespace by namespace. Hears of decisions from the schedulers and of
binds and evictions from the store.

One scheduler in an ordeal: the shell as it is, behind a channel, with a witness at its side.

Started and killed by `stage`. A killed one leaves behind what it has sent; the next one starts from
what the API shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol

from phalanx.api.core import Pod
from phalanx.api.meta import Key
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.scheduling.scheduler import Scheduler
from phalanx.randomness import Random
from phalanx.scheduler.decision import Decision, Placed, Preempting, Waiting, nominations_of
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.queue.cluster_objects import ClusterObjects
from phalanx.scheduler.queue.queued_entity import EntityId, QueuedEntityInfo, QueueState
from phalanx.sim.invariants import becomes_bound, becomes_preempted
from tools.faults.channel import FaultyChannel
from tools.faults.model import ExpectedView, StoreLogReader
from tools.faults.steady_state import check_scheduler, check_statuses

#: A pod by its uid, and a node.
_PodNode = tuple[str, str]


class DecisionRegister:
    """What was decided, and what was bound since the last look. `strangers` are bound by hand."""

    def __init__(self, pods: ObjectCache[Pod]) -> None:
        self.manually_bound: dict[str, None] = {}
        self._decided: dict[_PodNode, list[frozenset[_PodNode]]] = {}
        self._bound: dict[_PodNode, Pod] = {}
        self._chosen_victims: dict[str, list[list[tuple[Key, str]]]] = {}
        self._evicted: dict[str, Pod] = {}
        self._pods = pods
        pods.subscribe(self._on_pod_changed)

    def record_placement(self, placed: Placed) -> None:
        """These pods may be bound to these nodes, all of them or none."""
        together = frozenset((uid, node) for _, uid, node in placed.bindings)
        for pair in sorted(together):
            self._decided.setdefault(pair, []).append(together)

    def record_preemption(self, preempting: Preempting) -> None:
        """These pods may be evicted, all of a namespace or none."""
        together = [(victim.pod, victim.uid) for victim in preempting.victims]
        for victim in preempting.victims:
            self._chosen_victims.setdefault(victim.uid, []).append(together)

    def audit(self) -> list[str]:
        """What is wrong about the binds and evictions since the last time."""
        return [*self._check_bindings(), *self._check_evictions()]

    def _check_evictions(self) -> Iterator[str]:
        evicted, self._evicted = self._evicted, {}
        for uid, pod in evicted.items():
            choices = self._chosen_victims.get(uid, [])
            if not choices:
                yield f"pod {pod.metadata.key} makes way, which nobody decided"
            elif all(any(self._is_remaining(pod, *one) for one in chosen) for chosen in choices):
                yield f"pod {pod.metadata.key} makes way without those chosen with it"

    def _is_remaining(self, pod: Pod, key: Key, uid: str) -> bool:
        """Whether somebody stays who was chosen with a pod."""
        other = self._pods.get(key)
        if other is None or other.metadata.uid != uid or key.namespace != pod.metadata.namespace:
            return False
        return not other.metadata.deletion_timestamp

    def _check_bindings(self) -> list[str]:
        bound, self._bound = self._bound, {}
        wrong = []
        for (uid, node), pod in bound.items():
            if uid in self.manually_bound:
                continue
            decisions = self._decided.get((uid, node), [])
            if not decisions:
                wrong.append(f"pod {pod.metadata.key} got node {node}, which nobody decided")
            elif not any(together <= bound.keys() for together in decisions):
                wrong.append(f"pod {pod.metadata.key} got its node without those decided with it")
        return wrong

    def _on_pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and becomes_bound(old, new):
            self._bound[new.metadata.uid, new.spec.node_name] = new
        if new is not None and becomes_preempted(old, new):
            self._evicted[new.metadata.uid] = new


class DecisionVerifier(Protocol):
    """Somebody who knows by other means what a scheduler should decide."""

    def violations(self, seen: ClusterObjects, entity: Entity, decision: Decision) -> list[str]:
        """What is wrong about a decision, given what the scheduler had seen."""
        ...

    def fits(self, seen: ClusterObjects, entity: Entity) -> bool:
        """Whether an entity could be placed, given what the scheduler has seen."""
        ...


class SchedulerInstance:
    """One life of one scheduler. `broken` is called with every sentence about what went wrong."""

    def __init__(
        self,
        channel: FaultyChannel,
        clock: Clock,
        random: Random,
        store_log: StoreLogReader,
        decisions: DecisionRegister,
        verifier: DecisionVerifier,
        report: Callable[[str], None],
    ) -> None:
        self.channel = channel
        client = Client(channel)
        self._informers = Informers(client, random)
        self.scheduling = Scheduler(client, self._informers, clock, random)
        self.scheduling.before_cycle.append(self._on_popped)
        self.scheduling.after_decision.append(self._on_decided)
        self._store_log, self._model = store_log, ExpectedView(store_log, self._informers)
        self._decisions, self._verifier, self._report = decisions, verifier, report
        #: The last attempt at each entity.
        self._last_attempts: dict[EntityId, tuple[Entity, Decision]] = {}
        #: Where this scheduler has decided to put pods, all that it has ever promised them, and
        #: whom it has decided to evict.
        self._assigned_nodes: dict[str, str] = {}
        self._nominated: dict[tuple[str, str], None] = {}
        self._victims: dict[str, None] = {}
        #: What it must have believed when it last took an entity.
        self._cluster_at_pop = self.expected_cluster()

    async def run(self) -> None:
        """Schedule until killed."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informers.run())
            group.create_task(self.scheduling.run())

    def is_idle(self) -> bool:
        """Whether it has nothing to do but wait."""
        active = (QueueState.ACTIVE, QueueState.IN_FLIGHT)
        return not self.scheduling.is_busy and all(
            place.state not in active for place in self.scheduling.queue.list_entities()
        )

    def expected_cluster(self) -> ClusterObjects:
        """What it must believe, with what it has decided itself."""
        self._model.catch_up()
        return self._model.cluster(
            self._assumed(), self._unreported_nominations(), self._evicting()
        )

    def _assumed(self) -> dict[Key, str]:
        """Who has a node that the API does not show yet."""
        assumed: dict[Key, str] = {}
        for key in self.scheduling.cache.assumed_pods():
            pod = self._model.pods.get(key)
            if pod is None or pod.spec.node_name or pod.metadata.uid not in self._assigned_nodes:
                self._report(f"pod {key} is assumed to have a node, but is {_describe_pod(pod)}")
            else:
                assumed[key] = self._assigned_nodes[pod.metadata.uid]
        return assumed

    def _unreported_nominations(self) -> dict[Key, str]:
        """Who was promised something else than the API shows yet."""
        found: dict[Key, str] = {}
        for key, uid, node in self.scheduling.cache.unreported_nominations():
            if node and (uid, node) not in self._nominated:
                self._report(f"pod {key} is kept node {node}, which nobody decided")
            found[key] = node
        return found

    def _evicting(self) -> frozenset[str]:
        """Who is to be evicted, which the API does not show yet."""
        doomed = self.scheduling.cache.evicting_pods()
        for key, uid in doomed:
            pod = self._model.pods.get(key)
            if pod is None or pod.metadata.deletion_timestamp or uid not in self._victims:
                self._report(f"pod {key} is taken for a victim, but is {_describe_pod(pod)}")
        return frozenset(uid for _, uid in doomed)

    def check_no_missed_placement(self) -> None:
        """Whoever waits at rest after a refusal cannot be placed: no cure went unnoticed."""
        seen = self.expected_cluster()
        if seen.evicting:
            # What becomes possible once they leave is noticed when they are seen to.
            return
        for place in self.scheduling.queue.list_entities():
            entity = self._unchanged_attempt(place)
            if entity is not None and self._verifier.fits(seen, entity):
                self._report(f"{place.key} waits, although it can be placed")

    def check_steady_state(self) -> list[str]:
        """What must not be the case when all is quiet, and is."""
        cache, queue, tail = self.scheduling.cache, self.scheduling.queue, self._store_log
        return [
            *check_scheduler(cache, queue, tail),
            *check_statuses(queue, self._last_decision, tail),
        ]

    def _last_decision(self, id_: EntityId) -> Decision | None:
        return self._last_attempts.get(id_, (None, None))[1]

    def _unchanged_attempt(self, place: QueuedEntityInfo) -> Entity | None:
        """The last attempt at an entity, if what waits is exactly what was refused then."""
        entity, decision = self._last_attempts.get(place.ref, (None, None))
        if (
            entity is None
            or not isinstance(decision, Waiting | Preempting)
            or place.state is not QueueState.BACKING_OFF
        ):
            return None
        tried = {member.pod.metadata.key for member in entity.members}
        return entity if tried == set(place.pods) else None

    def _on_popped(self, entity: Entity) -> None:
        self._cluster_at_pop = self.expected_cluster()

    def _on_decided(self, entity: Entity, decision: Decision) -> None:
        for sentence in self._verifier.violations(self._cluster_at_pop, entity, decision):
            self._report(sentence)
        id_ = EntityId(entity.group is not None, entity.key, entity.is_composite)
        self._last_attempts[id_] = entity, decision
        self._nominated.update({(uid, node): None for _, uid, node in nominations_of(decision)})
        if isinstance(decision, Placed):
            self._decisions.record_placement(decision)
            self._assigned_nodes.update({uid: node for _, uid, node in decision.bindings})
        elif isinstance(decision, Preempting):
            self._decisions.record_preemption(decision)
            self._victims.update({victim.uid: None for victim in decision.victims})


def _describe_pod(pod: object | None) -> str:
    return "gone" if pod is None else "bound or leaving already"
