"""Additions: nodes that would help. More of a shape that there is, or one that is let in again.

Nodes of one shape have the same room, the same labels but for their own name, and the same taints.
What says how a node is at the moment (a cordon, the taints of the node controller) is not part of
its shape: a new one is ready.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace as but

from phalanx.api.core import Node, NodeSpec, NodeStatus, Taint
from phalanx.api.resources import node_room
from phalanx.scheduler.asking.concessions import OF_STATE
from phalanx.scheduler.asking.experiment import Change, Experiment
from phalanx.scheduler.cluster.shape import spell
from phalanx.scheduler.placing.headroom import Headroom
from phalanx.scheduler.remedy import Remedy, Sort, smallest

HOSTNAME = "kubernetes.io/hostname"
#: How many shapes are told, how many are tried, and how many nodes that are cordoned.
MOST_TOLD, MOST_SHAPES, MOST_CORDONED = 3, 8, 6
#: What is left out when a node is described.
_UNSAID = ("pods", "ephemeral-storage")


class NodeShape(NamedTuple):
    """What some nodes have in common."""

    room: tuple[tuple[str, int], ...]
    labels: tuple[tuple[str, str], ...]
    taints: tuple[Taint, ...]

    def __str__(self) -> str:
        return ", ".join(spell(name, n) for name, n in self.room if n and name not in _UNSAID)


def node_shape(node: Node) -> NodeShape:
    """The shape of a node."""
    labels = {k: v for k, v in node.metadata.labels.items() if k != HOSTNAME}
    return NodeShape(
        tuple(sorted(node_room(node).items())), tuple(sorted(labels.items())), _lasting(node)
    )


def by_shape(nodes: Iterable[Node]) -> dict[NodeShape, list[Node]]:
    """Nodes of one shape together, by name."""
    found: dict[NodeShape, list[Node]] = {}
    for node in sorted(nodes, key=lambda node: node.metadata.name):
        found.setdefault(node_shape(node), []).append(node)
    return found


def more_nodes(trial: Experiment) -> Iterator[Remedy]:
    """The fewest more nodes of each shape; the shape of which it takes fewest first.

    Of shapes that have the same room, the one of which it takes fewest is told alone.
    """
    models = {shape: nodes[0] for shape, nodes in by_shape(trial.known.nodes.values()).items()}
    found: dict[str, Remedy] = {}
    tried = 0
    for least, shape in _promising(trial, models):
        model, rival = models[shape], found.get(str(shape))
        if rival and rival.size <= least:
            continue
        if tried == MOST_SHAPES or sum(one.size <= least for one in found.values()) >= MOST_TOLD:
            break
        tried += 1
        most = rival.size - 1 if rival else len(trial.entity.members)
        guess = most if rival else least
        count = smallest(partial(_suffices, trial, model), guess, most, least - 1)
        if count is not None:
            found[str(shape)] = Remedy(Sort.NODES, count, _said(trial, count, model))
    yield from sorted(found.values())[:MOST_TOLD]


def let_in(trial: Experiment) -> Iterator[Remedy]:
    """One cordoned node that would be enough, the one with most room first."""
    closed = [node for node in trial.known.nodes.values() if node.spec.unschedulable]
    opened = {node.metadata.name: _uncordoned(node) for node in closed}
    if not opened:
        return
    with trial.after(Change(nodes=tuple(opened.values()))) as snapshot:
        each = Headroom(trial.entity, snapshot, trial.policy).each
        room = {name: int(each[snapshot.index[name]]) for name in opened}
    for name in sorted(opened, key=lambda name: (-room[name], name))[:MOST_CORDONED]:
        if room[name] and trial.works(Change(nodes=(opened[name],))):
            yield Remedy(Sort.LOOSER, 1, f"uncordon node {name}")
            return


def _promising(trial: Experiment, models: dict[NodeShape, Node]) -> list[tuple[int, NodeShape]]:
    """Shapes that hold a member at all, with how many nodes it takes at least; the fewest first."""
    snapshot = trial.known.cache.snapshot()
    now = Headroom(trial.entity, snapshot, trial.policy)
    missing = {s: now.missing(snapshot.index[node.metadata.name]) for s, node in models.items()}
    new = {shape: _copies(trial, model, 1)[0] for shape, model in models.items()}
    with trial.after(Change(nodes=tuple(new.values()))) as snapshot:
        each = Headroom(trial.entity, snapshot, trial.policy).each
        holds = {s: int(each[snapshot.index[node.metadata.name]]) for s, node in new.items()}
    guesses = [(max(-(-missing[s] // n), 1), s) for s, n in holds.items() if n]
    return sorted(guesses, key=lambda guess: (guess[0], models[guess[1]].metadata.name))


def _suffices(trial: Experiment, model: Node, count: int) -> bool:
    return trial.works(Change(nodes=_copies(trial, model, count)))


def _copies(trial: Experiment, model: Node, count: int) -> tuple[Node, ...]:
    """New and empty nodes like one that there is."""
    names: list[str] = []
    number = 0
    while len(names) < count:
        number += 1
        if (name := f"{model.metadata.name}-new-{number}") not in trial.known.nodes:
            names.append(name)
    return tuple(_copy(model, name) for name in names)


def _copy(model: Node, name: str) -> Node:
    labels = dict(model.metadata.labels)
    if HOSTNAME in labels:
        labels[HOSTNAME] = name
    return Node(
        but(model.metadata, name=name, uid=name, labels=labels),
        NodeSpec(taints=_lasting(model)),
        NodeStatus(allocatable=model.status.allocatable),
    )


def _uncordoned(node: Node) -> Node:
    taints = tuple(t for t in node.spec.taints if t.key != f"{OF_STATE}unschedulable")
    return but(node, spec=but(node.spec, unschedulable=False, taints=taints))


def _lasting(node: Node) -> tuple[Taint, ...]:
    return tuple(t for t in node.spec.taints if not t.key.startswith(OF_STATE))


def _said(trial: Experiment, count: int, model: Node) -> str:
    key, name = trial.entity.topology, model.metadata.name
    value = model.metadata.labels.get(key)
    where = f" in {key.rpartition('/')[2]} {value}" if value else ""
    what = f"{count} node{'s' if count > 1 else ''}"
    return f"add {what} like {name}{where} ({node_shape(model)})"
