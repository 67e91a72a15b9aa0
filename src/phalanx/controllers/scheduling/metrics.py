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

from phalanx.controllers.scheduling.binder import BindResult
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.configuration.profiles import Profiles
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
from phalanx.scheduler.queue.queued_entity import PendingEntity, QueueState
from phalanx.scheduler.queue.scheduling_queue import QueueTrigger, SchedulingQueue
from phalanx.telemetry import Counter, Gauge, Histogram, Metrics, MetricSpec, exponential_buckets

_SECONDS_BUCKETS = exponential_buckets(0.001, 2, 15)

ATTEMPTS = MetricSpec(
    Counter, "scheduler_schedule_attempts_total",
    "Attempts to place a pod, alone or with its group, by how they ended.", ("result", "profile"),
)  # fmt: skip
ATTEMPT_SECONDS = MetricSpec(
    Histogram, "scheduler_scheduling_attempt_duration_seconds",
    "Seconds from taking a pod from the queue to the end of the attempt, binding included.",
    ("result", "profile"), _SECONDS_BUCKETS,
)  # fmt: skip
ALGORITHM_SECONDS = MetricSpec(
    Histogram, "scheduler_scheduling_algorithm_duration_seconds",
    "Seconds that it took to decide about a pod alone.", (), _SECONDS_BUCKETS,
)  # fmt: skip
GROUP_ATTEMPTS = MetricSpec(
    Counter, "scheduler_podgroup_schedule_attempts_total",
    "Attempts to place a PodGroup, by how they ended.", ("result", "profile"),
)  # fmt: skip
GROUP_ATTEMPT_SECONDS = MetricSpec(
    Histogram, "scheduler_podgroup_scheduling_attempt_duration_seconds",
    "Seconds from taking a PodGroup from the queue to the end of the attempt, binding included.",
    ("result", "profile"), _SECONDS_BUCKETS,
)  # fmt: skip
GROUP_ALGORITHM_SECONDS = MetricSpec(
    Histogram, "scheduler_podgroup_scheduling_algorithm_duration_seconds",
    "Seconds that it took to decide about a PodGroup.", (), _SECONDS_BUCKETS,
)  # fmt: skip
PENDING_PODS = MetricSpec(
    Gauge, "scheduler_pending_pods", "Pods that wait, by the line that they stand in.", ("queue",)
)  # fmt: skip
QUEUED_ENTITIES = MetricSpec(
    Gauge, "scheduler_queued_entities",
    "Pods alone and PodGroups that wait, by the line that they stand in.", ("queue", "type"),
)  # fmt: skip
INCOMING_PODS = MetricSpec(
    Counter, "scheduler_queue_incoming_pods_total",
    "Pods that came to stand in a line, by what brought them there.", ("queue", "event"),
)  # fmt: skip
INCOMING_ENTITIES = MetricSpec(
    Counter, "scheduler_queue_incoming_entities_total",
    "Pods alone and PodGroups that came to stand in a line, by what brought them there.",
    ("queue", "event", "type"),
)  # fmt: skip
UNSCHEDULABLE_PODS = MetricSpec(
    Gauge, "scheduler_unschedulable_pods",
    "Pods that no node took, by the plugins that refused nodes; a pod counts for each of them.",
    ("plugin", "profile"),
)  # fmt: skip
SLI_SECONDS = MetricSpec(
    Histogram, "scheduler_pod_scheduling_sli_duration_seconds",
    "Seconds from when nothing was missing that a pod needs to be tried until it was bound.",
    ("attempts",), exponential_buckets(0.01, 2, 20),
)  # fmt: skip
ATTEMPTS_NEEDED = MetricSpec(
    Histogram, "scheduler_pod_scheduling_attempts", "Attempts that it took to bind a pod.", (),
    exponential_buckets(1, 2, 5),
)  # fmt: skip
EVENT_SECONDS = MetricSpec(
    Histogram, "scheduler_event_handling_duration_seconds",
    "Seconds that it took to take in a change of the cluster.", ("event",),
    exponential_buckets(0.0001, 2, 12),
)  # fmt: skip
CACHE_SIZE = MetricSpec(
    Gauge, "scheduler_cache_size", "Nodes, pods on nodes, and pods assumed to be there.", ("type",)
)  # fmt: skip
BATCH_PODS = MetricSpec(
    Histogram, "phalanx_scheduler_bind_batch_pods", "Pods that were bound in one transaction.", (),
    exponential_buckets(1, 2, 12),
)  # fmt: skip
GENERATED_PLACEMENTS = MetricSpec(
    Counter, "scheduler_generated_placements_total",
    "Placements that PodGroups could choose among.", ("profile",),
)  # fmt: skip
PLACEMENT_EVALUATIONS = MetricSpec(
    Counter, "scheduler_placement_evaluations_total",
    "Placements that PodGroups were tried in, by whether they held enough.", ("result", "profile"),
)  # fmt: skip
PREEMPTION_ATTEMPTS = MetricSpec(
    Counter, "scheduler_preemption_attempts_total",
    "Times that it was thought about whom to evict for a pod alone.", (),
)  # fmt: skip
PREEMPTION_VICTIMS = MetricSpec(
    Histogram, "scheduler_preemption_victims",
    "Pods that were to make way for a pod alone, at a time.", (), exponential_buckets(1, 2, 7),
)  # fmt: skip
GROUP_PREEMPTION_ATTEMPTS = MetricSpec(
    Counter, "scheduler_workload_preemption_attempts_total",
    "Times that it was thought about whom to evict for a PodGroup, by what came of it.",
    ("result",),
)  # fmt: skip
GROUP_PREEMPTION_VICTIMS = MetricSpec(
    Histogram, "scheduler_workload_preemption_victims",
    "Pods that were to make way for a PodGroup, at a time.", (), exponential_buckets(1, 2, 11),
)  # fmt: skip
DISRUPTIONS = MetricSpec(
    Histogram, "scheduler_preemption_workload_disruptions",
    "Units of PodGroups that were to make way, at a time: whole ones, and pods alone out of one.",
    ("preemptor",), exponential_buckets(1, 2, 11),
)  # fmt: skip
VIOLATIONS = MetricSpec(
    Counter, "scheduler_preemption_pdb_violations_total",
    "Pods that were to make way beyond what disruption budgets allow.", ("preemptor",),
)  # fmt: skip
EVICTION_SECONDS = MetricSpec(
    Histogram, "scheduler_preemption_execution_duration_seconds",
    "Seconds from deciding who makes way until all were sent off.", ("preemptor", "result"),
    exponential_buckets(0.001, 2, 16),
)  # fmt: skip

METRIC_SPECS = (
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
PREEMPTION_SUCCEEDED, PREEMPTION_USELESS, PREEMPTION_IMPOSSIBLE = (
    "Success",
    "Unschedulable",
    "UnschedulableAndUnresolvable",
)
#: The lines that are told even when nobody stands in them.
_QUEUES = ("active", "backoff", "unschedulable", "gated", "incomplete")
#: Where pods wait that come while their group is being tried.
_PENDING = "pending"
_TYPES = {False: "pod", True: "podgroup"}
#: From so many attempts on they are told together.
_MAX_ATTEMPTS_LABEL = 15
#: What brings an entity into a line, as kube-scheduler names it.
_EVENT_LABELS: Mapping[Enum, str] = {
    ClusterEvent.NODE_ADDED: "NodeAdd",
    ClusterEvent.NODE_UPDATED: "NodeUpdate",
    ClusterEvent.POD_GONE: "AssignedPodDelete",
    ClusterEvent.POD_PLACED: "AssignedPodAdd",
    ClusterEvent.GROUP_CHANGED: "PodGroupUpdate",
    ClusterEvent.MEMBER_CHANGED: "PodAdd",
    ClusterEvent.MEMBER_GONE: "PodDelete",
    ClusterEvent.SEARCH_ENDED: "SearchEnd",
    QueueTrigger.CHANGED: "PodGroupDelete",
    QueueTrigger.EXPIRED: "BackoffComplete",
    QueueTrigger.OVERTAKEN: "ScheduleAttemptOvertaken",
    QueueTrigger.PLACED: "PodGroupPartlyScheduled",
    QueueTrigger.REFUSED: "ScheduleAttemptFailure",
    QueueTrigger.RETURNED: "ScheduleAttemptFailure",
}
_GANG_PLUGIN, _OBJECTIONS_PLUGIN = "GangScheduling", "Objections"
#: The plugins that keep pods from being tried.
_GATING_PLUGINS = {QueueState.GATED: "SchedulingGates", QueueState.INCOMPLETE: _GANG_PLUGIN}


class SchedulingMetrics:
    """The measurements of one scheduler."""

    def __init__(
        self, metrics: Metrics, queue: SchedulingQueue, cache: SchedulerCache, profiles: Profiles
    ) -> None:
        self._metrics, self._queue, self._cache = metrics, queue, cache
        self._profiles = profiles
        self._attempts_needed = metrics.series(ATTEMPTS_NEEDED)
        self._batch_pods = metrics.series(BATCH_PODS)
        self._event_series: dict[tuple[str, str], Histogram] = {}
        metrics.on_collect(self, SchedulingMetrics._update_gauges)

    def observe_event(self, kind: str, action: str, seconds: float) -> None:
        """A change of the cluster was taken in."""
        series = self._event_series.get((kind, action))
        if series is None:
            series = self._event_series[kind, action] = self._metrics.series(
                EVENT_SECONDS, kind + action
            )
        series.observe(seconds)

    def observe_decision(self, entity: Entity, decision: Decision, seconds: float) -> None:
        """An entity was decided about; unless it was placed, that ends the attempt."""
        row = GROUP_ALGORITHM_SECONDS if entity.group else ALGORITHM_SECONDS
        self._metrics.series(row).observe(seconds)
        if choice := decision.choice:
            self._observe_placements(entity.scheduler_name, choice)
        if isinstance(decision, Placed):
            self._observe_pods(entity, UNSCHEDULABLE, len(decision.leftovers), seconds)
            return
        if not isinstance(decision, Impossible):
            self._observe_preemption_attempt(entity, decision)
        result = ERROR if decision.reason == SCHEDULER_ERROR else UNSCHEDULABLE
        self._observe_pods(entity, result, len(decision.pods), seconds)
        self._observe_group(
            entity, WAITING_ON_PREEMPTION if nominations_of(decision) else result, seconds
        )

    def observe_binding(self, result: BindResult, now: float) -> None:
        """A bind has ended, well or not, and the attempt with it."""
        entity, seconds = result.attempt.entity, now - result.attempt.popped_at
        self._observe_pods(entity, SCHEDULED, len(result.bound), seconds)
        self._observe_pods(entity, ERROR, len(result.failures), seconds)
        self._observe_group(entity, SCHEDULED if result.has_quorum else ERROR, seconds)
        members = {member.pod.metadata.uid: member for member in entity.members}
        for binding in result.bound:
            member = members[binding.uid]
            since, attempts = max(member.timestamp, entity.ready_since), member.attempts
            label = str(attempts) if attempts < _MAX_ATTEMPTS_LABEL else f"{_MAX_ATTEMPTS_LABEL}+"
            self._metrics.series(SLI_SECONDS, label).observe(now - since)
            self._attempts_needed.observe(attempts)

    def observe_preemption(self, entity: Entity, decision: Preempting) -> None:
        """Others are told to make way for an entity."""
        victims = GROUP_PREEMPTION_VICTIMS if entity.group else PREEMPTION_VICTIMS
        self._metrics.series(victims).observe(len(decision.victims))
        if decision.disruptions:
            self._metrics.series(DISRUPTIONS, entity.kind).observe(decision.disruptions)
        if decision.violations:
            self._metrics.series(VIOLATIONS, entity.kind).add(decision.violations)

    def observe_eviction(self, entity: Entity, *, succeeded: bool, seconds: float) -> None:
        """That has come to its end."""
        result = "success" if succeeded else ERROR
        self._metrics.series(EVICTION_SECONDS, entity.kind, result).observe(seconds)

    def observe_batch(self, pods: int) -> None:
        """So many pods go into one transaction."""
        self._batch_pods.observe(pods)

    def _observe_placements(self, profile: str, choice: PlacementChoice) -> None:
        placements, tried, feasible = choice
        self._metrics.series(GENERATED_PLACEMENTS, profile).add(placements)
        for result, count in ((FEASIBLE, feasible), (INFEASIBLE, max(tried - feasible, 0))):
            if count:
                self._metrics.series(PLACEMENT_EVALUATIONS, result, profile).add(count)

    def _observe_preemption_attempt(self, entity: Entity, decision: Preempting | Waiting) -> None:
        """Somebody was refused; where others may be evicted, that was thought about."""
        is_group = entity.group is not None
        if not self._profiles.policy(entity).allows_preemption(is_group):
            return
        if not is_group:
            self._metrics.series(PREEMPTION_ATTEMPTS).add()
            return
        thought = isinstance(decision, Preempting) or decision.preemption
        result = (
            PREEMPTION_SUCCEEDED
            if nominations_of(decision)
            else PREEMPTION_USELESS
            if thought
            else PREEMPTION_IMPOSSIBLE
        )
        self._metrics.series(GROUP_PREEMPTION_ATTEMPTS, result).add()

    def _observe_pods(self, entity: Entity, result: str, pods: int, seconds: float) -> None:
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
        """Look who waits, and how much is known."""
        metrics, queue = self._metrics, self._queue
        stands = list(queue.pending_entities())
        metrics.replace_series(
            PENDING_PODS, {**_pending_pods(stands), (_PENDING,): queue.late_member_count}
        )
        metrics.replace_series(QUEUED_ENTITIES, _queued_entities(stands))
        metrics.replace_series(UNSCHEDULABLE_PODS, _unschedulable_pods(stands))
        metrics.replace_series(
            CACHE_SIZE, {(kind,): size for kind, size in self._cache.object_counts().items()}
        )
        pods: Tally[tuple[str, ...]] = Tally()
        entities: Tally[tuple[str, ...]] = Tally()
        for (line, cause), count in queue.pod_arrivals.items():
            pods[line.name, _EVENT_LABELS[cause]] += count
        for (line, cause), count in queue.arrivals.items():
            entities[line.name, _EVENT_LABELS[cause], _TYPES[line.is_group]] += count
        metrics.replace_series(INCOMING_PODS, pods)
        metrics.replace_series(INCOMING_ENTITIES, entities)


def _pending_pods(stands: list[PendingEntity]) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {(name,): 0 for name in _QUEUES}
    for stand in stands:
        found[stand.queue.name,] += stand.pods
    return found


def _queued_entities(stands: list[PendingEntity]) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = dict.fromkeys(product(_QUEUES, _TYPES.values()), 0)
    for stand in stands:
        found[stand.queue.name, _TYPES[stand.queue.is_group]] += 1
    return found


def _unschedulable_pods(stands: list[PendingEntity]) -> Tally[tuple[str, ...]]:
    found: Tally[tuple[str, ...]] = Tally()
    for stand in stands:
        for plugin, pods in _blocking_plugins(stand):
            found[plugin, stand.scheduler] += pods
    return found


def _blocking_plugins(stand: PendingEntity) -> Iterator[tuple[str, int]]:
    """The plugins that keep somebody waiting, and how many of the pods each."""
    if stand.state in _GATING_PLUGINS:
        yield _GATING_PLUGINS[stand.state], stand.pods
    elif isinstance(stand.outcome, Impossible):
        yield _OBJECTIONS_PLUGIN, stand.pods
    elif stand.outcome is not None:
        for pod in stand.outcome.pods:
            names = pod.refusal.filters if pod.refusal else (_GANG_PLUGIN,)
            yield from ((name, 1) for name in names)
