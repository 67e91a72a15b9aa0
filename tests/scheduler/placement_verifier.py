"""Verifies a set of bindings: the filters allow them together, and they meet the quorum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from random import Random

from phalanx.api.core import Node, Pod
from phalanx.api.meta import Key
from phalanx.scheduler.decision import Binding
from phalanx.scheduler.entity import Entity
from tests.scheduler import oracle
from tests.scheduler.group_membership import GroupMembership
from tests.scheduler.mutual_affinity import MutualAffinity
from tests.scheduler.oracle_cluster import OracleCluster, OracleNode

#: How many other orders of bindings are tried.
MAX_ORDERS = 64


def placement_violations(
    entity: Entity, cluster: OracleCluster, bindings: Iterable[Binding]
) -> Iterator[str]:
    """Find an order in which the filters allow every binding after the previous ones.

    Spread constraints may end in a dead end, so several orders are tried.
    """
    placed = list(bindings)
    violations = list(_violations_in_order(entity, copy_cluster(cluster), placed))
    for seed in range(MAX_ORDERS if violations else 0):
        Random(seed).shuffle(placed)
        if not [*_violations_in_order(entity, copy_cluster(cluster), placed)]:
            violations = []
            break
    yield from violations
    pods = {member.pod.metadata.uid: member.pod for member in entity.members}
    for one in placed if not violations else ():
        cluster.nodes[one.node].add(pods[one.uid])


def _violations_in_order(
    entity: Entity, cluster: OracleCluster, bindings: Iterable[Binding]
) -> Iterator[str]:
    """Apply the first binding that the filters allow, and so on, until none is left."""
    pods = {member.pod.metadata.uid: member.pod for member in entity.members}
    affinity, remaining = MutualAffinity(pods.values(), cluster), list(bindings)
    while remaining:
        reasons = {
            uid: _reasons(cluster, pods, uid, node=node, affinity=affinity)
            for _, uid, node in remaining
        }
        allowed = next((one for one in remaining if not reasons[one.uid]), None)
        if allowed is None:
            key, uid, node = remaining[0]
            yield f"{key} may not be on {node}: {', '.join(reasons[uid])}"
            return
        cluster.nodes[allowed.node].add(pods[allowed.uid])
        remaining.remove(allowed)
    for pod in affinity.unmet_pods():
        yield f"{pod.metadata.key} is without a pod that it requires"


def _reasons(
    cluster: OracleCluster,
    pods: Mapping[str, Pod],
    uid: str,
    *,
    node: str,
    affinity: MutualAffinity,
) -> list[str]:
    if uid not in pods:
        return ["not a pending member"]
    found = cluster.nodes.get(node)
    return ["no such node"] if found is None else affinity.refusals(pods[uid], found)


def quorum_violations(
    membership: GroupMembership, entity: Entity, bindings: Iterable[Binding]
) -> Iterator[str]:
    """Check that every group with a new binding, and every group above it, meets its quorum."""
    bound = {uid for _, uid, _ in bindings}
    new = Counter(m.pod.group for m in entity.members if m.pod.metadata.uid in bound)
    if not bound:
        yield "no pod would have a node"
    yield from _group_quorum_violations(membership, entity, new)


def _group_quorum_violations(
    membership: GroupMembership, one: Entity, new: Mapping[Key | None, int]
) -> Iterator[str]:
    if one.group is None or not any(new.get(leaf.key) for leaf in one.leaves):
        return
    if one.is_composite:
        complete = sum(_meets_quorum(membership, child, new) for child in one.children)
        if complete < one.quorum:
            yield f"only {complete} of {one.quorum} groups of {one.key} would have enough members"
        for child in one.children:
            yield from _group_quorum_violations(membership, child, new)
    elif (placed := membership.count_placed(one.key) + new.get(one.key, 0)) < one.quorum:
        yield f"only {placed} of {one.quorum} would have a node"


def _meets_quorum(membership: GroupMembership, one: Entity, new: Mapping[Key | None, int]) -> bool:
    if one.is_composite:
        return sum(_meets_quorum(membership, child, new) for child in one.children) >= one.quorum
    return membership.count_placed(one.key) + new.get(one.key, 0) >= one.quorum


def topology_violations(
    membership: GroupMembership, nodes: Iterable[Node], entity: Entity, bindings: Iterable[Binding]
) -> Iterator[str]:
    """Check that every group with a topology constraint has all its pods in one domain."""
    labels = {node.metadata.name: node.metadata.labels for node in nodes}
    node_by_uid = {uid: node for _, uid, node in bindings}
    for one in entity.groups:
        uids = [member.pod.metadata.uid for member in one.members]
        new = [node_by_uid[uid] for uid in uids if uid in node_by_uid]
        if one.topology_key and new:
            names = [*new, *membership.nodes_of(one)]
            domains = {labels.get(name, {}).get(one.topology_key) for name in names}
            if len(domains) > 1 or None in domains:
                yield "it would not be in one domain"


def possible_domains(membership: GroupMembership, nodes: Iterable[Node], one: Entity) -> list[str]:
    """Return the domains that all members of a group could be in."""
    labels = {node.metadata.name: node.metadata.labels for node in nodes}
    occupied = {labels.get(name, {}).get(one.topology_key) for name in membership.nodes_of(one)}
    values = {found[one.topology_key] for found in labels.values() if one.topology_key in found}
    return sorted(value for value in values if not occupied or value in occupied)


def spans_domains(membership: GroupMembership, nodes: Iterable[Node], one: Entity) -> bool:
    """Whether the placed members of a group are not all in one domain."""
    labels = {node.metadata.name: node.metadata.labels for node in nodes}
    occupied = {labels.get(name, {}).get(one.topology_key) for name in membership.nodes_of(one)}
    return bool(one.topology_key) and (len(occupied) > 1 or None in occupied)


def copy_cluster(cluster: OracleCluster) -> OracleCluster:
    """Copy a cluster of the oracle, to try placements on it."""
    nodes = {
        name: OracleNode(
            m.node, m.allocatable, list(m.pods), Counter(m.requested), Counter(m.nonzero_requested)
        )
        for name, m in cluster.nodes.items()
    }
    copied = OracleCluster(nodes, cluster.namespaces, cluster.services, cluster.settings)
    if cluster.without_nominated:
        copied.with_alternative(copy_cluster(cluster.without_nominated))
    return copied


def place_minimums(
    membership: GroupMembership, one: Entity, cluster: OracleCluster, inside: set[str]
) -> bool | None:
    """Place the minimum of each group, one after the other; return whether all succeed.

    None: all groups have their minimum already.
    """
    if not one.is_composite:
        return _place_group_minimum(membership, one, cluster, inside)
    found = [place_minimums(membership, child, cluster, inside) for child in one.children]
    if not found or False in found:
        return False
    return True if True in found else None


def _place_group_minimum(
    membership: GroupMembership, one: Entity, cluster: OracleCluster, inside: set[str]
) -> bool | None:
    before = membership.count_placed(one.key)
    if before >= one.quorum:
        return None
    copied = copy_cluster(cluster)
    within = {name: node for name, node in copied.nodes.items() if name in inside}
    answer = oracle.place(one, copied, before, within)
    pods = {member.pod.metadata.name: member.pod for member in one.members}
    for name, node in list(answer.bindings.items())[: one.quorum - before]:
        cluster.nodes[node].add(pods[name])
    return bool(answer.bindings)
