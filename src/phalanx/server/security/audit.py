"""The audit log: who wrote what, and who was refused what, one JSON object per line.

    handle ─▶ note ─▶ buffer ─▶ thread ─▶ FILE, FILE.1, FILE.2 …

Holds names and codes, never bodies, tokens or query strings. Reads that were allowed are not in it.
What is noted is on its way to the file within a fifth of a second; a disk that is full or slow
holds up nobody, and the gap is noted when it is over.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import orjson
from msgspec.structs import replace

from phalanx.api.errors import ApiError
from phalanx.api.wire import ANONYMOUS, Object, Reply, Request, Stream, User
from phalanx.clock import Clock
from phalanx.server.call import Call
from phalanx.telemetry import NUMBER_HEADER

_log = logging.getLogger("phalanx.server")

#: Seconds that lines wait for others, and lines that may wait at all.
_PACE, _CAPACITY = 0.2, 100_000
#: Bytes after which a file is full, and how many full ones are kept.
FULL, KEPT = 64 * 1024 * 1024, 4
READS = frozenset({"get", "list", "watch"})
_DENIED = (401, 403)
_NAME = re.compile(rb'"metadata":\{"name":"([^"\\]{1,253})"')

AUDIT_ID = NUMBER_HEADER
_NUMBER = re.compile(r"[A-Za-z0-9._-]{1,64}")

#: Where lines go.
Append = Callable[[Sequence[bytes]], None]


def number_of(request: Request) -> str:
    """The number that a client gave to its request; "" if none, or one that cannot be."""
    given = request.headers.get(AUDIT_ID, "")
    return given if _NUMBER.fullmatch(given) else ""


class Numbers:
    """Numbers of requests: the one that a client gives to its request, or the next of ours."""

    def __init__(self, clock: Clock) -> None:
        self._begin, self._last = f"{int(clock.now()):x}", 0

    def of(self, request: Request) -> str:
        """The number of a request."""
        if given := number_of(request):
            return given
        self._last += 1
        return f"{self._begin}-{self._last:x}"

    def given(self, request: Request) -> Request:
        """The same request, which has its number from now on."""
        return replace(request, headers={**request.headers, AUDIT_ID: self.of(request)})


class Audit:
    """Notes what is worth keeping, and has it written."""

    def __init__(self, append: Append, clock: Clock) -> None:
        self._append, self._clock = append, clock
        self._thread = ThreadPoolExecutor(1, "audit")
        self._waiting: list[bytes] = []
        self._lost = 0

    def answered(
        self, number: str, request: Request, actor: User, verb: str, call: Call | None,
        answer: Reply | Stream,
    ) -> None:  # fmt: skip
        """A request was answered; `actor` is who sent it, whomever they acted as."""
        if answer.code not in _DENIED and (call is None or verb in READS):
            return
        row = self._row(number, request.user, answer.code)
        row["verb"] = verb
        if actor is not request.user:
            row["actor"] = actor.name
        if call is None:
            row["path"] = request.path
        else:
            _add_object(row, call, answer)
        self._note(row)

    def refused(self, error: ApiError, headers: Mapping[str, str]) -> None:
        """Somebody was turned away before they were heard; of a credential nothing is kept."""
        row = self._row("", ANONYMOUS, error.code)
        for header in ("host", "origin"):
            if header in headers:
                row[header] = headers[header][:256]
        self._note(row)

    def close(self) -> None:
        """Have everything written."""
        self._flush()
        self._thread.shutdown()

    def _row(self, number: str, user: User, code: int) -> Object:
        return {
            "time": datetime.fromtimestamp(self._clock.now(), UTC), "id": number,
            "user": user.name, "groups": user.groups, "code": code,
            "decision": "forbid" if code in _DENIED else "allow",
        }  # fmt: skip

    def _note(self, row: Object) -> None:
        if len(self._waiting) >= _CAPACITY:
            self._lost += 1
            return
        if not self._waiting:
            asyncio.get_running_loop().call_later(_PACE, self._flush)
        self._waiting.append(line(row))

    def _flush(self) -> None:
        lines, self._waiting = self._waiting, []
        if self._lost:
            lines.append(line({"lost": self._lost}))
            self._lost = 0
        if lines:
            self._thread.submit(self._write, lines)

    def _write(self, lines: Sequence[bytes]) -> None:
        try:
            self._append(lines)
        except OSError as error:
            _log.error("the audit log cannot be written: %s", error.strerror)
            self._lost += len(lines)


def line(row: Object) -> bytes:
    """A row as it is written: in one line, whatever is in it."""
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z)


def _add_object(row: Object, call: Call, answer: Reply | Stream) -> None:
    """What a call was about; a name that the server gave is in its answer."""
    kind, name = call.kind, call.name
    if not name and isinstance(answer, Reply) and answer.code == 201:
        found = _NAME.search(answer.body, 0, 512)
        name = found[1].decode() if found else ""
    row["group"], row["version"], row["resource"] = kind.group, kind.version, kind.plural
    if call.subresource:
        row["subresource"] = call.subresource
    row["namespace"], row["name"] = call.namespace, name
    if call.dry_run:
        row["dryRun"] = True


class AuditFile:
    """A file of lines, for its owner alone; a full one is put aside under a number."""

    def __init__(self, path: Path, *, full: int = FULL, kept: int = KEPT) -> None:
        self._path, self._full, self._kept = path, full, kept

    def append(self, lines: Sequence[bytes]) -> None:
        """Write lines at the end."""
        if self._path.exists() and self._path.stat().st_size >= self._full:
            self._turn_over()
        with open(self._path, "ab", opener=_private) as file:
            file.writelines(lines)

    def _turn_over(self) -> None:
        for number in range(self._kept, 0, -1):
            older = self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
