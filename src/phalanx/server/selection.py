"""Which objects a list or a watch is about: a kind, a namespace, labels, fields."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.api.errors import BadRequest
from phalanx.api.kinds import META_FIELDS, Kind
from phalanx.api.selectors import (
    BadSelector,
    FieldRequirement,
    Requirement,
    fields_match,
    parse_fields,
    parse_labels,
)
from phalanx.api.wire import Object

#: The shelf of selections that no single value can tell apart.
EVERYTHING = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """What is asked for."""

    kind: Kind
    namespace: str = ""
    labels: tuple[Requirement, ...] = ()
    fields: tuple[FieldRequirement, ...] = ()

    @property
    def prefix(self) -> str:
        """Where in the store the candidates are."""
        return self.kind.prefix(self.namespace)

    @property
    def is_everything(self) -> bool:
        """Whether every object below the prefix is meant, so that none need be looked at."""
        return not self.labels and not self.fields

    @property
    def shelf(self) -> tuple[str, str, str]:
        """Where it is looked for when something changes: a kind, a field, its value."""
        for need in self.fields:
            is_plain = need.field not in self.kind.field_paths
            if need.equal and is_plain and need.value != self.kind.fields[need.field]:
                return self.kind.prefix(), need.field, need.value
        if self.namespace:
            return self.kind.prefix(), "metadata.namespace", self.namespace
        return self.kind.prefix(), EVERYTHING, ""

    def holds(self, obj: Object) -> bool:
        """Whether an object is meant."""
        labels = obj["metadata"].get("labels") or {}
        return all(need.matches(labels) for need in self.labels) and fields_match(
            self.fields, obj, self.kind.fields, self.kind.field_paths
        )


def select(kind: Kind, namespace: str, labels: str, fields: str) -> Selection:
    """The selection that a request's texts mean."""
    try:
        selection = Selection(kind, namespace, parse_labels(labels), parse_fields(fields))
    except BadSelector as error:
        raise BadRequest(str(error)) from error
    for need in selection.fields:
        if need.field not in kind.fields:
            raise BadRequest(_unknown_field(kind, need.field))
    return selection


def _unknown_field(kind: Kind, field: str) -> str:
    if kind.fields is META_FIELDS:
        known = ", ".join(f'"{name}"' for name in META_FIELDS)
        return f'"{field}" is not a known field selector: only {known}'
    return f"field label not supported: {field}"
