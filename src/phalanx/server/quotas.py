"""ResourceQuotas: how much a namespace may hold, and how much of that it does.

What is used stands in the status of the quota itself. It is changed in the very transaction that
makes, changes, ends or removes an object, by compare-and-swap on what is on its way to disk too, so
that it is true at every revision and two objects never share the last place. What a quota does not
know yet is counted when it is written, from everything that is decided, committed or not.

    POST pod ─▶ what it counts for ─▶ room in every quota that covers it? ─▶ pod and quotas, at once
                                                  └─▶ 403: exceeded quota

A hidden record per namespace lists its quotas, so that a namespace without any costs one look. An
object that is there is never taken away: a quota that is set below what is used only refuses more.
`usage.py` says what an object counts for, `scopes.py` which objects a quota is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import orjson

from phalanx.api.core import ENDED
from phalanx.api.kinds import EVENT, POD, RESOURCE_QUOTA, Kind
from phalanx.api.quantity import milli
from phalanx.api.versions.conversion import is_stored
from phalanx.api.wire import Object
from phalanx.server.context import Context
from phalanx.server.objects import decoded, encoder, forbidden
from phalanx.server.scopes import covers
from phalanx.server.usage import Usage, counts_for, is_measured, usage, written
from phalanx.store.kv import Encode, Record, Store, Write

#: What every container must say for itself where a quota is about it.
_STATED = ("cpu", "limits.cpu", "limits.memory", "memory", "requests.cpu", "requests.memory")


class _Quota(NamedTuple):
    """A quota as the next compare-and-swap will meet it."""

    record: Record
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


def charges(context: Context, kind: Kind, old: Object | None, new: Object | None) -> list[Write]:
    """The writes that keep quotas true when an object becomes another; either may be none.

    Raises Forbidden when an object that is new, or grows, has no room in a quota.
    """
    one = new or old
    if one is None or not _may_matter(kind, old, new):
        return []
    quotas = _quotas(context.store, kind, one)
    changes = [(quota, _change(quota.object, kind, old, new)) for quota in quotas]
    if kind is POD and old is None:
        _check_stated(one, quotas)
    # A pod that is there is let be: what it counts for changes only with its phase and its scopes.
    if old is None or kind is not POD:
        for quota, change in changes:
            _check_room(kind, one, quota, change)
    listed = _listing(context.store, one, new) if kind is RESOURCE_QUOTA else ()
    return [*(_write(quota, change) for quota, change in changes if change), *listed]


def take_stock(context: Context, old: Object | None, quota: Object) -> None:
    """Give a quota that is about to be stored its status: what it allows, and what is used now.

    What the old one knows is kept; counting takes a look at every object that may matter.
    """
    hard, known = quota["spec"].get("hard") or {}, _known(old, quota)
    used = {name: milli(known.get(name, "0")) for name in hard}
    unknown = [name for name in hard if name not in known]
    for kind in _kinds(context):
        if any(counts_for(kind, name) for name in unknown):
            for obj in _objects(context.store, kind, quota):
                share = _share(quota, kind, obj)
                _add(used, {name: share[name] for name in unknown if name in share})
    shown = {name: written(used[name], like) for name, like in hard.items()}
    quota["status"] = {"hard": dict(hard), "used": shown} if hard else {}


def releases(context: Context, kind: Kind, objects: Iterable[Object]) -> list[Write]:
    """The writes that keep quotas true when many objects of a kind go in one transaction."""
    gone: dict[str, list[Object]] = {}
    for obj in objects:
        gone.setdefault(obj["metadata"].get("namespace", ""), []).append(obj)
    writes = []
    for group in gone.values():
        for quota in _quotas(context.store, kind, group[0]):
            change: Usage = {}
            for obj in group:
                _add(change, _change(quota.object, kind, obj, None))
            if change:
                writes.append(_write(quota, change))
    return writes


def _known(old: Object | None, quota: Object) -> Mapping[str, str]:
    """What is used as far as it stands in the old quota, if the new one is about the same."""
    if old is None or {**old["spec"], "hard": {}} != {**quota["spec"], "hard": {}}:
        return {}
    return old["status"].get("used") or {}


def _may_matter(kind: Kind, old: Object | None, new: Object | None) -> bool:
    """Whether a write can change what is used of any quota; most writes cannot."""
    if not _is_charged(kind):
        return False
    if old is None or new is None:
        return True
    return is_measured(kind) and (old["spec"] != new["spec"] or _has_ended(old) != _has_ended(new))


def _has_ended(obj: Object) -> bool:
    return obj.get("status", {}).get("phase") in ENDED


# ---- what there is -------------------------------------------------------------------------------


def _quotas(store: Store, kind: Kind, obj: Object) -> list[_Quota]:
    """The quotas of an object's namespace, but for the one that is being written itself."""
    namespace, own = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
    names = [n for n in _names(store, namespace) if kind is not RESOURCE_QUOTA or n != own]
    records = [store.pending(RESOURCE_QUOTA.key(namespace, name)) for name in names]
    return [_Quota(record, decoded(record)) for record in records if record]


def _names(store: Store, namespace: str) -> list[str]:
    record = store.pending(_key(namespace))
    return orjson.loads(record.value) if record else []


def _listing(store: Store, quota: Object, kept: Object | None) -> list[Write]:
    """What puts a quota on the list of its namespace, or takes it off."""
    namespace, name = quota["metadata"]["namespace"], quota["metadata"]["name"]
    record, listed = store.pending(_key(namespace)), _names(store, namespace)
    names = [other for other in listed if other != name]
    if kept:
        names = sorted([*names, name])
    if names == listed:
        return []
    encode = _encoder(names) if names else None
    return [Write(_key(namespace), encode, record.revision if record else 0)]


def _encoder(names: list[str]) -> Encode:
    return lambda revision: orjson.dumps(names)


def _key(namespace: str) -> str:
    return f"/phalanx.dev/quotas/{namespace}"


def _kinds(context: Context) -> Iterable[Kind]:
    """The kinds whose objects count, in any one of their versions."""
    kinds = filter(_is_charged, context.registry.kinds)
    return {kind.resource: kind for kind in kinds}.values()


def _is_charged(kind: Kind) -> bool:
    """Events come and go in such numbers that nobody is charged for them."""
    return kind.namespaced and is_stored(kind) and kind is not EVENT


def _objects(store: Store, kind: Kind, quota: Object) -> Iterator[Object]:
    """All objects of a kind beside a quota, and that itself as it is going to be."""
    namespace, name = quota["metadata"]["namespace"], quota["metadata"]["name"]
    for record in store.pending_range(kind.prefix(namespace)):
        if record.key != RESOURCE_QUOTA.key(namespace, name):
            yield decoded(record)
    if kind is RESOURCE_QUOTA:
        yield quota


# ---- what it counts for --------------------------------------------------------------------------


def _share(quota: Object, kind: Kind, obj: Object | None) -> Usage:
    """What an object counts for in a quota."""
    hard = quota["spec"].get("hard") or {}
    if obj is None or not hard or not covers(quota, kind, obj):
        return {}
    return {name: amount for name, amount in usage(kind, obj).items() if name in hard}


def _change(quota: Object, kind: Kind, old: Object | None, new: Object | None) -> Usage:
    """By how much what is used of a quota changes, where it does."""
    change = _share(quota, kind, new)
    _add(change, {name: -amount for name, amount in _share(quota, kind, old).items()})
    return {name: amount for name, amount in change.items() if amount}


def _add(total: Usage, more: Usage) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _write(quota: _Quota, change: Usage) -> Write:
    new = {name: milli(quota.used[name]) + more for name, more in change.items()}
    shown = {name: written(amount, quota.hard[name]) for name, amount in new.items()}
    quota.object["status"] = {"hard": dict(quota.hard), "used": {**quota.used, **shown}}
    return Write(quota.record.key, encoder(quota.object), quota.record.revision)


# ---- what is refused -----------------------------------------------------------------------------


def _check_room(kind: Kind, obj: Object, quota: _Quota, change: Usage) -> None:
    used, hard = quota.used, quota.hard
    exceeded = sorted(
        name
        for name, more in change.items()
        if more > 0 and milli(used[name]) + more > milli(hard[name])
    )
    if exceeded:
        asked = {name: written(change[name], hard[name]) for name in exceeded}
        raise forbidden(kind, obj["metadata"]["name"], (
            f"exceeded quota: {quota.name}, requested: {_listed(asked, exceeded)}, "
            f"used: {_listed(used, exceeded)}, limited: {_listed(hard, exceeded)}"
        ))  # fmt: skip


def _listed(amounts: Mapping[str, str], names: Sequence[str]) -> str:
    return ",".join(f"{name}={amounts[name]}" for name in names)


def _check_stated(pod: Object, quotas: Sequence[_Quota]) -> None:
    """Every container must state what a quota is about, unless the pod does so as a whole."""
    if pod["spec"].get("resources"):
        return
    for quota in quotas:
        names = [name for name in _STATED if name in quota.hard]
        missing = [(name, silent) for name in names if (silent := _silent(pod, name))]
        if missing and covers(quota.object, POD, pod):
            wanted = "; ".join(f"{name} for: {','.join(silent)}" for name, silent in missing)
            why = f"failed quota: {quota.name}: must specify {wanted}"
            raise forbidden(POD, pod["metadata"]["name"], why)


def _silent(pod: Object, name: str) -> list[str]:
    """The containers that do not state a resource."""
    part, _, resource = name.rpartition(".")
    spec = pod["spec"]
    return sorted(
        container["name"]
        for container in (*spec.get("containers", ()), *spec.get("initContainers", ()))
        if resource not in (container.get("resources") or {}).get(part or "requests", {})
    )
