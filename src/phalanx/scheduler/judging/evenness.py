"""Evenness: how full the domains are that a pod is to be spread over, hard or rather.

What it must keep to is judged in `peerfilters.py`. What it had rather is ranked here, and kept up
as a trial goes on: one more pod changes what the nodes of its domain see and nothing else. Only
when other nodes pass the filters all of it is asked anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phalanx.scheduler.cluster.peers import HOSTNAME, Spread
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray, Snapshot
from phalanx.scheduler.judging.headcount import Headcount

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Evenness:
    """A spread constraint and where the pods are that it is about."""

    spread: Spread
    headcount: Headcount
    #: Whether the pod itself is one of them.
    itself: bool


class Leaning:
    """What nodes are worth to a pod that had rather be spread, by all its constraints together."""

    __slots__ = ("_counted", "_explicit", "_passed", "_raw", "_slopes")

    def __init__(
        self, snapshot: Snapshot, constraints: Sequence[Evenness], *, explicit: bool
    ) -> None:
        """`explicit`: a node that is in none of the domains counts last."""
        self._slopes = [_Slope(snapshot, one) for one in constraints]
        self._explicit = explicit
        self._passed: BoolArray | None = None

    def ranks(self, passed: BoolArray) -> IntArray:
        """Emptier domains are better, in per cent, among the nodes that passed."""
        if self._passed is not None and np.array_equal(passed, self._passed):
            self._follow()
        else:
            self._begin(passed)
        counted, raw = self._counted, self._raw
        chosen = raw if counted is None else raw[counted]
        most, least = (int(chosen.max()), int(chosen.min())) if chosen.size else (0, 0)
        ranked = 100 * (most + least - raw) // most if most else np.full_like(raw, 100)
        return ranked if counted is None else np.where(counted, ranked, 0)

    def _begin(self, passed: BoolArray) -> None:
        counted = passed
        for slope in self._slopes if self._explicit else ():
            counted = counted & slope.labelled
        for slope in self._slopes:
            slope.begin(counted)
        self._passed = passed
        #: The nodes that count; None: all.
        self._counted = None if counted.all() else counted
        self._raw = self._rounded(slice(None))

    def _follow(self) -> None:
        for slope in self._slopes:
            for nodes in slope.follow():
                self._raw[nodes] = self._rounded(nodes)

    def _rounded(self, nodes: IntArray | slice) -> IntArray:
        """How full it is around some nodes, as a whole number."""
        total = sum(slope.loads[nodes] for slope in self._slopes)
        return np.asarray(np.floor(total + 0.5), np.int64)


class _Slope:
    """One constraint: how full the domain of each node is, more domains weighing more."""

    __slots__ = ("_domains", "_evenness", "_seen", "_weight", "labelled", "loads")

    def __init__(self, snapshot: Snapshot, evenness: Evenness) -> None:
        self._evenness, self._domains = evenness, snapshot.domains(evenness.spread.key)
        self.labelled = self._domains.labelled

    def begin(self, counted: BoolArray) -> None:
        """Look at all nodes, of which these count."""
        heads, spread = self._evenness.headcount, self._evenness.spread
        if spread.key == HOSTNAME:
            size = int(np.count_nonzero(counted))
        else:
            # Nodes without the label count together as one more domain.
            size = int(np.count_nonzero(np.bincount(self._domains.ids[counted] + 1)))
        self._weight, self._seen = np.log(size + 2), len(heads.moves)
        loads = self._load(heads.counts)[heads.domains.ids]
        self.loads: FloatArray = np.where(self.labelled, loads, 0.0)

    def follow(self) -> Iterator[IntArray]:
        """Look at the domains where pods have come since; yields their nodes."""
        heads = self._evenness.headcount
        moved = dict.fromkeys(heads.moves[self._seen :])
        self._seen = len(heads.moves)
        for domain in moved:
            nodes = heads.domains.nodes(domain)
            self.loads[nodes] = np.where(self.labelled[nodes], self._load(heads.counts[domain]), 0)
            yield nodes

    def _load(self, counts: IntArray) -> FloatArray:
        return np.asarray(counts * self._weight + (self._evenness.spread.max_skew - 1), np.float64)
