"""An HTTP/1.1 parser for one connection: bytes in, complete requests out, within limits.

httptools implements the grammar. This module counts what a client could use to exhaust the server:
the request target, the headers, the body, and the bytes that httptools buffers. A request is
authenticated at the end of its headers: the body of a request that is refused is never kept. The
parser does no I/O and reads no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import httptools

from phalanx import logs
from phalanx.api.errors import (
    ApiError,
    BadRequest,
    HeadersTooLarge,
    ServerError,
    TooLarge,
    TooManyRequests,
    UnsupportedMediaType,
)
from phalanx.api.wire import ANONYMOUS, Request, UserInfo
from phalanx.server.security.authentication import ClientCertificate
from phalanx.server.security.request_guard import RequestGuard
from phalanx.server.serialization import MAX_BODY_BYTES

LOG = logs.component("server")

#: Headers that must not be repeated: it would be unclear which one counts.
_SINGLE_VALUE_HEADERS = frozenset({"authorization", "content-type", "host"})
#: Bytes that are reserved at once for a body of unknown length.
_RESERVED_STEP = 64 * 1024


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of one connection, of all connections, and times in seconds."""

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

    #: Open connections, and those of them that wait for their first authenticated request.
    connections: int = 4096
    new_connections: int = 1024
    #: Descriptors that connections leave to the store, the audit log and all other files.
    reserved_descriptors: int = 128

    handshake_timeout: float = 10.0
    #: How long a client may take before another one can displace it, when there is no room.
    displacement_grace: float = 1.0
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
    #: Bytes that `RequestGuard.bodies` counts for the request until it is answered.
    reserved_bytes: int = 0


def new_truncated_request(error: ApiError) -> ParsedRequest:
    """A request that is refused before its end; the connection ends with it."""
    return ParsedRequest(error, is_last=True, is_cut=True)


class HttpParser:
    """Parses bytes, in pieces of any size, into requests."""

    def __init__(self, guard: RequestGuard, limits: HttpLimits) -> None:
        self._guard, self._limits = guard, limits
        #: The client certificate of the connection, or the error in it.
        self.peer: ClientCertificate | ApiError | None = None
        #: The user of the last request, and the user that the connection counts for.
        self._user = ANONYMOUS
        self._counted_user: UserInfo | None = None
        self._refusal: ApiError | None = None
        self._grammar = httptools.HttpRequestParser(self)
        self._parsed: list[ParsedRequest] = []
        # Bytes fed since the last callback: httptools may have buffered them.
        self._unparsed_bytes = 0
        self._body, self._reserved_bytes = bytearray(), 0
        #: Whether a request has begun, and whether its headers are complete.
        self.is_in_request = self.is_in_body = False
        #: Whether the client waits for "100 Continue" before it sends the body.
        self.expects_continue = False

    @property
    def is_authenticated(self) -> bool:
        """Whether a request of a known user was authenticated."""
        return self._counted_user is not None

    def feed(self, data: bytes) -> list[ParsedRequest]:
        """The requests that these bytes complete. Must not be called after the last request."""
        self._unparsed_bytes += len(data)
        try:
            self._grammar.feed_data(data)
            if self.is_in_request:
                self._check_fields()
            if self._unparsed_bytes > self._limits.buffered_bytes:
                raise self._headers_too_large()
        except (httptools.HttpParserError, ApiError) as error:
            self._release_body()
            self._add_parsed(new_truncated_request(_parse_error(error)))
        requests, self._parsed = self._parsed, []
        return requests

    # ---- called by httptools; an ApiError refuses the request ----

    def on_message_begin(self) -> None:
        """Called by httptools: a request begins."""
        self._target, self._refusal = b"", None
        self._fields: list[tuple[bytes, bytes]] = []
        self._unparsed_bytes = 0
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
        """Called by httptools with a header, or with a trailer, which is counted and ignored.

        The limits are checked at the end of the headers, of the trailers, and of each `feed`.
        """
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        """Called by httptools: refuse what can be refused without the body."""
        version = self._grammar.get_http_version()
        self._check_fields()
        self._headers = headers = _read_headers(self._fields)
        self.is_in_body, self._is_http_1_0 = True, version == "1.0"
        self._method = self._grammar.get_method().decode("ascii")
        self._check_head(version)
        length = int(headers["content-length"]) if "content-length" in headers else 0
        has_body = length > 0 or "transfer-encoding" in headers
        try:
            self._authenticate()
            if has_body and self._guard.check_level is not None:
                self._guard.check_level(self._build_request(b""))
        except ApiError as error:
            # Without a body the next request can follow; a body would have to be read.
            if has_body:
                raise
            self._refusal = error.with_traceback(None)
            return
        if length > self._limits.body_bytes:
            raise self._too_large()
        if length:
            self._reserve(length)
        if "expect" in headers and not self._is_http_1_0:
            self.expects_continue = headers["expect"].lower() == "100-continue"

    def on_body(self, body: bytes) -> None:
        """Called by httptools with a piece of the body."""
        self._unparsed_bytes = 0
        self._body += body
        if len(self._body) > self._reserved_bytes:
            missing = len(self._body) - self._reserved_bytes
            allowed = self._limits.body_bytes - self._reserved_bytes
            if missing > allowed:
                raise self._too_large()
            self._reserve(min(max(missing, _RESERVED_STEP), allowed))

    def on_message_complete(self) -> None:
        """Called by httptools: the request is complete."""
        self.is_in_request = self.expects_continue = False
        if len(self._fields) > len(self._headers):
            self._check_fields()
        is_last = self._is_http_1_0 or not self._grammar.should_keep_alive()
        # A connection beyond the limit of its user is not counted: it must end.
        is_refused = isinstance(self._refusal, TooManyRequests)
        self._add_parsed(
            ParsedRequest(
                self._refusal or self._build_request(bytes(self._body)),
                is_last=is_last or is_refused,
                is_head=self._method == "HEAD",
                accepts_chunked=not self._is_http_1_0,
                reserved_bytes=self._reserved_bytes,
            )
        )
        if self._reserved_bytes:
            self._body, self._reserved_bytes = bytearray(), 0

    def _add_parsed(self, parsed: ParsedRequest) -> None:
        """Add a request, unless it follows the last one of the connection."""
        if not self._parsed or not self._parsed[-1].is_last:
            self._parsed.append(parsed)
        else:
            self.release(parsed)

    def _check_fields(self) -> None:
        limits, fields = self._limits, self._fields
        too_many = len(fields) > limits.header_count
        if too_many or sum(map(len, chain.from_iterable(fields))) > limits.header_bytes:
            raise self._headers_too_large()

    def _check_head(self, version: str) -> None:
        headers = self._headers
        if self._grammar.should_upgrade():
            raise BadRequest("protocol upgrades (exec, attach, port-forward) are not supported")
        if not self._is_http_1_0 and (version != "1.1" or "host" not in headers):
            raise BadRequest("not an HTTP/1.1 request: wrong version, or no Host header")
        coding = headers.get("transfer-encoding", "")
        if coding and (self._is_http_1_0 or coding.lower() != "chunked"):
            raise BadRequest("unsupported transfer encoding: only chunked, with HTTP/1.1")
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise UnsupportedMediaType("compressed request bodies are not supported")
        if not self._target.startswith(b"/"):
            raise BadRequest("the request target must be a path")

    def _build_request(self, body: bytes) -> Request:
        path, _, query = self._target.decode("ascii").partition("?")
        expires = self.peer.expires if isinstance(self.peer, ClientCertificate) else None
        return Request(self._method, path, query, self._headers, body, self._user, expires=expires)

    def _authenticate(self) -> None:
        """Count the connection for the user of the request, and no longer for the previous one.

        Anonymous clients have no limit in common: one of them could shut out the others. Their
        connections count as new ones.
        """
        user = self._guard.authenticate(self._headers, self.peer)
        if user not in (ANONYMOUS, self._counted_user):
            self._guard.add_connection(user)
            self._release_user()
            self._counted_user = user
        self._user = user

    def _reserve(self, size: int) -> None:
        self._guard.bodies.reserve(self._user, size)
        self._reserved_bytes += size

    def release(self, parsed: ParsedRequest) -> None:
        """Release the memory of a request that was answered or is dropped."""
        if parsed.reserved_bytes and isinstance(parsed.request, Request):
            self._guard.bodies.release(parsed.request.user, parsed.reserved_bytes)

    def _release_body(self) -> None:
        if self._reserved_bytes:
            self._guard.bodies.release(self._user, self._reserved_bytes)
        self._body, self._reserved_bytes = bytearray(), 0

    def _release_user(self) -> None:
        if self._counted_user is not None:
            self._guard.remove_connection(self._counted_user)
        self._counted_user = None

    def close(self) -> None:
        """Release what a connection that has ended holds. No byte may follow.

        httptools refers to its callbacks: only without it the parser is freed at once.
        """
        self._release_body()
        self._release_user()
        del self._grammar

    def _headers_too_large(self) -> ApiError:
        count, size = self._limits.header_count, self._limits.header_bytes
        return HeadersTooLarge(f"the request has more than {count} headers or {size} bytes")

    def _too_large(self) -> ApiError:
        return TooLarge(f"Request entity too large: limit is {self._limits.body_bytes}")


def _read_headers(fields: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by their lower-case names; the values of a repeated header are joined."""
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in fields}
    if len(headers) == len(fields):
        return headers
    headers.clear()
    for field, value in fields:
        name, text = field.decode("latin-1").lower(), value.decode("latin-1")
        if name in headers:
            if name in _SINGLE_VALUE_HEADERS:
                raise BadRequest(f"the request has more than one {name} header")
            text = f"{headers[name]}, {text}"
        headers[name] = text
    return headers


def _parse_error(error: Exception) -> ApiError:
    """The error for a client whose bytes httptools or a limit refused."""
    cause = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
    if isinstance(cause, ApiError):
        # A traceback would keep the bytes of the request until a garbage collection.
        return cause.with_traceback(None)
    if isinstance(cause, httptools.HttpParserError):
        return BadRequest(f"not an HTTP/1.1 request: {cause}")
    LOG.error("request could not be parsed", exc_info=True)
    return ServerError("internal error; see the server log")
