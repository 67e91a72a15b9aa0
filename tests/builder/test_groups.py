"""Groups that are made of the templates of a Workload."""

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

TERMS: Object = {
    "schedulingPolicy": {"gang": {"minCount": 4}},
    "schedulingConstraints": {"topology": [{"key": "rack"}]},
    "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "each"}],
    "disruptionMode": {"all": {}},
    "priorityClassName": "high",
    "priority": 0,
    "preemptionPolicy": "Never",
}
GROUP_TERMS: Object = {
    **{field: value for field, value in TERMS.items() if field != "resourceClaims"},
    "schedulingPolicy": {"gang": {"minGroupCount": 2}},
}


def workload(**spec: object) -> Object:
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": "train", "namespace": "team", "uid": "uid-w"},
        "spec": spec,
    }


FLAT = workload(podGroupTemplates=[{"name": "workers", **TERMS}])
NESTED = workload(
    podGroupTemplates=None,
    compositePodGroupTemplates=[
        {
            "name": "root",
            **GROUP_TERMS,
            "podGroupTemplates": [{"name": "driver", **TERMS}],
            "compositePodGroupTemplates": [
                {
                    "name": "slice",
                    **GROUP_TERMS,
                    "podGroupTemplates": [{"name": "workers", **TERMS}],
                    "compositePodGroupTemplates": None,
                }
            ],
        }
    ],
)


def test_a_pod_group_takes_over_all_that_its_template_says() -> None:
    assert new_pod_group(FLAT, "workers") == {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "train-workers-6f67d86588", "namespace": "team"},
        "spec": {
            "workloadRef": {"workloadName": "train", "templateName": "workers"},
            **TERMS,
        },
    }


def test_a_composite_takes_over_all_that_its_template_says_but_not_the_children() -> None:
    group = new_composite_pod_group(NESTED, "root")
    assert group["apiVersion"] == "scheduling.k8s.io/v1alpha3"
    assert group["kind"] == "CompositePodGroup"
    assert group["spec"] == {
        "workloadRef": {"workloadName": "train", "templateName": "root"},
        **GROUP_TERMS,
    }


@pytest.mark.parametrize("name", ["driver", "workers"])
def test_a_template_is_found_on_any_level(name: str) -> None:
    assert new_pod_group(NESTED, name)["spec"]["workloadRef"]["templateName"] == name


def test_a_composite_template_is_found_on_any_level() -> None:
    group = new_composite_pod_group(NESTED, "slice")
    assert (
        group["spec"]["parentCompositePodGroupName"]
        == (new_composite_pod_group(NESTED, "root")["metadata"]["name"])
    )


def test_a_nested_group_joins_the_group_of_the_template_above_it() -> None:
    parent = new_composite_pod_group(NESTED, "slice")["metadata"]["name"]
    assert new_pod_group(NESTED, "workers")["spec"]["parentCompositePodGroupName"] == parent


def test_a_group_joins_the_parent_that_it_is_given() -> None:
    group = new_pod_group(NESTED, "workers", parent="slice-7")
    assert group["spec"]["parentCompositePodGroupName"] == "slice-7"
    assert new_pod_group(FLAT, "workers", parent="top")["spec"]["parentCompositePodGroupName"] == (
        "top"
    )


def test_a_group_at_the_top_has_no_parent() -> None:
    assert "parentCompositePodGroupName" not in new_pod_group(FLAT, "workers")["spec"]


def test_instances_of_one_template_have_names_of_their_own() -> None:
    names = [
        new_pod_group(FLAT, "workers", instance=instance)["metadata"]["name"]
        for instance in ("", "0", "1")
    ]
    assert len(set(names)) == 3
    assert [name.rpartition("-")[0] for name in names] == [
        "train-workers", "train-workers-0", "train-workers-1",
    ]  # fmt: skip


def test_a_group_may_be_given_a_name() -> None:
    assert new_pod_group(FLAT, "workers", name="mine")["metadata"]["name"] == "mine"
    assert new_composite_pod_group(NESTED, "root", name="mine")["metadata"]["name"] == "mine"


def test_a_group_has_the_owners_that_it_is_given_or_none() -> None:
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


def test_a_whole_workload_is_made_parents_first() -> None:
    made = new_groups(NESTED)
    names = {
        group["spec"]["workloadRef"]["templateName"]: group["metadata"]["name"] for group in made
    }
    parents = [group["spec"].get("parentCompositePodGroupName") for group in made]
    assert list(names) == ["root", "driver", "slice", "workers"]
    assert parents == [None, names["root"], names["root"], names["slice"]]


def test_a_part_of_a_workload_is_made_as_often_as_needed() -> None:
    for instance in ("0", "1"):
        slice_, workers = new_groups(NESTED, "slice", instance=instance, parent="root-7")
        assert slice_["metadata"]["name"].startswith(f"train-slice-{instance}-")
        assert slice_["spec"]["parentCompositePodGroupName"] == "root-7"
        assert workers["spec"]["parentCompositePodGroupName"] == slice_["metadata"]["name"]


def test_a_part_that_names_no_parent_joins_the_group_above_it() -> None:
    root, *_ = new_groups(NESTED)
    slice_, _ = new_groups(NESTED, "slice", instance="0")
    assert slice_["spec"]["parentCompositePodGroupName"] == root["metadata"]["name"]


def test_a_part_that_is_not_there_is_told() -> None:
    with pytest.raises(NotFound, match=r'template "x" not found .*\(have \[root driver slice work'):
        new_groups(NESTED, "x")


def test_what_is_made_passes_the_rules_of_the_server() -> None:
    owners = (controller_reference(OWNER), owner_reference(NESTED))
    made = [*new_groups(NESTED, owners=owners), *new_groups(FLAT)]
    assert [errors_from_server(group) for group in made] == [[]] * 5


@pytest.mark.parametrize(
    ("make", "name", "message"),
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
def test_a_template_that_is_not_there_is_told(make: object, name: str, message: str) -> None:
    assert callable(make)
    with pytest.raises(NotFound) as refusal:
        make(NESTED, name)
    assert refusal.value.message == message


@pytest.mark.parametrize("spec", [{}, {"podGroupTemplates": None}])
def test_a_workload_may_have_no_templates(spec: Object) -> None:
    assert templates(workload(**spec)) == {}
    assert new_groups(workload(**spec)) == []


def test_groups_share_nothing_with_their_workload() -> None:
    before = copy.deepcopy(NESTED)
    for group in new_groups(NESTED):
        group["spec"]["schedulingPolicy"].clear()
        group["spec"]["schedulingConstraints"]["topology"].append({"key": "x"})
    assert before == NESTED
