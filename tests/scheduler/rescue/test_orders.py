"""In which order members are tried when the usual one led nowhere; and moving who is in the way."""

from __future__ import annotations

from phalanx.api.core import Affinity, Node, Pod, PodAffinity, PodAffinityTerm
from phalanx.scheduler.placing.attempt import Ground
from phalanx.scheduler.policy import DEFAULT
from phalanx.scheduler.rescue.board import Board, Piece
from phalanx.scheduler.rescue.orders import Order, orders
from phalanx.scheduler.rescue.puzzle import Puzzle, pose
from phalanx.scheduler.rescue.repair import repaired
from tests.scheduler.builders import cluster, entity, gang, node, pod

HOST = "kubernetes.io/hostname"


def puzzle(pods: list[Pod], nodes: list[Node] | None = None, needed: int = 0) -> Puzzle:
    snapshot = cluster(nodes or hosts(4, 4)).snapshot()
    members = entity(gang("g", 1), pods).members
    found = pose(Ground(snapshot, DEFAULT), members, needed or len(pods))
    assert isinstance(found, Puzzle)
    return found


def hosts(*cpus: int) -> list[Node]:
    return [node(f"n{i}", {HOST: f"n{i}"}, cpu=str(cpu)) for i, cpu in enumerate(cpus)]


def sized(*cpus: int) -> list[Pod]:
    return [pod(f"p{i}", "g", cpu=str(cpu)) for i, cpu in enumerate(cpus)]


def near(name: str, app: str, wants: str, cpu: str) -> Pod:
    terms = (PodAffinityTerm(HOST, {"matchLabels": {"app": wants}}),)
    return pod(
        name, "g", labels={"app": app}, cpu=cpu,
        affinity=Affinity(pod_affinity=PodAffinity(terms)) if wants else None,
    )  # fmt: skip


def packed(one: Puzzle, order: Order) -> list[Piece]:
    steps = repaired(one, order)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: list[Piece] = end.value
            return found


def test_the_largest_goes_first_then_all_in_turns() -> None:
    found = orders(puzzle(sized(1, 1, 2, 2), hosts(3, 3)))
    assert list(found) == [(1, 1, 0, 0), (1, 0, 1, 0)]


def test_whoever_has_fewest_nodes_goes_first() -> None:
    nodes = [*hosts(9, 9), node("red", {"red": "y"}, cpu="3")]
    pods = [*sized(4), pod("r", "g", selector={"red": "y"}, cpu="1"), *[pod("q", "g", cpu="8")]]
    assert next(orders(puzzle(pods, nodes))) == (1, 2, 0)


def test_whom_others_must_be_near_goes_before_them_however_small() -> None:
    pods = [near("a", "a", "b", "3"), near("b", "b", "c", "2"), near("c", "c", "", "1")]
    assert next(orders(puzzle(pods))) == (2, 1, 0)


def test_those_who_need_each_other_are_tried_all_the_same() -> None:
    pods = [near("a", "a", "b", "3"), near("b", "b", "a", "2")]
    assert sorted(next(orders(puzzle(pods)))) == [0, 1]


def test_who_is_in_the_way_moves() -> None:
    nodes = [*hosts(4), node("n1", {"red": "y"}, cpu="4")]
    pods = [pod("a", "g", cpu="2"), pod("b", "g", selector={"red": "y"}, cpu="4")]
    one = puzzle(pods, nodes)
    pieces = packed(one, (0, 1))
    assert sorted(pieces) == [(0, 0), (1, 1)]


def test_what_cannot_be_placed_leaves_the_others_where_they_are() -> None:
    one = puzzle(sized(3, 3, 4), hosts(4, 4), needed=2)
    pieces = packed(one, (0, 0, 1))
    assert [piece.kind for piece in pieces] == [0, 0]
    board = Board(one)
    for piece in pieces:
        assert board.admits(piece)
        board.put(piece)
