"""Orders in which every assignment is feasible when its turn comes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from phalanx.api.core import Affinity, Pod, PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from phalanx.scheduler.placement.group_placement import PlacementContext
from phalanx.scheduler.policy import DEFAULT_POLICY
from phalanx.scheduler.search.heuristics import (
    KindAssignment,
    PartialPlacement,
    SequenceFailure,
    find_sequence,
)
from phalanx.scheduler.search.placement_problem import PlacementProblem, build_problem
from tests.scheduler.builders import cluster, entity, gang, node, pod

RACKS = [node(f"n{rack}", {"rack": rack}) for rack in "abc"]


def problem(pods: list[Pod]) -> PlacementProblem:
    snapshot = cluster(RACKS).snapshot()
    found = build_problem(
        PlacementContext(snapshot, DEFAULT_POLICY), entity(gang("g", 1), pods).members, len(pods)
    )
    assert isinstance(found, PlacementProblem)
    return found


def app_pods(app: str, count: int, wants: str = "", *, even: bool = False) -> list[Pod]:
    selector = {"matchLabels": {"app": wants}}
    near = PodAffinity((PodAffinityTerm("rack", selector),))
    spread = TopologySpreadConstraint("rack", "DoNotSchedule", 1, selector)
    together = {"affinity": Affinity(pod_affinity=near)}
    traits: dict[str, Any] = {"spreads": (spread,)} if even else together
    return [
        pod(f"{app}{n}", "g", labels={"app": app}, **traits if wants else {}) for n in range(count)
    ]


def find_valid_sequence(
    one: PlacementProblem, assignments: list[KindAssignment], limit: int = 100
) -> list[KindAssignment] | SequenceFailure:
    found = find_sequence(one, Counter(assignments), len(assignments), limit=limit)
    if not isinstance(found, SequenceFailure):
        placement = PartialPlacement(one)
        for assignment in found:
            assert placement.allows(assignment)
            placement.assign(assignment)
        assert sorted(found) == sorted(assignments)
    return found


def test_member_with_affinity_comes_after_its_target() -> None:
    one = problem([*app_pods("worker", 2, "leader"), *app_pods("leader", 1)])
    leader = KindAssignment(1, 0)
    found = find_valid_sequence(one, [KindAssignment(0, 0), KindAssignment(0, 0), leader])
    assert isinstance(found, list)
    assert found[0] == leader


def test_member_with_affinity_needs_its_target_in_the_domain() -> None:
    one = problem([*app_pods("worker", 1, "leader"), *app_pods("leader", 1)])
    assert (
        find_valid_sequence(one, [KindAssignment(0, 0), KindAssignment(1, 1)])
        is SequenceFailure.IMPOSSIBLE
    )


def test_members_with_mutual_affinity_are_placed_together_or_not_at_all() -> None:
    one = problem([*app_pods("a", 1, "b"), *app_pods("b", 1, "a")])
    together = [KindAssignment(0, 0), KindAssignment(1, 0)]
    assert isinstance(find_valid_sequence(one, together), list)
    assert (
        find_valid_sequence(one, [KindAssignment(0, 0), KindAssignment(1, 1)])
        is SequenceFailure.IMPOSSIBLE
    )


def test_first_member_with_affinity_to_itself_needs_no_other_pod() -> None:
    one = problem([*app_pods("x", 2, "x"), *app_pods("y", 1)])
    assert isinstance(
        find_valid_sequence(
            one, [KindAssignment(0, 0), KindAssignment(0, 0), KindAssignment(1, 2)]
        ),
        list,
    )
    assert (
        find_valid_sequence(one, [KindAssignment(0, 0), KindAssignment(0, 1)])
        is SequenceFailure.IMPOSSIBLE
    )


def test_spread_holds_after_every_assignment() -> None:
    one = problem(app_pods("x", 6, "x", even=True))
    assert isinstance(
        find_valid_sequence(one, [KindAssignment(0, n) for n in (0, 0, 1, 1, 2, 2)]), list
    )
    assert (
        find_valid_sequence(one, [KindAssignment(0, n) for n in (0, 0, 1, 1)])
        is SequenceFailure.IMPOSSIBLE
    )


def test_matching_members_without_spread_constraint_may_come_last() -> None:
    loose = [pod(name, "g", labels={"app": "x"}) for name in "yz"]
    one = problem([*app_pods("x", 3, "x", even=True), *loose])
    assignments = [
        KindAssignment(0, 0),
        KindAssignment(0, 1),
        KindAssignment(0, 2),
        KindAssignment(1, 0),
        KindAssignment(1, 0),
    ]
    assert isinstance(find_valid_sequence(one, assignments), list)


def test_sequence_search_stops_at_its_step_limit() -> None:
    one = problem(app_pods("x", 6, "x", even=True))
    assert (
        find_valid_sequence(one, [KindAssignment(0, n) for n in (0, 0, 1, 1, 2, 2)], limit=3)
        is SequenceFailure.LIMIT_REACHED
    )
