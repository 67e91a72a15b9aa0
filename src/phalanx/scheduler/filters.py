"""May a pod of this shape run on this node? One row per question; the order is the documentation.

A filter names the nodes that it refuses, all at once, with the reason; a node counts under the
first filter that refuses it. What depends only on what nodes *are* is asked once per view; what
depends on their load is asked again of single nodes (`admits`) as the load moves. Nothing here
ranks nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from phalanx.api.core import Taint, Toleration
from phalanx.scheduler.decision import Refusal
from phalanx.scheduler.events import NODES, ROOM, Event
from phalanx.scheduler.shape import Ask, Shape, spell
from phalanx.scheduler.snapshot import BoolArray, IntArray, Snapshot, Spot

UNSCHEDULABLE_TAINT = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
#: Effects that keep a new pod away; the third one, PreferNoSchedule, is a preference.
HARD_EFFECTS = ("NoSchedule", "NoExecute")

Refusing = Iterator[tuple[str, BoolArray]]


@dataclass(frozen=True, slots=True)
class Filter:
    """One question. `refuses` yields (reason, nodes refused for it) given what is used."""

    name: str
    refuses: Callable[[Snapshot, Shape, IntArray], Refusing]
    #: What would turn one of these nodes, refused by this filter alone, into one that is not.
    cure: Callable[[Snapshot, Shape, IntArray, BoolArray], str]
    #: Whether evicting pods can help.
    evictable: bool
    wakes_on: frozenset[Event]
    #: The same question about one node, for filters that depend on load.
    admits: Callable[[Ask, Spot], bool] | None = None


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether a toleration covers a taint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return toleration.key in ("", taint.key)
    return toleration.key == taint.key and toleration.value == taint.value


def _tolerated(shape: Shape, taint: Taint) -> bool:
    return any(tolerates(toleration, taint) for toleration in shape.tolerations)


def _untolerated(shape: Shape, taints: Sequence[Taint]) -> list[Taint]:
    return [t for t in taints if t.effect in HARD_EFFECTS and not _tolerated(shape, t)]


def _cordoned(snapshot: Snapshot, shape: Shape, used: IntArray) -> Refusing:
    if not _tolerated(shape, UNSCHEDULABLE_TAINT):
        yield "node(s) were unschedulable", snapshot.cordoned


def _uncordon(snapshot: Snapshot, shape: Shape, used: IntArray, nodes: BoolArray) -> str:
    return f"uncordon node {snapshot.names[nodes.argmax()]}"


def _tainted(snapshot: Snapshot, shape: Shape, used: IntArray) -> Refusing:
    refused = np.array([bool(_untolerated(shape, taints)) for taints in snapshot.taints], bool)
    if refused.any():
        yield "node(s) had untolerated taint(s)", refused[snapshot.taint_class]


def _untaint(snapshot: Snapshot, shape: Shape, used: IntArray, nodes: BoolArray) -> str:
    node = nodes.argmax()
    taints = _untolerated(shape, list(snapshot.taints)[snapshot.taint_class[node]])
    names = ", ".join(f"{t.key}={t.value}:{t.effect}" for t in taints)
    return f"tolerate {names} of node {snapshot.names[node]}, or remove it"


def _unlabelled(snapshot: Snapshot, shape: Shape, used: IntArray) -> Refusing:
    if shape.selector:
        masks = [snapshot.labelled(key, value) for key, value in shape.selector]
        yield "node(s) didn't match Pod's node affinity/selector", ~np.logical_and.reduce(masks)


def _label(snapshot: Snapshot, shape: Shape, used: IntArray, nodes: BoolArray) -> str:
    node = nodes.argmax()
    labels = snapshot.labels[node]
    missing = [f"{key}={value}" for key, value in shape.selector if labels.get(key) != value]
    return f"label node {snapshot.names[node]} with {', '.join(missing)}"


def _full(snapshot: Snapshot, shape: Shape, used: IntArray) -> Refusing:
    for name, amount in shape.requests:
        reason = "Too many pods" if name == "pods" else f"Insufficient {name}"
        column = snapshot.columns.get(name)
        if column is None:
            yield reason, np.ones(len(snapshot), bool)
        else:
            yield reason, used[:, column] + amount > snapshot.room[:, column]


def _make_room(snapshot: Snapshot, shape: Shape, used: IntArray, nodes: BoolArray) -> str:
    """On the node that lacks least, each resource measured by what is asked of it."""
    lacks = {}
    for name, amount in shape.requests:
        column = snapshot.columns.get(name)
        free = 0 if column is None else snapshot.room[:, column] - used[:, column]
        lacks[name, amount] = np.broadcast_to(np.maximum(amount - free, 0), nodes.shape)
    burden = sum(lack / amount for (_, amount), lack in lacks.items())
    node = np.where(nodes, burden, np.inf).argmin()
    needed = [spell(name, int(lack[node])) for (name, _), lack in lacks.items() if lack[node]]
    return f"free or add {', '.join(needed)} on node {snapshot.names[node]}"


def fits(ask: Ask, spot: Spot) -> bool:
    """Whether one node has room for one more."""
    room, used = spot.room, spot.used
    for column, amount in ask.amounts:
        if used[column] + amount > room[column]:
            return False
    return not ask.unknown


FILTERS = (
    Filter("NodeUnschedulable", _cordoned, _uncordon, evictable=False, wakes_on=NODES),
    Filter("TaintToleration", _tainted, _untaint, evictable=False, wakes_on=NODES),
    Filter("NodeSelector", _unlabelled, _label, evictable=False, wakes_on=NODES),
    Filter("Resources", _full, _make_room, evictable=True, wakes_on=ROOM, admits=fits),
)


def refused(row: Filter, snapshot: Snapshot, shape: Shape, used: IntArray) -> BoolArray:
    """The nodes that one filter refuses, for whatever reason."""
    nodes = np.zeros(len(snapshot), bool)
    for _, mask in row.refuses(snapshot, shape, used):
        nodes |= mask
    return nodes


def refusal(filters: Sequence[Filter], snapshot: Snapshot, shape: Shape, used: IntArray) -> Refusal:
    """Why no node takes a pod: asked only when none does."""
    counts: dict[str, int] = {}
    still = np.ones(len(snapshot), bool)
    by_filter = []
    wakes_on = {Event.NODE_ADDED}
    for row in filters:
        nodes = np.zeros(len(snapshot), bool)
        for reason, mask in row.refuses(snapshot, shape, used):
            nodes |= mask
            if count := int(np.count_nonzero(mask & still)):
                counts[reason] = count
                wakes_on |= row.wakes_on
        still &= ~nodes
        by_filter.append((row, nodes))
    cures = (*_cures(by_filter, snapshot, shape, used), _new_node(shape))
    return Refusal(len(snapshot), tuple(counts.items()), cures, frozenset(wakes_on))


def _cures(
    by_filter: list[tuple[Filter, BoolArray]], snapshot: Snapshot, shape: Shape, used: IntArray
) -> Iterator[str]:
    """A change per filter that would let the pod in where nothing else is in its way."""
    obstacles = np.sum([nodes for _, nodes in by_filter], axis=0)
    for row, nodes in by_filter:
        alone = nodes & (obstacles == 1)
        if alone.any():
            yield row.cure(snapshot, shape, used, alone)


def _new_node(shape: Shape) -> str:
    labels = ", ".join(f"{key}={value}" for key, value in shape.selector)
    return f"add a node with room for {shape}" + (f" and the label {labels}" if labels else "")
