"""The signals that end a command which runs until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

_ENDS = (signal.SIGTERM, signal.SIGINT)


@contextlib.asynccontextmanager
async def signals() -> AsyncIterator[asyncio.Event]:
    """An event that SIGTERM and ^C set."""
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in _ENDS:
        loop.add_signal_handler(number, stopped.set)
    try:
        yield stopped
    finally:
        for number in _ENDS:
            loop.remove_signal_handler(number)
