"""The scheduler's shell: pop, decide, assume, bind or park, report.

    informers ─▶ cache, queue ─▶ pop ─▶ decide (pure) ─▶ Placed     ─▶ assume ─▶ binder ─▶ API
                                                     ├─▶ Preempting ─▶ evictor ─▶ API
                                                     └─▶ refused    ─▶ back-off ─▶ reporter ─▶ API

Everything that is decided is decided in `scheduler/`; here is only the doing. Safe without being
the only one: every bind is checked again by the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import assert_never

from phalanx.api.core import Pod
from phalanx.api.kinds import COMPOSITE_POD_GROUP, POD
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.event_recorder import EventRecorder, ObjectEvent
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.scheduling.bind_intents import BindIntents
from phalanx.controllers.scheduling.binder import (
    BindAttempt,
    BindResult,
    GroupBinder,
    PodBinder,
    RequestError,
)
from phalanx.controllers.scheduling.decision_log import DecisionLog
from phalanx.controllers.scheduling.event_handlers import EventHandlers
from phalanx.controllers.scheduling.evictor import Eviction, Evictor
from phalanx.controllers.scheduling.exact_solver import AsyncSolver, HighsSolver, InlineSolver
from phalanx.controllers.scheduling.metrics import SchedulingMetrics
from phalanx.controllers.scheduling.pending_status import PendingStatusReporter
from phalanx.controllers.scheduling.status_writer import (
    CompositeStatusWriter,
    ConditionUpdate,
    SchedulerView,
    SchedulingStatusWriter,
)
from phalanx.randomness import Random
from phalanx.scheduler.cluster.group_tree import GroupRef, group_ref
from phalanx.scheduler.configuration.profiles import DEFAULT_PROFILES, Profiles
from phalanx.scheduler.decision import (
    SCHEDULER_ERROR,
    Binding,
    Decision,
    Impossible,
    Placed,
    Preempting,
    Victim,
    Waiting,
    nominations_of,
)
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.explain import GroupMessage, explain
from phalanx.scheduler.queue.scheduler_state import SchedulerState
from phalanx.scheduler.search.solver import SolverAnswer, SolverRequest

#: Seconds between two looks whether what is decided upon can be seen again.
STALE_CACHE_PAUSE = 0.1


class Scheduler:
    """One scheduler, under one name or several.

    A `foreign` server is not one of ours: it binds pods one by one and counts no members. Where
    there is a `log`, everything that is seen and decided is written there. `solving` answers what
    a cycle asks an exact solver; by default on the loop itself.
    """

    def __init__(
        self, client: Client, informers: Informers, clock: Clock, random: Random,
        profiles: Profiles = DEFAULT_PROFILES, *, is_foreign: bool = False,
        decision_log: DecisionLog | None = None, solver: AsyncSolver | None = None,
    ) -> None:  # fmt: skip
        self._informers, self._clock, self._decision_log = informers, clock, decision_log
        self._is_foreign, self._solver = is_foreign, solver or InlineSolver(HighsSolver())
        self._solver.on_finished = self._on_search_finished
        self._state = desk = SchedulerState(profiles, decision_log.record if decision_log else None)
        self.cache, self.queue = desk.cache, desk.queue
        self._metrics = SchedulingMetrics(client.metrics, desk.queue, desk.cache, profiles)
        self._handlers = sight = EventHandlers(informers, desk, clock, self._metrics)
        census = SchedulerView(
            self.cache.count_placed_members, lambda: self.is_busy, writes_counts=not is_foreign,
            schedulers=tuple(profiles.policies),
        )  # fmt: skip
        self._status_writer = SchedulingStatusWriter(
            client, sight.pods, sight.groups, clock, census
        )
        self._composite_writer = CompositeStatusWriter(
            client, sight.groups, sight.composites, clock, self.cache.count_placed_members
        )
        self._recorders = {
            name: EventRecorder(client, clock, random, name, lambda: self.is_busy)
            for name in profiles.policies
        }
        self._pending = PendingStatusReporter(
            sight.pods,
            sight.groups,
            sight.composites,
            self._status_writer,
            self._composite_writer,
            self._record_event,
        )
        self._binder: GroupBinder | PodBinder = GroupBinder(
            client,
            self._on_bound,
            self._metrics.observe_batch,
            self._status_writer.group_binding_status,
        )
        if is_foreign:
            recorder = next(iter(self._recorders.values()))
            intents = BindIntents(
                client, random, sight.pods, sight.groups, self._status_writer, recorder
            )
            self._binder = PodBinder(client, intents, self._on_bound)
        self._evictor = Evictor(client, clock, self._on_evicted, is_foreign=is_foreign)
        #: Each is called with every entity, right before it is tried …
        self.before_cycle: list[Callable[[Entity], None]] = []
        #: … and with what was decided, right before that is acted upon.
        self.after_decision: list[Callable[[Entity, Decision], None]] = []
        self._wakeup = asyncio.Event()
        self._is_deciding = self._is_stopped = False
        sight.register(self._wakeup.set)

    @property
    def is_busy(self) -> bool:
        """Whether something is being decided or bound."""
        return self._is_deciding or self._binder.is_busy or self._evictor.is_busy

    async def run(self) -> None:
        """Schedule until cancelled."""
        await self._informers.wait_for_sync()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._binder.run())
            group.create_task(self._evictor.run())
            group.create_task(self._status_writer.run())
            group.create_task(self._composite_writer.run())
            for recorder in self._recorders.values():
                group.create_task(recorder.run())
            if self._decision_log:
                group.create_task(self._decision_log.run())
            group.create_task(self._report_pending())
            group.create_task(self._run_cycles())

    def stop_cycles(self) -> None:
        """Begin nothing more; what is being decided or bound goes on."""
        self._is_stopped = True
        self._wakeup.set()

    async def _run_cycles(self) -> None:
        while not self._is_stopped:
            if self._is_foreign and self._handlers.is_stale:
                # There nobody else checks whether there is room.
                await asyncio.sleep(STALE_CACHE_PAUSE)
                continue
            begin = self._clock.now()
            if self._decision_log and self._decision_log.needs_checkpoint:
                self._decision_log.begin(self._handlers.initial_records(begin))
            entity = self._state.pop(begin)
            if entity is None:
                await self._wait_for_work()
                continue
            self._is_deciding = True
            self._apply(entity, await self._decide(entity), begin)
            # Let requests through between two decisions.
            await asyncio.sleep(0)
            self._is_deciding = False

    async def _wait_for_work(self) -> None:
        """Wait for news, or for the next back-off to end."""
        until = self.queue.next_backoff_end()
        seconds = None if until is None else max(until - self._clock.now(), 0)
        self._wakeup.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._wakeup.wait()
        except TimeoutError:
            return

    async def _decide(self, entity: Entity) -> Decision:
        """One cycle over one snapshot, with pauses in which the API stays live."""
        for witness in self.before_cycle:
            witness(entity)
        cycle, answer = self._state.cycle(entity), None
        while True:
            try:
                step = cycle.send(answer)
            except StopIteration as end:
                decision: Decision = end.value
                return decision
            answer = await self._solve(step) if isinstance(step, SolverRequest) else None
            await asyncio.sleep(0)

    async def _solve(self, search: SolverRequest) -> SolverAnswer:
        answer = await self._solver(search.program)
        self._state.record_answer(answer, self._clock.now())
        return answer

    def _on_search_finished(self) -> None:
        """An answer is there that a cycle did not wait for."""
        self._state.finish_search(self._clock.now())
        self._wakeup.set()

    def _apply(self, entity: Entity, decision: Decision, begin: float) -> None:
        for witness in self.after_decision:
            witness(entity, decision)
        now = self._clock.now()
        self._metrics.observe_decision(entity, decision, now - begin)
        if not self._state.commit(entity, decision, now):
            return
        match decision:
            case Placed():
                self._binder.submit(BindAttempt(entity, decision, begin))
            case Preempting():
                groups = self._handlers.disrupted_groups(decision.victims)
                self._composite_writer.forget_updates(
                    meta for kind, meta in groups if kind is COMPOSITE_POD_GROUP
                )
                self._metrics.observe_preemption(entity, decision)
                self._evictor.submit(Eviction(entity, decision.victims, groups, now))
            case Waiting() | Impossible():
                pass
            case _:
                assert_never(decision)
        self._report_decision(entity, decision)

    def _report_decision(self, entity: Entity, decision: Decision) -> None:
        """Say why pods have no node: on them, on their groups, as events."""
        told, nodes = explain(decision), {pod: node for pod, _, node in nominations_of(decision)}
        pods = {member.pod.metadata.uid: member.pod for member in entity.members}
        for key, uid, reason, message in told.pods:
            verdict = ConditionUpdate("False", reason, message, nominated_node=nodes.get(key, ""))
            self._status_writer.report_pod(pods[uid].metadata, verdict)
            self._record_event(pods[uid], "FailedScheduling", message, "Warning")
        if entity.group is not None and not entity.is_composite and decision.lacks_quorum:
            verdict = ConditionUpdate("False", told.reason, told.message)
            self._status_writer.report_group(entity.group.metadata, verdict)
        self._report_groups(entity, [part for part in told.groups if not part.is_placed])

    def _report_groups(self, entity: Entity, sentences: Iterable[GroupMessage]) -> None:
        """Say of groups of a tree how they stand."""
        metas = {group_ref(one.group): one.group.metadata for one in entity.groups if one.group}
        for key, is_composite, is_placed, reason, message in sentences:
            status = "True" if is_placed else "False"
            meta, verdict = (
                metas[GroupRef(is_composite, key)],
                ConditionUpdate(status, reason, message),
            )
            say = (
                self._composite_writer.report_composite
                if is_composite
                else self._status_writer.report_group
            )
            say(meta, verdict)

    def _on_evicted(self, eviction: Eviction, errors: Mapping[Victim, RequestError]) -> None:
        """Victims were sent off, but for those with whom something went wrong."""
        entity, where = eviction.entity, "cluster"
        if errors:
            self._state.cancel_evictions([(one.pod, one.uid) for one in errors], self._clock.now())
        recorder = self._recorders[entity.scheduler_name]
        for victim in eviction.victims:
            pod = self._handlers.pods.get(victim.pod)
            if victim not in errors and pod is not None and pod.metadata.uid == victim.uid:
                place = where if entity.group else victim.node
                text = f"Preempted by {entity.kind} {entity.uid} on node {place}"
                recorder.record(ObjectEvent(POD, pod.metadata, "Preempted", text))
        seconds = self._clock.now() - eviction.decided_at
        self._metrics.observe_eviction(entity, succeeded=not errors, seconds=seconds)

    def _on_bound(self, result: BindResult) -> None:
        """A bind has ended, well or not."""
        entity = result.attempt.entity
        self._metrics.observe_binding(result, self._clock.now())
        pods = {member.pod.metadata.uid: member.pod for member in entity.members}
        for pod, uid, node in result.bound:
            if not result.is_reported:
                self._record_event(pods[uid], "Scheduled", f"Successfully assigned {pod} to {node}")
            self._status_writer.void_nominations(node, pods[uid].spec.priority)
        if result.failures:
            self._rollback(pods, result.failures)
        if entity.is_composite:
            self._report_groups(entity, _group_sentences(result))
        elif (
            entity.group is not None
            and not result.is_reported
            and (result.has_quorum or result.failures)
        ):
            self._status_writer.report_group(entity.group.metadata, _group_update(result))

    def _rollback(self, pods: Mapping[str, Pod], failures: Mapping[Binding, RequestError]) -> None:
        """Take back what was assumed; the pods wait again, after a pause."""
        self._state.rollback(failures, self._clock.now())
        for binding, trouble in failures.items():
            pod, why = pods[binding.uid], str(trouble)
            self._status_writer.report_pod(
                pod.metadata, ConditionUpdate("False", SCHEDULER_ERROR, why)
            )
            self._record_event(pod, "FailedScheduling", why, "Warning")
        self._wakeup.set()

    def _record_event(
        self, pod: Pod, reason: str, message: str, event_type: str = "Normal"
    ) -> None:
        """Tell what happened to a pod, in the name of the scheduler that it names."""
        recorder = self._recorders[pod.spec.scheduler_name]
        recorder.record(ObjectEvent(POD, pod.metadata, reason, message, event_type))

    async def _report_pending(self) -> None:
        """Tell groups and pods that are not even tried what they wait for.

        Looks on the full second: when somebody is told does not depend on when this began.
        """
        while True:
            await asyncio.sleep(1 - self._clock.now() % 1)
            self._pending.update(self.queue.held_back_entities(), self._clock.now())
            self._pending.update_trees(self.queue.broken_trees())


def _group_sentences(result: BindResult) -> list[GroupMessage]:
    """What a bind means for each group of a tree; what the server has told is told."""
    parts = explain(result.attempt.placed).groups
    if result.failures:
        why = str(next(iter(result.failures.values())))
        return [
            part._replace(is_placed=False, reason=SCHEDULER_ERROR, message=why) for part in parts
        ]
    return [part for part in parts if part.is_composite or not result.is_reported]


def _group_update(result: BindResult) -> ConditionUpdate:
    """What a bind means for the group."""
    if result.has_quorum:
        return ConditionUpdate("True", "Scheduled", "", result.attempt.entity.quorum)
    return ConditionUpdate("False", SCHEDULER_ERROR, str(next(iter(result.failures.values()))))
