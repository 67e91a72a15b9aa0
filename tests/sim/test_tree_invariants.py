"""Invariants of composite groups and of preemption victims at every change."""

from __future__ import annotations

from msgspec.structs import replace

from phalanx.api.core import Pod
from phalanx.api.meta import Condition, Key
from phalanx.api.scheduling import PodGroup, WorkloadReference
from phalanx.sim.invariants import GroupTreeOracle
from tests.scheduler.builders import composite, gang
from tests.sim.test_invariants import Cluster, node, pod

CONDITIONS = (Condition("PodScheduled", "True"),)


def leaf(name: str, quorum: int, *, as_unit: bool = False) -> PodGroup:
    return gang(name, quorum, parent="t", disrupted_as_unit=as_unit)


def members_of(name: str, count: int, on: str = "") -> list[Pod]:
    return [pod(f"{name}{i}", on, name, cpu="") for i in range(count)]


def evicted(member: Pod) -> Pod:
    disruption = Condition("DisruptionTarget", "True", "PreemptionByScheduler")
    metadata = replace(member.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    return replace(
        member,
        metadata=metadata,
        status=replace(member.status, conditions=(disruption, *CONDITIONS)),
    )


def test_tree_with_too_few_placed_groups_is_found() -> None:
    for placed, violations in ((("a", "b"), []), (("a",), [
        "members of default/a got nodes, but too few groups of t have enough",
    ])):  # fmt: skip
        cluster = Cluster()
        cluster.put(composite("t", 2), leaf("a", 1), leaf("b", 1), node("n"))
        cluster.put(*members_of("a", 1), *members_of("b", 1))
        assert (
            cluster.put(*(member for name in placed for member in members_of(name, 1, "n")))
            == violations
        )


def test_partial_eviction_of_a_group_disrupted_as_a_unit_is_found() -> None:
    for evicted_count, violations in ((2, []), (1, [
        "members of default/a are evicted without those of default/a in the same unit",
    ])):  # fmt: skip
        cluster = Cluster()
        cluster.put(node("n"), gang("a", 1, disrupted_as_unit=True), *members_of("a", 2))
        cluster.put(*members_of("a", 2, "n"))
        cluster.now = 1.0
        assert cluster.put(*map(evicted, members_of("a", 2, "n")[:evicted_count])) == violations


def test_partial_eviction_of_a_tree_disrupted_as_a_unit_is_found() -> None:
    cluster = Cluster()
    cluster.put(node("n"), composite("t", 1, disrupted_as_unit=True), leaf("a", 1), leaf("b", 1))
    cluster.put(*members_of("a", 1), *members_of("b", 1))
    cluster.put(*members_of("a", 1, "n"), *members_of("b", 1, "n"))
    cluster.now = 1.0
    assert cluster.put(*map(evicted, members_of("a", 1, "n"))) == [
        "members of default/a are evicted without those of default/b in the same unit"
    ]


def test_tree_of_two_workloads_or_without_a_root_is_invalid() -> None:
    references = {name: WorkloadReference(name, "main") for name in ("one", "other")}
    root = composite("t", 1)
    root = replace(root, spec=replace(root.spec, workload_ref=references["one"]))
    leaves = {}
    for name, work in (("a", "one"), ("b", "other")):
        found = leaf(name, 1)
        spec = replace(found.spec, workload_ref=references[work])
        leaves[Key("default", name)] = replace(found, spec=spec)
    trees = GroupTreeOracle(leaves, {root.metadata.key: root})
    assert [trees.is_valid(key) for key in leaves] == [True, False]
    assert [child.metadata.name for child in trees.children(root)] == ["a"]
    assert trees.root(Key("default", "a")) is root
    assert GroupTreeOracle(leaves, {}).root(Key("default", "a")) is None
