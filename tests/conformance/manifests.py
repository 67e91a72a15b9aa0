"""Manifests for kubectl, in one line each."""

from __future__ import annotations

from phalanx.api.wire import Object
from tests.cli.commands import Kubectl

IMAGE = "registry.example/main:1"


def here(kubectl: Kubectl, obj: Object) -> Object:
    """The same object in the namespace of the test."""
    obj["metadata"]["namespace"] = kubectl.namespace
    return obj


def config_map(name: str, labels: Object | None = None, **data: str) -> Object:
    """A config map with these data; empty fields are left out, as the server does."""
    meta = {"name": name, "labels": labels} if labels else {"name": name}
    made: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
    return {**made, "data": data} if data else made


def job(name: str, **spec: object) -> Object:
    """A Job that no controller of Phalanx manages."""
    template = {"restartPolicy": "Never", "containers": [{"name": "main", "image": IMAGE}]}
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {"managedBy": "example.com/other", "template": {"spec": template}, **spec},
    }  # fmt: skip
