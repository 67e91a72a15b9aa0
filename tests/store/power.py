"""What a disk may hold after the power was cut: all that was flushed, and any of the rest.

Of what a process asked of the disk (`tracing.py`) only the flushes are sure. A write that was not
flushed is there, or not, or torn: some of its sectors are there and others are not; a file is as
long as if it had been cut, or not; a name is there, or not. `Disk` follows the calls and makes
folders of what could be left at any moment.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from tests.store.tracing import Call, Cut, Flushed, Made, Moved, Removed, Said, Written

#: What disks write whole, at worst.
SECTOR = 512

#: Files that mean nothing to the next process.
PASSING = ("store.lock", "store.db-shm")

#: Whether one thing that was not flushed is there all the same.
Fate: TypeAlias = Callable[[], bool]


class File:
    """Bytes that are on disk, and what may or may not be."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.loose: list[Written | Cut] = []

    def flush(self) -> None:
        for call in self.loose:
            _apply(self.content, call, lambda: True)
        self.loose.clear()

    def left(self, fate: Fate) -> bytes:
        """What it may hold after a loss of power."""
        content = bytearray(self.content)
        for call in self.loose:
            _apply(content, call, fate)
        return bytes(content)


class Disk:
    """A folder, the calls about it so far, and what was acknowledged."""

    def __init__(self, folder: Path) -> None:
        files = {path.name: File(path.read_bytes()) for path in folder.iterdir()}
        self._sure, self._seen = files, dict(files)
        self._loose: list[tuple[str, File | None]] = []
        #: The last transaction and revision that somebody was told of.
        self.acknowledged = (0, 0)

    def follow(self, call: Call) -> None:
        """Have a call made."""
        match call:
            case Said(text):
                told = ((int(n), int(r)) for n, r in map(str.split, text.splitlines()))
                self.acknowledged = max(self.acknowledged, *told)
            case Made(name):
                if name not in self._seen:
                    self._name(name, File())
            case Removed(name):
                self._name(name, None)
            case Moved(name, to):
                self._name(to, self._seen[name])
                self._name(name, None)
            case Flushed(""):
                self._sure = dict(self._seen)
                self._loose.clear()
            case Flushed(name):
                self._seen[name].flush()
            case Written(name) | Cut(name):
                self._seen[name].loose.append(call)

    def leave(self, folder: Path, fate: Fate) -> None:
        """Make a folder of what may be there after a loss of power."""
        names = dict(self._sure)
        for name, file in self._loose:
            if fate():
                names.pop(name, None)
                names |= {name: file} if file else {}
        folder.mkdir()
        for name, file in names.items():
            if name not in PASSING:
                (folder / name).write_bytes(file.left(fate))

    def _name(self, name: str, file: File | None) -> None:
        self._loose.append((name, file))
        self._seen.pop(name, None)
        if file:
            self._seen[name] = file


def fates(chance: random.Random) -> dict[str, Fate]:
    """Ways in which a disk may treat what was not flushed."""
    likely = chance.random()
    return {
        "nothing": lambda: False,
        "everything": lambda: True,
        "some": lambda: chance.random() < likely,
        "most": lambda: chance.random() < 0.97,
        "little": lambda: chance.random() < 0.03,
    }


def _apply(content: bytearray, call: Written | Cut, fate: Fate) -> None:
    """Have a call happen, sector by sector."""
    if isinstance(call, Cut):
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
