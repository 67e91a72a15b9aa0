"""Search for a placement of a tree of groups as a whole.

The greedy cycle places one group after the other and never moves one, so it may fail although a
placement exists. Here the whole tree is one problem: the minimums of all groups, how many groups a
parent needs, and the topology domains of groups inside the domains of their parents. Members that
have a node count. If the root has a topology constraint, each of its domains is a problem.

A group that needs all its members, and that its parent needs, is merged into the parent, so that
most trees become one large gang.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace as but

from phalanx.scheduler.cluster.snapshot import IntArray, Placement, Snapshot
from phalanx.scheduler.entity import Entity, EntityRejection
from phalanx.scheduler.placement.domain_bounds import CapacityBounds, NodeRegions, regions_of
from phalanx.scheduler.placement.group_placement import (
    PlacementContext,
    count_scheduled,
    sort_members,
)
from phalanx.scheduler.placement.topology_domains import find_placements, topology_levels
from phalanx.scheduler.search.placement_problem import GroupScope, build_tree_problem
from phalanx.scheduler.search.placement_search import MAX_THOROUGH_PLACEMENTS, search_problem
from phalanx.scheduler.search.solver import (
    NoPlacement,
    PlacementFound,
    SearchOutcome,
    SearchUndecided,
    Steps,
)


def search_tree(
    entity: Entity, context: PlacementContext, placements: Sequence[Placement] | None
) -> Steps[SearchOutcome]:
    """Find nodes for all that a tree needs, in one of these placements (None: on any nodes)."""
    if not entity.members or (placements is None and not _has_capacity(entity, context)):
        return NoPlacement()
    scope = build_scope(entity, context.snapshot)._replace(levels=None)
    undecided: SearchUndecided | None = None
    is_pending = False
    for number, placement in enumerate([None] if placements is None else placements):
        inside = but(
            context,
            nodes=placement.nodes if placement else context.nodes,
            allows_search=context.allows_search and number < MAX_THOROUGH_PLACEMENTS,
        )
        yield number
        problem = build_tree_problem(inside, scope)
        if isinstance(problem, str):
            return SearchUndecided(problem)
        outcome = yield from search_problem(problem, inside)
        if isinstance(outcome, PlacementFound):
            return outcome
        if isinstance(outcome, SearchUndecided):
            undecided, is_pending = undecided or outcome, is_pending or outcome.is_pending
    return SearchUndecided(undecided.reason, is_pending) if undecided else NoPlacement()


def _has_capacity(entity: Entity, context: PlacementContext) -> bool:
    """Whether the nodes may hold what an entity needs; see `domain_bounds.py`."""
    nodes = np.arange(len(context.snapshot)) if context.nodes is None else context.nodes
    region: NodeRegions = regions_of([Placement("", nodes)], context.snapshot)
    bounds = CapacityBounds(context.snapshot, context.policy)
    return bool(bounds.can_hold_inside(entity, region)[0])


def build_scope(entity: Entity, snapshot: Snapshot) -> GroupScope:
    """Describe what an entity needs, with groups merged into their parents where possible."""
    levels = _domains_per_level(entity, snapshot)
    if not entity.is_composite:
        needed = max(entity.quorum - count_scheduled(entity, snapshot), 0)
        return GroupScope(sort_members(entity.members), needed, levels=levels)
    children = [build_scope(child, snapshot) for child in entity.children]
    if entity.quorum < len(children):
        return GroupScope((), 0, children, entity.quorum, levels=levels)
    merged = [child for child in children if _needs_everything(child)]
    kept = [child for child in children if not _needs_everything(child)]
    kept += [grandchild for child in merged for grandchild in child.children]
    members = [member for child in merged for member in child.members]
    missing = entity.quorum - len(children)
    return GroupScope(members, len(members), kept, len(kept) + missing, levels=levels)


def _needs_everything(scope: GroupScope) -> bool:
    """Whether all of a group is needed wherever it is placed, so that it can be merged."""
    return (
        scope.levels is None
        and scope.needed == len(scope.members)
        and scope.children_needed == len(scope.children)
    )


def _domains_per_level(entity: Entity, snapshot: Snapshot) -> list[IntArray] | None:
    """The domain of each node at each allowed level; None if any node will do."""
    levels = topology_levels(entity)
    if isinstance(levels, EntityRejection):
        return []
    found: list[IntArray] = []
    for level in levels:
        if not level.key:
            return None
        domains = snapshot.domains(level.key)
        placements = find_placements(entity, snapshot, key=level.key)
        if placements is domains.placements:
            found.append(domains.ids)
        elif not isinstance(placements, EntityRejection) and placements:
            found.append(regions_of(placements, snapshot).ids)
    return [ids for ids in found if (ids >= 0).any()]
