"""What an object counts for: amounts in thousandths, by the names that quotas use.

Pure functions of one object. `quotas.py` adds them up over a namespace, `limitranges.py` holds
those of a pod against its bounds. Nothing here knows a quota or reads the store.

    pod that asks for 500m      count/pods 1000, pods 1000, cpu 500, requests.cpu 500
    the same when it has ended  count/pods 1000
    config map                  count/configmaps 1000, configmaps 1000

The scopes of a quota: which pods and claims it is about.

A quota without scopes is about everything in its namespace; with scopes it is about objects of
which all of them hold. `quotas.py` asks; nothing here counts.

ResourceQuotas: how much a namespace may hold, and how much of that it does.

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

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import orjson
from msgspec.structs import replace

from phalanx.api.conversion.hub import is_stored
from phalanx.api.core import TERMINAL_PHASES, Container, Pod, ResourceRequirements
from phalanx.api.defaults.pod import qos_class
from phalanx.api.kinds import EVENT, PERSISTENT_VOLUME_CLAIM, POD, RESOURCE_QUOTA, Kind
from phalanx.api.quantity import canonical_quantity, integer_value, milli_value
from phalanx.api.resources import Amounts, pod_requests, to_amounts
from phalanx.api.wire import Object
from phalanx.server.context import ServerContext
from phalanx.server.objects import decode_record, encoder, forbidden_error
from phalanx.store.kv import KeyValue, Store, StoreWrite, ValueEncoder

#: Thousandths per name.
Usage = dict[str, int]

MILLI_PER_UNIT = 1000
_STORAGE_CLASS_SUFFIX = "storageclass.storage.k8s.io"


class _UsageEvaluator(NamedTuple):
    """What objects of a kind count for besides their number, by what is in them."""

    names: re.Pattern[str]
    evaluate: Callable[[Object], Usage]


def object_usage(kind: Kind, obj: Object) -> Usage:
    """What one object counts for."""
    measure = _EVALUATORS.get(kind.resource)
    own = measure.evaluate(obj) if measure else {kind.resource: MILLI_PER_UNIT}
    return {f"count/{kind.resource}": MILLI_PER_UNIT, **own}


def has_usage_evaluator(kind: Kind) -> bool:
    """Whether it depends on the content of an object of this kind what it counts for."""
    return kind.resource in _EVALUATORS


def counts_for(kind: Kind, name: str) -> bool:
    """Whether objects of a kind can count for a name."""
    if name in (kind.resource, f"count/{kind.resource}"):
        return True
    measure = _EVALUATORS.get(kind.resource)
    return bool(measure and measure.names.fullmatch(name))


def pod_requests_and_limits(pod: Object) -> tuple[Usage, Usage]:
    """What the containers of a pod ask for and may use in all; what is 0 is left out."""
    known = msgspec.convert(pod, Pod)
    bare = replace(known, spec=replace(known.spec, overhead={}))
    return _to_milli(pod_requests(bare)), _to_milli(pod_requests(_limits_as_requests(bare)))


def format_milli(amount: int, like: str) -> str:
    """Thousandths as a quantity in the style of another: `1536Mi` beside `4Gi`, `2k` beside `4`."""
    whole, rest = divmod(amount, MILLI_PER_UNIT)
    if rest or not like.endswith("i"):
        return canonical_quantity(f"{amount}m")
    return str(whole) if whole % 1024 else canonical_quantity(f"{whole // 1024}Ki")


def _to_milli(units: Amounts) -> Usage:
    """Amounts without the pod itself, all in thousandths as CPU already is."""
    return {
        name: count if name == "cpu" else count * MILLI_PER_UNIT
        for name, count in units.items()
        if name != "pods"
    }


def _limits_as_requests(pod: Pod) -> Pod:
    """The same pod with its limits as requests: both add up in the same way."""
    spec = pod.spec
    changed = replace(
        spec,
        containers=tuple(map(_container_limits_as_requests, spec.containers)),
        init_containers=tuple(map(_container_limits_as_requests, spec.init_containers)),
        resources=ResourceRequirements(requests=spec.resources.limits) if spec.resources else None,
    )
    return replace(pod, spec=changed)


def _container_limits_as_requests(container: Container) -> Container:
    return replace(container, resources=ResourceRequirements(requests=container.resources.limits))


def _pod_usage(pod: Object) -> Usage:
    """Only a pod that has not ended counts for more than its being there."""
    if pod.get("status", {}).get("phase") in TERMINAL_PHASES:
        return {}
    requests, limits = pod_requests_and_limits(pod)
    overhead = _to_milli(to_amounts(pod["spec"].get("overhead") or {}))
    used = {"pods": MILLI_PER_UNIT}
    for name in {**requests, **overhead}:
        asked = requests.get(name, 0) + overhead.get(name, 0)
        used[name] = used[f"requests.{name}"] = asked
    for name, limit in limits.items():
        used[f"limits.{name}"] = limit + overhead.get(name, 0)
    return used


def _claim_usage(claim: Object) -> Usage:
    """A claim counts in all and once more for its storage class."""
    spec = claim["spec"]
    asked = spec.get("resources", {}).get("requests", {}).get("storage", "0")
    used = {
        "persistentvolumeclaims": MILLI_PER_UNIT,
        "requests.storage": integer_value(asked) * MILLI_PER_UNIT,
    }
    if storage_class := spec.get("storageClassName"):
        used |= {f"{storage_class}.{_STORAGE_CLASS_SUFFIX}/{name}": n for name, n in used.items()}
    return used


def _service_usage(service: Object) -> Usage:
    """A service takes a port of every node for each of its own, unless it wants none."""
    spec = service["spec"]
    ports, sort = spec.get("ports") or [], spec.get("type")
    if sort == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is False:
        ports = [port for port in ports if port.get("nodePort")]
    is_open, is_balanced = sort in ("NodePort", "LoadBalancer"), sort == "LoadBalancer"
    return {
        "services": MILLI_PER_UNIT,
        "services.nodeports": len(ports) * MILLI_PER_UNIT if is_open else 0,
        "services.loadbalancers": MILLI_PER_UNIT if is_balanced else 0,
    }


_EVALUATORS: Mapping[str, _UsageEvaluator] = {
    "pods": _UsageEvaluator(
        re.compile(
            r"cpu|memory|ephemeral-storage|hugepages-.+|limits\..+|requests\.(?!storage$).+"
            r"|(?!count/).+/.+"
        ),
        _pod_usage,
    ),
    "persistentvolumeclaims": _UsageEvaluator(
        re.compile(rf"requests\.storage|.*\.{re.escape(_STORAGE_CLASS_SUFFIX)}/.*"), _claim_usage
    ),
    "services": _UsageEvaluator(re.compile(r"services\..*"), _service_usage),
}


#: What is found of a scope in the spec of an object: whether it holds, or the name of a class.
_ScopeValue = str | bool

_AFFINITIES = ("podAffinity", "podAntiAffinity")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def quota_covers(quota: Object, kind: Kind, obj: Object) -> bool:
    """Whether a quota is about an object."""
    spec = obj.get("spec") or {}
    return all(_scope_matches(one, kind, spec) for one in _scope_requirements(quota["spec"]))


def _scope_requirements(spec: Object) -> list[Object]:
    plain = [{"scopeName": name, "operator": "Exists"} for name in spec.get("scopes") or ()]
    selector = spec.get("scopeSelector") or {}
    return [*plain, *(selector.get("matchExpressions") or ())]


def _scope_matches(requirement: Object, kind: Kind, spec: Object) -> bool:
    """A scope that a kind does not have holds of none of its objects."""
    find = _SCOPES.get((kind, requirement["scopeName"]))
    matches = _OPERATORS[requirement["operator"]]
    return find is not None and matches(find(spec), requirement.get("values") or ())


_OPERATORS: Mapping[str, Callable[[_ScopeValue, Sequence[str]], bool]] = {
    "Exists": lambda found, values: bool(found),
    "DoesNotExist": lambda found, values: not found,
    "In": lambda found, values: found in values,
    "NotIn": lambda found, values: found not in values,
}


def _has_deadline(spec: Object) -> bool:
    return int(spec.get("activeDeadlineSeconds", -1)) >= 0


def _is_best_effort(spec: Object) -> bool:
    return qos_class(spec) == "BestEffort"


def _has_cross_namespace_affinity(spec: Object) -> bool:
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


_SCOPES: Mapping[tuple[Kind, str], Callable[[Object], _ScopeValue]] = {
    (POD, "Terminating"): _has_deadline,
    (POD, "NotTerminating"): lambda spec: not _has_deadline(spec),
    (POD, "BestEffort"): _is_best_effort,
    (POD, "NotBestEffort"): lambda spec: not _is_best_effort(spec),
    (POD, "PriorityClass"): lambda spec: str(spec.get("priorityClassName", "")),
    (POD, "CrossNamespacePodAffinity"): _has_cross_namespace_affinity,
    (PERSISTENT_VOLUME_CLAIM, "VolumeAttributesClass"): lambda spec: str(
        spec.get("volumeAttributesClassName", "")
    ),
}


#: What every container must say for itself where a quota is about it.
_REQUIRED_RESOURCES = (
    "cpu",
    "limits.cpu",
    "limits.memory",
    "memory",
    "requests.cpu",
    "requests.memory",
)


class _Quota(NamedTuple):
    """A quota as the next compare-and-swap will meet it."""

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
    context: ServerContext, kind: Kind, old: Object | None, new: Object | None
) -> list[StoreWrite]:
    """The writes that keep quotas true when an object becomes another; either may be none.

    Raises Forbidden when an object that is new, or grows, has no room in a quota.
    """
    one = new or old
    if one is None or not _affects_quota(kind, old, new):
        return []
    quotas = _namespace_quotas(context.store, kind, one)
    changes = [(quota, _usage_delta(quota.object, kind, old, new)) for quota in quotas]
    if kind is POD and old is None:
        _check_required_resources(one, quotas)
    # A pod that is there is let be: what it counts for changes only with its phase and its scopes.
    if old is None or kind is not POD:
        for quota, change in changes:
            _check_quota(kind, one, quota, change)
    listed = _index_writes(context.store, one, new) if kind is RESOURCE_QUOTA else ()
    return [*(_status_write(quota, change) for quota, change in changes if change), *listed]


def recompute_status(context: ServerContext, old: Object | None, quota: Object) -> None:
    """Give a quota that is about to be stored its status: what it allows, and what is used now.

    What the old one knows is kept; counting takes a look at every object that may matter.
    """
    hard, known = quota["spec"].get("hard") or {}, _known_usage(old, quota)
    used = {name: milli_value(known.get(name, "0")) for name in hard}
    unknown = [name for name in hard if name not in known]
    for kind in _charged_kinds(context):
        if any(counts_for(kind, name) for name in unknown):
            for obj in _objects_beside(context.store, kind, quota):
                share = _usage_in_quota(quota, kind, obj)
                _add_usage(used, {name: share[name] for name in unknown if name in share})
    shown = {name: format_milli(used[name], like) for name, like in hard.items()}
    quota["status"] = {"hard": dict(hard), "used": shown} if hard else {}


def release_writes(
    context: ServerContext, kind: Kind, objects: Iterable[Object]
) -> list[StoreWrite]:
    """The writes that keep quotas true when many objects of a kind go in one transaction."""
    gone: dict[str, list[Object]] = {}
    for obj in objects:
        gone.setdefault(obj["metadata"].get("namespace", ""), []).append(obj)
    writes = []
    for group in gone.values():
        for quota in _namespace_quotas(context.store, kind, group[0]):
            change: Usage = {}
            for obj in group:
                _add_usage(change, _usage_delta(quota.object, kind, obj, None))
            if change:
                writes.append(_status_write(quota, change))
    return writes


def _known_usage(old: Object | None, quota: Object) -> Mapping[str, str]:
    """What is used as far as it stands in the old quota, if the new one is about the same."""
    if old is None or {**old["spec"], "hard": {}} != {**quota["spec"], "hard": {}}:
        return {}
    return old["status"].get("used") or {}


def _affects_quota(kind: Kind, old: Object | None, new: Object | None) -> bool:
    """Whether a write can change what is used of any quota; most writes cannot."""
    if not _is_charged(kind):
        return False
    if old is None or new is None:
        return True
    return has_usage_evaluator(kind) and (
        old["spec"] != new["spec"] or _has_ended(old) != _has_ended(new)
    )


def _has_ended(obj: Object) -> bool:
    return obj.get("status", {}).get("phase") in TERMINAL_PHASES


# ---- what there is -------------------------------------------------------------------------------


def _namespace_quotas(store: Store, kind: Kind, obj: Object) -> list[_Quota]:
    """The quotas of an object's namespace, but for the one that is being written itself."""
    namespace, own = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
    names = [n for n in _quota_names(store, namespace) if kind is not RESOURCE_QUOTA or n != own]
    records = [store.pending(RESOURCE_QUOTA.store_key(namespace, name)) for name in names]
    return [_Quota(record, decode_record(record)) for record in records if record]


def _quota_names(store: Store, namespace: str) -> list[str]:
    record = store.pending(_index_key(namespace))
    return orjson.loads(record.value) if record else []


def _index_writes(store: Store, quota: Object, new: Object | None) -> list[StoreWrite]:
    """What puts a quota on the list of its namespace, or takes it off."""
    namespace, name = quota["metadata"]["namespace"], quota["metadata"]["name"]
    record, listed = store.pending(_index_key(namespace)), _quota_names(store, namespace)
    names = [other for other in listed if other != name]
    if new:
        names = sorted([*names, name])
    if names == listed:
        return []
    encode = _names_encoder(names) if names else None
    return [StoreWrite(_index_key(namespace), encode, record.revision if record else 0)]


def _names_encoder(names: list[str]) -> ValueEncoder:
    return lambda revision: orjson.dumps(names)


def _index_key(namespace: str) -> str:
    return f"/phalanx.dev/quotas/{namespace}"


def _charged_kinds(context: ServerContext) -> Iterable[Kind]:
    """The kinds whose objects count, in any one of their versions."""
    kinds = filter(_is_charged, context.registry.kinds)
    return {kind.resource: kind for kind in kinds}.values()


def _is_charged(kind: Kind) -> bool:
    """Events come and go in such numbers that nobody is charged for them."""
    return kind.namespaced and is_stored(kind) and kind is not EVENT


def _objects_beside(store: Store, kind: Kind, quota: Object) -> Iterator[Object]:
    """All objects of a kind beside a quota, and that itself as it is going to be."""
    namespace, name = quota["metadata"]["namespace"], quota["metadata"]["name"]
    for record in store.pending_range(kind.store_prefix(namespace)):
        if record.key != RESOURCE_QUOTA.store_key(namespace, name):
            yield decode_record(record)
    if kind is RESOURCE_QUOTA:
        yield quota


# ---- what it counts for --------------------------------------------------------------------------


def _usage_in_quota(quota: Object, kind: Kind, obj: Object | None) -> Usage:
    """What an object counts for in a quota."""
    hard = quota["spec"].get("hard") or {}
    if obj is None or not hard or not quota_covers(quota, kind, obj):
        return {}
    return {name: amount for name, amount in object_usage(kind, obj).items() if name in hard}


def _usage_delta(quota: Object, kind: Kind, old: Object | None, new: Object | None) -> Usage:
    """By how much what is used of a quota changes, where it does."""
    change = _usage_in_quota(quota, kind, new)
    _add_usage(
        change, {name: -amount for name, amount in _usage_in_quota(quota, kind, old).items()}
    )
    return {name: amount for name, amount in change.items() if amount}


def _add_usage(total: Usage, more: Usage) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _status_write(quota: _Quota, change: Usage) -> StoreWrite:
    new = {name: milli_value(quota.used[name]) + more for name, more in change.items()}
    shown = {name: format_milli(amount, quota.hard[name]) for name, amount in new.items()}
    quota.object["status"] = {"hard": dict(quota.hard), "used": {**quota.used, **shown}}
    return StoreWrite(quota.record.key, encoder(quota.object), quota.record.revision)


# ---- what is refused -----------------------------------------------------------------------------


def _check_quota(kind: Kind, obj: Object, quota: _Quota, change: Usage) -> None:
    used, hard = quota.used, quota.hard
    exceeded = sorted(
        name
        for name, more in change.items()
        if more > 0 and milli_value(used[name]) + more > milli_value(hard[name])
    )
    if exceeded:
        asked = {name: format_milli(change[name], hard[name]) for name in exceeded}
        raise forbidden_error(kind, obj["metadata"]["name"], (
            f"exceeded quota: {quota.name}, requested: {_format_amounts(asked, exceeded)}, "
            f"used: {_format_amounts(used, exceeded)}, limited: {_format_amounts(hard, exceeded)}"
        ))  # fmt: skip


def _format_amounts(amounts: Mapping[str, str], names: Sequence[str]) -> str:
    return ",".join(f"{name}={amounts[name]}" for name in names)


def _check_required_resources(pod: Object, quotas: Sequence[_Quota]) -> None:
    """Every container must state what a quota is about, unless the pod does so as a whole."""
    if pod["spec"].get("resources"):
        return
    for quota in quotas:
        names = [name for name in _REQUIRED_RESOURCES if name in quota.hard]
        missing = [(name, silent) for name in names if (silent := _containers_without(pod, name))]
        if missing and quota_covers(quota.object, POD, pod):
            wanted = "; ".join(f"{name} for: {','.join(silent)}" for name, silent in missing)
            why = f"failed quota: {quota.name}: must specify {wanted}"
            raise forbidden_error(POD, pod["metadata"]["name"], why)


def _containers_without(pod: Object, name: str) -> list[str]:
    """The containers that do not state a resource."""
    part, _, resource = name.rpartition(".")
    spec = pod["spec"]
    return sorted(
        container["name"]
        for container in (*spec.get("containers", ()), *spec.get("initContainers", ()))
        if resource not in (container.get("resources") or {}).get(part or "requests", {})
    )
