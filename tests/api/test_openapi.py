"""Definitions as clients read them in `/openapi/v3`."""

from __future__ import annotations

import orjson

from phalanx.api.definitions import TYPE_META_DESCRIPTIONS
from phalanx.api.openapi import openapi_schema, references
from phalanx.api.wire import Object


def facts(schema: Object) -> Object:
    """A schema without its description."""
    return {key: value for key, value in schema.items() if key != "description"}


def field(name: str, key: str) -> Object:
    """The facts of one field."""
    return facts(openapi_schema(name)["properties"][key])


def test_a_struct_is_spelled_out_with_references_and_extensions() -> None:
    assert field("core.v1.Lifecycle", "postStart") == {
        "allOf": [{"$ref": "#/components/schemas/io.k8s.api.core.v1.LifecycleHandler"}]
    }
    assert field("core.v1.PodSpec", "containers") == {
        "type": "array",
        "items": {"$ref": "#/components/schemas/io.k8s.api.core.v1.Container"},
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "x-kubernetes-patch-merge-key": "name",
        "x-kubernetes-patch-strategy": "merge",
    }
    assert openapi_schema("core.v1.Pod")["x-kubernetes-group-version-kind"] == [
        {"group": "", "version": "v1", "kind": "Pod"}
    ]


def test_scalars_have_type_and_format() -> None:
    assert openapi_schema("core.v1.ContainerPort")["required"] == ["containerPort"]
    assert field("core.v1.ContainerPort", "containerPort") == {
        "type": "integer", "format": "int32", "default": 0,
    }  # fmt: skip
    assert field("core.v1.ContainerPort", "protocol")["enum"] == ["SCTP", "TCP", "UDP"]


def test_maps_hold_their_values() -> None:
    assert field("meta.v1.ObjectMeta", "labels") == {
        "type": "object",
        "additionalProperties": {"type": "string"},
    }


def test_definitions_that_are_scalars_have_their_own_form() -> None:
    quantity = facts(openapi_schema("api.resource.Quantity"))
    assert quantity == {"oneOf": [{"type": "string"}, {"type": "number"}]}
    assert facts(openapi_schema("meta.v1.MicroTime")) == {"type": "string", "format": "date-time"}


def test_types_and_fields_are_described() -> None:
    policy = openapi_schema("scheduling.v1beta1.GangSchedulingPolicy")
    assert policy["description"] == "All-or-nothing placement of the pods of a group."
    assert policy["properties"]["minCount"]["description"].startswith("How many pods must")
    assert openapi_schema("meta.v1.MicroTime")["description"] == "A moment, to the microsecond."


def test_a_reference_is_described_beside_what_it_refers_to() -> None:
    reference = openapi_schema("scheduling.v1beta1.PodGroup")["properties"]["spec"]
    assert sorted(reference) == ["allOf", "default", "description"]


def test_kinds_begin_alike_unless_one_says_more() -> None:
    job, binding = openapi_schema("batch.v1.Job"), openapi_schema("core.v1.Binding")
    for key in ("apiVersion", "kind", "metadata"):
        assert job["properties"][key]["description"] == TYPE_META_DESCRIPTIONS[key]
    assert binding["properties"]["metadata"]["description"] == "Names the pod that is bound."
    reference = openapi_schema("core.v1.ObjectReference")
    assert reference["properties"]["kind"]["description"] != TYPE_META_DESCRIPTIONS["kind"]


def test_references_lead_everywhere_a_definition_leads() -> None:
    names = references("coordination.v1.Lease")
    assert names == (
        "coordination.v1.Lease",
        "coordination.v1.LeaseSpec",
        "meta.v1.FieldsV1",
        "meta.v1.ManagedFieldsEntry",
        "meta.v1.MicroTime",
        "meta.v1.ObjectMeta",
        "meta.v1.OwnerReference",
        "meta.v1.Time",
    )


def test_references_and_schemas_agree() -> None:
    names = references("core.v1.Pod")
    text = orjson.dumps([openapi_schema(name) for name in names]).decode()
    assert text.count("#/components/schemas/") > len(names) - 1
