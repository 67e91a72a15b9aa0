"""LimitRanges: default, minimum and maximum resources per container, pod and claim of a namespace.

Two admission steps call this module. `apply_defaults` runs before the other steps that change a
pod, so that they and the QoS class see the defaults. `check_limits` runs after the validation
rules of the kind and before quotas, as in Kubernetes. Both read committed LimitRanges.

A LimitRange constrains one object at a time; `resource_quotas.py` constrains the sum of all
objects of a namespace.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import NamedTuple

from phalanx.api.kinds import LIMIT_RANGE, PERSISTENT_VOLUME_CLAIM, POD, Kind
from phalanx.api.quota_usage import Usage, format_milli, pod_requests_and_limits
from phalanx.api.resources import exact_value
from phalanx.api.wire import Object
from phalanx.server.objects import decode_record, forbidden_error
from phalanx.store.kv import StoreReader

LIMIT_RANGER_ANNOTATION = "kubernetes.io/limit-ranger"
#: Container list of the pod spec -> its name in the annotation.
_CONTAINER_FIELDS = (("containers", "container"), ("initContainers", "init container"))
#: The types of limits that apply to a kind.
LIMIT_TYPES: Mapping[Kind, tuple[str, ...]] = {
    POD: ("Container", "Pod"),
    PERSISTENT_VOLUME_CLAIM: ("PersistentVolumeClaim",),
}

Quantities = dict[str, str]
#: The resources that a container, pod or claim states, by `request` and `limit`.
StatedResources = Mapping[str, Quantities]


class _LimitBound(NamedTuple):
    """One bound, and the stated `request` and `limit` of its resource, where there are any."""

    resource: str
    limit_type: str
    amount: str
    stated: Mapping[str, str]


#: Returns the message for stated resources that are out of bounds, or "".
BoundCheck = Callable[[_LimitBound], str]


def apply_defaults(store: StoreReader, namespace: str, pod: Object) -> None:
    """Add the default requests and limits of the namespace to containers that state none."""
    items = _limit_items(store, namespace, ("Container",))
    if not items:
        return
    requests: Quantities = {}
    limits: Quantities = {}
    for item in items:
        requests = {**item.get("defaultRequest", {}), **requests}
        limits = {**item.get("default", {}), **limits}
    notes = [
        note
        for field, label in _CONTAINER_FIELDS
        for container in pod["spec"].get(field, ())
        for note in _default_container(container, label, requests=requests, limits=limits)
    ]
    if notes:
        annotations = pod["metadata"].setdefault("annotations", {})
        annotations[LIMIT_RANGER_ANNOTATION] = "LimitRanger plugin set: " + "; ".join(notes)


def check_limits(store: StoreReader, kind: Kind, namespace: str, *, obj: Object) -> None:
    """Raise Forbidden for a pod or claim that is out of the bounds of its namespace."""
    items = _limit_items(store, namespace, LIMIT_TYPES[kind])
    found = list(dict.fromkeys(message for item in items for message in _violations(item, obj)))
    if found:
        detail = found[0] if len(found) == 1 else f"[{', '.join(found)}]"
        raise forbidden_error(kind, obj["metadata"]["name"], detail)


def _limit_items(store: StoreReader, namespace: str, limit_types: tuple[str, ...]) -> list[Object]:
    """The limits of some types in a namespace, ordered by the names of their LimitRanges."""
    return [
        item
        for record in store.range(LIMIT_RANGE.store_prefix(namespace))
        for item in decode_record(record)["spec"].get("limits") or ()
        if item["type"] in limit_types
    ]


def _default_container(
    container: Object, label: str, *, requests: Quantities, limits: Quantities
) -> Iterator[str]:
    """Add missing resources to a container; yield a note for the annotation per change."""
    resources = container.setdefault("resources", {})
    for part, defaults in (("request", requests), ("limit", limits)):
        stated = resources.get(f"{part}s") or {}
        added = {name: amount for name, amount in defaults.items() if name not in stated}
        if added:
            resources[f"{part}s"] = {**stated, **added}
            yield f"{', '.join(sorted(added))} {part} for {label} {container['name']}"


def _violations(item: Object, obj: Object) -> Iterator[str]:
    rules = _LIMIT_TYPE_RULES[item["type"]]
    for resources in rules.resources_of(obj, item):
        for part, check in rules.checks:
            for name, amount in item.get(part, {}).items():
                stated = {key: known[name] for key, known in resources.items() if name in known}
                if message := check(_LimitBound(name, item["type"], amount, stated)):
                    yield message


# ---- stated resources ----------------------------------------------------------------------------


def _container_resources(pod: Object, item: Object) -> Iterator[StatedResources]:
    for field, _ in _CONTAINER_FIELDS:
        for container in pod["spec"].get(field, ()):
            resources = container.get("resources") or {}
            yield {part: resources.get(f"{part}s") or {} for part in ("request", "limit")}


def _pod_resources(pod: Object, item: Object) -> Iterator[StatedResources]:
    """The sums over all containers, formatted like the bounds that they are compared with."""
    styles = {**item.get("min", {}), **item.get("max", {})}

    def format_usage(total: Usage) -> Quantities:
        return {name: format_milli(amount, styles.get(name, "")) for name, amount in total.items()}

    requests, limits = pod_requests_and_limits(pod)
    yield {"request": format_usage(requests), "limit": format_usage(limits)}


def _claim_resources(claim: Object, item: Object) -> Iterator[StatedResources]:
    yield {"request": (claim["spec"].get("resources") or {}).get("requests") or {}}


# ---- bounds --------------------------------------------------------------------------------------


def _bound_check(
    label: str, is_beyond: Callable[[Fraction, Fraction], bool], *parts: str
) -> BoundCheck:
    """A check that the first of these parts is stated and that no part is beyond the bound."""

    def check(bound: _LimitBound) -> str:
        message = f"{label} {bound.resource} usage per {bound.limit_type} is {bound.amount}"
        if parts[0] not in bound.stated:
            return f"{message}.  No {parts[0]} is specified"
        for part in parts:
            stated = bound.stated.get(part, bound.amount)
            if is_beyond(exact_value(stated), exact_value(bound.amount)):
                return f"{message}, but {part} is {stated}"
        return ""

    return check


def _check_ratio(bound: _LimitBound) -> str:
    message = (
        f"{bound.resource} max limit to request ratio per {bound.limit_type} is {bound.amount}"
    )
    request, limit = (exact_value(bound.stated.get(part, "0")) for part in ("request", "limit"))
    for part, stated in (("request", request), ("limit", limit)):
        if not stated:
            return f"{message}, but no {part} is specified or {part} is 0"
    ratio = limit / request
    if ratio > exact_value(bound.amount):
        return f"{message}, but provided ratio is {float(ratio):f}"
    return ""


class _LimitType(NamedTuple):
    """How limits of one type are enforced: the resources they constrain, a check per bound."""

    resources_of: Callable[[Object, Object], Iterator[StatedResources]]
    checks: tuple[tuple[str, BoundCheck], ...]


_MINIMUM = ("min", _bound_check("minimum", operator.lt, "request", "limit"))
_MAXIMUM = ("max", _bound_check("maximum", operator.gt, "limit", "request"))
_MAXIMUM_REQUEST = ("max", _bound_check("maximum", operator.gt, "request"))
_RATIO = ("maxLimitRequestRatio", _check_ratio)

_LIMIT_TYPE_RULES: Mapping[str, _LimitType] = {
    "Container": _LimitType(_container_resources, (_MINIMUM, _MAXIMUM, _RATIO)),
    "Pod": _LimitType(_pod_resources, (_MINIMUM, _MAXIMUM, _RATIO)),
    "PersistentVolumeClaim": _LimitType(_claim_resources, (_MINIMUM, _MAXIMUM_REQUEST)),
}
