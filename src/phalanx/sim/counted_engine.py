"""CountedEngine: the core engine where it suffices to count free nodes.

Where every pod fills a node and all nodes are equal, the nodes that a job gets do not matter, only
how many are free: the starts follow from counts, without placing pods. That is so for the logs of
parallel machines, in which a job has a number of processors.

    free 3, front needs 5     2 nodes end at 09:20   the front is expected to start at 09:20
    next job: 2 nodes, 10 min, at 09:05              ends before: it starts
    next job: 2 nodes, 60 min, at 09:05              would delay the front: it waits

The rules are those of the scheduler, which places the same jobs in `CoreEngine`: reservations in
the modes `Easy`, `Strict` and `Off`, first come, first served. The tests run both engines on random
workloads and compare every record and sample. `applies_to` says which setups can be counted; most
others are simulated by `DirectEngine`, and those with shares of GPUs by `CoreEngine`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf

from phalanx.api.batch import EXPECTED_RUN_TIME_ANNOTATION, parse_run_time
from phalanx.api.resources import node_allocatable, to_amounts
from phalanx.scheduler.plugins.settings_plugins import ReservationMode
from phalanx.scheduler.reservation.reservation import IMMINENT_SECONDS
from phalanx.sim.core_engine import CoreEngine
from phalanx.sim.direct_engine import DirectEngine, can_place_directly
from phalanx.sim.simulation_recorder import SimulationRecorder
from phalanx.sim.simulation_setup import SimulationEngine, SimulationResult, SimulationSetup
from phalanx.sim.workloads.workload import MILLI_GPU

_MODES = (ReservationMode.EASY, ReservationMode.STRICT, ReservationMode.OFF)


def build_core_engine(setup: SimulationSetup) -> CoreEngine | CountedEngine:
    """Return the fastest engine of those that simulate the queue and the cycle of a setup."""
    if applies_to(setup):
        return CountedEngine(setup)
    return DirectEngine(setup) if can_place_directly(setup) else CoreEngine(setup)


def applies_to(setup: SimulationSetup) -> bool:
    """Whether the starts of a setup follow from numbers of nodes."""
    profiles, jobs = setup.profiles, setup.workload.jobs
    policies = list(profiles.policies.values())
    if len(policies) != 1 or not (profiles.groups and profiles.keeps_arrival_order):
        return False
    policy = policies[0]
    is_known_policy = (
        policy.has_default_filters
        and policy.reservation.mode in _MODES
        and policy.reservation.delay_seconds == 0
    )
    are_plain_jobs = all(
        job.pods <= len(setup.nodes)
        and not (job.node_labels or job.topology or MILLI_GPU in job.requests)
        and job.priority == jobs[0].priority
        and _declared_run_time(job.estimate) >= job.run_time
        for job in jobs
    )
    return is_known_policy and are_plain_jobs and not setup.faults and _pods_fill_nodes(setup)


def _pods_fill_nodes(setup: SimulationSetup) -> bool:
    """Whether nodes are equal, and each pod fits on an empty node and on no other."""
    rooms = {tuple(sorted(node_allocatable(node).items())) for node in setup.nodes}
    has_special_nodes = any(node.spec.taints or node.spec.unschedulable for node in setup.nodes)
    if len(rooms) != 1 or has_special_nodes:
        return False
    room = dict(rooms.pop())
    distinct = {tuple(job.requests.items()) for job in setup.workload.jobs}
    requests = [{**to_amounts(dict(one)), "pods": 1} for one in distinct]
    fits = all(amount <= room.get(name, 0) for one in requests for name, amount in one.items())
    return fits and any(
        all(2 * one.get(name, 0) > amount for one in requests) for name, amount in room.items()
    )


def _declared_run_time(estimate: float | None) -> float:
    """Return the run time that a job declares, as the scheduler reads it; 0 if it declares none."""
    if estimate is None:
        return 0.0
    return parse_run_time({EXPECTED_RUN_TIME_ANNOTATION: f"{estimate:.6f}s"}) or 0.0


class CountedEngine:
    """Simulates one setup. `on_progress` is called now and then with the simulated time."""

    def __init__(
        self, setup: SimulationSetup, on_progress: Callable[[float, int], None] | None = None
    ) -> None:
        self._setup, self.on_progress = setup, on_progress
        self._recorder = SimulationRecorder(setup)
        (policy,) = setup.profiles.policies.values()
        self._mode = policy.reservation.mode
        self._run_times = [_declared_run_time(job.estimate) for job in setup.workload.jobs]
        self._free = len(setup.nodes)
        #: The jobs that wait, in the order of the workload.
        self._queue: list[int] = []
        #: When the running jobs end, and when they are expected to, with their numbers of nodes.
        self._ends: list[tuple[float, int]] = []
        self._expected_ends: list[tuple[float, int]] = []
        #: The expected end of each running job.
        self._expected_end: dict[int, float] = {}
        #: When the first waiting job is expected to start, and how many nodes are free then that it
        #: does not need.
        self._reserved_start, self._extra = inf, 0
        self._arrived = self._decisions = 0
        self._now, self._is_stopped = 0.0, False

    def stop(self) -> None:
        """End the simulation after the present instant; the result is partial."""
        self._is_stopped = True

    def run(self) -> SimulationResult:
        """Simulate to the end, the horizon, or until stopped."""
        jobs, recorder, horizon = self._setup.workload.jobs, self._recorder, self._setup.horizon
        for node in self._setup.nodes:
            recorder.change_node(node.metadata.name, is_present=True)
        while not self._is_stopped:
            now = self._ends[0][0] if self._ends else inf
            if self._arrived < len(jobs):
                now = min(now, jobs[self._arrived].submit)
            if now == inf:
                break
            if now > horizon:
                self._now = horizon
                break
            self._now = now
            has_ended = self._end_jobs(now)
            first_new = len(self._queue)
            while self._arrived < len(jobs) and jobs[self._arrived].submit <= now:
                recorder.submit(self._arrived)
                self._queue.append(self._arrived)
                self._arrived += 1
            # Without an end, what was refused before is refused again.
            self._start_jobs(now, 0 if has_ended else first_new, first_new)
            recorder.sample(now)
            if self.on_progress is not None:
                self.on_progress(now, recorder.finished_jobs)
        return recorder.result(
            SimulationEngine.CORE,
            self._now,
            self._decisions,
            is_partial=self._is_stopped,
            is_counted=True,
        )

    def _end_jobs(self, now: float) -> bool:
        """Let jobs end; returns whether one has ended."""
        ends, expected, has_ended = self._ends, self._expected_ends, False
        while ends and ends[0][0] <= now:
            _, number = heappop(ends)
            pods = self._setup.workload.jobs[number].pods
            self._free += pods
            del expected[bisect_left(expected, (self._expected_end.pop(number), pods))]
            self._recorder.end(number, now)
            has_ended = True
        return has_ended

    def _start_jobs(self, now: float, first: int, first_new: int) -> None:
        """Start what may start of the waiting jobs, from a position of the queue on.

        The jobs before the position wait, and the reservation of the front is unchanged.
        """
        jobs, queue, kept = self._setup.workload.jobs, self._queue, self._queue[:first]
        is_strict, has_reservations = self._mode == "Strict", self._mode != "Off"
        for position in range(first, len(queue)):
            number, is_front = queue[position], not kept
            pods = jobs[number].pods
            self._decisions += 1
            is_reserved = is_front and has_reservations and position < first_new
            if is_reserved:
                # It was refused before, so that it has a reservation, which may have come due.
                self._reserve(number, pods, now)
            if is_front or not has_reservations:
                may_start = pods <= self._free
            else:
                may_start = not is_strict and self._may_backfill(number, pods, now)
            if may_start:
                self._start(number, pods, now)
                continue
            if is_front and has_reservations and not is_reserved:
                self._reserve(number, pods, now)
            kept.append(number)
            if not self._free or is_strict:
                kept += queue[position + 1 :]
                break
        self._queue = kept

    def _may_backfill(self, number: int, pods: int, now: float) -> bool:
        """Whether a job behind the front may start, and take the nodes that it does not need."""
        if pods > self._free:
            return False
        start = self._reserved_start
        # The nodes of a job that is about to start are nominated: no other job gets them.
        is_imminent = start <= now + IMMINENT_SECONDS
        if now + self._run_times[number] <= start and not is_imminent:
            return True
        if pods > self._extra:
            return False
        self._extra -= pods
        return True

    def _reserve(self, number: int, pods: int, now: float) -> None:
        """Expect the front to start when enough nodes are free by the expected ends."""
        free, start, expected = self._free, now, self._expected_ends
        if free < pods:
            for end, nodes in expected:
                if free >= pods and end > start:
                    break
                free, start = free + nodes, max(end, now)
        self._reserved_start, self._extra = start, free - pods
        self._recorder.expect_start(number, start)

    def _start(self, number: int, pods: int, now: float) -> None:
        self._free -= pods
        self._recorder.start(number, now)
        end = self._expected_end[number] = now + self._run_times[number]
        insort(self._expected_ends, (end, pods))
        heappush(self._ends, (now + self._setup.workload.jobs[number].run_time, number))
