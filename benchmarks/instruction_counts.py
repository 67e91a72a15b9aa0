"""What work takes in numbers that no load of the machine changes: instructions, bytes."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class InstructionCounter:
    """A count that is complete when the counting is over."""

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
def count_instructions() -> Iterator[InstructionCounter]:
    """Count what the interpreter does inside, on this thread; the collector rests meanwhile."""
    tally, before, is_collecting = InstructionCounter(), sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(tally.trace)
    try:
        yield tally
    finally:
        sys.settrace(before)
        if is_collecting:
            gc.enable()


@contextmanager
def count_allocated_bytes() -> Iterator[InstructionCounter]:
    """Count the bytes that are allocated inside and still held at the end."""
    tally, was_tracing = InstructionCounter(), tracemalloc.is_tracing()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    try:
        yield tally
        gc.collect()
        tally.count = tracemalloc.get_traced_memory()[0] - before
    finally:
        if not was_tracing:
            tracemalloc.stop()
