"""A replay of a decision log makes the same decisions, from any beginning."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec.structs import replace

from phalanx.api.core import Node, Pod
from phalanx.api.feature_gates import resolve_gates
from phalanx.api.meta import Key
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.controllers.scheduling import exact_solver as exact
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.configuration.scheduler_configuration import SchedulerConfiguration
from phalanx.scheduler.configuration.scheduler_configuration import (
    parse_configuration as read_configuration,
)
from phalanx.scheduler.cycle import resume_cycle
from phalanx.scheduler.decision import Binding, Decision, Placed, Preempting, Waiting
from phalanx.scheduler.entity import Entity, reject_after_error
from phalanx.scheduler.plugins.plugin import Plugin, StaticScore
from phalanx.scheduler.policy import DEFAULT_PROFILES, Profiles, apply_feature_gates
from phalanx.scheduler.queue.decision_log import (
    FORMAT,
    CompositePodGroupObserved,
    DecisionLogRecord,
    DecisionMade,
    LogStarted,
    NamespaceObserved,
    NodeObserved,
    Observation,
    PodGroupObserved,
    PodObserved,
    RecordEncoder,
    RecordFault,
    ServiceObserved,
    SolverAnswered,
)
from phalanx.scheduler.queue.replay import ReplayedDecision, replay
from phalanx.scheduler.queue.scheduler_state import SchedulerState
from phalanx.scheduler.search.solver import SolverFunction, SolverRequest, Steps, Unsolvable
from tests.scheduler import strategies
from tests.scheduler.builders import basic, gang, key, node, pod, pod_like


def log_started(state: SchedulerState, at: float) -> LogStarted:
    profiles = state.profiles
    return LogStarted(
        at, FORMAT, "test", tuple(profiles.policies), profiles.configuration, state.queue.sequence,
        profiles.groups_preempt,
    )  # fmt: skip


def encode_records(records: list[DecisionLogRecord]) -> list[bytes]:
    return list(RecordEncoder().encode(records))


def replay_records(records: list[DecisionLogRecord]) -> list[ReplayedDecision | RecordFault]:
    return list(replay(encode_records(records)))


SOLVER = exact.HighsSolver()
Thing = Node | Pod | PodGroup | CompositePodGroup


class RecordedScheduler:
    """A scheduler state, and the records of all its steps."""

    def __init__(self, profiles: Profiles = DEFAULT_PROFILES) -> None:
        self.records: list[DecisionLogRecord] = []
        self.state = SchedulerState(profiles, self.records.append)
        self.solver: SolverFunction = SOLVER
        self.records.append(log_started(self.state, 0.0))

    def observe(self, *things: Thing, at: float = 0.0) -> None:
        for thing in things:
            self.state.observe(observation_of(at, thing))

    def attempt(self, at: float = 0.0) -> Entity:
        entity = self.state.pop(at)
        assert entity is not None
        self.state.commit(
            entity, decide_with_solver(self.state, self.state.cycle(entity), self.solver, at), at
        )
        return entity


def observation_of(at: float, thing: Thing) -> Observation:
    match thing:
        case CompositePodGroup():
            return CompositePodGroupObserved(at, thing.metadata.key, thing)
        case Node():
            return NodeObserved(at, thing.metadata.name, thing)
        case PodGroup():
            return PodGroupObserved(at, thing.metadata.key, thing)
        case Pod():
            return PodObserved(at, thing.metadata.key, thing)


# ---- examples ------------------------------------------------------------------------------------


def test_replay_repeats_every_decision() -> None:
    scheduler = RecordedScheduler()
    scheduler.observe(
        node("n", cpu="2"), gang("g", 2), pod("a", "g", cpu="1"), pod("b", "g", cpu="1")
    )
    scheduler.observe(pod("late", cpu="1"), at=1.0)
    scheduler.attempt(2.0)
    scheduler.attempt(3.0)
    first, second = replay_records(scheduler.records)
    assert isinstance(first, ReplayedDecision)
    assert isinstance(second, ReplayedDecision)
    assert (first.at, first.entity.key, second.entity.key) == (2.0, key("g"), key("late"))
    assert first.recorded == first.replayed
    assert isinstance(first.recorded, Placed)
    assert second.recorded == second.replayed
    assert isinstance(second.recorded, Waiting)


def test_replay_continues_after_a_decision_that_differs() -> None:
    scheduler = RecordedScheduler()
    scheduler.observe(node("n", cpu="2"), pod("a", cpu="1"), pod("b", cpu="1"))
    scheduler.attempt(1.0)
    scheduler.attempt(2.0)
    at = next(i for i, one in enumerate(scheduler.records) if isinstance(one, DecisionMade))
    decided = scheduler.records[at]
    assert isinstance(decided, DecisionMade)
    elsewhere = {"Placed": {"group": None, "bindings": [[key("a"), "uid-a", "m"]], "leftovers": []}}
    scheduler.records[at] = replace(decided, decision=elsewhere)
    first, second = replay_records(scheduler.records)
    assert isinstance(first, ReplayedDecision)
    assert isinstance(second, ReplayedDecision)
    assert first.differs
    assert not second.differs


def test_changed_line_is_detected_by_its_digest_and_by_the_decision() -> None:
    scheduler = RecordedScheduler()
    scheduler.observe(node("n", cpu="2"), pod("a", cpu="1"))
    scheduler.attempt(1.0)
    lines = encode_records(scheduler.records)
    lines[1] = lines[1].replace(b'"cpu":"2"', b'"cpu":"0"')
    fault, decision = replay(lines)
    assert fault == RecordFault(2, "was changed, or a line before it is missing or moved")
    assert isinstance(decision, ReplayedDecision)
    assert decision.differs


def test_missing_line_is_detected() -> None:
    scheduler = RecordedScheduler()
    scheduler.observe(node("n"), node("m"), pod("a"))
    scheduler.attempt(1.0)
    lines = encode_records(scheduler.records)
    faults = [one for one in replay([*lines[:2], *lines[3:]]) if isinstance(one, RecordFault)]
    assert faults[0] == RecordFault(3, "was changed, or a line before it is missing or moved")


def test_invalid_line_is_reported_and_skipped() -> None:
    scheduler = RecordedScheduler()
    scheduler.observe(node("n"), pod("a"))
    scheduler.attempt(1.0)
    lines = encode_records(scheduler.records)
    lines[1] = b"not a record\n"
    assert [one.line for one in replay(lines) if isinstance(one, RecordFault)][:1] == [2]


def test_truncated_last_line_is_ignored() -> None:
    scheduler = RecordedScheduler()
    scheduler.observe(node("n"), pod("a"))
    scheduler.attempt(1.0)
    lines = encode_records(scheduler.records)
    for length in (1, 20, len(lines[-1]) - 1):
        assert list(replay([*lines[:-1], lines[-1][:length]])) == []


def test_diverged_replay_compares_nothing_until_the_next_beginning() -> None:
    scheduler = RecordedScheduler()
    scheduler.observe(node("n"), pod("a"), pod("b"))
    scheduler.attempt(1.0)
    other = [
        one
        for one in scheduler.records
        if not (isinstance(one, PodObserved) and one.key == key("a"))
    ]
    scheduler.attempt(2.0)
    fault, decision = replay_records([*other, *scheduler.records[-2:], *scheduler.records[:-2]])
    assert isinstance(fault, RecordFault)
    assert "pops default/a, but the queue returns default/b" in fault.reason
    assert isinstance(decision, ReplayedDecision)
    assert not decision.differs


def test_record_that_cannot_be_applied_is_reported() -> None:
    scheduler = RecordedScheduler()
    scheduler.observe(node("n"), pod("a", cpu="1"))
    scheduler.attempt(1.0)
    good = scheduler.records
    bad = [*good[:2], PodObserved(0.0, key("x"), pod("x", cpu="much")), *good[2:]]
    fault, decision = replay_records([*bad, *good])
    assert isinstance(fault, RecordFault)
    assert "cannot be replayed" in fault.reason
    assert isinstance(decision, ReplayedDecision)


def test_other_format_is_rejected() -> None:
    (fault,) = replay_records([LogStarted(0.0, FORMAT + 1, "later", ())])
    assert isinstance(fault, RecordFault)
    assert f"format {FORMAT + 1}" in fault.reason


def test_a_cycle_that_raised_is_replayed_as_the_same_failure() -> None:
    def fail(snapshot: Snapshot, shape: PodShape) -> None:
        raise ZeroDivisionError("planted")

    plugin = Plugin("Failing", score=StaticScore(fail))
    found = read_configuration({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"plugins": {"score": {"enabled": [{"name": "Failing"}]}}}],
    }, [plugin])  # fmt: skip
    assert isinstance(found, SchedulerConfiguration)
    scheduler = RecordedScheduler(found.profiles)
    scheduler.observe(node("a"), node("b"), pod("new", cpu="1"))
    entity = scheduler.state.pop(1.0)
    assert entity is not None
    failed = reject_after_error(entity, ZeroDivisionError("planted"))
    scheduler.state.commit(entity, failed, 1.0)
    (decision,) = replay(encode_records(scheduler.records), [plugin])
    assert isinstance(decision, ReplayedDecision)
    assert decision.replayed == failed
    assert not decision.differs


def test_log_of_a_scheduler_with_a_plugin_is_replayed_with_the_plugin() -> None:
    last = StaticScore(lambda snapshot, shape: np.arange(len(snapshot)))
    plugin = Plugin("LastNode", score=last, weight=100)
    found = read_configuration({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"plugins": {"score": {"enabled": [{"name": "LastNode"}]}}}],
    }, [plugin])  # fmt: skip
    assert isinstance(found, SchedulerConfiguration)
    scheduler = RecordedScheduler(found.profiles)
    scheduler.observe(node("a"), node("b"), pod("new", cpu="1"))
    scheduler.attempt(1.0)
    lines = encode_records(scheduler.records)
    (decision,) = replay(lines, [plugin])
    assert isinstance(decision, ReplayedDecision)
    assert not decision.differs
    assert isinstance(decision.replayed, Placed)
    assert decision.replayed.bindings[0].node == "b"
    (fault, *_) = replay(lines)
    assert isinstance(fault, RecordFault)
    assert '"LastNode"' in fault.reason


def test_log_contains_the_scheduler_configuration() -> None:
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
    assert isinstance(found, SchedulerConfiguration)
    scheduler = RecordedScheduler(found.profiles)
    scheduler.observe(node("a"), node("b"), pod("old", on="b", cpu="2"))
    scheduler.observe(pod("new", scheduler="packer", cpu="1"))
    scheduler.attempt(1.0)
    (decision,) = replay_records(scheduler.records)
    assert isinstance(decision, ReplayedDecision)
    assert not decision.differs
    assert isinstance(decision.replayed, Placed)
    assert decision.replayed.bindings[0].node == "b"
    scheduler.records[0] = replace(
        log_started(scheduler.state, 0.0), configuration={"kind": "Nonsense"}
    )
    faults = replay_records(scheduler.records)
    assert isinstance(faults[0], RecordFault)
    assert "configuration" in faults[0].reason


@pytest.mark.parametrize("gate", ["", "WorkloadAwarePreemption", "DelayedPreemption"])
def test_log_contains_whether_groups_preempt(gate: str) -> None:
    scheduler = RecordedScheduler(apply_feature_gates(resolve_gates({gate: False} if gate else {})))
    scheduler.observe(node("n", cpu="2"), pod("victim", cpu="2", on="n", priority=1))
    scheduler.observe(gang("g", 1, priority=10), pod("g-0", "g", cpu="2", priority=10))
    scheduler.attempt()
    (found,) = replay_records(scheduler.records)
    assert isinstance(found, ReplayedDecision)
    assert not found.differs
    assert isinstance(found.recorded, Waiting if gate else Preempting)


# ---- properties ----------------------------------------------------------------------------------


def scheduler_with_solver_answer() -> RecordedScheduler:
    """A gang for which the solver proves that no placement exists."""
    scheduler = RecordedScheduler()
    scheduler.solver = lambda program: Unsolvable()
    scheduler.observe(node("a", cpu="9"), node("b", cpu="9"), gang("g", 5))
    scheduler.observe(*(pod(f"p{n}", "g", cpu=cpu) for n, cpu in enumerate("44442")))
    scheduler.attempt()
    return scheduler


def test_solver_answers_are_recorded_and_replayed() -> None:
    records = scheduler_with_solver_answer().records
    assert [one.answer for one in records if isinstance(one, SolverAnswered)] == [Unsolvable()]
    (found,) = replay_records(records)
    assert isinstance(found, ReplayedDecision)
    assert not found.differs
    assert isinstance(found.recorded, Waiting)
    assert found.recorded.reason == "Unschedulable"


def test_decision_differs_without_the_recorded_solver_answer() -> None:
    (found,) = replay_records(
        [
            one
            for one in scheduler_with_solver_answer().records
            if not isinstance(one, SolverAnswered)
        ]
    )
    assert isinstance(found, ReplayedDecision)
    assert isinstance(found.replayed, Waiting)
    assert (found.differs, found.replayed.reason) == (True, "SchedulingUndecided")


def test_solver_answer_without_a_request_is_ignored() -> None:
    scheduler = RecordedScheduler()
    scheduler.observe(node("a"), pod("p"))
    scheduler.attempt()
    scheduler.records.insert(-1, SolverAnswered(0.0, Unsolvable()))
    (found,) = replay_records(scheduler.records)
    assert isinstance(found, ReplayedDecision)
    assert not found.differs


def decide_with_solver(
    scheduler_state: SchedulerState, cycle: Steps[Decision], solver: SolverFunction, at: float
) -> Decision:
    """Run a cycle and answer its solver requests."""
    state = resume_cycle(cycle)
    while isinstance(state, SolverRequest):
        answer = solver(state.program)
        scheduler_state.record_answer(answer, at)
        state = resume_cycle(cycle, answer)
    return state


#: Objects by (kind, name), as they were last observed.
Things = dict[tuple[str, str], Node | Pod | PodGroup]


class ReplayMachine(RuleBasedStateMachine):
    """A scheduler state with random steps, and several logs of it that begin at different times."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.serial = 0.0, 0
        self.logs: list[list[DecisionLogRecord]] = []
        self.state = SchedulerState(DEFAULT_PROFILES, self.record)
        self.things: Things = {}
        self.spaces: dict[str, dict[str, str]] = {}
        self.services: dict[Key, dict[str, str]] = {}
        #: The entity in the current cycle, and its decision.
        self.in_flight: tuple[Entity, Steps[Decision]] | None = None
        self.placed: list[Binding] = []

    def record(self, record: DecisionLogRecord) -> None:
        for log in self.logs:
            log.append(record)

    @initialize(data=st.data())
    def create_objects(self, data: st.DataObject) -> None:
        self.begin_log()
        self.observe(node("n0", {"zone": "a"}))
        self.observe(node("n1", {"zone": "b"}, cpu="2"))
        self.observe(data.draw(strategies.nodes("n2")))
        self.observe(gang("g", 2))
        for name in ("p0", "p1", "p2"):
            self.create_pod(data, name, "g", plain=True, gated=False)

    @precondition(lambda self: not self.in_flight)
    @rule()
    def begin_log(self) -> None:
        self.logs.append([log_started(self.state, self.now), *self.checkpoint()])

    def checkpoint(self) -> Iterator[DecisionLogRecord]:
        yield from (NamespaceObserved(self.now, *one) for one in self.spaces.items())
        yield from (ServiceObserved(self.now, *one) for one in self.services.items())
        for kind in (Node, PodGroup, Pod):
            things = (thing for thing in self.things.values() if isinstance(thing, kind))
            yield from (observation_of(self.now, thing) for thing in things)
        yield from self.state.checkpoint(self.now)

    # ---- observations ----------------------------------------------------------------------------

    def observe(self, thing: Node | Pod | PodGroup) -> None:
        self.serial += 1
        meta = replace(thing.metadata, resource_version=str(self.serial))
        changed = replace(thing, metadata=meta)
        self.things[type(thing).__name__, meta.name] = changed
        self.state.observe(observation_of(self.now, changed))

    @rule(data=st.data(), name=st.sampled_from(strategies.NODE_NAMES))
    def update_node(self, data: st.DataObject, name: str) -> None:
        self.observe(data.draw(strategies.nodes(name)))

    @rule(name=st.sampled_from(strategies.NODE_NAMES))
    def delete_node(self, name: str) -> None:
        self.things.pop(("Node", name), None)
        self.state.observe(NodeObserved(self.now, name, None))

    @rule(group=st.sampled_from([gang("g", 2), gang("g", 3), basic("g"), gang("h", 1)]))
    def update_group(self, group: PodGroup) -> None:
        self.observe(group)

    @rule(name=st.sampled_from(["g", "h"]))
    def delete_group(self, name: str) -> None:
        self.things.pop(("PodGroup", name), None)
        self.state.observe(PodGroupObserved(self.now, key(name), None))

    @rule(
        data=st.data(),
        name=st.sampled_from([f"p{i}" for i in range(6)]),
        group=st.sampled_from(["", "", "g", "g", "g", "h"]),
        plain=st.booleans(),
        gated=st.integers(0, 4).map(lambda n: not n),
    )
    def create_pod(
        self, data: st.DataObject, name: str, group: str, plain: bool, gated: bool
    ) -> None:
        self.serial += 1
        asks = st.builds(pod, st.just(name), st.just(group), cpu=st.sampled_from(["500m", "1"]))
        one = data.draw(asks if plain else strategies.pods(name, group, constraints=True))
        gates = pod("x", gates=["quota"] if gated else []).spec.scheduling_gates
        spec = replace(one.spec, scheduling_gates=gates)
        meta = replace(one.metadata, uid=f"uid-{self.serial}")
        self.observe(replace(one, metadata=meta, spec=spec))

    @rule(
        data=st.data(), how=st.sampled_from(["is observed", "is bound", "ends", "goes", "leaves"])
    )
    def change_pod(self, data: st.DataObject, how: str) -> None:
        pods = [one for one in self.things.values() if isinstance(one, Pod)]
        if not pods:
            return
        one = data.draw(st.sampled_from(pods))
        if how == "goes":
            del self.things["Pod", one.metadata.name]
            self.state.observe(PodObserved(self.now, one.metadata.key, None))
        elif how == "is bound":
            where = one.spec.node_name or data.draw(st.sampled_from(strategies.NODE_NAMES))
            self.observe(pod_like(one, one.metadata.name, on=where))
        elif how == "ends":
            self.observe(replace(one, status=replace(one.status, phase="Succeeded")))
        elif how == "leaves":
            meta = replace(one.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
            self.observe(replace(one, metadata=meta))
        else:
            self.observe(one)

    @rule(name=st.sampled_from(["default", "other"]), team=st.sampled_from(["a", "b"]))
    def update_namespace(self, name: str, team: str) -> None:
        self.spaces[name] = {"team": team}
        self.state.observe(NamespaceObserved(self.now, name, self.spaces[name]))

    @rule(name=st.sampled_from(["s", "t"]), app=st.sampled_from(["web", "db", ""]))
    def update_service(self, name: str, app: str) -> None:
        self.services.pop(key(name), None)
        if app:
            self.services[key(name)] = {"app": app}
        self.state.observe(ServiceObserved(self.now, key(name), self.services.get(key(name))))

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 7.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    # ---- steps of the scheduler ------------------------------------------------------------------

    @precondition(lambda self: not self.in_flight)
    @rule(soon=st.booleans())
    def pop_next_entity(self, soon: bool) -> None:
        entity = self.state.pop(self.now)
        self.in_flight = (entity, self.state.cycle(entity)) if entity else None
        if self.in_flight and soon:
            self.commit_decision()

    @precondition(lambda self: not self.in_flight)
    @rule()
    def attempt_all(self) -> None:
        self.pop_next_entity(soon=False)
        while self.in_flight:
            self.commit_decision()
            self.pop_next_entity(soon=False)

    @precondition(lambda self: self.in_flight)
    @rule()
    def commit_decision(self) -> None:
        assert self.in_flight is not None
        (entity, cycle), self.in_flight = self.in_flight, None
        decision = decide_with_solver(self.state, cycle, SOLVER, self.now)
        if self.state.commit(entity, decision, self.now) and isinstance(decision, Placed):
            self.placed += decision.bindings

    @precondition(lambda self: self.placed)
    @rule(bound=st.booleans())
    def finish_binding(self, bound: bool) -> None:
        binding = self.placed.pop(0)
        one = self.things.get(("Pod", binding.pod.name))
        if not bound:
            self.state.rollback([binding], self.now)
        elif isinstance(one, Pod) and one.metadata.uid == binding.uid and not one.spec.node_name:
            self.observe(pod_like(one, binding.pod.name, on=binding.node))

    def teardown(self) -> None:
        """Every log is replayed; it contains all decisions, and all are the same."""
        for log in self.logs:
            found = replay_records(log)
            assert [one for one in found if isinstance(one, RecordFault) or one.differs] == []
            assert len(found) == sum(isinstance(one, DecisionMade) for one in log)


TestEveryRecordCanBeReplayed = ReplayMachine.TestCase
TestEveryRecordCanBeReplayed.settings = settings(
    max_examples=settings().max_examples // 2, stateful_step_count=40
)
