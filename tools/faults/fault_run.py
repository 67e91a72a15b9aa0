"""Runs a plan against a control plane in virtual time, checking all along. Start reading here.

While the steps are executed, invariants are checked after every commit and every decision is
checked by a verifier. Then the faults end, the control plane comes to rest, and the invariants of
the steady state are checked. The first violation ends the run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from phalanx.api.core import Pod
from phalanx.api.meta import find_condition
from phalanx.api.scheduling import POD_GROUP_INITIALLY_SCHEDULED, PodGroup
from phalanx.client.cache import ObjectCache
from phalanx.clock import LoopClock
from phalanx.controllers.scheduling.group_reports import BINDING_INCOMPLETE
from phalanx.randomness import SeededRandom
from phalanx.scheduler.placement import group_placement as attempt
from phalanx.sim import virtual_time as loop
from phalanx.sim.invariants import InvariantAuditor, check_cluster
from phalanx.sim.simulation import EPOCH, InvariantViolation, first_error
from tools.faults.claim_checks import ClaimAuditor
from tools.faults.environment import DEFAULT_OPTIONS, FaultEnvironment, RunOptions
from tools.faults.scheduler_instance import DecisionVerifier
from tools.faults.steps import PlanStep

#: Seconds by which a scheduler's view and requests may be late, retries included.
MAX_VIEW_LAG = 30.0
#: Steps between two checks for overlooked entities that could be placed.
CHECK_EVERY_STEPS = 40
#: Loop iterations after which a run counts as endless; a long run takes a third of them.
MAX_ITERATIONS = 100_000
#: Pods per cycle between two yields.
YIELD_EVERY_PODS = 2
#: Seconds without a change that count as rest, and the time limit for reaching it.
QUIET_SECONDS, QUIET_TIMEOUT = 100.0, 1500.0


@dataclass(frozen=True, slots=True)
class FaultRunResult:
    """The result of a run: a hash over all writes, and counts."""

    digest: str
    revision: int
    step_counts: Mapping[str, int]


def run_faults(
    seed: int,
    steps: Sequence[PlanStep],
    verifier: DecisionVerifier,
    *,
    options: RunOptions = DEFAULT_OPTIONS,
) -> FaultRunResult:
    """Execute steps. Raises InvariantViolation at the first violation."""

    async def main() -> FaultRunResult:
        async with asyncio.TaskGroup() as group:
            return await _FaultRun(seed, verifier, group, options=options).run(steps)

    try:
        with _yield_every(YIELD_EVERY_PODS):
            return loop.run_virtual(main, max_iterations=MAX_ITERATIONS)
    except loop.SimulationTimeout as endless:
        raise InvariantViolation(seed, 0, 0.0, sentence=str(endless)) from endless
    except BaseExceptionGroup as group:
        error = first_error(group)
    raise error


def check_whole_gangs(pods: Sequence[Pod], groups: Iterable[PodGroup]) -> list[str]:
    """Check at rest that no gang is bound in part where pods are bound one by one.

    Trees are left out: the gangs of a tree have no bind intents. A gang that lost members while it
    was being bound cannot be completed, and its bound members cannot be undone, because nothing
    creates the pods of a plan again: such a gang must have the reason BindingIncomplete. Members
    that are being deleted do not count: one that was evicted meanwhile leaves no part of a gang.
    """
    staying = [pod for pod in pods if not pod.metadata.deletion_timestamp]
    present = Counter(pod.group for pod in staying)
    return check_cluster(
        staying,
        (),
        [
            group
            for group in groups
            if not group.spec.parent_composite_pod_group_name
            and (present[group.metadata.key] >= group.quorum or not _is_incomplete(group))
        ],
    )


def _is_incomplete(group: PodGroup) -> bool:
    condition = find_condition(group.status.conditions, POD_GROUP_INITIALLY_SCHEDULED)
    return condition is not None and condition.reason == BINDING_INCOMPLETE


@contextmanager
def _yield_every(pods: int) -> Iterator[None]:
    """Make cycles yield often, so that events arrive in the middle although gangs are small."""
    usual, attempt.YIELD_INTERVAL = attempt.YIELD_INTERVAL, pods
    try:
        yield
    finally:
        attempt.YIELD_INTERVAL = usual


class _FaultRun:
    """One run on the running event loop."""

    def __init__(
        self,
        seed: int,
        verifier: DecisionVerifier,
        tasks: asyncio.TaskGroup,
        *,
        options: RunOptions,
    ) -> None:
        self._seed, self._tasks, self._loop = seed, tasks, asyncio.get_running_loop()
        clock, random = LoopClock(self._loop, EPOCH), SeededRandom(seed)
        self._environment = FaultEnvironment(clock, random, verifier, tasks=tasks, options=options)
        tail = self._environment.store_log
        # A foreign server binds gangs pod by pod, so their minimum holds at rest only, and does not
        # check that a node still has what the scheduler saw.
        is_whole = not options.is_foreign
        self._auditor = InvariantAuditor(
            tail.pods, tail.nodes if is_whole else ObjectCache(),
            tail.groups if is_whole else ObjectCache(),
            now=self._loop.time, horizon=MAX_VIEW_LAG,
            manually_bound=self._environment.decisions.manually_bound,
            ledger=tail.ledger if is_whole else None, composites=tail.composites,
        )  # fmt: skip
        self._claim_auditor = ClaimAuditor(
            tail,
            self._loop.time,
            MAX_VIEW_LAG,
            manually_bound=self._environment.decisions.manually_bound,
        )
        self._options, self._last_change = options, 0.0
        self._violation: asyncio.Future[InvariantViolation] = self._loop.create_future()
        tail.on_batch.append(self._check)
        caches: list[ObjectCache[Any]] = [tail.pods, tail.nodes, tail.groups, tail.composites]
        for cache in (*caches, *tail.claimable.values()):
            cache.subscribe(self._on_change)

    async def run(self, steps: Sequence[PlanStep]) -> FaultRunResult:
        """Execute all steps, then wait for the steady state."""
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
        """Wait until nothing changes any more, then check the steady state."""
        begin = self._loop.time()
        while self._loop.time() - max(self._last_change, begin) < QUIET_SECONDS:
            await asyncio.sleep(QUIET_SECONDS / 4)
            if self._loop.time() - begin > QUIET_TIMEOUT:
                self._environment.violations.append("it does not come to rest")
                break
        # An entity may be attempted at this very time.
        await asyncio.sleep(0.001)
        self._check_instances()
        for instance in self._environment.instances.values():
            self._environment.violations.extend(instance.check_steady_state())
        self._environment.violations.extend(self._claim_auditor.check_at_rest())
        if self._options.is_foreign:
            self._environment.violations.extend(self._check_whole_gangs())
        await self._check_and_yield()

    def _check_whole_gangs(self) -> list[str]:
        """Check that no gang is bound in part, unless members were bound by hand."""
        log, by_hand = self._environment.store_log, self._environment.decisions.manually_bound
        pods = list(log.pods.values())
        skipped = {pod.group for pod in pods if pod.metadata.uid in by_hand}
        groups = [group for key, group in log.groups.items() if key not in skipped]
        return check_whole_gangs(pods, groups)

    async def _resync(self) -> None:
        """Make all informers list again: nothing may have to be done."""
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
        """Record the first violation; the component that caused it is not interrupted."""
        stage = self._environment
        audits = (self._auditor.audit(), stage.decisions.audit(), self._claim_auditor.audit())
        for sentence in (*stage.violations, *(one for audit in audits for one in audit)):
            if not self._violation.done():
                found = InvariantViolation(
                    self._seed, revision, self._loop.time(), sentence=sentence
                )
                self._violation.set_result(found)

    async def _check_and_yield(self) -> None:
        """Check, and let the task that raises violations run."""
        self._check(self._environment.store.revision)
        await asyncio.sleep(0.001)

    async def _raise_violation(self) -> None:
        raise await self._violation

    def _on_change(self, old: object, new: object) -> None:
        self._last_change = self._loop.time()
