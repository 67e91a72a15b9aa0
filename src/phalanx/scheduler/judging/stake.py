"""Stake: one resource as a score counts it: its column, what the pod adds to it, its weight.

What is stated to fit and what is counted to score differ for CPU and memory alone: `counted` takes
silent containers for small ones, `real` takes what is asked for. `allocation.py` and `balance.py`
make opinions of stakes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from phalanx.scheduler.cluster.shape import Shape
from phalanx.scheduler.cluster.snapshot import FIRST_COLUMNS, IntArray
from phalanx.scheduler.cluster.spot import Rows, Spot

#: Resources that count even for pods that do not ask for them.
_ALWAYS = ("cpu", "memory", "ephemeral-storage")
#: Other resources that count, beside those with a slash in their name.
_KNOWN = ("hugepages-", "attachable-volumes-")


class Resource(NamedTuple):
    """A resource and how much it matters."""

    name: str
    weight: int = 1


CPU_AND_MEMORY = (Resource("cpu"), Resource("memory"))


class Stake(NamedTuple):
    """A resource in the columns of one snapshot."""

    weight: int
    column: int
    asked: int
    #: Whether silent pods count as small ones.
    is_counted: bool

    def there(self, spot: Spot) -> int:
        """How much is taken of it on a node."""
        return (spot.scored if self.is_counted else spot.used)[self.column]

    def there_everywhere(self, rows: Rows) -> IntArray:
        """The same for many nodes."""
        return (rows.scored if self.is_counted else rows.used)[:, self.column]

    def taken(self, spot: Spot) -> int:
        """How much would be taken of it on a node, with the pod."""
        return self.there(spot) + self.asked

    def taken_everywhere(self, rows: Rows) -> IntArray:
        """The same for many nodes."""
        return self.there_everywhere(rows) + self.asked


def counted(shape: Shape, columns: Mapping[str, int], resources: Iterable[Resource]) -> list[Stake]:
    """The stakes of a shape, silent pods counted as small ones."""
    silent = dict(zip(FIRST_COLUMNS, shape.scored, strict=False))
    return [
        stake._replace(asked=silent[name], is_counted=True) if name in silent else stake
        for name, stake in _stakes(shape, columns, resources)
    ]


def real(shape: Shape, columns: Mapping[str, int], resources: Iterable[Resource]) -> list[Stake]:
    """The stakes of a shape by what is asked for."""
    return [stake for _, stake in _stakes(shape, columns, resources)]


def _stakes(
    shape: Shape, columns: Mapping[str, int], resources: Iterable[Resource]
) -> Iterator[tuple[str, Stake]]:
    asked = dict(shape.requests)
    for name, weight in resources:
        column, amount = columns.get(name), asked.get(name, 0)
        if column is not None and (name in _ALWAYS or (amount and _is_scalar(name))):
            yield name, Stake(weight, column, amount, False)


def _is_scalar(name: str) -> bool:
    return "/" in name or name.startswith(_KNOWN)
