"""SimulationRecorder: what both engines write down about jobs and nodes while they run.

    engine ─▶ submit, start, end, interrupt, change_node ─▶ sample ─▶ result

A job is a number: its place in the workload.
"""

from __future__ import annotations

from phalanx.api.resources import node_allocatable, to_amounts
from phalanx.sim.simulation_setup import (
    AllocationCounter,
    JobRecord,
    SimulationEngine,
    SimulationResult,
    SimulationSetup,
)


class SimulationRecorder:
    """Keeps the records of all jobs, which of them wait and run, and what is allocated."""

    def __init__(self, setup: SimulationSetup) -> None:
        self._setup = setup
        self.records = [JobRecord(job) for job in setup.workload.jobs]
        requested = {name for job in setup.workload.jobs for name in job.requests}
        self._usage = AllocationCounter(tuple(sorted(requested)))
        self._node_amounts = {
            node.metadata.name: self._to_vector(node_allocatable(node)) for node in setup.nodes
        }
        self._vectors: dict[tuple[tuple[str, str], ...], list[int]] = {}
        #: The jobs that wait, in the order in which they were submitted, and those that run.
        self.waiting: dict[int, None] = {}
        self.running: dict[int, None] = {}
        self.submitted_jobs = self.started_pods = 0

    @property
    def finished_jobs(self) -> int:
        """How many jobs have ended."""
        return self.submitted_jobs - len(self.waiting) - len(self.running)

    def submit(self, number: int) -> None:
        """A job was submitted for the first time."""
        self.submitted_jobs += 1
        self.waiting[number] = None

    def start(self, number: int, now: float) -> None:
        """All pods of a job have started."""
        record = self.records[number]
        record.start = now
        if record.first_start is None:
            record.first_start = now
        del self.waiting[number]
        self.running[number] = None
        self.started_pods += record.job.pods
        self._allocate(record, record.job.pods)

    def end(self, number: int, now: float) -> None:
        """A job has run for its run time."""
        del self.running[number]
        record = self.records[number]
        record.end = now
        self._allocate(record, -record.job.pods)

    def interrupt(self, number: int, now: float, *, is_preempted: bool) -> None:
        """A running job has lost its nodes; it waits again and has lost its work."""
        del self.running[number]
        self.waiting[number] = None
        record = self.records[number]
        assert record.start is not None
        if is_preempted:
            record.preemptions += 1
        else:
            record.disruptions += 1
        record.lost_seconds += (now - record.start) * record.job.pods
        record.start = None
        self._allocate(record, -record.job.pods)

    def expect_start(self, number: int, at: float) -> None:
        """A job has a reservation; the first expected start is kept."""
        record = self.records[number]
        if record.expected_start is None:
            record.expected_start = at

    def change_node(self, name: str, *, is_present: bool) -> None:
        """A node was added or lost."""
        self._usage.add(self._usage.capacity, self._node_amounts[name], 1 if is_present else -1)

    def sample(self, now: float) -> None:
        """Keep what is allocated from now on; call it when nothing more happens at a time."""
        need = None
        if self.waiting:
            record = self.records[next(iter(self.waiting))]
            need = [amount * record.job.pods for amount in self._vector(record)]
        self._usage.sample(now, len(self.waiting), need)

    def result(
        self,
        engine: SimulationEngine,
        ended_at: float,
        decisions: int,
        *,
        is_partial: bool,
        is_counted: bool = False,
    ) -> SimulationResult:
        """Return the outcome."""
        return SimulationResult(
            engine,
            self._setup,
            self.records,
            self._usage.resources,
            self._usage.samples,
            ended_at=ended_at,
            started_pods=self.started_pods,
            decisions=decisions,
            is_partial=is_partial,
            is_counted=is_counted,
        )

    def _allocate(self, record: JobRecord, pods: int) -> None:
        self._usage.add(self._usage.allocated, self._vector(record), pods)

    def _vector(self, record: JobRecord) -> list[int]:
        requests = record.job.requests
        key = tuple(requests.items())
        vector = self._vectors.get(key)
        if vector is None:
            vector = self._vectors[key] = self._to_vector(to_amounts(requests))
        return vector

    def _to_vector(self, amounts: dict[str, int]) -> list[int]:
        return [amounts.get(name, 0) for name in self._usage.resources]
