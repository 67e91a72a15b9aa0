"""Reservations before earlier ones: what is planned to start now starts now, and delays nothing."""

from __future__ import annotations

import random

import pytest

from phalanx.sim.core_engine import CoreEngine
from phalanx.sim.simulation_setup import SimulationSetup, find_large_jobs, leave_out_jobs
from phalanx.sim.workloads.workload import TraceJob, TraceWorkload, build_node
from tests.sim.test_core_engine import profiles

GPU = "nvidia.com/gpu"
SHAPES = (
    {"cpu": "1"},
    {"cpu": "4"},
    {"cpu": "8"},
    {"memory": "3Gi"},
    {"memory": "8Gi", "cpu": "1"},
    {GPU: "1"},
    {GPU: "2", "cpu": "3"},
)


class AuditedEngine(CoreEngine):
    """Checks after each instant that no reservation starts now, and counts those in gaps."""

    gaps = 0

    def _run_cycles(self, now: float) -> None:
        super()._run_cycles(now)
        latest = now
        for one in self._state.reservations.current:
            assert one.expected_start is not None
            assert one.expected_start > now, (now, one)
            self.gaps += one.expected_start < latest
            latest = max(latest, one.expected_start)


def exact_job(at: float, run_time: float, pods: int = 1, **requests: str) -> TraceJob:
    named = {{"gpu": GPU}.get(name, name): amount for name, amount in requests.items()}
    return TraceJob(at, run_time, named, pods, estimate=run_time)


def starts_of(*jobs: TraceJob, **resources: str) -> list[float | None]:
    named = {{"gpu": GPU}.get(name, name): amount for name, amount in resources.items()}
    node = build_node("n0", named)
    engine = AuditedEngine(SimulationSetup(TraceWorkload(jobs), (node,), profiles("Conservative")))
    return [record.first_start for record in engine.run().records]


def test_nothing_is_planned_before_a_gang_that_is_about_to_start() -> None:
    # The last job would end in time, but the third one is nominated when the GPU is free.
    jobs = (
        exact_job(0, 195, cpu="4"),
        exact_job(0, 166, gpu="1"),
        exact_job(1, 100, cpu="8"),
        exact_job(2, 17, gpu="1", cpu="3"),
    )
    assert starts_of(*jobs, cpu="8", gpu="1") == [0, 0, 195, 295]


def test_reservation_keeps_nothing_for_an_earlier_one_that_starts_later() -> None:
    # The memory of the fourth job is free at 297; the CPUs of the third one are kept from 1692 on.
    jobs = (
        exact_job(0, 297, cpu="2", memory="16Gi"),
        exact_job(0, 1692, cpu="4"),
        exact_job(1, 300, cpu="8"),
        exact_job(2, 1500, memory="3Gi"),
        exact_job(3, 1000, cpu="1"),
    )
    assert starts_of(*jobs, cpu="8", memory="16Gi") == [0, 0, 1692, 297, 3]


def test_two_reservations_keep_their_room_together() -> None:
    # The third job needs 4 CPUs when the GPU is free, the fourth one 2 CPUs when the memory is, and
    # then they run together. Each leaves 3 CPUs to the last job, both together do not.
    jobs = (
        exact_job(0, 300, gpu="1"),
        exact_job(0, 100, memory="8Gi"),
        exact_job(1, 50, cpu="4", gpu="1"),
        exact_job(2, 900, cpu="2", memory="8Gi"),
        exact_job(3, 1000, cpu="3"),
    )
    assert starts_of(*jobs, cpu="8", memory="8Gi", gpu="1") == [0, 0, 300, 100, 350]


def random_setup(seed: int) -> SimulationSetup:
    """Jobs that end exactly when they declare it, on nodes of several shapes."""
    draw, jobs, submit = random.Random(seed), list[TraceJob](), 0.0
    nodes = [
        build_node(
            f"n{i}",
            {
                "cpu": draw.choice(("8", "8", "4")),
                "memory": draw.choice(("8Gi", "16Gi")),
                GPU: draw.choice(("0", "4", "4")),
            },
        )
        for i in range(draw.choice((1, 2, 4)))
    ]
    for _ in range(40):
        submit += draw.choice((0.0, 1.0, 7.0, 40.0))
        run_time = float(draw.choice((17, 60, 100, 115, 300, 389, 1500)) + draw.randint(0, 40))
        requests, pods = draw.choice(SHAPES), draw.choice((1, 1, 2, 4, 6))
        jobs.append(TraceJob(submit, run_time, requests, pods, estimate=run_time))
    one = SimulationSetup(TraceWorkload(tuple(jobs)), tuple(nodes), profiles("Conservative"))
    return leave_out_jobs(one, find_large_jobs(one))


@pytest.mark.mostly_slow(quick_every=6)
@pytest.mark.parametrize("seed", range(24))
def test_job_that_is_expected_now_starts_now(seed: int) -> None:
    engine = AuditedEngine(random_setup(seed))
    records = engine.run().records
    assert all(record.end is not None for record in records)
    assert engine.gaps
