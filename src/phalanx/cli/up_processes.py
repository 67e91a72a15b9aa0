"""The two processes of `phalanx up` and the socket between them.

    server process    ProcessChannel ═══ socket pair ═══ ProcessChannel    component process
      Server.handle ◀── requests of the components' clients
      GET /metrics, /readyz ──▶ answered by the components

The API server runs in one process; scheduler, controllers and nodes run in the other, so that they
use two cores. The component process is forked from the server process before that one has threads
or an event loop. When either process ends, the other ends too.

This module is imported before the fork, so it imports little: each process then imports the rest
of what it needs (`up_server`, `up_components`).
"""

from __future__ import annotations

import contextlib
import gc
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from http.client import OK
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from phalanx import logs
from phalanx.api.feature_gates import FeatureGates
from phalanx.api.wire import Handler, Reply, Request, StreamReply
from phalanx.cli.options import LogOptions, state_directory
from phalanx.client.process_channel import ProcessChannel
from phalanx.client.transports import Unreachable
from phalanx.controllers.nodes.node_pool import SimulatedNode
from phalanx.controllers.nodes.simulated_kubelet import StageRule

if TYPE_CHECKING:
    from phalanx.scheduler.configuration.profiles import Profiles


LOG = logs.component("components")

IN_MEMORY = ":memory:"
#: Name of the audit log in the data directory.
AUDIT_FILE = "audit.log"
#: Paths that the server process requests from the component process.
_METRICS_PATH, READY_PATH = "/metrics", "/readyz"
#: Seconds that the component process gets to end before it is killed.
_EXIT_TIMEOUT = 8.0
#: Reference counting frees most objects of a request: the collector runs rarely.
_GC_THRESHOLDS = (20_000, 20, 50)
_EXITED_MESSAGE = "scheduler, controllers and nodes have ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """The options of `phalanx up`, parsed. Without `profiles` the default profile places pods."""

    host: str
    port: int
    server_names: tuple[str, ...]
    data: str
    store: str
    kubeconfig: Path | None
    nodes: list[SimulatedNode]
    disabled: frozenset[str]
    gates: FeatureGates
    profiles: Profiles | None
    decision_log: Path | None
    basic_workloads: bool
    audit: str
    stages: Sequence[StageRule]
    run_processes: bool
    programs: Path | None
    log: LogOptions

    def runtime_directory(self) -> Path:
        """Return the directory of the PID file; with :memory: the default data directory."""
        if self.data != IN_MEMORY:
            return Path(self.data).expanduser()
        folder = state_directory()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder


class ComponentsExited(Exception):
    """The component process has ended by itself. It has printed or logged the reason."""


def tune_garbage_collector() -> None:
    """Exclude all objects of the start-up from collection, and make the collector run rarely."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


# ---- in the server process -----------------------------------------------------------------------


@contextlib.contextmanager
def run_in_child_process(work: Callable[[socket.socket], None]) -> Iterator[socket.socket]:
    """Run `work` in a forked process with one end of a socket pair; yield the other end."""
    parent_socket, child_socket = socket.socketpair()

    def run_child() -> None:
        parent_socket.close()
        # A signal to the process group reaches both processes. The server process handles it; the
        # component process ends when its socket is closed, and only then.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
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
    try:
        yield parent_socket
    finally:
        parent_socket.close()
        process.join(_EXIT_TIMEOUT)
        process.kill()
        process.join()


@contextlib.asynccontextmanager
async def serve_components(
    handle: Handler, sock: socket.socket, on_exit: Callable[[ComponentsExited], None]
) -> AsyncIterator[Handler]:
    """Serve the component process; once it is ready, yield a handler that adds its metrics.

    `on_exit` is called if the component process ends before the context does.
    """
    channel = await ProcessChannel.connect(sock, handle)
    try:
        await _get_reply(channel, READY_PATH)
    except Unreachable:
        raise ComponentsExited(_EXITED_MESSAGE) from None
    channel.closed.add_done_callback(lambda _: on_exit(ComponentsExited(_EXITED_MESSAGE)))
    try:
        yield _with_component_metrics(handle, channel)
    finally:
        channel.close()


def _with_component_metrics(handle: Handler, channel: ProcessChannel) -> Handler:
    async def answer(request: Request) -> Reply | StreamReply:
        reply = await handle(request)
        if request.path != _METRICS_PATH or not isinstance(reply, Reply) or reply.code != OK:
            return reply
        try:
            components = await _get_reply(channel, _METRICS_PATH)
        except Unreachable:
            # The component process has just ended, so the server is about to stop.
            return reply
        return replace(reply, body=reply.body + components.body)

    return answer


async def _get_reply(channel: ProcessChannel, path: str) -> Reply:
    answer = await channel.request(Request("GET", path))
    assert isinstance(answer, Reply), path
    return answer
