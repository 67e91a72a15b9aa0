"""The plan of the DaemonSet controller: pods per node, rolling updates and the status.

Pure functions of a DaemonSet, its pods and the nodes. A pod belongs to the node that it is bound
to, or that its node affinity names.

    node                                pod                         action
    eligible                            none                        create
    eligible, or tainted NoSchedule     failed or succeeded         delete; a new one follows
                                        several                     delete all but the oldest
    not matching, or tainted NoExecute  any                         delete
    gone                                not bound                   delete
    gone                                bound                       the pod garbage collector's

A rolling update deletes old pods while at most maxUnavailable nodes lack an available pod; pods
that are not available go first. With maxSurge it creates the new pod beside the old one, and
deletes the old one when the new one is available.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import msgspec

from phalanx.api.apps import REVISION_LABEL, DaemonSet
from phalanx.api.core import Node, Pod
from phalanx.api.defaults.workloads import TEMPLATE_GENERATION
from phalanx.api.formats import resolve_int_or_percent
from phalanx.api.kinds import DAEMON_SET
from phalanx.api.meta import ObjectMeta
from phalanx.api.wire import Object
from phalanx.controllers.pod_ownership import build_template_pod, seconds_until_available
from phalanx.scheduler.cluster.node_constraints import NodeConstraints, node_constraints_of

#: The label of a pod with the count of the template's changes.
TEMPLATE_GENERATION_LABEL = "pod-template-generation"
_NO_SCHEDULE, _NO_EXECUTE = "NoSchedule", "NoExecute"
#: The taints that every daemon pod tolerates.
_TOLERATED_TAINTS = (
    ("node.kubernetes.io/not-ready", _NO_EXECUTE),
    ("node.kubernetes.io/unreachable", _NO_EXECUTE),
    ("node.kubernetes.io/disk-pressure", _NO_SCHEDULE),
    ("node.kubernetes.io/memory-pressure", _NO_SCHEDULE),
    ("node.kubernetes.io/pid-pressure", _NO_SCHEDULE),
    ("node.kubernetes.io/unschedulable", _NO_SCHEDULE),
)
_NETWORK_TAINT = ("node.kubernetes.io/network-unavailable", _NO_SCHEDULE)


@dataclass(frozen=True, slots=True)
class DaemonSetState:
    """What a sync reads: a DaemonSet, the pods that it controls, all nodes, the hash of its
    template, and the node of each failed pod that must wait before it is replaced.
    """

    daemon_set: DaemonSet
    pods: Sequence[Pod]
    nodes: Mapping[str, Node]
    revision_hash: str
    now: float
    delayed_nodes: frozenset[str] = frozenset()

    def seconds_until_available(self, pod: Pod) -> float | None:
        """Return when a pod becomes available: 0 if it is, None if it is not ready."""
        return seconds_until_available(pod, self.daemon_set.spec.min_ready_seconds, self.now)

    def is_available(self, pod: Pod) -> bool:
        """Whether a pod counts as available."""
        return self.seconds_until_available(pod) == 0.0

    def is_updated(self, pod: Pod) -> bool:
        """Whether a pod is of the latest template."""
        return pod.metadata.labels.get(REVISION_LABEL) == self.revision_hash


@dataclass(slots=True)
class DaemonPlan:
    """Nodes that get a pod, pods to delete, and pods that ended and are deleted for that."""

    nodes: list[str] = field(default_factory=list)
    deletions: list[Pod] = field(default_factory=list)
    ended: list[Pod] = field(default_factory=list)


class NodeEligibility:
    """Which nodes should run the pod of a DaemonSet, and which may keep it."""

    def __init__(self, daemon_set: DaemonSet) -> None:
        spec = build_daemon_pod(daemon_set, "", revision_hash="")["spec"]
        self._node_name: str = spec.get("nodeName", "")
        template = (daemon_set.spec.template.get("spec") or {}).get("affinity")
        affinity = {"affinity": template} if template else {"affinity": None}
        pod = msgspec.convert(
            {"metadata": {"name": "daemon"}, "spec": {**spec, **affinity}}, Pod, strict=False
        )
        self._constraints: NodeConstraints = node_constraints_of(pod)

    def should_run(self, node: Node) -> bool:
        """Whether the node should run the pod."""
        return self._matches(node) and not self._untolerated(node, (_NO_SCHEDULE, _NO_EXECUTE))

    def may_continue(self, node: Node) -> bool:
        """Whether the node may keep a pod that it runs."""
        return self._matches(node) and not self._untolerated(node, (_NO_EXECUTE,))

    def _matches(self, node: Node) -> bool:
        meta = node.metadata
        if self._node_name and self._node_name != meta.name:
            return False
        return self._constraints.matches(meta.name, meta.labels)

    def _untolerated(self, node: Node, effects: tuple[str, ...]) -> bool:
        taints = tuple(taint for taint in node.spec.taints if taint.effect in effects)
        return bool(self._constraints.untolerated_taints(taints))


def target_node(pod: Pod) -> str:
    """Return the node of a daemon pod: where it is bound, or what its affinity names."""
    if pod.spec.node_name:
        return pod.spec.node_name
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    for term in required.node_selector_terms if required else ():
        for one in term.match_fields:
            if one.key == "metadata.name" and one.operator == "In" and len(one.values) == 1:
                return one.values[0]
    return ""


def build_daemon_pod(daemon_set: DaemonSet, node: str, *, revision_hash: str) -> Object:
    """Build the pod of a node: bound to it by affinity, tolerating the taints of node problems."""
    meta = daemon_set.metadata
    pod = build_template_pod(DAEMON_SET, meta, daemon_set.spec.template)
    pod["metadata"]["labels"] = {
        **pod["metadata"]["labels"],
        TEMPLATE_GENERATION_LABEL: meta.annotations.get(TEMPLATE_GENERATION, "1"),
        REVISION_LABEL: revision_hash,
    }
    spec = pod["spec"]
    taints = (*_TOLERATED_TAINTS, *((_NETWORK_TAINT,) if spec.get("hostNetwork") else ()))
    tolerations = [{"key": key, "operator": "Exists", "effect": effect} for key, effect in taints]
    own = [one for one in spec.get("tolerations", ()) if one not in tolerations]
    spec["tolerations"] = [*own, *tolerations]
    affinity: dict[str, Any] = deepcopy(spec.get("affinity") or {})
    name = {"key": "metadata.name", "operator": "In", "values": [node]}
    affinity["nodeAffinity"] = {
        **(affinity.get("nodeAffinity") or {}),
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchFields": [name]}]
        },
    }
    spec["affinity"] = affinity
    return pod


def plan_daemon_pods(state: DaemonSetState) -> DaemonPlan:
    """Plan the pods of all nodes, then the rolling update of those that stay."""
    daemon_set, plan = state.daemon_set, DaemonPlan()
    eligibility = NodeEligibility(daemon_set)
    by_node = pods_by_node(state)
    surges = _max_surge(daemon_set, len(state.nodes)) > 0
    for name, node in state.nodes.items():
        pods = by_node.get(name, [])
        if eligibility.should_run(node) and not pods:
            plan.nodes.append(name)
        elif eligibility.may_continue(node):
            _keep_one(state, name, pods, plan=plan, surges=surges)
        else:
            plan.deletions += [pod for pod in pods if not pod.metadata.deletion_timestamp]
    for name, pods in by_node.items():
        if name not in state.nodes:
            unbound = [pod for pod in pods if not pod.spec.node_name]
            plan.deletions += [pod for pod in unbound if not pod.metadata.deletion_timestamp]
    if daemon_set.spec.update_strategy.type == "RollingUpdate":
        desired = {name for name, node in state.nodes.items() if eligibility.should_run(node)}
        _plan_update(state, by_node, desired, plan=plan)
    return plan


def pods_by_node(state: DaemonSetState) -> dict[str, list[Pod]]:
    """Return the pods of each node, the oldest first."""
    found: dict[str, list[Pod]] = {}
    for pod in sorted(state.pods, key=_creation_order):
        found.setdefault(target_node(pod), []).append(pod)
    return found


def _creation_order(pod: Pod) -> tuple[bool, str, str]:
    meta: ObjectMeta = pod.metadata
    return not pod.spec.node_name, meta.creation_timestamp, meta.name


def _keep_one(
    state: DaemonSetState, node: str, pods: Sequence[Pod], *, plan: DaemonPlan, surges: bool
) -> None:
    """Delete ended pods of a node, and all running ones but the oldest (of each template)."""
    alive = [pod for pod in pods if not pod.metadata.deletion_timestamp]
    ended = [pod for pod in alive if pod.is_terminal]
    if node not in state.delayed_nodes:
        plan.ended += ended
    running = [pod for pod in alive if not pod.is_terminal]
    groups = (
        [[pod for pod in running if state.is_updated(pod) is updated] for updated in (True, False)]
        if surges
        else [running]
    )
    for group in groups:
        plan.deletions += group[1:]


def _max_surge(daemon_set: DaemonSet, desired: int) -> int:
    strategy = daemon_set.spec.update_strategy
    if strategy.type != "RollingUpdate":
        return 0
    return resolve_int_or_percent(strategy.rolling_update.max_surge, desired, round_up=True)


def _plan_update(
    state: DaemonSetState, by_node: Mapping[str, list[Pod]], desired: set[str], *, plan: DaemonPlan
) -> None:
    rolling = state.daemon_set.spec.update_strategy.rolling_update
    surge = _max_surge(state.daemon_set, len(desired))
    unavailable = resolve_int_or_percent(rolling.max_unavailable, len(desired), round_up=True)
    going = {pod.metadata.uid for pod in (*plan.deletions, *plan.ended)}
    alive = {
        name: [
            pod
            for pod in by_node.get(name, ())
            if not pod.metadata.deletion_timestamp and pod.metadata.uid not in going
        ]
        for name in state.nodes
        if name in desired or by_node.get(name)
    }
    if surge:
        nodes, replaced = _plan_surge(state, alive, surge)
        plan.nodes += nodes
        plan.deletions += replaced
    else:
        plan.deletions += _select_replaced_pods(state, alive, unavailable or 1)


def _select_replaced_pods(
    state: DaemonSetState, alive: Mapping[str, list[Pod]], limit: int
) -> list[Pod]:
    """Return the old pods to delete: the unavailable ones, and as many others as may be missing."""
    missing, free, candidates = 0, list[Pod](), list[Pod]()
    for pods in alive.values():
        new = [pod for pod in pods if state.is_updated(pod)]
        old = [pod for pod in pods if not state.is_updated(pod)]
        if bool(new) == bool(old):
            missing += 1
        elif new:
            missing += not state.is_available(new[0])
        elif not state.is_available(old[0]):
            free.append(old[0])
            missing += 1
        else:
            candidates.append(old[0])
    return [*free, *candidates[: max(limit - missing, 0)]]


def _plan_surge(
    state: DaemonSetState, alive: Mapping[str, list[Pod]], limit: int
) -> tuple[list[str], list[Pod]]:
    """Return the nodes that get a new pod beside the old one, and the old pods to delete.

    An old pod is deleted when its new one is available.
    """
    surging, free, candidates, replaced = 0, list[str](), list[str](), list[Pod]()
    for name, pods in alive.items():
        new = [pod for pod in pods if state.is_updated(pod)]
        old = [pod for pod in pods if not state.is_updated(pod)]
        if not old:
            continue
        if new:
            surging += 1
            if state.is_available(new[0]):
                replaced.append(old[0])
        elif not state.is_available(old[0]):
            free.append(name)
        else:
            candidates.append(name)
    return [*free, *candidates[: max(limit - surging, 0)]], replaced


# ---- status --------------------------------------------------------------------------------------


def count_daemon_status(state: DaemonSetState) -> dict[str, int]:
    """Return the counts of the status, by their fields in the API."""
    eligibility, by_node = NodeEligibility(state.daemon_set), pods_by_node(state)
    counts = dict.fromkeys(
        (
            "currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled",
            "numberReady", "updatedNumberScheduled", "numberAvailable",
        ),
        0,
    )  # fmt: skip
    for name, node in state.nodes.items():
        pods = [pod for pod in by_node.get(name, ()) if not pod.metadata.deletion_timestamp]
        pods = pods or by_node.get(name, [])
        if not eligibility.should_run(node):
            counts["numberMisscheduled"] += bool(pods)
            continue
        counts["desiredNumberScheduled"] += 1
        if not pods:
            continue
        first = pods[0]
        counts["currentNumberScheduled"] += 1
        counts["numberReady"] += first.is_ready
        counts["numberAvailable"] += first.is_ready and state.is_available(first)
        counts["updatedNumberScheduled"] += state.is_updated(first)
    return {
        **counts,
        "numberUnavailable": counts["desiredNumberScheduled"] - counts["numberAvailable"],
        "observedGeneration": state.daemon_set.metadata.generation,
    }
