"""The log lines of the server: failures, refusals, overruns, the listener."""

from __future__ import annotations

import asyncio
import logging

import pytest

from phalanx.api.errors import ServerError
from phalanx.api.kinds import CONFIG_MAP, POD
from phalanx.api.wire import Reply, Request, UserInfo
from phalanx.server import watches
from phalanx.server.security.request_guard import PriorityLevels
from phalanx.store.kv import StoreClosed, StoreFailed
from tests.builders import in_virtual_time
from tests.recording_log import LogLine, captured_lines
from tests.server.api import Api
from tests.server.http_peers import GET, ServerNetwork, on_network
from tests.server.quota_fixtures import config_map


@pytest.fixture(autouse=True)
def _debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "phalanx.server")


def lines(caplog: pytest.LogCaptureFixture) -> list[LogLine]:
    return captured_lines(caplog, "server")


async def fail_commits(api: Api, error: Exception) -> None:
    """Let every commit of a server fail."""

    async def commit(writes: object) -> None:
        raise error

    api.store.commit = commit  # type: ignore[assignment]


@in_virtual_time
async def test_a_bug_is_logged_with_its_traceback_and_audit_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api = await Api.start()
    await fail_commits(api, RuntimeError("a bug"))
    answer = await api.ask("POST", CONFIG_MAP.url_path("default"), config_map("a"))
    assert (answer.code, answer.body["message"]) == (500, "internal error; see the server log")
    (line,) = lines(caplog)
    assert (line.level, line.message) == ("ERROR", "request failed")
    assert line.fields["path"] == CONFIG_MAP.url_path("default")
    assert answer.header_values("audit-id") == [line.fields["audit_id"]]
    assert "RuntimeError: a bug" in caplog.text


@in_virtual_time
async def test_an_error_of_the_server_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api = await Api.start()
    await fail_commits(api, ServerError("out of order"))
    assert (await api.ask("POST", CONFIG_MAP.url_path("default"), config_map("a"))).code == 500
    (line,) = lines(caplog)
    assert (line.level, line.message, line.fields["code"]) == ("ERROR", "request failed", "500")
    assert "Traceback" in caplog.text


@in_virtual_time
async def test_a_timeout_is_a_warning_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    api = await Api.start()
    query = {"resourceVersion": api.store.revision + 100}
    assert (await api.ask("GET", POD.url_path("default"), query=query)).code == 504
    (line,) = lines(caplog)
    assert (line.level, line.message) == ("WARNING", "request timed out")
    assert "Traceback" not in caplog.text


@in_virtual_time
async def test_a_store_failure_is_one_error(caplog: pytest.LogCaptureFixture) -> None:
    api = await Api.start()
    await fail_commits(api, StoreFailed("the store stopped: disk full"))
    for _ in range(3):
        assert (await api.ask("POST", CONFIG_MAP.url_path("default"), config_map("a"))).code == 500
    found = [(line.level, line.message) for line in lines(caplog)]
    assert found == [("ERROR", "store failed"), *[("DEBUG", "store failed")] * 2]
    assert lines(caplog)[0].fields["error"] == "the store stopped: disk full"


@in_virtual_time
async def test_a_write_while_the_server_stops_is_refused_without_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api = await Api.start()
    await fail_commits(api, StoreClosed("the store is closed"))
    answer = await api.ask("POST", CONFIG_MAP.url_path("default"), config_map("a"))
    assert (answer.code, answer.body["reason"]) == (503, "ServiceUnavailable")
    assert [(line.level, line.message) for line in lines(caplog)] == [("DEBUG", "request refused")]


@in_virtual_time
async def test_a_refused_request_is_a_debug_line(caplog: pytest.LogCaptureFixture) -> None:
    api = await Api.start()
    api.server.priority_levels = PriorityLevels(reads=0)
    user = UserInfo("joe", ("system:authenticated",))
    api.server.access.authorize = lambda *_: None  # type: ignore[method-assign]
    assert (await api.ask("GET", POD.url_path("default"), user=user)).code == 429
    (line,) = lines(caplog)
    assert (line.level, line.message, line.fields["user"]) == ("DEBUG", "request refused", "joe")


@in_virtual_time
async def test_a_client_error_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    api = await Api.start()
    assert (await api.ask("GET", POD.url_path("default", "none"))).code == 404
    assert (await api.ask("POST", POD.url_path("default"), b"{")).code == 400
    assert lines(caplog) == []


@in_virtual_time
async def test_an_overrun_of_a_watch_buffer_is_a_debug_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "BUFFER_BYTES", 100)
    api = await Api.start()
    chunks = api.chunks(CONFIG_MAP, since=api.store.revision)
    waiting = asyncio.ensure_future(anext(chunks))
    await asyncio.sleep(0.1)
    await api.create(CONFIG_MAP, config_map("a"))
    assert b"ADDED" in await waiting
    (line,) = lines(caplog)
    assert (line.level, line.message) == ("DEBUG", "watch buffer overrun")
    assert line.fields["revision"] == str(api.store.revision)
    await chunks.aclose()


@on_network
async def test_the_listener_logs_its_start_and_stop(
    net: ServerNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(request: Request) -> Reply:
        return Reply(200, b"{}")

    async with net.serving(handle):
        assert (await net.ask(GET)).code == 200
    address = f"127.0.0.1:{net.port}"
    assert [(line.level, line.message, line.fields["address"]) for line in lines(caplog)] == [
        ("INFO", "listener started", address),
        ("INFO", "listener stopped", address),
    ]
