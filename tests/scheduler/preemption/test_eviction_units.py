"""Which pods a gang evicts: the cases of the unit tests of Kubernetes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from phalanx.api.core import Node, Pod
from phalanx.api.other_kinds import PodDisruptionBudget
from phalanx.scheduler.cluster.group_tree import Group
from phalanx.scheduler.decision import Preempting, Waiting
from tests.scheduler.builders import gang, node
from tests.scheduler.preemption.test_evaluator import (
    budget,
    build_cache,
    decide_for,
    high_priority_gang,
    low_priority_pod,
    victim_names,
    with_labels,
    with_start_time,
)


class VictimCase(NamedTuple):
    """A cluster, and the victims of a gang of one with priority 100."""

    nodes: Sequence[Node]
    pods: Sequence[Pod]
    victims: list[str]
    groups: Sequence[Group] = ()
    budgets: Sequence[PodDisruptionBudget] = ()
    #: How many units of groups are evicted, and how many pods beyond a budget.
    disruptions: int = 0
    violations: int = 0


def sized_nodes(*sizes: int) -> list[Node]:
    """Nodes a, b … that hold so many pods."""
    return [node(name, cpu=str(size)) for name, size in zip("abc", sizes, strict=False)]


OLD, YOUNG = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"
SINGLE = [gang("g", 1, priority=10)]
WHOLE = [gang("g", 2, priority=10, disrupted_as_unit=True)]
MEMBERS = [low_priority_pod("m0", "a", "g"), low_priority_pod("m1", "b", "g")]

ROWS = {
    "E1": VictimCase(
        sized_nodes(2),
        [low_priority_pod("plain", "a"), low_priority_pod("member", "a", "g")],
        ["plain"],
        SINGLE,
    ),
    "E2": VictimCase(
        sized_nodes(2),
        [
            with_start_time(low_priority_pod("old", "a", "g"), OLD),
            with_start_time(low_priority_pod("young", "a", "g"), YOUNG),
        ],
        ["young"],
        SINGLE,
        disruptions=1,
    ),
    "E3": VictimCase(sized_nodes(1, 1), MEMBERS, ["m0", "m1"], WHOLE, disruptions=1),
    "E4": VictimCase(
        sized_nodes(2),
        [
            low_priority_pod("low", "a"),
            low_priority_pod("mid", "a", priority=50),
            low_priority_pod("high", "a", priority=200),
        ],
        ["low", "mid"],
    ),
    "E5": VictimCase(
        sized_nodes(3),
        [with_start_time(low_priority_pod(f"l{n}", "a"), OLD) for n in range(4)],
        ["l2", "l3"],
    ),
    "E6": VictimCase(
        sized_nodes(2),
        [
            with_labels(low_priority_pod("low", "a"), app="db"),
            low_priority_pod("mid", "a", priority=50),
        ],
        ["mid"],
        budgets=[budget(0, app="db")],
    ),
    "E7": VictimCase(
        sized_nodes(2),
        [
            with_labels(low_priority_pod("low", "a"), app="db"),
            with_labels(low_priority_pod("mid", "a", priority=50), app="db"),
        ],
        ["low"],
        budgets=[budget(0, app="db")],
        violations=1,
    ),
    "E8": VictimCase(
        sized_nodes(1, 2),
        [MEMBERS[0], with_labels(MEMBERS[1], app="db"), low_priority_pod("plain", "b")],
        ["plain"],
        WHOLE,
        [budget(0, app="db")],
    ),
    "E10": VictimCase(
        sized_nodes(1, 1),
        [low_priority_pod(f"m{n}", "ab"[n], "g", priority=200) for n in range(2)],
        ["m0", "m1"],
        [gang("g", 2, priority=50, disrupted_as_unit=True)],
        disruptions=1,
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_least_costly_victims_are_chosen(row: VictimCase) -> None:
    decision = decide_for(
        build_cache(row.nodes, row.pods, row.groups, row.budgets), high_priority_gang(1)
    )
    assert victim_names(decision) == row.victims
    assert isinstance(decision, Preempting)
    assert (decision.disruptions, decision.violations) == (row.disruptions, row.violations)


@pytest.mark.parametrize(
    ("pods", "groups"),
    [
        ([low_priority_pod("equal", "a", priority=100)], []),
        ([low_priority_pod("higher", "a", priority=200)], []),
        ([low_priority_pod("m", "a", "g", priority=10)], [gang("g", 1, priority=100)]),
    ],
)
def test_pods_of_equal_priority_are_not_evicted(pods: list[Pod], groups: list[Group]) -> None:
    assert isinstance(
        decide_for(build_cache(sized_nodes(1), pods, groups), high_priority_gang(1)), Waiting
    )


def test_no_eviction_from_an_empty_node_that_is_too_small() -> None:
    assert isinstance(
        decide_for(build_cache(sized_nodes(1), []), high_priority_gang(1, cpu="2")), Waiting
    )
