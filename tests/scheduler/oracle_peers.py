"""The part of the oracle that is about other pods: affinity both ways, and even spreading."""

from __future__ import annotations

from math import floor, log
from typing import Any

from msgspec import convert
from msgspec.structs import replace

from phalanx.api.core import Pod, PodAffinityTerm, SpreadConstraint
from phalanx.api.labelselectors import selects
from tests.scheduler import oracle
from tests.scheduler.machine import Machine, World

UNEVEN = "node(s) didn't match pod topology spread constraints"
HOSTNAME = "kubernetes.io/hostname"


def extended(selector: dict[str, Any] | None, pod: Pod, same: tuple[str, ...]) -> Any:
    """A selector that also asks for some of the pod's own labels."""
    if selector is None:
        return None
    labels = pod.metadata.labels
    more = [{"key": k, "operator": "In", "values": [labels[k]]} for k in same if k in labels]
    return {**selector, "matchExpressions": [*selector.get("matchExpressions", ()), *more]}


def chooses(term: PodAffinityTerm, owner: Pod, other: Pod, world: World) -> bool:
    """Whether the term of one pod is about another."""
    space = other.metadata.namespace
    if not term.namespaces and term.namespace_selector is None:
        here = space == owner.metadata.namespace
    else:
        labels = world.namespaces.get(space, {})
        here = space in term.namespaces or selects(term.namespace_selector, labels)
    selector = extended(term.label_selector, owner, term.match_label_keys)
    return here and selects(selector, other.metadata.labels)


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


def together(key: str, one: Machine, other: Machine) -> bool:
    return key in one.labels and one.labels[key] == other.labels.get(key)


def affinity_refusal(pod: Pod, machine: Machine, world: World) -> list[str]:
    if not near(pod, machine, world):
        return ["node(s) didn't match pod affinity rules"]
    for term in required(pod, anti=True):
        for host, other in world.residents():
            if chooses(term, pod, other, world) and together(term.topology_key, machine, host):
                return ["node(s) didn't match pod anti-affinity rules"]
    for host, other in world.residents():
        for term in required(other, anti=True):
            if chooses(term, other, pod, world) and together(term.topology_key, machine, host):
                return ["node(s) didn't satisfy existing pods anti-affinity rules"]
    return []


def near(pod: Pod, machine: Machine, world: World) -> bool:
    terms = required(pod, anti=False)
    friends = [
        host
        for host, other in world.residents()
        if all(chooses(term, pod, other, world) for term in terms)
    ]
    if all(any(together(t.topology_key, machine, host) for host in friends) for t in terms):
        return True
    anywhere = any(t.topology_key in host.labels for t in terms for host in friends)
    alike = all(chooses(term, pod, pod, world) for term in terms)
    labelled = all(term.topology_key in machine.labels for term in terms)
    return not anywhere and alike and labelled


def affinity_scores(pod: Pod, machines: dict[str, Machine], world: World) -> dict[str, int]:
    told = world.settings.told("InterPodAffinity")
    if told.get("ignorePreferredTermsOfExistingPods") and not preferred(pod):
        return dict.fromkeys(machines, 0)
    raw = {name: liking(pod, machine, world) for name, machine in machines.items()}
    least, most = min(raw.values()), max(raw.values())
    if most == least:
        return dict.fromkeys(raw, 0)
    return {name: int(100 * ((one - least) / (most - least))) for name, one in raw.items()}


def liking(pod: Pod, machine: Machine, world: World) -> int:
    total, near_weight = 0, world.settings.told("InterPodAffinity").get("hardPodAffinityWeight", 1)
    for host, other in world.residents():
        for weight, term in preferred(pod):
            if chooses(term, pod, other, world) and together(term.topology_key, machine, host):
                total += weight
        hard = [(near_weight, term) for term in required(other, anti=False)]
        theirs = [*preferred(other), *hard]
        for weight, term in theirs:
            if chooses(term, other, pod, world) and together(term.topology_key, machine, host):
                total += weight
    return total


def counts_for(one: SpreadConstraint, pod: Pod, machine: Machine) -> bool:
    """Whether the pods on a node count for a constraint of a pod."""
    if one.node_affinity_policy == "Honor" and not oracle.wanted(pod, machine.node):
        return False
    return one.node_taints_policy != "Honor" or oracle.bearable(pod, machine.node)


def matching(one: SpreadConstraint, pod: Pod, machine: Machine) -> int:
    selector = extended(one.label_selector, pod, one.match_label_keys)
    return sum(
        other.metadata.namespace == pod.metadata.namespace
        and not other.metadata.deletion_timestamp
        and selects(selector, other.metadata.labels)
        for other in machine.pods
    )


def constraints(pod: Pod, world: World, *, hard: bool) -> list[SpreadConstraint]:
    wanted = "DoNotSchedule" if hard else "ScheduleAnyway"
    own = pod.spec.topology_spread_constraints or defaults(pod, world)
    return [one for one in own if one.when_unsatisfiable == wanted]


def defaults(pod: Pod, world: World) -> list[SpreadConstraint]:
    chosen: dict[str, str] = {}
    for space, selector in world.services:
        mine = space == pod.metadata.namespace and selector
        if mine and selector.items() <= pod.metadata.labels.items():
            chosen |= selector
    if not chosen:
        return []
    return [replace(one, label_selector={"matchLabels": chosen}) for one in listed(world)]


def listed(world: World) -> list[SpreadConstraint]:
    """How pods are spread that do not say how."""
    told = world.settings.told("PodTopologySpread")
    if told.get("defaultingType") == "List":
        return convert(told.get("defaultConstraints", []), list[SpreadConstraint])
    usual = ((HOSTNAME, 3), ("topology.kubernetes.io/zone", 5))
    return [SpreadConstraint(key, "ScheduleAnyway", skew) for key, skew in usual]


def spread_refusal(pod: Pod, machine: Machine, world: World) -> list[str]:
    hard = constraints(pod, world, hard=True)
    keys = [one.topology_key for one in hard]
    for one in hard:
        if one.topology_key not in machine.labels:
            return [f"{UNEVEN} (missing required label)"]
        domains: dict[str, int] = {}
        for other in world.machines.values():
            if all(key in other.labels for key in keys) and counts_for(one, pod, other):
                value = other.labels[one.topology_key]
                domains[value] = domains.get(value, 0) + matching(one, pod, other)
        least = min(domains.values(), default=0) if len(domains) >= one.min_domains else 0
        selector = extended(one.label_selector, pod, one.match_label_keys)
        itself = selects(selector, pod.metadata.labels)
        if domains.get(machine.labels[one.topology_key], 0) + itself - least > one.max_skew:
            return [UNEVEN]
    return []


def spread_scores(pod: Pod, machines: dict[str, Machine], world: World) -> dict[str, int]:
    soft = constraints(pod, world, hard=False)
    if not soft:
        return dict.fromkeys(machines, 0)
    is_listed = world.settings.told("PodTopologySpread").get("defaultingType") == "List"
    strict = bool(pod.spec.topology_spread_constraints) or is_listed
    keys = [one.topology_key for one in soft]
    counted = {
        name: machine
        for name, machine in machines.items()
        if not strict or all(key in machine.labels for key in keys)
    }
    raw = {
        name: floor(sum(fullness(one, pod, m, counted, world, strict, keys) for one in soft) + 0.5)
        for name, m in counted.items()
    }
    most, least = max(raw.values(), default=0), min(raw.values(), default=0)
    ranked = {n: 100 * (most + least - one) // most if most else 100 for n, one in raw.items()}
    return {name: ranked.get(name, 0) for name in machines}


def fullness(
    one: SpreadConstraint, pod: Pod, machine: Machine, counted: dict[str, Machine], world: World,
    strict: bool, keys: list[str],
) -> float:  # fmt: skip
    key = one.topology_key
    if key not in machine.labels:
        return 0.0
    if key == HOSTNAME:
        count, size = matching(one, pod, machine), len(counted)
    else:
        size = len({other.labels.get(key) for other in counted.values()})
        count = sum(
            matching(one, pod, other)
            for other in world.machines.values()
            if together(key, machine, other)
            and counts_for(one, pod, other)
            and (not strict or all(k in other.labels for k in keys))
        )
    return count * log(size + 2) + (one.max_skew - 1)
