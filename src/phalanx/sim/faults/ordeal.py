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

from phalanx.chance import SeededChance
from phalanx.clock import LoopClock
from phalanx.scheduler.placing import attempt
from phalanx.sim import loop
from phalanx.sim.faults.instance import Witness
from phalanx.sim.faults.stage import Stage
from phalanx.sim.faults.steps import Step
from phalanx.sim.invariants import Auditor
from phalanx.sim.run import EPOCH, Violation, first

#: Seconds by which a scheduler's view, and what it sends, may be late: lags, retries and all.
HORIZON = 30.0
#: Steps between two looks at whether somebody who could be placed is overlooked.
LOOK = 40
#: Turns of the loop after which an ordeal goes round in circles; a long one takes a third of them.
TURNS = 100_000
#: Pods that are tried between two pauses of a cycle.
PACE = 2
#: Seconds without a change that are rest, and after which there must have been rest.
REST, PATIENCE = 100.0, 1500.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an ordeal amounted to: a hash over everything written, and how much happened."""

    digest: str
    revision: int
    done: Mapping[str, int]


def run(seed: int, steps: Sequence[Step], witness: Witness) -> Outcome:
    """Go through an ordeal; raises a Violation at the first thing that is broken."""

    async def main() -> Outcome:
        async with asyncio.TaskGroup() as group:
            return await _Ordeal(seed, witness, group).run(steps)

    try:
        with _paced(PACE):
            return loop.run(main, turns=TURNS)
    except loop.Endless as endless:
        raise Violation(seed, 0, 0.0, str(endless)) from endless
    except BaseExceptionGroup as group:
        error = first(group)
    raise error


@contextmanager
def _paced(pods: int) -> Iterator[None]:
    """Have cycles pause often, so that things happen in their midst although gangs are small."""
    usual, attempt.PACE = attempt.PACE, pods
    try:
        yield
    finally:
        attempt.PACE = usual


class _Ordeal:
    """One ordeal on the running loop."""

    def __init__(self, seed: int, witness: Witness, tasks: asyncio.TaskGroup) -> None:
        self._seed, self._tasks, self._loop = seed, tasks, asyncio.get_running_loop()
        clock, chance = LoopClock(self._loop, EPOCH), SeededChance(seed)
        self._stage = Stage(clock, chance, witness, tasks)
        tail = self._stage.tail
        self._auditor = Auditor(
            tail.pods, tail.nodes, tail.groups, now=self._loop.time, horizon=HORIZON,
            strangers=self._stage.register.strangers, books=tail.room,
            composites=tail.composites,
        )  # fmt: skip
        self._changed = 0.0
        self._violation: asyncio.Future[Violation] = self._loop.create_future()
        tail.settled.append(self._judge)
        for cache in (tail.pods, tail.nodes, tail.groups, tail.composites):
            cache.subscribe(self._note)

    async def run(self, steps: Sequence[Step]) -> Outcome:
        """All steps, and then rest."""
        stage, judging = self._stage, self._tasks.create_task(self._raise())
        await stage.open()
        await self._go_through(steps)
        await stage.heal()
        await self._rest()
        await self._hear_again()
        await stage.close()
        judging.cancel()
        return Outcome(stage.tail.digest, stage.store.revision, stage.done)

    async def _go_through(self, steps: Sequence[Step]) -> None:
        start = self._loop.time()
        for number, step in enumerate(steps, 1):
            await asyncio.sleep(start + step.at - self._loop.time())
            self._stage.begin(step.act)
            if number % LOOK == 0:
                self._look()

    async def _rest(self) -> None:
        """Wait until nothing changes any more; then all must be in order."""
        begin = self._loop.time()
        while self._loop.time() - max(self._changed, begin) < REST:
            await asyncio.sleep(REST / 4)
            if self._loop.time() - begin > PATIENCE:
                self._stage.broken.append("it does not come to rest")
                break
        self._look()
        for instance in self._stage.instances.values():
            self._stage.broken.extend(instance.unrest())
        await self._pronounce()

    async def _hear_again(self) -> None:
        """Have everything listed and heard again: nobody may find anything to do."""
        before = self._changed
        self._stage.resync()
        await asyncio.sleep(REST)
        if self._changed != before:
            self._stage.broken.append("hearing the same again changed something")
        await self._pronounce()

    def _look(self) -> None:
        for instance in self._stage.instances.values():
            if instance.is_at_rest():
                instance.overlooked()
        self._judge(self._stage.store.revision)

    def _judge(self, revision: int) -> None:
        """Note the first thing that is broken; whoever broke it is not to be stopped by that."""
        stage = self._stage
        for sentence in (*stage.broken, *self._auditor.audit(), *stage.register.audit()):
            if not self._violation.done():
                found = Violation(self._seed, revision, self._loop.time(), sentence)
                self._violation.set_result(found)

    async def _pronounce(self) -> None:
        """Judge, and give whoever raises what is broken the time to do so."""
        self._judge(self._stage.store.revision)
        await asyncio.sleep(0.001)

    async def _raise(self) -> None:
        raise await self._violation

    def _note(self, old: object, new: object) -> None:
        self._changed = self._loop.time()
