"""How nodes rank for a pod that had rather be spread, as a trial goes on."""

from __future__ import annotations

import random

import numpy as np
import pytest

from phalanx.api.core import Node
from phalanx.scheduler.cluster.peers import EVERYBODY, HOSTNAME, ZONE, Spread
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.judging.company import every_node
from phalanx.scheduler.judging.evenness import Evenness, Leaning
from phalanx.scheduler.judging.headcount import Headcount
from tests.scheduler.builders import cluster, node


def nodes(chance: random.Random, count: int) -> list[Node]:
    """Nodes in three zones; some are in none, some have no host name."""
    found = []
    for number in range(count):
        labels = {ZONE: f"z{chance.randrange(3)}", HOSTNAME: f"n{number:02}"}
        missing = [key for key in labels if chance.random() < 0.1]
        found.append(node(f"n{number:02}", {k: v for k, v in labels.items() if k not in missing}))
    return found


def constraints(snapshot: Snapshot) -> list[Evenness]:
    none = np.zeros(len(snapshot), np.int64)
    heads = {
        ZONE: Headcount(snapshot.domains(ZONE), none),
        HOSTNAME: Headcount(every_node(snapshot), none),
    }
    return [
        Evenness(Spread(EVERYBODY, key, skew, is_hard=False), heads[key], itself=True)
        for key, skew in ((ZONE, 5), (HOSTNAME, 3))
    ]


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_what_is_kept_up_is_what_would_be_found_anew(seed: int, explicit: bool) -> None:
    chance = random.Random(seed)
    snapshot = cluster(nodes(chance, 12)).snapshot()
    found, passed = constraints(snapshot), np.ones(len(snapshot), bool)
    kept = Leaning(snapshot, found, explicit=explicit)
    for _ in range(60):
        for one in found:
            one.headcount.add(chance.randrange(len(snapshot)))
        if chance.random() < 0.2:
            passed = passed.copy()
            passed[chance.randrange(len(snapshot))] ^= True
        anew = Leaning(snapshot, found, explicit=explicit)
        assert kept.ranks(passed).tolist() == anew.ranks(passed).tolist()


def test_an_emptier_zone_is_better() -> None:
    snapshot = cluster([node("a", {ZONE: "x"}), node("b", {ZONE: "y"})]).snapshot()
    zone = constraints(snapshot)[:1]
    leaning = Leaning(snapshot, zone, explicit=True)
    passed = np.ones(2, bool)
    assert leaning.ranks(passed).tolist() == [100, 100]
    zone[0].headcount.add(0)
    ranks = leaning.ranks(passed)
    assert ranks[0] < ranks[1]


def test_a_node_without_the_label_counts_last_if_the_pod_asked_for_it() -> None:
    snapshot = cluster([node("a", {ZONE: "x"}), node("b")]).snapshot()
    zone, passed = constraints(snapshot)[:1], np.ones(2, bool)
    assert Leaning(snapshot, zone, explicit=True).ranks(passed).tolist() == [100, 0]
    assert Leaning(snapshot, zone, explicit=False).ranks(passed)[1] > 0
