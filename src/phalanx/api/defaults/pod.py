"""Defaults of Pods and pod templates, and the initial status of a new Pod.

A template gets `default_pod_spec` only. The Pods that are created from it get the defaults of
`default_pod` themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from phalanx.api.core import PodSpec
from phalanx.api.resources import canonical_quantity, container_requests, exact_value
from phalanx.api.wire import Object

SCHEDULING_GATED_MESSAGE = "Scheduling is blocked due to non-empty scheduling gates"

_POD_SPEC_DEFAULTS: Mapping[str, Any] = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
}
_CONTAINER_DEFAULTS: Mapping[str, Any] = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
_PROBE_DEFAULTS: Mapping[str, Any] = {
    "timeoutSeconds": 1,
    "periodSeconds": 10,
    "successThreshold": 1,
    "failureThreshold": 3,
}
_HTTP_GET_DEFAULTS: Mapping[str, Any] = {"path": "/", "scheme": "HTTP"}
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_HOOKS = ("postStart", "preStop")
#: Volume sources with a default file mode.
_FILE_SOURCES = ("secret", "configMap", "downwardAPI", "projected")
_DEFAULT_MODE = 0o644
_TOKEN_EXPIRATION_SECONDS = 3600
#: The resources that determine the quality of service class.
_QOS_RESOURCES = ("cpu", "memory")
_HUGE_PAGES_PREFIX = "hugepages-"
_AFFINITIES = ("podAffinity", "podAntiAffinity")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def default_pod(pod: Object) -> None:
    """Apply the defaults of a Pod."""
    spec = pod["spec"]
    default_pod_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    for container in _main_and_init_containers(spec):
        # A missing request is the limit of the same resource.
        resources = container["resources"]
        if limits := resources.get("limits"):
            resources["requests"] = {**limits, **resources.get("requests", {})}
        if spec.get("hostNetwork"):
            for port in container.get("ports", ()):
                if not port.get("hostPort"):
                    port["hostPort"] = port["containerPort"]
    if spec.get("resources", {}).get("limits"):
        _default_pod_level_requests(spec)
    default_pod_status(pod["status"], spec)


def default_pod_spec(spec: Object) -> None:
    """Apply the defaults of a Pod's or a template's spec."""
    _set_defaults(spec, _POD_SPEC_DEFAULTS)
    spec.setdefault("securityContext", {})
    # `serviceAccount` is the deprecated name of `serviceAccountName`.
    if account := spec.get("serviceAccountName") or spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for field in ("containers", "initContainers", "ephemeralContainers"):
        for container in spec.get(field, ()):
            _default_container(container)
    for volume in spec.get("volumes", ()):
        _default_volume(volume)


def prepare_pod_for_create(pod: Object, now: str) -> None:
    """Set the initial status of a new Pod and resolve selectors that depend on its labels."""
    pod["status"] = {"phase": "Pending", "qosClass": qos_class(pod["spec"])}
    if pod["spec"].get("terminationGracePeriodSeconds", 0) < 0:
        pod["spec"]["terminationGracePeriodSeconds"] = 1
    if pod["spec"].get("schedulingGates"):
        pod["status"]["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "lastTransitionTime": now,
                "reason": "SchedulingGated",
                "message": SCHEDULING_GATED_MESSAGE,
            }
        ]
    _apply_match_label_keys(pod)


def qos_class(spec: Object) -> str:
    """Return the QoS class, from the pod-level resources if there are any, else the containers'."""
    whole = spec.get("resources") or {}
    has_own = any(name in whole.get(part, {}) for part in whole for name in _QOS_RESOURCES)
    parts = (
        [whole] if has_own else [c.get("resources") or {} for c in _main_and_init_containers(spec)]
    )
    if not any(parts):
        return "BestEffort"
    stated = [
        (_qos_quantities(part, "requests"), _qos_quantities(part, "limits")) for part in parts
    ]
    if not any(requests or limits for requests, limits in stated):
        return "BestEffort"
    is_guaranteed = all(_is_guaranteed(requests, limits) for requests, limits in stated)
    return "Guaranteed" if is_guaranteed else "Burstable"


def default_pod_status(status: Object, spec: Object) -> None:
    """Fill in the QoS class and mirror `podIP` and the first of `podIPs`."""
    if status and "qosClass" not in status:
        status["qosClass"] = qos_class(spec)
    first = status.get("podIP") or next((ip["ip"] for ip in status.get("podIPs", ())), "")
    if first:
        status["podIP"] = first
        if not status.get("podIPs") or status["podIPs"][0]["ip"] != first:
            status["podIPs"] = [{"ip": first}]


def _main_and_init_containers(spec: Object) -> list[Object]:
    return [*spec.get("containers", ()), *spec.get("initContainers", ())]


def _qos_quantities(resources: Object, part: str) -> dict[str, str]:
    quantities = resources.get(part) or {}
    return {name: quantities[name] for name in _QOS_RESOURCES if quantities.get(name, "0") != "0"}


def _is_guaranteed(requests: Mapping[str, str], limits: Mapping[str, str]) -> bool:
    """Whether CPU and memory have limits, and requests equal to them."""
    return len(requests) == len(limits) == len(_QOS_RESOURCES) and all(
        requests[name] == limits[name] or exact_value(requests[name]) == exact_value(limits[name])
        for name in _QOS_RESOURCES
    )


def _set_defaults(obj: Object, defaults: Mapping[str, Any]) -> None:
    for key, default in defaults.items():
        obj.setdefault(key, default)


def _default_container(container: Object) -> None:
    _set_defaults(container, _CONTAINER_DEFAULTS)
    if "imagePullPolicy" not in container:
        container["imagePullPolicy"] = _pull_policy(container.get("image", ""))
    for name in _PROBES:
        if name in container:
            _default_http(container[name])
            _set_defaults(container[name], _PROBE_DEFAULTS)
    # Kubernetes drops it while its gate ContainerStopSignals is off, as it is by default.
    container.get("lifecycle", {}).pop("stopSignal", None)
    for name in _HOOKS:
        _default_http(container.get("lifecycle", {}).get(name, {}))
    for variable in container.get("env", ()):
        _default_field(variable.get("valueFrom", {}))


def _pull_policy(image: str) -> str:
    """Return `Always` for an image without a digest and with no tag or the tag `latest`."""
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return "Always" if name and not digest and tag in ("", "latest") else "IfNotPresent"


def _default_http(handler: Object) -> None:
    if "httpGet" in handler:
        _set_defaults(handler["httpGet"], _HTTP_GET_DEFAULTS)


def _default_field(source: Object) -> None:
    if "fieldRef" in source:
        source["fieldRef"].setdefault("apiVersion", "v1")
    if "resourceFieldRef" in source:
        source["resourceFieldRef"].setdefault("divisor", "0")


def _default_volume(volume: Object) -> None:
    if len(volume) == 1:
        volume["emptyDir"] = {}
    for source in _FILE_SOURCES:
        if source in volume:
            volume[source].setdefault("defaultMode", _DEFAULT_MODE)
    if "image" in volume and "pullPolicy" not in volume["image"]:
        volume["image"]["pullPolicy"] = _pull_policy(volume["image"].get("reference", ""))
    for item in volume.get("downwardAPI", {}).get("items", ()):
        _default_field(item)
    for source in volume.get("projected", {}).get("sources", ()):
        if "serviceAccountToken" in source:
            source["serviceAccountToken"].setdefault("expirationSeconds", _TOKEN_EXPIRATION_SECONDS)
        for item in source.get("downwardAPI", {}).get("items", ()):
            _default_field(item)
    if "ephemeral" in volume:
        template = volume["ephemeral"].get("volumeClaimTemplate", {})
        template.get("spec", {}).setdefault("volumeMode", "Filesystem")


def _default_pod_level_requests(spec: Object) -> None:
    """Set missing pod-level requests: to the sum of the containers' requests, else to the limit."""
    resources = spec["resources"]
    stated = resources.get("requests", {})
    quantities = {**resources["limits"], **sum_container_requests(spec)}
    # Only these resources may be requested at the pod level.
    defaults = {
        name: quantity
        for name, quantity in quantities.items()
        if name in _QOS_RESOURCES or name.startswith(_HUGE_PAGES_PREFIX)
    }
    if defaults or stated:
        resources["requests"] = {**defaults, **stated}


def sum_container_requests(spec: Object) -> dict[str, str]:
    """Sum up the CPU and memory requests of containers, as the scheduler does."""
    parts = {name: spec.get(name, ()) for name in ("containers", "initContainers")}
    total = container_requests(msgspec.convert(parts, PodSpec))
    return {
        name: canonical_quantity(f"{total[name]}m")
        if name == "cpu"
        else _format_memory(total[name], spec)
        for name in _QOS_RESOURCES
        if name in total
    }


def _format_memory(count: int, spec: Object) -> str:
    """Format a sum of memory in the suffix style of its summands."""
    texts = (
        c["resources"].get("requests", {}).get("memory", "0")
        for c in _main_and_init_containers(spec)
    )
    style = next((str(text) for text in texts if text != "0"), "")
    is_binary = style.endswith("i") and count % 1024 == 0
    return canonical_quantity(f"{count // 1024}Ki" if is_binary else str(count))


def _apply_match_label_keys(pod: Object) -> None:
    """Add a requirement with the Pod's own label value for each (mis)match label key."""
    labels = pod["metadata"].get("labels", {})
    affinity = pod["spec"].get("affinity", {})
    for sort in _AFFINITIES:
        terms = affinity.get(sort, {})
        for term in terms.get(_REQUIRED, ()):
            _add_label_requirements(term, labels)
        for weighted in terms.get(_PREFERRED, ()):
            _add_label_requirements(weighted["podAffinityTerm"], labels)
    for constraint in pod["spec"].get("topologySpreadConstraints", ()):
        _add_label_requirements(constraint, labels)


def _add_label_requirements(term: Object, labels: Mapping[str, str]) -> None:
    for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")):
        for key in term.get(field, ()):
            if key in labels and "labelSelector" in term:
                requirement = {"key": key, "operator": operator, "values": [labels[key]]}
                term["labelSelector"].setdefault("matchExpressions", []).append(requirement)
