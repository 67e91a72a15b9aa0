"""Deletion of one or many objects: at once, after a grace period, or with the last finalizer.

A deletion removes the object if nothing holds it. Otherwise it sets `deletionTimestamp`, and the
write that removes the last finalizer, or a deletion with grace period 0, removes the object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import orjson
from msgspec.structs import replace

from phalanx.api.defaults.custom_resource_definition import mark_terminating
from phalanx.api.errors import BadRequest, Conflict, NotFound, invalid, unsupported
from phalanx.api.kinds import CUSTOM_RESOURCE_DEFINITION, NAMESPACE, POD
from phalanx.api.meta import timestamp
from phalanx.api.schema import Malformed, schema
from phalanx.api.wire import Object, Reply
from phalanx.server.admission import AdmissionRequest, run_phase
from phalanx.server.context import ServerContext
from phalanx.server.custom_resources import delete_custom_objects, finish_definition_deletion
from phalanx.server.dynamic_admission.attributes import AdmissionAttributes, delete_options
from phalanx.server.dynamic_admission.registry import AdmissionHooks
from phalanx.server.objects import (
    conflict_error,
    decode_record,
    list_opening,
    modified_error,
    not_found_error,
    serialize_object,
    serialize_stored,
)
from phalanx.server.request_info import RequestInfo, invalid_options
from phalanx.server.serialization import encode_list, encode_reply, load_body, negotiate, take_turns
from phalanx.server.write_handlers import is_deletable, remove_object, store_object
from phalanx.store.kv import StoreWrite

#: Reviews of a deletion by webhooks and policies, if the object changes while they review it.
_MAX_REVIEWS = 5
#: The longest grace period of a pod: some 68 years.
_MAX_GRACE_PERIOD_SECONDS = 2**31 - 1
_FINISHED_PHASES = ("Succeeded", "Failed")
#: Policy -> the finalizer that makes an object wait for its dependents.
_POLICY_FINALIZERS = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}
_ORPHAN_WARNING = (
    "child pods are preserved by default when {} are deleted; set propagationPolicy=Background to "
    "remove them or set propagationPolicy=Orphan to suppress this warning"
)
_UNREADABLE_ONLY = "ignoreStoreReadErrorWithClusterBreakingPotential"
_POLICIES = ("Foreground", "Background", "Orphan", "nil")


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """The grace period, the propagation policy and the preconditions of a deletion."""

    grace: int | None = None
    policy: str = ""
    uid: str = ""
    version: str = ""
    dry_run: bool = False
    #: Delete only an object that the store cannot decode: no object here is one.
    unreadable_only: bool = False
    #: The options as the client sent them in the body.
    body: Object = field(default_factory=dict)


async def delete(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle DELETE of one object."""
    accepted, options = negotiate(request_info.request), read_delete_options(request_info)
    run_phase("validate", "DELETE", AdmissionRequest(context, request_info, {}))
    body, is_gone = await delete_one(context, request_info, options)
    if is_gone and not request_info.kind.deletion_returns_object:
        body = _success_status(request_info, orjson.loads(body))
    return encode_reply(Reply(200, body, headers=request_info.warning_headers()), accepted)


async def delete_collection(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle DELETE of a collection: delete the selected objects and return them."""
    accepted = negotiate(request_info.request)
    selection = request_info.selection_predicate()
    limit = max(request_info.int_option("limit") or 0, 0)
    options = read_delete_options(request_info)
    values: list[bytes] = []
    records = context.store.range(selection.prefix)
    async with aclosing(take_turns(record.value for record in records)) as turns:
        for record in records:
            if limit and len(values) == limit:
                break
            await anext(turns)
            obj = decode_record(record)
            if selection.matches(obj):
                meta = obj["metadata"]
                one = RequestInfo(
                    request_info.request, request_info.kind, meta.get("namespace", ""), meta["name"]
                )
                try:
                    body, _ = await delete_one(context, one, options)
                except NotFound:
                    continue
                values.append(body)
    kind, meta = request_info.kind, {"resourceVersion": str(context.store.revision)}
    opening = list_opening(kind.list_name, kind.api_version, meta)
    reply = await encode_list(opening, values, accepted)
    return replace(reply, headers=request_info.warning_headers())


async def delete_one(
    context: ServerContext,
    request_info: RequestInfo,
    options: DeleteOptions,
    *,
    extra_writes: Sequence[StoreWrite] = (),
    prepare: Callable[[Object], None] | None = None,
) -> tuple[bytes, bool]:
    """Delete an object or begin to; return it as it is now, and whether it is removed.

    `extra_writes` are committed in the same transaction. `prepare` may change the object before.
    An eviction, which has both, was reviewed by webhooks and policies as such.
    """
    kind = request_info.stored_kind
    hooks = None
    if context.dynamic_admission.is_configured and prepare is None:
        hooks = context.dynamic_admission.find_hooks(request_info.kind, "", "DELETE")
    for _ in range(_MAX_REVIEWS):
        record = context.store.pending(request_info.key)
        if record is None:
            raise not_found_error(request_info.kind, request_info.name)
        old = decode_record(record)
        _check_preconditions(request_info, old, options)
        if hooks is None or old["metadata"].get("deletionGracePeriodSeconds"):
            break
        await review_deletion(context, request_info, old, options=options, hooks=hooks)
        if context.store.pending(request_info.key) == record:
            break
    else:
        raise modified_error(request_info.kind, request_info.name)
    new = decode_record(record)
    if prepare is not None:
        prepare(new)
    mark_deleted(context, request_info, new, options=options)
    if options.dry_run:
        is_gone = is_deletable(kind, new)
        shown = old if is_gone and kind is not POD else new
        return serialize_object(request_info.kind, shown), is_gone
    if is_deletable(kind, new):
        # The reply shows a deletion timestamp for pods only, as in Kubernetes.
        last = await remove_object(
            context,
            request_info,
            record,
            old=old,
            last=new if kind is POD else old,
            extra_writes=extra_writes,
        )
        await finish_definition_deletion(context, kind)
        return serialize_object(request_info.kind, last), True
    if new == old:
        await context.store.commit(())
        return serialize_stored(request_info.kind, record.value), False
    written = await store_object(
        context, request_info, new, record=record, old=old, extra_writes=extra_writes
    )
    if kind is CUSTOM_RESOURCE_DEFINITION:
        await delete_custom_objects(context, request_info.name)
    return serialize_stored(request_info.kind, written.value), False


async def review_deletion(
    context: ServerContext,
    request_info: RequestInfo,
    old: Object,
    *,
    options: DeleteOptions,
    hooks: AdmissionHooks,
) -> None:
    """Let webhooks and policies refuse the deletion of an object.

    In the deletion of a collection they see no name, as in Kubernetes.
    """
    is_named = request_info.request.path.rstrip("/").endswith(f"/{request_info.name}")
    attributes = AdmissionAttributes(
        context,
        request_info,
        "DELETE",
        request_info.name if is_named or request_info.kind is NAMESPACE else "",
        None,
        old,
        options=delete_options(options.body),
        dry_run=options.dry_run,
    )
    await hooks.mutate(attributes)
    await hooks.validate(attributes)


def mark_deleted(
    context: ServerContext, request_info: RequestInfo, obj: Object, *, options: DeleteOptions
) -> None:
    """Set `deletionTimestamp` in an object; a second deletion can only shorten the grace period."""
    meta = obj["metadata"]
    if request_info.kind is CUSTOM_RESOURCE_DEFINITION and "deletionTimestamp" not in meta:
        # As in Kubernetes, the first deletion only begins to delete the custom objects.
        meta["deletionTimestamp"] = context.now_timestamp()
        mark_terminating(obj, context.now_timestamp())
        return
    if not request_info.kind.ignores_propagation:
        _set_propagation_finalizer(meta, options.policy)
    if request_info.kind is NAMESPACE:
        meta.setdefault("deletionTimestamp", context.now_timestamp())
        obj.setdefault("status", {})["phase"] = "Terminating"
        return
    grace = _grace_period(request_info, obj, options)
    if "deletionTimestamp" in meta and grace >= meta.get("deletionGracePeriodSeconds", 0):
        return
    if meta.get("generation") and "deletionTimestamp" not in meta:
        meta["generation"] += 1
    meta["deletionTimestamp"] = timestamp(context.clock.now() + grace)
    meta["deletionGracePeriodSeconds"] = grace


def _set_propagation_finalizer(meta: Object, policy: str) -> None:
    """Add the finalizer that makes the object wait for the garbage collector."""
    others = [
        name for name in meta.get("finalizers") or [] if name not in _POLICY_FINALIZERS.values()
    ]
    finalizers = [*others, _POLICY_FINALIZERS[policy]] if policy in _POLICY_FINALIZERS else others
    if finalizers:
        meta["finalizers"] = finalizers
    else:
        meta.pop("finalizers", None)


def _grace_period(request_info: RequestInfo, obj: Object, options: DeleteOptions) -> int:
    """The grace period in seconds: 0, except for a pod that may run on a node."""
    if request_info.kind is not POD:
        return 0
    spec = obj.get("spec", {})
    if not spec.get("nodeName") or obj.get("status", {}).get("phase") in _FINISHED_PHASES:
        return 0
    seconds = options.grace
    if seconds is None:
        seconds = spec.get("terminationGracePeriodSeconds", 30)
    return 1 if seconds < 0 else min(int(seconds), _MAX_GRACE_PERIOD_SECONDS)


def read_delete_options(request_info: RequestInfo, given: Object | None = None) -> DeleteOptions:
    """The options from the query and the body, or from `given` instead of the body."""
    request_info.check_dry_run()
    body = _read_body(request_info) if given is None else _check_options(given)
    policy = body.get("propagationPolicy") or request_info.query.get("propagationPolicy")
    grace = body.get("gracePeriodSeconds")
    if grace is None:
        grace = request_info.int_option("gracePeriodSeconds")
    orphan = body.get("orphanDependents")
    if orphan is None:
        orphan = request_info.bool_option("orphanDependents")
    causes = []
    if policy and orphan is not None:
        detail = "orphanDependents and deletionPropagation cannot be both set"
        causes.append(invalid("propagationPolicy", policy, detail))
    elif policy and policy not in _POLICIES[:3]:
        causes.append(unsupported("propagationPolicy", policy, _POLICIES))
    if causes:
        raise invalid_options("DeleteOptions", causes)
    if orphan is not None:
        policy = "Orphan" if orphan else "Background"
    if not policy and request_info.kind.orphans_by_default:
        policy = "Orphan"
        request_info.warnings.append(_ORPHAN_WARNING.format(request_info.kind.plural))
    conditions = body.get("preconditions") or {}
    return DeleteOptions(
        grace=grace,
        policy=policy or "Background",
        uid=conditions.get("uid") or "",
        version=conditions.get("resourceVersion") or "",
        dry_run=request_info.dry_run or bool(body.get("dryRun")),
        unreadable_only=bool(
            body.get(_UNREADABLE_ONLY) or request_info.bool_option(_UNREADABLE_ONLY)
        ),
        body=body,
    )


def _read_body(request_info: RequestInfo) -> dict[str, Any]:
    if not request_info.request.body:
        return {}
    body = load_body(request_info.request)
    if not isinstance(body, dict):
        raise BadRequest("delete options must be an object")
    return _check_options(body)


def _check_options(body: Object) -> Object:
    if body.get("kind") not in (None, "", "DeleteOptions"):
        version = body.get("apiVersion") or "v1"
        raise BadRequest(f'no kind "{body["kind"]}" is registered for version "{version}"')
    try:
        schema("meta.v1.DeleteOptions").normalize(body)
    except Malformed as error:
        raise BadRequest(f"invalid delete options: {error}") from error
    for mode in body.get("dryRun") or ():
        if mode != "All":
            raise invalid_options("DeleteOptions", [unsupported("dryRun", mode, ("All",))])
    return body


def _check_preconditions(request_info: RequestInfo, obj: Object, options: DeleteOptions) -> None:
    meta, name = obj["metadata"], request_info.kind.qualified_name
    if options.unreadable_only:
        detail = "unsafe deletion is not allowed because the object is decodable from storage"
        raise conflict_error(request_info.kind, request_info.name, detail)
    if options.uid and options.uid != meta["uid"]:
        raise _precondition_conflict(
            name, request_info, "UID", expected=options.uid, found=meta["uid"]
        )
    if options.version and options.version != meta["resourceVersion"]:
        raise _precondition_conflict(
            name,
            request_info,
            "ResourceVersion",
            expected=options.version,
            found=meta["resourceVersion"],
        )


def _precondition_conflict(
    kind: str, request_info: RequestInfo, field: str, *, expected: str, found: str
) -> Conflict:
    return Conflict(
        f'Operation cannot be fulfilled on {kind} "{request_info.name}": the {field} in the '
        f"precondition ({expected}) does not match the {field} in record ({found}). The object "
        "might have been " + ("deleted and then recreated" if field == "UID" else "modified"),
        name=request_info.name,
        group=request_info.kind.group,
        kind=request_info.kind.name,
    )


def _success_status(request_info: RequestInfo, obj: Object) -> bytes:
    details: Object = {
        "name": request_info.name,
        "kind": request_info.kind.plural,
        "uid": obj["metadata"]["uid"],
    }
    if request_info.kind.group:
        details["group"] = request_info.kind.group
    return orjson.dumps(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": details,
        }
    )
