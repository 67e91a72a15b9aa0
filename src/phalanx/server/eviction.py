"""Eviction: the deletion of a pod that its disruption budget must allow.

A pod that cannot be disrupted any more (pending, ended, going already) is simply deleted. Else the
budget that covers it is charged in the very transaction that begins the deletion, so that two
evictions never share one allowance.
"""

from __future__ import annotations

from msgspec.structs import replace

from phalanx.api.errors import BadRequest, Cause, TooManyRequests
from phalanx.api.kinds import EVICTION, POD, POD_DISRUPTION_BUDGET
from phalanx.api.labelselectors import selects
from phalanx.api.wire import Object, Reply
from phalanx.server.bodies import read_object
from phalanx.server.call import Call
from phalanx.server.context import Context
from phalanx.server.deleting import delete_one, read_options
from phalanx.server.objects import decoded, encoder, not_found, succeeded
from phalanx.store.kv import Record, Write

_UNDISRUPTED = ("Pending", "Succeeded", "Failed")
_RETRY_SECONDS = 10


async def evict(context: Context, call: Call) -> Reply:
    """Delete a pod if no budget is against it."""
    body = read_object(context, replace(call, kind=EVICTION))
    if body.get("metadata", {}).get("name", call.name) != call.name:
        raise BadRequest(f"name in URL does not match name in Eviction object: {call.name}")
    options = read_options(call, body.get("deleteOptions") or {})
    record = context.store.pending(call.key)
    if record is None:
        raise not_found(POD, call.name)
    pod = decoded(record)
    charged = [] if _is_undisrupted(pod) else _charged(context, call, pod)
    await delete_one(context, call, options, also=charged)
    return succeeded(201)


def _is_undisrupted(pod: Object) -> bool:
    phase = pod.get("status", {}).get("phase", "Pending")
    return phase in _UNDISRUPTED or bool(pod["metadata"].get("deletionTimestamp"))


def _charged(context: Context, call: Call, pod: Object) -> list[Write]:
    """The write that takes one allowance from the pod's budget; raises when it has none."""
    labels = pod["metadata"].get("labels") or {}
    found = [
        (record, budget)
        for record in context.store.range(POD_DISRUPTION_BUDGET.prefix(call.namespace))
        if selects((budget := decoded(record))["spec"].get("selector"), labels)
    ]
    if len(found) > 1:
        raise BadRequest(
            "this pod has more than one PodDisruptionBudget, which eviction does not support"
        )
    return [write for record, budget in found for write in _charge(context, record, budget, pod)]


def _charge(context: Context, record: Record, budget: Object, pod: Object) -> list[Write]:
    status = budget.setdefault("status", {})
    if not _is_ready(pod) and _may_go_unhealthy(budget):
        return []
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        name = budget["metadata"]["name"]
        why = f"The disruption budget {name} is still being processed by the server."
        raise _refused(why, _RETRY_SECONDS)
    if status.get("disruptionsAllowed", 0) < 1:
        raise _refused(
            f"The disruption budget {budget['metadata']['name']} needs "
            f"{status.get('desiredHealthy', 0)} healthy pods and has "
            f"{status.get('currentHealthy', 0)} currently"
        )
    status["disruptionsAllowed"] -= 1
    status.setdefault("disruptedPods", {})[pod["metadata"]["name"]] = context.stamp()
    return [Write(record.key, encoder(budget), record.revision)]


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _may_go_unhealthy(budget: Object) -> bool:
    """Whether a pod that is not ready may go without being counted."""
    if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    desired = budget["status"].get("desiredHealthy", 0)
    healthy = budget["status"].get("currentHealthy", 0)
    return bool(0 < desired <= healthy)


def _refused(why: str, retry_after: int | None = None) -> TooManyRequests:
    """No for now. When to come back is said only where that is known: clients do wait."""
    return TooManyRequests(
        "Cannot evict pod as it would violate the pod's disruption budget.",
        causes=[Cause("", "DisruptionBudget", why)], retry_after=retry_after,
    )  # fmt: skip
