"""Pod, Node and other core kinds as our components read them. Partial and frozen."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from phalanx.api.meta import (
    Condition,
    Key,
    ObjectMeta,
    find_condition,
    new_key,
    parse_timestamp,
)

#: The final phases; a pod in one of them occupies no resources.
TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})
#: The default of `spec.schedulerName`.
DEFAULT_SCHEDULER = "default-scheduler"
#: The annotation of a Node whose kubelet runs in one of our processes, with the type of the node;
#: Nodes without it belong to another kubelet.
NODE_TYPE_ANNOTATION = "phalanx.dev/node"
#: No process runs; pods pass through their phases.
SIMULATED_NODE_TYPE = "simulated"
#: The pods' commands run as processes of the machine.
PROCESS_NODE_TYPE = "process"

#: Where containers have the token of their service account.
TOKEN_MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"

P = TypeVar("P")


@lru_cache(maxsize=1024)
def _deduplicate(parts: P) -> P:
    """Return the first of equal tuples, so that equal parts of many pods occupy memory once."""
    return parts


class ResourceRequirements(Struct, frozen=True, rename="camel"):
    """The requests and limits of a container, as quantities."""

    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}


class ContainerPort(Struct, frozen=True, rename="camel"):
    """A port of a container: a host port, or a name that Services refer to."""

    container_port: int = 0
    host_port: int = 0
    host_ip: str = field(name="hostIP", default="")
    protocol: str = "TCP"
    name: str = ""


class Container(Struct, frozen=True, rename="camel"):
    """One container."""

    name: str = ""
    image: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    ports: tuple[ContainerPort, ...] = ()
    restart_policy: str = ""

    def __hash__(self) -> int:
        """Hash the fields that can be hashed, for `_deduplicate`."""
        return hash((self.name, self.image, frozenset(self.resources.requests.items())))


class Toleration(Struct, frozen=True, rename="camel"):
    """A tolerated taint, for some seconds or without limit."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class PodSchedulingGate(Struct, frozen=True):
    """A reason not to schedule the pod yet, set by another controller."""

    name: str = ""


class SchedulingGroup(Struct, frozen=True, rename="camel"):
    """The PodGroup that a pod belongs to."""

    pod_group_name: str = ""


class ImageVolume(Struct, frozen=True, rename="camel"):
    """An image that is mounted as a volume."""

    reference: str = ""


class PodVolume(Struct, frozen=True, rename="camel"):
    """A volume; a pod has only those with a claim or an image here."""

    name: str = ""
    persistent_volume_claim: dict[str, object] | None = None
    ephemeral: dict[str, object] | None = None
    image: ImageVolume | None = None


class PodResourceClaim(Struct, frozen=True, rename="camel"):
    """An entry of `resourceClaims` of a Pod or PodGroup: a claim, or a template for one."""

    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class PodResourceClaimStatus(Struct, frozen=True, rename="camel"):
    """The claim that was created from the template of an entry."""

    name: str = ""
    resource_claim_name: str = ""


class ExtendedResourceRequest(Struct, frozen=True, rename="camel"):
    """An extended resource of a container, and the request of a claim that serves it."""

    container_name: str = ""
    resource_name: str = ""
    request_name: str = ""


class ExtendedResourceClaimStatus(Struct, frozen=True, rename="camel"):
    """The claim that was created for the extended resources of a pod that devices serve."""

    resource_claim_name: str = ""
    request_mappings: tuple[ExtendedResourceRequest, ...] = ()


class NodeRequirement(Struct, frozen=True):
    """One requirement on a label or field of a node."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeTerm(Struct, frozen=True, rename="camel"):
    """Requirements on a node that must all hold; an empty term matches no node."""

    match_expressions: tuple[NodeRequirement, ...] = ()
    match_fields: tuple[NodeRequirement, ...] = ()


class NodeSelector(Struct, frozen=True, rename="camel"):
    """Terms of which at least one must match."""

    node_selector_terms: tuple[NodeTerm, ...] = ()


class PreferredNodeTerm(Struct, frozen=True):
    """A preferred term with its weight."""

    weight: int = 0
    preference: NodeTerm = NodeTerm()


class NodeAffinity(Struct, frozen=True, rename="camel"):
    """Required and preferred node terms."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredNodeTerm, ...] = ()


class PodAffinityTerm(Struct, frozen=True, rename="camel"):
    """Other pods, by labels and namespace, and the topology domain to share or avoid."""

    topology_key: str = ""
    label_selector: dict[str, Any] | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: dict[str, Any] | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(Struct, frozen=True, rename="camel"):
    """A preferred pod affinity term with its weight."""

    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Struct, frozen=True, rename="camel"):
    """Required and preferred terms of pod affinity or anti-affinity."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = ()


class Affinity(Struct, frozen=True, rename="camel"):
    """Node affinity, pod affinity and pod anti-affinity."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(Struct, frozen=True, rename="camel"):
    """A constraint on the even spreading of pods over topology domains."""

    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    max_skew: int = 1
    label_selector: dict[str, Any] | None = None
    min_domains: int = 1
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"
    match_label_keys: tuple[str, ...] = ()


class PodReadinessGate(Struct, frozen=True, rename="camel"):
    """A condition that must be True before the pod is ready."""

    condition_type: str = ""


class PodSpec(Struct, frozen=True, rename="camel", gc=False):
    """The spec of a pod."""

    node_name: str = ""
    scheduler_name: str = DEFAULT_SCHEDULER
    scheduling_group: SchedulingGroup | None = None
    scheduling_gates: tuple[PodSchedulingGate, ...] = ()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    ephemeral_containers: tuple[Container, ...] = ()
    readiness_gates: tuple[PodReadinessGate, ...] = ()
    host_network: bool = False
    resources: ResourceRequirements | None = None
    overhead: dict[str, str | int | float] = {}
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    affinity: Affinity | None = None
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    volumes: tuple[PodVolume, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    priority: int = 0
    preemption_policy: str = "PreemptLowerPriority"
    termination_grace_period_seconds: int | None = None
    restart_policy: str = "Always"
    active_deadline_seconds: int | None = None
    hostname: str = ""
    subdomain: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "containers", _deduplicate(self.containers))
        force_setattr(self, "tolerations", _deduplicate(self.tolerations))
        if self.volumes:
            # Nearly every pod has the volume of its token, which no component reads.
            relevant = tuple(
                volume
                for volume in self.volumes
                if volume.persistent_volume_claim is not None
                or volume.ephemeral is not None
                or volume.image is not None
            )
            force_setattr(self, "volumes", relevant)


class ContainerStateTerminated(Struct, frozen=True, rename="camel"):
    """How a container terminated."""

    exit_code: int = 0
    finished_at: str | None = None


class ContainerState(Struct, frozen=True):
    """The state of a container; only termination matters here."""

    terminated: ContainerStateTerminated | None = None


class ContainerStatus(Struct, frozen=True, rename="camel"):
    """The status of a container."""

    name: str = ""
    restart_count: int = 0
    state: ContainerState = ContainerState()
    #: What the node has allocated to the container, and what it runs with: a resize changes these
    #: after the spec.
    allocated_resources: dict[str, str | int | float] = {}
    resources: ResourceRequirements | None = None

    def __hash__(self) -> int:
        """Hash the fields that can be hashed, for `_deduplicate`."""
        return hash((self.name, self.restart_count, self.state))


class PodIP(Struct, frozen=True, gc=False):
    """One address of a pod."""

    ip: str = ""


class PodStatus(Struct, frozen=True, rename="camel", gc=False):
    """The status of a pod."""

    phase: str = "Pending"
    #: Why the kubelet refused or evicted the pod.
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    ephemeral_container_statuses: tuple[ContainerStatus, ...] = ()
    nominated_node_name: str = ""
    start_time: str | None = None
    pod_ips: tuple[PodIP, ...] = field(name="podIPs", default=())
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()
    extended_resource_claim_status: ExtendedResourceClaimStatus | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "conditions", _deduplicate(self.conditions))
        if self.container_statuses:
            force_setattr(self, "container_statuses", _deduplicate(self.container_statuses))


@lru_cache(maxsize=8192)
def _last_spec(
    node: str, group: SchedulingGroup | None, containers: tuple[Container, ...]
) -> list[PodSpec]:
    """Return the list with the last spec with these fields, for `_share_spec`."""
    return []


def _share_spec(spec: PodSpec) -> PodSpec:
    """Return an earlier spec that is equal: the replicas of a workload on one node have the same.

    Only the last similar one is compared: thousands of pending pods may differ in their hostname.
    """
    last = _last_spec(spec.node_name, spec.scheduling_group, spec.containers)
    if not last or last[0] != spec:
        last[:] = (spec,)
    return last[0]


class Pod(Struct, frozen=True, gc=False):
    """A Pod."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    def __post_init__(self) -> None:
        force_setattr(self, "spec", _share_spec(self.spec))

    @property
    def group(self) -> Key | None:
        """The PodGroup of the pod, if it has one."""
        group = self.spec.scheduling_group
        if group is None:
            return None
        return new_key(Key, (self.metadata.namespace, group.pod_group_name))

    @property
    def finish_time(self) -> float | None:
        """When the last of its containers terminated; None if none says when."""
        ends = (one.state.terminated for one in self.status.container_statuses)
        times = [parse_timestamp(end.finished_at) for end in ends if end and end.finished_at]
        return max(times, default=None)

    @property
    def failed_exit_code(self) -> int | None:
        """The exit code of the first container that failed, if the pod has failed; None if none."""
        if self.status.phase != "Failed":
            return None
        ends = (one.state.terminated for one in self.status.container_statuses)
        return next((end.exit_code for end in ends if end and end.exit_code), None)

    @property
    def is_daemon(self) -> bool:
        """Whether a DaemonSet owns the pod, and would recreate it on the same node."""
        return any(one.kind == "DaemonSet" for one in self.metadata.owner_references)

    @property
    def with_highest_priority(self) -> Pod:
        """The same pod with a priority above all others, so that no pod preempts it."""
        return replace(self, spec=replace(self.spec, priority=2**31 - 1))

    @property
    def without_group(self) -> Pod:
        """The same pod without its scheduling group."""
        if self.spec.scheduling_group is None:
            return self
        return replace(self, spec=replace(self.spec, scheduling_group=None))

    @property
    def resized_containers(self) -> tuple[ContainerStatus, ...]:
        """The status of each container that says what the node has allocated to it."""
        status = self.status
        return tuple(
            one
            for one in (*status.container_statuses, *status.init_container_statuses)
            if one.allocated_resources or one.resources
        )

    @property
    def is_terminal(self) -> bool:
        """Whether the pod has succeeded or failed."""
        return self.status.phase in TERMINAL_PHASES

    @property
    def is_ready(self) -> bool:
        """Whether the condition Ready is True."""
        found = find_condition(self.status.conditions, "Ready")
        return found is not None and found.status == "True"

    @property
    def occupied_node(self) -> str:
        """The node whose resources the pod occupies: its node until it is terminal, else ""."""
        return "" if self.is_terminal else self.spec.node_name


class _GroupOfSpec(Struct, frozen=True, rename="camel", gc=False):
    scheduling_group: SchedulingGroup | None = None


class _PhaseOfStatus(Struct, frozen=True, gc=False):
    phase: str = "Pending"


class PodMembership(Struct, frozen=True, gc=False):
    """The group and phase of a pod: a list of these is decoded in a fraction of the time."""

    spec: _GroupOfSpec = _GroupOfSpec()
    status: _PhaseOfStatus = _PhaseOfStatus()

    def is_live_member(self, group: str) -> bool:
        """Whether the pod belongs to a group of this name and has neither succeeded nor failed."""
        found = self.spec.scheduling_group
        is_member = found is not None and found.pod_group_name == group
        return is_member and self.status.phase not in TERMINAL_PHASES


class Taint(Struct, frozen=True, rename="camel"):
    """A taint of a node."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Struct, frozen=True, rename="camel"):
    """The spec of a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class ContainerImage(Struct, frozen=True, rename="camel"):
    """A container image on a node, under all its names."""

    names: tuple[str, ...] = ()
    size_bytes: int = 0


class NodeStatus(Struct, frozen=True, rename="camel"):
    """The status of a node."""

    allocatable: dict[str, str | int | float] = {}
    conditions: tuple[Condition, ...] = ()
    images: tuple[ContainerImage, ...] = ()


class Node(Struct, frozen=True):
    """A Node."""

    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ServiceSpec(Struct, frozen=True, rename="camel"):
    """The pods and ports of a Service; its ports stay JSON."""

    selector: dict[str, str] = {}
    type: str = "ClusterIP"
    cluster_ip: str = field(name="clusterIP", default="")
    ip_families: tuple[str, ...] = ()
    ports: tuple[dict[str, Any], ...] = ()
    publish_not_ready_addresses: bool = False


class Service(Struct, frozen=True):
    """A Service."""

    metadata: ObjectMeta
    spec: ServiceSpec = ServiceSpec()


class NamespaceStatus(Struct, frozen=True):
    """The status of a namespace."""

    phase: str = ""
    conditions: tuple[Condition, ...] = ()


class Namespace(Struct, frozen=True):
    """A Namespace."""

    metadata: ObjectMeta
    status: NamespaceStatus = NamespaceStatus()


class ServiceAccount(Struct, frozen=True):
    """A ServiceAccount."""

    metadata: ObjectMeta
