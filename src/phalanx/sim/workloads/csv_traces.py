"""Reads CSV traces of GPU clusters: Philly, openb and Kalos.

    philly    timestamp,duration,num_gpus,gpu_time,cluster
    openb     name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,…
    kalos     job_id,arrival_time,num_iteration,…,gpu_workers,…,gpu_per_worker,cpu_per_gpu_worker,…

The first line names the columns; a trace with a missing or unknown column is rejected. None of them
declares run times, so the true run times are the estimates, and the report notes it.

A share of a GPU is requested as `nvidia.com/milli-gpu` of the node: shares of several devices add
up, which a real device would not allow. The report notes it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from msgspec.structs import replace

from phalanx.sim.workloads.workload import (
    NO_RUN_TIME,
    InvalidTrace,
    TraceFile,
    TraceJob,
    TraceWorkload,
    build_workload,
    parse_count,
    parse_seconds,
)

GPU, MILLI_GPU = "nvidia.com/gpu", "nvidia.com/milli-gpu"
#: The node label with the model of the GPUs.
GPU_MODEL_LABEL = "gpu.model"
#: GPUs of a node of the Philly cluster; larger jobs are gangs of whole nodes.
_PHILLY_NODE_GPUS = 8
#: Priorities by the QoS classes of openb.
_QOS_PRIORITIES = {"LS": 100, "Guaranteed": 100, "Burstable": 50, "BE": 0}
_MAX_PODS = 1_000_000


class CsvDialect(NamedTuple):
    """One CSV trace: its columns, which of them are read, and how a row becomes a job."""

    columns: tuple[str, ...]
    read_row: Callable[[Mapping[str, str]], TraceJob]
    notes: tuple[str, ...] = ()


def _read_philly_row(row: Mapping[str, str]) -> TraceJob:
    gpus, run_time = _positive(row, "num_gpus"), parse_seconds(row["duration"])
    if gpus <= _PHILLY_NODE_GPUS:
        pods, each = 1, gpus
    else:
        each = next(size for size in (8, 4, 2, 1) if gpus % size == 0)
        pods = gpus // each
    try:
        submitted = datetime.fromisoformat(row["timestamp"]).replace(tzinfo=UTC)
    except ValueError:
        raise ValueError(f'timestamp "{row["timestamp"]}" is not a time') from None
    owner = row["cluster"]
    return TraceJob(submitted.timestamp(), run_time, {GPU: str(each)}, pods, owner=owner)


def _read_openb_row(row: Mapping[str, str]) -> TraceJob:
    gpus, share = parse_count(row["num_gpu"]), parse_count(row["gpu_milli"] or "0")
    requests = {
        "cpu": f"{_whole(row, 'cpu_milli')}m",
        "memory": f"{_whole(row, 'memory_mib')}Mi",
    }
    milli = share if gpus == 1 and share else gpus * 1000
    if milli:
        requests[MILLI_GPU] = str(milli)
    created, deleted = parse_seconds(row["creation_time"]), parse_seconds(row["deletion_time"])
    if created < 0:
        raise ValueError(f"creation_time is negative: {row['creation_time']}")
    if row["qos"] not in _QOS_PRIORITIES:
        raise ValueError(f'unknown qos "{row["qos"]}"; known: {", ".join(_QOS_PRIORITIES)}')
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
    cpu = parse_seconds(row["cpu_per_gpu_worker"]) * gpus
    submit = parse_seconds(row["arrival_time"])
    if submit < 0:
        raise ValueError(f"arrival_time is negative: {row['arrival_time']}")
    run_time = parse_seconds(row["num_iteration"]) * parse_seconds(row["iteration_computing_time"])
    requests = {"cpu": f"{round(cpu * 1000)}m", GPU: str(gpus)}
    return TraceJob(submit, run_time, requests, pods)


def _whole(row: Mapping[str, str], column: str) -> int:
    value = parse_count(row[column])
    if value < 0:
        raise ValueError(f"{column} is negative: {row[column]}")
    return value


def _positive(row: Mapping[str, str], column: str) -> int:
    value = parse_count(row[column])
    if not 0 < value <= _MAX_PODS:
        raise ValueError(f"{column} must be from 1 to {_MAX_PODS}, not {row[column]}")
    return value


PHILLY = CsvDialect(("timestamp", "duration", "num_gpus", "gpu_time", "cluster"), _read_philly_row)
OPENB = CsvDialect(
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
    (f"shares of a GPU are requested as {MILLI_GPU} and may be spread over devices",),
)
KALOS = CsvDialect(
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


def is_csv_of(dialect: CsvDialect, lines: Sequence[str]) -> bool:
    """Whether the first line names the first two columns of a trace."""
    return lines[0].strip().split(",")[:2] == list(dialect.columns[:2])


def read_csv(dialect: CsvDialect, trace: TraceFile) -> TraceWorkload:
    """Read a trace. Raises InvalidTrace."""
    numbered = trace.numbered()
    number, header = next(numbered, (1, ""))
    columns = header.strip().split(",")
    for name in columns:
        if name not in dialect.columns:
            raise InvalidTrace(f'{trace.name}, line {number}: unknown column "{name}"')
    for name in dialect.columns:
        if name not in columns:
            raise InvalidTrace(f'{trace.name}, line {number}: column "{name}" is missing')
    jobs: list[TraceJob] = []
    for number, line in numbered:
        cells = next(csv.reader([line]))
        if len(cells) != len(columns):
            trace.reject(number, f"has {len(cells)} values for {len(columns)} columns")
            continue
        try:
            job = dialect.read_row(dict(zip(columns, cells, strict=True)))
        except ValueError as error:
            trace.reject(number, str(error))
            continue
        if job.run_time > 0:
            jobs.append(replace(job, estimate=job.run_time))
        else:
            trace.skipped[NO_RUN_TIME] += 1
    notes = (
        "the trace has no requested times: the true run times are the estimates",
        *dialect.notes,
    )
    return build_workload(trace, jobs, notes=notes)
