"""Schemas and their package data."""

from __future__ import annotations

from importlib import resources

import orjson
import pytest

from phalanx.api.definitions import UnknownDefinition
from phalanx.api.kinds import KINDS
from phalanx.api.schema import Schema, full_definition_name, schema

POD = schema("core.v1.Pod")


def at(root: Schema, *path: str) -> Schema:
    for name in path:
        inner = root.items if name == "[]" else root.field(name)
        assert inner is not None, name
        root = inner
    return root


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_has_a_schema(kind: object) -> None:
    name = getattr(kind, "schema", "")
    assert "metadata" in schema(name).fields


def test_unknown_definition_is_refused() -> None:
    for name in ("core.v1.Gadget", "gadgets.v1.Gadget", "Gadget"):
        with pytest.raises(UnknownDefinition):
            schema(name)


def test_short_names_resolve_to_full_names() -> None:
    assert full_definition_name("core.v1.Pod") == "io.k8s.api.core.v1.Pod"
    assert (
        full_definition_name("meta.v1.ObjectMeta")
        == "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    )
    assert (
        full_definition_name("phalanx.v1alpha1.GroupBinding") == "dev.phalanx.v1alpha1.GroupBinding"
    )


def test_schema_descends_through_structs_lists_and_maps() -> None:
    assert at(POD, "spec").name == "core.v1.PodSpec"
    assert at(POD, "spec", "containers", "[]").name == "core.v1.Container"
    assert at(POD, "metadata", "labels").is_map
    assert at(POD, "metadata", "labels", "any").name == ""
    values = at(POD, "metadata", "labels").values
    assert values is not None
    assert (values.name, values.is_map) == ("", False)


def test_unknown_field_has_no_schema() -> None:
    assert POD.field("colour") is None
    assert POD.items is None
    assert POD.values is None
    assert at(POD, "kind").field("x") is None


def test_lists_have_a_merge_strategy() -> None:
    containers = at(POD, "spec", "containers")
    assert (containers.merge_key, containers.patch_strategy) == ("name", "merge")
    assert (containers.list_type, containers.list_keys) == ("map", ("name",))
    tolerations = at(POD, "spec", "tolerations")
    assert (tolerations.merge_key, tolerations.patch_strategy, tolerations.list_type) == (
        "", "", "atomic",
    )  # fmt: skip
    assert at(POD, "metadata", "finalizers").list_type == "set"
    assert POD.list_type == ""


def test_structs_and_maps_may_be_atomic() -> None:
    assert at(POD, "spec", "nodeSelector").is_atomic
    assert at(schema("meta.v1.LabelSelector")).is_atomic
    assert not POD.is_atomic


def test_structs_have_required_fields() -> None:
    assert at(POD, "spec").required == ("containers",)
    assert POD.required == ()


def test_every_reference_resolves() -> None:
    folder = resources.files("phalanx.api") / "schemas"
    files = [file for file in folder.iterdir() if file.name.endswith(".json")]
    assert len(files) > 15
    for file in files:
        for name in orjson.loads(file.read_bytes())["definitions"]:
            root = schema(f"{file.name.removesuffix('.json')}.{name}")
            assert all(root.field(field) is not None for field in root.fields)
