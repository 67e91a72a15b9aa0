"""May a pod of this shape run on this node? One row per question; the order is the documentation.

A filter names the nodes that it refuses, all at once, with the reason; a node counts under the
first filter that refuses it. What depends only on what nodes *are* is asked once per view; what
depends on their load is asked again of single nodes (`admits`) as the load moves; what depends on
other pods is asked again for every pod. Nothing here ranks nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from operator import or_

import numpy as np

from phalanx.api.core import Taint
from phalanx.scheduler.cluster.shape import Ask, Shape, spell
from phalanx.scheduler.cluster.snapshot import BoolArray
from phalanx.scheduler.cluster.spot import Spot
from phalanx.scheduler.cluster.wishes import Place, Wishes, within_any
from phalanx.scheduler.decision import Refusal
from phalanx.scheduler.events import NODES, PEERS, ROOM, Event
from phalanx.scheduler.judging import peerfilters
from phalanx.scheduler.judging.labels import lacking, within
from phalanx.scheduler.judging.scene import Scene

UNSCHEDULABLE_TAINT = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")

Refusing = Iterator[tuple[str, BoolArray]]


class Depends(Enum):
    """On what the answer of a filter depends, and so when it must be asked again."""

    NODES = "what nodes are"
    LOAD = "what is on a node"
    PEERS = "what is on all nodes"


@dataclass(frozen=True, slots=True)
class Filter:
    """One question. `refuses` yields (reason, nodes refused for it)."""

    name: str
    refuses: Callable[[Scene], Refusing]
    #: What would turn one of these nodes, refused by this filter alone, into one that is not.
    cure: Callable[[Scene, BoolArray], str]
    depends: Depends
    wakes_on: frozenset[Event]
    #: Whether evicting pods can help.
    evictable: bool = False
    #: The same question about one node, for filters that depend on load.
    admits: Callable[[Ask, Spot], bool] | None = None
    #: Whether shapes of this sort need be asked at all.
    concerns: Callable[[Shape], bool] = lambda shape: True


def _cordoned(scene: Scene) -> Refusing:
    if not scene.shape.wishes.tolerates(UNSCHEDULABLE_TAINT):
        yield "node(s) were unschedulable", scene.snapshot.cordoned


def _uncordon(scene: Scene, nodes: BoolArray) -> str:
    return f"uncordon node {scene.snapshot.names[nodes.argmax()]}"


def _tainted(scene: Scene) -> Refusing:
    refused = ~scene.shape.wishes.tolerated(scene.snapshot)
    if refused.any():
        yield "node(s) had untolerated taint(s)", refused


def _untaint(scene: Scene, nodes: BoolArray) -> str:
    snapshot, node = scene.snapshot, nodes.argmax()
    taints = scene.shape.wishes.minds(list(snapshot.taints)[snapshot.taint_class[node]])
    names = ", ".join(f"{t.key}={t.value}:{t.effect}" for t in taints)
    return f"tolerate {names} of node {snapshot.names[node]}, or remove it"


def _elsewhere(scene: Scene) -> Refusing:
    wishes = scene.shape.wishes
    if wishes.selector or wishes.places is not None:
        refused = ~wishes.selected(scene.snapshot)
        yield "node(s) didn't match Pod's node affinity/selector", refused


def node_affinity(added: tuple[Place, ...] | None = None) -> Filter:
    """Where the pod wants to be, and, before that, where all pods must be."""

    def refuses(scene: Scene) -> Refusing:
        outside = np.zeros(len(scene.snapshot), bool)
        if added is not None:
            outside = ~within_any(scene.snapshot, added)
            yield "node(s) didn't match scheduler-enforced node affinity", outside
        for reason, refused in _elsewhere(scene):
            yield reason, refused & ~outside

    def cure(scene: Scene, nodes: BoolArray) -> str:
        inside = nodes if added is None else nodes & within_any(scene.snapshot, added)
        if inside.any():
            return _label(scene, inside, added)
        name = scene.snapshot.names[nodes.argmax()]
        return f"let the affinity that the scheduler adds to all pods allow node {name}"

    return Filter("NodeAffinity", refuses, cure, Depends.NODES, NODES)


def _label(scene: Scene, nodes: BoolArray, added: tuple[Place, ...] | None) -> str:
    snapshot, node, wishes = scene.snapshot, nodes.argmax(), scene.shape.wishes
    labels, name = snapshot.labels[node], snapshot.names[node]
    if dict(wishes.selector).items() <= labels.items():
        return f"let the pod's node affinity allow node {name}"
    more = lacking(wishes, labels, name)
    if more is None or not (added is None or within(added, {**labels, **more}, name)):
        return f"let the pod's {_bounds(wishes)} allow node {name}"
    return f"label node {name} with {_written(more)}"


def _bounds(wishes: Wishes) -> str:
    """What of a pod says where it may be."""
    said = {"selector": bool(wishes.selector), "affinity": wishes.places is not None}
    return f"node {' and '.join(word for word, is_said in said.items() if is_said)}"


def _written(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _ports_taken(scene: Scene) -> Refusing:
    wanted = scene.shape.ports
    if not wanted:
        return
    refused = np.zeros(len(scene.snapshot), bool)
    for i, taken in scene.ports.items():
        refused[i] = any(port.clashes(other) for port in wanted for other in taken)
    yield "node(s) didn't have free ports for the requested pod ports", refused


def _free_ports(scene: Scene, nodes: BoolArray) -> str:
    node = int(nodes.argmax())
    taken = scene.ports[node]
    clashing = [p for p in scene.shape.ports if any(p.clashes(other) for other in taken)]
    numbers = ", ".join(f"{port.number}/{port.protocol}" for port in clashing)
    return f"free port {numbers} of node {scene.snapshot.names[node]}"


def ports_free(ask: Ask, spot: Spot) -> bool:
    """Whether one node has all the ports that a pod takes."""
    return not any(port.clashes(taken) for port in ask.ports for taken in spot.ports)


def _full(scene: Scene) -> Refusing:
    snapshot, used = scene.snapshot, scene.used
    for name, amount in scene.shape.requests:
        reason = "Too many pods" if name == "pods" else f"Insufficient {name}"
        column = snapshot.columns.get(name)
        if column is None:
            yield reason, np.ones(len(snapshot), bool)
        else:
            yield reason, used[:, column] + amount > snapshot.room[:, column]


def _make_room(scene: Scene, nodes: BoolArray) -> str:
    """On the node that lacks least, each resource measured by what is asked of it."""
    snapshot, lacks = scene.snapshot, {}
    for name, amount in scene.shape.requests:
        column = snapshot.columns.get(name)
        free = 0 if column is None else snapshot.room[:, column] - scene.used[:, column]
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
    Filter("NodeUnschedulable", _cordoned, _uncordon, Depends.NODES, NODES),
    Filter("TaintToleration", _tainted, _untaint, Depends.NODES, NODES),
    node_affinity(),
    Filter(
        "NodePorts", _ports_taken, _free_ports, Depends.LOAD, ROOM, evictable=True,
        admits=ports_free, concerns=lambda shape: bool(shape.ports),
    ),
    Filter(
        "NodeResourcesFit", _full, _make_room, Depends.LOAD, ROOM, evictable=True, admits=fits,
    ),
    Filter(
        "PodTopologySpread", peerfilters.uneven, peerfilters.even_out, Depends.PEERS, PEERS,
        evictable=True,
    ),
    Filter(
        "InterPodAffinity", peerfilters.unwelcome, peerfilters.reconcile, Depends.PEERS, PEERS,
        evictable=True,
    ),
)  # fmt: skip


def refused(row: Filter, scene: Scene) -> BoolArray:
    """The nodes that one filter refuses, for whatever reason. Only to be read."""
    masks = [mask for _, mask in row.refuses(scene)]
    return reduce(or_, masks) if masks else np.zeros(len(scene.snapshot), bool)


def refusal(filters: Sequence[Filter], scene: Scene) -> Refusal:
    """Why no node takes a pod: asked only when none does."""
    counts: dict[str, int] = {}
    inside = scene.inside
    still = inside.copy()
    by_filter = []
    blamed: dict[str, None] = {}
    wakes_on = {Event.NODE_ADDED}
    for row in filters:
        nodes = None
        for reason, mask in row.refuses(scene):
            nodes = mask if nodes is None else nodes | mask
            if count := int(np.count_nonzero(mask & still)):
                counts[reason] = count
                blamed[row.name] = None
                wakes_on |= row.wakes_on
        if nodes is not None:
            still &= ~nodes
            by_filter.append((row, nodes))
    cures = (*_cures(by_filter, scene, inside), *_new_node(scene.shape))
    size = int(np.count_nonzero(inside))
    return Refusal(size, tuple(counts.items()), cures, frozenset(wakes_on), tuple(blamed))


def _cures(
    by_filter: list[tuple[Filter, BoolArray]], scene: Scene, inside: BoolArray
) -> Iterator[str]:
    """A change per filter that would let the pod in where nothing else is in its way."""
    obstacles = np.zeros(len(inside), np.int64)
    for _, nodes in by_filter:
        obstacles += nodes
    by_one = (obstacles == 1) & inside
    for row, nodes in by_filter:
        alone = nodes & by_one
        if alone.any():
            yield row.cure(scene, alone)


def _new_node(shape: Shape) -> Iterator[str]:
    """A node that would take the pod, unless its affinity allows none at all."""
    wishes, words = shape.wishes, f"add a node with room for {shape}"
    labels = lacking(wishes, {}, "")
    if labels is not None:
        yield words + (f" and the label {_written(labels)}" if labels else "")
    elif any(place.labels or place.names for place in wishes.places or ()):
        yield f"{words} that the pod's {_bounds(wishes)} would allow"
