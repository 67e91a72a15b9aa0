"""Completes the pods of LeaderWorkerSets on creation: what differs between pods of one StatefulSet.

The pods of a StatefulSet have one template, but the leaders of a LeaderWorkerSet belong to
different groups, and workers to different subgroups. The LeaderWorkerSet project completes them in
a webhook for pods; here it is a step of admission, and a pure function of the pod:

    name llm-0-2, labels and annotations of the template
    ─▶ labels worker-index, subgroup-index, subgroup-key; the environment of its containers;
       its PodGroup; affinity to its own group and against other groups in the same domain
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from phalanx.api.leader_worker_sets import (
    EXCLUSIVE_TOPOLOGY_ANNOTATION,
    GROUP_INDEX_LABEL,
    GROUP_KEY_LABEL,
    LEADER_EXCLUDED,
    LEADER_GROUP,
    LEADER_INDEX,
    LEADER_NAME_ANNOTATION,
    LEADER_TPU_ANNOTATION,
    LWS_REVISION_LABEL,
    NAME_LABEL,
    SIZE_ANNOTATION,
    SUBDOMAIN_POLICY_ANNOTATION,
    SUBGROUP_EXCLUSIVE_TOPOLOGY_ANNOTATION,
    SUBGROUP_INDEX_LABEL,
    SUBGROUP_KEY_LABEL,
    SUBGROUP_POLICY_ANNOTATION,
    SUBGROUP_SIZE_ANNOTATION,
    UNIQUE_PER_REPLICA,
    WORKER_INDEX_LABEL,
    WORKLOAD_NAME_ANNOTATION,
    replica_group_name,
    requests_tpus,
    subgroup_of,
)
from phalanx.api.wire import Object

#: The most digits of an index in a name or annotation.
_MAX_DIGITS = 9
_TPU_HOST_NAMES, _TPU_WORKER_ID = "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID"
_TPU_NAME = "TPU_NAME"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class IncompletePod(ValueError):
    """A pod has the label of a LeaderWorkerSet, but lacks what tells its place in a group."""


def is_group_pod(pod: Object) -> bool:
    """Whether a pod belongs to a LeaderWorkerSet."""
    return NAME_LABEL in (pod["metadata"].get("labels") or {})


def complete_pod(pod: Object) -> None:
    """Add labels, environment, PodGroup and affinity to a new pod. Raises IncompletePod."""
    meta = pod["metadata"]
    name, labels = meta.get("name", ""), meta["labels"]
    annotations = meta.get("annotations") or {}
    if SIZE_ANNOTATION not in annotations:
        raise IncompletePod(f"size annotation is unexpectedly missing for pod {name}")
    size = _parse_index(annotations[SIZE_ANNOTATION], f"the size annotation of pod {name}")
    ordinal = _parse_index(name.rpartition("-")[2], f"the ordinal of pod {name}")
    if labels.get(WORKER_INDEX_LABEL) == LEADER_INDEX:
        _complete_leader(pod, labels, annotations, ordinal=ordinal)
    else:
        _complete_worker(pod, labels, annotations, ordinal=ordinal, size=size)
    if SUBGROUP_INDEX_LABEL in labels and SUBGROUP_EXCLUSIVE_TOPOLOGY_ANNOTATION in annotations:
        domain = annotations[SUBGROUP_EXCLUSIVE_TOPOLOGY_ANNOTATION]
        _add_exclusive_affinity(
            pod, SUBGROUP_KEY_LABEL, labels[SUBGROUP_KEY_LABEL], topology=domain
        )
    _join_group(pod, labels, annotations)
    if requests_tpus(pod["spec"]):
        _add_tpu_environment(pod, labels, annotations, size=size)
    _add_environment(pod, labels, size)


def _complete_leader(pod: Object, labels: Object, annotations: Object, *, ordinal: int) -> None:
    meta = pod["metadata"]
    labels.setdefault(GROUP_INDEX_LABEL, str(ordinal))
    labels.setdefault(GROUP_KEY_LABEL, _hash_key(meta["namespace"], meta["name"]))
    if annotations.get(SUBDOMAIN_POLICY_ANNOTATION) == UNIQUE_PER_REPLICA:
        pod["spec"]["subdomain"] = meta["name"]
    if topology := annotations.get(EXCLUSIVE_TOPOLOGY_ANNOTATION):
        _add_exclusive_affinity(pod, GROUP_KEY_LABEL, labels[GROUP_KEY_LABEL], topology=topology)
    has_subgroups = SUBGROUP_SIZE_ANNOTATION in annotations
    if has_subgroups and annotations.get(SUBGROUP_POLICY_ANNOTATION) != LEADER_EXCLUDED:
        labels.setdefault(SUBGROUP_INDEX_LABEL, "0")
        labels.setdefault(SUBGROUP_KEY_LABEL, _hash_key(meta["name"], "0"))


def _complete_worker(
    pod: Object, labels: Object, annotations: Object, *, ordinal: int, size: int
) -> None:
    name = pod["metadata"]["name"]
    labels[WORKER_INDEX_LABEL] = str(ordinal)
    if SUBGROUP_SIZE_ANNOTATION not in annotations:
        return
    what = f"the subgroup size annotation of pod {name}"
    subgroup_size = max(_parse_index(annotations[SUBGROUP_SIZE_ANNOTATION], what), 1)
    subgroup = str(subgroup_of(ordinal, size=size, subgroup_size=subgroup_size))
    labels.setdefault(SUBGROUP_INDEX_LABEL, subgroup)
    key = _hash_key(annotations.get(LEADER_NAME_ANNOTATION, ""), labels[SUBGROUP_INDEX_LABEL])
    labels.setdefault(SUBGROUP_KEY_LABEL, key)


def _join_group(pod: Object, labels: Object, annotations: Object) -> None:
    workload, index = annotations.get(WORKLOAD_NAME_ANNOTATION), labels.get(GROUP_INDEX_LABEL)
    if not workload or not index or pod["spec"].get("schedulingGroup"):
        return
    subgroup = ""
    if SUBGROUP_SIZE_ANNOTATION in annotations:
        subgroup = labels.get(SUBGROUP_INDEX_LABEL, LEADER_GROUP)
    revision = labels.get(LWS_REVISION_LABEL, "")
    group = replica_group_name(workload, index, revision, subgroup=subgroup)
    pod["spec"]["schedulingGroup"] = {"podGroupName": group}


def _add_tpu_environment(pod: Object, labels: Object, annotations: Object, *, size: int) -> None:
    subgroup = labels.get(SUBGROUP_INDEX_LABEL)
    subgroup_size = "0" if subgroup is None else annotations.get(SUBGROUP_SIZE_ANNOTATION, "0")
    place = GroupPlace(
        f"{labels[NAME_LABEL]}-{labels.get(GROUP_INDEX_LABEL, '')}",
        pod["spec"].get("subdomain") or labels[NAME_LABEL],
        worker=int(labels[WORKER_INDEX_LABEL]),
        size=size,
        subgroup=_parse_index(subgroup or "0", "the subgroup index"),
        subgroup_size=_parse_index(subgroup_size, "the subgroup size"),
    )
    add_tpu_variables(pod, place)


def _add_environment(pod: Object, labels: Object, size: int) -> None:
    """Put the variables first: values of the user's variables may refer to them."""
    meta, spec = pod["metadata"], pod["spec"]
    leader = f"{labels[NAME_LABEL]}-{labels.get(GROUP_INDEX_LABEL, '')}"
    domain = f"{spec.get('subdomain') or labels[NAME_LABEL]}.{meta['namespace']}"
    added = [
        {"name": "LWS_LEADER_ADDRESS", "value": f"{leader}.{domain}"},
        {"name": "LWS_GROUP_SIZE", "value": str(size)},
        {"name": "LWS_WORKER_INDEX", "value": labels[WORKER_INDEX_LABEL]},
    ]
    names = {variable["name"] for variable in added}
    for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
        others = [one for one in container.get("env") or () if one.get("name") not in names]
        container["env"] = [*(dict(variable) for variable in added), *others]


def _add_exclusive_affinity(pod: Object, label: str, key: str, *, topology: str) -> None:
    """Require the domain of the own group, and a domain without pods of other groups."""
    affinity = pod["spec"].setdefault("affinity", {})
    near = affinity.setdefault("podAffinity", {}).setdefault(_REQUIRED, [])
    far = affinity.setdefault("podAntiAffinity", {}).setdefault(_REQUIRED, [])
    has_terms = [any(one.get("topologyKey") == topology for one in terms) for terms in (near, far)]
    if all(has_terms):
        return
    own = {"key": label, "operator": "In", "values": [key]}
    others = [{"key": label, "operator": "Exists"}, {**own, "operator": "NotIn"}]
    near.append({"labelSelector": {"matchExpressions": [own]}, "topologyKey": topology})
    far.append({"labelSelector": {"matchExpressions": others}, "topologyKey": topology})


def _hash_key(first: str, second: str) -> str:
    """The key of a group or subgroup: an identifier of the API, not a protection."""
    return hashlib.sha1(f"{first}/{second}".encode(), usedforsecurity=False).hexdigest()


def _parse_index(text: str, what: str) -> int:
    if not text.isdecimal() or not text.isascii() or len(text) > _MAX_DIGITS:
        raise IncompletePod(f"{what} is not a number")
    return int(text)


# ---- the environment of TPU workers --------------------------------------------------------------


class GroupPlace(NamedTuple):
    """The place of a pod in its group: the leader's name and domain, its index, and the sizes.

    A group without subgroups has the `subgroup_size` 0.
    """

    leader: str
    domain: str
    worker: int
    size: int
    subgroup: int = 0
    subgroup_size: int = 0

    def list_peers(self, *, has_leader: bool) -> range:
        """Return the indexes of the TPU workers of its subgroup, or of its group."""
        offset = 0 if has_leader else 1
        if not self.subgroup_size:
            return range(offset, self.size)
        is_leader_extra = (self.size - 1) % self.subgroup_size == 0
        if has_leader and is_leader_extra:
            first = 1 + self.subgroup * self.subgroup_size if self.subgroup else 0
            return range(first, 1 + (self.subgroup + 1) * self.subgroup_size)
        first = offset + self.subgroup * self.subgroup_size
        return range(first, first + self.subgroup_size)


def add_tpu_variables(pod: Object, place: GroupPlace) -> None:
    """Add the variables to the container that requests TPUs, unless the user has set them.

    A TPU worker gets the host names of all TPU workers of its group or subgroup, and its number
    among them. The leader is one of them if it requests TPUs too; its workers know that from an
    annotation, because a pod is completed without reading others.

        size 3, the leader has TPUs     TPU_WORKER_HOSTNAMES=llm-0.llm,llm-0-1.llm,llm-0-2.llm
        size 3, workers only            TPU_WORKER_HOSTNAMES=llm-0-1.llm,llm-0-2.llm
    """
    spec = pod["spec"]
    containers = (*spec.get("containers", ()), *spec.get("initContainers", ()))
    container = next((one for one in containers if requests_tpus({"containers": [one]})), None)
    if container is None:
        return
    present = container.get("env") or []
    if any(one.get("name") in (_TPU_HOST_NAMES, _TPU_WORKER_ID) for one in present):
        return
    annotations = pod["metadata"].get("annotations") or {}
    has_leader = place.worker == 0 or annotations.get(LEADER_TPU_ANNOTATION) == "true"
    peers = place.list_peers(has_leader=has_leader)
    hosts = [
        f"{place.leader}-{index}.{place.domain}" if index else f"{place.leader}.{place.domain}"
        for index in peers
    ]
    container["env"] = [
        *present,
        {"name": _TPU_HOST_NAMES, "value": ",".join(hosts)},
        {"name": _TPU_WORKER_ID, "value": str(place.worker - peers.start)},
        {"name": _TPU_NAME, "value": pod["metadata"]["name"]},
    ]
