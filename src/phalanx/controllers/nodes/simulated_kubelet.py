"""The kubelet of simulated nodes: moves pods through their stages without executing anything.

    admitted ─▶ creating ─▶ running ─▶ ready ─▶ terminated     deleted ─▶ terminating ─▶ removed
                `start`     `ready`    `run` (None: endless)              `stop`

`Stages` says how long each stage takes: a constant or a distribution. A pod has them in its
annotation `phalanx.dev/stages` (YAML), or a file of rules gives them by namespace and labels.

    phalanx.dev/stages: "{start: 2, run: {uniform: [20, 40]}, failure: 0.1}"

The same pod with the same seed has the same lifetime every time: samples are a hash of the seed,
the pod's key and the stage. The next step follows from the pod's status and lifetime alone, so that
a kubelet that was interrupted continues where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from hashlib import blake2b
from reprlib import repr as shorten
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from phalanx import logs
from phalanx.api.core import Pod
from phalanx.api.errors import ApiError
from phalanx.api.kinds import POD
from phalanx.api.meta import Key, ObjectMeta, find_condition, parse_timestamp, timestamp
from phalanx.api.resources import USAGE_ANNOTATION, BadUsage, parse_usage_annotation
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.nodes.pod_status import (
    CONTAINERS_NOT_READY,
    creating_status,
    exceeded_status,
    late_patches,
    rejected_status,
    running_status,
    status_patch,
    terminated_status,
)
from phalanx.controllers.reconcile_loop import (
    Action,
    Delete,
    Informers,
    NodeClient,
    ReconcileLoop,
    ReconcilePlan,
    treat_denial_as_stale,
)

if TYPE_CHECKING:
    from phalanx.controllers.nodes.pod_admission import PodAdmission

LOG = logs.component("simulated-kubelet")

#: Annotation: the pod succeeds after this many whole seconds. Short form of a constant `run`.
RUN_SECONDS = "phalanx.dev/run-seconds"
#: Annotation: the stages of the pod.
STAGES = "phalanx.dev/stages"
#: The longest text of this annotation, and the most digits of the other: some 30 years.
_MAX_ANNOTATION, _MAX_DIGITS = 1024, 9

#: Returns a number from 0 up to 1 for each label.
RandomFraction = Callable[[str], float]


class BadStages(ValueError):
    """Invalid stages: the field and what is wrong with it."""


class _Distribution(NamedTuple):
    """The parameters of a distribution, and how to sample seconds from it."""

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
    "constant": _Distribution(("seconds",), lambda fraction, seconds: seconds),
    "uniform": _Distribution(("low", "high"), _uniform),
    "exponential": _Distribution(("mean",), _exponential),
    "normal": _Distribution(("mean", "deviation"), _normal),
}


@dataclass(frozen=True, slots=True)
class StageDuration:
    """A duration in seconds: a distribution and its parameters."""

    distribution: str = "constant"
    parameters: tuple[float, ...] = (0.0,)

    def sample(self, fraction: RandomFraction) -> float:
        """Return a sample; never negative."""
        return max(_DISTRIBUTIONS[self.distribution].sample(fraction, *self.parameters), 0.0)


@dataclass(frozen=True, slots=True)
class PodLifetime:
    """The sampled seconds of each stage of one pod, and its exit code."""

    start: float = 0.0
    ready: float = 0.0
    run: float | None = None
    stop: float = 0.0
    exit_code: int = 0


_ZERO = StageDuration()


@dataclass(frozen=True, slots=True)
class Stages:
    """The durations from which lifetimes are sampled; without `run` pods run until deleted."""

    start: StageDuration = _ZERO
    ready: StageDuration = _ZERO
    run: StageDuration | None = None
    stop: StageDuration = _ZERO
    failure: float = 0.0
    exit_code: int = 1
    seed: int = 0

    def sample_lifetime(self, pod: str) -> PodLifetime:
        """Return the lifetime of a pod; always the same for the same pod."""
        return _sample_lifetime(self, pod)


@lru_cache(maxsize=2048)
def _sample_lifetime(stages: Stages, pod: str) -> PodLifetime:
    def fraction(stage: str, label: str) -> float:
        """Return a number from 0 up to 1 that depends only on the seed and the three names."""
        digest = blake2b(f"{stages.seed}/{pod}/{stage}/{label}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64

    def sample(stage: str, duration: StageDuration) -> float:
        return duration.sample(partial(fraction, stage))

    fails = stages.failure > 0 and fraction("failure", "") < stages.failure
    return PodLifetime(
        start=sample("start", stages.start),
        ready=sample("ready", stages.ready),
        run=None if stages.run is None else sample("run", stages.run),
        stop=sample("stop", stages.stop),
        exit_code=stages.exit_code if fails else 0,
    )


@dataclass(frozen=True, slots=True)
class StageRule:
    """Stages for the pods of a namespace ("": all namespaces) with these labels."""

    stages: Stages
    namespace: str = ""
    labels: tuple[tuple[str, str], ...] = ()

    def matches(self, meta: ObjectMeta) -> bool:
        """Whether the rule applies to a pod."""
        if self.namespace and meta.namespace != self.namespace:
            return False
        return all(meta.labels.get(key) == value for key, value in self.labels)


def stages_of(meta: ObjectMeta, rules: Sequence[StageRule] = ()) -> Stages:
    """Return the stages of a pod: its annotation, else the first matching rule, else the default.

    Raises BadStages, which names the annotation, if one is invalid.
    """
    annotation = meta.annotations.get(STAGES)
    if annotation is not None:
        if len(annotation) > _MAX_ANNOTATION:
            raise BadStages(f"annotation {STAGES}: longer than {_MAX_ANNOTATION} characters")
        try:
            stages = _parse_annotation(annotation)
        except BadStages as error:
            raise BadStages(f"annotation {STAGES}: {error}") from None
    else:
        stages = next((rule.stages for rule in rules if rule.matches(meta)), Stages())
    seconds = meta.annotations.get(RUN_SECONDS)
    if seconds is None:
        return stages
    if not (seconds.isascii() and seconds.isdecimal()) or len(seconds) > _MAX_DIGITS:
        shown = seconds[:_MAX_DIGITS]
        raise BadStages(f'annotation {RUN_SECONDS}: must be a number of seconds, not "{shown}"')
    return _with_run_seconds(stages, float(seconds))


@lru_cache(maxsize=1024)
def _with_run_seconds(stages: Stages, seconds: float) -> Stages:
    """The same value for many pods: `_sample_lifetime` keeps it for each of them."""
    return replace(stages, run=StageDuration(parameters=(seconds,)))


@lru_cache(maxsize=1024)
def _parse_annotation(text: str) -> Stages:
    """Parse the annotation of a pod; any tenant may have written it."""
    try:
        value = yaml.load(text, _StagesLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadStages(f"invalid YAML: {str(error).partition(chr(10))[0]}") from None
    return parse_stages(value)


class _StagesLoader(yaml.SafeLoader):
    """Reads YAML without aliases: few of them can stand for more than fits in memory."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not supported")
        return super().compose_node(parent, index)


def parse_stage_rules(rows: Any) -> list[StageRule]:
    """Parse the rows of a rule file: stages with the `namespace` and `labels` they apply to."""
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
    """Parse stages from YAML values; missing fields keep their defaults."""
    if value is None:
        return Stages()
    if not isinstance(value, dict):
        raise BadStages("must be a map, such as {start: 2, run: {uniform: [20, 40]}}")
    for name in value:
        if name not in _FIELD_PARSERS:
            raise BadStages(f"{name}: unknown field; available: {', '.join(_FIELD_PARSERS)}")
    values = {
        attribute: _parse_at(parse, value[name], f"{name}: ")
        for name, (attribute, parse) in _FIELD_PARSERS.items()
        if value.get(name) is not None
    }
    return Stages(**values)


def _parse_at(parse: Callable[[Any], Any], value: Any, path: str) -> Any:
    """Parse a value; an error names its path."""
    try:
        return parse(value)
    except BadStages as error:
        raise BadStages(f"{path}{error}" if path.endswith(" ") else f"{path}.{error}") from None


def _parse_duration(value: Any) -> StageDuration:
    """Parse a number of seconds, or a distribution with parameters: `{uniform: [20, 40]}`."""
    if not isinstance(value, dict):
        return StageDuration("constant", (_parse_seconds(value),))
    if len(value) != 1 or next(iter(value)) not in _DISTRIBUTIONS:
        raise BadStages(f"must be seconds, or one of {', '.join(_DISTRIBUTIONS)} with parameters")
    ((name, given),) = value.items()
    expected = _DISTRIBUTIONS[name].parameters
    parameters = tuple(map(_parse_seconds, given if isinstance(given, list) else [given]))
    if len(parameters) != len(expected):
        raise BadStages(f"{name} takes {len(expected)} parameters: {', '.join(expected)}")
    if name == "uniform" and parameters[0] > parameters[1]:
        raise BadStages(f"uniform takes the lower bound first, not {list(parameters)}")
    return StageDuration(name, parameters)


def _parse_seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise BadStages(f"{shorten(value)} is not a number of seconds")
    return float(value)


def _parse_rate(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise BadStages(f"{shorten(value)} is not a number from 0 to 1")
    return float(value)


def _integer_parser(low: int, high: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise BadStages(f"{shorten(value)} is not an integer from {low} to {high}")
        return value

    return parse


#: Field -> the attribute of `Stages`, and its parser.
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


#: Enough to keep a server busy that has nothing else to do. Beside pods that are being created and
#: bound, simulated kubelets take a small share of it.
_WORKERS = 4
#: Sums of times since the epoch differ by less than this. Without it a pod that ends now is queued
#: again for less than a microsecond.
_CLOCK_ERROR = 1e-6
#: Exit codes of a container that ended on SIGTERM, and of one that was killed.
EXIT_SIGTERM, EXIT_SIGKILL = 143, 137


class SimulatedKubelets:
    """The kubelets of all simulated nodes; pods are written with `node_client(node)` if given."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        *,
        names: Collection[str],
        admission: PodAdmission,
        rules: Sequence[StageRule] = (),
        node_client: NodeClient | None = None,
    ) -> None:
        self._clock, self._names, self._rules = clock, names, rules
        self._admission = admission
        self._node_client = node_client or (lambda name: client)
        self._pods = informers.of(Pod).cache
        #: When pods were started, by uid: the API keeps whole seconds only, which serve after a
        #: restart of the kubelets.
        self._started: dict[str, float] = {}
        self._loop: ReconcileLoop[Key] = ReconcileLoop(
            client,
            self.reconcile,
            _WORKERS,
            client_for=self._client_for,
            on_error=self._on_error,
        )
        self._pods.subscribe(self._on_pod_changed)

    async def run(self) -> None:
        """Move pods through their stages until cancelled."""
        await self._loop.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Plan the next step of a pod."""
        pod = self._pods.get(key)
        if pod is None or not self._has_next_step(pod):
            return ReconcilePlan()
        try:
            lifetime = stages_of(pod.metadata, self._rules).sample_lifetime(str(key))
            parse_usage_annotation(pod.metadata.annotations)
        except BadStages as error:
            return self._reject(pod, "InvalidStages", str(error))
        except BadUsage as error:
            return self._reject(pod, "InvalidUsage", f"annotation {USAGE_ANNOTATION}: {error}")
        if pod.metadata.deletion_timestamp:
            return self._terminate(pod, lifetime)
        if pod.status.phase == "Pending":
            rejection = self._admission.check(pod)
            if rejection is None:
                return self._start(pod, lifetime)
            LOG.info("pod rejected", kind="Pod", key=key, reason=rejection.message)
            return ReconcilePlan(rejection.actions(pod, timestamp(self._clock.now())))
        return self._advance(pod, lifetime)

    def _client_for(self, key: Key) -> Client:
        pod = self._pods.get(key)
        return self._node_client(pod.spec.node_name if pod else "")

    def _on_error(self, key: Key, action: Action, error: ApiError) -> None:
        treat_denial_as_stale(self._loop.queue, key, error)

    def _reject(self, pod: Pod, reason: str, message: str) -> ReconcilePlan:
        """Fail a pod whose annotations are invalid; it never runs."""
        if pod.metadata.deletion_timestamp:
            return ReconcilePlan([self._delete_action(pod)])
        LOG.info("pod rejected", kind="Pod", key=pod.metadata.key, reason=message)
        return ReconcilePlan([status_patch(pod, rejected_status(reason, message))])

    def _start(self, pod: Pod, lifetime: PodLifetime) -> ReconcilePlan:
        now = self._clock.now()
        begin, left = pod.status.start_time or timestamp(now), lifetime.start
        if pod.status.start_time:
            left += self._start_time(pod) - now
        else:
            self._started[pod.metadata.uid] = now
        if left > 0:
            creating = status_patch(pod, creating_status(pod, begin))
            return ReconcilePlan([] if pod.status.start_time else [creating], requeue_after=left)
        is_ready = lifetime.ready == 0
        return ReconcilePlan(
            [status_patch(pod, running_status(pod, timestamp(now), begin, ready=is_ready))]
        )

    def _advance(self, pod: Pod, lifetime: PodLifetime) -> ReconcilePlan:
        """Set a running pod ready, terminate it, or wait for either."""
        if not pod.status.start_time:
            return ReconcilePlan()
        now, begin = self._clock.now(), self._start_time(pod) + lifetime.start
        if lifetime.run is not None and begin + lifetime.run <= now + _CLOCK_ERROR:
            status = terminated_status(
                pod, lifetime.exit_code, start_time=timestamp(begin), now=timestamp(now)
            )
            return ReconcilePlan([status_patch(pod, status)])
        left = [] if lifetime.run is None else [begin + lifetime.run - now]
        if (limit := pod.spec.active_deadline_seconds) is not None:
            until_deadline = parse_timestamp(pod.status.start_time) + limit - now
            if until_deadline <= 0:
                status = exceeded_status(pod, start_time=timestamp(begin), now=timestamp(now))
                return ReconcilePlan([status_patch(pod, status)])
            left.append(until_deadline)
        if _is_warming_up(pod):
            until_ready = begin + lifetime.ready - now
            if until_ready <= 0:
                status = running_status(pod, timestamp(begin), pod.status.start_time, ready=True)
                return ReconcilePlan(
                    [status_patch(pod, status)], requeue_after=min(left, default=None)
                )
            left.append(until_ready)
            return ReconcilePlan(requeue_after=min(left, default=None))
        spec = pod.spec
        has_late_changes = spec.readiness_gates or spec.ephemeral_containers
        patches = late_patches(pod, timestamp(now)) if has_late_changes else []
        return ReconcilePlan(patches, requeue_after=min(left, default=None))

    def _start_time(self, pod: Pod) -> float:
        """Return when a pod was started; a restarted kubelet knows the whole second only."""
        started = self._started.get(pod.metadata.uid)
        return parse_timestamp(pod.status.start_time or "") if started is None else started

    def _terminate(self, pod: Pod, lifetime: PodLifetime) -> ReconcilePlan:
        """Terminate a deleted pod after its `stop` stage or grace period, then remove it."""
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
        end = begin = timestamp(now)
        if pod.status.start_time:
            begin = timestamp(self._start_time(pod) + lifetime.start)
        status = terminated_status(pod, code, start_time=begin, now=end)
        return ReconcilePlan([status_patch(pod, status), self._delete_action(pod)])

    def _delete_action(self, pod: Pod) -> Delete:
        return Delete(POD, pod.metadata.key, pod.metadata.uid, grace=0)

    def _on_pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and self._has_next_step(new):
            self._loop.queue.add(new.metadata.key)
        elif (pod := new or old) is not None:
            self._started.pop(pod.metadata.uid, None)

    def _has_next_step(self, pod: Pod) -> bool:
        """Whether a pod is on a simulated node and has not ended, or is to be removed."""
        is_over = pod.is_terminal and not pod.metadata.deletion_timestamp
        return not is_over and pod.spec.node_name in self._names


def _is_warming_up(pod: Pod) -> bool:
    """Whether a running pod has not been ready yet."""
    ready = find_condition(pod.status.conditions, "Ready")
    return ready is not None and ready.status == "False" and ready.reason == CONTAINERS_NOT_READY
