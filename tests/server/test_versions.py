"""Kinds that are served in several versions: one object, in whatever version it is read."""

from __future__ import annotations

import asyncio
import json

import pytest

from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    EVENT,
    EVENTS_EVENT,
    POD_GROUP,
    POD_GROUP_V1ALPHA3,
    PRIORITY_CLASS,
    RESOURCE_QUOTA,
    WORKLOAD,
    WORKLOAD_V1ALPHA3,
    Kind,
)
from phalanx.api.wire import Object
from phalanx.server.watches import BOOKMARK_INTERVAL
from tests.builders import in_virtual_time, pod_group
from tests.server.api import Api, names, revision

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
APPLY = {"content-type": "application/apply-patch+yaml"}
TEMPLATE = {"name": "t", "schedulingPolicy": {"gang": {"minCount": 2}}}

VERSIONS = pytest.mark.parametrize(
    ("one", "other"),
    [
        (POD_GROUP, POD_GROUP_V1ALPHA3),
        (POD_GROUP_V1ALPHA3, POD_GROUP),
        (WORKLOAD, WORKLOAD_V1ALPHA3),
        (WORKLOAD_V1ALPHA3, WORKLOAD),
    ],
    ids=lambda kind: f"{kind.plural}-{kind.version}",
)


def example(kind: Kind, name: str = "a") -> Object:
    """An object of a kind, in its version."""
    spec = pod_group(name, 2)["spec"]
    if kind.name == "Workload":
        spec = {"podGroupTemplates": [dict(TEMPLATE)]}
    if kind.name == "CompositePodGroup":
        spec = {
            "schedulingPolicy": {"basic": {}},
            "workloadRef": {"workloadName": "w", "templateName": "t"},
        }
    return {
        "apiVersion": kind.api_version, "kind": kind.name,
        "metadata": {"name": name, "namespace": "default"}, "spec": spec,
    }  # fmt: skip


def content(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key != "apiVersion"}


@VERSIONS
@in_virtual_time
async def test_an_object_created_in_one_version_is_read_in_another(one: Kind, other: Kind) -> None:
    api = await Api.start()
    (made,) = await api.create(one, example(one))
    found = await api.get(other, "a")
    assert (made["apiVersion"], found["apiVersion"]) == (one.api_version, other.api_version)
    assert content(found) == content(made)
    listing = await api.list_default(other)
    assert (names(listing), listing["apiVersion"]) == (["a"], other.api_version)


@VERSIONS
@in_virtual_time
async def test_a_watch_uses_the_requested_version(one: Kind, other: Kind) -> None:
    api = await Api.start()
    watching = asyncio.ensure_future(
        api.watch(
            other, {"allowWatchBookmarks": "true"}, since=api.store.revision,
            seconds=int(BOOKMARK_INTERVAL) + 1,
        )
    )  # fmt: skip
    await asyncio.sleep(0)
    await api.create(one, example(one))
    await api.patch(one, "a", {"metadata": {"labels": {"k": "v"}}})
    await api.patch(one, "a", {"metadata": {"finalizers": None}})
    await api.delete(one, "a")
    found = await watching
    kinds = {event.type for event in found}
    assert kinds == {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}
    assert {event.object["apiVersion"] for event in found} == {other.api_version}


@VERSIONS
@in_virtual_time
async def test_every_write_works_in_every_version(one: Kind, other: Kind) -> None:
    api = await Api.start()
    await api.create(one, example(one))
    patched = await api.patch(other, "a", {"metadata": {"labels": {"k": "v"}}}, "strategic")
    assert (patched.code, patched.body["apiVersion"]) == (200, other.api_version)
    changed = {**patched.body, "metadata": {**patched.body["metadata"], "labels": {"k": "w"}}}
    assert (await api.ask("PUT", other.url_path("default", "a"), changed)).code == 200
    assert (await api.get(one, "a"))["metadata"]["labels"] == {"k": "w"}
    await api.patch(one, "a", {"metadata": {"finalizers": None}})
    assert (await api.delete(other, "a")).code == 200
    assert (await api.ask("GET", one.url_path("default", "a"))).code == 404


@VERSIONS
@in_virtual_time
async def test_a_name_is_taken_in_all_versions(one: Kind, other: Kind) -> None:
    api = await Api.start()
    await api.create(one, example(one))
    again = await api.ask("POST", other.url_path("default"), example(other))
    assert (again.code, again.body["reason"]) == (409, "AlreadyExists")


@VERSIONS
@in_virtual_time
async def test_a_body_of_another_version_is_refused(one: Kind, other: Kind) -> None:
    api = await Api.start()
    answer = await api.ask("POST", one.url_path("default"), example(other))
    assert (answer.code, answer.body["reason"]) == (400, "BadRequest")


@VERSIONS
@in_virtual_time
async def test_fields_have_one_owner_whatever_the_version(one: Kind, other: Kind) -> None:
    api = await Api.start()
    for kind in (one, other):
        path, query = kind.url_path("default", "a"), {"fieldManager": "me"}
        answer = await api.ask("PATCH", path, example(kind), headers=APPLY, query=query)
        assert answer.code in (200, 201), answer.body
    (entry,) = answer.body["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("me", "Apply")
    path, query = one.url_path("default", "a"), {"fieldManager": "you"}
    bigger = example(one)
    template = bigger["spec"].get("podGroupTemplates", [bigger["spec"]])[0]
    template["schedulingPolicy"] = {"gang": {"minCount": 5}}
    conflict = await api.ask("PATCH", path, bigger, headers=APPLY, query=query)
    assert (conflict.code, conflict.body["reason"]) == (409, "Conflict")


@in_virtual_time
async def test_an_event_is_applied_in_the_new_version_and_read_in_the_old_one() -> None:
    api = await Api.start()
    event = {
        "apiVersion": EVENTS_EVENT.api_version, "kind": "Event",
        "metadata": {"name": "e", "namespace": "default"}, "note": "because", "type": "Normal",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"}, "action": "Bind",
        "reason": "Why", "reportingController": "x.example/y", "reportingInstance": "z",
        "eventTime": "2027-01-15T08:00:00.000000Z",
    }  # fmt: skip
    path, query = EVENTS_EVENT.url_path("default", "e"), {"fieldManager": "me"}
    made = await api.ask("PATCH", path, event, headers=APPLY, query=query)
    assert (made.code, made.body.get("note")) == (201, "because"), made.body
    assert (await api.get(EVENT, "e"))["message"] == "because"


@VERSIONS
@in_virtual_time
async def test_a_table_has_objects_of_the_requested_version(one: Kind, other: Kind) -> None:
    api = await Api.start()
    await api.create(one, example(one))
    for path in (other.url_path("default"), other.url_path("default", "a")):
        answer = await api.ask(
            "GET", path, headers={"accept": TABLE}, query={"includeObject": "Object"}
        )
        (row,) = answer.body["rows"]
        assert (row["cells"][0], row["object"]["apiVersion"]) == ("a", other.api_version)


@in_virtual_time
async def test_a_quota_counts_an_object_once_whatever_the_version() -> None:
    api = await Api.start()
    hard = {"count/podgroups.scheduling.k8s.io": "2"}
    quota = {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": hard}}
    await api.create(POD_GROUP, example(POD_GROUP, "before"))
    await api.create(RESOURCE_QUOTA, quota)
    await api.create(POD_GROUP_V1ALPHA3, example(POD_GROUP_V1ALPHA3, "after"))
    status = (await api.get(RESOURCE_QUOTA, "q"))["status"]
    assert status["used"] == {"count/podgroups.scheduling.k8s.io": "2"}
    third = await api.ask("POST", POD_GROUP.url_path("default"), example(POD_GROUP, "third"))
    assert third.code == 403


@in_virtual_time
async def test_discovery_prefers_the_stable_version() -> None:
    api = await Api.start()
    group = (await api.ask("GET", "/apis/scheduling.k8s.io")).body
    assert group["preferredVersion"]["version"] == "v1"
    assert [v["version"] for v in group["versions"]][:3] == ["v1", "v1beta1", "v1alpha3"]

    async def resources(version: str) -> list[str]:
        answer = await api.ask("GET", f"/apis/scheduling.k8s.io/{version}")
        return [row["name"] for row in answer.body["resources"]]

    assert await resources("v1beta1") == ["podgroups", "podgroups/status", "workloads"]
    assert await resources("v1alpha3") == [
        "compositepodgroups", "compositepodgroups/status", "podgroups", "podgroups/status",
        "workloads",
    ]  # fmt: skip


# ---- priority of groups --------------------------------------------------------------------------

GROUPS = pytest.mark.parametrize("kind", [POD_GROUP, COMPOSITE_POD_GROUP], ids=lambda k: k.name)


async def create_in_class(api: Api, kind: Kind, name: str, **spec: object) -> tuple[int, Object]:
    """Create a group with a priority class."""
    group = example(kind)
    group["spec"] |= {"priorityClassName": name, **spec}
    answer = await api.ask("POST", kind.url_path("default"), group, query={"dryRun": "All"})
    return answer.code, answer.body


@GROUPS
@in_virtual_time
async def test_a_group_gets_the_priority_and_policy_of_its_class(kind: Kind) -> None:
    api = await Api.start()
    meek = {"metadata": {"name": "meek"}, "value": 7, "preemptionPolicy": "Never"}
    await api.create(PRIORITY_CLASS, meek)
    for said in ({}, {"priority": 7}):
        code, made = await create_in_class(api, kind, "meek", preemptionPolicy="Never", **said)
        assert (code, made["spec"]["priority"]) == (201, 7)
    for wrong in ({"priority": 8}, {"preemptionPolicy": "PreemptLowerPriority"}, {}):
        assert (await create_in_class(api, kind, "meek", **wrong))[0] == 403


@GROUPS
@in_virtual_time
async def test_a_group_with_a_missing_class_is_forbidden(kind: Kind) -> None:
    api = await Api.start()
    code, answer = await create_in_class(api, kind, "nowhere")
    assert (code, answer["reason"]) == (403, "Forbidden")
    assert answer["message"].endswith("no PriorityClass with name nowhere was found")


@GROUPS
@in_virtual_time
async def test_a_group_cannot_have_a_system_priority_class(kind: Kind) -> None:
    api = await Api.start()
    code, answer = await create_in_class(api, kind, "system-cluster-critical")
    assert code == 422
    assert [cause["field"] for cause in answer["details"]["causes"]] == ["spec.priority"]


@GROUPS
@in_virtual_time
async def test_a_group_without_a_class_gets_the_default_one(kind: Kind) -> None:
    api = await Api.start()
    default = {"metadata": {"name": "usual"}, "value": 5, "globalDefault": True}
    await api.create(PRIORITY_CLASS, default)
    (made,) = await api.create(kind, example(kind))
    assert (made["spec"]["priorityClassName"], made["spec"]["priority"]) == ("usual", 5)


@GROUPS
@in_virtual_time
async def test_a_group_has_no_generation_and_is_updated_by_version(kind: Kind) -> None:
    api = await Api.start()
    (made,) = await api.create(kind, example(kind))
    assert "generation" not in made["metadata"]
    meta = {key: value for key, value in made["metadata"].items() if key != "resourceVersion"}
    answer = await api.ask("PUT", kind.url_path("default", "a"), {**made, "metadata": meta})
    assert answer.cause_reasons == [("metadata.resourceVersion", "FieldValueInvalid")]


@in_virtual_time
async def test_only_pod_groups_have_the_protection_finalizer() -> None:
    api = await Api.start()
    for kind in (POD_GROUP_V1ALPHA3, COMPOSITE_POD_GROUP, WORKLOAD):
        (made,) = await api.create(kind, example(kind))
        assert bool(made["metadata"].get("finalizers")) == (kind is POD_GROUP_V1ALPHA3)
        assert revision(made) > 0


@GROUPS
@in_virtual_time
async def test_the_status_of_a_group_is_a_subresource(kind: Kind) -> None:
    api = await Api.start()
    (made,) = await api.create(kind, example(kind))
    condition = {
        "type": "X", "status": "True", "reason": "Y", "message": "",
        "lastTransitionTime": "2027-01-15T08:00:00Z",
    }  # fmt: skip
    change = {"status": {"conditions": [condition]}, "spec": {"priority": 9}}
    answer = await api.patch(kind, "a", change, part="status")
    assert answer.code == 200
    assert answer.body["status"] == {"conditions": [condition]}
    assert answer.body["spec"] == made["spec"]


@in_virtual_time
async def test_the_status_of_a_pod_group_counts_its_members() -> None:
    api = await Api.start()
    await api.create(POD_GROUP, example(POD_GROUP))
    counts = {"pendingPods": 1, "scheduledPods": 2, "succeededPods": 0, "failedPods": 3}
    answer = await api.patch(POD_GROUP, "a", {"status": counts}, part="status")
    assert (answer.code, answer.body["status"]) == (200, counts)
    assert (await api.get(POD_GROUP_V1ALPHA3, "a"))["status"] == counts


# ---- trees of templates --------------------------------------------------------------------------


@in_virtual_time
async def test_null_fields_are_treated_as_absent() -> None:
    api = await Api.start()
    (made,) = await api.create(WORKLOAD, example(WORKLOAD))
    (template,) = made["spec"]["podGroupTemplates"]
    nulls = {"compositePodGroupTemplates": None, "controllerRef": None}
    spec = {"podGroupTemplates": [{**template, "schedulingConstraints": None}], **nulls}
    answer = await api.ask("PUT", WORKLOAD.url_path("default", "a"), {**made, "spec": spec})
    assert (answer.code, answer.body["spec"]) == (200, made["spec"])


@pytest.mark.parametrize("levels", [4, 20, 115, 150])
@in_virtual_time
async def test_a_tree_that_is_too_deep_is_refused(levels: int) -> None:
    api = await Api.start()
    templates: Object = {"podGroupTemplates": [dict(TEMPLATE)]}
    for level in range(levels):
        one = {"name": f"l{level}", "schedulingPolicy": {"basic": {}}, **templates}
        templates = {"compositePodGroupTemplates": [one]}
    deep = {**example(WORKLOAD), "spec": templates}
    body = json.dumps(deep).encode()
    answer = await api.ask("POST", WORKLOAD.url_path("default"), body)
    assert answer.code in (400, 422), answer.body
