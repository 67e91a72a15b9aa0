from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.kinds import CONFIG_MAP, NODE, POD, POD_GROUP, PRIORITY_CLASS
from phalanx.api.wire import Object
from tests.builders import in_virtual_time, node, pod, pod_group, share_of_examples
from tests.server.api import Api, ApiResponse, names, revision
from tests.server.test_read_handlers import config


def cause_fields(answer: ApiResponse) -> list[str]:
    """Return the fields of the causes of a refusal."""
    return [field for field, _ in answer.cause_reasons]


PODS = POD.url_path("default")


async def put(api: Api, obj: Object, part: str = "", **query: str) -> ApiResponse:
    path = CONFIG_MAP.url_path("default", obj["metadata"]["name"], part)
    return await api.ask("PUT", path, obj, query=query)


# ---- new objects ---------------------------------------------------------------------------------


@in_virtual_time
async def test_the_server_sets_the_identity_of_an_object() -> None:
    api = await Api.start()
    claimed = {
        "uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z", "generation": 7,
        "deletionTimestamp": "2001-01-01T00:00:00Z", "deletionGracePeriodSeconds": 5,
    }  # fmt: skip
    (made,) = await api.create(POD, pod("a", meta=claimed))
    meta = made["metadata"]
    assert meta["uid"] != "mine"
    assert (meta["creationTimestamp"], meta["generation"]) == ("2027-01-15T08:00:00Z", 1)
    assert {"deletionTimestamp", "deletionGracePeriodSeconds"}.isdisjoint(meta)
    assert revision(made) == api.store.revision


@in_virtual_time
async def test_a_name_is_taken_once() -> None:
    api = await Api.start(latency=lambda: 1.0)
    answers = await asyncio.gather(*(api.ask("POST", PODS, pod("a")) for _ in range(3)))
    assert [answer.code for answer in answers] == [201, 409, 409]
    assert answers[1].body["reason"] == "AlreadyExists"


@in_virtual_time
async def test_a_name_is_generated_from_its_prefix() -> None:
    api = await Api.start()
    nameless = {**pod("a"), "metadata": {"generateName": "job-", "namespace": "default"}}
    made = await api.create(POD, nameless, nameless, nameless)
    found = {one["metadata"]["name"] for one in made}
    assert len(found) == 3
    assert all(name.startswith("job-") and len(name) == 9 for name in found)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PODS, {"spec": pod("a")["spec"]}),
        (POD_GROUP.url_path("default"), {"spec": pod_group("g", 2)["spec"]}),
        (CONFIG_MAP.url_path("default"), {}),
        (NODE.url_path(), {"metadata": {"name": ""}}),
        (PRIORITY_CLASS.url_path(), {"value": 1, "globalDefault": True, "metadata": None}),
    ],
    ids=["a pod", "a pod group", "a config map", "a node", "a priority class"],
)
@in_virtual_time
async def test_every_object_has_a_name(path: str, body: Object) -> None:
    api = await Api.start()
    answer = await api.ask("POST", path, body)
    assert (answer.code, answer.cause_reasons[0]) == (422, ("metadata.name", "FieldValueRequired"))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"metadata": {"name": "a", "namespace": "elsewhere"}}, 400),
        ({"metadata": {"name": "a", "resourceVersion": "5"}}, 400),
        ({"kind": "Node"}, 400),
        ({"apiVersion": "v2"}, 400),
        ({"metadata": {"name": "No Name"}}, 422),
    ],
    ids=str,
)
@in_virtual_time
async def test_an_object_must_match_its_path(change: Object, code: int) -> None:
    api = await Api.start()
    answer = await api.ask("POST", PODS, {**pod("a"), **change})
    assert answer.code == code
    assert names(await api.list_default(POD)) == []


@in_virtual_time
async def test_an_object_needs_an_existing_namespace() -> None:
    api = await Api.start()
    answer = await api.ask("POST", POD.url_path("nowhere"), pod("a", namespace="nowhere"))
    assert (answer.code, answer.body["message"]) == (404, 'namespaces "nowhere" not found')


@in_virtual_time
async def test_a_priority_comes_from_its_class() -> None:
    api = await Api.start()
    await api.create(PRIORITY_CLASS, {"metadata": {"name": "high"}, "value": 1000})
    high = {"priorityClassName": "high"}
    (made,) = await api.create(POD, pod("a", spec=high))
    assert made["spec"]["priority"] == 1000
    for wrong in ({"priorityClassName": "unknown"}, {**high, "priority": 7}, {"priority": 7}):
        assert (await api.ask("POST", PODS, pod("b", spec=wrong))).code == 403


# ---- concurrent writers --------------------------------------------------------------------------


@in_virtual_time
async def test_one_of_two_updates_from_the_same_version_wins() -> None:
    api = await Api.start(latency=lambda: 1.0)
    (made,) = await api.create(CONFIG_MAP, config("a"))
    one, other = ({**made, "data": {"by": name}} for name in ("one", "other"))
    answers = await asyncio.gather(put(api, one), put(api, other))
    assert [answer.code for answer in answers] == [200, 409]
    assert answers[1].body["reason"] == "Conflict"
    assert (await api.get(CONFIG_MAP, "a"))["data"] == {"by": "one"}


@in_virtual_time
async def test_a_patch_with_a_version_applies_only_to_that_version() -> None:
    api = await Api.start()
    (made,) = await api.create(CONFIG_MAP, config("a"))
    fresh = {"metadata": {"resourceVersion": str(revision(made))}, "data": {"a": "b"}}
    assert [(await api.patch(CONFIG_MAP, "a", fresh)).code for _ in range(2)] == [200, 409]


@in_virtual_time
async def test_concurrent_patches_without_a_version_all_succeed() -> None:
    api = await Api.start(latency=lambda: 1.0)
    await api.create(CONFIG_MAP, config("a"))
    changes = [{"data": {f"k{n}": str(n)}} for n in range(5)]
    answers = await asyncio.gather(*(api.patch(CONFIG_MAP, "a", one) for one in changes))
    assert [answer.code for answer in answers] == [200] * 5
    assert (await api.get(CONFIG_MAP, "a"))["data"] == {f"k{n}": str(n) for n in range(5)}


@in_virtual_time
async def test_an_update_with_the_uid_of_a_removed_object_is_a_conflict() -> None:
    api = await Api.start()
    (dead,) = await api.create(CONFIG_MAP, config("a"))
    await api.delete(CONFIG_MAP, "a")
    (alive,) = await api.create(CONFIG_MAP, config("a"))
    dead["metadata"].pop("resourceVersion")
    stale = {"metadata": {"uid": dead["metadata"]["uid"]}, "data": {"a": "b"}}
    answer = await put(api, dead)
    assert (answer.code, answer.body["reason"]) == (409, "Conflict")
    answer = await api.patch(CONFIG_MAP, "a", stale)
    assert (answer.code, cause_fields(answer)) == (422, ["metadata.uid"])
    assert await api.get(CONFIG_MAP, "a") == alive


@in_virtual_time
async def test_some_kinds_are_updated_only_with_their_version() -> None:
    api = await Api.start()
    (made,) = await api.create(POD_GROUP, pod_group("g", 2))
    made["metadata"].pop("resourceVersion")
    answer = await api.ask("PUT", POD_GROUP.url_path("default", "g"), made)
    assert (answer.code, answer.cause_reasons) == (
        422, [("metadata.resourceVersion", "FieldValueInvalid")],
    )  # fmt: skip


@pytest.mark.parametrize("version", ["abc", "-1", "1e3"])
@in_virtual_time
async def test_a_version_that_is_not_a_number_is_a_bad_request(version: str) -> None:
    api = await Api.start()
    (made,) = await api.create(CONFIG_MAP, config("a"))
    made["metadata"]["resourceVersion"] = version
    assert (await put(api, made)).code == 400


@share_of_examples(0.4)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=15))
@in_virtual_time
async def test_the_history_of_an_object_is_linear(acts: list[tuple[int, int]]) -> None:
    """Concurrent writers read, wait and write: each success follows the version that it read."""
    api = await Api.start(latency=lambda: 0.3)
    await api.create(CONFIG_MAP, {**config("a"), "data": {"line": "0"}})

    async def writer(name: int, begin: int, think: int) -> bool:
        await asyncio.sleep(begin)
        seen = await api.get(CONFIG_MAP, "a")
        await asyncio.sleep(think)
        line = f"{seen['metadata']['resourceVersion']}>{name}"
        return (await put(api, {**seen, "data": {"line": line}})).code == 200

    since = api.store.revision
    won = await asyncio.gather(*(writer(n, *act) for n, act in enumerate(acts)))
    events = await api.watch(CONFIG_MAP, since=since - 1)
    assert len(events) == 1 + sum(won)
    for before, after in pairwise(events):
        assert after.object["data"]["line"].startswith(f"{before.revision}>")


# ---- fields that a write may change --------------------------------------------------------------


@in_virtual_time
async def test_an_update_without_changes_makes_no_revision() -> None:
    api = await Api.start()
    (made,) = await api.create(POD, pod("a", cpu="1"))
    before = api.store.revision
    path = POD.url_path("default", "a")
    assert (await api.ask("PUT", path, made)).body == made
    assert (await api.patch(POD, "a", {"metadata": {"labels": {}}})).body == made
    assert (await api.patch(POD, "a", {}, "strategic")).body == made
    assert (await api.patch(POD, "a", [], "json")).body == made
    assert api.store.revision == before


@in_virtual_time
async def test_an_update_without_changes_waits_for_earlier_commits() -> None:
    api = await Api.start(latency=lambda: 1.0)
    await api.create(CONFIG_MAP, config("a"))
    writing = asyncio.ensure_future(api.patch(CONFIG_MAP, "a", {"data": {"a": "b"}}))
    await asyncio.sleep(0.1)
    same = await api.patch(CONFIG_MAP, "a", {"data": {"a": "b"}})
    assert writing.done()
    assert same.body == (await writing).body


@in_virtual_time
async def test_status_and_spec_are_written_separately() -> None:
    api = await Api.start()
    (made,) = await api.create(POD, pod("a"))
    both = {"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Running"}}
    plain = (await api.patch(POD, "a", both)).body
    assert plain["metadata"]["labels"] == {"a": "b"}
    assert plain["status"] == made["status"]
    more = {"metadata": {"labels": {"a": "c"}}, "status": {"phase": "Running"}}
    status = (await api.patch(POD, "a", more, part="status")).body
    assert status["status"]["phase"] == "Running"
    assert status["metadata"]["labels"] == {"a": "c"}


@in_virtual_time
async def test_a_status_of_a_newer_kind_is_written_without_metadata() -> None:
    api = await Api.start()
    await api.create(POD_GROUP, pod_group("g", 2))
    change = {"metadata": {"labels": {"a": "b"}}, "status": {"conditions": []}}
    written = (await api.patch(POD_GROUP, "g", change, part="status")).body
    assert "labels" not in written["metadata"]


@in_virtual_time
async def test_a_write_cannot_mark_an_object_as_deleted() -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, config("a"))
    marked = {"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}}
    answer = await api.patch(CONFIG_MAP, "a", marked)
    assert (answer.code, cause_fields(answer)) == (422, ["metadata.deletionTimestamp"])


@in_virtual_time
async def test_version_zero_is_no_precondition() -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, config("a"))
    change = {"metadata": {"resourceVersion": "0"}, "data": {"a": "b"}}
    assert (await api.patch(CONFIG_MAP, "a", change)).code == 200


@pytest.mark.parametrize("manager", ["x" * 129, "a\tb"])
@in_virtual_time
async def test_a_field_manager_is_short_and_printable(manager: str) -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, config("a"))
    answer = await api.patch(CONFIG_MAP, "a", {"data": {"a": "b"}}, fieldManager=manager)
    assert (answer.code, cause_fields(answer)) == (422, ["fieldManager"])


@in_virtual_time
async def test_an_empty_list_of_managed_fields_resets_them() -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, config("a"))
    answer = await api.patch(CONFIG_MAP, "a", {"metadata": {"managedFields": []}})
    assert "managedFields" not in answer.body["metadata"]


@in_virtual_time
async def test_the_generation_rises_only_with_the_spec() -> None:
    api = await Api.start()
    await api.create(POD, pod("a", gates=["wait"]))

    async def generation(change: Object, part: str = "") -> object:
        return (await api.patch(POD, "a", change, part=part)).body["metadata"]["generation"]

    assert await generation({"metadata": {"labels": {"a": "b"}}}) == 1
    assert await generation({"status": {"phase": "Running"}}, "status") == 1
    assert await generation({"spec": {"schedulingGates": []}}) == 2
    assert await generation({"metadata": {"generation": 9}}) == 2


@in_virtual_time
async def test_immutable_fields_do_not_change() -> None:
    api = await Api.start()
    (made,) = await api.create(POD, pod("a", "g", on="n1"))
    for change in (
        {"spec": {"nodeName": "n2"}},
        {"spec": {"nodeName": None}},
        {"spec": {"schedulingGroup": {"podGroupName": "h"}}},
        {"spec": {"schedulerName": "mine"}},
    ):
        assert (await api.patch(POD, "a", change)).code == 422
    assert await api.get(POD, "a") == made


# ---- patches -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "change"),
    [
        ("merge", {"metadata": {"labels": {"color": "blue", "size": None}}}),
        ("strategic", {"metadata": {"labels": {"color": "blue", "size": None}}}),
        (
            "json",
            [
                {"op": "replace", "path": "/metadata/labels/color", "value": "blue"},
                {"op": "remove", "path": "/metadata/labels/size"},
            ],
        ),
    ],
)
@in_virtual_time
async def test_every_type_of_patch_changes_the_named_fields(content: str, change: object) -> None:
    api = await Api.start()
    await api.create(NODE, node("n1", labels={"color": "red", "size": "big", "stays": "true"}))
    kind = {"merge": "merge-patch", "strategic": "strategic-merge-patch", "json": "json-patch"}
    headers = {"content-type": f"application/{kind[content]}+json"}
    answer = await api.ask("PATCH", NODE.url_path("", "n1"), change, headers=headers)
    assert answer.code == 200
    assert answer.body["metadata"]["labels"] == {"color": "blue", "stays": "true"}
    assert (await api.ask("GET", NODE.url_path("", "n1"))).body == answer.body


@in_virtual_time
async def test_conditions_are_merged_by_their_type() -> None:
    api = await Api.start()
    await api.create(POD, pod("a"))
    for kind, status in (("Ready", "False"), ("Initialized", "True"), ("Ready", "True")):
        change = {"status": {"conditions": [{"type": kind, "status": status}]}}
        await api.patch(POD, "a", change, "strategic", part="status")
    conditions = (await api.get(POD, "a"))["status"]["conditions"]
    assert len(conditions) == 2
    assert all(one["status"] == "True" for one in conditions)


@pytest.mark.parametrize(
    ("content", "change", "code"),
    [
        ("json", [{"op": "test", "path": "/metadata/name", "value": "other"}], 422),
        ("json", [{"op": "remove", "path": "/metadata/nothing"}], 422),
        ("json", [{"op": "dance", "path": "/metadata"}], 422),
        ("json", {"op": "add"}, 400),
        ("json", [None], 422),
        ("json", [{"op": "add", "path": "/a", "value": 1}] * 10_001, 413),
        ("merge", [], 400),
        ("strategic", [], 400),
        ("merge", {"metadata": {"labels": "none"}}, 422),
        ("strategic", {"spec": {"containers": [{"image": "nameless"}]}}, 422),
        ("strategic", {"$patch": "dance"}, 422),
        ("merge", {"kind": "Node"}, 422),
        ("json", [{"op": "replace", "path": "/apiVersion", "value": "v2"}], 422),
        ("json", [1], 400),
        ("strategic", {"metadata": {"labels": {"$retainKeys": "x"}}}, 400),
        ("merge", {"metadata": {"name": "b"}}, 400),
        ("merge", {"metadata": {"namespace": "b"}}, 400),
    ],
    ids=lambda value: str(value)[:60],
)
@in_virtual_time
async def test_an_invalid_patch_changes_nothing(content: str, change: object, code: int) -> None:
    api = await Api.start()
    (made,) = await api.create(POD, pod("a"))
    answer = await api.patch(POD, "a", change, content)
    assert (answer.code, answer.body["code"]) == (code, code)
    assert await api.get(POD, "a") == made


@pytest.mark.parametrize("content", ["application/json", "text/plain", ""])
@in_virtual_time
async def test_a_patch_needs_a_supported_content_type(content: str) -> None:
    api = await Api.start()
    await api.create(POD, pod("a"))
    answer = await api.ask(
        "PATCH", POD.url_path("default", "a"), {}, headers={"content-type": content}
    )
    assert answer.code == 415


@in_virtual_time
async def test_a_patch_of_a_missing_object_is_not_found() -> None:
    api = await Api.start()
    assert (await api.patch(POD, "a", {})).code == 404


# ---- dry runs ------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_dry_run_replies_like_a_real_request_and_writes_nothing() -> None:
    api = await Api.start()
    (made,) = await api.create(CONFIG_MAP, config("a"))
    before = api.store.revision
    path = CONFIG_MAP.url_path("default")
    new = await api.ask("POST", path, config("b"), query={"dryRun": "All"})
    assert (new.code, new.body["metadata"]["name"]) == (201, "b")
    changed = await put(api, {**made, "data": {"a": "b"}}, dryRun="All")
    assert (changed.code, changed.body["data"]) == (200, {"a": "b"})
    patched = await api.patch(CONFIG_MAP, "a", {"data": {"c": "d"}}, dryRun="All")
    assert (patched.code, patched.body["data"]) == (200, {"c": "d"})
    assert api.store.revision == before
    assert await api.get(CONFIG_MAP, "a") == made


@in_virtual_time
async def test_a_dry_run_is_refused_like_the_real_one() -> None:
    api = await Api.start()
    (made,) = await api.create(CONFIG_MAP, config("a"))
    taken = await api.ask(
        "POST", CONFIG_MAP.url_path("default"), config("a"), query={"dryRun": "All"}
    )
    assert taken.code == 409
    made["metadata"]["resourceVersion"] = "1"
    assert (await put(api, made, dryRun="All")).code == 409
    assert (await put(api, made, dryRun="Some")).code == 422


# ---- unknown fields ------------------------------------------------------------------------------

ODD = b"""{"metadata": {"name": "a", "nickname": "b"}, "data": {"x": "1", "x": "2"}, "more": {}}"""


async def post_odd(api: Api, mode: str) -> ApiResponse:
    query = {"fieldValidation": mode} if mode else {}
    return await api.ask("POST", CONFIG_MAP.url_path("default"), ODD, query=query)


@pytest.mark.parametrize("mode", ["", "Warn"])
@in_virtual_time
async def test_unknown_and_duplicate_fields_get_warnings_and_are_dropped(mode: str) -> None:
    api = await Api.start()
    answer = await post_odd(api, mode)
    assert answer.code == 201
    assert ("more" in answer.body, answer.body["data"]) == (False, {"x": "2"})
    warnings = answer.header_values("warning")
    assert [text.split('"', 1)[1] for text in warnings] == [
        'unknown field \\"metadata.nickname\\""',
        'unknown field \\"more\\""',
        'duplicate field \\"x\\""',
    ]


@in_virtual_time
async def test_unknown_and_duplicate_fields_are_ignored_on_request() -> None:
    api = await Api.start()
    answer = await post_odd(api, "Ignore")
    assert (answer.code, answer.header_values("warning")) == (201, [])


@in_virtual_time
async def test_unknown_and_duplicate_fields_are_refused_on_request() -> None:
    api = await Api.start()
    answer = await post_odd(api, "Strict")
    assert answer.code == 400
    assert 'strict decoding error: unknown field "metadata.nickname"' in answer.body["message"]
    assert names(await api.list_default(CONFIG_MAP))[:1] != ["a"]


@in_virtual_time
async def test_patches_are_checked_for_unknown_fields() -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, config("a"))
    odd = {"nothing": 1}
    warned = await api.patch(CONFIG_MAP, "a", odd)
    assert (warned.code, len(warned.header_values("warning"))) == (200, 1)
    refused = await api.patch(CONFIG_MAP, "a", odd, fieldValidation="Strict")
    assert (refused.code, cause_fields(refused)) == (422, ["patch"])
    assert (await api.patch(CONFIG_MAP, "a", odd, fieldValidation="Sometimes")).code == 422
