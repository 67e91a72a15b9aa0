"""What a kind means: its schema, its defaults, how an object of it begins, its rules.

The server holds every object against the model of its kind and knows no other way to judge one.
Kinds that we know have rows (`defaults/table.py`, `rules/table.py`); kinds that users define bring
a schema of their own (`custom/structural.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from phalanx.api.conform import ConformResult
from phalanx.api.defaults.registry import apply_defaults, prepare_for_create
from phalanx.api.errors import Cause
from phalanx.api.kinds import Kind
from phalanx.api.schema import Schema, schema
from phalanx.api.validation.registry import validate
from phalanx.api.wire import Object


class ResourceStrategy(Protocol):
    """How to judge objects of one kind."""

    @property
    def schema(self) -> Schema:
        """The shape of an object: what patches and field ownership go by."""
        ...

    def conform(self, obj: Object) -> ConformResult:
        """Drop in place what does not belong; raises Malformed where a type is wrong."""
        ...

    def matches_structure(self, obj: Object) -> bool:
        """Whether objects and lists stand where the schema has them."""
        ...

    def apply_defaults(self, obj: Object) -> None:
        """Add in place what nobody said."""
        ...

    def warnings(self, new: Object, old: Object | None) -> Sequence[str]:
        """What a client should be told of an object that is taken all the same."""
        ...

    def prepare_for_create(self, obj: Object, now: str) -> None:
        """Give a new object the state that it begins with."""
        ...

    def validate(self, new: Object, old: Object | None, subresource: str) -> Sequence[Cause]:
        """What is wrong with an object, or with a subresource of it."""
        ...


class BuiltinStrategy:
    """The model of a kind that has rows."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    @property
    def schema(self) -> Schema:
        """The shape of an object."""
        return schema(self._kind.schema)

    def conform(self, obj: Object) -> ConformResult:
        """Drop in place what does not belong."""
        return self.schema.conform(obj)

    def matches_structure(self, obj: Object) -> bool:
        """What conforms fits."""
        return True

    def warnings(self, new: Object, old: Object | None) -> Sequence[str]:
        """Of a new object, that nobody will act on it."""
        if old is not None or not self._kind.has_no_controller:
            return ()
        return [f"{self._kind.resource} are stored and served, but no controller acts on them yet"]

    def apply_defaults(self, obj: Object) -> None:
        """Add in place what nobody said."""
        apply_defaults(self._kind, obj)

    def prepare_for_create(self, obj: Object, now: str) -> None:
        """Give a new object the state that it begins with."""
        prepare_for_create(self._kind, obj, now)

    def validate(self, new: Object, old: Object | None, subresource: str) -> Sequence[Cause]:
        """What is wrong with an object."""
        return validate(self._kind, new, old, subresource)
