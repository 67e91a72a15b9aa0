"""Sight: what a scheduler sees of the cluster, told to its desk as it comes.

Between the informers and `scheduler.desk.Desk`. Where groups do not count, pods are told as if they
were alone; where their preemption policies do not, groups as if they had none. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from phalanx import __version__
from phalanx.api.budget import Budget
from phalanx.api.core import Node, Pod, Service
from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    NAMESPACE,
    NODE,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_GROUP,
    SERVICE,
    Kind,
)
from phalanx.api.meta import Meta
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.client.cache import Cache
from phalanx.clock import Clock
from phalanx.controllers.loop import Informers, Thing
from phalanx.controllers.shell.metrics import SchedulingMetrics
from phalanx.scheduler.decision import Victim
from phalanx.scheduler.queueing.desk import Desk
from phalanx.scheduler.queueing.record import (
    FORMAT,
    Begun,
    BudgetSeen,
    CompositeSeen,
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
        self._composites = (
            informers.of(COMPOSITE_POD_GROUP, CompositePodGroup, optional=True)
            if desk.profiles.groups
            else None
        )
        self._budgets = informers.of(POD_DISRUPTION_BUDGET, Budget, optional=True)
        self._nodes = informers.of(NODE, Node)
        self._namespaces = informers.of(NAMESPACE, Thing, optional=True)
        self._services = informers.of(SERVICE, Service, optional=True)
        self.pods = self._pods.cache
        self.groups = self._groups.cache if self._groups else Cache[PodGroup]()
        composites = self._composites
        self.composites = composites.cache if composites else Cache[CompositePodGroup]()

    @property
    def is_blurred(self) -> bool:
        """Whether pods or nodes may have changed without being seen: they cannot be followed."""
        return any(informer.failure is not None for informer in (self._pods, self._nodes))

    def follow(self, news: Callable[[], None]) -> None:
        """Tell the desk everything from now on; `news` is called when that may matter."""
        self._namespaces.cache.subscribe(self._namespace)
        self._namespaces.settled.append(news)
        self._services.cache.subscribe(self._service)
        self._services.settled.append(news)
        self._nodes.cache.subscribe(self._node)
        self._nodes.settled.append(news)
        # Nobody waits for these: they say who is evicted, never that nobody is.
        self._budgets.cache.subscribe(self._budget)
        if self._composites is not None:
            self._composites.cache.subscribe(self._composite)
            self._composites.settled.append(news)
        if self._groups is not None:
            self._groups.cache.subscribe(self._group)
            self._groups.settled.append(news)
        self._pods.cache.subscribe(self._pod)
        self._pods.settled.append(news)

    def beginning(self, at: float) -> Iterator[Record]:
        """What another desk must be told to go on like this one."""
        profiles, sequence = self._desk.profiles, self._desk.queue.sequence
        yield Begun(
            at, FORMAT, __version__, tuple(profiles.policies), profiles.said, sequence,
            profiles.groups_preempt,
        )  # fmt: skip
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
        for composite in self.composites.values():
            seen = self._composite_as_seen(composite)
            yield CompositeSeen(at, composite.metadata.key, seen)
        for budget in self._budgets.cache.values():
            yield BudgetSeen(at, budget.metadata.key, budget)
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
        selector = new.spec.selector if new else None
        if old is None or new is None or old.spec.selector != selector:
            key = _either(old, new).metadata.key
            self._tell("Service", old, new, ServiceSeen(self._clock.now(), key, selector))

    def _node(self, old: Node | None, new: Node | None) -> None:
        name = _either(old, new).metadata.name
        self._tell("Node", old, new, NodeSeen(self._clock.now(), name, new))

    def _group(self, old: PodGroup | None, new: PodGroup | None) -> None:
        key, seen = _either(old, new).metadata.key, self._group_as_seen(new) if new else None
        self._tell("PodGroup", old, new, GroupSeen(self._clock.now(), key, seen))

    def _composite(self, old: CompositePodGroup | None, new: CompositePodGroup | None) -> None:
        key, seen = _either(old, new).metadata.key, self._composite_as_seen(new) if new else None
        self._tell("CompositePodGroup", old, new, CompositeSeen(self._clock.now(), key, seen))

    def _budget(self, old: Budget | None, new: Budget | None) -> None:
        key = _either(old, new).metadata.key
        self._tell("PodDisruptionBudget", old, new, BudgetSeen(self._clock.now(), key, new))

    def _pod(self, old: Pod | None, new: Pod | None) -> None:
        key, seen = _either(old, new).metadata.key, self._as_seen(new) if new else None
        self._tell("Pod", old, new, PodSeen(self._clock.now(), key, seen))

    def _as_seen(self, pod: Pod) -> Pod:
        return pod if self._groups else pod.alone

    def _group_as_seen(self, group: PodGroup) -> PodGroup:
        return group if self._desk.profiles.preemption_policies else group.deferring

    def _composite_as_seen(self, group: CompositePodGroup) -> CompositePodGroup:
        return group if self._desk.profiles.preemption_policies else group.deferring

    def disrupted(self, victims: Iterable[Victim]) -> tuple[tuple[Kind, Meta], ...]:
        """The groups that lose all of their pods with these."""
        found: dict[str, tuple[Kind, Meta]] = {}
        for victim in victims:
            if victim.group is None:
                continue
            pod = self.pods.get(victim.pod)
            groups = [self.groups.get(pod.group)] if pod and pod.group else []
            wholes = [self.composites.get(victim.group)] if victim.is_composite else []
            found |= {one.metadata.uid: (POD_GROUP, one.metadata) for one in groups if one}
            found |= {
                one.metadata.uid: (COMPOSITE_POD_GROUP, one.metadata) for one in wholes if one
            }
        return tuple(found.values())

    def _tell(self, kind: str, old: object | None, new: object | None, seen: Seen) -> None:
        self._desk.feed(seen)
        what = "Add" if old is None else "Delete" if new is None else "Update"
        self._metrics.handled(kind, what, self._clock.now() - seen.at)


def _either(old: T | None, new: T | None) -> T:
    """Of a change one side is always there."""
    found = new if new is not None else old
    assert found is not None
    return found
