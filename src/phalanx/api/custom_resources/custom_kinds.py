"""Kinds of CustomResourceDefinitions, as rows like those of `kinds.py`.

One row and one strategy per served version, under the accepted names. All versions share the
stored objects. Pure; `server/custom_resources` decides which rows are served.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from phalanx.api.custom_resources.compiled_schemas import share_schema
from phalanx.api.custom_resources.json_path import (
    BadJsonPath,
    JsonPath,
    field_keys,
    find_values,
    parse_json_path,
)
from phalanx.api.custom_resources.structural_schema import CustomResourceStrategy
from phalanx.api.defaults.custom_resource_definition import ESTABLISHED, find_condition
from phalanx.api.definitions import TYPE_META_DESCRIPTIONS, full_definition_name
from phalanx.api.kinds import METADATA_SELECTORS, Kind, ScalePaths
from phalanx.api.meta import parse_timestamp
from phalanx.api.printing.cells import NAME_COLUMN, Cell, Column, format_duration
from phalanx.api.printing.columns import DEFAULT_COLUMNS
from phalanx.api.wire import Object

_VERSION = re.compile(r"v([1-9]\d{0,17})(?:(alpha|beta)([1-9]\d{0,17}))?")
_STABILITY = {"": 3, "beta": 2, "alpha": 1}


@dataclass(frozen=True, slots=True)
class WebhookConversion:
    """How a webhook converts the objects of a definition between its versions.

    Stored objects name their version. Those that were stored before the definition had a webhook
    do not: they are in `unnamed_version`. `strategies` are those of all versions, served or not.
    """

    client_config: Object
    review_versions: tuple[str, ...]
    storage_version: str
    unnamed_version: str
    strategies: dict[str, CustomResourceStrategy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class CustomKind(Kind):
    """One version of a kind that a CustomResourceDefinition defines.

    `created_revision` is the revision of the creation of the definition, `revision` that of its
    current state. `components` are the OpenAPI schemas. `add_defaults` adds the defaults of the
    schema, if it has some, to an object. Without `conversion` all versions have the same fields.
    """

    list_kind: str = ""
    columns: tuple[Column, ...] = DEFAULT_COLUMNS
    created_revision: int = 0
    revision: int = 0
    is_terminating: bool = False
    components: Mapping[str, Object] = field(default_factory=dict)
    add_defaults: Callable[[Object], None] | None = None
    conversion: WebhookConversion | None = None

    @property
    def is_custom(self) -> bool:
        """Whether a CustomResourceDefinition defines it."""
        return True

    @property
    def list_name(self) -> str:
        """The kind of its lists."""
        return self.list_kind


@dataclass(frozen=True, slots=True)
class ServedCustomKind:
    """A custom kind and its strategy."""

    kind: CustomKind
    strategy: CustomResourceStrategy


def served_kinds(
    definition: Object, *, created_revision: int, revision: int
) -> list[ServedCustomKind]:
    """Return the kinds of a definition; none before its names are accepted."""
    if find_condition(definition, ESTABLISHED).get("status") != "True":
        return []
    conversion = _webhook_conversion(definition)
    rows: list[ServedCustomKind] = []
    for version in definition["spec"]["versions"]:
        if version.get("served") or conversion is not None:
            row = _served_kind(
                definition,
                version,
                conversion,
                created_revision=created_revision,
                revision=revision,
            )
            if conversion is not None:
                conversion.strategies[row.kind.version] = row.strategy
            if version.get("served"):
                rows.append(row)
    return rows


def _webhook_conversion(definition: Object) -> WebhookConversion | None:
    conversion = definition["spec"].get("conversion") or {}
    if conversion.get("strategy") != "Webhook":
        return None
    webhook, versions = conversion["webhook"], definition["spec"]["versions"]
    storage = next(one["name"] for one in versions if one.get("storage"))
    stored = definition["status"].get("storedVersions") or [storage]
    return WebhookConversion(
        webhook["clientConfig"], tuple(webhook["conversionReviewVersions"]), storage, stored[0]
    )


def version_rank(version: str) -> tuple[Any, ...]:
    """Return the sort key of a version: v2, v1, v1beta2, v1beta1, v1alpha1, others."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return (1, version)
    major, stage, minor = match.groups()
    return (0, -_STABILITY[stage or ""], -int(major), -int(minor or 0), version)


def _served_kind(
    definition: Object,
    version: Object,
    conversion: WebhookConversion | None,
    *,
    created_revision: int,
    revision: int,
) -> ServedCustomKind:
    spec, names = definition["spec"], definition["status"]["acceptedNames"]
    schema, parts = version["schema"]["openAPIV3Schema"], version.get("subresources", {})
    name = f"{spec['group']}/{version['name']} {names['kind']}"
    shared = share_schema(schema)
    deprecation = version.get("deprecationWarning") or f"{name} is deprecated"
    kind = CustomKind(
        spec["group"],
        version["name"],
        names["kind"],
        names["plural"],
        ".".join((*reversed(spec["group"].split(".")), version["name"], names["kind"])),
        namespaced=spec["scope"] == "Namespaced",
        singular=names["singular"],
        short_names=tuple(names.get("shortNames", ())),
        categories=tuple(names.get("categories", ())),
        subresources=tuple(part for part in ("status", "scale") if part in parts),
        selectable_fields=_selectable_fields(version),
        generation=True,
        update_without_version=False,
        status_updates_metadata=False,
        list_kind=names["listKind"],
        columns=_columns(version),
        scale=_scale_paths(parts.get("scale")),
        created_revision=created_revision,
        revision=revision,
        is_terminating="deletionTimestamp" in definition["metadata"],
        deprecation=deprecation if version.get("deprecated") else "",
        components=_openapi_components(names, spec["group"], version["name"], schema=schema),
        add_defaults=shared.compiled.apply_defaults,
        conversion=conversion,
    )
    return ServedCustomKind(
        kind, CustomResourceStrategy(kind, shared, has_status="status" in parts)
    )


def _selectable_fields(version: Object) -> Mapping[str, str]:
    selectable = version.get("selectableFields")
    if not selectable:
        return METADATA_SELECTORS
    return {**METADATA_SELECTORS, **{one["jsonPath"].removeprefix("."): "" for one in selectable}}


def _scale_paths(paths: Object | None) -> ScalePaths | None:
    if paths is None:
        return None
    return ScalePaths(
        field_keys(paths["specReplicasPath"]),
        field_keys(paths["statusReplicasPath"]),
        field_keys(paths.get("labelSelectorPath", "")),
    )


# ------------------------------------------------------------------------------------------ columns


def _columns(version: Object) -> tuple[Column, ...]:
    """Return the name and the columns of the definition; name and age if those cannot be parsed."""
    printer_columns = version.get("additionalPrinterColumns")
    try:
        return (NAME_COLUMN, *map(_column, printer_columns)) if printer_columns else DEFAULT_COLUMNS
    except BadJsonPath:
        return DEFAULT_COLUMNS


def _column(definition: Object) -> Column:
    path, kind = parse_json_path(definition["jsonPath"]), definition["type"]
    cell = _string_cell(path) if kind == "string" else _cell(path, kind)
    return Column(
        definition["name"],
        cell,
        kind,
        definition.get("priority", 0),
        definition.get("description", ""),
    )


def _string_cell(path: JsonPath) -> Cell:
    def cell(obj: Object, now: float) -> Any:
        values = find_values(path, obj)
        texts = (v if isinstance(v, str) else orjson.dumps(v).decode() for v in values)
        return " ".join(texts) if values else None

    return cell


def _cell(path: JsonPath, kind: str) -> Cell:
    def cell(obj: Object, now: float) -> Any:
        found = find_values(path, obj)
        return _convert_value(found[0], kind, now) if found else None

    return cell


def _convert_value(value: Any, kind: str, now: float) -> Any:
    """Convert a value to the type of its column; None if it has another type."""
    if kind == "date" and isinstance(value, str):
        return _age(value, now)
    if isinstance(value, bool) or kind == "boolean":
        return value if isinstance(value, bool) and kind == "boolean" else None
    if not isinstance(value, int | float) or kind == "date":
        return None
    return int(value) if kind == "integer" else float(value)


def _age(text: str, now: float) -> str:
    try:
        return format_duration(now - parse_timestamp(text))
    except ValueError:
        return "<invalid>"


# ------------------------------------------------------------------------------------------ OpenAPI


def _openapi_components(
    names: Object, group: str, version: str, *, schema: Object
) -> Mapping[str, Object]:
    """Return the OpenAPI schemas of a kind and of its list, by full name."""
    prefix = ".".join((*reversed(group.split(".")), version))
    meta = {
        "description": TYPE_META_DESCRIPTIONS["metadata"],
        "allOf": [_reference("meta.v1.ObjectMeta")],
    }
    fields = {**schema.get("properties", {}), **_type_meta_schemas(), "metadata": meta}
    item = {"$ref": f"#/components/schemas/{prefix}.{names['kind']}"}
    items = {"type": "array", "items": item}
    listed = {**_type_meta_schemas(), "items": items, "metadata": _reference("meta.v1.ListMeta")}
    return {
        f"{prefix}.{names['kind']}": {
            **schema, "properties": fields, **_group_version_kind(group, version, names["kind"]),
        },
        f"{prefix}.{names['listKind']}": {
            "type": "object", "required": ["items"], "properties": listed,
            **_group_version_kind(group, version, names["listKind"]),
        },
    }  # fmt: skip


def _type_meta_schemas() -> Object:
    return {
        key: {"description": TYPE_META_DESCRIPTIONS[key], "type": "string"}
        for key in ("apiVersion", "kind")
    }


def _reference(name: str) -> Object:
    return {"$ref": f"#/components/schemas/{full_definition_name(name)}"}


def _group_version_kind(group: str, version: str, kind: str) -> Object:
    return {"x-kubernetes-group-version-kind": [{"group": group, "version": version, "kind": kind}]}
