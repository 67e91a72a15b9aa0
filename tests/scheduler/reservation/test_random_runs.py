"""Random runs in virtual time: no backfilled entity delays the reserved one, and all start."""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import product

import pytest

from phalanx.api.core import Pod
from phalanx.api.meta import pod_group_ref
from phalanx.scheduler.cluster.group_tree import group_ref
from phalanx.scheduler.decision import Waiting
from tests.scheduler.builders import composite, gang, key, node
from tests.scheduler.reservation.virtual_scheduler import VirtualScheduler, ending_pod, profiles

MODES = ("Easy", "Conservative")
#: Run times are whole seconds; deadlines may be later than the actual end, never earlier.
HORIZON = 40_000.0


class RandomRun:
    """A stream of random gangs on a small cluster. `is_known`: None if only some declare limits."""

    def __init__(
        self,
        seed: int,
        *,
        is_known: bool | None = True,
        has_racks: bool = False,
        priorities: int = 1,
        **args: object,
    ) -> None:
        self.chance, self._is_known = random.Random(seed), is_known
        self._has_racks, self._priorities = has_racks, priorities
        racks = [{"rack": f"r{n % 3}"} if has_racks else {} for n in range(9)]
        nodes = [
            node(f"n{n}", labels=labels, cpu=self.chance.choice(("4", "8")))
            for n, labels in enumerate(racks)
        ]
        self.scheduler = VirtualScheduler(nodes, profiles(**args).without_group_preemption)
        self.events: list[tuple[float, int, str]] = []
        self.started: dict[str, float] = {}
        self.submitted: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self.scheduler.on_placed = self._start
        #: Called after every pass.
        self.on_pass: Callable[[], None] = lambda: None

    def _start(self, name: str, pods: list[Pod]) -> None:
        self.started[name] = self.scheduler.now
        heappush(self.events, (self.scheduler.now + self._seconds[name], 1, name))

    def submit(self, name: str, size: int, cpu: str, *, priority: int = 0) -> None:
        """Submit a gang that ends at its deadline or before."""
        seconds = self.chance.randint(60, 3000)
        early = self.chance.choice((1.0, 1.0, 0.5))
        self._seconds[name], self.submitted[name] = int(seconds * early), self.scheduler.now
        is_small = size <= 2
        topology = "rack" if self._has_racks and is_small and self.chance.random() < 0.3 else ""
        is_known = self.chance.random() < 0.6 if self._is_known is None else self._is_known
        limit = seconds if is_known else None
        pods = [
            ending_pod(f"{name}-{n}", name, cpu=cpu, priority=priority, seconds=limit)
            for n in range(size)
        ]
        self.scheduler.submit(name, pods, gang(name, size, priority=priority, topology=topology))

    def submit_tree(self, name: str) -> None:
        """Submit a tree of two gangs of two pods, each gang in one rack."""
        self._seconds[name], self.submitted[name] = 1000, self.scheduler.now
        self.scheduler.add_group(composite(name, 2))
        for side in ("left", "right"):
            group = gang(f"{name}-{side}", 2, parent=name, topology="rack")
            pods = [
                ending_pod(f"{name}-{side}-{n}", group.metadata.name, cpu="4") for n in range(2)
            ]
            self.scheduler.add_group(group)
            self.scheduler.submit_pods(*pods)
            assert group_ref(group)

    def run(self, arrivals: int, large: dict[int, int]) -> None:
        """Run a stream of small gangs; `large` has the sizes of large ones by their position."""
        time = 0.0
        for number in range(arrivals):
            time += self.chance.expovariate(1 / 120)
            heappush(self.events, (time, 0, f"g{number}"))
        while self.events and self.scheduler.now < HORIZON:
            now, is_end, name = heappop(self.events)
            self.scheduler.now = now
            if is_end:
                self.scheduler.end(name)
            else:
                number = int(name[1:])
                if large.get(number) == 0:
                    self.submit_tree(name)
                elif number in large:
                    self.submit(name, large[number], "4", priority=0)
                else:
                    level = self.chance.randrange(self._priorities)
                    size = self.chance.choice((1, 1, 2))
                    self.submit(name, size, self.chance.choice(("2", "4")), priority=level)
            self.scheduler.run_pass()
            self.on_pass()


@pytest.mark.parametrize(
    ("seed", "mode"),
    [
        (1, "Easy"),
        *(
            pytest.param(seed, mode, marks=pytest.mark.slow)
            for seed, mode in product(range(6), MODES)
        ),
    ],
)
def test_backfilled_gang_never_delays_the_reserved_one(seed: int, mode: str) -> None:
    run = RandomRun(seed, mode=mode, has_racks=seed % 2 == 1)
    promised: dict[str, float] = {}

    def check() -> None:
        scheduler = run.scheduler
        for name, start in promised.items():
            assert name in run.started or scheduler.now <= start, (name, start)
        for one in scheduler.state.reservations.current[:1]:
            assert one.expected_start is not None
            start = promised.setdefault(one.ref.name, one.expected_start)
            assert one.expected_start <= start, one.ref.name
            promised[one.ref.name] = one.expected_start

    run.scheduler.on_step = check
    run.run(80, {20: 6, 60: 7})
    assert promised
    for name, start in promised.items():
        assert run.started[name] <= start


@pytest.mark.parametrize(
    ("seed", "mode", "is_known"),
    [
        (2, "Easy", True),
        (3, "Conservative", False),
        (7, "Easy", None),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in product(range(3), (*MODES, "Strict"), (True, False, None))
        ),
    ],
)
def test_no_entity_that_could_start_is_left_waiting(
    seed: int, mode: str, is_known: bool | None
) -> None:
    run = RandomRun(seed, is_known=is_known, has_racks=seed % 2 == 1, priorities=2, mode=mode)
    state, waited = run.scheduler.state, 0

    def check() -> None:
        nonlocal waited
        for name in run.submitted.keys() - run.started.keys():
            ref = pod_group_ref(key(name))
            entity = state.queue.waiting_entity(ref, run.scheduler.now)
            if entity is not None:
                waited += 1
                assert isinstance(state.decide(entity), Waiting), name

    run.on_pass = check
    run.run(60, {20: 6, 40: 0 if seed % 2 else 7})
    assert waited


@pytest.mark.slow
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_every_feasible_gang_starts_while_others_keep_arriving(seed: int, is_known: bool) -> None:
    large = {10: 8, 20: 0, 30: 6, 40: 9}
    run = RandomRun(seed, is_known=is_known, has_racks=True)
    run.run(220, large)
    last_arrival = max(run.submitted.values())
    assert all(run.started.get(f"g{number}", HORIZON) < last_arrival for number in large)


@pytest.mark.slow
def test_gang_of_lower_priority_starts_when_more_important_ones_leave_room() -> None:
    run = RandomRun(7, priorities=2)
    run.run(220, {10: 7})
    assert run.started["g10"] < max(run.submitted.values())


def test_large_gang_and_tree_start_while_others_keep_arriving() -> None:
    large = {5: 8, 15: 0}
    run = RandomRun(1, is_known=False, has_racks=True)
    run.run(60, large)
    last_arrival = max(run.submitted.values())
    assert all(run.started[f"g{number}"] < last_arrival for number in large)
