"""Sites: how much each of some placements holds, as one shape sees it. Kept across cycles, patched.

What a `View` is for nodes this is for whole racks or zones: the sums are made once, and a node
whose load has changed moves those of the site that it is in.

    held [12, 8, 30]            so many more pods of the shape in each
    a gang lands on node 4      node 4 is in site 1, it held 3 more and holds 1 now: [12, 6, 30]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phalanx.scheduler.cluster.shape import Shape
from phalanx.scheduler.cluster.snapshot import IntArray, Placement, Snapshot
from phalanx.scheduler.cluster.spot import Spot
from phalanx.scheduler.judging.stake import counted
from phalanx.scheduler.placing.ranking import NOWHERE
from phalanx.scheduler.placing.view import View, view_of
from phalanx.scheduler.policy import Policy

_SITES_LIMIT = 64
#: From this share of changed nodes on it is cheaper to start anew.
_PATCH_SHARE = 16
#: As many as anybody could want.
_PLENTY = int(np.iinfo(np.int32).max)


def capacities(snapshot: Snapshot, policy: Policy, shape: Shape) -> IntArray:
    """How many more pods of a shape each node holds."""
    view = view_of(snapshot, policy, shape)
    if view.ask.unknown:
        return np.zeros(len(snapshot), np.int64)
    most: IntArray = np.where(view.allowed, _PLENTY, 0)
    for column, amount in view.ask.amounts:
        free = snapshot.room[:, column] - snapshot.used[:, column]
        most = np.minimum(most, np.maximum(free // amount, 0))
    if shape.ports:
        most = np.minimum(most, view.keys < NOWHERE)
    return most


def _capacity(view: View, i: int, spot: Spot) -> int:
    """The same of one node that is such a spot."""
    if view.key(i, spot) >= NOWHERE:
        return 0
    room, used = spot.room, spot.used
    most = 1 if view.ask.ports else _PLENTY
    return min([most, *((room[c] - used[c]) // amount for c, amount in view.ask.amounts)])


class Sites:
    """Sums over the nodes of each placement, in the order of the placements."""

    __slots__ = (
        "_each", "_numbers", "_position", "_taken", "epoch", "held", "places", "room", "stakes",
        "taken",
    )  # fmt: skip

    def __init__(
        self, snapshot: Snapshot, policy: Policy, shape: Shape, places: Sequence[Placement]
    ) -> None:
        self.places, self.epoch, self._position = places, snapshot.epoch, len(snapshot.journal)
        inside = np.concatenate([place.nodes for place in places])
        numbers = np.repeat(np.arange(len(places)), [len(place.nodes) for place in places])
        #: The site that each node is in; -1 for none.
        self._numbers = np.full(len(snapshot), -1)
        self._numbers[inside] = numbers
        #: By what of how full they are sites are compared.
        self.stakes = stakes = counted(shape, snapshot.columns, policy.packed)
        #: What each node counts for in the sums.
        self._each = capacities(snapshot, policy, shape)
        self._taken = [stake.there_everywhere(snapshot).tolist() for stake in stakes]

        def total(per_node: IntArray) -> IntArray:
            return np.bincount(numbers, per_node[inside], len(places)).astype(np.int64)

        #: How many more pods of the shape there is room for.
        self.held = total(self._each)
        #: What there is of each stake, and what scores count as used of it.
        self.room = [total(snapshot.room[:, stake.column]) for stake in stakes]
        self.taken = [total(stake.there_everywhere(snapshot)) for stake in stakes]

    def catch_up(self, view: View) -> None:
        """Repeat the nodes whose load has changed since the last look."""
        snapshot = view.snapshot
        changed = snapshot.journal[self._position :]
        self._position = len(snapshot.journal)
        for i in dict.fromkeys(changed):
            if (number := self._numbers.item(i)) >= 0:
                self._put(i, number, snapshot.spot(i), view)

    def is_outdated(self, snapshot: Snapshot) -> bool:
        """Whether too much has changed to be worth repeating."""
        changed = len(snapshot.journal) - self._position
        return self.epoch != snapshot.epoch or changed * _PATCH_SHARE > len(snapshot)

    def _put(self, i: int, number: int, spot: Spot, view: View) -> None:
        holds = _capacity(view, i, spot)
        self.held[number] += holds - self._each[i]
        self._each[i] = holds
        for stake, taken, each in zip(self.stakes, self.taken, self._taken, strict=True):
            there = stake.there(spot)
            taken[number] += there - each[i]
            each[i] = there


def sites_of(
    snapshot: Snapshot, policy: Policy, shape: Shape, places: Sequence[Placement], key: str
) -> Sites:
    """The sites of a shape, brought up to date; kept if they are all there are of a label."""
    if places is not snapshot.domains(key).places:
        return Sites(snapshot, policy, shape, places)
    kept, name = snapshot.sites, (policy, shape, key)
    sites = kept.pop(name, None)
    if sites is None or sites.is_outdated(snapshot):
        sites = Sites(snapshot, policy, shape, places)
    else:
        sites.catch_up(view_of(snapshot, policy, shape))
    kept[name] = sites
    if len(kept) > _SITES_LIMIT:
        del kept[next(iter(kept))]
    return sites
