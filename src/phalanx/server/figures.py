"""What pods and nodes use, for `kubectl top`: PodMetrics and NodeMetrics, made when asked for.

A pod on a simulated node uses what its annotation says (`api.podusage`), else what it asks for; one
on a process node what its kubelet measured and sent here last. A node uses what its pods use. Of
pods that do not run and of nodes that are not ours nothing is known. Nothing is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial

import msgspec
import orjson

from phalanx.api.core import Container, Node, Pod
from phalanx.api.errors import BadRequest, Conflict, MethodNotAllowed
from phalanx.api.kinds import NODE, POD, Kind
from phalanx.api.meta import Meta, timestamp
from phalanx.api.nodesorts import NODE_SORT, PROCESS, SIMULATED
from phalanx.api.podusage import MEASURED, BadUsage, stated_usage
from phalanx.api.quantity import canonical
from phalanx.api.resources import Amounts, amounts, total
from phalanx.api.wire import Object, Reply
from phalanx.server import tables
from phalanx.server.bodies import read_object
from phalanx.server.call import Call
from phalanx.server.context import Context
from phalanx.server.measurements import Measurement
from phalanx.server.negotiation import in_media, negotiate
from phalanx.server.objects import dumped, listed, not_found, succeeded
from phalanx.store.kv import Record

#: Seconds for which what was measured last counts.
_FRESH = 60.0
#: Over how long a simulated pod is said to be measured.
_WINDOW = "15s"
_NOTHING: Mapping[str, int] = dict.fromkeys(MEASURED, 0)
_pod, _node = msgspec.json.Decoder(Pod).decode, msgspec.json.Decoder(Node).decode

#: From the name of a node to its sort.
Sort = Callable[[str], str]


class _Used(msgspec.Struct, frozen=True):
    """What one container is said to use."""

    name: str
    usage: dict[str, str | int | float]


class _Report(msgspec.Struct, frozen=True):
    """What the kubelet of a process node sends of one pod."""

    metadata: Meta
    containers: list[_Used]
    window: str = _WINDOW


async def pods(context: Context, call: Call) -> Reply:
    """What pods use: one of them, or all that a list is about."""
    sort = cache(partial(_sort, context))
    found = []
    for record in _records(context, call, POD):
        pod = _pod(record.value)
        if measured := _measured(context, pod, sort(pod.spec.node_name)):
            found.append(_pod_figures(pod.metadata, measured))
    return _shown(context, call, found)


async def nodes(context: Context, call: Call) -> Reply:
    """What nodes use: one of them, or all that a list is about."""
    own = [_node(record.value).metadata for record in _records(context, call, NODE)]
    sorts = {meta.name: meta.annotations.get(NODE_SORT, "") for meta in own}
    used: dict[str, list[Amounts]] = {name: [] for name, sort in sorts.items() if sort}
    for record in context.store.range(POD.prefix()):
        pod = _pod(record.value)
        measured = pod.node in used and _measured(context, pod, sorts[pod.node])
        if measured:
            used[pod.node] += measured.containers.values()
    now = timestamp(context.clock.now())
    return _shown(
        context,
        call,
        [_node_figures(meta, used[meta.name], now) for meta in own if meta.name in used],
    )


async def report(context: Context, call: Call) -> Reply:
    """Keep what the kubelet of a process node measured, of the very pod that is meant."""
    call.check_dry_run()
    try:
        told = msgspec.convert(read_object(context, call), _Report)
    except msgspec.ValidationError as error:
        raise BadRequest(f"this says nothing of what a pod uses: {error}") from None
    name, uid = told.metadata.name, told.metadata.uid
    record = context.store.get(POD.key(call.namespace, name))
    if record is None:
        raise not_found(POD, name)
    pod = _pod(record.value)
    if uid != pod.metadata.uid:
        raise Conflict(f'pod "{name}" is not the one of uid {uid}')
    if _sort(context, pod.spec.node_name) != PROCESS:
        raise BadRequest(f'pod "{name}" is on no process node')
    used = {one.name: amounts(one.usage) for one in told.containers}
    if not call.dry_run:
        context.measurements.keep(uid, Measurement(context.clock.now(), told.window, used))
    return succeeded(201)


def _records(context: Context, call: Call, kind: Kind) -> Iterable[Record]:
    """What is stored of those that are asked about."""
    if call.is_watch:
        raise MethodNotAllowed
    if not call.name:
        return context.store.range(kind.prefix(call.namespace))
    record = context.store.get(kind.key(call.namespace, call.name))
    return [record] if record else []


def _sort(context: Context, name: str) -> str:
    """Of which sort a node is; "" if it is not one of ours."""
    record = context.store.get(NODE.key("", name)) if name else None
    return _node(record.value).metadata.annotations.get(NODE_SORT, "") if record else ""


def _measured(context: Context, pod: Pod, sort: str) -> Measurement | None:
    """What a pod uses, if it runs where something is known of that."""
    if pod.status.phase != "Running":
        return None
    now = context.clock.now()
    if sort == PROCESS:
        return context.measurements.of(pod.metadata.uid, since=now - _FRESH)
    if sort != SIMULATED:
        return None
    said = _said(pod)
    used = {one.name: _pretended(one, said) for one in pod.spec.containers}
    return Measurement(now, _WINDOW, used)


def _said(pod: Pod) -> Amounts:
    try:
        return amounts(stated_usage(pod.metadata.annotations))
    except BadUsage:
        # It was turned into this while the pod ran: when it came it could be read.
        return {}


def _pretended(container: Container, said: Amounts) -> Amounts:
    return {**amounts(container.resources.requests), **said}


def _pod_figures(meta: Meta, measured: Measurement) -> Object:
    containers = [
        {"name": name, "usage": _usage(used)} for name, used in measured.containers.items()
    ]
    moment = timestamp(measured.moment)
    own = {"name": meta.name, "namespace": meta.namespace, **_labelled(meta, moment)}
    return {
        "metadata": own, "timestamp": moment, "window": measured.window, "containers": containers,
    }  # fmt: skip


def _node_figures(meta: Meta, parts: Iterable[Amounts], moment: str) -> Object:
    own = {"name": meta.name, **_labelled(meta, moment)}
    return {"metadata": own, "timestamp": moment, "window": _WINDOW, "usage": _usage(total(parts))}


def _labelled(meta: Meta, moment: str) -> Object:
    labels = {"labels": meta.labels} if meta.labels else {}
    return {"creationTimestamp": moment, **labels}


def _usage(used: Mapping[str, int]) -> Object:
    """Amounts as quantities; of what is not measured at all nothing is told."""
    known = {**_NOTHING, **used}
    return {"cpu": canonical(f"{known['cpu']}m"), "memory": canonical(f"{known['memory']}")}


def _shown(context: Context, call: Call, found: Iterable[Object]) -> Reply:
    """One of them, or a list of those that are selected, in the form that is wanted."""
    accepted, selection = negotiate(call.request), call.selection()
    chosen = [one for one in found if selection.holds(one)]
    if call.name and not chosen:
        raise not_found(call.kind, call.name)
    meta = {"resourceVersion": str(context.store.revision)}
    if accepted.form == "Table":
        include = tables.check_include(call.query.get("includeObject", ""))
        values, now = map(orjson.dumps, chosen), context.clock.now()
        body = tables.table(call.kind, values, meta, include, now)
    elif call.name:
        body = dumped(call.kind, chosen[0])
    else:
        body = listed(call.kind, meta, map(orjson.dumps, chosen))
    return in_media(Reply(200, body), accepted)
