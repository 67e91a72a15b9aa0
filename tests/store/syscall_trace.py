"""The disk calls of a process, in order, as strace records them.

`power_loss.py` computes from them what a power cut may leave. Only calls about files of one folder
are recorded, in the order in which they began; a flush is recorded when it has returned, since
nothing is certain before.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parents[2]

#: What changes a file or its name, makes it durable, or acknowledges.
CALLS = "openat,pwrite64,write,ftruncate,fdatasync,fsync,rename,link,unlink"


@dataclass(frozen=True)
class FileCreated:
    """A name for an empty file, unless there was a file of this name."""

    name: str


@dataclass(frozen=True)
class BytesWritten:
    """Bytes at a place."""

    name: str
    offset: int
    data: bytes


@dataclass(frozen=True)
class FileTruncated:
    """A file of another length."""

    name: str
    size: int


@dataclass(frozen=True)
class FileRenamed:
    """Another name for a file."""

    name: str
    to: str


@dataclass(frozen=True)
class FileLinked:
    """A second name for a file."""

    name: str
    to: str


@dataclass(frozen=True)
class FileRemoved:
    """A name that is gone."""

    name: str


@dataclass(frozen=True)
class FileFlushed:
    """All that was written to a file is on disk; of the folder (no name): all names are."""

    name: str


@dataclass(frozen=True)
class OutputWritten:
    """The acknowledged transactions."""

    text: str


TracedCall: TypeAlias = (
    FileCreated
    | BytesWritten
    | FileTruncated
    | FileRenamed
    | FileLinked
    | FileRemoved
    | FileFlushed
    | OutputWritten
)

_LINE = re.compile(r"(\d+) +(\w+)\((.*?)(?: <unfinished \.\.\.>|\) += (-?\d+).*)?$")
_RESUMED = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>.*= (-?\d+)")
_HEX = re.compile(r"(?:\\x[0-9a-f]{2})+")


def trace_program(folder: Path, log: Path, *program: str) -> list[TracedCall]:
    """Run a program of Python to its end, and tell what it asked of the disk about a folder."""
    watch = ["strace", "-f", "--seccomp-bpf", "-y", "-xx", "-s", "70000", "-o", str(log)]
    command = [*watch, "-e", f"trace={CALLS}", sys.executable, *program]
    subprocess.run(command, stdout=subprocess.PIPE, cwd=ROOT, check=True)
    with log.open() as lines:
        return list(_parse_calls(lines, str(folder)))


def _parse_calls(lines: Iterator[str], folder: str) -> Iterator[TracedCall]:
    flushing: dict[str, FileFlushed] = {}
    for line in lines:
        if resumed := _RESUMED.match(line):
            if flushed := flushing.pop(resumed[1], None):
                yield flushed
            continue
        found = _LINE.match(line.rstrip("\n"))
        if not found or (found[4] or "0").startswith("-"):
            continue
        call = _parse_call(found[2], found[3], folder)
        if isinstance(call, FileFlushed) and found[4] is None:
            flushing[found[1]] = call
        elif call:
            yield call


def _parse_call(name: str, arguments: str, folder: str) -> TracedCall | None:
    """One call, if it is about a file of the folder or acknowledges something."""
    texts = [bytes.fromhex(text.replace("\\x", "")) for text in _HEX.findall(arguments)]
    if name == "write":
        is_answer = arguments.startswith("1<")
        return OutputWritten(texts[-1].decode()) if is_answer else None
    paths = [
        _relative_name(text, folder) for text in (texts[-1:] if name == "openat" else texts[:2])
    ]
    if not paths or paths[0] is None:
        return None
    return _file_call(name, paths[0], arguments, paths, texts)


def _file_call(
    name: str, file: str, arguments: str, paths: Sequence[str | None], texts: Sequence[bytes]
) -> TracedCall | None:
    last = arguments.rsplit(", ", 1)[-1]
    match name:
        case "openat" if "O_CREAT" in arguments:
            return FileCreated(file)
        case "pwrite64":
            return BytesWritten(file, int(last), texts[1])
        case "ftruncate":
            return FileTruncated(file, int(last))
        case "fdatasync" | "fsync":
            return FileFlushed(file)
        case "rename":
            return FileRenamed(file, paths[1] or "")
        case "link":
            return FileLinked(file, paths[1] or "")
        case "unlink":
            return FileRemoved(file)
    return None


def _relative_name(path: bytes, folder: str) -> str | None:
    """The name of a file in the folder; of the folder itself, nothing."""
    text = path.decode("latin-1")
    return text[len(folder) + 1 :] if text == folder or text.startswith(f"{folder}/") else None
