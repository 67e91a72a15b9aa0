"""No pod is evicted if waiting, searching or deciding again makes the eviction needless."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as altered

from phalanx.api.core import Node, Pod, Taint
from phalanx.api.meta import Condition, timestamp
from phalanx.api.scheduling import TOPOLOGY_ANNOTATION, PodGroup
from phalanx.controllers.scheduling.exact_solver import HighsSolver
from phalanx.scheduler.cluster.pod_index import MAX_OVERDUE_SECONDS
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import (
    Binding,
    ClusterEvent,
    Decision,
    Placed,
    Preempting,
    Waiting,
)
from phalanx.scheduler.policy import DEFAULT_POLICY, DEFAULT_PROFILES
from phalanx.scheduler.preemption.evaluator import LEVEL_PREFERRED, VICTIMS_TERMINATING
from phalanx.scheduler.queue.decision_log import NodeObserved, PodGroupObserved, PodObserved
from phalanx.scheduler.queue.scheduler_state import SchedulerState
from phalanx.scheduler.queue.scheduling_queue import MAX_OUTDATED
from phalanx.scheduler.search.solver import SolverAnswer, SolverGaveUp, SolverPending
from tests.scheduler.builders import cluster, entity, gang, key, node, pod

DELETED_AT = 1000.0


class Cluster:
    """A scheduler state in virtual time."""

    def __init__(self, *objects: Node | Pod | PodGroup) -> None:
        self.state, self.now = SchedulerState(DEFAULT_PROFILES), 0.0
        self.pods: dict[str, Pod] = {}
        self.add(*objects)

    def add(self, *objects: Node | Pod | PodGroup) -> None:
        for one in objects:
            if isinstance(one, Node):
                self.state.observe(NodeObserved(self.now, one.metadata.name, one))
            elif isinstance(one, Pod):
                self.pods[one.metadata.name] = one
                self.state.observe(PodObserved(self.now, one.metadata.key, one))
            else:
                self.state.observe(PodGroupObserved(self.now, one.metadata.key, one))

    def delete(self, *names: str) -> None:
        for name in names:
            self.state.observe(PodObserved(self.now, key(name), None))

    def run(self, now: float | None = None) -> dict[str, Decision]:
        """Attempt all that can be attempted, bind what is placed; return the first decisions."""
        self.now = self.now if now is None else now
        decisions: dict[str, Decision] = {}
        while (one := self.state.pop(self.now)) is not None:
            decision = self.state.decide(one)
            decisions.setdefault(one.key.name, decision)
            self.state.commit(one, decision, self.now)
            if isinstance(decision, Placed):
                for binding in decision.bindings:
                    old = self.pods[binding.pod.name]
                    self.add(altered(old, spec=altered(old.spec, node_name=binding.node)))
        return decisions

    def nominated(self) -> dict[str, str]:
        """The nominated node of each pod."""
        nominations = self.state.cache.snapshot().nominations
        return {name.name: pod.node for name, pod in sorted(nominations.items())}


def nodes(count: int) -> list[Node]:
    return [node(f"n{i}", cpu="1") for i in range(count)]


def running(name: str, on: str, priority: int = 0) -> Pod:
    return pod(name, on=on, phase="Running", cpu="1", priority=priority)


def terminating(one: Pod, at: float = DELETED_AT) -> Pod:
    return altered(one, metadata=altered(one.metadata, deletion_timestamp=timestamp(at)))


def preempted(one: Pod) -> Pod:
    condition = Condition("DisruptionTarget", "True", "PreemptionByScheduler")
    return altered(one, status=altered(one.status, conditions=(condition,)))


def members(name: str, count: int, priority: int = 100) -> list[Pod]:
    return [pod(f"{name}-{i}", name, cpu="1", priority=priority) for i in range(count)]


# ---- pods that hang ------------------------------------------------------------------------------


def test_pod_that_hangs_in_terminating_is_waited_for_until_it_is_overdue() -> None:
    hanging = terminating(running("hanging", "n0"))
    one = Cluster(*nodes(2), hanging, running("low", "n1"))
    one.now = DELETED_AT
    one.add(pod("critical", cpu="1", priority=100))
    first = one.run()["critical"]
    assert isinstance(first, Waiting)
    assert first.preemption == VICTIMS_TERMINATING
    again = one.run(DELETED_AT + MAX_OVERDUE_SECONDS - 0.1)["critical"]
    assert isinstance(again, Waiting)
    # The back-off ends when the pod is overdue, without any event.
    deadline = one.state.queue.next_backoff_end()
    assert deadline is not None
    assert deadline <= DELETED_AT + MAX_OVERDUE_SECONDS
    decision = one.run(DELETED_AT + MAX_OVERDUE_SECONDS)["critical"]
    assert isinstance(decision, Preempting)
    assert [victim.pod.name for victim in decision.victims] == ["low"]


def test_retry_of_a_long_back_off_is_due_when_the_pod_is_overdue() -> None:
    one = Cluster(*nodes(1), terminating(running("hanging", "n0"), DELETED_AT))
    one.now = 0.0
    one.add(pod("critical", cpu="1", priority=100))
    decision = one.run(DELETED_AT + MAX_OVERDUE_SECONDS - 0.5)["critical"]
    assert isinstance(decision, Waiting)
    assert decision.retry_delay == 0.5
    assert one.state.queue.next_backoff_end() == DELETED_AT + MAX_OVERDUE_SECONDS


def test_grace_period_in_the_deletion_timestamp_is_granted() -> None:
    hanging = terminating(running("slow", "n0"), DELETED_AT + 3600)
    one = Cluster(*nodes(2), hanging, running("low", "n1"))
    one.add(pod("critical", cpu="1", priority=100))
    assert isinstance(one.run(DELETED_AT + 3600)["critical"], Waiting)


def test_overdue_pod_is_no_victim() -> None:
    one = Cluster(*nodes(1), terminating(running("hanging", "n0")))
    one.add(pod("critical", cpu="1", priority=100))
    decision = one.run(DELETED_AT + 2 * MAX_OVERDUE_SECONDS)["critical"]
    assert isinstance(decision, Waiting)
    assert (decision.preemption, decision.retry_delay) == ("", None)


def nominated_gang(*pods: Pod) -> tuple[Cluster, PodGroup, list[Pod]]:
    """A gang of two, nominated to n0 and n1, of which a third pod has taken n1 since."""
    group, own = gang("g", 2, priority=100), members("g", 2)
    one = Cluster(*nodes(3), group, *own, *pods)
    one.state.cache.nominate(
        Binding(p.metadata.key, p.metadata.uid, f"n{i}") for i, p in enumerate(own)
    )
    return one, group, own


@pytest.mark.parametrize("is_own", [True, False])
def test_only_own_victims_hold_off_a_new_preemption(is_own: bool) -> None:
    leaving = terminating(running("leaving", "n0"), DELETED_AT)
    leaving = preempted(leaving) if is_own else leaving
    one, _, _ = nominated_gang(leaving, running("taken", "n1", priority=500), running("low", "n2"))
    decision = one.run(DELETED_AT)["g"]
    assert isinstance(decision, Waiting if is_own else Preempting)
    assert one.nominated() == ({"g-0": "n0", "g-1": "n1"} if is_own else {"g-0": "n0", "g-1": "n2"})


def test_victims_of_another_preemptor_hold_off_no_preemption() -> None:
    leaving = preempted(terminating(running("leaving", "n2"), DELETED_AT))
    one = Cluster(*nodes(3), leaving, running("a", "n0"), running("b", "n1"))
    one.add(gang("g", 3, priority=100), *members("g", 3))
    decision = one.run(DELETED_AT)["g"]
    assert isinstance(decision, Preempting)
    assert sorted(victim.pod.name for victim in decision.victims) == ["a", "b"]


# ---- preferences and searches --------------------------------------------------------------------


def preferring_gang(text: str, waited: float) -> Decision:
    """A gang of four that prefers one rack; each rack of four nodes has two low pods."""
    racks = [node(f"n{i}", {"rack": f"r{i // 4}"}, cpu="1") for i in range(8)]
    group = gang("g", 4, priority=100)
    meta = altered(group.metadata, annotations={TOPOLOGY_ANNOTATION: text})
    group = altered(group, metadata=meta)
    cache = cluster(racks, [running(f"low-{i}", f"n{i}") for i in (0, 1, 4, 5)])
    one = replace(entity(group, members("g", 4)), waited_seconds=waited)
    return decide(one, cache.snapshot(), DEFAULT_POLICY)


def test_no_pod_is_evicted_for_a_topology_level_that_will_be_relaxed() -> None:
    decision = preferring_gang("rack, * after 5m", 299.0)
    assert isinstance(decision, Waiting)
    assert (decision.preemption, decision.retry_delay) == (LEVEL_PREFERRED, 1.0)
    assert isinstance(preferring_gang("rack, * after 5m", 300.0), Placed)


def test_pods_are_evicted_for_a_topology_level_that_stays() -> None:
    decision = preferring_gang("n, rack after 5m", 300.0)
    assert isinstance(decision, Preempting)
    assert len(decision.victims) == 2


def test_victims_are_chosen_at_the_widest_level() -> None:
    racks = [node(f"n{i}", {"rack": f"r{i // 2}"}, cpu="1") for i in range(4)]
    group = gang("g", 2, priority=100)
    meta = altered(group.metadata, annotations={TOPOLOGY_ANNOTATION: "rack, *"})
    pods = [running("a", "n0", priority=500), running("b", "n1"), running("c", "n2", priority=5)]
    cache = cluster(racks, [*pods, running("d", "n3", priority=500)])
    free = cluster(racks, [*pods[1:], running("d", "n3", priority=500)])
    one = entity(altered(group, metadata=meta), members("g", 2))
    decision = decide(one, cache.snapshot(), DEFAULT_POLICY)
    assert isinstance(decision, Preempting)
    assert sorted(victim.pod.name for victim in decision.victims) == ["b", "c"]
    assert isinstance(decide(one, free.snapshot(), DEFAULT_POLICY), Preempting)


#: Free amounts of CPU and memory on two nodes, and members that only an exact search places there.
TIGHT_FREE = [(8, 9), (8, 12)]
TIGHT_MEMBERS = [(0, 6), (5, 1), (2, 4), (2, 5), (3, 4), (1, 1)]


def tight_gang(answer: SolverAnswer | None) -> Decision:
    """Decide about the members beside three nodes with pods of low priority."""
    busy = [
        pod(f"x{i}", on=f"n{i}", cpu=str(16 - cpu), memory=f"{16 - memory}Gi", priority=1000)
        for i, (cpu, memory) in enumerate(TIGHT_FREE)
    ]
    low = [pod(f"low-{i}", on=f"z{i}", cpu="16", memory="16Gi") for i in range(3)]
    names = [*(f"n{i}" for i in range(len(TIGHT_FREE))), *(f"z{i}" for i in range(3))]
    cache = cluster([node(name, cpu="16", memory="16Gi") for name in names], [*busy, *low])
    own = [
        pod(f"g-{i}", "g", cpu=str(cpu), memory=f"{memory}Gi", priority=100)
        for i, (cpu, memory) in enumerate(TIGHT_MEMBERS)
    ]
    solver = HighsSolver() if answer is None else lambda program: answer
    one = entity(gang("g", len(own), priority=100), own)
    return decide(one, cache.snapshot(), DEFAULT_POLICY, solver=solver)


def test_no_pod_is_evicted_while_an_exact_search_is_running() -> None:
    pending = tight_gang(SolverPending())
    assert isinstance(pending, Waiting)
    assert ClusterEvent.SEARCH_ENDED in pending.wakes_on
    assert isinstance(tight_gang(None), Placed)
    assert isinstance(tight_gang(SolverGaveUp("no")), Preempting)


# ---- outdated decisions --------------------------------------------------------------------------


def full_cluster() -> Cluster:
    one = Cluster(*nodes(2), running("a", "n0"), running("b", "n1"))
    one.add(gang("g", 2, priority=100), *members("g", 2))
    return one


def test_preemption_is_decided_again_if_room_appeared_during_the_cycle() -> None:
    one = full_cluster()
    entity = one.state.pop(0.0)
    assert entity is not None
    decision = one.state.decide(entity)
    assert isinstance(decision, Preempting)
    one.add(node("new-0", cpu="1"), node("new-1", cpu="1"))
    assert not one.state.commit(entity, decision, 0.0)
    assert one.state.cache.evicting_pods() == []
    assert isinstance(one.run()["g"], Placed)


def test_room_that_keeps_appearing_does_not_delay_a_preemption_forever() -> None:
    one = full_cluster()
    for number in range(MAX_OUTDATED + 1):
        entity = one.state.pop(0.0)
        assert entity is not None
        decision = one.state.decide(entity)
        one.add(node(f"small-{number}", cpu="1m"))
        assert one.state.commit(entity, decision, 0.0) is (number == MAX_OUTDATED)


def test_preemption_is_decided_again_if_a_nominated_node_is_gone() -> None:
    one = full_cluster()
    entity = one.state.pop(0.0)
    assert entity is not None
    decision = one.state.decide(entity)
    one.state.observe(NodeObserved(0.0, "n1", None))
    assert not one.state.commit(entity, decision, 0.0)
    assert one.state.cache.evicting_pods() == []


def test_no_pod_is_evicted_for_a_gang_that_became_incomplete_during_the_cycle() -> None:
    group, own = gang("g", 2, priority=100), members("g", 2)
    bound = altered(own[0], spec=altered(own[0].spec, node_name="n1"))
    one = Cluster(*nodes(2), group, running("a", "n0"), bound, own[1])
    entity = one.state.pop(0.0)
    assert entity is not None
    decision = one.state.decide(entity)
    assert isinstance(decision, Preempting)
    one.delete("g-0")
    assert not one.state.commit(entity, decision, 0.0)
    assert one.state.cache.evicting_pods() == []


def test_entity_backs_off_if_bindings_failed_during_an_outdated_preemption() -> None:
    one = Cluster(*nodes(2), running("low", "n1"), gang("g", 1, priority=100), *members("g", 2))
    first = one.state.pop(0.0)
    assert first is not None
    placed = one.state.decide(first)
    assert isinstance(placed, Placed)
    assert one.state.commit(first, placed, 0.0)
    leftover = one.state.pop(0.0)
    assert leftover is not None
    decision = one.state.decide(leftover)
    assert isinstance(decision, Preempting)
    one.state.rollback(placed.bindings, 0.0)
    assert not one.state.commit(leftover, decision, 0.0)
    assert one.state.pop(0.0) is None, "the bindings would fail again at once"
    again = one.state.pop(60.0)
    assert again is not None
    assert len(again.members) == 2


# ---- room that is being vacated ------------------------------------------------------------------


@pytest.mark.parametrize("priority", [0, 100])
def test_room_that_is_being_vacated_is_kept_for_the_gang_that_waits_for_it(priority: int) -> None:
    old = [terminating(running(f"old-{i}", f"n{i}"), DELETED_AT) for i in range(4)]
    one = Cluster(*nodes(4), *old, gang("g", 4, priority=100), *members("g", 4))
    one.run(DELETED_AT)
    assert len(one.nominated()) == 4
    one.add(*(pod(f"other-{i}", cpu="1", priority=priority) for i in range(4)))
    one.run()
    for i in range(4):
        one.now += 1
        one.delete(f"old-{i}")
        decisions = one.run()
        assert not any(
            isinstance(decision, Placed) for name, decision in decisions.items() if name != "g"
        )
    assert isinstance(decisions["g"], Placed)


def preempting_gang() -> tuple[Cluster, list[Pod]]:
    own = members("g", 2)
    one = Cluster(*nodes(2), running("a", "n0"), running("b", "n1"))
    one.add(gang("g", 2, priority=100), *own)
    assert isinstance(one.run()["g"], Preempting)
    assert len(one.nominated()) == 2
    return one, own


@pytest.mark.parametrize("cause", ["cordoned", "tainted", "deleted"])
def test_nominations_are_dropped_if_a_nominated_node_cannot_take_its_pod(cause: str) -> None:
    one, _ = preempting_gang()
    one.add(*(preempted(terminating(one.pods[name])) for name in "ab"))
    if cause == "cordoned":
        one.add(node("n1", cpu="1", cordoned=True))
    elif cause == "tainted":
        one.add(node("n1", cpu="1", taints=(Taint("broken", "", "NoSchedule"),)))
    else:
        one.state.observe(NodeObserved(0.0, "n1", None))
    decision = one.run(1.0)["g"]
    assert isinstance(decision, Waiting)
    assert decision.nominated == ()
    assert one.nominated() == {}


def test_gang_evicts_other_pods_if_a_nominated_node_is_cordoned() -> None:
    one, _ = preempting_gang()
    one.add(*(preempted(terminating(one.pods[name])) for name in "ab"))
    one.add(node("n2", cpu="1"), running("c", "n2"), node("n1", cpu="1", cordoned=True))
    decision = one.run(1.0)["g"]
    assert isinstance(decision, Preempting)
    assert [victim.pod.name for victim in decision.victims] == ["c"]
    assert sorted(one.nominated().values()) == ["n0", "n2"]


def gated(one: Pod) -> Pod:
    with_gate = pod(one.metadata.name, gates=["hold"])
    gates = with_gate.spec.scheduling_gates
    return altered(one, spec=altered(one.spec, scheduling_gates=gates))


@pytest.mark.parametrize("cause", ["member deleted", "member gated", "group deleted"])
def test_nominations_of_a_group_that_cannot_be_attempted_are_dropped(cause: str) -> None:
    one, own = preempting_gang()
    if cause == "member deleted":
        one.delete("g-0")
    elif cause == "member gated":
        one.add(gated(own[0]))
    else:
        one.state.observe(PodGroupObserved(0.0, key("g"), None))
    assert one.nominated() == {}
    one.delete("a", "b")
    one.add(gang("other", 2), *members("other", 2, priority=0))
    assert isinstance(one.run(1.0)["other"], Placed)


def test_nomination_that_the_api_still_shows_does_not_come_back() -> None:
    one, own = preempting_gang()
    one.delete("g-0")
    shown = altered(own[1], status=altered(own[1].status, nominated_node_name="n0"))
    one.add(shown)
    assert one.nominated() == {}
    fresh = Cluster(*nodes(2), gang("g", 2, priority=100), shown)
    assert fresh.nominated() == {}, "also after a restart"


def shown_nominations(own: list[Pod]) -> list[Pod]:
    return [
        altered(one, status=altered(one.status, nominated_node_name=f"n{i}"))
        for i, one in enumerate(own)
    ]


def test_restarted_scheduler_keeps_the_nominations_of_all_members() -> None:
    shown = shown_nominations(members("g", 3))
    one = Cluster(*nodes(3), gang("g", 3, priority=100), *shown[:2])
    assert one.nominated() == {}, "the gang is not complete yet"
    one.add(shown[2])
    assert one.nominated() == {"g-0": "n0", "g-1": "n1", "g-2": "n2"}
    assert one.state.cache.unreported_nominations() == [], "the API shows them"


def test_nominations_count_when_the_group_of_the_members_is_observed_last() -> None:
    one = Cluster(*nodes(2), *shown_nominations(members("g", 2)))
    assert one.nominated() == {}
    one.add(gang("g", 2, priority=100))
    assert one.nominated() == {"g-0": "n0", "g-1": "n1"}


def test_nomination_that_was_dropped_does_not_come_back_with_the_next_member() -> None:
    one, own = preempting_gang()
    one.delete("g-0")
    one.add(shown_nominations(own)[1])
    assert one.nominated() == {}
    one.add(own[0])
    assert one.nominated() == {}


def test_withheld_nomination_ends_when_the_api_shows_none() -> None:
    own = members("g", 2)
    shown = shown_nominations(own)
    one = Cluster(*nodes(2), gang("g", 2, priority=100), shown[0])
    one.add(own[0], own[1])
    assert one.nominated() == {}
    one.add(shown[0])
    assert one.nominated() == {"g-0": "n0"}, "another component nominates a node"


def test_room_that_an_entity_is_nominated_for_by_another_client_wakes_it() -> None:
    tainted = node("n0", cpu="1", taints=(Taint("broken", "", "NoSchedule"),))
    one = Cluster(tainted, gang("g", 1, priority=100), *members("g", 1))
    assert isinstance(one.run()["g"], Waiting)
    one.add(*shown_nominations(members("g", 1)))
    one.now = 1.0
    one.add(node("n0", cpu="1"))
    assert isinstance(one.run()["g"], Placed)


def test_nomination_of_a_member_of_another_scheduler_counts_when_the_gang_is_complete() -> None:
    own = shown_nominations(members("g", 3))
    other = altered(own[1], spec=altered(own[1].spec, scheduler_name="other"))
    one = Cluster(*nodes(3), gang("g", 3, priority=100), own[0], other)
    assert one.nominated() == {}
    one.add(own[2])
    assert one.nominated() == {"g-0": "n0", "g-1": "n1", "g-2": "n2"}
