"""Sight: what a scheduler sees of the cluster, told to its desk as it comes.

Between the informers and `scheduler.desk.Desk`. Where groups do not count, pods are told as if they
were alone; where their preemption policies do not, groups as if they had none. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from phalanx import __version__
from phalanx.api.core import Node, Pod, Service
from phalanx.api.kinds import NAMESPACE, NODE, POD, POD_GROUP, SERVICE
from phalanx.api.scheduling import PodGroup
from phalanx.client.cache import Cache
from phalanx.clock import Clock
from phalanx.controllers.loop import Informers, Thing
from phalanx.controllers.schedulingmetrics import SchedulingMetrics
from phalanx.scheduler.desk import Desk
from phalanx.scheduler.record import (
    FORMAT,
    Begun,
    GroupSeen,
    NamespaceSeen,
    NodeSeen,
    PodSeen,
    Record,
    Seen,
    ServiceSeen,
)

T = TypeVar("T")


class Sight:
    """The informers of a scheduler, and the desk that they tell."""

    def __init__(
        self, informers: Informers, desk: Desk, clock: Clock, metrics: SchedulingMetrics
    ) -> None:
        self._desk, self._clock, self._metrics = desk, clock, metrics
        self._pods = informers.of(POD, Pod)
        # Where groups do not count, they need not even be served.
        self._groups = informers.of(POD_GROUP, PodGroup) if desk.profiles.groups else None
        self._nodes = informers.of(NODE, Node)
        self._namespaces = informers.of(NAMESPACE, Thing, optional=True)
        self._services = informers.of(SERVICE, Service, optional=True)
        self.pods = self._pods.cache
        self.groups = self._groups.cache if self._groups else Cache[PodGroup]()

    @property
    def is_blurred(self) -> bool:
        """Whether pods or nodes may have changed without being seen: they cannot be followed."""
        return any(informer.failure is not None for informer in (self._pods, self._nodes))

    def follow(self, news: Callable[[], None]) -> None:
        """Tell the desk everything from now on; `news` is called when that may matter."""
        self._namespaces.cache.subscribe(self._namespace)
        self._services.cache.subscribe(self._service)
        self._nodes.cache.subscribe(self._node)
        self._nodes.settled.append(news)
        if self._groups is not None:
            self._groups.cache.subscribe(self._group)
            self._groups.settled.append(news)
        self._pods.cache.subscribe(self._pod)
        self._pods.settled.append(news)

    def beginning(self, at: float) -> Iterator[Record]:
        """What another desk must be told to go on like this one."""
        profiles, sequence = self._desk.profiles, self._desk.queue.sequence
        yield Begun(at, FORMAT, __version__, tuple(profiles.policies), profiles.said, sequence)
        yield from self._picture(at)
        yield from self._desk.standing(at)

    def _picture(self, at: float) -> Iterator[Seen]:
        """Everything that is seen now, as if it had all just come."""
        for space in self._namespaces.cache.values():
            yield NamespaceSeen(at, space.metadata.name, space.metadata.labels)
        for service in self._services.cache.values():
            yield ServiceSeen(at, service.metadata.key, service.spec.selector)
        for node in self._nodes.cache.values():
            yield NodeSeen(at, node.metadata.name, node)
        for group in self.groups.values():
            yield GroupSeen(at, group.metadata.key, self._group_as_seen(group))
        for pod in self.pods.values():
            yield PodSeen(at, pod.metadata.key, self._as_seen(pod))

    def _namespace(self, old: Thing | None, new: Thing | None) -> None:
        labels = new.metadata.labels if new else None
        if old is None or new is None or old.metadata.labels != labels:
            name = _either(old, new).metadata.name
            self._tell("Namespace", old, new, NamespaceSeen(self._clock.now(), name, labels))

    def _service(self, old: Service | None, new: Service | None) -> None:
        key, selector = _either(old, new).metadata.key, new.spec.selector if new else None
        self._tell("Service", old, new, ServiceSeen(self._clock.now(), key, selector))

    def _node(self, old: Node | None, new: Node | None) -> None:
        name = _either(old, new).metadata.name
        self._tell("Node", old, new, NodeSeen(self._clock.now(), name, new))

    def _group(self, old: PodGroup | None, new: PodGroup | None) -> None:
        key, seen = _either(old, new).metadata.key, self._group_as_seen(new) if new else None
        self._tell("PodGroup", old, new, GroupSeen(self._clock.now(), key, seen))

    def _pod(self, old: Pod | None, new: Pod | None) -> None:
        key, seen = _either(old, new).metadata.key, self._as_seen(new) if new else None
        self._tell("Pod", old, new, PodSeen(self._clock.now(), key, seen))

    def _as_seen(self, pod: Pod) -> Pod:
        return pod if self._groups else pod.alone

    def _group_as_seen(self, group: PodGroup) -> PodGroup:
        return group if self._desk.profiles.preemption_policies else group.deferring

    def _tell(self, kind: str, old: object | None, new: object | None, seen: Seen) -> None:
        self._desk.feed(seen)
        what = "Add" if old is None else "Delete" if new is None else "Update"
        self._metrics.handled(kind, what, self._clock.now() - seen.at)


def _either(old: T | None, new: T | None) -> T:
    """Of a change one side is always there."""
    found = new if new is not None else old
    assert found is not None
    return found
