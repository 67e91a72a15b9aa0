"""Logs of containers, read (`kubectl logs`) and, by the kubelets of process nodes, written.

What a container has said depends on the sort of its node: on a simulated one nothing ran, and a few
lines tell of that; what processes wrote is in `outputs`; of other nodes nothing is known here, as
no kubelet is ever asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator

import msgspec
import orjson

from phalanx.api.errors import BadRequest, Conflict
from phalanx.api.kinds import NODE
from phalanx.api.meta import seconds
from phalanx.api.nodesorts import NODE_SORT, PROCESS, SIMULATED
from phalanx.api.wire import JSON, Object, Reply, Stream
from phalanx.server.call import Call
from phalanx.server.context import Context
from phalanx.server.formats import load
from phalanx.server.logoptions import LogOptions, read_options
from phalanx.server.objects import decoded, not_found
from phalanx.server.outputs import Line, Written

_TEXT = "text/plain; charset=utf-8"
#: Seconds between two looks at whether there is more to follow.
_LOOK = 0.2


class _Output(msgspec.Struct, frozen=True):
    """What the kubelet of a process node sends: whole lines of one run of a container."""

    uid: str
    container: str
    text: str
    restart: int = 0


async def read(context: Context, call: Call) -> Reply | Stream:
    """What a container has written."""
    pod = _pod(context, call)
    name, options = _asked(context, call, pod)
    if options.follow and not options.previous:
        return Stream(200, _followed(context, call, name, options), _TEXT)
    lines = options.chosen(_lines(context, pod, name, options.previous))
    return Reply(200, options.shown(lines)[: options.limit], _TEXT)


async def write(context: Context, call: Call) -> Reply:
    """Keep what a container of a process node has written, of the very pod that is meant."""
    pod = _pod(context, call)
    try:
        said = msgspec.convert(load(call.request, (JSON,)), _Output)
    except msgspec.ValidationError as error:
        raise BadRequest(f"this is no output of a container: {error}") from None
    if said.uid != pod["metadata"]["uid"]:
        raise Conflict(f'pod "{call.name}" is not the one of uid {said.uid}')
    _check_container(call, pod, said.container)
    if _sort(context, pod) != PROCESS:
        raise BadRequest(f'pod "{call.name}" is on no process node')
    run = Written(said.uid, said.container, said.restart)
    context.outputs.append(run, context.clock.now(), said.text.encode(errors="replace"))
    return Reply(201, orjson.dumps({"kind": "Status", "apiVersion": "v1", "status": "Success"}))


async def _followed(
    context: Context, call: Call, name: str, options: LogOptions
) -> AsyncGenerator[bytes, None]:
    """What there is and then what comes, until the container has ended."""
    seen, left = -1, options.limit
    while (record := context.store.get(call.key)) is not None:
        pod = decoded(record)
        known = list(_lines(context, pod, name))
        new = options.chosen(known) if seen < 0 else [one for one in known if one.number >= seen]
        seen = known[-1].number + 1 if known else 0
        if text := options.shown(new)[:left]:
            left = None if left is None else left - len(text)
            yield text
        # As it was before the lines were read: what was written last has been sent.
        if left == 0 or "running" not in (_status(pod, name).get("state") or {}):
            return
        await asyncio.sleep(_LOOK)


def _lines(context: Context, pod: Object, name: str, previous: bool = False) -> Iterator[Line]:
    """All that is known of what a container wrote."""
    status = _status(pod, name)
    sort = _sort(context, pod)
    if sort == PROCESS:
        restart = status.get("restartCount", 0) - previous
        return context.outputs.lines(Written(pod["metadata"]["uid"], name, restart))
    return _simulated(pod, name, status) if sort == SIMULATED else iter(())


def _simulated(pod: Object, name: str, status: Object) -> Iterator[Line]:
    """What a container would say if it ran; the same for the same pod."""
    meta, spec, state = pod["metadata"], pod["spec"], status.get("state") or {}
    ended = state.get("terminated") or {}
    begin = ended.get("startedAt") or (state.get("running") or {}).get("startedAt")
    if not begin:
        return
    (own,) = [one for one in _containers(pod) if one["name"] == name]
    argv = " ".join([*(own.get("command") or ()), *(own.get("args") or ())])
    at = seconds(begin)
    texts = [
        f"{meta['namespace']}/{meta['name']}: {name} started on simulated node {spec['nodeName']}",
        f"image {own.get('image', '')}, nothing is executed: {argv or 'no command'}",
    ]
    for number, text in enumerate(texts):
        yield Line(number, at, f"{text}\n".encode())
    if ended:
        end = f"ended with exit code {ended.get('exitCode', 0)}\n"
        yield Line(len(texts), seconds(ended["finishedAt"]), end.encode())


def _pod(context: Context, call: Call) -> Object:
    record = context.store.get(call.key)
    if record is None:
        raise not_found(call.kind, call.name)
    return decoded(record)


def _sort(context: Context, pod: Object) -> str:
    """Of which sort the node of a pod is; "" if it is not one of ours."""
    name = pod.get("spec", {}).get("nodeName", "")
    record = context.store.get(NODE.key("", name)) if name else None
    if record is None:
        return ""
    sort: str = (decoded(record)["metadata"].get("annotations") or {}).get(NODE_SORT, "")
    return sort


def _asked(context: Context, call: Call, pod: Object) -> tuple[str, LogOptions]:
    """The container that is meant and what is wanted of it, if there can be anything."""
    options = read_options(call, context.clock.now())
    name = _container(call, pod)
    status = _status(pod, name)
    restarts = status.get("restartCount", 0)
    if not status or ("waiting" in status.get("state", {}) and not restarts):
        raise BadRequest(f'container "{name}" in pod "{call.name}" is waiting to start')
    if options.previous and not restarts:
        what = f'previous terminated container "{name}" in pod "{call.name}"'
        raise BadRequest(f"{what} not found")
    return name, options


def _containers(pod: Object) -> list[Object]:
    spec = pod["spec"]
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _status(pod: Object, name: str) -> Object:
    """What is known of how a container is."""
    status = pod.get("status", {})
    known = (status.get(kind) or () for kind in ("initContainerStatuses", "containerStatuses"))
    return next((one for some in known for one in some if one.get("name") == name), {})


def _container(call: Call, pod: Object) -> str:
    """The container that is meant: the one that is named, or the only one."""
    names = [c["name"] for c in pod["spec"].get("containers") or ()]
    wanted = call.query.get("container") or (names[0] if len(names) == 1 else "")
    if not wanted:
        raise BadRequest(
            f"a container name must be specified for pod {call.name}, choose one of: {names}"
        )
    _check_container(call, pod, wanted)
    return wanted


def _check_container(call: Call, pod: Object, name: str) -> None:
    if not any(one["name"] == name for one in _containers(pod)):
        raise BadRequest(f"container {name} is not valid for pod {call.name}")
