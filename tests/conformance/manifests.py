"""Manifests as kubectl is given them, in one line each."""

from __future__ import annotations

from phalanx.api.wire import Object
from tests.cli.commands import Kubectl

IMAGE = "registry.example/main:1"


def here(kubectl: Kubectl, obj: Object) -> Object:
    """The same object in the namespace of the test."""
    obj["metadata"]["namespace"] = kubectl.namespace
    return obj


def config_map(name: str, labels: Object | None = None, **data: str) -> Object:
    """A config map of these data; what is empty is left out, as the server leaves it out."""
    meta = {"name": name, "labels": labels} if labels else {"name": name}
    made: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
    return {**made, "data": data} if data else made


def job(name: str, **spec: object) -> Object:
    """A job of one container that no controller of ours looks after."""
    template = {"restartPolicy": "Never", "containers": [{"name": "main", "image": IMAGE}]}
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {"managedBy": "example.com/nobody", "template": {"spec": template}, **spec},
    }  # fmt: skip
