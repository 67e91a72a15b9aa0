"""Judges whom a decision evicts, and what it keeps for whom while others leave.

Who goes must be less important, and go with all that go with him; whoever is preferred must fit
once they are gone, and not before; nobody goes who could stay. Everything is asked of the oracle,
pod by pod.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from phalanx.api.core import Node, Pod
from phalanx.api.meta import Key
from phalanx.api.scheduling import CompositePodGroup
from phalanx.scheduler.decision import Binding, Decision, Placed, Preempting, Victim, Waiting
from phalanx.scheduler.entity import Entity
from tests.scheduler.group_membership import GroupMembership
from tests.scheduler.oracle_cluster import OracleCluster
from tests.scheduler.placement_verifier import (
    placement_violations,
    quorum_violations,
    topology_violations,
)

#: A new world without some pods, by uid.
OracleClusters = Callable[[Collection[str]], OracleCluster]
#: Whether an entity would be placed without some pods; None if that is too much to ask.
Fits = Callable[[Collection[str]], bool | None]
EVICTION_PENDING = "waiting for pods that are leaving"


def preemption_violations(
    membership: GroupMembership,
    nodes: list[Node],
    entity: Entity,
    decision: Decision,
    clusters: OracleClusters,
) -> Iterator[str]:
    """What is wrong about whom a decision evicts, and what it promises."""
    gone = membership.leaving_uids()
    if isinstance(decision, Preempting):
        yield from _victim_violations(membership, entity, decision)
        victims = {victim.uid for victim in decision.victims}
        promised = decision.waiting.nominated
        yield from _nomination_violations(
            membership, nodes, entity, promised, clusters(gone | victims)
        )
        yield from _needless_victims(membership, entity, promised, victims, clusters)
    elif isinstance(decision, Waiting) and decision.nominated:
        if decision.preemption != EVICTION_PENDING:
            yield "it is promised nodes, but waits for nobody to leave"
        yield from _nomination_violations(
            membership, nodes, entity, decision.nominated, clusters(gone)
        )


def missed_preemption_violations(
    membership: GroupMembership, entity: Entity, decision: Decision, fits: Fits
) -> Iterator[str]:
    """Somebody is evicted only if that is needed, and also if that helps."""
    leaving = membership.leaving_uids()
    if isinstance(decision, Placed) or not may_preempt(entity):
        return
    if leaving and fits(leaving):
        if isinstance(decision, Preempting):
            yield "others are evicted, although those who are leaving make room enough"
        elif isinstance(decision, Waiting) and decision.preemption != EVICTION_PENDING:
            yield f"those who are leaving make room enough, but it says: {decision.preemption}"
    elif isinstance(decision, Waiting) and decision.preemption != EVICTION_PENDING:
        lower = {p.metadata.uid for p in membership.pods if _may_be_evicted(membership, entity, p)}
        if lower and fits(leaving | lower):
            yield f"it would fit if others went, but it says: {decision.preemption}"


def may_preempt(entity: Entity) -> bool:
    """Whether anybody may be evicted for it: what its group says, or else its pods."""
    own = entity.group.spec.preemption_policy if entity.group else ""
    return (own or entity.members[0].pod.spec.preemption_policy) != "Never"


def _may_be_evicted(membership: GroupMembership, entity: Entity, pod: Pod) -> bool:
    return membership.is_staying(pod) and membership.priority(pod) < entity.priority


def _victim_violations(
    membership: GroupMembership, entity: Entity, decision: Preempting
) -> Iterator[str]:
    """They may go, and nobody goes without those who must go with him."""
    if not may_preempt(entity):
        yield "nobody may be evicted for it"
    if not decision.victims:
        yield "it evicts, but nobody"
    pods = {pod.metadata.uid: pod for pod in membership.pods}
    chosen = {victim.uid for victim in decision.victims}
    for victim in decision.victims:
        pod = pods.get(victim.uid)
        if pod is None or not membership.is_staying(pod) or pod.occupied_node != victim.node:
            yield f"{victim.pod} is not there to be evicted"
            continue
        if membership.priority(pod) >= entity.priority:
            yield f"{victim.pod} is no less important"
        if any(one.metadata.uid not in chosen for one in membership.disruption_unit(pod)):
            yield f"{victim.pod} would go without others of its group, which goes as a whole"
        if _victim_group(victim) != _disruption_group(membership, pod):
            yield f"{victim.pod} is said to go with {_victim_group(victim)}, not {_disruption_group(membership, pod)}"


def _victim_group(victim: Victim) -> tuple[Key, bool] | None:
    return (victim.group, victim.is_composite) if victim.group else None


def _disruption_group(membership: GroupMembership, pod: Pod) -> tuple[Key, bool] | None:
    whole = membership.disruption_group(pod)
    return (whole.metadata.key, isinstance(whole, CompositePodGroup)) if whole else None


def _nomination_violations(
    membership: GroupMembership,
    nodes: list[Node],
    entity: Entity,
    promised: tuple[Binding, ...],
    cluster: OracleCluster,
) -> Iterator[str]:
    """Whoever is promised a node may be there once others have left, and they are enough."""
    yield from placement_violations(entity, cluster, promised)
    yield from quorum_violations(membership, entity, promised)
    yield from topology_violations(membership, nodes, entity, promised)


def _needless_victims(
    membership: GroupMembership,
    entity: Entity,
    promised: tuple[Binding, ...],
    victims: set[str],
    clusters: OracleClusters,
) -> Iterator[str]:
    """Nobody goes who could stay where he is, everybody being where he was promised to be."""
    if any(_has_peer_constraints(member.pod) for member in entity.members):
        return
    gone, asked = membership.leaving_uids() | victims, set[str]()
    for pod in membership.pods:
        if pod.metadata.uid in victims - asked:
            unit = {one.metadata.uid for one in membership.disruption_unit(pod)}
            asked |= unit
            if not [*placement_violations(entity, clusters(gone - unit), promised)]:
                yield f"{pod.metadata.key} is evicted, but could stay"


def _has_peer_constraints(pod: Pod) -> bool:
    return pod.spec.affinity is not None or bool(pod.spec.topology_spread_constraints)
