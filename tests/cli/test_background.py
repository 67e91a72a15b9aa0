"""A control plane in the background: started, found and stopped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import first_line, phalanx, start_up


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a user with an empty home directory; stops its control plane."""
    found = {
        "HOME": str(tmp_path), "KUBECONFIG": "", "XDG_STATE_HOME": "",
        "PHALANX_UP_LISTEN": "127.0.0.1:0", "PHALANX_UP_NODES": "1",
    }  # fmt: skip
    yield found
    phalanx("down", env=found)


def home(env: dict[str, str]) -> Path:
    return Path(env["HOME"]) / ".local" / "state" / "phalanx"


def test_detached_control_plane_runs_until_phalanx_down(env: dict[str, str]) -> None:
    started = phalanx("up", "--detach", env=env)
    assert started.returncode == 0, started.stderr
    word, url, _, file = started.stdout.split()
    assert (word, Path(file)) == ("ready", home(env) / "kubeconfig")
    assert started.stderr.startswith(f"page {url}/ui/ ")
    assert phalanx("queue", env=env).stderr == "No gang runs or waits.\n"
    stopped = phalanx("down", env=env)
    assert (stopped.returncode, stopped.stdout) == (0, f"stopped {home(env)}\n")
    assert phalanx("queue", env=env).returncode == 1


def test_detached_control_plane_starts_again_with_its_data(env: dict[str, str]) -> None:
    for _ in range(2):
        assert phalanx("up", "--detach", env=env).returncode == 0
        assert phalanx("down", env=env).returncode == 0


def test_detached_control_plane_that_cannot_start_prints_its_error(env: dict[str, str]) -> None:
    phalanx("up", "--detach", env=env)
    again = phalanx("up", "--detach", env=env)
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.startswith(f"Error: {home(env)} is in use by process ")
    assert again.stderr.count("\n") == 1
    assert phalanx("up", "--detach", "--nodes", "some", env=env).returncode == 2


def test_down_without_a_control_plane_succeeds(env: dict[str, str]) -> None:
    done = phalanx("down", env=env)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "",
        f"no control plane runs in {home(env)}\n",
    )
    home(env).mkdir(parents=True)
    (home(env) / "up.pid").write_text(f"{os.getpid()}\n")
    assert phalanx("down", env=env).stdout == ""


def test_down_stops_a_control_plane_in_the_foreground(env: dict[str, str], tmp_path: Path) -> None:
    with start_up("--data", str(tmp_path / "data"), env=env) as process:
        assert first_line(process).startswith("ready ")
        assert phalanx("down", "--data", str(tmp_path / "data"), env=env).returncode == 0
        assert process.wait(10) == 0
