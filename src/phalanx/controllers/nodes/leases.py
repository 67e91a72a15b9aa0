"""The leases of simulated nodes: made, and renewed as kubelets do.

Where the server can renew many leases in one request (`LeaseRenewal`), that is how it is done, as
thousands of nodes say every ten seconds that they are alive; elsewhere each lease is patched. A
lease that cannot be renewed now is renewed in the next round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from phalanx.api.errors import ApiError, NotFound
from phalanx.api.kinds import LEASE, LEASE_RENEWAL
from phalanx.api.meta import Key, micro_timestamp
from phalanx.client.client import Client
from phalanx.client.discovery import serves
from phalanx.client.transports import Unreachable
from phalanx.clock import Clock
from phalanx.controllers.loop import NodeClient

LEASE_NAMESPACE = "kube-node-lease"
#: Seconds that a lease lasts, and between its renewals.
LEASE_SECONDS, RENEWAL = 40, 10.0
#: Leases are renewed in so many portions per round, so that no moment has them all.
_PORTIONS = 10
#: Leases in one request: few enough that others have their turn soon.
_TOGETHER = 50


class Leases:
    """A lease for each of these nodes; alone each renews its own, together `client` does."""

    def __init__(
        self, client: Client, clock: Clock, names: Iterable[str], of_node: NodeClient | None = None
    ) -> None:
        self._client, self._clock, self._names = client, clock, sorted(names)
        self._of_node = of_node or (lambda name: client)

    async def run(self) -> None:
        """Renew all of them once per round, a portion at a time, until cancelled."""
        renew = self._renew_together if await self._serves_renewals() else self._renew_alone
        loop = asyncio.get_running_loop()
        while True:
            begin = loop.time()
            for portion in range(_PORTIONS):
                await renew(self._names[portion::_PORTIONS])
                # However long the server took: what comes too late is as bad as what never comes.
                due = begin + RENEWAL * (portion + 1) / _PORTIONS
                await asyncio.sleep(max(due - loop.time(), 0))

    async def _serves_renewals(self) -> bool:
        try:
            return await serves(self._client, LEASE_RENEWAL)
        except (ApiError, Unreachable):
            return False

    async def _renew_together(self, names: Sequence[str]) -> None:
        """Many leases in one request each; those that are not there yet are made."""
        now = micro_timestamp(self._clock.now())
        for at in range(0, len(names), _TOGETHER):
            leases = [{"name": name} for name in names[at : at + _TOGETHER]]
            renewal = {
                "apiVersion": LEASE_RENEWAL.api_version, "kind": LEASE_RENEWAL.name,
                "renewTime": now, "leases": leases,
            }  # fmt: skip
            try:
                told = await self._client.post(LEASE_RENEWAL.path(LEASE_NAMESPACE), renewal)
            except (ApiError, Unreachable):
                continue
            refused = told["status"].get("refused", ())
            missing = [one["name"] for one in refused if one["reason"] == NotFound.reason]
            await asyncio.gather(*(self._lease(name, now) for name in missing))

    async def _renew_alone(self, names: Sequence[str]) -> None:
        """Each lease by itself, as kubelets do."""
        await asyncio.gather(*(self._renew_one(name) for name in names))

    async def _renew_one(self, name: str) -> None:
        key, now = Key(LEASE_NAMESPACE, name), micro_timestamp(self._clock.now())
        try:
            await self._of_node(name).patch(LEASE, key, {"spec": {"renewTime": now}})
        except NotFound:
            await self._lease(name, now)
        except (ApiError, Unreachable):
            return

    async def _lease(self, name: str, now: str) -> None:
        lease = {
            "metadata": {"name": name, "namespace": LEASE_NAMESPACE},
            "spec": {
                "holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now,
            },
        }  # fmt: skip
        try:
            await self._of_node(name).create(LEASE, lease)
        except (ApiError, Unreachable):
            return
