"""Columns of `kubectl get` for networking, autoscaling, certificates, admission, flow control."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.api.printing.cells import (
    AGE_COLUMN,
    NAME_COLUMN,
    NONE,
    UNKNOWN,
    UNSET,
    Cell,
    Column,
    field_at,
    format_duration,
    item_count,
    item_list,
    label_selector,
)
from phalanx.api.wire import Object


def _subset_addresses(endpoints: Object, now: float) -> str:
    texts = []
    for subset in endpoints.get("subsets", ()):
        ports = subset.get("ports") or [{}]
        for port in ports:
            for address in subset.get("addresses", ()):
                number = f":{port['port']}" if port.get("port") else ""
                texts.append(f"{address.get('ip', '')}{number}")
    more = f" + {len(texts) - 3} more..." if len(texts) > 3 else ""
    return f"{','.join(texts[:3])}{more}" or NONE


def _component_message(kind: str) -> Cell:
    def cell(component: Object, now: float) -> str:
        found: Object = next(
            (c for c in component.get("conditions", ()) if c.get("type") == "Healthy"), {}
        )
        if kind == "status":
            names = {"True": "Healthy", "False": "Unhealthy"}
            return names.get(found.get("status", ""), "Unknown")
        return str(found.get(kind, ""))

    return cell


def _scale_target(autoscaler: Object, now: float) -> str:
    target = autoscaler.get("spec", {}).get("scaleTargetRef", {})
    return f"{target.get('kind', '')}/{target.get('name', '')}"


def _metric_targets(autoscaler: Object, now: float) -> str:
    """Show the current and the wanted value of the first two metrics."""
    metrics = autoscaler.get("spec", {}).get("metrics", ())
    seen = autoscaler.get("status", {}).get("currentMetrics", ())
    texts = []
    for at, one in enumerate(metrics[:2]):
        label = f"{one['resource'].get('name', '')}: " if one.get("resource") else ""
        current = _metric_value(seen[at] if at < len(seen) else {}, "current")
        texts.append(f"{label}{current}/{_metric_value(one, 'target')}")
    more = f" + {len(metrics) - 2} more..." if len(metrics) > 2 else ""
    return f"{', '.join(texts)}{more}" or NONE


def _metric_value(metric: Object, place: str) -> str:
    sources = (value for value in metric.values() if isinstance(value, dict))
    value: Object = next((one[place] for one in sources if place in one), {})
    if value.get("averageUtilization") is not None:
        return f"{value['averageUtilization']}%"
    found = value.get("averageValue") or value.get("value")
    return str(found) if found is not None else UNKNOWN


def _replica_count(autoscaler: Object, now: float) -> int:
    return int(autoscaler.get("status", {}).get("currentReplicas", 0))


def _min_pods(autoscaler: Object, now: float) -> str:
    return str(autoscaler.get("spec", {}).get("minReplicas", UNSET))


def _ingress_hosts(ingress: Object, now: float) -> str:
    rules = ingress.get("spec", {}).get("rules", ())
    hosts = [rule["host"] for rule in rules if rule.get("host")]
    more = f" + {len(rules) - 3} more..." if len(hosts) > 3 else ""
    return f"{','.join(hosts[:3])}{more}" or "*"


def _ingress_addresses(ingress: Object, now: float) -> str:
    points = ingress.get("status", {}).get("loadBalancer", {}).get("ingress", ())
    return ",".join(sorted({one.get("ip") or one.get("hostname", "") for one in points}))


def _ingress_ports(ingress: Object, now: float) -> str:
    return "80, 443" if ingress.get("spec", {}).get("tls") else "80"


def _class_parameters(ingress_class: Object, now: float) -> str:
    parameters = ingress_class.get("spec", {}).get("parameters")
    if not parameters:
        return NONE
    group = f".{parameters['apiGroup']}" if parameters.get("apiGroup") else ""
    return f"{parameters.get('kind', '')}{group}/{parameters.get('name', '')}"


def _address_parent(address: Object, now: float) -> str:
    parent = address.get("spec", {}).get("parentRef", {})
    parts = (parent.get("resource", ""), parent.get("namespace", ""), parent.get("name", ""))
    group = parent.get("group", "")
    return "/".join(
        part for part in (f"{parts[0]}.{group}" if group else parts[0], *parts[1:]) if part
    )


def _request_status(request: Object, now: float) -> str:
    kinds = [one.get("type", "") for one in request.get("status", {}).get("conditions", ())]
    decision = next((kind for kind in ("Denied", "Approved") if kind in kinds), "Pending")
    failed = ",Failed" if "Failed" in kinds else ""
    issued = ",Issued" if request.get("status", {}).get("certificate") else ""
    return f"{decision}{failed}{issued}"


def _requested_duration(request: Object, now: float) -> str:
    seconds = request.get("spec", {}).get("expirationSeconds")
    return NONE if seconds is None else format_duration(seconds)


def _dangling(flow_schema: Object, now: float) -> str:
    conditions = flow_schema.get("status", {}).get("conditions", ())
    return next((c.get("status", "?") for c in conditions if c.get("type") == "Dangling"), "?")


def _distinguisher(flow_schema: Object, now: float) -> str:
    method = flow_schema.get("spec", {}).get("distinguisherMethod") or {}
    return str(method.get("type", NONE))


def _service_of_api(api_service: Object, now: float) -> str:
    service = api_service.get("spec", {}).get("service")
    return f"{service.get('namespace')}/{service.get('name')}" if service else "Local"


def _availability(api_service: Object, now: float) -> str:
    conditions = api_service.get("status", {}).get("conditions", ())
    found = next((c for c in conditions if c.get("type") == "Available"), None)
    if found is None:
        return "Unknown"
    is_true = found.get("status") == "True"
    return "True" if is_true else f"{found.get('status')} ({found.get('reason', '')})"


_WEBHOOK_COLUMNS = (
    NAME_COLUMN,
    Column("Webhooks", item_count("webhooks"), "integer"),
    AGE_COLUMN,
)
_BINDING_COLUMNS = (
    NAME_COLUMN,
    Column("PolicyName", field_at("spec.policyName")),
    Column("ParamRef", field_at("spec.paramRef.name", UNSET)),
    AGE_COLUMN,
)

PLATFORM_COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "APIService": (
        NAME_COLUMN,
        Column("Service", _service_of_api),
        Column("Available", _availability),
        AGE_COLUMN,
    ),
    "CertificateSigningRequest": (
        NAME_COLUMN,
        AGE_COLUMN,
        Column("SignerName", field_at("spec.signerName")),
        Column("Requestor", field_at("spec.username")),
        Column("RequestedDuration", _requested_duration),
        Column("Condition", _request_status),
    ),
    "ClusterTrustBundle": (NAME_COLUMN, Column("SignerName", field_at("spec.signerName"))),
    "ComponentStatus": (
        NAME_COLUMN,
        Column("Status", _component_message("status")),
        Column("Message", _component_message("message")),
        Column("Error", _component_message("error")),
    ),
    "Endpoints": (NAME_COLUMN, Column("Endpoints", _subset_addresses), AGE_COLUMN),
    "FlowSchema": (
        NAME_COLUMN,
        Column("PriorityLevel", field_at("spec.priorityLevelConfiguration.name")),
        Column("MatchingPrecedence", field_at("spec.matchingPrecedence", 0), "integer"),
        Column("DistinguisherMethod", _distinguisher),
        AGE_COLUMN,
        Column("MissingPL", _dangling),
    ),
    "HorizontalPodAutoscaler": (
        NAME_COLUMN,
        Column("Reference", _scale_target),
        Column("Targets", _metric_targets),
        Column("MinPods", _min_pods),
        Column("MaxPods", field_at("spec.maxReplicas", 0), "integer"),
        Column("Replicas", _replica_count, "integer"),
        AGE_COLUMN,
    ),
    "Ingress": (
        NAME_COLUMN,
        Column("Class", field_at("spec.ingressClassName", NONE)),
        Column("Hosts", _ingress_hosts),
        Column("Address", _ingress_addresses),
        Column("Ports", _ingress_ports),
        AGE_COLUMN,
    ),
    "IngressClass": (
        NAME_COLUMN,
        Column("Controller", field_at("spec.controller")),
        Column("Parameters", _class_parameters),
        AGE_COLUMN,
    ),
    "IPAddress": (NAME_COLUMN, Column("ParentRef", _address_parent), AGE_COLUMN),
    "LeaseCandidate": (
        NAME_COLUMN,
        Column("LeaseName", field_at("spec.leaseName")),
        Column("BinaryVersion", field_at("spec.binaryVersion")),
        Column("EmulationVersion", field_at("spec.emulationVersion")),
        Column("Strategy", field_at("spec.strategy")),
    ),
    "MutatingAdmissionPolicy": (
        NAME_COLUMN,
        Column("Mutations", item_count("spec.mutations"), "integer"),
        Column("ParamKind", field_at("spec.paramKind.kind", UNSET)),
        AGE_COLUMN,
    ),
    "MutatingAdmissionPolicyBinding": _BINDING_COLUMNS,
    "MutatingWebhookConfiguration": _WEBHOOK_COLUMNS,
    "NetworkPolicy": (
        NAME_COLUMN,
        Column("Pod-Selector", label_selector("spec.podSelector")),
        AGE_COLUMN,
    ),
    "PodCertificateRequest": (
        NAME_COLUMN,
        Column("PodName", field_at("spec.podName")),
        Column("ServiceAccountName", field_at("spec.serviceAccountName")),
        Column("NodeName", field_at("spec.nodeName")),
        Column("SignerName", field_at("spec.signerName")),
    ),
    "PriorityLevelConfiguration": (
        NAME_COLUMN,
        Column("Type", field_at("spec.type")),
        Column("NominalConcurrencyShares", field_at("spec.limited.nominalConcurrencyShares", NONE)),
        Column("Queues", field_at("spec.limited.limitResponse.queuing.queues", NONE)),
        Column("HandSize", field_at("spec.limited.limitResponse.queuing.handSize", NONE)),
        Column(
            "QueueLengthLimit",
            field_at("spec.limited.limitResponse.queuing.queueLengthLimit", NONE),
        ),
        AGE_COLUMN,
    ),
    "RuntimeClass": (NAME_COLUMN, Column("Handler", field_at("handler")), AGE_COLUMN),
    "ServiceCIDR": (NAME_COLUMN, Column("CIDRs", item_list("spec.cidrs")), AGE_COLUMN),
    "StorageVersionMigration": (
        NAME_COLUMN,
        Column("Resource", field_at("spec.resource.resource")),
    ),
    "ValidatingAdmissionPolicy": (
        NAME_COLUMN,
        Column("Validations", item_count("spec.validations"), "integer"),
        Column("ParamKind", field_at("spec.paramKind.kind", UNSET)),
        AGE_COLUMN,
    ),
    "ValidatingAdmissionPolicyBinding": _BINDING_COLUMNS,
    "ValidatingWebhookConfiguration": _WEBHOOK_COLUMNS,
}
