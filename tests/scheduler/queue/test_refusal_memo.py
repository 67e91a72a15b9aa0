"""Repeated refusals: the same decisions as by attempts one by one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from phalanx.api.core import DEFAULT_SCHEDULER
from phalanx.scheduler.plugins.settings_plugins import ReservationArgs, ReservationMode
from phalanx.scheduler.policy import DEFAULT_POLICY, Profiles
from phalanx.sim.core_engine import CoreEngine
from phalanx.sim.simulation_setup import SimulationSetup
from phalanx.sim.workloads.workload import TraceJob, TraceWorkload, build_equal_nodes


def crowded_setup(seed: int, mode: str, *, keeps_arrival_order: bool) -> SimulationSetup:
    """Many equal jobs with different run times that share nodes; some declare no run time."""
    draw, jobs, submit = random.Random(seed), list[TraceJob](), 0.0
    for _ in range(40 if mode == ReservationMode.CONSERVATIVE else 120):
        submit += draw.choice((0, 0, 1, 20))
        run_time = float(draw.choice((5, 40, 90, 400)))
        cpu, pods = draw.choices(((1, 1), (2, 1), (4, 1), (4, 3)), (6, 2, 1, 1))[0]
        estimate = run_time * draw.choice((1, 1, 3)) if draw.random() < 0.9 else None
        priority = draw.choice((0, 0, 0, 7)) if seed % 2 else 0
        jobs.append(
            TraceJob(
                submit, run_time, {"cpu": str(cpu)}, pods, estimate=estimate, priority=priority
            )
        )
    policy = replace(DEFAULT_POLICY, reservation=ReservationArgs(after_seconds=0, mode=mode))
    profiles = Profiles({DEFAULT_SCHEDULER: policy}, keeps_arrival_order=keeps_arrival_order)
    return SimulationSetup(TraceWorkload(tuple(jobs)), build_equal_nodes(4, {"cpu": "4"}), profiles)


@pytest.mark.parametrize(
    "seeds", [range(2), pytest.param(range(2, 6), marks=pytest.mark.slow)], ids=["quick", "more"]
)
@pytest.mark.parametrize("keeps_arrival_order", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "mode",
    [
        ReservationMode.EASY,
        pytest.param(ReservationMode.CONSERVATIVE, marks=pytest.mark.slow),
        ReservationMode.OFF,
    ],
)
def test_jobs_start_as_if_every_refused_entity_were_attempted(
    mode: str, keeps_arrival_order: bool, seeds: range
) -> None:
    repeated = 0
    for seed in seeds:
        setup = crowded_setup(seed, mode, keeps_arrival_order=keeps_arrival_order)
        engine, plain = CoreEngine(setup), CoreEngine(setup)
        plain._state.queue.refusals_at = lambda now: None
        found, expected = engine.run(), plain.run()
        assert list(map(repr, found.records)) == list(map(repr, expected.records))
        assert (found.samples, found.decisions) == (expected.samples, expected.decisions)
        repeated += engine._state.queue.repeated_refusals
        assert not plain._state.queue.repeated_refusals
    assert repeated or mode != ReservationMode.EASY
