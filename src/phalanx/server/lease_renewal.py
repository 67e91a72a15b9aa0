"""Leases in numbers: one request renews many of them, in one transaction.

What a cluster does most when nothing happens is to say that its nodes are alive. `leaserenewals`
(ours) does to each lease what a patch of its `renewTime` would, in a revision of its own, owned by
whoever renews, seen by everybody who watches. A lease that is gone or held by another is told of
and does not keep the others from being renewed.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from msgspec.structs import replace

from phalanx.api.errors import Cause, Invalid
from phalanx.api.kinds import LEASE, LEASE_RENEWAL
from phalanx.api.wire import Object, Reply
from phalanx.server.context import ServerContext
from phalanx.server.objects import decode_record, encoder, object_header
from phalanx.server.request_bodies import read_object
from phalanx.server.request_info import RequestInfo
from phalanx.server.write_handlers import record_field_ownership
from phalanx.store.kv import StoreWrite

#: Leases that one request may renew.
MAX_LEASES = 1_000


async def renew_leases(context: ServerContext, call: RequestInfo) -> Reply:
    """Renew the named leases, but for those that are gone or not held as the request says."""
    call.check_dry_run()
    with context.meter.stage("parse"):
        asked = read_object(context, call)
    holds = _requested_holders(asked)
    writes: list[StoreWrite] = []
    refused: list[Object] = []
    as_patch = replace(call, kind=LEASE)
    for name, holder in holds.items():
        match _renewal_write(context, as_patch, name, holder, asked["renewTime"]):
            case StoreWrite() as write:
                writes.append(write)
            case dict(refusal):
                refused.append(refusal)
    if not call.dry_run:
        with context.meter.stage("commit"):
            await context.store.commit(writes)
    asked["status"] = {"refused": refused} if refused else {}
    told = object_header(LEASE_RENEWAL.name, LEASE_RENEWAL.api_version) + orjson.dumps(asked)[1:]
    return Reply(201, told, headers=call.warning_headers())


def _requested_holders(body: Object) -> Mapping[str, str]:
    """Which leases to renew, and who is said to hold each, if it is said."""
    leases = body.get("leases") or []
    if not body.get("renewTime"):
        raise _invalid_renewal(Cause("renewTime", "FieldValueRequired", "Required value"))
    if not leases or len(leases) > MAX_LEASES:
        detail = f"Invalid value: between 1 and {MAX_LEASES} leases are needed, got {len(leases)}"
        raise _invalid_renewal(Cause("leases", "FieldValueInvalid", detail))
    return {lease.get("name", ""): lease.get("holderIdentity", "") for lease in leases}


def _renewal_write(
    context: ServerContext, call: RequestInfo, name: str, holder: str, renew_time: str
) -> StoreWrite | Object | None:
    """The write that renews a lease, why it is not renewed, or nothing if it was already."""
    record = context.store.pending(LEASE.store_key(call.namespace, name))
    if record is None:
        return _refusal(name, "NotFound", f'{LEASE.resource} "{name}" not found')
    old, new = decode_record(record), decode_record(record)
    spec = new.setdefault("spec", {})
    if holder and (present := spec.get("holderIdentity", "")) != holder:
        return _refusal(name, "Conflict", f'the lease is held by "{present}"')
    if spec.get("renewTime") == renew_time:
        return None
    spec["renewTime"] = renew_time
    record_field_ownership(context, call, old, new)
    return StoreWrite(record.key, encoder(new), record.revision)


def _refusal(name: str, reason: str, message: str) -> Object:
    return {"name": name, "reason": reason, "message": message}


def _invalid_renewal(cause: Cause) -> Invalid:
    return Invalid(
        f"{LEASE_RENEWAL.qualified_name} is invalid: {cause}",
        group=LEASE_RENEWAL.group, kind=LEASE_RENEWAL.name, causes=[cause],
    )  # fmt: skip
