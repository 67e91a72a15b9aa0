"""Plugins: the parts of a policy by the names that kube-scheduler gives them, and which are chosen.

A configuration names plugins under `multiPoint`, for all that they do, or under one extension
point; it adds to what is usual, replaces weights or takes away, `*` being everything. Here is the
table of the names and the arithmetic of choosing; the rows behind the names are those of `filters`,
`scores` and `comparisons`.

Composition: a policy made of the plugins that are chosen and of what they are told.

Between the words of a configuration (`plugins.py`, `arguments.py`) and the rows of the tables that
a cycle asks (`filters.py`, `scores.py`, `comparisons.py`). Finds nothing wrong: rules did before.

Profiles: the schedulers that one process is. Each has a name and a policy; all share a queue.

A pod says by its `schedulerName` which of them is to place it; pods of any other name are another
scheduler's business.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

from phalanx.api.core import DEFAULT_SCHEDULER
from phalanx.api.feature_gates import (
    GANG_SCHEDULING,
    POD_GROUP_PREEMPTION_POLICY,
    WORKLOAD_AWARE_PREEMPTION,
    FeatureGates,
)
from phalanx.api.validation.checks import (
    Check,
    all_of,
    each,
    in_range,
    mandatory,
    one_of,
    optional,
    struct,
    unique_field,
)
from phalanx.scheduler.backoff import DEFAULT_BACKOFF, BackOff
from phalanx.scheduler.cluster.node_constraints import preferred_terms_of, required_terms_of
from phalanx.scheduler.cluster.peer_constraints import (
    ANY_POD,
    SYSTEM_DEFAULTS,
    SpreadDefaults,
    topology_spread_of,
)
from phalanx.scheduler.configuration.plugin_args import PluginArgs
from phalanx.scheduler.configuration.strict_decoding import Int32
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.plugins.filters import FILTER_PLUGINS, node_affinity_filter
from phalanx.scheduler.plugins.node_resources import (
    CPU_AND_MEMORY,
    LEAST_ALLOCATED,
    MOST_ALLOCATED,
    AllocationStrategy,
    ResourceWeight,
    allocation_scorer_factory,
    balance_scorer_factory,
    requested_to_capacity_ratio,
)
from phalanx.scheduler.plugins.scores import (
    NORMALIZED_SCORE_PLUGINS,
    STATIC_SCORE_PLUGINS,
    NormalizedScorePlugin,
    ScorePlugin,
    StaticScorePlugin,
    preferred_node_affinity,
)
from phalanx.scheduler.policy import DEFAULT_POLICY, SchedulerPolicy

#: More weight than this is a slip of the pen, and would leave the range of scores.
MAX_WEIGHT = 1_000_000
WILDCARD = "*"


class PluginSupport(Enum):
    """What becomes of a plugin here."""

    CONFIGURABLE = "chosen and weighed"
    ALWAYS_ON = "always on"
    UNSUPPORTED = "not there yet"


class PluginInfo(NamedTuple):
    """One name. `weight` is the usual weight of its score; without one it does not score."""

    name: str
    filters: bool = False
    weight: int = 0
    support: PluginSupport = PluginSupport.CONFIGURABLE


#: In the order in which they are asked unless somebody says otherwise.
PLUGINS = (
    PluginInfo("SchedulingGates", support=PluginSupport.ALWAYS_ON),
    PluginInfo("PrioritySort", support=PluginSupport.ALWAYS_ON),
    PluginInfo("NodeName", filters=True, support=PluginSupport.ALWAYS_ON),
    PluginInfo("NodeUnschedulable", filters=True),
    PluginInfo("TaintToleration", filters=True, weight=3),
    PluginInfo("NodeAffinity", filters=True, weight=2),
    PluginInfo("NodePorts", filters=True),
    PluginInfo("NodeResourcesFit", filters=True, weight=1),
    PluginInfo("VolumeRestrictions", filters=True, support=PluginSupport.UNSUPPORTED),
    PluginInfo("NodeVolumeLimits", filters=True, support=PluginSupport.UNSUPPORTED),
    PluginInfo("VolumeBinding", filters=True, weight=1, support=PluginSupport.UNSUPPORTED),
    PluginInfo("VolumeZone", filters=True, support=PluginSupport.UNSUPPORTED),
    PluginInfo("PodTopologySpread", filters=True, weight=2),
    PluginInfo("InterPodAffinity", filters=True, weight=2),
    PluginInfo("DynamicResources", filters=True, weight=2, support=PluginSupport.UNSUPPORTED),
    PluginInfo("DefaultPreemption"),
    PluginInfo("NodeResourcesBalancedAllocation", weight=1),
    PluginInfo("ImageLocality", weight=1),
    PluginInfo("DefaultBinder", support=PluginSupport.ALWAYS_ON),
    PluginInfo("NodeDeclaredFeatures", filters=True, support=PluginSupport.UNSUPPORTED),
    PluginInfo("GangScheduling", support=PluginSupport.ALWAYS_ON),
    PluginInfo("TopologyPlacementGenerator", support=PluginSupport.ALWAYS_ON),
    PluginInfo("PodGroupPodsCount", support=PluginSupport.ALWAYS_ON),
    PluginInfo("DeferredPodScheduling", filters=True, support=PluginSupport.UNSUPPORTED),
)

PLUGIN_NAMES = tuple(plugin.name for plugin in PLUGINS)
FILTER_PLUGIN_NAMES = tuple(plugin.name for plugin in PLUGINS if plugin.filters)
SCORE_PLUGIN_NAMES = tuple(plugin.name for plugin in PLUGINS if plugin.weight)
#: What evicts others, at the points for pods and for groups.
PREEMPTION_PLUGIN_NAMES = ("DefaultPreemption",)
ALWAYS_ON_PLUGIN_NAMES = tuple(
    plugin.name for plugin in PLUGINS if plugin.support is PluginSupport.ALWAYS_ON
)


class PluginReference(Struct, frozen=True, forbid_unknown_fields=True):
    """A plugin by name; a weight of zero is a weight of one."""

    name: str = ""
    weight: Int32 = 0


class PluginSet(Struct, frozen=True, forbid_unknown_fields=True):
    """What is added to the usual, and what is taken away."""

    enabled: tuple[PluginReference, ...] = ()
    disabled: tuple[PluginReference, ...] = ()


class Plugins(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The extension points. Here only `filter`, `score`, the two of evicting and what holds for all
    make a difference: the others are parts of these, or of what is always on or not there yet.
    """

    multi_point: PluginSet = PluginSet()
    filter: PluginSet = PluginSet()
    score: PluginSet = PluginSet()
    pre_enqueue: PluginSet = PluginSet()
    queue_sort: PluginSet = PluginSet()
    pre_filter: PluginSet = PluginSet()
    post_filter: PluginSet = PluginSet()
    pre_score: PluginSet = PluginSet()
    reserve: PluginSet = PluginSet()
    permit: PluginSet = PluginSet()
    pre_bind: PluginSet = PluginSet()
    bind: PluginSet = PluginSet()
    post_bind: PluginSet = PluginSet()
    placement_generate: PluginSet = PluginSet()
    placement_score: PluginSet = PluginSet()
    placement_feasible: PluginSet = PluginSet()
    pod_group_post_filter: PluginSet = PluginSet()


def _plugin_set_rules(names: Iterable[str]) -> Check:
    """A set may enable plugins that are of use there, and disable any, or all."""
    weight = optional(in_range(0, MAX_WEIGHT))
    enabled = each(struct(("name", mandatory(one_of(*names))), ("weight", weight)))
    return struct(
        ("enabled", optional(all_of(enabled, unique_field("name")))),
        ("disabled", optional(each(struct(("name", mandatory(one_of(WILDCARD, *PLUGIN_NAMES))))))),
    )


_PLUGINS_BY_POINT = {"filter": FILTER_PLUGIN_NAMES, "score": SCORE_PLUGIN_NAMES}
PLUGINS_RULES: Check = struct(
    *(
        (name, optional(_plugin_set_rules(_PLUGINS_BY_POINT.get(name, PLUGIN_NAMES))))
        for name in Plugins.__struct_encode_fields__
    )
)


def enabled_plugins(plugins: Plugins, own: PluginSet, allowed: Container[str]) -> dict[str, int]:
    """The plugins that are on at an extension point, in order, with their weights.

    First those that it enables itself although they are usual, then the others that are on for all
    points, then what else it enables.
    """
    off = {choice.name for choice in own.disabled}
    named = {choice.name: choice for choice in own.enabled}
    general = {
        one.name: named.get(one.name, one)
        for one in _multi_point_plugins(plugins.multi_point)
        if one.name in allowed and not off & {WILDCARD, one.name}
    }
    again = [one for name, one in named.items() if name in general]
    rest = [one for name, one in general.items() if name not in named]
    return {one.name: one.weight or 1 for one in (*again, *rest, *own.enabled)}


def _multi_point_plugins(multi_point: PluginSet) -> list[PluginReference]:
    """The plugins that are on at all points, those that are usual in their usual place."""
    off = {choice.name for choice in multi_point.disabled}
    named = {choice.name: choice for choice in multi_point.enabled}
    usual = [
        named.get(plugin.name, PluginReference(plugin.name, plugin.weight))
        for plugin in PLUGINS
        if not off & {WILDCARD, plugin.name}
    ]
    return list({one.name: one for one in (*usual, *multi_point.enabled)}.values())


_Row = TypeVar("_Row", ScorePlugin, StaticScorePlugin, NormalizedScorePlugin)


def build_policy(plugins: Plugins, args: PluginArgs) -> SchedulerPolicy:
    """The rows that are chosen, with their weights and what their plugins are told."""
    filtering = enabled_plugins(plugins, plugins.filter, FILTER_PLUGIN_NAMES)
    weights = enabled_plugins(plugins, plugins.score, SCORE_PLUGIN_NAMES)
    added = args.nodes.added_affinity
    filters = {
        row.name: row for row in (*FILTER_PLUGINS, node_affinity_filter(required_terms_of(added)))
    }
    scores = (
        ScorePlugin(
            "NodeResourcesFit",
            1,
            allocation_scorer_factory(_scoring_strategy(args), _scored_resources(args)),
        ),
        ScorePlugin(
            "NodeResourcesBalancedAllocation", 1, balance_scorer_factory(_balanced_resources(args))
        ),
    )
    comparisons = {
        row.name: row
        for row in (*NORMALIZED_SCORE_PLUGINS, preferred_node_affinity(preferred_terms_of(added)))
    }
    return SchedulerPolicy(
        filters=tuple(filters[name] for name in filtering if name in filters),
        scores=_with_weights(scores, weights),
        static_scores=_with_weights(STATIC_SCORE_PLUGINS, weights),
        normalized_scores=_with_weights(comparisons.values(), weights),
        hard_pod_affinity_weight=args.affinity.hard_pod_affinity_weight,
        honors_existing_preferences=not args.affinity.ignore_preferred_terms_of_existing_pods,
        spread_defaults=_default_spreads(args),
        packing_resources=_scored_resources(args),
        pods_preempt=bool(enabled_plugins(plugins, plugins.post_filter, PREEMPTION_PLUGIN_NAMES)),
        groups_preempt=bool(
            enabled_plugins(plugins, plugins.pod_group_post_filter, PREEMPTION_PLUGIN_NAMES)
        ),
    )


def _with_weights(rows: Iterable[_Row], weights: Mapping[str, int]) -> tuple[_Row, ...]:
    return tuple(replace(row, weight=weights[row.name]) for row in rows if row.name in weights)


def _scoring_strategy(args: PluginArgs) -> AllocationStrategy:
    wanted = args.fit.scoring_strategy
    if wanted.type == "LeastAllocated":
        return LEAST_ALLOCATED
    if wanted.type == "MostAllocated":
        return MOST_ALLOCATED
    points = wanted.requested_to_capacity_ratio.shape
    return requested_to_capacity_ratio([(one.utilization, one.score * 10) for one in points])


def _scored_resources(args: PluginArgs) -> tuple[ResourceWeight, ...]:
    named = args.fit.scoring_strategy.resources
    return tuple(ResourceWeight(one.name, one.weight or 1) for one in named) or CPU_AND_MEMORY


def _balanced_resources(args: PluginArgs) -> tuple[ResourceWeight, ...]:
    return tuple(ResourceWeight(one.name) for one in args.balance.resources) or CPU_AND_MEMORY


def _default_spreads(args: PluginArgs) -> SpreadDefaults:
    """How pods of services are spread: as usual, or as listed, which may be not at all."""
    if args.spread.defaulting_type == "System":
        return SYSTEM_DEFAULTS
    listed = args.spread.default_constraints
    return SpreadDefaults(tuple(topology_spread_of(ANY_POD, one) for one in listed), strict=True)


@dataclass(frozen=True, slots=True)
class Profiles:
    """The policies by name, and what they have in common."""

    policies: Mapping[str, SchedulerPolicy]
    back_off: BackOff = DEFAULT_BACKOFF
    #: Whether the members of a group are placed together; else every pod is on its own.
    groups: bool = True
    #: Whether a group says itself if others may be evicted for it; else its pods do, all the same.
    preemption_policies: bool = True
    #: The configuration that they were read from, if from any.
    configuration: dict[str, Any] | None = None

    def policy(self, entity: Entity) -> SchedulerPolicy:
        """The policy for an entity; members that name different ones are refused by any."""
        return self.policies[entity.scheduler_name]

    @property
    def groups_preempt(self) -> bool:
        """Whether any of them evicts anybody for a group."""
        return any(policy.groups_preempt for policy in self.policies.values())

    @property
    def without_group_preemption(self) -> Profiles:
        """The same, as if none of them did."""
        policies = {n: replace(p, groups_preempt=False) for n, p in self.policies.items()}
        return replace(self, policies=policies)


DEFAULT_PROFILES = Profiles({DEFAULT_SCHEDULER: DEFAULT_POLICY})


def apply_feature_gates(gates: FeatureGates, profiles: Profiles = DEFAULT_PROFILES) -> Profiles:
    """The same without what is switched off."""
    return replace(
        profiles
        if gates.is_enabled(WORKLOAD_AWARE_PREEMPTION)
        else profiles.without_group_preemption,
        groups=gates.is_enabled(GANG_SCHEDULING),
        preemption_policies=gates.is_enabled(POD_GROUP_PREEMPTION_POLICY),
    )
