"""Types of expressions and declarations of functions.

A type is a name with parameters, such as `map(string, int)`; `dyn` fits everything. The parameter
types of a function may contain the type variables `A` and `B`, which stand for one type each within
one call.

Each function is one row per combination of argument types (`FunctionOverload`). Libraries are lists
of rows: `library.py` (operators, lists, sets, optionals), `strings.py`, `timestamps.py`,
`kubernetes_library.py`. The compiler picks the rows that fit the known types; if several are left,
the values decide at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from phalanx.api.cel.values import type_name


@dataclass(frozen=True, slots=True)
class CelType:
    """A type: `int`, `list(string)`, `map(string, dyn)`; an object type has fields."""

    name: str
    parameters: tuple[CelType, ...] = ()
    fields: Mapping[str, ObjectField] = field(default_factory=dict, compare=False)
    #: The path of the schema: two object types are equal only if they have the same path.
    path: str = ""

    def __str__(self) -> str:
        inner = ", ".join(map(str, self.parameters))
        return f"{self.name}({inner})" if inner else self.name


@dataclass(frozen=True, slots=True)
class ObjectField:
    """A field of an object type: its unescaped name and its type."""

    name: str
    value_type: CelType


DYN, BOOL, NULL = CelType("dyn"), CelType("bool"), CelType("null")
INTEGER, UNSIGNED, DOUBLE = CelType("int"), CelType("uint"), CelType("double")
STRING, BYTES, TYPE = CelType("string"), CelType("bytes"), CelType("type")
TIMESTAMP, DURATION = CelType("timestamp"), CelType("duration")
A, B = CelType("A"), CelType("B")
#: The type of a variable whose name begins the types of structs: `Object`, `Object.spec`.
STRUCT_ROOT = CelType("struct root")
_TYPE_VARIABLES = (A, B)

#: The types of literals.
LITERAL_TYPES: Mapping[str, CelType] = {
    "bool": BOOL, "int": INTEGER, "uint": UNSIGNED, "double": DOUBLE, "string": STRING,
    "bytes": BYTES, "null_type": NULL,
}  # fmt: skip


def list_of(kind: CelType) -> CelType:
    """Return the type of a list of elements of one type."""
    return CelType("list", (kind,))


def map_of(key: CelType, value: CelType) -> CelType:
    """Return the type of a map."""
    return CelType("map", (key, value))


def optional_of(kind: CelType) -> CelType:
    """Return the optional type of a type."""
    return CelType("optional_type", (kind,))


def is_assignable(wanted: CelType, found: CelType, known: dict[str, CelType]) -> bool:
    """Whether a value of one type may be passed for another; binds type variables."""
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


#: Types for which null may be passed.
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
    """Replace type variables by their bindings; an unbound variable becomes `dyn`."""
    if kind in _TYPE_VARIABLES:
        return known.get(kind.name, DYN)
    return CelType(
        kind.name,
        tuple(substitute_type(one, known) for one in kind.parameters),
        kind.fields,
        kind.path,
    )


def join_types(kinds: Iterable[CelType]) -> CelType:
    """Return the type that all values have, else `dyn`."""
    distinct = list(dict.fromkeys(kinds))
    return distinct[0] if len(distinct) == 1 else DYN


#: Type names that differ between declarations and `type(x)`.
_VALUE_TYPE_NAMES = {
    "timestamp": "google.protobuf.Timestamp", "duration": "google.protobuf.Duration",
    "null": "null_type",
}  # fmt: skip


#: Computes the cost of a call beyond its first step from its arguments.
CostFunction: TypeAlias = Callable[[Sequence[Any]], int]


def no_extra_cost(values: Sequence[Any]) -> int:
    """Return no additional cost."""
    return 0


def size_cost(values: Sequence[Any]) -> int:
    """Return the cost of traversing all arguments."""
    return sum(map(value_size, values))


@dataclass(frozen=True, slots=True)
class FunctionOverload:
    """One function for one combination of argument types; a method has its receiver first."""

    name: str
    parameter_types: tuple[CelType, ...]
    result_type: CelType
    implementation: Callable[..., Any]
    cost: CostFunction
    is_method: bool = False

    def accepts(self, values: Sequence[Any]) -> bool:
        """Whether the function takes these values."""
        return all(
            _has_type(kind, value) for kind, value in zip(self.parameter_types, values, strict=True)
        )


def function(
    name: str,
    parameter_types: Sequence[CelType],
    result_type: CelType,
    implementation: Callable[..., Any],
    *,
    cost: CostFunction = no_extra_cost,
) -> FunctionOverload:
    """Declare a global function: `size(x)`, `sets.contains(x, y)`, `_+_`."""
    return FunctionOverload(name, tuple(parameter_types), result_type, implementation, cost)


def method(
    name: str,
    parameter_types: Sequence[CelType],
    result_type: CelType,
    implementation: Callable[..., Any],
    *,
    cost: CostFunction = size_cost,
) -> FunctionOverload:
    """Declare a method: `x.startsWith(y)`."""
    return FunctionOverload(
        name, tuple(parameter_types), result_type, implementation, cost, is_method=True
    )


def function_and_method(rows: Iterable[FunctionOverload]) -> list[FunctionOverload]:
    """Declare each function as a method too, and each method as a function too."""
    return [
        row
        for one in rows
        for row in (
            one,
            replace(one, is_method=not one.is_method),
        )
    ]


def value_size(value: Any) -> int:
    """Return the cost of traversing a value."""
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
