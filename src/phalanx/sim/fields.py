"""Readers for single values of a scenario file.

A reader is a function from a path and a YAML value to the meant value. It raises InvalidScenario
with the path, the problem and the expected form. Below `events` and `scenario`; knows no gangs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from phalanx.api.core import Taint
from phalanx.api.resources import BadQuantity, canonical_quantity, exact_value

T = TypeVar("T")
U = TypeVar("U")
FieldReader = Callable[[str, object], T]

#: Short names of resources.
RESOURCE_ALIASES = {"gpu": "nvidia.com/gpu"}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")
_TAINT = re.compile(r"([\w./-]+)(?:=([\w.-]*))?:(NoSchedule|PreferNoSchedule|NoExecute)")
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,20})?)(s|m|h|)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_MAX_SHOWN = 60
#: YAML's spelling of Python constants.
_YAML_WORDS = {"None": "nothing", "True": "true", "False": "false"}
#: Maximum number of pods or nodes in one event; a larger number is taken for a typing error.
MAX_COUNT = 100_000


class InvalidScenario(ValueError):
    """A scenario file is invalid at a path."""

    def __init__(self, path: str, expected: str, found: object) -> None:
        text = _YAML_WORDS.get(repr(found), repr(found))
        shown = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
        super().__init__(f"{path or 'the scenario'}: expected {expected}, found {shown}")


class ScenarioFields:
    """The entries of one mapping, read one by one; `reject_unread` refuses the rest."""

    def __init__(self, path: str, found: object) -> None:
        self.path = path
        self._entries = read_mapping(path, found)
        self._known: list[str] = []

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def path_of(self, key: str) -> str:
        """Return the path of an entry."""
        return f"{self.path}.{key}" if self.path else key

    def require(self, key: str, read: FieldReader[T]) -> T:
        """Read a mandatory entry."""
        self._known.append(key)
        return read(self.path_of(key), self._entries.get(key))

    def get(self, key: str, read: FieldReader[T], otherwise: U) -> T | U:
        """Read an optional entry."""
        self._known.append(key)
        return read(self.path_of(key), self._entries[key]) if key in self else otherwise

    def unread(self) -> list[str]:
        """Return the entries that were not read so far."""
        return [key for key in self._entries if key not in self._known]

    def reject_unread(self) -> None:
        """Raise InvalidScenario for entries that were not read."""
        for key in self.unread():
            raise InvalidScenario(self.path, f"only {', '.join(sorted(self._known))}", key)


def read_mapping(path: str, found: object) -> dict[str, object]:
    """Read a mapping."""
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise InvalidScenario(path, "names with values", found)
    return found


def read_name(path: str, found: object) -> str:
    """Read the name of an object."""
    if not isinstance(found, str) or not _NAME.fullmatch(found):
        raise InvalidScenario(path, "a name such as train-a", found)
    return found


def read_text(path: str, found: object) -> str:
    """Read a string."""
    if not isinstance(found, str) or not found:
        raise InvalidScenario(path, "a text", found)
    return found


def read_flag(path: str, found: object) -> bool:
    """Read a boolean."""
    if not isinstance(found, bool):
        raise InvalidScenario(path, "true or false", found)
    return found


def read_integer(path: str, found: object) -> int:
    """Read an integer."""
    if not isinstance(found, int) or isinstance(found, bool):
        raise InvalidScenario(path, "a whole number", found)
    return found


def read_count(path: str, found: object) -> int:
    """Read a positive integer."""
    if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= MAX_COUNT:
        raise InvalidScenario(path, f"a number from 1 to {MAX_COUNT}", found)
    return found


def read_seconds(path: str, found: object) -> float:
    """Read a duration in seconds, or with a unit."""
    if isinstance(found, int | float) and not isinstance(found, bool) and 0 <= found < 1e9:
        return float(found)
    match = _DURATION.fullmatch(found) if isinstance(found, str) else None
    if match is None:
        raise InvalidScenario(path, "seconds such as 90, or 90s, 5m, 2h", found)
    return float(match[1]) * _UNITS[match[2]]


def read_whole_seconds(path: str, found: object) -> int:
    """Read a duration of whole seconds."""
    number = read_seconds(path, found)
    if number != int(number):
        raise InvalidScenario(path, "whole seconds", found)
    return int(number)


def read_labels(path: str, found: object) -> dict[str, str]:
    """Read labels."""
    entries = read_mapping(path, found)
    for key, text in entries.items():
        if not isinstance(text, str):
            raise InvalidScenario(
                f"{path}.{key}", "text (in quotes, if it looks like a number)", text
            )
    return {key: str(text) for key, text in entries.items()}


def read_resources(path: str, found: object) -> dict[str, str]:
    """Read quantities by resource; short names are expanded."""
    entries = read_mapping(path, found)
    return {
        RESOURCE_ALIASES.get(key, key): _read_quantity(f"{path}.{key}", amount)
        for key, amount in entries.items()
    }


def read_taint(path: str, found: object) -> Taint:
    """Read a taint or toleration in kubectl's notation."""
    match = _TAINT.fullmatch(found) if isinstance(found, str) else None
    if match is None:
        raise InvalidScenario(path, "a taint such as team=a:NoSchedule", found)
    return Taint(match[1], match[2] or "", match[3])


def read_one_or_many(read: FieldReader[T]) -> FieldReader[tuple[T, ...]]:
    """Read one value or a list of values."""

    def read_all(path: str, found: object) -> tuple[T, ...]:
        if not isinstance(found, list):
            return (read(path, found),)
        return tuple(read(f"{path}[{at}]", item) for at, item in enumerate(found))

    return read_all


def _read_quantity(path: str, found: object) -> str:
    expected = "a quantity such as 4, 500m or 32Gi"
    if not isinstance(found, str | int | float) or isinstance(found, bool):
        raise InvalidScenario(path, expected, found)
    try:
        if exact_value(found) < 0:
            raise InvalidScenario(path, expected, found)
    except BadQuantity:
        raise InvalidScenario(path, expected, found) from None
    return canonical_quantity(found)
