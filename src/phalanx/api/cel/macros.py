"""Calls that are no functions: they name variables, or leave some of their arguments alone.

    has(x.y)    x.all(v, p)    x.exists(v, p)    x.exists_one(v, p)    x.map(v, e)    x.filter(v, p)

and those of two variables, an index or key and what is there. Each runs over the items of a list
or the keys of a map, one step for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from phalanx.api.cel.nodes import BadExpression, Call, Name, Node, Select
from phalanx.api.cel.program import Frame, Run, Scope, Typed
from phalanx.api.cel.types import (
    BOOL,
    DYN,
    NUMBER,
    Kind,
    list_of,
    map_of,
    optional_of,
    takes,
)
from phalanx.api.cel.values import NONE, Fault, Optional, overload

#: Compiles a part of an expression.
Compile = Callable[[Node, Scope], Typed]


class Loop(NamedTuple):
    """A run over a value: its steps set variables; what is done in them."""

    rounds: Callable[[Frame], Iterator[None]]
    test: Run | None
    body: Run | None


# ------------------------------------------------------------------------------------- what they do


def _all(loop: Loop) -> Run:
    return _either(loop, False)


def _exists(loop: Loop) -> Run:
    return _either(loop, True)


def _either(loop: Loop, decisive: bool) -> Run:
    """The decisive answer, if any round gives it; a fault counts only if none does."""
    test = loop.test or _never

    def run(frame: Frame) -> bool:
        fault: Fault | None = None
        for _ in loop.rounds(frame):
            try:
                answer = test(frame)
            except Fault as error:
                fault = fault or error
                continue
            if answer.__class__ is not bool:
                fault = fault or overload()
            elif answer is decisive:
                return decisive
        if fault:
            raise fault
        return not decisive

    return run


def _never(frame: Frame) -> bool:
    return False


def _nothing(frame: Frame) -> Any:
    return None


def _exists_one(loop: Loop) -> Run:
    test = loop.test or _never

    def run(frame: Frame) -> bool:
        return sum(_true(test(frame)) for _ in loop.rounds(frame)) == 1

    return run


def _true(answer: Any) -> bool:
    if answer.__class__ is not bool:
        raise overload()
    return bool(answer)


def _list(loop: Loop) -> Run:
    test, body = loop.test, loop.body or _never

    def run(frame: Frame) -> list[Any]:
        return [body(frame) for _ in loop.rounds(frame) if test is None or _true(test(frame))]

    return run


def _map(loop: Loop) -> Run:
    """Entries by the first variable, which the body gives beside its value."""
    test, body = loop.test, loop.body or _nothing

    def run(frame: Frame) -> dict[Any, Any]:
        pairs = (body(frame) for _ in loop.rounds(frame) if test is None or _true(test(frame)))
        return dict(pairs)

    return run


# ------------------------------------------------------------------------------------------- rounds


def _rounds(of: Run, places: Sequence[int]) -> Callable[[Frame], Iterator[None]]:
    def rounds(frame: Frame) -> Iterator[None]:
        value, slots = of(frame), frame.values
        if not isinstance(value, list | dict):
            raise overload()
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        one = isinstance(value, list)
        for key, item in pairs:
            frame.spend(1)
            if len(places) == 1:
                slots[places[0]] = item if one else key
            else:
                slots[places[0]], slots[places[1]] = key, item
            yield

    return rounds


def _variables(call: Call, count: int) -> list[str]:
    names = []
    for argument in call.args[:count]:
        if not isinstance(argument, Name):
            raise BadExpression(argument.at, "argument must be a simple name")
        names.append(argument.name)
    return names


def _kinds(call: Call, kind: Kind, count: int) -> list[Kind]:
    """The types of a loop's variables."""
    if kind == DYN:
        return [DYN] * count
    if kind.name not in ("list", "map"):
        what = f"expression of type '{kind}' cannot be range of a comprehension"
        raise BadExpression(call.at, f"{what} (must be list, map, or dynamic)")
    if kind.name == "list":
        return [NUMBER, kind.of[0]] if count == 2 else [kind.of[0]]
    return list(kind.of)[:count]


class Macro(NamedTuple):
    """A macro: how many variables it names, what it does, and what follows the variables."""

    variables: int
    make: Callable[[Loop], Run]
    has_test: bool
    has_body: bool
    gives: Callable[[Kind, Kind], Kind]


_LOGICAL: Callable[[Kind, Kind], Kind] = lambda key, body: BOOL  # noqa: E731
_LISTED: Callable[[Kind, Kind], Kind] = lambda key, body: list_of(body)  # noqa: E731

#: By name and number of arguments.
MACROS: dict[tuple[str, int], Macro] = {
    ("all", 2): Macro(1, _all, True, False, _LOGICAL),
    ("exists", 2): Macro(1, _exists, True, False, _LOGICAL),
    ("exists_one", 2): Macro(1, _exists_one, True, False, _LOGICAL),
    ("existsOne", 2): Macro(1, _exists_one, True, False, _LOGICAL),
    ("map", 2): Macro(1, _list, False, True, _LISTED),
    ("map", 3): Macro(1, _list, True, True, _LISTED),
    ("filter", 2): Macro(1, _list, True, False, _LISTED),
    ("all", 3): Macro(2, _all, True, False, _LOGICAL),
    ("exists", 3): Macro(2, _exists, True, False, _LOGICAL),
    ("existsOne", 3): Macro(2, _exists_one, True, False, _LOGICAL),
    ("transformList", 3): Macro(2, _list, False, True, _LISTED),
    ("transformList", 4): Macro(2, _list, True, True, _LISTED),
    ("transformMap", 3): Macro(2, _map, False, True, map_of),
    ("transformMap", 4): Macro(2, _map, True, True, map_of),
}


def looped(macro: Macro, call: Call, of: Typed, scope: Scope, compile_: Compile) -> Typed:
    """A macro that runs over a value."""
    names = _variables(call, macro.variables)
    kinds = _kinds(call, of.kind, macro.variables)
    inner, places = scope.inner(zip(names, kinds, strict=True))
    parts = [compile_(argument, inner) for argument in call.args[macro.variables :]]
    test = parts[0] if macro.has_test else None
    if test and not takes(BOOL, test.kind, {}):
        what = f"found no matching overload for '_&&_' applied to '(bool, {test.kind})'"
        raise BadExpression(call.args[macro.variables].at, what)
    body = parts[-1] if macro.has_body else Typed(kinds[-1], _slot(places[-1]))
    made = _keyed(body.run, places[0]) if macro.make is _map else body.run
    loop = Loop(_rounds(of.run, places), test.run if test else None, made)
    return Typed(macro.gives(kinds[0], body.kind), macro.make(loop))


def _slot(place: int) -> Run:
    return lambda frame: frame.values[place]


def _keyed(body: Run, place: int) -> Run:
    return lambda frame: (frame.values[place], body(frame))


# ------------------------------------------------------------------------------------- of one value


def has_argument(call: Call) -> Select:
    """The field that `has` asks for."""
    argument = call.args[0] if len(call.args) == 1 else None
    if not isinstance(argument, Select) or argument.optional:
        raise BadExpression(call.at, "invalid argument to has() macro")
    return argument


def opened(call: Call, of: Typed, scope: Scope, compile_: Compile) -> Typed:
    """`x.optMap(v, e)` and `x.optFlatMap(v, e)`: e of what x holds, if it holds anything."""
    (name,) = _variables(call, 1)
    kind = of.kind.of[0] if of.kind.name == "optional_type" else DYN
    inner, (place,) = scope.inner([(name, kind)])
    body, flat = compile_(call.args[1], inner), call.name == "optFlatMap"

    def run(frame: Frame) -> Optional:
        value = optional(of.run(frame))
        if not value.has:
            return NONE
        frame.values[place] = value.value
        made = body.run(frame)
        return optional(made) if flat else Optional(True, made)

    return Typed(body.kind if flat else optional_of(body.kind), run)


def instead(call: Call, of: Typed, other: Typed) -> Typed:
    """`x.orValue(y)` and `x.or(y)`: what x holds, or else y."""
    kind = of.kind.of[0] if of.kind.name == "optional_type" else DYN
    whole = call.name == "or"

    def run(frame: Frame) -> Any:
        value = optional(of.run(frame))
        if not value.has:
            return other.run(frame)
        return value if whole else value.value

    if whole:
        return Typed(of.kind, run)
    if not takes(kind, other.kind, {}):
        what = f"found no matching overload for 'orValue' applied to '{of.kind}.({other.kind})'"
        raise BadExpression(call.at, what)
    return Typed(kind if kind != DYN else other.kind, run)


def optional(value: Any) -> Optional:
    """A value that may be missing; nothing else will do."""
    if not isinstance(value, Optional):
        raise overload()
    return value
