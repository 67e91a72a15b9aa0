"""How much of a ResourceQuota an object uses, which objects a quota covers, and what exceeds it.

Shared by the server, which charges quotas, and by controllers that ask before they create. Usage is
in thousandths, by the resource names that quotas use:

    pod that requests 500m CPU   count/pods 1000, pods 1000, cpu 500, requests.cpu 500
    the same pod, finished       count/pods 1000
    config map                   count/configmaps 1000, configmaps 1000

A quota with scopes covers the objects that match all of them; without scopes, every object. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from phalanx.api.core import TERMINAL_PHASES, Container, Pod, ResourceRequirements
from phalanx.api.defaults.pod import qos_class
from phalanx.api.kinds import PERSISTENT_VOLUME_CLAIM, POD, Kind
from phalanx.api.resources import (
    Amounts,
    canonical_quantity,
    integer_value,
    milli_value,
    pod_requests,
    to_amounts,
)
from phalanx.api.wire import Object

#: Resource name -> thousandths.
Usage = dict[str, int]

MILLI_PER_UNIT = 1000
_STORAGE_CLASS_SUFFIX = "storageclass.storage.k8s.io"


class _UsageEvaluator(NamedTuple):
    """Computes the usage of the objects of one kind, beyond their number."""

    names: re.Pattern[str]
    evaluate: Callable[[Object], Usage]


def object_usage(kind: Kind, obj: Object) -> Usage:
    """The usage of one object."""
    evaluator = _EVALUATORS.get(kind.resource)
    usage = evaluator.evaluate(obj) if evaluator else {kind.resource: MILLI_PER_UNIT}
    return {f"count/{kind.resource}": MILLI_PER_UNIT, **usage}


def has_usage_evaluator(kind: Kind) -> bool:
    """Whether the usage of an object of this kind depends on its content."""
    return kind.resource in _EVALUATORS


def counts_for(kind: Kind, name: str) -> bool:
    """Whether objects of a kind can use a resource."""
    if name in (kind.resource, f"count/{kind.resource}"):
        return True
    evaluator = _EVALUATORS.get(kind.resource)
    return bool(evaluator and evaluator.names.fullmatch(name))


def pod_requests_and_limits(pod: Object) -> tuple[Usage, Usage]:
    """The total requests and limits of a pod without overhead; zeros are left out."""
    decoded = msgspec.convert(pod, Pod)
    decoded = replace(decoded, spec=replace(decoded.spec, overhead={}))
    limits = pod_requests(_limits_as_requests(decoded))
    return _to_milli(pod_requests(decoded)), _to_milli(limits)


def format_milli(amount: int, like: str) -> str:
    """Thousandths as a quantity in the format of another: `1536Mi` for `4Gi`, `2k` for `4`."""
    whole, rest = divmod(amount, MILLI_PER_UNIT)
    if rest or not like.endswith("i"):
        return canonical_quantity(f"{amount}m")
    return str(whole) if whole % 1024 else canonical_quantity(f"{whole // 1024}Ki")


def _to_milli(units: Amounts) -> Usage:
    """All amounts in thousandths, as CPU already is; without the resource `pods`."""
    return {
        name: count if name == "cpu" else count * MILLI_PER_UNIT
        for name, count in units.items()
        if name != "pods"
    }


def _limits_as_requests(pod: Pod) -> Pod:
    """The pod with its limits as requests: both add up in the same way."""
    spec = pod.spec
    changed = replace(
        spec,
        containers=tuple(map(_container_limits_as_requests, spec.containers)),
        init_containers=tuple(map(_container_limits_as_requests, spec.init_containers)),
        resources=ResourceRequirements(requests=spec.resources.limits) if spec.resources else None,
    )
    return replace(pod, spec=changed)


def _container_limits_as_requests(container: Container) -> Container:
    return replace(container, resources=ResourceRequirements(requests=container.resources.limits))


def _pod_usage(pod: Object) -> Usage:
    """A finished pod uses nothing but `count/pods`."""
    if pod.get("status", {}).get("phase") in TERMINAL_PHASES:
        return {}
    requests, limits = pod_requests_and_limits(pod)
    overhead = _to_milli(to_amounts(pod["spec"].get("overhead") or {}))
    used = {"pods": MILLI_PER_UNIT}
    for name in {**requests, **overhead}:
        request = requests.get(name, 0) + overhead.get(name, 0)
        used[name] = used[f"requests.{name}"] = request
    for name, limit in limits.items():
        used[f"limits.{name}"] = limit + overhead.get(name, 0)
    return used


def _claim_usage(claim: Object) -> Usage:
    """A claim counts in total and once more for its storage class."""
    spec = claim["spec"]
    storage = spec.get("resources", {}).get("requests", {}).get("storage", "0")
    used = {
        "persistentvolumeclaims": MILLI_PER_UNIT,
        "requests.storage": integer_value(storage) * MILLI_PER_UNIT,
    }
    if storage_class := spec.get("storageClassName"):
        used |= {f"{storage_class}.{_STORAGE_CLASS_SUFFIX}/{name}": n for name, n in used.items()}
    return used


def _service_usage(service: Object) -> Usage:
    """Each port of a NodePort or LoadBalancer service uses a node port, unless disabled."""
    spec = service["spec"]
    ports = spec.get("ports") or []
    is_load_balancer = spec.get("type") == "LoadBalancer"
    has_node_ports = is_load_balancer or spec.get("type") == "NodePort"
    if is_load_balancer and spec.get("allocateLoadBalancerNodePorts") is False:
        ports = [port for port in ports if port.get("nodePort")]
    return {
        "services": MILLI_PER_UNIT,
        "services.nodeports": len(ports) * MILLI_PER_UNIT if has_node_ports else 0,
        "services.loadbalancers": MILLI_PER_UNIT if is_load_balancer else 0,
    }


_EVALUATORS: Mapping[str, _UsageEvaluator] = {
    "pods": _UsageEvaluator(
        re.compile(
            r"cpu|memory|ephemeral-storage|hugepages-.+|limits\..+|requests\.(?!storage$).+"
            r"|(?!count/).+/.+"
        ),
        _pod_usage,
    ),
    "persistentvolumeclaims": _UsageEvaluator(
        re.compile(rf"requests\.storage|.*\.{re.escape(_STORAGE_CLASS_SUFFIX)}/.*"), _claim_usage
    ),
    "services": _UsageEvaluator(re.compile(r"services\..*"), _service_usage),
}


# ---- scopes --------------------------------------------------------------------------------------

#: The value of a scope in the spec of an object: whether it matches, or the name of a class.
_ScopeValue = str | bool

_AFFINITIES = ("podAffinity", "podAntiAffinity")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def quota_covers(quota: Object, kind: Kind, obj: Object) -> bool:
    """Whether an object matches all scopes of a quota."""
    return all(matches_scope(requirement, kind, obj) for requirement in quota_scopes(quota))


def quota_scopes(quota: Object) -> Iterator[Object]:
    """The scopes of a quota, all in the form of its scope selector."""
    for name in quota["spec"].get("scopes") or ():
        yield {"scopeName": name, "operator": "Exists"}
    yield from (quota["spec"].get("scopeSelector") or {}).get("matchExpressions") or ()


def matches_scope(requirement: Object, kind: Kind, obj: Object) -> bool:
    """Whether an object matches one scope; a scope that its kind does not have never matches."""
    find_value = _SCOPES.get((kind, requirement["scopeName"]))
    matches = _OPERATORS[requirement["operator"]]
    return find_value is not None and matches(
        find_value(obj.get("spec") or {}), requirement.get("values") or ()
    )


_OPERATORS: Mapping[str, Callable[[_ScopeValue, Sequence[str]], bool]] = {
    "Exists": lambda found, values: bool(found),
    "DoesNotExist": lambda found, values: not found,
    "In": lambda found, values: found in values,
    "NotIn": lambda found, values: found not in values,
}


def _has_deadline(spec: Object) -> bool:
    return int(spec.get("activeDeadlineSeconds", -1)) >= 0


def _is_best_effort(spec: Object) -> bool:
    return qos_class(spec) == "BestEffort"


def _has_cross_namespace_affinity(spec: Object) -> bool:
    return any(
        term.get("namespaces") or term.get("namespaceSelector") is not None
        for term in _affinity_terms(spec.get("affinity") or {})
    )


def _affinity_terms(affinity: Object) -> Iterator[Object]:
    for field in _AFFINITIES:
        terms = affinity.get(field) or {}
        yield from terms.get(_REQUIRED) or ()
        yield from (weighted["podAffinityTerm"] for weighted in terms.get(_PREFERRED) or ())


_SCOPES: Mapping[tuple[Kind, str], Callable[[Object], _ScopeValue]] = {
    (POD, "Terminating"): _has_deadline,
    (POD, "NotTerminating"): lambda spec: not _has_deadline(spec),
    (POD, "BestEffort"): _is_best_effort,
    (POD, "NotBestEffort"): lambda spec: not _is_best_effort(spec),
    (POD, "PriorityClass"): lambda spec: str(spec.get("priorityClassName", "")),
    (POD, "CrossNamespacePodAffinity"): _has_cross_namespace_affinity,
    (PERSISTENT_VOLUME_CLAIM, "VolumeAttributesClass"): lambda spec: str(
        spec.get("volumeAttributesClassName", "")
    ),
}


# ---- usage of a quota ----------------------------------------------------------------------------


def usage_in_quota(quota: Object, kind: Kind, obj: Object | None) -> Usage:
    """The usage of an object that a quota limits."""
    hard = quota["spec"].get("hard") or {}
    if obj is None or not hard or not quota_covers(quota, kind, obj):
        return {}
    return {name: amount for name, amount in object_usage(kind, obj).items() if name in hard}


def describe_excess(quota: Object, change: Usage) -> str:
    """Say by how much a change exceeds a quota; "" if it fits."""
    used, hard = (quota.get("status") or {}).get("used") or {}, quota["spec"].get("hard") or {}
    exceeded = sorted(
        name
        for name, more in change.items()
        if more > 0 and milli_value(used.get(name, "0")) + more > milli_value(hard[name])
    )
    if not exceeded:
        return ""
    requested = {name: format_milli(change[name], hard[name]) for name in exceeded}
    return (
        f"exceeded quota: {quota['metadata']['name']}, "
        f"requested: {_format_amounts(requested, exceeded)}, "
        f"used: {_format_amounts(used, exceeded)}, limited: {_format_amounts(hard, exceeded)}"
    )


def _format_amounts(amounts: Mapping[str, str], names: Sequence[str]) -> str:
    return ",".join(f"{name}={amounts.get(name, '0')}" for name in names)
