"""The types of expressions: what is known of a value before it is there.

A type is a name with parameters; `dyn` fits everything. Parameters of functions may be variables,
`A` and `B`, which stand for one type each within one call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Kind:
    """A type: `int`, `list(string)`, `map(string, dyn)`; an object has fields, by escaped name."""

    name: str
    of: tuple[Kind, ...] = ()
    fields: Mapping[str, Field] = field(default_factory=dict, compare=False)
    #: Tells objects apart: two are the same only if they come from the same place.
    place: str = ""

    def __str__(self) -> str:
        inner = ", ".join(map(str, self.of))
        return f"{self.name}({inner})" if inner else self.name


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an object: its name in the object, and its type."""

    name: str
    kind: Kind


DYN, BOOL, NULL = Kind("dyn"), Kind("bool"), Kind("null")
NUMBER, UNSIGNED, DOUBLE = Kind("int"), Kind("uint"), Kind("double")
STRING, BYTES, TYPE = Kind("string"), Kind("bytes"), Kind("type")
TIMESTAMP, DURATION = Kind("timestamp"), Kind("duration")
A, B = Kind("A"), Kind("B")
_VARIABLES = (A, B)

#: The types of values that are written out.
LITERALS: Mapping[str, Kind] = {
    "bool": BOOL, "int": NUMBER, "uint": UNSIGNED, "double": DOUBLE, "string": STRING,
    "bytes": BYTES, "null_type": NULL,
}  # fmt: skip


def list_of(kind: Kind) -> Kind:
    """A list of one type."""
    return Kind("list", (kind,))


def map_of(key: Kind, value: Kind) -> Kind:
    """A map from one type to another."""
    return Kind("map", (key, value))


def optional_of(kind: Kind) -> Kind:
    """What may be missing."""
    return Kind("optional_type", (kind,))


def takes(wanted: Kind, found: Kind, known: dict[str, Kind]) -> bool:
    """Whether a value may be given where a type is wanted; what variables stand for is noted."""
    if wanted in _VARIABLES:
        return _is_same(wanted.name, found, known)
    if DYN in (wanted, found):
        return True
    if found == NULL and wanted.name in _NULLABLE:
        return True
    if wanted.name != found.name or wanted.place != found.place:
        return False
    return all(takes(*pair, known) for pair in zip(wanted.of, found.of, strict=False))


#: What may be compared with null.
_NULLABLE = ("object", "timestamp", "duration", "optional_type")


def _is_same(variable: str, found: Kind, known: dict[str, Kind]) -> bool:
    before = known.setdefault(variable, found)
    if takes(before, found, {}):
        return True
    if takes(found, before, {}):
        known[variable] = found
        return True
    return False


def settled(kind: Kind, known: Mapping[str, Kind]) -> Kind:
    """A type with what its variables stand for; what nothing is known of may be anything."""
    if kind in _VARIABLES:
        return known.get(kind.name, DYN)
    return Kind(kind.name, tuple(settled(one, known) for one in kind.of), kind.fields, kind.place)


def joined(kinds: Iterable[Kind]) -> Kind:
    """The one type of several values, if they have one."""
    distinct = list(dict.fromkeys(kinds))
    return distinct[0] if len(distinct) == 1 else DYN
