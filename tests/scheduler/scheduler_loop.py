"""A minimal scheduler: queue, cache and cycle in one thread, where every binding succeeds at once.

A test adds and deletes objects in virtual time and reads which pods are bound where.
"""

from __future__ import annotations

from phalanx.api.core import Node, Pod
from phalanx.api.meta import Key
from phalanx.api.scheduling import PodGroup
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.cluster_delta import ClusterDelta
from phalanx.scheduler.cluster.group_tree import group_ref
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Placed
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.explain import describe_unready, explain
from phalanx.scheduler.policy import DEFAULT_POLICY
from phalanx.scheduler.queue.scheduling_queue import SchedulingQueue
from tests.scheduler.builders import key, pod_like


class SchedulerLoop:
    """A cluster that is scheduled after every change."""

    def __init__(self, *objects: Node | Pod | PodGroup) -> None:
        self.queue, self.cache = SchedulingQueue(), SchedulerCache()
        self.now = 0.0
        self.bound: dict[str, str] = {}
        self.messages: dict[str, str] = {}
        self.attempts = 0
        self._pods: dict[Key, Pod] = {}
        self.add(*objects)

    def add(self, *objects: Node | Pod | PodGroup) -> None:
        """Add or change objects at once."""
        for one in objects:
            match one:
                case Node():
                    self._wake_waiting(self.cache.update_node(one.metadata.name, one))
                case PodGroup():
                    self.cache.update_group(group_ref(one), one)
                    self.queue.observe_group(one, self.now)
                case Pod():
                    self._observe(one)
        self._run()

    def delete(self, *names: str) -> None:
        """Delete pods."""
        for name in names:
            del self._pods[key(name)]
            self.bound.pop(name, None)
            self.queue.remove_pod(key(name), self.now)
            self._wake_waiting(*self.cache.update_pod(key(name), None))
        self._run()

    def advance(self, seconds: float) -> None:
        """Advance the time."""
        self.now += seconds
        self._run()

    def waiting(self) -> dict[str, str]:
        """Return the entities that are not tried, and why."""
        held = self.queue.list_held_back()
        return {place.key.name: describe_unready(place.unready) for place in held if place.unready}

    def _observe(self, one: Pod) -> None:
        self._pods[one.metadata.key] = one
        if one.occupied_node:
            self.bound[one.metadata.name] = one.occupied_node
        self._wake_waiting(*self.cache.update_pod(one.metadata.key, one))
        self.queue.observe_pod(one, self.now)

    def _wake_waiting(self, *changes: ClusterDelta | None) -> None:
        for change in changes:
            if change:
                self.queue.wake(change, self.now)

    def _run(self) -> None:
        while entity := self.queue.pop(self.now):
            self.attempts += 1
            self._attempt(entity)
        assert self.cache.check() == []

    def _attempt(self, entity: Entity) -> None:
        decision = decide(entity, self.cache.snapshot(), DEFAULT_POLICY)
        explanation = explain(decision)
        self.messages[entity.key.name] = explanation.message
        self.messages.update({one.pod.name: one.message for one in explanation.pods})
        if isinstance(decision, Placed):
            self._wake_waiting(*self.cache.assume(decision.bindings))
        self.queue.done(entity, decision, self.now)
        for name, _, node in decision.bindings if isinstance(decision, Placed) else ():
            self._observe(pod_like(self._pods[name], name.name, on=node))
