"""Malformed values of every header that the server reads: a 4xx or no effect, never a 5xx.

Each value goes the way of a real request: bytes, parser, guard, server.
"""

from __future__ import annotations

import logging
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.errors import ApiError
from phalanx.api.kinds import POD
from phalanx.api.wire import JSON_PATCH, MERGE_PATCH, Reply
from phalanx.server.http_parser import HttpLimits, HttpParser
from phalanx.server.security.authorization import ADMIN, Tokens
from phalanx.server.security.request_guard import RequestGuard
from tests.builders import in_virtual_time
from tests.server.api import Api

SECRET = "Authorization: Bearer secret"
PODS = POD.url_path("default")
POD_BODY = b'{"metadata":{"generateName":"a-"},"spec":{"containers":[{"name":"c","image":"i"}]}}'
#: Requests that read headers in different places: method, target, a header that they need, body.
REQUESTS = {
    "list": ("GET", PODS, "", b""),
    "create": ("POST", PODS, "", POD_BODY),
    "patch": ("PATCH", f"{PODS}/a", f"Content-Type: {MERGE_PATCH}", b"{}"),
    "delete": ("DELETE", f"{PODS}/a", "", b'{"propagationPolicy":"Background"}'),
    "watch": ("GET", f"{PODS}?watch=1&timeoutSeconds=1", "", b""),
    "discovery": ("GET", "/apis", "", b""),
    "openapi": ("GET", "/openapi/v2", "", b""),
    "metrics": ("GET", "/metrics", "", b""),
    "page": ("GET", "/ui/", "", b""),
}
#: Headers that the server reads, and some that it must ignore.
HEADERS = (
    "Accept", "Accept-Encoding", "Accept-Language", "Audit-Id", "Authorization", "Connection",
    "Content-Encoding", "Content-Length", "Content-Type", "Cookie", "Date", "Expect", "Forwarded",
    "Host", "If-Match", "If-Modified-Since", "If-None-Match", "If-Range", "If-Unmodified-Since",
    "Impersonate-Extra-", "Impersonate-Extra-%zz", "Impersonate-Extra-a", "Impersonate-Group",
    "Impersonate-Uid", "Impersonate-User", "Impersonate-Unknown", "Keep-Alive", "Origin", "Range",
    "Referer", "Sec-Fetch-Mode", "Sec-Fetch-Site", "TE", "Traceparent", "Trailer",
    "Transfer-Encoding", "Upgrade", "User-Agent", "Via", "Warning", "X-Forwarded-For",
    "X-HTTP-Method-Override", "X-Remote-User",
)  # fmt: skip
VALUES = (
    "", " ", "\t", ",", ",,;;==", ";", "=", ";=;", '"', "''", '"unterminated', "\\", "*", "%",
    "%zz", "%00", "%ff%fe", "\xff\xfe", "\xe9" * 100, "\x80", "a" * 4000, "[" * 1000, "((((",
    "null", "None", "0", "-1", "+1", "1e9", "NaN", "9" * 30, "9" * 5000, "1, 2", "0x10", "²",
    "٣".encode().decode("latin-1"), "http://[", "http://[::1", "https://]", "https://[v1.x]:1",
    "//", "://", "https://", "https://a:b:c", "[", "[]", "[::1", "::1%25", "a b", "localhost:",
    "localhost:99999999", ":::", "1.2.3.4.5", "..", "bearer", "Bearer", "Bearer ", "Bearer a.b.c",
    "Bearer ..", "Bearer \xff.\xff.\xff", "Basic YTpi", "Bearer eyJhbGciOiJub25lIn0.e30.",
    "Bearer " + "a." * 1000, "Bearer W10.W10.W10", "Negotiate x",
    "application/json;as=Table;v=v1;g=", "application/json;as=Table;v", "application/json;q=x;;=",
    "application/json;as=APIGroupDiscoveryList;v=x", "a/b/c", "/", "application/", JSON_PATCH,
    "text/html", "application/yaml", "application/vnd.kubernetes.protobuf",
    "multipart/form-data; boundary=", "bytes=", "bytes=-", "bytes=9-1,-1,a-b", "W/", 'W/"', "*, *",
    "Thu, 99 Foo 0000", "gzip;q=-1", "identity;q=0, *;q=0", "cross-site", "same-site", "navigate",
    "chunked, gzip", "close, keep-alive", "100-continue", "system:serviceaccount:",
    "system:serviceaccount:a:b:c", "system:masters", "system:node:", "h2c", "DELETE",
)  # fmt: skip


def send_bytes(name: str, value: str, target: str) -> bytes:
    """The bytes of a request with a header; it replaces a header of the same name."""
    method, path, needed, body = REQUESTS[target]
    headers = {"host": "Host: localhost", "authorization": SECRET}
    if needed:
        headers["content-type"] = needed
    if body:
        headers["content-length"] = f"Content-Length: {len(body)}"
    headers[name.lower()] = f"{name}: {value}"
    lines = (f"{method} {path} HTTP/1.1", *headers.values(), "", "")
    return "\r\n".join(lines).encode("latin-1") + body


async def code_of(api: Api, data: bytes) -> int:
    """The code of the reply to these bytes; 0 if the server waits for more."""
    guard = RequestGuard(api.server.access.authenticator, ("localhost",))
    parsed = HttpParser(guard, HttpLimits()).feed(data)
    if not parsed:
        return 0
    request = parsed[0].request
    if isinstance(request, ApiError):
        return request.code
    reply = await api.server.handle(request)
    if not isinstance(reply, Reply):
        await reply.chunks.aclose()
    return reply.code


def assert_harmless(code: int, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    assert code < 500, data
    faults = [one for one in caplog.records if one.levelno >= logging.ERROR or one.exc_info]
    assert faults == [], data


@pytest.mark.parametrize("name", HEADERS)
@in_virtual_time
async def test_no_malformed_header_is_a_server_error(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    api = await Api.start(tokens=Tokens({"secret": ADMIN}))
    rng = random.Random(name)
    for value in VALUES:
        for target in rng.sample(sorted(REQUESTS), 3):
            data = send_bytes(name, value, target)
            assert_harmless(await code_of(api, data), data, caplog)


@pytest.mark.parametrize("origin", ["http://[", "https://]", "http://[::1", "[", "null", "", "://"])
@in_virtual_time
async def test_malformed_origin_is_forbidden(origin: str) -> None:
    api = await Api.start(tokens=Tokens({"secret": ADMIN}))
    assert await code_of(api, send_bytes("Origin", origin, "list")) == 403


#: What a header may contain, by the grammar of HTTP.
header_text = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=60
)


@given(st.data())
def test_no_combination_of_header_values_is_a_server_error(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(HEADERS), min_size=1, max_size=4))
    values = (
        st.sampled_from(VALUES) | header_text | st.tuples(header_text, header_text).map(",".join)
    )
    fields = "".join(f"{name}: {data.draw(values)}\r\n" for name in names)
    method, path, _, body = REQUESTS[data.draw(st.sampled_from(sorted(REQUESTS)))]
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{SECRET}\r\n{fields}\r\n"

    @in_virtual_time
    async def check() -> None:
        api = await Api.start(tokens=Tokens({"secret": ADMIN}))
        assert await code_of(api, head.encode("latin-1") + body) < 500, head

    check()
