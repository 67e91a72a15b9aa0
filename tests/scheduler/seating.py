"""Whether pods may be where they are put, all together, and whether that is enough of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from phalanx.api.core import Node, Pod
from phalanx.api.meta import Key
from phalanx.scheduler.decision import Binding
from phalanx.scheduler.entity import Entity
from tests.scheduler import oracle
from tests.scheduler.kinship import Kin
from tests.scheduler.machine import Machine, World


def seated(entity: Entity, world: World, bindings: Iterable[Binding]) -> Iterator[str]:
    """There is an order in which each pod may take its node, those before it being there."""
    pods = {member.pod.metadata.uid: member.pod for member in entity.members}
    left = list(bindings)
    while left:
        reasons = {uid: _reasons(world, pods, uid, node) for _, uid, node in left}
        ready = next((one for one in left if not reasons[one.uid]), None)
        if ready is None:
            key, uid, node = left[0]
            yield f"{key} may not be on {node}: {', '.join(reasons[uid])}"
            return
        world.machines[ready.node].add(pods[ready.uid])
        left.remove(ready)


def _reasons(world: World, pods: Mapping[str, Pod], uid: str, node: str) -> list[str]:
    if uid not in pods:
        return ["it is no member that waits"]
    machine = world.machines.get(node)
    return ["no such node"] if machine is None else oracle.refusals(pods[uid], machine, world)


def too_few(kin: Kin, entity: Entity, bindings: Iterable[Binding]) -> Iterator[str]:
    """Wherever somebody gets a node, his group has enough members, and so has all above it."""
    homes = {uid for _, uid, _ in bindings}
    new = Counter(m.pod.group for m in entity.members if m.pod.metadata.uid in homes)
    if not homes:
        yield "nobody would have a node"
    yield from _too_few(kin, entity, new)


def _too_few(kin: Kin, one: Entity, new: Mapping[Key | None, int]) -> Iterator[str]:
    if one.group is None or not any(new.get(leaf.key) for leaf in one.leaves):
        return
    if one.is_composite:
        there = sum(_suffices(kin, part, new) for part in one.parts)
        if there < one.quorum:
            yield f"only {there} of {one.quorum} groups of {one.key} would have what they need"
        for part in one.parts:
            yield from _too_few(kin, part, new)
    elif (there := kin.placed(one.key) + new.get(one.key, 0)) < one.quorum:
        yield f"only {there} of {one.quorum} would have a node"


def _suffices(kin: Kin, one: Entity, new: Mapping[Key | None, int]) -> bool:
    if one.is_composite:
        return sum(_suffices(kin, part, new) for part in one.parts) >= one.quorum
    return kin.placed(one.key) + new.get(one.key, 0) >= one.quorum


def scattered(
    kin: Kin, nodes: Iterable[Node], entity: Entity, bindings: Iterable[Binding]
) -> Iterator[str]:
    """Every group that names a topology has all its pods in one domain of it."""
    labels = {node.metadata.name: node.metadata.labels for node in nodes}
    homes = {uid: node for _, uid, node in bindings}
    for one in entity.groups:
        uids = [member.pod.metadata.uid for member in one.members]
        new = [homes[uid] for uid in uids if uid in homes]
        if one.topology and new:
            hosts = [*new, *kin.hosts(one)]
            domains = {labels.get(host, {}).get(one.topology) for host in hosts}
            if len(domains) > 1 or None in domains:
                yield "it would not be in one domain"


def domains(kin: Kin, nodes: Iterable[Node], one: Entity) -> list[str]:
    """The domains that all members of a group could be in."""
    labels = {node.metadata.name: node.metadata.labels for node in nodes}
    homes = {labels.get(host, {}).get(one.topology) for host in kin.hosts(one)}
    values = {found[one.topology] for found in labels.values() if one.topology in found}
    return sorted(value for value in values if not homes or value in homes)


def is_torn(kin: Kin, nodes: Iterable[Node], one: Entity) -> bool:
    """Whether the members of a group that have nodes are not in one domain."""
    labels = {node.metadata.name: node.metadata.labels for node in nodes}
    homes = {labels.get(host, {}).get(one.topology) for host in kin.hosts(one)}
    return bool(one.topology) and (len(homes) > 1 or None in homes)


def copied(world: World) -> World:
    """The same world, to try something out in."""
    machines = {
        name: Machine(m.node, m.room, list(m.pods), Counter(m.used), Counter(m.scored))
        for name, m in world.machines.items()
    }
    twin = World(machines, world.namespaces, world.services, world.settings)
    return twin.besides(copied(world.bare)) if world.bare else twin


def group_by_group(kin: Kin, one: Entity, world: World, inside: set[str]) -> bool | None:
    """Place what each group needs, one after the other; whether all of them get it, and anybody
    something. None: all have what they need without.
    """
    if not one.is_composite:
        return _leaf(kin, one, world, inside)
    found = [group_by_group(kin, part, world, inside) for part in one.parts]
    if not found or False in found:
        return False
    return True if True in found else None


def _leaf(kin: Kin, one: Entity, world: World, inside: set[str]) -> bool | None:
    before = kin.placed(one.key)
    if before >= one.quorum:
        return None
    draft = copied(world)
    within = {name: machine for name, machine in draft.machines.items() if name in inside}
    answer = oracle.place(one, draft, before, within)
    pods = {member.pod.metadata.name: member.pod for member in one.members}
    for name, node in list(answer.bindings.items())[: one.quorum - before]:
        world.machines[node].add(pods[name])
    return bool(answer.bindings)
