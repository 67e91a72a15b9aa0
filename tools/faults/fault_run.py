"""Run a plan against a control plane in virtual time, judging all along. Start reading here.

While the steps happen, whatever must always hold is asked after every commit, and every decision is
held against a witness. Then the faults end, everything comes to rest, and what must hold at rest is
asked too. The first thing that is broken ends the ordeal with a Violation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from phalanx.clock import LoopClock
from phalanx.randomness import SeededRandom
from phalanx.scheduler.placement import group_placement as attempt
from phalanx.sim import virtual_time as loop
from phalanx.sim.invariants import InvariantAuditor
from phalanx.sim.simulation import EPOCH, InvariantViolation, first_error
from tools.faults.environment import FaultEnvironment
from tools.faults.scheduler_instance import DecisionVerifier
from tools.faults.steps import PlanStep

#: Seconds by which a scheduler's view, and what it sends, may be late: lags, retries and all.
MAX_VIEW_LAG = 30.0
#: Steps between two looks at whether somebody who could be placed is overlooked.
CHECK_EVERY_STEPS = 40
#: Turns of the loop after which an ordeal goes round in circles; a long one takes a third of them.
MAX_ITERATIONS = 100_000
#: Pods that are tried between two pauses of a cycle.
YIELD_EVERY_PODS = 2
#: Seconds without a change that are rest, and after which there must have been rest.
QUIET_SECONDS, QUIET_TIMEOUT = 100.0, 1500.0


@dataclass(frozen=True, slots=True)
class FaultRunResult:
    """What an ordeal amounted to: a hash over everything written, and how much happened."""

    digest: str
    revision: int
    step_counts: Mapping[str, int]


def run_faults(seed: int, steps: Sequence[PlanStep], verifier: DecisionVerifier) -> FaultRunResult:
    """Go through an ordeal; raises a Violation at the first thing that is broken."""

    async def main() -> FaultRunResult:
        async with asyncio.TaskGroup() as group:
            return await _FaultRun(seed, verifier, group).run(steps)

    try:
        with _yield_every(YIELD_EVERY_PODS):
            return loop.run_virtual(main, max_iterations=MAX_ITERATIONS)
    except loop.SimulationTimeout as endless:
        raise InvariantViolation(seed, 0, 0.0, str(endless)) from endless
    except BaseExceptionGroup as group:
        error = first_error(group)
    raise error


@contextmanager
def _yield_every(pods: int) -> Iterator[None]:
    """Have cycles pause often, so that things happen in their midst although gangs are small."""
    usual, attempt.YIELD_INTERVAL = attempt.YIELD_INTERVAL, pods
    try:
        yield
    finally:
        attempt.YIELD_INTERVAL = usual


class _FaultRun:
    """One ordeal on the running loop."""

    def __init__(self, seed: int, verifier: DecisionVerifier, tasks: asyncio.TaskGroup) -> None:
        self._seed, self._tasks, self._loop = seed, tasks, asyncio.get_running_loop()
        clock, chance = LoopClock(self._loop, EPOCH), SeededRandom(seed)
        self._environment = FaultEnvironment(clock, chance, verifier, tasks)
        tail = self._environment.store_log
        self._auditor = InvariantAuditor(
            tail.pods, tail.nodes, tail.groups, now=self._loop.time, horizon=MAX_VIEW_LAG,
            manually_bound=self._environment.decisions.manually_bound, ledger=tail.ledger,
            composites=tail.composites,
        )  # fmt: skip
        self._last_change = 0.0
        self._violation: asyncio.Future[InvariantViolation] = self._loop.create_future()
        tail.on_batch.append(self._check)
        for cache in (tail.pods, tail.nodes, tail.groups, tail.composites):
            cache.subscribe(self._on_change)

    async def run(self, steps: Sequence[PlanStep]) -> FaultRunResult:
        """All steps, and then rest."""
        stage, judging = self._environment, self._tasks.create_task(self._raise_violation())
        await stage.start()
        await self._run_steps(steps)
        await stage.remove_faults()
        await self._wait_until_quiet()
        await self._resync()
        await stage.close()
        judging.cancel()
        return FaultRunResult(stage.store_log.digest, stage.store.revision, stage.step_counts)

    async def _run_steps(self, steps: Sequence[PlanStep]) -> None:
        start = self._loop.time()
        for number, step in enumerate(steps, 1):
            await asyncio.sleep(start + step.at - self._loop.time())
            self._environment.start_step(step.action)
            if number % CHECK_EVERY_STEPS == 0:
                self._check_instances()

    async def _wait_until_quiet(self) -> None:
        """Wait until nothing changes any more; then all must be in order."""
        begin = self._loop.time()
        while self._loop.time() - max(self._last_change, begin) < QUIET_SECONDS:
            await asyncio.sleep(QUIET_SECONDS / 4)
            if self._loop.time() - begin > QUIET_TIMEOUT:
                self._environment.violations.append("it does not come to rest")
                break
        self._check_instances()
        for instance in self._environment.instances.values():
            self._environment.violations.extend(instance.check_steady_state())
        await self._check_and_yield()

    async def _resync(self) -> None:
        """Have everything listed and heard again: nobody may find anything to do."""
        before = self._last_change
        self._environment.resync()
        await asyncio.sleep(QUIET_SECONDS)
        if self._last_change != before:
            self._environment.violations.append("hearing the same again changed something")
        await self._check_and_yield()

    def _check_instances(self) -> None:
        for instance in self._environment.instances.values():
            if instance.is_idle():
                instance.check_no_missed_placement()
        self._check(self._environment.store.revision)

    def _check(self, revision: int) -> None:
        """Note the first thing that is broken; whoever broke it is not to be stopped by that."""
        stage = self._environment
        for sentence in (*stage.violations, *self._auditor.audit(), *stage.decisions.audit()):
            if not self._violation.done():
                found = InvariantViolation(self._seed, revision, self._loop.time(), sentence)
                self._violation.set_result(found)

    async def _check_and_yield(self) -> None:
        """Judge, and give whoever raises what is broken the time to do so."""
        self._check(self._environment.store.revision)
        await asyncio.sleep(0.001)

    async def _raise_violation(self) -> None:
        raise await self._violation

    def _on_change(self, old: object, new: object) -> None:
        self._last_change = self._loop.time()
