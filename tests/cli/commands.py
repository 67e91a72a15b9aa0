"""Our command and kubectl as real processes."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from phalanx.api.wire import Object
from phalanx.cli.main import COMMANDS, main

ROOT = Path(__file__).parent.parent.parent
#: Seconds that any command is given.
COMMAND_TIMEOUT = 20.0

#: A command that runs for as long as the context lasts.
Process = AbstractContextManager[subprocess.Popen[str]]


#: Processes that begin where the imports end, which is most of what a command takes.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([f"phalanx.cli.{name.replace('-', '_')}" for name in COMMANDS])


def phalanx(*args: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Our command, run to its end in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder, name)) for name in ("out", "err")]
        surroundings = {**os.environ, **(env or {})}
        process = _FORKS.Process(target=_run_main, args=(args, surroundings, os.getcwd(), files))
        process.start()
        process.join(COMMAND_TIMEOUT)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(args, COMMAND_TIMEOUT)
        return subprocess.CompletedProcess(
            args, process.exitcode, *(Path(file).read_text() for file in files)
        )


def _run_main(args: Sequence[str], env: Mapping[str, str], cwd: str, files: Sequence[str]) -> None:
    """What `python -m phalanx` does, with these surroundings."""
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
    """Our command, which goes on; ended by force at the end if it still runs."""
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
    """`phalanx up` on a free port."""
    return start_command("up", "--listen", "127.0.0.1:0", *args, env=env)


def start_component(name: str, config: Path, *args: str) -> Process:
    """A part of a control plane alone."""
    return start_command(name, "--kubeconfig", str(config), *args)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl in one namespace of one cluster, with a home of its own."""

    kubeconfig: Path
    namespace: str
    home: Path

    def run(self, *args: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(args), input=text, capture_output=True, text=True, timeout=COMMAND_TIMEOUT,
            env=self.env, check=False,
        )  # fmt: skip

    def __call__(self, *args: str, text: str = "") -> str:
        """What it prints; it must succeed."""
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
    """What a table says below its head."""
    return [line.split() for line in table.splitlines()[1:]]


def is_alive(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_dead(pid: int) -> None:
    """Wait until a process has ended, which it does by itself."""
    deadline = time.monotonic() + 5
    while is_alive(pid):
        assert time.monotonic() < deadline
