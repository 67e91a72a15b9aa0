"""The walk of a controller author: an operator with kopf, tested from a project of its own.

The project knows nothing about this repository: it has its own settings, directories and operator,
and runs pytest with the installed package. Its tests pass with the operator, and fail with what a
developer needs to know once the operator is broken.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Each test starts another pytest, which starts control planes and kopf.
pytestmark = pytest.mark.slow

SETTINGS = """\
[project]
name = "trainings"
version = "0"

[tool.pytest.ini_options]
testpaths = ["checks"]
addopts = ["--strict-markers", "--strict-config"]
"""
DEFINITION = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: trainings.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Training, plural: trainings}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {workers: {type: integer}}}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""
OPERATOR = """\
import kopf
from kubernetes import client, config


@kopf.on.login()
def login(**arguments):
    return kopf.login_with_kubeconfig(**arguments)


@kopf.on.create("example.com", "v1", "trainings")
def train(name, namespace, spec, **_):
    config.load_kube_config()
    container = {
        "name": "main",
        "image": "registry.example/train:1",
        "resources": {"requests": {"cpu": "4"}},
    }
    job = {
        "metadata": {"name": name},
        "spec": {
            "parallelism": spec["workers"],
            "completions": spec["workers"],
            "scheduling": {"schedulingPolicy": {"gang": {}}},
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }
    client.BatchV1Api().create_namespaced_job(namespace, job)
"""
CHECKS = """\
import contextlib

TRAINING = {
    "apiVersion": "example.com/v1", "kind": "Training",
    "metadata": {"name": "bert"}, "spec": {"workers": 4},
}


@contextlib.contextmanager
def operator(phalanx):
    phalanx.apply("definition.yaml")
    with phalanx.program("kopf", "run", "--all-namespaces", "operator_.py"):
        phalanx.apply(TRAINING)
        yield


def test_training_runs_as_a_gang(phalanx):
    phalanx.nodes(2, cpu=8)
    with operator(phalanx):
        phalanx.wait_for_all("pods", "Running", count=4, timeout=TIMEOUT)


def test_training_waits_for_room(phalanx):
    phalanx.nodes(1, cpu=8)
    with operator(phalanx):
        phalanx.wait_for("job", "bert", lambda job: job["status"]["active"] == 4, timeout=TIMEOUT)
        assert "2 of 4 members fit: all nodes run out of cpu" in phalanx.why("job/bert")
        phalanx.nodes(1, cpu=8)
        phalanx.wait_for_all("pods", "Running", count=4, timeout=TIMEOUT)
"""


def run_project(folder: Path, *words: str, operator: str = OPERATOR, timeout: int = 200) -> str:
    """Write the project, run its tests, and return what pytest prints."""
    (folder / "checks").mkdir(exist_ok=True)
    checks = CHECKS.replace("TIMEOUT", str(timeout))
    for name, text in {
        "pyproject.toml": SETTINGS, "definition.yaml": DEFINITION, "operator_.py": operator,
        "checks/test_operator.py": checks,
    }.items():  # fmt: skip
        (folder / name).write_text(text)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *words],
        cwd=folder, env={"PATH": programs, "HOME": str(folder)},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_operator_is_tested_against_a_control_plane_per_test(tmp_path: Path) -> None:
    assert "2 passed" in run_project(tmp_path)


def test_operator_that_dies_fails_its_test_with_its_output(tmp_path: Path) -> None:
    broken = f"{OPERATOR}\nraise SystemExit('the licence is missing')\n"
    printed = run_project(tmp_path, "-k", "as_a_gang", operator=broken)
    assert "1 failed" in printed
    assert "the licence is missing" in printed


def test_operator_that_does_nothing_fails_its_test_with_the_state_of_the_cluster(
    tmp_path: Path,
) -> None:
    idle = OPERATOR.replace("create_namespaced_job(namespace, job)", "get_api_resources()")
    printed = run_project(tmp_path, "-k", "as_a_gang", operator=idle, timeout=15)
    assert "1 failed" in printed
    assert "NotReached: " in printed
