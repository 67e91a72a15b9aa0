"""Pod and Node as the scheduler, the nodes and the room ledger read them. Partial and frozen."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from phalanx.api.meta import Condition, Key, ObjectMeta, new_key

#: Phases that a pod never leaves; such a pod takes no room.
TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})
#: The scheduler of pods that name no other.
DEFAULT_SCHEDULER = "default-scheduler"


P = TypeVar("P")


@lru_cache(maxsize=1024)
def _deduplicate(parts: P) -> P:
    """Of equal parts the ones that came first: many pods say the same, and it is kept once."""
    return parts


class ResourceRequirements(Struct, frozen=True, rename="camel"):
    """What a container asks for and may use, in quantities."""

    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}


class ContainerPort(Struct, frozen=True, rename="camel"):
    """A port, of interest only when it is one of the node's."""

    container_port: int = 0
    host_port: int = 0
    host_ip: str = field(name="hostIP", default="")
    protocol: str = "TCP"


class Container(Struct, frozen=True, rename="camel"):
    """One container."""

    name: str = ""
    image: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    ports: tuple[ContainerPort, ...] = ()
    restart_policy: str = ""


class Toleration(Struct, frozen=True, rename="camel"):
    """A taint that the pod does not mind, for some seconds or for ever."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class PodSchedulingGate(Struct, frozen=True):
    """A reason not to schedule yet, put there by somebody else."""

    name: str = ""


class SchedulingGroup(Struct, frozen=True, rename="camel"):
    """The PodGroup that a pod belongs to."""

    pod_group_name: str = ""


class ImageVolume(Struct, frozen=True, rename="camel"):
    """An image whose files are mounted."""

    reference: str = ""


class PodVolume(Struct, frozen=True, rename="camel"):
    """A volume, of interest only when it needs a claim to be bound, or is an image."""

    name: str = ""
    persistent_volume_claim: dict[str, object] | None = None
    ephemeral: dict[str, object] | None = None
    image: ImageVolume | None = None


class PodResourceClaim(Struct, frozen=True, rename="camel"):
    """A resource claim that a pod or a group refers to, or the template that its own is made of."""

    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class PodResourceClaimStatus(Struct, frozen=True, rename="camel"):
    """The claim that was made for one that is referred to by a template."""

    name: str = ""
    resource_claim_name: str = ""


class NodeRequirement(Struct, frozen=True):
    """One condition on a label or field of a node."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeTerm(Struct, frozen=True, rename="camel"):
    """Conditions on a node that must all hold; without any it holds for none."""

    match_expressions: tuple[NodeRequirement, ...] = ()
    match_fields: tuple[NodeRequirement, ...] = ()


class NodeSelector(Struct, frozen=True, rename="camel"):
    """Terms of which one must hold."""

    node_selector_terms: tuple[NodeTerm, ...] = ()


class PreferredNodeTerm(Struct, frozen=True):
    """A term that had better hold."""

    weight: int = 0
    preference: NodeTerm = NodeTerm()


class NodeAffinity(Struct, frozen=True, rename="camel"):
    """Which nodes a pod insists on, and which it prefers."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredNodeTerm, ...] = ()


class PodAffinityTerm(Struct, frozen=True, rename="camel"):
    """Other pods, by labels and namespace, and the domain to share with them or not."""

    topology_key: str = ""
    label_selector: dict[str, Any] | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: dict[str, Any] | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(Struct, frozen=True, rename="camel"):
    """A term that had better hold."""

    weight: int = 0
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Struct, frozen=True, rename="camel"):
    """Which pods a pod insists on being near (or far from), and which it prefers."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = ()


class Affinity(Struct, frozen=True, rename="camel"):
    """Where a pod wants to be, or not to be."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(Struct, frozen=True, rename="camel"):
    """A wish for even spreading over domains."""

    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    max_skew: int = 1
    label_selector: dict[str, Any] | None = None
    min_domains: int = 1
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"
    match_label_keys: tuple[str, ...] = ()


class PodSpec(Struct, frozen=True, rename="camel"):
    """What the pod asks for."""

    node_name: str = ""
    scheduler_name: str = DEFAULT_SCHEDULER
    scheduling_group: SchedulingGroup | None = None
    scheduling_gates: tuple[PodSchedulingGate, ...] = ()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
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

    def __post_init__(self) -> None:
        force_setattr(self, "tolerations", _deduplicate(self.tolerations))


class ContainerStateTerminated(Struct, frozen=True, rename="camel"):
    """How a container ended."""

    exit_code: int = 0
    finished_at: str | None = None


class ContainerState(Struct, frozen=True):
    """How a container is; of interest once it has ended."""

    terminated: ContainerStateTerminated | None = None


class ContainerStatus(Struct, frozen=True, rename="camel"):
    """What was seen of a container."""

    name: str = ""
    restart_count: int = 0
    state: ContainerState = ContainerState()


class PodStatus(Struct, frozen=True, rename="camel"):
    """What was seen of the pod."""

    phase: str = "Pending"
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    nominated_node_name: str = ""
    start_time: str | None = None
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "conditions", _deduplicate(self.conditions))
        force_setattr(self, "container_statuses", _deduplicate(self.container_statuses))


class Pod(Struct, frozen=True):
    """A pod."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def group(self) -> Key | None:
        """The PodGroup that it belongs to, if any."""
        group = self.spec.scheduling_group
        if group is None:
            return None
        return new_key(Key, (self.metadata.namespace, group.pod_group_name))

    @property
    def is_daemon(self) -> bool:
        """Whether it would come back at once on its own node."""
        return any(one.kind == "DaemonSet" for one in self.metadata.owner_references)

    @property
    def without_group(self) -> Pod:
        """The same pod, as if it belonged to no group."""
        if self.spec.scheduling_group is None:
            return self
        return replace(self, spec=replace(self.spec, scheduling_group=None))

    @property
    def is_terminal(self) -> bool:
        """Whether it has run to its end, for better or worse."""
        return self.status.phase in TERMINAL_PHASES

    @property
    def occupied_node(self) -> str:
        """The node whose room it takes: where it is bound, until it has ended."""
        return "" if self.is_terminal else self.spec.node_name


class Taint(Struct, frozen=True, rename="camel"):
    """A mark on a node that keeps pods away."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Struct, frozen=True, rename="camel"):
    """What an administrator says about the node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class ContainerImage(Struct, frozen=True, rename="camel"):
    """A container image that the node has, under all its names."""

    names: tuple[str, ...] = ()
    size_bytes: int = 0


class NodeStatus(Struct, frozen=True, rename="camel"):
    """What the node says about itself."""

    allocatable: dict[str, str | int | float] = {}
    conditions: tuple[Condition, ...] = ()
    images: tuple[ContainerImage, ...] = ()


class Node(Struct, frozen=True):
    """A machine."""

    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ServiceSpec(Struct, frozen=True):
    """Whom the service leads to; of interest because its pods are spread."""

    selector: dict[str, str] = {}


class Service(Struct, frozen=True):
    """A name for some pods."""

    metadata: ObjectMeta
    spec: ServiceSpec = ServiceSpec()
