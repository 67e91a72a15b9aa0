"""`phalanx check`: verify the invariants of a live cluster or of a store. Changes nothing.

The invariants are those of the simulator (`phalanx.sim.invariants`): no node is over its
allocatable resources, a gang is placed as a whole, an object does not contradict itself. In a live
cluster also that every node has a kubelet, without which its pods would never start.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import uvloop

from phalanx.api.core import Pod
from phalanx.api.errors import Forbidden, NotFound
from phalanx.api.kinds import LEASE, NODE, POD, POD_GROUP
from phalanx.api.meta import parse_timestamp
from phalanx.api.other_kinds import Lease
from phalanx.api.scheduling import PodGroup
from phalanx.cli import options
from phalanx.cli.cluster_queries import Visibility, read_cluster, read_visible_cluster
from phalanx.cli.connection import cluster_options, query_cluster
from phalanx.cli.output import (
    JSON,
    TABLE,
    YAML,
    echo,
    format_structured,
    join_names,
    output_option,
    pluralize,
)
from phalanx.client.client import Client
from phalanx.clock import WallClock
from phalanx.components import ComponentConfig
from phalanx.control_plane import ControlPlane
from phalanx.controllers.nodes.node_heartbeats import LEASE_NAMESPACE, LEASE_SECONDS
from phalanx.randomness import SystemRandom
from phalanx.scheduler.queue.scheduler_state import ClusterObjects
from phalanx.sim.invariants import GROUP_INVARIANTS, POD_INVARIANTS, InvariantAuditor, check_cluster
from phalanx.sim.simulation import first_error
from phalanx.sim.timeline import ApiObserver
from phalanx.store.backup import backup
from phalanx.store.database_file import DATABASE_FILE
from phalanx.store.kv import StoreUnusable
from phalanx.store.sqlite import SqliteStore

#: Seconds between two reads of a live cluster: a violation counts if both reads show it.
RECHECK_INTERVAL = 1.0
#: Seconds in which every kubelet renews its Lease at least once.
RENEWAL_TIMEOUT = 12.0
#: Pods that a line names.
_MAX_PODS = 5
#: Seconds by which the scheduler's view of the cluster may be late.
MAX_VIEW_LAG = 5.0


@click.command()
@cluster_options
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=None,
    metavar="DIR",
    help="Check the store in this data directory instead; a control plane may be using it.",
)
@click.option(
    "--watch",
    default=0.0,
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="Also check every change for this long.",
)
@output_option(TABLE, JSON, YAML)
def check_command(
    *,
    namespace: str,
    config: Path | None,
    context: str,
    data: Path | None,
    watch: float,
    output: str,
) -> None:
    """Verify cluster invariants: no node is over its allocatable resources or without a kubelet, no
    gang is placed in part, and no object contradicts itself.

    With --watch also that bindings, ended pods, groups and their conditions do not change in ways
    that they must not. With a credential for one namespace only the gangs and pods of -n, or of the
    context's namespace, are checked. Changes nothing.

    Exit code: 0 if all invariants hold, 1 if not, with one line for each violation.

    \b
    Example:
      phalanx check
      phalanx check --watch 60
      phalanx check --data ~/.local/state/phalanx
    """
    if data is not None and (config or context or watch):
        raise click.UsageError(
            "--data checks a store; leave out --kubeconfig, --context and --watch"
        )
    if data is not None:
        (cluster, violations), visibility = _check_store(data), Visibility()
    else:
        cluster, violations, visibility = query_cluster(
            config, context, lambda client, space: check_live(client, watch, namespace or space)
        )
    counts: dict[str, Any] = {
        "nodes": len(list(cluster.nodes)),
        "gangs": len(list(cluster.groups)),
        "pods": len(list(cluster.pods)),
    }
    if visibility.note:
        echo(f"Warning: {visibility.note}; nodes are not checked", err=True)
    if output == TABLE:
        for violation in violations:
            echo(violation, colour="red")
        objects = ", ".join(pluralize(counts[f"{noun}s"], noun) for noun in ("node", "gang", "pod"))
        result = pluralize(len(violations), "violation") if violations else "all invariants hold"
        echo(f"{objects}: {result}")
    else:
        note = {"note": visibility.note} if visibility.note else {}
        echo(format_structured({"wrong": violations, **counts, **note}, output))
    raise click.exceptions.Exit(1 if violations else 0)


async def check_live(
    client: Client, seconds: float, namespace: str = "default"
) -> tuple[ClusterObjects, list[str], Visibility]:
    """Return the cluster, its violations, and which part of it was checked.

    The violations are those of two reads, and those of watched changes.
    """
    cluster, visibility = await read_visible_cluster(client, namespace)
    suspects = find_violations(cluster, visibility)
    if seconds and not visibility.is_whole:
        raise click.ClickException(
            "--watch needs the rights to watch pods, nodes and podgroups of all namespaces"
        )
    broken = await _watch_violations(client, seconds) if seconds else []
    if suspects:
        await asyncio.sleep(RECHECK_INTERVAL)
    silent = await _wait_for_kubelets(client) if visibility.is_whole else []
    cluster, visibility = await read_visible_cluster(client, namespace)
    remaining = find_violations(cluster, visibility)
    kept = [violation for violation in suspects if violation in remaining]
    return cluster, [*kept, *silent, *broken], visibility


async def _wait_for_kubelets(client: Client) -> list[str]:
    """Give all kubelets the time to renew their Lease; return the nodes without a kubelet.

    Right after the start of a control plane its Leases are as old as its stop.
    """
    deadline = asyncio.get_running_loop().time() + RENEWAL_TIMEOUT
    while True:
        try:
            leases = (await client.list(LEASE, Lease, namespace=LEASE_NAMESPACE)).items
        except (NotFound, Forbidden):
            return []
        cluster = await read_cluster(client)
        silent = find_nodes_without_kubelet(cluster, leases, WallClock().now())
        if not silent or asyncio.get_running_loop().time() > deadline:
            return silent
        await asyncio.sleep(RECHECK_INTERVAL)


def find_nodes_without_kubelet(
    cluster: ClusterObjects, leases: Iterable[Lease], now: float
) -> list[str]:
    """Return a sentence for each node whose kubelet does not renew its Lease, with its pods."""
    renewed = {lease.metadata.name: lease.spec.renew_time for lease in leases}
    violations = []
    for node in cluster.nodes:
        name, meta = node.metadata.name, node.metadata
        # A new node has no Lease yet.
        sign_of_life = renewed.get(name) or meta.creation_timestamp
        if not sign_of_life or now - parse_timestamp(sign_of_life) <= LEASE_SECONDS:
            continue
        pods = [str(pod.metadata.key) for pod in cluster.pods if pod.occupied_node == name]
        hanging = f" ({join_names(pods, _MAX_PODS)})" if pods else ""
        violations.append(f"node {name} has no kubelet: its pods cannot run{hanging}")
    return violations


def find_violations(cluster: ClusterObjects, visibility: Visibility | None = None) -> list[str]:
    """Return the violations of one state of a cluster, one sentence each.

    Of a part of a cluster the nodes are not checked.
    """
    groups = [group for group in cluster.groups if isinstance(group, PodGroup)]
    if visibility is not None and not visibility.is_whole:
        found = check_cluster(cluster.pods, (), groups)
        return [*found, *_inconsistent_objects(cluster.pods, groups)]
    nodes = {node.metadata.name for node in cluster.nodes}
    return [
        *check_cluster(cluster.pods, cluster.nodes, groups),
        *_inconsistent_objects(cluster.pods, groups),
        *(
            f"pod {pod.metadata.key} is bound to node {pod.occupied_node}, which does not exist"
            for pod in cluster.pods
            if pod.occupied_node
            and pod.occupied_node not in nodes
            and not pod.metadata.deletion_timestamp
        ),
    ]


def _inconsistent_objects(pods: Iterable[Pod], groups: Iterable[PodGroup]) -> list[str]:
    """Apply the invariants about changes to no change: an object must agree with itself."""
    checked = [
        (f"pod {pod.metadata.key}", invariant(pod, pod))
        for pod in pods
        for invariant in POD_INVARIANTS
    ]
    checked += [
        (f"group {group.metadata.key}", invariant(group, group))
        for group in groups
        for invariant in GROUP_INVARIANTS
    ]
    return [f"{name} {violation}" for name, violation in checked if violation]


async def _watch_violations(client: Client, seconds: float) -> list[str]:
    """Watch the cluster and return the invariants that its changes violate."""
    observer, violations = ApiObserver(client, (POD, NODE, POD_GROUP)), list[str]()
    auditor = InvariantAuditor(
        observer.pods,
        observer.nodes,
        observer.groups,
        now=asyncio.get_running_loop().time,
        horizon=MAX_VIEW_LAG,
    )
    following = asyncio.create_task(observer.run())
    await asyncio.wait([following], timeout=RECHECK_INTERVAL)
    # The initial state is no change: discard what the auditor finds in it.
    auditor.audit()
    observer.on_batch.append(lambda _: violations.extend(auditor.audit()))
    done, _ = await asyncio.wait([following], timeout=seconds)
    for task in done:
        if error := task.exception():
            raise first_error(error)
    following.cancel()
    return violations


def _check_store(folder: Path) -> tuple[ClusterObjects, list[str]]:
    """Check a copy of a store; the store itself is only read."""
    with tempfile.TemporaryDirectory(prefix="phalanx-") as name:
        try:
            backup(folder, Path(name) / DATABASE_FILE)
            cluster = uvloop.run(_read_store(Path(name)))
        except StoreUnusable as error:
            raise click.ClickException(str(error)) from None
    return cluster, find_violations(cluster)


async def _read_store(folder: Path) -> ClusterObjects:
    config = ComponentConfig(without=options.COMPONENTS)
    plane = ControlPlane(SqliteStore(folder), WallClock(), SystemRandom(), config=config)
    async with plane.running():
        return await read_cluster(plane.client("phalanx"))
