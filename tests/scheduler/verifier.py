"""Judges a decision by the oracle, given the same cluster as plain objects.

Whatever the scheduler's caches, snapshots and views made of the cluster is not looked at: the
entity must be what the objects say (`kinship.py`), the quorum must be met at every level, every
placement must be allowed (`seating.py`), whoever is evicted must have to go (`evictions.py`); and,
where there is time for it, what is decided must be what placing pod by pod gives, with the same
refusals. What others were promised counts as taken for whoever is not more important, but nobody
may be where he may only be because they will come: he must be allowed with them and without.
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
from phalanx.scheduler.queue.cluster_objects import ClusterObjects
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
    """Checks every decision; every `share`-th against all that the oracle has to say."""

    def __init__(self, share: int = 1) -> None:
        self._share, self._number = share, 0
        self.judged: Counter[str] = Counter()
        self._amounts: dict[str, tuple[dict[str, int], dict[str, int]]] = {}

    def violations(self, seen: ClusterObjects, entity: Entity, decision: Decision) -> list[str]:
        """What is wrong about a decision; nothing, if it is right."""
        self._number += 1
        self.judged[type(decision).__name__] += 1
        kin = GroupMembership(seen)
        wrong = [
            *entity_differences(kin, entity, versions=True),
            *_impossible_violations(kin, list(seen.nodes), entity, decision),
        ]
        if not wrong and not isinstance(decision, Impossible):
            wrong = [*self._rule_violations(seen, kin, entity, decision)]
            if not wrong and self._number % self._share == 0:
                self.judged["thoroughly"] += 1
                wrong = [*self._explanation_violations(seen, kin, entity, decision)]
        return [f"{entity.key}: {sentence}" for sentence in wrong]

    def fits(self, seen: ClusterObjects, entity: Entity) -> bool:
        """Whether placing pod by pod places it."""
        kin = GroupMembership(seen)
        if [*entity_differences(kin, entity, versions=False)]:
            return False
        if _is_inconsistent(entity) or spans_domains(kin, list(seen.nodes), entity):
            return False
        return bool(self._fits(seen, kin, entity))

    def _rule_violations(
        self, seen: ClusterObjects, membership: GroupMembership, entity: Entity, decision: Decision
    ) -> Iterator[str]:
        """Whoever gets a node, or is promised one, may be there, and enough do; so may who goes."""
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
        """The decision is that of placing one pod at a time, in the domain that was chosen."""
        if isinstance(decision, Placed):
            yield from _unaccounted_members(entity, decision)
        if entity.is_composite:
            if not isinstance(decision, Placed) and self._fits(seen, membership, entity):
                yield "it gets nothing, but group by group it would be placed"
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
            # Pod by pod it would not be placed; that it may be where it is was judged already.
            return
        for inside, answer in answers:
            if found and not inside.keys() & set(found.values()):
                continue
            if found != answer.bindings:
                yield f"it is placed on {found}, but pod by pod it would be on {answer.bindings}"
            if not entity.topology_key:
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
        """Whether placing pod by pod, or group by group, places it if some pods are gone. None:
        its groups choose among places, and which is best is not asked here.
        """
        if not entity.is_composite:
            answers = self._answers(seen, membership, entity, gone)
            return any(answer.bindings for _, answer in answers)
        if any(one.topology_key for part in entity.children for one in part.groups):
            return None
        return any(
            place_minimums(membership, entity, world, inside)
            for world, inside in self._places(seen, membership, entity, gone)
        )

    def _answers(
        self,
        seen: ClusterObjects,
        membership: GroupMembership,
        entity: Entity,
        gone: Collection[str] = (),
    ) -> Iterator[tuple[dict[str, OracleNode], oracle.OracleAnswer]]:
        """What placing pod by pod comes to: in each domain that all members could be in."""
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
        """A world for each domain that all members could be in, and the nodes of that domain."""
        key = entity.topology_key
        for value in possible_domains(membership, list(seen.nodes), entity) if key else [None]:
            world = self._oracle_cluster(seen, entity, gone)
            machines = world.nodes.items()
            yield world, {n for n, one in machines if value is None or one.labels.get(key) == value}

    def _cures(self, seen: ClusterObjects, entity: Entity, decision: Waiting) -> Iterator[str]:
        """What is said to let a pod alone in does, where that can be tried out."""
        pod, (refused,) = entity.members[0].pod, decision.pods
        for cure in refused.refusal.cures if refused.refusal else ():
            for pattern, change in CURES:
                if match := re.fullmatch(pattern, cure):
                    self.judged["cures"] += 1
                    world = self._oracle_cluster(seen, entity)
                    change(world, match)
                    reasons = oracle.refusals(pod, world.nodes[match["node"]], world)
                    # A node with another label is in another domain, where others may object.
                    if reasons and not (change is _label and _PEER_REASONS.search(reasons[0])):
                        yield f"to {cure} would not help: {', '.join(reasons)}"

    def _oracle_cluster(
        self, seen: ClusterObjects, entity: Entity, gone: Collection[str] = ()
    ) -> OracleCluster:
        """The oracle's cluster, without some pods, with and without those who have a claim that
        counts.
        """
        own = {member.pod.metadata.uid for member in entity.members}
        left = [pod for pod in seen.pods if pod.metadata.uid not in gone]
        homes = [(pod, pod.occupied_node) for pod in left if pod.occupied_node]
        waiting = [
            (pod, _nominated_node(pod, entity, own)) for pod in left if not pod.occupied_node
        ]
        claims = [(pod, node) for pod, node in waiting if node]
        bare = self._with_pods(seen, homes)
        return self._with_pods(seen, homes + claims).with_alternative(bare) if claims else bare

    def _with_pods(self, seen: ClusterObjects, homes: Iterable[tuple[Pod, str]]) -> OracleCluster:
        """The oracle's cluster with these pods on these nodes."""
        machines = {
            node.metadata.name: OracleNode(node, node_allocatable(node)) for node in seen.nodes
        }
        for pod, node in homes:
            uid, machine = pod.metadata.uid, machines.get(node)
            if machine is not None:
                if uid not in self._amounts:
                    self._amounts[uid] = pod_requests(pod), nonzero_requests(pod)
                used, scored = self._amounts[uid]
                machine.pods.append(_leaving(pod) if uid in seen.evicting else pod)
                machine.requested.update(used)
                machine.nonzero_requested.update(scored)
        services = [(s.metadata.namespace, dict(s.spec.selector)) for s in seen.services]
        spaces = {name: dict(labels) for name, labels in seen.namespaces.items()}
        return OracleCluster(dict(sorted(machines.items())), spaces, services)


def _leaving(pod: Pod) -> Pod:
    """A pod that is as good as being deleted."""
    return replace(pod, metadata=replace(pod.metadata, deletion_timestamp="soon"))


def _nominated_node(pod: Pod, entity: Entity, own: Collection[str]) -> str:
    """The node that is kept for a pod, if that concerns an entity."""
    if pod.is_terminal or pod.metadata.uid in own or pod.spec.priority < entity.priority:
        return ""
    return pod.status.nominated_node_name


def _refusal_violations(decision: Decision, answer: oracle.OracleAnswer) -> Iterator[str]:
    """Who is refused is refused for what is true."""
    said = {
        one.pod.name: dict(one.refusal.counts) for one in _unplaced_pods(decision) if one.refusal
    }
    for name, allowed in answer.refusals.items():
        if said.get(name) not in allowed:
            yield f"{name} was refused for {said.get(name)}, but true is {allowed}"


def _impossible_violations(
    membership: GroupMembership, nodes: list[Node], entity: Entity, decision: Decision
) -> Iterator[str]:
    """Impossible is what contradicts itself, and nothing else. Groups of a tree that contradict
    themselves are noticed when it is their turn.
    """
    must = _is_inconsistent(entity) or spans_domains(membership, nodes, entity)
    may = must or any(spans_domains(membership, nodes, one) for one in entity.groups)
    said = isinstance(decision, Impossible)
    if (said and not may) or (must and not said):
        yield f"{type(decision).__name__} is the wrong word for it"


def _is_inconsistent(entity: Entity) -> bool:
    """Whether its members are not of one scheduler, priority and policy, as its group says."""
    if entity.group is None:
        return False
    spec, pods = entity.group.spec, [*(m.pod for m in entity.members), *entity.other_members]
    alike = {(p.spec.scheduler_name, p.spec.priority, p.spec.preemption_policy) for p in pods}
    return alike != {(pods[0].spec.scheduler_name, spec.priority, spec.preemption_policy)}


def _unaccounted_members(entity: Entity, decision: Placed) -> Iterator[str]:
    """Whoever gets no node is told why."""
    told = {uid for _, uid, _ in decision.bindings}
    told |= {one.uid for one in decision.leftovers}
    for part in decision.parts:
        told |= {one.uid for one in part.waiting.pods} if part.waiting else set()
    for member in entity.members:
        if member.pod.metadata.uid not in told:
            yield f"{member.pod.metadata.key} gets no node and is not told why"


def _unplaced_pods(decision: Decision) -> tuple[UnplacedPod, ...]:
    return decision.leftovers if isinstance(decision, Placed) else decision.pods


def _change(cluster: OracleCluster, name: str, change: Callable[[Node], Node]) -> None:
    for machine in _versions(cluster, name):
        machine.node = change(machine.node)


def _versions(cluster: OracleCluster, name: str) -> list[OracleNode]:
    """A node with those who were promised a place on it, and without."""
    machine = cluster.nodes[name]
    return [one for one in (machine, machine.without_nominated) if one]


def _uncordon(cluster: OracleCluster, match: re.Match[str]) -> None:
    _change(cluster, match["node"], lambda n: replace(n, spec=replace(n.spec, unschedulable=False)))


def _untaint(cluster: OracleCluster, match: re.Match[str]) -> None:
    _change(cluster, match["node"], lambda n: replace(n, spec=replace(n.spec, taints=())))


def _label(cluster: OracleCluster, match: re.Match[str]) -> None:
    more = dict(pair.split("=") for pair in match["labels"].split(", "))

    def labelled(node: Node) -> Node:
        meta = node.metadata
        return replace(node, metadata=replace(meta, labels=meta.labels | more))

    _change(cluster, match["node"], labelled)


def _make_room(cluster: OracleCluster, match: re.Match[str]) -> None:
    for machine in _versions(cluster, match["node"]):
        for need in match["amounts"].split(", "):
            name, quantity = need.split(" ")
            machine.allocatable[name] = machine.allocatable.get(name, 0) + to_amount(name, quantity)


_PEER_REASONS = re.compile("affinity rules|topology spread")
#: What can be tried out of what a refusal says would help.
CURES: tuple[tuple[str, Callable[[OracleCluster, re.Match[str]], None]], ...] = (
    (r"uncordon node (?P<node>\S+)", _uncordon),
    (r"tolerate .* of node (?P<node>\S+), or remove it", _untaint),
    (r"label node (?P<node>\S+) with (?P<labels>\S+=.*)", _label),
    (r"free or add (?P<amounts>.*) on node (?P<node>\S+)", _make_room),
)
