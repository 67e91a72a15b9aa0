"""Desk: cache and queue together. What is seen goes in, what is to be tried next comes out.

    seen ─▶ feed ─▶ cache, queue ─▶ take ─▶ cycle ─▶ settle ─▶ (bound elsewhere) ─▶ undo
                                           └─▶ (asked elsewhere) ─▶ answered

Nothing else reaches cache or queue, and each step is a value that can be written down: a desk that
is told the same steps at the same times does the same. The shell in `controllers/` drives one as
things happen, `replay.py` another from a record. `now` is always an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from phalanx.api.meta import Key
from phalanx.scheduler.cluster.cache import Cache
from phalanx.scheduler.cluster.forest import Name
from phalanx.scheduler.cycle import decide, steps
from phalanx.scheduler.decision import Binding, Decision, Placed, Preempting, promised
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.events import Event
from phalanx.scheduler.queueing.queue import Queue
from phalanx.scheduler.queueing.record import (
    Answered,
    Assumed,
    BudgetSeen,
    CompositeSeen,
    Decided,
    GroupSeen,
    NamespaceSeen,
    NodeSeen,
    PodSeen,
    Promised,
    Record,
    Remembered,
    Searched,
    Seen,
    ServiceSeen,
    Spared,
    Took,
    Undone,
    brief,
    spoken,
)
from phalanx.scheduler.rescue.program import Answer
from phalanx.scheduler.rescue.search import Steps
from phalanx.scheduler.settings.profiles import Profiles


class Desk:
    """What one scheduler knows and has to do. `note` is told every step, if there is one."""

    def __init__(self, profiles: Profiles, note: Callable[[Record], None] | None = None) -> None:
        self.profiles, self._note = profiles, note
        self.cache = Cache()
        self.queue = Queue(*profiles.policies, back_off=profiles.back_off)

    def feed(self, seen: Seen) -> None:
        """Something was seen, or is gone."""
        if self._note:
            self._note(seen)
        _FEEDS[type(seen)](self, seen)

    def take(self, now: float) -> Entity | None:
        """The next entity to try; `settle` must follow before another is taken."""
        entity = self.queue.pop(now)
        if entity and self._note:
            self._note(Took(now, brief(entity)))
        return entity

    def cycle(self, entity: Entity) -> Steps[Decision]:
        """The steps that decide about it, over the cluster as it is known at the first of them."""
        return steps(entity, self.cache.snapshot(), self.profiles.policy(entity))

    def decide(self, entity: Entity) -> Decision:
        """The same at one go."""
        return decide(entity, self.cache.snapshot(), self.profiles.policy(entity))

    def answered(self, answer: Answer, now: float) -> None:
        """What the cycle that is under way was told when it asked."""
        if self._note:
            self._note(Answered(now, answer))

    def searched(self, now: float) -> None:
        """A search came to an end that a cycle did not wait for: who asked may ask again."""
        if self._note:
            self._note(Searched(now))
        self.queue.wake(Event.SEARCH_ENDED, now)

    def settle(self, entity: Entity, decision: Decision, now: float) -> bool:
        """What was decided counts from now on. False: it is not wanted any more and tried anew."""
        if self._note:
            self._note(Decided(now, entity.key, spoken(decision)))
        if isinstance(decision, Placed):
            if not self.queue.is_current(entity, decision.bindings):
                self.queue.again(entity, now)
                return False
            self._wake(self.cache.assume(decision.bindings), now)
        elif isinstance(decision, Preempting):
            if not self.queue.is_current(entity, decision.waiting.promised):
                self.queue.again(entity, now)
                return False
            self.cache.doom((victim.pod, victim.uid) for victim in decision.victims)
        self._promise(entity, decision, now)
        self.queue.done(entity, decision, now)
        return True

    def _promise(self, entity: Entity, decision: Decision, now: float) -> None:
        """Keep for the members what they were promised, and nothing else."""
        nodes = {pod: node for pod, _, node in promised(decision)}
        metas = [member.pod.metadata for member in entity.members]
        self._wake(
            self.cache.promise(
                Binding(meta.key, meta.uid, nodes.get(meta.key, "")) for meta in metas
            ),
            now,
        )

    def spare(self, victims: Iterable[tuple[Key, str]], now: float) -> None:
        """These were to be evicted and were not: they stay."""
        spared = tuple(victims)
        if self._note:
            self._note(Spared(now, spared))
        self.cache.doom(spared, doomed=False)

    def undo(self, bindings: Iterable[Binding], now: float) -> None:
        """These placements did not come about: the pods wait again."""
        undone = tuple(bindings)
        if self._note:
            self._note(Undone(now, undone))
        freed = self.cache.forget(undone)
        self.queue.returned(undone, now)
        self._wake(freed, now)

    def standing(self, now: float) -> Iterator[Record]:
        """What another desk must be told to stand like this one, after all objects."""
        if assumptions := self.cache.assumptions():
            yield Assumed(now, tuple(assumptions))
        promises, doomed = self.cache.promises(), self.cache.doomed()
        if promises or doomed:
            yield Promised(now, tuple(promises), tuple(doomed))
        for memory in self.queue.memories():
            yield Remembered(now, memory)

    def resume(self, record: Assumed | Promised | Remembered) -> None:
        """Stand as another did: what its `standing` says, in that order."""
        if isinstance(record, Assumed):
            self.cache.assume(record.bindings)
            self.queue.placed(record.bindings, record.at)
        elif isinstance(record, Promised):
            self.cache.promise(record.promises)
            self.cache.doom(record.doomed)
        else:
            self.queue.recall(record.memory)

    def _wake(self, events: Iterable[Event | None], now: float) -> None:
        for event in events:
            if event is not None:
                self.queue.wake(event, now)

    def _namespace(self, seen: NamespaceSeen) -> None:
        self._wake([self.cache.namespace(seen.name, seen.labels)], seen.at)

    def _service(self, seen: ServiceSeen) -> None:
        self.cache.service(seen.key, seen.selector)
        # Whoever says nothing of where it is to be is spread with others than before.
        self.queue.wake(Event.POD_PLACED, seen.at)

    def _node(self, seen: NodeSeen) -> None:
        self._wake([self.cache.node(seen.name, seen.node)], seen.at)

    def _group(self, seen: GroupSeen | CompositeSeen) -> None:
        is_composite = isinstance(seen, CompositeSeen)
        self.cache.group(Name(is_composite, seen.key), seen.group)
        if seen.group is None:
            self.queue.group_gone(seen.key, seen.at, is_composite=is_composite)
        else:
            self.queue.group(seen.group, seen.at)

    def _budget(self, seen: BudgetSeen) -> None:
        self.cache.budget(seen.key, seen.budget)

    def _pod(self, seen: PodSeen) -> None:
        freed = self.cache.pod(seen.key, seen.pod)
        if seen.pod is None:
            self.queue.pod_gone(seen.key, seen.at)
        else:
            self.queue.pod(seen.pod, seen.at)
        self._wake(freed, seen.at)


_FEEDS: Mapping[type[Seen], Callable[[Desk, Any], None]] = {
    NamespaceSeen: Desk._namespace,
    ServiceSeen: Desk._service,
    NodeSeen: Desk._node,
    GroupSeen: Desk._group,
    CompositeSeen: Desk._group,
    BudgetSeen: Desk._budget,
    PodSeen: Desk._pod,
}
