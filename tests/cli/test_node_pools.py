from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.cli.cluster_file import InvalidClusterFile, load_node_pools, numbered_pool
from phalanx.controllers.nodes.node_pool import SimulatedNode

CAPACITY = {"cpu": "8", "pods": "110"}
RACK, BLOCK = "topology.kubernetes.io/rack", "topology.kubernetes.io/block"
CLUSTER = """\
pools:
- name: gpu
  count: 4
  shape: {cpu: 64, nvidia.com/gpu: 8}
  labels: {team: a, preemptible: true}
  taints:
  - {key: gpu, value: "yes", effect: NoSchedule}
  topology: {block: 2, rack: 1}
- name: plain
"""


def load(folder: Path, text: str) -> list[SimulatedNode]:
    file = folder / "cluster.yaml"
    file.write_text(text)
    return load_node_pools(file, CAPACITY, [])


def test_a_cluster_file_lists_pools(tmp_path: Path) -> None:
    *gpus, plain = load(tmp_path, CLUSTER)
    assert [node.name for node in gpus] == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    assert gpus[0].capacity == {"cpu": "64", "pods": "110", "nvidia.com/gpu": "8"}
    assert gpus[0].taints == [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]
    assert (gpus[0].labels["team"], gpus[0].labels["preemptible"]) == ("a", "true")
    assert [node.labels[BLOCK] for node in gpus] == ["gpu-block-0"] * 2 + ["gpu-block-1"] * 2
    assert [node.labels[RACK] for node in gpus] == ["gpu-rack-0-0"] * 2 + ["gpu-rack-1-0"] * 2
    assert plain == SimulatedNode("plain", CAPACITY, {}, [])


def test_domains_of_two_pools_are_not_the_same(tmp_path: Path) -> None:
    text = "[{name: a, count: 2, topology: {rack: 1}}, {name: b, count: 2, topology: {rack: 1}}]"
    racks = [node.labels[RACK] for node in load(tmp_path, text)]
    assert racks == ["a-rack-0", "a-rack-0", "b-rack-0", "b-rack-0"]


def test_label_of_a_pool_overrides_its_topology(tmp_path: Path) -> None:
    (node,) = load(tmp_path, f"[{{name: a, topology: {{rack: 1}}, labels: {{{RACK}: mine}}}}]")
    assert node.labels == {RACK: "mine"}


def test_numbered_pool_names_its_nodes() -> None:
    assert [node.name for node in numbered_pool(11, CAPACITY, []).nodes()][-1] == "node-10"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pools: 5", "line 1: pools: must be a list of pools"),
        ("pools: []", "line 1: pools: has no pools"),
        ("[]", "line 1: the file: has no pools"),
        ("- {name: 2024-13-45}", 'line 1, column 10: "2024-13-45" is no valid timestamp'),
        ("[" * 3000, "line 1, column "),
        ("5", "line 1: the file: must be a list of pools"),
        ("nodes: []", "line 1: nodes: unknown field; available: pools"),
        ("pools:\n- {count: 2}", "line 2: pools[0]: must be a map with a name"),
        ("pools:\n- {name: a, cuont: 2}", "line 2: pools[0].cuont: unknown field; available: name"),
        ("[{name: a}, {name: b, count: 0}]", "line 1: [1].count: must be a whole number from 1"),
        ("- name: a\n  labels: {a: b}\n  count: many", "line 3: [0].count: must be a whole number"),
        (
            "[{name: a, shape: {cpu: lots}}]",
            'line 1: [0].shape.cpu: invalid quantity "lots"; use for example 500m',
        ),
        (
            "[{name: a, shape: {cpu: [1]}}]",
            "line 1: [0].shape: must be a map of strings or numbers",
        ),
        ("[{name: a, taints: x}]", "line 1: [0].taints: must be a list"),
        (
            "[{name: a, taints: [{effect: NoSchedule}]}]",
            "line 1: [0].taints[0]: must be a map with a key",
        ),
        (
            "- name: a\n  taints:\n  - key: b\n    effect: Never",
            "line 4: [0].taints[0].effect: must be one of",
        ),
        ("[{name: a, topology: {rack: 0}}]", "line 1: [0].topology.rack: must be a whole number"),
        ("pools:\n- name: a\n  count: [", "line 3, column 11: expected the node content"),
        ("- name: a\n  count: 1\n  count: 2", 'line 3, column 3: duplicate field "count"'),
        ("[{name: a}, {name: a}]", "two nodes are named a"),
        ("[{name: A_b}]", 'invalid node name "A_b"'),
        ("[{name: a, count: 60000}, {name: b, count: 60000}]", "120000 nodes are more than 100000"),
    ],
)
def test_invalid_cluster_file_is_reported_with_line_and_field(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(InvalidClusterFile) as raised:
        load(tmp_path, text)
    assert str(raised.value).startswith(message), str(raised.value)
