"""The scheme: for each kind that our components read, the struct that decodes its objects.

The counterpart of `runtime.Scheme` in apimachinery, for reading only.

Informers (`controllers/reconcile_loop.py`) take the struct from this table: all readers of a kind
in a process share one decoded copy, and the order in which they ask for it does not matter. A kind
without a row is decoded to its metadata.

    kind_of(Pod)            POD
    struct_of(POD)          Pod
    struct_of(SECRET)       PartialObjectMetadata
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from phalanx.api.apps import (
    ControllerRevision,
    DaemonSet,
    Deployment,
    ReplicaSet,
    ReplicationController,
    StatefulSet,
)
from phalanx.api.batch import CronJob, Job
from phalanx.api.core import Namespace, Node, Pod, Service, ServiceAccount
from phalanx.api.dynamic_resources import DeviceClass, DeviceTaintRule, ResourceSlice
from phalanx.api.job_sets import JobSet
from phalanx.api.kinds import (
    CLUSTER_ROLE,
    COMPOSITE_POD_GROUP,
    CONTROLLER_REVISION,
    CRON_JOB,
    CSI_DRIVER,
    CSI_NODE,
    CSI_STORAGE_CAPACITY,
    DAEMON_SET,
    DEPLOYMENT,
    DEVICE_CLASS,
    DEVICE_TAINT_RULE,
    ENDPOINT_SLICE,
    ENDPOINTS,
    HORIZONTAL_POD_AUTOSCALER,
    JOB,
    JOB_SET,
    LEADER_WORKER_SET,
    LEASE,
    NAMESPACE,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_GROUP,
    PRIORITY_CLASS,
    REPLICA_SET,
    REPLICATION_CONTROLLER,
    RESOURCE_CLAIM,
    RESOURCE_CLAIM_TEMPLATE,
    RESOURCE_QUOTA,
    RESOURCE_SLICE,
    SERVICE,
    SERVICE_ACCOUNT,
    STATEFUL_SET,
    STORAGE_CLASS,
    VALIDATING_ADMISSION_POLICY,
    VOLUME_ATTACHMENT,
    WORKLOAD,
    Kind,
)
from phalanx.api.leader_worker_sets import LeaderWorkerSet
from phalanx.api.meta import PartialObjectMetadata
from phalanx.api.other_kinds import (
    ClusterRole,
    DeviceClaim,
    Endpoints,
    EndpointSlice,
    HorizontalPodAutoscaler,
    Lease,
    PodDisruptionBudget,
    PriorityClass,
    ResourceClaimTemplate,
    ResourceQuota,
    ValidatingAdmissionPolicy,
)
from phalanx.api.scheduling import CompositePodGroup, PodGroup, Workload
from phalanx.api.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)

STRUCTS: Mapping[Kind, type[Struct]] = {
    CLUSTER_ROLE: ClusterRole,
    COMPOSITE_POD_GROUP: CompositePodGroup,
    CONTROLLER_REVISION: ControllerRevision,
    CRON_JOB: CronJob,
    DAEMON_SET: DaemonSet,
    DEPLOYMENT: Deployment,
    CSI_DRIVER: CSIDriver,
    CSI_NODE: CSINode,
    CSI_STORAGE_CAPACITY: CSIStorageCapacity,
    DEVICE_CLASS: DeviceClass,
    DEVICE_TAINT_RULE: DeviceTaintRule,
    ENDPOINT_SLICE: EndpointSlice,
    ENDPOINTS: Endpoints,
    HORIZONTAL_POD_AUTOSCALER: HorizontalPodAutoscaler,
    JOB: Job,
    JOB_SET: JobSet,
    LEADER_WORKER_SET: LeaderWorkerSet,
    LEASE: Lease,
    NAMESPACE: Namespace,
    NODE: Node,
    PERSISTENT_VOLUME: PersistentVolume,
    PERSISTENT_VOLUME_CLAIM: PersistentVolumeClaim,
    POD: Pod,
    POD_DISRUPTION_BUDGET: PodDisruptionBudget,
    POD_GROUP: PodGroup,
    REPLICA_SET: ReplicaSet,
    REPLICATION_CONTROLLER: ReplicationController,
    PRIORITY_CLASS: PriorityClass,
    RESOURCE_CLAIM: DeviceClaim,
    RESOURCE_CLAIM_TEMPLATE: ResourceClaimTemplate,
    RESOURCE_QUOTA: ResourceQuota,
    RESOURCE_SLICE: ResourceSlice,
    SERVICE: Service,
    SERVICE_ACCOUNT: ServiceAccount,
    STATEFUL_SET: StatefulSet,
    STORAGE_CLASS: StorageClass,
    VALIDATING_ADMISSION_POLICY: ValidatingAdmissionPolicy,
    VOLUME_ATTACHMENT: VolumeAttachment,
    WORKLOAD: Workload,
}
#: The kinds of devices and of claims for them, which schedulers read.
DEVICE_KINDS = (RESOURCE_SLICE, DEVICE_CLASS, DEVICE_TAINT_RULE, RESOURCE_CLAIM)
#: The kinds of volumes and of claims for them, which schedulers read.
VOLUME_KINDS = (
    STORAGE_CLASS,
    CSI_DRIVER,
    CSI_NODE,
    CSI_STORAGE_CAPACITY,
    VOLUME_ATTACHMENT,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
)
_KIND_BY_STRUCT = {struct: kind for kind, struct in STRUCTS.items()}


def kind_of(struct: type[Any]) -> Kind:
    """Return the kind whose objects the struct decodes. Raises LookupError without a row."""
    kind = _KIND_BY_STRUCT.get(struct)
    if kind is None:
        raise LookupError(f"no row of STRUCTS decodes objects to {struct.__name__}")
    return kind


def struct_of(kind: Kind) -> type[Any]:
    """Return the struct that decodes objects of a kind: its row's, else PartialObjectMetadata."""
    return STRUCTS.get(kind, PartialObjectMetadata)
