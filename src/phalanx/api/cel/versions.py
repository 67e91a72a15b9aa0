"""Versions such as `1.2.3-rc.1`, and texts of a named format."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from phalanx.api.cel.functions import Function, called, heavy, method
from phalanx.api.cel.types import BOOL, NUMBER, STRING, Kind, list_of, optional_of
from phalanx.api.cel.values import NONE, Fault, Optional
from phalanx.api.fields import dns_label_faults, dns_subdomain_faults
from phalanx.api.formats import FORMATS

SEMVER, FORMAT = Kind("kubernetes.Semver"), Kind("kubernetes.NamedFormat")
_NUMBER = r"0|[1-9]\d*"
_SEMVER = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)


@dataclass(frozen=True, slots=True)
class Semver:
    """A version: its numbers, and what makes it earlier than them."""

    type_name: ClassVar[str] = SEMVER.name
    numbers: tuple[int, int, int]
    before: tuple[tuple[bool, int, str], ...]

    @property
    def rank(self) -> tuple[Any, ...]:
        """What versions are ordered by: those that come before a release, before it."""
        return (self.numbers, not self.before, self.before)


@dataclass(frozen=True, slots=True)
class NamedFormat:
    """A format that texts may have, by its name."""

    type_name: ClassVar[str] = FORMAT.name
    name: str


def _normal(text: str) -> str:
    """A version that is written loosely: `v1.2` is `1.2.0`."""
    numbers, sign, rest = re.sub(r"^v", "", text).partition("-")
    parts = [part.lstrip("0") or "0" for part in numbers.split(".")]
    return ".".join([*parts, *["0"] * (3 - len(parts))]) + sign + rest


def _read(text: str, loose: bool = False) -> Semver | None:
    match = _SEMVER.fullmatch(_normal(text) if loose else text)
    if match is None or len(text) > 256:
        return None
    major, minor, patch, before = match.groups()
    parts = (before or "").split(".") if before else []
    ranks = tuple((not p.isdigit(), int(p) if p.isdigit() else 0, p) for p in parts)
    return Semver((int(major), int(minor), int(patch)), ranks)


def _semver(text: str, loose: bool = False) -> Semver:
    found = _read(text, loose)
    if found is None:
        raise Fault(f"invalid semantic version {text!r}")
    return found


def _is_semver(text: str, loose: bool = False) -> bool:
    return _read(text, loose) is not None


def _compare(a: Semver, b: Semver) -> int:
    return (a.rank > b.rank) - (a.rank < b.rank)


def _faults(name: str) -> Callable[[str], Sequence[str]]:
    """The faults of a text, from a test that only says whether there are any."""
    test = FORMATS[name]
    return lambda text: () if test(text) else (f"invalid {name}",)


#: What is wrong with a text, by the name of the format that it should have.
_FORMATS: dict[str, Callable[[str], Sequence[str]]] = {
    "dns1123Label": dns_label_faults,
    "dns1123Subdomain": dns_subdomain_faults,
    "uri": _faults("uri"),
    "uuid": _faults("uuid"),
    "byte": _faults("byte"),
    "date": _faults("date"),
    "datetime": _faults("datetime"),
}


def _named(name: str) -> Optional:
    return Optional(True, NamedFormat(name)) if name in _FORMATS else NONE


def _validate(a: NamedFormat, text: str) -> Optional:
    faults = list(_FORMATS[a.name](text))
    return Optional(True, faults) if faults else NONE


VERSIONS: list[Function] = [
    called("isSemver", (STRING,), BOOL, _is_semver, heavy),
    called("isSemver", (STRING, BOOL), BOOL, _is_semver, heavy),
    called("semver", (STRING,), SEMVER, _semver, heavy),
    called("semver", (STRING, BOOL), SEMVER, _semver, heavy),
    method("major", (SEMVER,), NUMBER, lambda a: a.numbers[0]),
    method("minor", (SEMVER,), NUMBER, lambda a: a.numbers[1]),
    method("patch", (SEMVER,), NUMBER, lambda a: a.numbers[2]),
    method("isLessThan", (SEMVER, SEMVER), BOOL, lambda a, b: a.rank < b.rank),
    method("isGreaterThan", (SEMVER, SEMVER), BOOL, lambda a, b: a.rank > b.rank),
    method("compareTo", (SEMVER, SEMVER), NUMBER, _compare),
    called("format.named", (STRING,), optional_of(FORMAT), _named),
    *(
        called(f"format.{name}", (), FORMAT, lambda name=name: NamedFormat(name))
        for name in _FORMATS
    ),
    method("validate", (FORMAT, STRING), optional_of(list_of(STRING)), _validate),
]
