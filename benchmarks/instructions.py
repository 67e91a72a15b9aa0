"""How much the interpreter does, in bytecode instructions: no load of the machine changes it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Tally:
    """Instructions that were executed while it counted."""

    def __init__(self) -> None:
        self.count = 0

    def trace(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        """What the interpreter calls for every function and every instruction in it."""
        if event == "opcode":
            self.count += 1
        elif event == "call":
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self.trace


@contextmanager
def counting() -> Iterator[Tally]:
    """Count what happens inside, on this thread; the collector rests, whose turn is chance."""
    tally, before, is_collecting = Tally(), sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(tally.trace)
    try:
        yield tally
    finally:
        sys.settrace(before)
        if is_collecting:
            gc.enable()
