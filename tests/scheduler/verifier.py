"""Verifier: verifies a decision with the oracle, given the same cluster as plain objects.

The scheduler's caches, snapshots and scores are not read. The entity must equal the objects
(`group_membership.py`), every group must meet its quorum, the filters must allow every placement
(`placement_verifier.py`), and every victim must be necessary (`preemption_verifier.py`). A share of
the decisions is also compared with placing pod by pod, refusals included. Nominated pods of the
same or a higher priority count, but filters must allow a pod with and without them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator

from msgspec.structs import replace

from phalanx.api.core import Node, Pod
from phalanx.api.resources import node_allocatable, nonzero_requests, pod_requests, to_amount
from phalanx.scheduler.decision import Decision, Impossible, Placed, UnplacedPod, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.queue.scheduler_state import ClusterObjects
from tests.scheduler import oracle
from tests.scheduler import preemption_verifier as evictions
from tests.scheduler.group_membership import GroupMembership, entity_differences
from tests.scheduler.oracle_cluster import OracleCluster, OracleNode
from tests.scheduler.placement_verifier import (
    place_minimums,
    placement_violations,
    possible_domains,
    quorum_violations,
    spans_domains,
    topology_violations,
)


class Verifier:
    """Verifies every decision, and every `share`-th against the oracle's own decision."""

    def __init__(self, share: int = 1) -> None:
        self._share, self._number = share, 0
        self._reserved: frozenset[str] = frozenset()
        self.verified_counts: Counter[str] = Counter()
        self._amounts: dict[str, tuple[dict[str, int], dict[str, int]]] = {}

    def violations(
        self,
        seen: ClusterObjects,
        entity: Entity,
        decision: Decision,
        *,
        reserved: Collection[str] = (),
    ) -> list[str]:
        """Return what is wrong about a decision; empty if it is right.

        `reserved` are nodes with room that is kept for other entities.
        """
        self._number, self._reserved = self._number + 1, frozenset(reserved)
        self.verified_counts[type(decision).__name__] += 1
        membership = GroupMembership(seen)
        wrong = [
            *entity_differences(membership, entity, versions=True),
            *_impossible_violations(membership, list(seen.nodes), entity, decision),
        ]
        if not wrong and not isinstance(decision, Impossible):
            wrong = [*self._rule_violations(seen, membership, entity, decision)]
            if not wrong and self._number % self._share == 0:
                self.verified_counts["thoroughly"] += 1
                wrong = [*self._explanation_violations(seen, membership, entity, decision)]
        return [f"{entity.key}: {message}" for message in wrong]

    def fits(self, seen: ClusterObjects, entity: Entity) -> bool:
        """Whether placing pod by pod places the entity."""
        membership = GroupMembership(seen)
        if [*entity_differences(membership, entity, versions=False)]:
            return False
        if _is_inconsistent(entity) or spans_domains(membership, list(seen.nodes), entity):
            return False
        return bool(self._fits(seen, membership, entity))

    def _rule_violations(
        self, seen: ClusterObjects, membership: GroupMembership, entity: Entity, decision: Decision
    ) -> Iterator[str]:
        """Verify that bindings, nominations and victims are allowed and meet the quorum."""
        nodes = list(seen.nodes)
        if isinstance(decision, Placed):
            yield from quorum_violations(membership, entity, decision.bindings)
            yield from topology_violations(membership, nodes, entity, decision.bindings)
            yield from placement_violations(
                entity, self._oracle_cluster(seen, entity), decision.bindings
            )
        else:
            yield from evictions.preemption_violations(
                membership,
                nodes,
                entity,
                decision,
                lambda gone: self._oracle_cluster(seen, entity, gone),
            )

    def _explanation_violations(
        self, seen: ClusterObjects, membership: GroupMembership, entity: Entity, decision: Decision
    ) -> Iterator[str]:
        """Verify that the decision equals placing one pod at a time, in the chosen domain."""
        if isinstance(decision, Placed):
            yield from _unaccounted_members(entity, decision)
        if isinstance(decision, Waiting) and decision.held_by:
            if self._fits(seen, membership, entity) is False and not entity.topology_key:
                yield f"it is held by {decision.held_by}, but does not fit without that either"
            return
        if entity.is_composite:
            if not isinstance(decision, Placed) and self._fits(seen, membership, entity):
                yield "it is not placed, but group by group it would be"
        else:
            yield from self._pod_by_pod(seen, membership, entity, decision)
        yield from evictions.missed_preemption_violations(
            membership, entity, decision, lambda gone: self._fits(seen, membership, entity, gone)
        )

    def _pod_by_pod(
        self, seen: ClusterObjects, membership: GroupMembership, entity: Entity, decision: Decision
    ) -> Iterator[str]:
        bindings = decision.bindings if isinstance(decision, Placed) else ()
        found = {key.name: node for key, _, node in bindings}
        answers = list(self._answers(seen, membership, entity))
        if found and not any(answer.bindings for _, answer in answers):
            # Only the search finds this placement, and the filters allow it: verified before.
            return
        for inside, answer in answers:
            if found and not inside.keys() & set(found.values()):
                continue
            # The oracle knows neither what reservations keep from the entity nor which nominations
            # it ignores because its reservation comes first.
            if found != answer.bindings and not self._reserved & {*answer.bindings.values()}:
                yield f"it is placed on {found}, but pod by pod it would be on {answer.bindings}"
            if not entity.topology_key and not self._reserved:
                yield from _refusal_violations(decision, answer)
        if entity.group is None and isinstance(decision, Waiting):
            yield from self._cures(seen, entity, decision)

    def _fits(
        self,
        seen: ClusterObjects,
        membership: GroupMembership,
        entity: Entity,
        gone: Collection[str] = (),
    ) -> bool | None:
        """Whether placing pod by pod, or group by group, places the entity without some pods.

        None is for what is not decided here: its groups have topology constraints, or their
        minimums already, or only some of them are needed.
        """
        if not entity.is_composite:
            answers = self._answers(seen, membership, entity, gone)
            return any(answer.bindings for _, answer in answers)
        if any(one.topology_key for part in entity.children for one in part.groups):
            return None
        found = [
            place_minimums(membership, entity, world, inside)
            for world, inside in self._places(seen, membership, entity, gone)
        ]
        if True in found:
            return True
        return None if None in found or not _needs_all_children(entity) else False

    def _answers(
        self,
        seen: ClusterObjects,
        membership: GroupMembership,
        entity: Entity,
        gone: Collection[str] = (),
    ) -> Iterator[tuple[dict[str, OracleNode], oracle.OracleAnswer]]:
        """Yield the result of placing pod by pod in each domain that all members could be in."""
        before = membership.count_placed(entity.key) if entity.group else 0
        for world, names in self._places(seen, membership, entity, gone):
            inside = {name: one for name, one in world.nodes.items() if name in names}
            yield inside, oracle.place(entity, world, before, inside)

    def _places(
        self,
        seen: ClusterObjects,
        membership: GroupMembership,
        entity: Entity,
        gone: Collection[str],
    ) -> Iterator[tuple[OracleCluster, set[str]]]:
        """Yield a cluster for each domain that all members could be in, and its node names."""
        key = entity.topology_key
        for value in possible_domains(membership, list(seen.nodes), entity) if key else [None]:
            world = self._oracle_cluster(seen, entity, gone)
            machines = world.nodes.items()
            yield world, {n for n, one in machines if value is None or one.labels.get(key) == value}

    def _cures(self, seen: ClusterObjects, entity: Entity, decision: Waiting) -> Iterator[str]:
        """Verify that the cures of a pod without a group help, as far as they can be applied."""
        pod, (refused,) = entity.members[0].pod, decision.pods
        for cure in refused.refusal.cures if refused.refusal else ():
            for pattern, change in CURES:
                if match := re.fullmatch(pattern, cure):
                    self.verified_counts["cures"] += 1
                    world = self._oracle_cluster(seen, entity)
                    change(world, match)
                    reasons = oracle.refusals(pod, world.nodes[match["node"]], world)
                    # A node with another label is in another domain, with other peers.
                    if reasons and not (change is _label and _PEER_REASONS.search(reasons[0])):
                        yield f"to {cure} would not help: {', '.join(reasons)}"

    def _oracle_cluster(
        self, seen: ClusterObjects, entity: Entity, gone: Collection[str] = ()
    ) -> OracleCluster:
        """Build the cluster of the oracle without some pods, with and without nominated pods."""
        own = {member.pod.metadata.uid for member in entity.members}
        pods = [pod for pod in seen.pods if pod.metadata.uid not in gone]
        assigned = [(pod, pod.occupied_node) for pod in pods if pod.occupied_node]
        pending = [
            (pod, _nominated_node(pod, entity, own)) for pod in pods if not pod.occupied_node
        ]
        nominated = [(pod, node) for pod, node in pending if node]
        cluster = self._with_pods(seen, assigned)
        if not nominated:
            return cluster
        return self._with_pods(seen, assigned + nominated).with_alternative(cluster)

    def _with_pods(self, seen: ClusterObjects, pods: Iterable[tuple[Pod, str]]) -> OracleCluster:
        """Build the cluster of the oracle with these pods on these nodes."""
        machines = {
            node.metadata.name: OracleNode(node, node_allocatable(node)) for node in seen.nodes
        }
        for pod, node in pods:
            uid, machine = pod.metadata.uid, machines.get(node)
            if machine is not None:
                if uid not in self._amounts:
                    self._amounts[uid] = pod_requests(pod), nonzero_requests(pod)
                requested, nonzero_requested = self._amounts[uid]
                machine.pods.append(_terminating(pod) if uid in seen.evicting else pod)
                machine.requested.update(requested)
                machine.nonzero_requested.update(nonzero_requested)
        services = [(s.metadata.namespace, dict(s.spec.selector)) for s in seen.services]
        namespaces = {name: dict(labels) for name, labels in seen.namespaces.items()}
        return OracleCluster(dict(sorted(machines.items())), namespaces, services)


def _needs_all_children(entity: Entity) -> bool:
    """Whether no group of a tree may be missing."""
    return not entity.is_composite or (
        entity.quorum >= len(entity.children) and all(map(_needs_all_children, entity.children))
    )


def _terminating(pod: Pod) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, deletion_timestamp="soon"))


def _nominated_node(pod: Pod, entity: Entity, own: Collection[str]) -> str:
    """Return the nominated node of a pod if it counts for an entity; "" otherwise."""
    if pod.is_terminal or pod.metadata.uid in own or pod.spec.priority < entity.priority:
        return ""
    return pod.status.nominated_node_name


def _refusal_violations(decision: Decision, answer: oracle.OracleAnswer) -> Iterator[str]:
    """Verify the reasons of refused pods."""
    counts = {
        one.pod.name: dict(one.refusal.counts) for one in _unplaced_pods(decision) if one.refusal
    }
    for name, allowed in answer.refusals.items():
        if counts.get(name) not in allowed:
            yield f"{name} was refused for {counts.get(name)}, but the oracle has {allowed}"


def _impossible_violations(
    membership: GroupMembership, nodes: list[Node], entity: Entity, decision: Decision
) -> Iterator[str]:
    """Verify that exactly inconsistent entities are Impossible.

    An inconsistent group of a tree is only found when it is placed.
    """
    must = _is_inconsistent(entity) or spans_domains(membership, nodes, entity)
    may = must or any(spans_domains(membership, nodes, one) for one in entity.groups)
    is_impossible = isinstance(decision, Impossible)
    if (is_impossible and not may) or (must and not is_impossible):
        yield f"the decision must not be {type(decision).__name__}"


def _is_inconsistent(entity: Entity) -> bool:
    """Whether members differ from their group in scheduler, priority or preemption policy."""
    if entity.group is None:
        return False
    spec, pods = entity.group.spec, [*(m.pod for m in entity.members), *entity.other_members]
    values = {(p.spec.scheduler_name, p.spec.priority, p.spec.preemption_policy) for p in pods}
    return values != {(pods[0].spec.scheduler_name, spec.priority, spec.preemption_policy)}


def _unaccounted_members(entity: Entity, decision: Placed) -> Iterator[str]:
    """Verify that every member without a node has a reason."""
    accounted = {uid for _, uid, _ in decision.bindings}
    accounted |= {one.uid for one in decision.leftovers}
    for part in decision.parts:
        accounted |= {one.uid for one in part.waiting.pods} if part.waiting else set()
    for member in entity.members:
        if member.pod.metadata.uid not in accounted:
            yield f"{member.pod.metadata.key} has neither a node nor a reason"


def _unplaced_pods(decision: Decision) -> tuple[UnplacedPod, ...]:
    return decision.leftovers if isinstance(decision, Placed) else decision.pods


def _change(cluster: OracleCluster, name: str, change: Callable[[Node], Node]) -> None:
    for machine in _versions(cluster, name):
        machine.node = change(machine.node)


def _versions(cluster: OracleCluster, name: str) -> list[OracleNode]:
    """Return a node with and without nominated pods."""
    machine = cluster.nodes[name]
    return [one for one in (machine, machine.without_nominated) if one]


def _uncordon(cluster: OracleCluster, match: re.Match[str]) -> None:
    _change(cluster, match["node"], lambda n: replace(n, spec=replace(n.spec, unschedulable=False)))


def _untaint(cluster: OracleCluster, match: re.Match[str]) -> None:
    _change(cluster, match["node"], lambda n: replace(n, spec=replace(n.spec, taints=())))


def _label(cluster: OracleCluster, match: re.Match[str]) -> None:
    labels = dict(pair.split("=") for pair in match["labels"].split(", "))

    def add_labels(node: Node) -> Node:
        meta = node.metadata
        return replace(node, metadata=replace(meta, labels=meta.labels | labels))

    _change(cluster, match["node"], add_labels)


def _add_capacity(cluster: OracleCluster, match: re.Match[str]) -> None:
    for machine in _versions(cluster, match["node"]):
        for need in match["amounts"].split(", "):
            name, quantity = need.split(" ")
            machine.allocatable[name] = machine.allocatable.get(name, 0) + to_amount(name, quantity)


_PEER_REASONS = re.compile("affinity rules|topology spread")
#: The cures of a refusal that can be applied.
CURES: tuple[tuple[str, Callable[[OracleCluster, re.Match[str]], None]], ...] = (
    (r"uncordon node (?P<node>\S+)", _uncordon),
    (r"tolerate .* of node (?P<node>\S+), or remove it", _untaint),
    (r"label node (?P<node>\S+) with (?P<labels>\S+=.*)", _label),
    (r"free or add (?P<amounts>.*) on node (?P<node>\S+)", _add_capacity),
)
