"""A control plane in the background: begun, found, ended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import first_line, phalanx, start_up


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A home of one's own, in which nothing runs in the end."""
    found = {
        "HOME": str(tmp_path), "KUBECONFIG": "", "XDG_STATE_HOME": "",
        "PHALANX_UP_LISTEN": "127.0.0.1:0", "PHALANX_UP_NODES": "1",
    }  # fmt: skip
    yield found
    phalanx("down", env=found)


def home(env: dict[str, str]) -> Path:
    return Path(env["HOME"]) / ".local" / "state" / "phalanx"


def test_it_runs_in_the_background_until_it_is_told_to_end(env: dict[str, str]) -> None:
    begun = phalanx("up", "--detach", env=env)
    assert begun.returncode == 0, begun.stderr
    word, url, _, file = begun.stdout.split()
    assert (word, Path(file)) == ("ready", home(env) / "kubeconfig")
    assert begun.stderr.startswith(f"page {url}/ui/ ")
    assert phalanx("queue", env=env).stderr == "No gang runs or waits.\n"
    ended = phalanx("down", env=env)
    assert (ended.returncode, ended.stdout) == (0, f"stopped {home(env)}\n")
    assert phalanx("queue", env=env).returncode == 1


def test_what_it_keeps_is_there_the_next_time(env: dict[str, str]) -> None:
    for _ in range(2):
        assert phalanx("up", "--detach", env=env).returncode == 0
        assert phalanx("down", env=env).returncode == 0


def test_one_that_cannot_start_says_why(env: dict[str, str]) -> None:
    phalanx("up", "--detach", env=env)
    again = phalanx("up", "--detach", env=env)
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.startswith(f"Error: {home(env)} is in use by process ")
    assert again.stderr.count("\n") == 1
    assert phalanx("up", "--detach", "--nodes", "some", env=env).returncode == 2


def test_where_nothing_runs_there_is_nothing_to_end(env: dict[str, str]) -> None:
    done = phalanx("down", env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"nothing runs in {home(env)}\n")
    home(env).mkdir(parents=True)
    (home(env) / "up.pid").write_text(f"{os.getpid()}\n")
    assert phalanx("down", env=env).stdout == ""


def test_one_in_the_foreground_can_be_ended_too(env: dict[str, str], tmp_path: Path) -> None:
    with start_up("--data", str(tmp_path / "data"), env=env) as process:
        assert first_line(process).startswith("ready ")
        assert phalanx("down", "--data", str(tmp_path / "data"), env=env).returncode == 0
        assert process.wait(10) == 0
