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
from collections.abc import Callable, Hashable, Iterable, Mapping
from heapq import heappop, heappush

from phalanx.api.core import DEFAULT_SCHEDULER, Pod
from phalanx.api.meta import POD_GROUP_KIND, Key, Ref
from phalanx.scheduler.cluster.cluster_delta import ClusterDelta
from phalanx.scheduler.cluster.group_tree import (
    Group,
    group_ref,
    is_same_group,
)
from phalanx.scheduler.decision import (
    ENTITY_EVENTS,
    Binding,
    ClusterEvent,
    Decision,
    Placed,
    Preempting,
)
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.policy import DEFAULT_BACKOFF, BackOff
from phalanx.scheduler.queue.queue_listing import HELD_BACK, QueueListing
from phalanx.scheduler.queue.queued_entity import (
    ClaimProblem,
    HeldBackPod,
    QueueArrival,
    QueuedEntity,
    QueuedEntityCheckpoint,
    QueueSortKey,
    QueueState,
    QueueTrigger,
    RefusedEntity,
    SubQueue,
    decode_ref,
    is_live,
)
from phalanx.scheduler.queue.refusal_memo import FindRefusal
from phalanx.scheduler.queue.waiting_entities import WaitingEntities
from phalanx.scheduler.queue.wake_condition import WakeCondition, build_condition

#: Seconds between two attempts that only bring a message up to date.
REFRESH_SECONDS = 1.0

#: How many decisions to preempt in a row may be outdated.
MAX_OUTDATED = 3


class IllegalTransition(Exception):
    """A trigger occurred in a state in which it is impossible."""


class SchedulingQueue(QueueListing):
    """The entities of these schedulers; without names, of the default scheduler."""

    def __init__(self, *names: str, back_off: BackOff = DEFAULT_BACKOFF) -> None:
        self._scheduler_names, self._back_off = names or (DEFAULT_SCHEDULER,), back_off
        super().__init__()
        self._entry_by_pod: dict[Key, QueuedEntity] = {}
        #: Pods that were placed and whose binding was not observed yet.
        self._assumed: dict[Key, Pod] = {}
        self._active: list[tuple[QueueSortKey, Ref]] = []
        self._waiting = WaitingEntities()
        #: How often the cluster has changed.
        self._changes = 0
        #: When an entity was last attempted without a change that may cure its refusal.
        self._refreshed_at = -REFRESH_SECONDS
        #: Says why the claims of a pod cannot be allocated yet; "" if they can.
        self.claim_problem: ClaimProblem = lambda pod: ""
        #: Finds refusals that are certain at a time, and how many attempts were left out for them.
        self.refusals_at: Callable[[float], FindRefusal | None] = lambda now: None
        self.repeated_refusals = 0
        #: See `Profiles`.
        self.keeps_arrival_order = False
        #: The pending pods of entities that became incomplete or gated, or are not any more.
        #: Whether nominations were withheld: then one may exist that its pod does not show yet.
        self.held_back_changes, self.has_withheld = dict[Key, HeldBackPod](), False
        #: The next sequence number: the order of entities with equal timestamps.
        self.sequence = 0
        #: How many entities, and pods, arrived in which queue, and why.
        self.arrivals: Counter[QueueArrival] = Counter()
        self.pod_arrivals: Counter[QueueArrival] = Counter()

    def observe_pod(self, pod: Pod, now: float) -> bool:
        """Add a pod, or its new version; whether a decision may depend on what has changed."""
        key = pod.metadata.key
        self._drop_replaced_pod(pod, now)
        if not is_live(pod) or (pod.group is None and not self._is_ours(pod)):
            self.remove_pod(key, now)
            return True
        if key in self._assumed and not pod.spec.node_name:
            self._assumed[key] = pod
            return False
        self._assumed.pop(key, None)
        return self._upsert_pod(pod, now)

    def observe_claims(
        self, pod: Key, now: float, event: ClusterEvent = ClusterEvent.MEMBER_CHANGED
    ) -> None:
        """A claim of a pending pod has changed."""
        entry = self._entry_by_pod.get(pod)
        if entry is not None and (member := entry.pending.get(pod)) is not None:
            entry.upsert_pod(member.pod, now, pending=True)
            self._notify(entry, event, now)

    def remove_pod(self, key: Key, now: float) -> None:
        """Remove a pod that was deleted, has ended, or belongs to another scheduler."""
        self._assumed.pop(key, None)
        entry = self._entry_by_pod.pop(key, None)
        if entry:
            entry.remove_pod(key)
            self._notify(entry, ClusterEvent.MEMBER_GONE, now)

    def observe_group(self, group: Group, now: float) -> bool:
        """Add a group, or its new version; whether it changed for scheduling."""
        name = group_ref(group)
        if is_changed := not is_same_group(self._group_tree.get(name), group):
            self._update_tree(name, group, now)
        else:
            self._group_tree.update(name, group)
        return is_changed

    def remove_group(self, ref: Ref, now: float) -> bool:
        """Remove a group; whether there was one."""
        if is_known := self._group_tree.get(ref) is not None:
            self._update_tree(ref, None, now)
        return is_known

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
            self._note_held_back(pod, was_ready=source.state not in _UNREADY)

    def wake(self, change: ClusterDelta, now: float) -> None:
        """The cluster changed: activate the first entity under every condition that it may cure."""
        self._changes += 1
        for entry in self._in_flight.values():
            entry.miss_change(change)
        if self._waiting.awaits(change.event):
            for ref in self._waiting.cured_by(change):
                self._apply(self._entries[ref], QueueTrigger.WOKEN, now, event=change.event)

    def activate(self, ref: Ref, now: float) -> None:
        """Attempt an entity, or that of a group, again that waits for a change, without one."""
        entry = self._entries.get(self._entity_of_group(ref))
        if entry is not None and entry.state is QueueState.IN_FLIGHT:
            entry.miss_change(ClusterDelta(ClusterEvent.RESERVATION_CHANGED))
        elif entry is not None and entry.state is QueueState.BACKING_OFF:
            self._apply(entry, QueueTrigger.WOKEN, now)

    def pop(self, now: float) -> Entity | None:
        """Return the next entity; it is in flight until `done`."""
        while entry := self._waiting.pop_expired(now):
            self._apply(entry, QueueTrigger.EXPIRED, now)
        while self._active:
            sort_key, ref = heappop(self._active)
            entry = self._entries.get(ref)
            if entry and entry.heap_key == sort_key:
                entry.heap_key = None
                if entry.state is QueueState.ACTIVE and not self._refuse_again(entry, now):
                    self._apply(entry, QueueTrigger.POPPED, now)
                    return entry.start_attempt(now)
        return None

    def _refuse_again(self, entry: QueuedEntity, now: float) -> bool:
        """Let an entity wait on if its refusal is certain without an attempt; whether it is."""
        find_refusal = self.refusals_at(now) if entry.refused is not None else None
        known = find_refusal(entry) if find_refusal is not None else None
        if known is None:
            return False
        self.repeated_refusals += 1
        self._begin_attempt(entry)
        entry.refused_for, entry.lacking, entry.outdated_count = known.condition, known.lacking, 0
        self._apply(entry, QueueTrigger.REFUSED_AGAIN, now)
        return True

    def done(
        self,
        entity: Entity,
        outcome: Decision,
        now: float,
        *,
        condition: WakeCondition | None = None,
        lacking: int = 1,
        signature: Hashable | None = None,
    ) -> None:
        """End an attempt. Placed pods leave the queue until they are bound or returned.

        `condition` says what may end a refusal, by default every event that the outcome names, and
        `lacking` how many members must get a node for that. Entities with an equal `signature` get
        the same refusal.
        """
        entry = self._entries[entity.ref]
        trigger = QueueTrigger.PLACED if isinstance(outcome, Placed) else QueueTrigger.REFUSED
        self._transition(entry, trigger)
        entry.outdated_count = 0
        if isinstance(outcome, Placed):
            self._assume(entry, outcome.bindings)
        else:
            entry.record_failure(outcome)
            entry.refused_for = condition or WakeCondition(outcome.wakes_on, entry.ref)
            entry.lacking = lacking
            entry.refused = RefusedEntity(entity, signature) if signature is not None else None
        self._apply(entry, trigger, now)

    def _note_held_back(self, pod: Pod, *, was_ready: bool) -> None:
        """Note that a pending pod may have become one that cannot be attempted, or can be again."""
        key, uid = pod.metadata.key, pod.metadata.uid
        self.held_back_changes.setdefault(key, HeldBackPod(key, uid, was_ready))

    def take_held_back_changes(self) -> list[HeldBackPod]:
        """Return the pods whose entity became incomplete or gated meanwhile, or ready again."""
        found, self.held_back_changes = list(self.held_back_changes.values()), {}
        return found

    def is_held_back(self, key: Key) -> bool:
        """Whether the entity of a pending pod is incomplete or gated."""
        return (entry := self._entry_by_pod.get(key)) is not None and entry.state in HELD_BACK

    def may_preempt(self, entity: Entity, decision: Preempting) -> bool:
        """Whether a preemption is still right: the entity is unchanged and no room appeared.

        Room that keeps appearing does not delay a preemption forever: after MAX_OUTDATED outdated
        decisions in a row the next one is carried out.
        """
        entry = self._entries[entity.ref]
        is_current = self.is_current(entity, decision.waiting.nominated)
        if not is_current or entry.target_state is not QueueState.ACTIVE:
            return False
        has_new_room = any(one.event in decision.wakes_on for one in entry.missed_changes)
        if has_new_room and entry.outdated_count < MAX_OUTDATED:
            entry.outdated_count += 1
            return False
        return True

    def requeue(self, entity: Entity, now: float) -> None:
        """End an attempt whose decision is outdated; the entity keeps its position."""
        self._apply(self._entries[entity.ref], QueueTrigger.OUTDATED, now)

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
        return self._waiting.next_expiry()

    def checkpoint(self, now: float) -> list[QueuedEntityCheckpoint]:
        """Return what a queue with the same pods and groups needs to continue like this one.

        Which entity is attempted for others is not stored: the next one is attempted as well.
        """
        self._refreshed_at = now
        for ref, condition in self._waiting.attempted_entities():
            self._entries[ref].attempted_for = None
            self._attempt_next(ref, condition, now)
        entries = [entry for entry in self._entries.values() if entry.queue_name or entry.others]
        for entry in entries:
            if entry.condition is not None:
                entry.lacking = self._waiting.count_lacking(entry.condition)
        return [
            entry.checkpoint(is_outdated=entry.changes_seen != self._changes) for entry in entries
        ]

    def restore(self, checkpoint: QueuedEntityCheckpoint, now: float) -> None:
        """Restore the state of an entity whose pods and groups were observed before."""
        self._refreshed_at = now
        entry = self._entries[decode_ref(checkpoint.id)]
        state = QueueState[checkpoint.state]
        entry.restore(checkpoint)
        if entry.heap_key:
            heappush(self._active, (entry.heap_key, entry.ref))
        self._enter_state(entry, state)
        if state is QueueState.BACKING_OFF:
            entry.lacking = checkpoint.lacking
            entry.changes_seen = -1 if checkpoint.is_outdated else self._changes
            events, entity = frozenset(checkpoint.wakes_on), entry.build_entity(checkpoint.ready)
            condition = build_condition(entity, events, checkpoint.scope)
            self._wait_until(entry, checkpoint.until, condition)

    def assume(self, bindings: Iterable[Binding], now: float) -> None:
        """Take pods out of the queue that were placed before the decision log began."""
        for binding in bindings:
            if entry := self._entry_by_pod.get(binding.pod):
                self._assume(entry, [binding])
                self._apply(entry, QueueTrigger.CHANGED, now)

    def _is_ours(self, pod: Pod) -> bool:
        return not pod.spec.node_name and pod.spec.scheduler_name in self._scheduler_names

    def _upsert_pod(self, pod: Pod, now: float) -> bool:
        entry = self._entry_by_pod[pod.metadata.key] = self._get_or_create(self._entity_of_pod(pod))
        if is_changed := entry.upsert_pod(pod, now, pending=self._is_ours(pod)):
            self._notify(entry, ClusterEvent.MEMBER_CHANGED, now)
        elif pod.status.nominated_node_name and entry.condition and entry.condition.scope:
            # Another client nominated a node: what the pod takes there is room for its entity.
            self._recheck_backoff(entry, now)
        return is_changed or bool(pod.status.nominated_node_name)

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
        if (entry := self._entries.get(ref)) is None:
            entry = QueuedEntity(ref, self._group_tree, claim_problem=self.claim_problem)
            self._entries[ref] = entry
        return entry

    def _notify(self, entry: QueuedEntity, event: ClusterEvent, now: float) -> None:
        """An event occurred that concerns this entity alone."""
        if entry.state is QueueState.IN_FLIGHT:
            entry.miss_change(ClusterDelta(event))
        is_awaited = event in entry.wakes_on
        trigger = QueueTrigger.WOKEN if is_awaited else QueueTrigger.CHANGED
        self._apply(entry, trigger, now, event=event)

    def _apply(
        self,
        entry: QueuedEntity,
        trigger: QueueTrigger,
        now: float,
        *,
        event: ClusterEvent | None = None,
    ) -> None:
        before = entry.state
        self._transition(entry, trigger)(self, entry, now)
        if entry.state is before:
            return
        if entry.state in HELD_BACK or before in HELD_BACK:
            pods = entry.pods if before in HELD_BACK else (m.pod for m in entry.pending.values())
            for pod in pods:
                if self.has_withheld or before not in _UNREADY or pod.status.nominated_node_name:
                    self._note_held_back(pod, was_ready=before not in _UNREADY)
        if before in _UNREADY and (entry.state is QueueState.ACTIVE or not entry.ready_since):
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
        if entry.state is not QueueState.ACTIVE:
            self._end_shared_attempt(entry, now)

    def _end_shared_attempt(self, entry: QueuedEntity, now: float) -> None:
        """The attempt of the entity decides nothing for others: the next one is attempted."""
        attempted_for, entry.attempted_for = entry.attempted_for, None
        if attempted_for is not None:
            self._attempt_next(entry.ref, attempted_for, now)

    def _attempt_next(self, ref: Ref, attempted_for: WakeCondition, now: float) -> None:
        """Attempt the next entity under a condition."""
        following = self._waiting.next_after(ref, attempted_for)
        if following is not None:
            self._apply(self._entries[following], QueueTrigger.WOKEN, now)

    def _expire(self, entry: QueuedEntity, now: float) -> None:
        """Attempt an entity again if time may help, or to bring its message up to date.

        The decision is certain to be the same if nothing has changed, or if an equal entity is
        before it. Messages are brought up to date one after the other.
        """
        condition = entry.condition
        assert condition is not None
        if condition.depends_on_time:
            self._reclassify(entry, now)
            return
        if entry.changes_seen == self._changes or not self._waiting.is_first(entry, condition):
            entry.failures += 1
            self._waiting.set_timer(entry, now + self._backoff_of(entry))
        elif now < self._refreshed_at + REFRESH_SECONDS:
            self._waiting.set_timer(entry, self._refreshed_at + REFRESH_SECONDS)
        else:
            self._refreshed_at = now
            self._reclassify(entry, now)

    def _start_waiting(self, entry: QueuedEntity, now: float) -> None:
        """The first pending pods start a new wait."""
        entry.attempts = entry.failures = entry.errors = 0
        self._renew_timestamp(entry, now)
        self._reclassify(entry, now)

    def _recheck_backoff(self, entry: QueuedEntity, now: float) -> None:
        """Continue the back-off unless the entity can no longer be attempted.

        From now on it has a condition of its own.
        """
        if entry.target_state is not QueueState.ACTIVE:
            self._reclassify(entry, now)
        else:
            condition = WakeCondition(entry.wakes_on, entry.ref)
            self._wait_until(entry, entry.backoff_until, condition)

    def _start_attempt(self, entry: QueuedEntity, now: float) -> None:
        self._begin_attempt(entry)
        self._enter_state(entry, QueueState.IN_FLIGHT)

    def _begin_attempt(self, entry: QueuedEntity) -> None:
        """Forget what happened during the last attempt: the next one reads the present cluster."""
        entry.missed_changes.clear()
        entry.changes_seen, entry.has_returned_pods = self._changes, False

    def _on_placed(self, entry: QueuedEntity, now: float) -> None:
        """Attempt leftover members again at once; members created meanwhile start a new wait."""
        entry.failures, entry.outcome = 0, None
        self._end_shared_attempt(entry, now)
        if entry.has_returned_pods:
            self._on_returned(entry, now)
            return
        entry.errors = 0
        if not any(member.attempts for member in entry.pending.values()):
            self._renew_timestamp(entry, now)
        self._reclassify(entry, now)

    def _on_refused(self, entry: QueuedEntity, now: float) -> None:
        """Wait, unless a change that may end the refusal occurred during the cycle.

        An entity that is refused for the same condition as before keeps its position.
        """
        condition = entry.refused_for
        if condition != entry.attempted_for and not self.keeps_arrival_order:
            self._renew_timestamp(entry, now)
        if entry.has_returned_pods:
            self._on_returned(entry, now)
        elif sum(map(condition.count_cured, entry.missed_changes)) >= entry.lacking:
            self._reclassify(entry, now)
        else:
            self._start_backoff(entry, now, condition)

    def _on_outdated(self, entry: QueuedEntity, now: float) -> None:
        """Attempt again at once, unless bindings failed meanwhile: these may fail again."""
        if entry.has_returned_pods:
            self._end_shared_attempt(entry, now)
            self._on_returned(entry, now)
        else:
            self._reclassify(entry, now)

    def _on_returned_in_flight(self, entry: QueuedEntity, now: float) -> None:
        """Back off after the cycle: its snapshot counted the pods that are pending again."""
        entry.has_returned_pods = True

    def _on_returned(self, entry: QueuedEntity, now: float) -> None:
        """Back off; freed resources do not help against a failed binding."""
        if entry.state is QueueState.IDLE:
            self._renew_timestamp(entry, now)
        if self._back_off.max_seconds:
            self._start_backoff(entry, now, WakeCondition(ENTITY_EVENTS, entry.ref))
        else:
            self._reclassify(entry, now)

    def _start_backoff(self, entry: QueuedEntity, now: float, condition: WakeCondition) -> None:
        """Wait for a change, or for the end of the back-off if time may help too."""
        if entry.target_state is not QueueState.ACTIVE:
            self._reclassify(entry, now)
            return
        seconds = self._backoff_of(entry)
        delay = entry.outcome.retry_delay if entry.outcome else None
        if delay is not None:
            seconds = min(seconds, delay)
        self._enter_state(entry, QueueState.BACKING_OFF)
        self._wait_until(entry, now + seconds, condition)
        self._end_shared_attempt(entry, now)

    def _backoff_of(self, entry: QueuedEntity) -> float:
        return self._back_off.delay_after(entry.consecutive_failures, len(entry.pending))

    def _wait_until(self, entry: QueuedEntity, until: float, condition: WakeCondition) -> None:
        self._stop_waiting(entry, is_attempted=False)
        self._waiting.add(entry, condition, entry.lacking)
        self._waiting.set_timer(entry, until)

    def _stop_waiting(self, entry: QueuedEntity, *, is_attempted: bool) -> None:
        if entry.condition is not None:
            self._waiting.remove(entry, entry.condition, is_attempted=is_attempted)
            entry.attempted_for = entry.condition if is_attempted else None
            entry.condition = None

    def _enter_state(self, entry: QueuedEntity, state: QueueState) -> None:
        """Leave one state, enter another, and update the indexes."""
        self._stop_waiting(entry, is_attempted=state is QueueState.ACTIVE)
        self._in_flight.pop(entry.ref, None)
        entry.state = state
        if state is QueueState.IN_FLIGHT:
            self._in_flight[entry.ref] = entry
        elif state is QueueState.ACTIVE:
            if entry.heap_key != (sort_key := entry.sort_key):
                entry.heap_key = sort_key
                heappush(self._active, (sort_key, entry.ref))
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
    (QueueState.ACTIVE, QueueTrigger.REFUSED_AGAIN): SchedulingQueue._on_refused,
    (QueueState.ACTIVE, QueueTrigger.RETURNED): SchedulingQueue._on_returned,
    (QueueState.BACKING_OFF, QueueTrigger.CHANGED): SchedulingQueue._recheck_backoff,
    (QueueState.BACKING_OFF, QueueTrigger.WOKEN): SchedulingQueue._reclassify,
    (QueueState.BACKING_OFF, QueueTrigger.EXPIRED): SchedulingQueue._expire,
    (QueueState.BACKING_OFF, QueueTrigger.RETURNED): SchedulingQueue._on_returned,
    (QueueState.IN_FLIGHT, QueueTrigger.CHANGED): SchedulingQueue._ignore,
    (QueueState.IN_FLIGHT, QueueTrigger.PLACED): SchedulingQueue._on_placed,
    (QueueState.IN_FLIGHT, QueueTrigger.REFUSED): SchedulingQueue._on_refused,
    (QueueState.IN_FLIGHT, QueueTrigger.OUTDATED): SchedulingQueue._on_outdated,
    (QueueState.IN_FLIGHT, QueueTrigger.RETURNED): SchedulingQueue._on_returned_in_flight,
}

#: The states without an attempt.
_UNREADY = (QueueState.IDLE, QueueState.INCOMPLETE, QueueState.GATED)
