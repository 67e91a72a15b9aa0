"""Puzzle: where the members of one group could go, as plain numbers. Made when greedy has failed.

Members that no filter can tell apart are one kind; only nodes that some kind may use are left, and
all that filters say is turned into arrays: what is free, who may be where as the cluster stands,
and what depends on where the other members are. `board.py` plays it, `program.py` writes it down
for a solver. Scores have no say here.

    kinds   [3 x cpu 2, 1 x cpu 4 near the others]
    free    [[4], [5]]                  per node
    allowed [[T, T], [F, T]]            per kind and node
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from phalanx.scheduler.cluster.peer_constraints import PeerConstraints, PodSelector
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray
from phalanx.scheduler.entity import Member
from phalanx.scheduler.placement.group_placement import PlacementContext
from phalanx.scheduler.plugins.filters import FilterDependency, rejected_nodes
from phalanx.scheduler.plugins.peer_counts import PeerCounts, PeerProfile
from phalanx.scheduler.plugins.plugin_context import PodAffinityState, SpreadState, initial_context

_FIT, _PORTS, _SPREAD, _AFFINITY = (
    "NodeResourcesFit", "NodePorts", "PodTopologySpread", "InterPodAffinity",
)  # fmt: skip
_MODELLED_FILTERS = (_FIT, _PORTS, _SPREAD, _AFFINITY)


class MemberKind(NamedTuple):
    """Members that can stand in for one another."""

    members: tuple[Member, ...]
    standing: PeerProfile

    @property
    def shape(self) -> PodShape:
        """The shape of one of them: preferences apart, that of all."""
        return self.members[0].shape

    @property
    def peers(self) -> PeerConstraints:
        """What they ask of others."""
        return self.standing.peer_constraints


class NodeDomains(NamedTuple):
    """The domains of a key: the number of the one that each node of the puzzle is in, or -1."""

    ids: IntArray
    size: int

    @property
    def labelled(self) -> BoolArray:
        """The nodes that are in one."""
        return self.ids >= 0


class ConflictRule(NamedTuple):
    """Pairs of kinds (of a kind with itself, too) that may not share a domain."""

    domains: NodeDomains
    pairs: tuple[tuple[int, int], ...]


class AffinityTermCounts(NamedTuple):
    """A key by which to be near, and how many of the crowd are in each domain from the start."""

    domains: NodeDomains
    assigned_counts: IntArray
    total: int


class AffinityRule(NamedTuple):
    """Kinds that must share a domain, of every key, with somebody of a crowd."""

    kinds: tuple[int, ...]
    terms: tuple[AffinityTermCounts, ...]
    #: The kinds that are in the crowd.
    matching_kinds: tuple[int, ...]
    #: Whether these kinds are, so that the first of all needs nobody.
    matches_itself: bool

    @property
    def may_be_first(self) -> bool:
        """Whether one of them may be where nobody of the crowd is yet."""
        return self.matches_itself and not any(reach.total for reach in self.terms)


class SpreadRule(NamedTuple):
    """Kinds that may only go where the crowd does not get too uneven over the domains of a key."""

    kinds: tuple[int, ...]
    domains: NodeDomains
    #: How many of the crowd are in each domain from the start, and which domains are compared.
    assigned_counts: IntArray
    eligible_domains: IntArray
    #: The nodes whose pods count.
    counted_nodes: BoolArray
    matching_kinds: tuple[int, ...]
    matches_itself: bool
    max_skew: int
    #: Whether there are so many domains that the emptiest counts; else zero is compared with.
    has_min_domains: bool


@dataclass(frozen=True, eq=False, slots=True)
class PlacementProblem:
    """So many of these kinds on these nodes (by their numbers in the snapshot)."""

    kinds: tuple[MemberKind, ...]
    needed: int
    nodes: IntArray
    #: Kinds by resources, and nodes by resources.
    requests: IntArray
    free: IntArray
    #: Kinds by nodes.
    allowed: BoolArray
    conflicts: tuple[ConflictRule, ...] = ()
    affinities: tuple[AffinityRule, ...] = ()
    spreads: tuple[SpreadRule, ...] = ()

    @property
    def counts(self) -> list[int]:
        """How many there are of each kind."""
        return [len(kind.members) for kind in self.kinds]

    @property
    def is_order_dependent(self) -> bool:
        """Whether it matters who is placed first."""
        return bool(self.affinities or self.spreads)

    @property
    def order_dependent_kinds(self) -> list[int]:
        """The kinds that ask something of the order, once for everything that they ask."""
        near = [kind for row in self.affinities for kind in row.kinds]
        return near + [kind for row in self.spreads for kind in row.kinds]

    @property
    def is_simple(self) -> bool:
        """Whether placing one after the other finds a way if there is one."""
        return len(self.kinds) == 1 and not (self.is_order_dependent or self.conflicts)


def build_problem(
    context: PlacementContext, members: Sequence[Member], needed: int
) -> PlacementProblem | str:
    """The puzzle of placing so many of some members, or why there is none, in words."""
    for row in context.policy.filters:
        if row.depends_on is not FilterDependency.NODES and row.name not in _MODELLED_FILTERS:
            return f"an exact search cannot heed filter {row.name}"
    return _ProblemBuilder(context, members).build(needed)


class _ProblemBuilder:
    """Gathers what the filters of a policy say about members."""

    def __init__(self, context: PlacementContext, members: Sequence[Member]) -> None:
        self._snapshot, self._policy, self._node_subset = (
            context.snapshot,
            context.policy,
            context.nodes,
        )
        snapshot, policy = context.snapshot, context.policy
        self._filter_names = {row.name for row in policy.filters}
        self._peer_counts = PeerCounts(snapshot, members, policy.spread_defaults.spreads)
        self._kinds = tuple(self._group_members(members))
        self._affinity_states = [self._affinity_state(kind) for kind in self._kinds]
        self._nodes: IntArray = np.array([], np.int64)

    def build(self, needed: int) -> PlacementProblem:
        inside = np.ones(len(self._snapshot), bool)
        if self._node_subset is not None:
            inside[:] = False
            inside[self._node_subset] = True
        allowed = np.array([self._allowed_nodes(k) & inside for k in range(len(self._kinds))])
        self._nodes = np.flatnonzero(allowed.any(axis=0))
        asks, free = self._resource_matrices()
        return PlacementProblem(
            self._kinds,
            needed,
            self._nodes,
            asks,
            free,
            allowed[:, self._nodes],
            conflicts=tuple(self._conflict_rules()),
            affinities=tuple(self._affinity_rules()),
            spreads=tuple(self._spread_rules()),
        )

    def _group_members(self, members: Sequence[Member]) -> Iterator[MemberKind]:
        found: dict[tuple[object, ...], list[Member]] = {}
        for member in members:
            shape, standing = member.shape, self._peer_counts.profile_of(member)
            peers = standing.peer_constraints
            hard = tuple(spread for spread in peers.spreads if spread.is_hard)
            wishes = shape.node_constraints._replace(preferred_terms=(), images=())
            key = (
                shape.requests,
                shape.ports,
                wishes,
                standing.selector_bits,
                peers.affinity,
                peers.anti_affinity,
                hard,
            )
            found.setdefault(key, []).append(member)
        for alike in found.values():
            yield MemberKind(tuple(alike), self._peer_counts.profile_of(alike[0]))

    def _affinity_state(self, kind: MemberKind) -> PodAffinityState | None:
        if not self._peer_counts:
            return None
        return PodAffinityState(
            self._snapshot, self._peer_counts, kind.standing, kind.shape.node_constraints,
            explicit=False, hard_pod_affinity_weight=0, honors_existing_preferences=False,
        )  # fmt: skip

    def _allowed_nodes(self, number: int) -> BoolArray:
        """Where one of a kind could be if none of the others were placed, near whom apart."""
        kind, among, snapshot = self._kinds[number], self._affinity_states[number], self._snapshot
        scene, mask = initial_context(snapshot, kind.shape), np.ones(len(snapshot), bool)
        for row in self._policy.filters:
            if row.depends_on is not FilterDependency.PEERS:
                mask &= ~rejected_nodes(row, scene)
        if among is None:
            return mask
        if _AFFINITY in self._filter_names:
            for _, heads in (*among.anti_affinity, *among.existing_anti_affinity):
                mask &= heads.counts_per_node() == 0
            for heads in among.affinity[0] if among.affinity else ():
                mask &= heads.domains.labelled
        if _SPREAD in self._filter_names:
            for one in among.hard_spreads:
                mask &= one.domain_counts.domains.labelled
        return mask

    def _resource_matrices(self) -> tuple[IntArray, IntArray]:
        """What is asked and what is free of every resource that may run out."""
        snapshot = self._snapshot
        asks = np.zeros((len(self._kinds), len(snapshot.columns)), np.int64)
        for number, kind in enumerate(self._kinds):
            for column, amount in kind.shape.request_vector(snapshot.columns).amounts:
                asks[number, column] = amount
        counts = np.array([len(kind.members) for kind in self._kinds])
        free = snapshot.allocatable[self._nodes] - snapshot.requested[self._nodes]
        free = np.clip(free, 0, counts @ asks)
        scarce = (free < counts @ asks).any(axis=0)
        if _FIT not in self._filter_names:
            scarce[:] = False
        return asks[:, scarce], free[:, scarce]

    def _node_domains(self, key: str) -> NodeDomains:
        domains = self._snapshot.domains(key)
        return NodeDomains(domains.ids[self._nodes], domains.size)

    def _conflict_rules(self) -> Iterator[ConflictRule]:
        if _PORTS in self._filter_names and (clashing := tuple(self._port_conflicts())):
            yield ConflictRule(NodeDomains(np.arange(len(self._nodes)), len(self._nodes)), clashing)
        pairs: dict[str, dict[tuple[int, int], None]] = {}
        for one, kind in enumerate(self._kinds if _AFFINITY in self._filter_names else ()):
            for term in kind.peers.anti_affinity:
                for other in self._matching_kinds([term.selector]):
                    pairs.setdefault(term.topology_key, {})[min(one, other), max(one, other)] = None
        for key, found in pairs.items():
            yield ConflictRule(self._node_domains(key), tuple(sorted(found)))

    def _port_conflicts(self) -> Iterator[tuple[int, int]]:
        for one, kind in enumerate(self._kinds):
            for other, rival in enumerate(self._kinds[one:], one):
                if any(p.conflicts_with(q) for p in kind.shape.ports for q in rival.shape.ports):
                    yield one, other

    def _matching_kinds(self, selections: Sequence[PodSelector]) -> tuple[int, ...]:
        holds = self._peer_counts.matches_selectors
        return tuple(n for n, kind in enumerate(self._kinds) if holds(kind.standing, selections))

    def _affinity_rules(self) -> Iterator[AffinityRule]:
        found: dict[tuple[object, ...], list[int]] = {}
        for number, (kind, among) in enumerate(
            zip(self._kinds, self._affinity_states, strict=True)
        ):
            if among is not None and among.affinity and _AFFINITY in self._filter_names:
                found.setdefault((kind.peers.affinity, among.matches_own_affinity), []).append(
                    number
                )
        for alike in found.values():
            terms, among = self._kinds[alike[0]].peers.affinity, self._affinity_states[alike[0]]
            assert among is not None
            crowd = self._matching_kinds([term.selector for term in terms])
            counted = {
                tuple(heads.counts.tobytes() for heads in near): near for near in among.affinity
            }
            for near in counted.values():
                reaches = [
                    AffinityTermCounts(
                        self._node_domains(term.topology_key), heads.counts, heads.total
                    )
                    for term, heads in zip(terms, near, strict=True)
                ]
                yield AffinityRule(tuple(alike), tuple(reaches), crowd, among.matches_own_affinity)

    def _spread_rules(self) -> Iterator[SpreadRule]:
        found: dict[tuple[object, ...], tuple[SpreadState, dict[int, None]]] = {}
        for number, among in enumerate(self._affinity_states):
            for one in (
                among.hard_spreads if among is not None and _SPREAD in self._filter_names else ()
            ):
                heads = one.domain_counts
                counts, counted = heads.counts.tobytes(), heads.counted_nodes.tobytes()
                alike = found.setdefault(
                    (one.spread, one.matches_itself, counts, counted), (one, {})
                )
                alike[1][number] = None
        for one, kinds in found.values():
            spread, heads = one.spread, one.domain_counts
            yield SpreadRule(
                tuple(kinds),
                self._node_domains(spread.topology_key),
                heads.counts,
                heads.present_domains,
                heads.counted_nodes[self._nodes],
                self._matching_kinds([spread.selector]),
                one.matches_itself,
                spread.max_skew,
                0 < len(heads.present_domains) >= spread.min_domains,
            )
