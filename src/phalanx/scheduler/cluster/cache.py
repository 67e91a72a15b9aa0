"""Cache: events and assumptions in, snapshots out.

The shell tells it everything that it sees of nodes, pods and groups, and what it assumes between a
decision and the event that confirms it. A pod takes room from the moment it is assumed:

    pending --assume--> assumed --its bound version arrives--> bound --ends or goes--> gone
       ^------forget------'

Changes are gathered on the side and reach the snapshot only when the next one is asked for, so that
a cycle can be suspended; then only changed rows are rewritten, unless nodes came or went. Does not
read the API and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace as but

from phalanx.api.core import Node, Pod
from phalanx.api.meta import Key
from phalanx.api.policy import PodDisruptionBudget
from phalanx.api.resources import node_allocatable
from phalanx.scheduler.cluster.group_tree import Group, GroupRef
from phalanx.scheduler.cluster.node_class import clamp_row
from phalanx.scheduler.cluster.peer_constraints import Labels
from phalanx.scheduler.cluster.pod_index import AssignedPod, PodIndex
from phalanx.scheduler.cluster.pod_shape import PodShape, shape_of
from phalanx.scheduler.cluster.snapshot import (
    CPU,
    FIRST_COLUMNS,
    MEMORY,
    UNSATISFIABLE_AMOUNT,
    HostPorts,
    Snapshot,
)
from phalanx.scheduler.decision import Binding, ClusterEvent

_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(slots=True)
class _NodeInfo:
    """What is known of a node by name; without a node, pods that were bound to it wait for it."""

    node: Node | None
    allocatable: list[int]
    requested: list[int]
    nonzero_requested: list[int]
    pods: dict[Key, PodShape] = field(default_factory=dict)
    #: The ports that some of them take.
    ports_by_pod: dict[Key, HostPorts] = field(default_factory=dict)

    @property
    def used_ports(self) -> HostPorts:
        """All ports that are taken."""
        return tuple(port for ports in self.ports_by_pod.values() for port in ports)


class _PodState(Struct, frozen=True):
    """A pod that has not ended: where it is ("": nowhere yet) and whether that is only assumed."""

    key: Key
    uid: str
    node: str
    shape: PodShape
    labels: Labels
    #: The group that it names.
    group: Key | None
    priority: int
    start_time: str
    terminating: bool
    assumed: bool = False
    #: The node that it was promised once others have left, and whether the API does not say so yet.
    nominated_node: str = ""
    is_nomination_unreported: bool = False
    #: Whether it is to be evicted, and the API does not say so yet.
    evicting: bool = False

    @property
    def live_group(self) -> Key | None:
        """The group that it is a live member of."""
        return None if self.terminating or self.evicting else self.group

    def with_node(self, node: str) -> _PodState:
        """The same pod, assumed to be on a node, or on none any more."""
        return but(self, node=node, assumed=bool(node))

    @property
    def nomination(self) -> AssignedPod | None:
        """The pod as if it were where it was promised to be, if it was and has no node yet."""
        return (
            self.as_assigned(self.nominated_node) if self.nominated_node and not self.node else None
        )

    def as_assigned(self, node: str) -> AssignedPod:
        """The pod as others see it that is on a node."""
        return AssignedPod(
            self.key, self.uid, node, self.labels, self.shape, self.terminating or self.evicting,
            self.group, self.priority, self.start_time,
        )  # fmt: skip


class SchedulerCache:
    """The cluster as the scheduler believes it to be."""

    def __init__(self) -> None:
        self._columns = {name: i for i, name in enumerate(FIRST_COLUMNS)}
        self._nodes: dict[str, _NodeInfo] = {}
        self._pod_states: dict[Key, _PodState] = {}
        self._groups: dict[GroupRef, Group] = {}
        self._member_counts: dict[Key, int] = {}
        self._services: dict[Key, Labels] = {}
        self._pod_index = PodIndex()
        self._snapshot = Snapshot((), self._columns)
        self._needs_rebuild = False
        #: What the snapshot has not seen yet of pods,
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
        #: and of all else.
        self._changed_nodes: dict[str, Node] = {}
        self._changed_groups: dict[GroupRef, None] = {}
        self._changed_budgets: dict[Key, PodDisruptionBudget | None] = {}
        self._changed_namespaces: dict[str, Labels | None] = {}
        self._changed_services: dict[str, None] = {}
        self._rare_changes = (
            self._changed_nodes, self._changed_groups, self._changed_budgets,
            self._changed_namespaces, self._changed_services,
        )  # fmt: skip

    def update_node(self, name: str, node: Node | None) -> ClusterEvent | None:
        """A node came, changed or went (None). Says what that may cure."""
        host = self._nodes.get(name)
        old = host.node if host else None
        if node is None:
            self._remove_node(name, host)
            # Whoever minds other pods sees none there any more.
            return ClusterEvent.POD_PLACED if old else None
        if old is not None and _is_equivalent_node(old, node):
            return None
        host = self._node_info(name)
        host.node, host.allocatable = node, self._resource_row(node_allocatable(node))
        if old is None:
            self._needs_rebuild = True
            return ClusterEvent.NODE_ADDED
        self._changed_nodes[name] = node
        return ClusterEvent.NODE_UPDATED

    def update_pod(self, key: Key, pod: Pod | None) -> tuple[ClusterEvent, ...]:
        """A pod came, changed or went (None). Says what that may cure."""
        old = self._pod_states.get(key)
        new = None if pod is None or pod.is_terminal else _build_pod_state(pod, old)
        return self._replace_pod(key, old, new)

    def nominate(self, bindings: Iterable[Binding]) -> tuple[ClusterEvent, ...]:
        """Keep these nodes ("": none) for these pods, which wait for others to leave."""
        events: tuple[ClusterEvent, ...] = ()
        for key, uid, node in bindings:
            held = self._pod_states.get(key)
            if held and held.uid == uid and held.nominated_node != node:
                events += self._replace_pod(
                    key, held, but(held, nominated_node=node, is_nomination_unreported=True)
                )
        return events

    def mark_evicting(self, pods: Iterable[tuple[Key, str]], *, evicting: bool = True) -> None:
        """Count these pods, by name and uid, as leaving, or (they were spared) not any more.

        What that may cure is said when they are seen to leave: else whoever evicts in vain would
        wake others who do, and these him.
        """
        for key, uid in pods:
            held = self._pod_states.get(key)
            if held and held.uid == uid:
                self._replace_pod(key, held, but(held, evicting=evicting))

    def update_namespace(self, name: str, labels: Labels | None) -> ClusterEvent | None:
        """A namespace came, changed or went (None). Says what that may cure."""
        self._changed_namespaces[name] = labels
        return ClusterEvent.POD_PLACED

    def update_service(self, key: Key, selector: Labels | None) -> None:
        """A Service came, changed or went (None): its pods are spread if they ask nothing else."""
        _set_or_remove(self._services, key, selector)
        self._changed_services[key.namespace] = None

    def update_group(self, name: GroupRef, group: Group | None) -> None:
        """A group, of pods or of groups, came, changed or went (None)."""
        _set_or_remove(self._groups, name, group)
        self._changed_groups[name] = None

    def update_budget(self, key: Key, budget: PodDisruptionBudget | None) -> None:
        """A disruption budget came, changed or went (None)."""
        self._changed_budgets[key] = budget

    def assume(self, bindings: Iterable[Binding]) -> tuple[ClusterEvent, ...]:
        """Count these pods on these nodes from now on, but none that is gone or has a node."""
        events: tuple[ClusterEvent, ...] = ()
        for key, uid, node in bindings:
            held = self._pod_states.get(key)
            if held and held.uid == uid and not held.node:
                events = _merge_events(events, self._replace_pod(key, held, held.with_node(node)))
        return events

    def forget(self, bindings: Iterable[Binding]) -> tuple[ClusterEvent, ...]:
        """Take assumptions back that did not come true. Says what that may cure."""
        events: tuple[ClusterEvent, ...] = ()
        for key, uid, node in bindings:
            held = self._pod_states.get(key)
            if held and held.assumed and (held.uid, held.node) == (uid, node):
                events = _merge_events(events, self._replace_pod(key, held, held.with_node("")))
        return events

    def count_placed_members(self, group: Key) -> int:
        """How many live members of a group have a node, bound or assumed."""
        return self._member_counts.get(group, 0)

    def assumed_pods(self) -> list[Key]:
        """The pods whose binding was not seen yet: none at quiet."""
        return [binding.pod for binding in self.assumed_bindings()]

    def assumed_bindings(self) -> list[Binding]:
        """The same pods, each with the node that it is counted on."""
        found = [
            Binding(k, held.uid, held.node) for k, held in self._pod_states.items() if held.assumed
        ]
        return sorted(found)

    def evicting_pods(self) -> list[tuple[Key, str]]:
        """The pods, by name and uid, that are to be evicted and are not seen leaving yet."""
        return sorted((key, held.uid) for key, held in self._pod_states.items() if held.evicting)

    def unreported_nominations(self) -> list[Binding]:
        """What pods were promised ("": nothing any more) that the API does not say yet."""
        pods = self._pod_states.items()
        return sorted(
            Binding(k, held.uid, held.nominated_node)
            for k, held in pods
            if held.is_nomination_unreported
        )

    def object_counts(self) -> dict[str, int]:
        """How many nodes there are, pods on nodes, and pods that are only assumed to be there."""
        pods = sum(bool(held.node) for held in self._pod_states.values())
        assumed = sum(held.assumed for held in self._pod_states.values())
        nodes = sum(host.node is not None for host in self._nodes.values())
        return {"nodes": nodes, "pods": pods, "assumed_pods": assumed}

    def snapshot(self) -> Snapshot:
        """The cluster now. There is one at a time: the last one is brought up to date."""
        if self._needs_rebuild:
            self._rebuild()
        if any(self._rare_changes):
            self._apply_rare_changes()
        if any(self._pod_changes):
            self._apply_pod_changes()
        return self._snapshot

    def check(self) -> list[str]:
        """Sentences about every invariant that does not hold; none in a healthy cache.

        Looks at the snapshot too and so brings it up to date: not to be called during a cycle.
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
        """One version of a pod takes the place of another, wherever each is."""
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
        claimed, claims = old.nomination if old else None, new.nomination if new else None
        is_news = before != after
        if is_news:
            self._changed_pods[key] = after
        if claimed != claims:
            self._changed_nominations[key] = claims
        home = after or claims
        released = claimed and (home is None or home.node != claimed.node)
        gone = (ClusterEvent.POD_GONE,) if (moved and before) or released else ()
        is_news = is_news or bool(old and new and old.terminating != new.terminating)
        return (*gone, ClusterEvent.POD_PLACED) if after and is_news else gone

    def _add_to_node(self, key: Key, state: _PodState) -> None:
        host = self._node_info(state.node)
        host.pods[key] = state.shape
        if state.shape.ports:
            host.ports_by_pod[key] = state.shape.ports
        self._add_requests(host, state.shape, +1)
        self._changed_loads[state.node] = None

    def _remove_from_node(self, key: Key, state: _PodState) -> None:
        host = self._nodes[state.node]
        del host.pods[key]
        host.ports_by_pod.pop(key, None)
        self._add_requests(host, state.shape, -1)
        self._changed_loads[state.node] = None
        self._drop_if_empty(state.node, host)

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
        host = self._nodes.get(name)
        if host is None:
            width = len(self._columns)
            host = self._nodes[name] = _NodeInfo(None, [0] * width, [0] * width, [0, 0])
        return host

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
        for host in self._nodes.values():
            host.allocatable.append(0)
            host.requested.append(0)

    def _rebuild(self) -> None:
        old = self._snapshot
        nodes, loads = [], []
        for _, host in sorted(self._nodes.items(), key=lambda item: item[0]):
            if host.node:
                nodes.append(host.node)
                loads.append(
                    (
                        host.allocatable,
                        host.requested,
                        host.nonzero_requested,
                        host.used_ports if host.ports_by_pod else (),
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
        """Have the snapshot see what changes seldom."""
        snapshot, census = self._snapshot, self._pod_index
        for name, node in self._changed_nodes.items():
            snapshot.update_node(snapshot.index[name], node, self._nodes[name].allocatable)
        for group in self._changed_groups:
            snapshot.group_trees.update(group, self._groups.get(group))
        for key, budget in self._changed_budgets.items():
            _set_or_remove(snapshot.budgets, key, budget)
        for name, labels in self._changed_namespaces.items():
            census.update_namespace(name, labels)
        for space in self._changed_services:
            mine = [labels for key, labels in self._services.items() if key.namespace == space]
            _set_or_remove(census.services, space, tuple(mine))
        for changed in self._rare_changes:
            changed.clear()

    def _apply_pod_changes(self) -> None:
        """Have the snapshot see which pods are where: after every decision."""
        snapshot, hosts, put_resident = self._snapshot, self._nodes, self._pod_index.update
        index = snapshot.index
        for name in self._changed_loads:
            if name in index:
                host = hosts[name]
                ports = host.used_ports if host.ports_by_pod else ()
                snapshot.update_load(index[name], host.requested, host.nonzero_requested, ports)
        for group in self._changed_members:
            _set_or_remove(snapshot.member_counts, group, self._member_counts.get(group))
        for key, resident in self._changed_pods.items():
            put_resident(key, resident)
        for key, claim in self._changed_nominations.items():
            _set_or_remove(snapshot.nominations, key, claim)
        for changed in self._pod_changes:
            changed.clear()

    def _check_nodes(self) -> Iterator[str]:
        for name, host in self._nodes.items():
            fresh = _NodeInfo(None, [], [0] * len(self._columns), [0, 0])
            for shape in host.pods.values():
                self._add_requests(fresh, shape, +1)
            if (fresh.requested, fresh.nonzero_requested) != (
                host.requested,
                host.nonzero_requested,
            ):
                yield f"node {name} counts {host.requested}, its pods add up to {fresh.requested}"
            if min(*host.requested, *host.nonzero_requested) < 0:
                yield f"node {name} counts less than nothing: {host.requested}"

    def _check_pods(self) -> Iterator[str]:
        members: dict[Key, int] = {}
        for key, held in self._pod_states.items():
            host = self._nodes.get(held.node)
            if held.node and (host is None or key not in host.pods):
                yield f"pod {key} is not counted on its node {held.node}"
            if held.assumed and not held.node:
                yield f"pod {key} is assumed to be nowhere"
            if held.node and (group := held.live_group):
                members[group] = members.get(group, 0) + 1
        if members != self._member_counts:
            yield f"groups count {self._member_counts}, their members add up to {members}"
        for name, host in self._nodes.items():
            for key in host.pods:
                if key not in self._pod_states or self._pod_states[key].node != name:
                    yield f"node {name} counts pod {key}, which is not there"

    def _check_snapshot(self) -> Iterator[str]:
        snapshot = self.snapshot()
        for name, i in snapshot.index.items():
            host, spot = self._nodes[name], snapshot.node_class(i)
            tables = np.concatenate(
                (snapshot.allocatable[i], snapshot.requested[i], snapshot.nonzero_requested[i])
            )
            cells = [*spot.allocatable, *spot.requested, *spot.nonzero_requested]
            known = [*clamp_row((*host.allocatable, *host.requested, *host.nonzero_requested))]
            if not known == cells == tables.tolist():
                yield f"the snapshot of node {name} differs from the cache"
            if spot.used_ports != host.used_ports:
                yield f"the snapshot of node {name} has other ports taken than the cache"
        if snapshot.member_counts != self._member_counts:
            yield "the snapshot counts other members than the cache"
        yield from snapshot.pod_index.check()


def _build_pod_state(pod: Pod, old: _PodState | None) -> _PodState:
    """How a live pod is held: as the API says it is, but for what it does not say yet."""
    meta, promised = pod.metadata, pod.status.nominated_node_name
    held = _PodState(
        meta.key,
        meta.uid,
        pod.occupied_node,
        shape_of(pod),
        meta.labels,
        pod.group,
        pod.spec.priority,
        pod.status.start_time or "",
        bool(meta.deletion_timestamp),
        nominated_node=promised,
    )
    if old is None or old.uid != held.uid:
        return held
    if old.is_nomination_unreported and old.nominated_node != promised:
        held = but(held, nominated_node=old.nominated_node, is_nomination_unreported=True)
    doomed = old.evicting and not held.terminating
    if not held.node and old.assumed:
        return but(held, node=old.node, assumed=True, evicting=doomed)
    return but(held, evicting=doomed) if doomed else held


def _is_equivalent_node(one: Node, other: Node) -> bool:
    """Whether nothing changed that a filter or score reads: heartbeats change nothing."""
    return (
        one.spec == other.spec
        and one.metadata.labels == other.metadata.labels
        and one.status.allocatable == other.status.allocatable
        and one.status.images == other.status.images
    )


def _merge_events(
    events: tuple[ClusterEvent, ...], more: tuple[ClusterEvent, ...]
) -> tuple[ClusterEvent, ...]:
    """Events of several pods, each once; what happens to a gang mostly is the same for all."""
    return events if events == more else tuple(dict.fromkeys(events + more))


def _set_or_remove(where: dict[_K, _V], key: _K, value: _V | None) -> None:
    """Set, or remove what has become nothing."""
    if value:
        where[key] = value
    else:
        where.pop(key, None)
