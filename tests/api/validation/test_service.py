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
        (
            spec(sessionAffinityConfig={"clientIP": {"timeoutSeconds": 5}}),
            ["sessionAffinityConfig: Forbidden"],
        ),
        (
            spec(
                sessionAffinity="ClientIP",
                sessionAffinityConfig={"clientIP": {"timeoutSeconds": 90_000}},
            ),
            ["sessionAffinityConfig.clientIP.timeoutSeconds: Invalid"],
        ),
        (spec(externalTrafficPolicy="Local"), ["externalTrafficPolicy: Invalid"]),
        (spec(externalTrafficPolicy="Local", type="NodePort"), []),
        (spec(externalTrafficPolicy="Some", type="NodePort"), [
            "externalTrafficPolicy: NotSupported"
        ]),
        ({"type": "ExternalName", "externalName": "db.example.com."}, []),
        ({"type": "ExternalName"}, ["externalName: Required"]),
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
