"""Why an entity is pending, asked from outside: the same queue, cycle and sentences, run once.

`phalanx why` hands in what the API shows and prints the answer. Places nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from phalanx.api.budget import Budget
from phalanx.api.core import Node, Pod, Service
from phalanx.api.meta import Key
from phalanx.scheduler.cache import Cache
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Decision, Placed
from phalanx.scheduler.explain import PodSentence, cures, explain, not_ready
from phalanx.scheduler.forest import Group, name_of
from phalanx.scheduler.policy import DEFAULT
from phalanx.scheduler.queue import Place, Queue
from phalanx.scheduler.search import Solver, nobody
from phalanx.scheduler.selection import Labels

PLACED = "Placed"
FITS = "Fits"
NOT_READY = "NotReady"
EMPTY = "Empty"


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the API shows."""

    nodes: Iterable[Node]
    groups: Iterable[Group]
    pods: Iterable[Pod]
    services: Iterable[Service] = ()
    #: The labels of the namespaces.
    namespaces: Mapping[str, Labels] = field(default_factory=dict)
    budgets: Iterable[Budget] = ()
    #: Pods, by uid, that are about to be evicted, which the API does not show yet.
    doomed: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answer: one state, one sentence, the pods concerned, what would help."""

    state: str
    message: str
    bound: int
    pending: int
    pods: tuple[PodSentence, ...] = ()
    cures: tuple[str, ...] = ()


def diagnose(
    key: Key, *, is_group: bool, cluster: Cluster, scheduler: str, solver: Solver = nobody
) -> Diagnosis:
    """Why a group or a pod has no node, and what would give it one."""
    cache, queue = cache_of(cluster), Queue(scheduler)
    bound = 0
    for group in cluster.groups:
        queue.group(group, 0.0)
    for pod in cluster.pods:
        queue.pod(pod, 0.0)
        mine = pod.group == key if is_group else pod.metadata.key == key
        bound += mine and bool(pod.node)
    place = next((p for p in queue.listing() if (p.key, p.is_group) == (key, is_group)), None)
    if place is None:
        return _settled(bound)
    if place.unready is not None:
        return Diagnosis(NOT_READY, not_ready(place.unready), bound, len(place.pods))
    return _told(_decided(place, queue, cache, solver), bound, len(place.pods))


def cache_of(cluster: Cluster) -> Cache:
    """What a scheduler would believe that has just seen all of it."""
    cache = Cache()
    for name, labels in cluster.namespaces.items():
        cache.namespace(name, labels)
    for service in cluster.services:
        cache.service(service.metadata.key, service.spec.selector)
    for node in cluster.nodes:
        cache.node(node.metadata.name, node)
    for group in cluster.groups:
        cache.group(name_of(group), group)
    for budget in cluster.budgets:
        cache.budget(budget.metadata.key, budget)
    for pod in cluster.pods:
        cache.pod(pod.metadata.key, pod)
    metas = [pod.metadata for pod in cluster.pods if pod.metadata.uid in cluster.doomed]
    cache.doom((meta.key, meta.uid) for meta in metas)
    return cache


def _settled(bound: int) -> Diagnosis:
    if bound:
        return Diagnosis(PLACED, "every member has a node", bound, 0)
    return Diagnosis(EMPTY, "no pod waits for a node", 0, 0)


def _decided(place: Place, queue: Queue, cache: Cache, solver: Solver) -> Decision:
    """What the next cycle would decide about it, whoever comes before."""
    while (entity := queue.pop(0.0)) is not None:
        if (entity.key, entity.group is not None) == (place.key, place.is_group):
            return decide(entity, cache.snapshot(), DEFAULT, solver)
    raise LookupError(f"{place.key} is listed as ready but never comes up")


def _told(decision: Decision, bound: int, pending: int) -> Diagnosis:
    told = explain(decision)
    if isinstance(decision, Placed):
        message = f"{len(decision.bindings)} of {pending} pending members would be placed now"
        return Diagnosis(FITS, message, bound, pending, told.pods, tuple(cures(decision)))
    return Diagnosis(told.reason, told.message, bound, pending, told.pods, tuple(cures(decision)))
