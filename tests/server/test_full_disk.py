"""A server whose store fails, on a real file."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from phalanx.api.kinds import CONFIG_MAP
from phalanx.api.wire import Reply, Request
from phalanx.clock import WallClock
from phalanx.randomness import SeededRandom
from phalanx.server.app import Server
from phalanx.server.security.authorization import ADMIN
from phalanx.store.kv import StoreFailed
from phalanx.store.sqlite import SqliteStore
from tests.server.api import read
from tests.store.sqlite_stores import in_real_time
from tests.store.test_sqlite_errors import small_files


@in_real_time
async def test_a_write_to_a_full_disk_is_refused_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alarms: list[StoreFailed] = []
    store = SqliteStore(tmp_path, on_failure=alarms.append)
    server = Server(store, WallClock(), SeededRandom(1))
    await server.start()
    body = b'{"metadata":{"generateName":"a"},"data":{"d":"%s"}}' % (b"x" * 50_000)
    create = Request("POST", CONFIG_MAP.url_path("default"), "", {}, body, ADMIN)
    with small_files(400_000), caplog.at_level(logging.WARNING):
        answers = [await server.handle(create) for _ in range(20)]
    assert all(isinstance(answer, Reply) for answer in answers)
    last = read(answers[-1]) if isinstance(answers[-1], Reply) else None
    assert last
    assert (last.code, last.body["reason"]) == (500, "InternalError")
    assert "the store stopped: disk I/O error" in last.body["message"]
    assert (len(alarms), caplog.messages) == (1, ["store failed"])
    await store.close()
