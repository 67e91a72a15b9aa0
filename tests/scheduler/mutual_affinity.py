"""Pods that require each other, as the oracle sees them: they are placed together or not at all.

Such a pod may be placed while the pods that it requires are not there yet, on a node that has its
topology labels. When all pods are placed, each must have the pods that it requires.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from phalanx.api.core import Pod
from tests.scheduler import oracle
from tests.scheduler.oracle_cluster import OracleCluster, OracleNode
from tests.scheduler.oracle_peer_constraints import meets_affinity, required, term_selects


class MutualAffinity:
    """The members of a group or tree that require each other, directly or through others."""

    def __init__(self, pods: Iterable[Pod], cluster: OracleCluster) -> None:
        self._cluster, members = cluster, list(pods)
        self._requires = {
            one.metadata.uid: [other for other in members if self._is_required(one, other)]
            for one in members
            if required(one, anti=False) and not self._is_required(one, one)
        }
        self._mutual = {uid for uid in self._requires if uid in set(self._reachable(uid))}

    def _is_required(self, pod: Pod, other: Pod) -> bool:
        terms = required(pod, anti=False)
        return all(term_selects(term, pod, other, self._cluster) for term in terms)

    def _reachable(self, uid: str) -> Iterator[str]:
        pending, seen = [uid], set[str]()
        while pending:
            for other in self._requires.get(pending.pop(), ()):
                if other.metadata.uid not in seen:
                    seen.add(other.metadata.uid)
                    pending.append(other.metadata.uid)
                    yield other.metadata.uid

    def refusals(self, pod: Pod, node: OracleNode) -> list[str]:
        """Return why a node refuses a pod now, its affinity to pods placed later left out."""
        if pod.metadata.uid not in self._mutual:
            return oracle.refusals(pod, node, self._cluster)
        if any(term.topology_key not in node.labels for term in required(pod, anti=False)):
            return ["node(s) didn't match pod affinity rules"]
        assert pod.spec.affinity is not None
        alone = replace(pod.spec.affinity, pod_affinity=None)
        return oracle.refusals(
            replace(pod, spec=replace(pod.spec, affinity=alone)), node, self._cluster
        )

    def unmet_pods(self) -> list[Pod]:
        """Return the placed pods that lack the pods that they require."""
        return [
            pod
            for node, pod in self._cluster.assigned_pods()
            if pod.metadata.uid in self._mutual and not meets_affinity(pod, node, self._cluster)
        ]
