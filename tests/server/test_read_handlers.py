from __future__ import annotations

import asyncio

import pytest

from phalanx.api.kinds import (
    CONFIG_MAP,
    CUSTOM_RESOURCE_DEFINITION,
    NODE,
    POD,
    PRIORITY_CLASS,
    Kind,
)
from phalanx.api.wire import Object
from phalanx.server import read_handlers as reading
from tests.builders import in_virtual_time, node, pod
from tests.server.api import Api, ApiResponse, names, revision


def config(name: str, **labels: str) -> Object:
    return {"metadata": {"name": name, "namespace": "default", "labels": labels}}


# ---- get -----------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_get_returns_what_the_create_returned() -> None:
    api = await Api.start()
    (made,) = await api.create(POD, pod("a", cpu="1"))
    assert await api.get(POD, "a") == made
    assert (made["kind"], made["apiVersion"]) == ("Pod", "v1")
    assert (await api.ask("GET", POD.url_path("default", "a", "status"))).body == made


@in_virtual_time
async def test_a_missing_object_is_not_found() -> None:
    api = await Api.start()
    answer = await api.ask("GET", POD.url_path("default", "missing"))
    assert (answer.code, answer.body["message"]) == (404, 'pods "missing" not found')
    assert answer.body["details"] == {"name": "missing", "kind": "pods"}


@in_virtual_time
async def test_uncommitted_objects_are_not_read() -> None:
    api = await Api.start(latency=lambda: 1.0)
    writing = asyncio.ensure_future(api.create(POD, pod("a")))
    await asyncio.sleep(0.5)
    assert (await api.ask("GET", POD.url_path("default", "a"))).code == 404
    assert names(await api.list_default(POD)) == []
    await writing
    assert names(await api.list_default(POD)) == ["a"]


# ---- lists and collections -----------------------------------------------------------------------


@in_virtual_time
async def test_a_list_that_is_too_large_is_refused() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "MAX_LIST_BYTES", 50 * 1024)
        api = await Api.start()
        await api.create(CONFIG_MAP, *(config(f"c{n}") for n in range(500)))
        answer = await api.ask("GET", CONFIG_MAP.url_path("default"))
        assert (answer.code, answer.body["reason"]) == (413, "RequestEntityTooLarge")
        assert "limit=500" in answer.body["message"]
        assert len((await api.list_default(CONFIG_MAP, {"limit": 100}))["items"]) == 100


@in_virtual_time
async def test_a_list_has_the_selected_objects_ordered_by_name() -> None:
    api = await Api.start()
    red, blue = {"labels": {"color": "red"}}, {"labels": {"color": "blue"}}
    await api.create(POD, pod("b", meta=red), pod("c", meta=blue), pod("a", on="n1", meta=red))

    async def found(**query: str) -> list[str]:
        return names(await api.list_default(POD, query))

    assert await found() == ["a", "b", "c"]
    assert await found(labelSelector="color=red") == ["a", "b"]
    assert await found(labelSelector="color!=red") == ["c"]
    assert await found(fieldSelector="spec.nodeName=") == ["b", "c"]
    assert await found(fieldSelector="spec.nodeName=n1,metadata.name!=b") == ["a"]
    assert await found(fieldSelector="status.phase=Running") == []
    assert await found(fieldSelector="spec.host=n1") == ["a"]
    assert await found(fieldSelector="status.podIPs=") == ["a", "b", "c"]
    assert await found(labelSelector="color in (red, blue)", fieldSelector="metadata.name=c") == [
        "c"
    ]


@in_virtual_time
async def test_a_list_of_all_namespaces_is_ordered_by_namespace_and_name() -> None:
    api = await Api.start()
    for namespace in ("kube-system", "default", "kube-public"):
        await api.create(POD, pod("a", namespace=namespace))
    answer = await api.ask("GET", POD.url_path())
    spaces = [item["metadata"]["namespace"] for item in answer.body["items"]]
    assert spaces == ["default", "kube-public", "kube-system"]


# ---- revisions -----------------------------------------------------------------------------------


async def ask(api: Api, **query: object) -> ApiResponse:
    return await api.ask("GET", CONFIG_MAP.url_path("default"), query=query)


@in_virtual_time
async def test_a_list_at_an_exact_revision_shows_the_past() -> None:
    api = await Api.start()
    (made,) = await api.create(CONFIG_MAP, config("a"))
    await api.create(CONFIG_MAP, config("b"))
    exact = {"resourceVersion": revision(made), "resourceVersionMatch": "Exact"}
    past = await api.list_default(CONFIG_MAP, exact)
    assert (names(past), revision(past)) == (["a"], revision(made))
    newer = {"resourceVersion": revision(made), "resourceVersionMatch": "NotOlderThan"}
    assert names(await api.list_default(CONFIG_MAP, newer)) == ["a", "b"]


@in_virtual_time
async def test_a_list_at_a_compacted_revision_expires() -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, config("a"), config("b"))
    api.store.compact(api.store.revision)
    answer = await ask(api, resourceVersion=1, resourceVersionMatch="Exact")
    assert (answer.code, answer.body["reason"]) == (410, "Expired")


@pytest.mark.parametrize(
    "path", [CONFIG_MAP.url_path("default"), CONFIG_MAP.url_path("default", "a")]
)
@in_virtual_time
async def test_a_future_revision_is_awaited_and_never_answered_with_the_past(
    path: str,
) -> None:
    api = await Api.start()
    query = {"resourceVersion": api.store.revision + 1}
    reading = asyncio.ensure_future(api.ask("GET", path, query=query))
    await asyncio.sleep(1)
    assert not reading.done()
    await api.create(CONFIG_MAP, config("a"))
    assert (await reading).code == 200
    query = {"resourceVersion": api.store.revision + 1}
    late = await api.ask("GET", path, query=query)
    assert (late.code, late.body["reason"]) == (504, "Timeout")
    assert late.header_values("retry-after") == ["1"]


@pytest.mark.parametrize("bad", ["abc", "-1", "1.5", "9" * 40, "٣ "])
@in_virtual_time
async def test_a_revision_that_is_not_a_number_is_a_bad_request(bad: str) -> None:
    api = await Api.start()
    assert (await ask(api, resourceVersion=bad)).code == 400


@pytest.mark.parametrize("bad", ["x", "1e3", " 5", "9" * 30])
@in_virtual_time
async def test_a_limit_that_is_not_a_number_is_a_bad_request(bad: str) -> None:
    api = await Api.start()
    assert (await ask(api, limit=bad)).code == 400


# ---- paths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/api/v1/pods/a", 405),
        ("/api/v1/namespaces/default/nodes", 404),
        ("/api/v1/namespaces/default/dragons", 404),
        ("/api/v1/namespaces/default/pods/a/dragons", 404),
        ("/api/v1/namespaces/default/pods/a/status/more", 404),
        ("/apis/scheduling.k8s.io/v1/podgroups", 404),
        ("/apis/missing.example/v1/things", 404),
        ("/api/v2/pods", 404),
        ("/nowhere", 404),
        ("/api/v1/namespaces/default/pods/a%2Fb", 400),
        ("/api/v1/namespaces/default/pods/..", 400),
        ("/api/v1/namespaces/default%2F..%2Fkube-system/pods/a", 404),
        ("//", 404),
    ],
)
@in_virtual_time
async def test_an_unknown_path_is_not_found(path: str, code: int) -> None:
    api = await Api.start()
    await api.create(POD, pod("a", namespace="kube-system"))
    await api.create(NODE, node("n1"))
    assert (await api.ask("GET", path)).code == code


@in_virtual_time
async def test_a_namespace_does_not_match_by_prefix() -> None:
    api = await Api.start()
    await api.create(POD, pod("a"))
    assert (await api.ask("GET", "/api/v1/namespaces/def/pods")).body["items"] == []
    assert (await api.ask("GET", "/api/v1/namespaces/default%2Fa/pods")).body["items"] == []


@pytest.mark.parametrize("kind", [PRIORITY_CLASS, CUSTOM_RESOURCE_DEFINITION], ids=str)
@in_virtual_time
async def test_cluster_wide_objects_have_an_empty_namespace_in_selectors(kind: Kind) -> None:
    api = await Api.start()
    whole = await api.ask("GET", kind.url_path(), query={"fieldSelector": "metadata.namespace="})
    none = await api.ask("GET", kind.url_path(), query={"fieldSelector": "metadata.namespace=a"})
    assert (whole.code, none.code, none.body["items"]) == (200, 200, [])


@pytest.mark.parametrize("path", ["/metrics", "/openapi/v2", "/openapi/v3", "/healthz"])
@in_virtual_time
async def test_paths_without_methods_answer_every_method(path: str) -> None:
    api = await Api.start()
    assert [(await api.ask(method, path)).code for method in ("POST", "DELETE")] == [200, 200]
