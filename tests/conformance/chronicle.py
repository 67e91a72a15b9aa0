"""What really happened to config maps, told by the store itself: the oracle of watches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from phalanx.api.kinds import CONFIG_MAP
from phalanx.api.wire import Object
from phalanx.client.requests import Scope
from phalanx.store.kv import Change, Reader, Record


class Happening(NamedTuple):
    """One event as a watch tells it; `serial` is the number in the object's data."""

    type: str
    place: str
    revision: int
    serial: str


@dataclass(frozen=True, slots=True)
class View:
    """A part of the collection: how a client asks for it, and what belongs to it."""

    scope: Scope
    holds: Callable[[Object], bool]


class _Step(NamedTuple):
    revision: int
    before: Object | None
    after: Object | None


class Chronicle:
    """Every change since it was begun, with the objects before and after."""

    def __init__(self, store: Reader) -> None:
        self._steps: list[_Step] = []
        store.follow(self._note)

    def happenings(self, view: View, since: int, until: int) -> list[Happening]:
        """What a watch of a view has to tell of the revisions after one and up to another."""
        found = []
        for step in self._between(since, until):
            was, now = _seen(view, step.before), _seen(view, step.after)
            if now:
                found.append(happening("MODIFIED" if was else "ADDED", now, step.revision))
            elif was:
                found.append(happening("DELETED", was, step.revision))
        return found

    def present(self, view: View, at: int) -> dict[str, int]:
        """The places of a view at a revision, each with the revision of what it holds."""
        found: dict[str, int] = {}
        for step in self._between(0, at):
            if was := _seen(view, step.before):
                del found[place(was)]
            if now := _seen(view, step.after):
                found[place(now)] = step.revision
        return dict(sorted(found.items()))

    def _between(self, since: int, until: int) -> Iterator[_Step]:
        begin = bisect_right(self._steps, since, key=lambda step: step.revision)
        for step in self._steps[begin:]:
            if step.revision > until:
                return
            yield step

    def _note(self, changes: Sequence[Change]) -> None:
        self._steps += (
            _Step(change.revision, _object(change.before), _object(change.after))
            for change in changes
            if change.key.startswith(CONFIG_MAP.prefix())
        )


def happening(kind: str, obj: Object, revision: int) -> Happening:
    """An event about an object."""
    return Happening(kind, place(obj), revision, obj.get("data", {}).get("serial", ""))


def place(obj: Object) -> str:
    """Where an object is."""
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def _seen(view: View, obj: Object | None) -> Object | None:
    return obj if obj and view.holds(obj) else None


def _object(record: Record | None) -> Object | None:
    return orjson.loads(record.value) if record else None
