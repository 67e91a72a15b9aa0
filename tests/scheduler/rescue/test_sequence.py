"""Pieces in an order in which each may be put when its turn comes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from phalanx.api.core import Affinity, Pod, PodAffinity, PodAffinityTerm, SpreadConstraint
from phalanx.scheduler.placing.attempt import Ground
from phalanx.scheduler.policy import DEFAULT
from phalanx.scheduler.rescue.board import Board, Piece
from phalanx.scheduler.rescue.puzzle import Puzzle, pose
from phalanx.scheduler.rescue.sequence import Dead, sequence
from tests.scheduler.builders import cluster, entity, gang, node, pod

RACKS = [node(f"n{rack}", {"rack": rack}) for rack in "abc"]


def puzzle(pods: list[Pod]) -> Puzzle:
    snapshot = cluster(RACKS).snapshot()
    found = pose(Ground(snapshot, DEFAULT), entity(gang("g", 1), pods).members, len(pods))
    assert isinstance(found, Puzzle)
    return found


def apps(app: str, count: int, wants: str = "", *, even: bool = False) -> list[Pod]:
    selector = {"matchLabels": {"app": wants}}
    near = PodAffinity((PodAffinityTerm("rack", selector),))
    spread = SpreadConstraint("rack", "DoNotSchedule", 1, selector)
    together = {"affinity": Affinity(pod_affinity=near)}
    traits: dict[str, Any] = {"spreads": (spread,)} if even else together
    return [
        pod(f"{app}{n}", "g", labels={"app": app}, **traits if wants else {}) for n in range(count)
    ]


def arranged(one: Puzzle, pieces: list[Piece], limit: int = 100) -> list[Piece] | Dead:
    found = sequence(one, Counter(pieces), len(pieces), limit)
    if not isinstance(found, Dead):
        board = Board(one)
        for piece in found:
            assert board.admits(piece)
            board.put(piece)
        assert sorted(found) == sorted(pieces)
    return found


def test_who_must_be_near_others_comes_after_them() -> None:
    one = puzzle([*apps("worker", 2, "leader"), *apps("leader", 1)])
    leader = Piece(1, 0)
    found = arranged(one, [Piece(0, 0), Piece(0, 0), leader])
    assert isinstance(found, list)
    assert found[0] == leader


def test_nobody_is_far_from_those_that_he_must_be_near() -> None:
    one = puzzle([*apps("worker", 1, "leader"), *apps("leader", 1)])
    assert arranged(one, [Piece(0, 0), Piece(1, 1)]) is Dead.END


def test_who_needs_each_other_can_neither_be_first() -> None:
    one = puzzle([*apps("a", 1, "b"), *apps("b", 1, "a")])
    assert arranged(one, [Piece(0, 0), Piece(1, 0)]) is Dead.END


def test_the_first_of_a_crowd_needs_nobody_if_nobody_came_before() -> None:
    one = puzzle([*apps("x", 2, "x"), *apps("y", 1)])
    assert isinstance(arranged(one, [Piece(0, 0), Piece(0, 0), Piece(1, 2)]), list)
    assert arranged(one, [Piece(0, 0), Piece(0, 1)]) is Dead.END


def test_no_domain_gets_ahead_on_the_way() -> None:
    one = puzzle(apps("x", 6, "x", even=True))
    assert isinstance(arranged(one, [Piece(0, n) for n in (0, 0, 1, 1, 2, 2)]), list)
    assert arranged(one, [Piece(0, n) for n in (0, 0, 1, 1)]) is Dead.END


def test_who_is_counted_but_does_not_count_may_come_last() -> None:
    loose = [pod(name, "g", labels={"app": "x"}) for name in "yz"]
    one = puzzle([*apps("x", 3, "x", even=True), *loose])
    pieces = [Piece(0, 0), Piece(0, 1), Piece(0, 2), Piece(1, 0), Piece(1, 0)]
    assert isinstance(arranged(one, pieces), list)


def test_it_gives_up_after_so_many_steps() -> None:
    one = puzzle(apps("x", 6, "x", even=True))
    assert arranged(one, [Piece(0, n) for n in (0, 0, 1, 1, 2, 2)], limit=3) is Dead.LIMIT
