"""Informers of every kind at once: caches that the official client fills by list and watch."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from kubernetes.dynamic import Resource

from phalanx.api.wire import Object
from tests.conformance.official_client import discovered

#: Seconds after which every watch must have delivered what a list shows.
SETTLED_WITHIN = 60
#: Kinds whose objects change all the time; their caches are compared by name only, as all are.
UNSTABLE = ("Event",)
TEMPLATE: Object = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {"containers": [{"name": "main", "image": "registry.example/main:1"}]},
}
SELECTOR: Object = {"matchLabels": {"app": "web"}}
JOB: Object = {"template": {"spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}}
#: Objects whose controllers create many others.
OBJECTS: list[tuple[str, str, Object]] = [
    ("apps/v1", "Deployment", {"replicas": 2, "selector": SELECTOR, "template": TEMPLATE}),
    ("apps/v1", "DaemonSet", {"selector": SELECTOR, "template": TEMPLATE}),
    ("apps/v1", "StatefulSet", {"serviceName": "s", "selector": SELECTOR, "template": TEMPLATE}),
    ("batch/v1", "Job", JOB),
    ("v1", "Service", {"selector": {"app": "web"}, "ports": [{"port": 80}]}),
    ("policy/v1", "PodDisruptionBudget", {"minAvailable": 1, "selector": SELECTOR}),
]
#: Kinds of which these objects lead to new ones.
EXPECTED = {
    "ControllerRevision", "DaemonSet", "Deployment", "EndpointSlice", "Endpoints", "IPAddress",
    "Job", "Pod", "PodDisruptionBudget", "PodGroup", "ReplicaSet", "Service", "StatefulSet",
    "Workload",
}  # fmt: skip


@dataclass(slots=True)
class KindCache:
    """The names of one kind's objects, by list and watch."""

    kind: Any
    names: set[tuple[str, str]] = field(default_factory=set)
    added: int = 0
    error: str = ""

    def list(self, api: Any) -> str:
        """Fill the cache; return the revision to watch from."""
        answer = json.loads(api.get(self.kind, serialize=False).data)
        self.names = {key(item) for item in answer.get("items") or ()}
        revision: str = answer["metadata"]["resourceVersion"]
        return revision

    def watch(self, api: Any, revision: str) -> None:
        """Follow changes until the connection ends."""
        try:
            for event in api.watch(self.kind, resource_version=revision, timeout=SETTLED_WITHIN):
                found = key(event["raw_object"])
                if event["type"] == "DELETED":
                    self.names.discard(found)
                else:
                    self.added += found not in self.names
                    self.names.add(found)
        except Exception as error:
            self.error = repr(error)


def key(obj: Object) -> tuple[str, str]:
    meta = obj["metadata"]
    return meta.get("namespace", ""), meta["name"]


def start_informers(api: Any, kinds: list[Any]) -> list[KindCache]:
    """Caches of all kinds, each with a watch of its own."""
    caches = [KindCache(kind) for kind in kinds]
    for cache in caches:
        arguments = (api, cache.list(api))
        threading.Thread(target=cache.watch, args=arguments, daemon=True).start()
    return caches


@pytest.mark.slow
def test_informers_of_every_kind_follow_the_cluster(
    api: client.ApiClient, namespace: str, tmp_path: Path
) -> None:
    dynamic = discovered(api, tmp_path / "discovery.json")
    every = [kind for rows in dynamic.resources for kind in rows if type(kind) is Resource]
    kinds = [kind for kind in every if {"list", "watch"} <= set(kind.verbs)]
    assert len(kinds) > 60
    caches = start_informers(dynamic, kinds)
    for api_version, name, spec in OBJECTS:
        obj = {
            "apiVersion": api_version, "kind": name, "spec": spec,
            "metadata": {"name": name.lower(), "labels": {"app": "web"}},
        }  # fmt: skip
        found = dynamic.resources.get(api_version=api_version, kind=name)
        dynamic.create(found, body=obj, namespace=namespace)
    pause, seen = threading.Event(), set[str]()
    for _ in range(SETTLED_WITHIN * 2):
        seen = {cache.kind.kind for cache in caches if cache.added}
        if seen >= EXPECTED:
            break
        pause.wait(0.5)
    assert seen >= EXPECTED
    assert {cache.kind.kind: cache.error for cache in caches if cache.error} == {}
    # Each cache has what a new list of its kind shows, as soon as nothing is under way.
    different: list[str] = []
    for _ in range(SETTLED_WITHIN):
        different = []
        for cache in caches:
            fresh = KindCache(cache.kind)
            fresh.list(dynamic)
            if fresh.names != cache.names and cache.kind.kind not in UNSTABLE:
                different.append(cache.kind.kind)
        if not different:
            break
        pause.wait(0.5)
    assert different == []
