"""`phalanx run -f FILES`: one shot on a throw-away control plane, with progress and a summary."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import click
import uvloop

from phalanx.api.batch import FAILED, Job
from phalanx.api.core import Pod
from phalanx.api.errors import ApiError
from phalanx.api.kinds import EVENT, JOB, NAMESPACE, POD
from phalanx.cli import options
from phalanx.cli.live import Line, Live
from phalanx.cli.manifests import Manifest, batches, files_option
from phalanx.cli.nodes import LOOPBACK, check_processes, node_options, process_host, sorted_out
from phalanx.cli.outcome import End, Setbacks, data, places, state, summary
from phalanx.cli.overview import COLOURS
from phalanx.cli.paper import JSON, TABLE, YAML, bar, output_option, structured
from phalanx.cli.sandbox import NAME, Refused, lacks_pods, submit, whole
from phalanx.cli.subjects import seen
from phalanx.client.client import Client
from phalanx.control_plane import ControlPlane
from phalanx.controllers.nodes.stages import BadStages, stages_of
from phalanx.scheduler.asking.diagnosis import Cluster
from phalanx.scheduler.asking.lineup import NEW, Lined, Standing, lineup
from phalanx.scheduler.queueing.entry import Id
from phalanx.sim.run import first

#: Seconds between two looks, and without any change after which nothing more is expected.
LOOK, QUIET = 0.1, 2.0
Tell = Callable[[Sequence[Lined]], None]


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
    wanted = batches(files, namespace)
    machines = options.nodes(nodes, options.shape(shape), options.topology(topology))
    rules = options.stage_rules(stages)
    check_processes(processes, programs, LOOPBACK[0])
    tell = Drawn(sys.stderr) if sys.stderr.isatty() else Printed(sys.stderr)
    with process_host(processes, programs) as host:
        plane = whole(sorted_out(machines, host), rules, host)
        turns = wanted if in_turn else [[one for batch in wanted for one in batch]]
        run = Run(plane.client(NAME), turns, timeout, tell, has_processes=processes, logs=logs)
        try:
            end = uvloop.run(_run(plane, run))
        except Refused as error:
            raise click.ClickException(str(error)) from None
    click.echo(summary(end) if output == TABLE else structured(data(end), output))
    raise click.exceptions.Exit(0 if end.is_well else 1)


class Drawn:
    """Progress on a terminal: a bar for each gang."""

    def __init__(self, out: TextIO) -> None:
        self._live = Live(out)

    def __call__(self, lines: Sequence[Lined]) -> None:
        """Draw it anew."""
        width = max((len(line.title) for line in lines), default=0)
        self._live.draw([progress(line, width) for line in lines])


class Printed:
    """Progress elsewhere: a line whenever something has changed."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._said: dict[Id, str] = {}

    def __call__(self, lines: Sequence[Lined]) -> None:
        """Print what is new."""
        for line in lines:
            text = f"{line.title}: {state(line)}"
            if self._said.get(line.id) != text:
                self._said[line.id] = text
                self._out.write(f"{text}\n")
        self._out.flush()


def progress(line: Lined, width: int) -> Line:
    """One gang as a bar: what has started or ended of it, of all."""
    share = bar(line.started + line.ended, line.members)
    return Line(f"{line.title.ljust(width)}  {share}  {state(line)}", COLOURS[line.standing])


async def _run(plane: ControlPlane, run: Run) -> End:
    try:
        async with plane.running():
            return await run.followed()
    except ExceptionGroup as group:
        error = first(group)
    raise error


@dataclass(frozen=True, slots=True)
class _Look:
    """What is seen at a moment."""

    cluster: Cluster
    jobs: Sequence[Job]
    lines: Sequence[Lined]

    def marks(self) -> list[Any]:
        """By what two looks differ, if anything has moved."""
        return [(line.id, line.standing, line.started, line.ended) for line in self.lines]


class Run:
    """Files submitted in turns, and followed to their end."""

    def __init__(
        self, client: Client, turns: Sequence[Sequence[Manifest]], limit: float, tell: Tell,
        *, has_processes: bool, logs: bool,
    ) -> None:  # fmt: skip
        self._client, self._turns, self._limit, self._tell = client, list(turns), limit, tell
        self._has_processes, self._logs = has_processes, logs
        self._setbacks = Setbacks()

    async def followed(self) -> End:
        """Submit and look until all have run, or nothing moves, or it is late."""
        time = asyncio.get_running_loop().time
        begin = changed = time()
        await submit(self._client, [one for turn in self._turns for one in _namespaces(turn)])
        await submit(self._client, self._turns.pop(0))
        before: list[Any] = []
        while True:
            look = await self._look()
            if look.marks() != before:
                before, changed = look.marks(), time()
            is_late, is_quiet = time() - begin > self._limit, time() - changed > QUIET
            if self._turns and _is_settled(look):
                await submit(self._client, self._turns.pop(0))
            elif self._is_over(look) or is_late or (is_quiet and not self._will_end(look)):
                return await self._end(look, time() - begin, is_late)
            await asyncio.sleep(LOOK)

    async def _look(self) -> _Look:
        cluster, jobs = await seen(self._client), (await self._client.list(JOB, Job)).items
        lines = lineup(cluster, everybody=True)
        self._tell(lines)
        self._setbacks.look(cluster)
        return _Look(cluster, jobs, lines)

    def _is_over(self, look: _Look) -> bool:
        """Whether all has run that is to run: nobody waits or is to end, and no Job goes on."""
        if not look.lines or self._turns or not all(map(_is_through, look.lines)):
            return False
        at_work = [pod for pod in look.cluster.pods if pod.node]
        makers = {ref.uid for pod in at_work for ref in pod.metadata.owner_references}
        goes_on = any(not job.ended and job.metadata.uid not in makers for job in look.jobs)
        return not goes_on and not self._will_end(look)

    def _will_end(self, look: _Look) -> bool:
        """Whether somebody runs who ends by itself, or is on its way to."""
        at_work = [pod for pod in look.cluster.pods if pod.node]
        return any(self._has_processes or _has_end(pod) for pod in at_work)

    async def _end(self, look: _Look, seconds: float, is_late: bool) -> End:
        if not look.lines and not look.jobs:
            raise Refused("nothing in the files runs: no Job, PodGroup or Pod of it has pods")
        nodes, domains = places(look.cluster)
        failed = await self._failed(look)
        written = await self._written(list(look.cluster.pods)) if self._logs else {}
        return End(
            look.lines, nodes, domains, seconds, is_late, self._setbacks, failed, written
        )  # fmt: skip

    async def _failed(self, look: _Look) -> dict[str, str]:
        """Jobs that came to a bad end, or to no pods at all, each with the reason."""
        found: dict[str, str] = {}
        owners = {ref.uid for pod in look.cluster.pods for ref in pod.metadata.owner_references}
        for job in look.jobs:
            title, end = f"Job/{job.metadata.name}", job.said(FAILED)
            if end:
                found[title] = f"failed, {end.reason}: {end.message}"
            elif job.spec.suspend:
                found[title] = "is suspended"
            elif not job.ended and job.metadata.uid not in owners:
                found[title] = f"has no pods: {await self._complaint(job)}"
        return found

    async def _complaint(self, job: Job) -> str:
        """What was last said against a Job."""
        about = f"involvedObject.uid={job.metadata.uid},type=Warning"
        events = (await self._client.list(EVENT, field_selector=about)).items
        said = [one.get("message", "") for one in events]
        return said[-1] if said else "no controller has spoken of it"

    async def _written(self, pods: Sequence[Pod]) -> dict[str, list[str]]:
        """What the containers of pods have written, by pod or by pod and container."""
        found: dict[str, list[str]] = {}
        for pod in sorted(pods, key=lambda pod: pod.metadata.key):
            several = len(pod.spec.containers) > 1
            for one in pod.spec.containers:
                path = POD.path(*pod.metadata.key, "log")
                name = f"{pod.metadata.name} {one.name}" if several else pod.metadata.name
                with contextlib.suppress(ApiError):
                    text = await self._client.get_raw(path, {"container": one.name})
                    found[name] = text.decode(errors="replace").splitlines()
        return found


def _namespaces(wanted: Sequence[Manifest]) -> list[Manifest]:
    """The namespaces that are named: a throw-away cluster has whatever is asked for."""
    names = dict.fromkeys(one.key.namespace for one in wanted if one.key.namespace)
    made = {"apiVersion": NAMESPACE.api_version, "kind": NAMESPACE.name}
    return [Manifest(NAMESPACE, {**made, "metadata": {"name": name}}) for name in names]


def _is_settled(look: _Look) -> bool:
    """Whether all that was submitted runs, has run, or was told to wait."""
    if not look.lines or any(map(lacks_pods, look.jobs)):
        return False
    return all(_is_through(line) or _is_told(line) for line in look.lines)


def _is_told(line: Lined) -> bool:
    return line.standing in (Standing.WAITING, Standing.HELD) and line.reason != NEW


def _is_through(line: Lined) -> bool:
    return line.standing is Standing.ENDED or (not line.pending and line.started == line.placed)


def _has_end(pod: Pod) -> bool:
    try:
        return stages_of(pod.metadata).run is not None
    except BadStages:
        return False
