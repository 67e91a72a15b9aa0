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

from phalanx.api.budget import Budget
from phalanx.api.core import Node, Pod
from phalanx.api.meta import Key
from phalanx.api.resources import node_room
from phalanx.scheduler.cluster.census import Census, Resident
from phalanx.scheduler.cluster.forest import Group, Name
from phalanx.scheduler.cluster.selection import Labels
from phalanx.scheduler.cluster.shape import Shape, shape_of
from phalanx.scheduler.cluster.snapshot import (
    CPU,
    FIRST_COLUMNS,
    MEMORY,
    TOO_MUCH,
    Ports,
    Snapshot,
)
from phalanx.scheduler.cluster.spot import bounded
from phalanx.scheduler.decision import Binding
from phalanx.scheduler.events import Event

_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(slots=True)
class _Host:
    """What is known of a node by name; without a node, pods that were bound to it wait for it."""

    node: Node | None
    room: list[int]
    used: list[int]
    scored: list[int]
    pods: dict[Key, Shape] = field(default_factory=dict)
    #: The ports that some of them take.
    taken: dict[Key, Ports] = field(default_factory=dict)

    @property
    def ports(self) -> Ports:
        """All ports that are taken."""
        return tuple(port for ports in self.taken.values() for port in ports)


class _Held(Struct, frozen=True):
    """A pod that has not ended: where it is ("": nowhere yet) and whether that is only assumed."""

    key: Key
    uid: str
    node: str
    shape: Shape
    labels: Labels
    #: The group that it names.
    group: Key | None
    priority: int
    started: str
    leaving: bool
    assumed: bool = False
    #: The node that it was promised once others have left, and whether the API does not say so yet.
    promised: str = ""
    untold: bool = False
    #: Whether it is to be evicted, and the API does not say so yet.
    doomed: bool = False

    @property
    def member_of(self) -> Key | None:
        """The group that it is a live member of."""
        return None if self.leaving or self.doomed else self.group

    def on(self, node: str) -> _Held:
        """The same pod, assumed to be on a node, or on none any more."""
        return but(self, node=node, assumed=bool(node))

    @property
    def claim(self) -> Resident | None:
        """The pod as if it were where it was promised to be, if it was and has no node yet."""
        return self.seen_on(self.promised) if self.promised and not self.node else None

    def seen_on(self, node: str) -> Resident:
        """The pod as others see it that is on a node."""
        return Resident(
            self.key, self.uid, node, self.labels, self.shape, self.leaving or self.doomed,
            self.group, self.priority, self.started,
        )  # fmt: skip


class Cache:
    """The cluster as the scheduler believes it to be."""

    def __init__(self) -> None:
        self._columns = {name: i for i, name in enumerate(FIRST_COLUMNS)}
        self._hosts: dict[str, _Host] = {}
        self._pods: dict[Key, _Held] = {}
        self._groups: dict[Name, Group] = {}
        self._members: dict[Key, int] = {}
        self._services: dict[Key, Labels] = {}
        self._census = Census()
        self._snapshot = Snapshot((), self._columns)
        self._restructured = False
        #: What the snapshot has not seen yet of pods,
        self._changed_loads: dict[str, None] = {}
        self._changed_members: dict[Key, None] = {}
        self._changed_pods: dict[Key, Resident | None] = {}
        self._changed_claims: dict[Key, Resident | None] = {}
        self._changes = (
            self._changed_loads, self._changed_members, self._changed_pods, self._changed_claims,
        )  # fmt: skip
        #: and of all else.
        self._changed_nodes: dict[str, Node] = {}
        self._changed_groups: dict[Name, None] = {}
        self._changed_budgets: dict[Key, Budget | None] = {}
        self._changed_spaces: dict[str, Labels | None] = {}
        self._changed_services: dict[str, None] = {}
        self._seldom_changes = (
            self._changed_nodes, self._changed_groups, self._changed_budgets,
            self._changed_spaces, self._changed_services,
        )  # fmt: skip

    def node(self, name: str, node: Node | None) -> Event | None:
        """A node came, changed or went (None). Says what that may cure."""
        host = self._hosts.get(name)
        old = host.node if host else None
        if node is None:
            self._remove_node(name, host)
            # Whoever minds other pods sees none there any more.
            return Event.POD_PLACED if old else None
        if old is not None and _same(old, node):
            return None
        host = self._host(name)
        host.node, host.room = node, self._row(node_room(node))
        if old is None:
            self._restructured = True
            return Event.NODE_ADDED
        self._changed_nodes[name] = node
        return Event.NODE_UPDATED

    def pod(self, key: Key, pod: Pod | None) -> tuple[Event, ...]:
        """A pod came, changed or went (None). Says what that may cure."""
        old = self._pods.get(key)
        new = None if pod is None or pod.ended else _held(pod, old)
        return self._put_pod(key, old, new)

    def promise(self, bindings: Iterable[Binding]) -> tuple[Event, ...]:
        """Keep these nodes ("": none) for these pods, which wait for others to leave."""
        events: tuple[Event, ...] = ()
        for key, uid, node in bindings:
            held = self._pods.get(key)
            if held and held.uid == uid and held.promised != node:
                events += self._put_pod(key, held, but(held, promised=node, untold=True))
        return events

    def doom(self, pods: Iterable[tuple[Key, str]], *, doomed: bool = True) -> None:
        """Count these pods, by name and uid, as leaving, or (they were spared) not any more.

        What that may cure is said when they are seen to leave: else whoever evicts in vain would
        wake others who do, and these him.
        """
        for key, uid in pods:
            held = self._pods.get(key)
            if held and held.uid == uid:
                self._put_pod(key, held, but(held, doomed=doomed))

    def namespace(self, name: str, labels: Labels | None) -> Event | None:
        """A namespace came, changed or went (None). Says what that may cure."""
        self._changed_spaces[name] = labels
        return Event.POD_PLACED

    def service(self, key: Key, selector: Labels | None) -> None:
        """A Service came, changed or went (None): its pods are spread if they ask nothing else."""
        _put(self._services, key, selector)
        self._changed_services[key.namespace] = None

    def group(self, name: Name, group: Group | None) -> None:
        """A group, of pods or of groups, came, changed or went (None)."""
        _put(self._groups, name, group)
        self._changed_groups[name] = None

    def budget(self, key: Key, budget: Budget | None) -> None:
        """A disruption budget came, changed or went (None)."""
        self._changed_budgets[key] = budget

    def assume(self, bindings: Iterable[Binding]) -> tuple[Event, ...]:
        """Count these pods on these nodes from now on, but none that is gone or has a node."""
        events: tuple[Event, ...] = ()
        for key, uid, node in bindings:
            held = self._pods.get(key)
            if held and held.uid == uid and not held.node:
                events = _and(events, self._put_pod(key, held, held.on(node)))
        return events

    def forget(self, bindings: Iterable[Binding]) -> tuple[Event, ...]:
        """Take assumptions back that did not come true. Says what that may cure."""
        events: tuple[Event, ...] = ()
        for key, uid, node in bindings:
            held = self._pods.get(key)
            if held and held.assumed and (held.uid, held.node) == (uid, node):
                events = _and(events, self._put_pod(key, held, held.on("")))
        return events

    def placed(self, group: Key) -> int:
        """How many live members of a group have a node, bound or assumed."""
        return self._members.get(group, 0)

    def assumed(self) -> list[Key]:
        """The pods whose binding was not seen yet: none at quiet."""
        return [binding.pod for binding in self.assumptions()]

    def assumptions(self) -> list[Binding]:
        """The same pods, each with the node that it is counted on."""
        found = [Binding(k, held.uid, held.node) for k, held in self._pods.items() if held.assumed]
        return sorted(found)

    def doomed(self) -> list[tuple[Key, str]]:
        """The pods, by name and uid, that are to be evicted and are not seen leaving yet."""
        return sorted((key, held.uid) for key, held in self._pods.items() if held.doomed)

    def promises(self) -> list[Binding]:
        """What pods were promised ("": nothing any more) that the API does not say yet."""
        pods = self._pods.items()
        return sorted(Binding(k, held.uid, held.promised) for k, held in pods if held.untold)

    def sizes(self) -> dict[str, int]:
        """How many nodes there are, pods on nodes, and pods that are only assumed to be there."""
        pods = sum(bool(held.node) for held in self._pods.values())
        assumed = sum(held.assumed for held in self._pods.values())
        nodes = sum(host.node is not None for host in self._hosts.values())
        return {"nodes": nodes, "pods": pods, "assumed_pods": assumed}

    def snapshot(self) -> Snapshot:
        """The cluster now. There is one at a time: the last one is brought up to date."""
        if self._restructured:
            self._rebuild()
        if any(self._seldom_changes):
            self._follow_others()
        if any(self._changes):
            self._follow_pods()
        return self._snapshot

    def check(self) -> list[str]:
        """Sentences about every invariant that does not hold; none in a healthy cache.

        Looks at the snapshot too and so brings it up to date: not to be called during a cycle.
        """
        return [*self._check_hosts(), *self._check_pods(), *self._check_snapshot()]

    def _remove_node(self, name: str, host: _Host | None) -> None:
        if host and host.node:
            host.node, host.room = None, [0] * len(self._columns)
            self._restructured = True
            self._changed_nodes.pop(name, None)
            self._drop_if_empty(name, host)

    def _put_pod(self, key: Key, old: _Held | None, new: _Held | None) -> tuple[Event, ...]:
        """One version of a pod takes the place of another, wherever each is."""
        moved = not (old and new and old.node == new.node and old.shape == new.shape)
        before = old.seen_on(old.node) if old and old.node else None
        after = new.seen_on(new.node) if new and new.node else None
        if old and before:
            self._count(old.member_of, -1)
            if moved:
                self._unload(key, old)
        if new and after:
            self._count(new.member_of, +1)
            if moved:
                self._load(key, new)
        _put(self._pods, key, new)
        claimed, claims = old.claim if old else None, new.claim if new else None
        is_news = before != after
        if is_news:
            self._changed_pods[key] = after
        if claimed != claims:
            self._changed_claims[key] = claims
        home = after or claims
        released = claimed and (home is None or home.node != claimed.node)
        gone = (Event.POD_GONE,) if (moved and before) or released else ()
        is_news = is_news or bool(old and new and old.leaving != new.leaving)
        return (*gone, Event.POD_PLACED) if after and is_news else gone

    def _load(self, key: Key, held: _Held) -> None:
        host = self._host(held.node)
        host.pods[key] = held.shape
        if held.shape.ports:
            host.taken[key] = held.shape.ports
        self._add(host, held.shape, +1)
        self._changed_loads[held.node] = None

    def _unload(self, key: Key, held: _Held) -> None:
        host = self._hosts[held.node]
        del host.pods[key]
        host.taken.pop(key, None)
        self._add(host, held.shape, -1)
        self._changed_loads[held.node] = None
        self._drop_if_empty(held.node, host)

    def _add(self, host: _Host, shape: Shape, sign: int) -> None:
        used, columns = host.used, self._columns
        for name, amount in shape.requests:
            if name not in columns:
                self._new_column(name)
            used[columns[name]] += sign * amount
        cpu, memory = shape.scored
        host.scored[CPU] += sign * cpu
        host.scored[MEMORY] += sign * memory

    def _count(self, group: Key | None, change: int) -> None:
        if group:
            _put(self._members, group, self._members.get(group, 0) + change)
            self._changed_members[group] = None

    def _host(self, name: str) -> _Host:
        host = self._hosts.get(name)
        if host is None:
            width = len(self._columns)
            host = self._hosts[name] = _Host(None, [0] * width, [0] * width, [0, 0])
        return host

    def _drop_if_empty(self, name: str, host: _Host) -> None:
        if not host.node and not host.pods:
            del self._hosts[name]
            self._changed_loads.pop(name, None)

    def _row(self, amounts: dict[str, int]) -> list[int]:
        for name in amounts:
            if name not in self._columns:
                self._new_column(name)
        return [min(amounts.get(name, 0), TOO_MUCH - 1) for name in self._columns]

    def _new_column(self, name: str) -> None:
        self._columns[name] = len(self._columns)
        self._restructured = True
        for host in self._hosts.values():
            host.room.append(0)
            host.used.append(0)

    def _rebuild(self) -> None:
        old = self._snapshot
        nodes, loads = [], []
        for _, host in sorted(self._hosts.items(), key=lambda item: item[0]):
            if host.node:
                nodes.append(host.node)
                loads.append((host.room, host.used, host.scored, host.ports if host.taken else ()))
        self._snapshot = new = Snapshot(nodes, self._columns, loads)
        new.members, new.forest, new.claims = old.members, old.forest, old.claims
        new.budgets, new.census = old.budgets, self._census
        self._census.renumber(new.index)
        self._restructured = False
        self._changed_nodes.clear()
        self._changed_loads.clear()

    def _follow_others(self) -> None:
        """Have the snapshot see what changes seldom."""
        snapshot, census = self._snapshot, self._census
        for name, node in self._changed_nodes.items():
            snapshot.put_node(snapshot.index[name], node, self._hosts[name].room)
        for group in self._changed_groups:
            snapshot.forest.put(group, self._groups.get(group))
        for key, budget in self._changed_budgets.items():
            _put(snapshot.budgets, key, budget)
        for name, labels in self._changed_spaces.items():
            census.put_namespace(name, labels)
        for space in self._changed_services:
            mine = [labels for key, labels in self._services.items() if key.namespace == space]
            _put(census.services, space, tuple(mine))
        for changed in self._seldom_changes:
            changed.clear()

    def _follow_pods(self) -> None:
        """Have the snapshot see which pods are where: after every decision."""
        snapshot, hosts, put_resident = self._snapshot, self._hosts, self._census.put
        index = snapshot.index
        for name in self._changed_loads:
            if name in index:
                host = hosts[name]
                ports = host.ports if host.taken else ()
                snapshot.put_load(index[name], host.used, host.scored, ports)
        for group in self._changed_members:
            _put(snapshot.members, group, self._members.get(group))
        for key, resident in self._changed_pods.items():
            put_resident(key, resident)
        for key, claim in self._changed_claims.items():
            _put(snapshot.claims, key, claim)
        for changed in self._changes:
            changed.clear()

    def _check_hosts(self) -> Iterator[str]:
        for name, host in self._hosts.items():
            fresh = _Host(None, [], [0] * len(self._columns), [0, 0])
            for shape in host.pods.values():
                self._add(fresh, shape, +1)
            if (fresh.used, fresh.scored) != (host.used, host.scored):
                yield f"node {name} counts {host.used}, its pods add up to {fresh.used}"
            if min(*host.used, *host.scored) < 0:
                yield f"node {name} counts less than nothing: {host.used}"

    def _check_pods(self) -> Iterator[str]:
        members: dict[Key, int] = {}
        for key, held in self._pods.items():
            host = self._hosts.get(held.node)
            if held.node and (host is None or key not in host.pods):
                yield f"pod {key} is not counted on its node {held.node}"
            if held.assumed and not held.node:
                yield f"pod {key} is assumed to be nowhere"
            if held.node and (group := held.member_of):
                members[group] = members.get(group, 0) + 1
        if members != self._members:
            yield f"groups count {self._members}, their members add up to {members}"
        for name, host in self._hosts.items():
            for key in host.pods:
                if key not in self._pods or self._pods[key].node != name:
                    yield f"node {name} counts pod {key}, which is not there"

    def _check_snapshot(self) -> Iterator[str]:
        snapshot = self.snapshot()
        for name, i in snapshot.index.items():
            host, spot = self._hosts[name], snapshot.spot(i)
            tables = np.concatenate((snapshot.room[i], snapshot.used[i], snapshot.scored[i]))
            cells = [*spot.room, *spot.used, *spot.scored]
            known = [*bounded((*host.room, *host.used, *host.scored))]
            if not known == cells == tables.tolist():
                yield f"the snapshot of node {name} differs from the cache"
            if spot.ports != host.ports:
                yield f"the snapshot of node {name} has other ports taken than the cache"
        if snapshot.members != self._members:
            yield "the snapshot counts other members than the cache"
        yield from snapshot.census.check()


def _held(pod: Pod, old: _Held | None) -> _Held:
    """How a live pod is held: as the API says it is, but for what it does not say yet."""
    meta, promised = pod.metadata, pod.status.nominated_node_name
    held = _Held(
        meta.key, meta.uid, pod.node, shape_of(pod), meta.labels, pod.group, pod.spec.priority,
        pod.status.start_time or "", bool(meta.deletion_timestamp), promised=promised,
    )  # fmt: skip
    if old is None or old.uid != held.uid:
        return held
    if old.untold and old.promised != promised:
        held = but(held, promised=old.promised, untold=True)
    doomed = old.doomed and not held.leaving
    if not held.node and old.assumed:
        return but(held, node=old.node, assumed=True, doomed=doomed)
    return but(held, doomed=doomed) if doomed else held


def _same(one: Node, other: Node) -> bool:
    """Whether nothing changed that a filter or score reads: heartbeats change nothing."""
    return (
        one.spec == other.spec
        and one.metadata.labels == other.metadata.labels
        and one.status.allocatable == other.status.allocatable
        and one.status.images == other.status.images
    )


def _and(events: tuple[Event, ...], more: tuple[Event, ...]) -> tuple[Event, ...]:
    """Events of several pods, each once; what happens to a gang mostly is the same for all."""
    return events if events == more else tuple(dict.fromkeys(events + more))


def _put(where: dict[_K, _V], key: _K, value: _V | None) -> None:
    """Set, or remove what has become nothing."""
    if value:
        where[key] = value
    else:
        where.pop(key, None)
