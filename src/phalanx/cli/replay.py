"""`phalanx replay`: simulate a recording, and compare the simulation with what happened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click

from phalanx.cli.input_files import InvalidFile, find_trace_format, has_yaml_name, read_file
from phalanx.cli.options import configuration_option, parse_optional_time
from phalanx.cli.output import (
    JSON,
    TEXT,
    align_columns,
    echo,
    format_structured,
    output_option,
    page_option,
    pluralize,
    refuse_input_as_page,
    write_page,
)
from phalanx.cli.scheduler_configuration import load_installed_plugins
from phalanx.cli.simulate import run_engine
from phalanx.cli.simulation_file import (
    LoadedSimulation,
    SimulationOptions,
    load_simulation,
    with_reservation_mode,
)
from phalanx.scheduler.configuration.scheduler_configuration import parse_configuration
from phalanx.scheduler.plugins.settings_plugins import ReservationMode
from phalanx.scheduler.policy import DEFAULT_PROFILES, Profiles
from phalanx.sim.recording.history import build_history
from phalanx.sim.recording.recorded_workload import RecordedWorkload, build_recorded_workload
from phalanx.sim.recording.replay_check import (
    JobDifference,
    ReplayComparison,
    compare_replay,
)
from phalanx.sim.recording.replay_engine import ReplayEngine
from phalanx.sim.reports.figures import Report, build_report
from phalanx.sim.reports.html_page import build_page
from phalanx.sim.reports.text import format_seconds, summary_rows
from phalanx.sim.simulation_setup import SimulationSetup
from phalanx.sim.workloads.trace_formats import RECORDING
from phalanx.sim.workloads.workload import InvalidTrace, TraceFile

#: Seconds by which starts may differ, if nothing else is asked for.
_DEFAULT_TOLERANCE = 2.0
#: How many differences the text shows.
_MAX_SHOWN = 20


@click.command()
@click.argument(
    "path",
    metavar="RECORDING",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option(
    "--check",
    is_flag=True,
    help="Say where the replay differs from what happened, and why; exit 1 if it does.",
)
@click.option(
    "--tolerance",
    default=None,
    metavar="DURATION",
    callback=parse_optional_time,
    help="With --check, the time by which starts may differ. [default: 2s]",
)
@click.option(
    "--exact-nodes",
    is_flag=True,
    help="With --check, other nodes of equal score are differences too.",
)
@click.option(
    "--scheduler",
    "schedulers",
    multiple=True,
    metavar="NAME",
    help="Simulate only the pods with this schedulerName; the others stay as recorded.",
)
@configuration_option(
    "KubeSchedulerConfiguration of the scheduler. [default: the recorded one, else that of"
    " phalanx up]"
)
@click.option(
    "--reservation",
    type=click.Choice(list(ReservationMode), case_sensitive=False),
    default=None,
    help="Mode of the reservations of the configuration.",
)
@click.option(
    "--nodes", default="", metavar="FILE|N", help="Cluster file or number of nodes, instead of the"
    " recorded nodes.",
)  # fmt: skip
@click.option(
    "--shape", default="", metavar="cpu=8,memory=32Gi", help="Resources of each node of --nodes."
)
@click.option(
    "--horizon",
    default=None,
    metavar="DURATION",
    callback=parse_optional_time,
    help="Simulated time after which the replay ends.",
)
@click.option("--lenient", is_flag=True, help="Count and skip lines that cannot be read.")
@page_option("Also write the report as one HTML page.")
@output_option(TEXT, JSON)
def replay_command(
    *,
    path: Path,
    check: bool,
    tolerance: float | None,
    exact_nodes: bool,
    schedulers: tuple[str, ...],
    policy: Path | None,
    reservation: str | None,
    nodes: str,
    shape: str,
    horizon: float | None,
    lenient: bool,
    page: Path | None,
    output: str,
) -> None:
    """Simulate what phalanx record wrote: with the same policy and nodes, or with others.

    The report is that of phalanx simulate. With --check it is compared with what happened: which
    jobs start earlier, later or on other nodes, and the likely cause of the first difference.

    \b
    Example:
      phalanx replay monday.jsonl --check
      phalanx replay monday.jsonl --config packing.yaml --html packing.html
      phalanx replay monday.jsonl --nodes 120 --shape cpu=64,nvidia.com/gpu=8
    """
    if check and nodes:
        raise click.UsageError("--check compares with the recorded nodes: leave out --nodes")
    for option, value in (("--exact-nodes", exact_nodes), ("--tolerance", tolerance)):
        if value and not check:
            raise click.UsageError(f"{option} is a part of --check: add --check")
    content = _read_recording(path)
    options = SimulationOptions(
        RECORDING, nodes, shape, policy, reservation or "", horizon=horizon, is_lenient=lenient
    )
    loaded = _select_pods(load_simulation(path, options, content), schedulers)
    refuse_input_as_page(page, loaded.paths)
    setup, workload = loaded.setup, loaded.setup.workload
    assert isinstance(workload, RecordedWorkload)
    recording = workload.history.recording
    if policy is None:
        profiles = with_reservation_mode(_recorded_profiles(path, workload), reservation)
        setup = replace(setup, profiles=profiles)
    if check:
        setup = replace(setup, horizon=min(setup.horizon, recording.end - recording.begin))
    engine = ReplayEngine(setup)
    report = build_report(run_engine(engine, setup), loaded.inputs)
    comparison = None
    if check:
        comparison = _compare(engine, setup, tolerance or _DEFAULT_TOLERANCE, exact=exact_nodes)
        report = {**report, "check": comparison.to_data()}
    _print_report(report, comparison, output)
    if page is not None:
        write_page(page, build_page(report, f"Replay of {path.name}"))
    if comparison is not None and comparison.differences:
        raise click.exceptions.Exit(1)


def _read_recording(path: Path) -> bytes:
    """Read a file once; refuse a simulation file, and a trace in another format.

    The reader of recordings says what else is wrong. Raises click.ClickException.
    """
    try:
        content = read_file(path)
        found = find_trace_format(path, content)
    except InvalidFile as error:
        raise click.ClickException(str(error)) from None
    if found is not None and found.name != RECORDING:
        what = f"a trace in the format {found.name}"
    elif found is None and has_yaml_name(path):
        what = "a simulation file"
    else:
        return content
    raise click.ClickException(
        f"{path} is {what}, not a recording; run: phalanx simulate -f {path}"
    )


def _compare(
    engine: ReplayEngine, setup: SimulationSetup, tolerance: float, *, exact: bool
) -> ReplayComparison:
    """Compare what started up to the horizon, in the recording or in the replay."""
    assert isinstance(setup.workload, RecordedWorkload)
    history = setup.workload.history
    end = history.recording.begin + setup.horizon
    jobs = [
        job
        for job in engine.jobs
        if job.bindings or (job.recorded.started or job.recorded.submitted) <= end
    ]
    return compare_replay(
        jobs,
        replace(history, recording=replace(history.recording, end=end)),
        schedulers=setup.profiles.policies,
        tolerance=tolerance,
        trace=engine.trace,
        exact_nodes=exact,
    )


def _print_report(report: Report, comparison: ReplayComparison | None, output: str) -> None:
    if output == JSON:
        echo(format_structured(report, JSON))
        return
    echo("\n".join(align_columns(list(summary_rows(report)))))
    if comparison is not None:
        echo("\n".join(("", *_describe_comparison(comparison))))


def _select_pods(loaded: LoadedSimulation, schedulers: tuple[str, ...]) -> LoadedSimulation:
    """Leave the pods of other schedulers than the named ones where they were."""
    workload = loaded.setup.workload
    if not schedulers:
        return loaded
    assert isinstance(workload, RecordedWorkload)
    recording = workload.history.recording
    history = build_history(recording, lambda pod: pod.spec.scheduler_name in schedulers)
    try:
        selected = build_recorded_workload(history, TraceFile(recording.name, ()))
    except InvalidTrace:
        raise click.ClickException(
            f"{recording.name}: no recorded job names the scheduler {' or '.join(schedulers)}"
        ) from None
    selected = replace(selected, skipped=workload.skipped)
    is_recorded = loaded.setup.nodes is workload.nodes
    nodes = selected.nodes if is_recorded else loaded.setup.nodes
    return replace(loaded, setup=replace(loaded.setup, workload=selected, nodes=nodes))


def _recorded_profiles(path: Path, workload: RecordedWorkload) -> Profiles:
    """Return the policy that the recording names, or the default one."""
    found = workload.history.recording.header.configuration
    if found is None:
        return DEFAULT_PROFILES
    configuration = parse_configuration(found, load_installed_plugins())
    if isinstance(configuration, list):
        causes = "; ".join(map(str, configuration))
        raise click.ClickException(f"{path}, line 1: configuration: {causes}")
    return configuration.profiles


def _describe_comparison(found: ReplayComparison) -> Iterator[str]:
    within = format_seconds(found.tolerance)
    if not found.differences and not found.other_nodes:
        jobs = pluralize(found.jobs, "job")
        yield f"The replay equals the recording: {jobs} started as recorded, within {within}."
        return
    if not found.differences:
        yield (
            f"{found.jobs} of {pluralize(found.jobs, 'job')} start in time, within {within}; "
            f"{len(found.other_nodes)} of them on other nodes of equal score."
        )
    else:
        jobs = pluralize(found.jobs, "job")
        yield f"{len(found.differences)} of {jobs} differ from the recording."
        yield from _describe_differences("First difference:", found.differences[:1])
        yield from _describe_differences("Later differences:", found.differences[1:])
    yield from _describe_differences("On other nodes of equal score:", found.other_nodes)
    yield ""
    yield (
        "The API does not show refused attempts. A decision log of phalanx up has all of them: "
        "phalanx decisions --check repeats them exactly."
    )


def _describe_differences(title: str, found: Sequence[JobDifference]) -> Iterator[str]:
    """Yield a heading and two lines for each job: what differs, and the likely cause."""
    if not found:
        return
    yield from ("", title)
    for one in found[:_MAX_SHOWN]:
        yield f"  at {format_seconds(one.at)}: {one.name} {one.sentence}"
        yield f"    likely cause: {one.cause}"
    if len(found) > _MAX_SHOWN:
        yield f"  and {len(found) - _MAX_SHOWN} more; -o json lists all"
