"""Policy: which filters, scores and comparisons a cycle uses. What is wanted, never how."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.scheduler.cluster.peer_constraints import SYSTEM_DEFAULTS, SpreadDefaults
from phalanx.scheduler.plugins.filters import FILTER_PLUGINS, FilterPlugin
from phalanx.scheduler.plugins.node_resources import CPU_AND_MEMORY, ResourceWeight
from phalanx.scheduler.plugins.scores import (
    NORMALIZED_SCORE_PLUGINS,
    SCORE_PLUGINS,
    STATIC_SCORE_PLUGINS,
    NormalizedScorePlugin,
    ScorePlugin,
    StaticScorePlugin,
)

#: The filters by which room is counted.
_CAPACITY_FILTERS = {"NodePorts", "NodeResourcesFit"}


@dataclass(frozen=True, slots=True, eq=False)
class SchedulerPolicy:
    """The rows of the tables that apply, in order. The equal of a policy is only itself."""

    filters: tuple[FilterPlugin, ...] = FILTER_PLUGINS
    scores: tuple[ScorePlugin, ...] = SCORE_PLUGINS
    static_scores: tuple[StaticScorePlugin, ...] = STATIC_SCORE_PLUGINS
    normalized_scores: tuple[NormalizedScorePlugin, ...] = NORMALIZED_SCORE_PLUGINS
    #: What a resident that must be near newcomers of some kind adds to the score of its domain.
    hard_pod_affinity_weight: int = 1
    #: Whether it matters where residents would like newcomers to be that have no such likes.
    honors_existing_preferences: bool = True
    #: How pods of services are spread that do not say how.
    spread_defaults: SpreadDefaults = SYSTEM_DEFAULTS
    #: Of what placements should be full, when there is a choice between them.
    packing_resources: tuple[ResourceWeight, ...] = CPU_AND_MEMORY
    #: Whether anybody is evicted for pods, and whether for groups.
    pods_preempt: bool = True
    groups_preempt: bool = True

    def allows_preemption(self, is_group: bool) -> bool:
        """Whether others may be evicted for a pod alone, or for a group."""
        return self.groups_preempt if is_group else self.pods_preempt

    @property
    def checks_capacity(self) -> bool:
        """Whether a node takes no more pods than it has room for."""
        return {row.name for row in self.filters} >= _CAPACITY_FILTERS


DEFAULT_POLICY = SchedulerPolicy()
