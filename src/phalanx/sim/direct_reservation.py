"""DirectReservation: the nodes that are kept for the first waiting job, from the loads of nodes.

    10 GPUs free of n1 to n4, the job needs 4 nodes of 8     its pods fit 0 times
    09:10  a job of 3 GPUs on n1 ends                        1 time
    09:40  a job of 8 GPUs on n2 and n3 ends                 3 times
    10:00  a job of 3 GPUs on n4 ends                        4 times: expected start 10:00

`StartEstimate` follows the expected ends of running jobs in their order until enough pods fit. The
start stays while jobs end as expected and others start beside the reservation: then only the loads
of their nodes change.

The nodes that become free last are taken, as `ReservationPlanner` does it. On each the reservation
keeps what the job needs and what the pods that end in time do not release. When the start is
imminent the job is nominated for its nodes: then its pods count as placed there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from phalanx.scheduler.cluster.snapshot import NodeClass
from phalanx.scheduler.reservation.reservation import IMMINENT_SECONDS
from phalanx.scheduler.reservation.tracker import next_review_time
from phalanx.sim.direct_placement import DirectPlacement, ShapeRanking


class RunningJob(NamedTuple):
    """A job that runs: its shape, the row of the node of each pod, and its expected end."""

    ranking: ShapeRanking
    rows: Sequence[int]
    end: float


class DirectReservation(NamedTuple):
    """What is kept for a job, expected to start at a time."""

    ranking: ShapeRanking
    start: float
    #: How many of its pods each node is for, by row, and what is kept there, by column.
    pods: Mapping[int, int]
    kept: Mapping[int, tuple[tuple[int, int], ...]]

    def is_imminent(self, now: float) -> bool:
        """Whether the job is about to start."""
        return self.start <= now + IMMINENT_SECONDS

    def review_time(self, now: float) -> float:
        """Return when it must be planned again even if nothing happens."""
        time = self.start - (0 if self.is_imminent(now) else IMMINENT_SECONDS)
        return max(time, next_review_time(now))

    def held_classes(
        self, placement: DirectPlacement, *, is_nominated: bool
    ) -> dict[int, NodeClass]:
        """Return the classes that its nodes have for other jobs."""
        if not is_nominated:
            return {
                row: placement.with_requested(row, amounts)
                for row, amounts in self.kept.items()
                if amounts
            }
        found, after = dict[int, NodeClass](), self.ranking.scores.after_placement
        for row, count in self.pods.items():
            found[row] = placement.classes[row]
            for _ in range(count):
                found[row], _ = after[found[row]]
        return found

    def conflicts(
        self, placement: DirectPlacement, ranking: ShapeRanking, rows: Iterable[int]
    ) -> bool:
        """Whether pods on these nodes, which count already, use what is kept."""
        columns = {column for column, _ in ranking.amounts}
        for row in self.kept.keys() & set(rows):
            node_class = placement.classes[row]
            for column, amount in self.kept[row]:
                free = node_class.allocatable[column] - node_class.requested[column]
                if column in columns and free < amount:
                    return True
        return False


class StartEstimate:
    """When a waiting job can start, and the loads of nodes then.

    It fits when all running jobs have ended. The estimate holds while `is_current`.
    """

    def __init__(
        self, placement: DirectPlacement, ranking: ShapeRanking, pods: int, *, now: float
    ) -> None:
        self._placement, self._ranking, self._pods = placement, ranking, pods
        self.start = now
        #: The nodes on which pods end until the start: their classes then, when the last pod is
        #: expected to end, and how many do.
        self._classes: dict[int, NodeClass] = {}
        self._last_ends: dict[int, float] = {}
        self._ending = Counter[int]()
        self._has_ended_early = False

    def follow(self, ends: Iterable[RunningJob], now: float) -> None:
        """Find the start; `ends` are the running jobs in the order of their expected ends."""
        total = self._placement.capacity(self._ranking)
        if total >= self._pods:
            return
        ranking, later, last_ends = self._ranking, self._classes, self._last_ends
        is_allowed, count_on, classes = (
            ranking.is_allowed,
            ranking.capacity_of,
            self._placement.classes,
        )
        for running in ends:
            # A job that runs longer than it declared is expected to end now.
            end = max(running.end, now)
            if total >= self._pods and end > self.start:
                break
            self.start, freed = end, running.ranking.after_removal
            for row in running.rows:
                was = later[row] if row in later else classes[row]
                after = later[row] = freed[was]
                last_ends[row] = end
                if is_allowed[row]:
                    total += count_on[after] - count_on[was]
            self._ending.update(running.rows)
        assert total >= self._pods, "a job waits that fits on no empty nodes"

    def is_current(self, now: float) -> bool:
        """Whether nothing has happened that may change the start."""
        return self.start >= now and not self._has_ended_early

    def add(self, running: RunningJob) -> None:
        """A job has started and leaves the room of this one."""
        rows, later, classes = running.rows, self._classes, self._placement.classes
        if running.end > self.start:
            placed = running.ranking.scores.after_placement
            for row in rows:
                if row in later:
                    later[row], _ = placed[later[row]]
            return
        freed, new = running.ranking.after_removal, {row for row in rows if row not in later}
        for row in rows:
            if row in new:
                later[row] = freed[later.get(row, classes[row])]
            self._last_ends[row] = max(self._last_ends.get(row, 0.0), running.end)
        self._ending.update(rows)

    def remove(self, running: RunningJob, now: float) -> None:
        """A job has ended."""
        if running.end > now:
            self._has_ended_early = True
            return
        ending = self._ending
        for row in running.rows:
            ending[row] -= 1
            if not ending[row]:
                del ending[row], self._classes[row], self._last_ends[row]

    def reserve(self, now: float) -> DirectReservation:
        """Take the nodes that become free last, then others in order."""
        last_ends, later, current = self._last_ends, self._classes, self._placement.classes
        ending = sorted([(-max(end, now), row) for row, end in last_ends.items()])
        pods, count_on = self._pods, self._ranking.capacity_of
        taken: dict[int, int] = {}
        kept: dict[int, tuple[tuple[int, int], ...]] = {}
        others = (row for row in self._placement.open_rows(self._ranking) if row not in last_ends)
        for row in chain((row for _, row in ending), others):
            if not pods:
                break
            then = later.get(row, current[row])
            fits = count_on[then] if self._ranking.is_allowed[row] else 0
            if not fits:
                continue
            count = taken[row] = min(fits, pods)
            pods -= count
            used, used_then = current[row].requested, then.requested
            kept[row] = tuple(
                (column, amount)
                for column, each in self._ranking.amounts
                if (amount := count * each - (used[column] - used_then[column])) > 0
            )
        return DirectReservation(self._ranking, self.start, taken, kept)
