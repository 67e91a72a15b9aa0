"""Exhaustive search: whether a group can be placed, by trying every assignment pod by pod."""

from __future__ import annotations

from phalanx.api.core import Pod
from phalanx.api.resources import nonzero_requests, pod_requests
from phalanx.scheduler.entity import Entity
from tests.scheduler import oracle
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
        if sum(map(len, state)) >= needed:
            return True
        if state in self._seen:
            return False
        self._seen.add(state)
        for number, pods in enumerate(self._kinds):
            if len(state[number]) == len(pods):
                continue
            pod = pods[len(state[number])]
            for name, node in self._nodes.items():
                if oracle.refusals(pod, node, self._cluster):
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


def _remove(node: OracleNode, pod: Pod) -> None:
    node.pods.remove(pod)
    node.requested.subtract(pod_requests(pod))
    node.nonzero_requested.subtract(nonzero_requests(pod))
