"""Delete one or many: at once, after a grace period, or when the last finalizer is gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from phalanx.api.causes import invalid, unsupported
from phalanx.api.defaults.crd import terminate
from phalanx.api.errors import BadRequest, Conflict, NotFound
from phalanx.api.kinds import CUSTOM_RESOURCE_DEFINITION, NAMESPACE, POD
from phalanx.api.meta import timestamp
from phalanx.api.schema import Malformed, schema
from phalanx.api.wire import Object, Reply
from phalanx.server import admission
from phalanx.server.call import Call, bad_options
from phalanx.server.context import Context
from phalanx.server.customresources import clear, gone
from phalanx.server.formats import load
from phalanx.server.negotiation import in_media, negotiate
from phalanx.server.objects import decoded, dumped, listed, not_found, presented
from phalanx.server.writing import is_finished, remove, store_object
from phalanx.store.kv import Write

#: No pod is given longer than this to end: some 68 years.
_LONGEST_GRACE = 2**31 - 1
_ENDED = ("Succeeded", "Failed")
#: Policy -> the finalizer by which an object waits for what depends on it.
_HOLDS = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}
_ORPHANING = (
    "child pods are preserved by default when {} are deleted; set propagationPolicy=Background to "
    "remove them or set propagationPolicy=Orphan to suppress this warning"
)
_POLICIES = ("Foreground", "Background", "Orphan", "nil")


@dataclass(frozen=True, slots=True)
class Options:
    """How to delete: after how long, and only if it is still the one that was meant."""

    grace: int | None = None
    policy: str = ""
    uid: str = ""
    version: str = ""
    dry_run: bool = False


async def delete(context: Context, call: Call) -> Reply:
    """Delete one object."""
    accepted, options = negotiate(call.request), read_options(call)
    admission.admit_deletion(call)
    body, is_gone = await delete_one(context, call, options)
    if is_gone and not call.kind.deletion_returns_object:
        body = _success(call, orjson.loads(body))
    return in_media(Reply(200, body, headers=call.warning_headers()), accepted)


async def delete_collection(context: Context, call: Call) -> Reply:
    """Delete every object of a selection; the list of them."""
    accepted, options, selection = negotiate(call.request), read_options(call), call.selection()
    values: list[bytes] = []
    for record in context.store.range(selection.prefix):
        obj = decoded(record)
        if selection.holds(obj):
            meta = obj["metadata"]
            one = Call(call.request, call.kind, meta.get("namespace", ""), meta["name"])
            try:
                body, _ = await delete_one(context, one, options)
            except NotFound:
                continue
            values.append(body)
    meta = {"resourceVersion": str(context.store.revision)}
    return in_media(Reply(200, listed(call.kind, meta, values)), accepted)


async def delete_one(
    context: Context, call: Call, options: Options, also: Sequence[Write] = ()
) -> tuple[bytes, bool]:
    """Delete, or begin to; the object as it is now, and whether it is gone.

    `also` is written in the same transaction.
    """
    kind, record = call.stored, context.store.pending(call.key)
    if record is None:
        raise not_found(call.kind, call.name)
    old = decoded(record)
    _check_preconditions(call, old, options)
    new = decoded(record)
    mark(context, call, new, options)
    if options.dry_run:
        return dumped(call.kind, new), is_finished(kind, new)
    if is_finished(kind, new):
        # A pod is told that it ended at once; other kinds are shown as they were.
        last = await remove(context, kind, record, old, new if kind is POD else old, also)
        await gone(context, kind)
        return dumped(call.kind, last), True
    if new == old:
        await context.store.commit(())
        return presented(call.kind, record.value), False
    written = await store_object(context, kind, call.key, new, record, old, also)
    if kind is CUSTOM_RESOURCE_DEFINITION:
        await clear(context, call.name)
    return presented(call.kind, written.value), False


def mark(context: Context, call: Call, obj: Object, options: Options) -> None:
    """Note in an object that it is to go, and when; a second request can only hasten that."""
    meta = obj["metadata"]
    if call.kind is NAMESPACE:
        meta.setdefault("deletionTimestamp", context.stamp())
        obj.setdefault("status", {})["phase"] = "Terminating"
        return
    _hold(meta, options.policy)
    grace = _grace(call, obj, options)
    if "deletionTimestamp" in meta and grace >= meta.get("deletionGracePeriodSeconds", 0):
        return
    if meta.get("generation") and "deletionTimestamp" not in meta:
        meta["generation"] += 1
    meta["deletionTimestamp"] = timestamp(context.clock.now() + grace)
    meta["deletionGracePeriodSeconds"] = grace
    if call.kind is CUSTOM_RESOURCE_DEFINITION:
        terminate(obj, context.stamp())


def _hold(meta: Object, policy: str) -> None:
    """Have the object wait for the garbage collector, where its deletion asks for that."""
    others = [name for name in meta.get("finalizers") or [] if name not in _HOLDS.values()]
    finalizers = [*others, _HOLDS[policy]] if policy in _HOLDS else others
    if finalizers:
        meta["finalizers"] = finalizers
    else:
        meta.pop("finalizers", None)


def _grace(call: Call, obj: Object, options: Options) -> int:
    """Only a pod that may be running on a node is given time."""
    if call.kind is not POD:
        return 0
    spec = obj.get("spec", {})
    if not spec.get("nodeName") or obj.get("status", {}).get("phase") in _ENDED:
        return 0
    wanted = options.grace
    if wanted is None:
        wanted = spec.get("terminationGracePeriodSeconds", 30)
    return 1 if wanted < 0 else min(int(wanted), _LONGEST_GRACE)


def read_options(call: Call, given: Object | None = None) -> Options:
    """The options of a deletion, from the query and the body (or from where they are given)."""
    call.check_dry_run()
    body = _body(call) if given is None else _checked(given)
    policy = body.get("propagationPolicy") or call.query.get("propagationPolicy")
    causes = []
    if policy and body.get("orphanDependents") is not None:
        detail = "orphanDependents and deletionPropagation cannot be both set"
        causes.append(invalid("propagationPolicy", policy, detail))
    elif policy and policy not in _POLICIES[:3]:
        causes.append(unsupported("propagationPolicy", policy, _POLICIES))
    if causes:
        raise bad_options("DeleteOptions", causes)
    if body.get("orphanDependents") is not None:
        policy = "Orphan" if body["orphanDependents"] else "Background"
    if not policy and call.kind.orphans_by_default:
        policy = "Orphan"
        call.warnings.append(_ORPHANING.format(call.kind.plural))
    conditions = body.get("preconditions") or {}
    grace = body.get("gracePeriodSeconds")
    return Options(
        grace=grace if grace is not None else call.number("gracePeriodSeconds"),
        policy=policy or "Background",
        uid=conditions.get("uid") or "",
        version=conditions.get("resourceVersion") or "",
        dry_run=call.dry_run or bool(body.get("dryRun")),
    )


def _body(call: Call) -> dict[str, Any]:
    if not call.request.body:
        return {}
    body = load(call.request)
    if not isinstance(body, dict):
        raise BadRequest("delete options must be an object")
    return _checked(body)


def _checked(body: Object) -> Object:
    try:
        schema("meta.v1.DeleteOptions").conform(body)
    except Malformed as error:
        raise BadRequest(f"delete options cannot be read: {error}") from error
    for mode in body.get("dryRun") or ():
        if mode != "All":
            raise bad_options("DeleteOptions", [unsupported("dryRun", mode, ("All",))])
    return body


def _check_preconditions(call: Call, obj: Object, options: Options) -> None:
    meta, name = obj["metadata"], call.kind.name
    if options.uid and options.uid != meta["uid"]:
        raise _precondition(name, call, "UID", options.uid, meta["uid"])
    if options.version and options.version != meta["resourceVersion"]:
        raise _precondition(name, call, "ResourceVersion", options.version, meta["resourceVersion"])


def _precondition(kind: str, call: Call, what: str, wanted: str, found: str) -> Conflict:
    return Conflict(
        f'Operation cannot be fulfilled on {kind} "{call.name}": the {what} in the precondition '
        f"({wanted}) does not match the {what} in record ({found}). The object might have been "
        + ("deleted and then recreated" if what == "UID" else "modified"),
        name=call.name, kind=kind,
    )  # fmt: skip


def _success(call: Call, obj: Object) -> bytes:
    details: Object = {"name": call.name, "kind": call.kind.plural, "uid": obj["metadata"]["uid"]}
    if call.kind.group:
        details["group"] = call.kind.group
    return orjson.dumps({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": details,
    })  # fmt: skip
