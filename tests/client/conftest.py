"""An event loop with virtual time, and `run`, which runs a coroutine on it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class JumpSelector(selectors.SelectSelector):
    """Advances the clock to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("everything waits, and nothing will ever happen")
        if not ready and timeout:
            self.now += timeout
        return ready


class JumpLoop(asyncio.SelectorEventLoop):
    """An event loop on which timers fire without delay."""

    def __init__(self) -> None:
        self._jumps = JumpSelector()
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.now


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time and cancel the tasks that it leaves behind."""
    with asyncio.Runner(loop_factory=JumpLoop) as runner:
        return runner.run(coroutine)
