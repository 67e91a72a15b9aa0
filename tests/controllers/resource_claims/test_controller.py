"""ResourceClaims from templates, for pods and PodGroups, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from phalanx.api.kinds import (
    POD,
    POD_GROUP,
    RESOURCE_CLAIM,
    RESOURCE_CLAIM_TEMPLATE,
    RESOURCE_QUOTA,
    Kind,
)
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.builder.names import claim_name
from phalanx.client.client import Client
from phalanx.controllers.event_recorder import EventRecorder
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.resource_claims.controller import ResourceClaimController
from phalanx.randomness import SeededRandom
from tests.builders import in_virtual_time, pod, pod_group
from tests.controllers.cluster import Cluster, cluster
from tests.controllers.crash_recovery import (
    SERVER_ONLY,
    Runnable,
    assert_quiet,
    assert_survives_bad_watches,
    assert_survives_every_crash,
    bare_cluster,
    running_controller,
)

CLAIM_ENTRY = "resource.kubernetes.io/pod-claim-name"
DEVICES: Object = {
    "devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}
}
GPU: Object = {"name": "gpu", "resourceClaimTemplateName": "t"}
NIC: Object = {"name": "nic", "resourceClaimTemplateName": "t"}


def with_recorder(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    recorder = EventRecorder(client, c.clock, SeededRandom(4), component="resource_claim")
    return [recorder.run, ResourceClaimController(client, informers, recorder.record).run]


def without_recorder(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    """Build the controller without an event recorder."""
    return [ResourceClaimController(client, informers).run]


def without_sharing(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    return [ResourceClaimController(client, informers, share_claims=False).run]


def without_groups(client: Client, informers: Informers, c: Cluster) -> Sequence[Runnable]:
    return [ResourceClaimController(client, informers, groups=False, share_claims=False).run]


def template(name: str = "t", **meta: object) -> Object:
    return {
        "apiVersion": RESOURCE_CLAIM_TEMPLATE.api_version,
        "kind": RESOURCE_CLAIM_TEMPLATE.name,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"metadata": meta, "spec": DEVICES},
    }


def pod_with_claims(name: str, *claims: Object, group: str = "") -> Object:
    return pod(name, group, spec={"resourceClaims": list(claims)})


def group_with_claims(name: str, *claims: Object) -> Object:
    group = pod_group(name, 1)
    group["spec"]["resourceClaims"] = list(claims)
    return group


async def claims(c: Cluster) -> dict[tuple[str, str], str]:
    """Return the names of all claims by owner and entry."""
    metas = [one["metadata"] for one in (await c.client.list(RESOURCE_CLAIM)).items]
    names = [
        ((meta["ownerReferences"][0]["name"], meta["annotations"][CLAIM_ENTRY]), meta["name"])
        for meta in metas
        if "ownerReferences" in meta
    ]
    assert len(names) == len(dict(names)), "two claims for the same entry"
    return dict(names)


async def recorded_claims(c: Cluster, name: str, kind: Kind = POD) -> dict[str, str]:
    status = (await c.client.get(kind, Key("default", name))).get("status", {})
    found = status.get("resourceClaimStatuses", [])
    return {one["name"]: one["resourceClaimName"] for one in found}


# ---- pods ----------------------------------------------------------------------------------------


@in_virtual_time
async def test_pod_gets_a_claim_for_each_template_and_records_it() -> None:
    async with bare_cluster(with_recorder) as c:
        await c.create(template(), pod_with_claims("p", GPU, NIC))
        await asyncio.sleep(1)
        names = await claims(c)
        assert list(names) == [("p", "gpu"), ("p", "nic")]
        assert await recorded_claims(c, "p") == {"gpu": names["p", "gpu"], "nic": names["p", "nic"]}


@in_virtual_time
async def test_claim_has_the_fields_of_its_template_and_is_controlled_by_the_pod() -> None:
    async with bare_cluster(with_recorder) as c:
        await c.create(
            template(labels={"a": "b"}, annotations={"c": "d"}), pod_with_claims("p", GPU)
        )
        await asyncio.sleep(1)
        (found,) = (await c.client.list(RESOURCE_CLAIM)).items
        uid = (await c.client.get(POD, Key("default", "p")))["metadata"]["uid"]
        meta = found["metadata"]
        assert (meta["generateName"], meta["name"][:6]) == ("p-gpu-", "p-gpu-")
        assert meta["labels"] == {"a": "b"}
        assert meta["annotations"] == {"c": "d", CLAIM_ENTRY: "gpu"}
        assert meta["ownerReferences"] == [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": "p",
                "uid": uid,
                "controller": True,
            }
        ]
        assert found["spec"]["devices"]["requests"][0]["name"] == "gpu"


@in_virtual_time
async def test_claim_that_the_pod_names_is_not_created() -> None:
    async with bare_cluster(with_recorder) as c:
        await c.create(pod_with_claims("p", {"name": "gpu", "resourceClaimName": "mine"}))
        await asyncio.sleep(1)
        assert (await claims(c), await recorded_claims(c, "p")) == ({}, {})


@in_virtual_time
async def test_missing_template_is_recorded_once_and_awaited() -> None:
    async with bare_cluster(with_recorder) as c:
        await c.create(pod_with_claims("p", GPU))
        await asyncio.sleep(1)
        await c.client.patch(POD, Key("default", "p"), {"metadata": {"labels": {"a": "b"}}})
        await asyncio.sleep(1)
        missing = 'resourceclaimtemplate.resource.k8s.io "t" not found'
        text = f'PodResourceClaim gpu: resource claim template "t": {missing}'
        assert await c.events("FailedResourceClaimCreation") == [("p", text)]
        await c.create(template())
        await asyncio.sleep(1)
        assert list(await recorded_claims(c, "p")) == ["gpu"]


@in_virtual_time
async def test_deleted_claim_is_created_again() -> None:
    async with bare_cluster(with_recorder) as c:
        await c.create(template(), pod_with_claims("p", GPU))
        await asyncio.sleep(1)
        (name,) = (await recorded_claims(c, "p")).values()
        before = await c.client.get(RESOURCE_CLAIM, Key("default", name))
        await c.delete(RESOURCE_CLAIM, name)
        await asyncio.sleep(1)
        (again,) = (await recorded_claims(c, "p")).values()
        after = await c.client.get(RESOURCE_CLAIM, Key("default", again))
        assert before["metadata"]["uid"] != after["metadata"]["uid"]


@in_virtual_time
async def test_name_of_another_claim_is_not_reused() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await c.create(template(), pod_with_claims("p", GPU))
        uid = (await c.client.get(POD, Key("default", "p")))["metadata"]["uid"]
        name = claim_name("p", "gpu", uid)
        meta = {"name": name, "namespace": "default"}
        other = await c.client.create(RESOURCE_CLAIM, {"metadata": meta, "spec": DEVICES})
        async with running_controller(c, with_recorder):
            await asyncio.sleep(1)
        (recorded,) = (await recorded_claims(c, "p")).values()
        assert recorded.startswith(name)
        assert recorded != name
        assert await c.client.get(RESOURCE_CLAIM, Key("default", name)) == other


@in_virtual_time
async def test_successive_pods_of_the_same_name_have_separate_claims() -> None:
    async with cluster(without=["scheduler", "nodes"]) as c:
        await c.create(template(), pod_with_claims("p", GPU))
        await asyncio.sleep(1)
        first = await recorded_claims(c, "p")
        await c.delete(POD, "p")
        await c.create(pod_with_claims("p", GPU))
        await asyncio.sleep(2)
        second = await recorded_claims(c, "p")
        assert first != second
        assert list((await claims(c)).values()) == list(second.values())


@in_virtual_time
async def test_pod_that_will_never_run_gets_no_claim() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        await c.create(template(), pod_with_claims("p", GPU), pod_with_claims("q", GPU))
        failed = {"status": {"phase": "Failed"}}
        await c.client.patch(POD, Key("default", "p"), failed, subresource="status")
        stay = {"metadata": {"finalizers": ["example.com/stay"]}}
        await c.client.patch(POD, Key("default", "q"), stay)
        await c.delete(POD, "q")
        async with running_controller(c, with_recorder):
            await asyncio.sleep(1)
        assert await claims(c) == {}


@in_virtual_time
async def test_failed_creation_is_recorded() -> None:
    async with bare_cluster(with_recorder) as c:
        quota = {"hard": {"count/resourceclaims.resource.k8s.io": "0"}}
        meta = {"name": "none", "namespace": "default"}
        await c.client.create(RESOURCE_QUOTA, {"metadata": meta, "spec": quota})
        await c.create(template(), pod_with_claims("p", GPU))
        await asyncio.sleep(1)
        ((owner, text),) = await c.events("FailedResourceClaimCreation")
        assert owner == "p"
        assert text.startswith("PodResourceClaim gpu: create ResourceClaim p-gpu-")
        assert "exceeded quota" in text


# ---- groups --------------------------------------------------------------------------------------


@in_virtual_time
async def test_shared_claim_is_created_once_for_the_group() -> None:
    async with bare_cluster(with_recorder) as c:
        await c.create(template(), group_with_claims("g", GPU))
        await c.create(
            pod_with_claims("p", GPU, NIC, group="g"), pod_with_claims("q", GPU, group="g")
        )
        await asyncio.sleep(1)
        names = await claims(c)
        assert sorted(names) == [("g", "gpu"), ("p", "nic")]
        shared = names["g", "gpu"]
        assert await recorded_claims(c, "g", POD_GROUP) == {"gpu": shared}
        assert await recorded_claims(c, "p") == {"gpu": shared, "nic": names["p", "nic"]}
        assert await recorded_claims(c, "q") == {"gpu": shared}
        found = await c.client.get(RESOURCE_CLAIM, Key("default", shared))
        (owner,) = found["metadata"]["ownerReferences"]
        assert (owner["apiVersion"], owner["kind"], owner["controller"]) == (
            "scheduling.k8s.io/v1beta1",
            "PodGroup",
            True,
        )


@pytest.mark.parametrize(
    "other",
    [
        {"name": "card", "resourceClaimTemplateName": "t"},
        {"name": "gpu", "resourceClaimTemplateName": "u"},
    ],
)
@in_virtual_time
async def test_claim_that_differs_from_the_groups_is_not_shared(other: Object) -> None:
    async with bare_cluster(with_recorder) as c:
        await c.create(
            template(),
            template("u"),
            group_with_claims("g", GPU),
            pod_with_claims("p", other, group="g"),
        )
        await asyncio.sleep(1)
        assert sorted(await claims(c)) == [("g", "gpu"), ("p", other["name"])]


@in_virtual_time
async def test_pod_waits_until_its_group_exists() -> None:
    async with bare_cluster(with_recorder) as c:
        await c.create(template(), pod_with_claims("p", GPU, group="g"))
        await asyncio.sleep(5)
        assert await claims(c) == {}
        await c.create(group_with_claims("g", GPU))
        await asyncio.sleep(1)
        assert list(await claims(c)) == [("g", "gpu")]
        assert list(await recorded_claims(c, "p")) == ["gpu"]


@in_virtual_time
async def test_without_sharing_no_claim_is_created_for_the_group() -> None:
    async with bare_cluster(without_sharing) as c:
        await c.create(
            template(), group_with_claims("g", GPU), pod_with_claims("p", GPU, NIC, group="g")
        )
        await asyncio.sleep(1)
        assert list(await claims(c)) == [("p", "nic")]


@in_virtual_time
async def test_without_groups_every_pod_has_its_own_claims() -> None:
    async with bare_cluster(without_groups) as c:
        await c.create(
            template(), group_with_claims("g", GPU), pod_with_claims("p", GPU, group="g")
        )
        await asyncio.sleep(1)
        assert list(await claims(c)) == [("p", "gpu")]


# ---- crashes and stale caches --------------------------------------------------------------------


async def create_claims(c: Cluster) -> object:
    await c.create(
        group_with_claims("g", GPU),
        pod_with_claims("p", GPU, NIC, group="g"),
        pod_with_claims("q", GPU, NIC),
        pod_with_claims("r", GPU),
    )
    await asyncio.sleep(3)
    await c.create(template())
    await asyncio.sleep(10)
    owners = {name: owner for owner, name in (await claims(c)).items()}
    return [
        {entry: owners[name] for entry, name in (await recorded_claims(c, name, kind)).items()}
        for name, kind in (("g", POD_GROUP), ("p", POD), ("q", POD), ("r", POD))
    ]


def test_crash_after_any_write_leads_to_the_same_end_without_duplicates() -> None:
    assert assert_survives_every_crash(without_recorder, create_claims) >= 7


def test_repeated_late_and_missed_events_lead_to_the_same_end() -> None:
    assert_survives_bad_watches(without_recorder, create_claims)


@in_virtual_time
async def test_nothing_is_written_when_all_claims_are_recorded() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        async with running_controller(c, with_recorder):
            await create_claims(c)
        await assert_quiet(c, with_recorder)
