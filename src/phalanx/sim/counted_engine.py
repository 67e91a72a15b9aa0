"""CountedEngine: the core engine where it suffices to count free nodes.

Where every pod fills a node and all nodes are equal, the nodes that a job gets do not matter, only
how many are free: the starts follow from counts, without placing pods. That is so for the logs of
parallel machines, in which a job has a number of processors.

    free 3, front needs 5     2 nodes end at 09:20   the front is expected to start at 09:20
    next job: 2 nodes, 10 min, at 09:05              ends before: it starts
    next job: 2 nodes, 60 min, at 09:05              would delay the front: it waits

The rules are those of the scheduler, which places the same jobs in `CoreEngine`: reservations in
the modes `Easy`, `Strict` and `Off`, first come, first served. The tests run both engines on random
workloads and compare every record and sample. `can_count_nodes` says which setups can be counted.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from math import inf

from phalanx.api.resources import node_allocatable, to_amounts
from phalanx.scheduler.reservation.reservation import IMMINENT_SECONDS
from phalanx.sim.queue_engine import QueueEngine, is_first_come_first_served
from phalanx.sim.simulation_setup import SimulationSetup


def can_count_nodes(setup: SimulationSetup) -> bool:
    """Whether the starts of a setup follow from numbers of nodes."""
    jobs, size = setup.workload.jobs, len(setup.nodes)
    are_plain_jobs = all(job.pods <= size and not job.node_labels for job in jobs)
    return are_plain_jobs and is_first_come_first_served(setup) and _pods_fill_nodes(setup)


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


class CountedEngine(QueueEngine):
    """Simulates one setup. `on_progress` is called now and then with the simulated time."""

    _is_counted = True

    def __init__(
        self, setup: SimulationSetup, on_progress: Callable[[float, int], None] | None = None
    ) -> None:
        super().__init__(setup, on_progress)
        self._free_nodes = len(setup.nodes)
        #: The jobs that wait, in the order of the workload.
        self._queue: list[int] = []
        #: When the running jobs are expected to end, with their numbers of nodes; and by job.
        self._expected_ends: list[tuple[float, int]] = []
        self._expected_end: dict[int, float] = {}
        #: When the first waiting job is expected to start, and how many nodes are free then that it
        #: does not need.
        self._reserved_start, self._extra = inf, 0

    def _free(self, number: int) -> None:
        pods, expected = self._jobs[number].pods, self._expected_ends
        self._free_nodes += pods
        del expected[bisect_left(expected, (self._expected_end.pop(number), pods))]

    def _start_jobs(self, now: float, first_new: int, *, has_ended: bool) -> None:
        """Start what may start.

        Without an end, what was refused before is refused again, and the reservation of the first
        waiting job is unchanged.
        """
        queue, known = self._queue, len(self._queue)
        queue += range(first_new, self._arrived)
        first = 0 if has_ended else known
        kept = queue[:first]
        is_strict, has_reservations = self._mode == "Strict", self._mode != "Off"
        for position in range(first, len(queue)):
            number, is_front = queue[position], not kept
            pods = self._jobs[number].pods
            self._decisions += 1
            is_reserved = is_front and has_reservations and position < known
            if is_reserved:
                # It was refused before, so that it has a reservation, which may have come due.
                self._reserve(number, pods, now)
            if is_front or not has_reservations:
                may_start = pods <= self._free_nodes
            else:
                may_start = not is_strict and self._may_backfill(number, pods, now)
            if may_start:
                self._start(number, pods, now)
                continue
            if is_front and has_reservations and not is_reserved:
                self._reserve(number, pods, now)
            kept.append(number)
            if not self._free_nodes or is_strict:
                kept += queue[position + 1 :]
                break
        self._queue = kept

    def _may_backfill(self, number: int, pods: int, now: float) -> bool:
        """Whether a job behind the front may start, and take the nodes that it does not need."""
        if pods > self._free_nodes:
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
        free, start, expected = self._free_nodes, now, self._expected_ends
        if free < pods:
            for end, nodes in expected:
                if free >= pods and end > start:
                    break
                free, start = free + nodes, max(end, now)
        self._reserved_start, self._extra = start, free - pods
        self._recorder.expect_start(number, start)

    def _start(self, number: int, pods: int, now: float) -> None:
        self._free_nodes -= pods
        end = self._expected_end[number] = now + self._run_times[number]
        insort(self._expected_ends, (end, pods))
        self._note_start(number, now)
