"""Trees of groups and those who make way: what must hold of them at every change."""

from __future__ import annotations

from msgspec.structs import replace

from phalanx.api.core import Pod
from phalanx.api.meta import Condition, Key
from phalanx.api.scheduling import PodGroup, WorkloadReference
from phalanx.sim.group_tree_oracle import GroupTreeOracle
from tests.scheduler.builders import composite, gang
from tests.sim.test_invariants import Cluster, node, pod

SAID = (Condition("PodScheduled", "True"),)


def leaf(name: str, quorum: int, *, whole: bool = False) -> PodGroup:
    return gang(name, quorum, parent="t", goes_whole=whole)


def members_of(name: str, count: int, on: str = "") -> list[Pod]:
    return [pod(f"{name}{i}", on, name, cpu="") for i in range(count)]


def evicted(one: Pod) -> Pod:
    told = Condition("DisruptionTarget", "True", "PreemptionByScheduler")
    meta = replace(one.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    return replace(one, metadata=meta, status=replace(one.status, conditions=(told, *SAID)))


def test_a_tree_of_which_too_few_groups_are_placed_is_found() -> None:
    for placed, wrong in ((("a", "b"), []), (("a",), [
        "members of default/a got nodes, but too few groups of t have enough",
    ])):  # fmt: skip
        cluster = Cluster()
        cluster.put(composite("t", 2), leaf("a", 1), leaf("b", 1), node("n"))
        cluster.put(*members_of("a", 1), *members_of("b", 1))
        assert cluster.put(*(one for name in placed for one in members_of(name, 1, "n"))) == wrong


def test_a_group_that_goes_as_a_whole_and_is_torn_is_found() -> None:
    for goes, wrong in ((2, []), (1, [
        "members of default/a make way, those of default/a stay, which go with them",
    ])):  # fmt: skip
        cluster = Cluster()
        cluster.put(node("n"), gang("a", 1, goes_whole=True), *members_of("a", 2))
        cluster.put(*members_of("a", 2, "n"))
        cluster.now = 1.0
        assert cluster.put(*map(evicted, members_of("a", 2, "n")[:goes])) == wrong


def test_a_tree_that_goes_as_a_whole_and_is_torn_is_found() -> None:
    cluster = Cluster()
    cluster.put(node("n"), composite("t", 1, goes_whole=True), leaf("a", 1), leaf("b", 1))
    cluster.put(*members_of("a", 1), *members_of("b", 1))
    cluster.put(*members_of("a", 1, "n"), *members_of("b", 1, "n"))
    cluster.now = 1.0
    assert cluster.put(*map(evicted, members_of("a", 1, "n"))) == [
        "members of default/a make way, those of default/b stay, which go with them"
    ]


def test_a_tree_of_two_workloads_or_without_a_root_is_not_sound() -> None:
    of = {name: WorkloadReference(name, "main") for name in ("one", "other")}
    root = composite("t", 1)
    root = replace(root, spec=replace(root.spec, workload_ref=of["one"]))
    leaves = {}
    for name, work in (("a", "one"), ("b", "other")):
        found = leaf(name, 1)
        spec = replace(found.spec, workload_ref=of[work])
        leaves[Key("default", name)] = replace(found, spec=spec)
    trees = GroupTreeOracle(leaves, {root.metadata.key: root})
    assert [trees.is_valid(key) for key in leaves] == [True, False]
    assert [one.metadata.name for one in trees.children(root)] == ["a"]
    assert trees.root(Key("default", "a")) is root
    assert GroupTreeOracle(leaves, {}).root(Key("default", "a")) is None
