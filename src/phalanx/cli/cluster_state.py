"""Named clusters: the data directory of each, what runs in it, and the options that it remembers.

    ~/.local/state/phalanx                 data directory of the cluster "default"
    ~/.local/state/phalanx/clusters/NAME   data directory of any other cluster
      cluster.json                         the options of `phalanx up`, and a fingerprint per node
      up.pid                               process, URL and kubeconfig while it runs (`background`)

A control plane in memory (`--data :memory:`) runs as the cluster "memory", or as that of its name:
its directory has `up.pid`, a kubeconfig and a log. It never takes the place of a cluster on disk.

`phalanx up` takes the options that are not given from `cluster.json`. Options that would leave Node
objects without a kubelet are refused there. `phalanx up` imports this module before it forks, so it
imports little.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from phalanx.cli.options import state_directory
from phalanx.controllers.nodes.node_pool import SimulatedNode
from phalanx.server.security.private_files import write_private

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_CLUSTER = "default"
#: The value of --data that stores nothing on disk, and the cluster that it runs as without a name.
IN_MEMORY, IN_MEMORY_CLUSTER = ":memory:", "memory"
RECORD_FILE, KUBECONFIG_FILE = "cluster.json", "kubeconfig"
#: Every file that a control plane, or a command with `--data`, writes into a data directory.
DATA_FILES = (
    RECORD_FILE, KUBECONFIG_FILE, "store.db*", "store.lock", "store.mark", "ca.crt", "ca.key",
    "server.crt", "server.key", "service-accounts.key", "tokens.json*", "audit.log*", "up.pid",
    "up.log", ".*.new", f".{KUBECONFIG_FILE}.*",
)  # fmt: skip
#: Every data directory has the first file; a control plane without data has the second.
KEY_FILE, _PID_FILE = "service-accounts.key", "up.pid"
_STORE_FILE = "store.db"
_CLUSTERS_FOLDER = "clusters"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")

#: Options of one start of `phalanx up`, which are not remembered.
_START_OPTIONS = frozenset(
    {
        "name", "data", "store", "accept-data-loss", "kubeconfig", "merge-kubeconfig",
        "recreate-nodes", "decision-log", "detach", "log-format", "log-file", "verbose",
    }
)  # fmt: skip
#: Options that describe the nodes: Node objects exist that were created from them.
_NODE_OPTIONS = ("nodes", "shape", "topology", "run-processes")
#: Options that name a file, unless they have one of these values or are a number.
_FILE_OPTIONS, _NO_FILE = ("nodes", "audit-log"), ("", "none")


class ClusterRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of cluster.json: options by name, and the fingerprint of each hosted node."""

    options: dict[str, Any] = {}
    nodes: dict[str, str] = {}

    def write(self, folder: Path) -> None:
        """Write the record, readable by its owner only."""
        text = msgspec.json.format(msgspec.json.encode(self), indent=2)
        write_private(folder / RECORD_FILE, text + b"\n")


def load_record(folder: Path) -> ClusterRecord:
    """Load the record of a data directory; an empty one if there is none."""
    file = folder / RECORD_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=ClusterRecord)
    except (FileNotFoundError, NotADirectoryError):
        return ClusterRecord()
    except (OSError, msgspec.DecodeError) as error:
        raise click.ClickException(
            f"cannot read {file}: {error}; delete it and give phalanx up the options of the cluster"
        ) from None


# ---- names and directories -----------------------------------------------------------------------


def parse_cluster_name(context: click.Context, option: click.Parameter, name: str) -> str:
    """Check the name of a cluster, which is also part of a path and of a kubeconfig context.

    "" is the default of every option and no name: a script whose variable is empty must not
    delete the default cluster. An empty environment variable is no value at all.
    """
    is_given = context.get_parameter_source(option.name or "") is not ParameterSource.DEFAULT
    if (name or is_given) and not _NAME.fullmatch(name):
        hint = "; names of the server for its certificate are given by --tls-name"
        raise click.BadParameter(
            f'invalid cluster name "{name}"; use lower-case letters, digits and hyphens, '
            f"at most 40{hint if '--name' in option.opts and '.' in name else ''}"
        )
    return name


def cluster_folder(name: str) -> Path:
    """Return the data directory of a cluster."""
    base = state_directory()
    return base if name in ("", DEFAULT_CLUSTER) else base / _CLUSTERS_FOLDER / name


def create_folder(folder: Path) -> None:
    """Create a data directory that only this user may enter, if it is missing.

    The directory of a named cluster is below that of the default cluster, which must be private.
    """
    base = state_directory()
    for parent in (base, base / _CLUSTERS_FOLDER):
        if parent in folder.parents:
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def context_name(name: str) -> str:
    """Return the name of a cluster's context in a kubeconfig that has other contexts too."""
    return f"phalanx-{name or DEFAULT_CLUSTER}"


def is_data_directory(folder: Path) -> bool:
    """Return whether a control plane has used a directory."""
    return any((folder / name).is_file() for name in (KEY_FILE, _PID_FILE))


def list_clusters() -> list[str]:
    """Return the names of all clusters of this user, the default cluster first."""
    named = state_directory() / _CLUSTERS_FOLDER
    names = sorted(entry.name for entry in named.iterdir()) if named.is_dir() else []
    return [name for name in (DEFAULT_CLUSTER, *names) if is_data_directory(cluster_folder(name))]


def complete_cluster(
    context: click.Context, option: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a cluster of this user."""
    return [CompletionItem(name) for name in list_clusters() if name.startswith(incomplete)]


def existing_folder(name: str) -> Path:
    """Return the data directory of a cluster that exists; an error lists those that do."""
    folder = cluster_folder(name)
    if not is_data_directory(folder):
        available = ", ".join(list_clusters())
        hint = f"available: {available}" if available else "create one with phalanx up"
        raise click.ClickException(f'there is no cluster "{name or DEFAULT_CLUSTER}"; {hint}')
    return folder


def check_no_stored_objects(name: str) -> None:
    """Raise an error if a cluster has objects on disk: one in memory must not pass for it."""
    if (cluster_folder(name) / _STORE_FILE).exists():
        raise click.ClickException(
            f'cluster "{name}" has objects on disk; choose another --name for one in memory, '
            f"or run phalanx delete {name} first"
        )


def command_line(command: str, folder: Path) -> str:
    """Return a command for the cluster of a data directory, to be shown to the user."""
    named = state_directory() / _CLUSTERS_FOLDER
    if folder == state_directory():
        return f"phalanx {command}"
    if folder.parent == named:
        return f"phalanx {command} {'--name ' if command == 'up' else ''}{folder.name}"
    return f"phalanx {command} --data {folder}"


def data_option(command: F) -> F:
    """Add `--cluster` and `--data`; the command gets the data directory as `data`."""

    @functools.wraps(command)
    def with_folder(*args: Any, cluster: str, data: Path | None, **kwargs: Any) -> Any:
        return command(*args, data=resolve_folder(*_select(cluster, data)), **kwargs)

    decorated: Any = with_folder
    for option in (
        click.option(
            "--data",
            type=click.Path(path_type=Path),
            default=None,
            metavar="DIR",
            help="Data directory of the control plane. [default: that of the cluster]",
        ),
        click.option(
            "--cluster",
            default="",
            metavar="NAME",
            callback=parse_cluster_name,
            shell_complete=complete_cluster,
            help=f"Name of the cluster. [default: {DEFAULT_CLUSTER}]",
        ),
    ):
        decorated = option(decorated)
    result: F = decorated
    return result


def cluster_argument(command: F) -> F:
    """Add `[NAME]`, also as an option, and `--data`; the command gets `name` and `data`."""

    @functools.wraps(command)
    def with_name(*args: Any, name: str, named: str, data: Path | None, **kwargs: Any) -> Any:
        if name and named and name != named:
            raise click.UsageError(f'two clusters are named, "{name}" and "{named}"; leave out one')
        name, data = _select(name or named, data)
        return command(*args, name=name, data=data, **kwargs)

    decorated: Any = with_name
    for option in (
        click.option(
            "--name",
            "--cluster",
            "named",
            default="",
            metavar="NAME",
            callback=parse_cluster_name,
            shell_complete=complete_cluster,
            help="The same as the argument.",
        ),
        click.option(
            "--data",
            type=click.Path(path_type=Path),
            default=None,
            metavar="DIR",
            help="Data directory of a cluster without a name.",
        ),
        click.argument(
            "name",
            default="",
            metavar=f"[NAME={DEFAULT_CLUSTER}]",
            callback=parse_cluster_name,
            shell_complete=complete_cluster,
        ),
    ):
        decorated = option(decorated)
    result: F = decorated
    return result


def _select(name: str, data: Path | None) -> tuple[str, Path | None]:
    """Return the name and the directory of a cluster; `--data :memory:` stands for a name."""
    if data is not None and str(data) == IN_MEMORY:
        return name or IN_MEMORY_CLUSTER, None
    return name, data


def resolve_folder(name: str, data: Path | None, *, must_exist: bool = False) -> Path:
    """Return the directory that a name or a directory selects; both together are wrong usage.

    A cluster with a name must exist; the default cluster and a directory only if it `must_exist`.
    """
    if name and data:
        raise click.UsageError("a named cluster has its own directory; leave out --data")
    if data:
        folder = data.expanduser()
        if must_exist and not is_data_directory(folder):
            raise click.ClickException(f"{folder} is not a data directory of phalanx up")
        return folder
    return existing_folder(name) if name or must_exist else cluster_folder(name)


# ---- remembered options --------------------------------------------------------------------------


def use_remembered_options(context: click.Context, option: click.Parameter, value: Any) -> Any:
    """Make the options of an existing cluster the defaults of this start.

    The callback of the eager options --name and --data; acts once both are known.
    """
    known = {**context.params, option.name or "": value}
    if {"name", "data"} <= known.keys():
        if known["data"] == IN_MEMORY:
            return value
        folder = resolve_folder("", Path(known["data"])) if known["data"] else None
        record = load_record(folder or cluster_folder(known["name"]))
        context.default_map = {
            parameter.name: record.options[name]
            for name, parameter in _remembered_parameters(context)
            if name in record.options
        }
    return value


def given_options(context: click.Context) -> dict[str, Any]:
    """Return the options to remember: those that were given now or at an earlier start."""
    return {
        name: _portable(name, context.params[parameter.name or ""])
        for name, parameter in _remembered_parameters(context)
        if context.get_parameter_source(parameter.name or "") is not ParameterSource.DEFAULT
    }


def _remembered_parameters(context: click.Context) -> Iterable[tuple[str, click.Parameter]]:
    for parameter in context.command.params:
        name = max(parameter.opts, key=len).removeprefix("--")
        if name not in _START_OPTIONS:
            yield name, parameter


def _portable(name: str, value: Any) -> Any:
    """The value of an option for a start in any directory: files have absolute paths."""
    if isinstance(value, Path):
        return str(value.absolute())
    if name in _FILE_OPTIONS and value not in _NO_FILE and not value.isdecimal():
        return str(Path(value).absolute())
    return list(value) if isinstance(value, tuple) else value


def fingerprint_nodes(nodes: Iterable[SimulatedNode], node_type: str) -> dict[str, str]:
    """Return a short hash of each node, which changes with what its Node object is created from."""
    prints: dict[str, str] = {}
    for node in nodes:
        parts = (node.capacity, node.labels, node.taints, node_type)
        prints[node.name] = hashlib.sha256(
            msgspec.json.encode(parts, order="deterministic")
        ).hexdigest()[:12]
    return prints


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The record of a start, and the nodes of earlier starts to replace (name, fingerprint)."""

    folder: Path
    record: ClusterRecord
    retired: Mapping[str, str]

    def begin(self) -> None:
        """Remember the options. Retired nodes stay in the record until they are deleted."""
        nodes = {**self.record.nodes, **self.retired}
        msgspec.structs.replace(self.record, nodes=nodes).write(self.folder)

    def complete(self) -> None:
        """Forget the retired nodes, which are deleted."""
        self.record.write(self.folder)


def plan_start(
    folder: Path,
    options: Mapping[str, Any],
    nodes: Mapping[str, str] | None,
    *,
    recreate: bool,
) -> ClusterPlan:
    """Plan a start with these options and node fingerprints (None: the nodes run elsewhere).

    Raises an error if an existing Node would have no kubelet, or another one than it was created
    for, unless nodes may be recreated. Nodes may always be added.
    """
    old = load_record(folder)
    registered = old.nodes if (folder / _STORE_FILE).exists() else {}
    wanted = dict(registered if nodes is None else nodes)
    retired = {
        name: old_print for name, old_print in registered.items() if wanted.get(name) != old_print
    }
    if retired and not recreate:
        raise click.ClickException(
            f"{folder} has nodes of other options: {_describe_changes(old.options, options)}; "
            f"run {command_line('up', folder)} to keep these nodes, add --recreate-nodes to "
            f"replace them and end their pods, or run {command_line('delete', folder)} first"
        )
    return ClusterPlan(folder, ClusterRecord(dict(options), wanted), retired)


def _describe_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Describe how options differ: `--nodes 3 (now 2), --shape not given (now cpu=8)`."""
    changes = [
        f"--{name} {_shown(old.get(name))} (now {_shown(new.get(name))})"
        for name in _NODE_OPTIONS
        if (old.get(name) or "") != (new.get(name) or "")
    ]
    return ", ".join(changes) or "the file of --nodes has changed"


def _shown(value: Any) -> str:
    return str({None: "not given", "": "not given", True: "on", False: "off"}.get(value, value))
