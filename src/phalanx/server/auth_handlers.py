"""Questions about access, answered and never stored: who am I, may I, may somebody else.

SelfSubjectReview            who the server takes me for
TokenReview                  whom it would take a token for
SelfSubjectAccessReview      whether I may do something
SubjectAccessReview          whether somebody may
LocalSubjectAccessReview     the same, in one namespace
SelfSubjectRulesReview       everything that I may do in a namespace

`serviceaccounts/token`: a token for a service account, for a time, perhaps for a pod's life.
"""

from __future__ import annotations

import orjson
from msgspec.structs import replace

from phalanx.api.errors import BadRequest, Cause, Invalid
from phalanx.api.field_errors import invalid, required
from phalanx.api.kinds import LOCAL_SUBJECT_ACCESS_REVIEW, POD, SERVICE_ACCOUNT, TOKEN_REQUEST
from phalanx.api.meta import timestamp
from phalanx.api.wire import Object, Reply, UserInfo
from phalanx.server.context import ServerContext
from phalanx.server.objects import conflict_error, decode_record, forbidden_error, not_found_error
from phalanx.server.request_bodies import read_object
from phalanx.server.request_info import RequestInfo
from phalanx.server.security.authorization import runs_on
from phalanx.server.security.rbac import ALL, AuthorizationAttributes, PolicyRule
from phalanx.server.security.signing import BINDABLE, ISSUER, ServiceAccountClaims
from phalanx.server.security.users import MASTERS, node_name

_ALL_RULES = (PolicyRule((ALL,), (ALL,), (ALL,)), PolicyRule((ALL,), paths=(ALL,)))


async def self_review(context: ServerContext, call: RequestInfo) -> Reply:
    """Who asks, as the server sees it."""
    return _review_reply(
        call, read_object(context, call), {"userInfo": user_info(call.request.user)}
    )


async def token_review(context: ServerContext, call: RequestInfo) -> Reply:
    """Whether a token is known, and whose it is."""
    body = read_object(context, call)
    spec = body.get("spec") or {}
    token, wanted = spec.get("token", ""), spec.get("audiences") or [ISSUER]
    authenticator = context.access.authenticator
    user = authenticator.user(token, wanted)
    if user is None:
        return _review_reply(
            call, body, {"authenticated": False, "error": "the token is not known"}
        )
    given = authenticator.service_account_tokens.audiences(token) or (ISSUER,)
    audiences = [one for one in wanted if one in given]
    status = {"authenticated": True, "user": user_info(user), "audiences": audiences}
    return _review_reply(call, body, status)


async def self_access_review(context: ServerContext, call: RequestInfo) -> Reply:
    """Whether the asker may do what the spec says."""
    body = read_object(context, call)
    return _review_access(context, call, body, call.request.user)


async def access_review(context: ServerContext, call: RequestInfo) -> Reply:
    """Whether the user in the spec may do what the spec says."""
    body = read_object(context, call)
    spec = body.get("spec") or {}
    if not spec.get("user") and not spec.get("groups"):
        raise _invalid_review(
            call, required("spec.user", "at least one of user or group must be specified")
        )
    extra = [(key, v) for key, values in (spec.get("extra") or {}).items() for v in values or ()]
    user = UserInfo(
        spec.get("user", ""), tuple(spec.get("groups") or ()), spec.get("uid", ""), tuple(extra)
    )
    return _review_access(context, call, body, user)


async def self_rules_review(context: ServerContext, call: RequestInfo) -> Reply:
    """What the asker may do in a namespace."""
    body, user = read_object(context, call), call.request.user
    namespace = (body.get("spec") or {}).get("namespace", "")
    if not namespace:
        raise _invalid_review(call, required("spec.namespace", "no namespace on request"))
    is_master = MASTERS in user.groups
    rules = _ALL_RULES if is_master else context.access.rbac.rules(user, namespace)
    return _review_reply(call, body, {
        "resourceRules": [rule.to_object() for rule in rules if rule.resources],
        "nonResourceRules": [rule.to_object() for rule in rules if rule.paths],
        "incomplete": False,
    })  # fmt: skip


def user_info(user: UserInfo) -> Object:
    """A user as reviews tell of them."""
    info: Object = {"username": user.name, "groups": list(user.groups)}
    if user.uid:
        info["uid"] = user.uid
    for key, value in user.extra:
        info.setdefault("extra", {}).setdefault(key, []).append(value)
    return info


def _review_access(
    context: ServerContext, call: RequestInfo, body: Object, user: UserInfo
) -> Reply:
    allowed = context.access.allows(user, _review_attributes(call, body.get("spec") or {}))
    return _review_reply(call, body, {"allowed": allowed})


def _review_attributes(call: RequestInfo, spec: Object) -> AuthorizationAttributes:
    given = [key for key in ("resourceAttributes", "nonResourceAttributes") if spec.get(key)]
    if len(given) != 1:
        detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        raise _invalid_review(
            call, Cause("spec", "FieldValueInvalid", f"Invalid value: null: {detail}")
        )
    wish = spec[given[0]]
    if given[0] == "nonResourceAttributes":
        # What says nothing is no path, and must not be taken for a resource.
        return AuthorizationAttributes(wish.get("verb", ""), path=wish.get("path") or "/")
    place = wish.get("namespace", "")
    if call.kind is LOCAL_SUBJECT_ACCESS_REVIEW and place != call.namespace:
        detail = "must match metadata.namespace"
        raise _invalid_review(call, invalid("spec.resourceAttributes.namespace", place, detail))
    what, part = wish.get("resource", ""), wish.get("subresource", "")
    resource = f"{what}/{part}" if part else what
    return AuthorizationAttributes(
        wish.get("verb", ""), wish.get("group", ""), resource, place, wish.get("name", "")
    )


def _invalid_review(call: RequestInfo, cause: Cause) -> Invalid:
    group = call.kind.group
    return Invalid(f'.{group} "" is invalid: {cause}', group=group, causes=[cause])


def _review_reply(call: RequestInfo, body: Object, status: Object) -> Reply:
    shown = {"kind": call.kind.name, "apiVersion": call.kind.api_version, **body, "status": status}
    return Reply(201, orjson.dumps(shown))


#: Seconds that a token lasts, at least, unless said otherwise, and at most.
_MIN_TOKEN_SECONDS, _DEFAULT_TOKEN_SECONDS, _MAX_TOKEN_SECONDS = 600, 3600, 365 * 24 * 3600
_MAX_REQUESTED_SECONDS = 1 << 32


async def issue_token(context: ServerContext, call: RequestInfo) -> Reply:
    """A new token of an account. Nothing is stored."""
    call.check_dry_run()
    asked = read_object(context, replace(call, kind=TOKEN_REQUEST))
    spec: Object = asked.get("spec") or {}
    account = _get_service_account(context, call)
    seconds = _token_seconds(call, spec.get("expirationSeconds"))
    now = context.clock.now()
    audiences = tuple(spec.get("audiences") or (ISSUER,))
    wanted = ServiceAccountClaims(
        call.namespace, call.name, account["metadata"]["uid"], audiences, now + seconds,
        _bound_object(context, call, spec.get("boundObjectRef")),
    )  # fmt: skip
    token = context.access.authenticator.service_account_tokens.issue(
        wanted, now, context.random.uid()
    )
    status = {"token": token, "expirationTimestamp": timestamp(wanted.expires)}
    said = {**spec, "audiences": list(audiences), "expirationSeconds": seconds}
    meta = {"name": call.name, "namespace": call.namespace, "creationTimestamp": timestamp(now)}
    return Reply(201, orjson.dumps({
        "kind": TOKEN_REQUEST.name, "apiVersion": TOKEN_REQUEST.api_version, "metadata": meta,
        "spec": said, "status": status,
    }))  # fmt: skip


def _get_service_account(context: ServerContext, call: RequestInfo) -> Object:
    record = context.store.get(call.key)
    if record is None:
        raise not_found_error(SERVICE_ACCOUNT, call.name)
    return decode_record(record)


def _token_seconds(call: RequestInfo, wanted: int | None) -> int:
    """How long a token lasts; more than we give becomes the most that we give."""
    seconds = _DEFAULT_TOKEN_SECONDS if wanted is None else wanted
    if seconds < _MIN_TOKEN_SECONDS:
        raise _invalid_token_request(
            call, seconds, "may not specify a duration less than 10 minutes"
        )
    if seconds > _MAX_REQUESTED_SECONDS:
        raise _invalid_token_request(
            call, seconds, "may not specify a duration larger than 2^32 seconds"
        )
    return min(seconds, _MAX_TOKEN_SECONDS)


def _invalid_token_request(call: RequestInfo, value: int, detail: str) -> Invalid:
    cause: Cause = invalid("spec.expirationSeconds", value, detail)
    return Invalid(
        f'{TOKEN_REQUEST.qualified_name} "{call.name}" is invalid: {cause}',
        name=call.name, group=TOKEN_REQUEST.group, kind=TOKEN_REQUEST.name, causes=[cause],
    )  # fmt: skip


def _bound_object(
    context: ServerContext, call: RequestInfo, reference: Object | None
) -> tuple[str, str, str] | None:
    """What the token ends with, if with anything; it must be there."""
    node = node_name(call.request.user)
    if reference is None:
        if node:
            raise forbidden_error(
                SERVICE_ACCOUNT, call.name, f'node "{node}" must bind tokens to a pod'
            )
        return None
    kind, name = BINDABLE.get(reference.get("kind", "")), reference.get("name", "")
    if kind is None:
        raise BadRequest(f"cannot bind token to object of type {reference.get('kind', '')}")
    record = context.store.get(kind.store_key(call.namespace, name))
    if record is None:
        raise not_found_error(kind, name)
    obj = decode_record(record)
    uid = obj["metadata"]["uid"]
    if reference.get("uid", uid) != uid:
        detail = f"the UID in the bound object reference ({reference['uid']}) does not match the"
        raise conflict_error(
            kind, name, f"{detail} UID in record. The object might have been deleted"
        )
    if kind is POD:
        _check_bound_pod(call, obj, node)
    elif node:
        raise forbidden_error(
            SERVICE_ACCOUNT, call.name, f'node "{node}" must bind tokens to a pod'
        )
    return kind.name, name, uid


def _check_bound_pod(call: RequestInfo, pod: Object, node: str) -> None:
    """The pod must run under the account; and on the node, where a node asks."""
    if (pod["spec"].get("serviceAccountName") or "default") != call.name:
        raise BadRequest(
            f'cannot bind token for serviceaccount "{call.name}" to pod running with different '
            "serviceaccount name."
        )
    if node and not runs_on(pod, node):
        raise forbidden_error(SERVICE_ACCOUNT, call.name, f'the pod does not run on node "{node}"')
