"""Rules of Services."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import SERVICE
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries
from tests.api.stored_objects import change_stored, creation_causes, find_causes, make_stored

HTTP: Object = {"name": "http", "port": 80}
SSH: Object = {"name": "ssh", "port": 22}


def spec(*ports: Object, **fields: Any) -> Object:
    return {"ports": list(ports) or [HTTP], **fields}


@pytest.mark.parametrize(
    ("wanted", "causes"),
    [
        (spec(), []),
        (spec(HTTP, SSH, selector={"app": "x"}), []),
        (spec({"port": 80, "targetPort": "web", "appProtocol": "example.com/x"}), []),
        ({"clusterIP": "None"}, []),
        ({}, ["ports: Required"]),
        (spec({"port": 0}), ["ports[0].port: Invalid", "ports[0].targetPort: Invalid"]),
        (spec({"port": 80, "targetPort": 70_000}), ["ports[0].targetPort: Invalid"]),
        (spec({"port": 80, "targetPort": "no--name"}), ["ports[0].targetPort: Invalid"]),
        (spec({"port": 80, "protocol": "HTTP"}), ["ports[0].protocol: NotSupported"]),
        (spec({"port": 80, "name": "A_B"}), ["ports[0].name: Invalid"]),
        (spec({"port": 80, "nodePort": 30_000}), ["ports[0].nodePort: Forbidden"]),
        (spec(HTTP, {"port": 81}), ["ports[1].name: Required"]),
        (spec(HTTP, {**SSH, "name": "http"}), ["ports[1].name: Duplicate"]),
        (spec(HTTP, {**SSH, "port": 80}), ["ports[1]: Duplicate"]),
        (spec(HTTP, {**SSH, "port": 80, "protocol": "UDP"}), []),
        (spec(selector={"a b": "c"}), ["selector: Invalid"]),
        (spec(type="Somehow"), ["type: NotSupported"]),
        (spec(externalIPs=["here"]), ["externalIPs[0]: Invalid"]),
        (spec(clusterIP="10.0.0.1"), []),
        (spec(clusterIP="here"), ["clusterIPs[0]: Invalid"]),
        (spec(type="NodePort", clusterIP="None"), ["clusterIPs[0]: Invalid"]),
        (spec(ipFamilies=["IPv5"]), ["ipFamilies[0]: NotSupported"]),
        (
            spec(ipFamilies=["IPv5"], clusterIP="10.0.0.1", clusterIPs=["10.0.0.1"]),
            ["ipFamilies[0]: NotSupported"],
        ),
        (spec(ipFamilyPolicy="Any"), ["ipFamilyPolicy: NotSupported"]),
        (spec(sessionAffinity="Cookie"), ["sessionAffinity: NotSupported"]),
        (spec(sessionAffinity="ClientIP"), []),
        # Defaulting drops the configuration of the affinity None.
        (spec(sessionAffinityConfig={"clientIP": {"timeoutSeconds": 5}}), []),
        (
            spec(
                sessionAffinity="ClientIP",
                sessionAffinityConfig={"clientIP": {"timeoutSeconds": 90_000}},
            ),
            ["sessionAffinityConfig.clientIP.timeoutSeconds: Invalid"],
        ),
        (spec(externalTrafficPolicy="Some"), ["externalTrafficPolicy: Invalid"]),
        (spec(internalTrafficPolicy="Some"), ["internalTrafficPolicy: NotSupported"]),
        (spec(healthCheckNodePort=-1), ["healthCheckNodePort: Invalid"]),
        (spec({"port": 80, "nodePort": -1}), ["ports[0].nodePort: Forbidden"]),
        (spec(externalIPs=["192.0.2.7", "2001:db8::1", "232.0.0.1"]), []),
        (spec(externalIPs=["0.0.0.0"]), ["externalIPs[0]: Invalid"]),
        (spec(externalIPs=["127.0.0.1"]), ["externalIPs[0]: Invalid"]),
        (spec(externalIPs=["169.254.169.254"]), ["externalIPs[0]: Invalid"]),
        (spec(externalIPs=["fe80::1"]), ["externalIPs[0]: Invalid"]),
        (spec(externalIPs=["224.0.0.1"]), ["externalIPs[0]: Invalid"]),
        (spec(externalIPs=["ff02::1"]), ["externalIPs[0]: Invalid"]),
        (spec(loadBalancerSourceRanges=["10.0.0.0/8"]), ["LoadBalancerSourceRanges: Forbidden"]),
        (
            spec(loadBalancerSourceRanges=["x"]),
            ["LoadBalancerSourceRanges[0]: Invalid", "LoadBalancerSourceRanges: Forbidden"],
        ),
        (spec(loadBalancerSourceRanges=[" 10.0.0.0/8"], type="LoadBalancer"), []),
        (spec(loadBalancerClass="a/b"), ["loadBalancerClass: Forbidden"]),
        (spec(loadBalancerClass="a b", type="LoadBalancer"), ["loadBalancerClass: Invalid"]),
        (
            spec(allocateLoadBalancerNodePorts=False),
            ["allocateLoadBalancerNodePorts: Forbidden"],
        ),
        (spec({"port": 10250}, type="LoadBalancer"), []),
        (
            spec(clusterIP="None", clusterIPs=["None", "here"]),
            ["clusterIPs[1]: Invalid", "clusterIPs: Invalid"],
        ),
        (
            spec(clusterIP="10.0.0.1", clusterIPs=["10.0.0.1", "fd00::1", "10.0.0.2"]),
            ["clusterIPs: Invalid"],
        ),
        (
            spec(clusterIP="10.0.0.1", clusterIPs=["10.0.0.1", "10.0.0.2"]),
            ["clusterIPs: Invalid"],
        ),
        (spec(clusterIP="10.0.0.1", ipFamilies=["IPv6"]), ["clusterIPs[0]: Invalid"]),
        (spec(externalTrafficPolicy="Local"), ["externalTrafficPolicy: Invalid"]),
        (spec(externalTrafficPolicy="Local", type="NodePort"), []),
        (spec(externalTrafficPolicy="Some", type="NodePort"), [
            "externalTrafficPolicy: NotSupported"
        ]),
        ({"type": "ExternalName", "externalName": "db.example.com."}, []),
        ({"type": "ExternalName"}, ["externalName: Required"]),
        ({"type": "ExternalName", "externalName": "."}, ["externalName: Required"]),
        ({"type": "ExternalName", "externalName": "A B"}, ["externalName: Invalid"]),
        (
            {"type": "ExternalName", "externalName": "db", "clusterIP": "10.0.0.1"},
            ["clusterIPs: Forbidden"],
        ),
    ],
)  # fmt: skip
def test_service_ports_are_validated(wanted: Object, causes: CauseSummaries) -> None:
    assert creation_causes(SERVICE, {"spec": wanted}) == prefix_summaries("spec", causes)


def test_session_affinity_needs_a_valid_timeout() -> None:
    new = make_stored(SERVICE, {"spec": spec(sessionAffinity="ClientIP")})
    del new["spec"]["sessionAffinityConfig"]
    place = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
    assert find_causes(SERVICE, new) == [f"{place}: Required"]


def test_a_service_keeps_its_address() -> None:
    old = make_stored(SERVICE, {"spec": spec(clusterIP="10.0.0.1")})
    moved = spec(clusterIP="10.0.0.2", clusterIPs=["10.0.0.2"])
    assert find_causes(SERVICE, change_stored(SERVICE, old, spec=moved), old) == [
        "spec.clusterIPs[0]: Invalid"
    ]
    outside = {"type": "ExternalName", "externalName": "db"}
    assert find_causes(SERVICE, change_stored(SERVICE, old, spec=outside), old) == []
    assert (
        find_causes(SERVICE, change_stored(SERVICE, old, spec={**old["spec"], "ports": [SSH]}), old)
        == []
    )


def test_the_name_of_a_service_is_a_label() -> None:
    assert creation_causes(SERVICE, {"metadata": {"name": "a.b"}, "spec": spec()}) == [
        "metadata.name: Invalid"
    ]


SINGLE = {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"]}
DUAL = {
    "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"], "ipFamilies": ["IPv4", "IPv6"],
    "ipFamilyPolicy": "PreferDualStack",
}  # fmt: skip
HEADLESS = {"clusterIP": "None", "clusterIPs": ["None"], "ipFamilies": ["IPv4"]}
BALANCER = {"type": "LoadBalancer"}
LOCAL = {**BALANCER, "externalTrafficPolicy": "Local", "healthCheckNodePort": 30_001}


@pytest.mark.parametrize(
    ("before", "after", "causes"),
    [
        (SINGLE, DUAL, []),
        (DUAL, {**SINGLE, "ipFamilyPolicy": "SingleStack"}, []),
        (DUAL, {**DUAL, **SINGLE}, ["ipFamilyPolicy: Invalid", "ipFamilyPolicy: Invalid"]),
        (
            DUAL,
            {**DUAL, "clusterIPs": ["10.0.0.1", "fd00::2"], "ipFamilies": ["IPv4", "IPv6"]},
            ["clusterIPs[1]: Invalid"],
        ),
        (HEADLESS, {**HEADLESS, "ipFamilies": ["IPv6"]}, []),
        (HEADLESS, SINGLE, ["clusterIPs[0]: Invalid"]),
        (SINGLE, {**HEADLESS, "ipFamilies": ["IPv6"]}, ["clusterIPs[0]: Invalid"]),
        (SINGLE, {**SINGLE, "ipFamilies": []}, []),
        (
            {**BALANCER, "loadBalancerClass": "a/b"},
            {**BALANCER, "loadBalancerClass": "a b"},
            ["loadBalancerClass: Invalid"] * 2,
        ),
        (SINGLE, {**SINGLE, "loadBalancerClass": "a/b"}, ["loadBalancerClass: Forbidden"]),
        (LOCAL, {**LOCAL, "healthCheckNodePort": 30_002}, ["healthCheckNodePort: Forbidden"]),
        (BALANCER, LOCAL, []),
    ],
)
def test_updates_keep_addresses_and_classes(
    before: Object, after: Object, causes: CauseSummaries
) -> None:
    old = make_stored(SERVICE, {"spec": spec(**before)})
    new = change_stored(SERVICE, old, spec=spec(**after))
    assert find_causes(SERVICE, new, old) == prefix_summaries("spec", causes)


@pytest.mark.parametrize(
    ("ingress", "causes"),
    [
        ({"ip": "192.0.2.1"}, []),
        ({"ip": "192.0.2.1", "ipMode": "Proxy", "hostname": "a.example.com"}, []),
        ({"ip": "here"}, ["ip: Invalid"]),
        ({"ip": "192.0.2.1", "ipMode": "Direct"}, ["ipMode: NotSupported"]),
        ({"ipMode": "VIP"}, ["ipMode: Forbidden"]),
        ({"hostname": "A_B"}, ["hostname: Invalid"]),
        ({"hostname": "192.0.2.1"}, ["hostname: Invalid"]),
    ],
)
def test_addresses_of_a_load_balancer_are_validated(
    ingress: Object, causes: CauseSummaries
) -> None:
    old = make_stored(SERVICE, {"spec": spec(type="LoadBalancer")})
    new = change_stored(SERVICE, old, status={"loadBalancer": {"ingress": [ingress]}})
    place = "status.loadBalancer.ingress[0]"
    assert find_causes(SERVICE, new, old, "status") == prefix_summaries(place, causes)
    inside = change_stored(SERVICE, new, spec=spec())
    found = find_causes(SERVICE, inside, inside, "status")
    assert found == ["status.loadBalancer.ingress: Forbidden"]


SOURCE_RANGES = "service.beta.kubernetes.io/load-balancer-source-ranges"
MODE, HINTS = (f"service.kubernetes.io/topology-{name}" for name in ("mode", "aware-hints"))


@pytest.mark.parametrize(
    ("annotations", "kind", "causes"),
    [
        ({SOURCE_RANGES: " 10.0.0.0/8, fd00::/8"}, "LoadBalancer", []),
        ({SOURCE_RANGES: " "}, "LoadBalancer", []),
        ({SOURCE_RANGES: "10.0.0.0/8,x"}, "LoadBalancer", [f"[{SOURCE_RANGES}]: Invalid"]),
        ({SOURCE_RANGES: "10.0.0.0/8"}, "ClusterIP", [f"[{SOURCE_RANGES}]: Forbidden"]),
        ({MODE: "Auto", HINTS: "Auto"}, "ClusterIP", []),
        ({MODE: "Auto", HINTS: "Disabled"}, "ClusterIP", [f"[{MODE}]: Invalid"]),
    ],
)
def test_annotations_that_stand_for_fields_are_validated(
    annotations: Object, kind: str, causes: CauseSummaries
) -> None:
    service = {"metadata": {"annotations": annotations}, "spec": spec(type=kind)}
    assert creation_causes(SERVICE, service) == [f"metadata.annotations{one}" for one in causes]
