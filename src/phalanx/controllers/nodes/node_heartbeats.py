"""Heartbeats of hosted nodes: leases, and Ready conditions of nodes and pods.

`LeaseRenewer` creates and renews the lease of every node, as kubelets do. Where the server offers
`LeaseRenewal`, one request renews many leases; otherwise each lease is patched. A renewal that
fails is repeated in the next round.

`NodeStatusReporter` restores conditions that a node lifecycle controller has set: that controller
marks nodes without heartbeats and their pods as not ready, and only a kubelet takes that back. It
answers no sooner than kubelets do, so that the two do not overwrite each other in a tight loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence

from phalanx import logs
from phalanx.api.core import SIMULATED_NODE_TYPE, Node, Pod
from phalanx.api.errors import ApiError, NotFound
from phalanx.api.kinds import LEASE, LEASE_RENEWAL, NODE
from phalanx.api.meta import Key, find_condition, micro_timestamp, timestamp
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.client import Client, is_served
from phalanx.client.transports import Unreachable
from phalanx.clock import Clock
from phalanx.controllers.nodes.pod_status import CONTAINERS_NOT_READY, nodes_of, status_patch
from phalanx.controllers.reconcile_loop import (
    Informers,
    NodeClient,
    Patch,
    ReconcileLoop,
    ReconcilePlan,
)

LOG = logs.component("nodes")

LEASE_NAMESPACE = "kube-node-lease"
#: Seconds that a lease lasts, and between two renewals.
LEASE_SECONDS, RENEW_INTERVAL = 40, 10.0
#: Batches per round: the renewals are spread over the interval.
_BATCHES_PER_ROUND = 10
#: Leases in one request: few enough not to delay other requests.
_MAX_LEASES_PER_REQUEST = 50


class LeaseRenewer:
    """Renews one lease per node: in bulk with `client`, individually with `node_client(name)`."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        names: Iterable[str],
        *,
        node_client: NodeClient | None = None,
    ) -> None:
        self._client, self._clock, self._names = client, clock, sorted(names)
        self._node_client = node_client or (lambda name: client)

    async def run(self) -> None:
        """Renew all leases once per interval, in batches, until cancelled."""
        renew = self._renew_in_bulk if await self._serves_renewals() else self._renew_individually
        loop = asyncio.get_running_loop()
        while True:
            begin = loop.time()
            for batch in range(_BATCHES_PER_ROUND):
                await renew(self._names[batch::_BATCHES_PER_ROUND])
                # Relative to the begin of the round: a slow server must not delay the next batch.
                due = begin + RENEW_INTERVAL * (batch + 1) / _BATCHES_PER_ROUND
                await asyncio.sleep(max(due - loop.time(), 0))

    async def _serves_renewals(self) -> bool:
        try:
            return await is_served(self._client, LEASE_RENEWAL)
        except (ApiError, Unreachable):
            return False

    async def _renew_in_bulk(self, names: Sequence[str]) -> None:
        """Renew many leases per request; creates the missing ones."""
        now = micro_timestamp(self._clock.now())
        for at in range(0, len(names), _MAX_LEASES_PER_REQUEST):
            leases = [{"name": name} for name in names[at : at + _MAX_LEASES_PER_REQUEST]]
            renewal = {
                "apiVersion": LEASE_RENEWAL.api_version,
                "kind": LEASE_RENEWAL.name,
                "renewTime": now,
                "leases": leases,
            }
            try:
                answer = await self._client.post(LEASE_RENEWAL.url_path(LEASE_NAMESPACE), renewal)
            except (ApiError, Unreachable) as error:
                LOG.warning("leases not renewed", nodes=len(leases), reason=error)
                continue
            refused = answer["status"].get("refused", ())
            missing = [row["name"] for row in refused if row["reason"] == NotFound.reason]
            await asyncio.gather(*(self._create_lease(name, now) for name in missing))

    async def _renew_individually(self, names: Sequence[str]) -> None:
        """Renew each lease by itself, as kubelets do."""
        errors = await asyncio.gather(*(self._renew_one(name) for name in names))
        if failed := [error for error in errors if error is not None]:
            LOG.warning("leases not renewed", nodes=len(failed), reason=failed[0])

    async def _renew_one(self, name: str) -> ApiError | Unreachable | None:
        key, now = Key(LEASE_NAMESPACE, name), micro_timestamp(self._clock.now())
        try:
            await self._node_client(name).patch(LEASE, key, {"spec": {"renewTime": now}})
        except NotFound:
            await self._create_lease(name, now)
        except (ApiError, Unreachable) as error:
            return error
        return None

    async def _create_lease(self, name: str, now: str) -> None:
        lease = {
            "metadata": {"name": name, "namespace": LEASE_NAMESPACE},
            "spec": {
                "holderIdentity": name,
                "leaseDurationSeconds": LEASE_SECONDS,
                "renewTime": now,
            },
        }
        try:
            await self._node_client(name).create(LEASE, lease)
        except (ApiError, Unreachable) as error:
            LOG.warning("lease not created", kind="Node", key=name, reason=error)


#: Seconds after which the conditions of a node are restored.
STATUS_REPORT_INTERVAL = 10.0
#: Conditions that a kubelet writes for a healthy node.
_HEALTHY = (
    {"type": "MemoryPressure", "status": "False", "reason": "KubeletHasSufficientMemory"},
    {"type": "DiskPressure", "status": "False", "reason": "KubeletHasNoDiskPressure"},
    {"type": "PIDPressure", "status": "False", "reason": "KubeletHasSufficientPID"},
    {"type": "Ready", "status": "True", "reason": "KubeletReady"},
)


def healthy_conditions(now: str, node_type: str = SIMULATED_NODE_TYPE) -> list[Object]:
    """Return the conditions of a healthy node."""
    reported = {
        "message": f"reported by a {node_type} kubelet",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    return [{**condition, **reported} for condition in _HEALTHY]


class NodeStatusReporter:
    """Restores the Ready conditions of hosted nodes and their pods; never sets one to False."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        *,
        names: Collection[str],
        node_client: NodeClient | None = None,
    ) -> None:
        self._clock, self._names = clock, names
        self._nodes, pods = informers.of(Node).cache, informers.of(Pod)
        self._synced, self._pods_by_node = pods.synced, pods.cache.index(nodes_of)
        self._loop: ReconcileLoop[str] = ReconcileLoop(
            client, self.reconcile, client_for=node_client
        )
        self._nodes.subscribe(self._on_node_changed)

    async def run(self) -> None:
        """Restore conditions until cancelled."""
        await self._synced.wait()
        await self._loop.run()

    def reconcile(self, name: str) -> ReconcilePlan:
        """Set a node ready; once it is, set its pods ready."""
        node = self._nodes.get(Key("", name))
        if node is None:
            return ReconcilePlan()
        now = timestamp(self._clock.now())
        if not _is_ready(node):
            status = {"conditions": healthy_conditions(now)}
            change = {"metadata": {"uid": node.metadata.uid}, "status": status}
            patch = Patch(
                NODE, node.metadata.key, change, subresource="status", content=STRATEGIC_PATCH
            )
            return ReconcilePlan([patch])
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
        marked = [pod for pod in self._pods_by_node[name] if _is_wrongly_not_ready(pod)]
        return ReconcilePlan([status_patch(pod, {"conditions": [ready]}) for pod in marked])

    def _on_node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None or new.metadata.name not in self._names:
            return
        if not _is_ready(new):
            self._loop.queue.add_after(new.metadata.name, STATUS_REPORT_INTERVAL)
        elif old is None or not _is_ready(old):
            self._loop.queue.add(new.metadata.name)


def _is_ready(node: Node) -> bool:
    ready = find_condition(node.status.conditions, "Ready")
    return ready is not None and ready.status == "True"


def _is_wrongly_not_ready(pod: Pod) -> bool:
    """Whether a running pod was marked as not ready by another component than its kubelet."""
    if pod.status.phase != "Running" or pod.metadata.deletion_timestamp:
        return False
    ready = find_condition(pod.status.conditions, "Ready")
    return ready is not None and ready.status == "False" and ready.reason != CONTAINERS_NOT_READY
