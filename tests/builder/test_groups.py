"""Groups built from the templates of a Workload."""

from __future__ import annotations

import copy

import pytest

from phalanx.api.errors import NotFound
from phalanx.api.wire import Object
from phalanx.builder import (
    controller_reference,
    new_composite_pod_group,
    new_groups,
    new_pod_group,
    owner_reference,
    templates,
)
from tests.builder.item_trees import OWNER, errors_from_server

FIELDS: Object = {
    "schedulingPolicy": {"gang": {"minCount": 4}},
    "schedulingConstraints": {"topology": [{"key": "rack"}]},
    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "each"}],
    "disruptionMode": {"all": {}},
    "priorityClassName": "high",
    "priority": 0,
    "preemptionPolicy": "Never",
}
COMPOSITE_FIELDS: Object = {
    **{field: value for field, value in FIELDS.items() if field != "resourceClaims"},
    "schedulingPolicy": {"gang": {"minGroupCount": 2}},
}


def workload(**spec: object) -> Object:
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": "train", "namespace": "team", "uid": "uid-w"},
        "spec": spec,
    }


FLAT = workload(podGroupTemplates=[{"name": "workers", **FIELDS}])
NESTED = workload(
    podGroupTemplates=None,
    compositePodGroupTemplates=[
        {
            "name": "root",
            **COMPOSITE_FIELDS,
            "podGroupTemplates": [{"name": "driver", **FIELDS}],
            "compositePodGroupTemplates": [
                {
                    "name": "slice",
                    **COMPOSITE_FIELDS,
                    "podGroupTemplates": [{"name": "workers", **FIELDS}],
                    "compositePodGroupTemplates": None,
                }
            ],
        }
    ],
)


def test_pod_group_has_every_field_of_its_template() -> None:
    assert new_pod_group(FLAT, "workers") == {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "train-workers-6f67d86588", "namespace": "team"},
        "spec": {
            "workloadRef": {"workloadName": "train", "templateName": "workers"},
            **FIELDS,
        },
    }


def test_composite_group_has_every_field_of_its_template_but_the_children() -> None:
    group = new_composite_pod_group(NESTED, "root")
    assert group["apiVersion"] == "scheduling.k8s.io/v1alpha3"
    assert group["kind"] == "CompositePodGroup"
    assert group["spec"] == {
        "workloadRef": {"workloadName": "train", "templateName": "root"},
        **COMPOSITE_FIELDS,
    }


@pytest.mark.parametrize("name", ["driver", "workers"])
def test_template_is_found_on_any_level(name: str) -> None:
    assert new_pod_group(NESTED, name)["spec"]["workloadRef"]["templateName"] == name


def test_composite_template_is_found_on_any_level() -> None:
    group = new_composite_pod_group(NESTED, "slice")
    assert (
        group["spec"]["parentCompositePodGroupName"]
        == (new_composite_pod_group(NESTED, "root")["metadata"]["name"])
    )


def test_nested_group_joins_the_group_of_its_parent_template() -> None:
    parent = new_composite_pod_group(NESTED, "slice")["metadata"]["name"]
    assert new_pod_group(NESTED, "workers")["spec"]["parentCompositePodGroupName"] == parent


def test_group_joins_an_explicit_parent() -> None:
    group = new_pod_group(NESTED, "workers", parent="slice-7")
    assert group["spec"]["parentCompositePodGroupName"] == "slice-7"
    assert new_pod_group(FLAT, "workers", parent="top")["spec"]["parentCompositePodGroupName"] == (
        "top"
    )


def test_top_level_group_has_no_parent() -> None:
    assert "parentCompositePodGroupName" not in new_pod_group(FLAT, "workers")["spec"]


def test_instances_of_one_template_have_different_names() -> None:
    names = [
        new_pod_group(FLAT, "workers", instance=instance)["metadata"]["name"]
        for instance in ("", "0", "1")
    ]
    assert len(set(names)) == 3
    assert [name.rpartition("-")[0] for name in names] == [
        "train-workers",
        "train-workers-0",
        "train-workers-1",
    ]


def test_group_may_have_an_explicit_name() -> None:
    assert new_pod_group(FLAT, "workers", name="mine")["metadata"]["name"] == "mine"
    assert new_composite_pod_group(NESTED, "root", name="mine")["metadata"]["name"] == "mine"


def test_group_has_the_given_owners_or_none() -> None:
    owners = (controller_reference(OWNER), owner_reference(FLAT))
    group = new_pod_group(FLAT, "workers", owners=owners)
    assert group["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "example.com/v1",
            "kind": "Training",
            "name": "llm",
            "uid": "uid-123",
            "controller": True,
            "blockOwnerDeletion": True,
        },
        {
            "apiVersion": "scheduling.k8s.io/v1beta1",
            "kind": "Workload",
            "name": "train",
            "uid": "uid-w",
        },
    ]
    assert "ownerReferences" not in new_composite_pod_group(NESTED, "root")["metadata"]


def test_groups_of_a_workload_are_built_parents_first() -> None:
    built = new_groups(NESTED)
    names = {
        group["spec"]["workloadRef"]["templateName"]: group["metadata"]["name"] for group in built
    }
    parents = [group["spec"].get("parentCompositePodGroupName") for group in built]
    assert list(names) == ["root", "driver", "slice", "workers"]
    assert parents == [None, names["root"], names["root"], names["slice"]]


def test_subtree_of_a_workload_is_built_once_per_instance() -> None:
    for instance in ("0", "1"):
        slice_, workers = new_groups(NESTED, "slice", instance=instance, parent="root-7")
        assert slice_["metadata"]["name"].startswith(f"train-slice-{instance}-")
        assert slice_["spec"]["parentCompositePodGroupName"] == "root-7"
        assert workers["spec"]["parentCompositePodGroupName"] == slice_["metadata"]["name"]


def test_subtree_without_an_explicit_parent_joins_the_group_of_its_parent_template() -> None:
    root, *_ = new_groups(NESTED)
    slice_, _ = new_groups(NESTED, "slice", instance="0")
    assert slice_["spec"]["parentCompositePodGroupName"] == root["metadata"]["name"]


def test_unknown_subtree_is_not_found() -> None:
    with pytest.raises(NotFound, match=r'template "x" not found .*\(have \[root driver slice work'):
        new_groups(NESTED, "x")


def test_built_groups_pass_server_validation() -> None:
    owners = (controller_reference(OWNER), owner_reference(NESTED))
    built = [*new_groups(NESTED, owners=owners), *new_groups(FLAT)]
    assert [errors_from_server(group) for group in built] == [[]] * 5


@pytest.mark.parametrize(
    ("build", "name", "message"),
    [
        (
            new_pod_group,
            "root",
            'podGroupTemplate "root" not found in workload "train" (have [driver workers])',
        ),
        (
            new_composite_pod_group,
            "workers",
            'compositePodGroupTemplate "workers" not found in workload "train" (have [root slice])',
        ),
    ],
)
def test_unknown_template_is_not_found(build: object, name: str, message: str) -> None:
    assert callable(build)
    with pytest.raises(NotFound) as error:
        build(NESTED, name)
    assert error.value.message == message


@pytest.mark.parametrize("spec", [{}, {"podGroupTemplates": None}])
def test_workload_without_templates_has_no_groups(spec: Object) -> None:
    assert templates(workload(**spec)) == {}
    assert new_groups(workload(**spec)) == []


def test_groups_share_no_values_with_their_workload() -> None:
    before = copy.deepcopy(NESTED)
    for group in new_groups(NESTED):
        group["spec"]["schedulingPolicy"].clear()
        group["spec"]["schedulingConstraints"]["topology"].append({"key": "x"})
    assert before == NESTED
