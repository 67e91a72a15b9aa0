"""Loads what `phalanx simulate` and `phalanx compare` run: a trace, or a simulation file.

A simulation file is YAML; only `workload` is required. Paths are relative to the file:

    workload: philly.csv.gz             # a trace, or a list of jobs:
    - {submit: 0, runTime: 2h, pods: 4, requests: {cpu: 8}, estimate: 3h, count: 10, every: 5m}
    cluster: cluster.yaml               # as for `phalanx up --nodes`; a list of pools, or a number
    policy: scheduler.yaml              # KubeSchedulerConfiguration
    reservation: Easy                   # without a policy: as `phalanx simulate --reservation`
    faults:
      rate: {meanTimeBetweenFailures: 720h, repair: 2h}
      script: [{at: 24h, node: gpu-0, repair: 30m}]
    horizon: 720h
    seed: 7

An invalid file raises click.ClickException with the file, the line and the field; an invalid option
is wrong usage.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

from phalanx.api.core import DEFAULT_SCHEDULER, Node
from phalanx.api.kinds import NODE
from phalanx.api.resources import BadQuantity, exact_value
from phalanx.cli.options import (
    InvalidClusterFile,
    load_node_pools,
    numbered_pool,
    parse_duration,
    parse_shape,
)
from phalanx.cli.scheduler_configuration import load_configuration
from phalanx.scheduler.plugins.settings_plugins import ReservationArgs, ReservationMode
from phalanx.scheduler.policy import DEFAULT_POLICY, Profiles
from phalanx.sim.recording.recorded_workload import RecordedWorkload
from phalanx.sim.simulation_setup import (
    FaultRate,
    NodeFault,
    SimulationSetup,
    find_large_jobs,
    leave_out_jobs,
)
from phalanx.sim.workloads.csv_traces import read_node_list
from phalanx.sim.workloads.trace_formats import FORMAT_NAMES, read_trace
from phalanx.sim.workloads.workload import (
    MAX_SECONDS,
    InvalidTrace,
    TraceFile,
    TraceJob,
    TraceWorkload,
    build_workload,
)
from phalanx.sim.workloads.yaml_lines import find_line
from phalanx.yaml_files import UniqueKeyLoader, describe_error

_GZIP_MAGIC = b"\x1f\x8b"
#: A larger trace is refused, and so is a larger number of jobs or pods of a row.
_MAX_TRACE_BYTES, _MAX_COUNT = 1 << 30, 1_000_000
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
    "faults",
    "horizon",
    "seed",
)
_JOB_FIELDS = (
    "submit",
    "runTime",
    "pods",
    "requests",
    "estimate",
    "priority",
    "owner",
    "count",
    "every",
)


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
    """A setup, and the hashes of the files that it was loaded from."""

    path: Path
    setup: SimulationSetup
    inputs: dict[str, str] = field(default_factory=dict)


def load_simulation(path: Path, options: SimulationOptions) -> LoadedSimulation:
    """Load a trace or a simulation file."""
    loader = _Loader(path, options)
    try:
        setup = loader.load()
    except (InvalidTrace, _InvalidField) as error:
        raise click.ClickException(str(error)) from None
    return LoadedSimulation(path, setup, loader.inputs)


def leave_out_large_jobs(loaded: Sequence[LoadedSimulation]) -> list[LoadedSimulation]:
    """Leave out the jobs that are larger than one of the clusters, of recordings none."""
    traces = [one for one in loaded if not isinstance(one.setup.workload, RecordedWorkload)]
    large = set[int]().union(*(find_large_jobs(one.setup) for one in traces))
    for one in traces:
        if len(large) == len(one.setup.workload.jobs):
            raise click.ClickException(f"{one.path}: all jobs are larger than the cluster")
        one.setup = leave_out_jobs(one.setup, large)
    return list(loaded)


class _InvalidField(ValueError):
    """A field of a simulation file is invalid; the message names file, line and field."""


class _Loader:
    """Loads one file, and the files that it names."""

    def __init__(self, path: Path, options: SimulationOptions) -> None:
        self._path, self._options = path, options
        self.inputs: dict[str, str] = {}
        #: The simulation file as it is written; "" for a trace.
        self._text = ""
        #: How many lines of a list of nodes a lenient reader has left out.
        self._skipped_nodes = 0

    def load(self) -> SimulationSetup:
        """Return the setup."""
        if self._path.suffix in (".yaml", ".yml"):
            fields = self._load_yaml(self._path)
            if _is_trace(fields):
                fields = {"workload": str(self._path.resolve())}
            elif not isinstance(fields, dict) or "workload" not in fields:
                raise _InvalidField(
                    f"{self._path}: neither a simulation file, whose field workload is required, "
                    f"nor a trace in a known format ({FORMAT_NAMES})"
                )
            self._check_fields(fields, _FIELDS, "")
        else:
            fields = {"workload": str(self._path.resolve())}
        options = self._options
        workload = self._load_workload(fields)
        nodes = self._load_nodes(fields) or workload.nodes
        if self._skipped_nodes:
            skipped = {**workload.skipped, "node cannot be read": self._skipped_nodes}
            workload = replace(workload, skipped=dict(sorted(skipped.items())))
        if not nodes:
            raise _InvalidField(f"{self._path}: {_describe_missing_nodes(workload)}")
        seed = options.seed
        if seed is None:
            seed = self._read_integer(fields.get("seed", 0), "seed")
            if seed < 0:
                raise self._invalid("seed", f"must not be negative: {seed}")
        horizon = options.horizon
        if horizon is None:
            horizon = self._read_seconds(fields.get("horizon"), "horizon", float("inf"))
        faults = fields.get("faults")
        if isinstance(faults, dict) and faults.get("rate") is not None and horizon == float("inf"):
            # Jobs that lose their nodes again and again may never end.
            jobs, work = workload.jobs, sum(job.run_time * job.pods for job in workload.jobs)
            longest = max(job.run_time for job in jobs)
            horizon = _FAULT_FACTOR * (jobs[-1].submit + longest + work / len(nodes))
        setup = SimulationSetup(
            workload, nodes, self._load_profiles(fields), seed=seed, horizon=horizon
        )
        return replace(setup, faults=self._load_faults(faults, setup))

    def _load_workload(self, fields: Mapping[str, Any]) -> TraceWorkload:
        found, lenient = fields.get("workload"), self._options.is_lenient
        if isinstance(found, str) and found:
            path = self._path.parent / found
            text = _decode(path, self._read(path, "workload"))
            format_name = self._options.format_name or str(fields.get("format") or "")
            shown = self._path if str(path.resolve()) == found else path
            case = self._options.case or str(fields.get("case") or "")

            def read_beside(name: str) -> tuple[str, str]:
                beside = path.parent / name
                return str(shown.parent / name), _decode(beside, self._read(beside, "workload"))

            trace = TraceFile(
                str(shown), text.split("\n"), lenient, case=case, read_beside=read_beside
            )
            return read_trace(trace, format_name)
        if not isinstance(found, list):
            raise self._invalid("workload", "must be the path of a trace or a list of jobs")
        rows, jobs = TraceFile(str(self._path), (), lenient), list[TraceJob]()
        for number, row in enumerate(found):
            try:
                jobs += list(self._read_jobs(row, f"workload[{number}]"))
            except _InvalidField:
                if not lenient:
                    raise
                rows.skipped["entry cannot be read"] += 1
        return build_workload(rows, jobs)

    def _read_jobs(self, row: Any, where: str) -> Iterator[TraceJob]:
        """Yield the jobs of a row: `count` equal ones, each submitted `every` seconds."""
        if not isinstance(row, dict):
            raise self._invalid(where, "must be a map with runTime and requests")
        self._check_fields(row, _JOB_FIELDS, where)
        run_time = self._read_seconds(row.get("runTime"), f"{where}.runTime", 0.0)
        if run_time <= 0:
            raise self._invalid(f"{where}.runTime", "must be more than 0")
        estimate = self._read_seconds(row.get("estimate"), f"{where}.estimate", 0.0)
        submit = self._read_seconds(row.get("submit"), f"{where}.submit", 0.0)
        every = self._read_seconds(row.get("every"), f"{where}.every", 0.0)
        job = TraceJob(
            submit,
            run_time,
            self._read_requests(row.get("requests"), f"{where}.requests"),
            self._read_count(row.get("pods", 1), f"{where}.pods"),
            estimate=estimate or None,
            priority=self._read_integer(row.get("priority", 0), f"{where}.priority"),
            owner=str(row.get("owner") or ""),
        )
        for i in range(self._read_count(row.get("count", 1), f"{where}.count")):
            yield msgspec.structs.replace(job, submit=submit + i * every)

    def _read_requests(self, found: Any, where: str) -> dict[str, str]:
        if not isinstance(found, dict) or not found:
            raise self._invalid(where, "must be a map of resources, such as {cpu: 1}")
        for name, quantity in found.items():
            try:
                is_valid = exact_value(str(quantity)) >= 0
            except BadQuantity:
                is_valid = False
            if not is_valid:
                raise self._invalid(f"{where}.{name}", f'invalid quantity "{quantity}"')
        return {str(name): str(quantity) for name, quantity in found.items()}

    def _load_nodes(self, fields: Mapping[str, Any]) -> tuple[Node, ...]:
        """Load the nodes of `--nodes` or `cluster`; none if neither is given."""
        options = self._options
        found = options.nodes or fields.get("cluster")
        if found is None:
            return ()
        where = "--nodes" if options.nodes else "cluster"
        try:
            capacity = parse_shape(options.shape or str(fields.get("shape") or ""))
        except click.BadParameter as error:
            raise self._invalid("--shape" if options.shape else "shape", error.message) from None
        if not isinstance(found, str) or found.removeprefix("-").isdecimal():
            count = self._read_count(found, where)
            pool = numbered_pool(count, capacity, ())
            return tuple(_to_node(node.manifest("")) for node in pool.nodes())
        base = Path() if options.nodes else self._path.parent
        path = base / found
        content = self._read(path, where)
        if path.suffix in (".csv", ".gz"):
            lines = _decode(path, content).split("\n")
            rows = TraceFile(str(path), lines, options.is_lenient)
            nodes = read_node_list(rows)
            self._skipped_nodes = rows.skipped.total()
            return nodes
        try:
            loaded = load_node_pools(path, capacity, ())
        except InvalidClusterFile as error:
            if options.nodes:
                raise self._invalid(where, f"{str(path)!r}: {error}") from None
            raise _InvalidField(f"{path}: {error}") from None
        return tuple(_to_node(node.manifest("")) for node in loaded)

    def _load_profiles(self, fields: Mapping[str, Any]) -> Profiles:
        path = self._options.policy
        if path is None and fields.get("policy") and not self._options.reservation:
            path = self._path.parent / str(fields["policy"])
        if path is not None:
            self._read(path, "--config" if self._options.policy else "policy")
            return load_configuration(path).profiles
        mode = self._options.reservation or fields.get("reservation") or ReservationMode.EASY
        if mode not in tuple(ReservationMode):
            known = ", ".join(ReservationMode)
            raise self._invalid("reservation", f'unknown mode "{mode}"; available: {known}')
        policy = replace(DEFAULT_POLICY, reservation=ReservationArgs(after_seconds=0, mode=mode))
        return Profiles({DEFAULT_SCHEDULER: policy}, keeps_arrival_order=True)

    def _load_faults(self, found: Any, setup: SimulationSetup) -> tuple[NodeFault, ...]:
        if found is None:
            return ()
        if not isinstance(found, dict):
            raise self._invalid("faults", "must be a map with rate or script")
        self._check_fields(found, ("rate", "script"), "faults")
        faults: list[NodeFault] = []
        if (rate := found.get("rate")) is not None:
            self._check_fields(rate, ("meanTimeBetweenFailures", "repair"), "faults.rate")
            between = self._read_seconds(
                rate.get("meanTimeBetweenFailures"), "faults.rate.meanTimeBetweenFailures", 0.0
            )
            repair = self._read_seconds(rate.get("repair"), "faults.rate.repair", 0.0)
            if between <= 0 or repair <= 0:
                raise self._invalid("faults.rate", "both times must be more than 0")
            faults += FaultRate(between, repair).draw(setup.nodes, setup.seed, setup.horizon)
        known = {node.metadata.name for node in setup.nodes}
        for number, row in enumerate(found.get("script") or ()):
            where = f"faults.script[{number}]"
            self._check_fields(row, ("at", "node", "repair"), where)
            if row.get("node") not in known:
                raise self._invalid(f"{where}.node", f'there is no node "{row.get("node")}"')
            at = self._read_seconds(row.get("at"), f"{where}.at", 0.0)
            repair = self._read_seconds(row.get("repair"), f"{where}.repair", 3600.0)
            faults.append(NodeFault(at, row["node"], repair))
        return tuple(sorted(faults))

    # ---- fields --------------------------------------------------------------------------------

    def _invalid(self, where: str, reason: str) -> _InvalidField | click.BadParameter:
        if where.startswith("--"):
            return click.BadParameter(reason, param_hint=where)
        line = find_line(self._text, where)
        shown = f"{self._path}, line {line}" if line else str(self._path)
        return _InvalidField(f"{shown}: {where}: {reason}")

    def _check_fields(self, found: Any, known: tuple[str, ...], where: str) -> None:
        if not isinstance(found, dict):
            raise self._invalid(where or "the file", f"must be a map of {', '.join(known)}")
        for name in found:
            if name not in known:
                path = f"{where}.{name}" if where else str(name)
                raise self._invalid(path, f"unknown field; available: {', '.join(known)}")

    def _read_seconds(self, found: Any, where: str, default: float) -> float:
        """Read a duration (`1h30m`) or a number of seconds that is not negative."""
        if found is None:
            return default
        try:
            is_number = isinstance(found, int | float) and not isinstance(found, bool)
            seconds = float(found) if is_number else parse_duration(str(found))
        except click.BadParameter as error:
            raise self._invalid(where, error.message) from None
        except OverflowError:
            raise self._invalid(where, f"{found} is out of range") from None
        if seconds < 0:
            raise self._invalid(where, f"must not be negative: {found}")
        if not seconds <= MAX_SECONDS:
            raise self._invalid(where, f"{found} is out of range")
        return seconds

    def _read_integer(self, found: Any, where: str) -> int:
        if not isinstance(found, int) or isinstance(found, bool) or abs(found) > 1_000_000_000:
            raise self._invalid(where, f"must be a whole number, not {found}")
        return found

    def _read_count(self, found: Any, where: str) -> int:
        if not str(found).isdecimal() or not 0 < int(found) <= _MAX_COUNT:
            raise self._invalid(where, f"must be a whole number from 1 to {_MAX_COUNT}")
        return int(found)

    # ---- files ---------------------------------------------------------------------------------

    def _read(self, path: Path, where: str = "") -> bytes:
        """Read a file, which a field of the simulation file may name, and keep its hash."""
        try:
            content = path.read_bytes()
        except OSError as error:
            reason = f"cannot read {path}: {error.strerror}"
            raise self._invalid(where, reason) if where else _InvalidField(reason) from None
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        # Files of several folders may have one name.
        is_taken = self.inputs.get(path.name, digest) != digest
        self.inputs[f"{path.parent.name}/{path.name}" if is_taken else path.name] = digest
        return content

    def _load_yaml(self, path: Path) -> Any:
        try:
            self._text = self._read(path).decode()
            return yaml.load(self._text, UniqueKeyLoader)
        except yaml.MarkedYAMLError as error:
            raise _InvalidField(f"{path}, {describe_error(error)}") from None
        except (yaml.YAMLError, ValueError):
            # ValueError: bytes that are no text, or a date that does not exist.
            raise _InvalidField(f"{path} is not a YAML file") from None
        except RecursionError:
            raise _InvalidField(f"{path}: nested too deeply") from None


def _describe_missing_nodes(workload: TraceWorkload) -> str:
    """Say why a workload has no nodes, and what to do."""
    if not isinstance(workload, RecordedWorkload):
        return (
            "the trace states no machine; name one with `cluster` or --nodes (an SWF log states "
            "it with the line `; MaxProcs: N`)"
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


def _decode(path: Path, content: bytes) -> str:
    """Decode a trace, which may be compressed."""
    if content.startswith(_GZIP_MAGIC):
        try:
            with gzip.open(io.BytesIO(content)) as compressed:
                # A small file may be petabytes of zeros.
                content = compressed.read(_MAX_TRACE_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise _InvalidField(f"{path}: cannot be decompressed: {error}") from None
    if len(content) > _MAX_TRACE_BYTES:
        raise _InvalidField(f"{path}: larger than {_MAX_TRACE_BYTES} bytes")
    # Comments of old logs name people and places in other encodings. Lines are those of an editor,
    # which does not end them at the other characters of `str.splitlines`.
    text = content.decode("utf-8-sig", errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _to_node(manifest: Mapping[str, Any]) -> Node:
    return msgspec.convert(manifest, Node)
