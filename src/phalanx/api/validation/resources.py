"""Validation of resource names, quantities, requests and limits, ResourceQuotas and LimitRanges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.api.errors import (
    Cause,
    Causes,
    duplicate,
    forbidden,
    invalid,
    not_found,
    required,
    unsupported,
)
from phalanx.api.formats import cached_validator, validate_dns_label, validate_label_key
from phalanx.api.resources import exact_value
from phalanx.api.validation.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    all_of,
    each,
    find_duplicate_items,
    if_present,
    optional,
    struct,
)
from phalanx.api.wire import Object

HUGE_PAGES = "hugepages-"
_CONTAINER_RESOURCES = ("cpu", "memory", "ephemeral-storage")
_QUOTA_RESOURCES = (
    "requests.cpu", "requests.memory", "requests.storage", "requests.ephemeral-storage",
    "limits.cpu", "limits.memory", "limits.ephemeral-storage", "storage", "pods", "services",
    "services.nodeports", "services.loadbalancers", "replicationcontrollers", "resourcequotas",
    "secrets", "configmaps", "persistentvolumeclaims",
)  # fmt: skip
_NATIVE_DOMAIN = "kubernetes.io/"


def is_extended_resource(name: str) -> bool:
    """Whether a resource is not one of Kubernetes' own, such as `nvidia.com/gpu`."""
    return "/" in name and _NATIVE_DOMAIN not in name and not name.startswith("requests.")


def allows_overcommit(name: str) -> bool:
    """Whether the limit of a resource may exceed its request."""
    return not is_extended_resource(name) and not name.startswith(HUGE_PAGES)


@cached_validator
def standard_name_faults(name: str) -> Sequence[str]:
    """Return the faults of the name of any resource."""
    if faults := validate_label_key(name):
        return faults
    known = (*_CONTAINER_RESOURCES, *_QUOTA_RESOURCES)
    if "/" in name or name in known or name.startswith(HUGE_PAGES):
        return []
    return ["must be a standard resource type or fully qualified"]


@cached_validator
def resource_name_faults(name: str) -> Sequence[str]:
    """Return the faults of a container resource's name."""
    faults = standard_name_faults(name)
    if "/" in name:
        is_valid = _NATIVE_DOMAIN in name or (not faults and is_extended_resource(name))
        return faults if is_valid else [*faults, "doesn't follow extended resource name standard"]
    if name in _CONTAINER_RESOURCES or name.startswith(HUGE_PAGES):
        return faults
    return [*faults, "must be a standard resource for containers"]


def quantity_faults(name: str, quantity: str) -> list[str]:
    """Return the faults of a quantity."""
    number = exact_value(quantity)
    faults = [] if number.numerator >= 0 else ["must be greater than or equal to 0"]
    if number.denominator == 1:
        return faults
    counted = name == "pods" or (is_extended_resource(name) and not validate_label_key(name))
    return [*faults, "must be an integer"] if counted else faults


def check_resources(new: Any, old: Any) -> Causes:
    """Check the requests and limits of a container."""
    resources = new or {}
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    names = [
        invalid(f"{field}[{name}]", name, fault)
        for field, quantities in (("limits", limits), ("requests", requests))
        for name in quantities
        for fault in resource_name_faults(name)
    ]
    return [*names, *_check_amounts(requests, limits)]


def check_pod_level_resources(new: Any, old: Any) -> Causes:
    """Check the requests and limits of a whole pod: CPU, memory and huge pages."""
    resources = new or {}
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    names: list[Cause] = []
    for field, quantities in (("limits", limits), ("requests", requests)):
        for name in quantities:
            place = f"{field}[{name}]"
            faults = standard_name_faults(name)
            names += [invalid(place, name, fault) for fault in faults]
            if not faults and name not in ("cpu", "memory") and not name.startswith(HUGE_PAGES):
                names.append(unsupported(place, name, ("cpu", HUGE_PAGES, "memory")))
    return [*names, *_check_amounts(requests, limits)]


def check_pod_level_consistency(spec: Object, container_sums: Mapping[str, str]) -> list[Cause]:
    """Require that a pod requests at least what its containers request together."""
    stated = (spec.get("resources") or {}).get("requests") or {}
    return [
        invalid(
            f"resources.requests[{name}]",
            stated[name],
            f"must be greater than or equal to aggregate container requests of {total}",
        )
        for name, total in container_sums.items()
        if name in stated and exact_value(stated[name]) < exact_value(total)
    ]


def _check_amounts(requests: dict[str, str], limits: dict[str, str]) -> list[Cause]:
    quantities = [
        invalid(f"{field}[{name}]", quantity, fault)
        for field, amounts in (("limits", limits), ("requests", requests))
        for name, quantity in amounts.items()
        for fault in quantity_faults(name, quantity)
    ]
    compared = _check_requests(requests, limits)
    return [*quantities, *compared, *_check_huge_pages(limits | requests)]


def _check_requests(requests: dict[str, str], limits: dict[str, str]) -> list[Cause]:
    found: list[Cause] = []
    for name, quantity in requests.items():
        limit = limits.get(name)
        if limit == quantity:
            continue
        if limit is None:
            if not allows_overcommit(name):
                detail = "Limit must be set for non overcommit resources"
                found.append(required("limits", detail))
        elif not allows_overcommit(name) and exact_value(quantity) != exact_value(limit):
            detail = f"must be equal to {name} limit of {limit}"
            found.append(invalid("requests", quantity, detail))
        elif exact_value(quantity) > exact_value(limit):
            detail = f"must be less than or equal to {name} limit of {limit}"
            found.append(invalid("requests", quantity, detail))
    return found


def _check_huge_pages(quantities: dict[str, str]) -> list[Cause]:
    if not any(name.startswith(HUGE_PAGES) for name in quantities):
        return []
    if "cpu" in quantities or "memory" in quantities:
        return []
    return [forbidden("", "HugePages require cpu or memory")]


def check_container_claims(claims: list[dict[str, Any]], known: list[str]) -> list[Cause]:
    """Return the causes of a container's claims, given the claims of its pod."""
    if not claims:
        return []
    suffix = f": {', '.join(known)}" if known else " which is empty"
    detail = f"must be one of the names in pod.spec.resourceClaims{suffix}"
    found: list[Cause] = []
    for at, claim in enumerate(claims):
        if request := claim.get("request"):
            found += [
                invalid(f"[{at}].request", request, fault) for fault in validate_dns_label(request)
            ]
        if not claim.get("name"):
            found.append(required(f"[{at}]"))
        elif claim["name"] not in known:
            found.append(not_found(f"[{at}]", claim["name"], detail))
    again = find_duplicate_items(claims, "name", "request")
    return [*found, *(duplicate(f"[{at}]", claims[at].get("name")) for at in again)]


# --------------------------------------------------------------------------------------- quotas

#: Resources that a quota can count or sum up, in addition to qualified names.
_COUNTED_RESOURCES = (
    "pods", "services", "replicationcontrollers", "resourcequotas", "secrets", "configmaps",
    "persistentvolumeclaims", "services.nodeports", "services.loadbalancers",
)  # fmt: skip
_SUMMED_RESOURCES = (
    "cpu", "memory", "ephemeral-storage", "requests.cpu", "requests.memory", "requests.storage",
    "requests.ephemeral-storage", "limits.cpu", "limits.memory", "limits.ephemeral-storage",
)  # fmt: skip
_SCOPES = (
    "BestEffort", "CrossNamespacePodAffinity", "NotBestEffort", "NotTerminating", "PriorityClass",
    "Terminating", "VolumeAttributesClass",
)  # fmt: skip
_CONFLICTING_SCOPES = (("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating"))
_OPERATORS_WITH_VALUES, _OPERATORS_WITHOUT_VALUES = ("In", "NotIn"), ("Exists", "DoesNotExist")
#: Scopes without values: a selector can only use the operator Exists.
_EXISTS_ONLY_SCOPES = ("BestEffort", "NotBestEffort", "Terminating", "NotTerminating")


def _quota_name_faults(name: str) -> list[str]:
    faults = list(validate_label_key(name))
    known = name in (*_COUNTED_RESOURCES, *_SUMMED_RESOURCES) or name.removeprefix(
        "requests."
    ).startswith(HUGE_PAGES)
    if faults or "/" in name or known:
        return faults
    return ["must be a standard resource for quota"]


def _check_quota_amounts(new: Any, old: Any) -> Causes:
    found: list[Cause] = []
    for name, amount in new.items():
        place = f"[{name}]"
        found += [invalid(place, name, fault) for fault in _quota_name_faults(name)]
        found += [invalid(place, amount, fault) for fault in quantity_faults(name, amount)]
        if name in _COUNTED_RESOURCES and name != "pods" and exact_value(amount).denominator != 1:
            found.append(invalid(place, amount, "must be an integer"))
    return found


def _check_scopes(new: Any, old: Any) -> Causes:
    # Each cause shows all scopes: no more causes than there are scopes.
    count = min(sum(one not in _SCOPES for one in new), len(_SCOPES))
    found = [invalid("", new, "unsupported scope")] * count
    opposed = [pair for pair in _CONFLICTING_SCOPES if all(one in new for one in pair)]
    return [*found, *(invalid("", new, "conflicting scopes") for _ in opposed)]


def _check_scope_requirements(new: Any, old: Any) -> Causes:
    """Check a scope selector; Kubernetes reports causes without the index of a requirement."""
    return [cause for one in new for cause in _check_scope_requirement(one, CREATED)]


def _check_scope_requirement(new: Any, old: Any) -> Causes:
    scope, operator, values = new.get("scopeName"), new.get("operator"), new.get("values")
    found: list[Cause] = []
    if scope not in _SCOPES:
        found.append(invalid("scopeName", scope, "unsupported scope"))
    if scope in _EXISTS_ONLY_SCOPES and operator != "Exists":
        detail = (
            "must be 'Exist' only operator when scope is any of ResourceQuotaScopeTerminating, "
        )
        detail += "ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort and "
        found.append(invalid("operator", operator, f"{detail}ResourceQuotaScopeNotBestEffort"))
    if operator in _OPERATORS_WITH_VALUES and not values:
        detail = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
        found.append(required("values", detail))
    elif operator in _OPERATORS_WITHOUT_VALUES and values:
        detail = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
        found.append(invalid("values", values, detail))
    elif operator not in (*_OPERATORS_WITH_VALUES, *_OPERATORS_WITHOUT_VALUES):
        found.append(invalid("operator", operator, "not a valid selector operator"))
    return found


def _check_scopes_immutable(new: Any, old: Any) -> Causes:
    if old is CREATED or new == old:
        return ()
    return [invalid("", new, IMMUTABLE)]


_QUOTA_SPEC = struct(
    ("hard", optional(_check_quota_amounts)),
    ("scopes", all_of(optional(_check_scopes), _check_scopes_immutable)),
    (
        "scopeSelector",
        if_present(struct(("matchExpressions", optional(_check_scope_requirements)))),
    ),
)

check_resource_quota: Check = struct(("spec", if_present(_QUOTA_SPEC)))
check_resource_quota_status: Check = struct(
    (
        "status",
        if_present(
            struct(
                ("hard", optional(_check_quota_amounts)), ("used", optional(_check_quota_amounts))
            )
        ),
    )
)

# --------------------------------------------------------------------------------------- limits

_LIMIT_TYPES = ("Pod", "Container", "PersistentVolumeClaim")
_LIMIT_FIELDS = ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")
_FORBIDDEN_FOR_PODS = ("default", "defaultRequest")
#: In each pair the first value must not exceed the second; the third is where the cause is.
_ORDERED_FIELDS = (
    ("min", "max", "min"),
    ("min", "defaultRequest", "defaultRequest"),
    ("min", "default", "default"),
    ("defaultRequest", "max", "defaultRequest"),
    ("defaultRequest", "default", "defaultRequest"),
    ("default", "max", "default"),
)
_FIELD_NAMES = {
    "min": "min", "max": "max", "default": "default", "defaultRequest": "default request",
}  # fmt: skip


def _check_limit_type(new: Any, old: Any) -> Causes:
    if faults := validate_label_key(new or ""):
        return [invalid("", new or "", fault) for fault in faults]
    if "/" in new or new in _LIMIT_TYPES:
        return ()
    return [invalid("", new, "must be a standard limit type or fully qualified")]


def _check_limit_names(new: Any, old: Any) -> Causes:
    is_containers = new.get("type") in ("Pod", "Container")
    faults = resource_name_faults if is_containers else standard_name_faults
    return [
        invalid(f"{part}[{name}]", name, fault)
        for part in _LIMIT_FIELDS
        for name in new.get(part, {})
        for fault in faults(name)
    ]


def _check_limit_order(new: Any, old: Any) -> Causes:
    found: list[Cause] = []
    for low, high, place in _ORDERED_FIELDS:
        for name, amount in new.get(low, {}).items():
            bound = new.get(high, {}).get(name)
            if bound is not None and exact_value(amount) > exact_value(bound):
                low_name, high_name = _FIELD_NAMES[low], _FIELD_NAMES[high]
                detail = f"{low_name} value {amount} is greater than {high_name} value {bound}"
                found.append(invalid(f"{place}[{name}]", amount, detail))
    for name, ratio in new.get("maxLimitRequestRatio", {}).items():
        place, limits = f"maxLimitRequestRatio[{name}]", [new.get(k, {}) for k in ("max", "min")]
        if exact_value(ratio) < 1:
            found.append(invalid(place, ratio, f"ratio {ratio} is less than 1"))
        elif all(name in part and exact_value(part[name]) for part in limits):
            largest = exact_value(limits[0][name]) / exact_value(limits[1][name])
            if exact_value(ratio) > largest:
                detail = f"ratio {ratio} is greater than max/min = {float(largest):f}"
                found.append(invalid(place, ratio, detail))
    return found


def _check_limit_fields(new: Any, old: Any) -> Causes:
    """Check which fields a limit of a type supports and requires."""
    if new.get("type") == "Pod":
        detail = "may not be specified when `type` is 'Pod'"
        return [forbidden(part, detail) for part in _FORBIDDEN_FOR_PODS if new.get(part)]
    if new.get("type") != "PersistentVolumeClaim":
        return ()
    if any("storage" in new.get(part, {}) for part in ("min", "max")):
        return ()
    detail = "either minimum or maximum storage value is required, but neither was provided"
    return [required("limits", detail)]


def _check_unique_limit_types(new: Any, old: Any) -> Causes:
    seen: set[Any] = set()
    found: list[Cause] = []
    for at, limit in enumerate(new):
        kind = limit.get("type")
        if kind in seen:
            found.append(duplicate(f"[{at}].type", kind))
        seen.add(kind)
    return found


_LIMIT = all_of(
    struct(("type", _check_limit_type)), _check_limit_names, _check_limit_fields, _check_limit_order
)

check_limit_range: Check = struct(
    (
        "spec",
        if_present(struct(("limits", optional(all_of(each(_LIMIT), _check_unique_limit_types))))),
    ),
)
