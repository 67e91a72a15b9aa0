"""The Table view of objects that kubectl prints, and the view of metadata alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import orjson

from phalanx.api.conversion.hub import from_hub
from phalanx.api.custom_resources.custom_kinds import CustomKind
from phalanx.api.errors import BadRequest
from phalanx.api.kinds import Kind
from phalanx.api.printing.columns import DEFAULT_COLUMNS, PRINTER_COLUMNS, Column
from phalanx.api.wire import Object
from phalanx.server.watches import EventRenderer

_INCLUDE = ("", "Metadata", "Object", "None")


def check_include(include: str) -> str:
    """How much of each object goes into a table."""
    if include not in _INCLUDE:
        raise BadRequest(
            "Unable to convert to Table as requested: includeObject: Invalid value: "
            f"\"{include}\": must be 'Metadata', 'Object', 'None', or empty"
        )
    return include or "Metadata"


def table(kind: Kind, values: Iterable[bytes], meta: Object, include: str, now: float) -> bytes:
    """Stored objects as a Table."""
    columns = _table_columns(kind)
    body: Object = {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "columnDefinitions": [_column_definition(column) for column in columns],
        "rows": [_table_row(kind, columns, orjson.loads(value), include, now) for value in values],
    }
    return orjson.dumps(body)


def table_events(kind: Kind, include: str, now: Callable[[], float]) -> EventRenderer:
    """Watch events whose objects are Tables of one row."""

    def render(event: str, value: bytes) -> bytes:
        shown = table(kind, [value], {}, include, now())
        return b'{"type":"%s","object":%s}\n' % (event.encode(), shown)

    return render


def metadata_only(value: bytes) -> Object:
    """A stored object reduced to its metadata."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": orjson.loads(value)["metadata"],
    }


def metadata_list(values: Iterable[bytes], meta: Object) -> bytes:
    """Stored objects as a list of their metadata."""
    body = {
        "kind": "PartialObjectMetadataList",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "items": [metadata_only(value) for value in values],
    }
    return orjson.dumps(body)


def metadata_event(event: str, value: bytes) -> bytes:
    """A watch event that carries metadata alone."""
    return orjson.dumps({"type": event, "object": metadata_only(value)}) + b"\n"


def _table_columns(kind: Kind) -> tuple[Column, ...]:
    return (
        kind.columns
        if isinstance(kind, CustomKind)
        else PRINTER_COLUMNS.get(kind.name, DEFAULT_COLUMNS)
    )


def _column_definition(column: Column) -> Object:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    }


def _table_row(
    kind: Kind, columns: tuple[Column, ...], obj: Object, include: str, now: float
) -> dict[str, Any]:
    row: dict[str, Any] = {"cells": [column.cell(obj, now) for column in columns]}
    if include == "Object":
        served = from_hub(kind, obj)
        row["object"] = {"kind": kind.name, "apiVersion": kind.api_version, **served}
    elif include == "Metadata":
        row["object"] = {
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": obj["metadata"],
        }
    return row
