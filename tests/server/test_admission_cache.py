"""Pods that are created alike: the short way ends where the long way does."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from phalanx.api.kinds import LIMIT_RANGE, NAMESPACE, POD, PRIORITY_CLASS, RESOURCE_QUOTA
from phalanx.api.wire import Object, UserInfo
from phalanx.server.admission_cache import MAX_CACHED_PODS
from tests.builders import in_virtual_time
from tests.server.api import Api, ApiResponse

PODS = POD.url_path("default")
CONTAINER: Object = {
    "name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
}  # fmt: skip
SPEC: Object = {"containers": [CONTAINER], "schedulingGroup": {"podGroupName": "g"}}
OWN = ("name", "uid", "creationTimestamp", "resourceVersion")


def body(name: str, spec: Object = SPEC, **meta: Any) -> bytes:
    return orjson.dumps({"metadata": {"name": name, "labels": {"a": "b"}, **meta}, "spec": spec})


async def make(api: Api, name: str, spec: Object = SPEC, **meta: Any) -> ApiResponse:
    return await api.ask("POST", PODS, body(name, spec, **meta))


async def made(api: Api, name: str, spec: Object = SPEC) -> Object:
    answer = await make(api, name, spec)
    assert answer.code == 201, answer.body
    return answer.body


def count(api: Api) -> int:
    return len(api.server.context.admission_cache._pods)


def shared(pod: Object) -> Object:
    """What a pod has in common with those that are made like it at other times."""
    meta = {key: value for key, value in pod["metadata"].items() if key not in OWN}
    meta["managedFields"] = [{**entry, "time": ""} for entry in meta["managedFields"]]
    return {**pod, "metadata": meta}


@in_virtual_time
async def test_the_second_is_what_it_would_have_become_alone() -> None:
    api, other = await Api.start(), await Api.start()
    first = await made(api, "first")
    await asyncio.sleep(7)
    second, alone = await made(api, "second"), await made(other, "second")
    assert shared(second) == shared(alone) == shared(first)
    assert second["metadata"]["name"] == "second"
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert second["metadata"]["creationTimestamp"] == "2027-01-15T08:00:07Z"
    assert second["metadata"]["managedFields"][0]["time"] == "2027-01-15T08:00:07Z"
    assert await api.get(POD, "second") == second
    assert count(api) == 1


@in_virtual_time
async def test_the_pods_of_many_gangs_are_alike_but_for_their_groups() -> None:
    api, other = await Api.start(), await Api.start()
    specs = [{**SPEC, "schedulingGroup": {"podGroupName": f"g{n}"}} for n in range(3)]
    pods = [await made(api, f"p{n}", spec) for n, spec in enumerate(specs)]
    assert [pod["spec"]["schedulingGroup"] for pod in pods] == [
        spec["schedulingGroup"] for spec in specs
    ]
    assert shared(pods[2]) == shared(await made(other, "alone", specs[2]))
    assert count(api) == 1
    for group in ("", "Not.A.Name", "a" * 300):
        spec = {**SPEC, "schedulingGroup": {"podGroupName": group}}
        assert (await make(api, "x", spec)).code == 422, group


@in_virtual_time
async def test_the_name_of_a_group_elsewhere_stays_what_it_is() -> None:
    api = await Api.start()
    for value in ("x", "y"):
        answer = await make(api, f"p-{value}", annotations={"podGroupName": value})
        assert answer.body["metadata"]["annotations"] == {"podGroupName": value}
        plain = {"containers": [CONTAINER]}
        answer = await make(api, f"q-{value}", plain, annotations={"podGroupName": value})
        assert answer.body["metadata"]["annotations"] == {"podGroupName": value}
    assert count(api) == 0


@in_virtual_time
async def test_a_name_that_is_taken_or_none_is_refused() -> None:
    api = await Api.start()
    await made(api, "first")
    for name, code in (("first", 409), ("Second", 422), ("a.b", 201), ("a" * 254, 422)):
        assert (await make(api, name)).code == code, name


@in_virtual_time
async def test_a_quota_counts_every_one() -> None:
    api = await Api.start()
    quota = {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": {"pods": "2"}}}
    await api.create(RESOURCE_QUOTA, quota)
    codes = [(await make(api, f"p{n}")).code for n in range(4)]
    assert codes == [201, 201, 403, 403]


@in_virtual_time
async def test_a_limit_range_that_comes_later_is_for_the_next_one() -> None:
    api = await Api.start()
    await made(api, "first")
    meta = {"name": "l", "namespace": "default"}
    limits = [{"type": "Container", "max": {"cpu": "1"}}]
    await api.create(LIMIT_RANGE, {"metadata": meta, "spec": {"limits": limits}})
    assert (await make(api, "second")).code == 403


@in_virtual_time
async def test_a_default_priority_that_comes_later_is_for_the_next_one() -> None:
    api = await Api.start()
    assert (await made(api, "first"))["spec"]["priority"] == 0
    top = {"metadata": {"name": "top"}, "value": 9, "globalDefault": True}
    await api.create(PRIORITY_CLASS, top)
    assert (await made(api, "second"))["spec"]["priority"] == 9


@in_virtual_time
async def test_nothing_comes_to_a_namespace_that_is_going() -> None:
    api = await Api.start()
    await api.create(NAMESPACE, {"metadata": {"name": "going"}})
    path = POD.url_path("going")
    assert (await api.ask("POST", path, body("first"))).code == 201
    await api.delete(NAMESPACE, "going")
    assert (await api.ask("POST", path, body("second"))).code == 403


@in_virtual_time
async def test_everybody_is_warned_of_an_unknown_field() -> None:
    api = await Api.start()
    for name in ("first", "second"):
        answer = await make(api, name, {**SPEC, "odd": 1})
        assert [text for text in answer.header_values("warning") if "spec.odd" in text], name
    doubled = body("third").replace(b'"metadata":{', b'"metadata":{"name":"x",')
    assert (await api.ask("POST", PODS, doubled)).body["metadata"]["name"] == "third"
    assert count(api) == 0


@in_virtual_time
async def test_the_name_of_something_inside_is_not_taken_for_the_pods_own() -> None:
    api = await Api.start()
    for inner in ("x", "y"):
        inside = b'{"spec":{"v":{"metadata":{"name":"%b"}},"containers":[]},' % inner.encode()
        answer = await api.ask("POST", PODS, inside + b'"metadata":{"name":"p"}}')
        assert answer.code == 422, answer.body
    assert count(api) == 0


@in_virtual_time
async def test_each_writer_owns_what_it_wrote() -> None:
    api = await Api.start()
    for agent in ("one", "two"):
        headers = {"user-agent": f"{agent}/1.0"}
        answer = await api.ask("POST", PODS, body(agent), headers=headers)
        assert answer.body["metadata"]["managedFields"][0]["manager"] == agent


@in_virtual_time
async def test_whoever_may_not_is_refused_however_alike() -> None:
    api = await Api.start()
    await made(api, "first")
    assert (await api.ask("POST", PODS, body("second"), user=UserInfo("nobody"))).code == 403


@pytest.mark.parametrize(
    ("spec", "meta"),
    [
        ({**SPEC, "schedulingGates": [{"name": "g"}]}, {}),
        (SPEC, {"ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "u"},
        ]}),
    ],
    ids=["a condition with a time", "owners, for whom rights are asked"],
)  # fmt: skip
@in_virtual_time
async def test_what_may_end_otherwise_goes_the_long_way(spec: Object, meta: Object) -> None:
    api = await Api.start()
    assert (await make(api, "first", spec, **meta)).code == 201
    assert count(api) == 0


@in_virtual_time
async def test_only_the_last_ones_are_kept() -> None:
    api = await Api.start()
    for number in range(MAX_CACHED_PODS + 10):
        await made(api, f"p{number}", {**SPEC, "hostname": f"h{number}"})
    assert count(api) == MAX_CACHED_PODS


@in_virtual_time
async def test_a_dry_run_makes_nothing() -> None:
    api = await Api.start()
    await made(api, "first")
    assert (await api.ask("POST", PODS, body("second"), query={"dryRun": "All"})).code == 201
    assert (await api.ask("GET", f"{PODS}/second")).code == 404
