"""The scheduler's shell: pop, decide, assume, bind or park, report.

    informers ─▶ cache, queue ─▶ pop ─▶ decide (pure) ─▶ Placed   ─▶ assume ─▶ binder ─▶ API
                                                     └─▶ refused  ─▶ back-off ─▶ reporter ─▶ API

Everything that is decided is decided in `scheduler/`; here is only the doing. Safe without being
the only one: every bind is checked again by the server.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar, assert_never

from phalanx.api.core import Node, Pod, Service
from phalanx.api.errors import ApiError
from phalanx.api.kinds import NAMESPACE, NODE, POD, POD_GROUP, SERVICE
from phalanx.api.meta import Key
from phalanx.api.scheduling import PodGroup
from phalanx.chance import Chance
from phalanx.client.cache import Cache as View
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.clock import Clock
from phalanx.controllers.binder import Attempt, Binder
from phalanx.controllers.loop import Informers, Thing
from phalanx.controllers.recorder import Note, Recorder
from phalanx.controllers.reporter import Census, Reporter, Verdict
from phalanx.scheduler.cache import Cache
from phalanx.scheduler.cycle import steps
from phalanx.scheduler.decision import Decision, Impossible, Placed, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.events import Event
from phalanx.scheduler.explain import explain, not_ready
from phalanx.scheduler.policy import DEFAULT, Policy
from phalanx.scheduler.queue import Place, Queue

#: The reason of a pod whose group cannot be tried yet.
NOT_READY = "NotReadyForScheduling"
#: Seconds after which a group that cannot be tried says so, and its pods too.
GROUP_PATIENCE, POD_PATIENCE = 1.0, 5.0

T = TypeVar("T")


class Scheduling:
    """One scheduler, by name."""

    def __init__(
        self, client: Client, informers: Informers, clock: Clock, chance: Chance,
        name: str = "default-scheduler", policy: Policy = DEFAULT,
    ) -> None:  # fmt: skip
        self._informers, self._clock, self._policy = informers, clock, policy
        self._pods = informers.of(POD, Pod)
        # Where groups do not count, they need not even be served.
        self._groups = informers.of(POD_GROUP, PodGroup) if policy.groups else None
        groups = self._groups.cache if self._groups else View[PodGroup]()
        self._nodes = informers.of(NODE, Node)
        self._namespaces = informers.of(NAMESPACE, Thing)
        self._services = informers.of(SERVICE, Service)
        self.cache, self.queue = Cache(), Queue(name)
        self._binder = Binder(client, self._bound)
        census = Census(self.cache.placed, lambda: self.is_busy)
        self._reporter = Reporter(client, self._pods.cache, groups, clock, census)
        self._recorder = Recorder(client, clock, chance, name, lambda: self.is_busy)
        self._news = asyncio.Event()
        self._deciding = False
        self._listen()

    @property
    def is_busy(self) -> bool:
        """Whether something is being decided or bound."""
        return self._deciding or self._binder.is_busy

    async def run(self) -> None:
        """Schedule until cancelled."""
        await self._informers.synced()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._binder.run())
            group.create_task(self._reporter.run())
            group.create_task(self._recorder.run())
            group.create_task(self._report_waiting())
            group.create_task(self._cycles())

    async def _cycles(self) -> None:
        while True:
            entity = self.queue.pop(self._clock.now())
            if entity is None:
                await self._rest()
                continue
            self._deciding = True
            self._act(entity, await self._decide(entity))
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
        cycle = steps(entity, self.cache.snapshot(), self._policy)
        while True:
            try:
                next(cycle)
            except StopIteration as end:
                decision: Decision = end.value
                return decision
            await asyncio.sleep(0)

    def _act(self, entity: Entity, decision: Decision) -> None:
        match decision:
            case Placed():
                self._wake(*self.cache.assume(decision.bindings))
                self._binder.submit(Attempt(entity, decision))
            case Waiting() | Impossible():
                pass
            case _:
                assert_never(decision)
        self.queue.done(entity, decision, self._clock.now())
        self._tell(entity, decision)

    def _tell(self, entity: Entity, decision: Decision) -> None:
        """Say why pods have no node: on them, on their group, as events."""
        told = explain(decision)
        pods = {member.pod.metadata.uid: member.pod for member in entity.members}
        for key, uid, reason, message in told.pods:
            self._reporter.pod(key, uid, Verdict("False", reason, message))
            about = pods[uid].metadata
            self._recorder.record(Note(POD, about, "FailedScheduling", message, "Warning"))
        if entity.group is not None and not isinstance(decision, Placed):
            verdict = Verdict("False", told.reason, told.message)
            self._reporter.group(entity.key, verdict)

    def _bound(self, attempt: Attempt, error: ApiError | Unreachable | None) -> None:
        """A bind has ended, well or not."""
        entity, placed = attempt
        if error is not None:
            self._unbind(attempt, str(error))
            return
        metas = {m.pod.metadata.uid: m.pod.metadata for m in entity.members}
        for pod, uid, node in placed.bindings:
            text = f"Successfully assigned {pod} to {node}"
            self._recorder.record(Note(POD, metas[uid], "Scheduled", text))
        if entity.group is not None:
            self._reporter.group(entity.key, Verdict("True", "Scheduled", "", entity.quorum))

    def _unbind(self, attempt: Attempt, why: str) -> None:
        """Take back what was assumed; the pods wait again, after a pause."""
        entity, placed = attempt
        now = self._clock.now()
        freed = self.cache.forget(placed.bindings)
        self.queue.returned(placed.bindings, now)
        self._wake(*freed)
        for member in entity.members:
            note = Note(POD, member.pod.metadata, "FailedScheduling", why, "Warning")
            self._recorder.record(note)
        self._news.set()

    async def _report_waiting(self) -> None:
        """Tell groups and pods that are not even tried what they wait for."""
        since: dict[tuple[Key, str], float] = {}
        while True:
            await asyncio.sleep(GROUP_PATIENCE)
            now = self._clock.now()
            places = {(place.key, _missing(place)): place for place in self.queue.waiting()}
            since = {key: since.get(key, now) for key in places}
            for key, place in places.items():
                self._tell_waiting(place, now - since[key])

    def _tell_waiting(self, place: Place, waited: float) -> None:
        verdict = Verdict("False", NOT_READY, _missing(place), waiting=True)
        if place.is_group:
            self._reporter.group(place.key, verdict)
        if waited < POD_PATIENCE:
            return
        for key in place.pods:
            pod = self._pods.cache.get(key)
            if pod is not None:
                self._reporter.pod(key, pod.metadata.uid, verdict)

    def _listen(self) -> None:
        """Have everything that is seen told to the cache and the queue."""
        self._namespaces.cache.subscribe(self._namespace_changed)
        self._services.cache.subscribe(self._service_changed)
        self._nodes.cache.subscribe(self._node_changed)
        self._nodes.settled.append(self._news.set)
        if self._groups is not None:
            self._groups.cache.subscribe(self._group_changed)
            self._groups.settled.append(self._news.set)
        self._pods.cache.subscribe(self._pod_changed)
        self._pods.settled.append(self._news.set)

    def _namespace_changed(self, old: Thing | None, new: Thing | None) -> None:
        labels = new.metadata.labels if new else None
        if old is None or new is None or old.metadata.labels != labels:
            self._wake(self.cache.namespace(_either(old, new).metadata.name, labels))

    def _service_changed(self, old: Service | None, new: Service | None) -> None:
        self.cache.service(_either(old, new).metadata.key, new.spec.selector if new else None)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        name = _either(old, new).metadata.name
        self._wake(self.cache.node(name, new))

    def _group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        key, now = _either(old, new).metadata.key, self._clock.now()
        self.cache.group(key, new)
        if new is None:
            self.queue.group_gone(key, now)
        else:
            self.queue.group(new, now)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        key, now = _either(old, new).metadata.key, self._clock.now()
        if new is not None and not self._policy.groups:
            new = new.alone
        freed = self.cache.pod(key, new)
        if new is None:
            self.queue.pod_gone(key, now)
        else:
            self.queue.pod(new, now)
        self._wake(*freed)

    def _wake(self, *events: Event | None) -> None:
        for event in events:
            if event is not None:
                self.queue.wake(event, self._clock.now())


def _either(old: T | None, new: T | None) -> T:
    """Of a change one side is always there."""
    found = new if new is not None else old
    assert found is not None
    return found


def _missing(place: Place) -> str:
    return not_ready(place.unready) if place.unready else ""
