"""Access reviews and service account tokens: requests that are answered and never stored.

SelfSubjectReview            the user that the server sees
TokenReview                  the user of a token
SelfSubjectAccessReview      whether the user may do something
SubjectAccessReview          whether another user may
LocalSubjectAccessReview     the same, in one namespace
SelfSubjectRulesReview       everything that the user may do in a namespace
serviceaccounts/token        a token of limited duration, optionally bound to a pod or secret
"""

from __future__ import annotations

import re

import orjson
from msgspec.structs import replace

from phalanx.api.errors import BadRequest, Cause, Conflict, Invalid, invalid, join_causes
from phalanx.api.kinds import LOCAL_SUBJECT_ACCESS_REVIEW, POD, SERVICE_ACCOUNT, TOKEN_REQUEST
from phalanx.api.meta import timestamp
from phalanx.api.wire import Object, Reply, UserInfo
from phalanx.server.context import ServerContext
from phalanx.server.objects import decode_record, forbidden_error, not_found_error
from phalanx.server.request_bodies import read_object
from phalanx.server.request_info import RequestInfo
from phalanx.server.security.authorization import runs_on
from phalanx.server.security.rbac import ALL, AuthorizationAttributes, PolicyRule
from phalanx.server.security.signing import BINDABLE, ISSUER, ServiceAccountClaims
from phalanx.server.security.users import MASTERS, node_name

_ALL_RULES = (PolicyRule((ALL,), (ALL,), (ALL,)), PolicyRule((ALL,), paths=(ALL,)))


async def self_review(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle a SelfSubjectReview."""
    return _review_reply(
        request_info,
        read_object(context, request_info),
        {"userInfo": user_info(request_info.request.user)},
    )


async def token_review(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle a TokenReview."""
    body = read_object(context, request_info)
    spec = body.get("spec") or {}
    token, requested = spec.get("token", ""), spec.get("audiences") or [ISSUER]
    if not token:
        raise BadRequest("token is required for TokenReview in authentication")
    authenticator = context.access.authenticator
    user = authenticator.user(token, requested)
    if user is None:
        return _review_reply(request_info, body, {"user": {}, "error": "unknown token"})
    granted = authenticator.service_account_tokens.audiences(token) or (ISSUER,)
    audiences = [audience for audience in requested if audience in granted]
    status = {"authenticated": True, "user": user_info(user), "audiences": audiences}
    return _review_reply(request_info, body, status)


async def self_access_review(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle a SelfSubjectAccessReview."""
    body = read_object(context, request_info)
    return _review_access(context, request_info, body, user=request_info.request.user)


async def access_review(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle a SubjectAccessReview or LocalSubjectAccessReview."""
    body = read_object(context, request_info)
    spec = body.get("spec") or {}
    extra = [(key, v) for key, values in (spec.get("extra") or {}).items() for v in values or ()]
    user = UserInfo(
        spec.get("user", ""), tuple(spec.get("groups") or ()), spec.get("uid", ""), tuple(extra)
    )
    return _review_access(context, request_info, body, user=user)


async def self_rules_review(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle a SelfSubjectRulesReview."""
    body, user = read_object(context, request_info), request_info.request.user
    namespace = (body.get("spec") or {}).get("namespace", "")
    if not namespace:
        raise BadRequest("no namespace on request")
    is_master = MASTERS in user.groups
    rules = _ALL_RULES if is_master else context.access.rbac.rules(user, namespace)
    status = {
        "resourceRules": [rule.to_object() for rule in rules if rule.resources],
        "nonResourceRules": [rule.to_object() for rule in rules if rule.paths],
        "incomplete": False,
    }
    return _review_reply(request_info, body, status)


def user_info(user: UserInfo) -> Object:
    """A user as reviews show it."""
    info: Object = {"username": user.name, "groups": list(user.groups)}
    if user.uid:
        info["uid"] = user.uid
    for key, value in user.extra:
        info.setdefault("extra", {}).setdefault(key, []).append(value)
    return info


def _review_access(
    context: ServerContext, request_info: RequestInfo, body: Object, *, user: UserInfo
) -> Reply:
    meta, spec = body.get("metadata") or {}, body.get("spec") or {}
    causes = _check_attributes(spec)
    if not user.name and not user.groups:
        detail = "at least one of user or group must be specified"
        causes.append(invalid("spec.user", "", detail))
    if any(key not in ("namespace", "managedFields") for key in meta):
        causes.append(invalid("metadata", meta, "must be empty"))
    if request_info.kind is LOCAL_SUBJECT_ACCESS_REVIEW:
        causes += _check_local_review(request_info, spec)
    if causes:
        group = request_info.kind.group
        message = f'.{group} "" is invalid: {join_causes(causes)}'
        raise Invalid(message, group=group, causes=causes)
    allowed = context.access.allows(user, _review_attributes(spec))
    return _review_reply(request_info, body, {"allowed": allowed})


def _check_local_review(request_info: RequestInfo, spec: Object) -> list[Cause]:
    """Return the causes of a review in a namespace that asks for something outside of it."""
    found: list[Cause] = []
    if attributes := spec.get("resourceAttributes"):
        namespace = attributes.get("namespace", "")
        if namespace != request_info.namespace:
            detail = "must match metadata.namespace"
            found.append(invalid("spec.resourceAttributes.namespace", namespace, detail))
    if path := spec.get("nonResourceAttributes"):
        detail = "disallowed on this kind of request"
        found.append(invalid("spec.nonResourceAttributes", path, detail))
    return found


def _review_attributes(spec: Object) -> AuthorizationAttributes:
    given = [key for key in _ATTRIBUTES if spec.get(key)]
    attributes = spec[given[0]]
    verb = attributes.get("verb", "")
    if given[0] == "nonResourceAttributes":
        # Attributes without a path would be taken for a resource.
        return AuthorizationAttributes(verb, path=attributes.get("path") or "/")
    resource = attributes.get("resource", "")
    if subresource := attributes.get("subresource", ""):
        resource = f"{resource}/{subresource}"
    return AuthorizationAttributes(
        verb,
        attributes.get("group", ""),
        resource,
        namespace=attributes.get("namespace", ""),
        name=attributes.get("name", ""),
        fields=_review_field_selector(attributes.get("fieldSelector") or {}),
    )


def _review_field_selector(selector: Object) -> str:
    """The field selector of a review as text; requirements of several values are left out.

    Nodes are authorized by it. RBAC uses the name alone: a review must give it.
    """
    if raw := selector.get("rawSelector"):
        return str(raw)
    signs = {"In": "=", "NotIn": "!="}
    return ",".join(
        f"{one.get('key', '')}{signs[one['operator']]}"
        + re.sub(r"([\\,=])", r"\\\1", one["values"][0])
        for one in selector.get("requirements") or ()
        if one.get("operator") in signs and len(one.get("values") or ()) == 1
    )


_ATTRIBUTES = ("resourceAttributes", "nonResourceAttributes")


def _check_attributes(spec: Object) -> list[Cause]:
    """Return the causes of a review that asks for no or several things, or selects in two ways."""
    if sum(bool(spec.get(key)) for key in _ATTRIBUTES) != 1:
        detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        return [invalid("spec", None, detail)]
    selectors = spec.get("resourceAttributes") or {}
    detail = "may not specified at the same time as requirements"
    return [
        invalid(f"spec.resourceAttributes.{part}.rawSelector", selector["rawSelector"], detail)
        for part in ("labelSelector", "fieldSelector")
        if (selector := selectors.get(part) or {}).get("rawSelector")
        and selector.get("requirements")
    ]


def _review_reply(request_info: RequestInfo, body: Object, status: Object) -> Reply:
    review = {"kind": request_info.kind.name, "apiVersion": request_info.kind.api_version, **body}
    answer = orjson.dumps({**review, "status": status})
    return Reply(201, answer, headers=request_info.warning_headers())


#: The duration of a token in seconds: minimum, default and maximum.
_MIN_TOKEN_SECONDS, _DEFAULT_TOKEN_SECONDS, _MAX_TOKEN_SECONDS = 600, 3600, 365 * 24 * 3600
_MAX_REQUESTED_SECONDS = 1 << 32
_UID_MISMATCH = (
    "the UID in the bound object reference ({}) does not match the UID in record. "
    "The object might have been deleted and then recreated"
)


async def issue_token(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle a TokenRequest: issue a token of a service account."""
    request_info.check_dry_run()
    request = read_object(context, replace(request_info, kind=TOKEN_REQUEST))
    spec: Object = request.get("spec") or {}
    _check_token_metadata(request_info, request.get("metadata") or {})
    if node := node_name(request_info.request.user):
        _check_node_token(context, request_info, node, reference=spec.get("boundObjectRef") or {})
    account = _get_service_account(context, request_info)
    seconds = _token_seconds(request_info, spec.get("expirationSeconds"))
    now = context.clock.now()
    audiences = tuple(spec.get("audiences") or (ISSUER,))
    claims = ServiceAccountClaims(
        request_info.namespace,
        request_info.name,
        account["metadata"]["uid"],
        audiences=audiences,
        expires=now + seconds,
        bound_object=_bound_object(context, request_info, spec.get("boundObjectRef")),
    )
    tokens = context.access.authenticator.service_account_tokens
    token = tokens.issue(claims, now, context.random.uid())
    body = {
        "kind": TOKEN_REQUEST.name,
        "apiVersion": TOKEN_REQUEST.api_version,
        "metadata": {
            "name": request_info.name,
            "namespace": request_info.namespace,
            "creationTimestamp": timestamp(now),
        },
        "spec": {**spec, "audiences": list(audiences), "expirationSeconds": seconds},
        "status": {"token": token, "expirationTimestamp": timestamp(claims.expires)},
    }
    return Reply(201, orjson.dumps(body), headers=request_info.warning_headers())


def _check_token_metadata(request_info: RequestInfo, meta: Object) -> None:
    """Refuse a TokenRequest whose metadata name another service account."""
    if meta.get("namespace", request_info.namespace) != request_info.namespace:
        raise BadRequest(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if meta.get("name", request_info.name) != request_info.name:
        detail = "must match the service account name"
        raise _invalid_token_request(request_info, invalid("metadata.name", meta["name"], detail))


def _get_service_account(context: ServerContext, request_info: RequestInfo) -> Object:
    record = context.store.get(request_info.key)
    if record is None:
        raise not_found_error(SERVICE_ACCOUNT, request_info.name)
    return decode_record(record)


def _token_seconds(request_info: RequestInfo, requested: int | None) -> int:
    """The duration of a token, limited to the longest that the server issues."""
    seconds = _DEFAULT_TOKEN_SECONDS if requested is None else requested
    if seconds < _MIN_TOKEN_SECONDS:
        detail = "may not specify a duration less than 10 minutes"
        raise _invalid_token_request(
            request_info, invalid("spec.expirationSeconds", seconds, detail)
        )
    if seconds > _MAX_REQUESTED_SECONDS:
        detail = "may not specify a duration larger than 2^32 seconds"
        raise _invalid_token_request(
            request_info, invalid("spec.expirationSeconds", seconds, detail)
        )
    return min(seconds, _MAX_TOKEN_SECONDS)


def _invalid_token_request(request_info: RequestInfo, cause: Cause) -> Invalid:
    return Invalid(
        f'{TOKEN_REQUEST.qualified_name} "{request_info.name}" is invalid: {cause}',
        name=request_info.name,
        group=TOKEN_REQUEST.group,
        kind=TOKEN_REQUEST.name,
        causes=[cause],
    )


def _bound_object(
    context: ServerContext, request_info: RequestInfo, reference: Object | None
) -> tuple[str, str, str] | None:
    """Kind, name and uid of the object that the token is bound to; it must exist."""
    if reference is None:
        return None
    kind, name = BINDABLE.get(reference.get("kind", "")), reference.get("name", "")
    if kind is None:
        raise BadRequest(f"cannot bind token to object of type {reference.get('kind', '')}")
    if not name:
        raise BadRequest("Name parameter required.")
    record = context.store.get(kind.store_key(request_info.namespace, name))
    if record is None:
        raise not_found_error(kind, name)
    obj = decode_record(record)
    uid = obj["metadata"]["uid"]
    if kind is POD and (obj["spec"].get("serviceAccountName") or "default") != request_info.name:
        raise BadRequest(
            f'cannot bind token for serviceaccount "{request_info.name}" to pod running with '
            "different serviceaccount name."
        )
    if (reference.get("uid") or uid) != uid:
        # As in Kubernetes, the details have the kind where other conflicts have the resource.
        reason = _UID_MISMATCH.format(reference["uid"])
        message = f'Operation cannot be fulfilled on {kind.name} "{name}": {reason}'
        raise Conflict(message, name=name, kind=kind.name)
    return kind.name, name, uid


def _check_node_token(
    context: ServerContext, request_info: RequestInfo, node: str, *, reference: Object
) -> None:
    """Require that a node binds a token to a pod that runs on it, given by name and UID.

    The checks and messages of the NodeRestriction plugin of Kubernetes, which come first.
    """
    name, uid = reference.get("name"), reference.get("uid")
    is_pod = (reference.get("apiVersion"), reference.get("kind")) == (POD.api_version, POD.name)
    reason = ""
    if not is_pod or not name:
        reason = "node requested token not bound to a pod"
    elif not uid:
        reason = "node requested token with a pod binding without a uid"
    elif (record := context.store.get(POD.store_key(request_info.namespace, name))) is None:
        raise not_found_error(POD, name)
    elif (pod := decode_record(record))["metadata"]["uid"] != uid:
        reason = _UID_MISMATCH.format(uid)
    elif not runs_on(pod, node):
        reason = "node requested token bound to a pod scheduled on a different node"
    if reason:
        raise forbidden_error(SERVICE_ACCOUNT, request_info.name, reason)
