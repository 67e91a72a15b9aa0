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

from phalanx.api.annotations import (
    MEASURED_RESOURCES,
    NODE_TYPE_ANNOTATION,
    PROCESS_NODE_TYPE,
    SIMULATED_NODE_TYPE,
    BadUsage,
    parse_usage_annotation,
)
from phalanx.api.core import Container, Node, Pod
from phalanx.api.errors import BadRequest, Conflict, MethodNotAllowed
from phalanx.api.kinds import NODE, POD, Kind
from phalanx.api.meta import ObjectMeta, timestamp
from phalanx.api.quantity import canonical_quantity
from phalanx.api.resources import Amounts, sum_amounts, to_amounts
from phalanx.api.wire import Object, Reply
from phalanx.server import tables
from phalanx.server.context import ServerContext
from phalanx.server.kubelet_reports import UsageSample
from phalanx.server.objects import not_found_error, serialize_list, serialize_object, success_reply
from phalanx.server.request_bodies import read_object
from phalanx.server.request_info import RequestInfo
from phalanx.server.serialization import encode_reply, negotiate
from phalanx.store.kv import KeyValue

#: Seconds for which what was measured last counts.
_MAX_SAMPLE_AGE = 60.0
#: Over how long a simulated pod is said to be measured.
_SIMULATED_WINDOW = "15s"
_ZERO_USAGE: Mapping[str, int] = dict.fromkeys(MEASURED_RESOURCES, 0)
_decode_pod, _decode_node = msgspec.json.Decoder(Pod).decode, msgspec.json.Decoder(Node).decode

#: From the name of a node to its sort.
NodeTypeLookup = Callable[[str], str]


class _ContainerUsage(msgspec.Struct, frozen=True):
    """What one container is said to use."""

    name: str
    usage: dict[str, str | int | float]


class _PodUsageReport(msgspec.Struct, frozen=True):
    """What the kubelet of a process node sends of one pod."""

    metadata: ObjectMeta
    containers: list[_ContainerUsage]
    window: str = _SIMULATED_WINDOW


async def pod_metrics(context: ServerContext, call: RequestInfo) -> Reply:
    """What pods use: one of them, or all that a list is about."""
    sort = cache(partial(_node_type, context))
    found = []
    for record in _requested_records(context, call, POD):
        pod = _decode_pod(record.value)
        if measured := _pod_usage(context, pod, sort(pod.spec.node_name)):
            found.append(_pod_metrics_object(pod.metadata, measured))
    return _metrics_reply(context, call, found)


async def node_metrics(context: ServerContext, call: RequestInfo) -> Reply:
    """What nodes use: one of them, or all that a list is about."""
    own = [
        _decode_node(record.value).metadata for record in _requested_records(context, call, NODE)
    ]
    sorts = {meta.name: meta.annotations.get(NODE_TYPE_ANNOTATION, "") for meta in own}
    used: dict[str, list[Amounts]] = {name: [] for name, sort in sorts.items() if sort}
    for record in context.store.range(POD.store_prefix()):
        pod = _decode_pod(record.value)
        measured = pod.occupied_node in used and _pod_usage(context, pod, sorts[pod.occupied_node])
        if measured:
            used[pod.occupied_node] += measured.containers.values()
    now = timestamp(context.clock.now())
    return _metrics_reply(
        context,
        call,
        [_node_metrics_object(meta, used[meta.name], now) for meta in own if meta.name in used],
    )


async def report_pod_metrics(context: ServerContext, call: RequestInfo) -> Reply:
    """Keep what the kubelet of a process node measured, of the very pod that is meant."""
    call.check_dry_run()
    try:
        told = msgspec.convert(read_object(context, call), _PodUsageReport)
    except msgspec.ValidationError as error:
        raise BadRequest(f"this says nothing of what a pod uses: {error}") from None
    name, uid = told.metadata.name, told.metadata.uid
    record = context.store.get(POD.store_key(call.namespace, name))
    if record is None:
        raise not_found_error(POD, name)
    pod = _decode_pod(record.value)
    if uid != pod.metadata.uid:
        raise Conflict(f'pod "{name}" is not the one of uid {uid}')
    if _node_type(context, pod.spec.node_name) != PROCESS_NODE_TYPE:
        raise BadRequest(f'pod "{name}" is on no process node')
    used = {one.name: to_amounts(one.usage) for one in told.containers}
    if not call.dry_run:
        context.usage_samples.add(uid, UsageSample(context.clock.now(), told.window, used))
    return success_reply(201)


def _requested_records(context: ServerContext, call: RequestInfo, kind: Kind) -> Iterable[KeyValue]:
    """What is stored of those that are asked about."""
    if call.is_watch:
        raise MethodNotAllowed
    if not call.name:
        return context.store.range(kind.store_prefix(call.namespace))
    record = context.store.get(kind.store_key(call.namespace, call.name))
    return [record] if record else []


def _node_type(context: ServerContext, name: str) -> str:
    """Of which sort a node is; "" if it is not one of ours."""
    record = context.store.get(NODE.store_key("", name)) if name else None
    return (
        _decode_node(record.value).metadata.annotations.get(NODE_TYPE_ANNOTATION, "")
        if record
        else ""
    )


def _pod_usage(context: ServerContext, pod: Pod, node_type: str) -> UsageSample | None:
    """What a pod uses, if it runs where something is known of that."""
    if pod.status.phase != "Running":
        return None
    now = context.clock.now()
    if node_type == PROCESS_NODE_TYPE:
        return context.usage_samples.latest(pod.metadata.uid, since=now - _MAX_SAMPLE_AGE)
    if node_type != SIMULATED_NODE_TYPE:
        return None
    said = _annotated_usage(pod)
    used = {one.name: _simulated_usage(one, said) for one in pod.spec.containers}
    return UsageSample(now, _SIMULATED_WINDOW, used)


def _annotated_usage(pod: Pod) -> Amounts:
    try:
        return to_amounts(parse_usage_annotation(pod.metadata.annotations))
    except BadUsage:
        # It was turned into this while the pod ran: when it came it could be read.
        return {}


def _simulated_usage(container: Container, annotated: Amounts) -> Amounts:
    return {**to_amounts(container.resources.requests), **annotated}


def _pod_metrics_object(meta: ObjectMeta, sample: UsageSample) -> Object:
    containers = [
        {"name": name, "usage": _format_usage(used)} for name, used in sample.containers.items()
    ]
    moment = timestamp(sample.time)
    own = {"name": meta.name, "namespace": meta.namespace, **_metrics_metadata(meta, moment)}
    return {
        "metadata": own, "timestamp": moment, "window": sample.window, "containers": containers,
    }  # fmt: skip


def _node_metrics_object(meta: ObjectMeta, parts: Iterable[Amounts], time: str) -> Object:
    own = {"name": meta.name, **_metrics_metadata(meta, time)}
    return {
        "metadata": own,
        "timestamp": time,
        "window": _SIMULATED_WINDOW,
        "usage": _format_usage(sum_amounts(parts)),
    }


def _metrics_metadata(meta: ObjectMeta, time: str) -> Object:
    labels = {"labels": meta.labels} if meta.labels else {}
    return {"creationTimestamp": time, **labels}


def _format_usage(used: Mapping[str, int]) -> Object:
    """Amounts as quantities; of what is not measured at all nothing is told."""
    known = {**_ZERO_USAGE, **used}
    return {
        "cpu": canonical_quantity(f"{known['cpu']}m"),
        "memory": canonical_quantity(f"{known['memory']}"),
    }


def _metrics_reply(context: ServerContext, call: RequestInfo, found: Iterable[Object]) -> Reply:
    """One of them, or a list of those that are selected, in the form that is wanted."""
    accepted, selection = negotiate(call.request), call.selection_predicate()
    chosen = [one for one in found if selection.matches(one)]
    if call.name and not chosen:
        raise not_found_error(call.kind, call.name)
    meta = {"resourceVersion": str(context.store.revision)}
    if accepted.form == "Table":
        include = tables.check_include(call.query.get("includeObject", ""))
        values, now = map(orjson.dumps, chosen), context.clock.now()
        body = tables.table(call.kind, values, meta, include, now)
    elif call.name:
        body = serialize_object(call.kind, chosen[0])
    else:
        body = serialize_list(call.kind, meta, map(orjson.dumps, chosen))
    return encode_reply(Reply(200, body), accepted)
