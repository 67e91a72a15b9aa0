"""Why an entity is pending, asked from outside: the same queue, cycle and sentences, run once.

`phalanx why` hands in what the API shows and prints the answer. Places nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from phalanx.api.budget import Budget
from phalanx.api.core import Node, Pod, Service
from phalanx.api.meta import Key, Meta, seconds
from phalanx.scheduler.asking.evidence import Evidence, evidence
from phalanx.scheduler.asking.experiment import Experiment, Known
from phalanx.scheduler.asking.remedies import Remedies, remedies
from phalanx.scheduler.cluster.cache import Cache
from phalanx.scheduler.cluster.forest import Flaw, Forest, Group, Name, name_of
from phalanx.scheduler.cluster.selection import Labels
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Impossible, Placed, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.explain import (
    Cure,
    GroupSentence,
    PodSentence,
    explain,
    not_ready,
    ranked,
)
from phalanx.scheduler.policy import DEFAULT, Policy
from phalanx.scheduler.queueing.entry import Id
from phalanx.scheduler.queueing.queue import Queue
from phalanx.scheduler.rescue.search import Solver, nobody
from phalanx.scheduler.settings.profiles import DEFAULT_PROFILES, Profiles

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
    """The answer: one state, one sentence, the pods concerned, the evidence, what would help."""

    state: str
    message: str
    bound: int
    pending: int
    pods: tuple[PodSentence, ...] = ()
    cures: tuple[Cure, ...] = ()
    #: The tree of groups that it was decided about with, and what is told to each group of it.
    tree: Key | None = None
    groups: tuple[GroupSentence, ...] = ()
    evidence: Evidence | None = None
    #: How many decisions were made to find cures, and whether there was more to try.
    decisions: int = 0
    is_cut_short: bool = False


def diagnose(
    subject: Id, cluster: Cluster, profiles: Profiles = DEFAULT_PROFILES, solver: Solver = nobody,
    now: float = 0.0,
) -> Diagnosis:  # fmt: skip
    """Why a pod, a group or a tree of groups has no node, and what would give it one.

    A group of a tree is decided about with all of it, since all of it is placed or nothing.
    """
    cache = cache_of(cluster)
    forest = cache.snapshot().forest
    mine = [pod for pod in cluster.pods if _is_of(pod, subject, forest)]
    bound = sum(bool(pod.node) for pod in mine)
    queue, home = queue_of(cluster), _home(subject, forest)
    if isinstance(home, Flaw):
        return Diagnosis(NOT_READY, home.message, bound, len(mine) - bound)
    place = next((place for place in queue.listing() if place.id == home), None)
    if place is None or len(mine) == bound:
        return _settled(bound)
    if place.unready is not None:
        return Diagnosis(NOT_READY, not_ready(place.unready), bound, len(mine) - bound)
    entity = _next(home, queue, now)
    policy = profiles.policies.get(entity.scheduler, DEFAULT)
    asked = _Question(subject, entity, _known(cache, cluster), policy, solver)
    return _answered(asked, mine)


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


class _Question(NamedTuple):
    """An entity to decide about, and what of it is asked for."""

    subject: Id
    entity: Entity
    known: Known
    policy: Policy
    solver: Solver


def _is_of(pod: Pod, subject: Id, forest: Forest) -> bool:
    """Whether a live pod is what is asked about, or below it."""
    if pod.ended or (pod.metadata.deletion_timestamp and not pod.node):
        return False
    if not subject.is_group or pod.group is None:
        return subject == Id(False, pod.metadata.key)
    own = Name(False, pod.group)
    return own == subject.name or subject.name in map(name_of, forest.line(own))


def queue_of(cluster: Cluster) -> Queue:
    """The queue of a scheduler of every name that saw everything when it came about."""
    queue = Queue(*dict.fromkeys(pod.spec.scheduler_name for pod in cluster.pods))
    for group in cluster.groups:
        queue.group(group, made(group.metadata))
    for pod in sorted(cluster.pods, key=lambda pod: pod.metadata.creation_timestamp):
        queue.pod(pod, made(pod.metadata))
    return queue


def made(meta: Meta) -> float:
    """When an object came about."""
    return seconds(meta.creation_timestamp) if meta.creation_timestamp else 0.0


def _home(subject: Id, forest: Forest) -> Id | Flaw:
    """The entity that it is decided with: itself, or the tree that it is in."""
    if not subject.is_group:
        return subject
    root = forest.root(subject.name)
    return root if isinstance(root, Flaw) else Id(True, root.key, root.is_composite)


def _settled(bound: int) -> Diagnosis:
    if bound:
        return Diagnosis(PLACED, "every member has a node", bound, 0)
    return Diagnosis(EMPTY, "no pod waits for a node", 0, 0)


def _next(home: Id, queue: Queue, now: float) -> Entity:
    """What the next cycle would get to see of it, whoever comes before."""
    while (entity := queue.pop(now)) is not None:
        if _id(entity) == home:
            return entity
    raise LookupError(f"{home.key} is listed as ready but never comes up")


def _id(entity: Entity) -> Id:
    return Id(entity.group is not None, entity.key, entity.is_composite)


def _known(cache: Cache, cluster: Cluster) -> Known:
    nodes = {node.metadata.name: node for node in cluster.nodes}
    return Known(cache, nodes, {pod.metadata.key: pod for pod in cluster.pods if not pod.ended})


def _answered(asked: _Question, mine: Collection[Pod]) -> Diagnosis:
    """What the cycle decides, in words, with the evidence and what would help."""
    subject, entity, known, policy, solver = asked
    pending = {pod.metadata.key for pod in mine if not pod.node}
    bound = len(mine) - len(pending)
    snapshot = known.cache.snapshot()
    decision = decide(entity, snapshot, policy, solver)
    told = explain(decision)
    pods = tuple(one for one in told.pods if one.pod in pending)
    tree = entity.key if entity.is_composite and _id(entity) != subject else None
    if isinstance(decision, Placed):
        count = len(decision.bindings)
        message = f"{count} of {len(entity.members)} pending members would be placed now"
        return Diagnosis(
            FITS, message, bound, len(pending), pods, tuple(ranked(decision, ())), tree, told.groups
        )
    own = [one for one in told.groups if Id(True, one.key, one.is_composite) == subject]
    room, helps = None, Remedies()
    if not isinstance(decision, Impossible):
        room = evidence(entity, snapshot, policy)
    if isinstance(decision, Waiting):
        helps = remedies(Experiment(entity, decision, known, policy, solver))
    return Diagnosis(
        told.reason, own[0].message if own else told.message, bound, len(pending), pods,
        tuple(ranked(decision, helps.found)), tree, told.groups, room, helps.decisions,
        helps.is_cut_short,
    )  # fmt: skip
