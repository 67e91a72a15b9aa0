"""How well does a pod of this shape sit on this node? One row per opinion, 0 to 100, weighted.

A score reads one node only, so it is computed for many nodes at once when a view is built and for
a single node when its load moves; both forms give the same integers. Nothing here forbids a node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from phalanx.scheduler.cluster.shape import Shape
from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot
from phalanx.scheduler.cluster.spot import Rows, Spot
from phalanx.scheduler.judging.allocation import allocation
from phalanx.scheduler.judging.balance import balance


class Opinion(Protocol):
    """What one shape makes of the load of nodes, in the columns of one snapshot."""

    def here(self, spot: Spot) -> int:
        """What one node is worth, loaded like that."""
        ...

    def everywhere(self, rows: Rows) -> IntArray:
        """What many nodes are worth."""
        ...


@dataclass(frozen=True, slots=True)
class Score:
    """One sort of opinion and its weight."""

    name: str
    weight: int
    opinion: Callable[[Shape, Mapping[str, int]], Opinion]


@dataclass(frozen=True, slots=True)
class Merit:
    """One opinion about what nodes are, whatever is on them; None where it has none."""

    name: str
    weight: int
    of: Callable[[Snapshot, Shape], IntArray | None]


SCORES = (
    Score("NodeResourcesFit", 1, allocation()),
    Score("NodeResourcesBalancedAllocation", 1, balance()),
)

_MEBIBYTE = 1024 * 1024
#: Less of an image than this, and more than that per container, make no difference.
_LEAST_IMAGE, _MOST_IMAGE = 23 * _MEBIBYTE, 1000 * _MEBIBYTE


def image_locality(snapshot: Snapshot, shape: Shape) -> IntArray | None:
    """How much of a pod's images a node has, those that few nodes have counting less."""
    images = shape.wishes.images
    found = [sizes for sizes in map(snapshot.sizes, images) if sizes.any()]
    if not found:
        return None
    total = np.zeros(len(snapshot), np.int64)
    for sizes in found:
        share = np.count_nonzero(sizes) / len(snapshot)
        total += np.asarray(sizes * share, np.int64)
    most = _MOST_IMAGE * len(images)
    clamped = np.clip(total, _LEAST_IMAGE, most)
    return np.asarray(100 * (clamped - _LEAST_IMAGE) // (most - _LEAST_IMAGE), np.int64)


MERITS = (Merit("ImageLocality", 1, image_locality),)
