"""Rules of Pods: those of their spec, and what of it may change once they are there.

    image of a container                        freely
    activeDeadlineSeconds                       set, or lowered
    tolerations                                 added; tolerationSeconds freely
    schedulingGates                             removed
    nodeSelector, required node affinity        narrowed, while there are gates
    preferred node affinity                     freely, while there are gates
    terminationGracePeriodSeconds               from a negative number to 1

Everything else stays as it is.
"""

from __future__ import annotations

from typing import Any

from phalanx.api.causes import Causes, forbidden, invalid, under
from phalanx.api.errors import Cause
from phalanx.api.rules.checks import CREATED, Check, at_creation, every, once, present, struct
from phalanx.api.rules.podspec import CONTAINERS, POD_SPEC
from phalanx.api.wire import Object

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_ONLY = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_DEADLINE = "activeDeadlineSeconds"
_GRACE = "terminationGracePeriodSeconds"
_ADDITIONS = "only additions are allowed (no mutations or deletions)"


def _not_yet(new: Any, old: Any) -> Causes:
    """What a Pod cannot have from the beginning."""
    found: list[Cause] = []
    if new.get("ephemeralContainers"):
        found.append(forbidden("ephemeralContainers", "cannot be set on create"))
    if new.get("nodeName") and new.get("schedulingGates"):
        detail = "cannot be set until all schedulingGates have been cleared"
        found.append(forbidden("nodeName", detail))
    return found


def _spec_update(new: Any, old: Any) -> Causes:
    if old is CREATED or new == old:
        return ()
    if causes := _containers_stay(new, old) or _later_deadline(new, old):
        return causes
    return [
        *_no_deadline(new, old),
        *_tolerations(new, old),
        *_gates(new, old),
        *(_narrowing(new, old) if old.get("schedulingGates") else ()),
        *_nothing_else(new, old),
    ]


def _containers_stay(new: Object, old: Object) -> list[Cause]:
    return [
        forbidden(field, "pod updates may not add or remove containers")
        for field in CONTAINERS
        if len(new.get(field, ())) != len(old.get(field, ()))
    ]


def _later_deadline(new: Object, old: Object) -> list[Cause]:
    after, before = new.get(_DEADLINE), old.get(_DEADLINE)
    if after is None or before is None or after <= before:
        return []
    return [invalid(_DEADLINE, after, "must be less than or equal to previous value")]


def _no_deadline(new: Object, old: Object) -> list[Cause]:
    if new.get(_DEADLINE) is not None or old.get(_DEADLINE) is None:
        return []
    return [invalid(_DEADLINE, None, "must not update from a positive integer to nil value")]


def _tolerations(new: Object, old: Object) -> list[Cause]:
    after = {_timeless(toleration) for toleration in new.get("tolerations", ())}
    if all(_timeless(toleration) in after for toleration in old.get("tolerations", ())):
        return []
    detail = "existing toleration can not be modified except its tolerationSeconds"
    return [forbidden("tolerations", detail)]


def _timeless(toleration: Object) -> tuple[Any, ...]:
    return tuple(toleration.get(key) for key in ("key", "operator", "value", "effect"))


def _gates(new: Object, old: Object) -> list[Cause]:
    before = {gate.get("name") for gate in old.get("schedulingGates", ())}
    return [
        forbidden(
            f"schedulingGates[{at}].name",
            f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'",
        )
        for at, gate in enumerate(new.get("schedulingGates", ()))
        if gate.get("name") not in before
    ]


def _narrowing(new: Object, old: Object) -> list[Cause]:
    """A gated pod may be sent to fewer nodes than before, never to others."""
    selector = new.get("nodeSelector", {})
    found: list[Cause] = []
    if any(selector.get(key) != value for key, value in old.get("nodeSelector", {}).items()):
        detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        found.append(invalid("nodeSelector", selector, detail))
    place = f"affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"
    return [*found, *under(place, _narrower_terms(_terms(new), _terms(old)))]


def _terms(spec: Object) -> list[Object]:
    required = spec.get("affinity", {}).get("nodeAffinity", {}).get(_REQUIRED, {})
    terms: list[Object] = required.get("nodeSelectorTerms", [])
    return terms


def _narrower_terms(new: list[Object], old: list[Object]) -> list[Cause]:
    if not old:
        return []
    if len(new) != len(old):
        detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        return [invalid("", new, detail)]
    return [
        invalid(f"[{at}]", after, _ADDITIONS)
        for at, (after, before) in enumerate(zip(new, old, strict=True))
        if not _has_all(after, before)
    ]


def _has_all(new: Object, old: Object) -> bool:
    """Whether a term begins with the requirements that it had; one that had none stays so."""
    if not old.get("matchExpressions") and not old.get("matchFields"):
        return new == old
    return all(
        new.get(field, [])[: len(old.get(field, []))] == old.get(field, [])
        for field in ("matchExpressions", "matchFields")
    )


def _nothing_else(new: Object, old: Object) -> list[Cause]:
    return [] if _comparable(new, old) == _comparable(old, old) else [forbidden("", _ONLY)]


def _comparable(spec: Object, old: Object) -> Object:
    """A spec without what may change."""
    left_out = {_DEADLINE, "tolerations", "schedulingGates"}
    if old.get("schedulingGates"):
        left_out |= {"nodeSelector", "affinity"}
    if old.get(_GRACE, 0) < 0 and spec.get(_GRACE) in (1, old[_GRACE]):
        left_out.add(_GRACE)
    rest = {key: value for key, value in spec.items() if key not in left_out}
    if "affinity" in left_out:
        rest["affinity"] = _between_pods(spec.get("affinity", {}))
    for field in CONTAINERS:
        rest[field] = [_imageless(container) for container in spec.get(field, ())]
    return rest


def _imageless(container: Object) -> Object:
    return {key: value for key, value in container.items() if key != "image"}


def _between_pods(affinity: Object) -> Object:
    return {key: value for key, value in affinity.items() if key != "nodeAffinity"}


POD: Check = struct(("spec", present(once(every(POD_SPEC, at_creation(_not_yet), _spec_update)))))
