"""What a disk may hold after the power was cut: all that was flushed, and any of the rest.

Only the flushes among the calls of a process (`syscall_trace.py`) are certain. A write that was not
flushed is there, or not, or torn: some of its sectors are there and others are not; a file is as
long as if it had been cut, or not; a name is there, or not. `Disk` follows the calls and makes
folders of what could be left at any moment.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from tests.store.syscall_trace import (
    BytesWritten,
    FileCreated,
    FileFlushed,
    FileLinked,
    FileRemoved,
    FileRenamed,
    FileTruncated,
    OutputWritten,
    TracedCall,
)

#: What disks write whole, at worst.
SECTOR = 512

#: Files that mean nothing to the next process.
IGNORED_FILES = ("store.lock", "store.db-shm")

#: Whether one thing that was not flushed is there all the same.
KeepWrite: TypeAlias = Callable[[], bool]


class SimulatedFile:
    """Bytes that are on disk, and what may or may not be."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.unflushed: list[BytesWritten | FileTruncated] = []

    def flush(self) -> None:
        for call in self.unflushed:
            _apply(self.content, call, lambda: True)
        self.unflushed.clear()

    def contents_after_power_loss(self, fate: KeepWrite) -> bytes:
        """What it may hold after a loss of power."""
        content = bytearray(self.content)
        for call in self.unflushed:
            _apply(content, call, fate)
        return bytes(content)


class SimulatedDisk:
    """A folder, the calls about it so far, and what was acknowledged."""

    def __init__(self, folder: Path) -> None:
        files = {path.name: SimulatedFile(path.read_bytes()) for path in folder.iterdir()}
        self._durable, self._visible = files, dict(files)
        self._unflushed: list[tuple[str, SimulatedFile | None]] = []
        #: The last transaction and revision that was acknowledged.
        self.acknowledged = (0, 0)

    def follow(self, call: TracedCall) -> None:
        """Have a call made."""
        match call:
            case OutputWritten(text):
                lines = ((int(n), int(r)) for n, r in map(str.split, text.splitlines()))
                self.acknowledged = max(self.acknowledged, *lines)
            case FileCreated(name):
                if name not in self._visible:
                    self._name(name, SimulatedFile())
            case FileRemoved(name):
                self._name(name, None)
            case FileRenamed(name, to):
                self._name(to, self._visible[name])
                self._name(name, None)
            case FileLinked(name, to):
                self._name(to, self._visible[name])
            case FileFlushed(""):
                self._durable = dict(self._visible)
                self._unflushed.clear()
            case FileFlushed(name):
                self._visible[name].flush()
            case BytesWritten(name) | FileTruncated(name):
                self._visible[name].unflushed.append(call)

    def write_after_power_loss(self, folder: Path, fate: KeepWrite) -> None:
        """Make a folder of what may be there after a loss of power."""
        names = dict(self._durable)
        for name, file in self._unflushed:
            if fate():
                names.pop(name, None)
                names |= {name: file} if file else {}
        folder.mkdir()
        for name, file in names.items():
            if name not in IGNORED_FILES:
                (folder / name).write_bytes(file.contents_after_power_loss(fate))

    def _name(self, name: str, file: SimulatedFile | None) -> None:
        self._unflushed.append((name, file))
        self._visible.pop(name, None)
        if file:
            self._visible[name] = file


def power_loss_outcomes(rng: random.Random) -> dict[str, KeepWrite]:
    """Ways in which a disk may treat what was not flushed."""
    likely = rng.random()
    return {
        "nothing": lambda: False,
        "everything": lambda: True,
        "some": lambda: rng.random() < likely,
        "most": lambda: rng.random() < 0.97,
        "little": lambda: rng.random() < 0.03,
    }


def _apply(content: bytearray, call: BytesWritten | FileTruncated, fate: KeepWrite) -> None:
    """Have a call happen, sector by sector."""
    if isinstance(call, FileTruncated):
        if fate():
            del content[call.size :]
            content.extend(bytes(call.size - len(content)))
        return
    at, end = call.offset, call.offset + len(call.data)
    while at < end:
        until = min(end, (at // SECTOR + 1) * SECTOR)
        if fate():
            content.extend(bytes(max(0, until - len(content))))
            content[at:until] = call.data[at - call.offset : until - call.offset]
        at = until
