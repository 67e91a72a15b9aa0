from __future__ import annotations

import asyncio
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.store.backup import backup
from phalanx.store.kv import StoreUnusable
from phalanx.store.sqlite import SqliteStore
from tests.store.crash_writer import DEFAULT_TRANSACTIONS, expected, stored_values
from tests.store.power_loss import SimulatedDisk, power_loss_outcomes
from tests.store.syscall_trace import (
    BytesWritten,
    FileFlushed,
    OutputWritten,
    TracedCall,
    trace_program,
)
from tests.store.test_sqlite_crash import examine

pytestmark = pytest.mark.skipif(not shutil.which("strace"), reason="strace tells the calls")

#: Transactions of a short run, which has several checkpoints; images of it that are opened.
TRANSACTIONS, IMAGES = 88, 200

#: The long programme: its parts, and how often each moment of a run is looked at in each way.
PARTS, TIMES = 12, 2

WAYS = list(power_loss_outcomes(random.Random()))


def ran(folder: Path, transactions: int) -> list[TracedCall]:
    """Have a process write into a folder, to its end."""
    folder.mkdir(exist_ok=True)
    writer = ["-m", "tests.store.crash_writer", str(folder), "", "0", str(transactions)]
    return trace_program(folder, folder.with_name(f"{folder.name}.log"), *writer)


def moments(folder: Path, calls: list[TracedCall]) -> Iterator[tuple[int, SimulatedDisk]]:
    """A disk that begins with what is in a folder, after each call."""
    disk = SimulatedDisk(folder)
    for at, call in enumerate(calls):
        disk.follow(call)
        yield at, disk


def judge(disk: SimulatedDisk, folder: Path, chance: random.Random, way: str) -> None:
    """Cut the power: what is left must open, with all that was acknowledged and no half of it."""
    disk.write_after_power_loss(folder, power_loss_outcomes(chance)[way])
    if chance.random() < 0.5:
        (folder / "store.db-shm").write_bytes(chance.randbytes(32768))
    asyncio.run(examine(folder, *disk.acknowledged))
    shutil.rmtree(folder)


@pytest.fixture
def image() -> Iterator[Path]:
    """Where an image is put: in memory if that is possible, for it needs to survive nothing."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder) / "image"


def nothing(tmp_path: Path) -> Path:
    folder = tmp_path / "nothing"
    folder.mkdir()
    return folder


def test_replayed_syscalls_end_in_the_same_state(tmp_path: Path) -> None:
    calls = ran(tmp_path / "data", TRANSACTIONS)
    *_, (_, disk) = moments(nothing(tmp_path), calls)
    assert disk.acknowledged[0] == TRANSACTIONS
    assert sum(isinstance(call, BytesWritten) and call.name == "store.db" for call in calls) > 5
    disk.write_after_power_loss(tmp_path / "left", lambda: True)
    for file in (tmp_path / "left").iterdir():
        assert file.read_bytes() == (tmp_path / "data" / file.name).read_bytes()


def test_acknowledged_writes_survive_a_power_loss(tmp_path: Path, image: Path) -> None:
    calls, chance = ran(tmp_path / "data", TRANSACTIONS), random.Random(1)
    chosen = sorted(chance.choices(range(len(calls)), k=IMAGES))
    for at, disk in moments(nothing(tmp_path), calls):
        for _ in range(chosen.count(at)):
            judge(disk, image, chance, chance.choice(WAYS))


@pytest.mark.slow
def test_power_loss_during_recovery_loses_nothing(tmp_path: Path, image: Path) -> None:
    first, chance = ran(tmp_path / "data", TRANSACTIONS), random.Random(2)
    chosen = chance.sample(range(len(first)), 2)
    for at, disk in moments(nothing(tmp_path), first):
        if at in chosen:
            disk.write_after_power_loss(
                left := tmp_path / f"left-{at}", power_loss_outcomes(chance)["some"]
            )
            before = shutil.copytree(left, tmp_path / f"before-{at}")
            second, there = ran(left, 8), disk.acknowledged
            for _, again in moments(before, second):
                again.acknowledged = max(again.acknowledged, there)
                judge(again, image, chance, chance.choice(WAYS))


def opened(folder: Path) -> dict[str, str]:
    """What is in a store that was left."""
    store = SqliteStore(folder)
    asyncio.run(store.close())
    return stored_values(store)


@pytest.mark.slow
def test_power_loss_during_a_restore_leaves_old_store_or_backup(
    tmp_path: Path, image: Path
) -> None:
    ran(tmp_path / "data", 8)
    backup(tmp_path / "data", tmp_path / "copy")
    ran(tmp_path / "data", 8)
    before = shutil.copytree(tmp_path / "data", tmp_path / "before")
    program = (
        "import sys; from pathlib import Path; from phalanx.store.backup import restore;"
        "restore(Path(sys.argv[1]), Path(sys.argv[2]), replace=True); sys.stdout.write('0 0\\n')"
    )
    arguments = ["-c", program, str(tmp_path / "copy"), str(tmp_path / "data")]
    calls, chance = trace_program(tmp_path / "data", tmp_path / "log", *arguments), random.Random(3)
    is_done = False
    for at, disk in moments(before, calls):
        is_done = is_done or isinstance(calls[at], OutputWritten)
        for way in chance.sample(WAYS, len(WAYS) if is_done else 1):
            disk.write_after_power_loss(image, power_loss_outcomes(chance)[way])
            assert opened(image) in [expected(8), *([] if is_done else [expected(16)])]
            if is_done:
                (image / "store.db.before").replace(image / "store.db")
                (image / "store.mark").unlink()
                assert opened(image) == expected(16)
            shutil.rmtree(image)
    assert is_done


@pytest.mark.mostly_slow(quick_every=3)
@pytest.mark.parametrize("file", ["store.db-wal", "store.db", ""], ids=["log", "tables", "names"])
def test_power_loss_test_detects_a_missing_flush(tmp_path: Path, image: Path, file: str) -> None:
    calls = ran(tmp_path / "data", TRANSACTIONS)
    lazy = [call for call in calls if call != FileFlushed(file)]

    def judge_some() -> None:
        for at, disk in moments(nothing(tmp_path), lazy):
            if at % 20 == 0:
                judge(disk, image, random.Random(1), "nothing")

    with pytest.raises((AssertionError, StoreUnusable)):
        judge_some()


@pytest.mark.soak
@pytest.mark.parametrize("part", range(PARTS))
def test_power_loss_at_any_point_of_3000_writes_loses_nothing(
    tmp_path: Path, image: Path, part: int
) -> None:
    calls, chance = ran(tmp_path / "data", DEFAULT_TRANSACTIONS), random.Random(part)
    for at, disk in moments(nothing(tmp_path), calls):
        for way in WAYS * TIMES if at % PARTS == part else ():
            judge(disk, image, chance, way)
    assert disk.acknowledged[1] > 3000
