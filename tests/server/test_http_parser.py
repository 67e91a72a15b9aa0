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
SMALL = HttpLimits(target=100, headers=10, header_bytes=1000, unseen=2000, body=1000)


def parse(*data: bytes, limits: HttpLimits = SMALL) -> list[ParsedRequest]:
    """What these pieces ask, fed until something is the last."""
    parser, asked = HttpParser(RequestGuard(TOKENS), limits), list[ParsedRequest]()
    for piece in data:
        if not asked or not asked[-1].is_last:
            asked += parser.feed(piece)
    return asked


def read(*data: bytes) -> Request:
    """The one request in these pieces."""
    (asked,) = parse(*data)
    assert isinstance(asked.request, Request), asked.request
    return asked.request


def codes(asked: list[ParsedRequest]) -> list[int]:
    """How each ends: 200 if it can be handled."""
    return [one.request.code if isinstance(one.request, ApiError) else 200 for one in asked]


# ---- what is understood --------------------------------------------------------------------------


def test_a_request_is_read_as_it_was_sent() -> None:
    asked = read(request("PUT", "/a%2Fb//c?d=%20&e", "X-Mixed: Ünd so", body=b"\x00body"))
    assert (asked.method, asked.path, asked.query) == ("PUT", "/a%2Fb//c", "d=%20&e")
    assert (asked.headers["x-mixed"], asked.body) == ("Ünd so", b"\x00body")
    assert asked.user == ANONYMOUS


def test_a_token_says_who_asks() -> None:
    assert read(request("GET", "/", "Authorization: Bearer secret")).user == ADMIN


def test_a_wrong_token_is_refused_but_the_connection_goes_on() -> None:
    asked = parse(request("GET", "/", "Authorization: Bearer wrong") + GET)
    assert codes(asked) == [401, 200]


def test_a_token_in_the_query_is_no_token() -> None:
    assert read(request("GET", "/?token=secret&access_token=secret")).user == ANONYMOUS


def test_chunks_are_one_body_and_trailers_are_not_believed() -> None:
    trailer = b"Authorization: Bearer secret\r\nX-Late: 1\r\n"
    asked = read(CHUNKED + b"3;x=y\r\nabc\r\n1\r\nd\r\n0\r\n" + trailer + b"\r\n")
    assert (asked.body, asked.user) == (b"abcd", ANONYMOUS)
    assert "x-late" not in asked.headers


def test_a_header_that_comes_twice_is_one_list() -> None:
    asked = read(request("GET", "/", "Accept: a", "ACCEPT: b", "accept: c"))
    assert asked.headers["accept"] == "a, b, c"


def test_requests_behind_one_another_are_all_read() -> None:
    asked = parse(GET + request("POST", "/", body=b"{}") + b"\r\n" + GET)
    assert codes(asked) == [200, 200, 200]
    assert not any(one.is_last for one in asked)


@pytest.mark.parametrize(
    "data",
    [
        request("GET", "/", "Connection: close"),
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    ],
)
def test_nothing_is_read_behind_the_last(data: bytes) -> None:
    (asked,) = parse(data + GET)
    assert (codes([asked]), asked.is_last, asked.is_cut) == ([200], True, False)


def test_an_old_client_knows_no_chunks() -> None:
    old, new = parse(b"GET / HTTP/1.0\r\n\r\n"), parse(GET)
    assert (old[0].accepts_chunked, new[0].accepts_chunked) == (False, True)


EXPECTING = POST + b"Content-Length: 2\r\nExpect: 100-Continue\r\n\r\n"


def test_a_client_that_asks_before_it_sends_its_body_waits_for_a_word() -> None:
    parser = HttpParser(RequestGuard(TOKENS), SMALL)
    assert parser.feed(EXPECTING) == []
    assert parser.expects_continue
    assert codes(parser.feed(b"{}")) == [200]
    assert not parser.expects_continue


@pytest.mark.parametrize("data", [EXPECTING + b"{}", EXPECTING.replace(b"/1.1", b"/1.0")])
def test_who_sends_its_body_anyway_or_is_old_waits_for_none(data: bytes) -> None:
    parser = HttpParser(RequestGuard(TOKENS), SMALL)
    parser.feed(data)
    assert not parser.expects_continue


# ---- what is not ---------------------------------------------------------------------------------

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
def test_what_is_no_request_is_cut_short_after_what_was_one(data: bytes) -> None:
    asked = parse(GET + data + GET)
    assert codes(asked) == [200, 400]
    assert asked[-1].is_last
    assert asked[-1].is_cut


def test_a_compressed_body_is_not_read() -> None:
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
def test_a_request_has_limits_however_it_comes(data: bytes, code: int) -> None:
    assert codes(parse(data)) == [code]
    assert codes(parse(*(bytes([byte]) for byte in data))) == [code]


@pytest.mark.parametrize(
    "begin",
    [b"", b"GET /", b"GET / HTTP/1.1\r\nX", b"GET / HTTP/1.1\r\nX: ", CHUNKED + b"0\r\nX: ",
     CHUNKED + b"0\r\nX", CHUNKED + b"1;"],
    ids=["empty lines", "target", "name", "value", "trailer", "trailer's name", "chunk extension"],
)  # fmt: skip
def test_nothing_is_taken_in_without_end(begin: bytes) -> None:
    endless = b"y" * 100 if begin else b"\r\n" * 50
    assert codes(parse(begin, *[endless] * 100)) == [431]


def test_the_limits_are_those_that_are_promised() -> None:
    limits = HttpLimits()
    long = request("GET", "/" + "a" * 8191, *(f"X-{n}: {'y' * 600}" for n in range(99)))
    assert codes(parse(long, limits=limits)) == [200]
    pieces = (long[at : at + 100] for at in range(0, len(long), 100))
    assert codes(parse(*pieces, limits=limits)) == [200]
    assert codes(parse(request("POST", "/", body=b" " * 3 * 2**20), limits=limits)) == [200]
    assert codes(parse(request("POST", "/", body=b" " * (3 * 2**20 + 1)), limits=limits)) == [413]


@pytest.mark.parametrize("token", ["secret", "wrong"])
def test_nothing_is_kept_of_what_was_given_away(token: str) -> None:
    parser = HttpParser(RequestGuard(TOKENS), HttpLimits())
    data = request("POST", "/", f"Authorization: Bearer {token}", body=b"x" * 2**20)
    tracemalloc.start()
    assert len(parser.feed(data)) == 1
    left, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert left < 100_000 < most


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


def shown(asked: list[ParsedRequest]) -> list[object]:
    """Asked, so that it can be compared: errors are, when they say the same."""
    return [
        (one.request.status() if isinstance(one.request, ApiError) else one.request, *one[1:])
        for one in asked
    ]


@given(st.lists(st.sampled_from(MESSAGES), max_size=5), st.data())
def test_how_bytes_are_cut_does_not_matter(messages: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert shown(parse(*pieces)) == shown(parse(whole))


@given(st.sampled_from(MESSAGES), st.binary(max_size=30), st.integers(0, 200))
def test_whatever_comes_is_answered_or_waited_for(message: bytes, noise: bytes, place: int) -> None:
    asked = parse(message[:place] + noise + message[place:], GET)
    assert set(codes(asked)) <= {200, 400, 401, 413, 415, 431}
    assert not any(one.is_last for one in asked[:-1])
