from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from phalanx.cli import options
from phalanx.cli.main import COMMANDS, main
from phalanx.cli.nodes import parse_node_options
from phalanx.controllers.nodes.node_pool import DEFAULT_CAPACITY
from tests.cli.commands import phalanx

CAPACITY = {"cpu": "8", "pods": "110"}


# ---- valid texts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("127.0.0.1:6443", ("127.0.0.1", 6443)),
        (":0", ("127.0.0.1", 0)),
        ("[::1]:443", ("::1", 443)),
        ("example.org:1", ("example.org", 1)),
    ],
)
def test_address_is_a_host_and_a_port(text: str, found: tuple[str, int]) -> None:
    assert options.parse_address(text) == found


def test_webhook_url_stands_for_a_service() -> None:
    texts = ("a/b=https://127.0.0.1:9443", "c/d=https://[::1]:1/base")
    found = options.parse_webhook_urls(texts)
    assert found == {"a/b": "https://127.0.0.1:9443", "c/d": "https://[::1]:1/base"}


@pytest.mark.parametrize(
    "text", ["a=https://x", "a/b", "a/b=http://x", "/b=https://x", "a/b=https://"]
)
def test_webhook_url_needs_a_service_and_https(text: str) -> None:
    with pytest.raises(click.BadParameter, match="use NAMESPACE/SERVICE=URL"):
        options.parse_webhook_urls([text])


def test_shape_overrides_the_default_capacity() -> None:
    found = options.parse_shape("cpu=500m, example.com/gpu=8")
    assert (found["cpu"], found["example.com/gpu"], found["pods"]) == ("500m", "8", "110")
    assert options.parse_shape("") == dict(DEFAULT_CAPACITY)


def test_devices_of_a_pool_come_before_those_of_the_option(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "- name: gpu\n  devices: [{driver: gpu.example.com, count: 2, memory: 80Gi}]\n- name: cpu\n"
    )
    found = parse_node_options(str(file), "", "", devices=["nic.example.com=1"])
    assert {node.name: [(one.driver, one.count) for one in node.devices] for node in found} == {
        "gpu": [("gpu.example.com", 2)],
        "cpu": [("nic.example.com", 1)],
    }


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ("x", "devices: must be a list"),
        ("[{count: 2}]", "must be a map with a driver"),
        ("[{driver: GPU}]", "invalid driver"),
        ("[{driver: a.b, 9x: y}]", "invalid attribute"),
    ],
)
def test_bad_devices_of_a_pool_are_explained(tmp_path: Path, devices: str, message: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(f"- name: gpu\n  devices: {devices}\n")
    with pytest.raises(click.BadParameter, match=message):
        parse_node_options(str(file), "", "")
    with pytest.raises(click.BadParameter, match="invalid driver"):
        parse_node_options("1", "", "", devices=["GPU=1"])


def test_components_are_a_comma_separated_list() -> None:
    assert options.parse_components(" scheduler, nodes,") == {"scheduler", "nodes"}
    assert options.parse_components("") == frozenset()


def test_feature_gates_are_parsed(capsys: pytest.CaptureFixture[str]) -> None:
    gates = options.parse_feature_gates("CompositePodGroup=false, JobGangInference=true")
    assert not gates.is_enabled("CompositePodGroup")
    assert gates.is_enabled("JobGangInference")
    assert gates.is_enabled("GenericWorkload")
    assert capsys.readouterr().err == ""


def test_former_name_of_a_feature_gate_prints_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert not options.parse_feature_gates("GenericWorkloadPodGroup=false").is_enabled(
        "GenericWorkload"
    )
    assert capsys.readouterr().err == (
        "Warning: feature gate GenericWorkloadPodGroup is now called GenericWorkload\n"
    )


def test_node_names_sort_in_numeric_order() -> None:
    assert [node.name for node in options.parse_nodes("3", CAPACITY, [])] == [
        "node-0",
        "node-1",
        "node-2",
    ]
    many = [node.name for node in options.parse_nodes("12", CAPACITY, [])]
    assert (many[0], many[-1], many) == ("node-00", "node-11", sorted(many))
    assert options.parse_nodes("0", CAPACITY, []) == []


def test_nodes_are_spread_evenly_over_domains() -> None:
    levels = options.parse_topology("block=2,rack=2")
    nodes = options.parse_nodes("8", CAPACITY, levels)
    racks = [node.labels["topology.kubernetes.io/rack"] for node in nodes]
    blocks = [node.labels["topology.kubernetes.io/block"] for node in nodes]
    assert [racks.count(rack) for rack in dict.fromkeys(racks)] == [2, 2, 2, 2]
    assert blocks == ["block-0"] * 4 + ["block-1"] * 4
    assert len({(block, rack) for block, rack in zip(blocks, racks, strict=True)}) == 4


def test_nodes_are_loaded_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(
        "- {name: big, room: {cpu: 64}, labels: {zone: a}}\n- {name: small, count: 2}\n"
    )
    big, *small = options.parse_nodes(str(file), CAPACITY, [])
    assert (big.name, big.capacity, big.labels) == ("big", {**CAPACITY, "cpu": "64"}, {"zone": "a"})
    assert [node.name for node in small] == ["small-0", "small-1"]


# ---- invalid texts -------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "6443", "host", "host:", "host:x", "host:65536", "host:-1"])
def test_invalid_address_is_rejected(text: str) -> None:
    with pytest.raises(click.BadParameter, match="HOST:PORT"):
        options.parse_address(text)


@pytest.mark.parametrize(
    "text", ["cpu", "cpu=", "=8", "cpu=lots", "cpu=-1", "cpu=8;memory=1", "cpu=1=2"]
)
def test_invalid_shape_is_rejected(text: str) -> None:
    with pytest.raises(click.BadParameter):
        options.parse_shape(text)


@pytest.mark.parametrize("text", ["rack", "rack=0", "rack=-1", "rack=x", "=2", "rack=1.5"])
def test_invalid_topology_is_rejected(text: str) -> None:
    with pytest.raises(click.BadParameter):
        options.parse_topology(text)


@pytest.mark.parametrize(
    "content",
    [
        "name: a", "- a", "- {count: 2}", "[", "- {name: a, count: many}", "- {name: a, room: 5}",
        "5", "", "- {name: a, labels: [x]}", "- {name: a, count: -1}",
        "- {name: a, count: 100001}", "[{name: a}, {name: a}]",
    ],
)  # fmt: skip
def test_invalid_cluster_file_is_rejected(tmp_path: Path, content: str) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(content)
    with pytest.raises(click.BadParameter):
        options.parse_nodes(str(file), CAPACITY, [])


def test_unreadable_cluster_file_is_rejected(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00\x80")
    for path in (tmp_path, tmp_path / "missing", binary):
        with pytest.raises(click.BadParameter):
            options.parse_nodes(str(path), CAPACITY, [])


@pytest.mark.parametrize(
    "args",
    [
        ["up", "--listen", "nowhere"],
        ["up", "--nodes", "many"],
        ["up", "--nodes", "100001"],
        ["up", "--shape", "cpu=lots"],
        ["up", "--topology", "rack=0"],
        ["up", "--without", "brakes"],
        ["up", "--feature-gates", "Warp=true"],
        ["up", "--feature-gates", "GenericWorkload"],
        ["up", "--feature-gates", "GenericWorkload=false,WorkloadWithJob=true"],
        ["up", "--store", "paper"],
        ["up", "--data", ":memory:", "--store", "sqlite"],
        ["up", "--unknown"],
        ["up", "surplus"],
        ["why"],
        ["why", "train/er/s"],
        ["why", "dragon/train"],
        ["why", "pod/"],
        ["why", "pod/a", "-o", "xml"],
        ["dance"],
    ],
    ids=" ".join,
)
def test_wrong_usage_prints_one_error_with_exit_code_2(args: list[str]) -> None:
    done = CliRunner().invoke(main, args)
    assert done.exit_code == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("Error: ")
    assert done.stdout == ""


def test_wrong_usage_of_the_process_has_exit_code_2() -> None:
    done = phalanx("up", "--nodes", "many")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip().endswith(
        "Error: Invalid value for --nodes: 'many': is neither a number of nodes (0 or more) "
        "nor a file"
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--shape", "cpu=abc"), 'Invalid value for --shape: invalid quantity "abc"'),
        (("--shape", "cpu=1,cpu=2"), "Invalid value for --shape: cpu is given twice"),
        (("--nodes", "-3"), "Invalid value for --nodes: '-3': is neither a number of nodes"),
        (("--nodes", "100001"), "Invalid value for --nodes: 100001 nodes are more than 100000"),
        (("--topology", "rack=0"), 'Invalid value for --topology: invalid number of racks "0"'),
        (("--topology", "rack=2,rack=3"), "Invalid value for --topology: rack is given twice"),
        (("--devices", "GPU=1"), "Invalid value for --devices: "),
        (("--listen", "nowhere"), 'Invalid value for --listen: invalid address "nowhere"'),
        (("--feature-gates", "Warp=true"), "Invalid value for --feature-gates: "),
        (("--without", "brakes"), 'Invalid value for --without: unknown component "brakes"'),
        (("--event-ttl", "soon"), 'Invalid value for --event-ttl: invalid duration "soon"'),
        (("--service-cluster-ip-range", "x"), "Invalid value for --service-cluster-ip-range: "),
        (("--service-node-port-range", "x"), "Invalid value for --service-node-port-range: "),
        (
            ("--stages", "nope"),
            "Invalid value for --stages: 'nope': cannot be read: No such file or directory\n",
        ),
    ],
)
def test_wrong_value_of_an_option_of_up_is_reported_with_the_option(
    tmp_path: Path, args: tuple[str, ...], message: str
) -> None:
    done = CliRunner().invoke(main, ["up", "--data", str(tmp_path / "data"), *args])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"Error: {message}" in done.stderr


def test_invalid_yaml_is_reported_with_line_and_column(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("pools:\n- {name: a, name: [}\n")
    for option in ("--nodes", "--stages", "--config"):
        args = ["up", "--data", str(tmp_path / "data"), option, str(file)]
        done = CliRunner().invoke(main, args)
        assert done.exit_code == 2
        assert str(file) in done.stderr
        assert "line 2, column 20: expected the node content, but found '}'" in done.stderr


@pytest.mark.parametrize(
    ("word", "hint"),
    [("upp", " Did you mean 'up'?"), ("whatif", " Did you mean 'what-if'?"), ("dance", "")],
)
def test_mistyped_command_suggests_the_nearest(word: str, hint: str) -> None:
    done = CliRunner().invoke(main, [word])
    assert done.exit_code == 2
    assert done.stderr.endswith(f"Error: No such command {word!r}.{hint}\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    done = CliRunner().invoke(main, [command, "--help"])
    assert done.exit_code == 0
    assert f"Example:\n    phalanx {command}" in done.stdout


def test_help_lists_every_command_and_version_is_printed() -> None:
    listed = CliRunner().invoke(main, ["-h"]).stdout
    assert all(name in listed and line in listed for name, (_, line) in COMMANDS.items())
    assert CliRunner().invoke(main, ["--version"]).stdout.startswith("phalanx, version ")
