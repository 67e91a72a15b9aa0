"""Run a scenario: the whole control plane on a memory store, in virtual time. Start reading here.

    scenario ─▶ driver ─▶ control plane ─▶ observer ─▶ auditor      (must hold: else Violation)
                                                   └─▶ chronicle    (what became of it: Timeline)

Everything that is drawn by lot is drawn from the scenario's seed: the same scenario gives the same
Timeline, byte for byte, on any machine.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from phalanx.api.versions.conversion import STORED
from phalanx.chance import SeededChance
from phalanx.client.cache import Cache
from phalanx.clock import LoopClock
from phalanx.control_plane import ControlPlane
from phalanx.controllers.shell.decisionlog import DecisionLog
from phalanx.crew import Staff
from phalanx.scheduler.settings.profiles import by_gates
from phalanx.sim import loop
from phalanx.sim.chronicle import Chronicle
from phalanx.sim.driver import Driver
from phalanx.sim.invariants import Auditor
from phalanx.sim.machines import Machines
from phalanx.sim.observer import Observer
from phalanx.sim.scenario import Scenario
from phalanx.sim.timeline import Timeline, condense
from phalanx.store.memory import MemoryStore

#: When simulations begin: 2026-01-01T00:00:00Z.
EPOCH = 1_767_225_600.0
#: Seconds that a commit takes, at least and at most.
LATENCY = (0.0001, 0.002)
#: Seconds by which what a scheduler has seen may be late.
HORIZON = 1.0
#: Seconds that a simulation may take beyond what its scenario asks for.
LEEWAY = 3600.0


class Violation(AssertionError):
    """Something that must hold did not: a bug, and how to see it again."""

    def __init__(self, seed: int, revision: int, time: float, sentence: str) -> None:
        super().__init__(f"seed {seed}, revision {revision}, t={time:.3f}: {sentence}")


def run(scenario: Scenario, log: DecisionLog | None = None) -> Timeline:
    """Act a scenario out and tell what became of it; the scheduler's decisions go to the log."""
    try:
        return loop.run(lambda: _simulate(scenario, log), seconds=scenario.until + LEEWAY)
    except BaseExceptionGroup as group:
        error = first(group)
    raise error


async def _simulate(scenario: Scenario, log: DecisionLog | None) -> Timeline:
    clock, chance = LoopClock(asyncio.get_running_loop(), EPOCH), SeededChance(scenario.seed)
    store = MemoryStore(lambda: chance.between(*LATENCY))
    plane = ControlPlane(
        store, clock, chance, Staff(without=("nodes",), gates=scenario.gates, log=log)
    )
    machines = Machines(plane.client("system:nodes"), clock, chance)
    driver = Driver(plane.client("user"), machines)
    observer = Observer(plane.client("observer"), scenario.gates.served(STORED))
    report = Report(observer, scenario.seed, whole_gangs=by_gates(scenario.gates).groups)
    async with plane.running(), _meanwhile(report.observer.run(), machines.run()):
        await machines.add(scenario.nodes)
        await driver.prepare(scenario.moments)
        await report.begin()
        await driver.drive(scenario.moments, report.start)
        await asyncio.sleep(report.start + scenario.until - asyncio.get_running_loop().time())
    return report.timeline()


class Report:
    """What is made of what the observer hears: verdicts at once, the timeline at the end.

    Gangs need not be whole where their pods are placed one by one.
    """

    def __init__(self, observer: Observer, seed: int, *, whole_gangs: bool = True) -> None:
        self.observer, self._seed = observer, seed
        self.start = math.inf
        groups = observer.groups if whole_gangs else Cache()
        self._auditor = Auditor(
            observer.pods, observer.nodes, groups, now=self._now, horizon=HORIZON
        )
        self._chronicle = Chronicle(observer.pods, observer.groups, self._now)
        observer.settled.append(self._judge)

    async def begin(self) -> None:
        """Wait for a full second, so that the API's own times, which are whole, tell the same."""
        now = asyncio.get_running_loop().time()
        self.start = math.floor(now) + 2.0
        await asyncio.sleep(self.start - now)

    def timeline(self) -> Timeline:
        """What became of everything."""
        return Timeline(condense(self._chronicle.lines), self.observer.digest)

    def _judge(self, revision: int) -> None:
        for sentence in self._auditor.audit():
            raise Violation(self._seed, revision, self._now(), sentence)
        self._chronicle.tell()

    def _now(self) -> float:
        return asyncio.get_running_loop().time() - self.start


@asynccontextmanager
async def _meanwhile(*parts: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Have these run while the context lasts; one that breaks breaks the whole."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(part) for part in parts]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


def first(error: BaseException) -> BaseException:
    """What went wrong first, without the task groups that it came through."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
