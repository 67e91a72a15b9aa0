"""`phalanx up` and its parts as processes, from start to ready to a clean stop.

What the reference tool, the benchmarks and the tests over HTTPS talk to. Relies only on what the
commands promise: their options, the `ready ` line and the kubeconfig.
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
STOP_LIMIT = 5.0


class NotReady(Exception):
    """A command that did not come up, with what it said."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where a server listens and what opens it, as its kubeconfig says."""

    host: str
    port: int
    token: str
    authority: str

    @classmethod
    def read(cls, kubeconfig: Path) -> Access:
        """The access of the only cluster and the only user of a kubeconfig."""
        config: dict[str, Any] = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        address = urlsplit(cluster["server"])
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        return cls(str(address.hostname), int(address.port or 443), user["token"], authority)

    def tls(self) -> ssl.SSLContext:
        """A context that trusts this server's own authority and no other."""
        return ssl.create_default_context(cadata=self.authority)


class Command:
    """One command of ours that says when it is ready; a context manager that is ready inside."""

    def __init__(self, *words: str, limit: float = 20.0) -> None:
        self._arguments, self._limit = words, limit
        self._folder = tempfile.TemporaryDirectory(prefix="phalanx-")
        self._ready, self._is_ready = threading.Event(), False
        self._log = Path(self._folder.name) / "log"
        self.seconds_to_ready = 0.0

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
        """The process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def start(self) -> None:
        """Start it and wait until it says that it is ready; otherwise stop it and raise."""
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
        """The end of what it wrote to its error output."""
        return self._log.read_text(errors="replace")[-2000:].strip() or "it said nothing"

    def stop(self) -> int:
        """End it, by force if it must be; the exit code."""
        self._process.terminate()
        try:
            code = self._process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._reader.join()
        self._folder.cleanup()
        return code

    def _read_output(self) -> None:
        """Drain what it prints, so that it never blocks; runs until it closes its output."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                if line.startswith(b"ready "):
                    self._is_ready = True
                    self._ready.set()
        self._ready.set()


class ControlPlane(Command):
    """One `phalanx up` with the given options."""

    def __init__(self, *options: str, limit: float = 20.0) -> None:
        super().__init__(limit=limit)
        self.kubeconfig = Path(self._folder.name) / "kubeconfig"
        fixed = ("up", "--listen", "127.0.0.1:0", "--kubeconfig", str(self.kubeconfig))
        self._arguments = (*fixed, *options)

    @property
    def access(self) -> Access:
        """How to reach it."""
        return Access.read(self.kubeconfig)


class SplitControlPlane(ControlPlane):
    """The same without some parts, each of which is a command of ours and runs beside it."""

    def __init__(self, parts: Sequence[str], *options: str, limit: float = 20.0) -> None:
        super().__init__(*options, limit=limit)
        self._components = [Command(part, "--kubeconfig", str(self.kubeconfig)) for part in parts]

    def start(self) -> None:
        """Start the one, then the others."""
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
        """Whether all still run."""
        return super().alive and all(part.alive for part in self._components)

    def stderr_tail(self) -> str:
        """The end of what the first of them wrote that has ended, or of what it wrote itself."""
        ended = [part for part in self._components if not part.alive]
        return ended[0].stderr_tail() if ended and super().alive else super().stderr_tail()

    def stop(self) -> int:
        """End all."""
        codes = [part.stop() for part in self._components]
        return max(codes, key=bool, default=0) or super().stop()
