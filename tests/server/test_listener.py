from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from phalanx.api.kinds import POD
from phalanx.api.wire import MERGE_PATCH, Request, Stream
from phalanx.client.http import Http
from phalanx.client.transports import Unreachable
from phalanx.clock import WallClock
from phalanx.server.access import ADMIN, Tokens
from phalanx.server.certificates import server_context
from phalanx.server.formats import MAX_BODY
from phalanx.server.listener import bind_socket, listening
from tests.builders import pod
from tests.server.conftest import TOKEN, Listening, Send, new_server
from tests.server.test_negotiation import TABLE

PODS = POD.path("default")
MERGE = {"content-type": MERGE_PATCH}
#: What the HTTP client says about a body that the server is meant to refuse.
LARGE = pytest.mark.filterwarnings("ignore:Sending a large body")


def post(path: str, body: object, query: str = "") -> Request:
    return Request("POST", path, query, {"content-type": "application/json"}, orjson.dumps(body))


def signed(request: Request) -> Request:
    """The same by somebody of that name: it is noted who wrote a field."""
    return replace(request, headers={**request.headers, "user-agent": "tester"})


#: One of everything, in this order.
SCRIPT = (
    post(PODS, pod("a", cpu="1")),
    post(PODS, pod("a")),
    post(PODS, pod("No Name")),
    post(PODS, {"metadata": 5}),
    post(PODS, pod("b", meta={"nickname": "x"})),
    post(PODS, pod("c"), "dryRun=All&fieldValidation=Strict"),
    Request("POST", PODS, "", {"content-type": "application/json"}, b"{"),
    Request("POST", PODS, "", {"content-type": "text/plain"}, b"{}"),
    Request("POST", PODS, "", {"content-type": "application/json"}, b" " * (MAX_BODY + 1)),
    Request("POST", PODS, "", {"content-type": "application/yaml"}, b"metadata: {name: y}"),
    Request("GET", PODS + "/a"),
    Request("GET", PODS + "/nobody"),
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
def test_a_server_answers_alike_in_process_and_over_tls(in_process: Send, https: Listening) -> None:
    for request in map(signed, SCRIPT):
        near, far = in_process(request), https.send(request)
        what = f"{request.method} {request.path}?{request.query}"
        assert (near.code, near.text) == (far.code, far.text), what
        assert far.kind == near.kind.partition(";")[0], what
        assert near.all("warning") == far.all("warning"), what


def test_an_object_lives_from_its_creation_to_its_deletion(send: Send) -> None:
    made = send(post(PODS, pod("a")))
    assert (made.code, send(Request("GET", f"{PODS}/a")).body) == (201, made.body)
    assert send(Request("DELETE", f"{PODS}/a")).code == 200
    assert send(Request("GET", f"{PODS}/a")).code == 404


def test_a_watch_streams_what_happens(send: Send) -> None:
    send(post(PODS, pod("a")))
    query = "watch=true&allowWatchBookmarks=true&timeoutSeconds=1"
    answer = send(Request("GET", PODS, query))
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["type"] for line in lines][:1] == ["ADDED"]


@LARGE
def test_large_bodies_are_refused_with_a_status(send: Send) -> None:
    answer = send(Request("POST", PODS, "", {"content-type": "application/json"}, b"x" * 2**22))
    assert (answer.code, answer.body["kind"], answer.body["code"]) == (413, "Status", 413)


# ---- the port ------------------------------------------------------------------------------------


def test_old_tls_is_refused(https: Listening) -> None:
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


def test_a_port_that_is_taken_is_an_error(https: Listening) -> None:
    with pytest.raises(OSError, match="in use"):
        bind_socket("127.0.0.1", https.port)


def test_port_zero_takes_any_free_one() -> None:
    one, other = bind_socket("127.0.0.1", 0), bind_socket("127.0.0.1", 0)
    with one, other:
        assert one.getsockname()[1] != other.getsockname()[1] != 0


def test_ipv6_is_served_too() -> None:
    with bind_socket("::1", 0) as sock:
        assert sock.family == socket.AF_INET6


WATCH = Request("GET", PODS, "watch=true&allowWatchBookmarks=true&timeoutSeconds=100")


def test_a_server_with_open_watches_stops_at_once_and_forgets_them(tmp_path: Path) -> None:
    server, sock = new_server(), bind_socket("127.0.0.1", 0)
    tls, authority = server_context(tmp_path, [], WallClock().now())
    client = ssl.create_default_context(cadata=authority.decode())

    async def main() -> float:
        await server.start()
        url = f"https://127.0.0.1:{sock.getsockname()[1]}"
        transport = Http(url, token=TOKEN, tls=client)
        async with listening(server.handle, Tokens({TOKEN: ADMIN}), sock, tls):
            answer = await transport.send(WATCH)
            assert isinstance(answer, Stream)
            await transport.send(post(PODS, pod("a")))
            await anext(answer.chunks)
            begun = time.monotonic()
        took = time.monotonic() - begun
        with pytest.raises((Unreachable, StopAsyncIteration)):
            await anext(answer.chunks)
        await transport.close()
        return took

    assert asyncio.run(main()) < 1
    assert len(server.context.hub) == 0


def test_a_server_that_stops_still_gives_the_answers_that_it_owes(tmp_path: Path) -> None:
    begun = asyncio.Event()

    def slowly() -> float:
        begun.set()
        return 0.3

    server, sock = new_server(slowly), bind_socket("127.0.0.1", 0)
    tls, authority = server_context(tmp_path, [], WallClock().now())
    client = ssl.create_default_context(cadata=authority.decode())

    async def main() -> int:
        await server.start()
        url = f"https://127.0.0.1:{sock.getsockname()[1]}"
        transport = Http(url, token=TOKEN, tls=client)
        async with listening(server.handle, Tokens({TOKEN: ADMIN}), sock, tls):
            begun.clear()
            asking = asyncio.ensure_future(transport.send(post(PODS, pod("a"))))
            await asyncio.wait_for(begun.wait(), 5)
        answer = await asking
        await transport.close()
        return answer.code

    assert asyncio.run(main()) == 201
