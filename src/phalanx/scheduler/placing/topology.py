"""Topology: the sets of nodes of which one must hold all members of a group.

A group may name a label whose value its nodes must share. Each value is a placement; members that
have a node already leave only theirs. For members of one sort it is known what every placement
holds (`sites.py`), so that only the best one is tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from phalanx.scheduler.cluster.snapshot import (
    CPU,
    MEMORY,
    BoolArray,
    IntArray,
    Placement,
    Snapshot,
    mask_of,
    value_of,
)
from phalanx.scheduler.decision import SCHEDULER_ERROR
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.placing.objections import Objection
from phalanx.scheduler.placing.sites import Sites


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
    )


def promising(entity: Entity, sites: Sites, scheduled: int) -> Placement:
    """The placement that will hold most of equal members, or comes nearest to enough of them."""
    shape = entity.members[0].shape
    members = np.minimum(sites.held, len(entity.members)) + scheduled
    enough = (members >= entity.quorum) & (members > scheduled)
    if not enough.any():
        enough[:] = True
    loads = [
        (room, used + amount * (members - scheduled))
        for room, used, amount in zip(sites.room, sites.scored, shape.scored, strict=True)
    ]
    worth = members * 100 // max(int(members[enough].max()), 1) + _fullness(loads)
    return sites.places[int(np.where(enough, worth, -1).argmax())]


class Offer(NamedTuple):
    """What a placement would hold of a group: how many members, and what these take."""

    placement: Placement
    members: int
    cpu: int
    memory: int


def best(offers: Sequence[Offer], snapshot: Snapshot) -> Offer:
    """The offer that holds most members in the fullest placement; of equal ones the first."""
    members = np.array([offer.members for offer in offers], np.int64)
    loads = []
    for column, added in ((CPU, [o.cpu for o in offers]), (MEMORY, [o.memory for o in offers])):
        room = [snapshot.room[offer.placement.nodes, column].sum() for offer in offers]
        used = [snapshot.scored[offer.placement.nodes, column].sum() for offer in offers]
        loads.append((np.array(room, np.int64), np.add(used, added)))
    worth = members * 100 // max(int(members.max()), 1) + _fullness(loads)
    return offers[int(worth.argmax())]


def _fullness(loads: Sequence[tuple[IntArray, IntArray]]) -> IntArray:
    """The mean of the used shares of all that a placement has, in per cent."""
    shares = [np.minimum(used, room) * 100 // np.maximum(room, 1) for room, used in loads]
    counts = np.sum([room > 0 for room, _ in loads], axis=0)
    return np.asarray(np.sum(shares, axis=0) // np.maximum(counts, 1), np.int64)
