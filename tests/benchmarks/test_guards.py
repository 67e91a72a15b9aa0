"""The hot paths execute no more instructions than recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import guards
from benchmarks.costs import count_allocated_bytes, count_instructions

ROOT = Path(guards.__file__).parent.parent
HINT = "find out why; if it must be so: python -m benchmarks.guards --update-guards"


@pytest.fixture(scope="module")
def limits() -> dict[str, int]:
    allowed = guards.limits()
    if not allowed:
        pytest.skip(f"nothing was counted with Python {guards.PYTHON}")
    return allowed


@pytest.mark.parametrize("name", guards.GUARDS)
def test_hot_path_stays_within_its_instruction_limit(name: str, limits: dict[str, int]) -> None:
    assert guards.count(name) <= limits[name], HINT


def test_every_guard_has_a_recorded_limit(limits: dict[str, int]) -> None:
    assert list(limits) == list(guards.GUARDS)


def test_instruction_count_is_repeatable() -> None:
    assert guards.count("create a pod") == guards.count("create a pod")


@pytest.mark.slow
def test_instruction_count_does_not_depend_on_the_hash_seed() -> None:
    program = "from benchmarks.guards import count; print(count('create a pod'))"
    counts = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed}, cwd=ROOT, capture_output=True, check=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert counts[0] == counts[1]


def test_instruction_count_is_proportional_to_work() -> None:
    def count_loop(times: int) -> int:
        with count_instructions() as tally:
            sum(n for n in range(times))
        return tally.count

    count_loop(300)  # The interpreter specializes instructions that have run often.
    assert count_loop(200) - count_loop(100) == count_loop(300) - count_loop(200) > 100


def test_freed_memory_is_not_counted() -> None:
    with count_allocated_bytes() as tally:
        referenced = bytes(100_000)
        bytes(100_000)
    assert len(referenced) < tally.count < 150_000


def test_instruction_counter_removes_its_trace_function() -> None:
    before = sys.gettrace()
    with count_instructions():
        pass
    assert sys.gettrace() is before
