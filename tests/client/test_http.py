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
from .fake_api import pod, watch_event

Page = Callable[[web.Request], Awaitable[web.StreamResponse]]
Rest = Callable[[web.Request, web.StreamResponse], Awaitable[None]]
A = Key("default", "a")


@asynccontextmanager
async def serving(page: Page, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server on a free port that answers every request with one page."""
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
async def transport_to(
    page: Page,
    *,
    tls: ssl.SSLContext | None = None,
    limits: HttpClientLimits | None = None,
    token: str = "",
) -> AsyncIterator[HttpTransport]:
    """A transport to a server that answers with one page."""
    trust = ssl.create_default_context(cadata=authority(OURS).pem) if tls else None
    async with serving(page, tls) as url:
        http = HttpTransport(url, token=token, tls=trust, limits=limits)
        try:
            yield http
        finally:
            await http.close()


async def echo(request: web.Request) -> web.StreamResponse:
    """Answer with the request as the server received it."""
    assert request.transport is not None
    received = {
        "method": request.method,
        "path": request.path,
        "query": request.query_string,
        "headers": {name.lower(): value for name, value in request.headers.items()},
        "body": (await request.read()).decode(),
        "port": request.transport.get_extra_info("peername")[1],
    }
    return web.json_response(received, headers={"X-Seen": "yes"})


async def send(http: HttpTransport, request: Request) -> Reply:
    reply = await http.send(request)
    assert isinstance(reply, Reply)
    return reply


def test_request_arrives_unchanged() -> None:
    async def scenario() -> None:
        async with transport_to(echo, token="secret") as http:
            request = Request(
                "POST", "/api/v1/x:y z", "a=b%3Dc", {"content-type": "application/json"}, {"k": "ü"}
            )
            reply = await send(http, request)
        received = orjson.loads(reply.body)
        assert (received["method"], received["path"], received["query"]) == (
            "POST",
            "/api/v1/x:y z",
            "a=b%3Dc",
        )
        assert orjson.loads(received["body"]) == {"k": "ü"}
        assert received["headers"]["authorization"] == "Bearer secret"
        assert received["headers"]["content-type"] == "application/json"
        assert (reply.code, reply.content_type) == (200, "application/json")
        assert ("x-seen", "yes") in reply.headers

    asyncio.run(scenario())


def test_request_without_token_and_body_sends_no_authorization_and_no_content() -> None:
    async def scenario() -> None:
        async with transport_to(echo) as http:
            received = orjson.loads((await send(http, Request("GET", "/x"))).body)
        assert "authorization" not in received["headers"]
        assert received["body"] == ""

    asyncio.run(scenario())


def test_requests_share_a_connection() -> None:
    async def scenario() -> None:
        async with transport_to(echo) as http:
            ports = [
                orjson.loads((await send(http, Request("GET", "/x"))).body)["port"]
                for _ in range(3)
            ]
        assert len(set(ports)) == 1

    asyncio.run(scenario())


def test_closed_transport_can_be_used_again() -> None:
    async def scenario() -> None:
        async with transport_to(echo) as http:
            await send(http, Request("GET", "/x"))
            await http.close()
            assert (await send(http, Request("GET", "/x"))).code == 200

    asyncio.run(scenario())


def test_client_connects_over_tls(tmp_path: Path) -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/a"):
            return web.json_response(pod("a", 5))
        return web.json_response(NotFound("no such pod").status(), status=404)

    async def scenario() -> None:
        async with transport_to(page, tls=server_tls(authority(OURS), tmp_path)) as http:
            client = Client(http)
            assert (await client.get(POD, A, Pod)).metadata.key == A
            with pytest.raises(NotFound, match="no such pod"):
                await client.get(POD, Key("default", "b"), Pod)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("issuer", "address", "message"),
    [(THEIRS, "127.0.0.1", "self-signed certificate"), (OURS, "127.0.0.2", "IP address mismatch")],
)
def test_server_with_an_untrusted_certificate_is_unreachable(
    tmp_path: Path, issuer: str, address: str, message: str
) -> None:
    async def scenario() -> None:
        tls = server_tls(authority(issuer), tmp_path, address)
        async with transport_to(echo, tls=tls) as http:
            with pytest.raises(Unreachable, match=message) as raised:
                await http.send(Request("GET", "/x"))
            assert not raised.value.is_down

    asyncio.run(scenario())


def test_server_that_refuses_connections_is_unreachable() -> None:
    async def scenario() -> None:
        async with serving(echo) as url:
            pass
        http = HttpTransport(url)
        with pytest.raises(Unreachable) as raised:
            await http.send(Request("GET", "/x"))
        await http.close()
        assert str(raised.value) == f"cannot reach {url}: Connection refused"
        assert raised.value.is_down

    asyncio.run(scenario())


def test_https_request_to_a_server_without_tls_is_unreachable() -> None:
    async def scenario() -> None:
        async with serving(echo) as url:
            http = HttpTransport(url.replace("http:", "https:"))
            with pytest.raises(Unreachable, match="TLS"):
                await http.send(Request("GET", "/x"))
            await http.close()

    asyncio.run(scenario())


def test_server_that_exceeds_the_request_timeout_is_unreachable() -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async def scenario() -> None:
        async with transport_to(page, limits=HttpClientLimits(request_timeout=0.05)) as http:
            with pytest.raises(Unreachable, match="did not answer in time"):
                await http.send(Request("GET", "/x"))

    asyncio.run(scenario())


def test_server_that_aborts_the_connection_is_unreachable() -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def scenario() -> None:
        async with transport_to(page) as http:
            with pytest.raises(Unreachable):
                await http.send(Request("POST", "/x"))

    asyncio.run(scenario())


def test_redirect_is_not_followed() -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": "/elsewhere"})

    async def scenario() -> None:
        async with transport_to(page, token="secret") as http:
            assert (await send(http, Request("GET", "/x"))).code == 302

    asyncio.run(scenario())


def test_response_above_the_size_limit_is_an_error() -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"x" * 100_001)

    async def scenario() -> None:
        async with transport_to(page, limits=HttpClientLimits(max_response_bytes=100_000)) as http:
            with pytest.raises(ServerError, match="more than 100000 bytes"):
                await http.send(Request("GET", "/x"))

    asyncio.run(scenario())


class WatchPage:
    """Answers a watch with one event and then continues with `rest`."""

    def __init__(self, rest: Rest) -> None:
        self.closed, self._rest = asyncio.Event(), rest

    async def page(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(watch_event("ADDED", pod("a", 5)))
        try:
            await self._rest(request, response)
        finally:
            self.closed.set()
        return response


async def send_nothing(request: web.Request, response: web.StreamResponse) -> None:
    await asyncio.Event().wait()


async def send_another_event(request: web.Request, response: web.StreamResponse) -> None:
    await response.write(watch_event("MODIFIED", pod("a", 6)))


async def abort_connection(request: web.Request, response: web.StreamResponse) -> None:
    assert request.transport is not None
    request.transport.abort()


def test_watch_yields_events_until_the_server_ends_it() -> None:
    async def scenario() -> None:
        async with transport_to(WatchPage(send_another_event).page) as http:
            watch = Client(http).watch(POD, Pod, since=4)
            assert [event.revision async for event in watch] == [5, 6]

    asyncio.run(scenario())


def test_closing_a_watch_closes_its_connection() -> None:
    async def scenario() -> None:
        open_watches = WatchPage(send_nothing)
        async with transport_to(open_watches.page) as http:
            async with aclosing(Client(http).watch(POD, Pod, since=4)) as events:
                assert (await anext(events)).revision == 5
                assert not open_watches.closed.is_set()
            await open_watches.closed.wait()

    asyncio.run(scenario())


@pytest.mark.parametrize("rest", [send_nothing, abort_connection])
def test_watch_that_is_idle_too_long_or_aborts_is_unreachable(rest: Rest) -> None:
    async def scenario() -> None:
        async with transport_to(
            WatchPage(rest).page, limits=HttpClientLimits(watch_idle_timeout=0.1)
        ) as http:
            events = Client(http).watch(POD, Pod, since=4)
            assert (await anext(events)).revision == 5
            with pytest.raises(Unreachable):
                await anext(events)

    asyncio.run(scenario())


def test_watch_may_last_longer_than_the_request_timeout() -> None:
    async def late(request: web.Request, response: web.StreamResponse) -> None:
        await asyncio.sleep(0.1)
        await send_another_event(request, response)

    async def scenario() -> None:
        async with transport_to(
            WatchPage(late).page, limits=HttpClientLimits(request_timeout=0.05)
        ) as http:
            watch = Client(http).watch(POD, Pod, since=4)
            assert [event.revision async for event in watch] == [5, 6]

    asyncio.run(scenario())


def test_rejected_watch_is_a_plain_reply() -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        return web.json_response(NotFound("no such kind").status(), status=404)

    async def scenario() -> None:
        async with transport_to(page) as http:
            request = Request("GET", "/x", "watch=true&allowWatchBookmarks=true")
            assert not isinstance(await http.send(request), StreamReply)
            with pytest.raises(NotFound):
                await anext(Client(http).watch(POD, since=1))

    asyncio.run(scenario())


def test_requests_do_not_wait_for_open_watches() -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        watch = WatchPage(send_nothing).page
        return await (watch(request) if "watch" in request.query else echo(request))

    async def scenario() -> None:
        async with transport_to(page, limits=HttpClientLimits(max_connections=1)) as http:
            watches = [Client(http).watch(POD, Pod, since=4) for _ in range(3)]
            for watch in watches:
                assert (await anext(watch)).revision == 5
            assert (await send(http, Request("GET", "/x"))).code == 200
            for watch in watches:
                await watch.aclose()

    asyncio.run(scenario())


def test_one_watch_too_many_is_unreachable() -> None:
    limits = HttpClientLimits(max_watches=1, connect_timeout=0.1)

    async def scenario() -> None:
        async with (
            transport_to(WatchPage(send_nothing).page, limits=limits) as http,
            aclosing(Client(http).watch(POD, Pod, since=4)) as watch,
        ):
            assert (await anext(watch)).revision == 5
            with pytest.raises(Unreachable):
                await anext(Client(http).watch(POD, Pod, since=4))

    asyncio.run(scenario())
