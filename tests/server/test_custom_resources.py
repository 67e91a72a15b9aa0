"""CustomResourceDefinitions: how kinds are added and removed, and how clients discover them."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from phalanx.api.defaults.custom_resource_definition import (
    CLEANUP_FINALIZER,
    ESTABLISHED,
    NAMES_ACCEPTED,
    TERMINATING,
    find_condition,
)
from phalanx.api.kinds import CUSTOM_RESOURCE_DEFINITION, JOB_SET, KINDS, LEADER_WORKER_SET
from phalanx.api.wire import JSON, Object
from phalanx.clock import LoopClock
from phalanx.randomness import SeededRandom
from phalanx.server.app import Server
from tests.api.custom_resource_definitions import (
    WIDGET,
    custom_resource_definition,
    object_schema,
    resource_schema,
    served_version,
)
from tests.builders import in_virtual_time
from tests.server.api import EPOCH, Api, names
from tests.server.widget_fixtures import (
    KIND,
    KIND_V2,
    NUMBER,
    WIDGETS,
    api_with_widgets,
    codes,
    crd,
    define,
    delete_definition,
    post,
    widget,
)

# ---- definitions ---------------------------------------------------------------------------------


@in_virtual_time
async def test_a_kind_is_served_as_soon_as_its_definition_is_created() -> None:
    api = await Api.start()
    assert codes(await post(api, widget())) == [404]
    made = await define(api)
    assert find_condition(made, NAMES_ACCEPTED)["status"] == "True"
    assert find_condition(made, ESTABLISHED)["status"] == "True"
    assert made["status"]["storedVersions"] == ["v1"]
    assert codes(await post(api, widget())) == [201]


@in_virtual_time
async def test_the_status_that_a_client_sends_is_ignored() -> None:
    api = await Api.start()
    taken = custom_resource_definition(kind="Gadget", names={"shortNames": ["w"]})
    await api.create(CUSTOM_RESOURCE_DEFINITION, taken)
    definition = custom_resource_definition(names={"shortNames": ["w"]})
    definition["status"] = {
        "acceptedNames": {"plural": "widgets", "kind": "Widget"}, "storedVersions": ["v7"],
        "conditions": [{"type": ESTABLISHED, "status": "True"}],
    }  # fmt: skip
    (made,) = await api.create(CUSTOM_RESOURCE_DEFINITION, definition)
    assert find_condition(made, ESTABLISHED)["status"] == "False"
    assert made["status"]["storedVersions"] == ["v1"]
    assert codes(await post(api, widget())) == [404]


@in_virtual_time
async def test_a_definition_is_established_when_its_names_become_free() -> None:
    api = await api_with_widgets(names={"shortNames": ["w"]})
    await define(api, kind="Gadget", names={"shortNames": ["w"]})
    waiting = await crd(api, "gadgets.example.com")
    assert find_condition(waiting, NAMES_ACCEPTED)["reason"] == "ShortNamesConflict"
    await delete_definition(api)
    accepted = await crd(api, "gadgets.example.com")
    assert find_condition(accepted, ESTABLISHED)["status"] == "True"
    listed = await api.ask("GET", "/apis/example.com/v1/gadgets")
    assert codes(listed) == [200]


@in_virtual_time
async def test_the_names_of_built_in_kinds_are_taken() -> None:
    api = await Api.start()
    definition = custom_resource_definition(
        kind="Widget", group=JOB_SET.group, names={"kind": "JobSet"}
    )
    (made,) = await api.create(CUSTOM_RESOURCE_DEFINITION, definition)
    assert find_condition(made, NAMES_ACCEPTED)["reason"] in ("KindConflict", "ListKindConflict")
    assert codes(await api.ask("GET", JOB_SET.url_path())) == [200]
    assert codes(await api.ask("GET", f"/apis/{JOB_SET.group}/v1/widgets")) == [404]


@in_virtual_time
async def test_a_built_in_kind_cannot_be_defined() -> None:
    api = await Api.start()
    for kind in (JOB_SET, LEADER_WORKER_SET):
        definition = custom_resource_definition(
            served_version(kind.version), kind=kind.name, group=kind.group
        )
        answer = await api.ask("POST", CUSTOM_RESOURCE_DEFINITION.url_path(), definition)
        assert answer.code == 422
        assert answer.cause_reasons == [("spec.names.plural", "FieldValueInvalid")]
        assert "is built in" in answer.body["message"]
        assert codes(await api.ask("GET", kind.url_path())) == [200]


@in_virtual_time
async def test_an_older_definition_of_a_built_in_kind_does_nothing() -> None:
    """Its objects become objects of the built-in kind and outlive the definition."""
    api, clock = await Api.start(), LoopClock(asyncio.get_running_loop(), EPOCH)
    before = [kind for kind in KINDS if kind is not JOB_SET]
    api.server = Server(api.store, clock, SeededRandom(2), kinds=before)
    definition = custom_resource_definition(
        served_version("v1alpha2"), kind="JobSet", group=JOB_SET.group
    )
    await api.create(CUSTOM_RESOURCE_DEFINITION, definition)
    await api.create(JOB_SET, {"metadata": {"name": "j", "namespace": "default"},
                               "spec": {"size": 1}})  # fmt: skip
    api.server = Server(api.store, clock, SeededRandom(3))
    resources = (await api.ask("GET", f"/apis/{JOB_SET.api_version}")).body["resources"]
    assert [one["name"] for one in resources] == ["jobsets", "jobsets/status"]
    assert codes(await delete_definition(api, "jobsets.jobset.x-k8s.io")) == [200]
    assert codes(await api.ask("GET", JOB_SET.url_path("default", "j"))) == [200]
    assert codes(await api.ask("DELETE", JOB_SET.url_path("default", "j"))) == [200]


@in_virtual_time
async def test_a_kind_in_another_group_may_have_the_name_of_a_built_in_kind() -> None:
    api = await api_with_widgets(kind="Pod")
    path = "/apis/example.com/v1/namespaces/default/pods"
    made = await api.ask("POST", path, widget("p"))
    assert (made.code, made.body["spec"]) == (201, {"size": 3, "colour": "red"})


@in_virtual_time
async def test_a_new_version_is_served_as_soon_as_it_is_added() -> None:
    api = await api_with_widgets()
    await api.create(KIND, widget())
    versions = [served_version("v1"), served_version("v2", storage=False)]
    changed = {**await crd(api)}
    changed["spec"] = {**changed["spec"], "versions": versions}
    path = CUSTOM_RESOURCE_DEFINITION.url_path("", "widgets.example.com")
    answer = await api.ask("PUT", path, changed)
    assert (answer.code, answer.body["metadata"]["generation"]) == (200, 2)
    seen = await api.get(KIND_V2, "w")
    assert (seen["apiVersion"], seen["spec"]) == ("example.com/v2", {"size": 3, "colour": "red"})
    versions[0]["served"] = False
    answer = await api.ask(
        "PUT", path, {**answer.body, "spec": {**changed["spec"], "versions": versions}}
    )
    assert codes(answer, await api.ask("GET", f"{WIDGETS}/w")) == [200, 404]


@in_virtual_time
async def test_cel_rules_are_enforced() -> None:
    rules = [
        {"rule": "self.size <= self.most", "fieldPath": ".size", "message": "too many"},
        {"rule": "self.most == oldSelf.most", "reason": "FieldValueForbidden"},
    ]
    spec = {**object_schema(size=NUMBER, most=NUMBER), "x-kubernetes-validations": rules}
    api = await api_with_widgets(
        served_version(schema={**resource_schema(), "properties": {"spec": spec}})
    )
    good, bad = ({**widget("w"), "spec": {"size": size, "most": 3}} for size in (2, 5))
    refused = await post(api, bad)
    assert refused.code == 422
    wanted = 'Widget.example.com "w" is invalid: spec.size: Invalid value: "object": too many'
    assert refused.body["message"] == wanted
    (made,) = await api.create(KIND, good)
    change = {**made, "spec": {"size": 2, "most": 4}}
    answer = await api.ask("PUT", KIND.url_path("default", "w"), change)
    assert [cause["field"] for cause in answer.body["details"]["causes"]] == ["spec"]
    assert "Forbidden: failed rule: self.most == oldSelf.most" in answer.body["message"]


@in_virtual_time
async def test_an_invalid_cel_rule_is_refused() -> None:
    api = await Api.start()
    ruled = {**NUMBER, "x-kubernetes-validations": [{"rule": "self > 'x'"}]}
    definition = custom_resource_definition(served_version(schema=resource_schema(a=ruled)))
    answer = await api.ask("POST", CUSTOM_RESOURCE_DEFINITION.url_path(), definition)
    (cause,) = answer.body["details"]["causes"]
    assert cause["field"].endswith("properties[a].x-kubernetes-validations[0].rule")
    assert "compilation failed: ERROR: <input>:1:6: found no matching overload" in cause["message"]


@in_virtual_time
async def test_definitions_and_objects_survive_a_restart() -> None:
    api = await api_with_widgets()
    await api.create(KIND, widget())
    clock = LoopClock(asyncio.get_running_loop(), EPOCH)
    api.server = Server(api.store, clock, SeededRandom(2))
    await api.server.start()
    assert (await api.get(KIND, "w"))["spec"]["size"] == 3
    assert codes(await post(api, widget("x", 11))) == [422]


# ---- deletion ------------------------------------------------------------------------------------


@in_virtual_time
async def test_objects_are_deleted_before_their_definition() -> None:
    api = await api_with_widgets()
    await api.create(KIND, *(widget(f"w{n}") for n in range(3)))
    answer = await delete_definition(api)
    assert answer.code == 200
    assert answer.body["metadata"]["finalizers"] == [CLEANUP_FINALIZER]
    assert find_condition(answer.body, TERMINATING)["status"] == "True"
    assert api.store.range("/example.com/") == []
    keys = [change.key.rpartition("/")[2] for change in api.store.changes(0) if not change.after]
    assert keys == ["w0", "w1", "w2", "widgets.example.com"]
    assert codes(await api.ask("GET", WIDGETS), await delete_definition(api)) == [404, 404]


@in_virtual_time
async def test_the_deletion_of_a_definition_has_neither_policy_nor_grace_period() -> None:
    api = await api_with_widgets()
    path = CUSTOM_RESOURCE_DEFINITION.url_path("", "widgets.example.com")
    answer = await api.ask("DELETE", path, query={"propagationPolicy": "Foreground"})
    meta = answer.body["metadata"]
    assert meta["finalizers"] == [CLEANUP_FINALIZER]
    assert (meta["generation"], "deletionGracePeriodSeconds" in meta) == (1, False)
    assert codes(await api.ask("GET", path)) == [404]


@in_virtual_time
async def test_a_definition_waits_for_the_finalizers_of_its_objects() -> None:
    api = await api_with_widgets()
    held = widget("held")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await api.create(KIND, held, widget("free"))
    await delete_definition(api)
    assert names(await api.list_default(KIND)) == ["held"]
    assert (await api.get(KIND, "held"))["metadata"]["generation"] == 2
    refused = await post(api, widget("new"))
    assert (refused.code, "terminating" in refused.body["message"]) == (405, True)
    assert codes(await api.patch(KIND, "held", {"metadata": {"finalizers": None}})) == [200]
    assert codes(await api.ask("GET", WIDGETS)) == [404]
    assert api.store.range("/apiextensions.k8s.io/") == []


@in_virtual_time
async def test_no_object_is_created_while_the_definition_is_terminating() -> None:
    api = Api(latency=lambda: 0.1)
    await api.server.start()
    await define(api)
    await api.create(KIND, widget("a"))
    answers = await asyncio.gather(
        delete_definition(api), *(post(api, widget(f"w{n}")) for n in range(3))
    )
    assert codes(*answers) == [200, 405, 405, 405]
    assert api.store.range("/example.com/") == []


@in_virtual_time
async def test_an_uncommitted_object_is_deleted_with_its_definition() -> None:
    api = Api(latency=lambda: 0.1)
    await api.server.start()
    await define(api)
    answers = await asyncio.gather(
        post(api, widget("a")), post(api, widget("b")), delete_definition(api)
    )
    assert codes(*answers) == [201, 201, 200]
    assert api.store.range("/example.com/") == []
    assert api.store.range("/apiextensions.k8s.io/") == []


@in_virtual_time
async def test_a_deletion_continues_after_a_restart() -> None:
    api = await api_with_widgets()
    held = widget("held")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await api.create(KIND, held)
    await delete_definition(api)
    record = api.store.get("/example.com/widgets/default/held")
    assert record is not None
    clock = LoopClock(asyncio.get_running_loop(), EPOCH)
    api.server = Server(api.store, clock, SeededRandom(2))
    await api.server.start()
    assert codes(await api.patch(KIND, "held", {"metadata": {"finalizers": None}})) == [200]
    assert api.store.range("/apiextensions.k8s.io/") == []


@in_virtual_time
async def test_a_recreated_definition_has_no_objects_and_no_history() -> None:
    api = await api_with_widgets()
    await api.create(KIND, widget())
    before = api.store.revision
    await delete_definition(api)
    await define(api, served_version(schema=resource_schema(a=NUMBER)))
    assert names(await api.list_default(KIND)) == []
    answer = await post(api, {"metadata": {"name": "w"}, "spec": {"a": 1, "size": 3}})
    assert answer.body["spec"] == {"a": 1}
    (gone,) = [
        line async for chunk in api.chunks(KIND, since=before) for line in chunk.splitlines()
    ]
    assert orjson.loads(gone)["object"]["code"] == 410


# ---- discovery and OpenAPI -----------------------------------------------------------------------


@in_virtual_time
async def test_items_of_a_list_of_custom_resources_have_their_kind() -> None:
    api = await Api.start()
    await api.create(CUSTOM_RESOURCE_DEFINITION, custom_resource_definition())
    await api.create(KIND, widget())
    (item,) = (await api.ask("GET", KIND.url_path("default"))).body["items"]
    assert (item["kind"], item["apiVersion"]) == (KIND.name, KIND.api_version)
    assert item == (await api.ask("GET", KIND.url_path("default", "w"))).body


@in_virtual_time
async def test_discovery_lists_custom_kinds() -> None:
    scale = {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}
    api = await api_with_widgets(
        served_version("v1beta1", storage=False),
        served_version("v1", subresources={"status": {}, "scale": scale}),
        names={"shortNames": ["wd"], "categories": ["all"]},
    )  # fmt: skip
    group = (await api.ask("GET", "/apis/example.com")).body
    assert [one["version"] for one in group["versions"]] == ["v1", "v1beta1"]
    assert group["preferredVersion"]["version"] == "v1"
    listed = (await api.ask("GET", "/apis/example.com/v1")).body["resources"]
    assert [one["name"] for one in listed] == ["widgets", "widgets/status", "widgets/scale"]
    assert (listed[0]["shortNames"], listed[0]["categories"]) == (["wd"], ["all"])
    assert (listed[2]["group"], listed[2]["kind"]) == ("autoscaling", "Scale")
    await delete_definition(api)
    assert codes(await api.ask("GET", "/apis/example.com")) == [404]


@in_virtual_time
async def test_openapi_has_the_current_schema() -> None:
    api = await api_with_widgets()
    place = "/openapi/v3/apis/example.com/v1"
    document = (await api.ask("GET", place)).body
    shown = document["components"]["schemas"]["com.example.v1.Widget"]
    assert shown["properties"]["spec"] == WIDGET["properties"]["spec"]
    index = (await api.ask("GET", "/openapi/v3")).body["paths"]["apis/example.com/v1"]
    await delete_definition(api)
    assert codes(await api.ask("GET", place)) == [404]
    await define(api, served_version(schema=resource_schema(a=NUMBER)))
    document = (await api.ask("GET", place)).body
    shown = document["components"]["schemas"]["com.example.v1.Widget"]
    assert shown["properties"]["spec"] == object_schema(a=NUMBER)
    assert (await api.ask("GET", "/openapi/v3")).body["paths"]["apis/example.com/v1"] != index
    operations = document["paths"]["/apis/example.com/v1/namespaces/{namespace}/widgets/{name}"]
    assert "patch" in operations


@in_virtual_time
async def test_openapi_v2_is_a_document_without_schemas() -> None:
    api = await api_with_widgets()
    plain = await api.ask("GET", "/openapi/v2")
    assert (plain.kind, plain.body["swagger"], plain.body["definitions"]) == (JSON, "2.0", {})
    wanted = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
    found = await api.ask("GET", "/openapi/v2", headers={"accept": wanted})
    assert (found.code, found.kind) == (200, wanted.replace("@", "."))
    # Field 1, `swagger`, and field 2, `info` with `title` and `version`.
    swagger, info = b"\x0a\x032.0", b"\x0a\x07Phalanx\x12\x02v1"
    assert found.text == swagger + b"\x12" + bytes([len(info)]) + info


@pytest.mark.parametrize(
    ("change", "causes"),
    [
        ({"labels": {"a": "not valid!"}}, [("metadata.labels", "FieldValueInvalid")] * 3),
        ({"uid": "other"}, [("metadata.uid", "FieldValueInvalid")] * 2),
        ({"finalizers": ["a b"]}, [("metadata.finalizers", "FieldValueInvalid")]),
    ],
)
@in_virtual_time
async def test_causes_in_the_metadata_of_a_changed_definition_are_repeated(
    change: Object, causes: list[tuple[str, str]]
) -> None:
    api = await api_with_widgets()
    path = f"{CUSTOM_RESOURCE_DEFINITION.url_path()}/widgets.example.com"
    headers = {"content-type": "application/merge-patch+json"}
    answer = await api.ask("PATCH", path, {"metadata": change}, headers=headers)
    assert answer.cause_reasons == causes
