"""Variation: the cluster as it would be without some pods, or with some more. For one cycle only.

What preemption asks ("and if these were gone?"), what is promised to others, and what a sibling in
a tree of groups has just taken are one thing: a snapshot with other loads. Nothing here decides;
the snapshot that it is made from stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from phalanx.api.meta import Key
from phalanx.scheduler.census import Census, Crowd, Resident, carried_by
from phalanx.scheduler.shape import Shape
from phalanx.scheduler.snapshot import IntArray, Ports, Snapshot


def varied(
    snapshot: Snapshot, minus: Sequence[Resident] = (), plus: Sequence[Resident] = ()
) -> Snapshot:
    """The snapshot without some pods and with others; pods on nodes that are not there are not."""
    gone = [pod for pod in minus if pod.node in snapshot.index]
    come = [pod for pod in plus if pod.node in snapshot.index]
    if not gone and not come:
        return snapshot
    twin = snapshot.twin()
    for pods, sign in ((gone, -1), (come, +1)):
        _load(twin, pods, sign)
    twin.census = VariedCensus(snapshot, gone, come)
    return twin


def _load(snapshot: Snapshot, pods: Iterable[Resident], sign: int) -> None:
    """Put pods on their nodes, or take them off, shape by shape."""
    where: dict[Shape, list[int]] = {}
    for pod in pods:
        i = snapshot.index[pod.node]
        where.setdefault(pod.shape, []).append(i)
        if pod.shape.ports:
            _use_ports(snapshot, i, pod.shape.ports, sign)
    for shape, indexes in where.items():
        ask, times = shape.ask(snapshot.columns), np.bincount(indexes, minlength=len(snapshot))
        for column, amount in ask.amounts:
            snapshot.used[:, column] += sign * amount * times
        snapshot.scored += sign * np.outer(times, (ask.scored_cpu, ask.scored_memory))


def _use_ports(snapshot: Snapshot, i: int, ports: Ports, sign: int) -> None:
    taken = list(snapshot.ports.get(i, ()))
    for port in ports:
        if sign > 0:
            taken.append(port)
        elif port in taken:
            taken.remove(port)
    snapshot.put_ports(i, tuple(taken))


class VariedCensus(Census):
    """A census of which some pods are gone, and to which others have come. Only to be read."""

    def __init__(
        self, snapshot: Snapshot, gone: Sequence[Resident], come: Sequence[Resident]
    ) -> None:
        super().__init__()
        self._base = base = snapshot.census
        self.namespaces, self.services, self._index = base.namespaces, base.services, snapshot.index
        self._changes = [(pod, -1) for pod in gone] + [(pod, +1) for pod in come]
        self._moved = {pod.key: pod for pod in come}
        self._absent = {pod.key for pod in gone}
        self.carried = {one: dict(nodes) for one, nodes in base.carried.items()}
        for pod, change in self._changes:
            for carried in carried_by(pod.peers) if pod.peers else ():
                self._carry(carried, pod.node, change)

    def residents(self) -> Iterable[Resident]:
        """All pods on nodes, those who have come last."""
        stayed = (pod for pod in self._base.residents() if pod.key not in self._absent)
        return (*stayed, *self._moved.values())

    def node_of(self, key: Key) -> str:
        """The node that a pod is on; "" for none."""
        if key in self._moved:
            return self._moved[key].node
        return "" if key in self._absent else self._base.node_of(key)

    def crowd(self, crowd: Crowd) -> IntArray:
        """How many of a crowd there are on each node."""
        counts = self._crowds.get(crowd)
        if counts is None:
            counts = self._crowds[crowd] = self._base.crowd(crowd).copy()
            for pod, change in self._changes:
                if crowd.holds(pod, self.namespaces):
                    counts[self._index[pod.node]] += change
        return counts
