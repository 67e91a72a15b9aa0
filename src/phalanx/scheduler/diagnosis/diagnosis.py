"""Evidence: where there is how much room for the members of a refused entity, and what is short.

A row per domain where a topology is asked for, else per sort of node: those with the same room that
take such a member, or do not for the same reason. An account of room alone: what members mind about
each other and about other pods can only make it less.

Why an entity is pending, asked from outside: the same queue, cycle and sentences, run once.

`phalanx why` hands in what the API shows and prints the answer. Places nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from phalanx.api.core import Pod
from phalanx.api.meta import Key
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.group_tree import (
    GroupRef,
    GroupTreeProblem,
    GroupTrees,
    group_ref,
)
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot
from phalanx.scheduler.configuration.profiles import DEFAULT_PROFILES, Profiles
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Impossible, Placed, Waiting
from phalanx.scheduler.diagnosis.cures import VerifiedCures, find_cures
from phalanx.scheduler.diagnosis.experiment import Experiment, KnownCluster
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.explain import (
    Cure,
    GroupMessage,
    PodMessage,
    describe_unready,
    explain,
    rank_cures,
)
from phalanx.scheduler.placement.capacity_estimate import count_needed, distinct_shapes
from phalanx.scheduler.placement.topology_domains import node_capacities
from phalanx.scheduler.plugins.filters import FilterDependency
from phalanx.scheduler.plugins.plugin_context import initial_context
from phalanx.scheduler.policy import SchedulerPolicy
from phalanx.scheduler.queue.cluster_objects import ClusterObjects, load_state
from phalanx.scheduler.queue.queued_entity import EntityId
from phalanx.scheduler.queue.scheduling_queue import SchedulingQueue
from phalanx.scheduler.search.solver import SolverFunction, no_solver

#: How many places are told for each sort of member, and how many sorts.
MAX_PLACES, MAX_SHAPES = 8, 4


class CapacityRow(NamedTuple):
    """Members of one sort in one place."""

    #: What each of these members asks for, and how many they are.
    asks: str
    members: int
    place: str
    nodes: int
    #: How many fit now, and how many would if nothing ran there.
    fit: int
    empty: int
    #: What there is too little of, or what keeps them off; "" if they all fit.
    limit: str


class CapacityEvidence(NamedTuple):
    """The table, and how many places it leaves out."""

    #: The label that divides the places; "" if they are sorts of nodes.
    key: str
    needed: int
    rows: tuple[CapacityRow, ...]
    more: int = 0


def collect_evidence(
    entity: Entity, snapshot: Snapshot, policy: SchedulerPolicy
) -> CapacityEvidence:
    """Where there is room for whom; the places with most room first."""
    members = Counter(member.shape for member in entity.members)
    told: list[CapacityRow] = []
    more = 0
    for shape in distinct_shapes(entity)[:MAX_SHAPES]:
        rows = list(_capacity_rows(shape, members[shape], entity.topology_key, snapshot, policy))
        rows.sort(key=lambda row: (-row.fit, -row.empty, row.place))
        told += rows[:MAX_PLACES]
        more = max(more, len(rows) - MAX_PLACES)
    return CapacityEvidence(entity.topology_key, count_needed(entity, snapshot), tuple(told), more)


def _capacity_rows(
    shape: PodShape, members: int, key: str, snapshot: Snapshot, policy: SchedulerPolicy
) -> Iterator[CapacityRow]:
    now = node_capacities(snapshot, policy, shape)
    empty = snapshot.fork()
    empty.requested[:], empty.used_ports = 0, {}
    then = node_capacities(empty, policy, shape)
    bars = _node_rejections(shape, snapshot, policy)
    for place, nodes in _domain_nodes(key, snapshot) if key else _similar_nodes(bars, snapshot):
        fit, most = int(now[nodes].sum()), int(then[nodes].sum())
        limit = _limiting_reason(shape, nodes, bars, snapshot) if fit < members else ""
        yield CapacityRow(str(shape), members, place, len(nodes), fit, most, limit)


def _domain_nodes(key: str, snapshot: Snapshot) -> Iterator[tuple[str, IntArray]]:
    domains = snapshot.domains(key)
    return ((value, domains.nodes(number)) for number, value in enumerate(domains.values))


def _similar_nodes(rejections: Sequence[str], snapshot: Snapshot) -> Iterator[tuple[str, IntArray]]:
    """Nodes with the same room that take a member, or do not for the same reason."""
    found: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for node, room in enumerate(snapshot.allocatable.tolist()):
        found.setdefault((rejections[node], tuple(room)), []).append(node)
    for nodes in found.values():
        name = snapshot.names[nodes[0]]
        yield name if len(nodes) == 1 else f"like {name}", np.array(nodes, np.int64)


def _node_rejections(shape: PodShape, snapshot: Snapshot, policy: SchedulerPolicy) -> list[str]:
    """Why each node takes no such member whatever runs there; "" if it may."""
    scene, bars = initial_context(snapshot, shape), [""] * len(snapshot)
    for row in policy.filters:
        if row.depends_on is FilterDependency.NODES:
            for reason, mask in row.reject(scene):
                for node in np.flatnonzero(mask).tolist():
                    bars[node] = bars[node] or _shorten_reason(reason)
    return bars


def _shorten_reason(reason: str) -> str:
    for word in ("node(s) ", "were ", "had "):
        reason = reason.removeprefix(word)
    return reason


def _limiting_reason(
    shape: PodShape, nodes: IntArray, rejections: Sequence[str], snapshot: Snapshot
) -> str:
    """What keeps most of some nodes from taking one more."""
    found = Counter(
        rejections[node] or _scarcest_resource(shape, node, snapshot) for node in nodes.tolist()
    )
    return max(sorted(found), key=found.__getitem__)


def _scarcest_resource(shape: PodShape, node: int, snapshot: Snapshot) -> str:
    """The resource of which a node holds fewest such members."""
    columns = snapshot.columns

    def holds(request: tuple[str, int]) -> int:
        name, amount = request
        if name not in columns:
            return 0
        free = int(
            snapshot.allocatable[node, columns[name]] - snapshot.requested[node, columns[name]]
        )
        return max(free, 0) // amount

    return min(shape.requests, key=holds)[0]


PLACED = "Placed"
FITS = "Fits"
NOT_READY = "NotReady"
EMPTY = "Empty"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answer: one state, one sentence, the pods concerned, the evidence, what would help."""

    state: str
    message: str
    bound: int
    pending: int
    pods: tuple[PodMessage, ...] = ()
    cures: tuple[Cure, ...] = ()
    #: The tree of groups that it was decided about with, and what is told to each group of it.
    tree: Key | None = None
    groups: tuple[GroupMessage, ...] = ()
    evidence: CapacityEvidence | None = None
    #: How many decisions were made to find cures, and whether there was more to try.
    decisions: int = 0
    is_cut_short: bool = False


def diagnose(
    subject: EntityId,
    cluster: ClusterObjects,
    profiles: Profiles = DEFAULT_PROFILES,
    solver: SolverFunction = no_solver,
    now: float = 0.0,
) -> Diagnosis:
    """Why a pod, a group or a tree of groups has no node, and what would give it one.

    A group of a tree is decided about with all of it, since all of it is placed or nothing.
    """
    state = load_state(cluster, profiles)
    cache, queue = state.cache, state.queue
    forest = cache.snapshot().group_trees
    mine = [pod for pod in cluster.pods if _belongs_to(pod, subject, forest)]
    bound = sum(bool(pod.occupied_node) for pod in mine)
    home = _scheduled_with(subject, forest)
    if isinstance(home, GroupTreeProblem):
        return Diagnosis(NOT_READY, home.message, bound, len(mine) - bound)
    place = next((place for place in queue.list_entities() if place.ref == home), None)
    if place is None or len(mine) == bound:
        return _nothing_pending(bound)
    if place.unready is not None:
        return Diagnosis(NOT_READY, describe_unready(place.unready), bound, len(mine) - bound)
    entity = _pop_entity(home, queue, now)
    policy = state.profiles.policy(entity)
    asked = _DiagnosisRequest(subject, entity, _known_cluster(cache, cluster), policy, solver)
    return _diagnose_entity(asked, mine)


class _DiagnosisRequest(NamedTuple):
    """An entity to decide about, and what of it is asked for."""

    subject: EntityId
    entity: Entity
    known: KnownCluster
    policy: SchedulerPolicy
    solver: SolverFunction


def _belongs_to(pod: Pod, subject: EntityId, group_tree: GroupTrees) -> bool:
    """Whether a live pod is what is asked about, or below it."""
    if pod.is_terminal or (pod.metadata.deletion_timestamp and not pod.occupied_node):
        return False
    if not subject.is_group or pod.group is None:
        return subject == EntityId(False, pod.metadata.key)
    own = GroupRef(False, pod.group)
    return own == subject.name or subject.name in map(group_ref, group_tree.ancestry(own))


def _scheduled_with(subject: EntityId, group_tree: GroupTrees) -> EntityId | GroupTreeProblem:
    """The entity that it is decided with: itself, or the tree that it is in."""
    if not subject.is_group:
        return subject
    root = group_tree.root(subject.name)
    return (
        root if isinstance(root, GroupTreeProblem) else EntityId(True, root.key, root.is_composite)
    )


def _nothing_pending(bound: int) -> Diagnosis:
    if bound:
        return Diagnosis(PLACED, "every member has a node", bound, 0)
    return Diagnosis(EMPTY, "no pod waits for a node", 0, 0)


def _pop_entity(wanted: EntityId, queue: SchedulingQueue, now: float) -> Entity:
    """What the next cycle would get to see of it, whoever comes before."""
    while (entity := queue.pop(now)) is not None:
        if _entity_id(entity) == wanted:
            return entity
    raise LookupError(f"{wanted.key} is listed as ready but never comes up")


def _entity_id(entity: Entity) -> EntityId:
    return EntityId(entity.group is not None, entity.key, entity.is_composite)


def _known_cluster(cache: SchedulerCache, cluster: ClusterObjects) -> KnownCluster:
    nodes = {node.metadata.name: node for node in cluster.nodes}
    return KnownCluster(
        cache, nodes, {pod.metadata.key: pod for pod in cluster.pods if not pod.is_terminal}
    )


def _diagnose_entity(request: _DiagnosisRequest, own_pods: Collection[Pod]) -> Diagnosis:
    """What the cycle decides, in words, with the evidence and what would help."""
    subject, entity, known, policy, solver = request
    pending = {pod.metadata.key for pod in own_pods if not pod.occupied_node}
    bound = len(own_pods) - len(pending)
    snapshot = known.cache.snapshot()
    decision = decide(entity, snapshot, policy, solver)
    told = explain(decision)
    pods = tuple(one for one in told.pods if one.pod in pending)
    tree = entity.key if entity.is_composite and _entity_id(entity) != subject else None
    if isinstance(decision, Placed):
        count = len(decision.bindings)
        message = f"{count} of {len(entity.members)} pending members would be placed now"
        return Diagnosis(
            FITS,
            message,
            bound,
            len(pending),
            pods,
            tuple(rank_cures(decision, ())),
            tree,
            told.groups,
        )
    own = [one for one in told.groups if EntityId(True, one.ref, one.is_composite) == subject]
    room, helps = None, VerifiedCures()
    if not isinstance(decision, Impossible):
        room = collect_evidence(entity, snapshot, policy)
    if isinstance(decision, Waiting):
        helps = find_cures(Experiment(entity, decision, known, policy, solver))
    return Diagnosis(
        told.reason, own[0].message if own else told.message, bound, len(pending), pods,
        tuple(rank_cures(decision, helps.found)), tree, told.groups, room, helps.decisions,
        helps.is_cut_short,
    )  # fmt: skip
