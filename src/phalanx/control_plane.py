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
from phalanx.api.gates import DEFAULT, RESOURCE_CLAIMS, Gates
from phalanx.api.kinds import KINDS, POD_GROUP, Kind
from phalanx.api.wire import User
from phalanx.chance import Chance
from phalanx.client.client import Client
from phalanx.client.transports import InProcess
from phalanx.clock import Clock
from phalanx.controllers.claimuse import ClaimUse
from phalanx.controllers.cronjobs import CronJobs
from phalanx.controllers.decisionlog import DecisionLog
from phalanx.controllers.disruption import Disruption
from phalanx.controllers.garbage import Garbage
from phalanx.controllers.jobs.controller import Jobs
from phalanx.controllers.jobs.groups import by_gates as job_settings
from phalanx.controllers.loop import Informers
from phalanx.controllers.namespaces import Namespaces
from phalanx.controllers.nodelifecycle import NodeLifecycle
from phalanx.controllers.nodes import Nodes, SimulatedNode
from phalanx.controllers.podgarbage import PodGarbage
from phalanx.controllers.podgroups import Protection
from phalanx.controllers.recorder import Recorder
from phalanx.controllers.replicagroups import ReplicaGroups
from phalanx.controllers.resourceclaims import ResourceClaims
from phalanx.controllers.scheduling import Scheduling
from phalanx.controllers.serviceaccounts import ServiceAccounts
from phalanx.controllers.tainteviction import TaintEviction
from phalanx.controllers.ttl import TimeToLive
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
        basic_workloads: bool = True,
    ) -> None:
        self.server = Server(store, clock, chance, kinds, tokens, gates)
        self._store, self._clock, self._chance = store, clock, chance
        self._nodes, self._without, self._gates = nodes, without, gates
        self._profiles, self._log, self._basic_workloads = profiles, log, basic_workloads

    def client(self, name: str) -> Client:
        """A client in this process, for a part or a test of that name."""
        transport = InProcess(self.server.handle, User(name, (MASTERS,)))
        return Client(transport, self.server.metrics)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have every part run while the context lasts; a part that breaks breaks the whole.

        It begins when every part sees all there is, so that whoever asks then is served at once.
        """
        await self.server.start()
        informers = Informers(self.client("system:controllers"), self._chance)
        async with asyncio.TaskGroup() as group:
            parts = [informers.run, *await self._parts(informers)]
            tasks = [group.create_task(run()) for run in parts]
            try:
                await informers.synced()
                yield
            finally:
                for task in tasks:
                    task.cancel()
        await self._store.close()

    async def _parts(self, informers: Informers) -> list[Part]:
        """What is to run beside the informers, ready to run."""
        client = self.client("system:controllers")
        parts: list[Part] = []
        if "nodes" not in self._without:
            nodes = Nodes(self.client("system:nodes"), informers, self._clock, self._nodes)
            await nodes.register()
            parts.append(nodes.run)
        if "scheduler" not in self._without:
            scheduling = Scheduling(
                self.client("system:kube-scheduler"), informers, self._clock, self._chance,
                by_gates(self._gates, self._profiles), log=self._log,
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
            objects = job_settings(self._gates, basic=self._basic_workloads)
            parts.append(Jobs(client, informers, self._clock, telling, objects).run)
            parts += self._housekeeping(client, informers)
            # Last: they take informers as they find them.
            if self._gates.served([POD_GROUP]):
                parts.append(ReplicaGroups(client, informers).run)
            kinds = self._gates.served(STORED)
            parts.append(Garbage(client, informers, recorder.record, kinds).run)
        return parts

    def _housekeeping(self, client: Client, informers: Informers) -> list[Part]:
        """The small loops: what the clock begins and ends, what becomes of nodes, pods, claims."""
        clock, shares = self._clock, self._gates.is_on(RESOURCE_CLAIMS)
        groups = bool(self._gates.served([POD_GROUP]))
        sources = ("cronjob-controller", "node-controller", "taint-eviction-controller")
        tellers = [
            Recorder(client, clock, self._chance, name) for name in (*sources, "resource_claim")
        ]
        cron, node, taint, claim = (teller.record for teller in tellers)
        return [
            *(teller.run for teller in tellers),
            CronJobs(client, informers, clock, cron).run,
            TimeToLive(client, informers, clock).run,
            ServiceAccounts(client, informers).run,
            NodeLifecycle(client, informers, clock, node).run,
            TaintEviction(client, informers, clock, taint).run,
            PodGarbage(client, informers, clock).run,
            ResourceClaims(client, informers, claim, groups=groups, shares=shares).run,
            ClaimUse(client, informers, groups=groups and shares).run,
        ]
