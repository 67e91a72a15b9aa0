"""Hosted nodes: registers their Node objects and runs their kubelets, leases and status reports.

`HostedNodePool` runs inside a control plane, `NodePoolRunner` beside any API server as a process of
its own (`phalanx nodes`). Pods on simulated nodes are moved through their stages by
`simulated_kubelet`, which executes nothing; pods on process nodes, which a user must ask for, are
run by `process_kubelet`. An existing Node without our annotation is never touched. There is no
leader election: every process renews the leases of its own nodes, and node names must not be shared
between processes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from phalanx import logs
from phalanx.api.core import NODE_TYPE_ANNOTATION, SIMULATED_NODE_TYPE, Node
from phalanx.api.errors import AlreadyExists, ApiError, NotFound, Unauthorized
from phalanx.api.kinds import LEASE_RENEWAL, NODE, RESOURCE_SLICE, Kind
from phalanx.api.meta import Key, timestamp
from phalanx.api.wire import Object
from phalanx.client.client import Client, served_kinds
from phalanx.client.transports import Unreachable
from phalanx.clock import Clock
from phalanx.controllers.leadership import LeaderElectedRunner, LeaderTask, RunnerSpec
from phalanx.controllers.nodes.container_process import ProcessHost
from phalanx.controllers.nodes.node_heartbeats import (
    LeaseRenewer,
    NodeStatusReporter,
    healthy_conditions,
)
from phalanx.controllers.nodes.pod_status import node_address
from phalanx.controllers.nodes.process_kubelet import ProcessKubelets
from phalanx.controllers.nodes.simulated_devices import SimulatedDevices
from phalanx.controllers.nodes.simulated_kubelet import SimulatedKubelets, StageRule
from phalanx.controllers.reconcile_loop import Informers, NodeClient
from phalanx.randomness import Random

LOG = logs.component("nodes")

#: The default capacity of a node.
DEFAULT_CAPACITY: Mapping[str, str] = {"cpu": "8", "memory": "32Gi", "pods": "110"}
_MAX_CONCURRENT_REGISTRATIONS = 32


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """A hosted node; `node_type` says whether it is simulated or runs processes."""

    name: str
    capacity: Mapping[str, str] = field(default_factory=lambda: DEFAULT_CAPACITY)
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()
    node_type: str = SIMULATED_NODE_TYPE
    devices: Sequence[SimulatedDevices] = ()

    def manifest(self, now: str) -> Object:
        """Return the Node object to register."""
        labels = {
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            **self.labels,
        }
        status = {
            "addresses": [
                {"type": "InternalIP", "address": node_address(self.name)},
                {"type": "Hostname", "address": self.name},
            ],
            "capacity": dict(self.capacity),
            "allocatable": dict(self.capacity),
            "conditions": healthy_conditions(now, self.node_type),
            "nodeInfo": {
                "kubeletVersion": f"phalanx-{self.node_type}",
                "architecture": "amd64",
                "operatingSystem": "linux",
            },
        }
        meta = {
            "name": self.name,
            "labels": labels,
            "annotations": {NODE_TYPE_ANNOTATION: self.node_type},
        }
        return {"metadata": meta, "status": status}


class HostedNodePool:
    """Runs a set of hosted nodes: process nodes if there is a `host`, otherwise simulated ones.

    Call `register` first unless the Node objects exist. Requests about one node use
    `node_client(name)` if given; `client` registers the nodes and renews their leases in bulk.
    Without `heartbeats` there are neither leases nor status reports.
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        *,
        nodes: Sequence[SimulatedNode],
        rules: Sequence[StageRule] = (),
        host: ProcessHost | None = None,
        node_client: NodeClient | None = None,
        heartbeats: bool = True,
    ) -> None:
        self._client, self._clock, self._node_client = client, clock, node_client
        self._has_heartbeats = heartbeats
        self._nodes = {node.name: node for node in nodes}
        # Imported late: it needs numpy, which commands that only name nodes do not.
        from phalanx.controllers.nodes.pod_admission import PodAdmission

        admission = PodAdmission(informers, self._nodes)
        self._kubelet: SimulatedKubelets | ProcessKubelets
        if host is None:
            self._kubelet = SimulatedKubelets(
                client,
                informers,
                clock,
                names=self._nodes,
                admission=admission,
                rules=rules,
                node_client=node_client,
            )
        else:
            self._kubelet = ProcessKubelets(
                client,
                informers,
                clock,
                names=self._nodes,
                admission=admission,
                host=host,
                node_client=node_client,
            )
        self._status_reporter = NodeStatusReporter(
            client, informers, clock, names=self._nodes, node_client=node_client
        )

    async def run(self) -> None:
        """Run kubelets, lease renewal and status reports until cancelled."""
        leases = LeaseRenewer(self._client, self._clock, self._nodes, node_client=self._node_client)
        errors = self._client.errors
        heartbeats = (leases.run, self._status_reporter.run) if self._has_heartbeats else ()
        async with asyncio.TaskGroup() as group:
            for run in (self._kubelet.run, *heartbeats):
                group.create_task(errors.keep_running(run, LOG, controller="nodes"))

    async def register(self) -> list[str]:
        """Create the Node objects; returns the names of existing nodes that are not ours."""
        foreign = await register_nodes(self._client, self._clock, list(self._nodes.values()))
        for name in foreign:
            del self._nodes[name]
        return foreign


async def register_nodes(client: Client, clock: Clock, nodes: Sequence[SimulatedNode]) -> list[str]:
    """Create Node objects; returns the names of existing nodes that are not ours."""
    slots = asyncio.Semaphore(_MAX_CONCURRENT_REGISTRATIONS)

    async def register(node: SimulatedNode) -> bool:
        async with slots:
            return await _register_node(client, clock, node)

    registered = await asyncio.gather(*map(register, nodes))
    foreign = [node.name for node, is_ours in zip(nodes, registered, strict=True) if not is_ours]
    LOG.debug("nodes registered", nodes=len(nodes) - len(foreign), foreign=len(foreign))
    return foreign


async def _register_node(client: Client, clock: Clock, node: SimulatedNode) -> bool:
    """Create a Node object; returns False if the existing one is not ours."""
    try:
        await client.create(NODE, node.manifest(timestamp(clock.now())))
    except AlreadyExists:
        is_ours = await _is_ours(client, node)
        if is_ours:
            await _publish_devices(client, node)
        return is_ours
    await _publish_devices(client, node)
    # Admission taints a new node until it is ready; a hosted node is ready at once.
    taints = [dict(taint) for taint in node.taints]
    await client.patch(NODE, Key("", node.name), {"spec": {"taints": taints or None}})
    return True


async def _publish_devices(client: Client, node: SimulatedNode) -> None:
    """Create the ResourceSlices of a node; existing ones are kept."""
    if not node.devices:
        return
    uid = (await client.get(NODE, Key("", node.name), Node)).metadata.uid
    for devices in node.devices:
        with contextlib.suppress(AlreadyExists):
            await client.create(RESOURCE_SLICE, devices.resource_slice(node.name, uid))


async def _is_ours(client: Client, node: SimulatedNode) -> bool:
    try:
        found = await client.get(NODE, Key("", node.name), Node)
    except NotFound:
        return False
    return found.metadata.annotations.get(NODE_TYPE_ANNOTATION) == node.node_type


#: Seconds between two attempts to register.
_REGISTER_RETRY_SECONDS = 2.0


class NodePoolRunner:
    """Runs hosted nodes beside a server until cancelled.

    `on_ready` is called with the number of nodes each time that they are registered.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        random: Random,
        *,
        on_ready: Callable[[Sequence[str]], None],
        nodes: Sequence[SimulatedNode],
        rules: Sequence[StageRule] = (),
        host: ProcessHost | None = None,
        log: logs.Log = LOG,
    ) -> None:
        self._client, self._clock, self._on_ready, self._log = client, clock, on_ready, log
        self._nodes, self._rules, self._host = nodes, rules, host
        spec = RunnerSpec(self._discover, self._build_task, {})
        self._runner = LeaderElectedRunner(client, clock, random, log=log, spec=spec)

    @property
    def not_ready_reason(self) -> str:
        """Why the nodes are not ready; "" if they are."""
        return self._runner.not_ready_reason

    async def run(self) -> None:
        """Run the nodes, term after term."""
        await self._runner.run()

    async def drain(self) -> None:
        """Do nothing: everything can be interrupted at any point."""

    async def _discover(self) -> tuple[Kind, ...]:
        return tuple(await served_kinds(self._client, (LEASE_RENEWAL,)))

    def _build_task(self, capabilities: tuple[Kind, ...], informers: Informers) -> LeaderTask:
        pool = HostedNodePool(
            self._client,
            informers,
            self._clock,
            nodes=self._nodes,
            rules=self._rules,
            host=self._host,
        )

        async def run_nodes() -> None:
            foreign = await self._register(pool)
            for name in foreign:
                self._log.warning("existing Node is not ours: not touched", kind="Node", key=name)
            count = len(self._nodes) - len(foreign)
            self._log.info("nodes registered", nodes=count)
            self._on_ready([str(count)])
            await pool.run()

        return LeaderTask("phalanx-nodes", run_nodes)

    async def _register(self, nodes: HostedNodePool) -> list[str]:
        """Register until it succeeds; returns the names of existing nodes that are not ours."""
        attempt, reported = 0, ""
        while True:
            attempt += 1
            try:
                return await nodes.register()
            except Unauthorized:
                raise
            except (ApiError, Unreachable) as error:
                # The same failure is a warning once: the server may be away for hours.
                write = self._log.debug if str(error) == reported else self._log.warning
                reported = str(error)
                write(
                    "cannot register nodes",
                    attempt=attempt,
                    backoff=_REGISTER_RETRY_SECONDS,
                    reason=reported,
                )
            await asyncio.sleep(_REGISTER_RETRY_SECONDS)
