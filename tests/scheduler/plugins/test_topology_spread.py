"""How nodes rank for a pod that had rather be spread, as a trial goes on."""

from __future__ import annotations

import random

import numpy as np
import pytest

from phalanx.api.core import Node
from phalanx.scheduler.cluster.peer_constraints import ANY_POD, HOSTNAME, ZONE, TopologySpread
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.plugins.peer_counts import DomainCounts, domain_per_node
from phalanx.scheduler.plugins.plugin_context import SoftSpread, SpreadState
from tests.scheduler.builders import cluster, node


def nodes(chance: random.Random, count: int) -> list[Node]:
    """Nodes in three zones; some are in none, some have no host name."""
    found = []
    for number in range(count):
        labels = {ZONE: f"z{chance.randrange(3)}", HOSTNAME: f"n{number:02}"}
        missing = [key for key in labels if chance.random() < 0.1]
        found.append(node(f"n{number:02}", {k: v for k, v in labels.items() if k not in missing}))
    return found


def constraints(snapshot: Snapshot) -> list[SpreadState]:
    none = np.zeros(len(snapshot), np.int64)
    heads = {
        ZONE: DomainCounts(snapshot.domains(ZONE), none),
        HOSTNAME: DomainCounts(domain_per_node(snapshot), none),
    }
    return [
        SpreadState(
            TopologySpread(ANY_POD, key, skew, is_hard=False), heads[key], matches_itself=True
        )
        for key, skew in ((ZONE, 5), (HOSTNAME, 3))
    ]


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_what_is_kept_up_is_what_would_be_found_anew(seed: int, explicit: bool) -> None:
    chance = random.Random(seed)
    snapshot = cluster(nodes(chance, 12)).snapshot()
    found, passed = constraints(snapshot), np.ones(len(snapshot), bool)
    kept = SoftSpread(snapshot, found, explicit=explicit)
    for _ in range(60):
        for one in found:
            one.domain_counts.add(chance.randrange(len(snapshot)))
        if chance.random() < 0.2:
            passed = passed.copy()
            passed[chance.randrange(len(snapshot))] ^= True
        anew = SoftSpread(snapshot, found, explicit=explicit)
        assert kept.score_nodes(passed).tolist() == anew.score_nodes(passed).tolist()


def test_an_emptier_zone_is_better() -> None:
    snapshot = cluster([node("a", {ZONE: "x"}), node("b", {ZONE: "y"})]).snapshot()
    zone = constraints(snapshot)[:1]
    leaning = SoftSpread(snapshot, zone, explicit=True)
    passed = np.ones(2, bool)
    assert leaning.score_nodes(passed).tolist() == [100, 100]
    zone[0].domain_counts.add(0)
    ranks = leaning.score_nodes(passed)
    assert ranks[0] < ranks[1]


def test_a_node_without_the_label_counts_last_if_the_pod_asked_for_it() -> None:
    snapshot = cluster([node("a", {ZONE: "x"}), node("b")]).snapshot()
    zone, passed = constraints(snapshot)[:1], np.ones(2, bool)
    assert SoftSpread(snapshot, zone, explicit=True).score_nodes(passed).tolist() == [100, 0]
    assert SoftSpread(snapshot, zone, explicit=False).score_nodes(passed)[1] > 0
