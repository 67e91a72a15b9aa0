"""GroupEvictions: many pods are evicted in one transaction, or none."""

from __future__ import annotations

import pytest

from phalanx.api.kinds import GROUP_EVICTION, NODE, POD, POD_GROUP, RESOURCE_QUOTA
from phalanx.api.wire import Object
from tests.builders import in_virtual_time, node, pod, pod_group
from tests.server.api import Api, ApiResponse

PATH = "/apis/phalanx.dev/v1alpha1/namespaces/default/groupevictions"


async def create_bound_pods(api: Api, *names: str, grace: int = 30) -> list[Object]:
    """Pods on a node, in the default namespace."""
    await api.create(NODE, node("n", cpu="8"))
    spec = {"terminationGracePeriodSeconds": grace}
    made = [pod(name, cpu="1") for name in names]
    for one in made:
        one["spec"] |= spec
    await api.create(POD, *made)
    for name in names:
        await api.bind(name, "n")
    return [await api.get(POD, name) for name in names]


async def evict(
    api: Api, *pods: Object, groups: tuple[Object, ...] = (), **query: str
) -> ApiResponse:
    body = {
        "apiVersion": GROUP_EVICTION.api_version, "kind": "GroupEviction",
        "reason": "PreemptionByScheduler", "message": "make way",
        "pods": [{"name": p["metadata"]["name"], "uid": p["metadata"]["uid"]} for p in pods],
        "groups": list(groups),
    }  # fmt: skip
    return await api.ask("POST", PATH, body, query=query)


def disruption_targets(obj: Object) -> list[tuple[str, str, str, str]]:
    conditions = obj["status"].get("conditions", [])
    return [
        (one["type"], one["status"], one["reason"], one["message"])
        for one in conditions
        if one["type"] == "DisruptionTarget"
    ]


DISRUPTION = [("DisruptionTarget", "True", "PreemptionByScheduler", "make way")]


@in_virtual_time
async def test_all_pods_get_the_condition_and_are_deleted_in_one_transaction() -> None:
    api = await Api.start()
    pods = await create_bound_pods(api, "a", "b", "c")
    before = api.store.revision
    assert (await evict(api, *pods[:2])).code == 201
    gone = [await api.get(POD, name) for name in "ab"]
    assert [disruption_targets(one) for one in gone] == [DISRUPTION, DISRUPTION]
    assert [one["metadata"]["deletionGracePeriodSeconds"] for one in gone] == [30, 30]
    revisions = [int(one["metadata"]["resourceVersion"]) for one in gone]
    assert revisions == [before + 1, before + 2]
    assert "deletionTimestamp" not in (await api.get(POD, "c"))["metadata"]


@in_virtual_time
async def test_a_pod_with_grace_period_zero_is_removed_with_its_allocation() -> None:
    api = await Api.start()
    quota = {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": {"pods": "5"}}}
    await api.create(RESOURCE_QUOTA, {"kind": "ResourceQuota", "apiVersion": "v1", **quota})
    pods = await create_bound_pods(api, "a", "b", grace=0)
    await evict(api, *pods)
    assert (await api.ask("GET", "/api/v1/namespaces/default/pods")).body["items"] == []
    assert (await api.get(RESOURCE_QUOTA, "q"))["status"]["used"] == {"pods": "0"}
    await create_pod_again(api)


async def create_pod_again(api: Api) -> None:
    """The resources of evicted pods are free again."""
    (made,) = await api.create(POD, pod("large", cpu="8"))
    assert (await api.bind_group((made, "n"))).code == 201


@in_virtual_time
async def test_missing_terminating_and_recreated_pods_are_skipped() -> None:
    api = await Api.start()
    a, b, c = await create_bound_pods(api, "a", "b", "c")
    await api.ask("DELETE", "/api/v1/namespaces/default/pods/a")
    going = await api.get(POD, "a")
    namesake: Object = {"metadata": {"name": "b", "uid": "another"}}
    missing: Object = {"metadata": {"name": "missing", "uid": "u"}}
    assert (await evict(api, a, namesake, missing, c)).code == 201
    assert await api.get(POD, "a") == going
    assert disruption_targets(await api.get(POD, "b")) == []
    assert disruption_targets(await api.get(POD, "c")) == DISRUPTION
    assert b["metadata"]["uid"] == (await api.get(POD, "b"))["metadata"]["uid"]


@in_virtual_time
async def test_groups_that_lose_all_their_pods_get_the_condition() -> None:
    api = await Api.start()
    (group,) = await api.create(POD_GROUP, pod_group("g", 1))
    pods = await create_bound_pods(api, "a")
    mine = {"name": "g", "uid": group["metadata"]["uid"]}
    await evict(api, *pods, groups=(mine, {"name": "g", "uid": "another"}))
    assert disruption_targets(await api.get(POD_GROUP, "g")) == DISRUPTION


@in_virtual_time
async def test_a_dry_run_evicts_no_pod() -> None:
    api = await Api.start()
    pods = await create_bound_pods(api, "a")
    before = api.store.revision
    assert (await evict(api, *pods, dryRun="All")).code == 201
    assert api.store.revision == before


@pytest.mark.parametrize(
    "change",
    [
        {"pods": []},
        {"pods": None},
        {"pods": [{"name": "a"}]},
        {"pods": "a"},
        {"groups": [{"kind": "Deployment", "name": "x", "uid": "u"}]},
    ],
)
@in_virtual_time
async def test_an_invalid_group_eviction_is_refused_and_evicts_no_pod(change: Object) -> None:
    api = await Api.start()
    (one,) = await create_bound_pods(api, "a")
    pods = [{"name": "a", "uid": one["metadata"]["uid"]}]
    answer = await api.ask("POST", PATH, {"kind": "GroupEviction", "pods": pods, **change})
    assert 400 <= answer.code < 500
    assert disruption_targets(await api.get(POD, "a")) == []
