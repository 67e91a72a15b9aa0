"""Placement that does not give up: a way is found whenever there is one, or none is shown to be."""

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
from phalanx.scheduler.plugins.filters import FilterDependency, FilterPlugin
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
    """A solver that says what it is told, and remembers how often it was asked."""

    def __init__(self, *answers: SolverAnswer) -> None:
        self.answers, self.programs = list(answers), list[IntegerProgram]()

    def __call__(self, program: IntegerProgram) -> SolverAnswer:
        self.programs.append(program)
        return self.answers.pop(0) if self.answers else SOLVER(program)


def run_search(steps: Steps[SearchOutcome]) -> SearchOutcome:
    """What a search comes to, with the exact solver at hand."""
    answer: SolverAnswer | None = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            outcome: SearchOutcome = end.value
            return outcome
        answer = SOLVER(step.program) if isinstance(step, SolverRequest) else None


def search_exactly_alone(one: PlacementInstance) -> Iterator[SearchOutcome]:
    """What the exact search alone says of a group, placement by placement."""
    snapshot, quorum = one.snapshot(), one.entity.quorum
    found = find_placements(one.entity, snapshot)
    assert not isinstance(found, EntityRejection)
    for nodes in [None] if found is None else [placement.nodes for placement in found]:
        ground = PlacementContext(snapshot, DEFAULT_POLICY, nodes)
        puzzle = build_problem(ground, one.entity.members, quorum)
        assert isinstance(puzzle, PlacementProblem)
        assert lacks_resources(puzzle) or not lacks_capacity(one.entity.members, ground, quorum)
        yield (
            NoPlacement()
            if lacks_resources(puzzle)
            else run_search(search_exactly(CandidateVerifier(puzzle, ground)))
        )


def compare_with_brute_force(family: str, seed: int) -> None:
    """The whole cycle, and the exact search alone, know what trying everything knows."""
    one = build_instance(family, seed)
    possible = can_be_placed(one.entity, one.world(), one.entity.quorum)
    decision = decide(one.entity, one.snapshot(), DEFAULT_POLICY, SOLVER)
    assert isinstance(decision, Placed) is possible
    if isinstance(decision, Placed):
        assert len(decision.bindings) >= one.entity.quorum
        assert_bindings_allowed(decision.bindings, one.entity, one.world())
    else:
        assert decision.reason == "Unschedulable"
    outcomes = list(search_exactly_alone(one))
    assert not any(isinstance(outcome, SearchUndecided) for outcome in outcomes)
    assert any(isinstance(outcome, PlacementFound) for outcome in outcomes) is possible


@pytest.mark.parametrize("family", FAMILIES)
def test_it_knows_what_trying_everything_knows(family: str) -> None:
    for seed in range(SEEDS):
        compare_with_brute_force(family, seed)


@pytest.mark.soak
@pytest.mark.parametrize("family", FAMILIES)
def test_it_knows_what_trying_everything_knows_of_thousands(family: str) -> None:
    for seed in range(SEEDS, MANY):
        compare_with_brute_force(family, seed)


@pytest.mark.parametrize(
    "seeds", [range(60), pytest.param(range(60, 4_000), marks=[pytest.mark.soak])]
)
def test_equal_members_that_mind_nobody_need_no_search(seeds: range) -> None:
    for seed in seeds:
        one, asked = build_plain_instance(seed), ScriptedSolver()
        decision = decide(one.entity, one.snapshot(), DEFAULT_POLICY, asked)
        possible = can_be_placed(one.entity, one.world(), one.entity.quorum)
        assert isinstance(decision, Placed) is possible
        assert asked.programs == []


def decide_gang(
    pods: list[Pod], nodes: list[Node], solver: ScriptedSolver, quorum: int = 0
) -> Decision:
    one = entity(gang("g", quorum or len(pods)), pods)
    return decide(one, cluster(nodes).snapshot(), DEFAULT_POLICY, solver)


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


def test_the_largest_member_goes_first_if_the_usual_order_leaves_no_room_for_it() -> None:
    asked = ScriptedSolver()
    found = placed_nodes(decide_gang(sized_pods(a=1, b=1, c=4), hosts(4, 4), asked))
    assert found["a"] == found["b"] != found["c"]
    assert asked.programs == []


def test_whom_others_must_be_near_goes_before_them() -> None:
    pods = [
        pod("a", "g", labels={"app": "worker"}, affinity=affinity_to("leader")),
        pod("b", "g", labels={"app": "leader"}),
    ]
    asked = ScriptedSolver()
    found = placed_nodes(decide_gang(pods, hosts(4, 4), asked))
    assert found["a"] == found["b"]
    assert asked.programs == []


#: What no order packs, one after the other, into two nodes of ten.
HARD = {"a": 4, "b": 4, "c": 3, "d": 3, "e": 3, "f": 3}


def test_what_no_order_packs_is_packed_by_moving_or_by_the_solver() -> None:
    found = placed_nodes(decide_gang(sized_pods(**HARD), hosts(10, 10), ScriptedSolver()))
    loads = [sum(HARD[name] for name, on in found.items() if on == n) for n in ("n0", "n1")]
    assert loads == [10, 10]


#: Just enough room in all, and yet no way.
NO_WAY = {"a": 4, "b": 4, "c": 4, "d": 4}


def test_what_fits_nowhere_is_shown_to_fit_nowhere() -> None:
    asked = ScriptedSolver()
    decision = decide_gang([*sized_pods(**NO_WAY), *sized_pods(e=2)], hosts(9, 9), asked)
    assert isinstance(decision, Waiting)
    assert (decision.reason, decision.undecided, len(asked.programs)) == ("Unschedulable", "", 1)


def test_a_lack_of_room_is_seen_without_asking() -> None:
    asked = ScriptedSolver()
    assert isinstance(decide_gang(sized_pods(a=4, b=5), hosts(4, 4), asked), Waiting)
    assert asked.programs == []


def test_what_the_solver_does_not_know_is_said_to_be_unknown() -> None:
    asked = ScriptedSolver(SolverGaveUp("it is hard"))
    decision = decide_gang([*sized_pods(**NO_WAY), *sized_pods(e=2)], hosts(9, 9), asked)
    assert isinstance(decision, Waiting)
    assert (decision.reason, decision.undecided) == (UNDECIDED, "it is hard")
    told = explain(decision)
    assert told.reason == "SchedulingUndecided"
    assert told.message.endswith("; there may be a placement all the same: it is hard")
    assert {one.reason for one in told.pods} == {"SchedulingUndecided"}


def test_without_a_solver_nothing_is_claimed() -> None:
    one = entity(gang("g", 5), [*sized_pods(**NO_WAY), *sized_pods(e=2)])
    decision = decide(one, cluster(hosts(9, 9)).snapshot(), DEFAULT_POLICY)
    assert isinstance(decision, Waiting)
    assert decision.undecided == NO_SOLVER_ANSWER.why


@pytest.mark.parametrize("values", [(), (9,) * 40, (0,) * 40])
def test_a_solver_that_talks_nonsense_places_nobody(values: tuple[int, ...]) -> None:
    decision = decide_gang(
        [*sized_pods(**NO_WAY), *sized_pods(e=2)], hosts(9, 9), ScriptedSolver(Solved(values))
    )
    assert isinstance(decision, Waiting)
    assert (decision.reason, decision.undecided) == (UNDECIDED, NO_VALID_ORDER)


def test_members_to_spare_are_placed_too_where_there_is_room() -> None:
    found = decide_gang(sized_pods(a=1, b=1, c=4, d=9), hosts(4, 4), ScriptedSolver(), quorum=3)
    assert sorted(placed_nodes(found)) == ["a", "b", "c"]
    assert isinstance(found, Placed)
    assert [left.pod.name for left in found.leftovers] == ["d"]
    assert found.leftovers[0].refusal is not None


def test_members_that_keep_apart_are_not_many_more_than_domains() -> None:
    pods = [
        pod(f"p{n}", "g", labels={"app": "x"}, affinity=anti_affinity_to("x")) for n in range(3)
    ]
    asked = ScriptedSolver()
    assert isinstance(decide_gang(pods, hosts(9, 9), asked), Waiting)
    assert asked.programs == []


def test_a_cycle_in_haste_does_not_ask() -> None:
    one = entity(gang("g", 5), [*sized_pods(**NO_WAY), *sized_pods(e=2)])
    ground = PlacementContext(cluster(hosts(9, 9)).snapshot(), DEFAULT_POLICY, allows_search=False)
    steps = search_placement(one.members, ground, 5)
    assert not any(isinstance(step, SolverRequest) for step in steps)


def test_a_filter_that_it_does_not_know_leaves_it_undecided() -> None:
    odd = FilterPlugin(
        "Odd", lambda scene: iter(()), lambda *_: "", FilterDependency.LOAD, frozenset()
    )
    policy = replace(DEFAULT_POLICY, filters=(*DEFAULT_POLICY.filters, odd))
    one = entity(gang("g", 3), sized_pods(a=1, b=1, c=4))
    outcome = run_search(
        search_placement(one.members, PlacementContext(cluster(hosts(4, 4)).snapshot(), policy), 3)
    )
    assert outcome == SearchUndecided("an exact search cannot heed filter Odd")


def test_what_is_too_large_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.scheduler.search.placement_search.MAX_COLUMNS", 1)
    decision = decide_gang([*sized_pods(**NO_WAY), *sized_pods(e=2)], hosts(9, 9), ScriptedSolver())
    assert isinstance(decision, Waiting)
    assert decision.undecided == TOO_LARGE


def test_the_rack_that_takes_all_is_found_though_no_order_shows_it() -> None:
    rooms = {"a0": ("a", "9"), "a1": ("a", "10"), "b0": ("b", "10"), "b1": ("b", "10")}
    nodes = [node(name, {RACK: rack}, cpu=cpu) for name, (rack, cpu) in rooms.items()]
    one = entity(with_rack_topology(gang("g", len(HARD))), sized_pods(**HARD))
    decision = decide(one, cluster(nodes).snapshot(), DEFAULT_POLICY, SOLVER)
    assert {on[0] for on in placed_nodes(decision).values()} == {"b"}
