"""LimitRanges: what a container, a pod or a claim of a namespace gets, may and must ask for.

Two steps of admission. `add_limits` comes before all other steps that change a pod, so that they
and the quality of service see it whole; `check_limits` comes after the rules of the kind, as in
Kubernetes, and before quotas. Both read what is committed. A LimitRange looks at one object alone;
what all of them may hold together is for `quotas.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import NamedTuple

from phalanx.api.kinds import LIMIT_RANGE, PERSISTENT_VOLUME_CLAIM, POD, Kind
from phalanx.api.quantity import value
from phalanx.api.wire import Object
from phalanx.server.call import Call
from phalanx.server.context import Context
from phalanx.server.objects import decoded, forbidden
from phalanx.server.usage import Usage, pod_totals, written

ANNOTATION = "kubernetes.io/limit-ranger"
#: What is said of which containers, in the order of the annotation.
_CONTAINERS = (("containers", "container"), ("initContainers", "init container"))
#: Which types of limits are for objects of which kind.
_TYPES: Mapping[Kind, tuple[str, ...]] = {
    POD: ("Container", "Pod"),
    PERSISTENT_VOLUME_CLAIM: ("PersistentVolumeClaim",),
}

Quantities = dict[str, str]
#: What one container, pod or claim asks for and may use, by `request` and `limit`.
Asked = Mapping[str, Quantities]


class _Bound(NamedTuple):
    """One bound, and what is stated there: `request`, `limit`, both or neither."""

    resource: str
    sort: str
    amount: str
    stated: Mapping[str, str]


#: Why what is stated is out of bounds, or nothing.
Judge = Callable[[_Bound], str]


def add_limits(context: Context, call: Call, pod: Object) -> None:
    """Have containers ask for and be limited to what the namespace says, where they do not say."""
    items = _items(context, call.namespace, ("Container",))
    requests: Quantities = {}
    limits: Quantities = {}
    for item in items:
        requests = {**item.get("defaultRequest", {}), **requests}
        limits = {**item.get("default", {}), **limits}
    if not items:
        return
    notes = [
        note
        for part, word in _CONTAINERS
        for container in pod["spec"].get(part, ())
        for note in _completed(container, word, requests, limits)
    ]
    if notes:
        annotations = pod["metadata"].setdefault("annotations", {})
        annotations[ANNOTATION] = "LimitRanger plugin set: " + "; ".join(notes)


def check_limits(context: Context, call: Call, new: Object, old: Object | None = None) -> None:
    """Refuse an object that is out of bounds; not a pod that is there, nor what is going away."""
    is_let_be = old is not None and (call.kind is POD or "deletionTimestamp" in old["metadata"])
    if call.kind not in _TYPES or call.subresource or is_let_be:
        return
    items = _items(context, call.namespace, _TYPES[call.kind])
    if found := list(dict.fromkeys(why for item in items for why in _violations(item, new))):
        told = found[0] if len(found) == 1 else f"[{', '.join(found)}]"
        raise forbidden(call.kind, new["metadata"]["name"], told)


def _items(context: Context, namespace: str, sorts: tuple[str, ...]) -> list[Object]:
    """What the LimitRanges of a namespace say about some types, in the order of their names."""
    return [
        item
        for record in context.store.range(LIMIT_RANGE.prefix(namespace))
        for item in decoded(record)["spec"].get("limits") or ()
        if item["type"] in sorts
    ]


def _completed(
    container: Object, word: str, requests: Quantities, limits: Quantities
) -> Iterator[str]:
    """Complete the resources of a container; say what was added."""
    resources = container.setdefault("resources", {})
    for part, defaults in (("request", requests), ("limit", limits)):
        stated = resources.get(f"{part}s") or {}
        added = {name: amount for name, amount in defaults.items() if name not in stated}
        if added:
            resources[f"{part}s"] = {**stated, **added}
            yield f"{', '.join(sorted(added))} {part} for {word} {container['name']}"


def _violations(item: Object, obj: Object) -> Iterator[str]:
    """What of an object is out of the bounds of one type."""
    row = _ROWS[item["type"]]
    for asked in row.of(obj, item):
        for part, judge in row.judges:
            for name, amount in item.get(part, {}).items():
                stated = {word: known[name] for word, known in asked.items() if name in known}
                if why := judge(_Bound(name, item["type"], amount, stated)):
                    yield why


# ---- what is asked -------------------------------------------------------------------------------


def _by_container(pod: Object, item: Object) -> Iterator[Asked]:
    for sort, _ in _CONTAINERS:
        for container in pod["spec"].get(sort, ()):
            resources = container.get("resources") or {}
            yield {part: resources.get(f"{part}s") or {} for part in ("request", "limit")}


def _by_pod(pod: Object, item: Object) -> Iterator[Asked]:
    """Sums, written in the style of the bounds that they are held against."""
    styles = {**item.get("min", {}), **item.get("max", {})}

    def shown(total: Usage) -> Quantities:
        return {name: written(amount, styles.get(name, "")) for name, amount in total.items()}

    requests, limits = pod_totals(pod)
    yield {"request": shown(requests), "limit": shown(limits)}


def _by_claim(claim: Object, item: Object) -> Iterator[Asked]:
    yield {"request": (claim["spec"].get("resources") or {}).get("requests") or {}}


# ---- how it is judged ----------------------------------------------------------------------------


def _bounded(word: str, is_beyond: Callable[[Fraction, Fraction], bool], *parts: str) -> Judge:
    """A judge to whom the first of these parts must be stated, and none be beyond the bound."""

    def judge(bound: _Bound) -> str:
        told = f"{word} {bound.resource} usage per {bound.sort} is {bound.amount}"
        if parts[0] not in bound.stated:
            return f"{told}.  No {parts[0]} is specified"
        for part in parts:
            stated = bound.stated.get(part, bound.amount)
            if is_beyond(value(stated), value(bound.amount)):
                return f"{told}, but {part} is {stated}"
        return ""

    return judge


def _ratio(bound: _Bound) -> str:
    told = f"{bound.resource} max limit to request ratio per {bound.sort} is {bound.amount}"
    request, limit = (value(bound.stated.get(part, "0")) for part in ("request", "limit"))
    for part, stated in (("request", request), ("limit", limit)):
        if not stated:
            return f"{told}, but no {part} is specified or {part} is 0"
    given = limit / request
    return f"{told}, but provided ratio is {float(given):f}" if given > value(bound.amount) else ""


class _Row(NamedTuple):
    """How limits of one type are enforced: on what, and which part of them by whom."""

    of: Callable[[Object, Object], Iterator[Asked]]
    judges: tuple[tuple[str, Judge], ...]


_MINIMUM = ("min", _bounded("minimum", operator.lt, "request", "limit"))
_MAXIMUM = ("max", _bounded("maximum", operator.gt, "limit", "request"))
_MAXIMUM_REQUEST = ("max", _bounded("maximum", operator.gt, "request"))
_RATIO = ("maxLimitRequestRatio", _ratio)

_ROWS: Mapping[str, _Row] = {
    "Container": _Row(_by_container, (_MINIMUM, _MAXIMUM, _RATIO)),
    "Pod": _Row(_by_pod, (_MINIMUM, _MAXIMUM, _RATIO)),
    "PersistentVolumeClaim": _Row(_by_claim, (_MINIMUM, _MAXIMUM_REQUEST)),
}
