"""Validation rules of custom resources (`x-kubernetes-validations`).

A rule belongs to a schema and validates its values: `self` and, in transition rules, `oldSelf`.
Transition rules run only where there was a value before, unless they set `optionalOldSelf`.
Violations of other rules by unchanged values are ignored.

    compile_validator   compiles the rules of a schema, once per version of a kind
    RuleValidator       evaluates them for each written object, under a cost budget per rule and
                        per object
    check_rules         validates the rules themselves when a CustomResourceDefinition is written:
                        a rule must compile against the types of its schema, and must not use
                        `oldSelf` below a list whose items cannot be correlated
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from phalanx.api.cel.compiler import CompiledExpression, compile_expression
from phalanx.api.cel.declarations import BOOL, DYN, STRING, CelType, optional_of
from phalanx.api.cel.evaluator import CostBudget
from phalanx.api.cel.parser import BadExpression
from phalanx.api.cel.schema_types import (
    BadFieldPath,
    Converter,
    compile_converter,
    normalize_field_path,
    schema_type,
)
from phalanx.api.cel.values import (
    EMPTY_OPTIONAL,
    CostLimitExceeded,
    EvaluationError,
    OptionalValue,
    identity_key,
)
from phalanx.api.custom_resources.schema_validation import LIST_KEYS, LIST_TYPE, VALIDATIONS
from phalanx.api.errors import Cause, forbidden, invalid, required, unsupported
from phalanx.api.validation.checks import CREATED
from phalanx.api.wire import Object

#: The largest cost of one rule for one value, and of all rules of an object.
MAX_RULE_COST, MAX_OBJECT_COST = 500_000, 500_000
#: The cost of starting an evaluation: a rule may be evaluated for each of thousands of items.
_EVALUATION_COST = 5
_MAX_MESSAGE_LENGTH = 5 * 1024
_OUT_OF_BUDGET = (
    "validation failed due to running out of cost budget, no further validation rules will be run"
)


class CostBudgetExhausted(Exception):
    """The cost budget of an object is spent; the remaining rules are not evaluated."""


class EvaluationBudget:
    """The remaining cost budget of an object, and the causes found so far."""

    def __init__(self, steps: int = MAX_OBJECT_COST) -> None:
        self.left, self.causes = steps, list[Cause]()

    def run(self, program: CompiledExpression, values: Mapping[str, Any]) -> Any:
        """Evaluate an expression and spend its cost."""
        steps = CostBudget(min(MAX_RULE_COST, self.left))
        before = steps.left
        try:
            return program.evaluate(values, steps)
        finally:
            self.left -= before - steps.left + _EVALUATION_COST


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """A compiled rule: its expression, its message expression and its field path."""

    source: Object
    program: CompiledExpression
    message: CompiledExpression | None
    #: The field path of a violation, relative to the value.
    field: str

    @property
    def display_text(self) -> str:
        """The text that names the rule in an error."""
        return str(self.source.get("message", "") or self.source["rule"]).strip()

    @property
    def is_transition_rule(self) -> bool:
        """Whether the rule reads `oldSelf`."""
        return "oldSelf" in self.program.used_variables or bool(
            self.message and "oldSelf" in self.message.used_variables
        )


@dataclass(frozen=True, slots=True)
class UncompilableRule:
    """A rule that does not compile, with the reason; it was stored before rules were checked."""

    reason: str


def rule_variables(rule: Object, kind: CelType) -> dict[str, CelType]:
    """Return the variables of a rule for values of a type."""
    return {"self": kind, "oldSelf": optional_of(kind) if rule.get("optionalOldSelf") else kind}


def _compile_rule(
    rule: Object, kind: CelType | None, schema: Object
) -> CompiledRule | UncompilableRule:
    try:
        variables = rule_variables(rule, kind) if kind else {}
        program = compile_expression(rule["rule"], variables)
        message_text = rule.get("messageExpression", "").strip()
        message = compile_expression(message_text, variables) if message_text else None
        return CompiledRule(
            rule, program, message, normalize_field_path(rule.get("fieldPath", "").strip(), schema)
        )
    except BadExpression as fault:
        return UncompilableRule(f"compilation failed: {fault.describe(rule['rule'])}")
    except (BadFieldPath, KeyError) as fault:
        return UncompilableRule(str(fault))


# --------------------------------------------------------------------------------------------- tree


@dataclass(frozen=True, slots=True)
class RuleValidator:
    """The rules of a schema and of all schemas below it."""

    schema: Object
    rules: tuple[CompiledRule | UncompilableRule, ...]
    convert: Converter
    fields: Mapping[str, RuleValidator]
    values: RuleValidator | None
    items: RuleValidator | None

    def validate(self, value: Any, old: Any, path: str = "") -> Sequence[Cause]:
        """Return the causes of a value that matches its schema; `old` is the previous value."""
        budget = EvaluationBudget()
        is_unchanged = old is not CREATED and value == old
        with suppress(CostBudgetExhausted):
            self.validate_below(value, old, path, is_unchanged=is_unchanged, budget=budget)
        return budget.causes

    def validate_below(
        self, value: Any, old: Any, path: str, *, is_unchanged: bool, budget: EvaluationBudget
    ) -> None:
        """Evaluate all rules for a value; `is_unchanged`: it equals the previous value."""
        if value is None:
            return
        if self.rules:
            self._evaluate_rules(value, old, path, is_unchanged=is_unchanged, budget=budget)
        if isinstance(value, list) and self.items:
            self._validate_items(value, old, path, is_unchanged=is_unchanged, budget=budget)
        elif isinstance(value, dict):
            self._validate_fields(value, old, path, budget=budget)

    def _validate_fields(
        self, value: Object, old: Any, path: str, *, budget: EvaluationBudget
    ) -> None:
        old_fields = old if isinstance(old, dict) else {}
        for name in sorted(value):
            validator = self.fields.get(name, self.values)
            if validator is None:
                continue
            inner, old_inner = value[name], old_fields.get(name, CREATED)
            is_map_value = validator is self.values
            validator.validate_below(
                inner,
                old_inner,
                f"{path}[{name}]" if is_map_value else _join_path(path, f".{name}"),
                is_unchanged=old_inner is not CREATED and old_inner == inner,
                budget=budget,
            )

    def _validate_items(
        self, value: list[Any], old: Any, path: str, *, is_unchanged: bool, budget: EvaluationBudget
    ) -> None:
        """Validate items; only keyed lists correlate an item with its previous value."""
        assert self.items is not None
        keys = tuple(self.schema.get(LIST_KEYS, ()))
        is_map = self.schema.get(LIST_TYPE) == "map"
        old_items = old if isinstance(old, list) and is_map else []
        old_by_key = {identity_key(item, keys): item for item in old_items}
        for at, item in enumerate(value):
            old_item = CREATED
            if old_by_key:
                old_item = old_by_key.get(identity_key(item, keys), CREATED)
            self.items.validate_below(
                item,
                old_item,
                f"{path}[{at}]",
                is_unchanged=old_item == item if is_map else is_unchanged,
                budget=budget,
            )

    def _evaluate_rules(
        self, value: Any, old: Any, path: str, *, is_unchanged: bool, budget: EvaluationBudget
    ) -> None:
        old_self = None if old is CREATED or old is None else self.convert(old)
        type_name, self_value = self.schema.get("type", ""), self.convert(value)
        for rule in self.rules:
            if isinstance(rule, UncompilableRule):
                detail = f"rule compile error: {rule.reason}"
                budget.causes.append(invalid(path, type_name, detail))
                continue
            is_optional = rule.source.get("optionalOldSelf", False)
            if rule.is_transition_rule and old_self is None and not is_optional:
                continue
            values = {"self": self_value, "oldSelf": old_self}
            if is_optional:
                values["oldSelf"] = (
                    EMPTY_OPTIONAL if old_self is None else OptionalValue(True, old_self)
                )
            cause = _evaluate_rule(rule, values, path, shown=type_name, budget=budget)
            if cause and (rule.is_transition_rule or not is_unchanged):
                budget.causes.append(cause)


def compile_validator(
    schema: Object, *, root: bool = False, reached: Object | None = None
) -> RuleValidator | None:
    """Compile the rules of a schema and of the schemas below it; None if there are none.

    With `reached`, a part of the schema, only the rules in it; they may name all fields.
    """
    part = schema if reached is None else reached

    def compile_below(key: str) -> RuleValidator | None:
        below = part.get(key)
        return compile_validator(schema[key], reached=below) if isinstance(below, dict) else None

    fields = {
        name: made
        for name, one in part.get("properties", {}).items()
        if (made := compile_validator(schema["properties"][name], reached=one))
    }
    values, items = compile_below("additionalProperties"), compile_below("items")
    declared_rules = part.get(VALIDATIONS, ())
    if not (declared_rules or fields or values or items):
        return None
    kind = schema_type(schema, root=root) if declared_rules else None
    rules = tuple(_compile_rule(one, kind, schema) for one in declared_rules)
    return RuleValidator(
        schema, rules, compile_converter(schema) or _identity, fields, values, items
    )


def _evaluate_rule(
    rule: CompiledRule,
    values: Mapping[str, Any],
    path: str,
    *,
    shown: str,
    budget: EvaluationBudget,
) -> Cause | None:
    """Return the cause of a violated rule, else None.

    Raises CostBudgetExhausted after it has recorded the cause in the budget.
    """
    if budget.left <= 0:
        budget.causes.append(invalid(path, shown, _OUT_OF_BUDGET))
        raise CostBudgetExhausted
    allowed = min(MAX_RULE_COST, budget.left)
    try:
        result = budget.run(rule.program, values)
    except CostLimitExceeded as error:
        budget.causes.append(invalid(path, shown, _cost_limit_message(rule, error, allowed)))
        raise CostBudgetExhausted from None
    except EvaluationError as fault:
        return invalid(path, shown, _evaluation_error_message(rule, str(fault)))
    if result is True:
        return None
    return _violation_cause(
        rule, _join_path(path, rule.field), shown, detail=_violation_message(rule, values, budget)
    )


def _cost_limit_message(rule: CompiledRule, error: CostLimitExceeded, allowed: int) -> str:
    if allowed < MAX_RULE_COST:
        return _OUT_OF_BUDGET
    return (
        f"'{error}': no further validation rules will be run due to call cost exceeds limit for"
        f" rule: {rule.display_text}"
    )


def _evaluation_error_message(rule: CompiledRule, fault: str) -> str:
    if not fault.startswith("no such overload"):
        return f"{fault} evaluating rule: {rule.display_text}"
    return (
        f"'{fault}': call arguments did not match a supported operator, function or macro"
        f" signature for rule: {rule.display_text}"
    )


def _violation_message(
    rule: CompiledRule, values: Mapping[str, Any], budget: EvaluationBudget
) -> str:
    """Return the message of a violation: of the message expression, if it yields a usable one."""
    default = str(rule.source.get("message", "")).strip() or f"failed rule: {rule.display_text}"
    if rule.message is None:
        return default
    try:
        result = budget.run(rule.message, values)
    except (EvaluationError, CostLimitExceeded):
        return default
    text = result.strip() if isinstance(result, str) else ""
    fits = text and "\n" not in text and len(text.encode()) <= _MAX_MESSAGE_LENGTH
    return text if fits else default


def _violation_cause(rule: CompiledRule, path: str, shown: str, *, detail: str) -> Cause:
    match rule.source.get("reason"):
        case "FieldValueForbidden":
            return forbidden(path, detail)
        case "FieldValueRequired":
            return required(path, detail)
        case "FieldValueDuplicate":
            return Cause(path, "FieldValueDuplicate", f'Duplicate value: "{shown}"')
    return invalid(path, shown, detail)


def _identity(value: Any) -> Any:
    return value


def _join_path(path: str, field: str) -> str:
    return path + field if path else field.removeprefix(".")


_REASONS = (
    "FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired",
)  # fmt: skip
_MAX_STATIC_MESSAGE_LENGTH = 2048


def check_rules(schema: Object, path: str) -> Sequence[Cause]:
    """Return the causes of the rules of a schema that is valid otherwise."""
    found = list(_walk_rules(schema, path, "", root=True))
    return [cause for causes in found for cause in causes]


def _walk_rules(
    schema: Object, path: str, uncorrelatable: str, *, root: bool = False
) -> Iterator[Sequence[Cause]]:
    """Yield the causes of each rule of a schema and of the schemas below it.

    `uncorrelatable` is the path of the enclosing list whose items cannot be correlated, if any.
    """
    if declared_rules := schema.get(VALIDATIONS):
        kind = schema_type(schema, root=root)
        for at, rule in enumerate(declared_rules):
            place = f"{path}.{VALIDATIONS}[{at}]"
            yield list(_check_form(rule, schema, place)) or _check_expressions(
                rule, kind, place, uncorrelatable=uncorrelatable
            )
    for name, one in schema.get("properties", {}).items():
        yield from _walk_rules(one, f"{path}.properties[{name}]", uncorrelatable)
    more, items = schema.get("additionalProperties"), schema.get("items")
    if isinstance(more, dict):
        yield from _walk_rules(more, f"{path}.additionalProperties", uncorrelatable)
    if isinstance(items, dict):
        is_map = schema.get(LIST_TYPE) == "map"
        yield from _walk_rules(
            items, f"{path}.items", uncorrelatable if is_map else uncorrelatable or path
        )


# --------------------------------------------------------------------------------------------- form


def _check_form(rule: Object, schema: Object, path: str) -> Iterator[Cause]:
    text, message = rule.get("rule", "").strip(), rule.get("message", "")
    stripped_message = message.strip()
    if not text:
        yield required(f"{path}.rule", "rule is not specified")
    elif message and not stripped_message:
        yield invalid(f"{path}.message", message, "message must be non-empty if specified")
    elif len(message) > _MAX_STATIC_MESSAGE_LENGTH:
        detail = f"message must have a maximum length of {_MAX_STATIC_MESSAGE_LENGTH} characters"
        yield invalid(f"{path}.message", f"{message[:10]}...", detail)
    elif _has_line_breaks(stripped_message):
        yield invalid(f"{path}.message", message, "message must not contain line breaks")
    elif _has_line_breaks(text) and not stripped_message:
        detail = "message must be specified if rule contains line breaks"
        yield required(f"{path}.message", detail)
    expression = rule.get("messageExpression", "")
    if expression and not expression.strip():
        detail = "messageExpression must be non-empty if specified"
        yield required(f"{path}.messageExpression", detail)
    reason = rule.get("reason")
    if reason is not None and reason not in _REASONS:
        yield unsupported(f"{path}.reason", reason, _REASONS)
    yield from _check_field_path(rule.get("fieldPath", ""), schema, f"{path}.fieldPath")


def _check_field_path(field_path: str, schema: Object, path: str) -> Iterator[Cause]:
    if field_path and not field_path.strip():
        yield invalid(path, field_path, "fieldPath must be non-empty if specified")
    elif _has_line_breaks(field_path):
        yield invalid(path, field_path, "fieldPath must not contain line breaks")
    elif field_path:
        try:
            normalize_field_path(field_path, schema)
        except BadFieldPath as fault:
            yield invalid(path, field_path, str(fault))


def _has_line_breaks(text: str) -> bool:
    return "\n" in text or "\r" in text


# ------------------------------------------------------------------------------------------ meaning


def _check_expressions(
    rule: Object, kind: CelType | None, path: str, *, uncorrelatable: str
) -> Sequence[Cause]:
    variables = rule_variables(rule, kind) if kind else {}
    found: list[Cause] = []
    program = _compile_or_report(
        rule, "rule", variables, path=f"{path}.rule", what="compilation failed", found=found
    )
    if program and program.result_type not in (BOOL, DYN):
        found.append(_rule_error(f"{path}.rule", rule, "cel expression must evaluate to a bool"))
    place = f"{path}.messageExpression"
    message = None
    if rule.get("messageExpression", "").strip():
        what = "messageExpression compilation failed"
        message = _compile_or_report(
            rule, "messageExpression", variables, path=place, what=what, found=found
        )
    if message and message.result_type not in (STRING, DYN):
        found.append(_rule_error(place, rule, "messageExpression must evaluate to a string"))
    return [
        *found,
        *_check_old_self(rule, program, message, path=path, uncorrelatable=uncorrelatable),
    ]


def _check_old_self(
    rule: Object,
    program: CompiledExpression | None,
    message: CompiledExpression | None,
    *,
    path: str,
    uncorrelatable: str,
) -> Iterator[Cause]:
    uses = [one for one in (program, message) if one and "oldSelf" in one.used_variables]
    if uses and uncorrelatable:
        detail = "oldSelf cannot be used on the uncorrelatable portion of the schema within"
        yield invalid(f"{path}.rule", rule["rule"], f"{detail} {uncorrelatable}")
    if program and not uses and "optionalOldSelf" in rule:
        detail = "may not be set if oldSelf is not used in rule"
        yield invalid(f"{path}.optionalOldSelf", rule["optionalOldSelf"], detail)


def _compile_or_report(
    rule: Object, key: str, known: dict[str, CelType], *, path: str, what: str, found: list[Cause]
) -> CompiledExpression | None:
    text = rule[key].strip() if key == "messageExpression" else rule[key]
    try:
        return compile_expression(text, known)
    except BadExpression as fault:
        found.append(_rule_error(path, rule, f"{what}: {fault.describe(text)}"))
        return None


def _rule_error(path: str, rule: Object, detail: str) -> Cause:
    """Return a cause that quotes the whole rule, as Kubernetes does."""
    shown = {
        "Rule": rule.get("rule", ""), "Message": rule.get("message", ""),
        "MessageExpression": rule.get("messageExpression", ""), "Reason": rule.get("reason"),
        "FieldPath": rule.get("fieldPath", ""), "OptionalOldSelf": rule.get("optionalOldSelf"),
    }  # fmt: skip
    return invalid(path, shown, detail)
