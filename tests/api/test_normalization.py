"""Schema.normalize: what it prunes, drops, canonicalises and refuses."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.schema import Malformed, schema
from phalanx.api.wire import Object
from tests.api.schema_strategies import objects

POD = schema("core.v1.Pod")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["spec", "metadata", "labels", "containers", "name", "x"]), inner
        )
    ),
    max_leaves=12,
)


def normalize_object(name: str, obj: Object) -> Object:
    schema(name).normalize(obj)
    return obj


def pod(**spec: Any) -> Object:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}], **spec}}


def test_unknown_fields_are_pruned_and_reported_in_order() -> None:
    obj = pod(colour="red", containers=[{"name": "c", "env": [{"name": "a", "b": {"c": 1}}]}])
    obj["extra"] = 1
    report = POD.normalize(obj)
    assert report.unknown_fields == ("spec.containers[0].env[0].b", "spec.colour", "extra")
    assert obj == pod(containers=[{"name": "c", "env": [{"name": "a"}]}])


def test_all_unknown_fields_are_pruned_and_the_first_hundred_reported() -> None:
    obj = pod(containers=[{"name": "c", "x": 1, "y": 2} for _ in range(300)])
    report = POD.normalize(obj)
    assert report.unknown_fields == tuple(
        f"spec.containers[{n}].{key}" for n in range(50) for key in "xy"
    )
    assert obj == pod(containers=[{"name": "c"}] * 300)


def test_nulls_and_empty_lists_and_maps_are_dropped() -> None:
    obj = pod(nodeName=None, tolerations=[], nodeSelector={}, hostname="")
    assert normalize_object("core.v1.Pod", obj) == pod()


def test_empty_structs_are_kept() -> None:
    obj: Object = {"spec": {"schedulingPolicy": {"basic": {}}}}
    assert normalize_object("scheduling.v1beta1.PodGroup", obj) == {
        "spec": {"schedulingPolicy": {"basic": {}}}
    }


def test_required_list_is_kept_when_empty() -> None:
    assert normalize_object("core.v1.Pod", {"spec": {"containers": []}}) == {
        "spec": {"containers": []}
    }


def test_empty_string_is_kept_where_it_is_significant() -> None:
    lease = {"spec": {"holderIdentity": "", "strategy": ""}}
    assert normalize_object("coordination.v1.Lease", lease) == {"spec": {"holderIdentity": ""}}


def test_false_and_zero_are_dropped_where_go_omits_them() -> None:
    obj = pod(hostNetwork=False, shareProcessNamespace=False)
    assert normalize_object("core.v1.Pod", obj) == pod(shareProcessNamespace=False)


def test_null_in_map_or_list_becomes_the_zero_value_of_its_type() -> None:
    obj: Object = {"metadata": {"labels": {"a": None}}, "spec": {"containers": [None]}}
    assert normalize_object("core.v1.Pod", obj) == {
        "metadata": {"labels": {"a": ""}},
        "spec": {"containers": [{}]},
    }


def test_quantities_become_canonical() -> None:
    node = {"status": {"capacity": {"cpu": 0.5, "memory": "1024Ki", "pods": 110}}}
    assert normalize_object("core.v1.Node", node) == {
        "status": {"capacity": {"cpu": "500m", "memory": "1Mi", "pods": "110"}}
    }


def test_times_are_converted_to_utc() -> None:
    lease = {
        "metadata": {"creationTimestamp": "2026-01-01T01:00:00+01:00"},
        "spec": {"renewTime": "2026-01-01T01:00:05.500000+01:00"},
    }
    assert normalize_object("coordination.v1.Lease", lease) == {
        "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"renewTime": "2026-01-01T00:00:05.500000Z"},
    }


def test_opaque_values_are_not_changed() -> None:
    obj: Object = {"metadata": {"managedFields": [{"fieldsV1": {"f:spec": {"f:x": None}}}]}}
    assert normalize_object("core.v1.Pod", copy.deepcopy(obj)) == obj


@pytest.mark.parametrize(
    ("obj", "path", "text"),
    [
        (
            {"metadata": {"labels": {"a": 1}}},
            "metadata.labels[a]",
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels"
            " of type string",
        ),
        (
            {"metadata": {"name": True}},
            "metadata.name",
            "json: cannot unmarshal bool into Go struct field ObjectMeta.metadata.name"
            " of type string",
        ),
        (
            pod(priority=1.5),
            "spec.priority",
            "json: cannot unmarshal number 1.5 into Go struct field PodSpec.spec.priority"
            " of type int32",
        ),
        (
            pod(priority=2**31),
            "spec.priority",
            "json: cannot unmarshal number 2147483648 into Go struct field PodSpec.spec.priority"
            " of type int32",
        ),
        (
            pod(activeDeadlineSeconds="1"),
            "spec.activeDeadlineSeconds",
            "json: cannot unmarshal string into Go struct field PodSpec.spec.activeDeadlineSeconds"
            " of type int64",
        ),
        (
            pod(containers={}),
            "spec.containers",
            "json: cannot unmarshal object into Go struct field PodSpec.spec.containers"
            " of type []v1.Container",
        ),
        (
            pod(nodeSelector=[]),
            "spec.nodeSelector",
            "json: cannot unmarshal array into Go struct field PodSpec.spec.nodeSelector"
            " of type map[string]string",
        ),
        (
            pod(containers=[{"name": "c"}, {"ports": [{"containerPort": "80"}]}]),
            "spec.containers[1].ports[0].containerPort",
            "json: cannot unmarshal string into Go struct field"
            " ContainerPort.spec.containers.ports.containerPort of type int32",
        ),
        (
            pod(overhead={"cpu": "lots"}),
            "spec.overhead[cpu]",
            "quantities must match the regular expression "
            "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (
            pod(overhead={"cpu": True}),
            "spec.overhead[cpu]",
            "json: cannot unmarshal bool into Go struct field PodSpec.spec.overhead"
            " of type resource.Quantity",
        ),
        (
            {"metadata": {"managedFields": [{"fieldsV1": []}]}},
            "metadata.managedFields[0].fieldsV1",
            "json: cannot unmarshal array into Go struct field"
            " ManagedFieldsEntry.metadata.managedFields.fieldsV1 of type object",
        ),
        (
            {"metadata": {"creationTimestamp": "yesterday"}},
            "metadata.creationTimestamp",
            'parsing time "yesterday" as "2006-01-02T15:04:05Z07:00": cannot parse "yesterday"',
        ),
        (
            {"metadata": {"creationTimestamp": "2026-13-01T00:00:00Z"}},
            "metadata.creationTimestamp",
            'parsing time "2026-13-01T00:00:00Z" as "2006-01-02T15:04:05Z07:00": '
            'cannot parse "2026-13-01T00:00:00Z"',
        ),
        (
            {"metadata": {"creationTimestamp": 7}},
            "metadata.creationTimestamp",
            "json: cannot unmarshal number into Go struct field"
            " ObjectMeta.metadata.creationTimestamp of type string",
        ),
        (
            {"spec": []},
            "spec",
            "json: cannot unmarshal array into Go struct field Pod.spec of type v1.PodSpec",
        ),
        (
            pod(hostNetwork="yes"),
            "spec.hostNetwork",
            "json: cannot unmarshal string into Go struct field PodSpec.spec.hostNetwork"
            " of type bool",
        ),
    ],
)
def test_value_of_wrong_type_is_refused_with_its_path(obj: Object, path: str, text: str) -> None:
    with pytest.raises(Malformed) as refusal:
        POD.normalize(obj)
    assert (refusal.value.path, str(refusal.value)) == (path, text)


@pytest.mark.parametrize(
    ("name", "obj"),
    [
        ("core.v1.ConfigMap", {"binaryData": {"a": "no base64"}}),
        ("coordination.v1.Lease", {"spec": {"renewTime": "2026-01-01T00:00:00Z"}}),
        ("core.v1.Event", {"lastTimestamp": "2026-01-01t00:00:00z"}),
        ("apiextensions.v1.JSONSchemaProps", {"maximum": "high"}),
    ],
)
def test_malformed_times_numbers_and_bytes_are_refused(name: str, obj: Object) -> None:
    with pytest.raises(Malformed):
        schema(name).normalize(obj)


PROPERTIES = "apiextensions.v1.JSONSchemaProps"


@pytest.mark.parametrize("key", ["items", "additionalProperties", "additionalItems"])
def test_schemas_in_schemas_lose_empty_and_unknown_keywords(key: str) -> None:
    inner = {"type": "object", "properties": None, "odd": 1, "items": {"enum": [], "type": "array"}}
    obj: Object = {key: inner}
    assert schema(PROPERTIES).normalize(obj).unknown_fields == ()
    assert obj == {key: {"type": "object", "items": {"type": "array"}}}


@pytest.mark.parametrize(
    "obj",
    [
        {"items": {"properties": 5}},
        {"items": [{"type": 7}]},
        {"additionalProperties": {"items": {"type": 7}}},
        {"additionalProperties": 5},
        {"additionalItems": "x"},
        {"additionalItems": [{}]},
    ],
)
def test_a_schema_in_a_schema_is_decoded(obj: Object) -> None:
    with pytest.raises(Malformed):
        schema(PROPERTIES).normalize(obj)


@pytest.mark.parametrize(
    ("given", "stored"), [("YQ==", "YQ=="), ("Y\nQ=\r\n=", "YQ=="), ("YR==", "YQ=="), ("", "")]
)
def test_bytes_are_encoded_again(given: str, stored: str) -> None:
    obj = normalize_object("core.v1.Secret", {"data": {"a": given}})
    assert obj == {"data": {"a": stored}}


def test_definition_may_be_recursive() -> None:
    obj = {"properties": {"a": {"properties": {"b": {"type": "string", "what": 1}}}}}
    report = schema("apiextensions.v1.JSONSchemaProps").normalize(obj)
    assert report.unknown_fields == ("properties.a.properties.b.what",)


def test_deeply_nested_body_is_refused() -> None:
    deep: Object = {}
    for _ in range(5_000):
        deep = {"not": deep}
    with pytest.raises(Malformed, match="exceeded max depth"):
        schema("apiextensions.v1.JSONSchemaProps").normalize(deep)


@given(JSON)
def test_any_value_is_normalized_or_raises_malformed(value: Any) -> None:
    with contextlib.suppress(Malformed):
        POD.normalize({"spec": value, "metadata": value})


@pytest.mark.parametrize("name", ["core.v1.Pod", "core.v1.Node", "batch.v1.Job"])
@given(data=st.data())
def test_normalizing_twice_equals_normalizing_once(name: str, data: st.DataObject) -> None:
    obj = data.draw(objects(name))
    schema(name).normalize(obj)
    once = copy.deepcopy(obj)
    assert schema(name).normalize(obj).unknown_fields == ()
    assert obj == once
