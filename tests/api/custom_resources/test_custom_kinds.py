from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.custom_resources.custom_kinds import (
    CustomKind,
    ServedCustomKind,
    served_kinds,
    version_rank,
)
from phalanx.api.defaults.custom_resource_definition import (
    TakenNames,
    default_definition,
    update_definition_status,
)
from phalanx.api.definitions import TYPE_META_DESCRIPTIONS
from phalanx.api.kinds import ScalePaths
from phalanx.api.meta import parse_timestamp
from phalanx.api.printing.cells import AGE_COLUMN, NAME_COLUMN
from phalanx.api.wire import Object
from tests.api.custom_resource_definitions import WIDGET, custom_resource_definition, served_version

NOW = parse_timestamp("2026-01-01T01:00:00Z")


def served_custom_kinds(*versions: Object, **facts: Any) -> list[ServedCustomKind]:
    obj = custom_resource_definition(*versions, **facts)
    default_definition(obj)
    update_definition_status(obj, TakenNames(), "2026-01-01T00:00:00Z")
    return served_kinds(obj, created_revision=7, revision=9)


def custom_kind(**facts: Any) -> CustomKind:
    (row,) = served_custom_kinds(served_version(**facts))
    return row.kind


def test_kind_is_served_under_its_accepted_names() -> None:
    (row,) = served_custom_kinds(names={"shortNames": ["w"], "categories": ["all"]})
    made = row.kind
    assert (made.api_version, made.name, made.plural) == ("example.com/v1", "Widget", "widgets")
    assert (made.singular, made.list_name) == ("widget", "WidgetList")
    assert (made.short_names, made.categories) == (("w",), ("all",))
    assert (made.is_custom, made.namespaced, made.generation) == (True, True, True)
    assert (made.created_revision, made.revision, made.is_terminating) == (7, 9, False)
    assert row.strategy.validate({"metadata": {"name": "w", "namespace": "n"}}, None, "") != ()


def test_only_established_definitions_and_served_versions_have_rows() -> None:
    waiting = custom_resource_definition()
    default_definition(waiting)
    update_definition_status(waiting, TakenNames(frozenset({"widgets"})), "")
    assert served_kinds(waiting, created_revision=1, revision=1) == []
    versions = [served_version("v1", served=False), served_version("v2", storage=False)]
    assert [row.kind.version for row in served_custom_kinds(*versions)] == ["v2"]


def test_all_versions_share_a_store_prefix() -> None:
    first, second = served_custom_kinds(served_version("v1"), served_version("v2", storage=False))
    assert (
        first.kind.store_key("n", "w")
        == second.kind.store_key("n", "w")
        == "/example.com/widgets/n/w"
    )
    assert first.kind.url_path("n", "w") != second.kind.url_path("n", "w")


def test_subresources_are_served_where_declared() -> None:
    assert custom_kind().subresources == ()
    scale = {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.a.b"}
    made = custom_kind(subresources={"status": {}, "scale": scale})
    assert made.subresources == ("status", "scale")
    assert made.scale == ScalePaths(("spec", "n"), ("status", "a", "b"))


def test_fields_are_selectable_where_declared() -> None:
    assert list(custom_kind().selectable_fields) == ["metadata.name", "metadata.namespace"]
    made = custom_kind(selectableFields=[{"jsonPath": ".spec.colour"}])
    assert list(made.selectable_fields) == ["metadata.name", "metadata.namespace", "spec.colour"]


def test_deprecated_version_has_a_warning() -> None:
    assert custom_kind().deprecation == ""
    assert custom_kind(deprecated=True).deprecation == "example.com/v1 Widget is deprecated"
    assert custom_kind(deprecated=True, deprecationWarning="use v2").deprecation == "use v2"


# ---- columns -------------------------------------------------------------------------------------

WIDGET_OBJECT: Object = {
    "metadata": {"name": "w", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {"size": 3, "share": 1.5, "on": True, "tags": ["a", "b"], "when": "soon"},
    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
}


def column_cell(type_: str, path: str) -> Any:
    made = custom_kind(additionalPrinterColumns=[{"name": "X", "type": type_, "jsonPath": path}])
    return made.columns[1].cell(WIDGET_OBJECT, NOW)


def test_kind_without_printer_columns_shows_name_and_age() -> None:
    assert custom_kind().columns == (NAME_COLUMN, AGE_COLUMN)


def test_columns_are_shown_as_they_are_declared() -> None:
    column = {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "priority": 1}
    (name, size) = custom_kind(
        additionalPrinterColumns=[{**column, "description": "how large"}]
    ).columns
    assert name == NAME_COLUMN
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
def test_cell_has_the_type_of_its_column(type_: str, path: str, shown: Any) -> None:
    assert column_cell(type_, path) == shown


def test_columns_with_unsupported_paths_are_not_shown() -> None:
    odd = [{"name": "X", "type": "string", "jsonPath": "..x"}]
    assert custom_kind(additionalPrinterColumns=odd).columns == (NAME_COLUMN, AGE_COLUMN)


# ---- OpenAPI -----------------------------------------------------------------------


def test_openapi_schema_includes_type_and_object_metadata() -> None:
    made = custom_kind().components
    assert list(made) == ["com.example.v1.Widget", "com.example.v1.WidgetList"]
    shown = made["com.example.v1.Widget"]
    assert shown["properties"]["spec"] == WIDGET["properties"]["spec"]
    assert shown["properties"]["kind"]["description"] == TYPE_META_DESCRIPTIONS["kind"]
    (meta,) = shown["properties"]["metadata"]["allOf"]
    assert meta["$ref"].endswith(".meta.v1.ObjectMeta")
    assert shown["x-kubernetes-group-version-kind"] == [
        {"group": "example.com", "version": "v1", "kind": "Widget"}
    ]


def test_versions_are_sorted_by_preference() -> None:
    names = ["v1alpha1", "foo", "v1", "v11beta2", "v10", "v2", "v11beta10", "bar", "v1beta1"]
    assert sorted(names, key=version_rank) == [
        "v10", "v2", "v1", "v11beta10", "v11beta2", "v1beta1", "v1alpha1", "bar", "foo",
    ]  # fmt: skip
