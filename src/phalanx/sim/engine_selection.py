"""Selects the fastest engine that simulates the queue and the cycle of a setup."""

from __future__ import annotations

from phalanx.sim.core_engine import CoreEngine
from phalanx.sim.counted_engine import CountedEngine, can_count_nodes
from phalanx.sim.direct_engine import DirectEngine, can_place_directly
from phalanx.sim.placed_engine import PlacedEngine, can_place_all
from phalanx.sim.queue_engine import QueueEngine
from phalanx.sim.simulation_setup import SimulationSetup

#: The engines, the fastest first, each with what it must be able to do.
_ENGINES = (
    (CountedEngine, can_count_nodes),
    (PlacedEngine, can_place_all),
    (DirectEngine, can_place_directly),
)


def build_core_engine(setup: SimulationSetup) -> CoreEngine | QueueEngine:
    """Return the fastest engine that applies to a setup; all give the same starts."""
    for engine, applies_to in _ENGINES:
        if applies_to(setup):
            return engine(setup)
    return CoreEngine(setup)
