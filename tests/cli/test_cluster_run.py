"""`phalanx run --context`: manifests run once on a cluster, which is a foreign server here."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from phalanx.api.custom_resources.workload_definitions import workload_definitions
from phalanx.api.wire import Object
from phalanx.api.workload_sources import POLICY_ANNOTATION
from tests.cli.commands import (
    COMMAND_TIMEOUT,
    Kubectl,
    first_line,
    phalanx,
    start_command,
    start_component,
    start_up,
)

CONTEXT = "elsewhere"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A foreign server without the workload APIs: two nodes of 4 CPU, our custom resources."""
    folder = tmp_path_factory.mktemp("cluster")
    file = folder / "kubeconfig"
    with ExitStack() as stack:
        up = stack.enter_context(
            start_up(
                "--data", ":memory:", "--without", "scheduler,controllers", "--nodes", "2",
                "--shape", "cpu=4", "--feature-gates", "GenericWorkload=false,GroupBinding=false",
                "--kubeconfig", str(file),
            )
        )  # fmt: skip
        assert first_line(up).startswith("ready")
        Kubectl(file, "default", folder).apply(*workload_definitions())
        content = yaml.safe_load(file.read_text())
        content["contexts"][0]["name"] = content["current-context"] = CONTEXT
        file.write_text(yaml.safe_dump(content))
        for name in ("scheduler", "controllers"):
            component = stack.enter_context(start_component(name, file))
            assert first_line(component).startswith("ready")
        yield file


@pytest.fixture
def kubectl(config: Path, tmp_path: Path) -> Iterator[Kubectl]:
    """kubectl in a new namespace, which is the context's; nothing of it runs after the test."""
    name = "n" + "".join(filter(str.isalnum, tmp_path.name)).lower()
    file = tmp_path / "kubeconfig"
    content = yaml.safe_load(config.read_text())
    content["contexts"][0]["context"]["namespace"] = name
    file.write_text(yaml.safe_dump(content))
    file.chmod(0o600)
    kubectl = Kubectl(file, name, tmp_path)
    kubectl("create", "namespace", name)
    yield kubectl
    # The Job controller of a foreign cluster, which is absent here, would release the pods.
    kubectl("delete", "jobs,pods", "--all", "--wait=false")


def gang_job(name: str, count: int, cpu: str, **spec: object) -> Object:
    """A Job of our controller whose pods end after a second."""
    container = {
        "name": "main",
        "image": "registry.example/main:1",
        "resources": {"requests": {"cpu": cpu}},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": {POLICY_ANNOTATION: "gang"}},
        "spec": {
            "managedBy": "phalanx.dev/job-controller",
            "parallelism": count,
            "completions": count,
            "completionMode": "Indexed",
            **spec,
            "template": {
                "metadata": {"annotations": {"phalanx.dev/run-seconds": "1"}},
                "spec": {
                    "schedulerName": "phalanx-scheduler",
                    "restartPolicy": "Never",
                    "containers": [container],
                },
            },
        },
    }


def write(kubectl: Kubectl, *objects: Object) -> str:
    file = kubectl.home / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    return str(file)


def options(kubectl: Kubectl, *objects: Object) -> tuple[str, ...]:
    server = ("--kubeconfig", str(kubectl.kubeconfig), "--context", CONTEXT)
    return "run", "-f", write(kubectl, *objects), *server


@pytest.mark.timeout(2 * COMMAND_TIMEOUT)
def test_run_follows_a_gang_job_of_a_cluster_to_its_end(kubectl: Kubectl) -> None:
    # Another workload of the namespace is not part of the run.
    kubectl.apply(gang_job("other", 1, "1", suspend=True))
    done = phalanx(*options(kubectl, gang_job("train", 2, "3")))
    assert done.returncode == 0, done.stderr
    summary, *gangs = done.stdout.splitlines()
    assert summary.startswith("1 gang ran, 0 did not, in ")
    assert gangs == ["  Job/train  ended 2/2 on node-0 (1), node-1 (1)"]
    assert "Job/train: ended 2/2" in done.stderr.splitlines()
    assert "warning" not in done.stderr
    *_, title, command = done.stderr.splitlines()
    assert title == "the objects stay in the cluster; to delete them:"
    assert command == (
        f"  kubectl --kubeconfig {kubectl.kubeconfig} --context {CONTEXT} "
        f"-n {kubectl.namespace} delete jobs.batch/train"
    )
    assert kubectl.get("job/train")["status"]["succeeded"] == 2


@pytest.mark.timeout(2 * COMMAND_TIMEOUT)
def test_run_warns_about_fields_that_the_server_of_the_cluster_drops(kubectl: Kubectl) -> None:
    job = gang_job("train", 1, "1", gangPolicy={"policy": "JobAsGang"})
    done = phalanx(*options(kubectl, job))
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == (
        "warning: Job train: the API server drops spec.gangPolicy, so that its pods are no gang "
        "there; add the annotation scheduling.phalanx.dev/policy: gang"
    )


@pytest.mark.timeout(2 * COMMAND_TIMEOUT)
def test_run_explains_a_gang_that_does_not_fit_into_the_cluster_in_time(kubectl: Kubectl) -> None:
    done = phalanx(*options(kubectl, gang_job("big", 3, "3")), "--timeout", "3s")
    assert done.returncode == 1
    assert done.stdout.startswith("0 gangs ran, 1 did not, in ")
    assert "Job/big: waiting 0/3: 2 of 3 members fit: " in done.stderr
    assert f"\n\nJob {kubectl.namespace}/big never fits on these nodes: " in done.stdout
    assert "delete jobs.batch/big" in done.stderr
    assert kubectl.get("job/big")["metadata"]["name"] == "big"


@pytest.mark.slow
@pytest.mark.timeout(2 * COMMAND_TIMEOUT)
def test_interrupted_run_leaves_its_objects_and_says_how_to_delete_them(kubectl: Kubectl) -> None:
    with start_command(*options(kubectl, gang_job("big", 3, "3"))) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        while not line.startswith("Job/big: waiting"):
            assert line, "the run has ended"
            line = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, text = process.communicate(timeout=COMMAND_TIMEOUT)
        assert process.returncode == 130
    command = text.splitlines()[-1]
    assert "interrupted: what was submitted goes on" in text
    assert "Traceback" not in text
    words = command.split()
    assert words[0] == "kubectl"
    kubectl(*words[words.index("delete") :])
    assert kubectl.get("jobs")["items"] == []


@pytest.mark.timeout(2 * COMMAND_TIMEOUT)
def test_rejected_objects_name_the_reason_and_what_was_created_before(kubectl: Kubectl) -> None:
    job = gang_job("train", 1, "1", suspend=True)
    group = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "g"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 1}}},
    }
    done = phalanx(*options(kubectl, job, group))
    assert done.returncode == 1
    assert "delete jobs.batch/train" in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "Error: the API server does not serve PodGroup of scheduling.k8s.io/v1beta1; "
        "such a server has groups in scheduling.phalanx.dev/v1 (phalanx install)"
    )
    done = phalanx(*options(kubectl, job))
    assert (done.returncode, done.stderr) == (
        1,
        f"Error: Job {kubectl.namespace}/train exists already; "
        "delete it or give the new one another name\n",
    )
    job["metadata"]["namespace"] = "absent"
    done = phalanx(*options(kubectl, job))
    assert (done.returncode, done.stderr) == (
        1, 'Error: Job absent/train is rejected: namespaces "absent" not found\n',
    )  # fmt: skip


@pytest.mark.timeout(2 * COMMAND_TIMEOUT)
def test_unknown_fields_reach_no_cluster(kubectl: Kubectl) -> None:
    done = phalanx(*options(kubectl, gang_job("train", 1, "1", paralelism=1)))
    assert done.returncode == 1
    assert 'unknown field "spec.paralelism"' in done.stderr
    assert kubectl.get("jobs")["items"] == []


def test_nodes_are_an_option_of_the_temporary_control_plane_only(tmp_path: Path) -> None:
    done = phalanx("run", "-f", str(tmp_path), "--kubeconfig", "none", "--nodes", "3")
    assert done.returncode == 2
    assert "--nodes is an option of the temporary control plane; leave it out" in done.stderr
