"""PodTopologySpread: rejects nodes that would violate a hard spread constraint, and prefers
domains with fewer matching pods for soft constraints.

`plugin_context.py` counts the pods per domain. The argument `defaultConstraints` sets how pods of
Services are spread that have no constraints of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.api.core import TopologySpreadConstraint
from phalanx.api.errors import Causes, forbidden, invalid
from phalanx.api.validation.checks import all_of, each, one_of, optional, struct
from phalanx.api.validation.pod_scheduling import SPREAD_CONSTRAINTS
from phalanx.scheduler.cluster.peer_constraints import (
    ANY_POD,
    SYSTEM_DEFAULTS,
    SpreadDefaults,
    topology_spread_of,
)
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray
from phalanx.scheduler.decision import PEER_EVENTS
from phalanx.scheduler.plugins.arguments import PluginArgs, and_then, matches_definition
from phalanx.scheduler.plugins.plugin import (
    Arguments,
    Filter,
    FilterDependency,
    NormalizedScore,
    Plugin,
    Rejections,
    keep_first_reason,
)
from phalanx.scheduler.plugins.plugin_context import PluginContext, SpreadState

SPREAD_VIOLATED = "node(s) didn't match pod topology spread constraints"
SPREAD_LABEL_MISSING = f"{SPREAD_VIOLATED} (missing required label)"


def _reject(context: PluginContext) -> Rejections:
    state = context.affinity_state
    if state is None or not state.hard_spreads:
        return iter(())
    return keep_first_reason(_violations(state.hard_spreads), len(context.snapshot))


def _violations(constraints: Sequence[SpreadState]) -> Rejections:
    for state in constraints:
        yield SPREAD_LABEL_MISSING, ~state.domain_counts.domains.labelled
        yield SPREAD_VIOLATED, _skews(state) > state.spread.max_skew


def _skews(state: SpreadState) -> IntArray:
    """The difference to the emptiest domain that each node's domain would have with the pod."""
    counts, present = state.domain_counts, state.domain_counts.present_domains
    has_min_domains = len(present) >= state.spread.min_domains
    least = counts.counts[present].min() if has_min_domains and len(present) else 0
    return counts.counts_per_node() + (state.matches_itself - least)


def _suggest_cure(context: PluginContext, nodes: BoolArray) -> str:
    assert context.affinity_state is not None
    node, constraints = nodes.argmax(), context.affinity_state.hard_spreads
    for state in constraints:
        key = state.spread.topology_key
        if state.domain_counts.domains.ids[node] < 0:
            return f"label node {context.snapshot.names[node]} with {key}"
        skew = max(int(_skews(same)[node]) for same in constraints if same.spread == state.spread)
        if skew > state.spread.max_skew:
            return f"allow a maxSkew of {skew} over {key}, or free capacity in other domains"
    raise AssertionError("no spread constraint rejects the node")


def _has_soft_spread(context: PluginContext) -> bool:
    return bool(context.affinity_state and context.affinity_state.soft_spread)


def _score_soft_spread(context: PluginContext, passed: BoolArray) -> IntArray:
    assert context.affinity_state is not None
    assert context.affinity_state.soft_spread is not None
    return context.affinity_state.soft_spread.score_nodes(passed)


class PodTopologySpreadArgs(PluginArgs, frozen=True):
    """The arguments of PodTopologySpread."""

    default_constraints: tuple[TopologySpreadConstraint, ...] = ()
    defaulting_type: str = "System"


def _check_no_selector(new: Any, old: Any) -> Causes:
    return [] if new is None else [forbidden("", "the selectors of the pod's Services are used")]


def _check_defaulting_type(new: Any, old: Any) -> Causes:
    kind = new.get("defaultingType", "System")
    if kind == "System" and new.get("defaultConstraints"):
        return [invalid("defaultingType", kind, "must be List where defaultConstraints are given")]
    return ()


_ARGS_RULES = all_of(
    struct(
        ("defaultingType", optional(one_of("System", "List"))),
        (
            "defaultConstraints",
            optional(
                and_then(
                    each(matches_definition("core.v1.TopologySpreadConstraint")),
                    all_of(each(struct(("labelSelector", _check_no_selector))), SPREAD_CONSTRAINTS),
                )
            ),
        ),
    ),
    _check_defaulting_type,
)


def pod_topology_spread(args: PodTopologySpreadArgs) -> Plugin:
    """The plugin with default constraints: those of Kubernetes, or a list, which may be empty."""
    listed = tuple(topology_spread_of(ANY_POD, one) for one in args.default_constraints)
    is_system = args.defaulting_type == "System"
    defaults = SYSTEM_DEFAULTS if is_system else SpreadDefaults(listed, strict=True)
    return Plugin(
        "PodTopologySpread",
        filter=Filter(
            reject=_reject,
            suggest_cure=_suggest_cure,
            depends_on=FilterDependency.PEERS,
            wakes_on=PEER_EVENTS,
            is_modelled=True,
        ),
        score=NormalizedScore(_has_soft_spread, _score_soft_spread),
        weight=2,
        arguments=Arguments(PodTopologySpreadArgs, pod_topology_spread, _ARGS_RULES),
        policy_fields={"spread_defaults": defaults},
    )


POD_TOPOLOGY_SPREAD = pod_topology_spread(PodTopologySpreadArgs())
