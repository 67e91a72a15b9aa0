"""The indexes of an indexed Job as it writes them: `0,2-4,7`, each once and rising.

Read by the rules of Jobs (success policies, status) and by whoever counts their pods.
"""

from __future__ import annotations

import re

#: First and last of a run of indexes.
Run = tuple[int, int]

_WHOLE = re.compile(r"[+-]?\d{1,18}").fullmatch


class BadIndexes(ValueError):
    """The text names no indexes, or some that there are not."""


def parse_indexes(text: str, completions: int) -> list[Run]:
    """The runs of a text, all below the number of completions. Raises BadIndexes."""
    runs: list[Run] = []
    for part in text.split(",") if text else ():
        first, last = _run(part, completions)
        if runs and runs[-1][1] >= first:
            raise _disorder(runs[-1][1], first)
        runs.append((first, last))
    return runs


def count(runs: list[Run]) -> int:
    """How many indexes there are in runs."""
    return sum(last - first + 1 for first, last in runs)


def shared_index(some: list[Run], others: list[Run]) -> int | None:
    """The first index that is in both."""
    mine, theirs = 0, 0
    while mine < len(some) and theirs < len(others):
        (first, last), (start, end) = some[mine], others[theirs]
        if max(first, start) <= min(last, end):
            return max(first, start)
        mine, theirs = (mine + 1, theirs) if last < end else (mine, theirs + 1)
    return None


def _run(part: str, completions: int) -> Run:
    ends = part.split("-")
    if len(ends) > 2:
        raise BadIndexes(
            f'the fragment "{part}" violates the requirement that an index interval can have at '
            "most two parts separated by '-'"
        )
    first, last = _index(ends[0], completions), _index(ends[-1], completions)
    if len(ends) == 2 and first >= last:
        raise _disorder(first, last)
    return first, last


def _index(text: str, completions: int) -> int:
    if not _WHOLE(text):
        raise BadIndexes(f'cannot convert string to integer for index: "{text}"')
    if int(text) >= completions:
        raise BadIndexes(f'too large index: "{text}"')
    return int(text)


def _disorder(previous: int, current: int) -> BadIndexes:
    return BadIndexes(f"non-increasing order, previous: {previous}, current: {current}")
