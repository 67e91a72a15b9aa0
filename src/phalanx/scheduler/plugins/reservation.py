"""Reservation: the settings by which room is kept for entities that have waited for long.

The plugin neither filters nor scores: `scheduler/reservation/` plans the reservations, and the
cycle keeps reserved room from the entities behind the reserved one. Enabled by default.
"""

from __future__ import annotations

from enum import StrEnum

from phalanx.api.validation.checks import minimum, one_of, optional, struct
from phalanx.scheduler.plugins.arguments import Int32, PluginArgs
from phalanx.scheduler.plugins.plugin import RESERVE, Arguments, Plugin


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
    def patience(self) -> float:
        """Seconds until a refused entity may get a reservation."""
        return 0.0 if self.mode == ReservationMode.STRICT else float(self.after_seconds)


#: No reservations: the plugin is disabled.
NO_RESERVATIONS = ReservationArgs(mode=ReservationMode.OFF)

_RULES = struct(
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
        arguments=Arguments(ReservationArgs, reservation, _RULES),
        policy_fields={"reservation": args},
    )


RESERVATION = reservation(ReservationArgs())
