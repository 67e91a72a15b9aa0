"""`phalanx run -f FILES`: one shot on a throw-away control plane, with progress and a summary."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import click
import uvloop

from phalanx.api.batch import FAILED, Job
from phalanx.api.core import Pod
from phalanx.api.kinds import JOB, NAMESPACE
from phalanx.cli import options
from phalanx.cli.live import Line, Live
from phalanx.cli.manifests import Manifest, files_option, manifests
from phalanx.cli.overview import COLOURS
from phalanx.cli.paper import JSON, TABLE, YAML, bar, counted, output_option, structured
from phalanx.cli.sandbox import NAME, Refused, submit, whole
from phalanx.cli.subjects import seen
from phalanx.client.client import Client
from phalanx.controllers.nodes import SimulatedNode
from phalanx.controllers.stages import BadStages, stages_of
from phalanx.scheduler.diagnosis import Cluster
from phalanx.scheduler.entry import Id
from phalanx.scheduler.lineup import Lined, Standing, lineup
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
@click.option(
    "--nodes",
    default="3",
    show_default=True,
    metavar="FILE|N",
    help="Simulated nodes: how many, or a file that lists them.",
)
@click.option("--shape", default="", metavar="cpu=8,memory=32Gi", help="What each node has.")
@click.option(
    "--topology", default="", metavar="block=2,rack=4", help="How nodes are spread over domains."
)
@click.option(
    "--timeout",
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    help="How long it may take.",
)
@output_option(TABLE, JSON, YAML)
def command(
    files: tuple[str, ...], namespace: str, nodes: str, shape: str, topology: str, timeout: float,
    output: str,
) -> None:  # fmt: skip
    """Run manifests once on a throw-away control plane with simulated nodes, and say how it went.

    Pods live as their annotations phalanx.dev/run-seconds and phalanx.dev/stages say; one that says
    nothing has run as soon as it runs. Ends early when nothing moves any more. Nothing is kept.

    Exit code: 0 if all gangs ran and no Job failed, 1 if not.

    \b
    Example:
      phalanx run -f job.yaml --nodes 16 --shape cpu=8,nvidia.com/gpu=8
    """
    wanted = manifests(files, namespace)
    machines = options.nodes(nodes, options.shape(shape), options.topology(topology))
    out = sys.stdout if output == TABLE else sys.stderr
    tell = Drawn(out) if out.isatty() else Printed(out)
    try:
        end = uvloop.run(_run(machines, wanted, timeout, tell))
    except Refused as error:
        raise click.ClickException(str(error)) from None
    click.echo(_summary(end) if output == TABLE else structured(_data(end), output))
    raise click.exceptions.Exit(0 if end.is_well else 1)


@dataclass(frozen=True, slots=True)
class End:
    """How it went."""

    lines: Sequence[Lined]
    seconds: float
    is_late: bool
    #: Jobs that came to a bad end, each with its reason.
    failed: Mapping[str, str]

    @property
    def is_well(self) -> bool:
        """Whether all ran."""
        return all(line.has_run for line in self.lines) and not self.is_late and not self.failed


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


def state(line: Lined) -> str:
    """How it is about a gang, in a few words."""
    members = f"{line.started + line.ended}/{line.members}"
    match line.standing:
        case Standing.ENDED:
            failed = f", {line.failed} failed" if line.failed else ""
            return f"ended {members}{failed}"
        case Standing.RUNNING:
            return f"running {members} on {counted(len(line.nodes), 'node')}"
        case _:
            return f"{line.standing.value} {members}: {line.message}"


async def _run(
    machines: Sequence[SimulatedNode], wanted: Sequence[Manifest], seconds: float, tell: Tell
) -> End:
    try:
        plane = whole(machines)
        async with plane.running():
            client = plane.client(NAME)
            await submit(client, [*_namespaces(wanted), *wanted])
            return await _followed(client, seconds, tell)
    except ExceptionGroup as group:
        error = first(group)
    raise error


def _namespaces(wanted: Sequence[Manifest]) -> list[Manifest]:
    """The namespaces that are named: a throw-away cluster has whatever is asked for."""
    names = dict.fromkeys(one.key.namespace for one in wanted if one.key.namespace)
    made = {"apiVersion": NAMESPACE.api_version, "kind": NAMESPACE.name}
    return [Manifest(NAMESPACE, {**made, "metadata": {"name": name}}) for name in names]


async def _followed(client: Client, limit: float, tell: Tell) -> End:
    """Look until all have run, or nothing moves, or it is late."""
    time = asyncio.get_running_loop().time
    begin = changed = time()
    before: list[Any] = []
    while True:
        cluster, jobs = await seen(client), (await client.list(JOB, Job)).items
        lines = lineup(cluster, everybody=True)
        tell(lines)
        now = [(line.id, line.standing, line.started, line.ended) for line in lines]
        if now != before:
            before, changed = now, time()
        is_late, is_quiet = time() - begin > limit, time() - changed > QUIET
        if _is_over(cluster, jobs, lines) or is_late or (is_quiet and not _will_end(cluster)):
            if not lines:
                raise Refused("nothing in the files runs: no Job, PodGroup or Pod of it has pods")
            return End(lines, time() - begin, is_late, _failed(jobs))
        await asyncio.sleep(LOOK)


def _failed(jobs: Sequence[Job]) -> dict[str, str]:
    said = {f"Job/{job.metadata.name}": job.said(FAILED) for job in jobs}
    return {name: f"failed, {one.reason}: {one.message}" for name, one in said.items() if one}


def _is_over(cluster: Cluster, jobs: Sequence[Job], lines: Sequence[Lined]) -> bool:
    """Whether all has run that is to run: nobody waits or is to end, and no Job goes on."""
    if not lines or not all(_is_through(line) for line in lines) or _will_end(cluster):
        return False
    makers = {ref.uid for pod in cluster.pods if pod.node for ref in pod.metadata.owner_references}
    return all(job.ended or job.metadata.uid in makers for job in jobs)


def _is_through(line: Lined) -> bool:
    return line.standing is Standing.ENDED or (not line.pending and line.started == line.placed)


def _will_end(cluster: Cluster) -> bool:
    """Whether somebody runs who ends by itself, or is on its way to."""
    return any(pod.node and _has_end(pod) for pod in cluster.pods)


def _has_end(pod: Pod) -> bool:
    try:
        return stages_of(pod.metadata).run is not None
    except BadStages:
        return False


def _summary(end: End) -> str:
    idle = [line for line in end.lines if not line.has_run]
    ran = counted(len(end.lines) - len(idle), "gang")
    text = f"{ran} ran, {len(idle)} did not, in {end.seconds:.1f} s"
    told = [f"  {line.title}: {line.message or state(line)}" for line in idle]
    told += [f"  {name} {why}" for name, why in end.failed.items()]
    late = ["  it took too long; give it more with --timeout"] if end.is_late else []
    return "\n".join([text, *told, *late])


def _data(end: End) -> dict[str, Any]:
    return {
        "ran": end.is_well, "seconds": round(end.seconds, 3), "timedOut": end.is_late,
        "failedJobs": dict(end.failed),
        "items": [
            {"kind": line.kind, "namespace": line.id.key.namespace, "name": line.id.key.name,
             "owner": line.owner, "state": line.standing.value, "ran": line.has_run,
             "members": line.members, "started": line.started, "ended": line.ended,
             "failed": line.failed, "nodes": list(line.nodes), "reason": line.reason,
             "message": line.message}
            for line in end.lines
        ],
    }  # fmt: skip
