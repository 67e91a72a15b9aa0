"""Exhaustive search: whether a group or a tree can be placed, by trying every assignment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from phalanx.api.core import Pod
from phalanx.api.meta import Key
from phalanx.api.resources import nonzero_requests, pod_requests
from phalanx.api.scheduling import TOPOLOGY_ANNOTATION
from phalanx.scheduler.entity import Entity
from tests.scheduler.mutual_affinity import MutualAffinity
from tests.scheduler.oracle_cluster import OracleCluster, OracleNode

#: The node names of the placed members of each kind, sorted.
State = tuple[tuple[str, ...], ...]


def can_be_placed(entity: Entity, cluster: OracleCluster, needed: int) -> bool:
    """Whether so many members can be placed one after the other, in any order."""
    key = entity.topology_key
    if not key:
        return _ExhaustiveSearch(entity, cluster, cluster.nodes).can_place(needed)
    racks = {m.labels[key] for m in cluster.nodes.values() if key in m.labels}
    return any(
        _ExhaustiveSearch(entity, cluster, _nodes_in_domain(cluster, key, rack)).can_place(needed)
        for rack in sorted(racks)
    )


def _nodes_in_domain(cluster: OracleCluster, key: str, value: str) -> dict[str, OracleNode]:
    return {name: m for name, m in cluster.nodes.items() if m.labels.get(key) == value}


class _ExhaustiveSearch:
    """Tries every assignment; equal states that are reached in several ways are tried once."""

    def __init__(
        self, entity: Entity, cluster: OracleCluster, nodes: dict[str, OracleNode]
    ) -> None:
        self._cluster, self._nodes = cluster, nodes
        self._affinity = MutualAffinity((member.pod for member in entity.members), cluster)
        kinds: dict[tuple[object, ...], list[Pod]] = {}
        for member in entity.members:
            meta = member.pod.metadata
            kind = (member.shape, meta.namespace, *sorted(meta.labels.items()))
            kinds.setdefault(kind, []).append(member.pod)
        self._kinds = list(kinds.values())
        self._seen: set[State] = set()

    def can_place(self, needed: int) -> bool:
        return self._can_continue(tuple(() for _ in self._kinds), needed)

    def _can_continue(self, state: State, needed: int) -> bool:
        if sum(map(len, state)) >= needed and not self._affinity.unmet_pods():
            return True
        if state in self._seen:
            return False
        self._seen.add(state)
        for number, pods in enumerate(self._kinds):
            if len(state[number]) == len(pods):
                continue
            pod = pods[len(state[number])]
            for name, node in self._nodes.items():
                if self._affinity.refusals(pod, node):
                    continue
                node.add(pod)
                after = (
                    *state[:number],
                    tuple(sorted((*state[number], name))),
                    *state[number + 1 :],
                )
                found = self._can_continue(after, needed)
                _remove(node, pod)
                if found:
                    return True
        return False


def can_tree_be_placed(root: Entity, cluster: OracleCluster) -> bool:
    """Whether pods of a tree can be placed one after the other until every group is complete.

    Every group that then has a new member has enough of them, and so has every group above it. All
    members of a group with a topology key are in one domain. Members that have a node count.
    """
    return _ExhaustiveTreeSearch(root, cluster).can_continue()


class _ExhaustiveTreeSearch:
    """Tries every assignment of pods to nodes; states that were reached before are left out."""

    def __init__(self, root: Entity, cluster: OracleCluster) -> None:
        self._root, self._cluster = root, cluster
        self._affinity = MutualAffinity((member.pod for member in root.members), cluster)
        kinds: dict[tuple[object, ...], list[Pod]] = {}
        for leaf in root.leaves:
            for member in leaf.members:
                meta = member.pod.metadata
                kind = (leaf.key, member.shape, *sorted(meta.labels.items()))
                kinds.setdefault(kind, []).append(member.pod)
        self._kinds = list(kinds.values())
        self._chains: dict[Key | None, list[Entity]] = {
            leaf.key: list(_chain(root, leaf)) for leaf in root.leaves
        }
        #: The nodes of the members below each group, by the identity of the group.
        self._nodes = {
            id(group): [pod.spec.node_name for pod in group.other_members] for group in root.groups
        }
        self._new: Counter[object] = Counter()
        self._state: list[tuple[str, ...]] = [() for _ in self._kinds]
        self._seen: set[State] = set()

    def can_continue(self) -> bool:
        if sum(self._new.values()) and self._is_complete(self._root):
            is_whole = not any(self._is_fragment(group) for group in self._root.groups)
            if is_whole and not self._affinity.unmet_pods():
                return True
        if tuple(self._state) in self._seen:
            return False
        self._seen.add(tuple(self._state))
        for number, pods in enumerate(self._kinds):
            before = self._state[number]
            if len(before) == len(pods):
                continue
            pod = pods[len(before)]
            for name in self._allowed_nodes(pod):
                self._cluster.nodes[name].add(pod)
                self._count(pod, name, +1)
                self._state[number] = tuple(sorted((*before, name)))
                found = self.can_continue()
                self._state[number] = before
                self._count(pod, name, -1)
                _remove(self._cluster.nodes[name], pod)
                if found:
                    return True
        return False

    def _allowed_nodes(self, pod: Pod) -> list[str]:
        return [
            name
            for name, node in self._cluster.nodes.items()
            if self._is_in_domains(pod, name) and not self._affinity.refusals(pod, node)
        ]

    def _is_in_domains(self, pod: Pod, name: str) -> bool:
        return all(
            any(
                self._share_labels([name, *self._nodes[id(group)]], keys)
                for keys in _allowed_levels(group)
            )
            for group in self._chains[pod.group]
        )

    def _share_labels(self, names: list[str], keys: set[str]) -> bool:
        labels = [self._cluster.nodes[name].labels for name in names]
        found = [{one.get(key) for one in labels} for key in keys]
        return all(len(values) == 1 and None not in values for values in found)

    def _count(self, pod: Pod, name: str, change: int) -> None:
        self._new[pod.group] += change
        for group in self._chains[pod.group]:
            if change > 0:
                self._nodes[id(group)].append(name)
            else:
                self._nodes[id(group)].remove(name)

    def _is_complete(self, group: Entity) -> bool:
        if group.is_composite:
            return sum(self._is_complete(child) for child in group.children) >= group.quorum
        return len(self._nodes[id(group)]) >= group.quorum

    def _is_fragment(self, group: Entity) -> bool:
        has_new = any(self._new[leaf.key] for leaf in group.leaves)
        return has_new and not self._is_complete(group)


def _allowed_levels(group: Entity) -> list[set[str]]:
    """The labels that all members must share, one set per allowed level."""
    assert group.group is not None
    text = group.group.metadata.annotations.get(TOPOLOGY_ANNOTATION, "*")
    required = {group.topology_key} - {""}
    return [required | ({level.strip()} - {"*"}) for level in text.split(",")]


def _chain(group: Entity, leaf: Entity) -> Iterator[Entity]:
    """The groups from one group down to a leaf."""
    if any(one is leaf for one in group.leaves):
        yield group
        for child in group.children:
            yield from _chain(child, leaf)


def _remove(node: OracleNode, pod: Pod) -> None:
    node.pods.remove(pod)
    node.requested.subtract(pod_requests(pod))
    node.nonzero_requested.subtract(nonzero_requests(pod))
