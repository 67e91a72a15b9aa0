"""The scheduler's control loop: pop, decide, assume, bind or evict, report.

    informers ─▶ cache, queue ─▶ pop ─▶ decide (pure) ─▶ Placed     ─▶ assume ─▶ binder ─▶ API
                                                     ├─▶ Preempting ─▶ evictor ─▶ API
                                                     └─▶ Waiting    ─▶ back-off ─▶ status ─▶ API

All decisions are made in `phalanx.scheduler`; this module only carries them out. Several schedulers
may run at the same time: the server validates every GroupBinding again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import assert_never

from phalanx.api.core import Pod
from phalanx.api.kinds import COMPOSITE_POD_GROUP, POD
from phalanx.api.meta import COMPOSITE_POD_GROUP_KIND
from phalanx.api.scheduling import CompositePodGroup, PodGroup
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
from phalanx.controllers.scheduling.scheduling_log import SchedulingLog
from phalanx.controllers.scheduling.status_writer import (
    CompositeStatusWriter,
    ConditionUpdate,
    SchedulerView,
    SchedulingStatusWriter,
)
from phalanx.randomness import Random
from phalanx.scheduler.cluster.group_tree import group_ref
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

#: Seconds between two checks whether stale caches are up to date again.
STALE_CACHE_PAUSE = 0.1


class Scheduler:
    """One scheduler for all scheduler names of its profiles.

    A foreign server binds pods one by one and keeps no member counts in the status of groups. The
    `solver` answers the integer programs of a cycle; by default on the event loop.
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        random: Random,
        profiles: Profiles = DEFAULT_PROFILES,
        *,
        is_foreign: bool = False,
        decision_log: DecisionLog | None = None,
        solver: AsyncSolver | None = None,
    ) -> None:
        self._informers, self._clock, self._decision_log = informers, clock, decision_log
        self._is_foreign, self._solver = is_foreign, solver or InlineSolver(HighsSolver())
        self._solver.on_finished = self._on_search_finished
        self._state = SchedulerState(profiles, decision_log.record if decision_log else None)
        self.cache, self.queue = self._state.cache, self._state.queue
        self._metrics = SchedulingMetrics(client.metrics, self.queue, self.cache, profiles=profiles)
        self._log = SchedulingLog()
        self._handlers = handlers = EventHandlers(
            informers, self._state, clock, metrics=self._metrics
        )
        self._recorders = {
            name: EventRecorder(client, clock, random, component=name, is_busy=lambda: self.is_busy)
            for name in profiles.policies
        }
        view = SchedulerView(
            self.cache.count_placed_members,
            is_busy=lambda: self.is_busy,
            writes_counts=not is_foreign,
            schedulers=tuple(profiles.policies),
        )
        self._status_writer = SchedulingStatusWriter(
            client, handlers.pods, handlers.groups, clock=clock, scheduler_view=view
        )
        self._composite_writer = CompositeStatusWriter(
            client,
            handlers.groups,
            handlers.composites,
            clock=clock,
            placed_members=self.cache.count_placed_members,
        )
        self._pending = PendingStatusReporter(
            handlers.pods,
            handlers.groups,
            handlers.composites,
            status_writer=self._status_writer,
            composite_writer=self._composite_writer,
            record=self._record_event,
        )
        self._binder = self._build_binder(client, random, is_foreign=is_foreign)
        self._evictor = Evictor(client, clock, self._on_evicted, is_foreign=is_foreign)
        #: Hooks: called right before each cycle, and right before a decision is carried out.
        self.before_cycle: list[Callable[[Entity], None]] = []
        self.after_decision: list[Callable[[Entity, Decision], None]] = []
        self._wakeup = asyncio.Event()
        self._is_deciding = self._is_stopped = False
        handlers.groups.subscribe(self._on_group_changed)
        handlers.composites.subscribe(self._on_group_changed)
        handlers.register(self._wakeup.set)

    def _build_binder(
        self, client: Client, random: Random, *, is_foreign: bool
    ) -> GroupBinder | PodBinder:
        if not is_foreign:
            return GroupBinder(
                client,
                self._on_bound,
                on_batch=self._metrics.observe_batch,
                group_status=self._status_writer.group_binding_status,
            )
        intents = BindIntents(
            client,
            random,
            self._handlers.pods,
            groups=self._handlers.groups,
            status_writer=self._status_writer,
            recorder=next(iter(self._recorders.values())),
        )
        return PodBinder(client, intents, self._on_bound)

    @property
    def is_busy(self) -> bool:
        """Whether a decision, bind or eviction is in progress."""
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
        """Start no further cycle; decisions, binds and evictions in progress continue."""
        self._is_stopped = True
        self._wakeup.set()

    async def _run_cycles(self) -> None:
        while not self._is_stopped:
            if self._is_foreign and self._handlers.is_stale:
                # A foreign server does not check whether the resources of the node suffice.
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
            # Other tasks run between two decisions.
            await asyncio.sleep(0)
            self._is_deciding = False

    async def _wait_for_work(self) -> None:
        """Wait for an event, or for the end of the next back-off."""
        until = self.queue.next_backoff_end()
        seconds = None if until is None else max(until - self._clock.now(), 0)
        self._wakeup.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._wakeup.wait()
        except TimeoutError:
            return

    async def _decide(self, entity: Entity) -> Decision:
        """Run one cycle over one snapshot; other tasks run between its steps."""
        for hook in self.before_cycle:
            hook(entity)
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
        """Wake the entities that wait for a solver answer."""
        self._state.finish_search(self._clock.now())
        self._wakeup.set()

    def _apply(self, entity: Entity, decision: Decision, begin: float) -> None:
        for hook in self.after_decision:
            hook(entity, decision)
        now = self._clock.now()
        self._metrics.observe_decision(entity, decision, now - begin)
        self._log.log_decision(entity, decision, now - begin)
        if not self._state.commit(entity, decision, now):
            return
        match decision:
            case Placed():
                self._binder.submit(BindAttempt(entity, decision, popped_at=begin))
            case Preempting():
                groups = self._handlers.disrupted_groups(decision.victims)
                self._composite_writer.forget_updates(
                    meta for kind, meta in groups if kind is COMPOSITE_POD_GROUP
                )
                self._metrics.observe_preemption(entity, decision)
                self._evictor.submit(Eviction(entity, decision.victims, groups, decided_at=now))
            case Waiting() | Impossible():
                pass
            case _:
                assert_never(decision)
        self._report_decision(entity, decision)

    def _report_decision(self, entity: Entity, decision: Decision) -> None:
        """Write why pods have no node: conditions of pods and groups, and events."""
        explanation = explain(decision)
        self._log.log_waiting(entity, decision, explanation)
        nodes = {pod: node for pod, _, node in nominations_of(decision)}
        pods = {member.pod.metadata.uid: member.pod for member in entity.members}
        for key, uid, reason, message in explanation.pods:
            update = ConditionUpdate("False", reason, message, nominated_node=nodes.get(key, ""))
            self._status_writer.report_pod(pods[uid].metadata, update)
            self._record_event(pods[uid], "FailedScheduling", message, event_type="Warning")
        if entity.group is not None and not entity.is_composite and decision.lacks_quorum:
            update = ConditionUpdate("False", explanation.reason, explanation.message)
            self._status_writer.report_group(entity.group.metadata, update)
        self._report_groups(entity, [part for part in explanation.groups if not part.is_placed])

    def _report_groups(self, entity: Entity, messages: Iterable[GroupMessage]) -> None:
        """Write the conditions of the groups of a tree."""
        metas = {group_ref(part.group): part.group.metadata for part in entity.groups if part.group}
        for ref, is_placed, reason, message in messages:
            update = ConditionUpdate("True" if is_placed else "False", reason, message)
            if ref.kind == COMPOSITE_POD_GROUP_KIND:
                self._composite_writer.report_composite(metas[ref], update)
            else:
                self._status_writer.report_group(metas[ref], update)

    def _on_evicted(self, eviction: Eviction, errors: Mapping[Victim, RequestError]) -> None:
        """Record the outcome of an eviction: events, metrics, and failed victims in the state."""
        entity = eviction.entity
        self._log.log_eviction(eviction, errors)
        if errors:
            self._state.cancel_evictions([(one.pod, one.uid) for one in errors], self._clock.now())
        recorder = self._recorders[entity.scheduler_name]
        for victim in eviction.victims:
            pod = self._handlers.pods.get(victim.pod)
            if victim not in errors and pod is not None and pod.metadata.uid == victim.uid:
                node = "cluster" if entity.group else victim.node
                message = f"Preempted by {entity.kind} {entity.uid} on node {node}"
                recorder.record(ObjectEvent(POD, pod.metadata, "Preempted", message=message))
        seconds = self._clock.now() - eviction.decided_at
        self._metrics.observe_eviction(entity, succeeded=not errors, seconds=seconds)

    def _on_bound(self, result: BindResult) -> None:
        """Record the outcome of a bind: events, conditions, and failed pods in the state."""
        entity, now = result.attempt.entity, self._clock.now()
        self._metrics.observe_binding(result, now)
        self._log.log_bind(result, now)
        pods = {member.pod.metadata.uid: member.pod for member in entity.members}
        for pod, uid, node in result.bound:
            if not result.is_reported:
                self._record_event(pods[uid], "Scheduled", f"Successfully assigned {pod} to {node}")
            self._status_writer.void_nominations(node, pods[uid].spec.priority)
        if result.failures:
            self._rollback(pods, result.failures)
        if entity.is_composite:
            self._report_groups(entity, _group_messages(result))
        elif (
            entity.group is not None
            and not result.is_reported
            and (result.has_quorum or result.failures)
        ):
            if result.has_quorum:
                update = ConditionUpdate("True", "Scheduled", "", quorum=entity.quorum)
            else:
                error = next(iter(result.failures.values()))
                update = ConditionUpdate("False", SCHEDULER_ERROR, str(error))
            self._status_writer.report_group(entity.group.metadata, update)

    def _rollback(self, pods: Mapping[str, Pod], failures: Mapping[Binding, RequestError]) -> None:
        """Undo the assumed binds; the pods are queued again with back-off."""
        self._state.rollback(failures, self._clock.now())
        for binding, error in failures.items():
            pod, message = pods[binding.uid], str(error)
            self._status_writer.report_pod(
                pod.metadata, ConditionUpdate("False", SCHEDULER_ERROR, message)
            )
            self._record_event(pod, "FailedScheduling", message, event_type="Warning")
        self._wakeup.set()

    def _record_event(
        self, pod: Pod, reason: str, message: str, event_type: str = "Normal"
    ) -> None:
        """Record an event of a pod with the scheduler of its schedulerName as source."""
        recorder = self._recorders[pod.spec.scheduler_name]
        recorder.record(ObjectEvent(POD, pod.metadata, reason, message=message, type=event_type))

    def _on_group_changed(
        self, old: PodGroup | CompositePodGroup | None, new: PodGroup | CompositePodGroup | None
    ) -> None:
        if new is None and old is not None:
            self._log.forget(group_ref(old))

    async def _report_pending(self) -> None:
        """Report entities that cannot be tried yet, once a second.

        Runs on the full second, so that the time of a report does not depend on the start time.
        """
        while True:
            await asyncio.sleep(1 - self._clock.now() % 1)
            self._pending.update(self.queue.list_held_back(), self._clock.now())
            self._pending.update_trees(self.queue.broken_trees())


def _group_messages(result: BindResult) -> list[GroupMessage]:
    """Return the outcome of a bind for each group of a tree that the server has not reported."""
    parts = explain(result.attempt.placed).groups
    if result.failures:
        error = str(next(iter(result.failures.values())))
        return [
            part._replace(is_placed=False, reason=SCHEDULER_ERROR, message=error) for part in parts
        ]
    return [
        part
        for part in parts
        if part.ref.kind == COMPOSITE_POD_GROUP_KIND or not result.is_reported
    ]
