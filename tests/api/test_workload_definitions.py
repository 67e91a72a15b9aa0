"""The rules of our custom resources are those of scheduling.k8s.io, as a server enforces them."""

from __future__ import annotations

from copy import deepcopy

import pytest

from phalanx.api.custom_resources.workload_definitions import workload_definitions
from phalanx.api.errors import Invalid
from phalanx.api.kinds import Kind
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.api.workload_sources import (
    CUSTOM_COMPOSITE_POD_GROUP,
    CUSTOM_POD_GROUP,
    CUSTOM_WORKLOAD,
)
from tests.builders import in_virtual_time
from tests.controllers.cluster import Cluster
from tests.controllers.custom_groups import custom_cluster

GANG: Object = {"gang": {"minCount": 2}}
GROUP_GANG: Object = {"gang": {"minGroupCount": 1}}
TEMPLATE: Object = {"name": "worker", "schedulingPolicy": GANG}
REFERENCE: Object = {"workloadName": "train", "templateName": "worker"}


def tree(levels: int, **top: object) -> Object:
    """A Workload spec with so many levels of composite templates."""
    template: Object = {
        "name": f"level-{levels}", "schedulingPolicy": GROUP_GANG, "podGroupTemplates": [TEMPLATE],
    }  # fmt: skip
    for level in range(levels - 1, 0, -1):
        template = {
            "name": f"level-{level}",
            "schedulingPolicy": GROUP_GANG,
            "compositePodGroupTemplates": [template],
        }
    return {"compositePodGroupTemplates": [{**template, **top}]}


VALID: dict[Kind, Object] = {
    CUSTOM_POD_GROUP: {
        "schedulingPolicy": GANG,
        "schedulingConstraints": {"topology": [{"key": "topology.kubernetes.io/zone"}]},
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
        "workloadRef": REFERENCE,
        "priority": 5,
    },
    CUSTOM_COMPOSITE_POD_GROUP: {"schedulingPolicy": GROUP_GANG, "workloadRef": REFERENCE},
    CUSTOM_WORKLOAD: {"podGroupTemplates": [TEMPLATE, {**TEMPLATE, "name": "driver"}]},
}


async def create(c: Cluster, kind: Kind, spec: Object) -> Object:
    meta = {"name": "train", "namespace": "default"}
    new = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": meta, "spec": spec}
    return await c.client.create(kind, deepcopy(new))


async def refusal(c: Cluster, kind: Kind, spec: Object) -> str:
    with pytest.raises(Invalid) as caught:
        await create(c, kind, spec)
    return str(caught.value)


@in_virtual_time
async def test_valid_objects_get_the_defaults_of_groups() -> None:
    async with custom_cluster(*workload_definitions(), nodes=0) as c:
        for kind, spec in VALID.items():
            created = await create(c, kind, spec)
            if kind is not CUSTOM_WORKLOAD:
                assert created["spec"]["disruptionMode"] == {"single": {}}
                assert created["spec"]["preemptionPolicy"] == "PreemptLowerPriority"
        await c.client.delete(CUSTOM_WORKLOAD, Key("default", "train"))
        await create(c, CUSTOM_WORKLOAD, tree(3))


INVALID_SPECS: list[tuple[Kind, Object, str]] = [
    (CUSTOM_POD_GROUP, {}, "schedulingPolicy: Required value"),
    (CUSTOM_POD_GROUP, {"schedulingPolicy": {}}, "must specify one of"),
    (CUSTOM_POD_GROUP, {"schedulingPolicy": {**GANG, "basic": {}}}, "must specify one of"),
    (CUSTOM_POD_GROUP, {"schedulingPolicy": {"gang": {"minCount": 0}}}, "minCount"),
    (CUSTOM_POD_GROUP, {"priority": 2_000_000_000}, "priority"),
    (CUSTOM_POD_GROUP, {"preemptionPolicy": "Sometimes"}, "preemptionPolicy"),
    (CUSTOM_POD_GROUP, {"disruptionMode": {"single": {}, "all": {}}}, "must specify one of"),
    (
        CUSTOM_POD_GROUP,
        {"schedulingConstraints": {"topology": [{"key": "a"}, {"key": "b"}]}},
        "must have at most 1 item",
    ),
    (CUSTOM_POD_GROUP, {"schedulingConstraints": {"topology": [{"key": "-"}]}}, "key"),
    (CUSTOM_POD_GROUP, {"resourceClaims": [{"name": "gpu"}]}, "must specify one of"),
    (
        CUSTOM_POD_GROUP,
        {"parentCompositePodGroupName": "parent", "workloadRef": None},
        "workloadRef must be set when parentCompositePodGroupName is set",
    ),
    (CUSTOM_COMPOSITE_POD_GROUP, {"workloadRef": None}, "workloadRef: Required value"),
    (CUSTOM_COMPOSITE_POD_GROUP, {"schedulingPolicy": {}}, "must specify one of"),
    (CUSTOM_WORKLOAD, {"podGroupTemplates": None}, "must specify one of"),
    (CUSTOM_WORKLOAD, tree(1), "must specify one of"),
    (CUSTOM_WORKLOAD, {"podGroupTemplates": [TEMPLATE, TEMPLATE]}, "Duplicate value"),
    (
        CUSTOM_WORKLOAD,
        {"podGroupTemplates": [TEMPLATE, {**TEMPLATE, "name": "b", "priority": 1}]},
        "values must be identical",
    ),
    (CUSTOM_WORKLOAD, {"podGroupTemplates": None, **tree(1, priority=3)}, "must be identical"),
    (CUSTOM_WORKLOAD, {"podGroupTemplates": None, **tree(4)}, "must have at most 0 items"),
    (
        CUSTOM_WORKLOAD,
        {"podGroupTemplates": None, **tree(1, podGroupTemplates=[])},
        "must have at least one child",
    ),
    (CUSTOM_WORKLOAD, {"controllerRef": {"kind": "Job", "name": "a/b"}}, "controllerRef.name"),
]


@in_virtual_time
async def test_invalid_objects_are_refused_with_the_field() -> None:
    async with custom_cluster(*workload_definitions(), nodes=0) as c:
        for kind, change, expected in INVALID_SPECS:
            spec = change and {**VALID[kind], **change}
            known = {name: value for name, value in spec.items() if value is not None}
            assert expected in await refusal(c, kind, known), change


CHANGES: list[tuple[Kind, Object, str]] = [
    (CUSTOM_POD_GROUP, {"schedulingPolicy": {"gang": {"minCount": 3}}}, ""),
    (CUSTOM_POD_GROUP, {"schedulingPolicy": {"gang": None, "basic": {}}}, "cannot become"),
    (CUSTOM_POD_GROUP, {"priority": 6}, "spec.priority: Invalid value"),
    (CUSTOM_POD_GROUP, {"priorityClassName": "high"}, "field is immutable"),
    (CUSTOM_POD_GROUP, {"workloadRef": {"templateName": "other"}}, "field is immutable"),
    (CUSTOM_COMPOSITE_POD_GROUP, {"schedulingPolicy": {"gang": {"minGroupCount": 2}}}, "immutable"),
    (CUSTOM_WORKLOAD, {"podGroupTemplates": [TEMPLATE]}, "templates cannot be added"),
]


@in_virtual_time
async def test_after_creation_only_the_size_of_a_gang_may_change() -> None:
    async with custom_cluster(*workload_definitions(), nodes=0) as c:
        for kind, spec in VALID.items():
            await create(c, kind, spec)
        for kind, change, expected in CHANGES:
            try:
                await c.client.patch(kind, Key("default", "train"), {"spec": change})
                found = ""
            except Invalid as error:
                found = str(error)
            assert expected in found, change
            assert bool(expected) == bool(found), change
