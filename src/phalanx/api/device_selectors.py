"""Compiles the CEL expressions with which DeviceClasses and requests select devices.

An expression sees one variable, `device`, with `driver`, `attributes`, `capacity` and
`allowMultipleAllocations`. Validation refuses what does not compile; the scheduler evaluates it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from phalanx.api.cel.compiler import CompiledExpression, compile_expression
from phalanx.api.cel.declarations import BOOL, DYN, STRING, CelType, ObjectField, map_of
from phalanx.api.cel.kubernetes_library import QUANTITY
from phalanx.api.cel.parser import BadExpression

_FIELDS: Mapping[str, CelType] = {
    "driver": STRING,
    "attributes": map_of(STRING, map_of(STRING, DYN)),
    "capacity": map_of(STRING, map_of(STRING, QUANTITY)),
    "allowMultipleAllocations": BOOL,
}
_DEVICE_TYPE = CelType(
    "object",
    fields={name: ObjectField(name, kind) for name, kind in _FIELDS.items()},
    path="resource.k8s.io.Device",
)
_COMPILED_LIMIT = 1024


@lru_cache(maxsize=_COMPILED_LIMIT)
def compile_device_selector(expression: str) -> CompiledExpression | str:
    """Compile an expression; return the error message if it is invalid."""
    try:
        compiled = compile_expression(expression, {"device": _DEVICE_TYPE})
    except BadExpression as error:
        return f"invalid expression: {error}"
    if compiled.result_type not in (BOOL, DYN):
        return f"the expression must be a bool, not {compiled.result_type}"
    return compiled
