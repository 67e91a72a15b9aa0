"""Kinds of networking, autoscaling, certificates, admission and flow control, and beta versions.

More rows of `kinds.py`, which lists all kinds in the order of discovery.
"""

from __future__ import annotations

from phalanx.api.kind import METADATA_SELECTORS, Kind

_API_EXTENSIONS = ("api-extensions",)
_AUTOSCALING, _NETWORKING = "autoscaling", "networking.k8s.io"
_CERTIFICATES, _FLOW_CONTROL = "certificates.k8s.io", "flowcontrol.apiserver.k8s.io"
_ADMISSION, _MIGRATION = "admissionregistration.k8s.io", "storagemigration.k8s.io"

ENDPOINTS = Kind(
    "", "v1", "Endpoints", "endpoints", "core.v1.Endpoints",
    singular="endpoints", short_names=("ep",), create_on_update=True,
    deprecation="v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
)  # fmt: skip
COMPONENT_STATUS = Kind(
    "", "v1", "ComponentStatus", "componentstatuses", "core.v1.ComponentStatus",
    namespaced=False, singular="componentstatus", short_names=("cs",), verbs=("get", "list"),
    deprecation="v1 ComponentStatus is deprecated in v1.19+",
)  # fmt: skip
HORIZONTAL_POD_AUTOSCALER = Kind(
    _AUTOSCALING, "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers",
    "autoscaling.v2.HorizontalPodAutoscaler",
    singular="horizontalpodautoscaler", short_names=("hpa",), categories=("all",),
    subresources=("status",), status_updates_metadata=True,
)  # fmt: skip
HORIZONTAL_POD_AUTOSCALER_V1 = HORIZONTAL_POD_AUTOSCALER.with_version("v1")
INGRESS = Kind(
    _NETWORKING, "v1", "Ingress", "ingresses", "networking.v1.Ingress",
    singular="ingress", short_names=("ing",), subresources=("status",),
    generation=True, status_updates_metadata=True, has_no_controller=True,
)  # fmt: skip
INGRESS_CLASS = Kind(
    _NETWORKING, "v1", "IngressClass", "ingressclasses", "networking.v1.IngressClass",
    namespaced=False, singular="ingressclass", generation=True,
)  # fmt: skip
NETWORK_POLICY = Kind(
    _NETWORKING, "v1", "NetworkPolicy", "networkpolicies", "networking.v1.NetworkPolicy",
    singular="networkpolicy", short_names=("netpol",), generation=True, has_no_controller=True,
)  # fmt: skip
IP_ADDRESS = Kind(
    _NETWORKING, "v1", "IPAddress", "ipaddresses", "networking.v1.IPAddress",
    namespaced=False, singular="ipaddress", short_names=("ip",), generation=True,
    selectable_fields={"metadata.name": "", "spec.parentRef": ""},
)  # fmt: skip
SERVICE_CIDR = Kind(
    _NETWORKING, "v1", "ServiceCIDR", "servicecidrs", "networking.v1.ServiceCIDR",
    namespaced=False, singular="servicecidr", subresources=("status",), generation=True,
)  # fmt: skip
RUNTIME_CLASS = Kind(
    "node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", "node.v1.RuntimeClass",
    namespaced=False, singular="runtimeclass",
)  # fmt: skip
CERTIFICATE_SIGNING_REQUEST = Kind(
    _CERTIFICATES, "v1", "CertificateSigningRequest", "certificatesigningrequests",
    "certificates.v1.CertificateSigningRequest",
    namespaced=False, singular="certificatesigningrequest", short_names=("csr",),
    subresources=("approval", "status"),
    selectable_fields={"metadata.name": "", "spec.signerName": ""},
)  # fmt: skip
CLUSTER_TRUST_BUNDLE = Kind(
    _CERTIFICATES, "v1", "ClusterTrustBundle", "clustertrustbundles",
    "certificates.v1.ClusterTrustBundle",
    namespaced=False, singular="clustertrustbundle",
    selectable_fields={"metadata.name": "", "spec.signerName": ""}, update_without_version=False,
)  # fmt: skip
POD_CERTIFICATE_REQUEST = Kind(
    _CERTIFICATES, "v1", "PodCertificateRequest", "podcertificaterequests",
    "certificates.v1.PodCertificateRequest",
    singular="podcertificaterequest", subresources=("status",),
    selectable_fields={**METADATA_SELECTORS, "spec.signerName": "", "spec.podName": "",
                       "spec.nodeName": ""},
    has_no_controller=True,
)  # fmt: skip
CLUSTER_TRUST_BUNDLE_V1BETA1 = CLUSTER_TRUST_BUNDLE.with_version("v1beta1")
POD_CERTIFICATE_REQUEST_V1BETA1 = POD_CERTIFICATE_REQUEST.with_version("v1beta1")
LEASE_CANDIDATE = Kind(
    "coordination.k8s.io", "v1beta1", "LeaseCandidate", "leasecandidates",
    "coordination.v1beta1.LeaseCandidate",
    singular="leasecandidate", create_on_update=True, update_without_version=False,
)  # fmt: skip
FLOW_SCHEMA = Kind(
    _FLOW_CONTROL, "v1", "FlowSchema", "flowschemas", "flowcontrol.v1.FlowSchema",
    namespaced=False, singular="flowschema", subresources=("status",), generation=True,
)  # fmt: skip
PRIORITY_LEVEL_CONFIGURATION = Kind(
    _FLOW_CONTROL, "v1", "PriorityLevelConfiguration", "prioritylevelconfigurations",
    "flowcontrol.v1.PriorityLevelConfiguration",
    namespaced=False, singular="prioritylevelconfiguration", subresources=("status",),
    generation=True,
)  # fmt: skip
API_SERVICE = Kind(
    "apiregistration.k8s.io", "v1", "APIService", "apiservices", "apiregistration.v1.APIService",
    namespaced=False, singular="apiservice", categories=_API_EXTENSIONS, subresources=("status",),
)  # fmt: skip
STORAGE_VERSION_MIGRATION = Kind(
    _MIGRATION, "v1", "StorageVersionMigration", "storageversionmigrations",
    "storagemigration.v1.StorageVersionMigration",
    namespaced=False, singular="storageversionmigration", subresources=("status",),
    generation=True, has_no_controller=True,
)  # fmt: skip
STORAGE_VERSION_MIGRATION_V1BETA1 = STORAGE_VERSION_MIGRATION.with_version("v1beta1")


def _admission_kind(name: str, plural: str, *subresources: str) -> Kind:
    return Kind(
        _ADMISSION, "v1", name, plural, f"admissionregistration.v1.{name}",
        namespaced=False, singular=name.lower(), categories=_API_EXTENSIONS,
        subresources=subresources, generation=True,
    )  # fmt: skip


MUTATING_WEBHOOK_CONFIGURATION = _admission_kind(
    "MutatingWebhookConfiguration", "mutatingwebhookconfigurations"
)
VALIDATING_WEBHOOK_CONFIGURATION = _admission_kind(
    "ValidatingWebhookConfiguration", "validatingwebhookconfigurations"
)
MUTATING_ADMISSION_POLICY = _admission_kind("MutatingAdmissionPolicy", "mutatingadmissionpolicies")
MUTATING_ADMISSION_POLICY_BINDING = _admission_kind(
    "MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings"
)
VALIDATING_ADMISSION_POLICY = _admission_kind(
    "ValidatingAdmissionPolicy", "validatingadmissionpolicies", "status"
)
VALIDATING_ADMISSION_POLICY_BINDING = _admission_kind(
    "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"
)
