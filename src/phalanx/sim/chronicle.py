"""Tells what becomes of gangs and pods, from nothing but what the API shows: the writer of lines.

Hears of changes through the observer's caches; after those that came together it compares what each
gang (or pod without one) was with what it is now and writes down the differences that matter. Knows
nothing of the scenario; `timeline` puts the lines in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from phalanx.api.core import Pod
from phalanx.api.meta import Key, condition
from phalanx.api.scheduling import SCHEDULED, PodGroup
from phalanx.client.cache import Cache
from phalanx.sim.timeline import Line

_POD_SCHEDULED = "PodScheduled"


class Subject(NamedTuple):
    """Whom a line is about: a gang, or a pod that is in none."""

    key: Key
    is_gang: bool


@dataclass(frozen=True, slots=True)
class View:
    """What there is to be seen of a subject at one time."""

    is_there: bool = False
    #: Somebody wants it gone.
    is_leaving: bool = False
    members: int = 0
    #: The nodes of live members, by their uids.
    homes: Mapping[str, str] = field(default_factory=dict)
    running: int = 0
    #: The uids of members that ended well.
    succeeded: tuple[str, ...] = ()
    #: Why members have no node.
    sentence: str = ""

    @property
    def is_running(self) -> bool:
        """Whether all that have a node run there."""
        return 0 < self.running == len(self.homes)

    @property
    def is_finished(self) -> bool:
        """Whether all members ended well."""
        return 0 < self.members == len(self.succeeded)


class Chronicle:
    """The lines so far. `now` gives the time of the scenario."""

    def __init__(self, pods: Cache[Pod], groups: Cache[PodGroup], now: Callable[[], float]) -> None:
        self.lines: list[Line] = []
        self._pods, self._groups, self._now = pods, groups, now
        self._members = pods.index(lambda pod: [_subject(pod)])
        self._views: dict[Subject, View] = {}
        self._touched: dict[Subject, None] = {}
        pods.subscribe(self._pod_changed)
        groups.subscribe(self._group_changed)

    def tell(self) -> None:
        """Write down what changed since the last time."""
        for subject in self._touched:
            group = self._groups.get(subject.key) if subject.is_gang else None
            before, after = self._views.get(subject, View()), look(group, self._members[subject])
            self._views[subject] = after
            for word, text, nodes in differences(before, after):
                self.lines.append(Line(self._now(), subject.key.name, word, text, nodes))
        self._touched = {}

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        for pod in (old, new):
            if pod is not None:
                self._touched[_subject(pod)] = None

    def _group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        for group in (old, new):
            if group is not None:
                self._touched[Subject(group.metadata.key, True)] = None


def _subject(pod: Pod) -> Subject:
    return Subject(pod.group or pod.metadata.key, pod.group is not None)


def look(group: PodGroup | None, pods: Sequence[Pod]) -> View:
    """What is to be seen of a gang by its group and members, or of a pod by itself."""
    owners = [group] if group else pods
    return View(
        is_there=bool(owners),
        is_leaving=any(owner.metadata.deletion_timestamp for owner in owners),
        members=len(pods),
        homes={pod.metadata.uid: pod.node for pod in pods if pod.node},
        running=sum(pod.status.phase == "Running" for pod in pods),
        succeeded=tuple(pod.metadata.uid for pod in pods if pod.status.phase == "Succeeded"),
        sentence=_sentence(group, pods),
    )


def _sentence(group: PodGroup | None, pods: Sequence[Pod]) -> str:
    """Why members have no node, in the words of their group, else of the first of them."""
    homeless = [pod for pod in pods if not pod.spec.node_name and not pod.ended]
    if not homeless:
        return ""
    said = condition(group.status.conditions, SCHEDULED) if group else None
    if said is not None and said.status == "False":
        return said.message
    first = min(homeless, key=lambda pod: pod.metadata.name)
    told = condition(first.status.conditions, _POD_SCHEDULED)
    if told is None or told.status != "False":
        return ""
    return f"{len(homeless)} more: {told.message}" if said else told.message


def differences(before: View, after: View) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """What is worth a line: a word, a text and the nodes that it is about."""
    came = [node for uid, node in after.homes.items() if uid not in before.homes]
    left = [uid for uid in before.homes if uid not in after.homes and uid not in after.succeeded]
    if came:
        yield "Joined" if before.homes else "Placed", "", tuple(came)
    if left and not (before.is_leaving or after.is_leaving):
        yield "Lost", "", tuple(before.homes[uid] for uid in left)
    if after.is_running and (not before.is_running or before.running != after.running):
        yield "Running", f"{after.running} pod{'s' if after.running > 1 else ''}", ()
    if after.sentence and after.sentence != before.sentence:
        yield "Waiting", after.sentence, ()
    if after.is_finished and not before.is_finished:
        yield "Finished", "", ()
    if before.is_there and not after.is_there:
        yield "Gone", "", ()
