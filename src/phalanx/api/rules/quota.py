"""Rules of ResourceQuotas, what a namespace may use in all, and of LimitRanges, what one may."""

from __future__ import annotations

from typing import Any

from phalanx.api.causes import Causes, duplicate, forbidden, invalid, required
from phalanx.api.errors import Cause
from phalanx.api.fields import label_key_faults
from phalanx.api.quantity import value
from phalanx.api.rules.checks import CREATED, IMMUTABLE, Check, each, every, given, present, struct
from phalanx.api.rules.resource import HUGE_PAGES, name_faults, quantity_faults

# --------------------------------------------------------------------------------------- quotas

#: What can be counted or summed up over a namespace, besides what has a qualified name.
_COUNTED = (
    "pods", "services", "replicationcontrollers", "resourcequotas", "secrets", "configmaps",
    "persistentvolumeclaims", "services.nodeports", "services.loadbalancers",
)  # fmt: skip
_SUMMED = (
    "cpu", "memory", "ephemeral-storage", "requests.cpu", "requests.memory", "requests.storage",
    "requests.ephemeral-storage", "limits.cpu", "limits.memory", "limits.ephemeral-storage",
)  # fmt: skip
_SCOPES = (
    "BestEffort", "CrossNamespacePodAffinity", "NotBestEffort", "NotTerminating", "PriorityClass",
    "Terminating", "VolumeAttributesClass",
)  # fmt: skip
_OPPOSITES = (("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating"))
_LISTED, _UNLISTED = ("In", "NotIn"), ("Exists", "DoesNotExist")
#: Scopes that say something by themselves, so that a selector can only ask whether they hold.
_PLAIN_SCOPES = ("BestEffort", "NotBestEffort", "Terminating", "NotTerminating")


def _quota_name_faults(name: str) -> list[str]:
    faults = list(label_key_faults(name))
    known = name in (*_COUNTED, *_SUMMED) or name.removeprefix("requests.").startswith(HUGE_PAGES)
    if faults or "/" in name or known:
        return faults
    return ["must be a standard resource for quota"]


def _amounts(new: Any, old: Any) -> Causes:
    found: list[Cause] = []
    for name, amount in new.items():
        place = f"[{name}]"
        found += [invalid(place, name, fault) for fault in _quota_name_faults(name)]
        found += [invalid(place, amount, fault) for fault in quantity_faults(name, amount)]
        if name in _COUNTED and name != "pods" and value(amount).denominator != 1:
            found.append(invalid(place, amount, "must be an integer"))
    return found


def _scopes(new: Any, old: Any) -> Causes:
    found = [invalid("", new, "unsupported scope") for one in new if one not in _SCOPES]
    opposed = [pair for pair in _OPPOSITES if all(one in new for one in pair)]
    return [*found, *(invalid("", new, "conflicting scopes") for _ in opposed)]


def _scope_requirement(new: Any, old: Any) -> Causes:
    scope, operator, values = new.get("scopeName"), new.get("operator"), new.get("values")
    found: list[Cause] = []
    if scope not in _SCOPES:
        found.append(invalid("scopeName", scope, "unsupported scope"))
    if scope in _PLAIN_SCOPES and operator != "Exists":
        detail = (
            "must be 'Exist' only operator when scope is any of ResourceQuotaScopeTerminating, "
        )
        detail += "ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort and "
        found.append(invalid("operator", operator, f"{detail}ResourceQuotaScopeNotBestEffort"))
    if operator in _LISTED and not values:
        detail = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
        found.append(required("values", detail))
    elif operator in _UNLISTED and values:
        detail = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
        found.append(invalid("values", values, detail))
    elif operator not in (*_LISTED, *_UNLISTED):
        found.append(invalid("operator", operator, "not a valid selector operator"))
    return found


def _scopes_stay(new: Any, old: Any) -> Causes:
    if old is CREATED or new == old:
        return ()
    return [invalid("", new, IMMUTABLE)]


_QUOTA_SPEC = struct(
    ("hard", given(_amounts)),
    ("scopes", every(given(_scopes), _scopes_stay)),
    (
        "scopeSelector",
        every(present(struct(("matchExpressions", given(each(_scope_requirement))))), _scopes_stay),
    ),
)

RESOURCE_QUOTA: Check = struct(("spec", present(_QUOTA_SPEC)))
RESOURCE_QUOTA_STATUS: Check = struct(
    ("status", present(struct(("hard", given(_amounts)), ("used", given(_amounts)))))
)

# --------------------------------------------------------------------------------------- limits

_TYPES = ("Pod", "Container", "PersistentVolumeClaim")
_PARTS = ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")
_PODS_OWN = ("default", "defaultRequest")
#: Of each pair the first may not be more than the second.
_RISING = (
    ("min", "max"),
    ("min", "defaultRequest"),
    ("min", "default"),
    ("defaultRequest", "max"),
    ("defaultRequest", "default"),
    ("default", "max"),
)
_WORDS = {
    "min": "min", "max": "max", "default": "default", "defaultRequest": "default request",
}  # fmt: skip


def _limit_type(new: Any, old: Any) -> Causes:
    if faults := label_key_faults(new or ""):
        return [invalid("", new or "", fault) for fault in faults]
    if "/" in new or new in _TYPES:
        return ()
    return [invalid("", new, "must be a standard limit type or fully qualified")]


def _limit_names(new: Any, old: Any) -> Causes:
    is_containers = new.get("type") in ("Pod", "Container")
    faults = name_faults if is_containers else label_key_faults
    return [
        invalid(f"{part}[{name}]", name, fault)
        for part in _PARTS
        for name in new.get(part, {})
        for fault in faults(name)
    ]


def _limit_order(new: Any, old: Any) -> Causes:
    found: list[Cause] = []
    for low, high in _RISING:
        for name, amount in new.get(low, {}).items():
            bound = new.get(high, {}).get(name)
            if bound is not None and value(amount) > value(bound):
                detail = (
                    f"{_WORDS[low]} value {amount} is greater than {_WORDS[high]} value {bound}"
                )
                found.append(invalid(f"{low}[{name}]", amount, detail))
    for name, ratio in new.get("maxLimitRequestRatio", {}).items():
        if value(ratio) < 1:
            place = f"maxLimitRequestRatio[{name}]"
            found.append(invalid(place, ratio, f"ratio {ratio} is less than 1"))
    return found


def _limit_fits(new: Any, old: Any) -> Causes:
    """What limits of a type can say, and must."""
    if new.get("type") == "Pod":
        detail = "may not be specified when `type` is 'Pod'"
        return [forbidden(part, detail) for part in _PODS_OWN if new.get(part)]
    if new.get("type") != "PersistentVolumeClaim":
        return ()
    if any("storage" in new.get(part, {}) for part in ("min", "max")):
        return ()
    detail = "either minimum or maximum storage value is required, but neither was provided"
    return [required("limits", detail)]


def _one_per_type(new: Any, old: Any) -> Causes:
    seen: set[Any] = set()
    found: list[Cause] = []
    for at, limit in enumerate(new):
        kind = limit.get("type")
        if kind in seen:
            found.append(duplicate(f"[{at}].type", kind))
        seen.add(kind)
    return found


_LIMIT = every(struct(("type", _limit_type)), _limit_names, _limit_fits, _limit_order)

LIMIT_RANGE: Check = struct(
    ("spec", present(struct(("limits", given(every(each(_LIMIT), _one_per_type)))))),
)
