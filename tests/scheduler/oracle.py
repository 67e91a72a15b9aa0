"""The meaning of a scheduling cycle, slow and obvious: one pod at a time over plain dicts.

`decide` must come to the same result with its arrays, views, heaps and headcounts. What is about
other pods is in `oracle_peers.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from phalanx.api.core import Node, NodeTerm, Pod, Taint, Toleration
from phalanx.api.resources import node_room, pod_requests, scored_requests
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.shape import Shape
from tests.scheduler import oracle_peers as peers
from tests.scheduler.machine import Machine, World

Reasons = dict[str, int]


@dataclass
class Answer:
    """Which pod goes where (nothing at all if the group fails), and why the others do not.

    A refused pod may be told what is true now, or what the first pod of its shape was told.
    """

    bindings: dict[str, str]
    refusals: dict[str, tuple[Reasons, Reasons]] = field(default_factory=dict)


def world(nodes: Iterable[Node], running: Iterable[Pod]) -> World:
    machines = {node.metadata.name: Machine(node, node_room(node)) for node in nodes}
    for pod in running:
        if pod.node in machines:
            machines[pod.node].add(pod)
    return World(dict(sorted(machines.items())))


def place(entity: Entity, world: World, scheduled: int) -> Answer:
    """Every pod that the entity needs, or none."""
    members = sorted(
        entity.members,
        key=lambda m: (-m.pod.spec.priority, -m.attempts, m.timestamp, m.pod.metadata.name),
    )
    answer = Answer({})
    told: dict[Shape, Reasons] = {}
    for done, member in enumerate(members):
        if scheduled + len(members) - done < entity.quorum:
            break
        pod, machines = member.pod, world.machines
        reasons = {name: refusals(pod, machine, world) for name, machine in machines.items()}
        fitting = [name for name, refused in reasons.items() if not refused]
        if fitting:
            best = choose(pod, fitting, world)
            machines[best].add(pod)
            answer.bindings[pod.metadata.name] = best
            scheduled += 1
        else:
            counts = dict(Counter(reason for refused in reasons.values() for reason in refused))
            first = told.setdefault(member.shape, counts)
            answer.refusals[pod.metadata.name] = (counts, first)
    return answer if scheduled >= entity.quorum else Answer({}, answer.refusals)


def choose(pod: Pod, names: list[str], world: World) -> str:
    """The best of several nodes, of equal ones the first by name."""
    totals = scores(pod, names, world)
    return min(names, key=lambda name: (-totals[name], name))


def scores(pod: Pod, names: list[str], world: World) -> dict[str, int]:
    machines = {name: world.machines[name] for name in names}
    opinions = [
        (1, {name: least_allocated(pod, m) for name, m in machines.items()}),
        (1, {name: balanced_allocation(pod, m) for name, m in machines.items()}),
        (1, {name: image_locality(pod, m, world) for name, m in machines.items()}),
        (3, taint_toleration(pod, machines)),
        (2, node_affinity(pod, machines)),
        (2, peers.spread_scores(pod, machines, world)),
        (2, peers.affinity_scores(pod, machines, world)),
    ]
    return {name: sum(weight * found[name] for weight, found in opinions) for name in names}


def refusals(pod: Pod, machine: Machine, world: World) -> list[str]:
    """What the first filter that minds has to say."""
    return (
        of_node(pod, machine)
        or of_load(pod, machine)
        or peers.spread_refusal(pod, machine, world)
        or peers.affinity_refusal(pod, machine, world)
    )


def of_node(pod: Pod, machine: Machine) -> list[str]:
    node, spec = machine.node, pod.spec
    cordon = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
    if node.spec.unschedulable and not tolerated(cordon, spec.tolerations):
        return ["node(s) were unschedulable"]
    if not bearable(pod, node):
        return ["node(s) had untolerated taint(s)"]
    if not wanted(pod, node):
        return ["node(s) didn't match Pod's node affinity/selector"]
    return []


def of_load(pod: Pod, machine: Machine) -> list[str]:
    if any(clash(mine, theirs) for mine in ports(pod) for theirs in machine.ports()):
        return ["node(s) didn't have free ports for the requested pod ports"]
    lacking = [
        name
        for name, amount in pod_requests(pod).items()
        if machine.used[name] + amount > machine.room.get(name, 0)
    ]
    return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in lacking]


def bearable(pod: Pod, node: Node) -> bool:
    hard = [taint for taint in node.spec.taints if taint.effect != "PreferNoSchedule"]
    return all(tolerated(taint, pod.spec.tolerations) for taint in hard)


def wanted(pod: Pod, node: Node) -> bool:
    """Whether selector and required node affinity allow a node."""
    if not pod.spec.node_selector.items() <= node.metadata.labels.items():
        return False
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    required = affinity and affinity.required_during_scheduling_ignored_during_execution
    if not required:
        return True
    return any(holds(term, node) for term in required.node_selector_terms)


def holds(term: NodeTerm, node: Node) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    labels, fields = node.metadata.labels, {"metadata.name": node.metadata.name}
    return all(
        meets(where.get(need.key), need.operator, need.values)
        for needs, where in ((term.match_expressions, labels), (term.match_fields, fields))
        for need in needs
    )


def meets(value: str | None, operator: str, values: tuple[str, ...]) -> bool:
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    if value is None or not value.lstrip("-").isdigit():
        return False
    return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])


def tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    for one in tolerations:
        effect = one.effect in ("", taint.effect)
        anything = one.operator == "Exists" and not one.key
        same_key = one.key == taint.key
        value = one.operator == "Exists" or one.value == taint.value
        if effect and (anything or (same_key and value)):
            return True
    return False


def ports(pod: Pod) -> list[tuple[str, str, int]]:
    return [
        (port.host_ip or "0.0.0.0", port.protocol, port.host_port)
        for container in pod.spec.containers
        for port in container.ports
        if port.host_port
    ]


def clash(one: tuple[str, str, int], other: tuple[str, str, int]) -> bool:
    addresses = {one[0], other[0]}
    return one[1:] == other[1:] and (len(addresses) == 1 or "0.0.0.0" in addresses)


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


def image_locality(pod: Pod, machine: Machine, world: World) -> int:
    mebibyte = 1024 * 1024
    images = [container.image for container in pod.spec.containers]
    total = 0
    for image in images:
        name = image if ":" in image.rpartition("/")[2] else f"{image}:latest"
        having = [m for m in world.machines.values() if name in m.images()]
        size = machine.images().get(name, 0)
        total += int(size * (len(having) / len(world.machines)))
    least, most = 23 * mebibyte, 1000 * mebibyte * len(images)
    return 100 * (min(max(total, least), most) - least) // (most - least)


def taint_toleration(pod: Pod, machines: dict[str, Machine]) -> dict[str, int]:
    tolerations = [t for t in pod.spec.tolerations if t.effect in ("", "PreferNoSchedule")]
    raw = {
        name: sum(
            taint.effect == "PreferNoSchedule" and not tolerated(taint, tolerations)
            for taint in machine.node.spec.taints
        )
        for name, machine in machines.items()
    }
    most = max(raw.values())
    return {name: 100 - (100 * one // most if most else 0) for name, one in raw.items()}


def node_affinity(pod: Pod, machines: dict[str, Machine]) -> dict[str, int]:
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    preferred = affinity.preferred_during_scheduling_ignored_during_execution if affinity else ()
    raw = {
        name: sum(one.weight for one in preferred if holds(one.preference, machine.node))
        for name, machine in machines.items()
    }
    most = max(raw.values())
    return {name: 100 * one // most if most else 0 for name, one in raw.items()}
