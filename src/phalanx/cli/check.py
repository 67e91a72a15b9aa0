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
from phalanx.cli import options
from phalanx.cli.cluster_queries import read_cluster
from phalanx.cli.connection import query_cluster, server_options
from phalanx.cli.output import JSON, TABLE, YAML, format_structured, output_option, pluralize
from phalanx.client.client import Client
from phalanx.clock import WallClock
from phalanx.components import ComponentConfig
from phalanx.control_plane import ControlPlane
from phalanx.randomness import SystemRandom
from phalanx.scheduler.queue.cluster_objects import ClusterObjects
from phalanx.sim.invariants import GROUP_INVARIANTS, POD_INVARIANTS, InvariantAuditor, check_cluster
from phalanx.sim.observer import ApiObserver
from phalanx.store.backup import backup
from phalanx.store.database_file import DATABASE_FILE
from phalanx.store.errors import StoreUnusable
from phalanx.store.sqlite import SqliteStore

#: Seconds between two looks at a live cluster: what is wrong in both is no passing state.
RECHECK_INTERVAL = 1.0
#: Seconds by which what a scheduler has seen may be late.
MAX_VIEW_LAG = 5.0


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
    cluster, wrong = (
        _check_store(data)
        if data
        else query_cluster(config, context, lambda c, _: check_live(c, watch))
    )
    if output == TABLE:
        _print_result(cluster, wrong)
    else:
        click.echo(format_structured({"wrong": wrong, **_object_counts(cluster)}, output))
    raise click.exceptions.Exit(1 if wrong else 0)


async def check_live(client: Client, seconds: float) -> tuple[ClusterObjects, list[str]]:
    """What is wrong with a cluster in two looks, and with changes for so many seconds."""
    suspects = find_violations(await read_cluster(client))
    broken = await _watch_violations(client, seconds) if seconds else []
    if suspects:
        await asyncio.sleep(RECHECK_INTERVAL)
    cluster = await read_cluster(client)
    still = find_violations(cluster)
    return cluster, [*(one for one in suspects if one in still), *broken]


def find_violations(cluster: ClusterObjects) -> list[str]:
    """What is wrong with one state of a cluster, in sentences."""
    groups = [group for group in cluster.groups if isinstance(group, PodGroup)]
    nodes = {node.metadata.name for node in cluster.nodes}
    return [
        *check_cluster(cluster.pods, cluster.nodes, groups),
        *_inconsistent_objects(cluster.pods, groups),
        *(
            f"pod {pod.metadata.key} is bound to node {pod.occupied_node}, which is not there"
            for pod in cluster.pods
            if pod.occupied_node
            and pod.occupied_node not in nodes
            and not pod.metadata.deletion_timestamp
        ),
    ]


def _inconsistent_objects(pods: Iterable[Pod], groups: Iterable[PodGroup]) -> list[str]:
    """Laws about changes, of no change at all: what an object says of itself must agree."""
    told = [(f"pod {pod.metadata.key}", law(pod, pod)) for pod in pods for law in POD_INVARIANTS]
    told += [
        (f"group {one.metadata.key}", law(one, one)) for one in groups for law in GROUP_INVARIANTS
    ]
    return [f"{who} {sentence}" for who, sentence in told if sentence]


async def _watch_violations(client: Client, seconds: float) -> list[str]:
    """What changes break, by the laws of the simulator."""
    observer, wrong = ApiObserver(client, (POD, NODE, POD_GROUP)), list[str]()
    auditor = _create_auditor(observer, asyncio.get_running_loop())
    following = asyncio.create_task(observer.run())
    await asyncio.wait([following], timeout=RECHECK_INTERVAL)
    # What was there from the beginning did not come about just now.
    auditor.audit()
    observer.on_batch.append(lambda _: wrong.extend(auditor.audit()))
    done, _ = await asyncio.wait([following], timeout=seconds)
    for task in done:
        task.result()
    following.cancel()
    return wrong


def _create_auditor(observer: ApiObserver, loop: asyncio.AbstractEventLoop) -> InvariantAuditor:
    return InvariantAuditor(
        observer.pods, observer.nodes, observer.groups, now=loop.time, horizon=MAX_VIEW_LAG
    )  # fmt: skip


def _check_store(folder: Path) -> tuple[ClusterObjects, list[str]]:
    """The same of a copy of a store: the store itself is only read."""
    with tempfile.TemporaryDirectory(prefix="phalanx-") as name:
        try:
            backup(folder, Path(name) / DATABASE_FILE)
            cluster = uvloop.run(_read_store(Path(name)))
        except StoreUnusable as error:
            raise click.ClickException(str(error)) from None
    return cluster, find_violations(cluster)


async def _read_store(folder: Path) -> ClusterObjects:
    plane = ControlPlane(
        SqliteStore(folder),
        WallClock(),
        SystemRandom(),
        ComponentConfig(without=options.COMPONENTS),
    )
    async with plane.running():
        return await read_cluster(plane.client("phalanx"))


def _print_result(cluster: ClusterObjects, wrong: list[str]) -> None:
    for sentence in wrong:
        click.secho(sentence, fg="red")
    counts = _object_counts(cluster)
    what = ", ".join(pluralize(counts[f"{noun}s"], noun) for noun in ("node", "gang", "pod"))
    click.echo(
        f"{pluralize(len(wrong), 'thing')} wrong with {what}" if wrong else f"{what}: all well"
    )


def _object_counts(cluster: ClusterObjects) -> dict[str, Any]:
    return {
        "nodes": len(list(cluster.nodes)), "gangs": len(list(cluster.groups)),
        "pods": len(list(cluster.pods)),
    }  # fmt: skip
