"""PodEnds: the pods on nodes that end, as arrays, and the cluster after some of them have ended.

A slot per pod. Rows and columns are those of a snapshot (`align`):

    key      node  end      row  amounts (cpu, memory, pods, ...)
    a-0      n1    09:40    1    2000, 4Gi, 1
    b-0      n7    inf      7    8000, 8Gi, 1      it will end, but its end is unknown

`RunTimes` writes here; the planner reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from phalanx.api.meta import Key
from phalanx.scheduler.cluster.hypothetical import (
    HypotheticalPodIndex,
    release_claims,
    release_ports,
)
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot

FloatArray = NDArray[np.float64]
#: A pod that runs longer than expected is expected to end now for so many seconds, then its end is
#: unknown.
OVERDUE_SECONDS = 30.0


class PodEnds:
    """The pods that end: key, node, shape and expected end (`inf`: unknown)."""

    def __init__(self) -> None:
        self._slots: dict[Key, int] = {}
        self._keys: list[Key | None] = []
        self._nodes: list[str] = []
        self._shapes: list[PodShape | None] = []
        self._unused: list[int] = []
        #: `-inf` marks an unused slot.
        self._ends: FloatArray = np.full(64, -np.inf)
        self._rows: IntArray = np.full(64, -1, np.int64)
        self._amounts: IntArray = np.zeros((64, 0), np.int64)
        self._index: Mapping[str, int] = {}
        self._columns: Mapping[str, int] = {}
        #: The nodes on which pods have changed since this was cleared last.
        self.touched: set[str] = set()

    def __len__(self) -> int:
        return len(self._slots)

    def set(self, key: Key, node: str, shape: PodShape, *, end: float) -> None:
        """Add a pod, or change its end."""
        slot = self._slots.get(key)
        if slot is None:
            if self._unused:
                slot = self._unused.pop()
            else:
                slot = len(self._keys)
                self._keys.append(None)
                self._nodes.append("")
                self._shapes.append(None)
                self._grow(slot)
            self._slots[key] = slot
        self._keys[slot], self._nodes[slot], self._shapes[slot] = key, node, shape
        self._ends[slot] = end
        self.touched.add(node)
        self._write_row(slot)

    def remove(self, key: Key) -> None:
        """Remove a pod that has ended."""
        slot = self._slots.pop(key)
        self.touched.add(self._nodes[slot])
        self._keys[slot], self._shapes[slot] = None, None
        self._ends[slot], self._rows[slot] = -np.inf, -1
        self._unused.append(slot)

    def end_of(self, key: Key) -> float | None:
        """Return the expected end of a pod; None if it never ends."""
        slot = self._slots.get(key)
        return None if slot is None else float(self._ends[slot])

    def align(self, snapshot: Snapshot) -> None:
        """Use the rows and columns of a snapshot."""
        if snapshot.index is self._index and len(snapshot.columns) == len(self._columns):
            return
        self._index, self._columns = snapshot.index, dict(snapshot.columns)
        self._amounts = np.zeros((len(self._ends), len(self._columns) + 2), np.int64)
        used = list(self._slots.values())
        nodes = (self._nodes[slot] for slot in used)
        self._rows[used] = np.fromiter(map(self._index.get, nodes, repeat(-1)), np.int64, len(used))
        # By identity: equal pods mostly share one shape object, and hashing shapes takes longer.
        shapes = {id(shape): shape for shape in self._shapes if shape is not None}
        numbers = {shape_id: number for number, shape_id in enumerate(shapes)}
        vectors = [self._vector(shape) for shape in shapes.values()]
        if used:
            chosen = [numbers[id(self._shapes[slot])] for slot in used]
            self._amounts[used] = np.array(vectors)[chosen]

    def slots(self, excluded: Iterable[Key] = ()) -> IntArray:
        """Return the slots of all pods on nodes of the snapshot, except some."""
        found = self._rows >= 0
        found[self.slots_of(excluded)] = False
        return np.flatnonzero(found)

    def slots_of(self, keys: Iterable[Key]) -> IntArray:
        """Return the slots of those of the pods that end, on nodes of the snapshot.

        A pod may still be nominated for a node that is gone.
        """
        found = np.array([self._slots[key] for key in keys if key in self._slots], np.int64)
        return found[self._rows[found] >= 0]

    def slots_on(self, row: int) -> IntArray:
        """Return the slots of the pods on a node."""
        return np.flatnonzero(self._rows == row)

    def has_end_between(self, first: float, until: float) -> bool:
        """Whether a pod has its expected end from one time on and before another."""
        return bool(((self._ends >= first) & (self._ends < until)).any())

    def next_overdue_time(self, now: float) -> float:
        """Return after which time the next pod is overdue; `inf` if none will be."""
        known = self._ends[self._ends >= now - OVERDUE_SECONDS]
        return float(known.min(initial=np.inf)) + OVERDUE_SECONDS

    def ends(self, slots: IntArray) -> FloatArray:
        """Return the expected ends of slots."""
        return self._ends[slots]

    def keys(self, slots: IntArray) -> list[Key]:
        """Return the pods of slots."""
        return [key for slot in slots.tolist() if (key := self._keys[slot]) is not None]

    def amounts(self, slots: IntArray) -> IntArray:
        """Return what the pods of slots release: a column per resource, and two more for the CPU
        and memory that scores count.
        """
        return self._amounts[slots]

    def rows(self, slots: IntArray) -> IntArray:
        """Return the nodes of slots, by row of the snapshot."""
        return self._rows[slots]

    def without(
        self,
        snapshot: Snapshot,
        slots: IntArray,
        released: IntArray,
        *,
        has_peers: bool,
        has_claims: bool = False,
    ) -> Snapshot:
        """Return the snapshot as if the pods of slots had ended, which releases these amounts.

        `has_peers`: pods to be placed have constraints on others, `has_claims`: they need devices
        or volumes. For these the pods are looked up one by one; without, and without ports and
        constraints of running pods, only loads count.
        """
        if not len(slots):
            return snapshot
        forked = snapshot.fork()
        forked.requested[:] -= released[:, :-2]
        forked.nonzero_requested[:] -= released[:, -2:]
        has_terms = bool(snapshot.used_ports or snapshot.pod_index.existing_terms)
        if not (has_peers or has_claims or has_terms):
            return forked
        assigned = snapshot.pod_index.assigned_pod
        pods = [pod for key in self.keys(slots) if (pod := assigned(key)) is not None]
        release_ports(forked, pods)
        if has_claims:
            release_claims(forked, pods)
        forked.pod_index = HypotheticalPodIndex(
            snapshot.pod_index, snapshot.index, removed=pods, added=()
        )
        return forked

    def _grow(self, slot: int) -> None:
        if slot < len(self._ends):
            return
        size = len(self._ends)
        self._ends = np.concatenate((self._ends, np.full(size, -np.inf)))
        self._rows = np.concatenate((self._rows, np.full(size, -1, np.int64)))
        self._amounts = np.concatenate((self._amounts, np.zeros_like(self._amounts)))

    def _write_row(self, slot: int) -> None:
        shape = self._shapes[slot]
        self._rows[slot] = self._index.get(self._nodes[slot], -1)
        if shape is not None and self._columns:
            self._amounts[slot] = self._vector(shape)

    def _vector(self, shape: PodShape) -> list[int]:
        """Return what a pod of a shape releases."""
        request, row = shape.request_vector(self._columns), [0] * (len(self._columns) + 2)
        for column, amount in request.amounts:
            row[column] = amount
        row[-2:] = request.nonzero_cpu, request.nonzero_memory
        return row


def amounts_per_node(
    snapshot: Snapshot, shapes: Sequence[tuple[int, PodShape]]
) -> dict[int, IntArray]:
    """Sum the requests of pods, given by node index and shape, per node."""
    total: dict[int, IntArray] = {}
    # By identity: equal pods mostly share one shape object.
    distinct = {id(shape): shape for _, shape in shapes}
    requests = {i: one.request_vector(snapshot.columns).amounts for i, one in distinct.items()}
    for i, shape in shapes:
        row = total.get(i)
        if row is None:
            row = total[i] = np.zeros(len(snapshot.columns), np.int64)
        for column, amount in requests[id(shape)]:
            row[column] += amount
    return total
