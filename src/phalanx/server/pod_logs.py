"""Container logs: `pods/log`, read by `kubectl logs` and written by the kubelets of process nodes.

The source depends on the type of the node. On a simulated node nothing runs: a few generated lines
describe the container. On a process node the kubelet sends the output (`kubelet_reports.py`). For
other nodes the log is empty, because the server never calls a kubelet.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import orjson

from phalanx.api.core import NODE_TYPE_ANNOTATION, PROCESS_NODE_TYPE, SIMULATED_NODE_TYPE
from phalanx.api.errors import (
    ApiError,
    BadRequest,
    Conflict,
    Invalid,
    MethodNotAllowed,
    forbidden,
    invalid,
    join_causes,
)
from phalanx.api.kinds import NODE
from phalanx.api.meta import micro_timestamp, parse_timestamp
from phalanx.api.wire import JSON, Object, Reply, StreamReply
from phalanx.server.context import ServerContext
from phalanx.server.kubelet_reports import ContainerRun, LogLine
from phalanx.server.objects import decode_record, not_found_error
from phalanx.server.request_info import RequestInfo
from phalanx.server.serialization import load_body

#: Option -> its minimum.
_MINIMUMS = {"tailLines": 0, "limitBytes": 1, "sinceSeconds": 1}
_FALSE_VALUES = ("", "0", "f", "false")


@dataclass(frozen=True, slots=True)
class PodLogOptions:
    """The options of `pods/log`. `limit` is in bytes, `since` is a time."""

    previous: bool
    follow: bool
    timestamps: bool
    tail: int | None
    limit: int | None
    since: float

    def select_lines(self, lines: Iterable[LogLine]) -> list[LogLine]:
        """The lines that match `since` and `tail`."""
        found = [line for line in lines if line.time >= self.since]
        return found if self.tail is None else found[max(len(found) - self.tail, 0) :]

    def format_lines(self, lines: Sequence[LogLine]) -> bytes:
        """Lines as the client reads them."""
        if not self.timestamps:
            return b"".join(line.text for line in lines)
        return b"".join(micro_timestamp(at).encode() + b" " + text for _, at, text in lines)


def read_log_options(request_info: RequestInfo, now: float) -> PodLogOptions:
    """Parse the options of a request. Raises Invalid."""
    numbers = {option: request_info.int_option(option) for option in _MINIMUMS}
    _check_numbers(request_info, numbers)
    age = numbers["sinceSeconds"]
    return PodLogOptions(
        previous=_is_on(request_info, "previous"),
        follow=_is_on(request_info, "follow"),
        timestamps=_is_on(request_info, "timestamps"),
        tail=numbers["tailLines"],
        limit=numbers["limitBytes"],
        since=_since_time(request_info) if age is None else now - age,
    )


def _check_numbers(request_info: RequestInfo, numbers: dict[str, int | None]) -> None:
    causes = [
        invalid(option, value, f"must be greater than or equal to {_MINIMUMS[option]}")
        for option, value in numbers.items()
        if value is not None and value < _MINIMUMS[option]
    ]
    if numbers["sinceSeconds"] is not None and request_info.query.get("sinceTime"):
        causes.append(
            forbidden("[]", "at most one of `sinceTime` or `sinceSeconds` may be specified")
        )
    if causes:
        text = f'PodLogOptions "{request_info.name}" is invalid: {join_causes(causes)}'
        raise Invalid(text, kind="PodLogOptions", name=request_info.name, causes=causes)


def _since_time(request_info: RequestInfo) -> float:
    text = request_info.query.get("sinceTime", "")
    try:
        return parse_timestamp(text) if text else 0.0
    except ValueError:
        raise BadRequest(
            f'sinceTime: invalid time "{text}": expected a time such as 2027-01-15T08:00:00Z'
        ) from None


def _is_on(request_info: RequestInfo, option: str) -> bool:
    return request_info.query.get(option, "").lower() not in _FALSE_VALUES


_TEXT = "text/plain; charset=utf-8"
#: Seconds between two checks for new lines.
_FOLLOW_INTERVAL = 0.2


class _LogUpload(msgspec.Struct, frozen=True):
    """The body that a kubelet sends: whole lines of one run of a container."""

    uid: str
    container: str
    text: str
    restart: int = 0


async def read_log(context: ServerContext, request_info: RequestInfo) -> Reply | StreamReply:
    """Handle GET of `pods/log`."""
    pod = _get_pod(context, request_info)
    if not pod.get("spec", {}).get("nodeName"):
        # No node could have its lines; the options are checked, as in Kubernetes.
        read_log_options(request_info, context.clock.now())
        _select_container(request_info, pod)
        return Reply(204, b"", _TEXT)
    name, options = _read_request(context, request_info, pod)
    if options.follow and not options.previous:
        return StreamReply(200, _follow_log(context, request_info, name, options=options), _TEXT)
    node_type = _pod_node_type(context, pod)
    lines = _container_lines(context, pod, name, node_type=node_type, previous=options.previous)
    text = options.format_lines(options.select_lines(lines))
    return Reply(200, text[: options.limit], _TEXT)


async def append_log(context: ServerContext, request_info: RequestInfo) -> Reply:
    """Handle POST of `pods/log`: append output of a container on a process node."""
    pod = _get_pod(context, request_info)
    if _pod_node_type(context, pod) != PROCESS_NODE_TYPE:
        raise MethodNotAllowed()  # Kubernetes has no such request.
    try:
        upload = msgspec.convert(load_body(request_info.request, (JSON,)), _LogUpload)
    except msgspec.ValidationError as error:
        raise BadRequest(f"invalid container output: {error}") from None
    if upload.uid != pod["metadata"]["uid"]:
        raise Conflict(f'pod "{request_info.name}" does not have uid {upload.uid}')
    _check_container(request_info, pod, upload.container)
    run = ContainerRun(upload.uid, upload.container, upload.restart)
    context.container_logs.append(run, context.clock.now(), upload.text.encode(errors="replace"))
    return Reply(201, orjson.dumps({"kind": "Status", "apiVersion": "v1", "status": "Success"}))


async def _follow_log(
    context: ServerContext, request_info: RequestInfo, name: str, *, options: PodLogOptions
) -> AsyncGenerator[bytes, None]:
    """The lines so far, then new ones, until the container has terminated or access ends.

    Hundreds of clients may follow a large pod: it is decoded only when it has changed.
    """
    revision, seen, left = 0, 0, options.limit
    refusals: list[ApiError] = []
    with context.access.streams.track(request_info, "get", refusals.append):
        while not refusals and (record := context.store.get(request_info.key)) is not None:
            if record.revision != revision:
                pod, is_first = decode_record(record), not revision
                node_type, revision = _pod_node_type(context, pod), record.revision
            elif node_type != PROCESS_NODE_TYPE:
                await asyncio.sleep(_FOLLOW_INTERVAL)
                continue
            lines = list(_container_lines(context, pod, name, since=seen, node_type=node_type))
            new, is_first = options.select_lines(lines) if is_first else lines, False
            seen = lines[-1].number + 1 if lines else seen
            if text := options.format_lines(new)[:left]:
                left = None if left is None else left - len(text)
                yield text
            # The pod was read before the lines: if it had terminated, all its lines are sent.
            if left == 0 or "running" not in (_container_status(pod, name).get("state") or {}):
                return
            await asyncio.sleep(_FOLLOW_INTERVAL)


def _container_lines(
    context: ServerContext,
    pod: Object,
    name: str,
    *,
    node_type: str,
    previous: bool = False,
    since: int = 0,
) -> Iterator[LogLine]:
    """The kept lines of a container from a number on."""
    status = _container_status(pod, name)
    if node_type == PROCESS_NODE_TYPE:
        restart = status.get("restartCount", 0) - previous
        run = ContainerRun(pod["metadata"]["uid"], name, restart)
        return iter(context.container_logs.lines(run, since))
    simulated = _simulate_lines(pod, name, status) if node_type == SIMULATED_NODE_TYPE else ()
    return (line for line in simulated if line.number >= since)


def _simulate_lines(pod: Object, name: str, status: Object) -> Iterator[LogLine]:
    """Generated lines for a container on a simulated node; equal for equal pods."""
    meta, spec, state = pod["metadata"], pod["spec"], status.get("state") or {}
    terminated = state.get("terminated") or {}
    started_at = terminated.get("startedAt") or (state.get("running") or {}).get("startedAt")
    if not started_at:
        return
    (container,) = [one for one in _containers(pod) if one["name"] == name]
    argv = " ".join([*(container.get("command") or ()), *(container.get("args") or ())])
    started = parse_timestamp(started_at)
    texts = [
        f"{meta['namespace']}/{meta['name']}: {name} started on simulated node {spec['nodeName']}",
        f"image {container.get('image', '')}, nothing is executed: {argv or 'no command'}",
    ]
    for number, text in enumerate(texts):
        yield LogLine(number, started, f"{text}\n".encode())
    if terminated:
        text = f"ended with exit code {terminated.get('exitCode', 0)}\n"
        yield LogLine(len(texts), parse_timestamp(terminated["finishedAt"]), text.encode())


def _get_pod(context: ServerContext, request_info: RequestInfo) -> Object:
    record = context.store.get(request_info.key)
    if record is None:
        raise not_found_error(request_info.kind, request_info.name)
    return decode_record(record)


def _pod_node_type(context: ServerContext, pod: Object) -> str:
    """The type of the node of a pod; "" for a node that Phalanx does not run."""
    name = pod.get("spec", {}).get("nodeName", "")
    record = context.store.get(NODE.store_key("", name)) if name else None
    if record is None:
        return ""
    annotations = decode_record(record)["metadata"].get("annotations") or {}
    return str(annotations.get(NODE_TYPE_ANNOTATION, ""))


def _read_request(
    context: ServerContext, request_info: RequestInfo, pod: Object
) -> tuple[str, PodLogOptions]:
    """The requested container and options; raises BadRequest if it has no log."""
    options = read_log_options(request_info, context.clock.now())
    name = _select_container(request_info, pod)
    status = _container_status(pod, name)
    restarts = status.get("restartCount", 0)
    if not status or ("waiting" in status.get("state", {}) and not restarts):
        raise BadRequest(f'container "{name}" in pod "{request_info.name}" is waiting to start')
    if options.previous and not restarts:
        raise BadRequest(
            f'previous terminated container "{name}" in pod "{request_info.name}" not found'
        )
    return name, options


def _containers(pod: Object) -> list[Object]:
    spec = pod["spec"]
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _container_status(pod: Object, name: str) -> Object:
    """The status of a container, or {}."""
    status = pod.get("status", {})
    lists = (status.get(field) or () for field in ("initContainerStatuses", "containerStatuses"))
    return next((one for statuses in lists for one in statuses if one.get("name") == name), {})


def _select_container(request_info: RequestInfo, pod: Object) -> str:
    """The container that the query names, or the only one of the pod."""
    names = [c["name"] for c in pod["spec"].get("containers") or ()]
    name = request_info.query.get("container") or (names[0] if len(names) == 1 else "")
    if not name:
        raise BadRequest(
            f"a container name must be specified for pod {request_info.name}, "
            f"choose one of: {names}"
        )
    _check_container(request_info, pod, name)
    return name


def _check_container(request_info: RequestInfo, pod: Object, name: str) -> None:
    if not any(one["name"] == name for one in _containers(pod)):
        raise BadRequest(f"container {name} is not valid for pod {request_info.name}")
