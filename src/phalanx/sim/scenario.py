"""The scenario file: a cluster, what happens to it and when, in a few lines of YAML.

    seed: 7
    nodes: {count: 2, each: {gpu: 4}}                         # node-0 and node-1
    at 0:  {gang: train-a, pods: 6, each: {gpu: 1}, run: 60s} # 6 members, all needed
    at 1:                                                     # a list happens all at once
      - {gang: train-b, pods: 4, min: 2, each: {gpu: 1}}
      - {cordon: node-1}
    at 5:  {pod: shy, labels: {app: a}, spec: {affinity: …}}  # the rest as a manifest has it
    until: 120
    gates: {GangScheduling: false}                            # features that are on or off

`parse` turns the text into a Scenario or raises BadScenario; `run.run` acts it out. The events are
in `events`, what values look like in `fields`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import yaml

from phalanx.api.gates import DEFAULT, BadGates, Gates, gated
from phalanx.sim.events import Cast, Event, Machine, read_event, read_machines
from phalanx.sim.fields import (
    BadScenario,
    Fields,
    Reader,
    flag,
    integer,
    mapping,
    seconds,
    several,
)

#: Seconds that a scenario goes on after its last event, unless it says until when.
AFTERWARDS = 60.0
_AT = "at "


@dataclass(frozen=True, slots=True)
class Moment:
    """What happens at a time, all at once."""

    at: float
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cluster and its fate. The same scenario always runs the same way."""

    seed: int
    nodes: tuple[Machine, ...]
    moments: tuple[Moment, ...]
    until: float
    gates: Gates = DEFAULT


def parse(text: str) -> Scenario:
    """Read a scenario file."""
    try:
        found = yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise BadScenario(where, "YAML", error.problem) from None
    except yaml.YAMLError as error:
        raise BadScenario("", "YAML", str(error)) from None
    fields, cast = Fields("", found), Cast()
    seed, gates = fields.get("seed", integer, 0), fields.get("gates", _gates, DEFAULT)
    nodes = fields.take("nodes", lambda path, group: read_machines(cast, path, group))
    moments = _moments(fields, cast)
    last = moments[-1].at if moments else 0.0
    until = fields.get("until", seconds, last + AFTERWARDS)
    fields.close()
    if until < last:
        raise BadScenario("until", f"a time not before the last event, {last:g}", until)
    return Scenario(seed, nodes, moments, until, gates)


def _gates(path: str, found: object) -> Gates:
    wanted = {name: flag(f"{path}.{name}", is_on) for name, is_on in mapping(path, found).items()}
    try:
        return gated(wanted)
    except BadGates as error:
        raise BadScenario(path, f"feature gates that go together ({error})", found) from None


def _moments(fields: Fields, cast: Cast) -> tuple[Moment, ...]:
    """The events in the order of time, so that each knows who came before it."""
    events: Reader[tuple[Event, ...]] = several(lambda path, found: read_event(cast, path, found))
    keys: dict[float, str] = {}
    for key in fields.rest():
        if key.startswith(_AT):
            at = seconds(key, key.removeprefix(_AT).strip())
            if at in keys:
                raise BadScenario(key, f"another time than that of {keys[at]}", at)
            keys[at] = key
    return tuple(Moment(at, fields.take(keys[at], events)) for at in sorted(keys))


class _Loader(yaml.SafeLoader):
    """The safe loader, minding names that stand twice: YAML would silently drop the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: list[object] = []
        for key, _ in node.value:
            entry = self.construct_object(key, deep=True)
            if entry in seen:
                where = f"line {key.start_mark.line + 1}"
                raise BadScenario(where, "each name once", entry)
            seen.append(entry)
        return super().construct_mapping(node, deep)
