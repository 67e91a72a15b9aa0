"""Headcount: how many of some pods there are in each domain, kept up as a trial places more.

key rack, ids [0, 0, 1, -1]      nodes 0 and 1 share a rack, node 3 has none
counts [3, 1, 0]                 three pods in rack 0; the last place stands for "no rack"
here() [3, 3, 1, 0]              the same seen from each node
"""

from __future__ import annotations

import numpy as np

from phalanx.scheduler.cluster.snapshot import BoolArray, Domains, IntArray


class Headcount:
    """Pods per domain, counted on all nodes or on eligible ones."""

    __slots__ = ("_counted", "_present", "counts", "domains", "moves", "total")

    def __init__(
        self, domains: Domains, per_node: IntArray, eligible: BoolArray | None = None
    ) -> None:
        self.domains = domains
        self._counted = domains.ids if eligible is None else np.where(eligible, domains.ids, -1)
        inside = self._counted >= 0
        weights = per_node[inside]
        # One more than there are domains: the index -1 of nodes without one leads to a zero.
        counts = np.bincount(self._counted[inside], weights, domains.size + 1)
        self.counts: IntArray = counts.astype(np.int64)
        self.total = int(weights.sum())
        #: The domains to which pods were added, in order.
        self.moves: list[int] = []
        self._present: IntArray | None = None

    @property
    def present(self) -> IntArray:
        """The domains that have a counted node; only spreading asks for them."""
        if self._present is None:
            self._present = np.unique(self._counted[self._counted >= 0])
        return self._present

    @property
    def counted(self) -> BoolArray:
        """The nodes whose pods count."""
        return self._counted >= 0

    def add(self, node: int) -> None:
        """One more on a node."""
        domain = self._counted.item(node)
        if domain >= 0:
            self.counts[domain] += 1
            self.total += 1
            self.moves.append(domain)

    def here(self) -> IntArray:
        """How many there are in the domain of each node."""
        return self.counts[self.domains.ids]
