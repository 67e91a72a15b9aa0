"""Quantities such as `4Gi`: read, compared and added exactly."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from phalanx.api.cel.functions import Function, called, heavy, method
from phalanx.api.cel.types import BOOL, DOUBLE, NUMBER, STRING, Kind
from phalanx.api.cel.values import INT, Fault
from phalanx.api.quantity import BadQuantity, value

QUANTITY = Kind("kubernetes.Quantity")


@dataclass(frozen=True, slots=True)
class Quantity:
    """An exact number."""

    type_name: ClassVar[str] = QUANTITY.name
    number: Fraction


def _is_quantity(text: str) -> bool:
    try:
        value(text)
    except BadQuantity:
        return False
    return True


def _read(text: str) -> Quantity:
    try:
        return Quantity(value(text))
    except BadQuantity as error:
        raise Fault(str(error)) from None


def _fits(a: Quantity) -> bool:
    return a.number.denominator == 1 and -INT <= a.number < INT


def _whole(a: Quantity) -> int:
    if not _fits(a):
        raise Fault("cannot convert value to integer")
    return int(a.number)


def _number(a: Quantity | int) -> Fraction:
    return a.number if isinstance(a, Quantity) else Fraction(a)


def _sign(number: Fraction) -> int:
    return (number > 0) - (number < 0)


_EITHER = (QUANTITY, NUMBER)

QUANTITIES: list[Function] = [
    called("isQuantity", (STRING,), BOOL, _is_quantity, heavy),
    called("quantity", (STRING,), QUANTITY, _read, heavy),
    method("isInteger", (QUANTITY,), BOOL, _fits),
    method("asInteger", (QUANTITY,), NUMBER, _whole),
    method("asApproximateFloat", (QUANTITY,), DOUBLE, lambda a: float(a.number)),
    method("sign", (QUANTITY,), NUMBER, lambda a: _sign(a.number)),
    *(
        method("add", (QUANTITY, k), QUANTITY, lambda a, b: Quantity(a.number + _number(b)))
        for k in _EITHER
    ),
    *(
        method("sub", (QUANTITY, k), QUANTITY, lambda a, b: Quantity(a.number - _number(b)))
        for k in _EITHER
    ),
    method("isLessThan", (QUANTITY, QUANTITY), BOOL, lambda a, b: a.number < b.number),
    method("isGreaterThan", (QUANTITY, QUANTITY), BOOL, lambda a, b: a.number > b.number),
    method("compareTo", (QUANTITY, QUANTITY), NUMBER, lambda a, b: _sign(a.number - b.number)),
]
