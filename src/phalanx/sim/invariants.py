"""What must hold whatever happens, as code: the simulator asks after every transaction.

`check` judges one state of a cluster and needs no past; the Auditor hears of every change and also
holds the past against the present. Both answer with sentences, none if all is well. Neither ever
changes anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from phalanx.api.core import Node, Pod
from phalanx.api.meta import Key, condition
from phalanx.api.resources import node_room, pod_requests, total
from phalanx.api.scheduling import INITIALLY_SCHEDULED, PodGroup
from phalanx.client.cache import Cache
from phalanx.scheduler.shape import spell


def check(pods: Iterable[Pod], nodes: Iterable[Node], groups: Iterable[PodGroup]) -> list[str]:
    """What is wrong with a cluster, or with a part of it that holds all pods of its own."""
    known = list(pods)
    return [*_overfull(known, nodes), *_half_bound(known, groups)]


def _overfull(pods: list[Pod], nodes: Iterable[Node]) -> Iterator[str]:
    """No node holds more live pods than it has room for."""
    held: dict[str, list[Pod]] = {}
    for pod in pods:
        held.setdefault(pod.node, []).append(pod)
    for node in nodes:
        room, name = node_room(node), node.metadata.name
        taken = total(pod_requests(pod) for pod in held.get(name, ()))
        for resource, amount in sorted(taken.items()):
            if amount > (has := room.get(resource, 0)):
                yield f"node {name} holds {spell(resource, amount)} but has {spell(resource, has)}"


def _half_bound(pods: list[Pod], groups: Iterable[PodGroup]) -> Iterator[str]:
    """No gang that was never placed has some of its members bound, and too few."""
    bound = bound_members(pods)
    for group in groups:
        count, needed = bound.get(group.metadata.key, 0), group.quorum
        if 0 < count < needed and group.is_gang and not _was_placed(group):
            yield (
                f"gang {group.metadata.key} was never placed, "
                f"yet {count} of the {needed} members that it needs are bound"
            )


def bound_members(pods: Iterable[Pod]) -> dict[Key, int]:
    """How many members of each group have a node, or had one to their end."""
    bound: dict[Key, int] = {}
    for pod in pods:
        if pod.group is not None and pod.spec.node_name:
            bound[pod.group] = bound.get(pod.group, 0) + 1
    return bound


def _was_placed(group: PodGroup) -> bool:
    said = condition(group.status.conditions, INITIALLY_SCHEDULED)
    return said is not None and said.status == "True"


class Auditor:
    """Follows three caches and remembers what `check` cannot know from one state.

    Only what a change touched is looked at again: the pods of its node and of its gang.
    """

    def __init__(self, pods: Cache[Pod], nodes: Cache[Node], groups: Cache[PodGroup]) -> None:
        self._nodes, self._groups = nodes, groups
        self._on = pods.index(lambda pod: [pod.node] if pod.node else [])
        self._of = pods.index(lambda pod: [pod.group] if pod.group else [])
        self._bound_to: dict[str, str] = {}
        self._placed: set[str] = set()
        self._touched_nodes: dict[str, None] = {}
        self._touched_groups: dict[Key, None] = {}
        self._moves: list[str] = []
        pods.subscribe(self._pod_changed)
        nodes.subscribe(self._node_changed)
        groups.subscribe(self._group_changed)

    def audit(self) -> list[str]:
        """What went wrong since the last time."""
        nodes = [node for name in self._touched_nodes if (node := self._nodes.get(Key("", name)))]
        groups = [group for key in self._touched_groups if (group := self._groups.get(key))]
        pods = self._pods_around(nodes, groups)
        unplaced = [group for group in groups if group.metadata.uid not in self._placed]
        wrong = [*self._moves, *check(pods, nodes, unplaced)]
        bound = bound_members(pods)
        self._placed |= {
            group.metadata.uid
            for group in unplaced
            if bound.get(group.metadata.key, 0) >= group.quorum
        }
        self._moves, self._touched_nodes, self._touched_groups = [], {}, {}
        return wrong

    def _pods_around(self, nodes: list[Node], groups: list[PodGroup]) -> list[Pod]:
        """Every pod of these nodes and groups, once."""
        found = [pod for node in nodes for pod in self._on[node.metadata.name]]
        found += [pod for group in groups for pod in self._of[group.metadata.key]]
        return list({pod.metadata.uid: pod for pod in found}.values())

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        for pod in (old, new):
            if pod is not None and pod.spec.node_name:
                self._touched_nodes[pod.spec.node_name] = None
            if pod is not None and pod.group is not None:
                self._touched_groups[pod.group] = None
        if new is not None:
            self._follow(new)
        elif old is not None:
            self._bound_to.pop(old.metadata.uid, None)

    def _follow(self, pod: Pod) -> None:
        """A pod is bound once and stays where it is."""
        uid, node = pod.metadata.uid, pod.spec.node_name
        first = self._bound_to.setdefault(uid, node) if node else self._bound_to.get(uid, "")
        if node != first:
            place = f"node {node}" if node else "no node"
            self._moves.append(f"pod {pod.metadata.key} was bound to {first} and is now on {place}")

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            self._touched_nodes[new.metadata.name] = None

    def _group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        if new is not None:
            self._touched_groups[new.metadata.key] = None
