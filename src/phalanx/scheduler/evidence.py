"""Evidence: where there is how much room for the members of a refused entity, and what is short.

A row per domain where a topology is asked for, else per shape of node. An account of room alone:
what members mind about each other and about other pods can only make it less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from phalanx.api.core import Node
from phalanx.scheduler.additions import by_shape
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.filters import Depends
from phalanx.scheduler.headroom import needed, shapes
from phalanx.scheduler.policy import Policy
from phalanx.scheduler.scene import opening
from phalanx.scheduler.shape import Shape
from phalanx.scheduler.snapshot import IntArray, Snapshot
from phalanx.scheduler.topology import capacities
from phalanx.scheduler.view import view_of

#: How many places are told for each sort of member, and how many sorts.
MOST_PLACES, MOST_SHAPES = 8, 4


class Row(NamedTuple):
    """Members of one sort in one place."""

    #: What each of these members asks for, and how many they are.
    asks: str
    members: int
    place: str
    nodes: int
    #: How many fit now, and how many would if nothing ran there.
    fit: int
    empty: int
    #: What there is too little of, or what keeps them off; "" if they all fit.
    limit: str


class Evidence(NamedTuple):
    """The table, and how many places it leaves out."""

    #: The label that divides the places; "" if they are shapes of nodes.
    key: str
    needed: int
    rows: tuple[Row, ...]
    more: int = 0


class Place(NamedTuple):
    """Nodes that are told of together, by index."""

    title: str
    nodes: IntArray


def evidence(
    entity: Entity, snapshot: Snapshot, nodes: Iterable[Node], policy: Policy
) -> Evidence:
    """Where there is room for whom; the places with most room first."""
    places = _domains(entity, snapshot) if entity.topology else list(_kinds(snapshot, nodes))
    members = Counter(member.shape for member in entity.members)
    rows = [
        row
        for shape in shapes(entity)[:MOST_SHAPES]
        for row in _best(_rows(shape, members[shape], places, snapshot, policy))
    ]
    more = max(len(places) - MOST_PLACES, 0)
    return Evidence(entity.topology, needed(entity, snapshot), tuple(rows), more)


def _domains(entity: Entity, snapshot: Snapshot) -> list[Place]:
    domains = snapshot.domains(entity.topology)
    return [Place(v, nodes) for v, nodes in zip(domains.values, domains.members, strict=True)]


def _kinds(snapshot: Snapshot, nodes: Iterable[Node]) -> Iterator[Place]:
    for alike in by_shape(nodes).values():
        names = [node.metadata.name for node in alike]
        title = names[0] if len(names) == 1 else f"like {names[0]}"
        yield Place(title, np.array([snapshot.index[name] for name in names], np.int64))


def _best(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (-row.fit, -row.empty, row.place))[:MOST_PLACES]


def _rows(
    shape: Shape, members: int, places: Sequence[Place], snapshot: Snapshot, policy: Policy
) -> Iterator[Row]:
    now = capacities(snapshot, policy, shape)
    empty = snapshot.twin()
    empty.used[:], empty.ports = 0, {}
    then = capacities(empty, policy, shape)
    for title, nodes in places:
        fit = int(now[nodes].sum())
        limit = _limit(shape, nodes, snapshot, policy) if fit < members else ""
        yield Row(str(shape), members, title, len(nodes), fit, int(then[nodes].sum()), limit)


def _limit(shape: Shape, nodes: IntArray, snapshot: Snapshot, policy: Policy) -> str:
    """What keeps most of these nodes from taking one more."""
    allowed = view_of(snapshot, policy, shape).allowed
    found = Counter(dict(_barred(shape, nodes, snapshot, policy)))
    for node in nodes[allowed[nodes]].tolist():
        found[_shortest(shape, node, snapshot)] += 1
    return max(sorted(found), key=found.__getitem__) if found else ""


def _shortest(shape: Shape, node: int, snapshot: Snapshot) -> str:
    """The resource of which a node holds fewest such members."""
    columns = snapshot.columns

    def holds(request: tuple[str, int]) -> int:
        name, amount = request
        if name not in columns:
            return 0
        free = int(snapshot.room[node, columns[name]] - snapshot.used[node, columns[name]])
        return max(free, 0) // amount

    return min(shape.requests, key=holds)[0]


def _barred(
    shape: Shape, nodes: IntArray, snapshot: Snapshot, policy: Policy
) -> Iterator[tuple[str, int]]:
    """Nodes that do not take it whatever runs there, counted by the first reason."""
    scene, left = opening(snapshot, shape), np.ones(len(snapshot), bool)
    for row in policy.filters:
        if row.depends is Depends.NODES:
            for reason, mask in row.refuses(scene):
                if count := int(np.count_nonzero((mask & left)[nodes])):
                    yield reason.removeprefix("node(s) "), count
                left &= ~mask
