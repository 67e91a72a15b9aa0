"""Files that may hold secrets are created for their owner only, whatever the umask."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from phalanx import logs
from phalanx.cli.debug import debug_command
from phalanx.cli.user_kubeconfig import BACKUP_SUFFIX, merge_cluster
from phalanx.client import kubeconfig
from phalanx.controllers.scheduling.decision_log import DecisionLogFile
from phalanx.scheduler.queue.decision_log import FORMAT, LogStarted
from phalanx.server.security.audit import AuditFile
from phalanx.server.security.private_files import write_private
from phalanx.store.backup import backup
from phalanx.store.sqlite import SqliteStore


def write_bundle(file: Path) -> None:
    args = [str(file), "--kubeconfig", str(file.parent / "none"), "--data", str(file.parent)]
    assert CliRunner().invoke(debug_command, args).exit_code == 0


def write_log(file: Path) -> None:
    handler = logs.SharedFileHandler(file, max_bytes=1)
    for _ in range(3):
        handler.emit(logging.makeLogRecord({"msg": "a line"}))
    handler.close()
    assert file.with_name("file.2").exists()


def write_decisions(file: Path) -> None:
    DecisionLogFile(file).write([LogStarted(0.0, FORMAT, "1", ())])


def merge_kubeconfig(file: Path) -> None:
    kubeconfig.write(file, "https://x", "", token="t")
    merge_cluster(file, file, "other")
    assert file.with_name(f"file{BACKUP_SUFFIX}").exists()


def write_backup(file: Path) -> None:
    data = file.with_name("data")
    data.mkdir(mode=0o700)

    async def create_store() -> None:
        await SqliteStore(data).close()

    asyncio.run(create_store())
    backup(data, file)


WRITERS: dict[str, Callable[[Path], object]] = {
    "bundle": write_bundle,
    "log": write_log,
    "decision log": write_decisions,
    "audit log": lambda file: AuditFile(file).append([b"{}\n"]),
    "kubeconfig": lambda file: kubeconfig.write(file, "https://x", "", token="t"),
    "merged kubeconfig": merge_kubeconfig,
    "keys and tokens": lambda file: write_private(file, b"key"),
    "backup": write_backup,
}


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("name", WRITERS)
def test_files_with_secrets_are_created_for_their_owner_only(
    name: str, tmp_path: Path, open_umask: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("the mode must be right from the beginning")

    monkeypatch.setattr(os, "chmod", refuse)
    monkeypatch.setattr(os, "fchmod", refuse)
    folder = tmp_path / "folder"
    folder.mkdir()
    WRITERS[name](folder / "file")
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {"0o600"}
