from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from phalanx.api.kinds import LEASE
from phalanx.cli import check as check_module
from phalanx.cli.check import check_command
from tests.builders import gang, pod, pod_group
from tests.cli.cli_user import CliUser
from tests.cli.commands import (
    COMMAND_TIMEOUT,
    Kubectl,
    first_line,
    phalanx,
    start_command,
    start_up,
)
from tools.control_plane import ControlPlane


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def user(folder: Path) -> Iterator[CliUser]:
    """A user with a gang that runs on two nodes, stored in a directory."""
    folder.chmod(0o700)
    with ControlPlane("--data", str(folder), "--nodes", "2", "--shape", "cpu=8") as plane:
        found = CliUser(plane.kubeconfig)
        found.create(*gang("good", 2, cpu="2"))
        found.eventually(lambda: [line.placed for line in found.gangs()] == [2])
        yield found


def check(user: CliUser, *args: str) -> tuple[int, str, str]:
    done = phalanx("check", "--kubeconfig", str(user.config), *args)
    return done.returncode, done.stdout, done.stderr


def test_check_of_a_correct_cluster_passes_live_and_in_its_store(
    user: CliUser, folder: Path
) -> None:
    result = "2 nodes, 1 gang, 2 pods: all invariants hold\n"
    assert check(user) == (0, result, "")
    stored = phalanx("check", "--data", str(folder))
    assert (stored.returncode, stored.stdout) == (
        0,
        "2 nodes, 1 gang, 2 pods: all invariants hold\n",
    )


@pytest.mark.slow
def test_check_watches_changes(user: CliUser) -> None:
    code, output, _ = check(user, "--watch", "0.5")
    assert (code, output.endswith("all invariants hold\n")) == (0, True)


@pytest.mark.slow
def test_check_says_in_one_line_that_the_server_went_away(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    kubectl = Kubectl(config, "default", tmp_path)
    without = ("--data", ":memory:", "--without", "scheduler,controllers,nodes", "--nodes", "0")
    with start_up(*without, "--kubeconfig", str(config)) as up:
        assert first_line(up).startswith("ready")
        with start_command("check", "--watch", "60", "--kubeconfig", str(config)) as process:
            watches = 'apiserver_longrunning_requests{verb="WATCH"} 3\n'
            while watches not in kubectl("get", "--raw", "/metrics"):
                assert process.poll() is None
            up.terminate()
            _, errors = process.communicate(timeout=COMMAND_TIMEOUT)
    assert process.returncode == 1
    assert errors.startswith("Error: cannot reach https://127.0.0.1:")
    assert errors.count("\n") == 1


def test_check_prints_one_line_per_violation() -> None:
    with ControlPlane("--data", ":memory:", "--nodes", "1", "--without", "scheduler") as plane:
        user = CliUser(plane.kubeconfig)
        user.create(pod_group("half", 3), pod("half-0", "half", on="node-0", cpu="1"))
        code, output, _ = check(user)
        assert (code, output.splitlines()) == (1, [
            f"gang {user.namespace}/half was never placed, "
            "yet 1 of the 3 members that it needs are bound",
            "1 node, 1 gang, 1 pod: 1 violation",
        ])  # fmt: skip
        code, output, _ = check(user, "-o", "json")
        assert (code, len(json.loads(output)["wrong"])) == (1, 1)


def test_check_reports_nodes_without_a_kubelet_and_their_pods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(check_module, "RENEWAL_TIMEOUT", 0.0)
    with ControlPlane("--data", ":memory:", "--nodes", "1", "--without", "scheduler") as plane:
        user = CliUser(plane.kubeconfig)
        arguments = ["--kubeconfig", str(plane.kubeconfig)]
        assert CliRunner().invoke(check_command, arguments).exit_code == 0
        lease = {
            "metadata": {"name": "lost", "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": "lost", "renewTime": "2026-01-01T00:00:00.000000Z"},
        }
        user.query(lambda client: client.create(LEASE, lease))
        user.create({"kind": "Node", "metadata": {"name": "lost"}, "status": {
            "capacity": {"cpu": "8", "pods": "9"}, "allocatable": {"cpu": "8", "pods": "9"},
        }}, pod("hangs", on="lost", cpu="1"))  # fmt: skip
        done = CliRunner().invoke(check_command, arguments)
    assert (done.exit_code, done.stdout.splitlines()) == (1, [
        f"node lost has no kubelet: its pods cannot run ({user.namespace}/hangs)",
        "2 nodes, 0 gangs, 1 pod: 1 violation",
    ])  # fmt: skip


def test_check_rejects_wrong_usage_and_a_missing_store(tmp_path: Path) -> None:
    both = phalanx("check", "--data", str(tmp_path), "--watch", "1")
    assert both.returncode == 2
    empty = phalanx("check", "--data", str(tmp_path))
    assert (empty.returncode, empty.stderr) == (1, f"Error: no store in {tmp_path}\n")
