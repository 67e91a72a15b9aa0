"""What the cache knows about one node (NodeInfo), one pod (PodState) and assumed claims.

AssumedClaims holds what is assumed for the claims of pods until the API shows it. An assumption
ends with the first of these:

    the claim is observed with its devices or volume, or is gone    `end_claim`
    the bind of the pod has failed, or the pod is gone              `end_pod`

That the pod is observed on a node does not end it. The claim may be observed later than the pod,
and another client may have bound the pod, so that the bind of this scheduler fails afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from phalanx.api.core import Node, Pod
from phalanx.api.meta import Key, find_condition, parse_timestamp
from phalanx.api.scheduling import DISRUPTION_TARGET
from phalanx.api.storage import volume_keys_of
from phalanx.scheduler.cluster.peer_constraints import Labels
from phalanx.scheduler.cluster.pod_index import MAX_OVERDUE_SECONDS, AssignedPod
from phalanx.scheduler.cluster.pod_shape import HostPorts, PodShape, shape_of
from phalanx.scheduler.cluster.snapshot import NodeLoads
from phalanx.scheduler.devices.state import claim_keys_of

#: The reason of the DisruptionTarget condition of victims of preemption.
_PREEMPTION_REASON = "PreemptionByScheduler"


@dataclass(slots=True)
class NodeInfo:
    """A node and its pods. `node` is None while only pods that are bound to the name are known."""

    node: Node | None
    allocatable: list[int]
    requested: list[int]
    nonzero_requested: list[int]
    pods: dict[Key, PodShape] = field(default_factory=dict)
    #: The host ports of the pods that use any.
    ports_by_pod: dict[Key, HostPorts] = field(default_factory=dict)

    @property
    def used_ports(self) -> HostPorts:
        """The host ports in use."""
        return tuple(port for ports in self.ports_by_pod.values() for port in ports)

    @property
    def loads(self) -> NodeLoads:
        """The row of the node in a snapshot."""
        ports = self.used_ports if self.ports_by_pod else ()
        return self.allocatable, self.requested, self.nonzero_requested, ports


class PodState(Struct, frozen=True, gc=False):
    """A pod that has not ended. `node` is "" while the pod is pending."""

    key: Key
    uid: str
    node: str
    shape: PodShape
    labels: Labels
    #: The PodGroup that the pod names.
    group: Key | None
    priority: int
    start_time: str
    terminating: bool
    assumed: bool = False
    #: The nominated node, and whether the API does not show the nomination yet.
    nominated_node: str = ""
    is_nomination_unreported: bool = False
    #: Whether the nomination does not count because its entity cannot be attempted yet.
    is_nomination_withheld: bool = False
    #: Whether the pod is a victim whose eviction the API does not show yet.
    evicting: bool = False
    #: The claims that the pod names.
    claim_keys: tuple[Key, ...] = ()
    #: The PersistentVolumeClaims that the pod uses.
    volume_keys: tuple[Key, ...] = ()
    #: Until when it counts as leaving, and whether it was preempted, once it terminates.
    leaves_by: float = 0.0
    preempted: bool = False
    #: How long it may terminate once it is deleted.
    grace_seconds: int = 0

    @property
    def live_group(self) -> Key | None:
        """The PodGroup that counts the pod as a live member."""
        return None if self.terminating or self.evicting else self.group

    @property
    def nomination(self) -> AssignedPod | None:
        """The pod as if it ran on its nominated node; None if it has a node or no nomination."""
        if self.node or not self.nominated_node or self.is_nomination_withheld:
            return None
        return self.as_assigned(self.nominated_node)

    def as_assigned(self, node: str) -> AssignedPod:
        """Describe the pod as one that runs on a node."""
        pod = AssignedPod(
            self.key,
            self.uid,
            node,
            labels=self.labels,
            shape=self.shape,
            terminating=self.terminating or self.evicting,
            group=self.group,
            priority=self.priority,
            start_time=self.start_time,
            claim_keys=self.claim_keys,
            volume_keys=self.volume_keys,
            grace_seconds=self.grace_seconds,
        )
        if not pod.terminating:
            return pod
        leaves_by = inf if self.evicting else self.leaves_by
        return replace(pod, leaves_by=leaves_by, preempted=self.preempted or self.evicting)


def build_pod_state(key: Key, pod: Pod, old: PodState | None) -> PodState:
    """Combine the observed version of a live pod with what the API does not show yet."""
    meta, nominated_node = pod.metadata, pod.status.nominated_node_name
    state = PodState(
        key,
        meta.uid,
        pod.occupied_node,
        shape=shape_of(pod),
        labels=meta.labels,
        group=pod.group,
        priority=pod.spec.priority,
        start_time=pod.status.start_time or "",
        terminating=bool(meta.deletion_timestamp),
        nominated_node=nominated_node,
        claim_keys=claim_keys_of(pod) if pod.spec.resource_claims else (),
        volume_keys=volume_keys_of(pod) if pod.spec.volumes else (),
        grace_seconds=pod.spec.termination_grace_period_seconds or 0,
    )
    if state.terminating:
        disrupted = find_condition(pod.status.conditions, DISRUPTION_TARGET)
        state = replace(
            state,
            leaves_by=parse_timestamp(meta.deletion_timestamp) + MAX_OVERDUE_SECONDS,
            preempted=disrupted is not None and disrupted.reason == _PREEMPTION_REASON,
        )
    if old is None or old.uid != state.uid:
        return state
    if state.terminating and (old.evicting or old.preempted):
        state = replace(state, preempted=True)
    if old.is_nomination_unreported and old.nominated_node != nominated_node:
        state = replace(state, nominated_node=old.nominated_node, is_nomination_unreported=True)
    if old.is_nomination_withheld and state.nominated_node:
        state = replace(state, is_nomination_withheld=True)
    evicting = old.evicting and not state.terminating
    if not state.node and old.assumed:
        return replace(state, node=old.node, assumed=True, evicting=evicting)
    return replace(state, evicting=evicting) if evicting else state


_T = TypeVar("_T")


class AssumedClaims(Generic[_T]):
    """Assumptions by the uid of the pod and the key of the claim."""

    def __init__(self) -> None:
        self._by_pod: dict[str, dict[Key, _T]] = {}
        self._pods: dict[Key, dict[str, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_pod)

    def __contains__(self, claim: Key) -> bool:
        return claim in self._pods

    def add(self, uid: str, claim: Key, assumed: _T) -> None:
        """Assume something for the claim of a pod."""
        self._by_pod.setdefault(uid, {})[claim] = assumed
        self._pods.setdefault(claim, {})[uid] = None

    def end_pod(self, uid: str) -> list[Key]:
        """End the assumptions of a pod; returns the claims for which no other pod has one."""
        ended = self._by_pod.pop(uid, {})
        for claim in ended:
            del self._pods[claim][uid]
        free = [claim for claim in ended if not self._pods[claim]]
        for claim in free:
            del self._pods[claim]
        return free

    def end_claim(self, claim: Key) -> None:
        """End the assumptions of all pods for a claim."""
        for uid in self._pods.pop(claim, ()):
            claims = self._by_pod[uid]
            del claims[claim]
            if not claims:
                del self._by_pod[uid]

    def items(self) -> Iterator[tuple[Key, _T]]:
        """Yield each claim with what was assumed last, sorted by claim."""
        for claim, uids in sorted(self._pods.items()):
            yield claim, self._by_pod[next(reversed(uids))][claim]
