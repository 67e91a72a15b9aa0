"""A tree of groups that fits is placed; a tree that is refused as Unschedulable does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from phalanx.api.core import Node
from phalanx.controllers.scheduling.exact_solver import HighsSolver
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import UNDECIDED, ClusterEvent, Decision, Placed, Waiting
from phalanx.scheduler.entity import Entity, EntityRejection
from phalanx.scheduler.explain import explain
from phalanx.scheduler.placement.group_placement import PlacementContext
from phalanx.scheduler.placement.topology_domains import find_placements
from phalanx.scheduler.plugins.plugin import Filter, FilterDependency
from phalanx.scheduler.policy import DEFAULT_POLICY
from phalanx.scheduler.queue.scheduler_state import ClusterObjects
from phalanx.scheduler.search.placement_problem import PlacementProblem, build_tree_problem
from phalanx.scheduler.search.placement_search import (
    NO_VALID_ORDER,
    TOO_LARGE,
    CandidateVerifier,
    lacks_resources,
    search_exactly,
)
from phalanx.scheduler.search.solver import (
    NO_SOLVER_ANSWER,
    IntegerProgram,
    NoPlacement,
    PlacementFound,
    SearchOutcome,
    SearchUndecided,
    Solved,
    SolverAnswer,
    SolverGaveUp,
    SolverPending,
    SolverRequest,
)
from phalanx.scheduler.search.tree_search import build_scope
from tests.scheduler.brute_force import can_tree_be_placed
from tests.scheduler.builders import cluster, composite, entity, gang, node, pod, tree
from tests.scheduler.group_membership import GroupMembership
from tests.scheduler.placement_instances import PlacementInstance
from tests.scheduler.placement_verifier import (
    placement_violations,
    quorum_violations,
    topology_violations,
)
from tests.scheduler.tree_instances import FAMILIES, build_tree_instance

pytest.importorskip("highspy", reason="the extra phalanx[exact] is not installed")

SEEDS, SLOW, MANY = 5, 30, 3_000
SOLVER = HighsSolver()


def violations(one: PlacementInstance, decision: Placed) -> Iterator[str]:
    """What is wrong with the bindings of a tree."""
    root, bindings = one.entity, decision.bindings
    groups = [group.group for group in root.groups if group.group is not None]
    pods = [*one.running, *(member.pod for member in root.members)]
    membership = GroupMembership(ClusterObjects(one.nodes, groups, pods))
    yield from placement_violations(root, one.oracle_cluster(), bindings)
    yield from quorum_violations(membership, root, bindings)
    yield from topology_violations(membership, one.nodes, root, bindings)


def search_exactly_alone(one: PlacementInstance) -> Iterator[SearchOutcome]:
    """The outcome of the exact search alone, per placement of the root."""
    snapshot, scope = one.snapshot(), build_scope(one.entity, one.snapshot())
    found = find_placements(one.entity, snapshot)
    assert not isinstance(found, EntityRejection)
    for nodes in [None] if found is None else [placement.nodes for placement in found]:
        context = PlacementContext(snapshot, DEFAULT_POLICY, nodes)
        problem = build_tree_problem(context, scope._replace(levels=None))
        assert isinstance(problem, PlacementProblem)
        if lacks_resources(problem):
            yield NoPlacement()
            continue
        steps, answer = search_exactly(CandidateVerifier(problem, context)), None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                yield end.value
                break
            answer = SOLVER(step.program) if isinstance(step, SolverRequest) else None


def compare_with_brute_force(family: str, seed: int) -> None:
    """The cycle and the exact search place a tree if and only if brute force does."""
    one = build_tree_instance(family, seed)
    possible = can_tree_be_placed(one.entity, one.oracle_cluster())
    decision = decide(one.entity, one.snapshot(), DEFAULT_POLICY, solver=SOLVER)
    assert isinstance(decision, Placed) is possible, (family, seed)
    if isinstance(decision, Placed):
        assert list(violations(one, decision)) == [], (family, seed)
    else:
        assert decision.reason == "Unschedulable", (family, seed)
    outcomes = list(search_exactly_alone(one))
    assert not any(isinstance(outcome, SearchUndecided) for outcome in outcomes), (family, seed)
    is_found = any(isinstance(outcome, PlacementFound) for outcome in outcomes)
    assert is_found is possible, (family, seed)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "seeds",
    [
        range(SEEDS),
        pytest.param(range(SEEDS, SLOW), marks=[pytest.mark.slow]),
        pytest.param(range(SLOW, MANY), marks=[pytest.mark.soak]),
    ],
)
def test_trees_are_placed_if_and_only_if_brute_force_places_them(family: str, seeds: range) -> None:
    for seed in seeds:
        compare_with_brute_force(family, seed)


@pytest.mark.parametrize(("family", "seed"), [("even", 140), ("even", 170)])
def test_small_trees_without_a_valid_order_are_enumerated(family: str, seed: int) -> None:
    compare_with_brute_force(family, seed)


@pytest.mark.mostly_slow(quick_every=3)
@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_solver_a_tree_is_unschedulable_only_if_it_is_proven(family: str) -> None:
    for seed in range(SEEDS // 3):
        one = build_tree_instance(family, seed)
        decision = decide(one.entity, one.snapshot(), DEFAULT_POLICY)
        if isinstance(decision, Placed):
            assert list(violations(one, decision)) == [], (family, seed)
        elif decision.reason != UNDECIDED:
            assert not can_tree_be_placed(one.entity, one.oracle_cluster()), (family, seed)


def leaf(name: str, *cpus: str, topology: str = "", quorum: int = 0) -> Entity:
    group = gang(name, quorum or len(cpus), parent="t", topology=topology)
    return entity(group, [pod(f"{name}-{i}", name, cpu=cpu) for i, cpu in enumerate(cpus)])


def nodes_of(decision: Decision) -> dict[str, str]:
    assert isinstance(decision, Placed), decision
    return {key.name: where for key, _, where in decision.bindings}


def racks(*counts: int, cpu: str = "4") -> list[Node]:
    return [
        node(f"r{number}-{i:02}", {"rack": f"r{number}"}, cpu=cpu)
        for number, count in enumerate(counts)
        for i in range(count)
    ]


def test_a_small_group_leaves_a_whole_node_to_a_large_member() -> None:
    one = tree(composite("t", 2), leaf("a", *["1"] * 4), leaf("b", "4"))
    found = nodes_of(decide(one, cluster(racks(2)).snapshot(), DEFAULT_POLICY))
    assert found["b-0"] not in {found[f"a-{i}"] for i in range(4)}


@pytest.mark.parametrize("count", [8, 100])
def test_a_tree_that_asks_a_fraction_of_an_empty_cluster_is_placed(count: int) -> None:
    gpus = {"nvidia.com/gpu": 8}
    nodes = [node(f"n{i:04}", cpu="64", allocatable=gpus) for i in range(count)]
    workers = [
        pod(f"w{i}", "workers", cpu="4", requests={"nvidia.com/gpu": 1}) for i in range(count)
    ]
    trainer = [pod("trainer-0", "trainer", cpu="32", requests=gpus)]
    one = tree(
        composite("t", 2),
        entity(gang("workers", count, parent="t"), workers),
        entity(gang("trainer", 1, parent="t"), trainer),
    )
    assert len(nodes_of(decide(one, cluster(nodes).snapshot(), DEFAULT_POLICY))) == count + 1


def test_groups_are_divided_among_racks_that_they_fill_exactly() -> None:
    sizes = [6, 4, 4, 4, 3, 3]
    parts = [leaf(f"g{k}", *["4"] * size, topology="rack") for k, size in enumerate(sizes)]
    decision = decide(
        tree(composite("t", 6), *parts),
        cluster(racks(12, 12)).snapshot(),
        DEFAULT_POLICY,
        solver=SOLVER,
    )
    found = nodes_of(decision)
    assert len(set(found.values())) == 24
    for k, size in enumerate(sizes):
        assert len({found[f"g{k}-{i}"][:2] for i in range(size)}) == 1


def test_a_group_leaves_its_best_rack_to_a_group_that_fits_nowhere_else() -> None:
    nodes = racks(3) + [node(f"b{i}", {"rack": "rb", "gpu": "y"}) for i in range(3)]
    pinned = [pod(f"p-{i}", "p", cpu="3", selector={"gpu": "y"}) for i in range(2)]
    one = tree(
        composite("t", 2),
        leaf("a", "3", "3", topology="rack"),
        entity(gang("p", 2, parent="t", topology="rack"), pinned),
    )
    running = [pod("x", on="b0", cpu="1")]
    found = nodes_of(decide(one, cluster(nodes, running).snapshot(), DEFAULT_POLICY, solver=SOLVER))
    assert {found["a-0"][:2], found["p-0"][0]} == {"r0", "b"}


def seven_of_twelve(rack_count: int, group_count: int) -> Entity:
    """Groups of seven, of which a rack of twelve nodes holds one."""
    parts = [leaf(f"g{k}", *["4"] * 7, topology="rack") for k in range(group_count)]
    return tree(composite("t", group_count), *parts)


@pytest.mark.parametrize("rack_count", [3, 30])
def test_one_group_more_than_racks_is_proven_impossible(rack_count: int) -> None:
    snapshot = cluster(racks(*[12] * rack_count)).snapshot()
    fits = decide(seven_of_twelve(rack_count, rack_count), snapshot, DEFAULT_POLICY, solver=SOLVER)
    assert isinstance(fits, Placed)
    refused = decide(
        seven_of_twelve(rack_count, rack_count + 1), snapshot, DEFAULT_POLICY, solver=SOLVER
    )
    assert isinstance(refused, Waiting)
    assert (refused.reason, refused.undecided) == ("Unschedulable", "")


class ScriptedSolver:
    """Gives scripted answers first, and records the programs."""

    def __init__(self, *answers: SolverAnswer) -> None:
        self.answers, self.programs = list(answers), list[IntegerProgram]()

    def __call__(self, program: IntegerProgram) -> SolverAnswer:
        self.programs.append(program)
        return self.answers.pop(0) if self.answers else SOLVER(program)


def decide_four_sevens(solver: ScriptedSolver) -> Waiting:
    snapshot = cluster(racks(12, 12, 12)).snapshot()
    decision = decide(seven_of_twelve(3, 4), snapshot, DEFAULT_POLICY, solver=solver)
    assert isinstance(decision, Waiting)
    return decision


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (SolverGaveUp("it is hard"), "it is hard"),
        (NO_SOLVER_ANSWER, NO_SOLVER_ANSWER.why),
        (Solved((9,) * 40), NO_VALID_ORDER),
        (Solved((0,) * 40), NO_VALID_ORDER),
    ],
)
def test_at_the_limit_of_the_search_every_group_is_undecided(
    answer: SolverAnswer, why: str
) -> None:
    decision = decide_four_sevens(ScriptedSolver(answer))
    assert (decision.reason, decision.undecided) == (UNDECIDED, why)
    explanation = explain(decision)
    assert explanation.reason == UNDECIDED
    assert {one.reason for one in explanation.groups} == {UNDECIDED}
    assert {one.reason for one in explanation.pods} == {UNDECIDED}


def test_a_tree_wakes_when_the_solver_has_an_answer() -> None:
    decision = decide_four_sevens(ScriptedSolver(SolverPending()))
    assert decision.reason == UNDECIDED
    assert ClusterEvent.SEARCH_ENDED in decision.wakes_on


def test_insufficient_capacity_of_a_tree_is_proven_without_the_solver() -> None:
    asked = ScriptedSolver()
    one = tree(composite("t", 2), leaf("a", "3", "3"), leaf("b", "4", "2"))
    decision = decide(one, cluster(racks(2, cpu="5")).snapshot(), DEFAULT_POLICY, solver=asked)
    assert isinstance(decision, Waiting)
    assert decision.reason == "Unschedulable"
    assert asked.programs == []


def test_a_group_that_fits_in_no_rack_is_proven_without_the_solver() -> None:
    asked = ScriptedSolver()
    one = tree(composite("t", 2), leaf("a", *["4"] * 4, topology="rack"), leaf("b", "1"))
    decision = decide(one, cluster(racks(3, 3)).snapshot(), DEFAULT_POLICY, solver=asked)
    assert isinstance(decision, Waiting)
    assert decision.reason == "Unschedulable"
    assert asked.programs == []


def test_too_large_trees_are_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.scheduler.search.placement_search.MAX_COLUMNS", 1)
    assert decide_four_sevens(ScriptedSolver()).undecided == TOO_LARGE


def test_trees_are_undecided_with_a_filter_that_the_search_does_not_model() -> None:
    odd = Filter(reject=lambda context: iter(()), depends_on=FilterDependency.LOAD)
    policy = replace(DEFAULT_POLICY, filters={**DEFAULT_POLICY.filters, "Odd": odd})
    snapshot = cluster(racks(12, 12, 12)).snapshot()
    decision = decide(seven_of_twelve(3, 4), snapshot, policy, solver=SOLVER)
    assert isinstance(decision, Waiting)
    assert decision.undecided == "the exact search does not support filter Odd"


def test_surplus_members_are_placed_where_the_search_placed_their_group() -> None:
    parts = [leaf(f"g{k}", *["4"] * 8, topology="rack", quorum=6) for k in range(2)]
    parts += [leaf(f"h{k}", *["4"] * 3, topology="rack") for k in range(2)]
    one = tree(composite("t", 4), *parts)
    decision = decide(one, cluster(racks(10, 10)).snapshot(), DEFAULT_POLICY, solver=SOLVER)
    found = nodes_of(decision)
    assert len(found) == 20
    for name in ("g0", "g1", "h0", "h1"):
        assert len({on[:2] for pod, on in found.items() if pod.startswith(name)}) == 1


def test_a_group_beyond_the_quorum_is_searched_beside_the_others() -> None:
    spare = leaf("b", "1", "1", "4")
    one = tree(composite("t", 1), leaf("a", "4"), spare)
    decision = decide(one, cluster(racks(3)).snapshot(), DEFAULT_POLICY, solver=SOLVER)
    assert len(nodes_of(decision)) == 4


def test_a_tree_whose_groups_all_run_is_searched_for_one_more_member() -> None:
    nodes, running = racks(2), [pod("a-on", "a", cpu="3", on="r0-00")]
    done = entity(gang("a", 1, parent="t"), [pod("a-0", "a", cpu="3")], running)
    one = tree(composite("t", 1), done, leaf("b", "4", "4"))
    found = nodes_of(decide(one, cluster(nodes, running).snapshot(), DEFAULT_POLICY, solver=SOLVER))
    assert found == {"a-0": "r0-01"}
    full = [*running, pod("x", on="r0-01", cpu="2")]
    decision = decide(one, cluster(nodes, full).snapshot(), DEFAULT_POLICY, solver=SOLVER)
    assert isinstance(decision, Waiting)
    assert decision.reason == "Unschedulable"
