"""The `Plugin` value: everything that Phalanx knows about one scheduler plugin.

A plugin has a name, a filter, a score, or both, a default weight for the score, and optionally
arguments. In-tree plugins are in the modules beside this one; `registry.py` lists them in order.
Out-of-tree plugins are the same value, found by entry point (see docs/plugins.md).

    Plugin(
        "NodePorts",
        filter=Filter(
            reject=_reject_used_ports,              # which nodes, and why
            depends_on=FilterDependency.LOAD,       # when to run again
            wakes_on=CAPACITY_EVENTS,               # which events retry a rejected pod
            admits_node_class=has_free_ports,       # the same question for one node
        ),
    )

Filters and scores are pure functions: no I/O, no clock, no randomness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from phalanx.api.validation.checks import Check
from phalanx.scheduler.cluster.pod_shape import PodShape, RequestVector
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray, NodeClass, Snapshot
from phalanx.scheduler.decision import NODE_EVENTS, ClusterEvent
from phalanx.scheduler.plugins.load_scoring import LoadScorer, ResourceWeight
from phalanx.scheduler.plugins.plugin_context import PluginContext

#: Pairs of a reason and the nodes that are rejected for it.
Rejections = Iterator[tuple[str, BoolArray]]

#: A larger weight is a mistake, and the sum of weighted scores could leave its range.
MAX_WEIGHT = 1_000_000

FILTER, SCORE = "filter", "score"
#: The extension points of preemption, for single pods and for groups.
POST_FILTER, POD_GROUP_POST_FILTER = "postFilter", "podGroupPostFilter"
#: The extension point of reservations.
RESERVE = "reserve"


class FilterDependency(Enum):
    """What the result of a filter depends on, and so when the filter must run again."""

    #: Labels, taints, names, capacity. Runs once per shape; evicting pods never changes the result.
    NODES = "the node object"
    #: The pods on the same node. Runs again for a node whose load changes.
    LOAD = "the load of the node"
    #: The pods on all nodes. Runs again for every pod. In-tree plugins only.
    PEERS = "the pods on all nodes"
    #: The devices and volumes in use (`claim_assignments.py`, `volume_assignments.py`). Asked for
    #: one node at a time. In-tree only.
    CLAIMS = "the claims of the pod, and the devices and volumes in use"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Rejects nodes for pods of a shape. A filter only removes nodes; it never adds one."""

    #: Yields (reason, nodes rejected for it), for all nodes at once.
    reject: Callable[[PluginContext], Rejections]
    depends_on: FilterDependency = FilterDependency.NODES
    #: If the filter depends on CLAIMS: the part of the result that the node object alone decides.
    static_part: Callable[[PluginContext], Rejections] | None = None
    #: The events after which a rejected pod is tried again.
    wakes_on: frozenset[ClusterEvent] = NODE_EVENTS
    #: Describes a change that makes one of these nodes acceptable; only this filter rejects them.
    suggest_cure: Callable[[PluginContext, BoolArray], str] | None = None
    #: The same question for one node. Required for filters that depend on LOAD.
    admits_node_class: Callable[[RequestVector, NodeClass], bool] | None = None
    #: Whether `admits_node_class` must be called for pods of a shape at all.
    applies_to: Callable[[PodShape], bool] = lambda shape: True
    #: Whether the exact search (`search/placement_problem.py`) knows what this filter reads of a
    #: pod and how placed pods change its result. In-tree plugins only.
    is_modelled: bool = False
    #: Whether `node_capacities` counts what this filter admits.
    limits_capacity: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether the exact search can prove that pods fit nowhere under this filter.

        No placed pod changes the result of a filter that depends on NODES, so that the search
        takes the rejected nodes as they are.
        """
        return self.is_modelled or self.depends_on is FilterDependency.NODES


@dataclass(frozen=True, slots=True)
class LoadScore:
    """A score, 0 to 100, that depends on one node and the pods on it."""

    #: The scorer for a shape, given the resource columns of a snapshot.
    build_scorer: Callable[[PodShape, Mapping[str, int]], LoadScorer]
    #: The resources by which the score packs pods of a shape: topology domains are compared by them
    #: too, and scores of load only break ties (`SchedulerPolicy.scores_of`). In-tree plugins only.
    packed_resources: Callable[[PodShape], tuple[ResourceWeight, ...]] | None = None


@dataclass(frozen=True, slots=True)
class StaticScore:
    """A score, 0 to 100, that depends on the node object alone; None if no node differs."""

    score_nodes: Callable[[Snapshot, PodShape], IntArray | None]
    #: The nodes that topology domains are compared by too: a domain in which fewer members would be
    #: on such nodes is preferred; None if there are none. In-tree plugins only.
    find_avoided: Callable[[Snapshot, PodShape], BoolArray | None] | None = None


@dataclass(frozen=True, slots=True)
class NormalizedScore:
    """A score, 0 to 100, that compares the nodes that passed all filters with each other."""

    #: Whether the score differs between nodes for the pod of a context.
    applies_to: Callable[[PluginContext], bool]
    #: The score of every node, given the nodes that passed.
    score_nodes: Callable[[PluginContext, BoolArray], IntArray]


Score = LoadScore | StaticScore | NormalizedScore


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments that a configuration may give a plugin under `pluginConfig`."""

    #: A msgspec Struct: field names, types and defaults.
    type: type[Any]
    #: Returns the plugin for an instance of `type`; raises ValueError for arguments that are wrong.
    build: Callable[[Any], Plugin]
    #: Further rules, in the form of the API's validation, for the arguments as written.
    rules: Check = lambda new, old: ()


class PluginSupport(Enum):
    """What Phalanx does with a plugin that a configuration names."""

    CONFIGURABLE = "may be enabled, disabled and weighted"
    ALWAYS_ON = "cannot be disabled"
    NOT_IMPLEMENTED = "accepted in a configuration, without effect"


@dataclass(frozen=True, slots=True)
class Plugin:
    """One scheduler plugin."""

    name: str
    filter: Filter | None = None
    score: Score | None = None
    #: The weight of the score unless a configuration sets another.
    weight: int = 1
    arguments: Arguments | None = None
    #: Extension points other than those of `filter` and `score` above.
    points: tuple[str, ...] = ()
    support: PluginSupport = PluginSupport.CONFIGURABLE
    #: Fields of SchedulerPolicy that the arguments of this plugin set.
    policy_fields: Mapping[str, Any] | None = None
    #: Whether the score only breaks ties between nodes for pods that are packed
    #: (`SchedulerPolicy.scores_of`). In-tree plugins only.
    breaks_ties: bool = False

    @property
    def extension_points(self) -> tuple[str, ...]:
        """The extension points at which a configuration may enable this plugin."""
        points = [FILTER] if self.filter else []
        points += [SCORE] if self.score else []
        return (*points, *self.points)

    @property
    def default_weight(self) -> int:
        """The default weight of the score; 0 if the plugin does not score."""
        return self.weight if SCORE in self.extension_points else 0

    def configure(self, args: Any) -> Plugin:
        """Return this plugin with arguments. Raises ValueError for arguments that are wrong."""
        assert self.arguments is not None
        return self.arguments.build(args)


def plugin_names(plugins: Iterable[Plugin], point: str = "") -> tuple[str, ...]:
    """The names of the plugins that act at an extension point; without one, of all."""
    return tuple(plugin.name for plugin in plugins if not point or point in plugin.extension_points)


def keep_first_reason(rejections: Rejections, size: int) -> Rejections:
    """Name each node under its first reason only, as Kubernetes does; one mask per reason."""
    by_reason: dict[str, BoolArray] = {}
    remaining = np.ones(size, bool)
    for reason, mask in rejections:
        first = mask & remaining
        remaining &= ~mask
        by_reason[reason] = by_reason[reason] | first if reason in by_reason else first
    yield from by_reason.items()


def percent_of_max(values: IntArray, passed: BoolArray) -> IntArray:
    """Scale values so that the largest one among the nodes that passed becomes 100."""
    most = int(values[passed].max(initial=0))
    return values * 100 // most if most else values
