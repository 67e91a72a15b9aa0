"""`phalanx run -f FILES`: run manifests once and print a summary.

They run on a temporary control plane, or with `--context` on a cluster. `manifest_run` and
`cluster_run` submit the files and observe the gangs; this module prints the progress.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

import click
import uvloop

from phalanx import logs
from phalanx.api.meta import Ref
from phalanx.cli import options
from phalanx.cli.background import cluster_kubeconfig
from phalanx.cli.cluster_run import ClusterRun, SubmittedObject, deletion_commands
from phalanx.cli.cluster_state import existing_folder
from phalanx.cli.completion import complete_namespace
from phalanx.cli.connection import change_cluster, chosen_cluster, server_options
from phalanx.cli.manifest_run import ManifestRun, ProgressCallback
from phalanx.cli.manifests import Manifest, files_option, load_manifest_files
from phalanx.cli.nodes import (
    LOOPBACK_HOSTS,
    check_processes,
    node_options,
    parse_node_options,
    process_host,
    with_node_type,
)
from phalanx.cli.output import (
    INTERRUPTED,
    JSON,
    TABLE,
    YAML,
    LiveDisplay,
    StyledLine,
    echo,
    format_structured,
    output_option,
    progress_bar,
)
from phalanx.cli.run_outcome import (
    RunOutcome,
    describe_state,
    format_summary,
    outcome_data,
)
from phalanx.cli.sandbox import CLIENT_NAME, ManifestRejected, create_control_plane
from phalanx.cli.scheduler_configuration import load_configuration
from phalanx.client.client import Client
from phalanx.control_plane import ControlPlane
from phalanx.controllers.nodes.node_pool import SimulatedNode
from phalanx.logs import escape_unprintable
from phalanx.scheduler.diagnosis.queue_order import WorkloadRow, WorkloadState
from phalanx.scheduler.policy import DEFAULT_PROFILES
from phalanx.sim.simulation import first_error

#: Seconds that a run on a temporary control plane has; a cluster may need any time.
_DEFAULT_TIMEOUT = 60.0
#: Options of the temporary control plane, which a cluster does not have, by parameter.
_SANDBOX_OPTIONS = {
    "nodes": "--nodes",
    "shape": "--shape",
    "topology": "--topology",
    "devices": "--devices",
    "stages": "--stages",
    "processes": "--run-processes",
    "programs": "--programs",
    "policy": "--config",
}

_STATE_COLOURS = {
    WorkloadState.RUNNING: "green",
    WorkloadState.ENDED: "blue",
    WorkloadState.WAITING: "yellow",
    WorkloadState.HELD: "magenta",
}


@click.command()
@files_option(required=True)
@click.option(
    "-n",
    "--namespace",
    default="",
    metavar="NAME",
    shell_complete=complete_namespace,
    help="Namespace of objects that name none. [default: default; the context's on a cluster]",
)
@server_options
@node_options
@options.configuration_option("KubeSchedulerConfiguration of the scheduler.")
@click.option(
    "--in-turn",
    is_flag=True,
    help="Submit a file only when everything in the files before it runs or waits.",
)
@click.option(
    "--timeout",
    default=None,
    metavar="DURATION",
    callback=options.parse_optional_time,
    help="Time after which the run ends, such as 90s or 5m; a plain number is seconds. "
    "[default: 60s; none on a cluster]",
)
@click.option("--logs", "with_logs", is_flag=True, help="Print the logs of containers at the end.")
@output_option(TABLE, JSON, YAML)
def run_command(
    *,
    files: tuple[str, ...],
    namespace: str,
    config: Path | None,
    context: str,
    nodes: str,
    shape: str,
    topology: str,
    devices: tuple[str, ...],
    stages: Path | None,
    processes: bool,
    programs: Path | None,
    policy: Path | None,
    in_turn: bool,
    timeout: float | None,
    with_logs: bool,
    output: str,
) -> None:
    """Run manifests once, on a temporary control plane or on a cluster, and print a summary.

    Without an option that names a cluster the files run on a temporary control plane with its own
    nodes, and nothing is kept. The annotations phalanx.dev/run-seconds and phalanx.dev/stages say
    there how long a pod runs; a pod without them counts as run once it has started. The run ends
    early when nothing changes any more.

    With --context, --kubeconfig or --cluster the objects are created in that cluster and followed
    until all Jobs have ended and all other gangs run. They stay there, also after ^C; stderr shows
    the command that deletes them. Progress goes to stderr, the summary to stdout.

    Exit code: 0 if all gangs ran and no Job failed, 1 if not, 130 after ^C.

    \b
    Example:
      phalanx run -f job.yaml --nodes 16 --shape cpu=8,nvidia.com/gpu=8
      phalanx run -f job.yaml --context prod --timeout 10m
    """
    progress = ProgressBars(sys.stderr) if sys.stderr.isatty() else ProgressLines(sys.stderr)
    if config or context or chosen_cluster():
        load = partial(_load_batches, files, namespace, in_turn=in_turn)
        outcome = _run_on_cluster(
            config, context, load, timeout=timeout, progress=progress, with_logs=with_logs
        )
    else:
        outcome = _run_in_sandbox(
            _load_batches(files, namespace, in_turn=in_turn),
            parse_node_options(nodes, shape, topology, devices=devices),
            stages=stages,
            processes=processes,
            programs=programs,
            policy=policy,
            timeout=timeout or _DEFAULT_TIMEOUT,
            progress=progress,
            with_logs=with_logs,
        )
    if output == TABLE:
        echo(format_summary(outcome))
    else:
        echo(format_structured(outcome_data(outcome), output))
    raise click.exceptions.Exit(outcome.exit_code)


def _run_in_sandbox(
    batches: Sequence[Sequence[Manifest]],
    pool: Sequence[SimulatedNode],
    *,
    stages: Path | None,
    processes: bool,
    programs: Path | None,
    policy: Path | None,
    timeout: float,
    progress: ProgressCallback,
    with_logs: bool,
) -> RunOutcome:
    """Run manifests on a temporary control plane with these nodes."""
    rules = options.load_stage_rules(stages)
    check_processes(processes, programs, LOOPBACK_HOSTS[0])
    # stderr shows the progress: only errors of the control plane may interrupt it.
    profiles = load_configuration(policy).profiles if policy else DEFAULT_PROFILES
    logs.configure(level=logging.ERROR)
    with process_host(processes, programs) as host:
        plane = create_control_plane(with_node_type(pool, host), rules, host, profiles=profiles)
        run = ManifestRun(
            plane.client(CLIENT_NAME),
            batches,
            timeout,
            on_progress=progress,
            has_processes=processes,
            with_logs=with_logs,
        )
        try:
            return uvloop.run(_run_on(plane, run))
        except ManifestRejected as error:
            raise click.ClickException(str(error)) from None


def _load_batches(
    files: Sequence[str], namespace: str, default_namespace: str = "default", *, in_turn: bool
) -> list[list[Manifest]]:
    """Load the manifests, those of each file as a batch if the files are submitted in turn."""
    batches = load_manifest_files(files, namespace or default_namespace)
    return batches if in_turn else [[manifest for batch in batches for manifest in batch]]


def _reject_sandbox_options() -> None:
    ctx = click.get_current_context()
    given = [
        option
        for name, option in _SANDBOX_OPTIONS.items()
        if ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
    ]
    if given:
        raise click.UsageError(
            f"{given[0]} is an option of the temporary control plane; leave it out, "
            "or leave out the options that name a cluster"
        )


def _run_on_cluster(
    config: Path | None,
    context: str,
    load: Callable[[str], list[list[Manifest]]],
    *,
    timeout: float | None,
    progress: ProgressCallback,
    with_logs: bool,
) -> RunOutcome:
    """Run manifests on a cluster; however that ends, say how the objects are deleted."""
    _reject_sandbox_options()
    submitted: list[SubmittedObject] = []

    async def run(client: Client, default_namespace: str) -> RunOutcome:
        cluster_run = ClusterRun(
            client,
            load(default_namespace),
            timeout,
            on_progress=progress,
            with_logs=with_logs,
            submitted=submitted,
        )
        return await cluster_run.run()

    try:
        outcome = change_cluster(config, context, run)
        if outcome.is_interrupted:
            echo("\ninterrupted: what was submitted goes on", err=True)
        return outcome
    except ManifestRejected as error:
        raise click.ClickException(str(error)) from None
    except KeyboardInterrupt:
        echo("\ninterrupted: what was submitted goes on", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    finally:
        file = cluster_kubeconfig(existing_folder(chosen_cluster())) if chosen_cluster() else config
        server = ["--kubeconfig", str(file)] if file else []
        server += ["--context", context] if context else []
        if commands := deletion_commands(submitted, *server):
            echo("the objects stay in the cluster; to delete them:", err=True)
            echo("\n".join(f"  {command}" for command in commands), err=True)


async def _run_on(plane: ControlPlane, run: ManifestRun) -> RunOutcome:
    try:
        async with plane.running():
            return await run.run()
    except ExceptionGroup as group:
        error = first_error(group)
    raise error


class ProgressBars:
    """Shows progress on a terminal: one bar per gang, redrawn in place."""

    def __init__(self, out: TextIO) -> None:
        self._display = LiveDisplay(out)

    def __call__(self, gangs: Sequence[WorkloadRow]) -> None:
        """Redraw the bars."""
        width = max((len(gang.display_title) for gang in gangs), default=0)
        self._display.draw([progress_line(gang, width) for gang in gangs])


class ProgressLines:
    """Shows progress elsewhere: one line for each change of a gang."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._printed: dict[Ref, str] = {}

    def __call__(self, gangs: Sequence[WorkloadRow]) -> None:
        """Print the gangs that have changed."""
        for gang in gangs:
            text = f"{gang.display_title}: {describe_state(gang)}"
            if self._printed.get(gang.ref) != text:
                self._printed[gang.ref] = text
                self._out.write(f"{escape_unprintable(text, keep='')}\n")
        self._out.flush()


def progress_line(gang: WorkloadRow, width: int) -> StyledLine:
    """Format a gang as a bar: members that have started or ended, of all members."""
    bar = progress_bar(gang.started + gang.ended, gang.members)
    text = f"{gang.display_title.ljust(width)}  {bar}  {describe_state(gang)}"
    return StyledLine(text, _STATE_COLOURS[gang.state])
