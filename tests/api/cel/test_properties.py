from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.cel.compiler import compile_expression
from phalanx.api.cel.declarations import DYN
from phalanx.api.cel.evaluator import CostBudget
from phalanx.api.cel.parser import BadExpression
from phalanx.api.cel.values import CostLimitExceeded, EvaluationError, values_equal

WORDS = [
    "self", "self.a", "self.l", "x", "1", "0", "-1", "2u", "1.5", "'a'", "''", "b'a'", "true",
    "null", "[", "]", "(", ")", "{", "}", ",", ":", "?", ".", "+", "-", "*", "/", "%", "==", "<",
    "&&", "||", "!", "in", "has(", ".size()", ".all(x, ", ".map(x, ", ".filter(x, ", ".exists(x, ",
    "[0]", "['a']", ".?a", "[?0]", ".orValue(", "int(", "string(", "double(", "duration('1s')",
    "timestamp('2020-01-01T00:00:00Z')", ".matches('a')", ".split('a')", ".format([", "type(",
    "optional.of(", "sets.equivalent(",
    "{'a': ", "quantity('1')", "sets.contains(", ".substring(1)", ".min()", ".sum()", "dyn(",
]  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abl"), inner),
    max_leaves=6,
)


@given(st.lists(st.sampled_from(WORDS), max_size=12), VALUES)
def test_any_text_is_an_expression_or_is_refused(words: list[str], value: Any) -> None:
    with contextlib.suppress(BadExpression, EvaluationError, CostLimitExceeded):
        compile_expression(" ".join(words), {"self": DYN}).evaluate(
            {"self": value}, CostBudget(1000)
        )


@given(st.text(max_size=30))
def test_any_characters_are_an_expression_or_are_refused(text: str) -> None:
    with contextlib.suppress(BadExpression, EvaluationError, CostLimitExceeded):
        compile_expression(text, {"self": DYN}).evaluate({"self": 1}, CostBudget(1000))


@given(VALUES, VALUES)
def test_to_be_equal_goes_both_ways(a: Any, b: Any) -> None:
    assert values_equal(a, b) == values_equal(b, a)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_division_and_rest_belong_together(a: int, b: int) -> None:
    known = {"a": DYN, "b": DYN}
    with contextlib.suppress(EvaluationError):
        program = compile_expression("(a / b) * b + a % b == a", known)
        assert program.evaluate({"a": a, "b": b}, CostBudget(100)) is True
