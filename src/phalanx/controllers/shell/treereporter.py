"""Writes what was decided about trees of groups where users look: on every group of groups.

The sibling of `reporter.py`, for CompositePodGroups. That one was placed is said once and for all,
and groups below that say so speak for it, so that it is said even if whoever bound them is no more;
that it was told to make way is taken back once it is placed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from phalanx.api.kinds import COMPOSITE_POD_GROUP
from phalanx.api.meta import Key, Meta, condition, timestamp
from phalanx.api.scheduling import (
    COMPOSITE_INITIALLY_SCHEDULED,
    DISRUPTION_TARGET,
    INITIALLY_SCHEDULED,
    CompositePodGroup,
    PodGroup,
)
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.cache import Cache
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.actions import Patch, Plan
from phalanx.controllers.groups.compositegroups import Child, parents_of
from phalanx.controllers.reports import Reports
from phalanx.controllers.shell.reporter import Verdict
from phalanx.scheduler.cluster.forest import DEPTH


class TreeReporter:
    """Brings the conditions of groups of groups in line with the latest verdicts.

    `placed` tells how many live members of a PodGroup have a node.
    """

    def __init__(
        self, client: Client, groups: Cache[PodGroup], composites: Cache[CompositePodGroup],
        clock: Clock, placed: Callable[[Key], int],
    ) -> None:  # fmt: skip
        self._composites, self._clock, self._placed = composites, clock, placed
        self._below = composites.index(parents_of), groups.index(parents_of)
        #: The latest verdict about each, and the object as it was judged.
        self._verdicts: dict[Key, tuple[Meta, Verdict]] = {}
        self._loop = Reports(client, self.reconcile, composites)
        composites.subscribe(self._changed)
        composites.subscribe(self._child_changed)
        groups.subscribe(self._child_changed)

    async def run(self) -> None:
        """Report until cancelled."""
        await self._loop.run()

    def composite(self, about: Meta, verdict: Verdict) -> None:
        """Say something of a group of groups."""
        if self._verdicts.get(about.key) != (about, verdict):
            self._verdicts[about.key] = about, verdict
            self._loop.queue.add(about.key)

    def disrupted(self, groups: Iterable[Meta]) -> None:
        """These are told to make way: what was said of them holds no more."""
        for meta in groups:
            self._verdicts.pop(meta.key, None)

    def reconcile(self, key: Key) -> Plan:
        """The patch that makes it say what it should, if it does not yet."""
        composite = self._composites.get(key)
        if composite is None:
            self._verdicts.pop(key, None)
            return Plan()
        conditions = [*self._verdict(composite), *self._spared(composite)]
        if not conditions:
            return Plan()
        meta = composite.metadata
        change: Object = {
            "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
            "status": {"conditions": conditions},
        }
        return Plan([Patch(COMPOSITE_POD_GROUP, key, change, "status", STRATEGIC_PATCH)])

    def _verdict(self, composite: CompositePodGroup) -> list[Object]:
        """Whether it was placed, if it does not say that yet."""
        about, verdict = self._latest(composite)
        old = condition(composite.status.conditions, COMPOSITE_INITIALLY_SCHEDULED)
        known = old and (old.status, old.reason, old.message)
        if verdict is None or (old is not None and old.status == "True"):
            return []
        if known == (verdict.status, verdict.reason, verdict.message):
            return []
        since = old.last_transition_time if old and old.status == verdict.status else None
        return [{
            "type": COMPOSITE_INITIALLY_SCHEDULED, "status": verdict.status,
            "reason": verdict.reason, "message": verdict.message,
            "lastTransitionTime": since or timestamp(self._clock.now()),
            "observedGeneration": about.generation,
        }]  # fmt: skip

    def _latest(self, composite: CompositePodGroup) -> tuple[Meta, Verdict | None]:
        """What is to be said of this very one."""
        meta = composite.metadata
        if sum(map(_was_placed, self._children(meta.key))) >= composite.quorum:
            return meta, Verdict("True", "Scheduled", "")
        about, verdict = self._verdicts.get(meta.key, (meta, None))
        return about, verdict if about.uid == meta.uid else None

    def _spared(self, composite: CompositePodGroup) -> list[Object]:
        """That it need not make way any more, if it has all that it needs again."""
        told = condition(composite.status.conditions, DISRUPTION_TARGET)
        if told is None or not self._is_whole(composite):
            return []
        return [{"type": DISRUPTION_TARGET, "$patch": "delete"}]

    def _is_whole(self, group: Child) -> bool:
        if isinstance(group, PodGroup):
            return self._placed(group.metadata.key) >= group.quorum
        return sum(map(self._is_whole, self._children(group.metadata.key))) >= group.quorum

    def _children(self, key: Key) -> list[Child]:
        composites, groups = self._below
        return [*composites[key], *groups[key]]

    def _changed(self, old: CompositePodGroup | None, new: CompositePodGroup | None) -> None:
        if new is None and old is not None:
            self._verdicts.pop(old.metadata.key, None)
        elif new is not None and new.metadata.key in self._verdicts:
            self._loop.queue.add(new.metadata.key)

    def _child_changed(self, old: Child | None, new: Child | None) -> None:
        """What is above may have something else to say."""
        child = new or old
        for _ in range(DEPTH):
            above = parents_of(child) if child else ()
            for key in above:
                self._loop.queue.add(key)
            child = self._composites.get(above[0]) if above else None


def _was_placed(child: Child) -> bool:
    kind = INITIALLY_SCHEDULED if isinstance(child, PodGroup) else COMPOSITE_INITIALLY_SCHEDULED
    said = condition(child.status.conditions, kind)
    return said is not None and said.status == "True"
