"""Rules of resources: their names, their quantities, and how requests and limits go together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.api.causes import Causes, duplicate, forbidden, invalid, not_found, required
from phalanx.api.errors import Cause
from phalanx.api.fields import label_key_faults, remembered
from phalanx.api.quantity import value
from phalanx.api.rules.checks import repeated

HUGE_PAGES = "hugepages-"
_CONTAINER = ("cpu", "memory", "ephemeral-storage")
_QUOTA = (
    "requests.cpu", "requests.memory", "requests.storage", "requests.ephemeral-storage",
    "limits.cpu", "limits.memory", "limits.ephemeral-storage", "storage", "pods", "services",
    "services.nodeports", "services.loadbalancers", "replicationcontrollers", "resourcequotas",
    "secrets", "configmaps", "persistentvolumeclaims",
)  # fmt: skip
_NATIVE_DOMAIN = "kubernetes.io/"


def is_extended(name: str) -> bool:
    """Whether a resource is not Kubernetes' own, such as `nvidia.com/gpu`."""
    return "/" in name and _NATIVE_DOMAIN not in name and not name.startswith("requests.")


def is_overcommitted(name: str) -> bool:
    """Whether more of a resource may be used than was asked for."""
    return not is_extended(name) and not name.startswith(HUGE_PAGES)


@remembered
def name_faults(name: str) -> Sequence[str]:
    """What is wrong with the name of a container's resource."""
    if faults := label_key_faults(name):
        return faults
    if "/" in name:
        if _NATIVE_DOMAIN in name or is_extended(name):
            return []
        return ["doesn't follow extended resource name standard"]
    if name in _CONTAINER or name.startswith(HUGE_PAGES):
        return []
    known = [] if name in _QUOTA else ["must be a standard resource type or fully qualified"]
    return [*known, "must be a standard resource for containers"]


def quantity_faults(name: str, quantity: str) -> list[str]:
    """What is wrong with an amount of a resource."""
    number = value(quantity)
    faults = [] if number.numerator >= 0 else ["must be greater than or equal to 0"]
    whole = number.denominator == 1 or not (is_extended(name) or name == "pods")
    return faults if whole else [*faults, "must be an integer"]


def check_resources(new: Any, old: Any) -> Causes:
    """Requests and limits of a container."""
    resources = new or {}
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    return [
        *_amounts("limits", limits),
        *_amounts("requests", requests),
        *_requests(requests, limits),
        *_huge_pages(limits | requests),
    ]


def _amounts(field: str, quantities: dict[str, str]) -> list[Cause]:
    found: list[Cause] = []
    for name, quantity in quantities.items():
        place = f"{field}[{name}]"
        found += [invalid(place, name, fault) for fault in name_faults(name)]
        found += [invalid(place, quantity, fault) for fault in quantity_faults(name, quantity)]
    return found


def _requests(requests: dict[str, str], limits: dict[str, str]) -> list[Cause]:
    found: list[Cause] = []
    for name, quantity in requests.items():
        limit = limits.get(name)
        if limit == quantity:
            continue
        if limit is None:
            if not is_overcommitted(name):
                detail = "Limit must be set for non overcommit resources"
                found.append(required("limits", detail))
        elif not is_overcommitted(name) and value(quantity) != value(limit):
            detail = f"must be equal to {name} limit of {limit}"
            found.append(invalid("requests", quantity, detail))
        elif value(quantity) > value(limit):
            detail = f"must be less than or equal to {name} limit of {limit}"
            found.append(invalid("requests", quantity, detail))
    return found


def _huge_pages(quantities: dict[str, str]) -> list[Cause]:
    if not any(name.startswith(HUGE_PAGES) for name in quantities):
        return []
    if "cpu" in quantities or "memory" in quantities:
        return []
    return [forbidden("", "HugePages require cpu or memory")]


def claim_causes(claims: list[dict[str, Any]], known: list[str]) -> list[Cause]:
    """What is wrong with the claims that a container names, given those of its pod."""
    if not claims:
        return []
    suffix = f": {', '.join(known)}" if known else " which is empty"
    detail = f"must be one of the names in pod.spec.resourceClaims{suffix}"
    found: list[Cause] = []
    for at, claim in enumerate(claims):
        if not claim.get("name"):
            found.append(required(f"[{at}]"))
        elif claim["name"] not in known:
            found.append(not_found(f"[{at}]", claim["name"], detail))
    again = repeated(claims, "name", "request")
    return [*found, *(duplicate(f"[{at}]", claims[at].get("name")) for at in again)]
