"""Rules of custom resources: compiled with their schema, judged with every object.

A rule stands in a schema and is about its values: `self`, and in rules about changes `oldSelf`,
which are judged only where there was a value before. What has not changed is not judged again.
Compiled once per version of a kind (`structural.py`); what is wrong with a rule itself is found
when its definition is written (`rulechecks.py`).

    RULE_STEPS   a rule may take so many steps on one value
    STEPS        all rules of an object together
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from phalanx.api.causes import forbidden, invalid, required
from phalanx.api.cel.checker import Program, compiled
from phalanx.api.cel.fieldpaths import BadFieldPath, normal
from phalanx.api.cel.nodes import BadExpression
from phalanx.api.cel.program import Steps
from phalanx.api.cel.schemas import Convert, converter, kind_of
from phalanx.api.cel.types import Kind, optional_of
from phalanx.api.cel.values import NONE, Exhausted, Fault, Optional, distinct
from phalanx.api.custom.checks import LIST_KEYS, LIST_TYPE, RULES
from phalanx.api.errors import Cause
from phalanx.api.rules.checks import CREATED
from phalanx.api.wire import Object

RULE_STEPS, STEPS = 500_000, 1_000_000
_LONGEST_MESSAGE = 5 * 1024
_OUT_OF_BUDGET = (
    "validation failed due to running out of cost budget, no further validation rules will be run"
)


class Spent(Exception):
    """The steps of an object are used up: nothing more is judged."""


class Budget:
    """The steps that are left, and what was found so far."""

    def __init__(self, steps: int = STEPS) -> None:
        self.left, self.found = steps, list[Cause]()

    def run(self, program: Program, values: Mapping[str, Any]) -> Any:
        """The value of an expression, whose steps are taken from those that are left."""
        steps = Steps(min(RULE_STEPS, self.left))
        before = steps.left
        try:
            return program.run(values, steps)
        finally:
            self.left -= before - steps.left


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, ready to be judged: the expression, that of its message, and where it points."""

    told: Object
    program: Program
    message: Program | None
    #: Where a breach is told of, below the value.
    field: str

    @property
    def text(self) -> str:
        """What it is called when something goes wrong."""
        return str(self.told.get("message", "") or self.told["rule"]).strip()

    @property
    def is_of_change(self) -> bool:
        """Whether it asks what was there before."""
        return "oldSelf" in self.program.uses or bool(
            self.message and "oldSelf" in self.message.uses
        )


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that cannot be judged, and why: it was kept before rules were looked at."""

    why: str


def variables(told: Object, kind: Kind) -> dict[str, Kind]:
    """What a rule of a type may ask for."""
    return {"self": kind, "oldSelf": optional_of(kind) if told.get("optionalOldSelf") else kind}


def _rule(told: Object, kind: Kind | None, schema: Object) -> Rule | Broken:
    try:
        known = variables(told, kind) if kind else {}
        program = compiled(told["rule"], known)
        message = told.get("messageExpression", "").strip()
        said = compiled(message, known) if message else None
        return Rule(told, program, said, normal(told.get("fieldPath", "").strip(), schema))
    except BadExpression as fault:
        return Broken(f"compilation failed: {fault.shown(told['rule'])}")
    except (BadFieldPath, KeyError) as fault:
        return Broken(str(fault))


# --------------------------------------------------------------------------------------------- tree


@dataclass(frozen=True, slots=True)
class Judge:
    """The rules of a schema and of all that stands below it."""

    schema: Object
    rules: tuple[Rule | Broken, ...]
    convert: Convert
    fields: Mapping[str, Judge]
    values: Judge | None
    items: Judge | None

    def causes(self, value: Any, old: Any, path: str = "") -> Sequence[Cause]:
        """What is wrong with a value that is as its schema says; `old`: what was there."""
        budget = Budget()
        with suppress(Spent):
            self.judge(value, old, path, old is not CREATED and value == old, budget)
        return budget.found

    def judge(self, value: Any, old: Any, path: str, same: bool, budget: Budget) -> None:
        """Hold a value against all rules. `same`: it is known to be what it was."""
        if value is None:
            return
        if self.rules:
            self._rules(value, old, path, same, budget)
        if isinstance(value, list) and self.items:
            self._items(self.items, value, old, path, same, budget)
        elif isinstance(value, dict):
            self._fields(value, old, path, budget)

    def _fields(self, value: Object, old: Any, path: str, budget: Budget) -> None:
        before = old if isinstance(old, dict) else {}
        for name in sorted(value):
            judge = self.fields.get(name, self.values)
            if judge is not None:
                inner, then = value[name], before.get(name, CREATED)
                place = f"{path}[{name}]" if judge is self.values else _below(path, f".{name}")
                judge.judge(inner, then, place, then is not CREATED and then == inner, budget)

    def _items(
        self, judge: Judge, value: list[Any], old: Any, path: str, same: bool, budget: Budget
    ) -> None:
        """Items are what they were only where keys tell which is which."""
        keys = tuple(self.schema.get(LIST_KEYS, ()))
        is_map = self.schema.get(LIST_TYPE) == "map"
        known = old if isinstance(old, list) and is_map else []
        before = {distinct(item, keys): item for item in known}
        for at, item in enumerate(value):
            then = before.get(distinct(item, keys), CREATED) if before else CREATED
            judge.judge(item, then, f"{path}[{at}]", then == item if is_map else same, budget)

    def _rules(self, value: Any, old: Any, path: str, same: bool, budget: Budget) -> None:
        before = None if old is CREATED or old is None else self.convert(old)
        shown, bound = self.schema.get("type", ""), self.convert(value)
        for rule in self.rules:
            if isinstance(rule, Broken):
                budget.found.append(invalid(path, shown, f"rule compile error: {rule.why}"))
                continue
            maybe = rule.told.get("optionalOldSelf", False)
            if rule.is_of_change and before is None and not maybe:
                continue
            was = (NONE if before is None else Optional(True, before)) if maybe else before
            values = {"self": bound, "oldSelf": was}
            cause = _breach(rule, values, path, shown, budget)
            if cause and (rule.is_of_change or not same):
                budget.found.append(cause)


def judge_of(schema: Object, *, root: bool = False) -> Judge | None:
    """The rules of a schema and of what is below it; None if there are none."""
    told, more, items = schema.get(RULES, ()), schema.get("additionalProperties"), None
    inner = {n: made for n, one in schema.get("properties", {}).items() if (made := judge_of(one))}
    values = judge_of(more) if isinstance(more, dict) else None
    if isinstance(schema.get("items"), dict):
        items = judge_of(schema["items"])
    if not (told or inner or values or items):
        return None
    kind = kind_of(schema, root=root) if told else None
    rules = tuple(_rule(one, kind, schema) for one in told)
    return Judge(schema, rules, converter(schema) or _same, inner, values, items)


def _breach(
    rule: Rule, values: Mapping[str, Any], path: str, shown: str, budget: Budget
) -> Cause | None:
    """What is wrong with a value by one rule."""
    if budget.left <= 0:
        budget.found.append(invalid(path, shown, _OUT_OF_BUDGET))
        raise Spent
    allowed = min(RULE_STEPS, budget.left)
    try:
        answer = budget.run(rule.program, values)
    except Exhausted as error:
        budget.found.append(invalid(path, shown, _exhausted(rule, error, allowed)))
        raise Spent from None
    except Fault as fault:
        return invalid(path, shown, _unanswered(rule, str(fault)))
    if answer is True:
        return None
    return _cause(rule, _below(path, rule.field), shown, _detail(rule, values, budget))


def _exhausted(rule: Rule, error: Exhausted, allowed: int) -> str:
    if allowed < RULE_STEPS:
        return _OUT_OF_BUDGET
    return (
        f"'{error}': no further validation rules will be run due to call cost exceeds limit for"
        f" rule: {rule.text}"
    )


def _unanswered(rule: Rule, fault: str) -> str:
    if not fault.startswith("no such overload"):
        return f"{fault} evaluating rule: {rule.text}"
    return (
        f"'{fault}': call arguments did not match a supported operator, function or macro"
        f" signature for rule: {rule.text}"
    )


def _detail(rule: Rule, values: Mapping[str, Any], budget: Budget) -> str:
    """What a breach is called: by an expression if there is one, and it says something."""
    usual = str(rule.told.get("message", "")).strip() or f"failed rule: {rule.text}"
    if rule.message is None:
        return usual
    try:
        said = budget.run(rule.message, values)
    except (Fault, Exhausted):
        return usual
    text = said.strip() if isinstance(said, str) else ""
    fits = text and "\n" not in text and len(text.encode()) <= _LONGEST_MESSAGE
    return text if fits else usual


def _cause(rule: Rule, path: str, shown: str, detail: str) -> Cause:
    match rule.told.get("reason"):
        case "FieldValueForbidden":
            return forbidden(path, detail)
        case "FieldValueRequired":
            return required(path, detail)
        case "FieldValueDuplicate":
            return Cause(path, "FieldValueDuplicate", f'Duplicate value: "{shown}"')
    return invalid(path, shown, detail)


def _same(value: Any) -> Any:
    return value


def _below(path: str, field: str) -> str:
    return path + field if path else field.removeprefix(".")
