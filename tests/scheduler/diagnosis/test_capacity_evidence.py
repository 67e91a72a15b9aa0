"""The evidence of a diagnosis: how many members fit where, and what limits them."""

from __future__ import annotations

from dataclasses import replace

from phalanx.api.core import Node, Pod, Taint
from phalanx.scheduler.decision import Waiting
from phalanx.scheduler.diagnosis.capacity_evidence import (
    MAX_PLACES,
    CapacityEvidence,
    CapacityRow,
    collect_evidence,
    summarize_refusal,
)
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.policy import DEFAULT_POLICY
from tests.scheduler.builders import alone, cluster, entity, gang, key, node, pod


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


RACK = "topology.kubernetes.io/rack"
REFUSED = Waiting(key("g"), (), quorum=3, scheduled=0, remaining=3, unknown=0, wakes_on=frozenset())


def summary(*rows: CapacityRow, level: str = "", needed: int = 3, bound: int = 0) -> str:
    return summarize_refusal(REFUSED, CapacityEvidence(level, needed, rows), bound=bound)


def test_summary_says_what_the_nodes_lack() -> None:
    lacking = CapacityRow("cpu 1, gpu 3", 3, "like a", 5, 0, 0, "gpu")
    assert summary(lacking) == "0 of 3 members fit: every node lacks gpu."
    assert summary(lacking, bound=1) == "0 of 3 more members fit: every node lacks gpu."
    partly = lacking._replace(fit=2)
    assert summary(partly) == "2 of 3 members fit: all nodes run out of gpu."
    tainted = lacking._replace(place="b", nodes=1, limit="untolerated taint(s)")
    assert summary(lacking, tainted) == (
        "0 of 3 members fit: 5 nodes without enough gpu, 1 node rejected (untolerated taint(s))."
    )
    best = lacking._replace(place="r1", fit=1)
    other = lacking._replace(place="r2")
    assert summary(other, best, level=RACK) == (
        "at most 1 of 3 members fit in one rack: the nodes of r1 run out of gpu."
    )
    assert summary(other, level=RACK) == "0 of 3 members fit in any rack: every node lacks gpu."
    alone_ = summarize_refusal(
        REFUSED, CapacityEvidence("", 3, (lacking,)), condition="even if nothing else ran"
    )
    assert alone_ == "0 of 3 members fit even if nothing else ran: every node lacks gpu."


def test_summary_says_that_too_few_fit_together_if_resources_are_not_the_reason() -> None:
    enough = CapacityRow("cpu 1", 3, "a", 1, 3, 3, "")
    assert summary(enough) == "the 3 members that it needs do not fit together."
    assert summary(enough, bound=2) == "the 3 more members that it needs do not fit together."
    assert summary(enough, level=RACK) == (
        "the 3 members that it needs do not fit together in one rack."
    )
    assert summary(enough, needed=1) == "no member fits."
    assert summary(level=RACK) == f"no node has the label {RACK}."
    mixed = enough._replace(fit=0), enough._replace(requests="cpu 2")
    assert summary(*mixed) == "the 3 members that it needs do not fit together."


def test_summary_does_not_refuse_what_is_undecided() -> None:
    undecided = replace(REFUSED, undecided="the limit of the search is reached")
    evidence = CapacityEvidence("", 3, (CapacityRow("cpu 1", 3, "a", 1, 3, 3, ""),))
    assert summarize_refusal(undecided, evidence) == (
        "no placement was found, but one may exist: the limit of the search is reached."
    )


def test_limit_is_what_empty_nodes_lack_if_no_member_fits_there_either() -> None:
    one = alone(pod("p", cpu="2", requests={"gpu.com/one": "1"}))
    (row,) = evidence_for(one, [node("a", cpu="4")], [pod("r", on="a", cpu="4")]).rows
    assert (row.fit, row.empty, row.limit) == (0, 0, "gpu.com/one")
