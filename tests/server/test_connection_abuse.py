"""Everybody misbehaves at once, and an honest client does not notice."""

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

#: Files that the test needs: both ends of every connection.
_FILES = 4096
#: Users who each watch as much as one may; and one who has no more room than everybody.
WATCHERS = tuple(authenticated_user(f"w{number}", ("watchers",)) for number in range(10))
ANN = authenticated_user("ann", ("workers",))
TOKENS = Tokens({"secret": ADMIN, **{user.name: user for user in (ANN, *WATCHERS)}})
ROLES = {"watchers": "view", "workers": "edit"}
MAPS = CONFIG_MAP.url_path("default")


def shown(token: str) -> str:
    return f"Authorization: Bearer {token}"


async def repeat(send: Callable[[], Awaitable[None]], seconds: float) -> None:
    """Do it again and again, whatever becomes of it."""
    while True:
        try:
            await send()
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.sleep(seconds)
        await asyncio.sleep(seconds)


# ---- those who misbehave -------------------------------------------------------------------------


async def slow_heads(net: ServerNetwork) -> None:
    """Two hundred requests that never come to the end of their head."""
    peers = [await net.connect() for _ in range(200)]
    for number in range(100_000):
        for peer in peers:
            peer.send(b"GET / HTTP/1.1\r\n" if number == 0 else b"X: y\r\n")
        await asyncio.sleep(0.5)


async def slow_bodies(net: ServerNetwork) -> None:
    """Fifty bodies that come byte by byte."""
    peers = [await net.connect() for _ in range(50)]
    for peer in peers:
        peer.send(request("POST", MAPS, shown("secret"), "Content-Length: 1000"))
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
    answer = await net.ask(request("POST", MAPS, shown("secret"), *lengths) + b"0\r\n\r\n")
    assert answer.code == 400


async def pipelining(net: ServerNetwork) -> None:
    peer = await net.connect()
    peer.send(request("GET", "/version") * 200)
    for _ in range(200):
        assert (await peer.read_response()).code == 200
    peer.disconnect()


async def half_closing(net: ServerNetwork) -> None:
    peer = await net.connect()
    peer.send(request("GET", MAPS, shown("secret")))
    peer.writer.write_eof()
    await peer.read_rest()


async def leaving(net: ServerNetwork) -> None:
    peer = await net.connect()
    peer.send(request("POST", MAPS, shown("secret"), body=b'{"metadata":{"generateName":"a-"}}'))
    peer.disconnect()


async def not_reading(net: ServerNetwork) -> None:
    peer = await net.connect()
    peer.send(request("GET", "/openapi/v2", shown("secret")) * 5)
    await asyncio.sleep(0.5)
    peer.disconnect()


ONCE = (slow_heads, slow_bodies)
AGAIN = (many_headers, huge_header, two_lengths, pipelining, half_closing, leaving, not_reading)


async def idle_watches(net: ServerNetwork) -> list[Peer]:
    """A thousand watches that nothing happens on, of ten users."""
    peers = []
    for user in WATCHERS:
        for _ in range(100):
            peer = await net.connect()
            peer.send(request("GET", f"{POD.url_path('kube-system')}?watch=1", shown(user.name)))
            peers.append(peer)
    for peer in peers:
        assert (await peer.read_head()).code == 200
    return peers


# ---- and the one who does not --------------------------------------------------------------------


async def honest(net: ServerNetwork, rounds: int) -> list[float]:
    """How long each request took of somebody who makes, reads, lists and deletes."""
    peer, took, ann = await net.connect(), [], shown(ANN.name)
    for number in range(rounds):
        name = f"mine-{number}"
        body = b'{"metadata":{"name":"%s"}}' % name.encode()
        for data, code in (
            (request("POST", MAPS, ann, body=body), 201),
            (request("GET", f"{MAPS}/{name}", ann), 200),
            (request("GET", f"{MAPS}?limit=10", ann), 200),
            (request("DELETE", f"{MAPS}/{name}", ann), 200),
        ):
            begin = time.perf_counter()
            peer.send(data)
            assert (await peer.read_response()).code == code
            took.append(time.perf_counter() - begin)
    return took


async def scenario(net: ServerNetwork, rounds: int) -> None:
    server = Server(MemoryStore(), WallClock(), SeededRandom(1), tokens=TOKENS)
    await server.start()
    async with net.serving(server.handle, tokens=TOKENS):
        for name, role in ROLES.items():
            given = orjson.dumps(binding(name, role, group(name)))
            path = CLUSTER_ROLE_BINDING.url_path()
            assert (await net.ask(request("POST", path, shown("secret"), body=given))).code == 201
        watches = await idle_watches(net)
        one_more = f"{POD.url_path('kube-system')}?watch=1"
        assert (await net.ask(request("GET", one_more, shown("w0")))).code == 429
        tasks = [asyncio.create_task(abuse(net)) for abuse in ONCE]
        tasks += [asyncio.create_task(repeat(partial(abuse, net), 0.1)) for abuse in AGAIN]
        try:
            took = sorted(await honest(net, rounds))
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [end for end in ends if isinstance(end, AssertionError)] == []
        assert took[int(len(took) * 0.99)] < 1.0
        assert len(watches) == 1000


@pytest.mark.parametrize("rounds", [50, pytest.param(50_000, marks=pytest.mark.soak)])
def test_an_honest_client_is_answered_within_a_second_whatever_others_do(rounds: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _FILES:
        if hard < _FILES:
            pytest.skip("this machine lets nobody open so many connections")
        resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, hard))
    net = ServerNetwork(uvloop.new_event_loop, is_tls=False, timeout=60.0 + rounds)
    net.run(scenario(net, rounds))
