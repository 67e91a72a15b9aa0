"""Follows the API during a simulation and describes what happened to every gang and pod.

    t=0      train-a  Placed    node-0 x4, node-1 x2
    t=0      train-a  Running   6 pods
    t=1      train-b  Waiting   minCount (4) cannot be satisfied: 2 scheduled, 0 remaining
    t=60     train-a  Finished
    t=60     train-b  Placed    node-0 x4

`ApiObserver` follows every watch, as a client like any other. It keeps caches of pods, nodes and
groups for the auditor and the timeline, and a digest over all events in the order of their arrival:
two runs that differ anywhere have different digests.

`TimelineRecorder` follows the observer's caches: after each batch of changes it compares the state
of each gang, or pod without a gang, with its previous state and records the differences. It knows
nothing of the scenario. A line of a `Timeline` is a milestone, which is always printed, or a state,
which is printed only if it lasted.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec
import orjson

from phalanx.api.conversion.hub import STORED_KINDS
from phalanx.api.core import Node, Pod
from phalanx.api.kinds import NODE, POD, POD_GROUP, Kind
from phalanx.api.meta import Key, find_condition
from phalanx.api.scheduling import POD_GROUP_SCHEDULED, PodGroup
from phalanx.api.wire import Object
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.client.protocol import Listing, WatchDecoder, WatchEvent

#: Seconds within which changes of one gang are one line, and for which a state must last.
MERGE_WINDOW = 0.1
_POD_SCHEDULED = "PodScheduled"


class ApiObserver:
    """Follows all changes of some kinds.

    Each function in `on_batch` is called after a batch of changes, with its newest revision.
    """

    def __init__(self, client: Client, kinds: Sequence[Kind] = STORED_KINDS) -> None:
        self.pods: ObjectCache[Pod] = ObjectCache()
        self.nodes: ObjectCache[Node] = ObjectCache()
        self.groups: ObjectCache[PodGroup] = ObjectCache()
        self.on_batch: list[Callable[[int], None]] = []
        self._client, self._kinds = client, kinds
        self._digest = hashlib.sha256()
        self._caches: Mapping[Kind, tuple[type[Any], ObjectCache[Any]]] = {
            POD: (Pod, self.pods), NODE: (Node, self.nodes), POD_GROUP: (PodGroup, self.groups),
        }  # fmt: skip

    @property
    def digest(self) -> str:
        """Return a hash over all events so far."""
        return self._digest.hexdigest()

    async def run(self) -> None:
        """Follow the watches until cancelled; an error of a watch is raised."""
        async with asyncio.TaskGroup() as group:
            for kind in self._kinds:
                group.create_task(self._follow(kind))

    async def _follow(self, kind: Kind) -> None:
        listing = await self._client.list(kind)
        self._update_digest(kind, "LISTED", listing.items)
        if kind in self._caches:
            struct, cache = self._caches[kind]
            found = [msgspec.convert(item, struct) for item in listing.items]
            cache.replace(Listing(found, listing.revision))
        decoder: WatchDecoder[Object] = WatchDecoder(dict, listing.revision)
        while True:
            async with aclosing(self._client.watch_batches(kind, decoder)) as batches:
                async for batch in batches:
                    self._apply_batch(kind, batch)

    def _apply_batch(self, kind: Kind, batch: Iterable[WatchEvent[Object]]) -> None:
        newest = 0
        for event in batch:
            self._update_digest(kind, event.type, [event.object])
            newest = max(newest, event.revision)
            if kind in self._caches:
                struct, cache = self._caches[kind]
                found = msgspec.convert(event.object, struct)
                cache.apply(WatchEvent(event.type, found, event.revision))
        if newest and kind in self._caches:
            for notify in self.on_batch:
                notify(newest)

    def _update_digest(self, kind: Kind, what: str, objects: Iterable[Object]) -> None:
        for found in objects:
            self._digest.update(b"%s %s " % (kind.resource.encode(), what.encode()))
            self._digest.update(orjson.dumps(found))


@dataclass(frozen=True, slots=True)
class TimelineLine:
    """One line about one gang or pod. `nodes` names a node once per pod."""

    time: float
    subject: str
    event: str
    text: str = ""
    nodes: tuple[str, ...] = ()

    @property
    def is_state(self) -> bool:
        """Whether the line is a state, valid until the next line about the same subject."""
        return self.event in _STATES

    def continues(self, other: TimelineLine) -> bool:
        """Whether the line merges with an earlier one."""
        return self.time - other.time < MERGE_WINDOW and (other.event, self.event) in _MERGED_EVENTS


#: States, in the order in which simultaneous ones are printed.
_STATES = ("Running", "Waiting")
#: Milestones of single pods that merge to one line.
_MERGED_EVENTS = (("Placed", "Joined"), ("Joined", "Joined"), ("Lost", "Lost"))


@dataclass(frozen=True, slots=True)
class Timeline:
    """All lines in the order of time, and a digest over all events."""

    lines: tuple[TimelineLine, ...]
    digest: str

    def text(self, decimals: int = 1) -> str:
        """Format the lines. Times are rounded, because finer differences are random latencies.

        States come after milestones of the same time, because their order is random too.
        """
        rank = {event: number for number, event in enumerate(_STATES, start=1)}
        lines = sorted(
            self.lines, key=lambda line: (round(line.time, decimals), rank.get(line.event, 0))
        )
        rows = [
            (
                f"t={_format_time(line.time, decimals)}",
                line.subject,
                line.event,
                _describe_nodes(line),
            )
            for line in lines
        ]
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
        text = ""
        for row in rows:
            padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            text += "  ".join([*padded, row[-1]]).rstrip() + "\n"
        return text


def condense(lines: Iterable[TimelineLine]) -> tuple[TimelineLine, ...]:
    """Drop states that did not last, merge lines that belong together, drop repetitions."""
    lines_by_subject: dict[str, list[TimelineLine]] = {}
    for line in lines:
        lines_by_subject.setdefault(line.subject, []).append(line)
    lines = [
        line
        for subject_lines in lines_by_subject.values()
        for line in _condense_subject(subject_lines)
    ]
    return tuple(sorted(lines, key=lambda line: line.time))


def _condense_subject(lines: Sequence[TimelineLine]) -> list[TimelineLine]:
    """Condense the lines about one subject."""
    kept: list[TimelineLine] = []
    for at, line in enumerate(lines):
        if line.is_state and (_is_transient(line, lines[at + 1 :]) or _is_repeated(line, kept)):
            continue
        if kept and line.continues(kept[-1]):
            first = kept.pop()
            line = replace(first, time=line.time, nodes=first.nodes + line.nodes)
        kept.append(line)
    return kept


def _is_transient(state: TimelineLine, later: Iterable[TimelineLine]) -> bool:
    """Whether a milestone or a state of the same kind follows at once."""
    ends = (line.time for line in later if not line.is_state or line.event == state.event)
    return next(ends, math.inf) - state.time < MERGE_WINDOW


def _is_repeated(state: TimelineLine, kept: Sequence[TimelineLine]) -> bool:
    """Whether the same state was kept since the last milestone."""
    since = takewhile(lambda line: line.is_state, reversed(kept))
    last = next((line for line in since if line.event == state.event), None)
    return last is not None and last.text == state.text


def _describe_nodes(line: TimelineLine) -> str:
    counts = sorted(Counter(line.nodes).items())
    places = [f"{node} x{count}" if count > 1 else node for node, count in counts]
    return ", ".join(places) or line.text


def _format_time(time: float, decimals: int) -> str:
    text = f"{time:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


class TimelineSubject(NamedTuple):
    """The subject of a line: a gang, or a pod without a gang."""

    key: Key
    is_gang: bool


@dataclass(frozen=True, slots=True)
class SubjectState:
    """The observable state of a subject."""

    exists: bool = False
    #: Whether its deletion was requested.
    is_deleted: bool = False
    members: int = 0
    #: The nodes of live members by uid.
    nodes_by_uid: Mapping[str, str] = field(default_factory=dict)
    running: int = 0
    #: The uids of succeeded members.
    succeeded: tuple[str, ...] = ()
    #: Why members are pending.
    waiting_message: str = ""

    @property
    def is_running(self) -> bool:
        """Whether all bound members run."""
        return 0 < self.running == len(self.nodes_by_uid)

    @property
    def is_finished(self) -> bool:
        """Whether all members have succeeded."""
        return 0 < self.members == len(self.succeeded)


class TimelineRecorder:
    """Records timeline lines; `now` returns the scenario's time."""

    def __init__(
        self, pods: ObjectCache[Pod], groups: ObjectCache[PodGroup], now: Callable[[], float]
    ) -> None:
        self.lines: list[TimelineLine] = []
        self._pods, self._groups, self._now = pods, groups, now
        self._members = pods.index(lambda pod: [_subject(pod)])
        self._states: dict[TimelineSubject, SubjectState] = {}
        self._changed: dict[TimelineSubject, None] = {}
        pods.subscribe(self._pod_changed)
        groups.subscribe(self._group_changed)

    def record_changes(self) -> None:
        """Record the changes since the last call."""
        for subject in self._changed:
            group = self._groups.get(subject.key) if subject.is_gang else None
            before, after = (
                self._states.get(subject, SubjectState()),
                subject_state(group, self._members[subject]),
            )
            self._states[subject] = after
            for event, text, nodes in describe_changes(before, after):
                self.lines.append(
                    TimelineLine(self._now(), subject.key.name, event, text=text, nodes=nodes)
                )
        self._changed = {}

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        for pod in (old, new):
            if pod is not None:
                self._changed[_subject(pod)] = None

    def _group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        for group in (old, new):
            if group is not None:
                self._changed[TimelineSubject(group.metadata.key, True)] = None


def _subject(pod: Pod) -> TimelineSubject:
    return TimelineSubject(pod.group or pod.metadata.key, pod.group is not None)


def subject_state(group: PodGroup | None, pods: Sequence[Pod]) -> SubjectState:
    """Return the state of a gang from its group and members, or of a single pod."""
    owners = [group] if group else pods
    return SubjectState(
        exists=bool(owners),
        is_deleted=any(owner.metadata.deletion_timestamp for owner in owners),
        members=len(pods),
        nodes_by_uid={pod.metadata.uid: pod.occupied_node for pod in pods if pod.occupied_node},
        running=sum(pod.status.phase == "Running" for pod in pods),
        succeeded=tuple(pod.metadata.uid for pod in pods if pod.status.phase == "Succeeded"),
        waiting_message=_waiting_message(group, pods),
    )


def _waiting_message(group: PodGroup | None, pods: Sequence[Pod]) -> str:
    """Return why members are pending: the group's message, else that of the first member."""
    pending = [pod for pod in pods if not pod.spec.node_name and not pod.is_terminal]
    if not pending:
        return ""
    group_condition = (
        find_condition(group.status.conditions, POD_GROUP_SCHEDULED) if group else None
    )
    if group_condition is not None and group_condition.status == "False":
        return group_condition.message
    first = min(pending, key=lambda pod: pod.metadata.name)
    condition = find_condition(first.status.conditions, _POD_SCHEDULED)
    if condition is None or condition.status != "False":
        return ""
    return f"{len(pending)} more: {condition.message}" if group_condition else condition.message


def describe_changes(
    before: SubjectState, after: SubjectState
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the lines for a change of state: word, text and nodes."""
    new_nodes = [node for uid, node in after.nodes_by_uid.items() if uid not in before.nodes_by_uid]
    lost_uids = [
        uid
        for uid in before.nodes_by_uid
        if uid not in after.nodes_by_uid and uid not in after.succeeded
    ]
    if new_nodes:
        yield "Joined" if before.nodes_by_uid else "Placed", "", tuple(new_nodes)
    if lost_uids and not (before.is_deleted or after.is_deleted):
        yield "Lost", "", tuple(before.nodes_by_uid[uid] for uid in lost_uids)
    if after.is_running and (not before.is_running or before.running != after.running):
        yield "Running", f"{after.running} pod{'s' if after.running > 1 else ''}", ()
    if after.waiting_message and after.waiting_message != before.waiting_message:
        yield "Waiting", after.waiting_message, ()
    if after.is_finished and not before.is_finished:
        yield "Finished", "", ()
    if before.exists and not after.exists:
        yield "Gone", "", ()
