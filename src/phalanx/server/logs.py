"""Logs of containers. Simulated nodes run nothing, so a container that runs has said nothing."""

from __future__ import annotations

from phalanx.api.errors import BadRequest
from phalanx.api.wire import Object, Reply
from phalanx.server.call import Call
from phalanx.server.context import Context
from phalanx.server.objects import decoded, not_found

_TEXT = "text/plain; charset=utf-8"


async def read(context: Context, call: Call) -> Reply:
    """What a container has written."""
    record = context.store.get(call.key)
    if record is None:
        raise not_found(call.kind, call.name)
    pod = decoded(record)
    name = _container(call, pod)
    statuses = pod.get("status", {}).get("containerStatuses") or []
    if not any(s.get("name") == name and "waiting" not in s.get("state", {}) for s in statuses):
        raise BadRequest(f'container "{name}" in pod "{call.name}" is waiting to start')
    return Reply(200, b"", _TEXT)


def _container(call: Call, pod: Object) -> str:
    """The container that is meant: the one that is named, or the only one."""
    names = [c["name"] for c in pod["spec"].get("containers") or ()]
    wanted = call.query.get("container") or (names[0] if len(names) == 1 else "")
    if not wanted:
        raise BadRequest(
            f"a container name must be specified for pod {call.name}, choose one of: {names}"
        )
    if wanted not in names:
        raise BadRequest(f"container {wanted} is not valid for pod {call.name}")
    return wanted
