"""SimulationSetup: what an engine runs, and SimulationResult: what happened.

    workload, nodes, profiles, faults ─▶ engine ─▶ job records, samples ─▶ reports/

A setup is a value: the same setup gives the same result, byte for byte, on any machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import log
from typing import NamedTuple

from phalanx.api.core import Node
from phalanx.api.resources import node_allocatable, to_amounts
from phalanx.randomness import SeededRandom
from phalanx.scheduler.placement.topology_domains import ANYWHERE, parse_topology_levels
from phalanx.scheduler.policy import DEFAULT_PROFILES, BackOff, Profiles
from phalanx.sim.gpu_devices import WHOLE
from phalanx.sim.workloads.workload import (
    MILLI_GPU,
    NO_LABELS,
    NO_NODE_HAS,
    TOO_LARGE,
    TraceJob,
    TraceWorkload,
)

#: The namespace of all jobs.
NAMESPACE = "default"
#: Seconds from the whole second of one instant to the next at which only the scheduler has
#: something to do.
MIN_STEP = 1.0
#: How long a simulation goes on when nothing runs and nothing arrives.
IDLE_SECONDS = 7200.0
#: A larger number of faults by rate is a typing error.
MAX_FAULTS = 1_000_000
#: Longer than any simulation: no refused entity is attempted again because of time alone.
_NO_RETRIES = BackOff(1e15, 1e15)


def without_retries(profiles: Profiles) -> Profiles:
    """Leave out back-off: a refused entity is attempted when something changes that may help it.

    Back-off only delays attempts after errors, which do not occur in a simulation, and brings
    messages up to date, which nothing reads there.
    """
    return replace(profiles, back_off=_NO_RETRIES)


def needs_group(job: TraceJob) -> bool:
    """Whether a job has a group of pods: a single pod that declares no run time has none.

    Reservations of one instant are ordered by kind and name: groups keep the order of the workload.
    """
    return job.pods > 1 or job.estimate is not None


def has_topology_levels(job: TraceJob) -> bool:
    """Whether the topology of a job is more than one required label."""
    return bool({",", "+", " ", ANYWHERE} & set(job.topology))


class SimulationEngine(StrEnum):
    """What runs in virtual time. The values stand in reports."""

    #: The queue and the scheduling cycle.
    CORE = "core"
    #: The whole control plane: API server, Job controller, scheduler, kubelets.
    FULL = "full"


class NodeFault(NamedTuple):
    """A node is lost at a time and returns after some seconds; its jobs start again."""

    at: float
    node: str
    seconds: float


@dataclass(frozen=True, slots=True)
class SimulationSetup:
    """A workload, the cluster that it runs on, and the policy by which it is scheduled."""

    workload: TraceWorkload
    nodes: tuple[Node, ...]
    profiles: Profiles = DEFAULT_PROFILES
    seed: int = 0
    #: When the simulation ends although jobs have not.
    horizon: float = float("inf")
    faults: tuple[NodeFault, ...] = ()


def find_large_jobs(setup: SimulationSetup) -> dict[int, str]:
    """Return the jobs whose pods do not fit on the empty nodes together, each with the reason."""
    shapes: dict[tuple[object, ...], list[int]] = {}
    for number, job in enumerate(setup.workload.jobs):
        shape = (*job.requests.items(), None, *job.node_labels.items(), job.topology)
        shapes.setdefault(shape, []).append(number)
    rooms = [
        (node, node_allocatable(node))
        for node in setup.nodes
        # Jobs of a trace tolerate no taints.
        if not node.spec.unschedulable
        and all(taint.effect == "PreferNoSchedule" for taint in node.spec.taints)
    ]
    resources = {name for _, room in rooms for name, amount in room.items() if amount}
    large: dict[int, str] = {}
    for numbers in shapes.values():
        jobs = setup.workload.jobs
        job = jobs[max(numbers, key=lambda number: jobs[number].pods)]
        amounts = {name: n for name, n in {**to_amounts(job.requests), "pods": 1}.items() if n}
        found: dict[tuple[str, ...], int] = {}
        levels = parse_topology_levels(job.topology) if job.topology else None
        widest = levels[-1].key.split("+") if levels and levels[-1].key else []
        for node, room in rooms:
            labels = node.metadata.labels
            domain = tuple(labels.get(key, "") for key in widest)
            if not all(domain) or any(labels.get(k) not in v for k, v in job.node_labels.items()):
                continue
            counts = [room.get(name, 0) // amount for name, amount in amounts.items()]
            if 0 < amounts.get(MILLI_GPU, 0) < WHOLE:
                # A share is taken from one GPU.
                gpus = room.get(MILLI_GPU, 0) // WHOLE
                counts.append(gpus * (WHOLE // amounts[MILLI_GPU]))
            found[domain] = found.get(domain, 0) + min(counts)
            if found[domain] >= job.pods:
                break
        largest, reason = max(found.values(), default=0), TOO_LARGE
        if missing := sorted(amounts.keys() - resources):
            reason = f"{NO_NODE_HAS}{', '.join(missing)}"
        elif not found:
            reason = NO_LABELS
        large |= {number: reason for number in numbers if jobs[number].pods > largest}
    return large


def leave_out_jobs(setup: SimulationSetup, large: Mapping[int, str]) -> SimulationSetup:
    """Leave out jobs that can never start, and count them: they would wait to the end."""
    if not large:
        return setup
    workload = setup.workload
    jobs = tuple(job for number, job in enumerate(workload.jobs) if number not in large)
    skipped = Counter(workload.skipped) + Counter(large.values())
    return replace(
        setup, workload=replace(workload, jobs=jobs, skipped=dict(sorted(skipped.items())))
    )


@dataclass(slots=True)
class JobRecord:
    """What happened to one job."""

    job: TraceJob
    #: When it started for the first time, when its present run started, and when it ended.
    first_start: float | None = None
    start: float | None = None
    end: float | None = None
    #: How often it lost its nodes to a preemption, and to a lost node.
    preemptions: int = 0
    disruptions: int = 0
    #: The pod-seconds of runs that did not end.
    lost_seconds: float = 0.0
    #: The first expected start of its reservation.
    expected_start: float | None = None


class AllocationSample(NamedTuple):
    """The cluster from one time to the next sample."""

    at: float
    #: What the running pods request and what the nodes have, by resource of the result.
    allocated: tuple[int, ...]
    capacity: tuple[int, ...]
    waiting_jobs: int
    #: Whether the first waiting job requests no more than is free on all nodes together.
    is_fragmented: bool


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The outcome of a simulation."""

    engine: SimulationEngine
    setup: SimulationSetup
    records: Sequence[JobRecord]
    resources: tuple[str, ...]
    samples: Sequence[AllocationSample]
    #: The last simulated time.
    ended_at: float
    started_pods: int
    decisions: int
    #: Whether the simulation was stopped before its end.
    is_partial: bool = False
    #: Whether free nodes were counted instead of placing pods by the scheduler.
    is_counted: bool = False


class TooManyFaults(ValueError):
    """A rate means more faults than can be simulated; the message says how many."""


@dataclass(frozen=True, slots=True)
class FaultRate:
    """Lost nodes by rate: the mean time between failures of one node, and the time to repair."""

    mean_time_between_failures: float
    repair_seconds: float

    def draw(self, nodes: Sequence[Node], seed: int, until: float) -> tuple[NodeFault, ...]:
        """Draw the faults of all nodes up to a time: exponential intervals, fixed repair times.

        Raises TooManyFaults before anything is drawn.
        """
        expected = len(nodes) * until / (self.mean_time_between_failures + self.repair_seconds)
        if expected > MAX_FAULTS:
            raise TooManyFaults(
                f"means about {expected:.0f} faults until the horizon; at most {MAX_FAULTS} are "
                "simulated: name longer times or a shorter horizon"
            )
        random, found = SeededRandom(seed), list[NodeFault]()
        for node in nodes:
            at = 0.0
            while True:
                at -= self.mean_time_between_failures * log(1.0 - random.between(0.0, 1.0 - 1e-12))
                if at >= until:
                    break
                found.append(NodeFault(at, node.metadata.name, self.repair_seconds))
                at += self.repair_seconds
        return tuple(sorted(found))


@dataclass(slots=True)
class AllocationCounter:
    """Counts what is allocated, and keeps a sample of every change."""

    resources: tuple[str, ...]
    allocated: list[int] = field(default_factory=list)
    capacity: list[int] = field(default_factory=list)
    samples: list[AllocationSample] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with nothing."""
        self.allocated, self.capacity = [0] * len(self.resources), [0] * len(self.resources)

    def add(self, totals: list[int], amounts: Sequence[int], factor: int) -> None:
        """Add amounts, by resource, to what is allocated or to the capacity."""
        for i, amount in enumerate(amounts):
            totals[i] += amount * factor

    def sample(self, now: float, waiting: int, first: Sequence[int] | None) -> None:
        """Keep a sample; `first` is the request of the first waiting job."""
        is_fragmented = first is not None and all(
            need <= has - used
            for need, has, used in zip(first, self.capacity, self.allocated, strict=True)
        )
        one = AllocationSample(
            now, tuple(self.allocated), tuple(self.capacity), waiting, is_fragmented
        )
        if self.samples and self.samples[-1].at == now:
            self.samples[-1] = one
        elif not self.samples or self.samples[-1][1:] != one[1:]:
            self.samples.append(one)
