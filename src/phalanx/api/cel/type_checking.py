"""Type checks of admission policies against the schemas of the kinds that they match.

Without a schema the objects of an expression are `dyn`, so a misspelt field is only found when the
policy runs. Kubernetes therefore compiles the validations of a policy once more for each kind that
its rules name, and reports the faults as warnings in the status:

    apps/v1, Kind=Deployment: ERROR: <input>:1:7: undefined field 'replicas'
     | object.replicas > 1
     | ......^

Rules with wildcards are not checked, and at most ten kinds are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from phalanx.api.cel.admission import POLICY_VARIABLES, compile_checked, with_variables
from phalanx.api.cel.declarations import (
    BOOL,
    BYTES,
    DOUBLE,
    DYN,
    INTEGER,
    STRING,
    TIMESTAMP,
    CelType,
    ObjectField,
    list_of,
    map_of,
)
from phalanx.api.cel.schema_types import escape_field_name
from phalanx.api.definitions import SchemaNode, definition, is_reference
from phalanx.api.wire import Object

MAX_CHECKED_KINDS = 10
_COMPILATION_FAILED = "compilation failed: "
#: Values without a schema are not checked.
_SCALARS = {
    "string": STRING, "bool": BOOL, "int32": INTEGER, "int64": INTEGER, "number": DOUBLE,
    "bytes": BYTES, "time": TIMESTAMP, "microtime": TIMESTAMP, "quantity": DYN,
    "int-or-string": DYN, "opaque": DYN, "any": DYN,
}  # fmt: skip


class CheckedKind(NamedTuple):
    """A kind that a policy matches, as warnings name it, and the type of its objects."""

    name: str
    object_type: CelType


def matched_resources(spec: Object) -> Iterator[tuple[str, str, str]]:
    """Yield group, version and plural of the resources that the rules of a policy name."""
    for rule in (spec.get("matchConstraints") or {}).get("resourceRules") or ():
        groups, versions = rule.get("apiGroups") or (), rule.get("apiVersions") or ()
        if any("*" in text for text in (*groups, *versions)):
            continue
        plurals = [one for one in rule.get("resources") or () if "*" not in one and "/" not in one]
        yield from product(sorted(groups), sorted(versions), sorted(plurals))


def check_types(spec: Object, kinds: Sequence[CheckedKind], params: CelType | None) -> list[Object]:
    """Return the warnings about the validations of a policy, as its status has them."""
    known = [_typed_variables(spec, kind.object_type, params or DYN) for kind in kinds]
    warnings: list[Object] = []
    for at, validation in enumerate(spec.get("validations") or ()):
        for field, wanted in (("expression", BOOL), ("messageExpression", STRING)):
            text = validation.get(field, "")
            if not text.strip():
                continue
            faults = [
                f"{kind.name}: {fault.removeprefix(_COMPILATION_FAILED)}"
                for kind, variables in zip(kinds, known, strict=True)
                if isinstance(fault := compile_checked(text, variables, wanted), str)
            ]
            if faults:
                place = f"spec.validations[{at}].{field}"
                warnings.append({"fieldRef": place, "warning": "\n".join(faults)})
    return warnings


def _typed_variables(spec: Object, kind: CelType, params: CelType) -> Mapping[str, CelType]:
    base = {
        **POLICY_VARIABLES,
        "object": kind,
        "oldObject": kind,
        "params": params,
        "namespaceObject": definition_type("core.v1.Namespace"),
    }
    types: dict[str, CelType] = {}
    for one in spec.get("variables") or ():
        program = compile_checked(one["expression"], with_variables(types, base))
        types[one["name"]] = DYN if isinstance(program, str) else program.result_type
    return with_variables(types, base)


# ---- the types of kinds --------------------------------------------------------------------------


@lru_cache(maxsize=32)
def definition_type(name: str) -> CelType:
    """Return the type of a definition, by its short name: `apps.v1.Deployment`.

    A definition within itself is `dyn`: expressions about it are not checked.
    """
    return _node_type(name, ())


def _node_type(node: SchemaNode, above: tuple[str, ...]) -> CelType:
    if isinstance(node, str):
        if not is_reference(node):
            return _SCALARS[node]
        return DYN if node in above else _named_type(node, above)
    if "l" in node:
        return list_of(_node_type(node["l"], above))
    if "m" in node:
        return map_of(STRING, _node_type(node["m"], above))
    if "t" in node:
        return _node_type(node["t"], above)
    return _struct_type(node["p"], above)


def _named_type(name: str, above: tuple[str, ...]) -> CelType:
    node = definition(name)
    if isinstance(node, str):
        return _node_type(node, above)
    return _node_type(node, (*above, name))


def _struct_type(fields: dict[str, SchemaNode], above: tuple[str, ...]) -> CelType:
    known = {}
    for name, node in fields.items():
        # Policies select `metadata.namespace` by its own name, which CEL reserves for identifiers.
        field = ObjectField(name, _node_type(node, above))
        known[escape_field_name(name) or name] = known[name] = field
    return CelType("object", (), known, above[-1] if above else ".")
