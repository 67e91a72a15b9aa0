"""SchedulerCache: observed objects and assumed bindings in, snapshots out.

The event handlers pass in every change of nodes, pods and groups. The scheduler passes in what it
assumes between a decision and the event that confirms it. A pod uses the resources of its node from
the moment it is assumed:

    pending --assume--> assumed --bound version observed--> bound --ended or deleted--> gone
       ^------forget------'

Changes are collected and reach the snapshot only when the next one is requested, so that a cycle
can be suspended while events arrive. Then only changed rows are rewritten; if nodes were added or
removed, rows are moved. The cache never calls the API and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from phalanx.api.core import Node, Pod
from phalanx.api.meta import Key, Ref, pod_group_ref
from phalanx.api.other_kinds import PodDisruptionBudget
from phalanx.api.resources import node_allocatable
from phalanx.scheduler.cluster.cache_entries import NodeInfo, PodState, build_pod_state
from phalanx.scheduler.cluster.cluster_delta import (
    ClusterDelta,
    NodeRoom,
    RoomUser,
    is_equivalent_node,
)
from phalanx.scheduler.cluster.device_cache import DeviceCache
from phalanx.scheduler.cluster.group_tree import Group, eviction_fields, root_priority
from phalanx.scheduler.cluster.peer_constraints import Labels, ServiceSelectors
from phalanx.scheduler.cluster.pod_index import AssignedPod, PodIndex
from phalanx.scheduler.cluster.pod_shape import UNSATISFIABLE_AMOUNT, PodShape
from phalanx.scheduler.cluster.snapshot import (
    CPU,
    FIRST_COLUMNS,
    MEMORY,
    Snapshot,
    clamp_row,
)
from phalanx.scheduler.cluster.volume_cache import VolumeCache
from phalanx.scheduler.decision import Binding, ClusterEvent

#: A snapshot is built anew if more than one in so many of its nodes were added, removed or
#: changed, or more than a maximum; otherwise its rows are moved.
_REBUILD_SHARE, _MAX_MOVED_NODES = 4, 1024

_K = TypeVar("_K")
_V = TypeVar("_V")


class SchedulerCache:
    """The cluster as the scheduler knows it: observed objects and assumed bindings."""

    def __init__(self) -> None:
        self._columns = {name: i for i, name in enumerate(FIRST_COLUMNS)}
        self._nodes: dict[str, NodeInfo] = {}
        self._pod_states: dict[Key, PodState] = {}
        self._groups: dict[Ref, Group] = {}
        self._member_counts: dict[Key, int] = {}
        #: The pods that each node is nominated for.
        self._nominated: dict[str, dict[Key, AssignedPod]] = {}
        self._services: dict[Key, Labels] = {}
        self._pod_index = PodIndex()
        self._snapshot = Snapshot((), self._columns)
        #: Claims and devices; the snapshot has the state of it.
        self.devices = DeviceCache()
        self._snapshot.devices = self.devices.state
        #: Claims and volumes, likewise.
        self.volumes = VolumeCache()
        self._snapshot.volumes = self.volumes.state
        #: How often what a cycle reads has changed. Groups without placed pods do not count.
        self.version = 0
        self._needs_rebuild = False
        #: Nodes that were added or removed and are not in the snapshot yet.
        self._moved_nodes: dict[str, None] = {}
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
            self._changed_groups,
            self._changed_nodes,
            self._changed_budgets,
            self._changed_namespaces,
            self._changed_services,
        )

    def update_node(self, name: str, node: Node | None) -> ClusterDelta | None:
        """Add, replace or (None) remove a node. Returns the change for pending entities."""
        info = self._nodes.get(name)
        old = info.node if info else None
        if node is None:
            if info and info.node:
                info.node, info.allocatable = None, [0] * len(self._columns)
                self._moved_nodes[name] = None
                self._changed_nodes.pop(name, None)
                self._drop_if_empty(name, info)
            # Affinity and spread no longer count the pods of the node.
            return ClusterDelta(ClusterEvent.POD_PLACED) if old else None
        if old is not None and is_equivalent_node(old, node):
            return None
        before, info = self.room(name), info or self._add_node_info(name)
        info.node, info.allocatable = node, self._resource_row(node_allocatable(node))
        if old is None:
            self._moved_nodes[name] = None
            return ClusterDelta(ClusterEvent.NODE_ADDED, after=self.room(name))
        self._changed_nodes[name] = node
        return ClusterDelta(ClusterEvent.NODE_UPDATED, before, self.room(name))

    def update_pod(self, key: Key, pod: Pod | None) -> tuple[ClusterDelta, ...]:
        """Add, replace or (None) remove a pod. Returns the changes for pending entities."""
        old = self._pod_states.get(key)
        if old is not None:
            # Indexes then share one key object per pod.
            key = old.key
        new = None if pod is None or pod.is_terminal else build_pod_state(key, pod, old)
        if old is not None and (new is None or new.uid != old.uid):
            self.devices.drop_pod(old.uid)
            self.volumes.drop_pod(old.uid)
        return self._replace_pod(key, old, new)

    def nominate(self, bindings: Iterable[Binding]) -> list[ClusterDelta]:
        """Nominate nodes ("": none) for pending pods that were attempted and wait for victims."""
        changes: list[ClusterDelta] = []
        for key, uid, node in bindings:
            state = self._pod_states.get(key)
            if state and state.uid == uid and state.nominated_node != node:
                new = replace(state, is_nomination_withheld=False, is_nomination_unreported=True)
                changes += self._replace_pod(key, state, replace(new, nominated_node=node))
        return changes

    def withhold_nominations(
        self, pods: Iterable[Key], *, withheld: bool = True
    ) -> list[ClusterDelta]:
        """Leave the nominations of pods that cannot be attempted out of account, or count them."""
        changes: list[ClusterDelta] = []
        for key in pods:
            state = self._pod_states.get(key)
            if state and state.nominated_node and state.is_nomination_withheld != withheld:
                new = replace(state, is_nomination_withheld=withheld)
                changes += self._replace_pod(key, state, new)
        return changes

    def mark_evicting(self, pods: Iterable[tuple[Key, str]], *, evicting: bool = True) -> None:
        """Count pods, by key and uid, as terminating, or (their eviction failed) not any more.

        Pending entities wake when the pods are observed to leave, not now: otherwise two failing
        preemptors would wake each other forever.
        """
        for key, uid in pods:
            state = self._pod_states.get(key)
            if state and state.uid == uid:
                self._replace_pod(key, state, replace(state, evicting=evicting))

    def update_namespace(self, name: str, labels: Labels | None) -> ClusterDelta:
        """Set or (None) remove the labels of a namespace, by which pods are selected."""
        self._changed_namespaces[name] = labels
        return ClusterDelta(ClusterEvent.POD_PLACED)

    def update_service(self, key: Key, selector: Labels | None) -> None:
        """Set or (None) remove the selector of a Service, by which default spreads select pods."""
        _set_or_remove(self._services, key, selector)
        self._changed_services[key.namespace] = None

    def update_group(self, ref: Ref, group: Group | None) -> ClusterDelta | None:
        """Add, replace or (None) remove a PodGroup or CompositePodGroup.

        Returns a change if the eviction of pods that have a node depends on it.
        """
        old = self._groups.get(ref)
        _set_or_remove(self._groups, ref, group)
        self._changed_groups[ref] = None
        subtree = self._snapshot.group_trees.subtree(ref)
        is_affected = eviction_fields(old) != eviction_fields(group) and any(
            one.key in self._member_counts for one in subtree
        )
        self.version += is_affected
        return ClusterDelta(ClusterEvent.POD_GONE) if is_affected else None

    def update_budget(self, key: Key, budget: PodDisruptionBudget | None) -> None:
        """Add, replace or (None) remove a PodDisruptionBudget."""
        self._changed_budgets[key] = budget

    def assume(self, bindings: Iterable[Binding]) -> list[ClusterDelta]:
        """Count pods on nodes before the API shows their bindings.

        Pods that are gone or have a node already are skipped.
        """
        changes, state_of = list[ClusterDelta](), self._pod_states.get
        for key, uid, node in bindings:
            state = state_of(key)
            if state and state.uid == uid and not state.node:
                new = replace(state, node=node, assumed=True)
                changes += self._replace_pod(state.key, state, new)
        return changes

    def forget(self, bindings: Iterable[Binding]) -> list[ClusterDelta]:
        """Take back assumed bindings that failed. Returns the changes for pending entities."""
        changes: list[ClusterDelta] = []
        for key, uid, node in bindings:
            state = self._pod_states.get(key)
            if state and state.assumed and (state.uid, state.node) == (uid, node):
                new = replace(state, node="", assumed=False)
                changes += self._replace_pod(key, state, new)
        return changes

    def has_node(self, name: str) -> bool:
        """Whether a node exists."""
        info = self._nodes.get(name)
        return info is not None and info.node is not None

    def has_nodes(self, bindings: Iterable[Binding]) -> bool:
        """Whether the nodes of bindings, which the last snapshot had, still exist."""
        is_moved = self._needs_rebuild or self._moved_nodes
        return not is_moved or all(self.has_node(node) for _, _, node in bindings)

    def overfull_nodes(self, bindings: Iterable[Binding]) -> set[str]:
        """Return the nodes of assumed bindings whose pods request more than the nodes have.

        Other schedulers may have bound pods there since the decision. Only resources that the
        assumed pods request themselves count, and only those that the node has.
        """
        found, columns = set(), self._columns
        for key, _, name in bindings:
            info, state = self._nodes.get(name), self._pod_states.get(key)
            if info is not None and state is not None and name not in found:
                wanted = (columns[resource] for resource, _ in state.shape.requests)
                if any(info.requested[i] > info.allocatable[i] > 0 for i in wanted):
                    found.add(name)
        return found

    def count_placed_members(self, group: Key) -> int:
        """Count the live members of a PodGroup that have a node, bound or assumed."""
        return self._member_counts.get(group, 0)

    def assumed_pods(self) -> list[Key]:
        """Return the pods whose bindings are assumed and not observed yet, sorted."""
        return [binding.pod for binding in self.assumed_bindings()]

    def assumed_bindings(self) -> list[Binding]:
        """Return the assumed bindings, sorted."""
        assumed = [one for one in self._pod_states.values() if one.assumed]
        return sorted(Binding(one.key, one.uid, one.node) for one in assumed)

    def evicting_pods(self) -> list[tuple[Key, str]]:
        """Return the victims, by key and uid, that are not observed to terminate yet."""
        return sorted((key, state.uid) for key, state in self._pod_states.items() if state.evicting)

    def unreported_nominations(self) -> list[Binding]:
        """Return the nominations ("": none any more) that the API does not show yet."""
        unreported = [one for one in self._pod_states.values() if one.is_nomination_unreported]
        return sorted(Binding(one.key, one.uid, one.nominated_node) for one in unreported)

    def withheld_nominations(self) -> list[Key]:
        """Return the pods whose nominations do not count yet, sorted."""
        return sorted(key for key, one in self._pod_states.items() if one.is_nomination_withheld)

    def object_counts(self) -> dict[str, int]:
        """Count nodes, pods on nodes, and pods whose binding is only assumed."""
        pods = sum(bool(state.node) for state in self._pod_states.values())
        assumed = sum(state.assumed for state in self._pod_states.values())
        nodes = sum(info.node is not None for info in self._nodes.values())
        return {"nodes": nodes, "pods": pods, "assumed_pods": assumed}

    def snapshot(self) -> Snapshot:
        """Return the current snapshot. There is only one: each call brings it up to date."""
        is_moved = self._needs_rebuild or bool(self._moved_nodes)
        if is_moved or any(self._pod_changes) or any(self._rare_changes[1:]):
            self.version += 1
        if is_moved:
            self._move_nodes()
        if any(self._rare_changes):
            self._apply_rare_changes()
        if any(self._pod_changes):
            self._apply_pod_changes()
        if any(self.devices.changes):
            self.devices.apply_changes()
        if any(self.volumes.changes):
            self.volumes.apply_changes()
        return self._snapshot

    def catch_up(self, max_pods: int = 1000) -> Iterator[int]:
        """Bring changes of pods into the snapshot in steps, between cycles, if there are many.

        Observations may arrive between two steps. `snapshot` applies what is left.
        """
        while len(self._changed_pods) > max_pods:
            self.version += 1
            if self._needs_rebuild or self._moved_nodes:
                self._move_nodes()
                yield 1
            for key in list(islice(self._changed_pods, max_pods)):
                self._pod_index.update(key, self._changed_pods.pop(key))
            yield 1

    def check(self) -> list[str]:
        """Return a message for every invariant that does not hold.

        Brings the snapshot up to date, so it must not be called during a cycle.
        """
        return [
            *self._check_nodes(),
            *self._check_pods(),
            *self._check_snapshot(),
            *self.devices.check(),
            *self.volumes.check(),
        ]

    def _replace_pod(
        self, key: Key, old: PodState | None, new: PodState | None
    ) -> tuple[ClusterDelta, ...]:
        """Replace one version of a pod with another; return the changes for pending entities."""
        before = after = old_nomination = new_nomination = None
        if old:
            if old.node:
                before = old.as_assigned(old.node)
            elif old.nominated_node:
                old_nomination = old.nomination
        if new:
            if new.node:
                after = new.as_assigned(new.node)
            elif new.nominated_node:
                new_nomination = new.nomination
        moved = not (old and new and old.node == new.node and old.shape == new.shape)
        assigned, left = after or new_nomination, before if moved else None
        if old_nomination and (assigned is None or assigned.node != old_nomination.node):
            left = old_nomination
        room = self.room(left.node) if left else None
        if old and before:
            self._count_member(old.live_group, -1)
            if moved:
                self._remove_from_node(key, old)
        if new and after:
            self._count_member(new.live_group, +1)
            if moved:
                self._add_to_node(key, new)
        if new:
            self._pod_states[key] = new
        else:
            self._pod_states.pop(key, None)
        is_changed = before != after
        if is_changed:
            self._changed_pods[key] = after
            if (before and before.volume_keys) or (after and after.volume_keys):
                self.volumes.update_user(key, after.volume_user if after else None)
        if old_nomination != new_nomination:
            self._change_nomination(key, old_nomination, new_nomination)
        changes: tuple[ClusterDelta, ...] = ()
        if left:
            room_after = self.room(left.node)
            changes = (ClusterDelta(ClusterEvent.POD_GONE, room, room_after, pods=(left,)),)
        if after and (is_changed or (old and new and old.terminating != new.terminating)):
            versions = (before, after) if before else (after,)
            changes += (ClusterDelta(ClusterEvent.POD_PLACED, pods=versions),)
        return changes

    def _change_nomination(
        self, key: Key, old: AssignedPod | None, new: AssignedPod | None
    ) -> None:
        self._changed_nominations[key] = new
        if old:
            _set_or_remove(self._nominated[old.node], key, None)
            _set_or_remove(self._nominated, old.node, self._nominated[old.node])
        if new:
            self._nominated.setdefault(new.node, {})[key] = new

    def room(self, name: str) -> NodeRoom | None:
        """Describe a node and its pods as they are now; None if there is no such node."""
        info = self._nodes.get(name)
        if info is None or info.node is None:
            return None
        # Only entities that wait for the change read the users: mostly none does.
        states = tuple(map(self._pod_states.__getitem__, info.pods))
        nominated = tuple(self._nominated.get(name, {}).values())
        list_users = partial(self._list_room_users, states, nominated)
        return NodeRoom(info.node, self._columns, tuple(info.allocatable), list_users)

    def _list_room_users(
        self, states: Iterable[PodState], nominated: Iterable[AssignedPod]
    ) -> tuple[RoomUser, ...]:
        """Describe pods on a node, and pods that it is nominated for, as users of its room."""
        users = [
            RoomUser(
                state.shape,
                root_priority(
                    self._groups,
                    pod_group_ref(state.group) if state.group else None,
                    state.priority,
                ),
                is_leaving=state.terminating or state.evicting,
            )
            for state in states
        ]
        users += [RoomUser(pod.shape, pod.priority, is_nominated=True) for pod in nominated]
        return tuple(users)

    def _add_to_node(self, key: Key, state: PodState) -> None:
        info = self._nodes.get(state.node) or self._add_node_info(state.node)
        info.pods[key] = state.shape
        if state.shape.ports:
            info.ports_by_pod[key] = state.shape.ports
        self._add_requests(info, state.shape, +1)
        self._changed_loads[state.node] = None

    def _remove_from_node(self, key: Key, state: PodState) -> None:
        info = self._nodes[state.node]
        del info.pods[key]
        info.ports_by_pod.pop(key, None)
        self._add_requests(info, state.shape, -1)
        self._changed_loads[state.node] = None
        self._drop_if_empty(state.node, info)

    def _add_requests(self, node: NodeInfo, shape: PodShape, sign: int) -> None:
        used, columns = node.requested, self._columns
        for name, amount in shape.requests:
            if name not in columns:
                self._add_column(name)
            used[columns[name]] += sign * amount
        (cpu, memory), nonzero = shape.nonzero_requests, node.nonzero_requested
        nonzero[CPU] += sign * cpu
        nonzero[MEMORY] += sign * memory

    def _count_member(self, group: Key | None, change: int) -> None:
        if group:
            count = self._member_counts[group] = self._member_counts.get(group, 0) + change
            if not count:
                del self._member_counts[group]
            self._changed_members[group] = None

    def _add_node_info(self, name: str) -> NodeInfo:
        none, width = [0], len(self._columns)
        info = NodeInfo(None, none * width, none * width, nonzero_requested=none * 2)
        self._nodes[name] = info
        return info

    def _drop_if_empty(self, name: str, node: NodeInfo) -> None:
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

    def _move_nodes(self) -> None:
        """Bring added and removed nodes into the snapshot: into its rows if they are few."""
        changed = {*self._moved_nodes, *self._changed_nodes}
        limit = min(len(self._snapshot) // _REBUILD_SHARE, _MAX_MOVED_NODES)
        if self._needs_rebuild or len(changed) > limit:
            self._rebuild()
        else:
            infos = {name: self._nodes.get(name) for name in sorted(changed)}
            self._snapshot = new = self._snapshot.with_nodes(
                {n: (i.node, i.loads) if i and i.node else None for n, i in infos.items()}
            )
            pods = [key for info in infos.values() if info for key in info.pods]
            assert new.previous is not None
            rows = new.previous.rows
            self._pod_index.move_nodes(new.index, rows, [*pods, *self._changed_pods])
        self._moved_nodes.clear()
        self._changed_nodes.clear()

    def _rebuild(self) -> None:
        old = self._snapshot
        nodes, loads = [], []
        for _, info in sorted(self._nodes.items(), key=lambda item: item[0]):
            if info.node:
                nodes.append(info.node)
                loads.append(info.loads)
        self._snapshot = new = Snapshot(nodes, self._columns, loads)
        new.member_counts, new.group_trees = old.member_counts, old.group_trees
        new.nominations = old.nominations
        new.budgets, new.pod_index, new.devices = old.budgets, self._pod_index, old.devices
        new.volumes = old.volumes
        self._pod_index.set_node_index(new.index)
        self._needs_rebuild = False
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
            _set_or_remove(pod_index.services, namespace, ServiceSelectors(selectors))
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
            fresh = NodeInfo(None, [], [0] * len(self._columns), nonzero_requested=[0, 0])
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
            parts = snapshot.allocatable[i], snapshot.requested[i], snapshot.nonzero_requested[i]
            cells = [*row.allocatable, *row.requested, *row.nonzero_requested]
            known = [*clamp_row((*info.allocatable, *info.requested, *info.nonzero_requested))]
            if not known == cells == np.concatenate(parts).tolist():
                yield f"the snapshot of node {name} differs from the cache"
            if row.used_ports != info.used_ports:
                yield f"the snapshot of node {name} has other host ports than the cache"
        if snapshot.member_counts != self._member_counts:
            yield "the snapshot counts other members than the cache"
        yield from snapshot.pod_index.check()


def _set_or_remove(values: dict[_K, _V], key: _K, value: _V | None) -> None:
    """Set a value; remove the key if the value is falsy."""
    if value:
        values[key] = value
    else:
        values.pop(key, None)
