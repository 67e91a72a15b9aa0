"""Evenness: how full the domains are that a pod is to be spread over, hard or rather.

What it must keep to is judged in `peerfilters.py`. What it had rather is ranked here, and kept up
as a trial goes on: one more pod changes what the nodes of its domain see and nothing else. Only
when other nodes pass the filters all of it is asked anew.

Among: one pod's view of the others, prepared once per shape and standing in a trial.

The headcounts that the filters and comparisons about other pods read, live as the trial goes on.
Judges nothing itself.

Scene: everything that a filter or a comparison may look at. A view of things, changed by nobody.

One shape on one snapshot, with the load that a trial has put on top of it, and among which others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phalanx.scheduler.cluster.node_constraints import NodeConstraints
from phalanx.scheduler.cluster.peer_constraints import HOSTNAME, TopologySpread
from phalanx.scheduler.cluster.pod_index import PodSelection
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import BoolArray, HostPorts, IntArray, Snapshot
from phalanx.scheduler.plugins.peer_counts import (
    DomainCounts,
    PeerCounts,
    PeerProfile,
    domain_per_node,
)

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SpreadState:
    """A spread constraint and where the pods are that it is about."""

    spread: TopologySpread
    domain_counts: DomainCounts
    #: Whether the pod itself is one of them.
    matches_itself: bool


class SoftSpread:
    """What nodes are worth to a pod that had rather be spread, by all its constraints together."""

    __slots__ = ("_constraints", "_counted", "_explicit", "_passed", "_raw")

    def __init__(
        self, snapshot: Snapshot, constraints: Sequence[SpreadState], *, explicit: bool
    ) -> None:
        """`explicit`: a node that is in none of the domains counts last."""
        self._constraints = [_SoftSpreadConstraint(snapshot, one) for one in constraints]
        self._explicit = explicit
        self._passed: BoolArray | None = None

    def score_nodes(self, passed: BoolArray) -> IntArray:
        """Emptier domains are better, in per cent, among the nodes that passed."""
        if self._passed is not None and np.array_equal(passed, self._passed):
            self._update()
        else:
            self._reset(passed)
        counted, raw = self._counted, self._raw
        chosen = raw if counted is None else raw[counted]
        most, least = (int(chosen.max()), int(chosen.min())) if chosen.size else (0, 0)
        ranked = 100 * (most + least - raw) // most if most else np.full_like(raw, 100)
        return ranked if counted is None else np.where(counted, ranked, 0)

    def _reset(self, passed: BoolArray) -> None:
        counted = passed
        for slope in self._constraints if self._explicit else ():
            counted = counted & slope.labelled
        for slope in self._constraints:
            slope.reset(counted)
        self._passed = passed
        #: The nodes that count; None: all.
        self._counted = None if counted.all() else counted
        self._raw = self._round_loads(slice(None))

    def _update(self) -> None:
        for slope in self._constraints:
            for nodes in slope.update():
                self._raw[nodes] = self._round_loads(nodes)

    def _round_loads(self, nodes: IntArray | slice) -> IntArray:
        """How full it is around some nodes, as a whole number."""
        total = sum(slope.loads[nodes] for slope in self._constraints)
        return np.asarray(np.floor(total + 0.5), np.int64)


class _SoftSpreadConstraint:
    """One constraint: how full the domain of each node is, more domains weighing more."""

    __slots__ = ("_domains", "_seen", "_state", "_weight", "labelled", "loads")

    def __init__(self, snapshot: Snapshot, state: SpreadState) -> None:
        self._state, self._domains = state, snapshot.domains(state.spread.topology_key)
        self.labelled = self._domains.labelled

    def reset(self, counted: BoolArray) -> None:
        """Look at all nodes, of which these count."""
        heads, spread = self._state.domain_counts, self._state.spread
        if spread.topology_key == HOSTNAME:
            size = int(np.count_nonzero(counted))
        else:
            # Nodes without the label count together as one more domain.
            size = int(np.count_nonzero(np.bincount(self._domains.ids[counted] + 1)))
        self._weight, self._seen = np.log(size + 2), len(heads.added_domains)
        loads = self._load(heads.counts)[heads.domains.ids]
        self.loads: FloatArray = np.where(self.labelled, loads, 0.0)

    def update(self) -> Iterator[IntArray]:
        """Look at the domains where pods have come since; yields their nodes."""
        heads = self._state.domain_counts
        moved = dict.fromkeys(heads.added_domains[self._seen :])
        self._seen = len(heads.added_domains)
        for domain in moved:
            nodes = heads.domains.nodes(domain)
            self.loads[nodes] = np.where(self.labelled[nodes], self._load(heads.counts[domain]), 0)
            yield nodes

    def _load(self, counts: IntArray) -> FloatArray:
        return np.asarray(counts * self._weight + (self._state.spread.max_skew - 1), np.float64)


class PodAffinityState:
    """Whom a pod wants near, apart or evenly spread, and who wants it near or apart."""

    __slots__ = (
        "affinity",
        "anti_affinity",
        "existing_anti_affinity",
        "hard_spreads",
        "matches_own_affinity",
        "preferred",
        "soft_spread",
    )

    def __init__(
        self,
        snapshot: Snapshot,
        peer_counts: PeerCounts,
        profile: PeerProfile,
        constraints: NodeConstraints,
        *,
        explicit: bool,
        hard_pod_affinity_weight: int,
        honors_existing_preferences: bool = True,
    ) -> None:
        peers, domains = profile.peer_constraints, snapshot.domains
        near = tuple(term.selector for term in peers.affinity)
        #: Whom it must be near, by every key; with those who were promised a place, and without.
        self.affinity = list(
            zip(
                *(
                    peer_counts.count_pods_with_and_without_nominated(
                        PodSelection(near), domains(t.topology_key)
                    )
                    for t in peers.affinity
                ),
                strict=True,
            )
        )
        self.matches_own_affinity = peer_counts.matches_selectors(profile, near)
        self.anti_affinity = [
            (
                term,
                peer_counts.count_pods(PodSelection((term.selector,)), domains(term.topology_key)),
            )
            for term in peers.anti_affinity
        ]
        self.existing_anti_affinity = list(peer_counts.existing_terms_towards(profile, "apart"))
        self.preferred = [
            (
                weight,
                peer_counts.count_pods(PodSelection((term.selector,)), domains(term.topology_key)),
            )
            for weight, term in peers.preferred
        ]
        if honors_existing_preferences or peers.preferred:
            self.preferred += [
                (one.weight, heads)
                for one, heads in peer_counts.existing_terms_towards(profile, "like")
            ]
            nearby = (
                peer_counts.existing_terms_towards(profile, "near")
                if hard_pod_affinity_weight
                else ()
            )
            self.preferred += [(hard_pod_affinity_weight, heads) for _, heads in nearby]
        hard = [one for one in peers.spreads if one.is_hard]
        soft = [one for one in peers.spreads if not one.is_hard]
        self.hard_spreads = [
            SpreadState(one, heads, peer_counts.matches_selectors(profile, (one.selector,)))
            for one in hard
            for heads in peer_counts.count_pods_with_and_without_nominated(
                _spread_pods(one),
                domains(one.topology_key),
                _eligible_nodes(snapshot, constraints, one, hard),
            )
        ]
        keyed = soft if explicit else []
        rather = [
            _soft_spread_state(
                snapshot,
                peer_counts,
                profile,
                one,
                _eligible_nodes(snapshot, constraints, one, keyed),
            )
            for one in soft
        ]
        #: What it had rather have even, if anything.
        self.soft_spread = SoftSpread(snapshot, rather, explicit=explicit) if rather else None


def _spread_pods(spread: TopologySpread) -> PodSelection:
    return PodSelection((spread.selector,), excludes_terminating=True)


def _soft_spread_state(
    snapshot: Snapshot,
    peer_counts: PeerCounts,
    profile: PeerProfile,
    spread: TopologySpread,
    eligible: BoolArray,
) -> SpreadState:
    per_node = spread.topology_key == HOSTNAME
    domains = domain_per_node(snapshot) if per_node else snapshot.domains(spread.topology_key)
    heads = peer_counts.count_pods(_spread_pods(spread), domains, None if per_node else eligible)
    return SpreadState(spread, heads, peer_counts.matches_selectors(profile, (spread.selector,)))


def _eligible_nodes(
    snapshot: Snapshot,
    constraints: NodeConstraints,
    spread: TopologySpread,
    keyed: list[TopologySpread],
) -> BoolArray:
    """The nodes whose pods count: in a domain of every key, and allowed if that is honoured."""
    mask = np.ones(len(snapshot), bool)
    for other in keyed:
        mask &= snapshot.domains(other.topology_key).labelled
    if spread.honors_node_affinity:
        mask &= constraints.matching_nodes(snapshot)
    if spread.honors_taints:
        mask &= constraints.tolerated_nodes(snapshot)
    return mask


@dataclass(frozen=True, slots=True)
class PluginContext:
    """A shape and the cluster around it. Without `among` nobody minds it and it minds nobody."""

    snapshot: Snapshot
    shape: PodShape
    requested: IntArray
    used_ports: Mapping[int, HostPorts]
    affinity_state: PodAffinityState | None = None
    #: The nodes that count; None: all.
    candidate_mask: BoolArray | None = None

    @property
    def candidates(self) -> BoolArray:
        """The nodes that count."""
        return (
            np.ones(len(self.snapshot), bool)
            if self.candidate_mask is None
            else self.candidate_mask
        )


def initial_context(snapshot: Snapshot, shape: PodShape) -> PluginContext:
    """The scene before anything is placed, others left out of account."""
    return PluginContext(snapshot, shape, snapshot.requested, snapshot.used_ports)
