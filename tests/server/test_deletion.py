from __future__ import annotations

import asyncio

import pytest

from phalanx.api.kinds import CONFIG_MAP, JOB, NAMESPACE, NODE, POD, POD_GROUP
from phalanx.api.meta import parse_timestamp
from phalanx.api.wire import Object
from phalanx.server.admission import SYSTEM_NAMESPACES
from tests.builders import in_virtual_time, node, pod, pod_group
from tests.server.api import Api, names
from tests.server.test_read_handlers import config

STAY: Object = {"metadata": {"finalizers": ["example.com/stay"]}}
GO: Object = {"metadata": {"finalizers": []}}


async def exists(api: Api, name: str) -> bool:
    return (await api.ask("GET", POD.url_path("default", name))).code == 200


# ---- removal and grace periods -------------------------------------------------------------------


@in_virtual_time
async def test_an_unbound_pod_is_removed_at_once() -> None:
    api = await Api.start()
    await api.create(POD, pod("a"))
    await api.create(CONFIG_MAP, config("c"))
    assert (await api.delete(POD, "a")).code == (await api.delete(CONFIG_MAP, "c")).code == 200
    assert names(await api.list_default(POD)) == names(await api.list_default(CONFIG_MAP)) == []


@in_virtual_time
async def test_a_pod_on_a_node_gets_its_grace_period() -> None:
    api = await Api.start()
    await api.create(POD, pod("a", on="n1", spec={"terminationGracePeriodSeconds": 45}))
    answer = await api.delete(POD, "a")
    meta = answer.body["metadata"]
    assert (answer.code, meta["deletionGracePeriodSeconds"]) == (200, 45)
    assert (
        parse_timestamp(meta["deletionTimestamp"]) - parse_timestamp(meta["creationTimestamp"])
        == 45
    )
    await asyncio.sleep(100)
    assert (await api.get(POD, "a"))["metadata"] == meta


@pytest.mark.parametrize("state", ["bound and ended", "bound, killed"])
@in_virtual_time
async def test_a_pod_with_grace_period_zero_is_removed_at_once(state: str) -> None:
    api = await Api.start()
    await api.create(POD, pod("a", on="n1"))
    options: Object = {"gracePeriodSeconds": 0}
    if state == "bound and ended":
        await api.patch(POD, "a", {"status": {"phase": "Succeeded"}}, part="status")
        options = {}
    assert (await api.delete(POD, "a", options)).code == 200
    assert not await exists(api, "a")


@in_virtual_time
async def test_a_second_deletion_can_only_shorten_the_grace_period() -> None:
    api = await Api.start()
    await api.create(POD, pod("a", on="n1"))

    async def grace(wanted: int) -> object:
        answer = await api.delete(POD, "a", {"gracePeriodSeconds": wanted})
        return answer.body["metadata"]["deletionGracePeriodSeconds"]

    assert [await grace(wanted) for wanted in (20, 25, 20, 5, -1)] == [20, 20, 20, 5, 1]
    before = api.store.revision
    await grace(10)
    assert api.store.revision == before
    await api.delete(POD, "a", {"gracePeriodSeconds": 0})
    assert not await exists(api, "a")


@pytest.mark.parametrize("how", ["query", "body", "spec"])
@pytest.mark.parametrize("wanted", [2**31, 10**12, 10**17, 10**18 - 1])
@in_virtual_time
async def test_a_huge_grace_period_is_limited(how: str, wanted: int) -> None:
    api = await Api.start()
    spec = {"terminationGracePeriodSeconds": wanted} if how == "spec" else {}
    made = await api.ask("POST", POD.url_path("default"), pod("a", on="n1", spec=spec))
    if made.code == 422:
        return
    options = {"gracePeriodSeconds": wanted} if how == "body" else {}
    query = {"gracePeriodSeconds": wanted} if how == "query" else {}
    answer = await api.delete(POD, "a", options, **query)
    assert answer.code < 500
    assert (await api.delete(POD, "a", {"gracePeriodSeconds": 0})).code == 200
    assert not await exists(api, "a")


@in_virtual_time
async def test_a_removed_object_cannot_be_deleted_again() -> None:
    api = await Api.start()
    await api.create(POD, pod("a"))
    assert [(await api.delete(POD, "a")).code for _ in range(2)] == [200, 404]


@in_virtual_time
async def test_the_reply_has_the_revision_of_the_deletion() -> None:
    api = await Api.start()
    await api.create(POD, pod("a"))
    answer = await api.delete(POD, "a")
    assert answer.body["kind"] == "Pod"
    await api.create(CONFIG_MAP, config("c"))
    status = (await api.delete(CONFIG_MAP, "c")).body
    assert (status["kind"], status["status"], status["details"]["name"]) == (
        "Status", "Success", "c",
    )  # fmt: skip


# ---- finalizers ----------------------------------------------------------------------------------


@in_virtual_time
async def test_an_object_stays_until_its_last_finalizer_is_removed() -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, config("a"))
    await api.patch(CONFIG_MAP, "a", STAY)
    since = api.store.revision
    await api.delete(CONFIG_MAP, "a")
    kept = await api.get(CONFIG_MAP, "a")
    assert kept["metadata"]["deletionTimestamp"]
    assert (await api.patch(CONFIG_MAP, "a", GO)).code == 200
    assert names(await api.list_default(CONFIG_MAP)) == []
    found = await api.watch(CONFIG_MAP, since=since)
    assert [str(event) for event in found] == ["MODIFIED a", "DELETED a"]


@in_virtual_time
async def test_a_deletion_cannot_be_undone() -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, config("a"))
    await api.patch(CONFIG_MAP, "a", STAY)
    await api.delete(CONFIG_MAP, "a")
    marked = (await api.get(CONFIG_MAP, "a"))["metadata"]["deletionTimestamp"]
    undo = {"metadata": {"deletionTimestamp": None, "deletionGracePeriodSeconds": None}}
    await api.patch(CONFIG_MAP, "a", undo)
    again = await api.get(CONFIG_MAP, "a")
    again["metadata"].pop("deletionTimestamp")
    await api.ask("PUT", CONFIG_MAP.url_path("default", "a"), again)
    assert (await api.get(CONFIG_MAP, "a"))["metadata"]["deletionTimestamp"] == marked


@in_virtual_time
async def test_an_object_that_is_being_deleted_gets_no_new_finalizer() -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, config("a"))
    await api.patch(CONFIG_MAP, "a", STAY)
    await api.delete(CONFIG_MAP, "a")
    more = {"metadata": {"finalizers": ["example.com/stay", "example.com/longer"]}}
    assert (await api.patch(CONFIG_MAP, "a", more)).code == 422
    assert (await api.get(CONFIG_MAP, "a"))["metadata"]["finalizers"] == ["example.com/stay"]


@in_virtual_time
async def test_a_pod_waits_for_its_kubelet_and_its_finalizers() -> None:
    api = await Api.start()
    await api.create(POD, pod("a", on="n1", meta=STAY["metadata"]))
    await api.delete(POD, "a")
    await api.patch(POD, "a", GO)
    assert await exists(api, "a")
    await api.delete(POD, "a", {"gracePeriodSeconds": 0})
    assert not await exists(api, "a")


@in_virtual_time
async def test_the_name_of_an_object_that_is_being_deleted_is_taken() -> None:
    api = await Api.start()
    await api.create(POD, pod("a", on="n1"))
    await api.delete(POD, "a")
    answer = await api.ask("POST", POD.url_path("default"), pod("a"))
    assert (answer.code, answer.body["reason"]) == (409, "AlreadyExists")
    assert answer.body["message"].startswith("object is being deleted: ")


@in_virtual_time
async def test_a_new_pod_group_has_the_protection_finalizer() -> None:
    api = await Api.start()
    await api.create(POD_GROUP, pod_group("g", 2))
    await api.delete(POD_GROUP, "g")
    kept = await api.get(POD_GROUP, "g")
    assert kept["metadata"]["finalizers"] == ["scheduling.k8s.io/podgroup-protection"]


# ---- preconditions and options -------------------------------------------------------------------


@pytest.mark.parametrize("condition", ["uid", "resourceVersion"])
@in_virtual_time
async def test_a_deletion_with_another_uid_is_a_conflict(condition: str) -> None:
    api = await Api.start()
    (first,) = await api.create(POD, pod("a"))
    await api.delete(POD, "a")
    (second,) = await api.create(POD, pod("a"))

    async def delete(meant: Object) -> int:
        wanted = {"preconditions": {condition: meant["metadata"][condition]}}
        return (await api.delete(POD, "a", wanted)).code

    assert await delete(first) == 409
    assert await exists(api, "a")
    assert await delete(second) == 200


@in_virtual_time
async def test_a_dry_run_deletes_nothing() -> None:
    api = await Api.start()
    await api.create(POD, pod("a"), pod("b", on="n1"))
    before = api.store.revision
    assert (await api.delete(POD, "a", dryRun="All")).code == 200
    assert (await api.delete(POD, "b", {"dryRun": ["All"]})).code == 200
    collection = await api.ask("DELETE", POD.url_path("default"), query={"dryRun": "All"})
    assert (collection.code, names(collection.body)) == (200, ["a", "b"])
    assert api.store.revision == before


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"propagationPolicy": "Background"}, 200),
        ({"propagationPolicy": "Sometimes"}, 422),
        ({"propagationPolicy": "Background", "orphanDependents": True}, 422),
        ({"propagationPolicy": {}}, 400),
        ({"gracePeriodSeconds": "soon"}, 400),
        ({"gracePeriodSeconds": 1.5}, 400),
        ({"preconditions": "none"}, 400),
        ({"preconditions": {"uid": [1]}}, 400),
        ({"dryRun": ["Some"]}, 422),
        ([], 400),
        (b"{", 400),
        (b"null", 400),
    ],
    ids=str,
)
@in_virtual_time
async def test_delete_options_are_checked(options: object, code: int) -> None:
    api = await Api.start()
    await api.create(POD, pod("a"))
    answer = await api.delete(POD, "a", options)
    assert answer.code == code
    assert await exists(api, "a") == (code != 200)


@pytest.mark.parametrize(
    ("policy", "finalizer"), [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")]
)
@in_virtual_time
async def test_the_propagation_policy_sets_a_finalizer(policy: str, finalizer: str) -> None:
    api = await Api.start()
    await api.create(CONFIG_MAP, config("a"))
    assert (await api.delete(CONFIG_MAP, "a", {"propagationPolicy": policy})).code == 200
    meta = (await api.get(CONFIG_MAP, "a"))["metadata"]
    assert (meta["finalizers"], "deletionTimestamp" in meta) == ([finalizer], True)


# ---- lists and collections -----------------------------------------------------------------------


@in_virtual_time
async def test_a_collection_is_deleted_by_selector() -> None:
    api = await Api.start()
    red = {"labels": {"color": "red"}}
    await api.create(POD, pod("a", meta=red), pod("b"), pod("c", on="n1", meta=red))
    query = {"labelSelector": "color=red"}
    answer = await api.ask("DELETE", POD.url_path("default"), query=query)
    assert (answer.code, answer.body["kind"], names(answer.body)) == (200, "PodList", ["a", "c"])
    assert names(await api.list_default(POD)) == ["b", "c"]
    assert (await api.get(POD, "c"))["metadata"]["deletionTimestamp"]


@in_virtual_time
async def test_nodes_are_deleted_one_by_one_or_together() -> None:
    api = await Api.start()
    await api.create(NODE, node("n1"), node("n2"), node("n3"))
    assert (await api.ask("DELETE", NODE.url_path("", "n1"))).code == 200
    assert (await api.ask("DELETE", NODE.url_path())).code == 200
    assert (await api.ask("GET", NODE.url_path())).body["items"] == []


# ---- namespaces ----------------------------------------------------------------------------------


@in_virtual_time
async def test_a_terminating_namespace_refuses_new_objects() -> None:
    api = await Api.start()
    await api.create(NAMESPACE, {"metadata": {"name": "x"}})
    await api.create(POD, pod("a", namespace="x"))
    answer = await api.ask("DELETE", NAMESPACE.url_path("", "x"))
    assert (answer.code, answer.body["status"]["phase"]) == (200, "Terminating")
    for body in (pod("b", namespace="x"), {"metadata": {}, "spec": pod("b")["spec"]}):
        refused = await api.ask("POST", POD.url_path("x"), body)
        assert (refused.code, refused.body["reason"]) == (403, "Forbidden")
        assert refused.cause_reasons == [("metadata.namespace", "NamespaceTerminating")]
    kept = await api.ask("GET", POD.url_path("x", "a"))
    assert kept.code == 200


@in_virtual_time
async def test_a_namespace_is_removed_with_its_finalizer() -> None:
    api = await Api.start()
    await api.create(NAMESPACE, {"metadata": {"name": "x"}})
    await api.ask("DELETE", NAMESPACE.url_path("", "x"))
    assert (await api.ask("GET", NAMESPACE.url_path("", "x"))).code == 200
    empty = {"metadata": {"name": "x"}, "spec": {"finalizers": []}}
    assert (await api.ask("PUT", NAMESPACE.url_path("", "x", "finalize"), empty)).code == 200
    assert (await api.ask("GET", NAMESPACE.url_path("", "x"))).code == 404


@in_virtual_time
async def test_a_namespace_that_is_not_deleted_may_lose_its_finalizer() -> None:
    api = await Api.start()
    await api.create(NAMESPACE, {"metadata": {"name": "x"}})
    empty = {"metadata": {"name": "x"}, "spec": {"finalizers": []}}
    assert (await api.ask("PUT", NAMESPACE.url_path("", "x", "finalize"), empty)).code == 200
    assert (await api.ask("GET", NAMESPACE.url_path("", "x"))).code == 200


@pytest.mark.parametrize("name", SYSTEM_NAMESPACES)
@in_virtual_time
async def test_system_namespaces_cannot_be_deleted(name: str) -> None:
    api = await Api.start()
    assert (await api.ask("DELETE", NAMESPACE.url_path("", name))).code == 403


@pytest.mark.parametrize(
    ("query", "code", "warnings"),
    [
        ({}, 200, 1),
        ({"propagationPolicy": "Background"}, 200, 0),
        ({"labelSelector": "a b"}, 400, 0),
    ],
)
@in_virtual_time
async def test_collection_of_jobs_warns_of_pods_that_stay_once_it_is_selected(
    query: dict[str, str], code: int, warnings: int
) -> None:
    api = await Api.start()
    answer = await api.ask("DELETE", JOB.url_path("default"), query=query)
    assert (answer.code, len(answer.header_values("warning"))) == (code, warnings)
