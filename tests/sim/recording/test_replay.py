"""Recordings of clusters in virtual time, replayed: the replay equals what happened."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from phalanx.scheduler.policy import DEFAULT_PROFILES, apply_feature_gates
from phalanx.sim.recording.history import PodEnd
from phalanx.sim.recording.replay_engine import ReplayEngine
from phalanx.sim.simulation_setup import NodeFault, SimulationSetup
from phalanx.sim.workloads.workload import build_equal_nodes
from tests.sim.recording.recorded_cluster import (
    RecordedScenario,
    check_replay,
    read_workload,
    replay_lines,
)

SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))
JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "train", "namespace": "default"},
    "spec": {
        "parallelism": 3,
        "completions": 3,
        "scheduling": {"schedulingPolicy": {"gang": {}}},
        "template": {
            "metadata": {"annotations": {"phalanx.dev/run-seconds": "40"}},
            "spec": {
                "restartPolicy": "Never",
                "containers": [
                    {"name": "a", "image": "a", "resources": {"requests": {"cpu": "2"}}}
                ],
            },
        },
    },
}
#: Two gangs that do not fit together, one that preempts, a Job, a cordon and a node that joins.
BUSY = f"""
nodes: {{count: 2, each: {{cpu: 4}}}}
at 0: {{gang: first, pods: 4, each: {{cpu: 2}}, run: 30s}}
at 1: {{gang: second, pods: 3, each: {{cpu: 2}}, run: 20s}}
at 5: {{make: {json.dumps(JOB)}}}
at 55: {{gang: urgent, pods: 2, each: {{cpu: 2}}, run: 10s, priority: 10}}
at 60: {{cordon: node-0}}
at 70: {{add nodes: {{name: late, each: {{cpu: 4}}}}}}
at 71: {{pod: single, each: {{cpu: 1}}, run: 5s}}
until: 200
"""


@pytest.fixture(scope="module")
def busy() -> list[str]:
    """A recording with waits, a preemption of a Job, and nodes that change."""
    return RecordedScenario(BUSY).lines


def test_replay_with_the_same_policy_equals_the_recording(busy: list[str]) -> None:
    comparison = check_replay(busy)
    assert (comparison.jobs, comparison.equal_jobs) == (5, 5)
    workload = read_workload(busy)
    outcomes = [run.outcome for job in workload.recorded for run in job.runs]
    assert PodEnd.PREEMPTED in outcomes


def test_preempted_pods_of_a_job_continue_their_chain(busy: list[str]) -> None:
    jobs = {job.ref.name: job for job in read_workload(busy).recorded}
    train = next(job for name, job in jobs.items() if name.startswith("train"))
    assert len(train.pods) == 3
    lengths = sorted(len(chain.runs) for chain in train.pods)
    assert lengths[-1] == 2
    assert all(len(chain.own_runs) == 1 for chain in train.pods)


def test_replay_with_another_policy_starts_jobs_at_other_times(busy: list[str]) -> None:
    starts = [job.record.first_start for job in replay_lines(busy).jobs]
    gentle = DEFAULT_PROFILES.without_group_preemption
    others = [job.record.first_start for job in replay_lines(busy, gentle).jobs]
    assert starts[3] == pytest.approx(57, abs=1)
    assert (others[3] or 0) > 60


def test_pods_that_were_recorded_together_are_placed_in_the_order_of_their_lines(
    busy: list[str],
) -> None:
    # A scheduler observes one pod after the other, here the last name first, and places the oldest
    # member first. The recorder gives pods that arrive together one time.
    renamed = [re.sub(r"\bfirst-([0-3])", lambda m: f"first-{3 - int(m[1])}", x) for x in busy]
    end = next(number for number, line in enumerate(renamed) if '"Succeeded"' in line)
    first = next(
        job for job in replay_lines(renamed[:end]).jobs if job.recorded.ref.name == "first"
    )
    assert len({live.node for live in first.pods}) == 2
    assert [(live.recorded and live.recorded.node) == live.node for live in first.pods] == [
        True
    ] * 4


def test_replay_runs_on_other_nodes(busy: list[str]) -> None:
    workload = read_workload(busy)
    nodes = build_equal_nodes(8, {"cpu": "4", "memory": "32Gi"})
    result = ReplayEngine(SimulationSetup(workload, nodes)).run()
    assert [record.end is None for record in result.records] == [False] * 5
    assert all(one.first_start - one.job.submit < 1 for one in result.records if one.first_start)
    assert sum(record.preemptions for record in result.records) == 0


def test_jobs_of_a_lost_node_start_again(busy: list[str]) -> None:
    workload = read_workload(busy)
    faults = (NodeFault(12.0, "node-1", 30.0),)
    result = ReplayEngine(SimulationSetup(workload, workload.nodes, faults=faults)).run()
    assert sum(record.disruptions for record in result.records) > 0


def test_pods_of_a_deleted_node_end_as_recorded() -> None:
    text = (
        "nodes: {count: 2, each: {cpu: 2}}\n"
        "at 0: {gang: first, pods: 2, each: {cpu: 2}, run: 30s}\n"
        "at 5: {gang: second, pods: 1, each: {cpu: 2}, run: 10s}\nuntil: 60\n"
    )
    lines = RecordedScenario(text).lines
    begin = next(line["at"] for line in map(json.loads, lines) if line["is"] == "synced")
    gone = {"is": "node", "at": begin + 12.0, "name": "node-1", "node": None}
    number = next(i for i, line in enumerate(lines) if json.loads(line)["at"] > gone["at"])
    lines.insert(number, json.dumps(gone))
    engine = replay_lines(lines)
    # A kubelet runs on without its Node, until pod garbage collection deletes the pods.
    assert [job.record.disruptions for job in engine.jobs] == [0, 0]
    assert all(job.record.end is not None for job in engine.jobs)
    workload = read_workload(lines)
    faults = (NodeFault(10, "node-1", 100),)
    lost = ReplayEngine(SimulationSetup(workload, workload.nodes, faults=faults)).run()
    assert sum(record.disruptions for record in lost.records) > 0


def test_jobs_that_ran_at_the_beginning_are_simulated_and_not_reported() -> None:
    recording = RecordedScenario(BUSY, record_at=20.0)
    workload = read_workload(recording.lines)
    assert any("ran when the recording began" in note for note in workload.notes)
    names = {job.ref.name for job in workload.recorded}
    assert "first" not in names
    assert "second" in names
    assert min(job.submit for job in workload.jobs) < 0
    assert check_replay(recording.lines).differences == ()


def test_replay_is_deterministic(busy: list[str]) -> None:
    first, second = replay_lines(busy), replay_lines(busy)
    assert [job.bindings for job in first.jobs] == [job.bindings for job in second.jobs]


def test_jobs_that_cannot_start_end_the_replay() -> None:
    text = (
        "nodes: {each: {cpu: 2}}\nat 0: {gang: big, pods: 4, each: {cpu: 2}}\n"
        "at 1: {gang: small, pods: 1, each: {cpu: 2}, run: 15}\nuntil: 20\n"
    )
    workload = read_workload(RecordedScenario(text).lines)
    result = ReplayEngine(SimulationSetup(workload, workload.nodes)).run()
    assert [record.first_start is None for record in result.records] == [True, False]
    # The time in which nothing but failing attempts happens would change all means.
    assert result.ended_at < 60


@pytest.mark.parametrize(
    "name",
    [
        "preemption-of-a-whole-gang",
        "group-recreated-with-another-policy",
        "last-members-of-a-gang-to-run",
    ],
)
def test_scenario_is_replayed_as_it_happened(name: str) -> None:
    _check_scenario(next(file for file in SCENARIOS if file.stem == name))


@pytest.mark.slow
@pytest.mark.parametrize("file", SCENARIOS, ids=lambda file: file.stem)
def test_every_scenario_is_replayed_as_it_happened(file: Path) -> None:
    _check_scenario(file)


def _check_scenario(file: Path) -> None:
    recording = RecordedScenario(file.read_text())
    profiles = apply_feature_gates(recording.scenario.gates)
    assert check_replay(recording.lines, profiles, exact_nodes=True).differences == ()


def overloaded_scenario(seed: int) -> str:
    """Forty gangs that need more than four nodes have: most of them wait, and are refused often."""
    draw, now, text = random.Random(seed), 0.0, "nodes: {count: 4, each: {cpu: 4}}\n"
    for number in range(40):
        now = round(now + draw.choice((0.1, 1, 2, 5)), 1)
        pods, cpu, run = draw.choice((1, 2, 4, 6)), draw.choice((1, 2)), draw.randint(5, 60)
        text += (
            f"at {now:g}: {{gang: g{number}, pods: {pods}, each: {{cpu: {cpu}}}, run: {run}s}}\n"
        )
    return text + "until: 500\n"


def check_overloaded(seed: int) -> None:
    lines = RecordedScenario(overloaded_scenario(seed)).lines
    found = check_replay(lines, tolerance=0.1, exact_nodes=True)
    assert found.jobs == 40
    assert found.differences == ()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [4, 21])
def test_overloaded_cluster_is_replayed_as_it_happened(seed: int) -> None:
    check_overloaded(seed)


@pytest.mark.mostly_soak(slow_every=4)
@pytest.mark.parametrize("seed", [1, 2, 3, 5, 6, 7, 8, 14, 16, 18])
def test_latencies_do_not_add_up_in_an_overloaded_cluster(seed: int) -> None:
    check_overloaded(seed)


def test_scheduler_observes_what_it_writes_as_late_as_in_the_cluster(busy: list[str]) -> None:
    history = read_workload(busy).history
    assert 0 < history.binding_seconds < 0.02
    assert 0 < history.starting_seconds < 0.02
    engine = replay_lines(busy)
    for job in engine.jobs:
        starts = sorted(run.bound for run in job.recorded.runs if run.bound is not None)
        replayed = sorted(one.at for one in job.bindings)
        for bound, at in zip(starts, replayed, strict=True):
            assert 0 <= bound - history.recording.begin - at < 0.02


def test_times_are_recorded_in_microseconds(busy: list[str]) -> None:
    times = [json.loads(line)["at"] for line in busy]
    assert any(round(at, 3) != at for at in times)
    assert all(round(at, 6) == at for at in times)
