"""The full engine: every job starts and ends as with the core engine."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.api.batch import Job
from phalanx.api.core import Pod
from phalanx.api.scheduling import PodGroup, Workload
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.scheduling.scheduler import Scheduler
from phalanx.scheduler.plugins.settings_plugins import ReservationMode
from phalanx.sim.core_engine import CoreEngine
from phalanx.sim.full_engine import FullEngine
from phalanx.sim.reports.figures import build_report
from phalanx.sim.simulation_setup import (
    NodeFault,
    SimulationSetup,
    find_large_jobs,
    leave_out_jobs,
)
from phalanx.sim.workloads.swf import read_swf
from phalanx.sim.workloads.workload import (
    TraceFile,
    TraceJob,
    TraceWorkload,
    build_equal_nodes,
    build_node,
)
from tests.sim.test_core_engine import contended_setup, job, profiles, setup

SAMPLE = Path(__file__).parent / "data" / "kth-sp2-sample.swf"
GPU = "nvidia.com/gpu"
GPU_NODES = tuple(
    build_node(f"gpu-{i}", {"cpu": "8", GPU: "2"}, {"gpu.model": "AB"[i % 2]}) for i in range(4)
)


def assert_equal_results(one: SimulationSetup) -> None:
    """Run both engines, and compare every record, sample and figure."""
    core, full = CoreEngine(one).run(), FullEngine(one).run()
    assert full.records == core.records
    assert full.samples == core.samples
    report = build_report(full, {})
    # The API server confirms what was decided, which may lead to attempts that change nothing.
    differing = {"engine": "full", "decisions": full.decisions}
    assert report == {**build_report(core, {}), **differing}


def gpu_job(submit: float, run_time: float, pods: int, **fields: object) -> TraceJob:
    requests = {"cpu": "2", GPU: "1"}
    return TraceJob(submit, run_time, requests, pods, estimate=run_time, **fields)  # type: ignore[arg-type]


def plain_job(
    submit: float, run_time: float, pods: int = 1, *, cpu: int = 1, **fields: object
) -> TraceJob:
    return TraceJob(submit, run_time, {"cpu": str(cpu)}, pods, **fields)  # type: ignore[arg-type]


def varied_setup(seed: int) -> SimulationSetup:
    """Jobs of some shapes, estimates that are missing or wrong, priorities, topology, faults."""
    draw, jobs, submit = random.Random(seed), list[TraceJob](), 0
    nodes = tuple(
        build_node(
            f"node-{i}",
            {"cpu": draw.choice(("2", "4", "8")), GPU: draw.choice(("0", "4"))},
            {"rack": "ab"[i % 2]},
        )
        for i in range(draw.randint(3, 9))
    )
    priorities, has_topology = draw.choice(((0,), (0, 5, 10))), draw.random() < 0.4
    for _ in range(draw.randint(10, 30)):
        submit += draw.choice((0, 0, 1, 7, 30, 100))
        run_time = draw.randint(5, 400)
        error = draw.choice((0, 0, 0, 10, 300, -60, None))
        requests = {"cpu": draw.choice(("500m", "1", "2"))}
        if draw.random() < 0.3:
            requests[GPU] = draw.choice(("1", "2", "4"))
        one = TraceJob(
            submit,
            run_time,
            requests,
            draw.choice((1, 1, 1, 2, 3, len(nodes))),
            estimate=None if error is None else max(run_time + error, 1),
            priority=draw.choice(priorities),
            topology=draw.choice(("rack", "rack, * after 60s")) if has_topology else "",
        )
        jobs += [one] * draw.choice((1, 1, 1, 1, 3))
    faults = [
        NodeFault(draw.randint(0, submit + 300), draw.choice(nodes).metadata.name, 120)
        for _ in range(draw.choice((0, 0, 3)))
    ]
    mode = draw.choice(list(ReservationMode))
    setup = SimulationSetup(
        TraceWorkload(tuple(jobs)), nodes, profiles(mode), faults=tuple(sorted(faults))
    )
    return leave_out_jobs(setup, find_large_jobs(setup))


UNKNOWN = [TraceJob(at, 100, {"cpu": "1"}, 1) for at in (0.0, 0.0, 0.0, 0.0, 200.0, 201.0)]
SMALL_SETUPS = {
    "backfilling": setup(job(0, 100, 3), job(1, 50, 4), job(2, 90, 1), job(3, 99, 1)),
    "arrivals of one instant": setup(*(job(0, 10 + i, 1 + i % 3) for i in range(9))),
    "strict order": setup(job(0, 9, 3), job(1, 9, 4), job(2, 5, 1), mode=ReservationMode.STRICT),
    "whole gangs preempted": setup(
        job(0, 100, 2), job(0, 90, 1), job(40, 10, 4, priority=10), job(41, 5, 1, priority=5)
    ),
    "preemptor that ends just in time for a reserved gang": setup(
        job(0, 100, 3, priority=9), job(0, 90), job(1, 50, 4, priority=9), job(5, 80, 1, priority=5)
    ),
    "run times learned": setup(*UNKNOWN, job(210, 10, 4)),
    "run times learned of jobs that declare theirs": setup(
        job(0, 294), plain_job(300, 302, 3), plain_job(322, 146, 4)
    ),
    "job that runs longer than it declares": SimulationSetup(
        TraceWorkload(
            (
                plain_job(0, 260, estimate=201),
                plain_job(7, 317, cpu=2, estimate=327),
                plain_job(221, 360, estimate=359),
                plain_job(221, 311, 4, estimate=311),
                plain_job(226, 311, 4, estimate=311),
                plain_job(251, 283, estimate=283),
            )
        ),
        build_equal_nodes(5, {"cpu": "2"}),
        profiles(),
    ),
    "job that never fits": setup(job(0, 10, 5), job(1, 10)),
    "horizon": replace(setup(job(0, 100), job(50, 100)), horizon=120.0),
    "lost nodes": replace(
        setup(job(0, 100, 2), job(5, 40, 1), job(50, 30, 2)),
        faults=(
            NodeFault(30, "node-0", 60),
            NodeFault(30, "node-1", 20),
            NodeFault(45, "node-0", 9),
        ),
    ),
    "devices and node labels": SimulationSetup(
        TraceWorkload(
            (
                gpu_job(0, 50, 3, node_labels={"gpu.model": ("A",)}),
                gpu_job(0, 60, 5),
                gpu_job(1, 20, 2, node_labels={"gpu.model": ("B", "C")}),
                gpu_job(2, 10, 8, priority=7),
            )
        ),
        GPU_NODES,
        profiles(),
    ),
}


@pytest.mark.parametrize("name", SMALL_SETUPS)
def test_both_engines_give_the_same_report(name: str) -> None:
    assert_equal_results(SMALL_SETUPS[name])


def test_jobs_of_fractions_of_a_second_start_and_end_as_in_the_core_engine() -> None:
    """The API keeps times in whole seconds: the simulated kubelets and the recorder do not."""
    jobs = [job(0.1 * i, 0.4, 1 + i % 3) for i in range(20)]
    one = setup(*jobs, job(0.05, 0.7, 2), job(1.3, 2.25, 4), mode=ReservationMode.STRICT)
    core, full = CoreEngine(one).run(), FullEngine(one).run()
    for expected, found in zip(core.records, full.records, strict=True):
        assert found.first_start == pytest.approx(expected.first_start, abs=1e-5)
        assert found.end == pytest.approx(expected.end, abs=1e-5)


class _ObservedEngine(FullEngine):
    """Keeps the caches of the components, and the finalizers that Jobs have had."""

    def _attach(self, informers: Informers, scheduler: Scheduler | None) -> None:
        super()._attach(informers, scheduler)
        self.caches = [informers.of(kind).cache for kind in (Job, Workload, PodGroup, Pod)]
        self.finalizers = set[str]()
        informers.of(Job).cache.subscribe(self._note_finalizers)

    def _note_finalizers(self, old: Job | None, new: Job | None) -> None:
        self.finalizers.update(new.metadata.finalizers if new is not None else ())


def test_complete_job_goes_at_once_and_its_dependents_after_it() -> None:
    engine = _ObservedEngine(setup(job(0, 10, 2), job(50, 10, 2)))
    engine.run()
    left = [key.name for cache in engine.caches for key in cache]
    assert [name for name in left if name.startswith("job-0")] == []
    assert engine.finalizers == set()


def test_stopped_simulation_has_a_partial_result() -> None:
    engine = FullEngine(
        setup(job(0, 10), job(50, 100), job(60, 1)), lambda now, done: engine.stop()
    )
    result = engine.run()
    assert result.is_partial
    assert [record.end for record in result.records] == [10, None, None]


@pytest.mark.slow
@pytest.mark.parametrize("mode", [ReservationMode.EASY, ReservationMode.CONSERVATIVE])
def test_both_engines_agree_on_recorded_jobs(mode: str) -> None:
    workload = read_swf(TraceFile("sample", SAMPLE.read_text().splitlines()))
    few = replace(workload, jobs=workload.jobs[:100])
    assert_equal_results(SimulationSetup(few, workload.nodes, profiles(mode)))


@pytest.mark.mostly_soak(slow_every=2)
@pytest.mark.parametrize("seed", range(4))
def test_both_engines_agree_on_preemptions_and_lost_nodes(seed: int) -> None:
    assert_equal_results(contended_setup(seed))


@pytest.mark.mostly_soak(slow_every=8)
@pytest.mark.parametrize("seed", range(64))
def test_both_engines_agree_on_varied_jobs(seed: int) -> None:
    assert_equal_results(varied_setup(seed))
