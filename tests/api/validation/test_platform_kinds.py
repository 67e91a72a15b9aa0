"""Rules and defaults of networking, autoscaling, certificates, admission and flow control."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from phalanx.api import kinds
from phalanx.api.kinds import Kind
from phalanx.api.wire import Object
from tests.api.stored_objects import change_stored, creation_causes, find_causes, make_stored

SERVICE_BACKEND = {"service": {"name": "web", "port": {"number": 80}}}


def path(**fields: Any) -> Object:
    return {"path": "/", "pathType": "Prefix", "backend": SERVICE_BACKEND, **fields}


def rule(*paths: Object, **fields: Any) -> Object:
    return {"http": {"paths": list(paths)}, **fields}


def metric(kind: str = "Resource", **source: Any) -> Object:
    target = {"type": "Utilization", "averageUtilization": 50}
    field = kind[0].lower() + kind[1:]
    return {"type": kind, field: {"name": "cpu", "target": target, **source}}


def autoscaler(**spec: Any) -> Object:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    return {"spec": {"scaleTargetRef": target, "maxReplicas": 3, **spec}}


def webhook(**fields: Any) -> Object:
    return {
        "name": "check.example.com", "clientConfig": {"url": "https://example.com/check"},
        "sideEffects": "None", "admissionReviewVersions": ["v1"], **fields,
    }  # fmt: skip


RULE = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
CONSTRAINTS = {"resourceRules": [RULE]}
PEM = base64.b64encode(b"-----BEGIN CERTIFICATE REQUEST-----\n").decode()


def signing_request(**spec: Any) -> Object:
    return {
        "spec": {
            "request": PEM, "signerName": "kubernetes.io/kube-apiserver-client",
            "usages": ["client auth"], **spec,
        }
    }  # fmt: skip


def flow_schema(**spec: Any) -> Object:
    return {"spec": {"priorityLevelConfiguration": {"name": "x"}, **spec}}


def limited(**fields: Any) -> Object:
    return {"spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}, **fields}}}


CASES: list[tuple[Kind, Object, list[str]]] = [
    (kinds.INGRESS, {"spec": {}}, ["spec: Invalid"]),
    (kinds.INGRESS, {"spec": {"defaultBackend": SERVICE_BACKEND}}, []),
    (kinds.INGRESS, {"spec": {"rules": [rule(path(), host="*.example.com")]}}, []),
    (kinds.INGRESS, {"spec": {"rules": [rule(host="10.0.0.1")]}},
     ["spec.rules[0].host: Invalid", "spec.rules[0].http.paths: Required"]),
    (kinds.INGRESS, {"spec": {"rules": [rule(path(host="a"), host="a*b")]}},
     ["spec.rules[0].host: Invalid"]),
    (kinds.INGRESS, {"spec": {"rules": [rule(path(path="x", pathType="Exact"))]}},
     ["spec.rules[0].http.paths[0].path: Invalid"]),
    (kinds.INGRESS, {"spec": {"rules": [rule(path(path="/a//b/.."))]}},
     ["spec.rules[0].http.paths[0].path: Invalid"] * 2),
    (kinds.INGRESS, {"spec": {"rules": [rule(path(path="x", pathType="ImplementationSpecific"))]}},
     ["spec.rules[0].http.paths[0].path: Invalid"]),
    (kinds.INGRESS, {"spec": {"rules": [rule(path(pathType=""))]}},
     ["spec.rules[0].http.paths[0].pathType: Required"]),
    (kinds.INGRESS, {"spec": {"rules": [rule(path(pathType="Regex"))]}},
     ["spec.rules[0].http.paths[0].pathType: NotSupported"]),
    (kinds.INGRESS, {"spec": {"defaultBackend": {}}}, ["spec.defaultBackend: Required"]),
    (kinds.INGRESS, {"spec": {"defaultBackend": {**SERVICE_BACKEND, "resource": {}}}},
     ["spec.defaultBackend: Invalid"]),
    (kinds.INGRESS, {"spec": {"defaultBackend": {"resource": {"kind": "B", "name": "b"}}}}, []),
    (kinds.INGRESS, {"spec": {"defaultBackend": {"service": {"name": "web", "port": {}}}}},
     ["spec.defaultBackend.service.port: Required"]),
    (kinds.INGRESS,
     {"spec": {"defaultBackend": {"service": {"name": "web",
                                              "port": {"name": "a", "number": 1}}}}},
     ["spec.defaultBackend.service.port: Invalid"]),
    (kinds.INGRESS,
     {"metadata": {"annotations": {"kubernetes.io/ingress.class": "a"}},
      "spec": {"defaultBackend": SERVICE_BACKEND, "ingressClassName": "b"}},
     ["annotations[kubernetes.io/ingress.class]: Invalid"]),
    (kinds.INGRESS_CLASS, {"spec": {"controller": "example.com/x"}}, []),
    (kinds.INGRESS_CLASS, {"spec": {"controller": "x"}}, ["spec.controller: Invalid"]),
    (kinds.INGRESS_CLASS, {"spec": {"controller": "a/" + "x" * 300}}, ["spec.controller: TooLong"]),
    (kinds.INGRESS_CLASS,
     {"spec": {"controller": "a.b/x", "parameters": {"kind": "P", "name": "p", "namespace": "n"}}},
     ["spec.parameters.namespace: Forbidden"]),
    (kinds.INGRESS_CLASS,
     {"spec": {"controller": "a.b/x",
               "parameters": {"kind": "P", "name": "p", "scope": "Namespace"}}},
     ["spec.parameters.namespace: Required"]),
    (kinds.NETWORK_POLICY, {"spec": {"podSelector": {}}}, []),
    (kinds.NETWORK_POLICY, {"spec": {"podSelector": {}, "ingress": [{"from": [{}]}]}},
     ["spec.ingress[0].from[0]: Required"]),
    (kinds.NETWORK_POLICY,
     {"spec": {"podSelector": {},
               "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8",
                                               "except": ["10.1.0.0/16"]}}]}]}},
     []),
    (kinds.NETWORK_POLICY,
     {"spec": {"podSelector": {},
               "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8",
                                               "except": ["11.0.0.0/16", "x"]}},
                                  {"ipBlock": {"cidr": "y"}}, {"ipBlock": {}},
                                  {"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}},
                                  {"podSelector": {"matchLabels": {"a": "b"}}}]}]}},
     ["spec.egress[0].to[0].ipBlock.except[0]: Invalid",
      "spec.egress[0].to[0].ipBlock.except[1]: Invalid",
      "spec.egress[0].to[1].ipBlock.cidr: Invalid", "spec.egress[0].to[2].ipBlock.cidr: Required",
      "spec.egress[0].to[3].podSelector: Forbidden"]),
    (kinds.NETWORK_POLICY,
     {"spec": {"podSelector": {},
               "ingress": [{"ports": [{"port": 0}, {"port": 80, "endPort": 70},
                                      {"port": 1, "endPort": 70000}, {"port": "Web"},
                                      {"port": "web", "endPort": 1}, {"endPort": 1}]}]}},
     ["spec.ingress[0].ports[0].port: Invalid", "spec.ingress[0].ports[1].endPort: Invalid",
      "spec.ingress[0].ports[2].endPort: Invalid", "spec.ingress[0].ports[3].port: Invalid",
      "spec.ingress[0].ports[4].endPort: Invalid", "spec.ingress[0].ports[5].endPort: Invalid"]),
    (kinds.IP_ADDRESS, {"metadata": {"name": "10.0.0.1"},
                        "spec": {"parentRef": {"resource": "services", "name": "web"}}}, []),
    (kinds.IP_ADDRESS, {"metadata": {"name": "x"}, "spec": {}},
     ["metadata.name: Invalid", "spec.parentRef: Required"]),
    (kinds.IP_ADDRESS, {"metadata": {"name": "10.0.0.1"}, "spec": {"parentRef": {"name": "web"}}},
     ["spec.parentRef.resource: Required"]),
    (kinds.SERVICE_CIDR, {"spec": {"cidrs": ["10.0.0.0/24", "2001:db8::/64"]}}, []),
    (kinds.SERVICE_CIDR, {"spec": {}}, ["spec.cidrs: Required"]),
    (kinds.SERVICE_CIDR, {"spec": {"cidrs": ["10.0.0.0/24", "10.1.0.0/24"]}},
     ["spec.cidrs: Invalid"]),
    (kinds.SERVICE_CIDR, {"spec": {"cidrs": ["x"]}}, ["spec.cidrs[0]: Invalid"]),
    (kinds.SERVICE_CIDR, {"spec": {"cidrs": ["a", "b", "c"]}}, ["spec.cidrs: Invalid"]),
    (kinds.ENDPOINTS, {"subsets": [{}]}, ["subsets[0]: Required"]),
    (kinds.ENDPOINTS,
     {"subsets": [{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 1}, {"port": 2}]}]},
     ["subsets[0].ports[0].name: Required", "subsets[0].ports[1].name: Required"]),
    (kinds.HORIZONTAL_POD_AUTOSCALER, autoscaler(), []),
    (kinds.HORIZONTAL_POD_AUTOSCALER, autoscaler(minReplicas=0, maxReplicas=0),
     ["spec.minReplicas: Invalid", "spec.maxReplicas: Invalid"]),
    (kinds.HORIZONTAL_POD_AUTOSCALER, autoscaler(minReplicas=5), ["spec.maxReplicas: Invalid"]),
    (kinds.HORIZONTAL_POD_AUTOSCALER, autoscaler(metrics=[{}]), ["spec.metrics[0].type: Required"]),
    (kinds.HORIZONTAL_POD_AUTOSCALER, autoscaler(metrics=[{"type": "Mood"}]),
     ["spec.metrics[0].type: NotSupported"]),
    (kinds.HORIZONTAL_POD_AUTOSCALER, autoscaler(metrics=[{"type": "Pods"}]),
     ["spec.metrics[0].pods: Required"]),
    (kinds.HORIZONTAL_POD_AUTOSCALER, autoscaler(metrics=[{**metric(), "pods": {}}]),
     ["spec.metrics[0].pods: Forbidden"]),
    (kinds.HORIZONTAL_POD_AUTOSCALER,
     autoscaler(metrics=[metric(target={"type": "Value"}), metric(target={}),
                         metric(target={"type": "X"}),
                         metric(target={"type": "Utilization", "averageUtilization": 0})]),
     ["spec.metrics[0].resource.target.value: Required",
      "spec.metrics[1].resource.target.type: Required",
      "spec.metrics[2].resource.target.type: Invalid",
      "spec.metrics[3].resource.target.averageUtilization: Invalid"]),
    (kinds.HORIZONTAL_POD_AUTOSCALER,
     autoscaler(metrics=[metric("ContainerResource"), metric("Pods"), metric(name="")]),
     ["spec.metrics[0].containerResource.container: Required",
      "spec.metrics[1].pods.metric.name: Required", "spec.metrics[2].resource.name: Required"]),
    (kinds.HORIZONTAL_POD_AUTOSCALER,
     autoscaler(behavior={"scaleUp": {"stabilizationWindowSeconds": 9999}}),
     ["spec.behavior.scaleUp.stabilizationWindowSeconds: Invalid"]),
    (kinds.CERTIFICATE_SIGNING_REQUEST, signing_request(), []),
    (kinds.CERTIFICATE_SIGNING_REQUEST,
     signing_request(request="eA==", signerName="x", usages=[], expirationSeconds=5),
     ["spec.request: Invalid", "spec.signerName: Invalid", "spec.usages: Required",
      "spec.expirationSeconds: Invalid"]),
    (kinds.CERTIFICATE_SIGNING_REQUEST, {"spec": {"usages": ["dance"]}},
     ["spec.request: Required", "spec.signerName: Required", "spec.usages[0]: NotSupported"]),
    (kinds.CLUSTER_TRUST_BUNDLE, {"spec": {"trustBundle": "-----BEGIN CERTIFICATE-----"}}, []),
    (kinds.CLUSTER_TRUST_BUNDLE, {"spec": {"trustBundle": "x", "signerName": "example.com/a"}},
     ["metadata.name: Invalid", "spec.trustBundle: Invalid"]),
    (kinds.CLUSTER_TRUST_BUNDLE, {"metadata": {"name": "a:b"}, "spec": {"trustBundle": ""}},
     ["metadata.name: Invalid", "spec.trustBundle: Invalid"]),
    (kinds.FLOW_SCHEMA, flow_schema(), []),
    (kinds.FLOW_SCHEMA, flow_schema(matchingPrecedence=20_000),
     ["spec.matchingPrecedence: Invalid"]),
    (kinds.FLOW_SCHEMA, flow_schema(rules=[{"subjects": [{"kind": "User"}, {"kind": "Cat"}]}]),
     ["spec.rules[0].subjects[0].user: Required", "spec.rules[0].subjects[1].kind: NotSupported",
      "spec.rules[0]: Required"]),
    (kinds.PRIORITY_LEVEL_CONFIGURATION, limited(), []),
    (kinds.PRIORITY_LEVEL_CONFIGURATION, {"spec": {"type": "X"}}, ["spec.type: NotSupported"]),
    (kinds.PRIORITY_LEVEL_CONFIGURATION, {"spec": {"type": "Limited"}}, ["spec.limited: Required"]),
    (kinds.PRIORITY_LEVEL_CONFIGURATION, {"spec": {"type": "Limited", "exempt": {}}},
     ["spec.exempt: Forbidden"]),
    (kinds.PRIORITY_LEVEL_CONFIGURATION, {"spec": {"type": "Exempt", "limited": {}}},
     ["spec.limited: Forbidden"]),
    (kinds.PRIORITY_LEVEL_CONFIGURATION, limited(limitResponse={"type": "Reject", "queuing": {}}),
     ["spec.limited.limitResponse.queuing: Forbidden"]),
    (kinds.PRIORITY_LEVEL_CONFIGURATION, limited(limitResponse={"type": "Queue"}),
     ["spec.limited.limitResponse.queuing: Required"]),
    (kinds.PRIORITY_LEVEL_CONFIGURATION, limited(limitResponse={"type": "Wait"}),
     ["spec.limited.limitResponse.type: NotSupported"]),
    (kinds.PRIORITY_LEVEL_CONFIGURATION,
     limited(limitResponse={"type": "Queue",
                            "queuing": {"queues": 2, "handSize": 3, "queueLengthLimit": 1}}),
     ["spec.limited.limitResponse.queuing.handSize: Invalid"]),
    (kinds.RUNTIME_CLASS, {"handler": "runc"}, []),
    (kinds.RUNTIME_CLASS, {"handler": ""}, ["handler: Required"]),
    (kinds.API_SERVICE,
     {"metadata": {"name": "v1.example.com"},
      "spec": {"group": "example.com", "version": "v1", "groupPriorityMinimum": 5,
               "versionPriority": 5, "service": {"namespace": "n", "name": "s"}}}, []),
    (kinds.API_SERVICE, {"spec": {"caBundle": "eA=="}},
     ["metadata.name: Invalid", "spec.version: Required", "spec.groupPriorityMinimum: Invalid",
      "spec.versionPriority: Invalid", "spec.caBundle: Invalid"]),
    (kinds.STORAGE_VERSION_MIGRATION, {"spec": {"resource": {"resource": "pods"}}}, []),
    (kinds.STORAGE_VERSION_MIGRATION, {"spec": {}}, ["spec.resource.resource: Required"]),
    (kinds.LEASE_CANDIDATE, {"spec": {}},
     ["spec.leaseName: Required", "spec.binaryVersion: Required", "spec.strategy: Required"]),
    (kinds.VALIDATING_WEBHOOK_CONFIGURATION, {"webhooks": [webhook(rules=[RULE])]}, []),
    (kinds.MUTATING_WEBHOOK_CONFIGURATION,
     {"webhooks": [webhook(name="a.b", sideEffects="Some", timeoutSeconds=60,
                           admissionReviewVersions=["v9"], clientConfig={})]},
     ["webhooks[0].name: Invalid", "webhooks[0].clientConfig: Required",
      "webhooks[0].sideEffects: NotSupported", "webhooks[0].timeoutSeconds: Invalid",
      "webhooks[0].admissionReviewVersions: Invalid"]),
    (kinds.VALIDATING_WEBHOOK_CONFIGURATION,
     {"webhooks": [webhook(), webhook(clientConfig={"url": "http://u@x?q#f"})]},
     [*["webhooks[1].clientConfig.url: Invalid"] * 4, "webhooks[1].name: Duplicate"]),
    (kinds.VALIDATING_WEBHOOK_CONFIGURATION,
     {"webhooks": [webhook(rules=[{**RULE, "operations": ["*", "CREATE"], "apiGroups": [],
                                   "resources": ["*/*", "pods"]}],
                           matchConditions=[{"name": "a", "expression": "true"}, {"name": "a"}])]},
     ["webhooks[0].rules[0].operations: Invalid", "webhooks[0].rules[0].apiGroups: Required",
      "webhooks[0].rules[0].resources: Invalid",
      "webhooks[0].matchConditions[1].expression: Required",
      "webhooks[0].matchConditions[1].name: Duplicate"]),
    (kinds.VALIDATING_WEBHOOK_CONFIGURATION,
     {"webhooks": [webhook(clientConfig={"service": {"namespace": "n", "name": "s", "path": "x"}}),
                   webhook(name="b.example.com",
                           clientConfig={"service": {"namespace": "n", "name": "s",
                                                     "path": "/a//B"}})]},
     ["webhooks[0].clientConfig.service.path: Invalid",
      *["webhooks[1].clientConfig.service.path: Invalid"] * 2]),
    (kinds.VALIDATING_ADMISSION_POLICY,
     {"spec": {"matchConstraints": CONSTRAINTS, "validations": [{"expression": "true"}]}}, []),
    (kinds.VALIDATING_ADMISSION_POLICY, {"spec": {}},
     ["spec.matchConstraints: Required", "spec.validations: Required",
      "spec.auditAnnotations: Required"]),
    (kinds.MUTATING_ADMISSION_POLICY,
     {"spec": {"matchConstraints": CONSTRAINTS, "reinvocationPolicy": "Never",
               "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": "[]"}}, {},
                             {"patchType": "X"}, {"patchType": "JSONPatch"},
                             {"patchType": "JSONPatch", "jsonPatch": {"expression": "[]"},
                              "applyConfiguration": {"expression": "x"}}]}},
     ["spec.mutations[1].patchType: Required", "spec.mutations[2].patchType: NotSupported",
      "spec.mutations[3].jsonPatch: Required",
      "spec.mutations[4].applyConfiguration: Invalid"]),
    (kinds.VALIDATING_ADMISSION_POLICY_BINDING,
     {"spec": {"policyName": "p", "validationActions": ["Deny"]}}, []),
    (kinds.VALIDATING_ADMISSION_POLICY_BINDING,
     {"spec": {"policyName": "p", "validationActions": ["Deny", "Warn"], "paramRef": {}}},
     ["spec.paramRef: Required", "spec.paramRef.parameterNotFoundAction: Required",
      "spec.validationActions: Invalid"]),
    (kinds.MUTATING_ADMISSION_POLICY_BINDING,
     {"spec": {"policyName": "p", "paramRef": {"name": "a", "selector": {},
                                               "parameterNotFoundAction": "Allow"}}},
     ["spec.paramRef.name: Forbidden", "spec.paramRef.selector: Forbidden"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "obj", "causes"), CASES, ids=[f"{one[0].name}-{n}" for n, one in enumerate(CASES)]
)
def test_creation_is_validated(kind: Kind, obj: Object, causes: list[str]) -> None:
    assert creation_causes(kind, obj) == causes


@pytest.mark.parametrize(
    ("kind", "obj", "change", "cause"),
    [
        (kinds.RUNTIME_CLASS, {"handler": "a"}, {"handler": "b"}, "handler: Invalid"),
        (kinds.INGRESS_CLASS, {"spec": {"controller": "a.b/c"}}, {"spec": {"controller": "a.b/d"}},
         "spec.controller: Invalid"),
        (kinds.SERVICE_CIDR, {"spec": {"cidrs": ["10.0.0.0/24"]}},
         {"spec": {"cidrs": ["10.1.0.0/24"]}}, "spec.cidrs: Invalid"),
        (kinds.CERTIFICATE_SIGNING_REQUEST, signing_request(),
         {"spec": signing_request(expirationSeconds=900)["spec"]}, "spec: Invalid"),
        (kinds.IP_ADDRESS, {"metadata": {"name": "10.0.0.1"},
                            "spec": {"parentRef": {"resource": "services", "name": "a"}}},
         {"spec": {"parentRef": {"resource": "services", "name": "b"}}}, "spec.parentRef: Invalid"),
    ],
)  # fmt: skip
def test_some_fields_cannot_be_changed(kind: Kind, obj: Object, change: Object, cause: str) -> None:
    old = make_stored(kind, obj)
    assert find_causes(kind, change_stored(kind, old, **change), old) == [cause]


def test_decisions_about_a_certificate_are_final() -> None:
    kind = kinds.CERTIFICATE_SIGNING_REQUEST
    approved = {"type": "Approved", "status": "True"}
    old = {**make_stored(kind, signing_request()), "status": {"conditions": [approved]}}
    denied = {"type": "Denied", "status": "True"}
    both = {**old, "status": {"conditions": [approved, denied]}}
    assert find_causes(kind, both, old, "approval") == ["status.conditions: Invalid"]
    none = {**old, "status": {"conditions": []}}
    assert find_causes(kind, none, old, "approval") == ["status.conditions: Forbidden"]
    unsure = {
        **old,
        "status": {"conditions": [approved, {"type": "Failed", "status": "False"}, {}]},
    }
    assert find_causes(kind, unsure, old, "approval") == [
        "status.conditions[1].status: Invalid",
        "status.conditions[2].type: Required",
    ]


def test_defaults() -> None:
    policy = make_stored(
        kinds.NETWORK_POLICY, {"spec": {"podSelector": {}, "egress": [{"ports": [{"port": 1}]}]}}
    )
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert policy["spec"]["egress"][0]["ports"][0]["protocol"] == "TCP"
    scaled = make_stored(kinds.HORIZONTAL_POD_AUTOSCALER, autoscaler(behavior={}))
    assert scaled["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"] == 80
    assert scaled["spec"]["behavior"]["scaleUp"]["stabilizationWindowSeconds"] == 0
    level = make_stored(
        kinds.PRIORITY_LEVEL_CONFIGURATION, limited(limitResponse={"type": "Queue", "queuing": {}})
    )
    assert level["spec"]["limited"]["limitResponse"]["queuing"]["queues"] == 64
    exempt = make_stored(kinds.PRIORITY_LEVEL_CONFIGURATION, {"spec": {"type": "Exempt"}})
    assert exempt["spec"]["exempt"] == {"nominalConcurrencyShares": 0, "lendablePercent": 0}
    hooks = make_stored(
        kinds.MUTATING_WEBHOOK_CONFIGURATION,
        {"webhooks": [webhook(clientConfig={"service": {"namespace": "n", "name": "s"}})]},
    )["webhooks"][0]
    assert (hooks["reinvocationPolicy"], hooks["timeoutSeconds"]) == ("Never", 10)
    assert hooks["clientConfig"]["service"]["port"] == 443
    bound = make_stored(
        kinds.MUTATING_ADMISSION_POLICY_BINDING, {"spec": {"matchResources": CONSTRAINTS}}
    )
    assert bound["spec"]["matchResources"]["resourceRules"][0]["scope"] == "*"
