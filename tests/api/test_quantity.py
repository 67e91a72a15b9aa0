"""Quantities: exact values and canonical forms."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.resources import (
    BadQuantity,
    QuantityText,
    canonical_quantity,
    exact_value,
    integer_value,
    milli_value,
)

SUFFIXES = ("", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
numbers = st.decimals(
    min_value=-(10**9), max_value=10**9, places=3, allow_nan=False, allow_infinity=False
)
quantities = st.builds(lambda n, s: f"{n}{s}", numbers, st.sampled_from(SUFFIXES))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", Fraction(1)),
        ("500m", Fraction(1, 2)),
        ("0.1", Fraction(1, 10)),
        ("1.5Gi", Fraction(3 * 2**29)),
        ("1e3", Fraction(1000)),
        ("1E-3", Fraction(1, 1000)),
        (".5", Fraction(1, 2)),
        ("-2k", Fraction(-2000)),
        ("1n", Fraction(1, 10**9)),
        ("0.5n", Fraction(1, 10**9)),
        (3, Fraction(3)),
        (0.25, Fraction(1, 4)),
    ],
)
def test_quantity_has_an_exact_value(text: QuantityText, number: Fraction) -> None:
    assert exact_value(text) == number


@pytest.mark.parametrize("text", ["", "lots", "1 ", "1KI", "1e", "--1", "1.2.3", "9" * 65, "1e999"])
def test_malformed_quantity_is_refused(text: str) -> None:
    with pytest.raises(BadQuantity, match="quantities must match"):
        exact_value(text)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("1000m", "1"),
        ("0.1", "100m"),
        ("1.5Gi", "1536Mi"),
        ("2048Ki", "2Mi"),
        ("1e3", "1e3"),
        ("1200e0", "1200"),
        ("0Gi", "0"),
        ("1000", "1k"),
        ("1Ki", "1Ki"),
        ("0.5Ki", "512"),
        ("100000000", "100M"),
        (2, "2"),
    ],
)
def test_each_number_has_one_canonical_form_per_style(text: QuantityText, form: str) -> None:
    assert canonical_quantity(text) == form


@given(quantities)
def test_canonical_form_has_the_same_value(text: str) -> None:
    assert exact_value(canonical_quantity(text)) == exact_value(text)


@given(quantities)
def test_canonical_form_is_stable(text: str) -> None:
    assert canonical_quantity(canonical_quantity(text)) == canonical_quantity(text)


@given(quantities)
def test_units_are_rounded_up_by_less_than_one(text: str) -> None:
    exact = exact_value(text)
    assert 0 <= integer_value(text) - exact < 1
    assert 0 <= milli_value(text) - exact * 1000 < 1
