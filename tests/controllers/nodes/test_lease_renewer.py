"""Leases of hosted nodes: renewal in bulk and one by one."""

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
from tests.controllers.test_scheduler_runner import LOST, BlockableTransport
from tests.recording_log import captured_lines

WITHOUT = ["scheduler", "controllers"]
SERVERS = pytest.mark.parametrize("kinds", [KINDS, FOREIGN_KINDS], ids=["ours", "foreign"])


async def renew_time(c: Cluster, name: str) -> float:
    found = await c.client.get(LEASE, Key(LEASE_NAMESPACE, name))
    assert (found["spec"]["holderIdentity"], found["spec"]["leaseDurationSeconds"]) == (name, 40)
    return parse_timestamp(found["spec"]["renewTime"])


@SERVERS
@in_virtual_time
async def test_leases_are_renewed_in_time_and_spread_over_the_interval(
    kinds: Sequence[Kind],
) -> None:
    async with cluster(nodes=simulated_nodes(20, cpu="1"), without=WITHOUT, kinds=kinds) as c:
        for _ in range(5):
            await asyncio.sleep(23)
            times = [await renew_time(c, f"n{n}") for n in range(20)]
            assert all(0 <= c.clock.now() - one <= 10.5 for one in times)
            assert len(set(times)) >= 5


@SERVERS
@in_virtual_time
async def test_a_deleted_lease_is_created_again(kinds: Sequence[Kind]) -> None:
    async with cluster(nodes=simulated_nodes(3, cpu="1"), without=WITHOUT, kinds=kinds) as c:
        await asyncio.sleep(15)
        await c.client.delete(LEASE, Key(LEASE_NAMESPACE, "n1"))
        await asyncio.sleep(15)
        assert c.clock.now() - await renew_time(c, "n1") <= 10.5


@in_virtual_time
async def test_bulk_renewal_renews_many_leases_per_request() -> None:
    async with cluster(without=["scheduler", "controllers", "nodes"]) as c:
        transport = ScriptedTransport(c)
        leases = LeaseRenewer(Client(transport), c.clock, [f"n{number}" for number in range(1000)])
        running = asyncio.create_task(leases.run())
        await asyncio.sleep(12)
        transport.writes.clear()
        await asyncio.sleep(10)
        running.cancel()
        assert {request.path for request in transport.writes} == {
            LEASE_RENEWAL.url_path(LEASE_NAMESPACE)
        }
        assert len(transport.writes) == 20


@SERVERS
@in_virtual_time
async def test_failed_renewals_are_warnings_and_repeated_in_the_next_round(
    kinds: Sequence[Kind], caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(without=[*WITHOUT, "nodes"], kinds=kinds) as c:
        transport = BlockableTransport(c.plane.server)
        renewer = LeaseRenewer(Client(transport), c.clock, ["n0", "n1"])
        running = asyncio.create_task(renewer.run())
        await asyncio.sleep(15)
        transport.block()
        await asyncio.sleep(10)
        transport.clear()
        await asyncio.sleep(11)
        assert c.clock.now() - await renew_time(c, "n0") < 11
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    lines = captured_lines(caplog, "nodes")
    assert [(line.level, line.message) for line in lines] == [("WARNING", "leases not renewed")] * 2
    assert {(line.fields["nodes"], line.fields["reason"]) for line in lines} == {("1", str(LOST))}
