"""Verifies the victims and the nominations of a decision.

Victims must have a lower priority and include every pod of their disruption unit. The preemptor
must fit once they are gone, and not before. No victim may be needless. Everything is asked of the
oracle, pod by pod.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from phalanx.api.core import Node, Pod
from phalanx.scheduler.cluster.group_tree import group_ref
from phalanx.scheduler.decision import Binding, Decision, Placed, Preempting, Waiting
from phalanx.scheduler.entity import Entity
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


def preemption_violations(
    membership: GroupMembership,
    nodes: list[Node],
    entity: Entity,
    decision: Decision,
    clusters: OracleClusters,
) -> Iterator[str]:
    """Verify the victims and nominations of a decision."""
    gone = membership.leaving_uids()
    if isinstance(decision, Preempting):
        yield from _victim_violations(membership, entity, decision)
        victims = {victim.uid for victim in decision.victims}
        nominated = decision.waiting.nominated
        yield from _nomination_violations(
            membership, nodes, entity, nominated, clusters(gone | victims)
        )
        yield from _needless_victims(membership, entity, nominated, victims, clusters)
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
    terminating = membership.leaving_uids()
    if isinstance(decision, Placed) or not may_preempt(entity):
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
    gone, checked = membership.leaving_uids() | victims, set[str]()
    for pod in membership.pods:
        if pod.metadata.uid in victims - checked:
            unit = {one.metadata.uid for one in membership.disruption_unit(pod)}
            checked |= unit
            if not [*placement_violations(entity, clusters(gone - unit), nominated)]:
                yield f"{pod.metadata.key} is evicted, but could stay"


def _has_peer_constraints(pod: Pod) -> bool:
    return pod.spec.affinity is not None or bool(pod.spec.topology_spread_constraints)
