"""A partial placement allows the same nodes as the filters do when pods are placed one by one."""

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
    problem = build_problem(PlacementContext(snapshot, DEFAULT_POLICY), situation.entity.members, 1)
    assert isinstance(problem, PlacementProblem)
    return problem, snapshot


def allowed_nodes(pod: Pod, world: OracleCluster) -> set[str]:
    machines = world.nodes.items()
    return {name for name, machine in machines if not oracle.refusals(pod, machine, world)}


@given(situations(), st.data())
def test_partial_placement_agrees_with_the_oracle(
    situation: Situation, data: st.DataObject
) -> None:
    problem, snapshot = problem_of(situation)
    placement, world = PartialPlacement(problem), situation.oracle_cluster()
    names = [snapshot.names[node] for node in problem.nodes]
    left = [list(kind.members) for kind in problem.kinds]
    for _ in range(4):
        options = []
        for kind, members in enumerate(left):
            mask = placement.feasible_nodes(kind).tolist()
            found = {name for name, is_open in zip(names, mask, strict=True) if is_open}
            assert not members or found == allowed_nodes(members[0].pod, world)
            options += [
                KindAssignment(kind, n) for n, is_open in enumerate(mask) if is_open and members
            ]
        if not options:
            break
        assignment = data.draw(st.sampled_from(options))
        placement.assign(assignment)
        world.nodes[names[assignment.node]].add(left[assignment.kind].pop().pod)


@given(situations(), st.data())
def test_unassign_undoes_assign(situation: Situation, data: st.DataObject) -> None:
    problem, _ = problem_of(situation)
    placement = PartialPlacement(problem)
    kinds = range(len(problem.kinds))
    before = [placement.feasible_nodes(kind).tolist() for kind in kinds]
    if not len(problem.nodes):
        return
    assignments = st.builds(
        KindAssignment, st.sampled_from(kinds), st.integers(0, len(problem.nodes) - 1)
    )
    put = data.draw(st.lists(assignments, max_size=4))
    for assignment in put:
        placement.assign(assignment)
    for assignment in data.draw(st.permutations(put)):
        placement.unassign(assignment)
    assert placement.assignments == []
    assert [placement.feasible_nodes(kind).tolist() for kind in kinds] == before


def test_members_that_no_filter_distinguishes_form_one_kind() -> None:
    pods = [pod("a", "g", cpu="1", image="x"), pod("b", "g", cpu="1", image="y")]
    pods += [pod("c", "g", cpu="2", image="x")]
    problem = build_problem(
        PlacementContext(cluster([node("n")]).snapshot(), DEFAULT_POLICY),
        entity(gang("g", 3), pods).members,
        3,
    )
    assert isinstance(problem, PlacementProblem)
    assert problem.counts == [2, 1]


def test_problem_keeps_only_usable_nodes_and_scarce_resources() -> None:
    nodes = [node("a", cpu="2"), node("b", cordoned=True), node("c", cpu="1", memory="1Gi")]
    pods = [pod("p", "g", cpu="1", memory="2Gi"), pod("q", "g", cpu="2")]
    members = entity(gang("g", 2), pods).members
    problem = build_problem(PlacementContext(cluster(nodes).snapshot(), DEFAULT_POLICY), members, 2)
    assert isinstance(problem, PlacementProblem)
    assert problem.nodes.tolist() == [0]
    assert (problem.requests.tolist(), problem.free.tolist()) == ([[1000], [2000]], [[2000]])
