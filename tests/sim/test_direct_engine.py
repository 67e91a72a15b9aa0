"""The direct engine: the nodes, times and reports of the core engine, whatever arrives."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as but

from phalanx.api.core import Node, Taint
from phalanx.scheduler.decision import Binding
from phalanx.scheduler.plugins.settings_plugins import ReservationArgs, ReservationMode
from phalanx.scheduler.policy import DEFAULT_PROFILES, Profiles
from phalanx.sim.core_engine import CoreEngine, LiveJob
from phalanx.sim.direct_engine import DirectEngine
from phalanx.sim.engine_selection import build_core_engine
from phalanx.sim.reports.figures import build_report
from phalanx.sim.simulation_setup import NodeFault, SimulationSetup
from phalanx.sim.workloads.workload import MILLI_GPU, TraceJob, TraceWorkload, build_equal_nodes
from tests.builders import share_of_examples
from tests.scheduler.configurations import load_configuration
from tests.sim.test_core_engine import contended_setup

GPU = "nvidia.com/gpu"
#: The nodes of each run of each job, a node for each pod.
Nodes = dict[tuple[int, int], list[str]]


class RecordingCoreEngine(CoreEngine):
    """Keeps the nodes of all pods."""

    def __init__(self, one: SimulationSetup) -> None:
        super().__init__(one)
        self.nodes: Nodes = {}

    def _note_start(self, live: LiveJob, bindings: Sequence[Binding], now: float) -> None:
        super()._note_start(live, bindings, now)
        self.nodes[live.number, live.run] = [node for _, _, node in bindings]


class RecordingDirectEngine(DirectEngine):
    """Keeps the nodes of all pods, and checks that the scheduler observes the same ones."""

    def __init__(self, one: SimulationSetup) -> None:
        super().__init__(one)
        self.nodes: Nodes = {}
        #: The instants at which the scheduler had nothing to do.
        self.direct_instants = self.most_waiting = 0

    def _run_instant(self, now: float) -> None:
        super()._run_instant(now)
        names = self._placement.names
        self.most_waiting = max(self.most_waiting, len(self._recorder.waiting))
        self.direct_instants += bool(self._unseen_starts or self._unseen_ends)
        for number, rows in self._rows.items():
            nodes = [names[row] for row in rows]
            # A job that has ended before the scheduler saw it has run once.
            key = number, self._running[number].run if number in self._running else 0
            assert self.nodes.setdefault(key, nodes) == nodes

    def _note_start(self, live: LiveJob, bindings: Sequence[Binding], now: float) -> None:
        super()._note_start(live, bindings, now)
        nodes = [node for _, _, node in bindings]
        assert self.nodes.setdefault((live.number, live.run), nodes) == nodes


def assert_equal_runs(one: SimulationSetup) -> RecordingDirectEngine:
    """Run both engines; compare the nodes of all pods, every record, sample and figure."""
    core, direct = RecordingCoreEngine(one), RecordingDirectEngine(one)
    expected, found = core.run(), direct.run()
    assert direct.nodes == core.nodes
    assert found.records == expected.records
    assert found.samples == expected.samples
    assert build_report(found, {}) == build_report(expected, {})
    return direct


def profiles_of(strategy: dict[str, Any] | None, mode: str, *, after: int, fcfs: bool) -> Profiles:
    """Return profiles with a scoring strategy and a mode of reservations."""
    profiles = DEFAULT_PROFILES
    if strategy is not None:
        fit = {"name": "NodeResourcesFit", "args": {"scoringStrategy": strategy}}
        profiles = load_configuration({"pluginConfig": [fit]}).profiles
    args = ReservationArgs(after_seconds=after, mode=mode)
    policies = {
        name: replace(policy, reservation=args) for name, policy in profiles.policies.items()
    }
    return replace(profiles, policies=policies, keeps_arrival_order=fcfs)


STRATEGIES = (
    None,
    {"type": "LeastAllocated", "resources": [{"name": "cpu", "weight": 3}, {"name": GPU}]},
    {"type": "MostAllocated", "resources": [{"name": "cpu"}, {"name": "memory", "weight": 2}]},
    {"type": "MostAllocated", "resources": [{"name": GPU}]},
)
REQUESTS = (
    {"cpu": "1"},
    {"cpu": "3", "memory": "1Gi"},
    {"cpu": "500m", "memory": "3Gi"},
    {GPU: "1"},
    {GPU: "2", "cpu": "1"},
    {GPU: "4"},
)


def build_nodes(draw: st.DrawFn) -> tuple[Node, ...]:
    """Nodes of two shapes and two racks, whose names do not sort in the order of their shapes."""
    found: list[Node] = []
    for i in range(draw(st.integers(1, 6))):
        large = {"cpu": "8", "memory": "16Gi", GPU: "4"}
        shape = draw(st.sampled_from((large, large, {"cpu": "4", "memory": "7Gi"})))
        (node,) = build_equal_nodes(1, shape)
        labels = {"rack": "ab"[i % 2], "disk": draw(st.sampled_from(("ssd", "hdd")))}
        name = f"n{(i * 5) % 7}"
        node = but(node, metadata=but(node.metadata, name=name, labels=labels))
        if draw(st.integers(0, 15)) == 0:
            taint = Taint(key="slow", effect="PreferNoSchedule")
            node = but(node, spec=but(node.spec, taints=(taint,)))
        found.append(node)
    return tuple(found)


@st.composite
def setups(draw: st.DrawFn) -> SimulationSetup:
    """Jobs of few shapes and times; most fit at once, some wait, preempt or lose their nodes."""
    nodes, jobs, submit = build_nodes(draw), list[TraceJob](), 0.0
    priorities = draw(st.sampled_from(((0,), (0, 0, 0, 5, 9))))
    for _ in range(draw(st.integers(1, 30))):
        submit += draw(st.sampled_from((0.0, 0.0, 1.0, 7.0, 20.5, 60.0, 300.0)))
        run_time = draw(st.sampled_from((1.0, 7.0, 30.25, 60.0, 100.0, 400.0)))
        error = draw(st.sampled_from((0.0, 0.0, 0.0, 29.0, 300.0, -0.5, None)))
        is_special, labels = draw(st.integers(0, 9)), dict[str, tuple[str, ...]]()
        if is_special == 0:
            labels = {"disk": draw(st.sampled_from((("ssd",), ("ssd", "hdd"))))}
        jobs.append(
            TraceJob(
                submit,
                run_time,
                draw(st.sampled_from(REQUESTS)),
                draw(st.sampled_from((1, 1, 1, 2, 3, 11))),
                estimate=None if error is None else max(run_time + error, 0.5),
                priority=draw(st.sampled_from(priorities)),
                node_labels=labels,
                topology="rack" if is_special == 1 else "",
            )
        )
    faults = tuple(
        NodeFault(draw(st.sampled_from((20.0, 67.0, 100.0))), node.metadata.name, 50.0)
        for node in nodes
        if draw(st.integers(0, 9)) == 0
    )
    profiles = profiles_of(
        draw(st.sampled_from(STRATEGIES)),
        draw(st.sampled_from(tuple(ReservationMode))),
        after=draw(st.sampled_from((0, 60))),
        fcfs=draw(st.booleans()),
    )
    horizon = draw(st.sampled_from((float("inf"), float("inf"), 300.0)))
    return SimulationSetup(
        TraceWorkload(tuple(jobs)), nodes, profiles, horizon=horizon, faults=faults
    )


@share_of_examples(0.2)
@given(setups())
def test_any_jobs_run_on_the_nodes_of_the_core_engine(one: SimulationSetup) -> None:
    assert_equal_runs(one)


@pytest.mark.slow
def test_contended_jobs_and_lost_nodes_are_those_of_the_core_engine() -> None:
    assert_equal_runs(contended_setup(1))


def build_phases(seed: int, mode: str) -> SimulationSetup:
    """Times at which all jobs fit, and times at which many wait, in turn."""
    draw, jobs, submit = random.Random(seed), list[TraceJob](), 0.0
    for number in range(150):
        is_busy = number // 30 % 2
        submit += draw.expovariate(1 / 6 if is_busy else 1 / 60)
        run_time = round(draw.lognormvariate(5.0, 1.0)) + 1.0
        requests, pods = draw.choice(REQUESTS), draw.choice((1, 1, 1, 1, 2, 5))
        estimate = run_time * draw.choice((1.0, 1.0, 3.0))
        jobs.append(TraceJob(submit, run_time, requests, pods, estimate=estimate))
    nodes = build_equal_nodes(8, {"cpu": "8", "memory": "16Gi", GPU: "4"})
    profiles = profiles_of(None, mode, after=0, fcfs=True)
    return SimulationSetup(TraceWorkload(tuple(jobs)), nodes, profiles)


@pytest.mark.mostly_slow(quick_every=4)
@pytest.mark.parametrize("mode", list(ReservationMode))
def test_phases_with_and_without_waiting_jobs_are_those_of_the_core_engine(mode: str) -> None:
    one = build_phases(3, mode)
    direct = assert_equal_runs(one)
    assert direct.direct_instants > 50
    assert direct.most_waiting > 5


def test_scheduler_observes_nothing_while_all_jobs_fit() -> None:
    jobs = tuple(TraceJob(10.0 * i, 35.0, {GPU: "1"}, 1 + i % 3, estimate=40.0) for i in range(50))
    one = SimulationSetup(TraceWorkload(jobs), build_equal_nodes(4, {"cpu": "8", GPU: "4"}))
    direct = assert_equal_runs(one)
    assert direct._state.cache.snapshot().member_counts == {}
    assert not direct._state.queue.sequence


def test_stopped_simulation_has_a_partial_result() -> None:
    jobs = (TraceJob(0, 100, {GPU: "1"}, estimate=100), TraceJob(50, 100, {GPU: "1"}, estimate=100))
    one = SimulationSetup(TraceWorkload(jobs), build_equal_nodes(1, {"cpu": "8", GPU: "4"}))
    engine = DirectEngine(one, lambda now, done: engine.stop())
    result = engine.run()
    assert result.is_partial
    assert [record.first_start for record in result.records] == [0, None]


def test_shares_of_devices_are_placed_by_the_core_engine() -> None:
    shares = TraceJob(0, 10, {MILLI_GPU: "500"}, estimate=10)
    nodes = build_equal_nodes(1, {"cpu": "8", MILLI_GPU: "4000"})
    plain = SimulationSetup(TraceWorkload((but(shares, requests={"cpu": "1"}),)), nodes)
    assert type(build_core_engine(plain)) is DirectEngine
    assert type(build_core_engine(replace(plain, workload=TraceWorkload((shares,))))) is CoreEngine


def test_every_field_of_a_job_is_known_to_the_direct_engine() -> None:
    """A new field must change the shape or the queue as here, or `place` must refuse it."""
    placed = {"submit", "run_time", "requests", "pods", "priority", "owner", "node_labels"}
    left_to_the_scheduler = {"topology", "estimate"}
    assert set(TraceJob.__struct_fields__) == placed | left_to_the_scheduler
