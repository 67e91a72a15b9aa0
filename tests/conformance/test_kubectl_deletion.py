"""Waiting, deleting and draining with kubectl."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator

import pytest

from phalanx.api.wire import Object
from tests.builders import pod
from tests.cli.commands import COMMAND_TIMEOUT, WAIT_LIMIT, Kubectl
from tests.conformance.manifests import IMAGE, config_map, here, job
from tests.conformance.official_client import NOT_ROOT_CA, ROOT_CA


def names(kubectl: Kubectl, *kinds: str) -> list[str]:
    others = f"--field-selector={NOT_ROOT_CA}"
    return kubectl("get", ",".join(kinds), others, "-o", "name").split()


def create_running_pod(kubectl: Kubectl, name: str, **labels: str) -> str:
    """A running pod, and its node."""
    kubectl.apply(here(kubectl, pod(name, meta={"labels": labels})))
    kubectl("wait", "--for=condition=Ready", f"pod/{name}", WAIT_LIMIT)
    return kubectl("get", "pod", name, "-o", "jsonpath={.spec.nodeName}")


# ---- wait ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "condition", "change"),
    [
        ("pod/a", "condition=Ready", ("run", "a", f"--image={IMAGE}")),
        ("pod/a", "jsonpath={.status.phase}=Running", ("run", "a", f"--image={IMAGE}")),
        ("cm/a", "create", ("create", "cm", "a")),
    ],
)
def test_wait_ends_when_its_condition_is_met(
    kubectl: Kubectl, what: str, condition: str, change: tuple[str, ...]
) -> None:
    kubectl(*change)
    assert kubectl("wait", f"--for={condition}", what, WAIT_LIMIT).endswith(" condition met\n")


def test_wait_for_deletion_ends_with_the_last_object(kubectl: Kubectl) -> None:
    for name in ("a", "b"):
        kubectl("create", "cm", name)
    waiting = subprocess.Popen(
        kubectl.command(["wait", "--for=delete", "cm/a", "cm/b", WAIT_LIMIT]),
        stdout=subprocess.PIPE, text=True, env=kubectl.env,
    )  # fmt: skip
    timer = threading.Timer(COMMAND_TIMEOUT, waiting.kill)
    timer.start()
    try:
        kubectl("delete", "cm", "a", "b")
        output, _ = waiting.communicate()
    finally:
        timer.cancel()
    assert waiting.returncode == 0
    assert set(output.splitlines()) <= {"configmap/a condition met", "configmap/b condition met"}


def test_wait_ends_after_its_timeout(kubectl: Kubectl) -> None:
    kubectl("create", "cm", "a")
    done = kubectl.run("wait", "--for=jsonpath={.data.x}=1", "cm/a", "--timeout=1s")
    assert done.returncode == 1
    assert "timed out waiting for the condition on configmaps/a" in done.stderr
    absent = kubectl.run("wait", "--for=condition=Ready", "pod/none", "--timeout=1s")
    assert (absent.returncode, "not found" in absent.stderr) == (1, True)


# ---- delete --------------------------------------------------------------------------------------


@pytest.fixture
def dependents(kubectl: Kubectl) -> list[str]:
    """A Job, a pod of it, and a config map of that pod: only the garbage collector deletes them."""
    parent, grandchild = job("parent", suspend=True), config_map("grandchild")
    child = here(kubectl, pod("child", gates=["example.com/held"]))
    owner: Object = {}
    for obj in (parent, child, grandchild):
        if owner:
            obj["metadata"]["ownerReferences"] = [owner]
        made = json.loads(kubectl("create", "-o", "json", "-f", "-", text=json.dumps(obj)))
        owner = {
            "apiVersion": made["apiVersion"], "kind": made["kind"], "controller": True,
            "name": made["metadata"]["name"], "uid": made["metadata"]["uid"],
            "blockOwnerDeletion": True,
        }  # fmt: skip
    return ["job.batch/parent", "pod/child", "configmap/grandchild"]


def test_foreground_deletion_removes_dependents_first(
    kubectl: Kubectl, dependents: list[str]
) -> None:
    assert kubectl("delete", "job/parent", "--cascade=foreground") == 'job.batch "parent" deleted\n'
    assert names(kubectl, "jobs", "pods", "cm") == []


def test_background_deletion_removes_dependents_afterwards(
    kubectl: Kubectl, dependents: list[str]
) -> None:
    kubectl("delete", "job/parent", "--cascade=background")
    kubectl("wait", "--for=delete", "pod/child", "cm/grandchild", WAIT_LIMIT)
    assert names(kubectl, "jobs", "pods", "cm") == []


def test_orphans_stay_and_lose_their_owner_reference(
    kubectl: Kubectl, dependents: list[str]
) -> None:
    kubectl("delete", "job/parent", "--cascade=orphan")
    assert names(kubectl, "jobs", "pods", "cm") == dependents[1:]
    assert "ownerReferences" not in kubectl.get("pod/child")["metadata"]
    assert len(kubectl.get("cm/grandchild")["metadata"]["ownerReferences"]) == 1


def test_a_pod_can_be_deleted_by_force(kubectl: Kubectl) -> None:
    create_running_pod(kubectl, "a")
    done = kubectl.run("delete", "pod", "a", "--grace-period=0", "--force")
    assert done.stdout == 'pod "a" force deleted\n'
    assert "Immediate deletion does not wait for confirmation" in done.stderr
    assert names(kubectl, "pods") == []


def test_a_finalizer_delays_deletion(kubectl: Kubectl) -> None:
    held = config_map("a")
    held["metadata"]["finalizers"] = ["example.com/held"]
    kubectl.apply(held)
    assert kubectl("delete", "cm/a", "--wait=false") == 'configmap "a" deleted\n'
    assert "deletionTimestamp" in kubectl.get("cm/a")["metadata"]
    kubectl("patch", "cm/a", "--type=json", "-p", '[{"op":"remove","path":"/metadata/finalizers"}]')
    assert names(kubectl, "cm") == []


@pytest.mark.slow
def test_delete_accepts_labels_files_and_all(kubectl: Kubectl) -> None:
    for name in ("a", "b", "c", "d"):
        kubectl("create", "cm", name)
    kubectl("label", "cm", "a", "b", "x=1")
    assert kubectl("delete", "cm", "-l", "x=1").count("deleted") == 2
    manifest = json.dumps(kubectl.get("cm/c"))
    assert kubectl("delete", "-f", "-", text=manifest) == 'configmap "c" deleted\n'
    again = kubectl.run("delete", "-f", "-", text=manifest)
    assert (again.returncode, "NotFound" in again.stderr) == (1, True)
    assert kubectl("delete", "-f", "-", "--ignore-not-found", text=manifest) == ""
    deleted = kubectl("delete", "cm", "--all").splitlines()
    assert deleted == ['configmap "d" deleted', f'configmap "{ROOT_CA}" deleted']


def test_a_system_namespace_cannot_be_deleted(kubectl: Kubectl) -> None:
    done = kubectl.run("delete", "namespace", "default")
    assert done.returncode == 1
    assert "this namespace may not be deleted" in done.stderr


# ---- nodes ---------------------------------------------------------------------------------------


@pytest.fixture
def uncordoned_nodes(kubectl: Kubectl) -> Iterator[None]:
    """Uncordons every node after the test."""
    yield
    kubectl("uncordon", "-l", "!example.com/none")


@pytest.mark.usefixtures("uncordoned_nodes")
def test_a_node_is_cordoned_once(kubectl: Kubectl) -> None:
    assert kubectl("cordon", "node-0") == "node/node-0 cordoned\n"
    assert kubectl("cordon", "node-0") == "node/node-0 already cordoned\n"
    assert kubectl("get", "nodes", "--field-selector=spec.unschedulable=true", "-o", "name") == (
        "node/node-0\n"
    )
    assert kubectl("uncordon", "node-0") == "node/node-0 uncordoned\n"


def test_a_node_is_tainted_and_untainted(kubectl: Kubectl) -> None:
    assert kubectl("taint", "node", "node-0", "x=1:NoSchedule") == "node/node-0 tainted\n"
    again = kubectl.run("taint", "node", "node-0", "x=1:NoSchedule")
    assert (again.returncode, "already has x taint" in again.stderr) == (1, True)
    assert kubectl("taint", "node", "node-0", "x-") == "node/node-0 untainted\n"


@pytest.mark.usefixtures("uncordoned_nodes")
def test_a_drained_node_has_no_pods_left(kubectl: Kubectl) -> None:
    node = create_running_pod(kubectl, "a")
    unforced = kubectl.run("drain", node)
    assert unforced.returncode == 1
    assert "Pods that declare no controller (use --force to override)" in unforced.stderr
    output = kubectl("drain", node, "--force", WAIT_LIMIT)
    assert f"pod/a evicted\nnode/{node} drained\n" in output
    assert names(kubectl, "pods") == []


def test_a_disruption_budget_blocks_an_eviction(kubectl: Kubectl) -> None:
    create_running_pod(kubectl, "a", app="x")
    kubectl("create", "poddisruptionbudget", "b", "--selector=app=x", "--min-available=1")
    kubectl("wait", "--for=jsonpath={.status.observedGeneration}=1", "pdb/b", WAIT_LIMIT)
    path = f"/api/v1/namespaces/{kubectl.namespace}/pods/a/eviction"
    eviction = '{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}'
    done = kubectl.run("create", "--raw", path, "-f", "-", text=eviction)
    assert done.returncode == 1
    assert "would violate the pod's disruption budget" in done.stderr
    assert names(kubectl, "pods") == ["pod/a"]
    kubectl("patch", "pdb/b", "--type=merge", "-p", '{"spec":{"minAvailable":0}}')
    kubectl("wait", "--for=jsonpath={.status.disruptionsAllowed}=1", "pdb/b", WAIT_LIMIT)
    kubectl("create", "--raw", path, "-f", "-", text=eviction)
    kubectl("wait", "--for=delete", "pod/a", WAIT_LIMIT)


@pytest.mark.slow  # kubectl tries a refused eviction again after five seconds.
@pytest.mark.usefixtures("uncordoned_nodes")
def test_a_disruption_budget_blocks_a_drain(kubectl: Kubectl) -> None:
    node = create_running_pod(kubectl, "a", app="x")
    kubectl("create", "poddisruptionbudget", "b", "--selector=app=x", "--min-available=1")
    kubectl("wait", "--for=jsonpath={.status.observedGeneration}=1", "pdb/b", WAIT_LIMIT)
    done = kubectl.run("drain", node, "--force", "--timeout=1s")
    assert done.returncode == 1
    assert "would violate the pod's disruption budget" in done.stderr
    assert names(kubectl, "pods") == ["pod/a"]
    kubectl("patch", "pdb/b", "--type=merge", "-p", '{"spec":{"minAvailable":0}}')
    kubectl("wait", "--for=jsonpath={.status.disruptionsAllowed}=1", "pdb/b", WAIT_LIMIT)
    assert "pod/a evicted" in kubectl("drain", node, "--force", WAIT_LIMIT)
