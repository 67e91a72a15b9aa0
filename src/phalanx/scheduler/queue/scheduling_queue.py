"""The scheduling queue: decides which entity is attempted next.

Entities are pods without a group, PodGroups and trees of groups. Each is in one of six states:

    IDLE ──▶ INCOMPLETE / GATED ──▶ ACTIVE ──pop──▶ IN_FLIGHT ──placed──▶ IDLE
                                      ▲                 │ refused
                                      └── BACKING_OFF ◀─┘
                                       a time, or an event that may end the refusal

`SchedulerState` passes on every pod, group and cluster event, pops an entity, runs its cycle and
reports with `done`. TRANSITIONS says what a trigger does in a state. A pair without a row is a bug
and raises IllegalTransition before anything changes. `now` is always an argument. The queue does
not read nodes and knows nothing about resources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from heapq import heappop, heappush

from phalanx.api.core import DEFAULT_SCHEDULER, Pod
from phalanx.api.meta import (
    COMPOSITE_POD_GROUP_KIND,
    POD_GROUP_KIND,
    POD_KIND,
    Key,
    Ref,
    pod_group_ref,
    pod_ref,
)
from phalanx.api.scheduling import TOPOLOGY_ANNOTATION
from phalanx.scheduler.backoff import DEFAULT_BACKOFF, BackOff
from phalanx.scheduler.cluster.group_tree import Group, GroupTreeProblem, GroupTrees, group_ref
from phalanx.scheduler.decision import (
    ENTITY_EVENTS,
    Binding,
    ClusterEvent,
    Decision,
    IncompleteGroupTree,
    Placed,
)
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.queue.queued_entity import (
    PendingEntity,
    QueueArrival,
    QueuedEntity,
    QueuedEntityCheckpoint,
    QueuedEntityInfo,
    QueueSortKey,
    QueueState,
    SubQueue,
    decode_ref,
    entity_info,
    listing_key,
)


class QueueTrigger(Enum):
    """A reason for an entity to change its state."""

    CHANGED = "its group or a member was created, changed or deleted"
    WOKEN = "an event occurred that may end its refusal"
    EXPIRED = "its back-off has ended"
    POPPED = "it was popped"
    PLACED = "members got nodes"
    REFUSED = "it was refused"
    OUTDATED = "its decision is outdated"
    RETURNED = "bindings of members failed"


class IllegalTransition(Exception):
    """A trigger occurred in a state in which it is impossible."""


class SchedulingQueue:
    """The entities of these schedulers; without names, of the default scheduler."""

    def __init__(self, *names: str, back_off: BackOff = DEFAULT_BACKOFF) -> None:
        self._scheduler_names, self._back_off = names or (DEFAULT_SCHEDULER,), back_off
        self._group_tree = GroupTrees()
        self._entries: dict[Ref, QueuedEntity] = {}
        self._entry_by_pod: dict[Key, QueuedEntity] = {}
        #: Pods that were placed and whose binding was not observed yet.
        self._assumed: dict[Key, Pod] = {}
        self._active: list[tuple[QueueSortKey, Ref]] = []
        self._backing_off: list[tuple[float, Ref]] = []
        self._waiting_for_event: dict[ClusterEvent, dict[Ref, QueuedEntity]] = {
            event: {} for event in ClusterEvent
        }
        self._in_flight: dict[Ref, QueuedEntity] = {}
        #: The next sequence number: the order of entities with equal timestamps.
        self.sequence = 0
        #: How many entities, and pods of theirs, arrived in which queue, and why.
        self.arrivals: Counter[QueueArrival] = Counter()
        self.pod_arrivals: Counter[QueueArrival] = Counter()

    def observe_pod(self, pod: Pod, now: float) -> None:
        """Add a pod, or its new version."""
        key = pod.metadata.key
        self._drop_replaced_pod(pod, now)
        if not _is_alive(pod) or (pod.group is None and not self._is_ours(pod)):
            self.remove_pod(key, now)
        elif key in self._assumed and not pod.spec.node_name:
            self._assumed[key] = pod
        else:
            self._assumed.pop(key, None)
            self._upsert_pod(pod, now)

    def remove_pod(self, key: Key, now: float) -> None:
        """Remove a pod that was deleted, has ended, or belongs to another scheduler."""
        self._assumed.pop(key, None)
        entry = self._entry_by_pod.pop(key, None)
        if entry:
            entry.remove_pod(key)
            self._notify(entry, ClusterEvent.MEMBER_GONE, now)

    def observe_group(self, group: Group, now: float) -> None:
        """Add a group, or its new version."""
        name = group_ref(group)
        if _is_same_group(self._group_tree.get(name), group):
            self._group_tree.update(name, group)
        else:
            self._update_tree(name, group, now)

    def remove_group(self, ref: Ref, now: float) -> None:
        """Remove a group."""
        if self._group_tree.get(ref) is not None:
            self._update_tree(ref, None, now)

    def _update_tree(self, name: Ref, group: Group | None, now: float) -> None:
        """Add, replace or remove (None) a group; move pods whose tree changes with it."""
        before = {one: self._entity_of_group(one) for one in self._group_tree.subtree(name)}
        self._group_tree.update(name, group)
        entities = dict.fromkeys(before.values())
        for one, old in before.items():
            new = self._entity_of_group(one)
            entities[new] = None
            if new != old and one.kind == POD_GROUP_KIND:
                self._move_pods(one.key, old, new)
        for ref in entities:
            if entry := self._entries.get(ref):
                self._notify(entry, ClusterEvent.GROUP_CHANGED, now)

    def _move_pods(self, group: Key, old: Ref, new: Ref) -> None:
        """Move the pods of a group to the entry of another entity."""
        source = self._entries.get(old)
        pods = [pod for pod in source.pods if pod.group == group] if source else []
        for pod in pods:
            assert source is not None
            target = self._entry_by_pod[pod.metadata.key] = self._get_or_create(new)
            target.adopt_pod(pod.metadata.key, source)

    def _entity_of_group(self, name: Ref) -> Ref:
        """The entity of a group: the root of its tree, or itself if the tree has a problem."""
        root = self._group_tree.root(name)
        return name if isinstance(root, GroupTreeProblem) else root

    def _entity_of_pod(self, pod: Pod) -> Ref:
        return (
            self._entity_of_group(pod_group_ref(pod.group))
            if pod.group
            else pod_ref(pod.metadata.key)
        )

    def wake(self, event: ClusterEvent, now: float) -> None:
        """A cluster event occurred: activate the entities that wait for it."""
        for entry in self._in_flight.values():
            entry.missed_events.add(event)
        for entry in list(self._waiting_for_event[event].values()):
            self._apply(entry, QueueTrigger.WOKEN, now, event=event)

    def pop(self, now: float) -> Entity | None:
        """Return the next entity; it is in flight until `done`."""
        while self._backing_off and self._backing_off[0][0] <= now:
            until, ref = heappop(self._backing_off)
            if self._is_backing_off(ref, until):
                self._apply(self._entries[ref], QueueTrigger.EXPIRED, now)
        while self._active:
            sort_key, ref = heappop(self._active)
            entry = self._entries.get(ref)
            if entry and entry.heap_key == sort_key:
                entry.heap_key = None
                if entry.state is QueueState.ACTIVE:
                    self._apply(entry, QueueTrigger.POPPED, now)
                    return entry.start_attempt(now)
        return None

    def done(self, entity: Entity, outcome: Decision, now: float) -> None:
        """End an attempt. Placed pods leave the queue until they are bound or returned."""
        entry = self._entry_in_flight(entity)
        trigger = QueueTrigger.PLACED if isinstance(outcome, Placed) else QueueTrigger.REFUSED
        self._transition(entry, trigger)
        if isinstance(outcome, Placed):
            self._assume(entry, outcome.bindings)
        else:
            entry.record_failure(outcome)
        self._apply(entry, trigger, now)

    def is_current(self, entity: Entity, bindings: Iterable[Binding]) -> bool:
        """Whether these pods are still pending and the groups of the entity are unchanged."""
        entry = self._entry_in_flight(entity)
        is_pending = all(entry.is_pending(pod, uid) for pod, uid, _ in bindings)
        tree = [part.group for part in entity.groups]
        refs = self._group_tree.valid_subtree(entry.ref) if entry.ref.kind != POD_KIND else ()
        now = [self._group_tree.get(ref) for ref in refs]
        return is_pending and len(tree) == len(now) and all(map(_is_same_group, tree, now))

    def requeue(self, entity: Entity, now: float) -> None:
        """End an attempt whose decision is outdated; the entity keeps its position."""
        self._apply(self._entry_in_flight(entity), QueueTrigger.OUTDATED, now)

    def return_unbound(self, bindings: Iterable[Binding], now: float) -> None:
        """Bindings failed: queue the pods again, after a back-off."""
        entries: dict[Ref, QueuedEntity] = {}
        for key, uid, _ in bindings:
            pod = self._assumed.get(key)
            if pod and pod.metadata.uid == uid:
                del self._assumed[key]
                entry = self._get_or_create(self._entity_of_pod(pod))
                entry.upsert_pod(pod, now, pending=True)
                self._entry_by_pod[key] = entries[entry.ref] = entry
        for entry in entries.values():
            entry.errors += 1
            self._apply(entry, QueueTrigger.RETURNED, now)

    def next_backoff_end(self) -> float | None:
        """Return when the next back-off ends; None if no entity is backing off."""
        while self._backing_off:
            until, ref = self._backing_off[0]
            if self._is_backing_off(ref, until):
                return until
            heappop(self._backing_off)
        return None

    def list_held_back(self) -> list[QueuedEntityInfo]:
        """The entities that are incomplete or gated."""
        return [entity_info(entry) for entry in self._entries.values() if entry.state in _HELD_BACK]

    def broken_trees(self) -> Iterator[tuple[Key, IncompleteGroupTree]]:
        """Yield the CompositePodGroups whose tree is incomplete or invalid."""
        for name in self._group_tree.groups:
            if name.kind == COMPOSITE_POD_GROUP_KIND and isinstance(
                problem := self._group_tree.root(name), GroupTreeProblem
            ):
                yield name.key, IncompleteGroupTree(problem.message, not problem.missing_group)

    def list_entities(self) -> list[QueuedEntityInfo]:
        """All entities with pending pods, the next one first."""
        entries = [entry for entry in self._entries.values() if entry.state is not QueueState.IDLE]
        return [entity_info(entry) for entry in sorted(entries, key=listing_key)]

    def pending_entities(self) -> Iterator[PendingEntity]:
        """Yield the entities in the queues of kube-scheduler, in no order."""
        for entry in self._entries.values():
            if queue_name := entry.queue_name:
                scheduler_name = next(iter(entry.pending.values())).pod.spec.scheduler_name
                outcome = entry.outcome if entry.state is QueueState.BACKING_OFF else None
                sub_queue, pods = SubQueue(queue_name, entry.is_group), len(entry.pending)
                yield PendingEntity(
                    sub_queue, entry.state, pods, scheduler=scheduler_name, outcome=outcome
                )

    @property
    def late_member_count(self) -> int:
        """How many pods were created during the cycle of their group, and wait for its end."""
        groups_in_flight = (entry for entry in self._in_flight.values() if entry.is_group)
        return sum(
            not member.attempts for entry in groups_in_flight for member in entry.pending.values()
        )

    def checkpoint(self) -> list[QueuedEntityCheckpoint]:
        """Return what a queue with the same pods and groups needs to continue like this one."""
        return [
            entry.checkpoint()
            for entry in self._entries.values()
            if entry.queue_name or entry.others
        ]

    def restore(self, checkpoint: QueuedEntityCheckpoint) -> None:
        """Restore the state of an entity whose pods and groups were observed before."""
        entry = self._entries[decode_ref(checkpoint.id)]
        entry.restore(checkpoint)
        if entry.heap_key:
            heappush(self._active, (entry.heap_key, entry.ref))
        if QueueState[checkpoint.state] is QueueState.BACKING_OFF:
            self._back_off_until(entry, checkpoint.until, frozenset(checkpoint.wakes_on))
        else:
            self._enter_state(entry, QueueState[checkpoint.state])

    def assume(self, bindings: Iterable[Binding], now: float) -> None:
        """Take pods out of the queue that were placed before the decision log began."""
        for binding in bindings:
            if entry := self._entry_by_pod.get(binding.pod):
                self._assume(entry, [binding])
                self._apply(entry, QueueTrigger.CHANGED, now)

    def _is_ours(self, pod: Pod) -> bool:
        return not pod.spec.node_name and pod.spec.scheduler_name in self._scheduler_names

    def _upsert_pod(self, pod: Pod, now: float) -> None:
        entry = self._entry_by_pod[pod.metadata.key] = self._get_or_create(self._entity_of_pod(pod))
        if entry.upsert_pod(pod, now, pending=self._is_ours(pod)):
            self._notify(entry, ClusterEvent.MEMBER_CHANGED, now)

    def _drop_replaced_pod(self, pod: Pod, now: float) -> None:
        """Remove the old pod if a pod was deleted and recreated between two observations."""
        key, uid = pod.metadata.key, pod.metadata.uid
        entry, assumed = self._entry_by_pod.get(key), self._assumed.get(key)
        is_replaced = entry is not None and not (
            entry.ref == self._entity_of_pod(pod) and entry.contains(key, uid)
        )
        if is_replaced or (assumed and assumed.metadata.uid != uid):
            self.remove_pod(key, now)

    def _assume(self, entry: QueuedEntity, bindings: Iterable[Binding]) -> None:
        for key, uid, _ in bindings:
            member = entry.pending.get(key)
            if member and member.pod.metadata.uid == uid:
                self._assumed[key] = member.pod
                entry.remove_pod(key)
                if entry.is_group:
                    entry.others[key] = member.pod
                else:
                    del self._entry_by_pod[key]

    def _get_or_create(self, ref: Ref) -> QueuedEntity:
        entry = self._entries.get(ref)
        if entry is None:
            entry = self._entries[ref] = QueuedEntity(ref, self._group_tree)
        return entry

    def _entry_in_flight(self, entity: Entity) -> QueuedEntity:
        return self._entries[entity.ref]

    def _is_backing_off(self, ref: Ref, until: float) -> bool:
        entry = self._entries.get(ref)
        return (
            entry is not None
            and entry.state is QueueState.BACKING_OFF
            and entry.backoff_until == until
        )

    def _notify(self, entry: QueuedEntity, event: ClusterEvent, now: float) -> None:
        """An event occurred that concerns this entity alone."""
        entry.missed_events.add(event)
        is_awaited = event in entry.wakes_on
        trigger = QueueTrigger.WOKEN if is_awaited else QueueTrigger.CHANGED
        self._apply(entry, trigger, now, event=event)

    def _apply(
        self,
        entry: QueuedEntity,
        trigger: QueueTrigger,
        now: float,
        event: ClusterEvent | None = None,
    ) -> None:
        before = entry.state
        self._transition(entry, trigger)(self, entry, now)
        if entry.state is before:
            return
        if before in _UNREADY and entry.state is QueueState.ACTIVE:
            entry.ready_since = now
        if line := entry.queue_name:
            arrival = QueueArrival(SubQueue(line, entry.is_group), event or trigger)
            self.arrivals[arrival] += 1
            self.pod_arrivals[arrival] += len(entry.pending)

    def _transition(self, entry: QueuedEntity, trigger: QueueTrigger) -> Transition:
        transition = TRANSITIONS.get((entry.state, trigger))
        if transition is None:
            raise IllegalTransition(f"{entry.ref.key} is {entry.state.name}, yet {trigger.value}")
        return transition

    def _ignore(self, entry: QueuedEntity, now: float) -> None:
        """Change nothing."""

    def _reclassify(self, entry: QueuedEntity, now: float) -> None:
        """Enter the state that follows from the objects of the entity."""
        self._enter_state(entry, entry.target_state)

    def _start_waiting(self, entry: QueuedEntity, now: float) -> None:
        """The first pending pods start a new wait."""
        entry.attempts = entry.failures = entry.errors = 0
        self._renew_timestamp(entry, now)
        self._reclassify(entry, now)

    def _recheck_backoff(self, entry: QueuedEntity, now: float) -> None:
        """Continue the back-off unless the entity can no longer be attempted."""
        if entry.target_state is not QueueState.ACTIVE:
            self._reclassify(entry, now)

    def _start_attempt(self, entry: QueuedEntity, now: float) -> None:
        entry.missed_events.clear()
        entry.has_returned_pods = False
        self._enter_state(entry, QueueState.IN_FLIGHT)

    def _on_placed(self, entry: QueuedEntity, now: float) -> None:
        """Attempt leftover members again at once; members created meanwhile start a new wait."""
        entry.failures, entry.outcome = 0, None
        if entry.has_returned_pods:
            self._on_returned(entry, now)
            return
        entry.errors = 0
        if not any(member.attempts for member in entry.pending.values()):
            self._renew_timestamp(entry, now)
        self._reclassify(entry, now)

    def _on_refused(self, entry: QueuedEntity, now: float) -> None:
        """Back off, unless an event that may end the refusal occurred during the cycle."""
        self._renew_timestamp(entry, now)
        wakes_on = entry.outcome.wakes_on if entry.outcome else frozenset()
        if entry.has_returned_pods:
            self._on_returned(entry, now)
        elif entry.missed_events & wakes_on:
            self._reclassify(entry, now)
        else:
            self._start_backoff(entry, now, wakes_on)

    def _on_returned_in_flight(self, entry: QueuedEntity, now: float) -> None:
        """Back off after the cycle: its snapshot counted the pods that are pending again."""
        entry.has_returned_pods = True

    def _on_returned(self, entry: QueuedEntity, now: float) -> None:
        """Back off; freed resources do not help against a failed binding."""
        if entry.state is QueueState.IDLE:
            self._renew_timestamp(entry, now)
        if self._back_off.max_seconds:
            self._start_backoff(entry, now, ENTITY_EVENTS)
        else:
            self._reclassify(entry, now)

    def _start_backoff(
        self, entry: QueuedEntity, now: float, wakes_on: frozenset[ClusterEvent]
    ) -> None:
        if entry.target_state is not QueueState.ACTIVE:
            self._reclassify(entry, now)
            return
        seconds = self._back_off.delay_after(entry.consecutive_failures, len(entry.pending))
        delay = entry.outcome.relaxation_delay if entry.outcome else None
        if delay is not None:
            seconds = min(seconds, delay)
        self._back_off_until(entry, now + seconds, wakes_on)

    def _back_off_until(
        self, entry: QueuedEntity, until: float, wakes_on: frozenset[ClusterEvent]
    ) -> None:
        self._enter_state(entry, QueueState.BACKING_OFF)
        entry.wakes_on, entry.backoff_until = wakes_on, until
        heappush(self._backing_off, (entry.backoff_until, entry.ref))
        for event in wakes_on:
            self._waiting_for_event[event][entry.ref] = entry

    def _enter_state(self, entry: QueuedEntity, state: QueueState) -> None:
        """Leave one state, enter another, and update the indexes."""
        for event in entry.wakes_on:
            del self._waiting_for_event[event][entry.ref]
        entry.wakes_on = frozenset()
        self._in_flight.pop(entry.ref, None)
        entry.state = state
        if state is QueueState.IN_FLIGHT:
            self._in_flight[entry.ref] = entry
        elif state is QueueState.ACTIVE and entry.heap_key != entry.sort_key:
            entry.heap_key = entry.sort_key
            heappush(self._active, (entry.sort_key, entry.ref))
        elif state is QueueState.IDLE and not entry.others:
            del self._entries[entry.ref]

    def _renew_timestamp(self, entry: QueuedEntity, now: float) -> None:
        entry.timestamp, entry.sequence = now, self.sequence
        self.sequence += 1


Transition = Callable[[SchedulingQueue, QueuedEntity, float], None]

TRANSITIONS: Mapping[tuple[QueueState, QueueTrigger], Transition] = {
    (QueueState.IDLE, QueueTrigger.CHANGED): SchedulingQueue._start_waiting,
    (QueueState.IDLE, QueueTrigger.RETURNED): SchedulingQueue._on_returned,
    (QueueState.INCOMPLETE, QueueTrigger.CHANGED): SchedulingQueue._reclassify,
    (QueueState.INCOMPLETE, QueueTrigger.RETURNED): SchedulingQueue._reclassify,
    (QueueState.GATED, QueueTrigger.CHANGED): SchedulingQueue._reclassify,
    (QueueState.GATED, QueueTrigger.RETURNED): SchedulingQueue._reclassify,
    (QueueState.ACTIVE, QueueTrigger.CHANGED): SchedulingQueue._reclassify,
    (QueueState.ACTIVE, QueueTrigger.POPPED): SchedulingQueue._start_attempt,
    (QueueState.ACTIVE, QueueTrigger.RETURNED): SchedulingQueue._on_returned,
    (QueueState.BACKING_OFF, QueueTrigger.CHANGED): SchedulingQueue._recheck_backoff,
    (QueueState.BACKING_OFF, QueueTrigger.WOKEN): SchedulingQueue._reclassify,
    (QueueState.BACKING_OFF, QueueTrigger.EXPIRED): SchedulingQueue._reclassify,
    (QueueState.BACKING_OFF, QueueTrigger.RETURNED): SchedulingQueue._on_returned,
    (QueueState.IN_FLIGHT, QueueTrigger.CHANGED): SchedulingQueue._ignore,
    (QueueState.IN_FLIGHT, QueueTrigger.PLACED): SchedulingQueue._on_placed,
    (QueueState.IN_FLIGHT, QueueTrigger.REFUSED): SchedulingQueue._on_refused,
    (QueueState.IN_FLIGHT, QueueTrigger.OUTDATED): SchedulingQueue._reclassify,
    (QueueState.IN_FLIGHT, QueueTrigger.RETURNED): SchedulingQueue._on_returned_in_flight,
}

#: The states without an attempt, and those of them with pending pods.
_UNREADY = (QueueState.IDLE, QueueState.INCOMPLETE, QueueState.GATED)
_HELD_BACK = (QueueState.INCOMPLETE, QueueState.GATED)


def _is_same_group(group: Group | None, other: Group | None) -> bool:
    """Whether two versions are of one group (same uid) and equal for scheduling."""
    if group is None or other is None:
        return group is other
    return _scheduling_fields(group) == _scheduling_fields(other)


def _scheduling_fields(group: Group) -> tuple[object, ...]:
    """The fields of a group that a cycle reads."""
    meta = group.metadata
    return meta.uid, group.spec, group.quorum, meta.annotations.get(TOPOLOGY_ANNOTATION, "")


def _is_alive(pod: Pod) -> bool:
    """Whether a pod is a live member: not ended and not terminating."""
    return not pod.is_terminal and not pod.metadata.deletion_timestamp
