"""LeaseRenewals: one request renews many Leases in one transaction.

Node heartbeats are the most frequent writes of an idle cluster. `leaserenewals` (a kind of Phalanx)
does to each Lease what a patch of its `renewTime` does: it gets its own revision, its field manager
and its watch event. A Lease that is missing or has another holder is reported in the status and
does not prevent the renewal of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import orjson
from msgspec.structs import replace

from phalanx.api.errors import ApiError, Cause, Invalid
from phalanx.api.kinds import LEASE, LEASE_RENEWAL
from phalanx.api.wire import Object, Reply
from phalanx.server.admission import AdmissionRequest
from phalanx.server.context import ServerContext
from phalanx.server.object_preparation import record_field_ownership
from phalanx.server.objects import conflict_error, decode_record, encoder, object_header
from phalanx.server.request_bodies import read_object
from phalanx.server.request_info import RequestInfo
from phalanx.server.write_handlers import modify
from phalanx.store.kv import StoreWrite

#: Leases that one request may renew.
MAX_LEASES = 1_000


async def renew_leases(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle a LeaseRenewal."""
    request_info.check_dry_run()
    with context.meter.stage("parse"):
        body = read_object(context, request_info)
    holders = _read_holders(body)
    writes: list[StoreWrite] = []
    refused: list[Object] = []
    lease_call = replace(request_info, kind=LEASE)
    if context.dynamic_admission.find_hooks(LEASE, "", "UPDATE"):
        refused = await _renew_with_hooks(
            context, lease_call, holders, renew_time=body["renewTime"]
        )
        holders = {}
    for name, holder in holders.items():
        match _renewal_write(
            context, lease_call, name, holder=holder, renew_time=body["renewTime"]
        ):
            case StoreWrite() as write:
                writes.append(write)
            case dict(refusal):
                refused.append(refusal)
    if not request_info.dry_run:
        with context.meter.stage("commit"):
            await context.store.commit(writes)
    body["status"] = {"refused": refused} if refused else {}
    header = object_header(LEASE_RENEWAL.name, LEASE_RENEWAL.api_version)
    return Reply(201, header + orjson.dumps(body)[1:], headers=request_info.warning_headers())


async def _renew_with_hooks(
    context: ServerContext,
    request_info: RequestInfo,
    holders: Mapping[str, str],
    *,
    renew_time: str,
) -> list[Object]:
    """Update each lease on its own, because webhooks or policies review updates of Leases."""

    async def renew(name: str, holder: str) -> Object | None:
        def set_time(lease: Object) -> Object:
            present = lease.get("spec", {}).get("holderIdentity", "")
            if holder and present != holder:
                raise conflict_error(LEASE, name, f'the lease is held by "{present}"')
            lease.setdefault("spec", {})["renewTime"] = renew_time
            return lease

        try:
            await modify(context, replace(request_info, name=name), set_time, is_patch=True)
        except ApiError as error:
            return _refusal(name, error.reason, error.message)
        return None

    found = await asyncio.gather(*(renew(name, holder) for name, holder in holders.items()))
    return [refusal for refusal in found if refusal]


def _read_holders(body: Object) -> Mapping[str, str]:
    """The leases to renew, and the holder that each must have ("": any)."""
    leases = body.get("leases") or []
    if not body.get("renewTime"):
        raise _invalid_renewal(Cause("renewTime", "FieldValueRequired", "Required value"))
    if not leases or len(leases) > MAX_LEASES:
        detail = f"Invalid value: between 1 and {MAX_LEASES} leases are needed, got {len(leases)}"
        raise _invalid_renewal(Cause("leases", "FieldValueInvalid", detail))
    return {lease.get("name", ""): lease.get("holderIdentity", "") for lease in leases}


def _renewal_write(
    context: ServerContext, request_info: RequestInfo, name: str, *, holder: str, renew_time: str
) -> StoreWrite | Object | None:
    """The write that renews a lease, the refusal, or None if it has this renewTime already."""
    record = context.store.pending(LEASE.store_key(request_info.namespace, name))
    if record is None:
        return _refusal(name, "NotFound", f'{LEASE.resource} "{name}" not found')
    old, new = decode_record(record), decode_record(record)
    spec = new.setdefault("spec", {})
    if holder and (present := spec.get("holderIdentity", "")) != holder:
        return _refusal(name, "Conflict", f'the lease is held by "{present}"')
    if spec.get("renewTime") == renew_time:
        return None
    spec["renewTime"] = renew_time
    record_field_ownership(AdmissionRequest(context, request_info, new, old))
    return StoreWrite(record.key, encoder(new), record.revision)


def _refusal(name: str, reason: str, message: str) -> Object:
    return {"name": name, "reason": reason, "message": message}


def _invalid_renewal(cause: Cause) -> Invalid:
    return Invalid(
        f"{LEASE_RENEWAL.qualified_name} is invalid: {cause}",
        group=LEASE_RENEWAL.group,
        kind=LEASE_RENEWAL.name,
        causes=[cause],
    )
