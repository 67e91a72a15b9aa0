"""What the hot paths cost, in numbers that are the same on any machine: no more than it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.instruction_counts import count_allocated_bytes, count_instructions

from benchmarks import guards

ROOT = Path(guards.__file__).parent.parent
CURE = "find out why; if it must be so: python -m benchmarks.guards --update-guards"


@pytest.fixture(scope="module")
def limits() -> dict[str, int]:
    allowed = guards.limits()
    if not allowed:
        pytest.skip(f"nothing was counted with Python {guards.PYTHON}")
    return allowed


@pytest.mark.parametrize("name", guards.GUARDS)
def test_nothing_takes_a_tenth_more_than_it_did(name: str, limits: dict[str, int]) -> None:
    assert guards.count(name) <= limits[name], CURE


def test_what_was_counted_is_what_is_guarded(limits: dict[str, int]) -> None:
    assert list(limits) == list(guards.GUARDS)


def test_a_count_repeats_itself() -> None:
    assert guards.count("create a pod") == guards.count("create a pod")


def test_a_count_does_not_depend_on_how_texts_are_hashed() -> None:
    program = "from benchmarks.guards import count; print(count('create a pod'))"
    counts = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed}, cwd=ROOT, capture_output=True, check=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert counts[0] == counts[1]


def test_more_work_counts_more() -> None:
    def work(times: int) -> int:
        with count_instructions() as tally:
            sum(n for n in range(times))
        return tally.count

    assert work(200) - work(100) == work(300) - work(200) > 100


def test_what_is_let_go_is_not_kept() -> None:
    with count_allocated_bytes() as tally:
        kept = bytes(100_000)
        bytes(100_000)
    assert len(kept) < tally.count < 150_000


def test_counting_leaves_no_trace() -> None:
    before = sys.gettrace()
    with count_instructions():
        pass
    assert sys.gettrace() is before
