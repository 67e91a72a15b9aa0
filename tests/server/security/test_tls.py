"""What a client may show under TLS, and what becomes of one that shows something else."""

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


async def whoami(asked: Request) -> Reply:
    return Reply(200, orjson.dumps([asked.user.name, *asked.user.groups]))


@dataclass(frozen=True, slots=True)
class Place:
    """A server, the folder of its keys, and what clients trust."""

    folder: Path
    port: int
    authority: str

    def tls(self, pair: tuple[str, str] | None = None) -> ssl.SSLContext:
        """A client's side; with a certificate and its key, if it has them."""
        context = ssl.create_default_context(cadata=self.authority)
        if pair:
            file = self.folder.parent / "shown.pem"
            file.write_text("".join(pair))
            context.load_cert_chain(file)
        return context

    async def ask(
        self, tls: ssl.SSLContext | None, *headers: str, name: str = "127.0.0.1"
    ) -> bytes:
        """What the server says to one request; as much as it said, if it broke off."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=tls, server_hostname=name if tls else None
        )
        lines = ("GET / HTTP/1.1", f"Host: {name}", "Connection: close", *headers, "", "")
        writer.write("\r\n".join(lines).encode("latin-1"))
        try:
            return await _answer(reader)
        except asyncio.IncompleteReadError as cut:
            return cut.partial
        finally:
            writer.transport.abort()

    async def who(self, tls: ssl.SSLContext, *headers: str) -> list[str] | int:
        """Whom the server takes the client for, or the code by which it refuses it."""
        said = await self.ask(tls, *headers)
        code = int(said.split()[1])
        found: list[str] = orjson.loads(said.partition(b"\r\n\r\n")[2]) if code == 200 else []
        return found or code


async def _answer(reader: asyncio.StreamReader) -> bytes:
    """One answer and no more: after a refusal the server waits for the client to leave."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return head + await reader.readexactly(int(length[1]) if length else 0)


@asynccontextmanager
async def serving(folder: Path, now: float) -> AsyncIterator[Place]:
    tls, authority = server_tls_context(folder, ["phalanx.example"], now)
    sock = bind_socket("127.0.0.1", 0)
    hosts = ("127.0.0.1", "localhost", "phalanx.example")
    async with serve_http(whoami, TOKENS, sock, tls, hosts=hosts):
        yield Place(folder, sock.getsockname()[1], authority.decode())


def served(test: Callable[[Place], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    @wraps(test)
    def run(tmp_path: Path) -> None:
        async def scenario() -> None:
            folder = tmp_path / "keys"
            folder.mkdir()
            async with asyncio.timeout(20), serving(folder, _NOW) as place:
                await test(place)

        asyncio.run(scenario())

    # Where pytest looks for fixtures.
    del run.__wrapped__
    return run


def shown(place: Place, user: UserInfo, *, folder: Path | None = None, now: float = _NOW) -> Any:
    return place.tls(client_certificate(folder or place.folder, user, 1, now))


# ---- certificates of clients ---------------------------------------------------------------------


@served
async def test_a_certificate_of_our_authority_is_its_user(place: Place) -> None:
    assert await place.who(shown(place, ANN)) == ["ann", "team", "system:authenticated"]


@served
async def test_who_shows_neither_certificate_nor_token_is_nobody(place: Place) -> None:
    assert await place.who(place.tls()) == ["system:anonymous", "system:unauthenticated"]


@served
async def test_a_token_beside_a_certificate_must_count_too(place: Place) -> None:
    tls = shown(place, ANN)
    assert await place.who(tls, "Authorization: Bearer bobs") == [
        "ann", "team", "system:authenticated",
    ]  # fmt: skip
    assert await place.who(tls, "Authorization: Bearer wrong") == 401


async def assert_no_answer(place: Place, tls: ssl.SSLContext | None, **named: str) -> None:
    """Nothing is said: the handshake fails, or the connection ends with it."""
    with suppress(ssl.SSLError, ConnectionError):
        assert not (await place.ask(tls, **named)).startswith(b"HTTP")


@served
async def test_a_certificate_of_another_authority_ends_the_handshake(place: Place) -> None:
    other = place.folder.parent / "other"
    other.mkdir()
    server_tls_context(other, [], _NOW)
    await assert_no_answer(place, shown(place, ANN, folder=other))


@pytest.mark.parametrize("days", [-2.0, 2.0], ids=["over", "not begun"])
def test_a_certificate_out_of_its_time_ends_the_handshake(tmp_path: Path, days: float) -> None:
    @served
    async def scenario(place: Place) -> None:
        await assert_no_answer(place, shown(place, ANN, now=_NOW + days * DAY))

    scenario(tmp_path)


@served
async def test_the_servers_own_certificate_makes_nobody_a_client(place: Place) -> None:
    pair = tuple((place.folder / name).read_text() for name in ("server.crt", "server.key"))
    await assert_no_answer(place, place.tls((pair[0], pair[1])))


@served
async def test_the_authoritys_own_certificate_makes_nobody_a_client(place: Place) -> None:
    pair = tuple((place.folder / name).read_text() for name in ("ca.crt", "ca.key"))
    await assert_no_answer(place, place.tls((pair[0], pair[1])))


# ---- the server's side ---------------------------------------------------------------------------


@served
async def test_plain_text_on_the_port_of_tls_is_not_answered(place: Place) -> None:
    await assert_no_answer(place, None)


@served
async def test_old_versions_of_tls_are_not_spoken(place: Place) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    tls.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        tls.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        tls.maximum_version = ssl.TLSVersion.TLSv1_1
    await assert_no_answer(place, tls)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_present_versions_of_tls_are_spoken(tmp_path: Path, version: ssl.TLSVersion) -> None:
    @served
    async def scenario(place: Place) -> None:
        tls = place.tls()
        tls.minimum_version = tls.maximum_version = version
        assert b" 200 " in await place.ask(tls)

    scenario(tmp_path)


@served
async def test_a_client_that_trusts_another_authority_does_not_trust_us(place: Place) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        await place.ask(ssl.create_default_context())


@served
async def test_the_server_proves_the_names_that_it_was_given_and_no_others(place: Place) -> None:
    for name in ("localhost", "phalanx.example"):
        assert b" 200 " in await place.ask(place.tls(), name=name)
    with pytest.raises(ssl.SSLCertVerificationError):
        await place.ask(place.tls(), name="evil.example")


# ---- what a header may hold, over the network ----------------------------------------------------

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


@pytest.mark.parametrize(("headers", "found"), HEADERS.values(), ids=HEADERS)
def test_a_token_over_the_network(
    tmp_path: Path, headers: tuple[str, ...], found: list[str] | int
) -> None:
    @served
    async def scenario(place: Place) -> None:
        assert await place.who(place.tls(), *headers) == found

    scenario(tmp_path)


@served
async def test_a_token_in_the_address_is_none(place: Place) -> None:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", place.port, ssl=place.tls(), server_hostname="127.0.0.1"
    )
    writer.write(b"GET /?access_token=bobs&token=bobs HTTP/1.1\r\nHost: localhost\r\n"
                 b"Connection: close\r\n\r\n")  # fmt: skip
    assert b"system:anonymous" in await reader.read()
    writer.transport.abort()


# ---- where a server listens ----------------------------------------------------------------------


def test_without_tls_a_server_listens_on_this_machine_alone() -> None:
    async def scenario() -> None:
        sock = socket.socket()
        sock.bind(("0.0.0.0", 0))
        try:
            with pytest.raises(TlsRequiredError, match="without TLS"):
                async with serve_http(whoami, TOKENS, sock, None):
                    pass
        finally:
            sock.close()

    asyncio.run(scenario())
