"""Which jobs are larger than a cluster."""

from __future__ import annotations

import pytest

from phalanx.sim.simulation_setup import SimulationSetup, find_large_jobs, leave_out_jobs
from phalanx.sim.workloads.workload import MILLI_GPU, NO_LABELS, TraceJob, TraceWorkload, build_node

NODES = (
    build_node("a", {"cpu": "4", MILLI_GPU: "2000"}, {"rack": "r1", "gpu.model": "T4"}),
    build_node("b", {"cpu": "4", MILLI_GPU: "2000"}, {"rack": "r1", "gpu.model": "V100"}),
    build_node("c", {"cpu": "6", "pods": "3"}, {"rack": "r2"}),
)


def setup(*jobs: TraceJob) -> SimulationSetup:
    return SimulationSetup(TraceWorkload(jobs, skipped={"x": 1}), NODES)


@pytest.mark.parametrize(
    ("requests", "pods", "fields"),
    [
        ({"cpu": "4"}, 3, {}),
        ({"cpu": "3"}, 4, {}),
        ({"cpu": "100m"}, 83, {}),
        ({"cpu": "1"}, 8, {"topology": "rack"}),
        ({"cpu": "4"}, 1, {"node_labels": {"gpu.model": ("T4", "P100")}}),
        ({"cpu": "0", MILLI_GPU: "600"}, 4, {}),
        ({"cpu": "0", MILLI_GPU: "400"}, 8, {}),
        ({"cpu": "0", MILLI_GPU: "2000"}, 2, {}),
    ],
)
def test_largest_job_that_fits_and_one_pod_more(
    requests: dict[str, str], pods: int, fields: dict[str, object]
) -> None:
    fits = TraceJob(0, 1, requests, pods, **fields)  # type: ignore[arg-type]
    large = TraceJob(0, 1, requests, pods + 1, **fields)  # type: ignore[arg-type]
    assert find_large_jobs(setup(fits)) == {}
    found = find_large_jobs(setup(large, fits))
    assert found == {0: "larger than the machine"}
    left = leave_out_jobs(setup(large, fits), found).workload
    assert (left.jobs, left.skipped) == ((fits,), {"larger than the machine": 1, "x": 1})


@pytest.mark.parametrize(
    ("requests", "fields", "reason"),
    [
        ({"example.com/fpga": "1", "cpu": "1"}, {}, "no node has example.com/fpga"),
        (
            {"cpu": "1"},
            {"node_labels": {"disk": ("ssd",)}},
            NO_LABELS,
        ),
        ({"cpu": "1"}, {"topology": "block"}, NO_LABELS),
        ({"cpu": "5"}, {"topology": "rack, *"}, ""),
        ({"cpu": "7"}, {"topology": "block, rack"}, "larger than the machine"),
    ],
)
def test_jobs_that_fit_nowhere_have_a_reason(
    requests: dict[str, str], fields: dict[str, object], reason: str
) -> None:
    job = TraceJob(0, 1, requests, **fields)  # type: ignore[arg-type]
    assert find_large_jobs(setup(job)) == ({0: reason} if reason else {})
