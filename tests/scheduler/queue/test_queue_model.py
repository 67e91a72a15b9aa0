"""The scheduling queue against a model that only knows which pods and groups exist.

After any events in any order: every pod is queued once, no entity is in two attempts at a time, no
entity is attempted that is not ready, and every entity that can be attempted is attempted.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from phalanx.api.core import Pod
from phalanx.api.meta import Key, pod_group_ref
from phalanx.scheduler.cluster.cluster_delta import ClusterDelta
from phalanx.scheduler.decision import Binding, ClusterEvent, Placed, UnplacedPod, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.queue.queued_entity import QueueState
from phalanx.scheduler.queue.scheduling_queue import SchedulingQueue
from tests.scheduler.builders import gang, key, pod

PODS = st.sampled_from(["p0", "p1", "p2", "p3"])
GROUPS = st.sampled_from(["", "g", "g", "h"])
ONE_IN_FIVE = st.integers(0, 4).map(lambda n: n == 4)
PRIORITY = {"": 1, "g": 0, "h": 2}


@dataclass
class KnownPod:
    """A pod in the model."""

    pod: Pod
    #: pending, placed (its binding is in progress) or bound
    where: str = "pending"


class QueueModel(RuleBasedStateMachine):
    """Drives a queue with random events and checks it after each."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = SchedulingQueue()
        self.now = 0.0
        self.serial = 0
        self.pods: dict[str, KnownPod] = {}
        self.quorums: dict[str, int] = {}
        self.flying: dict[Key, Entity] = {}

    # ---- events ----------------------------------------------------------------------------------

    @initialize(quorum=st.integers(1, 2))
    def create_gang_and_pod(self, quorum: int) -> None:
        self.change_group("g", quorum)
        self.create_pod("p0", "g", False, False)
        self.create_pod("p1", "g", False, False)
        self.create_pod("p2", "", False, False)

    @rule(name=PODS, group=GROUPS, gated=ONE_IN_FIVE, foreign=ONE_IN_FIVE)
    def create_pod(self, name: str, group: str, gated: bool, foreign: bool) -> None:
        """Also replaces a pod of the same name whose deletion was not observed."""
        self.serial += 1
        one = pod(
            name,
            group,
            uid=f"{self.serial}",
            gates=["quota"] if gated else [],
            priority=PRIORITY[group],
            scheduler="other" if foreign else "default-scheduler",
        )
        self.pods[name] = KnownPod(one)
        self.queue.observe_pod(one, self.now)

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), how=st.sampled_from(["is observed", "is ungated", "is bound", "goes"]))
    def change_pod(self, data: st.DataObject, how: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.pods)))
        known = self.pods[name]
        if how == "goes":
            del self.pods[name]
            self.queue.remove_pod(key(name), self.now)
        elif how == "is bound":
            known.where = "bound"
            self.change(known, on="n")
        elif how == "is ungated" and known.where == "pending":
            self.change(known, gates=[])
        else:
            self.queue.observe_pod(known.pod, self.now)

    @rule(name=st.sampled_from(["g", "h"]), quorum=st.sampled_from([1, 1, 2, 3, 0]))
    def change_group(self, name: str, quorum: int) -> None:
        """Create it, change its minCount, or delete it."""
        if quorum:
            self.quorums[name] = quorum
            self.queue.observe_group(gang(name, quorum, priority=PRIORITY[name]), self.now)
        else:
            self.quorums.pop(name, None)
            self.queue.remove_group(pod_group_ref(key(name)), self.now)

    @rule(
        seconds=st.sampled_from([0.0, 1.0, 7.0]),
        event=st.sampled_from([ClusterEvent.NODE_ADDED, ClusterEvent.POD_GONE, None]),
    )
    def pass_time(self, seconds: float, event: ClusterEvent | None) -> None:
        self.now += seconds
        if event:
            self.queue.wake(ClusterDelta(event), self.now)

    # ---- steps of the scheduler ------------------------------------------------------------------

    @precondition(lambda self: self.ours())
    @rule()
    def pop_next_entity(self) -> None:
        best = [place for place in self.queue.list_entities() if place.state is QueueState.ACTIVE][
            :1
        ]
        one = self.queue.pop(self.now)
        if one is None:
            assert not best
            return
        assert one.key not in self.flying
        self.expect_ready(one)
        if best and best[0].key != one.key:
            # Only an entity whose back-off has just ended may come earlier.
            assert self.rank(one) <= (-best[0].priority, best[0].timestamp)
        self.flying[one.key] = one

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), count=st.integers(0, 3))
    def end_attempt(self, data: st.DataObject, count: int) -> None:
        """Place so many members."""
        one = self.flying.pop(data.draw(st.sampled_from(sorted(self.flying))))
        if count:
            self.place(one, count)
        else:
            refused = [
                UnplacedPod(m.pod.metadata.key, m.pod.metadata.uid, None) for m in one.members
            ]
            cures = frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.MEMBER_CHANGED})
            decision = Waiting(one.group_key, tuple(refused), 1, 0, 0, 0, cures)
            self.queue.done(one, decision, self.now)

    @precondition(lambda self: any(known.where == "placed" for known in self.pods.values()))
    @rule(data=st.data())
    def fail_binding(self, data: st.DataObject) -> None:
        placed = sorted(name for name, known in self.pods.items() if known.where == "placed")
        known = self.pods[data.draw(st.sampled_from(placed))]
        known.where = "pending"
        meta = known.pod.metadata
        self.queue.return_unbound([Binding(meta.key, meta.uid, "n")], self.now)

    # ---- invariants ------------------------------------------------------------------------------

    @invariant()
    def every_pod_is_queued_once(self) -> None:
        listed = [name.name for place in self.queue.list_entities() for name in place.pods]
        assert sorted(listed) == sorted(self.ours())

    @invariant()
    def popped_entities_are_in_flight(self) -> None:
        states = {p.key: p.state for p in self.queue.list_entities()}
        known = {name for name, state in states.items() if state is QueueState.IN_FLIGHT}
        assert known == set(self.flying)

    @invariant()
    def active_entities_are_ready(self) -> None:
        for place in self.queue.list_entities():
            if place.state in (QueueState.ACTIVE, QueueState.BACKING_OFF):
                assert self.ready(place.key.name if place.is_group else "", place.pods)

    @invariant()
    def held_back_entities_are_not_ready(self) -> None:
        for place in self.queue.list_held_back():
            assert not self.ready(place.key.name if place.is_group else "", place.pods)

    def teardown(self) -> None:
        """Every ready entity is attempted in the end, and placed if possible."""
        for flying in self.flying.values():
            self.place(flying, len(flying.members))
        self.flying.clear()
        self.now += 1000.0
        while (one := self.queue.pop(self.now)) is not None:
            self.expect_ready(one)
            self.place(one, len(one.members))
        assert all(place.unready for place in self.queue.list_entities())
        self.every_pod_is_queued_once()

    # ---- the model -------------------------------------------------------------------------------

    def ours(self) -> list[str]:
        return [
            name
            for name, known in self.pods.items()
            if known.where == "pending" and known.pod.spec.scheduler_name == "default-scheduler"
        ]

    def ready(self, group: str, pods: tuple[Key, ...]) -> bool:
        gated = any(self.pods[name.name].pod.spec.scheduling_gates for name in pods)
        if not group:
            return not gated
        there = sum(known.pod.group == key(group) for known in self.pods.values())
        return not gated and group in self.quorums and there >= self.quorums[group]

    def expect_ready(self, one: Entity) -> None:
        pods = tuple(m.pod.metadata.key for m in one.members)
        assert self.ready(one.key.name if one.group else "", pods)
        known = [self.pods[name.name].pod.metadata.uid for name in pods]
        assert known == [m.pod.metadata.uid for m in one.members]

    def rank(self, one: Entity) -> tuple[int, float]:
        priority = one.group.spec.priority if one.group else one.members[0].pod.spec.priority
        return -priority, one.timestamp

    def change(self, known: KnownPod, *, gates: list[str] | None = None, on: str = "") -> None:
        old = known.pod
        kept = [gate.name for gate in old.spec.scheduling_gates]
        known.pod = pod(
            old.metadata.name,
            old.group.name if old.group else "",
            uid=old.metadata.uid,
            on=on or old.spec.node_name,
            gates=kept if gates is None else gates,
            priority=old.spec.priority,
            scheduler=old.spec.scheduler_name,
        )
        self.queue.observe_pod(known.pod, self.now)

    def place(self, one: Entity, count: int) -> None:
        chosen = one.members[:count]
        bindings = tuple(Binding(m.pod.metadata.key, m.pod.metadata.uid, "n") for m in chosen)
        self.queue.done(one, Placed(one.group_key, bindings), self.now)
        for name, uid, _ in bindings:
            known = self.pods.get(name.name)
            if known and known.pod.metadata.uid == uid and known.where == "pending":
                known.where = "placed"


TestQueueModel = QueueModel.TestCase
TestQueueModel.settings = settings(max_examples=100, stateful_step_count=50)
