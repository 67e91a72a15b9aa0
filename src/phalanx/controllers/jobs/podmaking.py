"""The pods of a Job: its template, filled in."""

from __future__ import annotations

from typing import Any

from phalanx.api.batch import Job
from phalanx.api.kinds import JOB
from phalanx.api.wire import Object
from phalanx.controllers.jobs.roll import INDEX, TRACKING
from phalanx.controllers.jobs.staffing import Order

_LONGEST_PREFIX = 58
_VARIABLE = "JOB_COMPLETION_INDEX"


def new_pod(job: Job, order: Order, group: str) -> Object:
    """A pod of a Job, of an index if it is ordered so, in a group if there is one."""
    template, meta = job.spec.template, job.metadata
    outer, spec = template.get("metadata") or {}, dict(template.get("spec") or {})
    annotations, labels = dict(outer.get("annotations") or {}), dict(outer.get("labels") or {})
    prefix = f"{meta.name}-"
    if order.index is not None:
        number = str(order.index)
        annotations |= {INDEX: number, **dict(order.marks)}
        labels[INDEX] = number
        prefix = f"{meta.name}-{number}-"[:_LONGEST_PREFIX]
        spec |= _numbered(spec)
        spec.setdefault("hostname", f"{meta.name}-{number}")
    if group and "schedulingGroup" not in spec:
        spec["schedulingGroup"] = {"podGroupName": group}
    return {
        "metadata": {
            "generateName": prefix, "namespace": meta.namespace, "labels": labels,
            "annotations": annotations,
            "finalizers": [*(outer.get("finalizers") or ()), TRACKING],
            "ownerReferences": [owner(job)],
        },
        "spec": spec,
    }  # fmt: skip


def owner(job: Job) -> Object:
    """The Job as the controller of what it makes."""
    return {
        "apiVersion": JOB.api_version, "kind": JOB.name, "name": job.metadata.name,
        "uid": job.metadata.uid, "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip


def _numbered(spec: Object) -> Object:
    """The containers, each told the index of its pod."""
    return {
        kind: [_told(container) for container in spec[kind]]
        for kind in ("initContainers", "containers")
        if spec.get(kind)
    }


def _told(container: dict[str, Any]) -> dict[str, Any]:
    env = container.get("env") or []
    if any(one.get("name") == _VARIABLE for one in env):
        return container
    source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
    return {**container, "env": [*env, {"name": _VARIABLE, "valueFrom": source}]}
