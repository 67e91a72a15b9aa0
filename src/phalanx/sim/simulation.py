"""Runs a scenario: the whole control plane on a memory store, in virtual time. Start reading here.

    scenario ─▶ driver ─▶ control plane ─▶ observer ─▶ auditor       InvariantViolation
                                                   └─▶ recorder      Timeline

All randomness comes from the scenario's seed: the same scenario gives the same Timeline, byte for
byte, on any machine.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from phalanx.api.conversion.hub import STORED_KINDS
from phalanx.client.cache import ObjectCache
from phalanx.clock import LoopClock
from phalanx.components import ComponentConfig
from phalanx.control_plane import ControlPlane
from phalanx.controllers.scheduling.decision_log import DecisionLog
from phalanx.randomness import SeededRandom
from phalanx.scheduler.policy import apply_feature_gates
from phalanx.sim import virtual_time as loop
from phalanx.sim.driver import ScenarioDriver, ScenarioNodes
from phalanx.sim.invariants import InvariantAuditor
from phalanx.sim.scenario import Scenario
from phalanx.sim.timeline import ApiObserver, Timeline, TimelineRecorder, condense
from phalanx.store.memory import MemoryStore

#: The start time of simulations: 2026-01-01T00:00:00Z.
EPOCH = 1_767_225_600.0
#: Minimum and maximum duration of a commit in seconds.
LATENCY = (0.0001, 0.002)
#: Seconds by which a scheduler's view may be late.
MAX_VIEW_LAG = 1.0
#: Seconds that a simulation may take beyond its scenario.
EXTRA_SECONDS = 3600.0


class InvariantViolation(AssertionError):
    """An invariant was violated: a bug, with the way to reproduce it."""

    def __init__(self, seed: int, revision: int, time: float, *, sentence: str) -> None:
        super().__init__(f"seed {seed}, revision {revision}, t={time:.3f}: {sentence}")


def run_scenario(scenario: Scenario, log: DecisionLog | None = None) -> Timeline:
    """Run a scenario and return its timeline; the scheduler's decisions go to the log."""
    try:
        return loop.run_virtual(
            lambda: _simulate(scenario, log), max_seconds=scenario.until + EXTRA_SECONDS
        )
    except BaseExceptionGroup as group:
        error = first_error(group)
    raise error


async def _simulate(scenario: Scenario, log: DecisionLog | None) -> Timeline:
    clock, random = LoopClock(asyncio.get_running_loop(), EPOCH), SeededRandom(scenario.seed)
    store = MemoryStore(lambda: random.between(*LATENCY))
    plane = ControlPlane(
        store,
        clock,
        random,
        config=ComponentConfig(without=("nodes",), gates=scenario.gates, decision_log=log),
    )
    nodes = ScenarioNodes(plane.client("system:nodes"), clock, random)
    driver = ScenarioDriver(plane.client("user"), nodes)
    observer = ApiObserver(plane.client("observer"), scenario.gates.filter_served(STORED_KINDS))
    report = ScenarioAudit(
        observer, scenario.seed, whole_gangs=apply_feature_gates(scenario.gates).groups
    )
    async with plane.running(), _background_tasks(report.observer.run(), nodes.run()):
        await nodes.add(scenario.nodes)
        await driver.create_priority_classes(scenario.moments)
        await report.align_start()
        await driver.run(scenario.moments, report.start)
        await asyncio.sleep(report.start + scenario.until - asyncio.get_running_loop().time())
    return report.timeline()


class ScenarioAudit:
    """Checks invariants after each batch of changes and records the timeline.

    Gang minimums are not checked where pods are scheduled one by one.
    """

    def __init__(self, observer: ApiObserver, seed: int, *, whole_gangs: bool = True) -> None:
        self.observer, self._seed = observer, seed
        self.start = math.inf
        groups = observer.groups if whole_gangs else ObjectCache()
        self._auditor = InvariantAuditor(
            observer.pods, observer.nodes, groups, now=self._now, horizon=MAX_VIEW_LAG
        )
        self._recorder = TimelineRecorder(observer.pods, observer.groups, self._now)
        observer.on_batch.append(self._check)

    async def align_start(self) -> None:
        """Wait for the start at a full second: API timestamps are whole seconds."""
        now = asyncio.get_running_loop().time()
        self.start = math.floor(now) + 2.0
        await asyncio.sleep(self.start - now)

    def timeline(self) -> Timeline:
        """Return the timeline."""
        return Timeline(condense(self._recorder.lines), self.observer.digest)

    def _check(self, revision: int) -> None:
        for sentence in self._auditor.audit():
            raise InvariantViolation(
                seed=self._seed, revision=revision, time=self._now(), sentence=sentence
            )
        self._recorder.record_changes()

    def _now(self) -> float:
        return asyncio.get_running_loop().time() - self.start


@asynccontextmanager
async def _background_tasks(*parts: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run tasks while the context lasts; an error of a task is raised."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(part) for part in parts]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


def first_error(error: BaseException) -> BaseException:
    """Return the first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
