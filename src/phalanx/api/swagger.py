"""OpenAPI v2 of OpenAPI v3: schemas and paths for clients that know no newer form.

v2 has no alternatives and no null: what may be one of several types is told as a text or as
nothing at all, which is what those clients make do with. A reference carries its description
beside it. Both documents are made of the same facts (`openapi.py`); `swaggermessages.py` writes
this one in protobuf.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.api.wire import Object

_V3, _V2 = "#/components/schemas/", "#/definitions/"
_EITHER, _KEEPS = "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"
#: What v2 cannot say.
_DROPPED = ("oneOf", "anyOf", "allOf", "not", "nullable", "deprecated")
#: What would make a client refuse a value that is fine.
_SHAPE = ("type", "properties", "items", "additionalProperties", "required")


def schema(told: Object) -> Object:
    """A schema as v2 says it."""
    if reference := _reference(told):
        rest = {key: told[key] for key in told if key not in ("allOf", "$ref", "default")}
        return {"$ref": reference.replace(_V3, _V2), **rest}
    kept = {key: value for key, value in told.items() if key not in _DROPPED}
    if told.get("format") == "int-or-string" or ("oneOf" in told and "type" not in told):
        kept["type"] = "string"
    if told.get("nullable") or told.get(_EITHER) or told.get(_KEEPS):
        return {key: value for key, value in kept.items() if key not in _SHAPE}
    for key in ("items", "additionalProperties"):
        if isinstance(kept.get(key), dict):
            kept[key] = schema(kept[key])
    if "properties" in kept:
        kept["properties"] = {name: schema(one) for name, one in kept["properties"].items()}
    return kept


def _reference(told: Object) -> str:
    parts = told.get("allOf", ())
    if "type" not in told and len(parts) == 1:
        return str(parts[0].get("$ref", ""))
    return str(told.get("$ref", ""))


def document(title: str, schemas: Mapping[str, Object], paths: Mapping[str, Object]) -> Object:
    """The document of some schemas and paths, which are told as in v3."""
    return {
        "swagger": "2.0",
        "info": {"title": title, "version": "v1"},
        "paths": {path: _path(path, item) for path, item in paths.items()},
        "definitions": {name: schema(one) for name, one in schemas.items()},
    }


def _path(path: str, item: Object) -> Object:
    inside = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    named = [{"name": n, "in": "path", "required": True, "type": "string"} for n in inside]
    return {method: _operation(told, named) for method, told in item.items()}


def _operation(told: Object, named: Sequence[Object]) -> Object:
    content = told.get("requestBody", {}).get("content", {})
    answers = {code: _answer(one) for code, one in told["responses"].items()}
    queries = [
        {"name": one["name"], "in": "query", **one["schema"]} for one in told.get("parameters", ())
    ]
    extra = {key: value for key, value in told.items() if key.startswith("x-")}
    made: Object = {"parameters": [*named, *_body(content), *queries], "responses": answers}
    return {**made, **({"consumes": list(content)} if content else {}), **extra}


def _body(content: Object) -> list[Object]:
    shapes = [schema(one["schema"]) for one in content.values()][:1]
    return [{"name": "body", "in": "body", "required": True, "schema": one} for one in shapes]


def _answer(told: Object) -> Object:
    shapes: list[Any] = [one["schema"] for one in told.get("content", {}).values()][:1]
    made = {"description": told.get("description", "")}
    return {**made, **({"schema": schema(shapes[0])} if shapes else {})}
