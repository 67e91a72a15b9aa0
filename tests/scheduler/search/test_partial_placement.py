"""A puzzle being played: the board allows what placing pod by pod allows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.core import Pod
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.placement.group_placement import PlacementContext
from phalanx.scheduler.policy import DEFAULT_POLICY
from phalanx.scheduler.search.heuristics import KindAssignment, PartialPlacement
from phalanx.scheduler.search.placement_problem import PlacementProblem, build_problem
from tests.scheduler import oracle
from tests.scheduler.builders import cluster, entity, gang, node, pod
from tests.scheduler.oracle_cluster import OracleCluster
from tests.scheduler.strategies import Situation, situations


def problem_of(situation: Situation) -> tuple[PlacementProblem, Snapshot]:
    snapshot = situation.cache().snapshot()
    puzzle = build_problem(PlacementContext(snapshot, DEFAULT_POLICY), situation.entity.members, 1)
    assert isinstance(puzzle, PlacementProblem)
    return puzzle, snapshot


def allowed_nodes(pod: Pod, world: OracleCluster) -> set[str]:
    machines = world.nodes.items()
    return {name for name, machine in machines if not oracle.refusals(pod, machine, world)}


@given(situations(), st.data())
def test_a_board_allows_what_placing_pod_by_pod_allows(
    situation: Situation, data: st.DataObject
) -> None:
    puzzle, snapshot = problem_of(situation)
    board, world = PartialPlacement(puzzle), situation.world()
    names = [snapshot.names[node] for node in puzzle.nodes]
    left = [list(kind.members) for kind in puzzle.kinds]
    for _ in range(4):
        options = []
        for kind, members in enumerate(left):
            mask = board.feasible_nodes(kind).tolist()
            found = {name for name, is_open in zip(names, mask, strict=True) if is_open}
            assert not members or found == allowed_nodes(members[0].pod, world)
            options += [
                KindAssignment(kind, n) for n, is_open in enumerate(mask) if is_open and members
            ]
        if not options:
            break
        piece = data.draw(st.sampled_from(options))
        board.assign(piece)
        world.nodes[names[piece.node]].add(left[piece.kind].pop().pod)


@given(situations(), st.data())
def test_what_is_taken_back_was_never_there(situation: Situation, data: st.DataObject) -> None:
    puzzle, _ = problem_of(situation)
    board = PartialPlacement(puzzle)
    kinds = range(len(puzzle.kinds))
    before = [board.feasible_nodes(kind).tolist() for kind in kinds]
    if not len(puzzle.nodes):
        return
    pieces = st.builds(
        KindAssignment, st.sampled_from(kinds), st.integers(0, len(puzzle.nodes) - 1)
    )
    put = data.draw(st.lists(pieces, max_size=4))
    for piece in put:
        board.assign(piece)
    for piece in data.draw(st.permutations(put)):
        board.unassign(piece)
    assert board.assignments == []
    assert [board.feasible_nodes(kind).tolist() for kind in kinds] == before


def test_members_that_differ_in_nothing_that_matters_are_of_one_kind() -> None:
    pods = [pod("a", "g", cpu="1", image="x"), pod("b", "g", cpu="1", image="y")]
    pods += [pod("c", "g", cpu="2", image="x")]
    puzzle = build_problem(
        PlacementContext(cluster([node("n")]).snapshot(), DEFAULT_POLICY),
        entity(gang("g", 3), pods).members,
        3,
    )
    assert isinstance(puzzle, PlacementProblem)
    assert puzzle.counts == [2, 1]


def test_only_nodes_that_somebody_may_use_and_resources_that_may_run_out_are_left() -> None:
    nodes = [node("a", cpu="2"), node("b", cordoned=True), node("c", cpu="1", memory="1Gi")]
    pods = [pod("p", "g", cpu="1", memory="2Gi"), pod("q", "g", cpu="2")]
    members = entity(gang("g", 2), pods).members
    puzzle = build_problem(PlacementContext(cluster(nodes).snapshot(), DEFAULT_POLICY), members, 2)
    assert isinstance(puzzle, PlacementProblem)
    assert puzzle.nodes.tolist() == [0]
    assert (puzzle.requests.tolist(), puzzle.free.tolist()) == ([[1000], [2000]], [[2000]])
