"""Bindings: a pod gets its node, alone or together with its whole gang in one transaction.

`pods/binding` behaves as in Kubernetes. `groupbindings` (a kind of Phalanx) binds all of its pods
or none. Each pod must be unbound, alive and have the given uid. Each node must exist and have
enough free resources. The PodGroups must still be those that the scheduler placed. The pods, their
`Scheduled` events, the status of their PodGroups, and their claims for devices (`claim_binding.py`)
and volumes (`volume_binding.py`) are committed together: an event exists if and only if the pod is
bound, and no further request is needed. Events and status are written by the server itself, so
neither admission nor validation applies, and they have no field manager.

The allocated resources of a node are a hidden record with the sum of the requests of its pods. It
is compared and swapped in the transaction that binds, moves, finishes or removes a pod, so that two
schedulers never allocate the same resources. The record is separate from the Node, whose revision
changes with heartbeats. Only a GroupBinding is refused for insufficient resources; a plain Binding
is accepted and counted, as in Kubernetes.

    /phalanx.dev/ledger/node-1   {"cpu": 4000, "memory": 8589934592, "pods": 2}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from phalanx.api.core import TERMINAL_PHASES, Node, Pod, PodSpec, PodStatus
from phalanx.api.errors import (
    ApiError,
    BadRequest,
    Cause,
    Conflict,
    Invalid,
    join_causes,
    required,
    unsupported,
)
from phalanx.api.kinds import BINDING, EVENT, GROUP_BINDING, NODE, POD, POD_GROUP
from phalanx.api.meta import ObjectMeta
from phalanx.api.resources import Amounts, node_allocatable, pod_requests
from phalanx.api.scheduling import scheduled_conditions
from phalanx.api.wire import CACHE_SIZE, MAX_CACHED_BYTES, Object, Reply, compact_json
from phalanx.server.admission import is_terminating_or_missing
from phalanx.server.claim_binding import ClaimBindings, ClaimRefused
from phalanx.server.context import ServerContext
from phalanx.server.dynamic_admission.actions import review_action, review_bindings
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
from phalanx.server.volume_binding import VolumeBindings, VolumeRefused
from phalanx.store.kv import KeyValue, RevisionConflict, Store, StoreWrite
from phalanx.telemetry import REQUEST_ANNOTATION

# ---- allocated resources of nodes ----------------------------------------------------------------


class NodeAllocation(NamedTuple):
    """The resources that a pod takes of a node; the node is "" if it takes none."""

    node: str = ""
    amounts: Mapping[str, int] = {}


#: Store prefix of the records.
ALLOCATION_PREFIX = "/phalanx.dev/ledger/"
#: The allocation of a pod that is not bound, has finished, or does not exist.
NO_ALLOCATION = NodeAllocation()
#: The fields of a pod spec that decide its requests.
_RESOURCE_FIELDS = ("containers", "initContainers", "overhead", "resources")
#: The fields of a container status that say what its node has allocated.
_ALLOCATED_FIELDS = ("name", "allocatedResources", "resources")
#: Decodes integers of any size: sums may exceed 64 bits.
_decode = msgspec.json.Decoder(dict[str, int]).decode
_encode = msgspec.json.Encoder().encode


def pod_allocation(pod: Object | None) -> NodeAllocation:
    """The resources that a pod takes, and its node."""
    spec = pod.get("spec", {}) if pod else {}
    node = spec.get("nodeName")
    if pod is None or not node or pod.get("status", {}).get("phase") in TERMINAL_PHASES:
        return NO_ALLOCATION
    resources: Object = {
        "spec": {field: spec[field] for field in _RESOURCE_FIELDS if field in spec}
    }
    status = pod.get("status")
    if status and ("containerStatuses" in status or "initContainerStatuses" in status):
        resources["status"] = _allocated_statuses(status)
    packed = compact_json(resources)
    is_small = len(packed) <= MAX_CACHED_BYTES
    return NodeAllocation(node, (_decode_requests_cached if is_small else _decode_requests)(packed))


def _allocated_statuses(status: Object) -> Object:
    """The container statuses of a pod that say what its node has allocated."""
    found: Object = {}
    for containers in ("containerStatuses", "initContainerStatuses"):
        allocated = [
            {name: one[name] for name in _ALLOCATED_FIELDS if name in one}
            for one in status.get(containers) or ()
            if one.get("allocatedResources") or one.get("resources")
        ]
        if allocated:
            found[containers] = allocated
    return found


class _PodResources(msgspec.Struct):
    """The fields of a pod that decide its requests."""

    spec: PodSpec
    status: PodStatus = PodStatus()


def _decode_requests(packed: bytes) -> Amounts:
    found = msgspec.json.decode(packed, type=_PodResources)
    return pod_requests(Pod(ObjectMeta(), found.spec, found.status))


@lru_cache(maxsize=CACHE_SIZE)
def _decode_requests_cached(packed: bytes) -> Mapping[str, int]:
    """Members of a gang have equal specs: their requests are computed once."""
    return MappingProxyType(_decode_requests(packed))


def get_allocated_amounts(store: Store, node: str) -> Amounts:
    """The allocated resources of a node, including uncommitted writes."""
    record = store.pending(_allocation_key(node))
    return _decode(record.value) if record else {}


def allocation_writes(
    store: Store, changes: Iterable[tuple[NodeAllocation, NodeAllocation]]
) -> list[StoreWrite]:
    """The writes that update the records when pods change their (old, new) allocations."""
    deltas: dict[str, Amounts] = {}
    for old, new in changes:
        if old != new:
            _add_delta(deltas, old, -1)
            _add_delta(deltas, new, 1)
    return [
        _allocation_write(store, node, delta)
        for node, delta in deltas.items()
        if any(delta.values())
    ]


def _add_delta(deltas: dict[str, Amounts], allocation: NodeAllocation, sign: int) -> None:
    if allocation.node:
        delta = deltas.setdefault(allocation.node, {})
        for name, amount in allocation.amounts.items():
            delta[name] = delta.get(name, 0) + sign * amount


def _allocation_write(store: Store, node: str, delta: Amounts) -> StoreWrite:
    record, total = store.pending(_allocation_key(node)), get_allocated_amounts(store, node)
    for name, amount in delta.items():
        total[name] = total.get(name, 0) + amount
    amounts = {name: amount for name, amount in total.items() if amount}
    encode = (lambda revision: _encode(amounts)) if amounts else None
    return StoreWrite(_allocation_key(node), encode, record.revision if record else 0)


def _allocation_key(node: str) -> str:
    return f"{ALLOCATION_PREFIX}{node}"


# ---- bindings ------------------------------------------------------------------------------------

#: The part of its uid that makes the name of an event unique, and the length of the rest.
_UID_SUFFIX, _MAX_EVENT_NAME_PREFIX = slice(-12, None), 240
_STATUS_COUNTS = ("desiredPods", "pendingPods", "scheduledPods")
#: The status that a placed PodGroup no longer has.
_WAITING_STATUS = ("shortfall",)


def create_scheduled_event(context: ServerContext, pod: Object, audit_id: str) -> StoreWrite:
    """The `Scheduled` event of a bound pod, reported by the scheduler that the pod names.

    The event has the audit id of the request, if the client sent one.
    """
    meta, component = pod["metadata"], pod["spec"].get("schedulerName", "")
    namespace, name, now = meta["namespace"], meta["name"], context.now_timestamp()
    uid = context.random.uid()
    event_name = f"{name[:_MAX_EVENT_NAME_PREFIX].rstrip('-.')}.{uid[_UID_SUFFIX]}"
    annotations = {"annotations": {REQUEST_ANNOTATION: audit_id}} if audit_id else {}
    event = {
        "metadata": {
            "name": event_name,
            "namespace": namespace,
            "uid": uid,
            "creationTimestamp": now,
            **annotations,
        },
        "involvedObject": {
            "kind": POD.name,
            "apiVersion": POD.api_version,
            "name": name,
            "namespace": namespace,
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
        },
        "reason": "Scheduled",
        "message": f"Successfully assigned {namespace}/{name} to {pod['spec']['nodeName']}",
        "type": "Normal",
        "source": {"component": component},
        "reportingComponent": component,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    return StoreWrite(EVENT.store_key(namespace, event_name), encoder(event), 0)


def group_status_writes(
    context: ServerContext, record: KeyValue, group: Object, *, standing: Mapping[str, int]
) -> list[StoreWrite]:
    """The write that sets the status of a placed PodGroup, if it changes."""
    old = group.get("status") or {}
    counts = {name: standing[name] for name in _STATUS_COUNTS if standing.get(name)}
    replaced = (*_STATUS_COUNTS, *_WAITING_STATUS)
    others = {name: value for name, value in old.items() if name not in replaced}
    conditions = _update_group_conditions(context, old.get("conditions") or [], standing)
    new = {**others, "conditions": conditions, **counts}
    if new == old:
        return []
    return [StoreWrite(record.key, encoder({**group, "status": new}), record.revision)]


def _update_group_conditions(
    context: ServerContext, conditions: list[Object], standing: Mapping[str, int]
) -> list[Object]:
    """The conditions of a placed PodGroup; conditions that stay true are unchanged."""
    by_type = {condition["type"]: condition for condition in conditions}
    for scheduled in scheduled_conditions(standing.get("neededPods", 0)):
        if by_type.get(scheduled.type, {}).get("status") != scheduled.status:
            condition: Object = {
                "type": scheduled.type,
                "status": scheduled.status,
                "reason": scheduled.reason,
                "message": scheduled.message,
                "lastTransitionTime": context.now_timestamp(),
            }
            if generation := standing.get("generation"):
                condition["observedGeneration"] = generation
            by_type[scheduled.type] = condition
    return list(by_type.values())


#: Pods that one GroupBinding may have, and refusals that its reply may have.
MAX_BINDINGS = 20_000
MAX_REFUSALS = 32
_BINDING_RESOURCE = "pods/binding"


async def bind(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle a Binding of one pod: the node need not exist or have free resources.

    In a POST to the collection `bindings` the body names the pod.
    """
    request_info.check_dry_run()
    body = read_object(context, replace(request_info, kind=BINDING))
    if context.dynamic_admission.is_configured:
        named = request_info.name or (body.get("metadata") or {}).get("name", "")
        await review_action(
            context, request_info, BINDING, subresource="binding", name=named, body=body
        )
    name, meta, target = _check_binding(request_info, body)
    record = context.store.pending(POD.store_key(request_info.namespace, name))
    if record is None:
        raise not_found_error(POD, name)
    pod = decode_record(record)
    if request_info.name:
        # Kubernetes ignores both in a POST to the collection.
        for field, shown in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            if meta.get(field, pod["metadata"][field]) != pod["metadata"][field]:
                detail = (
                    f"Precondition failed: {shown} in precondition: {meta[field]}, "
                    f"{shown} in object meta: {pod['metadata'][field]}"
                )
                raise conflict_error(POD, name, detail)
    if reason := _reason_if_unbindable(pod):
        raise conflict_error(POD, name, reason, resource=_BINDING_RESOURCE)
    bound = _assign_node(context, pod, target["name"])
    for part in ("annotations", "labels"):
        if meta.get(part):
            bound["metadata"].setdefault(part, {}).update(meta[part])
    if not request_info.dry_run:
        await _commit_bindings(context, [(record, bound, pod_allocation(bound))])
    return success_reply(201, request_info.warning_headers())


def _check_binding(request_info: RequestInfo, body: Object) -> tuple[str, Object, Object]:
    meta, target = body.get("metadata") or {}, body.get("target") or {}
    name = request_info.name or meta.get("name", "")
    if meta.get("name", name) != name:
        raise BadRequest("name in URL does not match name in Binding object")
    if meta.get("namespace", request_info.namespace) != request_info.namespace:
        raise BadRequest(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    if target.get("kind", "Node") != "Node":
        raise _invalid_binding(
            name, unsupported("target.kind", target["kind"], ("Node", "<empty>"))
        )
    if not target.get("name"):
        raise _invalid_binding(name, required("target.name"))
    return name, meta, target


@dataclass(slots=True)
class _GroupBinding:
    """A GroupBinding that is being checked: the bound pods, and the reasons to refuse it.

    `status_writes` are the status of PodGroups and, if `records_events`, the events: a namespace
    that is being deleted takes no events.
    """

    records_events: bool
    changes: list[tuple[KeyValue, Object, NodeAllocation]] = field(default_factory=list)
    status_writes: list[StoreWrite] = field(default_factory=list)
    #: By node: its free resources after the members so far.
    free: dict[str, Amounts] = field(default_factory=dict)
    refusals: list[Cause] = field(default_factory=list)
    claims: ClaimBindings | None = None

    def add_refusal(self, field: str, reason: str, message: str) -> None:
        self.refusals.append(Cause(field, reason, message))


async def bind_group(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle a GroupBinding: bind all its pods, or none."""
    request_info.check_dry_run()
    if context.dynamic_admission.find_hooks(POD, "binding", "CREATE"):
        bindings = read_object(context, request_info).get("bindings") or []
        pairs = [(one.get("name", ""), one.get("node", "")) for one in bindings[:MAX_BINDINGS]]
        await review_bindings(context, request_info, pairs)
    with context.meter.stage("bind"):
        group = _check_group_binding(context, request_info)
    if group.refusals:
        raise Conflict(
            f"no pod of the group was bound: {join_causes(group.refusals)}",
            group=GROUP_BINDING.group,
            kind=GROUP_BINDING.plural,
            causes=group.refusals,
        )
    if not request_info.dry_run:
        await _commit_bindings(context, group.changes, group.status_writes)
    return success_reply(201)


def _check_group_binding(context: ServerContext, request_info: RequestInfo) -> _GroupBinding:
    body = read_object(context, request_info)
    bindings = body.get("bindings") or []
    if not bindings or len(bindings) > MAX_BINDINGS:
        raise _invalid_group_binding(
            f"between 1 and {MAX_BINDINGS} bindings are needed, got {len(bindings)}"
        )
    is_ending = is_terminating_or_missing(context, request_info.namespace)
    group = _GroupBinding(context.keeps_history and not is_ending)
    for number, reference in enumerate(body.get("groups") or []):
        _check_group(context, request_info, group, field=f"groups[{number}]", reference=reference)
    if entries := body.get("claims"):
        _add_claims(context, request_info, group, entries=entries)
    if entries := body.get("volumes"):
        _add_volumes(context, request_info, group, entries=entries)
    seen: set[str] = set()
    for number, binding in enumerate(bindings):
        name, field = binding.get("name", ""), f"bindings[{number}]"
        if len(group.refusals) >= MAX_REFUSALS:
            break
        if name in seen:
            group.add_refusal(field, "FieldValueDuplicate", f'pod "{name}" is bound twice')
        else:
            seen.add(name)
            _add_member(context, request_info, group, field=field, binding=binding)
    return group


def _check_group(
    context: ServerContext,
    request_info: RequestInfo,
    group: _GroupBinding,
    *,
    field: str,
    reference: Object,
) -> None:
    """Refuse a PodGroup that was recreated: it may have other requirements."""
    name, standing = reference.get("name", ""), reference.get("standing") or {}
    record = context.store.pending(POD_GROUP.store_key(request_info.namespace, name))
    found = decode_record(record) if record else None
    if record is None or found is None or found["metadata"]["uid"] != reference.get("uid"):
        group.add_refusal(field, "GroupGone", f'group "{name}" does not have the given uid')
    elif any(number < 0 for number in standing.values()):
        group.add_refusal(f"{field}.standing", "FieldValueInvalid", "numbers may not be negative")
    elif standing:
        group.status_writes += group_status_writes(context, record, found, standing=standing)


def _add_claims(
    context: ServerContext,
    request_info: RequestInfo,
    group: _GroupBinding,
    *,
    entries: list[Object],
) -> None:
    """Allocate and reserve the claims of a GroupBinding."""
    claims = group.claims = ClaimBindings(context, request_info.namespace)
    for number, entry in enumerate(entries):
        try:
            claims.add(entry)
        except ClaimRefused as refused:
            group.add_refusal(f"claims[{number}]", refused.reason, str(refused))
    group.status_writes += claims.writes()


def _add_volumes(
    context: ServerContext,
    request_info: RequestInfo,
    group: _GroupBinding,
    *,
    entries: list[Object],
) -> None:
    """Bind the claims of a GroupBinding to their volumes."""
    volumes = VolumeBindings(context, request_info.namespace)
    for number, entry in enumerate(entries):
        try:
            volumes.add(entry)
        except VolumeRefused as refused:
            group.add_refusal(f"volumes[{number}]", refused.reason, str(refused))
    group.status_writes += volumes.writes()


def _add_member(
    context: ServerContext,
    request_info: RequestInfo,
    group: _GroupBinding,
    *,
    field: str,
    binding: Mapping[str, str],
) -> None:
    """Check one pod and reserve its resources on its node."""
    name, node = binding.get("name", ""), binding.get("node", "")
    record = context.store.pending(POD.store_key(request_info.namespace, name))
    if record is None:
        return group.add_refusal(field, "PodGone", f'pod "{name}" not found')
    pod = decode_record(record)
    if binding.get("uid") != pod["metadata"]["uid"]:
        return group.add_refusal(field, "PodGone", f'pod "{name}" does not have the given uid')
    if reason := _reason_if_unbindable(pod):
        return group.add_refusal(field, "PodChanged", reason)
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return group.add_refusal(field, "PodChanged", f"pod {name} has finished")
    free = _free_resources(context, group, node)
    if free is None:
        return group.add_refusal(field, "NodeGone", f'node "{node}" not found')
    bound = _assign_node(context, pod, node)
    allocation = pod_allocation(bound)
    requests = allocation.amounts
    if group.claims is not None and (status := group.claims.extended.get(binding["uid"])):
        bound["status"]["extendedResourceClaimStatus"] = status
        served = group.claims.served_resources(binding["uid"])
        requests = {name: n for name, n in requests.items() if name not in served}
    if short := _reserve(free, requests):
        return group.add_refusal(field, "NodeFull", f'node "{node}" has insufficient {short}')
    if group.records_events:
        group.status_writes.append(
            create_scheduled_event(context, bound, client_audit_id(request_info.request))
        )
    group.changes.append((record, bound, allocation))
    return None


def _free_resources(context: ServerContext, group: _GroupBinding, node: str) -> Amounts | None:
    """The free resources of a node after the members so far; None if the node is missing."""
    if node not in group.free:
        record = context.store.pending(NODE.store_key("", node))
        if record is None:
            return None
        total = node_allocatable(msgspec.json.decode(record.value, type=Node))
        used = get_allocated_amounts(context.store, node)
        group.free[node] = {name: amount - used.get(name, 0) for name, amount in total.items()}
    return group.free[node]


def _reserve(free: Amounts, requests: Mapping[str, int]) -> str:
    """Subtract requests from free resources; return the first resource that is short, or ""."""
    for name, amount in requests.items():
        if amount > free.get(name, 0):
            return name
    for name, amount in requests.items():
        free[name] -= amount
    return ""


def _reason_if_unbindable(pod: Object) -> str:
    """Why a pod cannot be bound, or ""."""
    name, spec = pod["metadata"]["name"], pod.get("spec", {})
    if pod["metadata"].get("deletionTimestamp"):
        return f"pod {name} is being deleted, cannot be assigned to a host"
    if spec.get("nodeName"):
        return f'pod {name} is already assigned to node "{spec["nodeName"]}"'
    if spec.get("schedulingGates"):
        return f"pod {name} has non-empty .spec.schedulingGates"
    return ""


def _assign_node(context: ServerContext, pod: Object, node: str) -> Object:
    """Set the node of a pod, and the condition PodScheduled."""
    pod["spec"]["nodeName"] = node
    status = pod.setdefault("status", {})
    status.pop("nominatedNodeName", None)
    others = [c for c in status.get("conditions") or [] if c.get("type") != "PodScheduled"]
    scheduled = {
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": context.now_timestamp(),
    }
    status["conditions"] = [*others, scheduled]
    return pod


async def _commit_bindings(
    context: ServerContext,
    changes: list[tuple[KeyValue, Object, NodeAllocation]],
    extra_writes: Sequence[StoreWrite] = (),
) -> None:
    """Commit bound pods, `extra_writes` and the node allocations in one transaction."""
    writes = [StoreWrite(record.key, encoder(pod), record.revision) for record, pod, _ in changes]
    writes += extra_writes
    writes += allocation_writes(
        context.store, [(NO_ALLOCATION, allocation) for _, _, allocation in changes]
    )
    try:
        with context.meter.stage("commit"):
            await context.store.commit(writes)
    except RevisionConflict as error:
        raise modified_error(POD, error.key.rpartition("/")[2]) from error


def _invalid_binding(name: str, cause: Cause) -> ApiError:
    message = f'Binding "{name}" is invalid: {cause}'
    return Invalid(message, name=name, kind="Binding", causes=[cause])


def _invalid_group_binding(detail: str) -> ApiError:
    cause = Cause("bindings", "FieldValueInvalid", f"Invalid value: {detail}")
    return Invalid(
        f"{GROUP_BINDING.qualified_name} is invalid: {cause}",
        group=GROUP_BINDING.group,
        kind=GROUP_BINDING.name,
        causes=[cause],
    )
