"""The core engine: exact backfilling, preemption, lost nodes, horizon, stop."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.core import DEFAULT_SCHEDULER
from phalanx.api.meta import Ref
from phalanx.scheduler.decision import Decision, Placed, Preempting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.plugins.settings_plugins import ReservationArgs, ReservationMode
from phalanx.scheduler.policy import DEFAULT_POLICY, Profiles
from phalanx.scheduler.queue.scheduler_state import SchedulerState
from phalanx.sim.core_engine import CoreEngine
from phalanx.sim.simulation_setup import (
    FaultRate,
    NodeFault,
    SimulationResult,
    SimulationSetup,
)
from phalanx.sim.workloads.swf import read_swf
from phalanx.sim.workloads.workload import TraceFile, TraceJob, TraceWorkload, build_equal_nodes
from tests.builders import share_of_examples
from tests.sim.backfill_model import start_times

SAMPLE = Path(__file__).parent / "data" / "kth-sp2-sample.swf"


def profiles(mode: str = ReservationMode.EASY) -> Profiles:
    """First come, first served with immediate reservations."""
    args = ReservationArgs(after_seconds=0, mode=mode)
    policy = replace(DEFAULT_POLICY, reservation=args)
    return Profiles({DEFAULT_SCHEDULER: policy}, keeps_arrival_order=True)


def job(
    submit: float,
    run_time: float,
    pods: int = 1,
    *,
    estimate: float | None = None,
    priority: int = 0,
) -> TraceJob:
    return TraceJob(
        submit, run_time, {"cpu": "1"}, pods, estimate=estimate or run_time, priority=priority
    )


def setup(*jobs: TraceJob, nodes: int = 4, mode: str = ReservationMode.EASY) -> SimulationSetup:
    machine = build_equal_nodes(nodes, {"cpu": "1"})
    return SimulationSetup(TraceWorkload(jobs), machine, profiles(mode))


def contended_setup(seed: int, mode: str = ReservationMode.EASY) -> SimulationSetup:
    """Jobs of three priorities that need more than there is, and nodes that are lost."""
    draw = random.Random(seed)
    jobs, submit = list[TraceJob](), 0
    for _ in range(40):
        submit += draw.choice((0, 1, 7, 30))
        run_time = draw.randint(10, 200)
        estimate = run_time + draw.randint(0, 60)
        priority = draw.choice((0, 0, 5, 9))
        jobs.append(job(submit, run_time, draw.randint(1, 5), estimate=estimate, priority=priority))
    one = setup(*jobs, nodes=8, mode=mode)
    faults = FaultRate(900.0, 40.0).draw(one.nodes, seed, 2000.0)
    return replace(one, faults=tuple(fault._replace(at=float(round(fault.at))) for fault in faults))


def starts(result: SimulationResult) -> list[float | None]:
    return [record.first_start for record in result.records]


def test_short_job_runs_before_the_reserved_one_if_it_ends_in_time() -> None:
    result = CoreEngine(setup(job(0, 100, 3), job(1, 50, 4), job(2, 90, 1), job(3, 99, 1))).run()
    assert starts(result) == [0, 100, 2, 150]


@pytest.mark.parametrize("mode", [ReservationMode.EASY, ReservationMode.STRICT])
def test_recorded_jobs_start_exactly_as_in_the_model(mode: str) -> None:
    workload = read_swf(TraceFile("sample", SAMPLE.read_text().splitlines()))
    few = replace(workload, jobs=workload.jobs[:120] if mode == "Strict" else workload.jobs)
    result = CoreEngine(SimulationSetup(few, workload.nodes, profiles(mode))).run()
    assert starts(result) == start_times(few.jobs, 100, backfills=mode == "Easy")


@st.composite
def workloads(draw: st.DrawFn) -> list[TraceJob]:
    found, submit = [], 0
    for _ in range(draw(st.integers(1, 25))):
        submit += draw(st.integers(0, 200))
        run_time = draw(st.integers(31, 400))
        estimate = run_time + draw(st.integers(0, 300))
        found.append(job(submit, run_time, draw(st.integers(1, 6)), estimate=estimate))
    return found


@share_of_examples(0.2)
@given(workloads())
def test_any_jobs_with_long_estimates_start_as_in_the_model(jobs: list[TraceJob]) -> None:
    result = CoreEngine(setup(*jobs, nodes=6)).run()
    assert starts(result) == start_times(jobs, 6, backfills=True)


def test_preempted_job_starts_again_and_loses_its_work() -> None:
    result = CoreEngine(setup(job(0, 100, 3), job(40, 10, 4, priority=10))).run()
    low, high = result.records
    assert (high.first_start, high.end) == (40, 50)
    assert (low.preemptions, low.lost_seconds, low.start, low.end) == (1, 120, 50, 150)
    assert low.first_start == 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", [ReservationMode.EASY, ReservationMode.CONSERVATIVE])
@pytest.mark.parametrize("seed", range(3))
def test_preemptor_starts_as_soon_as_its_victims_are_gone(
    seed: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, preemptors, evictions = SchedulerState.commit, dict[Ref, float](), 0

    def check(self: SchedulerState, entity: Entity, decision: Decision, now: float) -> bool:
        nonlocal evictions
        preempted_at = preemptors.pop(entity.ref, None)
        if preempted_at is not None:
            assert isinstance(decision, Placed), (entity.ref, decision)
            assert preempted_at == now
        is_current = commit(self, entity, decision, now)
        if is_current and isinstance(decision, Preempting):
            preemptors[entity.ref] = now
            evictions += 1
        return is_current

    monkeypatch.setattr(SchedulerState, "commit", check)
    CoreEngine(contended_setup(seed, mode)).run()
    assert evictions
    assert not preemptors


def test_job_on_a_lost_node_starts_again_on_the_others() -> None:
    def run(count: int) -> tuple[int, float | None]:
        faults = tuple(NodeFault(30, f"node-{i}", 60) for i in range(count))
        (record,) = CoreEngine(replace(setup(job(0, 100, 2)), faults=faults)).run().records
        return record.disruptions, record.end

    assert run(0) == (0, 100)
    # All nodes are lost: the job waits until they are back.
    assert run(4) == (1, 190)
    # Three of four nodes are lost, at least one of the job's among them.
    assert run(3) == (1, 190)


def test_faults_by_rate_depend_on_the_seed_only() -> None:
    nodes = build_equal_nodes(5, {"cpu": "1"})
    rate = FaultRate(mean_time_between_failures=1000.0, repair_seconds=60.0)
    first = rate.draw(nodes, 1, 100_000.0)
    assert first == rate.draw(nodes, 1, 100_000.0)
    assert first != rate.draw(nodes, 2, 100_000.0)
    assert 300 < len(first) < 700
    assert list(first) == sorted(first)


def test_jobs_beyond_the_horizon_are_unfinished() -> None:
    result = CoreEngine(replace(setup(job(0, 100), job(50, 100)), horizon=120.0)).run()
    assert [record.end for record in result.records] == [100, None]
    assert result.ended_at == 120.0


def test_job_that_never_fits_ends_the_simulation_without_it() -> None:
    result = CoreEngine(setup(job(0, 10, 5), job(1, 10))).run()
    assert [record.end for record in result.records] == [None, 11]


def test_stopped_simulation_has_a_partial_result() -> None:
    engine = CoreEngine(setup(job(0, 100), job(50, 100)), lambda now, done: engine.stop())
    result = engine.run()
    assert result.is_partial
    assert [record.first_start for record in result.records] == [0, None]


def test_job_without_an_estimate_learns_from_the_median_of_earlier_ones() -> None:
    unknown = [
        TraceJob(submit, 100, {"cpu": "1"}, 1) for submit in (0.0, 0.0, 0.0, 0.0, 200.0, 201.0)
    ]
    result = CoreEngine(setup(*unknown, job(210, 10, 4))).run()
    assert result.records[-1].expected_start == pytest.approx(301, abs=2)
