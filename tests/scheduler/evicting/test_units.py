"""Whom a gang evicts, row by row of the unit tests that Kubernetes has for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from phalanx.api.budget import Budget
from phalanx.api.core import Node, Pod
from phalanx.scheduler.cluster.forest import Group
from phalanx.scheduler.decision import Preempting, Waiting
from tests.scheduler.builders import gang, node
from tests.scheduler.evicting.test_preemption import (
    budget,
    decided,
    high,
    labelled,
    low,
    started,
    victims,
    world,
)


class Row(NamedTuple):
    """Who is there, and who goes for one member of priority 100."""

    nodes: Sequence[Node]
    pods: Sequence[Pod]
    victims: list[str]
    groups: Sequence[Group] = ()
    budgets: Sequence[Budget] = ()
    #: How many units of groups are lost, and how many pods beyond a budget.
    disruptions: int = 0
    violations: int = 0


def slots(*sizes: int) -> list[Node]:
    """Nodes a, b … that have room for so many pods."""
    return [node(name, cpu=str(size)) for name, size in zip("abc", sizes, strict=False)]


OLD, YOUNG = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"
SINGLE = [gang("g", 1, priority=10)]
WHOLE = [gang("g", 2, priority=10, goes_whole=True)]
MEMBERS = [low("m0", "a", "g"), low("m1", "b", "g")]

ROWS = {
    "E1": Row(slots(2), [low("plain", "a"), low("member", "a", "g")], ["plain"], SINGLE),
    "E2": Row(
        slots(2),
        [started(low("old", "a", "g"), OLD), started(low("young", "a", "g"), YOUNG)],
        ["young"], SINGLE, disruptions=1,
    ),
    "E3": Row(slots(1, 1), MEMBERS, ["m0", "m1"], WHOLE, disruptions=1),
    "E4": Row(
        slots(2),
        [low("low", "a"), low("mid", "a", priority=50), low("high", "a", priority=200)],
        ["low", "mid"],
    ),
    "E5": Row(slots(3), [started(low(f"l{n}", "a"), OLD) for n in range(4)], ["l2", "l3"]),
    "E6": Row(
        slots(2), [labelled(low("low", "a"), app="db"), low("mid", "a", priority=50)], ["mid"],
        budgets=[budget(0, app="db")],
    ),
    "E7": Row(
        slots(2),
        [labelled(low("low", "a"), app="db"), labelled(low("mid", "a", priority=50), app="db")],
        ["low"], budgets=[budget(0, app="db")], violations=1,
    ),
    "E8": Row(
        slots(1, 2), [MEMBERS[0], labelled(MEMBERS[1], app="db"), low("plain", "b")], ["plain"],
        WHOLE, [budget(0, app="db")],
    ),
    "E10": Row(
        slots(1, 1), [low(f"m{n}", "ab"[n], "g", priority=200) for n in range(2)], ["m0", "m1"],
        [gang("g", 2, priority=50, goes_whole=True)], disruptions=1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_those_go_who_are_lost_most_lightly(row: Row) -> None:
    decision = decided(world(row.nodes, row.pods, row.groups, row.budgets), high(1))
    assert victims(decision) == row.victims
    assert isinstance(decision, Preempting)
    assert (decision.disruptions, decision.violations) == (row.disruptions, row.violations)


@pytest.mark.parametrize(
    ("pods", "groups"),
    [
        ([low("equal", "a", priority=100)], []),
        ([low("higher", "a", priority=200)], []),
        ([low("m", "a", "g", priority=10)], [gang("g", 1, priority=100)]),
    ],
)
def test_nobody_goes_who_is_not_less_important(pods: list[Pod], groups: list[Group]) -> None:
    assert isinstance(decided(world(slots(1), pods, groups), high(1)), Waiting)


def test_nobody_goes_from_a_node_that_is_empty_and_too_small() -> None:
    assert isinstance(decided(world(slots(1), []), high(1, cpu="2")), Waiting)
