"""Our command and kubectl as real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from phalanx.api.wire import Object

ROOT = Path(__file__).parent.parent.parent
#: Seconds that any command is given.
PATIENCE = 20.0


def phalanx(*args: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Our command, run to its end."""
    return subprocess.run(
        [sys.executable, "-m", "phalanx", *args],
        capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, **(env or {})},
        check=False,
    )  # fmt: skip


@contextmanager
def up(*args: str, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """`phalanx up` on a free port; ended by force at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "up", "--listen", "127.0.0.1:0", *args],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **(env or {})},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def part(name: str, config: Path, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A part of a control plane alone; ended by force at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "phalanx", name, "--kubeconfig", str(config), *args],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


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
            self.command(args), input=text, capture_output=True, text=True, timeout=PATIENCE,
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


def until_dead(pid: int) -> None:
    """Wait until a process has ended, which it does by itself."""
    deadline = time.monotonic() + 5
    while is_alive(pid):
        assert time.monotonic() < deadline
