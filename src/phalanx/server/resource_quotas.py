"""ResourceQuotas: how much a namespace may use, and how much of it is used.

The usage is in the status of the quota itself. It is updated in the transaction that creates,
changes, finishes or removes an object, by compare-and-swap against uncommitted writes too. So it is
exact at every revision, and two objects never use the same part of a quota. A quota that is created
or gets a new resource counts all existing objects once.

    POST pod ─▶ usage_in_quota ─▶ within every quota that covers it? ─▶ pod and quotas in one commit
                                                └─▶ 403: exceeded quota

What an object uses, and which quotas cover it, is in `api/quota_usage.py`. A hidden record per
namespace lists its quotas, so that a namespace without quotas costs one read.
Existing objects are never removed: a quota that is set below its usage only refuses more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import orjson

from phalanx.api.conversion.hub import is_stored
from phalanx.api.core import TERMINAL_PHASES
from phalanx.api.kinds import EVENT, POD, RESOURCE_QUOTA, Kind
from phalanx.api.quota_usage import (
    Usage,
    counts_for,
    describe_excess,
    format_milli,
    has_usage_evaluator,
    matches_scope,
    quota_covers,
    quota_scopes,
    usage_in_quota,
)
from phalanx.api.resources import milli_value
from phalanx.api.wire import Object
from phalanx.server.context import ServerContext
from phalanx.server.objects import decode_record, encoder, forbidden_error
from phalanx.store.kv import KeyValue, Store, StoreWrite

#: Store prefix of the hidden records that list the quotas of a namespace.
QUOTA_INDEX_PREFIX = "/phalanx.dev/quotas/"
#: Pods that need a quota of their namespace if `limits_critical_pods` is set.
CRITICAL_PODS_SCOPE: Object = {
    "scopeName": "PriorityClass",
    "operator": "In",
    "values": ["system-node-critical", "system-cluster-critical"],
}


# ---- quotas --------------------------------------------------------------------------------------

#: Resources that every container must state if a quota limits them.
_REQUIRED_RESOURCES = (
    "cpu",
    "limits.cpu",
    "limits.memory",
    "memory",
    "requests.cpu",
    "requests.memory",
)


class _Quota(NamedTuple):
    """A quota including uncommitted writes."""

    record: KeyValue
    object: Object

    @property
    def name(self) -> str:
        return str(self.object["metadata"]["name"])

    @property
    def hard(self) -> Mapping[str, str]:
        return self.object["spec"].get("hard") or {}

    @property
    def used(self) -> Mapping[str, str]:
        return self.object["status"].get("used") or {}


def quota_writes(
    context: ServerContext, kind: Kind, *, old: Object | None, new: Object | None
) -> list[StoreWrite]:
    """The writes that update quotas when an object changes from `old` to `new` (None: absent).

    Raises Forbidden if a new or growing object exceeds a quota.
    """
    obj = new or old
    if obj is None or not _affects_quota(kind, old, new):
        return []
    quotas = _namespace_quotas(context.store, kind, obj)
    changes = [(quota, _usage_delta(quota.object, kind, old=old, new=new)) for quota in quotas]
    if kind is POD and old is None:
        _check_required_resources(obj, quotas)
        if context.limits_critical_pods:
            _check_critical_pod(obj, quotas)
    # An update of a pod is never refused: its usage changes only with its phase and its scopes.
    if old is None or kind is not POD:
        for quota, change in changes:
            if detail := describe_excess(quota.object, change):
                raise forbidden_error(kind, obj["metadata"]["name"], detail)
    index = _index_writes(context.store, obj, new) if kind is RESOURCE_QUOTA else ()
    return [*(_status_write(quota, change) for quota, change in changes if change), *index]


def recompute_status(context: ServerContext, old: Object | None, quota: Object) -> None:
    """Set the status of a quota that is about to be stored.

    Usage that the old status contains is kept if the scopes are the same; the rest is counted over
    the namespace.
    """
    hard = quota["spec"].get("hard") or {}
    known: Mapping[str, str] = {}
    if old is not None and {**old["spec"], "hard": {}} == {**quota["spec"], "hard": {}}:
        known = old["status"].get("used") or {}
    used = {name: milli_value(known.get(name, "0")) for name in hard}
    unknown = [name for name in hard if name not in known]
    # One version of each kind is enough: all versions share the stored objects.
    charged = {kind.resource: kind for kind in context.registry.kinds if _is_charged(kind)}
    for kind in charged.values():
        if any(counts_for(kind, name) for name in unknown):
            for obj in _objects_in_namespace(context.store, kind, quota):
                share = usage_in_quota(quota, kind, obj)
                _add_usage(used, {name: share[name] for name in unknown if name in share})
    formatted = {name: format_milli(used[name], like) for name, like in hard.items()}
    quota["status"] = {"hard": dict(hard), "used": formatted} if hard else {}


def release_writes(
    context: ServerContext, kind: Kind, objects: Iterable[Object]
) -> list[StoreWrite]:
    """The writes that update quotas when many objects of a kind are removed together."""
    by_namespace: dict[str, list[Object]] = {}
    for obj in objects:
        by_namespace.setdefault(obj["metadata"].get("namespace", ""), []).append(obj)
    writes = []
    for removed in by_namespace.values():
        for quota in _namespace_quotas(context.store, kind, removed[0]):
            change: Usage = {}
            for obj in removed:
                _add_usage(change, _usage_delta(quota.object, kind, old=obj, new=None))
            if change:
                writes.append(_status_write(quota, change))
    return writes


def _affects_quota(kind: Kind, old: Object | None, new: Object | None) -> bool:
    """Whether a write can change the usage of any quota; most writes cannot."""
    if not _is_charged(kind):
        return False
    if old is None or new is None:
        return True
    return has_usage_evaluator(kind) and (
        old["spec"] != new["spec"] or _is_finished(old) != _is_finished(new)
    )


def _is_finished(obj: Object) -> bool:
    return obj.get("status", {}).get("phase") in TERMINAL_PHASES


# ---- quotas and objects of a namespace -----------------------------------------------------------


def _namespace_quotas(store: Store, kind: Kind, obj: Object) -> list[_Quota]:
    """The quotas of the namespace of an object, except the object itself."""
    namespace, name = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
    names = [n for n in _quota_names(store, namespace) if kind is not RESOURCE_QUOTA or n != name]
    records = [store.pending(RESOURCE_QUOTA.store_key(namespace, name)) for name in names]
    return [_Quota(record, decode_record(record)) for record in records if record]


def _quota_names(store: Store, namespace: str) -> list[str]:
    record = store.pending(_index_key(namespace))
    return orjson.loads(record.value) if record else []


def _index_writes(store: Store, quota: Object, new: Object | None) -> list[StoreWrite]:
    """The write that adds a quota to the list of its namespace, or removes it."""
    namespace, name = quota["metadata"]["namespace"], quota["metadata"]["name"]
    record, old_names = store.pending(_index_key(namespace)), _quota_names(store, namespace)
    names = [other for other in old_names if other != name]
    if new:
        names = sorted([*names, name])
    if names == old_names:
        return []
    encode = (lambda revision: orjson.dumps(names)) if names else None
    return [StoreWrite(_index_key(namespace), encode, record.revision if record else 0)]


def _index_key(namespace: str) -> str:
    return f"{QUOTA_INDEX_PREFIX}{namespace}"


def _is_charged(kind: Kind) -> bool:
    """Whether objects of a kind count. Events are too many to be counted."""
    return kind.namespaced and is_stored(kind) and kind is not EVENT


def _objects_in_namespace(store: Store, kind: Kind, quota: Object) -> Iterator[Object]:
    """The objects of a kind in the namespace of a quota, with the quota in its new state."""
    namespace, name = quota["metadata"]["namespace"], quota["metadata"]["name"]
    for record in store.pending_range(kind.store_prefix(namespace)):
        if record.key != RESOURCE_QUOTA.store_key(namespace, name):
            yield decode_record(record)
    if kind is RESOURCE_QUOTA:
        yield quota


# ---- usage of a quota ----------------------------------------------------------------------------


def _usage_delta(quota: Object, kind: Kind, *, old: Object | None, new: Object | None) -> Usage:
    """The change of the usage of a quota, without zeros."""
    change = usage_in_quota(quota, kind, new)
    _add_usage(change, {name: -amount for name, amount in usage_in_quota(quota, kind, old).items()})
    return {name: amount for name, amount in change.items() if amount}


def _add_usage(total: Usage, more: Usage) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _status_write(quota: _Quota, change: Usage) -> StoreWrite:
    new = {name: milli_value(quota.used[name]) + more for name, more in change.items()}
    changed = {name: format_milli(amount, quota.hard[name]) for name, amount in new.items()}
    quota.object["status"] = {"hard": dict(quota.hard), "used": {**quota.used, **changed}}
    return StoreWrite(quota.record.key, encoder(quota.object), quota.record.revision)


# ---- checks --------------------------------------------------------------------------------------


def _check_required_resources(pod: Object, quotas: Sequence[_Quota]) -> None:
    """Every container must state the resources that a quota limits, or the pod as a whole."""
    if pod["spec"].get("resources"):
        return
    for quota in quotas:
        names = [name for name in _REQUIRED_RESOURCES if name in quota.hard]
        missing = {
            name: containers for name in names if (containers := _containers_without(pod, name))
        }
        if missing and quota_covers(quota.object, POD, pod):
            required = "; ".join(f"{name} for: {','.join(c)}" for name, c in missing.items())
            detail = f"failed quota: {quota.name}: must specify {required}"
            raise forbidden_error(POD, pod["metadata"]["name"], detail)


def _check_critical_pod(pod: Object, quotas: Sequence[_Quota]) -> None:
    """A pod of a system priority class needs a quota with a scope that selects the class.

    This is what Kubernetes does with `limitedResources` in the configuration of ResourceQuota: only
    the scope counts, whether or not the quota covers the pod as a whole.
    """
    if not matches_scope(CRITICAL_PODS_SCOPE, POD, pod):
        return
    scopes = (scope for quota in quotas for scope in quota_scopes(quota.object))
    name = CRITICAL_PODS_SCOPE["scopeName"]
    if not any(one["scopeName"] == name and matches_scope(one, POD, pod) for one in scopes):
        classes = " ".join(CRITICAL_PODS_SCOPE["values"])
        detail = f"insufficient quota to match these scopes: [{{{name} In [{classes}]}}]"
        raise forbidden_error(POD, pod["metadata"]["name"], detail)


def critical_pods_quota() -> Object:
    """The quota that allows pods of system priority classes in kube-system."""
    selector = {"matchExpressions": [CRITICAL_PODS_SCOPE]}
    return {
        "metadata": {"name": "critical-pods", "namespace": "kube-system"},
        "spec": {"hard": {"pods": "1G"}, "scopeSelector": selector},
    }


def _containers_without(pod: Object, name: str) -> list[str]:
    """The names of the containers that do not state a resource."""
    part, _, resource = name.rpartition(".")
    spec = pod["spec"]
    return sorted(
        container["name"]
        for container in (*spec.get("containers", ()), *spec.get("initContainers", ()))
        if resource not in (container.get("resources") or {}).get(part or "requests", {})
    )
