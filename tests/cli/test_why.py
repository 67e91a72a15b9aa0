from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.api.conversion.hub import STORED_KINDS
from phalanx.api.kinds import NAMESPACE, POD_GROUP
from phalanx.api.wire import Object
from phalanx.cli.cluster_queries import parse_subject_argument
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
    """A Workload with a CompositePodGroup of two gangs of two."""
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
    """A user with a namespace."""

    def __init__(self, plane: ControlPlane) -> None:
        self.config, self.namespace = plane.kubeconfig, f"why-{next(NUMBERS)}"
        self.create({"kind": "Namespace", "metadata": {"name": self.namespace}})

    def create(self, *objects: Object) -> None:
        async def make() -> None:
            client = kubeconfig.create_client(kubeconfig.load([self.config]))
            try:
                for obj in objects:
                    await client.create(KIND_OF[obj["kind"]], self.with_namespace(obj))
            finally:
                await client.close()

        asyncio.run(make())

    def with_namespace(self, obj: Object) -> Object:
        """Put an object into the user's namespace."""
        if obj["kind"] != NAMESPACE.name:
            obj["metadata"]["namespace"] = self.namespace
        return obj

    def eventually(self, what: str, state: str) -> str:
        """Ask until the answer contains a text; return the answer."""
        for _ in range(20):
            _, output, _ = self.why(what)
            if state in output:
                return output
        raise AssertionError(output)

    def why(self, *args: str) -> tuple[int, str, str]:
        done = phalanx("why", *args, "-n", self.namespace, "--kubeconfig", str(self.config))
        return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane for this module: no other test uses its nodes."""
    with ControlPlane("--data", ":memory:", *SHAPE) as found:
        yield found


@pytest.fixture
def user(plane: ControlPlane) -> User:
    return User(plane)


def test_gang_that_is_too_big_gets_a_reason_and_cures(user: User) -> None:
    user.create(*gang("big", 3, cpu="7"))
    code, output, errors = user.why("podgroup/big")
    assert (code, errors) == (0, "")
    head, reason, message, members, *rest = output.splitlines()
    assert head == (
        f"PodGroup {user.namespace}/big never fits on these nodes: "
        "2 of 3 members fit: all nodes run out of cpu."
    )
    assert message == "  message: minCount (3) cannot be satisfied: 2 scheduled, 0 remaining"
    assert reason == "  reason:  Unschedulable"
    assert members == "  members: 0 placed, 3 pending"
    assert "0/2 nodes are available: 2 Insufficient cpu." in rest[0]
    assert rest[1:-1] == [
        "Capacity for members that request cpu 7 (3 pending, 3 needed):",
        "  NODE          NODES   FIT NOW   IF EMPTY   LIMITED BY",
        "  like node-0       2         2          2   cpu",
        "Possible fixes (verified):",
        "  - lower minCount from 3 to 2",
        "  - add 1 node like node-0 (cpu 8, example.com/gpu 4, memory 8Gi)",
        "Possible partial fixes (not verified):",
    ]
    assert rest[-1].startswith("  - free or add cpu ")


def test_answer_is_printed_as_json(user: User) -> None:
    user.create(*gang("big", 3, cpu="7"))
    code, output, _ = user.why("gang/big", "-o", "json")
    answer = json.loads(output)
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


def test_pod_of_a_gang_is_explained_as_its_gang(user: User) -> None:
    user.create(*gang("big", 3, cpu="7"))
    assert user.why("pod/big-1")[1].startswith(
        f"PodGroup {user.namespace}/big never fits on these nodes: "
    )


def test_incomplete_gang_waits_for_members(user: User) -> None:
    user.create(*gang("short", 1, minimum=2))
    assert user.why("pg/short")[1].startswith(
        f"PodGroup {user.namespace}/short is not ready to be scheduled: "
        "waiting for 2 members, 1 is there"
    )


def test_pod_without_a_gang_is_explained(user: User) -> None:
    user.create(pod("a", spec={"nodeSelector": {"color": "red"}}))
    assert "0/2 nodes are available" in user.why("po/a")[1]


def test_job_is_explained_by_its_pod_groups(user: User) -> None:
    user.create(job("train", 3, cpu="7"))
    output = user.eventually("job/train", "never fits on these nodes")
    assert output.startswith(
        f"Job {user.namespace}/train never fits on these nodes: 2 of 3 members fit"
    )
    assert "  - lower minCount from 3 to 2\n" in output
    (item,) = json.loads(user.why("job/train", "-o", "json")[1])["items"]
    assert f"\n  group:   PodGroup {item['name']}\n" in output
    assert item["neverFits"] is True
    # Users call the group of a Job by the name of the Job.
    assert user.why("gang/train")[1] == output


def test_workload_is_explained_by_its_composite_pod_group(user: User) -> None:
    user.create(*tree("w", cpu="7"))
    code, output, errors = user.why("workload/w")
    assert (code, errors) == (0, "")
    assert output.startswith(f"Workload {user.namespace}/w never fits on these nodes: ")
    assert "\n  group:   CompositePodGroup w-tree\n" in output
    assert "  - lower minGroupCount from 2 to 1\n" in output
    part = user.why("pg/w-a")[1].splitlines()
    assert part[0].startswith(f"PodGroup {user.namespace}/w-a never fits on these nodes: ")
    assert part[3] == (
        f"  part of: CompositePodGroup {user.namespace}/w-tree, which is placed as a whole"
    )


def test_gang_of_another_scheduler_is_not_said_to_lack_nodes(user: User) -> None:
    group, *members = gang("v", 2, cpu="9")
    user.create(
        group, *({**one, "spec": {**one["spec"], "schedulerName": "volcano"}} for one in members)
    )
    headline = user.why("podgroup/v")[1].splitlines()[0]
    assert headline.startswith(f"PodGroup {user.namespace}/v waits for another scheduler: ")
    assert "every node lacks" not in headline


def test_workload_without_groups_says_so(user: User) -> None:
    user.create(workload("w"))
    assert user.why("workload/w")[1] == (
        f"Workload {user.namespace}/w has no pods and no pod groups yet\n"
    )
    assert json.loads(user.why("workload/w", "-o", "json")[1]) == {"items": []}


def test_configuration_of_the_scheduler_is_used(user: User, tmp_path: Path) -> None:
    user.create(pod("a", spec={"nodeSelector": {"color": "red"}, "schedulerName": "loose"}))
    assert "waits for another scheduler" in user.why("pod/a")[1]
    config = tmp_path / "config.yaml"
    config.write_text(LOOSE)
    assert "fits and is about to be placed" in user.why("pod/a", "--config", str(config))[1]


def test_first_sentence_says_that_pods_name_another_scheduler(user: User) -> None:
    made = job("train", 2, cpu="1")
    made["spec"]["template"]["spec"]["schedulerName"] = "volcano"
    user.create(made)
    answer = user.eventually("job/train", "0 placed, 2 pending")
    assert answer.splitlines()[0] == (
        f"Job {user.namespace}/train waits for another scheduler: "
        'schedulerName is "volcano", and Phalanx serves "default-scheduler" here'
    )
    assert "about to be placed" not in answer
    assert "\nPossible fixes (not verified):\n  - set schedulerName: default-scheduler" in answer
    done = phalanx("queue", "-n", user.namespace, "--kubeconfig", str(user.config))
    assert done.stdout.splitlines()[1].split() == [
        "job/train", "Waiting", "-", "0", done.stdout.splitlines()[1].split()[4], "0/2",
        "OtherScheduler",
    ]  # fmt: skip


def test_name_alone_is_that_of_a_gang() -> None:
    assert parse_subject_argument("train") == parse_subject_argument("gang/train")
    assert parse_subject_argument("llm[0]") == (POD_GROUP, "llm")


def test_unknown_kind_is_wrong_usage(user: User) -> None:
    code, output, errors = user.why("node/a")
    assert (code, output) == (2, "")
    assert "'node/a' is none of podgroup/NAME, compositepodgroup/NAME, pod/NAME, job/NAME" in errors


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("job/missing", 'there is no Job "missing" in namespace'),
        ("workload/missing", 'there is no Workload "missing" in namespace'),
        ("cpg/missing", 'there is no CompositePodGroup "missing" in namespace'),
        ("pod/missing", 'there is no pod "missing" in namespace'),
        ("podgroup/missing", 'there is no pod group "missing" in namespace'),
    ],
)
def test_missing_object_is_an_error_in_one_line(user: User, what: str, message: str) -> None:
    code, output, errors = user.why(what)
    assert (code, output) == (1, "")
    assert errors.startswith(f"Error: {message}")
    assert errors.count("\n") == 1


def test_unreachable_server_is_an_error_in_one_line(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    kubeconfig.write(config, "http://127.0.0.1:9", "", token="token")
    done = phalanx("why", "pod/a", "--kubeconfig", str(config))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "Error: cannot reach http://127.0.0.1:9: Connection refused; is it running?\n"
    )


def test_missing_kubeconfig_is_an_error_in_one_line(tmp_path: Path) -> None:
    done = phalanx("why", "pod/a", env={"KUBECONFIG": str(tmp_path / "none")})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"Error: there is no kubeconfig at {tmp_path / 'none'}; start a control plane with "
        "phalanx up, or name a file with --kubeconfig\n"
    )
