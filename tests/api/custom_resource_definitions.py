"""Builders of CustomResourceDefinitions for tests."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from phalanx.api.wire import Object

GROUP = "example.com"


def object_schema(**properties: Object) -> Object:
    """Return the schema of an object with these fields."""
    return {"type": "object", "properties": properties}


def resource_schema(**properties: Object) -> Object:
    """Return the schema of a custom resource whose spec has these fields."""
    return object_schema(spec=object_schema(**properties))


WIDGET: Object = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 10},
                "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
                "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
            },
        },
        "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
    },
}


def served_version(name: str = "v1", schema: Object = WIDGET, **facts: Any) -> Object:
    """Return a version that is served and stored."""
    wrapped = {"openAPIV3Schema": deepcopy(schema)}
    return {"name": name, "served": True, "storage": True, "schema": wrapped, **facts}


def custom_resource_definition(
    *versions: Object, kind: str = "Widget", group: str = GROUP, names: Object | None = None,
    **spec: Any,
) -> Object:  # fmt: skip
    """Return a definition of a namespaced kind."""
    plural = f"{kind.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind, **(names or {})},
            "versions": list(versions) or [served_version()],
            **spec,
        },
    }
