"""Loads API objects into scheduler state: the one way from decoded objects to cache and queue.

    ClusterObjects ─▶ observations ─▶ SchedulerState.observe ─▶ SchedulerCache, SchedulingQueue

`load_state` serves everything that starts from a list of objects: `phalanx.library`, the diagnosis
and the fault tests. The informers of `controllers/scheduling/event_handlers.py` use `observations`
for the first records of a decision log, and `visible_pod` and `visible_group` for each event.

    state = load_state(ClusterObjects(nodes, groups, pods))
    entity = state.pop(now)
    decision = state.decide(entity)

Nothing here reads the API or a clock: objects are observed at their creation time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from phalanx.api.core import Node, Pod, Service
from phalanx.api.meta import ObjectMeta, parse_timestamp
from phalanx.api.policy import PodDisruptionBudget
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.scheduler.cluster.group_tree import Group
from phalanx.scheduler.cluster.peer_constraints import Labels
from phalanx.scheduler.configuration.profiles import DEFAULT_PROFILES, Profiles
from phalanx.scheduler.policy import DEFAULT_POLICY
from phalanx.scheduler.queue.decision_log import (
    CompositePodGroupObserved,
    DisruptionBudgetObserved,
    NamespaceObserved,
    NodeObserved,
    Observation,
    PodGroupObserved,
    PodObserved,
    ServiceObserved,
)
from phalanx.scheduler.queue.scheduler_state import SchedulerState

GroupType = TypeVar("GroupType", PodGroup, CompositePodGroup)


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    """The API objects that a scheduler reads, decoded."""

    nodes: Iterable[Node]
    groups: Iterable[Group]
    pods: Iterable[Pod]
    services: Iterable[Service] = ()
    #: The labels of each namespace.
    namespaces: Mapping[str, Labels] = field(default_factory=dict)
    budgets: Iterable[PodDisruptionBudget] = ()
    #: The uids of pods whose eviction has been decided and is not visible in the API yet.
    evicting: Collection[str] = ()


def load_state(objects: ClusterObjects, profiles: Profiles = DEFAULT_PROFILES) -> SchedulerState:
    """Build the state of a scheduler that has observed every object at its creation time.

    The scheduler answers to every `schedulerName` that a pod has. A name without a profile gets the
    default policy.
    """
    names = dict.fromkeys(pod.spec.scheduler_name for pod in objects.pods)
    policies = {name: profiles.policies.get(name, DEFAULT_POLICY) for name in names}
    state = SchedulerState(replace(profiles, policies=policies))
    for observation in observations(objects, profiles):
        state.observe(observation)
    if objects.evicting:
        metas = [pod.metadata for pod in objects.pods if pod.metadata.uid in objects.evicting]
        state.cache.mark_evicting((meta.key, meta.uid) for meta in metas)
    return state


def observations(
    objects: ClusterObjects, profiles: Profiles, at: float | None = None
) -> Iterator[Observation]:
    """Yield one observation per object, in an order in which no object refers to a later one.

    Without `at`, groups and pods are observed at their creation time, pods in that order.
    """
    start = 0.0 if at is None else at
    for name, labels in objects.namespaces.items():
        yield NamespaceObserved(start, name, dict(labels))
    for service in objects.services:
        yield ServiceObserved(start, service.metadata.key, service.spec.selector)
    for node in objects.nodes:
        yield NodeObserved(start, node.metadata.name, node)
    for budget in objects.budgets:
        yield DisruptionBudgetObserved(start, budget.metadata.key, budget)
    for group in objects.groups if profiles.groups else ():
        key, observed_at = group.metadata.key, creation_time(group.metadata) if at is None else at
        if isinstance(group, CompositePodGroup):
            yield CompositePodGroupObserved(observed_at, key, visible_group(group, profiles))
        else:
            yield PodGroupObserved(observed_at, key, visible_group(group, profiles))
    pods = objects.pods
    if at is None:
        pods = sorted(pods, key=lambda pod: pod.metadata.creation_timestamp)
    for pod in pods:
        observed_at = creation_time(pod.metadata) if at is None else at
        yield PodObserved(observed_at, pod.metadata.key, visible_pod(pod, profiles))


def visible_pod(pod: Pod, profiles: Profiles) -> Pod:
    """Return the pod as the scheduler reads it: without its group if gang scheduling is off."""
    return pod if profiles.groups else pod.without_group


def visible_group(group: GroupType, profiles: Profiles) -> GroupType:
    """Return the group as the scheduler reads it.

    Without the feature gate PodGroupPreemptionPolicy its pods decide whether it may preempt.
    """
    return group if profiles.preemption_policies else group.with_pod_preemption_policy


def creation_time(meta: ObjectMeta) -> float:
    """Return when an object was created, in seconds since the epoch; 0 if it does not say."""
    return parse_timestamp(meta.creation_timestamp) if meta.creation_timestamp else 0.0
