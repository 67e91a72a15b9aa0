from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.custom.kinds import CustomKind, Row, rows, version_rank
from phalanx.api.defaults.crd import Names, default_definition, establish
from phalanx.api.descriptions import HEAD
from phalanx.api.kinds import ScalePaths
from phalanx.api.meta import seconds
from phalanx.api.printing.columns import AGE, NAME
from phalanx.api.wire import Object
from tests.api.definitions import WIDGET, definition, version

NOW = seconds("2026-01-01T01:00:00Z")


def defined(*versions: Object, **facts: Any) -> list[Row]:
    obj = definition(*versions, **facts)
    default_definition(obj)
    establish(obj, Names(), "2026-01-01T00:00:00Z")
    return rows(obj, since=7, revision=9)


def kind(**facts: Any) -> CustomKind:
    (row,) = defined(version(**facts))
    return row.kind


def test_a_kind_is_served_under_the_names_that_were_accepted() -> None:
    (row,) = defined(names={"shortNames": ["w"], "categories": ["all"]})
    made = row.kind
    assert (made.api_version, made.name, made.plural) == ("example.com/v1", "Widget", "widgets")
    assert (made.singular, made.list_name) == ("widget", "WidgetList")
    assert (made.short_names, made.categories) == (("w",), ("all",))
    assert (made.is_custom, made.namespaced, made.generation) == (True, True, True)
    assert (made.since, made.revision, made.is_ending) == (7, 9, False)
    assert row.model.faults({"metadata": {"name": "w", "namespace": "n"}}, None, "") != ()


def test_only_what_is_established_and_served_becomes_a_row() -> None:
    waiting = definition()
    default_definition(waiting)
    establish(waiting, Names(frozenset({"widgets"})), "")
    assert rows(waiting, since=1, revision=1) == []
    versions = [version("v1", served=False), version("v2", storage=False)]
    assert [row.kind.version for row in defined(*versions)] == ["v2"]


def test_all_versions_keep_their_objects_in_one_place() -> None:
    first, second = defined(version("v1"), version("v2", storage=False))
    assert first.kind.key("n", "w") == second.kind.key("n", "w") == "/example.com/widgets/n/w"
    assert first.kind.path("n", "w") != second.kind.path("n", "w")


def test_parts_are_served_where_they_are_declared() -> None:
    assert kind().subresources == ()
    scale = {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.a.b"}
    made = kind(subresources={"status": {}, "scale": scale})
    assert made.subresources == ("status", "scale")
    assert made.scale == ScalePaths(("spec", "n"), ("status", "a", "b"))


def test_fields_can_be_selected_where_they_are_declared() -> None:
    assert list(kind().fields) == ["metadata.name", "metadata.namespace"]
    made = kind(selectableFields=[{"jsonPath": ".spec.colour"}])
    assert list(made.fields) == ["metadata.name", "metadata.namespace", "spec.colour"]


def test_a_deprecated_version_says_so() -> None:
    assert kind().deprecation == ""
    assert kind(deprecated=True).deprecation == "example.com/v1 Widget is deprecated"
    assert kind(deprecated=True, deprecationWarning="use v2").deprecation == "use v2"


# ---- columns -------------------------------------------------------------------------------------

WIDGET_OBJECT: Object = {
    "metadata": {"name": "w", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {"size": 3, "share": 1.5, "on": True, "tags": ["a", "b"], "when": "soon"},
    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
}


def cell(type_: str, path: str) -> Any:
    made = kind(additionalPrinterColumns=[{"name": "X", "type": type_, "jsonPath": path}])
    return made.columns[1].cell(WIDGET_OBJECT, NOW)


def test_without_columns_of_its_own_a_kind_shows_name_and_age() -> None:
    assert kind().columns == (NAME, AGE)


def test_columns_are_shown_as_they_are_declared() -> None:
    told = {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "priority": 1}
    (name, size) = kind(additionalPrinterColumns=[{**told, "description": "how large"}]).columns
    assert name == NAME
    assert (size.name, size.type, size.priority, size.description) == (
        "Size", "integer", 1, "how large",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("type_", "path", "shown"),
    [
        ("integer", ".spec.size", 3),
        ("integer", ".spec.share", 1),
        ("integer", ".spec.on", None),
        ("integer", ".spec.when", None),
        ("number", ".spec.size", 3.0),
        ("boolean", ".spec.on", True),
        ("boolean", ".spec.size", None),
        ("string", ".spec.when", "soon"),
        ("string", ".spec.size", "3"),
        ("string", ".spec.tags", '["a","b"]'),
        ("string", ".spec.tags[*]", "a b"),
        ("string", '.status.conditions[?(@.type=="Ready")].status', "True"),
        ("string", ".spec.nope", None),
        ("date", ".metadata.creationTimestamp", "60m"),
        ("date", ".spec.when", "<invalid>"),
        ("date", ".spec.size", None),
    ],
)
def test_a_cell_is_what_its_column_promises(type_: str, path: str, shown: Any) -> None:
    assert cell(type_, path) == shown


def test_columns_that_we_cannot_read_are_not_shown() -> None:
    odd = [{"name": "X", "type": "string", "jsonPath": "..x"}]
    assert kind(additionalPrinterColumns=odd).columns == (NAME, AGE)


# ---- what clients are told -----------------------------------------------------------------------


def test_the_schema_is_told_with_what_every_object_has() -> None:
    made = kind().components
    assert list(made) == ["com.example.v1.Widget", "com.example.v1.WidgetList"]
    shown = made["com.example.v1.Widget"]
    assert shown["properties"]["spec"] == WIDGET["properties"]["spec"]
    assert shown["properties"]["kind"]["description"] == HEAD["kind"]
    (meta,) = shown["properties"]["metadata"]["allOf"]
    assert meta["$ref"].endswith(".meta.v1.ObjectMeta")
    assert shown["x-kubernetes-group-version-kind"] == [
        {"group": "example.com", "version": "v1", "kind": "Widget"}
    ]


def test_versions_are_sorted_by_what_clients_should_prefer() -> None:
    names = ["v1alpha1", "foo", "v1", "v11beta2", "v10", "v2", "v11beta10", "bar", "v1beta1"]
    assert sorted(names, key=version_rank) == [
        "v10", "v2", "v1", "v11beta10", "v11beta2", "v1beta1", "v1alpha1", "bar", "foo",
    ]  # fmt: skip
