"""The search finds a placement whenever one exists, or proves that none does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from phalanx.api.core import Affinity, Node, Pod, PodAffinity, PodAffinityTerm
from phalanx.controllers.scheduling.exact_solver import HighsSolver
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import UNDECIDED, Decision, Placed, Waiting
from phalanx.scheduler.entity import EntityRejection
from phalanx.scheduler.explain import explain
from phalanx.scheduler.placement.group_placement import PlacementContext
from phalanx.scheduler.placement.topology_domains import find_placements
from phalanx.scheduler.plugins.plugin import Filter, FilterDependency
from phalanx.scheduler.policy import DEFAULT_POLICY
from phalanx.scheduler.search.placement_problem import PlacementProblem, build_problem
from phalanx.scheduler.search.placement_search import (
    NO_VALID_ORDER,
    TOO_LARGE,
    CandidateVerifier,
    lacks_capacity,
    lacks_resources,
    search_exactly,
    search_placement,
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
    SolverRequest,
    Steps,
)
from tests.scheduler.brute_force import can_be_placed
from tests.scheduler.builders import cluster, entity, gang, node, pod
from tests.scheduler.oracle_agreement import assert_bindings_allowed
from tests.scheduler.placement_instances import (
    FAMILIES,
    HOST,
    RACK,
    PlacementInstance,
    build_instance,
    build_plain_instance,
    with_rack_topology,
)

pytest.importorskip("highspy", reason="the extra phalanx[exact] is not installed")

SEEDS, MANY = 10, 2_000
SOLVER = HighsSolver()


class ScriptedSolver:
    """A solver that gives scripted answers first, and records the programs that it gets."""

    def __init__(self, *answers: SolverAnswer) -> None:
        self.answers, self.programs = list(answers), list[IntegerProgram]()

    def __call__(self, program: IntegerProgram) -> SolverAnswer:
        self.programs.append(program)
        return self.answers.pop(0) if self.answers else SOLVER(program)


def run_search(steps: Steps[SearchOutcome]) -> SearchOutcome:
    """Run a search to its end with the exact solver."""
    answer: SolverAnswer | None = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            outcome: SearchOutcome = end.value
            return outcome
        answer = SOLVER(step.program) if isinstance(step, SolverRequest) else None


def search_exactly_alone(one: PlacementInstance) -> Iterator[SearchOutcome]:
    """The outcome of the exact search alone, per topology placement."""
    snapshot, quorum = one.snapshot(), one.entity.quorum
    found = find_placements(one.entity, snapshot)
    assert not isinstance(found, EntityRejection)
    for nodes in [None] if found is None else [placement.nodes for placement in found]:
        context = PlacementContext(snapshot, DEFAULT_POLICY, nodes)
        problem = build_problem(context, one.entity.members, quorum)
        assert isinstance(problem, PlacementProblem)
        assert lacks_resources(problem) or not lacks_capacity(one.entity.members, context, quorum)
        yield (
            NoPlacement()
            if lacks_resources(problem)
            else run_search(search_exactly(CandidateVerifier(problem, context)))
        )


def compare_with_brute_force(family: str, seed: int) -> None:
    """The cycle and the exact search find a placement if and only if brute force does."""
    one = build_instance(family, seed)
    possible = can_be_placed(one.entity, one.oracle_cluster(), one.entity.quorum)
    decision = decide(one.entity, one.snapshot(), DEFAULT_POLICY, solver=SOLVER)
    assert isinstance(decision, Placed) is possible
    if isinstance(decision, Placed):
        assert len(decision.bindings) >= one.entity.quorum
        assert_bindings_allowed(decision.bindings, one.entity, one.oracle_cluster())
    else:
        assert decision.reason == "Unschedulable"
    outcomes = list(search_exactly_alone(one))
    assert not any(isinstance(outcome, SearchUndecided) for outcome in outcomes)
    assert any(isinstance(outcome, PlacementFound) for outcome in outcomes) is possible


@pytest.mark.mostly_slow(quick_every=3)
@pytest.mark.parametrize("family", FAMILIES)
def test_search_agrees_with_brute_force(family: str) -> None:
    for seed in range(SEEDS):
        compare_with_brute_force(family, seed)


@pytest.mark.parametrize(("family", "seed"), [("near", 325), ("even", 177), ("mixture", 25)])
def test_small_groups_without_a_valid_order_are_enumerated(family: str, seed: int) -> None:
    compare_with_brute_force(family, seed)


@pytest.mark.soak
@pytest.mark.parametrize("family", FAMILIES)
def test_search_agrees_with_brute_force_on_thousands_of_instances(family: str) -> None:
    for seed in range(SEEDS, MANY):
        compare_with_brute_force(family, seed)


@pytest.mark.parametrize(
    "seeds", [range(60), pytest.param(range(60, 4_000), marks=[pytest.mark.soak])]
)
def test_equal_members_without_peer_constraints_need_no_solver(seeds: range) -> None:
    for seed in seeds:
        one, asked = build_plain_instance(seed), ScriptedSolver()
        decision = decide(one.entity, one.snapshot(), DEFAULT_POLICY, solver=asked)
        possible = can_be_placed(one.entity, one.oracle_cluster(), one.entity.quorum)
        assert isinstance(decision, Placed) is possible
        assert asked.programs == []


def decide_gang(
    pods: list[Pod], nodes: list[Node], solver: ScriptedSolver, quorum: int = 0
) -> Decision:
    one = entity(gang("g", quorum or len(pods)), pods)
    return decide(one, cluster(nodes).snapshot(), DEFAULT_POLICY, solver=solver)


def placed_nodes(decision: Decision) -> dict[str, str]:
    assert isinstance(decision, Placed)
    return {name.name: on for name, _, on in decision.bindings}


def sized_pods(**cpus: int) -> list[Pod]:
    return [pod(name, "g", cpu=f"{cpu}") for name, cpu in cpus.items()]


def affinity_to(app: str, key: str = HOST) -> Affinity:
    term = PodAffinityTerm(key, {"matchLabels": {"app": app}})
    return Affinity(pod_affinity=PodAffinity((term,)))


def anti_affinity_to(app: str, key: str = HOST) -> Affinity:
    term = PodAffinityTerm(key, {"matchLabels": {"app": app}})
    return Affinity(pod_anti_affinity=PodAffinity((term,)))


def hosts(*cpus: int) -> list[Node]:
    return [node(f"n{i}", {HOST: f"n{i}"}, cpu=str(cpu)) for i, cpu in enumerate(cpus)]


def test_largest_member_is_placed_first_if_the_default_order_fails() -> None:
    asked = ScriptedSolver()
    found = placed_nodes(decide_gang(sized_pods(a=1, b=1, c=4), hosts(4, 4), asked))
    assert found["a"] == found["b"] != found["c"]
    assert asked.programs == []


def test_affinity_target_is_placed_first() -> None:
    pods = [
        pod("a", "g", labels={"app": "worker"}, affinity=affinity_to("leader")),
        pod("b", "g", labels={"app": "leader"}),
    ]
    asked = ScriptedSolver()
    found = placed_nodes(decide_gang(pods, hosts(4, 4), asked))
    assert found["a"] == found["b"]
    assert asked.programs == []


#: CPU requests that greedy packing fits into two nodes of ten in no order.
HARD = {"a": 4, "b": 4, "c": 3, "d": 3, "e": 3, "f": 3}


def test_members_that_no_order_packs_are_packed_by_moves_or_the_solver() -> None:
    found = placed_nodes(decide_gang(sized_pods(**HARD), hosts(10, 10), ScriptedSolver()))
    loads = [sum(HARD[name] for name, on in found.items() if on == n) for n in ("n0", "n1")]
    assert loads == [10, 10]


#: CPU requests for which the total is sufficient and yet no placement exists.
INFEASIBLE = {"a": 4, "b": 4, "c": 4, "d": 4}


def test_solver_proves_that_no_placement_exists() -> None:
    asked = ScriptedSolver()
    decision = decide_gang([*sized_pods(**INFEASIBLE), *sized_pods(e=2)], hosts(9, 9), asked)
    assert isinstance(decision, Waiting)
    assert (decision.reason, decision.undecided, len(asked.programs)) == ("Unschedulable", "", 1)


def test_insufficient_capacity_is_detected_without_the_solver() -> None:
    asked = ScriptedSolver()
    assert isinstance(decide_gang(sized_pods(a=4, b=5), hosts(4, 4), asked), Waiting)
    assert asked.programs == []


def test_decision_is_undecided_if_the_solver_gives_up() -> None:
    asked = ScriptedSolver(SolverGaveUp("it is hard"))
    decision = decide_gang([*sized_pods(**INFEASIBLE), *sized_pods(e=2)], hosts(9, 9), asked)
    assert isinstance(decision, Waiting)
    assert (decision.reason, decision.undecided) == (UNDECIDED, "it is hard")
    explanation = explain(decision)
    assert explanation.reason == "SchedulingUndecided"
    assert explanation.message.endswith("; a placement may exist: it is hard")
    assert {one.reason for one in explanation.pods} == {"SchedulingUndecided"}


def test_decision_is_undecided_without_a_solver() -> None:
    one = entity(gang("g", 5), [*sized_pods(**INFEASIBLE), *sized_pods(e=2)])
    decision = decide(one, cluster(hosts(9, 9)).snapshot(), DEFAULT_POLICY)
    assert isinstance(decision, Waiting)
    assert decision.undecided == NO_SOLVER_ANSWER.why


@pytest.mark.parametrize("values", [(), (9,) * 40, (0,) * 40])
def test_invalid_solver_values_place_no_member(values: tuple[int, ...]) -> None:
    decision = decide_gang(
        [*sized_pods(**INFEASIBLE), *sized_pods(e=2)], hosts(9, 9), ScriptedSolver(Solved(values))
    )
    assert isinstance(decision, Waiting)
    assert (decision.reason, decision.undecided) == (UNDECIDED, NO_VALID_ORDER)


def test_members_beyond_the_quorum_are_placed_where_they_fit() -> None:
    found = decide_gang(sized_pods(a=1, b=1, c=4, d=9), hosts(4, 4), ScriptedSolver(), quorum=3)
    assert sorted(placed_nodes(found)) == ["a", "b", "c"]
    assert isinstance(found, Placed)
    assert [left.pod.name for left in found.leftovers] == ["d"]
    assert found.leftovers[0].refusal is not None


def test_more_anti_affine_members_than_domains_need_no_solver() -> None:
    pods = [
        pod(f"p{n}", "g", labels={"app": "x"}, affinity=anti_affinity_to("x")) for n in range(3)
    ]
    asked = ScriptedSolver()
    assert isinstance(decide_gang(pods, hosts(9, 9), asked), Waiting)
    assert asked.programs == []


def test_solver_is_not_asked_if_search_is_not_allowed() -> None:
    one = entity(gang("g", 5), [*sized_pods(**INFEASIBLE), *sized_pods(e=2)])
    context = PlacementContext(cluster(hosts(9, 9)).snapshot(), DEFAULT_POLICY, allows_search=False)
    steps = search_placement(one.members, context, 5)
    assert not any(isinstance(step, SolverRequest) for step in steps)


def test_unknown_filter_leaves_the_decision_undecided() -> None:
    odd = Filter(reject=lambda context: iter(()), depends_on=FilterDependency.LOAD)
    policy = replace(DEFAULT_POLICY, filters={**DEFAULT_POLICY.filters, "Odd": odd})
    one = entity(gang("g", 3), sized_pods(a=1, b=1, c=4))
    outcome = run_search(
        search_placement(one.members, PlacementContext(cluster(hosts(4, 4)).snapshot(), policy), 3)
    )
    assert outcome == SearchUndecided("the exact search does not support filter Odd")


@pytest.mark.parametrize("limit", [1, 3])
def test_solver_is_not_asked_about_too_large_problems(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr("phalanx.scheduler.search.placement_search.MAX_COLUMNS", limit)
    decision = decide_gang(
        [*sized_pods(**INFEASIBLE), *sized_pods(e=2)], hosts(9, 9), ScriptedSolver()
    )
    assert isinstance(decision, Waiting)
    assert decision.undecided == TOO_LARGE


def test_solver_finds_the_rack_that_holds_all_members() -> None:
    cpus = {"a0": ("a", "9"), "a1": ("a", "10"), "b0": ("b", "10"), "b1": ("b", "10")}
    nodes = [node(name, {RACK: rack}, cpu=cpu) for name, (rack, cpu) in cpus.items()]
    one = entity(with_rack_topology(gang("g", len(HARD))), sized_pods(**HARD))
    decision = decide(one, cluster(nodes).snapshot(), DEFAULT_POLICY, solver=SOLVER)
    assert {on[0] for on in placed_nodes(decision).values()} == {"b"}
