"""How does a node compare with the others that would do? One row per opinion, 0 to 100, weighted.

Unlike the scores of `scores.py` these depend on which nodes passed the filters, or on what is on
other nodes, so they are asked again for every pod that they concern. Where none concerns a pod,
all nodes are equal here and nothing is asked at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray
from phalanx.scheduler.cluster.wishes import Place, within
from phalanx.scheduler.judging.scene import Scene


@dataclass(frozen=True, slots=True)
class Comparison:
    """One opinion and its weight; `ranks` gets the nodes that passed and gives 0 to 100."""

    name: str
    weight: int
    concerns: Callable[[Scene], bool]
    ranks: Callable[[Scene, BoolArray], IntArray]


def _is_disliked(scene: Scene) -> bool:
    wishes = scene.shape.wishes
    return any(wishes.dislikes(taints) for taints in scene.snapshot.taints)


def _taints(scene: Scene, passed: BoolArray) -> IntArray:
    """Fewer taints that one would rather not meet are better."""
    snapshot, wishes = scene.snapshot, scene.shape.wishes
    raw = np.array([wishes.dislikes(taints) for taints in snapshot.taints], np.int64)
    return 100 - _share(raw[snapshot.taint_class], passed)


def preferences(added: tuple[tuple[int, Place], ...] = ()) -> Comparison:
    """More of the places are better that the pod prefers, and that all pods are made to prefer."""

    def concerns(scene: Scene) -> bool:
        return bool(added or scene.shape.wishes.preferred)

    def ranks(scene: Scene, passed: BoolArray) -> IntArray:
        raw = np.zeros(len(scene.snapshot), np.int64)
        for weight, place in (*added, *scene.shape.wishes.preferred):
            raw += weight * within(scene.snapshot, place)
        return _share(raw, passed)

    return Comparison("NodeAffinity", 2, concerns, ranks)


def _is_spread(scene: Scene) -> bool:
    return bool(scene.among and scene.among.rather)


def _evenness(scene: Scene, passed: BoolArray) -> IntArray:
    """Emptier domains are better."""
    assert scene.among is not None
    assert scene.among.rather is not None
    return scene.among.rather.ranks(passed)


def _has_company(scene: Scene) -> bool:
    return bool(scene.among and scene.among.likes)


def _company(scene: Scene, passed: BoolArray) -> IntArray:
    """More of those to be near, and fewer of those to be apart from, are better."""
    assert scene.among is not None
    raw = np.zeros(len(passed), np.int64)
    for weight, heads in scene.among.likes:
        raw += weight * heads.here()
    chosen = raw[passed]
    most, least = int(chosen.max()), int(chosen.min())
    if most == least:
        return np.zeros(len(passed), np.int64)
    return np.asarray(100 * ((raw - least) / (most - least)), np.int64)


def _share(raw: IntArray, passed: BoolArray) -> IntArray:
    """In per cent of the largest."""
    most = int(raw[passed].max(initial=0))
    return raw * 100 // most if most else raw


COMPARISONS = (
    Comparison("TaintToleration", 3, _is_disliked, _taints),
    preferences(),
    Comparison("PodTopologySpread", 2, _is_spread, _evenness),
    Comparison("InterPodAffinity", 2, _has_company, _company),
)
