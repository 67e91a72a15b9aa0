"""Evaluators: closures from an activation (variables, remaining cost) to a value.

Each step of an evaluation is counted, so every evaluation ends. This module also compiles access to
values: fields, map entries, list items, and tests for their presence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from phalanx.api.cel.declarations import (
    BOOL,
    DYN,
    INTEGER,
    UNSIGNED,
    A,
    B,
    CelType,
    FunctionOverload,
    is_assignable,
    optional_of,
)
from phalanx.api.cel.parser import BadExpression, IndexExpression, SelectExpression
from phalanx.api.cel.values import (
    EMPTY_OPTIONAL,
    CostLimitExceeded,
    DefaultMap,
    EvaluationError,
    OptionalValue,
    Uint,
    has_key,
    no_such_overload,
)


@dataclass(slots=True)
class CostBudget:
    """The steps that may still be spent."""

    left: int


class Activation:
    """The state of one evaluation: the variables by slot, and the remaining steps."""

    __slots__ = ("left", "values")

    def __init__(self, values: list[Any], left: int) -> None:
        self.values, self.left = values, left

    def spend(self, steps: int) -> None:
        """Spend steps. Raises CostLimitExceeded."""
        self.left -= steps
        if self.left < 0:
            raise CostLimitExceeded


Evaluator: TypeAlias = Callable[[Activation], Any]


class LazyVariables:
    """The `variables` of a policy: each is evaluated when an expression first reads it."""

    def __init__(self, evaluate: Callable[[str, CostBudget], Any]) -> None:
        self._evaluate = evaluate
        self._known: dict[str, Any] = {}

    def read(self, name: str, frame: Activation) -> Any:
        """Return the value of a variable; the reader pays for its evaluation."""
        if name not in self._known:
            budget = CostBudget(frame.left)
            try:
                self._known[name] = self._evaluate(name, budget)
            finally:
                frame.left = budget.left
        return self._known[name]


class TypedEvaluator(NamedTuple):
    """A compiled part of an expression: its type and its evaluator."""

    result_type: CelType
    evaluate: Evaluator


@dataclass(slots=True)
class SlotAllocator:
    """Assigns slots to the variables of one expression."""

    count: int = 0

    def allocate(self) -> int:
        """Return a slot that no other variable has."""
        self.count += 1
        return self.count - 1


@dataclass(slots=True)
class VariableScope:
    """The variables that a part of an expression sees, and the variables that it has read."""

    variables: dict[str, tuple[CelType, int]]
    slots: SlotAllocator
    used_names: set[str] = field(default_factory=set)

    def with_variables(
        self, names: Iterable[tuple[str, CelType]]
    ) -> tuple[VariableScope, list[int]]:
        """Return a scope with additional variables, and their slots."""
        new = {name: (kind, self.slots.allocate()) for name, kind in names}
        shown = {name: one for name, one in self.variables.items() if name not in new}
        return VariableScope({**shown, **new}, self.slots, self.used_names), [
            at for _, at in new.values()
        ]


def constant(value: Any) -> Evaluator:
    """Return the evaluator of a constant."""
    return lambda frame: value


def variable(slot: int) -> Evaluator:
    """Return the evaluator of a variable."""

    def run(frame: Activation) -> Any:
        frame.spend(1)
        return frame.values[slot]

    return run


def compile_overloaded_call(
    functions: Sequence[FunctionOverload], arguments: Sequence[TypedEvaluator]
) -> Evaluator:
    """Compile a call: of the only overload that fits, or of the first that takes the values."""
    runs = [argument.evaluate for argument in arguments]
    if len(functions) == 1 and all(argument.result_type != DYN for argument in arguments):
        return _compile_direct_call(functions[0], runs)

    def call(frame: Activation) -> Any:
        values = [run(frame) for run in runs]
        for function in functions:
            if function.accepts(values):
                frame.spend(1 + function.cost(values))
                return function.implementation(*values)
        raise no_such_overload()

    return call


def _compile_direct_call(function: FunctionOverload, runs: Sequence[Evaluator]) -> Evaluator:
    compute, cost = function.implementation, function.cost
    # A nullable field of a known type may still hold null.
    typed = [at for at, kind in enumerate(function.parameter_types) if kind not in (DYN, A, B)]

    def call(frame: Activation) -> Any:
        values = [run(frame) for run in runs]
        for at in typed:
            if values[at] is None:
                raise no_such_overload()
        frame.spend(1 + cost(values))
        return compute(*values)

    return call


def compile_select(node: SelectExpression, operand: TypedEvaluator) -> TypedEvaluator:
    """Compile `operand.field`."""
    kind, name = _resolve_field(node, operand.result_type)
    if operand.result_type.name == "optional_type" or node.optional:
        inner = kind if kind.name == "optional_type" else optional_of(kind)
        return TypedEvaluator(inner, _read_optional(operand.evaluate, lambda frame: name))
    return TypedEvaluator(kind, _read_entry(operand.evaluate, name))


def compile_index(
    node: IndexExpression, operand: TypedEvaluator, key: TypedEvaluator
) -> TypedEvaluator:
    """Compile `operand[key]`."""
    kind = _element_type(node, operand.result_type, key.result_type)
    if operand.result_type.name == "optional_type" or node.optional:
        return TypedEvaluator(optional_of(kind), _read_optional(operand.evaluate, key.evaluate))
    return TypedEvaluator(kind, _read_item(operand.evaluate, key.evaluate))


def compile_presence_test(node: SelectExpression, operand: TypedEvaluator) -> TypedEvaluator:
    """Compile `has(operand.field)`."""
    _, name = _resolve_field(node, operand.result_type)

    def run(frame: Activation) -> bool:
        value = operand.evaluate(frame)
        frame.spend(1)
        if value.__class__ is OptionalValue:
            value = value.value if value.has else {}
        if value.__class__ is not dict:
            raise no_such_overload()
        return name in value

    return TypedEvaluator(BOOL, run)


def _resolve_field(node: SelectExpression, kind: CelType) -> tuple[CelType, str]:
    """Return the type of a field and its unescaped name."""
    if kind.name == "optional_type":
        return _resolve_field(node, kind.parameters[0])
    if kind.name == "object":
        known = kind.fields.get(node.field)
        if known is None:
            raise BadExpression(node.at, f"undefined field '{node.field}'")
        return known.value_type, known.name
    if kind.name == "map":
        return kind.parameters[1], node.field
    if kind == DYN:
        return DYN, node.field
    raise BadExpression(node.at, f"type '{kind}' does not support field selection")


def _element_type(node: IndexExpression, kind: CelType, key: CelType) -> CelType:
    if kind.name == "optional_type":
        return _element_type(node, kind.parameters[0], key)
    if kind == DYN:
        return DYN
    wanted = (INTEGER, UNSIGNED) if kind.name == "list" else kind.parameters[:1]
    if kind.name not in ("list", "map") or not any(is_assignable(one, key, {}) for one in wanted):
        what = f"found no matching overload for '_[_]' applied to '({kind}, {key})'"
        raise BadExpression(node.at, what)
    return kind.parameters[-1]


def _read_entry(of: Evaluator, name: str) -> Evaluator:
    def run(frame: Activation) -> Any:
        value = of(frame)
        frame.spend(1)
        if value.__class__ is not dict:
            if value.__class__ is LazyVariables:
                return value.read(name, frame)
            raise no_such_overload()
        if name not in value:
            raise EvaluationError(f"no such key: {name}")
        return value[name]

    return run


def _read_item(of: Evaluator, key: Evaluator) -> Evaluator:
    def run(frame: Activation) -> Any:
        value, at = of(frame), key(frame)
        frame.spend(1)
        found = _lookup(value, at)
        if found.has:
            return found.value
        if isinstance(value, list):
            raise EvaluationError(f"index out of bounds: {at}")
        raise EvaluationError(f"no such key: {at}")

    return run


def _read_optional(of: Evaluator, key: Evaluator) -> Evaluator:
    """Return the evaluator of `operand.?field` or `operand[?key]`: an optional value."""

    def run(frame: Activation) -> OptionalValue:
        value, at = of(frame), key(frame)
        frame.spend(1)
        if value.__class__ is OptionalValue:
            return _lookup(value.value, at) if value.has else EMPTY_OPTIONAL
        return _lookup(value, at)

    return run


def _lookup(value: Any, at: Any) -> OptionalValue:
    if value.__class__ is dict:
        return OptionalValue(True, value[at]) if has_key(value, at) else EMPTY_OPTIONAL
    if value.__class__ is DefaultMap and at.__class__ is str:
        return OptionalValue(True, value.get(at, {}))
    if not isinstance(value, list) or at.__class__ not in (int, Uint, float):
        raise no_such_overload()
    if at.__class__ is float and not at.is_integer():
        raise no_such_overload()
    return OptionalValue(True, value[int(at)]) if 0 <= at < len(value) else EMPTY_OPTIONAL
