"""From the tree of an expression to a program, by what is known of the types.

Names must be known, fields must exist and calls must fit before anything runs. What cannot be known
(`dyn`) is left to the values. Between `parser.py` and `program.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.api.cel.access import indexed, present, selected
from phalanx.api.cel.functions import Function
from phalanx.api.cel.library import FUNCTIONS, METHODS
from phalanx.api.cel.macros import MACROS, has_argument, instead, looped, opened, optional
from phalanx.api.cel.nodes import (
    BadExpression,
    Call,
    Entries,
    Index,
    Items,
    Literal,
    Name,
    Node,
    Select,
)
from phalanx.api.cel.parser import parse
from phalanx.api.cel.program import (
    Frame,
    Places,
    Run,
    Scope,
    Steps,
    Typed,
    applied,
    constant,
    variable,
)
from phalanx.api.cel.standard import TYPES
from phalanx.api.cel.types import (
    BOOL,
    DYN,
    LITERALS,
    NULL,
    TYPE,
    A,
    Kind,
    joined,
    list_of,
    map_of,
    settled,
    takes,
)
from phalanx.api.cel.values import Fault, Optional, Type, overload, type_name


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled expression."""

    kind: Kind
    #: The variables that it asks for.
    uses: frozenset[str]
    _run: Run
    _names: tuple[str, ...]
    _size: int

    def run(self, values: Mapping[str, Any], steps: Steps) -> Any:
        """Its value; what it took is taken from the steps. Raises Fault or Exhausted."""
        places = [values.get(name) for name in self._names]
        frame = Frame([*places, *[None] * (self._size - len(places))], steps.left)
        try:
            return self._run(frame)
        finally:
            steps.left = frame.left


def compiled(text: str, variables: Mapping[str, Kind]) -> Program:
    """The program of an expression that knows some variables. Raises BadExpression."""
    places = Places()
    scope = Scope({name: (kind, places.next()) for name, kind in variables.items()}, places)
    typed = _typed(parse(text), scope)
    return Program(typed.kind, frozenset(scope.used), typed.run, tuple(variables), places.count)


def _typed(node: Node, scope: Scope) -> Typed:
    match node:
        case Literal(_, value):
            return Typed(LITERALS[type_name(value)], constant(value))
        case Name(at, name):
            return _name(at, name, scope)
        case Select():
            return selected(node, _typed(node.of, scope))
        case Index():
            return indexed(node, _typed(node.of, scope), _typed(node.key, scope))
        case Items():
            return _items(node, scope)
        case Entries():
            return _entries(node, scope)
        case Call():
            return _call(node, scope)


def _name(at: int, name: str, scope: Scope) -> Typed:
    if name in scope.variables:
        kind, place = scope.variables[name]
        scope.used.add(name)
        return Typed(kind, variable(place))
    if name in TYPES:
        return Typed(TYPE, constant(Type(name)))
    raise BadExpression(at, f"undeclared reference to '{name}' (in container '')")


# ----------------------------------------------------------------------------------- lists and maps


def _items(node: Items, scope: Scope) -> Typed:
    parts = [_typed(item, scope) for item in node.items]
    kinds = [
        _held(part.kind, maybe, item.at)
        for part, maybe, item in zip(parts, node.optional, node.items, strict=True)
    ]
    runs = [part.run for part in parts]

    def run(frame: Frame) -> list[Any]:
        frame.spend(1 + len(runs))
        values = [one(frame) for one in runs]
        if not any(node.optional):
            return values
        found = zip(values, node.optional, strict=True)
        kept = (optional(value) if maybe else Optional(True, value) for value, maybe in found)
        return [one.value for one in kept if one.has]

    return Typed(list_of(joined(kinds)), run)


def _entries(node: Entries, scope: Scope) -> Typed:
    pairs = [(_typed(key, scope), _typed(value, scope)) for key, value in node.entries]
    values = [
        _held(value.kind, maybe, key.at)
        for (_, value), maybe, (key, _) in zip(pairs, node.optional, node.entries, strict=True)
    ]
    rows = [(k.run, v.run, maybe) for (k, v), maybe in zip(pairs, node.optional, strict=True)]

    def run(frame: Frame) -> dict[Any, Any]:
        frame.spend(1 + len(rows))
        made: dict[Any, Any] = {}
        for key, value, maybe in rows:
            found = optional(value(frame)) if maybe else Optional(True, value(frame))
            if found.has:
                made[_key(key(frame))] = found.value
        return made

    return Typed(map_of(joined(key.kind for key, _ in pairs), joined(values)), run)


def _held(kind: Kind, maybe: bool, at: int) -> Kind:
    """The type of what is held, by an optional if it is said to be one."""
    if not maybe or kind == DYN:
        return kind
    if kind.name != "optional_type":
        raise BadExpression(at, f"expected type 'optional_type({kind})' but found '{kind}'")
    return kind.of[0]


def _key(value: Any) -> Any:
    if value.__class__ not in (str, int) and type_name(value) != "uint":
        raise Fault(f"unsupported key type: {type_name(value)}")
    return value


# -------------------------------------------------------------------------------------------- calls


def _call(node: Call, scope: Scope) -> Typed:
    if special := _OPERATORS.get(node.name if node.of is None else ""):
        return special(node, scope)
    if node.of is None:
        return _function(node, node.name, node.args, scope)
    long_name = _long_name(node.of, scope)
    if long_name and f"{long_name}.{node.name}" in FUNCTIONS:
        return _function(node, f"{long_name}.{node.name}", node.args, scope)
    return _method(node, node.of, scope)


def _long_name(node: Node, scope: Scope) -> str:
    """A name that is no variable, and may be the beginning of a function's."""
    if isinstance(node, Name):
        return "" if node.name in scope.variables else node.name
    if isinstance(node, Select) and not node.optional:
        before = _long_name(node.of, scope)
        return before and f"{before}.{node.field}"
    return ""


def _method(node: Call, receiver: Node, scope: Scope) -> Typed:
    macro = MACROS.get((node.name, len(node.args)))
    if macro and isinstance(node.args[0], Name):
        return looped(macro, node, _typed(receiver, scope), scope, _typed)
    if node.name in ("optMap", "optFlatMap") and len(node.args) == 2:
        return opened(node, _typed(receiver, scope), scope, _typed)
    if node.name in ("or", "orValue") and len(node.args) == 1:
        return instead(node, _typed(receiver, scope), _typed(node.args[0], scope))
    return _chosen(node, METHODS.get(node.name, ()), (receiver, *node.args), scope)


def _function(node: Call, name: str, arguments: Sequence[Node], scope: Scope) -> Typed:
    return _chosen(node, FUNCTIONS.get(name, ()), arguments, scope)


def _chosen(
    node: Call, functions: Sequence[Function], arguments: Sequence[Node], scope: Scope
) -> Typed:
    """A call of those functions of a name that fit the types of its arguments."""
    parts = [_typed(argument, scope) for argument in arguments]
    if not functions:
        what = f"undeclared reference to '{node.name}' (in container '')"
        raise BadExpression(node.at, what)
    found = [
        (function, gives)
        for function in functions
        if (gives := _gives(function, [part.kind for part in parts]))
    ]
    if not found:
        raise _misfit(node, [part.kind for part in parts])
    return Typed(joined(kind for _, kind in found), applied([f for f, _ in found], parts))


#: What may be asked of null, whatever it is compared with.
_EQUALITY = ("_==_", "_!=_")


def _gives(function: Function, kinds: Sequence[Kind]) -> Kind | None:
    """The type of a call's result; None if it cannot be called so."""
    if len(kinds) != len(function.takes):
        return None
    if function.name in _EQUALITY and NULL in kinds:
        return function.gives
    known: dict[str, Kind] = {}
    fits = all(takes(*pair, known) for pair in zip(function.takes, kinds, strict=True))
    return settled(function.gives, known) if fits else None


def _misfit(node: Call, kinds: Sequence[Kind]) -> BadExpression:
    if node.of is not None:
        shown = f"{kinds[0]}.({', '.join(map(str, kinds[1:]))})"
    else:
        shown = f"({', '.join(map(str, kinds))})"
    return BadExpression(
        node.at, f"found no matching overload for '{node.name}' applied to '{shown}'"
    )


# ---------------------------------------------------------------------------------------- operators


def _has(node: Call, scope: Scope) -> Typed:
    field = has_argument(node)
    return present(field, _typed(field.of, scope))


def _logical(node: Call, scope: Scope) -> Typed:
    """`&&` and `||`: the decisive answer of one side, even if the other one has none."""
    left, right = (_typed(argument, scope) for argument in node.args)
    if not (takes(BOOL, left.kind, {}) and takes(BOOL, right.kind, {})):
        raise _misfit(node, [left.kind, right.kind])
    decisive = node.name == "_||_"

    def run(frame: Frame) -> bool:
        frame.spend(1)
        try:
            answer = _bool(left.run(frame))
        except Fault:
            if _bool(right.run(frame)) is decisive:
                return decisive
            raise
        return answer if answer is decisive else _bool(right.run(frame))

    return Typed(BOOL, run)


def _bool(value: Any) -> bool:
    if value.__class__ is not bool:
        raise overload()
    return bool(value)


def _choice(node: Call, scope: Scope) -> Typed:
    test, yes, no = (_typed(argument, scope) for argument in node.args)
    known: dict[str, Kind] = {}
    fits = takes(A, yes.kind, known) and takes(A, no.kind, known)
    if not (takes(BOOL, test.kind, {}) and fits):
        raise _misfit(node, [test.kind, yes.kind, no.kind])

    def run(frame: Frame) -> Any:
        frame.spend(1)
        return yes.run(frame) if _bool(test.run(frame)) else no.run(frame)

    return Typed(joined((yes.kind, no.kind)), run)


_OPERATORS = {"has": _has, "_&&_": _logical, "_||_": _logical, "_?_:_": _choice}
