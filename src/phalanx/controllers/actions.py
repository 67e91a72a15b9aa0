"""What a reconcile wants done, as values. `loop.py` alone performs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phalanx.api.errors import AlreadyExists, NotFound
from phalanx.api.kinds import Kind
from phalanx.api.meta import Key
from phalanx.api.wire import MERGE_PATCH, Object
from phalanx.client.client import Client
from phalanx.controllers.recorder import Note


@dataclass(frozen=True, slots=True)
class Create:
    """Make an object; one that is there already is left alone."""

    kind: Kind
    obj: Object


@dataclass(frozen=True, slots=True)
class Patch:
    """Change a part of an object; one that is gone is left alone."""

    kind: Kind
    key: Key
    change: Object | Sequence[Object]
    subresource: str = ""
    content: str = MERGE_PATCH


@dataclass(frozen=True, slots=True)
class Put:
    """Put an object, or a part of one, in place of what is there."""

    kind: Kind
    obj: Object
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the object of that uid, in that version if one is named; one that is gone is left."""

    kind: Kind
    key: Key
    uid: str
    grace: int | None = None
    version: str = ""
    propagation: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """Tell something, once what stands before it has been done."""

    note: Note


Action = Create | Patch | Put | Delete | Record


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, in order, and after how many seconds to look again (None: when told)."""

    actions: Sequence[Action] = ()
    again: float | None = None


async def perform(
    client: Client, action: Action, record: Callable[[Note], None] = lambda note: None
) -> None:
    """Do it. What somebody else has already done is not done twice."""
    try:
        match action:
            case Create(kind, obj):
                await client.create(kind, obj)
            case Patch(kind, key, change, subresource, content):
                await client.patch(kind, key, change, subresource=subresource, content=content)
            case Put(kind, obj, subresource):
                await client.update(kind, obj, subresource=subresource)
            case Delete(kind, key, uid, grace, version, propagation):
                await client.delete(
                    kind, key, uid=uid, version=version, grace=grace, propagation=propagation
                )
            case Record(note):
                record(note)
    except NotFound:
        if isinstance(action, (Create, Put)):
            raise
    except AlreadyExists:
        if not isinstance(action, Create):
            raise
