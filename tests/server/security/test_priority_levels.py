"""A flood of one sort of request does not keep the others from being heard."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

from phalanx.api.kinds import LEASE, NODE, POD
from phalanx.api.wire import Reply, Request, StreamReply, UserInfo
from phalanx.server.security.authorization import ADMIN
from phalanx.server.security.priority_levels import PriorityLevels
from phalanx.server.security.users import authenticated_user, service_account_user
from phalanx.server.security.users import node_user as node_user
from tests.builders import in_virtual_time, node, pod
from tests.server.api import Api, ApiResponse, read
from tests.server.security.rbac_fixtures import JOE, grant

ANN = authenticated_user("ann")
SCHEDULER = authenticated_user("system:kube-scheduler")


async def a_slow_server(**limits: int) -> Api:
    """Each commit takes a second."""
    slow: list[Callable[[], float]] = [lambda: 0.0]
    api = await Api.start(lambda: slow[0]())
    api.server.priority_levels = PriorityLevels(**limits)
    for who in (JOE, ANN):
        await grant(api, who, "edit", "default")
        await grant(api, who, "edit", "kube-system")
    await api.create(NODE, node("n1"))
    await api.create(POD, pod("waits", cpu="1"))
    slow[0] = lambda: 1.0
    return api


async def create(api: Api, who: UserInfo, name: str) -> ApiResponse:
    return await api.ask("POST", POD.url_path("default"), pod(name), user=who)


@in_virtual_time
async def test_leases_and_binds_pass_while_creates_are_asked_to_come_back() -> None:
    api = await a_slow_server(writes=3)
    flood = [asyncio.create_task(create(api, JOE, f"p{number}")) for number in range(20)]
    await asyncio.sleep(0.5)
    refused = await create(api, ANN, "late")
    assert (refused.code, refused.body["reason"]) == (429, "TooManyRequests")
    assert refused.header_values("retry-after") == ["1"]
    assert refused.body["details"]["retryAfterSeconds"] == 1
    lease = {"metadata": {"name": "l"}, "spec": {}}
    path = POD.url_path("default", "waits", "binding")
    passed = await asyncio.gather(
        api.ask("POST", LEASE.url_path("kube-system"), lease, user=JOE),
        api.ask("POST", path, {"target": {"kind": "Node", "name": "n1"}}, user=SCHEDULER),
        api.ask("GET", POD.url_path("default"), user=ANN),
        create(api, service_account_user("kube-system", "job-controller"), "ours"),
        create(api, ADMIN, "admins"),
    )
    assert [answer.code for answer in passed] == [201, 201, 200, 201, 201]
    codes = [answer.code for answer in await asyncio.gather(*flood)]
    assert sorted(codes) == [201] * 3 + [429] * 17
    assert (await create(api, ANN, "later")).code == 201


@in_virtual_time
async def test_what_a_node_reports_passes_too_but_nobody_has_more_watches_for_being_a_node() -> (
    None
):
    api = await a_slow_server(writes=0, watches_per_user=0)
    await api.bind("waits", "n1")
    report = {"status": {"phase": "Running"}}
    merge = {"content-type": "application/merge-patch+json"}
    path, n1 = POD.url_path("default", "waits", "status"), node_user("n1")
    assert (await api.ask("PATCH", path, report, user=n1, headers=merge)).code == 200
    query = "watch=1&fieldSelector=spec.nodeName%3Dn1"
    watched = await api.server.handle(Request("GET", POD.url_path(), query, user=n1))
    assert watched.code == 429


@in_virtual_time
async def test_a_refused_request_leaves_no_trace_and_takes_no_room() -> None:
    api = await a_slow_server(writes=0)
    before = api.store.revision
    assert [(await create(api, JOE, "p")).code for _ in range(5)] == [429] * 5
    assert api.store.revision == before


async def watch(api: Api, who: UserInfo) -> Reply | StreamReply:
    return await api.server.handle(Request("GET", POD.url_path("default"), "watch=1", user=who))


@in_virtual_time
async def test_nobody_watches_more_than_their_share() -> None:
    api = await a_slow_server(watches_per_user=3, watches=5)
    held = [await watch(api, JOE) for _ in range(4)]
    assert [answer.code for answer in held] == [200, 200, 200, 429]
    assert [(await watch(api, who)).code for who in (ADMIN, SCHEDULER)] == [200, 200]
    others = [await watch(api, ANN) for _ in range(3)]
    assert [answer.code for answer in others] == [200, 200, 429]
    last = others[-1]
    assert isinstance(last, Reply)
    assert "5 watches" in read(last).body["message"]


@in_virtual_time
async def test_a_watch_that_has_ended_makes_room() -> None:
    api = await a_slow_server(watches_per_user=1)
    first = await watch(api, JOE)
    assert isinstance(first, StreamReply)
    assert (await watch(api, JOE)).code == 429
    await first.chunks.aclose()
    del first
    gc.collect()
    assert (await watch(api, JOE)).code == 200
