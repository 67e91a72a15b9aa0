"""Volumes in a GroupBinding: claims are bound with the pods, or nothing is."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.errors import Conflict
from phalanx.api.kinds import GROUP_BINDING, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from tests.builders import in_virtual_time, pod
from tests.controllers.cluster import Cluster, cluster, simulated_nodes
from tests.controllers.test_volume_claims import claim, volume


def bare_cluster() -> Any:
    return cluster(nodes=simulated_nodes(1), without=("scheduler", "controllers"))


async def create_all(c: Cluster, **volume_spec: Any) -> None:
    one = volume("v", "n0")
    one["spec"] |= volume_spec
    await c.create(one, claim("c"), pod("p"))


async def uid_of(c: Cluster, kind: Any, name: str) -> str:
    namespace = "default" if kind.namespaced else ""
    found: Object = await c.client.get(kind, Key(namespace, name))
    return str(found["metadata"]["uid"])


async def bind(c: Cluster, *volumes: Object, uid: str = "") -> None:
    uid = uid or await uid_of(c, PERSISTENT_VOLUME_CLAIM, "c")
    entries = [{"claim": "c", "uid": uid, "volume": "v", **one} for one in volumes or ({},)]
    await c.client.post(
        GROUP_BINDING.url_path("default"),
        {
            "apiVersion": GROUP_BINDING.api_version,
            "kind": GROUP_BINDING.name,
            "bindings": [{"name": "p", "uid": await uid_of(c, POD, "p"), "node": "n0"}],
            "volumes": entries,
        },
    )


@in_virtual_time
async def test_claim_and_volume_are_bound_with_the_pod() -> None:
    async with bare_cluster() as c:
        await create_all(c)
        await bind(c)
        assert await c.node_by_pod() == {"p": "n0"}
        found = await c.client.get(PERSISTENT_VOLUME_CLAIM, Key("default", "c"))
        assert (found["spec"]["volumeName"], found["status"]["phase"]) == ("v", "Bound")
        assert found["status"]["capacity"] == {"storage": "10Gi"}
        taken = await c.client.get(PERSISTENT_VOLUME, Key("", "v"))
        assert taken["spec"]["claimRef"]["uid"] == found["metadata"]["uid"]
        assert taken["status"]["phase"] == "Bound"
        assert taken["metadata"]["annotations"] == {"pv.kubernetes.io/bound-by-controller": "yes"}


@in_virtual_time
async def test_a_volume_that_was_reserved_for_the_claim_keeps_no_mark_of_the_binder() -> None:
    async with bare_cluster() as c:
        await create_all(c, claimRef={"namespace": "default", "name": "c"})
        await bind(c)
        taken = await c.client.get(PERSISTENT_VOLUME, Key("", "v"))
        assert "annotations" not in taken["metadata"]


@pytest.mark.parametrize(
    ("volumes", "reason"),
    [
        ([{"uid": "other"}], "does not have the given uid"),
        ([{"claim": "absent"}], "does not have the given uid"),
        ([{"volume": "absent"}], 'volume "absent" not found'),
        ([{}, {}], 'claim "c" is bound twice'),
    ],
)
@in_virtual_time
async def test_nothing_is_bound_if_a_claim_or_volume_is_gone(
    volumes: list[Object], reason: str
) -> None:
    async with bare_cluster() as c:
        await create_all(c)
        with pytest.raises(Conflict, match=reason):
            await bind(c, *volumes)
        assert await c.node_by_pod() == {}
        found = await c.client.get(PERSISTENT_VOLUME_CLAIM, Key("default", "c"))
        assert "volumeName" not in found["spec"]


@in_virtual_time
async def test_a_volume_of_another_claim_is_refused() -> None:
    async with bare_cluster() as c:
        await create_all(c, claimRef={"namespace": "default", "name": "other"})
        with pytest.raises(Conflict, match="belongs to another claim"):
            await bind(c)


@in_virtual_time
async def test_a_claim_that_is_deleted_or_bound_is_refused() -> None:
    async with bare_cluster() as c:
        await create_all(c)
        uid = await uid_of(c, PERSISTENT_VOLUME_CLAIM, "c")
        await c.create(volume("w", "n0"))
        await c.delete(PERSISTENT_VOLUME, "v")
        with pytest.raises(Conflict, match='volume "v" is being deleted'):
            await bind(c)
        await c.client.patch(
            PERSISTENT_VOLUME_CLAIM, Key("default", "c"), {"spec": {"volumeName": "w"}}
        )
        with pytest.raises(Conflict, match="is bound already"):
            await bind(c, {"volume": "w"}, uid=uid)
        await c.delete(PERSISTENT_VOLUME_CLAIM, "c")
        with pytest.raises(Conflict, match='claim "c" is being deleted'):
            await bind(c, {"volume": "w"}, uid=uid)
