"""One scheduler of a fault run, and the register of all decisions.

`DecisionRegister` compares bindings and evictions with decisions: a pod is bound to the node that a
scheduler decided on, together with all pods of that decision, or it was bound by hand. A victim was
chosen by a decision, and all victims of that decision in the namespace are evicted too or are gone.

`SchedulerInstance` is the product's scheduler behind a faulty channel, with a verifier. A killed
one leaves its sent requests behind; the next one starts from what the API shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from typing import Protocol

from phalanx.api.core import Pod
from phalanx.api.meta import Key, Ref
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.scheduling.scheduler import Scheduler
from phalanx.randomness import Random
from phalanx.scheduler.decision import Decision, Placed, Preempting, Waiting, nominations_of
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.queue.queue_listing import QueuedEntityInfo
from phalanx.scheduler.queue.queued_entity import QueueState
from phalanx.scheduler.queue.scheduler_state import ClusterObjects
from phalanx.sim.invariants import becomes_bound, becomes_preempted
from tools.faults.channel import FaultyChannel
from tools.faults.model import ExpectedView, StoreLogReader
from tools.faults.steady_state import check_scheduler, check_statuses

#: A pod by its uid, and a node.
_PodNode = tuple[str, str]


class DecisionRegister:
    """The decisions, and the bindings since the last audit; some pods are bound by hand.

    With `is_whole` the pods of a decision are bound, or evicted, in one transaction.
    """

    def __init__(self, pods: ObjectCache[Pod], *, is_whole: bool = True) -> None:
        self._is_whole = is_whole
        self.manually_bound: dict[str, None] = {}
        self._decided: dict[_PodNode, list[frozenset[_PodNode]]] = {}
        self._bound: dict[_PodNode, Pod] = {}
        self._chosen_victims: dict[str, list[list[tuple[Key, str]]]] = {}
        self._evicted: dict[str, Pod] = {}
        self._pods = pods
        pods.subscribe(self._on_pod_changed)

    def record_placement(self, placed: Placed) -> None:
        """Allow binding these pods to these nodes, all or none."""
        together = frozenset((uid, node) for _, uid, node in placed.bindings)
        for pair in sorted(together):
            self._decided.setdefault(pair, []).append(together)

    def record_preemption(self, preempting: Preempting) -> None:
        """Allow evicting these pods, all of a namespace or none."""
        together = [(victim.pod, victim.uid) for victim in preempting.victims]
        for victim in preempting.victims:
            self._chosen_victims.setdefault(victim.uid, []).append(together)

    def audit(self) -> list[str]:
        """Return the violations of bindings and evictions since the last call."""
        return [*self._check_bindings(), *self._check_evictions()]

    def _check_evictions(self) -> Iterator[str]:
        evicted, self._evicted = self._evicted, {}
        for uid, pod in evicted.items():
            choices = self._chosen_victims.get(uid, [])
            if not choices:
                yield f"pod {pod.metadata.key} is evicted without a decision"
            elif self._is_whole and all(
                any(self._is_remaining(pod, *one) for one in chosen) for chosen in choices
            ):
                yield f"pod {pod.metadata.key} is evicted without the other victims of its decision"

    def _is_remaining(self, pod: Pod, key: Key, uid: str) -> bool:
        """Whether another victim of the same decision remains."""
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
                wrong.append(f"pod {pod.metadata.key} got node {node}, without a decision")
            elif self._is_whole and not any(together <= bound.keys() for together in decisions):
                wrong.append(
                    f"pod {pod.metadata.key} got its node without the other pods of its decision"
                )
        return wrong

    def _on_pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and becomes_bound(old, new):
            self._bound[new.metadata.uid, new.spec.node_name] = new
        if new is not None and becomes_preempted(old, new):
            self._evicted[new.metadata.uid] = new


class DecisionVerifier(Protocol):
    """Checks decisions independently of the scheduler."""

    def violations(
        self,
        seen: ClusterObjects,
        entity: Entity,
        decision: Decision,
        *,
        reserved: Collection[str] = (),
    ) -> list[str]:
        """Return the faults of a decision, given what the scheduler had seen and reserved."""
        ...

    def fits(self, seen: ClusterObjects, entity: Entity) -> bool:
        """Whether an entity could be placed, given what the scheduler has seen."""
        ...


class SchedulerInstance:
    """One run of one scheduler; a callback receives every violation."""

    def __init__(
        self,
        channel: FaultyChannel,
        clock: Clock,
        random: Random,
        *,
        store_log: StoreLogReader,
        decisions: DecisionRegister,
        verifier: DecisionVerifier,
        report: Callable[[str], None],
        is_foreign: bool = False,
    ) -> None:
        self.channel, self._is_foreign = channel, is_foreign
        client = Client(channel)
        self._informers = Informers(client, random)
        self.scheduling = Scheduler(
            client, self._informers, clock, random=random, is_foreign=is_foreign
        )
        self.scheduling.before_cycle.append(self._on_popped)
        self.scheduling.after_decision.append(self._on_decided)
        self._store_log, self._model = store_log, ExpectedView(store_log, self._informers)
        self._decisions, self._verifier, self._report = decisions, verifier, report
        #: The last attempt of each entity.
        self._last_attempts: dict[Ref, tuple[Entity, Decision]] = {}
        #: Where this scheduler has decided to put pods, its nominations, and its victims.
        self._assigned_nodes: dict[str, str] = {}
        self._nominated: dict[tuple[str, str], None] = {}
        self._victims: dict[str, None] = {}
        #: What the scheduler must have known when it last popped an entity.
        self._cluster_at_pop = self.expected_cluster()

    async def run(self) -> None:
        """Schedule until killed."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informers.run())
            group.create_task(self.scheduling.run())

    def is_idle(self) -> bool:
        """Whether the scheduler only waits."""
        active = (QueueState.ACTIVE, QueueState.IN_FLIGHT)
        return not self.scheduling.is_busy and all(
            place.state not in active for place in self.scheduling.queue.list_entities()
        )

    def expected_cluster(self) -> ClusterObjects:
        """Return what the scheduler must know, including its own decisions."""
        self._model.catch_up()
        nominations = {**self._unreported_nominations(), **self._withheld_nominations()}
        return self._model.cluster(self._assumed(), nominations, self._evicting())

    def _assumed(self) -> dict[Key, str]:
        """Return the pods that are bound by decision but not yet in the API."""
        assumed: dict[Key, str] = {}
        for key in self.scheduling.cache.assumed_pods():
            pod = self._model.pods.get(key)
            if pod is None or pod.spec.node_name or pod.metadata.uid not in self._assigned_nodes:
                self._report(f"pod {key} is assumed to have a node, but is {_describe_pod(pod)}")
            else:
                assumed[key] = self._assigned_nodes[pod.metadata.uid]
        return assumed

    def _unreported_nominations(self) -> dict[Key, str]:
        """Return the nominations that the API does not show yet."""
        found: dict[Key, str] = {}
        for key, uid, node in self.scheduling.cache.unreported_nominations():
            if node and (uid, node) not in self._nominated:
                self._report(f"pod {key} is nominated for node {node}, without a decision")
            found[key] = node
        return found

    def _withheld_nominations(self) -> dict[Key, str]:
        """Return the nominations that do not count because the entity cannot be attempted."""
        found: dict[Key, str] = {}
        for key in self.scheduling.cache.withheld_nominations():
            if not self.scheduling.queue.is_held_back(key):
                self._report(f"the nomination of pod {key} does not count, but its entity is ready")
            found[key] = ""
        return found

    def _evicting(self) -> frozenset[str]:
        """Return the victims that the API does not show yet."""
        evicting = self.scheduling.cache.evicting_pods()
        for key, uid in evicting:
            pod = self._model.pods.get(key)
            if pod is None or pod.metadata.deletion_timestamp or uid not in self._victims:
                self._report(f"pod {key} is taken for a victim, but is {_describe_pod(pod)}")
        return frozenset(uid for _, uid in evicting)

    def check_no_missed_placement(self) -> None:
        """Check that a refused entity at rest cannot be placed: no wake-up was missed."""
        cache, seen = self.scheduling.cache, self.expected_cluster()
        if seen.evicting or cache.devices.has_assumed or cache.volumes.has_assumed:
            # Capacity of terminating pods counts once their deletion is observed, and what is
            # assumed for claims is in no object.
            return
        for place in self.scheduling.queue.list_entities():
            if isinstance(place.outcome, Waiting) and place.outcome.held_by:
                continue
            entity = self._unchanged_attempt(place)
            if entity is not None and self._verifier.fits(seen, entity):
                self._report(f"{place.key} waits, although it can be placed")

    def check_steady_state(self) -> list[str]:
        """Return the violations of the steady state."""
        cache, queue, tail = self.scheduling.cache, self.scheduling.queue, self._store_log
        return [
            *check_scheduler(cache, queue, tail),
            *check_statuses(queue, self._last_decision, tail, has_counts=not self._is_foreign),
        ]

    def _last_decision(self, id_: Ref) -> Decision | None:
        return self._last_attempts.get(id_, (None, None))[1]

    def _unchanged_attempt(self, place: QueuedEntityInfo) -> Entity | None:
        """Return the last attempt of an entity if nothing about it has changed since."""
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
        reserved = {
            node
            for one in self.scheduling.reservations
            if one.ref != entity.ref
            for node in one.nodes
        }
        for sentence in self._verifier.violations(
            self._cluster_at_pop, entity, decision, reserved=reserved
        ):
            self._report(sentence)
        self._last_attempts[entity.ref] = entity, decision
        self._nominated.update({(uid, node): None for _, uid, node in nominations_of(decision)})
        if isinstance(decision, Placed):
            self._decisions.record_placement(decision)
            self._assigned_nodes.update({uid: node for _, uid, node in decision.bindings})
        elif isinstance(decision, Preempting):
            self._decisions.record_preemption(decision)
            self._victims.update({victim.uid: None for victim in decision.victims})


def _describe_pod(pod: object | None) -> str:
    return "gone" if pod is None else "bound or leaving already"
