"""Texts of options as values: addresses, node shapes, topologies, lists of parts.

A text that cannot be read is a click.BadParameter: one sentence, exit code 2.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import yaml

from phalanx.api import gates
from phalanx.api.quantity import BadQuantity, value
from phalanx.cli.pools import LEVELS, MAX_NODES, BadCluster, load_nodes, numbered
from phalanx.controllers.nodes.nodes import SHAPE, SimulatedNode
from phalanx.controllers.nodes.stages import BadStages, Rule, rules

PARTS = ("scheduler", "controllers", "nodes")


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
        levels.append((LEVELS.get(name, name), int(count)))
    return levels


def nodes(
    text: str, room: Mapping[str, str], levels: Sequence[tuple[str, int]]
) -> list[SimulatedNode]:
    """A number of equal nodes, or a YAML file that describes them."""
    if text.isdecimal():
        count = int(text)
        if count > MAX_NODES:
            raise click.BadParameter(f"{count} nodes are more than {MAX_NODES}")
        return numbered(count, room, levels).nodes()
    try:
        return load_nodes(Path(text), room, levels)
    except BadCluster as error:
        raise click.BadParameter(f"{text!r}: {error}") from None


def stage_rules(path: Path | None) -> list[Rule]:
    """How simulated pods live that do not say so themselves: a YAML file of rules."""
    if path is None:
        return []
    try:
        return rules(yaml.safe_load(path.read_text()))
    except (BadStages, OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        first = str(error).partition("\n")[0]
        raise click.BadParameter(f"{str(path)!r}: {first}", param_hint="--stages") from None


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
