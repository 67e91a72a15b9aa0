"""Evidence: where there is how much room for the members of a refused entity, and what is short.

A row per domain where a topology is asked for, else per sort of node: those with the same room that
take such a member, or do not for the same reason. An account of room alone: what members mind about
each other and about other pods can only make it less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from phalanx.scheduler.cluster.shape import Shape
from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.judging.filters import Depends
from phalanx.scheduler.judging.scene import opening
from phalanx.scheduler.placing.headroom import needed, shapes
from phalanx.scheduler.placing.sites import capacities
from phalanx.scheduler.policy import Policy

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

    #: The label that divides the places; "" if they are sorts of nodes.
    key: str
    needed: int
    rows: tuple[Row, ...]
    more: int = 0


def evidence(entity: Entity, snapshot: Snapshot, policy: Policy) -> Evidence:
    """Where there is room for whom; the places with most room first."""
    members = Counter(member.shape for member in entity.members)
    told: list[Row] = []
    more = 0
    for shape in shapes(entity)[:MOST_SHAPES]:
        rows = list(_rows(shape, members[shape], entity.topology, snapshot, policy))
        rows.sort(key=lambda row: (-row.fit, -row.empty, row.place))
        told += rows[:MOST_PLACES]
        more = max(more, len(rows) - MOST_PLACES)
    return Evidence(entity.topology, needed(entity, snapshot), tuple(told), more)


def _rows(
    shape: Shape, members: int, key: str, snapshot: Snapshot, policy: Policy
) -> Iterator[Row]:
    now = capacities(snapshot, policy, shape)
    empty = snapshot.twin()
    empty.used[:], empty.ports = 0, {}
    then = capacities(empty, policy, shape)
    bars = _bars(shape, snapshot, policy)
    for place, nodes in _domains(key, snapshot) if key else _alike(bars, snapshot):
        fit, most = int(now[nodes].sum()), int(then[nodes].sum())
        limit = _limit(shape, nodes, bars, snapshot) if fit < members else ""
        yield Row(str(shape), members, place, len(nodes), fit, most, limit)


def _domains(key: str, snapshot: Snapshot) -> Iterator[tuple[str, IntArray]]:
    domains = snapshot.domains(key)
    return ((value, domains.nodes(number)) for number, value in enumerate(domains.values))


def _alike(bars: Sequence[str], snapshot: Snapshot) -> Iterator[tuple[str, IntArray]]:
    """Nodes with the same room that take a member, or do not for the same reason."""
    found: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for node, room in enumerate(snapshot.room.tolist()):
        found.setdefault((bars[node], tuple(room)), []).append(node)
    for nodes in found.values():
        name = snapshot.names[nodes[0]]
        yield name if len(nodes) == 1 else f"like {name}", np.array(nodes, np.int64)


def _bars(shape: Shape, snapshot: Snapshot, policy: Policy) -> list[str]:
    """Why each node takes no such member whatever runs there; "" if it may."""
    scene, bars = opening(snapshot, shape), [""] * len(snapshot)
    for row in policy.filters:
        if row.depends is Depends.NODES:
            for reason, mask in row.refuses(scene):
                for node in np.flatnonzero(mask).tolist():
                    bars[node] = bars[node] or _short(reason)
    return bars


def _short(reason: str) -> str:
    for word in ("node(s) ", "were ", "had "):
        reason = reason.removeprefix(word)
    return reason


def _limit(shape: Shape, nodes: IntArray, bars: Sequence[str], snapshot: Snapshot) -> str:
    """What keeps most of some nodes from taking one more."""
    found = Counter(bars[node] or _shortest(shape, node, snapshot) for node in nodes.tolist())
    return max(sorted(found), key=found.__getitem__)


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
