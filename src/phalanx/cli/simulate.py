"""`phalanx simulate`: run a workload in virtual time and report waits, usage and fairness."""

from __future__ import annotations

import gc
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import click

from phalanx.cli.manifests import STDIN
from phalanx.cli.options import configuration_option, parse_optional_time
from phalanx.cli.output import (
    JSON,
    TEXT,
    LiveDisplay,
    StyledLine,
    align_columns,
    echo,
    format_structured,
    output_option,
    page_option,
    progress_bar,
    refuse_input_as_page,
    write_page,
)
from phalanx.cli.simulation_file import SimulationOptions, leave_out_large_jobs, load_simulation
from phalanx.scheduler.plugins.settings_plugins import ReservationMode
from phalanx.sim.core_engine import CoreEngine
from phalanx.sim.engine_selection import build_core_engine
from phalanx.sim.full_engine import FullEngine
from phalanx.sim.recording.recorded_workload import RecordedWorkload
from phalanx.sim.recording.replay_engine import ReplayEngine
from phalanx.sim.reports.figures import build_report
from phalanx.sim.reports.html_page import build_page
from phalanx.sim.reports.text import format_seconds, summary_rows
from phalanx.sim.simulation_setup import SimulationEngine, SimulationResult, SimulationSetup
from phalanx.sim.workloads.trace_formats import TRACE_FORMATS


class SimulationRunner(Protocol):
    """An engine with a setup: it runs once, and can be stopped from a signal handler."""

    #: Called now and then with the simulated time and the number of jobs that have ended.
    on_progress: Callable[[float, int], None] | None

    def run(self) -> SimulationResult:
        """Simulate to the end, the horizon, or until stopped."""
        ...

    def stop(self) -> None:
        """End the simulation after the present instant."""
        ...


#: Seconds between two drawings of the progress.
_DRAW_SECONDS = 0.5


@click.command()
@click.option(
    "-f",
    "--file",
    "path",
    required=True,
    metavar="TRACE|FILE",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="Trace of jobs or simulation file (YAML), which may be compressed with gzip; - for stdin.",
)
@click.option(
    "--format",
    "format_name",
    type=click.Choice([row.name for row in TRACE_FORMATS]),
    default=None,
    help="Format of the trace, if its beginning does not show it.",
)
@click.option(
    "--case",
    default="",
    metavar="NAME",
    help="Test case of a scheduler_perf file, for example GangScheduling/10Nodes_3Gangs.",
)
@click.option(
    "--nodes",
    default="",
    metavar="FILE|N",
    help="Cluster file or number of nodes, instead of the machine that the file states.",
)
@click.option(
    "--shape",
    default="",
    metavar="cpu=8,memory=32Gi",
    help="Resources of each node of --nodes. [default: cpu=8,memory=32Gi]",
)
@configuration_option(
    "KubeSchedulerConfiguration of the scheduler; without it, first come, first served. "
    "--reservation sets the mode of its reservations."
)
@click.option(
    "--reservation",
    type=click.Choice(list(ReservationMode), case_sensitive=False),
    default=None,
    help="Which waiting jobs get a reservation: the first (Easy), several (Conservative), the"
    " first with nothing started behind it (Strict), none (Off); Easy by default.",
)
@click.option(
    "--engine",
    "engine_name",
    type=click.Choice([one.value for one in SimulationEngine]),
    default=SimulationEngine.CORE.value,
    show_default=True,
    help="What runs: queue and scheduling cycle alone (core), or the whole control plane with API"
    " server, Job controller and kubelets (full), which is slower.",
)
@click.option(
    "--place-pods",
    is_flag=True,
    help="Let the scheduler decide about every job, also where the loads of nodes give the same"
    " starts.",
)
@click.option("--seed", type=click.IntRange(0), default=None, help="Random seed, by default 0.")
@click.option(
    "--horizon",
    default=None,
    metavar="DURATION",
    callback=parse_optional_time,
    help="Simulated time after which the simulation ends, for example 720h.",
)
@click.option("--lenient", is_flag=True, help="Count and skip lines that cannot be read.")
@page_option("Also write the report as one HTML page.")
@output_option(TEXT, JSON)
def simulate_command(
    *,
    path: Path,
    format_name: str | None,
    case: str,
    nodes: str,
    shape: str,
    policy: Path | None,
    reservation: str | None,
    engine_name: str,
    place_pods: bool,
    seed: int | None,
    horizon: float | None,
    lenient: bool,
    page: Path | None,
    output: str,
) -> None:
    """Run a workload through the scheduler in virtual time, and report what happened.

    A trace alone runs on the machine that it states. A simulation file names a workload, a cluster,
    a policy and faults. Press ^C for a report of the time so far.

    \b
    Example:
      phalanx simulate -f KTH-SP2-1996-2.1-cln.swf.gz
      phalanx simulate -f KTH-SP2-1996-2.1-cln.swf.gz --nodes 120 --shape cpu=1 -o json
      phalanx simulate -f simulation.yaml --html report.html
    """
    engine = SimulationEngine(engine_name)
    if place_pods and engine is SimulationEngine.FULL:
        raise click.UsageError("--place-pods is for --engine core: the other one places all pods")
    options = SimulationOptions(
        format_name or "",
        nodes,
        shape,
        policy,
        reservation or "",
        seed=seed,
        horizon=horizon,
        is_lenient=lenient,
        case=case,
    )
    content = None
    if str(path) == STDIN:
        path, content = Path("stdin"), sys.stdin.buffer.read()
    (loaded,) = leave_out_large_jobs([load_simulation(path, options, content)])
    refuse_input_as_page(page, loaded.paths)
    result = run_simulation(loaded.setup, engine, place_pods=place_pods)
    report = build_report(result, loaded.inputs)
    if output == JSON:
        echo(format_structured(report, JSON))
    else:
        echo("\n".join(align_columns(list(summary_rows(report)))))
    # Written last: a full disk must not lose the figures.
    if page is not None:
        write_page(page, build_page(report, f"Simulation of {path.name}"))


def run_simulation(
    setup: SimulationSetup,
    kind: SimulationEngine = SimulationEngine.CORE,
    *,
    place_pods: bool = False,
) -> SimulationResult:
    """Run the simulation of a workload by its engine."""
    if isinstance(setup.workload, RecordedWorkload):
        if kind is SimulationEngine.FULL:
            raise click.ClickException("recordings are simulated by --engine core only")
        return run_engine(ReplayEngine(setup), setup)
    if kind is SimulationEngine.FULL:
        return run_engine(FullEngine(setup), setup)
    return run_engine(CoreEngine(setup) if place_pods else build_core_engine(setup), setup)


def run_engine(engine: SimulationRunner, setup: SimulationSetup) -> SimulationResult:
    """Run an engine with a progress bar on a terminal; ^C ends it early."""
    display, drawn_at, total = LiveDisplay(sys.stderr), [0.0], len(setup.workload.jobs)
    begin = time.monotonic()

    def show_progress(now: float, done: int) -> None:
        if (moment := time.monotonic()) < drawn_at[0] + _DRAW_SECONDS:
            return
        drawn_at[0] = moment
        real = format_seconds(moment - begin)
        bar = progress_bar(done, total)
        text = f"{bar} {done}/{total} jobs, {format_seconds(now)} simulated in {real}"
        display.draw([StyledLine(text)])

    engine.on_progress = show_progress if sys.stderr.isatty() else None
    with _stop_on_interrupt(engine), _without_garbage_collection():
        result = engine.run()
    if sys.stderr.isatty():
        display.draw([])
    return result


@contextmanager
def _stop_on_interrupt(engine: SimulationRunner) -> Iterator[None]:
    """Let the first ^C stop the simulation, and a second one the command."""
    previous = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, previous)
        engine.stop()

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Collect cyclic garbage seldom: jobs and pods are freed without it."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(200_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
