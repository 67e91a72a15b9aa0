"""A puzzle being played: the board allows what placing pod by pod allows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.core import Pod
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.placing.attempt import Ground
from phalanx.scheduler.policy import DEFAULT
from phalanx.scheduler.rescue.board import Board, Piece
from phalanx.scheduler.rescue.puzzle import Puzzle, pose
from tests.scheduler import oracle
from tests.scheduler.builders import cluster, entity, gang, node, pod
from tests.scheduler.machine import World
from tests.scheduler.strategies import Situation, situations


def posed(situation: Situation) -> tuple[Puzzle, Snapshot]:
    snapshot = situation.cache().snapshot()
    puzzle = pose(Ground(snapshot, DEFAULT), situation.entity.members, 1)
    assert isinstance(puzzle, Puzzle)
    return puzzle, snapshot


def allowed(pod: Pod, world: World) -> set[str]:
    machines = world.machines.items()
    return {name for name, machine in machines if not oracle.refusals(pod, machine, world)}


@given(situations(), st.data())
def test_a_board_allows_what_placing_pod_by_pod_allows(
    situation: Situation, data: st.DataObject
) -> None:
    puzzle, snapshot = posed(situation)
    board, world = Board(puzzle), situation.world()
    names = [snapshot.names[node] for node in puzzle.nodes]
    left = [list(kind.members) for kind in puzzle.kinds]
    for _ in range(4):
        options = []
        for kind, members in enumerate(left):
            mask = board.open(kind).tolist()
            found = {name for name, is_open in zip(names, mask, strict=True) if is_open}
            assert not members or found == allowed(members[0].pod, world)
            options += [Piece(kind, n) for n, is_open in enumerate(mask) if is_open and members]
        if not options:
            break
        piece = data.draw(st.sampled_from(options))
        board.put(piece)
        world.machines[names[piece.node]].add(left[piece.kind].pop().pod)


@given(situations(), st.data())
def test_what_is_taken_back_was_never_there(situation: Situation, data: st.DataObject) -> None:
    puzzle, _ = posed(situation)
    board = Board(puzzle)
    kinds = range(len(puzzle.kinds))
    before = [board.open(kind).tolist() for kind in kinds]
    if not len(puzzle.nodes):
        return
    pieces = st.builds(Piece, st.sampled_from(kinds), st.integers(0, len(puzzle.nodes) - 1))
    put = data.draw(st.lists(pieces, max_size=4))
    for piece in put:
        board.put(piece)
    for piece in data.draw(st.permutations(put)):
        board.take(piece)
    assert board.pieces == []
    assert [board.open(kind).tolist() for kind in kinds] == before


def test_members_that_differ_in_nothing_that_matters_are_of_one_kind() -> None:
    pods = [pod("a", "g", cpu="1", image="x"), pod("b", "g", cpu="1", image="y")]
    pods += [pod("c", "g", cpu="2", image="x")]
    puzzle = pose(
        Ground(cluster([node("n")]).snapshot(), DEFAULT), entity(gang("g", 3), pods).members, 3
    )
    assert isinstance(puzzle, Puzzle)
    assert puzzle.counts == [2, 1]


def test_only_nodes_that_somebody_may_use_and_resources_that_may_run_out_are_left() -> None:
    nodes = [node("a", cpu="2"), node("b", cordoned=True), node("c", cpu="1", memory="1Gi")]
    pods = [pod("p", "g", cpu="1", memory="2Gi"), pod("q", "g", cpu="2")]
    members = entity(gang("g", 2), pods).members
    puzzle = pose(Ground(cluster(nodes).snapshot(), DEFAULT), members, 2)
    assert isinstance(puzzle, Puzzle)
    assert puzzle.nodes.tolist() == [0]
    assert (puzzle.asks.tolist(), puzzle.free.tolist()) == ([[1000], [2000]], [[2000]])
