"""Variation: the cluster as it would be without some pods, or with some more. For one cycle only.

What preemption asks ("and if these were gone?"), what is promised to others, and what a sibling in
a tree of groups has just taken are one thing: a snapshot with other loads. Nothing here decides;
the snapshot that it is made from stays as it was.

Those who were only promised a place take up room, but nobody can rely on their company yet: the
census says who is there with them, and `bare` who is there without.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from operator import attrgetter

import numpy as np

from phalanx.api.meta import Key
from phalanx.scheduler.cluster.census import Census, Crowd, Resident, carried_by
from phalanx.scheduler.cluster.shape import Shape
from phalanx.scheduler.cluster.snapshot import CPU, MEMORY, IntArray, Ports, Snapshot

_NODE, _SHAPE = attrgetter("node"), attrgetter("shape")
#: So few pods are put somewhere faster one by one.
FEW = 16


def varied(
    snapshot: Snapshot, minus: Sequence[Resident] = (), plus: Sequence[Resident] = (),
    *, promised: bool = False,
) -> Snapshot:  # fmt: skip
    """The snapshot without some pods and with others; pods on nodes that are not there are not.

    `promised`: who comes was promised a place and is not there yet.
    """
    if not minus and not plus:
        return snapshot
    twin = snapshot.twin()
    for pods, sign in ((minus, -1), (plus, +1)):
        _load(twin, pods, sign)
    twin.census = VariedCensus(snapshot.census, snapshot.index, minus, plus, promised=promised)
    return twin


def _load(snapshot: Snapshot, pods: Sequence[Resident], sign: int) -> None:
    """Put pods on their nodes, or take them off."""
    if len(pods) > FEW:
        _load_many(snapshot, pods, sign)
    else:
        for pod in pods:
            if (i := snapshot.index.get(pod.node)) is not None:
                _load_one(snapshot, i, pod.shape, sign)


def _load_one(snapshot: Snapshot, i: int, shape: Shape, sign: int) -> None:
    ask, used, scored = shape.ask(snapshot.columns), snapshot.used, snapshot.scored
    if shape.ports:
        _use_ports(snapshot, i, shape.ports, sign)
    for column, amount in ask.amounts:
        used[i, column] += sign * amount
    scored[i, CPU] += sign * ask.scored_cpu
    scored[i, MEMORY] += sign * ask.scored_memory


def _load_many(snapshot: Snapshot, pods: Sequence[Resident], sign: int) -> None:
    """The same shape by shape."""
    index, size = snapshot.index, len(pods)
    # By identity: pods of one sort mostly share their shape, and hashing it takes longer.
    shapes = {id(shape): shape for shape in map(_SHAPE, pods)}
    sorts = np.fromiter(map(id, map(_SHAPE, pods)), np.int64, size)
    nodes = np.fromiter(map(index.get, map(_NODE, pods), repeat(-1)), np.int64, size)
    for sort, shape in shapes.items():
        found = nodes[(sorts == sort) & (nodes >= 0)]
        ask, times = shape.ask(snapshot.columns), np.bincount(found, minlength=len(snapshot))
        for i in found.tolist() if shape.ports else ():
            _use_ports(snapshot, i, shape.ports, sign)
        for column, amount in ask.amounts:
            snapshot.used[:, column] += sign * amount * times
        for column, amount in ((CPU, ask.scored_cpu), (MEMORY, ask.scored_memory)):
            snapshot.scored[:, column] += sign * amount * times


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
        self, base: Census, index: Mapping[str, int], gone: Sequence[Resident],
        come: Sequence[Resident], *, promised: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self._base, self._index, self._promised = base, index, promised
        self.namespaces, self.services = base.namespaces, base.services
        self._gone, self._come = gone, come
        self.carried = {one: dict(nodes) for one, nodes in base.carried.items()}
        for pods, change in ((gone if base.carried else (), -1), (come, +1)):
            for pod in pods:
                for carried in carried_by(pod.peers) if pod.peers else ():
                    self._carry(carried, pod.node, change)

    @cached_property
    def bare(self) -> Census:
        """The same without those who were only promised a place."""
        base = self._base.bare
        if base is self._base and not self._promised:
            return self
        gone = [pod for pod in self._gone if base.node_of(pod.key)]
        come = () if self._promised else self._come
        return VariedCensus(base, self._index, gone, come) if gone or come else base

    @cached_property
    def _moved(self) -> dict[Key, Resident]:
        return {pod.key: pod for pod in self._come}

    @cached_property
    def _absent(self) -> set[Key]:
        return {pod.key for pod in self._gone}

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
            for pods, change in ((self._gone, -1), (self._come, +1)):
                for pod in pods:
                    if pod.node in self._index and crowd.holds(pod, self.namespaces):
                        counts[self._index[pod.node]] += change
        return counts
