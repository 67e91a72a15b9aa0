"""What filters and scores read: a pod shape, a snapshot, and the pods that matter to the shape.

`PluginContext` is the read-only input of filters and normalized scores. Its `affinity_state` counts
the pods of every affinity term and spread constraint per domain, and follows a simulation as it
places more pods (see `peer_counts.py`). `SoftSpread` keeps the score of soft spread constraints up
to date the same way: one more pod changes only the nodes of its domain.

Nothing here rejects a node; the filters do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phalanx.scheduler.cluster.node_constraints import NodeConstraints
from phalanx.scheduler.cluster.peer_constraints import HOSTNAME, TopologySpread
from phalanx.scheduler.cluster.pod_index import PodSelection
from phalanx.scheduler.cluster.pod_shape import HostPorts, PodShape
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray, Snapshot
from phalanx.scheduler.plugins.claim_assignments import ClaimAssignments
from phalanx.scheduler.plugins.peer_counts import (
    DomainCounts,
    PeerCounts,
    PeerProfile,
    domain_per_node,
)
from phalanx.scheduler.plugins.volume_assignments import VolumeAssignments

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SpreadState:
    """A spread constraint and the number of matching pods per domain."""

    spread: TopologySpread
    domain_counts: DomainCounts
    #: Whether the pod matches the selector of its own constraint.
    matches_itself: bool


class SoftSpread:
    """The score of nodes under all soft spread constraints of a pod together."""

    __slots__ = ("_constraints", "_counted", "_explicit", "_passed", "_raw")

    def __init__(
        self, snapshot: Snapshot, constraints: Sequence[SpreadState], *, explicit: bool
    ) -> None:
        """With `explicit`, a node that lacks a topology label scores 0."""
        self._constraints = [_SoftSpreadConstraint(snapshot, one) for one in constraints]
        self._explicit = explicit
        self._passed: BoolArray | None = None

    def score_nodes(self, passed: BoolArray) -> IntArray:
        """Score nodes, 0 to 100, among those that passed; emptier domains score higher."""
        if self._passed is not None and np.array_equal(passed, self._passed):
            for constraint in self._constraints:
                for nodes in constraint.update():
                    self._raw[nodes] = self._total_loads(nodes)
        else:
            self._reset(passed)
        counted, raw = self._counted, self._raw
        compared = raw if counted is None else raw[counted]
        most, least = (int(compared.max()), int(compared.min())) if compared.size else (0, 0)
        scores = 100 * (most + least - raw) // most if most else np.full_like(raw, 100)
        return scores if counted is None else np.where(counted, scores, 0)

    def _reset(self, passed: BoolArray) -> None:
        counted = passed
        for constraint in self._constraints if self._explicit else ():
            counted = counted & constraint.labelled
        for constraint in self._constraints:
            constraint.reset(counted)
        self._passed = passed
        #: The nodes that are compared; None: all.
        self._counted = None if counted.all() else counted
        self._raw = self._total_loads(slice(None))

    def _total_loads(self, nodes: IntArray | slice) -> IntArray:
        """The loads of all constraints on some nodes, rounded to integers."""
        total = sum(constraint.loads[nodes] for constraint in self._constraints)
        return np.asarray(np.floor(total + 0.5), np.int64)


class _SoftSpreadConstraint:
    """One constraint: the number of pods in each node's domain; more domains weigh more."""

    __slots__ = ("_domains", "_seen", "_state", "_weight", "labelled", "loads")

    def __init__(self, snapshot: Snapshot, state: SpreadState) -> None:
        self._state, self._domains = state, snapshot.domains(state.spread.topology_key)
        self.labelled = self._domains.labelled

    def reset(self, counted: BoolArray) -> None:
        """Compute the loads of all nodes; `counted` are the nodes that are compared."""
        counts, spread = self._state.domain_counts, self._state.spread
        if spread.topology_key == HOSTNAME:
            size = int(np.count_nonzero(counted))
        else:
            # Nodes without the label count together as one more domain.
            size = int(np.count_nonzero(np.bincount(self._domains.ids[counted] + 1)))
        self._weight, self._seen = np.log(size + 2), len(counts.added_domains)
        loads = self._load(counts.counts)[counts.domains.ids]
        self.loads: FloatArray = np.where(self.labelled, loads, 0.0)

    def update(self) -> Iterator[IntArray]:
        """Recompute the domains to which pods were added since; yields their nodes."""
        counts = self._state.domain_counts
        changed = dict.fromkeys(counts.added_domains[self._seen :])
        self._seen = len(counts.added_domains)
        for domain in changed:
            nodes = counts.domains.nodes(domain)
            self.loads[nodes] = np.where(self.labelled[nodes], self._load(counts.counts[domain]), 0)
            yield nodes

    def _load(self, counts: IntArray) -> FloatArray:
        return np.asarray(counts * self._weight + (self._state.spread.max_skew - 1), np.float64)


class PodAffinityState:
    """Counts of other pods per domain, as the affinity and spread constraints of a pod need them.

    These are the pods that its constraints select, and the pods whose terms select it.
    """

    __slots__ = (
        "affinity",
        "anti_affinity",
        "defers_affinity",
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
        *,
        constraints: NodeConstraints,
        explicit: bool,
        hard_pod_affinity_weight: int,
        honors_existing_preferences: bool = True,
    ) -> None:
        peers, domains = profile.peer_constraints, snapshot.domains
        selectors = tuple(term.selector for term in peers.affinity)
        per_term = [
            peer_counts.count_pods_with_and_without_nominated(
                PodSelection(selectors), domains(term.topology_key)
            )
            for term in peers.affinity
        ]
        #: The counts of all required terms: with nominated pods and, if that differs, without them.
        self.affinity: list[tuple[DomainCounts, ...]] = list(zip(*per_term, strict=True))
        self.matches_own_affinity = peer_counts.matches_selectors(profile, selectors)
        #: Whether required affinity is checked later: the pods that it needs are placed together
        #: with this pod.
        self.defers_affinity = False
        self.anti_affinity = [
            (
                term,
                peer_counts.count_pods(PodSelection((term.selector,)), domains(term.topology_key)),
            )
            for term in peers.anti_affinity
        ]
        self.existing_anti_affinity = list(
            peer_counts.existing_terms_towards(profile, "anti_affinity")
        )
        self.preferred = [
            (
                weight,
                peer_counts.count_pods(PodSelection((term.selector,)), domains(term.topology_key)),
            )
            for weight, term in peers.preferred
        ]
        if honors_existing_preferences or peers.preferred:
            self.preferred += [
                (existing.weight, counts)
                for existing, counts in peer_counts.existing_terms_towards(profile, "preferred")
            ]
            if hard_pod_affinity_weight:
                required = peer_counts.existing_terms_towards(profile, "affinity")
                self.preferred += [(hard_pod_affinity_weight, counts) for _, counts in required]
        self.hard_spreads = _hard_spread_states(
            snapshot, peer_counts, profile, constraints=constraints
        )
        soft_spreads = _soft_spread_states(
            snapshot, peer_counts, profile, constraints=constraints, explicit=explicit
        )
        #: The soft constraints; None if there are none.
        self.soft_spread = (
            SoftSpread(snapshot, soft_spreads, explicit=explicit) if soft_spreads else None
        )

    def unmet_affinity(self) -> Iterator[BoolArray]:
        """Yield, for each required term, the nodes that do not satisfy it.

        A pod that matches its own affinity terms may start a domain if no pod matches yet.
        """
        for terms in self.affinity:
            is_first = self.matches_own_affinity and not any(counts.total for counts in terms)
            for counts in terms:
                is_free = is_first or self.defers_affinity
                yield ~counts.domains.labelled if is_free else counts.counts_per_node() == 0


def _hard_spread_states(
    snapshot: Snapshot,
    peer_counts: PeerCounts,
    profile: PeerProfile,
    *,
    constraints: NodeConstraints,
) -> list[SpreadState]:
    hard = [spread for spread in profile.peer_constraints.spreads if spread.is_hard]
    if not hard:
        return []
    labelled = _labelled_nodes(snapshot, hard)
    return [
        SpreadState(spread, counts, peer_counts.matches_selectors(profile, (spread.selector,)))
        for spread in hard
        for counts in peer_counts.count_pods_with_and_without_nominated(
            PodSelection((spread.selector,), excludes_terminating=True),
            snapshot.domains(spread.topology_key),
            _eligible_nodes(snapshot, constraints, spread, labelled=labelled),
        )
    ]


def _soft_spread_states(
    snapshot: Snapshot,
    peer_counts: PeerCounts,
    profile: PeerProfile,
    *,
    constraints: NodeConstraints,
    explicit: bool,
) -> list[SpreadState]:
    soft = [spread for spread in profile.peer_constraints.spreads if not spread.is_hard]
    labelled = _labelled_nodes(snapshot, soft if explicit else [])
    found = []
    for spread in soft:
        selection = PodSelection((spread.selector,), excludes_terminating=True)
        if spread.topology_key == HOSTNAME:
            counts = peer_counts.count_pods(selection, domain_per_node(snapshot))
        else:
            eligible = _eligible_nodes(snapshot, constraints, spread, labelled=labelled)
            counts = peer_counts.count_pods(
                selection, snapshot.domains(spread.topology_key), eligible
            )
        matches_itself = peer_counts.matches_selectors(profile, (spread.selector,))
        found.append(SpreadState(spread, counts, matches_itself))
    return found


def _labelled_nodes(snapshot: Snapshot, spreads: Iterable[TopologySpread]) -> BoolArray:
    """The nodes that have the topology labels of all of these constraints."""
    mask = np.ones(len(snapshot), bool)
    for key in dict.fromkeys(spread.topology_key for spread in spreads):
        mask &= snapshot.domains(key).labelled
    return mask


def _eligible_nodes(
    snapshot: Snapshot, constraints: NodeConstraints, spread: TopologySpread, *, labelled: BoolArray
) -> BoolArray:
    """The nodes whose pods a constraint counts.

    They have topology labels, and match the pod's node affinity and tolerations if the constraint
    honors those.
    """
    mask = labelled.copy()
    if spread.honors_node_affinity:
        mask &= constraints.matching_nodes(snapshot)
    if spread.honors_taints:
        mask &= constraints.tolerated_nodes(snapshot)
    return mask


@dataclass(frozen=True, slots=True)
class PluginContext:
    """A pod shape on a snapshot, with the load that a simulation has added to it."""

    snapshot: Snapshot
    shape: PodShape
    #: Requests per node and resource column, including simulated pods.
    requested: IntArray
    #: The host ports in use, by node index.
    used_ports: Mapping[int, HostPorts]
    #: None if no affinity term or spread constraint concerns the pod.
    affinity_state: PodAffinityState | None = None
    #: The nodes that may be chosen; None: all.
    candidate_mask: BoolArray | None = None
    #: The devices in use; None: those of the snapshot.
    claims: ClaimAssignments | None = None
    #: The volumes in use, likewise.
    volumes: VolumeAssignments | None = None

    @property
    def candidates(self) -> BoolArray:
        """The nodes that may be chosen."""
        if self.candidate_mask is None:
            return np.ones(len(self.snapshot), bool)
        return self.candidate_mask


def initial_context(snapshot: Snapshot, shape: PodShape) -> PluginContext:
    """The context before any pod is placed, without affinity terms and spread constraints."""
    return PluginContext(snapshot, shape, snapshot.requested, snapshot.used_ports)
