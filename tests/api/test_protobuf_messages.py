"""Protobuf messages agree with the schemas."""

from __future__ import annotations

from importlib import resources
from typing import Any

import orjson
import pytest

from phalanx.api import protobuf as messages
from phalanx.api.definitions import UnknownDefinition, definition, load_additions
from phalanx.api.protobuf import JSON_CONVERTERS
from tests.api.protobuf_encoder import TYPE_META_FIELDS

MESSAGES = orjson.loads((resources.files("phalanx.api") / "messages.json").read_bytes())


def schema_fields(name: str) -> dict[str, Any] | None:
    """Return the fields of a definition without facts that protobuf lacks; None if it has none."""
    try:
        node = definition(name)
    except UnknownDefinition:
        return None
    if isinstance(node, str):
        return None
    left_out = (*(TYPE_META_FIELDS if "g" in node else ()), *load_additions().get(name, ()))
    return {key: without_facts(inner) for key, inner in node["p"].items() if key not in left_out}


def without_facts(node: Any) -> Any:
    if isinstance(node, str):
        return node
    kind = next(key for key in "tlm" if key in node)
    inner = without_facts(node[kind])
    return inner if kind == "t" else {kind: inner}


def message_json_fields(name: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, node in messages.message_fields(name).values():
        fields.update({key: json_node(node)} if key else message_json_fields(str(node)))
    return fields


def json_node(node: messages.MessageNode) -> Any:
    """Return a node as schemas have it: a message of strings is a list."""
    if isinstance(node, dict):
        return {key: json_node(inner) for key, inner in node.items()}
    if node == "double":
        return "number"
    return {"l": "string"} if MESSAGES.get(node) == {"1": ["items", {"l": "string"}]} else node


def test_messages_and_schemas_have_the_same_fields() -> None:
    both = {name: known for name in MESSAGES if (known := schema_fields(name)) is not None}
    assert len(both) > 400
    assert {name: message_json_fields(name) for name in both} == both


def test_every_reference_of_a_message_resolves() -> None:
    for name in MESSAGES:
        for _, node in messages.message_fields(name).values():
            item = node if isinstance(node, str) else node.get("l") or node["m"]
            assert ("." in item) == (item in MESSAGES), f"{name}: {item}"
    assert [name for name in JSON_CONVERTERS if name not in MESSAGES] == []


def test_no_map_holds_numbers() -> None:
    nodes = [node for name in MESSAGES for _, node in messages.message_fields(name).values()]
    held = {node["m"] for node in nodes if isinstance(node, dict) and "m" in node}
    assert held.isdisjoint({"bool", "int32", "int64"})


@pytest.mark.parametrize(
    ("version", "kind", "name"),
    [
        ("v1", "Pod", "core.v1.Pod"),
        ("rbac.authorization.k8s.io/v1", "Role", "rbac.v1.Role"),
        ("batch/v1", "DeleteOptions", "meta.v1.DeleteOptions"),
        ("phalanx.dev/v1alpha1", "DeleteOptions", "meta.v1.DeleteOptions"),
        ("v2", "Pod", None),
        ("batch.example.com/v1", "Job", None),
    ],
)
def test_messages_are_found_by_version_and_kind(version: str, kind: str, name: str | None) -> None:
    assert messages.message_name(version, kind) == name
