"""`phalanx clusters`, `status` and `delete`: the clusters of `phalanx up --name` of this user.

`clusters` and `delete` read the data directories only; `status` also asks the API server of a
running cluster.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from phalanx.api.core import DEFAULT_SCHEDULER, Node
from phalanx.api.errors import NotFound
from phalanx.api.kinds import LEASE, NODE
from phalanx.api.meta import Key, find_condition
from phalanx.cli.background import (
    RunningProcess,
    StillRunning,
    cluster_kubeconfig,
    find_running,
    stop,
)
from phalanx.cli.cluster_state import (
    DATA_FILES,
    DEFAULT_CLUSTER,
    KEY_FILE,
    ClusterRecord,
    cluster_argument,
    cluster_folder,
    context_name,
    list_clusters,
    load_record,
    resolve_folder,
)
from phalanx.cli.connection import query_cluster
from phalanx.cli.output import (
    EMPTY_CELL,
    JSON,
    TABLE,
    TEXT,
    WIDE,
    YAML,
    align_columns,
    echo,
    format_structured,
    output_option,
    pluralize,
)
from phalanx.cli.scheduler_status import find_scheduler_outage
from phalanx.cli.user_kubeconfig import USER_KUBECONFIG, remove_cluster
from phalanx.client.client import Client
from phalanx.client.kubeconfig import KubeconfigError
from phalanx.clock import WallClock
from phalanx.controllers.controller_manager import LEASE_NAME as CONTROLLERS_LEASE

#: Exit code of `phalanx status` for a cluster that does not run, as that of service managers.
NOT_RUNNING = 3
#: The Leases that the leader of a component holds which runs beside `phalanx up --without`.
_LEASE_NAMESPACE = "kube-system"
_LEASES = {
    "scheduler": (DEFAULT_SCHEDULER, "kube-scheduler"),
    "controllers": (CONTROLLERS_LEASE,),
}
_HEADER = ("NAME", "STATE", "URL", "NODES", "DATA")
_WIDE_HEADER = ("PROCESS", "KUBECONFIG", "DIRECTORY")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """A cluster as its data directory shows it; `name` is "" for a directory without a name."""

    name: str
    folder: Path
    running: RunningProcess | None
    record: ClusterRecord

    @classmethod
    def read(cls, name: str, folder: Path) -> LocalCluster:
        """Read the state of a data directory."""
        return cls(name, folder, find_running(folder), load_record(folder))

    @property
    def state(self) -> str:
        """Return `running`, `starting` or `stopped`."""
        if self.running is None:
            return "stopped"
        return "running" if self.running.url else "starting"

    @property
    def data_bytes(self) -> int:
        """Return the size of all files of the control plane."""
        size = 0
        for file in data_files(self.folder):
            # A control plane that stops removes files meanwhile.
            with suppress(FileNotFoundError):
                size += file.stat().st_size
        return size

    def data(self) -> dict[str, Any]:
        """Return the cluster as data for JSON and YAML."""
        is_in_memory = self.running is not None and self.running.has_objects_in_memory
        return {
            "name": self.name or None,
            "state": self.state,
            "url": self.running.url if self.running else None,
            # A control plane in memory leaves no record.
            "nodes": None if is_in_memory else len(self.record.nodes),
            "store": "memory" if is_in_memory else "sqlite",
            "dataBytes": self.data_bytes,
            "process": self.running.pid if self.running else None,
            "kubeconfig": str(cluster_kubeconfig(self.folder)),
            "directory": str(self.folder),
            "options": self.record.options,
        }


def data_files(folder: Path) -> list[Path]:
    """Return the files of a control plane in its data directory; other files are not ours."""
    found = {file for pattern in DATA_FILES for file in folder.glob(pattern) if file.is_file()}
    return sorted(found)


def format_bytes(size: float) -> str:
    """Format a size with a binary unit: `1.5 MiB`."""
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


@click.command()
@output_option(TABLE, WIDE, JSON, YAML)
def clusters_command(output: str) -> None:
    """List the clusters of phalanx up, whether they run or not.

    NODES counts the nodes that phalanx up itself runs. DATA is the size of the files, or
    `in memory` for a cluster that keeps its objects until it stops.

    \b
    Example:
      phalanx clusters
      phalanx clusters -o wide
    """
    found = [LocalCluster.read(name, cluster_folder(name)) for name in list_clusters()]
    if output in (JSON, YAML):
        echo(format_structured({"items": [cluster.data() for cluster in found]}, output))
        return
    if not found:
        echo("There is no cluster; create one with phalanx up.", err=True)
        return
    wide = output == WIDE
    rows: list[Sequence[str]] = [(*_HEADER, *_WIDE_HEADER) if wide else _HEADER]
    for cluster in found:
        facts = cluster.data()
        cells = [facts[key] for key in ("name", "state", "url", "nodes")]
        cells.append(_describe_data(facts))
        if wide:
            cells += [facts[key] for key in ("process", "kubeconfig", "directory")]
        rows.append([EMPTY_CELL if cell is None else str(cell) for cell in cells])
    for line in align_columns(rows):
        echo(line)


@click.command()
@cluster_argument
@output_option(TEXT, JSON, YAML)
def status_command(name: str, data: Path | None, output: str) -> None:
    """Show whether a cluster runs: URL, kubeconfig, components, nodes and versions.

    Exit code: 0 if it runs, 3 if it does not, 1 if it does not answer or does not exist.

    \b
    Example:
      phalanx status
      phalanx status tutorial -o json
    """
    folder = resolve_folder(name, data, must_exist=True)
    cluster = LocalCluster.read("" if data else name or DEFAULT_CLUSTER, folder)
    facts = cluster.data()
    if cluster.state == "running":
        facts |= query_cluster(
            cluster_kubeconfig(folder), "", lambda client, _: _read_status(client, cluster.record)
        )
    if output == TEXT:
        for line in align_columns(list(_status_rows(facts))):
            echo(line)
    else:
        echo(format_structured(facts, output))
    raise click.exceptions.Exit(0 if cluster.state == "running" else NOT_RUNNING)


async def _read_status(client: Client, record: ClusterRecord) -> dict[str, Any]:
    """Ask a running cluster for its version, health, leaders and nodes."""
    version = msgspec.json.decode(await client.get_raw("/version"))
    nodes = (await client.list(NODE, Node)).items
    elsewhere = str(record.options.get("without", "")).split(",")
    components = {"apiServer": "ready"}
    for component, leases in _LEASES.items():
        is_ours = component not in elsewhere
        components[component] = "running" if is_ours else await _read_leader(client, leases)
    if outage := await find_scheduler_outage(client, (), WallClock().now()):
        components["scheduler"] = outage
        # Both run in the component process.
        if "controllers" not in elsewhere:
            components["controllers"] = "not running"
    return {
        "version": version["gitVersion"],
        "components": components,
        "nodesReady": sum(map(_is_ready, nodes)),
        "nodesTotal": len(nodes),
    }


async def _read_leader(client: Client, leases: Sequence[str]) -> str:
    for name in leases:
        with suppress(NotFound):
            spec = (await client.get(LEASE, Key(_LEASE_NAMESPACE, name))).get("spec") or {}
            if holder := spec.get("holderIdentity"):
                return f"leader {holder}"
    return "not running"


def _is_ready(node: Node) -> bool:
    ready = find_condition(node.status.conditions, "Ready")
    return ready is not None and ready.status == "True"


def _describe_data(facts: Mapping[str, Any]) -> str:
    """Say how large the data of a cluster are, or that it keeps its objects in memory."""
    return "in memory" if facts["store"] == "memory" else format_bytes(facts["dataBytes"])


def _status_rows(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "cluster:", facts["name"] or EMPTY_CELL
    yield "state:", facts["state"]
    if facts["process"]:
        yield "process:", str(facts["process"])
        yield "url:", facts["url"] or EMPTY_CELL
    yield "kubeconfig:", facts["kubeconfig"]
    yield "directory:", f"{facts['directory']} ({_describe_data(facts)})"
    if "version" in facts:
        yield "version:", facts["version"]
        yield "api server:", facts["components"]["apiServer"]
        yield "scheduler:", facts["components"]["scheduler"]
        yield "controllers:", facts["components"]["controllers"]
        yield "nodes:", f"{facts['nodesReady']} of {facts['nodesTotal']} ready"


@click.command()
@cluster_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete_command(name: str, data: Path | None, yes: bool) -> None:
    """Delete a cluster with all its objects, keys and logs; stop it first if it runs.

    Other files in its directory stay. Its context is removed from ~/.kube/config.

    \b
    Example:
      phalanx delete tutorial --yes
    """
    folder = resolve_folder(name, data, must_exist=True)
    title = str(folder) if data else f'cluster "{name or DEFAULT_CLUSTER}"'
    cluster = LocalCluster.read(name, folder)
    if data and not (folder / KEY_FILE).is_file() and not cluster.running:
        raise click.ClickException(f"{folder} is not a data directory of phalanx up")
    if not yes:
        if not sys.stdin.isatty():
            raise click.ClickException(f"to delete {title} with all its objects, add --yes")
        nodes = pluralize(len(cluster.record.nodes), "node")
        size = format_bytes(cluster.data_bytes)
        click.confirm(f"Delete {title} ({cluster.state}, {nodes}, {size})?", abort=True, err=True)
    try:
        stop(folder)
        # First: without the data there is no cluster to delete the context of.
        if not data:
            remove_cluster(USER_KUBECONFIG, context_name(name))
        for file in data_files(folder):
            file.unlink(missing_ok=True)
        if not any(folder.iterdir()):
            folder.rmdir()
    except StillRunning as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"cannot delete {error.filename}: {error.strerror}") from None
    except KubeconfigError as error:
        raise click.ClickException(str(error)) from None
    echo(f"deleted {title}")
