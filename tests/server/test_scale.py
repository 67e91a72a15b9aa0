from __future__ import annotations

import pytest

from phalanx.api.kinds import CUSTOM_RESOURCE_DEFINITION, STATEFUL_SET
from phalanx.api.wire import Object
from tests.api.custom_resource_definitions import custom_resource_definition, served_version
from tests.builders import in_virtual_time
from tests.server.api import Api, ApiResponse
from tests.server.widget_fixtures import KIND, widget

SCALE = KIND.url_path("default", "w", "scale")
PATHS = {
    "specReplicasPath": ".spec.size",
    "statusReplicasPath": ".status.size",
    "labelSelectorPath": ".status.selector",
}


async def start_api() -> Api:
    api = await Api.start()
    status = {"size": {"type": "integer"}, "selector": {"type": "string"}}
    made = served_version(subresources={"scale": PATHS})
    made["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"].update(status)
    await api.create(CUSTOM_RESOURCE_DEFINITION, custom_resource_definition(made))
    await api.create(KIND, widget(status={"size": 2, "selector": "app=w"}))
    return api


async def change(api: Api, patch: object, content: str = "merge-patch+json") -> ApiResponse:
    headers = {"content-type": f"application/{content}"}
    return await api.ask("PATCH", SCALE, patch, headers=headers)


def replicas(answer: ApiResponse) -> int:
    found: int = answer.body["spec"]["replicas"]
    return found


@in_virtual_time
async def test_a_scale_is_read_from_the_paths_of_the_definition() -> None:
    api = await start_api()
    answer = await api.ask("GET", SCALE)
    assert answer.code == 200
    assert (answer.body["kind"], answer.body["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert answer.body["metadata"]["name"] == "w"
    assert answer.body["spec"] == {"replicas": 3}
    assert answer.body["status"] == {"replicas": 2, "selector": "app=w"}


@in_virtual_time
async def test_a_scale_is_written_back_into_the_object() -> None:
    api = await start_api()
    scale = (await api.ask("GET", SCALE)).body
    scale["spec"]["replicas"] = 5
    answer = await api.ask("PUT", SCALE, scale)
    assert (answer.code, replicas(answer)) == (200, 5)
    obj = await api.get(KIND, "w")
    assert (obj["spec"], obj["metadata"]["generation"]) == ({"size": 5, "colour": "red"}, 2)
    assert (await api.ask("PUT", SCALE, scale)).code == 409


@pytest.mark.parametrize(
    ("patch", "content"),
    [
        ({"spec": {"replicas": 7}}, "merge-patch+json"),
        ([{"op": "replace", "path": "/spec/replicas", "value": 7}], "json-patch+json"),
    ],
)
@in_virtual_time
async def test_a_scale_can_be_patched(patch: object, content: str) -> None:
    api = await start_api()
    assert replicas(await change(api, patch, content)) == 7
    assert (await api.get(KIND, "w"))["spec"]["size"] == 7


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        ({"spec": {"replicas": -1}}, 422),
        ({"spec": {"replicas": 11}}, 422),
        ({"spec": {"replicas": "x"}}, 422),
        ({"spec": {"replicas": 2**40}}, 422),
        ({"metadata": {"uid": "another"}}, 409),
        ({"metadata": {"name": "another"}}, 400),
        ({"metadata": {"namespace": "another"}}, 400),
        ({"metadata": {"resourceVersion": "1"}}, 409),
        ({"metadata": {"resourceVersion": "x"}}, 400),
        ([1], 422),
    ],
)
@in_virtual_time
async def test_an_invalid_scale_is_refused(patch: object, code: int) -> None:
    api = await start_api()
    assert (await change(api, patch)).code == code
    assert (await api.get(KIND, "w"))["spec"]["size"] == 3


@in_virtual_time
async def test_a_scale_of_another_object_is_refused() -> None:
    api = await start_api()
    for meta, code in (
        ({"name": "another"}, 400),
        ({}, 400),
        ({"name": "w", "namespace": "another"}, 400),
        ({"name": "w", "uid": "another"}, 409),
        ({"name": "w", "namespace": "default"}, 200),
    ):
        body = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": meta}
        answer = await api.ask("PUT", SCALE, {**body, "spec": {"replicas": 5}})
        assert answer.code == code, meta
    causes = (await change(api, {"spec": {"replicas": "x"}})).body["details"]["causes"]
    assert [cause["field"] for cause in causes] == ["patch"]


@in_virtual_time
async def test_a_kind_without_scale_has_no_scale_subresource() -> None:
    api = await Api.start()
    await api.create(CUSTOM_RESOURCE_DEFINITION, custom_resource_definition())
    await api.create(KIND, widget())
    missing: list[Object] = [(await api.ask("GET", SCALE)).body]
    assert missing[0]["code"] == 404
    api = await start_api()
    path = KIND.url_path("default", "missing", "scale")
    assert (await api.ask("GET", path)).code == 404
    strategic = await change(api, {}, "strategic-merge-patch+json")
    assert strategic.code == 415


@in_virtual_time
async def test_scale_of_a_built_in_kind_shows_its_selector_as_text() -> None:
    api = await Api.start()
    labels = {"app": "web"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "main", "image": "web"}]},
    }
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    meta = {"name": "web", "namespace": "default"}
    await api.create(STATEFUL_SET, {"metadata": meta, "spec": spec})
    answer = await api.patch(STATEFUL_SET, "web", {"spec": {"replicas": 5}}, part="scale")
    assert (answer.code, replicas(answer)) == (200, 5)
    assert answer.body["status"] == {"replicas": 0, "selector": "app=web"}
