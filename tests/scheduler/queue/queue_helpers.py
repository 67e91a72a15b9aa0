"""Queues with pods in them, and outcomes of attempts, in one line each."""

from __future__ import annotations

from phalanx.api.core import Pod
from phalanx.scheduler.decision import Binding, ClusterEvent, Placed, UnplacedPod, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.queue.queued_entity import QueueState
from phalanx.scheduler.queue.scheduling_queue import SchedulingQueue
from tests.scheduler.builders import key

WAKE_EVENTS = frozenset(
    {ClusterEvent.NODE_ADDED, ClusterEvent.MEMBER_CHANGED, ClusterEvent.GROUP_CHANGED}
)


def refusal(one: Entity) -> Waiting:
    pods = tuple(UnplacedPod(m.pod.metadata.key, m.pod.metadata.uid, None) for m in one.members)
    return Waiting(one.group_key, pods, one.quorum, 0, 0, 0, WAKE_EVENTS)


def bindings(one: Entity) -> tuple[Binding, ...]:
    return tuple(Binding(m.pod.metadata.key, m.pod.metadata.uid, "n") for m in one.members)


def success(one: Entity, *names: str) -> Placed:
    """A decision that places all members, or those of these names."""
    chosen = [b for b in bindings(one) if not names or b.pod.name in names]
    return Placed(one.group_key, tuple(chosen))


def pop(queue: SchedulingQueue, now: float = 0.0) -> Entity:
    one = queue.pop(now)
    assert one is not None
    return one


def names(one: Entity | None) -> list[str]:
    return [m.pod.metadata.name for m in one.members] if one else []


def state(queue: SchedulingQueue, name: str) -> QueueState:
    return next((p.state for p in queue.list_entities() if p.key == key(name)), QueueState.IDLE)


def queue_with(*pods: Pod, now: float = 0.0) -> SchedulingQueue:
    queue = SchedulingQueue()
    for one in pods:
        queue.observe_pod(one, now)
    return queue
