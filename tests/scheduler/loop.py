"""The smallest shell: queue, cache and cycle in one thread, every binding succeeds at once.

Lets a test tell a story in virtual time: who comes, what happens, who is bound where.
"""

from __future__ import annotations

from phalanx.api.core import Node, Pod
from phalanx.api.meta import Key
from phalanx.api.scheduling import PodGroup
from phalanx.scheduler.cluster.cache import Cache
from phalanx.scheduler.cluster.forest import name_of
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Placed
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.events import Event
from phalanx.scheduler.explain import explain, not_ready
from phalanx.scheduler.policy import DEFAULT
from phalanx.scheduler.queueing.queue import Queue
from tests.scheduler.builders import key, pod_like


class Loop:
    """A cluster that is scheduled whenever something happens."""

    def __init__(self, *things: Node | Pod | PodGroup) -> None:
        self.queue, self.cache = Queue(), Cache()
        self.now = 0.0
        self.bound: dict[str, str] = {}
        self.said: dict[str, str] = {}
        self.attempts = 0
        self._pods: dict[Key, Pod] = {}
        self.come(*things)

    def come(self, *things: Node | Pod | PodGroup) -> None:
        """These come or change, together."""
        for thing in things:
            match thing:
                case Node():
                    self._wake(self.cache.node(thing.metadata.name, thing))
                case PodGroup():
                    self.cache.group(name_of(thing), thing)
                    self.queue.group(thing, self.now)
                case Pod():
                    self._see(thing)
        self._run()

    def go(self, *names: str) -> None:
        """These pods are deleted."""
        for name in names:
            del self._pods[key(name)]
            self.bound.pop(name, None)
            self.queue.pod_gone(key(name), self.now)
            self._wake(*self.cache.pod(key(name), None))
        self._run()

    def passes(self, seconds: float) -> None:
        """Time goes by."""
        self.now += seconds
        self._run()

    def waiting(self) -> dict[str, str]:
        """Who is not even tried, and why."""
        held = self.queue.waiting()
        return {place.key.name: not_ready(place.unready) for place in held if place.unready}

    def _see(self, one: Pod) -> None:
        self._pods[one.metadata.key] = one
        if one.node:
            self.bound[one.metadata.name] = one.node
        self._wake(*self.cache.pod(one.metadata.key, one))
        self.queue.pod(one, self.now)

    def _wake(self, *events: Event | None) -> None:
        for event in events:
            if event:
                self.queue.wake(event, self.now)

    def _run(self) -> None:
        while entity := self.queue.pop(self.now):
            self.attempts += 1
            self._attempt(entity)
        assert self.cache.check() == []

    def _attempt(self, entity: Entity) -> None:
        decision = decide(entity, self.cache.snapshot(), DEFAULT)
        explanation = explain(decision)
        self.said[entity.key.name] = explanation.message
        self.said.update({sentence.pod.name: sentence.message for sentence in explanation.pods})
        if isinstance(decision, Placed):
            self._wake(*self.cache.assume(decision.bindings))
        self.queue.done(entity, decision, self.now)
        for name, _, node in decision.bindings if isinstance(decision, Placed) else ():
            self._see(pod_like(self._pods[name], name.name, on=node))
