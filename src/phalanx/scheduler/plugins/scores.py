"""How well does a pod of this shape sit on this node? One row per opinion, 0 to 100, weighted.

A score reads one node only, so it is computed for many nodes at once when a view is built and for
a single node when its load moves; both forms give the same integers. Nothing here forbids a node.

How does a node compare with the others that would do? One row per opinion, 0 to 100, weighted.

Unlike the scores of `scores.py` these depend on which nodes passed the filters, or on what is on
other nodes, so they are asked again for every pod that they concern. Where none concerns a pod,
all nodes are equal here and nothing is asked at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from phalanx.scheduler.cluster.node_class import NodeClass, NodeTable
from phalanx.scheduler.cluster.node_constraints import NodeSelectorTerm, nodes_matching_term
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray, Snapshot
from phalanx.scheduler.plugins.node_resources import (
    allocation_scorer_factory,
    balance_scorer_factory,
)
from phalanx.scheduler.plugins.plugin_context import PluginContext


class LoadScorer(Protocol):
    """What one shape makes of the load of nodes, in the columns of one snapshot."""

    def score_node(self, node_class: NodeClass) -> int:
        """What one node is worth, loaded like that."""
        ...

    def score_nodes(self, rows: NodeTable) -> IntArray:
        """What many nodes are worth."""
        ...


@dataclass(frozen=True, slots=True)
class ScorePlugin:
    """One sort of opinion and its weight."""

    name: str
    weight: int
    build_scorer: Callable[[PodShape, Mapping[str, int]], LoadScorer]


@dataclass(frozen=True, slots=True)
class StaticScorePlugin:
    """One opinion about what nodes are, whatever is on them; None where it has none."""

    name: str
    weight: int
    score_nodes: Callable[[Snapshot, PodShape], IntArray | None]


SCORE_PLUGINS = (
    ScorePlugin("NodeResourcesFit", 1, allocation_scorer_factory()),
    ScorePlugin("NodeResourcesBalancedAllocation", 1, balance_scorer_factory()),
)

_MEBIBYTE = 1024 * 1024
#: Less of an image than this, and more than that per container, make no difference.
_MIN_IMAGE_BYTES, _MAX_IMAGE_BYTES = 23 * _MEBIBYTE, 1000 * _MEBIBYTE


def score_image_locality(snapshot: Snapshot, shape: PodShape) -> IntArray | None:
    """How much of a pod's images a node has, those that few nodes have counting less."""
    images = shape.node_constraints.images
    found = [sizes for sizes in map(snapshot.image_sizes, images) if sizes.any()]
    if not found:
        return None
    total = np.zeros(len(snapshot), np.int64)
    for sizes in found:
        share = np.count_nonzero(sizes) / len(snapshot)
        total += np.asarray(sizes * share, np.int64)
    most = _MAX_IMAGE_BYTES * len(images)
    clamped = np.clip(total, _MIN_IMAGE_BYTES, most)
    return np.asarray(100 * (clamped - _MIN_IMAGE_BYTES) // (most - _MIN_IMAGE_BYTES), np.int64)


STATIC_SCORE_PLUGINS = (StaticScorePlugin("ImageLocality", 1, score_image_locality),)


@dataclass(frozen=True, slots=True)
class NormalizedScorePlugin:
    """One opinion and its weight; `ranks` gets the nodes that passed and gives 0 to 100."""

    name: str
    weight: int
    applies_to: Callable[[PluginContext], bool]
    score_nodes: Callable[[PluginContext, BoolArray], IntArray]


def _has_untolerated_soft_taints(context: PluginContext) -> bool:
    wishes = context.shape.node_constraints
    return any(wishes.count_untolerated_soft_taints(taints) for taints in context.snapshot.taints)


def _score_taints(context: PluginContext, passed: BoolArray) -> IntArray:
    """Fewer taints that one would rather not meet are better."""
    snapshot, wishes = context.snapshot, context.shape.node_constraints
    raw = np.array(
        [wishes.count_untolerated_soft_taints(taints) for taints in snapshot.taints], np.int64
    )
    return 100 - _percent_of_max(raw[snapshot.taint_class], passed)


def preferred_node_affinity(
    added: tuple[tuple[int, NodeSelectorTerm], ...] = (),
) -> NormalizedScorePlugin:
    """More of the places are better that the pod prefers, and that all pods are made to prefer."""

    def concerns(scene: PluginContext) -> bool:
        return bool(added or scene.shape.node_constraints.preferred_terms)

    def ranks(scene: PluginContext, passed: BoolArray) -> IntArray:
        raw = np.zeros(len(scene.snapshot), np.int64)
        for weight, place in (*added, *scene.shape.node_constraints.preferred_terms):
            raw += weight * nodes_matching_term(scene.snapshot, place)
        return _percent_of_max(raw, passed)

    return NormalizedScorePlugin("NodeAffinity", 2, concerns, ranks)


def _has_soft_spread(context: PluginContext) -> bool:
    return bool(context.affinity_state and context.affinity_state.soft_spread)


def _score_spread(context: PluginContext, passed: BoolArray) -> IntArray:
    """Emptier domains are better."""
    assert context.affinity_state is not None
    assert context.affinity_state.soft_spread is not None
    return context.affinity_state.soft_spread.score_nodes(passed)


def _has_preferred_peers(context: PluginContext) -> bool:
    return bool(context.affinity_state and context.affinity_state.preferred)


def _score_peers(context: PluginContext, passed: BoolArray) -> IntArray:
    """More of those to be near, and fewer of those to be apart from, are better."""
    assert context.affinity_state is not None
    raw = np.zeros(len(passed), np.int64)
    for weight, heads in context.affinity_state.preferred:
        raw += weight * heads.counts_per_node()
    chosen = raw[passed]
    most, least = int(chosen.max()), int(chosen.min())
    if most == least:
        return np.zeros(len(passed), np.int64)
    return np.asarray(100 * ((raw - least) / (most - least)), np.int64)


def _percent_of_max(raw: IntArray, passed: BoolArray) -> IntArray:
    """In per cent of the largest."""
    most = int(raw[passed].max(initial=0))
    return raw * 100 // most if most else raw


NORMALIZED_SCORE_PLUGINS = (
    NormalizedScorePlugin("TaintToleration", 3, _has_untolerated_soft_taints, _score_taints),
    preferred_node_affinity(),
    NormalizedScorePlugin("PodTopologySpread", 2, _has_soft_spread, _score_spread),
    NormalizedScorePlugin("InterPodAffinity", 2, _has_preferred_peers, _score_peers),
)
