"""Fields for which an empty string is a value: it is refused, not taken for an absent one."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import (
    JOB,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_DISRUPTION_BUDGET,
    RESOURCE_SLICE,
    SERVICE,
    Kind,
)
from phalanx.api.wire import Object
from tests.builders import in_virtual_time
from tests.server.api import Api

POD_SPEC: Object = {"containers": [{"name": "c", "image": "i"}]}
TEMPLATE: Object = {"spec": {**POD_SPEC, "restartPolicy": "Never"}}
CLAIM: Object = {
    "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
}  # fmt: skip
VOLUME: Object = {
    "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/d"},
}  # fmt: skip
SPREAD: Object = {
    "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {},
}  # fmt: skip
SLICE: Object = {"driver": "d.example.com", "pool": {"name": "p", "resourceSliceCount": 1}}


def with_container(**fields: Any) -> Object:
    return {"containers": [{"name": "c", "image": "i", **fields}]}


@pytest.mark.parametrize(
    ("kind", "spec", "causes"),
    [
        (SERVICE, {"ports": [{"port": 80}], "internalTrafficPolicy": ""},
         ["spec.internalTrafficPolicy"]),
        (SERVICE, {"ports": [{"port": 80}], "ipFamilyPolicy": ""}, ["spec.ipFamilyPolicy"]),
        (SERVICE, {"ports": [{"port": 80}], "trafficDistribution": ""},
         ["spec.trafficDistribution"]),
        (POD_DISRUPTION_BUDGET, {"unhealthyPodEvictionPolicy": ""},
         ["spec.unhealthyPodEvictionPolicy"]),
        (JOB, {"template": TEMPLATE, "completions": 2, "completionMode": "Indexed",
               "successPolicy": {"rules": [{"succeededIndexes": "", "succeededCount": 1}]}},
         ["spec.successPolicy.rules[0].succeededCount"]),
        (JOB, {"template": TEMPLATE, "completionMode": ""}, ["spec.completionMode"]),
        (PERSISTENT_VOLUME, {**VOLUME, "volumeMode": ""}, ["spec.volumeMode"]),
        (PERSISTENT_VOLUME_CLAIM, {**CLAIM, "volumeMode": ""}, ["spec.volumeMode"]),
        (POD, {**POD_SPEC, "topologySpreadConstraints": [{**SPREAD, "nodeTaintsPolicy": ""}]},
         ["spec.topologySpreadConstraints[0].nodeTaintsPolicy"]),
        (POD, with_container(securityContext={"procMount": ""}),
         ["spec.containers[0].securityContext.procMount"]),
        (POD, {**POD_SPEC, "securityContext": {"fsGroupChangePolicy": ""}},
         ["spec.securityContext.fsGroupChangePolicy"]),
        (NODE, {"podCIDR": "x"}, ["spec.podCIDRs[0]"]),
        (PERSISTENT_VOLUME, {**VOLUME, "volumeAttributesClassName": ""},
         ["spec.csi", "spec.volumeAttributesClassName"]),
        (RESOURCE_SLICE, {**SLICE, "nodeName": ""}, ["spec", "spec.nodeName"]),
    ],
)  # fmt: skip
@in_virtual_time
async def test_an_empty_string_is_not_taken_for_an_absent_one(
    kind: Kind, spec: Object, causes: list[str]
) -> None:
    api = await Api.start()
    meta: Object = {"name": "x", **({"namespace": "default"} if kind.namespaced else {})}
    path = kind.url_path("default" if kind.namespaced else "")
    answer = await api.ask("POST", path, {"metadata": meta, "spec": spec})
    assert answer.code == 422, answer.body
    assert sorted({field for field, _ in answer.cause_reasons}) == causes


@in_virtual_time
async def test_an_empty_text_is_an_attribute_of_a_device() -> None:
    api = await Api.start()
    devices = [{"name": "d", "attributes": {"a": {"string": ""}}}]
    spec = {**SLICE, "allNodes": True, "devices": devices}
    made = await api.create(RESOURCE_SLICE, {"metadata": {"name": "x"}, "spec": spec})
    assert made[0]["spec"]["devices"] == devices
