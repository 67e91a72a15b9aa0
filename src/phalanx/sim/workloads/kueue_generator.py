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

from collections.abc import Iterator

import msgspec
import yaml

from phalanx.sim.workloads.workload import (
    InvalidTrace,
    TraceFile,
    TraceJob,
    TraceWorkload,
    build_node,
    build_workload,
)

#: More jobs than this are a typing error.
_MAX_JOBS = 2_000_000


class GeneratedWorkload(msgspec.Struct, frozen=True, rename="camel"):
    """One class of workloads."""

    class_name: str
    runtime_ms: int
    request: int
    priority: int = 0


class GeneratedWorkloadSet(msgspec.Struct, frozen=True, rename="camel"):
    """Workloads that are created one after the other."""

    count: int
    creation_interval_ms: int
    workloads: tuple[GeneratedWorkload, ...]


class GeneratedQueueSet(msgspec.Struct, frozen=True, rename="camel"):
    """Equal queues, each with its quota and its workloads."""

    class_name: str
    count: int
    nominal_quota: int
    workloads_sets: tuple[GeneratedWorkloadSet, ...]


class GeneratedCohort(msgspec.Struct, frozen=True, rename="camel"):
    """Equal cohorts of queues."""

    class_name: str
    count: int
    queues_sets: tuple[GeneratedQueueSet, ...]


class GeneratorFile(msgspec.Struct, frozen=True):
    """The whole file."""

    cohorts: tuple[GeneratedCohort, ...]


def read_kueue_generator(trace: TraceFile) -> TraceWorkload:
    """Read a generator file. Raises InvalidTrace."""
    try:
        generator = msgspec.convert(yaml.safe_load("\n".join(trace.lines)), GeneratorFile)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InvalidTrace(f"{trace.name}, line {line}: {error.problem}") from None
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise InvalidTrace(f"{trace.name}: {error}") from None
    queues = list(_list_queues(generator))
    jobs = [job for name, queue in queues for job in _generate_jobs(trace, name, queue)]
    nodes = [build_node(name, {"cpu": str(queue.nominal_quota)}) for name, queue in queues]
    notes = ("quotas are not simulated: all queues share the nominal quotas of all",)
    return build_workload(trace, jobs, nodes=nodes, notes=notes)


def _list_queues(generator: GeneratorFile) -> Iterator[tuple[str, GeneratedQueueSet]]:
    """Yield each queue with its name."""
    for cohort in generator.cohorts:
        for i in range(cohort.count):
            for queue in cohort.queues_sets:
                for j in range(queue.count):
                    yield f"{cohort.class_name}-{i}-{queue.class_name}-{j}", queue


def _generate_jobs(trace: TraceFile, owner: str, queue: GeneratedQueueSet) -> Iterator[TraceJob]:
    for one in queue.workloads_sets:
        if not 0 <= one.count <= _MAX_JOBS or one.creation_interval_ms < 0:
            raise InvalidTrace(f"{trace.name}: workloadsSets of {queue.class_name}: invalid count")
        for workload in one.workloads:
            if workload.runtime_ms <= 0 or workload.request <= 0:
                name = workload.class_name
                raise InvalidTrace(
                    f"{trace.name}: workload {name}: runtimeMs and request must be more than 0"
                )
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
