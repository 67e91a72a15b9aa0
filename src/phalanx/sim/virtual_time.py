"""An event loop in virtual time: when nothing is ready, time jumps to the next timer.

Everything in virtual time runs on it; `run_virtual` is the entry point. Nothing sleeps, and
threads, processes, sockets and signals raise, so that the same program with the same seed does the
same things in the same order. A wait that nothing can end raises instead of hanging.

    ready      timers      the loop
    yes        -           runs what is ready; no time passes
    no         some        jumps to the next timer
    no         none        raises NoTimerLeft

Before it jumps or raises, the loop calls `on_idle`, which may make something ready. `Instants` uses
it: what happens at one time of a simulation happens in a fixed order. Components react to each
other without time passing. `Instants.settle` waits until all of them are idle at the present time;
among several waits the one of the earliest phase continues first.

    Phase.NODES      lost and repaired nodes     after the jobs that end at this time
    Phase.JOBS       submitted jobs
    Phase.SCHEDULER  the next scheduling cycle
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import selectors
import threading
from collections.abc import Callable, Coroutine
from enum import IntEnum
from heapq import heappop, heappush
from itertools import count
from typing import Any, NoReturn, TypeVar, TypeVarTuple

#: Virtual seconds and loop iterations after which a simulation counts as endless.
MAX_SECONDS, MAX_ITERATIONS = 400 * 24 * 3600.0, 20_000_000

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class NoTimerLeft(RuntimeError):
    """The program waits, but no timer is left that could wake it."""


class SimulationTimeout(RuntimeError):
    """The simulation exceeded its time limit."""


class RealWorldAccess(RuntimeError):
    """The program tried to use something outside of virtual time."""

    def __init__(self, what: str) -> None:
        super().__init__(f"in virtual time there are no {what}: everything runs on the one loop")


class UnhandledTaskError(RuntimeError):
    """A callback or task failed, and no other task awaited it."""


def run_virtual(
    main: Callable[[], Coroutine[Any, Any, T]],
    *,
    max_seconds: float = MAX_SECONDS,
    max_iterations: int = MAX_ITERATIONS,
) -> T:
    """Run a coroutine function from second 0 on a new loop.

    Raises SimulationTimeout after a number of virtual seconds or loop iterations.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(max_seconds, max_iterations)) as runner:
        return runner.run(main())


class VirtualLoop(asyncio.SelectorEventLoop):
    """The standard event loop with a virtual clock that starts at 0."""

    def __init__(
        self, max_seconds: float = MAX_SECONDS, max_iterations: int = MAX_ITERATIONS
    ) -> None:
        self._now, self._iteration = 0.0, 0
        self._max_seconds, self._max_iterations = max_seconds, max_iterations
        #: Called when nothing more happens at the present time; True if something is ready now.
        self.on_idle: Callable[[], bool] | None = None
        self._thread = threading.get_ident()
        selector = _VirtualSelector(self._advance)
        super().__init__(selector)
        selector.is_sealed = True
        self._set_time(0.0)

    def time(self) -> float:
        """Return the virtual seconds since the start."""
        return self._now

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call back at a time in whole microseconds, after the present one.

        Times since the epoch are no more exact. What is due at one time, by different sums, so
        happens at one time, and a wait for the rest of a deadline takes time.
        """
        nearest = round(when, 6)
        if nearest <= self._now < when:
            nearest = round(self._now + 1e-6, 6)
        return super().call_at(nearest, callback, *args, context=context)

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Call `call_soon`; only from the thread of the loop."""
        if threading.get_ident() != self._thread:
            raise RealWorldAccess("threads")
        return self.call_soon(callback, *args, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> NoReturn:
        """End the simulation: a logged error would go unnoticed."""
        raise UnhandledTaskError(context["message"]) from context.get("exception")

    def _advance(self, seconds: float | None) -> None:
        """Advance the clock to the next timer; None: there is no timer."""
        self._iteration += 1
        # Raised again after as many iterations, so that the loop can still be closed.
        if self._iteration % self._max_iterations == 0:
            raise SimulationTimeout(
                f"no end after {self._max_iterations} turns of the loop, at t={self._now:g}"
            )
        if seconds != 0 and self.on_idle is not None and self.on_idle():
            return
        if seconds is None:
            names = sorted(
                f"{task.get_name()} ({getattr(task.get_coro(), '__qualname__', '')})"
                for task in asyncio.all_tasks(self)
            )
            raise NoTimerLeft(
                f"at t={self._now:g} no timer is left, and these wait: {', '.join(names)}"
            )
        if seconds:
            self._set_time(self._now + seconds)

    def _set_time(self, now: float) -> None:
        if now > self._max_seconds:
            raise SimulationTimeout(f"no end after {self._max_seconds:g} virtual seconds")
        self._now = now
        # A timer is due exactly at its time, not a nanosecond earlier: otherwise a wait for the
        # rest of a deadline could end again and again without time passing.
        self._clock_resolution = math.ulp(now)


class _VirtualSelector(selectors.SelectSelector):
    """The selector of the loop: waits for no files and advances the clock instead."""

    def __init__(self, advance: Callable[[float | None], None]) -> None:
        super().__init__()
        self._advance = advance
        self.is_sealed = False

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if self.is_sealed:
            raise RealWorldAccess("files or sockets")
        return super().register(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._advance(timeout)
        return []


#: Loop methods that raise, and what they would need.
UNSUPPORTED_METHODS = {
    "add_reader": "files or sockets",
    "add_signal_handler": "signals",
    "add_writer": "files or sockets",
    "connect_accepted_socket": "sockets",
    "connect_read_pipe": "pipes",
    "connect_write_pipe": "pipes",
    "create_connection": "sockets",
    "create_datagram_endpoint": "sockets",
    "create_server": "sockets",
    "create_unix_connection": "sockets",
    "create_unix_server": "sockets",
    "getaddrinfo": "threads or sockets",
    "getnameinfo": "threads or sockets",
    "run_in_executor": "threads",
    "sock_accept": "sockets",
    "sock_connect": "sockets",
    "sock_recv": "sockets",
    "sock_recv_into": "sockets",
    "sock_recvfrom": "sockets",
    "sock_recvfrom_into": "sockets",
    "sock_sendall": "sockets",
    "sock_sendfile": "sockets",
    "sock_sendto": "sockets",
    "subprocess_exec": "processes",
    "subprocess_shell": "processes",
}


def _create_rejection(what: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise RealWorldAccess(what)

    return refuse


for _name, _what in UNSUPPORTED_METHODS.items():
    setattr(VirtualLoop, _name, _create_rejection(_what))


# ---- instants ------------------------------------------------------------------------------------


class Phase(IntEnum):
    """The order of what happens at one time."""

    NODES = 0
    JOBS = 1
    SCHEDULER = 2


class Instants:
    """Orders what happens at one time of a virtual loop.

    `on_settled` functions are called when nothing is left to do at the present time.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop, self._numbers = loop, count()
        self._waits: list[tuple[Phase, int, asyncio.Future[None]]] = []
        self.on_settled: list[Callable[[], None]] = []
        loop.on_idle = self._continue_first

    async def settle(self, phase: Phase) -> None:
        """Wait until everything is idle and no wait of an earlier phase is left."""
        future: asyncio.Future[None] = self._loop.create_future()
        heappush(self._waits, (phase, next(self._numbers), future))
        await future

    def _continue_first(self) -> bool:
        while self._waits:
            _, _, future = heappop(self._waits)
            if not future.done():
                future.set_result(None)
                return True
        for call in self.on_settled:
            call()
        return False
