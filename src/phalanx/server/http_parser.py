"""From bytes to what is asked: HTTP/1.1 as it arrives on one connection, within limits.

The grammar is httptools'; what a client could use to wear us down is counted here: the target, the
headers, the body, and whatever the grammar holds back. Does no I/O and knows no time.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import NamedTuple

import httptools

from phalanx.api.errors import (
    ApiError,
    BadRequest,
    HeadersTooLarge,
    ServerError,
    TooLarge,
    UnsupportedMediaType,
)
from phalanx.api.wire import Request, UserInfo
from phalanx.server.security.request_guard import RequestGuard
from phalanx.server.serialization import MAX_BODY_BYTES

_log = logging.getLogger("phalanx.server")

#: Headers of which a second one would leave open which is meant.
_SINGLE_VALUE_HEADERS = frozenset({"authorization", "content-type", "host"})


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one connection may cost us: in bytes and numbers, then in seconds."""

    target: int = 8 * 1024
    headers: int = 100
    header_bytes: int = 64 * 1024
    #: A head, or what stands behind a piece of a body, before it comes to its end.
    unseen: int = 128 * 1024
    body: int = MAX_BODY_BYTES
    #: Requests that wait for their turn before no more are read.
    pipelined: int = 16
    #: What is read and dropped after a refusal, so that its sender comes to see it.
    dropped: int = 64 * 1024 * 1024

    handshake: float = 10.0
    #: From the first byte of a request to the end of its headers, and to its last byte.
    head: float = 10.0
    arrival: float = 30.0
    idle: float = 90.0
    #: For what is asked to be done, but for a watch.
    answer: float = 60.0
    #: Without a sign that the client reads what it is sent.
    unread: float = 30.0
    #: Between our last word and the end, unless the client ends it.
    linger: float = 5.0
    #: For the replies that are under way when the server stops.
    stop: float = 1.0
    #: Between two looks at how long each client has kept us waiting.
    sweep: float = 1.0


class ParsedRequest(NamedTuple):
    """A request that is whole, or what is wrong with it; and what that means for its connection."""

    request: Request | ApiError
    #: Nothing is read behind it; and it is not whole, its rest may still be on its way.
    is_last: bool = False
    is_cut: bool = False
    #: How its sender reads the answer.
    is_head: bool = False
    accepts_chunked: bool = True


def truncated_request(error: ApiError) -> ParsedRequest:
    """A request that is refused before its end, and with it all that follows."""
    return ParsedRequest(error, is_last=True, is_cut=True)


class HttpParser:
    """Takes bytes as they come, in whatever pieces, and gives what they ask."""

    def __init__(self, guard: RequestGuard, limits: HttpLimits) -> None:
        self._guard, self._limits = guard, limits
        #: Whom the connection's certificate names, and whose requests came last.
        self.peer: UserInfo | ApiError | None = None
        self._user: UserInfo | None = None
        self._grammar = httptools.HttpRequestParser(self)
        self._parsed: list[ParsedRequest] = []
        # Bytes fed since a request began or went on: what the grammar may have kept for itself.
        self._unparsed_bytes = 0
        #: A request has begun, and is not whole yet; its headers may be.
        self.is_in_request = self.is_in_body = False
        #: Its sender wants to be told to go on before it sends the body.
        self.expects_continue = False

    def feed(self, data: bytes) -> list[ParsedRequest]:
        """What has become whole by these bytes. There is no more to be fed after the last."""
        self._unparsed_bytes += len(data)
        try:
            self._grammar.feed_data(data)
            if self._unparsed_bytes > self._limits.unseen:
                raise self._headers_too_large()
        except (httptools.HttpParserError, ApiError) as error:
            self._add_parsed(truncated_request(_parse_error(error)))
        asked, self._parsed = self._parsed, []
        return asked

    # ------------------------------------- what the grammar calls; an ApiError refuses the request

    def on_message_begin(self) -> None:
        """A request begins."""
        self._target, self._body = b"", bytearray()
        self._headers: dict[str, str] = {}
        self._header_count = self._header_bytes = self._unparsed_bytes = 0
        self.is_in_body = self.expects_continue = False
        self.is_in_request = True

    def on_url(self, url: bytes) -> None:
        """A piece of its target."""
        self._target += url
        if len(self._target) > self._limits.target:
            raise HeadersTooLarge(f"the request target has more than {self._limits.target} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; or, behind the body, a trailer, which is counted but not believed."""
        limits, key = self._limits, name.decode("latin-1").lower()
        self._header_count += 1
        self._header_bytes += len(name) + len(value)
        if self._header_count > limits.headers or self._header_bytes > limits.header_bytes:
            raise self._headers_too_large()
        if self.is_in_body:
            return
        if key in self._headers:
            value = self._join_header(key, value)
        self._headers[key] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """All headers are there: what can be refused without the body is refused now."""
        version, headers = self._grammar.get_http_version(), self._headers
        self.is_in_body, self._is_http_1_0 = True, version == "1.0"
        self._check_head(version)
        if "content-length" in headers and int(headers["content-length"]) > self._limits.body:
            raise self._too_large()
        if "expect" in headers and not self._is_http_1_0:
            self.expects_continue = headers["expect"].lower() == "100-continue"

    def on_body(self, body: bytes) -> None:
        """A piece of its body."""
        self._unparsed_bytes = 0
        self._body += body
        if len(self._body) > self._limits.body:
            raise self._too_large()

    def on_message_complete(self) -> None:
        """It is whole."""
        self.is_in_request = self.expects_continue = False
        method = self._grammar.get_method().decode("ascii")
        is_last = self._is_http_1_0 or not self._grammar.should_keep_alive()
        self._add_parsed(
            ParsedRequest(
                self._build_request(method), is_last, False, method == "HEAD", not self._is_http_1_0
            )
        )
        self._body.clear()

    def _add_parsed(self, parsed: ParsedRequest) -> None:
        """Keep what is asked, unless it stands behind what was said to be the last."""
        if not self._parsed or not self._parsed[-1].is_last:
            self._parsed.append(parsed)

    def _join_header(self, key: str, value: bytes) -> bytes:
        """A header that came before and comes again, as one list."""
        if key in _SINGLE_VALUE_HEADERS:
            raise BadRequest(f"the request has more than one {key} header")
        return b"%b, %b" % (self._headers[key].encode("latin-1"), value)

    def _check_head(self, version: str) -> None:
        headers = self._headers
        if self._grammar.should_upgrade():
            raise BadRequest("protocol upgrades are not supported")
        if not self._is_http_1_0 and (version != "1.1" or "host" not in headers):
            raise BadRequest("this is no HTTP/1.1 request: the version or the Host header is wrong")
        coding = headers.get("transfer-encoding", "")
        if coding and (self._is_http_1_0 or coding.lower() != "chunked"):
            raise BadRequest("the only transfer encoding is chunked, and only since HTTP/1.1")
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise UnsupportedMediaType("compressed request bodies are not read")
        if not self._target.startswith(b"/"):
            raise BadRequest("the request target must be a path")

    def _build_request(self, method: str) -> Request | ApiError:
        try:
            user = self._guard.authenticate(self._headers, self.peer)
            if user is not self._user:
                self._assign_user(user)
        except ApiError as error:
            return error
        path, _, query = self._target.decode("ascii").partition("?")
        return Request(method, path, query, self._headers, bytes(self._body), user)

    def _assign_user(self, user: UserInfo) -> None:
        """Count the connection as this user's, and no longer as another's."""
        self._guard.add_connection(user)
        self.release_user()
        self._user = user

    def release_user(self) -> None:
        """The connection is nobody's any more."""
        if self._user is not None:
            self._guard.remove_connection(self._user)
        self._user = None

    def _headers_too_large(self) -> ApiError:
        limits = self._limits
        return HeadersTooLarge(
            f"the request has more than {limits.headers} headers or {limits.header_bytes} bytes"
        )

    def _too_large(self) -> ApiError:
        return TooLarge(f"Request entity too large: limit is {self._limits.body}")


def _parse_error(error: Exception) -> ApiError:
    """What to tell a client whose bytes the grammar, or one of our limits, refused."""
    cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
    if isinstance(cause, ApiError):
        return cause
    if isinstance(cause, httptools.HttpParserError):
        return BadRequest(f"this is no HTTP/1.1 request: {cause}")
    _log.error("a request could not be read", exc_info=cause)
    return ServerError("an internal error occurred; the server's log has more")
