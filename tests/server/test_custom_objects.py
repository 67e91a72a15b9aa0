"""Custom resources: written, read and watched."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from phalanx.api.kinds import CUSTOM_RESOURCE_DEFINITION
from phalanx.api.wire import JSON, Object
from tests.api.custom_resource_definitions import (
    WIDGET,
    object_schema,
    resource_schema,
    served_version,
)
from tests.builders import in_virtual_time
from tests.server.api import ApiResponse, names, revision
from tests.server.widget_fixtures import (
    KIND,
    NUMBER,
    WIDGETS,
    api_with_widgets,
    codes,
    crd,
    delete_definition,
    post,
    widget,
)

TABLE = f"{JSON};as=Table;v=v1;g=meta.k8s.io"


# ---- objects -------------------------------------------------------------------------------------


@in_virtual_time
async def test_unknown_fields_are_warned_of_or_refused() -> None:
    api = await api_with_widgets()
    odd = widget(extra=1)
    answer = await post(api, odd)
    assert (answer.code, answer.header_values("warning")) == (
        201,
        ['299 - "unknown field \\"extra\\""'],
    )
    strict = await post(api, widget("x", extra=1), fieldValidation="Strict")
    assert (strict.code, 'unknown field "extra"' in strict.body["message"]) == (400, True)


@in_virtual_time
async def test_object_of_another_kind_is_invalid_after_its_resource_version() -> None:
    api = await api_with_widgets()
    other = {**widget(), "kind": "Gadget", "apiVersion": "example.com/v1"}
    refused = await post(api, other)
    assert (refused.code, refused.cause_reasons) == (422, [("kind", "FieldValueInvalid")])
    await api.create(KIND, widget())
    blind = await api.ask("PUT", f"{WIDGETS}/w", other)
    assert (blind.code, blind.cause_reasons) == (
        422,
        [("metadata.resourceVersion", "FieldValueInvalid")],
    )


@pytest.mark.parametrize("spec", ["text", [], {"size": {}}, {"size": 1, "tags": "x"}, 7])
@in_virtual_time
async def test_an_object_with_a_wrong_type_is_invalid_and_not_a_bad_request(spec: object) -> None:
    api = await api_with_widgets()
    wrong = {"metadata": {"name": "w"}, "spec": spec}
    answer = await post(api, wrong)
    assert (answer.code, answer.cause_reasons[0][1]) == (422, "FieldValueTypeInvalid")
    await api.create(KIND, widget())
    changed = await api.patch(
        KIND, "w", [{"op": "replace", "path": "/spec", "value": spec}], "json"
    )
    assert changed.code == 422


@in_virtual_time
async def test_a_patch_that_nests_values_too_deep_is_a_bad_request() -> None:
    api = await api_with_widgets(
        served_version(schema={**WIDGET, "x-kubernetes-preserve-unknown-fields": True})
    )
    deep: Object = {}
    for _ in range(200):
        deep = {"a": deep}
    created = await api.create(KIND, {**widget(), "data": deep})
    step = {"op": "add", "path": "/data" + "/a" * 200 + "/b", "value": deep}
    answer = await api.patch(KIND, "w", [step], "json")
    assert (answer.code, answer.body["message"]) == (
        400,
        "Widget cannot be stored: exceeded max depth",
    )
    assert [await api.get(KIND, "w")] == created


@in_virtual_time
async def test_the_generation_changes_with_everything_but_metadata_and_status() -> None:
    api = await api_with_widgets(
        served_version(
            schema={**WIDGET, "x-kubernetes-preserve-unknown-fields": True},
            subresources={"status": {}},
        )
    )
    await api.create(KIND, widget())
    seen = []
    for change, part in (
        ({"metadata": {"labels": {"a": "b"}}}, ""), ({"status": {"phase": "x"}}, "status"),
        ({"spec": {"size": 4}}, ""), ({"data": {"k": 1}}, ""), ({"data": {"k": 1}}, ""),
    ):  # fmt: skip
        answer = await api.patch(KIND, "w", change, part=part)
        seen.append(answer.body["metadata"]["generation"])
    assert seen == [1, 1, 2, 3, 3]


@in_virtual_time
async def test_without_a_status_subresource_the_status_is_part_of_the_object() -> None:
    api = await api_with_widgets()
    await api.create(KIND, widget(status={"phase": "early"}))
    answer = await api.patch(KIND, "w", {"status": {"phase": "late"}})
    assert (answer.body["status"], answer.body["metadata"]["generation"]) == ({"phase": "late"}, 2)
    assert codes(await api.ask("GET", f"{WIDGETS}/w/status")) == [404]


@in_virtual_time
async def test_a_stricter_schema_accepts_unchanged_old_values() -> None:
    api = await api_with_widgets(served_version(schema=resource_schema(a=NUMBER, b=NUMBER)))
    await api.create(KIND, widget() | {"spec": {"a": 1, "b": 1}})
    strict = served_version(schema=resource_schema(a={**NUMBER, "minimum": 5}, b=NUMBER))
    path = CUSTOM_RESOURCE_DEFINITION.url_path("", "widgets.example.com")
    change = [{"op": "replace", "path": "/spec/versions", "value": [strict]}]
    headers = {"content-type": "application/json-patch+json"}
    assert codes(await api.ask("PATCH", path, change, headers=headers)) == [200]
    assert codes(await api.patch(KIND, "w", {"spec": {"b": 2}})) == [200]
    assert codes(await api.patch(KIND, "w", {"spec": {"a": 2}})) == [422]


@in_virtual_time
async def test_an_object_that_no_longer_matches_its_schema_can_be_replaced() -> None:
    api = await api_with_widgets(served_version(schema=resource_schema(a={"type": "string"})))
    await api.create(KIND, widget() | {"spec": {"a": "text"}})
    other = served_version(schema=resource_schema(a=object_schema(b=NUMBER)))
    path = CUSTOM_RESOURCE_DEFINITION.url_path("", "widgets.example.com")
    change = [{"op": "replace", "path": "/spec/versions", "value": [other]}]
    headers = {"content-type": "application/json-patch+json"}
    assert codes(await api.ask("PATCH", path, change, headers=headers)) == [200]
    config = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
    applied = await api.ask(
        "PATCH", f"{WIDGETS}/w", {**config, "spec": {"a": {"b": 1}}},
        headers={"content-type": "application/apply-patch+yaml"}, query={"fieldManager": "t"},
    )  # fmt: skip
    replaced = await api.patch(KIND, "w", {"spec": {"a": {"b": 1}}})
    assert codes(applied, replaced) == [409, 200]
    assert replaced.body["spec"] == {"a": {"b": 1}}


@in_virtual_time
async def test_requests_to_a_deprecated_version_get_a_warning() -> None:
    api = await api_with_widgets(served_version(deprecated=True, deprecationWarning='use "v2"'))
    answers = [await post(api, widget()), await api.ask("GET", f"{WIDGETS}/w")]
    assert [answer.header_values("warning") for answer in answers] == [['299 - "use \\"v2\\""']] * 2


@in_virtual_time
async def test_fields_are_owned_as_the_schema_divides_them() -> None:
    port = {**object_schema(number=NUMBER, name={"type": "string"}), "required": ["number"]}
    keyed = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["number"]}
    schema = resource_schema(
        ports={"type": "array", "items": port, **keyed},
        labels={"type": "object", "additionalProperties": {"type": "string"}},
        whole={**object_schema(a=NUMBER), "x-kubernetes-map-type": "atomic"},
    )  # fmt: skip
    api = await api_with_widgets(served_version(schema=schema))

    async def apply(manager: str, spec: Object, **query: str) -> ApiResponse:
        body = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
        return await api.ask(
            "PATCH", f"{WIDGETS}/w", {**body, "spec": spec},
            headers={"content-type": "application/apply-patch+yaml"},
            query={"fieldManager": manager, **query},
        )  # fmt: skip

    first = await apply("one", {"ports": [{"number": 1, "name": "a"}], "labels": {"x": "1"}})
    second = await apply("two", {"ports": [{"number": 2}], "labels": {"y": "2"}, "whole": {"a": 1}})
    assert codes(first, second) == [201, 200]
    assert second.body["spec"] == {
        "ports": [{"number": 1, "name": "a"}, {"number": 2}],
        "labels": {"x": "1", "y": "2"}, "whole": {"a": 1},
    }  # fmt: skip
    clash = await apply("one", {"ports": [{"number": 1}], "whole": {"a": 2}})
    assert (clash.code, clash.cause_reasons) == (409, [(".spec.whole", "FieldManagerConflict")])
    left = await apply("one", {"ports": [{"number": 1}]})
    assert left.body["spec"]["ports"] == [{"number": 1}, {"number": 2}]
    assert left.body["spec"]["labels"] == {"y": "2"}
    assert codes(await apply("one", {"ports": "many"})) == [400]


@in_virtual_time
async def test_a_strategic_merge_patch_is_not_supported() -> None:
    api = await api_with_widgets()
    await api.create(KIND, widget())
    answer = await api.patch(KIND, "w", {"spec": {"size": 4}}, "strategic")
    assert (answer.code, "strategic" in answer.body["message"]) == (415, False)


@in_virtual_time
async def test_selectable_fields_work_in_field_selectors() -> None:
    api = await api_with_widgets(served_version(selectableFields=[{"jsonPath": ".spec.colour"}]))
    await api.create(KIND, widget("a"))
    blue = widget("b")
    blue["spec"]["colour"] = "blue"
    await api.create(KIND, blue)
    assert names(await api.list_default(KIND, {"fieldSelector": "spec.colour=blue"})) == ["b"]
    refused = await api.ask("GET", WIDGETS, query={"fieldSelector": "spec.size=3"})
    assert refused.code == 400


@in_virtual_time
async def test_tables_show_the_columns_of_the_definition() -> None:
    columns = [{"name": "Size", "type": "integer", "jsonPath": ".spec.size", "priority": 1}]
    api = await api_with_widgets(served_version(additionalPrinterColumns=columns))
    await api.create(KIND, widget())
    answer = await api.ask("GET", WIDGETS, headers={"accept": TABLE})
    shown = [
        (one["name"], one["type"], one["priority"]) for one in answer.body["columnDefinitions"]
    ]
    assert shown == [("Name", "string", 0), ("Size", "integer", 1)]
    assert [row["cells"] for row in answer.body["rows"]] == [["w", 3]]


# ---- watches -------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_watch_from_before_the_definition_expires() -> None:
    api = await api_with_widgets()
    since = revision(await crd(api))
    await api.create(KIND, widget())
    (gone,) = [event async for chunk in api.chunks(KIND, since=1) for event in chunk.splitlines()]
    event = orjson.loads(gone)
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
    assert [str(event) for event in await api.watch(KIND, since=since)] == ["ADDED w"]


@in_virtual_time
async def test_watches_end_with_the_definition() -> None:
    api = await api_with_widgets()
    await api.create(KIND, widget())
    loop = asyncio.get_running_loop()
    watching = asyncio.create_task(api.watch(KIND, seconds=100))
    await asyncio.sleep(1)
    await delete_definition(api)
    assert [str(event) for event in await watching] == ["ADDED w", "DELETED w"]
    assert loop.time() < 50


@in_virtual_time
async def test_defaults_that_a_definition_gets_later_are_shown_but_not_stored() -> None:
    api = await api_with_widgets(served_version(schema=resource_schema(size=NUMBER)))
    await api.create(KIND, widget("old"))
    definition = await crd(api)
    colour = {"type": "string", "default": "red"}
    schema = resource_schema(size=NUMBER, colour=colour)
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = schema
    path = CUSTOM_RESOURCE_DEFINITION.url_path("", "widgets.example.com")
    assert (await api.ask("PUT", path, definition)).code == 200
    assert (await api.get(KIND, "old"))["spec"] == {"size": 3, "colour": "red"}
    listed = await api.list_default(KIND)
    assert [item["spec"]["colour"] for item in listed["items"]] == ["red"]
    record = api.store.get(KIND.store_key("default", "old"))
    assert record is not None
    assert b"red" not in record.value
    assert (await post(api, widget("new"), dryRun="All")).body["spec"]["colour"] == "red"


@in_virtual_time
async def test_a_new_finalizer_without_a_domain_gets_a_warning() -> None:
    api = await api_with_widgets()
    plain = widget()
    plain["metadata"]["finalizers"] = ["plain", "example.com/own"]
    (warning,) = (await post(api, plain)).header_values("warning")
    assert "prefer a domain-qualified finalizer name" in warning
    again = await api.patch(KIND, "w", {"metadata": {"labels": {"a": "b"}}})
    assert again.header_values("warning") == []
