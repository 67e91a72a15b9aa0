"""LeaderWorkerSet as our components read it, and the labels and annotations of what it creates.

    LeaderWorkerSet llm, size 3     StatefulSet llm          the leaders: Pods llm-0, llm-1, …
                                    StatefulSet llm-0        the workers of llm-0: llm-0-1, llm-0-2
                                    PodGroup <workload>-0-<revision>     leader and workers of llm-0

The names of the groups of a replica follow from annotations and labels of its pods, so that the
server can name them when a pod is created (`server/leader_worker_set_pods.py`). Partial and frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from phalanx.api.meta import Condition, ObjectMeta

_PREFIX = "leaderworkerset.sigs.k8s.io/"
#: Labels of pods and StatefulSets.
NAME_LABEL = f"{_PREFIX}name"
GROUP_INDEX_LABEL = f"{_PREFIX}group-index"
GROUP_KEY_LABEL = f"{_PREFIX}group-key"
WORKER_INDEX_LABEL = f"{_PREFIX}worker-index"
SUBGROUP_INDEX_LABEL = f"{_PREFIX}subgroup-index"
SUBGROUP_KEY_LABEL = f"{_PREFIX}subgroup-key"
LWS_REVISION_LABEL = f"{_PREFIX}template-revision-hash"
#: Annotations of pods.
SIZE_ANNOTATION = f"{_PREFIX}size"
LEADER_NAME_ANNOTATION = f"{_PREFIX}leader-name"
SUBGROUP_SIZE_ANNOTATION = f"{_PREFIX}subgroup-size"
SUBGROUP_POLICY_ANNOTATION = f"{_PREFIX}subgroup-policy-type"
SUBDOMAIN_POLICY_ANNOTATION = f"{_PREFIX}subdomainPolicy"
#: On a worker whose leader requests TPUs.
LEADER_TPU_ANNOTATION = f"{_PREFIX}leader-requests-tpus"
#: On a pod: the first part of the names of its groups. A pod without it belongs to no PodGroup.
WORKLOAD_NAME_ANNOTATION = f"{_PREFIX}workload-name"
#: On the StatefulSet of the leaders: the replicas of the LeaderWorkerSet that it was made for.
REPLICAS_ANNOTATION = f"{_PREFIX}replicas"
#: On a LeaderWorkerSet and its pods: the label of nodes whose domains groups do not share.
EXCLUSIVE_TOPOLOGY_ANNOTATION = f"{_PREFIX}exclusive-topology"
SUBGROUP_EXCLUSIVE_TOPOLOGY_ANNOTATION = f"{_PREFIX}subgroup-exclusive-topology"

LEADER_INDEX = "0"
_TPU_RESOURCE = "google.com/tpu"
LEADER_EXCLUDED = "LeaderExcluded"
UNIQUE_PER_REPLICA = "UniquePerReplica"
LEADER_READY = "LeaderReady"
RECREATE_ON_RESTART, RECREATE_AFTER_START = "RecreateGroupOnPodRestart", "RecreateGroupAfterStart"
#: The place of the subgroup's number in the name of the group of a leader outside all subgroups.
LEADER_GROUP = "leader"


class LwsRollingUpdate(Struct, frozen=True, rename="camel"):
    """The bounds of a rolling update of groups: numbers, or "30%"."""

    partition: int = 0
    max_unavailable: int | str = 1
    max_surge: int | str = 0


class LwsRolloutStrategy(Struct, frozen=True, rename="camel"):
    """How groups follow a change of their template."""

    type: str = "RollingUpdate"
    rolling_update_configuration: LwsRollingUpdate = LwsRollingUpdate()


class LeaderWorkerSetSpec(Struct, frozen=True, rename="camel"):
    """The spec of a LeaderWorkerSet. Its templates are only copied, so they stay JSON."""

    replicas: int = 1
    leader_worker_template: dict[str, Any] = {}
    rollout_strategy: LwsRolloutStrategy = LwsRolloutStrategy()
    startup_policy: str = "LeaderCreated"
    network_config: dict[str, Any] | None = None
    scheduling: dict[str, Any] | None = None


class LeaderWorkerSetStatus(Struct, frozen=True, rename="camel"):
    """The counts and conditions that the controller has written."""

    replicas: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0
    observed_generation: int = 0
    hpa_pod_selector: str = ""
    conditions: tuple[Condition, ...] = ()


class LeaderWorkerSet(Struct, frozen=True):
    """A LeaderWorkerSet."""

    metadata: ObjectMeta
    spec: LeaderWorkerSetSpec = LeaderWorkerSetSpec()
    status: LeaderWorkerSetStatus = LeaderWorkerSetStatus()


def requests_tpus(pod_spec: Mapping[str, Any]) -> bool:
    """Whether a container of a pod requests TPUs.

    >>> requests_tpus({"containers": [{"resources": {"limits": {"google.com/tpu": "4"}}}]})
    True
    """
    containers = (*(pod_spec.get("containers") or ()), *(pod_spec.get("initContainers") or ()))
    resources = [container.get("resources") or {} for container in containers]
    amounts = (one.get(part) or {} for one in resources for part in ("limits", "requests"))
    return any(str(one.get(_TPU_RESOURCE, "0")) != "0" for one in amounts)


def replica_group_name(workload: str, index: str, revision: str, *, subgroup: str = "") -> str:
    """Return the name of the group of a replica, or of one of its subgroups.

    >>> replica_group_name("llm-5c9b8d", "0", "7f4d")
    'llm-5c9b8d-0-7f4d'
    >>> replica_group_name("llm-5c9b8d", "0", "7f4d", subgroup="1")
    'llm-5c9b8d-0-1-7f4d'
    """
    return "-".join(part for part in (workload, index, subgroup, revision) if part)


def subgroup_of(worker: int, *, size: int, subgroup_size: int) -> int:
    """Return the subgroup of a worker.

    A leader that does not fill a place in a subgroup is an extra member of the first one.

    >>> [subgroup_of(worker, size=5, subgroup_size=2) for worker in (1, 2, 3, 4)]
    [0, 0, 1, 1]
    >>> [subgroup_of(worker, size=4, subgroup_size=2) for worker in (1, 2, 3)]
    [0, 1, 1]
    """
    is_leader_extra = (size - 1) % subgroup_size == 0
    return (worker - 1 if is_leader_extra else worker) // subgroup_size
