"""What was computed for the rows of a snapshot, in the rows of the snapshot that follows it.

When nodes are added or removed, the snapshot is copied with its rows moved. Masks, domains and
scores of the nodes that stay are not computed again; only the new rows are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from phalanx.scheduler.cluster.snapshot import Snapshot

IntArray = NDArray[np.int64]
_T = TypeVar("_T")


class PreviousRows(NamedTuple):
    """The snapshot before nodes were added or removed, and where its rows are now.

    before    a b d       rows        [0, -1, 1, 2]      row 2 was row 1 before
    after     a aa b d    new_rows    [1]                row 1 is new
    """

    snapshot: Snapshot
    #: The former row of each row; -1 for a node that is new, or that was replaced.
    rows: IntArray
    new_rows: Sequence[int]


def move_values(values: Mapping[int, _T], rows: IntArray) -> dict[int, _T]:
    """Return values by row in the rows of the next snapshot."""
    if not values:
        return {}
    moved = np.flatnonzero(np.isin(rows, list(values)))
    former = rows[moved].tolist()
    return {i: values[row] for i, row in zip(moved.tolist(), former, strict=True)}


def move_domain_ids(
    ids: IntArray,
    values: Sequence[str],
    previous: PreviousRows,
    *,
    new_values: Sequence[str | None],
) -> tuple[IntArray, tuple[str, ...]]:
    """Return the number of each row's topology domain, and the values of the domains.

    `new_values` are those of the new rows. Domains are numbered in the order of the rows, as
    without a previous snapshot; those that have no node left are dropped.
    """
    moved = ids[previous.rows]
    numbers = {value: number for number, value in enumerate(values)}
    for i, value in zip(previous.new_rows, new_values, strict=True):
        moved[i] = -1 if value is None else numbers.setdefault(value, len(numbers))
    used, first_rows = np.unique(moved[moved >= 0], return_index=True)
    used = used[np.argsort(first_rows)]
    renumbered = np.full(len(numbers) + 1, -1)
    renumbered[used] = np.arange(len(used))
    names = list(numbers)
    return renumbered[moved], tuple(names[number] for number in used.tolist())
