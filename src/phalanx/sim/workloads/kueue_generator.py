"""Reads the generator file of Kueue's scheduler performance test.

    cohorts:
    - {className: cohort, count: 5, queuesSets: [
        {className: cq, count: 6, nominalQuota: 20, workloadsSets: [
          {count: 350, creationIntervalMs: 100, workloads: [
            {className: small, runtimeMs: 200, priority: 50, request: 1}]}]}]}

Each queue submits every workload of a set `count` times, one per interval. A workload is
`podCount` pods, by default one, that request so many CPUs each. Quotas are not simulated: the
machine is one node per queue with the CPUs of its nominal quota, and all queues share it, as queues
of one cohort that borrow do.

The file of the test with topologies also describes the nodes. A workload with the constraint
`required` stays in one domain of its level; with `preferred` or `balanced` it may use wider levels:

    topology: {name: default, levels: [
      {name: rack, count: 10, nodeLabel: example.com/rack},
      {name: node, count: 64, nodeLabel: kubernetes.io/hostname, capacity: {cpu: 96}}]}
    … workloads: [{className: small, runtimeMs: 200, request: 500m, podCount: 2,
                   tasConstraint: preferred, tasLevel: example.com/rack}]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from typing import Annotated, Any, Literal, NoReturn

from msgspec import Meta, Struct

from phalanx.api.core import Node
from phalanx.scheduler.placement.topology_domains import ANYWHERE
from phalanx.sim.workloads.field_errors import FieldError, convert_value
from phalanx.sim.workloads.workload import (
    InvalidTrace,
    TraceFile,
    TraceJob,
    TraceWorkload,
    build_node,
    build_workload,
)
from phalanx.yaml_files import InvalidYaml, YamlDocument, load_document

#: A larger number is a typing error.
_MAX_NUMBER = 2_000_000
Positive = Annotated[int, Meta(ge=1, le=_MAX_NUMBER)]
NotNegative = Annotated[int, Meta(ge=0, le=_MAX_NUMBER)]
_QUANTITY = r"^[1-9][0-9]{0,11}(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"
_FORMS = {_QUANTITY: "an amount such as 20, 1250m or 256Gi"}
Quantity = Annotated[str, Meta(pattern=_QUANTITY)] | Positive


class GeneratedWorkload(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One class of workloads."""

    class_name: str
    runtime_ms: Positive
    request: Quantity
    priority: int = 0
    pod_count: Positive = 1
    #: `required`, `preferred` or `balanced`; and the node label of the topology.
    tas_constraint: Literal["", "required", "preferred", "balanced"] = ""
    tas_level: str = ""
    slice_size: NotNegative = 0


class GeneratedWorkloadSet(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Workloads that are created one after the other."""

    count: NotNegative
    creation_interval_ms: NotNegative
    workloads: tuple[GeneratedWorkload, ...]


class GeneratedQueueSet(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Equal queues, each with its quota and its workloads. The other fields are not simulated."""

    class_name: str
    count: NotNegative
    nominal_quota: Quantity
    workloads_sets: tuple[GeneratedWorkloadSet, ...]
    borrowing_limit: NotNegative | str | None = None
    reclaim_within_cohort: str = ""
    within_cluster_queue: str = ""


class GeneratedCohort(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Equal cohorts of queues."""

    class_name: str
    count: NotNegative
    queues_sets: tuple[GeneratedQueueSet, ...]


class GeneratedLevel(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A level of the topology: so many domains in each domain of the level before."""

    name: str
    count: Positive
    node_label: str
    #: The resources of a node; of the last level.
    capacity: Mapping[str, Quantity] = {}


class GeneratedTopology(Struct, frozen=True, forbid_unknown_fields=True):
    """The nodes, by the levels of their topology; the last level is the nodes."""

    levels: Annotated[tuple[GeneratedLevel, ...], Meta(min_length=1)]
    name: str = ""


class GeneratorFile(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The whole file."""

    cohorts: tuple[GeneratedCohort, ...]
    topology: GeneratedTopology | None = None
    #: Where Kueue finds the nodes; all nodes are simulated.
    resource_flavor: Mapping[str, str] = {}


def read_kueue_generator(trace: TraceFile) -> TraceWorkload:
    """Read a generator file. Raises InvalidTrace."""
    try:
        document = load_document("\n".join(trace.lines))
    except InvalidYaml as error:
        raise InvalidTrace(f"{trace.name}, {error}") from None
    generator = _convert(trace, document)
    queues, topology = list(_list_queues(generator)), generator.topology
    wider_levels = _list_wider_levels(topology)
    _check(trace, document, generator, levels=wider_levels)
    jobs = [job for name, queue in queues for job in _generate_jobs(name, queue, wider_levels)]
    if topology is None:
        nodes = [build_node(name, {"cpu": str(queue.nominal_quota)}) for name, queue in queues]
        notes = ["quotas are not simulated: all queues share the nominal quotas of all"]
    else:
        nodes = list(_build_nodes(topology))
        notes = ["quotas are not simulated: all queues share all nodes"]
    if "balanced" in _find_constraints(generator):
        notes.append("balanced topologies are simulated as preferred ones, without slices")
    return build_workload(trace, jobs, nodes=nodes, notes=notes)


def _convert(trace: TraceFile, document: YamlDocument) -> GeneratorFile:
    """Convert the file; a lenient reader counts and removes unknown fields and invalid entries."""
    while True:
        try:
            return convert_value(document.value, GeneratorFile, forms=_FORMS)
        except FieldError as error:
            if not (trace.is_lenient and _remove_field(document.value, error)):
                line = document.find_line(error.path)
                raise InvalidTrace(f"{trace.place(line)}: {error}") from None
            trace.skipped["unknown field" if error.is_unknown else "entry cannot be read"] += 1


def _remove_field(found: Any, error: FieldError) -> bool:
    """Remove an unknown field, or the innermost list entry with an invalid one.

    Returns False if an invalid field is in no list: then nothing of the file can be used.
    """
    steps = list(error.steps)
    while steps and not error.is_unknown and isinstance(steps[-1], str):
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


def _list_wider_levels(topology: GeneratedTopology | None) -> dict[str, str]:
    """Return, by node label, that topology and all wider ones, as the annotation names them."""
    found, wider = dict[str, str](), ANYWHERE
    for level in topology.levels if topology is not None else ():
        found[level.node_label] = wider = f"{level.node_label}, {wider}"
    return found


def _build_nodes(topology: GeneratedTopology) -> Iterator[Node]:
    """Build the nodes: each has the labels of its domains, and the resources of the last level."""
    resources = {name: str(amount) for name, amount in topology.levels[-1].capacity.items()}
    for indexes in product(*(range(level.count) for level in topology.levels)):
        names = [
            f"{level.name}-{i:0{len(str(level.count - 1))}}"
            for level, i in zip(topology.levels, indexes, strict=True)
        ]
        labels = {
            level.node_label: "-".join(names[: depth + 1])
            for depth, level in enumerate(topology.levels)
        }
        yield build_node("-".join(names), resources, labels)


def _check(
    trace: TraceFile, document: YamlDocument, generator: GeneratorFile, *, levels: Mapping[str, str]
) -> None:
    """Refuse what the types of fields allow, but no machine has. Raises InvalidTrace."""

    def refuse(path: str, reason: str) -> NoReturn:
        raise InvalidTrace(f"{trace.place(document.find_line(path))}: {path}: {reason}")

    sizes = [level.count for level in generator.topology.levels] if generator.topology else []
    if prod(sizes) > _MAX_NUMBER:
        refuse("topology.levels", f"describes more than {_MAX_NUMBER} nodes")
    for i, cohort in enumerate(generator.cohorts):
        for j, queue in enumerate(cohort.queues_sets):
            for k, one in enumerate(queue.workloads_sets):
                jobs = cohort.count * queue.count * one.count * len(one.workloads)
                path = f"cohorts[{i}].queuesSets[{j}].workloadsSets[{k}]"
                if jobs > _MAX_NUMBER:
                    refuse(path, f"describes {jobs} workloads; at most {_MAX_NUMBER} are simulated")
                for number, workload in enumerate(one.workloads):
                    if workload.tas_constraint and workload.tas_level not in levels:
                        where = f"{path}.workloads[{number}].tasLevel"
                        known = ", ".join(levels) or "none"
                        refuse(where, f"must be a nodeLabel of the topology ({known})")


def _find_constraints(generator: GeneratorFile) -> set[str]:
    return {
        workload.tas_constraint
        for cohort in generator.cohorts
        for queue in cohort.queues_sets
        for one in queue.workloads_sets
        for workload in one.workloads
    }


def _generate_jobs(
    owner: str, queue: GeneratedQueueSet, wider_levels: Mapping[str, str]
) -> Iterator[TraceJob]:
    for one in queue.workloads_sets:
        for workload in one.workloads:
            run_time, topology = workload.runtime_ms / 1000, ""
            if workload.tas_constraint == "required":
                topology = workload.tas_level
            elif workload.tas_constraint:
                topology = wider_levels[workload.tas_level]
            for i in range(one.count):
                yield TraceJob(
                    (i + 1) * one.creation_interval_ms / 1000,
                    run_time,
                    {"cpu": str(workload.request)},
                    workload.pod_count,
                    estimate=run_time,
                    priority=workload.priority,
                    owner=owner,
                    topology=topology,
                )
