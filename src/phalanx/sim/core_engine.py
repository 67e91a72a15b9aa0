"""The core engine: queue, reservations and scheduling cycle in virtual time, without an API server.

    trace ─▶ arrivals ─┐
    faults ────────────┼─▶ observe ─▶ plan reservations ─▶ pop ─▶ decide ─▶ commit ─▶ job ends
    ends of jobs ──────┘                  (SchedulerState, the scheduler's own)

At one instant jobs end first, then nodes change, then jobs arrive, and then the scheduler works
until nothing is left to try. Pods are bound the moment they are placed, run for the run time of
their job and are gone. A job whose pods are evicted, or whose node is lost, starts again from the
beginning as a new gang.

Back-off is left out (`without_retries`): a refused gang is attempted again when something changes
that may help it, or when its constraints change with time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from math import floor

from msgspec import convert
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
    PodResourceClaim,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    SchedulingGroup,
)
from phalanx.api.dynamic_resources import DeviceClass, ResourceClaimSpec, ResourceSlice
from phalanx.api.meta import Key, ObjectMeta, timestamp
from phalanx.api.other_kinds import DeviceClaim, ResourceClaimStatus
from phalanx.api.scheduling import (
    TOPOLOGY_ANNOTATION,
    DisruptionMode,
    GangPolicy,
    PodGroup,
    PodGroupSpec,
    SchedulingConstraints,
    SchedulingPolicy,
    TopologyConstraint,
)
from phalanx.api.wire import Object
from phalanx.controllers.scheduling.exact_solver import HighsSolver
from phalanx.scheduler.cycle import run_steps
from phalanx.scheduler.decision import Binding, ClaimReservation, Placed, Preempting
from phalanx.scheduler.queue.decision_log import (
    DeviceClassObserved,
    NodeObserved,
    PodGroupObserved,
    PodObserved,
    ResourceClaimObserved,
    ResourceSliceObserved,
)
from phalanx.scheduler.queue.scheduler_state import SchedulerState
from phalanx.sim.gpu_devices import (
    CLAIM,
    DEVICE_CLASS,
    build_claim_spec,
    build_device_class,
    build_slice,
    count_devices,
    uses_shares,
)
from phalanx.sim.simulation_recorder import SimulationRecorder
from phalanx.sim.simulation_setup import (
    IDLE_SECONDS,
    MIN_STEP,
    NAMESPACE,
    SimulationEngine,
    SimulationResult,
    SimulationSetup,
    has_topology_levels,
    needs_group,
    without_retries,
)
from phalanx.sim.workloads.workload import TraceJob

#: Attempts at one instant after which the scheduler must be in a loop.
_MAX_ATTEMPTS = 1_000_000
#: The order of what happens at one instant: jobs end, nodes are lost, nodes return.
EVENT_END, _NODE_LOST, _NODE_BACK = range(3)


class LiveJob:
    """A job that waits or runs: its gang and pods."""

    __slots__ = ("group", "job", "nodes", "number", "pods", "run")

    def __init__(self, number: int, job: TraceJob) -> None:
        self.number, self.job = number, job
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
        self._setup, self.on_progress = setup, on_progress
        self._state = SchedulerState(without_retries(setup.profiles))
        self._state.repeat_refusals()
        self._solver = HighsSolver()
        self._recorder = SimulationRecorder(setup)
        self._nodes = {node.metadata.name: node for node in setup.nodes}
        #: What happens at a time: (time, order, number of a job or name of a node, run of the job).
        self._events: list[tuple[float, int, int | str, int]] = []
        self._arrived = 0
        self._by_entity: dict[str, LiveJob] = {}
        self._by_pod: dict[Key, LiveJob] = {}
        self._running: dict[int, LiveJob] = {}
        #: The claims for shares of GPUs; each has the name of its pod.
        self._claims: dict[Key, DeviceClaim] = {}
        self._nodes_lost: dict[str, int] = {}
        # Jobs that declare no run time are expected to run as long as earlier ones of their shape.
        self._learns_run_times = any(job.estimate is None for job in setup.workload.jobs)
        # Preemption compares start times, and medians need run times; both cost an observation.
        has_priorities = len({job.priority for job in setup.workload.jobs}) > 1
        self._reports_starts = has_priorities or self._learns_run_times
        self._width = len(str(len(setup.workload.jobs)))
        self._plans_seen, self._decisions = -1, 0
        self._now, self._last_event, self._is_stopped = 0.0, 0.0, False

    def stop(self) -> None:
        """End the simulation after the present instant; the result is partial."""
        self._is_stopped = True

    def run(self) -> SimulationResult:
        """Simulate to the end, the horizon, or until stopped."""
        for name in self._nodes:
            self._observe_node(name, 0.0, is_present=True)
        if uses_shares(self._setup.workload.jobs):
            self._observe_devices()
        for fault in self._setup.faults:
            heappush(self._events, (fault.at, _NODE_LOST, fault.node, 0))
            heappush(self._events, (fault.at + fault.seconds, _NODE_BACK, fault.node, 0))
        while not self._is_stopped:
            now = self._next_time()
            if now is None:
                self._now = self._last_event
                break
            if now > self._setup.horizon:
                self._now = self._setup.horizon
                break
            self._now = now
            self._run_instant(now)
            if self.on_progress is not None:
                self.on_progress(now, self._recorder.finished_jobs)
        return self._recorder.result(
            SimulationEngine.CORE,
            self._now,
            self._decisions + self._state.queue.repeated_refusals,
            is_partial=self._is_stopped,
        )

    # ---- time ----------------------------------------------------------------------------------

    def _run_instant(self, now: float) -> None:
        """Let happen what happens at one time."""
        self._apply_events(now)
        self._run_cycles(now)

    def _next_time(self) -> float | None:
        """Return when something happens next; None if nothing does any more."""
        jobs, times = self._setup.workload.jobs, list[float]()
        if self._arrived < len(jobs):
            times.append(jobs[self._arrived].submit)
        if self._events:
            times.append(self._events[0][0])
        is_over = self._arrived == len(jobs) and not self._running
        if is_over and not self._recorder.waiting:
            return None
        if self._recorder.waiting:
            due = (self._state.queue.next_backoff_end(), self._state.reservations.next_time())
            times += [max(time, floor(self._now) + MIN_STEP) for time in due if time is not None]
        soonest = min(times, default=None)
        if is_over and soonest is not None and soonest > self._last_event + IDLE_SECONDS:
            # Nothing runs and nothing arrives: what waits now waits forever, unless a node returns.
            soonest = self._events[0][0] if self._events else None
        return soonest

    def _apply_events(self, now: float) -> None:
        """Let jobs end, nodes change and jobs arrive."""
        while self._events and self._events[0][0] <= now:
            _, kind, subject, run = heappop(self._events)
            self._last_event = now
            if kind == EVENT_END:
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
            self._recorder.submit(self._arrived)
            self._submit(LiveJob(self._arrived, jobs[self._arrived]), now)
            self._arrived += 1

    # ---- jobs ----------------------------------------------------------------------------------

    def _submit(self, live: LiveJob, now: float) -> None:
        """Create the group and the pods of a job."""
        job, name = live.job, f"job-{live.number:0{self._width}}"
        name += f"-{live.run}" if live.run else ""
        spec = build_pod_spec(job, name)
        if spec.scheduling_group is not None:
            live.group = Key(NAMESPACE, name)
            self._state.observe(PodGroupObserved(now, live.group, _build_group(job, name)))
        created, claim_spec = timestamp(now), build_claim_spec(job.requests)
        for i in range(job.pods):
            pod_name = f"{name}-{i}"
            if claim_spec is not None:
                spec = self._create_claim(pod_name, claim_spec, spec, now)
            meta = ObjectMeta(
                name=pod_name, namespace=NAMESPACE, uid=pod_name, creation_timestamp=created
            )
            key = Key(NAMESPACE, pod_name)
            live.pods[key] = pod = Pod(meta, spec)
            self._by_pod[key] = live
            self._state.observe(PodObserved(now, key, pod))
        self._by_entity[name if live.group else f"{name}-0"] = live

    def _start(self, live: LiveJob, bindings: Sequence[Binding], now: float) -> None:
        """All pods of a job were placed: it runs."""
        self._recorder.start(live.number, now)
        self._running[live.number] = live
        heappush(self._events, (now + live.job.run_time, EVENT_END, live.number, live.run))
        self._note_start(live, bindings, now)

    def _note_start(self, live: LiveJob, bindings: Sequence[Binding], now: float) -> None:
        """Keep the nodes of a job, and let the scheduler observe its start if it needs that."""
        live.nodes = dict.fromkeys(node for _, _, node in bindings)
        if self._reports_starts:
            started = PodStatus(phase="Running", start_time=timestamp(now))
            for key, _, node in bindings:
                pod = live.pods[key]
                pod = but(pod, spec=but(pod.spec, node_name=node), status=started)
                live.pods[key] = pod
                self._state.observe(PodObserved(now, key, pod))

    def _end(self, live: LiveJob, now: float) -> None:
        """A job has run for its run time."""
        self._recorder.end(live.number, now)
        self._observe_success(live, now)
        self._remove(live, now)

    def _observe_success(self, live: LiveJob, now: float) -> None:
        """Let the scheduler observe that pods succeeded, if it learns run times from them."""
        if self._learns_run_times:
            succeeded = PodStatus(phase="Succeeded")
            for key, pod in live.pods.items():
                status = but(succeeded, start_time=pod.status.start_time)
                self._state.observe(PodObserved(now, key, but(pod, status=status)))

    def _restart(self, jobs: Iterable[LiveJob], now: float, *, is_preempted: bool) -> None:
        """Jobs have lost nodes: all their pods are gone, and new gangs begin from the start."""
        for live in sorted(jobs, key=lambda one: one.number):
            self._recorder.interrupt(live.number, now, is_preempted=is_preempted)
            self._remove(live, now)
            live.run += 1
            self._submit(live, now)

    def _remove(self, live: LiveJob, now: float) -> None:
        """A job runs no longer."""
        del self._running[live.number]
        self._delete_objects(live, now)

    def _delete_objects(self, live: LiveJob, now: float) -> None:
        """Delete the pods and the group of a job."""
        for key in live.pods:
            del self._by_pod[key]
            self._state.observe(PodObserved(now, key, None))
            if self._claims.pop(key, None) is not None:
                self._state.observe(ResourceClaimObserved(now, key, None))
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
            lost = [one for one in self._running.values() if name in one.nodes]
            self._restart(lost, now, is_preempted=False)
        elif not is_lost and before == 1:
            self._observe_node(name, now, is_present=True)

    def _observe_node(self, name: str, now: float, *, is_present: bool) -> None:
        self._recorder.change_node(name, is_present=is_present)
        self._state.observe(NodeObserved(now, name, self._nodes[name] if is_present else None))

    # ---- devices -------------------------------------------------------------------------------

    def _observe_devices(self) -> None:
        """Publish the GPUs of all nodes."""
        gpus = convert(build_device_class(), DeviceClass)
        self._state.observe(DeviceClassObserved(0.0, DEVICE_CLASS, gpus))
        for name, node in self._nodes.items():
            if count := count_devices(node):
                devices = convert(build_slice(name, count), ResourceSlice)
                self._state.observe(ResourceSliceObserved(0.0, devices.metadata.name, devices))

    def _create_claim(self, pod: str, spec: Object, pod_spec: PodSpec, now: float) -> PodSpec:
        """Create the claim of a pod, of the same name; returns the spec that names it."""
        key = Key(NAMESPACE, pod)
        meta = ObjectMeta(name=pod, namespace=NAMESPACE, uid=f"{pod}-gpu")
        self._claims[key] = claim = DeviceClaim(meta, convert(spec, ResourceClaimSpec))
        self._state.observe(ResourceClaimObserved(now, key, claim))
        return but(pod_spec, resource_claims=(PodResourceClaim(CLAIM, pod),))

    def _allocate_claims(self, reservations: Iterable[ClaimReservation], now: float) -> None:
        """Show the devices of claims; when the claims are deleted, refused jobs are tried again."""
        for one in reservations:
            status = ResourceClaimStatus(one.allocation, (one.consumer,))
            self._claims[one.claim] = claim = but(self._claims[one.claim], status=status)
            self._state.observe(ResourceClaimObserved(now, one.claim, claim))

    # ---- scheduling ----------------------------------------------------------------------------

    def _run_cycles(self, now: float) -> None:
        """Attempt entities until the queue returns none."""
        state = self._state
        for _ in range(_MAX_ATTEMPTS):
            entity = state.pop_after_planning(now)
            self._note_expected_starts()
            if entity is None:
                break
            decision = run_steps(state.cycle(entity), self._solver)
            self._decisions += 1
            if not state.commit(entity, decision, now):
                continue
            if isinstance(decision, Placed):
                self._allocate_claims(decision.claims, now)
                self._start(self._by_entity[entity.key.name], decision.bindings, now)
            elif isinstance(decision, Preempting):
                victims = {self._by_pod[victim.pod] for victim in decision.victims}
                self._restart(victims, now, is_preempted=True)
        else:
            raise RuntimeError(f"the scheduler does not come to rest at {now:g} s")
        self._recorder.sample(now)

    def _note_expected_starts(self) -> None:
        """Keep the first expected start of each reservation, to compare it with the start."""
        reservations = self._state.reservations
        if reservations.version == self._plans_seen:
            return
        self._plans_seen = reservations.version
        for one in reservations.current:
            live = self._by_entity.get(one.ref.name)
            if live is not None and one.expected_start is not None:
                self._recorder.expect_start(live.number, one.expected_start)


def _build_group(job: TraceJob, name: str) -> PodGroup:
    annotations = {}
    if job.estimate is not None:
        annotations[EXPECTED_RUN_TIME_ANNOTATION] = f"{job.estimate:.6f}s"
    constraints = None
    if has_topology_levels(job):
        annotations[TOPOLOGY_ANNOTATION] = job.topology
    elif job.topology:
        constraints = SchedulingConstraints((TopologyConstraint(job.topology),))
    spec = PodGroupSpec(
        scheduling_policy=SchedulingPolicy(gang=GangPolicy(job.pods)),
        scheduling_constraints=constraints,
        disruption_mode=DisruptionMode(all={}),
        priority=job.priority,
    )
    meta = ObjectMeta(name=name, namespace=NAMESPACE, uid=name, annotations=annotations)
    return PodGroup(meta, spec)


def build_pod_spec(job: TraceJob, name: str) -> PodSpec:
    """Build the spec of each pod of a job."""
    affinity = None
    if job.node_labels:
        terms = tuple(
            NodeRequirement(label, "In", values) for label, values in job.node_labels.items()
        )
        affinity = Affinity(NodeAffinity(NodeSelector((NodeTerm(terms),))))
    resources = ResourceRequirements(dict(job.requests))
    return PodSpec(
        scheduling_group=SchedulingGroup(name) if needs_group(job) else None,
        containers=(Container(name="main", resources=resources),),
        affinity=affinity,
        priority=job.priority,
        restart_policy="Never",
    )
