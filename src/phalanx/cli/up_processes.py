"""The two processes of `phalanx up` and the socket between them.

    server process    ProcessChannel ═══ socket pair ═══ ProcessChannel    component process
      Server.handle ◀── requests of the components' clients
      GET /metrics, /readyz ──▶ answered by the components

The API server runs in one process; scheduler, controllers and nodes run in the other, so that they
use two cores. The component process is forked from the server process before that one has threads
or an event loop. When the server process ends, the component process ends too. When the component
process ends, the server process goes on and starts another one with the same arguments, with
exponential back-off; only before the first one is ready the server process ends as well.

This module is imported before the fork, so it imports little: each process then imports the rest
of what it needs (`up_server`, `up_components`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import OK
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click
from msgspec.structs import replace

from phalanx import logs
from phalanx.api.feature_gates import FeatureGates
from phalanx.api.wire import Handler, Reply, Request, StreamReply
from phalanx.cli.cluster_state import (
    IN_MEMORY,
    IN_MEMORY_CLUSTER,
    ClusterPlan,
    cluster_folder,
    create_folder,
)
from phalanx.cli.options import LogOptions
from phalanx.client.process_channel import ProcessChannel
from phalanx.client.transports import Unreachable
from phalanx.controllers.nodes.node_pool import SimulatedNode
from phalanx.controllers.nodes.simulated_kubelet import StageRule
from phalanx.server.health import NO_SCHEDULER
from phalanx.server.service_allocator import ServiceRanges
from phalanx.telemetry import merge_pages

if TYPE_CHECKING:
    from phalanx.scheduler.policy import Profiles


LOG = logs.component("components")

#: Name of the audit log in the data directory, and the value of --audit-log that switches it off.
AUDIT_FILE, AUDIT_DISABLED = "audit.log", "none"
#: Paths that the server process requests from the component process.
_METRICS_PATH, READY_PATH = "/metrics", "/readyz"
#: Path that the component process requests from the server process: its certificate authority.
ROOT_CA_PATH = "/root-ca.crt"
#: Seconds that the component process gets to end before it is killed.
_EXIT_TIMEOUT = 8.0
#: Seconds that the server process waits for requests of the component process that are under way.
_FINISH_TIMEOUT = 5.0
#: Reference counting frees most objects of a request: the collector runs rarely.
_GC_THRESHOLDS = (20_000, 20, 50)
_EXITED_MESSAGE = "scheduler, controllers and nodes have ended"
#: The environment variable that gives a started component process its end of the socket pair.
COMPONENT_SOCKET = "PHALANX_COMPONENT_SOCKET"
#: Seconds before an ended component process is started again: at first, at most, and after which
#: time that it was ready the delay begins anew.
_MIN_RESTART_DELAY, _MAX_RESTART_DELAY, _HEALTHY_SECONDS = 0.5, 30.0, 60.0
#: Seconds between two pings of the component process, and without an answer that are an outage.
_PING_INTERVAL, _PING_TIMEOUT = 5.0, 20.0
#: Seconds in which the component process must answer with its metrics, else they are left out.
_METRICS_TIMEOUT = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOptions:
    """Where `phalanx up` stores objects, and how long Events: `event_ttl` in seconds, 0 is ever.

    `cluster` is the name that was given, "" for the default cluster, a directory without a name,
    and `:memory:` without a name.
    """

    cluster: str
    data: str
    store: str
    event_ttl: float
    merge_kubeconfig: bool
    recreate_nodes: bool
    accept_data_loss: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What the API server of `phalanx up` refuses and allocates.

    `service_account_tokens` is None if the option is not given.
    """

    limit_critical_pods: bool
    service_account_tokens: bool | None
    service_ranges: ServiceRanges


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """The options of `phalanx up`, parsed. Without `profiles` the default profile places pods.

    `plan` says what to remember and which nodes to replace; a store in memory has none.
    """

    host: str
    port: int
    server_names: tuple[str, ...]
    storage: StorageOptions
    kubeconfig: Path | None
    nodes: list[SimulatedNode]
    disabled: frozenset[str]
    gates: FeatureGates
    profiles: Profiles | None
    decision_log: Path | None
    basic_workloads: bool
    workload_parents: frozenset[tuple[str, str]]
    webhook_urls: Mapping[str, str]
    audit: str
    server: ServerOptions
    stages: Sequence[StageRule]
    run_processes: bool
    programs: Path | None
    log: LogOptions
    plan: ClusterPlan | None = None

    @property
    def admits_service_accounts(self) -> bool:
        """Whether pods get tokens; without controllers, namespaces have no default account."""
        given = self.server.service_account_tokens
        return "controllers" not in self.disabled if given is None else given

    def runtime_directory(self) -> Path:
        """Return the directory of the PID file; with :memory: that of the cluster's name."""
        if self.storage.data != IN_MEMORY:
            return Path(self.storage.data).expanduser()
        folder = cluster_folder(self.storage.cluster or IN_MEMORY_CLUSTER)
        create_folder(folder)
        return folder


class ComponentsExited(Exception):
    """The component process has ended before it was ready. It has printed or logged the reason."""


def tune_garbage_collector() -> None:
    """Exclude all objects of the start-up from collection, and make the collector run rarely."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def ignore_stop_signals() -> None:
    """Ignore SIGINT and SIGTERM in the component process.

    A signal to the process group reaches both processes. The server process handles it; the
    component process ends when its socket is closed, and only then.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


# ---- in the server process -----------------------------------------------------------------------


class RestartableProcess(Protocol):
    """A component process and our end of the socket to it."""

    socket: socket.socket

    def end(self) -> int | None:
        """Close the socket, wait for the end of the process, and return its exit code."""
        ...

    def restart(self) -> None:
        """Start another process, with a socket of its own; the previous one has ended."""
        ...


class ComponentProcess:
    """The component process: the first one is forked, and runs `work` with its end of the socket.

    A server process with threads and an event loop cannot be forked safely: each later one is
    started as a new `phalanx up` with the arguments of this one.
    """

    def __init__(self, work: Callable[[socket.socket], None]) -> None:
        self.socket, child_socket = socket.socketpair()
        parent_socket = self.socket

        def run_child() -> None:
            parent_socket.close()
            try:
                work(child_socket)
            except click.ClickException as error:
                error.show()
                sys.exit(error.exit_code)
            except Exception:
                LOG.error("the component process failed", exc_info=True)
                sys.exit(1)

        process = get_context("fork").Process(target=run_child, name="components")
        process.start()
        child_socket.close()

        def wait(seconds: float | None) -> int | None:
            process.join(seconds)
            return process.exitcode

        self._wait, self._kill = wait, process.kill

    def restart(self) -> None:
        """Start another component process; the previous one has ended."""
        self.socket, child_socket = socket.socketpair()
        number = child_socket.fileno()
        arguments = sys.argv[sys.argv.index("up") + 1 :]
        process = subprocess.Popen(
            # -P: a module of the working directory must not take the place of ours.
            [sys.executable, "-P", "-m", "phalanx", "up", *arguments],
            stdin=subprocess.DEVNULL,
            env={**os.environ, COMPONENT_SOCKET: str(number)},
            pass_fds=(number,),
        )
        child_socket.close()

        def wait(seconds: float | None) -> int | None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
            return process.returncode

        self._wait, self._kill = wait, process.kill

    def end(self) -> int | None:
        """Close the socket, on which the process ends; kill it if it does not."""
        self.socket.close()
        if self._wait(_EXIT_TIMEOUT) is None:
            LOG.warning("component process does not end, killing it", seconds=_EXIT_TIMEOUT)
            self._kill()
        return self._wait(None)


class ComponentSupervisor:
    """Serves the component process, and starts another one whenever it ends.

    `handle` is the handler of the server process, `answer` the same with the components' metrics.
    The component process alone can also read `root_ca`, the certificate authority of the server.
    """

    def __init__(self, handle: Handler, process: RestartableProcess, root_ca: bytes = b"") -> None:
        self._handle, self._process, self._root_ca = handle, process, root_ca
        self._channel: ProcessChannel | None = None
        self._answered_at, self._restarts = 0.0, 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Supervise for the duration of the context, which begins when the components are ready."""
        try:
            await self._connect()
        except Unreachable:
            raise ComponentsExited(_EXITED_MESSAGE) from None
        supervising = asyncio.create_task(self._supervise())
        try:
            yield
        finally:
            supervising.cancel()
            await asyncio.wait([supervising])
            if self._channel is not None:
                # The caller closes the store next: no request may be under way then.
                await self._channel.finish(_FINISH_TIMEOUT)

    @property
    def outage(self) -> str:
        """Why the components do not run; "" if they do."""
        if self._channel is None or self._channel.closed.done():
            return NO_SCHEDULER
        silent = asyncio.get_running_loop().time() - self._answered_at
        if silent > _PING_TIMEOUT:
            return f"{NO_SCHEDULER}: its process has not answered for {silent:.0f} s"
        return ""

    async def answer(self, request: Request) -> Reply | StreamReply:
        """Answer a request to the server; `/metrics` with the metrics of both processes."""
        reply = await self._handle(request)
        channel = self._channel
        if request.path != _METRICS_PATH or not isinstance(reply, Reply) or reply.code != OK:
            return reply
        if channel is None:
            return reply
        try:
            async with asyncio.timeout(_METRICS_TIMEOUT):
                components = await _get_reply(channel, _METRICS_PATH)
        except (Unreachable, TimeoutError):
            return reply
        if components.code != OK:
            return reply
        pages = (reply.body.decode(), components.body.decode())
        return replace(reply, body=merge_pages(*pages).encode())

    async def _answer_components(self, request: Request) -> Reply | StreamReply:
        if request.path == ROOT_CA_PATH:
            return Reply(OK, self._root_ca)
        return await self._handle(request)

    async def _connect(self) -> None:
        """Connect to the process and wait until it is ready. Raises Unreachable if it ends."""
        channel = await ProcessChannel.connect(self._process.socket, self._answer_components)
        try:
            await _get_reply(channel, READY_PATH)
        except asyncio.CancelledError:
            channel.close()
            raise
        self._answered_at = asyncio.get_running_loop().time()
        self._channel = channel

    async def _supervise(self) -> None:
        """Start another component process whenever it ends."""
        loop, delay = asyncio.get_running_loop(), _MIN_RESTART_DELAY
        while True:
            started = loop.time()
            await self._ping_until_closed()
            self._channel = None
            if loop.time() - started >= _HEALTHY_SECONDS:
                delay = _MIN_RESTART_DELAY
            code = await asyncio.to_thread(self._process.end)
            status = f"exit code {code}"
            if code is not None and code < 0:
                status = f"killed by {signal.Signals(-code).name}"
            LOG.warning(
                "component process has ended, starting it again", status=status, backoff=delay
            )
            await asyncio.sleep(delay)
            delay = min(2 * delay, _MAX_RESTART_DELAY)
            try:
                self._restarts += 1
                self._process.restart()
                await self._connect()
                LOG.info("component process is ready again", restarts=self._restarts)
            except Unreachable:
                continue
            except Exception:
                LOG.error("component process cannot be started", exc_info=True)

    async def _ping_until_closed(self) -> None:
        """Ask the component process from time to time whether it is there, until it is not."""
        channel = self._channel
        while channel is not None and not channel.closed.done():
            try:
                await _get_reply(channel, READY_PATH)
                self._answered_at = asyncio.get_running_loop().time()
            except Unreachable:
                return
            await asyncio.wait([channel.closed], timeout=_PING_INTERVAL)


async def _get_reply(channel: ProcessChannel, path: str) -> Reply:
    answer = await channel.request(Request("GET", path))
    assert isinstance(answer, Reply), path
    return answer
