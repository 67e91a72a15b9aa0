"""Topology: the sets of nodes of which one must hold all members of a group.

A group may name a label whose value its nodes must share. Each value is a placement; members that
have a node already leave only theirs. For members of one sort it is known what every placement
holds (`sites.py`), so that only the best one is tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from phalanx.scheduler.cluster.shape import Shape
from phalanx.scheduler.cluster.snapshot import (
    BoolArray,
    IntArray,
    Placement,
    Snapshot,
    mask_of,
    value_of,
)
from phalanx.scheduler.cluster.spot import Spot
from phalanx.scheduler.decision import SCHEDULER_ERROR
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.events import NODES, OWN
from phalanx.scheduler.judging.allocation import MOST_ALLOCATED, Allocation
from phalanx.scheduler.judging.stake import counted
from phalanx.scheduler.placing.objections import Objection
from phalanx.scheduler.placing.sites import Sites
from phalanx.scheduler.policy import Policy


def placements(
    entity: Entity, snapshot: Snapshot, nodes: IntArray | None = None, key: str | None = None
) -> Sequence[Placement] | Objection | None:
    """The placements among these nodes (None: all) to choose from; None if it may be anywhere.

    Without a key they are those that the group insists on.
    """
    key = entity.topology if key is None else key
    if not key:
        return None
    homes = _homes(entity, snapshot, key)
    if isinstance(homes, Objection):
        return homes
    found: Sequence[Placement] = snapshot.domains(key).places
    if homes:
        found = [placement for placement in found if placement.value in homes]
    return found if nodes is None else list(_among(found, mask_of(nodes, len(snapshot))))


def _among(found: Iterable[Placement], within: BoolArray) -> Iterator[Placement]:
    """The placements as far as they are within some nodes."""
    for placement in found:
        inside = placement.nodes[within[placement.nodes]]
        if inside.size:
            yield placement._replace(nodes=inside)


def _homes(entity: Entity, snapshot: Snapshot, key: str) -> set[str] | Objection:
    """The values that members with a node have; more than one is a contradiction."""
    homes: set[str] = set()
    for pod in entity.others:
        name = pod.node or snapshot.census.node_of(pod.metadata.key)
        if not name:
            continue
        index = snapshot.index.get(name)
        value = None if index is None else value_of(snapshot.labels[index], key)
        if value is None:
            return _lost(f"node {name} of pod {pod.metadata.key} has no label {key}")
        homes.add(value)
    if len(homes) > 1:
        return _lost(f"they are in {' and '.join(sorted(homes))}")
    return homes


def _lost(why: str) -> Objection:
    return Objection(
        SCHEDULER_ERROR,
        f"cannot determine domain for already scheduled pods: {why}",
        "delete the members that are not where the others are",
        OWN | NODES,
    )


def promising(entity: Entity, sites: Sites, scheduled: int) -> Placement:
    """The placement that will hold most of equal members, or comes nearest to enough of them."""
    members = np.minimum(sites.held, len(entity.members)) + scheduled
    enough = (members >= entity.quorum) & (members > scheduled)
    if not enough.any():
        enough[:] = True
    loads = [
        (stake.weight, room, taken + stake.asked * (members - scheduled))
        for stake, room, taken in zip(sites.stakes, sites.room, sites.taken, strict=True)
    ]
    worth = members * 100 // max(int(members[enough].max()), 1) + _fullness(loads)
    return sites.places[int(np.where(enough, worth, -1).argmax())]


class Offer(NamedTuple):
    """What a placement would hold of a group: how many members, and the shapes of the new ones."""

    placement: Placement
    members: int
    shapes: Sequence[Shape]


def best(offers: Sequence[Offer], snapshot: Snapshot, policy: Policy) -> Offer:
    """The offer that holds most members in the fullest placement; of equal ones the first."""
    most = max(1, *(offer.members for offer in offers))
    return max(
        offers,
        key=lambda offer: offer.members * 100 // most + _fullness_with(offer, snapshot, policy),
    )


def _fullness_with(offer: Offer, snapshot: Snapshot, policy: Policy) -> int:
    """How full a placement would be, in per cent."""
    tables = (snapshot.room, snapshot.used, snapshot.scored)
    sums = (table[offer.placement.nodes].sum(axis=0).tolist() for table in tables)
    room, used, scored = map(tuple, sums)
    stakes = counted(_together(offer.shapes), snapshot.columns, policy.packed)
    return Allocation(MOST_ALLOCATED, stakes).here(Spot(room, used, scored, ()))


def _together(shapes: Iterable[Shape]) -> Shape:
    """One pod that asks for as much as all of these."""
    requests: Counter[str] = Counter()
    cpu = memory = 0
    for shape, count in Counter(shapes).items():
        for name, amount in shape.requests:
            requests[name] += amount * count
        cpu, memory = cpu + shape.scored[0] * count, memory + shape.scored[1] * count
    return Shape(tuple(sorted(requests.items())), (cpu, memory))


def _fullness(loads: Sequence[tuple[int, IntArray, IntArray]]) -> IntArray | int:
    """The weighted mean of the used shares of all that placements have, in per cent."""
    total: IntArray | int = 0
    weights: IntArray | int = 0
    for weight, room, used in loads:
        share = np.minimum(used, room) * 100 // np.maximum(room, 1)
        total, weights = total + weight * share, weights + weight * (room > 0)
    return total // np.maximum(weights, 1)
