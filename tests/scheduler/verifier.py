"""Judges a decision by the oracle, given the same cluster as plain objects.

Whatever the scheduler's caches, snapshots and views made of the cluster is not looked at: the
entity must be what the objects say, the quorum must be met, every placement must be allowed, and,
where there is time for it, be the very one that placing pod by pod gives, with the same refusals.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from phalanx.api.core import DEFAULT_SCHEDULER, Node, Pod
from phalanx.api.resources import amount, node_room, pod_requests, scored_requests
from phalanx.scheduler.decision import Decision, Impossible, Placed, Refused, Waiting
from phalanx.scheduler.diagnosis import Cluster
from phalanx.scheduler.entity import Entity
from tests.scheduler import oracle
from tests.scheduler.machine import Machine, World


class Verifier:
    """Checks every decision; every `share`-th against all that the oracle has to say."""

    def __init__(self, share: int = 1) -> None:
        self._share, self._number = share, 0
        self.judged: Counter[str] = Counter()
        self._amounts: dict[str, tuple[dict[str, int], dict[str, int]]] = {}

    def objections(self, seen: Cluster, entity: Entity, decision: Decision) -> list[str]:
        """What is wrong about a decision; nothing, if it is right."""
        self._number += 1
        self.judged[type(decision).__name__] += 1
        wrong = [*_entity(seen, entity), *_possibility(seen, entity, decision)]
        if not wrong and not isinstance(decision, Impossible):
            wrong = [*self._placement(seen, entity, decision)]
            if not wrong and self._number % self._share == 0:
                self.judged["thoroughly"] += 1
                wrong = [*self._meaning(seen, entity, decision)]
        return [f"{entity.key}: {sentence}" for sentence in wrong]

    def fits(self, seen: Cluster, entity: Entity) -> bool:
        """Whether placing pod by pod places it."""
        if [*_entity(seen, entity, versions=False)] or _is_impossible(seen, entity):
            return False
        return any(answer.bindings for _, answer in self._answers(seen, entity))

    def _placement(self, seen: Cluster, entity: Entity, decision: Decision) -> Iterator[str]:
        """The quorum is met, and every pod may be where it is put, one after the other."""
        if not isinstance(decision, Placed):
            return
        placed = _scheduled(seen, entity) + len(decision.bindings)
        if placed < entity.quorum:
            yield f"only {placed} of {entity.quorum} would have a node"
        labels = {node.metadata.name: node.metadata.labels for node in seen.nodes}
        domains = {labels.get(node, {}).get(entity.topology) for _, _, node in decision.bindings}
        if entity.topology and (len(domains | _homes(seen, entity)) > 1 or None in domains):
            yield "it would not be in one domain"
        world, pods = self._world(seen), {m.pod.metadata.uid: m.pod for m in entity.members}
        for key, uid, node in decision.bindings:
            machine = world.machines.get(node)
            reasons = (
                ["no such node"] if machine is None else oracle.refusals(pods[uid], machine, world)
            )
            if reasons or machine is None:
                yield f"{key} may not be on {node}: {', '.join(reasons)}"
            else:
                machine.add(pods[uid])

    def _meaning(self, seen: Cluster, entity: Entity, decision: Decision) -> Iterator[str]:
        """The decision is that of placing one pod at a time, in the domain that was chosen."""
        bindings = decision.bindings if isinstance(decision, Placed) else ()
        found = {key.name: node for key, _, node in bindings}
        answers = list(self._answers(seen, entity))
        if found and not any(answer.bindings for _, answer in answers):
            # Pod by pod it would not be placed; that it may be where it is was judged already.
            return
        for inside, answer in answers:
            if found and not inside.keys() & set(found.values()):
                continue
            if found != answer.bindings:
                yield f"it is placed on {found}, but pod by pod it would be on {answer.bindings}"
            if not entity.topology:
                yield from _refusals(decision, answer)
        if entity.group is None and isinstance(decision, Waiting):
            yield from self._cures(seen, entity, decision)

    def _answers(
        self, seen: Cluster, entity: Entity
    ) -> Iterator[tuple[dict[str, Machine], oracle.Answer]]:
        """What placing pod by pod comes to: in each domain that all members could be in."""
        for value in _domains(seen, entity) if entity.topology else [None]:
            world = self._world(seen)
            inside = {
                name: machine
                for name, machine in world.machines.items()
                if value is None or machine.labels.get(entity.topology) == value
            }
            yield inside, oracle.place(entity, world, _scheduled(seen, entity), inside)

    def _cures(self, seen: Cluster, entity: Entity, decision: Waiting) -> Iterator[str]:
        """What is said to let a pod alone in does, where that can be tried out."""
        pod, (refused,) = entity.members[0].pod, decision.pods
        for cure in refused.refusal.cures if refused.refusal else ():
            for pattern, change in CURES:
                if match := re.fullmatch(pattern, cure):
                    self.judged["cures"] += 1
                    world = self._world(seen)
                    change(world, match)
                    reasons = oracle.refusals(pod, world.machines[match["node"]], world)
                    # A node with another label is in another domain, where others may object.
                    if reasons and not (change is _label and _COMPANY.search(reasons[0])):
                        yield f"to {cure} would not help: {', '.join(reasons)}"

    def _world(self, seen: Cluster) -> World:
        """The oracle's cluster; what pods ask for is read once for each."""
        machines = {node.metadata.name: Machine(node, node_room(node)) for node in seen.nodes}
        for pod in seen.pods:
            machine = machines.get(pod.node)
            if machine is not None:
                uid = pod.metadata.uid
                if uid not in self._amounts:
                    self._amounts[uid] = pod_requests(pod), scored_requests(pod)
                used, scored = self._amounts[uid]
                machine.pods.append(pod)
                machine.used.update(used)
                machine.scored.update(scored)
        services = [(s.metadata.namespace, dict(s.spec.selector)) for s in seen.services]
        spaces = {name: dict(labels) for name, labels in seen.namespaces.items()}
        return World(dict(sorted(machines.items())), spaces, services)


def _refusals(decision: Decision, answer: oracle.Answer) -> Iterator[str]:
    """Who is refused is refused for what is true."""
    said = {one.pod.name: dict(one.refusal.counts) for one in _left(decision) if one.refusal}
    for name, allowed in answer.refusals.items():
        if said.get(name) not in allowed:
            yield f"{name} was refused for {said.get(name)}, but true is {allowed}"


def _possibility(seen: Cluster, entity: Entity, decision: Decision) -> Iterator[str]:
    """Impossible is what contradicts itself, and nothing else."""
    if _is_impossible(seen, entity) is not isinstance(decision, Impossible):
        yield f"{type(decision).__name__} is the wrong word for it"


def _is_impossible(seen: Cluster, entity: Entity) -> bool:
    if entity.group is None:
        return False
    spec, pods = entity.group.spec, [*(m.pod for m in entity.members), *entity.others]
    alike = {(p.spec.scheduler_name, p.spec.priority, p.spec.preemption_policy) for p in pods}
    if alike != {(pods[0].spec.scheduler_name, spec.priority, spec.preemption_policy)}:
        return True
    homes = _homes(seen, entity)
    return bool(entity.topology) and (len(homes) > 1 or None in homes)


def _homes(seen: Cluster, entity: Entity) -> set[str | None]:
    """The domains that members with a node are in."""
    labels = {node.metadata.name: node.metadata.labels for node in seen.nodes}
    mine = [p for p in seen.pods if p.group == entity.key and p.node and _is_alive(p)]
    return {labels.get(pod.node, {}).get(entity.topology) for pod in mine}


def _domains(seen: Cluster, entity: Entity) -> list[str]:
    """The domains that all members of a group could be in."""
    homes, key = _homes(seen, entity), entity.topology
    values = {node.metadata.labels[key] for node in seen.nodes if key in node.metadata.labels}
    return sorted(value for value in values if not homes or value in homes)


def _entity(seen: Cluster, entity: Entity, *, versions: bool = True) -> Iterator[str]:
    """The entity is what the objects say: its group, all members that wait, all that do not."""
    if entity.group is None:
        mine = [pod for pod in seen.pods if pod.metadata.key == entity.key and pod.group is None]
    else:
        mine = [pod for pod in seen.pods if pod.group == entity.key and _is_alive(pod)]
        group = next((g for g in seen.groups if g.metadata.key == entity.key), None)
        if group is None or group.spec != entity.group.spec:
            yield "its group is another one"
    waiting = {_version(pod, versions) for pod in mine if _is_alive(pod) and _waits(pod)}
    others = {pod.metadata.uid for pod in mine if not _waits(pod)} if entity.group else set()
    if waiting != {_version(member.pod, versions) for member in entity.members}:
        yield "its pending members are others than those that wait"
    if others != {pod.metadata.uid for pod in entity.others}:
        yield "its other members are others than those that are there"
    if any(member.pod.spec.scheduling_gates for member in entity.members):
        yield "it was tried although a gate holds it back"
    if entity.group and len(mine) < entity.quorum:
        yield f"it was tried although only {len(mine)} of {entity.quorum} members are there"


def _version(pod: Pod, exact: bool) -> tuple[str, str]:
    return pod.metadata.uid, pod.metadata.resource_version if exact else ""


def _waits(pod: Pod) -> bool:
    return not pod.spec.node_name and pod.spec.scheduler_name == DEFAULT_SCHEDULER


def _is_alive(pod: Pod) -> bool:
    return not pod.ended and not pod.metadata.deletion_timestamp


def _scheduled(seen: Cluster, entity: Entity) -> int:
    """How many live members have a node already."""
    if entity.group is None:
        return 0
    return sum(p.group == entity.key and bool(p.node) and _is_alive(p) for p in seen.pods)


def _left(decision: Decision) -> tuple[Refused, ...]:
    return decision.leftovers if isinstance(decision, Placed) else decision.pods


def _change(world: World, name: str, change: Callable[[Node], Node]) -> None:
    machine = world.machines[name]
    machine.node = change(machine.node)


def _uncordon(world: World, match: re.Match[str]) -> None:
    _change(world, match["node"], lambda n: replace(n, spec=replace(n.spec, unschedulable=False)))


def _untaint(world: World, match: re.Match[str]) -> None:
    _change(world, match["node"], lambda n: replace(n, spec=replace(n.spec, taints=())))


def _label(world: World, match: re.Match[str]) -> None:
    more = dict(pair.split("=") for pair in match["labels"].split(", "))

    def labelled(node: Node) -> Node:
        meta = node.metadata
        return replace(node, metadata=replace(meta, labels=meta.labels | more))

    _change(world, match["node"], labelled)


def _make_room(world: World, match: re.Match[str]) -> None:
    room = world.machines[match["node"]].room
    for need in match["amounts"].split(", "):
        name, quantity = need.split(" ")
        room[name] = room.get(name, 0) + amount(name, quantity)


_COMPANY = re.compile("affinity rules|topology spread")
#: What can be tried out of what a refusal says would help.
CURES: tuple[tuple[str, Callable[[World, re.Match[str]], None]], ...] = (
    (r"uncordon node (?P<node>\S+)", _uncordon),
    (r"tolerate .* of node (?P<node>\S+), or remove it", _untaint),
    (r"label node (?P<node>\S+) with (?P<labels>\S+=.*)", _label),
    (r"free or add (?P<amounts>.*) on node (?P<node>\S+)", _make_room),
)
