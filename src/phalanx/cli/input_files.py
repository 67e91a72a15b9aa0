"""Input files of simulations: each is read once, hashed, decompressed and decoded.

    path ─▶ InputFiles.read ─▶ bytes ─▶ decode_trace, decode_yaml ─▶ text

A file may be a pipe, which can be read only once: whatever depends on its content gets the bytes.
The name of a file says whether it is YAML or a trace. If it says nothing, the content decides.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Mapping
from pathlib import Path

from phalanx.sim.workloads.trace_formats import TraceFormat, find_format
from phalanx.sim.workloads.workload import TraceFile

_GZIP_MAGIC = b"\x1f\x8b"
#: Larger files are refused. YAML is parsed slowly: a larger file would take hours.
_MAX_BYTES, _MAX_YAML_BYTES = 1 << 30, 64 << 20
#: How many bytes show the format of a file.
_HEAD_BYTES = 1 << 20
_YAML_ENDINGS, _TRACE_ENDINGS, _CSV = (".yaml", ".yml"), (".swf", ".csv", ".jsonl"), ".csv"


class InvalidFile(ValueError):
    """A file cannot be read. The message names it, and says what is wrong and what to do."""


class InputFiles:
    """Reads the files of one simulation."""

    def __init__(self, known: Mapping[Path, bytes]) -> None:
        """`known` has the content of files that were read before."""
        self._known = dict(known)
        #: The files that were read, and their hashes by their names.
        self.paths: list[Path] = []
        self.digests: dict[str, str] = {}

    def read(self, path: Path) -> bytes:
        """Read a file, which may be compressed, and keep its hash. Raises InvalidFile."""
        content = self._known.get(path)
        content = read_file(path) if content is None else content
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        # Files of several folders may have one name.
        is_taken = self.digests.get(path.name, digest) != digest
        self.digests[f"{path.parent.name}/{path.name}" if is_taken else path.name] = digest
        self.paths.append(path)
        return content


def read_file(path: Path) -> bytes:
    """Read a whole file or pipe. Raises InvalidFile."""
    try:
        with path.open("rb") as file:
            # A device may have no end.
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise InvalidFile(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        # YAML can write a null character: "a\0b".
        raise InvalidFile(f"cannot read {path}: no file can have this name") from None
    _check_size(path, content, _MAX_BYTES)
    return content


def decode_trace(path: Path, content: bytes) -> str:
    """Decode a trace, which may be compressed. Raises InvalidFile."""
    limit = _MAX_YAML_BYTES if has_yaml_name(path) else _MAX_BYTES
    return _decode_lines(_decompress_whole(path, content, limit))


def decode_yaml(path: Path, content: bytes) -> str:
    """Decode a YAML file, which may be compressed. Raises InvalidFile."""
    try:
        return _decompress_whole(path, content, _MAX_YAML_BYTES).decode()
    except UnicodeDecodeError:
        raise InvalidFile(f"{path} is not a text file") from None


def is_yaml(path: Path, content: bytes) -> bool:
    """Whether a file is YAML: by its name, or by its content if the name says nothing.

    YAML may be a simulation file or a trace. Raises InvalidFile.
    """
    if has_yaml_name(path) or _name_without_gz(path).endswith(_TRACE_ENDINGS):
        return has_yaml_name(path)
    return bool(content.strip()) and find_trace_format(path, content) is None


def has_yaml_name(path: Path) -> bool:
    """Whether a file is YAML by its name."""
    return _name_without_gz(path).endswith(_YAML_ENDINGS)


def has_csv_name(path: Path) -> bool:
    """Whether a file is CSV by its name."""
    return _name_without_gz(path).endswith(_CSV)


def find_trace_format(path: Path, content: bytes) -> TraceFormat | None:
    """Return the format that the beginning of a trace shows, if any. Raises InvalidFile."""
    head = _decode_lines(_decompress(path, content, _HEAD_BYTES))
    return find_format(TraceFile(str(path), head.split("\n")))


def _name_without_gz(path: Path) -> str:
    return path.name.lower().removesuffix(".gz")


def _decode_lines(content: bytes) -> str:
    # Comments of old logs name people and places in other encodings. Lines are those of an editor,
    # which does not end them at the other characters of `str.splitlines`.
    text = content.decode("utf-8-sig", errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _decompress_whole(path: Path, content: bytes, limit: int) -> bytes:
    content = _decompress(path, content, limit + 1)
    _check_size(path, content, limit)
    return content


def _decompress(path: Path, content: bytes, size: int) -> bytes:
    """Return the first bytes of a file: a small file may be petabytes of zeros."""
    if not content.startswith(_GZIP_MAGIC):
        return content[:size]
    try:
        with gzip.open(io.BytesIO(content)) as compressed:
            return compressed.read(size)
    except EOFError:
        reason = "the compressed file is incomplete; copy or download it again"
    except (OSError, zlib.error) as error:
        reason = f"cannot be decompressed ({error}); copy or download it again"
    raise InvalidFile(f"{path}: {reason}")


def _check_size(path: Path, content: bytes, limit: int) -> None:
    if len(content) > limit:
        raise InvalidFile(f"{path}: larger than {limit >> 20} MiB")
