"""The evidence of a diagnosis: how many members fit where, and what limits them."""

from __future__ import annotations

from phalanx.api.core import Node, Pod, Taint
from phalanx.scheduler.diagnosis.diagnosis import (
    MAX_PLACES,
    CapacityEvidence,
    CapacityRow,
    collect_evidence,
)
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.policy import DEFAULT_POLICY
from tests.scheduler.builders import alone, cluster, entity, gang, node, pod


def evidence_for(
    one: Entity, nodes: list[Node], running: list[Pod] | None = None
) -> CapacityEvidence:
    return collect_evidence(one, cluster(nodes, running or []).snapshot(), DEFAULT_POLICY)


def members(count: int, *, cpu: str) -> list[Pod]:
    return [pod(f"m{i}", "g", cpu=cpu) for i in range(count)]


def test_nodes_with_the_same_capacity_share_a_row() -> None:
    nodes = [node("a"), node("b", {"rack": "r"}), node("c", cpu="8")]
    found = evidence_for(
        entity(gang("g", 6), members(6, cpu="3")), nodes, [pod("r", on="a", cpu="2")]
    )
    assert found == CapacityEvidence(
        "",
        6,
        (
            CapacityRow("cpu 3", 6, "c", 1, 2, 2, "cpu"),
            CapacityRow("cpu 3", 6, "like a", 2, 1, 2, "cpu"),
        ),
    )


def test_rows_are_domains_if_the_group_has_a_topology() -> None:
    nodes = [node(f"n{i}", {"rack": f"r{i // 2}"}) for i in range(4)]
    one = entity(gang("g", 3, topology="rack"), members(3, cpu="3"))
    found = evidence_for(one, nodes, [pod("r", on="n3", cpu="2")])
    assert (found.key, found.needed) == ("rack", 3)
    assert [(row.place, row.nodes, row.fit, row.empty) for row in found.rows] == [
        ("r0", 2, 2, 2), ("r1", 2, 1, 2),
    ]  # fmt: skip


def test_scarcest_resource_is_named() -> None:
    found = evidence_for(alone(pod("p", cpu="1", memory="9Gi")), [node("a")])
    assert [row.limit for row in found.rows] == ["memory"]
    found = evidence_for(alone(pod("p", requests={"gpu.com/one": "1"})), [node("a")])
    assert [row.limit for row in found.rows] == ["gpu.com/one"]


def test_reason_why_nodes_reject_members_is_named() -> None:
    nodes = [
        node("a", cordoned=True),
        node("b", taints=(Taint("ours", "", "NoSchedule"),)),
        node("c"),
    ]
    found = evidence_for(alone(pod("p", cpu="1", selector={"disk": "ssd"})), nodes)
    assert {row.place: row.limit for row in found.rows} == {
        "a": "unschedulable", "b": "untolerated taint(s)",
        "c": "didn't match Pod's node affinity/selector",
    }  # fmt: skip


def test_place_that_holds_all_members_has_no_limit() -> None:
    found = evidence_for(entity(gang("g", 2), members(2, cpu="1")), [node("a")])
    assert [row.limit for row in found.rows] == [""]


def test_each_shape_of_member_has_its_rows() -> None:
    pods = [*members(2, cpu="3"), pod("z", "g", cpu="1")]
    found = evidence_for(entity(gang("g", 3), pods), [node("a")])
    assert [(row.requests, row.members, row.fit) for row in found.rows] == [
        ("cpu 3", 2, 1), ("cpu 1", 1, 4),
    ]  # fmt: skip


def test_only_the_places_with_most_capacity_are_listed() -> None:
    nodes = [node(f"n{i:02}", {"rack": f"r{i:02}"}, cpu=str(i + 1)) for i in range(20)]
    one = entity(gang("g", 30, topology="rack"), members(30, cpu="1"))
    found = evidence_for(one, nodes)
    assert len(found.rows) == MAX_PLACES
    assert found.more == 20 - MAX_PLACES
    assert found.rows[0].place == "r19"
