"""The lists of a simulation file: jobs (`workload`), rules of priorities, and faults of nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

from msgspec.structs import replace

from phalanx.cli.cluster_file import LEVEL_LABELS
from phalanx.cli.field_reader import MAX_COUNT, FieldReader, InvalidField
from phalanx.scheduler.placement.topology_domains import parse_topology_levels
from phalanx.sim.simulation_setup import FaultRate, NodeFault, SimulationSetup, TooManyFaults
from phalanx.sim.workloads.workload import (
    PriorityRule,
    TraceFile,
    TraceJob,
    TraceWorkload,
    build_workload,
)

_JOB_FIELDS = (
    "submit",
    "runTime",
    "pods",
    "requests",
    "estimate",
    "priority",
    "owner",
    "topology",
    "nodeSelector",
    "count",
    "every",
)
_PRIORITY_FIELDS = ("priority", "owner", "minPods", "maxPods", "maxEstimate")
#: The labels in the levels of a topology.
_MATCH_LABEL = re.compile(r"[^\s,+]+")


def read_job_list(reader: FieldReader, found: list[Any], *, is_lenient: bool) -> TraceWorkload:
    """Read the jobs of `workload`; a lenient reader counts and skips invalid rows."""
    rows, jobs = TraceFile(str(reader.path), (), is_lenient), list[TraceJob]()
    for number, row in enumerate(found):
        try:
            jobs += list(_read_jobs(reader, row, f"workload[{number}]"))
        except InvalidField:
            if not is_lenient:
                raise
            rows.skipped["entry cannot be read"] += 1
    return build_workload(rows, jobs)


def read_priority_rules(reader: FieldReader, found: Any) -> Iterator[PriorityRule]:
    """Yield the rules of `priorities`."""
    if not isinstance(found, list):
        raise reader.invalid("priorities", "must be a list of maps, each with a priority")
    for number, row in enumerate(found):
        where = f"priorities[{number}]"
        reader.check_map(row, _PRIORITY_FIELDS, where)
        owner, at = row.get("owner"), f"{where}.owner"
        owners = owner if isinstance(owner, list) else [owner] if owner else []
        rule = PriorityRule(
            reader.read_integer(row.get("priority"), f"{where}.priority"),
            tuple(reader.read_name(one, at) for one in owners),
            min_pods=reader.read_count(row.get("minPods", 1), f"{where}.minPods"),
            max_pods=reader.read_count(row.get("maxPods", MAX_COUNT), f"{where}.maxPods"),
            max_estimate=reader.read_seconds(row.get("maxEstimate"), f"{where}.maxEstimate", inf),
        )
        if rule.min_pods > rule.max_pods:
            reason = f"must not be more than maxPods ({rule.max_pods:g}): no job has so many pods"
            raise reader.invalid(f"{where}.minPods", reason)
        yield rule


def read_faults(reader: FieldReader, found: Any, setup: SimulationSetup) -> Iterator[NodeFault]:
    """Yield the faults of nodes: those drawn by `rate`, then those of `script`."""
    if found is None:
        return
    if not isinstance(found, dict):
        raise reader.invalid("faults", "must be a map with rate or script")
    reader.check_map(found, ("rate", "script"), "faults")
    if (rate := found.get("rate")) is not None:
        yield from _draw_faults(reader, rate, setup)
    script = found.get("script")
    if not isinstance(script, list | None):
        raise reader.invalid("faults.script", "must be a list of maps with at and node")
    known = {_shorten_number(node.metadata.name): node.metadata.name for node in setup.nodes}
    for number, row in enumerate(script or ()):
        where = f"faults.script[{number}]"
        reader.check_map(row, ("at", "node", "repair"), where)
        node = known.get(_shorten_number(str(row.get("node"))))
        if node is None:
            names = list(known.values())
            shown = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
            reason = f'there is no node "{row.get("node")}"; there are {shown}'
            raise reader.invalid(f"{where}.node", reason)
        yield NodeFault(
            reader.read_seconds(row.get("at"), f"{where}.at", 0.0),
            node,
            reader.read_seconds(row.get("repair"), f"{where}.repair", 3600.0),
        )


def _read_jobs(reader: FieldReader, row: Any, where: str) -> Iterator[TraceJob]:
    """Yield the jobs of a row: `count` equal ones, each submitted `every` seconds."""
    if not isinstance(row, dict):
        raise reader.invalid(where, "must be a map with runTime and requests")
    reader.check_map(row, _JOB_FIELDS, where)

    def read_time(name: str) -> float:
        return reader.read_seconds(row.get(name), f"{where}.{name}", 0.0)

    if (run_time := read_time("runTime")) <= 0:
        raise reader.invalid(f"{where}.runTime", "must be more than 0")
    labels = reader.read_texts(
        row.get("nodeSelector"), f"{where}.nodeSelector", "of node labels, such as {disk: ssd}"
    )
    job = TraceJob(
        read_time("submit"),
        run_time,
        reader.read_quantities(row.get("requests"), f"{where}.requests"),
        reader.read_count(row.get("pods", 1), f"{where}.pods"),
        estimate=read_time("estimate") or None,
        priority=reader.read_integer(row.get("priority", 0), f"{where}.priority"),
        owner=reader.read_name(row.get("owner"), f"{where}.owner"),
        node_labels={name: (value,) for name, value in labels.items()},
        topology=_read_topology(reader, row.get("topology"), f"{where}.topology"),
    )
    first, every = job.submit, read_time("every")
    for i in range(reader.read_count(row.get("count", 1), f"{where}.count")):
        yield replace(job, submit=first + i * every)


def _read_topology(reader: FieldReader, found: Any, where: str) -> str:
    if found is None:
        return ""
    if not isinstance(found, str) or parse_topology_levels(found) is None:
        reason = 'must be a node label, or levels as in "rack, block after 30s, * after 5m"'
        raise reader.invalid(where, reason)
    return _MATCH_LABEL.sub(lambda match: LEVEL_LABELS.get(match[0], match[0]), found)


def _draw_faults(reader: FieldReader, rate: Any, setup: SimulationSetup) -> Sequence[NodeFault]:
    names = ("meanTimeBetweenFailures", "repair")
    reader.check_map(rate, names, "faults.rate")
    between, repair = (
        reader.read_seconds(rate.get(name), f"faults.rate.{name}", 0.0) for name in names
    )
    if between <= 0 or repair <= 0:
        raise reader.invalid("faults.rate", "both times must be more than 0")
    try:
        return FaultRate(between, repair).draw(setup.nodes, setup.seed, setup.horizon)
    except TooManyFaults as error:
        raise reader.invalid("faults.rate", str(error)) from None


def _shorten_number(name: str) -> str:
    """Return a name without leading zeros of its number: node-03 and node-3 are one node."""
    return re.sub(r"-0+(?=\d+$)", "-", name)
