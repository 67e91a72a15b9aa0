"""A control plane in the background: `phalanx up --detach` starts it, `phalanx down` stops it.

Its directory contains `up.pid`, the process number, and `up.log`, its stderr. The process keeps
`up.pid` locked for as long as it lives, so that a file that is left over after a crash does not
name a live process.
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
#: Seconds that a control plane gets to stop, and between two checks whether it has.
_STOP_TIMEOUT, _POLL_INTERVAL = 10.0, 0.05
_ERROR_PREFIX = "Error: "


class NotStarted(Exception):
    """The control plane ended before it was ready; the message is its error."""


class StillRunning(Exception):
    """The control plane did not stop in time."""


@contextlib.contextmanager
def pid_file(folder: Path) -> Iterator[None]:
    """Hold the locked PID file of a directory, unless another process holds it."""
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
    """Return the number of the process that runs in a directory; 0 if none does."""
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
    """Start `phalanx up` with these arguments in the background; return its `ready` line."""
    with open(folder / _LOG_FILE, "w", opener=_open_private) as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "phalanx", "up", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            text=True,
        )
    assert process.stdout is not None
    with process.stdout as out:
        ready = out.readline()
    if not ready.startswith("ready "):
        process.wait()
        text = (folder / _LOG_FILE).read_text().strip()
        # Log lines may precede the error.
        raise NotStarted(f"\n{text}".rpartition(f"\n{_ERROR_PREFIX}")[2])
    return ready.rstrip("\n")


def print_ready(ready: str) -> None:
    """Print the `ready` line on stdout and the address of the web page on stderr."""
    click.echo(ready)
    page = f"{ready.split()[1]}/ui/"
    click.echo(f"page {page} (sign in with the token of the kubeconfig)", err=True)


def stop(folder: Path) -> bool:
    """Stop the control plane that runs in a directory; return whether one was running."""
    pid = running_pid(folder)
    if not pid:
        return False
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_TIMEOUT
    while running_pid(folder) == pid:
        if time.monotonic() > deadline:
            raise StillRunning(f"process {pid} has not stopped after {_STOP_TIMEOUT:g} s")
        time.sleep(_POLL_INTERVAL)
    return True


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
