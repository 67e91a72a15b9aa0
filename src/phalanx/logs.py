"""Structured log lines: a message and key=value fields, as text or JSON.

Every component that acts holds one `Log` (`LOG = component("job-controller")`) and writes state
changes at INFO, retries with back-off at WARNING, bugs with their traceback at ERROR, and single
decisions and requests at DEBUG. The pure packages (`api`, `builder`, `scheduler`) never log.

    LOG.info("PodGroup placed", kind="PodGroup", key="default/train", pods=3)

    2027-01-15T08:00:00.000Z INFO scheduler: PodGroup placed kind=PodGroup key=default/train pods=3

Every component uses the same field names: `kind` and `key` ("namespace/name") of the object,
`attempt`, `backoff` and `duration` (seconds), `reason` (an error or a condition reason).

`configure` is called once, by the command line; a program that embeds Phalanx configures `logging`
itself and finds the fields in the attribute `fields` of each record. Without either, nothing is
written.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Mapping
from io import TextIOWrapper
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TextIO

#: All our loggers are children of this one.
ROOT = "phalanx"
Format = Literal["text", "json"]
_NEEDS_QUOTES = frozenset(' "=')

# Without a handler `logging` would print warnings of a program that embeds us on its stderr.
logging.getLogger(ROOT).addHandler(logging.NullHandler())


def escape_unprintable(text: str, keep: str = "\n\t") -> str:
    """Escape characters that could control a terminal, as Python does: `\\x1b`, `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )


class Log:
    """The log of one component. Fields are only formatted when the level is enabled."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"{ROOT}.{name}")

    @property
    def name(self) -> str:
        """The name of the component."""
        return self._logger.name.removeprefix(f"{ROOT}.")

    def is_debug(self) -> bool:
        """Whether DEBUG lines are written: guards fields that are costly to compute."""
        return self._logger.isEnabledFor(logging.DEBUG)

    def is_info(self) -> bool:
        """Whether INFO lines are written: guards fields that are costly to compute."""
        return self._logger.isEnabledFor(logging.INFO)

    def debug(self, message: str, /, **fields: object) -> None:
        """Write a line about a single decision, request or action."""
        self._write(logging.DEBUG, message, fields)

    def info(self, message: str, /, **fields: object) -> None:
        """Write a line about a state change that an operator cares about."""
        self._write(logging.INFO, message, fields)

    def warning(self, message: str, /, **fields: object) -> None:
        """Write a line about a failure that is retried."""
        self._write(logging.WARNING, message, fields)

    def error(self, message: str, /, *, exc_info: bool = False, **fields: object) -> None:
        """Write a line about a failure that is not retried; `exc_info` adds the traceback."""
        self._write(logging.ERROR, message, fields, exc_info=exc_info)

    def _write(
        self, level: int, message: str, fields: Mapping[str, object], *, exc_info: bool = False
    ) -> None:
        if self._logger.isEnabledFor(level):
            # Two frames up is the caller: a record names its file and line.
            self._logger.log(
                level, message, extra={"fields": fields}, exc_info=exc_info, stacklevel=3
            )


def component(name: str) -> Log:
    """Return the log of a component, named as in `ps`: "scheduler", "job-controller", "server"."""
    return Log(name)


class _Formatter(logging.Formatter):
    """What both formats share: the time in UTC, the component, the fields."""

    def _time(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{seconds}.{int(record.msecs):03}Z"

    def _fields(self, record: logging.LogRecord) -> Mapping[str, Any]:
        fields: Mapping[str, Any] = getattr(record, "fields", {})
        return fields

    def _component(self, record: logging.LogRecord) -> str:
        return record.name.removeprefix(f"{ROOT}.")


class TextFormatter(_Formatter):
    """`TIME LEVEL component: message key=value key="two words"`; a traceback follows."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record as one line."""
        fields = "".join(f" {key}={_quote(value)}" for key, value in self._fields(record).items())
        head = f"{self._time(record)} {record.levelname} {self._component(record)}"
        line = f"{head}: {record.getMessage()}{fields}"
        text = f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
        return escape_unprintable(text)


class JsonFormatter(_Formatter):
    """One JSON object per line; fields stand beside `time`, `level`, `component` and `message`."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record as one JSON object."""
        line: dict[str, Any] = {
            "time": self._time(record),
            "level": record.levelname,
            "component": self._component(record),
            "message": record.getMessage(),
            **{key: _to_json(value) for key, value in self._fields(record).items()},
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


#: Size at which a log file is rotated, and the number of rotated files that are kept.
MAX_FILE_BYTES, MAX_ROTATED_FILES = 64 * 1024 * 1024, 4


def rotate_files(path: Path, max_rotated: int) -> None:
    """Rename FILE to FILE.1, FILE.1 to FILE.2 and so on; the oldest one is overwritten."""
    names = [path, *(path.with_name(f"{path.name}.{n}") for n in range(1, max_rotated + 1))]
    for older, newer in pairwise(reversed(names)):
        if newer.exists():
            newer.replace(older)


def open_private(path: str, flags: int) -> int:
    """Open a file, as an `opener`; a new one is readable and writable by its owner only."""
    return os.open(path, flags, 0o600)


class SharedFileHandler(logging.FileHandler):
    """Appends to a file that several processes write to; the first to find it full rotates it."""

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = MAX_FILE_BYTES,
        max_rotated: int = MAX_ROTATED_FILES,
    ) -> None:
        self._path, self._max_bytes, self._max_rotated = path, max_bytes, max_rotated
        super().__init__(path)

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=open_private)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, to a new file if the present one is full."""
        # A file that another process has rotated is full too.
        file = self.stream
        if file is not None and os.fstat(file.fileno()).st_size >= self._max_bytes:
            try:
                self._rotate(file)
            except OSError:
                self.handleError(record)
        super().emit(record)

    def _rotate(self, full: TextIO) -> None:
        fcntl.flock(full, fcntl.LOCK_EX)
        try:
            if self._path.exists() and os.path.samestat(self._path.stat(), os.fstat(full.fileno())):
                rotate_files(self._path, self._max_rotated)
            self.stream = self._open()
        finally:
            fcntl.flock(full, fcntl.LOCK_UN)
        full.close()


def configure(
    stream: TextIO | None = None,
    *,
    file: Path | None = None,
    log_format: Format = "text",
    level: int = logging.INFO,
) -> logging.Handler:
    """Send our log lines to `file`, which is rotated, or to `stream` (default stderr).

    Replaces earlier settings.
    """
    handler: logging.Handler
    handler = SharedFileHandler(file) if file is not None else logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logger = logging.getLogger(ROOT)
    for old in logger.handlers[:]:
        logger.removeHandler(old)
        old.close()
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    return handler


def _to_json(value: object) -> object:
    # Only exact types: a Key is a tuple too, but is written as "namespace/name".
    if type(value) in (str, int, float, bool, type(None)):
        return value
    if type(value) in (list, tuple):
        return [_to_json(item) for item in value]  # type: ignore[attr-defined]
    return str(value)


def _quote(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    # Only exact types: a Key is a tuple too, but is written as "namespace/name".
    text = ",".join(map(str, value)) if type(value) in (list, tuple) else str(value)  # type: ignore[call-overload]
    is_plain = text and text.isprintable() and not _NEEDS_QUOTES & set(text)
    return text if is_plain else json.dumps(text)
