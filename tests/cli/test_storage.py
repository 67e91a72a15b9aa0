"""The options of `phalanx up` about its store, and `phalanx restore`."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import click
import pytest
import yaml

from phalanx.cli.options import parse_duration
from phalanx.store.database_file import HighWaterMark
from phalanx.store.sqlite import SqliteStore
from tests.cli.commands import WAIT_LIMIT, Kubectl, first_line, phalanx, start_up
from tests.store.writes import put


def data_directory(folder: Path, acknowledged: int) -> str:
    """A data directory whose store has one revision, of which so many were acknowledged."""

    async def fill() -> None:
        store = SqliteStore(folder)
        await store.commit([put("/a", "x")])
        await store.close()

    asyncio.run(fill())
    mark = HighWaterMark(folder)
    mark.advance(acknowledged)
    mark.close()
    return str(folder)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1h", 3600), ("1h30m", 5400), ("90s", 90), ("1.5m", 90), ("250ms", 0.25), ("0", 0)],
)
def test_durations_are_those_of_go(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "1", "h", "-1h", "1h 30m", "1d", "an hour"])
def test_other_durations_are_invalid(text: str) -> None:
    with pytest.raises(click.BadParameter, match=f'invalid duration "{text}"'):
        parse_duration(text)


def test_invalid_event_ttl_is_wrong_usage() -> None:
    done = phalanx("up", "--data", ":memory:", "--event-ttl", "soon")
    assert done.returncode == 2
    assert 'invalid duration "soon"; use for example 90s, 30m or 1h30m' in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl watches the event")
def test_events_expire_while_the_api_server_runs_alone(tmp_path: Path) -> None:
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "a"},
    }
    config = tmp_path / "kubeconfig"
    options = ("--data", ":memory:", "--kubeconfig", str(config), "--event-ttl", "1s")
    with start_up(*options, "--without", "scheduler,controllers,nodes") as process:
        assert first_line(process).startswith("ready ")
        kubectl = Kubectl(config, "default", tmp_path)
        kubectl("create", "-f", "-", text=yaml.safe_dump(event))
        kubectl("wait", "--for=delete", "event/e", WAIT_LIMIT)


def test_up_refuses_a_store_that_lost_writes(tmp_path: Path) -> None:
    data = data_directory(tmp_path / "data", acknowledged=5000)
    done = phalanx("up", "--data", data, "--nodes", "0", "--listen", "127.0.0.1:0")
    assert done.returncode == 1
    assert "ends at revision 1, but revision 5000 was acknowledged" in done.stderr
    assert "phalanx up --accept-data-loss" in done.stderr


@pytest.mark.slow
def test_up_continues_after_a_loss_that_is_accepted(tmp_path: Path) -> None:
    data = data_directory(tmp_path / "data", acknowledged=5000)
    options = ("--data", data, "--nodes", "0", "--without", "scheduler,controllers,nodes")
    with start_up(*options, "--accept-data-loss") as process:
        assert first_line(process).startswith("ready ")
    assert HighWaterMark(tmp_path / "data").read() > 5000
    with start_up(*options) as process:
        assert first_line(process).startswith("ready ")


def test_restore_prints_where_the_former_store_is(tmp_path: Path) -> None:
    data = data_directory(tmp_path / "data", acknowledged=1)
    assert phalanx("backup", str(tmp_path / "copy"), "--data", data).returncode == 0
    done = phalanx("restore", str(tmp_path / "copy"), "--data", data, "--replace")
    assert done.returncode == 0
    assert f"the former store is {data}/store.db.before, until the next restore" in done.stdout
    assert (tmp_path / "data" / "store.db.before").exists()
