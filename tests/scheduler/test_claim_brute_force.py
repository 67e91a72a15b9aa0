"""Small gangs with shared devices, own devices and pinned volumes, against every placement.

Nodes are in two racks; devices are reached from one node, from a rack or from everywhere. A gang
that is placed has room and devices. A gang that is refused as Unschedulable has no placement at
all; one that is undecided may have one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import permutations, product
from random import Random
from typing import Any

import pytest

from phalanx.controllers.scheduling.exact_solver import HighsSolver
from phalanx.scheduler.cycle import run_steps
from phalanx.scheduler.decision import UNSCHEDULABLE, Placed, Waiting
from phalanx.scheduler.queue.scheduler_state import ClusterObjects, load_state
from phalanx.scheduler.volumes.state import VolumeObject
from tests.scheduler.device_builders import (
    claim,
    device_class,
    gang,
    gpus,
    node,
    pod,
    resource_slice,
)
from tests.scheduler.volume_builders import bound_pair

#: Instances that were refused although there is a placement.
REGRESSIONS = (129, 189, 351, 417, 556, 566, 634, 1053, 1082, 1279)
SOLVER = HighsSolver()


@dataclass(slots=True)
class ClaimInstance:
    """A random gang and cluster."""

    nodes: dict[str, tuple[int, str]] = field(default_factory=dict)
    #: For every device: the nodes that reach it.
    reaches: list[frozenset[str]] = field(default_factory=list)
    #: For every member: whether it uses the shared claim, has its own, and the node of its volume.
    members: list[tuple[bool, bool, str]] = field(default_factory=list)
    slices: list[Any] = field(default_factory=list)
    has_topology: bool = False

    def place_by_hand(self) -> bool:
        """Whether some assignment of nodes and devices keeps every rule."""
        for chosen in product(self.nodes, repeat=len(self.members)):
            if self.has_topology and len({self.nodes[name][1] for name in chosen}) > 1:
                continue
            if any(chosen.count(name) > room for name, (room, _) in self.nodes.items()):
                continue
            pairs = list(zip(self.members, chosen, strict=True))
            if any(pin not in ("", name) for (_, _, pin), name in pairs):
                continue
            shared = {name for (is_sharing, _, _), name in pairs if is_sharing}
            wanted = [shared] if shared else []
            wanted += [{name} for (_, has_own, _), name in pairs if has_own]
            for devices in permutations(self.reaches, len(wanted)):
                if all(one <= reach for one, reach in zip(wanted, devices, strict=True)):
                    return True
        return False


def generate(seed: int) -> ClaimInstance:
    random, found = Random(seed), ClaimInstance()
    names = [f"n{number + 1}" for number in range(random.randint(2, 4))]
    racks = {name: random.choice("ab") for name in names}
    found.nodes = {name: (random.randint(1, 3), racks[name]) for name in names}
    for number in range(random.randint(1, 5)):
        sort, devices = random.choice(["node", "node", "rack", "all"]), gpus(random.randint(1, 2))
        labels: dict[str, Any] = {"name": f"s{number}", "pool": f"p{number}"}
        if sort == "node":
            reach = {random.choice(names)}
            found.slices.append(resource_slice(next(iter(reach)), devices, **labels))
        elif sort == "rack":
            rack = random.choice("ab")
            reach = {name for name in names if racks[name] == rack}
            term = {"matchExpressions": [{"key": "rack", "operator": "In", "values": [rack]}]}
            selector = {"nodeSelectorTerms": [term]}
            found.slices.append(resource_slice("", devices, nodeSelector=selector, **labels))
        else:
            reach = set(names)
            found.slices.append(resource_slice("", devices, allNodes=True, **labels))
        found.reaches += [frozenset(reach)] * len(devices)
    is_shared = random.random() < 0.8
    for _ in range(random.randint(2, 3)):
        is_sharing, has_own = is_shared and random.random() < 0.85, random.random() < 0.35
        pin = random.choice(names) if random.random() < 0.4 else ""
        found.members.append((is_sharing, has_own, pin))
    found.has_topology = random.random() < 0.6
    return found


def check_decision(instance: ClaimInstance) -> None:
    """Decide about the gang; the decision must agree with the enumeration."""
    spec: dict[str, Any] = {}
    if any(is_sharing for is_sharing, _, _ in instance.members):
        spec["resourceClaims"] = [{"name": "entry-net", "resourceClaimName": "net"}]
    if instance.has_topology:
        spec["schedulingConstraints"] = {"topology": [{"key": "rack"}]}
    pods, claims, volumes = [], [claim("net")], list[VolumeObject]()
    for number, (is_sharing, has_own, pin) in enumerate(instance.members):
        used = ["net"] * is_sharing + [f"own-{number}"] * has_own
        claims += [claim(f"own-{number}")] * has_own
        mounted = []
        if pin:
            volumes += bound_pair(f"data-{number}", nodes=[pin])
            source = {"claimName": f"data-{number}"}
            mounted = [{"name": "data", "persistentVolumeClaim": source}]
        pods.append(pod(f"m{number}", *used, group="g", volumes=mounted))
    state = load_state(
        ClusterObjects(
            [node(name, cpu, rack=rack) for name, (cpu, rack) in instance.nodes.items()],
            [gang("g", len(pods), **spec)],
            pods,
            devices=[device_class(), *instance.slices, *claims],
            volumes=volumes,
        )
    )
    entity = state.pop(0.0)
    assert entity is not None
    decision = run_steps(state.cycle(entity), SOLVER)
    exists = instance.place_by_hand()
    if isinstance(decision, Placed):
        assert exists
    else:
        assert isinstance(decision, Waiting)
        assert not (exists and decision.reason == UNSCHEDULABLE)


def test_refused_gangs_have_no_placement() -> None:
    for seed in (*REGRESSIONS, *range(40)):
        check_decision(generate(seed))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 2000, 500))
def test_many_refused_gangs_have_no_placement(first: int) -> None:
    for seed in range(first, first + 500):
        check_decision(generate(seed))
