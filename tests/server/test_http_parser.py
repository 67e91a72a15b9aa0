from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.errors import ApiError
from phalanx.api.wire import ANONYMOUS, Request
from phalanx.server.http_parser import HttpLimits, HttpParser, ParsedRequest
from phalanx.server.security.authorization import ADMIN
from phalanx.server.security.request_guard import RequestGuard
from tests.server.http_peers import TOKENS, request

GET = request("GET", "/version")
POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
SMALL = HttpLimits(
    target_bytes=100, header_count=10, header_bytes=1000, buffered_bytes=2000, body_bytes=1000
)


def parse(*data: bytes, limits: HttpLimits = SMALL) -> list[ParsedRequest]:
    """The requests in these pieces, up to the last one of the connection."""
    parser, received = HttpParser(RequestGuard(TOKENS), limits), list[ParsedRequest]()
    for piece in data:
        if not received or not received[-1].is_last:
            received += parser.feed(piece)
    return received


def read(*data: bytes) -> Request:
    """The only request in these pieces."""
    (received,) = parse(*data)
    assert isinstance(received.request, Request), received.request
    return received.request


def codes(received: list[ParsedRequest]) -> list[int]:
    """The code of each request: 200 if it is valid."""
    return [one.request.code if isinstance(one.request, ApiError) else 200 for one in received]


# ---- valid requests ------------------------------------------------------------------------------


def test_a_request_is_read_as_it_was_sent() -> None:
    received = read(request("PUT", "/a%2Fb//c?d=%20&e", "X-Mixed: Ünd so", body=b"\x00body"))
    assert (received.method, received.path, received.query) == ("PUT", "/a%2Fb//c", "d=%20&e")
    assert (received.headers["x-mixed"], received.body) == ("Ünd so", b"\x00body")
    assert received.user == ANONYMOUS


def test_a_token_authenticates_the_request() -> None:
    assert read(request("GET", "/", "Authorization: Bearer secret")).user == ADMIN


def test_a_wrong_token_is_refused_but_the_connection_continues() -> None:
    received = parse(request("GET", "/", "Authorization: Bearer wrong") + GET)
    assert codes(received) == [401, 200]


def test_a_token_in_the_query_is_ignored() -> None:
    assert read(request("GET", "/?token=secret&access_token=secret")).user == ANONYMOUS


def test_chunks_are_joined_and_trailers_are_ignored() -> None:
    trailer = b"Authorization: Bearer secret\r\nX-Late: 1\r\n"
    received = read(CHUNKED + b"3;x=y\r\nabc\r\n1\r\nd\r\n0\r\n" + trailer + b"\r\n")
    assert (received.body, received.user) == (b"abcd", ANONYMOUS)
    assert "x-late" not in received.headers


def test_repeated_headers_are_joined() -> None:
    received = read(request("GET", "/", "Accept: a", "ACCEPT: b", "accept: c"))
    assert received.headers["accept"] == "a, b, c"


def test_pipelined_requests_are_all_parsed() -> None:
    received = parse(GET + request("POST", "/", body=b"{}") + b"\r\n" + GET)
    assert codes(received) == [200, 200, 200]
    assert not any(one.is_last for one in received)


@pytest.mark.parametrize(
    "data",
    [
        request("GET", "/", "Connection: close"),
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    ],
)
def test_nothing_is_parsed_after_the_last_request(data: bytes) -> None:
    (received,) = parse(data + GET)
    assert (codes([received]), received.is_last, received.is_cut) == ([200], True, False)


def test_an_http_1_0_client_gets_no_chunks() -> None:
    old, new = parse(b"GET / HTTP/1.0\r\n\r\n"), parse(GET)
    assert (old[0].accepts_chunked, new[0].accepts_chunked) == (False, True)


EXPECTING = POST + b"Content-Length: 2\r\nExpect: 100-Continue\r\n\r\n"


def test_a_client_may_expect_100_continue() -> None:
    parser = HttpParser(RequestGuard(TOKENS), SMALL)
    assert parser.feed(EXPECTING) == []
    assert parser.expects_continue
    assert codes(parser.feed(b"{}")) == [200]
    assert not parser.expects_continue


@pytest.mark.parametrize("data", [EXPECTING + b"{}", EXPECTING.replace(b"/1.1", b"/1.0")])
def test_100_continue_is_not_expected_after_the_body_or_with_http_1_0(data: bytes) -> None:
    parser = HttpParser(RequestGuard(TOKENS), SMALL)
    parser.feed(data)
    assert not parser.expects_continue


# ---- invalid requests ----------------------------------------------------------------------------

BAD = {
    "TLS": b"\x16\x03\x01\x02\x00",
    "no method": b"DANCE / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a small method": b"get / HTTP/1.1\r\nHost: x\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/2": b"GET / HTTP/2.0\r\nHost: x\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: x\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": request("GET", "/", "Host: y"),
    "two tokens": request("GET", "/", "Authorization: Bearer a", "Authorization: Bearer secret"),
    "two types": request("POST", "/", "Content-Type: a/b", "Content-Type: c/d"),
    "an absolute target": request("GET", "http://elsewhere/api"),
    "a star": request("OPTIONS", "*"),
    "an authority": request("CONNECT", "elsewhere:443"),
    "no ASCII path": request("GET", "/\xff"),
    "no ASCII query": request("GET", "/?a=\xe9"),
    "NUL in the target": request("GET", "/a\0b"),
    "a space in the target": request("GET", "/a b"),
    "an upgrade": request("GET", "/", "Connection: upgrade", "Upgrade: websocket", body=b"x"),
    "no colon": request("GET", "/", "no colon"),
    "a space before the colon": request("GET", "/", "A : b"),
    "no name": request("GET", "/", ": b"),
    "a folded header": request("GET", "/", "A: b", " c"),
    "NUL in a header": request("GET", "/", "A: b\0c"),
    "NUL in a name": request("GET", "/", "A\0: b"),
    "a control character": request("GET", "/", "A: b\x01c"),
    "LF alone after the line": b"GET / HTTP/1.1\nHost: x\r\n\r\n",
    "LF alone after a header": b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
    "LF alone at the end": b"GET / HTTP/1.1\r\nHost: x\r\n\n",
    "CR alone in a header": b"GET / HTTP/1.1\r\nHost: x\rA: b\r\n\r\n",
    "both lengths": POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both lengths, turned": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc",
    "two lengths": POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "a list of lengths": POST + b"Content-Length: 3, 3\r\n\r\nabc",
    "a negative length": POST + b"Content-Length: -3\r\n\r\nabc",
    "a signed length": POST + b"Content-Length: +3\r\n\r\nabc",
    "an empty length": POST + b"Content-Length:\r\n\r\nabc",
    "an enormous length": POST + b"Content-Length: 99999999999999999999\r\n\r\nabc",
    "another coding": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "an unknown coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "chunks of old": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "no chunk size": CHUNKED + b"xyz\r\nabc\r\n0\r\n\r\n",
    "a negative chunk": CHUNKED + b"-3\r\nabc\r\n0\r\n\r\n",
    "a chunk with a prefix": CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
    "an enormous chunk": CHUNKED + b"fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    "LF alone after a chunk size": CHUNKED + b"3\nabc\r\n0\r\n\r\n",
    "a chunk that goes on": CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_an_invalid_request_ends_the_connection_after_the_valid_ones_before_it(data: bytes) -> None:
    received = parse(GET + data + GET)
    assert codes(received) == [200, 400]
    assert received[-1].is_last
    assert received[-1].is_cut


def test_a_compressed_body_is_refused() -> None:
    assert codes(parse(request("POST", "/", "Content-Encoding: gzip", body=b"x"))) == [415]
    assert codes(parse(request("POST", "/", "Content-Encoding: Identity", body=b"x"))) == [200]


# ---- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (request("GET", "/" + "a" * 99), 200),
        (request("GET", "/" + "a" * 100), 431),
        (request("GET", "/", *(f"X-{n}: y" for n in range(9))), 200),
        (request("GET", "/", *(f"X-{n}: y" for n in range(10))), 431),
        (request("GET", "/", *["X: y"] * 10), 431),
        (request("GET", "/", "X: " + "y" * 900), 200),
        (request("GET", "/", "X: " + "y" * 1000), 431),
        (request("GET", "/", *(f"X-{n}: {'y' * 200}" for n in range(5))), 431),
        (request("POST", "/", body=b"x" * 1000), 200),
        (request("POST", "/", body=b"x" * 1001), 413),
        (POST + b"Content-Length: 1001\r\n\r\n", 413),
        (POST + b"Content-Length: 1001\r\nExpect: 100-continue\r\n\r\n", 413),
        (CHUNKED + b"3e8\r\n" + b"x" * 1000 + b"\r\n0\r\n\r\n", 200),
        (CHUNKED + b"3e9\r\n" + b"x" * 1001, 413),
        (CHUNKED + b"1\r\nx\r\n" * 1001, 413),
        (CHUNKED + b"0\r\n" + b"X: y\r\n" * 20 + b"\r\n", 431),
    ],
)
def test_limits_apply_however_the_bytes_are_split(data: bytes, code: int) -> None:
    assert codes(parse(data)) == [code]
    assert codes(parse(*(bytes([byte]) for byte in data))) == [code]


@pytest.mark.parametrize(
    "begin",
    [b"", b"GET /", b"GET / HTTP/1.1\r\nX", b"GET / HTTP/1.1\r\nX: ", CHUNKED + b"0\r\nX: ",
     CHUNKED + b"0\r\nX", CHUNKED + b"1;"],
    ids=["empty lines", "target", "name", "value", "trailer", "trailer's name", "chunk extension"],
)  # fmt: skip
def test_no_input_is_buffered_without_limit(begin: bytes) -> None:
    endless = b"y" * 100 if begin else b"\r\n" * 50
    assert codes(parse(begin, *[endless] * 100)) == [431]


@pytest.mark.parametrize("begin", [b"GET / HTTP/1.1\r\n", CHUNKED + b"1\r\nx\r\n0\r\n"])
@pytest.mark.parametrize("fields", [b"X:\r\n" * 12, b"X: " + b"y" * 1001 + b"\r\nY: z\r\n"])
def test_headers_and_trailers_are_refused_before_their_end(begin: bytes, fields: bytes) -> None:
    assert codes(parse(begin + fields)) == [431]


def test_the_default_limits_are_as_documented() -> None:
    limits = HttpLimits()
    long = request("GET", "/" + "a" * 8191, *(f"X-{n}: {'y' * 600}" for n in range(99)))
    assert codes(parse(long, limits=limits)) == [200]
    pieces = (long[at : at + 100] for at in range(0, len(long), 100))
    assert codes(parse(*pieces, limits=limits)) == [200]
    assert codes(parse(request("POST", "/", body=b" " * 3 * 2**20), limits=limits)) == [200]
    assert codes(parse(request("POST", "/", body=b" " * (3 * 2**20 + 1)), limits=limits)) == [413]


def allocated_bytes(token: str) -> tuple[int, int]:
    """The bytes that are left, and the most that were used, by a request with a large body."""
    parser = HttpParser(RequestGuard(TOKENS), HttpLimits())
    data = request("POST", "/", f"Authorization: Bearer {token}", body=b"x" * 2**20)
    tracemalloc.start()
    assert len(parser.feed(data)) == 1
    left, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return left, most


def test_the_parser_keeps_no_finished_requests() -> None:
    left, most = allocated_bytes("secret")
    assert left < 100_000 < most


def test_the_body_of_a_request_with_a_wrong_token_is_never_kept() -> None:
    _, most = allocated_bytes("wrong")
    assert most < 100_000


# ---- properties ----------------------------------------------------------------------------------

MESSAGES = [
    GET,
    request("POST", "/a?b", "Accept: c", "Accept: d", body=b'{"e":1}'),
    CHUNKED + b"3\r\nabc\r\n0\r\nX: y\r\n\r\n",
    request("GET", "/", "Authorization: Bearer secret"),
    request("GET", "/", "Authorization: Bearer wrong"),
    request("HEAD", "/", "Connection: close"),
    b"GET / HTTP/1.0\r\n\r\n",
    *BAD.values(),
]


def comparable(received: list[ParsedRequest]) -> list[object]:
    """Parsed requests in a form that can be compared, including errors."""
    return [
        (one.request.status() if isinstance(one.request, ApiError) else one.request, *one[1:])
        for one in received
    ]


@given(st.lists(st.sampled_from(MESSAGES), max_size=5), st.data())
def test_the_result_does_not_depend_on_how_the_bytes_are_split(
    messages: list[bytes], data: st.DataObject
) -> None:
    whole = b"".join(messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert comparable(parse(*pieces)) == comparable(parse(whole))


@given(st.sampled_from(MESSAGES), st.binary(max_size=30), st.integers(0, 200))
def test_any_bytes_give_a_request_or_an_error_or_need_more_bytes(
    message: bytes, noise: bytes, place: int
) -> None:
    received = parse(message[:place] + noise + message[place:], GET)
    assert set(codes(received)) <= {200, 400, 401, 413, 415, 431}
    assert not any(one.is_last for one in received[:-1])
