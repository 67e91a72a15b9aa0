"""Builds the objects of a JobSet: Jobs, the headless Service, shared volume claims.

The name of a Job is `<jobset>-<replicated job>-<index>`, in every attempt. Jobs and their pods
carry the same labels and annotations, by which programs find their place in the JobSet. A Job never
has scheduling fields of its own: they are compiled into the Workload of the JobSet, and its pods
name the PodGroup.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from copy import deepcopy

from phalanx.api.job_sets import (
    COORDINATOR,
    EXCLUSIVE_TOPOLOGY,
    GLOBAL_REPLICAS,
    GROUP_NAME,
    GROUP_REPLICAS,
    JOB_GLOBAL_INDEX,
    JOB_GROUP_INDEX,
    JOB_INDEX,
    JOB_KEY,
    JOB_RESTART_ATTEMPT,
    JOB_SET_NAME,
    JOB_SET_UID,
    NAMESPACED_JOB,
    NO_SCHEDULE_TAINT,
    NODE_SELECTOR_STRATEGY,
    REPLICATED_JOB_NAME,
    REPLICATED_JOB_REPLICAS,
    RESTART_ATTEMPT,
    JobSet,
    ReplicatedJobSpec,
)
from phalanx.api.kinds import JOB, JOB_SET, PERSISTENT_VOLUME_CLAIM, SERVICE
from phalanx.api.validation.pod_template import claim_template_name
from phalanx.api.wire import Object
from phalanx.builder.ownership import Link
from phalanx.controllers.job_sets.child_jobs import count_own_restarts
from phalanx.controllers.pod_ownership import controller_reference

#: Fields of a Job that the Workload of the JobSet replaces.
_COMPILED_FIELDS = ("scheduling", "gangPolicy")


def job_name(job_set: JobSet, role: ReplicatedJobSpec, index: int) -> str:
    """Return the name of a Job."""
    return f"{job_set.metadata.name}-{role.name}-{index}"


def coordinator_endpoint(job_set: JobSet) -> str:
    """Return the stable address of the coordinator pod; "" if the JobSet has none."""
    wanted = job_set.spec.coordinator
    if wanted is None:
        return ""
    host = f"{job_set.metadata.name}-{wanted.replicated_job}-{wanted.job_index}-{wanted.pod_index}"
    return f"{host}.{job_set.subdomain}"


def job_labels(job_set: JobSet, role: ReplicatedJobSpec, index: int) -> dict[str, str]:
    """Return the labels of a Job and its pods; the same as annotations."""
    roles = job_set.spec.replicated_jobs
    before = roles[: roles.index(role)]
    name = f"{job_set.metadata.namespace}/{job_name(job_set, role, index)}"
    values: dict[str, object] = {
        JOB_SET_NAME: job_set.metadata.name,
        JOB_SET_UID: job_set.metadata.uid,
        REPLICATED_JOB_NAME: role.name,
        GROUP_NAME: role.group_name,
        RESTART_ATTEMPT: job_set.status.restarts,
        JOB_RESTART_ATTEMPT: count_own_restarts(job_set, role.name, index),
        REPLICATED_JOB_REPLICAS: role.replicas,
        GLOBAL_REPLICAS: sum(one.replicas for one in roles),
        JOB_INDEX: index,
        JOB_KEY: hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest(),
        JOB_GLOBAL_INDEX: sum(one.replicas for one in before) + index,
        GROUP_REPLICAS: sum(one.replicas for one in roles if one.group_name == role.group_name),
        JOB_GROUP_INDEX: index
        + sum(one.replicas for one in before if one.group_name == role.group_name),
    }
    if endpoint := coordinator_endpoint(job_set):
        values[COORDINATOR] = endpoint
    return {name: str(value) for name, value in values.items()}


def build_job(
    job_set: JobSet,
    role: ReplicatedJobSpec,
    index: int,
    *,
    group: str,
    link: Link | None = None,
) -> Object:
    """Build a Job; `group` is the PodGroup that its pods name ("" for none).

    `link` is the template of that group in the Workload of a parent: the Job carries it too.
    """
    meta, labels = job_set.metadata, job_labels(job_set, role, index)
    exclusive = exclusive_annotations(job_set, role)
    template = deepcopy(role.template)
    spec = {
        name: value
        for name, value in (template.get("spec") or {}).items()
        if name not in _COMPILED_FIELDS
    }
    spec["suspend"] = job_set.spec.suspend
    pods = spec.setdefault("template", {})
    pod_meta, pod_spec = pods.setdefault("metadata", {}), pods.setdefault("spec", {})
    job_meta = template.get("metadata") or {}
    for one in (job_meta, pod_meta):
        one["labels"] = {**(one.get("labels") or {}), **labels}
        one["annotations"] = {**(one.get("annotations") or {}), **exclusive, **labels}
    if link is not None:
        job_meta["annotations"] |= link.annotations()
    if job_set.spec.network.enable_dns_hostnames:
        pod_spec["subdomain"] = job_set.subdomain
    if group:
        pod_spec["schedulingGroup"] = {"podGroupName": group}
    _add_claim_volumes(job_set, pod_spec)
    if NODE_SELECTOR_STRATEGY in exclusive:
        _select_labelled_nodes(job_set, role, index, pod_spec=pod_spec)
    elif EXCLUSIVE_TOPOLOGY in exclusive:
        _exclude_other_jobs(exclusive[EXCLUSIVE_TOPOLOGY], labels[JOB_KEY], pod_spec)
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.name,
        "metadata": {
            "name": job_name(job_set, role, index),
            "namespace": meta.namespace,
            "labels": job_meta["labels"],
            "annotations": job_meta["annotations"],
            "ownerReferences": [controller_reference(JOB_SET, job_set.metadata)],
        },
        "spec": spec,
    }


def exclusive_annotations(job_set: JobSet, role: ReplicatedJobSpec) -> dict[str, str]:
    """Return the annotations about exclusive placement: of the JobSet, or of the role instead."""
    own = (role.template.get("metadata") or {}).get("annotations") or {}
    found: dict[str, str] = {}
    for given in (job_set.metadata.annotations, own):
        if EXCLUSIVE_TOPOLOGY in given:
            names = (EXCLUSIVE_TOPOLOGY, NODE_SELECTOR_STRATEGY)
            found |= {name: given[name] for name in names if name in given}
    return found


def _select_labelled_nodes(
    job_set: JobSet, role: ReplicatedJobSpec, index: int, *, pod_spec: Object
) -> None:
    """Let pods run only on nodes that were labelled, and tainted, for their Job beforehand."""
    label = f"{job_set.metadata.namespace}_{job_name(job_set, role, index)}"
    pod_spec["nodeSelector"] = {**(pod_spec.get("nodeSelector") or {}), NAMESPACED_JOB: label}
    toleration = {"key": NO_SCHEDULE_TAINT, "operator": "Exists", "effect": "NoSchedule"}
    pod_spec["tolerations"] = [*(pod_spec.get("tolerations") or ()), toleration]


def _exclude_other_jobs(topology_key: str, job_key: str, pod_spec: Object) -> None:
    """Keep pods of other Jobs with exclusive placement out of the domain, in both directions.

    The PodGroup keeps the pods of this Job in one domain.
    """
    term = {
        "labelSelector": {
            "matchExpressions": [
                {"key": JOB_KEY, "operator": "Exists"},
                {"key": JOB_KEY, "operator": "NotIn", "values": [job_key]},
            ]
        },
        "topologyKey": topology_key,
        "namespaceSelector": {},
    }
    affinity = pod_spec.setdefault("affinity", {}).setdefault("podAntiAffinity", {})
    field = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity[field] = [*(affinity.get(field) or ()), term]


def build_service(job_set: JobSet) -> Object:
    """Build the headless Service that gives pods their host names."""
    return {
        "apiVersion": SERVICE.api_version,
        "kind": SERVICE.name,
        "metadata": {
            "name": job_set.subdomain,
            "namespace": job_set.metadata.namespace,
            "ownerReferences": [controller_reference(JOB_SET, job_set.metadata)],
        },
        "spec": {
            "clusterIP": "None",
            "selector": {JOB_SET_NAME: job_set.metadata.name},
            "publishNotReadyAddresses": job_set.spec.network.publish_not_ready_addresses,
        },
    }


def claim_templates(job_set: JobSet) -> Iterator[tuple[Object, str]]:
    """Yield each template of a shared volume claim, with what becomes of it: Delete or Retain."""
    for policy in job_set.spec.volume_claim_policies:
        retention = (policy.get("retentionPolicy") or {}).get("whenDeleted", "Delete")
        for template in policy.get("templates") or ():
            yield template, retention


def claim_name(job_set: JobSet, template: Object) -> str:
    """Return the name of a shared volume claim."""
    return f"{claim_template_name(template)}-{job_set.metadata.name}"


def build_claim(job_set: JobSet, template: Object, retention: str) -> Object:
    """Build a shared volume claim; one that is retained has no owner."""
    owners = [controller_reference(JOB_SET, job_set.metadata)]
    owned = {"ownerReferences": owners} if retention == "Delete" else {}
    meta = template.get("metadata") or {}
    labels = {**(meta.get("labels") or {}), JOB_SET_NAME: job_set.metadata.name}
    annotations = {"annotations": dict(meta["annotations"])} if meta.get("annotations") else {}
    return {
        "apiVersion": PERSISTENT_VOLUME_CLAIM.api_version,
        "kind": PERSISTENT_VOLUME_CLAIM.name,
        "metadata": {
            "name": claim_name(job_set, template),
            "namespace": job_set.metadata.namespace,
            "labels": labels,
            **annotations,
            **owned,
        },
        "spec": deepcopy(template.get("spec") or {}),
    }


def _add_claim_volumes(job_set: JobSet, pod_spec: Object) -> None:
    """Add the volumes of shared claims that a container of the pods mounts."""
    containers = [*(pod_spec.get("initContainers") or ()), *(pod_spec.get("containers") or ())]
    mounted = {mount.get("name") for one in containers for mount in one.get("volumeMounts") or ()}
    volumes = [
        {
            "name": claim_template_name(template),
            "persistentVolumeClaim": {"claimName": claim_name(job_set, template)},
        }
        for template, _ in claim_templates(job_set)
        if claim_template_name(template) in mounted
    ]
    if volumes:
        pod_spec["volumes"] = [*(pod_spec.get("volumes") or ()), *volumes]


def merge_for_resume(old: Object, role: ReplicatedJobSpec) -> Object:
    """Return the patch that resumes a suspended Job whose pods have the template `old`.

    Labels, annotations, node selectors, tolerations and scheduling gates may have changed while the
    JobSet was suspended, such as by a queue that admitted it to certain nodes.
    """
    template = (role.template.get("spec") or {}).get("template") or {}
    now_meta, now_spec = template.get("metadata") or {}, template.get("spec") or {}
    old_spec = old.get("spec") or {}
    change: Object = {}
    for field in ("labels", "annotations"):
        if now_meta.get(field):
            change.setdefault("metadata", {})[field] = dict(now_meta[field])
    spec: Object = {}
    if now_spec.get("nodeSelector"):
        spec["nodeSelector"] = dict(now_spec["nodeSelector"])
    missing = [
        one
        for one in now_spec.get("tolerations") or ()
        if one not in (old_spec.get("tolerations") or ())
    ]
    if missing:
        spec["tolerations"] = [*(old_spec.get("tolerations") or ()), *missing]
    gates = now_spec.get("schedulingGates") or []
    if gates != (old_spec.get("schedulingGates") or []):
        spec["schedulingGates"] = gates or None
    if spec:
        change["spec"] = spec
    return {"spec": {"suspend": False, **({"template": change} if change else {})}}
