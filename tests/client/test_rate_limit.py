"""The rate of requests to a server."""

from __future__ import annotations

import asyncio

from phalanx.api.wire import Reply, Request
from phalanx.client.transports import InProcessTransport, RateLimitedTransport
from phalanx.server.security.authorization import ADMIN
from tests.builders import in_virtual_time


@in_virtual_time
async def test_requests_beyond_a_burst_wait_and_leases_and_watches_do_not() -> None:
    loop, times = asyncio.get_running_loop(), list[float]()

    async def answer(request: Request) -> Reply:
        times.append(round(loop.time(), 3))
        return Reply(200, b"{}")

    transport = RateLimitedTransport(InProcessTransport(answer, ADMIN), qps=10, burst=3)
    pods = Request("GET", "/api/v1/pods")
    await asyncio.gather(*(transport.send(pods) for _ in range(5)))
    assert times == [0, 0, 0, 0.1, 0.2]
    times.clear()
    await transport.send(Request("PUT", "/apis/coordination.k8s.io/v1/namespaces/a/leases/b"))
    await transport.send(Request("GET", "/api/v1/pods", "watch=true&allowWatchBookmarks=true"))
    assert times == [0.2, 0.2]
    await asyncio.sleep(60)
    times.clear()
    await asyncio.gather(*(transport.send(pods) for _ in range(4)))
    assert times == [60.2, 60.2, 60.2, 60.3]
    await transport.close()
