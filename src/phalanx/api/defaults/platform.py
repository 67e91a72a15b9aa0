"""Defaults of autoscalers, network policies, admission policies, flow control and Endpoints."""

from __future__ import annotations

from copy import deepcopy

from phalanx.api.wire import Object

_CPU_UTILIZATION = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
}
_SCALE_UP: Object = {
    "stabilizationWindowSeconds": 0,
    "selectPolicy": "Max",
    "policies": [
        {"type": "Pods", "value": 4, "periodSeconds": 15},
        {"type": "Percent", "value": 100, "periodSeconds": 15},
    ],
}
_SCALE_DOWN: Object = {
    "selectPolicy": "Max",
    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
}
_QUEUING = {"queues": 64, "handSize": 8, "queueLengthLimit": 50}


def default_autoscaler(autoscaler: Object) -> None:
    """Apply the defaults of a HorizontalPodAutoscaler."""
    spec = autoscaler["spec"]
    spec.setdefault("minReplicas", 1)
    if not spec.get("metrics"):
        spec["metrics"] = [deepcopy(_CPU_UTILIZATION)]
    behavior = spec.get("behavior")
    if behavior is not None:
        for direction, rules in (("scaleUp", _SCALE_UP), ("scaleDown", _SCALE_DOWN)):
            own = behavior.setdefault(direction, {})
            for field, value in rules.items():
                if not own.get(field) and own.get(field) != 0:
                    own[field] = deepcopy(value)


def default_network_policy(policy: Object) -> None:
    """Apply the defaults of a NetworkPolicy: protocols, and the types of its rules."""
    spec = policy.setdefault("spec", {})
    for rule in (*spec.get("ingress", ()), *spec.get("egress", ())):
        for port in rule.get("ports", ()):
            port.setdefault("protocol", "TCP")
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", *(["Egress"] if spec.get("egress") else [])]


def default_ingress_class(ingress_class: Object) -> None:
    """Apply the defaults of an IngressClass."""
    parameters = (ingress_class.get("spec") or {}).get("parameters")
    if parameters is not None:
        parameters.setdefault("scope", "Cluster")


def default_endpoints(endpoints: Object) -> None:
    """Apply the defaults of Endpoints."""
    for subset in endpoints.get("subsets", ()):
        for port in subset.get("ports", ()):
            port["protocol"] = port.get("protocol") or "TCP"


def default_signing_request(request: Object) -> None:
    """Apply the defaults of the conditions of a CertificateSigningRequest."""
    for condition in (request.get("status") or {}).get("conditions", ()):
        condition["status"] = condition.get("status") or "True"


def default_flow_schema(flow_schema: Object) -> None:
    """Apply the defaults of a FlowSchema."""
    spec = flow_schema["spec"]
    spec["matchingPrecedence"] = spec.get("matchingPrecedence") or 1000


def default_priority_level(level: Object) -> None:
    """Apply the defaults of a PriorityLevelConfiguration."""
    spec = level["spec"]
    if spec.get("type") == "Exempt":
        exempt = spec.setdefault("exempt", {})
        exempt.setdefault("nominalConcurrencyShares", 0)
        exempt.setdefault("lendablePercent", 0)
    if spec.get("limited") is not None:
        limited = spec["limited"]
        limited.setdefault("nominalConcurrencyShares", 30)
        limited.setdefault("lendablePercent", 0)
        queuing = (limited.get("limitResponse") or {}).get("queuing")
        if queuing is not None:
            for field, value in _QUEUING.items():
                queuing[field] = queuing.get(field) or value


def default_webhooks(configuration: Object) -> None:
    """Apply the defaults of the webhooks of a configuration."""
    for webhook in configuration.get("webhooks", ()):
        webhook.setdefault("failurePolicy", "Fail")
        webhook.setdefault("matchPolicy", "Equivalent")
        webhook.setdefault("namespaceSelector", {})
        webhook.setdefault("objectSelector", {})
        webhook.setdefault("timeoutSeconds", 10)
        _default_rule_scopes(webhook.get("rules", ()))
        service = (webhook.get("clientConfig") or {}).get("service")
        if service is not None:
            service.setdefault("port", 443)


def default_reinvocation(configuration: Object) -> None:
    """Apply the default of the reinvocation policy of mutating webhooks."""
    for webhook in configuration.get("webhooks", ()):
        webhook.setdefault("reinvocationPolicy", "Never")


def prepare_ingress_for_create(ingress: Object, now: str) -> None:
    """Reset the status of a new Ingress."""
    ingress["status"] = {"loadBalancer": {}}


def prepare_autoscaler_for_create(autoscaler: Object, now: str) -> None:
    """Reset the status of a new HorizontalPodAutoscaler."""
    autoscaler["status"] = {"desiredReplicas": 0}


def default_admission_policy(policy: Object) -> None:
    """Apply the defaults of an admission policy."""
    spec = policy.setdefault("spec", {})
    spec.setdefault("failurePolicy", "Fail")
    _default_match_resources(spec.get("matchConstraints"))


def default_policy_binding(binding: Object) -> None:
    """Apply the defaults of the binding of an admission policy."""
    _default_match_resources((binding.get("spec") or {}).get("matchResources"))


def _default_match_resources(resources: Object | None) -> None:
    if resources is None:
        return
    resources.setdefault("matchPolicy", "Equivalent")
    resources.setdefault("namespaceSelector", {})
    resources.setdefault("objectSelector", {})
    _default_rule_scopes(resources.get("resourceRules", ()))
    _default_rule_scopes(resources.get("excludeResourceRules", ()))


def _default_rule_scopes(rules: object) -> None:
    for rule in rules if isinstance(rules, list) else ():
        rule.setdefault("scope", "*")


def default_api_service(api_service: Object) -> None:
    """Apply the defaults of an APIService."""
    service = (api_service.get("spec") or {}).get("service")
    if service is not None:
        service.setdefault("port", 443)
