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

from phalanx.api.conversion.hub import STORED_KINDS
from phalanx.api.feature_gates import DEFAULT_GATES, FeatureGates
from phalanx.api.kinds import KINDS, Kind
from phalanx.api.wire import UserInfo
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.nodes.container_process import ProcessHost
from phalanx.controllers.nodes.node_pool import HostedNodePool, SimulatedNode
from phalanx.controllers.nodes.simulated_kubelet import StageRule
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.registry import (
    ControllerContext,
    ControllerSelection,
    Runnable,
    build_controllers,
)
from phalanx.controllers.scheduling.decision_log import DecisionLog
from phalanx.controllers.scheduling.exact_solver import AsyncSolver
from phalanx.controllers.scheduling.scheduler import Scheduler
from phalanx.randomness import Random
from phalanx.scheduler.configuration.profiles import DEFAULT_PROFILES, Profiles, apply_feature_gates
from phalanx.server.security.users import authenticated_user, node_user, service_account_user

#: Whom the shared informers, the scheduler, and whoever registers the nodes ask as.
_INFORMER_USER, _SCHEDULER_USER = (
    authenticated_user("system:kube-controller-manager"),
    authenticated_user("system:kube-scheduler"),
)
_SIMULATED_NODES_USER = authenticated_user("system:phalanx:simulated-nodes")
_PROCESS_NODES_USER = authenticated_user("system:phalanx:process-nodes")
#: Controllers whose account is not called after them, as `NAME-controller`.
_SERVICE_ACCOUNTS = {
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
class ComponentConfig:
    """Who is in the crew, and how they work.

    `without` names parts to leave out, `gates` say which features are on, `profiles` how pods are
    placed, `kinds` what the server knows at all, `stages` how simulated pods live. With a `host`
    the nodes are of processes. The scheduler's decisions go to the `log`.
    """

    nodes: Sequence[SimulatedNode] = ()
    without: Collection[str] = ()
    gates: FeatureGates = DEFAULT_GATES
    profiles: Profiles = DEFAULT_PROFILES
    kinds: Sequence[Kind] = KINDS
    decision_log: DecisionLog | None = None
    solver: AsyncSolver | None = None
    basic_workloads: bool = True
    stage_rules: Sequence[StageRule] = ()
    host: ProcessHost | None = None


class Components:
    """The staff at work, each with the client that `client` makes for its user."""

    def __init__(
        self,
        client_for: Callable[[UserInfo], Client],
        clock: Clock,
        random: Random,
        config: ComponentConfig,
    ) -> None:
        self._client_for, self._clock, self._random, self._config = (
            client_for,
            clock,
            random,
            config,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have every part run while the context lasts; a part that breaks breaks the whole.

        It begins when every part sees all there is, so that whoever asks then is served at once.
        """
        informers = Informers(self._client_for(_INFORMER_USER), self._random)
        async with asyncio.TaskGroup() as group:
            parts = [informers.run, *await self._build_runnables(informers)]
            tasks = [group.create_task(run()) for run in parts]
            try:
                await informers.wait_for_sync()
                yield
            finally:
                for task in tasks:
                    task.cancel()

    async def _build_runnables(self, informers: Informers) -> list[Runnable]:
        """What is to run beside the informers, ready to run."""
        parts: list[Runnable] = []
        staff = self._config
        if "nodes" not in staff.without:
            nodes = HostedNodePool(
                self._client_for(
                    _SIMULATED_NODES_USER if staff.host is None else _PROCESS_NODES_USER
                ),
                informers,
                self._clock,
                staff.nodes,
                staff.stage_rules,
                staff.host,
                lambda name: self._client_for(node_user(name)),
            )
            await nodes.register()
            parts.append(nodes.run)
        if "scheduler" not in staff.without:
            scheduling = Scheduler(
                self._client_for(_SCHEDULER_USER),
                informers,
                self._clock,
                self._random,
                apply_feature_gates(staff.gates, staff.profiles),
                decision_log=staff.decision_log,
                solver=staff.solver,
            )
            parts.append(scheduling.run)
        if "controllers" not in staff.without:
            for row in ControllerSelection().select(is_foreign=False):
                parts += build_controllers(self._controller_context(row.name, informers), [row])
        return parts

    def _controller_context(self, name: str, informers: Informers) -> ControllerContext:
        """What a controller is made with: all the same, but for whom it asks as."""
        account, staff = _SERVICE_ACCOUNTS.get(name, f"{name}-controller"), self._config
        kinds = staff.gates.filter_served(kind for kind in STORED_KINDS if kind in staff.kinds)
        return ControllerContext(
            self._client_for(service_account_user("kube-system", account)), informers, self._clock,
            self._random, staff.gates, kinds, basic_workloads=staff.basic_workloads,
        )  # fmt: skip
