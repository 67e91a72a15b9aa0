"""PodGroups of old versions that only refer to a template, and the fields that they get from it."""

from __future__ import annotations

import pytest

from phalanx.api.kinds import POD_GROUP, POD_GROUP_V1ALPHA2, PRIORITY_CLASS, WORKLOAD, Kind
from phalanx.api.wire import Object
from tests.builders import in_virtual_time
from tests.server.api import Api
from tests.server.old_versions import (
    GANG,
    LEAF,
    REFERENCE,
    TREE,
    api_with_workload,
    apply_object,
    each_group,
    new_object,
    pod_group_with_reference,
    post_object,
    put_object,
)


@each_group
@in_virtual_time
async def test_a_group_with_only_a_reference_gets_the_fields_of_the_template(kind: Kind) -> None:
    terms: Object = {
        "schedulingPolicy": {"gang": {"minCount": 4}},
        "schedulingConstraints": {"topology": [{"key": "rack"}]},
        "disruptionMode": {"all": {}},
        "resourceClaims": [{"name": "c", "resourceClaimName": "gpus"}],
    }
    api = await api_with_workload(podGroupTemplates=[{"name": "a", **terms}])
    answer = await post_object(api, kind, pod_group_with_reference(kind))
    assert answer.code == 201, answer.body
    spec = (await api.get(POD_GROUP, "g"))["spec"]
    assert {key: spec[key] for key in terms} == terms
    assert spec["workloadRef"] == {"workloadName": "w", "templateName": "a"}


@each_group
@in_virtual_time
async def test_fields_of_a_group_are_not_replaced_by_the_template(kind: Kind) -> None:
    api = await api_with_workload(
        podGroupTemplates=[{"name": "a", "schedulingPolicy": GANG, "disruptionMode": {"all": {}}}]
    )
    await api.create(kind, pod_group_with_reference(kind, "some", disruptionMode="Pod"))
    await api.create(kind, pod_group_with_reference(kind, "own", schedulingPolicy={"basic": {}}))
    some, own = await api.get(POD_GROUP, "some"), await api.get(POD_GROUP, "own")
    assert some["spec"]["schedulingPolicy"] == GANG
    assert some["spec"]["disruptionMode"] == {"single": {}}
    assert own["spec"]["schedulingPolicy"] == {"basic": {}}
    assert own["spec"]["disruptionMode"] == {"single": {}}


@in_virtual_time
async def test_a_template_below_a_composite_template_is_found() -> None:
    api = await api_with_workload(**TREE)
    priority = {"metadata": {"name": "meek"}, "value": 0, "preemptionPolicy": "Never"}
    await api.create(PRIORITY_CLASS, priority)
    group = pod_group_with_reference(POD_GROUP_V1ALPHA2, priorityClassName="meek")
    answer = await post_object(api, POD_GROUP_V1ALPHA2, group)
    assert (answer.code, answer.body["spec"].get("schedulingPolicy")) == (201, GANG), answer.body
    group = pod_group_with_reference(POD_GROUP_V1ALPHA2)
    group["spec"]["podGroupTemplateRef"]["workload"] = {**REFERENCE, "podGroupTemplateName": "tree"}
    assert (await post_object(api, POD_GROUP_V1ALPHA2, group)).code == 422


@pytest.mark.parametrize("named", ["", "meek"])
@each_group
@in_virtual_time
async def test_the_preemption_policy_comes_from_the_priority_class_and_not_from_the_template(
    kind: Kind, named: str
) -> None:
    leaf = {**LEAF, "priorityClassName": named} if named else LEAF
    api = await api_with_workload(podGroupTemplates=[leaf])
    priority = {"metadata": {"name": "meek"}, "value": 5, "preemptionPolicy": "Never"}
    await api.create(PRIORITY_CLASS, priority)
    answer = await post_object(api, kind, pod_group_with_reference(kind))
    assert answer.code == 201, answer.body
    spec = (await api.get(POD_GROUP, "g"))["spec"]
    assert spec["preemptionPolicy"] == ("Never" if named else "PreemptLowerPriority")
    warnings = [text for text in answer.header_values("warning") if "only a PriorityClass" in text]
    assert len(warnings) == (0 if named else 1)


@each_group
@in_virtual_time
async def test_a_missing_workload_or_template_is_invalid(kind: Kind) -> None:
    api = await api_with_workload()
    where = "spec.podGroupTemplateRef.workload"
    for said, place, text in (
        ({**REFERENCE, "workloadName": "v"}, "workloadName", 'in namespace "default"'),
        ({**REFERENCE, "podGroupTemplateName": "b"}, "podGroupTemplateName", 'Workload "w" has no'),
    ):
        answer = await post_object(
            api, kind, new_object(kind, "g", podGroupTemplateRef={"workload": said})
        )
        assert (answer.code, answer.cause_reasons) == (
            422, [(f"{where}.{place}", "FieldValueNotFound")],
        )  # fmt: skip
        assert text in answer.body["message"]
        own = new_object(kind, "own", podGroupTemplateRef={"workload": said}, schedulingPolicy=GANG)
        assert (await post_object(api, kind, own)).code == 201
        await api.patch(POD_GROUP, "own", {"metadata": {"finalizers": None}})
        await api.delete(POD_GROUP, "own")


@in_virtual_time
async def test_a_missing_namespace_is_reported_first() -> None:
    api = await Api.start()
    group = pod_group_with_reference(POD_GROUP_V1ALPHA2)
    group["metadata"]["namespace"] = "nowhere"
    answer = await api.ask("POST", POD_GROUP_V1ALPHA2.url_path("nowhere"), group)
    assert (answer.code, answer.body["details"]["kind"]) == (404, "namespaces")


@in_virtual_time
async def test_a_group_of_a_new_version_needs_a_policy() -> None:
    api = await api_with_workload()
    group = new_object(POD_GROUP, "g", workloadRef={"workloadName": "w", "templateName": "a"})
    answer = await post_object(api, POD_GROUP, group)
    assert (answer.code, answer.cause_reasons) == (
        422,
        [("spec.schedulingPolicy", "FieldValueInvalid")],
    )


@each_group
@in_virtual_time
async def test_a_completed_group_does_not_depend_on_its_workload(
    kind: Kind,
) -> None:
    api = await api_with_workload(podGroupTemplates=[{"name": "a", "schedulingPolicy": GANG}])
    (group,) = await api.create(kind, pod_group_with_reference(kind))
    before = (await api.get(POD_GROUP, "g"))["spec"]
    await api.delete(WORKLOAD, "w")
    again = pod_group_with_reference(kind)
    again["metadata"] = {**group["metadata"], "labels": {"k": "v"}}
    assert (await put_object(api, kind, again)).code == 200
    assert (await api.get(POD_GROUP, "g"))["spec"] == before
    assert (await apply_object(api, kind, pod_group_with_reference(kind))).code == 200
    assert (await api.get(POD_GROUP, "g"))["spec"] == before


@each_group
@in_virtual_time
async def test_a_reference_alone_can_be_applied(kind: Kind) -> None:
    api = await api_with_workload(podGroupTemplates=[{"name": "a", "schedulingPolicy": GANG}])
    assert (await apply_object(api, kind, pod_group_with_reference(kind))).code == 201
    assert (await apply_object(api, kind, pod_group_with_reference(kind))).code == 200
    assert (await api.get(kind, "g"))["spec"]["schedulingPolicy"] == GANG
