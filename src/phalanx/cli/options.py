"""Pools of nodes of our own, as the command line or a cluster file gives them.

    pools:
    - name: gpu                                   # gpu-0, gpu-1, …; without a count: gpu
      count: 16
      shape: {cpu: 64, nvidia.com/gpu: 8}
      labels: {team: a}
      taints: [{key: gpu, value: "yes", effect: NoSchedule}]
      topology: {block: 2, rack: 4}               # two blocks of four racks each

A file may also be the list alone. What cannot be read is a BadCluster that names the place.

Texts of options as values: addresses, node shapes, topologies, lists of parts.

A text that cannot be read is a click.BadParameter: one sentence, exit code 2.

`--decision-log FILE`: the option of those who schedule, and the log that it leads to.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import yaml

from phalanx.api import feature_gates as gates
from phalanx.api.formats import validate_dns_subdomain
from phalanx.api.quantity import BadQuantity, exact_value
from phalanx.controllers.nodes.node_pool import DEFAULT_CAPACITY, SimulatedNode
from phalanx.controllers.nodes.simulated_kubelet import BadStages, StageRule, parse_stage_rules

if TYPE_CHECKING:
    from phalanx.controllers.scheduling.decision_log import DecisionLog


#: Labels that topology levels of these names are known by; another level is its own label.
LEVEL_LABELS = {
    "zone": "topology.kubernetes.io/zone",
    "region": "topology.kubernetes.io/region",
    "rack": "topology.kubernetes.io/rack",
    "block": "topology.kubernetes.io/block",
}
#: More nodes than this are refused as a slip of the finger.
MAX_NODES = 100_000
_TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

#: Labels of domains and how many there are in each domain above.
TopologyLevels = Sequence[tuple[str, int]]


class InvalidClusterFile(ValueError):
    """What a file says about nodes and cannot be, with its place."""


@dataclass(frozen=True, slots=True)
class NodePool:
    """Equal nodes of these names. `domain` begins the names of its topology domains."""

    names: Sequence[str]
    allocatable: Mapping[str, str]
    labels: Mapping[str, str]
    taints: Sequence[Mapping[str, str]] = ()
    levels: TopologyLevels = ()
    domain_prefix: str = ""

    def nodes(self) -> list[SimulatedNode]:
        """The nodes, dealt out over the domains."""
        count = len(self.names)
        return [
            SimulatedNode(
                name,
                self.allocatable,
                {**_domain_labels(i, count, self.levels, self.domain_prefix), **self.labels},
                self.taints,
            )
            for i, name in enumerate(self.names)
        ]


def numbered_pool(count: int, room: Mapping[str, str], levels: TopologyLevels) -> NodePool:
    """So many nodes, with names of one length."""
    width = max(len(str(count - 1)), 1)
    return NodePool([f"node-{i:0{width}}" for i in range(count)], room, {}, (), levels)


def _domain_labels(i: int, count: int, levels: TopologyLevels, domain: str) -> dict[str, str]:
    """The domains of the i-th node: nodes are dealt out in even, unbroken runs."""
    labels: dict[str, str] = {}
    total, path = 1, ""
    for label, per_parent in levels:
        total *= per_parent
        position = i * total // count
        path += f"-{position % per_parent}"
        labels[label] = f"{domain}{label.rpartition('/')[2]}{path}"
    return labels


def load_node_pools(
    path: Path, room: Mapping[str, str], levels: TopologyLevels
) -> list[SimulatedNode]:
    """The nodes of a cluster file; `room` and `levels` are for pools that say nothing."""
    rows = _load_yaml(path)
    place = ""
    if isinstance(rows, dict):
        _check_fields(rows, ("pools",), "")
        rows, place = rows.get("pools"), "pools"
    if not isinstance(rows, list):
        raise InvalidClusterFile(
            f"{place or 'the file'}: must be a list of pools, each with a name"
        )
    usual = NodePool((), room, {}, (), levels)
    pools = [_parse_pool(row, usual, f"{place}[{i}]") for i, row in enumerate(rows)]
    found = [node for pool in pools for node in pool.nodes()]
    _check_node_names([node.name for node in found])
    return found


def _load_yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise InvalidClusterFile("is neither a number nor a file") from None
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise InvalidClusterFile(f"{line}{error.problem or error.context}") from None
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidClusterFile(f"cannot be read: {str(error).partition(chr(10))[0]}") from None


_POOL_FIELDS = ("name", "count", "shape", "room", "labels", "taints", "topology")


def _parse_pool(row: Any, defaults: NodePool, place: str) -> NodePool:
    if not isinstance(row, dict) or not row.get("name"):
        raise InvalidClusterFile(f"{place}: must be a map with a name")
    _check_fields(row, _POOL_FIELDS, place)
    shape = "shape" if "shape" in row else "room"
    own = _parse_map(row, shape, place)
    room = {name: _check_quantity(text, f"{place}.{shape}.{name}") for name, text in own.items()}
    taints = row.get("taints") or []
    if not isinstance(taints, list):
        raise InvalidClusterFile(f"{place}.taints: must be a list")
    levels = (
        _parse_levels(_parse_map(row, "topology", place), place)
        if "topology" in row
        else defaults.levels
    )
    return NodePool(
        _pool_node_names(row, place),
        {**defaults.allocatable, **room},
        _parse_map(row, "labels", place),
        [_parse_taint(one, f"{place}.taints[{i}]") for i, one in enumerate(taints)],
        levels,
        f"{row['name']}-",
    )


def _pool_node_names(row: Mapping[str, Any], place: str) -> list[str]:
    if "count" not in row:
        return [str(row["name"])]
    count = _parse_count(row["count"], f"{place}.count")
    return [f"{row['name']}-{i}" for i in range(count)]


def _parse_levels(given: Mapping[str, str], place: str) -> TopologyLevels:
    return [
        (LEVEL_LABELS.get(name, name), _parse_count(count, f"{place}.topology.{name}"))
        for name, count in given.items()
    ]


def _parse_taint(given: Any, place: str) -> Mapping[str, str]:
    if not isinstance(given, dict) or not given.get("key"):
        raise InvalidClusterFile(f"{place}: must be a map with a key")
    _check_fields(given, ("key", "value", "effect"), place)
    if given.get("effect") not in _TAINT_EFFECTS:
        raise InvalidClusterFile(f"{place}.effect: must be one of {', '.join(_TAINT_EFFECTS)}")
    return {str(key): str(what) for key, what in given.items()}


def _parse_map(row: Mapping[str, Any], field: str, place: str) -> dict[str, str]:
    given = row.get(field) or {}
    is_flat = isinstance(given, dict) and not any(
        isinstance(one, dict | list) for one in given.values()
    )
    if not is_flat:
        raise InvalidClusterFile(f"{place}.{field}: must be a map of texts or numbers")
    return {str(key): _scalar_text(one) for key, one in given.items()}


def _scalar_text(given: Any) -> str:
    """A scalar as it was most likely written: YAML has turned `true` into something else."""
    return str(given).lower() if isinstance(given, bool) else str(given)


def _parse_count(given: Any, place: str) -> int:
    text = str(given)
    if not text.isdecimal() or not 1 <= int(text) <= MAX_NODES:
        raise InvalidClusterFile(f"{place}: must be a whole number from 1 to {MAX_NODES}")
    return int(text)


def _check_fields(row: Mapping[str, Any], known: Sequence[str], place: str) -> None:
    for name in row:
        if name not in known:
            where = f"{place}.{name}" if place else str(name)
            raise InvalidClusterFile(
                f"{where}: there is no such field; there are {', '.join(known)}"
            )


def _check_node_names(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidClusterFile(f"there are two nodes of the name {name}")
        if faults := validate_dns_subdomain(name):
            raise InvalidClusterFile(f"{name!r} is no name for a node: {faults[0]}")
        seen.add(name)
    if len(seen) > MAX_NODES:
        raise InvalidClusterFile(f"{len(seen)} nodes are more than {MAX_NODES}")


def _check_quantity(text: str, place: str) -> str:
    try:
        if exact_value(text) >= 0:
            return text
    except BadQuantity:
        pass
    raise InvalidClusterFile(f"{place}: {text!r} is no quantity such as 500m or 32Gi")


COMPONENTS = ("scheduler", "controllers", "nodes")


def state_directory() -> Path:
    """Where a user's control plane keeps its state."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "phalanx"


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`, IPv6 hosts in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{text!r} is no HOST:PORT such as 127.0.0.1:6443")
    return host.strip("[]") or "127.0.0.1", int(port)


def parse_components(text: str) -> frozenset[str]:
    """A comma-separated list of parts of the control plane."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in COMPONENTS:
            raise click.BadParameter(f"{name!r} is none of {', '.join(COMPONENTS)}")
    return frozenset(names)


def parse_feature_gates(text: str) -> gates.FeatureGates:
    """`A=true,B=false`; whoever uses an old name is told so on stderr."""
    try:
        wanted = gates.parse_gates(text)
        found = gates.resolve_gates(wanted)
    except gates.BadFeatureGates as error:
        raise click.BadParameter(str(error)) from None
    for told in gates.deprecation_warnings(wanted):
        click.echo(f"Warning: {told}", err=True)
    return found


def parse_shape(text: str) -> dict[str, str]:
    """`cpu=8,memory=32Gi,nvidia.com/gpu=8`; what is not named stays as usual."""
    room = dict(DEFAULT_CAPACITY)
    for name, quantity in _parse_pairs(text, "cpu=8,memory=32Gi"):
        room[name] = _parse_quantity(quantity)
    return room


def parse_topology(text: str) -> list[tuple[str, int]]:
    """`block=2,rack=4`: two blocks of four racks each, as (label, count per parent)."""
    levels = []
    for name, count in _parse_pairs(text, "block=2,rack=4"):
        if not count.isdecimal() or int(count) < 1:
            raise click.BadParameter(f"{count!r} is no number of {name}s")
        levels.append((LEVEL_LABELS.get(name, name), int(count)))
    return levels


def parse_nodes(
    text: str, room: Mapping[str, str], levels: Sequence[tuple[str, int]]
) -> list[SimulatedNode]:
    """A number of equal nodes, or a YAML file that describes them."""
    if text.isdecimal():
        count = int(text)
        if count > MAX_NODES:
            raise click.BadParameter(f"{count} nodes are more than {MAX_NODES}")
        return numbered_pool(count, room, levels).nodes()
    try:
        return load_node_pools(Path(text), room, levels)
    except InvalidClusterFile as error:
        raise click.BadParameter(f"{text!r}: {error}") from None


def load_stage_rules(path: Path | None) -> list[StageRule]:
    """How simulated pods live that do not say so themselves: a YAML file of rules."""
    if path is None:
        return []
    try:
        return parse_stage_rules(yaml.safe_load(path.read_text()))
    except (BadStages, OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        first = str(error).partition("\n")[0]
        raise click.BadParameter(f"{str(path)!r}: {first}", param_hint="--stages") from None


def _parse_quantity(text: str) -> str:
    try:
        if exact_value(text) >= 0:
            return text
    except BadQuantity:
        pass
    raise click.BadParameter(f"{text!r} is no quantity such as 500m or 32Gi")


def _parse_pairs(text: str, example: str) -> list[tuple[str, str]]:
    pairs = []
    for part in filter(None, text.split(",")):
        name, equals, what = part.partition("=")
        if not equals or not name or not what:
            raise click.BadParameter(f"{part!r} is not of the form {example}")
        pairs.append((name.strip(), what.strip()))
    return pairs


F = TypeVar("F", bound=Callable[..., Any])


def decision_log_option(command: F) -> F:
    """The option, as `decisions`."""
    return click.option(
        "--decision-log",
        "decisions",
        type=click.Path(path_type=Path, dir_okay=False, writable=True),
        default=None,
        metavar="FILE",
        help="Where to write what the scheduler sees and decides; see phalanx decisions.",
    )(command)


def check_decision_log(file: Path | None) -> None:
    """Refuse a file that has no folder to be in."""
    if file and not file.absolute().parent.is_dir():
        raise click.UsageError(f"there is no folder for --decision-log {file}")


def open_decision_log(file: Path | None) -> DecisionLog | None:
    """Where decisions go, if anywhere; who writes none need not load what does."""
    if file is None:
        return None
    from phalanx.controllers.scheduling.decision_log import (
        DecisionLog,
        DecisionLogFile,
        write_in_thread,
    )

    return DecisionLog(write_in_thread(DecisionLogFile(file).write))
