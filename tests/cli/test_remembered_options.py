"""A cluster remembers the options of `phalanx up`; nodes without a kubelet are refused."""

from __future__ import annotations

import json
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from click.core import ParameterSource

from phalanx.cli.cluster_state import given_options, load_record
from phalanx.cli.up import up_command
from tests.cli.cli_user import CliUser, gang_job
from tests.cli.commands import COMMAND_TIMEOUT, first_line, phalanx, start_up

CREATED = ("--nodes", "2", "--shape", "cpu=8", "--feature-gates", "CompositePodGroup=false")


@contextmanager
def running(data: Path, *options: str) -> Iterator[CliUser]:
    """A user of a control plane on this directory."""
    with start_up("--data", str(data), *options) as process:
        ready = first_line(process)
        assert ready.startswith("ready "), process.communicate()[1]
        yield CliUser(data / "kubeconfig")
        process.terminate()
        assert process.wait(COMMAND_TIMEOUT) == 0


def node_cpus(user: CliUser) -> dict[str, str]:
    """The CPUs of each node."""
    nodes = json.loads(user.query(lambda client: client.get_raw("/api/v1/nodes")))["items"]
    return {node["metadata"]["name"]: node["status"]["capacity"]["cpu"] for node in nodes}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a stopped cluster of two nodes."""
    folder = tmp_path_factory.mktemp("clusters") / "data"
    with running(folder, *CREATED):
        pass
    return folder


@pytest.fixture
def data(stopped: Path, tmp_path: Path) -> Path:
    """A copy of the data directory."""
    return shutil.copytree(stopped, tmp_path / "copy")


def test_start_without_options_uses_the_remembered_ones(data: Path) -> None:
    assert stat.S_IMODE((data / "cluster.json").stat().st_mode) == 0o600
    options = json.loads((data / "cluster.json").read_text())["options"]
    with running(data) as user:
        assert node_cpus(user) == {"node-0": "8", "node-1": "8"}
    assert (
        options
        == load_record(data).options
        == {
            "listen": "127.0.0.1:0",
            "nodes": "2",
            "shape": "cpu=8",
            "feature-gates": "CompositePodGroup=false",
        }
    )


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        (("--nodes", "1"), "--nodes 2 (now 1)"),
        (("--shape", "cpu=4"), "--shape cpu=8 (now cpu=4)"),
        (("--topology", "rack=2"), "--topology not given (now rack=2)"),
        (("--run-processes",), "--run-processes not given (now on)"),
    ],
    ids=["nodes", "shape", "topology", "processes"],
)
def test_options_that_leave_nodes_without_a_kubelet_are_refused_with_the_fix(
    data: Path, options: tuple[str, ...], difference: str
) -> None:
    before = (data / "cluster.json").read_text()
    done = phalanx("up", "--data", str(data), *options)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"Error: {data} has nodes of other options: {difference}; run phalanx up --data {data} to "
        "keep these nodes, add --recreate-nodes to replace them and end their pods, or run "
        f"phalanx delete --data {data} first\n"
    )
    assert (data / "cluster.json").read_text() == before


@pytest.mark.slow
def test_other_options_just_change(data: Path) -> None:
    before = load_record(data)
    with running(data, "--feature-gates", "", "--basic-workloads", "never"):
        pass
    after = load_record(data)
    assert (after.options["feature-gates"], after.options["basic-workloads"]) == ("", "never")
    assert after.nodes == before.nodes


@pytest.mark.slow
def test_component_that_stays_left_out_is_named(data: Path) -> None:
    for options, notice in (
        (("--without", "scheduler"), ""),
        ((), "without scheduler, as at an earlier start; --without '' starts all\n"),
        (("--without", ""), ""),
    ):
        with start_up("--data", str(data), *options) as process:
            assert first_line(process).startswith("ready ")
            process.terminate()
            errors = process.communicate(timeout=COMMAND_TIMEOUT)[1]
        assert ("as at an earlier start" in errors) == bool(notice), options
        assert notice in errors


@pytest.mark.slow
def test_nodes_may_be_added(tmp_path: Path) -> None:
    for count in ("1", "2"):
        with running(tmp_path / "data", "--nodes", count):
            pass
    assert sorted(load_record(tmp_path / "data").nodes) == ["node-0", "node-1"]


@pytest.mark.slow
def test_changed_file_of_nodes_is_refused(tmp_path: Path) -> None:
    file, data = tmp_path / "nodes.yaml", tmp_path / "data"
    file.write_text("- {name: a, shape: {cpu: 4}}\n")
    with running(data, "--nodes", str(file)):
        pass
    assert load_record(data).options["nodes"] == str(file)
    file.write_text("- {name: a, shape: {cpu: 2}}\n")
    done = phalanx("up", "--data", str(data))
    assert done.returncode == 1
    assert "nodes of other options: the file of --nodes has changed; " in done.stderr


@pytest.mark.slow
def test_recreated_nodes_replace_the_old_ones_and_their_pods_run_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(data, "--nodes", "2", "--shape", "cpu=2") as user:
        user.create(gang_job("train", 2, cpu="2"))
        user.eventually(lambda: [row.placed for row in user.gangs()] == [2])
    with running(data, "--nodes", "1", "--shape", "cpu=6", "--recreate-nodes") as user:
        assert node_cpus(user) == {"node-0": "6"}
        user.eventually(lambda: [row.nodes for row in user.gangs()] == [("node-0",)])
    assert list(load_record(data).nodes) == ["node-0"]
    with running(data):
        pass


def test_start_that_fails_remembers_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = phalanx("up", "--data", str(tmp_path / "data"), "--listen", address)
    assert (done.returncode, "cannot listen on" in done.stderr) == (1, True)
    assert not (tmp_path / "data" / "cluster.json").exists()


@pytest.mark.slow
def test_nodes_that_run_elsewhere_are_not_checked(data: Path) -> None:
    before = load_record(data)
    with running(data, "--without", "nodes", "--nodes", "1"):
        pass
    assert load_record(data).nodes == before.nodes
    with running(data, "--without", "", "--nodes", "2"):
        pass


def test_every_remembered_flag_can_be_switched_off() -> None:
    flags = {
        param.name: param
        for param in up_command.params
        if isinstance(param, click.Option) and param.is_flag
    }
    context = click.Context(up_command)
    for param in up_command.params:
        is_given = param.name in flags
        context.params[param.name or ""] = True
        context.set_parameter_source(
            param.name or "", ParameterSource.COMMANDLINE if is_given else ParameterSource.DEFAULT
        )
    remembered = given_options(context)
    assert {"run-processes", "limit-critical-pods"} <= remembered.keys()
    switches = {f"--{name}": flag.secondary_opts for flag in flags.values()
                for name in remembered if f"--{name}" in flag.opts}  # fmt: skip
    assert switches == {name: [name.replace("--", "--no-")] for name in switches}
