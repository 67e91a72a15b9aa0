"""Functions of what may be missing."""

from __future__ import annotations

from typing import Any

from phalanx.api.cel.functions import Function, called, light, method
from phalanx.api.cel.types import BOOL, A, optional_of
from phalanx.api.cel.values import NONE, Fault, Optional

_ZEROS: tuple[Any, ...] = (False, 0, 0.0, "", b"", None)


def _of_non_zero(value: Any) -> Optional:
    is_zero = value in _ZEROS if not isinstance(value, list | dict) else not value
    return NONE if is_zero else Optional(True, value)


def _value(a: Optional) -> Any:
    if not a.has:
        raise Fault("optional.none() dereference")
    return a.value


_MAYBE = optional_of(A)

OPTIONALS: list[Function] = [
    called("optional.of", (A,), _MAYBE, lambda a: Optional(True, a)),
    called("optional.ofNonZeroValue", (A,), _MAYBE, _of_non_zero),
    called("optional.none", (), _MAYBE, lambda: NONE),
    method("hasValue", (_MAYBE,), BOOL, lambda a: a.has, light),
    method("value", (_MAYBE,), A, _value, light),
]
