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

import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml
from msgspec.structs import replace as but

from phalanx.api.core import DEFAULT_SCHEDULER, Node
from phalanx.api.kinds import NODE
from phalanx.api.resources import BadQuantity, exact_value
from phalanx.cli.cluster_file import (
    LEVEL_LABELS,
    InvalidClusterFile,
    load_node_pools,
    numbered_pool,
)
from phalanx.cli.options import parse_duration, parse_shape
from phalanx.cli.scheduler_configuration import load_configuration
from phalanx.scheduler.placement.topology_domains import parse_topology_levels
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
from phalanx.sim.workloads.trace_formats import FORMAT_NAMES, find_format, read_trace
from phalanx.sim.workloads.workload import (
    MAX_SECONDS,
    NO_NODE_HAS,
    TOO_LARGE,
    InvalidLine,
    InvalidTrace,
    PriorityRule,
    TraceFile,
    TraceJob,
    TraceWorkload,
    build_workload,
    with_overhead,
    with_priorities,
)
from phalanx.yaml_files import UniqueKeyLoader, describe_error, find_line

#: The first bytes of a compressed file.
GZIP_MAGIC = b"\x1f\x8b"
#: A larger trace is refused, and so is a larger number of jobs or pods of a row.
_MAX_TRACE_BYTES, _MAX_COUNT = 1 << 30, 1_000_000
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
#: The labels in the levels of a topology.
_MATCH_LABEL = re.compile(r"[^\s,+]+")
_PRIORITY_FIELDS = ("priority", "owner", "minPods", "maxPods", "maxEstimate")


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


def load_simulation(
    path: Path, options: SimulationOptions, content: bytes | None = None
) -> LoadedSimulation:
    """Load a trace or a simulation file; `content` is that of a path that is no file."""
    loader = _Loader(path, options, content)
    try:
        setup = loader.load()
    except InvalidLine as error:
        hint = "correct it, or count and skip such lines by --lenient"
        raise click.ClickException(f"{error}; {hint}") from None
    except (InvalidTrace, _InvalidField) as error:
        raise click.ClickException(str(error)) from None
    return LoadedSimulation(path, setup, loader.inputs)


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


class _InvalidField(ValueError):
    """A field of a simulation file is invalid; the message names file, line and field."""


class _Loader:
    """Loads one file, and the files that it names."""

    def __init__(self, path: Path, options: SimulationOptions, content: bytes | None) -> None:
        self._path, self._options, self._content = path, options, content
        self.inputs: dict[str, str] = {}
        #: The simulation file as it is written; "" for a trace.
        self._text = ""
        #: How many lines of a list of nodes a lenient reader has left out.
        self._skipped_nodes = 0

    def load(self) -> SimulationSetup:
        """Return the setup."""
        if self._is_yaml():
            fields = self._load_yaml(self._path)
            if _is_trace(fields):
                fields = {"workload": str(self._path.absolute())}
            elif not isinstance(fields, dict) or "workload" not in fields:
                raise _InvalidField(
                    f"{self._path}: neither a simulation file, whose field workload is required, "
                    f"nor a trace in a known format ({FORMAT_NAMES})"
                )
            self._check_fields(fields, _FIELDS, "")
        else:
            fields = {"workload": str(self._path.absolute())}
        options = self._options
        if options.shape and not options.nodes and "cluster" not in fields:
            raise self._invalid("--shape", "describes the nodes of --nodes or of `cluster`")
        workload = self._load_workload(fields)
        if (rules := fields.get("priorities")) is not None:
            workload = self._set_priorities(workload, rules)
        if (overhead := self._read_seconds(fields.get("overhead"), "overhead", 0.0)) > 0:
            if isinstance(workload, RecordedWorkload):
                raise self._invalid("overhead", "recordings have the run times of their pods")
            workload = with_overhead(workload, overhead)
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
            horizon = self._read_seconds(fields.get("horizon"), "horizon", inf)
            if not horizon:
                raise self._invalid("horizon", "must be more than 0")
        faults = fields.get("faults")
        if isinstance(faults, dict) and faults.get("rate") is not None and horizon == inf:
            # Jobs that lose their nodes again and again may never end.
            jobs, work = workload.jobs, sum(job.run_time * job.pods for job in workload.jobs)
            longest = max(job.run_time for job in jobs)
            horizon = _FAULT_FACTOR * (jobs[-1].submit + longest + work / len(nodes))
        setup = SimulationSetup(
            workload, nodes, self._load_profiles(fields), seed=seed, horizon=horizon
        )
        return replace(setup, faults=self._load_faults(faults, setup))

    def _is_yaml(self) -> bool:
        """Whether the file is YAML: by its name, or by its content if it has no name."""
        if self._content is None:
            return self._path.name.removesuffix(".gz").endswith((".yaml", ".yml"))
        if self._options.format_name:
            return False
        text = _decode(self._path, self._content)
        lines = TraceFile(str(self._path), text.split("\n"))
        return bool(text.strip()) and find_format(lines) is None

    def _load_workload(self, fields: Mapping[str, Any]) -> TraceWorkload:
        found, lenient = fields.get("workload"), self._options.is_lenient
        if isinstance(found, str) and found:
            path = self._path.parent / found
            text = _decode(path, self._read(path, "workload"))
            format_name = self._options.format_name or str(fields.get("format") or "")
            shown = self._path if str(path.absolute()) == found else path
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
        labels = row.get("nodeSelector") or {}
        if not isinstance(labels, dict):
            reason = "must be a map of node labels, such as {disk: ssd}"
            raise self._invalid(f"{where}.nodeSelector", reason)
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
            node_labels={str(name): (str(value),) for name, value in labels.items()},
            topology=self._read_topology(row.get("topology"), f"{where}.topology"),
        )
        for i in range(self._read_count(row.get("count", 1), f"{where}.count")):
            yield but(job, submit=submit + i * every)

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

    def _read_topology(self, found: Any, where: str) -> str:
        if found is None:
            return ""
        if not isinstance(found, str) or parse_topology_levels(found) is None:
            reason = 'must be a node label, or levels as in "rack, block after 30s, * after 5m"'
            raise self._invalid(where, reason)
        return _MATCH_LABEL.sub(lambda match: LEVEL_LABELS.get(match[0], match[0]), found)

    def _set_priorities(self, workload: TraceWorkload, found: Any) -> TraceWorkload:
        if isinstance(workload, RecordedWorkload):
            raise self._invalid("priorities", "recordings keep the priorities of their pods")
        if not isinstance(found, list):
            raise self._invalid("priorities", "must be a list of maps, each with a priority")
        rules = list[PriorityRule]()
        for number, row in enumerate(found):
            where = f"priorities[{number}]"
            self._check_fields(row, _PRIORITY_FIELDS, where)
            owners = row.get("owner") or []
            rules.append(
                PriorityRule(
                    self._read_integer(row.get("priority"), f"{where}.priority"),
                    tuple(map(str, owners if isinstance(owners, list) else [owners])),
                    min_pods=self._read_count(row.get("minPods", 1), f"{where}.minPods"),
                    max_pods=self._read_count(row.get("maxPods", _MAX_COUNT), f"{where}.maxPods"),
                    max_estimate=self._read_seconds(
                        row.get("maxEstimate"), f"{where}.maxEstimate", inf
                    ),
                )
            )
        return with_priorities(workload, rules)

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
        """Load the policy, or first come, first served; `reservation` sets the mode of both."""
        mode = self._options.reservation or fields.get("reservation")
        if mode is not None and mode not in tuple(ReservationMode):
            known = ", ".join(ReservationMode)
            raise self._invalid("reservation", f'unknown mode "{mode}"; available: {known}')
        path = self._options.policy
        if path is None and not fields.get("policy"):
            args = ReservationArgs(after_seconds=0, mode=mode or ReservationMode.EASY)
            policy = replace(DEFAULT_POLICY, reservation=args)
            return Profiles({DEFAULT_SCHEDULER: policy}, keeps_arrival_order=True)
        where = "--config" if path is not None else "policy"
        path = path or self._path.parent / str(fields["policy"])
        self._read(path, where)
        try:
            profiles = load_configuration(path).profiles
        except click.UsageError as error:
            raise self._invalid(where, error.message) from None
        return with_reservation_mode(profiles, mode)

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
        known = {_shorten_number(node.metadata.name): node.metadata.name for node in setup.nodes}
        for number, row in enumerate(found.get("script") or ()):
            where = f"faults.script[{number}]"
            self._check_fields(row, ("at", "node", "repair"), where)
            node = known.get(_shorten_number(str(row.get("node"))))
            if node is None:
                names = list(known.values())
                shown = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
                reason = f'there is no node "{row.get("node")}"; there are {shown}'
                raise self._invalid(f"{where}.node", reason)
            at = self._read_seconds(row.get("at"), f"{where}.at", 0.0)
            repair = self._read_seconds(row.get("repair"), f"{where}.repair", 3600.0)
            faults.append(NodeFault(at, node, repair))
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
            content = self._content if path.absolute() == self._path.absolute() else None
            content = path.read_bytes() if content is None else content
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
            self._text = _decompress(path, self._read(path)).decode()
            return yaml.load(self._text, UniqueKeyLoader)
        except yaml.MarkedYAMLError as error:
            raise _InvalidField(f"{path}, {describe_error(error)}") from None
        except (yaml.YAMLError, ValueError):
            # ValueError: bytes that are no text, or a date that does not exist.
            raise _InvalidField(f"{path} is not a YAML file") from None
        except RecursionError:
            raise _InvalidField(f"{path}: nested too deeply") from None


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


def _shorten_number(name: str) -> str:
    """Return a name without leading zeros of its number: node-03 and node-3 are one node."""
    return re.sub(r"-0+(?=\d+$)", "-", name)


def _is_trace(found: Any) -> bool:
    """Whether a YAML file is no simulation file, but a trace itself: of Kueue or scheduler_perf."""
    if isinstance(found, dict):
        return "cohorts" in found
    return isinstance(found, list) and any(
        isinstance(one, dict) and "workloadTemplate" in one for one in found
    )


def _decompress(path: Path, content: bytes) -> bytes:
    """Return the content of a file, which may be compressed with gzip."""
    if content.startswith(GZIP_MAGIC):
        try:
            with gzip.open(io.BytesIO(content)) as compressed:
                # A small file may be petabytes of zeros.
                content = compressed.read(_MAX_TRACE_BYTES + 1)
        except EOFError:
            raise _InvalidField(f"{path}: the compressed file is incomplete") from None
        except (OSError, zlib.error) as error:
            raise _InvalidField(f"{path}: cannot be decompressed: {error}") from None
    if len(content) > _MAX_TRACE_BYTES:
        raise _InvalidField(f"{path}: larger than {_MAX_TRACE_BYTES} bytes")
    return content


def _decode(path: Path, content: bytes) -> str:
    """Decode a trace, which may be compressed."""
    content = _decompress(path, content)
    # Comments of old logs name people and places in other encodings. Lines are those of an editor,
    # which does not end them at the other characters of `str.splitlines`.
    text = content.decode("utf-8-sig", errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _to_node(manifest: Mapping[str, Any]) -> Node:
    return msgspec.convert(manifest, Node)
