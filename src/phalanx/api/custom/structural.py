"""The model of a kind that users define: what its openAPIV3Schema says, compiled once.

    conform   drops what the schema does not know, and nulls where it knows of none
    fits      whether objects and lists stand where the schema has them
    fill      adds the defaults that it tells
    begin     forgets a status that is not the maker's to say
    faults    checks values (`checks.py`), then rules in CEL (`cel.rules`)

Metadata is judged as that of every kind. The schema is structural (`rules/schema.py`): its fields
are told outside of combinations, so that one walk along them suffices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phalanx.api.causes import invalid
from phalanx.api.conform import Conformed
from phalanx.api.custom.checks import (
    EMBEDDED,
    INT_OR_STRING,
    LIST_KEYS,
    LIST_TYPE,
    RULES,
    compiled,
)
from phalanx.api.custom.walks import META, PRESERVE, filler, fitter, pruner
from phalanx.api.definitions import Node
from phalanx.api.errors import Cause
from phalanx.api.kinds import Kind
from phalanx.api.rules.checks import CREATED
from phalanx.api.rules.meta import check_metadata
from phalanx.api.rules.valuechecks import Check
from phalanx.api.schema import Schema
from phalanx.api.wire import Object

if TYPE_CHECKING:
    from phalanx.api.cel.rules import Judge

MAP_TYPE = "x-kubernetes-map-type"
#: After such faults a value is not what its rules expect.
_BLOCKING = frozenset((
    "FieldValueRequired", "FieldValueTooLong", "FieldValueTooMany", "FieldValueTypeInvalid",
))  # fmt: skip
_NOT_CHECKED = (
    "some validation rules were not checked because the object was invalid; correct the existing "
    "errors to complete validation"
)


class StructuralModel:
    """How objects of one version of a custom kind are judged."""

    def __init__(self, kind: Kind, schema: Object, *, has_status: bool) -> None:
        self._kind, self._has_status = kind, has_status
        self._fits = fitter(schema) or _accepts
        self._prune = pruner({**schema, EMBEDDED: True})
        self._fill = filler(schema) or _leave
        self._check = compiled(schema)
        self._rules = judge(schema, root=True)
        status = schema.get("properties", {}).get("status")
        self._check_status: Check = compiled(status) if status else _accept
        self._schema = Schema(node(schema))

    @property
    def schema(self) -> Schema:
        """The shape of an object: what field ownership goes by."""
        return self._schema

    def conform(self, obj: Object) -> Conformed:
        """Drop in place what does not belong; only metadata can be malformed."""
        return Conformed(tuple(path.removeprefix(".") for path in self._prune(obj)))

    def fits(self, obj: Object) -> bool:
        """Whether an object can be walked along its schema; one that cannot has faults."""
        return self._fits(obj)

    def fill(self, obj: Object) -> None:
        """Add in place the defaults that the schema tells."""
        self._fill(obj)

    def begin(self, obj: Object, now: str) -> None:
        """Forget a status that has its own path."""
        if self._has_status:
            obj.pop("status", None)

    def faults(self, new: Object, old: Object | None, part: str) -> Sequence[Cause]:
        """What is wrong with an object, or with its status."""
        about_meta = check_metadata(self._kind, new, old)
        head = {"apiVersion": self._kind.api_version, "kind": self._kind.name}
        whole, before = {**head, **new}, CREATED if old is None else {**head, **old}
        if part == "status":
            causes = self._status_faults(new, old or {})
        else:
            causes = self._check(whole, before, "")
        if self._rules is not None:
            causes = [*causes, *self._breaches(whole, before, causes)]
        return list(dict.fromkeys((*about_meta, *causes))) if about_meta or causes else ()

    def warnings(self, new: Object, old: Object | None) -> Sequence[str]:
        """Nothing besides."""
        return ()

    def _breaches(self, new: Object, old: Any, causes: Sequence[Cause]) -> Sequence[Cause]:
        """What is wrong by rules, if the object is such that rules can be asked."""
        if any(cause.reason in _BLOCKING for cause in causes):
            return [invalid("<nil>", None, _NOT_CHECKED)]
        return self._rules.causes(new, old) if self._rules else ()

    def _status_faults(self, new: Object, old: Object) -> Sequence[Cause]:
        if "status" not in new:
            return ()
        return self._check_status(new["status"], old.get("status", CREATED), "status")


def has_rules(schema: Object) -> bool:
    """Whether there are rules in CEL anywhere in a schema."""
    parts = (schema.get("items"), schema.get("additionalProperties"))
    inner = [*schema.get("properties", {}).values(), *(one for one in parts if one)]
    return bool(schema.get(RULES)) or any(has_rules(one) for one in inner if one is not True)


def judge(schema: Object, *, root: bool = False) -> Judge | None:
    """The rules in CEL of a schema. The language is loaded when somebody first uses it."""
    if not has_rules(schema):
        return None
    from phalanx.api.cel.rules import judge_of

    return judge_of(schema, root=root)


def _accept(value: Any, old: Any, path: str) -> Sequence[Cause]:
    return ()


def _accepts(value: Any) -> bool:
    return True


def _leave(value: Any) -> None:
    return None


# -------------------------------------------------------------------------------------------- shape

_SCALARS = {"string": "string", "boolean": "bool", "integer": "int64", "number": "number"}


def node(schema: Object) -> Node:
    """A schema as a node of `definitions.py`, with structs that stand in it themselves.

    What keeps unknown fields is one value to those who own fields: nobody can tell its parts apart.
    """
    struct = _node(schema)
    fields = struct["p"] if isinstance(struct, dict) and "p" in struct else {}
    head: dict[str, Node] = {"apiVersion": "string", "kind": "string"}
    return {"p": {**fields, **head, "metadata": {"t": META, "d": {}}}}


def _node(schema: Object) -> Node:
    kind, more = schema.get("type", ""), schema.get("additionalProperties")
    if schema.get(INT_OR_STRING):
        return "int-or-string"
    if kind in _SCALARS:
        return _SCALARS[kind]
    if kind == "array":
        return _list_node(schema)
    if kind == "object" and more:
        return {"m": _node(more) if isinstance(more, dict) else "any", **_map_type(schema)}
    fields = {name: _default_node(one) for name, one in schema.get("properties", {}).items()}
    if kind == "object" and (fields or not schema.get(PRESERVE)):
        return {"p": fields, "r": schema.get("required", []), **_map_type(schema)}
    return "any"


def _default_node(schema: Object) -> Node:
    found = _node(schema)
    facts = {"t": found} if isinstance(found, str) else found
    return {**facts, "d": schema["default"]} if "default" in schema else found


def _list_node(schema: Object) -> Node:
    facts: dict[str, Any] = {"l": _node(schema.get("items") or {})}
    facts["lt"] = schema.get(LIST_TYPE, "atomic")
    return {**facts, "k": schema[LIST_KEYS]} if LIST_KEYS in schema else facts


def _map_type(schema: Object) -> dict[str, Any]:
    return {"mt": schema[MAP_TYPE]} if MAP_TYPE in schema else {}
