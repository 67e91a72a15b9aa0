"""Every manifest that the proposals print works: applied by kubectl, read in every version.

`tests/seeds/` has them as printed, and the edits without which some cannot be applied.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

from phalanx.api.wire import Object
from tests.cli.commands import WAIT_LIMIT, Kubectl
from tests.recorded_cases import dig
from tools.control_plane import ControlPlane
from tools.seeds import Manifest, load_manifests

ROWS = load_manifests()
#: The kinds that are served in several versions, and these versions, the newest first.
PLURALS = {"Workload": "workloads", "PodGroup": "podgroups"}
VERSIONS = ("v1beta1", "v1alpha3", "v1alpha2", "v1alpha1")
GROUP = "scheduling.k8s.io"
GROUPED = [row for row in ROWS if row.version.startswith(f"{GROUP}/")]


def gang(minimum: int) -> Object:
    return {"schedulingPolicy": {"gang": {"minCount": minimum}}}


def resource(kind: str, version: str) -> str:
    """The argument for kubectl that names a kind in one of its versions."""
    return f"{PLURALS[kind]}.{version}.{GROUP}"


def read(kubectl: Kubectl, what: list[str]) -> list[Object]:
    """Several objects, in this order."""
    found: list[Object] = json.loads(kubectl("get", *what, "-o", "json"))["items"]
    return found


def ids(rows: list[Manifest]) -> list[str]:
    return [row.file.removesuffix(".yaml") for row in rows]


each = pytest.mark.parametrize("row", ROWS, ids=ids(ROWS))
each_grouped = pytest.mark.parametrize("row", GROUPED, ids=ids(GROUPED))
each_version = pytest.mark.parametrize("version", VERSIONS)

#: The Workload that a PodGroup without a policy refers to.
TRAINING: Object = {
    "apiVersion": f"{GROUP}/v1beta1",
    "kind": "Workload",
    "metadata": {"name": "training-workload"},
    "spec": {"podGroupTemplates": [{"name": "pd-1-template", **gang(2)}]},
}


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of one manifest: the objects, their namespace, and the output of kubectl."""

    text: str
    kubectl: Kubectl
    done: subprocess.CompletedProcess[str]

    @property
    def object(self) -> Object:
        """The object as the server returned it."""
        found: Object = json.loads(self.done.stdout)
        return found

    def versions(self) -> list[Object]:
        """The object in each version, the newest first."""
        kind, name = self.object["kind"], self.object["metadata"]["name"]
        return read(self.kubectl, [f"{resource(kind, version)}/{name}" for version in VERSIONS])


@pytest.fixture(scope="module")
def cluster(home: Path) -> Iterator[Kubectl]:
    """kubectl on its own control plane, with the namespaces of the proposals."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on the PATH")
    with ControlPlane("--data", ":memory:", "--nodes", "1") as plane:
        kubectl = Kubectl(plane.kubeconfig, "default", home)
        for namespace in ("training", "ns-1", "copies"):
            kubectl("create", "namespace", namespace)
        replace(kubectl, namespace="ns-1").apply(TRAINING)
        yield kubectl


@pytest.fixture(scope="module")
def applied(cluster: Kubectl) -> Mapping[str, Applied]:
    """All manifests, applied in the order in which they are printed: owners come first."""
    return {row.file: _applied(cluster, row) for row in ROWS}


def _applied(cluster: Kubectl, row: Manifest) -> Applied:
    kubectl = replace(cluster, namespace=_namespace(row))
    text = re.sub(r"<uid of (\S+)>", lambda found: _uid(kubectl, found[1]), row.edited)
    args = ("apply", "--validate=strict", "-o", "json", "-f", "-")
    return Applied(text, kubectl, kubectl.run(*args, text=text))


def _namespace(row: Manifest) -> str:
    found: str = yaml.safe_load(row.edited).get("metadata", {}).get("namespace", "default")
    return found


def _uid(kubectl: Kubectl, what: str) -> str:
    return kubectl.run("get", what, "-o", "jsonpath={.metadata.uid}").stdout


# ---- applying ------------------------------------------------------------------------------------


@pytest.mark.mostly_slow(quick_every=3)
@pytest.mark.parametrize("row", [row for row in ROWS if row.edit], ids=lambda row: row.file)
def test_an_edited_manifest_is_refused_without_the_edit(cluster: Kubectl, row: Manifest) -> None:
    args = ("create", "--dry-run=server", "-f", "-")
    assert cluster.run(*args, text=row.printed).returncode == 1


@each
def test_every_manifest_is_applied_without_unknown_fields(
    applied: Mapping[str, Applied], row: Manifest
) -> None:
    done = applied[row.file].done
    assert done.returncode == 0, done.stderr
    assert "unknown field" not in done.stderr


@pytest.mark.mostly_slow(quick_every=3)
@each
def test_applying_a_manifest_again_changes_nothing(
    applied: Mapping[str, Applied], row: Manifest
) -> None:
    first = applied[row.file]
    again = first.kubectl("apply", "--validate=strict", "-o", "json", "-f", "-", text=first.text)
    assert json.loads(again)["spec"] == first.object["spec"]


@each
def test_every_manifest_can_be_applied_server_side(
    applied: Mapping[str, Applied], row: Manifest
) -> None:
    first = applied[row.file]
    args = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-o", "json")
    answer = json.loads(first.kubectl(*args, "-f", "-", text=first.text))
    assert answer["spec"] == first.object["spec"]


# ---- stored objects ------------------------------------------------------------------------------

RACK = {"schedulingConstraints": {"topology": [{"key": "topology.kubernetes.io/rack"}]}}
#: What every PodGroup has that does not say otherwise.
DEFAULTS: Object = {
    "disruptionMode": {"single": {}},
    "preemptionPolicy": "PreemptLowerPriority",
    "priority": 0,
}
#: The canonical fields of each manifest in the newest version.
CANONICAL: dict[str, Object] = {
    "5547-2-workload.yaml": {
        "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": "distributed-training"},
        "podGroupTemplates": [{"name": "pg-w-distributed-training", **gang(8)}],
    },
    "5547-3-podgroup.yaml": {
        "workloadRef": {
            "workloadName": "distributed-training-6b9c5",
            "templateName": "pg-w-distributed-training",
        },
        **gang(8),
        **DEFAULTS,
    },
    "5764-2-workload.yaml": {
        "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": "sleep-gang-job"},
        "podGroupTemplates": [{"name": "sleep-gang-job", **gang(10)}],
    },
    "4671-3-workload.yaml": {"podGroupTemplates": [{"name": "worker", **gang(100)}]},
    "4671-4-podgroup.yaml": {
        "workloadRef": {"workloadName": "training-policy", "templateName": "worker"},
        **gang(100),
        **DEFAULTS,
    },
    "4671-5-workload.yaml": {"podGroupTemplates": [{"name": "job-1", **gang(100)}]},
    "4671-6-podgroup.yaml": {
        "workloadRef": {"workloadName": "jobset", "templateName": "job-1"},
        **gang(100),
        **DEFAULTS,
    },
    "5832-1-podgroup.yaml": {
        "workloadRef": {"workloadName": "training-workload", "templateName": "pd-1-template"},
        **gang(2),
        **DEFAULTS,
    },
}


@each_grouped
def test_the_newest_version_shows_the_canonical_fields(
    applied: Mapping[str, Applied], row: Manifest
) -> None:
    newest, *_ = applied[row.file].versions()
    assert newest["spec"] == CANONICAL[row.file]


#: The canonical fields of the manifests of kinds with one version.
PLACES: dict[str, Object] = {
    "5547-4-pod.yaml": {
        "spec.schedulingGroup.podGroupName": (
            "distributed-training-6b9c5-pg-w-distributed-training-7f4d8"
        ),
    },
    "5764-1-job.yaml": {"spec.gangPolicy": {"policy": "JobAsGang"}},
    "5764-3-pod.yaml": {
        "spec.workloadRef": None,
        "spec.schedulingGroup": {"podGroupName": "sleep-gang-job-sleep-gang-job"},
    },
    "6089-1-job.yaml": {
        "spec.scheduling": {
            "schedulingPolicy": {"gang": {}},
            "schedulingConstraints": {"topology": [{"key": "topology.kubernetes.io/zone"}]},
            "disruptionMode": {"all": {}},
        },
    },
    "6089-2-job.yaml": {"spec.scheduling": None},
    "6089-3-jobset.yaml": {
        "spec.scheduling": {"schedulingPolicy": {"basic": {}}},
        "spec.replicatedJobs.0.template.spec.scheduling": None,
        "spec.replicatedJobs.1.template.spec.scheduling": RACK,
    },
    "6089-4-jobset.yaml": {
        "spec.scheduling": {
            "schedulingPolicy": {"basic": {}},
            "replicatedJobPolicies": [{"targetReplicatedJob": "workers", **RACK}],
        },
    },
    "4671-1-pod.yaml": {"spec.schedulingGroup": {"podGroupName": "pg1"}},
    "4671-2-job.yaml": {"spec.template.spec.schedulingGroup": {"podGroupName": "pg1"}},
    "4671-7-pod.yaml": {"spec.schedulingGroup": {"podGroupName": "job-instance-worker-0"}},
}


@pytest.mark.parametrize("file", PLACES)
def test_kinds_with_one_version_show_the_canonical_fields(
    applied: Mapping[str, Applied], file: str
) -> None:
    shown = applied[file].object
    assert {path: dig(shown, path) for path in PLACES[file]} == PLACES[file]


def test_a_pod_without_a_group_gets_one_from_its_template(
    applied: Mapping[str, Applied],
) -> None:
    pod, workload = applied["5764-3-pod.yaml"], applied["5764-2-workload.yaml"]
    name = f"podgroup/{pod.object['spec']['schedulingGroup']['podGroupName']}"
    pod.kubectl("wait", "--for=create", name, WAIT_LIMIT)
    group = pod.kubectl.get(name)
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 10}}
    owner = group["metadata"]["ownerReferences"][0]
    assert owner["uid"] == workload.object["metadata"]["uid"]


@each_version
def test_the_printed_status_can_be_written_in_every_version(
    applied: Mapping[str, Applied], version: str
) -> None:
    group = applied["5832-1-podgroup.yaml"]
    status = yaml.safe_load(group.text)["status"]
    answer = group.kubectl(
        "patch", f"{resource('PodGroup', version)}/pd-1", "--subresource=status",
        "--type=merge", "-p", json.dumps({"status": status}), "--dry-run=server", "-o", "json",
    )  # fmt: skip
    assert json.loads(answer)["status"] == status


@each_grouped
def test_the_output_of_each_version_can_be_created_in_it(
    applied: Mapping[str, Applied], cluster: Kubectl, row: Manifest
) -> None:
    shown = applied[row.file].versions()
    assert [one["apiVersion"] for one in shown] == [f"{GROUP}/{version}" for version in VERSIONS]
    names = [f"{row.file.removesuffix('.yaml')}-{version}" for version in VERSIONS]
    copies = [{**one, "metadata": {"name": name}} for one, name in zip(shown, names, strict=True)]
    elsewhere = replace(cluster, namespace="copies")
    whole = {"apiVersion": "v1", "kind": "List", "items": copies}
    elsewhere("create", "--validate=strict", "-f", "-", text=json.dumps(whole))
    newest = resource(shown[0]["kind"], VERSIONS[0])
    found = read(elsewhere, [f"{newest}/{name}" for name in names])
    assert [one["spec"] for one in found] == [shown[0]["spec"]] * len(VERSIONS)
