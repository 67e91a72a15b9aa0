"""Placement problems as integer programs: how nodes form slots, and how values are read back."""

from __future__ import annotations

from phalanx.api.core import Affinity, Node, Pod, PodAffinity, PodAffinityTerm
from phalanx.scheduler.placement.group_placement import PlacementContext
from phalanx.scheduler.policy import DEFAULT_POLICY
from phalanx.scheduler.search.formulation import NodeSlot, build_slots, formulate_program
from phalanx.scheduler.search.heuristics import KindAssignment
from phalanx.scheduler.search.placement_problem import PlacementProblem, build_problem
from phalanx.scheduler.search.solver import IntegerProgramBuilder, LinearConstraint
from tests.scheduler.builders import cluster, entity, gang, node, pod

HOST = "kubernetes.io/hostname"


def problem(nodes: list[Node], pods: list[Pod]) -> PlacementProblem:
    members = entity(gang("g", len(pods)), pods).members
    found = build_problem(
        PlacementContext(cluster(nodes).snapshot(), DEFAULT_POLICY), members, len(pods)
    )
    assert isinstance(found, PlacementProblem)
    return found


def hosts(count: int, **allocatable: str) -> list[Node]:
    return [node(f"n{i}", {HOST: f"n{i}"}, allocatable=allocatable) for i in range(count)]


def pods(*cpus: str, apart: bool = False) -> list[Pod]:
    terms = (PodAffinityTerm(HOST, {"matchLabels": {"app": "x"}}),)
    affinity = Affinity(pod_anti_affinity=PodAffinity(terms)) if apart else None
    return [
        pod(f"p{i}", "g", labels={"app": "x"}, affinity=affinity, cpu=cpu)
        for i, cpu in enumerate(cpus)
    ]


def test_equal_nodes_that_hold_one_member_each_share_a_slot() -> None:
    (slot,) = build_slots(problem(hosts(3, cpu="4"), pods("3", "3", "4")))
    assert (slot.nodes, slot.per_node, slot.limits) == ((0, 1, 2), 1, ((0, 2), (1, 1)))


def test_equal_nodes_for_one_kind_share_a_slot() -> None:
    (slot,) = build_slots(problem(hosts(3, cpu="4"), pods("2", "2", "2", "2", "2")))
    assert (slot.nodes, slot.size) == ((0, 1, 2), 6)
    taken: dict[NodeSlot, int] = {}
    assert [slot.next_node(taken) for _ in range(5)] == [0, 0, 1, 1, 2]


def test_equal_nodes_share_a_slot_if_members_have_anti_affinity() -> None:
    (slot,) = build_slots(problem(hosts(3, cpu="4"), pods("1", "2", apart=True)))
    assert (len(slot.nodes), slot.per_node) == (3, 1)


def test_equal_nodes_that_hold_several_kinds_have_a_slot_each() -> None:
    found = build_slots(problem(hosts(3, cpu="4"), pods("1", "2", "2", "3")))
    assert [slot.nodes for slot in found] == [(0,), (1,), (2,)]


def test_at_most_as_many_equal_nodes_are_used_as_there_are_members() -> None:
    assert len(build_slots(problem(hosts(9, cpu="4"), pods("1", "2", "3")))) == 3


def test_one_of_equal_nodes_is_used_if_it_holds_all_members() -> None:
    nodes = [*hosts(5, cpu="8"), node("small", cpu="2")]
    assert [len(slot.nodes) for slot in build_slots(problem(nodes, pods("1", "2", "3")))] == [1, 1]


def test_values_are_translated_into_assignments() -> None:
    formulation = formulate_program(problem(hosts(3, cpu="4"), pods("3", "3", "4")))
    assert list(formulation.assignments((2, 1))) == [
        KindAssignment(0, 0),
        KindAssignment(0, 1),
        KindAssignment(1, 2),
    ]


def test_huge_amounts_are_rounded_without_excluding_a_placement() -> None:
    pods = [pod(f"p{i}", "g", requests={"memory": 4_000_000_003 + i}) for i in range(3)]
    program = formulate_program(
        problem([node("n", allocatable={"memory": 8_000_000_005})], pods)
    ).program
    (limit,) = [row for row in program.rows if row.high is not None and row.high > 3]
    one, other, third = (factor for _, factor in limit.terms)
    assert limit.high is not None
    assert one + other <= limit.high < one + other + third
    assert limit.high <= 1 << 20


def test_rows_that_always_hold_are_left_out() -> None:
    builder = IntegerProgramBuilder()
    one, other = builder.add_column(2), builder.add_column(3)
    builder.add_at_most({one: 1, other: 1}, 5)
    builder.add_at_most({one: 1, other: 1}, 4)
    builder.add_only_if([one], {other: 1})
    builder.add_only_if([one], {one: 1})
    assert builder.build().rows == (
        LinearConstraint(((one, 1), (other, 1)), high=4),
        LinearConstraint(((one, 1), (other, -2)), high=0),
    )
