"""The decision core of one scheduler in virtual time, where every binding succeeds at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from phalanx.api.batch import EXPECTED_RUN_TIME_ANNOTATION, JobRunTime
from phalanx.api.core import Node, Pod
from phalanx.api.meta import Key, OwnerReference, timestamp
from phalanx.api.scheduling import PodGroup
from phalanx.scheduler.cluster.group_tree import Group, group_ref
from phalanx.scheduler.decision import Decision, Placed, Preempting
from phalanx.scheduler.explain import explain
from phalanx.scheduler.plugins.settings_plugins import ReservationArgs
from phalanx.scheduler.policy import DEFAULT_PROFILES, Profiles, SchedulerPolicy
from phalanx.scheduler.queue.decision_log import (
    CompositePodGroupObserved,
    DecisionLogRecord,
    JobObserved,
    NodeObserved,
    PodGroupObserved,
    PodObserved,
)
from phalanx.scheduler.queue.scheduler_state import SchedulerState
from phalanx.scheduler.reservation.reservation import Reservation
from tests.scheduler.builders import NAMESPACE, gang, key, pod


def profiles(**args: object) -> Profiles:
    """One profile with these arguments of the plugin Reservation."""
    policy = SchedulerPolicy(reservation=ReservationArgs(**args))  # type: ignore[arg-type]
    return Profiles({"default-scheduler": policy})


def ending_pod(
    name: str,
    group: str = "",
    *,
    on: str = "",
    cpu: str = "4",
    priority: int = 0,
    seconds: int | None = None,
    expected: str = "",
    owner: OwnerReference | None = None,
    started: str | None = None,
    **extra: object,
) -> Pod:
    """A pod that ends: after so many seconds, or when the annotation expects it to."""
    made = pod(name, group, on=on, cpu=cpu, priority=priority, **extra)  # type: ignore[arg-type]
    meta = replace(
        made.metadata,
        annotations={EXPECTED_RUN_TIME_ANNOTATION: expected} if expected else {},
        owner_references=(owner,) if owner else (),
    )
    spec = replace(made.spec, restart_policy="Never", active_deadline_seconds=seconds)
    return replace(made, metadata=meta, spec=spec, status=replace(made.status, start_time=started))


def job_owner(name: str) -> OwnerReference:
    return OwnerReference("batch/v1", "Job", name, uid=f"uid-{name}", controller=True)


class VirtualScheduler:
    """A cluster that is scheduled whenever `run_pass` is called."""

    def __init__(
        self,
        nodes: Iterable[Node] = (),
        profiles: Profiles = DEFAULT_PROFILES,
        recorder: Callable[[DecisionLogRecord], None] | None = None,
    ) -> None:
        self.state, self.now = SchedulerState(profiles, recorder), 0.0
        #: The pods of each placed entity, and the last decision of each entity.
        self.bound: dict[str, list[Pod]] = {}
        self.decisions: dict[str, Decision] = {}
        self.on_placed: Callable[[str, list[Pod]], None] = lambda name, pods: None
        #: How long victims terminate.
        self.grace_seconds = 0.0
        #: Called after every commit.
        self.on_step: Callable[[], None] = lambda: None
        self.add_nodes(*nodes)

    def add_nodes(self, *nodes: Node) -> None:
        for one in nodes:
            self.state.observe(NodeObserved(self.now, one.metadata.name, one))

    def run_pods(self, *pods: Pod) -> None:
        """Observe pods that run on their nodes."""
        for one in pods:
            self.state.observe(PodObserved(self.now, one.metadata.key, one))
            self.bound.setdefault(one.metadata.name, []).append(one)

    def add_group(self, group: Group) -> None:
        ref = group_ref(group)
        if isinstance(group, PodGroup):
            self.state.observe(PodGroupObserved(self.now, ref.key, group))
        else:
            self.state.observe(CompositePodGroupObserved(self.now, ref.key, group))

    def add_job(self, name: str, job: JobRunTime | None) -> None:
        self.state.observe(JobObserved(self.now, key(name), job))

    def submit(self, name: str, pods: Sequence[Pod], group: PodGroup | None = None) -> None:
        """Submit a gang of these pods."""
        self.add_group(group or gang(name, len(pods), priority=pods[0].spec.priority))
        for one in pods:
            self.state.observe(PodObserved(self.now, one.metadata.key, one))

    def submit_pods(self, *pods: Pod) -> None:
        for one in pods:
            self.state.observe(PodObserved(self.now, one.metadata.key, one))

    def end(self, name: str, phase: str = "") -> None:
        """The pods of an entity end: they are deleted, or have a final phase."""
        for one in self.bound.pop(name):
            ended = replace(one, status=replace(one.status, phase=phase)) if phase else None
            self.state.observe(PodObserved(self.now, one.metadata.key, ended))
        self.state.observe(PodGroupObserved(self.now, Key(NAMESPACE, name), None))

    def run_pass(self, now: float | None = None) -> list[str]:
        """Plan, pop, decide and commit until nothing is left; returns what was placed."""
        self.now = self.now if now is None else now
        placed = []
        while entity := self.state.pop_after_planning(self.now):
            decision = self.state.decide(entity)
            name = entity.key.name
            self.decisions[name] = decision
            self.state.commit(entity, decision, self.now)
            if isinstance(decision, Placed):
                nodes = {binding.pod: binding.node for binding in decision.bindings}
                pods = [
                    replace(one.pod, spec=replace(one.pod.spec, node_name=nodes[key]))
                    for one in entity.members
                    if (key := one.pod.metadata.key) in nodes
                ]
                for one in pods:
                    self.state.observe(PodObserved(self.now, one.metadata.key, one))
                self.bound.setdefault(name, []).extend(pods)
                placed.append(name)
                self.on_placed(name, pods)
            elif isinstance(decision, Preempting):
                for victim in decision.victims:
                    self.evict(victim.pod)
            self.on_step()
        return placed

    def evict(self, victim: Key) -> None:
        """Delete a pod; with a grace period it terminates and stays."""
        left = None
        for name, pods in tuple(self.bound.items()):
            for one in pods:
                if one.metadata.key == victim and self.grace_seconds:
                    until = timestamp(self.now + self.grace_seconds)
                    left = replace(one, metadata=replace(one.metadata, deletion_timestamp=until))
            self.bound[name] = [one for one in pods if one.metadata.key != victim]
            if not self.bound[name]:
                del self.bound[name]
        self.state.observe(PodObserved(self.now, victim, left))

    def message(self, name: str) -> str:
        return explain(self.decisions[name]).message

    @property
    def reservations(self) -> dict[str, Reservation]:
        return {one.ref.name: one for one in self.state.reservations.current}
