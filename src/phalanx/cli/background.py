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
from collections.abc import Iterator, Mapping, Sequence
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
from phalanx.cli.output import echo, pluralize
from phalanx.server.security.sign_in import CODE_TTL

_PID_FILE, _LOG_FILE = "up.pid", "up.log"
#: The words of the last line of the PID file: what the control plane keeps in memory.
_OBJECTS, _KEYS = "objects", "keys"
#: Seconds that a control plane gets to stop, and between two checks whether it has. Its processes
#: wait for each other and for requests that are under way, on a busy machine for a while.
_STOP_TIMEOUT, _POLL_INTERVAL = 60.0, 0.05
_ERROR_PREFIX = "Error: "
#: The environment variable of --detach, which the process in the background must not have too.
_DETACH_VARIABLE = "PHALANX_UP_DETACH"
#: The environment variable that says to a process that it is in the background.
_DETACHED_VARIABLE = "PHALANX_DETACHED"


class NotStarted(Exception):
    """The control plane ended before it was ready; the message is its error."""


class _InUse(Exception):
    """Another process holds the PID file; the message is its number."""


class StillRunning(Exception):
    """The control plane did not stop in time."""


class RunningProcess(NamedTuple):
    """A control plane that runs. URL and kubeconfig are None until it is ready.

    Its objects may be in memory (`--store memory`), or its keys too (`--data :memory:`).
    """

    pid: int
    url: str | None = None
    kubeconfig: Path | None = None
    has_objects_in_memory: bool = False
    has_keys_in_memory: bool = False


class StartMessages(NamedTuple):
    """What `phalanx up` prints once it serves, a line each; the notice may be empty."""

    ready: str
    page: str
    notice: str = ""


@contextlib.contextmanager
def pid_file(folder: Path, *, is_required: bool, is_in_memory: bool = False) -> Iterator[None]:
    """Hold the locked PID file of a directory.

    If another process holds it: an error if it `is_required`, otherwise do without. A control plane
    that `is_in_memory` needs the directory for its kubeconfig alone.
    """
    try:
        file = _lock_pid_file(folder)
    except _InUse as error:
        if is_required:
            purpose, cure = "", ", or choose another name with --name"
            if is_in_memory:
                purpose = ", also for its kubeconfig"
                cure = ", or give this one another --name or its own --kubeconfig FILE"
            raise click.ClickException(
                f"{folder} is in use by process {error}{purpose}; stop it with "
                f"{command_line('down', folder)}{cure}"
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


def record_address(folder: Path, process: RunningProcess) -> None:
    """Write the address of this process into the PID file, if this process holds it."""
    in_memory = {_OBJECTS: process.has_objects_in_memory, _KEYS: process.has_keys_in_memory}
    kept = ",".join(name for name, is_in_memory in in_memory.items() if is_in_memory)
    file_name = process.kubeconfig.absolute() if process.kubeconfig else ""
    with open(folder / _PID_FILE, "a+", opener=logs.open_private) as file:
        file.seek(0)
        if file.readline().strip() == str(process.pid):
            file.write(f"{process.url}\n{file_name}\n{kept}\n")


def find_running(folder: Path) -> RunningProcess | None:
    """Return the process that runs in a directory, if one does."""
    try:
        with (folder / _PID_FILE).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                lines = (*file.read().splitlines(), "", "", "", "")
                pid, url, kubeconfig, in_memory = lines[:4]
                return RunningProcess(
                    int(pid or 0),
                    url or None,
                    Path(kubeconfig) if kubeconfig else None,
                    has_objects_in_memory=_OBJECTS in in_memory,
                    has_keys_in_memory=_KEYS in in_memory,
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


def start(arguments: Sequence[str], folder: Path) -> StartMessages:
    """Start `phalanx up` in the background; return what it prints once it serves."""
    with open(log_file(folder), "a", opener=logs.open_private) as log:
        begin = log.tell()
        process = subprocess.Popen(
            # -P: a module of the working directory must not take the place of ours.
            [sys.executable, "-P", "-m", "phalanx", "up", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            text=True,
            env={
                **{key: value for key, value in os.environ.items() if key != _DETACH_VARIABLE},
                _DETACHED_VARIABLE: "1",
            },
        )
    assert process.stdout is not None
    with process.stdout as out:
        try:
            ready, page, notice = (out.readline().rstrip("\n") for _ in range(3))
        except KeyboardInterrupt:
            # It is in a session of its own, which ^C does not reach.
            process.terminate()
            raise
    if not ready.startswith("ready "):
        code = process.wait()
        text = log_file(folder).read_bytes()[begin:].decode(errors="replace").strip()
        # Log lines may precede the error.
        _, prefix, message = f"\n{text}".rpartition(f"\n{_ERROR_PREFIX}")
        ended = f"the control plane ended with exit code {code}; see {log_file(folder)}"
        raise NotStarted(message if prefix else ended)
    return StartMessages(ready, page, notice)


def print_ready(messages: StartMessages) -> None:
    """Print the `ready` line on stdout, and the other lines on stderr.

    A process in the background prints all on stdout, which only its starter reads: its stderr is
    the log, which must not contain a sign-in code.
    """
    is_detached = os.environ.pop(_DETACHED_VARIABLE, "") != ""
    echo(messages.ready)
    echo(messages.page, err=not is_detached)
    if messages.notice or is_detached:
        echo(messages.notice, err=not is_detached)


def describe_stored_objects(counts: Mapping[str, int], folder: Path) -> str:
    """Say what an earlier start has left in a directory, and how to start over; "" if nothing."""
    found = [pluralize(count, kind) for kind, count in counts.items() if count]
    if not found:
        return ""
    listed = " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)
    again = f"{command_line('delete', folder)}, then phalanx up, starts over"
    return f"continues with {listed} of an earlier start; {again}"


def describe_page(url: str, code: str) -> str:
    """Return the line about the page; its address signs in, once, if there is a sign-in code."""
    if not code:
        return f"page {url}/ui/ (sign in with a token; phalanx token create makes one)"
    minutes = round(CODE_TTL / 60)
    return f"page {sign_in_url(url, code)} (signs in once, within {minutes} min)"


def sign_in_url(server: str, code: str) -> str:
    """Return the address of the page of a server that signs in with a code."""
    return f"{server.rstrip('/')}/ui/#/sign-in/{code}"


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
