"""The lines of a recording: JSON objects, one per change of an object that the scheduler reads.

    {"is":"recording","at":1767225600.0,"format":1,"version":"0.9.0"}
    {"is":"node","at":1767225600.1,"name":"node-0","node":{"metadata":{…},"status":{…}}}
    {"is":"synced","at":1767225600.2}
    {"is":"pod","at":1767225601.3,"key":["default","train-0"],"pod":{…}}
    {"is":"pod","at":1767225921.0,"key":["default","train-0"],"pod":null}
    {"is":"ended","at":1767229200.0}

The first line is the header. The objects that existed at the beginning come next, up to `synced`.
Observations are those of the decision log (`scheduler/queue/decision_log.py`) without the fields
that have their default. `trim_object` leaves out everything that no scheduling decision depends on:
messages, addresses, names of containers, and annotations of other projects, which may be secret.

A recorder that was killed leaves at most one incomplete line, the last one; readers ignore it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec
import orjson
from msgspec import NODEFAULT, Struct
from msgspec.structs import replace

from phalanx.api.batch import EXPECTED_RUN_TIME_ANNOTATION
from phalanx.api.core import Container, Node, Pod, PodVolume
from phalanx.api.dynamic_resources import DeviceClass
from phalanx.api.meta import Condition, ObjectMeta
from phalanx.api.other_kinds import DeviceClaim, PodDisruptionBudget
from phalanx.api.scheduling import (
    FINISHED_ANNOTATION,
    MEMBERS_TO_RUN_ANNOTATION,
    PRIORITY_FROM_MEMBERS_ANNOTATION,
    TOPOLOGY_ANNOTATION,
    CompositePodGroup,
    PodGroup,
)
from phalanx.scheduler.queue.decision_log import Observation, TimedRecord
from phalanx.sim.workloads.field_errors import InvalidJson, explain_error, load_json
from phalanx.sim.workloads.workload import MAX_SECONDS, InvalidTrace, TraceFile

#: The version of the format; it changes when lines change their meaning.
RECORDING_FORMAT = 1
#: The annotations that schedulers read.
KEPT_ANNOTATIONS = frozenset(
    {
        EXPECTED_RUN_TIME_ANNOTATION,
        FINISHED_ANNOTATION,
        MEMBERS_TO_RUN_ANNOTATION,
        PRIORITY_FROM_MEMBERS_ANNOTATION,
        TOPOLOGY_ANNOTATION,
    }
)


class RecordingStarted(TimedRecord, frozen=True, tag="recording"):
    """The header: the writer, and what it records."""

    format: int
    version: str = ""
    #: The only namespace whose objects are recorded; "" for all.
    namespace: str = ""
    is_anonymized: bool = False
    #: The KubeSchedulerConfiguration of the scheduler, if the user has named it.
    configuration: dict[str, Any] | None = None


class KindUnseen(TimedRecord, frozen=True, tag="unseen"):
    """Objects of a kind are not recorded, and why."""

    resource: str
    reason: str = ""


class RecordingSynced(TimedRecord, frozen=True, tag="synced"):
    """All objects that existed at the beginning have been written."""


class WatchInterrupted(TimedRecord, frozen=True, tag="interrupted"):
    """The server could not be followed: changes of a kind may be late or missing."""

    resource: str
    reason: str = ""


class RecordingEnded(TimedRecord, frozen=True, tag="ended"):
    """The recorder stopped in order. Without this line a recording ends with its last line."""


RecordingLine = (
    RecordingStarted
    | KindUnseen
    | RecordingSynced
    | WatchInterrupted
    | RecordingEnded
    | Observation
)
_decode_line = msgspec.json.Decoder(RecordingLine).decode
#: Decodes the names of the fields of a line, and no values.
_decode_names = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_HEADER_TAG = b'"is":"recording"'


# ---- writing -----------------------------------------------------------------------------------


def trim_object(found: Any) -> Any:
    """Return an object of the API with only the fields that scheduling decisions depend on."""
    trim = _TRIMMERS.get(type(found))
    if trim is not None:
        return trim(found)
    return replace(found, metadata=_trim_meta(found.metadata))


def _trim_meta(meta: ObjectMeta) -> ObjectMeta:
    annotations = {key: text for key, text in meta.annotations.items() if key in KEPT_ANNOTATIONS}
    return replace(meta, resource_version="", generation=0, finalizers=(), annotations=annotations)


def _trim_conditions(conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """Leave out messages and times: messages may quote anything, times change with nothing else."""
    return tuple(Condition(one.type, one.status, one.reason) for one in conditions)


def _trim_pod(pod: Pod) -> Pod:
    spec, status = pod.spec, pod.status
    # Of a resized pod, what its node has allocated differs from its spec.
    statuses = {one.name: replace(one, restart_count=0) for one in pod.resized_containers}
    return replace(
        pod,
        metadata=_trim_meta(pod.metadata),
        spec=replace(
            spec,
            containers=_trim_containers(spec.containers, statuses),
            init_containers=_trim_containers(spec.init_containers, statuses),
            ephemeral_containers=(),
            readiness_gates=(),
            volumes=tuple(_trim_volume(one) for one in spec.volumes if one != PodVolume(one.name)),
            hostname="",
            subdomain="",
        ),
        status=replace(
            status,
            conditions=tuple(
                one for one in _trim_conditions(status.conditions) if one.type != "Ready"
            ),
            container_statuses=tuple(
                statuses[one.name] for one in status.container_statuses if one.name in statuses
            ),
            init_container_statuses=tuple(
                statuses[one.name] for one in status.init_container_statuses if one.name in statuses
            ),
            ephemeral_container_statuses=(),
            pod_ips=(),
        ),
    )


def _trim_volume(volume: PodVolume) -> PodVolume:
    """Keep the spec of an ephemeral claim, without its annotations."""
    template = (volume.ephemeral or {}).get("volumeClaimTemplate")
    if not isinstance(template, dict):
        return volume
    return replace(volume, ephemeral={"volumeClaimTemplate": {"spec": template.get("spec")}})


def _trim_containers(
    containers: tuple[Container, ...], named: dict[str, Any]
) -> tuple[Container, ...]:
    """Keep requests, host ports and images; names only where a status refers to them."""
    return tuple(
        replace(
            one,
            name=one.name if one.name in named else "",
            ports=tuple(replace(port, name="") for port in one.ports if port.host_port),
        )
        for one in containers
    )


def _trim_node(node: Node) -> Node:
    status = replace(node.status, conditions=_trim_conditions(node.status.conditions))
    return replace(node, metadata=_trim_meta(node.metadata), status=status)


def _trim_group(group: Any) -> Any:
    """Keep the spec: the scheduler knows by itself what it writes to the status."""
    return replace(group, metadata=_trim_meta(group.metadata), status=type(group.status)())


def _trim_budget(budget: PodDisruptionBudget) -> PodDisruptionBudget:
    status = replace(budget.status, disrupted_pods={}, conditions=(), observed_generation=0)
    return replace(budget, metadata=_trim_meta(budget.metadata), status=status)


def _trim_class(found: DeviceClass) -> DeviceClass:
    return replace(found, metadata=_trim_meta(found.metadata), spec=replace(found.spec, config=()))


def _trim_claim(claim: DeviceClaim) -> DeviceClaim:
    """Leave out the configuration for drivers, which may contain anything, and their messages."""
    status, allocation = claim.status, claim.status.allocation
    if allocation is not None and "devices" in allocation:
        devices = {k: value for k, value in allocation["devices"].items() if k != "config"}
        allocation = {**allocation, "devices": devices}
    reported = tuple(
        replace(one, conditions=_trim_conditions(one.conditions)) for one in status.devices
    )
    return replace(
        claim,
        metadata=_trim_meta(claim.metadata),
        spec=replace(claim.spec, devices=replace(claim.spec.devices, config=())),
        status=replace(status, allocation=allocation, devices=reported),
    )


_TRIMMERS: dict[type[Any], Callable[[Any], Any]] = {
    Pod: _trim_pod,
    Node: _trim_node,
    PodGroup: _trim_group,
    CompositePodGroup: _trim_group,
    PodDisruptionBudget: _trim_budget,
    DeviceClass: _trim_class,
    DeviceClaim: _trim_claim,
}


def to_plain(line: RecordingLine) -> dict[str, Any]:
    """Return a line as plain values, without fields that have their default."""
    return {"is": type(line).__struct_config__.tag, **_plain_struct(line)}


def encode_plain(values: dict[str, Any]) -> bytes:
    """Encode the plain values of a line."""
    return orjson.dumps(values) + b"\n"


def _plain_struct(value: Struct) -> dict[str, Any]:
    return {
        name: _plain(found)
        for attribute, name, default in _fields_of(type(value))
        if (found := getattr(value, attribute)) != default
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        return _plain_struct(value)
    if isinstance(value, dict):
        return {key: _plain(found) for key, found in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(found) for found in value]
    return value


@lru_cache(maxsize=256)
def _fields_of(struct: type[Struct]) -> tuple[tuple[str, str, Any], ...]:
    """Return attribute, encoded name and default of each field; NODEFAULT for required fields."""
    return tuple(
        (
            one.name,
            one.encode_name,
            one.default if one.default_factory is NODEFAULT else one.default_factory(),
        )
        for one in msgspec.structs.fields(struct)
    )


# ---- reading -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Recording:
    """The lines of a recording in the order of time."""

    name: str
    header: RecordingStarted
    observations: list[Observation] = field(default_factory=list)
    unseen: list[KindUnseen] = field(default_factory=list)
    interruptions: list[WatchInterrupted] = field(default_factory=list)
    #: When all objects of the beginning had been written, and when the recording ended.
    begin: float = 0.0
    end: float = 0.0
    #: Whether the recorder stopped in order.
    is_complete: bool = False


def is_recording(lines: list[str]) -> bool:
    """Whether the first line is the header of a recording."""
    return lines[0].lstrip().startswith("{") and _HEADER_TAG.decode() in lines[0].replace(" ", "")


def read_recording(trace: TraceFile) -> Recording:
    """Read a recording. Raises InvalidTrace."""
    numbered = list(trace.numbered())
    if not numbered:
        raise InvalidTrace(f"{trace.name}: the file is empty")
    number, text = numbered[0]
    try:
        header = _decode_line(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidTrace(f"{trace.place(number)}: {_describe_error(error, text)}") from None
    if not isinstance(header, RecordingStarted):
        raise InvalidTrace(f"{trace.name}, line {number}: the header of a recording is missing")
    if header.format != RECORDING_FORMAT:
        raise InvalidTrace(
            f"{trace.name}, line {number}: format {header.format} is unknown; this version reads "
            f"format {RECORDING_FORMAT}"
        )
    _check_fields(trace, number, text, line=header)
    found = Recording(trace.name, header, begin=header.at, end=header.at)
    for line in _read_lines(trace, numbered[1:]):
        if isinstance(line, RecordingStarted):
            continue
        found.end = max(found.end, line.at)
        match line:
            case RecordingSynced():
                found.begin = line.at
            case RecordingEnded():
                found.is_complete = True
            case KindUnseen():
                found.unseen.append(line)
            case WatchInterrupted():
                found.interruptions.append(line)
            case _:
                found.observations.append(line)
    return found


def _read_lines(trace: TraceFile, numbered: list[tuple[int, str]]) -> Iterator[RecordingLine]:
    """Yield the lines that can be read; times must not go back."""
    latest = float("-inf")
    for position, (number, text) in enumerate(numbered, 1):
        try:
            line: RecordingLine = _decode_line(text)
        except (msgspec.DecodeError, RecursionError) as error:
            if position == len(numbered) and not text.rstrip().endswith("}"):
                trace.skipped["last line incomplete: the recorder was killed"] += 1
                return
            trace.reject(number, _describe_error(error, text))
            continue
        _check_fields(trace, number, text, line=line)
        if not 0 <= line.at <= MAX_SECONDS:
            trace.reject(number, f"at is out of range: {line.at}")
        elif line.at < latest:
            trace.reject(number, f"at {line.at} is before the line before it, {latest}")
        else:
            latest = line.at
            yield line


def _check_fields(trace: TraceFile, number: int, text: str, *, line: RecordingLine) -> None:
    """Reject the fields of a line that its kind does not have; a lenient reader counts them."""
    known = {name for _, name, _ in _fields_of(type(line))}
    for name in _decode_names(text):
        if name not in known and name != "is":
            trace.reject(number, f"{name}: unknown field", counted_as="unknown field")


def _describe_error(error: Exception, text: str) -> str:
    """Say in plain words why a line cannot be decoded."""
    try:
        found = load_json(text)
    except InvalidJson as invalid:
        return str(invalid)
    return str(explain_error(error, found) if isinstance(error, msgspec.ValidationError) else error)
