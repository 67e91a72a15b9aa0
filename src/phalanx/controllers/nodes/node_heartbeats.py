"""The leases of simulated nodes: made, and renewed as kubelets do.

Where the server can renew many leases in one request (`LeaseRenewal`), that is how it is done, as
thousands of nodes say every ten seconds that they are alive; elsewhere each lease is patched. A
lease that cannot be renewed now is renewed in the next round.

Simulated nodes that were taken to be silent, and their pods: they say that they are well again.

Whoever watches over nodes marks those that it does not hear of, and what runs there; only a kubelet
takes that back. Ours is well whenever it runs. It answers no sooner than kubelets do, so that two
who disagree do not write without end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence

from phalanx.api.core import Node, Pod
from phalanx.api.errors import ApiError, NotFound
from phalanx.api.kinds import LEASE, LEASE_RENEWAL, NODE, POD
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

LEASE_NAMESPACE = "kube-node-lease"
#: Seconds that a lease lasts, and between its renewals.
LEASE_SECONDS, RENEW_INTERVAL = 40, 10.0
#: Leases are renewed in so many portions per round, so that no moment has them all.
_BATCHES_PER_ROUND = 10
#: Leases in one request: few enough that others have their turn soon.
_MAX_LEASES_PER_REQUEST = 50


class LeaseRenewer:
    """A lease for each of these nodes; alone each renews its own, together `client` does."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        names: Iterable[str],
        node_client: NodeClient | None = None,
    ) -> None:
        self._client, self._clock, self._names = client, clock, sorted(names)
        self._node_client = node_client or (lambda name: client)

    async def run(self) -> None:
        """Renew all of them once per round, a portion at a time, until cancelled."""
        renew = self._renew_in_bulk if await self._serves_renewals() else self._renew_individually
        loop = asyncio.get_running_loop()
        while True:
            begin = loop.time()
            for portion in range(_BATCHES_PER_ROUND):
                await renew(self._names[portion::_BATCHES_PER_ROUND])
                # However long the server took: what comes too late is as bad as what never comes.
                due = begin + RENEW_INTERVAL * (portion + 1) / _BATCHES_PER_ROUND
                await asyncio.sleep(max(due - loop.time(), 0))

    async def _serves_renewals(self) -> bool:
        try:
            return await is_served(self._client, LEASE_RENEWAL)
        except (ApiError, Unreachable):
            return False

    async def _renew_in_bulk(self, names: Sequence[str]) -> None:
        """Many leases in one request each; those that are not there yet are made."""
        now = micro_timestamp(self._clock.now())
        for at in range(0, len(names), _MAX_LEASES_PER_REQUEST):
            leases = [{"name": name} for name in names[at : at + _MAX_LEASES_PER_REQUEST]]
            renewal = {
                "apiVersion": LEASE_RENEWAL.api_version, "kind": LEASE_RENEWAL.name,
                "renewTime": now, "leases": leases,
            }  # fmt: skip
            try:
                told = await self._client.post(LEASE_RENEWAL.url_path(LEASE_NAMESPACE), renewal)
            except (ApiError, Unreachable):
                continue
            refused = told["status"].get("refused", ())
            missing = [one["name"] for one in refused if one["reason"] == NotFound.reason]
            await asyncio.gather(*(self._create_lease(name, now) for name in missing))

    async def _renew_individually(self, names: Sequence[str]) -> None:
        """Each lease by itself, as kubelets do."""
        await asyncio.gather(*(self._renew_one(name) for name in names))

    async def _renew_one(self, name: str) -> None:
        key, now = Key(LEASE_NAMESPACE, name), micro_timestamp(self._clock.now())
        try:
            await self._node_client(name).patch(LEASE, key, {"spec": {"renewTime": now}})
        except NotFound:
            await self._create_lease(name, now)
        except (ApiError, Unreachable):
            return

    async def _create_lease(self, name: str, now: str) -> None:
        lease = {
            "metadata": {"name": name, "namespace": LEASE_NAMESPACE},
            "spec": {
                "holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now,
            },
        }  # fmt: skip
        try:
            await self._node_client(name).create(LEASE, lease)
        except (ApiError, Unreachable):
            return


#: Seconds between reports of a node.
STATUS_REPORT_INTERVAL = 10.0
#: Type, status and reason of what a kubelet says of a node that is well.
_HEALTHY_CONDITIONS = (
    ("Ready", "True", "KubeletReady"),
    ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID"),
)
_MESSAGE = "simulated kubelet is posting ready status"


class NodeStatusReporter:
    """Reports for these nodes. Never says of one that it is not well."""

    def __init__(
        self, client: Client, informers: Informers, clock: Clock, names: Collection[str],
        node_client: NodeClient | None = None,
    ) -> None:  # fmt: skip
        self._clock, self._names = clock, names
        self._nodes, pods = informers.of(NODE, Node).cache, informers.of(POD, Pod)
        self._synced, self._pods_by_node = pods.synced, pods.cache.index(nodes_of)
        self._loop: ReconcileLoop[str] = ReconcileLoop(
            client, self.reconcile, client_for=node_client
        )
        self._nodes.subscribe(self._on_node_changed)

    async def run(self) -> None:
        """Report until cancelled."""
        await self._synced.wait()
        await self._loop.run()

    def reconcile(self, name: str) -> ReconcilePlan:
        """Say of a node that it is well, and when that stands, of its pods."""
        node = self._nodes.get(Key("", name))
        if node is None:
            return ReconcilePlan()
        now = timestamp(self._clock.now())
        if not _is_ready(node):
            status = {"conditions": [_condition(*well, now) for well in _HEALTHY_CONDITIONS]}
            change = {"metadata": {"uid": node.metadata.uid}, "status": status}
            return ReconcilePlan(
                [Patch(NODE, node.metadata.key, change, "status", STRATEGIC_PATCH)]
            )
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
        doubted = [pod for pod in self._pods_by_node[name] if _is_wrongly_not_ready(pod)]
        return ReconcilePlan([status_patch(pod, {"conditions": [ready]}) for pod in doubted])

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
    """Whether a pod runs and is said not to be ready, by others than its kubelet."""
    ready = find_condition(pod.status.conditions, "Ready")
    runs = pod.status.phase == "Running" and not pod.metadata.deletion_timestamp
    is_off = ready is not None and ready.status == "False" and ready.reason != CONTAINERS_NOT_READY
    return runs and is_off


def _condition(kind: str, status: str, reason: str, now: str) -> Object:
    return {
        "type": kind, "status": status, "reason": reason, "message": _MESSAGE,
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    }  # fmt: skip
