"""A flood of requests of one priority level does not block the other levels."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

from phalanx.api.kinds import LEASE, NODE, POD
from phalanx.api.wire import Reply, Request, StreamReply, UserInfo
from phalanx.server.security.authorization import ADMIN
from phalanx.server.security.request_guard import PriorityLevels
from phalanx.server.security.users import authenticated_user, service_account_user
from phalanx.server.security.users import node_user as node_user
from tests.builders import in_virtual_time, node, pod
from tests.server.api import Api, ApiResponse, read
from tests.server.security.rbac_fixtures import JOE, grant

ANN = authenticated_user("ann")
SCHEDULER = authenticated_user("system:kube-scheduler")


async def start_slow_server(**limits: int) -> Api:
    """Start a server whose commits take a second."""
    slow: list[Callable[[], float]] = [lambda: 0.0]
    api = await Api.start(lambda: slow[0]())
    api.server.priority_levels = PriorityLevels(**limits)
    for user in (JOE, ANN):
        await grant(api, user, "edit", "default")
        await grant(api, user, "edit", "kube-system")
    await api.create(NODE, node("n1"))
    await api.create(POD, pod("waits", cpu="1"))
    slow[0] = lambda: 1.0
    return api


async def create(api: Api, user: UserInfo, name: str) -> ApiResponse:
    return await api.ask("POST", POD.url_path("default"), pod(name), user=user)


@in_virtual_time
async def test_leases_and_binds_are_served_while_creates_get_429() -> None:
    api = await start_slow_server(writes=3)
    creates = [asyncio.create_task(create(api, JOE, f"p{number}")) for number in range(20)]
    await asyncio.sleep(0.5)
    rejected = await create(api, ANN, "late")
    assert (rejected.code, rejected.body["reason"]) == (429, "TooManyRequests")
    assert rejected.header_values("retry-after") == ["1"]
    assert rejected.body["details"]["retryAfterSeconds"] == 1
    lease = {"metadata": {"name": "l"}, "spec": {}}
    path = POD.url_path("default", "waits", "binding")
    served = await asyncio.gather(
        api.ask("POST", LEASE.url_path("kube-system"), lease, user=JOE),
        api.ask("POST", path, {"target": {"kind": "Node", "name": "n1"}}, user=SCHEDULER),
        api.ask("GET", POD.url_path("default"), user=ANN),
        create(api, service_account_user("kube-system", "job-controller"), "ours"),
        create(api, ADMIN, "admins"),
    )
    assert [response.code for response in served] == [201, 201, 200, 201, 201]
    codes = [response.code for response in await asyncio.gather(*creates)]
    assert sorted(codes) == [201] * 3 + [429] * 17
    assert (await create(api, ANN, "later")).code == 201


@in_virtual_time
async def test_leases_of_tenants_do_not_hold_up_those_of_nodes() -> None:
    api = await start_slow_server(urgent=2)
    lease = {"metadata": {"generateName": "l-"}, "spec": {}}
    tenants = [
        asyncio.create_task(api.ask("POST", LEASE.url_path("default"), lease, user=JOE))
        for _ in range(20)
    ]
    await asyncio.sleep(0.5)
    own = {"metadata": {"name": "n1"}, "spec": {}}
    path, n1 = LEASE.url_path("kube-node-lease"), node_user("n1")
    assert (await api.ask("POST", path, own, user=n1)).code == 201
    assert {(await one).code for one in tenants} == {201}


@in_virtual_time
async def test_node_status_is_served_under_load_but_node_watches_are_limited() -> None:
    api = await start_slow_server(writes=0, watches_per_user=0)
    await api.bind("waits", "n1")
    report = {"status": {"phase": "Running"}}
    merge = {"content-type": "application/merge-patch+json"}
    path, n1 = POD.url_path("default", "waits", "status"), node_user("n1")
    assert (await api.ask("PATCH", path, report, user=n1, headers=merge)).code == 200
    query = "watch=1&fieldSelector=spec.nodeName%3Dn1"
    watch_response = await api.server.handle(Request("GET", POD.url_path(), query, user=n1))
    assert watch_response.code == 429


@in_virtual_time
async def test_rejected_request_writes_nothing_and_occupies_no_slot() -> None:
    api = await start_slow_server(writes=0)
    before = api.store.revision
    assert [(await create(api, JOE, "p")).code for _ in range(5)] == [429] * 5
    assert api.store.revision == before


async def watch(api: Api, user: UserInfo) -> Reply | StreamReply:
    return await api.server.handle(Request("GET", POD.url_path("default"), "watch=1", user=user))


@in_virtual_time
async def test_watches_per_user_and_in_total_are_limited() -> None:
    api = await start_slow_server(watches_per_user=3, watches=5)
    watches_of_joe = [await watch(api, JOE) for _ in range(4)]
    assert [response.code for response in watches_of_joe] == [200, 200, 200, 429]
    assert [(await watch(api, user)).code for user in (ADMIN, SCHEDULER)] == [200, 200]
    watches_of_ann = [await watch(api, ANN) for _ in range(3)]
    assert [response.code for response in watches_of_ann] == [200, 200, 429]
    last = watches_of_ann[-1]
    assert isinstance(last, Reply)
    assert "5 watches" in read(last).body["message"]


@in_virtual_time
async def test_followed_logs_count_as_watches() -> None:
    api = await start_slow_server(watches_per_user=2)
    await api.bind("waits", "n1")
    status = {"status": {"containerStatuses": [{"name": "main", "state": {"running": {}}}]}}
    assert (await api.patch(POD, "waits", status, part="status")).code == 200
    path = POD.url_path("default", "waits", "log")
    requests = [Request("GET", path, "follow=true", user=JOE) for _ in range(3)]
    replies = [await api.server.handle(request) for request in requests]
    assert [reply.code for reply in replies] == [200, 200, 429]
    assert (await watch(api, JOE)).code == 429


@in_virtual_time
async def test_ended_watch_frees_its_slot() -> None:
    api = await start_slow_server(watches_per_user=1)
    first = await watch(api, JOE)
    assert isinstance(first, StreamReply)
    assert (await watch(api, JOE)).code == 429
    await first.chunks.aclose()
    del first
    gc.collect()
    assert (await watch(api, JOE)).code == 200
