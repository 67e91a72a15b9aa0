from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.api.conversion.hub import STORED_KINDS
from phalanx.api.kinds import NAMESPACE
from phalanx.api.wire import Object
from phalanx.client import kubeconfig
from tests.builders import gang, pod
from tests.cli.commands import phalanx
from tests.cli.conftest import SHAPE
from tools.control_plane import ControlPlane

NUMBERS = itertools.count()
KIND_OF = {kind.name: kind for kind in STORED_KINDS}
LOOSE = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: loose
  plugins: {filter: {disabled: [{name: NodeAffinity}]}}
"""


def job(name: str, members: int, *, cpu: str) -> Object:
    """A Job whose pods are a gang."""
    template = pod(name, cpu=cpu)["spec"] | {"restartPolicy": "Never"}
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {
            "parallelism": members, "completions": members, "template": {"spec": template},
            "scheduling": {"schedulingPolicy": {"gang": {}}},
        },
    }  # fmt: skip


def workload(name: str) -> Object:
    policy = {"gang": {"minCount": 1}}
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "Workload", "metadata": {"name": name},
        "spec": {"podGroupTemplates": [{"name": "leaf", "schedulingPolicy": policy}]},
    }  # fmt: skip


def tree(name: str, *, cpu: str) -> Iterator[Object]:
    """Two gangs of two that are to be placed together, made of a Workload."""
    yield workload(name)
    ref = {"workloadName": name, "templateName": "leaf"}
    yield {
        "apiVersion": "scheduling.k8s.io/v1alpha3", "kind": "CompositePodGroup",
        "metadata": {"name": f"{name}-tree"},
        "spec": {
            "workloadRef": ref, "schedulingPolicy": {"gang": {"minGroupCount": 2}},
        },
    }  # fmt: skip
    for leaf in (f"{name}-a", f"{name}-b"):
        group, *pods = gang(leaf, 2, cpu=cpu)
        group["spec"] |= {"workloadRef": ref, "parentCompositePodGroupName": f"{name}-tree"}
        yield from (group, *pods)


class User:
    """Somebody with a namespace of their own."""

    def __init__(self, plane: ControlPlane) -> None:
        self.config, self.namespace = plane.kubeconfig, f"why-{next(NUMBERS)}"
        self.create({"kind": "Namespace", "metadata": {"name": self.namespace}})

    def create(self, *objects: Object) -> None:
        async def make() -> None:
            client = kubeconfig.create_client(kubeconfig.load([self.config]))
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

    def eventually(self, what: str, state: str) -> str:
        """The answer once a controller has done its part."""
        for _ in range(20):
            _, told, _ = self.why(what)
            if state in told:
                return told
        raise AssertionError(told)

    def why(self, *args: str) -> tuple[int, str, str]:
        done = phalanx("why", *args, "-n", self.namespace, "--kubeconfig", str(self.config))
        return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane of our own: nobody else takes room on its nodes."""
    with ControlPlane("--data", ":memory:", *SHAPE) as found:
        yield found


@pytest.fixture
def user(plane: ControlPlane) -> User:
    return User(plane)


def test_a_gang_that_is_too_big_is_told_why_and_what_would_help(user: User) -> None:
    user.create(*gang("big", 3, cpu="7"))
    code, told, errors = user.why("podgroup/big")
    assert (code, errors) == (0, "")
    head, reason, members, *rest = told.splitlines()
    assert head == (
        f"PodGroup {user.namespace}/big is waiting: "
        "minCount (3) cannot be satisfied: 2 scheduled, 0 remaining"
    )
    assert reason == "  reason:  Unschedulable"
    assert members == "  members: 0 placed, 3 pending"
    assert "0/2 nodes are available: 2 Insufficient cpu." in rest[0]
    assert rest[1:-1] == [
        "Room for members that ask for cpu 7 (3 pending, 3 needed):",
        "  NODE          NODES   FIT NOW   IF EMPTY   LIMITED BY",
        "  like node-0       2         2          2   cpu",
        "It would help to:",
        "  - lower minCount from 3 to 2",
        "  - add 1 node like node-0 (cpu 8, example.com/gpu 4, memory 8Gi)",
        "It may bring it nearer (not tried out) to:",
    ]
    assert rest[-1].startswith("  - free or add cpu ")


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
    assert answer["cures"][0] == {
        "sort": "smaller", "size": 1, "text": "lower minCount from 3 to 2", "verified": True,
    }  # fmt: skip
    assert answer["cures"][-1]["verified"] is False
    assert answer["evidence"]["rows"][0]["limit"] == "cpu"
    assert (answer["decisions"] > 0, answer["cutShort"]) == (True, False)


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


def test_a_job_is_asked_about_as_its_groups(user: User) -> None:
    user.create(job("train", 3, cpu="7"))
    told = user.eventually("job/train", "is waiting")
    assert told.startswith(f"PodGroup {user.namespace}/train-")
    assert "  - lower minCount from 3 to 2\n" in told
    workload, _ = told.removeprefix(f"PodGroup {user.namespace}/").split(" ", 1)
    items = json.loads(user.why("job/train", "-o", "json")[1])["items"]
    assert [item["name"] for item in items] == [workload]


def test_a_workload_is_asked_about_as_its_tree(user: User) -> None:
    user.create(*tree("w", cpu="7"))
    code, told, errors = user.why("workload/w")
    assert (code, errors) == (0, "")
    assert told.startswith(f"CompositePodGroup {user.namespace}/w-tree is waiting: ")
    assert "  - lower minGroupCount from 2 to 1\n" in told
    part = user.why("pg/w-a")[1].splitlines()
    assert part[0].startswith(f"PodGroup {user.namespace}/w-a is waiting: ")
    assert part[3] == (
        f"  part of: CompositePodGroup {user.namespace}/w-tree, of which all is placed or nothing"
    )


def test_a_workload_without_groups_says_so(user: User) -> None:
    user.create(workload("w"))
    assert user.why("workload/w")[1] == (
        f"Workload {user.namespace}/w has no pods and no pod groups yet\n"
    )
    assert json.loads(user.why("workload/w", "-o", "json")[1]) == {"items": []}


def test_the_configuration_of_the_scheduler_counts(user: User, tmp_path: Path) -> None:
    user.create(pod("a", spec={"nodeSelector": {"color": "red"}, "schedulerName": "loose"}))
    assert "is waiting" in user.why("pod/a")[1]
    config = tmp_path / "config.yaml"
    config.write_text(LOOSE)
    assert "fits and is about to be placed" in user.why("pod/a", "--config", str(config))[1]


def test_what_is_no_kind_is_wrong_usage(user: User) -> None:
    code, told, errors = user.why("node/a")
    assert (code, told) == (2, "")
    assert "'node/a' is none of podgroup/NAME, compositepodgroup/NAME, pod/NAME, job/NAME" in errors


@pytest.mark.parametrize(
    ("what", "complaint"),
    [
        ("job/nobody", 'there is no Job "nobody" in namespace'),
        ("workload/nobody", 'there is no Workload "nobody" in namespace'),
        ("cpg/nobody", 'there is no CompositePodGroup "nobody" in namespace'),
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
    assert done.stderr == (
        "Error: cannot reach http://127.0.0.1:9: Connection refused; does it run? (phalanx up)\n"
    )


def test_a_kubeconfig_that_is_not_there_is_said_in_a_sentence(tmp_path: Path) -> None:
    done = phalanx("why", "pod/a", env={"KUBECONFIG": str(tmp_path / "none")})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"Error: there is no kubeconfig at {tmp_path / 'none'}; start a control plane with "
        "phalanx up, or name a file with --kubeconfig\n"
    )
