"""Everything of a control plane but its server: informers, scheduler, controllers, nodes.

Stands below `control_plane.py`, which puts it on one event loop with a server, and `cli/up.py`,
which gives it a process of its own. Each part has a client of its own, may what its role says and
no more, and meets the others only through the API: where the server is, the crew cannot tell.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass

from phalanx.api.gates import DEFAULT, Gates
from phalanx.api.kinds import KINDS, Kind
from phalanx.api.versions.conversion import STORED
from phalanx.api.wire import User
from phalanx.chance import Chance
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.loop import Informers
from phalanx.controllers.nodes.nodes import Nodes, SimulatedNode
from phalanx.controllers.nodes.processes import Host
from phalanx.controllers.nodes.stages import Rule
from phalanx.controllers.roster import Bench, Part, Selection, made
from phalanx.controllers.shell.decisionlog import DecisionLog
from phalanx.controllers.shell.exact import Solving
from phalanx.controllers.shell.scheduling import Scheduling
from phalanx.scheduler.settings.profiles import DEFAULT_PROFILES, Profiles, by_gates
from phalanx.server.security.users import known, node, service_account

#: Whom the shared informers, the scheduler, and whoever registers the nodes ask as.
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


@dataclass(frozen=True, slots=True)
class Staff:
    """Who is in the crew, and how they work.

    `without` names parts to leave out, `gates` say which features are on, `profiles` how pods are
    placed, `kinds` what the server knows at all, `stages` how simulated pods live. With a `host`
    the nodes are of processes. The scheduler's decisions go to the `log`.
    """

    nodes: Sequence[SimulatedNode] = ()
    without: Collection[str] = ()
    gates: Gates = DEFAULT
    profiles: Profiles = DEFAULT_PROFILES
    kinds: Sequence[Kind] = KINDS
    log: DecisionLog | None = None
    solving: Solving | None = None
    basic_workloads: bool = True
    stages: Sequence[Rule] = ()
    host: Host | None = None


class Crew:
    """The staff at work, each with the client that `client` makes for its user."""

    def __init__(
        self, client: Callable[[User], Client], clock: Clock, chance: Chance, staff: Staff
    ) -> None:
        self._client, self._clock, self._chance, self._staff = client, clock, chance, staff

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have every part run while the context lasts; a part that breaks breaks the whole.

        It begins when every part sees all there is, so that whoever asks then is served at once.
        """
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

    async def _parts(self, informers: Informers) -> list[Part]:
        """What is to run beside the informers, ready to run."""
        parts: list[Part] = []
        staff = self._staff
        if "nodes" not in staff.without:
            nodes = Nodes(
                self._client(_NODES if staff.host is None else _PROCESS_NODES), informers,
                self._clock, staff.nodes, staff.stages, staff.host,
                lambda name: self._client(node(name)),
            )  # fmt: skip
            await nodes.register()
            parts.append(nodes.run)
        if "scheduler" not in staff.without:
            scheduling = Scheduling(
                self._client(_SCHEDULER), informers, self._clock, self._chance,
                by_gates(staff.gates, staff.profiles), log=staff.log, solving=staff.solving,
            )  # fmt: skip
            parts.append(scheduling.run)
        if "controllers" not in staff.without:
            for row in Selection().among(is_foreign=False):
                parts += made(self._bench(row.name, informers), [row])
        return parts

    def _bench(self, name: str, informers: Informers) -> Bench:
        """What a controller is made with: all the same, but for whom it asks as."""
        account, staff = _ACCOUNTS.get(name, f"{name}-controller"), self._staff
        kinds = staff.gates.served(kind for kind in STORED if kind in staff.kinds)
        return Bench(
            self._client(service_account("kube-system", account)), informers, self._clock,
            self._chance, staff.gates, kinds, basic_workloads=staff.basic_workloads,
        )  # fmt: skip
