"""The direct engine: the core engine, which shows the scheduler only what runs when a job waits.

While no job waits, a job that arrives gets the nodes that the scheduler would choose, by the same
filters and scores (`DirectPlacement`), or does not fit. Nothing else of the scheduler matters then:
there is nothing to reserve, to preempt for or to try again.

    09:00  job 1 arrives and fits        placed directly
    09:10  job 2 arrives and fits        placed directly
    09:20  job 1 ends                    the scheduler has never seen it
    09:30  job 3 arrives, does not fit   the scheduler observes job 2 (submitted and placed at
                                         09:10), then everything until no job waits

The scheduler observes the jobs that run, in the order and at the times of their starts, so that it
decides as if it had seen all. The tests run both engines on random workloads and compare the nodes
of all pods and the reports, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import groupby
from operator import itemgetter

from phalanx.api.core import DEFAULT_SCHEDULER
from phalanx.scheduler.decision import Binding, Placed
from phalanx.scheduler.placement.group_placement import Assignment, sort_members, to_bindings
from phalanx.sim.core_engine import EVENT_END, CoreEngine, LiveJob
from phalanx.sim.direct_placement import DirectPlacement, has_few_shapes
from phalanx.sim.gpu_devices import uses_shares
from phalanx.sim.simulation_setup import SimulationSetup


def can_place_directly(setup: SimulationSetup) -> bool:
    """Whether jobs that need not wait can be placed without the scheduler."""
    policy = setup.profiles.policies.get(DEFAULT_SCHEDULER)
    return (
        policy is not None
        and policy.has_default_filters
        and setup.profiles.groups
        and not uses_shares(setup.workload.jobs)
        and has_few_shapes(setup.workload.jobs)
    )


class DirectEngine(CoreEngine):
    """Simulates one setup. `on_progress` is called now and then with the simulated time."""

    def __init__(
        self, setup: SimulationSetup, on_progress: Callable[[float, int], None] | None = None
    ) -> None:
        super().__init__(setup, on_progress)
        policy = setup.profiles.policies[DEFAULT_SCHEDULER]
        self._placement = DirectPlacement(setup.nodes, policy)
        #: The nodes of the running and the unseen jobs, as rows of the placement, one for each pod.
        self._rows: dict[int, list[int]] = {}
        #: What the scheduler has not observed: jobs with their starts, in this order, and the ends
        #: of jobs that it knows, or that it learns run times from.
        self._unseen_starts: dict[int, tuple[float, LiveJob]] = {}
        self._unseen_ends: list[tuple[float, LiveJob]] = []

    def _run_instant(self, now: float) -> None:
        """Let happen what happens at one time; the scheduler works only where a job must wait."""
        if not self._recorder.waiting and self._end_directly(now) and self._start_directly(now):
            self._recorder.sample(now)
            return
        self._catch_up()
        super()._run_instant(now)

    def _end_directly(self, now: float) -> bool:
        """Let jobs end; whether nothing else happens than that jobs arrive."""
        events = self._events
        while events and events[0][0] <= now:
            _, kind, number, run = events[0]
            if kind != EVENT_END:
                return False
            heappop(events)
            self._last_event = now
            assert isinstance(number, int)
            live = self._running.get(number)
            if live is None or live.run != run:
                continue
            del self._running[number]
            self._recorder.end(number, now)
            self._placement.remove(live.job, self._rows[number])
            if self._learns_run_times or self._unseen_starts.pop(number, None) is None:
                self._unseen_ends.append((now, live))
            if number not in self._unseen_starts:
                del self._rows[number]
        return True

    def _start_directly(self, now: float) -> bool:
        """Let jobs arrive and start, if all that arrive have nodes; whether they have."""
        jobs, first = self._setup.workload.jobs, self._arrived
        end = first
        while end < len(jobs) and jobs[end].submit <= now:
            end += 1
        order: Sequence[int] = range(first, end)
        if self._reports_starts and len(order) > 1:
            order = sorted(order, key=lambda number: -jobs[number].priority)
        placed: list[tuple[int, list[int]]] = []
        for number in order:
            rows = self._placement.place(jobs[number])
            if rows is None:
                for other, taken in placed:
                    self._placement.remove(jobs[other], taken)
                return False
            placed.append((number, rows))
        recorder = self._recorder
        for number, rows in placed:
            recorder.submit(number)
            recorder.start(number, now)
            live = self._running[number] = LiveJob(number, jobs[number])
            self._rows[number], self._unseen_starts[number] = rows, (now, live)
            heappush(self._events, (now + live.job.run_time, EVENT_END, number, 0))
            self._last_event = now
        self._decisions += len(placed)
        self._arrived = end
        return True

    # ---- what the scheduler has not observed ---------------------------------------------------

    def _catch_up(self) -> None:
        """Let the scheduler observe ends and starts, in order and at their times."""
        changes = [(at, 0, live) for at, live in self._unseen_ends]
        changes += [(at, 1, live) for at, live in self._unseen_starts.values()]
        self._unseen_ends, self._unseen_starts = [], {}
        changes.sort(key=itemgetter(0, 1))
        for (at, is_start), group in groupby(changes, key=itemgetter(0, 1)):
            lives = [live for _, _, live in group]
            if not is_start:
                for live in lives:
                    self._observe_success(live, at)
                    self._delete_objects(live, at)
                    self._rows.pop(live.number, None)
                continue
            for live in sorted(lives, key=lambda one: one.number):
                self._submit(live, at)
            for live in lives:
                self._assume(live, at)

    def _assume(self, live: LiveJob, at: float) -> None:
        """Let the scheduler take the next job from its queue and place it as it was placed."""
        entity = self._state.pop_after_planning(at)
        assert entity is not None
        assert self._by_entity[entity.key.name] is live
        rows, members = self._rows[live.number], sort_members(entity.members)
        bindings = to_bindings(map(Assignment, members, rows), self._placement.names)
        is_current = self._state.commit(entity, Placed(entity.group_key, bindings), at)
        assert is_current
        self._note_start(live, bindings, at)

    # ---- what the scheduler decides ------------------------------------------------------------

    def _start(self, live: LiveJob, bindings: Sequence[Binding], now: float) -> None:
        """All pods of a job were placed by the scheduler: it runs."""
        super()._start(live, bindings, now)
        nodes = (node for _, _, node in bindings)
        self._rows[live.number] = self._placement.add(live.job, nodes)

    def _remove(self, live: LiveJob, now: float) -> None:
        """A job runs no longer."""
        super()._remove(live, now)
        self._placement.remove(live.job, self._rows.pop(live.number))

    def _observe_node(self, name: str, now: float, *, is_present: bool) -> None:
        super()._observe_node(name, now, is_present=is_present)
        self._placement.change_node(name, is_present=is_present)
