"""Compiles a parsed expression to an evaluator, checking types on the way.

Unknown names, missing fields and calls that fit no overload are errors before anything runs. What
is unknown at compile time (`dyn`) is checked when the values are there. Stands between `parser.py`
and `evaluator.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.api.cel.declarations import (
    BOOL,
    DYN,
    LITERAL_TYPES,
    NULL,
    STRUCT_ROOT,
    TYPE,
    A,
    CelType,
    FunctionOverload,
    ObjectField,
    is_assignable,
    join_types,
    list_of,
    map_of,
    substitute_type,
)
from phalanx.api.cel.evaluator import (
    Activation,
    CostBudget,
    Evaluator,
    SlotAllocator,
    TypedEvaluator,
    VariableScope,
    compile_index,
    compile_overloaded_call,
    compile_presence_test,
    compile_select,
    constant,
    variable,
)
from phalanx.api.cel.library import FUNCTIONS, METHODS, TYPE_IDENTIFIERS
from phalanx.api.cel.macros import (
    MACROS,
    compile_comprehension,
    compile_opt_map,
    compile_or_value,
    has_macro_argument,
    require_optional,
)
from phalanx.api.cel.parser import (
    BadExpression,
    CallExpression,
    Expression,
    IdentifierExpression,
    IndexExpression,
    ListExpression,
    LiteralExpression,
    MapExpression,
    SelectExpression,
    StructExpression,
    parse,
)
from phalanx.api.cel.values import (
    EvaluationError,
    OptionalValue,
    TypeValue,
    no_such_overload,
    type_name,
)


@dataclass(frozen=True, slots=True)
class CompiledExpression:
    """A compiled expression with its result type."""

    result_type: CelType
    #: The variables that the expression reads.
    used_variables: frozenset[str]
    _evaluator: Evaluator
    _variable_names: tuple[str, ...]
    _slot_count: int

    def evaluate(self, values: Mapping[str, Any], steps: CostBudget) -> Any:
        """Evaluate; spend the cost from the budget. Raises EvaluationError, CostLimitExceeded."""
        places = [values.get(name) for name in self._variable_names]
        frame = Activation([*places, *[None] * (self._slot_count - len(places))], steps.left)
        try:
            return self._evaluator(frame)
        finally:
            steps.left = frame.left


def compile_expression(text: str, variables: Mapping[str, CelType]) -> CompiledExpression:
    """Compile an expression that may use the given variables. Raises BadExpression."""
    places = SlotAllocator()
    scope = VariableScope(
        {name: (kind, places.allocate()) for name, kind in variables.items()}, places
    )
    typed = _compile(parse(text), scope)
    return CompiledExpression(
        typed.result_type,
        frozenset(scope.used_names),
        typed.evaluate,
        tuple(variables),
        places.count,
    )


def _compile(node: Expression, scope: VariableScope) -> TypedEvaluator:
    match node:
        case LiteralExpression(_, value):
            return TypedEvaluator(LITERAL_TYPES[type_name(value)], constant(value))
        case IdentifierExpression(at, name):
            return _compile_identifier(at, name, scope)
        case SelectExpression():
            return compile_select(node, _compile(node.operand, scope))
        case IndexExpression():
            return compile_index(node, _compile(node.operand, scope), _compile(node.key, scope))
        case ListExpression():
            return _compile_list(node, scope)
        case MapExpression():
            return _compile_map(node, scope)
        case StructExpression():
            return _compile_struct(node, scope)
        case CallExpression():
            return _compile_call(node, scope)


def _compile_identifier(at: int, name: str, scope: VariableScope) -> TypedEvaluator:
    if name in scope.variables:
        kind, place = scope.variables[name]
        scope.used_names.add(name)
        return TypedEvaluator(kind, variable(place))
    if name in TYPE_IDENTIFIERS:
        return TypedEvaluator(TYPE, constant(TypeValue(name)))
    raise BadExpression(at, f"undeclared reference to '{name}' (in container '')")


# ----------------------------------------------------------------------------------- lists and maps


def _compile_list(node: ListExpression, scope: VariableScope) -> TypedEvaluator:
    parts = [_compile(item, scope) for item in node.items]
    kinds = [
        _element_type(part.result_type, maybe, item.at)
        for part, maybe, item in zip(parts, node.optional, node.items, strict=True)
    ]
    runs = [part.evaluate for part in parts]

    def run(frame: Activation) -> list[Any]:
        frame.spend(1 + len(runs))
        values = [one(frame) for one in runs]
        if not any(node.optional):
            return values
        found = zip(values, node.optional, strict=True)
        kept = (
            require_optional(value) if maybe else OptionalValue(True, value)
            for value, maybe in found
        )
        return [one.value for one in kept if one.has]

    return TypedEvaluator(list_of(join_types(kinds)), run)


def _compile_map(node: MapExpression, scope: VariableScope) -> TypedEvaluator:
    pairs = [(_compile(key, scope), _compile(value, scope)) for key, value in node.entries]
    values = [
        _element_type(value.result_type, maybe, key.at)
        for (_, value), maybe, (key, _) in zip(pairs, node.optional, node.entries, strict=True)
    ]
    rows = [
        (k.evaluate, v.evaluate, maybe) for (k, v), maybe in zip(pairs, node.optional, strict=True)
    ]

    def run(frame: Activation) -> dict[Any, Any]:
        frame.spend(1 + len(rows))
        made: dict[Any, Any] = {}
        for key, value, maybe in rows:
            found = require_optional(value(frame)) if maybe else OptionalValue(True, value(frame))
            if found.has:
                name = key(frame)
                if name.__class__ not in (str, int) and type_name(name) != "uint":
                    raise EvaluationError(f"unsupported key type: {type_name(name)}")
                made[name] = found.value
        return made

    return TypedEvaluator(
        map_of(join_types(key.result_type for key, _ in pairs), join_types(values)), run
    )


def _compile_struct(node: StructExpression, scope: VariableScope) -> TypedEvaluator:
    """Compile a struct, if its root is a variable of the type STRUCT_ROOT.

    The type of a struct in a field is the path of the field: `Object{spec: Object.spec{…}}`.
    """
    root = node.name.partition(".")[0]
    if scope.variables.get(root, (DYN, 0))[0] != STRUCT_ROOT:
        raise BadExpression(node.at, f"undeclared reference to '{node.name}' (in container '')")
    rows: list[tuple[str, Evaluator, bool]] = []
    fields: dict[str, ObjectField] = {}
    for (field, value), maybe in zip(node.fields, node.optional, strict=True):
        part = _compile(value, scope)
        kind = _element_type(part.result_type, maybe, value.at)
        inner = kind.parameters[0] if kind.name == "list" else kind
        wanted = f"{node.name}.{field}"
        if inner.name == "object" and inner.path.startswith(f"{root}.") and inner.path != wanted:
            raise BadExpression(
                value.at, f"unexpected type name '{inner.path}', expected '{wanted}'"
            )
        rows.append((field, part.evaluate, maybe))
        fields[field] = ObjectField(field, kind)

    def run(frame: Activation) -> dict[Any, Any]:
        frame.spend(1 + len(rows))
        made: dict[Any, Any] = {}
        for field, evaluate, maybe in rows:
            value = evaluate(frame)
            found = require_optional(value) if maybe else OptionalValue(True, value)
            if found.has:
                made[field] = found.value
        return made

    return TypedEvaluator(CelType("object", (), fields, node.name), run)


def _element_type(kind: CelType, maybe: bool, at: int) -> CelType:
    """Return the element type; an entry marked `?` must be an optional, whose value counts."""
    if not maybe or kind == DYN:
        return kind
    if kind.name != "optional_type":
        raise BadExpression(at, f"expected type 'optional_type({kind})' but found '{kind}'")
    return kind.parameters[0]


# -------------------------------------------------------------------------------------------- calls


def _compile_call(node: CallExpression, scope: VariableScope) -> TypedEvaluator:
    if special := _SPECIAL_FORMS.get(node.name if node.target is None else ""):
        return special(node, scope)
    if node.target is None:
        return _compile_function(node, node.name, node.args, scope=scope)
    long_name = _qualified_name(node.target, scope)
    if long_name and f"{long_name}.{node.name}" in FUNCTIONS:
        return _compile_function(node, f"{long_name}.{node.name}", node.args, scope=scope)
    return _compile_method(node, node.target, scope)


def _qualified_name(node: Expression, scope: VariableScope) -> str:
    """Return the dotted name of an expression that names no variable, such as `sets`."""
    if isinstance(node, IdentifierExpression):
        return "" if node.name in scope.variables else node.name
    if isinstance(node, SelectExpression) and not node.optional:
        before = _qualified_name(node.operand, scope)
        return before and f"{before}.{node.field}"
    return ""


def _compile_method(
    node: CallExpression, receiver: Expression, scope: VariableScope
) -> TypedEvaluator:
    macro = MACROS.get((node.name, len(node.args)))
    if macro and isinstance(node.args[0], IdentifierExpression):
        return compile_comprehension(
            macro, node, _compile(receiver, scope), scope=scope, compile_=_compile
        )
    if node.name in ("optMap", "optFlatMap") and len(node.args) == 2:
        return compile_opt_map(node, _compile(receiver, scope), scope=scope, compile_=_compile)
    if node.name in ("or", "orValue") and len(node.args) == 1:
        return compile_or_value(node, _compile(receiver, scope), _compile(node.args[0], scope))
    return _compile_matching(node, METHODS.get(node.name, ()), (receiver, *node.args), scope=scope)


def _compile_function(
    node: CallExpression, name: str, arguments: Sequence[Expression], *, scope: VariableScope
) -> TypedEvaluator:
    return _compile_matching(node, FUNCTIONS.get(name, ()), arguments, scope=scope)


def _compile_matching(
    node: CallExpression,
    functions: Sequence[FunctionOverload],
    arguments: Sequence[Expression],
    *,
    scope: VariableScope,
) -> TypedEvaluator:
    """Compile a call of the overloads of one name that fit the argument types."""
    parts = [_compile(argument, scope) for argument in arguments]
    if not functions:
        what = f"undeclared reference to '{node.name}' (in container '')"
        raise BadExpression(node.at, what)
    found = [
        (function, gives)
        for function in functions
        if (gives := _result_type(function, [part.result_type for part in parts]))
    ]
    if not found:
        raise _no_matching_overload(node, [part.result_type for part in parts])
    return TypedEvaluator(
        join_types(kind for _, kind in found), compile_overloaded_call([f for f, _ in found], parts)
    )


#: Operators that accept null on one side, whatever type the other side has.
_EQUALITY = ("_==_", "_!=_")


def _result_type(function: FunctionOverload, kinds: Sequence[CelType]) -> CelType | None:
    """Return the result type of a call of this overload; None if the arguments do not fit."""
    if len(kinds) != len(function.parameter_types):
        return None
    if function.name in _EQUALITY and NULL in kinds:
        return function.result_type
    known: dict[str, CelType] = {}
    fits = all(
        is_assignable(*pair, known) for pair in zip(function.parameter_types, kinds, strict=True)
    )
    return substitute_type(function.result_type, known) if fits else None


def _no_matching_overload(node: CallExpression, kinds: Sequence[CelType]) -> BadExpression:
    if node.target is not None:
        shown = f"{kinds[0]}.({', '.join(map(str, kinds[1:]))})"
    else:
        shown = f"({', '.join(map(str, kinds))})"
    return BadExpression(
        node.at, f"found no matching overload for '{node.name}' applied to '{shown}'"
    )


# ---------------------------------------------------------------------------------------- operators


def _compile_has(node: CallExpression, scope: VariableScope) -> TypedEvaluator:
    field = has_macro_argument(node)
    return compile_presence_test(field, _compile(field.operand, scope))


def _compile_logical(node: CallExpression, scope: VariableScope) -> TypedEvaluator:
    """Compile `&&` or `||`: one decisive side decides, even if the other side fails."""
    left, right = (_compile(argument, scope) for argument in node.args)
    if not (
        is_assignable(BOOL, left.result_type, {}) and is_assignable(BOOL, right.result_type, {})
    ):
        raise _no_matching_overload(node, [left.result_type, right.result_type])
    decisive = node.name == "_||_"

    def run(frame: Activation) -> bool:
        frame.spend(1)
        try:
            answer = _require_bool(left.evaluate(frame))
        except EvaluationError:
            if _require_bool(right.evaluate(frame)) is decisive:
                return decisive
            raise
        return answer if answer is decisive else _require_bool(right.evaluate(frame))

    return TypedEvaluator(BOOL, run)


def _require_bool(value: Any) -> bool:
    if value.__class__ is not bool:
        raise no_such_overload()
    return bool(value)


def _compile_conditional(node: CallExpression, scope: VariableScope) -> TypedEvaluator:
    test, yes, no = (_compile(argument, scope) for argument in node.args)
    known: dict[str, CelType] = {}
    fits = is_assignable(A, yes.result_type, known) and is_assignable(A, no.result_type, known)
    if not (is_assignable(BOOL, test.result_type, {}) and fits):
        raise _no_matching_overload(node, [test.result_type, yes.result_type, no.result_type])

    def run(frame: Activation) -> Any:
        frame.spend(1)
        return yes.evaluate(frame) if _require_bool(test.evaluate(frame)) else no.evaluate(frame)

    return TypedEvaluator(join_types((yes.result_type, no.result_type)), run)


_SPECIAL_FORMS = {
    "has": _compile_has,
    "_&&_": _compile_logical,
    "_||_": _compile_logical,
    "_?_:_": _compile_conditional,
}
