"""WakeCondition: which changes may cure the refusal of an entity, and which entities share it.

A refusal holds until something changes that can make it wrong: a node gets room for one more
member, a label or taint lets a node in, a pod comes or goes that the members' constraints select.
`WakeCondition.count_cured` decides this for one change: how many more members may get a node. A
gang that lacks three is woken when the changes since its refusal add up to three. The count is
never too low: where a refusal cannot be described exactly, every event of `Waiting.wakes_on` may
cure it.

Entities with equal conditions are decided alike: equal members, quorum, priority and topology under
one policy. What refuses the first of them refuses all, so the queue attempts the first one only
(`waiting_entities.py`):

    gangs a, b, c of 8 pods of 8 cpu     one condition; a pod of 1 cpu ends: none is attempted
    a node of 8 cpu is added             a is attempted; b and c only if a is placed
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeGuard

from msgspec import Struct
from msgspec.structs import replace

from phalanx.api.meta import Ref
from phalanx.api.scheduling import TOPOLOGY_ANNOTATION
from phalanx.scheduler.cluster.cluster_delta import ClusterDelta, RoomView
from phalanx.scheduler.cluster.pod_index import PodIndex
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.decision import (
    CAPACITY_EVENTS,
    ENTITY_EVENTS,
    NODE_EVENTS,
    PEER_EVENTS,
    UNSCHEDULABLE,
    ClusterEvent,
    Decision,
    PendingDecision,
    Waiting,
)
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.placement.claim_placement import served_resources, unlisted_resources
from phalanx.scheduler.placement.group_placement import count_scheduled
from phalanx.scheduler.placement.topology_domains import topology_label_keys
from phalanx.scheduler.policy import SchedulerPolicy
from phalanx.scheduler.preemption.evaluator import NOT_ALLOWED, NOT_HELPFUL, VICTIMS_TERMINATING
from phalanx.scheduler.reservation.reservation import Reservation

#: More members than any entity lacks.
ANY_NUMBER = 1 << 30
#: The events whose changes are described; a refusal that awaits another one is not.
_DESCRIBED_EVENTS = PEER_EVENTS | ENTITY_EVENTS | {ClusterEvent.RESERVATION_CHANGED}
#: Entities beside smaller reservations than this have equal conditions.
_MIN_RESERVED_PODS = 64
#: With more terms of anti-affinity than this in the cluster, no two entities have equal conditions.
_MAX_COMPARED_TERMS = 64


class RefusalScope(Struct, frozen=True):
    """What a decision log stores of a condition; the rest follows from the entity."""

    #: Whether room without pods, and room that evictions can make, may cure the refusal.
    free: bool
    evictable: bool
    #: Whether anti-affinity of running pods may select members.
    is_kept_away: bool
    #: Whether equal entities get the same decision.
    is_shared: bool
    #: Whether the same cluster may give another decision later: a wider topology level will be
    #: allowed, or the entity fits once pods have left, which may hang in Terminating.
    depends_on_time: bool
    #: How many members of each group had a node.
    scheduled: tuple[int, ...]
    #: Whether reservations keep room from the entity; at least how many pods these have; and, if
    #: the entity declares when it ends, whose reservations they are.
    is_held: bool = False
    reserved_pods: int = 0
    holders: tuple[Ref, ...] = ()


class WakeCondition(Struct, frozen=True, cache_hash=True):
    """The changes that may cure a refusal. Entities with equal conditions are decided alike."""

    events: frozenset[ClusterEvent]
    #: The entity, if no other one is decided alike.
    ref: Ref | None = None
    #: None: every event may cure the refusal.
    scope: RefusalScope | None = None
    scheduler: str = ""
    priority: int = 0
    groups: tuple[GroupSignature, ...] = ()
    #: The labels of nodes that select the topology domains of the members.
    topology_keys: frozenset[str] = frozenset()

    @property
    def depends_on_time(self) -> bool:
        """Whether the same cluster may give another decision later."""
        return self.scope is None or self.scope.depends_on_time

    def count_cured(self, change: ClusterDelta) -> int:
        """Count at most how many more members may get a node after a change."""
        if change.event not in self.events:
            return 0
        if self.scope is None or not change.has_details:
            return ANY_NUMBER
        shapes = self.shapes
        if (
            (self.scope.is_kept_away and (change.frees_anti_affinity or change.changes_node))
            or change.changes_labels(self.topology_keys)
            or any(_concerns_peers(shape, change) for shape in shapes)
        ):
            return ANY_NUMBER
        if self.scope.is_held:
            views = [RoomView(self.priority)]
            if self.scope.evictable:
                views.append(RoomView(self.priority, evicts=True, counts_leaving=True))
            reserved_pods = self.scope.reserved_pods
            added = max(
                change.frees_held_room(shapes, view, reserved_pods=reserved_pods) for view in views
            )
        else:
            added = change.adds_room(
                shapes, self.priority, free=self.scope.free, evictable=self.scope.evictable
            )
        # A new or changed node is rare, and the entity reports what is missing then.
        return ANY_NUMBER if added and change.event in NODE_EVENTS else added

    @property
    def shapes(self) -> dict[PodShape, None]:
        """The distinct shapes of the members."""
        return dict.fromkeys(shape for group in self.groups for shape, _ in group.members)


#: The condition of an entity that was never refused.
NO_CONDITION = WakeCondition(frozenset())


class GroupSignature(Struct, frozen=True, cache_hash=True):
    """One group of an entity: its quorum, its topology, and its pending members by shape."""

    depth: int
    quorum: int
    topology: tuple[str, str]
    members: frozenset[tuple[PodShape, int]]


def condition_of(
    entity: Entity,
    decision: PendingDecision,
    snapshot: Snapshot,
    *,
    policy: SchedulerPolicy,
    reservations: Sequence[Reservation] = (),
    is_alone: bool = False,
    has_limit: bool = False,
) -> WakeCondition:
    """Return which changes may cure the refusal of an entity beside the reservations.

    `is_alone`: the decision about an equal entity may differ, because it is behind a reservation
    of their priority.
    `has_limit`: the entity declares when it ends. Every reservation before it holds an entity
    without a limit; of those with one, only those that the same reservations hold are equal.
    """
    scope = _scope_of(entity, decision, snapshot, policy=policy)
    if scope is not None and is_alone:
        scope = replace(scope, is_shared=False)
    if scope is not None and isinstance(decision, Waiting) and decision.holders:
        held = [one for one in reservations if one.ref in decision.holders]
        pods = max(sum(len(one.bindings) for one in held), _MIN_RESERVED_PODS)
        scope = replace(
            scope,
            free=True,
            is_held=True,
            # Rounded, so that other reservations seldom make it another condition.
            reserved_pods=1 << (pods - 1).bit_length(),
            holders=decision.holders if has_limit else (),
        )
    events = decision.wakes_on
    if unlisted_resources(entity, snapshot):
        # A class or a slice may come that serves them.
        events |= {ClusterEvent.DEVICES_CHANGED}
    return build_condition(entity, events, scope)


def count_lacking(condition: WakeCondition, decision: PendingDecision) -> int:
    """Count at least how many members must get a node for a refusal to end.

    Known for equal members that only need room, if no pod could be evicted for them: then as many
    have found a node as fit.
    """
    is_counted = (
        isinstance(decision, Waiting)
        and condition.scope is not None
        and decision.preemption != NOT_HELPFUL
        and (not decision.holders or decision.preemption in ("", NOT_ALLOWED))
        and len(condition.groups) == 1
        and not condition.topology_keys
        and len(condition.shapes) == 1
        and not any(shape.has_peer_constraints for shape in condition.shapes)
    )
    if not is_counted:
        return 1
    assert isinstance(decision, Waiting)
    return max(decision.quorum - decision.scheduled, 1)


def is_final(decision: Decision) -> TypeGuard[Waiting]:
    """Whether a decision is a refusal that only changes of nodes and pods can end."""
    return (
        isinstance(decision, Waiting)
        and decision.reason == UNSCHEDULABLE
        and not decision.nominated
        and decision.wakes_on <= _DESCRIBED_EVENTS
    )


def build_condition(
    entity: Entity, events: frozenset[ClusterEvent], scope: RefusalScope | None
) -> WakeCondition:
    """Build a condition from an entity and what a decision log stores."""
    if scope is None:
        return WakeCondition(events, entity.ref)
    # A node may reject the members for several reasons, of which the refusal names the first.
    depends_on_peers = has_peer_constraints(entity) or scope.is_kept_away
    events |= PEER_EVENTS if depends_on_peers else CAPACITY_EVENTS
    return WakeCondition(
        events,
        None if scope.is_shared else entity.ref,
        scope,
        scheduler=entity.scheduler_name,
        priority=entity.priority,
        groups=tuple(_signatures_of(entity)),
        topology_keys=topology_label_keys(entity),
    )


def has_peer_constraints(entity: Entity) -> bool:
    """Whether members have constraints on other pods."""
    return any(member.shape.has_peer_constraints for member in entity.members)


def _signatures_of(entity: Entity, depth: int = 0) -> Iterator[GroupSignature]:
    group = entity.group
    annotation = group.metadata.annotations.get(TOPOLOGY_ANNOTATION, "") if group else ""
    members = Counter(member.shape for member in entity.members) if not entity.children else {}
    yield GroupSignature(
        depth,
        entity.quorum,
        (entity.topology_key, annotation),
        members=frozenset(members.items()),
    )
    for child in entity.children:
        yield from _signatures_of(child, depth + 1)


def _scope_of(
    entity: Entity, decision: PendingDecision, snapshot: Snapshot, *, policy: SchedulerPolicy
) -> RefusalScope | None:
    """Describe a refusal; None if it depends on time, on a search, or on unknown plugins."""
    if not is_final(decision) or not policy.has_default_filters:
        return None
    has_claims = any(one.shape.has_claims or one.shape.has_volumes for one in entity.members)
    if has_claims or served_resources(entity, snapshot):
        # The shape of a pod says nothing about its claims, nor which devices serve its resources.
        return None
    may_evict = entity.may_preempt and policy.allows_preemption(is_group=entity.group is not None)
    # Without all pods of lower priority it does not fit either, so that only other room helps.
    is_hopeless = may_evict and decision.preemption in ("", NOT_HELPFUL)
    is_relaxed_later = decision.relaxation_delay is not None
    awaits_leaving_pods = decision.preemption == VICTIMS_TERMINATING
    is_tied = bool(entity.other_members) and (
        has_peer_constraints(entity) or bool(topology_label_keys(entity))
    )
    is_kept_away = may_be_kept_away(entity, snapshot.pod_index)
    return RefusalScope(
        free=not is_hopeless or is_relaxed_later,
        evictable=may_evict and not awaits_leaving_pods,
        depends_on_time=awaits_leaving_pods or decision.retry_delay is not None,
        is_kept_away=is_kept_away,
        is_shared=not (is_tied or is_relaxed_later or is_kept_away),
        scheduled=tuple(count_scheduled(one, snapshot) for one in entity.groups),
    )


def may_be_kept_away(entity: Entity, pods: PodIndex) -> bool:
    """Whether anti-affinity of running pods may select members: labels then matter too."""
    terms = [one.term for one in pods.existing_terms if one.kind == "anti_affinity"]
    if not terms or len(terms) > _MAX_COMPARED_TERMS:
        return bool(terms)
    metas = (member.pod.metadata for member in entity.members)
    identities = {(meta.namespace, tuple(sorted(meta.labels.items()))) for meta in metas}
    return any(
        term.selector.matches(namespace, dict(labels), pods.namespaces)
        for term in terms
        for namespace, labels in identities
    )


def _concerns_peers(shape: PodShape, change: ClusterDelta) -> bool:
    """Whether a change concerns pods, or nodes that group pods, by which a shape is placed."""
    if not shape.has_peer_constraints:
        return False
    if change.changes_node:
        return True
    for selector in shape.peer_constraints.selectors:
        # A selector that selects namespaces by their labels counts for all namespaces here.
        in_all_namespaces = selector.namespace_requirements is not None
        for pod in change.pods:
            is_covered = in_all_namespaces or pod.namespace in selector.namespaces
            if is_covered and all(one.matches(pod.labels) for one in selector.requirements):
                return True
    return False
