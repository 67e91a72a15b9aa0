"""Expressions of admission webhooks and policies: their variables and match conditions.

    object, oldObject     the object as the client sent it (after defaults), and as it is stored
    request               the attributes of the request: kind, resource, name, userInfo, operation …
    authorizer            checks what the user may do
    params, namespaceObject, variables    in policies

Without a schema objects are `dyn`: fields are checked when the expression runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from phalanx.api.cel.authorizer import AUTHORIZER
from phalanx.api.cel.compiler import CompiledExpression, compile_expression
from phalanx.api.cel.declarations import (
    BOOL,
    DYN,
    NULL,
    STRING,
    STRUCT_ROOT,
    CelType,
    ObjectField,
    list_of,
    map_of,
)
from phalanx.api.cel.evaluator import CostBudget, LazyVariables
from phalanx.api.cel.parser import BadExpression
from phalanx.api.cel.values import CostLimitExceeded, EvaluationError
from phalanx.api.wire import Object

#: Steps that one expression may take, all expressions of a policy, and all match conditions. A
#: million steps take a fifth of a second, in which the server does nothing else.
MAX_EXPRESSION_COST, MAX_POLICY_COST, MAX_CONDITIONS_COST = 500_000, 800_000, 200_000


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
CONDITION_VARIABLES: Mapping[str, CelType] = {
    "object": DYN,
    "oldObject": DYN,
    "request": REQUEST,
    "authorizer": AUTHORIZER,
}
#: The variables of the expressions of a policy, except those that it defines.
POLICY_VARIABLES: Mapping[str, CelType] = {
    **CONDITION_VARIABLES,
    "params": DYN,
    "namespaceObject": DYN,
}


@dataclass(frozen=True, slots=True)
class MatchCondition:
    """A named condition; `program` is the reason if the expression cannot be compiled."""

    name: str
    program: CompiledExpression | str


@lru_cache(maxsize=2048)
def compile_condition(expression: str) -> CompiledExpression | str:
    """Compile the expression of a match condition; return the reason if it is invalid."""
    return compile_checked(expression, POLICY_VARIABLES, BOOL)


def compile_checked(
    expression: str, variables: Mapping[str, CelType], *wanted: CelType
) -> CompiledExpression | str:
    """Compile an expression, of one of the wanted types if any; return the reason if invalid."""
    try:
        program = compile_expression(expression, variables)
    except BadExpression as error:
        return f"compilation failed: {error.describe(expression)}"
    if wanted and program.result_type not in (*wanted, DYN):
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


# ---- policies ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PolicyValidation:
    """A validation of a policy, with what its violation shows."""

    text: str
    program: CompiledExpression | str
    message: CompiledExpression | str | None
    default_message: str
    reason: str


@dataclass(frozen=True, slots=True)
class PolicyAnnotation:
    """An audit annotation of a policy."""

    key: str
    text: str
    program: CompiledExpression | str


@dataclass(frozen=True, slots=True)
class PolicyMutation:
    """A mutation of a policy: it evaluates to an object to merge, or to a list of operations."""

    is_patch: bool
    text: str
    program: CompiledExpression | str


@dataclass(frozen=True, slots=True)
class CompiledPolicy:
    """The expressions of a policy; one that cannot be compiled is the reason, as text."""

    conditions: tuple[MatchCondition, ...]
    variables: Mapping[str, CompiledExpression | str]
    validations: tuple[PolicyValidation, ...]
    annotations: tuple[PolicyAnnotation, ...]
    mutations: tuple[PolicyMutation, ...] = ()


def compile_policy(spec: Object) -> CompiledPolicy:
    """Compile the expressions of a policy. A variable sees those before it."""
    programs: dict[str, CompiledExpression | str] = {}
    types: dict[str, CelType] = {}
    for one in spec.get("variables") or ():
        program = compile_checked(one["expression"], with_variables(types))
        programs[one["name"]] = program
        types[one["name"]] = DYN if isinstance(program, str) else program.result_type
    known = with_variables(types)
    validations = tuple(
        PolicyValidation(
            text := one["expression"].strip(),
            compile_checked(one["expression"], known, BOOL),
            compile_checked(one["messageExpression"], known, STRING)
            if one.get("messageExpression", "").strip()
            else None,
            one.get("message", "").strip() or f"failed expression: {text}",
            one.get("reason", ""),
        )
        for one in spec.get("validations") or ()
    )
    annotations = tuple(
        PolicyAnnotation(
            one["key"],
            one["valueExpression"].strip(),
            compile_checked(one["valueExpression"], known, STRING, NULL),
        )
        for one in spec.get("auditAnnotations") or ()
    )
    mutations = tuple(_compile_mutation(one, known) for one in spec.get("mutations") or ())
    conditions = parse_conditions(spec.get("matchConditions"))
    return CompiledPolicy(conditions, programs, validations, annotations, mutations)


def _compile_mutation(mutation: Object, known: Mapping[str, CelType]) -> PolicyMutation:
    is_patch = mutation["patchType"] == "JSONPatch"
    text = mutation["jsonPatch" if is_patch else "applyConfiguration"]["expression"].strip()
    roots = {"Object": STRUCT_ROOT, **({"JSONPatch": STRUCT_ROOT} if is_patch else {})}
    # An empty list has items of any type.
    wanted = (list_of(_struct("JSONPatch")), list_of(DYN)) if is_patch else (_struct("Object"),)
    return PolicyMutation(is_patch, text, compile_checked(text, {**known, **roots}, *wanted))


def with_variables(
    types: Mapping[str, CelType], base: Mapping[str, CelType] = POLICY_VARIABLES
) -> Mapping[str, CelType]:
    """Return the variables of expressions, with those that a policy defines itself."""
    return {**base, "variables": _struct("kubernetes.variables", **types)}


class PolicyEvaluation:
    """Evaluates the expressions of a policy for one request, under one cost limit."""

    def __init__(self, policy: CompiledPolicy, values: Mapping[str, Any]) -> None:
        self._policy, self._budget = policy, CostBudget(MAX_POLICY_COST)
        self._values = {**values, "variables": LazyVariables(self._evaluate_variable)}

    def evaluate(self, program: CompiledExpression | str) -> Any:
        """Return the value of an expression, or Failed."""
        return evaluate(program, self._values, self._budget)

    def _evaluate_variable(self, name: str, budget: CostBudget) -> Any:
        program = self._policy.variables[name]
        if isinstance(program, str):
            raise EvaluationError(program)
        try:
            return program.evaluate(self._values, budget)
        except EvaluationError as error:
            detail = f'composited variable "{name}" fails to evaluate: {error}'
            raise EvaluationError(detail) from error


def find_expression_faults(spec: Object) -> Iterator[tuple[str, str, str]]:
    """Yield the field, the text and the reason of each expression of a policy that is invalid."""
    policy = compile_policy(spec)
    rows: list[tuple[str, str, object]] = []
    for at, condition in enumerate(policy.conditions):
        text = spec["matchConditions"][at]["expression"]
        rows.append((f"matchConditions[{at}].expression", text, condition.program))
    for at, one in enumerate(spec.get("variables") or ()):
        program = policy.variables[one["name"]]
        rows.append((f"variables[{at}].expression", one["expression"], program))
    for at, rule in enumerate(policy.validations):
        given = spec["validations"][at]
        rows.append((f"validations[{at}].expression", given["expression"], rule.program))
        if rule.message:
            field = f"validations[{at}].messageExpression"
            rows.append((field, given["messageExpression"], rule.message))
    for at, annotation in enumerate(policy.annotations):
        field = f"auditAnnotations[{at}].valueExpression"
        rows.append((field, annotation.text, annotation.program))
    for at, mutation in enumerate(policy.mutations):
        part = "jsonPatch" if mutation.is_patch else "applyConfiguration"
        rows.append((f"mutations[{at}].{part}.expression", mutation.text, mutation.program))
    for field, text, found in rows:
        if isinstance(found, str):
            yield field, text, found
