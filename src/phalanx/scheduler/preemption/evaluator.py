"""Decides whether a refused entity evicts pods, waits for terminating pods, or only waits.

`preempt` runs after the cycle of an entity has failed, for the entity as a whole:

    fits once terminating pods are gone? ─▶ wait for them, and keep their room
    a search or a wider topology level may still place it? ─▶ wait
    fits once every candidate is gone? ─▶ the cheapest plan (`plan_search.py`)
                                      no: evict none

No pod is evicted unless everything that the entity needs then has a node. A terminating pod counts
as leaving until it is overdue: then it hangs, and entities that wait for its room try again. While
victims of the entity itself terminate on its nominated nodes, it evicts no other pod. If one of
these nodes was cordoned or cannot take its pod for a similar reason, the nominations are void.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from math import inf

from msgspec.structs import replace as but

from phalanx.scheduler.cluster.hypothetical import with_changes
from phalanx.scheduler.cluster.pod_index import AssignedPod
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.decision import (
    Binding,
    ClusterEvent,
    Placed,
    Preempting,
    Victim,
    Waiting,
)
from phalanx.scheduler.entity import Entity, EntityRejection
from phalanx.scheduler.group_tree_placement import GroupTreePlacement, place_entity
from phalanx.scheduler.placement.capacity_estimate import CapacityEstimate
from phalanx.scheduler.placement.claim_placement import find_gone_consumers
from phalanx.scheduler.placement.group_placement import (
    Assignment,
    GroupPlacement,
    PlacementContext,
    to_bindings,
)
from phalanx.scheduler.placement.topology_domains import at_widest_level, find_placements
from phalanx.scheduler.plugins.filtering import run_static_filter
from phalanx.scheduler.plugins.plugin_context import initial_context
from phalanx.scheduler.preemption.eviction_units import PODS_PER_STEP, find_eviction_units
from phalanx.scheduler.preemption.plan_search import PlanSearch, PreemptionPlan
from phalanx.scheduler.preemption.victim_search import assignments_hold
from phalanx.scheduler.search.solver import Steps

NOT_ALLOWED = "not eligible due to preemptionPolicy=Never."
VICTIMS_TERMINATING = "waiting for pods that are leaving"
#: The entity does not fit once its own victims are gone either; it waits for them all the same.
OWN_VICTIMS_TERMINATING = "not eligible due to a terminating pod on the nominated node"
#: The entity waits until pods have terminated, and keeps its nominated nodes meanwhile.
AWAITS_VICTIMS = (VICTIMS_TERMINATING, OWN_VICTIMS_TERMINATING)
NOT_HELPFUL = "not helpful for scheduling"
LEVEL_PREFERRED = "no pod is evicted before the widest topology level is allowed"
SEARCH_RUNNING = "an exact search for victims is running"
#: The end of the message if the victims may not be the best ones.
NOT_PROVEN = "; the search for the best victims ended at its limit"
#: The terms of pod affinity and spread up to which a pod may preempt: every plan counts them anew.
MAX_PREEMPTOR_TERMS = 16
TOO_MANY_TERMS = f"not eligible due to more than {MAX_PREEMPTOR_TERMS} pod affinity terms."


def preempt(
    entity: Entity, context: PlacementContext, waiting: Waiting
) -> Steps[Placed | Waiting | Preempting]:
    """Decide about a refused entity: evict pods, wait for terminating pods, or wait.

    Returns Placed if the search finds a placement that needs no eviction.
    """
    if not context.policy.allows_preemption(is_group=entity.group is not None):
        return waiting
    if not entity.may_preempt:
        return replace(waiting, preemption=NOT_ALLOWED)
    terms = max(member.shape.peer_constraints.count_of_terms for member in entity.members)
    if terms > MAX_PREEMPTOR_TERMS:
        return replace(waiting, preemption=TOO_MANY_TERMS)
    snapshot, now = context.snapshot, entity.attempted_at
    leaving = [pod for pod in snapshot.pod_index.terminating_pods() if pod.leaves_by > now]
    gone_consumers = find_gone_consumers(entity, snapshot)
    without = with_changes(snapshot, removed=leaving, gone_consumers=gone_consumers)
    # Many plans are evaluated, so none of them gets an exact search.
    free = but(context, snapshot=without, allows_search=False)
    if leaving or gone_consumers:
        overdue_at = min((pod.leaves_by for pod in leaving), default=inf)
        delay = None if overdue_at == inf else overdue_at - now
        waiting = replace(waiting, leaving_delay=delay)
        result = yield from _place_if_fits(entity, free)
        if result is not None:
            return (yield from _wait_for_victims(entity, free, waiting, result=result))
        if own := _nominations_with_victims(entity, free, leaving):
            return replace(waiting, preemption=OWN_VICTIMS_TERMINATING, nominated=own)
    if ClusterEvent.SEARCH_ENDED in waiting.wakes_on:
        # An exact search is running that may find a placement without any eviction.
        return waiting
    candidates = yield from find_eviction_units(snapshot, entity.priority)
    if not candidates:
        return waiting
    if waiting.relaxation_delay is not None:
        return replace(waiting, preemption=LEVEL_PREFERRED)
    yield len(candidates)
    search = PlanSearch(at_widest_level(entity), free, candidates)
    plan = yield from search.find_plan()
    if search.awaits_solver:
        wakes_on = waiting.wakes_on | {ClusterEvent.SEARCH_ENDED}
        return replace(waiting, preemption=SEARCH_RUNNING, wakes_on=wakes_on)
    if plan is None:
        return replace(waiting, preemption=NOT_HELPFUL)
    if not plan.units and not leaving and plan.result is not None:
        return plan.result.build_placed()
    return (yield from _build_decision(entity, context, waiting, plan=plan))


def _build_decision(
    entity: Entity, context: PlacementContext, waiting: Waiting, *, plan: PreemptionPlan
) -> Steps[Waiting | Preempting]:
    victims: tuple[Victim, ...] = ()
    for begin in range(0, len(plan.units), PODS_PER_STEP):
        units = plan.units[begin : begin + PODS_PER_STEP]
        victims += tuple(victim for unit in units for victim in unit.victims)
        yield len(victims)
    text = f"found a placement for {entity.kind}, preempting {len(victims)} victims"
    text += "" if plan.is_optimal else NOT_PROVEN
    nominated = to_bindings(plan.assignments, context.snapshot.names)
    if not victims:
        return replace(waiting, preemption=VICTIMS_TERMINATING, nominated=nominated)
    return Preempting(
        replace(waiting, preemption=text, nominated=nominated),
        victims,
        disruptions=max(plan.cost.trees + plan.cost.groups, plan.cost.broken),
        violations=plan.cost.violations,
        broken_groups=plan.broken_groups,
        optimal=plan.is_optimal,
    )


def _place_if_fits(
    entity: Entity, context: PlacementContext
) -> Steps[GroupPlacement | GroupTreePlacement | None]:
    """Place the whole entity if possible; a capacity estimate excludes most cases first."""
    if not CapacityEstimate(entity, context.snapshot, context.policy).is_sufficient():
        return None
    result = yield from place_entity(entity, context)
    return None if isinstance(result, EntityRejection) or not result.is_feasible else result


def _nominations_with_victims(
    entity: Entity, context: PlacementContext, leaving: Iterable[AssignedPod]
) -> tuple[Binding, ...]:
    """Return the nominations of the members if their own victims still terminate there.

    They stay if another pod has taken the room. They are void if a node is gone or was cordoned,
    or otherwise cannot take its members whatever pods run there, as in Kubernetes
    (UnschedulableAndUnresolvable); then waiting for the victims is useless.
    """
    snapshot = context.snapshot
    nominated = [
        (member, nomination.node)
        for member in entity.members
        if (nomination := snapshot.nominations.get(member.pod.metadata.key)) is not None
    ]
    nodes = {node for _, node in nominated}
    has_victims = any(
        pod.preempted and pod.node in nodes and pod.priority < entity.priority for pod in leaving
    )
    if not has_victims or any(node not in snapshot.index for node in nodes):
        return ()
    own = [Assignment(member, snapshot.index[node]) for member, node in nominated]
    if not _keep_topology(entity, context, own) or _are_unresolvable(context, own):
        return ()
    return to_bindings(own, snapshot.names)


def _are_unresolvable(context: PlacementContext, assignments: Iterable[Assignment]) -> bool:
    """Whether a node rejects its member by a filter that depends on the node object only."""
    nodes_by_shape: dict[PodShape, list[int]] = {}
    for assignment in assignments:
        nodes_by_shape.setdefault(assignment.member.shape, []).append(assignment.node)
    filters = context.policy.filters.values()
    for shape, nodes in nodes_by_shape.items():
        plugin_context = initial_context(context.snapshot, shape)
        masks = (run_static_filter(one, plugin_context) for one in filters)
        if any(mask is not None and mask[nodes].any() for mask in masks):
            return True
    return False


def _wait_for_victims(
    entity: Entity,
    context: PlacementContext,
    waiting: Waiting,
    *,
    result: GroupPlacement | GroupTreePlacement,
) -> Steps[Waiting]:
    """Evict no further pod; nominated members keep their node or get another one."""
    snapshot, new_waiting = context.snapshot, replace(waiting, preemption=VICTIMS_TERMINATING)
    nominations = {key: pod.node for key, pod in snapshot.nominations.items()}
    is_nominated = any(member.pod.metadata.key in nominations for member in entity.members)
    if entity.group is None and not is_nominated:
        # The pod is tried first when the room is free. A gang needs all of the room at once, and
        # others must not take what is free before.
        return new_waiting
    kept = [
        Assignment(member, snapshot.index[node])
        for member in (assignment.member for assignment in result.assignments)
        if (node := nominations.get(member.pod.metadata.key, "")) in snapshot.index
    ]
    keeps_nominations = (
        len(kept) == len(result.assignments)
        and _keep_topology(entity, context, kept)
        and (yield from assignments_hold(context, (), kept))
    )
    return replace(
        new_waiting,
        nominated=to_bindings(kept if keeps_nominations else result.assignments, snapshot.names),
    )


def _keep_topology(
    entity: Entity, context: PlacementContext, assignments: Sequence[Assignment]
) -> bool:
    """Whether the assigned members of every group share a domain, with its placed members."""
    nodes = {assignment.member.pod.metadata.key: assignment.node for assignment in assignments}
    for group in entity.groups:
        keys = [member.pod.metadata.key for member in group.members]
        if not _share_a_domain(group, context, {nodes[key] for key in keys if key in nodes}):
            return False
    return True


def _share_a_domain(group: Entity, context: PlacementContext, nodes: Set[int]) -> bool:
    placements = find_placements(group, context.snapshot)
    if placements is None or not nodes:
        return True
    if isinstance(placements, EntityRejection):
        return False
    return any(nodes <= set(placement.nodes.tolist()) for placement in placements)
