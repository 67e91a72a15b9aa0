"""What a request asks for: its kind, object, options and selection.

`routes.py` builds one `RequestInfo` per request about a resource; handlers read it. A
`SelectionPredicate` says which objects a list or a watch is about. Nothing here reads the store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl

import msgspec

from phalanx.api.conversion.hub import HUB_KINDS, hub_kind
from phalanx.api.errors import (
    BadRequest,
    Cause,
    Invalid,
    invalid,
    join_causes,
    too_long,
    unsupported,
)
from phalanx.api.kinds import METADATA_SELECTORS, Kind
from phalanx.api.selectors import (
    BadSelector,
    FieldRequirement,
    LabelRequirement,
    fields_match,
    parse_field_selector,
    parse_label_selector,
)
from phalanx.api.wire import Object, Request

_NAME = "metadata.name"
#: The index field of selections that do not require one value of any field.
UNINDEXED = ""


@dataclass(frozen=True, slots=True)
class SelectionPredicate:
    """The objects that a list or a watch is about: kind, namespace, labels, fields."""

    kind: Kind
    namespace: str = ""
    labels: tuple[LabelRequirement, ...] = ()
    fields: tuple[FieldRequirement, ...] = ()

    @property
    def prefix(self) -> str:
        """The store prefix of the candidates."""
        return self.kind.store_prefix(self.namespace)

    @property
    def matches_all(self) -> bool:
        """Whether every object below the prefix is selected, so that none must be decoded."""
        return not self.labels and not self.fields

    @property
    def index_key(self) -> tuple[str, str, str]:
        """How watches are indexed: by kind, by one field and the value that it must have."""
        kind = self.kind
        for term in self.fields:
            is_plain = term.field not in kind.selectable_field_paths
            if term.is_equal and is_plain and term.value != kind.selectable_fields[term.field]:
                return kind.store_prefix(), term.field, term.value
        if self.namespace:
            return self.kind.store_prefix(), "metadata.namespace", self.namespace
        return self.kind.store_prefix(), UNINDEXED, ""

    def matches(self, obj: Object) -> bool:
        """Whether an object is selected."""
        labels = obj["metadata"].get("labels") or {}
        return all(term.matches(labels) for term in self.labels) and fields_match(
            self.fields, obj, self.kind.selectable_fields, paths=self.kind.selectable_field_paths
        )


def parse_selection(kind: Kind, namespace: str, *, labels: str, fields: str) -> SelectionPredicate:
    """Parse the selectors of a request. Raises BadRequest.

    The fields are those of the served kind; the selection has those of the stored one.
    """
    try:
        terms = parse_field_selector(fields)
        label_terms = parse_label_selector(labels)
    except BadSelector as error:
        raise BadRequest(str(error)) from error
    for term in terms:
        if term.field not in kind.selectable_fields:
            raise BadRequest(_unknown_field_message(kind, term.field))
    stored = hub_kind(kind)
    if stored is not kind:
        paths = kind.selectable_field_paths
        terms = tuple(replace(term, field=paths.get(term.field, term.field)) for term in terms)
    return SelectionPredicate(stored, namespace, label_terms, terms)


def _unknown_field_message(kind: Kind, field: str) -> str:
    if kind.selectable_fields is METADATA_SELECTORS:
        known = ", ".join(f'"{name}"' for name in METADATA_SELECTORS)
        return f'"{field}" is not a known field selector: only {known}'
    return f"field label not supported: {field}"


#: Together they stay within the header sizes that clients accept.
_MAX_WARNING_LENGTH, _MAX_WARNING_HEADERS = 256, 16
_MAX_FIELD_MANAGER_LENGTH = 128
_VALIDATION_MODES = ("", "Ignore", "Strict", "Warn")
_DURATION = re.compile(r"[+-]?(0|((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|[smh]))+)", re.ASCII)


class RequestInfo(msgspec.Struct, frozen=True):
    """A resolved request.

    `warnings` collects Warning headers for the reply, `audit_annotations` what webhooks and
    policies add to the audit log.
    """

    request: Request
    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    query: Mapping[str, str] = msgspec.field(default_factory=dict)
    warnings: list[str] = msgspec.field(default_factory=list)
    audit_annotations: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def stored_kind(self) -> Kind:
        """The kind that the object is stored as."""
        return HUB_KINDS.get(self.kind, self.kind)

    @property
    def key(self) -> str:
        """The store key of the object."""
        return self.stored_kind.store_key(self.namespace, self.name)

    @property
    def dry_run(self) -> bool:
        """Whether nothing may be written."""
        return "dryRun" in self.query

    @property
    def is_watch(self) -> bool:
        """Whether the query asks for a watch: every value except 0 and false does."""
        return self.query.get("watch", "0").lower() not in ("0", "false", "f")

    @property
    def is_old_watch(self) -> bool:
        """Whether the path is `/api/VERSION/watch/…` or `/apis/GROUP/VERSION/watch/…`."""
        parts = self.request.path.strip("/").split("/")
        return parts[2 if parts[0] == "api" else 3 :][:1] == ["watch"]

    @property
    def authorized_name(self) -> str:
        """The object's name for authorization: of the path, or that a list or watch requires.

        A list or watch with `fieldSelector=metadata.name=NAME` is authorized like a request for
        this object. The first such requirement counts: further ones only select less. As in
        Kubernetes, the deletion of a collection and a watch by an old path have no name.
        """
        fields = self.query.get("fieldSelector", "")
        is_list = self.request.method == "GET" and not self.is_old_watch
        if self.name or not is_list or _NAME not in fields:
            return self.name
        try:
            terms = parse_field_selector(fields)
        except BadSelector:
            return ""
        name = next((one.value for one in terms if one.field == _NAME and one.is_equal), "")
        return "" if is_illegal_path_name(name) else name

    def selection_predicate(self) -> SelectionPredicate:
        """The objects that a list or a watch is about.

        The field selector of a watch has been authorized, so a name in the path may not replace it.
        """
        labels, fields = self.query.get("labelSelector", ""), self.query.get("fieldSelector", "")
        if self.name and not (self.is_watch and fields):
            fields = f"metadata.name={self.name}"
        selection = parse_selection(self.kind, self.namespace, labels=labels, fields=fields)
        names = {one.value for one in selection.fields if one.field == _NAME and one.is_equal}
        if self.name and names != {self.name}:
            raise BadRequest(
                "both a name and a field selector provided; please provide one or the other"
            )
        return selection

    def int_option(self, name: str) -> int | None:
        """An integer option, or None if it is missing."""
        text = self.query.get(name, "")
        if not text:
            return None
        if not re.fullmatch(r"[+-]?\d{1,18}", text):
            raise BadRequest(f'strconv.ParseInt: parsing "{text}": invalid syntax')
        return int(text)

    def bool_option(self, name: str) -> bool | None:
        """A boolean option, or None if it is missing; any value except 0 and false is true."""
        text = self.query.get(name)
        return None if text is None else text.lower() not in ("0", "false", "f")

    def check_timeout(self) -> None:
        """Refuse an invalid `timeout`; a valid one is ignored, the client enforces it."""
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
        """Refuse a dryRun mode other than All, and an invalid fieldManager."""
        manager = self.query.get("fieldManager", "")
        if len(manager) > _MAX_FIELD_MANAGER_LENGTH:
            raise self._bad_option(too_long("fieldManager", _MAX_FIELD_MANAGER_LENGTH))
        if not manager.isprintable():
            detail = "should only contain printable characters"
            raise self._bad_option(invalid("fieldManager", manager, detail))
        mode = self.query.get("dryRun")
        if mode not in (None, "All"):
            raise self._bad_option(unsupported("dryRun", mode, ("All",)))

    def warning_headers(self) -> tuple[tuple[str, str], ...]:
        """The warnings as headers; long texts are cut."""
        found = []
        for text in self.warnings[:_MAX_WARNING_HEADERS]:
            shown = "".join(c if c.isprintable() else " " for c in text[:_MAX_WARNING_LENGTH])
            quoted = shown.replace("\\", "\\\\").replace('"', '\\"')
            found.append(("warning", f'299 - "{quoted}"'))
        return tuple(found)

    def _bad_option(self, cause: Cause) -> Invalid:
        return invalid_options(_OPTIONS_KINDS[self.request.method], [cause])


_OPTIONS_KINDS = {
    "GET": "ListOptions",
    "POST": "CreateOptions",
    "PUT": "UpdateOptions",
    "PATCH": "PatchOptions",
    "DELETE": "DeleteOptions",
}


def invalid_options(kind: str, causes: list[Cause]) -> Invalid:
    """The error for options that are unknown or contradict each other."""
    return Invalid(
        f'{kind}.meta.k8s.io "" is invalid: {join_causes(causes)}',
        group="meta.k8s.io",
        kind=kind,
        causes=causes,
    )


def is_illegal_path_name(name: str) -> bool:
    """Whether a name cannot be part of a path."""
    return name in (".", "..") or "/" in name or "%" in name


def parse_query(text: str) -> dict[str, str]:
    """Parse a query string; the first of repeated options counts."""
    if not text:
        return {}
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=100)
    except ValueError as error:
        raise BadRequest("too many query parameters") from error
    return dict(reversed(pairs))
