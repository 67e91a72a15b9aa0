"""What an API server answered: bytes as objects, lists, watch events and errors. No I/O.

The other half of `requests`; `client.Client` has every answer read here. A refusal becomes the
ApiError that the server meant; what makes no sense becomes a ServerError, never another exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import GenericAlias
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from phalanx.api.errors import (
    ApiError,
    Conflict,
    Expired,
    Forbidden,
    NotFound,
    ServerError,
    Timeout,
    TooManyRequests,
    Unauthorized,
    from_status,
)
from phalanx.api.meta import Meta
from phalanx.api.wire import Object, Reply

#: One watch event may have so many bytes.
LARGEST_EVENT = 4 * 1024 * 1024
#: However long a server asks us to stay away, we come back after so many seconds.
LONGEST_WAIT = 30.0

#: Which refusal a code means where the body does not say: a proxy's answer, an old reason.
_BY_CODE: dict[int, type[ApiError]] = {
    error.code: error
    for error in (Unauthorized, Forbidden, NotFound, Conflict, Expired, TooManyRequests, Timeout)
}
#: Codes with which a server says that it has not even begun.
_LATER = (429, 503)
#: What a decoder throws at bytes that are not what they should be.
_UNREADABLE = (ValueError, RecursionError)

T = TypeVar("T")


class Resource(Protocol):
    """A struct of an object: it has metadata."""

    @property
    def metadata(self) -> Meta:
        """Its metadata."""
        ...


class Event(NamedTuple, Generic[T]):
    """One change that a watch tells of: ADDED, MODIFIED or DELETED, at a revision."""

    type: str
    object: T
    revision: int


class Listing(NamedTuple, Generic[T]):
    """All objects of a collection, as they were at one revision."""

    items: Sequence[T]
    revision: int


class ListMeta(Struct, frozen=True, rename="camel"):
    """The revision of a list, and the token for its next page, if there is one."""

    resource_version: str = ""
    more: str = msgspec.field(name="continue", default="")


class Page(Struct, Generic[T], frozen=True):
    """A list, or a part of one."""

    metadata: ListMeta = ListMeta()
    items: tuple[T, ...] | None = None


class _Envelope(Struct, frozen=True):
    type: str
    object: Raw


class _Mark(Struct, frozen=True):
    metadata: ListMeta = ListMeta()


_ENVELOPE = Decoder(_Envelope)
_MARK = Decoder(_Mark)
_STATUS = Decoder(dict[str, Any])


def read(reply: Reply, struct: type[T]) -> T:
    """A successful answer as a value of that type; a refusal is raised."""
    try:
        return msgspec.json.decode(succeeded(reply).body, type=struct)
    except _UNREADABLE as error:
        raise ServerError(f"the server's answer cannot be read: {error}") from error


def succeeded(reply: Reply) -> Reply:
    """The same answer, if it is no refusal; a refusal is raised."""
    if not 200 <= reply.code < 300:
        raise refusal(reply)
    return reply


def refusal(reply: Reply) -> ApiError:
    """The error that an answer other than a success means."""
    try:
        return _refusal(reply.code, _STATUS.decode(reply.body))
    except _UNREADABLE:
        return _refusal(reply.code, {})


def page_of(struct: type[T]) -> type[Page[T]]:
    """The type of a page of such objects."""
    return cast("type[Page[T]]", GenericAlias(Page, (struct,)))


def revision(version: str) -> int:
    """A resourceVersion as the number that it is on every server with one history."""
    try:
        return int(version)
    except ValueError as error:
        raise ServerError(f'the server gave the resourceVersion "{version}"') from error


def wait_asked_for(reply: Reply) -> float | None:
    """The seconds after which a server that is too busy wants to be asked again, if it says so."""
    if reply.code not in _LATER:
        return None
    asked = next((value for name, value in reply.headers if name.lower() == "retry-after"), "")
    return min(float(asked), LONGEST_WAIT) if asked.isdecimal() else None


class WatchDecoder(Generic[T]):
    """Turns the bytes of one watch into events and remembers where to resume.

    Never raises: after the server's own last word, or what cannot be read, `error` is set and no
    event comes any more.
    """

    def __init__(self, struct: type[T], since: int = 0) -> None:
        self.revision = since
        self.error: ApiError | None = None
        self._decoder, self._typed = Decoder(struct), issubclass(struct, Struct)
        self._tail = b""

    def feed(self, data: bytes) -> list[Event[T]]:
        """The events that are complete with these bytes. Bookmarks only move the revision."""
        events: list[Event[T]] = []
        if self.error is not None:
            return events
        *lines, self._tail = (self._tail + data).split(b"\n")
        try:
            for line in filter(bytes.strip, lines):
                self._read(line, events)
            _check_size(self._tail)
        except ApiError as error:
            self.error = error
        return events

    def _read(self, line: bytes, events: list[Event[T]]) -> None:
        _check_size(line)
        try:
            envelope = _ENVELOPE.decode(line)
            match envelope.type:
                case "ADDED" | "MODIFIED" | "DELETED":
                    events.append(self._event(envelope))
                case "BOOKMARK":
                    self._advance(_MARK.decode(envelope.object))
                case "ERROR":
                    raise _failure(_STATUS.decode(envelope.object))
                case unknown:
                    raise ServerError(f'a watch event has the unknown type "{unknown}"')
        except _UNREADABLE as error:
            raise ServerError(f"a watch event cannot be read: {error}") from error

    def _event(self, envelope: _Envelope) -> Event[T]:
        found = self._decoder.decode(envelope.object)
        mark = cast(Resource, found) if self._typed else _MARK.decode(envelope.object)
        return Event(envelope.type, found, self._advance(mark))

    def _advance(self, mark: Resource | _Mark) -> int:
        at = revision(mark.metadata.resource_version)
        self.revision = max(self.revision, at)
        return at


def _failure(status: Object) -> ApiError:
    code = status.get("code")
    return _refusal(code if isinstance(code, int) else ServerError.code, status)


def _refusal(code: int, status: Object) -> ApiError:
    try:
        error = from_status(code, status)
        if type(error) is ServerError and code in _BY_CODE:
            error = from_status(code, {**status, "reason": _BY_CODE[code].reason})
    except (AttributeError, TypeError):
        return ServerError(f"the server answered {code}")
    return error


def _check_size(line: bytes) -> None:
    if len(line) > LARGEST_EVENT:
        raise ServerError(f"a watch event has more than {LARGEST_EVENT} bytes")
