"""When the entities that wait are expected to start, for `phalanx queue`, `why` and `what-if`.

The start of each entity is planned with the planner of reservations, in the order of reservations,
each beside those before it, as if every one of them had a reservation. The expected ends of running
pods come from the objects alone: deadlines, annotations, and the run times of pods that succeeded
and still exist. The scheduler may know more of them: the start that it has written in a condition
`Reserved` counts. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from phalanx.api.meta import Key, Ref, find_condition, pod_group_ref
from phalanx.api.scheduling import RESERVED, PodGroup
from phalanx.scheduler.plugins.settings_plugins import ReservationMode
from phalanx.scheduler.policy import DEFAULT_PROFILES, Profiles
from phalanx.scheduler.queue.scheduler_state import ClusterObjects, SchedulerState, load_state
from phalanx.scheduler.reservation.planner import ReservationPlanner
from phalanx.scheduler.reservation.reservation import (
    Reservation,
    ReservationOrder,
    ReservationRequest,
    join_and,
    parse_expected_start,
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
    #: Between which times it starts, if the queue ahead was simulated (`start_forecast.py`). The
    #: latest is None if the end of something that it waits for is unknown.
    earliest: float | None = None
    latest: float | None = None

    def describe(self, now: float) -> str:
        """Say it in a phrase: `reserved; expected in 12 min, when job/a and job/b end`.

        Objects of other namespaces are `job/a in research`; `job/a (not started)` waits itself.
        With a range: `expected in 12 min (5 min to 20 min), when job/a ends`.
        """
        prefix = "reserved; " if self.is_reserved else ""
        verb = "ends" if len(self.waits_for) == 1 else "end"
        awaited = f", when {join_and(self.waits_for)} {verb}" if self.waits_for else ""
        if self.time is None:
            return f"{prefix}unknown{awaited}"
        if self.time <= now:
            return f"{prefix}expected now"
        seconds = describe_seconds(self.time - now)
        return f"{prefix}expected in {seconds}{self._describe_range(now)}{awaited}"

    def _describe_range(self, now: float) -> str:
        if self.earliest is None:
            return ""
        earliest = describe_seconds(max(self.earliest - now, 0))
        if self.latest is None:
            return f" (not before {earliest}, latest unknown)" if self.earliest > now else ""
        latest = describe_seconds(max(self.latest - now, 0))
        return f" ({earliest} to {latest})" if earliest != latest else ""


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
    written = _written_starts(cluster)
    requests = _requests_in_order(state, written, now)
    planner = ReservationPlanner(snapshot, run_times, now, reserved=_reserved_pods(requests))
    found: dict[Ref, ExpectedStart] = {}
    for one in requests[:MAX_PLANNED]:
        made = _finish(planner.plan(one.request))
        if made is not None:
            found[made.ref] = ExpectedStart(
                made.expected_start, made.waits_for, is_reserved=one.is_reserved
            )
    return found


def restore_written_reservations(
    state: SchedulerState, cluster: ClusterObjects, now: float
) -> None:
    """Plan the reservations again that the scheduler has written, and set them in a loaded state.

    Only conditions say which entities have one.
    """
    if not (written := _written_starts(cluster)):
        return
    requests = [
        one
        for one in _requests_in_order(state, written, now)
        if one.is_reserved and one.request.policy.reservation.mode != ReservationMode.OFF
    ]
    run_times = state.reservations.run_times
    for _ in run_times.update():
        pass
    planner = ReservationPlanner(
        state.cache.snapshot(), run_times, now, reserved=_reserved_pods(requests)
    )
    made = [_finish(planner.plan(one.request)) for one in requests[:MAX_PLANNED]]
    planner.close()
    state.reservations.restore([one for one in made if one is not None], ())


class _PlannedEntity(NamedTuple):
    """An entity whose start is planned, and whether the scheduler has reserved nodes for it."""

    request: ReservationRequest
    is_reserved: bool


def _requests_in_order(
    state: SchedulerState, written: Mapping[Ref, float | None], now: float
) -> list[_PlannedEntity]:
    """Return the entities that wait, in the order of reservations.

    Those that have a reservation are before all others of their priority.
    """
    found = []
    for info in state.queue.list_entities():
        entity = state.queue.waiting_entity(info.ref, now)
        if entity is not None:
            refs = (entity.ref, *(one.ref for one in entity.groups))
            starts = [written[ref] for ref in refs if ref in written]
            # Objects that do not exist yet have waited for no time at all.
            since = -inf if starts else entity.ready_since or now
            order = ReservationOrder(-info.priority, since, info.ref)
            policy, start = state.profiles.policy(entity), starts[0] if starts else None
            request = ReservationRequest(entity, order, policy, written_start=start)
            found.append(_PlannedEntity(request, is_reserved=bool(starts)))
    return sorted(found, key=lambda one: one.request.order)


def _reserved_pods(requests: Iterable[_PlannedEntity]) -> frozenset[Key]:
    """Return the pods of reservations: their nominations follow from the plan."""
    entities = (one.request.entity for one in requests if one.is_reserved)
    return frozenset(key for entity in entities for key in entity.pod_keys)


def _written_starts(cluster: ClusterObjects) -> dict[Ref, float | None]:
    """Return the groups for which nodes are reserved, as the scheduler has written it.

    With the expected start, `inf` if that is unknown, None if it must be planned.
    """
    found: dict[Ref, float | None] = {}
    for group in cluster.groups:
        condition = find_condition(group.status.conditions, RESERVED)
        if isinstance(group, PodGroup) and condition and condition.status == "True":
            start = parse_expected_start(condition.reason, condition.message or "")
            found[pod_group_ref(group.metadata.key)] = None if cluster.is_hypothetical else start
    return found


def _finish(steps: Steps[Reservation | None]) -> Reservation | None:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: Reservation | None = end.value
            return made
