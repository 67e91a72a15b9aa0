"""The schemas of CustomResourceDefinitions, each checked and compiled once.

A write of a definition needs its schemas several times: to validate it, to build its kinds before
it is stored, and to serve them afterwards. Versions often have equal schemas. So `share_schema`
returns one `SharedSchema` for all equal schemas, as long as something refers to it.
"""

from __future__ import annotations

from hashlib import sha256
from weakref import WeakValueDictionary

import orjson

from phalanx.api.custom_resources.schema_validation import EMBEDDED_RESOURCE, compile_schema
from phalanx.api.custom_resources.structural_schema import (
    CompiledSchema,
    compile_defaulter,
    compile_pruner,
    compile_rules,
    compile_structure_check,
    schema_node,
)
from phalanx.api.errors import Causes
from phalanx.api.schema import Schema
from phalanx.api.validation.structural_schema import check_schema
from phalanx.api.wire import Object

#: Where a version of a definition has its schema.
SCHEMA_PATH = "schema.openAPIV3Schema"


class SharedSchema:
    """A schema with the causes to refuse it and its compiled form, each computed at first use."""

    __slots__ = ("__weakref__", "_causes", "_compiled", "_schema", "size")

    def __init__(self, schema: Object, size: int) -> None:
        #: The bytes of the schema in JSON.
        self.size = size
        self._schema = schema
        self._causes: Causes | None = None
        self._compiled: CompiledSchema | None = None

    @property
    def is_ready(self) -> bool:
        """Whether all is computed that the write of a definition needs."""
        return self._causes is not None and (bool(self._causes) or self._compiled is not None)

    @property
    def causes(self) -> Causes:
        """The causes to refuse the schema, at `SCHEMA_PATH`."""
        if self._causes is None:
            self._causes = tuple(check_schema(self._schema, SCHEMA_PATH))
        return self._causes

    @property
    def compiled(self) -> CompiledSchema:
        """What the schema does to objects; it must have been accepted once."""
        if self._compiled is None:
            self._compiled = _compile(self._schema)
        return self._compiled

    def prepare(self) -> None:
        """Compute all that the write of a definition needs."""
        if not self.causes:
            _ = self.compiled


_SHARED: WeakValueDictionary[bytes, SharedSchema] = WeakValueDictionary()


def share_schema(schema: Object) -> SharedSchema:
    """Return what all schemas share that are equal to this one."""
    text = orjson.dumps(schema)
    digest = sha256(text).digest()
    shared = _SHARED.get(digest)
    if shared is None:
        shared = _SHARED[digest] = SharedSchema(schema, len(text))
    return shared


def _compile(schema: Object) -> CompiledSchema:
    status = schema.get("properties", {}).get("status")
    return CompiledSchema(
        matches_structure=compile_structure_check(schema) or (lambda obj: True),
        prune=compile_pruner({**schema, EMBEDDED_RESOURCE: True}),
        apply_defaults=compile_defaulter(schema),
        check=compile_schema(schema),
        check_status=compile_schema(status) if status else lambda value, old, path: (),
        rules=compile_rules(schema, root=True),
        schema=Schema(schema_node(schema)),
    )
