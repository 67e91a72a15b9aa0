"""What users are told of pods that are bound together: an event of each, the standing of groups.

Written in the transaction of a GroupBinding: told if and only if it is so, and at the price of no
other request. All of it is the server's own word, so no admission and no rule looks at it, and it
is owned by nobody, like the node and the condition that a binding gives to a pod.

Binding: a pod gets its node, alone or with its whole gang in one transaction.

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

from phalanx.api.core import Node
from phalanx.api.errors import ApiError, BadRequest, Cause, Conflict, Invalid, join_causes
from phalanx.api.field_errors import required, unsupported
from phalanx.api.kinds import BINDING, EVENT, GROUP_BINDING, NODE, POD, POD_GROUP
from phalanx.api.resources import Amounts, node_allocatable
from phalanx.api.scheduling import scheduled_conditions
from phalanx.api.wire import Object, Reply
from phalanx.server.admission import is_terminating_or_missing
from phalanx.server.context import ServerContext
from phalanx.server.node_allocations import (
    NO_ALLOCATION,
    NodeAllocation,
    allocated_amounts,
    allocation_writes,
    pod_allocation,
)
from phalanx.server.objects import (
    conflict_error,
    decode_record,
    encoder,
    modified_error,
    not_found_error,
    success_reply,
)
from phalanx.server.request_bodies import read_object
from phalanx.server.request_info import RequestInfo
from phalanx.server.security.audit import client_audit_id
from phalanx.store.kv import KeyValue, RevisionConflict, StoreWrite
from phalanx.telemetry import REQUEST_ANNOTATION

#: How much of its uid tells an event from others of the same pod, and how long names may be before.
_UID_SUFFIX, _MAX_EVENT_NAME_PREFIX = slice(-12, None), 240
_STATUS_COUNTS = ("pendingPods", "scheduledPods")


def scheduled_event(context: ServerContext, pod: Object, audit_id: str) -> StoreWrite:
    """The event that says where a pod went, in the name of the scheduler that it asks for.

    It has the number of the request, if its client gave it one.
    """
    meta, component = pod["metadata"], pod["spec"].get("schedulerName", "")
    space, name, now = meta["namespace"], meta["name"], context.now_timestamp()
    uid = context.random.uid()
    called = f"{name[:_MAX_EVENT_NAME_PREFIX].rstrip('-.')}.{uid[_UID_SUFFIX]}"
    noted = {"annotations": {REQUEST_ANNOTATION: audit_id}} if audit_id else {}
    event = {
        "metadata": {
            "name": called, "namespace": space, "uid": uid, "creationTimestamp": now, **noted,
        },
        "involvedObject": {
            "kind": POD.name, "apiVersion": POD.api_version, "name": name, "namespace": space,
            "uid": meta["uid"], "resourceVersion": meta["resourceVersion"],
        },
        "reason": "Scheduled",
        "message": f"Successfully assigned {space}/{name} to {pod['spec']['nodeName']}",
        "type": "Normal", "source": {"component": component}, "reportingComponent": component,
        "firstTimestamp": now, "lastTimestamp": now, "count": 1,
    }  # fmt: skip
    return StoreWrite(EVENT.store_key(space, called), encoder(event), 0)


def group_status_writes(
    context: ServerContext, record: KeyValue, group: Object, standing: Mapping[str, int]
) -> list[StoreWrite]:
    """The write, if any is needed, by which a group says that it is placed, once and for all."""
    old = group.get("status") or {}
    counts = {name: standing[name] for name in _STATUS_COUNTS if standing.get(name)}
    kept = {name: value for name, value in old.items() if name not in _STATUS_COUNTS}
    said = _placed_group_conditions(context, old.get("conditions") or [], standing)
    new = {**kept, "conditions": said, **counts}
    if new == old:
        return []
    return [StoreWrite(record.key, encoder({**group, "status": new}), record.revision)]


def _placed_group_conditions(
    context: ServerContext, conditions: list[Object], standing: Mapping[str, int]
) -> list[Object]:
    """The conditions of a placed group, each where it was; one that is true stays as it is."""
    found = {condition["type"]: condition for condition in conditions}
    for news in scheduled_conditions(standing.get("neededPods", 0)):
        if found.get(news.type, {}).get("status") != news.status:
            condition: Object = {
                "type": news.type, "status": news.status, "reason": news.reason,
                "message": news.message, "lastTransitionTime": context.now_timestamp(),
            }  # fmt: skip
            if generation := standing.get("generation"):
                condition["observedGeneration"] = generation
            found[news.type] = condition
    return list(found.values())


#: Pods that one GroupBinding may hold, and refusals that are gathered before it is given up.
MAX_BINDINGS = 20_000
MAX_REFUSALS = 32
_BINDING_RESOURCE = "pods/binding"


async def bind(context: ServerContext, call: RequestInfo) -> Reply:
    """Bind one pod, as Kubernetes does: the node need not exist nor have room.

    Through the bindings collection it is the body that names the pod.
    """
    call.check_dry_run()
    name, meta, target = _read_binding(context, call)
    record = context.store.pending(POD.store_key(call.namespace, name))
    if record is None:
        raise not_found_error(POD, name)
    pod = decode_record(record)
    if meta.get("uid", pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
        raise conflict_error(POD, name, (
            f"Precondition failed: UID in precondition: {meta['uid']}, "
            f"UID in object meta: {pod['metadata']['uid']}"
        ))  # fmt: skip
    if why := _unbindable_reason(pod):
        raise conflict_error(POD, name, why, resource=_BINDING_RESOURCE)
    bound = _assign_node(context, pod, target["name"])
    for part in ("annotations", "labels"):
        if meta.get(part):
            bound["metadata"].setdefault(part, {}).update(meta[part])
    if not call.dry_run:
        await _commit_bindings(context, [(record, bound, pod_allocation(bound))])
    return success_reply(201)


def _read_binding(context: ServerContext, call: RequestInfo) -> tuple[str, Object, Object]:
    body = read_object(context, replace(call, kind=BINDING))
    meta, target = body.get("metadata") or {}, body.get("target") or {}
    name = call.name or meta.get("name", "")
    if meta.get("name", name) != name:
        raise BadRequest(f"name in URL does not match name in Binding object: {meta['name']}")
    if target.get("kind", "Node") != "Node":
        raise _invalid_binding(
            name, unsupported("target.kind", target["kind"], ("Node", "<empty>"))
        )
    if not target.get("name"):
        raise _invalid_binding(name, required("target.name"))
    return name, meta, target


@dataclass(slots=True)
class _GroupBinding:
    """A GroupBinding in the making: what is bound, what it would take, what is wrong with it.

    `news` are the writes that tell of it, but for the events of a namespace that takes none.
    """

    records_events: bool
    changes: list[tuple[KeyValue, Object, NodeAllocation]] = field(default_factory=list)
    status_writes: list[StoreWrite] = field(default_factory=list)
    free_room: dict[str, Amounts] = field(default_factory=dict)
    refusals: list[Cause] = field(default_factory=list)

    def add_refusal(self, at: str, reason: str, message: str) -> None:
        self.refusals.append(Cause(at, reason, message))


async def bind_group(context: ServerContext, call: RequestInfo) -> Reply:
    """Bind all the pods of a GroupBinding, or none."""
    call.check_dry_run()
    with context.meter.stage("bind"):
        group = _check_group_binding(context, call)
    if group.refusals:
        raise Conflict(
            f"no pod of the group was bound: {join_causes(group.refusals)}",
            group=GROUP_BINDING.group, kind=GROUP_BINDING.plural, causes=group.refusals,
        )  # fmt: skip
    if not call.dry_run:
        await _commit_bindings(context, group.changes, group.status_writes)
    return success_reply(201)


def _check_group_binding(context: ServerContext, call: RequestInfo) -> _GroupBinding:
    body = read_object(context, call)
    bindings = body.get("bindings") or []
    if not bindings or len(bindings) > MAX_BINDINGS:
        raise _invalid_group_binding(
            f"between 1 and {MAX_BINDINGS} bindings are needed, got {len(bindings)}"
        )
    group = _GroupBinding(not is_terminating_or_missing(context, call.namespace))
    for number, terms in enumerate(body.get("groups") or []):
        _check_group(context, call, group, f"groups[{number}]", terms)
    seen: set[str] = set()
    for number, binding in enumerate(bindings):
        name, at = binding.get("name", ""), f"bindings[{number}]"
        if len(group.refusals) >= MAX_REFUSALS:
            break
        if name in seen:
            group.add_refusal(at, "FieldValueDuplicate", f'pod "{name}" is bound twice')
        else:
            seen.add(name)
            _add_member(context, call, group, at, binding)
    return group


def _check_group(
    context: ServerContext, call: RequestInfo, group: _GroupBinding, at: str, reference: Object
) -> None:
    """A group made again under its name may ask for something else."""
    name, standing = reference.get("name", ""), reference.get("standing") or {}
    record = context.store.pending(POD_GROUP.store_key(call.namespace, name))
    found = decode_record(record) if record else None
    if record is None or found is None or found["metadata"]["uid"] != reference.get("uid"):
        group.add_refusal(at, "GroupGone", f'group "{name}" is not the one that was meant')
    elif any(number < 0 for number in standing.values()):
        group.add_refusal(f"{at}.standing", "FieldValueInvalid", "numbers may not be negative")
    elif standing:
        group.status_writes += group_status_writes(context, record, found, standing)


def _add_member(
    context: ServerContext,
    call: RequestInfo,
    group: _GroupBinding,
    at: str,
    binding: Mapping[str, str],
) -> None:
    """Check one member and count the room that it takes."""
    name, node = binding.get("name", ""), binding.get("node", "")
    record = context.store.pending(POD.store_key(call.namespace, name))
    if record is None:
        return group.add_refusal(at, "PodGone", f'pod "{name}" not found')
    pod = decode_record(record)
    if binding.get("uid") != pod["metadata"]["uid"]:
        return group.add_refusal(at, "PodGone", f'pod "{name}" is not the one that was meant')
    if why := _unbindable_reason(pod) or _finished_reason(pod):
        return group.add_refusal(at, "PodChanged", why)
    room = _free_room(context, group, node)
    if room is None:
        return group.add_refusal(at, "NodeGone", f'node "{node}" not found')
    bound = _assign_node(context, pod, node)
    taken_room = pod_allocation(bound)
    if short := _reserve_room(room, taken_room.amounts):
        return group.add_refusal(at, "NodeFull", f'node "{node}" has not enough {short} left')
    if group.records_events:
        group.status_writes.append(scheduled_event(context, bound, client_audit_id(call.request)))
    group.changes.append((record, bound, taken_room))
    return None


def _free_room(context: ServerContext, group: _GroupBinding, node: str) -> Amounts | None:
    """What is left of a node, with the members so far on it; None when there is no such node."""
    if node not in group.free_room:
        record = context.store.pending(NODE.store_key("", node))
        if record is None:
            return None
        room = node_allocatable(msgspec.json.decode(record.value, type=Node))
        used = allocated_amounts(context.store, node)
        group.free_room[node] = {name: amount - used.get(name, 0) for name, amount in room.items()}
    return group.free_room[node]


def _reserve_room(room: Amounts, requests: Mapping[str, int]) -> str:
    """Take room; the first resource of which there is not enough, or nothing."""
    for name, amount in requests.items():
        if amount > room.get(name, 0):
            return name
    for name, amount in requests.items():
        room[name] -= amount
    return ""


def _unbindable_reason(pod: Object) -> str:
    """Why a pod may not be bound, if so."""
    name, spec = pod["metadata"]["name"], pod.get("spec", {})
    if pod["metadata"].get("deletionTimestamp"):
        return f"pod {name} is being deleted, cannot be assigned to a host"
    if spec.get("nodeName"):
        return f'pod {name} is already assigned to node "{spec["nodeName"]}"'
    if spec.get("schedulingGates"):
        return f"pod {name} has non-empty .spec.schedulingGates"
    return ""


def _finished_reason(pod: Object) -> str:
    phase = pod.get("status", {}).get("phase")
    return f"pod {pod['metadata']['name']} has ended" if phase in ("Succeeded", "Failed") else ""


def _assign_node(context: ServerContext, pod: Object, node: str) -> Object:
    """The pod with its node and the condition that says so."""
    pod["spec"]["nodeName"] = node
    status = pod.setdefault("status", {})
    status.pop("nominatedNodeName", None)
    others = [c for c in status.get("conditions") or [] if c.get("type") != "PodScheduled"]
    status["conditions"] = [*others, {
        "type": "PodScheduled", "status": "True", "lastProbeTime": None,
        "lastTransitionTime": context.now_timestamp(),
    }]  # fmt: skip
    return pod


async def _commit_bindings(
    context: ServerContext,
    changes: list[tuple[KeyValue, Object, NodeAllocation]],
    extra_writes: Sequence[StoreWrite] = (),
) -> None:
    """Write the bound pods, what is told of it, and the room that they take: none before."""
    writes = [StoreWrite(record.key, encoder(pod), record.revision) for record, pod, _ in changes]
    writes += extra_writes
    writes += allocation_writes(
        context.store, [(NO_ALLOCATION, taken_room) for _, _, taken_room in changes]
    )
    try:
        with context.meter.stage("commit"):
            await context.store.commit(writes)
    except RevisionConflict as error:
        raise modified_error(POD, error.key.rpartition("/")[2]) from error


def _invalid_binding(name: str, cause: Cause) -> ApiError:
    return Invalid(f'Binding "{name}" is invalid: {cause}', name=name, kind="Binding",
                   causes=[cause])  # fmt: skip


def _invalid_group_binding(detail: str) -> ApiError:
    cause = Cause("bindings", "FieldValueInvalid", f"Invalid value: {detail}")
    return Invalid(
        f"{GROUP_BINDING.qualified_name} is invalid: {cause}",
        group=GROUP_BINDING.group, kind=GROUP_BINDING.name, causes=[cause],
    )  # fmt: skip
