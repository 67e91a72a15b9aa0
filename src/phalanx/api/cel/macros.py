"""Macros: calls that introduce variables or evaluate their arguments lazily.

    has(x.y)    x.all(v, p)    x.exists(v, p)    x.exists_one(v, p)    x.map(v, e)    x.filter(v, p)

`all`, `exists` and `existsOne` also exist with two variables (index or key, and value), which
`transformList` and `transformMap` always have. A comprehension iterates over the items of a list or
the keys of a map and spends one step per iteration. `optMap`, `optFlatMap`, `or` and `orValue` are
the macros of optional values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from phalanx.api.cel.declarations import (
    BOOL,
    DYN,
    INTEGER,
    CelType,
    is_assignable,
    list_of,
    map_of,
    optional_of,
)
from phalanx.api.cel.evaluator import Activation, Evaluator, TypedEvaluator, VariableScope
from phalanx.api.cel.parser import (
    BadExpression,
    CallExpression,
    Expression,
    IdentifierExpression,
    SelectExpression,
)
from phalanx.api.cel.values import EMPTY_OPTIONAL, EvaluationError, OptionalValue, no_such_overload

#: Compiles a subexpression.
CompileFunction = Callable[[Expression, VariableScope], TypedEvaluator]


class Comprehension(NamedTuple):
    """A loop: `iterate` sets the variables, `test` selects iterations, `body` gives a value."""

    iterate: Callable[[Activation], Iterator[None]]
    test: Evaluator | None
    body: Evaluator | None


# --------------------------------------------------------------------------------- loop bodies


def _build_all(loop: Comprehension) -> Evaluator:
    return _build_quantifier(loop, False)


def _build_exists(loop: Comprehension) -> Evaluator:
    return _build_quantifier(loop, True)


def _build_quantifier(loop: Comprehension, decisive: bool) -> Evaluator:
    """Build `all` or `exists`: one decisive item decides; an error counts only if none does."""
    test = loop.test or _return_false

    def run(frame: Activation) -> bool:
        fault: EvaluationError | None = None
        for _ in loop.iterate(frame):
            try:
                answer = test(frame)
            except EvaluationError as error:
                fault = fault or error
                continue
            if answer.__class__ is not bool:
                fault = fault or no_such_overload()
            elif answer is decisive:
                return decisive
        if fault:
            raise fault
        return not decisive

    return run


def _return_false(frame: Activation) -> bool:
    return False


def _return_none(frame: Activation) -> Any:
    return None


def _build_exists_one(loop: Comprehension) -> Evaluator:
    test = loop.test or _return_false

    def run(frame: Activation) -> bool:
        return sum(_require_bool(test(frame)) for _ in loop.iterate(frame)) == 1

    return run


def _require_bool(answer: Any) -> bool:
    if answer.__class__ is not bool:
        raise no_such_overload()
    return bool(answer)


def _build_list(loop: Comprehension) -> Evaluator:
    test, body = loop.test, loop.body or _return_false

    def run(frame: Activation) -> list[Any]:
        return [
            body(frame) for _ in loop.iterate(frame) if test is None or _require_bool(test(frame))
        ]

    return run


def _build_map(loop: Comprehension) -> Evaluator:
    """Build `transformMap`: the body's values by the first variable."""
    test, body = loop.test, loop.body or _return_none

    def run(frame: Activation) -> dict[Any, Any]:
        pairs = (
            body(frame) for _ in loop.iterate(frame) if test is None or _require_bool(test(frame))
        )
        return dict(pairs)

    return run


# --------------------------------------------------------------------------------------- iteration


def _iteration(of: Evaluator, places: Sequence[int]) -> Callable[[Activation], Iterator[None]]:
    def rounds(frame: Activation) -> Iterator[None]:
        value, slots = of(frame), frame.values
        if not isinstance(value, list | dict):
            raise no_such_overload()
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


def _variable_names(call: CallExpression, count: int) -> list[str]:
    names = []
    for argument in call.args[:count]:
        if not isinstance(argument, IdentifierExpression):
            raise BadExpression(argument.at, "argument must be a simple name")
        names.append(argument.name)
    return names


def _variable_types(call: CallExpression, kind: CelType, count: int) -> list[CelType]:
    """Return the types of the loop variables."""
    if kind == DYN:
        return [DYN] * count
    if kind.name not in ("list", "map"):
        what = f"expression of type '{kind}' cannot be range of a comprehension"
        raise BadExpression(call.at, f"{what} (must be list, map, or dynamic)")
    if kind.name == "list":
        return [INTEGER, kind.parameters[0]] if count == 2 else [kind.parameters[0]]
    return list(kind.parameters)[:count]


class Macro(NamedTuple):
    """A macro: the number of its variables, its loop, and its arguments after the variables."""

    variables: int
    build: Callable[[Comprehension], Evaluator]
    result_type: Callable[[CelType, CelType], CelType]
    has_test: bool = False
    has_body: bool = False


_BOOL_RESULT: Callable[[CelType, CelType], CelType] = lambda key, body: BOOL  # noqa: E731
_LIST_RESULT: Callable[[CelType, CelType], CelType] = lambda key, body: list_of(body)  # noqa: E731

#: Macros by name and number of arguments.
MACROS: dict[tuple[str, int], Macro] = {
    ("all", 2): Macro(1, _build_all, _BOOL_RESULT, has_test=True),
    ("exists", 2): Macro(1, _build_exists, _BOOL_RESULT, has_test=True),
    ("exists_one", 2): Macro(1, _build_exists_one, _BOOL_RESULT, has_test=True),
    ("existsOne", 2): Macro(1, _build_exists_one, _BOOL_RESULT, has_test=True),
    ("map", 2): Macro(1, _build_list, _LIST_RESULT, has_body=True),
    ("map", 3): Macro(1, _build_list, _LIST_RESULT, has_test=True, has_body=True),
    ("filter", 2): Macro(1, _build_list, _LIST_RESULT, has_test=True),
    ("all", 3): Macro(2, _build_all, _BOOL_RESULT, has_test=True),
    ("exists", 3): Macro(2, _build_exists, _BOOL_RESULT, has_test=True),
    ("existsOne", 3): Macro(2, _build_exists_one, _BOOL_RESULT, has_test=True),
    ("transformList", 3): Macro(2, _build_list, _LIST_RESULT, has_body=True),
    ("transformList", 4): Macro(2, _build_list, _LIST_RESULT, has_test=True, has_body=True),
    ("transformMap", 3): Macro(2, _build_map, map_of, has_body=True),
    ("transformMap", 4): Macro(2, _build_map, map_of, has_test=True, has_body=True),
}


def compile_comprehension(
    macro: Macro,
    call: CallExpression,
    operand: TypedEvaluator,
    *,
    scope: VariableScope,
    compile_: CompileFunction,
) -> TypedEvaluator:
    """Compile a macro that iterates over a value."""
    names = _variable_names(call, macro.variables)
    kinds = _variable_types(call, operand.result_type, macro.variables)
    inner, places = scope.with_variables(zip(names, kinds, strict=True))
    parts = [compile_(argument, inner) for argument in call.args[macro.variables :]]
    test = parts[0] if macro.has_test else None
    if test and not is_assignable(BOOL, test.result_type, {}):
        what = f"found no matching overload for '_&&_' applied to '(bool, {test.result_type})'"
        raise BadExpression(call.args[macro.variables].at, what)
    last = places[-1]
    body = (
        parts[-1] if macro.has_body else TypedEvaluator(kinds[-1], lambda frame: frame.values[last])
    )
    made = _read_entry(body.evaluate, places[0]) if macro.build is _build_map else body.evaluate
    loop = Comprehension(
        _iteration(operand.evaluate, places), test.evaluate if test else None, made
    )
    return TypedEvaluator(macro.result_type(kinds[0], body.result_type), macro.build(loop))


def _read_entry(body: Evaluator, place: int) -> Evaluator:
    return lambda frame: (frame.values[place], body(frame))


# ---------------------------------------------------------------------------------- optional values


def has_macro_argument(call: CallExpression) -> SelectExpression:
    """Return the field selection that is the argument of `has`."""
    argument = call.args[0] if len(call.args) == 1 else None
    if not isinstance(argument, SelectExpression) or argument.optional:
        raise BadExpression(call.at, "invalid argument to has() macro")
    return argument


def compile_opt_map(
    call: CallExpression,
    operand: TypedEvaluator,
    *,
    scope: VariableScope,
    compile_: CompileFunction,
) -> TypedEvaluator:
    """Compile `x.optMap(v, e)` or `x.optFlatMap(v, e)`: `e` of the value of `x`, if it has one."""
    (name,) = _variable_names(call, 1)
    kind = operand.result_type.parameters[0] if operand.result_type.name == "optional_type" else DYN
    inner, (place,) = scope.with_variables([(name, kind)])
    body, flat = compile_(call.args[1], inner), call.name == "optFlatMap"

    def run(frame: Activation) -> OptionalValue:
        value = require_optional(operand.evaluate(frame))
        if not value.has:
            return EMPTY_OPTIONAL
        frame.values[place] = value.value
        made = body.evaluate(frame)
        return require_optional(made) if flat else OptionalValue(True, made)

    return TypedEvaluator(body.result_type if flat else optional_of(body.result_type), run)


def compile_or_value(
    call: CallExpression, operand: TypedEvaluator, other: TypedEvaluator
) -> TypedEvaluator:
    """Compile `x.orValue(y)` or `x.or(y)`: the value of `x`, else `y`."""
    kind = operand.result_type.parameters[0] if operand.result_type.name == "optional_type" else DYN
    whole = call.name == "or"

    def run(frame: Activation) -> Any:
        value = require_optional(operand.evaluate(frame))
        if not value.has:
            return other.evaluate(frame)
        return value if whole else value.value

    if whole:
        return TypedEvaluator(operand.result_type, run)
    if not is_assignable(kind, other.result_type, {}):
        signature = f"{operand.result_type}.({other.result_type})"
        raise BadExpression(
            call.at, f"found no matching overload for 'orValue' applied to '{signature}'"
        )
    return TypedEvaluator(kind if kind != DYN else other.result_type, run)


def require_optional(value: Any) -> OptionalValue:
    """Return an optional value. Raises EvaluationError if the value is of another type."""
    if not isinstance(value, OptionalValue):
        raise no_such_overload()
    return value
