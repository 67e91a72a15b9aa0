"""Evictions: of one pod with respect to its disruption budget, or of whole gangs at once.

`pods/eviction` behaves as in Kubernetes. A pod that cannot be disrupted any more (pending,
finished, being deleted) is deleted. Otherwise the budget that covers it is charged in the
transaction that begins the deletion, so that two evictions never use the same allowance. The same
transaction sets the condition DisruptionTarget on a pod that has not finished: its Job must not
count it as a failure.

`groupevictions` (a kind of Phalanx) sets the condition DisruptionTarget on every pod and begins its
deletion, for all pods in one transaction: a gang is never seen half evicted. Pods that are missing,
being deleted or recreated are skipped. Groups that lose all their pods get the condition too.
Disruption budgets are not checked: the scheduler that sends the request has considered them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import orjson
from msgspec.structs import replace

from phalanx.api.errors import BadRequest, Cause, TooManyRequests, required
from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    EVICTION,
    GROUP_EVICTION,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_GROUP,
    Kind,
)
from phalanx.api.scheduling import DISRUPTION_TARGET
from phalanx.api.selectors import selector_matches
from phalanx.api.wire import Object, Reply
from phalanx.server.binding import (
    NO_ALLOCATION,
    NodeAllocation,
    allocation_writes,
    pod_allocation,
)
from phalanx.server.context import ServerContext
from phalanx.server.deletion import DeleteOptions, delete_one, mark_deleted, read_delete_options
from phalanx.server.dynamic_admission.actions import review_action, review_pod_deletions
from phalanx.server.objects import (
    decode_record,
    encoder,
    modified_error,
    not_found_error,
    raise_if_invalid,
    success_reply,
)
from phalanx.server.request_bodies import read_object
from phalanx.server.request_info import RequestInfo
from phalanx.server.resource_quotas import release_writes
from phalanx.server.write_handlers import is_deletable
from phalanx.store.kv import RevisionConflict, StoreWrite

_FINISHED_PHASES = ("Succeeded", "Failed")
_NON_DISRUPTIVE_PHASES = ("Pending", *_FINISHED_PHASES)
#: The reason and the message of the condition DisruptionTarget after `pods/eviction`.
_EVICTION_REASON = "EvictionByEvictionAPI"
_EVICTION_MESSAGE = "Eviction API: evicting"
_OLD_EVICTION, _OLD_VERSION = dataclasses.replace(EVICTION, version="v1beta1"), b"policy/v1beta1"
_RETRY_SECONDS = 10


async def evict(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle an Eviction: delete a pod unless its disruption budget forbids it."""
    content = request_info.request.body
    # Clients of old versions send policy/v1beta1.
    is_old = _OLD_VERSION in (content if isinstance(content, bytes) else orjson.dumps(content))
    kind = _OLD_EVICTION if is_old else EVICTION
    body = read_object(context, replace(request_info, kind=kind))
    if context.dynamic_admission.is_configured:
        await review_action(
            context, request_info, kind, subresource="eviction", name=request_info.name, body=body
        )
    if body.get("metadata", {}).get("name", request_info.name) != request_info.name:
        raise BadRequest("name in URL does not match name in Eviction object")
    options = read_delete_options(request_info, body.get("deleteOptions") or {})
    record = context.store.pending(request_info.key)
    if record is None:
        raise not_found_error(POD, request_info.name)
    pod = decode_record(record)
    phase = pod.get("status", {}).get("phase", "Pending")
    is_deleting = bool(pod["metadata"].get("deletionTimestamp"))
    is_disruptive = phase not in _NON_DISRUPTIVE_PHASES and not is_deleting
    budget_writes = _budget_writes(context, request_info, pod) if is_disruptive else []

    def mark_disrupted(new: Object) -> None:
        if phase not in _FINISHED_PHASES and not is_deleting:
            _set_disruption_target(context, new, reason=_EVICTION_REASON, message=_EVICTION_MESSAGE)

    await delete_one(
        context, request_info, options, extra_writes=budget_writes, prepare=mark_disrupted
    )
    return success_reply(201, request_info.warning_headers())


def _budget_writes(
    context: ServerContext, request_info: RequestInfo, pod: Object
) -> list[StoreWrite]:
    """The write that charges the budget of a pod; raises if it allows no disruption."""
    labels = pod["metadata"].get("labels") or {}
    matching = [
        (record, budget)
        for record in context.store.range(
            POD_DISRUPTION_BUDGET.store_prefix(request_info.namespace)
        )
        if selector_matches((budget := decode_record(record))["spec"].get("selector"), labels)
    ]
    if not matching:
        return []
    if len(matching) > 1:
        raise BadRequest(
            "this pod has more than one PodDisruptionBudget, which eviction does not support"
        )
    ((record, budget),) = matching
    status = budget.setdefault("status", {})
    if not _is_ready(pod) and _allows_unhealthy_eviction(budget):
        return []
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        name = budget["metadata"]["name"]
        reason = f"The disruption budget {name} is still being processed by the server."
        raise _budget_violation(reason, _RETRY_SECONDS)
    if status.get("disruptionsAllowed", 0) < 1:
        raise _budget_violation(
            f"The disruption budget {budget['metadata']['name']} needs "
            f"{status.get('desiredHealthy', 0)} healthy pods and has "
            f"{status.get('currentHealthy', 0)} currently"
        )
    status["disruptionsAllowed"] -= 1
    status.setdefault("disruptedPods", {})[pod["metadata"]["name"]] = context.now_timestamp()
    return [StoreWrite(record.key, encoder(budget), record.revision)]


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _allows_unhealthy_eviction(budget: Object) -> bool:
    """Whether a pod that is not ready may be evicted without charging the budget."""
    if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    desired = budget["status"].get("desiredHealthy", 0)
    healthy = budget["status"].get("currentHealthy", 0)
    return bool(0 < desired <= healthy)


def _budget_violation(reason: str, retry_after: int | None = None) -> TooManyRequests:
    """The error of a refused eviction. Clients wait for `retry_after`: it is set only if known."""
    return TooManyRequests(
        "Cannot evict pod as it would violate the pod's disruption budget.",
        causes=[Cause("", "DisruptionBudget", reason)],
        retry_after=retry_after,
    )


#: Pods that one GroupEviction may have.
MAX_EVICTED_PODS = 20_000
_GROUP_KINDS = {POD_GROUP.name: POD_GROUP, COMPOSITE_POD_GROUP.name: COMPOSITE_POD_GROUP}


@dataclass(slots=True)
class _GroupEviction:
    """A GroupEviction that is being prepared."""

    reason: str
    message: str
    writes: list[StoreWrite] = field(default_factory=list)
    #: Pods that are removed at once: neither a finalizer nor a grace period holds them.
    removed_pods: list[Object] = field(default_factory=list)
    allocation_changes: list[tuple[NodeAllocation, NodeAllocation]] = field(default_factory=list)


async def evict_group(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle a GroupEviction: evict all its pods, or none."""
    request_info.check_dry_run()
    body = _check_group_eviction(read_object(context, request_info))
    pods = body["pods"]
    if context.dynamic_admission.is_configured:
        await review_pod_deletions(context, request_info, _find_pods(context, request_info, pods))
    eviction = _GroupEviction(body.get("reason", ""), body.get("message", ""))
    for name, uid in {pod["name"]: pod["uid"] for pod in pods}.items():
        _evict_member(context, replace(request_info, kind=POD, name=name), uid, eviction=eviction)
    for group in body.get("groups") or []:
        _mark_group(context, request_info, group, eviction=eviction)
    if eviction.writes and not request_info.dry_run:
        await _commit_eviction(context, eviction)
    return success_reply(201)


def _check_group_eviction(body: Object) -> Object:
    pods = body.get("pods") or []
    if not pods or len(pods) > MAX_EVICTED_PODS:
        raise BadRequest(f"between 1 and {MAX_EVICTED_PODS} pods are needed, got {len(pods)}")
    causes = [
        required(f"{part}[{number}].{name}")
        for part in ("pods", "groups")
        for number, one in enumerate(body.get(part) or [])
        for name in ("name", "uid")
        if not one.get(name)
    ]
    raise_if_invalid(GROUP_EVICTION, "", causes)
    return body


def _find_pods(
    context: ServerContext, request_info: RequestInfo, references: list[Object]
) -> list[Object]:
    """The pods of a GroupEviction that it would delete."""
    keys = (POD.store_key(request_info.namespace, one["name"]) for one in references)
    pods = (decode_record(record) for key in keys if (record := context.store.pending(key)))
    uids = {one["uid"] for one in references}
    return [
        pod
        for pod in pods
        if pod["metadata"]["uid"] in uids and not pod["metadata"].get("deletionTimestamp")
    ]


def _evict_member(
    context: ServerContext, request_info: RequestInfo, uid: str, *, eviction: _GroupEviction
) -> None:
    """Set the condition of one pod and begin its deletion."""
    record = context.store.pending(POD.store_key(request_info.namespace, request_info.name))
    pod = decode_record(record) if record else None
    if record is None or pod is None or pod["metadata"]["uid"] != uid:
        return
    if pod["metadata"].get("deletionTimestamp"):
        return
    old = decode_record(record)
    _set_disruption_target(context, pod, reason=eviction.reason, message=eviction.message)
    mark_deleted(context, request_info, pod, options=DeleteOptions())
    if is_deletable(POD, pod):
        eviction.removed_pods.append(old)
        eviction.allocation_changes.append((pod_allocation(old), NO_ALLOCATION))
        eviction.writes.append(StoreWrite(record.key, None, record.revision))
    else:
        eviction.writes.append(StoreWrite(record.key, encoder(pod), record.revision))


def _set_disruption_target(
    context: ServerContext, obj: Object, *, reason: str, message: str
) -> None:
    status = obj.setdefault("status", {})
    others = [c for c in status.get("conditions") or [] if c.get("type") != DISRUPTION_TARGET]
    condition = {
        "type": DISRUPTION_TARGET,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": context.now_timestamp(),
    }
    if generation := obj["metadata"].get("generation"):
        condition["observedGeneration"] = generation
    status["conditions"] = [*others, condition]


def _mark_group(
    context: ServerContext, request_info: RequestInfo, group: Object, *, eviction: _GroupEviction
) -> None:
    kind: Kind | None = _GROUP_KINDS.get(group.get("kind", POD_GROUP.name))
    if kind is None:
        raise BadRequest(f"a group must be a {' or '.join(_GROUP_KINDS)}, not {group['kind']}")
    record = context.store.pending(kind.store_key(request_info.namespace, group["name"]))
    obj = decode_record(record) if record else None
    if record is not None and obj is not None and obj["metadata"]["uid"] == group["uid"]:
        _set_disruption_target(context, obj, reason=eviction.reason, message=eviction.message)
        eviction.writes.append(StoreWrite(record.key, encoder(obj), record.revision))


async def _commit_eviction(context: ServerContext, eviction: _GroupEviction) -> None:
    writes = [*eviction.writes, *release_writes(context, POD, eviction.removed_pods)]
    writes += allocation_writes(context.store, eviction.allocation_changes)
    try:
        with context.meter.stage("commit"):
            await context.store.commit(writes)
    except RevisionConflict as error:
        raise modified_error(GROUP_EVICTION, "") from error
