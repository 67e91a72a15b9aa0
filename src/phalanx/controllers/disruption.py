"""Disruption budgets: how many pods of each may go at present, kept true in its status.

    budgets, pods ─▶ queue of budgets ─▶ counts ─▶ status ─▶ evictions, which spend it (`server/`)

    spec                   expectedPods                     desiredHealthy
    minAvailable: 3        the pods that it selects         3
    minAvailable: 30%      the pods of their controllers    30 % of these, rounded up
    maxUnavailable: 1      the pods of their controllers    all of these but 1
    maxUnavailable: 30%    the pods of their controllers    all of these but 30 %, rounded up
    neither                0                                0

Where Kubernetes asks a controller for its scale, here the pods are counted that it owns and that
have not ended: not every controller has a scale (a Job has none), and what is being replaced counts
as long as it is there. A pod without a controller counts for nothing there, as in Kubernetes: a
budget for such pods needs a plain `minAvailable`. On a foreign API server this loop is off: it has
one of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from phalanx.api.core import Pod
from phalanx.api.kinds import POD, POD_DISRUPTION_BUDGET
from phalanx.api.meta import Key, find_condition, parse_timestamp, timestamp
from phalanx.api.policy import PodDisruptionBudget, PodDisruptionBudgetSpec
from phalanx.api.selectors import selector_requirements
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.reconcile_loop import Informers, Patch, ReconcileLoop, ReconcilePlan

DISRUPTION_ALLOWED = "DisruptionAllowed"
#: Seconds that a pod may take to go after its eviction; then it is taken to stay.
DELETION_TIMEOUT = 120.0
#: Seconds in which changes of pods are gathered, so that a budget counts them all at once.
_BATCH_DELAY = 0.1


class BudgetCounts(NamedTuple):
    """What a budget finds: how many pods there should be, must be well, and are well."""

    expected: int
    desired: int
    healthy: int

    @property
    def allowed(self) -> int:
        """How many may go; none where none are expected, so that the first to come are safe."""
        return max(0, self.healthy - self.desired) if self.expected else 0


class BudgetSelection:
    """The pods that a budget selects, kept up to date, and the controllers whose pods it counts.

    Without a selector it selects none, with an empty one all in its namespace.
    """

    def __init__(self, selector: Object | None, pods: Iterable[Pod]) -> None:
        self._requirements = None if selector is None else selector_requirements(selector)
        self.pods = {pod.metadata.key: None for pod in pods if self._selects(pod)}
        self.controllers: set[str] = set()

    def observe(self, old: Pod | None, new: Pod | None) -> bool:
        """Take in a change of a pod; whether that may change what is counted."""
        known = [pod for pod in (old, new) if pod is not None]
        key = known[0].metadata.key
        was_counted = key in self.pods or any(
            uid in self.controllers for pod in known for uid in _controller_uids(pod)
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
    """Counts for every budget. Never evicts anything, and leaves what it counts to others."""

    def __init__(self, client: Client, informers: Informers, clock: Clock) -> None:
        self._clock = clock
        self._informers = (
            informers.of(POD, Pod),
            informers.of(POD_DISRUPTION_BUDGET, PodDisruptionBudget),
        )
        self._pods, self._budgets = self._informers[0].cache, self._informers[1].cache
        self._budgets_by_namespace = self._budgets.index(lambda budget: [budget.metadata.namespace])
        self._pods_by_namespace = self._pods.index(lambda pod: [pod.metadata.namespace])
        self._pods_by_controller = self._pods.index(_controller_uids)
        self._selections: dict[Key, BudgetSelection] = {}
        self._loop: ReconcileLoop[Key] = ReconcileLoop(client, self.reconcile)
        self._budgets.subscribe(self._budget_changed)
        self._pods.subscribe(self._pod_changed)

    async def run(self) -> None:
        """Count until cancelled."""
        # Pods of which one has not heard yet would be missed.
        for informer in self._informers:
            await informer.synced.wait()
        await self._loop.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Write what is counted, where that is news, and look again when a grant runs out."""
        budget = self._budgets.get(key)
        if budget is None:
            return ReconcilePlan()
        now, cover = self._clock.now(), self._selections[key]
        selected = [self._pods[pod] for pod in cover.pods]
        cover.controllers = {uid for pod in selected for uid in _controller_uids(pod)}
        owned = sum(
            not pod.is_terminal
            for uid in cover.controllers
            for pod in self._pods_by_controller[uid]
        )
        grants = _pending_disruptions(budget, selected, now)
        healthy = sum(_is_healthy(pod) and pod.metadata.name not in grants for pod in selected)
        counts = BudgetCounts(*_expected_and_desired(budget.spec, len(selected), owned), healthy)
        changes = _status_patches(budget, counts, grants, now)
        return ReconcilePlan(changes, min(grants.values(), default=None))

    def _budget_changed(
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

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
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
    """How many pods there should be, and how many of them must be well."""
    match spec:
        case PodDisruptionBudgetSpec(max_unavailable=int() | str() as share):
            return owned, max(0, owned - _scaled_value(share, owned))
        case PodDisruptionBudgetSpec(min_available=str() as share):
            return owned, _scaled_value(share, owned)
        case PodDisruptionBudgetSpec(min_available=int() as number):
            return selected, number
    return 0, 0


def _scaled_value(share: int | str, whole: int) -> int:
    """A number, or a percentage of a whole, rounded up."""
    if isinstance(share, int):
        return share
    # The API lets it begin with any number of zeros, `int` does not.
    percent = int(share.rstrip("%").lstrip("0") or 0)
    return -(-whole * percent // 100)


def _pending_disruptions(
    budget: PodDisruptionBudget, selected: Iterable[Pod], now: float
) -> dict[str, float]:
    """The pods that are about to go, and for how many seconds more that will be believed."""
    granted = budget.status.disrupted_pods
    names = [pod.metadata.name for pod in selected if not pod.metadata.deletion_timestamp]
    left = {n: parse_timestamp(granted[n]) + DELETION_TIMEOUT - now for n in names if n in granted}
    return {name: time for name, time in left.items() if time > 0}


def _status_patches(
    budget: PodDisruptionBudget, counts: BudgetCounts, pending: Collection[str], now: float
) -> Sequence[Patch]:
    """The patch that makes a budget say what was counted, unless it does so already."""
    status, meta = budget.status, budget.metadata
    verdict = _allowed_condition(budget, counts, now)
    said = BudgetCounts(status.expected_pods, status.desired_healthy, status.current_healthy)
    over = [name for name in status.disrupted_pods if name not in pending]
    if (
        (said, status.disruptions_allowed, over) == (counts, counts.allowed, [])
        and status.observed_generation == meta.generation
        and verdict is None
    ):
        return ()
    wanted: Object = {
        "observedGeneration": meta.generation, "expectedPods": counts.expected,
        "desiredHealthy": counts.desired, "currentHealthy": counts.healthy,
        "disruptionsAllowed": counts.allowed,
        "disruptedPods": dict.fromkeys(over),
        "conditions": [verdict] if verdict else [],
    }  # fmt: skip
    # With its version: a grant that is made meanwhile must not be overlooked.
    known = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    change = {"metadata": known, "status": wanted}
    return [Patch(POD_DISRUPTION_BUDGET, meta.key, change, "status", STRATEGIC_PATCH)]


def _allowed_condition(
    budget: PodDisruptionBudget, counts: BudgetCounts, now: float
) -> Object | None:
    """The condition that says whether pods may go; None if it is there already."""
    generation = budget.metadata.generation
    status, reason = _CONDITION_VALUES[counts.allowed > 0]
    old = find_condition(budget.status.conditions, DISRUPTION_ALLOWED)
    if old is not None and (old.status, old.observed_generation) == (status, generation):
        return None
    since = old.last_transition_time if old is not None and old.status == status else None
    return {
        "type": DISRUPTION_ALLOWED, "status": status, "reason": reason, "message": "",
        "observedGeneration": generation, "lastTransitionTime": since or timestamp(now),
    }  # fmt: skip


_CONDITION_VALUES = {True: ("True", "SufficientPods"), False: ("False", "InsufficientPods")}


def _controller_uids(pod: Pod) -> list[str]:
    """The uid of the one that makes and replaces a pod, if somebody does."""
    return [owner.uid for owner in pod.metadata.owner_references if owner.controller]


def _is_healthy(pod: Pod) -> bool:
    ready = find_condition(pod.status.conditions, "Ready")
    return ready is not None and ready.status == "True" and not pod.metadata.deletion_timestamp


def _relevant_fields(pod: Pod | None) -> tuple[object, ...]:
    """As much of a pod as budgets count by: most changes leave it as it is."""
    if pod is None:
        return ()
    meta = pod.metadata
    return (
        meta.labels,
        _controller_uids(pod),
        pod.is_terminal,
        _is_healthy(pod),
        meta.deletion_timestamp,
    )
