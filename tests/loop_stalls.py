"""How long a request keeps the event loop from other work, in CPU time.

Wall-clock time depends on what else the machine does. So a stall is the CPU time of the longest
step of the loop, and its bound grows with the time that a fixed loop in Python takes here.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar
from unittest.mock import patch

from phalanx.server.request_bodies import MAX_OBJECT_VALUES

S = TypeVar("S")
T = TypeVar("T")

#: The longest step of the loop that one request may cause.
MAX_STALL = 0.25
#: The time that `_calibrate` takes on the machine that the bound was chosen for.
_REFERENCE_SECONDS = 0.024
#: `make coverage` traces every line of the product, but not `_calibrate`: bounds are wider then.
_TRACING_FACTOR = 20.0
_ATTEMPTS = 10


class Stall(NamedTuple):
    """The longest step, relative to the bound: at most 1 is accepted."""

    seconds: float
    allowed: float

    @property
    def is_accepted(self) -> bool:
        return self.seconds <= self.allowed


async def longest_step(work: Callable[[], Awaitable[T]]) -> tuple[T, float]:
    """Run a coroutine as a task; return its result and the CPU time of the longest step."""
    with _measure_steps() as steps:
        result = await asyncio.ensure_future(_as_coroutine(work))
    return result, max(steps)


async def measure_stall(
    work: Callable[[S], Awaitable[T]],
    prepare: Callable[[], Awaitable[S]],
    *,
    bound: float = MAX_STALL,
) -> tuple[T, Stall]:
    """Run a request; repeat it if it seems slow, as another process may have slowed it down.

    Each attempt works on something that was prepared anew: results that are cached do not count.
    """
    for _ in range(_ATTEMPTS):
        prepared, before = await prepare(), _calibrate()
        result, seconds = await longest_step(lambda: work(prepared))  # noqa: B023
        slowness = max(before, _calibrate()) / _REFERENCE_SECONDS
        factor = _TRACING_FACTOR if sys.gettrace() else 1.0
        stall = Stall(seconds, bound * max(slowness, 1.0) * factor)
        if stall.is_accepted:
            break
    return result, stall


async def _as_coroutine(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


@contextmanager
def _measure_steps() -> Iterator[list[float]]:
    run, steps = asyncio.events.Handle._run, [0.0]

    def run_measured(handle: asyncio.Handle) -> None:
        started = time.thread_time()
        run(handle)
        steps.append(time.thread_time() - started)

    with patch.object(asyncio.events.Handle, "_run", run_measured):
        yield steps


def _calibrate() -> float:
    """The CPU time of a fixed amount of work, on as many values as an object may have.

    In a process that has run for long, the values are scattered over its memory, for this work as
    for a request: reading them takes longer then.
    """
    started, table = time.thread_time(), dict[int, list[object]]()
    numbers = list(range(MAX_OBJECT_VALUES))
    for _ in range(8):
        for number in numbers:
            table[number % 1000] = [number, str(number)]
    return time.thread_time() - started
