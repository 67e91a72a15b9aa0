"""Brute force: whether a group can be placed, by trying everything pod by pod."""

from __future__ import annotations

from phalanx.api.core import Pod
from phalanx.api.resources import nonzero_requests, pod_requests
from phalanx.scheduler.entity import Entity
from tests.scheduler import oracle
from tests.scheduler.oracle_cluster import OracleCluster, OracleNode

#: Where the members of each sort are, as sorted names of nodes.
State = tuple[tuple[str, ...], ...]


def can_be_placed(entity: Entity, cluster: OracleCluster, needed: int) -> bool:
    """Whether so many members can be put on nodes one after the other, in any order at all."""
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
    """Tries everything; where a position came about in another way before, once is enough."""

    def __init__(
        self, entity: Entity, cluster: OracleCluster, nodes: dict[str, OracleNode]
    ) -> None:
        self._world, self._machines = cluster, nodes
        sorts: dict[tuple[object, ...], list[Pod]] = {}
        for member in entity.members:
            meta = member.pod.metadata
            sort = (member.shape, meta.namespace, *sorted(meta.labels.items()))
            sorts.setdefault(sort, []).append(member.pod)
        self._sorts = list(sorts.values())
        self._seen: set[State] = set()

    def can_place(self, needed: int) -> bool:
        return self._can_continue(tuple(() for _ in self._sorts), needed)

    def _can_continue(self, state: State, needed: int) -> bool:
        if sum(map(len, state)) >= needed:
            return True
        if state in self._seen:
            return False
        self._seen.add(state)
        for number, pods in enumerate(self._sorts):
            if len(state[number]) == len(pods):
                continue
            pod = pods[len(state[number])]
            for name, machine in self._machines.items():
                if oracle.refusals(pod, machine, self._world):
                    continue
                machine.add(pod)
                after = (
                    *state[:number],
                    tuple(sorted((*state[number], name))),
                    *state[number + 1 :],
                )
                found = self._can_continue(after, needed)
                _remove(machine, pod)
                if found:
                    return True
        return False


def _remove(node: OracleNode, pod: Pod) -> None:
    node.pods.remove(pod)
    node.requested.subtract(pod_requests(pod))
    node.nonzero_requested.subtract(nonzero_requests(pod))
