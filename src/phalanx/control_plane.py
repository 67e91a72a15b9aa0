"""The whole control plane on one event loop: server, scheduler, controllers, nodes.

Stands above `server/` and `controllers/`, which do not know each other, and below `sim/` and
`cli/`, which run it in virtual time or on the network. Each part has a client of its own, may what
its role says and no more, and meets the others only through the API.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Sequence

from phalanx.api.conversion import STORED
from phalanx.api.gates import DEFAULT, Gates
from phalanx.api.kinds import KINDS, Kind
from phalanx.api.wire import User
from phalanx.chance import Chance
from phalanx.client.client import Client
from phalanx.client.transports import InProcess
from phalanx.clock import Clock
from phalanx.controllers.decisionlog import DecisionLog
from phalanx.controllers.exact import Solving
from phalanx.controllers.loop import Informers
from phalanx.controllers.nodes import Nodes, SimulatedNode
from phalanx.controllers.processes import Host
from phalanx.controllers.roster import Bench, Part, Selection, made
from phalanx.controllers.scheduling import Scheduling
from phalanx.controllers.stages import Rule
from phalanx.scheduler.profiles import DEFAULT_PROFILES, Profiles, by_gates
from phalanx.server.access import MASTERS, Tokens
from phalanx.server.app import Server
from phalanx.server.security.users import known, service_account
from phalanx.store.kv import Store

#: Whom the shared informers, the scheduler and the simulated nodes ask as.
_READER, _SCHEDULER = known("system:kube-controller-manager"), known("system:kube-scheduler")
_NODES = known("system:phalanx:simulated-nodes")
_PROCESS_NODES = known("system:phalanx:process-nodes")
#: Controllers whose account is not called after them, as `NAME-controller`.
_ACCOUNTS = {
    "composite-groups": "composite-group-controller",
    "garbage": "generic-garbage-collector",
    "podgc": "pod-garbage-collector",
    "replica-groups": "replica-group-controller",
    "resourceclaim": "resource-claim-controller",
    "role-aggregation": "clusterrole-aggregation-controller",
    "serviceaccount": "service-account-controller",
    "ttl": "ttl-after-finished-controller",
}


class ControlPlane:
    """Everything that makes a cluster, wired together.

    `without` names parts to leave out, `gates` say which features are on, `profiles` how pods are
    placed, `kinds` what the server knows at all, `stages` how simulated pods live. With a `host`
    the nodes are of processes. The scheduler's decisions go to the `log`.
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
        solving: Solving | None = None,
        basic_workloads: bool = True,
        stages: Sequence[Rule] = (),
        host: Host | None = None,
    ) -> None:
        self.server = Server(store, clock, chance, kinds, tokens, gates)
        self._store, self._clock, self._chance = store, clock, chance
        self._nodes, self._without, self._gates, self._kinds = nodes, without, gates, kinds
        self._profiles, self._log, self._basic_workloads = profiles, log, basic_workloads
        self._solving, self._stages, self._host = solving, stages, host

    def client(self, name: str) -> Client:
        """A client in this process that may do everything, for a test or a tool of that name."""
        return self._client(User(name, (MASTERS,)))

    def _client(self, user: User) -> Client:
        return Client(InProcess(self.server.handle, user), self.server.metrics)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have every part run while the context lasts; a part that breaks breaks the whole.

        It begins when every part sees all there is, so that whoever asks then is served at once.
        """
        await self.server.start()
        informers = Informers(self._client(_READER), self._chance)
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
        parts: list[Part] = []
        if "nodes" not in self._without:
            nodes = Nodes(
                self._client(_NODES if self._host is None else _PROCESS_NODES), informers,
                self._clock, self._nodes, self._stages, self._host,
            )  # fmt: skip
            await nodes.register()
            parts.append(nodes.run)
        if "scheduler" not in self._without:
            scheduling = Scheduling(
                self._client(_SCHEDULER), informers, self._clock, self._chance,
                by_gates(self._gates, self._profiles), log=self._log, solving=self._solving,
            )  # fmt: skip
            parts.append(scheduling.run)
        if "controllers" not in self._without:
            for row in Selection().among(is_foreign=False):
                parts += made(self._bench(row.name, informers), [row])
        return parts

    def _bench(self, name: str, informers: Informers) -> Bench:
        """What a controller is made with: all the same, but for whom it asks as."""
        account = _ACCOUNTS.get(name, f"{name}-controller")
        kinds = self._gates.served(kind for kind in STORED if kind in self._kinds)
        return Bench(
            self._client(service_account("kube-system", account)), informers, self._clock,
            self._chance, self._gates, kinds, basic_workloads=self._basic_workloads,
        )  # fmt: skip
