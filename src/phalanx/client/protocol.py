"""Requests to an API server and its replies as values. No I/O.

The first half builds requests from verbs, kinds and options. The second half decodes replies to
objects, lists, watch events and errors: an error reply becomes the ApiError that the server meant,
a malformed reply a ServerError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import GenericAlias
from typing import Any, Generic, NamedTuple, Protocol, TypedDict, TypeVar, cast
from urllib.parse import urlencode

import msgspec
import orjson
from msgspec import Raw, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from phalanx.api.errors import (
    ApiError,
    BadRequest,
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
from phalanx.api.kinds import Kind
from phalanx.api.meta import Key, ObjectMeta, PartialObjectMetadata
from phalanx.api.wire import JSON, Object, Reply, Request

METHODS = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}
_VERBS_WITH_NAME = ("get", "update", "patch", "delete")
_WATCH_QUERY = "watch=true&allowWatchBookmarks=true"


class ListScope(TypedDict, total=False):
    """A part of a collection; empty fields do not restrict it.

    With `metadata_only` the server sends the metadata of the objects alone.
    """

    namespace: str
    label_selector: str
    field_selector: str
    metadata_only: bool


def build_request(
    verb: str,
    kind: Kind,
    key: Key,
    *,
    subresource: str = "",
    query: Mapping[str, str | int] | None = None,
    body: bytes | Object = b"",
    content: str = JSON,
) -> Request:
    """Build a request for an object, or for a collection if the name is empty."""
    if verb in _VERBS_WITH_NAME and not key.name:
        raise BadRequest(f"the name of the {kind.name} to {verb} is empty")
    for part in key:
        # Such a name would change the path of the URL.
        if part in (".", "..") or "/" in part or "%" in part:
            raise BadRequest(
                f'"{part}" is not a valid name: it must not be "." or ".." or contain "/" or "%"'
            )
    given = {name: value for name, value in query.items() if value} if query else {}
    options = urlencode(given) if given else ""
    if verb == "watch":
        options = f"{_WATCH_QUERY}&{options}" if options else _WATCH_QUERY
    path = kind.url_path(key.namespace, key.name, subresource)
    return Request(METHODS[verb], path, options, request_headers(body, content), body)


def collection_request(
    verb: str, kind: Kind, scope: ListScope, *, query: Mapping[str, str | int]
) -> Request:
    """Build a list or watch request for a part of a collection."""
    selectors = {
        "labelSelector": scope.get("label_selector", ""),
        "fieldSelector": scope.get("field_selector", ""),
    }
    request = build_request(
        verb, kind, Key(scope.get("namespace", ""), ""), query={**selectors, **query}
    )
    if not scope.get("metadata_only"):
        return request
    form = "PartialObjectMetadataList" if verb == "list" else "PartialObjectMetadata"
    accept = f"{JSON};as={form};g=meta.k8s.io;v=v1"
    return replace(request, headers={**request.headers, "accept": accept})


def request_headers(body: bytes | Object, content: str = JSON) -> dict[str, str]:
    """Return the headers for a body, if there is one, and for the reply."""
    return {"accept": JSON, "content-type": content} if body else {"accept": JSON}


def is_watch(request: Request) -> bool:
    """Whether a request is a watch, which is answered in chunks."""
    return request.query.startswith(_WATCH_QUERY)


def encode_patch(change: Object | Sequence[Object]) -> bytes | Object:
    """Return the body of a patch: an object, or the bytes of a JSON patch."""
    return change if isinstance(change, dict) else orjson.dumps(change)


def delete_options(
    *, uid: str, resource_version: str, grace_period_seconds: int | None, propagation_policy: str
) -> Object:
    """Return the body of a deletion: propagation, grace period, preconditions."""
    preconditions = {"uid": uid, "resourceVersion": resource_version}
    options: Object = {
        "gracePeriodSeconds": grace_period_seconds,
        "preconditions": {name: value for name, value in preconditions.items() if value} or None,
        "propagationPolicy": propagation_policy or None,
    }
    given = {name: value for name, value in options.items() if value is not None}
    return {"kind": "DeleteOptions", "apiVersion": "v1", **given}


#: Maximum size of a watch event in bytes.
MAX_EVENT_BYTES = 4 * 1024 * 1024
#: Maximum seconds to wait for Retry-After.
MAX_RETRY_AFTER = 30.0

#: Errors by status code, for replies without a reason: from a proxy, for example.
_ERROR_BY_CODE: dict[int, type[ApiError]] = {
    error.code: error
    for error in (Unauthorized, Forbidden, NotFound, Conflict, Expired, TooManyRequests, Timeout)
}
#: Codes of requests that the server has not started.
_RETRY_CODES = (429, 503)
#: Errors of decoders for malformed bytes.
_DECODE_ERRORS = (ValueError, RecursionError)

T = TypeVar("T")


class HasMetadata(Protocol):
    """A struct with metadata."""

    @property
    def metadata(self) -> ObjectMeta:
        """The metadata of the object."""
        ...


#: Called with the key and the error of an object that cannot be decoded.
OnUnreadable = Callable[[Key, Exception], None]


class WatchEvent(NamedTuple, Generic[T]):
    """A watch event: ADDED, MODIFIED or DELETED, at a revision."""

    type: str
    object: T
    revision: int


class Listing(NamedTuple, Generic[T]):
    """All objects of a collection at one revision."""

    items: Sequence[T]
    revision: int


class ListMeta(Struct, frozen=True, rename="camel"):
    """The revision of a list, and the continue token of its next page."""

    resource_version: str = ""
    more: str = msgspec.field(name="continue", default="")


class ObjectListPage(Struct, Generic[T], frozen=True):
    """A list, or one page of it."""

    metadata: ListMeta = ListMeta()
    items: tuple[T, ...] | None = None


class _EventEnvelope(Struct, frozen=True):
    type: str
    object: Raw


class _ObjectEvent(Struct, Generic[T], frozen=True):
    type: str
    object: T


class _Bookmark(Struct, frozen=True):
    metadata: ListMeta = ListMeta()


#: How the lines of events begin whose object is of the watched kind.
_OBJECT_EVENT_PREFIXES = (b'{"type":"ADDED",', b'{"type":"MODIFIED",', b'{"type":"DELETED",')
_ENVELOPE_DECODER = Decoder(_EventEnvelope)
_BOOKMARK_DECODER = Decoder(_Bookmark)
_STATUS_DECODER = Decoder(dict[str, Any])
_METADATA_DECODER = Decoder(PartialObjectMetadata)
_decoders: dict[type, Decoder[Any]] = {}


def decode_reply(reply: Reply, struct: type[T]) -> T:
    """Decode a successful reply. Raises the ApiError of any other reply."""
    try:
        return _decoder_for(struct).decode(ensure_success(reply).body)
    except _DECODE_ERRORS as error:
        raise ServerError(f"the server's answer cannot be read: {error}") from error


def _decoder_for(struct: type[T]) -> Decoder[T]:
    """Return the decoder of a type. To build one takes longer than to decode a short list."""
    if (found := _decoders.get(struct)) is None:
        found = _decoders[struct] = Decoder(struct)
    return found


class _WrittenMeta(TypedDict, total=False):
    name: str
    namespace: str
    uid: str
    resourceVersion: str


class _WrittenObject(TypedDict, total=False):
    apiVersion: str
    kind: str
    metadata: _WrittenMeta


def decode_written(reply: Reply, *, brief: bool) -> Object:
    """Decode the object that a write has made; if `brief`, only what identifies its version.

    Most of a reply is of no interest to its writer, and costs five times as much to decode.
    """
    return decode_reply(reply, cast("type[Object]", _WrittenObject) if brief else dict)


def ensure_success(reply: Reply) -> Reply:
    """Return a successful reply. Raises the ApiError of any other reply."""
    if not 200 <= reply.code < 300:
        raise error_from_reply(reply)
    return reply


def error_from_reply(reply: Reply) -> ApiError:
    """Return the error of an unsuccessful reply."""
    try:
        return _error_from_status(reply.code, _STATUS_DECODER.decode(reply.body))
    except _DECODE_ERRORS:
        return _error_from_status(reply.code, {})


def list_page_type(struct: type[T]) -> type[ObjectListPage[T]]:
    """Return the type of a page of objects."""
    return cast("type[ObjectListPage[T]]", GenericAlias(ObjectListPage, (struct,)))


def decode_page(
    reply: Reply, struct: type[T], on_unreadable: OnUnreadable | None = None
) -> ObjectListPage[T]:
    """Decode a page of a list; objects that cannot be decoded are left out and reported."""
    try:
        return decode_reply(reply, list_page_type(struct))
    except ServerError:
        if on_unreadable is None:
            raise
    page, decoder = decode_reply(reply, ObjectListPage[Raw]), _decoder_for(struct)
    items: list[T] = []
    for raw in page.items or ():
        try:
            items.append(decoder.decode(raw))
        except _DECODE_ERRORS as error:
            on_unreadable(_decode_metadata(raw).metadata.key, error)
    return ObjectListPage(page.metadata, tuple(items))


def parse_revision(version: str) -> int:
    """Return a resourceVersion as a number. Raises ServerError if it is none."""
    try:
        return int(version)
    except ValueError as error:
        raise ServerError(f'the server gave the resourceVersion "{version}"') from error


def retry_after(reply: Reply) -> float | None:
    """Return the seconds of Retry-After if the server is busy."""
    if reply.code not in _RETRY_CODES:
        return None
    seconds = next((value for name, value in reply.headers if name.lower() == "retry-after"), "")
    return min(float(seconds), MAX_RETRY_AFTER) if seconds.isdecimal() else None


class WatchDecoder(Generic[T]):
    """Decodes the bytes of one watch to events and remembers the revision to resume at.

    It never raises: after the server's error event or malformed bytes, `error` is set and no event
    follows. With `on_unreadable`, an object that is well-formed but cannot be decoded to the struct
    is reported, and the events after it follow; its deletion is an event with its metadata alone.
    """

    def __init__(
        self, struct: type[T], since: int = 0, on_unreadable: OnUnreadable | None = None
    ) -> None:
        self.revision, self._on_unreadable = since, on_unreadable
        self.error: ApiError | None = None
        self._decoder, self._is_typed = _decoder_for(struct), issubclass(struct, Struct)
        event_type = cast("type[_ObjectEvent[T]]", GenericAlias(_ObjectEvent, (struct,)))
        self._event_decoder = _decoder_for(event_type)
        self._incomplete_line = b""

    def feed(self, data: bytes) -> list[WatchEvent[T]]:
        """Return the events that these bytes complete; bookmarks only advance the revision."""
        events: list[WatchEvent[T]] = []
        if self.error is not None:
            return events
        *lines, self._incomplete_line = (self._incomplete_line + data).split(b"\n")
        try:
            for line in filter(bytes.strip, lines):
                self._decode_line(line, events)
            _check_event_size(self._incomplete_line)
        except ApiError as error:
            self.error = error
        return events

    def _decode_line(self, line: bytes, events: list[WatchEvent[T]]) -> None:
        _check_event_size(line)
        if self._is_typed and line.startswith(_OBJECT_EVENT_PREFIXES):
            # Type and object in one pass. What it cannot read is read below, part by part.
            try:
                event = self._event_decoder.decode(line)
            except _DECODE_ERRORS:
                event = None
            if event is not None:
                revision = self._advance_revision(cast(HasMetadata, event.object))
                events.append(WatchEvent(event.type, event.object, revision))
                return
        try:
            envelope = _ENVELOPE_DECODER.decode(line)
            match envelope.type:
                case "ADDED" | "MODIFIED" | "DELETED":
                    try:
                        events.append(self._decode_event(envelope))
                    except _DECODE_ERRORS as error:
                        events += self._skip_unreadable(envelope, error)
                case "BOOKMARK":
                    self._advance_revision(_BOOKMARK_DECODER.decode(envelope.object))
                case "ERROR":
                    status = _STATUS_DECODER.decode(envelope.object)
                    code = status.get("code")
                    raise _error_from_status(
                        code if isinstance(code, int) else ServerError.code, status
                    )
                case unknown:
                    raise ServerError(f'a watch event has the unknown type "{unknown}"')
        except _DECODE_ERRORS as error:
            raise ServerError(f"a watch event cannot be read: {error}") from error

    def _decode_event(self, envelope: _EventEnvelope) -> WatchEvent[T]:
        obj = self._decoder.decode(envelope.object)
        with_metadata = (
            cast(HasMetadata, obj) if self._is_typed else _BOOKMARK_DECODER.decode(envelope.object)
        )
        return WatchEvent(envelope.type, obj, self._advance_revision(with_metadata))

    def _skip_unreadable(
        self, envelope: _EventEnvelope, error: Exception
    ) -> Sequence[WatchEvent[T]]:
        if self._on_unreadable is None:
            raise error
        known = _decode_metadata(envelope.object)
        revision = self._advance_revision(known)
        if envelope.type == "DELETED":
            return [WatchEvent(envelope.type, cast("T", known), revision)]
        self._on_unreadable(known.metadata.key, error)
        return ()

    def _advance_revision(self, obj: HasMetadata | _Bookmark) -> int:
        revision = parse_revision(obj.metadata.resource_version)
        self.revision = max(self.revision, revision)
        return revision


def _decode_metadata(raw: Raw) -> PartialObjectMetadata:
    """Decode the metadata of an object. Raises ServerError if even that fails."""
    try:
        return _METADATA_DECODER.decode(raw)
    except _DECODE_ERRORS as error:
        raise ServerError(f"the metadata of an object cannot be read: {error}") from error


def _error_from_status(code: int, status: Object) -> ApiError:
    try:
        error = from_status(code, status)
        if type(error) is ServerError and code in _ERROR_BY_CODE:
            error = from_status(code, {**status, "reason": _ERROR_BY_CODE[code].reason})
    except (AttributeError, TypeError):
        return ServerError(f"the server answered {code}")
    return error


def _check_event_size(line: bytes) -> None:
    if len(line) > MAX_EVENT_BYTES:
        raise ServerError(f"a watch event has more than {MAX_EVENT_BYTES} bytes")
