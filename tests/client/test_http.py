from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import orjson
import pytest
from aiohttp import web

from phalanx.api.core import Pod
from phalanx.api.errors import NotFound, ServerError
from phalanx.api.kinds import POD
from phalanx.api.meta import Key
from phalanx.api.wire import Reply, Request, StreamReply
from phalanx.client.client import Client
from phalanx.client.http import HttpClientLimits, HttpTransport
from phalanx.client.transports import Unreachable

from .certificates import OURS, THEIRS, authority, server_tls
from .fake_api import line, pod

Page = Callable[[web.Request], Awaitable[web.StreamResponse]]
Rest = Callable[[web.Request, web.StreamResponse], Awaitable[None]]
A = Key("default", "a")


@asynccontextmanager
async def serving(page: Page, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server on a free port that answers everything with one page."""
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", page)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        port = runner.addresses[0][1]
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def talking(
    page: Page,
    *,
    tls: ssl.SSLContext | None = None,
    limits: HttpClientLimits | None = None,
    token: str = "",
) -> AsyncIterator[HttpTransport]:
    """A transport to such a server."""
    trust = ssl.create_default_context(cadata=authority(OURS).pem) if tls else None
    async with serving(page, tls) as url:
        http = HttpTransport(url, token=token, tls=trust, limits=limits)
        try:
            yield http
        finally:
            await http.close()


async def echo(request: web.Request) -> web.StreamResponse:
    """What the server saw."""
    assert request.transport is not None
    seen = {
        "method": request.method,
        "path": request.path,
        "query": request.query_string,
        "headers": {name.lower(): value for name, value in request.headers.items()},
        "body": (await request.read()).decode(),
        "port": request.transport.get_extra_info("peername")[1],
    }
    return web.json_response(seen, headers={"X-Seen": "yes"})


async def whole(http: HttpTransport, request: Request) -> Reply:
    answer = await http.send(request)
    assert isinstance(answer, Reply)
    return answer


def test_a_request_goes_over_the_wire_as_it_is() -> None:
    async def scenario() -> None:
        async with talking(echo, token="secret") as http:
            request = Request(
                "POST", "/api/v1/x:y z", "a=b%3Dc", {"content-type": "application/json"}, {"k": "ü"}
            )
            answer = await whole(http, request)
        seen = orjson.loads(answer.body)
        assert (seen["method"], seen["path"], seen["query"]) == (
            "POST",
            "/api/v1/x:y z",
            "a=b%3Dc",
        )
        assert orjson.loads(seen["body"]) == {"k": "ü"}
        assert seen["headers"]["authorization"] == "Bearer secret"
        assert seen["headers"]["content-type"] == "application/json"
        assert (answer.code, answer.content_type) == (200, "application/json")
        assert ("x-seen", "yes") in answer.headers

    asyncio.run(scenario())


def test_without_a_token_no_credential_is_sent_and_without_a_body_no_type() -> None:
    async def scenario() -> None:
        async with talking(echo) as http:
            seen = orjson.loads((await whole(http, Request("GET", "/x"))).body)
        assert "authorization" not in seen["headers"]
        assert seen["body"] == ""

    asyncio.run(scenario())


def test_requests_share_a_connection() -> None:
    async def scenario() -> None:
        async with talking(echo) as http:
            ports = [
                orjson.loads((await whole(http, Request("GET", "/x"))).body)["port"]
                for _ in range(3)
            ]
        assert len(set(ports)) == 1

    asyncio.run(scenario())


def test_a_transport_can_be_used_again_after_it_was_closed() -> None:
    async def scenario() -> None:
        async with talking(echo) as http:
            await whole(http, Request("GET", "/x"))
            await http.close()
            assert (await whole(http, Request("GET", "/x"))).code == 200

    asyncio.run(scenario())


def test_the_client_speaks_over_tls(tmp_path: Path) -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/a"):
            return web.json_response(pod("a", 5))
        return web.json_response(NotFound("no such pod").status(), status=404)

    async def scenario() -> None:
        async with talking(page, tls=server_tls(authority(OURS), tmp_path)) as http:
            client = Client(http)
            assert (await client.get(POD, A, Pod)).metadata.key == A
            with pytest.raises(NotFound, match="no such pod"):
                await client.get(POD, Key("default", "b"), Pod)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("issuer", "address", "complaint"),
    [(THEIRS, "127.0.0.1", "self-signed certificate"), (OURS, "127.0.0.2", "IP address mismatch")],
)
def test_a_server_that_cannot_prove_its_identity_is_not_talked_to(
    tmp_path: Path, issuer: str, address: str, complaint: str
) -> None:
    async def scenario() -> None:
        tls = server_tls(authority(issuer), tmp_path, address)
        async with talking(echo, tls=tls) as http:
            with pytest.raises(Unreachable, match=complaint):
                await http.send(Request("GET", "/x"))

    asyncio.run(scenario())


def test_a_server_that_is_not_there_is_unreachable() -> None:
    async def scenario() -> None:
        async with serving(echo) as url:
            pass
        http = HttpTransport(url)
        with pytest.raises(Unreachable) as raised:
            await http.send(Request("GET", "/x"))
        await http.close()
        assert str(raised.value) == f"cannot reach {url}: Connection refused"

    asyncio.run(scenario())


def test_a_server_without_tls_is_not_talked_to_as_if_it_had_some() -> None:
    async def scenario() -> None:
        async with serving(echo) as url:
            http = HttpTransport(url.replace("http:", "https:"))
            with pytest.raises(Unreachable, match="TLS"):
                await http.send(Request("GET", "/x"))
            await http.close()

    asyncio.run(scenario())


def test_a_server_that_does_not_answer_in_time_is_unreachable() -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async def scenario() -> None:
        async with talking(page, limits=HttpClientLimits(request_timeout=0.05)) as http:
            with pytest.raises(Unreachable, match="did not answer in time"):
                await http.send(Request("GET", "/x"))

    asyncio.run(scenario())


def test_a_server_that_hangs_up_is_unreachable() -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def scenario() -> None:
        async with talking(page) as http:
            with pytest.raises(Unreachable):
                await http.send(Request("POST", "/x"))

    asyncio.run(scenario())


def test_a_redirect_is_not_followed() -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": "/elsewhere"})

    async def scenario() -> None:
        async with talking(page, token="secret") as http:
            assert (await whole(http, Request("GET", "/x"))).code == 302

    asyncio.run(scenario())


def test_an_answer_beyond_all_measure_is_refused() -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"x" * 100_001)

    async def scenario() -> None:
        async with talking(page, limits=HttpClientLimits(max_response_bytes=100_000)) as http:
            with pytest.raises(ServerError, match="more than 100000 bytes"):
                await http.send(Request("GET", "/x"))

    asyncio.run(scenario())


class Watched:
    """A page that answers a watch with one event, and then as its `rest` says."""

    def __init__(self, rest: Rest) -> None:
        self.closed, self._rest = asyncio.Event(), rest

    async def page(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(line("ADDED", pod("a", 5)))
        try:
            await self._rest(request, response)
        finally:
            self.closed.set()
        return response


async def silence(request: web.Request, response: web.StreamResponse) -> None:
    await asyncio.Event().wait()


async def another(request: web.Request, response: web.StreamResponse) -> None:
    await response.write(line("MODIFIED", pod("a", 6)))


async def abort(request: web.Request, response: web.StreamResponse) -> None:
    assert request.transport is not None
    request.transport.abort()


def test_a_watch_gives_events_as_they_come_until_the_server_ends_it() -> None:
    async def scenario() -> None:
        async with talking(Watched(another).page) as http:
            watch = Client(http).watch(POD, Pod, since=4)
            assert [event.revision async for event in watch] == [5, 6]

    asyncio.run(scenario())


def test_closing_a_watch_closes_its_connection() -> None:
    async def scenario() -> None:
        watched = Watched(silence)
        async with talking(watched.page) as http:
            async with aclosing(Client(http).watch(POD, Pod, since=4)) as events:
                assert (await anext(events)).revision == 5
                assert not watched.closed.is_set()
            await watched.closed.wait()

    asyncio.run(scenario())


@pytest.mark.parametrize("rest", [silence, abort])
def test_a_watch_that_falls_silent_or_breaks_off_is_unreachable(rest: Rest) -> None:
    async def scenario() -> None:
        async with talking(
            Watched(rest).page, limits=HttpClientLimits(watch_idle_timeout=0.1)
        ) as http:
            events = Client(http).watch(POD, Pod, since=4)
            assert (await anext(events)).revision == 5
            with pytest.raises(Unreachable):
                await anext(events)

    asyncio.run(scenario())


def test_a_watch_outlives_the_time_that_an_answer_may_take() -> None:
    async def late(request: web.Request, response: web.StreamResponse) -> None:
        await asyncio.sleep(0.1)
        await another(request, response)

    async def scenario() -> None:
        async with talking(
            Watched(late).page, limits=HttpClientLimits(request_timeout=0.05)
        ) as http:
            watch = Client(http).watch(POD, Pod, since=4)
            assert [event.revision async for event in watch] == [5, 6]

    asyncio.run(scenario())


def test_a_watch_that_is_refused_is_an_answer_in_one_piece() -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        return web.json_response(NotFound("no such kind").status(), status=404)

    async def scenario() -> None:
        async with talking(page) as http:
            request = Request("GET", "/x", "watch=true&allowWatchBookmarks=true")
            assert not isinstance(await http.send(request), StreamReply)
            with pytest.raises(NotFound):
                await anext(Client(http).watch(POD, since=1))

    asyncio.run(scenario())
