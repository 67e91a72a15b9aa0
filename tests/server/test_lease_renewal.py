from __future__ import annotations

import asyncio

import pytest

from phalanx.api.kinds import LEASE, LEASE_RENEWAL
from phalanx.api.wire import Object
from phalanx.server.lease_renewal import MAX_LEASES
from tests.builders import in_virtual_time
from tests.server.api import Api, ApiResponse, revision

FIRST, SECOND = "2027-01-15T08:00:00.000000Z", "2027-01-15T08:00:10.500000Z"


def lease(name: str, holder: str = "me") -> Object:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 40, "renewTime": FIRST}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


async def renew(api: Api, *leases: Object, when: object = SECOND, **query: str) -> ApiResponse:
    body = {"renewTime": when, "leases": list(leases)}
    return await api.ask("POST", LEASE_RENEWAL.url_path("default"), body, query=query)


def named(*names: str) -> list[Object]:
    return [{"name": name} for name in names]


async def renew_time(api: Api, name: str) -> str:
    return str((await api.get(LEASE, name))["spec"]["renewTime"])


@in_virtual_time
async def test_leases_are_renewed_in_one_transaction_each_with_its_own_revision() -> None:
    api = await Api.start()
    await api.create(LEASE, lease("a"), lease("b"), lease("c"))
    commits: list[int] = []
    api.store.subscribe(lambda changes: commits.append(len(changes)))
    answer = await renew(api, *named("a", "b"))
    assert (answer.code, answer.body["status"]) == (201, {})
    assert commits == [2]
    assert [await renew_time(api, name) for name in "abc"] == [SECOND, SECOND, FIRST]
    first, second = [revision(await api.get(LEASE, name)) for name in "ab"]
    assert second == first + 1


@in_virtual_time
async def test_a_renewed_lease_equals_a_patched_one() -> None:
    api = await Api.start()
    await api.create(LEASE, lease("a"), lease("b"))
    await asyncio.sleep(10)
    await renew(api, *named("a"))
    await api.patch(LEASE, "b", {"spec": {"renewTime": SECOND}})
    one, other = [await api.get(LEASE, name) for name in "ab"]
    assert one["spec"] == other["spec"]
    assert one["metadata"]["managedFields"] == other["metadata"]["managedFields"]


@in_virtual_time
async def test_a_watch_sees_every_renewal() -> None:
    api = await Api.start()
    await api.create(LEASE, lease("a"), lease("b"))
    before = api.store.revision
    await renew(api, *named("b", "a"))
    found = await api.watch(LEASE, since=before)
    assert [str(event) for event in found] == ["MODIFIED b", "MODIFIED a"]


@in_virtual_time
async def test_missing_leases_and_other_holders_are_reported_and_the_rest_renewed() -> None:
    api = await Api.start()
    await api.create(LEASE, lease("a"), lease("b", holder="you"))
    mine = [{"name": name, "holderIdentity": "me"} for name in "abc"]
    answer = await renew(api, *mine)
    assert answer.code == 201
    assert answer.body["status"]["refused"] == [
        {"name": "b", "reason": "Conflict", "message": 'the lease is held by "you"'},
        {
            "name": "c", "reason": "NotFound",
            "message": 'leases.coordination.k8s.io "c" not found',
        },
    ]  # fmt: skip
    assert [await renew_time(api, name) for name in "ab"] == [SECOND, FIRST]


@in_virtual_time
async def test_a_renewal_with_the_same_time_writes_nothing() -> None:
    api = await Api.start()
    await api.create(LEASE, lease("a"))
    before = api.store.revision
    assert (await renew(api, *named("a"), when=FIRST)).code == 201
    assert (await renew(api, *named("a"), dryRun="All")).code == 201
    assert api.store.revision == before


@pytest.mark.parametrize(
    ("leases", "when", "code", "field"),
    [
        ([], SECOND, 422, "leases"),
        (named("a") * (MAX_LEASES + 1), SECOND, 422, "leases"),
        (named("a"), None, 422, "renewTime"),
        (named("a"), "yesterday", 400, ""),
        ([{"name": 1}], SECOND, 400, ""),
        (["a"], SECOND, 400, ""),
    ],
)
@in_virtual_time
async def test_an_invalid_renewal_is_refused(
    leases: list[Object], when: object, code: int, field: str
) -> None:
    api = await Api.start()
    await api.create(LEASE, lease("a"))
    answer = await renew(api, *leases, when=when)
    assert answer.code == code
    if field:
        assert [cause["field"] for cause in answer.body["details"]["causes"]] == [field]
    assert await renew_time(api, "a") == FIRST
