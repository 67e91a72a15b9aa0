"""Runs filters over all nodes: which nodes a filter rejects, and why no node takes a pod.

A node counts under the first filter that rejects it. `build_refusal` is called only after no node
was found; it also collects the smallest changes ("cures") that would let the pod run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from operator import or_

import numpy as np

from phalanx.scheduler.cluster.snapshot import BoolArray
from phalanx.scheduler.decision import ClusterEvent, Refusal
from phalanx.scheduler.devices.requests import describe_claim
from phalanx.scheduler.plugins.node_affinity import constraint_names, format_labels, missing_labels
from phalanx.scheduler.plugins.plugin import Filter, FilterDependency
from phalanx.scheduler.plugins.plugin_context import PluginContext


def run_filter(filter_: Filter, context: PluginContext) -> BoolArray:
    """Run one filter over all nodes: the nodes that it rejects. The result must not be modified."""
    masks = [mask for _, mask in filter_.reject(context)]
    return reduce(or_, masks) if masks else np.zeros(len(context.snapshot), bool)


def run_static_filter(filter_: Filter, context: PluginContext) -> BoolArray | None:
    """Run what depends on node objects alone: the rejected nodes, None if nothing does."""
    if filter_.depends_on is FilterDependency.NODES:
        return run_filter(filter_, context)
    if filter_.static_part is None:
        return None
    masks = [mask for _, mask in filter_.static_part(context)]
    return reduce(or_, masks) if masks else None


def build_refusal(filters: Mapping[str, Filter], context: PluginContext) -> Refusal:
    """Explain why no candidate node takes a pod."""
    counts: dict[str, int] = {}
    candidates = context.candidates
    remaining = candidates.copy()
    rejected_by: dict[str, BoolArray] = {}
    rejecting: dict[str, None] = {}
    wakes_on = {ClusterEvent.NODE_ADDED}
    for name, filter_ in filters.items():
        rejected = None
        for reason, mask in filter_.reject(context):
            rejected = mask if rejected is None else rejected | mask
            if count := int(np.count_nonzero(mask & remaining)):
                counts[reason] = count
                rejecting[name] = None
                wakes_on |= filter_.wakes_on
        if rejected is not None:
            remaining &= ~rejected
            rejected_by[name] = rejected
    obstacles = np.zeros(len(candidates), np.int64)
    for nodes in rejected_by.values():
        obstacles += nodes
    cures: list[str] = []
    for name, nodes in rejected_by.items():
        suggest_cure = filters[name].suggest_cure
        rejected_alone = nodes & (obstacles == 1) & candidates
        if suggest_cure is not None and rejected_alone.any():
            cures.append(suggest_cure(context, rejected_alone))
    return Refusal(
        int(np.count_nonzero(candidates)),
        tuple(counts.items()),
        (*cures, *_cure_with_new_node(context)),
        wakes_on=frozenset(wakes_on),
        filters=tuple(rejecting),
    )


def _cure_with_new_node(context: PluginContext) -> Iterator[str]:
    """Describe a node that would take the pod, unless no node at all can.

    Its affinity may allow none, and what a claim lacks comes with no node.
    """
    shape, devices = context.shape, context.snapshot.devices
    volumes, claims = shape.volumes, shape.claims
    if claims.problem or claims.node_selectors or volumes.problem or volumes.lacks_volume:
        return
    wanted = dict.fromkeys(
        describe_claim(devices.requests.get(claim.spec), devices.inventory)
        for claim in claims.unallocated
    )
    constraints, text = shape.node_constraints, f"add a node with capacity for {shape}"
    text = " and ".join((text, *wanted))
    has_volumes = volumes.affinities or volumes.zones or volumes.unbound
    place = ", where the volumes of its claims can be used" if has_volumes else ""
    labels = missing_labels(constraints, {}, "")
    if labels is not None:
        yield text + (f" and the label {format_labels(labels)}" if labels else "") + place
    elif any(
        term.label_requirements or term.name_requirements
        for term in constraints.required_terms or ()
    ):
        yield f"{text} that the pod's {constraint_names(constraints)} would allow{place}"
