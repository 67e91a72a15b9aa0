"""How long a simulated pod takes for what it does, given as data and drawn from a seed.

    start ─▶ running ─▶ ready … end of the run            deletion ─▶ gone
    `start`  `ready` (after running)   `run` (None: never)   `stop`

A pod says it itself by the annotation `phalanx.dev/stages` (YAML), or a file of rules says it for
pods by namespace and labels. The same pod under the same seed lives the same life every time: lots
come from a hash of the seed, the pod's place and what is drawn, and from nothing else. Above
nothing; `kubelets` lives the lives.

The kubelets of simulated nodes: one loop that moves all their pods through their stages.

    bound ─▶ creating ─▶ running ─▶ ready ─▶ ended        deleted ─▶ (stopping) ─▶ gone

Nothing is executed. What is due follows from the pod itself, from its start time and the life that
its stages give it (`stages`), so that a loop that was stopped goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any, NamedTuple

import yaml

from phalanx.api.annotations import USAGE_ANNOTATION, BadUsage, parse_usage_annotation
from phalanx.api.core import Pod
from phalanx.api.kinds import POD
from phalanx.api.meta import Key, ObjectMeta, find_condition, parse_timestamp, timestamp
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.nodes.pod_status import (
    CONTAINERS_NOT_READY,
    creating_status,
    rejected_status,
    running_status,
    status_patch,
    terminated_status,
)
from phalanx.controllers.reconcile_loop import (
    Delete,
    Informers,
    NodeClient,
    ReconcileLoop,
    ReconcilePlan,
)

#: A pod ends well after so many whole seconds; the short form of a run of one length.
RUN_SECONDS = "phalanx.dev/run-seconds"
#: All that a pod can say about its life.
STAGES = "phalanx.dev/stages"

#: Draws lots from 0 up to 1, one for each word.
RandomFraction = Callable[[str], float]


class BadStages(ValueError):
    """A text that is no stages: the field, and what is wrong with it."""


class _Distribution(NamedTuple):
    """One row: which figures it takes, and how seconds are drawn with them."""

    parameters: tuple[str, ...]
    sample: Callable[..., float]


def _uniform(fraction: RandomFraction, low: float, high: float) -> float:
    return low + (high - low) * fraction("a")


def _exponential(fraction: RandomFraction, mean: float) -> float:
    return -mean * math.log(1.0 - fraction("a"))


def _normal(fraction: RandomFraction, mean: float, deviation: float) -> float:
    radius = math.sqrt(-2.0 * math.log(1.0 - fraction("a")))
    return mean + deviation * radius * math.cos(2.0 * math.pi * fraction("b"))


_DISTRIBUTIONS: Mapping[str, _Distribution] = {
    "constant": _Distribution(("seconds",), lambda lots, seconds: seconds),
    "uniform": _Distribution(("low", "high"), _uniform),
    "exponential": _Distribution(("mean",), _exponential),
    "normal": _Distribution(("mean", "deviation"), _normal),
}


@dataclass(frozen=True, slots=True)
class StageDuration:
    """A length of time, in seconds: how it is distributed, and with which figures."""

    distribution: str = "constant"
    parameters: tuple[float, ...] = (0.0,)

    def sample(self, fraction: RandomFraction) -> float:
        """One such length; never below nothing."""
        return max(_DISTRIBUTIONS[self.distribution].sample(fraction, *self.parameters), 0.0)


@dataclass(frozen=True, slots=True)
class PodLifetime:
    """What comes of one pod: seconds for each stage, and the exit code at the end of its run."""

    start: float = 0.0
    ready: float = 0.0
    run: float | None = None
    stop: float = 0.0
    exit_code: int = 0


_ZERO = StageDuration()


@dataclass(frozen=True, slots=True)
class Stages:
    """What lives are drawn from. Without a `run` pods run until they are deleted."""

    start: StageDuration = _ZERO
    ready: StageDuration = _ZERO
    run: StageDuration | None = None
    stop: StageDuration = _ZERO
    failure: float = 0.0
    exit_code: int = 1
    seed: int = 0

    def sample_lifetime(self, pod: str) -> PodLifetime:
        """The life of one pod, the same whenever it is asked for."""
        return _sample_lifetime(self, pod)


@lru_cache(maxsize=8192)
def _sample_lifetime(stages: Stages, pod: str) -> PodLifetime:
    def span(word: str, of: StageDuration) -> float:
        return of.sample(partial(_hash_fraction, stages.seed, pod, word))

    fails = stages.failure > 0 and _hash_fraction(stages.seed, pod, "failure", "") < stages.failure
    return PodLifetime(
        span("start", stages.start), span("ready", stages.ready),
        None if stages.run is None else span("run", stages.run),
        span("stop", stages.stop), stages.exit_code if fails else 0,
    )  # fmt: skip


def _hash_fraction(seed: int, pod: str, what: str, word: str) -> float:
    """A number from 0 up to 1 that depends on these and on nothing else."""
    digest = blake2b(f"{seed}/{pod}/{what}/{word}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


@dataclass(frozen=True, slots=True)
class StageRule:
    """Stages for the pods of a namespace ("": of all) that have all these labels."""

    stages: Stages
    namespace: str = ""
    labels: tuple[tuple[str, str], ...] = ()

    def matches(self, meta: ObjectMeta) -> bool:
        """Whether this is one of the pods."""
        if self.namespace and meta.namespace != self.namespace:
            return False
        return all(meta.labels.get(key) == value for key, value in self.labels)


def stages_of(meta: ObjectMeta, rules: Sequence[StageRule] = ()) -> Stages:
    """What a pod's life is drawn from: its own word, else the first rule for it, else the usual.

    Raises BadStages if its own word cannot be read.
    """
    said = meta.annotations.get(STAGES)
    if said is not None:
        found = _parse_annotation(said)
    else:
        found = next((rule.stages for rule in rules if rule.matches(meta)), Stages())
    wish = meta.annotations.get(RUN_SECONDS, "")
    return (
        replace(found, run=StageDuration(parameters=(float(wish),))) if wish.isdecimal() else found
    )


@lru_cache(maxsize=1024)
def _parse_annotation(text: str) -> Stages:
    try:
        return parse_stages(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise BadStages(f"is no YAML: {str(error).partition(chr(10))[0]}") from None


def parse_stage_rules(rows: Any) -> list[StageRule]:
    """A file of rules: a list of stages, each with the `namespace` and `labels` it is for."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadStages("must be a list of rules, such as [{labels: {app: train}, run: 60}]")
    return [_parse_at(_parse_rule, row, f"[{i}]") for i, row in enumerate(rows)]


def _parse_rule(row: Mapping[str, Any]) -> StageRule:
    labels = row.get("labels") or {}
    if not isinstance(labels, dict):
        raise BadStages("labels: must be a map")
    pairs = tuple((str(key), str(value)) for key, value in sorted(labels.items()))
    rest = {key: value for key, value in row.items() if key not in ("namespace", "labels")}
    return StageRule(parse_stages(rest), str(row.get("namespace") or ""), pairs)


def parse_stages(value: Any) -> Stages:
    """Stages as YAML gives them; what is not said is as usual."""
    if value is None:
        return Stages()
    if not isinstance(value, dict):
        raise BadStages("must be a map, such as {start: 2, run: {uniform: [20, 40]}}")
    for name in value:
        if name not in _FIELD_PARSERS:
            raise BadStages(
                f"{name}: there is no such field; there are {', '.join(_FIELD_PARSERS)}"
            )
    found = {
        attribute: _parse_at(reader, value[name], f"{name}: ")
        for name, (attribute, reader) in _FIELD_PARSERS.items()
        if value.get(name) is not None
    }
    return Stages(**found)


def _parse_at(parse: Callable[[Any], Any], value: Any, path: str) -> Any:
    """What is read; what is wrong with it is told with its place."""
    try:
        return parse(value)
    except BadStages as error:
        raise BadStages(f"{path}{error}" if path.endswith(" ") else f"{path}.{error}") from None


def _parse_duration(value: Any) -> StageDuration:
    """A number of seconds, or one distribution with its figures: `{uniform: [20, 40]}`."""
    if not isinstance(value, dict):
        return StageDuration("constant", (_parse_seconds(value),))
    if len(value) != 1 or next(iter(value)) not in _DISTRIBUTIONS:
        raise BadStages(f"must be seconds, or one of {', '.join(_DISTRIBUTIONS)} with its figures")
    ((name, figures),) = value.items()
    wanted = _DISTRIBUTIONS[name].parameters
    found = tuple(map(_parse_seconds, figures if isinstance(figures, list) else [figures]))
    if len(found) != len(wanted):
        raise BadStages(f"{name} takes {len(wanted)} figures: {', '.join(wanted)}")
    if name == "uniform" and found[0] > found[1]:
        raise BadStages(f"uniform goes from the lower figure to the higher, not {list(found)}")
    return StageDuration(name, found)


def _parse_seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise BadStages(f"{value!r} is no number of seconds")
    return float(value)


def _parse_rate(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise BadStages(f"{value!r} is no rate from 0 to 1")
    return float(value)


def _integer_parser(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise BadStages(f"{value!r} is no whole number from {low} to {high}")
        return value

    return read


#: Field -> the attribute that it fills, and how it is read.
_FIELD_PARSERS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "start": ("start", _parse_duration),
    "ready": ("ready", _parse_duration),
    "run": ("run", _parse_duration),
    "stop": ("stop", _parse_duration),
    "failure": ("failure", _parse_rate),
    "exitCode": ("exit_code", _integer_parser(1, 255)),
    "seed": ("seed", _integer_parser(0, 2**63 - 1)),
}
assert {attribute for attribute, _ in _FIELD_PARSERS.values()} == {
    one.name for one in fields(Stages)
}


_WORKERS = 16
#: Exit codes of what ended when it was asked to, and of what did not and was killed.
EXIT_SIGTERM, EXIT_SIGKILL = 143, 137


class SimulatedKubelets:
    """The kubelets of the nodes of these names, all in one; each asks as its node, if it can."""

    def __init__(
        self, client: Client, informers: Informers, clock: Clock, names: Collection[str],
        rules: Sequence[StageRule] = (), node_client: NodeClient | None = None,
    ) -> None:  # fmt: skip
        self._clock, self._names, self._rules = clock, names, rules
        self._node_client = node_client or (lambda name: client)
        self._pods = informers.of(POD, Pod).cache
        self._loop: ReconcileLoop[Key] = ReconcileLoop(
            client, self.reconcile, _WORKERS, client_for=self._client_for
        )
        self._pods.subscribe(self._on_pod_changed)

    async def run(self) -> None:
        """Be their kubelets until cancelled."""
        await self._loop.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """What the kubelet of its node does about a pod."""
        pod = self._pods.get(key)
        if pod is None or pod.spec.node_name not in self._names:
            return ReconcilePlan()
        try:
            life = stages_of(pod.metadata, self._rules).sample_lifetime(str(key))
            parse_usage_annotation(pod.metadata.annotations)
        except BadStages as error:
            return self._reject(pod, "InvalidStages", f"annotation {STAGES}: {error}")
        except BadUsage as error:
            return self._reject(pod, "InvalidUsage", f"annotation {USAGE_ANNOTATION}: {error}")
        if pod.metadata.deletion_timestamp:
            return self._terminate(pod, life)
        if pod.is_terminal:
            return ReconcilePlan()
        return self._start(pod, life) if pod.status.phase == "Pending" else self._advance(pod, life)

    def _client_for(self, key: Key) -> Client:
        pod = self._pods.get(key)
        return self._node_client(pod.spec.node_name if pod else "")

    def _reject(self, pod: Pod, reason: str, message: str) -> ReconcilePlan:
        """A pod whose word about itself cannot be read is not run at all."""
        if pod.metadata.deletion_timestamp:
            return ReconcilePlan([self._delete_action(pod)])
        return (
            ReconcilePlan()
            if pod.is_terminal
            else ReconcilePlan([status_patch(pod, rejected_status(reason, message))])
        )

    def _start(self, pod: Pod, lifetime: PodLifetime) -> ReconcilePlan:
        now = self._clock.now()
        begin = pod.status.start_time or timestamp(now)
        left = (
            parse_timestamp(begin) + lifetime.start - now
            if pod.status.start_time
            else lifetime.start
        )
        if left > 0:
            taken_in = (
                [] if pod.status.start_time else [status_patch(pod, creating_status(pod, begin))]
            )
            return ReconcilePlan(taken_in, requeue_after=left)
        is_ready = lifetime.ready == 0
        return ReconcilePlan(
            [status_patch(pod, running_status(pod, timestamp(now), begin, ready=is_ready))]
        )

    def _advance(self, pod: Pod, lifetime: PodLifetime) -> ReconcilePlan:
        """Whatever is due of a pod that runs: to become ready, to end, or to wait for either."""
        if not pod.status.start_time:
            return ReconcilePlan()
        now = self._clock.now()
        begin = parse_timestamp(pod.status.start_time) + lifetime.start
        if lifetime.run is not None and begin + lifetime.run <= now:
            return ReconcilePlan(
                [
                    status_patch(
                        pod,
                        terminated_status(
                            pod, lifetime.exit_code, timestamp(begin), timestamp(now)
                        ),
                    )
                ]
            )
        left = [] if lifetime.run is None else [begin + lifetime.run - now]
        if _is_warming_up(pod):
            until_ready = begin + lifetime.ready - now
            if until_ready <= 0:
                status = running_status(pod, timestamp(begin), pod.status.start_time, ready=True)
                return ReconcilePlan(
                    [status_patch(pod, status)], requeue_after=min(left, default=None)
                )
            left.append(until_ready)
        return ReconcilePlan(requeue_after=min(left, default=None))

    def _terminate(self, pod: Pod, lifetime: PodLifetime) -> ReconcilePlan:
        """Let a pod end in its own time, but not beyond its grace period; then it is gone."""
        if pod.is_terminal:
            return ReconcilePlan([self._delete_action(pod)])
        now, grace = self._clock.now(), pod.metadata.deletion_grace_period_seconds
        left = (
            parse_timestamp(pod.metadata.deletion_timestamp)
            - grace
            + min(lifetime.stop, grace)
            - now
        )
        if pod.status.phase == "Running" and left > 0:
            return ReconcilePlan(requeue_after=left)
        code = EXIT_SIGTERM if lifetime.stop <= grace else EXIT_SIGKILL
        end, begin = timestamp(now), pod.status.start_time
        begin = timestamp(parse_timestamp(begin) + lifetime.start) if begin else end
        return ReconcilePlan(
            [status_patch(pod, terminated_status(pod, code, begin, end)), self._delete_action(pod)]
        )

    def _delete_action(self, pod: Pod) -> Delete:
        return Delete(POD, pod.metadata.key, pod.metadata.uid, grace=0)

    def _on_pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.spec.node_name in self._names:
            self._loop.queue.add(new.metadata.key)


def _is_warming_up(pod: Pod) -> bool:
    """Whether a pod that runs has not been ready yet."""
    ready = find_condition(pod.status.conditions, "Ready")
    return ready is not None and ready.status == "False" and ready.reason == CONTAINERS_NOT_READY
