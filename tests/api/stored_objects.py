"""Objects as the server stores them: conforming, with defaults, in their initial state."""

from __future__ import annotations

import copy
from typing import Any

from phalanx.api.defaults.registry import apply_defaults, prepare_for_create
from phalanx.api.kinds import Kind
from phalanx.api.schema import schema
from phalanx.api.validation.registry import validate
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, summarize

NOW = "2026-01-01T00:00:00Z"
UID = "5d0c3b2e-0000-4000-8000-000000000001"


def make_stored(kind: Kind, obj: Object) -> Object:
    """Return a new object as it is stored."""
    new = copy.deepcopy(obj)
    place = {"namespace": "n"} if kind.namespaced else {}
    new["metadata"] = {"name": "x", "uid": UID, **place, **new.get("metadata", {})}
    schema(kind.schema).normalize(new)
    apply_defaults(kind, new)
    prepare_for_create(kind, new, NOW)
    return new


def change_stored(kind: Kind, old: Object, **fields: Any) -> Object:
    """Return a stored object with other top-level fields, as it would be stored."""
    new = {**copy.deepcopy(old), **copy.deepcopy(fields)}
    schema(kind.schema).normalize(new)
    apply_defaults(kind, new)
    return new


def find_causes(
    kind: Kind, new: Object, old: Object | None = None, part: str = ""
) -> CauseSummaries:
    """Return the summaries of what is invalid in an object."""
    return summarize(validate(kind, new, old, subresource=part))


def creation_causes(kind: Kind, obj: Object) -> CauseSummaries:
    """Return the summaries of what is invalid in a creation request."""
    return find_causes(kind, make_stored(kind, obj))
