"""Expressions of admission webhooks and policies: their variables and match conditions.

    object, oldObject     the object as the client sent it (after defaults), and as it is stored
    request               the attributes of the request: kind, resource, name, userInfo, operation …
    authorizer            checks what the user may do
    params, namespaceObject, variables    in policies

Without a schema objects are `dyn`: fields are checked when the expression runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from phalanx.api.cel.compiler import CompiledExpression, compile_expression
from phalanx.api.cel.declarations import BOOL, DYN, STRING, CelType, ObjectField, list_of, map_of
from phalanx.api.cel.evaluator import CostBudget
from phalanx.api.cel.parser import BadExpression
from phalanx.api.cel.values import CostLimitExceeded, EvaluationError
from phalanx.api.wire import Object

#: Steps that one expression may take, all expressions of a policy, and all match conditions.
MAX_EXPRESSION_COST, MAX_POLICY_COST, MAX_CONDITIONS_COST = 1_000_000, 10_000_000, 2_500_000


def _struct(path: str, **fields: CelType) -> CelType:
    return CelType(
        "object", fields={name: ObjectField(name, kind) for name, kind in fields.items()}, path=path
    )


_KIND = _struct("kubernetes.GroupVersionKind", group=STRING, version=STRING, kind=STRING)
_RESOURCE = _struct(
    "kubernetes.GroupVersionResource", group=STRING, version=STRING, resource=STRING
)
_USER = _struct(
    "kubernetes.UserInfo",
    username=STRING,
    uid=STRING,
    groups=list_of(STRING),
    extra=map_of(STRING, list_of(STRING)),
)
REQUEST = _struct(
    "kubernetes.AdmissionRequest",
    kind=_KIND,
    resource=_RESOURCE,
    subResource=STRING,
    requestKind=_KIND,
    requestResource=_RESOURCE,
    requestSubResource=STRING,
    name=STRING,
    namespace=STRING,
    operation=STRING,
    userInfo=_USER,
    dryRun=BOOL,
    options=DYN,
)
CONDITION_VARIABLES: Mapping[str, CelType] = {"object": DYN, "oldObject": DYN, "request": REQUEST}


@dataclass(frozen=True, slots=True)
class MatchCondition:
    """A named condition; `program` is the reason if the expression cannot be compiled."""

    name: str
    program: CompiledExpression | str


@lru_cache(maxsize=2048)
def compile_condition(expression: str) -> CompiledExpression | str:
    """Compile the expression of a match condition; return the reason if it is invalid."""
    return compile_checked(expression, CONDITION_VARIABLES, BOOL)


def compile_checked(
    expression: str, variables: Mapping[str, CelType], *wanted: CelType
) -> CompiledExpression | str:
    """Compile an expression that must have one of some types; return the reason if invalid."""
    try:
        program = compile_expression(expression, variables)
    except BadExpression as error:
        return f"compilation failed: {error.describe(expression)}"
    if program.result_type not in (*wanted, DYN):
        return f"must evaluate to {' or '.join(map(str, wanted))}"
    return program


def parse_conditions(given: Sequence[Object] | None) -> tuple[MatchCondition, ...]:
    """Return the match conditions of a webhook or policy."""
    return tuple(
        MatchCondition(one["name"], compile_condition(one["expression"])) for one in given or ()
    )


def evaluate_conditions(
    conditions: Sequence[MatchCondition], values: Mapping[str, Any]
) -> bool | str:
    """Return whether all conditions hold, or the error of one that cannot be evaluated.

    A condition that is false decides, even if another one has an error.
    """
    budget, error = CostBudget(MAX_CONDITIONS_COST), ""
    for condition in conditions:
        outcome = evaluate(condition.program, values, budget)
        if isinstance(outcome, Failed):
            error = error or f"expression '{condition.name}' resulted in error: {outcome.reason}"
        elif outcome is not True:
            return False
    return error or True


@dataclass(frozen=True, slots=True)
class Failed:
    """An evaluation without a result, and the reason."""

    reason: str


def evaluate(
    program: CompiledExpression | str, values: Mapping[str, Any], budget: CostBudget
) -> Any:
    """Return the value of an expression, or Failed; spends from the budget."""
    if isinstance(program, str):
        return Failed(program)
    own = CostBudget(min(budget.left, MAX_EXPRESSION_COST))
    allowed = own.left
    try:
        return program.evaluate(values, own)
    except (EvaluationError, CostLimitExceeded) as error:
        return Failed(str(error))
    finally:
        budget.left -= allowed - max(own.left, 0)
