"""ComponentStatuses: the health of the control plane, computed on request.

Kubernetes asks the scheduler, the controller manager and etcd at fixed addresses. Here the server
can answer for its store; the other components are in processes of their own, which report by their
leases.
"""

from __future__ import annotations

from phalanx.api.kinds import LEASE
from phalanx.api.meta import parse_timestamp
from phalanx.api.wire import Object, Reply
from phalanx.server.context import ServerContext
from phalanx.server.objects import decode_record
from phalanx.server.request_info import RequestInfo
from phalanx.server.resource_metrics import computed_reply

#: Components and the Lease of each in kube-system.
_LEASES = {"controller-manager": "kube-controller-manager", "scheduler": "kube-scheduler"}


async def component_statuses(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle GET of ComponentStatuses: one, or a list."""
    conditions = {name: _lease_condition(context, lease) for name, lease in _LEASES.items()}
    conditions["etcd-0"] = {"type": "Healthy", "status": "True", "message": "ok"}
    objects: list[Object] = [
        {"metadata": {"name": name}, "conditions": [condition]}
        for name, condition in sorted(conditions.items())
    ]
    if request_info.name:
        objects = [obj for obj in objects if obj["metadata"]["name"] == request_info.name]
    return await computed_reply(context, request_info, objects)


def _lease_condition(context: ServerContext, lease: str) -> Object:
    record = context.store.get(LEASE.store_key("kube-system", lease))
    spec = decode_record(record).get("spec", {}) if record else {}
    renewed, seconds = spec.get("renewTime"), spec.get("leaseDurationSeconds", 15)
    is_held = renewed is not None and parse_timestamp(renewed) + seconds > context.clock.now()
    if is_held or record is None:
        # Without a lease the component is in this process.
        return {"type": "Healthy", "status": "True", "message": "ok"}
    return {"type": "Healthy", "status": "False", "error": f"the lease {lease} is not renewed"}
