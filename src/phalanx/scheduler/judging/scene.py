"""Scene: everything that a filter or a comparison may look at. A view of things, changed by nobody.

One shape on one snapshot, with the load that a trial has put on top of it, and among which others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from phalanx.scheduler.cluster.shape import Shape
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray, Ports, Snapshot
from phalanx.scheduler.judging.among import Among


@dataclass(frozen=True, slots=True)
class Scene:
    """A shape and the cluster around it. Without `among` nobody minds it and it minds nobody."""

    snapshot: Snapshot
    shape: Shape
    used: IntArray
    ports: Mapping[int, Ports]
    among: Among | None = None
    #: The nodes that count; None: all.
    within: BoolArray | None = None

    @property
    def inside(self) -> BoolArray:
        """The nodes that count."""
        return np.ones(len(self.snapshot), bool) if self.within is None else self.within


def opening(snapshot: Snapshot, shape: Shape) -> Scene:
    """The scene before anything is placed, others left out of account."""
    return Scene(snapshot, shape, snapshot.used, snapshot.ports)
