"""Reserved nodes of equal members: chosen by capacity, they are those that a cycle would choose."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from msgspec.structs import replace as but

from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot
from phalanx.scheduler.placement.group_placement import Assignment
from phalanx.scheduler.reservation import planner
from phalanx.scheduler.reservation.end_timeline import CapacityGrowth
from phalanx.scheduler.reservation.ranked_placement import place_by_rank, place_equal_members
from phalanx.scheduler.reservation.reservation import ReservationRequest
from phalanx.scheduler.search.solver import Steps
from phalanx.sim.core_engine import CoreEngine
from phalanx.sim.simulation_setup import SimulationSetup
from phalanx.sim.workloads.workload import TraceJob, TraceWorkload, build_node
from tests.sim.test_core_engine import contended_setup, profiles

GPU = "nvidia.com/gpu"


def mixed_setup(seed: int) -> SimulationSetup:
    """Jobs of many shapes that wait for each other, some for nodes with a label."""
    draw, jobs = random.Random(seed), list[TraceJob]()
    for number in range(60):
        requests = {"cpu": str(draw.randint(1, 5)), GPU: str(draw.choice((0, 1, 1, 2, 4)))}
        run_time = draw.randint(20, 300)
        one = TraceJob(number * 9.0, run_time, requests, draw.randint(1, 4), estimate=run_time + 9)
        jobs.append(but(one, node_labels={"model": ("a",)} if draw.random() < 0.2 else {}))
    nodes = [
        build_node(
            f"n{i}", {"cpu": str(4 + 2 * (i % 3)), GPU: str(4 - i % 3)}, {"model": "ab"[i % 2]}
        )
        for i in range(6)
    ]
    return SimulationSetup(TraceWorkload(tuple(jobs)), tuple(nodes), profiles())


def run_to_end(steps: Steps[Sequence[Assignment]]) -> Sequence[Assignment]:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Sequence[Assignment] = end.value
            return found


SETUPS = {
    "shapes and labels": mixed_setup(1),
    "other shapes": mixed_setup(2),
    "priorities and lost nodes": replace(contended_setup(1), horizon=400.0),
}


@pytest.mark.mostly_slow(quick_every=3)
@pytest.mark.parametrize("name", SETUPS)
def test_equal_members_are_planned_on_the_nodes_of_a_cycle(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0

    def check(
        request: ReservationRequest,
        growth: CapacityGrowth,
        snapshot: Snapshot,
        *,
        ranks: IntArray,
        nodes: IntArray | None = None,
    ) -> Sequence[Assignment] | None:
        nonlocal compared
        found = place_equal_members(request, growth, snapshot, ranks=ranks, nodes=nodes)
        expected = run_to_end(place_by_rank(request, snapshot, ranks, nodes=nodes))
        assert found is None or list(found) == list(expected)
        compared += found is not None
        return found

    monkeypatch.setattr(planner, "place_equal_members", check)
    CoreEngine(SETUPS[name]).run()
    assert compared > 20
