"""Authorization: every request is checked before it is handled, and refused by default.

`Server` asks with the user and the parsed request. RBAC decides (`rbac.py`); users in the group
`system:nodes` may also use their own objects: their Node, their Lease, the pods bound to the node,
and what these pods refer to. Users in `system:masters` may do everything. Checks that need the body
of a request are in `write_restrictions`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec
import orjson
from msgspec.structs import replace

from phalanx import logs
from phalanx.api.errors import ApiError, BadRequest, Forbidden, ServerError, Unauthorized
from phalanx.api.kinds import NAMESPACE, POD
from phalanx.api.selectors import BadSelector, parse_field_selector
from phalanx.api.wire import Object, Request, UserInfo
from phalanx.clock import Clock
from phalanx.server.request_info import RequestInfo
from phalanx.server.security.authentication import Authenticator, Tokens
from phalanx.server.security.rbac import AuthorizationAttributes, RbacAuthorizer
from phalanx.server.security.users import (
    ADMIN,
    ANONYMOUS_NAME,
    AUTHENTICATED,
    MASTERS,
    NODES,
    UNAUTHENTICATED,
    node_name,
    parse_service_account,
    service_account_user,
)
from phalanx.store.kv import Store

LOG = logs.component("server")
NODE_LEASE_NAMESPACE = "kube-node-lease"
#: (store, node name, attributes) -> whether the request concerns the node's own objects.
NodeCheck = Callable[[Store, str, AuthorizationAttributes], bool]


class _PodNodeName(msgspec.Struct, frozen=True, rename="camel", gc=False):
    node_name: str = ""


class _PodPlacement(msgspec.Struct, frozen=True, gc=False):
    """The fields of a pod that say where it runs; decoded for every status report."""

    spec: _PodNodeName = _PodNodeName()


_decode_placement = msgspec.json.Decoder(_PodPlacement).decode


def node_allows(store: Store, node: str, attributes: AuthorizationAttributes) -> bool:
    """Whether a node may make a request."""
    rows = _NODE_RIGHTS.get((attributes.group, attributes.resource), ())
    return any(attributes.verb in verbs and check(store, node, attributes) for verbs, check in rows)


def _allow_any(store: Store, node: str, attributes: AuthorizationAttributes) -> bool:
    return True


def _is_own_node(store: Store, node: str, attributes: AuthorizationAttributes) -> bool:
    return attributes.name == node


def _selects_own_node(field: str) -> NodeCheck:
    """Return a check whether a list or watch selects this node by a field selector."""

    def check(store: Store, node: str, ask: AuthorizationAttributes) -> bool:
        try:
            needs = parse_field_selector(ask.fields)
        except BadSelector:
            return False
        return any(need.field == field and need.is_equal and need.value == node for need in needs)

    return check


def _is_own_pod(store: Store, node: str, attributes: AuthorizationAttributes) -> bool:
    record = store.pending(POD.store_key(attributes.namespace, attributes.name))
    return record is not None and _decode_placement(record.value).spec.node_name == node


def _is_own_lease(store: Store, node: str, attributes: AuthorizationAttributes) -> bool:
    return attributes.namespace == NODE_LEASE_NAMESPACE and attributes.name == node


def _is_node_lease_namespace(store: Store, node: str, attributes: AuthorizationAttributes) -> bool:
    return attributes.namespace == NODE_LEASE_NAMESPACE


def _is_referenced_by_own_pod(find: Callable[[Object], Iterator[str]]) -> NodeCheck:
    """Return a check whether a pod on this node, in the same namespace, refers to the object.

    A list or watch of one object by its name counts as a request for this object.
    """

    def check(store: Store, node: str, ask: AuthorizationAttributes) -> bool:
        if not ask.name or not ask.namespace:
            return False
        mark = orjson.dumps(node)
        records = [one for one in store.range(POD.store_prefix(ask.namespace)) if mark in one.value]
        pods = (orjson.loads(one.value) for one in records)
        return any(runs_on(pod, node) and ask.name in find(pod) for pod in pods)

    return check


def runs_on(pod: Object, node: str) -> bool:
    """Whether a pod is bound to a node."""
    return bool(pod.get("spec", {}).get("nodeName", "") == node)


def _volume_references(field: str, name: str) -> Callable[[Object], Iterator[str]]:
    """Return a finder of the names that volumes of one type refer to, including projected ones."""

    def find(pod: Object) -> Iterator[str]:
        volumes = pod["spec"].get("volumes") or ()
        sources = [s for v in volumes for s in (v.get("projected") or {}).get("sources") or ()]
        for one in (*volumes, *sources):
            shown = one.get(field) or {}
            yield shown.get(name) or shown.get("name") or ""

    return find


def _environment_references(kind: str) -> Callable[[Object], Iterator[str]]:
    """Return a finder of the names that the environment of containers refers to."""

    def find(pod: Object) -> Iterator[str]:
        spec = pod["spec"]
        for one in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
            for source in one.get("envFrom") or ():
                yield (source.get(f"{kind}Ref") or {}).get("name", "")
            for variable in one.get("env") or ():
                chosen = (variable.get("valueFrom") or {}).get(f"{kind}KeyRef") or {}
                yield chosen.get("name", "")

    return find


def _pull_secret_references(pod: Object) -> Iterator[str]:
    for one in pod["spec"].get("imagePullSecrets") or ():
        yield one.get("name", "")


def _service_account_reference(pod: Object) -> Iterator[str]:
    yield pod["spec"].get("serviceAccountName") or "default"


def _resource_claim_references(pod: Object) -> Iterator[str]:
    for one in pod["spec"].get("resourceClaims") or ():
        yield one.get("resourceClaimName", "")
    status = pod.get("status", {})
    for one in status.get("resourceClaimStatuses") or ():
        yield one.get("resourceClaimName", "")
    yield (status.get("extendedResourceClaimStatus") or {}).get("resourceClaimName", "")


def _combine_references(
    *finders: Callable[[Object], Iterator[str]],
) -> Callable[[Object], Iterator[str]]:
    return lambda pod: (name for find in finders for name in find(pod))


_LIST_VERBS, _UPDATE_VERBS = frozenset({"list", "watch"}), frozenset({"patch", "update"})
_GET_VERBS, _CREATE_VERBS = frozenset({"get"}), frozenset({"create"})
_READ_VERBS = _GET_VERBS | _LIST_VERBS
_EVENT_RIGHTS = ((_CREATE_VERBS | _UPDATE_VERBS, _allow_any),)
_SECRET_REFERENCES = _combine_references(
    _volume_references("secret", "secretName"),
    _environment_references("secret"),
    _pull_secret_references,
)
_CONFIG_MAP_REFERENCES = _combine_references(
    _volume_references("configMap", "name"), _environment_references("configMap")
)

#: (group, resource) -> rows of verbs and the check that applies to them.
_NODE_RIGHTS: Mapping[tuple[str, str], tuple[tuple[frozenset[str], NodeCheck], ...]] = {
    ("", "nodes"): (
        (_CREATE_VERBS, _allow_any),
        (_GET_VERBS | _UPDATE_VERBS, _is_own_node),
        (_LIST_VERBS, _selects_own_node("metadata.name")),
    ),
    ("", "nodes/status"): ((_GET_VERBS | _UPDATE_VERBS, _is_own_node),),
    ("", "pods"): (
        (frozenset({"get", "delete"}), _is_own_pod),
        (_LIST_VERBS, _selects_own_node("spec.nodeName")),
    ),
    ("", "pods/status"): ((_GET_VERBS | _UPDATE_VERBS, _is_own_pod),),
    ("", "pods/eviction"): ((_CREATE_VERBS, _is_own_pod),),
    ("", "pods/log"): ((_CREATE_VERBS, _is_own_pod),),
    ("", "secrets"): ((_READ_VERBS, _is_referenced_by_own_pod(_SECRET_REFERENCES)),),
    ("", "configmaps"): ((_READ_VERBS, _is_referenced_by_own_pod(_CONFIG_MAP_REFERENCES)),),
    ("", "persistentvolumeclaims"): (
        (
            _GET_VERBS,
            _is_referenced_by_own_pod(_volume_references("persistentVolumeClaim", "claimName")),
        ),
    ),
    ("", "serviceaccounts"): ((_GET_VERBS, _is_referenced_by_own_pod(_service_account_reference)),),
    ("", "serviceaccounts/token"): (
        (_CREATE_VERBS, _is_referenced_by_own_pod(_service_account_reference)),
    ),
    ("", "services"): ((_READ_VERBS, _allow_any),),
    ("", "events"): _EVENT_RIGHTS,
    ("events.k8s.io", "events"): _EVENT_RIGHTS,
    ("resource.k8s.io", "resourceclaims"): (
        (_GET_VERBS, _is_referenced_by_own_pod(_resource_claim_references)),
    ),
    ("coordination.k8s.io", "leases"): (
        (_CREATE_VERBS, _is_node_lease_namespace),
        (_GET_VERBS | _UPDATE_VERBS | {"delete"}, _is_own_lease),
    ),
    ("authentication.k8s.io", "tokenreviews"): ((_CREATE_VERBS, _allow_any),),
    ("authorization.k8s.io", "subjectaccessreviews"): ((_CREATE_VERBS, _allow_any),),
    ("authorization.k8s.io", "localsubjectaccessreviews"): ((_CREATE_VERBS, _allow_any),),
}


__all__ = ["ADMIN", "MASTERS", "AccessControl", "Tokens"]

_IMPERSONATE_PREFIX = "impersonate-"
_USER_HEADER, _GROUP_HEADER, _UID_HEADER = (
    f"{_IMPERSONATE_PREFIX}user",
    f"{_IMPERSONATE_PREFIX}group",
    f"{_IMPERSONATE_PREFIX}uid",
)
_EXTRA_PREFIX = f"{_IMPERSONATE_PREFIX}extra-"
_AUTHENTICATION_GROUP = "authentication.k8s.io"
#: Seconds in which an open stream ends after its user has lost access.
STREAM_CHECK_INTERVAL = 3.0
#: Streams that are checked before other requests have their turn.
_CHECK_BATCH = 200


class AccessControl:
    """Authorization by the roles in a store, and the known credentials."""

    def __init__(self, store: Store, clock: Clock, tokens: Tokens) -> None:
        self._store, self._clock = store, clock
        self.authenticator = Authenticator(store, clock, tokens)
        self.rbac = RbacAuthorizer(store)
        self.streams = StreamMonitor(self.check_again)
        self.rbac.on_change = self.streams.schedule_check
        #: Signs values that clients send back, such as continue tokens.
        self.token_signer = tokens.signer.hmac_signer()

    def allows(self, user: UserInfo, attributes: AuthorizationAttributes) -> bool:
        """Whether a user may make a request."""
        if MASTERS in user.groups:
            return True
        if NODES in user.groups and not attributes.path:
            node = node_name(user)
            if node and node_allows(self._store, node, attributes):
                return True
        return self.rbac.allows(user, attributes)

    def authorize(self, user: UserInfo, verb: str, request_info: RequestInfo) -> None:
        """Raise Forbidden for a resource request that the user may not make."""
        if MASTERS in user.groups:
            return
        kind, part = request_info.kind, request_info.subresource
        resource = f"{kind.plural}/{part}" if part else kind.plural
        # A role in a namespace also covers the Namespace object itself.
        namespace = request_info.name if kind is NAMESPACE else request_info.namespace
        fields = request_info.query.get("fieldSelector", "")
        attributes = AuthorizationAttributes(
            verb,
            kind.group,
            resource,
            namespace=namespace,
            name=request_info.authorized_name,
            fields=fields,
        )
        if not self.allows(user, attributes):
            raise _forbidden(user, attributes, resource=kind.resource, plural=kind.plural)

    def authorize_unserved(self, user: UserInfo, method: str, path: str) -> None:
        """Raise Forbidden for a path that is not served, unless the user may use it.

        The path of a resource is authorized as one, whether or not the resource exists.
        """
        attributes = _unserved_attributes(method, path)
        if attributes is None:
            self.authorize_path(user, method, path)
        elif not self.allows(user, attributes):
            plural, _, _ = attributes.resource.partition("/")
            whole = f"{plural}.{attributes.group}" if attributes.group else plural
            raise _forbidden(user, attributes, resource=whole, plural=plural)

    def authorize_path(self, user: UserInfo, method: str, path: str) -> None:
        """Raise Forbidden for a non-resource path that the user may not use."""
        verb = method.lower()
        if not self.allows(user, AuthorizationAttributes(verb, path=path)):
            raise Forbidden(f'forbidden: User "{user.name}" cannot {verb} path "{path}"')

    def impersonate(self, request: Request) -> Request:
        """Return the request as the impersonated user. Raises Forbidden or BadRequest."""
        for key in request.headers:
            if key.startswith(_IMPERSONATE_PREFIX):
                break
        else:
            return request
        headers = {k: v for k, v in request.headers.items() if k.startswith(_IMPERSONATE_PREFIX)}
        if not headers.get(_USER_HEADER):
            raise BadRequest(f"requested {sorted(headers)} without impersonating a user")
        user = _impersonated_user(headers)
        for attributes in _impersonation_attributes(user, headers):
            if not self.allows(request.user, attributes):
                raise _forbidden(
                    request.user,
                    attributes,
                    resource=attributes.resource,
                    plural=attributes.resource,
                )
        return replace(request, user=user, actor=request.user)

    def check_again(self, request_info: RequestInfo, verb: str) -> None:
        """Raise Unauthorized or Forbidden if a request that was accepted would be refused now."""
        request = request_info.request
        if request.expires is not None and request.expires <= self._clock.now():
            raise Unauthorized
        if authorization := request.headers.get("authorization"):
            self.authenticator.authenticate(authorization)
        if request.actor is not None:
            self.impersonate(replace(request, user=request.actor))
        self.authorize(request.user, verb, request_info)


class _OpenStream(NamedTuple):
    """An open watch or log, and how to end it."""

    request_info: RequestInfo
    verb: str
    refuse: Callable[[ApiError], None]


class StreamMonitor:
    """Ends open watches and logs whose user has lost access.

    A credential may expire or be revoked at any time: streams with a token or a client certificate
    are checked every few seconds. Other streams can lose access only by a change of roles, which
    has all streams checked; between such changes they need no timer.
    """

    def __init__(self, check: Callable[[RequestInfo, str], None]) -> None:
        self._check = check
        self._streams: dict[int, _OpenStream] = {}
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def track(
        self, request_info: RequestInfo, verb: str, refuse: Callable[[ApiError], None]
    ) -> Iterator[None]:
        """Monitor a stream; `refuse` is called with the reason if its user loses access."""
        stream = _OpenStream(request_info, verb, refuse)
        self._streams[id(stream)] = stream
        if _has_credential(stream):
            self.schedule_check()
        try:
            yield
        finally:
            self._streams.pop(id(stream), None)
            if not self._streams and self._timer:
                self._timer.cancel()
                self._timer = None

    def schedule_check(self) -> None:
        """Check all streams within the interval."""
        if self._streams and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(STREAM_CHECK_INTERVAL, self._check_streams)

    def _check_streams(self) -> None:
        self._timer = None
        self._check_batch(list(self._streams.items()))

    def _check_batch(self, streams: list[tuple[int, _OpenStream]]) -> None:
        """Check some streams, and the others after the requests that wait now."""
        for key, stream in streams[:_CHECK_BATCH]:
            if key not in self._streams:
                continue
            try:
                self._check(stream.request_info, stream.verb)
                continue
            except ApiError as error:
                refusal = error
            except Exception:
                # A bug must not keep this stream or any other open.
                LOG.error("access check failed", exc_info=True)
                refusal = ServerError("the access of this request cannot be checked")
            del self._streams[key]
            stream.refuse(refusal)
        if rest := streams[_CHECK_BATCH:]:
            asyncio.get_running_loop().call_soon(self._check_batch, rest)
        elif any(map(_has_credential, self._streams.values())):
            self.schedule_check()


def _has_credential(stream: _OpenStream) -> bool:
    request = stream.request_info.request
    return "authorization" in request.headers or request.expires is not None


def _impersonated_user(headers: dict[str, str]) -> UserInfo:
    """Return the user that a request impersonates."""
    name, groups = headers[_USER_HEADER], _split_header(headers.get(_GROUP_HEADER, ""))
    if not groups and (account := parse_service_account(name)):
        groups = service_account_user(*account).groups
    all_users_group = UNAUTHENTICATED if name == ANONYMOUS_NAME else AUTHENTICATED
    extra = tuple(
        (key.removeprefix(_EXTRA_PREFIX), value)
        for key, values in sorted(headers.items())
        if key.startswith(_EXTRA_PREFIX)
        for value in _split_header(values)
    )
    return UserInfo(
        name, tuple(dict.fromkeys((*groups, all_users_group))), headers.get(_UID_HEADER, ""), extra
    )


def _impersonation_attributes(
    user: UserInfo, headers: dict[str, str]
) -> list[AuthorizationAttributes]:
    """Return the rights that impersonating a user needs."""
    account = parse_service_account(user.name)
    needed = [
        AuthorizationAttributes("impersonate", "", "serviceaccounts", *account)
        if account
        else AuthorizationAttributes("impersonate", "", "users", name=user.name)
    ]
    needed += [
        AuthorizationAttributes("impersonate", "", "groups", name=group)
        for group in _split_header(headers.get(_GROUP_HEADER, ""))
    ]
    if user.uid:
        needed.append(
            AuthorizationAttributes("impersonate", _AUTHENTICATION_GROUP, "uids", name=user.uid)
        )
    return needed + [
        AuthorizationAttributes(
            "impersonate", _AUTHENTICATION_GROUP, f"userextras/{key}", name=value
        )
        for key, value in user.extra
    ]


#: The verbs of requests for an object and for a collection.
_METHOD_VERBS = {
    "GET": ("get", "list"),
    "POST": ("create", "create"),
    "PUT": ("update", "update"),
    "PATCH": ("patch", "patch"),
    "DELETE": ("delete", "deletecollection"),
}


def _unserved_attributes(method: str, path: str) -> AuthorizationAttributes | None:
    """Return what a path would ask for if its resource were served; None if it names none."""
    prefix, *parts = path.strip("/").split("/")
    if prefix not in ("api", "apis") or method not in _METHOD_VERBS:
        return None
    group, parts = ("", parts[1:]) if prefix == "api" else ("".join(parts[:1]), parts[2:])
    namespace = ""
    if parts[:1] == ["namespaces"] and len(parts) > 1:
        namespace = parts[1]
        parts = parts[2:] if len(parts) > 2 else parts
    if not parts or not parts[0]:
        return None
    resource, name, part = (*parts, "", "")[:3]
    whole = f"{resource}/{part}" if part else resource
    verb = _METHOD_VERBS[method][0 if name else 1]
    return AuthorizationAttributes(verb, group, whole, namespace=namespace, name=name)


def _split_header(text: str) -> tuple[str, ...]:
    """Return the values of a header that may be repeated."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _forbidden(
    user: UserInfo, attributes: AuthorizationAttributes, *, resource: str, plural: str
) -> Forbidden:
    scope = (
        f'in the namespace "{attributes.namespace}"'
        if attributes.namespace
        else "at the cluster scope"
    )
    named = f'{resource} "{attributes.name}"' if attributes.name else resource
    return Forbidden(
        f'{named} is forbidden: User "{user.name}" cannot {attributes.verb} resource '
        f'"{attributes.resource}" in API group "{attributes.group}" {scope}',
        name=attributes.name,
        group=attributes.group,
        kind=plural,
    )
