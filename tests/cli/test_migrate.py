"""`phalanx migrate` as a process, on a server that was upgraded while a gang ran."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from phalanx.api.custom_resources.workload_definitions import workload_definitions
from tests.cli.commands import (
    COMMAND_TIMEOUT,
    WAIT_LIMIT,
    Kubectl,
    first_line,
    phalanx,
    start_component,
    start_up,
)
from tests.cli.test_foreign_servers import FORMS, NO_WORKLOAD_APIS, gang
from tools.control_plane import ControlPlane

CUSTOM = "podgroups.scheduling.phalanx.dev"


def test_server_without_custom_resources_has_nothing_to_move(plane: ControlPlane) -> None:
    done = phalanx("migrate", "--kubeconfig", str(plane.kubeconfig))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "There is no object of scheduling.phalanx.dev.\n"


@pytest.mark.slow
@pytest.mark.timeout(4 * COMMAND_TIMEOUT)
def test_gang_runs_on_while_its_server_is_upgraded_and_its_group_moves(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on the PATH")
    config, data, form = tmp_path / "kubeconfig", tmp_path / "data", FORMS["custom resources"]
    options = (
        "--data", str(data), "--without", "scheduler", "--nodes", "3", "--shape", "cpu=4",
        "--kubeconfig", str(config),
    )  # fmt: skip
    kubectl = Kubectl(config, "default", tmp_path)
    where = ("--kubeconfig", str(config))
    with start_up(*options, "--feature-gates", NO_WORKLOAD_APIS) as up:
        assert first_line(up).startswith("ready")
        kubectl.apply(*workload_definitions())
        with start_component("scheduler", config) as scheduler:
            assert first_line(scheduler).startswith("ready")
            kubectl.apply(*gang(form, "train", 3, "3"))
            kubectl("wait", "--for=condition=Ready", "pod", "--all", WAIT_LIMIT)
            before = [one["metadata"]["uid"] for one in kubectl.get("pods")["items"]]
        refused = phalanx("migrate", *where)
        assert refused.returncode == 1
        assert "there is nothing to move groups to" in refused.stderr
        up.terminate()
        up.wait(COMMAND_TIMEOUT)
    with start_up(*options, "--feature-gates", "GroupBinding=false") as up:
        assert first_line(up).startswith("ready")
        with start_component("scheduler", config) as scheduler:
            assert first_line(scheduler).startswith("ready")
            kubectl.apply(*gang(form, "waits", 2, "3"))
            dry = phalanx("migrate", "--dry-run", *where)
            assert dry.returncode == 0, dry.stderr
            assert "PodGroup default/train can be moved\n" in dry.stdout
            assert len(kubectl.get(CUSTOM)["items"]) == 2
            done = phalanx("migrate", *where, "-o", "json")
            assert done.returncode == 0, done.stderr
            found = json.loads(done.stdout)
            assert [one["state"] for one in found["items"]] == ["moved", "moved"]
            assert found["labelledPods"] == {"pods without a controller in default": 5}
            kubectl("wait", "--for=delete", f"{CUSTOM}/train", f"{CUSTOM}/waits", WAIT_LIMIT)
            after = [one["metadata"]["uid"] for one in kubectl.get("pods")["items"]]
            assert after[: len(before)] == before
            kubectl("delete", "pod", "train-0", "train-1", "train-2")
            kubectl("wait", "--for=condition=Ready", "pod/waits-0", "pod/waits-1", WAIT_LIMIT)
