"""Field aliases in every type of request: accepted with a warning, never stored."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from phalanx.api.conversion.workload_references import TEMPLATE_ANNOTATION, WORKLOAD_ANNOTATION
from phalanx.api.kinds import CRON_JOB, JOB, POD, POD_TEMPLATE
from phalanx.api.meta import LAST_APPLIED_ANNOTATION
from phalanx.api.wire import Object
from tests.builders import in_virtual_time, pod
from tests.server.api import Api, ApiResponse

TEMPLATE: Object = {
    "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "app:1"}]}
}
ALIASED: Object = {
    "policy": {"gang": {"minCount": 2}},
    "constraints": {"topology": [{"level": "zone"}]},
    "disruption": {"all": {}},
}
STORED: Object = {
    "schedulingPolicy": {"gang": {"minCount": 2}},
    "schedulingConstraints": {"topology": [{"key": "zone"}]},
    "disruptionMode": {"all": {}},
}
REPLICA: Object = {"name": "w", "podGroup": "t", "podGroupReplicaKey": "1"}
APPLY = {"content-type": "application/apply-patch+yaml"}


def job(scheduling: Object, name: str = "x") -> Object:
    spec = {"template": TEMPLATE, "parallelism": 4, "completions": 4, "scheduling": scheduling}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def cron_job(scheduling: Object) -> Object:
    spec = {"schedule": "@daily", "jobTemplate": {"spec": job(scheduling)["spec"]}}
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "x"}, "spec": spec}


async def post_object(api: Api, obj: Object, **query: object) -> ApiResponse:
    kind = {"Job": JOB, "CronJob": CRON_JOB, "Pod": POD}[obj["kind"]]
    return await api.ask("POST", kind.url_path("default"), obj, query=query)


async def scheduling(api: Api) -> Any:
    return (await api.get(JOB, "x"))["spec"]["scheduling"]


@in_virtual_time
async def test_aliases_are_stored_under_the_canonical_names() -> None:
    api = await Api.start()
    answer = await post_object(api, job(ALIASED))
    assert answer.code == 201
    assert answer.body["spec"]["scheduling"] == STORED
    assert await scheduling(api) == STORED


@in_virtual_time
async def test_every_alias_gets_a_warning_with_the_canonical_name() -> None:
    api = await Api.start()
    warnings = (await post_object(api, job(ALIASED))).header_values("warning")
    assert warnings[0] == (
        '299 - "spec.scheduling.policy: deprecated; use spec.scheduling.schedulingPolicy instead"'
    )
    assert len(warnings) == 4
    assert (await post_object(api, job(STORED, "y"))).header_values("warning") == []


@in_virtual_time
async def test_aliases_are_not_unknown_fields_with_strict_validation() -> None:
    api = await Api.start()
    assert (await post_object(api, job(ALIASED), fieldValidation="Strict")).code == 201
    strange = job({"rules": {}}, "y")
    assert (await post_object(api, strange, fieldValidation="Strict")).code == 400


@in_virtual_time
async def test_fields_that_are_no_aliases_are_unknown() -> None:
    api = await Api.start()
    reference = {"workloadRef": {"name": "w", "podGroupName": "g", "color": "red"}}
    refused = await post_object(api, pod("p", spec=reference), fieldValidation="Strict")
    assert refused.code == 400
    assert 'unknown field "spec.schedulingGroup.color"' in refused.body["message"]
    assert (await post_object(api, pod("p", spec=reference))).code == 201


@in_virtual_time
async def test_a_request_with_an_alias_and_its_field_is_refused() -> None:
    api = await Api.start()
    both = await post_object(api, job({**ALIASED, "schedulingPolicy": {"gang": {}}}))
    assert both.code == 422
    assert both.cause_reasons == [("spec.scheduling.policy", "FieldValueForbidden")]
    assert both.body["message"].startswith('Job.batch "x" is invalid: ')


@in_virtual_time
async def test_an_update_may_use_aliases() -> None:
    api = await Api.start()
    wanted = (await post_object(api, job(ALIASED))).body
    wanted["spec"]["scheduling"] = {**ALIASED, "policy": {"gang": {"minCount": 3}}}
    answer = await api.ask("PUT", JOB.url_path("default", "x"), wanted)
    assert answer.code == 200, answer.body
    assert answer.body["spec"]["scheduling"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
    assert len(answer.header_values("warning")) == 4


@pytest.mark.parametrize("content", ["merge", "strategic"])
@in_virtual_time
async def test_a_merge_patch_may_use_aliases(content: str) -> None:
    api = await Api.start()
    await post_object(api, job(STORED))
    change = {"spec": {"scheduling": {"policy": {"gang": {"minCount": 3}}}}}
    answer = await api.patch(JOB, "x", change, content)
    assert answer.code == 200, answer.body
    assert (await scheduling(api))["schedulingPolicy"] == {"gang": {"minCount": 3}}
    assert len(answer.header_values("warning")) == 1


@in_virtual_time
async def test_a_json_patch_may_use_aliases() -> None:
    api = await Api.start()
    await post_object(api, job(STORED))
    at = "/spec/scheduling"
    steps = [
        {"op": "test", "path": f"{at}/constraints/topology/0", "value": {"level": "zone"}},
        {"op": "copy", "from": f"{at}/policy/gang/minCount", "path": "/spec/parallelism"},
        {"op": "replace", "path": f"{at}/policy/gang/minCount", "value": 1},
    ]
    answer = await api.patch(JOB, "x", steps, "json")
    assert answer.code == 200, answer.body
    assert answer.body["spec"]["parallelism"] == 2
    assert (await scheduling(api))["schedulingPolicy"] == {"gang": {"minCount": 1}}


@in_virtual_time
async def test_an_applied_alias_owns_the_stored_field() -> None:
    api = await Api.start()
    query = {"fieldManager": "me"}
    path = JOB.url_path("default", "x")
    answer = await api.ask("PATCH", path, job(ALIASED), headers=APPLY, query=query)
    assert answer.code == 201, answer.body
    changed = job({**ALIASED, "policy": {"gang": {"minCount": 3}}})
    answer = await api.ask("PATCH", path, changed, headers=APPLY, query=query)
    assert answer.code == 200, answer.body
    assert (await scheduling(api))["schedulingPolicy"] == {"gang": {"minCount": 3}}
    owned = answer.body["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:scheduling"]
    assert sorted(owned) == ["f:disruptionMode", "f:schedulingConstraints", "f:schedulingPolicy"]


@in_virtual_time
async def test_replacing_an_alias_by_its_field_changes_nothing() -> None:
    api = await Api.start()
    await post_object(api, job(ALIASED))
    manifest = '{"spec": {"scheduling": {"schedulingPolicy": {"gang": {"minCount": 2}}}}}'
    change = {
        "metadata": {"annotations": {LAST_APPLIED_ANNOTATION: manifest}},
        "spec": {"scheduling": {"policy": None}},
    }
    answer = await api.patch(JOB, "x", change, "strategic")
    assert answer.code == 200, answer.body
    assert await scheduling(api) == STORED


@pytest.mark.parametrize("content", ["merge", "strategic"])
@in_virtual_time
async def test_null_for_an_alias_removes_no_stored_field(content: str) -> None:
    api = await Api.start()
    await post_object(api, job(STORED))
    nulls = {"policy": None, "constraints": None, "disruption": None}
    answer = await api.patch(JOB, "x", {"spec": {"scheduling": nulls}}, content)
    assert answer.code == 200, answer.body
    assert await scheduling(api) == STORED


@in_virtual_time
async def test_removing_an_alias_from_a_manifest_removes_the_field() -> None:
    api = await Api.start()
    spec = {**TEMPLATE["spec"], "workloadRef": REPLICA}
    template = {"metadata": {"name": "x"}, "template": {"spec": spec}}
    await api.ask("POST", POD_TEMPLATE.url_path("default"), template)
    manifest = orjson.dumps({"template": TEMPLATE}).decode()
    change = {
        "metadata": {"annotations": {LAST_APPLIED_ANNOTATION: manifest}},
        "template": {"spec": {"workloadRef": None}},
    }
    answer = await api.patch(POD_TEMPLATE, "x", change, "strategic")
    assert answer.code == 200, answer.body
    assert "schedulingGroup" not in answer.body["template"]["spec"]
    assert "annotations" not in answer.body["template"]["metadata"]


@in_virtual_time
async def test_a_cron_job_may_change_its_policy_with_aliases() -> None:
    api = await Api.start()
    await post_object(api, cron_job({"schedulingPolicy": {"basic": {}}}))
    wanted = {"policy": {"gang": {"minCount": 2}}, "schedulingPolicy": None}
    change = {"spec": {"jobTemplate": {"spec": {"scheduling": wanted}}}}
    answer = await api.patch(CRON_JOB, "x", change, "strategic")
    assert answer.code == 200, answer.body
    stored = answer.body["spec"]["jobTemplate"]["spec"]["scheduling"]
    assert stored == {"schedulingPolicy": {"gang": {"minCount": 2}}}


@in_virtual_time
async def test_a_pod_may_name_its_group_with_annotations() -> None:
    api = await Api.start()
    answer = await post_object(api, pod("p", spec={"workloadRef": REPLICA}))
    assert answer.code == 201
    assert answer.body["spec"]["schedulingGroup"] == {"podGroupName": "w-t-1"}
    assert "workloadRef" not in answer.body["spec"]
    marks = {WORKLOAD_ANNOTATION: "w", TEMPLATE_ANNOTATION: "t"}
    assert answer.body["metadata"]["annotations"] == marks
    assert len(answer.header_values("warning")) == 1


@in_virtual_time
async def test_the_annotation_and_the_field_must_name_the_same_group() -> None:
    api = await Api.start()
    both: Object = {"workloadRef": REPLICA, "schedulingGroup": {"podGroupName": "w-t-1"}}
    assert (await post_object(api, pod("same", spec=both))).code == 201
    both = {"workloadRef": REPLICA, "schedulingGroup": {"podGroupName": "other"}}
    refused = await post_object(api, pod("other", spec=both))
    assert refused.code == 422
    assert refused.cause_reasons == [("spec.workloadRef", "FieldValueForbidden")]


@in_virtual_time
async def test_an_invalid_group_name_is_refused() -> None:
    api = await Api.start()
    refused = await post_object(api, pod("p", spec={"workloadRef": {**REPLICA, "name": "No Name"}}))
    assert refused.code == 422
    assert refused.cause_reasons == [("spec.workloadRef.name", "FieldValueInvalid")]


@in_virtual_time
async def test_any_patch_may_change_the_group_of_a_template() -> None:
    api = await Api.start()
    template = {"metadata": {"name": "x"}, "template": TEMPLATE}
    await api.ask("POST", POD_TEMPLATE.url_path("default"), template)
    steps = [{"op": "add", "path": "/template/spec/workloadRef", "value": REPLICA}]
    patched = (await api.patch(POD_TEMPLATE, "x", steps, "json")).body["template"]
    assert patched["spec"]["schedulingGroup"] == {"podGroupName": "w-t-1"}
    assert patched["metadata"]["annotations"][TEMPLATE_ANNOTATION] == "t"
    named = {"template": {"spec": {"workloadRef": {"name": "w", "podGroupName": "g"}}}}
    patched = (await api.patch(POD_TEMPLATE, "x", named, "strategic")).body["template"]
    assert patched["spec"]["schedulingGroup"] == {"podGroupName": "g"}
    assert "annotations" not in patched["metadata"]


@pytest.mark.parametrize("way", ["merge", "strategic", "json", "put", "apply"])
@pytest.mark.parametrize("group", [{"podGroupName": "other"}, None])
@in_virtual_time
async def test_changing_the_group_removes_the_annotations_of_the_old_one(
    group: Object | None, way: str
) -> None:
    api = await Api.start()
    path = POD_TEMPLATE.url_path("default", "x")

    def template(**spec: Any) -> Object:
        meta = {"annotations": {"kept": "yes"}}
        return {
            "apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"},
            "template": {"metadata": meta, "spec": {**TEMPLATE["spec"], **spec}},
        }  # fmt: skip

    query = {"fieldManager": "me"}
    old = template(workloadRef=REPLICA)
    made_of = (await api.ask("PATCH", path, old, headers=APPLY, query=query)).body
    assert made_of["template"]["metadata"]["annotations"][TEMPLATE_ANNOTATION] == "t"
    if way == "apply":
        wanted = template(schedulingGroup=group) if group else template()
        answer = await api.ask("PATCH", path, wanted, headers=APPLY, query=query)
    elif way == "put":
        made_of["template"]["spec"]["schedulingGroup"] = group
        answer = await api.ask("PUT", path, made_of)
    elif way == "json":
        at = "/template/spec/schedulingGroup"
        step = {"op": "replace", "path": at, "value": group} if group else {
            "op": "remove", "path": at,
        }  # fmt: skip
        answer = await api.patch(POD_TEMPLATE, "x", [step], "json")
    else:
        change = {"template": {"spec": {"schedulingGroup": group}}}
        answer = await api.patch(POD_TEMPLATE, "x", change, way)
    assert answer.code == 200, answer.body
    found = (await api.get(POD_TEMPLATE, "x"))["template"]
    assert found["spec"].get("schedulingGroup") == group
    assert found["metadata"]["annotations"] == {"kept": "yes"}


@in_virtual_time
async def test_writing_a_template_back_keeps_its_annotations() -> None:
    api = await Api.start()
    spec = {**TEMPLATE["spec"], "workloadRef": REPLICA}
    template = {"metadata": {"name": "x"}, "template": {"spec": spec}}
    read = (await api.ask("POST", POD_TEMPLATE.url_path("default"), template)).body
    read["metadata"]["labels"] = {"k": "v"}
    written = (await api.ask("PUT", POD_TEMPLATE.url_path("default", "x"), read)).body
    assert written["template"] == read["template"]


@pytest.mark.parametrize(
    "body",
    [
        {"spec": {"workloadRef": "w"}},
        {"spec": {"workloadRef": {"name": ["w"], "podGroup": {}}}},
        {"metadata": 5, "spec": {"workloadRef": REPLICA}},
        {"metadata": {"annotations": [1]}, "spec": {"workloadRef": REPLICA}},
        {"metadata": {"name": {}}, "spec": {"workloadRef": None, "containers": 5}},
    ],
)
@in_virtual_time
async def test_invalid_values_of_aliases_are_client_errors(body: Object) -> None:
    api = await Api.start()
    answer = await api.ask("POST", POD.url_path("default"), body)
    assert answer.code in (400, 422), answer.body


@in_virtual_time
async def test_a_contradictory_json_patch_is_a_client_error() -> None:
    api = await Api.start()
    template = {"metadata": {"name": "x"}, "template": TEMPLATE}
    await api.ask("POST", POD_TEMPLATE.url_path("default"), template)
    steps = [
        {"op": "add", "path": "/template/spec/workloadRef", "value": REPLICA},
        {"op": "replace", "path": "/template", "value": "gone"},
    ]
    assert (await api.patch(POD_TEMPLATE, "x", steps, "json")).code in (400, 422)


@in_virtual_time
async def test_openapi_has_the_gang_policy_of_a_job() -> None:
    api = await Api.start()
    wanted = {**job({}), "spec": {"template": TEMPLATE, "gangPolicy": {"policy": "JobAsGang"}}}
    answer = await post_object(api, wanted, fieldValidation="Strict")
    assert answer.code == 201, answer.body
    assert answer.body["spec"]["gangPolicy"] == {"policy": "JobAsGang"}
    document = (await api.ask("GET", "/openapi/v3/apis/batch/v1")).body
    fields = document["components"]["schemas"]["io.k8s.api.batch.v1.JobSpec"]["properties"]
    assert "gangPolicy" in fields
