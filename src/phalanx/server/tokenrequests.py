"""`serviceaccounts/token`: a token for a service account, for a time, perhaps for a pod's life."""

from __future__ import annotations

import orjson
from msgspec.structs import replace

from phalanx.api.causes import invalid
from phalanx.api.errors import BadRequest, Cause, Invalid
from phalanx.api.kinds import POD, SERVICE_ACCOUNT, TOKEN_REQUEST
from phalanx.api.meta import timestamp
from phalanx.api.wire import Object, Reply
from phalanx.server.bodies import read_object
from phalanx.server.call import Call
from phalanx.server.context import Context
from phalanx.server.objects import conflict, decoded, forbidden, not_found
from phalanx.server.security.accounttokens import BINDABLE, ISSUER, Account
from phalanx.server.security.nodes import runs_on
from phalanx.server.security.users import node_name

#: Seconds that a token lasts, at least, unless said otherwise, and at most.
_LEAST, _USUAL, _MOST = 600, 3600, 365 * 24 * 3600
_LIMIT = 1 << 32


async def issue(context: Context, call: Call) -> Reply:
    """A new token of an account. Nothing is stored."""
    call.check_dry_run()
    asked = read_object(context, replace(call, kind=TOKEN_REQUEST))
    spec: Object = asked.get("spec") or {}
    account = _existing(context, call)
    seconds = _seconds(call, spec.get("expirationSeconds"))
    now = context.clock.now()
    audiences = tuple(spec.get("audiences") or (ISSUER,))
    wanted = Account(
        call.namespace, call.name, account["metadata"]["uid"], audiences, now + seconds,
        _bound(context, call, spec.get("boundObjectRef")),
    )  # fmt: skip
    token = context.access.authenticator.accounts.issue(wanted, now, context.chance.uid())
    status = {"token": token, "expirationTimestamp": timestamp(wanted.expires)}
    said = {**spec, "audiences": list(audiences), "expirationSeconds": seconds}
    meta = {"name": call.name, "namespace": call.namespace, "creationTimestamp": timestamp(now)}
    return Reply(201, orjson.dumps({
        "kind": TOKEN_REQUEST.name, "apiVersion": TOKEN_REQUEST.api_version, "metadata": meta,
        "spec": said, "status": status,
    }))  # fmt: skip


def _existing(context: Context, call: Call) -> Object:
    record = context.store.get(call.key)
    if record is None:
        raise not_found(SERVICE_ACCOUNT, call.name)
    return decoded(record)


def _seconds(call: Call, wanted: int | None) -> int:
    """How long a token lasts; more than we give becomes the most that we give."""
    seconds = _USUAL if wanted is None else wanted
    if seconds < _LEAST:
        raise _invalid(call, seconds, "may not specify a duration less than 10 minutes")
    if seconds > _LIMIT:
        raise _invalid(call, seconds, "may not specify a duration larger than 2^32 seconds")
    return min(seconds, _MOST)


def _invalid(call: Call, value: int, detail: str) -> Invalid:
    cause: Cause = invalid("spec.expirationSeconds", value, detail)
    return Invalid(
        f'{TOKEN_REQUEST.qualified} "{call.name}" is invalid: {cause}',
        name=call.name, group=TOKEN_REQUEST.group, kind=TOKEN_REQUEST.name, causes=[cause],
    )  # fmt: skip


def _bound(context: Context, call: Call, reference: Object | None) -> tuple[str, str, str] | None:
    """What the token ends with, if with anything; it must be there."""
    node = node_name(call.request.user)
    if reference is None:
        if node:
            raise forbidden(SERVICE_ACCOUNT, call.name, f'node "{node}" must bind tokens to a pod')
        return None
    kind, name = BINDABLE.get(reference.get("kind", "")), reference.get("name", "")
    if kind is None:
        raise BadRequest(f"cannot bind token to object of type {reference.get('kind', '')}")
    record = context.store.get(kind.key(call.namespace, name))
    if record is None:
        raise not_found(kind, name)
    obj = decoded(record)
    uid = obj["metadata"]["uid"]
    if reference.get("uid", uid) != uid:
        detail = f"the UID in the bound object reference ({reference['uid']}) does not match the"
        raise conflict(kind, name, f"{detail} UID in record. The object might have been deleted")
    if kind is POD:
        _check_pod(call, obj, node)
    elif node:
        raise forbidden(SERVICE_ACCOUNT, call.name, f'node "{node}" must bind tokens to a pod')
    return kind.name, name, uid


def _check_pod(call: Call, pod: Object, node: str) -> None:
    """The pod must run under the account; and on the node, where a node asks."""
    if (pod["spec"].get("serviceAccountName") or "default") != call.name:
        raise BadRequest(
            f'cannot bind token for serviceaccount "{call.name}" to pod running with different '
            "serviceaccount name."
        )
    if node and not runs_on(pod, node):
        raise forbidden(SERVICE_ACCOUNT, call.name, f'the pod does not run on node "{node}"')
