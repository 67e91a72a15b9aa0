"""Spots: nodes that are equal and equally full are one."""

from __future__ import annotations

import numpy as np
import pytest

from phalanx.api.core import ContainerPort
from phalanx.scheduler.cluster import spot as spots
from phalanx.scheduler.cluster.shape import Ask, shape_of
from phalanx.scheduler.cluster.snapshot import CPU, MEMORY, PODS, IntArray, Port
from phalanx.scheduler.cluster.spot import Rows, Spot, Spots
from phalanx.scheduler.judging.scores import Score
from phalanx.scheduler.placing import view as views
from phalanx.scheduler.placing.trial import Trial
from phalanx.scheduler.placing.view import view_of
from phalanx.scheduler.policy import DEFAULT, Policy
from tests.scheduler.builders import cluster, member, node, pod

COLUMNS = {"cpu": CPU, "memory": MEMORY, "pods": PODS}
ROW = (4000, 1 << 30, 10, 500, 1 << 20, 1, 600, 2 << 20)
HTTP = Port("0.0.0.0", "TCP", 80)


def ask(**amounts: str) -> Ask:
    return shape_of(pod("p", asks=dict(amounts))).ask(COLUMNS)


def test_equal_rows_are_one_spot_and_others_are_not() -> None:
    known = Spots()
    one = known.of(ROW, 3, ())
    assert known.of((*ROW,), 3, ()) is one
    assert known.of((*ROW[:-1], 0), 3, ()) is not one
    assert known.of(ROW, 3, (HTTP,)) is not one


def test_a_spot_tells_room_load_and_what_scores_count() -> None:
    spot = Spots().of(ROW, 3, (HTTP,))
    assert (spot.room, spot.used, spot.scored, spot.ports) == (ROW[:3], ROW[3:6], ROW[6:], (HTTP,))


def test_a_pod_makes_another_spot_of_it() -> None:
    known = Spots()
    web = shape_of(pod("web", cpu="1", memory="1Mi", ports=(ContainerPort(80, 80),)))
    after = known.after(known.of(ROW, 3, ()), web.ask(COLUMNS))
    assert after is known.of((*ROW[:3], 1500, 2 << 20, 2, 1600, 3 << 20), 3, (HTTP,))


def test_in_which_order_pods_come_does_not_matter() -> None:
    known = Spots()
    start, one, two = known.of(ROW, 3, ()), ask(cpu="1", memory="1Mi"), ask(cpu="250m")
    assert known.after(known.after(start, one), two) is known.after(known.after(start, two), one)


def test_what_is_remembered_is_bounded_and_forgetting_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapshot = cluster([node("a"), node("b", cpu="3"), node("c", cpu="5")]).snapshot()
    members = [member(pod(f"p{n}", cpu="1")) for n in range(9)]

    def placed() -> list[object]:
        trial = Trial(snapshot, DEFAULT, members)
        return [trial.place(one) for one in members]

    before = placed()
    monkeypatch.setattr(spots, "_LIMIT", 2)
    monkeypatch.setattr(views, "_SPOTS_LIMIT", 2)
    snapshot.views.clear()
    assert placed() == before


class Counting:
    """An opinion that counts how often it is asked about a single node."""

    def __init__(self) -> None:
        self.times = 0

    def here(self, spot: Spot) -> int:
        self.times += 1
        return 1

    def everywhere(self, rows: Rows) -> IntArray:
        return np.ones(len(rows.room), np.int64)


def test_equal_nodes_are_judged_once() -> None:
    opinion = Counting()
    policy = Policy(scores=(Score("counting", 1, lambda shape, columns: opinion),))
    snapshot = cluster([node(f"n{n:02}") for n in range(20)]).snapshot()
    view = view_of(snapshot, policy, shape_of(pod("p", cpu="1")))
    keys = [view.key(i, view.after[snapshot.spot(i)][0]) for i in range(20)]
    assert keys == sorted(set(keys))
    # As they are, and with a pod on them.
    assert opinion.times == 2
