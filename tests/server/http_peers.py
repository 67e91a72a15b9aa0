"""A server on its own port, and clients that send it arbitrary bytes."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Concatenate, NamedTuple, ParamSpec

import orjson
import uvloop

from phalanx.api.wire import Handler, Object, Reply, Request, StreamReply
from phalanx.clock import WallClock
from phalanx.server.http_parser import HttpLimits
from phalanx.server.http_server import bind_socket, serve_http
from phalanx.server.security.authorization import ADMIN, Tokens
from phalanx.server.security.keyring import server_tls_context

P = ParamSpec("P")

TOKENS = Tokens({"secret": ADMIN})


def request(method: str, target: str, *headers: str, body: bytes = b"") -> bytes:
    """The bytes of a request."""
    length = (f"Content-Length: {len(body)}",) if body else ()
    lines = (f"{method} {target} HTTP/1.1", "Host: x", *headers, *length, "", "")
    return "\r\n".join(lines).encode("latin-1") + body


GET = request("GET", "/version")
WATCH = request("GET", "/pods?watch=true")
#: A client that does not read is disconnected soon.
SHORT_WRITE_TIMEOUT = HttpLimits(write_timeout=0.05)


class HttpResponse(NamedTuple):
    """A response that a client has read."""

    code: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def json(self) -> Object:
        read: Object = orjson.loads(self.body)
        return read

    def all(self, name: str) -> list[str]:
        return [value for header, value in self.headers if header == name]


@dataclass(frozen=True, slots=True)
class Peer:
    """One client connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))

    async def read_head(self) -> HttpResponse:
        """Read a response up to its body."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        fields = (line.partition(": ") for line in lines[1:])
        return HttpResponse(
            int(lines[0].split()[1]), [(name, value) for name, _, value in fields], b""
        )

    async def read_response(self) -> HttpResponse:
        """Read a whole response, in one piece or in chunks."""
        head = await self.read_head()
        if head.all("transfer-encoding"):
            return head._replace(body=b"".join([chunk async for chunk in self.chunks()]))
        size = int(head.all("content-length")[0])
        return head._replace(body=await self.reader.readexactly(size))

    async def chunks(self) -> AsyncIterator[bytes]:
        """Read chunks up to the empty one."""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            yield await self.reader.readexactly(size)
            assert await self.reader.readexactly(2) == b"\r\n"
        assert await self.reader.readexactly(2) == b"\r\n"

    async def read_rest(self) -> bytes:
        """Read until the server closes or aborts the connection."""
        data = bytearray()
        try:
            while piece := await self.reader.read(1 << 20):
                data += piece
        except (ConnectionError, ssl.SSLError):
            pass
        return bytes(data)

    def disconnect(self) -> None:
        self.writer.transport.abort()


@dataclass(slots=True)
class ServerNetwork:
    """A server and its clients on one type of event loop, with or without TLS."""

    new_loop: Callable[[], asyncio.AbstractEventLoop]
    is_tls: bool
    peers: list[Peer] = field(default_factory=list)
    port: int = 0
    #: Seconds until a scenario fails.
    timeout: float = 240.0

    @asynccontextmanager
    async def serving(
        self, handle: Handler, limits: HttpLimits | None = None, tokens: Tokens = TOKENS
    ) -> AsyncIterator[None]:
        sock = bind_socket("127.0.0.1", 0)
        _shrink_buffers(sock)
        self.port = sock.getsockname()[1]
        async with serve_http(
            handle, tokens, sock, tls=tls_contexts()[0] if self.is_tls else None, limits=limits
        ):
            yield

    async def connect(self) -> Peer:
        sock = socket.socket()
        _shrink_buffers(sock)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(sock, ("127.0.0.1", self.port))
        except (OSError, asyncio.CancelledError):
            sock.close()
            raise
        tls, name = (tls_contexts()[1], "127.0.0.1") if self.is_tls else (None, None)
        try:
            peer = Peer(*await asyncio.open_connection(sock=sock, ssl=tls, server_hostname=name))
        except OSError:
            if isinstance(loop, uvloop.Loop):
                # uvloop closes the descriptor, but leaves it to a socket that was reset.
                sock.detach()
            raise
        self.peers.append(peer)
        return peer

    async def ask(self, data: bytes) -> HttpResponse:
        """Send bytes on a new connection and read the response."""
        peer = await self.connect()
        peer.send(data)
        return await peer.read_response()

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        """Run a scenario to its end; the event loop must report no errors."""
        complaints = _LoopErrors()
        logging.getLogger("asyncio").addHandler(complaints)
        with asyncio.Runner(loop_factory=self.new_loop) as runner:
            runner.run(self._bounded(scenario))
        logging.getLogger("asyncio").removeHandler(complaints)
        assert complaints.messages == []

    async def _bounded(self, scenario: Coroutine[Any, Any, None]) -> None:
        async with asyncio.timeout(self.timeout):
            try:
                await scenario
            finally:
                for peer in self.peers:
                    peer.disconnect()


#: A server behaves alike in all of them: (type of event loop, with TLS).
NETWORKS = {
    "clear": (asyncio.new_event_loop, False),
    "TLS": (asyncio.new_event_loop, True),
    "TLS on uvloop": (uvloop.new_event_loop, True),
}


class _LoopErrors(logging.Handler):
    """Collects reports about tasks and transports that were not closed, and lost errors."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def on_network(
    test: Callable[Concatenate[ServerNetwork, P], Coroutine[Any, Any, None]],
) -> Callable[..., None]:
    """Runs an async test on the event loop of its network."""

    @wraps(test)
    def run(net: ServerNetwork, *args: P.args, **kwargs: P.kwargs) -> None:
        net.run(test(net, *args, **kwargs))

    return run


def _shrink_buffers(sock: socket.socket) -> None:
    """Limit the bytes that the system buffers for a peer that does not read."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, 16 * 1024)


@cache
def tls_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The TLS contexts of the server and the clients, shared by all tests."""
    with TemporaryDirectory() as folder:
        server, authority = server_tls_context(Path(folder), [], WallClock().now())
    return server, ssl.create_default_context(cadata=authority.decode())


async def echo(received: Request) -> Reply:
    """A handler that replies with the request."""
    assert isinstance(received.body, bytes)
    seen = {
        "method": received.method,
        "path": received.path,
        "query": received.query,
        "headers": dict(received.headers),
        "body": received.body.decode("latin-1"),
        "user": received.user.name,
    }
    return Reply(200, orjson.dumps(seen))


class HeldHandler:
    """Replies like `echo`, but not before it is released."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.arrived, self.release, self.done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def __call__(self, received: Request) -> Reply:
        self.requests.append(received)
        self.arrived.set()
        await self.release.wait()
        self.done.set()
        return await echo(received)


class StreamingHandler:
    """Streams chunks; counts those that were taken, and tells when it was closed."""

    def __init__(self, *chunks: bytes, ends: bool = False) -> None:
        self._chunks, self._ends = chunks, ends
        self.chunks_taken, self.closed = 0, asyncio.Event()

    async def __call__(self, received: Request) -> Reply | StreamReply:
        return (
            StreamReply(200, self._stream()) if "watch" in received.query else await echo(received)
        )

    async def _stream(self) -> AsyncGenerator[bytes, None]:
        try:
            for chunk in self._chunks:
                self.chunks_taken += 1
                yield chunk
            if not self._ends:
                await asyncio.Event().wait()
        finally:
            self.closed.set()


async def serve_others(net: ServerNetwork, times: int = 100) -> None:
    """Serve other clients while the event loop runs."""
    other = await net.connect()
    for _ in range(times):
        await send_unauthorized(other)


async def send_unauthorized(peer: Peer) -> None:
    peer.send(request("GET", "/", "Authorization: Bearer wrong"))
    assert (await peer.read_response()).code == 401
