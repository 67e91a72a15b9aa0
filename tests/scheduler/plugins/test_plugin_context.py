"""Soft spread scores while a simulation places pods."""

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


def nodes(rng: random.Random, count: int) -> list[Node]:
    """Nodes in three zones; some have no zone label, some no host name label."""
    found = []
    for number in range(count):
        labels = {ZONE: f"z{rng.randrange(3)}", HOSTNAME: f"n{number:02}"}
        missing = [key for key in labels if rng.random() < 0.1]
        found.append(node(f"n{number:02}", {k: v for k, v in labels.items() if k not in missing}))
    return found


def constraints(snapshot: Snapshot) -> list[SpreadState]:
    none = np.zeros(len(snapshot), np.int64)
    counts = {
        ZONE: DomainCounts(snapshot.domains(ZONE), none),
        HOSTNAME: DomainCounts(domain_per_node(snapshot), none),
    }
    return [
        SpreadState(
            TopologySpread(ANY_POD, key, skew, is_hard=False), counts[key], matches_itself=True
        )
        for key, skew in ((ZONE, 5), (HOSTNAME, 3))
    ]


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_updated_scores_equal_recomputed_scores(seed: int, explicit: bool) -> None:
    rng = random.Random(seed)
    snapshot = cluster(nodes(rng, 12)).snapshot()
    found, passed = constraints(snapshot), np.ones(len(snapshot), bool)
    updated = SoftSpread(snapshot, found, explicit=explicit)
    for _ in range(60):
        for one in found:
            one.domain_counts.add(rng.randrange(len(snapshot)))
        if rng.random() < 0.2:
            passed = passed.copy()
            passed[rng.randrange(len(snapshot))] ^= True
        recomputed = SoftSpread(snapshot, found, explicit=explicit)
        assert updated.score_nodes(passed).tolist() == recomputed.score_nodes(passed).tolist()


def test_emptier_zone_scores_higher() -> None:
    snapshot = cluster([node("a", {ZONE: "x"}), node("b", {ZONE: "y"})]).snapshot()
    zone = constraints(snapshot)[:1]
    soft_spread = SoftSpread(snapshot, zone, explicit=True)
    passed = np.ones(2, bool)
    assert soft_spread.score_nodes(passed).tolist() == [100, 100]
    zone[0].domain_counts.add(0)
    ranks = soft_spread.score_nodes(passed)
    assert ranks[0] < ranks[1]


def test_node_without_the_label_scores_zero_for_explicit_constraints() -> None:
    snapshot = cluster([node("a", {ZONE: "x"}), node("b")]).snapshot()
    zone, passed = constraints(snapshot)[:1], np.ones(2, bool)
    assert SoftSpread(snapshot, zone, explicit=True).score_nodes(passed).tolist() == [100, 0]
    assert SoftSpread(snapshot, zone, explicit=False).score_nodes(passed)[1] > 0
