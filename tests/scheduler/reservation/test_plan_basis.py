"""PlanBasis: reservations that are kept without a new plan are those that a plan would make."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.api.core import DEFAULT_SCHEDULER
from phalanx.scheduler.plugins.settings_plugins import ReservationArgs
from phalanx.scheduler.policy import DEFAULT_POLICY, Profiles
from phalanx.scheduler.reservation.plan_basis import PlanBasis
from phalanx.scheduler.reservation.reservation import Reservation
from phalanx.scheduler.reservation.tracker import ReservationTracker
from phalanx.sim.core_engine import CoreEngine
from phalanx.sim.simulation_setup import NodeFault, SimulationResult, SimulationSetup
from phalanx.sim.workloads.workload import TraceJob, TraceWorkload, build_equal_nodes

GPU = "nvidia.com/gpu"


@st.composite
def setups(draw: st.DrawFn) -> SimulationSetup:
    """Jobs for a few nodes, many of which wait; some run longer or shorter than they declare."""
    jobs = []
    for submit in sorted(draw(st.lists(st.integers(0, 600), min_size=8, max_size=30))):
        run_time = float(draw(st.sampled_from((10, 30, 60, 95, 300))))
        estimate = run_time * draw(st.sampled_from((1.0, 1.0, 1.0, 2.5, 0.5)))
        requests = {GPU: str(draw(st.sampled_from((1, 1, 2, 3, 4))))}
        if draw(st.booleans()):
            requests["cpu"] = str(draw(st.integers(1, 4)))
        pods = draw(st.sampled_from((1, 1, 1, 2, 3)))
        priority = draw(st.sampled_from((0, 0, 0, 0, 0, 0, 5)))
        jobs.append(
            TraceJob(submit, run_time, requests, pods, estimate=estimate, priority=priority)
        )
    mode = draw(st.sampled_from(("Easy", "Easy", "Easy", "Conservative", "Strict")))
    policy = replace(DEFAULT_POLICY, reservation=ReservationArgs(after_seconds=0, mode=mode))
    profiles = Profiles({DEFAULT_SCHEDULER: policy}, keeps_arrival_order=draw(st.booleans()))
    nodes = build_equal_nodes(draw(st.integers(3, 4)), {"cpu": "8", GPU: "4"})
    faults = (NodeFault(draw(st.integers(1, 500)), "node-0", 60.0),) if draw(st.booleans()) else ()
    return SimulationSetup(TraceWorkload(tuple(jobs)), nodes, profiles, faults=faults)


def simulate(setup: SimulationSetup) -> tuple[SimulationResult, list[tuple[Reservation, ...]]]:
    """Simulate a setup; returns the result, and the reservations after each plan."""
    engine, plans = CoreEngine(setup), list[tuple[Reservation, ...]]()
    state = engine._state
    plan_again = state.plan_reservations

    def plan(now: float):  # type: ignore[no-untyped-def]
        yield from plan_again(now)
        plans.append(state.reservations.current)

    state.plan_reservations = plan  # type: ignore[method-assign]
    return engine.run(), plans


def without_basis(setup: SimulationSetup) -> tuple[SimulationResult, list[tuple[Reservation, ...]]]:
    """Simulate a setup and plan each reservation anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlanBasis, "still_holds", lambda *args: False)
        return simulate(setup)


@settings(max_examples=6)
@given(setups())
def test_kept_reservations_are_those_of_a_new_plan(setup: SimulationSetup) -> None:
    assert simulate(setup) == without_basis(setup)


def test_starts_and_ends_of_other_pods_need_no_new_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Counter[str]()
    plan_in_order = ReservationTracker._plan_in_order

    def count_plans(*args):  # type: ignore[no-untyped-def]
        calls["plans"] += 1
        return plan_in_order(*args)

    monkeypatch.setattr(ReservationTracker, "_plan_in_order", count_plans)
    # One job keeps a node until 1000 s; the gang behind it needs both; small jobs come and go.
    jobs = [TraceJob(0.0, 1000.0, {"cpu": "1"}, estimate=1000.0)]
    jobs += [TraceJob(1.0, 10.0, {"cpu": "8"}, 2, estimate=10.0)]
    jobs += [TraceJob(2.0 + 20 * i, 10.0, {"cpu": "4"}, estimate=10.0) for i in range(40)]
    policy = replace(DEFAULT_POLICY, reservation=ReservationArgs(after_seconds=0))
    profiles = Profiles({DEFAULT_SCHEDULER: policy}, keeps_arrival_order=True)
    nodes = build_equal_nodes(3, {"cpu": "8"})
    result = CoreEngine(SimulationSetup(TraceWorkload(tuple(jobs)), nodes, profiles)).run()
    assert result.started_pods == 43
    assert calls["plans"] < 10
