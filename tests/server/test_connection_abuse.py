"""All kinds of misbehaving clients at once do not disturb a normal client."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable
from functools import partial

import orjson
import pytest
import uvloop

from phalanx.api.kinds import CLUSTER_ROLE_BINDING, CONFIG_MAP, POD
from phalanx.clock import WallClock
from phalanx.randomness import SeededRandom
from phalanx.server.app import Server
from phalanx.server.security.authorization import ADMIN, Tokens
from phalanx.server.security.users import authenticated_user
from phalanx.store.memory import MemoryStore
from tests.server.http_peers import Peer, ServerNetwork, request
from tests.server.security.rbac_fixtures import binding, group

#: File descriptors that the test needs: both ends of every connection.
_FILES = 4096
#: Users that each open the maximum of watches, and one user without a higher limit.
WATCHERS = tuple(authenticated_user(f"w{number}", ("watchers",)) for number in range(10))
ANN = authenticated_user("ann", ("workers",))
TOKENS = Tokens({"secret": ADMIN, **{user.name: user for user in (ANN, *WATCHERS)}})
ROLES = {"watchers": "view", "workers": "edit"}
MAPS = CONFIG_MAP.url_path("default")
BIG = b" " * 1024 * 1024


def authorization(token: str) -> str:
    return f"Authorization: Bearer {token}"


async def repeat(send: Callable[[], Awaitable[None]], seconds: float) -> None:
    """Repeat an action, ignoring its errors."""
    while True:
        try:
            await send()
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.sleep(seconds)
        await asyncio.sleep(seconds)


# ---- misbehaving clients -------------------------------------------------------------------------


async def slow_heads(net: ServerNetwork) -> None:
    """Send two hundred requests whose headers never end."""
    peers = [await net.connect() for _ in range(200)]
    for number in range(100_000):
        for peer in peers:
            peer.send(b"GET / HTTP/1.1\r\n" if number == 0 else b"X: y\r\n")
        await asyncio.sleep(0.5)


async def slow_bodies(net: ServerNetwork) -> None:
    """Send fifty bodies byte by byte."""
    peers = [await net.connect() for _ in range(50)]
    for peer in peers:
        peer.send(request("POST", MAPS, authorization("secret"), "Content-Length: 1000"))
    while True:
        for peer in peers:
            peer.send(b" ")
        await asyncio.sleep(0.2)


async def many_headers(net: ServerNetwork) -> None:
    answer = await net.ask(request("GET", "/version", *(f"X{n}: y" for n in range(10_000))))
    assert answer.code == 431


async def huge_header(net: ServerNetwork) -> None:
    answer = await net.ask(request("GET", "/version", f"X: {'y' * 2 * 1024 * 1024}"))
    assert answer.code == 431


async def two_lengths(net: ServerNetwork) -> None:
    lengths = ("Content-Length: 4", "Transfer-Encoding: chunked")
    answer = await net.ask(request("POST", MAPS, authorization("secret"), *lengths) + b"0\r\n\r\n")
    assert answer.code == 400


async def pipeline(net: ServerNetwork) -> None:
    peer = await net.connect()
    peer.send(request("GET", "/version") * 200)
    for _ in range(200):
        assert (await peer.read_response()).code == 200
    peer.disconnect()


async def half_close(net: ServerNetwork) -> None:
    peer = await net.connect()
    peer.send(request("GET", MAPS, authorization("secret")))
    peer.writer.write_eof()
    await peer.read_rest()


async def disconnect_early(net: ServerNetwork) -> None:
    peer = await net.connect()
    peer.send(
        request("POST", MAPS, authorization("secret"), body=b'{"metadata":{"generateName":"a-"}}')
    )
    peer.disconnect()


async def abort_upload(net: ServerNetwork) -> None:
    peer = await net.connect()
    peer.send(request("POST", MAPS, authorization("secret"), "Content-Length: 3000000"), BIG)
    await peer.writer.drain()
    peer.disconnect()


async def upload_without_credential(net: ServerNetwork) -> None:
    data = request("POST", MAPS, authorization("wrong"), "Content-Length: 3000000")
    assert (await net.ask(data)).code == 401


async def ignore_response(net: ServerNetwork) -> None:
    peer = await net.connect()
    peer.send(request("GET", "/openapi/v3/api/v1", authorization("secret")) * 5)
    await asyncio.sleep(0.5)
    peer.disconnect()


ONCE = (slow_heads, slow_bodies)
AGAIN = (
    many_headers,
    huge_header,
    two_lengths,
    pipeline,
    half_close,
    disconnect_early,
    abort_upload,
    upload_without_credential,
    ignore_response,
)


async def idle_watches(net: ServerNetwork) -> list[Peer]:
    """Open a thousand watches of ten users on which nothing happens."""
    peers = []
    for user in WATCHERS:
        for _ in range(100):
            peer = await net.connect()
            peer.send(
                request("GET", f"{POD.url_path('kube-system')}?watch=1", authorization(user.name))
            )
            peers.append(peer)
    for peer in peers:
        assert (await peer.read_head()).code == 200
    return peers


# ---- a normal client -----------------------------------------------------------------------------


async def measure_latencies(net: ServerNetwork, rounds: int) -> list[float]:
    """The latencies of a client that creates, reads, lists and deletes.

    Clients and server are on one event loop that never waits: its CPU time is the latency on a
    machine that does nothing else.
    """
    peer, took, ann = await net.connect(), [], authorization(ANN.name)
    for number in range(rounds):
        name = f"mine-{number}"
        body = b'{"metadata":{"name":"%s"}}' % name.encode()
        for data, code in (
            (request("POST", MAPS, ann, body=body), 201),
            (request("GET", f"{MAPS}/{name}", ann), 200),
            (request("GET", f"{MAPS}?limit=10", ann), 200),
            (request("DELETE", f"{MAPS}/{name}", ann), 200),
        ):
            begin = time.thread_time()
            peer.send(data)
            assert (await peer.read_response()).code == code
            took.append(time.thread_time() - begin)
    return took


async def scenario(net: ServerNetwork, rounds: int) -> None:
    server = Server(MemoryStore(), WallClock(), SeededRandom(1), tokens=TOKENS)
    await server.start()
    async with net.serving(server.handle, tokens=TOKENS):
        for name, role in ROLES.items():
            given = orjson.dumps(binding(name, role, group(name)))
            path = CLUSTER_ROLE_BINDING.url_path()
            assert (
                await net.ask(request("POST", path, authorization("secret"), body=given))
            ).code == 201
        watches = await idle_watches(net)
        one_more = f"{POD.url_path('kube-system')}?watch=1"
        assert (await net.ask(request("GET", one_more, authorization("w0")))).code == 429
        tasks = [asyncio.create_task(abuse(net)) for abuse in ONCE]
        tasks += [asyncio.create_task(repeat(partial(abuse, net), 0.1)) for abuse in AGAIN]
        try:
            took = sorted(await measure_latencies(net, rounds))
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [end for end in ends if isinstance(end, AssertionError)] == []
        assert took[int(len(took) * 0.99)] < 1.0
        assert len(watches) == 1000


@pytest.mark.parametrize("rounds", [50, pytest.param(50_000, marks=pytest.mark.soak)])
def test_a_client_is_answered_within_a_second_while_others_misbehave(rounds: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _FILES:
        if hard < _FILES:
            pytest.skip("the file descriptor limit of this machine is too low")
        resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, hard))
    net = ServerNetwork(uvloop.new_event_loop, is_tls=False, timeout=60.0 + rounds)
    net.run(scenario(net, rounds))
