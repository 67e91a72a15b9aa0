"""The scheduling policy: the enabled filters, the weighted scores, and settings of a profile.

A cycle reads a policy and never changes it. `configuration/` builds policies from files;
`DEFAULT_POLICY` enables every in-tree plugin with its default weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from phalanx.scheduler.cluster.peer_constraints import SYSTEM_DEFAULTS, SpreadDefaults
from phalanx.scheduler.plugins.load_scoring import CPU_AND_MEMORY, ResourceWeight
from phalanx.scheduler.plugins.plugin import (
    Filter,
    LoadScore,
    NormalizedScore,
    Score,
    StaticScore,
)
from phalanx.scheduler.plugins.registry import CAPACITY_FILTER_NAMES, IN_TREE_PLUGINS

_S = TypeVar("_S", LoadScore, StaticScore, NormalizedScore)


class WeightedScore(NamedTuple):
    """A score of a plugin with the weight that a profile gives it."""

    name: str
    weight: int
    score: Score


def _default_filters() -> dict[str, Filter]:
    return {plugin.name: plugin.filter for plugin in IN_TREE_PLUGINS if plugin.filter is not None}


_DEFAULT_SCORES = tuple(
    WeightedScore(one.name, one.weight, one.score)
    for one in IN_TREE_PLUGINS
    if one.score is not None
)


@dataclass(frozen=True, slots=True, eq=False)
class SchedulerPolicy:
    """How pods of a profile are placed. Policies are compared by identity."""

    #: The enabled filters by plugin name, in the order in which they run.
    filters: Mapping[str, Filter] = field(default_factory=_default_filters)
    scores: tuple[WeightedScore, ...] = _DEFAULT_SCORES
    #: The weight of required affinity terms of running pods that select the pod.
    hard_pod_affinity_weight: int = 1
    #: Whether preferred terms of running pods count for pods without preferred terms.
    honors_existing_preferences: bool = True
    #: The spread constraints of pods of Services that have none.
    spread_defaults: SpreadDefaults = SYSTEM_DEFAULTS
    #: The resources by which placements of a group are compared: fuller ones are preferred.
    packing_resources: tuple[ResourceWeight, ...] = CPU_AND_MEMORY
    #: Whether single pods, and groups, may preempt.
    pods_preempt: bool = True
    groups_preempt: bool = True
    #: Whether `unmodelled_filters` names any; cycles read it often.
    has_unmodelled_filters: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "has_unmodelled_filters", bool(self.unmodelled_filters))

    def allows_preemption(self, *, is_group: bool) -> bool:
        """Whether other pods may be evicted for a group, or for a single pod."""
        return self.groups_preempt if is_group else self.pods_preempt

    def scores_of(self, kind: type[_S]) -> list[tuple[int, _S]]:
        """The scores of one kind, with their weights."""
        return [(one.weight, one.score) for one in self.scores if isinstance(one.score, kind)]

    @property
    def checks_capacity(self) -> bool:
        """Whether no node takes more pods than `node_capacities` counts."""
        return all(name in self.filters for name in CAPACITY_FILTER_NAMES)

    @property
    def unmodelled_filters(self) -> tuple[str, ...]:
        """The filters that the exact search does not model.

        With such a filter a failed search proves nothing: only a cluster whose capacity is too
        small without the filter is known to have no placement.
        """
        return tuple(name for name, filter_ in self.filters.items() if not filter_.is_exact)


DEFAULT_POLICY = SchedulerPolicy()
