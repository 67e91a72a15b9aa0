"""Run `phalanx` and kubectl as real processes, and read what they print."""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import yaml

from phalanx.api.wire import Object
from phalanx.cli.main import COMMANDS, main

ROOT = Path(__file__).parent.parent.parent
#: Seconds after which a command hangs. No test fails because a machine is slow.
COMMAND_TIMEOUT = 240.0
#: The option of `kubectl wait` with this limit.
WAIT_LIMIT = f"--timeout={COMMAND_TIMEOUT:.0f}s"

_LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z (DEBUG|INFO|WARNING|ERROR) ([\w-]+): (.*)")

#: A command that runs for the duration of the context.
Process = AbstractContextManager[subprocess.Popen[str]]


#: Forks processes that have the imports done, which take most of the time of a command.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([f"phalanx.cli.{module}" for module, _ in COMMANDS.values()])


def phalanx(*args: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `phalanx` to its end in its own process."""
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder, name)) for name in ("out", "err")]
        environment = {**os.environ, **(env or {})}
        process = FORKS.Process(target=_run_main, args=(args, environment, os.getcwd(), files))
        process.start()
        process.join(COMMAND_TIMEOUT)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(args, COMMAND_TIMEOUT)
        return subprocess.CompletedProcess(
            args, process.exitcode, *(Path(file).read_text() for file in files)
        )


def _run_main(args: Sequence[str], env: Mapping[str, str], cwd: str, files: Sequence[str]) -> None:
    """Do what `python -m phalanx` does, with this environment, directory, stdout and stderr."""
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["phalanx", *args]
    main(prog_name="phalanx")


@contextmanager
def start_command(
    *args: str, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start `phalanx`; kill it at the end of the context if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "phalanx", *args],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **(env or {})},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def start_up(*args: str, env: Mapping[str, str] | None = None) -> Process:
    """Start `phalanx up` on a free port."""
    return start_command("up", "--listen", "127.0.0.1:0", *args, env=env)


def start_component(name: str, config: Path, *args: str) -> Process:
    """Start one component against a server."""
    return start_command(name, "--kubeconfig", str(config), *args)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


class LogLine(NamedTuple):
    """One log line in text format."""

    level: str
    component: str
    text: str


def split_log(stderr: str) -> tuple[list[LogLine], str]:
    """Separate the log lines of stderr from all other text."""
    lines: list[LogLine] = []
    other: list[str] = []
    for line in stderr.splitlines(keepends=True):
        if match := _LOG_LINE.fullmatch(line.rstrip("\n")):
            lines.append(LogLine(*match.groups()))
        else:
            other.append(line)
    return lines, "".join(other)


def next_log_line(process: subprocess.Popen[str], text: str) -> LogLine:
    """Read stderr up to the log line that contains a text."""
    assert process.stderr is not None
    while line := process.stderr.readline():
        if (match := _LOG_LINE.fullmatch(line.rstrip("\n"))) and text in line:
            return LogLine(*match.groups())
    raise AssertionError(f"no log line contains {text!r}")


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl in one namespace of one cluster, with its own home directory."""

    kubeconfig: Path
    namespace: str
    home: Path

    def run(self, *args: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(args), input=text, capture_output=True, text=True, timeout=COMMAND_TIMEOUT,
            env=self.env, check=False,
        )  # fmt: skip

    def __call__(self, *args: str, text: str = "") -> str:
        """Run kubectl, which must succeed; return its output."""
        done = self.run(*args, text=text)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def apply(self, *objects: Object, **options: str) -> str:
        more = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        return self("apply", *more, "-f", "-", text=yaml.safe_dump_all(objects))

    def get(self, what: str) -> Object:
        found: Object = yaml.safe_load(self("get", what, "-o", "yaml"))
        return found

    def command(self, args: Sequence[str]) -> list[str]:
        return ["kubectl", "--kubeconfig", str(self.kubeconfig), "-n", self.namespace, *args]

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "HOME": str(self.home)}


def rows(table: str) -> list[list[str]]:
    """Return the cells of a table without its header."""
    return [line.split() for line in table.splitlines()[1:]]


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_dead(pid: int) -> None:
    """Wait until a process has ended."""
    deadline = time.monotonic() + COMMAND_TIMEOUT
    while is_alive(pid):
        assert time.monotonic() < deadline
