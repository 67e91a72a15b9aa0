"""How long a simulated pod takes for what it does, given as data and drawn from a seed.

    start ─▶ running ─▶ ready … end of the run            deletion ─▶ gone
    `start`  `ready` (after running)   `run` (None: never)   `stop`

A pod says it itself by the annotation `phalanx.dev/stages` (YAML), or a file of rules says it for
pods by namespace and labels. The same pod under the same seed lives the same life every time: lots
come from a hash of the seed, the pod's place and what is drawn, and from nothing else. Above
nothing; `kubelets` lives the lives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any, NamedTuple

import yaml

from phalanx.api.meta import Meta

#: A pod ends well after so many whole seconds; the short form of a run of one length.
RUN_SECONDS = "phalanx.dev/run-seconds"
#: All that a pod can say about its life.
STAGES = "phalanx.dev/stages"

#: Draws lots from 0 up to 1, one for each word.
Lots = Callable[[str], float]


class BadStages(ValueError):
    """A text that is no stages: the field, and what is wrong with it."""


class _Distribution(NamedTuple):
    """One row: which figures it takes, and how seconds are drawn with them."""

    figures: tuple[str, ...]
    draw: Callable[..., float]


def _uniform(lots: Lots, low: float, high: float) -> float:
    return low + (high - low) * lots("a")


def _exponential(lots: Lots, mean: float) -> float:
    return -mean * math.log(1.0 - lots("a"))


def _normal(lots: Lots, mean: float, deviation: float) -> float:
    radius = math.sqrt(-2.0 * math.log(1.0 - lots("a")))
    return mean + deviation * radius * math.cos(2.0 * math.pi * lots("b"))


_DISTRIBUTIONS: Mapping[str, _Distribution] = {
    "constant": _Distribution(("seconds",), lambda lots, seconds: seconds),
    "uniform": _Distribution(("low", "high"), _uniform),
    "exponential": _Distribution(("mean",), _exponential),
    "normal": _Distribution(("mean", "deviation"), _normal),
}


@dataclass(frozen=True, slots=True)
class Span:
    """A length of time, in seconds: how it is distributed, and with which figures."""

    distribution: str = "constant"
    figures: tuple[float, ...] = (0.0,)

    def drawn(self, lots: Lots) -> float:
        """One such length; never below nothing."""
        return max(_DISTRIBUTIONS[self.distribution].draw(lots, *self.figures), 0.0)


@dataclass(frozen=True, slots=True)
class Life:
    """What comes of one pod: seconds for each stage, and the exit code at the end of its run."""

    start: float = 0.0
    ready: float = 0.0
    run: float | None = None
    stop: float = 0.0
    exit_code: int = 0


_AT_ONCE = Span()


@dataclass(frozen=True, slots=True)
class Stages:
    """What lives are drawn from. Without a `run` pods run until they are deleted."""

    start: Span = _AT_ONCE
    ready: Span = _AT_ONCE
    run: Span | None = None
    stop: Span = _AT_ONCE
    failure: float = 0.0
    exit_code: int = 1
    seed: int = 0

    def life(self, who: str) -> Life:
        """The life of one pod, the same whenever it is asked for."""
        return _life(self, who)


@lru_cache(maxsize=8192)
def _life(stages: Stages, who: str) -> Life:
    def span(word: str, of: Span) -> float:
        return of.drawn(partial(_lot, stages.seed, who, word))

    fails = stages.failure > 0 and _lot(stages.seed, who, "failure", "") < stages.failure
    return Life(
        span("start", stages.start), span("ready", stages.ready),
        None if stages.run is None else span("run", stages.run),
        span("stop", stages.stop), stages.exit_code if fails else 0,
    )  # fmt: skip


def _lot(seed: int, who: str, what: str, word: str) -> float:
    """A number from 0 up to 1 that depends on these and on nothing else."""
    digest = blake2b(f"{seed}/{who}/{what}/{word}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


@dataclass(frozen=True, slots=True)
class Rule:
    """Stages for the pods of a namespace ("": of all) that have all these labels."""

    stages: Stages
    namespace: str = ""
    labels: tuple[tuple[str, str], ...] = ()

    def applies(self, meta: Meta) -> bool:
        """Whether this is one of the pods."""
        if self.namespace and meta.namespace != self.namespace:
            return False
        return all(meta.labels.get(key) == value for key, value in self.labels)


def stages_of(meta: Meta, rules: Sequence[Rule] = ()) -> Stages:
    """What a pod's life is drawn from: its own word, else the first rule for it, else the usual.

    Raises BadStages if its own word cannot be read.
    """
    said = meta.annotations.get(STAGES)
    if said is not None:
        found = _read(said)
    else:
        found = next((rule.stages for rule in rules if rule.applies(meta)), Stages())
    wish = meta.annotations.get(RUN_SECONDS, "")
    return replace(found, run=Span(figures=(float(wish),))) if wish.isdecimal() else found


@lru_cache(maxsize=1024)
def _read(text: str) -> Stages:
    try:
        return stages(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise BadStages(f"is no YAML: {str(error).partition(chr(10))[0]}") from None


def rules(rows: Any) -> list[Rule]:
    """A file of rules: a list of stages, each with the `namespace` and `labels` it is for."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadStages("must be a list of rules, such as [{labels: {app: train}, run: 60}]")
    return [_placed(_rule, row, f"[{i}]") for i, row in enumerate(rows)]


def _rule(row: Mapping[str, Any]) -> Rule:
    labels = row.get("labels") or {}
    if not isinstance(labels, dict):
        raise BadStages("labels: must be a map")
    pairs = tuple((str(key), str(value)) for key, value in sorted(labels.items()))
    rest = {key: value for key, value in row.items() if key not in ("namespace", "labels")}
    return Rule(stages(rest), str(row.get("namespace") or ""), pairs)


def stages(given: Any) -> Stages:
    """Stages as YAML gives them; what is not said is as usual."""
    if given is None:
        return Stages()
    if not isinstance(given, dict):
        raise BadStages("must be a map, such as {start: 2, run: {uniform: [20, 40]}}")
    for name in given:
        if name not in _READERS:
            raise BadStages(f"{name}: there is no such field; there are {', '.join(_READERS)}")
    found = {
        attribute: _placed(reader, given[name], f"{name}: ")
        for name, (attribute, reader) in _READERS.items()
        if given.get(name) is not None
    }
    return Stages(**found)


def _placed(reader: Callable[[Any], Any], value: Any, place: str) -> Any:
    """What is read; what is wrong with it is told with its place."""
    try:
        return reader(value)
    except BadStages as error:
        raise BadStages(f"{place}{error}" if place.endswith(" ") else f"{place}.{error}") from None


def _span(value: Any) -> Span:
    """A number of seconds, or one distribution with its figures: `{uniform: [20, 40]}`."""
    if not isinstance(value, dict):
        return Span("constant", (_figure(value),))
    if len(value) != 1 or next(iter(value)) not in _DISTRIBUTIONS:
        raise BadStages(f"must be seconds, or one of {', '.join(_DISTRIBUTIONS)} with its figures")
    ((name, figures),) = value.items()
    wanted = _DISTRIBUTIONS[name].figures
    found = tuple(map(_figure, figures if isinstance(figures, list) else [figures]))
    if len(found) != len(wanted):
        raise BadStages(f"{name} takes {len(wanted)} figures: {', '.join(wanted)}")
    if name == "uniform" and found[0] > found[1]:
        raise BadStages(f"uniform goes from the lower figure to the higher, not {list(found)}")
    return Span(name, found)


def _figure(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise BadStages(f"{value!r} is no number of seconds")
    return float(value)


def _rate(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise BadStages(f"{value!r} is no rate from 0 to 1")
    return float(value)


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise BadStages(f"{value!r} is no whole number from {low} to {high}")
        return value

    return read


#: Field -> the attribute that it fills, and how it is read.
_READERS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "start": ("start", _span),
    "ready": ("ready", _span),
    "run": ("run", _span),
    "stop": ("stop", _span),
    "failure": ("failure", _rate),
    "exitCode": ("exit_code", _whole(1, 255)),
    "seed": ("seed", _whole(0, 2**63 - 1)),
}
assert {attribute for attribute, _ in _READERS.values()} == {one.name for one in fields(Stages)}
