"""Puts the roles and bindings of the table into a store: what is missing, in one transaction.

At every start. What somebody took away from a role or a binding comes back, what they added stays;
an object that carries the annotation `autoupdate: "false"` is left alone. Draws no lots: a cluster
of some seed has the same uids with this as without.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from phalanx.api.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, RBAC, ROLE_BINDING, Kind
from phalanx.api.wire import Object
from phalanx.server.objects import decoded, encoder
from phalanx.server.security.roles import BINDINGS, CLUSTER_BINDINGS, CLUSTER_ROLES, BootRole
from phalanx.server.security.rules import Rule, uncovered
from phalanx.store.kv import Store, Write

_AUTOUPDATE = "rbac.authorization.kubernetes.io/autoupdate"
_BOOTSTRAPPING = "kubernetes.io/bootstrapping"


async def ensure(store: Store, now: str) -> None:
    """Have all of the table in the store."""
    writes = [_write(store, kind, wanted, now) for kind, wanted in _table()]
    if lacking := [write for write in writes if write]:
        await store.commit(lacking)


def _table() -> Iterator[tuple[Kind, Object]]:
    for name, role in CLUSTER_ROLES.items():
        yield CLUSTER_ROLE, _role(name, role)
    for name, subjects in CLUSTER_BINDINGS.items():
        yield CLUSTER_ROLE_BINDING, _binding(name, subjects)
    for (namespace, name), subjects in BINDINGS.items():
        yield ROLE_BINDING, _binding(name, subjects, namespace)


def _role(name: str, role: BootRole) -> Object:
    obj: Object = {"metadata": _metadata(name, role.all_labels())}
    if aggregation := role.aggregation():
        obj["aggregationRule"] = aggregation
    return {**obj, "rules": [rule.shown() for rule in _rules(role)]}


def _rules(role: BootRole) -> Iterable[Rule]:
    """The rules of a role, or of all that it takes the rules of, in the order of their names."""
    if not role.takes:
        return role.rules
    taken = [other for _, other in sorted(CLUSTER_ROLES.items()) if {*role.takes} & {*other.labels}]
    return dict.fromkeys(rule for other in taken for rule in _rules(other))


def _binding(name: str, subjects: tuple[Object, ...], namespace: str = "") -> Object:
    reference = {"apiGroup": RBAC, "kind": CLUSTER_ROLE.name, "name": name}
    obj: Object = {"metadata": _metadata(name, {}, namespace), "roleRef": reference}
    return {**obj, "subjects": [dict(one) for one in subjects]} if subjects else obj


def _metadata(name: str, labels: dict[str, str], namespace: str = "") -> Object:
    own = {_BOOTSTRAPPING: "rbac-defaults", **labels}
    where = {"namespace": namespace} if namespace else {}
    return {"name": name, **where, "labels": own, "annotations": {_AUTOUPDATE: "true"}}


def _write(store: Store, kind: Kind, wanted: Object, now: str) -> Write | None:
    """What brings an object to where it should be, if it is not there."""
    name, namespace = wanted["metadata"]["name"], wanted["metadata"].get("namespace", "")
    key = kind.key(namespace, name)
    record = store.pending(key)
    if record is None:
        born = {"uid": _uid(kind, name, now), "creationTimestamp": now}
        wanted["metadata"] |= born
        return Write(key, encoder(wanted), 0)
    there = decoded(record)
    if not _complete(there, wanted):
        return None
    return Write(record.key, encoder(there), record.revision)


def _complete(there: Object, wanted: Object) -> bool:
    """Add what is missing, in place; whether anything was."""
    if there["metadata"].get("annotations", {}).get(_AUTOUPDATE) == "false":
        return False
    missing = {
        "rules": _missing_rules(there, wanted),
        "subjects": [s for s in wanted.get("subjects", ()) if s not in there.get("subjects", ())],
    }
    for field, values in missing.items():
        if values:
            there[field] = [*(there.get(field) or ()), *values]
    return any(missing.values())


def _missing_rules(there: Object, wanted: Object) -> list[Object]:
    held = [Rule.read(rule) for rule in there.get("rules") or ()]
    if "aggregationRule" in there:
        return []
    asked = [Rule.read(rule) for rule in wanted.get("rules", ())]
    return [rule.shown() for rule in asked if uncovered(held, [rule])]


def _uid(kind: Kind, name: str, now: str) -> str:
    """A UUID that says when this object of that name was made."""
    digits = hashlib.sha256(f"{kind.resource} {name} {now}".encode()).hexdigest()
    return "-".join((digits[:8], digits[8:12], f"5{digits[13:16]}", f"8{digits[17:20]}",
                     digits[20:32]))  # fmt: skip
