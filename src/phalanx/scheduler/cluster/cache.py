"""SchedulerCache: observed objects and assumed bindings in, snapshots out.

The event handlers pass in every change of nodes, pods and groups. The scheduler passes in what it
assumes between a decision and the event that confirms it. A pod uses the resources of its node from
the moment it is assumed:

    pending --assume--> assumed --bound version observed--> bound --ended or deleted--> gone
       ^------forget------'

Changes are collected and reach the snapshot only when the next one is requested, so that a cycle
can be suspended while events arrive. Then only changed rows are rewritten, unless nodes were added
or removed. The cache never calls the API and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from phalanx.api.core import Node, Pod
from phalanx.api.meta import Key, Ref
from phalanx.api.policy import PodDisruptionBudget
from phalanx.api.resources import node_allocatable
from phalanx.scheduler.cluster.group_tree import Group
from phalanx.scheduler.cluster.node_class import clamp_row
from phalanx.scheduler.cluster.peer_constraints import Labels
from phalanx.scheduler.cluster.pod_index import AssignedPod, PodIndex
from phalanx.scheduler.cluster.pod_shape import UNSATISFIABLE_AMOUNT, HostPorts, PodShape, shape_of
from phalanx.scheduler.cluster.snapshot import CPU, FIRST_COLUMNS, MEMORY, Snapshot
from phalanx.scheduler.decision import Binding, ClusterEvent

_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(slots=True)
class _NodeInfo:
    """A node and its pods. `node` is None while only pods that are bound to the name are known."""

    node: Node | None
    allocatable: list[int]
    requested: list[int]
    nonzero_requested: list[int]
    pods: dict[Key, PodShape] = field(default_factory=dict)
    #: The host ports of the pods that use any.
    ports_by_pod: dict[Key, HostPorts] = field(default_factory=dict)

    @property
    def used_ports(self) -> HostPorts:
        """The host ports in use."""
        return tuple(port for ports in self.ports_by_pod.values() for port in ports)


class _PodState(Struct, frozen=True):
    """A pod that has not ended. `node` is "" while the pod is pending."""

    key: Key
    uid: str
    node: str
    shape: PodShape
    labels: Labels
    #: The PodGroup that the pod names.
    group: Key | None
    priority: int
    start_time: str
    terminating: bool
    assumed: bool = False
    #: The nominated node, and whether the API does not show the nomination yet.
    nominated_node: str = ""
    is_nomination_unreported: bool = False
    #: Whether the pod is a victim whose eviction the API does not show yet.
    evicting: bool = False

    @property
    def live_group(self) -> Key | None:
        """The PodGroup that counts the pod as a live member."""
        return None if self.terminating or self.evicting else self.group

    def with_node(self, node: str) -> _PodState:
        """Assume the pod on a node, or ("") make it pending again."""
        return replace(self, node=node, assumed=bool(node))

    @property
    def nomination(self) -> AssignedPod | None:
        """The pod as if it ran on its nominated node; None if it has a node or no nomination."""
        is_nominated = bool(self.nominated_node) and not self.node
        return self.as_assigned(self.nominated_node) if is_nominated else None

    def as_assigned(self, node: str) -> AssignedPod:
        """Describe the pod as one that runs on a node."""
        return AssignedPod(
            self.key,
            self.uid,
            node,
            labels=self.labels,
            shape=self.shape,
            terminating=self.terminating or self.evicting,
            group=self.group,
            priority=self.priority,
            start_time=self.start_time,
        )


class SchedulerCache:
    """The cluster as the scheduler knows it: observed objects and assumed bindings."""

    def __init__(self) -> None:
        self._columns = {name: i for i, name in enumerate(FIRST_COLUMNS)}
        self._nodes: dict[str, _NodeInfo] = {}
        self._pod_states: dict[Key, _PodState] = {}
        self._groups: dict[Ref, Group] = {}
        self._member_counts: dict[Key, int] = {}
        self._services: dict[Key, Labels] = {}
        self._pod_index = PodIndex()
        self._snapshot = Snapshot((), self._columns)
        self._needs_rebuild = False
        #: Changes of pods that are not in the snapshot yet,
        self._changed_loads: dict[str, None] = {}
        self._changed_members: dict[Key, None] = {}
        self._changed_pods: dict[Key, AssignedPod | None] = {}
        self._changed_nominations: dict[Key, AssignedPod | None] = {}
        self._pod_changes = (
            self._changed_loads,
            self._changed_members,
            self._changed_pods,
            self._changed_nominations,
        )
        #: and changes of everything else.
        self._changed_nodes: dict[str, Node] = {}
        self._changed_groups: dict[Ref, None] = {}
        self._changed_budgets: dict[Key, PodDisruptionBudget | None] = {}
        self._changed_namespaces: dict[str, Labels | None] = {}
        self._changed_services: dict[str, None] = {}
        self._rare_changes = (
            self._changed_nodes,
            self._changed_groups,
            self._changed_budgets,
            self._changed_namespaces,
            self._changed_services,
        )

    def update_node(self, name: str, node: Node | None) -> ClusterEvent | None:
        """Add, replace or (None) remove a node. Returns the event that this causes."""
        info = self._nodes.get(name)
        old = info.node if info else None
        if node is None:
            self._remove_node(name, info)
            # Affinity and spread no longer count the pods of the node.
            return ClusterEvent.POD_PLACED if old else None
        if old is not None and _is_equivalent_node(old, node):
            return None
        info = self._node_info(name)
        info.node, info.allocatable = node, self._resource_row(node_allocatable(node))
        if old is None:
            self._needs_rebuild = True
            return ClusterEvent.NODE_ADDED
        self._changed_nodes[name] = node
        return ClusterEvent.NODE_UPDATED

    def update_pod(self, key: Key, pod: Pod | None) -> tuple[ClusterEvent, ...]:
        """Add, replace or (None) remove a pod. Returns the events that this causes."""
        old = self._pod_states.get(key)
        new = None if pod is None or pod.is_terminal else _build_pod_state(pod, old)
        return self._replace_pod(key, old, new)

    def nominate(self, bindings: Iterable[Binding]) -> tuple[ClusterEvent, ...]:
        """Nominate nodes ("": none) for pending pods that wait until victims have terminated."""
        events: tuple[ClusterEvent, ...] = ()
        for key, uid, node in bindings:
            state = self._pod_states.get(key)
            if state and state.uid == uid and state.nominated_node != node:
                events += self._replace_pod(
                    key, state, replace(state, nominated_node=node, is_nomination_unreported=True)
                )
        return events

    def mark_evicting(self, pods: Iterable[tuple[Key, str]], *, evicting: bool = True) -> None:
        """Count pods, by key and uid, as terminating, or (their eviction failed) not any more.

        Pending entities wake when the pods are observed to leave, not now: otherwise two failing
        preemptors would wake each other forever.
        """
        for key, uid in pods:
            state = self._pod_states.get(key)
            if state and state.uid == uid:
                self._replace_pod(key, state, replace(state, evicting=evicting))

    def update_namespace(self, name: str, labels: Labels | None) -> ClusterEvent | None:
        """Set or (None) remove the labels of a namespace. Returns the event that this causes."""
        self._changed_namespaces[name] = labels
        return ClusterEvent.POD_PLACED

    def update_service(self, key: Key, selector: Labels | None) -> None:
        """Set or (None) remove the selector of a Service, by which default spreads select pods."""
        _set_or_remove(self._services, key, selector)
        self._changed_services[key.namespace] = None

    def update_group(self, ref: Ref, group: Group | None) -> None:
        """Add, replace or (None) remove a PodGroup or CompositePodGroup."""
        _set_or_remove(self._groups, ref, group)
        self._changed_groups[ref] = None

    def update_budget(self, key: Key, budget: PodDisruptionBudget | None) -> None:
        """Add, replace or (None) remove a PodDisruptionBudget."""
        self._changed_budgets[key] = budget

    def assume(self, bindings: Iterable[Binding]) -> tuple[ClusterEvent, ...]:
        """Count pods on nodes before the API shows their bindings.

        Pods that are gone or have a node already are skipped.
        """
        events: tuple[ClusterEvent, ...] = ()
        for key, uid, node in bindings:
            state = self._pod_states.get(key)
            if state and state.uid == uid and not state.node:
                events = _merge_events(events, self._replace_pod(key, state, state.with_node(node)))
        return events

    def forget(self, bindings: Iterable[Binding]) -> tuple[ClusterEvent, ...]:
        """Take back assumed bindings that failed. Returns the events that this causes."""
        events: tuple[ClusterEvent, ...] = ()
        for key, uid, node in bindings:
            state = self._pod_states.get(key)
            if state and state.assumed and (state.uid, state.node) == (uid, node):
                events = _merge_events(events, self._replace_pod(key, state, state.with_node("")))
        return events

    def count_placed_members(self, group: Key) -> int:
        """Count the live members of a PodGroup that have a node, bound or assumed."""
        return self._member_counts.get(group, 0)

    def assumed_pods(self) -> list[Key]:
        """Return the pods whose bindings are assumed and not observed yet, sorted."""
        return [binding.pod for binding in self.assumed_bindings()]

    def assumed_bindings(self) -> list[Binding]:
        """Return the assumed bindings, sorted."""
        found = [
            Binding(k, state.uid, state.node)
            for k, state in self._pod_states.items()
            if state.assumed
        ]
        return sorted(found)

    def evicting_pods(self) -> list[tuple[Key, str]]:
        """Return the victims, by key and uid, that are not observed to terminate yet."""
        return sorted((key, state.uid) for key, state in self._pod_states.items() if state.evicting)

    def unreported_nominations(self) -> list[Binding]:
        """Return the nominations ("": none any more) that the API does not show yet."""
        pods = self._pod_states.items()
        return sorted(
            Binding(k, state.uid, state.nominated_node)
            for k, state in pods
            if state.is_nomination_unreported
        )

    def object_counts(self) -> dict[str, int]:
        """Count nodes, pods on nodes, and pods whose binding is only assumed."""
        pods = sum(bool(state.node) for state in self._pod_states.values())
        assumed = sum(state.assumed for state in self._pod_states.values())
        nodes = sum(info.node is not None for info in self._nodes.values())
        return {"nodes": nodes, "pods": pods, "assumed_pods": assumed}

    def snapshot(self) -> Snapshot:
        """Return the current snapshot. There is only one: each call brings it up to date."""
        if self._needs_rebuild:
            self._rebuild()
        if any(self._rare_changes):
            self._apply_rare_changes()
        if any(self._pod_changes):
            self._apply_pod_changes()
        return self._snapshot

    def check(self) -> list[str]:
        """Return a message for every invariant that does not hold.

        Brings the snapshot up to date, so it must not be called during a cycle.
        """
        return [*self._check_nodes(), *self._check_pods(), *self._check_snapshot()]

    def _remove_node(self, name: str, node: _NodeInfo | None) -> None:
        if node and node.node:
            node.node, node.allocatable = None, [0] * len(self._columns)
            self._needs_rebuild = True
            self._changed_nodes.pop(name, None)
            self._drop_if_empty(name, node)

    def _replace_pod(
        self, key: Key, old: _PodState | None, new: _PodState | None
    ) -> tuple[ClusterEvent, ...]:
        """Replace one version of a pod with another and return the events that this causes."""
        moved = not (old and new and old.node == new.node and old.shape == new.shape)
        before = old.as_assigned(old.node) if old and old.node else None
        after = new.as_assigned(new.node) if new and new.node else None
        if old and before:
            self._count_member(old.live_group, -1)
            if moved:
                self._remove_from_node(key, old)
        if new and after:
            self._count_member(new.live_group, +1)
            if moved:
                self._add_to_node(key, new)
        _set_or_remove(self._pod_states, key, new)
        old_nomination = old.nomination if old else None
        new_nomination = new.nomination if new else None
        is_changed = before != after
        if is_changed:
            self._changed_pods[key] = after
        if old_nomination != new_nomination:
            self._changed_nominations[key] = new_nomination
        assigned = after or new_nomination
        is_released = old_nomination and (assigned is None or assigned.node != old_nomination.node)
        gone = (ClusterEvent.POD_GONE,) if (moved and before) or is_released else ()
        is_changed = is_changed or bool(old and new and old.terminating != new.terminating)
        return (*gone, ClusterEvent.POD_PLACED) if after and is_changed else gone

    def _add_to_node(self, key: Key, state: _PodState) -> None:
        info = self._node_info(state.node)
        info.pods[key] = state.shape
        if state.shape.ports:
            info.ports_by_pod[key] = state.shape.ports
        self._add_requests(info, state.shape, +1)
        self._changed_loads[state.node] = None

    def _remove_from_node(self, key: Key, state: _PodState) -> None:
        info = self._nodes[state.node]
        del info.pods[key]
        info.ports_by_pod.pop(key, None)
        self._add_requests(info, state.shape, -1)
        self._changed_loads[state.node] = None
        self._drop_if_empty(state.node, info)

    def _add_requests(self, node: _NodeInfo, shape: PodShape, sign: int) -> None:
        used, columns = node.requested, self._columns
        for name, amount in shape.requests:
            if name not in columns:
                self._add_column(name)
            used[columns[name]] += sign * amount
        cpu, memory = shape.nonzero_requests
        node.nonzero_requested[CPU] += sign * cpu
        node.nonzero_requested[MEMORY] += sign * memory

    def _count_member(self, group: Key | None, change: int) -> None:
        if group:
            _set_or_remove(self._member_counts, group, self._member_counts.get(group, 0) + change)
            self._changed_members[group] = None

    def _node_info(self, name: str) -> _NodeInfo:
        info = self._nodes.get(name)
        if info is None:
            width = len(self._columns)
            info = self._nodes[name] = _NodeInfo(
                None, [0] * width, [0] * width, nonzero_requested=[0, 0]
            )
        return info

    def _drop_if_empty(self, name: str, node: _NodeInfo) -> None:
        if not node.node and not node.pods:
            del self._nodes[name]
            self._changed_loads.pop(name, None)

    def _resource_row(self, amounts: dict[str, int]) -> list[int]:
        for name in amounts:
            if name not in self._columns:
                self._add_column(name)
        return [min(amounts.get(name, 0), UNSATISFIABLE_AMOUNT - 1) for name in self._columns]

    def _add_column(self, name: str) -> None:
        self._columns[name] = len(self._columns)
        self._needs_rebuild = True
        for info in self._nodes.values():
            info.allocatable.append(0)
            info.requested.append(0)

    def _rebuild(self) -> None:
        old = self._snapshot
        nodes, loads = [], []
        for _, info in sorted(self._nodes.items(), key=lambda item: item[0]):
            if info.node:
                nodes.append(info.node)
                loads.append(
                    (
                        info.allocatable,
                        info.requested,
                        info.nonzero_requested,
                        info.used_ports if info.ports_by_pod else (),
                    )
                )
        self._snapshot = new = Snapshot(nodes, self._columns, loads)
        new.member_counts, new.group_trees, new.nominations = (
            old.member_counts,
            old.group_trees,
            old.nominations,
        )
        new.budgets, new.pod_index = old.budgets, self._pod_index
        self._pod_index.set_node_index(new.index)
        self._needs_rebuild = False
        self._changed_nodes.clear()
        self._changed_loads.clear()

    def _apply_rare_changes(self) -> None:
        """Apply changes of nodes, groups, budgets, namespaces and Services to the snapshot."""
        snapshot, pod_index = self._snapshot, self._pod_index
        for name, node in self._changed_nodes.items():
            snapshot.update_node(snapshot.index[name], node, self._nodes[name].allocatable)
        for group in self._changed_groups:
            snapshot.group_trees.update(group, self._groups.get(group))
        for key, budget in self._changed_budgets.items():
            _set_or_remove(snapshot.budgets, key, budget)
        for name, labels in self._changed_namespaces.items():
            pod_index.update_namespace(name, labels)
        for namespace in self._changed_services:
            selectors = [
                selector for key, selector in self._services.items() if key.namespace == namespace
            ]
            _set_or_remove(pod_index.services, namespace, tuple(selectors))
        for changed in self._rare_changes:
            changed.clear()

    def _apply_pod_changes(self) -> None:
        """Apply changes of pods to the snapshot; there are some after every decision."""
        snapshot, nodes, update_pod = self._snapshot, self._nodes, self._pod_index.update
        index = snapshot.index
        for name in self._changed_loads:
            if name in index:
                info = nodes[name]
                ports = info.used_ports if info.ports_by_pod else ()
                snapshot.update_load(
                    index[name], info.requested, info.nonzero_requested, ports=ports
                )
        for group in self._changed_members:
            _set_or_remove(snapshot.member_counts, group, self._member_counts.get(group))
        for key, pod in self._changed_pods.items():
            update_pod(key, pod)
        for key, nomination in self._changed_nominations.items():
            _set_or_remove(snapshot.nominations, key, nomination)
        for changed in self._pod_changes:
            changed.clear()

    def _check_nodes(self) -> Iterator[str]:
        for name, info in self._nodes.items():
            fresh = _NodeInfo(None, [], [0] * len(self._columns), nonzero_requested=[0, 0])
            for shape in info.pods.values():
                self._add_requests(fresh, shape, +1)
            if (fresh.requested, fresh.nonzero_requested) != (
                info.requested,
                info.nonzero_requested,
            ):
                yield f"node {name} counts {info.requested}, its pods add up to {fresh.requested}"
            if min(*info.requested, *info.nonzero_requested) < 0:
                yield f"node {name} counts a negative amount: {info.requested}"

    def _check_pods(self) -> Iterator[str]:
        members: dict[Key, int] = {}
        for key, state in self._pod_states.items():
            info = self._nodes.get(state.node)
            if state.node and (info is None or key not in info.pods):
                yield f"pod {key} is not counted on its node {state.node}"
            if state.assumed and not state.node:
                yield f"pod {key} is assumed without a node"
            if state.node and (group := state.live_group):
                members[group] = members.get(group, 0) + 1
        if members != self._member_counts:
            yield f"groups count {self._member_counts}, their members add up to {members}"
        for name, info in self._nodes.items():
            for key in info.pods:
                if key not in self._pod_states or self._pod_states[key].node != name:
                    yield f"node {name} counts pod {key}, which is not there"

    def _check_snapshot(self) -> Iterator[str]:
        snapshot = self.snapshot()
        for name, i in snapshot.index.items():
            info, row = self._nodes[name], snapshot.node_class(i)
            arrays = np.concatenate(
                (snapshot.allocatable[i], snapshot.requested[i], snapshot.nonzero_requested[i])
            )
            cells = [*row.allocatable, *row.requested, *row.nonzero_requested]
            known = [*clamp_row((*info.allocatable, *info.requested, *info.nonzero_requested))]
            if not known == cells == arrays.tolist():
                yield f"the snapshot of node {name} differs from the cache"
            if row.used_ports != info.used_ports:
                yield f"the snapshot of node {name} has other host ports than the cache"
        if snapshot.member_counts != self._member_counts:
            yield "the snapshot counts other members than the cache"
        yield from snapshot.pod_index.check()


def _build_pod_state(pod: Pod, old: _PodState | None) -> _PodState:
    """Combine the observed version of a live pod with what the API does not show yet."""
    meta, nominated_node = pod.metadata, pod.status.nominated_node_name
    state = _PodState(
        meta.key,
        meta.uid,
        pod.occupied_node,
        shape=shape_of(pod),
        labels=meta.labels,
        group=pod.group,
        priority=pod.spec.priority,
        start_time=pod.status.start_time or "",
        terminating=bool(meta.deletion_timestamp),
        nominated_node=nominated_node,
    )
    if old is None or old.uid != state.uid:
        return state
    if old.is_nomination_unreported and old.nominated_node != nominated_node:
        state = replace(state, nominated_node=old.nominated_node, is_nomination_unreported=True)
    evicting = old.evicting and not state.terminating
    if not state.node and old.assumed:
        return replace(state, node=old.node, assumed=True, evicting=evicting)
    return replace(state, evicting=evicting) if evicting else state


def _is_equivalent_node(node: Node, other: Node) -> bool:
    """Whether two versions are equal in all that filters and scores read, as after a heartbeat."""
    return (
        node.spec == other.spec
        and node.metadata.labels == other.metadata.labels
        and node.status.allocatable == other.status.allocatable
        and node.status.images == other.status.images
    )


def _merge_events(
    events: tuple[ClusterEvent, ...], more: tuple[ClusterEvent, ...]
) -> tuple[ClusterEvent, ...]:
    """Merge the events of several pods; mostly those of all members of a gang are the same."""
    return events if events == more else tuple(dict.fromkeys(events + more))


def _set_or_remove(values: dict[_K, _V], key: _K, value: _V | None) -> None:
    """Set a value; remove the key if the value is falsy."""
    if value:
        values[key] = value
    else:
        values.pop(key, None)
