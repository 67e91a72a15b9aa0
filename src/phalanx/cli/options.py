"""Texts of options as values: addresses, node shapes, topologies, lists of parts.

A text that cannot be read is a click.BadParameter: one sentence, exit code 2.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click
import yaml

from phalanx.api import gates
from phalanx.api.fields import dns_subdomain_faults
from phalanx.api.quantity import BadQuantity, value
from phalanx.controllers.nodes import SHAPE, SimulatedNode

PARTS = ("scheduler", "controllers", "nodes")
#: Labels that topology levels of these names are known by; another level is its own label.
_LEVELS = {
    "zone": "topology.kubernetes.io/zone",
    "region": "topology.kubernetes.io/region",
    "rack": "topology.kubernetes.io/rack",
    "block": "topology.kubernetes.io/block",
}
#: More simulated nodes than this are refused as a slip of the finger.
MAX_NODES = 100_000


def state_folder() -> Path:
    """Where a user's control plane keeps its state."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "phalanx"


def address(text: str) -> tuple[str, int]:
    """`HOST:PORT`, IPv6 hosts in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{text!r} is no HOST:PORT such as 127.0.0.1:6443")
    return host.strip("[]") or "127.0.0.1", int(port)


def parts(text: str) -> frozenset[str]:
    """A comma-separated list of parts of the control plane."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in PARTS:
            raise click.BadParameter(f"{name!r} is none of {', '.join(PARTS)}")
    return frozenset(names)


def feature_gates(text: str) -> gates.Gates:
    """`A=true,B=false`; whoever uses an old name is told so on stderr."""
    try:
        wanted = gates.parse(text)
        found = gates.gated(wanted)
    except gates.BadGates as error:
        raise click.BadParameter(str(error)) from None
    for told in gates.advice(wanted):
        click.echo(f"Warning: {told}", err=True)
    return found


def shape(text: str) -> dict[str, str]:
    """`cpu=8,memory=32Gi,nvidia.com/gpu=8`; what is not named stays as usual."""
    room = dict(SHAPE)
    for name, quantity in _pairs(text, "cpu=8,memory=32Gi"):
        room[name] = _quantity(quantity)
    return room


def topology(text: str) -> list[tuple[str, int]]:
    """`block=2,rack=4`: two blocks of four racks each, as (label, count per parent)."""
    levels = []
    for name, count in _pairs(text, "block=2,rack=4"):
        if not count.isdecimal() or int(count) < 1:
            raise click.BadParameter(f"{count!r} is no number of {name}s")
        levels.append((_LEVELS.get(name, name), int(count)))
    return levels


def nodes(
    text: str, room: Mapping[str, str], levels: Sequence[tuple[str, int]]
) -> list[SimulatedNode]:
    """A number of equal nodes, or a YAML file that describes them."""
    if text.isdecimal():
        count = int(text)
        if count > MAX_NODES:
            raise click.BadParameter(f"{count} nodes are more than {MAX_NODES}")
        width = max(len(str(count - 1)), 1)
        names = [f"node-{i:0{width}}" for i in range(count)]
        return [SimulatedNode(name, room, _place(i, count, levels)) for i, name in enumerate(names)]
    return _from_file(Path(text), room)


def _place(i: int, count: int, levels: Sequence[tuple[str, int]]) -> dict[str, str]:
    """The domains of the i-th node: nodes are dealt out in even, unbroken runs."""
    labels: dict[str, str] = {}
    total, path = 1, ""
    for label, per_parent in levels:
        total *= per_parent
        position = i * total // count
        path += f"-{position % per_parent}"
        labels[label] = f"{label.rpartition('/')[2]}{path}"
    return labels


def _from_file(path: Path, room: Mapping[str, str]) -> list[SimulatedNode]:
    """A YAML list of {name, count, room, labels}."""
    try:
        rows = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise click.BadParameter(f"{str(path)!r} is neither a number nor a file") from None
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        first = str(error).partition("\n")[0]
        raise click.BadParameter(f"cannot read {path}: {first}") from None
    if not isinstance(rows, list) or not all(isinstance(r, dict) and "name" in r for r in rows):
        raise click.BadParameter(f"{path} must be a list of nodes, each with a name")
    found = [node for row in rows for node in _row(row, room)]
    _check_names(node.name for node in found)
    return found


def _row(row: dict[str, object], room: Mapping[str, str]) -> list[SimulatedNode]:
    own, labels, count = row.get("room") or {}, row.get("labels") or {}, row.get("count", 1)
    if not isinstance(own, dict) or not isinstance(labels, dict) or not isinstance(count, int):
        raise click.BadParameter(f"node {row['name']}: room and labels are maps, count is a number")
    if not 1 <= count <= MAX_NODES:
        raise click.BadParameter(f"node {row['name']}: count must be from 1 to {MAX_NODES}")
    names = [f"{row['name']}-{i}" for i in range(count)] if "count" in row else [str(row["name"])]
    has = {**room, **{str(k): _quantity(str(v)) for k, v in own.items()}}
    known = {str(k): str(v) for k, v in labels.items()}
    return [SimulatedNode(name, has, known) for name in names]


def _check_names(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise click.BadParameter(f"there are two nodes of the name {name}")
        if faults := dns_subdomain_faults(name):
            raise click.BadParameter(f"{name!r} is no name for a node: {faults[0]}")
        seen.add(name)
    if len(seen) > MAX_NODES:
        raise click.BadParameter(f"{len(seen)} nodes are more than {MAX_NODES}")


def _quantity(text: str) -> str:
    try:
        if value(text) >= 0:
            return text
    except BadQuantity:
        pass
    raise click.BadParameter(f"{text!r} is no quantity such as 500m or 32Gi")


def _pairs(text: str, example: str) -> list[tuple[str, str]]:
    pairs = []
    for part in filter(None, text.split(",")):
        name, equals, what = part.partition("=")
        if not equals or not name or not what:
            raise click.BadParameter(f"{part!r} is not of the form {example}")
        pairs.append((name.strip(), what.strip()))
    return pairs
