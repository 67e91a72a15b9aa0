"""Reads the generator file of Kueue's scheduler performance test.

    cohorts:
    - {className: cohort, count: 5, queuesSets: [
        {className: cq, count: 6, nominalQuota: 20, workloadsSets: [
          {count: 350, creationIntervalMs: 100, workloads: [
            {className: small, runtimeMs: 200, priority: 50, request: 1}]}]}]}

Each queue submits every workload of a set `count` times, one per interval. A workload is one pod
that requests so many CPUs. Quotas are not simulated: the machine is one node per queue with the
CPUs of its nominal quota, and all queues share it, as queues of one cohort that borrow do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta, Struct

from phalanx.sim.workloads.workload import (
    InvalidTrace,
    TraceFile,
    TraceJob,
    TraceWorkload,
    build_node,
    build_workload,
)
from phalanx.sim.workloads.yaml_lines import PATH_STEPS, find_line
from phalanx.yaml_files import describe_error

#: A larger number is a typing error.
_MAX_NUMBER = 2_000_000
_MATCH_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`").fullmatch
Positive = Annotated[int, Meta(ge=1, le=_MAX_NUMBER)]
NotNegative = Annotated[int, Meta(ge=0, le=_MAX_NUMBER)]


class GeneratedWorkload(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One class of workloads."""

    class_name: str
    runtime_ms: Positive
    request: Positive
    priority: int = 0


class GeneratedWorkloadSet(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Workloads that are created one after the other."""

    count: NotNegative
    creation_interval_ms: NotNegative
    workloads: tuple[GeneratedWorkload, ...]


class GeneratedQueueSet(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Equal queues, each with its quota and its workloads. The other fields are not simulated."""

    class_name: str
    count: NotNegative
    nominal_quota: Positive
    workloads_sets: tuple[GeneratedWorkloadSet, ...]
    borrowing_limit: NotNegative | None = None
    reclaim_within_cohort: str = ""
    within_cluster_queue: str = ""


class GeneratedCohort(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Equal cohorts of queues."""

    class_name: str
    count: NotNegative
    queues_sets: tuple[GeneratedQueueSet, ...]


class GeneratorFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    cohorts: tuple[GeneratedCohort, ...]


def read_kueue_generator(trace: TraceFile) -> TraceWorkload:
    """Read a generator file. Raises InvalidTrace."""
    text = "\n".join(trace.lines)
    try:
        found = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        raise InvalidTrace(f"{trace.name}, {describe_error(error)}") from None
    except yaml.YAMLError as error:
        raise InvalidTrace(f"{trace.name}: {error}") from None
    generator = _convert(trace, text, found)
    queues = list(_list_queues(generator))
    jobs = [job for name, queue in queues for job in _generate_jobs(name, queue)]
    nodes = [build_node(name, {"cpu": str(queue.nominal_quota)}) for name, queue in queues]
    notes = ("quotas are not simulated: all queues share the nominal quotas of all",)
    return build_workload(trace, jobs, nodes=nodes, notes=notes)


def _convert(trace: TraceFile, text: str, found: Any) -> GeneratorFile:
    """Convert the file; a lenient reader counts and removes unknown fields and invalid entries."""
    while True:
        try:
            return msgspec.convert(found, GeneratorFile)
        except msgspec.ValidationError as error:
            reason, _, path = str(error).partition(" - at `$.")
            path = path.rstrip("`")
            unknown = _MATCH_UNKNOWN(reason)
            field = f"{path}.{unknown[1]}" if unknown else path
            if not (trace.is_lenient and _remove_field(found, field, is_unknown=bool(unknown))):
                number, where = find_line(text, field), f"{path}: " if path else ""
                raise InvalidTrace(f"{trace.name}, line {number}: {where}{reason}") from None
            trace.skipped["unknown field" if unknown else "entry cannot be read"] += 1


def _remove_field(found: Any, path: str, *, is_unknown: bool) -> bool:
    """Remove an unknown field, or the innermost list entry with an invalid one.

    Returns False if an invalid field is in no list: then nothing of the file can be used.
    """
    steps = [int(index) if index else name for index, name in PATH_STEPS.findall(path)]
    while steps and not is_unknown and isinstance(steps[-1], str):
        steps.pop()
    if not steps:
        return False
    for step in steps[:-1]:
        found = found[step]
    del found[steps[-1]]
    return True


def _list_queues(generator: GeneratorFile) -> Iterator[tuple[str, GeneratedQueueSet]]:
    """Yield each queue with its name."""
    for cohort in generator.cohorts:
        for i in range(cohort.count):
            for queue in cohort.queues_sets:
                for j in range(queue.count):
                    yield f"{cohort.class_name}-{i}-{queue.class_name}-{j}", queue


def _generate_jobs(owner: str, queue: GeneratedQueueSet) -> Iterator[TraceJob]:
    for one in queue.workloads_sets:
        for workload in one.workloads:
            run_time = workload.runtime_ms / 1000
            for i in range(one.count):
                yield TraceJob(
                    (i + 1) * one.creation_interval_ms / 1000,
                    run_time,
                    {"cpu": str(workload.request)},
                    estimate=run_time,
                    priority=workload.priority,
                    owner=owner,
                )
