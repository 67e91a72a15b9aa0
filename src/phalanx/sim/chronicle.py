"""Tells what becomes of gangs and pods, from nothing but what the API shows: the writer of lines.

Hears of changes through the observer's caches; after those that came together it compares what each
gang (or pod without one) was with what it is now, and writes down the differences that matter: one
row of TELLERS each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from phalanx.api.core import Pod
from phalanx.api.meta import Condition, Key, condition
from phalanx.api.scheduling import SCHEDULED, PodGroup
from phalanx.client.cache import Cache
from phalanx.sim.timeline import Line

_POD_SCHEDULED = "PodScheduled"


@dataclass(frozen=True, slots=True)
class View:
    """What there is to be seen of a gang, or of a pod alone, at one time."""

    is_there: bool = False
    #: Somebody wants it gone.
    is_leaving: bool = False
    #: Live members by uid, and their nodes.
    homes: Mapping[str, str] = field(default_factory=dict)
    members: int = 0
    running: int = 0
    succeeded: tuple[str, ...] = ()
    sentence: str = ""


class Chronicle:
    """The lines so far. `now` gives the time of the scenario."""

    def __init__(
        self, pods: Cache[Pod], groups: Cache[PodGroup], now: Callable[[], float]
    ) -> None:
        self.lines: list[Line] = []
        self._pods, self._groups, self._now = pods, groups, now
        self._of = pods.index(lambda pod: [pod.group] if pod.group else [])
        self._views: dict[_Subject, View] = {}
        self._touched: dict[_Subject, None] = {}
        pods.subscribe(self._pod_changed)
        groups.subscribe(self._group_changed)

    def tell(self) -> None:
        """Write down what changed since the last time."""
        for subject in self._touched:
            before, after = self._views.get(subject, View()), self._look(subject)
            self._views[subject] = after
            for word, text, nodes in _differences(before, after):
                self.lines.append(Line(self._now(), subject[1].name, word, text, nodes))
        self._touched = {}
