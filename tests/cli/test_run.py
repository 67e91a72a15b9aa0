from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from phalanx.api.wire import Object
from tests.builders import gang, pod
from tests.cli.commands import PATIENCE, phalanx
from tests.cli.people import gang_job


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "objects.yaml"


def run(
    file: Path, *objects: Object, options: str = "--nodes 2 --shape cpu=8"
) -> tuple[int, str, str]:
    file.write_text(yaml.safe_dump_all(objects))
    done = phalanx("run", "-f", str(file), *options.split())
    return done.returncode, done.stdout, done.stderr


def test_gangs_that_run_are_told_of_as_they_go(file: Path) -> None:
    code, told, errors = run(
        file, gang_job("short", 2, seconds=1, cpu="5"), *gang("long", 2, namespace="new", cpu="1")
    )
    assert (code, errors) == (0, "")
    lines = told.splitlines()
    assert "Job/short: running 2/2 on 2 nodes" in lines
    assert "Job/short: ended 2/2" in lines
    assert lines[-1].startswith("2 gangs ran, 0 did not, in ")


def test_one_gang_runs_after_the_other_has_ended(file: Path) -> None:
    code, told, _ = run(
        file, *(gang_job(name, 2, seconds=1, cpu="8") for name in ("first", "second"))
    )
    assert code == 0
    assert any(": waiting 0/2: minCount (2)" in line for line in told.splitlines())


def test_a_gang_that_cannot_run_makes_it_fail_and_is_told_why(file: Path) -> None:
    code, told, _ = run(file, gang_job("fits", 1, cpu="1"), gang_job("big", 3, cpu="8"))
    assert code == 1
    summary, why = told.splitlines()[-2:]
    assert summary.startswith("1 gang ran, 1 did not")
    assert why.startswith("  Job/big: minCount (3) cannot be satisfied: ")


def test_it_may_take_too_long(file: Path) -> None:
    code, told, _ = run(file, gang_job("long", 1, seconds=600, cpu="1"), options="--timeout 0.5")
    assert (code, told.splitlines()[-1]) == (
        1, "  it took too long; give it more with --timeout",
    )  # fmt: skip


def test_the_summary_as_json(file: Path) -> None:
    code, told, errors = run(file, pod("alone", cpu="1"), options="-o json")
    answer = json.loads(told)
    assert (code, answer["ran"], answer["timedOut"]) == (0, True, False)
    assert [(one["kind"], one["name"], one["ran"]) for one in answer["items"]] == [
        ("Pod", "alone", True)
    ]
    assert "alone: running 1/1 on 1 node" in errors


def test_what_cannot_be_run_is_refused_in_a_sentence(file: Path) -> None:
    code, _, errors = run(file, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}})
    assert (code, errors.count("\n"), "spec.containers" in errors) == (1, 1, True)
    assert phalanx("run").returncode == 2
    assert phalanx("run", "-f", str(file), "--nodes", "some").returncode == 2


def test_a_terminal_gets_bars(file: Path) -> None:
    file.write_text(yaml.safe_dump(gang_job("mine", 2, cpu="1")))
    master, slave = pty.openpty()
    try:
        subprocess.run(
            [sys.executable, "-m", "phalanx", "run", "-f", str(file)],
            stdout=slave, timeout=PATIENCE, check=True,
        )  # fmt: skip
        told = os.read(master, 100_000).decode()
    finally:
        os.close(master)
        os.close(slave)
    assert "Job/mine  ████████████████████  running 2/2" in told
    assert "\x1b[32m" in told
