"""The placement of a group or a tree as arrays: the input of the heuristics and the exact solver.

Built after the greedy attempt has failed. Members that no filter distinguishes form one kind. Only
nodes that some kind may use are kept. The filters become arrays: free resources, the nodes that
each kind may use in the current cluster, and constraints between members.

    kinds   [3 x cpu 2, 1 x cpu 4 with affinity to the others]
    free    [[4], [5]]                  per node and resource
    allowed [[T, T], [F, T]]            per kind and node

What must be placed is a `GroupRequirement`: so many members of some kinds and, for a tree, so many
groups below. The members of different groups are of different kinds, unless both groups need all of
their members anyway (`tree_search.py` merges them).

Scores are not part of the problem: any placement that satisfies it is a solution.
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
from phalanx.scheduler.plugins.claim_assignments import claim_capacities
from phalanx.scheduler.plugins.dynamic_resources import DYNAMIC_RESOURCES
from phalanx.scheduler.plugins.filtering import run_filter, run_static_filter
from phalanx.scheduler.plugins.inter_pod_affinity import INTER_POD_AFFINITY
from phalanx.scheduler.plugins.node_plugins import NODE_PORTS
from phalanx.scheduler.plugins.node_resources_fit import NODE_RESOURCES_FIT
from phalanx.scheduler.plugins.peer_counts import PeerCounts, PeerProfile
from phalanx.scheduler.plugins.plugin import FilterDependency
from phalanx.scheduler.plugins.plugin_context import PodAffinityState, SpreadState, initial_context
from phalanx.scheduler.plugins.pod_topology_spread import POD_TOPOLOGY_SPREAD
from phalanx.scheduler.plugins.volume_assignments import volume_capacities
from phalanx.scheduler.search.device_counts import ResourceTotal, count_devices

# The filters whose results change as members are placed. Each has `is_modelled`.
_FIT, _PORTS = NODE_RESOURCES_FIT.name, NODE_PORTS.name
_SPREAD, _AFFINITY = POD_TOPOLOGY_SPREAD.name, INTER_POD_AFFINITY.name


class MemberKind(NamedTuple):
    """Members that no filter distinguishes."""

    members: tuple[Member, ...]
    peer_profile: PeerProfile
    #: All that filters see of a member. Kinds of different groups may have equal features.
    features: tuple[object, ...]

    @property
    def shape(self) -> PodShape:
        """The shape of its members, except for preferences."""
        return self.members[0].shape

    @property
    def peers(self) -> PeerConstraints:
        """The affinity, anti-affinity and spread constraints of its members."""
        return self.peer_profile.peer_constraints


class NodeDomains(NamedTuple):
    """The domains of a topology key: for each node of the problem its domain number, or -1."""

    ids: IntArray
    size: int

    @property
    def labelled(self) -> BoolArray:
        """The nodes that have the topology key."""
        return self.ids >= 0


class ConflictRule(NamedTuple):
    """Pairs of kinds, possibly the same kind twice, that may not share a domain."""

    domains: NodeDomains
    pairs: tuple[tuple[int, int], ...]


class AffinityTermCounts(NamedTuple):
    """An affinity term: its domains, and how many assigned pods each domain has that match it."""

    domains: NodeDomains
    assigned_counts: IntArray
    total: int


class AffinityRule(NamedTuple):
    """Kinds that must share a domain of every term with a pod that matches all terms."""

    kinds: tuple[int, ...]
    terms: tuple[AffinityTermCounts, ...]
    #: The kinds whose members match the terms.
    matching_kinds: tuple[int, ...]
    #: Whether these kinds match their own terms, so that the first member needs no other pod.
    matches_itself: bool
    #: Whether the pods that these kinds require also require them, so that all must be placed
    #: together; see `PeerCounts.find_mutual_profiles`.
    is_mutual: bool = False

    @property
    def may_be_first(self) -> bool:
        """Whether the first member may be placed while no pod matches the terms yet."""
        return self.matches_itself and not any(term.total for term in self.terms)


class GroupRequirement(NamedTuple):
    """What a group needs for any of its members to be placed.

    a gang of 3 of 4                      needed 3 of one kind
    a tree of 2 of 3 gangs of 4 each      children_needed 2 of three such requirements
    """

    #: The kinds of its own members, and how many of these members it needs.
    kinds: tuple[int, ...]
    needed: int
    #: The groups below it, and how many of them it needs.
    children: tuple[GroupRequirement, ...] = ()
    children_needed: int = 0
    #: The domains of each allowed topology level, one of which must contain all members below;
    #: empty without topology constraint.
    levels: tuple[NodeDomains, ...] = ()
    #: For how many equal groups it stands; see `equal_groups.py`.
    copies: int = 1

    @property
    def all_kinds(self) -> tuple[int, ...]:
        """The kinds of the members of this group and of all groups below it."""
        return (*self.kinds, *(kind for child in self.children for kind in child.all_kinds))

    @property
    def groups(self) -> Iterator[GroupRequirement]:
        """This group and all groups below it, parents first."""
        yield self
        for child in self.children:
            yield from child.groups

    @property
    def least_members(self) -> int:
        """How many members must be placed at least."""
        below = sorted(child.least_members for child in self.children for _ in range(child.copies))
        return self.needed + sum(below[: self.children_needed])

    @property
    def is_flat(self) -> bool:
        """Whether it concerns only the number of members."""
        return not self.children and not self.levels

    def shares_domain(self, nodes: Sequence[int]) -> bool:
        """Whether one domain of some level contains all these nodes."""
        found = [set(level.ids[list(nodes)].tolist()) for level in self.levels]
        return any(len(domains) <= 1 and -1 not in domains for domains in found)

    def is_complete(self, counts: Sequence[int]) -> bool:
        """Whether so many members of each kind are enough."""
        return (
            sum(counts[kind] for kind in self.kinds) >= self.needed
            and sum(child.is_complete(counts) for child in self.children) >= self.children_needed
        )

    def is_met(self, counts: Sequence[int]) -> bool:
        """Whether so many members are enough for this group and each group that has members."""
        return any(counts) and self.is_complete(counts) and self._has_no_fragment(counts)

    def _has_no_fragment(self, counts: Sequence[int]) -> bool:
        """Whether no group below has members but not enough of them."""
        is_unused = not any(counts[kind] for kind in self.all_kinds)
        return is_unused or (
            self.is_complete(counts) and all(one._has_no_fragment(counts) for one in self.children)
        )


class SpreadRule(NamedTuple):
    """Kinds with a topology spread constraint that may not be violated."""

    kinds: tuple[int, ...]
    domains: NodeDomains
    #: How many assigned pods match in each domain, and the domains whose minimum counts.
    assigned_counts: IntArray
    eligible_domains: IntArray
    #: The nodes whose pods count.
    counted_nodes: BoolArray
    matching_kinds: tuple[int, ...]
    matches_itself: bool
    max_skew: int
    #: Whether there are at least minDomains domains; otherwise the global minimum is zero.
    has_min_domains: bool


@dataclass(frozen=True, eq=False, slots=True)
class PlacementProblem:
    """Place the required members of these kinds on these nodes, given by index in the snapshot."""

    kinds: tuple[MemberKind, ...]
    requirement: GroupRequirement
    nodes: IntArray
    #: Requests per kind and resource; free amounts per node and resource. Devices count too.
    requests: IntArray
    free: IntArray
    #: Whether a kind may use a node, per kind and node.
    allowed: BoolArray
    conflicts: tuple[ConflictRule, ...] = ()
    affinities: tuple[AffinityRule, ...] = ()
    spreads: tuple[SpreadRule, ...] = ()
    #: What all nodes share: devices that several of them reach.
    totals: tuple[ResourceTotal, ...] = ()

    @property
    def needed(self) -> int:
        """How many members must be placed at least."""
        return max(self.requirement.least_members, 1)

    @property
    def counts(self) -> list[int]:
        """The number of members of each kind."""
        return [len(kind.members) for kind in self.kinds]

    @property
    def is_order_dependent(self) -> bool:
        """Whether the order of placement matters: affinity and spread depend on earlier members."""
        return bool(self.affinities or self.spreads)

    @property
    def order_dependent_kinds(self) -> list[int]:
        """The kinds with order dependent constraints, once per constraint."""
        near = [kind for row in self.affinities for kind in row.kinds]
        return near + [kind for row in self.spreads for kind in row.kinds]

    @property
    def is_simple(self) -> bool:
        """Whether greedy placement finds a placement if one exists."""
        # Devices are only counted.
        has_claims = any(kind.shape.claims or kind.shape.volumes.is_dynamic for kind in self.kinds)
        has_constraints = self.is_order_dependent or self.conflicts or has_claims
        return len(self.kinds) == 1 and self.requirement.is_flat and not has_constraints


class GroupScope(NamedTuple):
    """The members of a group before they are divided into kinds; see `GroupRequirement`."""

    members: Sequence[Member]
    needed: int
    children: Sequence[GroupScope] = ()
    children_needed: int = 0
    #: The domain of each node of the snapshot, per allowed topology level; None: any node.
    levels: Sequence[IntArray] | None = None

    @property
    def all_members(self) -> Iterator[Member]:
        """The members of this group and of all groups below it."""
        yield from self.members
        for child in self.children:
            yield from child.all_members


def build_problem(
    context: PlacementContext, members: Sequence[Member], needed: int
) -> PlacementProblem | str:
    """Build the problem of a PodGroup, or say in a sentence why it cannot be modelled."""
    return build_tree_problem(context, GroupScope(members, needed))


def build_tree_problem(context: PlacementContext, scope: GroupScope) -> PlacementProblem | str:
    """Build the problem of a tree, or say in a sentence why it cannot be modelled."""
    for name in context.policy.unmodelled_filters:
        return f"the exact search does not support filter {name}"
    return _ProblemBuilder(context, scope).build()


class _ProblemBuilder:
    def __init__(self, context: PlacementContext, scope: GroupScope) -> None:
        self._snapshot, self._policy, self._node_subset = (
            context.snapshot,
            context.policy,
            context.nodes,
        )
        snapshot, policy = context.snapshot, context.policy
        self._filter_names = set(policy.filters)
        self._peer_counts = PeerCounts(
            snapshot, tuple(scope.all_members), policy.spread_defaults.spreads
        )
        self._mutual_profiles = self._peer_counts.find_mutual_profiles(scope.all_members)
        self._scope = scope
        kinds: list[MemberKind] = []
        #: The kinds of the own members of each scope, in the order of `_scopes`.
        self._kinds_by_scope: list[tuple[int, ...]] = []
        #: The topology levels that restrict each kind.
        self._levels_by_kind: list[tuple[Sequence[IntArray], ...]] = []
        for one, levels in _scopes(scope, ()):
            alike = list(self._group_members(one.members))
            self._kinds_by_scope.append(tuple(range(len(kinds), len(kinds) + len(alike))))
            self._levels_by_kind += [levels] * len(alike)
            kinds += alike
        self._kinds = tuple(kinds)
        #: One kind for each value of the features.
        distinct = {kind.features: kind for kind in self._kinds}
        states = {features: self._affinity_state(kind) for features, kind in distinct.items()}
        self._affinity_states = [states[kind.features] for kind in self._kinds]
        self._nodes: IntArray = np.array([], np.int64)

    def build(self) -> PlacementProblem:
        inside = np.ones(len(self._snapshot), bool)
        if self._node_subset is not None:
            inside[:] = False
            inside[self._node_subset] = True
        first_kinds = {kind.features: number for number, kind in enumerate(self._kinds)}
        masks = {one: self._find_allowed_nodes(k) & inside for one, k in first_kinds.items()}
        allowed = np.array([masks[kind.features] for kind in self._kinds])
        for row, restrictions in zip(allowed, self._levels_by_kind, strict=True):
            for levels in restrictions:
                row &= np.any([ids >= 0 for ids in levels], axis=0) if levels else False
        self._nodes = np.flatnonzero(allowed.any(axis=0))
        requirement = self._requirement(self._scope, iter(self._kinds_by_scope))
        requests, free = self._resource_matrices()
        requests, free, totals = self._with_devices(requests, free, requirement)
        return PlacementProblem(
            kinds=self._kinds,
            requirement=requirement,
            nodes=self._nodes,
            requests=requests,
            free=free,
            allowed=allowed[:, self._nodes],
            conflicts=tuple(self._conflict_rules()),
            affinities=tuple(self._affinity_rules()),
            spreads=tuple(self._spread_rules()),
            totals=totals,
        )

    def _with_devices(
        self, requests: IntArray, free: IntArray, requirement: GroupRequirement
    ) -> tuple[IntArray, IntArray, tuple[ResourceTotal, ...]]:
        """Add the devices that may run out to the resources, and return what nodes share."""
        demands = [kind.shape.claims for kind in self._kinds]
        if not any(demands) or DYNAMIC_RESOURCES.name not in self._filter_names:
            return requests, free, ()
        counts = np.array([len(kind.members) for kind in self._kinds])
        needs_all = requirement.least_members == counts.sum()
        found = count_devices(self._snapshot, demands, self._nodes, needs_all=needs_all)
        wanted = counts @ found.requests
        scarce = (found.free < wanted).any(axis=0)
        totals = (one for one in found.totals if one.amount < counts @ one.requests)
        return (
            np.hstack((requests, found.requests[:, scarce])),
            np.hstack((free, np.minimum(found.free, wanted)[:, scarce])),
            tuple(totals),
        )

    def _requirement(self, scope: GroupScope, kinds: Iterator[tuple[int, ...]]) -> GroupRequirement:
        own = next(kinds)
        return GroupRequirement(
            own,
            scope.needed,
            tuple(self._requirement(child, kinds) for child in scope.children),
            scope.children_needed,
            levels=tuple(
                NodeDomains(ids[self._nodes], int(ids.max(initial=-1)) + 1)
                for ids in scope.levels or ()
            ),
        )

    def _group_members(self, members: Sequence[Member]) -> Iterator[MemberKind]:
        # Filters of out-of-tree plugins may distinguish pods by any part of the shape.
        knows_all = all(filter_.is_modelled for filter_ in self._policy.filters.values())
        found: dict[tuple[object, ...], list[Member]] = {}
        for member in members:
            shape, profile = member.shape, self._peer_counts.profile_of(member)
            peers = profile.peer_constraints
            hard = tuple(spread for spread in peers.spreads if spread.is_hard)
            required = shape.node_constraints._replace(preferred_terms=(), images=())
            key = (
                shape.requests,
                shape.ports,
                required,
                profile.matched_selectors,
                peers.affinity,
                peers.anti_affinity,
                hard,
                shape.claims,
                shape.volumes,
                None if knows_all else shape,
            )
            found.setdefault(key, []).append(member)
        for features, alike in found.items():
            yield MemberKind(tuple(alike), self._peer_counts.profile_of(alike[0]), features)

    def _affinity_state(self, kind: MemberKind) -> PodAffinityState | None:
        if not self._peer_counts:
            return None
        return PodAffinityState(
            self._snapshot,
            self._peer_counts,
            kind.peer_profile,
            constraints=kind.shape.node_constraints,
            explicit=False,
            hard_pod_affinity_weight=0,
            honors_existing_preferences=False,
        )

    def _find_allowed_nodes(self, number: int) -> BoolArray:
        """The nodes that a kind may use if no other member is placed, affinity not considered."""
        kind, affinity_state, snapshot = (
            self._kinds[number],
            self._affinity_states[number],
            self._snapshot,
        )
        context, mask = initial_context(snapshot, kind.shape), np.ones(len(snapshot), bool)
        for name, filter_ in self._policy.filters.items():
            if filter_.depends_on is FilterDependency.CLAIMS:
                if kind.shape.claims and name == DYNAMIC_RESOURCES.name:
                    mask &= claim_capacities(snapshot, kind.shape.claims) > 0
                if (rejected := run_static_filter(filter_, context)) is not None:
                    mask &= ~rejected
            elif filter_.depends_on is not FilterDependency.PEERS:
                mask &= ~run_filter(filter_, context)
        if kind.shape.volumes.is_dynamic:
            mask &= volume_capacities(snapshot, kind.shape.volumes) > 0
        if affinity_state is None:
            return mask
        if _AFFINITY in self._filter_names:
            for _, peers in (*affinity_state.anti_affinity, *affinity_state.existing_anti_affinity):
                mask &= peers.counts_per_node() == 0
            for peers in affinity_state.affinity[0] if affinity_state.affinity else ():
                mask &= peers.domains.labelled
        if _SPREAD in self._filter_names:
            for spread_state in affinity_state.hard_spreads:
                mask &= spread_state.domain_counts.domains.labelled
        return mask

    def _resource_matrices(self) -> tuple[IntArray, IntArray]:
        """Requests per kind and free amounts per node, for each resource that may run out."""
        snapshot = self._snapshot
        requests = np.zeros((len(self._kinds), len(snapshot.columns)), np.int64)
        for number, kind in enumerate(self._kinds):
            for column, amount in kind.shape.request_vector(snapshot.columns).amounts:
                requests[number, column] = amount
        counts = np.array([len(kind.members) for kind in self._kinds])
        free = snapshot.allocatable[self._nodes] - snapshot.requested[self._nodes]
        free = np.clip(free, 0, counts @ requests)
        scarce = (free < counts @ requests).any(axis=0)
        if _FIT not in self._filter_names:
            scarce[:] = False
        return requests[:, scarce], free[:, scarce]

    def _node_domains(self, key: str) -> NodeDomains:
        domains = self._snapshot.domains(key)
        return NodeDomains(domains.ids[self._nodes], domains.size)

    def _conflict_rules(self) -> Iterator[ConflictRule]:
        if _PORTS in self._filter_names and (port_conflicts := tuple(self._port_conflicts())):
            yield ConflictRule(
                NodeDomains(np.arange(len(self._nodes)), len(self._nodes)), port_conflicts
            )
        pairs: dict[str, dict[tuple[int, int], None]] = {}
        for number, kind in enumerate(self._kinds if _AFFINITY in self._filter_names else ()):
            for term in kind.peers.anti_affinity:
                for other in self._matching_kinds([term.selector]):
                    pairs.setdefault(term.topology_key, {})[
                        min(number, other), max(number, other)
                    ] = None
        for key, found in pairs.items():
            yield ConflictRule(self._node_domains(key), tuple(sorted(found)))

    def _port_conflicts(self) -> Iterator[tuple[int, int]]:
        for number, kind in enumerate(self._kinds):
            for other_number, other_kind in enumerate(self._kinds[number:], number):
                if any(
                    p.conflicts_with(q) for p in kind.shape.ports for q in other_kind.shape.ports
                ):
                    yield number, other_number

    def _matching_kinds(self, selections: Sequence[PodSelector]) -> tuple[int, ...]:
        holds = self._peer_counts.matches_selectors
        return tuple(
            n for n, kind in enumerate(self._kinds) if holds(kind.peer_profile, selections)
        )

    def _affinity_rules(self) -> Iterator[AffinityRule]:
        found: dict[tuple[object, ...], list[int]] = {}
        for number, (kind, affinity_state) in enumerate(
            zip(self._kinds, self._affinity_states, strict=True)
        ):
            if (
                affinity_state is not None
                and affinity_state.affinity
                and _AFFINITY in self._filter_names
            ):
                is_mutual = kind.peer_profile in self._mutual_profiles
                key = (kind.peers.affinity, affinity_state.matches_own_affinity, is_mutual)
                found.setdefault(key, []).append(number)
        for alike in found.values():
            terms, affinity_state = (
                self._kinds[alike[0]].peers.affinity,
                self._affinity_states[alike[0]],
            )
            assert affinity_state is not None
            matching = self._matching_kinds([term.selector for term in terms])
            counted = {
                tuple(peers.counts.tobytes() for peers in near): near
                for near in affinity_state.affinity
            }
            for near in counted.values():
                term_counts = [
                    AffinityTermCounts(
                        self._node_domains(term.topology_key), peers.counts, peers.total
                    )
                    for term, peers in zip(terms, near, strict=True)
                ]
                yield AffinityRule(
                    tuple(alike),
                    tuple(term_counts),
                    matching,
                    matches_itself=affinity_state.matches_own_affinity,
                    is_mutual=self._kinds[alike[0]].peer_profile in self._mutual_profiles,
                )

    def _spread_rules(self) -> Iterator[SpreadRule]:
        found: dict[tuple[object, ...], tuple[SpreadState, dict[int, None]]] = {}
        for number, affinity_state in enumerate(self._affinity_states):
            for spread_state in (
                affinity_state.hard_spreads
                if affinity_state is not None and _SPREAD in self._filter_names
                else ()
            ):
                peers = spread_state.domain_counts
                counts, counted = peers.counts.tobytes(), peers.counted_nodes.tobytes()
                alike = found.setdefault(
                    (spread_state.spread, spread_state.matches_itself, counts, counted),
                    (spread_state, {}),
                )
                alike[1][number] = None
        for spread_state, kinds in found.values():
            spread, peers = spread_state.spread, spread_state.domain_counts
            yield SpreadRule(
                kinds=tuple(kinds),
                domains=self._node_domains(spread.topology_key),
                assigned_counts=peers.counts,
                eligible_domains=peers.present_domains,
                counted_nodes=peers.counted_nodes[self._nodes],
                matching_kinds=self._matching_kinds([spread.selector]),
                matches_itself=spread_state.matches_itself,
                max_skew=spread.max_skew,
                has_min_domains=0 < len(peers.present_domains) >= spread.min_domains,
            )


def _scopes(
    scope: GroupScope, outer: tuple[Sequence[IntArray], ...]
) -> Iterator[tuple[GroupScope, tuple[Sequence[IntArray], ...]]]:
    """Yield the scope and all below it, parents first, with the levels that restrict each."""
    levels = outer if scope.levels is None else (*outer, scope.levels)
    yield scope, levels
    for child in scope.children:
        yield from _scopes(child, levels)
