"""Workloads built from trees of items."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from phalanx.api.errors import Invalid
from phalanx.api.wire import Object
from phalanx.builder import (
    All,
    Basic,
    Gang,
    ResourceClaim,
    SchedulingConfig,
    Single,
    WorkloadBuilder,
    WorkloadItem,
    default_min_count,
)
from tests.builder.item_trees import (
    EVERYTHING,
    OWNER,
    build_workload,
    composite,
    config,
    errors_from_server,
    leaf,
    template,
)

# ---------------------------------------------------------------------------------- flat results


@pytest.mark.parametrize("item", [leaf(), leaf(default=config(Basic()))])
def test_group_without_configuration_is_basic(item: WorkloadItem) -> None:
    assert template(item) == {"name": "workers", "schedulingPolicy": {"basic": {}}}


def test_gang_has_its_size() -> None:
    assert template(leaf(default=config(Gang(4))))["schedulingPolicy"] == {"gang": {"minCount": 4}}


def test_callback_sets_the_size_of_a_gang() -> None:
    item = leaf(user=config(Gang()), callbacks=[default_min_count(8)])
    assert template(item)["schedulingPolicy"] == {"gang": {"minCount": 8}}


def test_callback_may_change_every_field() -> None:
    def change_all(resolved: SchedulingConfig) -> SchedulingConfig:
        return replace(resolved, policy=Gang(12), disruption_mode=All())

    assert template(leaf(callbacks=[change_all])) == {
        "name": "workers",
        "schedulingPolicy": {"gang": {"minCount": 12}},
        "disruptionMode": {"all": {}},
    }


def test_gang_of_the_user_overrides_a_basic_default() -> None:
    item = leaf(default=config(Basic()), user=config(Gang(3)))
    assert template(item)["schedulingPolicy"] == {"gang": {"minCount": 3}}


def test_default_and_user_are_merged_field_by_field() -> None:
    item = leaf(
        default=config(Gang(4), Single(), topology=("zone",)), user=config(topology=("rack",))
    )
    assert template(item) == {
        "name": "workers",
        "schedulingPolicy": {"gang": {"minCount": 4}},
        "schedulingConstraints": {"topology": [{"key": "rack"}]},
        "disruptionMode": {"single": {}},
    }


def test_template_has_every_field_of_a_configuration() -> None:
    full = SchedulingConfig(
        policy=Gang(4),
        topology=("zone",),
        disruption_mode=All(),
        resource_claims=(ResourceClaim("a", "x"), ResourceClaim("b", None, "y")),
        priority_class_name="high",
        priority=0,
        preemption_policy="Never",
    )
    assert template(leaf(default=full)) == {
        "name": "workers",
        "schedulingPolicy": {"gang": {"minCount": 4}},
        "schedulingConstraints": {"topology": [{"key": "zone"}]},
        "resourceClaims": [
            {"name": "a", "resourceClaimName": "x"},
            {"name": "b", "resourceClaimTemplateName": "y"},
        ],
        "disruptionMode": {"all": {}},
        "priorityClassName": "high",
        "priority": 0,
        "preemptionPolicy": "Never",
    }


def test_single_item_becomes_one_pod_group_template() -> None:
    spec = build_workload(leaf())["spec"]
    assert [one["name"] for one in spec["podGroupTemplates"]] == ["workers"]
    assert "compositePodGroupTemplates" not in spec


# ----------------------------------------------------------------------------- composite results


def test_items_with_children_become_composite_templates() -> None:
    root = composite(
        "root",
        leaf("driver"),
        leaf("workers", config(Gang(8))),
        user=config(Gang(2)),
    )
    assert template(root) == {
        "name": "root",
        "schedulingPolicy": {"gang": {"minGroupCount": 2}},
        "podGroupTemplates": [
            {"name": "driver", "schedulingPolicy": {"basic": {}}},
            {"name": "workers", "schedulingPolicy": {"gang": {"minCount": 8}}},
        ],
    }
    assert "podGroupTemplates" not in build_workload(root)["spec"]


def test_composite_group_is_basic_by_default() -> None:
    assert template(composite("root", leaf()))["schedulingPolicy"] == {"basic": {}}


def test_user_overrides_min_group_count() -> None:
    root = composite("root", leaf(), user=config(Gang(3)), default=config(Gang(2)))
    assert template(root)["schedulingPolicy"] == {"gang": {"minGroupCount": 3}}


def test_composite_group_has_constraints_and_a_disruption_mode() -> None:
    root = composite(
        "root", leaf(user=config(Gang(2))), user=config(Gang(1), All(), topology=("block",))
    )
    assert template(root)["schedulingConstraints"] == {"topology": [{"key": "block"}]}
    assert template(root)["disruptionMode"] == {"all": {}}


def test_templates_nest_in_the_order_of_the_children() -> None:
    root = composite(
        "root",
        composite("a", leaf("a-1"), leaf("a-2")),
        leaf("b"),
        composite("c", composite("d", leaf("d-1"))),
        leaf("e"),
    )
    built = template(root)
    assert [one["name"] for one in built["podGroupTemplates"]] == ["b", "e"]
    first, second = built["compositePodGroupTemplates"]
    assert [one["name"] for one in first["podGroupTemplates"]] == ["a-1", "a-2"]
    assert second["compositePodGroupTemplates"][0]["podGroupTemplates"][0]["name"] == "d-1"


def test_gang_inherits_disruption_mode_all() -> None:
    root = composite(
        "root",
        composite("middle", leaf("inner", config(Gang(2))), user=config(Gang(1))),
        leaf("outer", config(Gang(2))),
        user=config(Gang(2), All()),
    )
    built = template(root)
    (middle,) = built["compositePodGroupTemplates"]
    below = (middle, *middle["podGroupTemplates"], *built["podGroupTemplates"])
    assert [one["disruptionMode"] for one in below] == [{"all": {}}] * 3


def test_composite_group_inherits_the_priority_of_its_children() -> None:
    pods = config(priority_class_name="high", priority=7, preemption_policy="Never")
    root = composite("root", composite("middle", leaf("a", pods)), leaf("b", pods))
    built = template(root)
    for one in (built, *built["compositePodGroupTemplates"]):
        assert (one["priorityClassName"], one["priority"], one["preemptionPolicy"]) == (
            "high",
            7,
            "Never",
        )


def test_composite_group_inherits_only_what_its_children_share() -> None:
    root = composite("root", leaf("a", config(preemption_policy="Never")), leaf("b"))
    assert "preemptionPolicy" not in template(root)


# --------------------------------------------------------------------------- owner and metadata


def test_workload_is_controlled_by_its_owner() -> None:
    workload = build_workload(leaf())
    assert workload["apiVersion"] == "scheduling.k8s.io/v1beta1"
    assert workload["kind"] == "Workload"
    assert workload["metadata"] == {
        "name": "llm-795ddf89fd",
        "namespace": "team",
        "ownerReferences": [
            {
                "apiVersion": "example.com/v1",
                "kind": "Training",
                "name": "llm",
                "uid": "uid-123",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    assert workload["spec"]["controllerRef"] == {
        "apiGroup": "example.com",
        "kind": "Training",
        "name": "llm",
    }


def test_owner_of_the_core_group_has_an_empty_api_group() -> None:
    owner = {**OWNER, "apiVersion": "v1"}
    workload = WorkloadBuilder(leaf(), EVERYTHING).build(owner)
    assert workload["spec"]["controllerRef"]["apiGroup"] == ""


def test_workload_may_have_an_explicit_name() -> None:
    workload = WorkloadBuilder(leaf(), EVERYTHING).build(OWNER, name="mine")
    assert workload["metadata"]["name"] == "mine"


@pytest.mark.parametrize(
    ("owner", "field"),
    [
        ({}, "spec.controllerRef.kind"),
        ({**OWNER, "apiVersion": ""}, "metadata.ownerReferences[0].apiVersion"),
        ({**OWNER, "apiVersion": "not a group/v1"}, "spec.controllerRef.apiGroup"),
        ({**OWNER, "kind": ""}, "metadata.ownerReferences[0].kind"),
        ({**OWNER, "metadata": {"name": "llm", "uid": "u"}}, "metadata.namespace"),
        (
            {**OWNER, "metadata": {"name": "llm", "namespace": "n"}},
            "metadata.ownerReferences[0].uid",
        ),
    ],
)
def test_incomplete_owner_is_rejected(owner: Object, field: str) -> None:
    with pytest.raises(Invalid) as error:
        WorkloadBuilder(leaf(), EVERYTHING).build(owner)
    assert field in [cause.field for cause in error.value.causes]


# ---------------------------------------------------------------------------------------- errors


def test_error_names_every_field_of_the_users_object() -> None:
    item = leaf(
        user=config(Gang(0), topology=("zone", "rack")),
        path="spec.scheduling",
        fields={"schedulingConstraints": "spec.near"},
    )
    with pytest.raises(Invalid) as error:
        build_workload(item)
    assert [str(cause) for cause in error.value.causes] == [
        "spec.scheduling.schedulingPolicy.gang.minCount: Invalid value: 0: "
        "must be greater than or equal to 1",
        "spec.near.topology: Too many: 2: must have at most 1 item",
    ]
    assert error.value.message.startswith(
        'Workload.scheduling.k8s.io "llm-795ddf89fd" is invalid: [spec.scheduling.'
    )
    assert error.value.code == 422


@pytest.mark.parametrize(
    "root",
    [
        leaf(user=config(Gang())),
        composite("root", leaf(), user=config(Gang())),
        leaf(""),
        composite("root", leaf("")),
        composite("root", leaf("root")),
        composite("root", leaf("a"), leaf("a")),
        composite("root", composite("a", leaf("b")), leaf("b")),
        composite("root", leaf(), user=config(resource_claims=(ResourceClaim("a", "x"),))),
    ],
    ids=[
        "gang without a size",
        "composite gang without a size",
        "no name",
        "no name below",
        "name of the parent",
        "name of a sibling",
        "name of a nephew",
        "claims of a composite",
    ],
)
def test_invalid_tree_is_rejected(root: WorkloadItem) -> None:
    with pytest.raises(Invalid):
        build_workload(root)


def test_rejected_tree_runs_its_callbacks_at_every_build() -> None:
    calls: list[SchedulingConfig] = []

    def record(resolved: SchedulingConfig) -> SchedulingConfig:
        calls.append(resolved)
        return resolved

    builder = WorkloadBuilder(leaf(user=config(Gang()), callbacks=[record]), EVERYTHING)
    for _ in range(2):
        with pytest.raises(Invalid):
            builder.build(OWNER)
    assert calls == [config(Gang())] * 2


# ---------------------------------------------------------------------------------------- purity


def test_building_changes_no_input_and_shares_no_output() -> None:
    owner = copy.deepcopy(OWNER)
    builder = WorkloadBuilder(leaf(user=config(Gang(2))), EVERYTHING)
    first, second = builder.build(owner), builder.build(owner)
    assert first == second
    first["spec"]["podGroupTemplates"][0]["schedulingPolicy"]["gang"]["minCount"] = 99
    first["metadata"]["ownerReferences"].clear()
    assert builder.build(owner) == second
    assert owner == OWNER


def test_built_workload_passes_server_validation() -> None:
    root = composite(
        "root",
        composite("middle", leaf("a", config(Gang(2), topology=("rack",)))),
        leaf("b", config(resource_claims=(ResourceClaim("c", "x"),))),
    )
    assert errors_from_server(build_workload(root)) == []
