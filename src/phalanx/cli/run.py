"""`phalanx run -f FILES`: run manifests once on a temporary control plane and print a summary.

`ManifestRun` submits the files and observes the gangs until all have run, nothing changes, or the
time is over. `run_outcome` has the result.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import click
import uvloop

from phalanx import logs
from phalanx.api.batch import FAILED, Job
from phalanx.api.core import Pod
from phalanx.api.errors import ApiError
from phalanx.api.kinds import EVENT, JOB, NAMESPACE, POD
from phalanx.api.meta import Ref
from phalanx.cli import options
from phalanx.cli.cluster_queries import read_cluster, report_scheduler_bugs
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
    InterruptionCounter,
    RunHistory,
    RunOutcome,
    describe_state,
    format_summary,
    outcome_data,
)
from phalanx.cli.sandbox import (
    CLIENT_NAME,
    ManifestRejected,
    create_control_plane,
    create_objects,
    lacks_pods,
)
from phalanx.cli.scheduler_configuration import load_configuration
from phalanx.cli.why import explain_pending
from phalanx.client.client import Client
from phalanx.control_plane import ControlPlane
from phalanx.controllers.nodes.simulated_kubelet import BadStages, stages_of
from phalanx.logs import escape_unprintable
from phalanx.scheduler.diagnosis.diagnosis import summarize_pending
from phalanx.scheduler.diagnosis.queue_order import (
    NOT_TRIED_YET,
    WorkloadRow,
    WorkloadState,
    list_workloads,
)
from phalanx.scheduler.policy import DEFAULT_PROFILES
from phalanx.scheduler.queue.scheduler_state import ClusterObjects
from phalanx.sim.simulation import first_error

#: Gangs that the summary explains as `phalanx why` does, and owners that can be asked about.
_MAX_EXPLAINED, _EXPLAINED_OWNERS = 3, ("job", "jobset", "leaderworkerset")
#: Sentences about gangs that wait which a run finds out; each takes a decision.
_MAX_SUMMARIES = 100
#: Seconds between two reads of the cluster, and reads without a change after which the run ends.
#: Between two reads the control plane, which is on the same event loop, does all that it can do:
#: on a slow machine so many reads take longer.
POLL_INTERVAL, QUIET_READS = 0.1, 20

_STATE_COLOURS = {
    WorkloadState.RUNNING: "green",
    WorkloadState.ENDED: "blue",
    WorkloadState.WAITING: "yellow",
    WorkloadState.HELD: "magenta",
}

ProgressCallback = Callable[[Sequence[WorkloadRow]], None]


@click.command()
@files_option(required=True)
@click.option(
    "-n",
    "--namespace",
    default="default",
    metavar="NAME",
    show_default=True,
    help="Namespace of objects that name none.",
)
@node_options
@options.configuration_option("KubeSchedulerConfiguration of the scheduler.")
@click.option(
    "--in-turn",
    is_flag=True,
    help="Submit a file only when everything in the files before it runs or waits.",
)
@click.option(
    "--timeout",
    default="60s",
    show_default=True,
    metavar="DURATION",
    callback=options.parse_timeout,
    help="Time after which the run ends, such as 90s or 5m; a plain number is seconds.",
)
@click.option("--logs", "with_logs", is_flag=True, help="Print the logs of containers at the end.")
@output_option(TABLE, JSON, YAML)
def run_command(
    *,
    files: tuple[str, ...],
    namespace: str,
    nodes: str,
    shape: str,
    topology: str,
    devices: tuple[str, ...],
    stages: Path | None,
    processes: bool,
    programs: Path | None,
    policy: Path | None,
    in_turn: bool,
    timeout: float,
    with_logs: bool,
    output: str,
) -> None:
    """Run manifests once on a temporary control plane with its own nodes, and print a summary.

    The annotations phalanx.dev/run-seconds and phalanx.dev/stages say how long a pod runs; a pod
    without them counts as run once it has started. The run ends early when nothing changes any
    more. Progress goes to stderr, the summary to stdout. Nothing is kept.

    Exit code: 0 if all gangs ran and no Job failed, 1 if not.

    \b
    Example:
      phalanx run -f job.yaml --nodes 16 --shape cpu=8,nvidia.com/gpu=8
    """
    batches = load_manifest_files(files, namespace)
    if not in_turn:
        batches = [[manifest for batch in batches for manifest in batch]]
    pool = parse_node_options(nodes, shape, topology, devices=devices)
    rules = options.load_stage_rules(stages)
    check_processes(processes, programs, LOOPBACK_HOSTS[0])
    # stderr shows the progress: only errors of the control plane may interrupt it.
    profiles = load_configuration(policy).profiles if policy else DEFAULT_PROFILES
    logs.configure(level=logging.ERROR)
    progress = ProgressBars(sys.stderr) if sys.stderr.isatty() else ProgressLines(sys.stderr)
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
            outcome = uvloop.run(_run_on(plane, run))
        except ManifestRejected as error:
            raise click.ClickException(str(error)) from None
    if output == TABLE:
        echo(format_summary(outcome))
    else:
        echo(format_structured(outcome_data(outcome), output))
    raise click.exceptions.Exit(0 if outcome.is_success else 1)


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


# ---- the run -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Observation:
    """The objects of the control plane at one moment."""

    cluster: ClusterObjects
    jobs: Sequence[Job]
    gangs: Sequence[WorkloadRow]

    def progress(self) -> list[Any]:
        """Return a value that changes whenever a gang makes progress."""
        return [(gang.ref, gang.state, gang.started, gang.ended) for gang in self.gangs]

    def is_settled(self) -> bool:
        """Return whether every submitted gang runs, has run, or has a reason to wait."""
        if not self.gangs or any(map(lacks_pods, self.jobs)):
            return False
        return all(_has_started(gang) or _has_reason(gang) for gang in self.gangs)


class ManifestRun:
    """Submits batches of manifests in turn and follows them to their end."""

    def __init__(
        self,
        client: Client,
        batches: Sequence[Sequence[Manifest]],
        timeout: float,
        *,
        on_progress: ProgressCallback,
        has_processes: bool,
        with_logs: bool,
    ) -> None:
        self._client, self._batches = client, list(batches)
        self._timeout, self._on_progress = timeout, on_progress
        self._has_processes, self._with_logs = has_processes, with_logs
        self._interruptions, self._history = InterruptionCounter(), RunHistory()
        #: Why a gang waits, by gang and message of the scheduler.
        self._summaries: dict[tuple[Ref, str], str] = {}

    async def run(self) -> RunOutcome:
        """Submit and observe until all gangs have run, nothing changes, or the time is over."""
        time = asyncio.get_running_loop().time
        start, quiet_reads = time(), 0
        namespaces = [one for batch in self._batches for one in _namespace_manifests(batch)]
        await create_objects(self._client, namespaces)
        await create_objects(self._client, self._batches.pop(0))
        progress: list[Any] = []
        while True:
            seen = await self._observe()
            quiet_reads = quiet_reads + 1 if seen.progress() == progress else 0
            progress = seen.progress()
            timed_out, is_quiet = time() - start > self._timeout, quiet_reads > QUIET_READS
            if self._batches and seen.is_settled():
                await create_objects(self._client, self._batches.pop(0))
            elif self._is_complete(seen) or timed_out or (is_quiet and not self._will_end(seen)):
                return await self._create_outcome(seen, time() - start, timed_out=timed_out)
            await asyncio.sleep(POLL_INTERVAL)

    async def _observe(self) -> _Observation:
        cluster, jobs = await read_cluster(self._client), (await self._client.list(JOB, Job)).items
        gangs = self._summarize(cluster, list_workloads(cluster, include_all=True))
        self._on_progress(gangs)
        ended = [one for one in gangs if one.state is WorkloadState.ENDED and not one.failed]
        self._interruptions.observe(cluster, [gang.ref for gang in ended])
        self._history.observe(cluster, gangs)
        return _Observation(cluster, jobs, gangs)

    def _summarize(
        self, cluster: ClusterObjects, gangs: Sequence[WorkloadRow]
    ) -> list[WorkloadRow]:
        """Say of the gangs that wait why they do, as `phalanx why` does; once for each message."""
        rows = []
        for gang in gangs:
            if gang.state is WorkloadState.WAITING and _has_reason(gang):
                asked = gang.ref, gang.message
                if asked not in self._summaries and len(self._summaries) < _MAX_SUMMARIES:
                    with report_scheduler_bugs():
                        self._summaries[asked] = summarize_pending(gang.ref, cluster)
                gang = replace(gang, summary=self._summaries.get(asked, ""))
            rows.append(gang)
        return rows

    def _is_complete(self, seen: _Observation) -> bool:
        """Whether all gangs have started, no running pod will end, and no Job creates more pods."""
        if not seen.gangs or self._batches or not all(map(_has_started, seen.gangs)):
            return False
        running = [pod for pod in seen.cluster.pods if pod.occupied_node]
        owners = {ref.uid for pod in running for ref in pod.metadata.owner_references}
        will_create_pods = any(
            not job.is_finished and job.metadata.uid not in owners for job in seen.jobs
        )
        return not will_create_pods and not self._will_end(seen)

    def _will_end(self, seen: _Observation) -> bool:
        """Whether a running pod ends by itself."""
        running = [pod for pod in seen.cluster.pods if pod.occupied_node]
        return any(self._has_processes or _terminates(pod) for pod in running)

    async def _create_outcome(
        self, seen: _Observation, seconds: float, *, timed_out: bool
    ) -> RunOutcome:
        gangs, nodes, domains = self._history.restore(seen.cluster, seen.gangs)
        if not gangs and not seen.jobs:
            raise ManifestRejected("the files contain nothing to run: no Job, PodGroup or Pod")
        pods = list(seen.cluster.pods)
        return RunOutcome(
            gangs=gangs,
            nodes=nodes,
            domains=domains,
            seconds=seconds,
            timed_out=timed_out,
            interruptions=self._interruptions,
            failed_jobs=await self._failed_jobs(seen),
            explanations=await self._explain(gangs),
            logs=await self._container_logs(pods) if self._with_logs else {},
        )

    async def _explain(self, gangs: Sequence[WorkloadRow]) -> list[str]:
        """Diagnose the first gangs that wait, each under the name that the user knows."""
        waiting = (WorkloadState.WAITING, WorkloadState.HELD)
        pending = [gang for gang in gangs if gang.state in waiting and not gang.has_run]
        names: dict[tuple[str, str], None] = {}
        for gang in sorted(pending, key=lambda gang: (gang.title, gang.ref)):
            is_known = gang.argument.partition("/")[0] in _EXPLAINED_OWNERS
            own_name = f"{gang.kind}/{gang.ref.name}"
            names[gang.ref.namespace, gang.argument if is_known else own_name] = None
        return [
            await explain_pending(self._client, name, namespace)
            for namespace, name in list(names)[:_MAX_EXPLAINED]
        ]

    async def _failed_jobs(self, seen: _Observation) -> dict[str, str]:
        """The Jobs that failed, are suspended or got no pods, each with the reason."""
        reasons: dict[str, str] = {}
        owners = {ref.uid for pod in seen.cluster.pods for ref in pod.metadata.owner_references}
        for job in seen.jobs:
            title, failure = f"Job/{job.metadata.name}", job.true_condition(FAILED)
            if failure:
                reasons[title] = f"failed, {failure.reason}: {failure.message}"
            elif job.spec.suspend:
                reasons[title] = "is suspended"
            elif not job.is_finished and job.metadata.uid not in owners:
                selector = f"involvedObject.uid={job.metadata.uid},type=Warning"
                events = (await self._client.list(EVENT, field_selector=selector)).items
                why = events[-1].get("message", "") if events else "there is no event about it"
                reasons[title] = f"has no pods: {why}"
        return reasons

    async def _container_logs(self, pods: Sequence[Pod]) -> dict[str, list[str]]:
        """The log lines of containers, by pod name, or by pod and container if it has several."""
        lines: dict[str, list[str]] = {}
        for pod in sorted(pods, key=lambda pod: pod.metadata.key):
            path = POD.url_path(*pod.metadata.key, "log")
            for container in pod.spec.containers:
                name = pod.metadata.name
                if len(pod.spec.containers) > 1:
                    name = f"{name} {container.name}"
                with contextlib.suppress(ApiError):
                    text = await self._client.get_raw(path, {"container": container.name})
                    lines[name] = text.decode(errors="replace").splitlines()
        return lines


def _namespace_manifests(manifests: Sequence[Manifest]) -> list[Manifest]:
    """The namespaces of the manifests: a temporary cluster has every namespace that is named."""
    names = dict.fromkeys(
        manifest.key.namespace for manifest in manifests if manifest.key.namespace
    )
    head = {"apiVersion": NAMESPACE.api_version, "kind": NAMESPACE.name}
    return [Manifest(NAMESPACE, {**head, "metadata": {"name": name}}) for name in names]


def _has_reason(gang: WorkloadRow) -> bool:
    is_pending = gang.state in (WorkloadState.WAITING, WorkloadState.HELD)
    return is_pending and gang.reason != NOT_TRIED_YET


def _has_started(gang: WorkloadRow) -> bool:
    return gang.state is WorkloadState.ENDED or (not gang.pending and gang.started == gang.placed)


def _terminates(pod: Pod) -> bool:
    try:
        return stages_of(pod.metadata).run is not None
    except BadStages:
        return False
