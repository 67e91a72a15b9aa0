"""Group evictions: pods that make way for somebody more important, in one transaction.

`groupevictions` (ours) tells every pod why it goes and begins its deletion, all of them at once or
none: a group of which all members must go is never seen half evicted. A pod that is gone, or going
already, or another of the same name, is passed over. Groups that lose all their pods say so too. No
disruption budget is asked: whoever sends this has weighed them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from phalanx.api.causes import required
from phalanx.api.errors import BadRequest
from phalanx.api.kinds import COMPOSITE_POD_GROUP, GROUP_EVICTION, POD, POD_GROUP, Kind
from phalanx.api.scheduling import DISRUPTION_TARGET
from phalanx.api.wire import Object, Reply
from phalanx.server.bodies import read_object
from phalanx.server.call import Call
from phalanx.server.context import Context
from phalanx.server.deleting import Options, mark
from phalanx.server.ledger import NOTHING, Charge, charge, entries
from phalanx.server.objects import decoded, encoder, modified, refuse, succeeded
from phalanx.server.quotas import releases
from phalanx.server.writing import is_finished
from phalanx.store.kv import Stale, Write

#: Pods that one GroupEviction may hold.
MAX_PODS = 20_000
_GROUPS = {POD_GROUP.name: POD_GROUP, COMPOSITE_POD_GROUP.name: COMPOSITE_POD_GROUP}


@dataclass(slots=True)
class _Exodus:
    """A GroupEviction in the making."""

    reason: str
    message: str
    writes: list[Write] = field(default_factory=list)
    #: Pods that are gone at once, having nothing to wait for.
    gone: list[Object] = field(default_factory=list)
    freed: list[tuple[Charge, Charge]] = field(default_factory=list)


async def evict_group(context: Context, call: Call) -> Reply:
    """Evict all the pods of a GroupEviction, or none."""
    call.check_dry_run()
    body = _checked(read_object(context, call))
    pods = body["pods"]
    exodus = _Exodus(body.get("reason", ""), body.get("message", ""))
    for name, uid in {pod["name"]: pod["uid"] for pod in pods}.items():
        _send_off(context, replace(call, kind=POD, name=name), uid, exodus)
    for group in body.get("groups") or []:
        _tell_group(context, call, group, exodus)
    if exodus.writes and not call.dry_run:
        await _commit(context, exodus)
    return succeeded(201)


def _checked(body: Object) -> Object:
    pods = body.get("pods") or []
    if not pods or len(pods) > MAX_PODS:
        raise BadRequest(f"between 1 and {MAX_PODS} pods are needed, got {len(pods)}")
    causes = [
        required(f"{part}[{number}].{name}")
        for part in ("pods", "groups")
        for number, one in enumerate(body.get(part) or [])
        for name in ("name", "uid")
        if not one.get(name)
    ]
    refuse(GROUP_EVICTION, "", causes)
    return body


def _send_off(context: Context, call: Call, uid: str, exodus: _Exodus) -> None:
    """Tell one pod, and begin its deletion."""
    record = context.store.pending(POD.key(call.namespace, call.name))
    pod = decoded(record) if record else None
    if record is None or pod is None or pod["metadata"]["uid"] != uid:
        return
    if pod["metadata"].get("deletionTimestamp"):
        return
    old = decoded(record)
    _tell(context, pod, exodus)
    mark(context, call, pod, Options())
    if is_finished(POD, pod):
        exodus.gone.append(old)
        exodus.freed.append((charge(old), NOTHING))
        exodus.writes.append(Write(record.key, None, record.revision))
    else:
        exodus.writes.append(Write(record.key, encoder(pod), record.revision))


def _tell(context: Context, obj: Object, exodus: _Exodus) -> None:
    """Say in the status of an object that it was told to make way."""
    status = obj.setdefault("status", {})
    others = [c for c in status.get("conditions") or [] if c.get("type") != DISRUPTION_TARGET]
    news = {
        "type": DISRUPTION_TARGET, "status": "True", "reason": exodus.reason,
        "message": exodus.message, "lastTransitionTime": context.stamp(),
    }  # fmt: skip
    if generation := obj["metadata"].get("generation"):
        news["observedGeneration"] = generation
    status["conditions"] = [*others, news]


def _tell_group(context: Context, call: Call, group: Object, exodus: _Exodus) -> None:
    kind: Kind | None = _GROUPS.get(group.get("kind", POD_GROUP.name))
    if kind is None:
        raise BadRequest(f"groups are {' or '.join(_GROUPS)}, not {group['kind']}")
    record = context.store.pending(kind.key(call.namespace, group["name"]))
    obj = decoded(record) if record else None
    if record is not None and obj is not None and obj["metadata"]["uid"] == group["uid"]:
        _tell(context, obj, exodus)
        exodus.writes.append(Write(record.key, encoder(obj), record.revision))


async def _commit(context: Context, exodus: _Exodus) -> None:
    writes = [*exodus.writes, *releases(context, POD, exodus.gone)]
    writes += entries(context.store, exodus.freed)
    try:
        with context.meter.stage("commit"):
            await context.store.commit(writes)
    except Stale as error:
        raise modified(GROUP_EVICTION, "") from error
