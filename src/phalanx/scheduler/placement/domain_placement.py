"""Placement of one PodGroup in the best topology domain.

For equal members the best domain is predicted from what each domain holds, and only it is tried.
Otherwise domains are tried in the order of `domain_bounds.py`, until no other domain can be better.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from phalanx.scheduler.cluster.snapshot import Placement
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.placement.domain_bounds import (
    RankedPlacement,
    count_evaluated,
    rank_for_group,
)
from phalanx.scheduler.placement.group_placement import (
    EMPTY_PLACEMENT,
    GroupPlacement,
    PlacementContext,
    count_scheduled,
    place_members,
)
from phalanx.scheduler.placement.placement_simulation import PlacementSimulation
from phalanx.scheduler.placement.topology_domains import (
    choose_best_candidate,
    domain_capacities_of,
    predict_best_placement,
    score_candidate,
)


def place_in_best_domain(
    entity: Entity,
    context: PlacementContext,
    placements: Sequence[Placement],
    *,
    key: str,
    failed: set[str] | None = None,
) -> Generator[int, None, GroupPlacement]:
    """Place all members in the best feasible placement, or else where most of them fit.

    `failed` has the values of placements in which the members do not fit; others are added to it.
    """
    snapshot, policy = context.snapshot, context.policy
    predicted = _predict_placement(entity, context, placements, key=key)
    ranked: list[RankedPlacement] = []
    if predicted:
        ranked = [RankedPlacement(predicted, 0, 0, is_possible=True)]
    elif placements:
        ranked = rank_for_group(entity, placements, snapshot, policy=policy)
    total = count_scheduled(entity, snapshot) + len(entity.members)
    attempts: list[tuple[RankedPlacement, GroupPlacement]] = []
    #: The score and the position of the best attempt, once an attempt has placed all members.
    best: tuple[int, int] | None = None
    untried = [one for one in ranked if one.placement.value not in (failed or ())]
    for one in untried or ranked[:1]:
        if attempts:
            if not one.is_possible or (best and (one.bound, -one.position) < best):
                break
            yield len(attempts)
        attempt = yield from place_members(GroupPlacement(entity, context, one.placement))
        attempts.append((one, attempt))
        if failed is not None and not attempt.is_feasible:
            failed.add(one.placement.value)
        if attempt.is_complete:
            scores = (
                (score_candidate(a.candidate, total, snapshot, policy=policy), -r.position)
                for r, a in attempts
                if a.is_feasible
            )
            best = max(scores)
    return _choose_attempt(entity, context, ranked, attempts=attempts)


def _choose_attempt(
    entity: Entity,
    context: PlacementContext,
    ranked: Sequence[RankedPlacement],
    *,
    attempts: Sequence[tuple[RankedPlacement, GroupPlacement]],
) -> GroupPlacement:
    in_order = [attempt for _, attempt in sorted(attempts, key=lambda pair: pair[0].position)]
    if not in_order:
        return GroupPlacement(entity, context, EMPTY_PLACEMENT)
    feasible = [attempt for attempt in in_order if attempt.is_feasible]
    chosen = max(feasible or in_order, key=lambda attempt: attempt.scheduled)
    if len(feasible) > 1:
        best = choose_best_candidate(
            [attempt.candidate for attempt in feasible], context.snapshot, context.policy
        )
        chosen = next(one for one in feasible if one.placement is best.placement)
    chosen.tried_count = count_evaluated(ranked, [one.position for one, _ in attempts])
    chosen.feasible_count = len(feasible)
    chosen.possible_placements = [one.placement for one in ranked if one.is_possible]
    return chosen


def _predict_placement(
    entity: Entity, context: PlacementContext, placements: Sequence[Placement], *, key: str
) -> Placement | None:
    """Return the placement that will be chosen for equal members; None if it is not known."""
    shape, snapshot, policy = entity.members[0].shape, context.snapshot, context.policy
    simulation = PlacementSimulation(snapshot, policy, entity.members)
    is_predictable = simulation.depends_on_load_only(entity.members[0])
    if not is_predictable or len(placements) < 2 or any(m.shape != shape for m in entity.members):
        return None
    capacities = domain_capacities_of(snapshot, policy, shape, placements=placements, key=key)
    return predict_best_placement(entity, capacities, count_scheduled(entity, snapshot))
