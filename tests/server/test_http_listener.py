from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import orjson
import pytest
from msgspec.structs import replace

from phalanx.api.kinds import POD
from phalanx.api.wire import MERGE_PATCH, Reply, Request, StreamReply
from phalanx.client.http import HttpTransport
from phalanx.client.transports import Unreachable
from phalanx.clock import WallClock
from phalanx.server.http_parser import HttpLimits
from phalanx.server.http_server import bind_socket, serve_http
from phalanx.server.security.authorization import ADMIN, Tokens
from phalanx.server.security.keyring import server_tls_context
from phalanx.server.serialization import MAX_BODY_BYTES
from tests.builders import pod
from tests.server.conftest import TOKEN, ListeningServer, Send, new_server
from tests.server.http_peers import GET, Peer, ServerNetwork, echo, on_network
from tests.server.http_peers import request as raw
from tests.server.test_negotiation import TABLE

PODS = POD.url_path("default")
MERGE = {"content-type": MERGE_PATCH}
#: The errors of the HTTP client when the server refuses its body.
LARGE = pytest.mark.filterwarnings("ignore:Sending a large body")


def post(path: str, body: object, query: str = "") -> Request:
    return Request("POST", path, query, {"content-type": "application/json"}, orjson.dumps(body))


def with_user_agent(request: Request) -> Request:
    """The request with a user agent: it becomes the field manager."""
    return replace(request, headers={**request.headers, "user-agent": "tester"})


#: One request of each type, in this order.
SCRIPT = (
    post(PODS, pod("a", cpu="1")),
    post(PODS, pod("a")),
    post(PODS, pod("No Name")),
    post(PODS, {"metadata": 5}),
    post(PODS, pod("b", meta={"nickname": "x"})),
    post(PODS, pod("c"), "dryRun=All&fieldValidation=Strict"),
    Request("POST", PODS, "", {"content-type": "application/json"}, b"{"),
    Request("POST", PODS, "", {"content-type": "text/plain"}, b"{}"),
    Request("POST", PODS, "", {"content-type": "application/json"}, b" " * (MAX_BODY_BYTES + 1)),
    Request("POST", PODS, "", {"content-type": "application/yaml"}, b"metadata: {name: y}"),
    Request("GET", PODS + "/a"),
    Request("GET", PODS + "/missing"),
    Request("GET", PODS + "/.."),
    Request("GET", PODS, "limit=1"),
    Request("GET", PODS, "labelSelector=a+in"),
    Request("GET", PODS, "", {"accept": TABLE}),
    Request("GET", PODS, "", {"accept": "application/yaml"}),
    Request("GET", PODS, "", {"accept": "text/html"}),
    Request("PATCH", PODS + "/a", "", MERGE, b'{"metadata":{"labels":{"a":"b"}}}'),
    Request("PATCH", PODS + "/a", "", MERGE, b"[]"),
    post(PODS + "/a/binding", {"target": {"name": "n1"}}),
    post(PODS + "/a/binding", {"target": {"name": "n1"}}),
    Request("GET", PODS, "watch=true&allowWatchBookmarks=true&timeoutSeconds=1&resourceVersion=0"),
    Request("DELETE", PODS + "/a"),
    Request("DELETE", PODS),
    Request("GET", "/version"),
    Request("GET", "/apis"),
    Request("GET", "/nowhere"),
    Request("PUT", "/healthz"),
    Request("OPTIONS", PODS),
)  # fmt: skip


@LARGE
def test_a_server_gives_the_same_replies_in_process_and_over_tls(
    in_process: Send, https: ListeningServer
) -> None:
    for request in map(with_user_agent, SCRIPT):
        near, far = in_process(request), https.send(request)
        what = f"{request.method} {request.path}?{request.query}"
        assert (near.code, near.text) == (far.code, far.text), what
        assert far.kind == near.kind.partition(";")[0], what
        assert near.header_values("warning") == far.header_values("warning"), what


def test_an_object_lives_from_its_creation_to_its_deletion(send: Send) -> None:
    made = send(post(PODS, pod("a")))
    assert (made.code, send(Request("GET", f"{PODS}/a")).body) == (201, made.body)
    assert send(Request("DELETE", f"{PODS}/a")).code == 200
    assert send(Request("GET", f"{PODS}/a")).code == 404


def test_a_watch_streams_changes(send: Send) -> None:
    send(post(PODS, pod("a")))
    query = "watch=true&allowWatchBookmarks=true&timeoutSeconds=1"
    answer = send(Request("GET", PODS, query))
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["type"] for line in lines][:1] == ["ADDED"]


@LARGE
def test_large_bodies_are_refused_with_a_status(send: Send) -> None:
    answer = send(Request("POST", PODS, "", {"content-type": "application/json"}, b"x" * 2**22))
    assert (answer.code, answer.body["kind"], answer.body["code"]) == (413, "Status", 413)


# ---- the listening socket ------------------------------------------------------------------------


def test_old_tls_is_refused(https: ListeningServer) -> None:
    old = https.tls()
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLS"):
        old.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLS"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1

    def ask() -> None:
        with socket.create_connection(("127.0.0.1", https.port), timeout=10) as plain:
            old.wrap_socket(plain, server_hostname="127.0.0.1")

    with pytest.raises(ssl.SSLError):
        https.runner.run(asyncio.to_thread(ask))


def test_a_port_that_is_taken_is_an_error(https: ListeningServer) -> None:
    with pytest.raises(OSError, match="in use"):
        bind_socket("127.0.0.1", https.port)


def test_port_zero_binds_a_free_port() -> None:
    one, other = bind_socket("127.0.0.1", 0), bind_socket("127.0.0.1", 0)
    with one, other:
        assert one.getsockname()[1] != other.getsockname()[1] != 0


def test_ipv6_is_served_too() -> None:
    with bind_socket("::1", 0) as sock:
        assert sock.family == socket.AF_INET6


WATCH = Request("GET", PODS, "watch=true&allowWatchBookmarks=true&timeoutSeconds=100")


def test_a_server_with_open_watches_stops_at_once(tmp_path: Path) -> None:
    server, sock = new_server(), bind_socket("127.0.0.1", 0)
    tls, authority = server_tls_context(tmp_path, [], WallClock().now())
    client = ssl.create_default_context(cadata=authority.decode())

    async def main() -> None:
        await server.start()
        url = f"https://127.0.0.1:{sock.getsockname()[1]}"
        transport = HttpTransport(url, token=TOKEN, tls=client)
        no_end = HttpLimits(stop_timeout=float("inf"))
        async with serve_http(server.handle, Tokens({TOKEN: ADMIN}), sock, tls=tls, limits=no_end):
            answer = await transport.send(WATCH)
            assert isinstance(answer, StreamReply)
            await transport.send(post(PODS, pod("a")))
            await anext(answer.chunks)
        with pytest.raises((Unreachable, StopAsyncIteration)):
            await anext(answer.chunks)
        await transport.close()

    asyncio.run(main())
    assert len(server.context.watch_broadcaster) == 0


def test_a_stopping_server_completes_running_requests(tmp_path: Path) -> None:
    begun = asyncio.Event()

    def commit_latency() -> float:
        begun.set()
        return 0.3

    server, sock = new_server(commit_latency), bind_socket("127.0.0.1", 0)
    tls, authority = server_tls_context(tmp_path, [], WallClock().now())
    client = ssl.create_default_context(cadata=authority.decode())

    async def main() -> int:
        await server.start()
        url = f"https://127.0.0.1:{sock.getsockname()[1]}"
        transport = HttpTransport(url, token=TOKEN, tls=client)
        async with serve_http(server.handle, Tokens({TOKEN: ADMIN}), sock, tls=tls):
            begun.clear()
            asking = asyncio.ensure_future(transport.send(post(PODS, pod("a"))))
            await asyncio.wait_for(begun.wait(), 240)
        answer = await asking
        await transport.close()
        return answer.code

    assert asyncio.run(main()) == 201


# ---- stopping ------------------------------------------------------------------------------------


class EndlessHandler:
    """Never replies, or streams forever; tells when both have ended."""

    def __init__(self) -> None:
        self.held = 0
        self.came, self.free = asyncio.Event(), asyncio.Event()

    async def __call__(self, received: Request) -> Reply | StreamReply:
        if received.query:
            return StreamReply(200, self._chunks())
        return Reply(200, b"".join([chunk async for chunk in self._chunks()]))

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        self.held += 1
        self.came.set()
        try:
            await asyncio.Event().wait()
            yield b"never"
        finally:
            self.held -= 1
            self.free.set()


@on_network
async def test_a_server_stops_even_if_handlers_do_not_end(net: ServerNetwork) -> None:
    handler = EndlessHandler()
    async with net.serving(handler, HttpLimits(stop_timeout=0.1)):
        idle, begun, slow, watching = [await net.connect() for _ in range(4)]
        begun.send(raw("POST", "/", "Content-Length: 9"), b"{")
        slow.send(raw("GET", "/"))
        await handler.came.wait()
        watching.send(raw("GET", "/?watch"))
        await watching.read_head()
        assert handler.held == 2
    assert handler.held == 0
    for peer in (idle, begun, slow, watching):
        assert await peer.read_rest() == b""


@on_network
async def test_a_server_without_running_requests_stops_at_once(net: ServerNetwork) -> None:
    handler = EndlessHandler()
    async with net.serving(handler, HttpLimits(stop_timeout=60)):
        _idle, watching = await net.connect(), await net.connect()
        watching.send(raw("GET", "/?watch"))
        await watching.read_head()
    assert handler.held == 0


@on_network
async def test_a_stopping_server_does_not_wait_for_clients_that_do_not_read(
    net: ServerNetwork,
) -> None:
    async def handle(received: Request) -> Reply:
        return Reply(200, b"x" * 2**22)

    async with net.serving(handle, HttpLimits(stop_timeout=0.1)):
        peer = await net.connect()
        peer.send(raw("GET", "/"))
        await peer.read_head()
    assert len(await peer.read_rest()) < 2**22


async def connect_repeatedly(net: ServerNetwork) -> None:
    while True:
        await net.connect()


@on_network
async def test_the_last_reply_of_a_stopping_server_closes_the_connection(
    net: ServerNetwork,
) -> None:
    came, may = asyncio.Event(), asyncio.Event()

    async def handle(received: Request) -> Reply:
        came.set()
        await may.wait()
        return await echo(received)

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(net.serving(handle))
        peer = await net.connect()
        peer.send(raw("GET", "/1"), raw("GET", "/2"))
        await came.wait()
        stopping = asyncio.create_task(stack.aclose())
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await connect_repeatedly(net)
        may.set()
        answer = await peer.read_response()
        assert (answer.json["path"], answer.all("connection")) == ("/1", ["close"])
        assert await peer.read_rest() == b""
        await stopping


# ---- TLS handshakes ------------------------------------------------------------------------------


async def knock(net: ServerNetwork, *said: bytes) -> Peer:
    """A client that does not begin a TLS handshake."""
    peer = Peer(*await asyncio.open_connection("127.0.0.1", net.port))
    net.peers.append(peer)
    peer.send(*said)
    return peer


@on_network
async def test_a_client_without_tls_is_disconnected_and_others_are_served(
    net: ServerNetwork,
) -> None:
    async with net.serving(echo):
        for said in (GET, b"\x16\x03\x01\x00\x05hello", b"\0" * 100_000):
            peer = await knock(net, said)
            if net.is_tls:
                assert not (await peer.read_rest()).startswith(b"HTTP")
            peer.disconnect()
            assert (await net.ask(GET)).code == 200


@on_network
async def test_a_tls_handshake_times_out(net: ServerNetwork) -> None:
    limits = HttpLimits(handshake_timeout=0.05, idle_timeout=0.05, check_interval=0.01)
    async with net.serving(echo, limits):
        assert await (await knock(net)).read_rest() == b""


@on_network
async def test_a_server_stops_during_a_tls_handshake(net: ServerNetwork) -> None:
    async with net.serving(echo):
        peer = await knock(net)
        assert (await net.ask(GET)).code == 200
    peer.disconnect()
