"""Places an entity on the nodes with the highest ranks, for the plan of a reservation.

    ranks    n1 0   n2 2   n3 2   n4 1     the nodes that become free last have the highest rank
    3 members, two of which fit on a node   two on n2, one on n3

`place_by_rank` uses the code of the cycle. For equal members that need nothing but resources
`place_equal_members` gives the same result from how many of them each node holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot
from phalanx.scheduler.entity import EntityRejection
from phalanx.scheduler.group_tree_placement import place_required
from phalanx.scheduler.placement.group_placement import (
    Assignment,
    GroupPlacement,
    PlacementContext,
    count_scheduled,
    sort_members,
)
from phalanx.scheduler.plugins.plugin import StaticScore
from phalanx.scheduler.policy import WeightedScore
from phalanx.scheduler.reservation.end_timeline import CapacityGrowth
from phalanx.scheduler.reservation.plan_basis import needs_resources_only
from phalanx.scheduler.reservation.reservation import ReservationRequest
from phalanx.scheduler.search.solver import NO_SOLVER_ANSWER, SolverRequest, Steps


def place_equal_members(
    request: ReservationRequest,
    growth: CapacityGrowth,
    snapshot: Snapshot,
    *,
    ranks: IntArray,
    nodes: IntArray | None = None,
) -> Sequence[Assignment] | None:
    """Return what `place_by_rank` does for equal members that need nothing but resources.

    Their nodes follow from how many of them each node holds. None: members differ, or have
    other requirements.
    """
    entity = request.entity
    needed = entity.quorum - count_scheduled(entity, snapshot)
    if needed <= 0 or not needs_resources_only(entity, snapshot, request.policy):
        return None
    capacity = growth.capacity(snapshot)
    order = np.argsort(-ranks, kind="stable")
    if nodes is not None:
        is_here = np.zeros(len(snapshot), bool)
        is_here[nodes] = True
        order = order[is_here[order]]
    rows = np.repeat(order, capacity[order])[:needed].tolist()
    if len(rows) < needed:
        return ()
    return list(map(Assignment, sort_members(entity.members)[:needed], rows))


def place_by_rank(
    request: ReservationRequest,
    snapshot: Snapshot,
    ranks: IntArray,
    *,
    nodes: IntArray | None = None,
    allows_search: bool = False,
) -> Steps[Sequence[Assignment]]:
    """Place what the entity needs, on the nodes with the highest ranks; empty if it does not fit.

    The exact solver is never asked.
    """
    score = StaticScore(lambda snapshot, shape: ranks)
    policy = replace(request.policy, scores=(WeightedScore("Reservation", 1, score),))
    context = PlacementContext(snapshot, policy, nodes=nodes, allows_search=allows_search)
    steps, answer = place_required(request.entity, context), None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            result = end.value
            break
        answer = NO_SOLVER_ANSWER if isinstance(step, SolverRequest) else None
        yield 1
    if isinstance(result, EntityRejection) or not result.is_feasible:
        return ()
    if isinstance(result, GroupPlacement):
        result.trim_to_quorum()
    found: Sequence[Assignment] = result.assignments
    return found
