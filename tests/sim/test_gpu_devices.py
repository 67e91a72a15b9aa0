"""Shares of GPUs in a simulation: each from one device, by both engines."""

from __future__ import annotations

import pytest

from phalanx.sim.core_engine import CoreEngine
from phalanx.sim.full_engine import FullEngine
from phalanx.sim.gpu_devices import build_claim_spec
from phalanx.sim.simulation_setup import NodeFault, SimulationSetup
from phalanx.sim.workloads.workload import MILLI_GPU, TraceJob, TraceWorkload, build_node

#: Two GPUs.
NODE = build_node("gpu-node", {"cpu": "8", MILLI_GPU: "2000"})


def share(submit: float, milli: int, run_time: float = 100, pods: int = 1) -> TraceJob:
    requests = {"cpu": "1", MILLI_GPU: str(milli)}
    return TraceJob(submit, run_time, requests, pods, estimate=run_time)


def starts(setup: SimulationSetup, engine: type[CoreEngine | FullEngine]) -> list[float | None]:
    return [record.first_start for record in engine(setup).run().records]


@pytest.mark.parametrize("engine", [CoreEngine, FullEngine])
@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        # 400 of one GPU and 400 of the other are free: a share of 500 waits, one of 400 does not.
        ([share(0, 600), share(0, 600), share(1, 500, 10), share(2, 400, 10)], [0, 0, 100, 2]),
        # A whole GPU needs one that nothing uses.
        ([share(0, 100), share(1, 1000), share(2, 1000, 10)], [0, 1, 100]),
        ([share(0, 100), share(1, 2000)], [0, 100]),
        # The members of a gang get their shares together.
        ([share(0, 700), share(1, 600, pods=2), share(200, 500, pods=4)], [0, 100, 200]),
    ],
)
def test_share_comes_from_one_device(
    jobs: list[TraceJob], expected: list[float], engine: type[CoreEngine | FullEngine]
) -> None:
    setup = SimulationSetup(TraceWorkload(tuple(jobs)), (NODE,))
    assert starts(setup, engine) == expected


@pytest.mark.parametrize("engine", [CoreEngine, FullEngine])
def test_devices_of_a_lost_node_are_free_when_it_returns(
    engine: type[CoreEngine | FullEngine],
) -> None:
    jobs = (share(0, 600), share(0, 600), share(10, 500))
    fault = NodeFault(50, "gpu-node", 10)
    setup = SimulationSetup(TraceWorkload(jobs), (NODE,), faults=(fault,))
    records = engine(setup).run().records
    assert [record.disruptions for record in records] == [1, 1, 0]
    # The third job waits since before the fault, so that it comes before those that start again.
    assert [record.end for record in records] == [160, 260, 160]


@pytest.mark.parametrize("amount", ["0", "1500", "0.5", "x"])
def test_amount_that_is_no_number_of_devices_has_no_claim(amount: str) -> None:
    assert build_claim_spec({MILLI_GPU: amount}) is None
