from __future__ import annotations

import pytest

from phalanx.api.kinds import (
    CONFIG_MAP,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    STORAGE_CLASS,
    Kind,
)
from phalanx.api.strategy import BuiltinStrategy
from phalanx.api.wire import Object

BETA_ZONE = "failure-domain.beta.kubernetes.io/zone"
BETA_CLASS = {"annotations": {"volume.beta.kubernetes.io/storage-class": "fast"}}


def affinity(key: str) -> Object:
    term = {"matchExpressions": [{"key": "a"}, {"key": key}]}
    return {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}


@pytest.mark.parametrize(
    ("kind", "obj", "fields"),
    [
        (CONFIG_MAP, {"metadata": {}}, []),
        (PERSISTENT_VOLUME, {"metadata": {}, "spec": affinity("zone")}, []),
        (
            PERSISTENT_VOLUME,
            {
                "metadata": BETA_CLASS,
                "spec": {"persistentVolumeReclaimPolicy": "Recycle", **affinity(BETA_ZONE)},
            },
            [
                "metadata.annotations[volume.beta.kubernetes.io/storage-class]",
                "spec.persistentVolumeReclaimPolicy",
                "spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[1].key",
            ],
        ),
        (
            PERSISTENT_VOLUME_CLAIM,
            {"metadata": {}, "spec": {"resources": {"requests": {"storage": "1500m"}}}},
            ["spec.resources.requests[storage]"],
        ),
        (PERSISTENT_VOLUME_CLAIM, {"metadata": {}, "spec": {}}, []),
        (
            STORAGE_CLASS,
            {
                "metadata": {},
                "allowedTopologies": [{"matchLabelExpressions": [{"key": BETA_ZONE}]}],
            },
            ["allowedTopologies[0].matchLabelExpressions[0].key"],
        ),
    ],
)
def test_deprecated_and_fractional_values_give_warnings(
    kind: Kind, obj: Object, fields: list[str]
) -> None:
    found = BuiltinStrategy(kind).warnings(obj, obj)
    assert [text.partition(": ")[0] for text in found] == fields
