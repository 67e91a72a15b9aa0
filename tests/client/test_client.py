from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from phalanx.api.core import Pod
from phalanx.api.errors import Conflict, Expired, NotFound, ServerError, Timeout, TooManyRequests
from phalanx.api.kinds import POD
from phalanx.api.meta import Key
from phalanx.api.wire import (
    ANONYMOUS,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Object,
    Reply,
    Request,
    StreamReply,
)
from phalanx.client.client import LIST_PAGE_SIZE, MAX_RETRIES, Client
from phalanx.client.transports import InProcessTransport, Unreachable

from .conftest import run
from .fake_api import CONNECTION_LOST, FakeApi, pod, reply, status_reply

A = Key("default", "a")
PATH = "/api/v1/namespaces/default/pods"


class ScriptedServer:
    """Returns its replies in turn, the last one repeatedly, and records the requests."""

    def __init__(self, *replies: Reply | StreamReply) -> None:
        self.replies, self.requests = list(replies), list[Request]()
        self.client = Client(InProcessTransport(self.handle, ANONYMOUS))

    async def handle(self, request: Request) -> Reply | StreamReply:
        self.requests.append(request)
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


def with_pods(api: FakeApi, count: int) -> FakeApi:
    for number in range(count):
        api.put(f"pod-{number:04}")
    return api


def client_of(api: FakeApi) -> Client:
    return Client(InProcessTransport(api.handle, ANONYMOUS))


def test_brief_writes_return_only_what_identifies_the_version() -> None:
    server = ScriptedServer(reply(pod("a", 5, node="n")))
    created = run(server.client.create(POD, pod("a", 5), brief=True))
    patched = run(server.client.patch(POD, A, {}, brief=True))
    meta = {"namespace": "default", "name": "a", "resourceVersion": "5"}
    for written in (created, patched):
        assert meta.items() <= written["metadata"].items()
        assert written.keys() <= {"apiVersion", "kind", "metadata"}
    assert run(server.client.create(POD, pod("a", 5))) == pod("a", 5, node="n")


def test_get_returns_a_struct_or_a_dict() -> None:
    server = ScriptedServer(reply(pod("a", 5, node="n")))
    found: Pod = run(server.client.get(POD, A, Pod))
    as_dict: Object = run(server.client.get(POD, A))
    assert (found.metadata.key, found.occupied_node) == (A, "n")
    assert as_dict == pod("a", 5, node="n")
    assert server.requests[0].path == f"{PATH}/a"


def test_get_of_a_missing_object_raises_not_found() -> None:
    with pytest.raises(NotFound, match='pods "a" not found'):
        run(ScriptedServer(status_reply(NotFound('pods "a" not found'))).client.get(POD, A, Pod))


def test_create_posts_to_the_namespace_and_update_puts_to_the_name() -> None:
    server = ScriptedServer(reply(pod("a", 5)))
    assert run(server.client.create(POD, pod("a", 0))) == pod("a", 5)
    run(server.client.update(POD, pod("a", 5)))
    run(server.client.update(POD, pod("a", 5), subresource="status"))
    sent = [(request.method, request.path) for request in server.requests]
    assert sent == [("POST", PATH), ("PUT", f"{PATH}/a"), ("PUT", f"{PATH}/a/status")]
    assert server.requests[1].body == pod("a", 5)


def test_patch_is_a_merge_patch_unless_another_type_is_given() -> None:
    server = ScriptedServer(reply(pod("a", 6)))
    run(server.client.patch(POD, A, {"spec": {}}, subresource="status"))
    run(server.client.patch(POD, A, {"spec": {}}, content=STRATEGIC_PATCH))
    run(server.client.patch(POD, A, [{"op": "remove", "path": "/spec"}], content=JSON_PATCH))
    sent = [(request.headers["content-type"], request.body) for request in server.requests]
    assert sent == [
        (MERGE_PATCH, {"spec": {}}),
        (STRATEGIC_PATCH, {"spec": {}}),
        (JSON_PATCH, b'[{"op":"remove","path":"/spec"}]'),
    ]
    assert server.requests[0].path == f"{PATH}/a/status"


def test_delete_sends_its_preconditions() -> None:
    server = ScriptedServer(status_reply(Conflict("another uid")))
    with pytest.raises(Conflict):
        run(
            server.client.delete(
                POD,
                A,
                uid="u",
                version="7",
                grace=0,
                propagation="Background",
            )
        )
    assert server.requests[0].method == "DELETE"
    assert server.requests[0].body == {
        "kind": "DeleteOptions",
        "apiVersion": "v1",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "u", "resourceVersion": "7"},
        "propagationPolicy": "Background",
    }


def test_any_path_can_be_posted_to_and_read() -> None:
    server = ScriptedServer(reply({"status": "Success"}, 201), Reply(200, b"ok", "text/plain"))
    path = "/apis/phalanx.dev/v1alpha1/namespaces/default/groupbindings"
    assert run(server.client.post(path, {"bindings": []})) == {"status": "Success"}
    assert run(server.client.get_raw("/readyz?verbose=1")) == b"ok"
    assert (server.requests[0].method, server.requests[0].path) == ("POST", path)
    assert (server.requests[1].path, server.requests[1].query) == ("/readyz", "verbose=1")


def test_reading_a_failing_path_raises() -> None:
    with pytest.raises(ServerError):
        run(ScriptedServer(Reply(500, b"not ok")).client.get_raw("/readyz"))


def test_list_collects_the_pages_of_one_revision() -> None:
    api = with_pods(FakeApi(), 2 * LIST_PAGE_SIZE + 1)
    listing = run(client_of(api).list(POD, Pod, namespace="default", label_selector="x"))
    assert [found.metadata.name for found in listing.items] == sorted(api.pods)
    assert listing.revision == api.revision
    assert len(api.requests) == 3
    assert all("labelSelector=x&limit=500" in request.query for request in api.requests)
    assert {request.path for request in api.requests} == {PATH}


def test_pages_keep_one_revision_while_objects_change() -> None:
    async def scenario() -> None:
        api = with_pods(FakeApi(), 2 * LIST_PAGE_SIZE)
        before = sorted(api.pods)
        listing = asyncio.create_task(client_of(api).list(POD))
        await asyncio.sleep(0.015)
        api.remove("pod-0999")
        assert [found["metadata"]["name"] for found in (await listing).items] == before

    run(scenario())


def test_list_whose_pages_expire_is_repeated_without_pages() -> None:
    async def scenario() -> None:
        api = with_pods(FakeApi(), LIST_PAGE_SIZE + 1)
        listing = asyncio.create_task(client_of(api).list(POD, Pod))
        await asyncio.sleep(0.015)
        api.put("late")
        api.compact()
        found = await listing
        assert len(found.items) == LIST_PAGE_SIZE + 2
        assert found.revision == api.revision
        assert api.requests[-1].query == ""

    run(scenario())


def test_list_without_a_resource_version_is_an_error() -> None:
    with pytest.raises(ServerError, match="resourceVersion"):
        run(ScriptedServer(reply({"metadata": {}, "items": []})).client.list(POD))


def test_streamed_reply_to_a_plain_request_is_joined() -> None:
    async def scenario() -> Object:
        api = with_pods(FakeApi(), 1)
        stream = await api.handle(Request("GET", PATH, "watch=true&resourceVersion=1"))
        api.cut()
        return await ScriptedServer(stream).client.get(POD, A)

    assert run(scenario())["type"] == "ADDED"


@pytest.mark.parametrize("code", [429, 503])
def test_request_is_retried_after_the_retry_after_of_a_busy_server(code: int) -> None:
    async def scenario() -> None:
        server = ScriptedServer(reply({}, code, Retry_After="2"), reply(pod("a", 5)))
        start = asyncio.get_running_loop().time()
        await server.client.get(POD, A, Pod)
        assert asyncio.get_running_loop().time() - start == pytest.approx(2)
        assert len(server.requests) == 2

    run(scenario())


def test_retries_of_a_busy_server_are_bounded() -> None:
    server = ScriptedServer(status_reply(TooManyRequests("busy"), Retry_After="1"))
    with pytest.raises(TooManyRequests):
        run(server.client.get(POD, A, Pod))
    assert len(server.requests) == MAX_RETRIES + 1


def test_other_failures_are_not_retried() -> None:
    api = FakeApi()
    api.failures = [CONNECTION_LOST]
    with pytest.raises(Unreachable):
        run(client_of(api).list(POD))
    assert len(api.requests) == 1


def test_watch_yields_events_until_the_server_ends_it() -> None:
    async def scenario() -> list[tuple[str, str, int]]:
        api = with_pods(FakeApi(), 2)
        events = []
        async for event in client_of(api).watch(POD, Pod, since=1, field_selector="x=y"):
            events.append((event.type, event.object.metadata.name, event.revision))
            if event.revision == 3:
                api.remove("pod-0000")
                api.cut()
        assert "fieldSelector=x%3Dy&resourceVersion=1" in api.requests[0].query
        return events

    assert run(scenario()) == [
        ("ADDED", "pod-0000", 2),
        ("ADDED", "pod-0001", 3),
        ("DELETED", "pod-0000", 4),
    ]


def test_closing_a_watch_ends_it_on_the_server() -> None:
    async def scenario() -> None:
        api = with_pods(FakeApi(), 1)
        async with aclosing(client_of(api).watch(POD, since=1)) as events:
            assert (await anext(events)).object["metadata"]["name"] == "pod-0000"
            assert api.open_watches == 1
        assert api.open_watches == 0

    run(scenario())


def test_watch_from_a_compacted_revision_expires_and_from_a_future_one_times_out() -> None:
    async def scenario(since: int) -> None:
        api = with_pods(FakeApi(), 3)
        api.compact()
        async for _ in client_of(api).watch(POD, since=since):
            pass

    with pytest.raises(Expired):
        run(scenario(1))
    with pytest.raises(Timeout):
        run(scenario(99))


def test_closing_the_client_closes_its_transport() -> None:
    class Closing(InProcessTransport):
        closed = False

        async def close(self) -> None:
            self.closed = True

    transport = Closing(FakeApi().handle, ANONYMOUS)
    run(Client(transport).close())
    assert transport.closed
