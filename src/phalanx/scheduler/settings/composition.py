"""Composition: a policy made of the plugins that are chosen and of what they are told.

Between the words of a configuration (`plugins.py`, `arguments.py`) and the rows of the tables that
a cycle asks (`filters.py`, `scores.py`, `comparisons.py`). Finds nothing wrong: rules did before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from phalanx.scheduler.cluster.peers import EVERYBODY, SYSTEM_DEFAULTS, Defaults, spread
from phalanx.scheduler.cluster.wishes import preferred_places, required_places
from phalanx.scheduler.judging.allocation import (
    LEAST_ALLOCATED,
    MOST_ALLOCATED,
    Strategy,
    allocation,
    requested_to_capacity_ratio,
)
from phalanx.scheduler.judging.balance import balance
from phalanx.scheduler.judging.comparisons import COMPARISONS, Comparison, preferences
from phalanx.scheduler.judging.filters import FILTERS, node_affinity
from phalanx.scheduler.judging.scores import MERITS, Merit, Score
from phalanx.scheduler.judging.stake import CPU_AND_MEMORY, Resource
from phalanx.scheduler.policy import Policy
from phalanx.scheduler.settings.arguments import Arguments
from phalanx.scheduler.settings.plugins import EVICTING, FILTERING, SCORING, Plugins, chosen

_Row = TypeVar("_Row", Score, Merit, Comparison)


def compose(plugins: Plugins, told: Arguments) -> Policy:
    """The rows that are chosen, with their weights and what their plugins are told."""
    filtering = chosen(plugins, plugins.filter, FILTERING)
    weights = chosen(plugins, plugins.score, SCORING)
    added = told.nodes.added_affinity
    filters = {row.name: row for row in (*FILTERS, node_affinity(required_places(added)))}
    scores = (
        Score("NodeResourcesFit", 1, allocation(_strategy(told), _scored(told))),
        Score("NodeResourcesBalancedAllocation", 1, balance(_balanced(told))),
    )
    comparisons = {row.name: row for row in (*COMPARISONS, preferences(preferred_places(added)))}
    return Policy(
        filters=tuple(filters[name] for name in filtering if name in filters),
        scores=_weighed(scores, weights),
        merits=_weighed(MERITS, weights),
        comparisons=_weighed(comparisons.values(), weights),
        near_weight=told.affinity.hard_pod_affinity_weight,
        heeds_likes=not told.affinity.ignore_preferred_terms_of_existing_pods,
        defaults=_defaults(told),
        packed=_scored(told),
        preempts=bool(chosen(plugins, plugins.post_filter, EVICTING)),
        groups_preempt=bool(chosen(plugins, plugins.pod_group_post_filter, EVICTING)),
    )


def _weighed(rows: Iterable[_Row], weights: Mapping[str, int]) -> tuple[_Row, ...]:
    return tuple(replace(row, weight=weights[row.name]) for row in rows if row.name in weights)


def _strategy(told: Arguments) -> Strategy:
    wanted = told.fit.scoring_strategy
    if wanted.type == "LeastAllocated":
        return LEAST_ALLOCATED
    if wanted.type == "MostAllocated":
        return MOST_ALLOCATED
    points = wanted.requested_to_capacity_ratio.shape
    return requested_to_capacity_ratio([(one.utilization, one.score * 10) for one in points])


def _scored(told: Arguments) -> tuple[Resource, ...]:
    named = told.fit.scoring_strategy.resources
    return tuple(Resource(one.name, one.weight or 1) for one in named) or CPU_AND_MEMORY


def _balanced(told: Arguments) -> tuple[Resource, ...]:
    return tuple(Resource(one.name) for one in told.balance.resources) or CPU_AND_MEMORY


def _defaults(told: Arguments) -> Defaults:
    """How pods of services are spread: as usual, or as listed, which may be not at all."""
    if told.spread.defaulting_type == "System":
        return SYSTEM_DEFAULTS
    listed = told.spread.default_constraints
    return Defaults(tuple(spread(EVERYBODY, one) for one in listed), strict=True)
