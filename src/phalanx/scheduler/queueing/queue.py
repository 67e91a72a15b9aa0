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
from phalanx.api.scheduling import TOPOLOGY
from phalanx.scheduler.backoff import USUAL, BackOff
from phalanx.scheduler.cluster.forest import Flaw, Forest, Group, Name, name_of
from phalanx.scheduler.decision import Binding, Decision, Misplaced, Placed
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.events import OWN, Event
from phalanx.scheduler.queueing.entry import Entry, Id, Memory, Rank, State
from phalanx.scheduler.queueing.lines import Arrival, Line, Stand
from phalanx.scheduler.queueing.place import Place, place_of, position


class Stimulus(Enum):
    """What can happen to an entity."""

    CHANGED = "its group or a member came, changed or went"
    CURED = "something happened that its last refusal waits for"
    EXPIRED = "its back-off is over"
    POPPED = "it is taken"
    PLACED = "members got nodes"
    REFUSED = "it was refused"
    OVERTAKEN = "what was decided is not asked for any more"
    RETURNED = "members that had got nodes could not be bound"


class IllegalTransition(Exception):
    """A stimulus that cannot happen in a state did."""


class Queue:
    """All entities that schedulers of these names have to place; without names, the usual one."""

    def __init__(self, *names: str, back_off: BackOff = USUAL) -> None:
        self._names, self._back_off = names or (DEFAULT_SCHEDULER,), back_off
        self._forest = Forest()
        self._entries: dict[Id, Entry] = {}
        self._where: dict[Key, Entry] = {}
        #: Pods that were placed and whose binding was not seen yet.
        self._assumed: dict[Key, Pod] = {}
        self._active: list[tuple[Rank, Id]] = []
        self._backing_off: list[tuple[float, Id]] = []
        self._sleepers: dict[Event, dict[Id, Entry]] = {event: {} for event in Event}
        self._flying: dict[Id, Entry] = {}
        #: How many turns were given away so far.
        self.sequence = 0
        #: How many entities, and pods with them, have come to stand in which line, and why.
        self.arrivals: Counter[Arrival] = Counter()
        self.arrived_pods: Counter[Arrival] = Counter()

    def pod(self, pod: Pod, now: float) -> None:
        """A pod came or changed."""
        key = pod.metadata.key
        self._drop_namesake(pod, now)
        if not _alive(pod) or (pod.group is None and not self._is_ours(pod)):
            self.pod_gone(key, now)
        elif key in self._assumed and not pod.spec.node_name:
            self._assumed[key] = pod
        else:
            self._assumed.pop(key, None)
            self._put(pod, now)

    def pod_gone(self, key: Key, now: float) -> None:
        """A pod was deleted, has ended, or is no business of this queue any more."""
        self._assumed.pop(key, None)
        entry = self._where.pop(key, None)
        if entry:
            entry.drop(key)
            self._feel(entry, Event.MEMBER_GONE, now)

    def group(self, group: Group, now: float) -> None:
        """A group came or changed."""
        name = name_of(group)
        if _is_same(self._forest.get(name), group):
            self._forest.put(name, group)
        else:
            self._hang(name, group, now)

    def group_gone(self, key: Key, now: float, *, is_composite: bool = False) -> None:
        """A group was deleted."""
        name = Name(is_composite, key)
        if self._forest.get(name) is not None:
            self._hang(name, None, now)

    def _hang(self, name: Name, group: Group | None, now: float) -> None:
        """Take a group in, or out; whoever belongs to another tree now goes there."""
        before = {one: self._home(one) for one in self._forest.below(name)}
        self._forest.put(name, group)
        homes = dict.fromkeys(before.values())
        for one, old in before.items():
            home = self._home(one)
            homes[home] = None
            if home != old and not one.is_composite:
                self._move(one.key, old, home)
        for id_ in homes:
            if entry := self._entries.get(id_):
                self._feel(entry, Event.GROUP_CHANGED, now)

    def _move(self, group: Key, old: Id, new: Id) -> None:
        """Bring the pods of a group to the entry of the tree that it is in."""
        source = self._entries.get(old)
        pods = [pod for pod in source.pods if pod.group == group] if source else []
        for pod in pods:
            assert source is not None
            target = self._where[pod.metadata.key] = self._entry(new)
            target.adopt(pod.metadata.key, source)

    def _home(self, name: Name) -> Id:
        """Who is tried with a group: the root of its tree, or it waits by itself."""
        root = self._forest.root(name)
        found = name if isinstance(root, Flaw) else root
        return Id(True, found.key, found.is_composite)

    def _id(self, pod: Pod) -> Id:
        return self._home(Name(False, pod.group)) if pod.group else Id(False, pod.metadata.key)

    def wake(self, event: Event, now: float) -> None:
        """Something happened in the cluster: whoever waits for it is tried at once."""
        for entry in self._flying.values():
            entry.missed.add(event)
        for entry in list(self._sleepers[event].values()):
            self._step(entry, Stimulus.CURED, now, event)

    def pop(self, now: float) -> Entity | None:
        """Take the next entity; it is in flight until `done`."""
        while self._backing_off and self._backing_off[0][0] <= now:
            until, id_ = heappop(self._backing_off)
            if self._rests(id_, until):
                self._step(self._entries[id_], Stimulus.EXPIRED, now)
        while self._active:
            rank, id_ = heappop(self._active)
            entry = self._entries.get(id_)
            if entry and entry.queued == rank:
                entry.queued = None
                if entry.state is State.ACTIVE:
                    self._step(entry, Stimulus.POPPED, now)
                    return entry.take_off(now)
        return None

    def done(self, entity: Entity, outcome: Decision, now: float) -> None:
        """An attempt has ended. Placed pods are out of the queue until bound or returned."""
        entry = self._tried(entity)
        stimulus = Stimulus.PLACED if isinstance(outcome, Placed) else Stimulus.REFUSED
        self._transition(entry, stimulus)
        if isinstance(outcome, Placed):
            self._hand_out(entry, outcome.bindings)
        else:
            entry.count(outcome)
        self._step(entry, stimulus, now)

    def is_current(self, entity: Entity, bindings: Iterable[Binding]) -> bool:
        """Whether what was found is still wanted: for these pods, by the groups that were read."""
        entry = self._tried(entity)
        wanted = all(entry.awaits(pod, uid) for pod, uid, _ in bindings)
        tree = [one.group for one in entity.groups]
        now = [self._forest.get(name) for name in self._below(entry.id)]
        return wanted and len(tree) == len(now) and all(map(_is_same, tree, now))

    def _below(self, id_: Id) -> Iterator[Name]:
        return self._forest.tree(id_.name) if id_.is_group else iter(())

    def again(self, entity: Entity, now: float) -> None:
        """What an attempt ended in is not wanted any more: have it tried anew, in its old turn."""
        self._step(self._tried(entity), Stimulus.OVERTAKEN, now)

    def returned(self, bindings: Iterable[Binding], now: float) -> None:
        """These placements could not be bound: the pods wait again, after a back-off."""
        entries: dict[Id, Entry] = {}
        for key, uid, _ in bindings:
            pod = self._assumed.get(key)
            if pod and pod.metadata.uid == uid:
                del self._assumed[key]
                entry = self._entry(self._id(pod))
                entry.put(pod, now, pending=True)
                self._where[key] = entries[entry.id] = entry
        for entry in entries.values():
            entry.errors += 1
            self._step(entry, Stimulus.RETURNED, now)

    def next_time(self) -> float | None:
        """When the next back-off ends; nothing happens by itself before."""
        while self._backing_off:
            until, id_ = self._backing_off[0]
            if self._rests(id_, until):
                return until
            heappop(self._backing_off)
        return None

    def waiting(self) -> list[Place]:
        """The entities that are not even tried, each with what keeps it back."""
        return [place_of(entry) for entry in self._entries.values() if entry.state in _HELD_BACK]

    def misplaced(self) -> Iterator[tuple[Key, Misplaced]]:
        """The groups of groups whose tree is not whole, or is none."""
        for name in self._forest.groups:
            if name.is_composite and isinstance(flaw := self._forest.root(name), Flaw):
                yield name.key, Misplaced(flaw.message, not flaw.missing)

    def listing(self) -> list[Place]:
        """Everything there is to place, the next one first."""
        entries = [entry for entry in self._entries.values() if entry.state is not State.IDLE]
        return [place_of(entry) for entry in sorted(entries, key=position)]

    def stands(self) -> Iterator[Stand]:
        """Everybody who stands in a line, in no order."""
        for entry in self._entries.values():
            if line := entry.line:
                first = next(iter(entry.pending.values())).pod.spec.scheduler_name
                outcome = entry.outcome if entry.state is State.BACKING_OFF else None
                where, pods = Line(line, entry.id.is_group), len(entry.pending)
                yield Stand(where, entry.state, pods, first, outcome)

    @property
    def latecomers(self) -> int:
        """How many pods have come while their group is being tried, and wait for that to end."""
        flying = (entry for entry in self._flying.values() if entry.id.is_group)
        return sum(not one.attempts for entry in flying for one in entry.pending.values())

    def memories(self) -> list[Memory]:
        """All that a queue must be told to go on like this one, besides pods and groups."""
        return [entry.memory() for entry in self._entries.values() if entry.line or entry.others]

    def recall(self, memory: Memory) -> None:
        """Have an entity stand where it once stood; its pods and group were told before."""
        entry = self._entries[memory.id]
        entry.recall(memory)
        if entry.queued:
            heappush(self._active, (entry.queued, entry.id))
        if State[memory.state] is State.BACKING_OFF:
            self._sleep(entry, memory.until, frozenset(memory.wakes_on))
        else:
            self._enter(entry, State[memory.state])

    def placed(self, bindings: Iterable[Binding], now: float) -> None:
        """These pods were placed before anybody told: they are out of the queue."""
        for binding in bindings:
            if entry := self._where.get(binding.pod):
                self._hand_out(entry, [binding])
                self._step(entry, Stimulus.CHANGED, now)

    def _is_ours(self, pod: Pod) -> bool:
        return not pod.spec.node_name and pod.spec.scheduler_name in self._names

    def _put(self, pod: Pod, now: float) -> None:
        entry = self._where[pod.metadata.key] = self._entry(self._id(pod))
        if entry.put(pod, now, pending=self._is_ours(pod)):
            self._feel(entry, Event.MEMBER_CHANGED, now)

    def _drop_namesake(self, pod: Pod, now: float) -> None:
        """A pod may be deleted and made again between two looks at it."""
        key, uid = pod.metadata.key, pod.metadata.uid
        entry, assumed = self._where.get(key), self._assumed.get(key)
        strange = entry is not None and not (entry.id == self._id(pod) and entry.holds(key, uid))
        if strange or (assumed and assumed.metadata.uid != uid):
            self.pod_gone(key, now)

    def _hand_out(self, entry: Entry, bindings: Iterable[Binding]) -> None:
        for key, uid, _ in bindings:
            member = entry.pending.get(key)
            if member and member.pod.metadata.uid == uid:
                self._assumed[key] = member.pod
                entry.drop(key)
                if entry.id.is_group:
                    entry.others[key] = member.pod
                else:
                    del self._where[key]

    def _entry(self, id_: Id) -> Entry:
        entry = self._entries.get(id_)
        if entry is None:
            entry = self._entries[id_] = Entry(id_, self._forest)
        return entry

    def _tried(self, entity: Entity) -> Entry:
        return self._entries[Id(entity.group is not None, entity.key, entity.is_composite)]

    def _rests(self, id_: Id, until: float) -> bool:
        entry = self._entries.get(id_)
        return entry is not None and entry.state is State.BACKING_OFF and entry.until == until

    def _feel(self, entry: Entry, event: Event, now: float) -> None:
        """Something happened to this entity alone."""
        entry.missed.add(event)
        cured = event in entry.wakes_on
        self._step(entry, Stimulus.CURED if cured else Stimulus.CHANGED, now, event)

    def _step(
        self, entry: Entry, stimulus: Stimulus, now: float, event: Event | None = None
    ) -> None:
        before = entry.state
        self._transition(entry, stimulus)(self, entry, now)
        if entry.state is before:
            return
        if before in _UNREADY and entry.state is State.ACTIVE:
            entry.ready = now
        if line := entry.line:
            arrival = Arrival(Line(line, entry.id.is_group), event or stimulus)
            self.arrivals[arrival] += 1
            self.arrived_pods[arrival] += len(entry.pending)

    def _transition(self, entry: Entry, stimulus: Stimulus) -> Transition:
        transition = TRANSITIONS.get((entry.state, stimulus))
        if transition is None:
            raise IllegalTransition(f"{entry.id.key} is {entry.state.name}, yet {stimulus.value}")
        return transition

    def _stay(self, entry: Entry, now: float) -> None:
        """Nothing to do."""

    def _settle(self, entry: Entry, now: float) -> None:
        """Go where it belongs by what is there of it."""
        self._enter(entry, entry.standing)

    def _begin(self, entry: Entry, now: float) -> None:
        """The first pods to place begin a new wait."""
        entry.attempts = entry.failures = entry.errors = 0
        self._stamp(entry, now)
        self._settle(entry, now)

    def _review(self, entry: Entry, now: float) -> None:
        """Go on backing off, unless it cannot be tried at all any more."""
        if entry.standing is not State.ACTIVE:
            self._settle(entry, now)

    def _fly(self, entry: Entry, now: float) -> None:
        entry.missed.clear()
        entry.returned = False
        self._enter(entry, State.IN_FLIGHT)

    def _placed(self, entry: Entry, now: float) -> None:
        """Leftovers are tried again at once and keep their turn; late members queue up."""
        entry.failures, entry.outcome = 0, None
        if entry.returned:
            self._returned(entry, now)
            return
        entry.errors = 0
        if not any(member.attempts for member in entry.pending.values()):
            self._stamp(entry, now)
        self._settle(entry, now)

    def _refused(self, entry: Entry, now: float) -> None:
        """Back off, unless the cure came while it was being tried."""
        self._stamp(entry, now)
        wakes_on = entry.outcome.wakes_on if entry.outcome else frozenset()
        if entry.returned:
            self._returned(entry, now)
        elif entry.missed & wakes_on:
            self._settle(entry, now)
        else:
            self._rest(entry, now, wakes_on)

    def _returned_in_flight(self, entry: Entry, now: float) -> None:
        """Back off once it has landed: the room that its members leave is not there."""
        entry.returned = True

    def _returned(self, entry: Entry, now: float) -> None:
        """Back off; room that comes free does not help against a refused binding."""
        if entry.state is State.IDLE:
            self._stamp(entry, now)
        if self._back_off.longest:
            self._rest(entry, now, OWN)
        else:
            self._settle(entry, now)

    def _rest(self, entry: Entry, now: float, wakes_on: frozenset[Event]) -> None:
        if entry.standing is not State.ACTIVE:
            self._settle(entry, now)
            return
        seconds = self._back_off.after(entry.in_a_row, len(entry.pending))
        relaxes = entry.outcome.relaxes if entry.outcome else None
        if relaxes is not None:
            seconds = min(seconds, relaxes)
        self._sleep(entry, now + seconds, wakes_on)

    def _sleep(self, entry: Entry, until: float, wakes_on: frozenset[Event]) -> None:
        self._enter(entry, State.BACKING_OFF)
        entry.wakes_on, entry.until = wakes_on, until
        heappush(self._backing_off, (entry.until, entry.id))
        for event in wakes_on:
            self._sleepers[event][entry.id] = entry

    def _enter(self, entry: Entry, state: State) -> None:
        """Leave one state, enter another, keep the books."""
        for event in entry.wakes_on:
            del self._sleepers[event][entry.id]
        entry.wakes_on = frozenset()
        self._flying.pop(entry.id, None)
        entry.state = state
        if state is State.IN_FLIGHT:
            self._flying[entry.id] = entry
        elif state is State.ACTIVE and entry.queued != entry.rank:
            entry.queued = entry.rank
            heappush(self._active, (entry.rank, entry.id))
        elif state is State.IDLE and not entry.others:
            del self._entries[entry.id]

    def _stamp(self, entry: Entry, now: float) -> None:
        entry.timestamp, entry.sequence = now, self.sequence
        self.sequence += 1


Transition = Callable[[Queue, Entry, float], None]

TRANSITIONS: Mapping[tuple[State, Stimulus], Transition] = {
    (State.IDLE, Stimulus.CHANGED): Queue._begin,
    (State.IDLE, Stimulus.RETURNED): Queue._returned,
    (State.INCOMPLETE, Stimulus.CHANGED): Queue._settle,
    (State.INCOMPLETE, Stimulus.RETURNED): Queue._settle,
    (State.GATED, Stimulus.CHANGED): Queue._settle,
    (State.GATED, Stimulus.RETURNED): Queue._settle,
    (State.ACTIVE, Stimulus.CHANGED): Queue._settle,
    (State.ACTIVE, Stimulus.POPPED): Queue._fly,
    (State.ACTIVE, Stimulus.RETURNED): Queue._returned,
    (State.BACKING_OFF, Stimulus.CHANGED): Queue._review,
    (State.BACKING_OFF, Stimulus.CURED): Queue._settle,
    (State.BACKING_OFF, Stimulus.EXPIRED): Queue._settle,
    (State.BACKING_OFF, Stimulus.RETURNED): Queue._returned,
    (State.IN_FLIGHT, Stimulus.CHANGED): Queue._stay,
    (State.IN_FLIGHT, Stimulus.PLACED): Queue._placed,
    (State.IN_FLIGHT, Stimulus.REFUSED): Queue._refused,
    (State.IN_FLIGHT, Stimulus.OVERTAKEN): Queue._settle,
    (State.IN_FLIGHT, Stimulus.RETURNED): Queue._returned_in_flight,
}

#: Where those stand who cannot be tried, and those of them who have pods to place.
_UNREADY = (State.IDLE, State.INCOMPLETE, State.GATED)
_HELD_BACK = (State.INCOMPLETE, State.GATED)


def _is_same(one: Group | None, other: Group | None) -> bool:
    """Whether it is the same group and asks for the same: a namesake is another."""
    if one is None or other is None:
        return one is other
    return _asked(one) == _asked(other)


def _asked(group: Group) -> tuple[object, ...]:
    """What a cycle reads of a group."""
    meta = group.metadata
    return meta.uid, group.spec, group.quorum, meta.annotations.get(TOPOLOGY, "")


def _alive(pod: Pod) -> bool:
    """Whether a pod is still a member: not ended and not being deleted."""
    return not pod.ended and not pod.metadata.deletion_timestamp
