from __future__ import annotations

import re

import pytest

from phalanx.api.kinds import POD, SERVICE
from phalanx.api.wire import APPLY_PATCH, Request, StreamReply, UserInfo
from phalanx.server.request_metrics import REQUEST_SECONDS, REQUEST_TOTAL
from phalanx.server.security.authorization import ADMIN
from tests.builders import in_virtual_time, pod
from tests.server.api import Api

PODS = POD.url_path("default")


async def told(api: Api, name: str) -> dict[str, float]:
    """The series of a name, as `/metrics` tells them."""
    text = (await api.ask("GET", "/metrics")).text.decode()
    found = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE)
    return {labels: float(number) for labels, number in found}


def asked(verb: str, scope: str, code: int, *, dry_run: str = "", subresource: str = "") -> str:
    return (
        f'verb="{verb}",dry_run="{dry_run}",group="",version="v1",resource="pods",'
        f'subresource="{subresource}",scope="{scope}",component="apiserver",code="{code}"'
    )


@in_virtual_time
async def test_requests_are_counted_by_what_they_ask_and_how_they_end() -> None:
    api = await Api.start()
    await api.create(POD, pod("a"), pod("b"))
    await api.ask("POST", PODS, pod("a"))
    await api.ask("POST", PODS, pod("c"), query={"dryRun": "All"})
    await api.ask("GET", PODS)
    await api.ask("GET", POD.url_path())
    await api.get(POD, "a")
    await api.patch(POD, "a", {"metadata": {"labels": {"x": "y"}}})
    await api.patch(POD, "a", {"status": {"message": "hi"}}, part="status")
    await api.ask("DELETE", POD.url_path("default", "nobody"))
    assert await told(api, REQUEST_TOTAL.name) == {
        asked("POST", "namespace", 201): 2,
        asked("POST", "namespace", 409): 1,
        asked("POST", "namespace", 201, dry_run="All"): 1,
        asked("LIST", "namespace", 200): 1,
        asked("LIST", "cluster", 200): 1,
        asked("GET", "resource", 200): 1,
        asked("PATCH", "resource", 200): 1,
        asked("PATCH", "resource", 200, subresource="status"): 1,
        asked("DELETE", "resource", 404): 1,
    }


@in_virtual_time
async def test_to_apply_is_a_verb_of_its_own() -> None:
    api = await Api.start()
    await api.ask(
        "PATCH", POD.url_path("default", "a"), pod("a"), headers={"content-type": APPLY_PATCH},
        query={"fieldManager": "me"},
    )  # fmt: skip
    assert await told(api, REQUEST_TOTAL.name) == {asked("APPLY", "resource", 201): 1}


@in_virtual_time
async def test_who_may_not_ask_is_counted_too() -> None:
    api = await Api.start()
    await api.ask("GET", PODS, user=UserInfo("nobody", ()))
    assert await told(api, REQUEST_TOTAL.name) == {asked("LIST", "namespace", 403): 1}


@in_virtual_time
async def test_a_bug_of_ours_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    api = await Api.start()
    monkeypatch.setattr(api.store, "get", lambda key: 1 / 0)
    assert (await api.ask("GET", POD.url_path("default", "a"))).code == 500
    monkeypatch.undo()
    assert await told(api, REQUEST_TOTAL.name) == {asked("GET", "resource", 500): 1}


@in_virtual_time
async def test_the_seconds_of_requests_are_told_but_not_those_of_watches() -> None:
    api = await Api.start()
    await api.create(POD, pod("a"))
    stream = await api.server.handle(
        Request("GET", SERVICE.url_path("default"), "watch=1", user=ADMIN)
    )
    assert isinstance(stream, StreamReply)
    counts = await told(api, f"{REQUEST_SECONDS.name}_count")
    assert [labels.split(",")[0] for labels in counts] == ['verb="POST"']
    assert list(counts.values()) == [1]
    await stream.chunks.aclose()


@in_virtual_time
async def test_open_watches_are_counted() -> None:
    api = await Api.start()
    assert await told(api, "apiserver_longrunning_requests") == {'verb="WATCH"': 0}
    await api.create(POD, pod("a"))
    watching = api.chunks(POD)
    await anext(watching)
    assert await told(api, "apiserver_longrunning_requests") == {'verb="WATCH"': 1}
    await watching.aclose()


@in_virtual_time
async def test_what_is_not_about_objects_is_not_counted() -> None:
    api = await Api.start()
    await api.ask("GET", "/healthz")
    await api.ask("GET", "/apis")
    assert await told(api, REQUEST_TOTAL.name) == {}
