"""Rules of the pod spec of a new Pod."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.defaults.registry import apply_defaults, prepare_for_create
from phalanx.api.kinds import POD
from phalanx.api.schema import schema
from phalanx.api.validation.registry import validate
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries, summarize

MAIN = {"name": "main", "image": "app:1"}


def create_causes(spec: Object) -> CauseSummaries:
    """The causes below `spec`, as the server would find them on creation."""
    pod = {"metadata": {"name": "p", "namespace": "n"}, "spec": spec}
    schema(POD.schema).normalize(pod)
    apply_defaults(POD, pod)
    prepare_for_create(POD, pod, "2026-01-01T00:00:00Z")
    return [one.removeprefix("spec.") for one in summarize(validate(POD, pod, None))]


def container(**fields: Any) -> Object:
    return {"containers": [{**MAIN, **fields}]}


def spec(**fields: Any) -> Object:
    return {"containers": [dict(MAIN)], **fields}


@pytest.mark.parametrize(
    ("fields", "causes"),
    [
        ({}, []),
        ({"containers": []}, ["containers: Required"]),
        ({"containers": [{}]}, ["containers[0].name: Required", "containers[0].image: Required"]),
        ({"containers": [MAIN, MAIN]}, ["containers[1].name: Duplicate"]),
        ({"initContainers": [MAIN]}, ["initContainers[0].name: Duplicate"]),
        ({"restartPolicy": "Sometimes"}, ["restartPolicy: NotSupported"]),
        ({"dnsPolicy": "Guess"}, ["dnsPolicy: NotSupported"]),
        ({"dnsPolicy": "None"}, ["dnsConfig: Required"]),
        ({"dnsPolicy": "None", "dnsConfig": {}}, ["dnsConfig.nameservers: Required"]),
        ({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.0.0.1"]}}, []),
        (
            {"dnsConfig": {"nameservers": ["x"], "options": [{}]}},
            ["dnsConfig.nameservers[0]: Invalid", "dnsConfig.options[0]: Required"],
        ),
        ({"dnsConfig": {"searches": ["a"] * 33}}, ["dnsConfig.searches: Invalid"]),
        ({"dnsConfig": {"searches": ["a." * 120] * 9}}, ["dnsConfig.searches: Invalid"]),
        ({"dnsConfig": {"searches": [".", "_dns.example.com."]}}, []),
        (
            {"dnsConfig": {"searches": ["", "Not valid!"]}},
            ["dnsConfig.searches[0]: Invalid", "dnsConfig.searches[1]: Invalid"],
        ),
        ({"nodeSelector": {"a b": "c"}}, ["nodeSelector: Invalid"]),
        ({"nodeName": "Bad Node"}, ["nodeName: Invalid"]),
        ({"nodeName": "n", "schedulingGates": [{"name": "g"}]}, ["nodeName: Forbidden"]),
        ({"activeDeadlineSeconds": 0}, ["activeDeadlineSeconds: Invalid"]),
        ({"terminationGracePeriodSeconds": -5}, []),
        ({"hostname": "a.b", "subdomain": "A"}, ["hostname: Invalid", "subdomain: Invalid"]),
        ({"serviceAccountName": "A"}, ["serviceAccountName: Invalid"]),
        ({"priorityClassName": "A"}, ["priorityClassName: Invalid"]),
        ({"runtimeClassName": "A"}, ["runtimeClassName: Invalid"]),
        ({"preemptionPolicy": "Maybe"}, ["preemptionPolicy: NotSupported"]),
        ({"overhead": {"cpu": "-1"}}, ["overhead.limits[cpu]: Invalid"]),
        ({"os": {"name": "plan9"}}, ["os: NotSupported"]),
        (
            {"hostAliases": [{"ip": "x", "hostnames": ["A"]}]},
            ["hostAliases[0].ip: Invalid", "hostAliases[0].hostnames[0]: Invalid"],
        ),
        (
            {"readinessGates": [{"conditionType": "a b"}]},
            ["readinessGates[0].conditionType: Invalid"],
        ),
        (
            {"hostPID": True, "shareProcessNamespace": True},
            ["shareProcessNamespace: Invalid"],
        ),
        (
            {"ephemeralContainers": [{"name": "e", "image": "i"}]},
            ["ephemeralContainers: Forbidden"],
        ),
        ({"schedulingGates": [{"name": "a"}, {"name": "a"}]}, ["schedulingGates[1]: Duplicate"]),
        ({"schedulingGates": [{"name": "a b"}]}, ["schedulingGates[0]: Invalid"]),
        ({"schedulingGroup": {"podGroupName": "g"}}, []),
        ({"schedulingGroup": {"podGroupName": "A_B"}}, ["schedulingGroup.podGroupName: Invalid"]),
        ({"schedulingGroup": {"podGroupName": ""}}, ["schedulingGroup.podGroupName: Invalid"]),
        ({"schedulingGroup": {}}, ["schedulingGroup.podGroupName: Invalid"]),
        (
            {
                "schedulingGroup": {"podGroupName": "g"},
                "evictionResponders": [{"name": "a.b/c", "priority": 1}],
            },
            ["schedulingGroup: Forbidden"],
        ),
    ],
)
def test_pod_spec_is_validated(fields: Object, causes: CauseSummaries) -> None:
    assert create_causes(spec(**fields)) == causes


@pytest.mark.parametrize(
    ("fields", "causes"),
    [
        ({"name": "A.b"}, ["name: Invalid"]),
        ({"image": " app"}, ["image: Invalid"]),
        ({"imagePullPolicy": "Rarely"}, ["imagePullPolicy: NotSupported"]),
        ({"terminationMessagePolicy": "Paper"}, ["terminationMessagePolicy: NotSupported"]),
        ({"restartPolicy": "Sometimes"}, ["restartPolicy: NotSupported"]),
        (
            {"ports": [{"containerPort": 70_000, "protocol": "HTTP"}]},
            ["ports[0].containerPort: Invalid", "ports[0].protocol: NotSupported"],
        ),
        ({"ports": [{}]}, ["ports[0].containerPort: Required"]),
        ({"ports": [{"containerPort": 1, "hostPort": -1}]}, ["ports[0].hostPort: Invalid"]),
        ({"ports": [{"containerPort": 1, "name": "A"}]}, ["ports[0].name: Invalid"] * 2),
        (
            {"ports": [{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}]},
            ["ports[1].name: Duplicate"],
        ),
        (
            {"ports": [{"containerPort": 1, "hostPort": 9}, {"containerPort": 2, "hostPort": 9}]},
            ["ports[1].hostPort: Duplicate"],
        ),
        (
            {"volumeMounts": [{"name": "data", "mountPath": "/d"}]},
            ["volumeMounts[0].name: NotFound"],
        ),
        (
            {"volumeDevices": [{"name": "data", "devicePath": "/d"}]},
            ["volumeDevices[0].name: NotFound"],
        ),
        ({"resources": {"claims": [{"name": "gpu"}]}}, ["resources.claims[0]: NotFound"]),
        ({"resources": {"claims": [{}]}}, ["resources.claims[0]: Required"]),
        ({"securityContext": {"runAsUser": -1}}, ["securityContext.runAsUser: Invalid"]),
        (
            {"securityContext": {"privileged": True, "allowPrivilegeEscalation": False}},
            ["securityContext: Invalid"],
        ),
        (
            {
                "securityContext": {
                    "capabilities": {"add": ["CAP_SYS_ADMIN"]},
                    "allowPrivilegeEscalation": False,
                }
            },
            ["securityContext: Invalid"],
        ),
        (
            {"securityContext": {"seccompProfile": {}}},
            ["securityContext.seccompProfile.type: Required"],
        ),
        (
            {"securityContext": {"seccompProfile": {"type": "Mine"}}},
            ["securityContext.seccompProfile.type: NotSupported"],
        ),
        (
            {"securityContext": {"seccompProfile": {"type": "Localhost"}}},
            ["securityContext.seccompProfile.localhostProfile: Required"],
        ),
        (
            {
                "securityContext": {
                    "seccompProfile": {"type": "Unconfined", "localhostProfile": "p"}
                }
            },
            ["securityContext.seccompProfile.localhostProfile: Invalid"],
        ),
        (
            {"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": ""}}},
            [],
        ),
        (
            {
                "securityContext": {
                    "seccompProfile": {"type": "Localhost", "localhostProfile": "/p"}
                }
            },
            ["securityContext.seccompProfile.localhostProfile: Invalid"],
        ),
        (
            {
                "securityContext": {
                    "seccompProfile": {"type": "Localhost", "localhostProfile": "a/../p"}
                }
            },
            ["securityContext.seccompProfile.localhostProfile: Invalid"],
        ),
        (
            {"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "p"}}},
            [],
        ),
    ],
)
def test_container_is_validated(fields: Object, causes: CauseSummaries) -> None:
    assert create_causes(container(**fields)) == prefix_summaries("containers[0]", causes)


@pytest.mark.parametrize(
    ("resources", "causes"),
    [
        ({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}, []),
        ({"requests": {"cpu": "3"}, "limits": {"cpu": "2"}}, ["requests: Invalid"]),
        ({"requests": {"cpu": "-1"}}, ["requests[cpu]: Invalid"]),
        ({"limits": {"example.com/gpu": "2"}}, []),
        (
            {"limits": {"example.com/gpu": "1500m"}},
            ["limits[example.com/gpu]: Invalid", "requests[example.com/gpu]: Invalid"],
        ),
        ({"requests": {"example.com/gpu": "2"}}, ["limits: Required"]),
        (
            {"requests": {"example.com/gpu": "1"}, "limits": {"example.com/gpu": "2"}},
            ["requests: Invalid"],
        ),
        ({"requests": {"gpu": "1"}}, ["requests[gpu]: Invalid"] * 2),
        ({"requests": {"pods": "1"}}, ["requests[pods]: Invalid"]),
        ({"requests": {"a b": "1"}}, ["requests[a b]: Invalid"] * 2),
        ({"requests": {"requests.a.b/c": "1"}}, ["requests[requests.a.b/c]: Invalid"]),
        ({"limits": {"hugepages-2Mi": "4Mi"}}, [": Forbidden"]),
        ({"limits": {"hugepages-2Mi": "4Mi", "memory": "1Gi"}}, []),
    ],
)
def test_requests_must_not_exceed_limits(resources: Object, causes: CauseSummaries) -> None:
    assert create_causes(container(resources=resources)) == prefix_summaries(
        "containers[0].resources", causes
    )


def test_claims_of_a_container_are_claims_of_the_pod() -> None:
    claim = {"name": "gpu", "resourceClaimName": "x"}
    made = {**container(resources={"claims": [{"name": "gpu"}]}), "resourceClaims": [claim]}
    assert create_causes(made) == []
    made["containers"][0]["resources"]["claims"] = [{"name": "gpu"}, {"name": "gpu"}]
    assert create_causes(made) == ["containers[0].resources.claims[1]: Duplicate"]
    made["containers"][0]["resources"]["claims"] = [{"name": "nic"}]
    assert create_causes(made) == ["containers[0].resources.claims[0]: NotFound"]


@pytest.mark.parametrize(
    ("claim", "causes"),
    [
        ({"name": "c", "resourceClaimTemplateName": "t"}, []),
        ({"name": "c"}, [": Invalid"]),
        ({"name": "c", "resourceClaimName": "x", "resourceClaimTemplateName": "t"}, [": Invalid"]),
        ({"name": "C", "resourceClaimName": "x"}, ["name: Invalid"]),
        ({"name": "c", "resourceClaimName": "X"}, ["resourceClaimName: Invalid"]),
    ],
)
def test_a_claim_of_a_pod_has_one_source(claim: Object, causes: CauseSummaries) -> None:
    assert create_causes(spec(resourceClaims=[claim])) == prefix_summaries(
        "resourceClaims[0]", causes
    )


@pytest.mark.parametrize(
    ("variable", "causes"),
    [
        ({"name": "A", "value": "x"}, []),
        ({"name": "A=B"}, ["name: Invalid"]),
        ({"name": ""}, ["name: Required"]),
        ({"name": "A", "valueFrom": {}}, ["valueFrom: Invalid"]),
        (
            {"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            ["valueFrom: Invalid"],
        ),
        ({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}, []),
        (
            {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": ""}}},
            ["valueFrom.fieldRef.fieldPath: Required"],
        ),
        ({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a.b/c']"}}}, []),
        (
            {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a b']"}}},
            ["valueFrom.fieldRef: Invalid"],
        ),
        (
            {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.phase"}}},
            ["valueFrom.fieldRef.fieldPath: NotSupported"],
        ),
        (
            {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.colour"}}},
            ["valueFrom.fieldRef.fieldPath: Invalid"],
        ),
        (
            {
                "name": "A",
                "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName", "apiVersion": "v2"}},
            },
            ["valueFrom.fieldRef.fieldPath: Invalid"],
        ),
        ({"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}, []),
        (
            {
                "name": "A",
                "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "5"}},
            },
            ["valueFrom.resourceFieldRef.divisor: Invalid"],
        ),
        (
            {
                "name": "A",
                "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}},
            },
            [],
        ),
        (
            {"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.hugepages-2Mi"}}},
            [],
        ),
        (
            {"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.luck"}}},
            ["valueFrom.resourceFieldRef.resource: NotSupported"],
        ),
        ({"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}, []),
        (
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": "", "key": ""}}},
            ["valueFrom.secretKeyRef.name: Invalid", "valueFrom.secretKeyRef.key: Required"],
        ),
        (
            {
                "name": "A",
                "valueFrom": {
                    "configMapKeyRef": {"name": "m", "key": "k"},
                    "secretKeyRef": {"name": "m", "key": "k"},
                },
            },
            ["valueFrom: Invalid"],
        ),
    ],
)
def test_a_variable_has_a_name_and_one_source(variable: Object, causes: CauseSummaries) -> None:
    assert create_causes(container(env=[variable])) == prefix_summaries(
        "containers[0].env[0]", causes
    )


@pytest.mark.parametrize(
    ("source", "causes"),
    [
        ({"configMapRef": {"name": "m"}}, []),
        ({}, [": Invalid"]),
        ({"configMapRef": {"name": "m"}, "secretRef": {"name": "s"}}, [": Invalid"]),
        ({"secretRef": {}}, ["[0].secretRef.name: Required"]),
        ({"secretRef": {"name": "s"}, "prefix": "A=B"}, ["[0].prefix: Invalid"]),
    ],
)
def test_variables_by_the_dozen_have_one_source(source: Object, causes: CauseSummaries) -> None:
    assert create_causes(container(envFrom=[source])) == prefix_summaries(
        "containers[0].envFrom", causes
    )


@pytest.mark.parametrize(
    ("probe", "causes"),
    [
        ({"exec": {"command": ["true"]}}, []),
        ({}, [": Required"]),
        ({"exec": {}}, ["exec.command: Required"]),
        ({"tcpSocket": {"port": 0}}, ["tcpSocket.port: Invalid"]),
        ({"tcpSocket": {"port": "http"}}, []),
        ({"grpc": {"port": 70_000}}, ["grpc.port: Invalid"]),
        ({"httpGet": {"port": 1, "scheme": "FTP"}}, ["httpGet.scheme: NotSupported"]),
        (
            {"httpGet": {"port": "A", "httpHeaders": [{"name": "a b", "value": ""}]}},
            ["httpGet.port: Invalid"] * 2 + ["httpGet.httpHeaders: Invalid"],
        ),
        ({"exec": {"command": ["a"]}, "tcpSocket": {"port": 1}}, ["tcpSocket: Forbidden"]),
        ({"exec": {"command": ["a"]}, "timeoutSeconds": -1}, ["timeoutSeconds: Invalid"]),
        ({"exec": {"command": ["a"]}, "successThreshold": 2}, ["successThreshold: Invalid"]),
        (
            {"exec": {"command": ["a"]}, "terminationGracePeriodSeconds": 0},
            ["terminationGracePeriodSeconds: Invalid"],
        ),
    ],
)
def test_a_probe_acts_in_one_way(probe: Object, causes: CauseSummaries) -> None:
    assert create_causes(container(livenessProbe=probe)) == prefix_summaries(
        "containers[0].livenessProbe", causes
    )


def test_a_readiness_probe_has_no_grace() -> None:
    probe = {"exec": {"command": ["a"]}, "successThreshold": 2, "terminationGracePeriodSeconds": 5}
    assert create_causes(container(readinessProbe=probe)) == [
        "containers[0].readinessProbe.terminationGracePeriodSeconds: Invalid"
    ]


def test_a_hook_sleeps_no_longer_than_the_pod_has_to_stop() -> None:
    hook = {"preStop": {"sleep": {"seconds": 40}}}
    assert create_causes(container(lifecycle=hook)) == [
        "containers[0].lifecycle.preStop.sleep: Invalid"
    ]
    assert create_causes({**container(lifecycle=hook), "terminationGracePeriodSeconds": 60}) == []
    assert create_causes(container(lifecycle={"postStart": {}})) == [
        "containers[0].lifecycle.postStart: Required"
    ]


def test_an_init_container_has_probes_only_as_a_sidecar() -> None:
    probe = {"startupProbe": {"exec": {"command": ["a"]}}}
    init = {"name": "init", "image": "i", **probe}
    assert create_causes(spec(initContainers=[init])) == [
        "initContainers[0].startupProbe: Forbidden"
    ]
    assert create_causes(spec(initContainers=[{**init, "restartPolicy": "Always"}])) == []


def test_containers_share_the_ports_of_the_node_and_init_containers_do_not() -> None:
    def using(name: str, *numbers: int) -> Object:
        ports = [{"containerPort": n, "hostPort": 80} for n in numbers]
        return {"name": name, "image": "i", "ports": ports}

    assert create_causes({"containers": [using("a", 1), using("b", 1)]}) == [
        "containers[1].ports[0].hostPort: Duplicate"
    ]
    assert create_causes(spec(initContainers=[using("a", 1), using("b", 1)])) == []
    assert create_causes(spec(initContainers=[using("a", 1), using("b", 1, 2)])) == [
        "initContainers[1].ports[1].hostPort: Duplicate"
    ]


def test_on_the_network_of_the_node_ports_are_the_nodes() -> None:
    ports = [{"containerPort": 80}, {"containerPort": 81, "hostPort": 82}]
    assert create_causes({**container(ports=ports), "hostNetwork": True}) == [
        "containers[0].ports[1].hostPort: Invalid"
    ]


@pytest.mark.parametrize(
    ("volume", "causes"),
    [
        ({"name": "v"}, []),
        ({"name": "V"}, ["name: Invalid"]),
        ({"name": ""}, ["name: Required"]),
        ({"name": "v", "emptyDir": {}, "secret": {"secretName": "s"}}, ["secret: Forbidden"]),
        ({"name": "v", "emptyDir": {"sizeLimit": "-1"}}, ["emptyDir.sizeLimit: Forbidden"]),
        ({"name": "v", "secret": {}}, ["secret.secretName: Required"]),
        (
            {"name": "v", "configMap": {"name": "m", "defaultMode": 0o1000}},
            ["configMap.defaultMode: Invalid"],
        ),
        (
            {"name": "v", "configMap": {"name": "m", "items": [{"key": "", "path": "/x/../y"}]}},
            [
                "configMap.items[0].key: Required",
                "configMap.items[0].path: Invalid",
                "configMap.items[0].path: Invalid",
            ],
        ),
        (
            {"name": "v", "hostPath": {"path": "/a/../b", "type": "Hole"}},
            ["hostPath.path: Invalid", "hostPath.type: NotSupported"],
        ),
        ({"name": "v", "persistentVolumeClaim": {}}, ["persistentVolumeClaim.claimName: Required"]),
        (
            {"name": "v", "nfs": {}},
            ["nfs.server: Required", "nfs.path: Required", "nfs.path: Invalid"],
        ),
        ({"name": "v", "projected": {"sources": [{}]}}, []),
        (
            {"name": "v", "projected": {"sources": [{"serviceAccountToken": {}}]}},
            ["projected.path: Required"],
        ),
        (
            {"name": "v", "projected": {"sources": [{"downwardAPI": {"items": [{"path": "p"}]}}]}},
            ["projected.sources[0].downwardAPI: Required"],
        ),
        (
            {
                "name": "v",
                "projected": {
                    "sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 1}}]
                },
            },
            ["projected.sources[0].serviceAccountToken.expirationSeconds: Invalid"],
        ),
        (
            {
                "name": "v",
                "projected": {
                    "sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 2**33}}]
                },
            },
            ["projected.sources[0].serviceAccountToken.expirationSeconds: Invalid"],
        ),
        (
            {
                "name": "v",
                "downwardAPI": {
                    "items": [
                        {"path": "a", "fieldRef": {"fieldPath": "metadata.name"}},
                        {"path": "b", "fieldRef": {"fieldPath": "spec.nodeName"}},
                        {"path": "c", "resourceFieldRef": {"resource": "limits.cpu"}},
                        {
                            "path": "d",
                            "fieldRef": {"fieldPath": "metadata.uid"},
                            "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu"},
                        },
                    ]
                },
            },
            [
                "downwardAPI.fieldRef.fieldPath: NotSupported",
                "downwardAPI.resourceFieldRef.containerName: Required",
                "downwardAPI: Invalid",
            ],
        ),
        ({"name": "v", "image": {}}, ["image.reference: Required"]),
        ({"name": "v", "csi": {"driver": "a b"}}, ["csi.driver: Invalid"]),
        (
            {"name": "v", "ephemeral": {"volumeClaimTemplate": {}}},
            [
                "ephemeral.volumeClaimTemplate.spec.accessModes: Required",
                "ephemeral.volumeClaimTemplate.spec.resources[storage]: Required",
            ],
        ),
        ({"name": "v", "ephemeral": {}}, ["ephemeral.volumeClaimTemplate: Required"]),
        (
            {
                "name": "v",
                "projected": {"sources": [{"secret": {"name": "s"}, "configMap": {"name": "m"}}]},
            },
            ["projected.sources[0]: Forbidden"],
        ),
    ],
)
def test_a_volume_has_one_source(volume: Object, causes: CauseSummaries) -> None:
    made = spec(volumes=[volume], serviceAccountName="default")
    assert create_causes(made) == prefix_summaries("volumes[0]", causes)


def test_volumes_have_different_names() -> None:
    assert create_causes(spec(volumes=[{"name": "v"}, {"name": "v"}])) == [
        "volumes[1].name: Duplicate"
    ]


@pytest.mark.parametrize(
    ("mounts", "causes"),
    [
        ([{"name": "v", "mountPath": "/d"}], []),
        ([{"name": "v"}], ["[0].mountPath: Required"]),
        (
            [{"name": "v", "mountPath": "/d"}, {"name": "v", "mountPath": "/d"}],
            ["[1].mountPath: Invalid"],
        ),
        ([{"name": "v", "mountPath": "/d", "subPath": "/x"}], ["subPath: Invalid"]),
        (
            [{"name": "v", "mountPath": "/d", "subPath": "a", "subPathExpr": "b"}],
            ["[0].subPathExpr: Invalid"],
        ),
        (
            [{"name": "v", "mountPath": "/d", "mountPropagation": "Up"}],
            ["mountPropagation: NotSupported"],
        ),
    ],
)
def test_mounts_do_not_overlap(mounts: list[Object], causes: CauseSummaries) -> None:
    made = {**container(volumeMounts=mounts), "volumes": [{"name": "v"}]}
    assert create_causes(made) == prefix_summaries("containers[0].volumeMounts", causes)


def test_devices_do_not_overlap() -> None:
    devices = [{"name": "v", "devicePath": "/d"}] * 2
    made = {**container(volumeDevices=devices), "volumes": [{"name": "v"}]}
    assert create_causes(made) == prefix_summaries(
        "containers[0].volumeDevices", ["[1].name: Invalid", "[1].devicePath: Invalid"]
    )


@pytest.mark.parametrize(
    ("fields", "causes"),
    [
        ({"runAsUser": 2**31, "fsGroup": -1}, ["runAsUser: Invalid", "fsGroup: Invalid"]),
        ({"supplementalGroups": [0, -1]}, ["supplementalGroups[1]: Invalid"]),
        ({"fsGroupChangePolicy": "Never"}, ["fsGroupChangePolicy: NotSupported"]),
        ({"sysctls": [{"name": "kernel.shmmax", "value": "1"}]}, []),
        (
            {"sysctls": [{"value": "1"}, {"name": "A", "value": "1"}]},
            ["sysctls[0].name: Required", "sysctls[1].name: Invalid"],
        ),
        ({"sysctls": [{"name": "a.b", "value": "1"}] * 2}, ["sysctls[1].name: Duplicate"]),
        (
            {"appArmorProfile": {"type": "Localhost"}},
            ["appArmorProfile.localhostProfile: Required"],
        ),
    ],
)
def test_security_context_is_validated(fields: Object, causes: CauseSummaries) -> None:
    assert create_causes(spec(securityContext=fields)) == prefix_summaries(
        "securityContext", causes
    )
