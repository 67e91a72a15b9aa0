"""A webhook over TLS converts custom resources between the versions of their definition.

Version v1 of a Widget has `spec.address` ("host:port"), version v2 has `spec.host` and `spec.port`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phalanx.api.kinds import (
    CONFIG_MAP,
    CUSTOM_RESOURCE_DEFINITION,
    VALIDATING_ADMISSION_POLICY,
    VALIDATING_ADMISSION_POLICY_BINDING,
    Kind,
)
from phalanx.api.wire import APPLY_PATCH, Object
from phalanx.server.objects import split_version
from tests.api.custom_resource_definitions import (
    custom_resource_definition,
    resource_schema,
    served_version,
)
from tests.server.api import Api, ApiResponse, names
from tests.server.security.rbac_fixtures import JOE, grant
from tests.server.webhook_server import (
    SERVICE_NAME,
    WebhookServer,
    add,
    allow,
    config_map,
    configure,
    patch,
    rule,
    webhook,
    with_hooks,
)
from tests.server.widget_fixtures import KIND as V1
from tests.server.widget_fixtures import KIND_V2 as V2

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


def convert_widget(request: Object) -> Object:
    """Convert the widgets of a ConversionReview."""
    converted = []
    for obj in request["objects"]:
        spec = dict(obj.get("spec") or {})
        if request["desiredAPIVersion"] == "example.com/v2":
            host, _, port = spec.pop("address", ":0").partition(":")
            spec |= {"host": host, "port": int(port)}
        else:
            spec["address"] = f"{spec.pop('host', '')}:{spec.pop('port', 0)}"
        converted.append({**obj, "apiVersion": request["desiredAPIVersion"], "spec": spec})
    return {"convertedObjects": converted, "result": {"status": "Success"}}


def conversion(config: Object) -> Object:
    webhook = {"clientConfig": config, "conversionReviewVersions": ["v1"]}
    return {"strategy": "Webhook", "webhook": webhook}


def definition(config: Object, *, storage: str = "v1") -> Object:
    common = {"note": TEXT}
    schemas = {
        "v1": resource_schema(address=TEXT, **common),
        "v2": resource_schema(
            host=TEXT, port=NUMBER, mode={"type": "string", "default": "plain"}, **common
        ),
    }
    columns = {
        "v1": [{"name": "Address", "type": "string", "jsonPath": ".spec.address"}],
        "v2": [{"name": "Port", "type": "integer", "jsonPath": ".spec.port"}],
    }
    versions = [
        served_version(
            name,
            schema,
            storage=name == storage,
            subresources={"status": {}},
            additionalPrinterColumns=columns[name],
            selectableFields=[{"jsonPath": ".spec.port" if name == "v2" else ".spec.address"}],
        )
        for name, schema in schemas.items()
    ]
    return custom_resource_definition(*versions, conversion=conversion(config))


async def define(api: Api, hooks: WebhookServer, respond: Any = convert_widget) -> None:
    await api.create(CUSTOM_RESOURCE_DEFINITION, definition(hooks.on("/convert", respond)))


def old_widget(name: str = "w", address: str = "db:80", **meta: Any) -> Object:
    return {
        "metadata": {"name": name, "namespace": "default", **meta},
        "spec": {"address": address},
    }


def new_widget(name: str = "w", host: str = "db", port: int = 80, **meta: Any) -> Object:
    return {
        "metadata": {"name": name, "namespace": "default", **meta},
        "spec": {"host": host, "port": port},
    }


def stored_version(api: Api, name: str = "w") -> str:
    record = api.store.get(V1.store_key("default", name))
    assert record is not None
    return split_version(record.value)[0]


SPEC_V2 = {"host": "db", "port": 80, "mode": "plain"}


@with_hooks
async def test_objects_are_read_and_written_in_every_served_version(
    api: Api, hooks: WebhookServer
) -> None:
    await define(api, hooks)
    (made,) = await api.create(V2, new_widget(labels={"a": "b"}))
    assert (made["apiVersion"], made["spec"]) == ("example.com/v2", SPEC_V2)
    assert stored_version(api) == "v1"
    old, new = await api.get(V1, "w"), await api.get(V2, "w")
    assert (old["apiVersion"], old["spec"]) == ("example.com/v1", {"address": "db:80"})
    # A default of v2 that v1 cannot express is added when the object is read.
    assert (new["apiVersion"], new["spec"]) == ("example.com/v2", SPEC_V2)
    assert new["metadata"] == old["metadata"] == made["metadata"]
    new["spec"]["port"] = 90
    put = await api.ask("PUT", V2.url_path("default", "w"), new)
    assert (put.code, put.body["spec"]["port"], put.body["metadata"]["generation"]) == (200, 90, 2)
    assert (await api.get(V1, "w"))["spec"] == {"address": "db:90"}
    assert (await api.ask("PUT", V2.url_path("default", "w"), new)).code == 409


@with_hooks
async def test_a_review_has_the_form_of_kubernetes(api: Api, hooks: WebhookServer) -> None:
    await define(api, hooks)
    await api.create(V1, old_widget())
    assert hooks.requests == []  # Nothing to convert.
    await api.get(V2, "w")
    (request,) = hooks.requests
    assert request["desiredAPIVersion"] == "example.com/v2"
    (sent,) = request["objects"]
    assert (sent["apiVersion"], sent["kind"]) == ("example.com/v1", "Widget")
    assert sent["metadata"]["uid"]
    await api.get(V2, "w")
    assert len(hooks.requests) == 1  # The same revision is converted once.


@with_hooks
async def test_patches_and_the_status_work_in_the_version_of_the_request(
    api: Api, hooks: WebhookServer
) -> None:
    await define(api, hooks)
    await api.create(V1, old_widget())
    merged = await api.patch(V2, "w", {"spec": {"port": 81}})
    assert (merged.code, merged.body["spec"]["port"]) == (200, 81)
    change = [{"op": "replace", "path": "/spec/host", "value": "cache"}]
    assert (await api.patch(V2, "w", change, "json")).code == 200
    assert (await api.get(V1, "w"))["spec"] == {"address": "cache:81"}
    assert (await api.patch(V2, "w", {"spec": {"port": "x"}})).code == 422
    dry = await api.patch(V2, "w", {"spec": {"port": 1}}, dryRun="All")
    assert dry.body["spec"]["port"] == 1
    assert (await api.get(V1, "w"))["spec"] == {"address": "cache:81"}
    assert (await api.patch(V2, "w", {"spec": {"port": 5}}, part="status")).code == 200
    assert (await api.get(V1, "w"))["spec"] == {"address": "cache:81"}


async def apply(
    api: Api, kind: Kind, manager: str, *, force: bool = False, **spec: Any
) -> ApiResponse:
    body = {"apiVersion": kind.api_version, "kind": "Widget", "metadata": {"name": "w"}}
    return await api.ask(
        "PATCH",
        kind.url_path("default", "w"),
        {**body, "spec": spec},
        headers={"content-type": APPLY_PATCH},
        query={"fieldManager": manager, "force": str(force).lower()},
    )


def owned(answer: ApiResponse) -> dict[str, tuple[str, list[str]]]:
    """The version and the fields of the spec that each manager owns."""
    return {
        entry["manager"]: (entry["apiVersion"], sorted(entry["fieldsV1"]["f:spec"]))
        for entry in answer.body["metadata"]["managedFields"]
    }


@with_hooks
async def test_managers_of_other_versions_are_asked_in_their_version(
    api: Api, hooks: WebhookServer
) -> None:
    await define(api, hooks)
    assert (await apply(api, V1, "old", address="db:80")).code == 201
    refused = await apply(api, V2, "new", port=81)
    assert refused.code == 409
    assert refused.body["message"] == (
        'Apply failed with 1 conflict: conflict with "old": .spec.address'
    )
    agreed = await apply(api, V2, "new", port=80, note="n")
    assert owned(agreed) == {
        "old": ("example.com/v1", ["f:address"]),
        "new": ("example.com/v2", ["f:note", "f:port"]),
    }
    forced = await apply(api, V2, "new", force=True, port=81, note="n")
    assert owned(forced) == {"new": ("example.com/v2", ["f:note", "f:port"])}
    edited = await api.patch(V1, "w", {"spec": {"address": "db:90"}}, fieldManager="edit")
    assert owned(edited) == {
        "edit": ("example.com/v1", ["f:address"]),
        "new": ("example.com/v2", ["f:note"]),
    }
    # The applier of v1 goes on with v2.
    moved = await apply(api, V1, "new", address="db:90", note="n")
    assert owned(moved)["new"] == ("example.com/v1", ["f:address", "f:note"])


@with_hooks
async def test_apply_owns_fields_of_its_version(api: Api, hooks: WebhookServer) -> None:
    await define(api, hooks)
    made = await apply(api, V2, "a", host="db", port=80)
    assert made.code == 201
    (entry,) = made.body["metadata"]["managedFields"]
    assert (entry["apiVersion"], entry["manager"]) == ("example.com/v2", "a")
    assert (await apply(api, V2, "b", port=81)).code == 409
    assert (await apply(api, V2, "b", note="mine")).code == 200
    changed = await apply(api, V2, "a", host="db", port=82)
    assert changed.body["spec"]["port"] == 82
    stored = (await api.get(V1, "w"))["spec"]
    assert stored == {"address": "db:82", "note": "mine"}


@with_hooks
async def test_lists_are_converted_in_batches(api: Api, hooks: WebhookServer) -> None:
    await define(api, hooks)
    for number in range(501):
        await api.create(V1, old_widget(f"w{number:03}", f"db:{number}"))
    listed = await api.list_default(V2)
    assert (listed["kind"], listed["apiVersion"]) == ("WidgetList", "example.com/v2")
    assert [item["spec"]["port"] for item in listed["items"]] == list(range(501))
    assert [len(request["objects"]) for request in hooks.requests] == [500, 1]
    chosen = await api.list_default(V2, {"fieldSelector": "spec.port=7"})
    assert names(chosen) == ["w007"]
    page = await api.list_default(V2, {"limit": 2})
    more = await api.list_default(V2, {"limit": 2, "continue": page["metadata"]["continue"]})
    assert names(page) + names(more) == ["w000", "w001", "w002", "w003"]
    table = await api.ask(
        "GET",
        V2.url_path("default", "w003"),
        headers={"accept": "application/json;as=Table;g=meta.k8s.io;v=v1"},
    )
    assert table.body["rows"][0]["cells"] == ["w003", 3]


@with_hooks
async def test_watches_show_the_version_of_the_request(api: Api, hooks: WebhookServer) -> None:
    await define(api, hooks)
    await api.create(V1, old_widget("a", "db:1"))
    everything = asyncio.create_task(api.watch(V2, seconds=1))
    selected = asyncio.create_task(api.watch(V2, {"fieldSelector": "spec.port=2"}, seconds=1))
    await asyncio.sleep(0.2)
    await api.create(V2, new_widget("b", "db", 2))
    await api.patch(V1, "b", {"spec": {"address": "db:3"}})
    await api.patch(V1, "a", {"spec": {"address": "db:2"}})
    await api.delete(V1, "a")
    seen = await everything
    assert [(str(e), e.object["spec"]["port"]) for e in seen] == [
        ("ADDED a", 1), ("ADDED b", 2), ("MODIFIED b", 3), ("MODIFIED a", 2), ("DELETED a", 2),
    ]  # fmt: skip
    assert {event.object["apiVersion"] for event in seen} == {"example.com/v2"}
    revisions = [event.revision for event in seen]
    assert revisions == sorted(revisions)
    assert [str(event) for event in await selected] == [
        "ADDED b", "DELETED b", "ADDED a", "DELETED a",
    ]  # fmt: skip


@with_hooks
async def test_webhook_that_is_down_fails_only_what_needs_it(
    api: Api, hooks: WebhookServer
) -> None:
    await define(api, hooks)
    await api.create(V1, old_widget())
    hooks.responses["/convert"] = lambda request: {
        "result": {"status": "Failure", "message": "no database"}
    }
    failed = await api.ask("GET", V2.url_path("default", "w"))
    assert failed.code == 500
    assert failed.body["message"] == (
        "conversion webhook for example.com/v1, Kind=Widget failed: no database"
    )
    assert "reason" not in failed.body
    assert (await api.ask("GET", V2.url_path("default"))).code == 500
    assert (await api.ask("POST", V2.url_path("default"), new_widget("x"))).code == 500
    (error,) = [event async for chunk in api.chunks(V2, since=1) for event in chunk.splitlines()]
    assert b'"ERROR"' in error
    # The version of the objects, metadata and deletions do not need it.
    assert (await api.get(V1, "w"))["spec"] == {"address": "db:80"}
    assert (await api.patch(V1, "w", {"spec": {"address": "db:81"}})).code == 200
    listed = await api.ask("GET", V2.url_path("default"), headers={"accept": METADATA_ONLY})
    assert (listed.code, names(listed.body)) == (200, ["w"])
    assert (await api.delete(V2, "w")).code == 200
    assert (await api.list_default(V1))["items"] == []


@with_hooks
async def test_deletion_without_the_webhook_keeps_the_version(
    api: Api, hooks: WebhookServer
) -> None:
    await define(api, hooks)
    await api.create(V1, old_widget(finalizers=["example.com/wait"]))
    hooks.responses["/convert"] = lambda request: {"result": {"status": "Failure"}}
    assert (await api.delete(V2, "w")).code == 200
    assert stored_version(api) == "v1"
    hooks.responses["/convert"] = convert_widget
    marked = await api.get(V2, "w")
    assert marked["metadata"]["deletionTimestamp"]
    assert marked["spec"]["port"] == 80
    assert (await api.patch(V2, "w", {"metadata": {"finalizers": None}})).code == 200
    assert (await api.ask("GET", V2.url_path("default", "w"))).code == 404


@with_hooks
async def test_writes_in_the_stored_version_do_not_need_the_owners_of_other_versions(
    api: Api, hooks: WebhookServer
) -> None:
    await define(api, hooks)
    assert (await apply(api, V2, "new", host="db", port=80)).code == 201
    hooks.responses["/convert"] = lambda request: {"result": {"status": "Failure"}}
    labelled = await api.patch(V1, "w", {"metadata": {"labels": {"a": "b"}}}, fieldManager="x")
    assert (labelled.code, labelled.body["metadata"]["labels"]) == (200, {"a": "b"})
    managers = [entry["manager"] for entry in labelled.body["metadata"]["managedFields"]]
    assert managers == ["new", "x"]
    assert (await apply(api, V1, "other", address="db:81")).code == 500


def answer(**changes: Any) -> Any:
    """Change the first object of a correct answer."""

    def respond(request: Object) -> Object:
        right = convert_widget(request)
        right["convertedObjects"][0] |= changes
        return right

    return respond


FAILS = "conversion webhook for example.com/v1, Kind=Widget "


@pytest.mark.parametrize(
    ("respond", "message"),
    [
        (lambda request: {"uid": "x"}, 'failed: expected response.uid="'),
        (lambda request: {}, "failed: response.result.status was '', not 'Success'"),
        (
            lambda request: {"result": {"status": "Success"}, "convertedObjects": []},
            "returned 0 objects, expected 1",
        ),
        (
            answer(apiVersion="example.com/v7"),
            "returned invalid object at index 0: invalid groupVersion "
            "(expected: example.com/v2, received: example.com/v7)",
        ),
        (
            answer(kind="Gadget"),
            "returned invalid object at index 0: invalid kind (expected: Widget, received: Gadget)",
        ),
        (
            answer(metadata={"name": "other", "namespace": "default"}),
            "returned invalid object at index 0: must have the same name: w != other",
        ),
        (
            answer(metadata=None),
            "returned invalid object at index 0: missing metadata in converted object",
        ),
    ],
)
def test_wrong_answers_are_refused(tmp_path: Any, respond: Any, message: str) -> None:
    @with_hooks
    async def trial(api: Api, hooks: WebhookServer) -> None:
        await define(api, hooks, respond)
        await api.create(V1, old_widget())
        failed = await api.ask("GET", V2.url_path("default", "w"))
        assert failed.code == 500
        assert failed.body["message"].startswith(FAILS + message)

    trial(tmp_path)


@with_hooks
async def test_webhook_changes_labels_and_annotations_but_no_other_metadata(
    api: Api, hooks: WebhookServer
) -> None:
    def respond(request: Object) -> Object:
        done = convert_widget(request)
        meta = done["convertedObjects"][0]["metadata"]
        meta |= {"labels": {"made": "here"}, "finalizers": ["x/y"], "generation": 7}
        done["convertedObjects"][0]["unknown"] = True
        return done

    await define(api, hooks, respond)
    await api.create(V1, old_widget(annotations={"a": "b"}))
    shown = await api.get(V2, "w")
    assert shown["metadata"]["labels"] == {"made": "here"}
    assert shown["metadata"]["annotations"] == {"a": "b"}
    assert "finalizers" not in shown["metadata"]
    assert shown["metadata"]["generation"] == 1
    assert "unknown" not in shown


@with_hooks
async def test_update_after_a_change_of_the_storage_version_rewrites_the_object(
    api: Api, hooks: WebhookServer
) -> None:
    await define(api, hooks)
    await api.create(V1, old_widget())
    changed = definition(hooks.client_config("/convert"), storage="v2")["spec"]
    name = "widgets.example.com"
    done = await api.patch(CUSTOM_RESOURCE_DEFINITION, name, {"spec": changed})
    assert done.body["status"]["storedVersions"] == ["v1", "v2"]
    assert stored_version(api) == "v1"
    assert (await api.get(V2, "w"))["spec"] == SPEC_V2
    unchanged = await api.get(V1, "w")
    assert (await api.ask("PUT", V1.url_path("default", "w"), unchanged)).code == 200
    assert stored_version(api) == "v2"
    assert (await api.get(V1, "w"))["spec"] == {"address": "db:80"}


@with_hooks
async def test_objects_from_before_the_webhook_are_in_the_first_stored_version(
    api: Api, hooks: WebhookServer
) -> None:
    spec = definition(hooks.on("/convert", convert_widget))["spec"]
    before = custom_resource_definition(spec["versions"][0])
    await api.create(CUSTOM_RESOURCE_DEFINITION, before)
    await api.create(V1, old_widget())
    assert stored_version(api) == ""
    done = await api.patch(CUSTOM_RESOURCE_DEFINITION, "widgets.example.com", {"spec": spec})
    assert done.code == 200
    assert (await api.get(V2, "w"))["spec"] == SPEC_V2
    # And back: without a webhook, the stored fields are shown as they are.
    await api.patch(V2, "w", {"spec": {"port": 82}})
    none = {"spec": {"conversion": {"strategy": "None", "webhook": None}}}
    assert (await api.patch(CUSTOM_RESOURCE_DEFINITION, "widgets.example.com", none)).code == 200
    assert (await api.get(V1, "w"))["spec"] == {"address": "db:82"}
    assert (await api.patch(V1, "w", {"spec": {"note": "x"}})).code == 200
    assert stored_version(api) == ""


@with_hooks
async def test_patch_succeeds_although_the_object_changes_during_the_conversion(
    api: Api, hooks: WebhookServer
) -> None:
    await define(api, hooks)
    await api.create(V1, old_widget())
    await api.get(V2, "w")
    both = await asyncio.gather(
        *(api.patch(V2, "w", {"metadata": {"labels": {name: "x"}}}) for name in "abcd")
    )
    assert [one.code for one in both] == [200] * 4
    assert (await api.get(V1, "w"))["metadata"]["labels"] == dict.fromkeys("abcd", "x")


@with_hooks
async def test_webhook_of_a_service_is_called_at_its_mapped_url(
    api: Api, hooks: WebhookServer
) -> None:
    hooks.responses["/convert"] = convert_widget
    mapped = Api(webhook_urls={"default/hooks": f"https://127.0.0.1:{hooks.port}"})
    await mapped.server.start()
    service = {"namespace": "default", "name": "hooks", "path": "/convert"}
    config = {"service": service, "caBundle": hooks.ca_bundle}
    await mapped.create(CUSTOM_RESOURCE_DEFINITION, definition(config))
    await mapped.create(V1, old_widget())
    assert (await mapped.get(V2, "w"))["spec"] == SPEC_V2
    await mapped.server.context.dynamic_admission.close()
    await api.create(CUSTOM_RESOURCE_DEFINITION, definition(config))
    await api.create(V1, old_widget())
    failed = await api.ask("GET", V2.url_path("default", "w"))
    shown = f'Post "https://{SERVICE_NAME}:443/convert?timeout=30s"'
    assert failed.body["message"] == f'{FAILS}failed: {shown}: service "hooks" not found'


@with_hooks
async def test_deleting_the_definition_needs_no_webhook(api: Api, hooks: WebhookServer) -> None:
    await define(api, hooks)
    await api.create(V1, old_widget(finalizers=["example.com/wait"]), old_widget("v"))
    hooks.responses["/convert"] = lambda request: {"result": {"status": "Failure"}}
    path = CUSTOM_RESOURCE_DEFINITION.url_path("", "widgets.example.com")
    assert (await api.ask("DELETE", path)).code == 200
    assert names(await api.list_default(V1)) == ["w"]
    assert stored_version(api) == "v1"
    assert (await api.patch(V1, "w", {"metadata": {"finalizers": None}})).code == 200
    assert (await api.ask("GET", path)).code == 404


@with_hooks
async def test_admission_webhooks_see_the_version_of_the_request(
    api: Api, hooks: WebhookServer
) -> None:
    await define(api, hooks)
    config = hooks.on("/mutate", patch(add("/spec/note", "seen")))
    await configure(api, webhook(config, rule("widgets")), mutating=True)
    (made,) = await api.create(V2, new_widget())
    assert made["spec"] == {"host": "db", "port": 80, "note": "seen", "mode": "plain"}
    (review,) = [request for request in hooks.requests if "operation" in request]
    assert review["object"]["apiVersion"] == "example.com/v2"
    assert review["object"]["spec"]["port"] == 80


@with_hooks
async def test_admission_webhooks_of_an_equivalent_version_see_converted_objects(
    api: Api, hooks: WebhookServer
) -> None:
    await define(api, hooks)
    only_v1 = rule("widgets", apiVersions=["v1"])
    config = hooks.on("/mutate", patch(add("/spec/address", "proxy:81")))
    await configure(api, webhook(config, only_v1), mutating=True)
    await configure(api, webhook(hooks.on("/validate", allow()), only_v1))
    (made,) = await api.create(V2, new_widget())
    assert made["spec"] == {"host": "proxy", "port": 81, "mode": "plain"}
    seen = [request["object"] for request in hooks.requests if "operation" in request]
    assert [(one["apiVersion"], one["spec"]) for one in seen] == [
        ("example.com/v1", {"address": "db:80"}),
        ("example.com/v1", {"address": "proxy:81"}),
    ]


@with_hooks
async def test_admission_policies_of_an_equivalent_version_see_converted_objects(
    api: Api, hooks: WebhookServer
) -> None:
    await define(api, hooks)
    await deny_port_one(api, "ports", "v1", "object.spec.address != 'db:1'")
    assert (await api.ask("POST", V2.url_path("default"), new_widget())).code == 201
    refused = await api.ask("POST", V2.url_path("default"), new_widget("v", port=1))
    assert refused.code == 422
    assert "no port 1" in refused.body["message"]


async def deny_port_one(api: Api, name: str, version: str, expression: str) -> None:
    """Create a policy for one version of widgets, and its binding."""
    rules = [rule("widgets", apiVersions=[version], operations=("CREATE", "UPDATE"))]
    checks = [{"expression": expression, "message": "no port 1"}]
    policy = {"matchConstraints": {"resourceRules": rules}, "validations": checks}
    await api.create(VALIDATING_ADMISSION_POLICY, {"metadata": {"name": name}, "spec": policy})
    binding = {"policyName": name, "validationActions": ["Deny"]}
    await api.create(
        VALIDATING_ADMISSION_POLICY_BINDING, {"metadata": {"name": name}, "spec": binding}
    )


@with_hooks
async def test_policies_of_the_same_version_share_one_conversion(
    api: Api, hooks: WebhookServer
) -> None:
    await define(api, hooks)
    for number in range(3):
        await deny_port_one(api, f"ports-{number}", "v2", "object.spec.port != 1")
    refused = await api.ask("POST", V1.url_path("default"), old_widget(address="db:1"))
    assert (refused.code, len(hooks.requests)) == (422, 1)


@pytest.mark.parametrize("waits_for_policy", [False, True])
def test_other_requests_go_on_while_writes_wait_for_the_webhook(
    tmp_path: Path, *, waits_for_policy: bool
) -> None:
    @with_hooks
    async def trial(api: Api, hooks: WebhookServer) -> None:
        await define(api, hooks)
        await grant(api, JOE, "cluster-admin")
        make: Callable[[str], Object] = new_widget
        if waits_for_policy:
            await deny_port_one(api, "ports", "v2", "object.spec.port != 1")
            make = old_widget
        path = (V1 if waits_for_policy else V2).url_path("default")
        hooks.handlers["/convert"] = hooks.hang
        waiting = [
            asyncio.create_task(api.ask("POST", path, make(f"w-{number}"), user=JOE))
            for number in range(150)
        ]
        await asyncio.sleep(0)
        # More requests wait than the priority level of the user has places.
        answer = await api.ask("POST", CONFIG_MAP.url_path("default"), config_map(), user=JOE)
        assert answer.code == 201
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    trial(tmp_path)
