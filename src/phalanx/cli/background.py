"""A control plane in the background: begun by `phalanx up --detach`, ended by `phalanx down`.

The file `up.pid` in its folder holds the number of its process, which keeps the file locked for as
long as it lives: a number that nobody holds means nothing. What it says goes to `up.log`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

_PID_FILE, _LOG_FILE = "up.pid", "up.log"
#: Seconds that a control plane is given to end, and between two looks whether it has.
_STOP_TIMEOUT, _POLL_INTERVAL = 10.0, 0.05


class NotStarted(Exception):
    """It did not become ready; what it said."""


class StillRunning(Exception):
    """It was told to end and has not."""


@contextlib.contextmanager
def pid_file(folder: Path) -> Iterator[None]:
    """Have this process known as the one that runs in a folder, unless there is one already."""
    with open(folder / _PID_FILE, "a+", opener=_open_private) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield
            return
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            (folder / _PID_FILE).unlink(missing_ok=True)


def running_pid(folder: Path) -> int:
    """The number of the process that runs in a folder; 0 if none does."""
    try:
        with (folder / _PID_FILE).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read() or 0)
    except FileNotFoundError:
        pass
    return 0


def start(arguments: Sequence[str], folder: Path) -> str:
    """Begin `phalanx up` with these arguments in the background; the line that it is ready with."""
    with open(folder / _LOG_FILE, "w", opener=_open_private) as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "phalanx", "up", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            text=True,
        )  # fmt: skip
    assert process.stdout is not None
    with process.stdout as out:
        ready = out.readline()
    if not ready.startswith("ready "):
        process.wait()
        raise NotStarted((folder / _LOG_FILE).read_text().strip().removeprefix("Error: "))
    return ready.rstrip("\n")


def print_ready(ready: str) -> None:
    """Say that it is ready, for programs, and where its page is, for people."""
    click.echo(ready)
    page = f"{ready.split()[1]}/ui/"
    click.echo(f"page {page} (sign in with the token of the kubeconfig)", err=True)


def stop(folder: Path) -> bool:
    """End what runs in a folder; whether anything did."""
    pid = running_pid(folder)
    if not pid:
        return False
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_TIMEOUT
    while running_pid(folder) == pid:
        if time.monotonic() > deadline:
            raise StillRunning(f"process {pid} has not ended after {_STOP_TIMEOUT:g} s")
        time.sleep(_POLL_INTERVAL)
    return True


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
