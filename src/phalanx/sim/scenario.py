"""The scenario file: a cluster and what happens to it, in YAML.

    seed: 7
    nodes: {count: 2, each: {gpu: 4}}                         # node-0 and node-1
    at 0:  {gang: train-a, pods: 6, each: {gpu: 1}, run: 60s} # 6 members, minCount 6
    at 1:                                                     # a list: all at once
      - {gang: train-b, pods: 4, min: 2, each: {gpu: 1}}
      - {cordon: node-1}
    at 5:  {pod: shy, labels: {app: a}, spec: {affinity: …}}  # other fields as in a manifest
    until: 120
    gates: {GangScheduling: false}                            # feature gates

`parse_scenario` returns a Scenario or raises InvalidScenario; `simulation.run_scenario` runs it.
Events are in `events`, values in `fields`.
"""

from __future__ import annotations

from dataclasses import dataclass

import yaml

from phalanx.api.feature_gates import DEFAULT_GATES, BadFeatureGates, FeatureGates, resolve_gates
from phalanx.sim.events import ScenarioEvent, ScenarioNames, ScenarioNode, read_event, read_nodes
from phalanx.sim.fields import (
    FieldReader,
    InvalidScenario,
    ScenarioFields,
    read_flag,
    read_integer,
    read_mapping,
    read_one_or_many,
    read_seconds,
)
from phalanx.yaml_files import UniqueKeyLoader

#: Seconds after the last event, unless the scenario has `until`.
DEFAULT_TAIL = 60.0
_TIME_PREFIX = "at "


@dataclass(frozen=True, slots=True)
class ScenarioMoment:
    """The events of one time."""

    at: float
    events: tuple[ScenarioEvent, ...]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cluster and its events. The same scenario always runs the same way."""

    seed: int
    nodes: tuple[ScenarioNode, ...]
    moments: tuple[ScenarioMoment, ...]
    until: float
    gates: FeatureGates = DEFAULT_GATES


def parse_scenario(text: str) -> Scenario:
    """Parse a scenario file. Raises InvalidScenario."""
    try:
        found = yaml.load(text, UniqueKeyLoader)
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InvalidScenario(where, "YAML", error.problem) from None
    except yaml.YAMLError as error:
        raise InvalidScenario("", "YAML", str(error)) from None
    fields, names = ScenarioFields("", found), ScenarioNames()
    seed, gates = (
        fields.get("seed", read_integer, 0),
        fields.get("gates", _read_gates, DEFAULT_GATES),
    )
    nodes = fields.require("nodes", lambda path, group: read_nodes(names, path, group))
    moments = _read_moments(fields, names)
    last = moments[-1].at if moments else 0.0
    until = fields.get("until", read_seconds, last + DEFAULT_TAIL)
    fields.reject_unread()
    if until < last:
        raise InvalidScenario("until", f"a time not before the last event, {last:g}", until)
    return Scenario(seed, nodes, moments, until=until, gates=gates)


def _read_gates(path: str, found: object) -> FeatureGates:
    wanted = {
        name: read_flag(f"{path}.{name}", is_on)
        for name, is_on in read_mapping(path, found).items()
    }
    try:
        return resolve_gates(wanted)
    except BadFeatureGates as error:
        raise InvalidScenario(path, f"feature gates that go together ({error})", found) from None


def _read_moments(fields: ScenarioFields, known: ScenarioNames) -> tuple[ScenarioMoment, ...]:
    """Read the events in the order of time, so that each can refer to earlier ones."""
    events: FieldReader[tuple[ScenarioEvent, ...]] = read_one_or_many(
        lambda path, found: read_event(known, path, found)
    )
    keys: dict[float, str] = {}
    for key in fields.unread():
        if key.startswith(_TIME_PREFIX):
            at = read_seconds(key, key.removeprefix(_TIME_PREFIX).strip())
            if at in keys:
                raise InvalidScenario(key, f"another time than that of {keys[at]}", at)
            keys[at] = key
    return tuple(ScenarioMoment(at, fields.require(keys[at], events)) for at in sorted(keys))
