"""What one node may: its own Node, its own lease, the pods that are bound to it, and what they use.

Beside `policy`, for users of the group `system:nodes` alone. A table of resources, each with the
check that narrows it down to this node. What only a body can tell (the name of a new Node, labels
that nodes may not give themselves) is for `restrictions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec
import orjson

from phalanx.api.kinds import POD
from phalanx.api.selectors import BadSelector, parse_fields
from phalanx.api.wire import Object
from phalanx.server.security.rules import Ask
from phalanx.store.kv import Store

LEASES = "kube-node-lease"
#: Given the store, the node's name and what it asks: whether that is its own business.
Check = Callable[[Store, str, Ask], bool]


class _Spec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    node_name: str = ""


class _Placed(msgspec.Struct, frozen=True, gc=False):
    """As much of a pod as says where it is: all that is read of it at every report."""

    spec: _Spec = _Spec()


_placed = msgspec.json.Decoder(_Placed).decode


def node_allows(store: Store, node: str, ask: Ask) -> bool:
    """Whether a node may do that."""
    rows = _RIGHTS.get((ask.group, ask.resource), ())
    return any(ask.verb in verbs and check(store, node, ask) for verbs, check in rows)


def _anything(store: Store, node: str, ask: Ask) -> bool:
    return True


def _itself(store: Store, node: str, ask: Ask) -> bool:
    return ask.name == node


def _selects(field: str) -> Check:
    """A list or a watch that is held to one value of a field: this node."""

    def check(store: Store, node: str, ask: Ask) -> bool:
        try:
            needs = parse_fields(ask.fields)
        except BadSelector:
            return False
        return any(need.field == field and need.equal and need.value == node for need in needs)

    return check


def _own_pod(store: Store, node: str, ask: Ask) -> bool:
    record = store.pending(POD.key(ask.namespace, ask.name))
    return record is not None and _placed(record.value).spec.node_name == node


def _own_lease(store: Store, node: str, ask: Ask) -> bool:
    return ask.namespace == LEASES and ask.name == node


def _own_lease_to_be(store: Store, node: str, ask: Ask) -> bool:
    return ask.namespace == LEASES


def _used(find: Callable[[Object], Iterator[str]]) -> Check:
    """An object to which a pod of this node, in the same namespace, refers."""

    def check(store: Store, node: str, ask: Ask) -> bool:
        mark = orjson.dumps(node)
        records = [one for one in store.range(POD.prefix(ask.namespace)) if mark in one.value]
        pods = (orjson.loads(one.value) for one in records)
        return any(runs_on(pod, node) and ask.name in find(pod) for pod in pods)

    return check


def runs_on(pod: Object, node: str) -> bool:
    """Whether a pod is bound to that node."""
    return bool(pod.get("spec", {}).get("nodeName", "") == node)


def _volumes(field: str, name: str) -> Callable[[Object], Iterator[str]]:
    """The names by which volumes of a sort refer to what they show; projected ones too."""

    def find(pod: Object) -> Iterator[str]:
        volumes = pod["spec"].get("volumes") or ()
        sources = [s for v in volumes for s in (v.get("projected") or {}).get("sources") or ()]
        for one in (*volumes, *sources):
            shown = one.get(field) or {}
            yield shown.get(name) or shown.get("name") or ""

    return find


def _environment(kind: str) -> Callable[[Object], Iterator[str]]:
    """The names of what fills the environment of containers, whole or by the key."""

    def find(pod: Object) -> Iterator[str]:
        spec = pod["spec"]
        for one in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
            for source in one.get("envFrom") or ():
                yield (source.get(f"{kind}Ref") or {}).get("name", "")
            for variable in one.get("env") or ():
                chosen = (variable.get("valueFrom") or {}).get(f"{kind}KeyRef") or {}
                yield chosen.get("name", "")

    return find


def _pull_secrets(pod: Object) -> Iterator[str]:
    for one in pod["spec"].get("imagePullSecrets") or ():
        yield one.get("name", "")


def _account(pod: Object) -> Iterator[str]:
    yield pod["spec"].get("serviceAccountName") or "default"


def _claims(pod: Object) -> Iterator[str]:
    for one in pod["spec"].get("resourceClaims") or ():
        yield one.get("resourceClaimName", "")
    for one in pod.get("status", {}).get("resourceClaimStatuses") or ():
        yield one.get("resourceClaimName", "")


def _any_of(*finders: Callable[[Object], Iterator[str]]) -> Callable[[Object], Iterator[str]]:
    return lambda pod: (name for find in finders for name in find(pod))


_READ, _WRITE = frozenset({"list", "watch"}), frozenset({"patch", "update"})
_GET, _CREATE = frozenset({"get"}), frozenset({"create"})
_TELLS = ((_CREATE | _WRITE, _anything),)
_SECRETS = _any_of(_volumes("secret", "secretName"), _environment("secret"), _pull_secrets)
_MAPS = _any_of(_volumes("configMap", "name"), _environment("configMap"))

#: (group, resource) -> rows of verbs and the check that they must pass.
_RIGHTS: Mapping[tuple[str, str], tuple[tuple[frozenset[str], Check], ...]] = {
    ("", "nodes"): (
        (_CREATE, _anything),
        (_GET | _WRITE, _itself),
        (_READ, _selects("metadata.name")),
    ),
    ("", "nodes/status"): ((_GET | _WRITE, _itself),),
    ("", "pods"): ((frozenset({"get", "delete"}), _own_pod), (_READ, _selects("spec.nodeName"))),
    ("", "pods/status"): ((_GET | _WRITE, _own_pod),),
    ("", "pods/eviction"): ((_CREATE, _own_pod),),
    ("", "pods/log"): ((_CREATE, _own_pod),),
    ("", "secrets"): ((_GET, _used(_SECRETS)),),
    ("", "configmaps"): ((_GET, _used(_MAPS)),),
    ("", "persistentvolumeclaims"): (
        (_GET, _used(_volumes("persistentVolumeClaim", "claimName"))),
    ),
    ("", "serviceaccounts"): ((_GET, _used(_account)),),
    ("", "serviceaccounts/token"): ((_CREATE, _used(_account)),),
    ("", "services"): ((_GET | _READ, _anything),),
    ("", "events"): _TELLS,
    ("events.k8s.io", "events"): _TELLS,
    ("resource.k8s.io", "resourceclaims"): ((_GET, _used(_claims)),),
    ("coordination.k8s.io", "leases"): (
        (_CREATE, _own_lease_to_be),
        (_GET | _WRITE | {"delete"}, _own_lease),
    ),
    ("authentication.k8s.io", "tokenreviews"): ((_CREATE, _anything),),
    ("authorization.k8s.io", "subjectaccessreviews"): ((_CREATE, _anything),),
    ("authorization.k8s.io", "localsubjectaccessreviews"): ((_CREATE, _anything),),
}
