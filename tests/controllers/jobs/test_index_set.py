"""Index sets as text, as a Job status contains them."""

from __future__ import annotations

import pytest

from phalanx.controllers.jobs.job_pods import format_index_set, parse_index_set


@pytest.mark.parametrize(
    ("indexes", "text"),
    [([], ""), ([3], "3"), ([1, 0], "0,1"), ([0, 1, 2], "0-2"), ([7, 0, 1, 3, 4, 5], "0,1,3-5,7")],
)
def test_index_set_is_formatted_in_runs_and_parsed_again(indexes: list[int], text: str) -> None:
    assert format_index_set(indexes) == text
    assert parse_index_set(text, 100) == frozenset(indexes)


def test_indexes_beyond_completions_are_ignored() -> None:
    assert parse_index_set("1,3-9", 5) == {1, 3, 4}
    assert parse_index_set("7-9", 5) == frozenset()


@pytest.mark.parametrize("text", ["a", "3-1", "1,1", "1--2"])
def test_malformed_index_set_is_empty(text: str) -> None:
    assert parse_index_set(text, 5) == frozenset()
    assert parse_index_set(None, 5) == frozenset()
