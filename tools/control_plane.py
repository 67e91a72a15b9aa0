"""Starts `phalanx up` and its parts as processes, waits until they are ready, and stops them.

Used by the reference tool, the benchmarks and the tests over HTTPS. It relies only on the commands'
contract: their options, the `ready ` line and the kubeconfig.
"""

from __future__ import annotations

import base64
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import yaml

COMMAND = Path(sys.prefix) / "bin" / "phalanx"
#: Seconds that a command has to become ready, and to end: a limit for hangs, not for slow machines.
READY_LIMIT, STOP_LIMIT = 240.0, 60.0


class NotReady(Exception):
    """A command that did not become ready, with its output."""


@dataclass(frozen=True, slots=True)
class Access:
    """URL and credentials of a server, from its kubeconfig."""

    host: str
    port: int
    token: str
    authority: str

    @classmethod
    def read(cls, kubeconfig: Path) -> Access:
        """Read the only cluster and user of a kubeconfig."""
        config: dict[str, Any] = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        address = urlsplit(cluster["server"])
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        return cls(str(address.hostname), int(address.port or 443), user["token"], authority)

    def tls(self) -> ssl.SSLContext:
        """Return a TLS context that trusts only this server's CA."""
        return ssl.create_default_context(cadata=self.authority)


class Command:
    """One of our commands; a context manager that is ready inside."""

    def __init__(self, *words: str, limit: float = READY_LIMIT) -> None:
        self._arguments, self._limit = words, limit
        self._folder = tempfile.TemporaryDirectory(prefix="phalanx-")
        self._ready, self._is_ready = threading.Event(), False
        self._log = Path(self._folder.name) / "log"
        self.seconds_to_ready = self.seconds_to_stop = 0.0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def start(self) -> None:
        """Start the command and wait until it is ready; otherwise stop it and raise."""
        begin = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(COMMAND), *self._arguments],
                stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read_output, daemon=True)
        self._reader.start()
        self._ready.wait(self._limit)
        self.seconds_to_ready = time.monotonic() - begin
        if not self._is_ready:
            said = self.stderr_tail()
            self.stop()
            raise NotReady(f"{COMMAND} {' '.join(self._arguments)} did not get ready: {said}")

    def stderr_tail(self) -> str:
        """Return the end of its stderr."""
        return self._log.read_text(errors="replace")[-2000:].strip() or "it said nothing"

    def stop(self) -> int:
        """Stop it, by force if needed; return the exit code."""
        begin = time.monotonic()
        self._process.terminate()
        try:
            code = self._process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self.seconds_to_stop = time.monotonic() - begin
        self._reader.join()
        self._folder.cleanup()
        return code

    def _read_output(self) -> None:
        """Read its output until it ends, so that it never blocks."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                if line.startswith(b"ready "):
                    self._is_ready = True
                    self._ready.set()
        self._ready.set()


class ControlPlane(Command):
    """One `phalanx up` with the given options."""

    def __init__(self, *options: str, limit: float = READY_LIMIT) -> None:
        super().__init__(limit=limit)
        self.kubeconfig = Path(self._folder.name) / "kubeconfig"
        fixed = ("up", "--listen", "127.0.0.1:0", "--kubeconfig", str(self.kubeconfig))
        self._arguments = (*fixed, *options)

    @property
    def access(self) -> Access:
        """Return how to reach it."""
        return Access.read(self.kubeconfig)


class SplitControlPlane(ControlPlane):
    """A control plane whose scheduler or controllers run as processes of their own."""

    def __init__(self, parts: Sequence[str], *options: str, limit: float = READY_LIMIT) -> None:
        super().__init__(*options, limit=limit)
        self._components = [Command(part, "--kubeconfig", str(self.kubeconfig)) for part in parts]

    def start(self) -> None:
        """Start the server, then the other processes."""
        super().start()
        begun: list[Command] = []
        try:
            for part in self._components:
                part.start()
                begun.append(part)
        except NotReady:
            for part in begun:
                part.stop()
            super().stop()
            raise

    @property
    def alive(self) -> bool:
        """Whether all processes run."""
        return super().alive and all(part.alive for part in self._components)

    def stderr_tail(self) -> str:
        """Return the stderr of the first process that has ended, else of the server."""
        ended = [part for part in self._components if not part.alive]
        return ended[0].stderr_tail() if ended and super().alive else super().stderr_tail()

    def stop(self) -> int:
        """Stop all processes."""
        codes = [part.stop() for part in self._components]
        return max(codes, key=bool, default=0) or super().stop()
