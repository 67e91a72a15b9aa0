from __future__ import annotations

import base64

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.kinds import CONFIG_MAP, SECRET
from phalanx.api.wire import Object
from phalanx.server.security.authorization import Tokens
from phalanx.server.security.signing import Signer
from tests.builders import in_virtual_time, share_of_examples
from tests.server.api import Api, ApiResponse, names, revision

MAPS = CONFIG_MAP.url_path("default")


def config(name: str, namespace: str = "default", **labels: str) -> Object:
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}}


async def ask(api: Api, path: str = MAPS, **query: object) -> ApiResponse:
    return await api.ask("GET", path, query=query)


async def pages(api: Api, limit: int, query: dict[str, str] | None = None) -> list[Object]:
    """The pages of a list."""
    found: list[Object] = []
    more = ""
    while not found or more:
        token = {"continue": more} if more else {}
        page = await api.list_default(CONFIG_MAP, {"limit": limit, **(query or {}), **token})
        found.append(page)
        more = page["metadata"].get("continue", "")
    return found


async def first_token(api: Api, **query: object) -> str:
    """The token after the first page of a list of three."""
    await api.create(CONFIG_MAP, *(config(name, color="red") for name in "abc"))
    first = await api.list_default(CONFIG_MAP, {"limit": 1, **query})
    token: str = first["metadata"]["continue"]
    return token


# ---- pages ---------------------------------------------------------------------------------------


@in_virtual_time
async def test_pages_show_one_revision_while_writes_go_on() -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, *(config(f"c{n:02}") for n in range(12)))
    whole = await api.list_default(CONFIG_MAP)
    first = await api.list_default(CONFIG_MAP, {"limit": 5})
    assert first["metadata"]["remainingItemCount"] == 7
    await api.delete(CONFIG_MAP, "c06")
    await api.patch(CONFIG_MAP, "c07", {"data": {"new": "value"}})
    await api.create(CONFIG_MAP, config("c055"), config("zzz"))
    token = {"continue": first["metadata"]["continue"]}
    second = await api.list_default(CONFIG_MAP, {"limit": 5, **token})
    rest = {"continue": second["metadata"]["continue"]}
    third = await api.list_default(CONFIG_MAP, {"limit": 5, **rest})
    assert "continue" not in third["metadata"]
    shown = [*first["items"], *second["items"], *third["items"]]
    assert shown == whole["items"]
    assert {revision(page) for page in (whole, first, second, third)} == {revision(whole)}


@share_of_examples(0.5)
@given(
    st.lists(st.sampled_from(("red", "blue")), max_size=12),
    st.integers(1, 13),
    st.sampled_from(({}, {"labelSelector": "color=red"}, {"fieldSelector": "metadata.name!=c3"})),
)
@in_virtual_time
async def test_all_pages_together_are_the_list(
    colors: list[str], limit: int, query: dict[str, str]
) -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, *(config(f"c{n}", color=one) for n, one in enumerate(colors)))
    whole, parts = await api.list_default(CONFIG_MAP, query), await pages(api, limit, query)
    assert [item for page in parts for item in page["items"]] == whole["items"]
    assert all(len(page["items"]) == limit for page in parts[:-1])


@in_virtual_time
async def test_a_page_with_a_selector_is_full() -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, *(config(f"c{n:04}") for n in range(1100)))
    await api.create(CONFIG_MAP, config("last-1", color="red"), config("last-2", color="red"))
    red = {"labelSelector": "color=red"}
    assert [names(page) for page in await pages(api, 1, red)] == [["last-1"], ["last-2"]]


# ---- compacted history ---------------------------------------------------------------------------


@in_virtual_time
async def test_an_expired_page_comes_with_a_token_for_an_inconsistent_list() -> None:
    api = await Api.start()
    token = await first_token(api)
    await api.create(CONFIG_MAP, config("b2"))
    api.store.compact(api.store.revision)
    late = await ask(api, limit=1, **{"continue": token})
    assert (late.code, late.body["reason"]) == (410, "Expired")
    assert "inconsistent list" in late.body["message"]
    rest = await api.list_default(
        CONFIG_MAP, {"limit": 2, "continue": late.body["metadata"]["continue"]}
    )
    assert (names(rest), revision(rest)) == (["b", "b2"], api.store.revision)
    last = await api.list_default(CONFIG_MAP, {"continue": rest["metadata"]["continue"]})
    assert names(last) == ["c"]


@in_virtual_time
async def test_a_list_at_a_compacted_revision_has_no_token() -> None:
    api = await Api.start()
    await first_token(api)
    api.store.compact(api.store.revision)
    late = await ask(api, resourceVersion=1, resourceVersionMatch="Exact", limit=1)
    assert (late.code, late.body["metadata"]) == (410, {})


# ---- tokens --------------------------------------------------------------------------------------


def forged(place: object) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(place)).decode().rstrip("=")


@pytest.mark.parametrize(
    "bad",
    [
        "%", "a", "äöü", "!!!!", "\x00", "x" * 4000, forged([]), forged(1), forged({}),
        forged([7, "a"]), forged([-1, ""]), forged({"rv": 7, "after": "a"}),
        forged({"v": "meta.k8s.io/v1", "rv": 7, "start": "a\u0000"}),
        forged(["x" * 16, 7, "../../secrets/kube-system/"]),
    ],
)  # fmt: skip
@in_virtual_time
async def test_a_forged_token_is_a_bad_request(bad: str) -> None:
    api = await Api.start()
    await first_token(api)
    answer = await ask(api, **{"continue": bad})
    assert (answer.code, answer.body["reason"]) == (400, "BadRequest")
    assert answer.body["message"].startswith("invalid continue token")


@in_virtual_time
async def test_a_token_with_one_changed_letter_is_refused() -> None:
    api = await Api.start()
    token = await first_token(api)
    for at, letter in enumerate(token):
        other = "A" if letter != "A" else "B"
        for changed in (token[:at] + other + token[at + 1 :], token[:at] + token[at + 1 :]):
            assert (await ask(api, **{"continue": changed})).code == 400
    assert (await ask(api, **{"continue": f"{token}="})).code == 400
    assert names((await ask(api, **{"continue": token})).body) == ["b", "c"]


@pytest.mark.parametrize(
    ("path", "query"),
    [
        (SECRET.url_path("default"), {}),
        (CONFIG_MAP.url_path("kube-system"), {}),
        (CONFIG_MAP.url_path(), {}),
        (MAPS, {"labelSelector": "color=red"}),
        (MAPS, {"fieldSelector": "metadata.name!=b"}),
    ],
    ids=["kind", "namespace", "every namespace", "labels", "fields"],
)
@in_virtual_time
async def test_a_token_continues_only_its_own_list(path: str, query: dict[str, str]) -> None:
    api = await Api.start()
    token = await first_token(api)
    await api.create(SECRET, config("secret"))
    await api.create(CONFIG_MAP, config("elsewhere", "kube-system"))
    assert (await ask(api, path, **query, **{"continue": token})).code == 400
    assert (await ask(api, **{"continue": token})).code == 200


@in_virtual_time
async def test_a_token_survives_a_restart_but_not_a_new_signing_key() -> None:
    signer = Signer.generate()
    first = await Api.start(tokens=Tokens({}, signer=signer))
    token = await first_token(first)
    for next_signer, code in ((signer, 200), (Signer.generate(), 400)):
        second = await Api.start(tokens=Tokens({}, signer=next_signer))
        await first_token(second)
        assert (await ask(second, **{"continue": token})).code == code


@in_virtual_time
async def test_a_revision_and_a_token_are_refused_unless_the_revision_is_zero() -> None:
    api = await Api.start()
    token = await first_token(api)
    for version, code in (("5", 400), ("0", 200), ("", 200)):
        assert (await ask(api, resourceVersion=version, **{"continue": token})).code == code
