"""Quantities such as `500m`, `4Gi` or `1e3` as exact numbers, and their canonical form.

    text        value          canonical
    1000m       1              1
    0.1         1/10           100m
    1.5Gi       1610612736     1536Mi
    2048Ki      2097152        2Mi
    1200e0      1200           1200
    1e3         1000           1e3

No value passes through a float. Fractions below one billionth are rounded up, as in Kubernetes.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

_SYNTAX = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)(?:([KMGTPE]i)|([numkMGTPE]?)|[eE]([+-]?\d{1,4}))")
_BINARY = {suffix: 1024**n for n, suffix in enumerate(("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_NANO = 10**9
#: The largest exponent, and the length of the longest text; more only costs time.
_LIMIT = 64

QuantityText = str | int | float


class BadQuantity(ValueError):
    """The text is not a quantity."""

    def __init__(self, text: QuantityText) -> None:
        super().__init__(
            "quantities must match the regular expression "
            "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        )
        self.text = text


@lru_cache(maxsize=65536)
def exact_value(text: QuantityText) -> Fraction:
    """Return the exact value of a quantity. Raises BadQuantity."""
    match = _SYNTAX.fullmatch(str(text)) if len(str(text)) <= _LIMIT else None
    if match is None:
        raise BadQuantity(text)
    sign, digits, binary, decimal, exponent = match.groups()
    if exponent is not None and abs(int(exponent)) > _LIMIT:
        raise BadQuantity(text)
    power = int(exponent) if exponent else _DECIMAL[decimal or ""]
    scale = Fraction(_BINARY[binary]) if binary else Fraction(10) ** power
    exact = Fraction(digits) * scale
    rounded = exact if _NANO % exact.denominator == 0 else Fraction(_round_up(exact * _NANO), _NANO)
    return -rounded if sign == "-" else rounded


@lru_cache(maxsize=4096)
def integer_value(text: QuantityText) -> int:
    """Return a quantity in whole units, rounded up: bytes, devices, pods."""
    return _round_up(exact_value(text))


@lru_cache(maxsize=4096)
def milli_value(text: QuantityText) -> int:
    """Return a quantity in thousandths, rounded up: CPU."""
    return _round_up(exact_value(text) * 1000)


@lru_cache(maxsize=65536)
def canonical_quantity(text: QuantityText) -> str:
    """Return the stored form: no fraction, the largest suffix, the written style."""
    number, written = exact_value(text), str(text)
    if number == 0:
        return "0"
    if written.endswith("i") and abs(number) >= 1024:
        return _with_binary_suffix(number)
    if re.search(r"[eE][+-]?\d", written):
        return _with_exponent(number)
    return _with_decimal_suffix(number)


def _with_binary_suffix(number: Fraction) -> str:
    if number.denominator != 1:
        return _with_decimal_suffix(number)
    suffix = max((s for s in _BINARY if number % _BINARY[s] == 0), key=_BINARY.__getitem__)
    return f"{number // _BINARY[suffix]}{suffix}"


def _with_decimal_suffix(number: Fraction) -> str:
    fitting = [s for s, power in _DECIMAL.items() if _is_multiple(power, number)]
    suffix = max(fitting, key=_DECIMAL.__getitem__)
    return f"{number / Fraction(10) ** _DECIMAL[suffix]}{suffix}"


def _with_exponent(number: Fraction) -> str:
    power = max(p for p in range(-9, _LIMIT, 3) if _is_multiple(p, number))
    return f"{number / Fraction(10) ** power}e{power}" if power else f"{number}"


def _is_multiple(power: int, number: Fraction) -> bool:
    return (number / Fraction(10) ** power).denominator == 1


def _round_up(number: Fraction) -> int:
    return -(-number.numerator // number.denominator)
