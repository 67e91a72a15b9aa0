"""Small tight clusters with a tree of groups, by family and seed.

Each is so small that every assignment can be tried, and so tight that often nothing fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from msgspec.structs import replace

from phalanx.api.core import Node, Pod
from phalanx.api.scheduling import TOPOLOGY_ANNOTATION
from phalanx.scheduler.entity import Entity
from tests.scheduler.builders import composite, entity, gang, node, pod, tree
from tests.scheduler.placement_instances import (
    APPS,
    HOST,
    RACK,
    PlacementInstance,
    Trait,
    apart,
    mutual,
    near,
    plain,
    spread,
)

ZONE = "zone"


@dataclass(frozen=True)
class TreeFamily:
    """What the trees of a family have in common."""

    #: The number of levels of groups below the root.
    depth: int = 1
    #: Whether parents may need fewer groups than they have, and groups fewer members.
    has_spare: bool = False
    #: The topology key of the root, and keys from which groups below it choose.
    root_key: str = ""
    child_keys: tuple[str, ...] = ("",)
    #: Whether members of one group may differ, and whether all groups are equal.
    is_mixed: bool = False
    is_uniform: bool = False
    #: Whether some members have a node already.
    is_partly_placed: bool = False
    trait: Trait = plain
    #: The preferred topology levels of some PodGroups, as in the annotation.
    levels: str = ""


FAMILIES: Mapping[str, TreeFamily] = {
    "flat": TreeFamily(),
    "flat, mixed": TreeFamily(is_mixed=True),
    "spare": TreeFamily(has_spare=True),
    "two levels": TreeFamily(depth=2),
    "three levels": TreeFamily(depth=3, has_spare=True),
    "topology of the root": TreeFamily(root_key=RACK, is_mixed=True),
    "topology of groups": TreeFamily(child_keys=("", RACK)),
    "topology of both": TreeFamily(depth=2, root_key=ZONE, child_keys=(RACK, "")),
    "topology with spare": TreeFamily(
        depth=2, root_key=ZONE, child_keys=(RACK, "", HOST), has_spare=True, is_mixed=True
    ),
    "preferred levels": TreeFamily(depth=2, levels="rack, zone", is_mixed=True),
    "preferred levels or anywhere": TreeFamily(levels="rack, *", child_keys=("", ZONE)),
    "equal groups": TreeFamily(child_keys=(RACK,), has_spare=True, is_uniform=True),
    "equal groups, all needed": TreeFamily(child_keys=(RACK,), is_uniform=True),
    "partly placed": TreeFamily(
        depth=2, child_keys=("", RACK), has_spare=True, is_partly_placed=True
    ),
    "near": TreeFamily(is_mixed=True, child_keys=("", RACK), trait=near),
    "mutual": TreeFamily(is_mixed=True, has_spare=True, trait=mutual),
    "apart": TreeFamily(has_spare=True, child_keys=("", RACK), trait=apart),
    "even": TreeFamily(is_mixed=True, trait=spread),
}


def build_tree_instance(name: str, seed: int) -> PlacementInstance:
    """Build the tree of a family and seed; always the same one."""
    family, draw = FAMILIES[name], Random(f"{name} {seed}")
    low, high = (0.3, 1.1) if family.has_spare else (0.95, 1.5)
    builder = _TreeBuilder(family, draw)
    root = builder.build_group("t", family.depth, parent="")
    halves = round(builder.requested_halves * draw.uniform(low, high))
    nodes = _nodes(draw, halves)
    running = [
        pod(f"r{i}", on=one.metadata.name, labels={"app": draw.choice(APPS)})
        for i, one in enumerate(nodes)
        if draw.random() < 0.3
    ]
    return PlacementInstance(nodes, [*running, *root.other_members], root)


def _nodes(draw: Random, halves: int) -> list[Node]:
    """Nodes with so many halves of a CPU in total; placed members are on the first."""
    shares = [0] * draw.randint(2, 4)
    for _ in range(halves):
        shares[draw.randrange(len(shares))] += 1
    nodes = []
    for number, share in enumerate(shares):
        rack = draw.choice("abc")
        labels = {HOST: f"n{number}", RACK: rack, ZONE: "z0" if rack == "a" else "z1"}
        if number and draw.random() < 0.1:
            del labels[RACK]
        nodes.append(node(f"n{number}", labels, cpu=f"{share * 500}m"))
    return nodes


class _TreeBuilder:
    def __init__(self, family: TreeFamily, draw: Random) -> None:
        self._family, self._draw = family, draw
        self._budget = 6
        self._equal_size, self._equal_halves = draw.randint(1, 2), draw.choice([1, 2, 3])
        self.requested_halves = 0

    def build_group(self, name: str, depth: int, parent: str) -> Entity:
        draw, family = self._draw, self._family
        key = draw.choice(family.child_keys) if parent else family.root_key
        if not depth or (parent and depth < family.depth and draw.random() < 0.4):
            return self._build_leaf(name, key, parent)
        count = draw.randint(2, 3) if not parent else draw.randint(1, 2)
        children = [self.build_group(f"{name}{i}", depth - 1, name) for i in range(count)]
        quorum = draw.randint(1, count) if family.has_spare else count
        return tree(composite(name, quorum, parent=parent, topology=key), *children)

    def _build_leaf(self, name: str, key: str, parent: str) -> Entity:
        draw, family = self._draw, self._family
        size = max(1, min(draw.randint(1, 3), self._budget))
        size = self._equal_size if family.is_uniform else size
        self._budget -= size
        pods: list[Pod] = []
        for number in range(size):
            if not pods or family.is_mixed:
                app = draw.choice(APPS)
                halves = draw.choice([1, 2, 3, 4, 6])
                halves = self._equal_halves if family.is_uniform else halves
                traits = family.trait(draw, app)
            self.requested_halves += halves
            pods.append(
                pod(f"{name}-{number}", name, labels={"app": app}, cpu=f"{halves * 500}m", **traits)
            )
        # All on one node: every topology constraint allows that.
        bound = [
            pod(f"{name}-on-{i}", name, on="n0")
            for i in range(draw.choice([0, 0, 1, 2]) if family.is_partly_placed else 0)
        ]
        total = size + len(bound)
        has_spare = family.has_spare and not family.is_uniform
        quorum = draw.randint(1, total) if has_spare else total
        group = gang(name, quorum, parent=parent, topology=key)
        if family.levels and draw.random() < 0.7:
            annotations = {TOPOLOGY_ANNOTATION: family.levels}
            group = replace(group, metadata=replace(group.metadata, annotations=annotations))
        return entity(group, pods, bound)
