"""ResourceQuotas: how much a namespace may use, and how much of it is used.

The usage is in the status of the quota itself. It is updated in the transaction that creates,
changes, finishes or removes an object, by compare-and-swap against uncommitted writes too. So it is
exact at every revision, and two objects never use the same part of a quota. A quota that is created
or gets a new resource counts all existing objects once.

    POST pod ─▶ object_usage ─▶ within every quota that covers it? ─▶ pod and quotas in one commit
                                              └─▶ 403: exceeded quota

Usage is in thousandths, by the resource names that quotas use:

    pod that requests 500m CPU   count/pods 1000, pods 1000, cpu 500, requests.cpu 500
    the same pod, finished       count/pods 1000
    config map                   count/configmaps 1000, configmaps 1000

A quota with scopes covers the objects that match all of them; without scopes, every object. A
hidden record per namespace lists its quotas, so that a namespace without quotas costs one read.
Existing objects are never removed: a quota that is set below its usage only refuses more.
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
from phalanx.store.kv import KeyValue, Store, StoreWrite

#: Resource name -> thousandths.
Usage = dict[str, int]

MILLI_PER_UNIT = 1000
#: Store prefix of the hidden records that list the quotas of a namespace.
QUOTA_INDEX_PREFIX = "/phalanx.dev/quotas/"
_STORAGE_CLASS_SUFFIX = "storageclass.storage.k8s.io"


class _UsageEvaluator(NamedTuple):
    """Computes the usage of the objects of one kind, beyond their number."""

    names: re.Pattern[str]
    evaluate: Callable[[Object], Usage]


def object_usage(kind: Kind, obj: Object) -> Usage:
    """The usage of one object."""
    evaluator = _EVALUATORS.get(kind.resource)
    usage = evaluator.evaluate(obj) if evaluator else {kind.resource: MILLI_PER_UNIT}
    return {f"count/{kind.resource}": MILLI_PER_UNIT, **usage}


def has_usage_evaluator(kind: Kind) -> bool:
    """Whether the usage of an object of this kind depends on its content."""
    return kind.resource in _EVALUATORS


def counts_for(kind: Kind, name: str) -> bool:
    """Whether objects of a kind can use a resource."""
    if name in (kind.resource, f"count/{kind.resource}"):
        return True
    evaluator = _EVALUATORS.get(kind.resource)
    return bool(evaluator and evaluator.names.fullmatch(name))


def pod_requests_and_limits(pod: Object) -> tuple[Usage, Usage]:
    """The total requests and limits of a pod without overhead; zeros are left out."""
    decoded = msgspec.convert(pod, Pod)
    decoded = replace(decoded, spec=replace(decoded.spec, overhead={}))
    limits = pod_requests(_limits_as_requests(decoded))
    return _to_milli(pod_requests(decoded)), _to_milli(limits)


def format_milli(amount: int, like: str) -> str:
    """Thousandths as a quantity in the format of another: `1536Mi` for `4Gi`, `2k` for `4`."""
    whole, rest = divmod(amount, MILLI_PER_UNIT)
    if rest or not like.endswith("i"):
        return canonical_quantity(f"{amount}m")
    return str(whole) if whole % 1024 else canonical_quantity(f"{whole // 1024}Ki")


def _to_milli(units: Amounts) -> Usage:
    """All amounts in thousandths, as CPU already is; without the resource `pods`."""
    return {
        name: count if name == "cpu" else count * MILLI_PER_UNIT
        for name, count in units.items()
        if name != "pods"
    }


def _limits_as_requests(pod: Pod) -> Pod:
    """The pod with its limits as requests: both add up in the same way."""
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
    """A finished pod uses nothing but `count/pods`."""
    if pod.get("status", {}).get("phase") in TERMINAL_PHASES:
        return {}
    requests, limits = pod_requests_and_limits(pod)
    overhead = _to_milli(to_amounts(pod["spec"].get("overhead") or {}))
    used = {"pods": MILLI_PER_UNIT}
    for name in {**requests, **overhead}:
        request = requests.get(name, 0) + overhead.get(name, 0)
        used[name] = used[f"requests.{name}"] = request
    for name, limit in limits.items():
        used[f"limits.{name}"] = limit + overhead.get(name, 0)
    return used


def _claim_usage(claim: Object) -> Usage:
    """A claim counts in total and once more for its storage class."""
    spec = claim["spec"]
    storage = spec.get("resources", {}).get("requests", {}).get("storage", "0")
    used = {
        "persistentvolumeclaims": MILLI_PER_UNIT,
        "requests.storage": integer_value(storage) * MILLI_PER_UNIT,
    }
    if storage_class := spec.get("storageClassName"):
        used |= {f"{storage_class}.{_STORAGE_CLASS_SUFFIX}/{name}": n for name, n in used.items()}
    return used


def _service_usage(service: Object) -> Usage:
    """Each port of a NodePort or LoadBalancer service uses a node port, unless disabled."""
    spec = service["spec"]
    ports = spec.get("ports") or []
    is_load_balancer = spec.get("type") == "LoadBalancer"
    has_node_ports = is_load_balancer or spec.get("type") == "NodePort"
    if is_load_balancer and spec.get("allocateLoadBalancerNodePorts") is False:
        ports = [port for port in ports if port.get("nodePort")]
    return {
        "services": MILLI_PER_UNIT,
        "services.nodeports": len(ports) * MILLI_PER_UNIT if has_node_ports else 0,
        "services.loadbalancers": MILLI_PER_UNIT if is_load_balancer else 0,
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


# ---- scopes --------------------------------------------------------------------------------------

#: The value of a scope in the spec of an object: whether it matches, or the name of a class.
_ScopeValue = str | bool

_AFFINITIES = ("podAffinity", "podAntiAffinity")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def quota_covers(quota: Object, kind: Kind, obj: Object) -> bool:
    """Whether an object matches all scopes of a quota."""
    spec, scopes = obj.get("spec") or {}, quota["spec"].get("scopes") or ()
    selector = quota["spec"].get("scopeSelector") or {}
    requirements = [{"scopeName": name, "operator": "Exists"} for name in scopes]
    for requirement in (*requirements, *(selector.get("matchExpressions") or ())):
        find_value = _SCOPES.get((kind, requirement["scopeName"]))
        matches = _OPERATORS[requirement["operator"]]
        # A scope that the kind does not have never matches.
        if find_value is None:
            return False
        if not matches(find_value(spec), requirement.get("values") or ()):
            return False
    return True


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
    return any(
        term.get("namespaces") or term.get("namespaceSelector") is not None
        for term in _affinity_terms(spec.get("affinity") or {})
    )


def _affinity_terms(affinity: Object) -> Iterator[Object]:
    for field in _AFFINITIES:
        terms = affinity.get(field) or {}
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
    context: ServerContext, kind: Kind, old: Object | None, new: Object | None
) -> list[StoreWrite]:
    """The writes that update quotas when an object changes from `old` to `new` (None: absent).

    Raises Forbidden if a new or growing object exceeds a quota.
    """
    obj = new or old
    if obj is None or not _affects_quota(kind, old, new):
        return []
    quotas = _namespace_quotas(context.store, kind, obj)
    changes = [(quota, _usage_delta(quota.object, kind, old, new)) for quota in quotas]
    if kind is POD and old is None:
        _check_required_resources(obj, quotas)
    # An update of a pod is never refused: its usage changes only with its phase and its scopes.
    if old is None or kind is not POD:
        for quota, change in changes:
            _check_quota(kind, obj, quota, change)
    index = _index_writes(context.store, obj, new) if kind is RESOURCE_QUOTA else ()
    return [*(_status_write(quota, change) for quota, change in changes if change), *index]


def recompute_status(context: ServerContext, old: Object | None, quota: Object) -> None:
    """Set the status of a quota that is about to be stored.

    Usage that the old status contains is kept; the rest is counted over the namespace.
    """
    hard, known = quota["spec"].get("hard") or {}, _get_known_usage(old, quota)
    used = {name: milli_value(known.get(name, "0")) for name in hard}
    unknown = [name for name in hard if name not in known]
    # One version of each kind is enough: all versions share the stored objects.
    charged = {kind.resource: kind for kind in context.registry.kinds if _is_charged(kind)}
    for kind in charged.values():
        if any(counts_for(kind, name) for name in unknown):
            for obj in _objects_in_namespace(context.store, kind, quota):
                share = _usage_in_quota(quota, kind, obj)
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
                _add_usage(change, _usage_delta(quota.object, kind, obj, None))
            if change:
                writes.append(_status_write(quota, change))
    return writes


def _get_known_usage(old: Object | None, quota: Object) -> Mapping[str, str]:
    """The usage in the old status, if the scopes of the quota are unchanged."""
    if old is None or {**old["spec"], "hard": {}} != {**quota["spec"], "hard": {}}:
        return {}
    return old["status"].get("used") or {}


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


def _usage_in_quota(quota: Object, kind: Kind, obj: Object | None) -> Usage:
    """The usage of an object that a quota limits."""
    hard = quota["spec"].get("hard") or {}
    if obj is None or not hard or not quota_covers(quota, kind, obj):
        return {}
    return {name: amount for name, amount in object_usage(kind, obj).items() if name in hard}


def _usage_delta(quota: Object, kind: Kind, old: Object | None, new: Object | None) -> Usage:
    """The change of the usage of a quota, without zeros."""
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
    changed = {name: format_milli(amount, quota.hard[name]) for name, amount in new.items()}
    quota.object["status"] = {"hard": dict(quota.hard), "used": {**quota.used, **changed}}
    return StoreWrite(quota.record.key, encoder(quota.object), quota.record.revision)


# ---- checks --------------------------------------------------------------------------------------


def _check_quota(kind: Kind, obj: Object, quota: _Quota, change: Usage) -> None:
    used, hard = quota.used, quota.hard
    exceeded = sorted(
        name
        for name, more in change.items()
        if more > 0 and milli_value(used[name]) + more > milli_value(hard[name])
    )
    if exceeded:
        requested = {name: format_milli(change[name], hard[name]) for name in exceeded}
        detail = (
            f"exceeded quota: {quota.name}, requested: {_format_amounts(requested, exceeded)}, "
            f"used: {_format_amounts(used, exceeded)}, limited: {_format_amounts(hard, exceeded)}"
        )
        raise forbidden_error(kind, obj["metadata"]["name"], detail)


def _format_amounts(amounts: Mapping[str, str], names: Sequence[str]) -> str:
    return ",".join(f"{name}={amounts[name]}" for name in names)


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


def _containers_without(pod: Object, name: str) -> list[str]:
    """The names of the containers that do not state a resource."""
    part, _, resource = name.rpartition(".")
    spec = pod["spec"]
    return sorted(
        container["name"]
        for container in (*spec.get("containers", ()), *spec.get("initContainers", ()))
        if resource not in (container.get("resources") or {}).get(part or "requests", {})
    )
