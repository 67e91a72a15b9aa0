"""`phalanx check`: whether what must hold of a cluster holds, live or in a store. Only looks."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import uvloop

from phalanx.api.core import Pod
from phalanx.api.kinds import NODE, POD, POD_GROUP
from phalanx.api.scheduling import PodGroup
from phalanx.chance import TrueChance
from phalanx.cli import options
from phalanx.cli.connection import ask, server_options
from phalanx.cli.paper import JSON, TABLE, YAML, counted, output_option, structured
from phalanx.cli.subjects import seen
from phalanx.client.client import Client
from phalanx.clock import WallClock
from phalanx.control_plane import ControlPlane
from phalanx.crew import Staff
from phalanx.scheduler.asking.diagnosis import Cluster
from phalanx.sim.invariants import Auditor, check
from phalanx.sim.laws import GROUP_LAWS, POD_LAWS
from phalanx.sim.observer import Observer
from phalanx.store.backup import backup
from phalanx.store.errors import StoreRefused
from phalanx.store.folder import FILE
from phalanx.store.sqlite import SqliteStore

#: Seconds between two looks at a live cluster: what is wrong in both is no passing state.
AGAIN = 1.0
#: Seconds by which what a scheduler has seen may be late.
HORIZON = 5.0


@click.command()
@server_options
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=None,
    metavar="DIR",
    help="Judge the store in this folder instead, as it is; a control plane may use it.",
)
@click.option(
    "--watch",
    default=0.0,
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="Judge every change as well, for so long.",
)
@output_option(TABLE, JSON, YAML)
def command(
    config: Path | None, context: str, data: Path | None, watch: float, output: str
) -> None:  # fmt: skip
    """Check that no node is overfull, no gang placed by halves, and no object contradicts itself.

    With --watch also that nothing moves that must stay: bindings, ends, groups and their
    conditions. Nothing is changed.

    Exit code: 0 if all is well, 1 if not, with a sentence for everything that is wrong.

    \b
    Example:
      phalanx check
      phalanx check --watch 60
      phalanx check --data ~/.local/state/phalanx
    """
    if data is not None and (config or context or watch):
        raise click.UsageError("--data is about a store; leave --kubeconfig, --context and --watch")
    cluster, wrong = _stored(data) if data else ask(config, context, lambda c, _: live(c, watch))
    if output == TABLE:
        _tell(cluster, wrong)
    else:
        click.echo(structured({"wrong": wrong, **_counts(cluster)}, output))
    raise click.exceptions.Exit(1 if wrong else 0)


async def live(client: Client, seconds: float) -> tuple[Cluster, list[str]]:
    """What is wrong with a cluster in two looks, and with changes for so many seconds."""
    suspects = wrongs(await seen(client))
    broken = await _followed(client, seconds) if seconds else []
    if suspects:
        await asyncio.sleep(AGAIN)
    cluster = await seen(client)
    still = wrongs(cluster)
    return cluster, [*(one for one in suspects if one in still), *broken]


def wrongs(cluster: Cluster) -> list[str]:
    """What is wrong with one state of a cluster, in sentences."""
    groups = [group for group in cluster.groups if isinstance(group, PodGroup)]
    nodes = {node.metadata.name for node in cluster.nodes}
    return [
        *check(cluster.pods, cluster.nodes, groups),
        *_contradictions(cluster.pods, groups),
        *(
            f"pod {pod.metadata.key} is bound to node {pod.node}, which is not there"
            for pod in cluster.pods
            if pod.node and pod.node not in nodes and not pod.metadata.deletion_timestamp
        ),
    ]


def _contradictions(pods: Iterable[Pod], groups: Iterable[PodGroup]) -> list[str]:
    """Laws about changes, of no change at all: what an object says of itself must agree."""
    told = [(f"pod {pod.metadata.key}", law(pod, pod)) for pod in pods for law in POD_LAWS]
    told += [(f"group {one.metadata.key}", law(one, one)) for one in groups for law in GROUP_LAWS]
    return [f"{who} {sentence}" for who, sentence in told if sentence]


async def _followed(client: Client, seconds: float) -> list[str]:
    """What changes break, by the laws of the simulator."""
    observer, wrong = Observer(client, (POD, NODE, POD_GROUP)), list[str]()
    auditor = _auditor(observer, asyncio.get_running_loop())
    following = asyncio.create_task(observer.run())
    await asyncio.wait([following], timeout=AGAIN)
    # What was there from the beginning did not come about just now.
    auditor.audit()
    observer.settled.append(lambda _: wrong.extend(auditor.audit()))
    done, _ = await asyncio.wait([following], timeout=seconds)
    for task in done:
        task.result()
    following.cancel()
    return wrong


def _auditor(observer: Observer, loop: asyncio.AbstractEventLoop) -> Auditor:
    return Auditor(
        observer.pods, observer.nodes, observer.groups, now=loop.time, horizon=HORIZON
    )  # fmt: skip


def _stored(folder: Path) -> tuple[Cluster, list[str]]:
    """The same of a copy of a store: the store itself is only read."""
    with tempfile.TemporaryDirectory(prefix="phalanx-") as name:
        try:
            backup(folder, Path(name) / FILE)
            cluster = uvloop.run(_opened(Path(name)))
        except StoreRefused as error:
            raise click.ClickException(str(error)) from None
    return cluster, wrongs(cluster)


async def _opened(folder: Path) -> Cluster:
    plane = ControlPlane(
        SqliteStore(folder), WallClock(), TrueChance(), Staff(without=options.PARTS)
    )
    async with plane.running():
        return await seen(plane.client("phalanx"))


def _tell(cluster: Cluster, wrong: list[str]) -> None:
    for sentence in wrong:
        click.secho(sentence, fg="red")
    counts = _counts(cluster)
    what = ", ".join(counted(counts[f"{noun}s"], noun) for noun in ("node", "gang", "pod"))
    click.echo(
        f"{counted(len(wrong), 'thing')} wrong with {what}" if wrong else f"{what}: all well"
    )


def _counts(cluster: Cluster) -> dict[str, Any]:
    return {
        "nodes": len(list(cluster.nodes)), "gangs": len(list(cluster.groups)),
        "pods": len(list(cluster.pods)),
    }  # fmt: skip
