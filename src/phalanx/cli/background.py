"""A control plane in the background: `phalanx up --detach` starts it, `phalanx down` stops it.

Its directory contains `up.pid`, the process number, and `up.log`, its stderr and, without
`--log-file`, its log lines; `up.log` is rotated like any log file. The process keeps
`up.pid` locked for as long as it lives, so that a file that is left over after a crash does not
name a live process. `phalanx down` stops a control plane in the foreground the same way.
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
from typing import NamedTuple, TextIO

import click

from phalanx import logs
from phalanx.cli.cluster_state import (
    KUBECONFIG_FILE,
    cluster_argument,
    cluster_folder,
    command_line,
    list_clusters,
    resolve_folder,
)
from phalanx.cli.output import echo

_PID_FILE, _LOG_FILE = "up.pid", "up.log"
#: Seconds that a control plane gets to stop, and between two checks whether it has. Its processes
#: wait for each other and for requests that are under way, on a busy machine for a while.
_STOP_TIMEOUT, _POLL_INTERVAL = 60.0, 0.05
_ERROR_PREFIX = "Error: "
#: The environment variable of --detach, which the process in the background must not have too.
_DETACH_VARIABLE = "PHALANX_UP_DETACH"


class NotStarted(Exception):
    """The control plane ended before it was ready; the message is its error."""


class _InUse(Exception):
    """Another process holds the PID file; the message is its number."""


class StillRunning(Exception):
    """The control plane did not stop in time."""


class RunningProcess(NamedTuple):
    """A control plane that runs. URL and kubeconfig are None until it is ready."""

    pid: int
    url: str | None = None
    kubeconfig: Path | None = None


@contextlib.contextmanager
def pid_file(folder: Path, *, is_required: bool) -> Iterator[None]:
    """Hold the locked PID file of a directory.

    If another process holds it: an error if it `is_required`, otherwise do without.
    """
    try:
        file = _lock_pid_file(folder)
    except _InUse as error:
        if is_required:
            raise click.ClickException(
                f"{folder} is in use by process {error}; stop it with "
                f"{command_line('down', folder)}, or choose another name with --name"
            ) from None
        yield
        return
    with file:
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            (folder / _PID_FILE).unlink(missing_ok=True)


def _lock_pid_file(folder: Path) -> TextIO:
    """Open the PID file of a directory, and lock it. Raises _InUse with the process that holds it.

    Locks that end by themselves are waited for: `find_running` holds one for a moment, and the
    component process of a killed server process holds its lock until it has ended, too.
    """
    path, deadline = folder / _PID_FILE, time.monotonic() + _STOP_TIMEOUT
    while True:
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(open(path, "a+", opener=logs.open_private))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Its last owner may have removed the file before this process locked it.
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    opened.pop_all()
                    return file
            except FileNotFoundError:
                continue
            except BlockingIOError:
                file.seek(0)
                owner = file.readline().strip()
                if _is_alive(owner) or time.monotonic() > deadline:
                    raise _InUse(owner or "unknown") from None
        time.sleep(_POLL_INTERVAL)


def _is_alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        pass
    return True


def record_address(folder: Path, url: str, kubeconfig: Path) -> None:
    """Add URL and kubeconfig to the PID file, if this process holds it."""
    with open(folder / _PID_FILE, "a+", opener=logs.open_private) as file:
        file.seek(0)
        if file.readline().strip() == str(os.getpid()):
            file.write(f"{url}\n{kubeconfig.absolute()}\n")


def find_running(folder: Path) -> RunningProcess | None:
    """Return the process that runs in a directory, if one does."""
    try:
        with (folder / _PID_FILE).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                pid, url, kubeconfig = (*file.read().splitlines(), "", "", "")[:3]
                return RunningProcess(
                    int(pid or 0), url or None, Path(kubeconfig) if kubeconfig else None
                )
    except (FileNotFoundError, NotADirectoryError):
        pass
    return None


def cluster_kubeconfig(folder: Path) -> Path:
    """Return the administrator's kubeconfig of a data directory, which may be elsewhere."""
    running = find_running(folder)
    return running.kubeconfig if running and running.kubeconfig else folder / KUBECONFIG_FILE


def log_file(folder: Path) -> Path:
    """Return the log file of a control plane in the background."""
    return folder / _LOG_FILE


def start(arguments: Sequence[str], folder: Path) -> str:
    """Start `phalanx up` with these arguments in the background; return its `ready` line."""
    with open(log_file(folder), "a", opener=logs.open_private) as log:
        begin = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "phalanx", "up", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            text=True,
            env={name: value for name, value in os.environ.items() if name != _DETACH_VARIABLE},
        )
    assert process.stdout is not None
    with process.stdout as out:
        ready = out.readline()
    if not ready.startswith("ready "):
        code = process.wait()
        text = log_file(folder).read_bytes()[begin:].decode(errors="replace").strip()
        # Log lines may precede the error.
        _, prefix, message = f"\n{text}".rpartition(f"\n{_ERROR_PREFIX}")
        ended = f"the control plane ended with exit code {code}; see {log_file(folder)}"
        raise NotStarted(message if prefix else ended)
    return ready.rstrip("\n")


def print_ready(ready: str) -> None:
    """Print the `ready` line on stdout and the address of the web page on stderr."""
    echo(ready)
    page = f"{ready.split()[1]}/ui/"
    echo(f"page {page} (sign in with the token of the kubeconfig)", err=True)


def stop(folder: Path) -> bool:
    """Stop the control plane that runs in a directory; return whether one was running."""
    running = find_running(folder)
    if not running or not running.pid:
        return False
    # It may have ended since.
    with contextlib.suppress(ProcessLookupError):
        os.kill(running.pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_TIMEOUT
    while (now := find_running(folder)) and now.pid == running.pid:
        if time.monotonic() > deadline:
            raise StillRunning(f"process {running.pid} has not stopped after {_STOP_TIMEOUT:g} s")
        time.sleep(_POLL_INTERVAL)
    return True


@click.command()
@cluster_argument
def down_command(name: str, data: Path | None) -> None:
    """Stop the control plane of a cluster, in the background or not. Its data stays.

    \b
    Example:
      phalanx down
      phalanx down tutorial
      phalanx down --data ~/other
    """
    folder = resolve_folder(name, data)
    try:
        was_running = stop(folder)
    except (StillRunning, OSError) as error:
        raise click.ClickException(str(error)) from None
    if was_running:
        echo(f"stopped {folder}")
        return
    others = [other for other in list_clusters() if find_running(cluster_folder(other))]
    hint = f"; running: {', '.join(others)}" if others else ""
    echo(f"no control plane runs in {folder}{hint}", err=True)
