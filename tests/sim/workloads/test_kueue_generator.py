"""The reader of generator files of Kueue."""

from __future__ import annotations

import pytest

from phalanx.sim.core_engine import CoreEngine
from phalanx.sim.simulation_setup import SimulationSetup
from phalanx.sim.workloads.trace_formats import read_trace
from phalanx.sim.workloads.workload import InvalidTrace, TraceFile

GENERATOR = """\
# a comment
cohorts:
- className: cohort
  count: 2
  queuesSets:
  - className: cq
    count: 3
    nominalQuota: 20
    borrowingLimit: 100
    workloadsSets:
    - count: 4
      creationIntervalMs: 100
      workloads:
      - {className: small, runtimeMs: 200, priority: 50, request: 1}
    - count: 2
      creationIntervalMs: 500
      workloads:
      - {className: large, runtimeMs: 1000, priority: 200, request: 20}
"""


def trace(text: str = GENERATOR, *, lenient: bool = False) -> TraceFile:
    return TraceFile("generator.yaml", text.splitlines(), lenient)


def test_every_queue_submits_its_workloads() -> None:
    workload = read_trace(trace())
    assert len(workload.jobs) == 2 * 3 * (4 + 2)
    assert [node.metadata.name for node in workload.nodes][:2] == ["cohort-0-cq-0", "cohort-0-cq-1"]
    assert workload.nodes[0].status.allocatable["cpu"] == "20"
    large = [job for job in workload.jobs if job.priority == 200]
    assert {(round(job.submit, 3), job.run_time, job.requests["cpu"]) for job in large} == {
        (0.4, 1.0, "20"),
        (0.9, 1.0, "20"),
    }
    assert len({job.owner for job in workload.jobs}) == 6


def test_all_workloads_run_to_their_end() -> None:
    workload = read_trace(trace())
    result = CoreEngine(SimulationSetup(workload, workload.nodes)).run()
    assert all(record.end is not None for record in result.records)
    # Large workloads need whole nodes: they preempt small ones.
    assert sum(record.preemptions for record in result.records) > 0


TOPOLOGY = """\
topology:
  name: default
  levels:
  - {name: block, count: 2, nodeLabel: example.com/block}
  - {name: rack, count: 3, nodeLabel: example.com/rack}
  - {name: node, count: 2, nodeLabel: kubernetes.io/hostname, capacity: {cpu: "4", memory: 8Gi}}
resourceFlavor: {name: tas, nodeLabel: tas-node-group, topologyName: default}
cohorts:
- className: cohort
  count: 1
  queuesSets:
  - className: cq
    count: 1
    nominalQuota: "20"
    borrowingLimit: "100"
    workloadsSets:
    - count: 1
      creationIntervalMs: 100
      workloads:
      - {className: one, runtimeMs: 200, request: 1500m, podCount: 2, tasConstraint: required,
         tasLevel: example.com/rack}
      - {className: two, runtimeMs: 200, request: 2, podCount: 5, tasConstraint: preferred,
         tasLevel: example.com/rack}
      - {className: three, runtimeMs: 200, request: 2, podCount: 4, tasConstraint: balanced,
         tasLevel: example.com/block, sliceSize: 2}
"""


def test_topology_describes_the_nodes_and_where_workloads_run() -> None:
    workload = read_trace(trace(TOPOLOGY))
    assert len(workload.nodes) == 2 * 3 * 2
    last = workload.nodes[-1]
    assert last.metadata.labels == {
        "example.com/block": "block-1",
        "example.com/rack": "block-1-rack-2",
        "kubernetes.io/hostname": "block-1-rack-2-node-1",
    }
    assert last.status.allocatable == {"pods": "110", "cpu": "4", "memory": "8Gi"}
    assert [(job.pods, job.requests["cpu"], job.topology) for job in workload.jobs] == [
        (2, "1500m", "example.com/rack"),
        (5, "2", "example.com/rack, example.com/block, *"),
        (4, "2", "example.com/block, *"),
    ]
    assert (
        workload.notes[-1] == "balanced topologies are simulated as preferred ones, without slices"
    )
    result = CoreEngine(SimulationSetup(workload, workload.nodes)).run()
    assert [record.first_start for record in result.records] == [0, 0, 0]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            "count: 2\n  queues",
            "count: x\n  queues",
            'line 4: cohorts[0].count: must be a whole number, not "x"',
        ),
        (
            "runtimeMs: 200",
            "runtimeMs: 0",
            "line 14: cohorts[0].queuesSets[0].workloadsSets[0].workloads[0].runtimeMs: must be a "
            "whole number of at least 1, not 0",
        ),
        ("count: 4", "count: -4", "line 11: cohorts[0].queuesSets[0].workloadsSets[0].count: "),
        ("nominalQuota: 20", "nominalQuota: -20", "line 8: cohorts[0].queuesSets[0].nominalQuota"),
        (
            "# a comment",
            "colours: {name: a}",
            "line 1: colours: unknown field",
        ),
        (
            "request: 1}",
            "request: one}",
            "line 14: cohorts[0].queuesSets[0].workloadsSets[0].workloads[0].request: must be an "
            'amount such as 20, 1250m or 256Gi, not "one"',
        ),
        (
            "# a comment",
            "topology: {levels: []}",
            "line 1: topology.levels: must be a list with a length of at least 1, not []",
        ),
        (
            "# a comment",
            "topology: {levels: [{name: a, count: 1, nodeLabel: b, capacity: {cpu: many}}]}",
            "line 1: topology.levels[0].capacity: every value must be an amount such as 20",
        ),
        ("count: 3\n", "count: 3\n    count: 4\n", 'line 8, column 5: duplicate field "count"'),
        ("count: 4", "count: 2026-13-45", "line 11, column 14: "),
        ("count: 4", f"count: {'9' * 5000}", "line 11, column 14: "),
        ("cohorts:", "cohorts: [", "line 3, column 1: expected"),
    ],
)
def test_invalid_generator_is_rejected(old: str, new: str, reason: str) -> None:
    with pytest.raises(InvalidTrace) as error:
        read_trace(trace(GENERATOR.replace(old, new)), "kueue")
    assert str(error.value).startswith(f"generator.yaml, {reason}")


def test_lenient_reader_counts_and_removes_what_it_cannot_read() -> None:
    text = GENERATOR.replace("runtimeMs: 200", "runtimeMs: -1")
    text = text.replace("# a comment", "colours: {name: a}").replace(
        "    count: 3\n", "    count: 3\n    colour: red\n"
    )
    workload = read_trace(trace(text, lenient=True), "kueue")
    assert workload.skipped == {"entry cannot be read": 1, "unknown field": 2}
    assert {job.priority for job in workload.jobs} == {200}
    for bad in ("cohorts: 3\n", "cohorts:\n- {}\n", "cohorts: [\n"):
        with pytest.raises(InvalidTrace, match=r"generator\.yaml"):
            read_trace(trace(bad, lenient=True), "kueue")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            "tasConstraint: required,\n         tasLevel: example.com/rack",
            "tasConstraint: required,\n         tasLevel: rack",
            "line 21: cohorts[0].queuesSets[0].workloadsSets[0].workloads[0].tasLevel: must be a "
            "nodeLabel of the topology (example.com/block, example.com/rack, "
            "kubernetes.io/hostname)",
        ),
        (
            "{name: rack, count: 3,",
            "{name: rack, count: 2000000,",
            "line 3: topology.levels: describes more than 2000000 nodes",
        ),
        (
            "    - count: 1\n",
            "    - count: 1000000\n",
            "line 17: cohorts[0].queuesSets[0].workloadsSets[0]: describes 3000000 workloads; at "
            "most 2000000 are simulated",
        ),
    ],
)
def test_machine_that_does_not_exist_is_rejected(old: str, new: str, reason: str) -> None:
    assert old in TOPOLOGY
    with pytest.raises(InvalidTrace) as error:
        read_trace(trace(TOPOLOGY.replace(old, new)), "kueue")
    assert str(error.value) == f"generator.yaml, {reason}"


def test_unknown_field_is_named_with_its_line() -> None:
    text = GENERATOR.replace("    count: 3\n", "    count: 3\n    colour: red\n")
    with pytest.raises(InvalidTrace) as error:
        read_trace(trace(text))
    reason = "cohorts[0].queuesSets[0].colour: unknown field"
    assert str(error.value) == f"generator.yaml, line 8: {reason}"
