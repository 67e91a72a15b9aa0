"""resource.k8s.io/v1beta1 and autoscaling/v1: the same objects in other shapes."""

from __future__ import annotations

import pytest

from phalanx.api.conversion.hub import from_hub, to_hub
from phalanx.api.kinds import (
    HORIZONTAL_POD_AUTOSCALER_V1,
    RESOURCE_CLAIM_TEMPLATE_V1BETA1,
    RESOURCE_CLAIM_V1BETA1,
    RESOURCE_SLICE_V1BETA1,
    Kind,
)
from phalanx.api.wire import Object

REQUESTS_V1 = {
    "devices": {
        "requests": [
            {"name": "a", "exactly": {"deviceClassName": "gpu", "count": 2}},
            {"name": "b", "firstAvailable": [{"name": "x", "deviceClassName": "gpu"}]},
        ]
    }
}
REQUESTS_V1BETA1 = {
    "devices": {
        "requests": [
            {"name": "a", "deviceClassName": "gpu", "count": 2},
            {"name": "b", "firstAvailable": [{"name": "x", "deviceClassName": "gpu"}]},
        ]
    }
}
CPU = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}}
PODS = {"metric": {"name": "queue"}, "target": {"type": "AverageValue", "averageValue": "5"}}


@pytest.mark.parametrize(
    ("kind", "stored", "served"),
    [
        (RESOURCE_CLAIM_V1BETA1, {"spec": REQUESTS_V1}, {"spec": REQUESTS_V1BETA1}),
        (RESOURCE_CLAIM_TEMPLATE_V1BETA1, {"spec": {"spec": REQUESTS_V1}},
         {"spec": {"spec": REQUESTS_V1BETA1}}),
        (RESOURCE_SLICE_V1BETA1, {"spec": {"devices": [{"name": "d", "attributes": {"x": {}}}]}},
         {"spec": {"devices": [{"name": "d", "basic": {"attributes": {"x": {}}}}]}}),
        (RESOURCE_CLAIM_V1BETA1, {"spec": {}}, {"spec": {}}),
        (RESOURCE_SLICE_V1BETA1, {"spec": {}}, {"spec": {}}),
        (HORIZONTAL_POD_AUTOSCALER_V1,
         {"metadata": {"name": "x"},
          "spec": {"maxReplicas": 3, "metrics": [{"type": "Resource", "resource": CPU}]}},
         {"metadata": {"name": "x"},
          "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 60}}),
    ],
)  # fmt: skip
def test_both_forms_are_converted(kind: Kind, stored: Object, served: Object) -> None:
    assert from_hub(kind, stored) == served
    assert to_hub(kind, served) == stored


def test_a_request_without_class_has_no_exact_part() -> None:
    served = {"spec": {"devices": {"requests": [{"name": "b", "deviceClassName": ""}]}}}
    stored = to_hub(RESOURCE_CLAIM_V1BETA1, served)
    assert stored["spec"]["devices"]["requests"] == [{"name": "b"}]


def test_what_autoscaling_v1_lacks_is_kept_in_annotations() -> None:
    stored = {
        "metadata": {"name": "x"},
        "spec": {
            "maxReplicas": 3,
            "metrics": [{"type": "Resource", "resource": CPU}, {"type": "Pods", "pods": PODS}],
            "behavior": {"scaleUp": {"selectPolicy": "Max"}},
        },
        "status": {
            "desiredReplicas": 1,
            "currentMetrics": [
                {"type": "Resource", "resource": {"name": "cpu",
                                                  "current": {"averageUtilization": 7}}}
            ],
            "conditions": [{"type": "AbleToScale", "status": "True"}],
        },
    }  # fmt: skip
    served = from_hub(HORIZONTAL_POD_AUTOSCALER_V1, stored)
    assert served["spec"] == {"maxReplicas": 3, "targetCPUUtilizationPercentage": 60}
    assert served["status"] == {"desiredReplicas": 1, "currentCPUUtilizationPercentage": 7}
    assert to_hub(HORIZONTAL_POD_AUTOSCALER_V1, served) == stored


def test_annotations_that_are_no_json_are_ignored() -> None:
    name = "autoscaling.alpha.kubernetes.io/metrics"
    served = {"metadata": {"annotations": {name: "{"}}, "spec": {"maxReplicas": 1}}
    assert to_hub(HORIZONTAL_POD_AUTOSCALER_V1, served)["spec"] == {"maxReplicas": 1}
