"""ObjectTemplate: an object in YAML with expressions of Go's templates, as scheduler_perf has them.

    metadata:
      name: pod-{{.Index}}                                    pod-7
      labels: {zone: zone-{{Mod .Index 3}}}                   zone-1
    spec:
      schedulingGroup: {podGroupName: gang-{{DivideInt .Index .podsPerGroup}}}

An expression is a parameter, a number, a text, or a function of these; parentheses nest. Conditions
and loops of Go's templates are rejected. The YAML is parsed once: rendering only fills in values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from operator import mul
from typing import Any

from phalanx.api.wire import Object
from phalanx.sim.workloads.workload import InvalidTrace
from phalanx.yaml_files import InvalidYaml, load_yaml

#: The value of an expression for some parameters.
Expression = Callable[[Mapping[str, Any]], Any]

_EXPRESSION = re.compile(r"\{\{-?(.*?)-?\}\}", re.DOTALL)
_WORD = re.compile(r'\s*(?:(\()|(\))|\.(\w+)|(-?\d+(?:\.\d+)?)|"([^"]*)"|(\w+))')
#: Stands in the YAML for an expression; characters that no object contains.
_MARK = "\ue000{}\ue001"
_FIND_MARKS = re.compile("\ue000(\\d+)\ue001")


def _to_number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{value} is not a number") from None


def _divide(one: float, other: float) -> float:
    if not other:
        raise ValueError("division by zero")
    return one / other


def _remainder(one: float, other: float) -> int:
    if not int(other):
        raise ValueError("division by zero")
    # As Go does: the result has the sign of the first number.
    return int(math.fmod(int(one), int(other)))


#: The functions of scheduler_perf: how many arguments (0: any number), and what they compute.
_FUNCTIONS: Mapping[str, tuple[int, Callable[..., Any]]] = {
    "AddFloat": (0, lambda *numbers: sum(numbers)),
    "AddInt": (0, lambda *numbers: int(sum(numbers))),
    "DivideFloat": (2, _divide),
    "DivideInt": (2, lambda one, other: int(_divide(one, other))),
    "Mod": (2, _remainder),
    "MultiplyFloat": (0, lambda *numbers: reduce(mul, numbers, 1.0)),
    "MultiplyInt": (0, lambda *numbers: int(reduce(mul, numbers, 1.0))),
    "SubtractFloat": (2, lambda one, other: one - other),
    "SubtractInt": (2, lambda one, other: int(one - other)),
}


class ObjectTemplate:
    """A template. Raises InvalidTrace, with file and line, if it cannot be read."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._expressions: list[tuple[int, Expression]] = []

        def replace_expression(found: re.Match[str]) -> str:
            line = text.count("\n", 0, found.start()) + 1
            try:
                expression = _parse_expression(found[1].strip())
            except ValueError as error:
                raise InvalidTrace(f"{name}, line {line}: {error}") from None
            self._expressions.append((line, expression))
            return _MARK.format(len(self._expressions) - 1)

        try:
            self._object = load_yaml(_EXPRESSION.sub(replace_expression, text))
        except InvalidYaml as error:
            raise InvalidTrace(f"{name}, {error}") from None
        if not isinstance(self._object, dict):
            raise InvalidTrace(f"{name}: not a Kubernetes object: must be a map")

    def render(self, params: Mapping[str, Any]) -> Object:
        """Return the object for some parameters. Raises InvalidTrace."""
        values: list[Any] = []
        for line, expression in self._expressions:
            try:
                values.append(expression(params))
            except ValueError as error:
                raise InvalidTrace(f"{self._name}, line {line}: {error}") from None
        rendered: Object = _fill(self._object, values)
        return rendered


def _fill(value: Any, values: list[Any]) -> Any:
    """Replace the marks in the texts of a value."""
    if isinstance(value, str):
        if "\ue000" not in value:
            return value
        if found := _FIND_MARKS.fullmatch(value):
            return values[int(found[1])]
        return _FIND_MARKS.sub(lambda mark: str(values[int(mark[1])]), value)
    if isinstance(value, dict):
        return {_fill(key, values): _fill(one, values) for key, one in value.items()}
    if isinstance(value, list):
        return [_fill(one, values) for one in value]
    return value


def _parse_expression(text: str) -> Expression:
    """Parse what stands between two pairs of braces. Raises ValueError."""
    words, position = [], 0
    while position < len(text):
        found = _WORD.match(text, position)
        if found is None:
            raise ValueError(f'cannot read the expression "{text}"')
        words.append(found)
        position = found.end()
    rest = iter(words)
    expression = _parse_call(rest, text, is_nested=False)
    if next(rest, None) is not None:
        raise ValueError(f'cannot read the expression "{text}"')
    return expression


def _parse_call(words: Iterator[re.Match[str]], text: str, *, is_nested: bool) -> Expression:
    """Parse a value, or a function with its arguments, up to the end or a closing parenthesis."""
    function, arguments, is_open = "", list[Expression](), is_nested
    for word in words:
        opening, closing, parameter, number, quoted, name = word.groups()
        if closing:
            if not is_nested:
                raise ValueError(f'cannot read the expression "{text}"')
            is_open = False
            break
        if name is not None:
            if function or arguments or name not in _FUNCTIONS:
                known = ", ".join(_FUNCTIONS)
                raise ValueError(f'"{name}" is not supported in templates; available: {known}')
            function = name
        elif opening:
            arguments.append(_parse_call(words, text, is_nested=True))
        elif parameter is not None:
            arguments.append(_read_parameter(parameter))
        else:
            value: Any = quoted
            if number is not None:
                value = float(number) if "." in number else int(number)
            arguments.append(_constant(value))
    if is_open:
        raise ValueError(f'a parenthesis is not closed in "{text}"')
    if function:
        return _apply(function, arguments)
    if len(arguments) != 1:
        raise ValueError(f'cannot read the expression "{text}"')
    return arguments[0]


def _constant(value: Any) -> Expression:
    return lambda params: value


def _read_parameter(name: str) -> Expression:
    def read(params: Mapping[str, Any]) -> Any:
        if name not in params:
            raise ValueError(f'unknown parameter ".{name}"; available: {", ".join(sorted(params))}')
        return params[name]

    return read


def _apply(name: str, arguments: list[Expression]) -> Expression:
    count, function = _FUNCTIONS[name]
    if count and len(arguments) != count:
        raise ValueError(f"{name} needs {count} arguments, not {len(arguments)}")
    return lambda params: function(*(_to_number(one(params)) for one in arguments))
