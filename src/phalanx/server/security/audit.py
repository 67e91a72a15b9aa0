"""The audit log: writes and refused requests, one JSON object per line.

    record ─▶ buffer ─▶ thread ─▶ FILE, FILE.1, FILE.2 …

It contains names and codes, never bodies, tokens or query strings. Allowed reads are not logged.
Lines reach the file within 0.2 seconds; a full or slow disk blocks no request, and the number of
lost lines is logged when it recovers.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import orjson
from msgspec.structs import replace

from phalanx import logs
from phalanx.api.errors import ApiError
from phalanx.api.wire import ANONYMOUS, Object, Reply, Request, StreamReply, UserInfo
from phalanx.clock import Clock
from phalanx.server.request_info import RequestInfo
from phalanx.telemetry import AUDIT_ID_HEADER

_log = logging.getLogger("phalanx.server")

#: Seconds between flushes, and the capacity of the buffer in lines.
_FLUSH_INTERVAL, _CAPACITY = 0.2, 100_000
READ_VERBS = frozenset({"get", "list", "watch"})
_DENIED_CODES = (401, 403)
_OBJECT_NAME = re.compile(rb'"metadata":\{"name":"([^"\\]{1,253})"')

AUDIT_ID = AUDIT_ID_HEADER
_AUDIT_ID_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,64}")

#: Appends lines to the log.
AppendLines = Callable[[Sequence[bytes]], None]


def client_audit_id(request: Request) -> str:
    """Return the audit id that a client sent; "" if there is none or it is malformed."""
    given = request.headers.get(AUDIT_ID, "")
    return given if _AUDIT_ID_PATTERN.fullmatch(given) else ""


class AuditIds:
    """Audit ids: the one that a client sends, else a new one."""

    def __init__(self, clock: Clock) -> None:
        self._prefix, self._last = f"{int(clock.now()):x}", 0

    def audit_id(self, request: Request) -> str:
        """Return the audit id of a request."""
        if given := client_audit_id(request):
            return given
        self._last += 1
        return f"{self._prefix}-{self._last:x}"

    def with_audit_id(self, request: Request) -> Request:
        """Return the request with an audit id."""
        return replace(request, headers={**request.headers, AUDIT_ID: self.audit_id(request)})


class AuditLog:
    """Records audit events and writes them in the background."""

    def __init__(self, append: AppendLines, clock: Clock) -> None:
        self._append, self._clock = append, clock
        self._thread = ThreadPoolExecutor(1, "audit")
        self._buffer: list[bytes] = []
        self._lost_lines = 0

    def record_response(
        self, audit_id: str, request: Request, actor: UserInfo, *, verb: str,
        request_info: RequestInfo | None, reply: Reply | StreamReply,
    ) -> None:  # fmt: skip
        """Record a reply; `actor` is the authenticated user, also if it impersonates another."""
        if reply.code not in _DENIED_CODES and (request_info is None or verb in READ_VERBS):
            return
        event = self._event(audit_id, request.user, reply.code)
        event["verb"] = verb
        if actor is not request.user:
            event["actor"] = actor.name
        if request_info is None:
            event["path"] = request.path
        else:
            _add_object_reference(event, request_info, reply)
            if request_info.audit_annotations:
                event["annotations"] = request_info.audit_annotations
        self._enqueue(event)

    def record_refusal(self, error: ApiError, headers: Mapping[str, str]) -> None:
        """Record a request that the guard refused for its Host, Origin or credential.

        The credential is not logged.
        """
        event = self._event("", ANONYMOUS, error.code)
        for header in ("host", "origin"):
            if header in headers:
                event[header] = headers[header][:256]
        self._enqueue(event)

    def close(self) -> None:
        """Write all buffered lines."""
        self._flush()
        self._thread.shutdown()

    def _event(self, audit_id: str, user: UserInfo, code: int) -> Object:
        return {
            "time": datetime.fromtimestamp(self._clock.now(), UTC), "id": audit_id,
            "user": user.name, "groups": user.groups, "code": code,
            "decision": "forbid" if code in _DENIED_CODES else "allow",
        }  # fmt: skip

    def _enqueue(self, event: Object) -> None:
        if len(self._buffer) >= _CAPACITY:
            self._lost_lines += 1
            return
        if not self._buffer:
            asyncio.get_running_loop().call_later(_FLUSH_INTERVAL, self._flush)
        self._buffer.append(encode_line(event))

    def _flush(self) -> None:
        lines, self._buffer = self._buffer, []
        if self._lost_lines:
            lines.append(encode_line({"lost": self._lost_lines}))
            self._lost_lines = 0
        if lines:
            self._thread.submit(self._write, lines)

    def _write(self, lines: Sequence[bytes]) -> None:
        try:
            self._append(lines)
        except OSError as error:
            _log.error("the audit log cannot be written: %s", error.strerror)
            self._lost_lines += len(lines)


def encode_line(event: Object) -> bytes:
    """Encode an event as one line, whatever it contains."""
    return orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z)


def _add_object_reference(
    event: Object, request_info: RequestInfo, reply: Reply | StreamReply
) -> None:
    """Add the object of a request; a generated name is taken from the reply."""
    kind, name = request_info.kind, request_info.name
    if not name and isinstance(reply, Reply) and reply.code == 201:
        found = _OBJECT_NAME.search(reply.body, 0, 512)
        name = found[1].decode() if found else ""
    event["group"], event["version"], event["resource"] = kind.group, kind.version, kind.plural
    if request_info.subresource:
        event["subresource"] = request_info.subresource
    event["namespace"], event["name"] = request_info.namespace, name
    if request_info.dry_run:
        event["dryRun"] = True


class AuditFile:
    """A private log file with rotation."""

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = logs.MAX_FILE_BYTES,
        max_rotated: int = logs.MAX_ROTATED_FILES,
    ) -> None:
        self._path, self._max_bytes, self._max_rotated = path, max_bytes, max_rotated

    def append(self, lines: Sequence[bytes]) -> None:
        """Append lines; rotate a full file first."""
        if self._path.exists() and self._path.stat().st_size >= self._max_bytes:
            logs.rotate_files(self._path, self._max_rotated)
        with open(self._path, "ab", opener=logs.open_private) as file:
            file.writelines(lines)
