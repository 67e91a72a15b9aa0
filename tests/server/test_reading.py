from __future__ import annotations

import asyncio
import base64

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.kinds import CONFIG_MAP, NODE, POD
from phalanx.api.wire import Object
from tests.builders import in_virtual_time, node, pod, tried
from tests.server.api import Answer, Api, names, revision


def config(name: str, **labels: str) -> Object:
    return {"metadata": {"name": name, "namespace": "default", "labels": labels}}


async def pages(api: Api, limit: int, query: dict[str, str] | None = None) -> list[Object]:
    """A list, page by page."""
    found: list[Object] = []
    more = ""
    while not found or more:
        token = {"continue": more} if more else {}
        page = await api.listing(CONFIG_MAP, {"limit": limit, **(query or {}), **token})
        found.append(page)
        more = page["metadata"].get("continue", "")
    return found


# ---- one -----------------------------------------------------------------------------------------


@in_virtual_time
async def test_an_object_is_read_as_it_was_answered_when_it_was_made() -> None:
    api = await Api.started()
    (made,) = await api.create(POD, pod("a", cpu="1"))
    assert await api.get(POD, "a") == made
    assert (made["kind"], made["apiVersion"]) == ("Pod", "v1")
    assert (await api.ask("GET", POD.path("default", "a", "status"))).body == made


@in_virtual_time
async def test_what_is_not_there_is_not_found_by_name() -> None:
    api = await Api.started()
    answer = await api.ask("GET", POD.path("default", "nobody"))
    assert (answer.code, answer.body["message"]) == (404, 'pods "nobody" not found')
    assert answer.body["details"] == {"name": "nobody", "kind": "pods"}


@in_virtual_time
async def test_what_is_not_committed_yet_is_not_read() -> None:
    api = await Api.started(latency=lambda: 1.0)
    writing = asyncio.ensure_future(api.create(POD, pod("a")))
    await asyncio.sleep(0.5)
    assert (await api.ask("GET", POD.path("default", "a"))).code == 404
    assert names(await api.listing(POD)) == []
    await writing
    assert names(await api.listing(POD)) == ["a"]


# ---- many ----------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_list_has_what_its_selectors_mean_by_name() -> None:
    api = await Api.started()
    red, blue = {"labels": {"color": "red"}}, {"labels": {"color": "blue"}}
    await api.create(POD, pod("b", meta=red), pod("c", meta=blue), pod("a", on="n1", meta=red))

    async def found(**query: str) -> list[str]:
        return names(await api.listing(POD, query))

    assert await found() == ["a", "b", "c"]
    assert await found(labelSelector="color=red") == ["a", "b"]
    assert await found(labelSelector="color!=red") == ["c"]
    assert await found(fieldSelector="spec.nodeName=") == ["b", "c"]
    assert await found(fieldSelector="spec.nodeName=n1,metadata.name!=b") == ["a"]
    assert await found(fieldSelector="status.phase=Running") == []
    assert await found(labelSelector="color in (red, blue)", fieldSelector="metadata.name=c") == [
        "c"
    ]


@in_virtual_time
async def test_a_list_of_all_namespaces_goes_by_namespace_and_name() -> None:
    api = await Api.started()
    for namespace in ("kube-system", "default", "kube-public"):
        await api.create(POD, pod("a", namespace=namespace))
    answer = await api.ask("GET", POD.path())
    spaces = [item["metadata"]["namespace"] for item in answer.body["items"]]
    assert spaces == ["default", "kube-public", "kube-system"]


@in_virtual_time
async def test_pages_show_one_revision_while_writes_go_on() -> None:
    api = await Api.started()
    await api.create(CONFIG_MAP, *(config(f"c{n:02}") for n in range(12)))
    whole = await api.listing(CONFIG_MAP)
    first = await api.listing(CONFIG_MAP, {"limit": 5})
    assert first["metadata"]["remainingItemCount"] == 7
    await api.delete(CONFIG_MAP, "c06")
    await api.patch(CONFIG_MAP, "c07", {"data": {"new": "value"}})
    await api.create(CONFIG_MAP, config("c055"), config("zzz"))
    token = {"continue": first["metadata"]["continue"]}
    second = await api.listing(CONFIG_MAP, {"limit": 5, **token})
    rest = {"continue": second["metadata"]["continue"]}
    third = await api.listing(CONFIG_MAP, {"limit": 5, **rest})
    assert "continue" not in third["metadata"]
    shown = [*first["items"], *second["items"], *third["items"]]
    assert shown == whole["items"]
    assert {revision(page) for page in (whole, first, second, third)} == {revision(whole)}


@tried(0.5)
@given(
    st.lists(st.sampled_from(("red", "blue")), max_size=12),
    st.integers(1, 13),
    st.sampled_from(({}, {"labelSelector": "color=red"}, {"fieldSelector": "metadata.name!=c3"})),
)
@in_virtual_time
async def test_all_pages_together_are_the_list(
    colors: list[str], limit: int, query: dict[str, str]
) -> None:
    api = await Api.started()
    await api.create(CONFIG_MAP, *(config(f"c{n}", color=one) for n, one in enumerate(colors)))
    whole, parts = await api.listing(CONFIG_MAP, query), await pages(api, limit, query)
    assert [item for page in parts for item in page["items"]] == whole["items"]
    assert all(len(page["items"]) == limit for page in parts[:-1])


@in_virtual_time
async def test_a_selective_page_is_full_however_many_objects_it_skips() -> None:
    api = await Api.started()
    await api.create(CONFIG_MAP, *(config(f"c{n:04}") for n in range(1100)))
    await api.create(CONFIG_MAP, config("last-1", color="red"), config("last-2", color="red"))
    red = {"labelSelector": "color=red"}
    assert [names(page) for page in await pages(api, 1, red)] == [["last-1"], ["last-2"]]


@in_virtual_time
async def test_a_page_whose_history_is_gone_says_so() -> None:
    api = await Api.started()
    await api.create(CONFIG_MAP, config("a"), config("b"), config("c"))
    first = await api.listing(CONFIG_MAP, {"limit": 1})
    await api.create(CONFIG_MAP, config("d"))
    api.store.compact(api.store.revision)
    query = {"continue": first["metadata"]["continue"]}
    answer = await api.ask("GET", CONFIG_MAP.path("default"), query=query)
    assert (answer.code, answer.body["reason"]) == (410, "Expired")


def token(place: object) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(place)).decode()


@pytest.mark.parametrize(
    "bad",
    [
        "%", "a", "äöü", "!!!!", token([]), token(1), token({}), token({"rv": 1}),
        token({"rv": "1", "after": "a"}), token({"rv": -1, "after": "a"}),
        token({"rv": 0, "after": "a"}), token({"rv": 1, "after": 1}),
        token({"rv": 1.5, "after": ""}),
    ],
)  # fmt: skip
@in_virtual_time
async def test_a_token_that_is_none_of_ours_is_a_bad_request(bad: str) -> None:
    api = await Api.started()
    answer = await api.ask("GET", CONFIG_MAP.path("default"), query={"continue": bad})
    assert answer.code == 400


@in_virtual_time
async def test_a_forged_token_does_not_lead_out_of_its_namespace() -> None:
    api = await Api.started()
    elsewhere = config("secret")
    elsewhere["metadata"]["namespace"] = "kube-system"
    await api.create(CONFIG_MAP, config("a"), elsewhere)
    for after in ("", "/", "../", "a/../../", "/core/configmaps/"):
        forged = {"continue": token({"rv": api.store.revision, "after": after})}
        listing = await api.listing(CONFIG_MAP, forged)
        assert set(names(listing)) <= {"a"}


# ---- which revision ------------------------------------------------------------------------------


async def ask(api: Api, **query: object) -> Answer:
    return await api.ask("GET", CONFIG_MAP.path("default"), query=query)


@in_virtual_time
async def test_a_list_of_an_exact_revision_shows_the_past() -> None:
    api = await Api.started()
    (made,) = await api.create(CONFIG_MAP, config("a"))
    await api.create(CONFIG_MAP, config("b"))
    exact = {"resourceVersion": revision(made), "resourceVersionMatch": "Exact"}
    past = await api.listing(CONFIG_MAP, exact)
    assert (names(past), revision(past)) == (["a"], revision(made))
    newer = {"resourceVersion": revision(made), "resourceVersionMatch": "NotOlderThan"}
    assert names(await api.listing(CONFIG_MAP, newer)) == ["a", "b"]


@in_virtual_time
async def test_a_list_of_an_exact_revision_that_is_forgotten_says_so() -> None:
    api = await Api.started()
    await api.create(CONFIG_MAP, config("a"), config("b"))
    api.store.compact(api.store.revision)
    answer = await ask(api, resourceVersion=1, resourceVersionMatch="Exact")
    assert (answer.code, answer.body["reason"]) == (410, "Expired")


@pytest.mark.parametrize("path", [CONFIG_MAP.path("default"), CONFIG_MAP.path("default", "a")])
@in_virtual_time
async def test_a_revision_of_the_future_is_waited_for_and_never_answered_with_the_past(
    path: str,
) -> None:
    api = await Api.started()
    query = {"resourceVersion": api.store.revision + 1}
    reading = asyncio.ensure_future(api.ask("GET", path, query=query))
    await asyncio.sleep(1)
    assert not reading.done()
    await api.create(CONFIG_MAP, config("a"))
    assert (await reading).code == 200
    query = {"resourceVersion": api.store.revision + 1}
    late = await api.ask("GET", path, query=query)
    assert (late.code, late.body["reason"]) == (504, "Timeout")
    assert late.all("retry-after") == ["1"]


@pytest.mark.parametrize("bad", ["abc", "-1", "1.5", "9" * 40, "٣ "])
@in_virtual_time
async def test_a_revision_that_is_no_number_is_a_bad_request(bad: str) -> None:
    api = await Api.started()
    assert (await ask(api, resourceVersion=bad)).code == 400


@in_virtual_time
async def test_a_revision_and_a_token_contradict_each_other() -> None:
    api = await Api.started()
    await api.create(CONFIG_MAP, config("a"), config("b"))
    first = await api.listing(CONFIG_MAP, {"limit": 1})
    query = {"resourceVersion": "5", "continue": first["metadata"]["continue"]}
    assert (await ask(api, **query)).code == 400


@pytest.mark.parametrize("bad", ["x", "1e3", " 5", "9" * 30])
@in_virtual_time
async def test_a_limit_that_is_no_number_is_a_bad_request(bad: str) -> None:
    api = await Api.started()
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
        ("/apis/nobody.example/v1/things", 404),
        ("/api/v2/pods", 404),
        ("/nowhere", 404),
        ("/api/v1/namespaces/default/pods/a%2Fb", 400),
        ("/api/v1/namespaces/default/pods/..", 400),
        ("/api/v1/namespaces/default%2F..%2Fkube-system/pods/a", 404),
        ("//", 404),
    ],
)
@in_virtual_time
async def test_a_path_that_leads_nowhere_says_so(path: str, code: int) -> None:
    api = await Api.started()
    await api.create(POD, pod("a", namespace="kube-system"))
    await api.create(NODE, node("n1"))
    assert (await api.ask("GET", path)).code == code


@in_virtual_time
async def test_the_prefix_of_a_namespace_is_not_the_namespace() -> None:
    api = await Api.started()
    await api.create(POD, pod("a"))
    assert (await api.ask("GET", "/api/v1/namespaces/def/pods")).body["items"] == []
    assert (await api.ask("GET", "/api/v1/namespaces/default%2Fa/pods")).body["items"] == []
