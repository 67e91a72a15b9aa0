"""The score of VolumeBinding: nodes whose storage is emptier after the claims of a pod are bound.

Volumes that exist come first: on a node with such volumes for some claims, only these count. On
other nodes the storage counts from which volumes are provisioned, if its driver publishes how much
there is. A function, by default falling from 100 to 0, gives the score of a utilization; the mean
over the storage classes is the score of the node.

    claim of 5Gi      n1: volumes of 10Gi and 50Gi      utilization 50, score 50
                      n2: a volume of 20Gi              utilization 25, score 75

The volumes are those of the snapshot: what other members of a gang take in the same decision is
not left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from phalanx.api.resources import exact_value
from phalanx.api.selectors import selector_requirements
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray, Snapshot, SnapshotCache
from phalanx.scheduler.plugins.node_resources_fit import UtilizationPoint, interpolate
from phalanx.scheduler.plugins.plugin import NormalizedScore
from phalanx.scheduler.plugins.plugin_context import PluginContext
from phalanx.scheduler.plugins.volume_assignments import (
    count_kib,
    provisionable_nodes,
    smallest_volumes,
)
from phalanx.scheduler.volumes.demand import UnboundClaim, VolumeDemand

#: By default, emptier storage wins.
DEFAULT_SHAPE: Sequence[UtilizationPoint] = ((0, 100), (100, 0))
_CACHE_LIMIT = 64

#: By demand: the score of each node, and the state of the snapshot that it was computed for.
_SCORES: SnapshotCache[dict[tuple[object, VolumeDemand], tuple[object, IntArray]]] = SnapshotCache(
    dict
)


def build_volume_score(points: Sequence[UtilizationPoint]) -> NormalizedScore:
    """Build the score for the function that these points describe."""
    by_utilization = np.array([interpolate(points, at) for at in range(101)], np.int64)

    def scores_of(context: PluginContext) -> IntArray:
        snapshot, demand = context.snapshot, context.shape.volumes
        state, cached = snapshot.volumes, _SCORES.of(snapshot)
        stamp = (id(state), state.revision, snapshot.epoch, len(state.changed_volumes))
        key = (tuple(points), demand)
        found = cached.get(key)
        if found is None or found[0] != stamp:
            if len(cached) >= _CACHE_LIMIT:
                cached.clear()
            found = cached[key] = (stamp, _score_nodes(snapshot, demand, by_utilization))
        return found[1]

    def applies_to(context: PluginContext) -> bool:
        demand = context.shape.volumes
        if not demand.unbound or demand.problem or not len(context.snapshot):
            return False
        scores = scores_of(context)
        return bool((scores != scores[0]).any())

    def score_nodes(context: PluginContext, passed: BoolArray) -> IntArray:
        return scores_of(context)

    return NormalizedScore(applies_to, score_nodes)


def _score_nodes(snapshot: Snapshot, demand: VolumeDemand, by_utilization: IntArray) -> IntArray:
    """Score every node by the storage of its classes."""
    claims = [
        one
        for one in demand.unbound
        if not one.selected_node
        and (one.key is None or snapshot.volumes.find_reserved(one.key) is None)
    ]
    static = _mean_scores(
        snapshot, claims, smallest_volumes, by_utilization=by_utilization, adds=True
    )
    dynamic = _mean_scores(
        snapshot, claims, _storage_capacities, by_utilization=by_utilization, adds=False
    )
    scores: IntArray = np.where(static >= 0, static, np.maximum(dynamic, 0))
    return scores


def _mean_scores(
    snapshot: Snapshot,
    claims: Sequence[UnboundClaim],
    find_capacities: Callable[[Snapshot, UnboundClaim], IntArray],
    *,
    by_utilization: IntArray,
    adds: bool,
) -> IntArray:
    """Return the mean over the classes that have some capacity on a node; -1 where none has.

    `adds`: each claim has a capacity of its own; otherwise the claims of a class share one.
    """
    size = len(snapshot)
    requested: dict[str, IntArray] = {}
    capacity: dict[str, IntArray] = {}
    for claim in claims:
        name, found = claim.storage_class, find_capacities(snapshot, claim)
        before = capacity.get(name, np.zeros(size, np.int64))
        capacity[name] = before + found if adds else np.maximum(before, found)
        amount = np.where(found > 0, count_kib(claim.size), 0)
        requested[name] = requested.get(name, np.zeros(size, np.int64)) + amount
    total, classes = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for name, amounts in capacity.items():
        has_any = amounts > 0
        used = np.minimum(requested[name] * 100 // np.maximum(amounts, 1), 100)
        total += np.where(has_any, by_utilization[used], 0)
        classes += has_any
    means: IntArray = np.where(
        classes > 0, (2 * total + classes) // (2 * np.maximum(classes, 1)), -1
    )
    return means


def _storage_capacities(snapshot: Snapshot, claim: UnboundClaim) -> IntArray:
    """Return how much storage each node has from which a claim can be provisioned; 0 for none."""
    state, found = snapshot.volumes, np.zeros(len(snapshot), np.int64)
    storage_class = state.classes.get(claim.storage_class)
    driver = state.drivers.get(storage_class.provisioner) if storage_class else None
    if driver is None or not driver.spec.storage_capacity:
        return found
    for _, one in sorted(state.capacities.get(claim.storage_class, {}).items()):
        limit = one.maximum_volume_size if one.maximum_volume_size is not None else one.capacity
        if limit is None or exact_value(limit) < claim.size or one.node_topology is None:
            continue
        mask = found == 0
        for need in selector_requirements(one.node_topology):
            mask &= snapshot.nodes_matching(need)
        found[mask] = count_kib(exact_value(one.capacity or 0))
    return np.where(provisionable_nodes(snapshot, claim), found, 0)
