"""`phalanx run -f FILES`: run manifests once on a temporary control plane and print a summary.

`ManifestRun` submits the files and observes the gangs; `RunOutcome` is the result: which gangs ran,
on which nodes, how often each was interrupted, and why the others did not run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import click
import uvloop

from phalanx import logs
from phalanx.api.batch import FAILED, Job
from phalanx.api.core import Pod
from phalanx.api.errors import ApiError
from phalanx.api.kinds import EVENT, JOB, NAMESPACE, POD
from phalanx.api.meta import Ref, find_condition
from phalanx.api.scheduling import DISRUPTION_TARGET
from phalanx.cli import options
from phalanx.cli.cluster_queries import read_cluster
from phalanx.cli.manifests import Manifest, files_option, load_manifest_files
from phalanx.cli.nodes import (
    LOOPBACK_HOSTS,
    check_processes,
    node_options,
    parse_node_options,
    process_host,
    with_node_type,
)
from phalanx.cli.options import LEVEL_LABELS
from phalanx.cli.output import (
    JSON,
    TABLE,
    YAML,
    LiveDisplay,
    StyledLine,
    echo,
    format_structured,
    join_names,
    output_option,
    pluralize,
    progress_bar,
)
from phalanx.cli.sandbox import (
    CLIENT_NAME,
    ManifestRejected,
    create_control_plane,
    create_objects,
    lacks_pods,
)
from phalanx.cli.scheduler_configuration import load_configuration
from phalanx.cli.top import STATE_COLORS
from phalanx.client.client import Client
from phalanx.control_plane import ControlPlane
from phalanx.controllers.nodes.simulated_kubelet import BadStages, stages_of
from phalanx.logs import escape_unprintable
from phalanx.scheduler.diagnosis.queue_order import (
    NOT_TRIED_YET,
    WorkloadRow,
    WorkloadState,
    list_workloads,
    pods_with_entities,
)
from phalanx.scheduler.policy import DEFAULT_PROFILES
from phalanx.scheduler.queue.scheduler_state import ClusterObjects
from phalanx.sim.simulation import first_error

#: Nodes of a gang that the summary names.
_MAX_NODE_NAMES = 8
#: Topology levels, the smallest first, whose domain the summary names if it contains a whole gang.
_DOMAIN_LABELS = tuple(LEVEL_LABELS[name] for name in ("rack", "block", "zone", "region"))
#: Seconds between two reads of the cluster, and reads without a change after which the run ends.
#: Between two reads the control plane, which is on the same event loop, does all that it can do:
#: on a slow machine so many reads take longer.
POLL_INTERVAL, QUIET_READS = 0.1, 20

ProgressCallback = Callable[[Sequence[WorkloadRow]], None]


# ---- the outcome ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The result of a run: which gangs ran and where, and why the others did not."""

    gangs: Sequence[WorkloadRow]
    #: The nodes of each gang's pods, ended pods included, with the number of pods.
    nodes: Mapping[Ref, Counter[str]]
    #: The smallest topology domain that contains a gang, such as `rack-0-1`; "" if none does.
    domains: Mapping[Ref, str]
    seconds: float
    timed_out: bool
    #: How often each gang lost running members and had to wait again.
    interruptions: Mapping[Ref, int] = field(default_factory=dict)
    #: Jobs that failed or got no pods, each with its reason.
    failed_jobs: Mapping[str, str] = field(default_factory=dict)
    #: Log lines of containers, if the command asked for them.
    logs: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def is_success(self) -> bool:
        """Return whether all gangs ran and no Job failed."""
        return (
            all(gang.has_run for gang in self.gangs) and not self.timed_out and not self.failed_jobs
        )


class InterruptionCounter(Counter[Ref]):
    """Counts how often each gang lost running members, from a series of observations."""

    def __init__(self) -> None:
        super().__init__()
        self._running_pods: dict[Ref, set[str]] = {}

    def observe(self, cluster: ClusterObjects, ended: Iterable[Ref] = ()) -> None:
        """Count the gangs whose running members are deleted or disrupted since the last call.

        The members of an `ended` gang are deleted because it needs them no longer.
        """
        pods = pods_with_entities(cluster)
        for ref in ended:
            self._running_pods.pop(ref, None)
        undisrupted = {pod.metadata.uid for _, pod in pods if not _is_disrupted(pod)}
        for ref, uids in list(self._running_pods.items()):
            if uids - undisrupted:
                self[ref] += 1
                del self._running_pods[ref]
        for ref, pod in pods:
            running = self._running_pods.setdefault(ref, set())
            if pod.is_terminal:
                running.discard(pod.metadata.uid)
            elif pod.occupied_node and pod.metadata.uid in undisrupted:
                running.add(pod.metadata.uid)


class RunHistory:
    """Remembers the gangs that ran, with their nodes, for when their pods are deleted at the end.

    The success policy of a JobSet deletes its other Jobs, and a TTL a whole Job.
    """

    def __init__(self) -> None:
        self._ran: dict[Ref, tuple[WorkloadRow, Counter[str], str]] = {}
        self._ended: set[Ref] = set()

    def observe(self, cluster: ClusterObjects, gangs: Sequence[WorkloadRow]) -> None:
        """Remember the gangs that run or have run now."""
        nodes, domains = gang_placements(cluster)
        for gang in gangs:
            if gang.has_run and gang.ref in nodes:
                self._ran[gang.ref] = gang, nodes[gang.ref], domains[gang.ref]
            is_ended = gang.state is WorkloadState.ENDED
            (self._ended.add if is_ended else self._ended.discard)(gang.ref)

    def restore(
        self, cluster: ClusterObjects, gangs: Sequence[WorkloadRow]
    ) -> tuple[list[WorkloadRow], dict[Ref, Counter[str]], dict[Ref, str]]:
        """Return all gangs, with nodes and domains; ended ones as they were with all their pods."""
        rows = {gang.ref: gang for gang in gangs}
        titles = {(gang.ref.namespace, gang.title) for gang in gangs}
        nodes, domains = gang_placements(cluster)
        for ref, (ran, its_nodes, domain) in self._ran.items():
            row = rows.get(ref)
            if row is not None:
                is_cut = row.state is WorkloadState.ENDED and not row.has_run and not row.failed
            else:
                # The next attempt of a restarted owner has other groups under the same title.
                is_cut = ref in self._ended and (ref.namespace, ran.title) not in titles
            if is_cut:
                ended = ran.started + ran.ended
                rows[ref] = replace(
                    ran, state=WorkloadState.ENDED, started=0, placed=0, ended=ended
                )
                nodes[ref], domains[ref] = its_nodes, domain
        return list(rows.values()), nodes, domains


def _is_disrupted(pod: Pod) -> bool:
    condition = find_condition(pod.status.conditions, DISRUPTION_TARGET)
    return condition is not None and condition.status == "True"


def gang_placements(
    cluster: ClusterObjects,
) -> tuple[dict[Ref, Counter[str]], dict[Ref, str]]:
    """Return the nodes of each gang's pods and the smallest domain that contains them."""
    nodes: dict[Ref, Counter[str]] = {}
    for ref, pod in pods_with_entities(cluster):
        if pod.spec.node_name:
            nodes.setdefault(ref, Counter())[pod.spec.node_name] += 1
    labels = {node.metadata.name: node.metadata.labels for node in cluster.nodes}
    return nodes, {
        ref: _common_domain([labels.get(name, {}) for name in names])
        for ref, names in nodes.items()
    }


def _common_domain(labels: Sequence[Mapping[str, str]]) -> str:
    for level in _DOMAIN_LABELS:
        values = {node_labels.get(level, "") for node_labels in labels}
        if len(values) == 1 and values != {""}:
            return values.pop()
    return ""


def describe_state(gang: WorkloadRow) -> str:
    """Describe the state of a gang in a few words."""
    members = f"{gang.started + gang.ended}/{gang.members}"
    match gang.state:
        case WorkloadState.ENDED:
            failed = f", {gang.failed} failed" if gang.failed else ""
            return f"ended {members}{failed}"
        case WorkloadState.RUNNING:
            return f"running {members} on {pluralize(len(gang.nodes), 'node')}"
        case _:
            return f"{gang.state.value} {members}: {gang.message}"


def format_summary(outcome: RunOutcome) -> str:
    """Format an outcome as text: one sentence, then a line for each gang."""
    gangs = sorted(outcome.gangs, key=lambda gang: (gang.title, gang.ref))
    ran = sum(gang.has_run for gang in gangs)
    width = max((len(gang.title) for gang in gangs), default=0)
    lines = [
        f"{pluralize(ran, 'gang')} ran, {len(gangs) - ran} did not, in {outcome.seconds:.1f} s",
        *(f"  {gang.title.ljust(width)}  {_describe_gang(outcome, gang)}" for gang in gangs),
        *(f"  {name} {reason}" for name, reason in outcome.failed_jobs.items()),
    ]
    if outcome.timed_out:
        lines.append("  timed out; allow more time with --timeout")
    lines += [f"{name} | {line}" for name, text in outcome.logs.items() for line in text]
    return "\n".join(lines)


def _describe_gang(outcome: RunOutcome, gang: WorkloadRow) -> str:
    if not gang.has_run or gang.ref not in outcome.nodes:
        return describe_state(gang)
    text = f"{gang.state.value} {gang.started + gang.ended}/{gang.members}"
    if gang.failed:
        text += f", {gang.failed} failed"
    nodes = [f"{name} ({count})" for name, count in sorted(outcome.nodes[gang.ref].items())]
    text += f" on {join_names(nodes, _MAX_NODE_NAMES)}"
    if domain := outcome.domains.get(gang.ref):
        text += f" in {domain}"
    if times := outcome.interruptions.get(gang.ref, 0):
        text += f", interrupted {pluralize(times, 'time')}"
    return text


def outcome_data(outcome: RunOutcome) -> dict[str, Any]:
    """Return an outcome as data for JSON and YAML."""
    items = [
        {
            "kind": gang.kind,
            "namespace": gang.ref.namespace,
            "name": gang.ref.name,
            "owner": gang.owner,
            "state": gang.state.value,
            "ran": gang.has_run,
            "members": gang.members,
            "started": gang.started,
            "ended": gang.ended,
            "failed": gang.failed,
            "nodes": sorted(outcome.nodes.get(gang.ref, ())),
            "domain": outcome.domains.get(gang.ref, ""),
            "madeWay": outcome.interruptions.get(gang.ref, 0),
            "reason": gang.reason,
            "message": gang.message,
        }
        for gang in outcome.gangs
    ]
    data = {
        "ran": outcome.is_success,
        "seconds": round(outcome.seconds, 3),
        "timedOut": outcome.timed_out,
        "failedJobs": dict(outcome.failed_jobs),
        "items": items,
    }
    return {**data, "logs": dict(outcome.logs)} if outcome.logs else data


# ---- the command ---------------------------------------------------------------------------------


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
@click.option(
    "--config",
    "policy",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="KubeSchedulerConfiguration of the scheduler.",
)
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
    pool = parse_node_options(nodes, shape, topology, devices)
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
        width = max((len(gang.title) for gang in gangs), default=0)
        self._display.draw([progress_line(gang, width) for gang in gangs])


class ProgressLines:
    """Shows progress elsewhere: one line for each change of a gang."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._printed: dict[Ref, str] = {}

    def __call__(self, gangs: Sequence[WorkloadRow]) -> None:
        """Print the gangs that have changed."""
        for gang in gangs:
            text = f"{gang.title}: {describe_state(gang)}"
            if self._printed.get(gang.ref) != text:
                self._printed[gang.ref] = text
                self._out.write(f"{escape_unprintable(text, keep='')}\n")
        self._out.flush()


def progress_line(gang: WorkloadRow, width: int) -> StyledLine:
    """Format a gang as a bar: members that have started or ended, of all members."""
    bar = progress_bar(gang.started + gang.ended, gang.members)
    text = f"{gang.title.ljust(width)}  {bar}  {describe_state(gang)}"
    return StyledLine(text, STATE_COLORS[gang.state])


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
        on_progress: ProgressCallback,
        *,
        has_processes: bool,
        with_logs: bool,
    ) -> None:
        self._client, self._batches = client, list(batches)
        self._timeout, self._on_progress = timeout, on_progress
        self._has_processes, self._with_logs = has_processes, with_logs
        self._interruptions, self._history = InterruptionCounter(), RunHistory()

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
        gangs = list_workloads(cluster, include_all=True)
        self._on_progress(gangs)
        ended = [one for one in gangs if one.state is WorkloadState.ENDED and not one.failed]
        self._interruptions.observe(cluster, [gang.ref for gang in ended])
        self._history.observe(cluster, gangs)
        return _Observation(cluster, jobs, gangs)

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
            logs=await self._container_logs(pods) if self._with_logs else {},
        )

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
                reasons[title] = f"has no pods: {await self._last_warning(job)}"
        return reasons

    async def _last_warning(self, job: Job) -> str:
        selector = f"involvedObject.uid={job.metadata.uid},type=Warning"
        events = (await self._client.list(EVENT, field_selector=selector)).items
        return str(events[-1].get("message", "")) if events else "there is no event about it"

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
