"""A queue with pods in it, and what becomes of an attempt, in one line each."""

from __future__ import annotations

from phalanx.api.core import Pod
from phalanx.scheduler.decision import Binding, Placed, Refused, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.events import Event
from phalanx.scheduler.queueing.entry import State
from phalanx.scheduler.queueing.queue import Queue
from tests.scheduler.builders import key

CURES = frozenset({Event.NODE_ADDED, Event.MEMBER_CHANGED, Event.GROUP_CHANGED})


def refusal(one: Entity) -> Waiting:
    pods = tuple(Refused(m.pod.metadata.key, m.pod.metadata.uid, None) for m in one.members)
    return Waiting(one.group_key, pods, one.quorum, 0, 0, 0, CURES)


def bindings(one: Entity) -> tuple[Binding, ...]:
    return tuple(Binding(m.pod.metadata.key, m.pod.metadata.uid, "n") for m in one.members)


def success(one: Entity, *names: str) -> Placed:
    """All members got a node, or those of these names."""
    chosen = [b for b in bindings(one) if not names or b.pod.name in names]
    return Placed(one.group_key, tuple(chosen))


def pop(queue: Queue, now: float = 0.0) -> Entity:
    one = queue.pop(now)
    assert one is not None
    return one


def names(one: Entity | None) -> list[str]:
    return [m.pod.metadata.name for m in one.members] if one else []


def state(queue: Queue, name: str) -> State:
    return next((p.state for p in queue.listing() if p.key == key(name)), State.IDLE)


def filled(*pods: Pod, now: float = 0.0) -> Queue:
    queue = Queue()
    for one in pods:
        queue.pod(one, now)
    return queue
