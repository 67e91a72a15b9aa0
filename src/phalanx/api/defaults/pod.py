"""Defaults of Pods and pod templates, and the state that a new Pod begins with.

A template gets `default_pod_spec` only; what `default_pod` adds to a Pod stays out of it, as the
Pod made from it gets that anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from phalanx.api.core import PodSpec
from phalanx.api.quantity import canonical, value
from phalanx.api.resources import container_requests
from phalanx.api.wire import Object

GATED = "Scheduling is blocked due to non-empty scheduling gates"

_POD_SPEC: Mapping[str, Any] = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
}
_CONTAINER: Mapping[str, Any] = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
_PROBE: Mapping[str, Any] = {
    "timeoutSeconds": 1,
    "periodSeconds": 10,
    "successThreshold": 1,
    "failureThreshold": 3,
}
_HTTP_GET: Mapping[str, Any] = {"path": "/", "scheme": "HTTP"}
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_HOOKS = ("postStart", "preStop")
#: Volume sources whose files have a mode.
_FILES = ("secret", "configMap", "downwardAPI", "projected")
_MODE = 0o644
_TOKEN_SECONDS = 3600
#: The resources that make a quality of service.
_SERVICE = ("cpu", "memory")
_PAGES = "hugepages-"
_AFFINITIES = ("podAffinity", "podAntiAffinity")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def default_pod(pod: Object) -> None:
    """Defaults of a Pod."""
    spec = pod["spec"]
    default_pod_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
        _request_limits(container["resources"])
        if spec.get("hostNetwork"):
            _open_host_ports(container)
    if spec.get("resources", {}).get("limits"):
        _request_as_a_whole(spec)
    _default_status(pod["status"], spec)


def default_pod_spec(spec: Object) -> None:
    """Defaults of the spec of a Pod or of a template."""
    _add(spec, _POD_SPEC)
    spec.setdefault("securityContext", {})
    _name_account_twice(spec)
    for container in _containers(spec):
        _default_container(container)
    for volume in spec.get("volumes", ()):
        _default_volume(volume)


def begin_pod(pod: Object, now: str) -> None:
    """The status of a new Pod, and selectors that depend on its labels."""
    pod["status"] = {"phase": "Pending", "qosClass": qos_class(pod["spec"])}
    if pod["spec"].get("schedulingGates"):
        pod["status"]["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "lastTransitionTime": now,
                "reason": "SchedulingGated",
                "message": GATED,
            }
        ]
    _select_by_label_keys(pod)


def qos_class(spec: Object) -> str:
    """How a Pod is treated when its node runs short: by what its containers ask for and may use."""
    whole = spec.get("resources") or {}
    has_own = any(name in whole.get(part, {}) for part in whole for name in _SERVICE)
    parts = [whole] if has_own else [c.get("resources") or {} for c in _lasting(spec)]
    stated = [(_stated(part, "requests"), _stated(part, "limits")) for part in parts]
    if not any(requests or limits for requests, limits in stated):
        return "BestEffort"
    settled = all(_is_settled(requests, limits) for requests, limits in stated)
    return "Guaranteed" if settled else "Burstable"


def _default_status(status: Object, spec: Object) -> None:
    """A status keeps its quality of service, and the first of its addresses in two places."""
    if status and "qosClass" not in status:
        status["qosClass"] = qos_class(spec)
    first = status.get("podIP") or next((ip["ip"] for ip in status.get("podIPs", ())), "")
    if first:
        status["podIP"] = first
        if not status.get("podIPs") or status["podIPs"][0]["ip"] != first:
            status["podIPs"] = [{"ip": first}]


def _lasting(spec: Object) -> list[Object]:
    return [*spec.get("containers", ()), *spec.get("initContainers", ())]


def _stated(resources: Object, part: str) -> dict[str, str]:
    quantities = resources.get(part) or {}
    return {name: quantities[name] for name in _SERVICE if quantities.get(name, "0") != "0"}


def _is_settled(requests: Mapping[str, str], limits: Mapping[str, str]) -> bool:
    """Whether exactly what is asked for may be used."""
    return len(requests) == len(limits) == len(_SERVICE) and all(
        requests[name] == limits[name] or value(requests[name]) == value(limits[name])
        for name in _SERVICE
    )


def _add(obj: Object, defaults: Mapping[str, Any]) -> None:
    for key, default in defaults.items():
        obj.setdefault(key, default)


def _containers(spec: Object) -> Iterator[Object]:
    yield from spec.get("containers", ())
    yield from spec.get("initContainers", ())
    yield from spec.get("ephemeralContainers", ())


def _name_account_twice(spec: Object) -> None:
    """An account has two names, one of them deprecated; who says one says both."""
    if account := spec.get("serviceAccountName") or spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"] = account


def _default_container(container: Object) -> None:
    _add(container, _CONTAINER)
    if "imagePullPolicy" not in container:
        container["imagePullPolicy"] = _pull_policy(container.get("image", ""))
    for name in _PROBES:
        if name in container:
            _default_probe(container[name])
    for name in _HOOKS:
        _default_http(container.get("lifecycle", {}).get(name, {}))
    for variable in container.get("env", ()):
        _default_field(variable.get("valueFrom", {}))


def _pull_policy(image: str) -> str:
    """What has no tag, or the tag `latest`, may have changed."""
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return "Always" if name and not digest and tag in ("", "latest") else "IfNotPresent"


def _default_probe(probe: Object) -> None:
    _default_http(probe)
    _add(probe, _PROBE)


def _default_http(handler: Object) -> None:
    if "httpGet" in handler:
        _add(handler["httpGet"], _HTTP_GET)


def _default_field(source: Object) -> None:
    if "fieldRef" in source:
        source["fieldRef"].setdefault("apiVersion", "v1")


def _default_volume(volume: Object) -> None:
    if len(volume) == 1:
        volume["emptyDir"] = {}
    for source in _FILES:
        if source in volume:
            volume[source].setdefault("defaultMode", _MODE)
    for item in volume.get("downwardAPI", {}).get("items", ()):
        _default_field(item)
    for source in volume.get("projected", {}).get("sources", ()):
        if "serviceAccountToken" in source:
            source["serviceAccountToken"].setdefault("expirationSeconds", _TOKEN_SECONDS)
        for item in source.get("downwardAPI", {}).get("items", ()):
            _default_field(item)
    if "ephemeral" in volume:
        template = volume["ephemeral"].get("volumeClaimTemplate", {})
        template.get("spec", {}).setdefault("volumeMode", "Filesystem")


def _request_limits(resources: Object) -> None:
    """Who limits a resource and does not ask for it asks for all of it."""
    if limits := resources.get("limits"):
        resources["requests"] = {**limits, **resources.get("requests", {})}


def _request_as_a_whole(spec: Object) -> None:
    """Who limits a pod as a whole and does not say what it asks for asks for what its containers
    do together, or, of what no container asks for, for all that it may use.
    """
    resources = spec["resources"]
    stated = resources.get("requests", {})
    together = {**resources["limits"], **_together(spec)}
    wanted = {name: text for name, text in together.items() if _may_be_shared(name)}
    if wanted or stated:
        resources["requests"] = {**wanted, **stated}


def _may_be_shared(name: str) -> bool:
    """Whether a pod as a whole may ask for a resource."""
    return name in _SERVICE or name.startswith(_PAGES)


def _together(spec: Object) -> dict[str, str]:
    """The CPU and memory that containers ask for, as the scheduler adds them up."""
    parts = {name: spec.get(name, ()) for name in ("containers", "initContainers")}
    total = container_requests(msgspec.convert(parts, PodSpec))
    return {
        name: canonical(f"{total[name]}m") if name == "cpu" else _bytes(total[name], spec)
        for name in _SERVICE
        if name in total
    }


def _bytes(count: int, spec: Object) -> str:
    """A sum of memory in the style of those that are added up."""
    texts = (c["resources"].get("requests", {}).get("memory", "0") for c in _lasting(spec))
    style = next((str(text) for text in texts if text != "0"), "")
    is_binary = style.endswith("i") and count % 1024 == 0
    return canonical(f"{count // 1024}Ki" if is_binary else str(count))


def _open_host_ports(container: Object) -> None:
    for port in container.get("ports", ()):
        if not port.get("hostPort"):
            port["hostPort"] = port["containerPort"]


def _select_by_label_keys(pod: Object) -> None:
    """Labels that a term names by key only become requirements with the Pod's own values."""
    labels = pod["metadata"].get("labels", {})
    affinity = pod["spec"].get("affinity", {})
    for sort in _AFFINITIES:
        terms = affinity.get(sort, {})
        for term in terms.get(_REQUIRED, ()):
            _require_labels(term, labels)
        for weighted in terms.get(_PREFERRED, ()):
            _require_labels(weighted["podAffinityTerm"], labels)
    for constraint in pod["spec"].get("topologySpreadConstraints", ()):
        _require_labels(constraint, labels)


def _require_labels(term: Object, labels: Mapping[str, str]) -> None:
    for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")):
        for key in term.get(field, ()):
            if key in labels and "labelSelector" in term:
                requirement = {"key": key, "operator": operator, "values": [labels[key]]}
                term["labelSelector"].setdefault("matchExpressions", []).append(requirement)
