from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from phalanx.api.kinds import KINDS, LEASE, LEASE_RENEWAL, Kind
from phalanx.api.meta import Key, parse_timestamp
from phalanx.client.client import Client
from phalanx.controllers.nodes.node_heartbeats import LEASE_NAMESPACE, LeaseRenewer
from tests.builders import in_virtual_time
from tests.controllers.cluster import Cluster, cluster, simulated_nodes
from tests.controllers.foreign_cluster import FOREIGN_KINDS, ScriptedTransport

WITHOUT = ["scheduler", "controllers"]
SERVERS = pytest.mark.parametrize("kinds", [KINDS, FOREIGN_KINDS], ids=["ours", "foreign"])


async def renewed(c: Cluster, name: str) -> float:
    found = await c.client.get(LEASE, Key(LEASE_NAMESPACE, name))
    assert (found["spec"]["holderIdentity"], found["spec"]["leaseDurationSeconds"]) == (name, 40)
    return parse_timestamp(found["spec"]["renewTime"])


@SERVERS
@in_virtual_time
async def test_leases_are_renewed_in_time_and_not_all_at_once(kinds: Sequence[Kind]) -> None:
    async with cluster(nodes=simulated_nodes(20, cpu="1"), without=WITHOUT, kinds=kinds) as c:
        for _ in range(5):
            await asyncio.sleep(23)
            times = [await renewed(c, f"n{n}") for n in range(20)]
            assert all(0 <= c.clock.now() - one <= 10.5 for one in times)
            assert len(set(times)) >= 5


@SERVERS
@in_virtual_time
async def test_a_lease_that_somebody_deleted_is_made_anew(kinds: Sequence[Kind]) -> None:
    async with cluster(nodes=simulated_nodes(3, cpu="1"), without=WITHOUT, kinds=kinds) as c:
        await asyncio.sleep(15)
        await c.client.delete(LEASE, Key(LEASE_NAMESPACE, "n1"))
        await asyncio.sleep(15)
        assert c.clock.now() - await renewed(c, "n1") <= 10.5


@in_virtual_time
async def test_where_it_can_be_done_many_leases_are_renewed_by_one_request() -> None:
    async with cluster(without=["scheduler", "controllers", "nodes"]) as c:
        way = ScriptedTransport(c)
        leases = LeaseRenewer(Client(way), c.clock, [f"n{number}" for number in range(1000)])
        running = asyncio.create_task(leases.run())
        await asyncio.sleep(12)
        way.writes.clear()
        await asyncio.sleep(10)
        running.cancel()
        assert {request.path for request in way.writes} == {LEASE_RENEWAL.url_path(LEASE_NAMESPACE)}
        assert len(way.writes) == 20
