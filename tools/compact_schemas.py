"""Writes `src/phalanx/api/schemas/*.json` from a directory of OpenAPI v3 documents.

    python tools/compact_schemas.py FOLDER [TARGET]

One file per group version, one line per definition; `phalanx.api.definitions` documents the format.
The same directory always gives the same bytes. The tables below add what OpenAPI lacks but a
Kubernetes server shows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

Node = str | dict[str, Any]

TARGET = Path(__file__).resolve().parent.parent / "src/phalanx/api/schemas"
_REF = "#/components/schemas/"

#: Prefixes before the short name of a definition, longest first.
PREFIXES = (
    "io.k8s.apiextensions-apiserver.pkg.apis.",
    "io.k8s.kube-aggregator.pkg.apis.",
    "io.k8s.apimachinery.pkg.apis.",
    "io.k8s.apimachinery.pkg.",
    "io.k8s.api.",
)

#: Definitions with a meaning that their schema does not express.
SPECIAL = {
    "api.resource.Quantity": "quantity",
    "util.intstr.IntOrString": "int-or-string",
    "meta.v1.Time": "time",
    "meta.v1.MicroTime": "microtime",
    "meta.v1.FieldsV1": "opaque",
    "meta.v1.Patch": "opaque",
    "runtime.RawExtension": "any",
    "apiextensions.v1.JSON": "any",
    "apiextensions.v1.JSONSchemaPropsOrArray": "any",
    "apiextensions.v1.JSONSchemaPropsOrBool": "any",
    "apiextensions.v1.JSONSchemaPropsOrStringArray": "any",
}

#: (type, format) to scalar.
SCALARS = {
    ("string", ""): "string",
    ("string", "byte"): "bytes",
    ("boolean", ""): "bool",
    ("integer", "int32"): "int32",
    ("integer", "int64"): "int64",
    ("number", "double"): "number",
}

#: Schema keywords: key in OpenAPI and in our format.
FACTS = {
    "enum": "e",
    "default": "d",
    "x-kubernetes-list-type": "lt",
    "x-kubernetes-list-map-keys": "k",
    "x-kubernetes-patch-merge-key": "mk",
    "x-kubernetes-patch-strategy": "ps",
    "x-kubernetes-map-type": "mt",
    "x-kubernetes-unions": "u",
}

#: Optional numbers and booleans that are omitted when zero or false. `readOnly` of every volume
#: source behaves alike.
VANISHING = {
    "apiextensions.v1.CustomResourceColumnDefinition": ("priority",),
    "apiextensions.v1.CustomResourceDefinitionSpec": ("preserveUnknownFields",),
    "apiextensions.v1.CustomResourceDefinitionVersion": ("deprecated",),
    "apiextensions.v1.JSONSchemaProps": (
        "exclusiveMaximum",
        "exclusiveMinimum",
        "nullable",
        "uniqueItems",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-int-or-string",
    ),
    "apps.v1.DaemonSetSpec": ("minReadySeconds",),
    "apps.v1.DaemonSetStatus": (
        "numberAvailable",
        "numberUnavailable",
        "observedGeneration",
        "updatedNumberScheduled",
    ),
    "apps.v1.DeploymentSpec": ("minReadySeconds", "paused"),
    "apps.v1.DeploymentStatus": (
        "availableReplicas",
        "observedGeneration",
        "readyReplicas",
        "replicas",
        "unavailableReplicas",
        "updatedReplicas",
    ),
    "apps.v1.ReplicaSetSpec": ("minReadySeconds",),
    "apps.v1.ReplicaSetStatus": (
        "availableReplicas",
        "fullyLabeledReplicas",
        "observedGeneration",
        "readyReplicas",
    ),
    "apps.v1.StatefulSetSpec": ("minReadySeconds",),
    "apps.v1.StatefulSetStatus": (
        "currentReplicas",
        "observedGeneration",
        "readyReplicas",
        "updatedReplicas",
    ),
    "autoscaling.v2.HorizontalPodAutoscalerStatus": ("currentReplicas",),
    "batch.v1.JobStatus": ("active", "failed", "succeeded"),
    "core.v1.Container": ("stdin", "stdinOnce", "tty"),
    "core.v1.ContainerPort": ("hostPort",),
    "core.v1.ContainerStateTerminated": ("signal",),
    "core.v1.EphemeralContainer": ("stdin", "stdinOnce", "tty"),
    "core.v1.Event": ("count",),
    "core.v1.EventSeries": ("count",),
    "core.v1.NodeSpec": ("unschedulable",),
    "core.v1.PodCondition": ("observedGeneration",),
    "core.v1.PodSpec": ("hostIPC", "hostNetwork", "hostPID"),
    "core.v1.PodStatus": ("observedGeneration",),
    "core.v1.Probe": (
        "failureThreshold",
        "initialDelaySeconds",
        "periodSeconds",
        "successThreshold",
        "timeoutSeconds",
    ),
    "core.v1.ReplicationControllerSpec": ("minReadySeconds",),
    "core.v1.ReplicationControllerStatus": (
        "availableReplicas",
        "fullyLabeledReplicas",
        "observedGeneration",
        "readyReplicas",
    ),
    "core.v1.ServicePort": ("nodePort",),
    "core.v1.ServiceSpec": ("publishNotReadyAddresses",),
    "core.v1.VolumeMount": ("readOnly",),
    "flowcontrol.v1.QueuingConfiguration": ("handSize", "queueLengthLimit", "queues"),
    "flowcontrol.v1.ResourcePolicyRule": ("clusterScope",),
    "meta.v1.Condition": ("observedGeneration",),
    "meta.v1.ObjectMeta": ("generation",),
    "networking.v1.ServiceBackendPort": ("number",),
    "policy.v1.PodDisruptionBudgetStatus": ("observedGeneration",),
    "scheduling.v1.PriorityClass": ("globalDefault",),
    "apiregistration.v1.APIServiceSpec": ("insecureSkipTLSVerify",),
    "admissionregistration.v1.ValidatingAdmissionPolicyStatus": ("observedGeneration",),
}

#: Optional strings, and a map, for which empty differs from absent.
MEANINGFUL_EMPTY = {
    "apiextensions.v1.CustomResourceDefinitionVersion": ("deprecationWarning",),
    "apiextensions.v1.JSONSchemaProps": ("x-kubernetes-list-type", "x-kubernetes-map-type"),
    "batch.v1.CronJobSpec": ("timeZone",),
    "batch.v1.JobSpec": ("completionMode", "managedBy", "podReplacementPolicy"),
    "batch.v1.PodFailurePolicyOnExitCodesRequirement": ("containerName",),
    "batch.v1.SuccessPolicyRule": ("succeededIndexes",),
    "coordination.v1.LeaseSpec": ("holderIdentity", "preferredHolder"),
    "core.v1.AppArmorProfile": ("localhostProfile",),
    "core.v1.Container": ("restartPolicy",),
    "core.v1.EndpointAddress": ("nodeName",),
    "core.v1.EndpointPort": ("appProtocol",),
    "core.v1.GRPCAction": ("service",),
    "core.v1.NodeStatus": ("allocatable",),
    "core.v1.PersistentVolumeClaimSpec": ("storageClassName", "volumeMode"),
    "core.v1.PersistentVolumeSpec": ("volumeAttributesClassName", "volumeMode"),
    "core.v1.PodResourceClaim": ("resourceClaimName", "resourceClaimTemplateName"),
    "core.v1.PodSchedulingGroup": ("podGroupName",),
    "core.v1.PodSecurityContext": (
        "fsGroupChangePolicy",
        "seLinuxChangePolicy",
        "supplementalGroupsPolicy",
    ),
    "core.v1.PodSpec": ("hostnameOverride", "preemptionPolicy", "runtimeClassName"),
    "core.v1.SeccompProfile": ("localhostProfile",),
    "core.v1.SecurityContext": ("procMount",),
    "core.v1.ServicePort": ("appProtocol",),
    "core.v1.ServiceSpec": (
        "internalTrafficPolicy",
        "ipFamilyPolicy",
        "loadBalancerClass",
        "trafficDistribution",
    ),
    "core.v1.TopologySpreadConstraint": ("nodeAffinityPolicy", "nodeTaintsPolicy"),
    "core.v1.VolumeMount": ("mountPropagation", "recursiveReadOnly"),
    "core.v1.WindowsSecurityContextOptions": (
        "gmsaCredentialSpec",
        "gmsaCredentialSpecName",
        "runAsUserName",
    ),
    "discovery.v1.Endpoint": ("hostname", "nodeName", "zone"),
    "discovery.v1.EndpointPort": ("appProtocol", "name"),
    "networking.v1.IngressClassParametersReference": ("apiGroup", "namespace", "scope"),
    "networking.v1.IngressSpec": ("ingressClassName",),
    "admissionregistration.v1.ServiceReference": ("path",),
    "admissionregistration.v1.WebhookClientConfig": ("url",),
    "policy.v1.PodDisruptionBudgetSpec": ("unhealthyPodEvictionPolicy",),
    "resource.v1.DeviceAttribute": ("string", "version"),
    "resource.v1.DeviceClassSpec": ("extendedResourceName",),
    "resource.v1.DeviceConstraint": ("distinctAttribute", "matchAttribute"),
    "resource.v1.ResourceSliceSpec": ("nodeName",),
    "scheduling.v1.PriorityClass": ("preemptionPolicy",),
    "scheduling.v1alpha3.CompositePodGroupSpec": (
        "parentCompositePodGroupName",
        "preemptionPolicy",
    ),
    "scheduling.v1alpha3.CompositePodGroupTemplate": ("preemptionPolicy",),
    "scheduling.v1alpha3.PodGroupResourceClaim": ("resourceClaimName", "resourceClaimTemplateName"),
    "scheduling.v1alpha3.PodGroupSpec": ("parentCompositePodGroupName", "preemptionPolicy"),
    "scheduling.v1alpha3.PodGroupTemplate": ("preemptionPolicy",),
    "scheduling.v1alpha3.WorkloadPodGroupResourceClaim": (
        "resourceClaimName",
        "resourceClaimTemplateName",
    ),
    "scheduling.v1beta1.CompositePodGroupTemplate": ("preemptionPolicy",),
    "scheduling.v1beta1.PodGroupResourceClaim": ("resourceClaimName", "resourceClaimTemplateName"),
    "scheduling.v1beta1.PodGroupSpec": ("parentCompositePodGroupName", "preemptionPolicy"),
    "scheduling.v1beta1.PodGroupTemplate": ("preemptionPolicy",),
}


def main(source: Path, target: Path) -> None:
    """Read every document of the source directory and write the files."""
    files: dict[tuple[str, str], dict[str, Node]] = {}
    for full, schema in sorted(definitions(source).items()):
        module, _, name = short(full).rpartition(".")
        prefix = full.removesuffix(short(full))
        files.setdefault((module, prefix), {})[name] = definition(short(full), schema)
    target.mkdir(parents=True, exist_ok=True)
    for (module, prefix), nodes in files.items():
        (target / f"{module}.json").write_text(text(prefix, nodes))
        print(f"{module}: {len(nodes)} definitions")


def definitions(source: Path) -> dict[str, dict[str, Any]]:
    """Return all definitions by full name; one in several documents has the kinds of all."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(source.glob("*.json")):
        for name, schema in json.loads(path.read_text())["components"]["schemas"].items():
            kinds = found.get(name, {}).get("x-kubernetes-group-version-kind", [])
            more = schema.get("x-kubernetes-group-version-kind", [])
            found[name] = dict(schema)
            if kinds or more:
                union = kinds + [kind for kind in more if kind not in kinds]
                found[name]["x-kubernetes-group-version-kind"] = union
    return found


def short(full: str) -> str:
    """Return the short name: `io.k8s.api.core.v1.Pod` is `core.v1.Pod`."""
    return next((full.removeprefix(p) for p in PREFIXES if full.startswith(p)), full)


def definition(name: str, schema: dict[str, Any]) -> Node:
    """Return one definition in our format."""
    if name in SPECIAL:
        return SPECIAL[name]
    result: dict[str, Any] = {"p": {}}
    for field, inner in sorted(schema.get("properties", {}).items()):
        result["p"][field] = node(inner)
    result |= {"r": schema["required"]} if "required" in schema else {}
    result |= vanishing(name, schema)
    result |= {ours: schema[theirs] for theirs, ours in FACTS.items() if theirs in schema}
    kinds = schema.get("x-kubernetes-group-version-kind", [])
    result |= {"g": [[k["group"], k["version"], k["kind"]] for k in kinds]} if kinds else {}
    return result


def vanishing(name: str, schema: dict[str, Any]) -> dict[str, list[str]]:
    """Return the fields that are omitted when zero, and the strings that are kept when empty."""
    fields = list(VANISHING.get(name, ()))
    read_only = schema.get("properties", {}).get("readOnly")
    if name.endswith("VolumeSource") and read_only and "default" not in read_only:
        fields.append("readOnly")
    kept = list(MEANINGFUL_EMPTY.get(name, ()))
    return {key: value for key, value in (("z", fields), ("n", kept)) if value}


def node(schema: dict[str, Any]) -> Node:
    """Return one field, list item or map value in our format."""
    facts = {ours: schema[theirs] for theirs, ours in FACTS.items() if theirs in schema}
    if "allOf" in schema:
        kind: Node = short(schema["allOf"][0]["$ref"].removeprefix(_REF))
    elif "$ref" in schema:
        return short(schema["$ref"].removeprefix(_REF))
    elif schema["type"] == "array":
        return {"l": node(schema["items"]), **facts}
    elif "additionalProperties" in schema:
        return {"m": node(schema["additionalProperties"]), **facts}
    else:
        kind = SCALARS[schema["type"], schema.get("format", "")]
    return {"t": kind, **facts} if facts else kind


def text(prefix: str, nodes: dict[str, Node]) -> str:
    """Return one file: a line per definition."""
    lines = [
        f"{json.dumps(name)}:{json.dumps(n, separators=(',', ':'))}" for name, n in nodes.items()
    ]
    return f'{{"prefix":"{prefix}","definitions":{{\n' + ",\n".join(lines) + "\n}}\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else TARGET)
