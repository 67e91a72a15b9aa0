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
from .fake_api import LOST, FakeApi, pod, refused, reply

A = Key("default", "a")
PATH = "/api/v1/namespaces/default/pods"


class Script:
    """Gives its answers in turn, and the last one for ever; keeps the questions."""

    def __init__(self, *answers: Reply | StreamReply) -> None:
        self.answers, self.requests = list(answers), list[Request]()
        self.client = Client(InProcessTransport(self.handle, ANONYMOUS))

    async def handle(self, request: Request) -> Reply | StreamReply:
        self.requests.append(request)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def full(api: FakeApi, count: int) -> FakeApi:
    for number in range(count):
        api.put(f"pod-{number:04}")
    return api


def client_of(api: FakeApi) -> Client:
    return Client(InProcessTransport(api.handle, ANONYMOUS))


def test_an_object_is_got_as_a_struct_or_as_a_dict() -> None:
    script = Script(reply(pod("a", 5, node="n")))
    found: Pod = run(script.client.get(POD, A, Pod))
    plain: Object = run(script.client.get(POD, A))
    assert (found.metadata.key, found.occupied_node) == (A, "n")
    assert plain == pod("a", 5, node="n")
    assert script.requests[0].path == f"{PATH}/a"


def test_what_is_not_there_is_not_found() -> None:
    with pytest.raises(NotFound, match='pods "a" not found'):
        run(Script(refused(NotFound('pods "a" not found'))).client.get(POD, A, Pod))


def test_an_object_is_created_in_its_namespace_and_updated_under_its_name() -> None:
    script = Script(reply(pod("a", 5)))
    assert run(script.client.create(POD, pod("a", 0))) == pod("a", 5)
    run(script.client.update(POD, pod("a", 5)))
    run(script.client.update(POD, pod("a", 5), subresource="status"))
    asked = [(request.method, request.path) for request in script.requests]
    assert asked == [("POST", PATH), ("PUT", f"{PATH}/a"), ("PUT", f"{PATH}/a/status")]
    assert script.requests[1].body == pod("a", 5)


def test_a_patch_merges_unless_another_sort_is_chosen() -> None:
    script = Script(reply(pod("a", 6)))
    run(script.client.patch(POD, A, {"spec": {}}, subresource="status"))
    run(script.client.patch(POD, A, {"spec": {}}, content=STRATEGIC_PATCH))
    run(script.client.patch(POD, A, [{"op": "remove", "path": "/spec"}], content=JSON_PATCH))
    sent = [(request.headers["content-type"], request.body) for request in script.requests]
    assert sent == [
        (MERGE_PATCH, {"spec": {}}),
        (STRATEGIC_PATCH, {"spec": {}}),
        (JSON_PATCH, b'[{"op":"remove","path":"/spec"}]'),
    ]
    assert script.requests[0].path == f"{PATH}/a/status"


def test_a_deletion_carries_its_preconditions() -> None:
    script = Script(refused(Conflict("another uid")))
    with pytest.raises(Conflict):
        run(script.client.delete(POD, A, uid="u", version="7", grace=0, propagation="Background"))
    assert script.requests[0].method == "DELETE"
    assert script.requests[0].body == {
        "kind": "DeleteOptions",
        "apiVersion": "v1",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "u", "resourceVersion": "7"},
        "propagationPolicy": "Background",
    }


def test_an_object_can_be_posted_to_any_path_and_any_path_be_read() -> None:
    script = Script(reply({"status": "Success"}, 201), Reply(200, b"ok", "text/plain"))
    path = "/apis/phalanx.dev/v1alpha1/namespaces/default/groupbindings"
    assert run(script.client.post(path, {"bindings": []})) == {"status": "Success"}
    assert run(script.client.get_raw("/readyz?verbose=1")) == b"ok"
    assert (script.requests[0].method, script.requests[0].path) == ("POST", path)
    assert (script.requests[1].path, script.requests[1].query) == ("/readyz", "verbose=1")


def test_a_path_that_is_refused_raises() -> None:
    with pytest.raises(ServerError):
        run(Script(Reply(500, b"not ok")).client.get_raw("/readyz"))


def test_a_list_is_gathered_from_pages_of_one_revision() -> None:
    api = full(FakeApi(), 2 * LIST_PAGE_SIZE + 1)
    listing = run(client_of(api).list(POD, Pod, namespace="default", label_selector="x"))
    assert [found.metadata.name for found in listing.items] == sorted(api.pods)
    assert listing.revision == api.revision
    assert len(api.requests) == 3
    assert all("labelSelector=x&limit=500" in request.query for request in api.requests)
    assert {request.path for request in api.requests} == {PATH}


def test_pages_do_not_mix_revisions_when_the_server_moves_on() -> None:
    async def scenario() -> None:
        api = full(FakeApi(), 2 * LIST_PAGE_SIZE)
        before = sorted(api.pods)
        listing = asyncio.create_task(client_of(api).list(POD))
        await asyncio.sleep(0.015)
        api.remove("pod-0999")
        assert [found["metadata"]["name"] for found in (await listing).items] == before

    run(scenario())


def test_a_list_whose_pages_expire_is_taken_at_once() -> None:
    async def scenario() -> None:
        api = full(FakeApi(), LIST_PAGE_SIZE + 1)
        listing = asyncio.create_task(client_of(api).list(POD, Pod))
        await asyncio.sleep(0.015)
        api.put("late")
        api.compact()
        found = await listing
        assert len(found.items) == LIST_PAGE_SIZE + 2
        assert found.revision == api.revision
        assert api.requests[-1].query == ""

    run(scenario())


def test_a_list_without_a_revision_is_not_believed() -> None:
    with pytest.raises(ServerError, match="resourceVersion"):
        run(Script(reply({"metadata": {}, "items": []})).client.list(POD))


def test_an_answer_in_pieces_is_put_together_where_one_is_expected() -> None:
    async def scenario() -> Object:
        api = full(FakeApi(), 1)
        stream = await api.handle(Request("GET", PATH, "watch=true&resourceVersion=1"))
        api.cut()
        return await Script(stream).client.get(POD, A)

    assert run(scenario())["type"] == "ADDED"


@pytest.mark.parametrize("code", [429, 503])
def test_a_busy_server_is_asked_again_after_the_time_it_wants(code: int) -> None:
    async def scenario() -> None:
        script = Script(reply({}, code, Retry_After="2"), reply(pod("a", 5)))
        start = asyncio.get_running_loop().time()
        await script.client.get(POD, A, Pod)
        assert asyncio.get_running_loop().time() - start == pytest.approx(2)
        assert len(script.requests) == 2

    run(scenario())


def test_patience_with_a_busy_server_ends() -> None:
    script = Script(refused(TooManyRequests("busy"), Retry_After="1"))
    with pytest.raises(TooManyRequests):
        run(script.client.get(POD, A, Pod))
    assert len(script.requests) == MAX_RETRIES + 1


def test_nothing_else_is_tried_twice() -> None:
    api = FakeApi()
    api.troubles = [LOST]
    with pytest.raises(Unreachable):
        run(client_of(api).list(POD))
    assert len(api.requests) == 1


def test_a_watch_gives_events_until_the_server_ends_it() -> None:
    async def scenario() -> list[tuple[str, str, int]]:
        api = full(FakeApi(), 2)
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
        api = full(FakeApi(), 1)
        async with aclosing(client_of(api).watch(POD, since=1)) as events:
            assert (await anext(events)).object["metadata"]["name"] == "pod-0000"
            assert api.watched == 1
        assert api.watched == 0

    run(scenario())


def test_a_watch_from_the_forgotten_past_expires_and_one_from_the_future_times_out() -> None:
    async def scenario(since: int) -> None:
        api = full(FakeApi(), 3)
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
