"""One value of a scenario file: read, or refused with a sentence that says where and what instead.

The alphabet below `events` and `scenario`: a reader is a function from a path and whatever YAML
made of the file to the value that is meant. Knows nothing of gangs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from phalanx.api.core import Taint
from phalanx.api.quantity import BadQuantity, canonical, value

T = TypeVar("T")
U = TypeVar("U")
Reader = Callable[[str, object], T]

#: Resources that a scenario may call by a shorter name.
SHORTHANDS = {"gpu": "nvidia.com/gpu"}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")
_TAINT = re.compile(r"([\w./-]+)(?:=([\w.-]*))?:(NoSchedule|PreferNoSchedule|NoExecute)")
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,20})?)(s|m|h|)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_SHOWN = 60
#: More pods or nodes than this in one event are a slip of the pen.
MOST = 100_000


class BadScenario(ValueError):
    """The file does not say what it should, at a path."""

    def __init__(self, path: str, expected: str, found: object) -> None:
        super().__init__(f"{path or 'the scenario'}: expected {expected}, found {_shown(found)}")


class Fields:
    """The entries of one mapping, taken one by one; `close` refuses what nobody took."""

    def __init__(self, path: str, found: object) -> None:
        self.path = path
        self._entries = mapping(path, found)
        self._known: list[str] = []

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def at(self, key: str) -> str:
        """The path of an entry."""
        return f"{self.path}.{key}" if self.path else key

    def take(self, key: str, read: Reader[T]) -> T:
        """An entry that must be there."""
        self._known.append(key)
        return read(self.at(key), self._entries.get(key))

    def get(self, key: str, read: Reader[T], otherwise: U) -> T | U:
        """An entry that may be left out."""
        self._known.append(key)
        return read(self.at(key), self._entries[key]) if key in self else otherwise

    def rest(self) -> list[str]:
        """The entries that nobody took so far."""
        return [key for key in self._entries if key not in self._known]

    def close(self) -> None:
        """Refuse what nobody took."""
        for key in self.rest():
            raise BadScenario(self.path, f"only {', '.join(sorted(self._known))}", key)


def mapping(path: str, found: object) -> dict[str, object]:
    """Entries by name."""
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise BadScenario(path, "names with values", found)
    return found


def name(path: str, found: object) -> str:
    """The name of an object."""
    if not isinstance(found, str) or not _NAME.fullmatch(found):
        raise BadScenario(path, "a name such as train-a", found)
    return found


def text(path: str, found: object) -> str:
    """Words of any sort."""
    if not isinstance(found, str) or not found:
        raise BadScenario(path, "a text", found)
    return found


def flag(path: str, found: object) -> bool:
    """Yes or no."""
    if not isinstance(found, bool):
        raise BadScenario(path, "true or false", found)
    return found


def integer(path: str, found: object) -> int:
    """Any whole number."""
    if not isinstance(found, int) or isinstance(found, bool):
        raise BadScenario(path, "a whole number", found)
    return found


def count(path: str, found: object) -> int:
    """How many: at least one."""
    if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= MOST:
        raise BadScenario(path, f"a number from 1 to {MOST}", found)
    return found


def seconds(path: str, found: object) -> float:
    """A time in seconds, or with its unit."""
    if isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found < 1e9:
        return float(found)
    match = _DURATION.fullmatch(found) if isinstance(found, str) else None
    if match is None:
        raise BadScenario(path, "seconds such as 90, or 90s, 5m, 2h", found)
    return float(match[1]) * _UNITS[match[2]]


def whole_seconds(path: str, found: object) -> int:
    """The same, without a fraction."""
    number = seconds(path, found)
    if number != int(number):
        raise BadScenario(path, "whole seconds", found)
    return int(number)


def labels(path: str, found: object) -> dict[str, str]:
    """Labels: text under names."""
    entries = mapping(path, found)
    for key, text in entries.items():
        if not isinstance(text, str):
            raise BadScenario(f"{path}.{key}", "text (in quotes, if it looks like a number)", text)
    return {key: str(text) for key, text in entries.items()}


def resources(path: str, found: object) -> dict[str, str]:
    """Quantities by resource, under their full names."""
    entries = mapping(path, found)
    return {
        SHORTHANDS.get(key, key): _quantity(f"{path}.{key}", amount)
        for key, amount in entries.items()
    }


def taint(path: str, found: object) -> Taint:
    """A taint, or what tolerates it, as kubectl writes it."""
    match = _TAINT.fullmatch(found) if isinstance(found, str) else None
    if match is None:
        raise BadScenario(path, "a taint such as team=a:NoSchedule", found)
    return Taint(match[1], match[2] or "", match[3])


def several(read: Reader[T]) -> Reader[tuple[T, ...]]:
    """One, or a list of them."""

    def read_all(path: str, found: object) -> tuple[T, ...]:
        if not isinstance(found, list):
            return (read(path, found),)
        return tuple(read(f"{path}[{at}]", item) for at, item in enumerate(found))

    return read_all


def _quantity(path: str, found: object) -> str:
    expected = "a quantity such as 4, 500m or 32Gi"
    if not isinstance(found, str | int | float) or isinstance(found, bool):
        raise BadScenario(path, expected, found)
    try:
        if value(found) < 0:
            raise BadScenario(path, expected, found)
    except BadQuantity:
        raise BadScenario(path, expected, found) from None
    return canonical(found)


#: Values that YAML writes otherwise than Python.
_WORDS = {"None": "nothing", "True": "true", "False": "false"}


def _shown(found: object) -> str:
    text = _WORDS.get(repr(found), repr(found))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
