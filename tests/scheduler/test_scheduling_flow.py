"""Queue, cache and cycle together: gang scenarios as recorded from Kubernetes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.core import Pod, Taint, Toleration
from tests.scheduler.builders import basic, cluster, gang, node, pod
from tests.scheduler.scheduler_loop import SchedulerLoop
from tests.scheduler.strategies import NODE_NAMES, REQUESTS, nodes


def members(group: str, count: int, cpu: str = "1") -> list[Pod]:
    return [pod(f"{group}-{i}", group, cpu=cpu) for i in range(count)]


def test_a_gang_waits_for_its_quorum_and_is_bound_then() -> None:
    loop = SchedulerLoop(node("n"), gang("g", 3), *members("g", 2))
    assert (loop.bound, loop.waiting()) == ({}, {"g": "waiting for 3 members, 2 are there"})
    loop.add(pod("g-2", "g", cpu="1"))
    assert len(loop.bound) == 3


def test_a_gang_without_its_pod_group_waits_while_a_plain_pod_is_bound() -> None:
    loop = SchedulerLoop(node("n"), *members("g", 3), pod("plain"))
    assert loop.bound == {"plain": "n"}
    assert loop.waiting() == {"g": 'waiting for PodGroup "g" to appear'}
    loop.add(gang("g", 3))
    assert len(loop.bound) == 4


def test_the_older_gang_is_bound_completely_and_the_other_waits_completely() -> None:
    loop = SchedulerLoop()
    loop.add(gang("a", 3), gang("b", 3), *members("b", 3), *members("a", 3), node("n"))
    assert sorted(loop.bound) == ["b-0", "b-1", "b-2"]
    assert loop.messages["a"] == "minCount (3) cannot be satisfied: 1 scheduled, 1 remaining"
    loop.delete("b-0", "b-1", "b-2")
    assert sorted(loop.bound) == ["a-0", "a-1", "a-2"]


def test_a_gang_that_does_not_fit_is_bound_as_soon_as_a_node_is_added() -> None:
    loop = SchedulerLoop(node("a", cpu="2"), gang("g", 3), *members("g", 3))
    assert loop.bound == {}
    loop.add(node("b", cpu="2"))
    assert len(loop.bound) == 3


def test_a_gang_is_bound_as_soon_as_a_blocking_pod_is_deleted() -> None:
    loop = SchedulerLoop(node("n"), pod("blocker", on="n", cpu="2"), gang("g", 3), *members("g", 3))
    assert loop.bound == {"blocker": "n"}
    loop.delete("blocker")
    assert len(loop.bound) == 3


def test_a_gang_is_bound_as_soon_as_its_node_is_uncordoned() -> None:
    loop = SchedulerLoop(
        node("a", cpu="1"), node("b", cordoned=True), gang("g", 2), *members("g", 2)
    )
    assert loop.messages["g-1"] == (
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable."
    )
    loop.add(node("b"))
    assert len(loop.bound) == 2


def test_a_failed_gang_is_tried_again_after_its_back_off() -> None:
    loop = SchedulerLoop(node("n", cpu="1"), gang("g", 2), *members("g", 2))
    assert loop.attempts == 1
    loop.advance(1.0)
    loop.advance(1.0)
    assert loop.attempts == 2


def test_members_beyond_the_quorum_that_do_not_fit_wait() -> None:
    loop = SchedulerLoop(node("a", cpu="3"))
    loop.add(gang("g", 2), *members("g", 4))
    assert len(loop.bound) == 3
    assert loop.messages["g-3"] == "0/1 nodes are available: 1 Insufficient cpu."
    loop.add(node("b"))
    assert len(loop.bound) == 4


def test_a_late_member_joins_a_running_gang() -> None:
    loop = SchedulerLoop(node("n"), gang("g", 2), *members("g", 2))
    loop.add(pod("g-2", "g", cpu="1"))
    assert len(loop.bound) == 3


def test_a_manually_bound_member_counts() -> None:
    loop = SchedulerLoop(
        node("n"), pod("g-0", "g", on="n", cpu="1"), gang("g", 3), *members("g", 3)[1:]
    )
    assert len(loop.bound) == 3


def test_ended_members_do_not_count_for_the_quorum() -> None:
    loop = SchedulerLoop(node("n"), gang("g", 3), *members("g", 3))
    loop.add(*(pod(f"g-{i}", "g", on="n", cpu="1", phase="Succeeded") for i in range(2)))
    loop.add(pod("late", "g", cpu="1"))
    assert loop.waiting() == {"g": "waiting for 3 members, 2 are there"}


def test_lowering_min_count_releases_a_gang_and_raising_it_holds_late_members() -> None:
    loop = SchedulerLoop(node("n"), gang("g", 4), *members("g", 3))
    loop.add(gang("g", 3))
    assert len(loop.bound) == 3
    loop.add(gang("g", 5), pod("late", "g"))
    assert loop.waiting() == {"g": "waiting for 5 members, 4 are there"}


def test_a_scheduling_gate_on_one_member_blocks_all_members() -> None:
    loop = SchedulerLoop(node("n"), gang("g", 2), pod("g-0", "g", gates=["quota"]))
    loop.add(*members("g", 3)[1:])
    assert loop.waiting() == {"g": "waiting for scheduling gates quota of g-0"}
    loop.add(pod("g-0", "g"))
    assert len(loop.bound) == 3


def test_the_gang_of_higher_priority_gets_freed_resources() -> None:
    low = [pod(f"low-{i}", "low", cpu="1", priority=1) for i in range(2)]
    high = [pod(f"high-{i}", "high", cpu="1", priority=9) for i in range(2)]
    loop = SchedulerLoop(gang("low", 2, priority=1), *low, gang("high", 2, priority=9), *high)
    loop.add(node("n", cpu="2"))
    assert sorted(loop.bound) == ["high-0", "high-1"]


def test_a_gang_of_another_scheduler_is_ignored() -> None:
    foreign = [pod(f"g-{i}", "g", scheduler="other") for i in range(2)]
    loop = SchedulerLoop(node("n"), gang("g", 2), *foreign, pod("plain"))
    assert (loop.bound, loop.messages.get("g"), loop.waiting()) == ({"plain": "n"}, None, {})


def test_members_whose_priority_differs_from_their_group_are_an_error() -> None:
    loop = SchedulerLoop(node("n"), gang("g", 2, priority=1000), *members("g", 2))
    assert loop.messages["g-0"] == (
        "all pods in a single pod group should have the same priority as the pod group's "
        "priority, got 0 and 1000"
    )


def test_a_gang_of_different_members_finds_the_only_assignment() -> None:
    driver, workers = pod("driver", "g", cpu="3"), members("g", 3)
    loop = SchedulerLoop(node("a", cpu="3"), node("b", cpu="3"), gang("g", 4), driver, *workers)
    assert len(loop.bound) == 4


def test_tolerating_members_use_the_tainted_node_when_others_are_full() -> None:
    taint = Taint("gpu", "yes", "NoSchedule")
    plain = [pod(f"plain-{i}", "g", cpu="1") for i in range(2)]
    tolerant = [
        pod(f"tolerant-{i}", "g", cpu="1", tolerations=(Toleration("gpu", "Equal", "yes"),))
        for i in range(2)
    ]
    loop = SchedulerLoop(node("cpu", cpu="2"), node("gpu", cpu="2", taints=(taint,)), gang("g", 4))
    loop.add(*plain, *tolerant)
    assert {name: on for name, on in loop.bound.items() if on == "gpu"} == {
        "tolerant-0": "gpu",
        "tolerant-1": "gpu",
    }


def test_without_nodes_a_gang_is_unschedulable() -> None:
    loop = SchedulerLoop(gang("g", 2), *members("g", 2))
    assert loop.messages["g-0"] == "no nodes available to schedule pods"


@given(st.data())
def test_gangs_are_bound_completely_or_not_and_nodes_are_never_overcommitted(
    data: st.DataObject,
) -> None:
    loop = SchedulerLoop(*(data.draw(nodes(name)) for name in NODE_NAMES[:3]))
    groups = {f"g{i}": data.draw(st.integers(1, 4)) for i in range(4)}
    arrivals = [
        pod(f"{name}-{i}", name, requests=data.draw(st.sampled_from(REQUESTS)))
        for name, quorum in groups.items()
        for i in range(data.draw(st.integers(quorum, 5)))
    ]
    for one in data.draw(st.permutations(arrivals)):
        loop.add(one)
    for name, quorum in groups.items():
        loop.add(basic(name) if quorum == 1 else gang(name, quorum))
    for name, quorum in groups.items():
        bound = sum(one.startswith(f"{name}-") for one in loop.bound)
        assert bound == 0 or bound >= quorum
    snapshot = loop.cache.snapshot()
    assert bool((snapshot.requested <= snapshot.allocatable).all())
    rebuilt = cluster([], loop._pods.values())
    assert rebuilt._member_counts == loop.cache._member_counts
    assert loop.cache.assumed_pods() == []
