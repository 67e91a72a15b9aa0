"""OpenAPI schemas of the building blocks, to embed in a CustomResourceDefinition.

An API of your own then has the same fields as a Job, under a path of your own, and the API server
checks them. The fragments are structural: they can stand below any field of an `openAPIV3Schema`.

>>> sorted(scheduling_schema()["properties"])
['disruptionMode', 'resourceClaims', 'schedulingConstraints', 'schedulingPolicy']
>>> scheduling_schema(composite=True)["properties"]["schedulingPolicy"]["maxProperties"]
1
"""

from __future__ import annotations

from phalanx.api.wire import Object
from phalanx.builder.workload_item import count_field

_EMPTY: Object = {"type": "object"}
_NAME: Object = {"type": "string", "maxLength": 253}


def scheduling_schema(*, composite: bool = False) -> Object:
    """Return the schema of a struct with all building blocks, as `read_intent` reads it."""
    claims = {} if composite else {"resourceClaims": _claims_schema()}
    return {
        "type": "object",
        "properties": {
            "schedulingPolicy": _policy_schema(composite=composite),
            "schedulingConstraints": _constraints_schema(),
            "disruptionMode": {
                "type": "object",
                "description": "Whether members are disrupted one by one or together.",
                "minProperties": 1,
                "maxProperties": 1,
                "properties": {"single": dict(_EMPTY), "all": dict(_EMPTY)},
            },
            **claims,
        },
    }


def _policy_schema(*, composite: bool) -> Object:
    noun = "groups" if composite else "pods"
    count: Object = {
        "type": "integer",
        "format": "int32",
        "minimum": 1,
        "description": f"How many {noun} must be placeable at once; all of them if absent.",
    }
    gang: Object = {
        "type": "object",
        "description": f"The {noun} are placed together or not at all.",
        "properties": {count_field(composite=composite): count},
    }
    return {
        "type": "object",
        "description": f"How the {noun} are placed; exactly one member is set.",
        "minProperties": 1,
        "maxProperties": 1,
        "properties": {
            "basic": {**_EMPTY, "description": f"The {noun} are placed one by one."},
            "gang": gang,
        },
    }


def _constraints_schema() -> Object:
    key = {**_NAME, "description": "The node label whose value all members share."}
    topology: Object = {
        "type": "array",
        "maxItems": 1,
        "x-kubernetes-list-type": "atomic",
        "items": {"type": "object", "required": ["key"], "properties": {"key": key}},
    }
    return {
        "type": "object",
        "description": "Where the members may be placed; an empty topology undoes a default.",
        "properties": {"topology": topology},
    }


def _claims_schema() -> Object:
    claim: Object = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "maxLength": 63},
            "resourceClaimName": dict(_NAME),
            "resourceClaimTemplateName": dict(_NAME),
        },
    }
    return {
        "type": "array",
        "maxItems": 4,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "items": claim,
    }
