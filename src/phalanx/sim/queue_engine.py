"""QueueEngine: the core engines that keep the queue themselves instead of running the scheduler.

Jobs are served first come, first served, and the first waiting job has a reservation. The nodes of
a job follow from the loads of nodes alone, so that no scheduling cycle is needed:

    CountedEngine    every pod fills a node of equal ones: free nodes are counted
    PlacedEngine     pods of any requests: the scheduler's filters and scores select the nodes

At one instant jobs end first, then jobs arrive, and then waiting jobs start in their order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf

from phalanx.api.batch import EXPECTED_RUN_TIME_ANNOTATION, parse_run_time
from phalanx.scheduler.plugins.settings_plugins import ReservationMode
from phalanx.scheduler.policy import SchedulerPolicy
from phalanx.sim.simulation_recorder import SimulationRecorder
from phalanx.sim.simulation_setup import SimulationEngine, SimulationResult, SimulationSetup
from phalanx.sim.workloads.workload import MILLI_GPU

_MODES = (ReservationMode.EASY, ReservationMode.STRICT, ReservationMode.OFF)
#: Whole seconds below this are read from an annotation as they are.
_MAX_WHOLE_SECONDS = 1e9


class QueueEngine(ABC):
    """Simulates one setup. `on_progress` is called now and then with the simulated time."""

    #: Whether free nodes are counted.
    _is_counted = False

    def __init__(
        self, setup: SimulationSetup, on_progress: Callable[[float, int], None] | None = None
    ) -> None:
        self._setup, self.on_progress = setup, on_progress
        self._jobs, self._recorder = setup.workload.jobs, SimulationRecorder(setup)
        self._mode = single_policy(setup).reservation.mode
        self._run_times = [declared_run_time(job.estimate) for job in self._jobs]
        #: When the running jobs end, with their numbers.
        self._ends: list[tuple[float, int]] = []
        self._arrived = self._decisions = 0
        self._now, self._is_stopped = 0.0, False

    def stop(self) -> None:
        """End the simulation after the present instant; the result is partial."""
        self._is_stopped = True

    def run(self) -> SimulationResult:
        """Simulate to the end, the horizon, or until stopped."""
        jobs, recorder, horizon = self._jobs, self._recorder, self._setup.horizon
        for node in self._setup.nodes:
            recorder.change_node(node.metadata.name, is_present=True)
        while not self._is_stopped:
            now = self._ends[0][0] if self._ends else inf
            if self._arrived < len(jobs):
                now = min(now, jobs[self._arrived].submit)
            if now == inf:
                break
            now = self._next_time(now)
            if now > horizon:
                self._now = horizon
                break
            self._now = now
            has_ended, first_new = self._end_jobs(now), self._arrived
            while self._arrived < len(jobs) and jobs[self._arrived].submit <= now:
                recorder.submit(self._arrived)
                self._arrived += 1
            self._start_jobs(now, first_new, has_ended=has_ended)
            recorder.sample(now)
            if self.on_progress is not None:
                self.on_progress(now, recorder.finished_jobs)
        return recorder.result(
            SimulationEngine.CORE,
            self._now,
            self._decisions,
            is_partial=self._is_stopped,
            is_counted=self._is_counted,
        )

    def _end_jobs(self, now: float) -> bool:
        """Let jobs end; returns whether one has ended."""
        ends, has_ended = self._ends, False
        while ends and ends[0][0] <= now:
            _, number = heappop(ends)
            self._free(number)
            self._recorder.end(number, now)
            has_ended = True
        return has_ended

    def _note_start(self, number: int, now: float) -> None:
        """A job has got its nodes: it runs."""
        self._recorder.start(number, now)
        heappush(self._ends, (now + self._jobs[number].run_time, number))

    def _next_time(self, event: float) -> float:
        """Return when something happens next; a job ends or arrives at `event`."""
        return event

    @abstractmethod
    def _free(self, number: int) -> None:
        """A job has ended: its nodes become free."""

    @abstractmethod
    def _start_jobs(self, now: float, first_new: int, *, has_ended: bool) -> None:
        """Start the waiting jobs that may start; those from `first_new` on have just arrived."""


def single_policy(setup: SimulationSetup) -> SchedulerPolicy:
    """Return the policy of a setup that has one."""
    (policy,) = setup.profiles.policies.values()
    return policy


def is_first_come_first_served(setup: SimulationSetup, *, overdue: float = 0.0) -> bool:
    """Whether jobs are served in the order of arrival, and declare how long they run at most.

    They may run longer by `overdue` seconds.
    """
    profiles, jobs = setup.profiles, setup.workload.jobs
    if len(profiles.policies) != 1 or not (profiles.groups and profiles.keeps_arrival_order):
        return False
    policy = single_policy(setup)
    is_known_policy = (
        policy.has_default_filters
        and policy.reservation.mode in _MODES
        and policy.reservation.delay_seconds == 0
    )
    return (
        is_known_policy
        and not setup.faults
        and all(
            not (job.topology or MILLI_GPU in job.requests)
            and job.priority == jobs[0].priority
            and (declared := declared_run_time(job.estimate)) > 0
            and job.run_time <= declared + overdue
            for job in jobs
        )
    )


def declared_run_time(estimate: float | None) -> float:
    """Return the run time that a job declares, as the scheduler reads it; 0 if it declares none."""
    if estimate is None:
        return 0.0
    if 0 < estimate < _MAX_WHOLE_SECONDS and estimate % 1 == 0:
        return estimate
    return parse_run_time({EXPECTED_RUN_TIME_ANNOTATION: f"{estimate:.6f}s"}) or 0.0
