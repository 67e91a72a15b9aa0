"""Defaults of Services."""

from __future__ import annotations

from typing import Any

from phalanx.api.kinds import SERVICE
from phalanx.api.wire import Object
from tests.api.stored_objects import make_stored


def service(**spec: Any) -> Object:
    new: Object = make_stored(SERVICE, {"spec": {"ports": [{"port": 80}], **spec}})["spec"]
    return new


def test_a_small_service_gets_its_defaults() -> None:
    assert service() == {
        "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
        "type": "ClusterIP",
        "sessionAffinity": "None",
        "internalTrafficPolicy": "Cluster",
    }


def test_an_address_stands_in_two_places() -> None:
    assert service(clusterIP="None")["clusterIPs"] == ["None"]
    assert "clusterIP" not in service(clusterIPs=["fd00::1"])


def test_defaults_depend_on_the_type() -> None:
    balanced = service(type="LoadBalancer")
    assert balanced["externalTrafficPolicy"] == "Cluster"
    assert balanced["allocateLoadBalancerNodePorts"] is True
    assert "externalTrafficPolicy" not in service()
    assert service(externalIPs=["192.0.2.7"])["externalTrafficPolicy"] == "Cluster"
    assert "internalTrafficPolicy" not in service(type="ExternalName")


def test_sessions_last_three_hours() -> None:
    config = service(sessionAffinity="ClientIP")["sessionAffinityConfig"]
    assert config == {"clientIP": {"timeoutSeconds": 10_800}}
