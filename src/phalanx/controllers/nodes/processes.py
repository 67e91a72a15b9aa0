"""Processes of pods: how one is started, heard and ended.

Each has a session of its own, no descriptor but its pipe, limits that it sets itself before it is
the command (`launch`), and a folder below a private one. When it ends, all that it started ends.
What it writes goes to the server line by line, of a flood only the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from phalanx.api.errors import ApiError
from phalanx.api.kinds import POD
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.controllers.nodes import launch
from phalanx.controllers.nodes.programs import Program

_LAUNCH = (sys.executable, "-I", "-S", launch.__file__)
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
#: Bytes that are read at once, and that wait to be sent at most.
_CHUNK, _WAITING = 64 * 1024, 256 * 1024
#: Seconds between two parcels of output; that a pipe is read after its process ended.
_PARCEL, _LAST_WORDS = 0.1, 1.0


@dataclass(frozen=True, slots=True)
class Host:
    """The part of this machine that processes may have: a private folder, and where programs are.

    `programs` is searched first, then the folder of the Python that runs this, then the system's.
    """

    root: Path
    programs: Path | None = None

    def environment(self, folder: Path, name: str) -> dict[str, str]:
        """What every process finds in its environment; nothing of ours is inherited."""
        own = [str(self.programs)] if self.programs else []
        path = ":".join([*own, str(Path(sys.executable).parent), _SYSTEM_PATH])
        return {
            "PATH": path, "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8",
            "HOSTNAME": name,
        }  # fmt: skip

    def folder(self, uid: str) -> Path:
        """The folder of a pod, by its uid: names are chosen by users."""
        return self.root / uid


class Output:
    """What one run of a container writes, on its way to the server."""

    def __init__(self, client: Client, key: Key, uid: str, container: str, restart: int) -> None:
        self._client, self._path = client, POD.path(key.namespace, key.name, "log")
        self._about: Object = {"uid": uid, "container": container, "restart": restart}
        self._waiting, self._is_over = bytearray(), asyncio.Event()

    async def pump(self, pipe: asyncio.StreamReader) -> None:
        """Read a pipe to its end, and send what comes."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send())
            while chunk := await pipe.read(_CHUNK):
                self._keep(len(self._waiting), chunk)
            self._is_over.set()
        await self._flush(len(self._waiting))

    async def _send(self) -> None:
        while not self._is_over.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_over.wait(), _PARCEL)
            await self._flush(self._waiting.rfind(b"\n") + 1)

    async def _flush(self, size: int) -> None:
        """Send so many bytes; what the server does not take is tried again with what follows."""
        if not size:
            return
        parcel = bytes(self._waiting[:size])
        del self._waiting[:size]
        try:
            text = parcel.decode(errors="replace")
            await self._client.post(self._path, {**self._about, "text": text})
        except (ApiError, Unreachable):
            self._keep(0, parcel)

    def _keep(self, at: int, text: bytes) -> None:
        """Have something wait to be sent; of too much the end."""
        self._waiting[at:at] = text
        del self._waiting[: max(len(self._waiting) - _WAITING, 0)]


class Process:
    """A process that runs, and all that it starts."""

    def __init__(self, process: asyncio.subprocess.Process, output: Output) -> None:
        self._process = process
        assert process.stdout is not None
        self._pumping = asyncio.create_task(output.pump(process.stdout))

    @classmethod
    async def started(cls, program: Program, folder: Path, output: Output) -> Process:
        """Start a program in the folder of its pod."""
        place = folder / program.folder
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        process = await asyncio.create_subprocess_exec(
            *_LAUNCH, json.dumps(dict(program.limits)), *program.argv,
            cwd=place, env=dict(program.env), start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        return cls(process, output)

    @property
    def session(self) -> int:
        """By which number all that it started is known too."""
        return self._process.pid

    async def ended(self) -> int:
        """Wait for its end, and see to it that nothing of it is left; its exit code."""
        try:
            code = await self._process.wait()
        except asyncio.CancelledError:
            self._pumping.cancel()
            raise
        finally:
            self.signal(signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._pumping, _LAST_WORDS)
        return code if code >= 0 else 128 - code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of it, if anything is left."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
