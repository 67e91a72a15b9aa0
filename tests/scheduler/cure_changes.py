"""Changes to small clusters that cures describe: applied by their texts, and enumerated.

Knows nothing of how cures are found: it edits plain objects and asks the exhaustive search.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from msgspec.structs import replace as but

from phalanx.api.core import Node, Pod, Taint, Toleration
from phalanx.api.resources import node_allocatable
from phalanx.api.scheduling import GangPolicy, SchedulingPolicy
from phalanx.scheduler.explain import CureKind
from tests.scheduler.brute_force import can_be_placed
from tests.scheduler.builders import entity, gang
from tests.scheduler.placement_instances import DEDICATED, HOST, PlacementInstance

ChangeFunction = Callable[[PlacementInstance, re.Match[str]], PlacementInstance]


def is_possible(one: PlacementInstance) -> bool:
    """Whether enough members can be placed in any way."""
    return can_be_placed(one.entity, one.oracle_cluster(), one.entity.quorum)


def apply_change(one: PlacementInstance, text: str) -> PlacementInstance:
    """Apply the change that the text of a cure describes."""
    for pattern, change in CHANGES_BY_TEXT:
        if match := re.fullmatch(pattern, text):
            return change(one, match)
    raise AssertionError(f"unknown cure: {text}")


def smallest_change(one: PlacementInstance, kind: CureKind, most: int) -> int | None:
    """Return the size of the smallest change of a kind that helps; None if none does."""
    for count in range(1, most + 1):
        if any(is_possible(each) for each in ALL_CHANGES[kind](one, count)):
            return count
    return None


def with_quorum(one: PlacementInstance, quorum: int) -> PlacementInstance:
    group = one.entity.group
    assert group is not None
    policy = SchedulingPolicy(gang=GangPolicy(quorum))
    spec = but(group.spec, scheduling_policy=policy)
    return replace(one, entity=replace(one.entity, group=but(group, spec=spec)))


def with_nodes(one: PlacementInstance, name: str, count: int) -> PlacementInstance:
    model = next(node for node in one.nodes if node.metadata.name == name)
    return replace(one, nodes=[*one.nodes, *(_copy(model, f"x{i}") for i in range(count))])


def without_topology(one: PlacementInstance) -> PlacementInstance:
    pods = [member.pod for member in one.entity.members]
    return replace(one, entity=entity(gang("g", one.entity.quorum), pods))


def without_pod(one: PlacementInstance, name: str) -> PlacementInstance:
    return replace(one, running=[pod for pod in one.running if pod.metadata.name != name])


def with_toleration(one: PlacementInstance, taint: Taint) -> PlacementInstance:
    toleration = Toleration(taint.key, "Equal", taint.value, taint.effect)
    return _edit_pods(one, lambda p: {"tolerations": (*p.spec.tolerations, toleration)})


def without_selector_key(one: PlacementInstance, key: str) -> PlacementInstance:
    def left(pod: Pod) -> dict[str, object]:
        return {"node_selector": {k: v for k, v in pod.spec.node_selector.items() if k != key}}

    return _edit_pods(one, left)


def allocatable_of(node: Node) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(node_allocatable(node).items()))


def _edit_pods(
    one: PlacementInstance, edit: Callable[[Pod], dict[str, object]]
) -> PlacementInstance:
    pods = [but(m.pod, spec=but(m.pod.spec, **edit(m.pod))) for m in one.entity.members]
    return replace(one, entity=entity(one.entity.group, pods))  # type: ignore[arg-type]


def _copy(model: Node, name: str) -> Node:
    labels = {**model.metadata.labels, HOST: name}
    return but(model, metadata=but(model.metadata, name=name, labels=labels))


CHANGES_BY_TEXT: tuple[tuple[str, ChangeFunction], ...] = (
    (r"lower minCount from \d+ to (?P<to>\d+)", lambda one, m: with_quorum(one, int(m["to"]))),
    (
        r"add (?P<count>\d+) nodes? like (?P<node>\S+)( in rack \S+)? \(.*\)",
        lambda one, m: with_nodes(one, m["node"], int(m["count"])),
    ),
    (r"let the members be anywhere, not in one rack", lambda one, m: without_topology(one)),
    (
        r"wait for Pod default/(?P<pod>\S+) to end, or end it",
        lambda one, m: without_pod(one, m["pod"]),
    ),
    (
        r"let its pods tolerate dedicated=train:NoSchedule",
        lambda one, m: with_toleration(one, DEDICATED),
    ),
    (
        r"drop (?P<key>\S+)=\S+ from the node selector of its pods",
        lambda one, m: without_selector_key(one, m["key"]),
    ),
)


def _lower_quorum(one: PlacementInstance, count: int) -> Iterator[PlacementInstance]:
    if one.entity.quorum > count:
        yield with_quorum(one, one.entity.quorum - count)


def _add_nodes(one: PlacementInstance, count: int) -> Iterator[PlacementInstance]:
    for node in one.nodes:
        yield with_nodes(one, node.metadata.name, count)


def _widen_topology(one: PlacementInstance, count: int) -> Iterator[PlacementInstance]:
    if one.entity.topology_key and count == 1:
        yield without_topology(one)


def _end_pods(one: PlacementInstance, count: int) -> Iterator[PlacementInstance]:
    yield from (without_pod(one, pod.metadata.name) for pod in one.running if count == 1)


def _relax_constraints(one: PlacementInstance, count: int) -> Iterator[PlacementInstance]:
    if count > 1:
        return
    if any(DEDICATED in node.spec.taints for node in one.nodes):
        yield with_toleration(one, DEDICATED)
    for key in {key: None for m in one.entity.members for key in m.pod.spec.node_selector}:
        yield without_selector_key(one, key)


ALL_CHANGES: dict[CureKind, Callable[[PlacementInstance, int], Iterator[PlacementInstance]]] = {
    CureKind.SMALLER: _lower_quorum,
    CureKind.NODES: _add_nodes,
    CureKind.WIDER: _widen_topology,
    CureKind.ENDING: _end_pods,
    CureKind.LOOSER: _relax_constraints,
}
