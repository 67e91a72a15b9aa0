"""Rows for plugins of Kubernetes that Phalanx does not run as a filter or a score.

Always-on plugins name what other parts of the scheduler do. DefaultPreemption switches preemption
at two extension points. The others are accepted in a configuration, with their arguments checked,
and have no effect; pods that need them are refused (`cluster/pod_shape.py`).
"""

from __future__ import annotations

from typing import Any

from phalanx.api.errors import Causes, invalid
from phalanx.api.validation.checks import all_of, in_range, minimum, optional, struct
from phalanx.scheduler.plugins.arguments import Int32, PluginArgs
from phalanx.scheduler.plugins.plugin import (
    POD_GROUP_POST_FILTER,
    POST_FILTER,
    Arguments,
    Plugin,
    PluginSupport,
)


def always_on(name: str, *points: str) -> Plugin:
    """A plugin that is built into the scheduler and cannot be disabled."""
    return Plugin(name, points=points, support=PluginSupport.ALWAYS_ON)


def not_implemented(
    name: str, *points: str, weight: int = 1, arguments: Arguments | None = None
) -> Plugin:
    """A plugin of Kubernetes that has no effect in Phalanx."""
    support = PluginSupport.NOT_IMPLEMENTED
    return Plugin(name, points=points, weight=weight, arguments=arguments, support=support)


class DefaultPreemptionArgs(PluginArgs, frozen=True):
    """The arguments of DefaultPreemption; without effect, since all nodes are candidates."""

    min_candidate_nodes_percentage: Int32 = 10
    min_candidate_nodes_absolute: Int32 = 100


def _check_candidate_minimums(new: Any, old: Any) -> Causes:
    fields = ("minCandidateNodesPercentage", "minCandidateNodesAbsolute")
    if any(new.get(field, 1) for field in fields):
        return ()
    return [invalid(field, 0, "cannot both be zero") for field in fields]


DEFAULT_PREEMPTION: Plugin = Plugin(
    "DefaultPreemption",
    points=(POST_FILTER, POD_GROUP_POST_FILTER),
    arguments=Arguments(
        DefaultPreemptionArgs,
        lambda args: DEFAULT_PREEMPTION,
        all_of(
            struct(
                ("minCandidateNodesPercentage", optional(in_range(0, 100))),
                ("minCandidateNodesAbsolute", optional(minimum(0))),
            ),
            _check_candidate_minimums,
        ),
    ),
)
