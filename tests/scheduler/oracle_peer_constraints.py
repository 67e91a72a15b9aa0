"""The part of the oracle about other pods: affinity, anti-affinity and topology spread."""

from __future__ import annotations

from math import floor, log
from typing import Any

from msgspec import convert
from msgspec.structs import replace

from phalanx.api.core import Pod, PodAffinityTerm, TopologySpreadConstraint
from phalanx.api.selectors import selector_matches
from tests.scheduler import oracle
from tests.scheduler.oracle_cluster import OracleCluster, OracleNode

UNEVEN = "node(s) didn't match pod topology spread constraints"
HOSTNAME = "kubernetes.io/hostname"


def extended_selector(selector: dict[str, Any] | None, pod: Pod, same: tuple[str, ...]) -> Any:
    """Extend a selector by `matchLabelKeys`."""
    if selector is None:
        return None
    labels = pod.metadata.labels
    more = [{"key": k, "operator": "In", "values": [labels[k]]} for k in same if k in labels]
    return {**selector, "matchExpressions": [*selector.get("matchExpressions", ()), *more]}


def term_selects(term: PodAffinityTerm, owner: Pod, other: Pod, cluster: OracleCluster) -> bool:
    """Whether the term of one pod selects another pod."""
    namespace = other.metadata.namespace
    if not term.namespaces and term.namespace_selector is None:
        is_covered = namespace == owner.metadata.namespace
    else:
        labels = cluster.namespaces.get(namespace, {})
        is_covered = namespace in term.namespaces or selector_matches(
            term.namespace_selector, labels
        )
    selector = extended_selector(term.label_selector, owner, term.match_label_keys)
    return is_covered and selector_matches(selector, other.metadata.labels)


def required(pod: Pod, *, anti: bool) -> tuple[PodAffinityTerm, ...]:
    affinity = pod.spec.affinity
    part = affinity and (affinity.pod_anti_affinity if anti else affinity.pod_affinity)
    return part.required_during_scheduling_ignored_during_execution if part else ()


def preferred(pod: Pod) -> list[tuple[int, PodAffinityTerm]]:
    found = []
    affinity = pod.spec.affinity
    for sign, part in ((1, affinity and affinity.pod_affinity),
                       (-1, affinity and affinity.pod_anti_affinity)):  # fmt: skip
        terms = part.preferred_during_scheduling_ignored_during_execution if part else ()
        found += [(sign * one.weight, one.pod_affinity_term) for one in terms]
    return found


def shares_domain(key: str, one: OracleNode, other: OracleNode) -> bool:
    return key in one.labels and one.labels[key] == other.labels.get(key)


def affinity_refusal(pod: Pod, node: OracleNode, cluster: OracleCluster) -> list[str]:
    if not meets_affinity(pod, node, cluster):
        return ["node(s) didn't match pod affinity rules"]
    for term in required(pod, anti=True):
        for host, other in cluster.assigned_pods():
            if term_selects(term, pod, other, cluster) and shares_domain(
                term.topology_key, node, host
            ):
                return ["node(s) didn't match pod anti-affinity rules"]
    for host, other in cluster.assigned_pods():
        for term in required(other, anti=True):
            if term_selects(term, other, pod, cluster) and shares_domain(
                term.topology_key, node, host
            ):
                return ["node(s) didn't satisfy existing pods anti-affinity rules"]
    return []


def meets_affinity(pod: Pod, node: OracleNode, cluster: OracleCluster) -> bool:
    terms = required(pod, anti=False)
    hosts = [
        host
        for host, other in cluster.assigned_pods()
        if all(term_selects(term, pod, other, cluster) for term in terms)
    ]
    if all(any(shares_domain(t.topology_key, node, host) for host in hosts) for t in terms):
        return True
    anywhere = any(t.topology_key in host.labels for t in terms for host in hosts)
    selects_itself = all(term_selects(term, pod, pod, cluster) for term in terms)
    labelled = all(term.topology_key in node.labels for term in terms)
    return not anywhere and selects_itself and labelled


def affinity_scores(
    pod: Pod, nodes: dict[str, OracleNode], cluster: OracleCluster
) -> dict[str, int]:
    args = cluster.settings.plugin_args("InterPodAffinity")
    if args.get("ignorePreferredTermsOfExistingPods") and not preferred(pod):
        return dict.fromkeys(nodes, 0)
    raw = {name: preferred_affinity_score(pod, machine, cluster) for name, machine in nodes.items()}
    least, most = min(raw.values()), max(raw.values())
    if most == least:
        return dict.fromkeys(raw, 0)
    return {name: int(100 * ((one - least) / (most - least))) for name, one in raw.items()}


def preferred_affinity_score(pod: Pod, node: OracleNode, cluster: OracleCluster) -> int:
    total, near_weight = (
        0,
        cluster.settings.plugin_args("InterPodAffinity").get("hardPodAffinityWeight", 1),
    )
    for host, other in cluster.assigned_pods():
        for weight, term in preferred(pod):
            if term_selects(term, pod, other, cluster) and shares_domain(
                term.topology_key, node, host
            ):
                total += weight
        hard = [(near_weight, term) for term in required(other, anti=False)]
        for weight, term in [*preferred(other), *hard]:
            if term_selects(term, other, pod, cluster) and shares_domain(
                term.topology_key, node, host
            ):
                total += weight
    return total


def is_counted(one: TopologySpreadConstraint, pod: Pod, node: OracleNode) -> bool:
    """Whether the pods on a node count for a constraint of a pod."""
    if one.node_affinity_policy == "Honor" and not oracle.matches_node_affinity(pod, node.node):
        return False
    return one.node_taints_policy != "Honor" or oracle.tolerates_all(pod, node.node)


def matching(one: TopologySpreadConstraint, pod: Pod, node: OracleNode) -> int:
    selector = extended_selector(one.label_selector, pod, one.match_label_keys)
    return sum(
        other.metadata.namespace == pod.metadata.namespace
        and not other.metadata.deletion_timestamp
        and selector_matches(selector, other.metadata.labels)
        for other in node.pods
    )


def constraints(pod: Pod, cluster: OracleCluster, *, hard: bool) -> list[TopologySpreadConstraint]:
    action = "DoNotSchedule" if hard else "ScheduleAnyway"
    own = pod.spec.topology_spread_constraints or defaults(pod, cluster)
    return [one for one in own if one.when_unsatisfiable == action]


def defaults(pod: Pod, cluster: OracleCluster) -> list[TopologySpreadConstraint]:
    merged: dict[str, str] = {}
    for namespace, selector in cluster.services:
        is_ours = namespace == pod.metadata.namespace and selector
        if is_ours and selector.items() <= pod.metadata.labels.items():
            merged |= selector
    if not merged:
        return []
    return [
        replace(one, label_selector={"matchLabels": merged}) for one in default_constraints(cluster)
    ]


def default_constraints(cluster: OracleCluster) -> list[TopologySpreadConstraint]:
    """Return the default spread constraints of the profile."""
    args = cluster.settings.plugin_args("PodTopologySpread")
    if args.get("defaultingType") == "List":
        return convert(args.get("defaultConstraints", []), list[TopologySpreadConstraint])
    system = ((HOSTNAME, 3), ("topology.kubernetes.io/zone", 5))
    return [TopologySpreadConstraint(key, "ScheduleAnyway", skew) for key, skew in system]


def spread_refusal(pod: Pod, node: OracleNode, cluster: OracleCluster) -> list[str]:
    hard = constraints(pod, cluster, hard=True)
    keys = [one.topology_key for one in hard]
    for one in hard:
        if one.topology_key not in node.labels:
            return [f"{UNEVEN} (missing required label)"]
        domains: dict[str, int] = {}
        for other in cluster.nodes.values():
            if all(key in other.labels for key in keys) and is_counted(one, pod, other):
                value = other.labels[one.topology_key]
                domains[value] = domains.get(value, 0) + matching(one, pod, other)
        least = min(domains.values(), default=0) if len(domains) >= one.min_domains else 0
        selector = extended_selector(one.label_selector, pod, one.match_label_keys)
        itself = selector_matches(selector, pod.metadata.labels)
        if domains.get(node.labels[one.topology_key], 0) + itself - least > one.max_skew:
            return [UNEVEN]
    return []


def spread_scores(pod: Pod, nodes: dict[str, OracleNode], cluster: OracleCluster) -> dict[str, int]:
    soft = constraints(pod, cluster, hard=False)
    if not soft:
        return dict.fromkeys(nodes, 0)
    is_listed = cluster.settings.plugin_args("PodTopologySpread").get("defaultingType") == "List"
    strict = bool(pod.spec.topology_spread_constraints) or is_listed
    keys = [one.topology_key for one in soft]
    counted = {
        name: machine
        for name, machine in nodes.items()
        if not strict or all(key in machine.labels for key in keys)
    }
    raw = {
        name: floor(
            sum(domain_load(one, pod, m, counted, cluster, strict, keys) for one in soft) + 0.5
        )
        for name, m in counted.items()
    }
    most, least = max(raw.values(), default=0), min(raw.values(), default=0)
    ranked = {n: 100 * (most + least - one) // most if most else 100 for n, one in raw.items()}
    return {name: ranked.get(name, 0) for name in nodes}


def domain_load(
    one: TopologySpreadConstraint,
    pod: Pod,
    node: OracleNode,
    counted: dict[str, OracleNode],
    cluster: OracleCluster,
    strict: bool,
    keys: list[str],
) -> float:
    key = one.topology_key
    if key not in node.labels:
        return 0.0
    if key == HOSTNAME:
        count, size = matching(one, pod, node), len(counted)
    else:
        size = len({other.labels.get(key) for other in counted.values()})
        count = sum(
            matching(one, pod, other)
            for other in cluster.nodes.values()
            if shares_domain(key, node, other)
            and is_counted(one, pod, other)
            and (not strict or all(k in other.labels for k in keys))
        )
    return count * log(size + 2) + (one.max_skew - 1)
