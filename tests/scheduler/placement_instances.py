"""Small tight clusters with a group of differing members, by family and seed.

Each is so small that every assignment can be tried, and so tight that often nothing fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from msgspec.structs import replace

from phalanx.api.core import (
    Affinity,
    ContainerPort,
    Node,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    Taint,
    Toleration,
    TopologySpreadConstraint,
)
from phalanx.api.scheduling import PodGroup, SchedulingConstraints, TopologyConstraint
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.entity import Entity
from tests.scheduler import oracle
from tests.scheduler.builders import cluster, entity, gang, node, pod, pod_like
from tests.scheduler.oracle_cluster import OracleCluster

HOST, RACK = "kubernetes.io/hostname", "rack"
APPS = ("red", "green", "blue")
DEDICATED = Taint("dedicated", "train", "NoSchedule")


@dataclass(frozen=True)
class PlacementInstance:
    """A cluster and a group to place on it."""

    nodes: list[Node]
    running: list[Pod]
    entity: Entity

    def snapshot(self) -> Snapshot:
        return cluster(self.nodes, self.running).snapshot()

    def oracle_cluster(self) -> OracleCluster:
        return oracle.build_cluster(self.nodes, self.running)


#: What a family adds to the pods of one kind.
Trait = Callable[[Random, str], dict[str, Any]]


def selector(app: str) -> dict[str, Any]:
    return {"matchLabels": {"app": app}}


def term(draw: Random) -> PodAffinityTerm:
    return PodAffinityTerm(draw.choice([HOST, RACK, RACK]), selector(draw.choice(APPS)))


def plain(draw: Random, app: str) -> dict[str, Any]:
    return {}


def apart(draw: Random, app: str) -> dict[str, Any]:
    terms = tuple(term(draw) for _ in range(draw.choice([0, 1, 1, 2])))
    return {"affinity": Affinity(pod_anti_affinity=PodAffinity(terms))} if terms else {}


def near(draw: Random, app: str) -> dict[str, Any]:
    terms = [term(draw) for _ in range(draw.choice([0, 1, 1, 2]))]
    if draw.random() < 0.3:
        terms.append(PodAffinityTerm(draw.choice([HOST, RACK]), selector(app)))
    return {"affinity": Affinity(pod_affinity=PodAffinity(tuple(terms)))} if terms else {}


def mutual(draw: Random, app: str) -> dict[str, Any]:
    """Red requires green, green requires blue or red, and blue requires red."""
    required = {"red": "green", "green": draw.choice(["blue", "red"]), "blue": "red"}[app]
    terms = [PodAffinityTerm(draw.choice([HOST, RACK]), selector(required))]
    return {"affinity": Affinity(pod_affinity=PodAffinity(tuple(terms * (draw.random() < 0.9))))}


def spread(draw: Random, app: str) -> dict[str, Any]:
    selected = draw.choice([app, app, draw.choice(APPS)])
    constraint = TopologySpreadConstraint(
        draw.choice([HOST, RACK]), "DoNotSchedule", draw.choice([1, 1, 2]), selector(selected),
        draw.choice([1, 1, 3]), draw.choice(["Honor", "Ignore"]), draw.choice(["Honor", "Ignore"]),
    )  # fmt: skip
    return {"spreads": (constraint,) * draw.choice([0, 1, 1])}


def places(draw: Random, app: str) -> dict[str, Any]:
    traits: dict[str, Any] = {}
    if draw.random() < 0.4:
        traits["selector"] = {RACK: draw.choice("ab")}
    if draw.random() < 0.4:
        traits["tolerations"] = (Toleration("dedicated", "Exists"),)
    if draw.random() < 0.5:
        traits["ports"] = (ContainerPort(80, draw.choice([80, 80, 81])),)
    return traits


def mixture(draw: Random, app: str) -> dict[str, Any]:
    traits = dict[str, Any]()
    for trait in draw.sample([apart, near, spread, places], 2):
        for name, value in trait(draw, app).items():
            if name == "affinity" and "affinity" in traits:
                value = replace(traits["affinity"], pod_affinity=value.pod_affinity)
            traits[name] = value
    return traits


FAMILIES: Mapping[str, Trait] = {
    "sizes": plain,
    "places": places,
    "apart": apart,
    "near": near,
    "mutual": mutual,
    "even": spread,
    "topology": plain,
    "mixture": mixture,
}


def build_instance(family: str, seed: int) -> PlacementInstance:
    """Build the instance of a family and seed; always the same one."""
    draw = Random(f"{family} {seed}")
    trait = FAMILIES[family]
    racks = "ab" if draw.random() < 0.7 else "abc"
    nodes = [_node(draw, i, racks, family) for i in range(draw.randint(2, 6))]
    running = [
        _pod(draw, f"r{i}", trait, on=draw.choice(nodes).metadata.name)
        for i in range(draw.choice([0, 0, 1, 2, 3]))
    ]
    kinds = [_pod(draw, f"m{i}", trait) for i in range(draw.randint(2, 4))]
    chosen = [draw.choice(kinds) for _ in range(draw.randint(3, 7))]
    pods = [
        pod_like(one, f"{one.metadata.name}-{i}", uid=f"uid-{i}") for i, one in enumerate(chosen)
    ]
    needed = len(pods) if draw.random() < 0.7 else draw.randint(1, len(pods))
    group = gang("g", needed)
    wants_rack = family == "topology" or (family == "mixture" and draw.random() < 0.2)
    return PlacementInstance(
        nodes, running, entity(with_rack_topology(group) if wants_rack else group, pods)
    )


def build_plain_instance(seed: int) -> PlacementInstance:
    """Build a group of equal members without peer constraints; some must be in one rack."""
    draw = Random(f"plain {seed}")
    nodes = [_node(draw, i, "ab", "places") for i in range(draw.randint(1, 5))]
    one = _pod(draw, "m", places if draw.random() < 0.5 else plain)
    pods = [pod_like(one, f"m{i}", uid=f"uid-{i}") for i in range(draw.randint(1, 6))]
    group = gang("g", draw.randint(1, len(pods)))
    return PlacementInstance(
        nodes, [], entity(with_rack_topology(group) if draw.random() < 0.4 else group, pods)
    )


def with_rack_topology(group: PodGroup) -> PodGroup:
    constraints = SchedulingConstraints((TopologyConstraint(RACK),))
    return replace(group, spec=replace(group.spec, scheduling_constraints=constraints))


def _node(draw: Random, number: int, racks: str, family: str) -> Node:
    name = f"n{number}"
    labels = {HOST: name} | ({RACK: draw.choice(racks)} if draw.random() < 0.9 else {})
    tainted = family in ("places", "mixture") and draw.random() < 0.3
    return node(
        name, labels, taints=(DEDICATED,) if tainted else (), cpu=str(draw.randint(2, 6)),
        memory=f"{draw.randint(2, 6)}Gi", allocatable={"gpu.com/one": draw.choice([0, 1, 2])},
    )  # fmt: skip


def _pod(draw: Random, name: str, trait: Trait, on: str = "") -> Pod:
    app = draw.choice(APPS)
    requests = {"cpu": f"{draw.choice([500, 1000, 1500, 2000, 3000])}m"}
    if draw.random() < 0.6:
        requests["memory"] = f"{draw.choice([512, 1024, 1536, 3072])}Mi"
    if draw.random() < 0.2:
        requests["gpu.com/one"] = "1"
    return pod(
        name, "" if on else "g", on=on, labels={"app": app}, requests=requests, **trait(draw, app)
    )
