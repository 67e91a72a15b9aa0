"""`phalanx simulate`: run a workload in virtual time and report waits, usage and fairness."""

from __future__ import annotations

import gc
import gzip
import hashlib
import signal
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click
import msgspec

from phalanx.api.core import DEFAULT_SCHEDULER, Node
from phalanx.cli.options import parse_nodes, parse_shape, parse_timeout
from phalanx.cli.output import (
    JSON,
    TEXT,
    LiveDisplay,
    StyledLine,
    align_columns,
    echo,
    format_structured,
    output_option,
    progress_bar,
)
from phalanx.cli.scheduler_configuration import load_configuration
from phalanx.scheduler.plugins.reservation import ReservationArgs, ReservationMode
from phalanx.scheduler.policy import DEFAULT_POLICY, Profiles
from phalanx.sim.core_engine import CoreEngine
from phalanx.sim.reports.figures import build_report
from phalanx.sim.reports.text import format_seconds, summary_rows
from phalanx.sim.simulation_setup import SimulationResult, SimulationSetup
from phalanx.sim.workloads.trace_formats import TRACE_FORMATS, read_trace
from phalanx.sim.workloads.workload import InvalidTrace, TraceFile

#: Seconds between two drawings of the progress, and a larger trace is refused.
_DRAW_SECONDS, _MAX_TRACE_BYTES = 0.5, 1 << 30
_GZIP_MAGIC = b"\x1f\x8b"


@click.command()
@click.option(
    "-f",
    "--file",
    "path",
    required=True,
    metavar="TRACE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Trace of jobs; may be compressed with gzip.",
)
@click.option(
    "--format",
    "format_name",
    type=click.Choice([row.name for row in TRACE_FORMATS]),
    default=None,
    help="Format of the trace, if its beginning does not show it.",
)
@click.option(
    "--nodes",
    default="",
    metavar="FILE|N",
    help="Cluster file or number of nodes, instead of the machine that the trace states.",
)
@click.option(
    "--shape", default="", metavar="cpu=8,memory=32Gi", help="Resources of each node of --nodes."
)
@click.option(
    "--config",
    "policy",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="KubeSchedulerConfiguration of the scheduler; without it, first come, first served with"
    " the reservations of --reservation.",
)
@click.option(
    "--reservation",
    type=click.Choice(list(ReservationMode), case_sensitive=False),
    default=ReservationMode.EASY,
    show_default=True,
    help="Which waiting jobs get a reservation: the first (Easy), several (Conservative), the"
    " first with nothing started behind it (Strict), none (Off).",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Random seed.")
@click.option(
    "--horizon",
    default=None,
    metavar="DURATION",
    callback=lambda context, option, text: text and parse_timeout(context, option, text),
    help="Simulated time after which the simulation ends, for example 720h.",
)
@click.option("--lenient", is_flag=True, help="Count and skip lines that cannot be read.")
@output_option(TEXT, JSON)
def simulate_command(
    *,
    path: Path,
    format_name: str | None,
    nodes: str,
    shape: str,
    policy: Path | None,
    reservation: str,
    seed: int,
    horizon: float | None,
    lenient: bool,
    output: str,
) -> None:
    """Run the jobs of a trace through the scheduler in virtual time, and report what happened.

    A trace alone runs on the machine that it states. Press ^C for a report of the time so far.

    \b
    Example:
      phalanx simulate -f KTH-SP2-1996-2.1-cln.swf.gz
      phalanx simulate -f KTH-SP2-1996-2.1-cln.swf.gz --nodes 120 --shape cpu=1 -o json
    """
    content = path.read_bytes()
    trace = TraceFile(str(path), _decode_trace(path, content).splitlines(), lenient)
    try:
        workload = read_trace(trace, format_name or "")
    except InvalidTrace as error:
        raise click.ClickException(str(error)) from None
    inputs = {path.name: _hash(content)}
    if policy is not None:
        profiles = load_configuration(policy).profiles
        inputs[policy.name] = _hash(policy.read_bytes())
    else:
        args = ReservationArgs(after_seconds=0, mode=reservation)
        default = replace(DEFAULT_POLICY, reservation=args)
        profiles = Profiles({DEFAULT_SCHEDULER: default}, keeps_arrival_order=True)
    cluster = _load_nodes(nodes, shape) if nodes else workload.nodes
    if not cluster:
        raise click.UsageError(f"{path} states no machine; name one with --nodes")
    if nodes and Path(nodes).is_file():
        inputs[Path(nodes).name] = _hash(Path(nodes).read_bytes())
    setup = SimulationSetup(workload, cluster, profiles, seed=seed, horizon=horizon or float("inf"))
    result = _run(setup)
    report = build_report(result, inputs)
    if output == JSON:
        echo(format_structured(report, JSON))
    else:
        echo("\n".join(align_columns(list(summary_rows(report)))))


def _decode_trace(path: Path, content: bytes) -> str:
    if content.startswith(_GZIP_MAGIC):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise click.ClickException(f"{path}: cannot be decompressed: {error}") from None
    if len(content) > _MAX_TRACE_BYTES:
        raise click.ClickException(f"{path}: larger than {_MAX_TRACE_BYTES} bytes")
    # Comments of old logs name people and places in other encodings.
    return content.decode("utf-8", errors="replace")


def _hash(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _load_nodes(text: str, shape: str) -> tuple[Node, ...]:
    found = parse_nodes(text, parse_shape(shape), [])
    return tuple(msgspec.convert(node.manifest(""), Node) for node in found)


def _run(setup: SimulationSetup) -> SimulationResult:
    """Run the simulation with a progress bar on a terminal; ^C ends it early."""
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

    engine = CoreEngine(setup, show_progress if sys.stderr.isatty() else None)
    with _stop_on_interrupt(engine), _without_garbage_collection():
        result = engine.run()
    if sys.stderr.isatty():
        display.draw([])
    return result


@contextmanager
def _stop_on_interrupt(engine: CoreEngine) -> Iterator[None]:
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
