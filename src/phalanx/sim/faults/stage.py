"""Where an ordeal takes place: a server, its users, and schedulers that come and go.

Makes every step of a plan happen, and nothing else. What users are refused is their own affair;
what the server breaks at, or anybody else, ends the ordeal.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import singledispatchmethod

from phalanx.api.errors import ApiError, ServerError
from phalanx.api.kinds import NAMESPACE, NODE, POD, PRIORITY_CLASS
from phalanx.api.meta import Key
from phalanx.api.wire import Reply, Request, Stream, User
from phalanx.chance import Chance
from phalanx.client.client import Client
from phalanx.client.transports import InProcess
from phalanx.clock import Clock
from phalanx.controllers.actions import Create, Delete, Patch, perform
from phalanx.controllers.groups.compositegroups import CompositeGroups
from phalanx.controllers.groups.podgroups import Protection
from phalanx.controllers.loop import Informers
from phalanx.server.access import MASTERS
from phalanx.server.app import Server
from phalanx.sim.faults import manifests
from phalanx.sim.faults.channel import Channel
from phalanx.sim.faults.instance import Instance, Witness
from phalanx.sim.faults.plan import SPACES
from phalanx.sim.faults.register import Register
from phalanx.sim.faults.steps import (
    BindByHand,
    Bury,
    Cut,
    Deed,
    Fault,
    Finish,
    Lag,
    Reap,
    SlowDisk,
    Spoil,
    SpoilBinds,
    SpoilEvictions,
    Start,
    Stop,
    Stutter,
)
from phalanx.sim.tail import Tail
from phalanx.store.memory import MemoryStore

#: Seconds that a commit takes, at least and at most.
LATENCY = (0.0001, 0.002)
#: Slots in which a scheduler can run.
SLOTS = 2


class Stage:
    """A server and everybody around it, who live as tasks of a group."""

    def __init__(
        self, clock: Clock, chance: Chance, witness: Witness, tasks: asyncio.TaskGroup
    ) -> None:
        self._clock, self._chance, self._witness, self._tasks = clock, chance, witness, tasks
        self._slowest = 0.0
        self.store = MemoryStore(self._latency)
        self.tail = Tail(self.store)
        self.register = Register(self.tail.pods)
        self.instances: dict[int, Instance] = {}
        #: What was broken, and how many steps of each sort did something.
        self.broken: list[str] = []
        self.done: Counter[str] = Counter()
        self._server = Server(self.store, clock, chance)
        self._user = Client(self._way("user"))
        self._channels = [Channel(self._way("scheduler"), chance) for _ in range(SLOTS)]
        self._channels[0].mutes_events = chance.between(0, 1) < 0.9
        self._channels[1].mutes_events = True
        self._controllers: list[asyncio.Task[None]] = []
        self._lives: dict[int, asyncio.Task[None]] = {}
        self._errands: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Have a server with what every cluster has, and somebody who protects groups."""
        await self._server.start()
        for name in SPACES[1:]:
            labels = {"team": "a"}
            await self._user.create(NAMESPACE, {"metadata": {"name": name, "labels": labels}})
        for name, worth in manifests.CLASSES.items():
            await self._user.create(PRIORITY_CLASS, {"metadata": {"name": name}, **worth})
        client = Client(self._way("controllers"))
        informers = Informers(client, self._chance)
        protection = Protection(client, informers)
        composites = CompositeGroups(client, informers, self._clock)
        parts = (protection.run(), composites.run(), informers.run())
        self._controllers = [self._tasks.create_task(part) for part in parts]

    async def close(self) -> None:
        """Let go of everybody."""
        for task in (*self._controllers, *self._lives.values()):
            task.cancel()
        await self._settle()
        await self.store.close()

    def begin(self, act: Deed | Fault) -> None:
        """Make a step happen; what takes time goes on by itself."""
        errand = self._tasks.create_task(self._act(act))
        self._errands.add(errand)
        errand.add_done_callback(self._errands.discard)

    async def heal(self) -> None:
        """Have nothing go wrong any more, and one scheduler running."""
        await self._settle()
        self._slowest = 0.0
        for channel in self._channels:
            channel.heal()
        await self._stop(1)
        await self._start(0)

    def resync(self) -> None:
        """Have every scheduler list everything anew."""
        self.store.compact(self.store.revision)
        for channel in self._channels:
            channel.cut()

    async def _settle(self) -> None:
        while self._errands:
            await asyncio.wait(self._errands)
        for channel in self._channels:
            await channel.close()

    async def _act(self, act: Deed | Fault) -> None:
        try:
            await self._do(act)
        except ApiError:
            self.done[f"refused {type(act).__name__}"] += 1
        else:
            self.done[type(act).__name__] += 1

    @singledispatchmethod
    async def _do(self, act: Deed | Fault) -> None:
        raise NotImplementedError(act)

    @_do.register
    async def _create(self, act: Create) -> None:
        await self._user.create(act.kind, act.obj)

    @_do.register
    async def _patch(self, act: Patch) -> None:
        await perform(self._user, act)

    @_do.register
    async def _delete(self, act: Delete) -> None:
        await perform(self._user, act)

    @_do.register
    async def _finish(self, act: Finish) -> None:
        pod = self.tail.pods.get(act.pod)
        if pod is not None and pod.node and not pod.metadata.deletion_timestamp:
            change = {"metadata": {"uid": pod.metadata.uid}, "status": {"phase": act.phase}}
            await perform(self._user, Patch(POD, act.pod, change, "status"))

    @_do.register
    async def _bind(self, act: BindByHand) -> None:
        pod = self.tail.pods.get(act.pod)
        if pod is not None and Key("", act.node) in self.tail.nodes:
            self.register.strangers[pod.metadata.uid] = None
            body = {
                "metadata": {"name": act.pod.name, "uid": pod.metadata.uid},
                "target": {"kind": NODE.name, "name": act.node},
            }
            await self._user.post(POD.path(*act.pod, "binding"), body)

    @_do.register
    async def _reap(self, act: Reap) -> None:
        if Key("", act.node) in self.tail.nodes:
            return
        for key, pod in list(self.tail.pods.items()):
            if pod.spec.node_name == act.node:
                await perform(self._user, Delete(POD, key, pod.metadata.uid, 0))

    @_do.register
    async def _bury(self, act: Bury) -> None:
        leaving = [pod for pod in self.tail.pods.values() if pod.metadata.deletion_timestamp]
        for pod in leaving[: act.most]:
            meta = pod.metadata
            await perform(self._user, Delete(POD, meta.key, meta.uid, 0))

    @_do.register
    async def _begin_life(self, act: Start) -> None:
        await self._start(act.slot)

    @_do.register
    async def _end_life(self, act: Stop) -> None:
        await self._stop(act.slot)

    @_do.register
    async def _lag(self, act: Lag) -> None:
        self._channels[act.slot].lag = act.seconds

    @_do.register
    async def _stutter(self, act: Stutter) -> None:
        self._channels[act.slot].stutters = act.on

    @_do.register
    async def _cut(self, act: Cut) -> None:
        self._channels[act.slot].cut()
        if act.forget:
            self.store.compact(self.store.revision)

    @_do.register
    async def _spoil_binds(self, act: SpoilBinds) -> None:
        self._channels[act.slot].spoil_binds(act.troubles)

    @_do.register
    async def _spoil_evictions(self, act: SpoilEvictions) -> None:
        self._channels[act.slot].spoil_evictions(act.troubles)

    @_do.register
    async def _spoil(self, act: Spoil) -> None:
        until = asyncio.get_running_loop().time() + act.seconds
        self._channels[act.slot].spoil(until, act.share, act.troubles)

    @_do.register
    async def _slow(self, act: SlowDisk) -> None:
        self._slowest = act.seconds

    async def _start(self, slot: int) -> None:
        if slot not in self._lives:
            instance = self.instances[slot] = Instance(
                self._channels[slot], self._clock, self._chance, self.tail, self.register,
                self._witness, self.broken.append,
            )  # fmt: skip
            self._lives[slot] = self._tasks.create_task(instance.run())

    async def _stop(self, slot: int) -> None:
        life = self._lives.pop(slot, None)
        if life is not None:
            del self.instances[slot]
            life.cancel()
            await asyncio.wait([life])

    def _latency(self) -> float:
        low, high = LATENCY
        return self._chance.between(low, self._slowest or high)

    def _way(self, name: str) -> InProcess:
        return InProcess(self._handle, User(name, (MASTERS,)))

    async def _handle(self, request: Request) -> Reply | Stream:
        answer = await self._server.handle(request)
        if answer.code == ServerError.code:
            self.broken.append(f"the server failed at {request.method} {request.path}")
        return answer
