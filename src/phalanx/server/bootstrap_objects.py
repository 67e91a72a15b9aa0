"""Objects that every cluster has: flow control, API services, the ServiceCIDR, the client CA.

Written at the start of a server where they are missing, in one transaction and without randomness.
Requests are limited by `security/request_guard.py`, whatever these objects say.
"""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.api.kinds import (
    API_SERVICE,
    CONFIG_MAP,
    FLOW_SCHEMA,
    PRIORITY_LEVEL_CONFIGURATION,
    SERVICE_CIDR,
    Kind,
)
from phalanx.api.wire import Object
from phalanx.server.context import ServerContext
from phalanx.server.objects import encoder
from phalanx.server.security.bootstrap_writer import deterministic_uid
from phalanx.server.security.users import AUTHENTICATED, MASTERS, UNAUTHENTICATED
from phalanx.server.service_allocator import DEFAULT_SERVICE_CIDR
from phalanx.store.kv import StoreWrite

_ALL_REQUESTS = {
    "resourceRules": [
        {
            "verbs": ["*"],
            "apiGroups": ["*"],
            "resources": ["*"],
            "clusterScope": True,
            "namespaces": ["*"],
        }
    ],
    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
}
_AUTO_UPDATE = {"apf.kubernetes.io/autoupdate-spec": "true"}
_AUTOMANAGED = {"kube-aggregator.kubernetes.io/automanaged": "onstart"}


async def ensure_bootstrap_objects(context: ServerContext) -> None:
    """Create the objects that are missing."""
    now = context.now_timestamp()
    writes = []
    for kind, obj in _bootstrap_objects(context, now):
        name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace", "")
        key = kind.store_key(namespace, name)
        if kind not in context.registry.built_in or context.store.pending(key):
            continue
        strategy = context.registry.strategy(kind)
        status = obj.pop("status", None)
        strategy.apply_defaults(obj)
        strategy.prepare_for_create(obj, now)
        obj |= {"status": status} if status else {}
        obj["metadata"] |= {
            "uid": deterministic_uid(kind, name, now),
            "creationTimestamp": now,
            **({"generation": 1} if kind.generation else {}),
        }
        writes.append(StoreWrite(key, encoder(obj), 0))
    if writes:
        await context.store.commit(writes)


def _bootstrap_objects(context: ServerContext, now: str) -> Iterator[tuple[Kind, Object]]:
    reject = {"limitResponse": {"type": "Reject"}, "nominalConcurrencyShares": 5}
    yield PRIORITY_LEVEL_CONFIGURATION, _flow_object("exempt", {"type": "Exempt"})
    yield (
        PRIORITY_LEVEL_CONFIGURATION,
        _flow_object("catch-all", {"type": "Limited", "limited": reject}),
    )
    found = {
        "type": "Dangling",
        "status": "False",
        "reason": "Found",
        "message": "This FlowSchema references a PriorityLevelConfiguration that exists",
        "lastTransitionTime": now,
    }
    exempt = _flow_object("exempt", _flow_schema("exempt", 1, MASTERS))
    yield FLOW_SCHEMA, {**exempt, "status": {"conditions": [found]}}
    catch_all = _flow_schema("catch-all", 10_000, UNAUTHENTICATED, AUTHENTICATED)
    catch_all["distinguisherMethod"] = {"type": "ByUser"}
    others = _flow_object("catch-all", catch_all)
    yield FLOW_SCHEMA, {**others, "status": {"conditions": [found]}}
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "",
        "message": "Kubernetes Service CIDR is ready",
        "lastTransitionTime": now,
    }
    yield (
        SERVICE_CIDR,
        {
            "metadata": {"name": DEFAULT_SERVICE_CIDR},
            "spec": {"cidrs": [str(one) for one in context.service_ranges.cluster_ips]},
            "status": {"conditions": [ready]},
        },
    )
    if context.certificate_authority is not None:
        # API servers of extensions learn here which client certificates are valid.
        meta = {"name": "extension-apiserver-authentication", "namespace": "kube-system"}
        authority = context.certificate_authority.certificate_pem()
        yield CONFIG_MAP, {"metadata": meta, "data": {"client-ca-file": authority}}
    for group, version in context.registry.built_in_versions():
        yield API_SERVICE, _api_service(group, version, now)


def _flow_object(name: str, spec: Object) -> Object:
    return {"metadata": {"name": name, "annotations": dict(_AUTO_UPDATE)}, "spec": spec}


def _flow_schema(level: str, precedence: int, *groups: str) -> Object:
    subjects = [{"kind": "Group", "group": {"name": group}} for group in groups]
    return {
        "priorityLevelConfiguration": {"name": level},
        "matchingPrecedence": precedence,
        "rules": [{"subjects": subjects, **_ALL_REQUESTS}],
    }


def _api_service(group: str, version: str, now: str) -> Object:
    """Build the APIService of a group and version that this server serves itself."""
    available = {
        "type": "Available",
        "status": "True",
        "reason": "Local",
        "message": "Local APIServices are always available",
        "lastTransitionTime": now,
    }
    spec: Object = {"version": version, "groupPriorityMinimum": 18_000, "versionPriority": 1}
    if group:
        spec |= {"group": group, "groupPriorityMinimum": 17_000, "versionPriority": 15}
    return {
        "metadata": {"name": f"{version}.{group}", "labels": dict(_AUTOMANAGED)},
        "spec": spec,
        "status": {"conditions": [available]},
    }
