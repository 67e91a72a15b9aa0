"""The oracle: a scheduling cycle that is slow and obvious, one pod at a time over plain dicts.

`decide` must reach the same result with its arrays, cached scores, heaps and counts. Affinity and
spread are in `oracle_peer_constraints.py`.
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
from phalanx.api.resources import node_allocatable, nonzero_requests, pod_requests
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.entity import Entity
from tests.scheduler import oracle_peer_constraints as peers
from tests.scheduler.oracle_cluster import OracleCluster, OracleNode
from tests.scheduler.oracle_settings import CPU_AND_MEMORY, OracleSettings

Reasons = dict[str, int]


@dataclass
class OracleAnswer:
    """The node of each pod (none if the group fails), and why the others have none.

    A refused pod may have the reasons of now, or those of the first refused pod of its shape.
    """

    bindings: dict[str, str]
    refusals: dict[str, tuple[Reasons, Reasons]] = field(default_factory=dict)


def build_cluster(nodes: Iterable[Node], running: Iterable[Pod]) -> OracleCluster:
    machines = {node.metadata.name: OracleNode(node, node_allocatable(node)) for node in nodes}
    for pod in running:
        if pod.occupied_node in machines:
            machines[pod.occupied_node].add(pod)
    return OracleCluster(dict(sorted(machines.items())))


def place(
    entity: Entity,
    cluster: OracleCluster,
    scheduled: int,
    within: dict[str, OracleNode] | None = None,
) -> OracleAnswer:
    """Place all members that the entity needs, or none, on all nodes or on some."""
    members = sorted(
        entity.members,
        key=lambda m: (-m.pod.spec.priority, -m.attempts, m.timestamp, m.pod.metadata.name),
    )
    answer = OracleAnswer({})
    first_reasons: dict[PodShape, Reasons] = {}
    for done, member in enumerate(members):
        if scheduled + len(members) - done < entity.quorum:
            break
        pod, machines = member.pod, cluster.nodes if within is None else within
        reasons = {name: refusals(pod, machine, cluster) for name, machine in machines.items()}
        fitting = [name for name, refused in reasons.items() if not refused]
        if fitting:
            best = choose(pod, fitting, cluster)
            machines[best].add(pod)
            answer.bindings[pod.metadata.name] = best
            scheduled += 1
        else:
            counts = dict(Counter(reason for refused in reasons.values() for reason in refused))
            first = first_reasons.setdefault(member.shape, counts)
            answer.refusals[pod.metadata.name] = (counts, first)
    return answer if scheduled >= entity.quorum else OracleAnswer({}, answer.refusals)


def choose(pod: Pod, names: list[str], cluster: OracleCluster) -> str:
    """Return the best of several nodes, of equal ones the first by name."""
    totals = scores(pod, names, cluster)
    return min(names, key=lambda name: (-totals[name], name))


def scores(pod: Pod, names: list[str], cluster: OracleCluster) -> dict[str, int]:
    machines, settings = {name: cluster.nodes[name] for name in names}, cluster.settings
    by_plugin = {
        "NodeResourcesFit": {n: allocation(pod, m, settings) for n, m in machines.items()},
        "NodeResourcesBalancedAllocation": {
            n: balanced_allocation(pod, m, settings) for n, m in machines.items()
        },
        "ImageLocality": {n: image_locality(pod, m, cluster) for n, m in machines.items()},
        "ExtendedResourcePacking": {n: packing(pod, m, settings) for n, m in machines.items()},
        "ExtendedResourceAvoidance": {n: avoidance(pod, m, cluster) for n, m in machines.items()},
        "TaintToleration": taint_toleration(pod, machines),
        "NodeAffinity": node_affinity(pod, machines, settings),
        "PodTopologySpread": peers.spread_scores(pod, machines, cluster),
        "InterPodAffinity": peers.affinity_scores(pod, machines, cluster),
    }
    weights = {plugin: weight_for(pod, plugin, settings) for plugin in by_plugin}
    return {
        name: sum(weights[plugin] * found[name] for plugin, found in by_plugin.items())
        for name in names
    }


def weight_for(pod: Pod, plugin: str, settings: OracleSettings) -> int:
    """Return the weight of a score: of packed pods those of load count a 128th of the others."""
    weight = settings.weight(plugin)
    if not is_packed(pod, settings):
        return 0 if plugin == "ExtendedResourcePacking" else weight
    load = ("NodeResourcesFit", "NodeResourcesBalancedAllocation", "ImageLocality")
    return weight if plugin in load else min(128 * weight, 1_000_000)


def refusals(pod: Pod, node: OracleNode, cluster: OracleCluster) -> list[str]:
    """Return the reasons of the first filter that rejects, with or without nominated pods."""
    filters = {
        "NodeUnschedulable": reject_cordoned,
        "TaintToleration": reject_tainted,
        "NodeAffinity": reject_unmatched_affinity,
        "NodePorts": reject_port_conflicts,
        "NodeResourcesFit": reject_insufficient,
        "PodTopologySpread": peers.spread_refusal,
        "InterPodAffinity": peers.affinity_refusal,
    }
    # Pods of the oracle have no claims; `test_volume_brute_force.py` covers those for volumes.
    enabled = [filters[name] for name in cluster.settings.filters() if name in filters]
    variants = [(node, cluster)]
    if node.without_nominated and cluster.without_nominated:
        variants.append((node.without_nominated, cluster.without_nominated))
    return next(filter(None, (reject(pod, *one) for reject in enabled for one in variants)), [])


def reject_cordoned(pod: Pod, node: OracleNode, cluster: OracleCluster) -> list[str]:
    cordon = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
    is_rejected = node.node.spec.unschedulable and not is_tolerated(cordon, pod.spec.tolerations)
    return ["node(s) were unschedulable"] if is_rejected else []


def reject_tainted(pod: Pod, node: OracleNode, cluster: OracleCluster) -> list[str]:
    return [] if tolerates_all(pod, node.node) else ["node(s) had untolerated taint(s)"]


def reject_unmatched_affinity(pod: Pod, node: OracleNode, cluster: OracleCluster) -> list[str]:
    required = added_affinity(cluster.settings).required_during_scheduling_ignored_during_execution
    if required and not any(term_matches(term, node.node) for term in required.node_selector_terms):
        return ["node(s) didn't match scheduler-enforced node affinity"]
    if not matches_node_affinity(pod, node.node):
        return ["node(s) didn't match Pod's node affinity/selector"]
    return []


def added_affinity(settings: OracleSettings) -> NodeAffinity:
    """Return the node affinity that the profile adds to all pods."""
    return convert(settings.plugin_args("NodeAffinity").get("addedAffinity", {}), NodeAffinity)


def reject_port_conflicts(pod: Pod, node: OracleNode, cluster: OracleCluster) -> list[str]:
    conflicts = any(ports_conflict(mine, theirs) for mine in ports(pod) for theirs in node.ports())
    return ["node(s) didn't have free ports for the requested pod ports"] if conflicts else []


def reject_insufficient(pod: Pod, node: OracleNode, cluster: OracleCluster) -> list[str]:
    lacking = [
        name
        for name, amount in pod_requests(pod).items()
        if node.requested[name] + amount > node.allocatable.get(name, 0)
    ]
    return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in lacking]


def tolerates_all(pod: Pod, node: Node) -> bool:
    hard = [taint for taint in node.spec.taints if taint.effect != "PreferNoSchedule"]
    return all(is_tolerated(taint, pod.spec.tolerations) for taint in hard)


def matches_node_affinity(pod: Pod, node: Node) -> bool:
    """Whether selector and required node affinity allow a node."""
    if not pod.spec.node_selector.items() <= node.metadata.labels.items():
        return False
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    required = affinity and affinity.required_during_scheduling_ignored_during_execution
    if not required:
        return True
    return any(term_matches(term, node) for term in required.node_selector_terms)


def term_matches(term: NodeTerm, node: Node) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    labels, fields = node.metadata.labels, {"metadata.name": node.metadata.name}
    return all(
        requirement_matches(where.get(need.key), need.operator, need.values)
        for needs, where in ((term.match_expressions, labels), (term.match_fields, fields))
        for need in needs
    )


def requirement_matches(value: str | None, operator: str, values: tuple[str, ...]) -> bool:
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


def is_tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
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


def ports_conflict(one: tuple[str, str, int], other: tuple[str, str, int]) -> bool:
    addresses = {one[0], other[0]}
    return one[1:] == other[1:] and (len(addresses) == 1 or "0.0.0.0" in addresses)


def is_scored(name: str, requests: Mapping[str, int], node: OracleNode) -> bool:
    """Whether a resource is scored: the node has it, and the pod requests an extended resource."""
    ordinary = name in ("cpu", "memory", "ephemeral-storage")
    extended = "/" in name or name.startswith("hugepages-")
    return bool(node.allocatable.get(name)) and (ordinary or (extended and name in requests))


def allocation(pod: Pod, node: OracleNode, settings: OracleSettings) -> int:
    """Score a node by the utilization that it would have."""
    strategy, requests = settings.strategy(), {**pod_requests(pod), **nonzero_requests(pod)}
    used = {**node.requested, **node.nonzero_requested}
    scored = []
    for one in strategy.get("resources") or CPU_AND_MEMORY:
        name, weight = one["name"], one.get("weight") or 1
        if is_scored(name, pod_requests(pod), node):
            total = used.get(name, 0) + requests.get(name, 0)
            scored.append((weight, strategy_score(strategy, total, node.allocatable[name])))
    if strategy["type"] != "RequestedToCapacityRatio":
        weights = sum(weight for weight, _ in scored)
        return sum(weight * one for weight, one in scored) // weights if weights else 0
    scored = [(weight, one) for weight, one in scored if one]
    weights = sum(weight for weight, _ in scored)
    return floor(sum(w * one for w, one in scored) / weights + 0.5) if weights else 0


def strategy_score(strategy: dict[str, Any], requested: int, allocatable: int) -> int:
    if strategy["type"] == "LeastAllocated":
        return max(allocatable - requested, 0) * 100 // allocatable
    used = min(requested, allocatable) * 100 // allocatable
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


def balanced_allocation(pod: Pod, node: OracleNode, settings: OracleSettings) -> int:
    args = settings.plugin_args("NodeResourcesBalancedAllocation")
    requests = {name: amount for name, amount in pod_requests(pod).items() if name != "pods"}
    listed = [one["name"] for one in args.get("resources") or CPU_AND_MEMORY]
    if not any(requests.get(name) for name in listed):
        return 0
    names = [name for name in listed if is_scored(name, requests, node)]
    nothing: dict[str, int] = {}
    return 50 + (50 + balance(node, names, requests) - balance(node, names, nothing)) // 2


def balance(node: OracleNode, names: list[str], more: dict[str, int]) -> int:
    shares = [min((node.requested[n] + more.get(n, 0)) / node.allocatable[n], 1) for n in names]
    if len(shares) == 2:
        return int((1 - abs(shares[0] - shares[1]) / 2) * 100)
    if len(shares) < 2:
        return 100
    mean = sum(shares) / len(shares)
    variance = sum((share - mean) * (share - mean) for share in shares) / len(shares)
    return int((1 - sqrt(variance)) * 100)


def packed_resources(pod: Pod, settings: OracleSettings) -> dict[str, int]:
    """Return the resources that a pod is packed by, with their weights."""
    listed = settings.plugin_args("ExtendedResourcePacking").get("resources", [])
    weights = {one["name"]: one.get("weight") or 1 for one in listed}
    requested = [name for name in pod_requests(pod) if is_extended(name)]
    return {name: weights.get(name, 1) for name in requested if name in (weights or requested)}


def is_packed(pod: Pod, settings: OracleSettings) -> bool:
    return settings.packs() and bool(packed_resources(pod, settings))


def is_extended(name: str) -> bool:
    return "/" in name and "kubernetes.io/" not in name


def packing(pod: Pod, node: OracleNode, settings: OracleSettings) -> int:
    """Score a node by the use that it would have of the packed resources."""
    weights = packed_resources(pod, settings)
    shares = {}
    for name in weights:
        capacity = node.allocatable.get(name, 0)
        used = node.requested[name] + pod_requests(pod)[name]
        if capacity:
            shares[name] = min(used, capacity) * 100 // capacity
    total = sum(weights[name] * share for name, share in shares.items())
    return total // sum(weights[name] for name in shares) if shares else 0


def avoidance(pod: Pod, node: OracleNode, cluster: OracleCluster) -> int:
    return 0 if avoids(pod, node, cluster) else 90


def avoids(pod: Pod, node: OracleNode, cluster: OracleCluster) -> bool:
    """Whether a node has an extended resource that other nodes lack and the pod does not use."""
    args = cluster.settings.plugin_args("ExtendedResourceAvoidance")
    used = {*pod_requests(pod), *args.get("ignoredResources", [])}
    return any(
        is_extended(name) and amount > 0 and name not in used
        for name, amount in node.allocatable.items()
        if not all(one.allocatable.get(name, 0) > 0 for one in cluster.nodes.values())
    )


def image_locality(pod: Pod, node: OracleNode, cluster: OracleCluster) -> int:
    mebibyte = 1024 * 1024
    images = [container.image for container in pod.spec.containers]
    images += [volume.image.reference for volume in pod.spec.volumes if volume.image]
    total = 0
    for image in images:
        name = image if ":" in image.rpartition("/")[2] else f"{image}:latest"
        having = [m for m in cluster.nodes.values() if name in m.images()]
        size = node.images().get(name, 0)
        total += int(size * (len(having) / len(cluster.nodes)))
    least, most = 23 * mebibyte, 1000 * mebibyte * len(images)
    return 100 * (min(max(total, least), most) - least) // (most - least)


def taint_toleration(pod: Pod, nodes: dict[str, OracleNode]) -> dict[str, int]:
    tolerations = [t for t in pod.spec.tolerations if t.effect in ("", "PreferNoSchedule")]
    raw = {
        name: sum(
            taint.effect == "PreferNoSchedule" and not is_tolerated(taint, tolerations)
            for taint in machine.node.spec.taints
        )
        for name, machine in nodes.items()
    }
    most = max(raw.values())
    return {name: 100 - (100 * one // most if most else 0) for name, one in raw.items()}


def node_affinity(
    pod: Pod, nodes: dict[str, OracleNode], settings: OracleSettings
) -> dict[str, int]:
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    preferred = affinity.preferred_during_scheduling_ignored_during_execution if affinity else ()
    preferred += added_affinity(settings).preferred_during_scheduling_ignored_during_execution
    raw = {
        name: sum(one.weight for one in preferred if term_matches(one.preference, machine.node))
        for name, machine in nodes.items()
    }
    most = max(raw.values())
    return {name: 100 * one // most if most else 0 for name, one in raw.items()}
