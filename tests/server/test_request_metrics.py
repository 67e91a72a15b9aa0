from __future__ import annotations

import re

import pytest

from phalanx.api.kinds import POD, SERVICE
from phalanx.api.wire import APPLY_PATCH, Request, StreamReply, UserInfo
from phalanx.server.app import REQUEST_SECONDS, REQUEST_TOTAL
from phalanx.server.security.authorization import ADMIN
from tests.builders import in_virtual_time, pod
from tests.server.api import Api

PODS = POD.url_path("default")


async def series(api: Api, name: str) -> dict[str, float]:
    """The series of a metric in `/metrics`."""
    text = (await api.ask("GET", "/metrics")).text.decode()
    found = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE)
    return {labels: float(number) for labels, number in found}


def request(verb: str, scope: str, code: int, *, dry_run: str = "", subresource: str = "") -> str:
    return (
        f'verb="{verb}",dry_run="{dry_run}",group="",version="v1",resource="pods",'
        f'subresource="{subresource}",scope="{scope}",component="apiserver",code="{code}"'
    )


@in_virtual_time
async def test_requests_are_counted_by_verb_resource_and_code() -> None:
    api = await Api.start()
    await api.create(POD, pod("a"), pod("b"))
    await api.ask("POST", PODS, pod("a"))
    await api.ask("POST", PODS, pod("c"), query={"dryRun": "All"})
    await api.ask("GET", PODS)
    await api.ask("GET", POD.url_path())
    await api.get(POD, "a")
    await api.patch(POD, "a", {"metadata": {"labels": {"x": "y"}}})
    await api.patch(POD, "a", {"status": {"message": "hi"}}, part="status")
    await api.ask("DELETE", POD.url_path("default", "missing"))
    assert await series(api, REQUEST_TOTAL.name) == {
        request("POST", "namespace", 201): 2,
        request("POST", "namespace", 409): 1,
        request("POST", "namespace", 201, dry_run="All"): 1,
        request("LIST", "namespace", 200): 1,
        request("LIST", "cluster", 200): 1,
        request("GET", "resource", 200): 1,
        request("PATCH", "resource", 200): 1,
        request("PATCH", "resource", 200, subresource="status"): 1,
        request("DELETE", "resource", 404): 1,
    }


@in_virtual_time
async def test_apply_is_its_own_verb() -> None:
    api = await Api.start()
    await api.ask(
        "PATCH", POD.url_path("default", "a"), pod("a"), headers={"content-type": APPLY_PATCH},
        query={"fieldManager": "me"},
    )  # fmt: skip
    assert await series(api, REQUEST_TOTAL.name) == {request("APPLY", "resource", 201): 1}


@in_virtual_time
async def test_forbidden_requests_are_counted() -> None:
    api = await Api.start()
    await api.ask("GET", PODS, user=UserInfo("joe", ()))
    assert await series(api, REQUEST_TOTAL.name) == {request("LIST", "namespace", 403): 1}


@in_virtual_time
async def test_internal_errors_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    api = await Api.start()
    monkeypatch.setattr(api.store, "get", lambda key: 1 / 0)
    assert (await api.ask("GET", POD.url_path("default", "a"))).code == 500
    monkeypatch.undo()
    assert await series(api, REQUEST_TOTAL.name) == {request("GET", "resource", 500): 1}


@in_virtual_time
async def test_the_latency_of_requests_is_measured_except_for_watches() -> None:
    api = await Api.start()
    await api.create(POD, pod("a"))
    stream = await api.server.handle(
        Request("GET", SERVICE.url_path("default"), "watch=1", user=ADMIN)
    )
    assert isinstance(stream, StreamReply)
    counts = await series(api, f"{REQUEST_SECONDS.name}_count")
    assert [labels.split(",")[0] for labels in counts] == ['verb="POST"']
    assert list(counts.values()) == [1]
    await stream.chunks.aclose()


@in_virtual_time
async def test_open_watches_are_counted() -> None:
    api = await Api.start()
    assert await series(api, "apiserver_longrunning_requests") == {'verb="WATCH"': 0}
    await api.create(POD, pod("a"))
    watching = api.chunks(POD)
    await anext(watching)
    assert await series(api, "apiserver_longrunning_requests") == {'verb="WATCH"': 1}
    await watching.aclose()


@in_virtual_time
async def test_requests_to_other_paths_are_not_counted() -> None:
    api = await Api.start()
    await api.ask("GET", "/healthz")
    await api.ask("GET", "/apis")
    assert await series(api, REQUEST_TOTAL.name) == {}
