from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.defaults.crd import (
    ACCEPTED,
    CLEANUP,
    ESTABLISHED,
    TERMINATING,
    Names,
    condition,
    default_definition,
    establish,
    terminate,
)
from phalanx.api.wire import Object
from tests.api.definitions import definition, version, whole

NOW, LATER = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"


def made(*taken: str, kinds: tuple[str, ...] = (), **names: Any) -> Object:
    obj = definition(names=names)
    default_definition(obj)
    establish(obj, Names(frozenset(taken), frozenset(kinds)), NOW)
    return obj


def told(obj: Object, kind: str) -> tuple[str, str]:
    found = condition(obj, kind)
    return found["status"], found["reason"]


def test_a_definition_gets_names_and_a_conversion() -> None:
    obj = definition()
    default_definition(obj)
    assert obj["spec"]["names"] == {
        "plural": "widgets", "kind": "Widget", "singular": "widget", "listKind": "WidgetList",
    }  # fmt: skip
    assert obj["spec"]["conversion"] == {"strategy": "None"}


def test_what_is_said_stays() -> None:
    obj = definition(names={"singular": "w", "listKind": "Widgets"})
    default_definition(obj)
    assert (obj["spec"]["names"]["singular"], obj["spec"]["names"]["listKind"]) == ("w", "Widgets")


def test_schemas_in_schemas_lose_what_says_nothing() -> None:
    inner = {"type": "object", "properties": None, "odd": 1, "items": {"enum": [], "type": "array"}}
    obj = definition(version(schema=whole(a={"type": "array", "items": inner})))
    default_definition(obj)
    schema = obj["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    items = schema["properties"]["spec"]["properties"]["a"]["items"]
    assert items == {"type": "object", "items": {"type": "array"}}


@pytest.mark.parametrize("items", [5, "x", [1], {"properties": 7}])
def test_what_is_no_schema_is_left_to_the_rules(items: object) -> None:
    obj = definition(version(schema=whole(a={"type": "array", "items": items})))
    default_definition(obj)


def test_free_names_are_accepted_and_the_definition_established() -> None:
    obj = made("gadgets", "gadget", shortNames=["w"], categories=["all"])
    assert told(obj, ACCEPTED) == ("True", "NoConflicts")
    assert told(obj, ESTABLISHED) == ("True", "InitialNamesAccepted")
    assert obj["status"]["acceptedNames"] == obj["spec"]["names"]
    assert obj["status"]["storedVersions"] == ["v1"]
    assert condition(obj, ACCEPTED)["lastTransitionTime"] == NOW


@pytest.mark.parametrize(
    ("taken", "kinds", "reason", "field"),
    [
        (["widgets"], (), "PluralConflict", "plural"),
        (["widget"], (), "SingularConflict", "singular"),
        (["w"], (), "ShortNamesConflict", "shortNames"),
        ([], ("Widget",), "KindConflict", "kind"),
        ([], ("WidgetList",), "ListKindConflict", "listKind"),
    ],
)
def test_a_name_that_is_taken_keeps_a_definition_waiting(
    taken: list[str], kinds: tuple[str, ...], reason: str, field: str
) -> None:
    obj = made(*taken, kinds=kinds, shortNames=["w"])
    assert told(obj, ACCEPTED) == ("False", reason)
    assert "is already in use" in condition(obj, ACCEPTED)["message"]
    assert told(obj, ESTABLISHED) == ("False", "NotAccepted")
    assert field not in obj["status"]["acceptedNames"]


def test_what_is_established_stays_so_with_the_names_that_it_has() -> None:
    obj = made(shortNames=["w"])
    obj["spec"]["names"]["shortNames"] = ["x"]
    establish(obj, Names(frozenset({"x", "w"})), LATER)
    assert told(obj, ACCEPTED) == ("False", "ShortNamesConflict")
    assert told(obj, ESTABLISHED) == ("True", "InitialNamesAccepted")
    assert obj["status"]["acceptedNames"]["shortNames"] == ["w"]
    assert condition(obj, ACCEPTED)["lastTransitionTime"] == LATER
    assert condition(obj, ESTABLISHED)["lastTransitionTime"] == NOW


def test_a_second_look_changes_nothing() -> None:
    obj, again = made(), made()
    establish(again, Names(), LATER)
    assert again == obj


def test_every_version_that_was_ever_stored_is_remembered() -> None:
    obj = made()
    obj["spec"]["versions"] = [version("v1", storage=False), version("v2")]
    establish(obj, Names(), LATER)
    assert obj["status"]["storedVersions"] == ["v1", "v2"]


def test_a_definition_without_a_stored_version_says_none() -> None:
    obj = definition(version(storage=False))
    establish(obj, Names(), NOW)
    assert "storedVersions" not in obj["status"]


def test_a_definition_that_ends_waits_for_its_objects() -> None:
    obj = made()
    terminate(obj, LATER)
    terminate(obj, LATER)
    assert obj["metadata"]["finalizers"] == [CLEANUP]
    assert told(obj, TERMINATING) == ("True", "InstanceDeletionInProgress")
