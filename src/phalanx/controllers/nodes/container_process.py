"""From a container to the program that it is on a process node: pure, and refuses what it cannot.

    pod, container ─▶ argv (never a shell), environment (nothing inherited), folder, limits

The image is not looked at: the command runs as it is found on this machine. What would need a
container runtime (volumes, values from ConfigMaps, sidecars) is refused with a reason and not left
out in silence.

Processes of pods: how one is started, heard and ended.

Each has a session of its own, no descriptor but its pipe, limits that it sets itself before it is
the command (`launch`), and a folder below a private one. When it ends, all that it started ends.
What it writes goes to the server line by line, of a flood only the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from phalanx.api.errors import ApiError
from phalanx.api.kinds import POD
from phalanx.api.meta import Key
from phalanx.api.quantity import exact_value
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.controllers.nodes import launch

#: Where all pods of process nodes are.
LOOPBACK = "127.0.0.1"
_MEGA = 1024 * 1024
#: Limits of every process, by their names in `resource`; the pod's own come on top.
_DEFAULT_LIMITS = {"CORE": 0, "NOFILE": 1024, "FSIZE": 1024 * _MEGA}
#: Resource of a container -> the limit that keeps a process to it.
_LIMITS = {"memory": "AS", "ephemeral-storage": "FSIZE"}
#: `$(NAME)` is a variable, `$$` is a dollar.
_REFERENCE = re.compile(r"\$(\$|\(([^()$]+)\))")


class UnsupportedContainer(ValueError):
    """What a pod asks for and a process node does not have."""


@dataclass(frozen=True, slots=True)
class ContainerCommand:
    """What is run for a container. `folder` is within the pod's own."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    working_directory: str
    limits: Mapping[str, int]


def build_container_command(
    pod: Object, container: Object, base_env: Mapping[str, str]
) -> ContainerCommand:
    """What a container is; `usual` is the environment of every process here."""
    if not container.get("command"):
        raise UnsupportedContainer("it has no command, and images are not run on process nodes")
    if container.get("volumeMounts") or container.get("envFrom"):
        raise UnsupportedContainer("process nodes mount no volumes and have no envFrom")
    if container.get("restartPolicy"):
        raise UnsupportedContainer("process nodes have no sidecars")
    env = _environment(pod, container, base_env)
    words = [*container["command"], *(container.get("args") or ())]
    argv = tuple(_expand(word, env) for word in words)
    if any("\0" in word for word in (*argv, *env.values())):
        raise UnsupportedContainer("a word of its command or environment has a zero byte")
    return ContainerCommand(argv, env, _working_directory(container), _limits(container))


def _environment(pod: Object, container: Object, base_env: Mapping[str, str]) -> dict[str, str]:
    """The usual variables and the container's own, each of which may refer to those before."""
    env = dict(base_env)
    for one in container.get("env") or ():
        source = one.get("valueFrom")
        if source:
            found = _value_from(pod, container, one["name"], source)
        else:
            found = _expand(one.get("value", ""), env)
        if found is not None:
            env[one["name"]] = found
    return env


def _value_from(pod: Object, container: Object, name: str, source: Object) -> str | None:
    if "fieldRef" in source:
        return _field(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return _resource_field(container, source["resourceFieldRef"])
    (reference,) = source.values()
    if reference.get("optional"):
        return None
    raise UnsupportedContainer(f"variable {name}: process nodes read no {next(iter(source))}")


#: Field of a pod -> its value.
_FIELD_REFS: Mapping[str, Callable[[Object], str]] = {
    "metadata.name": lambda pod: str(pod["metadata"]["name"]),
    "metadata.namespace": lambda pod: str(pod["metadata"]["namespace"]),
    "metadata.uid": lambda pod: str(pod["metadata"]["uid"]),
    "spec.nodeName": lambda pod: str(pod["spec"].get("nodeName", "")),
    "spec.serviceAccountName": lambda pod: service_account_of(pod),
    "status.hostIP": lambda pod: LOOPBACK,
    "status.hostIPs": lambda pod: LOOPBACK,
    "status.podIP": lambda pod: LOOPBACK,
    "status.podIPs": lambda pod: LOOPBACK,
}
_MAP_ENTRY = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


def _field(pod: Object, path: str) -> str:
    if path in _FIELD_REFS:
        return _FIELD_REFS[path](pod)
    entry = _MAP_ENTRY.fullmatch(path)
    if entry is None:
        raise UnsupportedContainer(f"there is no field {path}")
    return str((pod["metadata"].get(entry[1]) or {}).get(entry[2], ""))


def _resource_field(container: Object, source: Object) -> str:
    """So much of a resource, in units of the divisor, rounded up."""
    kind, _, name = source["resource"].partition(".")
    asked = (container.get("resources") or {}).get(kind) or {}
    if name not in asked:
        raise UnsupportedContainer(f"it has no {source['resource']}")
    divisor = source.get("divisor")
    unit = exact_value(divisor) if divisor and str(divisor) != "0" else 1
    return str(math.ceil(exact_value(asked[name]) / unit))


def service_account_of(pod: Object) -> str:
    """The service account of a pod."""
    return str(pod["spec"].get("serviceAccountName") or "default")


def _expand(text: str, env: Mapping[str, str]) -> str:
    """`$(NAME)` as the variable says; one that is not known stays as it is."""

    def one(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return env.get(match[2], match[0])

    return _REFERENCE.sub(one, text)


def _working_directory(container: Object) -> str:
    """Where it begins, below the pod's own folder, which is its root."""
    wanted = PurePosixPath("/", container.get("workingDir") or "")
    if ".." in wanted.parts:
        raise UnsupportedContainer("its workingDir leads out of its folder")
    return str(wanted.relative_to("/"))


def _limits(container: Object) -> dict[str, int]:
    given = (container.get("resources") or {}).get("limits") or {}
    own = {
        _LIMITS[name]: math.ceil(exact_value(most))
        for name, most in given.items()
        if name in _LIMITS
    }
    return {**_DEFAULT_LIMITS, **own}


_LAUNCH = (sys.executable, "-I", "-S", launch.__file__)
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
#: Bytes that are read at once, and that wait to be sent at most.
_CHUNK, _MAX_BUFFER = 64 * 1024, 256 * 1024
#: Seconds between two parcels of output; that a pipe is read after its process ended.
_SEND_INTERVAL, _DRAIN_TIMEOUT = 0.1, 1.0


@dataclass(frozen=True, slots=True)
class ProcessHost:
    """The part of this machine that processes may have: a private folder, and where programs are.

    `programs` is searched first, then the folder of the Python that runs this, then the system's.
    """

    root: Path
    program_directory: Path | None = None

    def environment(self, folder: Path, name: str) -> dict[str, str]:
        """What every process finds in its environment; nothing of ours is inherited."""
        own = [str(self.program_directory)] if self.program_directory else []
        path = ":".join([*own, str(Path(sys.executable).parent), _SYSTEM_PATH])
        return {
            "PATH": path, "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8",
            "HOSTNAME": name,
        }  # fmt: skip

    def pod_directory(self, uid: str) -> Path:
        """The folder of a pod, by its uid: names are chosen by users."""
        return self.root / uid


class ContainerOutput:
    """What one run of a container writes, on its way to the server."""

    def __init__(self, client: Client, key: Key, uid: str, container: str, restart: int) -> None:
        self._client, self._path = client, POD.url_path(key.namespace, key.name, "log")
        self._log_fields: Object = {"uid": uid, "container": container, "restart": restart}
        self._pending, self._is_closed = bytearray(), asyncio.Event()

    async def pump(self, pipe: asyncio.StreamReader) -> None:
        """Read a pipe to its end, and send what comes."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send())
            while chunk := await pipe.read(_CHUNK):
                self._enqueue(len(self._pending), chunk)
            self._is_closed.set()
        await self._flush(len(self._pending))

    async def _send(self) -> None:
        while not self._is_closed.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_closed.wait(), _SEND_INTERVAL)
            await self._flush(self._pending.rfind(b"\n") + 1)

    async def _flush(self, size: int) -> None:
        """Send so many bytes; what the server does not take is tried again with what follows."""
        if not size:
            return
        parcel = bytes(self._pending[:size])
        del self._pending[:size]
        try:
            text = parcel.decode(errors="replace")
            await self._client.post(self._path, {**self._log_fields, "text": text})
        except (ApiError, Unreachable):
            self._enqueue(0, parcel)

    def _enqueue(self, at: int, text: bytes) -> None:
        """Have something wait to be sent; of too much the end."""
        self._pending[at:at] = text
        del self._pending[: max(len(self._pending) - _MAX_BUFFER, 0)]


class ContainerProcess:
    """A process that runs, and all that it starts."""

    def __init__(self, process: asyncio.subprocess.Process, output: ContainerOutput) -> None:
        self._process = process
        assert process.stdout is not None
        self._pump_task = asyncio.create_task(output.pump(process.stdout))

    @classmethod
    async def start(
        cls, program: ContainerCommand, folder: Path, output: ContainerOutput
    ) -> ContainerProcess:
        """Start a program in the folder of its pod."""
        place = folder / program.working_directory
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

    async def wait(self) -> int:
        """Wait for its end, and see to it that nothing of it is left; its exit code."""
        try:
            code = await self._process.wait()
        except asyncio.CancelledError:
            self._pump_task.cancel()
            raise
        finally:
            self.signal(signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._pump_task, _DRAIN_TIMEOUT)
        return code if code >= 0 else 128 - code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of it, if anything is left."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
