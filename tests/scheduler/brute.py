"""Brute force: whether a group can be placed, by trying everything pod by pod."""

from __future__ import annotations

from phalanx.api.core import Pod
from phalanx.api.resources import pod_requests, scored_requests
from phalanx.scheduler.entity import Entity
from tests.scheduler import oracle
from tests.scheduler.machine import Machine, World

#: Where the members of each sort are, as sorted names of nodes.
State = tuple[tuple[str, ...], ...]


def can_be_placed(entity: Entity, world: World, needed: int) -> bool:
    """Whether so many members can be put on nodes one after the other, in any order at all."""
    key = entity.topology
    if not key:
        return _Player(entity, world, world.machines).can_place(needed)
    racks = {m.labels[key] for m in world.machines.values() if key in m.labels}
    return any(
        _Player(entity, world, _inside(world, key, rack)).can_place(needed)
        for rack in sorted(racks)
    )


def _inside(world: World, key: str, value: str) -> dict[str, Machine]:
    return {name: m for name, m in world.machines.items() if m.labels.get(key) == value}


class _Player:
    """Tries everything; where a position came about in another way before, once is enough."""

    def __init__(self, entity: Entity, world: World, machines: dict[str, Machine]) -> None:
        self._world, self._machines = world, machines
        sorts: dict[tuple[object, ...], list[Pod]] = {}
        for member in entity.members:
            meta = member.pod.metadata
            sort = (member.shape, meta.namespace, *sorted(meta.labels.items()))
            sorts.setdefault(sort, []).append(member.pod)
        self._sorts = list(sorts.values())
        self._seen: set[State] = set()

    def can_place(self, needed: int) -> bool:
        return self._goes_on(tuple(() for _ in self._sorts), needed)

    def _goes_on(self, state: State, needed: int) -> bool:
        if sum(map(len, state)) >= needed:
            return True
        if state in self._seen:
            return False
        self._seen.add(state)
        for number, pods in enumerate(self._sorts):
            if len(state[number]) == len(pods):
                continue
            pod = pods[len(state[number])]
            for name, machine in self._machines.items():
                if oracle.refusals(pod, machine, self._world):
                    continue
                machine.add(pod)
                after = (
                    *state[:number],
                    tuple(sorted((*state[number], name))),
                    *state[number + 1 :],
                )
                found = self._goes_on(after, needed)
                _remove(machine, pod)
                if found:
                    return True
        return False


def _remove(machine: Machine, pod: Pod) -> None:
    machine.pods.remove(pod)
    machine.used.subtract(pod_requests(pod))
    machine.scored.subtract(scored_requests(pod))
