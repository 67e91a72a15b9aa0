from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import gang, pod, pod_group
from tests.cli.cli_user import CliUser
from tests.cli.commands import phalanx
from tools.control_plane import ControlPlane


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def user(folder: Path) -> Iterator[CliUser]:
    """Somebody with a gang that runs on two nodes, kept in a folder."""
    folder.chmod(0o700)
    with ControlPlane("--data", str(folder), "--nodes", "2", "--shape", "cpu=8") as plane:
        found = CliUser(plane.kubeconfig)
        found.create(*gang("good", 2, cpu="2"))
        found.eventually(lambda: [line.placed for line in found.gangs()] == [2])
        yield found


def check(user: CliUser, *args: str) -> tuple[int, str, str]:
    done = phalanx("check", "--kubeconfig", str(user.config), *args)
    return done.returncode, done.stdout, done.stderr


def test_a_cluster_in_order_is_well_live_and_in_its_store(user: CliUser, folder: Path) -> None:
    assert check(user) == (0, "2 nodes, 1 gang, 2 pods: all well\n", "")
    stored = phalanx("check", "--data", str(folder))
    assert (stored.returncode, stored.stdout) == (0, "2 nodes, 1 gang, 2 pods: all well\n")


def test_changes_may_be_judged_too(user: CliUser) -> None:
    code, told, _ = check(user, "--watch", "0.5")
    assert (code, told.endswith("all well\n")) == (0, True)


def test_what_is_wrong_is_told_in_sentences() -> None:
    with ControlPlane("--data", ":memory:", "--nodes", "1", "--without", "scheduler") as plane:
        user = CliUser(plane.kubeconfig)
        user.create(pod_group("half", 3), pod("half-0", "half", on="node-0", cpu="1"))
        code, told, _ = check(user)
        assert (code, told.splitlines()) == (1, [
            f"gang {user.namespace}/half was never placed, "
            "yet 1 of the 3 members that it needs are bound",
            "1 thing wrong with 1 node, 1 gang, 1 pod",
        ])  # fmt: skip
        code, told, _ = check(user, "-o", "json")
        assert (code, len(json.loads(told)["wrong"])) == (1, 1)


def test_wrong_usage_and_no_store(tmp_path: Path) -> None:
    both = phalanx("check", "--data", str(tmp_path), "--watch", "1")
    assert both.returncode == 2
    empty = phalanx("check", "--data", str(tmp_path))
    assert (empty.returncode, empty.stderr) == (1, f"Error: there is no store in {tmp_path}\n")
