"""Verifies the victims and the nominations of a decision.

Victims must have a lower priority and include every pod of their disruption unit. The preemptor
must fit once they are gone, and not before. No victim may be needless. Everything is asked of the
oracle, pod by pod.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator

from phalanx.api.core import Node, Pod
from phalanx.scheduler.cluster.group_tree import group_ref
from phalanx.scheduler.decision import Binding, ClusterEvent, Decision, Placed, Preempting, Waiting
from phalanx.scheduler.entity import Entity
from tests.scheduler import oracle
from tests.scheduler.group_membership import GroupMembership
from tests.scheduler.oracle_cluster import OracleCluster
from tests.scheduler.placement_verifier import (
    placement_violations,
    quorum_violations,
    topology_violations,
)

#: Builds a cluster of the oracle without some pods, by uid.
OracleClusters = Callable[[Collection[str]], OracleCluster]
#: Whether an entity would be placed without some pods; None if the oracle does not decide that.
Fits = Callable[[Collection[str]], bool | None]
EVICTION_PENDING = "waiting for pods that are leaving"
OWN_VICTIMS_LEAVING = "not eligible due to a terminating pod on the nominated node"
#: The reasons that depend on the pods of the node or of other nodes.
_RESOLVABLE = re.compile("^Insufficient |^Too many pods|free ports|pods? (anti-)?affinity|spread")


def preemption_violations(
    membership: GroupMembership,
    nodes: list[Node],
    entity: Entity,
    decision: Decision,
    clusters: OracleClusters,
) -> Iterator[str]:
    """Verify the victims and nominations of a decision."""
    gone = membership.leaving_uids(entity.attempted_at)
    if isinstance(decision, Preempting):
        yield from _victim_violations(membership, entity, decision)
        victims = {victim.uid for victim in decision.victims}
        nominated = decision.waiting.nominated
        yield from _nomination_violations(
            membership, nodes, entity, nominated, clusters(gone | victims)
        )
        yield from _needless_victims(membership, entity, nominated, victims, clusters)
    elif isinstance(decision, Waiting) and decision.starts_soon:
        # Nominated by its reservation, which was planned before: pods have to end first, and other
        # entities may have been nominated since.
        yield from quorum_violations(membership, entity, decision.nominated)
        yield from topology_violations(membership, nodes, entity, decision.nominated)
    elif isinstance(decision, Waiting) and decision.preemption == OWN_VICTIMS_LEAVING:
        if not _may_keep_nominations(membership, entity, decision.nominated):
            yield "it waits for its victims, but none terminates on its nominated nodes"
        yield from _kept_violations(membership, nodes, entity, decision.nominated, clusters)
    elif isinstance(decision, Waiting) and decision.nominated:
        if decision.preemption != EVICTION_PENDING:
            yield "it has nominations, but waits for no pod to terminate"
        yield from _nomination_violations(
            membership, nodes, entity, decision.nominated, clusters(gone)
        )


def missed_preemption_violations(
    membership: GroupMembership, entity: Entity, decision: Decision, fits: Fits
) -> Iterator[str]:
    """Verify that preemption happens exactly if it is needed and helps."""
    terminating = membership.leaving_uids(entity.attempted_at)
    if isinstance(decision, Placed) or not may_preempt(entity):
        return
    if isinstance(decision, Waiting) and (
        decision.relaxation_delay is not None
        or ClusterEvent.RESERVATION_CHANGED in decision.wakes_on
        or decision.starts_soon
        or decision.preemption == OWN_VICTIMS_LEAVING
    ):
        # A wider topology level will be allowed: no pod is evicted for a preference. Room that is
        # reserved for other entities, or about to become free, is no reason for an eviction, and
        # an entity evicts no further pods before its own victims are gone.
        return
    if terminating and fits(terminating):
        if isinstance(decision, Preempting):
            yield "it evicts pods, although it fits once terminating pods are gone"
        elif isinstance(decision, Waiting) and decision.preemption != EVICTION_PENDING:
            text = decision.preemption
            yield f"it fits once terminating pods are gone, but the message is: {text}"
    elif isinstance(decision, Waiting) and decision.preemption != EVICTION_PENDING:
        lower = {p.metadata.uid for p in membership.pods if _may_be_evicted(membership, entity, p)}
        if lower and fits(terminating | lower):
            yield f"it would fit after evictions, but the message is: {decision.preemption}"


def may_preempt(entity: Entity) -> bool:
    """Whether the preemption policy of the group, or else of its pods, allows preemption."""
    own = entity.group.spec.preemption_policy if entity.group else ""
    return (own or entity.members[0].pod.spec.preemption_policy) != "Never"


def _may_be_evicted(membership: GroupMembership, entity: Entity, pod: Pod) -> bool:
    return membership.is_staying(pod) and membership.priority(pod) < entity.priority


def _victim_violations(
    membership: GroupMembership, entity: Entity, decision: Preempting
) -> Iterator[str]:
    """Verify that the victims may be evicted, and together with their disruption units."""
    if not may_preempt(entity):
        yield "its preemption policy allows no victims"
    if not decision.victims:
        yield "it preempts without victims"
    pods = {pod.metadata.uid: pod for pod in membership.pods}
    chosen = {victim.uid for victim in decision.victims}
    for victim in decision.victims:
        pod = pods.get(victim.uid)
        if pod is None or not membership.is_staying(pod) or pod.occupied_node != victim.node:
            yield f"{victim.pod} does not run where it is to be evicted"
            continue
        if membership.priority(pod) >= entity.priority:
            yield f"{victim.pod} does not have a lower priority"
        if any(one.metadata.uid not in chosen for one in membership.disruption_unit(pod)):
            yield f"{victim.pod} would be evicted without others of its disruption unit"
        whole = membership.disruption_group(pod)
        group = group_ref(whole) if whole else None
        if victim.group != group:
            yield f"{victim.pod} is reported as part of {victim.group}, not of {group}"


def _nomination_violations(
    membership: GroupMembership,
    nodes: list[Node],
    entity: Entity,
    nominated: tuple[Binding, ...],
    cluster: OracleCluster,
) -> Iterator[str]:
    """Verify that the nominated members fit once the victims are gone, and meet the quorum."""
    yield from placement_violations(entity, cluster, nominated)
    yield from quorum_violations(membership, entity, nominated)
    yield from topology_violations(membership, nodes, entity, nominated)


def _may_keep_nominations(
    membership: GroupMembership, entity: Entity, nominated: tuple[Binding, ...]
) -> bool:
    """Whether the members were nominated like this before, and a possible victim leaves there."""
    pods = {pod.metadata.uid: pod for pod in membership.pods}
    leaving = [pods[uid] for uid in membership.leaving_uids(entity.attempted_at)]
    return all(pods[uid].status.nominated_node_name == node for _, uid, node in nominated) and any(
        pod.occupied_node == one.node and membership.priority(pod) < entity.priority
        for pod in leaving
        for one in nominated
    )


def _kept_violations(
    membership: GroupMembership,
    nodes: list[Node],
    entity: Entity,
    nominated: tuple[Binding, ...],
    clusters: OracleClusters,
) -> Iterator[str]:
    """Verify nominations that are kept although other pods have taken their room.

    The entity evicts no other pod before its victims are gone. Each node must exist and reject its
    pod for no reason but the pods that run there.
    """
    cluster = clusters(membership.leaving_uids(entity.attempted_at))
    pods = {member.pod.metadata.uid: member.pod for member in entity.members}
    for key, uid, node in nominated:
        found = cluster.nodes.get(node)
        reasons = ["no such node"] if found is None else oracle.refusals(pods[uid], found, cluster)
        if unresolvable := [one for one in reasons if not _RESOLVABLE.search(one)]:
            yield f"{key} may not be on {node}: {', '.join(unresolvable)}"
    yield from topology_violations(membership, nodes, entity, nominated)


def _needless_victims(
    membership: GroupMembership,
    entity: Entity,
    nominated: tuple[Binding, ...],
    victims: set[str],
    clusters: OracleClusters,
) -> Iterator[str]:
    """Find victims that could stay with all members on their nominated nodes."""
    if any(_has_peer_constraints(member.pod) for member in entity.members):
        return
    gone = membership.leaving_uids(entity.attempted_at) | victims
    checked = set[str]()
    for pod in membership.pods:
        if pod.metadata.uid in victims - checked:
            unit = {one.metadata.uid for one in membership.disruption_unit(pod)}
            checked |= unit
            if not [*placement_violations(entity, clusters(gone - unit), nominated)]:
                yield f"{pod.metadata.key} is evicted, but could stay"


def _has_peer_constraints(pod: Pod) -> bool:
    return pod.spec.affinity is not None or bool(pod.spec.topology_spread_constraints)
