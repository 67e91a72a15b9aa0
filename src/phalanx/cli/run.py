"""Outcome: how a run went, in words for people and as data for programs.

`phalanx run` follows what happens and makes one at the end. Which gangs ran, where, how often each
had to make way for others, and why those did not run that did not.

`phalanx run -f FILES`: one shot on a throw-away control plane, with progress and a summary.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import click
import uvloop

from phalanx.api.batch import FAILED, Job
from phalanx.api.core import Pod
from phalanx.api.errors import ApiError
from phalanx.api.kinds import EVENT, JOB, NAMESPACE, POD
from phalanx.api.meta import find_condition
from phalanx.api.scheduling import DISRUPTION_TARGET
from phalanx.cli import options
from phalanx.cli.cluster_queries import read_cluster
from phalanx.cli.manifests import Manifest, files_option, load_manifest_files
from phalanx.cli.nodes import (
    LOOPBACK_HOSTS,
    check_processes,
    node_options,
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
    format_structured,
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
from phalanx.cli.top import STATE_COLORS
from phalanx.client.client import Client
from phalanx.control_plane import ControlPlane
from phalanx.controllers.nodes.simulated_kubelet import BadStages, stages_of
from phalanx.scheduler.diagnosis.queue_order import (
    NOT_TRIED_YET,
    WorkloadRow,
    WorkloadState,
    list_workloads,
    pods_with_entities,
)
from phalanx.scheduler.queue.cluster_objects import ClusterObjects
from phalanx.scheduler.queue.queued_entity import EntityId
from phalanx.sim.simulation import first_error

#: How many nodes are named.
_MAX_NODE_NAMES = 8
#: Domains, the smallest first, in which a gang may be as a whole.
_DOMAIN_LABELS = tuple(LEVEL_LABELS[name] for name in ("rack", "block", "zone", "region"))


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How it went."""

    gangs: Sequence[WorkloadRow]
    #: The nodes that its pods are or were on, with how many, of each gang.
    nodes: Mapping[EntityId, Counter[str]]
    #: Where all of them lie, such as `rack-0-1`; "" if nowhere smaller than the cluster.
    domains: Mapping[EntityId, str]
    seconds: float
    timed_out: bool
    #: How often each gang ran and then had to wait again.
    interruptions: Mapping[EntityId, int] = field(default_factory=dict)
    #: Jobs that came to a bad end, each with its reason.
    failed_jobs: Mapping[str, str] = field(default_factory=dict)
    #: What containers wrote, line by line, if that was asked for.
    logs: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def is_success(self) -> bool:
        """Whether all ran."""
        return (
            all(line.has_run for line in self.gangs) and not self.timed_out and not self.failed_jobs
        )


class InterruptionCounter(Counter[EntityId]):
    """How often gangs were at work and lost members that had not ended, by looking now and then."""

    def __init__(self) -> None:
        super().__init__()
        self._running_pods: dict[EntityId, set[str]] = {}

    def observe(self, cluster: ClusterObjects) -> None:
        """Note who has lost members since the last look: they are gone, or were driven off."""
        pods = pods_with_entities(cluster)
        left = {pod.metadata.uid for _, pod in pods if not _is_disrupted(pod)}
        for id_, uids in list(self._running_pods.items()):
            if uids - left:
                self[id_] += 1
                del self._running_pods[id_]
        for id_, pod in pods:
            at_work = self._running_pods.setdefault(id_, set())
            if pod.is_terminal:
                at_work.discard(pod.metadata.uid)
            elif pod.occupied_node and pod.metadata.uid in left:
                at_work.add(pod.metadata.uid)


def _is_disrupted(pod: Pod) -> bool:
    said = find_condition(pod.status.conditions, DISRUPTION_TARGET)
    return said is not None and said.status == "True"


def gang_placements(
    cluster: ClusterObjects,
) -> tuple[dict[EntityId, Counter[str]], dict[EntityId, str]]:
    """The nodes of each gang, of ended pods too, and the domain in which all of them lie."""
    nodes: dict[EntityId, Counter[str]] = {}
    for id_, pod in pods_with_entities(cluster):
        if pod.spec.node_name:
            nodes.setdefault(id_, Counter())[pod.spec.node_name] += 1
    labels = {node.metadata.name: node.metadata.labels for node in cluster.nodes}
    return nodes, {
        id_: _common_domain([labels.get(n, {}) for n in on]) for id_, on in nodes.items()
    }


def _common_domain(labels: Sequence[Mapping[str, str]]) -> str:
    """The smallest domain that all nodes of these labels are in."""
    found = ({one.get(level, "") for one in labels} for level in _DOMAIN_LABELS)
    return next((values.pop() for values in found if len(values) == 1 and values != {""}), "")


def describe_state(line: WorkloadRow) -> str:
    """How it is about a gang, in a few words."""
    members = f"{line.started + line.ended}/{line.members}"
    match line.state:
        case WorkloadState.ENDED:
            failed = f", {line.failed} failed" if line.failed else ""
            return f"ended {members}{failed}"
        case WorkloadState.RUNNING:
            return f"running {members} on {pluralize(len(line.nodes), 'node')}"
        case _:
            return f"{line.state.value} {members}: {line.message}"


def format_summary(end: RunOutcome) -> str:
    """How it went: one sentence, and a line for each gang."""
    return "\n".join(_summary_lines(end))


def _summary_lines(end: RunOutcome) -> Iterator[str]:
    ran = sum(line.has_run for line in end.gangs)
    yield f"{pluralize(ran, 'gang')} ran, {len(end.gangs) - ran} did not, in {end.seconds:.1f} s"
    width = max((len(line.title) for line in end.gangs), default=0)
    for line in sorted(end.gangs, key=lambda line: (line.title, line.ref)):
        yield f"  {line.title.ljust(width)}  {_describe_gang(end, line)}"
    yield from (f"  {name} {why}" for name, why in end.failed_jobs.items())
    if end.timed_out:
        yield "  it took too long; give it more with --timeout"
    yield from (f"{name} | {line}" for name, text in end.logs.items() for line in text)


def _describe_gang(end: RunOutcome, line: WorkloadRow) -> str:
    if not line.has_run or line.ref not in end.nodes:
        return describe_state(line)
    done = f"{line.state.value} {line.started + line.ended}/{line.members}"
    failed = f", {line.failed} failed" if line.failed else ""
    times = end.interruptions.get(line.ref, 0)
    again = f", after it had made way {_describe_count(times)}" if times else ""
    return f"{done}{failed} on {_describe_nodes(end, line.ref)}{again}"


def _describe_count(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _describe_nodes(end: RunOutcome, id_: EntityId) -> str:
    nodes = sorted(end.nodes[id_].items())
    named = ", ".join(f"{name} ({count})" for name, count in nodes[:_MAX_NODE_NAMES])
    more = (
        f" and {pluralize(len(nodes) - _MAX_NODE_NAMES, 'more node')}"
        if len(nodes) > _MAX_NODE_NAMES
        else ""
    )
    inside = f" in {end.domains[id_]}" if end.domains.get(id_) else ""
    return f"{named}{more}{inside}"


def outcome_data(end: RunOutcome) -> dict[str, Any]:
    """The same for programs."""
    return {
        "ran": end.is_success, "seconds": round(end.seconds, 3), "timedOut": end.timed_out,
        "failedJobs": dict(end.failed_jobs),
        "items": [
            {"kind": line.kind, "namespace": line.ref.key.namespace, "name": line.ref.key.name,
             "owner": line.owner, "state": line.state.value, "ran": line.has_run,
             "members": line.members, "started": line.started, "ended": line.ended,
             "failed": line.failed, "nodes": sorted(end.nodes.get(line.ref, ())),
             "domain": end.domains.get(line.ref, ""), "madeWay": end.interruptions.get(line.ref, 0),
             "reason": line.reason, "message": line.message}
            for line in end.gangs
        ],
        **({"logs": dict(end.logs)} if end.logs else {}),
    }  # fmt: skip


#: Seconds between two looks, and without any change after which nothing more is expected.
POLL_INTERVAL, QUIET_PERIOD = 0.1, 2.0
ProgressCallback = Callable[[Sequence[WorkloadRow]], None]


@click.command()
@files_option(required=True)
@click.option(
    "-n",
    "--namespace",
    default="default",
    metavar="NAME",
    show_default=True,
    help="Where objects go that name no namespace.",
)
@node_options
@click.option(
    "--in-turn",
    is_flag=True,
    help="Submit a file only when all that the files before it brought runs or waits.",
)
@click.option(
    "--timeout",
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    help="How long it may take.",
)
@click.option("--logs", is_flag=True, help="Print at the end what the containers wrote.")
@output_option(TABLE, JSON, YAML)
def command(
    files: tuple[str, ...], namespace: str, nodes: str, shape: str, topology: str,
    stages: Path | None, processes: bool, programs: Path | None, in_turn: bool, timeout: float,
    logs: bool, output: str,
) -> None:  # fmt: skip
    """Run manifests once on a throw-away control plane with nodes of its own; say how it went.

    Pods live as their annotations phalanx.dev/run-seconds and phalanx.dev/stages say; one that says
    nothing has run as soon as it runs. Ends early when nothing moves any more. Nothing is kept.
    Progress goes to stderr, how it went to stdout.

    Exit code: 0 if all gangs ran and no Job failed, 1 if not.

    \b
    Example:
      phalanx run -f job.yaml --nodes 16 --shape cpu=8,nvidia.com/gpu=8
    """
    wanted = load_manifest_files(files, namespace)
    machines = options.parse_nodes(
        nodes, options.parse_shape(shape), options.parse_topology(topology)
    )
    rules = options.load_stage_rules(stages)
    check_processes(processes, programs, LOOPBACK_HOSTS[0])
    tell = ProgressBars(sys.stderr) if sys.stderr.isatty() else ProgressLines(sys.stderr)
    with process_host(processes, programs) as host:
        plane = create_control_plane(with_node_type(machines, host), rules, host)
        turns = wanted if in_turn else [[one for batch in wanted for one in batch]]
        run = ManifestRun(
            plane.client(CLIENT_NAME), turns, timeout, tell, has_processes=processes, logs=logs
        )
        try:
            end = uvloop.run(_run_on(plane, run))
        except ManifestRejected as error:
            raise click.ClickException(str(error)) from None
    click.echo(
        format_summary(end) if output == TABLE else format_structured(outcome_data(end), output)
    )
    raise click.exceptions.Exit(0 if end.is_success else 1)


class ProgressBars:
    """Progress on a terminal: a bar for each gang."""

    def __init__(self, out: TextIO) -> None:
        self._display = LiveDisplay(out)

    def __call__(self, lines: Sequence[WorkloadRow]) -> None:
        """Draw it anew."""
        width = max((len(line.title) for line in lines), default=0)
        self._display.draw([progress_line(line, width) for line in lines])


class ProgressLines:
    """Progress elsewhere: a line whenever something has changed."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._printed: dict[EntityId, str] = {}

    def __call__(self, lines: Sequence[WorkloadRow]) -> None:
        """Print what is new."""
        for line in lines:
            text = f"{line.title}: {describe_state(line)}"
            if self._printed.get(line.ref) != text:
                self._printed[line.ref] = text
                self._out.write(f"{text}\n")
        self._out.flush()


def progress_line(line: WorkloadRow, width: int) -> StyledLine:
    """One gang as a bar: what has started or ended of it, of all."""
    share = progress_bar(line.started + line.ended, line.members)
    return StyledLine(
        f"{line.title.ljust(width)}  {share}  {describe_state(line)}", STATE_COLORS[line.state]
    )


async def _run_on(plane: ControlPlane, run: ManifestRun) -> RunOutcome:
    try:
        async with plane.running():
            return await run.run()
    except ExceptionGroup as group:
        error = first_error(group)
    raise error


@dataclass(frozen=True, slots=True)
class _Observation:
    """What is seen at a moment."""

    cluster: ClusterObjects
    jobs: Sequence[Job]
    lines: Sequence[WorkloadRow]

    def fingerprint(self) -> list[Any]:
        """By what two looks differ, if anything has moved."""
        return [(line.ref, line.state, line.started, line.ended) for line in self.lines]


class ManifestRun:
    """Files submitted in turns, and followed to their end."""

    def __init__(
        self,
        client: Client,
        batches: Sequence[Sequence[Manifest]],
        timeout: float,
        on_progress: ProgressCallback,
        *,
        has_processes: bool,
        logs: bool,
    ) -> None:
        self._client, self._batches, self._timeout, self._on_progress = (
            client,
            list(batches),
            timeout,
            on_progress,
        )
        self._has_processes, self._logs = has_processes, logs
        self._interruptions = InterruptionCounter()

    async def run(self) -> RunOutcome:
        """Submit and look until all have run, or nothing moves, or it is late."""
        time = asyncio.get_running_loop().time
        begin = changed = time()
        await create_objects(
            self._client, [one for turn in self._batches for one in _namespace_manifests(turn)]
        )
        await create_objects(self._client, self._batches.pop(0))
        before: list[Any] = []
        while True:
            look = await self._observe()
            if look.fingerprint() != before:
                before, changed = look.fingerprint(), time()
            is_late, is_quiet = time() - begin > self._timeout, time() - changed > QUIET_PERIOD
            if self._batches and _is_settled(look):
                await create_objects(self._client, self._batches.pop(0))
            elif self._is_complete(look) or is_late or (is_quiet and not self._will_end(look)):
                return await self._create_outcome(look, time() - begin, is_late)
            await asyncio.sleep(POLL_INTERVAL)

    async def _observe(self) -> _Observation:
        cluster, jobs = await read_cluster(self._client), (await self._client.list(JOB, Job)).items
        lines = list_workloads(cluster, include_all=True)
        self._on_progress(lines)
        self._interruptions.observe(cluster)
        return _Observation(cluster, jobs, lines)

    def _is_complete(self, look: _Observation) -> bool:
        """Whether all has run that is to run: nobody waits or is to end, and no Job goes on."""
        if not look.lines or self._batches or not all(map(_is_started, look.lines)):
            return False
        at_work = [pod for pod in look.cluster.pods if pod.occupied_node]
        makers = {ref.uid for pod in at_work for ref in pod.metadata.owner_references}
        goes_on = any(not job.is_finished and job.metadata.uid not in makers for job in look.jobs)
        return not goes_on and not self._will_end(look)

    def _will_end(self, look: _Observation) -> bool:
        """Whether somebody runs who ends by itself, or is on its way to."""
        at_work = [pod for pod in look.cluster.pods if pod.occupied_node]
        return any(self._has_processes or _terminates(pod) for pod in at_work)

    async def _create_outcome(
        self, look: _Observation, seconds: float, is_late: bool
    ) -> RunOutcome:
        if not look.lines and not look.jobs:
            raise ManifestRejected(
                "nothing in the files runs: no Job, PodGroup or Pod of it has pods"
            )
        nodes, domains = gang_placements(look.cluster)
        failed = await self._failed_jobs(look)
        written = await self._container_logs(list(look.cluster.pods)) if self._logs else {}
        return RunOutcome(
            look.lines, nodes, domains, seconds, is_late, self._interruptions, failed, written
        )  # fmt: skip

    async def _failed_jobs(self, look: _Observation) -> dict[str, str]:
        """Jobs that came to a bad end, or to no pods at all, each with the reason."""
        found: dict[str, str] = {}
        owners = {ref.uid for pod in look.cluster.pods for ref in pod.metadata.owner_references}
        for job in look.jobs:
            title, end = f"Job/{job.metadata.name}", job.true_condition(FAILED)
            if end:
                found[title] = f"failed, {end.reason}: {end.message}"
            elif job.spec.suspend:
                found[title] = "is suspended"
            elif not job.is_finished and job.metadata.uid not in owners:
                found[title] = f"has no pods: {await self._last_warning(job)}"
        return found

    async def _last_warning(self, job: Job) -> str:
        """What was last said against a Job."""
        about = f"involvedObject.uid={job.metadata.uid},type=Warning"
        events = (await self._client.list(EVENT, field_selector=about)).items
        said = [one.get("message", "") for one in events]
        return said[-1] if said else "no controller has spoken of it"

    async def _container_logs(self, pods: Sequence[Pod]) -> dict[str, list[str]]:
        """What the containers of pods have written, by pod or by pod and container."""
        found: dict[str, list[str]] = {}
        for pod in sorted(pods, key=lambda pod: pod.metadata.key):
            several = len(pod.spec.containers) > 1
            for one in pod.spec.containers:
                path = POD.url_path(*pod.metadata.key, "log")
                name = f"{pod.metadata.name} {one.name}" if several else pod.metadata.name
                with contextlib.suppress(ApiError):
                    text = await self._client.get_raw(path, {"container": one.name})
                    found[name] = text.decode(errors="replace").splitlines()
        return found


def _namespace_manifests(wanted: Sequence[Manifest]) -> list[Manifest]:
    """The namespaces that are named: a throw-away cluster has whatever is asked for."""
    names = dict.fromkeys(one.key.namespace for one in wanted if one.key.namespace)
    made = {"apiVersion": NAMESPACE.api_version, "kind": NAMESPACE.name}
    return [Manifest(NAMESPACE, {**made, "metadata": {"name": name}}) for name in names]


def _is_settled(look: _Observation) -> bool:
    """Whether all that was submitted runs, has run, or was told to wait."""
    if not look.lines or any(map(lacks_pods, look.jobs)):
        return False
    return all(_is_started(line) or _is_known_pending(line) for line in look.lines)


def _is_known_pending(line: WorkloadRow) -> bool:
    return (
        line.state in (WorkloadState.WAITING, WorkloadState.HELD) and line.reason != NOT_TRIED_YET
    )


def _is_started(line: WorkloadRow) -> bool:
    return line.state is WorkloadState.ENDED or (not line.pending and line.started == line.placed)


def _terminates(pod: Pod) -> bool:
    try:
        return stages_of(pod.metadata).run is not None
    except BadStages:
        return False
