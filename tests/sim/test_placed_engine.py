"""The placed engine: the nodes, times and figures of the core engine wherever it applies."""

from __future__ import annotations

import gzip
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as but

from phalanx.api.core import Taint
from phalanx.scheduler.plugins.settings_plugins import ReservationMode
from phalanx.scheduler.policy import DEFAULT_PROFILES
from phalanx.sim import direct_placement
from phalanx.sim.core_engine import CoreEngine
from phalanx.sim.counted_engine import CountedEngine
from phalanx.sim.engine_selection import build_core_engine
from phalanx.sim.placed_engine import PlacedEngine, can_place_all
from phalanx.sim.reports.figures import build_report
from phalanx.sim.simulation_setup import (
    NodeFault,
    SimulationSetup,
    find_large_jobs,
    leave_out_jobs,
)
from phalanx.sim.workloads.swf import read_swf
from phalanx.sim.workloads.workload import (
    MILLI_GPU,
    TraceFile,
    TraceJob,
    TraceWorkload,
    build_equal_nodes,
)
from tests.builders import share_of_examples
from tests.sim.test_core_engine import profiles
from tests.sim.test_direct_engine import (
    GPU,
    REQUESTS,
    STRATEGIES,
    Nodes,
    RecordingCoreEngine,
    build_nodes,
    profiles_of,
)

MODES = (ReservationMode.EASY, ReservationMode.STRICT, ReservationMode.OFF)


class RecordingPlacedEngine(PlacedEngine):
    """Keeps the nodes of all pods, and counts what the tests must reach."""

    def __init__(self, one: SimulationSetup) -> None:
        super().__init__(one)
        self.nodes: Nodes = {}
        self.most_waiting = self.nominated_instants = 0

    def _note_start(self, number: int, now: float) -> None:
        super()._note_start(number, now)
        names = self._placement.names
        self.nodes[number, 0] = [names[row] for row in self._running[number].rows]

    def _next_time(self, event: float) -> float:
        self.most_waiting = max(self.most_waiting, len(self._queue))
        self.nominated_instants += self._is_nominated
        return super()._next_time(event)


def assert_equal_runs(one: SimulationSetup) -> RecordingPlacedEngine:
    """Run both engines; compare the nodes of all pods, every record, sample and figure."""
    assert can_place_all(one)
    core, placed = RecordingCoreEngine(one), RecordingPlacedEngine(one)
    expected, found = core.run(), placed.run()
    assert found.records == expected.records
    assert placed.nodes == core.nodes
    assert found.samples == expected.samples
    report = build_report(expected, {})
    assert build_report(found, {}) == {**report, "decisions": found.decisions}
    return placed


@st.composite
def setups(draw: st.DrawFn) -> SimulationSetup:
    """Jobs of few shapes and times, more than fit: several arrive and end at one instant."""
    nodes, jobs, submit = build_nodes(draw), list[TraceJob](), 0.0
    nodes = tuple(but(one, spec=but(one.spec, taints=())) for one in nodes)
    for _ in range(draw(st.integers(1, 40))):
        submit += draw(st.sampled_from((0.0, 0.0, 0.5, 1.0, 7.0, 20.5, 60.0)))
        run_time = draw(st.sampled_from((1.0, 7.0, 30.25, 31.0, 60.0, 100.0, 400.0)))
        labels = dict[str, tuple[str, ...]]()
        if draw(st.integers(0, 9)) == 0:
            labels = {"disk": draw(st.sampled_from((("ssd",), ("ssd", "hdd"))))}
        jobs.append(
            TraceJob(
                submit,
                run_time,
                draw(st.sampled_from(REQUESTS)),
                draw(st.sampled_from((1, 1, 1, 2, 3, 5, 11))),
                estimate=max(
                    run_time + draw(st.sampled_from((0.0, 0.0, 29.0, 300.0, -0.5, -29.0))), 1.0
                ),
                node_labels=labels,
            )
        )
    strategy, mode = draw(st.sampled_from(STRATEGIES)), draw(st.sampled_from(MODES))
    profiles = profiles_of(strategy, mode, after=0, fcfs=True)
    horizon = draw(st.sampled_from((float("inf"), float("inf"), 300.0)))
    one = SimulationSetup(TraceWorkload(tuple(jobs)), nodes, profiles, horizon=horizon)
    return leave_out_jobs(one, find_large_jobs(one))


@share_of_examples(0.4)
@given(setups())
def test_any_jobs_run_on_the_nodes_of_the_core_engine(one: SimulationSetup) -> None:
    assert_equal_runs(one)


def build_queues(seed: int, mode: str) -> SimulationSetup:
    """Jobs of all shapes and sizes, more than fit; most end when they declare it, some earlier."""
    draw, jobs, submit = random.Random(seed), list[TraceJob](), 0.0
    for _ in range(150):
        submit += round(draw.expovariate(1 / 8), 1)
        run_time = round(draw.lognormvariate(5.0, 1.0)) + 1.0
        requests, pods = draw.choice(REQUESTS), draw.choice((1, 1, 1, 1, 2, 5, 7))
        estimate = run_time * draw.choice((1.0, 1.0, 1.0, 3.0)) - draw.choice((0.0, 0.0, 0.5))
        jobs.append(TraceJob(submit, run_time, requests, pods, estimate=estimate))
    nodes = build_equal_nodes(8, {"cpu": "8", "memory": "16Gi", GPU: "4"})
    profiles = profiles_of(None, mode, after=0, fcfs=True)
    return SimulationSetup(TraceWorkload(tuple(jobs)), nodes, profiles)


@pytest.mark.mostly_slow(quick_every=6)
@pytest.mark.parametrize("touched_limit", [0, 4096])
@pytest.mark.parametrize("mode", MODES)
def test_queues_are_those_of_the_core_engine(
    monkeypatch: pytest.MonkeyPatch, mode: str, touched_limit: int
) -> None:
    monkeypatch.setattr(direct_placement, "_TOUCHED_LIMIT", touched_limit)
    placed = assert_equal_runs(build_queues(4, mode))
    assert placed.most_waiting > 20
    assert (placed.nominated_instants > 20) == (mode != "Off")


@pytest.mark.slow
def test_whole_log_is_that_of_the_counted_engine() -> None:
    log = Path(__file__).parent / "data" / "KTH-SP2-1996-2.1-cln.swf.gz"
    workload = read_swf(TraceFile("log", gzip.decompress(log.read_bytes()).decode().splitlines()))
    one = SimulationSetup(workload, workload.nodes, profiles("Easy"))
    placed, counted = PlacedEngine(one).run(), CountedEngine(one).run()
    assert placed.records == counted.records
    assert placed.samples == counted.samples


def test_stopped_simulation_has_a_partial_result() -> None:
    jobs = (TraceJob(0, 100, {GPU: "1"}, estimate=100), TraceJob(50, 100, {GPU: "1"}, estimate=100))
    nodes = build_equal_nodes(1, {"cpu": "8", GPU: "4"})
    one = SimulationSetup(TraceWorkload(jobs), nodes, profiles("Easy"))
    engine = PlacedEngine(one, lambda now, done: engine.stop())
    result = engine.run()
    assert result.is_partial
    assert [record.first_start for record in result.records] == [0, None]


JOB = TraceJob(2, 50, {"cpu": "1"}, estimate=50)
PLAIN = SimulationSetup(
    TraceWorkload((TraceJob(0, 100, {"cpu": "3"}, 2, estimate=90), JOB)),
    build_equal_nodes(2, {"cpu": "4"}),
    profiles("Easy"),
)


def with_job(one: TraceJob) -> SimulationSetup:
    return replace(PLAIN, workload=TraceWorkload((*PLAIN.workload.jobs, one)))


@pytest.mark.parametrize(
    ("reason", "one"),
    [
        ("no estimate", with_job(but(JOB, estimate=None))),
        ("runs much longer than declared", with_job(but(JOB, estimate=19.0))),
        ("two priorities", with_job(but(JOB, priority=5))),
        ("more than all nodes have", with_job(but(JOB, pods=9))),
        (
            "many shapes",
            replace(
                PLAIN,
                workload=TraceWorkload(
                    tuple(but(JOB, requests={"cpu": f"{1000 + i}m"}) for i in range(65))
                ),
            ),
        ),
        ("a resource that no node has", with_job(but(JOB, requests={GPU: "1"}))),
        ("topology", with_job(but(JOB, topology="rack"))),
        ("shares of GPUs", with_job(but(JOB, requests={"cpu": "1", MILLI_GPU: "500"}))),
        ("lost nodes", replace(PLAIN, faults=(NodeFault(30, "node-0", 60),))),
        ("many reservations", replace(PLAIN, profiles=profiles("Conservative"))),
        ("queue of kube-scheduler", replace(PLAIN, profiles=DEFAULT_PROFILES)),
        (
            "reservations after a minute",
            replace(PLAIN, profiles=replace(DEFAULT_PROFILES, keeps_arrival_order=True)),
        ),
        (
            "a score that depends on other nodes",
            replace(
                PLAIN,
                nodes=tuple(
                    but(node, spec=but(node.spec, taints=(Taint("slow", effect=effect),)))
                    for node, effect in zip(PLAIN.nodes, ("", "PreferNoSchedule"), strict=True)
                ),
            ),
        ),
    ],
)
def test_other_setups_are_left_to_the_scheduler(reason: str, one: SimulationSetup) -> None:
    assert isinstance(build_core_engine(PLAIN), PlacedEngine)
    assert isinstance(build_core_engine(one), CoreEngine), reason


def test_every_field_of_a_job_is_known_to_the_placed_engine() -> None:
    """A new field must be simulated by it too, or `can_place_all` must refuse it."""
    simulated = {"submit", "run_time", "requests", "pods", "estimate", "owner", "node_labels"}
    refused = {"priority", "topology"}
    assert set(TraceJob.__struct_fields__) == simulated | refused
