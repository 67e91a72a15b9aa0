"""Rules for what every object has, its metadata; and for labels, selectors and conditions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.api.causes import Causes, duplicate, forbidden, invalid, required, too_long, under
from phalanx.api.errors import Cause
from phalanx.api.fields import (
    Faults,
    annotation_key_faults,
    condition_reason_faults,
    dns_label_faults,
    dns_subdomain_faults,
    finalizer_faults,
    label_key_faults,
    label_value_faults,
    path_segment_faults,
    prefix_faults,
    service_name_faults,
)
from phalanx.api.kinds import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    LEADER_WORKER_SET,
    ROLE,
    ROLE_BINDING,
    Kind,
)
from phalanx.api.rules.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    at_least,
    each,
    every,
    given,
    needed,
    one_of,
    repeated,
    struct,
    text,
    there,
)
from phalanx.api.wire import Object

#: All annotations of an object together, in bytes.
ANNOTATIONS_LIMIT = 256 * 1024

#: The format of names, where it is not that of a subdomain.
_NAMES: Mapping[str, Faults] = {
    "Namespace": dns_label_faults,
    "Service": dns_label_faults,
    "Event": path_segment_faults,
    ROLE.qualified: path_segment_faults,
    ROLE_BINDING.qualified: path_segment_faults,
    CLUSTER_ROLE.qualified: path_segment_faults,
    CLUSTER_ROLE_BINDING.qualified: path_segment_faults,
    LEADER_WORKER_SET.qualified: service_name_faults,
}

_FIXED = (
    "name", "namespace", "uid", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds",
)  # fmt: skip
_check_label = needed(text(dns_label_faults))
_FOREGROUND = ("orphan", "foregroundDeletion")


def check_metadata(kind: Kind, new: Object, old: Object | None) -> Causes:
    """The metadata of an object of a kind."""
    meta = new.get("metadata") or {}
    if old is None:
        return under("metadata", [*_check_name(kind, meta), *_check_common(meta, CREATED)])
    before = old.get("metadata") or {}
    return under("metadata", [*_check_unchanged(meta, before), *_check_common(meta, before)])


def _check_name(kind: Kind, meta: Object) -> Causes:
    faults = _NAMES.get(kind.qualified, dns_subdomain_faults)
    name, prefix = meta.get("name", ""), meta.get("generateName", "")
    found = [
        invalid("generateName", prefix, fault)
        for fault in (prefix_faults(faults, prefix) if prefix else ())
    ]
    if not name:
        found.append(required("name", "name or generateName is required"))
    else:
        found += [invalid("name", name, fault) for fault in faults(name)]
    return [*found, *_check_namespace(kind, meta.get("namespace", ""))]


def _check_namespace(kind: Kind, namespace: str) -> Causes:
    if kind.namespaced:
        return under("namespace", _check_label(namespace, CREATED))
    return [forbidden("namespace", "not allowed on this type")] if namespace else ()


def _check_unchanged(new: Object, old: Object) -> Causes:
    found = [
        invalid(field, new.get(field), IMMUTABLE)
        for field in _FIXED
        if new.get(field) != old.get(field)
    ]
    if new.get("generation", 0) < old.get("generation", 0):
        found.append(invalid("generation", new.get("generation", 0), "must not be decremented"))
    kept = set(old.get("finalizers", ()))
    added = [finalizer for finalizer in new.get("finalizers", ()) if finalizer not in kept]
    if added and old.get("deletionTimestamp"):
        quoted = ", ".join(f'"{finalizer}"' for finalizer in added)
        detail = (
            "no new finalizers can be added if the object is being deleted, "
            f"found new finalizers []string{{{quoted}}}"
        )
        found.append(forbidden("finalizers", detail))
    return found


def check_labels(new: Any, old: Any) -> Causes:
    """Labels: keys and values. Causes are told at the whole of them."""
    found: list[Cause] = []
    for key, value in (new or {}).items():
        found += [invalid("", key, fault) for fault in label_key_faults(key)]
        found += [invalid("", value, fault) for fault in label_value_faults(value)]
    return found


def check_annotations(new: Any, old: Any) -> Causes:
    """Annotations: keys, and how much they hold together."""
    annotations = new or {}
    found = [invalid("", key, fault) for key in annotations for fault in annotation_key_faults(key)]
    size = sum(len(k.encode()) + len(v.encode()) for k, v in annotations.items())
    return [*found, too_long("", ANNOTATIONS_LIMIT)] if size > ANNOTATIONS_LIMIT else found


def _not_empty(new: Any, old: Any) -> Causes:
    return () if new else [required("", "must not be empty")]


def _not_an_event(new: Any, old: Any) -> Causes:
    if (new.get("apiVersion"), new.get("kind")) != ("v1", "Event"):
        return ()
    return [invalid("", new, "/v1, Kind=Event is disallowed from being an owner")]


def _one_controller(new: Any, old: Any) -> Causes:
    owners = [owner.get("name", "") for owner in new if owner.get("controller")]
    if len(owners) < 2:
        return ()
    detail = (
        'Only one reference can have Controller set to true. Found "true" in references for '
        f"{owners[0]} and {owners[1]}"
    )
    return [invalid("", new, detail)]


def _check_finalizers(new: Any, old: Any) -> Causes:
    found: list[Cause] = []
    for at, name in enumerate(new):
        place = "" if label_key_faults(name) else f"[{at}]"
        found += [invalid(place, name, fault) for fault in finalizer_faults(name)]
    if all(name in new for name in _FOREGROUND):
        detail = "finalizer orphan and foregroundDeletion cannot be both set"
        found.append(invalid("", new, detail))
    return found


_check_owner = every(
    struct(
        ("apiVersion", _not_empty),
        ("kind", _not_empty),
        ("name", _not_empty),
        ("uid", _not_empty),
    ),
    _not_an_event,
)

_check_common = struct(
    ("generation", given(at_least(0))),
    ("labels", check_labels),
    ("annotations", check_annotations),
    ("ownerReferences", given(every(each(_check_owner), _one_controller))),
    ("finalizers", given(_check_finalizers)),
)

# ----------------------------------------------------------------------------------- selectors

_LISTED = ("In", "NotIn")
_UNLISTED = ("Exists", "DoesNotExist")


def check_operator(new: Any, old: Any) -> Causes:
    """Whether the values of a requirement fit its operator."""
    operator, values = new.get("operator"), new.get("values")
    if operator in _LISTED:
        detail = "must be specified when `operator` is 'In' or 'NotIn'"
        return () if values else [required("values", detail)]
    if operator in _UNLISTED:
        detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        return [forbidden("values", detail)] if values else ()
    return [invalid("operator", operator, "not a valid selector operator")]


LABEL_KEY: Check = text(label_key_faults)
_check_requirement = every(
    check_operator,
    struct(("key", LABEL_KEY), ("values", given(each(text(label_value_faults))))),
)

#: A label selector.
check_selector = struct(
    ("matchLabels", check_labels),
    ("matchExpressions", given(each(_check_requirement))),
)

# ---------------------------------------------------------------------------------- conditions

_REASON_LIMIT = 1024
_MESSAGE_LIMIT = 32768


def _no_longer_than(limit: int) -> Check:
    def check(new: Any, old: Any) -> Causes:
        return [too_long("", limit)] if len(new) > limit else ()

    return check


_check_condition = struct(
    ("type", needed(LABEL_KEY)),
    ("status", one_of("False", "True", "Unknown")),
    ("observedGeneration", given(at_least(0))),
    ("lastTransitionTime", there),
    ("reason", needed(every(text(condition_reason_faults), _no_longer_than(_REASON_LIMIT)))),
    ("message", given(_no_longer_than(_MESSAGE_LIMIT))),
)


def _one_per_type(new: Any, old: Any) -> Causes:
    return [duplicate(f"[{at}]", new[at].get("type")) for at in repeated(new, "type")]


#: Conditions as most kinds have them.
check_conditions = given(every(each(_check_condition), _one_per_type))
