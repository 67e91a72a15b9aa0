"""Connections are limited; a client cannot shut out others by opening many."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import sys
import time
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from phalanx.api.kinds import CONFIG_MAP
from phalanx.api.wire import Reply, Request, StreamReply
from phalanx.server.http_parser import HttpLimits
from phalanx.server.security import request_guard
from phalanx.server.security.authorization import Tokens
from phalanx.server.security.users import authenticated_user
from tests.server.http_peers import (
    GET,
    WATCH,
    HeldHandler,
    Peer,
    ServerNetwork,
    StreamingHandler,
    echo,
    on_network,
    request,
    send_unauthorized,
)
from tools.control_plane import ControlPlane

#: A few connections, which can be displaced almost at once.
FEW = HttpLimits(connections=4, displacement_grace=0.02)
SIGNED_GET = request("GET", "/version", "Authorization: Bearer secret")
FEW_NEW = HttpLimits(new_connections=3, displacement_grace=0.02)

pytestmark = pytest.mark.usefixtures("nothing_left")


async def serve_one(net: ServerNetwork, data: bytes = SIGNED_GET) -> Peer:
    """A client that has been served and stays connected."""
    peer = await net.connect()
    peer.send(data)
    assert (await peer.read_response()).code == 200
    return peer


async def connect_silently(net: ServerNetwork) -> Peer:
    """A client that does not even begin a TLS handshake."""
    peer = Peer(*await asyncio.open_connection("127.0.0.1", net.port))
    net.peers.append(peer)
    return peer


@on_network
async def test_client_that_is_idle_longest_makes_room_for_another(net: ServerNetwork) -> None:
    async with net.serving(echo, FEW):
        first, second, third, fourth = [await serve_one(net) for _ in range(4)]
        first.send(GET)
        assert (await first.read_response()).code == 200
        fifth = await serve_one(net)
        assert await second.read_rest() == b""
        for peer in (first, third, fourth, fifth):
            peer.send(GET)
            assert (await peer.read_response()).code == 200


@on_network
async def test_watch_and_running_request_do_not_make_room(net: ServerNetwork) -> None:
    held, watching = HeldHandler(), StreamingHandler(b"first")

    async def handle(received: Request) -> Reply | StreamReply:
        if received.path == "/slow":
            return await held(received)
        return await watching(received)

    async with net.serving(handle, FEW):
        slow, watcher = await net.connect(), await net.connect()
        slow.send(request("GET", "/slow"))
        watcher.send(WATCH)
        assert (await watcher.read_head()).code == 200
        await held.arrived.wait()
        for _ in range(10):
            await serve_one(net)
        assert not watching.closed.is_set()
        held.release.set()
        assert (await slow.read_response()).code == 200


@on_network
async def test_client_waits_while_all_connections_are_busy(net: ServerNetwork) -> None:
    held = HeldHandler()
    async with net.serving(held, FEW):
        busy = [await net.connect() for _ in range(4)]
        for peer in busy:
            peer.send(GET)
        while len(held.requests) < len(busy):
            held.arrived.clear()
            await held.arrived.wait()
        late = asyncio.create_task(serve_one(net))
        await asyncio.sleep(3 * FEW.displacement_grace)
        assert not late.done()
        held.release.set()
        for peer in busy:
            assert (await peer.read_response()).code == 200
        await late


@on_network
async def test_clients_that_send_nothing_do_not_shut_out_others(net: ServerNetwork) -> None:
    async with net.serving(echo, FEW_NEW):
        silent = [await connect_silently(net) for _ in range(20)]
        await asyncio.gather(*[serve_one(net) for _ in range(3)])
        ended = [asyncio.create_task(peer.read_rest()) for peer in silent]
        while sum(task.done() for task in ended) < len(silent) - FEW_NEW.new_connections:
            await serve_one(net)
        for task in ended:
            task.cancel()


@on_network
async def test_clients_that_are_never_authenticated_do_not_shut_out_others(
    net: ServerNetwork,
) -> None:
    async with net.serving(echo, FEW_NEW):
        strangers = [await net.connect() for _ in range(3)]
        for peer in strangers:
            await send_unauthorized(peer)
        await asyncio.sleep(FEW_NEW.displacement_grace)
        await serve_one(net)
        await strangers[0].read_rest()
        assert strangers[0].reader.at_eof() or strangers[0].reader.exception()


@on_network
async def test_anonymous_clients_do_not_shut_out_each_other(
    net: ServerNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_guard, "MAX_USER_CONNECTIONS", 2)
    async with net.serving(echo, FEW_NEW):
        for _ in range(10):
            await serve_one(net, GET)


@on_network
async def test_prompt_clients_are_all_served_even_if_they_come_at_once(
    net: ServerNetwork,
) -> None:
    async with net.serving(echo, HttpLimits(new_connections=3, displacement_grace=60)):
        await asyncio.gather(*[serve_one(net) for _ in range(30)])


@on_network
async def test_connection_beyond_the_limit_of_its_user_is_closed(
    net: ServerNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_guard, "MAX_USER_CONNECTIONS", 5)
    get = request("GET", "/version", "Authorization: Bearer ann")
    async with net.serving(echo, tokens=Tokens({"ann": authenticated_user("ann")})):
        first, *_ = [await serve_one(net, get) for _ in range(5)]
        # A request without a credential does not free the place of its connection.
        first.send(GET)
        assert (await first.read_response()).code == 200
        peer = await net.connect()
        peer.send(get, get)
        refused = await peer.read_response()
        assert (refused.code, refused.all("retry-after")) == (429, ["1"])
        assert refused.all("connection") == ["close"]
        assert await peer.read_rest() == b""


@on_network
async def test_server_without_descriptors_accepts_clients_later(
    net: ServerNetwork, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [OSError(24, "Too many open files"), ConnectionAbortedError()]
    accept = socket.socket.accept

    def fail_first(sock: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise failures.pop(0)
        return accept(sock)

    async with net.serving(echo):
        monkeypatch.setattr(socket.socket, "accept", fail_first)
        await serve_one(net)
    assert failures == []
    assert "client not accepted" in caplog.text


# ---- a server process ----------------------------------------------------------------------------

_PRINT_LIMIT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
from phalanx.server.http_server import raise_descriptor_limit
raise_descriptor_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(("soft", "hard", "raised"), [(256, 1000, 1000), (1024, 18000, 16384)])
def test_soft_limit_of_descriptors_is_raised_up_to_a_bound(
    soft: int, hard: int, raised: int
) -> None:
    present = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if present != resource.RLIM_INFINITY and present < hard:
        pytest.skip("the file descriptor limit of this machine is too low")
    done = subprocess.run(
        [sys.executable, "-c", _PRINT_LIMIT, str(soft), str(hard)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(done.stdout) == raised


def test_store_and_audit_log_have_descriptors_while_clients_take_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = tmp_path / "phalanx"
    limited.write_text(f'#!/bin/sh\nulimit -n 200\nexec {sys.prefix}/bin/phalanx "$@"\n')
    limited.chmod(0o700)
    monkeypatch.setattr("tools.control_plane.COMMAND", limited)
    options = ("--data", str(tmp_path / "data"), "--without", "scheduler,controllers,nodes")
    with ControlPlane(*options) as plane:
        access = plane.access
        open_files: list[int] = []
        clients = [socket.create_connection((access.host, access.port)) for _ in range(250)]
        try:
            for number in range(3):
                until = time.monotonic() + 0.3
                while time.monotonic() < until:
                    open_files.append(len(os.listdir(f"/proc/{plane.pid}/fd")))
                connection = HTTPSConnection(access.host, access.port, context=access.tls())
                headers = {"authorization": f"Bearer {access.token}"}
                body = b'{"metadata":{"name":"a-%d"}}' % number
                connection.request("POST", CONFIG_MAP.url_path("default"), body, headers)
                assert connection.getresponse().status == 201
                connection.close()
        finally:
            for client in clients:
                client.close()
    # Half of the descriptors are for connections; the server itself has few files.
    assert 100 < max(open_files) < 150
    lines = (tmp_path / "data" / "audit.log").read_text().splitlines()
    assert sum('"resource":"configmaps"' in line for line in lines) == 3
