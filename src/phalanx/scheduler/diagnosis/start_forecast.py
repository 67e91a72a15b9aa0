"""Between which times the entities that wait will start: a simulation of the queue ahead.

    objects ─▶ three states ─▶ pods end, entities are placed, pods end … ─▶ earliest, latest

Three simulations run the scheduler's own queue and cycle from now on: pods end as early as they
ever did, as expected, and as late as they may. An end is known from, in this order,

    declared   the deadline or expected run time; a deadline is the latest end
    observed   the shortest, the median and the longest run time of earlier pods of the same owner
               or template
    neither    it may end at any moment, or never: the latest start is unknown

Nothing arrives later, back-off is left out, and victims of a preemption are gone at once and do not
return. The work is bounded by a number of cycles; entities that are not reached have no range.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import IntEnum
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from msgspec.structs import replace as but

from phalanx.api.core import Pod, PodStatus
from phalanx.api.meta import Key, Ref, parse_timestamp, timestamp
from phalanx.api.other_kinds import DeviceClaim, ResourceClaimStatus
from phalanx.scheduler.decision import ClaimReservation, Placed, Preempting
from phalanx.scheduler.diagnosis.expected_starts import (
    MAX_PLANNED,
    ExpectedStart,
    restore_written_reservations,
)
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.policy import DEFAULT_PROFILES, BackOff, Profiles
from phalanx.scheduler.queue.decision_log import PodObserved, ResourceClaimObserved
from phalanx.scheduler.queue.scheduler_state import ClusterObjects, load_state

#: Seconds that are simulated at most.
HORIZON_SECONDS = 30 * 86400.0
#: How many entities take part in a simulation: those behind can only fill gaps.
MAX_SIMULATED = 2 * MAX_PLANNED
#: Cycles of one simulation: so many in total over all nodes, but at least and at most so many.
_NODES_TRIED, _MIN_CYCLES, _MAX_CYCLES = 500_000, 200, 2000
#: Longer than any simulation: no refused entity is attempted again because of time alone.
_NO_RETRIES = BackOff(1e15, 1e15)
_MIN_STEP = 1.0
#: After so many plannings of reservations in a row that let no entity be attempted, only the end
#: of a pod changes anything. The planner may ask for another one for ever.
_MAX_IDLE_PLANNINGS = 2 * MAX_SIMULATED


class EndAssumption(IntEnum):
    """Which end of its range a pod has in a simulation; an index of `EndRange`."""

    EARLIEST = 0
    EXPECTED = 1
    LATEST = 2


class StartRange(NamedTuple):
    """Between which times an entity starts, in seconds since the epoch.

    `earliest` is None if the simulation did not reach it, `latest` if the end of something that it
    waits for is unknown.
    """

    earliest: float | None
    latest: float | None


def forecast_ranges(
    cluster: ClusterObjects, profiles: Profiles = DEFAULT_PROFILES, now: float = 0.0
) -> dict[Ref, StartRange]:
    """Simulate the queue ahead; returns the ranges of the first entities that wait."""
    runs = [_StartSimulation(cluster, profiles, now, assumption=one).run() for one in EndAssumption]
    found: dict[Ref, StartRange] = {}
    for ref in dict.fromkeys(ref for run in runs for ref in run):
        times = [run.get(ref) for run in runs]
        known = [time for time in times if time is not None]
        is_certain = None not in times[EndAssumption.EXPECTED :]
        # A pod that ends earlier may let another entity overtake: each run counts for both ends.
        found[ref] = StartRange(min(known), max(known) if is_certain else None)
    return found


def add_ranges(
    starts: dict[Ref, ExpectedStart],
    cluster: ClusterObjects,
    profiles: Profiles = DEFAULT_PROFILES,
    *,
    now: float = 0.0,
) -> dict[Ref, ExpectedStart]:
    """Return expected starts with their ranges, which contain them."""
    if not starts:
        return starts
    ranges = forecast_ranges(cluster, profiles, now)
    return {
        ref: _with_range(start, ranges[ref]) if ref in ranges else start
        for ref, start in starts.items()
    }


def _with_range(start: ExpectedStart, found: StartRange) -> ExpectedStart:
    earliest, latest, time = *found, start.time
    if time is None:
        return replace(start, earliest=earliest, latest=None)
    earliest = time if earliest is None else min(earliest, time)
    return replace(start, earliest=earliest, latest=None if latest is None else max(latest, time))


class _StartSimulation:
    """One simulation of the queue ahead."""

    def __init__(
        self, cluster: ClusterObjects, profiles: Profiles, now: float, *, assumption: EndAssumption
    ) -> None:
        self._state = load_state(cluster, replace(profiles, back_off=_NO_RETRIES))
        self._run_times = self._state.reservations.run_times
        self._now, self._begin, self._assumption = now, now, assumption
        restore_written_reservations(self._state, cluster, now)
        for _ in self._run_times.update():
            pass
        self._ends: list[tuple[float, Key]] = []
        for pod in cluster.pods:
            if pod.occupied_node:
                text = pod.status.start_time
                self._expect_end(pod, parse_timestamp(text) if text else now)
        #: The uids of the pods that run, and the claims that are reserved for them.
        self._uids = {pod.metadata.key: pod.metadata.uid for pod in cluster.pods}
        self._claims: dict[str, list[Key]] = {}
        for claim in cluster.devices:
            if isinstance(claim, DeviceClaim):
                for consumer in claim.status.reserved_for:
                    self._claims.setdefault(consumer.uid, []).append(claim.metadata.key)
        nodes = sum(1 for _ in cluster.nodes)
        self._cycles = min(max(_NODES_TRIED // max(nodes, 1), _MIN_CYCLES), _MAX_CYCLES)
        listed = [info.ref for info in self._state.queue.list_entities() if not info.unready]
        for ref in listed[MAX_SIMULATED:]:
            behind = self._state.queue.waiting_entity(ref, now)
            for key in behind.pod_keys if behind is not None else ():
                self._state.observe(PodObserved(now, key, None))
        #: The entities of interest that have not started.
        self._wanted = dict.fromkeys(listed[:MAX_PLANNED])
        self._starts: dict[Ref, float] = {}
        self._idle_plannings = 0

    def run(self) -> dict[Ref, float]:
        """Return when entities start; those that do not are left out."""
        while True:
            self._run_cycles()
            following = self._next_time()
            if not self._wanted or self._cycles <= 0 or following is None:
                return self._starts
            if following > self._begin + HORIZON_SECONDS:
                return self._starts
            self._now = following
            self._idle_plannings += 1
            while self._ends and self._ends[0][0] <= following:
                _, key = heappop(self._ends)
                self._idle_plannings = 0
                self._end_pod(key)

    def _next_time(self) -> float | None:
        times = [self._ends[0][0]] if self._ends else []
        due = [self._state.queue.next_backoff_end()]
        if self._idle_plannings < _MAX_IDLE_PLANNINGS:
            due.append(self._state.reservations.next_time())
        times += [max(time, self._now + _MIN_STEP) for time in due if time is not None]
        return min(times, default=None)

    def _run_cycles(self) -> None:
        state, now = self._state, self._now
        while self._cycles > 0 and self._wanted:
            entity = state.pop_after_planning(now)
            if entity is None:
                return
            self._cycles -= 1
            self._idle_plannings = 0
            decision = state.decide(entity)
            if not state.commit(entity, decision, now):
                continue
            if isinstance(decision, Placed):
                self._start(entity, decision)
            elif isinstance(decision, Preempting):
                for victim in decision.victims:
                    self._end_pod(victim.pod)

    def _end_pod(self, key: Key) -> None:
        """Let a pod end; claims that nothing else uses are deallocated, as by their controller."""
        self._state.observe(PodObserved(self._now, key, None))
        uid = self._uids.get(key, "")
        for claim in self._claims.pop(uid, ()):
            self._reserve(claim, partial(_without_consumer, uid))

    def _reserve(
        self, key: Key, change: Callable[[ResourceClaimStatus], ResourceClaimStatus]
    ) -> None:
        """Change what a claim is reserved for."""
        found = self._state.cache.snapshot().devices.claims.get(key)
        if found is not None:
            claim = but(found.claim, status=change(found.claim.status))
            self._state.observe(ResourceClaimObserved(self._now, key, claim))

    def _start(self, entity: Entity, decision: Placed) -> None:
        if entity.ref in self._wanted:
            self._starts[entity.ref] = self._now
            del self._wanted[entity.ref]
        pods = {member.pod.metadata.key: member.pod for member in entity.members}
        status = PodStatus(phase="Running", start_time=timestamp(self._now))
        for key, _, node in decision.bindings:
            pod = pods[key]
            pod = but(pod, spec=but(pod.spec, node_name=node), status=status)
            self._state.observe(PodObserved(self._now, key, pod))
            self._expect_end(pod, self._now)
        for claim in decision.claims:
            self._reserve(claim.claim, partial(_with_consumer, claim))
            self._claims.setdefault(claim.consumer.uid, []).append(claim.claim)

    def _expect_end(self, pod: Pod, since: float) -> None:
        found = self._run_times.end_range(pod, since, self._now)
        end = None if found is None else found[self._assumption]
        if end is not None and end < inf:
            heappush(self._ends, (max(end, self._now), pod.metadata.key))


def _with_consumer(claim: ClaimReservation, status: ResourceClaimStatus) -> ResourceClaimStatus:
    """Return the status of a claim that is reserved for one more consumer."""
    allocation = status.allocation if claim.allocation is None else claim.allocation
    consumers = dict.fromkeys((*status.reserved_for, claim.consumer))
    return but(status, allocation=allocation, reserved_for=tuple(consumers))


def _without_consumer(uid: str, status: ResourceClaimStatus) -> ResourceClaimStatus:
    """Return the status of a claim without a consumer; without any it has no devices."""
    consumers = tuple(one for one in status.reserved_for if one.uid != uid)
    return but(status, reserved_for=consumers, allocation=status.allocation if consumers else None)
