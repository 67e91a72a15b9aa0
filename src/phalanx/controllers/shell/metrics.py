"""What the scheduling shell measures: attempts and how they end, how long they take, who waits.

The shell reports what it does; who stands in which line, and how much the cache holds, is read from
queue and cache when somebody asks. Names, labels and bounds are those of kube-scheduler, as far as
there is the same thing here to be measured.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import product

from phalanx.controllers.shell.binder import Outcome
from phalanx.scheduler.cluster.cache import Cache
from phalanx.scheduler.decision import (
    SCHEDULER_ERROR,
    Choice,
    Decision,
    Impossible,
    Placed,
    Preempting,
    Waiting,
    promised,
)
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.events import Event
from phalanx.scheduler.queueing.entry import State
from phalanx.scheduler.queueing.lines import Stand
from phalanx.scheduler.queueing.queue import Queue, Stimulus
from phalanx.scheduler.settings.profiles import Profiles
from phalanx.telemetry import Counter, Gauge, Histogram, Metrics, Row, exponential

_SECONDS = exponential(0.001, 2, 15)

ATTEMPTS = Row(
    Counter, "scheduler_schedule_attempts_total",
    "Attempts to place a pod, alone or with its group, by how they ended.", ("result", "profile"),
)  # fmt: skip
ATTEMPT_SECONDS = Row(
    Histogram, "scheduler_scheduling_attempt_duration_seconds",
    "Seconds from taking a pod from the queue to the end of the attempt, binding included.",
    ("result", "profile"), _SECONDS,
)  # fmt: skip
ALGORITHM_SECONDS = Row(
    Histogram, "scheduler_scheduling_algorithm_duration_seconds",
    "Seconds that it took to decide about a pod alone.", (), _SECONDS,
)  # fmt: skip
GROUP_ATTEMPTS = Row(
    Counter, "scheduler_podgroup_schedule_attempts_total",
    "Attempts to place a PodGroup, by how they ended.", ("result", "profile"),
)  # fmt: skip
GROUP_ATTEMPT_SECONDS = Row(
    Histogram, "scheduler_podgroup_scheduling_attempt_duration_seconds",
    "Seconds from taking a PodGroup from the queue to the end of the attempt, binding included.",
    ("result", "profile"), _SECONDS,
)  # fmt: skip
GROUP_ALGORITHM_SECONDS = Row(
    Histogram, "scheduler_podgroup_scheduling_algorithm_duration_seconds",
    "Seconds that it took to decide about a PodGroup.", (), _SECONDS,
)  # fmt: skip
PENDING_PODS = Row(
    Gauge, "scheduler_pending_pods", "Pods that wait, by the line that they stand in.", ("queue",)
)  # fmt: skip
QUEUED_ENTITIES = Row(
    Gauge, "scheduler_queued_entities",
    "Pods alone and PodGroups that wait, by the line that they stand in.", ("queue", "type"),
)  # fmt: skip
INCOMING_PODS = Row(
    Counter, "scheduler_queue_incoming_pods_total",
    "Pods that came to stand in a line, by what brought them there.", ("queue", "event"),
)  # fmt: skip
INCOMING_ENTITIES = Row(
    Counter, "scheduler_queue_incoming_entities_total",
    "Pods alone and PodGroups that came to stand in a line, by what brought them there.",
    ("queue", "event", "type"),
)  # fmt: skip
UNSCHEDULABLE_PODS = Row(
    Gauge, "scheduler_unschedulable_pods",
    "Pods that no node took, by the plugins that refused nodes; a pod counts for each of them.",
    ("plugin", "profile"),
)  # fmt: skip
SLI_SECONDS = Row(
    Histogram, "scheduler_pod_scheduling_sli_duration_seconds",
    "Seconds from when nothing was missing that a pod needs to be tried until it was bound.",
    ("attempts",), exponential(0.01, 2, 20),
)  # fmt: skip
ATTEMPTS_NEEDED = Row(
    Histogram, "scheduler_pod_scheduling_attempts", "Attempts that it took to bind a pod.", (),
    exponential(1, 2, 5),
)  # fmt: skip
EVENT_SECONDS = Row(
    Histogram, "scheduler_event_handling_duration_seconds",
    "Seconds that it took to take in a change of the cluster.", ("event",),
    exponential(0.0001, 2, 12),
)  # fmt: skip
CACHE_SIZE = Row(
    Gauge, "scheduler_cache_size", "Nodes, pods on nodes, and pods assumed to be there.", ("type",)
)  # fmt: skip
BATCH_PODS = Row(
    Histogram, "phalanx_scheduler_bind_batch_pods", "Pods that were bound in one transaction.", (),
    exponential(1, 2, 12),
)  # fmt: skip
GENERATED_PLACEMENTS = Row(
    Counter, "scheduler_generated_placements_total",
    "Placements that PodGroups could choose among.", ("profile",),
)  # fmt: skip
PLACEMENT_EVALUATIONS = Row(
    Counter, "scheduler_placement_evaluations_total",
    "Placements that PodGroups were tried in, by whether they held enough.", ("result", "profile"),
)  # fmt: skip
PREEMPTION_ATTEMPTS = Row(
    Counter, "scheduler_preemption_attempts_total",
    "Times that it was thought about whom to evict for a pod alone.", (),
)  # fmt: skip
PREEMPTION_VICTIMS = Row(
    Histogram, "scheduler_preemption_victims",
    "Pods that were to make way for a pod alone, at a time.", (), exponential(1, 2, 7),
)  # fmt: skip
GROUP_PREEMPTION_ATTEMPTS = Row(
    Counter, "scheduler_workload_preemption_attempts_total",
    "Times that it was thought about whom to evict for a PodGroup, by what came of it.",
    ("result",),
)  # fmt: skip
GROUP_PREEMPTION_VICTIMS = Row(
    Histogram, "scheduler_workload_preemption_victims",
    "Pods that were to make way for a PodGroup, at a time.", (), exponential(1, 2, 11),
)  # fmt: skip
DISRUPTIONS = Row(
    Histogram, "scheduler_preemption_workload_disruptions",
    "Units of PodGroups that were to make way, at a time: whole ones, and pods alone out of one.",
    ("preemptor",), exponential(1, 2, 11),
)  # fmt: skip
VIOLATIONS = Row(
    Counter, "scheduler_preemption_pdb_violations_total",
    "Pods that were to make way beyond what disruption budgets allow.", ("preemptor",),
)  # fmt: skip
EVICTION_SECONDS = Row(
    Histogram, "scheduler_preemption_execution_duration_seconds",
    "Seconds from deciding who makes way until all were sent off.", ("preemptor", "result"),
    exponential(0.001, 2, 16),
)  # fmt: skip

ROWS = (
    ATTEMPTS, ATTEMPT_SECONDS, ALGORITHM_SECONDS, GROUP_ATTEMPTS, GROUP_ATTEMPT_SECONDS,
    GROUP_ALGORITHM_SECONDS, PENDING_PODS, QUEUED_ENTITIES, INCOMING_PODS, INCOMING_ENTITIES,
    UNSCHEDULABLE_PODS, SLI_SECONDS, ATTEMPTS_NEEDED, EVENT_SECONDS, CACHE_SIZE, BATCH_PODS,
    GENERATED_PLACEMENTS, PLACEMENT_EVALUATIONS, PREEMPTION_ATTEMPTS, PREEMPTION_VICTIMS,
    GROUP_PREEMPTION_ATTEMPTS, GROUP_PREEMPTION_VICTIMS, DISRUPTIONS, VIOLATIONS, EVICTION_SECONDS,
)  # fmt: skip

SCHEDULED, UNSCHEDULABLE, ERROR = "scheduled", "unschedulable", "error"
#: Of a group that will have nodes once others have left them.
WAITING_ON_PREEMPTION = "waiting_on_preemption"
FEASIBLE, INFEASIBLE = "feasible", "infeasible"
#: What comes of thinking about whom to evict: somebody leaves, it is no use, there is nobody.
HELPS, USELESS, NOBODY = "Success", "Unschedulable", "UnschedulableAndUnresolvable"
#: The lines that are told even when nobody stands in them.
_LINES = ("active", "backoff", "unschedulable", "gated", "incomplete")
#: Where pods wait that come while their group is being tried.
_PENDING = "pending"
_TYPES = {False: "pod", True: "podgroup"}
#: From so many attempts on they are told together.
_MANY = 15
#: What brings an entity into a line, as kube-scheduler names it.
_CAUSES: Mapping[Enum, str] = {
    Event.NODE_ADDED: "NodeAdd",
    Event.NODE_UPDATED: "NodeUpdate",
    Event.POD_GONE: "AssignedPodDelete",
    Event.POD_PLACED: "AssignedPodAdd",
    Event.GROUP_CHANGED: "PodGroupUpdate",
    Event.MEMBER_CHANGED: "PodAdd",
    Event.MEMBER_GONE: "PodDelete",
    Event.SEARCH_ENDED: "SearchEnd",
    Stimulus.CHANGED: "PodGroupDelete",
    Stimulus.EXPIRED: "BackoffComplete",
    Stimulus.OVERTAKEN: "ScheduleAttemptOvertaken",
    Stimulus.PLACED: "PodGroupPartlyScheduled",
    Stimulus.REFUSED: "ScheduleAttemptFailure",
    Stimulus.RETURNED: "ScheduleAttemptFailure",
}
_GANG, _OBJECTION = "GangScheduling", "Objections"
#: The plugins that keep pods from being tried.
_UNREADY = {State.GATED: "SchedulingGates", State.INCOMPLETE: _GANG}


class SchedulingMetrics:
    """The measurements of one scheduler."""

    def __init__(self, metrics: Metrics, queue: Queue, cache: Cache, profiles: Profiles) -> None:
        self._metrics, self._queue, self._cache = metrics, queue, cache
        self._profiles = profiles
        self._attempts_needed = metrics.of(ATTEMPTS_NEEDED)
        self._batch_pods = metrics.of(BATCH_PODS)
        self._handled: dict[tuple[str, str], Histogram] = {}
        metrics.watch(self, SchedulingMetrics._read)

    def handled(self, kind: str, what: str, seconds: float) -> None:
        """A change of the cluster was taken in."""
        series = self._handled.get((kind, what))
        if series is None:
            series = self._handled[kind, what] = self._metrics.of(EVENT_SECONDS, kind + what)
        series.observe(seconds)

    def decided(self, entity: Entity, decision: Decision, seconds: float) -> None:
        """An entity was decided about; unless it was placed, that ends the attempt."""
        row = GROUP_ALGORITHM_SECONDS if entity.group else ALGORITHM_SECONDS
        self._metrics.of(row).observe(seconds)
        if choice := decision.choice:
            self._chose(entity.scheduler, choice)
        if isinstance(decision, Placed):
            self._pods(entity, UNSCHEDULABLE, len(decision.leftovers), seconds)
            return
        if not isinstance(decision, Impossible):
            self._thought_of_evicting(entity, decision)
        result = ERROR if decision.reason == SCHEDULER_ERROR else UNSCHEDULABLE
        self._pods(entity, result, len(decision.pods), seconds)
        self._group(entity, WAITING_ON_PREEMPTION if promised(decision) else result, seconds)

    def bound(self, outcome: Outcome, now: float) -> None:
        """A bind has ended, well or not, and the attempt with it."""
        entity, seconds = outcome.attempt.entity, now - outcome.attempt.since
        self._pods(entity, SCHEDULED, len(outcome.bound), seconds)
        self._pods(entity, ERROR, len(outcome.failures), seconds)
        self._group(entity, SCHEDULED if outcome.enough else ERROR, seconds)
        members = {member.pod.metadata.uid: member for member in entity.members}
        for binding in outcome.bound:
            member = members[binding.uid]
            since, attempts = max(member.timestamp, entity.ready), member.attempts
            label = str(attempts) if attempts < _MANY else f"{_MANY}+"
            self._metrics.of(SLI_SECONDS, label).observe(now - since)
            self._attempts_needed.observe(attempts)

    def evicting(self, entity: Entity, decision: Preempting) -> None:
        """Others are told to make way for an entity."""
        victims = GROUP_PREEMPTION_VICTIMS if entity.group else PREEMPTION_VICTIMS
        self._metrics.of(victims).observe(len(decision.victims))
        if decision.disruptions:
            self._metrics.of(DISRUPTIONS, entity.sort).observe(decision.disruptions)
        if decision.violations:
            self._metrics.of(VIOLATIONS, entity.sort).add(decision.violations)

    def evicted(self, entity: Entity, *, all_well: bool, seconds: float) -> None:
        """That has come to its end."""
        result = "success" if all_well else ERROR
        self._metrics.of(EVICTION_SECONDS, entity.sort, result).observe(seconds)

    def batched(self, pods: int) -> None:
        """So many pods go into one transaction."""
        self._batch_pods.observe(pods)

    def _chose(self, profile: str, choice: Choice) -> None:
        placements, tried, feasible = choice
        self._metrics.of(GENERATED_PLACEMENTS, profile).add(placements)
        for result, count in ((FEASIBLE, feasible), (INFEASIBLE, max(tried - feasible, 0))):
            if count:
                self._metrics.of(PLACEMENT_EVALUATIONS, result, profile).add(count)

    def _thought_of_evicting(self, entity: Entity, decision: Preempting | Waiting) -> None:
        """Somebody was refused; where others may be evicted, that was thought about."""
        is_group = entity.group is not None
        if not self._profiles.policy(entity).allows_preemption(is_group):
            return
        if not is_group:
            self._metrics.of(PREEMPTION_ATTEMPTS).add()
            return
        thought = isinstance(decision, Preempting) or decision.preemption
        result = HELPS if promised(decision) else USELESS if thought else NOBODY
        self._metrics.of(GROUP_PREEMPTION_ATTEMPTS, result).add()

    def _pods(self, entity: Entity, result: str, pods: int, seconds: float) -> None:
        if pods:
            self._metrics.of(ATTEMPTS, result, entity.scheduler).add(pods)
            self._metrics.of(ATTEMPT_SECONDS, result, entity.scheduler).observe(seconds, pods)

    def _group(self, entity: Entity, result: str, seconds: float) -> None:
        if entity.group is not None:
            self._metrics.of(GROUP_ATTEMPTS, result, entity.scheduler).add()
            self._metrics.of(GROUP_ATTEMPT_SECONDS, result, entity.scheduler).observe(seconds)

    def _read(self) -> None:
        """Look who waits, and how much is known."""
        metrics, queue = self._metrics, self._queue
        stands = list(queue.stands())
        metrics.put(PENDING_PODS, {**_pending(stands), (_PENDING,): queue.latecomers})
        metrics.put(QUEUED_ENTITIES, _entities(stands))
        metrics.put(UNSCHEDULABLE_PODS, _unschedulable(stands))
        metrics.put(CACHE_SIZE, {(kind,): size for kind, size in self._cache.sizes().items()})
        pods: Tally[tuple[str, ...]] = Tally()
        entities: Tally[tuple[str, ...]] = Tally()
        for (line, cause), count in queue.arrived_pods.items():
            pods[line.name, _CAUSES[cause]] += count
        for (line, cause), count in queue.arrivals.items():
            entities[line.name, _CAUSES[cause], _TYPES[line.is_group]] += count
        metrics.put(INCOMING_PODS, pods)
        metrics.put(INCOMING_ENTITIES, entities)


def _pending(stands: list[Stand]) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {(name,): 0 for name in _LINES}
    for stand in stands:
        found[stand.line.name,] += stand.pods
    return found


def _entities(stands: list[Stand]) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = dict.fromkeys(product(_LINES, _TYPES.values()), 0)
    for stand in stands:
        found[stand.line.name, _TYPES[stand.line.is_group]] += 1
    return found


def _unschedulable(stands: list[Stand]) -> Tally[tuple[str, ...]]:
    found: Tally[tuple[str, ...]] = Tally()
    for stand in stands:
        for plugin, pods in _refusing(stand):
            found[plugin, stand.scheduler] += pods
    return found


def _refusing(stand: Stand) -> Iterator[tuple[str, int]]:
    """The plugins that keep somebody waiting, and how many of the pods each."""
    if stand.state in _UNREADY:
        yield _UNREADY[stand.state], stand.pods
    elif isinstance(stand.outcome, Impossible):
        yield _OBJECTION, stand.pods
    elif stand.outcome is not None:
        for pod in stand.outcome.pods:
            names = pod.refusal.filters if pod.refusal else (_GANG,)
            yield from ((name, 1) for name in names)
