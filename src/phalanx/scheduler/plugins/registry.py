"""The registry of scheduler plugins: every name that a configuration may use, in order.

`IN_TREE_PLUGINS` lists the plugins of this package and the other names that Kubernetes has. They
are enabled by default, and filters run in this order. Out-of-tree plugins come after them and are
enabled only by name. Everything else that lists plugins (the default policy, the rules for
configuration files, the filters that the exact search models) is derived from here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_type_hints

import numpy as np
from msgspec import Struct

from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray, Snapshot
from phalanx.scheduler.plugins.dynamic_resources import DYNAMIC_RESOURCES
from phalanx.scheduler.plugins.extended_resource_scoring import (
    EXTENDED_RESOURCE_AVOIDANCE,
    EXTENDED_RESOURCE_PACKING,
)
from phalanx.scheduler.plugins.inter_pod_affinity import INTER_POD_AFFINITY
from phalanx.scheduler.plugins.load_scoring import LoadScorer
from phalanx.scheduler.plugins.node_affinity import NODE_AFFINITY
from phalanx.scheduler.plugins.node_plugins import (
    IMAGE_LOCALITY,
    NODE_PORTS,
    NODE_UNSCHEDULABLE,
    TAINT_TOLERATION,
)
from phalanx.scheduler.plugins.node_resources_balanced_allocation import (
    NODE_RESOURCES_BALANCED_ALLOCATION,
)
from phalanx.scheduler.plugins.node_resources_fit import NODE_RESOURCES_FIT
from phalanx.scheduler.plugins.plugin import (
    FILTER,
    MAX_WEIGHT,
    Arguments,
    FilterDependency,
    LoadScore,
    NormalizedScore,
    Plugin,
    PluginSupport,
    Score,
    StaticScore,
    plugin_names,
)
from phalanx.scheduler.plugins.plugin_context import PluginContext
from phalanx.scheduler.plugins.pod_topology_spread import POD_TOPOLOGY_SPREAD
from phalanx.scheduler.plugins.settings_plugins import (
    DEFAULT_PREEMPTION,
    RESERVATION,
    always_on,
    not_implemented,
)
from phalanx.scheduler.plugins.volume_binding import VOLUME_BINDING
from phalanx.scheduler.plugins.volume_filters import (
    NODE_VOLUME_LIMITS,
    VOLUME_RESTRICTIONS,
    VOLUME_ZONE,
)

IN_TREE_PLUGINS = (
    always_on("SchedulingGates"),
    always_on("PrioritySort"),
    always_on("NodeName", FILTER),
    NODE_UNSCHEDULABLE,
    TAINT_TOLERATION,
    NODE_AFFINITY,
    NODE_PORTS,
    NODE_RESOURCES_FIT,
    VOLUME_RESTRICTIONS,
    NODE_VOLUME_LIMITS,
    VOLUME_BINDING,
    VOLUME_ZONE,
    POD_TOPOLOGY_SPREAD,
    INTER_POD_AFFINITY,
    DYNAMIC_RESOURCES,
    DEFAULT_PREEMPTION,
    NODE_RESOURCES_BALANCED_ALLOCATION,
    IMAGE_LOCALITY,
    EXTENDED_RESOURCE_PACKING,
    EXTENDED_RESOURCE_AVOIDANCE,
    always_on("DefaultBinder"),
    not_implemented("NodeDeclaredFeatures", FILTER),
    always_on("GangScheduling"),
    always_on("TopologyPlacementGenerator"),
    always_on("PodGroupPodsCount"),
    not_implemented("DeferredPodScheduling", FILTER),
    RESERVATION,
)

#: The filters whose admissions `node_capacities` counts.
CAPACITY_FILTER_NAMES = tuple(
    one.name for one in IN_TREE_PLUGINS if one.filter and one.filter.limits_capacity
)

#: The scores that only break ties between nodes for pods that are packed.
TIE_BREAKING_SCORES = frozenset(one.name for one in IN_TREE_PLUGINS if one.breaks_ties)


@dataclass(frozen=True, slots=True)
class PluginRegistry:
    """The plugins that a configuration may name."""

    in_tree: tuple[Plugin, ...] = IN_TREE_PLUGINS
    #: Plugins that are enabled only by name.
    out_of_tree: tuple[Plugin, ...] = ()

    def __iter__(self) -> Iterator[Plugin]:
        return iter((*self.in_tree, *self.out_of_tree))

    def names(self, point: str = "") -> tuple[str, ...]:
        """The names of the plugins that act at an extension point; without one, of all."""
        return plugin_names(self, point)


def build_registry(out_of_tree: Iterable[Plugin] = ()) -> PluginRegistry:
    """The registry with out-of-tree plugins. Raises ValueError for a plugin that cannot run, and
    if two plugins have one name.
    """
    registry = PluginRegistry(out_of_tree=tuple(out_of_tree))
    names = registry.names()
    for plugin in registry.out_of_tree:
        _check_plugin(plugin, plugin.name)
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"there are two scheduler plugins named {name}")
    return registry


# ---- out-of-tree plugins -------------------------------------------------------------------------


def out_of_tree_plugin(name: str, value: object) -> Plugin:
    """Return the plugin that an entry point of this name refers to. Raises ValueError, TypeError.

    The value is a Plugin, or a function that takes arguments and returns one. The annotation of the
    function's parameter, a msgspec Struct, decides which arguments are valid; the function is
    called with the defaults first.
    """
    if isinstance(value, Plugin):
        _check_plugin(value, name)
        return replace(value, score=_limit_score(value.score))
    if not callable(value):
        raise TypeError(f"is neither a Plugin nor a function but {type(value).__name__}")
    args_type = _args_type(value)

    def build(args: Any) -> Plugin:
        found = value(args)
        if not isinstance(found, Plugin):
            raise TypeError(f"returned {type(found).__name__} instead of a Plugin")
        _check_plugin(found, name)
        arguments = Arguments(args_type, build)
        return replace(found, score=_limit_score(found.score), arguments=arguments)

    return build(args_type())


def _args_type(function: Callable[..., object]) -> type[Any]:
    parameters = list(inspect.signature(function).parameters)
    if len(parameters) != 1:
        raise TypeError(f"must take one parameter, the arguments, and takes {len(parameters)}")
    found = get_type_hints(function).get(parameters[0])
    if not (isinstance(found, type) and issubclass(found, Struct)):
        raise TypeError(f"must annotate its parameter {parameters[0]} with a msgspec Struct")
    return found


def _check_plugin(plugin: Plugin, name: str) -> None:
    """Raise ValueError if an out-of-tree plugin cannot run."""
    if plugin.name != name:
        raise ValueError(f'is named "{plugin.name}"; the entry point and the plugin share one name')
    if plugin.filter is None and plugin.score is None:
        raise ValueError("has neither a filter nor a score")
    if not 1 <= plugin.weight <= MAX_WEIGHT:
        raise ValueError(f"has the weight {plugin.weight}, which is not in 1..{MAX_WEIGHT}")
    if plugin.points or plugin.policy_fields or plugin.support is not PluginSupport.CONFIGURABLE:
        raise ValueError("sets points, policy_fields or support, which only in-tree plugins may")
    if plugin.filter is not None:
        if plugin.filter.depends_on is FilterDependency.PEERS:
            raise ValueError("has a filter that depends on PEERS, which only in-tree filters may")
        if plugin.filter.is_modelled or plugin.filter.limits_capacity:
            raise ValueError("sets is_modelled or limits_capacity, which only in-tree filters may")
        needs_node_class = plugin.filter.depends_on is FilterDependency.LOAD
        if needs_node_class and plugin.filter.admits_node_class is None:
            raise ValueError("has a filter that depends on LOAD and no admits_node_class")


def _limit_score(score: Score | None) -> Score | None:
    """The same score, cut to 0..100: larger values would outweigh all other scores."""
    if score is None:
        return None
    if isinstance(score, StaticScore):
        static = score

        def score_static(snapshot: Snapshot, shape: PodShape) -> IntArray | None:
            found = static.score_nodes(snapshot, shape)
            return None if found is None else _clip(found, len(snapshot))

        return StaticScore(score_static)
    if isinstance(score, NormalizedScore):
        normalized = score

        def score_normalized(context: PluginContext, passed: BoolArray) -> IntArray:
            return _clip(normalized.score_nodes(context, passed), len(passed))

        return NormalizedScore(score.applies_to, score_normalized)
    load = score

    def build_scorer(shape: PodShape, columns: Mapping[str, int]) -> LoadScorer:
        scorer = load.build_scorer(shape, columns)
        return lambda node, arithmetic: arithmetic.truncate(
            arithmetic.minimum(arithmetic.maximum(scorer(node, arithmetic), 0), 100)
        )

    return LoadScore(build_scorer)


def _clip(scores: object, size: int) -> IntArray:
    found: IntArray = np.clip(np.asarray(scores), 0, 100).astype(np.int64)
    if found.shape != (size,):
        raise ValueError(f"a score has the shape {found.shape} for {size} nodes")
    return found
