"""Changes to small clusters, for remedies: made as their texts say, and all there are, tried out.

Knows nothing of how remedies are found: it edits plain objects and asks the brute force.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from msgspec.structs import replace as but

from phalanx.api.core import Node, Pod, Taint, Toleration
from phalanx.api.resources import node_room
from phalanx.api.scheduling import GangPolicy, SchedulingPolicy
from phalanx.scheduler.remedy import Sort
from tests.scheduler.brute import can_be_placed
from tests.scheduler.builders import entity, gang
from tests.scheduler.instances import DEDICATED, HOST, Instance

Changed = Callable[[Instance, re.Match[str]], Instance]


def is_possible(one: Instance) -> bool:
    """Whether enough members can be placed in any way at all."""
    return can_be_placed(one.entity, one.world(), one.entity.quorum)


def changed(one: Instance, text: str) -> Instance:
    """The instance after what a remedy says."""
    for pattern, change in TEXTS:
        if match := re.fullmatch(pattern, text):
            return change(one, match)
    raise AssertionError(f"nobody knows how to {text}")


def smallest(one: Instance, sort: Sort, most: int) -> int | None:
    """The smallest change of a sort that helps, of all there are up to a size."""
    for count in range(1, most + 1):
        if any(is_possible(each) for each in EVERY[sort](one, count)):
            return count
    return None


def with_quorum(one: Instance, quorum: int) -> Instance:
    group = one.entity.group
    assert group is not None
    policy = SchedulingPolicy(gang=GangPolicy(quorum))
    spec = but(group.spec, scheduling_policy=policy)
    return replace(one, entity=replace(one.entity, group=but(group, spec=spec)))


def with_nodes(one: Instance, name: str, count: int) -> Instance:
    model = next(node for node in one.nodes if node.metadata.name == name)
    return replace(one, nodes=[*one.nodes, *(_copy(model, f"x{i}") for i in range(count))])


def anywhere(one: Instance) -> Instance:
    pods = [member.pod for member in one.entity.members]
    return replace(one, entity=entity(gang("g", one.entity.quorum), pods))


def without(one: Instance, name: str) -> Instance:
    return replace(one, running=[pod for pod in one.running if pod.metadata.name != name])


def tolerating(one: Instance, taint: Taint) -> Instance:
    toleration = Toleration(taint.key, "Equal", taint.value, taint.effect)
    return _each(one, lambda p: {"tolerations": (*p.spec.tolerations, toleration)})


def unselecting(one: Instance, key: str) -> Instance:
    def left(pod: Pod) -> dict[str, object]:
        return {"node_selector": {k: v for k, v in pod.spec.node_selector.items() if k != key}}

    return _each(one, left)


def room(node: Node) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(node_room(node).items()))


def _each(one: Instance, edit: Callable[[Pod], dict[str, object]]) -> Instance:
    pods = [but(m.pod, spec=but(m.pod.spec, **edit(m.pod))) for m in one.entity.members]
    return replace(one, entity=entity(one.entity.group, pods))  # type: ignore[arg-type]


def _copy(model: Node, name: str) -> Node:
    labels = {**model.metadata.labels, HOST: name}
    return but(model, metadata=but(model.metadata, name=name, labels=labels))


TEXTS: tuple[tuple[str, Changed], ...] = (
    (r"lower minCount from \d+ to (?P<to>\d+)", lambda one, m: with_quorum(one, int(m["to"]))),
    (
        r"add (?P<count>\d+) nodes? like (?P<node>\S+)( in rack \S+)? \(.*\)",
        lambda one, m: with_nodes(one, m["node"], int(m["count"])),
    ),
    (r"let the members be anywhere, not in one rack", lambda one, m: anywhere(one)),
    (
        r"wait for Pod default/(?P<pod>\S+) to end, or end it",
        lambda one, m: without(one, m["pod"]),
    ),
    (
        r"let its pods tolerate dedicated=train:NoSchedule",
        lambda one, m: tolerating(one, DEDICATED),
    ),
    (
        r"drop (?P<key>\S+)=\S+ from the node selector of its pods",
        lambda one, m: unselecting(one, m["key"]),
    ),
)


def _smaller(one: Instance, count: int) -> Iterator[Instance]:
    if one.entity.quorum > count:
        yield with_quorum(one, one.entity.quorum - count)


def _more_nodes(one: Instance, count: int) -> Iterator[Instance]:
    for node in one.nodes:
        yield with_nodes(one, node.metadata.name, count)


def _wider(one: Instance, count: int) -> Iterator[Instance]:
    if one.entity.topology and count == 1:
        yield anywhere(one)


def _ended(one: Instance, count: int) -> Iterator[Instance]:
    yield from (without(one, pod.metadata.name) for pod in one.running if count == 1)


def _looser(one: Instance, count: int) -> Iterator[Instance]:
    if count > 1:
        return
    if any(DEDICATED in node.spec.taints for node in one.nodes):
        yield tolerating(one, DEDICATED)
    for key in {key: None for m in one.entity.members for key in m.pod.spec.node_selector}:
        yield unselecting(one, key)


EVERY: dict[Sort, Callable[[Instance, int], Iterator[Instance]]] = {
    Sort.SMALLER: _smaller,
    Sort.NODES: _more_nodes,
    Sort.WIDER: _wider,
    Sort.ENDING: _ended,
    Sort.LOOSER: _looser,
}
