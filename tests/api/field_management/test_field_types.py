"""Field types of the values of a definition."""

from __future__ import annotations

from phalanx.api.field_management.field_types import (
    AssociativeList,
    MapType,
    StructType,
    empty_object_of_definition,
    schema_type,
)
from phalanx.api.schema import schema


def test_structs_maps_and_keyed_lists_have_field_types() -> None:
    spec = schema_type(schema("core.v1.PodSpec"))
    assert isinstance(spec.field_type("containers"), AssociativeList)
    assert isinstance(spec.field_type("securityContext"), StructType)
    assert isinstance(spec.field_type("overhead"), MapType)


def test_scalars_atomic_values_and_unknown_fields_have_none() -> None:
    spec = schema_type(schema("core.v1.PodSpec"))
    for name in ("hostname", "nodeSelector", "tolerations", "priority", "nonsense"):
        assert spec.field_type(name) is None
    references = schema_type(schema("meta.v1.ObjectMeta")).field_type("ownerReferences")
    assert isinstance(references, AssociativeList)
    assert references.item is None


def test_items_are_identified_by_sorted_keys_and_defaults() -> None:
    ports = schema_type(schema("core.v1.Container")).field_type("ports")
    assert isinstance(ports, AssociativeList)
    assert ports.item_element({"containerPort": 80}) == 'k:{"containerPort":80,"protocol":"TCP"}'
    assert ports.item_element({"protocol": "UDP"}) == 'k:{"containerPort":0,"protocol":"UDP"}'
    secrets = schema_type(schema("core.v1.ServiceAccount")).field_type("secrets")
    assert isinstance(secrets, AssociativeList)
    assert secrets.item_element({}) == "k:{}"


def test_items_of_sets_are_identified_by_value() -> None:
    finalizers = schema_type(schema("meta.v1.ObjectMeta")).field_type("finalizers")
    assert isinstance(finalizers, AssociativeList)
    assert finalizers.item_element('a"b') == 'v:"a\\"b"'
    assert finalizers.group_by_element(["x", "y", "x"]) == {'v:"x"': ["x", "x"], 'v:"y"': ["y"]}


def test_empty_object_has_the_fields_that_are_always_written() -> None:
    assert empty_object_of_definition("core.v1.ConfigMap") == {"metadata": {}}
    assert empty_object_of_definition("core.v1.Pod") == {
        "metadata": {},
        "spec": {"containers": None},
        "status": {},
    }
    assert empty_object_of_definition("batch.v1.Job")["spec"] == {
        "template": {"metadata": {}, "spec": {"containers": None}}
    }
    assert empty_object_of_definition("core.v1.Node")["status"]["daemonEndpoints"] == {
        "kubeletEndpoint": {"Port": 0}
    }
    assert empty_object_of_definition("scheduling.v1beta1.PodGroup")["spec"] == {
        "schedulingPolicy": {}
    }
