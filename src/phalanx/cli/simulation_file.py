"""Loads what `phalanx simulate` and `phalanx compare` run: a trace, or a simulation file.

A simulation file is YAML; only `workload` is required. Paths are relative to the file:

    workload: philly.csv.gz             # a trace, or a list of jobs:
    - {submit: 0, runTime: 2h, pods: 4, requests: {cpu: 8}, estimate: 3h, count: 10, every: 5m}
    - {runTime: 1h, pods: 8, requests: {cpu: 8}, topology: rack, nodeSelector: {disk: ssd}}
    priorities:                         # instead of those of the trace: the first that applies
    - {priority: 100, owner: vision, maxEstimate: 1h}
    cluster: cluster.yaml               # as for `phalanx up --nodes`; a list of pools, or a number
    policy: scheduler.yaml              # KubeSchedulerConfiguration
    reservation: Easy                   # without a policy: as `phalanx simulate --reservation`
    faults:
      rate: {meanTimeBetweenFailures: 720h, repair: 2h}
      script: [{at: 24h, node: gpu-0, repair: 30m}]
    overhead: 5s                        # how much longer each job occupies its nodes
    horizon: 720h
    seed: 7

An invalid file raises click.ClickException with the file, the line and the field; an invalid option
is wrong usage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec.structs import replace as but

from phalanx.api.core import DEFAULT_SCHEDULER, Node
from phalanx.api.kinds import NODE
from phalanx.cli.cluster_file import InvalidClusterFile, numbered_pool, parse_node_pools
from phalanx.cli.field_reader import FieldReader, InvalidField
from phalanx.cli.input_files import (
    InputFiles,
    InvalidFile,
    decode_trace,
    decode_yaml,
    has_csv_name,
    has_yaml_name,
    is_yaml,
)
from phalanx.cli.options import parse_shape
from phalanx.cli.scheduler_configuration import load_configuration
from phalanx.cli.simulation_lists import read_faults, read_job_list, read_priority_rules
from phalanx.controllers.nodes.node_pool import SimulatedNode
from phalanx.scheduler.plugins.settings_plugins import ReservationArgs, ReservationMode
from phalanx.scheduler.policy import DEFAULT_POLICY, Profiles
from phalanx.sim.recording.recorded_workload import RecordedWorkload
from phalanx.sim.simulation_setup import SimulationSetup, find_large_jobs, leave_out_jobs
from phalanx.sim.workloads.csv_traces import read_node_list
from phalanx.sim.workloads.trace_formats import (
    FORMAT_NAMES,
    TRACE_FORMATS,
    find_format,
    read_trace,
)
from phalanx.sim.workloads.workload import (
    NO_NODE_HAS,
    TOO_LARGE,
    InvalidLine,
    InvalidTrace,
    TraceFile,
    TraceWorkload,
    with_overhead,
    with_priorities,
)
from phalanx.yaml_files import InvalidYaml, YamlDocument, load_document

_SHAPE_EXAMPLE = "cpu=64,memory=256Gi,nvidia.com/gpu=8"
#: The horizon of faults by rate, if none is given: so many times what the jobs take without them.
_FAULT_FACTOR = 5.0
_FIELDS = (
    "workload",
    "format",
    "case",
    "cluster",
    "shape",
    "policy",
    "reservation",
    "priorities",
    "overhead",
    "faults",
    "horizon",
    "seed",
)
#: The format whose files have several cases.
_WITH_CASES = "scheduler-perf"
#: Fields that change the jobs of a workload, and why a recording refuses them.
_REFUSED_BY_RECORDINGS = {
    "priorities": "recordings keep the priorities of their pods",
    "overhead": "recordings have the run times of their pods",
}


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """The options of the commands; what they set replaces what a file says."""

    format_name: str = ""
    nodes: str = ""
    shape: str = ""
    policy: Path | None = None
    reservation: str = ""
    seed: int | None = None
    horizon: float | None = None
    is_lenient: bool = False
    case: str = ""


@dataclass(slots=True)
class LoadedSimulation:
    """A setup, and the hashes and paths of the files that it was loaded from."""

    path: Path
    setup: SimulationSetup
    inputs: dict[str, str] = field(default_factory=dict)
    paths: Sequence[Path] = ()


def load_simulation(
    path: Path, options: SimulationOptions, content: bytes | None = None
) -> LoadedSimulation:
    """Load a trace or a simulation file; `content` is that of a path that was read before."""
    files = InputFiles({} if content is None else {path: content})
    try:
        setup = _Loader(path, options, files).load()
    except InvalidLine as error:
        hint = "correct it, or count and skip such lines by --lenient"
        raise click.ClickException(f"{error}; {hint}") from None
    except (InvalidFile, InvalidTrace, InvalidField) as error:
        raise click.ClickException(str(error)) from None
    return LoadedSimulation(path, setup, files.digests, files.paths)


def leave_out_large_jobs(loaded: Sequence[LoadedSimulation]) -> list[LoadedSimulation]:
    """Leave out the jobs that are larger than one of the clusters, of recordings none."""
    traces = [one for one in loaded if not isinstance(one.setup.workload, RecordedWorkload)]
    large: dict[int, str] = {}
    for one in traces:
        large |= find_large_jobs(one.setup)
    for one in traces:
        if len(large) == len(one.setup.workload.jobs):
            raise click.ClickException(f"{one.path}: {_describe_all_large(large)}")
        one.setup = leave_out_jobs(one.setup, large)
    return list(loaded)


def with_reservation_mode(profiles: Profiles, mode: str | None) -> Profiles:
    """Set the mode of the reservations of all profiles; None: as they are."""
    if mode is None:
        return profiles
    policies = {
        name: replace(one, reservation=but(one.reservation, mode=mode))
        for name, one in profiles.policies.items()
    }
    return replace(profiles, policies=policies)


class _Loader:
    """Loads one file, and the files that it names."""

    def __init__(self, path: Path, options: SimulationOptions, files: InputFiles) -> None:
        self._path, self._options, self._files = path, options, files
        self._content = files.read(path)
        self._reader = FieldReader(path, YamlDocument(None, None))
        #: The fields of a simulation file; a trace has none, and is the workload itself.
        self._fields: Mapping[str, Any] = self._read_fields()
        #: How many lines of a list of nodes a lenient reader has left out.
        self._skipped_nodes = 0

    def load(self) -> SimulationSetup:
        """Return the setup."""
        fields, reader = self._fields, self._reader
        if self._options.shape and not self._options.nodes and "cluster" not in fields:
            raise reader.invalid("--shape", "describes the nodes of --nodes or of `cluster`")
        workload = self._load_workload()
        self._refuse_for_recording(workload)
        if (rules := fields.get("priorities")) is not None:
            workload = with_priorities(workload, list(read_priority_rules(reader, rules)))
        if (overhead := reader.read_seconds(fields.get("overhead"), "overhead", 0.0)) > 0:
            workload = with_overhead(workload, overhead)
        nodes = self._load_nodes() or workload.nodes
        if self._skipped_nodes:
            skipped = {**workload.skipped, "node cannot be read": self._skipped_nodes}
            workload = replace(workload, skipped=dict(sorted(skipped.items())))
        if not nodes:
            raise InvalidField(f"{self._path}: {_describe_missing_nodes(workload)}")
        seed_at, seed = self._find("seed", self._options.seed)
        setup = SimulationSetup(
            workload,
            nodes,
            self._load_profiles(),
            seed=0 if seed is None else reader.read_integer(seed, seed_at, least=0),
            horizon=self._read_horizon(workload, nodes),
        )
        return replace(
            setup, faults=tuple(sorted(read_faults(reader, fields.get("faults"), setup)))
        )

    # ---- the simulation file -------------------------------------------------------------------

    def _read_fields(self) -> Mapping[str, Any]:
        path, is_named = self._path, has_yaml_name(self._path)
        is_trace = not is_yaml(path, self._content)
        if is_trace or (self._options.format_name and not is_named):
            return {}
        try:
            document = load_document(decode_yaml(path, self._content))
        except InvalidYaml as error:
            if is_named:
                raise InvalidField(f"{path}, {error}") from None
            raise self._unknown_file(f" ({error})") from None
        found = document.value
        if found is None:
            raise InvalidField(f"{path}: the file is empty")
        if _is_trace(found):
            return {}
        if not isinstance(found, dict) or "workload" not in found:
            raise self._unknown_file(", whose field workload is required,")
        self._reader = FieldReader(path, document)
        self._reader.check_map(found, _FIELDS, "")
        return found

    def _unknown_file(self, reason: str) -> InvalidField:
        return InvalidField(
            f"{self._path}: neither a simulation file{reason} nor a trace in a known format "
            f"({FORMAT_NAMES})"
        )

    def _find(self, name: str, option: object, flag: str = "") -> tuple[str, Any]:
        """Return an option, or else the field that it replaces: what is given, and its value."""
        if option is None or option == "":
            return name, self._fields.get(name)
        return flag or f"--{name}", option

    def _read_horizon(self, workload: TraceWorkload, nodes: Sequence[Node]) -> float:
        where, found = self._find("horizon", self._options.horizon)
        horizon = self._reader.read_seconds(found, where, inf)
        if not horizon:
            raise self._reader.invalid(where, "must be more than 0")
        faults = self._fields.get("faults")
        if isinstance(faults, dict) and faults.get("rate") is not None and horizon == inf:
            # Jobs that lose their nodes again and again may never end.
            jobs, work = workload.jobs, sum(job.run_time * job.pods for job in workload.jobs)
            longest = max(job.run_time for job in jobs)
            horizon = _FAULT_FACTOR * (jobs[-1].submit + longest + work / len(nodes))
        return horizon

    # ---- the workload --------------------------------------------------------------------------

    def _load_workload(self) -> TraceWorkload:
        if not self._fields:
            return self._read_trace(self._path, decode_trace(self._path, self._content))
        found = self._fields["workload"]
        if isinstance(found, list):
            for where, value in (self._find_format(), self._find_case()):
                if value is not None:
                    raise self._reader.invalid(where, "is for traces; this file lists its jobs")
            return read_job_list(self._reader, found, is_lenient=self._options.is_lenient)
        if not isinstance(found, str) or not found:
            reason = "must be the path of a trace or a list of jobs"
            raise self._reader.invalid("workload", reason)
        path = self._path.parent / found
        return self._read_trace(path, self._read_text(path, "workload", decode_trace))

    def _find_format(self) -> tuple[str, Any]:
        return self._find("format", self._options.format_name)

    def _find_case(self) -> tuple[str, Any]:
        return self._find("case", self._options.case)

    def _read_trace(self, path: Path, text: str) -> TraceWorkload:
        def read_beside(name: str) -> tuple[str, str]:
            beside = path.parent / name
            # The reader of the trace knows which line names the file: no field does.
            return str(beside), decode_trace(beside, self._files.read(beside))

        (format_at, named), (case_at, case) = self._find_format(), self._find_case()
        reader = self._reader
        trace = TraceFile(
            str(path),
            text.split("\n"),
            self._options.is_lenient,
            case="" if case is None else reader.read_name(case, case_at),
            read_beside=read_beside,
        )
        if named is not None and named not in [row.name for row in TRACE_FORMATS]:
            reason = f'unknown trace format "{named}"; available: {FORMAT_NAMES}'
            raise reader.invalid(format_at, reason)
        found = find_format(trace)
        name = named or (found and found.name)
        if trace.case and name and name != _WITH_CASES:
            reason = f"only files of {_WITH_CASES} have cases; {path} is of the format {name}"
            raise reader.invalid(case_at, reason)
        return read_trace(trace, named or "")

    def _refuse_for_recording(self, workload: TraceWorkload) -> None:
        """Refuse the fields that would change what a recording knows better."""
        for name, reason in _REFUSED_BY_RECORDINGS.items():
            if isinstance(workload, RecordedWorkload) and self._fields.get(name) is not None:
                raise self._reader.invalid(name, reason)

    # ---- the cluster ---------------------------------------------------------------------------

    def _load_nodes(self) -> tuple[Node, ...]:
        """Load the nodes of `--nodes` or `cluster`; none if neither is given."""
        where, found = self._find("cluster", self._options.nodes, "--nodes")
        if found is None:
            return ()
        capacity = self._read_shape()
        if not isinstance(found, str) or found.removeprefix("-").isdecimal():
            otherwise = ", or the path of a cluster file"
            count = self._reader.read_count(found, where, otherwise=otherwise)
            return tuple(map(_to_node, numbered_pool(count, capacity, ()).nodes()))
        path = Path(found) if where.startswith("--") else self._path.parent / found
        if has_csv_name(path):
            return self._read_node_list(path, where)
        try:
            text = self._read_text(path, where, decode_yaml)
            return tuple(map(_to_node, parse_node_pools(text, capacity, ())))
        except InvalidClusterFile as error:
            if where.startswith("--"):
                raise self._reader.invalid(where, f"{str(path)!r}: {error}") from None
            raise InvalidField(f"{path}: {error}") from None

    def _read_shape(self) -> Mapping[str, str]:
        where, found = self._find("shape", self._options.shape)
        try:
            return parse_shape(self._reader.read_name(found, where))
        except click.BadParameter as error:
            raise self._reader.invalid(where, error.message) from None

    def _read_node_list(self, path: Path, where: str) -> tuple[Node, ...]:
        lines = self._read_text(path, where, decode_trace).split("\n")
        if not lines[0].replace("\ufffd", "\0").isprintable():
            raise self._reader.invalid(where, f"{path} is not a list of nodes")
        rows = TraceFile(str(path), lines, self._options.is_lenient)
        nodes = read_node_list(rows)
        self._skipped_nodes = rows.skipped.total()
        return nodes

    # ---- the policy ----------------------------------------------------------------------------

    def _load_profiles(self) -> Profiles:
        """Load the policy, or first come, first served; `reservation` sets the mode of both."""
        mode = self._read_reservation()
        where, found = self._find("policy", self._options.policy, "--config")
        if found is None or found == "":
            args = ReservationArgs(after_seconds=0, mode=mode or ReservationMode.EASY)
            policy = replace(DEFAULT_POLICY, reservation=args)
            return Profiles({DEFAULT_SCHEDULER: policy}, keeps_arrival_order=True)
        if not isinstance(found, str | Path):
            reason = "must be the path of a KubeSchedulerConfiguration"
            raise self._reader.invalid(where, reason)
        path = Path(found) if where.startswith("--") else self._path.parent / found
        text = self._read_text(path, where, decode_yaml)
        try:
            profiles = load_configuration(path, text).profiles
        except click.UsageError as error:
            raise self._reader.invalid(where, error.message) from None
        return with_reservation_mode(profiles, mode)

    def _read_reservation(self) -> ReservationMode | None:
        where, found = self._find("reservation", self._options.reservation)
        if found is None:
            return None
        modes = {mode.lower(): mode for mode in ReservationMode}
        if (mode := modes.get(str(found).lower())) is None:
            known = ", ".join(ReservationMode)
            raise self._reader.invalid(where, f'unknown mode "{found}"; available: {known}')
        return mode

    # ---- files ---------------------------------------------------------------------------------

    def _read_text(self, path: Path, where: str, decode: Callable[[Path, bytes], str]) -> str:
        """Read a file that a field or an option names."""
        try:
            return decode(path, self._files.read(path))
        except InvalidFile as error:
            raise self._reader.invalid(where, str(error)) from None


def _describe_all_large(large: Mapping[int, str]) -> str:
    """Say why no job fits on the nodes, and what to do."""
    reasons = sorted(set(large.values()))
    if reasons == [TOO_LARGE]:
        return "all jobs are larger than the cluster; give it more or larger nodes"
    missing = "; ".join(reason for reason in reasons if reason != TOO_LARGE)
    if not missing.startswith(NO_NODE_HAS):
        return f"no job fits: {missing}"
    return f"no job fits: {missing}; describe the nodes by `shape` or --shape, as {_SHAPE_EXAMPLE}"


def _describe_missing_nodes(workload: TraceWorkload) -> str:
    """Say why a workload has no nodes, and what to do."""
    if not isinstance(workload, RecordedWorkload):
        return (
            "the trace states no machine; name one with `cluster` and `shape`, or with --nodes 16 "
            f"--shape {_SHAPE_EXAMPLE} (an SWF log states it with the line `; MaxProcs: N`)"
        )
    unseen = workload.history.recording.unseen
    reasons = [one.reason for one in unseen if one.resource == NODE.plural]
    because = f", because they could not be read ({reasons[0]})" if reasons else ""
    return f"the recording has no nodes{because}; describe them by --nodes and --shape"


def _is_trace(found: Any) -> bool:
    """Whether a YAML file is no simulation file, but a trace itself: of Kueue or scheduler_perf."""
    if isinstance(found, dict):
        return "cohorts" in found
    return isinstance(found, list) and any(
        isinstance(one, dict) and "workloadTemplate" in one for one in found
    )


def _to_node(simulated: SimulatedNode) -> Node:
    return msgspec.convert(simulated.manifest(""), Node)
