"""Custom resources: kubectl and the official Python client handle them like built-in kinds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from kubernetes.client import ApiException

from phalanx.api.wire import Object
from tests.cli.commands import WAIT_LIMIT, Kubectl, rows
from tests.conformance.official_client import discovered, watched

SPEC: Object = {
    "type": "object", "required": ["size"], "description": "What it is to be.",
    "properties": {
        "size": {"type": "string", "enum": ["small", "large"], "description": "How big it is."},
        "replicas": {"type": "integer", "minimum": 0, "default": 1},
        "parts": {
            "type": "array",
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {
                "type": "object", "required": ["name"],
                "properties": {"name": {"type": "string"}, "weight": {"type": "integer"}},
            },
        },
    },
}  # fmt: skip
STATUS: Object = {
    "type": "object",
    "properties": {
        "replicas": {"type": "integer"}, "selector": {"type": "string"}, "mood": {"type": "string"},
    },
}  # fmt: skip


def definition(group: str) -> Object:
    """Gadgets with a status, a scale subresource and a column for their size."""
    version: Object = {
        "name": "v1", "served": True, "storage": True,
        "schema": {"openAPIV3Schema": {
            "type": "object", "required": ["spec"], "properties": {"spec": SPEC, "status": STATUS},
        }},
        "subresources": {"status": {}, "scale": {
            "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }},
        "additionalPrinterColumns": [
            {"name": "Size", "type": "string", "jsonPath": ".spec.size"},
            {"name": "Mood", "type": "string", "jsonPath": ".status.mood", "priority": 1},
        ],
        "selectableFields": [{"jsonPath": ".spec.size"}],
    }  # fmt: skip
    names = {
        "plural": "gadgets", "singular": "gadget", "kind": "Gadget", "shortNames": ["gd"],
        "categories": ["toys"],
    }  # fmt: skip
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"gadgets.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }  # fmt: skip


@pytest.fixture
def group(api: client.ApiClient, namespace: str) -> Iterator[str]:
    """A group that no other test uses."""
    extensions: Any = client.ApiextensionsV1Api(api)
    found = f"{namespace}.example.com"
    extensions.create_custom_resource_definition(definition(found))
    yield found
    extensions.delete_custom_resource_definition(f"gadgets.{found}")


def gadget(group: str, name: str, **spec: Any) -> Object:
    return {
        "apiVersion": f"{group}/v1", "kind": "Gadget", "metadata": {"name": name},
        "spec": {"size": "small", **spec},
    }  # fmt: skip


# ---- kubectl -------------------------------------------------------------------------------------


def test_a_kind_is_served_as_soon_as_it_is_established(kubectl: Kubectl) -> None:
    group = f"{kubectl.namespace}.example.org"
    name = f"crd/gadgets.{group}"
    assert kubectl.apply(definition(group)).endswith(" created\n")
    try:
        kubectl("wait", "--for=condition=Established", name, WAIT_LIMIT)
        [row] = rows(kubectl("api-resources", f"--api-group={group}", "-o", "wide"))
        assert row[:5] == ["gadgets", "gd", f"{group}/v1", "true", "Gadget"]
        assert row[-1] == "toys"
        kubectl.apply(gadget(group, "a"))
        assert kubectl.apply(definition(group)).endswith(" unchanged\n")
    finally:
        kubectl("delete", name)
    assert "NotFound" in kubectl.run("get", name).stderr
    assert kubectl.run("get", f"gadgets.{group}").returncode == 1


def test_custom_objects_are_applied_like_others(kubectl: Kubectl, group: str) -> None:
    name = f"gadget.{group}/a"
    assert kubectl.apply(gadget(group, "a")) == f"{name} created\n"
    assert kubectl.apply(gadget(group, "a")) == f"{name} unchanged\n"
    changed = json.dumps(gadget(group, "a", size="large"))
    assert kubectl.run("diff", "-f", "-", text=changed).returncode == 1
    assert kubectl.apply(gadget(group, "a", size="large")) == f"{name} configured\n"
    assert kubectl.run("diff", "-f", "-", text=changed).returncode == 0
    found = kubectl.get(f"gadgets.{group}/a")
    assert found["spec"] == {"size": "large", "replicas": 1}
    assert found["metadata"]["generation"] == 2


def test_fields_of_custom_objects_have_owners(kubectl: Kubectl, group: str) -> None:
    def apply(manager: str, *parts: Object) -> Object:
        text = json.dumps(gadget(group, "a", parts=parts))
        args = ("apply", "--server-side", f"--field-manager={manager}", "-o", "json", "-f", "-")
        applied: Object = json.loads(kubectl(*args, text=text))
        return applied

    apply("one", {"name": "x", "weight": 1})
    both = apply("two", {"name": "z", "weight": 2})
    assert both["spec"]["parts"] == [{"name": "x", "weight": 1}, {"name": "z", "weight": 2}]
    assert apply("one")["spec"]["parts"] == [{"name": "z", "weight": 2}]


def test_custom_objects_are_shown_by_their_columns_and_fields(kubectl: Kubectl, group: str) -> None:
    kubectl.apply(gadget(group, "a"), gadget(group, "b", size="large"))
    what = f"gadgets.{group}"
    assert kubectl("get", what).splitlines()[0].split() == ["NAME", "SIZE"]
    assert rows(kubectl("get", what)) == [["a", "small"], ["b", "large"]]
    assert kubectl("get", what, "-o", "wide").splitlines()[0].split() == ["NAME", "SIZE", "MOOD"]
    large = kubectl("get", what, "--field-selector", "spec.size=large", "-o", "name")
    assert large == f"gadget.{group}/b\n"
    sorted_by_size = kubectl("get", what, "--sort-by=.spec.size", "-o", "name").split()
    assert sorted_by_size == [f"gadget.{group}/b", f"gadget.{group}/a"]
    output = kubectl("explain", f"{what}.spec")
    assert "size\t<string> -required-" in output
    assert "How big it is." in output


def test_a_custom_object_is_scaled(kubectl: Kubectl, group: str) -> None:
    kubectl.apply(gadget(group, "a"))
    what = f"gadgets.{group}/a"
    assert kubectl("scale", what, "--replicas=3") == f"gadget.{group}/a scaled\n"
    assert kubectl.get(what)["spec"]["replicas"] == 3
    stale = kubectl.run("scale", what, "--current-replicas=1", "--replicas=5")
    assert (stale.returncode, "Expected replicas to be 1, was 3" in stale.stderr) == (1, True)


def test_the_status_is_a_subresource(kubectl: Kubectl, group: str) -> None:
    what = f"gadgets.{group}/a"
    kubectl.apply({**gadget(group, "a"), "status": {"mood": "bad"}})
    assert "status" not in kubectl.get(what)
    change = {"status": {"mood": "good"}, "spec": {"size": "large"}}
    kubectl("patch", what, "--subresource=status", "--type=merge", "-p", json.dumps(change))
    found = kubectl.get(what)
    assert (found["status"], found["spec"]["size"]) == ({"mood": "good"}, "small")
    assert found["metadata"]["generation"] == 1
    kubectl("wait", "--for=jsonpath={.status.mood}=good", what, WAIT_LIMIT)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ({"size": "huge"}, 'spec.size: Unsupported value: "huge": supported values: "small"'),
        ({"replicas": -1}, "spec.replicas: Invalid value: -1"),
        ({"replicas": "many"}, "spec.replicas: Invalid value: "),
        ({"colour": "red"}, 'strict decoding error: unknown field "spec.colour"'),
        ({"parts": [{"name": "x"}, {"name": "x"}]}, "spec.parts[1]: Duplicate value"),
        ({"parts": [{"weight": 1}]}, "spec.parts[0].name: Required value"),
    ],
    ids=["enum", "minimum", "type", "unknown", "duplicate", "required"],
)
def test_an_object_that_violates_the_schema_is_refused(
    kubectl: Kubectl, group: str, spec: Object, complaint: str
) -> None:
    done = kubectl.run("create", "-f", "-", text=json.dumps(gadget(group, "a", **spec)))
    assert (done.returncode, done.stdout) == (1, "")
    assert complaint in done.stderr


def test_a_bad_definition_is_refused(kubectl: Kubectl) -> None:
    wrong = definition(f"{kubectl.namespace}.example.org")
    wrong["metadata"]["name"] = "gadgets.elsewhere"
    del wrong["spec"]["versions"][0]["schema"]
    done = kubectl.run("create", "-f", "-", text=json.dumps(wrong))
    assert done.returncode == 1
    assert "metadata.name: Invalid value" in done.stderr
    assert "schema" in done.stderr


# ---- the official Python client ------------------------------------------------------------------


def test_the_python_client_handles_custom_objects(
    api: client.ApiClient, namespace: str, group: str
) -> None:
    custom: Any = client.CustomObjectsApi(api)
    place = (group, "v1", namespace, "gadgets")
    made = custom.create_namespaced_custom_object(*place, gadget(group, "a"))
    assert made["spec"] == {"size": "small", "replicas": 1}
    custom.patch_namespaced_custom_object(*place, "a", {"spec": {"size": "large"}})
    with pytest.raises(ApiException) as refused:
        custom.replace_namespaced_custom_object(*place, "a", made)
    assert refused.value.status == 409
    custom.patch_namespaced_custom_object_scale(*place, "a", {"spec": {"replicas": 4}})
    custom.patch_namespaced_custom_object_status(*place, "a", {"status": {"mood": "good"}})
    found = custom.get_namespaced_custom_object(*place, "a")
    assert (found["spec"], found["status"]) == ({"size": "large", "replicas": 4}, {"mood": "good"})
    custom.delete_namespaced_custom_object(*place, "a")
    assert custom.list_namespaced_custom_object(*place)["items"] == []
    events = watched(
        custom.list_namespaced_custom_object, *place, first=4,
        resource_version=made["metadata"]["resourceVersion"],
    )  # fmt: skip
    assert [kind for kind, _ in events] == ["MODIFIED", "MODIFIED", "MODIFIED", "DELETED"]


def test_a_new_kind_is_discovered(
    api: client.ApiClient, namespace: str, group: str, tmp_path: Path
) -> None:
    found = discovered(api, tmp_path / "discovery.json")
    gadgets = found.resources.get(api_version=f"{group}/v1", kind="Gadget")
    assert (gadgets.name, gadgets.short_names) == ("gadgets", ["gd"])
    made = gadgets.create(namespace=namespace, body=gadget(group, "a"))
    assert made.spec.replicas == 1
    gadgets.scale.patch(
        namespace=namespace, name="a", body={"spec": {"replicas": 2}},
        content_type="application/merge-patch+json",
    )  # fmt: skip
    assert gadgets.get(namespace=namespace, name="a").spec.replicas == 2
