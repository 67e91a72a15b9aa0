"""Writes the roles and bindings that every cluster has (`bootstrap_policy.py`).

`ensure_bootstrap_policy` runs at every start and writes missing roles, rules and subjects in one
transaction. Additions of users stay; objects with the annotation `autoupdate: "false"` are not
changed. It uses no randomness: the uids of a seeded cluster do not depend on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import lru_cache

from phalanx.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, RBAC_GROUP, ROLE_BINDING, Kind
from phalanx.api.wire import Object
from phalanx.server.objects import decode_record, encoder
from phalanx.server.security.bootstrap_policy import (
    CLUSTER_BINDINGS,
    CLUSTER_ROLES,
    NAMESPACED_BINDINGS,
    BootstrapRole,
)
from phalanx.server.security.rbac import PolicyRule, uncovered_rules
from phalanx.store.kv import Store, StoreWrite

_AUTOUPDATE = "rbac.authorization.kubernetes.io/autoupdate"
_BOOTSTRAPPING = "kubernetes.io/bootstrapping"


async def ensure_bootstrap_policy(store: Store, now: str) -> None:
    """Create or complete the roles and bindings in the store."""
    writes = [
        _reconcile_write(store, kind, wanted, now=now) for kind, wanted in _bootstrap_objects()
    ]
    if needed := [write for write in writes if write]:
        await store.commit(needed)


def _bootstrap_objects() -> Iterator[tuple[Kind, Object]]:
    for name, role in CLUSTER_ROLES.items():
        yield CLUSTER_ROLE, _cluster_role_object(name, role)
    for name, subjects in CLUSTER_BINDINGS.items():
        yield CLUSTER_ROLE_BINDING, _binding_object(name, subjects)
    for (namespace, name), subjects in NAMESPACED_BINDINGS.items():
        yield ROLE_BINDING, _binding_object(name, subjects, namespace)


def _cluster_role_object(name: str, role: BootstrapRole) -> Object:
    obj: Object = {"metadata": _metadata(name, role.aggregation_labels())}
    if aggregation := role.aggregation_rule():
        obj["aggregationRule"] = aggregation
    return {**obj, "rules": _rule_objects(name)}


@lru_cache(maxsize=len(CLUSTER_ROLES))
def _rule_objects(name: str) -> list[Object]:
    """Return the rules of a role as they are stored; they are shared, and must not be changed."""
    return [rule.to_object() for rule in _role_rules(CLUSTER_ROLES[name])]


def _role_rules(role: BootstrapRole) -> Iterable[PolicyRule]:
    """Return the rules of a role; of an aggregated role those of its sources, by name."""
    if not role.aggregates:
        return role.rules
    taken = [
        other
        for _, other in sorted(CLUSTER_ROLES.items())
        if {*role.aggregates} & {*other.aggregates_to}
    ]
    return dict.fromkeys(rule for other in taken for rule in _role_rules(other))


def _binding_object(name: str, subjects: tuple[Object, ...], namespace: str = "") -> Object:
    reference = {"apiGroup": RBAC_GROUP, "kind": CLUSTER_ROLE.name, "name": name}
    obj: Object = {"metadata": _metadata(name, {}, namespace), "roleRef": reference}
    return {**obj, "subjects": [dict(one) for one in subjects]} if subjects else obj


def _metadata(name: str, labels: dict[str, str], namespace: str = "") -> Object:
    all_labels = {_BOOTSTRAPPING: "rbac-defaults", **labels}
    namespace_field = {"namespace": namespace} if namespace else {}
    return {
        "name": name,
        **namespace_field,
        "labels": all_labels,
        "annotations": {_AUTOUPDATE: "true"},
    }


def _reconcile_write(store: Store, kind: Kind, wanted: Object, *, now: str) -> StoreWrite | None:
    """Return the write that completes an object, if something is missing."""
    name, namespace = wanted["metadata"]["name"], wanted["metadata"].get("namespace", "")
    key = kind.store_key(namespace, name)
    record = store.pending(key)
    if record is None:
        identity = {"uid": deterministic_uid(kind, name, now), "creationTimestamp": now}
        wanted["metadata"] |= identity
        return StoreWrite(key, encoder(wanted), 0)
    existing = decode_record(record)
    if not _add_missing(existing, wanted):
        return None
    return StoreWrite(record.key, encoder(existing), record.revision)


def _add_missing(existing: Object, wanted: Object) -> bool:
    """Add missing entries in place; return whether any were missing."""
    if existing["metadata"].get("annotations", {}).get(_AUTOUPDATE) == "false":
        return False
    missing = {
        "rules": _missing_rules(existing, wanted),
        "subjects": [
            s for s in wanted.get("subjects", ()) if s not in existing.get("subjects", ())
        ],
    }
    for field, values in missing.items():
        if values:
            existing[field] = [*(existing.get(field) or ()), *values]
    return any(missing.values())


def _missing_rules(existing: Object, wanted: Object) -> list[Object]:
    granted = [PolicyRule.from_object(rule) for rule in existing.get("rules") or ()]
    if "aggregationRule" in existing:
        return []
    rules = [PolicyRule.from_object(rule) for rule in wanted.get("rules", ())]
    return [rule.to_object() for rule in rules if uncovered_rules(granted, [rule])]


def deterministic_uid(kind: Kind, name: str, now: str) -> str:
    """Return a UUID that is derived from the object's name and creation time."""
    digits = hashlib.sha256(f"{kind.resource} {name} {now}".encode()).hexdigest()
    return "-".join((digits[:8], digits[8:12], f"5{digits[13:16]}", f"8{digits[17:20]}",
                     digits[20:32]))  # fmt: skip
