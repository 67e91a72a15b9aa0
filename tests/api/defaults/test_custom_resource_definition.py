from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.defaults.custom_resource_definition import (
    CLEANUP_FINALIZER,
    ESTABLISHED,
    NAMES_ACCEPTED,
    TERMINATING,
    TakenNames,
    default_definition,
    find_condition,
    mark_terminating,
    update_definition_status,
)
from phalanx.api.wire import Object
from tests.api.custom_resource_definitions import (
    custom_resource_definition,
    served_version,
)

NOW, LATER = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"


def make_definition(*taken: str, kinds: tuple[str, ...] = (), **names: Any) -> Object:
    obj = custom_resource_definition(names=names)
    default_definition(obj)
    update_definition_status(obj, TakenNames(frozenset(taken), frozenset(kinds)), NOW)
    return obj


def condition_summary(obj: Object, kind: str) -> tuple[str, str]:
    found = find_condition(obj, kind)
    return found["status"], found["reason"]


def test_a_definition_gets_names_and_a_conversion() -> None:
    obj = custom_resource_definition()
    default_definition(obj)
    assert obj["spec"]["names"] == {
        "plural": "widgets", "kind": "Widget", "singular": "widget", "listKind": "WidgetList",
    }  # fmt: skip
    assert obj["spec"]["conversion"] == {"strategy": "None"}


def test_explicit_values_are_kept() -> None:
    obj = custom_resource_definition(names={"singular": "w", "listKind": "Widgets"})
    default_definition(obj)
    assert (obj["spec"]["names"]["singular"], obj["spec"]["names"]["listKind"]) == ("w", "Widgets")


def test_free_names_are_accepted_and_the_definition_established() -> None:
    obj = make_definition("gadgets", "gadget", shortNames=["w"], categories=["all"])
    assert condition_summary(obj, NAMES_ACCEPTED) == ("True", "NoConflicts")
    assert condition_summary(obj, ESTABLISHED) == ("True", "InitialNamesAccepted")
    assert obj["status"]["acceptedNames"] == obj["spec"]["names"]
    assert obj["status"]["storedVersions"] == ["v1"]
    assert find_condition(obj, NAMES_ACCEPTED)["lastTransitionTime"] == NOW


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
    obj = make_definition(*taken, kinds=kinds, shortNames=["w"])
    assert condition_summary(obj, NAMES_ACCEPTED) == ("False", reason)
    assert "is already in use" in find_condition(obj, NAMES_ACCEPTED)["message"]
    assert condition_summary(obj, ESTABLISHED) == ("False", "NotAccepted")
    assert field not in obj["status"]["acceptedNames"]


def test_what_is_established_stays_so_with_the_names_that_it_has() -> None:
    obj = make_definition(shortNames=["w"])
    obj["spec"]["names"]["shortNames"] = ["x"]
    update_definition_status(obj, TakenNames(frozenset({"x", "w"})), LATER)
    assert condition_summary(obj, NAMES_ACCEPTED) == ("False", "ShortNamesConflict")
    assert condition_summary(obj, ESTABLISHED) == ("True", "InitialNamesAccepted")
    assert obj["status"]["acceptedNames"]["shortNames"] == ["w"]
    assert find_condition(obj, NAMES_ACCEPTED)["lastTransitionTime"] == LATER
    assert find_condition(obj, ESTABLISHED)["lastTransitionTime"] == NOW


def test_defaulting_is_idempotent() -> None:
    obj, again = make_definition(), make_definition()
    update_definition_status(again, TakenNames(), LATER)
    assert again == obj


def test_every_version_that_was_ever_stored_is_remembered() -> None:
    obj = make_definition()
    obj["spec"]["versions"] = [served_version("v1", storage=False), served_version("v2")]
    update_definition_status(obj, TakenNames(), LATER)
    assert obj["status"]["storedVersions"] == ["v1", "v2"]


def test_definition_without_a_storage_version_has_no_stored_versions() -> None:
    obj = custom_resource_definition(served_version(storage=False))
    update_definition_status(obj, TakenNames(), NOW)
    assert "storedVersions" not in obj["status"]


def test_a_definition_that_ends_waits_for_its_objects() -> None:
    obj = make_definition()
    mark_terminating(obj, LATER)
    mark_terminating(obj, LATER)
    assert obj["metadata"]["finalizers"] == [CLEANUP_FINALIZER]
    assert condition_summary(obj, TERMINATING) == ("True", "InstanceDeletionInProgress")
