"""The crew in a process of its own beside the server of `phalanx up`, at the end of a line.

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
from collections.abc import AsyncIterator, Callable, Iterator
from http.client import OK
from multiprocessing import get_context

import click
from msgspec.structs import replace

from phalanx.api.wire import Handler, Reply, Request, Stream
from phalanx.client.line import Line
from phalanx.client.transports import Unreachable

#: Seconds that the crew may take to end by itself.
_FAREWELL = 8.0
#: Most objects of a request go by themselves: the collector looks for cycles rarely.
_COLLECTION = (20_000, 20, 50)
_GONE = "scheduler, controllers and nodes have ended"
#: What the server asks the crew for.
_METRICS, READY = "/metrics", "/readyz"


class Ended(Exception):
    """The crew has ended by itself; it has said why."""


def settle() -> None:
    """What start-up made lives to the end: the collector need not look at it again."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTION)


# ---- in the server's process ---------------------------------------------------------------------


@contextlib.contextmanager
def beside(work: Callable[[socket.socket], None]) -> Iterator[socket.socket]:
    """Have something done in a copy of this process, at the other end of a pair of sockets."""
    ours, theirs = socket.socketpair()

    def begin() -> None:
        ours.close()
        _obey(work, theirs)

    process = get_context("fork").Process(target=begin, name="crew")
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join(_FAREWELL)
        process.kill()
        process.join()


@contextlib.asynccontextmanager
async def attended(
    handle: Handler, sock: socket.socket, left: Callable[[Ended], None]
) -> AsyncIterator[Handler]:
    """Serve the crew; once it is ready, a handler that speaks for both. `left` if it goes."""
    line = await Line.over(sock, handle)
    try:
        await _answer_of(line, READY)
    except Unreachable:
        raise Ended(_GONE) from None
    line.ended.add_done_callback(lambda _: left(Ended(_GONE)))
    try:
        yield _speaking_for_both(handle, line)
    finally:
        line.close()


def _speaking_for_both(handle: Handler, line: Line) -> Handler:
    async def answer(request: Request) -> Reply | Stream:
        reply = await handle(request)
        if request.path != _METRICS or not isinstance(reply, Reply) or reply.code != OK:
            return reply
        try:
            crew = await _answer_of(line, _METRICS)
        except Unreachable:
            return reply  # The server stops now; until then it speaks for itself.
        return replace(reply, body=reply.body + crew.body)

    return answer


async def _answer_of(line: Line, path: str) -> Reply:
    answer = await line.ask(Request("GET", path))
    assert isinstance(answer, Reply), path
    return answer


# ---- in the crew's process -----------------------------------------------------------------------


def _obey(work: Callable[[socket.socket], None], sock: socket.socket) -> None:
    """Whoever stops the server stops the crew by hanging up, and in no other way."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        work(sock)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
