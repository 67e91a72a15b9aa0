"""The counted engine: equal to the core engine wherever it applies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as but

from phalanx.scheduler.plugins.settings_plugins import ReservationMode
from phalanx.scheduler.policy import DEFAULT_PROFILES
from phalanx.sim.core_engine import CoreEngine
from phalanx.sim.counted_engine import CountedEngine, can_count_nodes
from phalanx.sim.engine_selection import build_core_engine
from phalanx.sim.reports.figures import build_report
from phalanx.sim.simulation_setup import NodeFault, SimulationSetup
from phalanx.sim.workloads.swf import read_swf
from phalanx.sim.workloads.workload import MILLI_GPU, TraceFile, TraceJob, build_equal_nodes
from tests.builders import share_of_examples
from tests.sim.test_core_engine import job, profiles, setup

SAMPLE = Path(__file__).parent / "data" / "kth-sp2-sample.swf"
MODES = (ReservationMode.EASY, ReservationMode.STRICT, ReservationMode.OFF)


def assert_equal_results(one: SimulationSetup) -> None:
    """Run both engines, and compare every record, sample and figure."""
    assert can_count_nodes(one)
    core, counted = CoreEngine(one).run(), CountedEngine(one).run()
    assert counted.records == core.records
    assert counted.samples == core.samples
    report = build_report(core, {})
    assert build_report(counted, {}) == {
        **report,
        "decisions": counted.decisions,
        "isCounted": True,
    }


@st.composite
def setups(draw: st.DrawFn) -> SimulationSetup:
    """Jobs of few sizes and times, so that many arrive and end at one instant, short ones too."""
    jobs, submit = [], 0
    for _ in range(draw(st.integers(1, 25))):
        submit += draw(st.sampled_from((0, 0, 1, 7, 20, 60, 200)))
        run_time = draw(st.sampled_from((1, 7, 20, 30, 31, 60, 100, 400)))
        estimate = run_time + draw(st.sampled_from((0, 0, 1, 10, 29, 100, 300)))
        jobs.append(job(submit, run_time, draw(st.integers(1, 6)), estimate=estimate))
    one = setup(*jobs, nodes=6, mode=draw(st.sampled_from(MODES)))
    return replace(one, horizon=draw(st.sampled_from((float("inf"), 300.0))))


@share_of_examples(0.2)
@given(setups())
def test_any_jobs_that_fill_nodes_start_as_with_the_scheduler(one: SimulationSetup) -> None:
    assert_equal_results(one)


@pytest.mark.parametrize("mode", MODES)
def test_recorded_jobs_start_as_with_the_scheduler(mode: str) -> None:
    workload = read_swf(TraceFile("sample", SAMPLE.read_text().splitlines()))
    few = replace(workload, jobs=workload.jobs[:120])
    assert_equal_results(SimulationSetup(few, workload.nodes, profiles(mode)))


def test_stopped_simulation_has_a_partial_result() -> None:
    engine = CountedEngine(setup(job(0, 100), job(50, 100)), lambda now, done: engine.stop())
    result = engine.run()
    assert result.is_partial
    assert [record.first_start for record in result.records] == [0, None]


PLAIN = setup(job(0, 100, 3), job(1, 50, 4))
HALF = TraceJob(2, 10, {"cpu": "500m"}, estimate=10)


def with_job(one: TraceJob) -> SimulationSetup:
    return replace(PLAIN, workload=replace(PLAIN.workload, jobs=(*PLAIN.workload.jobs, one)))


def test_pods_that_fill_nodes_need_not_be_equal() -> None:
    large, other = {"cpu": "4", "memory": "8Gi"}, {"cpu": "3", "memory": "1Gi"}
    jobs = tuple(but(job(i, 50 + i, 1 + i % 4), requests=(large, other)[i % 2]) for i in range(9))
    one = replace(PLAIN, workload=replace(PLAIN.workload, jobs=jobs))
    assert_equal_results(replace(one, nodes=build_equal_nodes(4, large)))


@pytest.mark.parametrize(
    ("reason", "one"),
    [
        ("two pods fit on a node", with_job(HALF)),
        ("no estimate", with_job(but(HALF, requests={"cpu": "1"}, estimate=None))),
        ("estimate too short", with_job(but(job(2, 10), estimate=9.0))),
        ("two priorities", with_job(job(2, 10, priority=5))),
        ("larger than the machine", with_job(job(2, 10, 5))),
        ("labels of nodes", with_job(but(job(2, 10), node_labels={"zone": ("a",)}))),
        ("topology", with_job(but(job(2, 10), topology="rack"))),
        ("shares of GPUs", with_job(but(job(2, 10), requests={"cpu": "1", MILLI_GPU: "500"}))),
        ("lost nodes", replace(PLAIN, faults=(NodeFault(30, "node-0", 60),))),
        ("many reservations", setup(job(0, 10), mode=ReservationMode.CONSERVATIVE)),
        ("queue of kube-scheduler", replace(PLAIN, profiles=DEFAULT_PROFILES)),
        (
            "reservations after a minute",
            replace(PLAIN, profiles=replace(DEFAULT_PROFILES, keeps_arrival_order=True)),
        ),
        (
            "nodes differ",
            replace(PLAIN, nodes=(*PLAIN.nodes[1:], *build_equal_nodes(1, {"cpu": "2"}))),
        ),
    ],
)
def test_nodes_of_other_setups_are_not_counted(reason: str, one: SimulationSetup) -> None:
    assert isinstance(build_core_engine(PLAIN), CountedEngine)
    assert not isinstance(build_core_engine(one), CountedEngine), reason


def test_every_field_of_a_job_is_known_to_the_counted_engine() -> None:
    """A new field must be simulated by counting too, or `can_count_nodes` must refuse it."""
    simulated = {"submit", "run_time", "requests", "pods", "estimate", "owner"}
    refused = {"priority", "node_labels", "topology"}
    assert set(TraceJob.__struct_fields__) == simulated | refused
