"""Public traces by `phalanx simulate`, beside the figures that are known for them.

The figures of backfilling are those of a simulation that counts processors: all jobs with a run
time, first come, first served, at one instant first ends, then arrivals. For EASY on the log of KTH
the literature has a mean wait of 114 minutes and a bounded slowdown of 90.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from phalanx.api.resources import node_allocatable, pod_requests
from phalanx.cli.main import main
from phalanx.cli.simulation_file import SimulationOptions, load_simulation
from phalanx.sim.core_engine import CoreEngine
from phalanx.sim.reports.figures import build_report
from phalanx.sim.simulation_setup import SimulationSetup

DATA = Path(__file__).parent / "data"
KTH, HPC2N = DATA / "KTH-SP2-1996-2.1-cln.swf.gz", DATA / "hpc2n-sample.swf.gz"
KUEUE, PHILLY = DATA / "kueue-baseline.yaml", DATA / "philly-2017-10.csv.gz"


def simulate(*args: object) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["simulate", *map(str, args), "-o", "json"])
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


@pytest.mark.mostly_slow(quick_every=2)
@pytest.mark.parametrize(
    ("path", "mode", "jobs", "wait", "slowdown"),
    [
        (KTH, "easy", 28_467, 6858.4, 90.86),
        (KTH, "strict", 28_467, 390_092, 7514.4),
        (HPC2N, "easy", 3_145, 3547.9, 17.06),
        (HPC2N, "strict", 3_145, 5627.9, 47.41),
    ],
)
def test_waits_of_whole_logs_are_those_that_are_known(
    path: Path, mode: str, jobs: int, wait: float, slowdown: float
) -> None:
    report = simulate("-f", path, "--reservation", mode)
    assert (report["jobs"], report["unfinished"]) == (jobs, 0)
    assert report["wait"]["meanSeconds"] == pytest.approx(wait, rel=0.001)
    assert report["slowdown"]["boundedMean"] == pytest.approx(slowdown, rel=0.001)


class CoreAudit:
    """Checks a simulation of the core engine at the end of every instant.

    No node has more than it can hold, all pods of a job have nodes or none has, a job that runs is
    on nodes that exist, and (seldom, it takes long) the scheduler's cache is that of its objects.
    """

    def __init__(self, setup: SimulationSetup, every: int) -> None:
        self.instants, self._every = 0, every
        self._rooms = {node.metadata.name: node_allocatable(node) for node in setup.nodes}
        self._engine = CoreEngine(setup, self._check)

    def run(self) -> dict[str, Any]:
        return build_report(self._engine.run(), {})

    def _check(self, now: float, finished: int) -> None:
        self.instants += 1
        state = self._engine._state
        if self.instants % self._every:
            return
        used: dict[str, Counter[str]] = {}
        snapshot = state.cache.snapshot()
        for pod in snapshot.pod_index.assigned_pods():
            live = self._engine._by_pod[pod.key]
            used.setdefault(pod.node, Counter()).update(pod_requests(live.pods[pod.key]))
        for name, amounts in used.items():
            room = self._rooms[name]
            assert all(amount <= room[one] for one, amount in amounts.items()), (now, name)
        placed = Counter(
            self._engine._by_pod[one.key].number for one in snapshot.pod_index.assigned_pods()
        )
        assert set(placed) == set(self._engine._running), now
        for number, pods in placed.items():
            assert pods == self._engine._running[number].job.pods, (now, number)
        assert state.cache.check() == [], now


@pytest.mark.slow
def test_generator_of_kueue_runs_to_its_end_and_keeps_the_invariants() -> None:
    setup = load_simulation(KUEUE, SimulationOptions()).setup
    assert len(setup.workload.jobs) == 15_000
    audit = CoreAudit(setup, every=50)
    report = audit.run()
    assert (report["jobs"], report["unfinished"]) == (15_000, 0)
    assert audit.instants > 500


@pytest.mark.slow
def test_month_of_philly_runs_to_its_end_and_keeps_the_invariants() -> None:
    nodes = SimulationOptions(nodes="96", shape="cpu=64,nvidia.com/gpu=8")
    setup = load_simulation(PHILLY, nodes).setup
    audit = CoreAudit(setup, every=1000)
    report = audit.run()
    assert (report["jobs"], report["unfinished"]) == (47_192, 0)
    assert audit.instants > 50_000
    # Some wait: the invariants are checked while jobs are backfilled.
    assert report["queue"]["maxJobs"] > 100
