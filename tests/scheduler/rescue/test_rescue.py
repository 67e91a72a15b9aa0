"""Placement that does not give up: a way is found whenever there is one, or none is shown to be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from phalanx.api.core import Affinity, Node, Pod, PodAffinity, PodAffinityTerm
from phalanx.controllers.shell.exact import Solver
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import UNDECIDED, Decision, Placed, Waiting
from phalanx.scheduler.explain import explain
from phalanx.scheduler.judging.filters import Depends, Filter
from phalanx.scheduler.placing.attempt import Ground
from phalanx.scheduler.placing.objections import Objection
from phalanx.scheduler.placing.topology import placements
from phalanx.scheduler.policy import DEFAULT
from phalanx.scheduler.rescue.inquiry import NO_ORDER, TOO_LARGE, inquire
from phalanx.scheduler.rescue.program import Answer, GaveUp, Program, Solved
from phalanx.scheduler.rescue.puzzle import Puzzle, pose
from phalanx.scheduler.rescue.rescue import is_full, lacks_room, rescue
from phalanx.scheduler.rescue.search import (
    UNANSWERED,
    Found,
    Outcome,
    Proven,
    Search,
    Steps,
    Undecided,
)
from phalanx.scheduler.rescue.stage import Stage
from tests.scheduler.agreement import assert_allowed
from tests.scheduler.brute import can_be_placed
from tests.scheduler.builders import cluster, entity, gang, node, pod
from tests.scheduler.instances import (
    FAMILIES,
    HOST,
    RACK,
    Instance,
    instance,
    plain_instance,
    racked,
)

pytest.importorskip("highspy", reason="the extra phalanx[exact] is not installed")

SEEDS, MANY = 10, 2_000
SOLVER = Solver()


class Asked:
    """A solver that says what it is told, and remembers how often it was asked."""

    def __init__(self, *answers: Answer) -> None:
        self.answers, self.programs = list(answers), list[Program]()

    def __call__(self, program: Program) -> Answer:
        self.programs.append(program)
        return self.answers.pop(0) if self.answers else SOLVER(program)


def driven(steps: Steps[Outcome]) -> Outcome:
    """What a search comes to, with the exact solver at hand."""
    answer: Answer | None = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome
        answer = SOLVER(step.program) if isinstance(step, Search) else None


def exactly(one: Instance) -> Iterator[Outcome]:
    """What the exact search alone says of a group, placement by placement."""
    snapshot, quorum = one.snapshot(), one.entity.quorum
    found = placements(one.entity, snapshot)
    assert not isinstance(found, Objection)
    for nodes in [None] if found is None else [placement.nodes for placement in found]:
        ground = Ground(snapshot, DEFAULT, nodes)
        puzzle = pose(ground, one.entity.members, quorum)
        assert isinstance(puzzle, Puzzle)
        assert lacks_room(puzzle) or not is_full(one.entity.members, ground, quorum)
        yield Proven() if lacks_room(puzzle) else driven(inquire(Stage(puzzle, ground)))


def judge(family: str, seed: int) -> None:
    """The whole cycle, and the exact search alone, know what trying everything knows."""
    one = instance(family, seed)
    possible = can_be_placed(one.entity, one.world(), one.entity.quorum)
    decision = decide(one.entity, one.snapshot(), DEFAULT, SOLVER)
    assert isinstance(decision, Placed) is possible
    if isinstance(decision, Placed):
        assert len(decision.bindings) >= one.entity.quorum
        assert_allowed(decision.bindings, one.entity, one.world())
    else:
        assert decision.reason == "Unschedulable"
    outcomes = list(exactly(one))
    assert not any(isinstance(outcome, Undecided) for outcome in outcomes)
    assert any(isinstance(outcome, Found) for outcome in outcomes) is possible


@pytest.mark.parametrize("family", FAMILIES)
def test_it_knows_what_trying_everything_knows(family: str) -> None:
    for seed in range(SEEDS):
        judge(family, seed)


@pytest.mark.soak
@pytest.mark.parametrize("family", FAMILIES)
def test_it_knows_what_trying_everything_knows_of_thousands(family: str) -> None:
    for seed in range(SEEDS, MANY):
        judge(family, seed)


@pytest.mark.parametrize(
    "seeds", [range(60), pytest.param(range(60, 4_000), marks=[pytest.mark.soak])]
)
def test_equal_members_that_mind_nobody_need_no_search(seeds: range) -> None:
    for seed in seeds:
        one, asked = plain_instance(seed), Asked()
        decision = decide(one.entity, one.snapshot(), DEFAULT, asked)
        possible = can_be_placed(one.entity, one.world(), one.entity.quorum)
        assert isinstance(decision, Placed) is possible
        assert asked.programs == []


def decided(pods: list[Pod], nodes: list[Node], asked: Asked, quorum: int = 0) -> Decision:
    one = entity(gang("g", quorum or len(pods)), pods)
    return decide(one, cluster(nodes).snapshot(), DEFAULT, asked)


def placed(decision: Decision) -> dict[str, str]:
    assert isinstance(decision, Placed)
    return {name.name: on for name, _, on in decision.bindings}


def sized(**cpus: int) -> list[Pod]:
    return [pod(name, "g", cpu=f"{cpu}") for name, cpu in cpus.items()]


def near(app: str, key: str = HOST) -> Affinity:
    term = PodAffinityTerm(key, {"matchLabels": {"app": app}})
    return Affinity(pod_affinity=PodAffinity((term,)))


def apart(app: str, key: str = HOST) -> Affinity:
    term = PodAffinityTerm(key, {"matchLabels": {"app": app}})
    return Affinity(pod_anti_affinity=PodAffinity((term,)))


def hosts(*cpus: int) -> list[Node]:
    return [node(f"n{i}", {HOST: f"n{i}"}, cpu=str(cpu)) for i, cpu in enumerate(cpus)]


def test_the_largest_member_goes_first_if_the_usual_order_leaves_no_room_for_it() -> None:
    asked = Asked()
    found = placed(decided(sized(a=1, b=1, c=4), hosts(4, 4), asked))
    assert found["a"] == found["b"] != found["c"]
    assert asked.programs == []


def test_whom_others_must_be_near_goes_before_them() -> None:
    pods = [
        pod("a", "g", labels={"app": "worker"}, affinity=near("leader")),
        pod("b", "g", labels={"app": "leader"}),
    ]
    asked = Asked()
    found = placed(decided(pods, hosts(4, 4), asked))
    assert found["a"] == found["b"]
    assert asked.programs == []


#: What no order packs, one after the other, into two nodes of ten.
HARD = {"a": 4, "b": 4, "c": 3, "d": 3, "e": 3, "f": 3}


def test_what_no_order_packs_is_packed_by_moving_or_by_the_solver() -> None:
    found = placed(decided(sized(**HARD), hosts(10, 10), Asked()))
    loads = [sum(HARD[name] for name, on in found.items() if on == n) for n in ("n0", "n1")]
    assert loads == [10, 10]


#: Just enough room in all, and yet no way.
NO_WAY = {"a": 4, "b": 4, "c": 4, "d": 4}


def test_what_fits_nowhere_is_shown_to_fit_nowhere() -> None:
    asked = Asked()
    decision = decided([*sized(**NO_WAY), *sized(e=2)], hosts(9, 9), asked)
    assert isinstance(decision, Waiting)
    assert (decision.reason, decision.undecided, len(asked.programs)) == ("Unschedulable", "", 1)


def test_a_lack_of_room_is_seen_without_asking() -> None:
    asked = Asked()
    assert isinstance(decided(sized(a=4, b=5), hosts(4, 4), asked), Waiting)
    assert asked.programs == []


def test_what_the_solver_does_not_know_is_said_to_be_unknown() -> None:
    asked = Asked(GaveUp("it is hard"))
    decision = decided([*sized(**NO_WAY), *sized(e=2)], hosts(9, 9), asked)
    assert isinstance(decision, Waiting)
    assert (decision.reason, decision.undecided) == (UNDECIDED, "it is hard")
    told = explain(decision)
    assert told.reason == "SchedulingUndecided"
    assert told.message.endswith("; there may be a placement all the same: it is hard")
    assert {one.reason for one in told.pods} == {"SchedulingUndecided"}


def test_without_a_solver_nothing_is_claimed() -> None:
    one = entity(gang("g", 5), [*sized(**NO_WAY), *sized(e=2)])
    decision = decide(one, cluster(hosts(9, 9)).snapshot(), DEFAULT)
    assert isinstance(decision, Waiting)
    assert decision.undecided == UNANSWERED.why


@pytest.mark.parametrize("values", [(), (9,) * 40, (0,) * 40])
def test_a_solver_that_talks_nonsense_places_nobody(values: tuple[int, ...]) -> None:
    decision = decided([*sized(**NO_WAY), *sized(e=2)], hosts(9, 9), Asked(Solved(values)))
    assert isinstance(decision, Waiting)
    assert (decision.reason, decision.undecided) == (UNDECIDED, NO_ORDER)


def test_members_to_spare_are_placed_too_where_there_is_room() -> None:
    found = decided(sized(a=1, b=1, c=4, d=9), hosts(4, 4), Asked(), quorum=3)
    assert sorted(placed(found)) == ["a", "b", "c"]
    assert isinstance(found, Placed)
    assert [left.pod.name for left in found.leftovers] == ["d"]
    assert found.leftovers[0].refusal is not None


def test_members_that_keep_apart_are_not_many_more_than_domains() -> None:
    pods = [pod(f"p{n}", "g", labels={"app": "x"}, affinity=apart("x")) for n in range(3)]
    asked = Asked()
    assert isinstance(decided(pods, hosts(9, 9), asked), Waiting)
    assert asked.programs == []


def test_a_cycle_in_haste_does_not_ask() -> None:
    one = entity(gang("g", 5), [*sized(**NO_WAY), *sized(e=2)])
    ground = Ground(cluster(hosts(9, 9)).snapshot(), DEFAULT, is_thorough=False)
    steps = rescue(one.members, ground, 5)
    assert not any(isinstance(step, Search) for step in steps)


def test_a_filter_that_it_does_not_know_leaves_it_undecided() -> None:
    odd = Filter("Odd", lambda scene: iter(()), lambda *_: "", Depends.LOAD, frozenset())
    policy = replace(DEFAULT, filters=(*DEFAULT.filters, odd))
    one = entity(gang("g", 3), sized(a=1, b=1, c=4))
    outcome = driven(rescue(one.members, Ground(cluster(hosts(4, 4)).snapshot(), policy), 3))
    assert outcome == Undecided("an exact search cannot heed filter Odd")


def test_what_is_too_large_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.scheduler.rescue.inquiry.COLUMNS", 1)
    decision = decided([*sized(**NO_WAY), *sized(e=2)], hosts(9, 9), Asked())
    assert isinstance(decision, Waiting)
    assert decision.undecided == TOO_LARGE


def test_the_rack_that_takes_all_is_found_though_no_order_shows_it() -> None:
    rooms = {"a0": ("a", "9"), "a1": ("a", "10"), "b0": ("b", "10"), "b1": ("b", "10")}
    nodes = [node(name, {RACK: rack}, cpu=cpu) for name, (rack, cpu) in rooms.items()]
    one = entity(racked(gang("g", len(HARD))), sized(**HARD))
    decision = decide(one, cluster(nodes).snapshot(), DEFAULT, SOLVER)
    assert {on[0] for on in placed(decision).values()} == {"b"}
