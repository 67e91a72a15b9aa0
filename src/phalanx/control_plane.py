"""The whole control plane on one event loop: server, scheduler, controllers, nodes.

Stands above `server/` and `controllers/`, which do not know each other, and below `sim/` and
`cli/`, which run it in virtual time or on the network. Each part has a client of its own and
meets the others only through the API.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence

from phalanx.api.conversion import STORED
from phalanx.api.gates import DEFAULT, WORKLOAD_WITH_JOB, Gates
from phalanx.api.kinds import KINDS, POD_GROUP, Kind
from phalanx.api.wire import User
from phalanx.chance import Chance
from phalanx.client.client import Client
from phalanx.client.transports import InProcess
from phalanx.clock import Clock
from phalanx.controllers.decisionlog import DecisionLog
from phalanx.controllers.disruption import Disruption
from phalanx.controllers.garbage import Garbage
from phalanx.controllers.jobs.controller import Jobs
from phalanx.controllers.jobs.groups import Settings as JobObjects
from phalanx.controllers.loop import Informers
from phalanx.controllers.namespaces import Namespaces
from phalanx.controllers.nodes import Nodes, SimulatedNode
from phalanx.controllers.podgroups import Protection
from phalanx.controllers.recorder import Recorder
from phalanx.controllers.replicagroups import ReplicaGroups
from phalanx.controllers.scheduling import Scheduling
from phalanx.scheduler.profiles import DEFAULT_PROFILES, Profiles, by_gates
from phalanx.server.access import MASTERS, Tokens
from phalanx.server.app import Server
from phalanx.store.kv import Store

#: Something that runs until it is cancelled.
Part = Callable[[], Coroutine[None, None, None]]


class ControlPlane:
    """Everything that makes a cluster, wired together.

    `without` names parts to leave out, `gates` say which features are on, `profiles` how pods are
    placed, `kinds` what the server knows at all. The scheduler's decisions go to the `log`.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        chance: Chance,
        *,
        nodes: Sequence[SimulatedNode] = (),
        without: Collection[str] = (),
        tokens: Tokens | None = None,
        gates: Gates = DEFAULT,
        profiles: Profiles = DEFAULT_PROFILES,
        kinds: Sequence[Kind] = KINDS,
        log: DecisionLog | None = None,
    ) -> None:
        self.server = Server(store, clock, chance, kinds, tokens, gates)
        self._store, self._clock, self._chance = store, clock, chance
        self._nodes, self._without, self._gates = nodes, without, gates
        self._profiles, self._log = profiles, log

    def client(self, name: str) -> Client:
        """A client in this process, for a part or a test of that name."""
        return Client(InProcess(self.server.handle, User(name, (MASTERS,))))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have every part run while the context lasts; a part that breaks breaks the whole."""
        await self.server.start()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run()) for run in await self._parts()]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
        await self._store.close()

    async def _parts(self) -> list[Part]:
        """What is to run, ready to run."""
        client = self.client("system:controllers")
        informers = Informers(client, self._chance)
        parts: list[Part] = []
        if "nodes" not in self._without:
            nodes = Nodes(self.client("system:nodes"), informers, self._clock, self._nodes)
            await nodes.register()
            parts.append(nodes.run)
        if "scheduler" not in self._without:
            scheduling = Scheduling(
                self.client("system:kube-scheduler"), informers, self._clock, self._chance,
                by_gates(self._gates, self._profiles), metrics=self.server.metrics, log=self._log,
            )  # fmt: skip
            parts.append(scheduling.run)
        if "controllers" not in self._without:
            if self._gates.served([POD_GROUP]):
                parts.append(Protection(client, informers).run)
            parts.append(Namespaces(client, informers).run)
            parts.append(Disruption(client, informers, self._clock).run)
            recorder = Recorder(client, self._clock, self._chance, "garbage-collector")
            parts.append(recorder.run)
            telling = Recorder(client, self._clock, self._chance, "job-controller")
            parts.append(telling.run)
            objects = JobObjects() if self._gates.is_on(WORKLOAD_WITH_JOB) else None
            parts.append(Jobs(client, informers, self._clock, telling, objects).run)
            # Last: they take informers as they find them.
            if self._gates.served([POD_GROUP]):
                parts.append(ReplicaGroups(client, informers).run)
            kinds = self._gates.served(STORED)
            parts.append(Garbage(client, informers, recorder.record, kinds).run)
        return [informers.run, *parts]
