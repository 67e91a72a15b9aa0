"""The meaning of a scheduling cycle, slow and obvious: one pod at a time over plain dicts.

`decide` must come to the same result with its arrays, views and heaps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from phalanx.api.core import Node, Pod, Taint, Toleration
from phalanx.api.resources import node_room, pod_requests, scored_requests
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.shape import Shape


@dataclass
class Machine:
    """A node and what is on it."""

    node: Node
    room: dict[str, int]
    used: Counter[str] = field(default_factory=Counter)
    scored: Counter[str] = field(default_factory=Counter)

    def add(self, pod: Pod) -> None:
        self.used.update(pod_requests(pod))
        self.scored.update(scored_requests(pod))


@dataclass
class Answer:
    """Which pod goes where (nothing at all if the group fails), and why the others do not."""

    bindings: dict[str, str]
    refusals: dict[str, dict[str, int]]


def machines(nodes: Iterable[Node], running: Iterable[Pod]) -> dict[str, Machine]:
    result = {node.metadata.name: Machine(node, node_room(node)) for node in nodes}
    for pod in running:
        if pod.node in result:
            result[pod.node].add(pod)
    return dict(sorted(result.items()))


def place(entity: Entity, nodes: dict[str, Machine], scheduled: int) -> Answer:
    """Every pod that the entity needs, or none."""
    members = sorted(
        entity.members,
        key=lambda m: (-m.pod.spec.priority, -m.attempts, m.timestamp, m.pod.metadata.name),
    )
    answer = Answer({}, {})
    refused_before: dict[Shape, dict[str, int]] = {}
    for done, member in enumerate(members):
        if scheduled + len(members) - done < entity.quorum:
            break
        pod = member.pod
        reasons = {name: refusals(pod, machine) for name, machine in nodes.items()}
        fitting = [name for name, refused in reasons.items() if not refused]
        if fitting:
            best = max(fitting, key=lambda name: (score(pod, nodes[name]), _lower_first(name)))
            nodes[best].add(pod)
            answer.bindings[pod.metadata.name] = best
            scheduled += 1
        else:
            counts = Counter(reason for refused in reasons.values() for reason in refused)
            # An equal pod repeats what the first one heard.
            words = refused_before.setdefault(member.shape, dict(counts))
            answer.refusals[pod.metadata.name] = words
    return answer if scheduled >= entity.quorum else Answer({}, answer.refusals)


def _lower_first(name: str) -> tuple[int, ...]:
    return tuple(-ord(letter) for letter in name)


def refusals(pod: Pod, machine: Machine) -> list[str]:
    """What the first filter that minds has to say."""
    node, spec = machine.node, pod.spec
    cordon = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
    if node.spec.unschedulable and not tolerated(cordon, spec.tolerations):
        return ["node(s) were unschedulable"]
    hard = [taint for taint in node.spec.taints if taint.effect != "PreferNoSchedule"]
    if not all(tolerated(taint, spec.tolerations) for taint in hard):
        return ["node(s) had untolerated taint(s)"]
    if not spec.node_selector.items() <= node.metadata.labels.items():
        return ["node(s) didn't match Pod's node affinity/selector"]
    lacking = [
        name
        for name, amount in pod_requests(pod).items()
        if machine.used[name] + amount > machine.room.get(name, 0)
    ]
    return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in lacking]


def tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    for one in tolerations:
        effect = one.effect in ("", taint.effect)
        anything = one.operator == "Exists" and not one.key
        same_key = one.key == taint.key
        value = one.operator == "Exists" or one.value == taint.value
        if effect and (anything or (same_key and value)):
            return True
    return False


def score(pod: Pod, machine: Machine) -> int:
    return least_allocated(pod, machine) + balanced_allocation(pod, machine)


def least_allocated(pod: Pod, machine: Machine) -> int:
    shares = []
    for name, amount in scored_requests(pod).items():
        capacity = machine.room.get(name, 0)
        if capacity:
            free = capacity - machine.scored[name] - amount
            shares.append(max(free, 0) * 100 // capacity)
    return sum(shares) // len(shares) if shares else 0


def balanced_allocation(pod: Pod, machine: Machine) -> int:
    asked = pod_requests(pod)
    if not asked.get("cpu") and not asked.get("memory"):
        return 0
    nothing: dict[str, int] = {}
    return 50 + (50 + balance(machine, asked) - balance(machine, nothing)) // 2


def balance(machine: Machine, more: dict[str, int]) -> int:
    fractions = [
        min((machine.used[name] + more.get(name, 0)) / machine.room[name], 1)
        for name in ("cpu", "memory")
        if machine.room.get(name)
    ]
    deviation = abs(fractions[0] - fractions[1]) / 2 if len(fractions) == 2 else 0
    return int((1 - deviation) * 100)
