"""TraceJob and TraceWorkload: what a simulation runs, whatever file it comes from.

Times are seconds since the first submission. A trace may state the machine that it was recorded on;
`Workload.nodes` is that machine as nodes, so that a trace alone can be simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace as but

from phalanx.api.cel.timestamps import parse_duration
from phalanx.api.cel.values import EvaluationError
from phalanx.api.core import Node, NodeStatus
from phalanx.api.meta import ObjectMeta

#: The resource of which a whole GPU has 1000.
MILLI_GPU = "nvidia.com/milli-gpu"
#: Why jobs of a trace are not simulated, apart from lines that cannot be read.
NO_RUN_TIME, TOO_LARGE = "run time not positive", "larger than the machine"
#: Other reasons: no node has a resource, whose name follows; or the labels that a job needs.
NO_NODE_HAS, NO_LABELS = "no node has ", "the labels that it needs are on no node"
#: The longest time, in seconds, that a trace may name: a thousand years.
MAX_SECONDS = 3.2e10
#: How many characters of a text messages show.
_MAX_SHOWN = 40


class InvalidTrace(ValueError):
    """A trace cannot be read; the message names file, line and reason."""


class InvalidLine(InvalidTrace):
    """A line cannot be read; a lenient reader counts and skips it."""


class TraceJob(Struct, frozen=True):
    """A job: equal pods that start together, run for a time and end."""

    submit: float
    run_time: float
    #: What each pod requests, as quantities.
    requests: dict[str, str]
    pods: int = 1
    #: The run time that is declared before the job runs; None if nothing is declared.
    estimate: float | None = None
    priority: int = 0
    #: The user, queue or virtual cluster; figures are reported by it.
    owner: str = ""
    #: Node labels, each with the values of which a node must have one.
    node_labels: dict[str, tuple[str, ...]] = {}
    #: The node label that must be the same for all pods of a gang, or levels from the tightest to
    #: the widest, as in the annotation `phalanx.dev/topology`; "" if none must.
    topology: str = ""


class PriorityRule(NamedTuple):
    """A priority for some jobs: those to which all that it names applies."""

    priority: int
    #: The owners; any if there are none.
    owners: tuple[str, ...] = ()
    min_pods: int = 1
    max_pods: float = inf
    #: The longest run time that a job may declare; a job that declares none has a longer one.
    max_estimate: float = inf

    def applies_to(self, job: TraceJob) -> bool:
        """Whether a job gets the priority."""
        estimate = inf if job.estimate is None else job.estimate
        return (
            (not self.owners or job.owner in self.owners)
            and self.min_pods <= job.pods <= self.max_pods
            and estimate <= self.max_estimate
        )


@dataclass(frozen=True, slots=True)
class TraceWorkload:
    """The jobs of a trace, the earliest submission first; equal times in the order of the file."""

    jobs: tuple[TraceJob, ...]
    #: The machine that the trace states; empty if it states none.
    nodes: tuple[Node, ...] = ()
    #: How many jobs are not simulated, by reason.
    skipped: Mapping[str, int] = field(default_factory=dict)
    #: What a reader of the report must know about the trace.
    notes: tuple[str, ...] = ()


def with_priorities(workload: TraceWorkload, rules: Sequence[PriorityRule]) -> TraceWorkload:
    """Give each job the priority of the first rule that applies to it; others keep theirs."""
    jobs = tuple(
        but(
            job, priority=next((one.priority for one in rules if one.applies_to(job)), job.priority)
        )
        for job in workload.jobs
    )
    return replace(workload, jobs=jobs)


def with_overhead(workload: TraceWorkload, seconds: float) -> TraceWorkload:
    """Let each job occupy its nodes so much longer: for the start of containers and clean-up."""
    jobs = tuple(
        but(
            job,
            run_time=job.run_time + seconds,
            estimate=None if job.estimate is None else job.estimate + seconds,
        )
        for job in workload.jobs
    )
    return replace(workload, jobs=jobs)


def has_same_jobs(one: TraceWorkload, other: TraceWorkload) -> bool:
    """Whether the jobs differ at most in what a policy may change: priority and topology."""
    return len(one.jobs) == len(other.jobs) and all(
        but(a, priority=0, topology="") == but(b, priority=0, topology="")
        for a, b in zip(one.jobs, other.jobs, strict=True)
    )


def _read_nothing(path: str) -> tuple[str, str]:
    raise InvalidTrace(f"cannot read {path}: the trace was given without its folder")


@dataclass(slots=True)
class TraceFile:
    """The lines of a trace, and how many of them could not be used.

    A bad line raises InvalidLine; a lenient reader counts and skips it.
    """

    name: str
    lines: Sequence[str]
    is_lenient: bool = False
    #: Which case is read of a file with several; "" if it has one.
    case: str = ""
    #: Reads a file that the trace names, by its path from there; returns its shown name and text.
    #: Raises ValueError with the reason alone: the reader knows which line names the file.
    read_beside: Callable[[str], tuple[str, str]] = _read_nothing
    skipped: Counter[str] = field(default_factory=Counter)

    def reject(
        self, number: int | None, reason: str, *, counted_as: str = "line cannot be read"
    ) -> None:
        """Refuse a line, or count it if the reader is lenient; None: its number is unknown."""
        if not self.is_lenient:
            raise InvalidLine(f"{self.place(number)}: {reason}")
        self.skipped[counted_as] += 1

    def place(self, number: int | None) -> str:
        """Return the file and a line of it, as messages name them."""
        return self.name if number is None else f"{self.name}, line {number}"

    def numbered(self) -> Iterator[tuple[int, str]]:
        """Yield the lines that are not blank, with their numbers."""
        return ((i, line) for i, line in enumerate(self.lines, 1) if line.strip())


def build_workload(
    trace: TraceFile,
    jobs: Sequence[TraceJob],
    *,
    nodes: Sequence[Node] = (),
    notes: Sequence[str] = (),
) -> TraceWorkload:
    """Order jobs by submission, and let the earliest one be submitted at 0."""
    if not jobs:
        reasons = ", ".join(f"{count}: {reason}" for reason, count in sorted(trace.skipped.items()))
        suffix = f" (skipped {reasons})" if reasons else ""
        raise InvalidTrace(f"{trace.name}: contains no job that can be simulated{suffix}")
    ordered = sorted(jobs, key=lambda job: job.submit)
    first = ordered[0].submit
    moved = tuple(but(job, submit=job.submit - first) for job in ordered)
    return TraceWorkload(moved, tuple(nodes), dict(sorted(trace.skipped.items())), tuple(notes))


def build_node(
    name: str, resources: Mapping[str, str], labels: Mapping[str, str] | None = None
) -> Node:
    """Return a node with these allocatable resources."""
    meta = ObjectMeta(name=name, labels={"kubernetes.io/hostname": name, **(labels or {})})
    return Node(meta, status=NodeStatus(allocatable={"pods": "110", **resources}))


def build_equal_nodes(count: int, resources: Mapping[str, str]) -> tuple[Node, ...]:
    """Return equal nodes whose names sort by number."""
    width = len(str(max(count - 1, 0)))
    return tuple(build_node(f"node-{i:0{width}}", resources) for i in range(count))


def shorten(text: str) -> str:
    """Return a text of a file as messages show it: without the end of a long one."""
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def parse_seconds(text: str) -> float:
    """Parse a number of seconds. Raises ValueError with the reason."""
    try:
        # Python also reads `1_0`, and the digits of all scripts.
        value = float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        value = None
    if value is None:
        raise ValueError(f'"{shorten(text)}" is not a number')
    if not abs(value) <= MAX_SECONDS:
        raise ValueError(f"{shorten(text)} is out of range")
    return value


def parse_go_duration(text: str) -> float:
    """Parse a duration of Go, such as `1h30m` or `500ms`. Raises ValueError with the reason."""
    try:
        seconds = parse_duration(text).nanos / 1e9
    except EvaluationError:
        raise ValueError(f'invalid duration "{text}"; use for example 90s or 1h30m') from None
    if seconds < 0:
        raise ValueError(f"the duration {text} is negative")
    return seconds


def parse_count(text: str) -> int:
    """Parse a whole number. Raises ValueError with the reason."""
    value = parse_seconds(text)
    if not value.is_integer():
        raise ValueError(f"{shorten(text)} is not a whole number")
    return int(value)
