"""ClaimRanking: the best nodes for equal pods with claims, whose devices serve them.

It wraps the ranking that the pods would have without claims, and takes devices for each pod that it
assigns. Devices are packed: where nodes differ in their load only, the node with the fewest free
devices that suffice comes first, and is filled before the next one. So whole nodes stay free for
pods that need all devices of a node.

    free devices      n1: 8   n2: 2   n3: 1
    pods of one       n3, n2, n2, n1, …
    pods of two       n2, n1, …

Devices are only taken during a simulation, so a node that cannot serve a pod is left out for good.
When a shared claim is allocated, the pods that use it get another ranking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot
from phalanx.scheduler.devices.state import ClaimDemand
from phalanx.scheduler.placement.node_scores import NO_NODE, NodeScores, ShapeScores
from phalanx.scheduler.plugins.claim_assignments import (
    ClaimAssignments,
    first_counted_request,
    free_device_counts,
    nodes_of_reach,
)
from phalanx.scheduler.plugins.plugin_context import PodAffinityState
from phalanx.scheduler.plugins.volume_assignments import VolumeAssignments

#: How many nodes are compared for a shared claim.
_MAX_REACHES = 256

if TYPE_CHECKING:
    from phalanx.scheduler.placement.node_ranking import LazyRefusal, NodeRanking


class ClaimRanking:
    """A ranking of nodes for pods with claims. With `nodes`, only these are used."""

    __slots__ = ("_claims", "_position", "_ranking", "_rows", "_volumes", "lazy_refusal")

    def __init__(
        self,
        ranking: NodeRanking,
        claims: ClaimAssignments | None,
        *,
        is_packed: bool,
        nodes: IntArray | None = None,
        volumes: VolumeAssignments | None = None,
    ) -> None:
        self._ranking, self._claims, self._volumes = ranking, claims, volumes
        #: Why there was no node at the last call, if there was none.
        self.lazy_refusal: LazyRefusal | None = None
        #: The nodes in the order in which they are packed; None: those of the ranking.
        self._rows: list[int] | None = None
        self._position = 0
        scores = self.node_scores
        if is_packed and isinstance(scores, NodeScores):
            counts = _scarcest_counts(scores, ranking.snapshot)
            self._rows = None if counts is None else _pack_order(scores.keys, counts, nodes)

    @property
    def node_scores(self) -> ShapeScores:
        """The scores of the nodes without claims."""
        return self._ranking.node_scores

    @property
    def affinity_state(self) -> PodAffinityState | None:
        """The pods that matter to the constraints of the pods; None if none do."""
        return self._ranking.affinity_state

    @property
    def is_stale(self) -> bool:
        """Whether a pod that was refused may fit now."""
        return self._ranking.is_stale

    @property
    def is_packed(self) -> bool:
        """Whether, apart from devices, nothing but the load of nodes matters."""
        return self._rows is not None

    @property
    def demand(self) -> ClaimDemand:
        """What the claims of the pods require."""
        return self.node_scores.shape.claims

    def prefer_sufficient(self, needed: int, capacities: IntArray) -> None:
        """Put a node first from where the shared claims leave room for all pods that use them.

        `capacities` says how many of the pods each node holds. Without such a node the order stays.
        """
        for i in (self._rows or [])[:_MAX_REACHES]:
            if self._ranking.admits(i) and self._reachable_capacity(i, capacities) >= needed:
                self._rows = [i, *(self._rows or [])]
                return

    def _reachable_capacity(self, i: int, capacities: IntArray) -> int:
        """Count the pods for which there is room where the devices of a pod here can be used."""
        reached = np.ones(len(capacities), bool)
        for claim, choices in (self._claims and self._claims.choose(self.demand, i)) or ():
            for choice in choices if claim.shared_key is not None else ():
                reached &= nodes_of_reach(self._ranking.snapshot, choice.device.reach)
        return int(capacities[reached].sum())

    def assign_best(self, count: int) -> list[int]:
        """Assign each pod to the best node whose devices serve it."""
        nodes: list[int] = []
        while len(nodes) < count and (i := self._take_best()) != NO_NODE:
            self._ranking.assign_to(i)
            nodes.append(i)
        return nodes

    def assign_to(self, i: int) -> None:
        """Assign one more pod to a given node."""
        self._ranking.assign_to(i)

    def _take_best(self) -> int:
        """Take devices of the best node that has them; return the node."""
        if self._rows is None:
            while (i := self._ranking.best_node()) != NO_NODE:
                if self._try_assign(i):
                    return i
                self._ranking.drop_best(i)
            return NO_NODE
        while self._position < len(self._rows):
            i = self._rows[self._position]
            if self._ranking.admits(i) and self._try_assign(i):
                return i
            self._position += 1
        return NO_NODE

    def _try_assign(self, i: int) -> bool:
        return try_assign(self.node_scores.shape, i, self._claims, volumes=self._volumes)


def try_assign(
    shape: PodShape,
    i: int,
    claims: ClaimAssignments | None,
    *,
    volumes: VolumeAssignments | None,
) -> bool:
    """Take devices and volumes of a node for one more pod; whether the node can serve it."""
    choice = None
    if volumes is not None and shape.volumes.is_dynamic:
        choice = volumes.choose(shape.volumes, i)
        if choice is None:
            return False
    if claims is not None and shape.claims and not claims.try_assign(shape.claims, i):
        return False
    if volumes is not None and choice is not None:
        volumes.take(shape.volumes, i, choice)
    return True


def _scarcest_counts(scores: NodeScores, snapshot: Snapshot) -> IntArray | None:
    """The free devices of each node for the first request that counts devices; None for none."""
    request = first_counted_request(snapshot, scores.shape.claims)
    if request is None:
        return None
    counts = free_device_counts(snapshot, request.requirement)
    return np.where(counts >= max(request.number, 1), counts, 0)


def _pack_order(keys: IntArray, counts: IntArray, nodes: IntArray | None) -> list[int]:
    """Return the nodes that take a pod: those with the fewest free devices first."""
    rows = np.arange(len(keys)) if nodes is None else nodes
    rows = rows[(keys[rows] < NO_NODE) & (counts[rows] > 0)]
    order: list[int] = rows[np.lexsort((keys[rows], counts[rows]))].tolist()
    return order
