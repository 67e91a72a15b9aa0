"""Indexes of an indexed Job: sets of numbers, and the text that a status holds of them."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.api.indexes import BadIndexes, parse_indexes

Indexes = frozenset[int]


def read(text: str | None, completions: int) -> Indexes:
    """The indexes of a text below a number; what cannot be read is as good as nothing."""
    try:
        runs = parse_indexes(text or "", 1 << 31)
    except BadIndexes:
        return frozenset()
    return frozenset(
        i for first, last in runs for i in range(first, min(last, completions - 1) + 1)
    )


def written(indexes: Iterable[int]) -> str:
    """Indexes as a status has them: runs of three and more in short.

    >>> written([7, 0, 1, 3, 4, 5])
    '0,1,3-5,7'
    """
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(_run(run) for run in runs)


def _run(run: list[int]) -> str:
    return f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run))
