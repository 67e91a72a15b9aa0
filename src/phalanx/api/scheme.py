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

from phalanx.api.batch import CronJob, Job
from phalanx.api.coordination import Lease
from phalanx.api.core import Namespace, Node, Pod, Service, ServiceAccount
from phalanx.api.kinds import (
    CLUSTER_ROLE,
    COMPOSITE_POD_GROUP,
    CRON_JOB,
    JOB,
    LEASE,
    NAMESPACE,
    NODE,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_GROUP,
    RESOURCE_CLAIM,
    RESOURCE_CLAIM_TEMPLATE,
    SERVICE,
    SERVICE_ACCOUNT,
    WORKLOAD,
    Kind,
)
from phalanx.api.meta import PartialObjectMetadata
from phalanx.api.policy import PodDisruptionBudget
from phalanx.api.rbac import ClusterRole
from phalanx.api.resource_claims import DeviceClaim, ResourceClaimTemplate
from phalanx.api.scheduling import CompositePodGroup, PodGroup, Workload

STRUCTS: Mapping[Kind, type[Struct]] = {
    CLUSTER_ROLE: ClusterRole,
    COMPOSITE_POD_GROUP: CompositePodGroup,
    CRON_JOB: CronJob,
    JOB: Job,
    LEASE: Lease,
    NAMESPACE: Namespace,
    NODE: Node,
    POD: Pod,
    POD_DISRUPTION_BUDGET: PodDisruptionBudget,
    POD_GROUP: PodGroup,
    RESOURCE_CLAIM: DeviceClaim,
    RESOURCE_CLAIM_TEMPLATE: ResourceClaimTemplate,
    SERVICE: Service,
    SERVICE_ACCOUNT: ServiceAccount,
    WORKLOAD: Workload,
}
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
