"""Explains why a pod or group is pending: the decision, its messages, the capacity and the cures.

    ClusterObjects ─▶ load_state ─▶ prepare_attempt ─▶ decide ─▶ Diagnosis
                                    NotAttempted                 messages, evidence, cures

`prepare_attempt` builds the entity exactly as the queue would pass it to the next cycle, whatever
is ahead of it in the queue. `diagnose` runs the cycle once and collects:

    messages   the texts that the scheduler would write into conditions
    evidence   how many members fit on each sort of node or in each topology domain, and what
               limits them; constraints between pods can only reduce these numbers
    cures      the smallest changes that let the entity be placed (`cures.py`)

Nothing is placed, evicted or written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from phalanx.api.core import Pod
from phalanx.api.meta import POD_KIND, Key, Ref, find_condition, pod_group_ref, pod_ref
from phalanx.api.scheduling import FINISHED_ANNOTATION, PREEMPTED, PodGroup
from phalanx.scheduler.cluster.group_tree import Group, GroupTreeProblem, GroupTrees, group_ref
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Decision, Impossible, Placed, Waiting
from phalanx.scheduler.devices.requests import describe_claim
from phalanx.scheduler.devices.state import ClaimDemand, DemandedClaim
from phalanx.scheduler.diagnosis.cures import VerifiedCures, find_cures
from phalanx.scheduler.diagnosis.expected_starts import restore_written_reservations
from phalanx.scheduler.diagnosis.experiment import Experiment, KnownCluster
from phalanx.scheduler.diagnosis.volume_findings import (
    describe_volume_claims,
    is_being_provisioned,
)
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
from phalanx.scheduler.placement.claim_placement import resolve_claims
from phalanx.scheduler.placement.topology_domains import node_capacities
from phalanx.scheduler.placement.volume_placement import resolve_volumes
from phalanx.scheduler.plugins.claim_assignments import claim_capacities
from phalanx.scheduler.plugins.plugin import FilterDependency
from phalanx.scheduler.plugins.plugin_context import initial_context
from phalanx.scheduler.policy import DEFAULT_PROFILES, Profiles, SchedulerPolicy
from phalanx.scheduler.queue.scheduler_state import ClusterObjects, load_state
from phalanx.scheduler.reservation.reservation import ReservationHolds
from phalanx.scheduler.search.solver import SolverFunction, no_solver

#: How many rows are reported for each shape of member, and how many shapes.
MAX_PLACES, MAX_SHAPES = 8, 4


class CapacityRow(NamedTuple):
    """How many members of one shape fit in one place: a sort of node, or a topology domain."""

    #: The requests of each member, and the number of members.
    requests: str
    members: int
    place: str
    nodes: int
    #: How many fit now, and how many would fit if no pod ran there.
    fit: int
    empty: int
    #: The scarcest resource, or the reason why the nodes reject them; "" if all of them fit.
    limit: str


class CapacityEvidence(NamedTuple):
    """The capacity for the members of an entity, by place."""

    #: The topology key of the places; "" if they are sorts of nodes.
    key: str
    needed: int
    rows: tuple[CapacityRow, ...]
    #: How many places are not listed.
    more: int = 0
    #: For each claim of the members: how many members find its devices, and which.
    devices: tuple[str, ...] = ()


def collect_evidence(
    entity: Entity, snapshot: Snapshot, policy: SchedulerPolicy
) -> CapacityEvidence:
    """Count how many members fit in each place; the places with the most capacity first."""
    entity = resolve_volumes(resolve_claims(entity, snapshot), snapshot, policy)
    members = Counter(member.shape for member in entity.members)
    reported: list[CapacityRow] = []
    more = 0
    for shape in distinct_shapes(entity)[:MAX_SHAPES]:
        rows = list(
            _capacity_rows(
                shape,
                members[shape],
                key=entity.topology_key,
                snapshot=snapshot,
                policy=policy,
            )
        )
        rows.sort(key=lambda row: (-row.fit, -row.empty, row.place))
        reported += rows[:MAX_PLACES]
        more = max(more, len(rows) - MAX_PLACES)
    return CapacityEvidence(
        entity.topology_key,
        count_needed(entity, snapshot),
        tuple(reported),
        more=more,
        devices=tuple(_describe_devices(members, snapshot)),
    )


def _describe_devices(members: Mapping[PodShape, int], snapshot: Snapshot) -> Iterator[str]:
    """Say for each claim how many members find devices for it, if not all of them do."""
    wanted = Counter[DemandedClaim]()
    for shape, count in members.items():
        for claim in shape.claims.unallocated:
            wanted[claim] += count
    for claim, count in wanted.items():
        served = int(claim_capacities(snapshot, ClaimDemand((claim,))).sum())
        if served < count:
            requests = snapshot.devices.requests.get(claim.spec)
            text = describe_claim(requests, snapshot.devices.inventory)
            yield f"{served} of {count} members find {text}"


def _capacity_rows(
    shape: PodShape, members: int, key: str, snapshot: Snapshot, policy: SchedulerPolicy
) -> Iterator[CapacityRow]:
    capacities = node_capacities(snapshot, policy, shape)
    empty = snapshot.fork()
    empty.requested[:], empty.used_ports = 0, {}
    empty.devices = snapshot.devices.fork(snapshot.devices.pod_consumers())
    if_empty = node_capacities(empty, policy, shape)
    rejections = _node_rejections(shape, snapshot, policy)
    places = _similar_nodes(rejections, snapshot)
    if key:
        domains = snapshot.domains(key)
        places = ((value, domains.nodes(number)) for number, value in enumerate(domains.values))
    for place, nodes in places:
        fit, fit_if_empty = int(capacities[nodes].sum()), int(if_empty[nodes].sum())
        limit = (
            _limiting_reason(shape, nodes, rejections, snapshot=snapshot) if fit < members else ""
        )
        yield CapacityRow(
            str(shape),
            members,
            place,
            nodes=len(nodes),
            fit=fit,
            empty=fit_if_empty,
            limit=limit,
        )


def _similar_nodes(rejections: Sequence[str], snapshot: Snapshot) -> Iterator[tuple[str, IntArray]]:
    """Group nodes with the same allocatable resources and the same reason to reject a member."""
    nodes_by_kind: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for node, allocatable in enumerate(snapshot.allocatable.tolist()):
        nodes_by_kind.setdefault((rejections[node], tuple(allocatable)), []).append(node)
    for nodes in nodes_by_kind.values():
        name = snapshot.names[nodes[0]]
        yield name if len(nodes) == 1 else f"like {name}", np.array(nodes, np.int64)


def _node_rejections(shape: PodShape, snapshot: Snapshot, policy: SchedulerPolicy) -> list[str]:
    """Why each node rejects such a member whatever runs there; "" if it does not."""
    context, rejections = initial_context(snapshot, shape), [""] * len(snapshot)
    for filter_ in policy.filters.values():
        reject = filter_.static_part
        if filter_.depends_on is FilterDependency.NODES:
            reject = filter_.reject
        if reject is not None:
            for reason, mask in reject(context):
                for node in np.flatnonzero(mask).tolist():
                    rejections[node] = rejections[node] or _shorten_reason(reason)
    return rejections


def _shorten_reason(reason: str) -> str:
    for prefix in ("node(s) ", "were ", "had "):
        reason = reason.removeprefix(prefix)
    return reason


def _limiting_reason(
    shape: PodShape, nodes: IntArray, rejections: Sequence[str], snapshot: Snapshot
) -> str:
    """The most frequent reason why these nodes accept no further member."""
    served = claim_capacities(snapshot, shape.claims)
    found = Counter(
        rejections[node] or _scarcest_resource(shape, node, snapshot, served=int(served[node]))
        for node in nodes.tolist()
    )
    return max(sorted(found), key=found.__getitem__)


def _scarcest_resource(shape: PodShape, node: int, snapshot: Snapshot, *, served: int) -> str:
    """The resource that is sufficient for the fewest such members on a node.

    `served` is the number of members for which its devices are sufficient.
    """
    columns = snapshot.columns

    def holds(request: tuple[str, int]) -> int:
        name, amount = request
        if name not in columns:
            return 0
        free = int(
            snapshot.allocatable[node, columns[name]] - snapshot.requested[node, columns[name]]
        )
        return max(free, 0) // amount

    scarcest = min(shape.requests, key=holds, default=None)
    if scarcest is None or served < holds(scarcest):
        return "devices"
    return scarcest[0]


#: States of a Diagnosis, in addition to the reasons of a decision.
PLACED = "Placed"
FITS = "Fits"
PROVISIONING = "Provisioning"
NOT_READY = "NotReady"
EMPTY = "Empty"
FINISHED = "Finished"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a pod or group is pending, and what would let it be placed."""

    #: PLACED, FITS, PROVISIONING, NOT_READY, EMPTY, FINISHED, or a reason of the decision
    state: str
    message: str
    #: How many of its pods have a node, and how many wait for one.
    bound: int
    pending: int
    pods: tuple[PodMessage, ...] = ()
    cures: tuple[Cure, ...] = ()
    #: The CompositePodGroup at the root, if the subject is decided as a part of it.
    tree: Key | None = None
    #: The message for each group of that tree.
    groups: tuple[GroupMessage, ...] = ()
    evidence: CapacityEvidence | None = None
    #: Which entity has preempted it, and when; "" if none did since it was last placed.
    preempted: str = ""
    #: Which nodes its volume claims allow, or what they wait for, a sentence each.
    claims: tuple[str, ...] = ()
    #: How many decisions were made to find cures, and whether the limit ended the search.
    decisions: int = 0
    is_cut_short: bool = False


def describe_preemption(groups: Iterable[Group]) -> str:
    """Say which entity has preempted the first of some groups that wait for that, and when."""
    for group in groups:
        condition = find_condition(group.status.conditions, PREEMPTED)
        if condition is not None and condition.status == "True":
            text = condition.message[:1].lower() + condition.message[1:]
            return f"{text} at {condition.last_transition_time}"
    return ""


@dataclass(frozen=True, slots=True)
class NotAttempted:
    """No cycle runs for the subject: it is placed, has no pods, or is not ready."""

    #: PLACED, EMPTY, FINISHED or NOT_READY.
    state: str
    message: str
    bound: int
    pending: int


class Attempt(NamedTuple):
    """The input of the next scheduling cycle of a subject."""

    subject: Ref
    #: The subject itself, or the tree of groups that it is scheduled with.
    entity: Entity
    known: KnownCluster
    policy: SchedulerPolicy
    solver: SolverFunction
    #: The live pods of the subject.
    pods: tuple[Pod, ...]
    #: What reservations keep from the entity.
    holds: ReservationHolds | None = None

    def decide(self) -> Decision:
        """Run the scheduling cycle."""
        snapshot = self.known.cache.snapshot()
        return decide(self.entity, snapshot, self.policy, solver=self.solver, holds=self.holds)


def prepare_attempt(
    subject: Ref,
    cluster: ClusterObjects,
    profiles: Profiles = DEFAULT_PROFILES,
    solver: SolverFunction = no_solver,
    now: float = 0.0,
) -> Attempt | NotAttempted:
    """Build the input of the next cycle of a pod or group, or say why no cycle would run.

    A group of a tree is scheduled with the whole tree.
    """
    state = load_state(cluster, profiles)
    group_trees = state.cache.snapshot().group_trees
    pods = tuple(pod for pod in cluster.pods if _belongs_to(pod, subject, group_trees))
    pending = sum(not pod.occupied_node for pod in pods)
    # Terminating members of an entity that waits do not count towards its quorum.
    bound = sum(
        bool(pod.occupied_node and not (pending and pod.metadata.deletion_timestamp))
        for pod in pods
    )
    group = group_trees.get(subject) if subject.kind != POD_KIND else None
    if isinstance(group, PodGroup) and group.is_finished:
        message = f"its Job has ended: {group.metadata.annotations[FINISHED_ANNOTATION]}"
        return NotAttempted(FINISHED, message, bound=bound, pending=0)
    root = subject if subject.kind == POD_KIND else group_trees.root(subject)
    if isinstance(root, GroupTreeProblem):
        return NotAttempted(NOT_READY, root.message, bound=bound, pending=pending)
    queued = next((info for info in state.queue.list_entities() if info.ref == root), None)
    if queued is None or not pending:
        if bound:
            return NotAttempted(PLACED, "every member has a node", bound=bound, pending=0)
        return NotAttempted(EMPTY, "no pod waits for a node", bound=0, pending=0)
    if queued.unready is not None:
        message = describe_unready(queued.unready)
        return NotAttempted(NOT_READY, message, bound=bound, pending=pending)
    restore_written_reservations(state, cluster, now)
    while (entity := state.pop(now)) is not None and entity.ref != root:
        pass
    if entity is None:
        raise LookupError(f"{root} is listed as ready, but the queue never returns it")
    known = KnownCluster(
        state.cache,
        {node.metadata.name: node for node in cluster.nodes},
        {pod.metadata.key: pod for pod in cluster.pods if not pod.is_terminal},
    )
    holds = state.reservations.holds_for(entity, state.cache.snapshot(), now)
    policy = state.profiles.policy(entity)
    return Attempt(subject, entity, known, policy=policy, solver=solver, pods=pods, holds=holds)


def _belongs_to(pod: Pod, subject: Ref, group_trees: GroupTrees) -> bool:
    """Whether a live pod is the subject, or a member of it."""
    if pod.is_terminal or (pod.metadata.deletion_timestamp and not pod.occupied_node):
        return False
    if subject.kind == POD_KIND or pod.group is None:
        return subject == pod_ref(pod.metadata.key)
    return _is_within(pod_group_ref(pod.group), subject, group_trees)


def _is_within(group: Ref, subject: Ref, group_trees: GroupTrees) -> bool:
    """Whether a group is the subject, or below it."""
    return group == subject or subject in map(group_ref, group_trees.ancestry(group))


def diagnose(
    subject: Ref,
    cluster: ClusterObjects,
    profiles: Profiles = DEFAULT_PROFILES,
    solver: SolverFunction = no_solver,
    now: float = 0.0,
) -> Diagnosis:
    """Explain why a pod, a group or a tree of groups has no node, and what would give it one."""
    attempt = prepare_attempt(subject, cluster, profiles, solver=solver, now=now)
    members = GroupTrees()
    for group in cluster.groups:
        members.update(group_ref(group), group)
    preempted = describe_preemption(
        group for group in cluster.groups if _is_within(group_ref(group), subject, members)
    )
    if isinstance(attempt, NotAttempted):
        found = Diagnosis(attempt.state, attempt.message, attempt.bound, attempt.pending)
        return replace(found, preempted=preempted if attempt.pending else "")
    entity, decision = attempt.entity, attempt.decide()
    explanation = explain(decision)
    pending = {pod.metadata.key for pod in attempt.pods if not pod.occupied_node}
    state, message = explanation.reason, explanation.message
    evidence, cures = None, VerifiedCures()
    waiting_pods = [pod for pod in attempt.pods if not pod.occupied_node]
    volumes = attempt.known.cache.snapshot().volumes
    claims = describe_volume_claims(waiting_pods, volumes, now)
    if isinstance(decision, Placed) and is_being_provisioned(waiting_pods, volumes):
        state, message = PROVISIONING, "; ".join(one for one in claims if "waiting for" in one)
    elif isinstance(decision, Placed):
        count = len(decision.bindings)
        state, message = (
            FITS,
            f"{count} of {len(entity.members)} pending members would be placed now",
        )
    else:
        messages = [item.message for item in explanation.groups if item.ref == subject]
        message = messages[0] if messages else message
        # An entity that a reservation holds lacks no capacity.
        is_held = isinstance(decision, Waiting) and bool(decision.held_by)
        if not isinstance(decision, Impossible) and not is_held:
            evidence = collect_evidence(entity, attempt.known.cache.snapshot(), attempt.policy)
        if isinstance(decision, Waiting) and not is_held:
            cures = find_cures(
                Experiment(entity, decision, attempt.known, policy=attempt.policy, solver=solver)
            )
    return Diagnosis(
        state,
        message,
        bound=len(attempt.pods) - len(pending),
        pending=len(pending),
        pods=tuple(item for item in explanation.pods if item.pod in pending),
        cures=tuple(rank_cures(decision, cures.found)),
        tree=entity.key if entity.is_composite and entity.ref != subject else None,
        groups=explanation.groups,
        evidence=evidence,
        preempted=preempted,
        claims=claims,
        decisions=cures.decisions,
        is_cut_short=cures.is_cut_short,
    )
