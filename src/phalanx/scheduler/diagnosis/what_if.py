"""Forecasts what becomes of pending pods and groups, and changes a cluster hypothetically.

    ClusterObjects ─▶ with_nodes, without_node, with_min_count ─▶ ClusterObjects ─▶ forecast

`forecast` lets a scheduler work through its queue once, on a copy of the cluster. Entities ahead in
the queue are placed first. The answer for each subject is one of three:

    FITS    the subject gets nodes now; the bindings say which
    WAITS   it waits for workloads to end, would preempt others, or is not ready
    NEVER   it does not fit even if nothing else runs

`phalanx what-if` prints forecasts. Nothing is bound, evicted or written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from msgspec.structs import replace as but

from phalanx.api.core import Node, NodeSpec, NodeStatus, Pod, PodStatus, Taint
from phalanx.api.meta import POD_KIND, Key, ObjectMeta, Ref
from phalanx.api.scheduling import MEMBERS_TO_RUN_ANNOTATION, CompositePodGroup
from phalanx.scheduler.cluster.group_tree import Group, GroupTrees
from phalanx.scheduler.cluster.snapshot import Snapshot
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import (
    Binding,
    Decision,
    Impossible,
    IncompleteGroupTree,
    Placed,
    Preempting,
    Waiting,
)
from phalanx.scheduler.diagnosis.capacity_evidence import collect_evidence, summarize_refusal
from phalanx.scheduler.diagnosis.cures import HOSTNAME, group_by_shape, node_shape
from phalanx.scheduler.diagnosis.diagnosis import NOT_READY
from phalanx.scheduler.diagnosis.expected_starts import (
    MAX_PLANNED,
    ExpectedStart,
    expected_starts,
    restore_written_reservations,
)
from phalanx.scheduler.diagnosis.experiment import (
    ClusterChange,
    Experiment,
    KnownCluster,
    find_smallest,
)
from phalanx.scheduler.diagnosis.queue_order import entity_of_pod, pods_with_entities
from phalanx.scheduler.diagnosis.start_forecast import add_ranges
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.explain import describe_refusal, describe_unready, explain
from phalanx.scheduler.policy import DEFAULT_PROFILES, Profiles, SchedulerPolicy
from phalanx.scheduler.queue.scheduler_state import ClusterObjects, creation_time, load_state
from phalanx.scheduler.search.solver import SolverFunction, no_solver

FITS, NEVER, PREEMPTS = "Fits", "NeverFits", "Preempts"
#: How many decisions may be made to find the workloads that must end.
MAX_DECISIONS = 150
#: How the text about an entity that is alone in the cluster begins.
_ALONE = "even if nothing else ran"


class ForecastVerdict(IntEnum):
    """The answer in a word. The value is the exit code of `phalanx what-if`."""

    FITS = 0
    WAITS = 3
    NEVER = 4


class RunningWorkload(NamedTuple):
    """A workload that runs, and the number of its pods."""

    ref: Ref
    pods: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """What becomes of one pod, group or tree of groups."""

    subject: Ref
    verdict: ForecastVerdict
    reason: str
    message: str
    #: The node of each member, if it fits.
    bindings: tuple[Binding, ...] = ()
    #: The workloads that must all end before it fits, and those that it would preempt.
    waits_for: tuple[RunningWorkload, ...] = ()
    victims: tuple[RunningWorkload, ...] = ()
    #: Whether the search was cut short: fewer workloads may have to end.
    is_cut_short: bool = False
    #: Why nodes refuse members, each sentence once.
    details: tuple[str, ...] = ()
    #: When it is expected to start, if it waits and the start was planned.
    expected: ExpectedStart | None = None
    #: How many members of a group fit and what the nodes lack; "" if the message says enough.
    summary: str = ""


class AttemptedEntity(NamedTuple):
    """An entity, and the decision of its last cycle."""

    entity: Entity
    decision: Decision


def forecast(
    subjects: Sequence[Ref],
    cluster: ClusterObjects,
    profiles: Profiles = DEFAULT_PROFILES,
    *,
    solver: SolverFunction = no_solver,
    now: float = 0.0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Forecast]:
    """Forecast each subject, in the given order; `on_progress` gets how many of them are done."""
    simulation = _QueueSimulation(cluster, profiles, solver=solver, now=now)
    simulation.run(subjects)
    found = list[Forecast]()
    for subject in subjects:
        on_progress(len(found), len(subjects))
        found.append(simulation.forecast_for(subject))
    if not any(one.verdict is ForecastVerdict.WAITS for one in found):
        return found
    starts = add_ranges(expected_starts(cluster, profiles, now), cluster, profiles, now=now)
    return [
        replace(one, expected=starts.get(one.subject))
        if one.verdict is ForecastVerdict.WAITS
        else one
        for one in found
    ]


def find_impossible(
    refs: Collection[Ref],
    cluster: ClusterObjects,
    profiles: Profiles = DEFAULT_PROFILES,
    *,
    now: float = 0.0,
) -> frozenset[Ref]:
    """Return those of the waiting entities that would not fit even if nothing else ran.

    Only the first `MAX_PLANNED` are examined; an undecided one is not among the results.
    """
    refused = _decide_alone(list(refs)[:MAX_PLANNED], cluster, profiles, now=now)
    return frozenset(entity.ref for entity, *_ in refused)


def describe_impossible(
    ref: Ref,
    cluster: ClusterObjects,
    profiles: Profiles = DEFAULT_PROFILES,
    *,
    now: float = 0.0,
) -> str:
    """Say why a waiting entity would not fit even if nothing else ran; "" if it would."""
    for entity, decision, snapshot, policy in _decide_alone([ref], cluster, profiles, now=now):
        summary = _summarize(entity, decision, snapshot, policy=policy)
        return summary or explain(decision).message
    return ""


def _decide_alone(
    refs: Collection[Ref], cluster: ClusterObjects, profiles: Profiles, *, now: float
) -> Iterator[tuple[Entity, Decision, Snapshot, SchedulerPolicy]]:
    """Decide about each entity as if nothing else ran, and yield those that are refused."""
    alone = [
        pod
        for ref, pod in pods_with_entities(cluster)
        if not pod.occupied_node or pod.is_daemon or ref in refs
    ]
    state = load_state(replace(cluster, pods=alone), profiles)
    snapshot = state.cache.snapshot()
    for ref in refs:
        entity = state.queue.waiting_entity(ref, now)
        if entity is None:
            continue
        policy = state.profiles.policy(entity)
        decision = decide(entity, snapshot, policy)
        is_undecided = isinstance(decision, Waiting) and decision.undecided
        if not isinstance(decision, Placed) and not is_undecided:
            yield entity, decision, snapshot, policy


class _QueueSimulation:
    """One pass through the scheduling queue."""

    def __init__(
        self, cluster: ClusterObjects, profiles: Profiles, *, solver: SolverFunction, now: float
    ) -> None:
        self._cluster, self._solver, self._now = cluster, solver, now
        self._attempted: dict[Ref, AttemptedEntity] = {}
        self._bound: dict[Key, str] = {}
        self._state = load_state(cluster, profiles)
        restore_written_reservations(self._state, cluster, now)
        self._profiles = self._state.profiles
        self._unready = {
            info.ref: info.unready for info in self._state.queue.list_entities() if info.unready
        }

    def run(self, subjects: Sequence[Ref]) -> None:
        """Run cycles in queue order until every subject has been attempted."""
        listed = [info.ref for info in self._state.queue.list_entities()]
        pending = {ref for ref in subjects if ref in listed and ref not in self._unready}
        # A refused entity is attempted again after others are placed: bound the number of cycles.
        for _ in range(3 * len(listed)):
            entity = self._state.pop(self._now) if pending else None
            if entity is None:
                return
            solver = self._solver if entity.ref in subjects else no_solver
            self._attempt(entity, solver)
            pending.discard(entity.ref)

    def _attempt(self, entity: Entity, solver: SolverFunction) -> None:
        policy, snapshot = self._profiles.policy(entity), self._state.cache.snapshot()
        holds = self._state.reservations.holds_for(entity, snapshot, self._now)
        decision = decide(entity, snapshot, policy, solver=solver, holds=holds)
        self._state.commit(entity, decision, self._now)
        if isinstance(decision, Placed):
            self._bound |= {binding.pod: binding.node for binding in decision.bindings}
        previous = self._attempted.get(entity.ref)
        if previous is None or not isinstance(previous.decision, Placed):
            self._attempted[entity.ref] = AttemptedEntity(entity, decision)

    def forecast_for(self, subject: Ref) -> Forecast:
        """Return the forecast for one subject, after `run`."""
        if unready := self._unready.get(subject):
            is_invalid = isinstance(unready, IncompleteGroupTree) and unready.is_invalid
            verdict = ForecastVerdict.NEVER if is_invalid else ForecastVerdict.WAITS
            return Forecast(subject, verdict, NOT_READY, message=describe_unready(unready))
        if subject not in self._attempted:
            message = "no pod waits for a node"
            verdict = ForecastVerdict.FITS if self._is_running(subject) else ForecastVerdict.WAITS
            return Forecast(subject, verdict, NOT_READY, message=message)
        entity, decision = self._attempted[subject]
        match decision:
            case Placed(bindings=bindings):
                message = f"{len(bindings)} of {len(entity.members)} members get a node now"
                return Forecast(
                    subject, ForecastVerdict.FITS, FITS, message=message, bindings=bindings
                )
            case Impossible():
                return Forecast(
                    subject, ForecastVerdict.NEVER, decision.reason, message=decision.message
                )
            case Preempting():
                return self._forecast_preempting(subject, decision)
            case Waiting():
                return self._forecast_waiting(subject, entity, decision)

    def _is_running(self, subject: Ref) -> bool:
        group_trees = self._state.cache.snapshot().group_trees
        return any(
            pod.occupied_node and entity_of_pod(pod, group_trees) == subject
            for pod in self._cluster.pods
        )

    def _forecast_preempting(self, subject: Ref, decision: Preempting) -> Forecast:
        pods = {pod.metadata.key: pod for pod in self._cluster.pods}
        victims = [pods[victim.pod] for victim in decision.victims if victim.pod in pods]
        workloads = _pods_by_workload(victims, self._state.cache.snapshot().group_trees)
        evicted = tuple(RunningWorkload(ref, len(keys)) for ref, keys in workloads.items())
        message = explain(decision).message
        return Forecast(
            subject,
            ForecastVerdict.WAITS,
            PREEMPTS,
            message=message,
            victims=evicted,
            summary="it fits after less important workloads are preempted.",
        )

    def _forecast_waiting(self, subject: Ref, entity: Entity, decision: Waiting) -> Forecast:
        """Find the workloads that must end, or find that it does not fit even without them."""
        experiment = self._new_experiment(entity, decision)
        members = {pod.metadata.key for pod in entity.other_members}
        running = [
            pod
            for key, pod in experiment.known.pods.items()
            if pod.occupied_node and key not in members and not pod.is_daemon
        ]
        workloads = _pods_by_workload(running, experiment.known.cache.snapshot().group_trees)
        all_ended = ClusterChange(ended_pods=tuple(pod.metadata.key for pod in running))
        policy = experiment.policy
        with experiment.apply_change(all_ended) as snapshot:
            alone = decide(entity, snapshot, policy, solver=self._solver)
            if not isinstance(alone, Placed):
                summary = _summarize(entity, alone, snapshot, policy=policy, condition=_ALONE)
                return _forecast_never_fits(subject, alone, summary)
        blockers = _minimal_blockers(experiment, list(workloads.items()))
        waits_for = tuple(RunningWorkload(ref, len(keys)) for ref, keys in blockers)
        present = experiment.known.cache.snapshot()
        return Forecast(
            subject,
            ForecastVerdict.WAITS,
            decision.reason,
            message=explain(decision).message,
            waits_for=waits_for,
            is_cut_short=experiment.is_cut_short,
            details=_refusal_details(decision),
            summary=_summarize(entity, decision, present, policy=policy),
        )

    def _new_experiment(self, entity: Entity, decision: Waiting) -> Experiment:
        """Experiments run on the cluster in which entities ahead in the queue have their nodes."""
        pods = [
            but(pod, spec=but(pod.spec, node_name=node))
            if (node := self._bound.get(pod.metadata.key))
            else pod
            for pod in self._cluster.pods
        ]
        cluster = replace(self._cluster, pods=pods)
        nodes = {node.metadata.name: node for node in cluster.nodes}
        by_key = {pod.metadata.key: pod for pod in pods if not pod.is_terminal}
        known = KnownCluster(load_state(cluster, self._profiles).cache, nodes, by_key)
        policy = self._profiles.policy(entity)
        experiment = Experiment(entity, decision, known, policy=policy, solver=self._solver)
        experiment.allow_decisions(MAX_DECISIONS)
        return experiment


def _summarize(
    entity: Entity,
    decision: Decision,
    snapshot: Snapshot,
    *,
    policy: SchedulerPolicy,
    condition: str = "",
) -> str:
    """Say why a group is refused in the words of users; "" for a pod, and beside a reservation."""
    is_held = isinstance(decision, Waiting) and bool(decision.held_by)
    if entity.ref.kind == POD_KIND or is_held or isinstance(decision, Impossible):
        return ""
    evidence = collect_evidence(entity, snapshot, policy)
    bound = len(entity.other_members)
    return summarize_refusal(decision, evidence, bound=bound, condition=condition)


def _forecast_never_fits(subject: Ref, alone: Decision, summary: str) -> Forecast:
    """The forecast of an entity that is refused although nothing else runs."""
    message = explain(alone).message
    if isinstance(alone, Waiting) and alone.undecided:
        return Forecast(
            subject,
            ForecastVerdict.WAITS,
            alone.reason,
            message=message,
            is_cut_short=True,
            summary=summary,
        )
    return Forecast(
        subject,
        ForecastVerdict.NEVER,
        NEVER,
        message=f"{_ALONE}: {message}",
        details=_refusal_details(alone),
        summary=summary,
    )


def _refusal_details(decision: Decision) -> tuple[str, ...]:
    refusals = (
        [] if isinstance(decision, Placed) else [refusal.refusal for refusal in decision.pods]
    )
    return tuple(dict.fromkeys(describe_refusal(refusal) for refusal in refusals if refusal))


def _pods_by_workload(pods: Iterable[Pod], group_tree: GroupTrees) -> dict[Ref, tuple[Key, ...]]:
    """Running workloads with their pods, the oldest first."""
    keys_by_workload: dict[Ref, tuple[Key, ...]] = {}
    for pod in sorted(pods, key=lambda p: (creation_time(p.metadata), p.metadata.key)):
        ref = entity_of_pod(pod, group_tree)
        keys_by_workload[ref] = (*keys_by_workload.get(ref, ()), pod.metadata.key)
    return keys_by_workload


_WorkloadPods = tuple[Ref, tuple[Key, ...]]


def _minimal_blockers(
    experiment: Experiment, workloads: list[_WorkloadPods]
) -> list[_WorkloadPods]:
    """A minimal set of workloads whose end lets the entity be placed; old ones preferred.

    The last workload of the shortest sufficient prefix is necessary. Repeat with those before it.
    """
    needed: list[_WorkloadPods] = []
    candidates = workloads

    def suffices(count: int) -> bool:
        keys = tuple(key for _, keys in (*needed, *candidates[:count]) for key in keys)
        return experiment.is_placed_after(ClusterChange(ended_pods=keys))

    while not suffices(0):
        count = find_smallest(suffices, 1, len(candidates))
        if count is None:
            return [*needed, *candidates]
        needed.append(candidates[count - 1])
        candidates = candidates[: count - 1]
    return sorted(needed, key=workloads.index)


class UnknownObject(NamedTuple):
    """A change names an object that does not exist."""

    message: str


class NewNodeTemplate(NamedTuple):
    """The resources, labels and taints of new nodes."""

    allocatable: Mapping[str, str]
    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()


def node_template(cluster: ClusterObjects, name: str = "") -> NewNodeTemplate | UnknownObject:
    """Describe new nodes like the named one, or like the most frequent shape of node."""
    nodes = {node.metadata.name: node for node in cluster.nodes}
    if name and name not in nodes:
        return UnknownObject(f"there is no node {name} to copy; see kubectl get nodes")
    if not nodes:
        return UnknownObject(
            "the cluster has no node to copy; give the resources of new nodes, such as cpu=8"
        )
    most = max(group_by_shape(nodes.values()).values(), key=len)[0]
    shape = node_shape(nodes[name] if name else most)
    amounts = {
        resource: f"{amount}m" if resource == "cpu" else str(amount)
        for resource, amount in shape.allocatable
    }
    return NewNodeTemplate(amounts, dict(shape.labels), shape.taints)


def with_nodes(cluster: ClusterObjects, count: int, template: NewNodeTemplate) -> ClusterObjects:
    """Add empty, ready nodes."""
    used_names = {node.metadata.name for node in cluster.nodes}
    names = (f"new-{n}" for n in range(len(used_names) + count))
    new_names = [name for name in names if name not in used_names][:count]
    nodes = [*cluster.nodes, *(_new_node(name, template) for name in new_names)]
    return replace(cluster, nodes=nodes, is_hypothetical=True)


def _new_node(name: str, template: NewNodeTemplate) -> Node:
    return Node(
        ObjectMeta(name=name, uid=name, labels={**template.labels, HOSTNAME: name}),
        NodeSpec(taints=template.taints),
        NodeStatus(allocatable=dict(template.allocatable)),
    )


def without_node(cluster: ClusterObjects, name: str) -> ClusterObjects | UnknownObject:
    """Remove a node. Its pods wait again if a controller would recreate them."""
    nodes = [node for node in cluster.nodes if node.metadata.name != name]
    if len(nodes) == len(list(cluster.nodes)):
        return UnknownObject(f"there is no node {name} to drain; see kubectl get nodes")
    pods = [_recreate_pod(pod) if pod.occupied_node == name else pod for pod in cluster.pods]
    left = [pod for pod in pods if pod is not None]
    return replace(cluster, nodes=nodes, pods=left, is_hypothetical=True)


def _recreate_pod(pod: Pod) -> Pod | None:
    """The pod that its controller creates after an eviction; None if there is none."""
    meta = pod.metadata
    is_lost = pod.is_daemon or meta.deletion_timestamp
    if is_lost or meta.controller is None:
        return None
    return Pod(but(meta, uid=f"{meta.uid}-again"), but(pod.spec, node_name=""), PodStatus())


def with_min_count(
    cluster: ClusterObjects, namespace: str, name: str, *, count: int
) -> ClusterObjects | UnknownObject:
    """Change minCount of a gang, or minGroupCount of a gang of groups.

    The gang is named by itself, by its Workload, or by the object that owns it.
    """
    changed = [
        _group_with_min_count(group, count) if _matches_name(group, namespace, name) else group
        for group in cluster.groups
    ]
    if all(new is old for new, old in zip(changed, cluster.groups, strict=True)):
        return UnknownObject(f"there is no gang {Key(namespace, name)}; see phalanx queue")
    return replace(cluster, groups=changed, is_hypothetical=True)


def _matches_name(group: Group, namespace: str, name: str) -> bool:
    meta, ref = group.metadata, group.spec.workload_ref
    owner = meta.controller.name if meta.controller else ""
    names = (meta.name, ref.workload_name if ref else "", owner)
    return meta.namespace == namespace and name in names


def _group_with_min_count(group: Group, count: int) -> Group:
    if isinstance(group, CompositePodGroup):
        composite = group.spec.scheduling_policy
        if composite.gang is None:
            return group
        gang_of_groups = but(composite, gang=but(composite.gang, min_group_count=count))
        return but(group, spec=but(group.spec, scheduling_policy=gang_of_groups))
    policy = group.spec.scheduling_policy
    if policy.gang is None:
        return group
    annotations = {
        k: v for k, v in group.metadata.annotations.items() if k != MEMBERS_TO_RUN_ANNOTATION
    }
    gang = but(policy, gang=but(policy.gang, min_count=count))
    meta = but(group.metadata, annotations=annotations)
    return but(group, metadata=meta, spec=but(group.spec, scheduling_policy=gang))
