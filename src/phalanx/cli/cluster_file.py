"""Cluster files (`--nodes FILE`): pools of simulated nodes.

The file may also be the list alone. An invalid file raises InvalidClusterFile, which names line and
field:

    pools:
    - name: gpu                                   # gpu-0, gpu-1, …; without a count: gpu
      count: 16
      shape: {cpu: 64, nvidia.com/gpu: 8}
      labels: {team: a}
      taints: [{key: gpu, value: "yes", effect: NoSchedule}]
      topology: {block: 2, rack: 4}               # two blocks of four racks each
      devices:                                    # published as ResourceSlices
      - {driver: gpu.example.com, count: 8, memory: 80Gi, model: h100}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.api.formats import validate_dns_subdomain
from phalanx.api.resources import BadQuantity, exact_value
from phalanx.controllers.nodes.node_pool import SimulatedNode
from phalanx.controllers.nodes.simulated_devices import (
    BadDevices,
    SimulatedDevices,
    build_devices,
    parse_devices,
)
from phalanx.yaml_files import InvalidYaml, load_document

#: Node label of a topology level, by its short name; another name is itself the label.
LEVEL_LABELS = {
    "zone": "topology.kubernetes.io/zone",
    "region": "topology.kubernetes.io/region",
    "rack": "topology.kubernetes.io/rack",
    "block": "topology.kubernetes.io/block",
}
#: A larger number of nodes is rejected as a typing error.
MAX_NODES = 100_000
#: `room` is the older name of `shape`.
_POOL_FIELDS = ("name", "count", "shape", "room", "labels", "taints", "topology", "devices")
_TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

#: Topology levels from the widest: (node label, number of domains in each domain above).
TopologyLevels = Sequence[tuple[str, int]]


class InvalidClusterFile(ValueError):
    """A cluster file is invalid: the message names the line and the path of the field."""

    def __init__(self, reason: str, *, field: str = "", line: int | None = None) -> None:
        """Name the field, if one is invalid, and its line, if that is known."""
        where = [f"line {line}"] if line else []
        super().__init__(": ".join([*where, *([field] if field else []), reason]))
        self.reason, self.field = reason, field


@dataclass(frozen=True, slots=True)
class NodePool:
    """Simulated nodes that differ in their names and topology domains only.

    `domain_prefix` begins the name of each topology domain: two pools never share a domain.
    """

    names: Sequence[str]
    allocatable: Mapping[str, str]
    labels: Mapping[str, str]
    taints: Sequence[Mapping[str, str]] = ()
    levels: TopologyLevels = ()
    domain_prefix: str = ""
    devices: Sequence[SimulatedDevices] = ()

    def nodes(self) -> list[SimulatedNode]:
        """Return the nodes, spread evenly over the topology domains."""
        return [
            SimulatedNode(
                name,
                self.allocatable,
                labels={**self._domain_labels(i), **self.labels},
                taints=self.taints,
                devices=self.devices,
            )
            for i, name in enumerate(self.names)
        ]

    def _domain_labels(self, i: int) -> dict[str, str]:
        """The topology labels of the i-th node: each domain gets a contiguous range of nodes."""
        labels: dict[str, str] = {}
        domain_count, path = 1, ""
        for label, per_parent in self.levels:
            domain_count *= per_parent
            position = i * domain_count // len(self.names)
            path += f"-{position % per_parent}"
            labels[label] = f"{self.domain_prefix}{label.rpartition('/')[2]}{path}"
        return labels


def numbered_pool(count: int, capacity: Mapping[str, str], levels: TopologyLevels) -> NodePool:
    """Return a pool of `count` nodes whose names have the same length (node-00 … node-11)."""
    width = max(len(str(count - 1)), 1)
    names = [f"node-{i:0{width}}" for i in range(count)]
    return NodePool(names, capacity, labels={}, levels=levels)


def load_node_pools(
    path: Path, capacity: Mapping[str, str], levels: TopologyLevels
) -> list[SimulatedNode]:
    """Load the nodes of a cluster file. `capacity` and `levels` are the defaults of its pools."""
    return parse_node_pools(_read_text(path), capacity, levels)


def parse_node_pools(
    text: str, capacity: Mapping[str, str], levels: TopologyLevels
) -> list[SimulatedNode]:
    """Parse the text of a cluster file."""
    defaults = NodePool((), capacity, labels={}, levels=levels)
    try:
        document = load_document(text)
        pools = _parse_pools(document.value, defaults)
    except InvalidYaml as error:
        raise InvalidClusterFile(str(error)) from None
    except InvalidClusterFile as error:
        line = document.find_line(error.field) if error.field else None
        raise InvalidClusterFile(error.reason, field=error.field, line=line) from None
    nodes = [node for pool in pools for node in pool.nodes()]
    _check_node_names([node.name for node in nodes])
    return nodes


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        raise InvalidClusterFile("is neither a number of nodes (0 or more) nor a file") from None
    except OSError as error:
        raise InvalidClusterFile(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidClusterFile("is not a text file") from None


def _parse_pools(rows: Any, defaults: NodePool) -> list[NodePool]:
    field = ""
    if isinstance(rows, dict):
        _check_fields(rows, ("pools",), "")
        rows, field = rows.get("pools"), "pools"
    if not isinstance(rows, list):
        raise InvalidClusterFile(
            "must be a list of pools, each with a name", field=field or "the file"
        )
    if not rows:
        raise InvalidClusterFile("has no pools", field=field or "the file")
    return [_parse_pool(row, defaults, f"{field}[{i}]") for i, row in enumerate(rows)]


def _parse_pool(row: Any, defaults: NodePool, field: str) -> NodePool:
    if not isinstance(row, dict) or not row.get("name"):
        raise InvalidClusterFile("must be a map with a name", field=field)
    _check_fields(row, _POOL_FIELDS, field)
    name, names = row["name"], [str(row["name"])]
    if "count" in row:
        names = [f"{name}-{i}" for i in range(_parse_count(row["count"], f"{field}.count"))]
    shape = "shape" if "shape" in row else "room"
    capacity = _parse_map(row, shape, field)
    for resource, quantity in capacity.items():
        if not is_quantity(quantity):
            where = f"{field}.{shape}.{resource}"
            raise InvalidClusterFile(describe_invalid_quantity(quantity), field=where)
    taints = row.get("taints") or []
    if not isinstance(taints, list):
        raise InvalidClusterFile("must be a list", field=f"{field}.taints")
    levels = defaults.levels
    if "topology" in row:
        levels = [
            (LEVEL_LABELS.get(level, level), _parse_count(count, f"{field}.topology.{level}"))
            for level, count in _parse_map(row, "topology", field).items()
        ]
    return NodePool(
        names,
        {**defaults.allocatable, **capacity},
        labels=_parse_map(row, "labels", field),
        taints=[_parse_taint(one, f"{field}.taints[{i}]") for i, one in enumerate(taints)],
        levels=levels,
        domain_prefix=f"{name}-",
        devices=_parse_devices(row.get("devices") or [], f"{field}.devices"),
    )


def _parse_devices(rows: Any, field: str) -> tuple[SimulatedDevices, ...]:
    if not isinstance(rows, list):
        raise InvalidClusterFile("must be a list", field=field)
    found = []
    for number, row in enumerate(rows):
        where = f"{field}[{number}]"
        if not isinstance(row, dict) or not row.get("driver"):
            raise InvalidClusterFile("must be a map with a driver", field=where)
        count = _parse_count(row.get("count", 1), f"{where}.count")
        values = _parse_map({"": row}, "", where)
        others = {k: v for k, v in values.items() if k not in ("driver", "count")}
        try:
            # Checks the name of the driver and the number as the option does.
            parse_devices(f"{row['driver']}={count}")
            found.append(build_devices(values["driver"], count, others))
        except BadDevices as error:
            raise InvalidClusterFile(str(error), field=where) from None
    return tuple(found)


def _parse_taint(given: Any, field: str) -> Mapping[str, str]:
    if not isinstance(given, dict) or not given.get("key"):
        raise InvalidClusterFile("must be a map with a key", field=field)
    _check_fields(given, ("key", "value", "effect"), field)
    if given.get("effect") not in _TAINT_EFFECTS:
        known = ", ".join(_TAINT_EFFECTS)
        raise InvalidClusterFile(f"must be one of {known}", field=f"{field}.effect")
    return {str(key): str(value) for key, value in given.items()}


def _parse_map(row: Mapping[str, Any], name: str, field: str) -> dict[str, str]:
    given = row.get(name) or {}
    if not isinstance(given, dict) or any(isinstance(v, dict | list) for v in given.values()):
        raise InvalidClusterFile("must be a map of strings or numbers", field=f"{field}.{name}")
    # YAML has turned an unquoted `true` into a boolean, whose text would be "True".
    return {
        str(key): str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in given.items()
    }


def _parse_count(value: Any, field: str) -> int:
    text = str(value)
    if not text.isdecimal() or not 1 <= int(text) <= MAX_NODES:
        raise InvalidClusterFile(f"must be a whole number from 1 to {MAX_NODES}", field=field)
    return int(text)


def _check_fields(row: Mapping[str, Any], known: Sequence[str], field: str) -> None:
    for name in row:
        if name not in known:
            path = f"{field}.{name}" if field else str(name)
            raise InvalidClusterFile(f"unknown field; available: {', '.join(known)}", field=path)


def _check_node_names(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidClusterFile(f"two nodes are named {name}")
        if errors := validate_dns_subdomain(name):
            raise InvalidClusterFile(f'invalid node name "{name}": {errors[0]}')
        seen.add(name)
    if len(seen) > MAX_NODES:
        raise InvalidClusterFile(f"{len(seen)} nodes are more than {MAX_NODES}")


def is_quantity(text: str) -> bool:
    """Whether a text is an amount of a resource."""
    try:
        return exact_value(text) >= 0
    except BadQuantity:
        return False


def describe_invalid_quantity(text: str) -> str:
    """Say that a text is no amount of a resource, and what one looks like."""
    return f'invalid quantity "{text}"; use for example 500m or 32Gi'
