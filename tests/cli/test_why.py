from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path

import pytest

from phalanx.api.conversion import STORED
from phalanx.api.kinds import NAMESPACE
from phalanx.api.wire import Object
from phalanx.client import kubeconfig
from tests.builders import gang, pod
from tests.cli.commands import phalanx
from tools.control_plane import ControlPlane

NUMBERS = itertools.count()
KIND_OF = {kind.name: kind for kind in STORED}


class User:
    """Somebody with a namespace of their own."""

    def __init__(self, plane: ControlPlane) -> None:
        self.config, self.namespace = plane.kubeconfig, f"why-{next(NUMBERS)}"
        self.create({"kind": "Namespace", "metadata": {"name": self.namespace}})

    def create(self, *objects: Object) -> None:
        async def make() -> None:
            client = kubeconfig.connect(kubeconfig.read([self.config]))
            try:
                for obj in objects:
                    await client.create(KIND_OF[obj["kind"]], self.placed(obj))
            finally:
                await client.close()

        asyncio.run(make())

    def placed(self, obj: Object) -> Object:
        """The same in the user's own namespace."""
        if obj["kind"] != NAMESPACE.name:
            obj["metadata"]["namespace"] = self.namespace
        return obj

    def why(self, *args: str) -> tuple[int, str, str]:
        done = phalanx("why", *args, "-n", self.namespace, "--kubeconfig", str(self.config))
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def user(plane: ControlPlane) -> User:
    return User(plane)


def test_a_gang_that_is_too_big_is_told_why_and_what_would_help(user: User) -> None:
    user.create(*gang("big", 3, cpu="7"))
    code, told, errors = user.why("podgroup/big")
    assert (code, errors) == (0, "")
    head, members, *rest = told.splitlines()
    assert head == (
        f"PodGroup {user.namespace}/big is waiting: "
        "minCount (3) cannot be satisfied: 2 scheduled, 0 remaining"
    )
    assert members == "  members: 0 placed, 3 pending"
    assert "It would help to:" in rest
    assert any(line.startswith("  - ") for line in rest)
    assert "0/2 nodes are available: 2 Insufficient cpu." in told


def test_the_same_as_json(user: User) -> None:
    user.create(*gang("big", 3, cpu="7"))
    code, told, _ = user.why("gang/big", "-o", "json")
    answer = json.loads(told)
    assert code == 0
    assert (answer["kind"], answer["namespace"], answer["name"]) == (
        "PodGroup", user.namespace, "big",
    )  # fmt: skip
    assert (answer["state"], answer["bound"], answer["pending"]) == ("Unschedulable", 0, 3)
    assert [row["name"] for row in answer["pods"]] == ["big-0", "big-1", "big-2"]
    assert answer["cures"]


def test_a_pod_of_a_gang_is_asked_about_as_its_gang(user: User) -> None:
    user.create(*gang("big", 3, cpu="7"))
    assert user.why("pod/big-1")[1].startswith(f"PodGroup {user.namespace}/big is waiting: ")


def test_a_gang_that_is_incomplete_says_what_it_waits_for(user: User) -> None:
    user.create(*gang("short", 1, minimum=2))
    assert user.why("pg/short")[1].startswith(
        f"PodGroup {user.namespace}/short is not ready to be scheduled: "
        "waiting for 2 members, 1 is there"
    )


def test_a_pod_alone_is_explained_too(user: User) -> None:
    user.create(pod("a", spec={"nodeSelector": {"color": "red"}}))
    assert "0/2 nodes are available" in user.why("po/a")[1]


@pytest.mark.parametrize(
    ("what", "complaint"),
    [
        ("pod/nobody", 'there is no pod "nobody" in namespace'),
        ("podgroup/nobody", 'there is no pod group "nobody" in namespace'),
    ],
)
def test_what_is_not_there_is_said_in_a_sentence(user: User, what: str, complaint: str) -> None:
    code, told, errors = user.why(what)
    assert (code, told) == (1, "")
    assert errors.startswith(f"Error: {complaint}")
    assert errors.count("\n") == 1


def test_a_server_that_is_not_there_is_said_in_a_sentence(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    kubeconfig.write(config, "http://127.0.0.1:9", "", "token")
    done = phalanx("why", "pod/a", "--kubeconfig", str(config))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: cannot reach http://127.0.0.1:9: Connection refused\n"


def test_a_kubeconfig_that_is_not_there_is_said_in_a_sentence(tmp_path: Path) -> None:
    done = phalanx("why", "pod/a", env={"KUBECONFIG": str(tmp_path / "none")})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: there is no kubeconfig at {tmp_path / 'none'}\n"
