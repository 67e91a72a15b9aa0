"""Indexes of nodes: the row of a name, the names with a label, the names with an image.

Labels and images are indexed by the names of nodes, not by rows: rows move when nodes are added or
removed. So these indexes are changed node by node, however many nodes there are, and serve a
snapshot, its forks and the snapshots that follow it.

What was computed for the rows of a snapshot is carried over to the snapshot that follows it: masks,
domains and scores of the nodes that stay are not computed again, only the new rows are.
`PreviousRows` says where the rows were.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from phalanx.api.core import Node

if TYPE_CHECKING:
    from phalanx.scheduler.cluster.snapshot import Snapshot

Labels = Mapping[str, str]


#: Up to so many nodes, moved rows are indexed by a complete dict: it is faster to read, but for
#: 50,000 nodes building it takes longer than all else that must be done when a node is added.
_COMPLETE_INDEX_LIMIT = 10_000


def index_rows(names: Sequence[str]) -> Mapping[str, int]:
    """Return the row of each node, given the sorted names."""
    is_small = len(names) <= _COMPLETE_INDEX_LIMIT
    return dict(zip(names, range(len(names)), strict=True)) if is_small else NodeIndex(names)


class NodeIndex(dict[str, int]):
    """The row of each node of a large cluster, found in the sorted names on first use."""

    __slots__ = ("_names",)

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self._names = names

    def __missing__(self, name: str) -> int:
        i = bisect_left(self._names, name)
        if i == len(self._names) or self._names[i] != name:
            raise KeyError(name)
        self[name] = i
        return i

    def __contains__(self, name: Any) -> bool:
        try:
            self[name]
        except KeyError:
            return False
        return True

    def get(self, name: Any, default: Any = None) -> Any:
        """Return the row of a node, or a default."""
        try:
            return self[name]
        except KeyError:
            return default

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def items(self) -> Any:
        """Return the nodes with their rows."""
        return zip(self._names, range(len(self._names)), strict=True)


class LabelIndex:
    """The names of the nodes that have a label, by key and value; built on first use.

    Sets of names are dicts, so that their order is known:

        {"zone": {"a": {n0, n3}, "b": {n1}}, "disk": {"ssd": {n1, n3}}}
    """

    __slots__ = ("_is_built", "_names")

    def __init__(self) -> None:
        self._names: dict[str, dict[str, dict[str, None]]] = {}
        self._is_built = False

    def build(self, nodes: Iterable[tuple[str, Labels]]) -> None:
        """Add all nodes, unless that was done before."""
        if not self._is_built:
            self._is_built = True
            for name, labels in nodes:
                self.add(name, labels)

    def add(self, name: str, labels: Labels) -> None:
        """Add a node; `build` adds it if the index is not built yet."""
        for key, value in labels.items() if self._is_built else ():
            self._names.setdefault(key, {}).setdefault(value, {})[name] = None

    def remove(self, name: str, labels: Labels) -> None:
        """Remove a node that has these labels."""
        for key, value in labels.items() if self._is_built else ():
            values = self._names[key]
            del values[value][name]
            if not values[value]:
                del values[value]

    def names_by_value(self, key: str) -> Mapping[str, Mapping[str, None]]:
        """Return the names of the nodes that have a label, by its value."""
        return self._names.get(key, {})


class ImageIndex:
    """The bytes of each image on the nodes that have it, by the names of the nodes."""

    __slots__ = ("_sizes",)

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._sizes: dict[str, dict[str, int]] = {}
        for node in nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        """Add the images of a node."""
        for image in node.status.images:
            for name in image.names:
                self._sizes.setdefault(name, {})[node.metadata.name] = image.size_bytes

    def remove(self, name: str) -> None:
        """Remove the images of a node."""
        for sizes in self._sizes.values():
            sizes.pop(name, None)

    def sizes(self, image: str) -> Mapping[str, int]:
        """Return the bytes of an image on the nodes that have it."""
        return self._sizes.get(image, {})


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
