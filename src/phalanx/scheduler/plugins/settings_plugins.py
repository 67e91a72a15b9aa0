"""The plugins that neither filter nor score: rows for names, and plugins that only have settings.

Always-on plugins name what other parts of the scheduler do. DefaultPreemption switches preemption
at two extension points. Reservation, enabled by default, has the settings by which room is kept for
entities that have waited for long: `scheduler/reservation/` plans the reservations, and the cycle
keeps reserved room from the entities behind the reserved one. The plugins of Kubernetes that are
not implemented are accepted in a configuration and have no effect.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from phalanx.api.errors import Causes, invalid
from phalanx.api.validation.checks import all_of, in_range, minimum, one_of, optional, struct
from phalanx.scheduler.plugins.arguments import Int32, PluginArgs
from phalanx.scheduler.plugins.plugin import (
    POD_GROUP_POST_FILTER,
    POST_FILTER,
    RESERVE,
    Arguments,
    Plugin,
    PluginSupport,
)


def always_on(name: str, *points: str) -> Plugin:
    """A plugin that is built into the scheduler and cannot be disabled."""
    return Plugin(name, points=points, support=PluginSupport.ALWAYS_ON)


def not_implemented(name: str, *points: str) -> Plugin:
    """A plugin of Kubernetes that has no effect in Phalanx."""
    return Plugin(name, points=points, support=PluginSupport.NOT_IMPLEMENTED)


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


class ReservationMode(StrEnum):
    """Which waiting entities get a reservation. The values stand in configuration files."""

    #: The first entity of each priority level.
    EASY = "Easy"
    #: Up to `depth` entities in order.
    CONSERVATIVE = "Conservative"
    #: The first entity of all; nothing behind it starts.
    STRICT = "Strict"
    #: None.
    OFF = "Off"


class ReservationArgs(PluginArgs, frozen=True):
    """The arguments of Reservation."""

    #: How long an entity waits before it may get a reservation. `Strict` does not wait.
    after_seconds: Int32 = 60
    mode: str = ReservationMode.EASY
    #: How many reservations the mode `Conservative` makes at most.
    depth: Int32 = 32
    #: How long a reservation without an expected start is kept if it comes no nearer.
    max_hold_seconds: Int32 = 3600

    @property
    def delay_seconds(self) -> float:
        """Seconds until a refused entity may get a reservation."""
        return 0.0 if self.mode == ReservationMode.STRICT else float(self.after_seconds)


#: No reservations: the plugin is disabled.
NO_RESERVATIONS = ReservationArgs(mode=ReservationMode.OFF)

_RESERVATION_RULES = struct(
    ("afterSeconds", optional(minimum(0))),
    ("mode", optional(one_of(*ReservationMode))),
    ("depth", optional(minimum(1))),
    ("maxHoldSeconds", optional(minimum(0))),
)


def reservation(args: ReservationArgs) -> Plugin:
    """The plugin with these arguments."""
    return Plugin(
        "Reservation",
        points=(RESERVE,),
        arguments=Arguments(ReservationArgs, reservation, _RESERVATION_RULES),
        policy_fields={"reservation": args},
    )


RESERVATION = reservation(ReservationArgs())
