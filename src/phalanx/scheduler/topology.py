"""Topology: the sets of nodes of which one must hold all members of a group.

A group may name a label whose value its nodes must share. Each value is a placement; members that
have a node already leave only theirs. For members of one sort a single pass over the nodes tells
what every placement holds, so that only the best one is tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from phalanx.scheduler.decision import SCHEDULER_ERROR
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.objections import Objection
from phalanx.scheduler.policy import Policy
from phalanx.scheduler.ranking import NOWHERE
from phalanx.scheduler.shape import Shape
from phalanx.scheduler.snapshot import CPU, MEMORY, IntArray, Snapshot, value_of
from phalanx.scheduler.view import view_of


class Placement(NamedTuple):
    """Nodes that share a label, by index, lowest first."""

    value: str
    nodes: IntArray


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
    domains = snapshot.domains(key)
    chosen = [n for n, value in enumerate(domains.values) if not homes or value in homes]
    chosen.sort(key=lambda number: domains.values[number])
    found = [Placement(domains.values[n], domains.members[n]) for n in chosen]
    return found if nodes is None else list(_among(found, nodes))


def _among(found: Iterable[Placement], nodes: IntArray) -> Iterator[Placement]:
    """The placements as far as they are within some nodes."""
    for placement in found:
        inside = placement.nodes[np.isin(placement.nodes, nodes)]
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


def capacities(snapshot: Snapshot, policy: Policy, shape: Shape) -> IntArray:
    """How many more pods of a shape each node holds."""
    view = view_of(snapshot, policy, shape)
    most: IntArray = np.where(view.allowed, np.iinfo(np.int32).max, 0)
    for column, amount in view.ask.amounts:
        free = snapshot.room[:, column] - snapshot.used[:, column]
        most = np.minimum(most, np.maximum(free // amount, 0))
    if view.ask.unknown:
        return np.zeros(len(snapshot), np.int64)
    if shape.ports:
        most = np.minimum(most, view.keys != NOWHERE)
    return most


def promising(
    entity: Entity, snapshot: Snapshot, policy: Policy, found: Sequence[Placement], scheduled: int
) -> Placement:
    """The placement that will hold most of equal members, or comes nearest to enough of them."""
    shape = entity.members[0].shape
    inside = np.concatenate([placement.nodes for placement in found])
    ids = np.repeat(np.arange(len(found)), [len(placement.nodes) for placement in found])

    def total(per_node: IntArray) -> IntArray:
        return np.bincount(ids, per_node[inside], len(found)).astype(np.int64)

    held = total(capacities(snapshot, policy, shape))
    members = np.minimum(held, len(entity.members)) + scheduled
    enough = (members >= entity.quorum) & (members > scheduled)
    if not enough.any():
        enough[:] = True
    loads = [
        (total(snapshot.room[:, column]),
         total(snapshot.scored[:, column]) + amount * (members - scheduled))
        for column, amount in zip((CPU, MEMORY), shape.scored, strict=True)
    ]  # fmt: skip
    worth = members * 100 // max(int(members[enough].max()), 1) + _fullness(loads)
    return found[int(np.where(enough, worth, -1).argmax())]


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
