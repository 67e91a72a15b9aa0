"""What the endpoints work with, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.api.gates import Gates
from phalanx.api.meta import timestamp
from phalanx.chance import Chance
from phalanx.clock import Clock
from phalanx.server.access import Access
from phalanx.server.measurements import Measurements
from phalanx.server.outputs import Outputs
from phalanx.server.registry import Registry
from phalanx.server.twins import Twins
from phalanx.server.watches import Hub
from phalanx.store.kv import Store
from phalanx.telemetry import Meter


@dataclass(frozen=True, slots=True)
class Context:
    """Store, time and chance, the kinds that are served, the fan-out of watches, the meter.

    `access` says who may what, `gates` say what is switched off, `twins` are pods that are created
    alike, `outputs` keep what was written by processes, `measurements` what they use.
    """

    store: Store
    clock: Clock
    chance: Chance
    registry: Registry
    hub: Hub
    meter: Meter
    access: Access
    gates: Gates
    twins: Twins
    outputs: Outputs = field(default_factory=Outputs)
    measurements: Measurements = field(default_factory=Measurements)

    def stamp(self) -> str:
        """The present moment as the API writes it."""
        return timestamp(self.clock.now())
