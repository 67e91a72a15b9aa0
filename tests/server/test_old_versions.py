"""Workloads and PodGroups in versions whose fields differ from the stored one."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.conversion.field_mapping import UNMAPPED_ANNOTATION
from phalanx.api.conversion.hub import from_hub
from phalanx.api.kinds import (
    POD_GROUP,
    POD_GROUP_V1ALPHA2,
    PRIORITY_CLASS,
    WORKLOAD,
    WORKLOAD_V1ALPHA1,
    Kind,
)
from phalanx.api.protobuf import MAGIC
from phalanx.api.wire import Object, Request, StreamReply
from phalanx.server.security.authorization import ADMIN
from phalanx.server.serialization import PROTOBUF
from tests.api.schema_strategies import objects
from tests.api.workload_strategies import pod_groups, workloads
from tests.builders import in_virtual_time, share_of_examples
from tests.server.api import Api, names
from tests.server.old_versions import (
    ALL_GROUPS,
    ALL_WORKLOADS,
    GANG,
    LEAF,
    TREE,
    WORKLOADS,
    api_with_workload,
    apply_object,
    each,
    each_group,
    each_workload,
    example,
    for_kinds,
    new_object,
    pod_group_with_reference,
    post_object,
    put_object,
    template_fields,
)

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


# ---- reads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("versions", [ALL_GROUPS, ALL_WORKLOADS], ids=["PodGroup", "Workload"])
@in_virtual_time
async def test_an_object_is_read_in_the_requested_version(
    versions: tuple[Kind, ...],
) -> None:
    api = await Api.start()
    watching = [
        asyncio.ensure_future(api.watch(kind, since=api.store.revision)) for kind in versions
    ]
    await asyncio.sleep(0)
    for kind in versions:
        await api.create(kind, example(kind, kind.version))
        await api.patch(kind, kind.version, {"metadata": {"labels": {"k": "v"}}})
    for kind, watch in zip(versions, watching, strict=True):
        wanted = [f"{word} {one.version}" for one in versions for word in ("ADDED", "MODIFIED")]
        events = await watch
        assert [str(event) for event in events] == wanted
        listing = await api.list_default(kind)
        assert names(listing) == sorted(one.version for one in versions)
        found = {event.name: event.object["spec"] for event in events}
        assert {item["metadata"]["name"]: item["spec"] for item in listing["items"]} == found
        assert len({json.dumps(spec, sort_keys=True) for spec in found.values()}) == 1


@each
@in_virtual_time
async def test_a_table_has_the_same_cells_and_objects_of_the_requested_version(kind: Kind) -> None:
    api = await Api.start()
    await api.create(kind, example(kind))
    query, headers = {"includeObject": "Object"}, {"accept": TABLE}
    table = (await api.ask("GET", kind.url_path("default"), query=query, headers=headers)).body
    assert table["rows"][0]["object"] == await api.get(kind, "x")
    stored = WORKLOAD if kind in WORKLOADS else POD_GROUP
    plain = (await api.ask("GET", stored.url_path("default"), query=query, headers=headers)).body
    assert table["rows"][0]["cells"] == plain["rows"][0]["cells"]


@each
@in_virtual_time
async def test_a_dry_run_and_a_deletion_reply_in_the_requested_version(kind: Kind) -> None:
    api = await Api.start()
    path, dry = kind.url_path("default"), {"dryRun": "All"}
    tried_out = await api.ask("POST", path, example(kind), query=dry)
    await api.create(kind, example(kind))
    found = await api.get(kind, "x")
    assert tried_out.body["spec"] == found["spec"]
    deleted = await api.delete(kind, "x", dryRun="All")
    assert deleted.body.get("spec", found["spec"]) == found["spec"]
    gone = await api.ask("DELETE", path)
    assert [item["spec"] for item in gone.body["items"]] == [found["spec"]]


@each
@in_virtual_time
async def test_an_old_version_gets_a_deprecation_warning(kind: Kind) -> None:
    api = await Api.start()
    text = f"{kind.api_version} {kind.name} is deprecated; use scheduling.k8s.io/v1beta1"
    wanted = [f'299 - "{text} {kind.name}"']
    path = kind.url_path("default")
    assert (await post_object(api, kind, example(kind))).header_values("warning") == wanted
    assert (await api.ask("GET", path)).header_values("warning") == wanted
    assert (await api.ask("GET", kind.url_path("default", "x"))).header_values("warning") == wanted
    assert (await api.ask("GET", kind.url_path("default", "missing"))).header_values(
        "warning"
    ) == wanted
    watch = await api.server.handle(Request("GET", path, "watch=1", {}, b"", ADMIN))
    assert isinstance(watch, StreamReply)
    assert [value for _, value in watch.headers] == wanted
    await watch.chunks.aclose()
    newer = kind.url_path("default").replace(kind.version, "v1beta1")
    assert (await api.ask("GET", newer)).header_values("warning") == []


@in_virtual_time
async def test_discovery_lists_old_versions_last() -> None:
    api = await Api.start()
    group = (await api.ask("GET", "/apis/scheduling.k8s.io")).body
    versions = [row["version"] for row in group["versions"]]
    assert versions == ["v1", "v1beta1", "v1alpha3", "v1alpha2", "v1alpha1"]
    served = (await api.ask("GET", "/apis/scheduling.k8s.io/v1alpha1")).body["resources"]
    assert [row["name"] for row in served] == ["podgroups", "podgroups/status", "workloads"]


@each
@in_virtual_time
async def test_an_old_version_is_not_accepted_as_protobuf(kind: Kind) -> None:
    api = await Api.start()
    headers = {"content-type": PROTOBUF}
    answer = await api.ask("POST", kind.url_path("default"), MAGIC + b"\0", headers=headers)
    assert (answer.code, PROTOBUF in answer.body["message"]) == (415, False)


# ---- writes --------------------------------------------------------------------------------------


@each_workload
@in_virtual_time
async def test_writing_back_what_was_read_changes_nothing(kind: Kind) -> None:
    api = await api_with_workload(**TREE)
    before = await api.get(WORKLOAD, "w")
    assert (await put_object(api, kind, await api.get(kind, "w"))).code == 200
    assert await api.get(WORKLOAD, "w") == before


@each_workload
@in_virtual_time
async def test_fields_that_an_old_version_lacks_survive_its_updates(kind: Kind) -> None:
    api = await api_with_workload()
    templates, policy = template_fields(kind)
    served = await api.get(kind, "w")
    served["metadata"]["labels"] = {"k": "v"}
    served["spec"][templates][0][policy]["gang"]["minCount"] = 7
    assert (await put_object(api, kind, served)).code == 200
    stored = await api.get(WORKLOAD, "w")
    assert stored["spec"]["podGroupTemplates"] == [
        {**LEAF, "schedulingPolicy": {"gang": {"minCount": 7}}}
    ]
    assert stored["metadata"]["labels"] == {"k": "v"}
    assert "annotations" not in stored["metadata"]


@each_workload
@pytest.mark.parametrize("spec", [{"podGroupTemplates": [LEAF]}, TREE], ids=["leaf", "tree"])
@in_virtual_time
async def test_an_applied_manifest_keeps_fields_that_its_version_lacks(
    kind: Kind, spec: Object
) -> None:
    api = await api_with_workload(**spec)
    before = (await api.get(WORKLOAD, "w"))["spec"]
    served = await api.get(kind, "w")
    served["metadata"]["annotations"] = {"mine": "yes"}
    assert (await put_object(api, kind, served)).code == 200
    bare = {"metadata": {"annotations": None, "labels": {"k": "v"}}}
    assert (await api.patch(kind, "w", bare)).code == 200
    assert (await api.get(WORKLOAD, "w"))["spec"] == before


@each_workload
@in_virtual_time
async def test_an_update_without_leftovers_is_validated_in_the_stored_version(
    kind: Kind,
) -> None:
    api = await api_with_workload()
    served = await api.get(kind, "w")
    served["metadata"]["annotations"] = {UNMAPPED_ANNOTATION: "{}"}
    answer = await put_object(api, kind, served)
    templates, _ = template_fields(kind)
    assert answer.code == 422
    assert answer.cause_reasons == [(f"spec.{templates}[0].preemptionPolicy", "FieldValueInvalid")]


@each_workload
@in_virtual_time
async def test_applied_templates_replace_composite_templates(
    kind: Kind,
) -> None:
    api = await api_with_workload(**TREE)
    served = await api.get(kind, "w")
    del served["metadata"]["annotations"]
    served["spec"] = example(kind)["spec"]
    answer = await put_object(api, kind, served)
    templates, _ = template_fields(kind)
    assert (f"spec.{templates}[0]", "FieldValueForbidden") in answer.cause_reasons
    assert ("spec.compositePodGroupTemplates", "FieldValueForbidden") in answer.cause_reasons


@each_group
@in_virtual_time
async def test_a_group_keeps_its_preemption_policy_and_its_parent(kind: Kind) -> None:
    api = await Api.start()
    priority = {"metadata": {"name": "meek"}, "value": 5, "preemptionPolicy": "Never"}
    await api.create(PRIORITY_CLASS, priority)
    child = new_object(
        POD_GROUP, "g", schedulingPolicy=GANG, parentCompositePodGroupName="tree",
        workloadRef={"workloadName": "w", "templateName": "a"}, priorityClassName="meek",
        preemptionPolicy="Never",
    )  # fmt: skip
    (stored,) = await api.create(POD_GROUP, child)
    served = await api.get(kind, "g")
    served["metadata"]["labels"] = {"k": "v"}
    assert (await put_object(api, kind, served)).code == 200
    assert (await api.get(POD_GROUP, "g"))["spec"] == stored["spec"]


@each_group
@in_virtual_time
async def test_a_group_gets_the_preemption_policy_of_its_priority_class(kind: Kind) -> None:
    api = await Api.start()
    priority = {"metadata": {"name": "meek"}, "value": 5, "preemptionPolicy": "Never"}
    await api.create(PRIORITY_CLASS, priority)
    await api.create(kind, new_object(kind, "g", schedulingPolicy=GANG, priorityClassName="meek"))
    spec = (await api.get(POD_GROUP, "g"))["spec"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (5, "Never")


@each_workload
@in_virtual_time
async def test_a_saved_object_can_be_recreated(kind: Kind) -> None:
    api = await api_with_workload()
    served = await api.get(kind, "w")
    await api.delete(kind, "w")
    for key in ("uid", "resourceVersion", "creationTimestamp", "managedFields"):
        served["metadata"].pop(key)
    assert (await post_object(api, kind, served)).code == 201
    assert (await api.get(WORKLOAD, "w"))["spec"] == {"podGroupTemplates": [LEAF]}


@for_kinds(*ALL_WORKLOADS)
@in_virtual_time
async def test_the_annotation_never_reaches_the_store(kind: Kind) -> None:
    api = await Api.start()
    obj = example(kind)
    obj["metadata"]["annotations"] = {UNMAPPED_ANNOTATION: "{}", "kept": "yes"}
    assert (await post_object(api, kind, obj)).code == 201
    change = {"metadata": {"annotations": {UNMAPPED_ANNOTATION: "{}", "more": "too"}}}
    assert (await api.patch(kind, "x", change)).code == 200
    found = await api.get(WORKLOAD, "x")
    assert found["metadata"]["annotations"] == {"kept": "yes", "more": "too"}


@each_workload
@pytest.mark.parametrize("content", ["merge", "json", "strategic"])
@in_virtual_time
async def test_a_patch_applies_to_the_requested_version(kind: Kind, content: str) -> None:
    api = await api_with_workload()
    templates, policy = template_fields(kind)
    changed = {"name": "a", policy: {"gang": {"minCount": 9}}}
    patch: Any = {"spec": {templates: [changed]}}
    if content == "json":
        path = f"/spec/{templates}/0/{policy}/gang/minCount"
        patch = [
            {"op": "test", "path": path, "value": 2},
            {"op": "replace", "path": path, "value": 9},
        ]
    answer = await api.patch(kind, "w", patch, content)
    assert (answer.code, answer.body["apiVersion"]) == (200, kind.api_version), answer.body
    assert (await api.get(WORKLOAD, "w"))["spec"]["podGroupTemplates"] == [
        {**LEAF, "schedulingPolicy": {"gang": {"minCount": 9}}}
    ]


@each_group
@in_virtual_time
async def test_conditions_are_merged_by_type(kind: Kind) -> None:
    api = await Api.start()
    await api.create(kind, example(kind))

    def condition(name: str) -> Object:
        return {
            "type": name, "status": "True", "reason": "MinCountSatisfied", "message": "2/2",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }  # fmt: skip

    for name in ("PodGroupScheduled", "DisruptionTarget"):
        change = {"status": {"conditions": [condition(name)], "scheduledPods": 2}}
        assert (await api.patch(kind, "x", change, "strategic", part="status")).code == 200
    status = (await api.get(POD_GROUP, "x"))["status"]
    assert status["scheduledPods"] == 2
    assert {row["type"] for row in status["conditions"]} == {
        "PodGroupScheduled",
        "DisruptionTarget",
    }
    assert (await api.get(kind, "x"))["status"] == status


@in_virtual_time
async def test_causes_name_the_fields_of_the_requested_version() -> None:
    api = await Api.start()
    bad = new_object(
        WORKLOAD_V1ALPHA1, "x", podGroups=[{"name": "a"}, {"name": "A", "policy": GANG}]
    )
    answer = await post_object(api, WORKLOAD_V1ALPHA1, bad)
    assert answer.cause_reasons == [
        ("spec.podGroups[0].policy", "FieldValueInvalid"),
        ("spec.podGroups[1].name", "FieldValueInvalid"),
    ]
    assert "spec.podGroups[0].policy" in answer.body["message"]
    none = await post_object(
        api, WORKLOAD_V1ALPHA1, new_object(WORKLOAD_V1ALPHA1, "x", podGroups=[])
    )
    assert none.body["message"].endswith("must specify one of: `podGroups`")
    group = pod_group_with_reference(
        POD_GROUP_V1ALPHA2, schedulingPolicy=GANG, disruptionMode="Pods"
    )
    answer = await post_object(api, POD_GROUP_V1ALPHA2, group)
    assert answer.cause_reasons == [("spec.disruptionMode", "FieldValueNotSupported")]
    assert 'supported values: "Pod", "PodGroup"' in answer.body["message"]
    half = new_object(
        POD_GROUP_V1ALPHA2, "g", podGroupTemplateRef={"workload": {"workloadName": "w"}},
        schedulingPolicy=GANG,
    )  # fmt: skip
    answer = await post_object(api, POD_GROUP_V1ALPHA2, half)
    place = "spec.podGroupTemplateRef.workload.podGroupTemplateName"
    assert answer.cause_reasons == [(place, "FieldValueRequired")]


# ---- apply ---------------------------------------------------------------------------------------


@each_workload
@in_virtual_time
async def test_applying_in_two_versions_is_one_field_manager(kind: Kind) -> None:
    api = await Api.start()
    templates, policy = template_fields(kind)
    terms = {"name": "a", "disruptionMode": "PodGroup", policy: GANG}
    old = new_object(kind, "x", **{templates: [terms]})
    new = new_object(
        WORKLOAD, "x",
        podGroupTemplates=[{"name": "a", "disruptionMode": {"all": {}}, "schedulingPolicy": GANG}],
    )  # fmt: skip
    first = await apply_object(api, kind, old)
    assert (first.code, first.body["spec"]) == (201, old["spec"])
    (entry,) = first.body["metadata"]["managedFields"]
    assert entry["apiVersion"] == WORKLOAD.api_version
    assert "f:podGroupTemplates" in entry["fieldsV1"]["f:spec"]
    second = await apply_object(api, WORKLOAD, new)
    assert (second.code, second.body["spec"]) == (200, new["spec"])
    third = await apply_object(api, kind, old)
    assert third.body["metadata"]["managedFields"] == [entry]
    assert third.body["metadata"]["resourceVersion"] == first.body["metadata"]["resourceVersion"]


@each_workload
@in_virtual_time
async def test_an_applier_owns_no_fields_that_its_version_lacks(kind: Kind) -> None:
    api = await api_with_workload()
    served = await api.get(kind, "w")
    mine = {**served, "metadata": {**served["metadata"]}}
    for key in ("managedFields", "resourceVersion", "uid", "creationTimestamp"):
        mine["metadata"].pop(key)
    answer = await apply_object(api, kind, mine, force="true")
    assert answer.code == 200, answer.body
    mine["metadata"].pop("annotations")
    assert (await apply_object(api, kind, mine)).code == 200
    assert (await api.get(WORKLOAD, "w"))["spec"] == {"podGroupTemplates": [LEAF]}


@in_virtual_time
async def test_a_conflict_names_the_field_of_the_requested_version() -> None:
    api = await Api.start()
    await apply_object(api, WORKLOAD, example(WORKLOAD), "you")
    mine = new_object(
        WORKLOAD_V1ALPHA1, "x", podGroups=[{"name": "a", "policy": {"gang": {"minCount": 5}}}]
    )
    answer = await apply_object(api, WORKLOAD_V1ALPHA1, mine)
    place = '.spec.podGroups[name="a"].policy.gang.minCount'
    assert (answer.code, answer.cause_reasons) == (409, [(place, "FieldManagerConflict")])
    assert place in answer.body["message"]
    assert (await apply_object(api, WORKLOAD_V1ALPHA1, mine, force="true")).code == 200


# ---- any input -----------------------------------------------------------------------------------


@each
@share_of_examples(0.2)
@given(st.data())
def test_no_input_causes_a_server_error(kind: Kind, data: st.DataObject) -> None:
    stored = workloads() if kind in WORKLOADS else pod_groups()
    body = data.draw(st.one_of(objects(kind.schema), stored.map(partial(from_hub, kind))))
    body.pop("apiVersion", None)
    body.pop("kind", None)
    meta = body.setdefault("metadata", {})
    meta |= {"name": "x", "namespace": "default"}
    meta.pop("resourceVersion", None)

    async def send() -> None:
        api = await api_with_workload()
        answer = await post_object(api, kind, body)
        assert answer.code in (201, 400, 403, 422), answer.body
        if answer.code == 201:
            assert (await put_object(api, kind, answer.body)).body == answer.body

    in_virtual_time(send)()
