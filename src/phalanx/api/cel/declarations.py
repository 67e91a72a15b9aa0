"""The types of expressions: what is known of a value before it is there.

A type is a name with parameters; `dyn` fits everything. Parameters of functions may be variables,
`A` and `B`, which stand for one type each within one call.

What may be called on what: one row per function and types of its arguments.

Libraries are lists of rows (`standard.py`, `texts.py`, `times.py`, `collections.py`, `numbers.py`,
`networks.py`, `versions.py`, `optionals.py`); `library.py` puts them together. The checker chooses
among the rows of a name by what it knows of the arguments; what is left open is chosen when the
values are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from phalanx.api.cel.values import type_name


@dataclass(frozen=True, slots=True)
class CelType:
    """A type: `int`, `list(string)`, `map(string, dyn)`; an object has fields, by escaped name."""

    name: str
    parameters: tuple[CelType, ...] = ()
    fields: Mapping[str, ObjectField] = field(default_factory=dict, compare=False)
    #: Tells objects apart: two are the same only if they come from the same place.
    path: str = ""

    def __str__(self) -> str:
        inner = ", ".join(map(str, self.parameters))
        return f"{self.name}({inner})" if inner else self.name


@dataclass(frozen=True, slots=True)
class ObjectField:
    """A field of an object: its name in the object, and its type."""

    name: str
    value_type: CelType


DYN, BOOL, NULL = CelType("dyn"), CelType("bool"), CelType("null")
INTEGER, UNSIGNED, DOUBLE = CelType("int"), CelType("uint"), CelType("double")
STRING, BYTES, TYPE = CelType("string"), CelType("bytes"), CelType("type")
TIMESTAMP, DURATION = CelType("timestamp"), CelType("duration")
A, B = CelType("A"), CelType("B")
_TYPE_VARIABLES = (A, B)

#: The types of values that are written out.
LITERAL_TYPES: Mapping[str, CelType] = {
    "bool": BOOL, "int": INTEGER, "uint": UNSIGNED, "double": DOUBLE, "string": STRING,
    "bytes": BYTES, "null_type": NULL,
}  # fmt: skip


def list_of(kind: CelType) -> CelType:
    """A list of one type."""
    return CelType("list", (kind,))


def map_of(key: CelType, value: CelType) -> CelType:
    """A map from one type to another."""
    return CelType("map", (key, value))


def optional_of(kind: CelType) -> CelType:
    """What may be missing."""
    return CelType("optional_type", (kind,))


def is_assignable(wanted: CelType, found: CelType, known: dict[str, CelType]) -> bool:
    """Whether a value may be given where a type is wanted; what variables stand for is noted."""
    if wanted in _TYPE_VARIABLES:
        return _bind_type_variable(wanted.name, found, known)
    if DYN in (wanted, found):
        return True
    if found == NULL and wanted.name in _NULLABLE:
        return True
    if wanted.name != found.name or wanted.path != found.path:
        return False
    return all(
        is_assignable(*pair, known)
        for pair in zip(wanted.parameters, found.parameters, strict=False)
    )


#: What may be compared with null.
_NULLABLE = ("object", "timestamp", "duration", "optional_type")


def _bind_type_variable(variable: str, found: CelType, known: dict[str, CelType]) -> bool:
    before = known.setdefault(variable, found)
    if is_assignable(before, found, {}):
        return True
    if is_assignable(found, before, {}):
        known[variable] = found
        return True
    return False


def substitute_type(kind: CelType, known: Mapping[str, CelType]) -> CelType:
    """A type with what its variables stand for; what nothing is known of may be anything."""
    if kind in _TYPE_VARIABLES:
        return known.get(kind.name, DYN)
    return CelType(
        kind.name,
        tuple(substitute_type(one, known) for one in kind.parameters),
        kind.fields,
        kind.path,
    )


def join_types(kinds: Iterable[CelType]) -> CelType:
    """The one type of several values, if they have one."""
    distinct = list(dict.fromkeys(kinds))
    return distinct[0] if len(distinct) == 1 else DYN


#: What the language calls a type, where its name as a value is another one.
_VALUE_TYPE_NAMES = {
    "timestamp": "google.protobuf.Timestamp", "duration": "google.protobuf.Duration",
    "null": "null_type",
}  # fmt: skip


#: How many steps a call takes besides the first, by what it is given.
CostFunction: TypeAlias = Callable[[Sequence[Any]], int]


def no_extra_cost(values: Sequence[Any]) -> int:
    """Nothing more, whatever it is given."""
    return 0


def size_cost(values: Sequence[Any]) -> int:
    """As many as it takes to look at all that it is given."""
    return sum(map(value_size, values))


@dataclass(frozen=True, slots=True)
class FunctionOverload:
    """A function of certain types. `member`: it is called on its first argument, with a dot."""

    name: str
    parameter_types: tuple[CelType, ...]
    result_type: CelType
    implementation: Callable[..., Any]
    cost: CostFunction
    is_method: bool = False

    def accepts(self, values: Sequence[Any]) -> bool:
        """Whether it can be called with some values."""
        return all(
            _has_type(kind, value) for kind, value in zip(self.parameter_types, values, strict=True)
        )


def function(
    name: str,
    parameter_types: Sequence[CelType],
    result_type: CelType,
    implementation: Callable[..., Any],
    cost: CostFunction = no_extra_cost,
) -> FunctionOverload:
    """A function that is called by its name: `size(x)`, `sets.contains(x, y)`, `_+_`."""
    return FunctionOverload(name, tuple(parameter_types), result_type, implementation, cost)


def method(
    name: str,
    parameter_types: Sequence[CelType],
    result_type: CelType,
    implementation: Callable[..., Any],
    cost: CostFunction = size_cost,
) -> FunctionOverload:
    """A function that is called on its first argument: `x.startsWith(y)`."""
    return FunctionOverload(
        name, tuple(parameter_types), result_type, implementation, cost, is_method=True
    )


def function_and_method(rows: Iterable[FunctionOverload]) -> list[FunctionOverload]:
    """Functions that can be called either way."""
    return [
        row
        for one in rows
        for row in (
            one,
            FunctionOverload(
                one.name,
                one.parameter_types,
                one.result_type,
                one.implementation,
                one.cost,
                not one.is_method,
            ),
        )
    ]


def value_size(value: Any) -> int:
    """How many steps it takes to look at all of a value."""
    if value.__class__ is str or value.__class__ is bytes:
        return len(value) // 10
    if isinstance(value, list):
        return len(value) + sum(map(value_size, value))
    if value.__class__ is dict:
        return len(value) + sum(map(value_size, value.values()))
    return 0


def _has_type(kind: CelType, value: Any) -> bool:
    if kind.name in ("dyn", "A", "B"):
        return True
    if kind.name == "object":
        return value.__class__ is dict
    return type_name(value) == _VALUE_TYPE_NAMES.get(kind.name, kind.name)
