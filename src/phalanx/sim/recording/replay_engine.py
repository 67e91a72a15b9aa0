"""ReplayEngine: runs a recorded history through the scheduler in virtual time.

    history ─▶ nodes, groups, arrivals ─▶ observe ─▶ plan ─▶ pop ─▶ decide ─▶ commit ─▶ pods end
                                          (SchedulerState, the scheduler's own)

Like the core engine it has no API server. Unlike it, every recorded pod is there with its own
requests, constraints, arrival and run time, in its group or tree; nodes join, change and leave as
recorded; refused entities back off; the scheduler observes what it writes as late as in the cluster
(`status_writes.py`); and victims of a preemption terminate for as long as those of the recording
did.

Times inside are seconds since the epoch, as objects have them; the result counts from the beginning
of the recording. At one instant pods end first, then nodes and other objects change, then groups
and pods arrive, then the scheduler works until nothing is left to try.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from math import inf

from msgspec.structs import replace as but

from phalanx.api.core import Node, Pod, Taint
from phalanx.api.meta import Key, Ref, pod_ref, timestamp
from phalanx.api.resources import node_allocatable, pod_requests
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.controllers.scheduling.exact_solver import HighsSolver
from phalanx.scheduler.cluster.group_tree import Group
from phalanx.scheduler.cycle import run_steps
from phalanx.scheduler.decision import Binding, Placed, Preempting
from phalanx.scheduler.queue.decision_log import (
    CompositePodGroupObserved,
    NodeObserved,
    Observation,
    PodGroupObserved,
    PodObserved,
)
from phalanx.scheduler.queue.scheduler_state import SchedulerState, visible_group, visible_pod
from phalanx.sim.recording.history import GroupLife, PodEnd, RecordedRun
from phalanx.sim.recording.recorded_workload import RecordedWorkload
from phalanx.sim.recording.replayed_jobs import (
    LivePod,
    NodeChoice,
    ReplayedBinding,
    ReplayedJob,
    ReplayTrace,
    answer_to_all_names,
    build_job,
    build_replacement,
    compare_nodes,
    find_loss,
    find_run_end,
    mark_succeeded,
    put_on_node,
    reduce_members,
    tolerated_until,
)
from phalanx.sim.recording.status_writes import StatusWrites
from phalanx.sim.simulation_setup import (
    AllocationCounter,
    JobRecord,
    SimulationEngine,
    SimulationResult,
    SimulationSetup,
)
from phalanx.sim.workloads.workload import TraceJob

#: Seconds between two instants at which only the scheduler has something to do, and how long it
#: may go on so when no pod ends and nothing arrives.
_MIN_STEP, _IDLE_SECONDS = 1e-6, 7200.0
#: Attempts at one instant after which the scheduler must be in a loop.
_MAX_ATTEMPTS = 1_000_000
#: The order of what happens at one instant.
_END, _NODE, _OTHER, _GROUP, _UPDATE, _ARRIVAL = range(6)
_NO_EXECUTE = "NoExecute"
#: The events of a recording whose order matters to attempts, for users.
_EVENTS = {_END: "a pod ends", _NODE: "a node changes", _ARRIVAL: "a pod arrives"}


class ReplayEngine:
    """Simulates one recording. `on_progress` is called now and then with the simulated time."""

    def __init__(
        self, setup: SimulationSetup, on_progress: Callable[[float, int], None] | None = None
    ) -> None:
        assert isinstance(setup.workload, RecordedWorkload)
        self._setup, self.on_progress = setup, on_progress
        self._workload, self._history = setup.workload, setup.workload.history
        recording = self._history.recording
        self._begin, self._now, self._last_event = recording.begin, recording.begin, recording.begin
        self._profiles = answer_to_all_names(setup.profiles, self._history)
        self._state, self._solver = SchedulerState(self._profiles), HighsSolver()
        chains = [chain for job in self._history.jobs for chain in job.pods]
        names = {name for chain in chains for name in pod_requests(chain.runs[0].pod)}
        self._usage = AllocationCounter(tuple(sorted(names - {"pods"})))
        self._events: list[tuple[float, int, int, int, Callable[[float], None]]] = []
        self._sequence = 0
        #: The jobs of the report in their order, and those that ran when the recording began.
        self.jobs = [
            build_job(job, record, self._usage.resources)
            for job, record in zip(
                self._workload.recorded, map(JobRecord, setup.workload.jobs), strict=True
            )
        ]
        reported = {id(job.recorded) for job in self.jobs}
        self._background = [
            build_job(job, JobRecord(TraceJob(0.0, 0.0, {})), self._usage.resources)
            for job in self._history.jobs
            if id(job) not in reported
        ]
        self._nodes: dict[str, Node] = {}
        #: The NoExecute taints of each node, and since when.
        self._taints: dict[str, dict[Taint, float]] = {}
        self._lost: dict[str, int] = {}
        self._by_pod: dict[Key, LivePod] = {}
        self._writes = StatusWrites(
            self._by_pod,
            self._history,
            observe=self._observe_pod,
            schedule=lambda at, action: self._push(at, _UPDATE, action),
        )
        self._by_ref: dict[Ref, ReplayedJob] = {}
        self._waiting: dict[int, ReplayedJob] = {}
        #: How many pods wait for a node.
        self._pending = 0
        self.trace = ReplayTrace()
        self._plans_seen, self._decisions, self._started_pods, self._done = -1, 0, 0, 0
        self._is_stopped, self._arrived_at = False, self._begin

    def stop(self) -> None:
        """End the simulation after the present instant; the result is partial."""
        self._is_stopped = True

    def run(self) -> SimulationResult:
        """Simulate to the end, the horizon, or until stopped."""
        self._schedule_all()
        horizon = self._begin + self._setup.horizon
        self._apply_events(self._begin)
        self._run_cycles(self._begin)
        while not self._is_stopped:
            now = self._next_time()
            if now is None:
                self._now = self._last_event
                break
            if now > horizon:
                self._now = horizon
                break
            self._now = now
            self._apply_events(now)
            self._run_cycles(now)
            if self.on_progress is not None:
                self.on_progress(now - self._begin, self._done)
        return SimulationResult(
            SimulationEngine.CORE,
            self._setup,
            [job.record for job in self.jobs],
            self._usage.resources,
            self._usage.samples,
            ended_at=self._elapsed(self._now),
            started_pods=self._started_pods,
            decisions=self._decisions,
            is_partial=self._is_stopped,
        )

    def _elapsed(self, now: float) -> float:
        """Return the seconds since the recording began, in microseconds."""
        return round(now - self._begin, 6)

    # ---- events --------------------------------------------------------------------------------

    def _push(
        self, at: float, order: int, action: Callable[[float], None], *, place: int = 0
    ) -> None:
        """Schedule an action; equal orders of one time are performed by place, then in turn."""
        self._sequence += 1
        heappush(self._events, (at, order, place, self._sequence, action))

    def _schedule_all(self) -> None:
        """Schedule what does not depend on the scheduler."""
        history = self._history
        for other in history.others:
            self._push(other.at, _OTHER, partial(self._observe_other, other))
        if self._setup.nodes is self._workload.nodes:
            for one in history.nodes:
                self._push(one.at, _NODE, partial(self._change_node, one.name, one.node))
        else:
            for node in self._setup.nodes:
                change = partial(self._change_node, node.metadata.name, node)
                self._push(self._begin, _NODE, change)
        for fault in self._setup.faults:
            lose = partial(self._count_loss, fault.node, 1)
            self._push(self._begin + fault.at, _NODE, lose)
            repair = partial(self._count_loss, fault.node, -1)
            self._push(self._begin + fault.at + fault.seconds, _NODE, repair)
        for run in history.fixed:
            if run.bound is not None:
                self._push(max(run.bound, self._begin), _OTHER, partial(self._add_fixed, run))
        for job in (*self._background, *self.jobs):
            self._by_ref[job.recorded.ref] = job
            for life in job.recorded.groups:
                for at, group in life.versions:
                    self._push(at, _GROUP, partial(self._change_group, job, life, group))
                if life.deleted is not None and job.recorded.is_open_at(life.deleted):
                    # A user has deleted it; otherwise it is deleted with the end of the job.
                    self._push(life.deleted, _GROUP, partial(self._delete_group, job, life))
            for live in job.pods:
                self._schedule_run(live, live.chain.runs[0].arrived)

    def _next_time(self) -> float | None:
        """Return when something happens next; None if nothing does any more."""
        times = [self._events[0][0]] if self._events else []
        if self._pending:
            due = (self._state.queue.next_backoff_end(), self._state.reservations.next_time())
            times += [max(time, self._now + _MIN_STEP) for time in due if time is not None]
        soonest = min(times, default=None)
        if soonest is not None and not self._events:
            # Attempts alone change nothing: what waits now waits forever, since the last event.
            is_idle = soonest > self._last_event + _IDLE_SECONDS
            return None if is_idle else soonest
        return soonest

    def _apply_events(self, now: float) -> None:
        while self._events and self._events[0][0] <= now:
            at, order, _, _, action = heappop(self._events)
            self._last_event = now
            if order in _EVENTS:
                self.trace.events.append((self._elapsed(at), _EVENTS[order]))
            action(at)

    # ---- nodes, groups and other objects -------------------------------------------------------

    def _observe_other(self, observation: Observation, now: float) -> None:
        self._state.observe(observation)

    def _change_node(
        self, name: str, node: Node | None, now: float, *, is_fault: bool = False
    ) -> None:
        """A node joins, changes or (None) leaves."""
        old = self._nodes.get(name)
        for one, sign in ((old, -1), (node, 1)):
            if one is not None:
                amounts = node_allocatable(one)
                vector = [amounts.get(resource, 0) for resource in self._usage.resources]
                self._usage.add(self._usage.capacity, vector, sign)
        if node is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = node
        self._state.observe(NodeObserved(now, name, node))
        before = self._taints.pop(name, {})
        if node is not None:
            taints = [taint for taint in node.spec.taints if taint.effect == _NO_EXECUTE]
            self._taints[name] = {taint: before.get(taint, now) for taint in taints}
        for live in [one for one in self._by_pod.values() if one.node == name]:
            if node is None:
                at = now if is_fault else find_loss(live, name, now)
                lose = partial(self._lose_with_node, live, live.incarnation)
                if at == now:
                    lose(now)
                elif at is not None:
                    self._push(at, _END, lose)
            elif self._taints[name]:
                self._evict_intolerant(live, live.incarnation, name, now)

    def _evict_intolerant(self, live: LivePod, incarnation: int, name: str, now: float) -> None:
        """Evict a pod whose toleration of the taints of its node has ended, or wait for that."""
        if live.incarnation != incarnation or live.node != name or live.pod is None:
            return
        until = tolerated_until(live.pod, self._taints.get(name, {}), live.bound_at)
        if until <= now:
            self._lose_pod(live, now, is_node_gone=False)
        elif until < inf:
            again = partial(self._evict_intolerant, live, incarnation, name)
            self._push(until, _NODE, again)

    def _count_loss(self, name: str, change: int, now: float) -> None:
        """Lose or repair a node by a fault. Faults may overlap: the last repair counts."""
        before = self._lost.get(name, 0)
        self._lost[name] = before + change
        known = {node.metadata.name: node for node in self._setup.nodes}
        if change > 0 and not before and name in self._nodes:
            self._change_node(name, None, now, is_fault=True)
        elif change < 0 and before == 1:
            self._change_node(name, known[name], now)

    def _change_group(self, job: ReplayedJob, life: GroupLife, group: Group, now: float) -> None:
        if life.ref not in job.groups and group is not life.first:
            return
        job.groups[life.ref] = group
        self._observe_group(group, now)

    def _observe_group(self, group: Group, now: float) -> None:
        if not self._profiles.groups:
            return
        key = group.metadata.key
        if isinstance(group, CompositePodGroup):
            composite = visible_group(group, self._profiles)
            self._state.observe(CompositePodGroupObserved(now, key, composite))
        else:
            self._state.observe(PodGroupObserved(now, key, visible_group(group, self._profiles)))

    def _delete_group(self, job: ReplayedJob, life: GroupLife, now: float) -> None:
        group = job.groups.get(life.ref)
        if group is not None and group.metadata.uid == life.first.metadata.uid:
            del job.groups[life.ref]
            self._observe_no_group(group, now)

    def _observe_no_group(self, group: Group, now: float) -> None:
        record = PodGroupObserved if isinstance(group, PodGroup) else CompositePodGroupObserved
        if self._profiles.groups:
            self._state.observe(record(now, group.metadata.key, None))

    def _remove_groups(self, job: ReplayedJob, now: float) -> None:
        for group in reversed(job.groups.values()):
            self._observe_no_group(group, now)
        job.groups = {}

    def _add_fixed(self, run: RecordedRun, now: float) -> None:
        """A pod that no simulated scheduler places appears on its node, if that exists."""
        if run.node not in self._nodes:
            return
        pod = put_on_node(run.pod, run.node, run.started_at)
        self._observe_pod(pod, now)
        if run.ended is not None:
            gone = PodObserved(max(run.ended, now), pod.metadata.key, None)
            self._push(gone.at, _END, partial(self._observe_other, gone))

    # ---- pods ----------------------------------------------------------------------------------

    def _observe_pod(self, pod: Pod, now: float) -> None:
        seen = visible_pod(pod, self._profiles)
        self._state.observe(PodObserved(now, pod.metadata.key, seen))

    def _schedule_run(self, live: LivePod, at: float) -> None:
        """Schedule the arrival of the next incarnation of a pod, and what users do to it."""
        number, recorded = live.incarnation, live.recorded
        self._push(at, _ARRIVAL, partial(self._arrive, live, number))
        if recorded is None:
            return
        for when, version in recorded.updates:
            self._push(max(when, at), _UPDATE, partial(self._update_pod, live, number, version))
        is_cancelled = recorded.bound is None and recorded.outcome is PodEnd.DELETED
        if is_cancelled and recorded.ended is not None:
            cancel = partial(self._cancel, live, number)
            self._push(max(recorded.ended, at), _END, cancel)

    def _arrive(self, live: LivePod, incarnation: int, now: float) -> None:
        if live.incarnation != incarnation or live.is_over:
            return
        recorded, last = live.recorded, live.chain.runs[-1]
        pod = recorded.pod if recorded else build_replacement(last.pod, incarnation, now)
        live.pod, key = pod, pod.metadata.key
        self._by_pod[key] = live
        if live.job.recorded.ref.kind == "Pod":
            self._by_ref[pod_ref(key)] = live.job
        if incarnation == 0 and recorded is not None and recorded.was_bound:
            self._observe_running(live, recorded, now)
            return
        self._count_pending(live.job, 1)
        # A scheduler observes pods one by one and places the oldest member of a gang first. Of pods
        # of one time the name would decide, and when they end, other nodes would become free.
        self._arrived_at = max(now, self._arrived_at + _MIN_STEP)
        self._observe_pod(pod, self._arrived_at)

    def _observe_running(self, live: LivePod, recorded: RecordedRun, now: float) -> None:
        """A pod ran when the recording began: it is on its node, if that exists."""
        assert live.pod is not None
        if recorded.node not in self._nodes and self._setup.nodes is not self._workload.nodes:
            # Other nodes than the recorded ones: the pod waits for one of them.
            self._count_pending(live.job, 1)
            self._observe_pod(live.pod, now)
            return
        since = min(recorded.bound or now, self._begin)
        self._occupy(live, recorded.node, since, started_at=recorded.started_at)

    def _update_pod(self, live: LivePod, incarnation: int, version: Pod, now: float) -> None:
        if live.incarnation != incarnation or live.pod is None:
            return
        spec = but(version.spec, node_name=live.node)
        live.pod = but(version, spec=spec, status=live.pod.status)
        self._observe_pod(live.pod, now)

    def _cancel(self, live: LivePod, incarnation: int, now: float) -> None:
        """A user deletes a pod that never got a node in the recording."""
        if live.incarnation == incarnation and live.pod is not None:
            live.progress += 1
            self._leave(live, now)
            self._continue(live, now)

    def _occupy(
        self, live: LivePod, node: str, now: float, *, started_at: str | None = None
    ) -> None:
        """A pod is on its node from now on, and ends when its run time is over."""
        assert live.pod is not None
        live.node, live.bound_at, self._last_event = node, now, max(self._last_event, now)
        live.job.bound += 1
        self._usage.add(self._usage.allocated, live.amounts, 1)
        live.pod = put_on_node(live.pod, node, started_at)
        if started_at is None:
            self._writes.follow(live)
        else:
            self._observe_pod(live.pod, max(now, self._begin))
        if live.progress >= len(live.own_runs):
            return
        end = find_run_end(live, self._history.recording.end)
        if end is not None:
            finish = partial(self._finish, live, live.incarnation)
            place = live.own_runs[live.progress].end_order
            self._push(max(end, self._begin), _END, finish, place=place)

    def _finish(self, live: LivePod, incarnation: int, now: float) -> None:
        """The run of a pod is over."""
        if live.incarnation != incarnation or live.pod is None or not live.node:
            return
        run = live.own_runs[live.progress]
        live.progress += 1
        if run.outcome not in (PodEnd.FAILED, PodEnd.DELETED):
            self._observe_pod(mark_succeeded(live.pod, now), now)
        if run.terminating is not None and run.ended is not None:
            self._cancel_with(live, run.ended, now)
        self._leave(live, now)
        self._continue(live, now)

    def _cancel_with(self, live: LivePod, ended: float, now: float) -> None:
        """Delete the pending pods that the user has deleted together with a running one."""
        for other in live.job.pods:
            if other is live or other.pod is None or other.node:
                continue
            found = other.recorded
            if found is None or found.bound is not None or found.ended is None:
                continue
            if found.outcome is PodEnd.DELETED and abs(found.ended - ended) <= 1.0:
                self._cancel(other, other.incarnation, now)

    def _leave(self, live: LivePod, now: float) -> None:
        """Remove the present pod from the cluster."""
        assert live.pod is not None
        key, job = live.pod.metadata.key, live.job
        self._by_pod.pop(key, None)
        if live.node:
            job.bound -= 1
            self._usage.add(self._usage.allocated, live.amounts, -1)
        else:
            self._count_pending(job, -1)
        live.pod, live.node = None, ""
        self._note_waiting(job)
        self._state.observe(PodObserved(now, key, None))

    def _continue(self, live: LivePod, now: float) -> None:
        """Let the next run of a pod arrive, or end the job with its last pod."""
        live.incarnation += 1
        if live.progress < len(live.own_runs):
            run = live.own_runs[live.progress]
            self._schedule_run(live, now + live.chain.delay_before(run))
            return
        live.is_over = True
        job = live.job
        if not all(one.is_over for one in job.pods):
            self._reduce_members(live, now)
            return
        if all(one.progress >= len(one.own_runs) for one in job.pods):
            job.record.end = self._elapsed(now)
            self._done += 1
        self._remove_groups(job, now)

    def _reduce_members(self, live: LivePod, now: float) -> None:
        """Write how many members are still to run, as the Job controller does."""
        for ref, group in reduce_members(live):
            live.job.groups[ref] = group
            self._observe_group(group, now)

    def _lose_with_node(self, live: LivePod, incarnation: int, now: float) -> None:
        if live.incarnation == incarnation and live.pod is not None:
            self._lose_pod(live, now, is_node_gone=True)

    def _lose_pod(self, live: LivePod, now: float, *, is_node_gone: bool) -> None:
        """A node is lost, or no longer tolerated."""
        live.job.record.disruptions += 1
        seconds = 0.0 if is_node_gone else live.termination_seconds(self._history)
        self._evict(live, now, seconds=seconds, is_lost=True)

    def _evict(self, live: LivePod, now: float, *, seconds: float, is_lost: bool = False) -> None:
        """Request the deletion of a pod, which occupies its node until it is gone."""
        if live.pod is None or live.pod.metadata.deletion_timestamp:
            return
        record = live.job.record
        record.lost_seconds += now - max(live.bound_at, self._begin)
        if seconds > 0:
            meta = but(live.pod.metadata, deletion_timestamp=timestamp(now + seconds))
            live.pod = but(live.pod, metadata=meta)
            self._observe_pod(live.pod, now)
        gone = partial(self._replace_pod, live, live.incarnation, is_lost)
        if seconds > 0:
            self._push(now + seconds, _END, gone)
        else:
            gone(now)

    def _replace_pod(self, live: LivePod, incarnation: int, is_lost: bool, now: float) -> None:
        """An evicted pod is gone; its controller, if it has one, creates another."""
        if live.incarnation != incarnation or live.pod is None:
            return
        self._leave(live, now)
        runs, number = live.chain.runs, live.incarnation
        live.incarnation += 1
        if not live.chain.is_replaced:
            live.is_over = True
            if all(one.is_over for one in live.job.pods):
                self._remove_groups(live.job, now)
            return
        if live.job.bound == 0:
            live.job.record.start = None
        following = runs[number + 1] if number + 1 < len(runs) else None
        recorded = runs[number].outcome if following else None
        at = now + self._history.replacement_seconds
        if following is not None and is_lost and recorded is PodEnd.NODE_LOST:
            # Pods of a lost node are deleted, and replaced, long after it.
            at = max(now, following.arrived)
        elif following is not None and not is_lost and recorded is PodEnd.PREEMPTED:
            at = now + live.chain.delay_before(following)
        self._schedule_run(live, at)

    def _count_pending(self, job: ReplayedJob, change: int) -> None:
        self._pending += change
        job.pending += change
        self._note_waiting(job)

    def _note_waiting(self, job: ReplayedJob) -> None:
        """Count a job as waiting while it has pending pods and none on a node."""
        if job.pending and not job.bound:
            self._waiting.setdefault(id(job), job)
        else:
            self._waiting.pop(id(job), None)

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
            self.trace.attempts.append((self._elapsed(now), entity.ref))
            bindings = decision.bindings if isinstance(decision, Placed) else ()
            choice = compare_nodes(
                bindings, self._by_pod, nodes=self._nodes, snapshot=state.cache.snapshot()
            )
            if not state.commit(entity, decision, now):
                continue
            if isinstance(decision, Placed):
                self._start(bindings, choice, now)
                continue
            self._writes.report(entity, decision, now)
            if isinstance(decision, Preempting):
                victims = [self._by_pod.get(victim.pod) for victim in decision.victims]
                found = [live for live in victims if live is not None]
                for job in {id(live.job): live.job for live in found}.values():
                    job.record.preemptions += 1
                for live in found:
                    self._evict(live, now, seconds=live.termination_seconds(self._history))
        else:
            raise RuntimeError(f"the scheduler does not come to rest at {now - self._begin:g} s")
        first = next(iter(self._waiting.values()), None)
        need = None
        if first is not None:
            waiting = [live.amounts for live in first.pods if live.pod and not live.node]
            need = [sum(column) for column in zip(*waiting, strict=True)]
        self._usage.sample(self._elapsed(now), len(self._waiting), need)

    def _start(self, bindings: Sequence[Binding], choice: NodeChoice, now: float) -> None:
        at = self._elapsed(now)
        for key, _, node in bindings:
            live = self._by_pod[key]
            record, job = live.job.record, live.job
            if record.first_start is None:
                record.first_start = at
            if record.start is None:
                record.start = at
            job.bindings.append(ReplayedBinding(at, node, choice))
            self._started_pods += 1
            self._occupy(live, node, now)
            self._count_pending(job, -1)

    def _note_expected_starts(self) -> None:
        """Keep the first expected start of each reservation, to compare it with the start."""
        reservations = self._state.reservations
        if reservations.version == self._plans_seen:
            return
        self._plans_seen = reservations.version
        for one in reservations.current:
            job = self._by_ref.get(one.ref)
            if job and job.record.expected_start is None and one.expected_start is not None:
                job.record.expected_start = self._elapsed(one.expected_start)
