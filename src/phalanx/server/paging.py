"""A list in pages: its records at one revision, and the token by which the next page is asked for.

    page ─▶ token ─▶ client ─▶ place ─▶ page …

A token is sealed for the very list that it continues, of that kind, namespace and selectors: one
that was made up, or that belongs to another list, leads nowhere. `reading` asks; nothing here waits
or decodes what it need not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import msgspec

from phalanx.api.errors import BadRequest, Expired
from phalanx.api.wire import Object
from phalanx.server.call import Call
from phalanx.server.context import Context
from phalanx.server.objects import decoded
from phalanx.server.selection import Selection
from phalanx.store.kv import Compacted, Record

#: Records that are read at once where the rest may not be needed.
_PAGE = 500
#: Instead of a revision: whatever is the newest when the token is shown.
_NEWEST = -1
_TOO_OLD = "The provided continue parameter is too old to display a consistent list result. "


class Place(msgspec.Struct, frozen=True, array_like=True):
    """How far a list has come: the revision that it is of, and its last key below its prefix."""

    revision: int
    after: str


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a list: its records, the revision they are of, and how to go on."""

    records: list[Record]
    revision: int
    more: str = ""
    remaining: int | None = None

    def meta(self) -> Object:
        """The metadata of the list."""
        meta: Object = {"resourceVersion": str(self.revision)}
        if self.more:
            meta["continue"] = self.more
        if self.remaining:
            meta["remainingItemCount"] = self.remaining
        return meta


class Paging:
    """One list, as a call asks for it."""

    def __init__(self, context: Context, call: Call, selection: Selection) -> None:
        self._context, self._selection = context, selection
        self._limit = max(call.number("limit") or 0, 0)
        selectors = (call.query.get(name, "") for name in ("labelSelector", "fieldSelector"))
        self._purpose = "\0".join(("list", selection.prefix, *selectors))

    def at(self, revision: int) -> Page:
        """The list from its beginning, of a revision. Raises Expired when that is forgotten."""
        try:
            return self._collect(revision, "")
        except Compacted as error:
            raise Expired("The resourceVersion for the provided list is too old.") from error

    def after(self, token: str) -> Page:
        """The list from where a token leaves off. Raises BadRequest if it is not of this list."""
        place, newest = self._place(token), self._context.store.revision
        revision = newest if place.revision == _NEWEST else place.revision
        try:
            return self._collect(revision, self._selection.prefix + place.after)
        except Compacted as error:
            raise Expired(
                f"{_TOO_OLD}You can start a new list without the continue parameter, or use the "
                "continue token in this response to retrieve the remainder of the results. "
                "Continuing with the provided token results in an inconsistent list - objects that "
                "were created, modified, or deleted between the time the first chunk was returned "
                "and now may show up in the list.",
                more=self._token(Place(_NEWEST, place.after)),
            ) from error

    def _collect(self, revision: int, after: str) -> Page:
        found, limit, selection = self._matching(revision, after), self._limit, self._selection
        if not limit:
            return Page(list(found), revision)
        records = list(islice(found, limit))
        if next(found, None) is None or not records:
            return Page(records, revision)
        last, remaining = records[-1].key, None
        if selection.is_everything:
            remaining = self._context.store.count(selection.prefix, at=revision, after=last)
        more = self._token(Place(revision, last.removeprefix(selection.prefix)))
        return Page(records, revision, more, remaining)

    def _matching(self, revision: int, after: str) -> Iterator[Record]:
        """The records of the list; with a limit, read in pages so that a rest is left alone."""
        store, selection = self._context.store, self._selection
        size = max(self._limit + 1, _PAGE) if self._limit else 0
        while True:
            records = store.range(selection.prefix, at=revision, after=after, limit=size)
            for record in records:
                if selection.is_everything or selection.holds(decoded(record)):
                    yield record
            if not size or len(records) < size:
                return
            after = records[-1].key

    def _token(self, place: Place) -> str:
        return self._context.access.seal.sealed(msgspec.json.encode(place), self._purpose)

    def _place(self, token: str) -> Place:
        raw = self._context.access.seal.opened(token, self._purpose)
        if raw is None:
            why = "it was not handed out for this list"
            raise BadRequest(f"invalid continue token: continue key is not valid: {why}")
        return msgspec.json.decode(raw, type=Place)
