"""Orders in which members are tried after the greedy attempt, and moves of placed members."""

from __future__ import annotations

from phalanx.api.core import Affinity, Node, Pod, PodAffinity, PodAffinityTerm
from phalanx.scheduler.placement.group_placement import PlacementContext
from phalanx.scheduler.policy import DEFAULT_POLICY
from phalanx.scheduler.search.heuristics import (
    KindAssignment,
    MemberOrder,
    PartialPlacement,
    candidate_orders,
    place_with_moves,
)
from phalanx.scheduler.search.placement_problem import PlacementProblem, build_problem
from tests.scheduler.builders import cluster, entity, gang, node, pod

HOST = "kubernetes.io/hostname"


def problem(pods: list[Pod], nodes: list[Node] | None = None, needed: int = 0) -> PlacementProblem:
    snapshot = cluster(nodes or hosts(4, 4)).snapshot()
    members = entity(gang("g", 1), pods).members
    found = build_problem(PlacementContext(snapshot, DEFAULT_POLICY), members, needed or len(pods))
    assert isinstance(found, PlacementProblem)
    return found


def hosts(*cpus: int) -> list[Node]:
    return [node(f"n{i}", {HOST: f"n{i}"}, cpu=str(cpu)) for i, cpu in enumerate(cpus)]


def sized_pods(*cpus: int) -> list[Pod]:
    return [pod(f"p{i}", "g", cpu=str(cpu)) for i, cpu in enumerate(cpus)]


def affine_pod(name: str, app: str, wants: str, cpu: str) -> Pod:
    terms = (PodAffinityTerm(HOST, {"matchLabels": {"app": wants}}),)
    return pod(
        name, "g", labels={"app": app}, cpu=cpu,
        affinity=Affinity(pod_affinity=PodAffinity(terms)) if wants else None,
    )  # fmt: skip


def place_all(one: PlacementProblem, order: MemberOrder) -> list[KindAssignment]:
    steps = place_with_moves(one, order)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: list[KindAssignment] = end.value
            return found


def test_largest_kind_comes_first_then_kinds_alternate() -> None:
    found = candidate_orders(problem(sized_pods(1, 1, 2, 2), hosts(3, 3)))
    assert list(found) == [(1, 1, 0, 0), (1, 0, 1, 0)]


def test_kind_with_fewest_feasible_nodes_comes_first() -> None:
    nodes = [*hosts(9, 9), node("red", {"red": "y"}, cpu="3")]
    pods = [
        *sized_pods(4),
        pod("r", "g", selector={"red": "y"}, cpu="1"),
        *[pod("q", "g", cpu="8")],
    ]
    assert next(candidate_orders(problem(pods, nodes))) == (1, 2, 0)


def test_affinity_target_comes_before_kinds_that_depend_on_it() -> None:
    pods = [
        affine_pod("a", "a", "b", "3"),
        affine_pod("b", "b", "c", "2"),
        affine_pod("c", "c", "", "1"),
    ]
    assert next(candidate_orders(problem(pods))) == (2, 1, 0)


def test_kinds_with_mutual_affinity_are_still_tried() -> None:
    pods = [affine_pod("a", "a", "b", "3"), affine_pod("b", "b", "a", "2")]
    assert sorted(next(candidate_orders(problem(pods)))) == [0, 1]


def test_placed_member_moves_to_make_space_for_another() -> None:
    nodes = [*hosts(4), node("n1", {"red": "y"}, cpu="4")]
    pods = [pod("a", "g", cpu="2"), pod("b", "g", selector={"red": "y"}, cpu="4")]
    one = problem(pods, nodes)
    found = place_all(one, (0, 1))
    assert sorted(found) == [(0, 0), (1, 1)]


def test_failed_move_leaves_other_members_in_place() -> None:
    one = problem(sized_pods(3, 3, 4), hosts(4, 4), needed=2)
    assignments = place_all(one, (0, 0, 1))
    assert [assignment.kind for assignment in assignments] == [0, 0]
    placement = PartialPlacement(one)
    for assignment in assignments:
        assert placement.allows(assignment)
        placement.assign(assignment)
