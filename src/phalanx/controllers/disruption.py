"""The disruption controller: keeps the status of PodDisruptionBudgets up to date.

    budgets, Pods ─▶ queue of budgets ─▶ counts ─▶ status ─▶ evictions, which use it (`server/`)

    spec                   expectedPods                     desiredHealthy
    minAvailable: 3        the selected pods                3
    minAvailable: 30%      the replicas of their workloads  30 % of these, rounded up
    maxUnavailable: 1      the replicas of their workloads  all of these but 1
    maxUnavailable: 30%    the replicas of their workloads  all of these but 30 %, rounded up
    neither                0                                0

The replicas of a workload are those of its spec; a Deployment stands for its ReplicaSets.
Kubernetes refuses to count the pods of a controller without replicas, such as a Job. Phalanx counts
the pods that it owns and that have not terminated. As in Kubernetes, pods without a controller are
not counted there: a budget for such pods needs an integer `minAvailable`. The controller never
evicts a pod. It is disabled on a foreign API server, which has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from phalanx.api.apps import Deployment, ReplicaSet, ReplicationController, StatefulSet
from phalanx.api.core import Pod
from phalanx.api.formats import resolve_int_or_percent
from phalanx.api.kinds import POD_DISRUPTION_BUDGET
from phalanx.api.meta import Key, find_condition, parse_timestamp, timestamp
from phalanx.api.other_kinds import PodDisruptionBudget, PodDisruptionBudgetSpec
from phalanx.api.selectors import selector_requirements
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.pod_ownership import controlling_uids
from phalanx.controllers.reconcile_loop import Informers, Patch, ReconcileLoop, ReconcilePlan

DISRUPTION_ALLOWED = "DisruptionAllowed"
#: Seconds within which an evicted pod must be deleted; then it counts as healthy again.
DELETION_TIMEOUT = 120.0
#: Seconds for which changes of pods are collected before a budget counts them.
_BATCH_DELAY = 0.1


class BudgetCounts(NamedTuple):
    """The counts of a budget: expected pods, desired healthy pods, healthy pods."""

    expected: int
    desired: int
    healthy: int

    @property
    def allowed(self) -> int:
        """The number of allowed disruptions; 0 if no pods are expected."""
        return max(0, self.healthy - self.desired) if self.expected else 0


class BudgetSelection:
    """The pods that a budget selects, updated by events, and the controllers of these pods.

    No selector selects no pod; an empty selector selects every pod of the namespace.
    """

    def __init__(self, selector: Object | None, pods: Iterable[Pod]) -> None:
        self._requirements = None if selector is None else selector_requirements(selector)
        self.pods = {pod.metadata.key: None for pod in pods if self._selects(pod)}
        self.controllers: set[str] = set()

    def observe(self, old: Pod | None, new: Pod | None) -> bool:
        """Apply a change of a pod; return whether the counts may change."""
        versions = [pod for pod in (old, new) if pod is not None]
        key = versions[0].metadata.key
        was_counted = key in self.pods or any(
            uid in self.controllers for pod in versions for uid in controlling_uids(pod)
        )
        if new is not None and self._selects(new):
            self.pods[key] = None
            return True
        self.pods.pop(key, None)
        return was_counted

    def _selects(self, pod: Pod) -> bool:
        labels = pod.metadata.labels
        return self._requirements is not None and all(
            need.matches(labels) for need in self._requirements
        )


class DisruptionController:
    """Updates the status of every budget until cancelled."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        *,
        record: Callable[[ObjectEvent], None],
    ) -> None:
        self._clock, self._record = clock, record
        workloads = (
            informers.of(Deployment),
            informers.of(ReplicaSet),
            informers.of(StatefulSet),
            informers.of(ReplicationController),
        )
        self._informers = (informers.of(Pod), informers.of(PodDisruptionBudget), *workloads)
        self._workloads_by_uid = [
            one.cache.index(lambda workload: [workload.metadata.uid]) for one in workloads
        ]
        self._pods, self._budgets = self._informers[0].cache, self._informers[1].cache
        self._budgets_by_namespace = self._budgets.index(lambda budget: [budget.metadata.namespace])
        self._pods_by_namespace = self._pods.index(lambda pod: [pod.metadata.namespace])
        self._pods_by_controller = self._pods.index(controlling_uids)
        self._selections: dict[Key, BudgetSelection] = {}
        self._loop: ReconcileLoop[Key] = ReconcileLoop(client, self.reconcile)
        self._budgets.subscribe(self._on_budget_change)
        self._pods.subscribe(self._on_pod_change)

    async def run(self) -> None:
        """Update budgets until cancelled."""
        # A pod that the cache does not show yet would not be counted.
        for informer in self._informers:
            await informer.synced.wait()
        await self._loop.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Plan: patch the status if it differs; reconcile again when an eviction expires."""
        budget = self._budgets.get(key)
        if budget is None:
            return ReconcilePlan()
        now, selection = self._clock.now(), self._selections[key]
        selected = [self._pods[pod] for pod in selection.pods]
        selection.controllers = {uid for pod in selected for uid in controlling_uids(pod)}
        owned = self._count_replicas(selection.controllers)
        pending = _pending_disruptions(budget, selected, now)
        healthy = sum(_is_healthy(pod) and pod.metadata.name not in pending for pod in selected)
        counts = BudgetCounts(*_expected_and_desired(budget.spec, len(selected), owned), healthy)
        patches = _status_patches(budget, counts, pending, now=now)
        if patches and not selected:
            text = "No matching pods found"
            self._record(ObjectEvent(POD_DISRUPTION_BUDGET, budget.metadata, "NoPods", text))
        return ReconcilePlan(patches, min(pending.values(), default=None))

    def _count_replicas(self, controllers: Iterable[str]) -> int:
        """Sum the replicas of the workloads that control pods, each workload once."""
        replicas: dict[str, int] = {}
        for uid in controllers:
            workload = self._find_workload(uid)
            if isinstance(workload, ReplicaSet) and workload.metadata.controller:
                workload = self._find_workload(workload.metadata.controller.uid) or workload
            if workload is not None:
                replicas[workload.metadata.uid] = workload.spec.replicas
            else:
                replicas[uid] = sum(not pod.is_terminal for pod in self._pods_by_controller[uid])
        return sum(replicas.values())

    def _find_workload(
        self, uid: str
    ) -> Deployment | ReplicaSet | StatefulSet | ReplicationController | None:
        found = (one for index in self._workloads_by_uid for one in index[uid])
        return next(found, None)

    def _on_budget_change(
        self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None
    ) -> None:
        if new is not None:
            key = new.metadata.key
            if old is None or old.spec != new.spec:
                self._selections[key] = BudgetSelection(
                    new.spec.selector, self._pods_by_namespace[key.namespace]
                )
            self._loop.queue.add(key)
        elif old is not None:
            del self._selections[old.metadata.key]

    def _on_pod_change(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is None or not self._budgets or _relevant_fields(old) == _relevant_fields(new):
            return
        for budget in self._budgets_by_namespace[pod.metadata.namespace]:
            key = budget.metadata.key
            if self._selections[key].observe(old, new):
                self._loop.queue.add_after(key, _BATCH_DELAY)


def _expected_and_desired(
    spec: PodDisruptionBudgetSpec, selected: int, owned: int
) -> tuple[int, int]:
    """`expectedPods` and `desiredHealthy`, by the table at the top of this module."""
    match spec:
        case PodDisruptionBudgetSpec(max_unavailable=int() | str() as share):
            return owned, max(0, owned - resolve_int_or_percent(share, owned, round_up=True))
        case PodDisruptionBudgetSpec(min_available=str() as share):
            return owned, resolve_int_or_percent(share, owned, round_up=True)
        case PodDisruptionBudgetSpec(min_available=int() as number):
            return selected, number
    return 0, 0


def _pending_disruptions(
    budget: PodDisruptionBudget, selected: Iterable[Pod], now: float
) -> dict[str, float]:
    """The evicted pods that are not deleted yet, with the seconds until the eviction expires."""
    evicted = budget.status.disrupted_pods
    names = [pod.metadata.name for pod in selected if not pod.metadata.deletion_timestamp]
    remaining = {
        name: parse_timestamp(evicted[name]) + DELETION_TIMEOUT - now
        for name in names
        if name in evicted
    }
    return {name: seconds for name, seconds in remaining.items() if seconds > 0}


def _status_patches(
    budget: PodDisruptionBudget, counts: BudgetCounts, pending: Collection[str], *, now: float
) -> Sequence[Patch]:
    """The patch of the status, or nothing if the status is up to date."""
    status, meta = budget.status, budget.metadata
    condition = _allowed_condition(budget, counts, now)
    current = BudgetCounts(status.expected_pods, status.desired_healthy, status.current_healthy)
    expired = [name for name in status.disrupted_pods if name not in pending]
    if (
        (current, status.disruptions_allowed, expired) == (counts, counts.allowed, [])
        and status.observed_generation == meta.generation
        and condition is None
    ):
        return ()
    new: Object = {
        "observedGeneration": meta.generation,
        "expectedPods": counts.expected,
        "desiredHealthy": counts.desired,
        "currentHealthy": counts.healthy,
        "disruptionsAllowed": counts.allowed,
        "disruptedPods": dict.fromkeys(expired),
        "conditions": [condition] if condition else [],
    }
    # Conditional on the version: a concurrent eviction must not be overwritten.
    preconditions = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    change = {"metadata": preconditions, "status": new}
    return [
        Patch(
            POD_DISRUPTION_BUDGET,
            meta.key,
            change,
            subresource="status",
            content=STRATEGIC_PATCH,
        )
    ]


def _allowed_condition(
    budget: PodDisruptionBudget, counts: BudgetCounts, now: float
) -> Object | None:
    """The condition DisruptionAllowed; None if it is up to date."""
    generation = budget.metadata.generation
    status, reason = _CONDITION_VALUES[counts.allowed > 0]
    old = find_condition(budget.status.conditions, DISRUPTION_ALLOWED)
    if old is not None and (old.status, old.observed_generation) == (status, generation):
        return None
    since = old.last_transition_time if old is not None and old.status == status else None
    return {
        "type": DISRUPTION_ALLOWED,
        "status": status,
        "reason": reason,
        "message": "",
        "observedGeneration": generation,
        "lastTransitionTime": since or timestamp(now),
    }


_CONDITION_VALUES = {True: ("True", "SufficientPods"), False: ("False", "InsufficientPods")}


def _is_healthy(pod: Pod) -> bool:
    ready = find_condition(pod.status.conditions, "Ready")
    return ready is not None and ready.status == "True" and not pod.metadata.deletion_timestamp


def _relevant_fields(pod: Pod | None) -> tuple[object, ...]:
    """The fields of a pod that budgets count by; most changes leave them alone."""
    if pod is None:
        return ()
    meta = pod.metadata
    return (
        meta.labels,
        controlling_uids(pod),
        pod.is_terminal,
        _is_healthy(pod),
        meta.deletion_timestamp,
    )
