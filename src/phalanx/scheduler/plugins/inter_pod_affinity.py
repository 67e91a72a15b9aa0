"""InterPodAffinity: rejects nodes that violate required pod affinity or anti-affinity, of the pod
or of pods that already run, and scores preferred terms.

`plugin_context.py` counts the pods of each term per domain.
"""

from __future__ import annotations

import numpy as np

from phalanx.api.validation.checks import in_range, optional, struct
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray
from phalanx.scheduler.decision import PEER_EVENTS
from phalanx.scheduler.plugins.arguments import Int32, PluginArgs
from phalanx.scheduler.plugins.peer_counts import DomainCounts
from phalanx.scheduler.plugins.plugin import (
    Arguments,
    Filter,
    FilterDependency,
    NormalizedScore,
    Plugin,
    Rejections,
    keep_first_reason,
)
from phalanx.scheduler.plugins.plugin_context import (
    PluginContext,
    PodAffinityState,
)

AFFINITY_UNMET = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY_VIOLATED = "node(s) didn't match pod anti-affinity rules"
EXISTING_ANTI_AFFINITY_VIOLATED = "node(s) didn't satisfy existing pods anti-affinity rules"


def _reject(context: PluginContext) -> Rejections:
    if context.affinity_state is None:
        return iter(())
    return keep_first_reason(_violations(context.affinity_state), len(context.snapshot))


def _violations(state: PodAffinityState) -> Rejections:
    for unmet in state.unmet_affinity():
        yield AFFINITY_UNMET, unmet
    for _, counts in state.anti_affinity:
        yield ANTI_AFFINITY_VIOLATED, _has_pods(counts)
    for _, counts in state.existing_anti_affinity:
        yield EXISTING_ANTI_AFFINITY_VIOLATED, _has_pods(counts)


def _has_pods(counts: DomainCounts) -> BoolArray:
    return counts.counts_per_node() > 0


def _suggest_cure(context: PluginContext, nodes: BoolArray) -> str:
    assert context.affinity_state is not None
    node, state = nodes.argmax(), context.affinity_state
    name = context.snapshot.names[node]
    for term, counts in state.anti_affinity:
        if _has_pods(counts)[node]:
            return (
                f"move the pods with {term.selector} away from the {term.topology_key} "
                f"of node {name}"
            )
    if keys := [
        existing.term.topology_key
        for existing, counts in state.existing_anti_affinity
        if _has_pods(counts)[node]
    ]:
        return (
            "move the pods whose anti-affinity excludes the pod away from "
            f"the {min(keys)} of node {name}"
        )
    terms = ", ".join(
        f"{term.selector} in its {term.topology_key}"
        for term in context.shape.peer_constraints.affinity
    )
    return f"run a pod with {terms} near node {name}"


def _has_preferred_terms(context: PluginContext) -> bool:
    return bool(context.affinity_state and context.affinity_state.preferred)


def _score_preferred_terms(context: PluginContext, passed: BoolArray) -> IntArray:
    assert context.affinity_state is not None
    total = np.zeros(len(passed), np.int64)
    for weight, counts in context.affinity_state.preferred:
        total += weight * counts.counts_per_node()
    compared = total[passed]
    most, least = int(compared.max()), int(compared.min())
    if most == least:
        return np.zeros(len(passed), np.int64)
    return np.asarray(100 * ((total - least) / (most - least)), np.int64)


class InterPodAffinityArgs(PluginArgs, frozen=True):
    """The arguments of InterPodAffinity."""

    hard_pod_affinity_weight: Int32 = 1
    ignore_preferred_terms_of_existing_pods: bool = False


_ARGS_RULES = struct(("hardPodAffinityWeight", optional(in_range(0, 100))))


def inter_pod_affinity(args: InterPodAffinityArgs) -> Plugin:
    """The plugin with the weights of terms of existing pods."""
    return Plugin(
        "InterPodAffinity",
        filter=Filter(
            reject=_reject,
            suggest_cure=_suggest_cure,
            depends_on=FilterDependency.PEERS,
            wakes_on=PEER_EVENTS,
            is_modelled=True,
        ),
        score=NormalizedScore(_has_preferred_terms, _score_preferred_terms),
        weight=2,
        arguments=Arguments(InterPodAffinityArgs, inter_pod_affinity, _ARGS_RULES),
        policy_fields={
            "hard_pod_affinity_weight": args.hard_pod_affinity_weight,
            "honors_existing_preferences": not args.ignore_preferred_terms_of_existing_pods,
        },
    )


INTER_POD_AFFINITY = inter_pod_affinity(InterPodAffinityArgs())
