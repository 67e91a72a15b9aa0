"""Whatever a scheduler was told: told again, it decides the same, from any beginning on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec.structs import replace

from phalanx.api.core import Node, Pod
from phalanx.api.gates import gated
from phalanx.api.meta import Key
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.controllers.shell import exact
from phalanx.scheduler.cycle import advanced
from phalanx.scheduler.decision import Binding, Decision, Placed, Preempting, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.queueing.desk import Desk
from phalanx.scheduler.queueing.record import (
    FORMAT,
    Answered,
    Begun,
    CompositeSeen,
    Decided,
    Fault,
    GroupSeen,
    NamespaceSeen,
    NodeSeen,
    PodSeen,
    Record,
    Scribe,
    Seen,
    ServiceSeen,
)
from phalanx.scheduler.queueing.replay import Replayed, replay
from phalanx.scheduler.rescue.program import Unsolvable
from phalanx.scheduler.rescue.search import Search, Solver, Steps
from phalanx.scheduler.settings.configuration import Configuration
from phalanx.scheduler.settings.configuration import read as read_configuration
from phalanx.scheduler.settings.profiles import DEFAULT_PROFILES, Profiles, by_gates
from tests.scheduler import strategies
from tests.scheduler.builders import basic, gang, key, node, pod, pod_like


def begun(desk: Desk, at: float) -> Begun:
    profiles = desk.profiles
    return Begun(
        at, FORMAT, "test", tuple(profiles.policies), profiles.said, desk.queue.sequence,
        profiles.groups_preempt,
    )  # fmt: skip


def sealed(records: list[Record]) -> list[bytes]:
    return list(Scribe().lines(records))


def replayed(records: list[Record]) -> list[Replayed | Fault]:
    return list(replay(sealed(records)))


SOLVER = exact.Solver()
Thing = Node | Pod | PodGroup | CompositePodGroup


class Told:
    """A desk, and all that it is told."""

    def __init__(self, profiles: Profiles = DEFAULT_PROFILES) -> None:
        self.records: list[Record] = []
        self.desk = Desk(profiles, self.records.append)
        self.solver: Solver = SOLVER
        self.records.append(begun(self.desk, 0.0))

    def come(self, *things: Thing, at: float = 0.0) -> None:
        for thing in things:
            self.desk.feed(seen(at, thing))

    def attempt(self, at: float = 0.0) -> Entity:
        entity = self.desk.take(at)
        assert entity is not None
        self.desk.settle(entity, outcome(self.desk, self.desk.cycle(entity), self.solver, at), at)
        return entity


def seen(at: float, thing: Thing) -> Seen:
    match thing:
        case CompositePodGroup():
            return CompositeSeen(at, thing.metadata.key, thing)
        case Node():
            return NodeSeen(at, thing.metadata.name, thing)
        case PodGroup():
            return GroupSeen(at, thing.metadata.key, thing)
        case Pod():
            return PodSeen(at, thing.metadata.key, thing)


# ---- stories -------------------------------------------------------------------------------------


def test_a_record_tells_every_decision_with_what_is_decided_of_it_today() -> None:
    told = Told()
    told.come(node("n", cpu="2"), gang("g", 2), pod("a", "g", cpu="1"), pod("b", "g", cpu="1"))
    told.come(pod("late", cpu="1"), at=1.0)
    told.attempt(2.0)
    told.attempt(3.0)
    first, second = replayed(told.records)
    assert isinstance(first, Replayed)
    assert isinstance(second, Replayed)
    assert (first.at, first.entity.key, second.entity.key) == (2.0, key("g"), key("late"))
    assert first.then == first.now
    assert isinstance(first.then, Placed)
    assert second.then == second.now
    assert isinstance(second.then, Waiting)


def test_a_decision_that_would_be_another_today_is_told_and_the_next_ones_are_compared() -> None:
    told = Told()
    told.come(node("n", cpu="2"), pod("a", cpu="1"), pod("b", cpu="1"))
    told.attempt(1.0)
    told.attempt(2.0)
    at = next(i for i, one in enumerate(told.records) if isinstance(one, Decided))
    decided = told.records[at]
    assert isinstance(decided, Decided)
    elsewhere = {"Placed": {"group": None, "bindings": [[key("a"), "uid-a", "m"]], "leftovers": []}}
    told.records[at] = replace(decided, decision=elsewhere)
    first, second = replayed(told.records)
    assert isinstance(first, Replayed)
    assert isinstance(second, Replayed)
    assert first.differs
    assert not second.differs


def test_a_change_of_what_was_seen_is_noticed_by_its_seal_and_by_what_follows() -> None:
    told = Told()
    told.come(node("n", cpu="2"), pod("a", cpu="1"))
    told.attempt(1.0)
    lines = sealed(told.records)
    lines[1] = lines[1].replace(b'"cpu":"2"', b'"cpu":"0"')
    fault, decision = replay(lines)
    assert fault == Fault(2, "is not what was written, or does not belong here")
    assert isinstance(decision, Replayed)
    assert decision.differs


def test_a_line_that_is_missing_is_noticed() -> None:
    told = Told()
    told.come(node("n"), node("m"), pod("a"))
    told.attempt(1.0)
    lines = sealed(told.records)
    faults = [one for one in replay([*lines[:2], *lines[3:]]) if isinstance(one, Fault)]
    assert faults[0] == Fault(3, "is not what was written, or does not belong here")


def test_a_line_that_is_no_record_is_told_and_left_out() -> None:
    told = Told()
    told.come(node("n"), pod("a"))
    told.attempt(1.0)
    lines = sealed(told.records)
    lines[1] = b"who am I?\n"
    assert [one.line for one in replay(lines) if isinstance(one, Fault)][:1] == [2]


def test_a_last_line_that_was_not_written_to_its_end_does_not_matter() -> None:
    told = Told()
    told.come(node("n"), pod("a"))
    told.attempt(1.0)
    lines = sealed(told.records)
    for length in (1, 20, len(lines[-1]) - 1):
        assert list(replay([*lines[:-1], lines[-1][:length]])) == []


def test_where_the_queue_gives_another_entity_the_story_is_another_until_the_next_beginning() -> (
    None
):
    told = Told()
    told.come(node("n"), pod("a"), pod("b"))
    told.attempt(1.0)
    other = [one for one in told.records if not (isinstance(one, PodSeen) and one.key == key("a"))]
    told.attempt(2.0)
    fault, decision = replayed([*other, *told.records[-2:], *told.records[:-2]])
    assert isinstance(fault, Fault)
    assert "takes default/a, but now the queue gives default/b" in fault.why
    assert isinstance(decision, Replayed)
    assert not decision.differs


def test_nonsense_that_nobody_wrote_is_told_and_ends_nothing() -> None:
    told = Told()
    told.come(node("n"), pod("a", cpu="1"))
    told.attempt(1.0)
    good = told.records
    bad = [*good[:2], PodSeen(0.0, key("x"), pod("x", cpu="much")), *good[2:]]
    fault, decision = replayed([*bad, *good])
    assert isinstance(fault, Fault)
    assert "cannot be replayed" in fault.why
    assert isinstance(decision, Replayed)


def test_a_record_of_another_format_is_refused() -> None:
    (fault,) = replayed([Begun(0.0, FORMAT + 1, "later", ())])
    assert isinstance(fault, Fault)
    assert f"format {FORMAT + 1}" in fault.why


def test_the_configuration_of_the_scheduler_is_part_of_its_record() -> None:
    found = read_configuration({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{
            "schedulerName": "packer",
            "pluginConfig": [{
                "name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": "MostAllocated"}},
            }],
        }],
    })  # fmt: skip
    assert isinstance(found, Configuration)
    told = Told(found.profiles)
    told.come(node("a"), node("b"), pod("old", on="b", cpu="2"))
    told.come(pod("new", scheduler="packer", cpu="1"))
    told.attempt(1.0)
    (decision,) = replayed(told.records)
    assert isinstance(decision, Replayed)
    assert not decision.differs
    assert isinstance(decision.now, Placed)
    assert decision.now.bindings[0].node == "b"
    told.records[0] = replace(begun(told.desk, 0.0), configuration={"kind": "Nonsense"})
    faults = replayed(told.records)
    assert isinstance(faults[0], Fault)
    assert "configuration" in faults[0].why


@pytest.mark.parametrize("gate", ["", "WorkloadAwarePreemption", "DelayedPreemption"])
def test_that_nobody_is_evicted_for_groups_is_part_of_the_record(gate: str) -> None:
    told = Told(by_gates(gated({gate: False} if gate else {})))
    told.come(node("n", cpu="2"), pod("victim", cpu="2", on="n", priority=1))
    told.come(gang("g", 1, priority=10), pod("g-0", "g", cpu="2", priority=10))
    told.attempt()
    (found,) = replayed(told.records)
    assert isinstance(found, Replayed)
    assert not found.differs
    assert isinstance(found.then, Waiting if gate else Preempting)


# ---- properties ----------------------------------------------------------------------------------


def asking() -> Told:
    """A gang about which a solver was asked, that shows that it fits nowhere."""
    told = Told()
    told.solver = lambda program: Unsolvable()
    told.come(node("a", cpu="9"), node("b", cpu="9"), gang("g", 5))
    told.come(*(pod(f"p{n}", "g", cpu=cpu) for n, cpu in enumerate("44442")))
    told.attempt()
    return told


def test_what_a_solver_said_is_recorded_and_said_again() -> None:
    records = asking().records
    assert [one.answer for one in records if isinstance(one, Answered)] == [Unsolvable()]
    (found,) = replayed(records)
    assert isinstance(found, Replayed)
    assert not found.differs
    assert isinstance(found.then, Waiting)
    assert found.then.reason == "Unschedulable"


def test_without_what_a_solver_said_the_decision_is_another() -> None:
    (found,) = replayed([one for one in asking().records if not isinstance(one, Answered)])
    assert isinstance(found, Replayed)
    assert isinstance(found.now, Waiting)
    assert (found.differs, found.now.reason) == (True, "SchedulingUndecided")


def test_what_a_solver_said_unasked_is_not_heeded() -> None:
    told = Told()
    told.come(node("a"), pod("p"))
    told.attempt()
    told.records.insert(-1, Answered(0.0, Unsolvable()))
    (found,) = replayed(told.records)
    assert isinstance(found, Replayed)
    assert not found.differs


def outcome(desk: Desk, cycle: Steps[Decision], solver: Solver, at: float) -> Decision:
    """What a cycle of a desk comes to, its questions being answered."""
    state = advanced(cycle)
    while isinstance(state, Search):
        answer = solver(state.program)
        desk.answered(answer, at)
        state = advanced(cycle, answer)
    return state


#: Objects by (kind, name), as they were last seen.
Things = dict[tuple[str, str], Node | Pod | PodGroup]


class Telling(RuleBasedStateMachine):
    """A desk that is told this and that, and several records of it, each with its own beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.serial = 0.0, 0
        self.stories: list[list[Record]] = []
        self.desk = Desk(DEFAULT_PROFILES, self.note)
        self.things: Things = {}
        self.spaces: dict[str, dict[str, str]] = {}
        self.services: dict[Key, dict[str, str]] = {}
        #: What is being decided: the entity, and what was made of the moment when it was taken.
        self.flying: tuple[Entity, Steps[Decision]] | None = None
        self.placed: list[Binding] = []

    def note(self, record: Record) -> None:
        for story in self.stories:
            story.append(record)

    @initialize(data=st.data())
    def there_is_something(self, data: st.DataObject) -> None:
        self.a_new_record_begins()
        self.tell(node("n0", {"zone": "a"}))
        self.tell(node("n1", {"zone": "b"}, cpu="2"))
        self.tell(data.draw(strategies.nodes("n2")))
        self.tell(gang("g", 2))
        for name in ("p0", "p1", "p2"):
            self.a_pod_comes(data, name, "g", plain=True, gated=False)

    @precondition(lambda self: not self.flying)
    @rule()
    def a_new_record_begins(self) -> None:
        self.stories.append([begun(self.desk, self.now), *self.picture()])

    def picture(self) -> Iterator[Record]:
        yield from (NamespaceSeen(self.now, *one) for one in self.spaces.items())
        yield from (ServiceSeen(self.now, *one) for one in self.services.items())
        for kind in (Node, PodGroup, Pod):
            things = (thing for thing in self.things.values() if isinstance(thing, kind))
            yield from (seen(self.now, thing) for thing in things)
        yield from self.desk.standing(self.now)

    # ---- what is seen ----------------------------------------------------------------------------

    def tell(self, thing: Node | Pod | PodGroup) -> None:
        self.serial += 1
        meta = replace(thing.metadata, resource_version=str(self.serial))
        told = replace(thing, metadata=meta)
        self.things[type(thing).__name__, meta.name] = told
        self.desk.feed(seen(self.now, told))

    @rule(data=st.data(), name=st.sampled_from(strategies.NODE_NAMES))
    def a_node_comes_or_changes(self, data: st.DataObject, name: str) -> None:
        self.tell(data.draw(strategies.nodes(name)))

    @rule(name=st.sampled_from(strategies.NODE_NAMES))
    def a_node_goes(self, name: str) -> None:
        self.things.pop(("Node", name), None)
        self.desk.feed(NodeSeen(self.now, name, None))

    @rule(group=st.sampled_from([gang("g", 2), gang("g", 3), basic("g"), gang("h", 1)]))
    def a_group_comes_or_changes(self, group: PodGroup) -> None:
        self.tell(group)

    @rule(name=st.sampled_from(["g", "h"]))
    def a_group_goes(self, name: str) -> None:
        self.things.pop(("PodGroup", name), None)
        self.desk.feed(GroupSeen(self.now, key(name), None))

    @rule(
        data=st.data(),
        name=st.sampled_from([f"p{i}" for i in range(6)]),
        group=st.sampled_from(["", "", "g", "g", "g", "h"]),
        plain=st.booleans(),
        gated=st.integers(0, 4).map(lambda n: not n),
    )
    def a_pod_comes(
        self, data: st.DataObject, name: str, group: str, plain: bool, gated: bool
    ) -> None:
        self.serial += 1
        asks = st.builds(pod, st.just(name), st.just(group), cpu=st.sampled_from(["500m", "1"]))
        one = data.draw(asks if plain else strategies.pods(name, group, peers=True))
        gates = pod("x", gates=["quota"] if gated else []).spec.scheduling_gates
        spec = replace(one.spec, scheduling_gates=gates)
        meta = replace(one.metadata, uid=f"uid-{self.serial}")
        self.tell(replace(one, metadata=meta, spec=spec))

    @rule(data=st.data(), how=st.sampled_from(["is seen", "is bound", "ends", "goes", "leaves"]))
    def a_pod(self, data: st.DataObject, how: str) -> None:
        pods = [one for one in self.things.values() if isinstance(one, Pod)]
        if not pods:
            return
        one = data.draw(st.sampled_from(pods))
        if how == "goes":
            del self.things["Pod", one.metadata.name]
            self.desk.feed(PodSeen(self.now, one.metadata.key, None))
        elif how == "is bound":
            where = one.spec.node_name or data.draw(st.sampled_from(strategies.NODE_NAMES))
            self.tell(pod_like(one, one.metadata.name, on=where))
        elif how == "ends":
            self.tell(replace(one, status=replace(one.status, phase="Succeeded")))
        elif how == "leaves":
            meta = replace(one.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
            self.tell(replace(one, metadata=meta))
        else:
            self.tell(one)

    @rule(name=st.sampled_from(["default", "other"]), team=st.sampled_from(["a", "b"]))
    def a_namespace_comes_or_changes(self, name: str, team: str) -> None:
        self.spaces[name] = {"team": team}
        self.desk.feed(NamespaceSeen(self.now, name, self.spaces[name]))

    @rule(name=st.sampled_from(["s", "t"]), app=st.sampled_from(["web", "db", ""]))
    def a_service_comes_changes_or_goes(self, name: str, app: str) -> None:
        self.services.pop(key(name), None)
        if app:
            self.services[key(name)] = {"app": app}
        self.desk.feed(ServiceSeen(self.now, key(name), self.services.get(key(name))))

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 7.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    # ---- what is done ----------------------------------------------------------------------------

    @precondition(lambda self: not self.flying)
    @rule(soon=st.booleans())
    def the_next_is_taken(self, soon: bool) -> None:
        entity = self.desk.take(self.now)
        self.flying = (entity, self.desk.cycle(entity)) if entity else None
        if self.flying and soon:
            self.what_was_taken_is_settled()

    @precondition(lambda self: not self.flying)
    @rule()
    def everybody_is_tried(self) -> None:
        self.the_next_is_taken(soon=False)
        while self.flying:
            self.what_was_taken_is_settled()
            self.the_next_is_taken(soon=False)

    @precondition(lambda self: self.flying)
    @rule()
    def what_was_taken_is_settled(self) -> None:
        assert self.flying is not None
        (entity, cycle), self.flying = self.flying, None
        decision = outcome(self.desk, cycle, SOLVER, self.now)
        if self.desk.settle(entity, decision, self.now) and isinstance(decision, Placed):
            self.placed += decision.bindings

    @precondition(lambda self: self.placed)
    @rule(bound=st.booleans())
    def a_binding_succeeds_or_does_not(self, bound: bool) -> None:
        binding = self.placed.pop(0)
        one = self.things.get(("Pod", binding.pod.name))
        if not bound:
            self.desk.undo([binding], self.now)
        elif isinstance(one, Pod) and one.metadata.uid == binding.uid and not one.spec.node_name:
            self.tell(pod_like(one, binding.pod.name, on=binding.node))

    def teardown(self) -> None:
        """Every record is replayed: all decisions are in it, and all are the same."""
        for story in self.stories:
            found = replayed(story)
            assert [one for one in found if isinstance(one, Fault) or one.differs] == []
            assert len(found) == sum(isinstance(one, Decided) for one in story)


TestEveryRecordCanBeReplayed = Telling.TestCase
TestEveryRecordCanBeReplayed.settings = settings(
    max_examples=settings().max_examples // 2, stateful_step_count=40
)
