"""Lease, PodDisruptionBudget, autoscaler, ResourceQuota, ClusterRole, ResourceClaims as read here.

Kinds of API groups with few fields that matter here; `core.py`, `batch.py` and `scheduling.py` hold
the larger groups. Partial and frozen.

    Lease                                   node lifecycle controller
    PodDisruptionBudget                     scheduler, disruption controller
    HorizontalPodAutoscaler                 autoscaling controller
    ResourceQuota                           Job controller
    ClusterRole                             role aggregation controller
    ResourceClaim, ResourceClaimTemplate    resource claim controller
    EndpointSlice, Endpoints                endpoints controllers
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from phalanx.api.dynamic_resources import ResourceClaimSpec
from phalanx.api.kinds import POD, POD_GROUP, Kind
from phalanx.api.meta import Condition, ObjectMeta, OwnerReference
from phalanx.api.wire import Object

#: The annotation of a ResourceClaim that names the entry of its owner's `resourceClaims`.
POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"


class LeaseSpec(Struct, frozen=True, rename="camel"):
    """The time of the last renewal."""

    renew_time: str | None = None


class Lease(Struct, frozen=True):
    """A Lease, the heartbeat of a node."""

    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()


class ResourceQuota(Struct, frozen=True):
    """A ResourceQuota; `api/quota_usage.py` reads its spec and status as JSON."""

    metadata: ObjectMeta
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class PodDisruptionBudgetSpec(Struct, frozen=True, rename="camel"):
    """The selected pods, and how many must be available or may not be: a number, or "30%"."""

    selector: dict[str, Any] | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None


class PodDisruptionBudgetStatus(Struct, frozen=True, rename="camel"):
    """The counts of the disruption controller, and the pods whose eviction was granted since."""

    observed_generation: int = 0
    expected_pods: int = 0
    desired_healthy: int = 0
    current_healthy: int = 0
    disruptions_allowed: int = 0
    disrupted_pods: dict[str, str] = {}
    conditions: tuple[Condition, ...] = ()


class PodDisruptionBudget(Struct, frozen=True):
    """A PodDisruptionBudget."""

    metadata: ObjectMeta
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class ScaleTargetReference(Struct, frozen=True, rename="camel"):
    """The object whose replicas an autoscaler sets."""

    api_version: str = ""
    kind: str = ""
    name: str = ""


class HorizontalPodAutoscalerSpec(Struct, frozen=True, rename="camel"):
    """The target, the bounds of its replicas, and the metrics, whose sources stay JSON."""

    scale_target_ref: ScaleTargetReference = ScaleTargetReference()
    min_replicas: int | None = None
    max_replicas: int = 0
    metrics: tuple[Object, ...] = ()


class HorizontalPodAutoscalerStatus(Struct, frozen=True, rename="camel"):
    """The replicas that the autoscaler has seen and wants, and its conditions."""

    current_replicas: int = 0
    desired_replicas: int = 0
    conditions: tuple[Condition, ...] = ()


class HorizontalPodAutoscaler(Struct, frozen=True):
    """A HorizontalPodAutoscaler."""

    metadata: ObjectMeta
    spec: HorizontalPodAutoscalerSpec = HorizontalPodAutoscalerSpec()
    status: HorizontalPodAutoscalerStatus = HorizontalPodAutoscalerStatus()


class PriorityClass(Struct, frozen=True, rename="camel"):
    """A PriorityClass."""

    metadata: ObjectMeta
    value: int = 0
    global_default: bool = False
    preemption_policy: str = "PreemptLowerPriority"


class AggregationRule(Struct, frozen=True, rename="camel"):
    """The selectors of the ClusterRoles whose rules a ClusterRole aggregates."""

    cluster_role_selectors: tuple[Object, ...] = ()


class ClusterRole(Struct, frozen=True, rename="camel"):
    """A ClusterRole. Its rules are only compared and copied, so they stay JSON."""

    metadata: ObjectMeta
    rules: tuple[Object, ...] | None = ()
    aggregation_rule: AggregationRule | None = None


class PolicyStatus(Struct, frozen=True, rename="camel"):
    """The status of a ValidatingAdmissionPolicy: the generation that was type-checked."""

    observed_generation: int = 0


class ValidatingAdmissionPolicy(Struct, frozen=True, rename="camel"):
    """A ValidatingAdmissionPolicy; CEL reads its spec as JSON."""

    metadata: ObjectMeta
    spec: dict[str, Any] = {}
    status: PolicyStatus = PolicyStatus()


class ClaimConsumer(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A Pod or PodGroup in `status.reservedFor` of a ResourceClaim."""

    resource: str = ""
    name: str = ""
    uid: str = ""
    api_group: str = ""

    @staticmethod
    def of(kind: Kind, meta: ObjectMeta) -> ClaimConsumer:
        """Return the consumer entry of a Pod or PodGroup."""
        return ClaimConsumer(kind.plural, meta.name, meta.uid, kind.group)

    @property
    def kind(self) -> Kind | None:
        """The kind of the consumer; None if it is neither Pod nor PodGroup."""
        return _KINDS.get((self.api_group, self.resource))


_KINDS = {(kind.group, kind.plural): kind for kind in (POD, POD_GROUP)}


class AllocatedDeviceStatus(Struct, frozen=True, rename="camel"):
    """What a driver reports about a device that is allocated to a claim."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str = field(default="", name="shareID")
    conditions: tuple[Condition, ...] = ()


class ResourceClaimStatus(Struct, frozen=True, rename="camel"):
    """The allocation of devices to a claim, and the consumers that it is reserved for."""

    allocation: dict[str, Any] | None = None
    reserved_for: tuple[ClaimConsumer, ...] = ()
    devices: tuple[AllocatedDeviceStatus, ...] = ()


class DeviceClaim(Struct, frozen=True):
    """A ResourceClaim. (`ResourceClaim` is a public name of `phalanx.builder`.)"""

    metadata: ObjectMeta
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()

    @property
    def owner(self) -> OwnerReference | None:
        """The controller that the claim was created for, if any."""
        return self.metadata.controller

    def is_for(self, uid: str, claim: str) -> bool:
        """Whether the claim was created for an entry of an owner's `resourceClaims`."""
        made_for = self.metadata.annotations.get(POD_CLAIM_NAME)
        return made_for == claim and self.owner is not None and self.owner.uid == uid


class ClaimTemplateMeta(Struct, frozen=True):
    """The labels and annotations of claims from a template."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class ClaimTemplateSpec(Struct, frozen=True):
    """Metadata and spec of claims from a template."""

    metadata: ClaimTemplateMeta = ClaimTemplateMeta()
    spec: dict[str, Any] = {}


class ResourceClaimTemplate(Struct, frozen=True):
    """A ResourceClaimTemplate."""

    metadata: ObjectMeta
    spec: ClaimTemplateSpec = ClaimTemplateSpec()


class EndpointSlice(Struct, frozen=True, rename="camel"):
    """An EndpointSlice; its endpoints and ports are only compared, so they stay JSON."""

    metadata: ObjectMeta
    address_type: str = "IPv4"
    endpoints: tuple[dict[str, Any], ...] | None = ()
    ports: tuple[dict[str, Any], ...] | None = ()


class Endpoints(Struct, frozen=True):
    """An Endpoints object; its subsets stay JSON."""

    metadata: ObjectMeta
    subsets: tuple[dict[str, Any], ...] | None = ()
