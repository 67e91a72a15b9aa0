"""A large gang beside a stream of small ones, in virtual time: the decision core against EASY.

A cluster of equal nodes runs gangs of one or two nodes with exponential run times. After a day a
large gang arrives. `StarvationRun` drives the decision core; `run_easy` is EASY backfill on counts
of nodes with exact run times: the first of the queue gets a reservation at once.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from msgspec.structs import replace

from phalanx.api.batch import EXPECTED_RUN_TIME_ANNOTATION
from phalanx.api.core import Pod
from phalanx.scheduler.policy import DEFAULT_PROFILES, Profiles
from tests.scheduler.builders import node, pod
from tests.scheduler.reservation.virtual_scheduler import VirtualScheduler

NODES, HOUR = 64, 3600.0
ARRIVAL = 24 * HOUR
LARGE = "large"


class SimulatedGang(NamedTuple):
    """A gang of whole nodes: when it arrives, how many nodes it needs, how long it runs."""

    name: str
    arrival: float
    size: int
    seconds: float


def small_gangs(load: float, seed: int, hours: float) -> list[SimulatedGang]:
    """A Poisson stream of gangs of one or two nodes that run for an hour on average."""
    chance = random.Random(seed)
    gangs, time = list[SimulatedGang](), 0.0
    while time < hours * HOUR:
        time += chance.expovariate(load * NODES / 1.5) * HOUR
        size, seconds = chance.choice((1, 2)), chance.expovariate(1.0) * HOUR
        gangs.append(SimulatedGang(f"s{len(gangs)}", time, size, seconds))
    return gangs


def members(one: SimulatedGang, *, is_known: bool) -> list[Pod]:
    """The pods of a gang, each of which needs a whole node."""
    found = []
    for number in range(one.size):
        made = pod(f"{one.name}-{number}", one.name, requests={"nvidia.com/gpu": 8}, cpu="32")
        annotations = {EXPECTED_RUN_TIME_ANNOTATION: f"{one.seconds:.6f}s"} if is_known else {}
        found.append(
            replace(
                made,
                metadata=replace(made.metadata, annotations=annotations),
                spec=replace(made.spec, restart_policy="Never"),
            )
        )
    return found


class StarvationRun:
    """The decision core beside a stream of gangs and a large one of so many nodes."""

    def __init__(
        self,
        gangs: Sequence[SimulatedGang],
        large: int,
        *,
        is_known: bool = True,
        profiles: Profiles = DEFAULT_PROFILES,
    ) -> None:
        arrivals = [*gangs, SimulatedGang(LARGE, ARRIVAL, large, 4 * HOUR)]
        nodes = [
            node(f"n{number:03}", cpu="64", memory="512Gi", allocatable={"nvidia.com/gpu": 8})
            for number in range(NODES)
        ]
        self._scheduler, self._is_known = VirtualScheduler(nodes, profiles), is_known
        self._gangs = {one.name: one for one in arrivals}
        #: Time, whether a gang ends or arrives, and its name.
        self._events = [(one.arrival, 0, one.name) for one in arrivals]
        heapify(self._events)
        #: When the large gang has started.
        self.started_at: float | None = None
        self._in_use, self.busy = 0, 0.0

    def run(self, until: float, *, stops_at_start: bool = False) -> None:
        """Run until a time, or until the large gang starts."""
        scheduler = self._scheduler
        scheduler.on_placed = self._start
        while self._events and self._events[0][0] <= until:
            now, is_end, name = heappop(self._events)
            self.busy += self._in_use * (now - scheduler.now)
            scheduler.now = now
            if is_end:
                self._in_use -= self._gangs[name].size
                scheduler.end(name)
            else:
                scheduler.submit(name, members(self._gangs[name], is_known=self._is_known))
            scheduler.run_pass()
            if stops_at_start and self.started_at is not None:
                return
        self.busy += self._in_use * (until - scheduler.now)
        scheduler.now = until

    def _start(self, name: str, pods: list[Pod]) -> None:
        now, self._in_use = self._scheduler.now, self._in_use + len(pods)
        heappush(self._events, (now + self._gangs[name].seconds, 1, name))
        if name == LARGE:
            self.started_at = now

    @property
    def wait(self) -> float:
        """How long the large gang waited."""
        assert self.started_at is not None
        return self.started_at - ARRIVAL


def run_easy(gangs: Sequence[SimulatedGang], large: int) -> float:
    """Return how long the large gang waits under EASY backfill with exact run times."""
    arrivals = [*gangs, SimulatedGang(LARGE, ARRIVAL, large, 4 * HOUR)]
    events = [(one.arrival, 0, number) for number, one in enumerate(arrivals)]
    heapify(events)
    free, queue, running = NODES, list[int](), dict[int, float]()
    while events:
        now, is_end, number = heappop(events)
        if is_end:
            free += arrivals[number].size
            del running[number]
        else:
            queue.append(number)
        started = _easy_pass(arrivals, queue, running, free=free, now=now)
        for one in started:
            queue.remove(one)
            free -= arrivals[one].size
            running[one] = now + arrivals[one].seconds
            heappush(events, (running[one], 1, one))
            if arrivals[one].name == LARGE:
                return now - ARRIVAL
    raise AssertionError("the large gang did not start")


def _easy_pass(
    arrivals: Sequence[SimulatedGang],
    queue: Sequence[int],
    running: dict[int, float],
    *,
    free: int,
    now: float,
) -> list[int]:
    """Return what starts now: the head as long as it fits, then what does not delay it."""
    started, waiting = list[int](), list(queue)
    while waiting and arrivals[waiting[0]].size <= free:
        head = waiting.pop(0)
        free -= arrivals[head].size
        started.append(head)
    if not waiting:
        return started
    ends = [(end, arrivals[one].size) for one, end in running.items()]
    ends += [(now + arrivals[one].seconds, arrivals[one].size) for one in started]
    needed, available, start, extra = arrivals[waiting[0]].size, free, now, 0
    for end, size in sorted(ends):
        available += size
        if available >= needed:
            start, extra = end, available - needed
            break
    for one in waiting[1:]:
        size, end = arrivals[one].size, now + arrivals[one].seconds
        if size <= free and (end <= start or size <= extra):
            extra -= 0 if end <= start else size
            free -= size
            started.append(one)
    return started
