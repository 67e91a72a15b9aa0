"""When the entities that wait are expected to start, for `phalanx queue`, `why` and `what-if`.

The start of each entity is planned with the planner of reservations, in the order of reservations,
each beside those before it, as if every one of them had a reservation. The expected ends of running
pods come from the objects alone: deadlines, annotations, and the run times of pods that succeeded
and still exist. The scheduler may know more of them. Nothing is written.
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.api.meta import Ref, find_condition
from phalanx.api.scheduling import RESERVED, PodGroup
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.plugins.reservation import ReservationMode
from phalanx.scheduler.policy import DEFAULT_PROFILES, Profiles
from phalanx.scheduler.queue.scheduler_state import ClusterObjects, SchedulerState, load_state
from phalanx.scheduler.reservation.planner import ReservationPlanner, ReservationRequest
from phalanx.scheduler.reservation.reservation import (
    Reservation,
    ReservationOrder,
    join_and,
)
from phalanx.scheduler.search.solver import Steps

#: For how many entities a start is planned.
MAX_PLANNED = 32


@dataclass(frozen=True, slots=True)
class ExpectedStart:
    """When an entity that waits is expected to start, and for what it waits."""

    #: Seconds since the epoch; None if it cannot be foreseen.
    time: float | None
    #: The objects that must end before, the last one first.
    waits_for: tuple[str, ...] = ()
    #: Whether the scheduler has reserved nodes for it.
    is_reserved: bool = False

    def describe(self, now: float) -> str:
        """Say it in a phrase: `reserved; expected in 12 min, when job/a and job/b end`."""
        prefix = "reserved; " if self.is_reserved else ""
        verb = "ends" if len(self.waits_for) == 1 else "end"
        awaited = f", when {join_and(self.waits_for)} {verb}" if self.waits_for else ""
        if self.time is None:
            return f"{prefix}expected start unknown{awaited}"
        if self.time <= now:
            return f"{prefix}expected now"
        return f"{prefix}expected in {describe_seconds(self.time - now)}{awaited}"


def describe_seconds(seconds: float) -> str:
    """Format a time to wait: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 60:
        return f"{round(seconds)} s"
    if seconds < 2 * 3600:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"


def expected_starts(
    cluster: ClusterObjects, profiles: Profiles = DEFAULT_PROFILES, now: float = 0.0
) -> dict[Ref, ExpectedStart]:
    """Plan the start of the first entities that wait; those that can never run are left out."""
    state = load_state(cluster, profiles)
    run_times, snapshot = state.reservations.run_times, state.cache.snapshot()
    for _ in run_times.update():
        pass
    planner, found = ReservationPlanner(snapshot, run_times, now), dict[Ref, ExpectedStart]()
    reserved = _reserved_groups(cluster)
    for request in _requests_in_order(state, now)[:MAX_PLANNED]:
        made = _finish(planner.plan(request))
        if made is not None:
            found[request.entity.ref] = ExpectedStart(
                made.expected_start,
                made.waits_for,
                is_reserved=_is_reserved(request.entity, reserved),
            )
    return found


def restore_written_reservations(
    state: SchedulerState, cluster: ClusterObjects, now: float
) -> None:
    """Plan the reservations again that the scheduler has written, and set them in a loaded state.

    Only conditions say which entities have one. Those are before all others of their priority.
    """
    if not (reserved := _reserved_groups(cluster)):
        return
    requests = [
        request._replace(order=request.order._replace(since=float("-inf")))
        for request in _requests_in_order(state, now)
        if _is_reserved(request.entity, reserved)
        and request.policy.reservation.mode != ReservationMode.OFF
    ]
    run_times = state.reservations.run_times
    for _ in run_times.update():
        pass
    pods = frozenset(key for request in requests for key in request.entity.pod_keys)
    planner = ReservationPlanner(state.cache.snapshot(), run_times, now, reserved=pods)
    made = [_finish(planner.plan(request)) for request in requests[:MAX_PLANNED]]
    planner.close()
    state.reservations.restore([one for one in made if one is not None], ())


def _requests_in_order(state: SchedulerState, now: float) -> list[ReservationRequest]:
    """Return the entities that wait, in the order of reservations."""
    requests = []
    for info in state.queue.list_entities():
        entity = state.queue.waiting_entity(info.ref, now)
        if entity is not None:
            # Objects that do not exist yet have waited for no time at all.
            order = ReservationOrder(-info.priority, entity.ready_since or now, info.ref)
            requests.append(ReservationRequest(entity, order, state.profiles.policy(entity)))
    return sorted(requests, key=lambda request: request.order)


def _is_reserved(entity: Entity, reserved: set[Ref]) -> bool:
    return not reserved.isdisjoint({entity.ref, *(group.ref for group in entity.groups)})


def _reserved_groups(cluster: ClusterObjects) -> set[Ref]:
    """Return the groups for which the scheduler has written that nodes are reserved."""
    found = set()
    for group in cluster.groups:
        condition = find_condition(group.status.conditions, RESERVED)
        if isinstance(group, PodGroup) and condition and condition.status == "True":
            found.add(Ref("PodGroup", *group.metadata.key))
    return found


def _finish(steps: Steps[Reservation | None]) -> Reservation | None:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: Reservation | None = end.value
            return made
