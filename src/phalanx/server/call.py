"""A request, understood: which kind, which object, which options. Made once, by `routes`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl

import msgspec

from phalanx.api.causes import unsupported
from phalanx.api.errors import BadRequest, Cause, Invalid, sentence
from phalanx.api.kinds import Kind
from phalanx.api.versions.conversion import hub
from phalanx.api.wire import Request
from phalanx.server.selection import Selection, select

#: Together they stay within what clients take as headers.
_LONGEST_WARNING, _MOST_WARNINGS = 256, 16
_VALIDATION_MODES = ("", "Ignore", "Strict", "Warn")
_DURATION = re.compile(r"[+-]?(0|((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|[smh]))+)", re.ASCII)


class Call(msgspec.Struct, frozen=True):
    """What is asked of which object. `warnings` gathers what the client should be told besides."""

    request: Request
    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    query: Mapping[str, str] = msgspec.field(default_factory=dict)
    warnings: list[str] = msgspec.field(default_factory=list)

    @property
    def stored(self) -> Kind:
        """The kind that the object is stored as."""
        return hub(self.kind)

    @property
    def key(self) -> str:
        """The store key of the object."""
        return self.stored.key(self.namespace, self.name)

    @property
    def dry_run(self) -> bool:
        """Whether nothing may be written."""
        return "dryRun" in self.query

    @property
    def is_watch(self) -> bool:
        """Whether a watch is asked for: any word but a clear no asks for one."""
        return self.query.get("watch", "0").lower() not in ("0", "false", "f")

    def selection(self) -> Selection:
        """The objects that a list or a watch is about."""
        labels, fields = self.query.get("labelSelector", ""), self.query.get("fieldSelector", "")
        if self.name:
            fields = f"metadata.name={self.name}"
        return select(self.stored, self.namespace, labels, fields)

    def number(self, name: str) -> int | None:
        """An integer option, or None when it was not given."""
        text = self.query.get(name, "")
        if not text:
            return None
        if not re.fullmatch(r"[+-]?\d{1,18}", text):
            raise BadRequest(f'strconv.ParseInt: parsing "{text}": invalid syntax')
        return int(text)

    def check_timeout(self) -> None:
        """Refuse a time limit that is none; how long a client waits is its own affair."""
        text = self.query.get("timeout", "")
        if text and not _DURATION.fullmatch(text):
            detail = f'time: invalid duration "{text}"'
            raise BadRequest(f"invalid timeout specified in the request URL - {detail}")

    def field_validation(self) -> str:
        """Ignore, Warn or Strict."""
        mode = self.query.get("fieldValidation", "")
        if mode not in _VALIDATION_MODES:
            raise self._bad_option(unsupported("fieldValidation", mode, _VALIDATION_MODES))
        return mode or "Warn"

    def check_dry_run(self) -> None:
        """Refuse a dry run of another sort than the one there is."""
        mode = self.query.get("dryRun")
        if mode not in (None, "All"):
            raise self._bad_option(unsupported("dryRun", mode, ("All",)))

    def warning_headers(self) -> tuple[tuple[str, str], ...]:
        """What the client should be told besides, as headers; long texts are cut."""
        texts = [_quoted(text[:_LONGEST_WARNING]) for text in self.warnings[:_MOST_WARNINGS]]
        return tuple(("warning", f'299 - "{text}"') for text in texts)

    def _bad_option(self, cause: Cause) -> Invalid:
        return bad_options(_OPTIONS[self.request.method], [cause])


_OPTIONS = {
    "GET": "ListOptions",
    "POST": "CreateOptions",
    "PUT": "UpdateOptions",
    "PATCH": "PatchOptions",
    "DELETE": "DeleteOptions",
}


def _quoted(text: str) -> str:
    """A text that stands in quotes; what would end a header is left out."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return printable.replace("\\", "\\\\").replace('"', '\\"')


def bad_options(kind: str, causes: list[Cause]) -> Invalid:
    """Options that contradict each other or are not known."""
    return Invalid(
        f'{kind}.meta.k8s.io "" is invalid: {sentence(causes)}',
        group="meta.k8s.io", kind=kind, causes=causes,
    )  # fmt: skip


def parse_query(text: str) -> dict[str, str]:
    """A query string; of a repeated option the first counts."""
    if not text:
        return {}
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=100)
    except ValueError as error:
        raise BadRequest("too many query parameters") from error
    return dict(reversed(pairs))
