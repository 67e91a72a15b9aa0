"""The metrics of the scheduler: attempts, durations, queues, preemptions.

The scheduler observes what it does; the gauges of queue and cache are read when the metrics are
rendered. Names, labels and buckets are those of kube-scheduler where it has the same metric.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import product

from phalanx.controllers.scheduling.binder import BindResult
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.decision import (
    SCHEDULER_ERROR,
    ClusterEvent,
    Decision,
    Impossible,
    Placed,
    PlacementChoice,
    Preempting,
    Waiting,
    nominations_of,
)
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.policy import Profiles
from phalanx.scheduler.queue.queue_listing import PendingEntity
from phalanx.scheduler.queue.queued_entity import QueueState, QueueTrigger
from phalanx.scheduler.queue.scheduling_queue import SchedulingQueue
from phalanx.scheduler.reservation.reservation import Reservation
from phalanx.telemetry import Counter, Gauge, Histogram, Metrics, MetricSpec, exponential_buckets

_SECONDS_BUCKETS = exponential_buckets(0.001, 2, 15)

ATTEMPTS = MetricSpec(
    Counter,
    "scheduler_schedule_attempts_total",
    "Attempts to schedule a pod, alone or with its group, by result.",
    labels=("result", "profile"),
)
ATTEMPT_SECONDS = MetricSpec(
    Histogram,
    "scheduler_scheduling_attempt_duration_seconds",
    "Seconds from popping a pod from the queue to the end of the attempt, including binding.",
    labels=("result", "profile"),
    buckets=_SECONDS_BUCKETS,
)
ALGORITHM_SECONDS = MetricSpec(
    Histogram,
    "scheduler_scheduling_algorithm_duration_seconds",
    "Seconds of the scheduling algorithm for a pod without a group.",
    buckets=_SECONDS_BUCKETS,
)
GROUP_ATTEMPTS = MetricSpec(
    Counter,
    "scheduler_podgroup_schedule_attempts_total",
    "Attempts to schedule a PodGroup, by result.",
    labels=("result", "profile"),
)
GROUP_ATTEMPT_SECONDS = MetricSpec(
    Histogram,
    "scheduler_podgroup_scheduling_attempt_duration_seconds",
    "Seconds from popping a PodGroup from the queue to the end of the attempt, including binding.",
    labels=("result", "profile"),
    buckets=_SECONDS_BUCKETS,
)
GROUP_ALGORITHM_SECONDS = MetricSpec(
    Histogram,
    "scheduler_podgroup_scheduling_algorithm_duration_seconds",
    "Seconds of the scheduling algorithm for a PodGroup.",
    buckets=_SECONDS_BUCKETS,
)
PENDING_PODS = MetricSpec(
    Gauge,
    "scheduler_pending_pods",
    "Pending pods, by queue.",
    labels=("queue",),
)
QUEUED_ENTITIES = MetricSpec(
    Gauge,
    "scheduler_queued_entities",
    "Pending pods without a group and PodGroups, by queue.",
    labels=("queue", "type"),
)
INCOMING_PODS = MetricSpec(
    Counter,
    "scheduler_queue_incoming_pods_total",
    "Pods added to scheduling queues, by event.",
    labels=("queue", "event"),
)
INCOMING_ENTITIES = MetricSpec(
    Counter,
    "scheduler_queue_incoming_entities_total",
    "Pods without a group and PodGroups added to scheduling queues, by event.",
    labels=("queue", "event", "type"),
)
UNSCHEDULABLE_PODS = MetricSpec(
    Gauge,
    "scheduler_unschedulable_pods",
    "Unschedulable pods, by plugin; a pod counts for each plugin that rejected a node.",
    labels=("plugin", "profile"),
)
SLI_SECONDS = MetricSpec(
    Histogram,
    "scheduler_pod_scheduling_sli_duration_seconds",
    "Seconds from when a pod was ready to be scheduled until it was bound.",
    labels=("attempts",),
    buckets=exponential_buckets(0.01, 2, 20),
)
ATTEMPTS_NEEDED = MetricSpec(
    Histogram,
    "scheduler_pod_scheduling_attempts",
    "Attempts until a pod was bound.",
    buckets=exponential_buckets(1, 2, 5),
)
EVENT_SECONDS = MetricSpec(
    Histogram,
    "scheduler_event_handling_duration_seconds",
    "Seconds to handle an event of the cluster.",
    labels=("event",),
    buckets=exponential_buckets(0.0001, 2, 12),
)
CACHE_SIZE = MetricSpec(
    Gauge,
    "scheduler_cache_size",
    "Nodes, pods and assumed pods in the scheduler cache.",
    labels=("type",),
)
RESERVATIONS = MetricSpec(
    Gauge,
    "phalanx_reservations",
    "Reservations of waiting pods and PodGroups, by whether their start can be foreseen.",
    labels=("expected_start",),
)
BATCH_PODS = MetricSpec(
    Histogram,
    "phalanx_scheduler_bind_batch_pods",
    "Pods bound in one transaction.",
    buckets=exponential_buckets(1, 2, 12),
)
GENERATED_PLACEMENTS = MetricSpec(
    Counter,
    "scheduler_generated_placements_total",
    "Candidate placements of PodGroups.",
    labels=("profile",),
)
PLACEMENT_EVALUATIONS = MetricSpec(
    Counter,
    "scheduler_placement_evaluations_total",
    "Evaluated placements of PodGroups, by result.",
    labels=("result", "profile"),
)
PREEMPTION_ATTEMPTS = MetricSpec(
    Counter, "scheduler_preemption_attempts_total", "Preemption attempts for pods without a group."
)
PREEMPTION_VICTIMS = MetricSpec(
    Histogram,
    "scheduler_preemption_victims",
    "Victims of one preemption for a pod without a group.",
    buckets=exponential_buckets(1, 2, 7),
)
GROUP_PREEMPTION_ATTEMPTS = MetricSpec(
    Counter,
    "scheduler_workload_preemption_attempts_total",
    "Preemption attempts for PodGroups, by result.",
    labels=("result",),
)
GROUP_PREEMPTION_VICTIMS = MetricSpec(
    Histogram,
    "scheduler_workload_preemption_victims",
    "Victims of one preemption for a PodGroup.",
    buckets=exponential_buckets(1, 2, 11),
)
DISRUPTIONS = MetricSpec(
    Histogram,
    "scheduler_preemption_workload_disruptions",
    "Disrupted PodGroups of one preemption: whole groups, and single pods of a group.",
    labels=("preemptor",),
    buckets=exponential_buckets(1, 2, 11),
)
VIOLATIONS = MetricSpec(
    Counter,
    "scheduler_preemption_pdb_violations_total",
    "Victims whose eviction violates a PodDisruptionBudget.",
    labels=("preemptor",),
)
NOT_OPTIMAL = MetricSpec(
    Counter,
    "phalanx_scheduler_preemption_not_optimal_total",
    "Preemptions whose search for the best victims ended at its limit.",
    labels=("preemptor",),
)
EVICTION_SECONDS = MetricSpec(
    Histogram,
    "scheduler_preemption_execution_duration_seconds",
    "Seconds from the preemption decision until all victims were evicted.",
    labels=("preemptor", "result"),
    buckets=exponential_buckets(0.001, 2, 16),
)

METRIC_SPECS = (
    ATTEMPTS,
    ATTEMPT_SECONDS,
    ALGORITHM_SECONDS,
    GROUP_ATTEMPTS,
    GROUP_ATTEMPT_SECONDS,
    GROUP_ALGORITHM_SECONDS,
    PENDING_PODS,
    QUEUED_ENTITIES,
    INCOMING_PODS,
    INCOMING_ENTITIES,
    UNSCHEDULABLE_PODS,
    SLI_SECONDS,
    ATTEMPTS_NEEDED,
    EVENT_SECONDS,
    CACHE_SIZE,
    RESERVATIONS,
    BATCH_PODS,
    GENERATED_PLACEMENTS,
    PLACEMENT_EVALUATIONS,
    PREEMPTION_ATTEMPTS,
    PREEMPTION_VICTIMS,
    GROUP_PREEMPTION_ATTEMPTS,
    GROUP_PREEMPTION_VICTIMS,
    DISRUPTIONS,
    VIOLATIONS,
    NOT_OPTIMAL,
    EVICTION_SECONDS,
)

SCHEDULED, UNSCHEDULABLE, ERROR = "scheduled", "unschedulable", "error"
#: The result of a group whose nominated nodes are free once victims are gone.
WAITING_ON_PREEMPTION = "waiting_on_preemption"
FEASIBLE, INFEASIBLE = "feasible", "infeasible"
#: Results of a preemption attempt: victims found, evicting does not help, nothing to evict.
PREEMPTION_SUCCEEDED, PREEMPTION_USELESS, PREEMPTION_IMPOSSIBLE = (
    "Success",
    "Unschedulable",
    "UnschedulableAndUnresolvable",
)
#: The queues that are rendered even when they are empty.
_QUEUES = ("active", "backoff", "unschedulable", "gated", "incomplete")
#: The queue of pods that arrive during an attempt of their group.
_PENDING = "pending"
_TYPES = {False: "pod", True: "podgroup"}
#: Attempts from which on they share one label value.
_MAX_ATTEMPTS_LABEL = 15
#: The events that move an entity to a queue, as kube-scheduler names them.
EVENT_LABELS: Mapping[Enum, str] = {
    ClusterEvent.NODE_ADDED: "NodeAdd",
    ClusterEvent.NODE_UPDATED: "NodeUpdate",
    ClusterEvent.POD_GONE: "AssignedPodDelete",
    ClusterEvent.POD_PLACED: "AssignedPodAdd",
    ClusterEvent.GROUP_CHANGED: "PodGroupUpdate",
    ClusterEvent.MEMBER_CHANGED: "PodAdd",
    ClusterEvent.MEMBER_GONE: "PodDelete",
    ClusterEvent.SEARCH_ENDED: "SearchEnd",
    ClusterEvent.DEVICES_CHANGED: "DeviceChange",
    ClusterEvent.VOLUMES_CHANGED: "VolumeChange",
    ClusterEvent.RESERVATION_CHANGED: "ReservationChange",
    QueueTrigger.CHANGED: "PodGroupDelete",
    QueueTrigger.WOKEN: "EqualEntityScheduled",
    QueueTrigger.EXPIRED: "BackoffComplete",
    QueueTrigger.OUTDATED: "ScheduleAttemptOvertaken",
    QueueTrigger.PLACED: "PodGroupPartlyScheduled",
    QueueTrigger.REFUSED: "ScheduleAttemptFailure",
    QueueTrigger.REFUSED_AGAIN: "EqualEntityRefused",
    QueueTrigger.RETURNED: "ScheduleAttemptFailure",
}
_GANG_PLUGIN, _OBJECTIONS_PLUGIN = "GangScheduling", "Objections"
#: The plugins that keep pods from being tried, by queue state.
_GATING_PLUGINS = {QueueState.GATED: "SchedulingGates", QueueState.INCOMPLETE: _GANG_PLUGIN}


class SchedulingMetrics:
    """The metrics of one scheduler."""

    def __init__(
        self, metrics: Metrics, queue: SchedulingQueue, cache: SchedulerCache, *, profiles: Profiles
    ) -> None:
        self._metrics, self._queue, self._cache = metrics, queue, cache
        self._profiles = profiles
        self._attempts_needed = metrics.series(ATTEMPTS_NEEDED)
        self._batch_pods = metrics.series(BATCH_PODS)
        self._event_series: dict[tuple[str, str], Histogram] = {}
        metrics.on_collect(self, SchedulingMetrics._update_gauges)

    def count_reservations(self, reservations: Sequence[Reservation]) -> None:
        """Count the current reservations."""
        known = sum(one.expected_start is not None for one in reservations)
        counts: dict[tuple[str, ...], float] = {
            ("known",): known,
            ("unknown",): len(reservations) - known,
        }
        self._metrics.replace_series(RESERVATIONS, counts)

    def observe_event(self, kind: str, action: str, seconds: float) -> None:
        """Observe the handling of an informer event."""
        series = self._event_series.get((kind, action))
        if series is None:
            series = self._event_series[kind, action] = self._metrics.series(
                EVENT_SECONDS, kind + action
            )
        series.observe(seconds)

    def observe_decision(self, entity: Entity, decision: Decision, seconds: float) -> None:
        """Observe a decision; unless the entity was placed, it ends the attempt."""
        row = GROUP_ALGORITHM_SECONDS if entity.group else ALGORITHM_SECONDS
        self._metrics.series(row).observe(seconds)
        if choice := decision.choice:
            self._observe_placements(entity.scheduler_name, choice)
        if isinstance(decision, Placed):
            self._observe_pods(entity, UNSCHEDULABLE, len(decision.leftovers), seconds=seconds)
            return
        if not isinstance(decision, Impossible):
            self._observe_preemption_attempt(entity, decision)
        result = ERROR if decision.reason == SCHEDULER_ERROR else UNSCHEDULABLE
        self._observe_pods(entity, result, len(decision.pods), seconds=seconds)
        self._observe_group(
            entity, WAITING_ON_PREEMPTION if nominations_of(decision) else result, seconds
        )

    def observe_binding(self, result: BindResult, now: float) -> None:
        """Observe the outcome of a bind, which ends the attempt."""
        entity, seconds = result.attempt.entity, now - result.attempt.popped_at
        self._observe_pods(entity, SCHEDULED, len(result.bound), seconds=seconds)
        self._observe_pods(entity, ERROR, len(result.failures), seconds=seconds)
        self._observe_group(entity, SCHEDULED if result.has_quorum else ERROR, seconds)
        members = {member.pod.metadata.uid: member for member in entity.members}
        for binding in result.bound:
            member = members[binding.uid]
            since, attempts = max(member.timestamp, entity.ready_since), member.attempts
            label = str(attempts) if attempts < _MAX_ATTEMPTS_LABEL else f"{_MAX_ATTEMPTS_LABEL}+"
            self._metrics.series(SLI_SECONDS, label).observe(now - since)
            self._attempts_needed.observe(attempts)

    def observe_preemption(self, entity: Entity, decision: Preempting) -> None:
        """Observe the start of a preemption."""
        victims = GROUP_PREEMPTION_VICTIMS if entity.group else PREEMPTION_VICTIMS
        self._metrics.series(victims).observe(len(decision.victims))
        if decision.disruptions:
            self._metrics.series(DISRUPTIONS, entity.kind).observe(decision.disruptions)
        if decision.violations:
            self._metrics.series(VIOLATIONS, entity.kind).add(decision.violations)
        if not decision.optimal:
            self._metrics.series(NOT_OPTIMAL, entity.kind).add(1)

    def observe_eviction(self, entity: Entity, *, succeeded: bool, seconds: float) -> None:
        """Observe the end of a preemption."""
        result = "success" if succeeded else ERROR
        self._metrics.series(EVICTION_SECONDS, entity.kind, result).observe(seconds)

    def observe_batch(self, pods: int) -> None:
        """Observe the number of pods of a bind transaction."""
        self._batch_pods.observe(pods)

    def _observe_placements(self, profile: str, choice: PlacementChoice) -> None:
        placements, tried, feasible = choice
        self._metrics.series(GENERATED_PLACEMENTS, profile).add(placements)
        for result, count in ((FEASIBLE, feasible), (INFEASIBLE, max(tried - feasible, 0))):
            if count:
                self._metrics.series(PLACEMENT_EVALUATIONS, result, profile).add(count)

    def _observe_preemption_attempt(self, entity: Entity, decision: Preempting | Waiting) -> None:
        """Observe a preemption attempt, if the policy allows preemption."""
        is_group = entity.group is not None
        if not self._profiles.policy(entity).allows_preemption(is_group=is_group):
            return
        if not is_group:
            self._metrics.series(PREEMPTION_ATTEMPTS).add()
            return
        was_evaluated = isinstance(decision, Preempting) or decision.preemption
        result = (
            PREEMPTION_SUCCEEDED
            if nominations_of(decision)
            else PREEMPTION_USELESS
            if was_evaluated
            else PREEMPTION_IMPOSSIBLE
        )
        self._metrics.series(GROUP_PREEMPTION_ATTEMPTS, result).add()

    def _observe_pods(self, entity: Entity, result: str, pods: int, *, seconds: float) -> None:
        if pods:
            self._metrics.series(ATTEMPTS, result, entity.scheduler_name).add(pods)
            self._metrics.series(ATTEMPT_SECONDS, result, entity.scheduler_name).observe(
                seconds, pods
            )

    def _observe_group(self, entity: Entity, result: str, seconds: float) -> None:
        if entity.group is not None:
            self._metrics.series(GROUP_ATTEMPTS, result, entity.scheduler_name).add()
            self._metrics.series(GROUP_ATTEMPT_SECONDS, result, entity.scheduler_name).observe(
                seconds
            )

    def _update_gauges(self) -> None:
        """Read queue and cache."""
        metrics, queue = self._metrics, self._queue
        pending = list(queue.pending_entities())
        metrics.replace_series(
            PENDING_PODS, {**_pending_pods(pending), (_PENDING,): queue.late_member_count}
        )
        metrics.replace_series(QUEUED_ENTITIES, _queued_entities(pending))
        metrics.replace_series(UNSCHEDULABLE_PODS, _unschedulable_pods(pending))
        metrics.replace_series(
            CACHE_SIZE, {(kind,): size for kind, size in self._cache.object_counts().items()}
        )
        pods: Tally[tuple[str, ...]] = Tally()
        entities: Tally[tuple[str, ...]] = Tally()
        for (label, cause), count in queue.pod_arrivals.items():
            pods[label.name, EVENT_LABELS[cause]] += count
        for (label, cause), count in queue.arrivals.items():
            entities[label.name, EVENT_LABELS[cause], _TYPES[label.is_group]] += count
        metrics.replace_series(INCOMING_PODS, pods)
        metrics.replace_series(INCOMING_ENTITIES, entities)


def _pending_pods(pending: list[PendingEntity]) -> dict[tuple[str, ...], float]:
    counts: dict[tuple[str, ...], float] = {(name,): 0 for name in _QUEUES}
    for entity in pending:
        counts[entity.queue.name,] += entity.pods
    return counts


def _queued_entities(pending: list[PendingEntity]) -> dict[tuple[str, ...], float]:
    counts: dict[tuple[str, ...], float] = dict.fromkeys(product(_QUEUES, _TYPES.values()), 0)
    for entity in pending:
        counts[entity.queue.name, _TYPES[entity.queue.is_group]] += 1
    return counts


def _unschedulable_pods(pending: list[PendingEntity]) -> Tally[tuple[str, ...]]:
    counts: Tally[tuple[str, ...]] = Tally()
    for entity in pending:
        for plugin, pods in _blocking_plugins(entity):
            counts[plugin, entity.scheduler] += pods
    return counts


def _blocking_plugins(entity: PendingEntity) -> Iterator[tuple[str, int]]:
    """Yield the plugins because of which an entity waits, each with the number of pods."""
    if entity.state in _GATING_PLUGINS:
        yield _GATING_PLUGINS[entity.state], entity.pods
    elif isinstance(entity.outcome, Impossible):
        yield _OBJECTIONS_PLUGIN, entity.pods
    elif entity.outcome is not None:
        for pod in entity.outcome.pods:
            names = pod.refusal.filters if pod.refusal else (_GANG_PLUGIN,)
            yield from ((name, 1) for name in names)
