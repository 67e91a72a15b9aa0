"""Binding: a pod gets its node, alone or with its whole gang in one transaction.

`pods/binding` does what Kubernetes does. `groupbindings` (ours) binds many pods or none: each
must be unbound, alive and of the given uid, each node must exist and have room left in the
ledger, the groups by whose terms they were placed must be there, and all of it is committed at
once, together with what users are told of it. DECISION → BIND → STORE ends here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from phalanx.api.causes import required, unsupported
from phalanx.api.core import Node
from phalanx.api.errors import ApiError, BadRequest, Cause, Conflict, Invalid, sentence
from phalanx.api.kinds import BINDING, GROUP_BINDING, NODE, POD, POD_GROUP
from phalanx.api.resources import Amounts, node_room
from phalanx.api.wire import Object, Reply
from phalanx.server.admission import is_closing
from phalanx.server.announcing import group_standing, scheduled_event
from phalanx.server.bodies import read_object
from phalanx.server.call import Call
from phalanx.server.context import Context
from phalanx.server.ledger import NOTHING, Charge, charge, entries, taken
from phalanx.server.objects import conflict, decoded, encoder, modified, not_found, succeeded
from phalanx.server.security.audit import number_of
from phalanx.store.kv import Record, Stale, Write

#: Pods that one GroupBinding may hold, and refusals that are gathered before it is given up.
MAX_BINDINGS = 20_000
MAX_REFUSALS = 32
_BINDING = "pods/binding"


async def bind(context: Context, call: Call) -> Reply:
    """Bind one pod, as Kubernetes does: the node need not exist nor have room.

    Through the bindings collection it is the body that names the pod.
    """
    call.check_dry_run()
    name, meta, target = _read_binding(context, call)
    record = context.store.pending(POD.key(call.namespace, name))
    if record is None:
        raise not_found(POD, name)
    pod = decoded(record)
    if meta.get("uid", pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
        raise conflict(POD, name, (
            f"Precondition failed: UID in precondition: {meta['uid']}, "
            f"UID in object meta: {pod['metadata']['uid']}"
        ))  # fmt: skip
    if why := _unbindable(pod):
        raise conflict(POD, name, why, called=_BINDING)
    bound = _bound(context, pod, target["name"])
    for part in ("annotations", "labels"):
        if meta.get(part):
            bound["metadata"].setdefault(part, {}).update(meta[part])
    if not call.dry_run:
        await _commit(context, [(record, bound, charge(bound))])
    return succeeded(201)


def _read_binding(context: Context, call: Call) -> tuple[str, Object, Object]:
    body = read_object(context, replace(call, kind=BINDING))
    meta, target = body.get("metadata") or {}, body.get("target") or {}
    name = call.name or meta.get("name", "")
    if meta.get("name", name) != name:
        raise BadRequest(f"name in URL does not match name in Binding object: {meta['name']}")
    if target.get("kind", "Node") != "Node":
        raise _invalid(name, unsupported("target.kind", target["kind"], ("Node", "<empty>")))
    if not target.get("name"):
        raise _invalid(name, required("target.name"))
    return name, meta, target


@dataclass(slots=True)
class _Group:
    """A GroupBinding in the making: what is bound, what it would take, what is wrong with it.

    `news` are the writes that tell of it, but for the events of a namespace that takes none.
    """

    tells_events: bool
    changes: list[tuple[Record, Object, Charge]] = field(default_factory=list)
    news: list[Write] = field(default_factory=list)
    room: dict[str, Amounts] = field(default_factory=dict)
    refusals: list[Cause] = field(default_factory=list)

    def refuse(self, at: str, reason: str, message: str) -> None:
        self.refusals.append(Cause(at, reason, message))


async def bind_group(context: Context, call: Call) -> Reply:
    """Bind all the pods of a GroupBinding, or none."""
    call.check_dry_run()
    with context.meter.stage("bind"):
        group = _gathered(context, call)
    if group.refusals:
        raise Conflict(
            f"no pod of the group was bound: {sentence(group.refusals)}",
            group=GROUP_BINDING.group, kind=GROUP_BINDING.plural, causes=group.refusals,
        )  # fmt: skip
    if not call.dry_run:
        await _commit(context, group.changes, group.news)
    return succeeded(201)


def _gathered(context: Context, call: Call) -> _Group:
    body = read_object(context, call)
    bindings = body.get("bindings") or []
    if not bindings or len(bindings) > MAX_BINDINGS:
        raise _bad_group(f"between 1 and {MAX_BINDINGS} bindings are needed, got {len(bindings)}")
    group = _Group(not is_closing(context, call.namespace))
    for number, terms in enumerate(body.get("groups") or []):
        _check_terms(context, call, group, f"groups[{number}]", terms)
    seen: set[str] = set()
    for number, binding in enumerate(bindings):
        name, at = binding.get("name", ""), f"bindings[{number}]"
        if len(group.refusals) >= MAX_REFUSALS:
            break
        if name in seen:
            group.refuse(at, "FieldValueDuplicate", f'pod "{name}" is bound twice')
        else:
            seen.add(name)
            _join(context, call, group, at, binding)
    return group


def _check_terms(context: Context, call: Call, group: _Group, at: str, terms: Object) -> None:
    """A group made again under its name may ask for something else."""
    name, standing = terms.get("name", ""), terms.get("standing") or {}
    record = context.store.pending(POD_GROUP.key(call.namespace, name))
    found = decoded(record) if record else None
    if record is None or found is None or found["metadata"]["uid"] != terms.get("uid"):
        group.refuse(at, "GroupGone", f'group "{name}" is not the one that was meant')
    elif any(number < 0 for number in standing.values()):
        group.refuse(f"{at}.standing", "FieldValueInvalid", "numbers may not be negative")
    elif standing:
        group.news += group_standing(context, record, found, standing)


def _join(context: Context, call: Call, group: _Group, at: str, binding: Mapping[str, str]) -> None:
    """Check one member and count the room that it takes."""
    name, node = binding.get("name", ""), binding.get("node", "")
    record = context.store.pending(POD.key(call.namespace, name))
    if record is None:
        return group.refuse(at, "PodGone", f'pod "{name}" not found')
    pod = decoded(record)
    if binding.get("uid") != pod["metadata"]["uid"]:
        return group.refuse(at, "PodGone", f'pod "{name}" is not the one that was meant')
    if why := _unbindable(pod) or _ended(pod):
        return group.refuse(at, "PodChanged", why)
    room = _room(context, group, node)
    if room is None:
        return group.refuse(at, "NodeGone", f'node "{node}" not found')
    bound = _bound(context, pod, node)
    taken_room = charge(bound)
    if short := _take(room, taken_room.amounts):
        return group.refuse(at, "NodeFull", f'node "{node}" has not enough {short} left')
    if group.tells_events:
        group.news.append(scheduled_event(context, bound, number_of(call.request)))
    group.changes.append((record, bound, taken_room))
    return None


def _room(context: Context, group: _Group, node: str) -> Amounts | None:
    """What is left of a node, with the members so far on it; None when there is no such node."""
    if node not in group.room:
        record = context.store.pending(NODE.key("", node))
        if record is None:
            return None
        room = node_room(msgspec.json.decode(record.value, type=Node))
        used = taken(context.store, node)
        group.room[node] = {name: amount - used.get(name, 0) for name, amount in room.items()}
    return group.room[node]


def _take(room: Amounts, needs: Mapping[str, int]) -> str:
    """Take room; the first resource of which there is not enough, or nothing."""
    for name, amount in needs.items():
        if amount > room.get(name, 0):
            return name
    for name, amount in needs.items():
        room[name] -= amount
    return ""


def _unbindable(pod: Object) -> str:
    """Why a pod may not be bound, if so."""
    name, spec = pod["metadata"]["name"], pod.get("spec", {})
    if pod["metadata"].get("deletionTimestamp"):
        return f"pod {name} is being deleted, cannot be assigned to a host"
    if spec.get("nodeName"):
        return f'pod {name} is already assigned to node "{spec["nodeName"]}"'
    if spec.get("schedulingGates"):
        return f"pod {name} has non-empty .spec.schedulingGates"
    return ""


def _ended(pod: Object) -> str:
    phase = pod.get("status", {}).get("phase")
    return f"pod {pod['metadata']['name']} has ended" if phase in ("Succeeded", "Failed") else ""


def _bound(context: Context, pod: Object, node: str) -> Object:
    """The pod with its node and the condition that says so."""
    pod["spec"]["nodeName"] = node
    status = pod.setdefault("status", {})
    status.pop("nominatedNodeName", None)
    others = [c for c in status.get("conditions") or [] if c.get("type") != "PodScheduled"]
    status["conditions"] = [*others, {
        "type": "PodScheduled", "status": "True", "lastProbeTime": None,
        "lastTransitionTime": context.stamp(),
    }]  # fmt: skip
    return pod


async def _commit(
    context: Context, changes: list[tuple[Record, Object, Charge]], news: Sequence[Write] = ()
) -> None:
    """Write the bound pods, what is told of it, and the room that they take: none before."""
    writes = [Write(record.key, encoder(pod), record.revision) for record, pod, _ in changes]
    writes += news
    writes += entries(context.store, [(NOTHING, taken_room) for _, _, taken_room in changes])
    try:
        with context.meter.stage("commit"):
            await context.store.commit(writes)
    except Stale as error:
        raise modified(POD, error.key.rpartition("/")[2]) from error


def _invalid(name: str, cause: Cause) -> ApiError:
    return Invalid(f'Binding "{name}" is invalid: {cause}', name=name, kind="Binding",
                   causes=[cause])  # fmt: skip


def _bad_group(detail: str) -> ApiError:
    cause = Cause("bindings", "FieldValueInvalid", f"Invalid value: {detail}")
    return Invalid(
        f"{GROUP_BINDING.qualified} is invalid: {cause}",
        group=GROUP_BINDING.group, kind=GROUP_BINDING.name, causes=[cause],
    )  # fmt: skip
