"""Manifests that other projects publish: kubectl applies them unchanged and finds them again.

`tests/manifests/` has them; `SOURCES.md` there names their sources. A larger collection, in the
folder that the environment variable MANIFESTS names, is created object by object.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client
from kubernetes.dynamic.exceptions import ConflictError, DynamicApiError, ResourceNotFoundError

from phalanx.api.wire import Object
from tests.cli.commands import WAIT_LIMIT, Kubectl, rows
from tests.conformance.manifests import config_map
from tests.conformance.official_client import connected, discovered
from tools.control_plane import ControlPlane

FOLDER = Path(__file__).parent.parent / "manifests"
PODS: Object = {"spec": {"containers": [{"name": "main", "image": "registry.example/main:1"}]}}


@dataclass(frozen=True, slots=True)
class Manifest:
    """A file and the objects in it."""

    path: Path
    objects: tuple[Object, ...]

    @property
    def names(self) -> list[tuple[str, str]]:
        return [(one["kind"], one["metadata"].get("name", "")) for one in self.objects]

    @property
    def is_applied(self) -> bool:
        """A manifest without a name can only be created."""
        return all("name" in one["metadata"] for one in self.objects)

    @property
    def namespace(self) -> str:
        """The namespace that the manifest names, if any."""
        found: str = self.objects[0]["metadata"].get("namespace", "")
        return found


def manifest(path: Path) -> Manifest:
    return Manifest(path, tuple(yaml.safe_load_all(path.read_text())))


ALL = [manifest(path) for path in sorted(FOLDER.rglob("*.yaml"))]


def batches() -> Iterator[list[Manifest]]:
    """All applied manifests, in as few lists as possible without a repeated name in one."""
    left = [one for one in ALL if one.is_applied]
    while left:
        batch: list[Manifest] = []
        for one in left:
            taken = [name for other in batch for name in other.names]
            alike = not batch or one.namespace == batch[0].namespace
            if alike and not any(name in taken for name in one.names):
                batch.append(one)
        left = [one for one in left if one not in batch]
        yield batch


def contains(stored: Any, said: Any) -> bool:
    """Whether an object has all fields of the manifest.

    Numbers may have become strings; the end of a string at the end of a file depends on the YAML
    reader.
    """
    if isinstance(said, dict):
        return all(key in stored and contains(stored[key], value) for key, value in said.items())
    if isinstance(said, list):
        return len(stored) == len(said) and all(map(contains, stored, said))
    return str(stored).rstrip() == str(said).rstrip()


def items(kubectl: Kubectl, *args: str) -> list[Object]:
    """The objects that kubectl prints."""
    found = json.loads(kubectl(*args, "-o", "json"))
    listed: list[Object] = found["items"] if found["kind"] == "List" else [found]
    return listed


def _own_version(meta: Object) -> object:
    """What a change by a user changes: generation, labels and annotations, or the version."""
    if "generation" not in meta:
        return meta["resourceVersion"]
    return meta["generation"], meta.get("labels"), meta.get("annotations")


@pytest.mark.mostly_slow(quick_every=3)
@pytest.mark.parametrize("batch", list(batches()), ids=lambda batch: batch[0].path.stem)
def test_manifests_are_applied_once_and_stored_as_written(
    kubectl: Kubectl, batch: list[Manifest]
) -> None:
    there = replace(kubectl, namespace=batch[0].namespace or kubectl.namespace)
    files = [word for one in batch for word in ("-f", str(one.path))]
    first = items(there, "apply", "--validate=strict", *files)
    again = items(there, "apply", "--validate=strict", *files)
    found = items(there, "get", *files)
    there("delete", "--wait=true", *files)
    # Controllers write the status meanwhile; an object with a generation shows its own changes.
    versions = [[_own_version(one["metadata"]) for one in seen] for seen in (first, again)]
    assert versions[0] == versions[1]
    said = [obj for one in batch for obj in one.objects]
    assert [one["metadata"]["name"] for one in found] == [one["metadata"]["name"] for one in said]
    assert [
        one for one, expected in zip(found, said, strict=True) if not contains(one, expected)
    ] == []


@pytest.mark.parametrize("one", [m for m in ALL if not m.is_applied], ids=lambda one: one.path.stem)
def test_a_name_is_generated_on_creation(kubectl: Kubectl, one: Manifest) -> None:
    (made,) = items(kubectl, "create", "-f", str(one.path))
    (expected,) = one.objects
    assert made["metadata"]["name"].startswith(expected["metadata"]["generateName"])
    assert contains(made["spec"], expected["spec"])


def test_a_leader_worker_set_is_scaled_and_found_by_its_short_name(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", str(FOLDER / "lws/sample/lws.yaml"))
    name = "leaderworkerset-sample"
    kubectl("scale", f"lws/{name}", "--replicas=5")
    kubectl("wait", "--for=jsonpath={.status.updatedReplicas}=5", f"lws/{name}", "--timeout=60s")
    ((shown, _, desired, updated, _),) = rows(kubectl("get", "lws"))
    assert (shown, desired, updated) == (name, "5", "5")


@pytest.mark.slow
def test_the_dependents_of_a_job_set_are_deleted_with_it(kubectl: Kubectl) -> None:
    job_set: Object = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "a"},
        "spec": {"replicatedJobs": [{"name": "w", "template": {"spec": {"template": PODS}}}]},
    }  # fmt: skip
    kubectl.apply(job_set)
    uid = kubectl.get("jobset/a")["metadata"]["uid"]
    owned = config_map("owned", x="1")
    owned["metadata"]["ownerReferences"] = [
        {"apiVersion": job_set["apiVersion"], "kind": "JobSet", "name": "a", "uid": uid}
    ]
    kubectl.apply(owned, config_map("free", x="1"))
    kubectl("delete", "jobset/a")
    kubectl("wait", "--for=delete", "configmap/owned", WAIT_LIMIT)
    assert kubectl("get", "configmap/free", "-o", "name") == "configmap/free\n"


#: Not manifests: every field filled with a name of its type, for tests of serialization.
FIXTURES = "k8s-api-testdata"
#: Times that a tool puts into its own test data.
PLACEHOLDER = "<Now>"


def published_objects() -> Iterator[tuple[Path, Object]]:
    """The objects of the collection, with their files."""
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "manifests"
    folder = Path(os.environ.get("MANIFESTS", beside))
    if not folder.is_dir():
        pytest.skip(f"no manifests in {folder}: name their folder with MANIFESTS")
    for path in sorted(folder.rglob("*.yaml")):
        text = path.read_text()
        if FIXTURES in path.parts or PLACEHOLDER in text:
            continue
        for document in yaml.safe_load_all(text):
            items = document.get("items", [document]) if isinstance(document, dict) else ()
            yield from ((path, one) for one in items if one and "apiVersion" in one)


@pytest.mark.slow
def test_every_published_manifest_of_a_served_kind_is_taken(tmp_path: Path) -> None:
    # A control plane of its own: cluster-scoped objects and pods of unknown nodes stay behind.
    data = ("--data", str(tmp_path / "data"), "--nodes", "3")
    with ControlPlane(*data) as plane, connected(plane.kubeconfig) as api:
        dynamic = discovered(api, tmp_path / "discovery.json")
        core, refused, taken, spaces = client.CoreV1Api(api), [], 0, dict[Path, str]()
        for path, obj in published_objects():
            try:
                kind = dynamic.resources.get(api_version=obj["apiVersion"], kind=obj["kind"])
            except ResourceNotFoundError:
                continue  # A kind of the project's own definitions, or one that is removed.
            if path not in spaces:
                spaces[path] = f"manifests-{len(spaces)}"
                meta = client.V1ObjectMeta(name=spaces[path])
                core.create_namespace(client.V1Namespace(metadata=meta))
            obj["metadata"].pop("namespace", None)
            space = {"namespace": spaces[path]} if kind.namespaced else {}
            try:
                dynamic.create(kind, body=obj, **space)
                taken += 1
            except ConflictError:
                taken += 1  # Cluster-scoped, and in two files.
            except DynamicApiError as error:
                refused.append((str(path), obj["kind"], str(error)))
    assert refused == []
    assert taken > 50
