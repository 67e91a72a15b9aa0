"""Questions about access, answered and never stored: who am I, may I, may somebody else.

SelfSubjectReview            who the server takes me for
TokenReview                  whom it would take a token for
SelfSubjectAccessReview      whether I may do something
SubjectAccessReview          whether somebody may
LocalSubjectAccessReview     the same, in one namespace
SelfSubjectRulesReview       everything that I may do in a namespace
"""

from __future__ import annotations

from typing import Any

import orjson

from phalanx.api.errors import Cause, Invalid, Unauthorized
from phalanx.api.wire import Object, Reply, User
from phalanx.server.access import MASTERS
from phalanx.server.bodies import read_object
from phalanx.server.call import Call
from phalanx.server.context import Context

_EVERYTHING = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
_EVERY_PATH = {"verbs": ["*"], "nonResourceURLs": ["*"]}


async def self_review(context: Context, call: Call) -> Reply:
    """Who asks, as the server sees it."""
    user = call.request.user
    info = {"username": user.name, "groups": list(user.groups)}
    return _answer(call, read_object(context, call), {"userInfo": info})


async def token_review(context: Context, call: Call) -> Reply:
    """Whether a token is known, and whose it is."""
    body = read_object(context, call)
    token = body.get("spec", {}).get("token", "")
    try:
        user = context.tokens.identify(f"Bearer {token}")
    except Unauthorized:
        return _answer(call, body, {"authenticated": False, "error": "the token is not known"})
    info = {"username": user.name, "groups": list(user.groups)}
    return _answer(call, body, {"authenticated": True, "user": info})


async def self_access_review(context: Context, call: Call) -> Reply:
    """Whether the asker may do what the spec says."""
    body = read_object(context, call)
    _check_attributes(call, body.get("spec", {}))
    return _answer(call, body, _verdict(call.request.user))


async def access_review(context: Context, call: Call) -> Reply:
    """Whether the user in the spec may do what the spec says."""
    body = read_object(context, call)
    spec = body.get("spec", {})
    _check_attributes(call, spec)
    return _answer(call, body, _verdict(User(spec.get("user", ""), tuple(spec.get("groups", ())))))


async def self_rules_review(context: Context, call: Call) -> Reply:
    """What the asker may do."""
    body = read_object(context, call)
    everything = MASTERS in call.request.user.groups
    return _answer(call, body, {
        "resourceRules": [_EVERYTHING] if everything else [],
        "nonResourceRules": [_EVERY_PATH] if everything else [],
        "incomplete": False,
    })  # fmt: skip


def _verdict(user: User) -> Object:
    return {"allowed": MASTERS in user.groups}


def _check_attributes(call: Call, spec: dict[str, Any]) -> None:
    given = [key for key in ("resourceAttributes", "nonResourceAttributes") if spec.get(key)]
    if len(given) == 1:
        return
    detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
    cause = Cause("spec", "FieldValueInvalid", f"Invalid value: null: {detail}")
    group = call.kind.group
    raise Invalid(f'.{group} "" is invalid: {cause}', group=group, causes=[cause])


def _answer(call: Call, body: Object, status: Object) -> Reply:
    shown = {"kind": call.kind.name, "apiVersion": call.kind.api_version, **body, "status": status}
    return Reply(201, orjson.dumps(shown))
