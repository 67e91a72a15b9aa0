"""An HTTP/1.1 parser for one connection: bytes in, complete requests out, within limits.

httptools implements the grammar. This module counts what a client could use to exhaust the server:
the request target, the headers, the body, and the bytes that httptools buffers. It authenticates a
request when it is complete, does no I/O and reads no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import httptools

from phalanx import logs
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

LOG = logs.component("server")

#: Headers that must not be repeated: it would be unclear which one counts.
_SINGLE_VALUE_HEADERS = frozenset({"authorization", "content-type", "host"})


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of one connection: sizes in bytes and counts first, then times in seconds."""

    target_bytes: int = 8 * 1024
    header_count: int = 100
    header_bytes: int = 64 * 1024
    #: Bytes that httptools may buffer: an incomplete head, or what follows a piece of a body.
    buffered_bytes: int = 128 * 1024
    body_bytes: int = MAX_BODY_BYTES
    #: Requests that may wait for their turn before reading is paused.
    pending_requests: int = 16
    #: Input that is discarded after a refusal, so that the client gets to read the reply.
    discarded_bytes: int = 64 * 1024 * 1024

    handshake_timeout: float = 10.0
    #: From the first byte of a request to the end of its headers, and to its last byte.
    head_timeout: float = 10.0
    request_timeout: float = 30.0
    idle_timeout: float = 90.0
    #: For handling a request, except for a watch.
    handler_timeout: float = 60.0
    #: Without progress of a client that must read a reply.
    write_timeout: float = 30.0
    #: Between the last reply and the end of the connection.
    close_timeout: float = 5.0
    #: For replies that are being computed when the server stops.
    stop_timeout: float = 1.0
    #: Between two checks of these times.
    check_interval: float = 1.0


class ParsedRequest(NamedTuple):
    """A complete request, or the error in it, and what follows for the connection."""

    request: Request | ApiError
    #: Whether no request follows it, and whether the rest of it may still arrive.
    is_last: bool = False
    is_cut: bool = False
    #: How the client reads the reply.
    is_head: bool = False
    accepts_chunked: bool = True


def new_truncated_request(error: ApiError) -> ParsedRequest:
    """A request that is refused before its end; the connection ends with it."""
    return ParsedRequest(error, is_last=True, is_cut=True)


class HttpParser:
    """Parses bytes, in pieces of any size, into requests."""

    def __init__(self, guard: RequestGuard, limits: HttpLimits) -> None:
        self._guard, self._limits = guard, limits
        #: The user of the client certificate, and the user of the last request.
        self.peer: UserInfo | ApiError | None = None
        self._user: UserInfo | None = None
        self._grammar = httptools.HttpRequestParser(self)
        self._parsed: list[ParsedRequest] = []
        # Bytes fed since the last callback: httptools may have buffered them.
        self._unparsed_bytes = 0
        #: Whether a request has begun, and whether its headers are complete.
        self.is_in_request = self.is_in_body = False
        #: Whether the client waits for "100 Continue" before it sends the body.
        self.expects_continue = False

    def feed(self, data: bytes) -> list[ParsedRequest]:
        """The requests that these bytes complete. Must not be called after the last request."""
        self._unparsed_bytes += len(data)
        try:
            self._grammar.feed_data(data)
            if self._unparsed_bytes > self._limits.buffered_bytes:
                raise self._headers_too_large()
        except (httptools.HttpParserError, ApiError) as error:
            self._add_parsed(new_truncated_request(_parse_error(error)))
        requests, self._parsed = self._parsed, []
        return requests

    # ---- called by httptools; an ApiError refuses the request ----

    def on_message_begin(self) -> None:
        """Called by httptools: a request begins."""
        self._target, self._body = b"", bytearray()
        self._headers: dict[str, str] = {}
        self._header_count = self._header_bytes = self._unparsed_bytes = 0
        self.is_in_body = self.expects_continue = False
        self.is_in_request = True

    def on_url(self, url: bytes) -> None:
        """Called by httptools with a piece of the request target."""
        self._target += url
        if len(self._target) > self._limits.target_bytes:
            raise HeadersTooLarge(
                f"the request target has more than {self._limits.target_bytes} bytes"
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by httptools with a header, or with a trailer, which is counted and ignored."""
        limits, key = self._limits, name.decode("latin-1").lower()
        self._header_count += 1
        self._header_bytes += len(name) + len(value)
        if self._header_count > limits.header_count or self._header_bytes > limits.header_bytes:
            raise self._headers_too_large()
        if self.is_in_body:
            return
        if key in self._headers:
            if key in _SINGLE_VALUE_HEADERS:
                raise BadRequest(f"the request has more than one {key} header")
            value = b"%b, %b" % (self._headers[key].encode("latin-1"), value)
        self._headers[key] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Called by httptools: refuse what can be refused without the body."""
        version, headers = self._grammar.get_http_version(), self._headers
        self.is_in_body, self._is_http_1_0 = True, version == "1.0"
        self._check_head(version)
        if "content-length" in headers and int(headers["content-length"]) > self._limits.body_bytes:
            raise self._too_large()
        if "expect" in headers and not self._is_http_1_0:
            self.expects_continue = headers["expect"].lower() == "100-continue"

    def on_body(self, body: bytes) -> None:
        """Called by httptools with a piece of the body."""
        self._unparsed_bytes = 0
        self._body += body
        if len(self._body) > self._limits.body_bytes:
            raise self._too_large()

    def on_message_complete(self) -> None:
        """Called by httptools: the request is complete."""
        self.is_in_request = self.expects_continue = False
        method = self._grammar.get_method().decode("ascii")
        is_last = self._is_http_1_0 or not self._grammar.should_keep_alive()
        self._add_parsed(
            ParsedRequest(
                self._build_request(method),
                is_last=is_last,
                is_head=method == "HEAD",
                accepts_chunked=not self._is_http_1_0,
            )
        )
        self._body.clear()

    def _add_parsed(self, parsed: ParsedRequest) -> None:
        """Add a request, unless it follows the last one of the connection."""
        if not self._parsed or not self._parsed[-1].is_last:
            self._parsed.append(parsed)

    def _check_head(self, version: str) -> None:
        headers = self._headers
        if self._grammar.should_upgrade():
            raise BadRequest("protocol upgrades are not supported")
        if not self._is_http_1_0 and (version != "1.1" or "host" not in headers):
            raise BadRequest("not an HTTP/1.1 request: wrong version, or no Host header")
        coding = headers.get("transfer-encoding", "")
        if coding and (self._is_http_1_0 or coding.lower() != "chunked"):
            raise BadRequest("unsupported transfer encoding: only chunked, with HTTP/1.1")
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise UnsupportedMediaType("compressed request bodies are not supported")
        if not self._target.startswith(b"/"):
            raise BadRequest("the request target must be a path")

    def _build_request(self, method: str) -> Request | ApiError:
        try:
            user = self._guard.authenticate(self._headers, self.peer)
            if user is not self._user:
                # The connection counts for this user, and no longer for the previous one.
                self._guard.add_connection(user)
                self.release_user()
                self._user = user
        except ApiError as error:
            return error
        path, _, query = self._target.decode("ascii").partition("?")
        return Request(method, path, query, self._headers, bytes(self._body), user)

    def release_user(self) -> None:
        """Stop counting the connection for its user."""
        if self._user is not None:
            self._guard.remove_connection(self._user)
        self._user = None

    def _headers_too_large(self) -> ApiError:
        count, size = self._limits.header_count, self._limits.header_bytes
        return HeadersTooLarge(f"the request has more than {count} headers or {size} bytes")

    def _too_large(self) -> ApiError:
        return TooLarge(f"Request entity too large: limit is {self._limits.body_bytes}")


def _parse_error(error: Exception) -> ApiError:
    """The error for a client whose bytes httptools or a limit refused."""
    cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
    if isinstance(cause, ApiError):
        return cause
    if isinstance(cause, httptools.HttpParserError):
        return BadRequest(f"not an HTTP/1.1 request: {cause}")
    LOG.error("request could not be parsed", exc_info=True)
    return ServerError("internal error; see the server log")
