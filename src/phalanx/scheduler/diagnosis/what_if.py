"""Forecast: what would become of somebody if the schedulers went through their queue now.

`phalanx what-if` hands in a cluster that holds what is asked about, and gets one of three answers:
it fits, it must wait (for whom, or whom it would drive off), or it never fits, even if nothing else
ran. Whoever comes first is placed first, on the same paper. Nothing is guessed: the cycle decides.

Supposition: the same cluster, if something were otherwise. Nodes more, a node less, a quorum.

Each takes a Cluster and gives another; what cannot be supposed is an Absent with its sentence.
`phalanx what-if` puts them together and has `forecast.py` judge. Changes nothing that is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from msgspec.structs import replace as but

from phalanx.api.core import Node, NodeSpec, NodeStatus, Pod, PodStatus, Taint
from phalanx.api.meta import Key, ObjectMeta
from phalanx.api.scheduling import MEMBERS_TO_RUN_ANNOTATION, CompositePodGroup, PodGroup
from phalanx.scheduler.cluster.group_tree import Group, GroupTrees
from phalanx.scheduler.configuration.profiles import DEFAULT_PROFILES, Profiles
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import (
    Binding,
    Decision,
    Impossible,
    IncompleteGroupTree,
    Placed,
    Preempting,
    UnreadyReason,
    Waiting,
)
from phalanx.scheduler.diagnosis.cures import HOSTNAME, group_by_shape, node_shape
from phalanx.scheduler.diagnosis.diagnosis import NOT_READY
from phalanx.scheduler.diagnosis.experiment import ClusterChange, Experiment, KnownCluster
from phalanx.scheduler.diagnosis.queue_order import entity_of_pod
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.explain import describe_refusal, describe_unready, explain, find_smallest
from phalanx.scheduler.queue.cluster_objects import ClusterObjects, creation_time, load_state
from phalanx.scheduler.queue.queued_entity import EntityId
from phalanx.scheduler.search.solver import SolverFunction, no_solver

FITS, NEVER, PREEMPTS = "Fits", "NeverFits", "Preempts"
#: How many decisions may be made to find out who must end.
MAX_DECISIONS = 150


class ForecastVerdict(IntEnum):
    """The answer in one number: the exit code of `phalanx what-if`."""

    FITS = 0
    WAITS = 3
    NEVER = 4


class RunningWorkload(NamedTuple):
    """Somebody who runs, and how many pods of it are meant."""

    ref: EntityId
    pods: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """The answer about one entity."""

    subject: EntityId
    verdict: ForecastVerdict
    reason: str
    message: str
    #: Who gets which node, if it fits.
    bindings: tuple[Binding, ...] = ()
    #: Whose end would let it in, all of them; and whom it would drive off.
    waits_for: tuple[RunningWorkload, ...] = ()
    victims: tuple[RunningWorkload, ...] = ()
    #: Whether fewer might have to end.
    is_cut_short: bool = False
    #: What stands in the way of single members, each sentence once.
    details: tuple[str, ...] = ()


class TriedEntity(NamedTuple):
    """What an entity came to when its turn was."""

    entity: Entity
    decision: Decision


def forecast(
    subjects: Sequence[EntityId], cluster: ClusterObjects, profiles: Profiles = DEFAULT_PROFILES,
    solver: SolverFunction = no_solver, now: float = 0.0,
) -> list[Forecast]:  # fmt: skip
    """What would become of each, in this order."""
    told = _QueueSimulation(cluster, profiles, solver, now)
    told.run(subjects)
    return [told.forecast_for(subject) for subject in subjects]


class _QueueSimulation:
    """One walk through the queue, and what is to be said of it."""

    def __init__(
        self, cluster: ClusterObjects, profiles: Profiles, solver: SolverFunction, now: float
    ) -> None:
        self._cluster, self._solver, self._now = cluster, solver, now
        self._tried: dict[EntityId, TriedEntity] = {}
        self._bound: dict[Key, str] = {}
        self._state = load_state(cluster, profiles)
        self._profiles = self._state.profiles
        self._unready = {
            one.ref: one.unready for one in self._state.queue.list_entities() if one.unready
        }

    def run(self, subjects: Sequence[EntityId]) -> None:
        """Have everybody tried in turn until all have been who are asked about."""
        listed = [place.ref for place in self._state.queue.list_entities()]
        left = {id_ for id_ in subjects if id_ in listed and id_ not in self._unready}
        # Whoever was refused is tried again when others are placed; that must come to an end.
        for _ in range(3 * len(listed)):
            entity = self._state.pop(self._now) if left else None
            if entity is None:
                return
            id_ = EntityId(entity.group is not None, entity.key, entity.is_composite)
            self._try_entity(id_, entity, self._solver if id_ in subjects else no_solver)
            left.discard(id_)

    def _try_entity(self, id_: EntityId, entity: Entity, solver: SolverFunction) -> None:
        policy = self._profiles.policy(entity)
        decision = decide(entity, self._state.cache.snapshot(), policy, solver)
        self._state.commit(entity, decision, self._now)
        if isinstance(decision, Placed):
            self._bound |= {one.pod: one.node for one in decision.bindings}
        known = self._tried.get(id_)
        if known is None or not isinstance(known.decision, Placed):
            self._tried[id_] = TriedEntity(entity, decision)

    def forecast_for(self, subject: EntityId) -> Forecast:
        """The answer about one of them."""
        if unready := self._unready.get(subject):
            return _forecast_not_ready(subject, unready)
        if subject not in self._tried:
            message = "no pod of it waits for a node"
            verdict = ForecastVerdict.FITS if self._is_running(subject) else ForecastVerdict.WAITS
            return Forecast(subject, verdict, NOT_READY, message)
        entity, decision = self._tried[subject]
        match decision:
            case Placed(bindings=bindings):
                message = f"{len(bindings)} of {len(entity.members)} members get a node now"
                return Forecast(subject, ForecastVerdict.FITS, FITS, message, bindings)
            case Impossible():
                return Forecast(subject, ForecastVerdict.NEVER, decision.reason, decision.message)
            case Preempting():
                return self._forecast_preempting(subject, decision)
            case Waiting():
                return self._forecast_waiting(subject, entity, decision)

    def _is_running(self, subject: EntityId) -> bool:
        forest = self._state.cache.snapshot().group_trees
        return any(
            pod.occupied_node and entity_of_pod(pod, forest) == subject
            for pod in self._cluster.pods
        )

    def _forecast_preempting(self, subject: EntityId, decision: Preempting) -> Forecast:
        pods = {pod.metadata.key: pod for pod in self._cluster.pods}
        victims = [pods[victim.pod] for victim in decision.victims if victim.pod in pods]
        holders = _pods_by_workload(victims, self._state.cache.snapshot().group_trees)
        found = tuple(RunningWorkload(id_, len(keys)) for id_, keys in holders.items())
        message = explain(decision).message
        return Forecast(subject, ForecastVerdict.WAITS, PREEMPTS, message, victims=found)

    def _forecast_waiting(self, subject: EntityId, entity: Entity, decision: Waiting) -> Forecast:
        """Who keeps it waiting, or that it would not help if everybody left."""
        trial = self._new_experiment(entity, decision)
        forest = trial.known.cache.snapshot().group_trees
        own = {pod.metadata.key for pod in entity.other_members}
        runs = [
            pod for key, pod in trial.known.pods.items() if pod.occupied_node and key not in own
        ]
        holders = _pods_by_workload([pod for pod in runs if not pod.is_daemon], forest)
        everyone = ClusterChange(ended_pods=tuple(key for keys in holders.values() for key in keys))
        with trial.apply_change(everyone) as snapshot:
            alone = decide(entity, snapshot, trial.policy, self._solver)
        if not isinstance(alone, Placed):
            return _forecast_never_fits(subject, alone)
        needed = _minimal_blockers(trial, list(holders.items()))
        waits_for = tuple(RunningWorkload(id_, len(keys)) for id_, keys in needed)
        return Forecast(
            subject,
            ForecastVerdict.WAITS,
            decision.reason,
            explain(decision).message,
            waits_for=waits_for,
            is_cut_short=trial.is_cut_short,
            details=_refusal_details(decision),
        )

    def _new_experiment(self, entity: Entity, decision: Waiting) -> Experiment:
        """The cluster as it is then: those who came first have their nodes."""
        pods = [self._with_binding(pod) for pod in self._cluster.pods]
        cluster = replace(self._cluster, pods=pods)
        nodes = {node.metadata.name: node for node in cluster.nodes}
        by_key = {pod.metadata.key: pod for pod in pods if not pod.is_terminal}
        known = KnownCluster(load_state(cluster, self._profiles).cache, nodes, by_key)
        trial = Experiment(entity, decision, known, self._profiles.policy(entity), self._solver)
        trial.allow_decisions(MAX_DECISIONS)
        return trial

    def _with_binding(self, pod: Pod) -> Pod:
        node = self._bound.get(pod.metadata.key, "")
        return but(pod, spec=but(pod.spec, node_name=node)) if node else pod


def _forecast_not_ready(subject: EntityId, unready: UnreadyReason) -> Forecast:
    is_wrong = isinstance(unready, IncompleteGroupTree) and unready.is_invalid
    verdict = ForecastVerdict.NEVER if is_wrong else ForecastVerdict.WAITS
    return Forecast(subject, verdict, NOT_READY, describe_unready(unready))


def _forecast_never_fits(subject: EntityId, alone: Decision) -> Forecast:
    """It is refused by a cluster in which nothing else runs: it never fits, if that is sure."""
    message = explain(alone).message
    if isinstance(alone, Waiting) and alone.undecided:
        return Forecast(subject, ForecastVerdict.WAITS, alone.reason, message, is_cut_short=True)
    told = f"even if nothing else ran: {message}"
    return Forecast(subject, ForecastVerdict.NEVER, NEVER, told, details=_refusal_details(alone))


def _refusal_details(decision: Decision) -> tuple[str, ...]:
    refusals = [] if isinstance(decision, Placed) else [one.refusal for one in decision.pods]
    return tuple(dict.fromkeys(describe_refusal(one) for one in refusals if one))


def _pods_by_workload(
    pods: Iterable[Pod], group_tree: GroupTrees
) -> dict[EntityId, tuple[Key, ...]]:
    """Those who run, with their pods; the one that has been there longest first."""
    found: dict[EntityId, tuple[Key, ...]] = {}
    for pod in sorted(pods, key=lambda one: (creation_time(one.metadata), one.metadata.key)):
        home = entity_of_pod(pod, group_tree)
        found[home] = (*found.get(home, ()), pod.metadata.key)
    return found


_WorkloadPods = tuple[EntityId, tuple[Key, ...]]


def _minimal_blockers(
    experiment: Experiment, workloads: list[_WorkloadPods]
) -> list[_WorkloadPods]:
    """Those who must all end, and none of whom need not; who is there longest is thought to first.

    The last of the shortest run of them that is enough is always needed; then again with the rest.
    """
    needed: list[_WorkloadPods] = []
    rest = workloads

    def works(count: int) -> bool:
        keys = tuple(key for _, keys in (*needed, *rest[:count]) for key in keys)
        return experiment.is_placed_after(ClusterChange(ended_pods=keys))

    while not works(0):
        count = find_smallest(works, 1, len(rest))
        if count is None:
            return [*needed, *rest]
        needed.append(rest[count - 1])
        rest = rest[: count - 1]
    return sorted(needed, key=workloads.index)


class UnknownObject(NamedTuple):
    """What was named and is not there."""

    message: str


class NewNodeTemplate(NamedTuple):
    """What new nodes are like."""

    allocatable: Mapping[str, str]
    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()


def node_template(cluster: ClusterObjects, name: str = "") -> NewNodeTemplate | UnknownObject:
    """A node that is there, or else one of the sort that there is most of."""
    nodes = {node.metadata.name: node for node in cluster.nodes}
    if name and name not in nodes:
        return UnknownObject(f"there is no node {name} that new ones could be like")
    if not nodes:
        return UnknownObject(
            "there is no node yet that new ones could be like; say --add-nodes N:cpu=8"
        )
    most = max(group_by_shape(nodes.values()).values(), key=len)[0]
    shape = node_shape(nodes[name] if name else most)
    room = {what: f"{n}m" if what == "cpu" else str(n) for what, n in shape.allocatable}
    return NewNodeTemplate(room, dict(shape.labels), shape.taints)


def with_nodes(cluster: ClusterObjects, count: int, template: NewNodeTemplate) -> ClusterObjects:
    """So many more nodes, empty and ready."""
    there = {node.metadata.name for node in cluster.nodes}
    names = (f"new-{n}" for n in range(len(there) + count))
    free = [name for name in names if name not in there][:count]
    return replace(cluster, nodes=[*cluster.nodes, *(_new_node(name, template) for name in free)])


def _new_node(name: str, template: NewNodeTemplate) -> Node:
    return Node(
        ObjectMeta(name=name, uid=name, labels={**template.labels, HOSTNAME: name}),
        NodeSpec(taints=template.taints),
        NodeStatus(allocatable=dict(template.allocatable)),
    )


def without_node(cluster: ClusterObjects, name: str) -> ClusterObjects | UnknownObject:
    """One node less. Its pods wait again if somebody would make them again, and are gone if not."""
    nodes = [node for node in cluster.nodes if node.metadata.name != name]
    if len(nodes) == len(list(cluster.nodes)):
        return UnknownObject(f"there is no node {name} to drain; see kubectl get nodes")
    pods = [_recreated_pod(pod) if pod.occupied_node == name else pod for pod in cluster.pods]
    return replace(cluster, nodes=nodes, pods=[pod for pod in pods if pod is not None])


def _recreated_pod(pod: Pod) -> Pod | None:
    """What comes in place of a pod that was evicted."""
    meta = pod.metadata
    is_lost = pod.is_daemon or meta.deletion_timestamp
    if is_lost or not any(one.controller for one in meta.owner_references):
        return None
    return Pod(but(meta, uid=f"{meta.uid}-again"), but(pod.spec, node_name=""), PodStatus())


def with_min_count(
    cluster: ClusterObjects, namespace: str, name: str, count: int
) -> ClusterObjects | UnknownObject:
    """Another `minCount` for a gang, by its name, its Workload's, or that of what it was made for.

    For a gang of groups it is `minGroupCount`.
    """
    changed = [
        _group_with_min_count(group, count) if _matches_name(group, namespace, name) else group
        for group in cluster.groups
    ]
    if all(new is old for new, old in zip(changed, cluster.groups, strict=True)):
        return UnknownObject(f"there is no gang {Key(namespace, name)}; see phalanx queue")
    return replace(cluster, groups=changed)


def _matches_name(group: Group, namespace: str, name: str) -> bool:
    meta, ref = group.metadata, group.spec.workload_ref
    owners = [one.name for one in meta.owner_references if one.controller]
    names = (meta.name, ref.workload_name if ref else "", *owners)
    return meta.namespace == namespace and name in names


def _group_with_min_count(group: Group, count: int) -> Group:
    policy = group.spec.scheduling_policy
    if isinstance(group, CompositePodGroup):
        if policy.gang is None:
            return group
        own = but(group.spec.scheduling_policy, gang=but(policy.gang, min_group_count=count))
        return but(group, spec=but(group.spec, scheduling_policy=own))
    return _gang_with_min_count(group, count)


def _gang_with_min_count(group: PodGroup, count: int) -> PodGroup:
    policy = group.spec.scheduling_policy
    if policy.gang is None:
        return group
    notes = {k: v for k, v in group.metadata.annotations.items() if k != MEMBERS_TO_RUN_ANNOTATION}
    own = but(policy, gang=but(policy.gang, min_count=count))
    meta = but(group.metadata, annotations=notes)
    return but(group, metadata=meta, spec=but(group.spec, scheduling_policy=own))
