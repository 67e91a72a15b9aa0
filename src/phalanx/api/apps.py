"""Deployment, ReplicaSet, StatefulSet, … as our components read them. Partial and frozen.

Pod templates are only compared and copied, so they stay JSON.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from phalanx.api.meta import Condition, ObjectMeta

#: The label of a pod that names the revision of its template.
REVISION_LABEL = "controller-revision-hash"
#: The label of a ControllerRevision with the hash of its data.
REVISION_HASH_LABEL = "controller.kubernetes.io/hash"
POD_NAME_LABEL = "statefulset.kubernetes.io/pod-name"
POD_INDEX_LABEL = "apps.kubernetes.io/pod-index"


class RollingUpdate(Struct, frozen=True, rename="camel"):
    """The bounds of a rolling update: a number, or "30%"."""

    partition: int = 0
    max_unavailable: int | str = 1


class StatefulSetUpdateStrategy(Struct, frozen=True, rename="camel"):
    """RollingUpdate with its bounds, or OnDelete."""

    type: str = "RollingUpdate"
    rolling_update: RollingUpdate = RollingUpdate()


class StatefulSetOrdinals(Struct, frozen=True):
    """The ordinal of the first pod."""

    start: int = 0


class ClaimRetentionPolicy(Struct, frozen=True, rename="camel"):
    """Retain or Delete the claims of a deleted StatefulSet, and of pods that are scaled away."""

    when_deleted: str = "Retain"
    when_scaled: str = "Retain"


class StatefulSetSpec(Struct, frozen=True, rename="camel"):
    """The spec of a StatefulSet. Its templates are only copied, so they stay JSON."""

    replicas: int = 1
    selector: dict[str, Any] | None = None
    template: dict[str, Any] = {}
    volume_claim_templates: tuple[dict[str, Any], ...] = ()
    service_name: str = ""
    pod_management_policy: str = "OrderedReady"
    update_strategy: StatefulSetUpdateStrategy = StatefulSetUpdateStrategy()
    revision_history_limit: int = 10
    min_ready_seconds: int = 0
    persistent_volume_claim_retention_policy: ClaimRetentionPolicy = ClaimRetentionPolicy()
    ordinals: StatefulSetOrdinals = StatefulSetOrdinals()


class StatefulSetStatus(Struct, frozen=True, rename="camel"):
    """The counts and revisions that the controller has written."""

    observed_generation: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    current_replicas: int = 0
    updated_replicas: int = 0
    current_revision: str = ""
    update_revision: str = ""
    collision_count: int = 0


class StatefulSet(Struct, frozen=True):
    """A StatefulSet."""

    metadata: ObjectMeta
    spec: StatefulSetSpec = StatefulSetSpec()
    status: StatefulSetStatus = StatefulSetStatus()

    @property
    def ordinals(self) -> range:
        """The ordinals that the pods should have: possibly billions."""
        start = self.spec.ordinals.start
        return range(start, start + self.spec.replicas)


class ControllerRevision(Struct, frozen=True):
    """A ControllerRevision; its data is only compared and copied."""

    metadata: ObjectMeta
    data: dict[str, Any] = {}
    revision: int = 0


#: The label of ReplicaSets and pods of a Deployment with the hash of their template.
POD_TEMPLATE_HASH = "pod-template-hash"


class ReplicaSetSpec(Struct, frozen=True, rename="camel"):
    """The spec of a ReplicaSet."""

    replicas: int = 1
    min_ready_seconds: int = 0
    selector: dict[str, Any] | None = None
    template: dict[str, Any] = {}


class ReplicaSetStatus(Struct, frozen=True, rename="camel"):
    """The counts that the controller has written."""

    replicas: int = 0
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    terminating_replicas: int = 0
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


class ReplicaSet(Struct, frozen=True):
    """A ReplicaSet."""

    metadata: ObjectMeta
    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()

    @property
    def selector(self) -> dict[str, Any] | None:
        """The label selector of the pods."""
        return self.spec.selector


class ReplicationControllerSpec(Struct, frozen=True, rename="camel"):
    """The spec of a ReplicationController."""

    replicas: int = 1
    min_ready_seconds: int = 0
    selector: dict[str, str] = {}
    template: dict[str, Any] = {}


class ReplicationControllerStatus(Struct, frozen=True, rename="camel"):
    """The counts that the controller has written."""

    replicas: int = 0
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


class ReplicationController(Struct, frozen=True):
    """A ReplicationController."""

    metadata: ObjectMeta
    spec: ReplicationControllerSpec = ReplicationControllerSpec()
    status: ReplicationControllerStatus = ReplicationControllerStatus()

    @property
    def selector(self) -> dict[str, Any] | None:
        """The label selector of the pods; None without labels, which selects nothing."""
        return {"matchLabels": self.spec.selector} if self.spec.selector else None


class RollingUpdateDeployment(Struct, frozen=True, rename="camel"):
    """The bounds of a rolling update: a number, or "25%"."""

    max_unavailable: int | str = "25%"
    max_surge: int | str = "25%"


class DeploymentStrategy(Struct, frozen=True, rename="camel"):
    """RollingUpdate with its bounds, or Recreate."""

    type: str = "RollingUpdate"
    rolling_update: RollingUpdateDeployment = RollingUpdateDeployment()


class DeploymentSpec(Struct, frozen=True, rename="camel"):
    """The spec of a Deployment."""

    replicas: int = 1
    selector: dict[str, Any] | None = None
    template: dict[str, Any] = {}
    strategy: DeploymentStrategy = DeploymentStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int = 10
    paused: bool = False
    progress_deadline_seconds: int | None = None


class DeploymentCondition(Struct, frozen=True, rename="camel"):
    """A condition of a Deployment; `last_update_time` is the time of the last progress."""

    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""
    last_update_time: str = ""
    last_transition_time: str = ""


class DeploymentStatus(Struct, frozen=True, rename="camel"):
    """The counts and conditions that the controller has written."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    terminating_replicas: int = 0
    collision_count: int = 0
    conditions: tuple[DeploymentCondition, ...] = ()


class Deployment(Struct, frozen=True):
    """A Deployment."""

    metadata: ObjectMeta
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class RollingUpdateDaemonSet(Struct, frozen=True, rename="camel"):
    """The bounds of a rolling update: a number, or "30%"."""

    max_unavailable: int | str = 1
    max_surge: int | str = 0


class DaemonSetUpdateStrategy(Struct, frozen=True, rename="camel"):
    """RollingUpdate with its bounds, or OnDelete."""

    type: str = "RollingUpdate"
    rolling_update: RollingUpdateDaemonSet = RollingUpdateDaemonSet()


class DaemonSetSpec(Struct, frozen=True, rename="camel"):
    """The spec of a DaemonSet."""

    selector: dict[str, Any] | None = None
    template: dict[str, Any] = {}
    update_strategy: DaemonSetUpdateStrategy = DaemonSetUpdateStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int = 10


class DaemonSetStatus(Struct, frozen=True, rename="camel"):
    """The counts that the controller has written."""

    current_number_scheduled: int = 0
    desired_number_scheduled: int = 0
    number_misscheduled: int = 0
    number_ready: int = 0
    updated_number_scheduled: int = 0
    number_available: int = 0
    number_unavailable: int = 0
    observed_generation: int = 0
    collision_count: int = 0


class DaemonSet(Struct, frozen=True):
    """A DaemonSet."""

    metadata: ObjectMeta
    spec: DaemonSetSpec = DaemonSetSpec()
    status: DaemonSetStatus = DaemonSetStatus()
