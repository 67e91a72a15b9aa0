"""Reads CSV traces of GPU clusters: Philly, openb and Kalos.

    philly    timestamp,duration,num_gpus,gpu_time,cluster
    openb     name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,…
    kalos     job_id,arrival_time,num_iteration,…,gpu_workers,…,gpu_per_worker,cpu_per_gpu_worker,…

The first line names the columns; a trace with a missing or unknown column is rejected. A lenient
reader counts and ignores unknown ones. None of them declares run times, so the true run times are
the estimates, and the report notes it.

A share of a GPU is requested as `nvidia.com/milli-gpu`, of which a whole GPU has 1000, and taken
from one device (`sim/gpu_devices.py`). `read_node_list` reads the nodes of openb.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from phalanx.api.core import Node
from phalanx.sim.workloads.workload import (
    MILLI_GPU,
    NO_RUN_TIME,
    InvalidTrace,
    TraceFile,
    TraceJob,
    TraceWorkload,
    build_node,
    build_workload,
    parse_count,
    parse_seconds,
    shorten,
)

_Number = TypeVar("_Number", int, float)

GPU = "nvidia.com/gpu"
#: The node label with the model of the GPUs.
GPU_MODEL_LABEL = "gpu.model"
#: GPUs of a node of the Philly cluster; larger jobs are gangs of whole nodes.
_PHILLY_NODE_GPUS = 8
#: Priorities by the QoS classes of openb.
_QOS_PRIORITIES = {"LS": 100, "Guaranteed": 100, "Burstable": 50, "BE": 0}
_MAX_PODS = 1_000_000


class CsvDialect(NamedTuple):
    """One CSV trace: its name, its columns, and how a row becomes a job."""

    name: str
    columns: tuple[str, ...]
    read_row: Callable[[Mapping[str, str]], TraceJob]


def _read_philly_row(row: Mapping[str, str]) -> TraceJob:
    gpus, run_time = _positive(row, "num_gpus"), _seconds(row, "duration")
    if gpus <= _PHILLY_NODE_GPUS:
        pods, each = 1, gpus
    else:
        each = next(size for size in (8, 4, 2, 1) if gpus % size == 0)
        pods = gpus // each
    try:
        submitted = datetime.fromisoformat(row["timestamp"])
    except ValueError:
        raise ValueError(f'timestamp "{shorten(row["timestamp"])}" is not a time') from None
    if submitted.tzinfo is None:
        submitted = submitted.replace(tzinfo=UTC)
    owner = row["cluster"]
    return TraceJob(submitted.timestamp(), run_time, {GPU: str(each)}, pods, owner=owner)


def _read_openb_row(row: Mapping[str, str]) -> TraceJob:
    gpus, share = _whole(row, "num_gpu"), _whole(row, "gpu_milli") if row["gpu_milli"] else 0
    if share > 1000:
        raise ValueError(f"gpu_milli must be from 0 to 1000, not {shorten(row['gpu_milli'])}")
    requests = {
        "cpu": f"{_whole(row, 'cpu_milli')}m",
        "memory": f"{_whole(row, 'memory_mib')}Mi",
    }
    milli = share if gpus == 1 and share else gpus * 1000
    if milli:
        requests[MILLI_GPU] = str(milli)
    created, deleted = _seconds(row, "creation_time"), _seconds(row, "deletion_time")
    if deleted < created:
        raise ValueError(f"deletion_time is before creation_time: {shorten(row['deletion_time'])}")
    if row["qos"] not in _QOS_PRIORITIES:
        raise ValueError(
            f'unknown qos "{shorten(row["qos"])}"; known: {", ".join(_QOS_PRIORITIES)}'
        )
    models = tuple(sorted(filter(None, row["gpu_spec"].split("|"))))
    return TraceJob(
        created,
        deleted - created,
        requests,
        priority=_QOS_PRIORITIES[row["qos"]],
        owner=row["qos"],
        node_labels={GPU_MODEL_LABEL: models} if models else {},
    )


def _read_kalos_row(row: Mapping[str, str]) -> TraceJob:
    pods, gpus = _positive(row, "gpu_workers"), _positive(row, "gpu_per_worker")
    cpu = _seconds(row, "cpu_per_gpu_worker") * gpus
    submit = _seconds(row, "arrival_time")
    run_time = _seconds(row, "num_iteration") * _seconds(row, "iteration_computing_time")
    requests = {"cpu": f"{round(cpu * 1000)}m", GPU: str(gpus)}
    return TraceJob(submit, run_time, requests, pods)


def _seconds(row: Mapping[str, str], column: str) -> float:
    """Read a number that is not negative."""
    value = _number(row, column, parse_seconds)
    if value < 0:
        raise ValueError(f"{column} is negative: {shorten(row[column])}")
    return value


def _whole(row: Mapping[str, str], column: str) -> int:
    """Read a whole number that is not negative."""
    value = _number(row, column, parse_count)
    if value < 0:
        raise ValueError(f"{column} is negative: {shorten(row[column])}")
    return value


def _number(row: Mapping[str, str], column: str, parse: Callable[[str], _Number]) -> _Number:
    try:
        return parse(row[column])
    except ValueError as error:
        raise ValueError(f"{column}: {error}") from None


def _positive(row: Mapping[str, str], column: str) -> int:
    value = _number(row, column, parse_count)
    if not 0 < value <= _MAX_PODS:
        raise ValueError(f"{column} must be from 1 to {_MAX_PODS}, not {shorten(row[column])}")
    return value


PHILLY = CsvDialect(
    "philly", ("timestamp", "duration", "num_gpus", "gpu_time", "cluster"), _read_philly_row
)
OPENB = CsvDialect(
    "openb",
    (
        "name",
        "cpu_milli",
        "memory_mib",
        "num_gpu",
        "gpu_milli",
        "gpu_spec",
        "qos",
        "pod_phase",
        "creation_time",
        "deletion_time",
        "scheduled_time",
    ),
    _read_openb_row,
)
KALOS = CsvDialect(
    "kalos",
    (
        "job_id",
        "arrival_time",
        "num_iteration",
        "iteration_computing_time",
        "iteration_networking_time",
        "gpu_workers",
        "ps",
        "gpu_per_worker",
        "cpu_per_gpu_worker",
        "cpu_per_ps_worker",
        "tensorsizes",
        "profiled_network",
    ),
    _read_kalos_row,
)


CSV_DIALECTS = (PHILLY, OPENB, KALOS)


def is_csv_of(dialect: CsvDialect, lines: Sequence[str]) -> bool:
    """Whether the first line names more than two fifths of the columns of a trace."""
    found = set(_split_header(lines[0]))
    return 5 * len(found.intersection(dialect.columns)) > 2 * len(dialect.columns)


def find_near_dialect(header: str) -> CsvDialect | None:
    """Return the trace whose columns a first line has in capitals or between other separators."""
    line = header.lower().replace(";", ",").replace("\t", ",")
    return next((one for one in CSV_DIALECTS if is_csv_of(one, [line])), None)


def read_csv(dialect: CsvDialect, trace: TraceFile) -> TraceWorkload:
    """Read a trace. Raises InvalidTrace."""
    jobs: list[TraceJob] = []
    for number, row in _read_rows(trace, dialect.columns):
        try:
            job = dialect.read_row(row)
        except ValueError as error:
            trace.reject(number, str(error))
            continue
        if job.run_time > 0:
            jobs.append(replace(job, estimate=job.run_time))
        else:
            trace.skipped[NO_RUN_TIME] += 1
    notes = ("the trace has no requested times: the true run times are the estimates",)
    return build_workload(trace, jobs, notes=notes)


def _split_header(line: str) -> list[str]:
    return [name.strip().strip('"') for name in line.split(",")]


def _read_rows(trace: TraceFile, known: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows with their line numbers. The columns must be those that are known."""
    numbered = trace.numbered()
    number, header = next(numbered, (1, ""))
    columns = _split_header(header)
    for name in columns:
        if name not in known:
            trace.reject(number, f'unknown column "{shorten(name)}"', counted_as="unknown column")
        elif columns.count(name) > 1:
            raise InvalidTrace(
                f'{trace.name}, line {number}: column "{shorten(name)}" exists twice'
            )
    for name in known:
        if name not in columns:
            raise InvalidTrace(f'{trace.name}, line {number}: column "{name}" is missing')
    for number, line in numbered:
        try:
            cells = next(csv.reader([line], strict=True))
        except csv.Error as error:
            trace.reject(number, str(error))
            continue
        if len(cells) != len(columns):
            trace.reject(number, f"has {len(cells)} values for {len(columns)} columns")
            continue
        yield number, dict(zip(columns, cells, strict=True))


#: The columns of the list of nodes of openb.
_NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")


def read_node_list(trace: TraceFile) -> tuple[Node, ...]:
    """Read the list of nodes of openb. Raises InvalidTrace."""
    nodes: dict[str, Node] = {}
    for number, row in _read_rows(trace, _NODE_COLUMNS):
        try:
            if not row["sn"] or row["sn"] in nodes:
                raise ValueError(f'sn "{shorten(row["sn"])}" is empty or exists twice')
            resources = {
                "cpu": f"{_whole(row, 'cpu_milli')}m",
                "memory": f"{_whole(row, 'memory_mib')}Mi",
            }
            gpus = _whole(row, "gpu")
        except ValueError as error:
            trace.reject(number, str(error))
            continue
        labels = {}
        if gpus:
            resources[MILLI_GPU], labels = str(gpus * 1000), {GPU_MODEL_LABEL: row["model"]}
        nodes[row["sn"]] = build_node(row["sn"], resources, labels)
    if not nodes:
        raise InvalidTrace(f"{trace.name}: contains no nodes")
    return tuple(nodes.values())
