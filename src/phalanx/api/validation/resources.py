"""Validation of resource names, quantities, requests and limits, ResourceQuotas and LimitRanges."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from phalanx.api.errors import (
    Cause,
    Causes,
    duplicate,
    forbidden,
    invalid,
    not_found,
    prefix_causes,
    required,
    unsupported,
)
from phalanx.api.formats import cached_validator, validate_dns_label, validate_label_key
from phalanx.api.resources import BadQuantity, exact_value
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
    if "/" in name or name in known or _is_huge_pages_of_quota(name):
        return []
    return ["must be a standard resource type or fully qualified"]


def _is_huge_pages_of_quota(name: str) -> bool:
    return name.removeprefix("requests.").startswith(HUGE_PAGES)


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
    if resources.get("claims") is not None:
        names.append(forbidden("claims", "claims cannot be set for Resources at pod-level"))
    return [*names, *_check_amounts(requests, limits)]


def check_pod_level_consistency(spec: Object, container_sums: Mapping[str, str]) -> list[Cause]:
    """Require that the resources of a pod cover those of its containers.

    It requests at least what they request together, and each is limited to at most its limit.
    """
    resources: Object = spec.get("resources") or {}
    stated, limits = resources.get("requests") or {}, resources.get("limits") or {}
    requested = [
        invalid(
            f"resources.requests[{name}]",
            stated[name],
            f"must be greater than or equal to aggregate container requests of {total}",
        )
        for name, total in container_sums.items()
        if name in stated and exact_value(stated[name]) < exact_value(total)
    ]
    limited = [
        invalid(
            f"resources.containers[{at}][{name}].limits",
            limit,
            f"must be less than or equal to pod limits of {limits[name]}",
        )
        for at, container in enumerate(spec.get("containers") or ())
        for name, limit in (container.get("resources") or {}).get("limits", {}).items()
        if name in limits and exact_value(limit) > exact_value(limits[name])
    ]
    return [*requested, *limited]


def _check_amounts(requests: dict[str, str], limits: dict[str, str]) -> list[Cause]:
    quantities = [
        invalid(f"{field}[{name}]", quantity, fault)
        for field, amounts in (("limits", limits), ("requests", requests))
        for name, quantity in amounts.items()
        for fault in (*quantity_faults(name, quantity), *_huge_page_faults(name, quantity))
    ]
    compared = _check_requests(requests, limits)
    return [*quantities, *compared, *_check_huge_pages(limits | requests)]


def _huge_page_faults(name: str, quantity: str) -> list[str]:
    """Return the faults of an amount of huge pages, which is a multiple of the size of a page."""
    if not name.startswith(HUGE_PAGES):
        return []
    try:
        size = exact_value(name.removeprefix(HUGE_PAGES))
    except BadQuantity:
        size = Fraction(0)
    is_whole = size > 0 and size.denominator == 1
    if is_whole and math.ceil(exact_value(quantity)) % size == 0:
        return []
    return [f"{quantity} is not positive integer multiple of {name}"]


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
_COMPUTE_RESOURCES = (
    "pods", "cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory",
)  # fmt: skip
#: Standard resources that a quota of a scope can have.
_SCOPE_RESOURCES = dict.fromkeys(_SCOPES, _COMPUTE_RESOURCES) | {
    "BestEffort": ("pods",),
    "VolumeAttributesClass": ("persistentvolumeclaims", "requests.storage"),
}
_OPERATORS_WITH_VALUES, _OPERATORS_WITHOUT_VALUES = ("In", "NotIn"), ("Exists", "DoesNotExist")
#: Scopes without values: a selector can only use the operator Exists.
_EXISTS_ONLY_SCOPES = (
    "Terminating", "NotTerminating", "BestEffort", "NotBestEffort", "CrossNamespacePodAffinity",
)  # fmt: skip


def _is_quota_resource(name: str) -> bool:
    """Whether a name without a domain is one that a quota can count or sum up."""
    return name in (*_COUNTED_RESOURCES, *_SUMMED_RESOURCES) or _is_huge_pages_of_quota(name)


def _quota_name_faults(name: str) -> list[str]:
    faults = list(standard_name_faults(name))
    if "/" in name or _is_quota_resource(name):
        return faults
    return [*faults, "must be a standard resource for quota"]


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
    """Check the scopes of a quota against each other and against the resources that it limits."""
    scopes, hard = new.get("scopes") or (), new.get("hard") or {}
    # Each cause shows all scopes: no more causes than there are scopes.
    count = min(sum(one not in _SCOPES for one in scopes), len(_SCOPES))
    details = ["unsupported scope"] * count
    details += ["unsupported scope applied to resource"] * _has_unfit_resource(scopes, hard)
    details += ["conflicting scopes"] * _has_conflict(scopes)
    return [invalid("scopes", scopes, detail) for detail in details]


def _check_scope_selector(new: Any, old: Any) -> Causes:
    """Check a scope selector; Kubernetes reports causes without the index of a requirement."""
    selector: Object = new.get("scopeSelector") or {}
    requirements = selector.get("matchExpressions") or ()
    scopes = [one.get("scopeName", "") for one in requirements]
    found = [cause for one in requirements for cause in _check_scope_requirement(one, CREATED)]
    if _has_unfit_resource(scopes, new.get("hard") or {}):
        found.append(invalid("", selector, "unsupported scope applied to resource"))
    if _has_conflict(scopes):
        found.append(invalid("", new.get("scopes"), "conflicting scopes"))
    return prefix_causes("scopeSelector.matchExpressions", found)


def _has_unfit_resource(scopes: Sequence[str], hard: Iterable[str]) -> bool:
    """Whether a standard resource cannot be limited for the pods or claims of a scope."""
    standard = [name for name in hard if _is_quota_resource(name)]
    fitting = [_SCOPE_RESOURCES[scope] for scope in scopes if scope in _SCOPE_RESOURCES]
    return any(name not in names for names in fitting for name in standard)


def _has_conflict(scopes: Sequence[str]) -> bool:
    return any(first in scopes and second in scopes for first, second in _CONFLICTING_SCOPES)


def _check_scope_requirement(new: Any, old: Any) -> Causes:
    scope, operator, values = new.get("scopeName"), new.get("operator"), new.get("values")
    found: list[Cause] = []
    if scope not in _SCOPES:
        found.append(invalid("scopeName", scope, "unsupported scope"))
    if scope in _EXISTS_ONLY_SCOPES and operator != "Exists":
        *names, last = (f"ResourceQuotaScope{name}" for name in _EXISTS_ONLY_SCOPES)
        detail = f"must be 'Exists' when scope is any of {', '.join(names)} or {last}"
        found.append(invalid("operator", operator, detail))
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
    """Refuse other scopes than before; their order does not matter."""
    if old is CREATED or set(new.get("scopes") or ()) == set((old or {}).get("scopes") or ()):
        return ()
    return [invalid("scopes", new.get("scopes"), IMMUTABLE)]


_QUOTA_SPEC = all_of(
    struct(("hard", optional(_check_quota_amounts))),
    _check_scopes,
    _check_scope_selector,
    _check_scopes_immutable,
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
_PARTS_OF_PODS = tuple(part for part in _LIMIT_FIELDS if part not in _FORBIDDEN_FOR_PODS)
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
    """Require that minimum, default request, default limit and maximum are in this order."""
    found: list[Cause] = []
    for low, high, place in _ORDERED_FIELDS:
        for name, amount in new.get(low, {}).items():
            bound = new.get(high, {}).get(name)
            if bound is not None and exact_value(amount) > exact_value(bound):
                low_name, high_name = _FIELD_NAMES[low], _FIELD_NAMES[high]
                if (low, high) == ("defaultRequest", "default"):
                    high_name = "default limit"
                detail = f"{low_name} value {amount} is greater than {high_name} value {bound}"
                found.append(invalid(f"{place}[{name}]", amount, detail))
    limits = new.get("default", {})
    for name, request in new.get("defaultRequest", {}).items():
        limit = limits.get(name, request)
        if not allows_overcommit(name) and exact_value(limit) != exact_value(request):
            detail = f"default value {limit} must equal to defaultRequest value {request} in {name}"
            found.append(invalid(f"defaultRequest[{name}]", request, detail))
    return found


def _check_limit_ratio(new: Any, old: Any) -> Causes:
    """Require ratios of at least one that a maximum and a minimum allow."""
    found: list[Cause] = []
    for name, ratio in new.get("maxLimitRequestRatio", {}).items():
        place = f"maxLimitRequestRatio[{name}]"
        if exact_value(ratio) < 1:
            found.append(invalid(place, ratio, f"ratio {ratio} is less than 1"))
        high, low = (new.get(part, {}).get(name) for part in ("max", "min"))
        if high is None or low is None or not exact_value(low):
            continue
        largest = exact_value(high) / exact_value(low)
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


_LIMIT_AMOUNTS = all_of(_check_limit_names, _check_limit_order, _check_limit_ratio)


def _check_limit_amounts(new: Any, old: Any) -> Causes:
    """Check the amounts of a limit; those that a type may not have are not checked further."""
    if new.get("type") == "Pod":
        new = {part: new[part] for part in ("type", *_PARTS_OF_PODS) if part in new}
    return _LIMIT_AMOUNTS(new, old)


_LIMIT = all_of(struct(("type", _check_limit_type)), _check_limit_fields, _check_limit_amounts)

check_limit_range: Check = struct(
    (
        "spec",
        if_present(struct(("limits", optional(all_of(each(_LIMIT), _check_unique_limit_types))))),
    ),
)
