"""The scopes of a quota: which pods and claims it is about.

A quota without scopes is about everything in its namespace; with scopes it is about objects of
which all of them hold. `quotas.py` asks; nothing here counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from phalanx.api.defaults.pod import qos_class
from phalanx.api.kinds import PERSISTENT_VOLUME_CLAIM, POD, Kind
from phalanx.api.wire import Object

#: What is found of a scope in the spec of an object: whether it holds, or the name of a class.
_Found = str | bool

_AFFINITIES = ("podAffinity", "podAntiAffinity")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def covers(quota: Object, kind: Kind, obj: Object) -> bool:
    """Whether a quota is about an object."""
    spec = obj.get("spec") or {}
    return all(_holds(one, kind, spec) for one in _requirements(quota["spec"]))


def _requirements(spec: Object) -> list[Object]:
    plain = [{"scopeName": name, "operator": "Exists"} for name in spec.get("scopes") or ()]
    selector = spec.get("scopeSelector") or {}
    return [*plain, *(selector.get("matchExpressions") or ())]


def _holds(requirement: Object, kind: Kind, spec: Object) -> bool:
    """A scope that a kind does not have holds of none of its objects."""
    find = _SCOPES.get((kind, requirement["scopeName"]))
    matches = _OPERATORS[requirement["operator"]]
    return find is not None and matches(find(spec), requirement.get("values") or ())


_OPERATORS: Mapping[str, Callable[[_Found, Sequence[str]], bool]] = {
    "Exists": lambda found, values: bool(found),
    "DoesNotExist": lambda found, values: not found,
    "In": lambda found, values: found in values,
    "NotIn": lambda found, values: found not in values,
}


def _has_deadline(spec: Object) -> bool:
    return int(spec.get("activeDeadlineSeconds", -1)) >= 0


def _is_best_effort(spec: Object) -> bool:
    return qos_class(spec) == "BestEffort"


def _looks_elsewhere(spec: Object) -> bool:
    """Whether it depends on pods of other namespaces where a pod may run."""
    return any(
        term.get("namespaces") or term.get("namespaceSelector") is not None
        for term in _affinity_terms(spec.get("affinity") or {})
    )


def _affinity_terms(affinity: Object) -> Iterator[Object]:
    for sort in _AFFINITIES:
        terms = affinity.get(sort) or {}
        yield from terms.get(_REQUIRED) or ()
        yield from (weighted["podAffinityTerm"] for weighted in terms.get(_PREFERRED) or ())


_SCOPES: Mapping[tuple[Kind, str], Callable[[Object], _Found]] = {
    (POD, "Terminating"): _has_deadline,
    (POD, "NotTerminating"): lambda spec: not _has_deadline(spec),
    (POD, "BestEffort"): _is_best_effort,
    (POD, "NotBestEffort"): lambda spec: not _is_best_effort(spec),
    (POD, "PriorityClass"): lambda spec: str(spec.get("priorityClassName", "")),
    (POD, "CrossNamespacePodAffinity"): _looks_elsewhere,
    (PERSISTENT_VOLUME_CLAIM, "VolumeAttributesClass"): lambda spec: str(
        spec.get("volumeAttributesClassName", "")
    ),
}
