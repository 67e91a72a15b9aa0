"""The reader of operation lists of scheduler_perf."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from phalanx.api.core import Node
from phalanx.sim.core_engine import CoreEngine
from phalanx.sim.full_engine import FullEngine
from phalanx.sim.simulation_setup import SimulationSetup
from phalanx.sim.workloads.trace_formats import read_trace
from phalanx.sim.workloads.workload import InvalidTrace, TraceFile, TraceWorkload

DATA = Path(__file__).parents[1] / "data" / "scheduler-perf"
FILES = {
    "pod.yaml": """\
kind: Pod
metadata: {generateName: pod-, labels: {app: web}}
spec:
  containers:
  - {name: pause, image: pause, resources: {requests: {cpu: 500m, memory: 1Gi}}}
""",
    "high.yaml": "kind: PriorityClass\nmetadata: {name: high}\nvalue: 100\n",
    "urgent.yaml": """\
kind: Pod
spec:
  priorityClassName: high
  nodeSelector: {zone: b}
  containers: [{name: pause, image: pause, resources: {requests: {cpu: 1}}}]
""",
    "group.yaml": """\
kind: PodGroup
metadata: {name: gang}
spec: {schedulingPolicy: {gang: {minCount: 3}}}
""",
    "member.yaml": """\
kind: Pod
spec:
  schedulingGroup: {podGroupName: gang}
  containers: [{name: pause, image: pause}]
""",
    "service.yaml": "kind: Service\nmetadata: {name: web}\n",
    "number.yaml": "kind: Pod\nspec: {priority: high, containers: []}\n",
    "volume.yaml": "kind: Pod\nspec: {volumes: [{name: a}], containers: []}\n",
}


def read_operations(*operations: str, params: str = "{}", lenient: bool = False) -> TraceWorkload:
    """Read a case with these operations behind one that creates two nodes."""
    text = "- name: Case\n  defaultPodTemplatePath: pod.yaml\n  workloadTemplate:\n"
    for one in ("{opcode: createNodes, count: 2}", *operations):
        text += f"  - {one}\n"
    text += f"  workloads:\n  - name: run\n    params: {params}\n"
    return read_trace(
        TraceFile(
            "perf.yaml",
            text.splitlines(),
            lenient,
            read_beside=lambda name: (name, FILES[name]),
        )
    )


def read_case(folder: str, case: str = "") -> TraceWorkload:
    """Read a file of Kubernetes."""
    path = DATA / folder / "performance-config.yaml"
    return read_trace(
        TraceFile(
            "performance-config.yaml",
            path.read_text().splitlines(),
            case=case,
            read_beside=lambda name: (name, (path.parent / name).read_text()),
        )
    )


def test_gangs_of_kubernetes_are_jobs() -> None:
    workload = read_case("gangscheduling", "GangScheduling/10Nodes_3Gangs")
    assert [(job.pods, job.owner, job.requests) for job in workload.jobs] == [
        (3, "gang-ns-0", {"cpu": "100m", "memory": "104857600"})
    ] * 3
    assert len(workload.nodes) == 10
    assert workload.nodes[0].status.allocatable == {"cpu": "4", "memory": "32Gi", "pods": "110"}
    # The last part of the name is enough.
    assert len(read_case("gangscheduling", "100Nodes_10Gangs").jobs) == 10


def test_pods_of_a_basic_group_are_jobs_of_their_own() -> None:
    workload = read_case("basicscheduling", "10Nodes_3Groups")
    assert [job.pods for job in workload.jobs] == [1] * 9


def test_gangs_with_a_topology_are_placed_in_one_rack_by_both_engines() -> None:
    workload = read_case("tas", "10Nodes_3Gangs")
    assert {job.topology for job in workload.jobs} == {"topology.kubernetes.io/rack"}
    assert workload.nodes[7].metadata.labels["topology.kubernetes.io/rack"] == "rack-0"
    setup = SimulationSetup(workload, workload.nodes)
    for engine in (CoreEngine(setup), FullEngine(setup)):
        assert [record.first_start for record in engine.run().records] == [0.0] * 3


def test_gang_that_fits_no_rack_waits() -> None:
    workload = read_case("tas", "10Nodes_3Gangs")
    # One rack per node, and no node has room for a whole gang.
    nodes = tuple(_with_own_rack(node) for node in workload.nodes)
    result = CoreEngine(SimulationSetup(workload, nodes)).run()
    assert [record.first_start for record in result.records] == [None] * 3


def _with_own_rack(node: Node) -> Node:
    meta = node.metadata
    labels = {**meta.labels, "topology.kubernetes.io/rack": meta.name}
    status = replace(node.status, allocatable={"cpu": "200m", "memory": "1Gi", "pods": "10"})
    return replace(node, metadata=replace(meta, labels=labels), status=status)


def test_case_must_be_named_if_there_are_several() -> None:
    with pytest.raises(InvalidTrace, match=r"has 8 cases; select one with --case: GangScheduling"):
        read_case("gangscheduling")
    with pytest.raises(InvalidTrace, match=r'unknown case "x"; available: GangScheduling/10Nodes'):
        read_case("gangscheduling", "x")


def test_sleep_separates_operations_and_deleted_pods_end() -> None:
    workload = read_operations(
        "{opcode: createPods, countParam: $pods, namespace: a}",
        "{opcode: sleep, duration: 1m30s}",
        "{opcode: barrier}",
        "{opcode: createPods, count: 1, namespace: b}",
        "{opcode: deletePods, namespace: a, labelSelector: {app: web}}",
        "{opcode: sleep, durationParam: $pause}",
        params="{pods: 2, pause: 10s}",
    )
    assert [(job.submit, job.run_time, job.owner) for job in workload.jobs] == [
        (0, 90, "a"),
        (0, 90, "a"),
        (90, 10 + 3600, "b"),
    ]


def test_pod_sets_priorities_and_node_labels() -> None:
    workload = read_operations(
        "{opcode: createNodes, count: 2, labelNodePrepareStrategy: {labelKey: zone, labelValues:"
        " [a, b]}}",
        "{opcode: createAny, templatePath: high.yaml}",
        "{opcode: createPodSets, count: 2, namespacePrefix: set, createPodsOp: {opcode: createPods,"
        " count: 3, podTemplatePath: urgent.yaml}}",
    )
    assert Counter(job.owner for job in workload.jobs) == {"set-0": 3, "set-1": 3}
    assert workload.jobs[0].priority == 100
    assert workload.jobs[0].node_labels == {"zone": ("b",)}
    zones = [node.metadata.labels.get("zone") for node in workload.nodes]
    assert zones == [None, None, "a", "b"]


def test_churn_creates_pods_while_operations_sleep() -> None:
    churn = "{opcode: churn, mode: MODE, number: 2, intervalMilliseconds: 1000, templatePaths: [P]}"
    once = churn.replace("MODE", "create").replace("P]", "pod.yaml]")
    workload = read_operations(once, "{opcode: sleep, duration: 5s}")
    assert [(job.submit, job.run_time) for job in workload.jobs] == [(0, 3604), (1, 3603)]
    again = churn.replace("MODE", "recreate").replace("P]", "pod.yaml]")
    workload = read_operations(again, "{opcode: sleep, duration: 6s}")
    assert [(job.submit, job.run_time) for job in workload.jobs] == [(0, 2), (1, 2), (4, 2), (5, 2)]


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        ("{opcode: startDriver}", 'operation "startDriver" is not supported; available: createN'),
        ("{opcode: sleep, forever: true}", "field forever of sleep is not supported"),
        ("{opcode: sleep, duration: -1s}", "the duration -1s is negative"),
        ("{opcode: createPods, countParam: $x}", 'Case/run has no parameter "x"'),
        ("{opcode: createPods, count: -1}", "count must be a whole number that is not negative"),
        ("{opcode: createPods, count: 1, steadyState: true}", "steadyState is not supported"),
        (
            "{opcode: createPods, count: 1, podTemplatePath: volume.yaml}",
            "pods with spec.volumes are not supported",
        ),
        (
            "{opcode: createPods, count: 1, podTemplatePath: urgent.yaml}",
            'there is no PriorityClass "high"',
        ),
        (
            "{opcode: createPods, count: 1, podTemplatePath: member.yaml, namespace: a}",
            'there is no PodGroup "gang" in namespace "a"',
        ),
        (
            "{opcode: churn, mode: create, templatePaths: [service.yaml]}",
            "churn of kind Service is not supported",
        ),
        (
            "{opcode: createPods, count: 1, podTemplatePath: number.yaml}",
            'cannot read a pod: spec.priority: must be a whole number, not "high"',
        ),
        ("{opcode: createAny, templatePath: service.yaml}", "objects of kind Service are not supp"),
    ],
)
def test_operation_that_is_not_supported_names_its_line_and_is_skipped_if_lenient(
    operation: str, reason: str
) -> None:
    pods = "{opcode: createPods, count: 2}"
    with pytest.raises(InvalidTrace) as error:
        read_operations(pods, operation)
    assert str(error.value).startswith(f"perf.yaml, line 6: {reason}")
    workload = read_operations(pods, operation, lenient=True)
    assert len(workload.jobs) == 2
    assert workload.skipped == {"operation not supported": 1}


def test_gang_that_does_not_need_all_pods_is_rejected() -> None:
    group = "{opcode: createPodGroups, count: 1, namespace: a, templatePath: group.yaml}"
    pods = "{opcode: createPods, count: 4, namespace: a, podTemplatePath: member.yaml}"
    with pytest.raises(InvalidTrace, match="gang has 4 pods and minCount 3"):
        read_operations(group, pods)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- name: a\n  workloadTemplate: 3\n", "line 1: a: workloadTemplate must be a list"),
        ("- name: a\n  workloadTemplate:\n  - x: 1\n", "line 3: an operation must have an opcode"),
        ("- workloadTemplate: []\n", "line 1: a test case must have a name"),
        ("- name: a\n  b: [\n", "line 2, column 7: expected the node content"),
        ("- name: a\n  b: 1\n  b: 2\n", 'line 3, column 3: duplicate field "b"'),
        ("- name: a\n  b: 2026-13-45\n", "line 2, column 6: "),
        ("name: a\n", "must be a list of test cases"),
    ],
)
def test_file_that_is_no_operation_list_is_rejected(text: str, reason: str) -> None:
    with pytest.raises(InvalidTrace) as error:
        read_trace(TraceFile("perf.yaml", text.splitlines()), "scheduler-perf")
    assert reason in str(error.value)
    assert str(error.value).startswith("perf.yaml")
