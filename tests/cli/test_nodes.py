"""`phalanx nodes` as a process with a `phalanx up`."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from phalanx.cli.main import main
from tests.builders import pod
from tests.cli.commands import (
    COMMAND_TIMEOUT,
    WAIT_LIMIT,
    Kubectl,
    first_line,
    next_log_line,
    split_log,
    start_component,
    start_up,
)

ALONE = ("--nodes", "0", "--data", ":memory:")
CLUSTER = """\
pools:
- {name: gpu, count: 2, shape: {nvidia.com/gpu: 8}, topology: {rack: 2},
   taints: [{key: gpu, value: "yes", effect: NoSchedule}]}
- {name: plain}
"""


nodes = partial(start_component, "nodes")


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Kubectl]:
    """kubectl of a control plane without nodes."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on the PATH")
    config = tmp_path / "kubeconfig"
    with start_up(*ALONE, "--kubeconfig", str(config)) as process:
        assert first_line(process).startswith("ready ")
        yield Kubectl(config, "default", tmp_path)


def test_standalone_nodes_run_pods_until_a_signal(alone: Kubectl, tmp_path: Path) -> None:
    cluster, stages = tmp_path / "cluster.yaml", tmp_path / "stages.yaml"
    cluster.write_text(CLUSTER)
    stages.write_text("[{labels: {app: short}, run: 0, failure: 1, exitCode: 3}]")
    with nodes(alone.kubeconfig, "--nodes", str(cluster), "--stages", str(stages)) as process:
        line = first_line(process)
        assert line.startswith("ready https://127.0.0.1:")
        assert line.endswith(" nodes 3\n")
        found = alone.get("nodes")["items"]
        assert [one["metadata"]["name"] for one in found] == ["gpu-0", "gpu-1", "plain"]
        assert found[0]["spec"]["taints"] == [
            {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
        ]
        alone.apply(pod("a", meta={"labels": {"app": "short"}}))
        alone("wait", "--for=jsonpath={.status.phase}=Failed", "pod/a", WAIT_LIMIT)
        assert alone("logs", "a").splitlines() == [
            "default/a: main started on simulated node plain",
            "image registry.example/main:1, nothing is executed: no command",
            "ended with exit code 3",
        ]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=COMMAND_TIMEOUT)
        lines, other = split_log(errors)
        assert (process.returncode, other) == (0, "")
        assert {line.level for line in lines} == {"INFO"}


@pytest.mark.slow
def test_existing_node_is_logged_and_not_touched(alone: Kubectl) -> None:
    alone.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-0"}})
    with nodes(alone.kubeconfig, "--nodes", "2") as process:
        assert first_line(process).endswith(" nodes 1\n")
        line = next_log_line(process, "not ours")
        assert (line.level, line.component) == ("WARNING", "nodes")
        assert line.text.endswith("kind=Node key=node-0")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--nodes", "many"], "'many': is neither a number of nodes (0 or more) nor a file"),
        (["--stages", "missing.yaml"], "No such file"),
        (["--topology", "rack=0"], 'invalid number of racks "0"'),
    ],
)
def test_wrong_usage_of_nodes_has_code_2(args: list[str], message: str) -> None:
    done = CliRunner().invoke(main, ["nodes", *args])
    assert done.exit_code == 2
    assert message in done.stderr
