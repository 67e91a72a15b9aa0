"""An event loop whose time jumps, and the way to run a coroutine on it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class JumpSelector(selectors.SelectSelector):
    """Instead of waiting for a time, moves the clock there."""

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
    """A loop on which nothing takes any time but what waits."""

    def __init__(self) -> None:
        self._jumps = JumpSelector()
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.now


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns, in virtual time; tasks that it leaves behind are cancelled."""
    with asyncio.Runner(loop_factory=JumpLoop) as runner:
        return runner.run(coroutine)
