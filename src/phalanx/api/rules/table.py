"""Rules: what is wrong with an object, as a cause per field. Rows per kind, walked generically.

`validate` is the only door: the server calls it before every write, with the stored object on an
update. A kind has a check for its main resource and one per subresource that has rules; all of them
are built from the words of `checks.py`. Never changes an object, never looks at another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.api import kinds
from phalanx.api.causes import Causes, forbidden, invalid, too_long, under
from phalanx.api.errors import Cause
from phalanx.api.fields import config_key_faults, finalizer_faults, label_key_faults
from phalanx.api.kinds import Kind
from phalanx.api.priorityclasses import HIGHEST_PRIORITY, SYSTEM_CLASSES
from phalanx.api.rules import budget, claim, quota, rbac, storage
from phalanx.api.rules.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    at_creation,
    at_least,
    every,
    frozen,
    given,
    needed,
    one_of,
    struct,
    text,
    there,
)
from phalanx.api.rules.composite import COMPOSITE_POD_GROUP, COMPOSITE_POD_GROUP_STATUS
from phalanx.api.rules.cron import CRON_JOB
from phalanx.api.rules.group import POD_GROUP, POD_GROUP_STATUS
from phalanx.api.rules.job import JOB
from phalanx.api.rules.jobset import JOB_SET, JOB_SET_STATUS
from phalanx.api.rules.jobstatus import JOB_STATUS
from phalanx.api.rules.leaderworkerset import LEADER_WORKER_SET, LEADER_WORKER_SET_STATUS
from phalanx.api.rules.meta import check_metadata
from phalanx.api.rules.node import NODE
from phalanx.api.rules.pod import POD
from phalanx.api.rules.podpart import check_ephemeral_containers, check_resize
from phalanx.api.rules.podstatus import POD_STATUS
from phalanx.api.rules.secret import SECRET
from phalanx.api.rules.service import SERVICE
from phalanx.api.rules.slice import RESOURCE_SLICE
from phalanx.api.rules.template import POD_TEMPLATE
from phalanx.api.rules.workload import WORKLOAD
from phalanx.api.wire import Object

#: What a ConfigMap may hold, in bytes.
CONFIG_LIMIT = 1024 * 1024

_KEPT = "field is immutable when `immutable` is set"


def validate(kind: Kind, new: Object, old: Object | None, part: str = "") -> list[Cause]:
    """What is wrong with an object, or with a subresource of it, as it is to be stored."""
    check = _RULES.get((kind.qualified, part))
    causes = check(new, CREATED if old is None else old) if check else ()
    return list(dict.fromkeys((*check_metadata(kind, new, old), *causes)))


# -------------------------------------------------------------------------------- PriorityClass


def _class_name(new: Any, old: Any) -> Causes:
    name, value = new["metadata"].get("name", ""), new.get("value", 0)
    if not name.startswith("system-"):
        detail = f"maximum allowed value of a user defined priority is {HIGHEST_PRIORITY}"
        return [forbidden("value", detail)] if value > HIGHEST_PRIORITY else ()
    if name not in SYSTEM_CLASSES:
        why = f"{name} is not a known system priority class"
    elif value != SYSTEM_CLASSES[name]:
        why = f"value of {name} PriorityClass must be {SYSTEM_CLASSES[name]}"
    elif new.get("globalDefault"):
        why = f"globalDefault of {name} PriorityClass must be false"
    else:
        return ()
    detail = (
        f"priority class names with 'system-' prefix are reserved for system use only. error: {why}"
    )
    return [forbidden("metadata.name", detail)]


def _same_value(new: Any, old: Any) -> Causes:
    if old is CREATED or new.get("value", 0) == old.get("value", 0):
        return ()
    return [forbidden("value", "may not be changed in an update.")]


_PRIORITY_CLASS = every(
    at_creation(_class_name),
    _same_value,
    struct(("preemptionPolicy", frozen(one_of("PreemptLowerPriority", "Never")))),
)

# ------------------------------------------------------------------------------------ ConfigMap


def _config_stays(new: Any, old: Any) -> Causes:
    if old is CREATED or not old.get("immutable"):
        return ()
    return [
        forbidden(field, _KEPT)
        for field in ("immutable", "data", "binaryData")
        if new.get(field) != old.get(field)
    ]


def _config_keys(new: Any, old: Any) -> Causes:
    found: list[Cause] = []
    for field in ("data", "binaryData"):
        for key in new.get(field, {}):
            found += [invalid(f"{field}[{key}]", key, f) for f in config_key_faults(key)]
    both = [key for key in new.get("data", {}) if key in new.get("binaryData", {})]
    detail = "duplicate of key present in binaryData"
    return [*found, *(invalid(f"data[{key}]", key, detail) for key in both)]


def _config_size(new: Any, old: Any) -> Causes:
    texts = sum(len(value.encode()) for value in new.get("data", {}).values())
    binary = sum(len(value) * 3 // 4 for value in new.get("binaryData", {}).values())
    return [too_long("[]", CONFIG_LIMIT)] if texts + binary > CONFIG_LIMIT else ()


_CONFIG_MAP = every(_config_stays, _config_keys, _config_size)

# ---------------------------------------------------------------------------------------- Lease


def _positive(new: Any, old: Any) -> Causes:
    return () if new > 0 else [invalid("", new, "must be greater than 0")]


def _strategy(new: Any, old: Any) -> Causes:
    """Told one level too deep, where clients of the API expect it."""
    known = one_of("OldestEmulationVersion")
    return under("strategy", (text(label_key_faults) if "/" in new else known)(new, old))


def _holder_by_strategy(new: Any, old: Any) -> Causes:
    if not new or not new.get("preferredHolder") or new.get("strategy"):
        return ()
    detail = "may only be specified if `strategy` is defined"
    return [forbidden("preferredHolder", detail)]


_LEASE = struct(
    (
        "spec",
        every(
            struct(
                ("leaseDurationSeconds", given(_positive)),
                ("leaseTransitions", given(at_least(0))),
                ("strategy", given(_strategy)),
            ),
            _holder_by_strategy,
        ),
    ),
)

# ---------------------------------------------------------------------------------------- Event


def _event_namespace(new: Any, old: Any) -> Causes:
    """An Event stands beside its object; what has no namespace is told of in `default`.

    In the new style it may stand elsewhere.
    """
    own = new["metadata"].get("namespace", "")
    about = new.get("involvedObject", {}).get("namespace", "")
    if new.get("eventTime"):
        fits = bool(about) or own in ("default", "kube-system")
    else:
        fits = own == about or (not about and own == "default")
    detail = "does not match event.namespace"
    return () if fits else [invalid("involvedObject.namespace", about, detail)]


def _short(limit: int) -> Check:
    def check(new: Any, old: Any) -> Causes:
        if len(new) <= limit:
            return ()
        return [invalid("", "", f"can have at most {limit} characters")]

    return check


def _reporter(new: Any, old: Any) -> Causes:
    return [*there(new, old), *text(label_key_faults)(new, old)]


_NEW_EVENT = struct(
    ("reportingComponent", _reporter),
    ("reportingInstance", needed(_short(128))),
    ("action", needed(_short(128))),
    ("reason", needed(_short(128))),
    ("message", given(_short(1024))),
)


def _new_style(new: Any, old: Any) -> Causes:
    return _NEW_EVENT(new, CREATED) if new.get("eventTime") else ()


_EVENT = every(_event_namespace, _new_style)


def _event_type(new: Any, old: Any) -> Causes:
    known = ("Normal", "Warning")
    return () if new in known else [invalid("", new or "", f"has invalid value: {new or ''}")]


def _event_stays(new: Any, old: Any) -> Causes:
    """An Event that came in the new style is told once; only its series goes on."""
    if old is CREATED:
        return ()
    kept = [key for key in {**old, **new} if key not in ("metadata", "series")]
    return [invalid(key, new.get(key), IMMUTABLE) for key in kept if new.get(key) != old.get(key)]


_EVENTS_EVENT = every(
    _EVENT, at_creation(struct(("eventTime", there), ("type", _event_type))), _event_stays
)

# ------------------------------------------------------------------------------------ Namespace


def _namespace_finalizers(new: Any, old: Any) -> Causes:
    return [invalid("", name, fault) for name in new for fault in finalizer_faults(name)]


_NAMESPACE = struct(("spec", struct(("finalizers", given(_namespace_finalizers)))))

#: By the kind as messages call it, and the subresource.
_RULES: Mapping[tuple[str, str], Check] = {
    (kind.qualified, part): check
    for kind, part, check in (
        (kinds.CONFIG_MAP, "", _CONFIG_MAP),
        (kinds.EVENT, "", _EVENT),
        (kinds.EVENTS_EVENT, "", _EVENTS_EVENT),
        (kinds.LIMIT_RANGE, "", quota.LIMIT_RANGE),
        (kinds.NAMESPACE, "", _NAMESPACE),
        (kinds.NAMESPACE, "finalize", _NAMESPACE),
        (kinds.NODE, "", NODE),
        (kinds.NODE, "status", NODE),
        (kinds.PERSISTENT_VOLUME, "", storage.PERSISTENT_VOLUME),
        (kinds.PERSISTENT_VOLUME_CLAIM, "", storage.PERSISTENT_VOLUME_CLAIM),
        (kinds.POD, "", POD),
        (kinds.POD, "status", POD_STATUS),
        (kinds.POD, "resize", check_resize),
        (kinds.POD, "ephemeralcontainers", check_ephemeral_containers),
        (kinds.POD_TEMPLATE, "", POD_TEMPLATE),
        (kinds.RESOURCE_QUOTA, "", quota.RESOURCE_QUOTA),
        (kinds.RESOURCE_QUOTA, "status", quota.RESOURCE_QUOTA_STATUS),
        (kinds.SECRET, "", SECRET),
        (kinds.SERVICE, "", SERVICE),
        (kinds.CRON_JOB, "", CRON_JOB),
        (kinds.JOB, "", JOB),
        (kinds.JOB, "status", JOB_STATUS),
        (kinds.POD_DISRUPTION_BUDGET, "", budget.BUDGET),
        (kinds.POD_DISRUPTION_BUDGET, "status", budget.BUDGET_STATUS),
        (kinds.CLUSTER_ROLE, "", rbac.CLUSTER_ROLE),
        (kinds.CLUSTER_ROLE_BINDING, "", rbac.CLUSTER_ROLE_BINDING),
        (kinds.ROLE, "", rbac.ROLE),
        (kinds.ROLE_BINDING, "", rbac.ROLE_BINDING),
        (kinds.PRIORITY_CLASS, "", _PRIORITY_CLASS),
        (kinds.POD_GROUP, "", POD_GROUP),
        (kinds.POD_GROUP, "status", POD_GROUP_STATUS),
        (kinds.COMPOSITE_POD_GROUP, "", COMPOSITE_POD_GROUP),
        (kinds.COMPOSITE_POD_GROUP, "status", COMPOSITE_POD_GROUP_STATUS),
        (kinds.WORKLOAD, "", WORKLOAD),
        (kinds.LEASE, "", _LEASE),
        (kinds.DEVICE_CLASS, "", claim.DEVICE_CLASS),
        (kinds.RESOURCE_CLAIM, "", claim.RESOURCE_CLAIM),
        (kinds.RESOURCE_CLAIM, "status", claim.RESOURCE_CLAIM_STATUS),
        (kinds.RESOURCE_CLAIM_TEMPLATE, "", claim.RESOURCE_CLAIM_TEMPLATE),
        (kinds.RESOURCE_SLICE, "", RESOURCE_SLICE),
        (kinds.JOB_SET, "", JOB_SET),
        (kinds.JOB_SET, "status", JOB_SET_STATUS),
        (kinds.LEADER_WORKER_SET, "", LEADER_WORKER_SET),
        (kinds.LEADER_WORKER_SET, "status", LEADER_WORKER_SET_STATUS),
    )
}
