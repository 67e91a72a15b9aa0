from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
import time

import orjson
import pytest

from phalanx.api.kinds import CONFIG_MAP, POD
from phalanx.api.wire import MERGE_PATCH, Request
from phalanx.server.bodies import MAX_BODY
from phalanx.server.listener import bind_socket
from tests.builders import pod
from tests.server.conftest import TOKEN, Listening, Send
from tests.server.test_negotiation import TABLE

PODS = POD.path("default")


def post(path: str, body: object, query: str = "") -> Request:
    return Request("POST", path, query, {"content-type": "application/json"}, orjson.dumps(body))


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
    Request("GET", PODS + "/a%2Fb"),
    Request("GET", PODS, "limit=1"),
    Request("GET", PODS, "labelSelector=a+in"),
    Request("GET", PODS, "", {"accept": TABLE}),
    Request("GET", PODS, "", {"accept": "application/yaml"}),
    Request("GET", PODS, "", {"accept": "text/html"}),
    Request("PATCH", PODS + "/a", "", {"content-type": MERGE_PATCH}, b'{"metadata":{"labels":{"a":"b"}}}'),
    Request("PATCH", PODS + "/a", "", {"content-type": MERGE_PATCH}, b"[]"),
    post(PODS + "/a/binding", {"target": {"name": "n1"}}),
    post(PODS + "/a/binding", {"target": {"name": "n1"}}),
    Request("GET", PODS, "watch=true&allowWatchBookmarks=true&timeoutSeconds=1&resourceVersion=0"),
    Request("DELETE", PODS + "/a"),
    Request("DELETE", PODS),
    Request("GET", "/version"),
    Request("GET", "/apis"),
    Request("GET", "/nowhere"),
    Request("PUT", "/healthz"),
    Request("DANCE", PODS),
)  # fmt: skip


def test_a_server_answers_alike_in_process_and_over_tls(in_process: Send, https: Listening) -> None:
    for request in SCRIPT:
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


def test_large_bodies_are_refused_with_a_status(send: Send) -> None:
    answer = send(Request("POST", PODS, "", {"content-type": "application/json"}, b"x" * 2**22))
    assert (answer.code, answer.body["kind"], answer.body["code"]) == (413, "Status", 413)


# ---- only over the network -----------------------------------------------------------------------


def raw(https: Listening, head: bytes, body: bytes = b"") -> http.client.HTTPResponse:
    """Bytes as they are, in a thread while the server's loop runs."""

    def ask() -> http.client.HTTPResponse:
        with socket.create_connection(("127.0.0.1", https.port), timeout=10) as plain:
            with https.tls().wrap_socket(plain, server_hostname="127.0.0.1") as wire:
                wire.sendall(head + b"\r\n\r\n" + body)
                answer = http.client.HTTPResponse(wire)
                answer.begin()
                answer.content = answer.read()  # type: ignore[attr-defined]
                return answer

    return https.runner.run(asyncio.to_thread(ask))


def heading(method: str, path: str, *more: str) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        "host: localhost",
        f"authorization: Bearer {TOKEN}",
        *more,
    ]
    return "\r\n".join(lines).encode("latin-1")


@pytest.mark.parametrize("path", ["/api/v1/pods/\xff", "/api/v1/pods?labelSelector=\xe9", "/\xe9"])
def test_a_path_that_is_no_ascii_is_refused_with_a_client_error(
    https: Listening, path: str
) -> None:
    assert 400 <= raw(https, heading("GET", path)).status < 500


def test_a_compressed_body_is_not_read(https: Listening) -> None:
    head = heading("POST", PODS, "content-encoding: gzip", "content-length: 2")
    assert raw(https, head, b"{}").status == 400


def test_a_body_in_pieces_has_the_same_limit(https: Listening) -> None:
    head = heading("POST", PODS, "transfer-encoding: chunked")
    piece = b"%x\r\n%s\r\n" % (2**20, b" " * 2**20)
    assert raw(https, head, piece * 4 + b"0\r\n\r\n").status == 413


def test_two_credentials_are_no_credential(https: Listening) -> None:
    head = heading("GET", PODS, f"authorization: Bearer {TOKEN}")
    assert raw(https, head).status in (400, 401)


def test_a_head_has_no_body(https: Listening) -> None:
    answer = raw(https, heading("HEAD", "/version"))
    assert answer.content == b""  # type: ignore[attr-defined]


def test_answers_may_not_be_kept_or_guessed_at(https: Listening) -> None:
    answer = raw(https, heading("GET", PODS))
    assert answer.getheader("cache-control") == "no-cache, private"
    assert answer.getheader("x-content-type-options") == "nosniff"
    assert answer.getheader("server") is None


def test_old_tls_is_refused(https: Listening) -> None:
    old = https.tls()
    old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        old.maximum_version = ssl.TLSVersion.TLSv1_1

    def ask() -> None:
        with socket.create_connection(("127.0.0.1", https.port), timeout=10) as plain:
            old.wrap_socket(plain, server_hostname="127.0.0.1")

    with pytest.raises(ssl.SSLError):
        https.runner.run(asyncio.to_thread(ask))


def test_a_client_that_leaves_is_forgotten(https: Listening) -> None:
    watchers = https.server.context.hub._watchers[CONFIG_MAP.prefix()]

    async def leave() -> int:
        transport = https.transport()
        query = "watch=true&allowWatchBookmarks=true&timeoutSeconds=100"
        answer = await transport.send(Request("GET", CONFIG_MAP.path("default"), query))
        while not watchers:
            await asyncio.sleep(0.01)
        await answer.chunks.aclose()  # type: ignore[union-attr]
        while watchers:
            await asyncio.sleep(0.01)
        await transport.close()
        return len(watchers)

    assert https.runner.run(asyncio.wait_for(leave(), 10)) == 0


def test_a_server_with_open_watches_stops_at_once(https: Listening) -> None:
    async def watch() -> None:
        query = "watch=true&allowWatchBookmarks=true&timeoutSeconds=100"
        answer = await https.transport().send(Request("GET", PODS, query))
        async for _ in answer.chunks:  # type: ignore[union-attr]
            pass

    async def begin() -> asyncio.Task[None]:
        task = asyncio.create_task(watch())
        while not https.server.context.hub._watchers[POD.prefix()]:
            await asyncio.sleep(0.01)
        return task

    https.runner.run(asyncio.wait_for(begin(), 10))
    begun = time.monotonic()
    https.runner.get_loop()
    assert time.monotonic() - begun < 2


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
