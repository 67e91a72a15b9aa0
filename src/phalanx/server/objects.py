"""Between objects and the bytes that are stored: the one place that knows their layout.

Stored bytes hold an object without `kind` and `apiVersion`, its metadata first and the name
first in it, its own revision inside. So a read puts a head before them, a list puts commas
between them, and a deletion swaps the revision; nothing is decoded to serve a read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import orjson

from phalanx.api.errors import (
    AlreadyExists,
    Cause,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    sentence,
)
from phalanx.api.kinds import Kind
from phalanx.api.versions.conversion import CONVERSIONS
from phalanx.api.wire import Object, Reply
from phalanx.store.kv import Encode, Record


def encoder(obj: Object) -> Encode:
    """The bytes of an object, given the revision that it gets."""
    content, meta = _laid_out(obj), obj["metadata"]

    def encode(revision: int) -> bytes:
        meta["resourceVersion"] = str(revision)
        return orjson.dumps(content)

    return encode


def _laid_out(obj: Object) -> Object:
    """An object in the order in which it is stored, in which one that was stored is already."""
    meta = obj["metadata"]
    if next(iter(meta)) != "name":
        meta = obj["metadata"] = {"name": meta["name"], **meta}
    content = {**_FIRST, **obj}
    for key in _ENVELOPE:
        content.pop(key, None)
    return content


_FIRST: Object = {"metadata": None}
_ENVELOPE = ("apiVersion", "kind")


def decoded(record: Record) -> Object:
    """A fresh object that the caller may change."""
    obj: Object = orjson.loads(record.value)
    return obj


@lru_cache(maxsize=1024)
def head(kind: str, api_version: str) -> bytes:
    """The beginning of an object, up to where its stored bytes go on."""
    return orjson.dumps({"kind": kind, "apiVersion": api_version})[:-1] + b","


def presented(kind: Kind, value: bytes) -> bytes:
    """Stored bytes as a client of a kind reads them."""
    return head(kind.name, kind.api_version) + in_form(kind, value)[1:]


def in_form(kind: Kind, value: bytes) -> bytes:
    """Stored bytes in the form of a kind; only other forms than the stored one are decoded."""
    conversion = CONVERSIONS.get(kind)
    if conversion is None or conversion.is_identity:
        return value
    return orjson.dumps(conversion.from_hub(orjson.loads(value)))


def dumped(kind: Kind, obj: Object) -> bytes:
    """An object in the stored form that is not stored (a dry run, a deleted one), as it is read."""
    content = _laid_out(obj)
    content["metadata"] = {k: v for k, v in obj["metadata"].items() if v not in (None, "")}
    return presented(kind, orjson.dumps(content))


def listed(kind: Kind, meta: Object, values: Iterable[bytes]) -> bytes:
    """A list of objects that are already in the form of their kind."""
    opening = head(kind.list_name, kind.api_version) + b'"metadata":' + orjson.dumps(meta)
    return opening + b',"items":[' + b",".join(values) + b"]}"


def buried(record: Record, revision: int) -> bytes:
    """The last state of a deleted object, at the revision of its deletion."""
    old, new = b'"resourceVersion":"%d"', b'"resourceVersion":"%d"'
    return record.value.replace(old % record.revision, new % revision, 1)


def succeeded(code: int) -> Reply:
    """The Status of an act that leaves no object to show."""
    return Reply(code, orjson.dumps({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code,
    }))  # fmt: skip


def not_found(kind: Kind, name: str) -> NotFound:
    """No such object of that kind."""
    return NotFound(
        f'{kind.resource} "{name}" not found', name=name, group=kind.group, kind=kind.plural
    )


def forbidden(kind: Kind, name: str, why: str, causes: tuple[Cause, ...] = ()) -> Forbidden:
    """Not allowed, whoever asks."""
    return Forbidden(
        f'{kind.resource} "{name}" is forbidden: {why}',
        name=name, group=kind.group, kind=kind.plural, causes=causes,
    )  # fmt: skip


def refuse(kind: Kind, name: str, causes: Sequence[Cause]) -> None:
    """Raise what is wrong with an object, if anything is."""
    if causes:
        raise Invalid(
            f'{kind.qualified} "{name}" is invalid: {sentence(causes)}',
            name=name, group=kind.group, kind=kind.name, causes=causes,
        )  # fmt: skip


def already_exists(
    kind: Kind, name: str, *, being_deleted: bool = False, is_generated: bool = False
) -> AlreadyExists:
    """The name is taken, if only by something that is going away; another may be free soon."""
    prefix = "object is being deleted: " if being_deleted else ""
    rest = ", the server was not able to generate a unique name for the object"
    return AlreadyExists(
        f'{prefix}{kind.resource} "{name}" already exists{rest if is_generated else ""}',
        name=name, group=kind.group, kind=kind.plural, retry_after=1 if is_generated else None,
    )  # fmt: skip


def conflict(kind: Kind, name: str, detail: str, *, called: str = "") -> Conflict:
    """A write that cannot be fulfilled in the present state."""
    called = called or kind.resource
    return Conflict(
        f'Operation cannot be fulfilled on {called} "{name}": {detail}',
        name=name, group=kind.group, kind=called.partition(".")[0],
    )  # fmt: skip


def modified(kind: Kind, name: str) -> Conflict:
    """Somebody else has changed the object since the caller read it."""
    advice = "please apply your changes to the latest version and try again"
    return conflict(kind, name, f"the object has been modified; {advice}")
