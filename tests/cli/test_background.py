"""A control plane in the background: started, found and stopped."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from phalanx.cli.background import (
    NotStarted,
    describe_stored_objects,
    find_running,
    pid_file,
    start,
    stop,
)
from tests.cli.cli_user import CliUser, gang_job
from tests.cli.commands import COMMAND_TIMEOUT, first_line, phalanx, start_up


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a user with an empty home directory; stops its control planes."""
    found = {
        "HOME": str(tmp_path), "KUBECONFIG": "", "XDG_STATE_HOME": "",
        "PHALANX_UP_LISTEN": "127.0.0.1:0", "PHALANX_UP_NODES": "1",
    }  # fmt: skip
    yield found
    for words in (("down",), ("down", "--data", ":memory:")):
        phalanx(*words, env=found)


def home(env: dict[str, str]) -> Path:
    return Path(env["HOME"]) / ".local" / "state" / "phalanx"


def test_detached_control_plane_runs_until_phalanx_down(env: dict[str, str]) -> None:
    started = phalanx("up", "--detach", env=env)
    assert started.returncode == 0, started.stderr
    word, url, _, file = started.stdout.split()
    assert (word, Path(file)) == ("ready", home(env) / "kubeconfig")
    assert started.stderr.startswith(f"page {url}/ui/#/sign-in/")
    code = started.stderr.split()[1].rpartition("/")[2]
    assert code not in (home(env) / "up.log").read_text()
    assert phalanx("queue", env=env).stderr == "No gang runs or waits.\n"
    stopped = phalanx("down", env=env)
    assert (stopped.returncode, stopped.stdout) == (0, f"stopped {home(env)}\n")
    assert phalanx("queue", env=env).returncode == 1


def test_detached_control_plane_starts_again_with_its_data(env: dict[str, str]) -> None:
    for _ in range(2):
        assert phalanx("up", "--detach", env=env).returncode == 0
        assert phalanx("down", env=env).returncode == 0


def test_second_start_says_which_workloads_are_back_and_how_to_start_over(
    env: dict[str, str],
) -> None:
    [page] = phalanx("up", "--detach", env=env).stderr.splitlines()
    assert page.startswith("page ")
    CliUser(home(env) / "kubeconfig").create(gang_job("train", 2, cpu="1000"))
    phalanx("down", env=env)
    page, notice = phalanx("up", "--detach", env=env).stderr.splitlines()
    assert notice.startswith("continues with 1 Job")
    assert notice.endswith(" of an earlier start; phalanx delete, then phalanx up, starts over")


def test_notice_about_stored_objects_names_what_there_is(tmp_path: Path) -> None:
    again = f"of an earlier start; phalanx delete --data {tmp_path}, then phalanx up, starts over"
    for counts, listed in (
        ({"Job": 2, "Pod": 1}, "2 Jobs and 1 Pod"),
        ({"JobSet": 1, "Job": 2, "Pod": 6}, "1 JobSet, 2 Jobs and 6 Pods"),
        ({"JobSet": 0, "Job": 0, "Pod": 3}, "3 Pods"),
    ):
        assert describe_stored_objects(counts, tmp_path) == f"continues with {listed} {again}"
    assert describe_stored_objects({"Job": 0, "Pod": 0}, tmp_path) == ""


def test_detached_control_plane_that_cannot_start_prints_its_error(env: dict[str, str]) -> None:
    phalanx("up", "--detach", env=env)
    again = phalanx("up", "--detach", env=env)
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.startswith(f"Error: {home(env)} is in use by process ")
    assert again.stderr.count("\n") == 1
    assert phalanx("up", "--detach", "--nodes", "some", env=env).returncode == 2


def test_second_control_plane_in_memory_may_have_its_own_kubeconfig(
    env: dict[str, str], tmp_path: Path
) -> None:
    phalanx("up", "--detach", "--data", ":memory:", env=env)
    again = phalanx("up", "--data", ":memory:", env=env)
    assert again.returncode == 1
    folder = home(env) / "clusters" / "memory"
    assert again.stderr.startswith(f"Error: {folder} is in use by process ")
    assert "another --name or its own --kubeconfig FILE" in again.stderr
    file = str(tmp_path / "second.kubeconfig")
    with start_up("--data", ":memory:", "--kubeconfig", file, env=env) as process:
        assert first_line(process).startswith("ready ")


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
        assert process.wait(COMMAND_TIMEOUT) == 0


@contextmanager
def locked_for_a_moment(folder: Path, lock: int) -> Iterator[None]:
    """A lock on the PID file of a process that has ended, which is released soon."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    (folder / "up.pid").write_text(f"{ended.pid}\n")
    file = (folder / "up.pid").open()
    fcntl.flock(file, lock)
    timer = threading.Timer(0.1, file.close)
    timer.start()
    yield
    timer.join()


@pytest.mark.parametrize("lock", [fcntl.LOCK_SH, fcntl.LOCK_EX], ids=["read", "ending"])
def test_start_waits_for_a_lock_that_is_not_of_a_running_server(tmp_path: Path, lock: int) -> None:
    with locked_for_a_moment(tmp_path, lock), pid_file(tmp_path, is_required=True):
        running = find_running(tmp_path)
    assert running is not None
    assert running.pid == os.getpid()


def test_start_writes_a_new_pid_file_if_the_last_owner_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock

    def remove_and_lock(file: Any, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        (tmp_path / "up.pid").unlink()
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", remove_and_lock)
    with pid_file(tmp_path, is_required=True):
        assert find_running(tmp_path) is not None


def test_process_that_has_ended_meanwhile_counts_as_stopped(tmp_path: Path) -> None:
    with locked_for_a_moment(tmp_path, fcntl.LOCK_EX):
        assert stop(tmp_path)


def test_variable_of_detach_is_not_for_the_process_in_the_background(env: dict[str, str]) -> None:
    done = phalanx("up", env={**env, "PHALANX_UP_DETACH": "1"})
    assert done.returncode == 0, done.stderr
    assert phalanx("status", env=env).returncode == 0


def test_start_that_ends_without_an_error_names_its_exit_code_and_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(NotStarted) as failed:
        start([], tmp_path)
    expected = f"the control plane ended with exit code 1; see {tmp_path / 'up.log'}"
    assert str(failed.value) == expected


@pytest.mark.slow
def test_modules_of_the_working_directory_are_not_imported(tmp_path: Path) -> None:
    (tmp_path / "orjson.py").write_text("raise SystemExit('imported from the working directory')")
    data = ("--data", str(tmp_path / "data"))

    def run_in_directory(*words: str) -> subprocess.CompletedProcess[str]:
        command = (sys.executable, "-P", "-m", "phalanx", *words, *data)
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=COMMAND_TIMEOUT
        )

    started = run_in_directory("up", "--detach", "--listen", "127.0.0.1:0")
    stopped = run_in_directory("down")
    assert started.stdout.startswith("ready https://127.0.0.1:"), started.stderr
    assert stopped.returncode == 0
