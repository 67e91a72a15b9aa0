"""Queue: which entity is tried next. Pods alone and PodGroups, each in one of six states.

    IDLE ──▶ INCOMPLETE / GATED ──▶ ACTIVE ──pop──▶ IN_FLIGHT ──placed──▶ IDLE
                                      ▲                 │ refused
                                      └── BACKING_OFF ◀─┘
                                       time, or an event that may cure the refusal

The shell feeds it every pod and PodGroup and the events of the cluster, pops an entity, lets the
cycle decide and reports with `done`. What a stimulus does in a state is one row of TRANSITIONS; a
pair without a row is a bug and raises, leaving everything as it was. `now` is always an argument.
Does not look at nodes and knows nothing about room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from heapq import heappop, heappush

from phalanx.api.core import DEFAULT_SCHEDULER, Pod
from phalanx.api.meta import Key
from phalanx.api.scheduling import TOPOLOGY_ANNOTATION
from phalanx.scheduler.backoff import DEFAULT_BACKOFF, BackOff
from phalanx.scheduler.cluster.group_tree import (
    Group,
    GroupRef,
    GroupTreeProblem,
    GroupTrees,
    group_ref,
)
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
    EntityId,
    PendingEntity,
    QueueArrival,
    QueuedEntity,
    QueuedEntityCheckpoint,
    QueuedEntityInfo,
    QueueSortKey,
    QueueState,
    SubQueue,
    entity_info,
    listing_key,
)


class QueueTrigger(Enum):
    """What can happen to an entity."""

    CHANGED = "its group or a member came, changed or went"
    WOKEN = "something happened that its last refusal waits for"
    EXPIRED = "its back-off is over"
    POPPED = "it is taken"
    PLACED = "members got nodes"
    REFUSED = "it was refused"
    OVERTAKEN = "what was decided is not asked for any more"
    RETURNED = "members that had got nodes could not be bound"


class IllegalTransition(Exception):
    """A stimulus that cannot happen in a state did."""


class SchedulingQueue:
    """All entities that schedulers of these names have to place; without names, the usual one."""

    def __init__(self, *names: str, back_off: BackOff = DEFAULT_BACKOFF) -> None:
        self._scheduler_names, self._back_off = names or (DEFAULT_SCHEDULER,), back_off
        self._group_tree = GroupTrees()
        self._entries: dict[EntityId, QueuedEntity] = {}
        self._entry_by_pod: dict[Key, QueuedEntity] = {}
        #: Pods that were placed and whose binding was not seen yet.
        self._assumed: dict[Key, Pod] = {}
        self._active: list[tuple[QueueSortKey, EntityId]] = []
        self._backing_off: list[tuple[float, EntityId]] = []
        self._waiting_for_event: dict[ClusterEvent, dict[EntityId, QueuedEntity]] = {
            event: {} for event in ClusterEvent
        }
        self._in_flight: dict[EntityId, QueuedEntity] = {}
        #: How many turns were given away so far.
        self.sequence = 0
        #: How many entities, and pods with them, have come to stand in which line, and why.
        self.arrivals: Counter[QueueArrival] = Counter()
        self.pod_arrivals: Counter[QueueArrival] = Counter()

    def observe_pod(self, pod: Pod, now: float) -> None:
        """A pod came or changed."""
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
        """A pod was deleted, has ended, or is no business of this queue any more."""
        self._assumed.pop(key, None)
        entry = self._entry_by_pod.pop(key, None)
        if entry:
            entry.remove_pod(key)
            self._notify(entry, ClusterEvent.MEMBER_GONE, now)

    def observe_group(self, group: Group, now: float) -> None:
        """A group came or changed."""
        name = group_ref(group)
        if _is_same_group(self._group_tree.get(name), group):
            self._group_tree.update(name, group)
        else:
            self._update_tree(name, group, now)

    def remove_group(self, ref: Key, now: float, *, is_composite: bool = False) -> None:
        """A group was deleted."""
        name = GroupRef(is_composite, ref)
        if self._group_tree.get(name) is not None:
            self._update_tree(name, None, now)

    def _update_tree(self, name: GroupRef, group: Group | None, now: float) -> None:
        """Take a group in, or out; whoever belongs to another tree now goes there."""
        before = {one: self._entity_of_group(one) for one in self._group_tree.subtree(name)}
        self._group_tree.update(name, group)
        homes = dict.fromkeys(before.values())
        for one, old in before.items():
            home = self._entity_of_group(one)
            homes[home] = None
            if home != old and not one.is_composite:
                self._move_pods(one.key, old, home)
        for id_ in homes:
            if entry := self._entries.get(id_):
                self._notify(entry, ClusterEvent.GROUP_CHANGED, now)

    def _move_pods(self, group: Key, old: EntityId, new: EntityId) -> None:
        """Bring the pods of a group to the entry of the tree that it is in."""
        source = self._entries.get(old)
        pods = [pod for pod in source.pods if pod.group == group] if source else []
        for pod in pods:
            assert source is not None
            target = self._entry_by_pod[pod.metadata.key] = self._get_or_create(new)
            target.adopt_pod(pod.metadata.key, source)

    def _entity_of_group(self, name: GroupRef) -> EntityId:
        """Who is tried with a group: the root of its tree, or it waits by itself."""
        root = self._group_tree.root(name)
        found = name if isinstance(root, GroupTreeProblem) else root
        return EntityId(True, found.key, found.is_composite)

    def _entity_of_pod(self, pod: Pod) -> EntityId:
        return (
            self._entity_of_group(GroupRef(False, pod.group))
            if pod.group
            else EntityId(False, pod.metadata.key)
        )

    def wake(self, event: ClusterEvent, now: float) -> None:
        """Something happened in the cluster: whoever waits for it is tried at once."""
        for entry in self._in_flight.values():
            entry.missed_events.add(event)
        for entry in list(self._waiting_for_event[event].values()):
            self._apply(entry, QueueTrigger.WOKEN, now, event)

    def pop(self, now: float) -> Entity | None:
        """Take the next entity; it is in flight until `done`."""
        while self._backing_off and self._backing_off[0][0] <= now:
            until, id_ = heappop(self._backing_off)
            if self._is_backing_off(id_, until):
                self._apply(self._entries[id_], QueueTrigger.EXPIRED, now)
        while self._active:
            rank, id_ = heappop(self._active)
            entry = self._entries.get(id_)
            if entry and entry.heap_key == rank:
                entry.heap_key = None
                if entry.state is QueueState.ACTIVE:
                    self._apply(entry, QueueTrigger.POPPED, now)
                    return entry.start_attempt(now)
        return None

    def done(self, entity: Entity, outcome: Decision, now: float) -> None:
        """An attempt has ended. Placed pods are out of the queue until bound or returned."""
        entry = self._entry_in_flight(entity)
        stimulus = QueueTrigger.PLACED if isinstance(outcome, Placed) else QueueTrigger.REFUSED
        self._transition(entry, stimulus)
        if isinstance(outcome, Placed):
            self._assume(entry, outcome.bindings)
        else:
            entry.record_failure(outcome)
        self._apply(entry, stimulus, now)

    def is_current(self, entity: Entity, bindings: Iterable[Binding]) -> bool:
        """Whether what was found is still wanted: for these pods, by the groups that were read."""
        entry = self._entry_in_flight(entity)
        wanted = all(entry.is_pending(pod, uid) for pod, uid, _ in bindings)
        tree = [one.group for one in entity.groups]
        now = [self._group_tree.get(name) for name in self._groups_of(entry.ref)]
        return wanted and len(tree) == len(now) and all(map(_is_same_group, tree, now))

    def _groups_of(self, id_: EntityId) -> Iterator[GroupRef]:
        return self._group_tree.valid_subtree(id_.name) if id_.is_group else iter(())

    def requeue(self, entity: Entity, now: float) -> None:
        """What an attempt ended in is not wanted any more: have it tried anew, in its old turn."""
        self._apply(self._entry_in_flight(entity), QueueTrigger.OVERTAKEN, now)

    def return_unbound(self, bindings: Iterable[Binding], now: float) -> None:
        """These placements could not be bound: the pods wait again, after a back-off."""
        entries: dict[EntityId, QueuedEntity] = {}
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
        """When the next back-off ends; nothing happens by itself before."""
        while self._backing_off:
            until, id_ = self._backing_off[0]
            if self._is_backing_off(id_, until):
                return until
            heappop(self._backing_off)
        return None

    def held_back_entities(self) -> list[QueuedEntityInfo]:
        """The entities that are not even tried, each with what keeps it back."""
        return [entity_info(entry) for entry in self._entries.values() if entry.state in _HELD_BACK]

    def broken_trees(self) -> Iterator[tuple[Key, IncompleteGroupTree]]:
        """The groups of groups whose tree is not whole, or is none."""
        for name in self._group_tree.groups:
            if name.is_composite and isinstance(
                flaw := self._group_tree.root(name), GroupTreeProblem
            ):
                yield name.key, IncompleteGroupTree(flaw.message, not flaw.missing_group)

    def list_entities(self) -> list[QueuedEntityInfo]:
        """Everything there is to place, the next one first."""
        entries = [entry for entry in self._entries.values() if entry.state is not QueueState.IDLE]
        return [entity_info(entry) for entry in sorted(entries, key=listing_key)]

    def pending_entities(self) -> Iterator[PendingEntity]:
        """Everybody who stands in a line, in no order."""
        for entry in self._entries.values():
            if line := entry.queue_name:
                first = next(iter(entry.pending.values())).pod.spec.scheduler_name
                outcome = entry.outcome if entry.state is QueueState.BACKING_OFF else None
                where, pods = SubQueue(line, entry.ref.is_group), len(entry.pending)
                yield PendingEntity(where, entry.state, pods, first, outcome)

    @property
    def late_member_count(self) -> int:
        """How many pods have come while their group is being tried, and wait for that to end."""
        flying = (entry for entry in self._in_flight.values() if entry.ref.is_group)
        return sum(not one.attempts for entry in flying for one in entry.pending.values())

    def checkpoint(self) -> list[QueuedEntityCheckpoint]:
        """All that a queue must be told to go on like this one, besides pods and groups."""
        return [
            entry.checkpoint()
            for entry in self._entries.values()
            if entry.queue_name or entry.others
        ]

    def restore(self, checkpoint: QueuedEntityCheckpoint) -> None:
        """Have an entity stand where it once stood; its pods and group were told before."""
        entry = self._entries[checkpoint.id]
        entry.restore(checkpoint)
        if entry.heap_key:
            heappush(self._active, (entry.heap_key, entry.ref))
        if QueueState[checkpoint.state] is QueueState.BACKING_OFF:
            self._back_off_until(entry, checkpoint.until, frozenset(checkpoint.wakes_on))
        else:
            self._enter_state(entry, QueueState[checkpoint.state])

    def assume(self, bindings: Iterable[Binding], now: float) -> None:
        """These pods were placed before anybody told: they are out of the queue."""
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
        """A pod may be deleted and made again between two looks at it."""
        key, uid = pod.metadata.key, pod.metadata.uid
        entry, assumed = self._entry_by_pod.get(key), self._assumed.get(key)
        strange = entry is not None and not (
            entry.ref == self._entity_of_pod(pod) and entry.contains(key, uid)
        )
        if strange or (assumed and assumed.metadata.uid != uid):
            self.remove_pod(key, now)

    def _assume(self, entry: QueuedEntity, bindings: Iterable[Binding]) -> None:
        for key, uid, _ in bindings:
            member = entry.pending.get(key)
            if member and member.pod.metadata.uid == uid:
                self._assumed[key] = member.pod
                entry.remove_pod(key)
                if entry.ref.is_group:
                    entry.others[key] = member.pod
                else:
                    del self._entry_by_pod[key]

    def _get_or_create(self, id_: EntityId) -> QueuedEntity:
        entry = self._entries.get(id_)
        if entry is None:
            entry = self._entries[id_] = QueuedEntity(id_, self._group_tree)
        return entry

    def _entry_in_flight(self, entity: Entity) -> QueuedEntity:
        return self._entries[EntityId(entity.group is not None, entity.key, entity.is_composite)]

    def _is_backing_off(self, id_: EntityId, until: float) -> bool:
        entry = self._entries.get(id_)
        return (
            entry is not None
            and entry.state is QueueState.BACKING_OFF
            and entry.backoff_until == until
        )

    def _notify(self, entry: QueuedEntity, event: ClusterEvent, now: float) -> None:
        """Something happened to this entity alone."""
        entry.missed_events.add(event)
        cured = event in entry.wakes_on
        self._apply(entry, QueueTrigger.WOKEN if cured else QueueTrigger.CHANGED, now, event)

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
            arrival = QueueArrival(SubQueue(line, entry.ref.is_group), event or trigger)
            self.arrivals[arrival] += 1
            self.pod_arrivals[arrival] += len(entry.pending)

    def _transition(self, entry: QueuedEntity, trigger: QueueTrigger) -> Transition:
        transition = TRANSITIONS.get((entry.state, trigger))
        if transition is None:
            raise IllegalTransition(f"{entry.ref.key} is {entry.state.name}, yet {trigger.value}")
        return transition

    def _ignore(self, entry: QueuedEntity, now: float) -> None:
        """Nothing to do."""

    def _reclassify(self, entry: QueuedEntity, now: float) -> None:
        """Go where it belongs by what is there of it."""
        self._enter_state(entry, entry.target_state)

    def _start_waiting(self, entry: QueuedEntity, now: float) -> None:
        """The first pods to place begin a new wait."""
        entry.attempts = entry.failures = entry.errors = 0
        self._renew_timestamp(entry, now)
        self._reclassify(entry, now)

    def _recheck_backoff(self, entry: QueuedEntity, now: float) -> None:
        """Go on backing off, unless it cannot be tried at all any more."""
        if entry.target_state is not QueueState.ACTIVE:
            self._reclassify(entry, now)

    def _start_attempt(self, entry: QueuedEntity, now: float) -> None:
        entry.missed_events.clear()
        entry.has_returned_pods = False
        self._enter_state(entry, QueueState.IN_FLIGHT)

    def _on_placed(self, entry: QueuedEntity, now: float) -> None:
        """Leftovers are tried again at once and keep their turn; late members queue up."""
        entry.failures, entry.outcome = 0, None
        if entry.has_returned_pods:
            self._on_returned(entry, now)
            return
        entry.errors = 0
        if not any(member.attempts for member in entry.pending.values()):
            self._renew_timestamp(entry, now)
        self._reclassify(entry, now)

    def _on_refused(self, entry: QueuedEntity, now: float) -> None:
        """Back off, unless the cure came while it was being tried."""
        self._renew_timestamp(entry, now)
        wakes_on = entry.outcome.wakes_on if entry.outcome else frozenset()
        if entry.has_returned_pods:
            self._on_returned(entry, now)
        elif entry.missed_events & wakes_on:
            self._reclassify(entry, now)
        else:
            self._start_backoff(entry, now, wakes_on)

    def _on_returned_in_flight(self, entry: QueuedEntity, now: float) -> None:
        """Back off once it has landed: the room that its members leave is not there."""
        entry.has_returned_pods = True

    def _on_returned(self, entry: QueuedEntity, now: float) -> None:
        """Back off; room that comes free does not help against a refused binding."""
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
        relaxes = entry.outcome.relaxes if entry.outcome else None
        if relaxes is not None:
            seconds = min(seconds, relaxes)
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
        """Leave one state, enter another, keep the books."""
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
    (QueueState.IN_FLIGHT, QueueTrigger.OVERTAKEN): SchedulingQueue._reclassify,
    (QueueState.IN_FLIGHT, QueueTrigger.RETURNED): SchedulingQueue._on_returned_in_flight,
}

#: Where those stand who cannot be tried, and those of them who have pods to place.
_UNREADY = (QueueState.IDLE, QueueState.INCOMPLETE, QueueState.GATED)
_HELD_BACK = (QueueState.INCOMPLETE, QueueState.GATED)


def _is_same_group(one: Group | None, other: Group | None) -> bool:
    """Whether it is the same group and asks for the same: a namesake is another."""
    if one is None or other is None:
        return one is other
    return _scheduling_fields(one) == _scheduling_fields(other)


def _scheduling_fields(group: Group) -> tuple[object, ...]:
    """What a cycle reads of a group."""
    meta = group.metadata
    return meta.uid, group.spec, group.quorum, meta.annotations.get(TOPOLOGY_ANNOTATION, "")


def _is_alive(pod: Pod) -> bool:
    """Whether a pod is still a member: not ended and not being deleted."""
    return not pod.is_terminal and not pod.metadata.deletion_timestamp
