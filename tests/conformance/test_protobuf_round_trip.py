"""The official client sends and reads every kind that has a protobuf message, in both encodings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client

from phalanx.api.kinds import KINDS, Kind
from phalanx.api.protobuf import decode, message_name
from phalanx.api.protobuf_encoder import encode
from phalanx.api.wire import Object
from tests.api.custom_resource_definitions import custom_resource_definition
from tests.api.validation.test_platform_kinds import signing_request
from tests.conformance.official_client import connected
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.slow

PROTOBUF, JSON, MERGE = (
    "application/vnd.kubernetes.protobuf", "application/json", "application/merge-patch+json",
)  # fmt: skip
VERBS = {"create", "get", "update", "patch", "delete", "list"}
#: Kinds whose objects only a kubelet or an authority writes; their messages are tested elsewhere.
NOT_WRITTEN_BY_USERS = {"PodCertificateRequest", "ClusterTrustBundle"}

_POD: Object = {"containers": [{"name": "main", "image": "registry.example/main:1"}]}
_JOB_POD: Object = {**_POD, "restartPolicy": "Never"}
_LABELS: Object = {"app": "x"}
_SELECTOR: Object = {"matchLabels": _LABELS}
_TEMPLATE: Object = {"metadata": {"labels": _LABELS}, "spec": _POD}
_WORKLOAD: Object = {"spec": {"selector": _SELECTOR, "template": _TEMPLATE}}
_ROLE: Object = {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}
_REQUEST: Object = {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}
_OLD_REQUEST: Object = {"name": "gpu", "deviceClassName": "gpu.example.com"}
_TAINT: Object = {"key": "k", "effect": "NoSchedule"}
_SLICE: Object = {
    "spec": {
        "driver": "gpu.example.com", "nodeName": "n", "devices": [{"name": "d"}],
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
    }
}  # fmt: skip
_GANG: Object = {"gang": {"minCount": 2}}
_GROUPS: Object = {"spec": {"podGroupTemplates": [{"name": "t", "schedulingPolicy": _GANG}]}}
_TARGET: Object = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}
_WEBHOOKS: Object = {
    "webhooks": [{
        "name": "a.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://localhost:1/a"},
        "rules": [{"apiGroups": ["none.example.com"], "apiVersions": ["v1"],
                   "operations": ["CREATE"], "resources": ["things"]}],
    }]
}  # fmt: skip
_CONSTRAINTS: Object = {"resourceRules": _WEBHOOKS["webhooks"][0]["rules"]}
_MIGRATION: Object = {"spec": {"resource": {"group": "", "resource": "configmaps"}}}


def _role_binding(kind: str) -> Object:
    return {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "r"}}


def _claims(version: str, request: Object) -> dict[tuple[str, str], Object]:
    spec: Object = {"devices": {"requests": [request]}}
    return {
        (f"resource.k8s.io/{version}", "DeviceClass"): {"spec": {}},
        (f"resource.k8s.io/{version}", "ResourceClaim"): {"spec": spec},
        (f"resource.k8s.io/{version}", "ResourceClaimTemplate"): {"spec": {"spec": spec}},
    }


#: The smallest objects that are valid, by version and kind.
OBJECTS: dict[tuple[str, str], Object] = {
    ("v1", "ConfigMap"): {"data": {"a": "b"}, "binaryData": {"c": "AAE="}},
    ("v1", "Endpoints"): {"subsets": [{"addresses": [{"ip": "10.1.2.3"}], "ports": [{"port": 1}]}]},
    ("v1", "Event"): {"involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}},
    ("v1", "LimitRange"): {"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}}]}},
    ("v1", "Namespace"): {},
    ("v1", "Node"): {"spec": {"taints": [_TAINT]}},
    ("v1", "PersistentVolumeClaim"): {
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        }
    },
    ("v1", "PersistentVolume"): {
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "hostPath": {"path": "/data"},
        }
    },
    ("v1", "Pod"): {"spec": _POD},
    ("v1", "PodTemplate"): {"template": {"spec": _POD}},
    ("v1", "ReplicationController"): {"spec": {"selector": _LABELS, "template": _TEMPLATE}},
    ("v1", "ResourceQuota"): {"spec": {"hard": {"pods": "5"}}},
    ("v1", "Secret"): {"data": {"a": "MQ=="}},
    ("v1", "ServiceAccount"): {},
    ("v1", "Service"): {"spec": {"selector": _LABELS, "ports": [{"port": 80}]}},
    ("events.k8s.io/v1", "Event"): {
        "eventTime": "2026-01-02T03:04:05.000006Z", "reportingController": "example.com/c",
        "reportingInstance": "i", "action": "Making", "reason": "Made", "type": "Normal",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
    },
    ("batch/v1", "CronJob"): {
        "spec": {"schedule": "5 4 * * *",
                 "jobTemplate": {"spec": {"template": {"spec": _JOB_POD}}}}
    },
    ("batch/v1", "Job"): {"spec": {"template": {"spec": _JOB_POD}}},
    ("policy/v1", "PodDisruptionBudget"): {"spec": {"minAvailable": "50%", "selector": _SELECTOR}},
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): _role_binding("ClusterRole"),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"): _ROLE,
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): _role_binding("Role"),
    ("rbac.authorization.k8s.io/v1", "Role"): _ROLE,
    ("scheduling.k8s.io/v1", "PriorityClass"): {"value": 5},
    ("scheduling.k8s.io/v1beta1", "PodGroup"): {"spec": {"schedulingPolicy": _GANG}},
    ("scheduling.k8s.io/v1beta1", "Workload"): _GROUPS,
    ("scheduling.k8s.io/v1alpha3", "PodGroup"): {"spec": {"schedulingPolicy": _GANG}},
    ("scheduling.k8s.io/v1alpha3", "Workload"): _GROUPS,
    ("scheduling.k8s.io/v1alpha3", "CompositePodGroup"): {
        "spec": {
            "schedulingPolicy": {"gang": {"minGroupCount": 2}},
            "workloadRef": {"workloadName": "w", "templateName": "t"},
        }
    },
    ("coordination.k8s.io/v1", "Lease"): {"spec": {"holderIdentity": "h"}},
    ("discovery.k8s.io/v1", "EndpointSlice"): {
        "addressType": "IPv4", "endpoints": [{"addresses": ["10.1.2.3"]}], "ports": [{"port": 1}],
    },
    **_claims("v1", _REQUEST),
    **_claims("v1beta2", _REQUEST),
    **_claims("v1beta1", _OLD_REQUEST),
    ("resource.k8s.io/v1", "ResourceSlice"): _SLICE,
    ("resource.k8s.io/v1beta2", "ResourceSlice"): _SLICE,
    ("resource.k8s.io/v1beta1", "ResourceSlice"): {
        "spec": {**_SLICE["spec"], "devices": [{"name": "d", "basic": {}}]}
    },
    ("resource.k8s.io/v1", "DeviceTaintRule"): {"spec": {"taint": _TAINT}},
    ("resource.k8s.io/v1beta2", "DeviceTaintRule"): {"spec": {"taint": _TAINT}},
    ("apps/v1", "ControllerRevision"): {"data": {"a": {"b": 1}}, "revision": 1},
    ("apps/v1", "DaemonSet"): _WORKLOAD,
    ("apps/v1", "Deployment"): _WORKLOAD,
    ("apps/v1", "ReplicaSet"): _WORKLOAD,
    ("apps/v1", "StatefulSet"): {"spec": {**_WORKLOAD["spec"], "serviceName": "s"}},
    ("storage.k8s.io/v1", "CSIDriver"): {"spec": {}},
    ("storage.k8s.io/v1", "CSINode"): {"spec": {"drivers": [{"name": "d", "nodeID": "n"}]}},
    ("storage.k8s.io/v1", "CSIStorageCapacity"): {"storageClassName": "s", "capacity": "1Gi"},
    ("storage.k8s.io/v1", "StorageClass"): {"provisioner": "disk.example.com"},
    ("storage.k8s.io/v1", "VolumeAttachment"): {
        "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v"}}
    },
    ("storage.k8s.io/v1", "VolumeAttributesClass"): {
        "driverName": "disk.example.com", "parameters": {"a": "b"},
    },
    ("autoscaling/v1", "HorizontalPodAutoscaler"): {
        "spec": {"scaleTargetRef": _TARGET, "maxReplicas": 3, "targetCPUUtilizationPercentage": 60}
    },
    ("autoscaling/v2", "HorizontalPodAutoscaler"): {
        "spec": {"scaleTargetRef": _TARGET, "maxReplicas": 3}
    },
    ("networking.k8s.io/v1", "IngressClass"): {"spec": {"controller": "example.com/c"}},
    ("networking.k8s.io/v1", "Ingress"): {
        "spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}
    },
    ("networking.k8s.io/v1", "IPAddress"): {
        "spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "s"}}
    },
    ("networking.k8s.io/v1", "NetworkPolicy"): {"spec": {"podSelector": {}}},
    ("networking.k8s.io/v1", "ServiceCIDR"): {"spec": {"cidrs": ["10.99.0.0/24"]}},
    ("node.k8s.io/v1", "RuntimeClass"): {"handler": "runc"},
    ("certificates.k8s.io/v1", "CertificateSigningRequest"): signing_request(),
    ("flowcontrol.apiserver.k8s.io/v1", "FlowSchema"): {
        "spec": {"priorityLevelConfiguration": {"name": "global-default"}}
    },
    ("flowcontrol.apiserver.k8s.io/v1", "PriorityLevelConfiguration"): {
        "spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}}
    },
    ("apiregistration.k8s.io/v1", "APIService"): {
        "spec": {"group": "none.example.com", "version": "v1", "groupPriorityMinimum": 100,
                 "versionPriority": 10, "service": {"namespace": "default", "name": "s"},
                 "insecureSkipTLSVerify": True}
    },
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"): custom_resource_definition(),
    ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"): _WEBHOOKS,
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"): _WEBHOOKS,
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"): {
        "spec": {"matchConstraints": _CONSTRAINTS, "validations": [{"expression": "true"}]}
    },
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"): {
        "spec": {"policyName": "p", "validationActions": ["Deny"]}
    },
    ("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy"): {
        "spec": {
            "matchConstraints": _CONSTRAINTS, "reinvocationPolicy": "Never",
            "failurePolicy": "Fail",
            "mutations": [{"patchType": "ApplyConfiguration",
                           "applyConfiguration": {"expression": "Object{}"}}],
        }
    },
    ("admissionregistration.k8s.io/v1", "MutatingAdmissionPolicyBinding"): {
        "spec": {"policyName": "p"}
    },
    ("storagemigration.k8s.io/v1", "StorageVersionMigration"): _MIGRATION,
    ("storagemigration.k8s.io/v1beta1", "StorageVersionMigration"): _MIGRATION,
}  # fmt: skip
#: Names that follow from the content.
NAMES = {
    "APIService": "v1.none.example.com", "IPAddress": "10.98.7.6",
    "CustomResourceDefinition": "widgets.example.com",
}  # fmt: skip
WRITTEN = [
    kind
    for kind in KINDS
    if set(kind.verbs) >= VERBS
    and message_name(kind.api_version, kind.name)
    and kind.name not in NOT_WRITTEN_BY_USERS
]


@pytest.fixture(scope="module")
def quiet() -> Iterator[client.ApiClient]:
    """The official client of a server whose objects nothing else changes."""
    options = ("--data", ":memory:", "--nodes", "0", "--without", "scheduler,controllers,nodes")
    with ControlPlane(*options) as plane, connected(plane.kubeconfig) as found:
        yield found


def ask(
    api: client.ApiClient, method: str, path: str, *, accept: str = JSON, body: Any = None,
    content: str = JSON,
) -> Object:  # fmt: skip
    """Send a request with the official client; return the decoded reply."""
    headers = {"Accept": accept, "Content-Type": content}
    untyped: Any = api
    prepared = untyped.param_serialize(
        method, path, header_params=headers, body=body, auth_settings=["BearerToken"]
    )
    reply = untyped.call_api(*prepared)
    data = reply.read()
    assert reply.status < 300, data
    is_protobuf = PROTOBUF in reply.getheader("content-type")
    assert is_protobuf == (accept == PROTOBUF)
    found: Object = decode(data) if is_protobuf else json.loads(data)
    return found


def test_every_kind_with_a_message_has_an_object() -> None:
    assert {(kind.api_version, kind.name) for kind in WRITTEN} == set(OBJECTS)


@pytest.mark.parametrize("kind", WRITTEN, ids=lambda kind: f"{kind.name}-{kind.version}")
def test_an_object_is_the_same_in_both_encodings(kind: Kind, quiet: client.ApiClient) -> None:
    name = NAMES.get(kind.name, f"round-trip-{kind.version}")
    body = {**OBJECTS[kind.api_version, kind.name], "metadata": {"name": name}}
    body |= {"apiVersion": kind.api_version, "kind": kind.name}
    namespace = "default" if kind.namespaced else ""
    collection, path = kind.url_path(namespace), kind.url_path(namespace, name)
    made = ask(quiet, "POST", collection, body=body)
    read = ask(quiet, "GET", path, accept=PROTOBUF)
    assert read == ask(quiet, "GET", path) == made
    items = ask(quiet, "GET", collection, accept=PROTOBUF)["items"]
    assert name in [item["metadata"]["name"] for item in items]
    labelled = {**read, "metadata": {**read["metadata"], "labels": {"a": "b"}}}
    written = ask(quiet, "PUT", path, body=encode(labelled), content=PROTOBUF, accept=PROTOBUF)
    assert written["metadata"]["labels"]["a"] == "b"
    assert {**written, "metadata": None} == {**read, "metadata": None}
    change = {"metadata": {"annotations": {"c": "d"}}}
    patched = ask(quiet, "PATCH", path, body=change, content=MERGE, accept=PROTOBUF)
    assert patched["metadata"]["annotations"]["c"] == "d"
    ask(quiet, "DELETE", path)
