"""Claims in a GroupBinding: allocated and reserved with the pods, or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from phalanx.api.dynamic_resources import NEW_SHARE_ID
from phalanx.api.errors import Conflict
from phalanx.api.kinds import GROUP_BINDING, POD, RESOURCE_CLAIM
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.client.client import Client
from tests.builders import in_virtual_time
from tests.controllers.cluster import cluster, simulated_nodes

SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}


def allocation(device: str = "gpu-0", **result: Any) -> Object:
    found = {"request": "gpu", "driver": "gpu.example", "pool": "n1", "device": device, **result}
    return {"devices": {"results": [found]}}


class Binding:
    """Binds pods with claims on a bare server."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def create(self, *names: str) -> None:
        for name in names:
            await self.client.create(
                POD,
                {
                    "metadata": {"name": name, "namespace": "default"},
                    "spec": {"containers": [{"name": "c", "image": "x"}]},
                },
            )
            meta = {"name": f"claim-{name}", "namespace": "default"}
            await self.client.create(RESOURCE_CLAIM, {"metadata": meta, "spec": SPEC})

    async def bind(self, pod_name: str, claim: str = "", **fields: Any) -> None:
        claim = claim or f"claim-{pod_name}"
        pod = await self.client.get(POD, Key("default", pod_name))
        found = await self.get_claim(claim)
        consumer = {"resource": "pods", "name": pod_name, "uid": pod["metadata"]["uid"]}
        entry = {"name": claim, "uid": found["metadata"]["uid"], "consumer": consumer, **fields}
        await self.client.post(
            GROUP_BINDING.url_path("default"),
            {
                "apiVersion": GROUP_BINDING.api_version,
                "kind": GROUP_BINDING.name,
                "bindings": [{"name": pod_name, "uid": pod["metadata"]["uid"], "node": "n0"}],
                "claims": [entry],
            },
        )

    async def get_claim(self, name: str) -> Object:
        found: Object = await self.client.get(RESOURCE_CLAIM, Key("default", name))
        return found

    async def node_of(self, name: str) -> str:
        pod = await self.client.get(POD, Key("default", name))
        return str(pod["spec"].get("nodeName", ""))


def bare_cluster() -> Any:
    return cluster(nodes=simulated_nodes(1), without=("scheduler", "controllers"))


@in_virtual_time
async def test_claim_is_allocated_and_reserved_with_the_binding() -> None:
    async with bare_cluster() as c:
        one = Binding(c.client)
        await one.create("a")
        await one.bind("a", allocation=allocation())
        claim = await one.get_claim("claim-a")
        assert claim["status"]["allocation"] == allocation()
        assert [consumer["name"] for consumer in claim["status"]["reservedFor"]] == ["a"]
        assert claim["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
        assert await one.node_of("a") == "n0"


@in_virtual_time
async def test_device_of_another_claim_refuses_the_whole_binding() -> None:
    async with bare_cluster() as c:
        one = Binding(c.client)
        await one.create("a", "b")
        await one.bind("a", allocation=allocation())
        with pytest.raises(Conflict, match=r"gpu\.example/n1/gpu-0 is allocated to another claim"):
            await one.bind("b", allocation=allocation())
        assert await one.node_of("b") == ""
        assert not (await one.get_claim("claim-b")).get("status")
        await one.bind("b", allocation=allocation("gpu-1"))


@in_virtual_time
async def test_device_is_free_again_after_its_claim_is_released() -> None:
    async with bare_cluster() as c:
        one = Binding(c.client)
        await one.create("a", "b", "d")
        await one.bind("a", allocation=allocation())
        release = {"status": {"allocation": None, "reservedFor": None}}
        key = Key("default", "claim-a")
        await c.client.patch(RESOURCE_CLAIM, key, release, subresource="status")
        await one.bind("b", allocation=allocation())
        meta = {"finalizers": None}
        await c.client.patch(RESOURCE_CLAIM, Key("default", "claim-b"), {"metadata": meta})
        await c.client.patch(
            RESOURCE_CLAIM, Key("default", "claim-b"), release, subresource="status"
        )
        await c.client.delete(RESOURCE_CLAIM, Key("default", "claim-b"))
        await one.bind("d", allocation=allocation())


@in_virtual_time
async def test_shares_of_a_device_get_ids_and_do_not_conflict() -> None:
    async with bare_cluster() as c:
        one = Binding(c.client)
        await one.create("a", "b")
        share = allocation(shareID=NEW_SHARE_ID, consumedCapacity={"memory": "4Gi"})
        await one.bind("a", allocation=share)
        await one.bind("b", allocation=share)
        claims = [await one.get_claim(f"claim-{name}") for name in "ab"]
        ids = {c["status"]["allocation"]["devices"]["results"][0]["shareID"] for c in claims}
        assert len(ids) == 2
        assert NEW_SHARE_ID not in ids


@in_virtual_time
async def test_second_consumer_is_added_to_an_allocated_claim() -> None:
    async with bare_cluster() as c:
        one = Binding(c.client)
        await one.create("a", "b")
        await one.bind("a", allocation=allocation())
        with pytest.raises(Conflict, match="got allocated elsewhere"):
            await one.bind("b", "claim-a", allocation=allocation("gpu-1"))
        await one.bind("b", "claim-a")
        claim = await one.get_claim("claim-a")
        assert [consumer["name"] for consumer in claim["status"]["reservedFor"]] == ["a", "b"]


@in_virtual_time
async def test_claim_that_is_gone_replaced_or_unallocated_refuses_the_binding() -> None:
    async with bare_cluster() as c:
        one = Binding(c.client)
        await one.create("a")
        with pytest.raises(Conflict, match="has no allocation"):
            await one.bind("a")
        with pytest.raises(Conflict, match="does not have the given uid"):
            await one.bind("a", uid="other", allocation=allocation())
        with pytest.raises(Conflict, match="not found"):
            await one.bind("a", name="missing", allocation=allocation())
        assert await one.node_of("a") == ""


@in_virtual_time
async def test_claim_for_extended_resources_is_created_with_the_binding() -> None:
    async with bare_cluster() as c:
        await c.client.create(
            POD,
            {
                "metadata": {"name": "p", "namespace": "default"},
                "spec": {
                    "containers": [
                        {
                            "name": "c",
                            "image": "x",
                            "resources": {"limits": {"example.com/gpu": "1"}},
                        }
                    ]
                },
            },
        )
        pod = await c.client.get(POD, Key("default", "p"))
        uid = pod["metadata"]["uid"]
        mapping = {
            "containerName": "c",
            "resourceName": "example.com/gpu",
            "requestName": "container-0-request-0",
        }
        entry = {
            "name": "p-extended-resources-",
            "uid": "",
            "consumer": {"resource": "pods", "name": "p", "uid": uid},
            "allocation": allocation(request="container-0-request-0"),
            "spec": SPEC,
            "requestMappings": [mapping],
        }
        await c.client.post(
            GROUP_BINDING.url_path("default"),
            {
                "apiVersion": GROUP_BINDING.api_version,
                "kind": GROUP_BINDING.name,
                "bindings": [{"name": "p", "uid": uid, "node": "n0"}],
                "claims": [entry],
            },
        )
        await asyncio.sleep(0)
        (claim,) = (await c.client.list(RESOURCE_CLAIM)).items
        pod = await c.client.get(POD, Key("default", "p"))
        assert pod["spec"]["nodeName"] == "n0"
        assert pod["status"]["extendedResourceClaimStatus"] == {
            "resourceClaimName": claim["metadata"]["name"],
            "requestMappings": [mapping],
        }
        assert claim["metadata"]["ownerReferences"][0]["uid"] == uid


def _owned_claim(claim: str, pod: Object, entry: str, **owner: Any) -> Object:
    meta = pod["metadata"]
    reference = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
    return {
        "metadata": {
            "name": claim,
            "namespace": "default",
            "annotations": {"resource.kubernetes.io/pod-claim-name": entry},
            "ownerReferences": [{**reference, "controller": True, **owner}],
        },
        "spec": SPEC,
    }


@in_virtual_time
async def test_claim_that_is_created_for_a_pod_is_named_in_its_status_at_once() -> None:
    async with bare_cluster() as c:
        entries = [
            {"name": "gpu", "resourceClaimTemplateName": "t"},
            {"name": "own", "resourceClaimName": "n"},
        ]
        containers = [{"name": "c", "image": "x"}]
        spec = {"containers": containers, "resourceClaims": entries}
        meta = {"name": "p", "namespace": "default"}
        pod = await c.client.create(POD, {"metadata": meta, "spec": spec})
        for claim in (
            _owned_claim("of-another-uid", pod, "gpu", uid="other"),
            _owned_claim("of-another-pod", pod, "gpu", name="q"),
            _owned_claim("of-a-named-entry", pod, "own"),
            _owned_claim("right", pod, "gpu"),
            _owned_claim("too-late", pod, "gpu"),
        ):
            await c.client.create(RESOURCE_CLAIM, claim)
        found = await c.client.get(POD, Key("default", "p"))
        assert found["status"]["resourceClaimStatuses"] == [
            {"name": "gpu", "resourceClaimName": "right"}
        ]
