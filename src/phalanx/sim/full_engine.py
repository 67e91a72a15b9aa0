"""The full engine: the whole control plane in virtual time, driven by the jobs of a workload.

    trace ─▶ Jobs ─┐                       ┌─▶ Job controller ─▶ pods
    faults ─▶ Nodes ┴─▶ API server ─▶ watch ┼─▶ scheduler      ─▶ bindings, evictions
                                           └─▶ kubelets       ─▶ starts and ends of pods

A job of the workload is a Job with one PodGroup; a single pod that declares no run time needs none.
Requests take no time, so that only run times and waits pass. At one instant jobs end first, then
nodes change, then jobs arrive, and then the scheduler works until nothing is left to try
(`Instants`), as in the core engine: both engines start and end every job at the same times.

A Job that is complete is deleted. A job that is preempted or loses a node is deleted and submitted
again as a new Job. A workflow engine does the same. Pods have no grace period: they are gone at
once. Nodes send no heartbeats: a lost node is a deleted Node, and a month of heartbeats would take
longer than its jobs. The API keeps times in whole seconds: of a pod that starts within a second the
scheduler expects the end up to a second early. The kubelet runs it as long as it should.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any

from phalanx.api.batch import COMPLETE, EXPECTED_RUN_TIME_ANNOTATION, Job
from phalanx.api.core import Node, Pod
from phalanx.api.kinds import (
    DEVICE_CLASS,
    JOB,
    NODE,
    POD,
    PRIORITY_CLASS,
    RESOURCE_CLAIM_TEMPLATE,
    RESOURCE_SLICE,
)
from phalanx.api.meta import Key
from phalanx.api.scheduling import TOPOLOGY_ANNOTATION
from phalanx.api.wire import Object
from phalanx.clock import LoopClock
from phalanx.components import ComponentConfig
from phalanx.control_plane import ControlPlane
from phalanx.controllers.nodes.node_pool import SimulatedNode, register_nodes
from phalanx.controllers.nodes.simulated_kubelet import RUN_SECONDS, STAGES
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.registry import ControllerSelection
from phalanx.controllers.scheduling.scheduler import Scheduler
from phalanx.randomness import SeededRandom
from phalanx.scheduler.decision import Decision, Preempting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.reservation.reservation import Reservation
from phalanx.server.watches import WatchIntervals
from phalanx.sim.gpu_devices import (
    CLAIM,
    build_claim_spec,
    build_device_class,
    build_slice,
    count_devices,
    uses_shares,
)
from phalanx.sim.simulation import EPOCH, first_error
from phalanx.sim.simulation_recorder import SimulationRecorder
from phalanx.sim.simulation_setup import (
    IDLE_SECONDS,
    NAMESPACE,
    SimulationEngine,
    SimulationResult,
    SimulationSetup,
    has_topology_levels,
    needs_group,
    without_retries,
)
from phalanx.sim.virtual_time import Instants, Phase, VirtualLoop, run_virtual
from phalanx.sim.workloads.workload import MILLI_GPU, TraceJob
from phalanx.store.memory import MemoryStore

#: The controllers of Jobs, groups and pods; no other kinds are simulated. The controller of nodes
#: waits for heartbeats, which are not sent.
_CONTROLLERS = (
    "job",
    "job-groups",
    "podgroup-protection",
    "namespace",
    "serviceaccount",
    "taint-eviction",
    "podgc",
    "garbage",
)
#: The controller of claims, for workloads with shares of GPUs.
_CLAIM_CONTROLLER = "resourceclaim"
#: Clients see changes at once, and bookmarks seldom.
_WATCH_INTERVALS = WatchIntervals(dispatch=0.0, bookmark=3600.0)
#: The label of the pods of a Job.
_JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
_NO_LIMIT = 1 << 60
#: How often jobs may be preempted at one instant before the scheduler must be in a loop.
_MAX_PREEMPTIONS = 10_000


class _LiveJob:
    """A job that was submitted and has not ended: its present Job, and how far its pods are."""

    __slots__ = ("ended_pods", "entity", "name", "nodes", "number", "run", "started_pods")

    def __init__(self, number: int) -> None:
        self.number, self.run = number, 0
        self.restart("")

    def restart(self, name: str) -> None:
        """Begin with a new Job."""
        self.name, self.entity = name, ""
        self.started_pods = self.ended_pods = 0
        self.nodes: dict[str, None] = {}


class FullEngine:
    """Simulates one setup. `on_progress` is called now and then with the simulated time."""

    def __init__(
        self, setup: SimulationSetup, on_progress: Callable[[float, int], None] | None = None
    ) -> None:
        self._setup, self.on_progress = setup, on_progress
        self._recorder = SimulationRecorder(setup)
        self._by_job: dict[str, _LiveJob] = {}
        self._by_entity: dict[str, _LiveJob] = {}
        self._live: dict[int, _LiveJob] = {}
        self._interrupted: dict[int, None] = {}
        self._nodes_lost: dict[str, int] = {}
        self._width = len(str(len(setup.workload.jobs)))
        self._decisions = 0
        self._plans: tuple[Reservation, ...] = ()
        self._is_stopped, self._last_event, self._is_changed = False, 0.0, False
        #: Set when a job has ended or the simulation is stopped.
        self._progress = asyncio.Event()
        #: The time of the loop at which the simulation begins; before it, the cluster is set up.
        self._start = 0.0
        #: When jobs were interrupted last, and how many at that time.
        self._preempted_at, self._preemptions = -1.0, 0
        #: The time up to which the scheduler has waited for the other components.
        self._settled_at = -1.0

    def stop(self) -> None:
        """End the simulation after the present instant; the result is partial."""
        self._is_stopped = True
        self._progress.set()

    def run(self) -> SimulationResult:
        """Simulate to the end, the horizon, or until stopped."""
        try:
            return run_virtual(self._simulate, max_seconds=math.inf, max_iterations=_NO_LIMIT)
        except BaseExceptionGroup as group:
            error = first_error(group)
        raise error

    async def _simulate(self) -> SimulationResult:
        loop, setup = asyncio.get_running_loop(), self._setup
        assert isinstance(loop, VirtualLoop)
        self._loop, self._instants = loop, Instants(loop)
        clock, random = LoopClock(loop, EPOCH), SeededRandom(setup.seed)
        self._nodes = {node.metadata.name: _to_simulated(node) for node in setup.nodes}
        shares = uses_shares(setup.workload.jobs)
        config = ComponentConfig(
            nodes=list(self._nodes.values()),
            profiles=without_retries(setup.profiles),
            heartbeats=False,
            controllers=ControllerSelection(
                (*_CONTROLLERS, _CLAIM_CONTROLLER) if shares else _CONTROLLERS
            ),
            on_built=self._attach,
        )
        plane = ControlPlane(
            MemoryStore(),
            clock,
            random,
            config=config,
            watch_intervals=_WATCH_INTERVALS,
            # Nothing reads Events and managedFields here, and they cost as much as the pods.
            keep_history=False,
        )
        self._client, self._clock = plane.client("user"), clock
        async with plane.running():
            for priority in sorted({job.priority for job in setup.workload.jobs} - {0}):
                meta = {"name": _priority_class_name(priority)}
                await self._client.create(PRIORITY_CLASS, {"metadata": meta, "value": priority})
            if shares:
                await self._publish_devices()
            for name in self._nodes:
                self._recorder.change_node(name, is_present=True)
            await self._instants.settle(Phase.NODES)
            self._start = math.ceil(loop.time())
            self._instants.on_settled.append(self._on_settled)
            async with asyncio.TaskGroup() as self._deletions:
                ended_at = await self._drive()
                await self._instants.settle(Phase.SCHEDULER)
            self._on_settled()
            return self._recorder.result(
                SimulationEngine.FULL, ended_at, self._decisions, is_partial=self._is_stopped
            )

    async def _publish_devices(self) -> None:
        """Create the GPUs of all nodes, and a template for each amount that jobs claim."""
        await self._client.create(DEVICE_CLASS, build_device_class())
        for node in self._setup.nodes:
            if count := count_devices(node):
                await self._client.create(RESOURCE_SLICE, build_slice(node.metadata.name, count))
        claimed = {job.requests.get(MILLI_GPU, "0") for job in self._setup.workload.jobs}
        for amount in sorted(claimed):
            if (spec := build_claim_spec({MILLI_GPU: amount})) is not None:
                meta = {"name": _claim_template_name(amount), "namespace": NAMESPACE}
                template = {"metadata": meta, "spec": {"spec": spec}}
                await self._client.create(RESOURCE_CLAIM_TEMPLATE, template)

    def _attach(self, informers: Informers, scheduler: Scheduler | None) -> None:
        """Observe pods and the scheduler."""
        assert scheduler is not None
        informers.of(Pod).cache.subscribe(self._on_pod_changed)
        informers.of(Job).cache.subscribe(self._on_job_changed)
        scheduler.before_pop.append(self._before_pop)
        scheduler.before_cycle.append(lambda entity: self._note_expected_starts())
        scheduler.after_decision.append(self._on_decision)
        self._scheduler = scheduler

    @property
    def _now(self) -> float:
        return self._loop.time() - self._start

    # ---- the driver ----------------------------------------------------------------------------

    async def _drive(self) -> float:
        """Submit jobs and change nodes at their times; returns the time at which it ended."""
        jobs, horizon, arrived = self._setup.workload.jobs, self._setup.horizon, 0
        changes = sorted(
            change
            for fault in self._setup.faults
            for change in (
                (fault.at, 0, fault.node),
                (fault.at + fault.seconds, 1, fault.node),
            )
        )
        changes.reverse()
        while not self._is_stopped:
            at = min(
                jobs[arrived].submit if arrived < len(jobs) else math.inf,
                changes[-1][0] if changes else math.inf,
            )
            if arrived == len(jobs) and not await self._has_work_until(at):
                return min(self._last_event, horizon)
            if not await self._sleep_until(min(at, horizon)):
                break
            if at > horizon:
                return horizon
            while changes and changes[-1][0] <= at:
                _, is_repair, name = changes.pop()
                await self._instants.settle(Phase.NODES)
                await self._change_node(name, is_lost=not is_repair)
            while arrived < len(jobs) and jobs[arrived].submit <= at:
                # One after the other: the order of arrivals is the order of the workload.
                await self._instants.settle(Phase.JOBS)
                self._live[arrived] = _LiveJob(arrived)
                self._recorder.submit(arrived)
                await self._submit(self._live[arrived])
                arrived += 1
        return self._now

    async def _has_work_until(self, at: float) -> bool:
        """Wait for the end of all jobs, at most until a time; returns whether one is left.

        When nothing runs and nothing changes for long, what waits will wait forever.
        """
        recorder, until = self._recorder, min(at, self._setup.horizon)
        while (recorder.running or recorder.waiting) and not self._is_stopped:
            if self._now >= until:
                return True
            limit = until if recorder.running else min(until, self._last_event + IDLE_SECONDS)
            if self._now >= limit:
                return at < math.inf
            await self._wait_for_progress(limit)
        return self._is_stopped

    async def _sleep_until(self, at: float) -> bool:
        """Sleep until a time; returns False if the simulation was stopped meanwhile."""
        while self._now < at and not self._is_stopped:
            await self._wait_for_progress(at)
        return not self._is_stopped

    async def _wait_for_progress(self, until: float) -> None:
        """Wait until a job ends or the simulation is stopped, at most until a time."""
        self._progress.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._start + until if until < math.inf else None):
                await self._progress.wait()

    async def _submit(self, live: _LiveJob) -> None:
        """Create the Job of a job."""
        name = f"job-{live.number:0{self._width}}" + (f"-{live.run}" if live.run else "")
        live.restart(name)
        self._by_job[name] = live
        self._note_event()
        job = self._setup.workload.jobs[live.number]
        await self._client.create(JOB, _build_job(job, name))

    async def _resubmit_interrupted(self, *, is_preempted: bool) -> None:
        """Submit the jobs again that have lost pods, in the order of the workload."""
        numbers, self._interrupted = sorted(self._interrupted), {}
        is_same_instant = self._loop.time() == self._preempted_at
        self._preemptions = len(numbers) + (self._preemptions if is_same_instant else 0)
        self._preempted_at = self._loop.time()
        if self._preemptions > _MAX_PREEMPTIONS:
            raise RuntimeError(f"the scheduler does not come to rest at {self._now:g} s")
        for number in numbers:
            live = self._live[number]
            self._recorder.interrupt(number, self._now, is_preempted=is_preempted)
            del self._by_job[live.name]
            self._by_entity.pop(live.entity, None)
            await self._client.delete(JOB, Key(NAMESPACE, live.name), propagation="Background")
            live.run += 1
            await self._instants.settle(Phase.SCHEDULER if is_preempted else Phase.NODES)
            await self._submit(live)

    async def _change_node(self, name: str, *, is_lost: bool) -> None:
        """Lose or repair a node. Faults of one node may overlap: the last repair counts."""
        before = self._nodes_lost.get(name, 0)
        self._nodes_lost[name] = before + (1 if is_lost else -1)
        self._note_event()
        if is_lost and not before:
            self._recorder.change_node(name, is_present=False)
            await self._client.delete(NODE, Key("", name))
            pods = await self._client.list(POD, Pod, field_selector=f"spec.nodeName={name}")
            for pod in pods.items:
                await self._client.delete(POD, pod.metadata.key, grace=0)
            await self._instants.settle(Phase.NODES)
            await self._resubmit_interrupted(is_preempted=False)
        elif not is_lost and before == 1:
            self._recorder.change_node(name, is_present=True)
            await register_nodes(self._client, self._clock, [self._nodes[name]])

    # ---- the scheduler -------------------------------------------------------------------------

    async def _before_pop(self) -> None:
        """Let all other components finish first what they have to do at the present time."""
        if self._settled_at == self._loop.time():
            return
        await self._instants.settle(Phase.SCHEDULER)
        if self._interrupted:
            await self._resubmit_interrupted(is_preempted=True)
            await self._instants.settle(Phase.SCHEDULER)
        self._settled_at = self._loop.time()

    def _on_decision(self, entity: Entity, decision: Decision) -> None:
        self._decisions += 1
        if isinstance(decision, Preempting):
            # The victims are gone, and submitted again, before the next decision.
            self._settled_at = -1.0

    def _note_expected_starts(self) -> None:
        """Keep the first expected start of each reservation, to compare it with the start."""
        current = self._scheduler.reservations
        if current is self._plans:
            return
        self._plans = current
        for one in current:
            live = self._by_entity.get(one.ref.name)
            if live is not None and one.expected_start is not None:
                self._recorder.expect_start(live.number, one.expected_start - EPOCH - self._start)

    # ---- pods ----------------------------------------------------------------------------------

    def _on_pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        live = self._by_job.get(pod.metadata.labels.get(_JOB_NAME_LABEL, ""))
        if live is None:
            return
        before, after = old.status.phase if old else "", new.status.phase if new else ""
        if not live.entity:
            live.entity = pod.group.name if pod.group else pod.metadata.name
            self._by_entity[live.entity] = live
        if new is None or new.metadata.deletion_timestamp or after == "Failed":
            if live.number in self._recorder.running:
                self._interrupted[live.number] = None
        elif before != after and after == "Running":
            live.started_pods += 1
            if live.started_pods == self._setup.workload.jobs[live.number].pods:
                self._recorder.start(live.number, self._now)
                self._is_changed = True
        elif before != after and after == "Succeeded":
            live.ended_pods += 1
            if live.ended_pods == self._setup.workload.jobs[live.number].pods:
                self._end(live)

    def _end(self, live: _LiveJob) -> None:
        """All pods of a job have ended; its Job is complete soon."""
        self._recorder.end(live.number, self._now)
        self._note_event()
        del self._by_job[live.name]
        del self._by_entity[live.entity]
        del self._live[live.number]
        self._progress.set()
        if self.on_progress is not None:
            self.on_progress(self._now, self._recorder.finished_jobs)

    def _on_job_changed(self, old: Job | None, new: Job | None) -> None:
        """Delete a complete Job. Its dependents go after it, which takes fewer requests."""
        is_complete = new is not None and new.true_condition(COMPLETE) is not None
        if new is not None and is_complete and not (old and old.is_finished):
            self._deletions.create_task(
                self._client.delete(JOB, new.metadata.key, propagation="Background", brief=True)
            )

    def _note_event(self) -> None:
        self._last_event, self._is_changed = self._now, True

    def _on_settled(self) -> None:
        """Nothing more happens at the present time."""
        self._note_expected_starts()
        if self._is_changed:
            self._is_changed = False
            self._recorder.sample(self._now)


def _to_simulated(node: Node) -> SimulatedNode:
    taints = [
        {"key": taint.key, "value": taint.value, "effect": taint.effect}
        for taint in node.spec.taints
    ]
    allocatable = {name: str(quantity) for name, quantity in node.status.allocatable.items()}
    return SimulatedNode(node.metadata.name, allocatable, node.metadata.labels, taints=taints)


def _priority_class_name(priority: int) -> str:
    return f"priority{priority}"


def _claim_template_name(amount: str) -> str:
    return f"gpu-{amount}"


def _build_job(job: TraceJob, name: str) -> Object:
    """Build the Job of a job: a gang that is preempted whole, or a pod without a group."""
    annotations = {}
    if job.estimate is not None:
        annotations[EXPECTED_RUN_TIME_ANNOTATION] = f"{job.estimate:.6f}s"
    scheduling: Mapping[str, Any] = {"gangPolicy": {"policy": "NoGang"}}
    if needs_group(job):
        policy: Object = {"schedulingPolicy": {"gang": {}}, "disruptionMode": {"all": {}}}
        if has_topology_levels(job):
            annotations[TOPOLOGY_ANNOTATION] = job.topology
        elif job.topology:
            policy["schedulingConstraints"] = {"topology": [{"key": job.topology}]}
        scheduling = {"scheduling": policy}
    requests = dict(job.requests)
    resources: Object = {"requests": requests, "limits": requests}
    pod: Object = {
        "restartPolicy": "Never",
        # Evicted pods are gone at once, as in the core engine, and the scheduler must expect that.
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "simulated", "resources": resources}],
    }
    if build_claim_spec(requests) is not None:
        template_name = _claim_template_name(requests[MILLI_GPU])
        pod["resourceClaims"] = [{"name": CLAIM, "resourceClaimTemplateName": template_name}]
        resources["claims"] = [{"name": CLAIM}]
    if job.priority:
        pod["priorityClassName"] = _priority_class_name(job.priority)
    if job.node_labels:
        terms = [
            {"key": label, "operator": "In", "values": list(values)}
            for label, values in job.node_labels.items()
        ]
        required = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
        pod["affinity"] = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
        }
    # Whole seconds, which most run times are, need no YAML.
    stages = {RUN_SECONDS: f"{job.run_time:.0f}"}
    if not float(job.run_time).is_integer():
        stages = {STAGES: f"{{run: {job.run_time!r}}}"}
    template = {"metadata": {"annotations": stages}, "spec": pod}
    spec = {
        "completionMode": "Indexed",
        "parallelism": job.pods,
        "completions": job.pods,
        "backoffLimit": 0,
        "template": template,
        **scheduling,
    }
    meta = {"name": name, "namespace": NAMESPACE, "annotations": annotations}
    return {"metadata": meta, "spec": spec}
