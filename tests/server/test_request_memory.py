"""A request is refused at the end of its headers; bodies are bounded, and freed at once."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from phalanx.api.errors import ApiError, TooManyRequests
from phalanx.api.kinds import CONFIG_MAP
from phalanx.api.wire import ANONYMOUS, Reply, Request, UserInfo
from phalanx.server.http_connection import HttpConnection
from phalanx.server.http_parser import HttpLimits, HttpParser, ParsedRequest
from phalanx.server.security import request_guard
from phalanx.server.security.authorization import ADMIN, Tokens
from phalanx.server.security.request_guard import (
    BodyMemory,
    PriorityLevels,
    ReplyMemory,
    RequestGuard,
)
from phalanx.server.security.users import NODES, authenticated_user
from phalanx.server.serialization import MAX_BODY_BYTES
from tests.builders import in_virtual_time
from tests.server.api import Api
from tests.server.http_peers import (
    GET,
    TOKENS,
    HeldHandler,
    Peer,
    ServerNetwork,
    echo,
    on_network,
    request,
)

ANN, BOB = authenticated_user("ann"), authenticated_user("bob")
NODE = authenticated_user("system:node:a", (NODES,))
SCHEDULER = authenticated_user("system:kube-scheduler")
MIB = 1024 * 1024
#: The head of a request whose body of the maximal size never comes.
UPLOAD = request("POST", "/", f"Content-Length: {MAX_BODY_BYTES}")
CHUNKED = request("POST", "/", "Transfer-Encoding: chunked")


def parse_code(parser: HttpParser, *data: bytes) -> int:
    """The code of the refusal that these bytes cause; 0 if there is none."""
    parsed = [one for piece in data for one in parser.feed(piece)]
    if not parsed:
        return 0
    refused = parsed[0].request
    assert isinstance(refused, ApiError)
    assert parsed[0].is_last, "the connection would have to read the body"
    return refused.code


# ---- refused before the body ---------------------------------------------------------------------


@pytest.mark.parametrize("body", ["Content-Length: 3000000", "Transfer-Encoding: chunked"])
@on_network
async def test_invalid_credential_is_refused_before_the_body_is_sent(
    net: ServerNetwork, body: str
) -> None:
    async with net.serving(echo):
        answer = await net.ask(request("POST", "/", "Authorization: Bearer wrong", body))
        assert (answer.code, answer.all("connection")) == (401, ["close"])


@on_network
async def test_client_with_invalid_credential_is_not_asked_for_its_body(
    net: ServerNetwork,
) -> None:
    async with net.serving(echo):
        expecting = ("Expect: 100-continue", "Content-Length: 9")
        answer = await net.ask(request("POST", "/", "Authorization: Bearer wrong", *expecting))
        assert answer.code == 401


@on_network
async def test_client_that_sends_its_whole_body_can_read_the_401(net: ServerNetwork) -> None:
    async with net.serving(echo):
        data = request("POST", "/", "Authorization: Bearer wrong", body=b" " * MAX_BODY_BYTES)
        assert (await net.ask(data)).code == 401


@pytest.mark.parametrize(
    "header", ["Host: evil.example", "Origin: https://evil.example", "Sec-Fetch-Site: cross-site"]
)
def test_foreign_host_or_origin_is_refused_before_the_body_is_sent(header: str) -> None:
    head = request("POST", "/", header, "Content-Length: 9")
    if header.startswith("Host"):
        head = head.replace(b"Host: x\r\n", b"")
    assert parse_code(HttpParser(RequestGuard(TOKENS, ("x",)), HttpLimits()), head) == 403


@in_virtual_time
async def test_request_of_a_full_priority_level_is_refused_before_the_body_is_sent() -> None:
    tokens = Tokens({"ann": ANN, "secret": ADMIN})
    api = await Api.start(tokens=tokens)
    guard = RequestGuard(tokens, check_level=api.server.check_level)

    def send(token: str, method: str, path: str) -> int:
        head = request(method, path, f"Authorization: Bearer {token}", "Content-Length: 9")
        return parse_code(HttpParser(guard, HttpLimits()), head)

    path = CONFIG_MAP.url_path("default")
    assert send("ann", "POST", path) == 0
    api.server.priority_levels = PriorityLevels(writes=0)
    assert send("ann", "POST", path) == 429
    assert 'code="429"' in api.server.metrics.render()
    # Other levels, the administrator, and paths without a level are not affected.
    assert [send("ann", "GET", path), send("secret", "POST", path)] == [0, 0]
    assert [send("ann", "POST", "/version"), send("ann", "POST", "/nowhere")] == [0, 0]


# ---- limits on the memory of bodies --------------------------------------------------------------


@on_network
async def test_bodies_of_one_user_are_limited(net: ServerNetwork) -> None:
    async with net.serving(echo):
        uploads = [await net.connect() for _ in range(5)]
        for peer in uploads:
            peer.send(UPLOAD, b" ")
            await net.ask(GET)
        refused = await net.ask(UPLOAD)
        assert (refused.code, refused.all("retry-after")) == (429, ["1"])
        assert refused.all("connection") == ["close"]
        # Another user, and the same user after the end of a request, have room.
        upload = request("POST", "/", "Authorization: Bearer secret", body=b" " * MAX_BODY_BYTES)
        assert (await net.ask(upload)).code == 200
        uploads[0].send(b" " * (MAX_BODY_BYTES - 1))
        assert (await uploads[0].read_response()).code == 200
        assert (await net.ask(request("POST", "/", body=b" " * MAX_BODY_BYTES))).code == 200


def test_bodies_that_wait_for_their_turn_are_limited() -> None:
    guard, upload = RequestGuard(TOKENS), request("POST", "/", body=b" " * MAX_BODY_BYTES)
    parser = HttpParser(guard, HttpLimits())
    waiting = [one for _ in range(5) for one in parser.feed(upload)]
    assert all(isinstance(one.request, Request) for one in waiting)
    assert parse_code(parser, upload) == 429
    parser.release(waiting[0])
    assert isinstance(HttpParser(guard, HttpLimits()).feed(upload)[0].request, Request)


def test_bodies_in_chunks_are_limited_as_they_arrive() -> None:
    guard = RequestGuard(TOKENS)
    parsers = [HttpParser(guard, HttpLimits()) for _ in range(6)]
    piece = b"10000\r\n%b\r\n" % (b" " * 0x10000)
    for parser in parsers:
        assert parse_code(parser, CHUNKED) == 0
    codes = [parse_code(parser, *[piece] * 47) for parser in parsers]
    assert codes == [0, 0, 0, 0, 0, 429]
    assert guard.bodies.used == 5 * 47 * 0x10000


def test_tenants_leave_memory_to_masters_components_and_nodes() -> None:
    bodies = BodyMemory(total=100, per_user=30, reserved=40)
    for user in (ANN, BOB):
        bodies.reserve(user, 30)
    for refused in (ANN, BOB, ANONYMOUS):
        with pytest.raises(TooManyRequests):
            bodies.reserve(refused, 1)
    for user in (ADMIN, NODE, SCHEDULER):
        bodies.reserve(user, 10)
    bodies.reserve(ADMIN, 10)
    with pytest.raises(TooManyRequests) as report:
        bodies.reserve(ADMIN, 1)
    assert report.value.retry_after == 1
    bodies.release(ANN, 30)
    bodies.reserve(ADMIN, 30)
    assert bodies.used == 100


def test_released_memory_of_bodies_is_not_counted() -> None:
    bodies = BodyMemory(total=100, per_user=30, reserved=40)
    for number in range(1000):
        user = authenticated_user(f"u{number}")
        bodies.reserve(user, 20)
        bodies.reserve(user, 10)
        bodies.release(user, 10)
        bodies.release(user, 20)
    assert (bodies.used, bodies._used_by) == (0, {})


#: Uploads that end in every possible way, and the number of requests that they complete.
ENDINGS: dict[str, tuple[bytes, ...]] = {
    "aborted": (UPLOAD, b" " * MIB),
    "aborted in chunks": (CHUNKED, b"100000\r\n" + b" " * MIB),
    "complete": (request("POST", "/", body=b" " * MIB),),
    "complete in chunks": (CHUNKED, b"100000\r\n" + b" " * MIB + b"\r\n0\r\n\r\n"),
    "malformed": (CHUNKED, b"100000\r\n" + b" " * MIB + b"no chunk"),
    "too large": (CHUNKED, *[b"100000\r\n" + b" " * MIB + b"\r\n"] * 4),
    "with too many trailers": (CHUNKED, b"1\r\nx\r\n0\r\n" + b"X: y\r\n" * 101 + b"\r\n"),
    "after the last request": (
        b"POST / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx" * 2,
    ),
    "refused": (UPLOAD.replace(b"Host", b"Authorization: Bearer wrong\r\nHost"), b" " * MIB),
}


@pytest.mark.parametrize("data", ENDINGS.values(), ids=ENDINGS.keys())
def test_every_end_of_an_upload_releases_its_memory(data: tuple[bytes, ...]) -> None:
    guard = RequestGuard(TOKENS)
    parser, parsed = HttpParser(guard, HttpLimits()), list[ParsedRequest]()
    for piece in data:
        if not parsed or not parsed[-1].is_last:
            parsed += parser.feed(piece)
    parser.close()
    for one in parsed:
        parser.release(one)
    assert guard.bodies.used == 0
    assert not guard._connections


class MemoryTransport(asyncio.Transport):
    """Keeps what is written; reading can be paused."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.is_paused = bytearray(), False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False


class NoObserver:
    """An observer of no interest."""

    def on_authenticated(self, connection: HttpConnection) -> None:
        pass

    def on_closed(self, connection: HttpConnection) -> None:
        pass


@in_virtual_time
async def test_few_pipelined_requests_are_parsed_before_their_turn() -> None:
    held, transport, count = HeldHandler(), MemoryTransport(), 9000
    connection = HttpConnection(held, RequestGuard(TOKENS), HttpLimits(), observer=NoObserver())
    connection.connection_made(transport)
    connection.data_received(request("GET", "/") * count)
    await held.arrived.wait()
    assert transport.is_paused
    assert len(connection._pending) < 1000
    held.release.set()
    await asyncio.sleep(1)
    assert transport.written.count(b"HTTP/1.1 200 OK") == count
    assert not transport.is_paused


# ---- freed at once -------------------------------------------------------------------------------


@pytest.fixture
def no_collection() -> Iterator[None]:
    """No garbage collection: only what no cycle refers to is freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("data", ENDINGS.values(), ids=ENDINGS.keys())
def test_parser_of_an_ended_connection_is_freed_at_once(data: tuple[bytes, ...]) -> None:
    guard = RequestGuard(TOKENS)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    parser = HttpParser(guard, HttpLimits())
    parsed: list[ParsedRequest] = []
    for piece in data:
        if not parsed or not parsed[-1].is_last:
            # A copy: the bytes that a connection receives belong to the parser alone.
            parsed += parser.feed(bytes(bytearray(piece)))
    parsed.clear()
    parser.close()
    freed = weakref.ref(parser)
    del parser
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert freed() is None
    assert left - before < 20_000


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> weakref.WeakSet[HttpConnection]:
    """The connections that were made during the test and are not freed."""
    found, connection_made = weakref.WeakSet[HttpConnection](), HttpConnection.connection_made

    def note_connection(connection: HttpConnection, transport: asyncio.BaseTransport) -> None:
        found.add(connection)
        connection_made(connection, transport)

    monkeypatch.setattr(HttpConnection, "connection_made", note_connection)
    return found


async def wait_for_uploads(net: ServerNetwork, peers: list[Peer], data: tuple[bytes, ...]) -> None:
    for peer in peers:
        peer.send(*data)
        await peer.writer.drain()
    assert (await net.ask(GET)).code == 200


@pytest.mark.mostly_slow(quick_every=2)
@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("ending", ["aborted", "aborted in chunks", "malformed", "refused"])
@on_network
async def test_connection_that_ends_is_freed_at_once(
    net: ServerNetwork, connections: weakref.WeakSet[HttpConnection], ending: str
) -> None:
    async with net.serving(echo):
        peers = [await net.connect() for _ in range(3)]
        await wait_for_uploads(net, peers, ENDINGS[ending])
        assert connections
        for peer in net.peers:
            peer.disconnect()
        for _ in range(1000):
            if not connections:
                break
            await asyncio.sleep(0.01)
        assert list(connections) == []


# ---- replies that clients do not read ------------------------------------------------------------


def test_large_replies_of_one_tenant_and_of_all_are_limited() -> None:
    replies = ReplyMemory(total=12, per_user=5)
    with ExitStack() as held:

        def hold(user: UserInfo, size: int, method: str = "GET") -> None:
            held.enter_context(replies.hold(Request(method, "/", user=user), size))

        hold(ANN, 7)  # One reply may be larger.
        hold(BOB, 3)
        for user, size in ((ANN, 1), (BOB, 3)):
            with pytest.raises(TooManyRequests):
                hold(user, size)
        hold(BOB, 2)
        for user in (NODE, ADMIN, SCHEDULER):
            hold(user, 100)
        # A write has happened, whatever becomes of its reply.
        hold(ANN, 100, "DELETE")
        assert replies.used == 112
    assert replies.used == 0
    assert not replies._used_by


@on_network
async def test_lists_that_a_client_does_not_read_are_limited(
    net: ServerNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = partial(ReplyMemory, total=40 * MIB, per_user=30 * MIB)
    monkeypatch.setattr(request_guard, "ReplyMemory", limited)
    body = bytes(20 * MIB)

    async def handle(asked: Request) -> Reply:
        return Reply(200, body if asked.path == "/list" else b"{}")

    get = request("GET", "/list", "Authorization: Bearer ann")
    async with net.serving(handle, tokens=Tokens({"ann": ANN})):
        idle = await net.connect()
        idle.send(get)
        assert (await idle.read_head()).code == 200
        refused = await net.ask(get)
        assert (refused.code, refused.all("retry-after")) == (429, ["1"])
        assert (await net.ask(GET)).code == 200
        idle.disconnect()
        for _ in range(1000):
            if (code := (await net.ask(get)).code) == 200:
                break
            await asyncio.sleep(0.01)
        assert code == 200
