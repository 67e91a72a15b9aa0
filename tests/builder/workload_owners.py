"""Builders of Jobs, JobSets and LeaderWorkerSets."""

from __future__ import annotations

from typing import Any

from phalanx.api.wire import Object

POD: Object = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "i"}]}


def job(name: str = "train", *, pod: Object | None = None, meta: Any = None, **spec: Any) -> Object:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "team", "uid": "uid-123", **(meta or {})},
        "spec": {"template": {"spec": {**POD, **(pod or {})}}, **spec},
    }


def replicated_job(
    name: str, replicas: int = 1, *, pod: Object | None = None, **job: Any
) -> Object:
    spec = {"template": {"spec": {"containers": [{"name": "main", "image": "i"}], **(pod or {})}}}
    return {"name": name, "replicas": replicas, "template": {"spec": {**spec, **job}}}


def jobset(*roles: Object, meta: Object | None = None, **spec: Any) -> Object:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "train", "namespace": "team", "uid": "uid-123", **(meta or {})},
        "spec": {"replicatedJobs": list(roles), **spec},
    }


def lws(
    size: int = 4, *, leader: Object | None = None, worker: Object | None = None, **spec: Any
) -> Object:
    template: Object = {"size": size, "workerTemplate": {"spec": worker or {}}}
    if leader is not None:
        template["leaderTemplate"] = {"spec": leader}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "serve", "namespace": "team", "uid": "uid-123"},
        "spec": {"replicas": 3, "leaderWorkerTemplate": template, **spec},
    }
