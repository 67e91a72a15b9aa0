"""What somebody wants of a log: the options of `pods/log`, read and applied to lines.

Logs of containers, read (`kubectl logs`) and, by the kubelets of process nodes, written.

What a container has said depends on the sort of its node: on a simulated one nothing ran, and a few
lines tell of that; what processes wrote is in `outputs`; of other nodes nothing is known here, as
no kubelet is ever asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import orjson

from phalanx.api.annotations import NODE_TYPE_ANNOTATION, PROCESS_NODE_TYPE, SIMULATED_NODE_TYPE
from phalanx.api.errors import BadRequest, Conflict, Invalid, join_causes
from phalanx.api.field_errors import forbidden, invalid
from phalanx.api.kinds import NODE
from phalanx.api.meta import micro_timestamp, parse_timestamp
from phalanx.api.wire import JSON, Object, Reply, StreamReply
from phalanx.server.context import ServerContext
from phalanx.server.kubelet_reports import ContainerRun, LogLine
from phalanx.server.objects import decode_record, not_found_error
from phalanx.server.request_info import RequestInfo
from phalanx.server.serialization import load_body

#: Option -> the least that it may be.
_MINIMUMS = {"tailLines": 0, "limitBytes": 1, "sinceSeconds": 1}
_FALSE_VALUES = ("", "0", "f", "false")


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Which lines are wanted, and how. `limit` is in bytes, `since` a moment."""

    previous: bool
    follow: bool
    timestamps: bool
    tail: int | None
    limit: int | None
    since: float

    def select_lines(self, lines: Iterable[LogLine]) -> list[LogLine]:
        """Those that are wanted of all that there are."""
        found = [line for line in lines if line.time >= self.since]
        return found if self.tail is None else found[max(len(found) - self.tail, 0) :]

    def format_lines(self, lines: Sequence[LogLine]) -> bytes:
        """Lines as they are sent."""
        if not self.timestamps:
            return b"".join(line.text for line in lines)
        return b"".join(micro_timestamp(at).encode() + b" " + text for _, at, text in lines)


def read_log_options(call: RequestInfo, now: float) -> LogOptions:
    """The options of a request, refused where they make no sense."""
    numbers = {option: call.int_option(option) for option in _MINIMUMS}
    _check_numbers(call, numbers)
    ago = numbers["sinceSeconds"]
    return LogOptions(
        _is_on(call, "previous"),
        _is_on(call, "follow"),
        _is_on(call, "timestamps"),
        numbers["tailLines"],
        numbers["limitBytes"],
        _since_time(call) if ago is None else now - ago,
    )


def _check_numbers(call: RequestInfo, numbers: dict[str, int | None]) -> None:
    causes = [
        invalid(option, value, f"must be greater than or equal to {_MINIMUMS[option]}")
        for option, value in numbers.items()
        if value is not None and value < _MINIMUMS[option]
    ]
    if numbers["sinceSeconds"] is not None and call.query.get("sinceTime"):
        causes.append(
            forbidden("", "at most one of `sinceTime` or `sinceSeconds` may be specified")
        )
    if causes:
        text = f'PodLogOptions "{call.name}" is invalid: {join_causes(causes)}'
        raise Invalid(text, kind="PodLogOptions", name=call.name, causes=causes)


def _since_time(call: RequestInfo) -> float:
    text = call.query.get("sinceTime", "")
    try:
        return parse_timestamp(text) if text else 0.0
    except ValueError:
        raise BadRequest(f'sinceTime: "{text}" is no time such as 2027-01-15T08:00:00Z') from None


def _is_on(call: RequestInfo, option: str) -> bool:
    return call.query.get(option, "").lower() not in _FALSE_VALUES


_TEXT = "text/plain; charset=utf-8"
#: Seconds between two looks at whether there is more to follow.
_FOLLOW_INTERVAL = 0.2


class _LogUpload(msgspec.Struct, frozen=True):
    """What the kubelet of a process node sends: whole lines of one run of a container."""

    uid: str
    container: str
    text: str
    restart: int = 0


async def read_log(context: ServerContext, call: RequestInfo) -> Reply | StreamReply:
    """What a container has written."""
    pod = _get_pod(context, call)
    name, options = _read_request(context, call, pod)
    if options.follow and not options.previous:
        return StreamReply(200, _follow_log(context, call, name, options), _TEXT)
    lines = options.select_lines(_container_lines(context, pod, name, options.previous))
    return Reply(200, options.format_lines(lines)[: options.limit], _TEXT)


async def append_log(context: ServerContext, call: RequestInfo) -> Reply:
    """Keep what a container of a process node has written, of the very pod that is meant."""
    pod = _get_pod(context, call)
    try:
        said = msgspec.convert(load_body(call.request, (JSON,)), _LogUpload)
    except msgspec.ValidationError as error:
        raise BadRequest(f"this is no output of a container: {error}") from None
    if said.uid != pod["metadata"]["uid"]:
        raise Conflict(f'pod "{call.name}" is not the one of uid {said.uid}')
    _check_container(call, pod, said.container)
    if _pod_node_type(context, pod) != PROCESS_NODE_TYPE:
        raise BadRequest(f'pod "{call.name}" is on no process node')
    run = ContainerRun(said.uid, said.container, said.restart)
    context.container_logs.append(run, context.clock.now(), said.text.encode(errors="replace"))
    return Reply(201, orjson.dumps({"kind": "Status", "apiVersion": "v1", "status": "Success"}))


async def _follow_log(
    context: ServerContext, call: RequestInfo, name: str, options: LogOptions
) -> AsyncGenerator[bytes, None]:
    """What there is and then what comes, until the container has ended."""
    seen, left = -1, options.limit
    while (record := context.store.get(call.key)) is not None:
        pod = decode_record(record)
        known = list(_container_lines(context, pod, name))
        new = (
            options.select_lines(known)
            if seen < 0
            else [one for one in known if one.number >= seen]
        )
        seen = known[-1].number + 1 if known else 0
        if text := options.format_lines(new)[:left]:
            left = None if left is None else left - len(text)
            yield text
        # As it was before the lines were read: what was written last has been sent.
        if left == 0 or "running" not in (_container_status(pod, name).get("state") or {}):
            return
        await asyncio.sleep(_FOLLOW_INTERVAL)


def _container_lines(
    context: ServerContext, pod: Object, name: str, previous: bool = False
) -> Iterator[LogLine]:
    """All that is known of what a container wrote."""
    status = _container_status(pod, name)
    sort = _pod_node_type(context, pod)
    if sort == PROCESS_NODE_TYPE:
        restart = status.get("restartCount", 0) - previous
        return context.container_logs.lines(ContainerRun(pod["metadata"]["uid"], name, restart))
    return _simulated_lines(pod, name, status) if sort == SIMULATED_NODE_TYPE else iter(())


def _simulated_lines(pod: Object, name: str, status: Object) -> Iterator[LogLine]:
    """What a container would say if it ran; the same for the same pod."""
    meta, spec, state = pod["metadata"], pod["spec"], status.get("state") or {}
    ended = state.get("terminated") or {}
    begin = ended.get("startedAt") or (state.get("running") or {}).get("startedAt")
    if not begin:
        return
    (own,) = [one for one in _containers(pod) if one["name"] == name]
    argv = " ".join([*(own.get("command") or ()), *(own.get("args") or ())])
    at = parse_timestamp(begin)
    texts = [
        f"{meta['namespace']}/{meta['name']}: {name} started on simulated node {spec['nodeName']}",
        f"image {own.get('image', '')}, nothing is executed: {argv or 'no command'}",
    ]
    for number, text in enumerate(texts):
        yield LogLine(number, at, f"{text}\n".encode())
    if ended:
        end = f"ended with exit code {ended.get('exitCode', 0)}\n"
        yield LogLine(len(texts), parse_timestamp(ended["finishedAt"]), end.encode())


def _get_pod(context: ServerContext, call: RequestInfo) -> Object:
    record = context.store.get(call.key)
    if record is None:
        raise not_found_error(call.kind, call.name)
    return decode_record(record)


def _pod_node_type(context: ServerContext, pod: Object) -> str:
    """Of which sort the node of a pod is; "" if it is not one of ours."""
    name = pod.get("spec", {}).get("nodeName", "")
    record = context.store.get(NODE.store_key("", name)) if name else None
    if record is None:
        return ""
    sort: str = (decode_record(record)["metadata"].get("annotations") or {}).get(
        NODE_TYPE_ANNOTATION, ""
    )
    return sort


def _read_request(context: ServerContext, call: RequestInfo, pod: Object) -> tuple[str, LogOptions]:
    """The container that is meant and what is wanted of it, if there can be anything."""
    options = read_log_options(call, context.clock.now())
    name = _requested_container(call, pod)
    status = _container_status(pod, name)
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


def _container_status(pod: Object, name: str) -> Object:
    """What is known of how a container is."""
    status = pod.get("status", {})
    known = (status.get(kind) or () for kind in ("initContainerStatuses", "containerStatuses"))
    return next((one for some in known for one in some if one.get("name") == name), {})


def _requested_container(call: RequestInfo, pod: Object) -> str:
    """The container that is meant: the one that is named, or the only one."""
    names = [c["name"] for c in pod["spec"].get("containers") or ()]
    wanted = call.query.get("container") or (names[0] if len(names) == 1 else "")
    if not wanted:
        raise BadRequest(
            f"a container name must be specified for pod {call.name}, choose one of: {names}"
        )
    _check_container(call, pod, wanted)
    return wanted


def _check_container(call: RequestInfo, pod: Object, name: str) -> None:
    if not any(one["name"] == name for one in _containers(pod)):
        raise BadRequest(f"container {name} is not valid for pod {call.name}")
