from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from phalanx.store.database_file import DATABASE_FILE, connect
from phalanx.store.sqlite import SqliteStore
from tests.store.crash_writer import (
    BROKEN,
    LANDED,
    REFUSED,
    expected,
    stored_values,
    transaction_count,
)
from tests.store.writes import put

ROOT = Path(__file__).parents[2]

needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="strace injects the faults")

#: The long programme is cut into so many parts, which tell how far it is.
PARTS = 8

#: Statements before which a process dies, and the how manieth of them it is.
POINTS = [
    *(("COMMIT", nth) for nth in (1, 2, 3, 7, 20, 55)),
    *((LANDED, nth) for nth in (1, 2, 9, 40)),
    ("BEGIN", 12), ("INSERT INTO log", 5), ("INSERT INTO value", 30),
    ("DELETE FROM value", 1), ("DELETE FROM log", 4), ("UPDATE meta", 3),
    ("PRAGMA wal_checkpoint", 1), ("PRAGMA wal_checkpoint", 2),
    ("PRAGMA incremental_vacuum", 1), ("PRAGMA incremental_vacuum", 2),
]  # fmt: skip


def killed(
    folder: Path, words: str, nth: int, acknowledged: int = 0, under: Sequence[str] = ()
) -> tuple[int, int, int]:
    """Run a writer until it dies, at latest after so many acknowledgements (0: any number).

    Gives the last transaction and revision that it acknowledged, and its exit code.
    """
    command = [*under, sys.executable, "-m", "tests.store.crash_writer", str(folder), words]
    lines: list[bytes] = []
    with subprocess.Popen([*command, str(nth)], stdout=subprocess.PIPE, cwd=ROOT) as writer:
        assert writer.stdout
        for line in writer.stdout:
            lines.append(line)
            if len(lines) == acknowledged:
                writer.kill()
                break
        lines += writer.stdout.readlines()
    whole = [line.split() for line in lines if line.endswith(b"\n")]
    last = max(((int(n), int(revision)) for n, revision in whole), default=(0, 0))
    return *last, writer.returncode


async def examine(folder: Path, acknowledged: int, revision: int) -> int:
    """Open what a dead process left and check all of it; gives the transactions that are there."""
    store = SqliteStore(folder)
    transactions = transaction_count(store)
    assert transactions >= acknowledged
    assert store.revision >= revision
    assert stored_values(store) == expected(transactions)
    history = [change.revision for change in store.changes(store.compacted_revision)]
    assert history == list(range(store.compacted_revision + 1, store.revision + 1))
    before = store.revision
    (change,) = await store.commit([put("/after", "x")])
    await store.commit([put("/after", "x", change.revision)._replace(encode=None)])
    assert change.revision == before + 1
    await store.close()
    with closing(connect(folder / DATABASE_FILE)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    return transactions


@pytest.mark.mostly_slow(quick_every=3)
@pytest.mark.parametrize(("words", "nth"), POINTS, ids=[f"{w} {n}" for w, n in POINTS])
def test_acknowledged_writes_survive_a_process_exit(tmp_path: Path, words: str, nth: int) -> None:
    transactions, revision, code = killed(tmp_path, words, nth)
    assert code == -signal.SIGKILL
    asyncio.run(examine(tmp_path, transactions, revision))


@pytest.mark.parametrize("acknowledged", [1, 10, 100])
def test_acknowledged_writes_survive_kill_9(tmp_path: Path, acknowledged: int) -> None:
    transactions, revision, _ = killed(tmp_path, "", 0, acknowledged)
    assert transactions >= acknowledged
    asyncio.run(examine(tmp_path, transactions, revision))


def test_store_survives_repeated_crashes(tmp_path: Path) -> None:
    there = 0
    for nth in (3, 2, 4, 2, 3):
        transactions, revision, _ = killed(tmp_path, "COMMIT", nth)
        there_now = asyncio.run(examine(tmp_path, transactions, revision))
        assert there_now >= there
        there = there_now
    assert there


@pytest.mark.soak
def test_3000_writes_survive_a_crash_at_every_commit(tmp_path: Path) -> None:
    """Each process lives for one commit, and dies right after it or right before the next one."""
    for run in count():
        words, nth = (("COMMIT", 2), (LANDED, 1))[run % 2]
        transactions, revision, _ = killed(tmp_path, words, nth)
        asyncio.run(examine(tmp_path, transactions, revision))
        if revision >= 3000:
            return


class Strike(NamedTuple):
    """A run with a fault in it: whether there were calls enough, and what was acknowledged."""

    hit: bool
    transactions: int


def struck(folder: Path, fault: str, nth: int) -> Strike:
    """Run a writer whose nth call fails, and check what it left."""
    log = folder.with_name("calls")
    trace = ["strace", "-f", "-o", str(log), "-e", f"trace={fault.split(':')[0]}"]
    transactions, revision, code = killed(
        folder, "", 0, under=[*trace, "-e", f"inject={fault}:when={nth}"]
    )
    said = log.read_text()
    # SQLite may do without a flush of the folder: then the process ends in peace.
    assert code in {0, REFUSED, BROKEN, -signal.SIGKILL}
    asyncio.run(examine(folder, transactions, revision))
    return Strike("INJECTED" in said or "killed by SIGKILL" in said, transactions)


def struck_at_each(folder: Path, fault: str, points: Iterable[int], *, new: bool) -> None:
    """Have a fault strike runs in a folder, at one call after the other, until there are no more.

    strace counts the calls of each thread by itself: one makes a store, another one writes. In a
    new folder the first calls are those of the one, and then there is nothing that the same runs
    in a folder with a store do not show.
    """
    for nth in points:
        shutil.rmtree(folder, ignore_errors=True)
        if not new:
            asyncio.run(SqliteStore(folder).close())
        strike = struck(folder, fault, nth)
        if not strike.hit or (new and strike.transactions):
            return


FAULTS = [
    "fdatasync:signal=SIGKILL", "fsync:signal=SIGKILL", "pwrite64:signal=SIGKILL",
    "ftruncate:signal=SIGKILL", "rename:signal=SIGKILL", "unlink:signal=SIGKILL",
    "fdatasync:error=EIO", "fsync:error=EIO", "pwrite64:error=EIO", "pwrite64:error=ENOSPC",
]  # fmt: skip

WHERE = {"a new folder": True, "a folder with a store": False}


@pytest.mark.mostly_slow(quick_every=5)
@needs_strace
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("fault", FAULTS)
def test_disk_errors_at_the_first_calls_lose_nothing(
    tmp_path: Path, fault: str, where: str
) -> None:
    struck_at_each(tmp_path / "data", fault, (1, 2), new=WHERE[where])


@needs_strace
@pytest.mark.soak
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("fault", FAULTS)
def test_disk_errors_at_any_call_of_3000_writes_lose_nothing(
    tmp_path: Path, fault: str, where: str, part: int
) -> None:
    """Each part takes every so many-th call, until a run makes fewer calls than that."""
    struck_at_each(tmp_path / "data", fault, count(1 + part, PARTS), new=WHERE[where])
