"""Normalization does what decoding to a Go struct does: prune, check and canonicalise, in place.

The pruned unknown fields are reported, for `fieldValidation` Warn and Strict.

One walk by compiled closures prunes unknown fields, drops empty values (nulls, empty lists and
maps, strings and numbers that Go omits), brings quantities and times into canonical form, and
raises Malformed for a value of a wrong type. It adds nothing: `defaults/` does. Called through
`schema.Schema.normalize`.

Paths are computed only when needed: of a wrong type while its exception propagates, of unknown
fields by searching for the object that holds them.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from phalanx.api.definitions import SchemaNode, definition, is_reference
from phalanx.api.resources import BadQuantity, canonical_quantity
from phalanx.api.wire import Object

_DATE_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
#: The number of unknown fields that are reported, as in Kubernetes; all of them are pruned.
MAX_UNKNOWN_FIELDS = 100
#: The number of cached timestamps: many objects of one second have the same.
_TIME_CACHE_SIZE, _MAX_CACHED_TIME = 256, 40
_JSON_NAMES = {str: "string", bool: "bool", int: "number", float: "number", list: "array"}

#: What users call the Go types that are not structs, by their beginning up to a bracket.
_TYPE_NOUNS = {
    "[": "a list", "map[string": "an object", "string": "a string", "bool": "true or false",
    "int": "an integer", "int32": "an integer", "int64": "an integer", "float64": "a number",
}  # fmt: skip


class _Dropped:
    """The result of a check whose field is to be removed."""


_DROPPED = _Dropped()


class Malformed(ValueError):
    """A value has the wrong type; the message is that of Kubernetes."""

    def __init__(self, message: str, go_type: str = "") -> None:
        super().__init__(message)
        self._message, self._go_type = message, go_type
        self._struct = ""
        self._path_steps: list[str] = []

    def prefix_path(self, step: str, struct: str = "") -> Malformed:
        """Add the step from the parent: `.field` of a struct, `[0]` or `[key]`."""
        self._path_steps.append(step)
        self._struct = self._struct or struct.rpartition(".")[2]
        return self

    @property
    def path(self) -> str:
        """The path of the value: `spec.containers[0].image`."""
        return "".join(reversed(self._path_steps)).removeprefix(".")

    @property
    def plain_message(self) -> str:
        """The message for users of commands: `spec.containers must be a list, not a number`."""
        if not self._go_type or not self.path:
            return str(self)
        wanted = _TYPE_NOUNS.get(self._go_type.partition("]")[0], "an object")
        found = {"array": "a list", "object": "an object"}.get(self._message, f"a {self._message}")
        return f"{self.path} must be {wanted}, not {found}"

    def __str__(self) -> str:
        if not self._go_type:
            return self._message
        fields = "".join(step for step in reversed(self._path_steps) if step.startswith("."))
        place = f"struct field {self._struct}{fields}" if fields else "value"
        return f"json: cannot unmarshal {self._message} into Go {place} of type {self._go_type}"


@dataclass(frozen=True, slots=True)
class NormalizationResult:
    """The unknown fields that were pruned, in order; at most `MAX_UNKNOWN_FIELDS` of them."""

    unknown_fields: tuple[str, ...]


_NOTHING_UNKNOWN = NormalizationResult(())
#: The unknown fields of a walk: the objects that hold them, and their names.
_UnknownFields = list[tuple[Object, str]]
_Check = Callable[[Any, _UnknownFields], Any]


def normalize(name: str, value: Object, *, keep_empty: bool = False) -> NormalizationResult:
    """Normalize an object by a definition, in place. Raises Malformed.

    With `keep_empty` nulls and empty values stay: an applied configuration owns them.
    """
    unknown_fields: _UnknownFields = []
    try:
        _definition_check(name, keep_empty)(value, unknown_fields)
    except RecursionError:
        raise Malformed("exceeded max depth") from None
    if not unknown_fields:
        return _NOTHING_UNKNOWN
    paths = _find_paths(value, unknown_fields[:MAX_UNKNOWN_FIELDS])
    for holder, key in unknown_fields:
        holder.pop(key, None)
    return NormalizationResult(paths)


def _find_paths(root: Object, fields: _UnknownFields) -> tuple[str, ...]:
    """Return the paths of fields of objects that are somewhere below the root, in one walk.

    Each visited value has the place of its parent in `visited`, so that no path is built but those
    that are returned: a body may have thousands of values below a long key.
    """
    searched = {id(holder) for holder, _ in fields}
    places: dict[int, int] = {}
    visited: list[tuple[int, str, Any]] = [(0, "", root)]
    for place, (_, _, value) in enumerate(visited):
        if len(places) == len(searched):
            break
        if id(value) in searched:
            places.setdefault(id(value), place)
        is_map = isinstance(value, dict)
        for key, inner in value.items() if is_map else enumerate(value):
            if isinstance(inner, (dict, list)):
                visited.append((place, f".{key}" if is_map else f"[{key}]", inner))
    return tuple(
        _join_steps(visited, places.get(id(holder), 0), f".{key}") for holder, key in fields
    )


def _join_steps(visited: list[tuple[int, str, Any]], place: int, last: str) -> str:
    steps = [last]
    while place:
        place, step, _ = visited[place]
        steps.append(step)
    return "".join(reversed(steps)).removeprefix(".")


def _wrong_type(value: Any, wanted: str) -> Malformed:
    return Malformed(_JSON_NAMES.get(type(value), "object"), wanted)


# ------------------------------------------------------------------------------------- scalars


def _check_string(value: Any, unknown_fields: _UnknownFields) -> Any:
    if value.__class__ is not str:
        raise _wrong_type(value, "string")
    return value


def _check_bool(value: Any, unknown_fields: _UnknownFields) -> Any:
    if value.__class__ is not bool:
        raise _wrong_type(value, "bool")
    return value


def _check_number(value: Any, unknown_fields: _UnknownFields) -> Any:
    if value.__class__ is not float and value.__class__ is not int:
        raise _wrong_type(value, "float64")
    return value


def _integer_check(name: str, bits: int) -> _Check:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def check(value: Any, unknown_fields: _UnknownFields) -> Any:
        if value.__class__ is int and low <= value <= high:
            return value
        if value.__class__ is int or value.__class__ is float:
            raise Malformed(f"number {value}", name)
        raise _wrong_type(value, name)

    return check


_check_int32 = _integer_check("int32", 32)


def _check_int_or_string(value: Any, unknown_fields: _UnknownFields) -> Any:
    return value if value.__class__ is str else _check_int32(value, unknown_fields)


def _check_quantity(value: Any, unknown_fields: _UnknownFields) -> Any:
    kind = value.__class__
    if kind is not str and kind is not int and kind is not float:
        raise _wrong_type(value, "resource.Quantity")
    try:
        return canonical_quantity(value)
    except BadQuantity as error:
        raise Malformed(str(error)) from None


def _check_bytes(value: Any, unknown_fields: _UnknownFields) -> Any:
    """Check base64, and encode the bytes again: Go ignores line breaks and unused last bits."""
    _check_string(value, unknown_fields)
    try:
        decoded = binascii.a2b_base64(value.translate({10: None, 13: None}), strict_mode=True)
    except (binascii.Error, ValueError):
        raise Malformed("illegal base64 data") from None
    return binascii.b2a_base64(decoded, newline=False).decode()


def _parse_time(value: str, layout: str) -> datetime:
    try:
        if _DATE_TIME.fullmatch(value):
            return datetime.fromisoformat(value).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise Malformed(f'parsing time "{value}" as "{layout}": cannot parse "{value}"')


def _check_time(value: Any, unknown_fields: _UnknownFields) -> Any:
    text = _check_string(value, unknown_fields)
    # A fraction may have any number of digits: no long text is kept in the cache.
    cached = _canonical_second if len(text) <= _MAX_CACHED_TIME else _canonical_second.__wrapped__
    return cached(text)


@lru_cache(maxsize=_TIME_CACHE_SIZE)
def _canonical_second(value: str) -> str:
    moment = _parse_time(value, "2006-01-02T15:04:05Z07:00")
    return _format_time(moment, "seconds")


def _check_microtime(value: Any, unknown_fields: _UnknownFields) -> Any:
    layout = "2006-01-02T15:04:05.000000Z07:00"
    moment = _parse_time(_check_string(value, unknown_fields), layout)
    if value[19] != "." or not value[20:26].isdigit() or value[26:27].isdigit():
        raise Malformed(f'parsing time "{value}" as "{layout}": cannot parse "{value[19:]}"')
    return _format_time(moment, "microseconds")


def _format_time(moment: datetime, precision: str) -> str:
    return moment.replace(tzinfo=None).isoformat(timespec=precision) + "Z"


def _check_object(value: Any, unknown_fields: _UnknownFields) -> Any:
    if value.__class__ is not dict:
        raise _wrong_type(value, "object")
    return _accept_any(value, unknown_fields)


def _accept_any(value: Any, unknown_fields: _UnknownFields) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class _Scalar:
    """The check of a scalar, its zero value for null items, and the type that needs no check."""

    check: _Check
    zero: Any
    plain: type | None = None


_SCALARS = {
    "string": _Scalar(_check_string, "", str),
    "bool": _Scalar(_check_bool, False, bool),
    "int32": _Scalar(_check_int32, 0),
    "int64": _Scalar(_integer_check("int64", 64), 0),
    "number": _Scalar(_check_number, 0),
    "bytes": _Scalar(_check_bytes, ""),
    "time": _Scalar(_check_time, None),
    "microtime": _Scalar(_check_microtime, None),
    "quantity": _Scalar(_check_quantity, "0"),
    "int-or-string": _Scalar(_check_int_or_string, 0),
    "opaque": _Scalar(_check_object, None),
    "any": _Scalar(_accept_any, None),
}


# ---------------------------------------------------------------------------------- composites

_COMPILED: dict[tuple[str, bool], _Check] = {}


def _definition_check(name: str, keep_empty: bool) -> _Check:
    """Return the check of a definition, compiled at its first use."""
    if (name, keep_empty) not in _COMPILED:
        node = definition(name)
        _COMPILED[name, keep_empty] = (
            _struct_check(name, node, keep_empty)
            if isinstance(node, dict)
            else _SCALARS[node].check
        )
    return _COMPILED[name, keep_empty]


#: Schemas in schemas, each with the JSON types that Go refuses in its place; others are absent.
_NESTED_SCHEMAS: dict[str, tuple[type, ...]] = {
    "apiextensions.v1.JSONSchemaPropsOrArray": (),
    "apiextensions.v1.JSONSchemaPropsOrBool": (int, float, str, list),
}


def _nested_schema_check(refused: tuple[type, ...], keep_empty: bool) -> _Check:
    """Return the check of a schema in a schema; Go drops its unknown fields without a warning."""

    def check(value: Any, unknown_fields: _UnknownFields) -> Any:
        if value.__class__ in refused:
            raise Malformed("boolean or JSON schema expected")
        schemas = value if value.__class__ is list else [value] if value.__class__ is dict else []
        unknown: _UnknownFields = []
        for schema in schemas:
            if schema is not None:
                _definition_check("apiextensions.v1.JSONSchemaProps", keep_empty)(schema, unknown)
        for holder, key in unknown:
            del holder[key]
        return value

    return check


def _type_name(node: SchemaNode) -> str:
    """Return the scalar or struct of a node, through references; "" for lists and maps."""
    kind: str = node if isinstance(node, str) else node.get("t", "")
    target = definition(kind) if is_reference(kind) else kind
    return target if isinstance(target, str) else kind


def _node_check(node: SchemaNode, keep_empty: bool, empty: _Dropped | None = None) -> _Check:
    """Return the check of a node; for an empty list or map the check returns `empty`, if given."""
    if isinstance(node, str) and node in _NESTED_SCHEMAS:
        return _nested_schema_check(_NESTED_SCHEMAS[node], keep_empty)
    if kind := _type_name(node):
        return _definition_check(kind, keep_empty) if is_reference(kind) else _SCALARS[kind].check
    assert isinstance(node, dict)
    compile_check = _list_check if "l" in node else _map_check
    return compile_check(node["l"] if "l" in node else node["m"], keep_empty, empty)


def _zero_value(node: SchemaNode) -> Any:
    kind = _type_name(node)
    return _SCALARS[kind].zero if kind in _SCALARS else {}


def _plain_type(node: SchemaNode) -> type | None:
    kind = _type_name(node)
    return _SCALARS[kind].plain if kind in _SCALARS else None


def _go_type(node: SchemaNode) -> str:
    if kind := _type_name(node):
        return ".".join(kind.split(".")[-2:])
    assert isinstance(node, dict)
    return f"[]{_go_type(node['l'])}" if "l" in node else f"map[string]{_go_type(node['m'])}"


def _struct_check(name: str, node: dict[str, Any], keep_empty: bool) -> _Check:
    """Return the check of a struct. Its fields compile at first use: structs may be recursive."""
    checks: dict[str, _Check] = {}
    plain: dict[str, type | None] = {}
    wanted = _go_type(name)
    null = None if keep_empty else _DROPPED

    def prepare() -> None:
        plain.update((key, _plain_type(inner)) for key, inner in node["p"].items())
        checks.update((key, _field_check(node, key, keep_empty)) for key in node["p"])

    def check_struct(value: Any, unknown_fields: _UnknownFields) -> Any:
        if value.__class__ is not dict:
            raise _wrong_type(value, wanted)
        if not checks:
            prepare()
        removed = None
        key = ""
        try:
            for key, inner in value.items():
                if inner and inner.__class__ is plain.get(key):
                    continue
                check = checks.get(key)
                if check is None:
                    unknown_fields.append((value, key))
                    continue
                result = null if inner is None else check(inner, unknown_fields)
                if result is inner:
                    continue
                if result is not _DROPPED:
                    value[key] = result
                elif removed is None:
                    removed = [key]
                else:
                    removed.append(key)
        except Malformed as error:
            raise error.prefix_path(f".{key}", name) from None
        if removed is not None:
            for key in removed:
                del value[key]
        return value

    return check_struct


def _field_check(struct: dict[str, Any], key: str, keep_empty: bool) -> _Check:
    """Return the check of a field, which drops empty values unless the field is required."""
    node: SchemaNode = struct["p"][key]
    if keep_empty or key in struct.get("r", ()) or not _is_dropped_when_empty(struct, key):
        return _node_check(node, keep_empty)
    if not _type_name(node):
        return _node_check(node, keep_empty, _DROPPED)
    check = _node_check(node, keep_empty)

    def optional(value: Any, unknown_fields: _UnknownFields) -> Any:
        return check(value, unknown_fields) or _DROPPED

    return optional


def _is_dropped_when_empty(struct: dict[str, Any], key: str) -> bool:
    """Whether Go omits an empty value: lists, maps and strings unless in "n", others if in "z"."""
    kind = _type_name(struct["p"][key])
    if not kind or kind == "string":
        return key not in struct.get("n", ())
    return key in struct.get("z", ())


def _list_check(node: SchemaNode, keep_empty: bool, empty: _Dropped | None) -> _Check:
    check, plain, zero = _node_check(node, keep_empty), _plain_type(node), _zero_value(node)
    wanted = f"[]{_go_type(node)}"

    def check_list(value: Any, unknown_fields: _UnknownFields) -> Any:
        if value.__class__ is not list:
            raise _wrong_type(value, wanted)
        at = 0
        try:
            for at, item in enumerate(value):
                if item.__class__ is plain:
                    continue
                result = _copy_zero(zero) if item is None else check(item, unknown_fields)
                if result is not item:
                    value[at] = result
        except Malformed as error:
            raise error.prefix_path(f"[{at}]") from None
        return value or empty or value

    return check_list


def _map_check(node: SchemaNode, keep_empty: bool, empty: _Dropped | None) -> _Check:
    check, plain, zero = _node_check(node, keep_empty), _plain_type(node), _zero_value(node)
    wanted = f"map[string]{_go_type(node)}"

    def check_map(value: Any, unknown_fields: _UnknownFields) -> Any:
        if value.__class__ is not dict:
            raise _wrong_type(value, wanted)
        key = ""
        try:
            for key, item in value.items():
                if item.__class__ is plain:
                    continue
                result = _copy_zero(zero) if item is None else check(item, unknown_fields)
                if result is not item:
                    value[key] = result
        except Malformed as error:
            raise error.prefix_path(f"[{key}]") from None
        return value or empty or value

    return check_map


def _copy_zero(zero: Any) -> Any:
    return {} if zero == {} else zero
