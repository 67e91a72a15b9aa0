"""`phalanx record`: watch a live cluster and write what happens to a file that can be simulated."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import click

from phalanx.api.errors import ApiError
from phalanx.cli.connection import cluster_options, query_cluster
from phalanx.cli.options import configuration_option, parse_optional_time
from phalanx.cli.output import LiveDisplay, StyledLine, echo, pluralize
from phalanx.cli.scheduler_configuration import load_configuration
from phalanx.client.client import Client
from phalanx.clock import WallClock
from phalanx.randomness import SystemRandom
from phalanx.sim.recording.anonymizer import Anonymizer
from phalanx.sim.recording.recorder import (
    ClusterRecorder,
    RecorderOptions,
    RecordingRefused,
    describe_scope,
)
from phalanx.sim.reports.text import format_seconds
from phalanx.sim.simulation import first_error

#: Seconds between two drawings of the progress.
_DRAW_SECONDS = 1.0


@click.command()
@click.argument(
    "file", required=False, default=None, type=click.Path(dir_okay=False, path_type=Path)
)
@cluster_options
@click.option(
    "--for",
    "duration",
    default=None,
    metavar="DURATION",
    callback=parse_optional_time,
    help="Stop after this time, for example 24h. [default: ^C]",
)
@click.option(
    "--anonymize", is_flag=True, help="Replace names, namespaces, labels and images consistently."
)
@configuration_option("KubeSchedulerConfiguration of the cluster's scheduler, for phalanx replay.")
def record_command(
    *,
    file: Path | None,
    namespace: str,
    config: Path | None,
    context: str,
    duration: float | None,
    anonymize: bool,
    policy: Path | None,
) -> None:
    """Record what happens in a cluster: nodes, arrivals, groups, starts, run times, deletions.

    FILE must not exist; without it the file is named by the time. The rights to list and watch are
    enough; without rights in all namespaces, that of the context is recorded. Says what it cannot
    see, and when the server is lost; exit code 1 if it is still lost at the end. The file can be
    read by its owner alone, and is valid at any moment.

    \b
    Example:
      phalanx record --context production --for 24h --anonymize monday.jsonl
      phalanx replay monday.jsonl --check
    """
    path = file or Path(f"recording-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl")
    options = RecorderOptions(
        namespace=namespace,
        anonymizer=Anonymizer(secrets.token_bytes(32)) if anonymize else None,
        configuration=load_configuration(policy).profiles.configuration if policy else None,
    )
    with _LineFile(path) as lines:

        async def record(client: Client, default_namespace: str) -> tuple[int, str]:
            chosen = RecorderOptions(
                options.namespace,
                default_namespace,
                anonymizer=options.anonymizer,
                configuration=options.configuration,
            )
            recorder = ClusterRecorder(
                client, WallClock(), SystemRandom(), write=lines.write, options=chosen
            )
            outage = await _record(recorder, path, duration)
            return recorder.lines, outage

        try:
            line_count, outage = query_cluster(config, context, record)
        except BaseException:
            lines.remove_if_empty()
            raise
    echo(f"{pluralize(line_count, 'line')} in {path}", err=True)
    if outage:
        raise click.ClickException(
            f"{outage}; {path} lacks what has happened since the connection was lost"
        )


async def _record(recorder: ClusterRecorder, path: Path, duration: float | None) -> str:
    """Record until the time is over or the user stops it.

    Returns why the server does not answer at the end; "" if it does.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    run = asyncio.create_task(recorder.run())
    watch = [asyncio.create_task(_show_progress(recorder, path)), run]
    stop = asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait({run, stop}, timeout=duration, return_when=asyncio.FIRST_COMPLETED)
        if run.done():
            _raise_reason(run)
        recorder.finish()
        return await recorder.find_outage()
    finally:
        for task in (*watch, stop):
            task.cancel()
            with suppress(BaseException):
                await task


def _raise_reason(run: asyncio.Task[None]) -> None:
    error = run.exception()
    if error is None:
        raise click.ClickException("the recording ended unexpectedly")
    reason = first_error(error)
    if isinstance(reason, RecordingRefused | OSError):
        raise click.ClickException(str(reason)) from None
    if isinstance(reason, ApiError):
        raise click.ClickException(str(reason)) from None
    raise reason


async def _show_progress(recorder: ClusterRecorder, path: Path) -> None:
    """Say what is recorded once that is known, when the server is lost, and progress on a terminal.

    The recorder connects again by itself.
    """
    await recorder.synced.wait()
    for sentence in describe_scope(recorder):
        echo(f"Note: {sentence}", err=True)
    echo(f"Recording to {path}; stop with ^C", err=True)
    display, begin, was_lost = LiveDisplay(sys.stderr), time.monotonic(), False
    while True:
        await asyncio.sleep(_DRAW_SECONDS)
        outage = recorder.outage
        if bool(outage) != was_lost:
            was_lost = bool(outage)
            if sys.stderr.isatty():
                display.draw([])
            lost = f"Warning: {outage}; trying again, changes until then may be missing"
            echo(lost if outage else "The server is followed again", err=True)
        if sys.stderr.isatty():
            elapsed = format_seconds(time.monotonic() - begin)
            display.draw([StyledLine(f"{elapsed}: {pluralize(recorder.lines, 'line')}")])


class _LineFile:
    """A new private file to which whole lines are appended."""

    def __init__(self, path: Path) -> None:
        self._path, self._descriptor, self._written = path, -1, 0

    def __enter__(self) -> _LineFile:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        try:
            self._descriptor = os.open(self._path, flags, 0o600)
        except FileExistsError:
            raise click.ClickException(
                f"{self._path} exists; choose another name, or delete it"
            ) from None
        except OSError as error:
            raise click.ClickException(f"cannot write {self._path}: {error.strerror}") from None
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def write(self, line: bytes) -> None:
        """Append a line with one system call."""
        rest = memoryview(line)
        while rest:
            count = os.write(self._descriptor, rest)
            rest, self._written = rest[count:], self._written + count

    def remove_if_empty(self) -> None:
        """Remove the file if nothing was recorded."""
        if not self._written:
            self._path.unlink(missing_ok=True)
