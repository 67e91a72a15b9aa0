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
from phalanx.chance import Chance
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.loop import Informers
from phalanx.controllers.recorder import Note, Recorder
from phalanx.controllers.shell.binder import Attempt, Binder, Outcome, Trouble
from phalanx.controllers.shell.decisionlog import DecisionLog
from phalanx.controllers.shell.evictor import Eviction, Evictor
from phalanx.controllers.shell.exact import AtOnce, Solver, Solving
from phalanx.controllers.shell.intents import Intents
from phalanx.controllers.shell.metrics import SchedulingMetrics
from phalanx.controllers.shell.podbinder import PodBinder
from phalanx.controllers.shell.reporter import Census, Reporter, Verdict
from phalanx.controllers.shell.sight import Sight
from phalanx.controllers.shell.treereporter import TreeReporter
from phalanx.controllers.shell.waits import Waits
from phalanx.scheduler.cluster.forest import Name, name_of
from phalanx.scheduler.decision import (
    SCHEDULER_ERROR,
    Binding,
    Decision,
    Impossible,
    Placed,
    Preempting,
    Victim,
    Waiting,
    promised,
)
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.explain import GroupSentence, explain
from phalanx.scheduler.queueing.desk import Desk
from phalanx.scheduler.rescue.program import Answer
from phalanx.scheduler.rescue.search import Search
from phalanx.scheduler.settings.profiles import DEFAULT_PROFILES, Profiles

#: Seconds between two looks whether what is decided upon can be seen again.
BLURRED_PAUSE = 0.1


class Scheduling:
    """One scheduler, under one name or several.

    A `foreign` server is not one of ours: it binds pods one by one and counts no members. Where
    there is a `log`, everything that is seen and decided is written there. `solving` answers what
    a cycle asks an exact solver; by default on the loop itself.
    """

    def __init__(
        self, client: Client, informers: Informers, clock: Clock, chance: Chance,
        profiles: Profiles = DEFAULT_PROFILES, *, foreign: bool = False,
        log: DecisionLog | None = None, solving: Solving | None = None,
    ) -> None:  # fmt: skip
        self._informers, self._clock, self._log = informers, clock, log
        self._foreign, self._solving = foreign, solving or AtOnce(Solver())
        self._solving.ended = self._searched
        self._desk = desk = Desk(profiles, log.note if log else None)
        self.cache, self.queue = desk.cache, desk.queue
        self._metrics = SchedulingMetrics(client.metrics, desk.queue, desk.cache, profiles)
        self._sight = sight = Sight(informers, desk, clock, self._metrics)
        census = Census(
            self.cache.placed, lambda: self.is_busy, counts=not foreign,
            schedulers=tuple(profiles.policies),
        )  # fmt: skip
        self._reporter = Reporter(client, sight.pods, sight.groups, clock, census)
        self._trees = TreeReporter(client, sight.groups, sight.composites, clock, self.cache.placed)
        self._recorders = {
            name: Recorder(client, clock, chance, name, lambda: self.is_busy)
            for name in profiles.policies
        }
        self._waits = Waits(
            sight.pods, sight.groups, sight.composites, self._reporter, self._trees, self._record
        )
        self._binder: Binder | PodBinder = Binder(
            client, self._bound, self._metrics.batched, self._reporter.standing
        )
        if foreign:
            recorder = next(iter(self._recorders.values()))
            intents = Intents(client, chance, sight.pods, sight.groups, self._reporter, recorder)
            self._binder = PodBinder(client, intents, self._bound)
        self._evictor = Evictor(client, clock, self._evicted, foreign=foreign)
        #: Each is called with every entity, right before it is tried …
        self.taken: list[Callable[[Entity], None]] = []
        #: … and with what was decided, right before that is acted upon.
        self.decided: list[Callable[[Entity, Decision], None]] = []
        self._news = asyncio.Event()
        self._deciding = self._retired = False
        sight.follow(self._news.set)

    @property
    def is_busy(self) -> bool:
        """Whether something is being decided or bound."""
        return self._deciding or self._binder.is_busy or self._evictor.is_busy

    async def run(self) -> None:
        """Schedule until cancelled."""
        await self._informers.synced()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._binder.run())
            group.create_task(self._evictor.run())
            group.create_task(self._reporter.run())
            group.create_task(self._trees.run())
            for recorder in self._recorders.values():
                group.create_task(recorder.run())
            if self._log:
                group.create_task(self._log.run())
            group.create_task(self._report_waiting())
            group.create_task(self._cycles())

    def retire(self) -> None:
        """Begin nothing more; what is being decided or bound goes on."""
        self._retired = True
        self._news.set()

    async def _cycles(self) -> None:
        while not self._retired:
            if self._foreign and self._sight.is_blurred:
                # There nobody else checks whether there is room.
                await asyncio.sleep(BLURRED_PAUSE)
                continue
            begin = self._clock.now()
            if self._log and self._log.wants_beginning:
                self._log.begin(self._sight.beginning(begin))
            entity = self._desk.take(begin)
            if entity is None:
                await self._rest()
                continue
            self._deciding = True
            self._act(entity, await self._decide(entity), begin)
            # Let requests through between two decisions.
            await asyncio.sleep(0)
            self._deciding = False

    async def _rest(self) -> None:
        """Wait for news, or for the next back-off to end."""
        until = self.queue.next_time()
        seconds = None if until is None else max(until - self._clock.now(), 0)
        self._news.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return

    async def _decide(self, entity: Entity) -> Decision:
        """One cycle over one snapshot, with pauses in which the API stays live."""
        for witness in self.taken:
            witness(entity)
        cycle, answer = self._desk.cycle(entity), None
        while True:
            try:
                step = cycle.send(answer)
            except StopIteration as end:
                decision: Decision = end.value
                return decision
            answer = await self._answer(step) if isinstance(step, Search) else None
            await asyncio.sleep(0)

    async def _answer(self, search: Search) -> Answer:
        answer = await self._solving(search.program)
        self._desk.answered(answer, self._clock.now())
        return answer

    def _searched(self) -> None:
        """An answer is there that a cycle did not wait for."""
        self._desk.searched(self._clock.now())
        self._news.set()

    def _act(self, entity: Entity, decision: Decision, begin: float) -> None:
        for witness in self.decided:
            witness(entity, decision)
        now = self._clock.now()
        self._metrics.decided(entity, decision, now - begin)
        if not self._desk.settle(entity, decision, now):
            return
        match decision:
            case Placed():
                self._binder.submit(Attempt(entity, decision, begin))
            case Preempting():
                groups = self._sight.disrupted(decision.victims)
                self._trees.disrupted(meta for kind, meta in groups if kind is COMPOSITE_POD_GROUP)
                self._metrics.evicting(entity, decision)
                self._evictor.submit(Eviction(entity, decision.victims, groups, now))
            case Waiting() | Impossible():
                pass
            case _:
                assert_never(decision)
        self._tell(entity, decision)

    def _tell(self, entity: Entity, decision: Decision) -> None:
        """Say why pods have no node: on them, on their groups, as events."""
        told, nodes = explain(decision), {pod: node for pod, _, node in promised(decision)}
        pods = {member.pod.metadata.uid: member.pod for member in entity.members}
        for key, uid, reason, message in told.pods:
            verdict = Verdict("False", reason, message, promised=nodes.get(key, ""))
            self._reporter.pod(pods[uid].metadata, verdict)
            self._record(pods[uid], "FailedScheduling", message, "Warning")
        if entity.group is not None and not entity.is_composite and decision.fails_group:
            verdict = Verdict("False", told.reason, told.message)
            self._reporter.group(entity.group.metadata, verdict)
        self._tell_parts(entity, [part for part in told.groups if not part.is_placed])

    def _tell_parts(self, entity: Entity, parts: Iterable[GroupSentence]) -> None:
        """Say of groups of a tree how they stand."""
        metas = {name_of(one.group): one.group.metadata for one in entity.groups if one.group}
        for key, is_composite, is_placed, reason, message in parts:
            status = "True" if is_placed else "False"
            meta, verdict = metas[Name(is_composite, key)], Verdict(status, reason, message)
            say = self._trees.composite if is_composite else self._reporter.group
            say(meta, verdict)

    def _evicted(self, eviction: Eviction, troubles: Mapping[Victim, Trouble]) -> None:
        """Victims were sent off, but for those with whom something went wrong."""
        entity, where = eviction.entity, "cluster"
        if troubles:
            self._desk.spare([(one.pod, one.uid) for one in troubles], self._clock.now())
        recorder = self._recorders[entity.scheduler]
        for victim in eviction.victims:
            pod = self._sight.pods.get(victim.pod)
            if victim not in troubles and pod is not None and pod.metadata.uid == victim.uid:
                place = where if entity.group else victim.node
                text = f"Preempted by {entity.sort} {entity.uid} on node {place}"
                recorder.record(Note(POD, pod.metadata, "Preempted", text))
        seconds = self._clock.now() - eviction.since
        self._metrics.evicted(entity, all_well=not troubles, seconds=seconds)

    def _bound(self, outcome: Outcome) -> None:
        """A bind has ended, well or not."""
        entity = outcome.attempt.entity
        self._metrics.bound(outcome, self._clock.now())
        pods = {member.pod.metadata.uid: member.pod for member in entity.members}
        for pod, uid, node in outcome.bound:
            if not outcome.told:
                self._record(pods[uid], "Scheduled", f"Successfully assigned {pod} to {node}")
            self._reporter.outbid(node, pods[uid].spec.priority)
        if outcome.failures:
            self._unbind(pods, outcome.failures)
        if entity.is_composite:
            self._tell_parts(entity, _said_of_parts(outcome))
        elif entity.group is not None and not outcome.told and (outcome.enough or outcome.failures):
            self._reporter.group(entity.group.metadata, _verdict(outcome))

    def _unbind(self, pods: Mapping[str, Pod], failures: Mapping[Binding, Trouble]) -> None:
        """Take back what was assumed; the pods wait again, after a pause."""
        self._desk.undo(failures, self._clock.now())
        for binding, trouble in failures.items():
            pod, why = pods[binding.uid], str(trouble)
            self._reporter.pod(pod.metadata, Verdict("False", SCHEDULER_ERROR, why))
            self._record(pod, "FailedScheduling", why, "Warning")
        self._news.set()

    def _record(self, pod: Pod, reason: str, message: str, sort: str = "Normal") -> None:
        """Tell what happened to a pod, in the name of the scheduler that it names."""
        recorder = self._recorders[pod.spec.scheduler_name]
        recorder.record(Note(POD, pod.metadata, reason, message, sort))

    async def _report_waiting(self) -> None:
        """Tell groups and pods that are not even tried what they wait for.

        Looks on the full second: when somebody is told does not depend on when this began.
        """
        while True:
            await asyncio.sleep(1 - self._clock.now() % 1)
            self._waits.look(self.queue.waiting(), self._clock.now())
            self._waits.look_at_trees(self.queue.misplaced())


def _said_of_parts(outcome: Outcome) -> list[GroupSentence]:
    """What a bind means for each group of a tree; what the server has told is told."""
    parts = explain(outcome.attempt.placed).groups
    if outcome.failures:
        why = str(next(iter(outcome.failures.values())))
        return [
            part._replace(is_placed=False, reason=SCHEDULER_ERROR, message=why) for part in parts
        ]
    return [part for part in parts if part.is_composite or not outcome.told]


def _verdict(outcome: Outcome) -> Verdict:
    """What a bind means for the group."""
    if outcome.enough:
        return Verdict("True", "Scheduled", "", outcome.attempt.entity.quorum)
    return Verdict("False", SCHEDULER_ERROR, str(next(iter(outcome.failures.values()))))
