"""Open watches and logs end when the user's token or right ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, aclosing
from pathlib import Path
from urllib.parse import urlencode

import orjson
import pytest

from phalanx.api.core import NODE_TYPE_ANNOTATION, SIMULATED_NODE_TYPE
from phalanx.api.errors import Forbidden
from phalanx.api.kinds import CLUSTER_ROLE, NODE, POD, ROLE_BINDING, SERVICE_ACCOUNT
from phalanx.api.wire import Object, Request, StreamReply, UserInfo
from phalanx.client.http import HttpTransport
from phalanx.server.http_server import bind_socket, serve_http
from phalanx.server.request_info import RequestInfo
from phalanx.server.security import authentication, authorization
from phalanx.server.security.authentication import IssuedTokenFile, Tokens
from tests.builders import in_virtual_time, node, pod
from tests.server.api import EPOCH, Api
from tests.server.security.rbac_fixtures import ANN, JOE, binding, grant, make_role, user

#: Seconds in which a stream must end.
LIMIT = 5.0
POD_RULE = {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "watch"]}


class Setup:
    """A server with a user that may watch pods, and the user's token."""

    def __init__(self, api: Api, file: IssuedTokenFile, token: str) -> None:
        self.api, self.file, self.token = api, file, token

    @classmethod
    async def start(cls, folder: Path, seconds: float | None = None) -> Setup:
        file = IssuedTokenFile(folder / "tokens.json", asyncio.get_running_loop().time)
        token = file.create(ANN, EPOCH, seconds)
        api = await Api.start(tokens=Tokens({}, file=file))
        await make_role(api, "pods", POD_RULE)
        await grant(api, ANN, "pods", "default")
        return cls(api, file, token)

    async def open(
        self,
        path: str = POD.url_path("default"),
        *,
        user_info: UserInfo = ANN,
        headers: Mapping[str, str] | None = None,
    ) -> StreamReply:
        """Open a watch, or a log if the path is one, by default with the token."""
        query = urlencode({"follow": 1} if path.endswith("/log") else {"watch": 1})
        sent = bearer(self.token) if headers is None else headers
        reply = await self.api.server.handle(Request("GET", path, query, sent, b"", user_info))
        assert isinstance(reply, StreamReply), reply
        return reply


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def read_to_end(reply: StreamReply, seconds: float) -> list[Object] | None:
    """Return all events if the stream ends in this time, else None."""
    found: list[Object] = []
    try:
        async with asyncio.timeout(seconds), aclosing(reply.chunks) as chunks:
            async for chunk in chunks:
                found += map(orjson.loads, chunk.splitlines())
    except TimeoutError:
        return None
    return found


async def revoke_token(setup: Setup) -> None:
    """Revoke the token as another process does."""
    (issued,) = setup.file.all()
    IssuedTokenFile(setup.file.path).revoke(issued.id)


async def delete_binding(setup: Setup) -> None:
    await setup.api.ask("DELETE", ROLE_BINDING.url_path("default", "ann-pods"))


async def remove_verb(setup: Setup) -> None:
    changed = {"metadata": {"name": "pods"}, "rules": [{**POD_RULE, "verbs": ["list"]}]}
    await setup.api.ask("PUT", CLUSTER_ROLE.url_path("", "pods"), changed)


@pytest.mark.parametrize(
    ("lose_access", "code"),
    [(revoke_token, 401), (delete_binding, 403), (remove_verb, 403)],
    ids=lambda value: getattr(value, "__name__", ""),
)
@in_virtual_time
async def test_watch_ends_when_its_user_loses_access(
    tmp_path: Path, lose_access: Callable[[Setup], Awaitable[None]], code: int
) -> None:
    setup = await Setup.start(tmp_path)
    reply = await setup.open()
    reading = asyncio.create_task(read_to_end(reply, 100))
    await asyncio.sleep(60)
    await setup.api.create(POD, pod("before"))
    await asyncio.sleep(1)
    await lose_access(setup)
    await asyncio.sleep(LIMIT)
    assert reading.done()
    await setup.api.create(POD, pod("after"))
    events = await reading
    assert events is not None
    assert [event["type"] for event in events] == ["ADDED", "ERROR"]
    assert events[0]["object"]["metadata"]["name"] == "before"
    assert events[1]["object"]["code"] == code
    assert len(setup.api.server.context.watch_broadcaster) == 0


@in_virtual_time
async def test_watch_ends_when_its_token_expires(tmp_path: Path) -> None:
    setup = await Setup.start(tmp_path, seconds=30)
    reply = await setup.open()
    begin = asyncio.get_running_loop().time()
    events = await read_to_end(reply, 100)
    assert events is not None
    assert events[-1]["object"]["code"] == 401
    assert 30 <= asyncio.get_running_loop().time() - begin <= 30 + LIMIT


@in_virtual_time
async def test_watch_of_a_service_account_ends_with_the_account(tmp_path: Path) -> None:
    setup = await Setup.start(tmp_path)
    await setup.api.create(SERVICE_ACCOUNT, {"metadata": {"name": "r", "namespace": "default"}})
    account = {"kind": "ServiceAccount", "name": "r", "namespace": "default"}
    await setup.api.create(ROLE_BINDING, binding("r", "pods", account, namespace="default"))
    path = SERVICE_ACCOUNT.url_path("default", "r", "token")
    token = (await setup.api.ask("POST", path, {"spec": {}})).body["status"]["token"]
    found = setup.api.server.access.authenticator.user(token)
    assert found is not None
    reply = await setup.open(user_info=found, headers=bearer(token))
    reading = asyncio.create_task(read_to_end(reply, 100))
    await asyncio.sleep(10)
    assert not reading.done()
    await setup.api.delete(SERVICE_ACCOUNT, "r")
    await asyncio.sleep(LIMIT)
    assert reading.done()


@in_virtual_time
async def test_watch_ends_when_its_actor_may_no_longer_impersonate(tmp_path: Path) -> None:
    setup = await Setup.start(tmp_path)
    rule = {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"]}
    await make_role(setup.api, "become", rule)
    await grant(setup.api, JOE, "become")
    await setup.api.create(
        ROLE_BINDING, binding("direct", "pods", user("ann"), namespace="default")
    )
    reply = await setup.open(user_info=JOE, headers={"impersonate-user": "ann"})
    reading = asyncio.create_task(read_to_end(reply, 100))
    await asyncio.sleep(10)
    assert not reading.done()
    await setup.api.ask("DELETE", CLUSTER_ROLE.url_path("", "become"))
    await asyncio.sleep(LIMIT)
    assert reading.done()


@in_virtual_time
async def test_watch_without_a_token_ends_when_its_user_loses_the_right(tmp_path: Path) -> None:
    setup = await Setup.start(tmp_path)
    reading = asyncio.create_task(read_to_end(await setup.open(headers={}), 100))
    await asyncio.sleep(10)
    assert not reading.done()
    await delete_binding(setup)
    await asyncio.sleep(LIMIT)
    assert reading.done()


@in_virtual_time
async def test_watches_end_if_their_access_cannot_be_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = await Setup.start(tmp_path)
    readings = [
        asyncio.create_task(read_to_end(await setup.open(headers=headers), 100))
        for headers in (bearer(setup.token), bearer(setup.token), {})
    ]
    await asyncio.sleep(10)

    def fail(path: Path) -> None:
        raise RecursionError

    monkeypatch.setattr(authentication, "check_private", fail)
    await asyncio.sleep(LIMIT)
    assert [reading.done() for reading in readings] == [True, True, False]
    assert [event["object"]["code"] for event in await readings[0] or ()] == [500]
    readings[2].cancel()


@in_virtual_time
async def test_watch_of_a_user_that_keeps_its_access_stays_open(tmp_path: Path) -> None:
    setup = await Setup.start(tmp_path)
    reading = asyncio.create_task(read_to_end(await setup.open(), 600))
    await asyncio.sleep(300)
    await setup.api.ask("DELETE", CLUSTER_ROLE.url_path("", "edit"))
    await asyncio.sleep(200)
    assert not reading.done()
    assert await reading is None


@pytest.mark.parametrize("lose_access", [revoke_token, delete_binding], ids=lambda f: f.__name__)
@in_virtual_time
async def test_followed_log_ends_when_its_user_loses_access(
    tmp_path: Path, lose_access: Callable[[Setup], Awaitable[None]]
) -> None:
    setup = await Setup.start(tmp_path)
    machine = node("n")
    machine["metadata"]["annotations"] = {NODE_TYPE_ANNOTATION: SIMULATED_NODE_TYPE}
    await setup.api.create(NODE, machine)
    await setup.api.create(POD, pod("p", on="n"))
    running = {"name": "main", "state": {"running": {"startedAt": "2027-01-15T08:00:00Z"}}}
    status = {"image": "i", "imageID": "", "ready": True, "restartCount": 0, **running}
    await setup.api.patch(POD, "p", {"status": {"containerStatuses": [status]}}, part="status")
    reply = await setup.open(POD.url_path("default", "p", "log"))

    async def read_lines() -> int:
        async with aclosing(reply.chunks) as chunks:
            return sum([len(chunk.splitlines()) async for chunk in chunks])

    reading = asyncio.create_task(read_lines())
    await asyncio.sleep(60)
    assert not reading.done()
    await lose_access(setup)
    await asyncio.sleep(LIMIT)
    assert reading.done()
    assert await reading == 2


def test_watch_over_the_network_ends_when_its_token_is_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorization, "STREAM_CHECK_INTERVAL", 0.02)

    async def scenario() -> list[Object] | None:
        setup = await Setup.start(tmp_path)
        server, sock = setup.api.server, bind_socket("127.0.0.1", 0)
        async with serve_http(server.handle, server.access.authenticator, sock, tls=None):
            url = f"http://127.0.0.1:{sock.getsockname()[1]}"
            transport = HttpTransport(url, token=setup.token)
            query = "watch=true&allowWatchBookmarks=true"
            reply = await transport.send(Request("GET", POD.url_path("default"), query))
            assert isinstance(reply, StreamReply), reply
            await revoke_token(setup)
            events = await read_to_end(reply, 10)
            await transport.close()
            return events

    events = asyncio.run(scenario())
    assert events is not None
    assert [event["object"]["code"] for event in events] == [401]


@in_virtual_time
async def test_many_streams_are_checked_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """All streams are checked, but other requests run in between."""
    monkeypatch.setattr(authorization, "_CHECK_BATCH", 2)
    checked: list[str] = []
    refused: list[str] = []

    def check(info: RequestInfo, verb: str) -> None:
        checked.append(info.namespace)
        if info.namespace == "n3":
            raise Forbidden("no longer")

    monitor = authorization.StreamMonitor(check)
    with ExitStack() as open_streams:
        for at in range(5):
            request = Request("GET", POD.url_path(f"n{at}"), headers=bearer("t"))
            info = RequestInfo(request, POD, f"n{at}")
            open_streams.enter_context(
                monitor.track(info, "watch", lambda error: refused.append(str(error)))
            )
        await asyncio.sleep(authorization.STREAM_CHECK_INTERVAL)
        seen = len(checked)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert seen < len(checked)
        assert checked == [f"n{at}" for at in range(5)]
        assert len(refused) == 1
        await asyncio.sleep(authorization.STREAM_CHECK_INTERVAL + 1)
        assert checked[5:] == ["n0", "n1", "n2", "n4"]
