"""The core engine: queue, reservations and scheduling cycle in virtual time, without an API server.

    trace ─▶ arrivals ─┐
    faults ────────────┼─▶ observe ─▶ plan reservations ─▶ pop ─▶ decide ─▶ commit ─▶ job ends
    ends of jobs ──────┘                  (SchedulerState, the scheduler's own)

At one instant jobs end first, then nodes change, then jobs arrive, and then the scheduler works
until nothing is left to try. Pods are bound the moment they are placed, run for the run time of
their job and are gone. A job whose pods are evicted, or whose node is lost, starts again from the
beginning as a new gang.

Back-off is left out: a refused gang is attempted again when something changes that may help it, or
when its constraints change with time. Back-off only delays attempts after errors, which do not
occur here, and brings messages up to date, which nothing reads here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush

from msgspec.structs import replace as but

from phalanx.api.batch import EXPECTED_RUN_TIME_ANNOTATION
from phalanx.api.core import (
    Affinity,
    Container,
    NodeAffinity,
    NodeRequirement,
    NodeSelector,
    NodeTerm,
    Pod,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    SchedulingGroup,
)
from phalanx.api.meta import Key, ObjectMeta, timestamp
from phalanx.api.resources import node_allocatable, to_amounts
from phalanx.api.scheduling import (
    DisruptionMode,
    GangPolicy,
    PodGroup,
    PodGroupSpec,
    SchedulingPolicy,
)
from phalanx.scheduler.decision import Binding, Placed, Preempting
from phalanx.scheduler.policy import BackOff
from phalanx.scheduler.queue.decision_log import NodeObserved, PodGroupObserved, PodObserved
from phalanx.scheduler.queue.scheduler_state import SchedulerState
from phalanx.sim.simulation_setup import (
    AllocationCounter,
    JobRecord,
    SimulationEngine,
    SimulationResult,
    SimulationSetup,
)
from phalanx.sim.workloads.workload import TraceJob

NAMESPACE = "default"
#: Longer than any simulation: no refused entity is attempted again because of time alone.
_NO_RETRIES = BackOff(1e15, 1e15)
#: Seconds between two instants at which only the scheduler has something to do, and how long it
#: may go on so when nothing runs and nothing arrives.
_MIN_STEP, _IDLE_SECONDS = 1.0, 7200.0
#: Attempts at one instant after which the scheduler must be in a loop.
_MAX_ATTEMPTS = 1_000_000
#: The order of what happens at one instant.
_END, _NODE_LOST, _NODE_BACK = range(3)


class _LiveJob:
    """A job that waits or runs: its gang and pods."""

    __slots__ = ("amounts", "group", "nodes", "number", "pods", "record", "run")

    def __init__(self, number: int, record: JobRecord, amounts: Sequence[int]) -> None:
        self.number, self.record, self.amounts = number, record, amounts
        #: How often it was started again.
        self.run = 0
        self.group: Key | None = None
        self.pods: dict[Key, Pod] = {}
        self.nodes: dict[str, None] = {}


class CoreEngine:
    """Simulates one setup. `on_progress` is called now and then with the simulated time."""

    def __init__(
        self, setup: SimulationSetup, on_progress: Callable[[float, int], None] | None = None
    ) -> None:
        self._setup, self._on_progress = setup, on_progress
        profiles = replace(setup.profiles, back_off=_NO_RETRIES)
        self._state = SchedulerState(profiles)
        self._records = [JobRecord(job) for job in setup.workload.jobs]
        self._amounts = {node.metadata.name: node_allocatable(node) for node in setup.nodes}
        self._nodes = {node.metadata.name: node for node in setup.nodes}
        requested = {name for job in setup.workload.jobs for name in job.requests}
        self._usage = AllocationCounter(tuple(sorted(requested)))
        #: What happens at a time: (time, order, number of a job or name of a node, run of the job).
        self._events: list[tuple[float, int, int | str, int]] = []
        self._arrived = 0
        self._by_entity: dict[str, _LiveJob] = {}
        self._by_pod: dict[Key, _LiveJob] = {}
        self._waiting: dict[int, _LiveJob] = {}
        self._running: dict[int, _LiveJob] = {}
        self._nodes_lost: dict[str, int] = {}
        # Preemption compares start times, and medians need run times; both cost an observation.
        self._reports_starts = len({job.priority for job in setup.workload.jobs}) > 1
        self._width = len(str(len(self._records)))
        self._plans_seen, self._decisions, self._started_pods = -1, 0, 0
        self._now, self._last_event, self._is_stopped = 0.0, 0.0, False

    def stop(self) -> None:
        """End the simulation after the present instant; the result is partial."""
        self._is_stopped = True

    def run(self) -> SimulationResult:
        """Simulate to the end, the horizon, or until stopped."""
        for name in self._nodes:
            self._observe_node(name, 0.0, is_present=True)
        for fault in self._setup.faults:
            heappush(self._events, (fault.at, _NODE_LOST, fault.node, 0))
            heappush(self._events, (fault.at + fault.seconds, _NODE_BACK, fault.node, 0))
        while not self._is_stopped:
            now = self._next_time()
            if now is None:
                break
            if now > self._setup.horizon:
                self._now = self._setup.horizon
                break
            self._now = now
            self._apply_events(now)
            self._run_cycles(now)
            if self._on_progress is not None:
                self._on_progress(now, self._arrived - len(self._waiting) - len(self._running))
        return SimulationResult(
            SimulationEngine.CORE,
            self._setup,
            self._records,
            self._usage.resources,
            self._usage.samples,
            ended_at=self._now,
            started_pods=self._started_pods,
            decisions=self._decisions,
            is_partial=self._is_stopped,
        )

    # ---- time ----------------------------------------------------------------------------------

    def _next_time(self) -> float | None:
        """Return when something happens next; None if nothing does any more."""
        jobs, times = self._setup.workload.jobs, list[float]()
        if self._arrived < len(jobs):
            times.append(jobs[self._arrived].submit)
        if self._events:
            times.append(self._events[0][0])
        is_over = self._arrived == len(jobs) and not self._running
        if is_over and not self._waiting:
            return None
        if self._waiting:
            due = (self._state.queue.next_backoff_end(), self._state.reservations.next_time())
            times += [max(time, self._now + _MIN_STEP) for time in due if time is not None]
        soonest = min(times, default=None)
        if is_over and soonest is not None and soonest > self._last_event + _IDLE_SECONDS:
            # Nothing runs and nothing arrives: what waits now waits forever, unless a node returns.
            soonest = self._events[0][0] if self._events else None
        return soonest

    def _apply_events(self, now: float) -> None:
        """Let jobs end, nodes change and jobs arrive."""
        while self._events and self._events[0][0] <= now:
            _, kind, subject, run = heappop(self._events)
            self._last_event = now
            if kind == _END:
                assert isinstance(subject, int)
                live = self._running.get(subject)
                if live is not None and live.run == run:
                    self._end(live, now)
            else:
                assert isinstance(subject, str)
                self._change_node(subject, now, is_lost=kind == _NODE_LOST)
        jobs = self._setup.workload.jobs
        while self._arrived < len(jobs) and jobs[self._arrived].submit <= now:
            self._last_event = now
            amounts = to_amounts(jobs[self._arrived].requests)
            vector = [amounts.get(name, 0) for name in self._usage.resources]
            self._submit(_LiveJob(self._arrived, self._records[self._arrived], vector), now)
            self._arrived += 1

    # ---- jobs ----------------------------------------------------------------------------------

    def _submit(self, live: _LiveJob, now: float) -> None:
        """Create the group and the pods of a job."""
        job, name = live.record.job, f"job-{live.number:0{self._width}}"
        name += f"-{live.run}" if live.run else ""
        spec = _build_pod_spec(job, name)
        if spec.scheduling_group is not None:
            live.group = Key(NAMESPACE, name)
            self._state.observe(PodGroupObserved(now, live.group, _build_group(job, name)))
        created = timestamp(now)
        for i in range(job.pods):
            pod_name = f"{name}-{i}"
            meta = ObjectMeta(
                name=pod_name, namespace=NAMESPACE, uid=pod_name, creation_timestamp=created
            )
            key = Key(NAMESPACE, pod_name)
            live.pods[key] = pod = Pod(meta, spec)
            self._by_pod[key] = live
            self._state.observe(PodObserved(now, key, pod))
        self._by_entity[name if live.group else f"{name}-0"] = live
        self._waiting[live.number] = live

    def _start(self, live: _LiveJob, bindings: Sequence[Binding], now: float) -> None:
        """All pods of a job were placed: it runs."""
        record, job = live.record, live.record.job
        record.start = now
        if record.first_start is None:
            record.first_start = now
        del self._waiting[live.number]
        self._running[live.number] = live
        live.nodes = dict.fromkeys(node for _, _, node in bindings)
        self._started_pods += job.pods
        self._usage.add(self._usage.allocated, live.amounts, job.pods)
        heappush(self._events, (now + job.run_time, _END, live.number, live.run))
        if self._reports_starts or job.estimate is None:
            started = PodStatus(phase="Running", start_time=timestamp(now))
            for key, _, node in bindings:
                pod = live.pods[key]
                pod = but(pod, spec=but(pod.spec, node_name=node), status=started)
                live.pods[key] = pod
                self._state.observe(PodObserved(now, key, pod))

    def _end(self, live: _LiveJob, now: float) -> None:
        """A job has run for its run time."""
        live.record.end = now
        if live.record.job.estimate is None:
            succeeded = PodStatus(phase="Succeeded")
            for key, pod in live.pods.items():
                status = but(succeeded, start_time=pod.status.start_time)
                self._state.observe(PodObserved(now, key, but(pod, status=status)))
        self._remove(live, now)

    def _restart(self, live: _LiveJob, now: float) -> None:
        """A job has lost a node: all its pods are gone, and a new gang begins from the start."""
        record = live.record
        assert record.start is not None
        record.lost_seconds += (now - record.start) * record.job.pods
        record.start = None
        self._remove(live, now)
        live.run += 1
        self._submit(live, now)

    def _remove(self, live: _LiveJob, now: float) -> None:
        """Delete the pods and the group of a job that runs."""
        del self._running[live.number]
        self._usage.add(self._usage.allocated, live.amounts, -live.record.job.pods)
        for key in live.pods:
            del self._by_pod[key]
            self._state.observe(PodObserved(now, key, None))
        name = live.group.name if live.group else next(iter(live.pods)).name
        del self._by_entity[name]
        if live.group is not None:
            self._state.observe(PodGroupObserved(now, live.group, None))
        live.pods = {}

    # ---- nodes ---------------------------------------------------------------------------------

    def _change_node(self, name: str, now: float, *, is_lost: bool) -> None:
        """Lose or repair a node. Faults of one node may overlap: the last repair counts."""
        before = self._nodes_lost.get(name, 0)
        self._nodes_lost[name] = before + (1 if is_lost else -1)
        if is_lost and not before:
            self._observe_node(name, now, is_present=False)
            for live in [one for one in self._running.values() if name in one.nodes]:
                live.record.disruptions += 1
                self._restart(live, now)
        elif not is_lost and before == 1:
            self._observe_node(name, now, is_present=True)

    def _observe_node(self, name: str, now: float, *, is_present: bool) -> None:
        amounts = [self._amounts[name].get(one, 0) for one in self._usage.resources]
        self._usage.add(self._usage.capacity, amounts, 1 if is_present else -1)
        self._state.observe(NodeObserved(now, name, self._nodes[name] if is_present else None))

    # ---- scheduling ----------------------------------------------------------------------------

    def _run_cycles(self, now: float) -> None:
        """Attempt entities until the queue returns none."""
        state = self._state
        for _ in range(_MAX_ATTEMPTS):
            entity = state.pop_after_planning(now)
            self._note_expected_starts()
            if entity is None:
                break
            decision = state.decide(entity)
            self._decisions += 1
            if not state.commit(entity, decision, now):
                continue
            if isinstance(decision, Placed):
                self._start(self._by_entity[entity.key.name], decision.bindings, now)
            elif isinstance(decision, Preempting):
                victims = dict.fromkeys(self._by_pod[victim.pod] for victim in decision.victims)
                for live in victims:
                    live.record.preemptions += 1
                    self._restart(live, now)
        else:
            raise RuntimeError(f"the scheduler does not come to rest at {now:g} s")
        first = next(iter(self._waiting.values()), None)
        need = [amount * first.record.job.pods for amount in first.amounts] if first else None
        self._usage.sample(now, len(self._waiting), need)

    def _note_expected_starts(self) -> None:
        """Keep the first expected start of each reservation, to compare it with the start."""
        reservations = self._state.reservations
        if reservations.version == self._plans_seen:
            return
        self._plans_seen = reservations.version
        for one in reservations.current:
            live = self._by_entity.get(one.ref.name)
            if live is not None and live.record.expected_start is None:
                live.record.expected_start = one.expected_start


def _build_group(job: TraceJob, name: str) -> PodGroup:
    annotations = {}
    if job.estimate is not None:
        annotations[EXPECTED_RUN_TIME_ANNOTATION] = f"{job.estimate:.6f}s"
    spec = PodGroupSpec(
        scheduling_policy=SchedulingPolicy(gang=GangPolicy(job.pods)),
        disruption_mode=DisruptionMode(all={}),
        priority=job.priority,
    )
    meta = ObjectMeta(name=name, namespace=NAMESPACE, uid=name, annotations=annotations)
    return PodGroup(meta, spec)


def _build_pod_spec(job: TraceJob, name: str) -> PodSpec:
    """Build the spec of each pod; a single pod that declares no run time needs no group."""
    affinity = None
    if job.node_labels:
        terms = tuple(
            NodeRequirement(label, "In", values) for label, values in job.node_labels.items()
        )
        affinity = Affinity(NodeAffinity(NodeSelector((NodeTerm(terms),))))
    needs_group = job.pods > 1 or job.estimate is not None
    resources = ResourceRequirements(dict(job.requests))
    return PodSpec(
        scheduling_group=SchedulingGroup(name) if needs_group else None,
        containers=(Container(name="main", resources=resources),),
        affinity=affinity,
        priority=job.priority,
        restart_policy="Never",
    )
