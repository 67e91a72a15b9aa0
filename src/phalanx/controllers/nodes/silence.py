"""Silence: who has not been heard of for too long.

Time is when we heard, not what the other side says the time was: clocks differ. Pure and cheap:
hearing somebody costs the same however many there are, and a sweep only looks at who is late.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile


class Silence:
    """Those who have to be heard of, by name; whoever was never heard of is not known."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        #: When each was heard last, the longest ago first.
        self._heard: dict[str, float] = {}
        self._silent: dict[str, None] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._heard or name in self._silent

    def __iter__(self) -> Iterator[str]:
        yield from (*self._heard, *self._silent)

    def hear(self, name: str, now: float) -> None:
        """Note that somebody was heard of."""
        self.forget(name)
        self._heard[name] = now

    def suspect(self, name: str) -> None:
        """Take somebody to be silent because somebody else has found so."""
        self.forget(name)
        self._silent[name] = None

    def forget(self, name: str) -> None:
        """Expect nothing more of somebody."""
        self._heard.pop(name, None)
        self._silent.pop(name, None)

    def sweep(self, now: float) -> list[str]:
        """Those who have just become silent."""
        limit = now - self._patience
        found = list(takewhile(lambda name: self._heard[name] < limit, self._heard))
        for name in found:
            del self._heard[name]
            self._silent[name] = None
        return found

    def is_silent(self, name: str) -> bool:
        """Whether somebody was heard of, but too long ago."""
        return name in self._silent

    @property
    def is_total(self) -> bool:
        """Whether all are silent: then it may be us who do not hear."""
        return bool(self._silent) and not self._heard
