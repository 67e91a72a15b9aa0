"""VolumeBinding: rejects nodes from which the volumes of a pod's claims cannot be used.

Bound claims restrict the nodes by the node affinity of their volumes, whatever other pods do. For
claims that are bound with the pod, `volume_assignments.py` finds volumes node by node.

The score prefers nodes whose storage is emptier after the claims are bound. Volumes that exist come
first: on a node with such volumes for some claims, only these count. On other nodes the storage
counts from which volumes are provisioned, if its driver publishes how much there is. A function, by
default falling from 100 to 0, gives the score of a utilization; the mean over the storage classes
is the score of the node.

    claim of 5Gi      n1: volumes of 10Gi and 50Gi      utilization 50, score 50
                      n2: a volume of 20Gi              utilization 25, score 75

The volumes are those of the snapshot: what other members of a gang take in the same decision is
not left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from phalanx.api.resources import exact_value
from phalanx.api.selectors import selector_requirements
from phalanx.api.validation.checks import minimum, optional, struct
from phalanx.scheduler.cluster.node_constraints import nodes_matching_any, terms_of
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray, Snapshot, SnapshotCache
from phalanx.scheduler.decision import NODE_EVENTS, ClusterEvent
from phalanx.scheduler.plugins.arguments import (
    UTILIZATION_SHAPE_RULES,
    Int32,
    PluginArgs,
    UtilizationShapePoint,
)
from phalanx.scheduler.plugins.node_resources_fit import UtilizationPoint, interpolate
from phalanx.scheduler.plugins.plugin import (
    Arguments,
    Filter,
    FilterDependency,
    NormalizedScore,
    Plugin,
    Rejections,
)
from phalanx.scheduler.plugins.plugin_context import PluginContext
from phalanx.scheduler.plugins.volume_assignments import (
    VolumeAssignments,
    count_kib,
    provisionable_nodes,
    smallest_volumes,
)
from phalanx.scheduler.volumes.demand import UNBOUND_IMMEDIATE, UnboundClaim, VolumeDemand

AFFINITY_CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
VOLUME_MISSING = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"

#: By default, emptier storage wins.
DEFAULT_SHAPE: Sequence[UtilizationPoint] = ((0, 100), (100, 0))
_CACHE_LIMIT = 64

#: By demand: the score of each node, and the state of the snapshot that it was computed for.
_SCORES: SnapshotCache[dict[tuple[object, VolumeDemand], tuple[object, IntArray]]] = SnapshotCache(
    dict
)


# ---- the filter ----------------------------------------------------------------------------------


def _reject_statically(context: PluginContext) -> Rejections:
    """Reject nodes whatever other pods use: claims with a problem, and bound claims."""
    demand, snapshot = context.shape.volumes, context.snapshot
    if demand.problem:
        yield demand.problem, np.ones(len(snapshot), bool)
        return
    if demand.affinities:
        yield AFFINITY_CONFLICT, ~_nodes_of_volumes(context)
    if demand.lacks_volume:
        yield VOLUME_MISSING, np.ones(len(snapshot), bool)


def _nodes_of_volumes(context: PluginContext) -> BoolArray:
    """The nodes from which the volumes of bound claims can be used."""
    mask = np.ones(len(context.snapshot), bool)
    for affinity in context.shape.volumes.affinities:
        mask &= nodes_matching_any(context.snapshot, terms_of(affinity))
    return mask


def _reject(context: PluginContext) -> Rejections:
    demand, size = context.shape.volumes, len(context.snapshot)
    remaining = context.candidates.copy()
    for reason, mask in _reject_statically(context):
        yield reason, mask
        remaining &= ~mask
    if not demand.unbound or demand.problem:
        return
    volumes = context.volumes or VolumeAssignments(context.snapshot)
    rejected: dict[str, BoolArray] = {}
    for i in np.flatnonzero(remaining).tolist():
        found = volumes.find_volumes(demand, i)
        if isinstance(found, str):
            rejected.setdefault(found, np.zeros(size, bool))[i] = True
    yield from rejected.items()


def _suggest_cure(context: PluginContext, nodes: BoolArray) -> str:
    demand, name = context.shape.volumes, context.snapshot.names[nodes.argmax()]
    if demand.problem == UNBOUND_IMMEDIATE:
        return "create the storage classes or volumes that the pod's claims lack, or wait for them"
    if demand.problem:
        return f"create what is missing, or wait for it: {demand.problem}"
    if demand.lacks_volume:
        return "restore the volume that a claim of the pod is bound to"
    if _nodes_of_volumes(context).any() and not demand.unbound:
        return "make room on the nodes that the volumes of the pod's claims allow"
    if not demand.unbound:
        return "let the pod use other claims: no node can use the volumes of these"
    classes = ", ".join(dict.fromkeys(one.storage_class for one in demand.unbound))
    return f"add a volume of storage class {classes} that node {name} can use"


# ---- the score -----------------------------------------------------------------------------------


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


# ---- the plugin ----------------------------------------------------------------------------------


class VolumeBindingArgs(PluginArgs, frozen=True):
    """The arguments of VolumeBinding."""

    bind_timeout_seconds: Int32 = 600
    shape: tuple[UtilizationShapePoint, ...] = ()


def _policy_fields(args: VolumeBindingArgs) -> dict[str, float]:
    return {"bind_timeout_seconds": float(args.bind_timeout_seconds)}


def _configure(args: VolumeBindingArgs) -> Plugin:
    points = [(point.utilization, point.score * 10) for point in args.shape]
    return replace(
        VOLUME_BINDING,
        policy_fields=_policy_fields(args),
        score=build_volume_score(points or DEFAULT_SHAPE),
    )


VOLUME_BINDING: Plugin = Plugin(
    "VolumeBinding",
    filter=Filter(
        reject=_reject,
        static_part=_reject_statically,
        suggest_cure=_suggest_cure,
        depends_on=FilterDependency.CLAIMS,
        wakes_on=NODE_EVENTS | {ClusterEvent.VOLUMES_CHANGED},
        is_modelled=True,
    ),
    score=build_volume_score(DEFAULT_SHAPE),
    policy_fields=_policy_fields(VolumeBindingArgs()),
    arguments=Arguments(
        VolumeBindingArgs,
        _configure,
        struct(
            ("bindTimeoutSeconds", optional(minimum(0))),
            ("shape", optional(UTILIZATION_SHAPE_RULES)),
        ),
    ),
)
