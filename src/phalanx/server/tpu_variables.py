"""The environment of TPU workers in the pods of a LeaderWorkerSet, as that project sets it.

A pod that requests TPUs gets the host names of all TPU workers of its group or subgroup, and its
number among them. The leader is one of them if it requests TPUs too; its workers know that from an
annotation, because a pod is completed without reading others.

    size 3, the leader has TPUs     TPU_WORKER_HOSTNAMES=llm-0.llm,llm-0-1.llm,llm-0-2.llm
    size 3, workers only            TPU_WORKER_HOSTNAMES=llm-0-1.llm,llm-0-2.llm
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from phalanx.api.leader_worker_sets import LEADER_TPU_ANNOTATION, requests_tpus
from phalanx.api.wire import Object

_HOST_NAMES, _WORKER_ID, _NAME = "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID", "TPU_NAME"


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
    """Add the variables to the container that requests TPUs, unless the user has set them."""
    container = next(_tpu_containers(pod["spec"]), None)
    if container is None:
        return
    present = container.get("env") or []
    if any(one.get("name") in (_HOST_NAMES, _WORKER_ID) for one in present):
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
        {"name": _HOST_NAMES, "value": ",".join(hosts)},
        {"name": _WORKER_ID, "value": str(place.worker - peers.start)},
        {"name": _NAME, "value": pod["metadata"]["name"]},
    ]


def _tpu_containers(spec: Object) -> Iterator[Object]:
    for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
        if requests_tpus({"containers": [container]}):
            yield container
