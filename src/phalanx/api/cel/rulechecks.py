"""Rules for rules: what may stand in `x-kubernetes-validations` of a schema.

Found when a definition is written, part of the rules of schemas (`schemarules.py`). A rule must
compile against the types of its schema, and must not ask for what was before where nobody can tell
which item that would be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phalanx.api.causes import invalid, required, unsupported
from phalanx.api.cel.checker import Program, compiled
from phalanx.api.cel.fieldpaths import BadFieldPath, normal
from phalanx.api.cel.nodes import BadExpression
from phalanx.api.cel.rules import variables
from phalanx.api.cel.schemas import kind_of
from phalanx.api.cel.types import BOOL, DYN, STRING, Kind
from phalanx.api.custom.checks import LIST_TYPE, RULES
from phalanx.api.errors import Cause
from phalanx.api.wire import Object

_REASONS = (
    "FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired",
)  # fmt: skip
_LONGEST_MESSAGE = 2048


def check_rules(schema: Object, path: str) -> Sequence[Cause]:
    """What is wrong with the rules of a schema that is sound otherwise."""
    found = list(_everywhere(schema, path, "", root=True))
    return [cause for causes in found for cause in causes]


def _everywhere(
    schema: Object, path: str, blurred: str, *, root: bool = False
) -> Iterator[Sequence[Cause]]:
    """The rules of a schema and of those below it. `blurred`: the list in which it stands, if that
    does not tell its items apart."""
    if told := schema.get(RULES):
        kind = kind_of(schema, root=root)
        for at, rule in enumerate(told):
            place = f"{path}.{RULES}[{at}]"
            yield list(_form(rule, schema, place)) or _meaning(rule, kind, place, blurred)
    for name, one in schema.get("properties", {}).items():
        yield from _everywhere(one, f"{path}.properties[{name}]", blurred)
    more, items = schema.get("additionalProperties"), schema.get("items")
    if isinstance(more, dict):
        yield from _everywhere(more, f"{path}.additionalProperties", blurred)
    if isinstance(items, dict):
        is_map = schema.get(LIST_TYPE) == "map"
        yield from _everywhere(items, f"{path}.items", blurred if is_map else blurred or path)


# --------------------------------------------------------------------------------------------- form


def _form(rule: Object, schema: Object, path: str) -> Iterator[Cause]:
    text, message = rule.get("rule", "").strip(), rule.get("message", "")
    said = message.strip()
    if not text:
        yield required(f"{path}.rule", "rule is not specified")
    elif message and not said:
        yield invalid(f"{path}.message", message, "message must be non-empty if specified")
    elif len(message) > _LONGEST_MESSAGE:
        detail = f"message must have a maximum length of {_LONGEST_MESSAGE} characters"
        yield invalid(f"{path}.message", f"{message[:10]}...", detail)
    elif _has_lines(said):
        yield invalid(f"{path}.message", message, "message must not contain line breaks")
    elif _has_lines(text) and not said:
        detail = "message must be specified if rule contains line breaks"
        yield required(f"{path}.message", detail)
    expression = rule.get("messageExpression", "")
    if expression and not expression.strip():
        detail = "messageExpression must be non-empty if specified"
        yield required(f"{path}.messageExpression", detail)
    reason = rule.get("reason")
    if reason is not None and reason not in _REASONS:
        yield unsupported(f"{path}.reason", reason, _REASONS)
    yield from _field_path(rule.get("fieldPath", ""), schema, f"{path}.fieldPath")


def _field_path(told: str, schema: Object, path: str) -> Iterator[Cause]:
    if told and not told.strip():
        yield invalid(path, told, "fieldPath must be non-empty if specified")
    elif _has_lines(told):
        yield invalid(path, told, "fieldPath must not contain line breaks")
    elif told:
        try:
            normal(told, schema)
        except BadFieldPath as fault:
            yield invalid(path, told, str(fault))


def _has_lines(text: str) -> bool:
    return "\n" in text or "\r" in text


# ------------------------------------------------------------------------------------------ meaning


def _meaning(rule: Object, kind: Kind | None, path: str, blurred: str) -> Sequence[Cause]:
    known = variables(rule, kind) if kind else {}
    found: list[Cause] = []
    program = _compiled(rule, "rule", known, f"{path}.rule", "compilation failed", found)
    if program and program.kind not in (BOOL, DYN):
        found.append(_refused(f"{path}.rule", rule, "cel expression must evaluate to a bool"))
    place = f"{path}.messageExpression"
    said = None
    if rule.get("messageExpression", "").strip():
        what = "messageExpression compilation failed"
        said = _compiled(rule, "messageExpression", known, place, what, found)
    if said and said.kind not in (STRING, DYN):
        found.append(_refused(place, rule, "messageExpression must evaluate to a string"))
    return [*found, *_change(rule, program, said, path, blurred)]


def _change(
    rule: Object, program: Program | None, said: Program | None, path: str, blurred: str
) -> Iterator[Cause]:
    uses = [one for one in (program, said) if one and "oldSelf" in one.uses]
    if uses and blurred:
        detail = "oldSelf cannot be used on the uncorrelatable portion of the schema within"
        yield invalid(f"{path}.rule", rule["rule"], f"{detail} {blurred}")
    if program and not uses and "optionalOldSelf" in rule:
        detail = "may not be set if oldSelf is not used in rule"
        yield invalid(f"{path}.optionalOldSelf", rule["optionalOldSelf"], detail)


def _compiled(
    rule: Object, key: str, known: dict[str, Kind], path: str, what: str, found: list[Cause]
) -> Program | None:
    text = rule[key].strip() if key == "messageExpression" else rule[key]
    try:
        return compiled(text, known)
    except BadExpression as fault:
        found.append(_refused(path, rule, f"{what}: {fault.shown(text)}"))
        return None


def _refused(path: str, rule: Object, detail: str) -> Cause:
    """Told with the whole rule, as clients know it."""
    shown = {
        "Rule": rule.get("rule", ""), "Message": rule.get("message", ""),
        "MessageExpression": rule.get("messageExpression", ""), "Reason": rule.get("reason"),
        "FieldPath": rule.get("fieldPath", ""), "OptionalOldSelf": rule.get("optionalOldSelf"),
    }  # fmt: skip
    return invalid(path, shown, detail)
