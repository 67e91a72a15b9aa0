"""Conversion of resource.k8s.io/v1beta1 and autoscaling/v1 to and from the stored versions.

resource.k8s.io/v1beta1 has the same fields in other places:

    v1beta1                                v1
    requests[].deviceClassName, …          requests[].exactly.deviceClassName, …
    devices[].basic.attributes, …          devices[].attributes, …

autoscaling/v1 has one metric, the CPU utilization. The rest of a v2 object is kept in annotations,
so that a v1 client that writes an object back changes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from phalanx.api.wire import Object, compact_json

#: The fields of a request in v1beta1 that belong to `exactly` in v1.
_EXACT_FIELDS = (
    "deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations",
    "capacity", "derivedAttributes",
)  # fmt: skip


def _split_request(request: Object) -> Object:
    exact = {field: value for field, value in request.items() if field in _EXACT_FIELDS}
    rest = {field: value for field, value in request.items() if field not in _EXACT_FIELDS}
    # An empty class is the zero value that v1beta1 always has.
    if not any(value for value in exact.values()):
        return rest
    return {**rest, "exactly": exact}


def _merge_request(request: Object) -> Object:
    rest = {field: value for field, value in request.items() if field != "exactly"}
    return {**rest, **(request.get("exactly") or {})}


def _convert_requests(convert: Callable[[Object], Object]) -> Callable[[Object], Object]:
    def convert_spec(spec: Object) -> Object:
        devices = spec.get("devices")
        if not isinstance(devices, dict) or not isinstance(devices.get("requests"), list):
            return spec
        requests = [convert(one) if isinstance(one, dict) else one for one in devices["requests"]]
        return {**spec, "devices": {**devices, "requests": requests}}

    return convert_spec


def convert_claim(convert: Callable[[Object], Object]) -> Callable[[Object], Object]:
    """Return the converter of ResourceClaims with this conversion of requests."""
    in_spec = _convert_requests(convert)

    def convert_object(obj: Object) -> Object:
        spec = obj.get("spec")
        return {**obj, "spec": in_spec(spec)} if isinstance(spec, dict) else obj

    return convert_object


def convert_claim_template(convert: Callable[[Object], Object]) -> Callable[[Object], Object]:
    """Return the converter of ResourceClaimTemplates with this conversion of requests."""
    in_claim = convert_claim(convert)

    def convert_object(obj: Object) -> Object:
        spec = obj.get("spec")
        return {**obj, "spec": in_claim(spec)} if isinstance(spec, dict) else obj

    return convert_object


claim_to_hub, claim_from_hub = convert_claim(_split_request), convert_claim(_merge_request)
template_to_hub = convert_claim_template(_split_request)
template_from_hub = convert_claim_template(_merge_request)


def _convert_devices(convert: Callable[[Object], Object]) -> Callable[[Object], Object]:
    def convert_object(obj: Object) -> Object:
        spec = obj.get("spec")
        if not isinstance(spec, dict) or not isinstance(spec.get("devices"), list):
            return obj
        devices = [convert(one) if isinstance(one, dict) else one for one in spec["devices"]]
        return {**obj, "spec": {**spec, "devices": devices}}

    return convert_object


slice_to_hub = _convert_devices(
    lambda device: {
        **{field: value for field, value in device.items() if field != "basic"},
        **(device.get("basic") or {}),
    }
)
slice_from_hub = _convert_devices(
    lambda device: {
        "name": device.get("name", ""),
        "basic": {field: value for field, value in device.items() if field != "name"},
    }
)

# ---------------------------------------------------------------------------------- autoscalers

_PREFIX = "autoscaling.alpha.kubernetes.io/"
#: Parts of a v2 object that v1 lacks, with the annotation that keeps each.
_KEPT_PARTS = (
    ("spec", "metrics", f"{_PREFIX}metrics"),
    ("spec", "behavior", f"{_PREFIX}behavior"),
    ("status", "currentMetrics", f"{_PREFIX}current-metrics"),
    ("status", "conditions", f"{_PREFIX}conditions"),
)


def _is_cpu_utilization(metric: Any) -> bool:
    resource = metric.get("resource") if isinstance(metric, dict) else None
    if not isinstance(resource, dict) or resource.get("name") != "cpu":
        return False
    value = resource.get("target") or resource.get("current") or {}
    return isinstance(value, dict) and value.get("averageUtilization") is not None


def autoscaler_to_hub(obj: Object) -> Object:
    """Convert an autoscaling/v1 HorizontalPodAutoscaler to v2."""
    spec, status = dict(obj.get("spec") or {}), dict(obj.get("status") or {})
    meta = dict(obj.get("metadata") or {})
    annotations = dict(meta.get("annotations") or {})
    parts: dict[str, Any] = {"spec": spec, "status": status}
    for part, field, name in _KEPT_PARTS:
        text = annotations.pop(name, None)
        try:
            value = orjson.loads(text) if isinstance(text, str) else None
        except orjson.JSONDecodeError:
            value = None
        if value is not None:
            parts[part][field] = value
    target = spec.pop("targetCPUUtilizationPercentage", None)
    if target is not None:
        value = {"type": "Utilization", "averageUtilization": target}
        metric = {"type": "Resource", "resource": {"name": "cpu", "target": value}}
        spec["metrics"] = [metric, *spec.get("metrics", ())]
    current = status.pop("currentCPUUtilizationPercentage", None)
    if current is not None:
        seen = {"name": "cpu", "current": {"averageUtilization": current}}
        metrics = status.get("currentMetrics", ())
        status["currentMetrics"] = [{"type": "Resource", "resource": seen}, *metrics]
    return _assemble(obj, meta, annotations, spec=spec, status=status)


def autoscaler_from_hub(obj: Object) -> Object:
    """Convert an autoscaling/v2 HorizontalPodAutoscaler to v1."""
    spec, status = dict(obj.get("spec") or {}), dict(obj.get("status") or {})
    meta = dict(obj.get("metadata") or {})
    annotations = dict(meta.get("annotations") or {})
    for metrics, source, place, field, name in (
        (spec.pop("metrics", None), "target", spec, "targetCPUUtilizationPercentage", "metrics"),
        (
            status.pop("currentMetrics", None), "current", status,
            "currentCPUUtilizationPercentage", "current-metrics",
        ),
    ):  # fmt: skip
        listed = list(metrics or ())
        at = next((n for n, one in enumerate(listed) if _is_cpu_utilization(one)), None)
        if at is not None:
            place[field] = listed.pop(at)["resource"][source]["averageUtilization"]
        if listed:
            annotations[f"{_PREFIX}{name}"] = compact_json(listed).decode()
    for part, field, name in ((spec, "behavior", "behavior"), (status, "conditions", "conditions")):
        value = part.pop(field, None)
        if value:
            annotations[f"{_PREFIX}{name}"] = compact_json(value).decode()
    return _assemble(obj, meta, annotations, spec=spec, status=status)


def _assemble(
    obj: Object, meta: Object, annotations: dict[str, Any], *, spec: Object, status: Object
) -> Object:
    if annotations:
        meta["annotations"] = annotations
    else:
        meta.pop("annotations", None)
    parts = {"metadata": meta, "spec": spec, "status": status}
    return {**obj, **{key: value for key, value in parts.items() if key in obj or value}}
