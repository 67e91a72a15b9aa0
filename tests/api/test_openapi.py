"""Definitions as clients read them in `/openapi/v3`."""

from __future__ import annotations

import orjson

from phalanx.api.openapi import openapi, references


def test_a_struct_is_spelled_out_with_references_and_extensions() -> None:
    assert openapi("core.v1.Lifecycle")["properties"]["postStart"] == {
        "allOf": [{"$ref": "#/components/schemas/io.k8s.api.core.v1.LifecycleHandler"}]
    }
    assert openapi("core.v1.PodSpec")["properties"]["containers"] == {
        "type": "array",
        "items": {"$ref": "#/components/schemas/io.k8s.api.core.v1.Container"},
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "x-kubernetes-patch-merge-key": "name",
        "x-kubernetes-patch-strategy": "merge",
    }
    assert openapi("core.v1.Pod")["x-kubernetes-group-version-kind"] == [
        {"group": "", "version": "v1", "kind": "Pod"}
    ]


def test_scalars_have_type_and_format() -> None:
    port = openapi("core.v1.ContainerPort")
    assert port["required"] == ["containerPort"]
    assert port["properties"]["containerPort"] == {
        "type": "integer", "format": "int32", "default": 0,
    }  # fmt: skip
    assert port["properties"]["protocol"]["enum"] == ["SCTP", "TCP", "UDP"]


def test_maps_hold_their_values() -> None:
    assert openapi("meta.v1.ObjectMeta")["properties"]["labels"] == {
        "type": "object",
        "additionalProperties": {"type": "string"},
    }


def test_definitions_that_are_scalars_have_their_own_form() -> None:
    assert openapi("api.resource.Quantity") == {"oneOf": [{"type": "string"}, {"type": "number"}]}
    assert openapi("meta.v1.MicroTime") == {"type": "string", "format": "date-time"}


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
    text = orjson.dumps([openapi(name) for name in names]).decode()
    assert text.count("#/components/schemas/") > len(names) - 1
