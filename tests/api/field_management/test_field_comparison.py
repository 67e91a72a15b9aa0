"""Comparing objects, and the fields that an object states."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.field_management.merge_diff import compare, owned_fields
from phalanx.api.schema import Schema, schema
from phalanx.api.wire import Object
from tests.api.schema_strategies import objects

POD = schema("core.v1.Pod")
CONFIG_MAP = schema("core.v1.ConfigMap")
NODE = schema("core.v1.Node")
POD_GROUP = schema("scheduling.v1beta1.PodGroup")

A_POD: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "a",
        "namespace": "b",
        "uid": "1",
        "generateName": "a-",
        "labels": {"app": "x"},
        "finalizers": ["example.com/hold"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Job", "name": "j", "uid": "7"}],
        "managedFields": [{"manager": "m"}],
    },
    "spec": {
        "containers": [
            {
                "name": "main",
                "command": ["run"],
                "ports": [{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}],
                "resources": {"limits": {"cpu": "1"}},
            }
        ],
        "nodeSelector": {"pool": "gpu"},
        "securityContext": {},
        "tolerations": [{"key": "a"}],
    },
}


Pair = tuple[Schema, Object, Object]


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    """Draw two objects of a kind."""
    kind = draw(st.sampled_from((POD, NODE, POD_GROUP, schema("batch.v1.Job"))))
    one, two = draw(objects(kind.name)), draw(objects(kind.name))
    kind.normalize(one)
    kind.normalize(two)
    return kind, one, two


def test_owned_fields_are_values_and_items_without_their_structs() -> None:
    assert owned_fields(POD, A_POD).to_fields_v1() == {
        "f:metadata": {
            "f:finalizers": {'v:"example.com/hold"': {}},
            "f:generateName": {},
            "f:labels": {"f:app": {}},
            "f:ownerReferences": {'k:{"uid":"7"}': {}},
        },
        "f:spec": {
            "f:containers": {
                'k:{"name":"main"}': {
                    ".": {},
                    "f:command": {},
                    "f:name": {},
                    "f:ports": {
                        'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:containerPort": {}},
                        'k:{"containerPort":80,"protocol":"UDP"}': {
                            ".": {},
                            "f:containerPort": {},
                            "f:protocol": {},
                        },
                    },
                    "f:resources": {"f:limits": {"f:cpu": {}}},
                }
            },
            "f:nodeSelector": {},
            "f:securityContext": {},
            "f:tolerations": {},
        },
    }


def test_identity_fields_are_not_owned() -> None:
    assert not owned_fields(CONFIG_MAP, {"apiVersion": "v1", "kind": "ConfigMap"})
    bare = {"metadata": {"name": "x", "uid": "1", "resourceVersion": "5", "generation": 2}}
    assert not owned_fields(CONFIG_MAP, bare)


def test_creation_adds_structs_unless_they_are_always_present() -> None:
    added = compare(CONFIG_MAP, None, {"metadata": {"name": "x"}, "data": {"a": "1"}}).changed
    assert added.to_fields_v1() == {"f:data": {".": {}, "f:a": {}}}
    pod = compare(POD, None, A_POD).changed.to_fields_v1()
    assert "." not in pod["f:spec"]
    assert "." not in pod["f:spec"]["f:containers"]
    assert "." in pod["f:metadata"]["f:labels"]
    assert "." in pod["f:spec"]["f:containers"]['k:{"name":"main"}']["f:resources"]


def test_creation_does_not_add_zeros_that_are_always_written() -> None:
    priority = schema("scheduling.v1.PriorityClass")
    assert not compare(priority, None, {"metadata": {}, "value": 0}).changed
    assert list(compare(priority, None, {"metadata": {}, "value": 5}).changed) == [("f:value",)]


def test_creation_adds_fields_of_items_that_are_written_though_empty() -> None:
    workload = schema("scheduling.v1beta1.Workload")
    made: Object = {"metadata": {}, "spec": {"podGroupTemplates": [{"name": "t"}]}}
    item: Object = {".": {}, "f:name": {}, "f:schedulingConstraints": {}}
    assert compare(workload, None, made).changed.to_fields_v1() == {
        "f:spec": {"f:podGroupTemplates": {'k:{"name":"t"}': item}}
    }
    assert not compare(workload, made, made).changed


def test_creation_adds_defaults_that_are_not_zero() -> None:
    group: Object = {
        "metadata": {},
        "spec": {"disruptionMode": {"single": {}}, "schedulingPolicy": {}},
    }
    assert compare(POD_GROUP, None, group).changed.to_fields_v1() == {
        "f:spec": {"f:disruptionMode": {".": {}, "f:single": {}}}
    }


def test_changed_item_is_identified_by_its_keys() -> None:
    def node(*conditions: Object) -> Object:
        return {"metadata": {}, "status": {"conditions": list(conditions)}}

    ready, full = {"type": "Ready", "status": "True"}, {"type": "Full", "status": "False"}
    changed, removed = compare(NODE, node(ready, full), node({**full, "status": "True"}, ready))
    assert changed.to_fields_v1() == {
        "f:status": {"f:conditions": {'k:{"type":"Full"}': {"f:status": {}}}}
    }
    assert not removed
    assert compare(NODE, node(ready, full), node(full, ready)) == compare(NODE, A_POD, A_POD)


def test_removed_field_includes_everything_below_it() -> None:
    old = {"metadata": {"labels": {"a": "1"}}, "data": {"a": "1"}}
    changed, removed = compare(CONFIG_MAP, old, {"metadata": {}})
    assert not changed
    assert removed.to_fields_v1() == {
        "f:data": {".": {}, "f:a": {}},
        "f:metadata": {"f:labels": {".": {}, "f:a": {}}},
    }


def test_duplicate_items_are_one_field() -> None:
    def pod(*values: str) -> Object:
        env = [{"name": "A", "value": value} for value in values]
        return {"metadata": {}, "spec": {"containers": [{"name": "c", "env": env}]}}

    one: Object = {
        "f:spec": {"f:containers": {'k:{"name":"c"}': {"f:env": {'k:{"name":"A"}': {}}}}}
    }
    assert compare(POD, pod("1", "2"), pod("1", "3")).changed.to_fields_v1() == one
    assert compare(POD, pod("1", "2"), pod("1")).changed.to_fields_v1() == one
    assert not compare(POD, pod("1", "2"), pod("1")).removed
    assert ("f:spec", "f:containers", 'k:{"name":"c"}', "f:env", 'k:{"name":"A"}') in owned_fields(
        POD, pod("1", "2")
    )


@given(pairs())
def test_object_does_not_differ_from_itself(pair: Pair) -> None:
    kind, one, _ = pair
    changed, removed = compare(kind, one, copy.deepcopy(one))
    assert not changed
    assert not removed


@given(pairs())
def test_reverse_comparison_removes_what_was_added(pair: Pair) -> None:
    kind, one, two = pair
    there, back = compare(kind, one, two), compare(kind, two, one)
    assert there.changed - back.changed == back.removed
    assert back.changed - there.changed == there.removed
    assert not owned_fields(kind, two) & there.removed
