"""What really happened to config maps, read from the store itself: the oracle of watches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from phalanx.api.kinds import CONFIG_MAP
from phalanx.api.wire import Object
from phalanx.client.protocol import ListScope
from phalanx.store.kv import KeyValue, StoreChange, StoreReader


class ExpectedEvent(NamedTuple):
    """One watch event; `serial` is the number in the data of the object."""

    type: str
    key: str
    revision: int
    serial: str


@dataclass(frozen=True, slots=True)
class WatchedScope:
    """A part of the collection: its query, and which objects belong to it."""

    scope: ListScope
    matches: Callable[[Object], bool]


class _ObjectChange(NamedTuple):
    revision: int
    before: Object | None
    after: Object | None


class WatchOracle:
    """Every change since its creation, with the objects before and after."""

    def __init__(self, store: StoreReader) -> None:
        self._steps: list[_ObjectChange] = []
        store.subscribe(self._record)

    def expected_events(self, view: WatchedScope, since: int, until: int) -> list[ExpectedEvent]:
        """The events of a watch of a scope after one revision and up to another."""
        found = []
        for step in self._between(since, until):
            was, now = _if_matching(view, step.before), _if_matching(view, step.after)
            if now:
                found.append(expected_event("MODIFIED" if was else "ADDED", now, step.revision))
            elif was:
                found.append(expected_event("DELETED", was, step.revision))
        return found

    def expected_objects(self, view: WatchedScope, at: int) -> dict[str, int]:
        """The objects of a scope at a revision, each with its own revision."""
        found: dict[str, int] = {}
        for step in self._between(0, at):
            if was := _if_matching(view, step.before):
                del found[object_key(was)]
            if now := _if_matching(view, step.after):
                found[object_key(now)] = step.revision
        return dict(sorted(found.items()))

    def _between(self, since: int, until: int) -> Iterator[_ObjectChange]:
        begin = bisect_right(self._steps, since, key=lambda step: step.revision)
        for step in self._steps[begin:]:
            if step.revision > until:
                return
            yield step

    def _record(self, changes: Sequence[StoreChange]) -> None:
        self._steps += (
            _ObjectChange(change.revision, _object(change.before), _object(change.after))
            for change in changes
            if change.key.startswith(CONFIG_MAP.store_prefix())
        )


def expected_event(kind: str, obj: Object, revision: int) -> ExpectedEvent:
    """An event about an object."""
    return ExpectedEvent(kind, object_key(obj), revision, obj.get("data", {}).get("serial", ""))


def object_key(obj: Object) -> str:
    """The namespace and name of an object."""
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def _if_matching(view: WatchedScope, obj: Object | None) -> Object | None:
    return obj if obj and view.matches(obj) else None


def _object(record: KeyValue | None) -> Object | None:
    return orjson.loads(record.value) if record else None
