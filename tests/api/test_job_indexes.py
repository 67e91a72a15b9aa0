"""Index lists of Jobs."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.batch import (
    BadIndexes,
    IndexInterval,
    count_indexes,
    first_shared_index,
    parse_indexes,
)


def format_indexes(indexes: set[int]) -> str:
    """Format indexes as an index list, in the simplest way."""
    texts: list[str] = []
    for first in sorted(index for index in indexes if index - 1 not in indexes):
        last = first
        while last + 1 in indexes:
            last += 1
        texts.append(str(first) if first == last else f"{first}-{last}")
    return ",".join(texts)


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("", []),
        ("0", [(0, 0)]),
        ("0,2-4,7", [(0, 0), (2, 4), (7, 7)]),
        ("3-4,5", [(3, 4), (5, 5)]),
    ],
)
def test_index_list_parses_to_intervals(text: str, runs: list[IndexInterval]) -> None:
    assert parse_indexes(text, 8) == runs


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("8", 'too large index: "8"'),
        ("2-9", 'too large index: "9"'),
        ("a", 'cannot convert string to integer for index: "a"'),
        ("1-", 'cannot convert string to integer for index: ""'),
        ("1,,2", 'cannot convert string to integer for index: ""'),
        ("1-2-3", "at most two parts separated by '-'"),
        ("3-3", "non-increasing order, previous: 3, current: 3"),
        ("4-2", "non-increasing order, previous: 4, current: 2"),
        ("2,1", "non-increasing order, previous: 2, current: 1"),
        ("0-3,3", "non-increasing order, previous: 3, current: 3"),
        ("9" * 5000, "cannot convert string to integer for index"),
    ],
)
def test_malformed_index_list_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(BadIndexes, match=re.escape(why)):
        parse_indexes(text, 8)


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_indexes_are_counted_and_compared_as_sets(some: set[int], others: set[int]) -> None:
    mine, theirs = (parse_indexes(format_indexes(each), 41) for each in (some, others))
    assert count_indexes(mine) == len(some)
    assert first_shared_index(mine, theirs) == min(some & others, default=None)
