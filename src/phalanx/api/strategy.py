"""Strategies: how the server processes objects of a kind (schema, defaulting, validation).

Built-in kinds have rows in `defaults/registry.py` and `validation/registry.py`; custom resources
use the schema of their definition (`custom_resources/structural_schema.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from phalanx.api.defaults.registry import apply_defaults, prepare_for_create, prepare_for_update
from phalanx.api.errors import Cause
from phalanx.api.kinds import Kind
from phalanx.api.normalization import NormalizationResult
from phalanx.api.schema import Schema, schema
from phalanx.api.validation.registry import validate
from phalanx.api.validation.warnings import find_warnings
from phalanx.api.wire import Object


class ResourceStrategy(Protocol):
    """Processing of objects of one kind."""

    @property
    def schema(self) -> Schema:
        """The schema, for patches and field management."""
        ...

    def normalize(self, obj: Object, *, keep_empty: bool = False) -> NormalizationResult:
        """Prune unknown fields in place. Raises Malformed where a type is wrong.

        With `keep_empty` nulls and empty values stay.
        """
        ...

    def matches_structure(self, obj: Object) -> bool:
        """Whether the object has objects and lists where the schema has them."""
        ...

    def apply_defaults(self, obj: Object) -> None:
        """Add default values in place."""
        ...

    def warnings(self, new: Object, old: Object | None) -> Sequence[str]:
        """Return warnings for the client of a valid object."""
        ...

    def prepare_for_create(self, obj: Object, now: str) -> None:
        """Set the initial state of a new object."""
        ...

    def prepare_for_update(self, new: Object, old: Object, now: str) -> None:
        """Set what follows from the change of an object."""
        ...

    def validate(self, new: Object, old: Object | None, subresource: str) -> Sequence[Cause]:
        """Return what is invalid in an object, or in a subresource of it."""
        ...


class BuiltinStrategy:
    """The strategy of a kind of `kinds.py`."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    @property
    def schema(self) -> Schema:
        """The schema of the kind."""
        return schema(self._kind.schema)

    def normalize(self, obj: Object, *, keep_empty: bool = False) -> NormalizationResult:
        """Prune unknown fields in place."""
        return self.schema.normalize(obj, keep_empty=keep_empty)

    def matches_structure(self, obj: Object) -> bool:
        """Return True: `normalize` has checked all types."""
        return True

    def warnings(self, new: Object, old: Object | None) -> Sequence[str]:
        """Warn of deprecated fields, and on creation if no controller acts on the kind."""
        if old is not None or not self._kind.has_no_controller:
            return find_warnings(self._kind, new, old)
        return [f"{self._kind.resource} are stored and served, but no controller acts on them yet"]

    def apply_defaults(self, obj: Object) -> None:
        """Add default values in place."""
        apply_defaults(self._kind, obj)

    def prepare_for_create(self, obj: Object, now: str) -> None:
        """Set the initial state of a new object."""
        prepare_for_create(self._kind, obj, now)

    def prepare_for_update(self, new: Object, old: Object, now: str) -> None:
        """Set what follows from the change of an object."""
        prepare_for_update(self._kind, new, old, now=now)

    def validate(self, new: Object, old: Object | None, subresource: str) -> Sequence[Cause]:
        """Return what is invalid in an object."""
        return validate(self._kind, new, old, subresource=subresource)
