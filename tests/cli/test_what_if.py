from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from phalanx.api.kinds import JOB
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.cli.what_if import what_if_command
from tests.builders import gang, pod
from tests.cli.cli_user import CliUser, gang_job
from tests.controllers.job_sets.job_set_harness import job_set, role
from tests.controllers.leader_worker_sets.lws_cluster import leader_worker_set
from tools.control_plane import ControlPlane


class Forecaster(CliUser):
    """A user who runs `phalanx what-if`."""

    folder: Path

    def what_if(self, *objects: Object, **options: str) -> tuple[int, str, str]:
        """Run what-if on objects; return exit code, stdout and stderr."""
        file = self.folder / "objects.yaml"
        file.write_text(yaml.safe_dump_all(objects))
        words = [w for k, v in options.items() for w in (f"--{k.replace('_', '-')}", v)]
        done = self.run("what-if", *(("-f", str(file)) if objects else ()), *words)
        return done.returncode, done.stdout, done.stderr

    def invoke(self, *words: str) -> Result:
        """Run what-if in this process."""
        return CliRunner().invoke(
            what_if_command, ["--kubeconfig", str(self.config), "-n", self.namespace, *words]
        )


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forecaster]:
    """Two nodes of 8 CPU; the Job `held` takes half of each."""
    with ControlPlane("--data", ":memory:", "--nodes", "2", "--shape", "cpu=8") as plane:
        found = Forecaster(plane.kubeconfig)
        found.folder = tmp_path_factory.mktemp("files")
        found.create(gang_job("held", 2, cpu="5"))
        found.eventually(lambda: [line.placed for line in found.gangs()] == [2])
        yield found


def test_job_that_fits_is_reported_with_its_nodes(user: Forecaster) -> None:
    code, output, errors = user.what_if(gang_job("new", 2, cpu="3"))
    assert (code, errors) == (0, "")
    head, where = output.splitlines()
    assert head == f"Job {user.namespace}/new fits: 2 of 2 members get a node now"
    assert where == "  on node-0 (1), node-1 (1)"


def test_job_that_must_wait_is_reported_with_the_workloads_it_waits_for(user: Forecaster) -> None:
    code, output, _ = user.what_if(gang_job("new", 2, cpu="6"))
    assert code == 3
    head, *_, last = output.splitlines()
    assert head == f"Job {user.namespace}/new must wait: 0 of 2 members fit: every node lacks cpu."
    assert last == "  it can start when these have ended: job/held (2 pods)"


def test_gang_that_never_fits_is_reported_with_the_reason(user: Forecaster) -> None:
    code, output, _ = user.what_if(*gang("new", 2, namespace=user.namespace, cpu="9"))
    assert code == 4
    head, detail = output.splitlines()
    assert head == (
        f"PodGroup {user.namespace}/new never fits: "
        "0 of 2 members fit even if nothing else ran: every node lacks cpu."
    )
    assert detail == "  0/2 nodes are available: 2 Insufficient cpu."


def test_preempting_pod_is_reported_with_its_victims(user: Forecaster) -> None:
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": "high"}, "value": 100}  # fmt: skip
    urgent = pod("urgent", cpu="6", spec={"priorityClassName": "high"})
    del urgent["metadata"]["namespace"]
    code, output, errors = user.what_if(high, urgent)
    assert (code, errors) == (3, "")
    assert "  it would preempt job/held (" in output


def test_changes_to_nodes_and_min_count_are_applied(user: Forecaster) -> None:
    assert user.what_if(gang_job("new", 2, cpu="6"), add_nodes="2")[0] == 0
    assert user.what_if(gang_job("new", 2, cpu="9"), add_nodes="2:cpu=9")[0] == 0
    assert user.what_if(gang_job("new", 4, cpu="3"), min_count="new=2")[0] == 0
    code, output, _ = user.what_if(drain="node-0")
    assert (code, f"Job {user.namespace}/held never fits" in output) == (4, True)


def test_forecast_without_files_is_about_everything_that_waits(user: Forecaster) -> None:
    done = user.invoke()
    assert (done.exit_code, done.stdout) == (
        0, f"No workload is waiting in namespace {user.namespace}.\n",
    )  # fmt: skip
    key = Key(user.namespace, "late")
    user.create(gang_job("late", 2, cpu="6"))
    user.eventually(lambda: [line.placed for line in user.gangs()] == [2, 0])
    try:
        done = user.invoke()
        assert (done.exit_code, f"Job {user.namespace}/late must wait: " in done.stdout) == (
            3,
            True,
        )
    finally:
        user.query(lambda client: client.delete(JOB, key, propagation="Background"))
        user.eventually(lambda: [line.placed for line in user.gangs()] == [2])


def test_forecast_is_printed_as_json(user: Forecaster) -> None:
    code, output, _ = user.what_if(gang_job("new", 2, cpu="6"), output="json")
    [answer] = json.loads(output)["items"]
    assert (code, answer["verdict"], answer["kind"]) == (3, "waits", "PodGroup")
    assert answer["summary"] == "0 of 2 members fit: every node lacks cpu."
    assert answer["message"].startswith("minCount (2) cannot be satisfied")
    assert [(one["kind"], one["pods"]) for one in answer["waitsFor"]] == [("PodGroup", 2)]


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (gang_job("held", 2, cpu="1"), "already exists in the cluster"),
        (
            {"apiVersion": "v1", "kind": "Sock", "metadata": {"name": "a"}},
            'unknown kind "Sock" in v1',
        ),
        ({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}, "spec.containers"),
        ({"metadata": {"name": "a"}}, "not a Kubernetes object: apiVersion and kind are missing"),
        ({"kind": "Pod"}, "objects.yaml: not a Kubernetes object: apiVersion is missing"),
        (
            {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "a"}},
            "has no pods until it is due; ask about a Job of it",
        ),
        ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}, "nothing to place"),
    ],
)
def test_manifest_that_cannot_be_tried_is_rejected_in_one_line(
    user: Forecaster, obj: Object, message: str
) -> None:
    file = user.folder / "objects.yaml"
    file.write_text(yaml.safe_dump(obj))
    done = user.invoke("-f", str(file))
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert message in done.stderr


@pytest.mark.parametrize(
    ("obj", "code", "title"),
    [
        (job_set(role("driver"), role("workers", 1, 2)), 0, "CompositePodGroup"),
        (job_set(role("driver"), role("workers", 1, 9)), 3, "CompositePodGroup"),
        (leader_worker_set(size=2, replicas=1), 0, "PodGroup"),
    ],
)
def test_sets_are_expanded_into_the_trees_of_their_pods(
    user: Forecaster, obj: Object, code: int, title: str
) -> None:
    done, output, error = user.what_if(obj, output="json")
    assert done == code, error
    assert {one["kind"] for one in json.loads(output)["items"]} == {title}


def test_forecast_of_one_namespace_counts_the_gangs_of_others(user: Forecaster) -> None:
    other = Forecaster(user.config)
    key = Key(user.namespace, "late")
    user.create(gang_job("late", 2, cpu="6"))
    other.create(gang_job("second", 2, cpu="6"))
    try:
        other.eventually(lambda: len(other.gangs()) == 3)
        done = other.invoke()
        heads = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
        assert [line.split(":")[0] for line in heads] == [f"Job {other.namespace}/second must wait"]
        assert f"these have ended: job/held in {user.namespace} (2 pods)" in done.stdout
        assert "when job/held in" not in done.stdout
    finally:
        user.query(lambda client: client.delete(JOB, key, propagation="Background"))
        key = Key(other.namespace, "second")
        user.query(lambda client: client.delete(JOB, key, propagation="Background"))
        user.eventually(lambda: [line.placed for line in user.gangs()] == [2])


def test_node_that_is_drained_twice_is_drained(user: Forecaster) -> None:
    done = user.invoke("--drain", "node-0", "--drain", "node-0")
    assert (done.exit_code, "held never fits" in done.stdout) == (4, True), done.stderr


def test_too_many_added_nodes_are_an_error_that_says_the_limit(user: Forecaster) -> None:
    done = user.invoke("--add-nodes", "99999999")
    assert (done.exit_code, "with N from 1 to 100000" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    "words", [("--min-count", "x"), ("--add-nodes", "many"), ("-f", "/nonexistent.yaml")]
)
def test_wrong_usage(user: Forecaster, words: tuple[str, ...]) -> None:
    assert user.invoke(*words).exit_code == 2


def test_job_whose_devices_come_from_a_claim_template_of_the_files(user: Forecaster) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
    devices = [{"name": "gpu-0"}, {"name": "gpu-1"}]
    objects = [
        {"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}},
        {"kind": "ResourceSlice", "metadata": {"name": "node-0-gpus"}, "spec": {
            "driver": "gpu.example.com", "nodeName": "node-0", "devices": devices,
            "pool": {"name": "node-0", "generation": 1, "resourceSliceCount": 1}}},
        {"kind": "ResourceClaimTemplate", "metadata": {"name": "gpu"},
         "spec": {"spec": {"devices": {"requests": [request]}}}},
    ]  # fmt: skip
    versioned = [{"apiVersion": "resource.k8s.io/v1", **one} for one in objects]
    job = gang_job("new", 2, cpu="1")
    entry = {"name": "gpu", "resourceClaimTemplateName": "gpu"}
    job["spec"]["template"]["spec"]["resourceClaims"] = [entry]
    code, output, _ = user.what_if(*versioned, job)
    assert (code, output.splitlines()[-1]) == (0, "  on node-0 (2)")
    del devices[1]
    code, output, _ = user.what_if(*versioned, job)
    assert (code, "cannot allocate all claims" in output) == (4, True)


def test_invalid_file_is_reported_before_the_cluster_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("kind: Job\n spec: {}\n")
    missing = tmp_path / "kubeconfig"
    words = ["--kubeconfig", str(missing), "-f", str(file)]
    done = CliRunner().invoke(what_if_command, words)
    assert done.exit_code == 1
    assert f"{file}: invalid YAML: line 2, column 6" in done.output


@pytest.mark.slow
def test_commands_say_that_no_scheduler_is_running(tmp_path: Path) -> None:
    warning = "Warning: no scheduler is running"
    options = ("--nodes", "1", "--shape", "cpu=8", "--without", "scheduler")
    with ControlPlane("--data", ":memory:", *options) as plane:
        found = Forecaster(plane.kubeconfig)
        found.folder = tmp_path
        found.create(gang_job("late", 2, cpu="1"))
        found.eventually(lambda: [line.pending for line in found.gangs()] == [2])
        code, output, errors = found.what_if(gang_job("new", 2, cpu="1"))
        top = found.run("top", "--once").stdout
        data = [json.loads(found.what_if(output="json")[1]), found.run_json("top")]
        rows = found.run_json("queue")["items"]
    assert (code, "new fits: " in output, errors.startswith(warning)) == (0, True, True)
    assert top.startswith(warning)
    assert all("no scheduler is running" in one["warning"] for one in data)
    assert [row["expectedStart"] for row in rows] == [None]
