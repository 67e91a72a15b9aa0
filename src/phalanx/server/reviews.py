"""Questions about access, answered and never stored: who am I, may I, may somebody else.

SelfSubjectReview            who the server takes me for
TokenReview                  whom it would take a token for
SelfSubjectAccessReview      whether I may do something
SubjectAccessReview          whether somebody may
LocalSubjectAccessReview     the same, in one namespace
SelfSubjectRulesReview       everything that I may do in a namespace
"""

from __future__ import annotations

import orjson

from phalanx.api.causes import invalid, required
from phalanx.api.errors import Cause, Invalid
from phalanx.api.kinds import LOCAL_SUBJECT_ACCESS_REVIEW
from phalanx.api.wire import Object, Reply, User
from phalanx.server.bodies import read_object
from phalanx.server.call import Call
from phalanx.server.context import Context
from phalanx.server.security.accounttokens import ISSUER
from phalanx.server.security.rules import ALL, Ask, Rule
from phalanx.server.security.users import MASTERS

_EVERYTHING = (Rule((ALL,), (ALL,), (ALL,)), Rule((ALL,), paths=(ALL,)))


async def self_review(context: Context, call: Call) -> Reply:
    """Who asks, as the server sees it."""
    return _answer(call, read_object(context, call), {"userInfo": shown(call.request.user)})


async def token_review(context: Context, call: Call) -> Reply:
    """Whether a token is known, and whose it is."""
    body = read_object(context, call)
    spec = body.get("spec") or {}
    token, wanted = spec.get("token", ""), spec.get("audiences") or [ISSUER]
    authenticator = context.access.authenticator
    user = authenticator.user(token, wanted)
    if user is None:
        return _answer(call, body, {"authenticated": False, "error": "the token is not known"})
    given = authenticator.accounts.audiences(token) or (ISSUER,)
    audiences = [one for one in wanted if one in given]
    status = {"authenticated": True, "user": shown(user), "audiences": audiences}
    return _answer(call, body, status)


async def self_access_review(context: Context, call: Call) -> Reply:
    """Whether the asker may do what the spec says."""
    body = read_object(context, call)
    return _judged(context, call, body, call.request.user)


async def access_review(context: Context, call: Call) -> Reply:
    """Whether the user in the spec may do what the spec says."""
    body = read_object(context, call)
    spec = body.get("spec") or {}
    if not spec.get("user") and not spec.get("groups"):
        raise _invalid(
            call, required("spec.user", "at least one of user or group must be specified")
        )
    extra = [(key, v) for key, values in (spec.get("extra") or {}).items() for v in values or ()]
    user = User(
        spec.get("user", ""), tuple(spec.get("groups") or ()), spec.get("uid", ""), tuple(extra)
    )
    return _judged(context, call, body, user)


async def self_rules_review(context: Context, call: Call) -> Reply:
    """What the asker may do in a namespace."""
    body, user = read_object(context, call), call.request.user
    namespace = (body.get("spec") or {}).get("namespace", "")
    if not namespace:
        raise _invalid(call, required("spec.namespace", "no namespace on request"))
    is_master = MASTERS in user.groups
    rules = _EVERYTHING if is_master else context.access.policy.rules(user, namespace)
    return _answer(call, body, {
        "resourceRules": [rule.shown() for rule in rules if rule.resources],
        "nonResourceRules": [rule.shown() for rule in rules if rule.paths],
        "incomplete": False,
    })  # fmt: skip


def shown(user: User) -> Object:
    """A user as reviews tell of them."""
    info: Object = {"username": user.name, "groups": list(user.groups)}
    if user.uid:
        info["uid"] = user.uid
    for key, value in user.extra:
        info.setdefault("extra", {}).setdefault(key, []).append(value)
    return info


def _judged(context: Context, call: Call, body: Object, user: User) -> Reply:
    allowed = context.access.allows(user, _ask(call, body.get("spec") or {}))
    return _answer(call, body, {"allowed": allowed})


def _ask(call: Call, spec: Object) -> Ask:
    given = [key for key in ("resourceAttributes", "nonResourceAttributes") if spec.get(key)]
    if len(given) != 1:
        detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        raise _invalid(call, Cause("spec", "FieldValueInvalid", f"Invalid value: null: {detail}"))
    wish = spec[given[0]]
    if given[0] == "nonResourceAttributes":
        # What says nothing is no path, and must not be taken for a resource.
        return Ask(wish.get("verb", ""), path=wish.get("path") or "/")
    place = wish.get("namespace", "")
    if call.kind is LOCAL_SUBJECT_ACCESS_REVIEW and place != call.namespace:
        detail = "must match metadata.namespace"
        raise _invalid(call, invalid("spec.resourceAttributes.namespace", place, detail))
    what, part = wish.get("resource", ""), wish.get("subresource", "")
    resource = f"{what}/{part}" if part else what
    return Ask(wish.get("verb", ""), wish.get("group", ""), resource, place, wish.get("name", ""))


def _invalid(call: Call, cause: Cause) -> Invalid:
    group = call.kind.group
    return Invalid(f'.{group} "" is invalid: {cause}', group=group, causes=[cause])


def _answer(call: Call, body: Object, status: Object) -> Reply:
    shown = {"kind": call.kind.name, "apiVersion": call.kind.api_version, **body, "status": status}
    return Reply(201, orjson.dumps(shown))
