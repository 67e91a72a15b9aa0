"""The meaning of a scheduling cycle, slow and obvious: one pod at a time over plain dicts.

`decide` must come to the same result with its arrays, views, heaps and headcounts. What is about
other pods is in `oracle_peers.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor, sqrt
from typing import Any

from msgspec import convert

from phalanx.api.core import Node, NodeAffinity, NodeTerm, Pod, Taint, Toleration
from phalanx.api.resources import node_room, pod_requests, scored_requests
from phalanx.scheduler.cluster.shape import Shape
from phalanx.scheduler.entity import Entity
from tests.scheduler import oracle_peers as peers
from tests.scheduler.machine import Machine, World
from tests.scheduler.oracle_settings import CPU_AND_MEMORY, Settings

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


def place(
    entity: Entity, world: World, scheduled: int, within: dict[str, Machine] | None = None
) -> Answer:
    """Every pod that the entity needs, or none, on all nodes or on some."""
    members = sorted(
        entity.members,
        key=lambda m: (-m.pod.spec.priority, -m.attempts, m.timestamp, m.pod.metadata.name),
    )
    answer = Answer({})
    told: dict[Shape, Reasons] = {}
    for done, member in enumerate(members):
        if scheduled + len(members) - done < entity.quorum:
            break
        pod, machines = member.pod, world.machines if within is None else within
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
    machines, settings = {name: world.machines[name] for name in names}, world.settings
    opinions = {
        "NodeResourcesFit": {n: allocation(pod, m, settings) for n, m in machines.items()},
        "NodeResourcesBalancedAllocation": {
            n: balanced_allocation(pod, m, settings) for n, m in machines.items()
        },
        "ImageLocality": {n: image_locality(pod, m, world) for n, m in machines.items()},
        "TaintToleration": taint_toleration(pod, machines),
        "NodeAffinity": node_affinity(pod, machines, settings),
        "PodTopologySpread": peers.spread_scores(pod, machines, world),
        "InterPodAffinity": peers.affinity_scores(pod, machines, world),
    }
    return {
        name: sum(settings.weight(opinion) * found[name] for opinion, found in opinions.items())
        for name in names
    }


def refusals(pod: Pod, machine: Machine, world: World) -> list[str]:
    """What the first filter that is asked and minds has to say, with and without the promised."""
    filters = {
        "NodeUnschedulable": cordoned, "TaintToleration": tainted, "NodeAffinity": elsewhere,
        "NodePorts": ports_taken, "NodeResourcesFit": full,
        "PodTopologySpread": peers.spread_refusal, "InterPodAffinity": peers.affinity_refusal,
    }  # fmt: skip
    asked = [filters[name] for name in world.settings.filters()]
    worlds = [(machine, world)]
    if machine.bare and world.bare:
        worlds.append((machine.bare, world.bare))
    return next(filter(None, (refuses(pod, *one) for refuses in asked for one in worlds)), [])


def cordoned(pod: Pod, machine: Machine, world: World) -> list[str]:
    cordon = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
    minds = machine.node.spec.unschedulable and not tolerated(cordon, pod.spec.tolerations)
    return ["node(s) were unschedulable"] if minds else []


def tainted(pod: Pod, machine: Machine, world: World) -> list[str]:
    return [] if bearable(pod, machine.node) else ["node(s) had untolerated taint(s)"]


def elsewhere(pod: Pod, machine: Machine, world: World) -> list[str]:
    required = added(world.settings).required_during_scheduling_ignored_during_execution
    if required and not any(holds(term, machine.node) for term in required.node_selector_terms):
        return ["node(s) didn't match scheduler-enforced node affinity"]
    if not wanted(pod, machine.node):
        return ["node(s) didn't match Pod's node affinity/selector"]
    return []


def added(settings: Settings) -> NodeAffinity:
    """The node affinity that all pods get."""
    return convert(settings.told("NodeAffinity").get("addedAffinity", {}), NodeAffinity)


def ports_taken(pod: Pod, machine: Machine, world: World) -> list[str]:
    clashing = any(clash(mine, theirs) for mine in ports(pod) for theirs in machine.ports())
    return ["node(s) didn't have free ports for the requested pod ports"] if clashing else []


def full(pod: Pod, machine: Machine, world: World) -> list[str]:
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


def counts(name: str, asked: Mapping[str, int], machine: Machine) -> bool:
    """Whether a resource counts: the node has it, and the pod asks for it if it is an odd one."""
    ordinary = name in ("cpu", "memory", "ephemeral-storage")
    odd = "/" in name or name.startswith("hugepages-")
    return bool(machine.room.get(name)) and (ordinary or (odd and name in asked))


def allocation(pod: Pod, machine: Machine, settings: Settings) -> int:
    """How full a node would be, and what that is worth."""
    strategy, asked = settings.strategy(), {**pod_requests(pod), **scored_requests(pod)}
    taken = {**machine.used, **machine.scored}
    worths = []
    for one in strategy.get("resources") or CPU_AND_MEMORY:
        name, weight = one["name"], one.get("weight") or 1
        if counts(name, pod_requests(pod), machine):
            total = taken.get(name, 0) + asked.get(name, 0)
            worths.append((weight, worth(strategy, total, machine.room[name])))
    if strategy["type"] != "RequestedToCapacityRatio":
        weights = sum(weight for weight, _ in worths)
        return sum(weight * one for weight, one in worths) // weights if weights else 0
    worths = [(weight, one) for weight, one in worths if one]
    weights = sum(weight for weight, _ in worths)
    return floor(sum(w * one for w, one in worths) / weights + 0.5) if weights else 0


def worth(strategy: dict[str, Any], taken: int, room: int) -> int:
    if strategy["type"] == "LeastAllocated":
        return max(room - taken, 0) * 100 // room
    used = min(taken, room) * 100 // room
    if strategy["type"] == "MostAllocated":
        return used
    points = strategy["requestedToCapacityRatio"]["shape"]
    line = [(int(point["utilization"]), 10 * int(point["score"])) for point in points]
    before = [point for point in line if point[0] <= used]
    after = [point for point in line if point[0] >= used]
    if not before or not after:
        return (after[0] if after else before[-1])[1]
    (left, begin), (right, end) = before[-1], after[0]
    if left == right:
        return begin
    return begin + int(Fraction((end - begin) * (used - left), right - left))


def balanced_allocation(pod: Pod, machine: Machine, settings: Settings) -> int:
    told = settings.told("NodeResourcesBalancedAllocation")
    asked = {name: amount for name, amount in pod_requests(pod).items() if name != "pods"}
    listed = [one["name"] for one in told.get("resources") or CPU_AND_MEMORY]
    if not any(asked.get(name) for name in listed):
        return 0
    names = [name for name in listed if counts(name, asked, machine)]
    nothing: dict[str, int] = {}
    return 50 + (50 + balance(machine, names, asked) - balance(machine, names, nothing)) // 2


def balance(machine: Machine, names: list[str], more: dict[str, int]) -> int:
    shares = [min((machine.used[n] + more.get(n, 0)) / machine.room[n], 1) for n in names]
    if len(shares) == 2:
        return int((1 - abs(shares[0] - shares[1]) / 2) * 100)
    if len(shares) < 2:
        return 100
    mean = sum(shares) / len(shares)
    variance = sum((share - mean) * (share - mean) for share in shares) / len(shares)
    return int((1 - sqrt(variance)) * 100)


def image_locality(pod: Pod, machine: Machine, world: World) -> int:
    mebibyte = 1024 * 1024
    images = [container.image for container in pod.spec.containers]
    images += [volume.image.reference for volume in pod.spec.volumes if volume.image]
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


def node_affinity(pod: Pod, machines: dict[str, Machine], settings: Settings) -> dict[str, int]:
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    preferred = affinity.preferred_during_scheduling_ignored_during_execution if affinity else ()
    preferred += added(settings).preferred_during_scheduling_ignored_during_execution
    raw = {
        name: sum(one.weight for one in preferred if holds(one.preference, machine.node))
        for name, machine in machines.items()
    }
    most = max(raw.values())
    return {name: 100 * one // most if most else 0 for name, one in raw.items()}
