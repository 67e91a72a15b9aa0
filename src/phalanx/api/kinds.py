"""Kinds: one row per kind, with its names, its resource path, its verbs and its behaviour.

The server is generic and works from these rows: a new kind is a new row, without code for it.
Defaults, validation and columns of a kind are rows of their own tables (`defaults/registry.py`,
`validation/registry.py`, `printing/columns.py`). Nothing here says how an object is encoded.
`kind.py` defines the columns of a row; `platform_kinds.py` has more rows.
"""

from __future__ import annotations

from phalanx.api.kind import ALL_VERBS as ALL_VERBS
from phalanx.api.kind import METADATA_SELECTORS as METADATA_SELECTORS
from phalanx.api.kind import Kind as Kind
from phalanx.api.kind import ScalePaths as ScalePaths
from phalanx.api.platform_kinds import API_SERVICE as API_SERVICE
from phalanx.api.platform_kinds import CERTIFICATE_SIGNING_REQUEST as CERTIFICATE_SIGNING_REQUEST
from phalanx.api.platform_kinds import CLUSTER_TRUST_BUNDLE as CLUSTER_TRUST_BUNDLE
from phalanx.api.platform_kinds import CLUSTER_TRUST_BUNDLE_V1BETA1 as CLUSTER_TRUST_BUNDLE_V1BETA1
from phalanx.api.platform_kinds import COMPONENT_STATUS as COMPONENT_STATUS
from phalanx.api.platform_kinds import ENDPOINTS as ENDPOINTS
from phalanx.api.platform_kinds import FLOW_SCHEMA as FLOW_SCHEMA
from phalanx.api.platform_kinds import HORIZONTAL_POD_AUTOSCALER as HORIZONTAL_POD_AUTOSCALER
from phalanx.api.platform_kinds import HORIZONTAL_POD_AUTOSCALER_V1 as HORIZONTAL_POD_AUTOSCALER_V1
from phalanx.api.platform_kinds import INGRESS as INGRESS
from phalanx.api.platform_kinds import INGRESS_CLASS as INGRESS_CLASS
from phalanx.api.platform_kinds import IP_ADDRESS as IP_ADDRESS
from phalanx.api.platform_kinds import LEASE_CANDIDATE as LEASE_CANDIDATE
from phalanx.api.platform_kinds import MUTATING_ADMISSION_POLICY as MUTATING_ADMISSION_POLICY
from phalanx.api.platform_kinds import (
    MUTATING_ADMISSION_POLICY_BINDING as MUTATING_ADMISSION_POLICY_BINDING,
)
from phalanx.api.platform_kinds import (
    MUTATING_WEBHOOK_CONFIGURATION as MUTATING_WEBHOOK_CONFIGURATION,
)
from phalanx.api.platform_kinds import NETWORK_POLICY as NETWORK_POLICY
from phalanx.api.platform_kinds import POD_CERTIFICATE_REQUEST as POD_CERTIFICATE_REQUEST
from phalanx.api.platform_kinds import (
    POD_CERTIFICATE_REQUEST_V1BETA1 as POD_CERTIFICATE_REQUEST_V1BETA1,
)
from phalanx.api.platform_kinds import PRIORITY_LEVEL_CONFIGURATION as PRIORITY_LEVEL_CONFIGURATION
from phalanx.api.platform_kinds import RUNTIME_CLASS as RUNTIME_CLASS
from phalanx.api.platform_kinds import SERVICE_CIDR as SERVICE_CIDR
from phalanx.api.platform_kinds import STORAGE_VERSION_MIGRATION as STORAGE_VERSION_MIGRATION
from phalanx.api.platform_kinds import (
    STORAGE_VERSION_MIGRATION_V1BETA1 as STORAGE_VERSION_MIGRATION_V1BETA1,
)
from phalanx.api.platform_kinds import VALIDATING_ADMISSION_POLICY as VALIDATING_ADMISSION_POLICY
from phalanx.api.platform_kinds import (
    VALIDATING_ADMISSION_POLICY_BINDING as VALIDATING_ADMISSION_POLICY_BINDING,
)
from phalanx.api.platform_kinds import (
    VALIDATING_WEBHOOK_CONFIGURATION as VALIDATING_WEBHOOK_CONFIGURATION,
)

RBAC_GROUP = "rbac.authorization.k8s.io"

NAMESPACE = Kind(
    "", "v1", "Namespace", "namespaces", "core.v1.Namespace",
    namespaced=False, singular="namespace", short_names=("ns",),
    verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
    subresources=("status", "finalize"),
    selectable_fields={"metadata.name": "", "status.phase": ""},
    deletion_returns_object=True,
)  # fmt: skip
NODE = Kind(
    "", "v1", "Node", "nodes", "core.v1.Node",
    namespaced=False, singular="node", short_names=("no",),
    subresources=("status",),
    selectable_fields={"metadata.name": "", "spec.unschedulable": "false"},
)  # fmt: skip
POD = Kind(
    "",
    "v1",
    "Pod",
    "pods",
    "core.v1.Pod",
    singular="pod",
    short_names=("po",),
    categories=("all",),
    subresources=("status", "binding", "ephemeralcontainers", "eviction", "log", "resize"),
    selectable_fields={
        **METADATA_SELECTORS,
        "spec.nodeName": "",
        "spec.restartPolicy": "",
        "spec.schedulerName": "",
        "spec.serviceAccountName": "",
        "spec.hostNetwork": "false",
        "status.phase": "",
        "status.podIP": "",
        "status.podIPs": "",
        "status.nominatedNodeName": "",
        "spec.host": "",
    },
    # Old clients name the node `spec.host`; podIPs can be named, and is always empty.
    selectable_field_paths={"spec.host": "spec.nodeName", "status.podIPs": "status.noPodIPs"},
    generation=True,
    deletion_returns_object=True,
)
CONFIG_MAP = Kind(
    "", "v1", "ConfigMap", "configmaps", "core.v1.ConfigMap",
    singular="configmap", short_names=("cm",),
)  # fmt: skip
EVENT = Kind(
    "", "v1", "Event", "events", "core.v1.Event",
    singular="event", short_names=("ev",),
    selectable_fields={
        **METADATA_SELECTORS, "involvedObject.kind": "", "involvedObject.namespace": "",
        "involvedObject.name": "", "involvedObject.uid": "", "involvedObject.apiVersion": "",
        "involvedObject.resourceVersion": "", "involvedObject.fieldPath": "", "reason": "",
        "reportingComponent": "", "source": "", "type": "",
    },
    selectable_field_paths={"source": "source.component"},
    create_on_update=True, ignores_propagation=True,
)  # fmt: skip
SECRET = Kind(
    "", "v1", "Secret", "secrets", "core.v1.Secret",
    singular="secret", selectable_fields={**METADATA_SELECTORS, "type": ""},
)  # fmt: skip
SERVICE_ACCOUNT = Kind(
    "", "v1", "ServiceAccount", "serviceaccounts", "core.v1.ServiceAccount",
    singular="serviceaccount", short_names=("sa",), subresources=("token",),
    deletion_returns_object=True,
)  # fmt: skip
SERVICE = Kind(
    "", "v1", "Service", "services", "core.v1.Service",
    singular="service", short_names=("svc",), categories=("all",), subresources=("status",),
    selectable_fields={**METADATA_SELECTORS, "spec.clusterIP": "", "spec.type": ""},
    create_on_update=True, deletion_returns_object=True,
)  # fmt: skip
PERSISTENT_VOLUME = Kind(
    "", "v1", "PersistentVolume", "persistentvolumes", "core.v1.PersistentVolume",
    namespaced=False, singular="persistentvolume", short_names=("pv",), subresources=("status",),
    deletion_returns_object=True,
)  # fmt: skip
PERSISTENT_VOLUME_CLAIM = Kind(
    "", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", "core.v1.PersistentVolumeClaim",
    singular="persistentvolumeclaim", short_names=("pvc",), subresources=("status",),
    deletion_returns_object=True,
)  # fmt: skip
RESOURCE_QUOTA = Kind(
    "", "v1", "ResourceQuota", "resourcequotas", "core.v1.ResourceQuota",
    singular="resourcequota", short_names=("quota",), subresources=("status",),
    deletion_returns_object=True,
)  # fmt: skip
LIMIT_RANGE = Kind(
    "", "v1", "LimitRange", "limitranges", "core.v1.LimitRange",
    singular="limitrange", short_names=("limits",), create_on_update=True,
)  # fmt: skip
POD_TEMPLATE = Kind(
    "", "v1", "PodTemplate", "podtemplates", "core.v1.PodTemplate",
    singular="podtemplate", generation=True, generation_fields=("template",),
    deletion_returns_object=True,
)  # fmt: skip
JOB = Kind(
    "batch", "v1", "Job", "jobs", "batch.v1.Job",
    singular="job", categories=("all",), subresources=("status",),
    selectable_fields={**METADATA_SELECTORS, "status.successful": "0"},
    selectable_field_paths={"status.successful": "status.succeeded"},
    generation=True, orphans_by_default=True,
)  # fmt: skip
CRON_JOB = Kind(
    "batch", "v1", "CronJob", "cronjobs", "batch.v1.CronJob",
    singular="cronjob", short_names=("cj",), categories=("all",), subresources=("status",),
    generation=True,
)  # fmt: skip
POD_DISRUPTION_BUDGET = Kind(
    "policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", "policy.v1.PodDisruptionBudget",
    singular="poddisruptionbudget", short_names=("pdb",), subresources=("status",),
    generation=True, update_without_version=False,
)  # fmt: skip
ROLE = Kind(
    RBAC_GROUP, "v1", "Role", "roles", "rbac.v1.Role",
    singular="role", create_on_update=True,
)  # fmt: skip
CLUSTER_ROLE = Kind(
    RBAC_GROUP, "v1", "ClusterRole", "clusterroles", "rbac.v1.ClusterRole",
    namespaced=False, singular="clusterrole", create_on_update=True,
)  # fmt: skip
ROLE_BINDING = Kind(
    RBAC_GROUP, "v1", "RoleBinding", "rolebindings", "rbac.v1.RoleBinding",
    singular="rolebinding", create_on_update=True,
)  # fmt: skip
CLUSTER_ROLE_BINDING = Kind(
    RBAC_GROUP, "v1", "ClusterRoleBinding", "clusterrolebindings", "rbac.v1.ClusterRoleBinding",
    namespaced=False, singular="clusterrolebinding", create_on_update=True,
)  # fmt: skip
LEASE = Kind(
    "coordination.k8s.io", "v1", "Lease", "leases", "coordination.v1.Lease",
    singular="lease", create_on_update=True, update_without_version=False,
)  # fmt: skip
PRIORITY_CLASS = Kind(
    "scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", "scheduling.v1.PriorityClass",
    namespaced=False, singular="priorityclass", short_names=("pc",), generation=True,
)  # fmt: skip
POD_GROUP = Kind(
    "scheduling.k8s.io", "v1beta1", "PodGroup", "podgroups", "scheduling.v1beta1.PodGroup",
    singular="podgroup", subresources=("status",), update_without_version=False,
    status_updates_metadata=False,
)  # fmt: skip
WORKLOAD = Kind(
    "scheduling.k8s.io", "v1beta1", "Workload", "workloads", "scheduling.v1beta1.Workload",
    singular="workload", update_without_version=False,
)  # fmt: skip
COMPOSITE_POD_GROUP = Kind(
    "scheduling.k8s.io", "v1alpha3", "CompositePodGroup", "compositepodgroups",
    "scheduling.v1alpha3.CompositePodGroup",
    singular="compositepodgroup", short_names=("cpg",), subresources=("status",),
    update_without_version=False,
    status_updates_metadata=False,
)  # fmt: skip
POD_GROUP_V1ALPHA3 = POD_GROUP.with_version("v1alpha3")
WORKLOAD_V1ALPHA3 = WORKLOAD.with_version("v1alpha3")
POD_GROUP_V1ALPHA2 = POD_GROUP.with_deprecated_version("v1alpha2")
WORKLOAD_V1ALPHA2 = WORKLOAD.with_deprecated_version("v1alpha2")
POD_GROUP_V1ALPHA1 = POD_GROUP.with_deprecated_version("v1alpha1")
WORKLOAD_V1ALPHA1 = WORKLOAD.with_deprecated_version("v1alpha1")
RESOURCE_CLAIM = Kind(
    "resource.k8s.io", "v1", "ResourceClaim", "resourceclaims", "resource.v1.ResourceClaim",
    singular="resourceclaim", subresources=("status",), deletion_returns_object=True,
    status_updates_metadata=False,
)  # fmt: skip
RESOURCE_CLAIM_TEMPLATE = Kind(
    "resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates",
    "resource.v1.ResourceClaimTemplate",
    singular="resourceclaimtemplate", deletion_returns_object=True,
)  # fmt: skip
ENDPOINT_SLICE = Kind(
    "discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", "discovery.v1.EndpointSlice",
    singular="endpointslice", generation=True, generation_fields=("endpoints", "ports"),
)  # fmt: skip
DEVICE_CLASS = Kind(
    "resource.k8s.io", "v1", "DeviceClass", "deviceclasses", "resource.v1.DeviceClass",
    namespaced=False, singular="deviceclass", generation=True, deletion_returns_object=True,
)  # fmt: skip
RESOURCE_SLICE = Kind(
    "resource.k8s.io", "v1", "ResourceSlice", "resourceslices", "resource.v1.ResourceSlice",
    namespaced=False, singular="resourceslice",
    selectable_fields={
        "metadata.name": "", "spec.driver": "", "spec.nodeName": "", "spec.pool.name": "",
    },
    generation=True, deletion_returns_object=True,
)  # fmt: skip
STORAGE_CLASS = Kind(
    "storage.k8s.io", "v1", "StorageClass", "storageclasses", "storage.v1.StorageClass",
    namespaced=False, singular="storageclass", short_names=("sc",),
    deletion_returns_object=True,
)  # fmt: skip
CSI_DRIVER = Kind(
    "storage.k8s.io", "v1", "CSIDriver", "csidrivers", "storage.v1.CSIDriver",
    namespaced=False, singular="csidriver",
    update_without_version=False, deletion_returns_object=True,
)  # fmt: skip
CSI_NODE = Kind(
    "storage.k8s.io", "v1", "CSINode", "csinodes", "storage.v1.CSINode",
    namespaced=False, singular="csinode", subresources=("status",),
    update_without_version=False, deletion_returns_object=True,
)  # fmt: skip
CSI_STORAGE_CAPACITY = Kind(
    "storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities",
    "storage.v1.CSIStorageCapacity",
    singular="csistoragecapacity", update_without_version=False,
)  # fmt: skip
VOLUME_ATTACHMENT = Kind(
    "storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", "storage.v1.VolumeAttachment",
    namespaced=False, singular="volumeattachment", subresources=("status",),
    status_updates_metadata=False, update_without_version=False, deletion_returns_object=True,
)  # fmt: skip
VOLUME_ATTRIBUTES_CLASS = Kind(
    "storage.k8s.io", "v1", "VolumeAttributesClass", "volumeattributesclasses",
    "storage.v1.VolumeAttributesClass",
    namespaced=False, singular="volumeattributesclass", short_names=("vac",),
    deletion_returns_object=True,
)  # fmt: skip
STATEFUL_SET = Kind(
    "apps", "v1", "StatefulSet", "statefulsets", "apps.v1.StatefulSet",
    singular="statefulset", short_names=("sts",), categories=("all",),
    subresources=("status", "scale"),
    scale=ScalePaths(("spec", "replicas"), ("status", "replicas"), ("spec", "selector")),
    selectable_fields={**METADATA_SELECTORS, "status.successful": ""},
    generation=True,
)  # fmt: skip
CONTROLLER_REVISION = Kind(
    "apps", "v1", "ControllerRevision", "controllerrevisions", "apps.v1.ControllerRevision",
    singular="controllerrevision",
)  # fmt: skip
DEPLOYMENT = Kind(
    "apps", "v1", "Deployment", "deployments", "apps.v1.Deployment",
    singular="deployment", short_names=("deploy",), categories=("all",),
    subresources=("status", "scale"),
    scale=ScalePaths(("spec", "replicas"), ("status", "replicas"), ("spec", "selector")),
    generation=True, status_updates_metadata=True,
)  # fmt: skip
REPLICA_SET = Kind(
    "apps", "v1", "ReplicaSet", "replicasets", "apps.v1.ReplicaSet",
    singular="replicaset", short_names=("rs",), categories=("all",),
    subresources=("status", "scale"),
    scale=ScalePaths(("spec", "replicas"), ("status", "replicas"), ("spec", "selector")),
    selectable_fields={**METADATA_SELECTORS, "status.replicas": "0"},
    generation=True, status_updates_metadata=True,
)  # fmt: skip
DAEMON_SET = Kind(
    "apps", "v1", "DaemonSet", "daemonsets", "apps.v1.DaemonSet",
    singular="daemonset", short_names=("ds",), categories=("all",), subresources=("status",),
    generation=True, status_updates_metadata=True,
)  # fmt: skip
REPLICATION_CONTROLLER = Kind(
    "", "v1", "ReplicationController", "replicationcontrollers", "core.v1.ReplicationController",
    singular="replicationcontroller", short_names=("rc",), categories=("all",),
    subresources=("status", "scale"),
    scale=ScalePaths(
        ("spec", "replicas"), ("status", "replicas"), ("spec", "selector"), selects_by_labels=True
    ),
    selectable_fields={**METADATA_SELECTORS, "status.replicas": "0"},
    generation=True, orphans_by_default=True, status_updates_metadata=True,
)  # fmt: skip
DEVICE_TAINT_RULE = Kind(
    "resource.k8s.io", "v1", "DeviceTaintRule", "devicetaintrules", "resource.v1.DeviceTaintRule",
    namespaced=False, singular="devicetaintrule", subresources=("status",),
    status_updates_metadata=False, generation=True, deletion_returns_object=True,
)  # fmt: skip
DEVICE_CLASS_V1BETA2 = DEVICE_CLASS.with_version("v1beta2")
DEVICE_TAINT_RULE_V1BETA2 = DEVICE_TAINT_RULE.with_version("v1beta2")
RESOURCE_CLAIM_V1BETA2 = RESOURCE_CLAIM.with_version("v1beta2")
RESOURCE_CLAIM_TEMPLATE_V1BETA2 = RESOURCE_CLAIM_TEMPLATE.with_version("v1beta2")
RESOURCE_SLICE_V1BETA2 = RESOURCE_SLICE.with_version("v1beta2")
DEVICE_CLASS_V1BETA1 = DEVICE_CLASS.with_version("v1beta1")
RESOURCE_CLAIM_V1BETA1 = RESOURCE_CLAIM.with_version("v1beta1")
RESOURCE_CLAIM_TEMPLATE_V1BETA1 = RESOURCE_CLAIM_TEMPLATE.with_version("v1beta1")
RESOURCE_SLICE_V1BETA1 = RESOURCE_SLICE.with_version("v1beta1")
JOB_SET = Kind(
    "jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets", "jobset.v1alpha2.JobSet",
    singular="jobset", subresources=("status",), generation=True, update_without_version=False,
    status_updates_metadata=False,
)  # fmt: skip
LEADER_WORKER_SET = Kind(
    "leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets",
    "leaderworkerset.v1.LeaderWorkerSet",
    singular="leaderworkerset", short_names=("lws",), subresources=("status", "scale"),
    scale=ScalePaths(("spec", "replicas"), ("status", "replicas"), ("status", "hpaPodSelector")),
    generation=True, update_without_version=False, status_updates_metadata=False,
)  # fmt: skip
GROUP_BINDING = Kind(
    "phalanx.dev", "v1alpha1", "GroupBinding", "groupbindings", "phalanx.v1alpha1.GroupBinding",
    singular="groupbinding", verbs=("create",),
)  # fmt: skip
GROUP_EVICTION = Kind(
    "phalanx.dev", "v1alpha1", "GroupEviction", "groupevictions", "phalanx.v1alpha1.GroupEviction",
    singular="groupeviction", verbs=("create",),
)  # fmt: skip
LEASE_RENEWAL = Kind(
    "phalanx.dev", "v1alpha1", "LeaseRenewal", "leaserenewals", "phalanx.v1alpha1.LeaseRenewal",
    singular="leaserenewal", verbs=("create",),
)  # fmt: skip
BINDING = Kind(
    "", "v1", "Binding", "bindings", "core.v1.Binding",
    singular="binding", verbs=("create",),
)  # fmt: skip

EVICTION = Kind(
    "policy", "v1", "Eviction", "evictions", "policy.v1.Eviction",
    singular="eviction", verbs=("create",),
)  # fmt: skip
EVENTS_EVENT = Kind(
    "events.k8s.io",
    "v1",
    "Event",
    "events",
    "events.v1.Event",
    singular="event",
    short_names=("ev",),
    selectable_fields={
        **METADATA_SELECTORS,
        "regarding.kind": "",
        "regarding.namespace": "",
        "regarding.name": "",
        "regarding.uid": "",
        "regarding.apiVersion": "",
        "regarding.resourceVersion": "",
        "regarding.fieldPath": "",
        "reason": "",
        "reportingController": "",
        "type": "",
    },
    selectable_field_paths={
        "regarding.kind": "involvedObject.kind",
        "regarding.namespace": "involvedObject.namespace",
        "regarding.name": "involvedObject.name",
        "regarding.uid": "involvedObject.uid",
        "regarding.apiVersion": "involvedObject.apiVersion",
        "regarding.resourceVersion": "involvedObject.resourceVersion",
        "regarding.fieldPath": "involvedObject.fieldPath",
        "reportingController": "reportingComponent",
    },
    create_on_update=True,
    ignores_propagation=True,
)
CUSTOM_RESOURCE_DEFINITION = Kind(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    "apiextensions.v1.CustomResourceDefinition",
    namespaced=False,
    singular="customresourcedefinition",
    short_names=("crd", "crds"),
    categories=("api-extensions",),
    subresources=("status",),
    generation=True,
    update_without_version=False,
)
SELF_SUBJECT_REVIEW = Kind(
    "authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews",
    "authentication.v1.SelfSubjectReview",
    namespaced=False, singular="selfsubjectreview", verbs=("create",),
)  # fmt: skip
TOKEN_REVIEW = Kind(
    "authentication.k8s.io", "v1", "TokenReview", "tokenreviews", "authentication.v1.TokenReview",
    namespaced=False, singular="tokenreview", verbs=("create",),
)  # fmt: skip
TOKEN_REQUEST = Kind(
    "authentication.k8s.io", "v1", "TokenRequest", "tokenrequests",
    "authentication.v1.TokenRequest", singular="tokenrequest", verbs=("create",),
)  # fmt: skip
LOCAL_SUBJECT_ACCESS_REVIEW = Kind(
    "authorization.k8s.io", "v1", "LocalSubjectAccessReview", "localsubjectaccessreviews",
    "authorization.v1.LocalSubjectAccessReview",
    singular="localsubjectaccessreview", verbs=("create",),
)  # fmt: skip
SELF_SUBJECT_ACCESS_REVIEW = Kind(
    "authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews",
    "authorization.v1.SelfSubjectAccessReview",
    namespaced=False, singular="selfsubjectaccessreview", verbs=("create",),
)  # fmt: skip
SELF_SUBJECT_RULES_REVIEW = Kind(
    "authorization.k8s.io", "v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews",
    "authorization.v1.SelfSubjectRulesReview",
    namespaced=False, singular="selfsubjectrulesreview", verbs=("create",),
)  # fmt: skip
SUBJECT_ACCESS_REVIEW = Kind(
    "authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews",
    "authorization.v1.SubjectAccessReview",
    namespaced=False, singular="subjectaccessreview", verbs=("create",),
)  # fmt: skip
POD_METRICS = Kind(
    "metrics.k8s.io", "v1beta1", "PodMetrics", "pods", "metrics.v1beta1.PodMetrics",
    verbs=("create", "get", "list"),
)  # fmt: skip
NODE_METRICS = Kind(
    "metrics.k8s.io", "v1beta1", "NodeMetrics", "nodes", "metrics.v1beta1.NodeMetrics",
    namespaced=False, verbs=("get", "list"),
)  # fmt: skip

#: All served kinds, in the order of discovery.
KINDS = (
    BINDING, COMPONENT_STATUS, CONFIG_MAP, ENDPOINTS, EVENT, LIMIT_RANGE, NAMESPACE, NODE,
    PERSISTENT_VOLUME_CLAIM, PERSISTENT_VOLUME, POD,
    POD_TEMPLATE, REPLICATION_CONTROLLER, RESOURCE_QUOTA, SECRET,
    SERVICE_ACCOUNT, SERVICE,
    CUSTOM_RESOURCE_DEFINITION, EVENTS_EVENT, CRON_JOB, JOB, POD_DISRUPTION_BUDGET,
    SELF_SUBJECT_REVIEW, TOKEN_REVIEW, LOCAL_SUBJECT_ACCESS_REVIEW, SELF_SUBJECT_ACCESS_REVIEW,
    SELF_SUBJECT_RULES_REVIEW, SUBJECT_ACCESS_REVIEW,
    CLUSTER_ROLE_BINDING, CLUSTER_ROLE, ROLE_BINDING, ROLE,
    PRIORITY_CLASS, POD_GROUP, WORKLOAD,
    COMPOSITE_POD_GROUP, POD_GROUP_V1ALPHA3, WORKLOAD_V1ALPHA3,
    POD_GROUP_V1ALPHA2, WORKLOAD_V1ALPHA2, POD_GROUP_V1ALPHA1, WORKLOAD_V1ALPHA1, LEASE,
    ENDPOINT_SLICE, DEVICE_CLASS, DEVICE_TAINT_RULE, RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE,
    RESOURCE_SLICE, CONTROLLER_REVISION, DAEMON_SET, DEPLOYMENT, REPLICA_SET, STATEFUL_SET,
    DEVICE_CLASS_V1BETA2, DEVICE_TAINT_RULE_V1BETA2, RESOURCE_CLAIM_V1BETA2,
    RESOURCE_CLAIM_TEMPLATE_V1BETA2, RESOURCE_SLICE_V1BETA2, DEVICE_CLASS_V1BETA1,
    RESOURCE_CLAIM_V1BETA1, RESOURCE_CLAIM_TEMPLATE_V1BETA1, RESOURCE_SLICE_V1BETA1,
    CSI_DRIVER, CSI_NODE, CSI_STORAGE_CAPACITY, STORAGE_CLASS, VOLUME_ATTACHMENT,
    VOLUME_ATTRIBUTES_CLASS,
    HORIZONTAL_POD_AUTOSCALER, HORIZONTAL_POD_AUTOSCALER_V1,
    INGRESS_CLASS, INGRESS, IP_ADDRESS, NETWORK_POLICY, SERVICE_CIDR, RUNTIME_CLASS,
    CERTIFICATE_SIGNING_REQUEST, CLUSTER_TRUST_BUNDLE, POD_CERTIFICATE_REQUEST,
    CLUSTER_TRUST_BUNDLE_V1BETA1, POD_CERTIFICATE_REQUEST_V1BETA1, LEASE_CANDIDATE,
    FLOW_SCHEMA, PRIORITY_LEVEL_CONFIGURATION, API_SERVICE,
    MUTATING_ADMISSION_POLICY, MUTATING_ADMISSION_POLICY_BINDING, MUTATING_WEBHOOK_CONFIGURATION,
    VALIDATING_ADMISSION_POLICY, VALIDATING_ADMISSION_POLICY_BINDING,
    VALIDATING_WEBHOOK_CONFIGURATION,
    STORAGE_VERSION_MIGRATION, STORAGE_VERSION_MIGRATION_V1BETA1,
    JOB_SET, LEADER_WORKER_SET, GROUP_BINDING, GROUP_EVICTION,
    LEASE_RENEWAL, NODE_METRICS, POD_METRICS,
)  # fmt: skip
