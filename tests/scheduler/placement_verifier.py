"""Whether pods may be where they are put, all together, and whether that is enough of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from phalanx.api.core import Node, Pod
from phalanx.api.meta import Key
from phalanx.scheduler.decision import Binding
from phalanx.scheduler.entity import Entity
from tests.scheduler import oracle
from tests.scheduler.group_membership import GroupMembership
from tests.scheduler.oracle_cluster import OracleCluster, OracleNode


def placement_violations(
    entity: Entity, cluster: OracleCluster, bindings: Iterable[Binding]
) -> Iterator[str]:
    """There is an order in which each pod may take its node, those before it being there."""
    pods = {member.pod.metadata.uid: member.pod for member in entity.members}
    left = list(bindings)
    while left:
        reasons = {uid: _reasons(cluster, pods, uid, node) for _, uid, node in left}
        ready = next((one for one in left if not reasons[one.uid]), None)
        if ready is None:
            key, uid, node = left[0]
            yield f"{key} may not be on {node}: {', '.join(reasons[uid])}"
            return
        cluster.nodes[ready.node].add(pods[ready.uid])
        left.remove(ready)


def _reasons(cluster: OracleCluster, pods: Mapping[str, Pod], uid: str, node: str) -> list[str]:
    if uid not in pods:
        return ["it is no member that waits"]
    machine = cluster.nodes.get(node)
    return ["no such node"] if machine is None else oracle.refusals(pods[uid], machine, cluster)


def quorum_violations(
    membership: GroupMembership, entity: Entity, bindings: Iterable[Binding]
) -> Iterator[str]:
    """Wherever somebody gets a node, his group has enough members, and so has all above it."""
    homes = {uid for _, uid, _ in bindings}
    new = Counter(m.pod.group for m in entity.members if m.pod.metadata.uid in homes)
    if not homes:
        yield "nobody would have a node"
    yield from _group_quorum_violations(membership, entity, new)


def _group_quorum_violations(
    membership: GroupMembership, one: Entity, new: Mapping[Key | None, int]
) -> Iterator[str]:
    if one.group is None or not any(new.get(leaf.key) for leaf in one.leaves):
        return
    if one.is_composite:
        there = sum(_meets_quorum(membership, part, new) for part in one.children)
        if there < one.quorum:
            yield f"only {there} of {one.quorum} groups of {one.key} would have what they need"
        for part in one.children:
            yield from _group_quorum_violations(membership, part, new)
    elif (there := membership.count_placed(one.key) + new.get(one.key, 0)) < one.quorum:
        yield f"only {there} of {one.quorum} would have a node"


def _meets_quorum(membership: GroupMembership, one: Entity, new: Mapping[Key | None, int]) -> bool:
    if one.is_composite:
        return sum(_meets_quorum(membership, part, new) for part in one.children) >= one.quorum
    return membership.count_placed(one.key) + new.get(one.key, 0) >= one.quorum


def topology_violations(
    membership: GroupMembership, nodes: Iterable[Node], entity: Entity, bindings: Iterable[Binding]
) -> Iterator[str]:
    """Every group that names a topology has all its pods in one domain of it."""
    labels = {node.metadata.name: node.metadata.labels for node in nodes}
    homes = {uid: node for _, uid, node in bindings}
    for one in entity.groups:
        uids = [member.pod.metadata.uid for member in one.members]
        new = [homes[uid] for uid in uids if uid in homes]
        if one.topology_key and new:
            hosts = [*new, *membership.nodes_of(one)]
            domains = {labels.get(host, {}).get(one.topology_key) for host in hosts}
            if len(domains) > 1 or None in domains:
                yield "it would not be in one domain"


def possible_domains(membership: GroupMembership, nodes: Iterable[Node], one: Entity) -> list[str]:
    """The domains that all members of a group could be in."""
    labels = {node.metadata.name: node.metadata.labels for node in nodes}
    homes = {labels.get(host, {}).get(one.topology_key) for host in membership.nodes_of(one)}
    values = {found[one.topology_key] for found in labels.values() if one.topology_key in found}
    return sorted(value for value in values if not homes or value in homes)


def spans_domains(membership: GroupMembership, nodes: Iterable[Node], one: Entity) -> bool:
    """Whether the members of a group that have nodes are not in one domain."""
    labels = {node.metadata.name: node.metadata.labels for node in nodes}
    homes = {labels.get(host, {}).get(one.topology_key) for host in membership.nodes_of(one)}
    return bool(one.topology_key) and (len(homes) > 1 or None in homes)


def copy_cluster(cluster: OracleCluster) -> OracleCluster:
    """The same world, to try something out in."""
    machines = {
        name: OracleNode(
            m.node, m.allocatable, list(m.pods), Counter(m.requested), Counter(m.nonzero_requested)
        )
        for name, m in cluster.nodes.items()
    }
    twin = OracleCluster(machines, cluster.namespaces, cluster.services, cluster.settings)
    return (
        twin.with_alternative(copy_cluster(cluster.without_nominated))
        if cluster.without_nominated
        else twin
    )


def place_minimums(
    membership: GroupMembership, one: Entity, cluster: OracleCluster, inside: set[str]
) -> bool | None:
    """Place what each group needs, one after the other; whether all of them get it, and anybody
    something. None: all have what they need without.
    """
    if not one.is_composite:
        return _place_group_minimum(membership, one, cluster, inside)
    found = [place_minimums(membership, part, cluster, inside) for part in one.children]
    if not found or False in found:
        return False
    return True if True in found else None


def _place_group_minimum(
    membership: GroupMembership, one: Entity, cluster: OracleCluster, inside: set[str]
) -> bool | None:
    before = membership.count_placed(one.key)
    if before >= one.quorum:
        return None
    draft = copy_cluster(cluster)
    within = {name: machine for name, machine in draft.nodes.items() if name in inside}
    answer = oracle.place(one, draft, before, within)
    pods = {member.pod.metadata.name: member.pod for member in one.members}
    for name, node in list(answer.bindings.items())[: one.quorum - before]:
        cluster.nodes[node].add(pods[name])
    return bool(answer.bindings)
