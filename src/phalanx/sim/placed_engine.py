"""PlacedEngine: the core engine where the nodes of every job follow from the loads of nodes.

That is so for jobs of few shapes that request resources and labels of nodes, declare how long they
run, and have one priority: only their shape, their size and their declared end matter. Jobs get
the nodes that the scheduler would choose, by its own filters and scores (`DirectPlacement`), and
the first waiting job has the reservation that it would have (`DirectReservation`).

    job 1 waits for 4 nodes, expected start 10:00
    job 2: 1 GPU, 09:30 to 09:50       ends before: it may use what is kept for job 1
    job 3: 1 GPU, 09:30 to 11:00       may use a GPU that is not kept
    a job of 2 GPUs ends               the waiting jobs whose pods fit now are tried in order

Waiting jobs are tried again when a job has ended, or when less is kept than before. The tests run
this engine and `CoreEngine` on random workloads and compare the nodes of all pods, and every figure
but the number of attempts.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from math import floor, inf

from phalanx.scheduler.cluster.snapshot import NodeClass
from phalanx.scheduler.plugins.settings_plugins import ReservationMode
from phalanx.scheduler.reservation.pod_ends import OVERDUE_SECONDS
from phalanx.sim.direct_placement import DirectPlacement, ShapeRanking, has_few_shapes
from phalanx.sim.direct_reservation import DirectReservation, RunningJob, StartEstimate
from phalanx.sim.queue_engine import QueueEngine, is_first_come_first_served, single_policy
from phalanx.sim.simulation_setup import MIN_STEP, SimulationSetup, find_large_jobs


def can_place_all(setup: SimulationSetup) -> bool:
    """Whether the nodes of all jobs of a setup follow from the loads of nodes."""
    if not (
        has_few_shapes(setup.workload.jobs)
        and is_first_come_first_served(setup, overdue=OVERDUE_SECONDS)
        and not find_large_jobs(setup)
    ):
        return False
    placement = DirectPlacement(setup.nodes, single_policy(setup))
    return all(placement.ranking_of(job).is_direct for job in setup.workload.jobs)


class PlacedEngine(QueueEngine):
    """Simulates one setup. `on_progress` is called now and then with the simulated time."""

    def __init__(
        self, setup: SimulationSetup, on_progress: Callable[[float, int], None] | None = None
    ) -> None:
        super().__init__(setup, on_progress)
        self._placement = DirectPlacement(setup.nodes, single_policy(setup))
        self._rankings = [self._placement.ranking_of(job) for job in self._jobs]
        self._running: dict[int, RunningJob] = {}
        #: The running jobs by their expected ends.
        self._expected_ends: list[tuple[float, int]] = []
        #: The waiting jobs in order, and those of each shape.
        self._queue: dict[int, None] = {}
        self._queue_of: dict[ShapeRanking, dict[int, None]] = {}
        #: When the first waiting job can start, its reservation, when that is reviewed, whether the
        #: job is nominated for its nodes, and which classes these have for other jobs.
        self._estimate: StartEstimate | None = None
        self._reservation: DirectReservation | None = None
        self._review_time, self._is_nominated = inf, False
        self._held: dict[int, NodeClass] | None = None

    # ---- time ----------------------------------------------------------------------------------

    def _next_time(self, event: float) -> float:
        return min(event, max(self._review_time, floor(self._now) + MIN_STEP))

    def _free(self, number: int) -> None:
        running = self._running.pop(number)
        self._placement.free(running.ranking, running.rows)
        del self._expected_ends[bisect_left(self._expected_ends, (running.end, number))]
        self._held = None
        if self._estimate is not None:
            self._estimate.remove(running, self._now)

    def _start_jobs(self, now: float, first_new: int, *, has_ended: bool) -> None:
        """Start the waiting jobs that may start, and then the new ones that may."""
        is_changed = has_ended
        if self._reservation is not None and (has_ended or now >= self._review_time):
            is_changed |= self._plan(now)
        if is_changed and self._queue:
            self._start_waiting(now)
        for number in range(first_new, self._arrived):
            self._decisions += 1
            if self._try_start(number, now):
                if self._reservation is not None and self._plan(now):
                    self._start_waiting(now)
            else:
                self._enqueue(number, now)

    # ---- the queue -----------------------------------------------------------------------------

    def _enqueue(self, number: int, now: float) -> None:
        """A job was refused for the first time: it waits."""
        self._queue[number] = None
        self._queue_of.setdefault(self._rankings[number], {})[number] = None
        if self._reservation is not None:
            self._nominate(now)
        elif self._mode != ReservationMode.OFF:
            self._plan(now)

    def _start_waiting(self, now: float) -> None:
        """Start waiting jobs, in order, until none may start."""
        while (number := self._find_startable(now)) is not None:
            self._decisions += 1
            is_front, ranking = number == next(iter(self._queue)), self._rankings[number]
            del self._queue[number], self._queue_of[ranking][number]
            if not self._queue_of[ranking]:
                del self._queue_of[ranking]
            if is_front:
                self._estimate = self._reservation = None
                self._review_time, self._is_nominated = inf, False
            has_started = self._try_start(number, now)
            assert has_started
            if self._queue and self._mode != ReservationMode.OFF:
                self._plan(now)

    def _find_startable(self, now: float) -> int | None:
        """Return the first waiting job that may start; None if there is none."""
        reservation, first = self._reservation, None
        if reservation is not None:
            front = next(iter(self._queue))
            if self._placement.capacity(self._rankings[front]) >= self._jobs[front].pods:
                return front
            if self._mode == ReservationMode.STRICT:
                return None
        deadline = self._backfill_deadline
        for ranking, queue in self._queue_of.items():
            fits, fits_beside = self._count_room(ranking)
            if not fits:
                continue
            for number in queue:
                if first is not None and number > first:
                    break
                pods = self._jobs[number].pods
                ends_in_time = now + self._run_times[number] <= deadline
                if pods <= (fits if ends_in_time else fits_beside):
                    first = number
                    break
        return first

    def _count_room(self, ranking: ShapeRanking) -> tuple[int, int]:
        """Count the pods of a shape that fit, and those that fit beside what is kept."""
        fits = self._placement.capacity(ranking)
        if not fits or self._reservation is None:
            return fits, fits
        return fits, self._placement.capacity_beside(ranking, self._held_classes())

    def _try_start(self, number: int, now: float) -> bool:
        """Start a job on the best nodes that are not kept from it; whether it could start."""
        end = now + self._run_times[number]
        rows = self._assign(self._rankings[number], self._jobs[number].pods, end)
        if rows is None:
            return False
        running = self._running[number] = RunningJob(self._rankings[number], rows, end)
        insort(self._expected_ends, (end, number))
        self._held = None
        if self._estimate is not None:
            self._estimate.add(running)
        self._note_start(number, now)
        return True

    def _assign(self, ranking: ShapeRanking, pods: int, end: float) -> list[int] | None:
        """Assign the pods of a job that ends at a time to nodes; None if it may not start."""
        placement, reservation = self._placement, self._reservation
        if reservation is None:
            return placement.assign(ranking, pods)
        if self._mode == ReservationMode.STRICT:
            return None
        if not self._is_nominated:
            rows = placement.assign(ranking, pods)
            if rows is None or end <= reservation.start:
                return rows
            if not reservation.conflicts(placement, ranking, rows):
                return rows
            placement.free(ranking, rows)
        return placement.assign_beside(ranking, pods, self._held_classes())

    # ---- the reservation -----------------------------------------------------------------------

    @property
    def _backfill_deadline(self) -> float:
        """Until when a job must end that uses what is kept; `-inf`: no job may."""
        reservation = self._reservation
        return -inf if reservation is None or self._is_nominated else reservation.start

    def _plan(self, now: float) -> bool:
        """Plan the reservation of the first waiting job; whether it has changed."""
        front, before = next(iter(self._queue)), (self._reservation, self._is_nominated)
        estimate = self._estimate
        if estimate is None or not estimate.is_current(now):
            ranking, pods = self._rankings[front], self._jobs[front].pods
            estimate = self._estimate = StartEstimate(self._placement, ranking, pods, now=now)
            estimate.follow((self._running[number] for _, number in self._expected_ends), now)
        self._reservation = estimate.reserve(now)
        self._recorder.expect_start(front, self._reservation.start)
        self._review_time = self._reservation.review_time(now)
        self._nominate(now)
        return before != (self._reservation, self._is_nominated)

    def _nominate(self, now: float) -> None:
        """Nominate the first waiting job for its nodes if it is about to start."""
        assert self._reservation is not None
        self._is_nominated, self._held = self._reservation.is_imminent(now), None

    def _held_classes(self) -> dict[int, NodeClass]:
        """Return the classes that the reserved nodes have for other jobs."""
        if self._held is None:
            assert self._reservation is not None
            self._held = self._reservation.held_classes(
                self._placement, is_nominated=self._is_nominated
            )
        return self._held
