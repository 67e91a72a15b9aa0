"""The building blocks of plugin arguments: base structs, shared parts and validation rules.

Each plugin with arguments defines a struct and its rules in its own module; the struct decides
field names, types and defaults, the rules decide which values are valid. `configuration/` decodes
`pluginConfig` with them.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Annotated, Any

from msgspec import Meta, Struct

from phalanx.api.errors import Cause, Causes, forbidden, invalid
from phalanx.api.formats import validate_label_key
from phalanx.api.schema import Malformed, schema
from phalanx.api.validation.checks import (
    Check,
    all_of,
    each,
    in_range,
    mandatory,
    optional,
    string_format,
    struct,
)

#: An integer that Kubernetes' Go types can hold.
Int32 = Annotated[int, Meta(ge=-(2**31), lt=2**31)]


class PluginArgs(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The base of the arguments of a plugin. A field `my_label` is written `myLabel`."""

    api_version: str = ""
    kind: str = ""


class ArgsPart(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The base of an object inside the arguments of a plugin."""


class ResourceSpec(ArgsPart, frozen=True):
    """A resource and its weight; a weight of 0 means 1."""

    name: str = ""
    weight: Int32 = 0


class UtilizationShapePoint(ArgsPart, frozen=True):
    """The score, 0 to 10, of a node with this utilization, in per cent."""

    utilization: Int32 = 0
    score: Int32 = 0


def unknown_field(field: str) -> Cause:
    """The cause for a field that does not exist."""
    return Cause(field, "FieldValueForbidden", "there is no such field")


def not_supported(reason: str) -> Check:
    """Reject any value that is not empty."""
    return optional(lambda new, old: [forbidden("", f"is not supported: {reason}")])


def matches_definition(definition: str) -> Check:
    """Reject fields that an API definition does not have, and values of other types."""

    def check(new: Any, old: Any) -> Causes:
        try:
            return [
                unknown_field(field)
                for field in schema(definition).normalize(deepcopy(new)).unknown_fields
            ]
        except Malformed as error:
            return [Cause(error.path, "FieldValueTypeInvalid", str(error))]

    return check


def and_then(first: Check, second: Check) -> Check:
    """Run the second check only on values that pass the first."""
    return lambda new, old: first(new, old) or second(new, old)


def _check_increasing(new: Any, old: Any) -> Causes:
    values = [point.get("utilization", 0) for point in new]
    return [
        invalid(f"[{at}].utilization", values[at], "values must be sorted in increasing order")
        for at in range(1, len(values))
        if values[at - 1] >= values[at]
    ]


UTILIZATION_SHAPE_RULES = all_of(
    each(struct(("utilization", optional(in_range(0, 100))), ("score", optional(in_range(0, 10))))),
    _check_increasing,
)
RESOURCE_RULES = struct(
    ("name", mandatory(string_format(validate_label_key))), ("weight", optional(in_range(0, 100)))
)
