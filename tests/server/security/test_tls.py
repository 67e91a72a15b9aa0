"""Client certificates and tokens over TLS, valid and invalid."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import orjson
import pytest

from phalanx.api.wire import Reply, Request, UserInfo
from phalanx.clock import WallClock
from phalanx.server.http_server import TlsRequiredError, bind_socket, serve_http
from phalanx.server.security.authentication import Tokens
from phalanx.server.security.keyring import client_certificate, server_tls_context
from phalanx.server.security.users import authenticated_user

ANN, BOB = UserInfo("ann", ("team",)), authenticated_user("bob")
TOKENS = Tokens({"bobs": BOB})
DAY, _NOW = 86_400.0, WallClock().now()


async def reply_with_user(request: Request) -> Reply:
    return Reply(200, orjson.dumps([request.user.name, *request.user.groups]))


@dataclass(frozen=True, slots=True)
class TlsServer:
    """A server, the folder of its keys, and the authority that clients trust."""

    folder: Path
    port: int
    authority: str

    def tls(self, pair: tuple[str, str] | None = None) -> ssl.SSLContext:
        """Return a client context, with a client certificate and its key if given."""
        context = ssl.create_default_context(cadata=self.authority)
        if pair:
            file = self.folder.parent / "shown.pem"
            file.write_text("".join(pair))
            context.load_cert_chain(file)
        return context

    async def send(
        self, tls: ssl.SSLContext | None, *headers: str, name: str = "127.0.0.1"
    ) -> bytes:
        """Send a request; return the response, or the received part if the connection broke."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=tls, server_hostname=name if tls else None
        )
        lines = ("GET / HTTP/1.1", f"Host: {name}", "Connection: close", *headers, "", "")
        writer.write("\r\n".join(lines).encode("latin-1"))
        try:
            return await _read_response(reader)
        except asyncio.IncompleteReadError as error:
            return error.partial
        finally:
            writer.transport.abort()

    async def authenticate(self, tls: ssl.SSLContext, *headers: str) -> list[str] | int:
        """Return the user that the server authenticates, or the status code of its rejection."""
        response = await self.send(tls, *headers)
        code = int(response.split()[1])
        user: list[str] = orjson.loads(response.partition(b"\r\n\r\n")[2]) if code == 200 else []
        return user or code


async def _read_response(reader: asyncio.StreamReader) -> bytes:
    """Read one response: after a rejection the server waits for the client to disconnect."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return head + await reader.readexactly(int(length[1]) if length else 0)


@asynccontextmanager
async def serving(folder: Path, now: float) -> AsyncIterator[TlsServer]:
    tls, authority = server_tls_context(folder, ["phalanx.example"], now)
    sock = bind_socket("127.0.0.1", 0)
    hosts = ("127.0.0.1", "localhost", "phalanx.example")
    async with serve_http(reply_with_user, TOKENS, sock, tls=tls, hosts=hosts):
        yield TlsServer(folder, sock.getsockname()[1], authority.decode())


def with_server(test: Callable[[TlsServer], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    @wraps(test)
    def run(tmp_path: Path) -> None:
        async def scenario() -> None:
            folder = tmp_path / "keys"
            folder.mkdir()
            async with asyncio.timeout(240), serving(folder, _NOW) as server:
                await test(server)

        asyncio.run(scenario())

    # pytest follows __wrapped__ to find fixtures.
    del run.__wrapped__
    return run


def client_tls(
    server: TlsServer, user: UserInfo, *, folder: Path | None = None, now: float = _NOW
) -> Any:
    return server.tls(client_certificate(folder or server.folder, user, days=1, now=now))


# ---- client certificates -------------------------------------------------------------------------


@with_server
async def test_client_certificate_authenticates_its_user(server: TlsServer) -> None:
    assert await server.authenticate(client_tls(server, ANN)) == [
        "ann",
        "team",
        "system:authenticated",
    ]


@with_server
async def test_client_without_certificate_and_token_is_anonymous(server: TlsServer) -> None:
    assert await server.authenticate(server.tls()) == ["system:anonymous", "system:unauthenticated"]


@with_server
async def test_token_sent_with_a_certificate_must_be_valid(server: TlsServer) -> None:
    tls = client_tls(server, ANN)
    assert await server.authenticate(tls, "Authorization: Bearer bobs") == [
        "ann", "team", "system:authenticated",
    ]  # fmt: skip
    assert await server.authenticate(tls, "Authorization: Bearer wrong") == 401


async def assert_no_answer(server: TlsServer, tls: ssl.SSLContext | None, **options: str) -> None:
    """Assert that the handshake fails or the connection ends without a response."""
    with suppress(ssl.SSLError, ConnectionError):
        assert not (await server.send(tls, **options)).startswith(b"HTTP")


@with_server
async def test_certificate_of_another_authority_fails_the_handshake(server: TlsServer) -> None:
    other = server.folder.parent / "other"
    other.mkdir()
    server_tls_context(other, [], _NOW)
    await assert_no_answer(server, client_tls(server, ANN, folder=other))


@pytest.mark.parametrize("days", [-2.0, 2.0], ids=["over", "not begun"])
def test_expired_or_future_certificate_fails_the_handshake(tmp_path: Path, days: float) -> None:
    @with_server
    async def scenario(server: TlsServer) -> None:
        await assert_no_answer(server, client_tls(server, ANN, now=_NOW + days * DAY))

    scenario(tmp_path)


@with_server
async def test_server_certificate_is_rejected_as_client_certificate(server: TlsServer) -> None:
    pair = tuple((server.folder / name).read_text() for name in ("server.crt", "server.key"))
    await assert_no_answer(server, server.tls((pair[0], pair[1])))


@with_server
async def test_authority_certificate_is_rejected_as_client_certificate(server: TlsServer) -> None:
    pair = tuple((server.folder / name).read_text() for name in ("ca.crt", "ca.key"))
    await assert_no_answer(server, server.tls((pair[0], pair[1])))


# ---- server certificate --------------------------------------------------------------------------


@with_server
async def test_plain_http_on_the_tls_port_is_not_answered(server: TlsServer) -> None:
    await assert_no_answer(server, None)


@with_server
async def test_tls_1_0_and_1_1_are_rejected(server: TlsServer) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    tls.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        tls.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        tls.maximum_version = ssl.TLSVersion.TLSv1_1
    await assert_no_answer(server, tls)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_1_2_and_1_3_are_accepted(tmp_path: Path, version: ssl.TLSVersion) -> None:
    @with_server
    async def scenario(server: TlsServer) -> None:
        tls = server.tls()
        tls.minimum_version = tls.maximum_version = version
        assert b" 200 " in await server.send(tls)

    scenario(tmp_path)


@with_server
async def test_client_that_trusts_another_authority_rejects_the_server(server: TlsServer) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        await server.send(ssl.create_default_context())


@with_server
async def test_server_certificate_is_valid_for_the_configured_names_only(server: TlsServer) -> None:
    for name in ("localhost", "phalanx.example"):
        assert b" 200 " in await server.send(server.tls(), name=name)
    with pytest.raises(ssl.SSLCertVerificationError):
        await server.send(server.tls(), name="evil.example")


# ---- authorization headers -----------------------------------------------------------------------

HEADERS = {
    "a right token": (("Authorization: Bearer bobs",), ["bob", "system:authenticated"]),
    "a wrong token": (("Authorization: Bearer wrong",), 401),
    "a wrong scheme": (("Authorization: Basic bobs",), 401),
    "two headers": (("Authorization: Bearer bobs", "Authorization: Bearer bobs"), 400),
    "a folded token": (("Authorization: Bearer", " bobs"), 400),
    "a newline": (("Authorization: Bearer bobs\nX: y",), 400),
    "a NUL": (("Authorization: Bearer bobs\x00",), 400),
    "a long token": ((f"Authorization: Bearer {'x' * 70_000}",), 431),
    "the name of a proxy": (("X-Remote-User: admin", "X-Forwarded-User: admin"),
                            ["system:anonymous", "system:unauthenticated"]),
}  # fmt: skip


@pytest.mark.parametrize(("headers", "user"), HEADERS.values(), ids=HEADERS)
def test_authorization_header_over_the_network(
    tmp_path: Path, headers: tuple[str, ...], user: list[str] | int
) -> None:
    @with_server
    async def scenario(server: TlsServer) -> None:
        assert await server.authenticate(server.tls(), *headers) == user

    scenario(tmp_path)


@with_server
async def test_token_in_the_query_is_ignored(server: TlsServer) -> None:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", server.port, ssl=server.tls(), server_hostname="127.0.0.1"
    )
    writer.write(b"GET /?access_token=bobs&token=bobs HTTP/1.1\r\nHost: localhost\r\n"
                 b"Connection: close\r\n\r\n")  # fmt: skip
    assert b"system:anonymous" in await reader.read()
    writer.transport.abort()


# ---- listening address ---------------------------------------------------------------------------


def test_server_without_tls_listens_on_loopback_only() -> None:
    async def scenario() -> None:
        sock = socket.socket()
        sock.bind(("0.0.0.0", 0))
        try:
            with pytest.raises(TlsRequiredError, match="without TLS"):
                async with serve_http(reply_with_user, TOKENS, sock, tls=None):
                    pass
        finally:
            sock.close()

    asyncio.run(scenario())
