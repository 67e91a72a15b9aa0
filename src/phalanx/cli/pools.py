"""Pools of nodes of our own, as the command line or a cluster file gives them.

    pools:
    - name: gpu                                   # gpu-0, gpu-1, …; without a count: gpu
      count: 16
      shape: {cpu: 64, nvidia.com/gpu: 8}
      labels: {team: a}
      taints: [{key: gpu, value: "yes", effect: NoSchedule}]
      topology: {block: 2, rack: 4}               # two blocks of four racks each

A file may also be the list alone. What cannot be read is a BadCluster that names the place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from phalanx.api.fields import dns_subdomain_faults
from phalanx.api.quantity import BadQuantity, value
from phalanx.controllers.nodes.nodes import SimulatedNode

#: Labels that topology levels of these names are known by; another level is its own label.
LEVELS = {
    "zone": "topology.kubernetes.io/zone",
    "region": "topology.kubernetes.io/region",
    "rack": "topology.kubernetes.io/rack",
    "block": "topology.kubernetes.io/block",
}
#: More nodes than this are refused as a slip of the finger.
MAX_NODES = 100_000
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

#: Labels of domains and how many there are in each domain above.
Levels = Sequence[tuple[str, int]]


class BadCluster(ValueError):
    """What a file says about nodes and cannot be, with its place."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal nodes of these names. `domain` begins the names of its topology domains."""

    names: Sequence[str]
    room: Mapping[str, str]
    labels: Mapping[str, str]
    taints: Sequence[Mapping[str, str]] = ()
    levels: Levels = ()
    domain: str = ""

    def nodes(self) -> list[SimulatedNode]:
        """The nodes, dealt out over the domains."""
        count = len(self.names)
        return [
            SimulatedNode(
                name, self.room, {**_place(i, count, self.levels, self.domain), **self.labels},
                self.taints,
            )
            for i, name in enumerate(self.names)
        ]  # fmt: skip


def numbered(count: int, room: Mapping[str, str], levels: Levels) -> Pool:
    """So many nodes, with names of one length."""
    width = max(len(str(count - 1)), 1)
    return Pool([f"node-{i:0{width}}" for i in range(count)], room, {}, (), levels)


def _place(i: int, count: int, levels: Levels, domain: str) -> dict[str, str]:
    """The domains of the i-th node: nodes are dealt out in even, unbroken runs."""
    labels: dict[str, str] = {}
    total, path = 1, ""
    for label, per_parent in levels:
        total *= per_parent
        position = i * total // count
        path += f"-{position % per_parent}"
        labels[label] = f"{domain}{label.rpartition('/')[2]}{path}"
    return labels


def load_nodes(path: Path, room: Mapping[str, str], levels: Levels) -> list[SimulatedNode]:
    """The nodes of a cluster file; `room` and `levels` are for pools that say nothing."""
    rows = _loaded(path)
    place = ""
    if isinstance(rows, dict):
        _check_fields(rows, ("pools",), "")
        rows, place = rows.get("pools"), "pools"
    if not isinstance(rows, list):
        raise BadCluster(f"{place or 'the file'}: must be a list of pools, each with a name")
    usual = Pool((), room, {}, (), levels)
    pools = [_pool(row, usual, f"{place}[{i}]") for i, row in enumerate(rows)]
    found = [node for pool in pools for node in pool.nodes()]
    _check_names([node.name for node in found])
    return found


def _loaded(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise BadCluster("is neither a number nor a file") from None
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise BadCluster(f"{line}{error.problem or error.context}") from None
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadCluster(f"cannot be read: {str(error).partition(chr(10))[0]}") from None


_FIELDS = ("name", "count", "shape", "room", "labels", "taints", "topology")


def _pool(row: Any, usual: Pool, place: str) -> Pool:
    if not isinstance(row, dict) or not row.get("name"):
        raise BadCluster(f"{place}: must be a map with a name")
    _check_fields(row, _FIELDS, place)
    shape = "shape" if "shape" in row else "room"
    own = _map(row, shape, place)
    room = {name: _quantity(text, f"{place}.{shape}.{name}") for name, text in own.items()}
    taints = row.get("taints") or []
    if not isinstance(taints, list):
        raise BadCluster(f"{place}.taints: must be a list")
    levels = _levels(_map(row, "topology", place), place) if "topology" in row else usual.levels
    return Pool(
        _names(row, place), {**usual.room, **room}, _map(row, "labels", place),
        [_taint(one, f"{place}.taints[{i}]") for i, one in enumerate(taints)], levels,
        f"{row['name']}-",
    )  # fmt: skip


def _names(row: Mapping[str, Any], place: str) -> list[str]:
    if "count" not in row:
        return [str(row["name"])]
    count = _whole(row["count"], f"{place}.count")
    return [f"{row['name']}-{i}" for i in range(count)]


def _levels(given: Mapping[str, str], place: str) -> Levels:
    return [
        (LEVELS.get(name, name), _whole(count, f"{place}.topology.{name}"))
        for name, count in given.items()
    ]


def _taint(given: Any, place: str) -> Mapping[str, str]:
    if not isinstance(given, dict) or not given.get("key"):
        raise BadCluster(f"{place}: must be a map with a key")
    _check_fields(given, ("key", "value", "effect"), place)
    if given.get("effect") not in _EFFECTS:
        raise BadCluster(f"{place}.effect: must be one of {', '.join(_EFFECTS)}")
    return {str(key): str(what) for key, what in given.items()}


def _map(row: Mapping[str, Any], field: str, place: str) -> dict[str, str]:
    given = row.get(field) or {}
    is_flat = isinstance(given, dict) and not any(
        isinstance(one, dict | list) for one in given.values()
    )
    if not is_flat:
        raise BadCluster(f"{place}.{field}: must be a map of texts or numbers")
    return {str(key): _text(one) for key, one in given.items()}


def _text(given: Any) -> str:
    """A scalar as it was most likely written: YAML has turned `true` into something else."""
    return str(given).lower() if isinstance(given, bool) else str(given)


def _whole(given: Any, place: str) -> int:
    text = str(given)
    if not text.isdecimal() or not 1 <= int(text) <= MAX_NODES:
        raise BadCluster(f"{place}: must be a whole number from 1 to {MAX_NODES}")
    return int(text)


def _check_fields(row: Mapping[str, Any], known: Sequence[str], place: str) -> None:
    for name in row:
        if name not in known:
            where = f"{place}.{name}" if place else str(name)
            raise BadCluster(f"{where}: there is no such field; there are {', '.join(known)}")


def _check_names(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadCluster(f"there are two nodes of the name {name}")
        if faults := dns_subdomain_faults(name):
            raise BadCluster(f"{name!r} is no name for a node: {faults[0]}")
        seen.add(name)
    if len(seen) > MAX_NODES:
        raise BadCluster(f"{len(seen)} nodes are more than {MAX_NODES}")


def _quantity(text: str, place: str) -> str:
    try:
        if value(text) >= 0:
            return text
    except BadQuantity:
        pass
    raise BadCluster(f"{place}: {text!r} is no quantity such as 500m or 32Gi")
