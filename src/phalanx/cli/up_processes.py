"""What `phalanx up` was asked for, as a value: read by the server's process and by the crew's.

Light on purpose: it is loaded before the two part, and each loads what it needs alone.

The crew in a process of its own beside the server of `phalanx up`, at the end of a line.

    server's process   Line ═══ pair of sockets ═══ Line   crew's process
      Server.handle ◀── requests of the crew's clients
      /metrics, /readyz ──▶ answered by the crew

The two processes do on two cores what one loop would do in turn. The crew's process is a copy of
the server's from before that had threads or a loop; neither outlives the other.
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

from phalanx.api.feature_gates import FeatureGates
from phalanx.api.wire import Handler, Reply, Request, StreamReply
from phalanx.cli.options import state_directory
from phalanx.client.process_channel import ProcessChannel
from phalanx.client.transports import Unreachable
from phalanx.controllers.nodes.node_pool import SimulatedNode
from phalanx.controllers.nodes.simulated_kubelet import StageRule

if TYPE_CHECKING:
    from phalanx.scheduler.configuration.profiles import Profiles


IN_MEMORY = ":memory:"


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What the command line asks for; without `profiles` pods are placed as usual."""

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

    def runtime_directory(self) -> Path:
        """Where it is looked for: in its folder, or in the user's if it keeps nothing."""
        if self.data != IN_MEMORY:
            return Path(self.data).expanduser()
        place = state_directory()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        return place


#: Seconds that the crew may take to end by itself.
_EXIT_TIMEOUT = 8.0
#: Most objects of a request go by themselves: the collector looks for cycles rarely.
_GC_THRESHOLDS = (20_000, 20, 50)
_EXITED_MESSAGE = "scheduler, controllers and nodes have ended"
#: What the server asks the crew for.
_METRICS_PATH, READY_PATH = "/metrics", "/readyz"


class ComponentsExited(Exception):
    """The crew has ended by itself; it has said why."""


def tune_garbage_collector() -> None:
    """What start-up made lives to the end: the collector need not look at it again."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


# ---- in the server's process ---------------------------------------------------------------------


@contextlib.contextmanager
def run_in_child_process(work: Callable[[socket.socket], None]) -> Iterator[socket.socket]:
    """Have something done in a copy of this process, at the other end of a pair of sockets."""
    ours, theirs = socket.socketpair()

    def begin() -> None:
        ours.close()
        _run_child(work, theirs)

    process = get_context("fork").Process(target=begin, name="crew")
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join(_EXIT_TIMEOUT)
        process.kill()
        process.join()


@contextlib.asynccontextmanager
async def serve_components(
    handle: Handler, sock: socket.socket, on_exit: Callable[[ComponentsExited], None]
) -> AsyncIterator[Handler]:
    """Serve the crew; once it is ready, a handler that speaks for both. `left` if it goes."""
    line = await ProcessChannel.connect(sock, handle)
    try:
        await _get_reply(line, READY_PATH)
    except Unreachable:
        raise ComponentsExited(_EXITED_MESSAGE) from None
    line.closed.add_done_callback(lambda _: on_exit(ComponentsExited(_EXITED_MESSAGE)))
    try:
        yield _with_component_metrics(handle, line)
    finally:
        line.close()


def _with_component_metrics(handle: Handler, channel: ProcessChannel) -> Handler:
    async def answer(request: Request) -> Reply | StreamReply:
        reply = await handle(request)
        if request.path != _METRICS_PATH or not isinstance(reply, Reply) or reply.code != OK:
            return reply
        try:
            crew = await _get_reply(channel, _METRICS_PATH)
        except Unreachable:
            return reply  # The server stops now; until then it speaks for itself.
        return replace(reply, body=reply.body + crew.body)

    return answer


async def _get_reply(channel: ProcessChannel, path: str) -> Reply:
    answer = await channel.request(Request("GET", path))
    assert isinstance(answer, Reply), path
    return answer


# ---- in the crew's process -----------------------------------------------------------------------


def _run_child(work: Callable[[socket.socket], None], sock: socket.socket) -> None:
    """Whoever stops the server stops the crew by hanging up, and in no other way."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        work(sock)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
