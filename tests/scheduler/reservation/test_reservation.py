"""Which entities get a reservation, what it keeps from others, and when it ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from phalanx.api.batch import JobRunTime
from phalanx.api.core import ContainerPort, Node, Pod
from phalanx.api.meta import OwnerReference, timestamp
from phalanx.scheduler.decision import ClusterEvent, Placed, Preempting, Waiting
from phalanx.scheduler.queue.decision_log import (
    DecisionLogRecord,
    JobObserved,
    LogStarted,
    PodGroupObserved,
    PodObserved,
    RecordEncoder,
)
from phalanx.scheduler.queue.replay import ReplayedDecision, replay
from phalanx.scheduler.reservation.reservation import Reservation, join_and
from tests.scheduler.builders import composite, gang, key, node, pod
from tests.scheduler.reservation.virtual_scheduler import (
    VirtualScheduler,
    ending_pod,
    job_owner,
    profiles,
)


def nodes(count: int, **labels: str) -> list[Node]:
    return [node(f"n{number}", labels=labels) for number in range(count)]


def members(name: str, size: int, **options: object) -> list[Pod]:
    return [ending_pod(f"{name}-{n}", name, **options) for n in range(size)]  # type: ignore[arg-type]


def two_busy_nodes(priority: int = 0, **args: object) -> VirtualScheduler:
    """Three nodes of 4 CPU: n0 is busy for 1,000 s, n1 for 2,000 s, n2 is free."""
    scheduler = VirtualScheduler(nodes(3), profiles(**args))
    scheduler.run_pods(
        ending_pod("a", on="n0", seconds=1000, owner=job_owner("a"), priority=priority),
        ending_pod("b", on="n1", seconds=2000, owner=job_owner("b"), priority=priority),
    )
    return scheduler


def reserve_large(scheduler: VirtualScheduler, size: int = 2) -> Reservation:
    """A gang that waits for long enough to get a reservation."""
    scheduler.submit("large", members("large", size))
    scheduler.run_pass(scheduler.now)
    scheduler.run_pass(scheduler.now + 61)
    return scheduler.reservations["large"]


def test_gang_gets_no_reservation_before_it_has_waited_for_long_enough() -> None:
    scheduler = two_busy_nodes()
    scheduler.submit("large", members("large", 2))
    assert scheduler.run_pass(0) == []
    assert scheduler.run_pass(59) == []
    assert scheduler.reservations == {}
    scheduler.run_pass(60)
    assert list(scheduler.reservations) == ["large"]


def test_reservation_has_the_earliest_start_and_the_nodes_that_are_free_then() -> None:
    reservation = reserve_large(two_busy_nodes())
    assert reservation.expected_start == 1000
    assert reservation.nodes == ("n0", "n2")
    assert reservation.waits_for == ("job/a",)


def test_reserved_room_is_kept_from_an_equal_gang_without_a_declared_limit() -> None:
    scheduler = two_busy_nodes()
    reserve_large(scheduler)
    scheduler.submit("small", members("small", 1))
    assert scheduler.run_pass() == []
    decision = scheduler.decisions["small"]
    assert isinstance(decision, Waiting)
    assert ClusterEvent.RESERVATION_CHANGED in decision.wakes_on
    assert scheduler.message("small") == (
        f"held by a reservation for podgroup/large (expected start {timestamp(1000)})"
    )


@pytest.mark.parametrize(("seconds", "starts"), [(939, True), (940, False)])
def test_gang_that_ends_before_the_expected_start_is_backfilled(seconds: int, starts: bool) -> None:
    scheduler = two_busy_nodes()
    reserve_large(scheduler)
    scheduler.submit("small", members("small", 1, seconds=seconds))
    assert scheduler.run_pass() == (["small"] if starts else [])


def test_held_gang_is_attempted_again_when_its_job_declares_a_run_time() -> None:
    scheduler = two_busy_nodes()
    reserve_large(scheduler)
    scheduler.submit("small", members("small", 1, owner=job_owner("small")))
    assert scheduler.run_pass() == []
    job = JobRunTime(job_owner("small").uid, expected_run_time=60.0)
    scheduler.state.observe(JobObserved(scheduler.now, key("small"), job))
    assert scheduler.run_pass() == ["small"]


def test_gang_that_fits_beside_the_reserved_one_starts_without_a_limit() -> None:
    scheduler = two_busy_nodes()
    reserve_large(scheduler)
    scheduler.add_nodes(node("n3", cpu="2"))
    scheduler.submit("small", members("small", 1, cpu="2"))
    assert scheduler.run_pass() == ["small"]
    assert scheduler.bound["small"][0].spec.node_name == "n3"
    assert scheduler.reservations["large"].expected_start == 1000


def test_nodes_that_are_free_now_stay_open_if_others_are_free_at_the_expected_start() -> None:
    scheduler = VirtualScheduler(nodes(4))
    scheduler.run_pods(*(ending_pod(f"r{n}", on=f"n{n}", seconds=1000) for n in range(3)))
    reservation = reserve_large(scheduler)
    assert reservation.nodes == ("n0", "n1")
    scheduler.submit("small", members("small", 1))
    assert scheduler.run_pass() == ["small"]


def test_more_important_gang_takes_reserved_room() -> None:
    scheduler = two_busy_nodes()
    reserve_large(scheduler)
    scheduler.submit("urgent", members("urgent", 1, priority=10))
    assert scheduler.run_pass() == ["urgent"]
    assert scheduler.reservations["large"].expected_start == 2000


def test_reserved_gang_starts_when_its_room_is_free_and_its_reservation_ends() -> None:
    scheduler = two_busy_nodes()
    reserve_large(scheduler)
    scheduler.submit("small", members("small", 1))
    scheduler.run_pass()
    scheduler.now = 900
    scheduler.end("a")
    assert scheduler.run_pass(900) == ["large"]
    assert "large" not in scheduler.reservations
    scheduler.now = 1500
    scheduler.end("b")
    assert scheduler.run_pass() == ["small"]


def test_held_gang_is_woken_when_the_reservation_ends_without_any_other_event() -> None:
    scheduler = two_busy_nodes()
    reserve_large(scheduler)
    scheduler.submit("small", members("small", 1))
    scheduler.run_pass()
    for number in range(2):
        scheduler.state.observe(PodObserved(scheduler.now, key(f"large-{number}"), None))
    assert scheduler.run_pass() == ["small"]
    assert scheduler.reservations == {}


@pytest.mark.parametrize("change", ["gone", "gated", "incomplete", "larger", "without group"])
def test_reservation_is_dropped_when_the_entity_cannot_be_attempted(change: str) -> None:
    scheduler = two_busy_nodes()
    reserve_large(scheduler)
    match change:
        case "gone":
            for number in range(2):
                scheduler.state.observe(PodObserved(61, key(f"large-{number}"), None))
        case "gated":
            gated = pod("large-0", "large", gates=["wait"], cpu="4")
            scheduler.submit_pods(gated)
        case "incomplete":
            scheduler.state.observe(PodObserved(61, key("large-1"), None))
        case "larger":
            scheduler.add_group(gang("large", 3))
        case _:
            scheduler.state.observe(PodGroupObserved(61, key("large"), None))
    scheduler.run_pass()
    assert scheduler.reservations == {}


@pytest.mark.parametrize(
    "kind", ["ReplicaSet", "StatefulSet", "DaemonSet", "LeaderWorkerSet", "loose"]
)
def test_room_of_pods_that_never_end_is_never_reserved(kind: str) -> None:
    scheduler = VirtualScheduler(nodes(2))
    owner = OwnerReference("apps/v1", kind, "web", uid="uid-web", controller=True)
    running = pod("web", on="n0", cpu="4")
    if kind != "loose":
        meta = replace(running.metadata, owner_references=(owner,))
        spec = replace(running.spec, restart_policy="Never", active_deadline_seconds=100)
        running = replace(running, metadata=meta, spec=spec)
    scheduler.run_pods(running)
    scheduler.submit("large", members("large", 2))
    scheduler.run_pass(0)
    scheduler.run_pass(100)
    assert scheduler.reservations == {}


def test_infeasible_gang_does_not_keep_the_next_one_from_its_reservation() -> None:
    scheduler = two_busy_nodes()
    scheduler.submit("impossible", members("impossible", 9))
    scheduler.run_pass(0)
    scheduler.submit("large", members("large", 2))
    scheduler.run_pass(1)
    scheduler.run_pass(62)
    assert list(scheduler.reservations) == ["large"]


def test_added_node_makes_an_infeasible_gang_feasible() -> None:
    scheduler = two_busy_nodes()
    scheduler.submit("large", members("large", 4))
    scheduler.run_pass(0)
    scheduler.run_pass(61)
    assert scheduler.reservations == {}
    scheduler.add_nodes(node("n3"))
    scheduler.run_pass(62)
    assert scheduler.reservations["large"].expected_start == 2000


# ---- unknown ends --------------------------------------------------------------------------------


def test_reservation_without_known_ends_keeps_every_node_that_becomes_free() -> None:
    scheduler = VirtualScheduler(nodes(5))
    scheduler.run_pods(*(ending_pod(f"r{n}", on=f"n{n}") for n in range(4)))
    reservation = reserve_large(scheduler, 3)
    assert reservation.expected_start is None
    scheduler.submit("small", members("small", 1, seconds=1))
    assert scheduler.run_pass() == []
    assert "expected start unknown" in scheduler.message("small")
    for number, name in enumerate(("r3", "r1")):
        scheduler.now = 100.0 + number
        scheduler.end(name)
        placed = scheduler.run_pass()
        assert placed == (["large"] if name == "r1" else [])
        if name == "r3":
            assert {"n3", "n4"} <= set(scheduler.reservations["large"].nodes)


def test_reservation_without_progress_ends_and_the_next_entity_has_its_turn() -> None:
    scheduler = VirtualScheduler(nodes(2), profiles(max_hold_seconds=600))
    scheduler.run_pods(ending_pod("r", on="n0"))
    reserve_large(scheduler)
    scheduler.submit("small", members("small", 1))
    assert scheduler.run_pass(600) == []
    assert scheduler.run_pass(662) == ["small"]


def test_entity_whose_turn_is_over_has_another_turn_before_later_ones() -> None:
    scheduler = VirtualScheduler(nodes(2), profiles(max_hold_seconds=600))
    scheduler.run_pods(ending_pod("r", on="n0"))
    reserve_large(scheduler)
    scheduler.submit("small", members("small", 1))
    scheduler.run_pass(662)
    scheduler.now = 700
    scheduler.submit("later", members("later", 1))
    scheduler.end("small")
    assert scheduler.run_pass() == []
    scheduler.end("r")
    assert scheduler.run_pass() == ["large"]


def test_pod_that_runs_longer_than_expected_has_an_unknown_end() -> None:
    scheduler = VirtualScheduler(nodes(2))
    scheduler.run_pods(ending_pod("r", on="n0", expected="100s"))
    assert reserve_large(scheduler).expected_start == 100
    scheduler.submit("small", members("small", 1))
    scheduler.run_pass(120)
    assert scheduler.reservations["large"].expected_start == 120
    scheduler.run_pass(200)
    assert scheduler.reservations["large"].expected_start is None


# ---- modes ---------------------------------------------------------------------------------------


def test_easy_makes_one_reservation_for_each_priority_level() -> None:
    scheduler = two_busy_nodes(priority=10)
    for name, priority in (("low", 0), ("low-too", 0), ("high", 5)):
        scheduler.submit(name, members(name, 2, priority=priority))
    scheduler.run_pass(0)
    scheduler.run_pass(61)
    assert list(scheduler.reservations) == ["high", "low"]


def test_conservative_makes_reservations_up_to_its_depth_in_order() -> None:
    scheduler = two_busy_nodes(mode="Conservative", depth=2)
    for name in ("first", "second", "third"):
        scheduler.submit(name, members(name, 2, seconds=500))
        scheduler.run_pass(scheduler.now + 1)
    scheduler.run_pass(70)
    starts = {name: one.expected_start for name, one in scheduler.reservations.items()}
    assert starts == {"first": 1000, "second": 1500}


def test_second_reservation_never_delays_the_first() -> None:
    scheduler = two_busy_nodes(mode="Conservative")
    scheduler.submit("first", members("first", 2))
    scheduler.run_pass(0)
    scheduler.run_pass(61)
    scheduler.submit("second", members("second", 1))
    assert scheduler.run_pass() == []
    assert scheduler.run_pass(130) == []
    first, second = scheduler.reservations["first"], scheduler.reservations["second"]
    assert (first.expected_start, second.expected_start) == (1000, 2000)
    assert not set(first.nodes) & set(second.nodes)


def test_strict_starts_nothing_behind_the_head_from_its_first_refusal_on() -> None:
    scheduler = two_busy_nodes(mode="Strict")
    scheduler.submit("large", members("large", 2))
    scheduler.run_pass(0)
    scheduler.submit("small", members("small", 1, seconds=1))
    assert scheduler.run_pass(1) == []
    scheduler.end("a")
    assert scheduler.run_pass(2) == ["large"]
    scheduler.end("b")
    assert scheduler.run_pass(3) == ["small"]


def test_off_reserves_nothing() -> None:
    scheduler = two_busy_nodes(mode="Off")
    scheduler.submit("large", members("large", 2))
    scheduler.run_pass(0)
    scheduler.run_pass(3600)
    assert scheduler.reservations == {}
    scheduler.submit("small", members("small", 1))
    assert scheduler.run_pass() == ["small"]


# ---- preemption and nominations ------------------------------------------------------------------


def test_gang_that_can_start_at_once_by_preempting_does_so_instead_of_reserving() -> None:
    scheduler = two_busy_nodes()
    scheduler.submit("urgent", members("urgent", 2, priority=5))
    assert scheduler.run_pass(0) == ["urgent"]
    assert scheduler.reservations == {}


def test_preemptor_does_not_take_the_nodes_that_an_equal_gang_has_reserved() -> None:
    scheduler = VirtualScheduler([node("n0"), node("n1")])
    scheduler.run_pods(
        ending_pod("low", on="n0", seconds=1000),
        ending_pod("high", on="n1", seconds=2000, priority=5),
    )
    scheduler.submit("large", members("large", 2, priority=5))
    scheduler.run_pass(0)
    scheduler.run_pass(61)
    assert scheduler.reservations["large"].expected_start == 2000
    scheduler.submit("equal", members("equal", 1, priority=5))
    assert scheduler.run_pass() == []
    assert not isinstance(scheduler.decisions["equal"], Preempting)
    scheduler.submit("brief", members("brief", 1, priority=5, seconds=100))
    assert scheduler.run_pass() == ["brief"]


def test_nodes_are_nominated_only_when_the_start_is_imminent() -> None:
    scheduler = two_busy_nodes()
    reserve_large(scheduler)
    decision = scheduler.decisions["large"]
    assert isinstance(decision, Waiting)
    assert not decision.nominated
    scheduler.run_pass(975)
    decision = scheduler.decisions["large"]
    assert isinstance(decision, Waiting)
    assert {one.node for one in decision.nominated} == {"n0", "n2"}


# ---- shapes of entities --------------------------------------------------------------------------


def test_topology_group_is_reserved_in_one_domain() -> None:
    racks = [node(f"{rack}{n}", labels={"rack": rack}) for rack in "ab" for n in range(2)]
    scheduler = VirtualScheduler(racks)
    ends = {"a0": 500, "a1": 3000, "b0": 1000, "b1": 900}
    scheduler.run_pods(*(ending_pod(f"r-{n}", on=n, seconds=end) for n, end in ends.items()))
    group = gang("large", 2, topology="rack")
    scheduler.submit("large", members("large", 2), group)
    scheduler.run_pass(0)
    scheduler.run_pass(61)
    reservation = scheduler.reservations["large"]
    assert reservation.nodes == ("b0", "b1")
    assert reservation.expected_start == 1000
    assert reservation.message == (
        f"2 nodes reserved (rack b: 2); expected start {timestamp(1000)}, "
        "when pod/r-b0 and pod/r-b1 end"
    )


def test_draining_topology_group_stays_in_the_domain_that_is_nearest_to_free() -> None:
    racks = [node(f"{rack}{n}", labels={"rack": rack}) for rack in "ab" for n in range(3)]
    scheduler = VirtualScheduler(racks)
    scheduler.run_pods(*(ending_pod(f"r-{n}", on=n) for n in ("a0", "a1", "a2", "b0", "b1")))
    scheduler.submit("large", members("large", 3), gang("large", 3, topology="rack"))
    scheduler.run_pass(0)
    scheduler.run_pass(61)
    assert scheduler.reservations["large"].nodes == ("b0", "b1", "b2")
    scheduler.end("r-a0")
    scheduler.end("r-a1")
    scheduler.run_pass(70)
    assert scheduler.reservations["large"].nodes == ("a0", "a1", "a2")
    scheduler.end("r-b0")
    scheduler.run_pass(80)
    assert scheduler.reservations["large"].nodes == ("a0", "a1", "a2")


def test_tree_of_groups_is_reserved_as_one_entity() -> None:
    scheduler = VirtualScheduler(nodes(4))
    scheduler.run_pods(*(ending_pod(f"r{n}", on=f"n{n}", seconds=1000 * (n + 1)) for n in range(4)))
    scheduler.add_group(composite("tree", 2))
    for name in ("left", "right"):
        scheduler.submit(name, members(name, 1), gang(name, 1, parent="tree"))
    scheduler.run_pass(0)
    scheduler.run_pass(61)
    reservation = scheduler.reservations["tree"]
    assert reservation.expected_start == 2000
    assert set(reservation.groups) == {key("left"), key("right")}
    scheduler.end("r0")
    scheduler.submit("small", members("small", 1))
    assert scheduler.run_pass() == []


def test_only_the_quorum_of_an_elastic_gang_is_reserved() -> None:
    scheduler = two_busy_nodes()
    scheduler.submit("large", members("large", 3), gang("large", 2))
    scheduler.run_pass(0)
    scheduler.run_pass(61)
    assert scheduler.reservations["large"].expected_start == 1000
    assert len(scheduler.reservations["large"].bindings) == 2


def test_members_beyond_the_quorum_get_no_reservation() -> None:
    scheduler = two_busy_nodes()
    scheduler.submit("large", members("large", 2), gang("large", 1))
    assert scheduler.run_pass(0) == ["large"]
    scheduler.run_pass(100)
    assert scheduler.reservations == {}


def test_lost_member_waits_for_other_pods_and_not_for_its_own_gang() -> None:
    scheduler = VirtualScheduler(nodes(2))
    scheduler.add_group(gang("large", 2))
    scheduler.run_pods(
        replace(
            members("large", 2, seconds=500)[0],
            spec=replace(members("large", 2, seconds=500)[0].spec, node_name="n0"),
        ),
        ending_pod("r", on="n1", seconds=2000),
    )
    scheduler.submit_pods(members("large", 2, seconds=500)[1])
    scheduler.run_pass(0)
    scheduler.run_pass(61)
    assert scheduler.reservations["large"].expected_start == 2000


def test_node_of_a_reserved_pod_with_a_host_port_is_kept_whole() -> None:
    scheduler = VirtualScheduler([node("n0", cpu="8")])
    port = (ContainerPort(80, 80),)
    scheduler.run_pods(ending_pod("r", on="n0", seconds=1000, ports=port))
    scheduler.submit("large", members("large", 1, ports=port))
    scheduler.run_pass(0)
    scheduler.run_pass(61)
    assert scheduler.reservations["large"].expected_start == 1000
    scheduler.submit("small", members("small", 1, ports=port))
    assert scheduler.run_pass() == []


def test_single_pod_gets_a_reservation_too() -> None:
    scheduler = two_busy_nodes()
    scheduler.submit_pods(ending_pod("big", cpu="4", selector={"kubernetes.io/hostname": "n0"}))
    assert scheduler.run_pass(0) == []
    scheduler.run_pass(61)
    assert scheduler.reservations == {}  # no node has the label
    scheduler.add_nodes(node("n0", labels={"kubernetes.io/hostname": "n0"}))
    scheduler.run_pass(130)
    assert scheduler.reservations["big"].expected_start == 1000
    assert scheduler.reservations["big"].message == (
        f"1 node reserved; expected start {timestamp(1000)}, when job/a ends"
    )


def test_names_are_joined_as_in_a_sentence() -> None:
    assert join_and(["a"]) == "a"
    assert join_and(["a", "b"]) == "a and b"
    assert join_and(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"


def test_decisions_with_reservations_replay_identically() -> None:
    records: list[DecisionLogRecord] = [LogStarted(0.0, 1, "test", ("default-scheduler",))]
    scheduler = VirtualScheduler(recorder=records.append)
    scheduler.add_nodes(*nodes(3))
    scheduler.run_pods(
        ending_pod("a", on="n0", seconds=1000), ending_pod("b", on="n1", seconds=2000)
    )
    reserve_large(scheduler)
    scheduler.submit("small", members("small", 1))
    scheduler.submit("brief", members("brief", 1, seconds=60))
    assert scheduler.run_pass() == ["brief"]
    scheduler.now = 1000
    scheduler.end("a")
    scheduler.end("brief")
    assert scheduler.run_pass() == ["large"]
    found = list(replay(RecordEncoder().encode(records)))
    decisions = [one for one in found if isinstance(one, ReplayedDecision)]
    assert len(decisions) == len(found) > 4
    assert not any(one.differs for one in decisions)
    assert sum(isinstance(one.recorded, Placed) for one in decisions) == 2


def steps_of(scheduler: VirtualScheduler, now: float) -> Iterator[object]:
    return scheduler.state.plan_reservations(now)


def test_planning_is_due_only_after_a_change() -> None:
    scheduler = two_busy_nodes()
    reserve_large(scheduler)
    assert not scheduler.state.reservations.is_due(62)
    scheduler.end("b")
    assert scheduler.state.reservations.is_due(62)
    list(steps_of(scheduler, 62))
    assert not scheduler.state.reservations.is_due(62)


def test_nominations_for_the_nodes_of_an_earlier_plan_keep_no_room_of_the_new_one() -> None:
    scheduler = VirtualScheduler(nodes(2))
    scheduler.run_pods(
        ending_pod("a", on="n0", seconds=1000), ending_pod("b", on="n1", seconds=2000)
    )
    reserve_large(scheduler, 1)
    scheduler.submit("small", members("small", 1))
    scheduler.run_pass(100)
    assert scheduler.run_pass(980) == []
    assert scheduler.state.cache.snapshot().nominations[key("large-0")].node == "n0"
    scheduler.end("b")
    assert scheduler.run_pass(981) == ["large"]


def test_nominations_are_dropped_when_the_expected_start_is_no_longer_imminent() -> None:
    scheduler = two_busy_nodes()
    reserve_large(scheduler)
    scheduler.run_pass(980)
    assert key("large-0") in scheduler.state.cache.snapshot().nominations
    scheduler.run_pass(1031)
    assert scheduler.reservations["large"].expected_start == 2000
    assert scheduler.state.cache.snapshot().nominations == {}


def test_nominations_of_a_later_reservation_do_not_delay_an_earlier_one() -> None:
    scheduler = VirtualScheduler(nodes(3), profiles(mode="Conservative"))
    scheduler.run_pods(
        ending_pod("a", on="n0", seconds=1000),
        ending_pod("b", on="n1", seconds=1000),
        ending_pod("c", on="n2", seconds=200),
    )
    first = reserve_large(scheduler)
    scheduler.submit("short", members("short", 1))
    scheduler.run_pass(62)
    scheduler.run_pass(123)
    assert first.expected_start == 1000
    assert scheduler.reservations["short"].expected_start == 200
    scheduler.run_pass(180)
    assert scheduler.state.cache.snapshot().nominations[key("short-0")].node == "n2"
    scheduler.end("a")
    scheduler.run_pass(185)
    assert scheduler.reservations["large"].expected_start == 200
    scheduler.end("c")
    assert scheduler.run_pass(200) == ["large"]


def test_pod_whose_binding_failed_has_not_waited_since_the_beginning_of_time() -> None:
    scheduler = VirtualScheduler(nodes(1))
    scheduler.now = 5000.0
    scheduler.submit_pods(ending_pod("p"))
    entity = scheduler.state.pop_after_planning(5000.0)
    assert entity is not None
    decision = scheduler.state.decide(entity)
    assert isinstance(decision, Placed)
    assert scheduler.state.commit(entity, decision, 5000.0)
    scheduler.state.rollback(decision.bindings, 5000.0)
    # Another client has taken the node.
    scheduler.run_pods(ending_pod("other", on="n0", seconds=1000))
    scheduler.run_pass(5010)
    assert isinstance(scheduler.decisions["p"], Waiting)
    assert scheduler.reservations == {}
    scheduler.run_pass(5075)
    assert list(scheduler.reservations) == ["p"]
