"""Costs that do not depend on the load of the machine: bytecode instructions and bytes."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class InstructionCounter:
    """A counter whose count is complete when the context ends."""

    def __init__(self) -> None:
        self.count = 0

    def trace(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        """Trace function: called for every function and every instruction."""
        if event == "opcode":
            self.count += 1
        elif event == "call":
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self.trace


@contextmanager
def count_instructions() -> Iterator[InstructionCounter]:
    """Count the instructions inside the context, on this thread, without garbage collection."""
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
    """Count the bytes that are allocated inside the context and still held at its end."""
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
