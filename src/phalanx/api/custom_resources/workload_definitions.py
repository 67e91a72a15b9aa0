"""The CustomResourceDefinitions of `scheduling.phalanx.dev`, for servers without the workload APIs.

PodGroup, CompositePodGroup and Workload have the fields, descriptions and defaults of
`scheduling.k8s.io`: their schemas are expanded from the same definitions, with the member counts
that we add. The rules that `validation/pod_group.py` checks on our own server are limits and CEL
rules here, as rows by definition. Two differ: template names are compared among siblings, not in
the whole tree, and a priority class is resolved by the scheduler, not written to `priority`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.api.definitions import SchemaNode, definition, field_descriptions, is_reference
from phalanx.api.kinds import Kind
from phalanx.api.scheduling import MAX_USER_PRIORITY
from phalanx.api.validation.pod_group import (
    MAX_CLAIMS,
    MAX_DEPTH,
    MAX_TEMPLATES,
    MAX_TOPOLOGY_CONSTRAINTS,
)
from phalanx.api.wire import Object
from phalanx.api.workload_sources import (
    CUSTOM_COMPOSITE_POD_GROUP,
    CUSTOM_POD_GROUP,
    CUSTOM_WORKLOAD,
)

_SCALARS: Mapping[str, Object] = {
    "string": {"type": "string"},
    "bool": {"type": "boolean"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "time": {"type": "string", "format": "date-time"},
    "quantity": {
        "anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True,
    },
}  # fmt: skip
_LABEL: Object = {
    "minLength": 1, "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
}  # fmt: skip
_SUBDOMAIN: Object = {
    "minLength": 1,
    "maxLength": 253,
    "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
}
_LABEL_KEY: Object = {
    "minLength": 1,
    "maxLength": 317,
    "pattern": r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
}
_SEGMENT: Object = {"minLength": 1, "maxLength": 253, "pattern": "^[^/%]+$"}
_TEMPLATES: Object = {"maxItems": MAX_TEMPLATES}
_PREEMPTION_POLICY: Object = {"default": "PreemptLowerPriority"}
_GROUP_FIELDS: Mapping[str, Object] = {
    "priority": {"maximum": MAX_USER_PRIORITY},
    "priorityClassName": _SUBDOMAIN,
    "resourceClaims": {"maxItems": MAX_CLAIMS},
    "parentCompositePodGroupName": _SUBDOMAIN,
}
#: Limits and defaults of fields, by definition without its version.
_FIELDS: Mapping[str, Mapping[str, Object]] = {
    "CompositeGangSchedulingPolicy": {"minGroupCount": {"minimum": 1}},
    "CompositePodGroupSchedulingConstraints": {"topology": {"maxItems": MAX_TOPOLOGY_CONSTRAINTS}},
    "CompositePodGroupSpec": {**_GROUP_FIELDS, "preemptionPolicy": _PREEMPTION_POLICY},
    "CompositePodGroupTemplate": {
        **_GROUP_FIELDS,
        "name": _LABEL,
        "podGroupTemplates": _TEMPLATES,
        "compositePodGroupTemplates": _TEMPLATES,
    },
    "GangSchedulingPolicy": {"minCount": {"minimum": 1}},
    "PodGroupResourceClaim": {
        "name": _LABEL,
        "resourceClaimName": _SUBDOMAIN,
        "resourceClaimTemplateName": _SUBDOMAIN,
    },
    "PodGroupSchedulingConstraints": {"topology": {"maxItems": MAX_TOPOLOGY_CONSTRAINTS}},
    "PodGroupSpec": {**_GROUP_FIELDS, "preemptionPolicy": _PREEMPTION_POLICY},
    "PodGroupTemplate": {**_GROUP_FIELDS, "name": _LABEL},
    "TopologyConstraint": {"key": _LABEL_KEY},
    "TypedLocalObjectReference": {"apiGroup": _SUBDOMAIN, "kind": _SEGMENT, "name": _SEGMENT},
    "WorkloadReference": {"workloadName": _SUBDOMAIN, "templateName": _LABEL},
    "WorkloadSpec": {"podGroupTemplates": _TEMPLATES, "compositePodGroupTemplates": _TEMPLATES},
}

Rule = Mapping[str, str]


def _rule(rule: str, message: str, field: str = "") -> Rule:
    return {"rule": rule, "message": message, **({"fieldPath": f".{field}"} if field else {})}


def _exactly_one(first: str, second: str) -> Rule:
    return _rule(
        f"has(self.{first}) != has(self.{second})", f"must specify one of: `{first}`, `{second}`"
    )


def _immutable(*fields: str) -> tuple[Rule, ...]:
    return tuple(
        _rule(
            f"has(self.{one}) == has(oldSelf.{one})"
            f" && (!has(self.{one}) || self.{one} == oldSelf.{one})",
            "field is immutable",
            one,
        )
        for one in fields
    )


def _fixed_names(field: str) -> Rule:
    """Return the rule that no template is added or removed; an absent list is empty."""
    names = "(has({0}.{1}) ? {0}.{1}.map(t, t.name) : [])"
    new, old = names.format("self", field), names.format("oldSelf", field)
    return _rule(f"{new} == {old}", "templates cannot be added, removed or reordered", field)


def _same_priority(one: str, other: str) -> str:
    """Return the CEL expression that two templates have the same priority and priority class."""
    return " && ".join(
        f"has({one}.{name}) == has({other}.{name})"
        f" && (!has({one}.{name}) || {one}.{name} == {other}.{name})"
        for name in ("priority", "priorityClassName")
    )


def _equal_priorities(field: str) -> Rule:
    same = _same_priority("t", f"self.{field}[0]")
    return _rule(
        f"!has(self.{field}) || size(self.{field}) == 0 || self.{field}.all(t, {same})",
        "all priority and priorityClassName values must be identical",
        field,
    )


_POLICY_RULES = (
    _exactly_one("basic", "gang"),
    _rule("has(self.gang) == has(oldSelf.gang)", "a gang cannot become basic, nor basic a gang"),
)
_TEMPLATE_LISTS = ("podGroupTemplates", "compositePodGroupTemplates")
_SHARED_IMMUTABLE = (
    "schedulingConstraints", "disruptionMode", "priorityClassName", "priority", "preemptionPolicy",
)  # fmt: skip
#: CEL rules of structs, by definition without its version.
_RULES: Mapping[str, tuple[Rule, ...]] = {
    "CompositeDisruptionMode": (_exactly_one("single", "all"),),
    "CompositePodGroupSchedulingPolicy": _POLICY_RULES,
    "CompositePodGroupSpec": _immutable(
        *_SHARED_IMMUTABLE, "schedulingPolicy", "workloadRef", "parentCompositePodGroupName"
    ),
    "CompositePodGroupTemplate": (
        *(_fixed_names(field) for field in _TEMPLATE_LISTS),
        _rule(
            " || ".join(f"(has(self.{one}) && size(self.{one}) > 0)" for one in _TEMPLATE_LISTS),
            "must have at least one child PodGroupTemplate or CompositePodGroupTemplate",
        ),
        *(
            _rule(
                f"!has(self.{field}) || self.{field}.all(t, {_same_priority('t', 'self')})",
                "all priority and priorityClassName values must be identical",
                field,
            )
            for field in _TEMPLATE_LISTS
        ),
    ),
    "DisruptionMode": (_exactly_one("single", "all"),),
    "PodGroupResourceClaim": (_exactly_one("resourceClaimName", "resourceClaimTemplateName"),),
    "PodGroupSchedulingPolicy": _POLICY_RULES,
    "PodGroupSpec": (
        *_immutable(
            *_SHARED_IMMUTABLE, "resourceClaims", "workloadRef", "parentCompositePodGroupName"
        ),
        _rule(
            "!has(self.parentCompositePodGroupName) || has(self.workloadRef)",
            "workloadRef must be set when parentCompositePodGroupName is set",
        ),
    ),
    "WorkloadSpec": (
        _rule(
            "(has(self.podGroupTemplates) && size(self.podGroupTemplates) > 0)"
            " != (has(self.compositePodGroupTemplates)"
            " && size(self.compositePodGroupTemplates) > 0)",
            "must specify one of: `podGroupTemplates`, `compositePodGroupTemplates`",
        ),
        *(_fixed_names(field) for field in _TEMPLATE_LISTS),
        *_immutable("controllerRef"),
        *(_equal_priorities(field) for field in _TEMPLATE_LISTS),
    ),
}

_SCHEDULED = '.status.conditions[?(@.type=="PodGroupScheduled")].reason'
_AGE: Object = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
_WORKLOAD: Object = {
    "name": "Workload", "type": "string", "jsonPath": ".spec.workloadRef.workloadName",
}  # fmt: skip
_COLUMNS: Mapping[Kind, tuple[Object, ...]] = {
    CUSTOM_POD_GROUP: (
        {"name": "Min", "type": "integer", "jsonPath": ".spec.schedulingPolicy.gang.minCount"},
        {"name": "Scheduled", "type": "integer", "jsonPath": ".status.scheduledPods"},
        {"name": "Status", "type": "string", "jsonPath": _SCHEDULED},
        _WORKLOAD,
        _AGE,
    ),
    CUSTOM_COMPOSITE_POD_GROUP: (
        {"name": "Min", "type": "integer", "jsonPath": ".spec.schedulingPolicy.gang.minGroupCount"},
        _WORKLOAD,
        _AGE,
    ),
    CUSTOM_WORKLOAD: (
        {"name": "Controller", "type": "string", "jsonPath": ".spec.controllerRef.name"},
        _AGE,
    ),
}


def workload_definitions() -> list[Object]:
    """Return the CustomResourceDefinitions, in the order in which objects refer to each other."""
    return [
        _definition(kind)
        for kind in (CUSTOM_WORKLOAD, CUSTOM_COMPOSITE_POD_GROUP, CUSTOM_POD_GROUP)
    ]


def _definition(kind: Kind) -> Object:
    whole = _struct_schema(kind.schema, depth=0)
    version: Object = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": whole},
        "additionalPrinterColumns": list(_COLUMNS[kind]),
    }
    if "status" in kind.subresources:
        version["subresources"] = {"status": {}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "names": {
                "kind": kind.name,
                "listKind": kind.list_name,
                "plural": kind.plural,
                "singular": kind.singular,
            },
            "scope": "Namespaced",
            "versions": [version],
        },
    }


def _struct_schema(name: str, depth: int) -> Object:
    """Return the structural schema of a definition; `depth` is its level in a template tree."""
    node, own, texts = definition(name), name.rpartition(".")[2], field_descriptions(name)
    assert isinstance(node, dict)
    limits = _FIELDS.get(own, {})
    fields: Object = {}
    for field, inner in node["p"].items():
        if field == "metadata":
            # The metadata has its own rules on every server.
            fields[field] = {"type": "object"}
            continue
        text = {"description": texts[field]} if field in texts else {}
        fields[field] = text | limits.get(field, {}) | _node_schema(inner, depth)
    schema: Object = {"type": "object"}
    if texts.get(""):
        schema["description"] = texts[""]
    if fields:
        schema["properties"] = fields
    if required := node.get("r"):
        schema["required"] = list(required)
    if rules := _RULES.get(own):
        schema["x-kubernetes-validations"] = [dict(rule) for rule in rules]
    return schema


def _node_schema(node: SchemaNode, depth: int) -> Object:
    if isinstance(node, str):
        if not is_reference(node):
            return dict(_SCALARS[node])
        found = definition(node)
        return dict(_SCALARS[found]) if isinstance(found, str) else _struct_schema(node, depth)
    if "l" in node:
        schema: Object = {"type": "array", **_item_schema(node["l"], depth)}
    elif "m" in node:
        schema = {"type": "object", "additionalProperties": _node_schema(node["m"], depth)}
    else:
        schema = _node_schema(node["t"], depth)
    if "lt" in node:
        schema["x-kubernetes-list-type"] = node["lt"]
    if "k" in node:
        schema["x-kubernetes-list-map-keys"] = list(node["k"])
    if "e" in node:
        schema["enum"] = list(node["e"])
    if default := node.get("d"):
        # Zero values are written by servers for required fields; they are no defaults of users.
        schema["default"] = default
    return schema


def _item_schema(item: SchemaNode, depth: int) -> dict[str, Any]:
    """Return the items of a list; templates that are nested too deep have no room in it."""
    if item == "scheduling.v1beta1.CompositePodGroupTemplate":
        if depth == MAX_DEPTH - 1:
            # No template fits in, but the rules of the list name these fields.
            known = {
                "name": _SCALARS["string"],
                "priority": _SCALARS["int32"],
                "priorityClassName": _SCALARS["string"],
            }
            item_schema = {"type": "object", "required": ["name"], "properties": known}
            return {"items": item_schema, "maxItems": 0}
        depth += 1
    return {"items": _node_schema(item, depth)}
