"""Runs a container of a process node as a local process.

    pod, container ─▶ ContainerCommand ─▶ ContainerProcess ─▶ exit code
                                                └─▶ ContainerOutput ─▶ pod log on the server

`build_container_command` is pure: argv (never a shell), environment (nothing inherited), working
directory, limits. The image is ignored: the command must exist on this machine. A container that
needs a container runtime (volumes, values from ConfigMaps, sidecars) is rejected with a reason.

A process has its own session, no open descriptor except its pipe, limits that it sets itself before
it executes the command (`launch.py`), and a directory below a private one. When it ends, its whole
session is killed. Output goes to the server line by line; under a flood only the end is kept.

A runtime would inject devices by their CDI names, `vendor/class=device`. A process gets these names
for each claim that its container uses, the driver being the vendor and the request the class:

    CDI_DEVICES_GPU=gpu.example.com/gpu=gpu-0,gpu.example.com/gpu=gpu-1     the claim `gpu`

An extended resource that a DeviceClass serves has no entry in `resourceClaims`: the scheduler
creates the claim, and the pod's status says which request belongs to which container and resource.

    CDI_DEVICES_EXAMPLE_COM_GPU=gpu.example.com/container-0-request-0=gpu-0     `example.com/gpu`
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

from phalanx import logs
from phalanx.api.core import TOKEN_MOUNT_PATH
from phalanx.api.errors import ApiError
from phalanx.api.kinds import POD
from phalanx.api.meta import Key
from phalanx.api.resources import exact_value
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.controllers.nodes import launch

LOG = logs.component("process-kubelet")

#: The IP address of all pods of process nodes.
LOOPBACK = "127.0.0.1"
_MEGA = 1024 * 1024
#: Default limits by their names in the module `resource`; container limits override them.
_DEFAULT_LIMITS = {"CORE": 0, "NOFILE": 1024, "FSIZE": 1024 * _MEGA}
#: Resource of a container -> the process limit that enforces it.
_LIMITS = {"memory": "AS", "ephemeral-storage": "FSIZE"}
#: `$(NAME)` refers to a variable, `$$` is a dollar sign.
_REFERENCE = re.compile(r"\$(\$|\(([^()$]+)\))")
_DEVICES_PREFIX = "CDI_DEVICES_"


class UnsupportedContainer(ValueError):
    """A container uses a feature that process nodes do not support."""


@dataclass(frozen=True, slots=True)
class ContainerCommand:
    """The command of a container; `working_directory` is relative to the directory of the pod."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    working_directory: str
    limits: Mapping[str, int]


def build_container_command(
    pod: Object, container: Object, base_env: Mapping[str, str]
) -> ContainerCommand:
    """Build the command of a container; `base_env` is the environment of every process.

    Raises UnsupportedContainer.
    """
    if not container.get("command"):
        raise UnsupportedContainer("it has no command, and process nodes do not run images")
    mounts = container.get("volumeMounts") or ()
    # Admission mounts a token into every container: processes do without it.
    if container.get("envFrom") or any(m.get("mountPath") != TOKEN_MOUNT_PATH for m in mounts):
        raise UnsupportedContainer("process nodes support neither volumeMounts nor envFrom")
    if container.get("restartPolicy"):
        raise UnsupportedContainer("process nodes do not support sidecars")
    env = _environment(pod, container, base_env)
    words = [*container["command"], *(container.get("args") or ())]
    argv = tuple(_expand(word, env) for word in words)
    if any("\0" in text for text in (*argv, *env.values())):
        raise UnsupportedContainer("its command or environment contains a zero byte")
    return ContainerCommand(
        argv, env, working_directory=_working_directory(container), limits=_limits(container)
    )


def _environment(pod: Object, container: Object, base_env: Mapping[str, str]) -> dict[str, str]:
    """Return the base variables and the container's; each may refer to the ones before it."""
    env = dict(base_env)
    for variable in container.get("env") or ():
        name, source = variable["name"], variable.get("valueFrom")
        if source:
            value = _value_from(pod, container, name, source=source)
        else:
            value = _expand(variable.get("value", ""), env)
        if value is not None:
            env[name] = value
    return env


def _value_from(pod: Object, container: Object, name: str, *, source: Object) -> str | None:
    if "fieldRef" in source:
        return _field(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return _resource_field(container, source["resourceFieldRef"])
    (reference,) = source.values()
    if reference.get("optional"):
        return None
    raise UnsupportedContainer(
        f"variable {name}: process nodes do not support {next(iter(source))}"
    )


#: Field path of a pod -> a function that returns its value.
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
        raise UnsupportedContainer(f"unsupported fieldPath {path}")
    return str((pod["metadata"].get(entry[1]) or {}).get(entry[2], ""))


def _resource_field(container: Object, source: Object) -> str:
    """Return an amount of a resource in units of the divisor, rounded up."""
    section, _, name = source["resource"].partition(".")
    amounts = (container.get("resources") or {}).get(section) or {}
    if name not in amounts:
        raise UnsupportedContainer(f"it has no {source['resource']}")
    divisor = source.get("divisor")
    unit = exact_value(divisor) if divisor and str(divisor) != "0" else 1
    return str(math.ceil(exact_value(amounts[name]) / unit))


def service_account_of(pod: Object) -> str:
    """Return the name of the service account of a pod."""
    return str(pod["spec"].get("serviceAccountName") or "default")


def _expand(text: str, env: Mapping[str, str]) -> str:
    """Replace each `$(NAME)` by the variable; unknown names stay as they are."""

    def replacement(match: re.Match[str]) -> str:
        return "$" if match[1] == "$" else env.get(match[2], match[0])

    return _REFERENCE.sub(replacement, text)


def _working_directory(container: Object) -> str:
    """Return the working directory relative to the directory of the pod, which is its root."""
    path = PurePosixPath("/", container.get("workingDir") or "")
    if ".." in path.parts:
        raise UnsupportedContainer("its workingDir is outside of the directory of the pod")
    return str(path.relative_to("/"))


def _limits(container: Object) -> dict[str, int]:
    limits = (container.get("resources") or {}).get("limits") or {}
    enforced = {
        _LIMITS[name]: math.ceil(exact_value(amount))
        for name, amount in limits.items()
        if name in _LIMITS
    }
    return {**_DEFAULT_LIMITS, **enforced}


# ---- devices -------------------------------------------------------------------------------------


def claim_names(pod: Object) -> dict[str, str]:
    """Return the names of a pod's claims by the name of their entry in `resourceClaims`."""
    status = pod.get("status") or {}
    created = {
        one["name"]: one.get("resourceClaimName", "")
        for one in status.get("resourceClaimStatuses") or ()
    }
    names = {
        one["name"]: one.get("resourceClaimName") or created.get(one["name"], "")
        for one in pod["spec"].get("resourceClaims") or ()
    }
    return {entry: name for entry, name in names.items() if name}


def device_variables(container: Object, claims: Mapping[str, Object]) -> dict[str, str]:
    """Return the variables for the claims, by entry, that a container uses."""
    variables: dict[str, str] = {}
    for used in (container.get("resources") or {}).get("claims") or ():
        claim = claims.get(used["name"])
        if claim is not None:
            names = _cdi_names(claim, used.get("request", ""))
            variables[_variable_name(used["name"])] = ",".join(names)
    return variables


def extended_claim_name(pod: Object) -> str:
    """Return the name of the claim for a pod's extended resources; "" without one."""
    name: str = _extended_status(pod).get("resourceClaimName", "")
    return name


def extended_resource_variables(container: Object, pod: Object, claim: Object) -> dict[str, str]:
    """Return the variables for the extended resources of a container that devices serve."""
    devices: dict[str, list[str]] = {}
    for mapping in _extended_status(pod).get("requestMappings") or ():
        if mapping["containerName"] == container["name"]:
            found = devices.setdefault(_variable_name(mapping["resourceName"]), [])
            found += _cdi_names(claim, mapping["requestName"])
    return {name: ",".join(names) for name, names in devices.items()}


def _extended_status(pod: Object) -> Object:
    return (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}


def _variable_name(used: str) -> str:
    return _DEVICES_PREFIX + re.sub("[^A-Z0-9]", "_", used.upper())


def _cdi_names(claim: Object, request: str) -> list[str]:
    """The CDI names of the devices of a claim, or of one of its requests."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return [
        f"{one['driver']}/{one['request'].replace('/', '-')}={one['device']}"
        for one in results
        if not request or one["request"].partition("/")[0] == request
    ]


# ---- processes -----------------------------------------------------------------------------------

_LAUNCH = (sys.executable, "-I", "-S", launch.__file__)
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
#: Bytes per read, and maximum bytes that wait to be sent.
_CHUNK, _MAX_BUFFER = 64 * 1024, 256 * 1024
#: Seconds between two requests with output; and to read the pipe after its process has ended.
_SEND_INTERVAL, _DRAIN_TIMEOUT = 0.1, 1.0


@dataclass(frozen=True, slots=True)
class ProcessHost:
    """A private directory for pods, and the directories in which commands are searched.

    The `program_directory` comes first, then that of the running Python, then the system's.
    """

    root: Path
    program_directory: Path | None = None

    def environment(self, folder: Path, name: str) -> dict[str, str]:
        """Return the base environment of a process; nothing is inherited from this process."""
        first = [str(self.program_directory)] if self.program_directory else []
        return {
            "PATH": ":".join([*first, str(Path(sys.executable).parent), _SYSTEM_PATH]),
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "LANG": "C.UTF-8",
            "HOSTNAME": name,
        }

    def pod_directory(self, uid: str) -> Path:
        """Return the directory of a pod. It is named by uid because users choose names."""
        return self.root / uid


class ContainerOutput:
    """Sends the output of one run of a container to the server."""

    def __init__(self, client: Client, key: Key, uid: str, *, container: str, restart: int) -> None:
        self._client, self._path = client, POD.url_path(key.namespace, key.name, "log")
        self._log_fields: Object = {"uid": uid, "container": container, "restart": restart}
        self._pending, self._is_closed = bytearray(), asyncio.Event()

    async def pump(self, pipe: asyncio.StreamReader) -> None:
        """Read a pipe to its end and send its content."""
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
        """Send the first `size` bytes; after a failure they are sent again with the next ones."""
        if not size:
            return
        chunk = bytes(self._pending[:size])
        del self._pending[:size]
        try:
            text = chunk.decode(errors="replace")
            await self._client.post(self._path, {**self._log_fields, "text": text})
        except (ApiError, Unreachable) as error:
            LOG.debug("output not sent, retrying", path=self._path, bytes=size, reason=error)
            self._enqueue(0, chunk)

    def _enqueue(self, at: int, text: bytes) -> None:
        """Insert bytes into the buffer; beyond its limit the oldest are dropped."""
        self._pending[at:at] = text
        del self._pending[: max(len(self._pending) - _MAX_BUFFER, 0)]


class ContainerProcess:
    """A running process with all processes of its session."""

    def __init__(self, process: asyncio.subprocess.Process, output: ContainerOutput) -> None:
        self._process = process
        assert process.stdout is not None
        self._pump_task = asyncio.create_task(output.pump(process.stdout))

    @classmethod
    async def start(
        cls, command: ContainerCommand, folder: Path, output: ContainerOutput
    ) -> ContainerProcess:
        """Start a command in the directory of its pod."""
        directory = folder / command.working_directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        process = await asyncio.create_subprocess_exec(
            *_LAUNCH,
            json.dumps(dict(command.limits)),
            *command.argv,
            cwd=directory,
            env=dict(command.env),
            start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        return cls(process, output)

    @property
    def session(self) -> int:
        """The session id, shared by all processes that it started."""
        return self._process.pid

    async def wait(self) -> int:
        """Wait for the process to end, kill the rest of its session, and return its exit code."""
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
        """Send a signal to the whole session, if any process is left."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
