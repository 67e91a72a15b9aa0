"""Resource metrics for `kubectl top`: PodMetrics and NodeMetrics, computed on request.

A pod on a simulated node uses what its annotation says (`api.resources`), else its requests. A
pod on a process node uses what its kubelet reported last. A node uses the sum of its pods. There
are no metrics for pods that do not run and for nodes that Phalanx does not run. Nothing is stored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from functools import cache, partial

import msgspec
import orjson

from phalanx.api.core import NODE_TYPE_ANNOTATION, PROCESS_NODE_TYPE, SIMULATED_NODE_TYPE, Node, Pod
from phalanx.api.errors import BadRequest, Conflict, MethodNotAllowed
from phalanx.api.kinds import NODE, POD, Kind
from phalanx.api.meta import ObjectMeta, timestamp
from phalanx.api.resources import (
    MEASURED_RESOURCES,
    Amounts,
    BadUsage,
    canonical_quantity,
    parse_usage_annotation,
    sum_amounts,
    to_amounts,
)
from phalanx.api.wire import Object, Reply
from phalanx.server.context import ServerContext
from phalanx.server.kubelet_reports import UsageSample
from phalanx.server.objects import (
    check_include_object,
    list_opening,
    not_found_error,
    render_table,
    serialize_object,
    success_reply,
)
from phalanx.server.request_bodies import read_object
from phalanx.server.request_info import RequestInfo
from phalanx.server.serialization import encode_list, encode_reply, negotiate, take_turns
from phalanx.store.kv import KeyValue

#: Seconds for which the last sample is valid.
_MAX_SAMPLE_AGE = 60.0
#: The window that is shown for simulated pods.
_SIMULATED_WINDOW = "15s"
_ZERO_USAGE: Mapping[str, int] = dict.fromkeys(MEASURED_RESOURCES, 0)
_decode_pod, _decode_node = msgspec.json.Decoder(Pod).decode, msgspec.json.Decoder(Node).decode


class _ContainerUsage(msgspec.Struct, frozen=True):
    """The reported usage of one container."""

    name: str
    usage: dict[str, str | int | float]


class _PodUsageReport(msgspec.Struct, frozen=True):
    """The body that the kubelet of a process node sends."""

    metadata: ObjectMeta
    containers: list[_ContainerUsage]
    window: str = _SIMULATED_WINDOW


async def pod_metrics(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle GET of PodMetrics: one pod or a list."""
    node_type = cache(partial(_node_type, context))
    metrics = [
        _pod_metrics_object(pod.metadata, sample)
        async for pod in _decode_pods(_find_records(context, request_info, POD))
        if (sample := _pod_usage(context, pod, node_type(pod.spec.node_name)))
    ]
    return await computed_reply(context, request_info, metrics)


async def node_metrics(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle GET of NodeMetrics: one node or a list."""
    records = _find_records(context, request_info, NODE)
    nodes = [_decode_node(record.value).metadata for record in records]
    types = {meta.name: meta.annotations.get(NODE_TYPE_ANNOTATION, "") for meta in nodes}
    used: dict[str, list[Amounts]] = {name: [] for name, node_type in types.items() if node_type}
    async for pod in _decode_pods(context.store.range(POD.store_prefix())):
        node = pod.occupied_node
        if node in used and (sample := _pod_usage(context, pod, types[node])):
            used[node] += sample.containers.values()
    now = timestamp(context.clock.now())
    metrics = [
        _node_metrics_object(meta, used[meta.name], now) for meta in nodes if meta.name in used
    ]
    return await computed_reply(context, request_info, metrics)


async def _decode_pods(records: Iterable[KeyValue]) -> AsyncIterator[Pod]:
    async for value in take_turns(record.value for record in records):
        yield _decode_pod(value)


async def report_pod_metrics(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle POST of PodMetrics: keep the usage that the kubelet of a process node measured."""
    request_info.check_dry_run()
    try:
        report = msgspec.convert(read_object(context, request_info), _PodUsageReport)
    except msgspec.ValidationError as error:
        raise BadRequest(f"invalid PodMetrics: {error}") from None
    name, uid = report.metadata.name, report.metadata.uid
    record = context.store.get(POD.store_key(request_info.namespace, name))
    if record is None:
        raise not_found_error(POD, name)
    pod = _decode_pod(record.value)
    if uid != pod.metadata.uid:
        raise Conflict(f'pod "{name}" does not have uid {uid}')
    if _node_type(context, pod.spec.node_name) != PROCESS_NODE_TYPE:
        raise BadRequest(f'pod "{name}" is not on a process node')
    used = {container.name: to_amounts(container.usage) for container in report.containers}
    if not request_info.dry_run:
        context.usage_samples.add(uid, UsageSample(context.clock.now(), report.window, used))
    return success_reply(201)


def _find_records(
    context: ServerContext, request_info: RequestInfo, kind: Kind
) -> Iterable[KeyValue]:
    """The stored pods or nodes that the request is about."""
    if request_info.is_watch:
        raise MethodNotAllowed
    if not request_info.name:
        return context.store.range(kind.store_prefix(request_info.namespace))
    record = context.store.get(kind.store_key(request_info.namespace, request_info.name))
    return [record] if record else []


def _node_type(context: ServerContext, name: str) -> str:
    """The type of a node; "" for a node that Phalanx does not run."""
    record = context.store.get(NODE.store_key("", name)) if name else None
    if record is None:
        return ""
    return _decode_node(record.value).metadata.annotations.get(NODE_TYPE_ANNOTATION, "")


def _pod_usage(context: ServerContext, pod: Pod, node_type: str) -> UsageSample | None:
    """The usage of a running pod; None if it is unknown."""
    if pod.status.phase != "Running":
        return None
    now = context.clock.now()
    if node_type == PROCESS_NODE_TYPE:
        return context.usage_samples.latest(pod.metadata.uid, since=now - _MAX_SAMPLE_AGE)
    if node_type != SIMULATED_NODE_TYPE:
        return None
    annotated = _read_annotated_usage(pod)
    used = {
        container.name: {**to_amounts(container.resources.requests), **annotated}
        for container in pod.spec.containers
    }
    return UsageSample(now, _SIMULATED_WINDOW, used)


def _read_annotated_usage(pod: Pod) -> Amounts:
    try:
        return to_amounts(parse_usage_annotation(pod.metadata.annotations))
    except BadUsage:
        # The annotation was valid on creation and was changed since.
        return {}


def _pod_metrics_object(meta: ObjectMeta, sample: UsageSample) -> Object:
    containers = [
        {"name": name, "usage": _format_usage(used)} for name, used in sample.containers.items()
    ]
    time = timestamp(sample.time)
    return {
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            **_metrics_metadata(meta, time),
        },
        "timestamp": time,
        "window": sample.window,
        "containers": containers,
    }


def _node_metrics_object(meta: ObjectMeta, parts: Iterable[Amounts], time: str) -> Object:
    return {
        "metadata": {"name": meta.name, **_metrics_metadata(meta, time)},
        "timestamp": time,
        "window": _SIMULATED_WINDOW,
        "usage": _format_usage(sum_amounts(parts)),
    }


def _metrics_metadata(meta: ObjectMeta, time: str) -> Object:
    labels = {"labels": meta.labels} if meta.labels else {}
    return {"creationTimestamp": time, **labels}


def _format_usage(used: Mapping[str, int]) -> Object:
    """CPU and memory as quantities; 0 if they are not measured."""
    amounts = {**_ZERO_USAGE, **used}
    return {
        "cpu": canonical_quantity(f"{amounts['cpu']}m"),
        "memory": canonical_quantity(f"{amounts['memory']}"),
    }


async def computed_reply(
    context: ServerContext, request_info: RequestInfo, metrics: Iterable[Object]
) -> Reply:
    """One object or the selected list, in the requested representation."""
    accepted, selection = negotiate(request_info.request), request_info.selection_predicate()
    selected = [obj for obj in metrics if selection.matches(obj)]
    if request_info.name and not selected:
        raise not_found_error(request_info.kind, request_info.name)
    kind, meta = request_info.kind, {"resourceVersion": str(context.store.revision)}
    if request_info.name and accepted.form != "Table":
        return encode_reply(Reply(200, serialize_object(kind, selected[0])), accepted)
    values = [orjson.dumps(obj) for obj in selected]
    if accepted.form == "Table":
        include = check_include_object(request_info.query.get("includeObject", ""))
        now = context.clock.now()
        return await render_table(kind, values, meta, include=include, now=now, accepted=accepted)
    opening = list_opening(kind.list_name, kind.api_version, meta)
    return await encode_list(opening, values, accepted)
