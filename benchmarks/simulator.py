"""The speed of `phalanx simulate`: pod starts per second of CPU time, by engine and kind of load.

log        jobs of up to 64 pods that fill nodes, most of which wait: free nodes are counted
light      jobs of 1 to 8 GPUs of nodes with 8, few of which wait: placed by the scheduler's scores
month      the same, 30,000 of them in 30 days, on fewer nodes: hundreds wait at times
           and a third of both decided by the scheduler, as jobs of several priorities are
full       gangs of 8 through the API server, the Job controller and kubelets
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from benchmarks.environment import BenchmarkEnvironment, Result
from phalanx.api.core import DEFAULT_SCHEDULER
from phalanx.cli.simulate import run_engine
from phalanx.scheduler.plugins.settings_plugins import ReservationArgs
from phalanx.scheduler.policy import DEFAULT_POLICY, Profiles
from phalanx.sim.core_engine import CoreEngine
from phalanx.sim.counted_engine import CountedEngine
from phalanx.sim.engine_selection import build_core_engine
from phalanx.sim.full_engine import FullEngine
from phalanx.sim.placed_engine import PlacedEngine
from phalanx.sim.queue_engine import QueueEngine
from phalanx.sim.simulation_setup import SimulationSetup
from phalanx.sim.workloads.workload import TraceJob, TraceWorkload, build_equal_nodes

#: Pod starts per second: the core engine and the full one; seconds of a month.
CORE_TARGET, FULL_TARGET, MONTH_TARGET = 20_000.0, 400.0, 60.0
_GPU = "nvidia.com/gpu"
_DAY = 86_400.0


def section(setting: BenchmarkEnvironment) -> Iterator[Result]:
    """Measure both engines."""
    core, full, month = map(setting.target, (CORE_TARGET, FULL_TARGET, MONTH_TARGET))
    starts, _ = _measure(build_log(setting.size(20_000)), CountedEngine)
    yield Result("simulated log, free nodes counted", starts, "pods/s", core, at_least=True)
    starts, _ = _measure(build_month(setting.size(10_000), nodes=64), PlacedEngine)
    yield Result("simulated jobs that start at once", starts, "pods/s", core, at_least=True)
    starts, seconds = _measure(build_month(setting.size(30_000), nodes=24), PlacedEngine)
    yield Result("simulated jobs of which hundreds wait", starts, "pods/s", core, at_least=True)
    yield Result("simulated month of 30,000 jobs", seconds, "s", month)
    starts, _ = _measure(build_month(setting.size(10_000), nodes=8), CoreEngine)
    yield Result("the same of 10,000 jobs, each decided by the scheduler", starts, "pods/s")
    starts, _ = _measure(build_gangs(setting.size(300)), FullEngine)
    yield Result("simulated gangs, full engine", starts, "pods/s", full, at_least=True)


def build_log(count: int) -> SimulationSetup:
    """Jobs that fill nodes and ask for about as much as there is, as in the log of a machine."""
    draw, jobs, submit = random.Random(1), list[TraceJob](), 0.0
    for _ in range(count):
        submit += draw.expovariate(1 / 560)
        run_time = round(draw.lognormvariate(7.0, 1.5)) + 1.0
        pods = min(1 << draw.randrange(7), 64)
        estimate = run_time * draw.uniform(1, 5)
        jobs.append(TraceJob(submit, run_time, {"cpu": "1"}, pods, estimate=estimate))
    return _setup(jobs, {"cpu": "1"}, nodes=128)


def build_month(count: int, nodes: int) -> SimulationSetup:
    """Jobs of GPUs, nearly all of one GPU, some of gangs of whole nodes, within 30 days."""
    draw, jobs = random.Random(2), list[TraceJob]()
    for submit in sorted(draw.uniform(0, 30 * _DAY) for _ in range(count)):
        run_time = min(round(draw.lognormvariate(7.8, 1.8)) + 1.0, 14 * _DAY)
        gpus, pods = draw.choices(
            ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 4)), (950, 17, 18, 13, 1, 1)
        )[0]
        requests = {_GPU: str(gpus)}
        jobs.append(TraceJob(submit, run_time, requests, pods, estimate=run_time))
    return _setup(jobs, {"cpu": "64", _GPU: "8"}, nodes=nodes)


def build_gangs(count: int) -> SimulationSetup:
    """Gangs of eight, few of which wait."""
    draw = random.Random(3)
    jobs = [
        TraceJob(20.0 * i, float(draw.randint(60, 600)), {"cpu": "1"}, 8, estimate=600.0)
        for i in range(count)
    ]
    return _setup(jobs, {"cpu": "16"}, nodes=50)


def _setup(jobs: list[TraceJob], node: dict[str, str], nodes: int) -> SimulationSetup:
    policy = replace(DEFAULT_POLICY, reservation=ReservationArgs(after_seconds=0))
    profiles = Profiles({DEFAULT_SCHEDULER: policy}, keeps_arrival_order=True)
    return SimulationSetup(TraceWorkload(tuple(jobs)), build_equal_nodes(nodes, node), profiles)


def _measure(
    setup: SimulationSetup,
    engine: Callable[[SimulationSetup], CoreEngine | QueueEngine | FullEngine],
) -> tuple[float, float]:
    """Return the pod starts per second of CPU time, and the seconds."""
    simulation, fastest = engine(setup), build_core_engine(setup)
    assert engine in (CoreEngine, FullEngine) or type(fastest) is type(simulation)
    begin = time.process_time()
    # As the command does it, which collects cyclic garbage seldom.
    result = run_engine(simulation, setup)
    seconds = time.process_time() - begin
    return result.started_pods / seconds, seconds
