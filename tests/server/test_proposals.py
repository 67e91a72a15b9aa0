"""Workloads and PodGroups in the forms that the proposals used for the first version."""

from __future__ import annotations

import pytest

from phalanx.api.kinds import POD_GROUP, POD_GROUP_V1ALPHA1, WORKLOAD, WORKLOAD_V1ALPHA1, Kind
from phalanx.api.wire import Object
from tests.builders import in_virtual_time
from tests.server.api import Api
from tests.server.old_versions import (
    GANG,
    LEAF,
    REFERENCE,
    api_with_workload,
    apply_object,
    example,
    new_object,
    post_object,
)


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ({"podGroups": [{"name": "a", "policy": GANG}]}, []),
        ({"podGroupTemplates": [{"name": "a", "policy": GANG}]}, ["spec.podGroupTemplates"]),
        (
            {"podGroupTemplates": [{"name": "a", "schedulingPolicy": GANG}]},
            ["spec.podGroupTemplates", "spec.podGroupTemplates[0].schedulingPolicy"],
        ),
        (
            {"podGroupTemplate": [{"name": "a", "schedulingPolicy": GANG}]},
            ["spec.podGroupTemplate", "spec.podGroupTemplate[0].schedulingPolicy"],
        ),
    ],
)
@in_virtual_time
async def test_a_workload_may_use_the_template_names_of_any_proposal(
    spec: Object, names: list[str]
) -> None:
    api = await Api.start()
    answer = await post_object(api, WORKLOAD_V1ALPHA1, new_object(WORKLOAD_V1ALPHA1, "x", **spec))
    assert answer.body.get("spec") == {"podGroups": [{"name": "a", "policy": GANG}]}, answer.body
    warnings = [
        text.partition('"')[2].partition(":")[0] for text in answer.header_values("warning")[:-1]
    ]
    assert warnings == names
    found = (await api.get(WORKLOAD, "x"))["spec"]
    assert found == {"podGroupTemplates": [{"name": "a", "schedulingPolicy": GANG}]}


@pytest.mark.parametrize(
    ("said", "stored"),
    [
        ({"apiVersion": "batch/v1"}, {"apiGroup": "batch"}),
        ({"apiVersion": "v1"}, {}),
        ({"apiGroup": "batch"}, {"apiGroup": "batch"}),
        ({"apiGroup": "batch", "apiVersion": "batch/v1"}, {"apiGroup": "batch"}),
    ],
)
@in_virtual_time
async def test_a_controller_may_be_named_by_its_api_version(said: Object, stored: Object) -> None:
    api = await Api.start()
    obj = example(WORKLOAD_V1ALPHA1)
    obj["spec"]["controllerRef"] = {"kind": "Job", "name": "j", **said}
    assert (await post_object(api, WORKLOAD_V1ALPHA1, obj)).code == 201
    found = (await api.get(WORKLOAD, "x"))["spec"]["controllerRef"]
    assert found == {"kind": "Job", "name": "j", **stored}


WHOLE = {
    "apiVersion": "scheduling.k8s.io/v1alpha1", "kind": "Workload", "name": "w",
    "namespace": "default", "uid": "u",
}  # fmt: skip


@pytest.mark.parametrize(
    "said",
    [
        {"podGroupTemplateRef": {"workload": REFERENCE}},
        {"podGroupTemplateReference": {"workload": REFERENCE}},
        {"workloadRef": {"name": "w"}, "podGroupTemplateRef": {"name": "a"}},
        {"workloadRef": WHOLE, "podGroupTemplateName": "a"},
        {"workloadRef": WHOLE, "podGroupTemplateName": "a", "podGroupTemplateRef": {"name": "a"}},
    ],
)
@in_virtual_time
async def test_a_group_may_use_the_reference_of_any_proposal(said: Object) -> None:
    api = await api_with_workload(podGroupTemplates=[{"name": "a", "schedulingPolicy": GANG}])
    answer = await post_object(api, POD_GROUP_V1ALPHA1, new_object(POD_GROUP_V1ALPHA1, "g", **said))
    assert answer.code == 201, answer.body
    assert answer.body["spec"]["podGroupTemplateRef"] == {"workload": REFERENCE}
    assert answer.body["spec"]["schedulingPolicy"] == GANG
    await api.patch(POD_GROUP, "g", {"metadata": {"finalizers": None}})
    await api.delete(POD_GROUP, "g")
    again = await apply_object(api, POD_GROUP_V1ALPHA1, new_object(POD_GROUP_V1ALPHA1, "g", **said))
    assert (again.code, again.body["spec"]) == (201, answer.body["spec"])


@pytest.mark.parametrize(
    ("kind", "spec", "place"),
    [
        (
            WORKLOAD_V1ALPHA1,
            {"podGroups": [], "podGroupTemplates": [{"name": "a", "policy": GANG}]},
            "spec.podGroupTemplates",
        ),
        (
            POD_GROUP_V1ALPHA1,
            {"podGroupTemplateName": "a", "podGroupTemplateRef": {"name": "b"}},
            "spec.podGroupTemplateRef.name",
        ),
        (
            POD_GROUP_V1ALPHA1,
            {"workloadRef": {"name": "w", "kind": "Job"}},
            "spec.workloadRef.kind",
        ),
        (
            POD_GROUP_V1ALPHA1,
            {"workloadRef": {"name": "w", "apiVersion": "batch/v1"}},
            "spec.workloadRef.apiVersion",
        ),
        (POD_GROUP_V1ALPHA1, {"workloadRef": "w"}, "spec.workloadRef"),
        (
            POD_GROUP_V1ALPHA1,
            {"workloadRef": {"name": "w", "namespace": "elsewhere"}, "podGroupTemplateName": "a"},
            "spec.workloadRef.namespace",
        ),
    ],
)
@in_virtual_time
async def test_a_contradiction_is_refused_with_the_name_that_the_client_used(
    kind: Kind, spec: Object, place: str
) -> None:
    api = await Api.start()
    answer = await post_object(api, kind, new_object(kind, "x", **spec))
    assert (answer.code, [field for field, _ in answer.cause_reasons]) == (422, [place])


@in_virtual_time
async def test_a_patch_may_use_the_names_of_any_proposal() -> None:
    api = await api_with_workload()
    path = "/spec/podGroupTemplates/0/schedulingPolicy/gang/minCount"
    answer = await api.patch(
        WORKLOAD_V1ALPHA1, "w", [{"op": "replace", "path": path, "value": 3}], "json"
    )
    assert answer.code == 200, answer.body
    change = [{"name": "a", "schedulingPolicy": {"gang": {"minCount": 4}}}]
    for at, (content, field) in enumerate(
        (("merge", "podGroupTemplate"), ("strategic", "podGroupTemplates"))
    ):
        change[0]["schedulingPolicy"] = {"gang": {"minCount": 4 + at}}
        answer = await api.patch(WORKLOAD_V1ALPHA1, "w", {"spec": {field: change}}, content)
        assert answer.code == 200, answer.body
        stored = (await api.get(WORKLOAD, "w"))["spec"]["podGroupTemplates"]
        assert stored == [{**LEAF, "schedulingPolicy": {"gang": {"minCount": 4 + at}}}]
