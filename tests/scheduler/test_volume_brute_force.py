"""Volumes of small gangs against every assignment of nodes and volumes.

Families: local volumes, volumes of zones, volumes of all nodes, provisioning, claims that members
share, ReadWriteOncePod claims and attach limits. A gang that is placed keeps every rule. A gang
that is refused as Unschedulable has no placement at all; one that is undecided may have one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from random import Random
from typing import Any

import pytest

from phalanx.api.core import Node, Pod
from phalanx.api.meta import Key
from phalanx.api.storage import (
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    volume_keys_of,
)
from phalanx.controllers.scheduling.exact_solver import HighsSolver
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import UNDECIDED, UNSCHEDULABLE, Placed, Waiting
from phalanx.scheduler.policy import DEFAULT_POLICY
from phalanx.scheduler.queue.scheduler_state import ClusterObjects, load_state
from phalanx.scheduler.volumes.state import VolumeObject
from tests.scheduler.builders import gang
from tests.scheduler.volume_builders import (
    HOST,
    claiming_pod,
    csi_node,
    csi_volume,
    host,
    storage_class,
    volume,
    volume_claim,
)

Nodes = Mapping[str, str]
Volumes = Mapping[str, str]


@dataclass
class Instance:
    """A gang whose members all must be placed, and a cluster without other pods."""

    nodes: list[Node]
    objects: list[VolumeObject]
    members: list[Pod]
    cpu: dict[str, int] = field(default_factory=dict)

    @property
    def claims(self) -> dict[str, PersistentVolumeClaim]:
        """The claims by name."""
        found = (one for one in self.objects if isinstance(one, PersistentVolumeClaim))
        return {one.metadata.name: one for one in found}

    @property
    def volumes(self) -> dict[str, PersistentVolume]:
        """The volumes by name."""
        found = (one for one in self.objects if isinstance(one, PersistentVolume))
        return {one.metadata.name: one for one in found}


def random_instance(random: Random) -> Instance:
    count, members = random.randint(1, 3), random.randint(1, 4)
    nodes = [host(f"n{i}", cpu=str(random.randint(1, 3)), zone="ab"[i % 2]) for i in range(count)]
    objects: list[VolumeObject] = [
        storage_class(),
        storage_class("made", "disk.example"),
    ]
    objects += [_random_volume(random, f"v{i}", count) for i in range(random.randint(0, 5))]
    if random.random() < 0.4:
        objects += [csi_node(f"n{i}", limit=random.randint(0, 2)) for i in range(count)]
    shared = random.random() < 0.4
    if shared:
        mode = random.choice(["ReadWriteOnce", "ReadWriteOnce", "ReadWriteOncePod"])
        objects.append(volume_claim("shared", f"{random.randint(5, 7)}Gi", accessModes=[mode]))
    pods = []
    for number in range(members):
        names = []
        for position in range(random.choice([0, 1, 1, 2])):
            name = f"c{number}-{position}"
            names.append(name)
            objects += _random_claim(random, name, count)
        if shared and random.random() < 0.7:
            names.append("shared")
        pods.append(claiming_pod(f"p{number}", *names, group="g"))
    return Instance(nodes, objects, pods)


def _random_volume(random: Random, name: str, count: int) -> PersistentVolume:
    size = f"{random.randint(5, 8)}Gi"
    modes = [["ReadWriteOnce"], ["ReadWriteOnce", "ReadWriteOncePod"]]
    chosen = random.sample(range(count), random.randint(1, count))
    near = [f"n{i}" for i in chosen] if random.random() < 0.7 else []
    if random.random() < 0.4:
        return csi_volume(name, size=size, nodes=near, accessModes=random.choice(modes))
    return volume(name, size, nodes=near, accessModes=random.choice(modes))


def _random_claim(random: Random, name: str, count: int) -> list[VolumeObject]:
    sort = random.choice(["static", "static", "static", "made", "bound", "zone"])
    if sort in ("static", "made"):
        storage = "disk" if sort == "static" else "made"
        return [volume_claim(name, f"{random.randint(5, 7)}Gi", storageClassName=storage)]
    labels = {"topology.kubernetes.io/zone": random.choice("ab")} if sort == "zone" else {}
    near = [f"n{random.randrange(count)}"] if sort == "bound" else []
    is_attached = random.random() < 0.5
    source: Any = {"csi": {"driver": "disk.example", "volumeHandle": name}} if is_attached else {}
    bound = volume(f"v-{name}", claim=name, nodes=near, labels=labels, **source)
    return [bound, volume_claim(name, bound_to=f"v-{name}")]


def reaches(one: PersistentVolume, node: Node) -> bool:
    affinity = one.spec.node_affinity
    if affinity is None or affinity.required is None:
        return True
    ((need,),) = [term.match_expressions for term in affinity.required.node_selector_terms]
    return node.metadata.labels.get(HOST) in need.values


def broken_rules(instance: Instance, nodes: Nodes, chosen: Volumes) -> Iterator[str]:
    """Yield the rules that a placement breaks; `chosen` has the volume of each unbound claim."""
    by_name = {node.metadata.name: node for node in instance.nodes}
    claims, volumes = instance.claims, instance.volumes
    users: dict[str, list[str]] = {}
    for pod in instance.members:
        for key in volume_keys_of(pod):
            users.setdefault(key.name, []).append(nodes[pod.metadata.name])
    for name, node in by_name.items():
        if list(nodes.values()).count(name) > int(node.status.allocatable["cpu"]):
            yield f"{name} has too many pods"
    taken = [one for one in chosen.values() if one]
    if len(taken) != len(set(taken)):
        yield "a volume is taken twice"
    attached: dict[str, set[str]] = {name: set() for name in by_name}
    for name, places in users.items():
        claim = claims[name]
        found = volumes.get(claim.spec.volume_name or chosen.get(name, ""))
        if claim.spec.access_modes == ("ReadWriteOncePod",) and len(places) > 1:
            yield f"{name} has two users"
        if found is None:
            if claim.storage_class != "made" or len(set(places)) > 1:
                yield f"{name} has no volume"
            driver, handle = "disk.example" if claim.storage_class == "made" else "", name
        else:
            source = found.spec.csi
            driver, handle = (source.driver, source.volume_handle) if source else ("", "")
            zone = found.metadata.labels.get("topology.kubernetes.io/zone")
            for place in places:
                if not reaches(found, by_name[place]):
                    yield f"{place} does not reach {found.metadata.name}"
                if zone not in (
                    None,
                    by_name[place].metadata.labels["topology.kubernetes.io/zone"],
                ):
                    yield f"{place} is in another zone than {found.metadata.name}"
        if not claim.spec.volume_name:
            # Until it is bound, a claim counts by the provisioner of its class.
            driver, handle = ("disk.example", name) if claim.storage_class == "made" else ("", "")
        for place in places if driver else ():
            attached[place].add(handle)
        if found is not None and not claim.spec.volume_name and not fits(claim, found):
            yield f"{found.metadata.name} does not fit {name}"
    for one in instance.objects:
        if isinstance(one, CSINode):
            limit = one.spec.drivers[0].allocatable
            assert limit is not None
            assert limit.count is not None
            if len(attached[one.metadata.name]) > limit.count:
                yield f"{one.metadata.name} attaches too many volumes"


def fits(claim: PersistentVolumeClaim, one: PersistentVolume) -> bool:
    def size(text: object) -> int:
        return int(str(text).removesuffix("Gi"))

    return (
        one.spec.claim_ref is None
        and claim.storage_class == one.storage_class
        and size(one.spec.capacity["storage"]) >= size(claim.requested_storage)
        and set(claim.spec.access_modes) <= set(one.spec.access_modes)
    )


def can_be_placed(instance: Instance) -> bool:
    """Whether some assignment of nodes and volumes breaks no rule."""
    names = [node.metadata.name for node in instance.nodes]
    used = {key.name for pod in instance.members for key in volume_keys_of(pod)}
    claims = instance.claims
    unbound = [name for name in sorted(used) if not claims[name].spec.volume_name]
    options = [
        [
            *(v for v, one in instance.volumes.items() if fits(claims[name], one)),
            *([""] if claims[name].storage_class == "made" else []),
        ]
        for name in unbound
    ]
    for places in product(names, repeat=len(instance.members)):
        nodes = {p.metadata.name: n for p, n in zip(instance.members, places, strict=True)}
        for volumes in product(*options):
            chosen = dict(zip(unbound, volumes, strict=True))
            if not any(True for _ in broken_rules(instance, nodes, chosen)):
                return True
    return False


def check(instance: Instance) -> str:
    """Compare the decision with every assignment; return what was decided."""
    group = gang("g", len(instance.members))
    state = load_state(
        ClusterObjects(instance.nodes, [group], instance.members, volumes=instance.objects)
    )
    entity = state.pop(0.0)
    assert entity is not None
    snapshot = state.cache.snapshot()
    decision = decide(entity, snapshot, DEFAULT_POLICY, solver=HighsSolver())
    if isinstance(decision, Placed):
        nodes = {pod.name: node for pod, _, node in decision.bindings}
        chosen = {one.claim.name: one.volume for one in decision.volumes}
        assert all(isinstance(one.claim, Key) for one in decision.volumes)
        assert list(broken_rules(instance, nodes, chosen)) == []
        return "placed"
    assert isinstance(decision, Waiting)
    assert decision.reason in (UNSCHEDULABLE, UNDECIDED)
    is_possible = can_be_placed(instance)
    if decision.reason == UNDECIDED:
        return "undecided" if is_possible else "undecided, impossible"
    assert not is_possible, decision
    return "refused"


def count_outcomes(seeds: range) -> dict[str, int]:
    counts: dict[str, int] = {}
    for seed in seeds:
        outcome = check(random_instance(Random(seed)))
        counts[outcome] = counts.get(outcome, 0) + 1
    return counts


def test_decisions_about_volumes_agree_with_every_assignment() -> None:
    counts = count_outcomes(range(120))
    assert counts["placed"] > 20
    assert counts["refused"] > 20
    assert counts.get("undecided", 0) <= 2


@pytest.mark.mostly_soak(slow_every=3)
@pytest.mark.parametrize("first", [1000, 1500, 2000])
def test_decisions_about_volumes_agree_with_every_assignment_of_many(first: int) -> None:
    counts = count_outcomes(range(first, first + 500))
    assert counts.get("undecided", 0) <= 0.01 * sum(counts.values())
