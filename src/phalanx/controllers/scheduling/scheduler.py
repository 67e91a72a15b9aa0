"""The scheduler's control loop: pop, decide, assume, bind or evict, report.

    informers ─▶ cache, queue ─▶ pop ─▶ decide (pure) ─▶ Placed     ─▶ assume ─▶ binder ─▶ API
                                                     ├─▶ Preempting ─▶ evictor ─▶ API
                                                     └─▶ Waiting    ─▶ back-off ─▶ status ─▶ API

All decisions are made in `phalanx.scheduler`; this module only carries them out. Several schedulers
may run at the same time: the server validates every GroupBinding again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import assert_never

from phalanx import logs
from phalanx.api.core import Pod
from phalanx.api.errors import NotFound
from phalanx.api.kinds import COMPOSITE_POD_GROUP, POD, POD_GROUP
from phalanx.api.meta import COMPOSITE_POD_GROUP_KIND, Key
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.api.wire import Object
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
    PreBindQueue,
    RequestError,
)
from phalanx.controllers.scheduling.claim_writer import ClaimWriter, IdleClaimReleaser
from phalanx.controllers.scheduling.composite_status_writer import CompositeStatusWriter
from phalanx.controllers.scheduling.decision_log import DecisionLog
from phalanx.controllers.scheduling.device_prebinder import DevicePreBinder
from phalanx.controllers.scheduling.event_handlers import EventHandlers
from phalanx.controllers.scheduling.evictor import Eviction, Evictor
from phalanx.controllers.scheduling.exact_solver import AsyncSolver, HighsSolver, InlineSolver
from phalanx.controllers.scheduling.metrics import SchedulingMetrics
from phalanx.controllers.scheduling.pending_status import PendingStatusReporter
from phalanx.controllers.scheduling.report_limits import FailureEvents
from phalanx.controllers.scheduling.scheduling_log import SchedulingLog
from phalanx.controllers.scheduling.status_writer import (
    ConditionUpdate,
    SchedulerView,
    SchedulingStatusWriter,
)
from phalanx.controllers.scheduling.volume_prebinder import VolumePreBinder
from phalanx.randomness import Random
from phalanx.scheduler.cluster.group_tree import group_ref
from phalanx.scheduler.decision import (
    SCHEDULER_ERROR,
    Binding,
    ClaimReservation,
    Decision,
    Impossible,
    Placed,
    Preempting,
    Victim,
    Waiting,
    nominations_of,
)
from phalanx.scheduler.entity import Entity, reject_after_error
from phalanx.scheduler.explain import Explanation, GroupMessage, explain
from phalanx.scheduler.placement.claim_placement import find_idle_claim
from phalanx.scheduler.policy import DEFAULT_PROFILES, Profiles
from phalanx.scheduler.queue.scheduler_state import SchedulerState
from phalanx.scheduler.reservation.reservation import Reservation
from phalanx.scheduler.search.solver import SolverAnswer, SolverRequest
from phalanx.scheduler.shortfall import find_shortfalls

LOG = logs.component("scheduler")

#: The label of the scheduler in `phalanx_reconcile_errors_total`.
CONTROLLER = "scheduler"
#: Seconds between two checks whether stale caches are up to date again.
STALE_CACHE_PAUSE = 0.1


class Scheduler:
    """One scheduler for all scheduler names of its profiles.

    A foreign server binds pods one by one and keeps no member counts in the status of groups. The
    `solver` answers the integer programs of a cycle; by default on the event loop.
    """

    #: The reservations that were logged and written last.
    _reported_reservations: tuple[Reservation, ...] = ()

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        *,
        random: Random,
        profiles: Profiles = DEFAULT_PROFILES,
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
        self._log, self._failure_events = SchedulingLog(), FailureEvents(clock)
        self._errors = client.errors
        handlers = EventHandlers(informers, self._state, clock, metrics=self._metrics)
        self._handlers = handlers
        self._recorders = {
            name: EventRecorder(client, clock, random, component=name, is_busy=lambda: self.is_busy)
            for name in profiles.policies
        }
        view = SchedulerView(
            self.cache.count_placed_members,
            is_busy=lambda: self.is_busy,
            has_counts=lambda key: not is_foreign or informers.is_converted(POD_GROUP, key),
            schedulers=tuple(profiles.policies),
        )
        self._status_writer = SchedulingStatusWriter(
            client, handlers.pods, handlers.groups, clock=clock, scheduler_view=view
        )
        counts, composites = self.cache.count_placed_members, handlers.composites
        self._composite_writer = CompositeStatusWriter(
            client, handlers.groups, composites, clock=clock, placed_members=counts
        )
        self._pending = PendingStatusReporter(
            handlers.pods,
            handlers.groups,
            handlers.composites,
            status_writer=self._status_writer,
            composite_writer=self._composite_writer,
            record=self._record_event,
            on_error=self._on_report_error,
        )
        self._binder = self._build_binder(client, random, is_foreign=is_foreign)
        self._evictor = Evictor(client, clock, self._on_evicted, is_foreign=is_foreign)
        #: Hooks: awaited before each pop; called before each cycle, and before each decision acts.
        self.before_pop: list[Callable[[], Awaitable[None]]] = []
        self.before_cycle: list[Callable[[Entity], None]] = []
        self.after_decision: list[Callable[[Entity, Decision], None]] = []
        self._wakeup, self._is_deciding, self._is_stopped = asyncio.Event(), False, False
        #: Set while entities may be held back that have not been reported.
        self._has_unreported = asyncio.Event()
        handlers.groups.subscribe(self._on_group_changed)
        handlers.composites.subscribe(self._on_group_changed)
        handlers.register(self._on_batch)

    def _on_batch(self) -> None:
        """Observed objects have changed."""
        self._wakeup.set()
        self._has_unreported.set()

    def _build_binder(
        self, client: Client, random: Random, *, is_foreign: bool
    ) -> GroupBinder | PodBinder:
        self._idle_claims = IdleClaimReleaser(client)
        volumes = VolumePreBinder(
            client, self._handlers.volume_caches, self._clock, is_foreign=is_foreign
        )
        writer = ClaimWriter(client, random)
        self._devices = DevicePreBinder(writer, self._handlers.device_claims)
        pre_binds = PreBindQueue(volumes, self._on_claims_awaited, self._devices)
        if not is_foreign:
            return GroupBinder(
                client,
                self._on_bound,
                on_batch=self._metrics.observe_batch,
                group_status=self._status_writer.group_binding_status,
                pre_binds=pre_binds,
            )
        intents = BindIntents(
            client,
            random,
            self._handlers.pods,
            groups=self._handlers.groups,
            status_writer=self._status_writer,
            recorder=next(iter(self._recorders.values())),
        )
        return PodBinder(
            client,
            intents,
            self._on_bound,
            claims=writer,
            pre_binds=pre_binds,
            find_overfull=self.cache.overfull_nodes,
        )

    @property
    def is_busy(self) -> bool:
        """Whether a decision, bind or eviction is in progress."""
        return self._is_deciding or self._binder.is_busy or self._evictor.is_busy

    @property
    def reservations(self) -> tuple[Reservation, ...]:
        """The reservations of the last plan."""
        return self._state.reservations.current

    async def run(self) -> None:
        """Schedule until cancelled."""
        await self._informers.wait_for_sync()
        tasks = [
            self._binder.run,
            self._evictor.run,
            self._idle_claims.run,
            self._status_writer.run,
            self._composite_writer.run,
            *(recorder.run for recorder in self._recorders.values()),
            *([self._decision_log.run] if self._decision_log else []),
            self._report_pending,
            self._run_cycles,
        ]
        async with asyncio.TaskGroup() as group:
            for run in tasks:
                group.create_task(self._errors.keep_running(run, LOG, controller=CONTROLLER))

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
            for wait in self.before_pop:
                await wait()
            begin = self._clock.now()
            if self._decision_log and self._decision_log.needs_checkpoint:
                self._decision_log.begin(self._handlers.initial_records(begin))
            await self._plan_reservations(begin)
            entity = self._state.pop(begin)
            if entity is None:
                await self._wait_for_work()
                continue
            self._is_deciding = True
            try:
                await self._attempt(entity, begin)
                self._has_unreported.set()
                # Other tasks run between two decisions.
                await asyncio.sleep(0)
            finally:
                self._is_deciding = False

    async def _plan_reservations(self, now: float) -> None:
        """Plan the reservations again if that is due; other tasks run between the steps."""
        try:
            for _ in self._state.plan_reservations(now):
                await asyncio.sleep(0)
        except Exception as error:
            self._errors.contain(
                error, LOG, "reservations not planned, retrying", controller=CONTROLLER
            )
        self._report_reservations()

    def _report_reservations(self) -> None:
        """Write which groups have a reservation, if that has changed."""
        current = self._state.reservations.current
        if current == self._reported_reservations:
            return
        self._log.log_reservations(self._reported_reservations, current)
        self._reported_reservations = current
        self._metrics.count_reservations(current)
        self._status_writer.report_reservations(
            {
                group: ConditionUpdate("True", one.reason, one.message)
                for one in current
                for group in one.groups
            }
        )

    async def _attempt(self, entity: Entity, begin: float) -> None:
        """Decide about an entity and act; one that cannot be decided about is pending."""
        try:
            self._apply(entity, await self._decide(entity), begin)
        except Exception as error:
            self._errors.contain(
                error,
                LOG,
                "scheduling cycle failed, retrying",
                controller=CONTROLLER,
                kind=entity.ref.kind,
                key=entity.key,
                attempt=entity.attempts,
            )
            if self.queue.is_in_flight(entity):
                self._apply(entity, reject_after_error(entity, error), begin)

    async def _wait_for_work(self) -> None:
        """Wait for an event, or for the end of the next back-off."""
        times = (self.queue.next_backoff_end(), self._state.reservations.next_time())
        until = min((time for time in times if time is not None), default=None)
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
                policy = self._state.profiles.policy(entity)
                self._binder.submit(
                    BindAttempt(
                        entity,
                        decision,
                        popped_at=begin,
                        volume_timeout=policy.bind_timeout_seconds,
                        device_timeout=policy.device_timeout_seconds,
                    )
                )
            case Preempting():
                groups = self._handlers.disrupted_groups(decision)
                self._composite_writer.forget_updates(
                    meta for kind, meta in groups if kind is COMPOSITE_POD_GROUP
                )
                self._metrics.observe_preemption(entity, decision)
                pods = self._handlers.victim_pods(decision.victims)
                self._evictor.submit(
                    Eviction(entity, decision.victims, pods, groups, decided_at=now)
                )
            case Waiting():
                if idle := find_idle_claim(entity, decision, self.cache.snapshot()):
                    self._idle_claims.submit(idle)
            case Impossible():
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
            if entity.group is None and self._failure_events.is_new(uid, reason, message):
                self._record_event(pods[uid], "FailedScheduling", message, event_type="Warning")
        self._record_group_failure(entity, decision, explanation)
        if entity.group is not None and not entity.is_composite and decision.lacks_quorum:
            update = ConditionUpdate("False", explanation.reason, explanation.message)
            self._status_writer.report_group(entity.group.metadata, update)
        self._report_groups(entity, [part for part in explanation.groups if not part.is_placed])
        if entity.group is not None:
            for shortfall in find_shortfalls(entity, decision, self._handlers.node_label):
                self._status_writer.report_shortfall(shortfall)

    def _record_group_failure(
        self, entity: Entity, decision: Decision, explanation: Explanation
    ) -> None:
        """Record one event per group and reason, not one per pod and attempt."""
        if entity.group is None:
            return
        if isinstance(decision, Placed):
            self._failure_events.forget(entity.uid)
        elif self._failure_events.is_new(entity.uid, explanation.reason):
            kind = COMPOSITE_POD_GROUP if entity.is_composite else POD_GROUP
            event = ObjectEvent(
                kind,
                entity.group.metadata,
                "FailedScheduling",
                message=explanation.message,
                type="Warning",
            )
            self._recorders[entity.scheduler_name].record(event)

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
        failed = {one: error for one, error in errors.items() if not isinstance(error, NotFound)}
        self._log.log_eviction(eviction, failed)
        if failed:
            self._state.cancel_evictions([(one.pod, one.uid) for one in failed], self._clock.now())
        recorder, disrupted = self._recorders[entity.scheduler_name], dict[Key, None]()
        for victim, pod in eviction.pods.items():
            if victim not in errors:
                node = "cluster" if entity.group else victim.node
                message = f"Preempted by {entity.kind} {entity.uid} on node {node}"
                recorder.record(
                    ObjectEvent(
                        POD,
                        pod.metadata,
                        "Preempted",
                        message=message,
                        related=_reference_to(entity),
                    )
                )
                disrupted |= {pod.group: None} if pod.group else {}
        for group in disrupted:
            self._status_writer.report_preemption(group, str(entity.ref))
        seconds = self._clock.now() - eviction.decided_at
        self._metrics.observe_eviction(entity, succeeded=not failed, seconds=seconds)

    def _on_claims_awaited(self, attempt: BindAttempt) -> None:
        """Write the nodes for which claims are prepared; no condition, as in Kubernetes."""
        entity = attempt.entity
        pods = {member.pod.metadata.uid: member.pod for member in entity.members}
        claims: dict[str, list[ClaimReservation]] = {}
        for one in attempt.placed.claims:
            claims.setdefault(one.pod_uid, []).append(one)
        for _, uid, node in attempt.placed.bindings:
            nomination = ConditionUpdate("", "", "", nominated_node=node)
            self._status_writer.report_pod(pods[uid].metadata, nomination)
            if self._devices.is_needed(claims.get(uid, ())):
                message = f"Waiting until drivers have prepared the devices on node {node}"
                self._record_event(pods[uid], "BindingConditionsPending", message)
        if isinstance(entity.group, PodGroup):
            update = ConditionUpdate("True", "Scheduled", "", quorum=entity.quorum)
            self._status_writer.report_group(entity.group.metadata, update)

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
        self._on_batch()

    def _record_event(
        self, pod: Pod, reason: str, message: str, *, event_type: str = "Normal"
    ) -> None:
        """Record an event of a pod with the scheduler of its schedulerName as source."""
        recorder = self._recorders[pod.spec.scheduler_name]
        recorder.record(ObjectEvent(POD, pod.metadata, reason, message=message, type=event_type))

    def _on_group_changed(
        self, old: PodGroup | CompositePodGroup | None, new: PodGroup | CompositePodGroup | None
    ) -> None:
        if new is None and old is not None:
            self._log.forget(group_ref(old))
            self._failure_events.forget(old.metadata.uid)

    def _on_report_error(self, error: Exception, key: Key) -> None:
        message = "pending entity not reported"
        self._errors.contain(error, LOG, message, controller=CONTROLLER, key=key)

    async def _report_pending(self) -> None:
        """Report entities that cannot be tried yet, once a second.

        Runs on the full second, so that the time of a report does not depend on the start time.
        Pauses while no entity is held back and nothing changes.
        """
        while True:
            await self._has_unreported.wait()
            await asyncio.sleep(1 - self._clock.now() % 1)
            self._has_unreported.clear()
            for key in self._state.take_voided_nominations():
                self._status_writer.void_nomination(key)
            held_back, trees = self.queue.list_held_back(), list(self.queue.broken_trees())
            self._pending.update(held_back, self._clock.now())
            self._pending.update_trees(trees)
            if held_back or trees:
                self._has_unreported.set()


def _reference_to(entity: Entity) -> Object:
    """Return an ObjectReference to the group, or to the pod without a group."""
    kind = {one.name: one for one in (POD, POD_GROUP, COMPOSITE_POD_GROUP)}[entity.ref.kind]
    return {
        "kind": kind.name,
        "apiVersion": kind.api_version,
        "namespace": entity.key.namespace,
        "name": entity.key.name,
        "uid": entity.uid,
    }


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
