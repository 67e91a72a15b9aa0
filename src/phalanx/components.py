"""The components of a control plane except its server: informers, scheduler, controllers, nodes.

Stands below `control_plane.py`, which runs them on one event loop with a server, and `cli/up.py`,
which runs them in a process of their own. Each component has its own client with the permissions of
its role and exchanges data with the others only through the API, so that it makes no difference
where the server runs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from phalanx import logs
from phalanx.api.conversion.hub import STORED_KINDS
from phalanx.api.feature_gates import DEFAULT_GATES, GROUP_BINDING, FeatureGates
from phalanx.api.kinds import KINDS, Kind
from phalanx.api.wire import UserInfo
from phalanx.builder.ownership import SCHEDULING_PARENTS
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.nodes.container_process import ProcessHost
from phalanx.controllers.nodes.node_pool import HostedNodePool, SimulatedNode
from phalanx.controllers.nodes.simulated_kubelet import StageRule
from phalanx.controllers.reconcile_loop import Informers, PodCreations
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
from phalanx.scheduler.policy import DEFAULT_PROFILES, Profiles, apply_feature_gates
from phalanx.server.security.users import authenticated_user, node_user, service_account_user

LOG = logs.component("components")

#: The users of the shared informers, of the scheduler, and of the clients that register nodes.
_INFORMER_USER, _SCHEDULER_USER = (
    authenticated_user("system:kube-controller-manager"),
    authenticated_user("system:kube-scheduler"),
)
_SIMULATED_NODES_USER = authenticated_user("system:phalanx:simulated-nodes")
_PROCESS_NODES_USER = authenticated_user("system:phalanx:process-nodes")
#: Controllers whose service account is not named `NAME-controller`.
_SERVICE_ACCOUNTS = {
    "composite-groups": "composite-group-controller",
    "garbage": "generic-garbage-collector",
    "horizontal-pod-autoscaler": "horizontal-pod-autoscaler",
    "persistentvolume-binder": "persistent-volume-binder",
    "podgc": "pod-garbage-collector",
    "replica-groups": "replica-group-controller",
    "resourceclaim": "resource-claim-controller",
    "role-aggregation": "clusterrole-aggregation-controller",
    "replicationcontroller": "replication-controller",
    "root-ca-certificate-publisher": "root-ca-cert-publisher",
    "serviceaccount": "service-account-controller",
    "simulated-provisioner": "simulated-provisioner",
    "ttl": "ttl-after-finished-controller",
}
#: The controllers that are on by default.
DEFAULT_CONTROLLERS = ControllerSelection()


@dataclass(frozen=True, slots=True)
class ComponentConfig:
    """Which components run, and how.

    `without` names components to leave out ("nodes", "scheduler", "controllers"). `kinds` are the
    kinds that the server serves. `stage_rules` say how long simulated pods start, run and stop.
    With a `host` the nodes run the pods' commands as processes instead of simulating them. Without
    `heartbeats` the nodes neither renew leases nor report status, and the controller "node" must
    not be selected by `controllers`. The scheduler writes its decisions to the `decision_log`. An
    unexpected exception of a component is raised (`raise_errors`), as tests and simulations need
    it, or contained. `load_root_ca` returns the certificate authority of the server, which is then
    published in every namespace.
    `on_built` is called with the informers and the scheduler before they run.
    """

    nodes: Sequence[SimulatedNode] = ()
    without: Collection[str] = ()
    gates: FeatureGates = DEFAULT_GATES
    profiles: Profiles = DEFAULT_PROFILES
    kinds: Sequence[Kind] = KINDS
    decision_log: DecisionLog | None = None
    solver: AsyncSolver | None = None
    basic_workloads: bool = True
    workload_parents: frozenset[tuple[str, str]] = SCHEDULING_PARENTS
    stage_rules: Sequence[StageRule] = ()
    host: ProcessHost | None = None
    heartbeats: bool = True
    controllers: ControllerSelection = DEFAULT_CONTROLLERS
    raise_errors: bool = True
    load_root_ca: Callable[[], Awaitable[str]] | None = None
    on_built: Callable[[Informers, Scheduler | None], None] | None = None


class Components:
    """Builds and runs the components, each with its own client from `client_for`."""

    def __init__(
        self,
        client_for: Callable[[UserInfo], Client],
        clock: Clock,
        random: Random,
        *,
        config: ComponentConfig,
    ) -> None:
        self._client_for, self._clock = client_for, clock
        self._random, self._config, self._creations = random, config, PodCreations()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run all components while the context lasts; if one fails, the context fails.

        A component fails only if its client raises unexpected exceptions instead of containing
        them (`client/error_containment.py`). The context is entered once all caches are filled, so
        that every request made inside it is acted upon at once.
        """
        client = self._client_for(_INFORMER_USER)
        informers = Informers(client, self._random)
        async with asyncio.TaskGroup() as group:
            runnables = [("informers", informers.run), *await self._build_runnables(informers)]
            tasks = [
                group.create_task(client.errors.keep_running(run, LOG, controller=name))
                for name, run in runnables
            ]
            try:
                await informers.wait_for_sync()
                LOG.debug("caches synced", runnables=len(runnables))
                yield
            finally:
                for task in tasks:
                    task.cancel()

    async def _build_runnables(self, informers: Informers) -> list[tuple[str, Runnable]]:
        """Build the components; returns what to run, with the name of its component."""
        runnables: list[tuple[str, Runnable]] = []
        config, scheduler = self._config, None
        if "nodes" not in config.without:
            nodes = HostedNodePool(
                self._client_for(
                    _SIMULATED_NODES_USER if config.host is None else _PROCESS_NODES_USER
                ),
                informers,
                self._clock,
                nodes=config.nodes,
                rules=config.stage_rules,
                host=config.host,
                node_client=lambda name: self._client_for(node_user(name)),
                heartbeats=config.heartbeats,
            )
            for name in await nodes.register():
                LOG.warning("existing Node is not ours: not touched", kind="Node", key=name)
            runnables.append(("nodes", nodes.run))
        if "scheduler" not in config.without:
            scheduler = Scheduler(
                self._client_for(_SCHEDULER_USER),
                informers,
                self._clock,
                random=self._random,
                profiles=apply_feature_gates(config.gates, config.profiles),
                is_foreign=not config.gates.is_enabled(GROUP_BINDING),
                decision_log=config.decision_log,
                solver=config.solver,
            )
            runnables.append(("scheduler", scheduler.run))
        if "controllers" not in config.without:
            configured = set(config.kinds)
            kinds = config.gates.filter_served(kind for kind in STORED_KINDS if kind in configured)
            for row in config.controllers.select(is_foreign=False):
                context = self._controller_context(row.name, informers, kinds, scheduler=scheduler)
                runnables += [(row.name, run) for run in build_controllers(context, [row])]
        if config.on_built is not None:
            config.on_built(informers, scheduler)
        return runnables

    def _controller_context(
        self,
        name: str,
        informers: Informers,
        kinds: Sequence[Kind],
        *,
        scheduler: Scheduler | None,
    ) -> ControllerContext:
        """Return the context of one controller: contexts differ only in the service account."""
        account, config = _SERVICE_ACCOUNTS.get(name, f"{name}-controller"), self._config
        return ControllerContext(
            self._client_for(service_account_user("kube-system", account)),
            informers,
            self._clock,
            random=self._random,
            gates=config.gates,
            kinds=kinds,
            basic_workloads=config.basic_workloads,
            workload_parents=config.workload_parents,
            load_root_ca=config.load_root_ca,
            is_busy=lambda: self._creations.active > 0 or bool(scheduler and scheduler.is_busy),
            pod_creations=self._creations,
        )
