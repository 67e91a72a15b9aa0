"""Waits: who is not even tried, and who has been told what it waits for.

The scheduling shell looks once a second. A group says at once what it lacks, and says it anew when
the numbers change. Its pods say so once, after a while, and anew only if they wait for something
else: a gang that gathers would else write all of its pods with each that comes. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from phalanx.api.core import Pod
from phalanx.api.meta import Key, Meta
from phalanx.api.scheduling import CompositePodGroup, PodGroup
from phalanx.client.cache import Cache
from phalanx.controllers.shell.reporter import Verdict
from phalanx.scheduler.decision import Misplaced, Unready
from phalanx.scheduler.explain import not_ready
from phalanx.scheduler.queueing.entry import Id
from phalanx.scheduler.queueing.place import Place

#: The reason of a pod that cannot be tried yet, and of one whose groups form no tree.
NOT_READY, INVALID = "NotReadyForScheduling", "Invalid"
#: Seconds that a pod waits before it is told so.
POD_PATIENCE = 5.0


@dataclass(slots=True)
class _Wait:
    """One entity that waits: since when, what its group says, what which of its pods were told.

    What it says holds until it is tried: `turn` tells one wait from the next.
    """

    since: float
    turn: tuple[int, float]
    said: tuple[str, str] = ("", "")
    cause: type | None = None
    #: Uids: a namesake that came since has been told nothing.
    told: frozenset[str] = frozenset()


class Reports(Protocol):
    """Who brings to the objects what is said of them."""

    def pod(self, about: Meta, verdict: Verdict) -> None:
        """Say something of a pod."""
        ...

    def group(self, about: Meta, verdict: Verdict) -> None:
        """Say something of a group."""
        ...


class TreeReports(Protocol):
    """Who brings to groups of groups what is said of them."""

    def composite(self, about: Meta, verdict: Verdict) -> None:
        """Say something of a group of groups."""
        ...


class Waits:
    """Tells the reporter, and `record` an event of each pod that is told."""

    def __init__(
        self, pods: Cache[Pod], groups: Cache[PodGroup], composites: Cache[CompositePodGroup],
        reporter: Reports, trees: TreeReports, record: Callable[[Pod, str, str], None],
    ) -> None:  # fmt: skip
        self._pods, self._groups = pods, groups
        self._composites, self._trees = composites, trees
        self._reporter, self._record = reporter, record
        self._waits: dict[Id, _Wait] = {}

    def look(self, places: Iterable[Place], now: float) -> None:
        """These wait now, and no others."""
        found = {place.id: place for place in places}
        self._waits = {id_: self._wait(id_, place, now) for id_, place in found.items()}
        for id_, place in found.items():
            wait = self._waits[id_]
            if place.is_composite:
                self._tell_composite(place.key, _verdict(place.unready))
            elif place.is_group:
                self._tell_group(place, wait)
            if now - wait.since >= POD_PATIENCE:
                self._tell_pods(place, wait)

    def look_at_trees(self, misplaced: Iterable[tuple[Key, Misplaced]]) -> None:
        """These groups of groups are in no whole tree."""
        for key, what in misplaced:
            self._tell_composite(key, _verdict(what))

    def _tell_composite(self, key: Key, verdict: Verdict) -> None:
        if composite := self._composites.get(key):
            self._trees.composite(composite.metadata, verdict)

    def _wait(self, id_: Id, place: Place, now: float) -> _Wait:
        turn, known = (place.attempts, place.timestamp), self._waits.get(id_)
        return known if known and known.turn == turn else _Wait(now, turn)

    def _tell_group(self, place: Place, wait: _Wait) -> None:
        group, verdict = self._groups.get(place.key), _verdict(place.unready)
        said = (group.metadata.uid, verdict.message) if group else ("", "")
        if group and said != wait.said:
            self._reporter.group(group.metadata, verdict)
        wait.said = said

    def _tell_pods(self, place: Place, wait: _Wait) -> None:
        cause, verdict = type(place.unready), _verdict(place.unready)
        told = wait.told if cause is wait.cause else frozenset()
        found = [pod for key in place.pods if (pod := self._pods.get(key))]
        concerned = [pod for pod in found if not pod.spec.scheduling_gates]
        for pod in concerned:
            if pod.metadata.uid not in told:
                self._reporter.pod(pod.metadata, verdict)
                self._record(pod, verdict.reason, verdict.message)
        wait.cause, wait.told = cause, frozenset(pod.metadata.uid for pod in concerned)


def _verdict(unready: Unready | None) -> Verdict:
    message = not_ready(unready) if unready else ""
    is_invalid = isinstance(unready, Misplaced) and unready.invalid
    return Verdict("False", INVALID if is_invalid else NOT_READY, message, waiting=True)
